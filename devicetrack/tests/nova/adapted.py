"""Nova's tests with our adapter in its services."""

from __future__ import annotations

from collections.abc import Iterable
import contextlib
import functools
import importlib
from importlib import metadata
import os
import shutil
import sys
import tempfile
import types
from typing import Any
from unittest import mock

from nova import context as nova_context
from nova import service as nova_service
from nova import test as nova_test
from nova.db.main import api as nova_database
from nova.tests import fixtures as nova_fixtures
from nova.tests.functional import integrated_helpers as nova_helpers
from nova.tests.functional.libvirt import integrated_helpers
from oslo_config import cfg

import devicetrack
from devicetrack.conf import nova as nova_options
from devicetrack.conf import pci as pci_options
from devicetrack.nova import binding
from devicetrack.nova import compute
from devicetrack.nova import service
from devicetrack.testing import scratch
from devicetrack.tests import processes
from devicetrack.tests.nova import hypervisor
from devicetrack.tests.nova import pci as shown_pci
from devicetrack.tests.nova import pmem
from devicetrack.tests.nova import suites
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import containment
from devicetrack.virt.libvirt import device_users
from devicetrack.virt.libvirt import mdev_sysfs
from devicetrack.virt.libvirt import vfio_migration
from devicetrack.virt.libvirt import vgpu_sysfs
from devicetrack.virt.libvirt.kinds import pci as pci_kind
from devicetrack.virt.libvirt.kinds import vpmem

# Nova's tests have a kernel of 2019, and versions of libvirt and QEMU that can move such guests. So could the kernels
# that these run on.
_KERNEL = '6.12.0'
_CLEANS = int(metadata.version('nova').partition('.')[0]) >= suites.CLEANS_SINCE

# Nova's tests wait some seconds for what services do beside them, and fail then. A busy machine needs longer: each of
# these waits so many times as long.
_PATIENCE = 24
_WAITS = ('_wait_for_service_parameter', '_wait_for_server_parameter', '_wait_until_deleted',
          '_wait_for_instance_action_event', '_wait_for_volume_attach', '_wait_for_volume_detach',
          '_wait_for_migration_status', '_wait_for_log', '_wait_for_assert')


class World:
    """The hosts of the test that runs: their state directories and their files. Each test has its own."""

    def __init__(self) -> None:
        self.directory = ''
        self.test: Any = None
        self._drivers: list[Any] = []

    def begin(self, test: Any) -> None:
        """Before a test's own ``setUp``."""
        self.directory, self.test = tempfile.mkdtemp(dir=scratch.directory()), test
        # Cleanups run in reverse: this one after those of the test.
        test.addCleanup(self._end)

    def _end(self) -> None:
        # Nova's tests leave services running.
        for started in self._drivers:
            with contextlib.suppress(Exception):
                started.close_devicetrack()
        self._drivers.clear()
        shutil.rmtree(self.directory, ignore_errors=True)

    def connect(self, driver: Any) -> hypervisor.Connection:
        self._drivers.append(driver)
        return hypervisor.Connection(lambda: driver._host.get_connection())

    def context(self, *args: Any, **kwargs: Any) -> Any:
        """A context whose queries go to the cell of this test's hosts.

        A compute has no database, so its contexts name none. In Nova's tests such a query waits until no other thread
        works with another cell, for which that one may wait.
        """
        made = nova_context.get_admin_context(*args, **kwargs)
        cell = self.test.cell_mappings.get(nova_test.CELL1_NAME)
        if cell is not None:
            made.db_connection = nova_database.create_context_manager(cell.database_connection)
        return made

    def state_path(self, host: str) -> str:
        return os.path.join(self.directory, host)

    def pmem(self, host: str) -> str:
        """The directory with the files of a host's namespaces."""
        return os.path.join(self.directory, f'{host}-pmem')


WORLD = World()

_MANAGERS = {'nova-compute': compute.MANAGER}


def begin(adapter: bool, pci: str = '') -> None:
    """Prepare this process for Nova's tests, all of which run in it.

    :param adapter: whether its services have the adapter
    :param pci: ``[devicetrack_nova] pci``; by default ``clean``, if Nova has functions for that
    """
    # Devices need the driver's start, which these tests replace for speed. Stock Nova passes with it too.
    integrated_helpers.LibvirtProviderUsageBaseTestCase.STUB_INIT_HOST = False
    for name in _WAITS:
        _put(nova_helpers.InstanceHelperMixin, name, _patient(getattr(nova_helpers.InstanceHelperMixin, name)))
    # A host's queries take the lock by which Nova's tests choose a cell, in threads for which others wait that have it.
    # So none of them may have to wait for somebody who wants another cell: both would wait for ever.
    _put(nova_fixtures.ReaderWriterLock, 'has_pending_writers', False)
    _with_a_world()
    hypervisor.keep_detached(_put)
    if adapter:
        as_on_a_host()
        # Nova's results must be the same while somebody looks at its functions, and waits to clean them.
        cfg.set_defaults(nova_options.OPTIONS,
                         pci=pci or (nova_options.CLEAN if _CLEANS else nova_options.OBSERVE))
        sysfs = tempfile.mkdtemp(dir=scratch.directory())
        os.makedirs(os.path.join(sysfs, 'bus/pci/devices'))
        cfg.set_defaults(pci_options.OPTIONS, sysfs_root=sysfs)
        nova_service.SERVICE_MANAGERS.update(_MANAGERS)     # Nova's tests end every patch


