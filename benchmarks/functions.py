"""Reading the PCI functions of a host with thousands of virtual ones, against libvirt's list of them.

The files are in memory and laid out as sysfs. libvirt's list is that of its in-process test driver: it reads no sysfs,
and has no socket between it and the caller. Both cost more on a real host.
"""

from __future__ import annotations

import contextlib
import time

from benchmarks.measure import Effort
from benchmarks.measure import side_by_side
from benchmarks.report import Row
from benchmarks.report import Table
from devicetrack.testing import pci
from devicetrack.virt.libvirt import pci_sysfs


def run(effort: Effort) -> Table:
    # Not at the top: without libvirt the rest can be measured all the same.
    import libvirt

    from devicetrack.testing import libvirt as libvirt_fixtures
    kind = pci.IGB._replace(total_vfs=effort.functions_a_card, vf_offset=16, vf_stride=1)
    with contextlib.ExitStack() as stack:
        host = stack.enter_context(pci.PCIHost())
        for number in range(effort.cards):
            physical = host.add(f'0000:{16 + number:02x}:00.0', kind)
            host.make_vfs(physical, effort.functions_a_card)
        tree = pci_sysfs.Tree(host.root)
        functions = tree.functions()
        node = stack.enter_context(libvirt_fixtures.TestNode())
        for function in functions:
            node.add_function(function)
        connection = node.connect()

        def read() -> float:
            began = time.perf_counter()
            tree.functions()
            return time.perf_counter() - began

        def list_devices() -> float:
            began = time.perf_counter()
            for device in connection.listAllDevices(libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_PCI_DEV):
                device.XMLDesc(0)
            return time.perf_counter() - began

        def read_one() -> float:
            began = time.perf_counter()
            tree.function(functions[-1].address)
            return time.perf_counter() - began

        def use() -> float:
            began = time.perf_counter()
            used = host.use()
            for function in functions:
                used.of(function.address)
            return time.perf_counter() - began

        samples = side_by_side({'read': read, 'libvirt': list_devices, 'one': read_one, 'use': use},
                               effort.function_rounds)
    return Table('PCI functions of a host', [
        Row('functions, each with its driver, group and parent', len(functions),
            at_least=effort.cards * (1 + effort.functions_a_card), note=f'{effort.cards} physical ones'),
        Row('reading all', samples.median('read') * 1000, 'ms', at_most=1000),
        Row("reading all, to libvirt's list and documents", samples.ratio('read', 'libvirt')),
        Row('reading one', samples.median('one') * 1000, 'ms', at_most=10),
        Row('what the host uses them for', samples.median('use') * 1000, 'ms', at_most=1000),
    ])
