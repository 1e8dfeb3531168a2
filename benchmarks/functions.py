"""Compares reading the PCI functions of a host, thousands of them virtual, with libvirt's list of them.

The files are in memory, in the layout of sysfs. A libvirtd of the benchmark's own reads the same files, and answers
through its socket. That needs root. Without root, libvirt's in-process test driver answers. It reads no files and has
no socket, so it costs much less than a host's libvirt.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import json
import os
import tempfile
import time
from typing import Any
from typing import Final

from oslo_config import cfg

from benchmarks.measure import Effort
from benchmarks.measure import side_by_side
from benchmarks.report import Row
from benchmarks.report import Table
from devicetrack.conf import pci as options
from devicetrack.testing import pci
from devicetrack.testing import pci_models
from devicetrack.virt.libvirt import pci_sysfs

_HANGS_S: Final = 120
_BOOT: Final = 'a boot of the benchmark'


def run(effort: Effort) -> Table:
    # Not at the top: the other subjects can be measured without libvirt.
    import libvirt

    model = pci_models.IGB._replace(total_vfs=effort.functions_a_card, vf_offset=16, vf_stride=1)
    with contextlib.ExitStack() as stack:
        host = stack.enter_context(pci.PCIHost())
        for number in range(effort.cards):
            physical = host.add(f'0000:{16 + number:02x}:00.0', model)
            host.make_vfs(physical, effort.functions_a_card)
        tree = pci_sysfs.Tree(host.root)
        functions = tree.functions()
        connection, whose = _libvirt(stack, host, functions)
        state_path = stack.enter_context(tempfile.TemporaryDirectory())
        ours = _kind(host, state_path)

        def list_devices() -> None:
            for device in connection.listAllDevices(libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_PCI_DEV):
                device.XMLDesc(0)

        def use() -> None:
            used = host.use()
            for function in functions:
                used.of(function.address)

        samples = side_by_side({
            'read': timed(tree.functions), 'libvirt': timed(list_devices),
            'inventory': lambda: timed(_kind(host, state_path).stock)(), 'audit': timed(ours.stock),
            'one': timed(lambda: tree.function(functions[-1].address)), 'use': timed(use)}, effort.function_rounds)
    return Table('PCI functions of a host', [
        Row('functions, each with its driver, group and parent', len(functions),
            at_least=effort.cards * (1 + effort.functions_a_card), note=f'{effort.cards} physical ones'),
        Row("libvirt's list and documents", samples.median('libvirt') * 1000, 'ms', note=whose),
        Row('reading all', samples.median('read') * 1000, 'ms'),
        Row("reading all, to libvirt's list", samples.ratio('read', 'libvirt'),
            at_most=0.5 if whose == _DAEMON else None),
        Row('the first inventory', samples.median('inventory') * 1000, 'ms'),
        Row("the first inventory, to libvirt's list", samples.ratio('inventory', 'libvirt'),
            at_most=1.5 if whose == _DAEMON else None),
        Row('the inventory of an audit', samples.median('audit') * 1000, 'ms'),
        Row("the inventory of an audit, to libvirt's list", samples.ratio('audit', 'libvirt'),
            at_most=0.5 if whose == _DAEMON else None),
        Row('reading one', samples.median('one') * 1000, 'ms'),
        Row('reading one, to reading all', samples.ratio('one', 'read'), at_most=0.01),
        Row('what the host uses them for', samples.median('use') * 1000, 'ms'),
        Row("what the host uses them for, to libvirt's list", samples.ratio('use', 'libvirt'),
            at_most=0.25 if whose == _DAEMON else None),
    ])


def timed(work: Callable[[], object]) -> Callable[[], float]:
    def measure() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return measure


_DAEMON: Final = 'a libvirtd that reads the same files'
_TEST_DRIVER: Final = "libvirt's test driver, which reads no files"


def _libvirt(stack: contextlib.ExitStack, host: pci.PCIHost,
             functions: Sequence[pci_sysfs.Function]) -> tuple[Any, str]:
    """Connect to a libvirt that has these functions. Returns the connection and a name for it."""
    import libvirt

    from devicetrack.testing import libvirt as libvirt_fixtures
    if os.geteuid() != 0:
        node = stack.enter_context(libvirt_fixtures.TestNode())
        for function in functions:
            node.add_function(function)
        return node.connect(), _TEST_DRIVER
    connection = stack.enter_context(libvirt_fixtures.Libvirtd(host.root)).connect()
    stack.callback(connection.close)
    deadline = time.monotonic() + _HANGS_S
    while len(connection.listDevices('pci')) < len(functions):
        if time.monotonic() > deadline:
            raise AssertionError('libvirtd has not found all functions')
        time.sleep(0.1)                         # libvirtd looks for functions in a thread of its own
    connection.listAllDevices(libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_PCI_DEV)
    return connection, _DAEMON


def _kind(host: pci.PCIHost, state_path: str) -> Any:
    """Make the device kind as after a start, when it has to read everything."""
    from devicetrack.virt.libvirt import connection
    from devicetrack.virt.libvirt.kinds import pci as kinds
    conf = cfg.ConfigOpts()
    options.register(conf)
    conf(())
    conf.set_override('device_spec', [json.dumps({'vendor_id': pci_models.IGB.product.partition(':')[0]})],
                      options.SERVICE_GROUP)
    conf.set_override('functions', ['all'], options.GROUP)
    conf.set_override('sysfs_root', host.root, options.GROUP)
    kind = kinds.PCI(conf, connection.Connection('', None))
    kind.state_path, kind.boot_id, kind.host_use = state_path, lambda: _BOOT, host.use
    return kind