def with_adapter() -> Any:
    """A patch with which a test starts compute services that have the adapter."""
    return mock.patch.dict(nova_service.SERVICE_MANAGERS, _MANAGERS)


def running(nova_class: Any) -> Any:
    """The class that hosts have now in place of one of Nova's: with the adapter its subclass, if it has one."""
    adapts = nova_service.SERVICE_MANAGERS['nova-compute'] == compute.MANAGER
    ours = [one for one in nova_class.__subclasses__() if one.__module__.startswith(f'{devicetrack.__name__}.nova.')]
    return ours[0] if adapts and ours else nova_class


def _with_a_world() -> None:
    original = nova_test.TestCase.setUp

    @functools.wraps(original)
    def setUp(test: Any) -> None:
        WORLD.begin(test)
        original(test)

    nova_test.TestCase.setUp = setUp


def _patient(wait: Any) -> Any:
    @functools.wraps(wait)
    def wait_longer(*args: Any, **kwargs: Any) -> Any:
        for _ in range(_PATIENCE - 1):
            with contextlib.suppress(AssertionError):
                return wait(*args, **kwargs)
        return wait(*args, **kwargs)
    return wait_longer


def _put(owner: Any, name: str, replacement: Any) -> None:
    """Replace something of a class or module for good: this process runs these tests alone."""
    setattr(owner, name, replacement)


def _keep_own_files() -> None:
    """Let our modules work on files while tests replace os.rename, os.path.exists and others for Nova's disks."""
    for name in ('devicetrack.store.sql.store', 'devicetrack.virt.libvirt.driver'):
        importlib.import_module(name)           # loaded on demand else, when it is too late
    own, path = types.ModuleType('os'), types.ModuleType('os.path')
    path.__dict__.update(vars(os.path))
    own.__dict__.update(vars(os), path=path, makedirs=_make_directories)    # os.makedirs asks os.path.exists
    for name, module in list(sys.modules.items()):
        if name.startswith('devicetrack.') and not name.startswith('devicetrack.tests.') \
                and getattr(module, 'os', None) is os:
            _put(module, 'os', own)


def _make_directories(path: str, mode: int = 0o777, exist_ok: bool = False) -> None:
    try:
        os.mkdir(path, mode)
    except FileNotFoundError:
        _make_directories(os.path.dirname(path), exist_ok=True)
        os.mkdir(path, mode)
    except FileExistsError:
        if not exist_ok:
            raise


class _VGPUs(vgpu_sysfs.VGPUs):
    """The PCI devices of a host, none of which takes vGPU types: each that an address names is there."""

    def vgpus(self) -> list[vgpu_sysfs.VGPUFunction]:
        return []

    def parents(self) -> set[str]:
        return set()

    def known(self, addresses: Iterable[str]) -> set[str]:
        return set()

    def others(self, addresses: Iterable[str]) -> set[str]:
        return set(addresses)


@functools.cache
def as_on_a_host() -> None:
    """Have our driver find what real hosts have where Nova's tests have nothing, or poison. Once in a process."""
    hypervisor.keep_metadata(_put)
    _put(device_users, 'processes', lambda: processes.of(os.getpid()))
    # Nova's tests fail if anything looks into /sys.
    _put(mdev_sysfs, 'Kernel', functools.partial(mdev_sysfs.Kernel, tempfile.mkdtemp(dir=scratch.directory())))
    _put(vgpu_sysfs, 'VGPUs', _VGPUs)
    look, nothing = containment.Look, tempfile.mkdtemp(dir=scratch.directory())
    _put(containment, 'Look', lambda _sysfs: look(nothing))
    _put(service, 'nova_context', types.SimpleNamespace(get_admin_context=WORLD.context))
    _put(binding, 'connect', WORLD.connect)
    _put(binding, 'state_path', WORLD.state_path)
    versions = connection.Connection.versions

    def of_hosts(ours: connection.Connection) -> vfio_migration.Versions | None:
        found = versions(ours)
        return None if found is None else found._replace(kernel=_KERNEL)

    _put(connection.Connection, 'versions', of_hosts)
    _keep_own_files()
    initialize = vpmem.VPMEM.__init__

    def with_files(kind: vpmem.VPMEM, conf: Any, ours: connection.Connection) -> None:
        initialize(kind, conf, ours)
        kind._source = pmem.Source(ours, WORLD.pmem)

    _put(vpmem.VPMEM, '__init__', with_files)
    begin_kind = pci_kind.PCI.__init__

    def with_functions(kind: pci_kind.PCI, conf: Any, ours: connection.Connection) -> None:
        begin_kind(kind, conf, ours)
        if type(kind) is pci_kind.PCI:
            shown_pci.show(kind)

    _put(pci_kind.PCI, '__init__', with_functions)
