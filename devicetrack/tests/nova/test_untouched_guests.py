"""Guests without devices of ours: with the adapter, Nova makes the same calls for them as without it.

Each test does the same on hosts of Nova alone, then on hosts with the adapter, and compares what was called for its
guest: methods of Nova's driver, messages between services, requests to placement, and what libvirt had to change.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Iterable
import functools
import inspect
import os
import re
from types import FunctionType
from typing import Any
from typing import Final

import fixtures
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
import nova.conf
from nova.objects import base as nova_objects
from nova.scheduler.client import report
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.libvirt import base as nova_base
from nova.virt.libvirt import driver
from oslo_messaging.rpc import client

from devicetrack.tests.nova import adapted
from devicetrack.tests.nova.stock_failures import base

adapted.as_on_a_host()

# What changes a guest. What only reads it may be read more often.
_DOMAIN: Final = ('attachDevice', 'attachDeviceFlags', 'blockRebase', 'create', 'createWithFlags', 'destroy',
                  'detachDevice', 'detachDeviceFlags', 'managedSave', 'managedSaveRemove', 'migrateToURI3', 'reset',
                  'resume', 'setMetadata', 'shutdown', 'suspend', 'undefine', 'undefineFlags')
_CONNECTION: Final = ('createXML', 'defineXML')
# Nova asks until it has the answer that it wants, and after libvirt's events.
_ASKED_AGAIN: Final = ('get_info',)
# What differs between two guests that are alike.
_OWN: Final = ((re.compile('[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}'), 'a UUID'),
               (re.compile('/tmp[a-z0-9_]{8}'), '/a file'),
               (re.compile('instance-[0-9a-f]{8}'), 'its name'),
               (re.compile('(stock|ours)(?=[12])'), 'host'),
               (re.compile(r'\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(Z|\.\d+)?'), 'a time'))


class Calls(fixtures.Fixture):
    """What is called, as text."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def of(self, *uuids: str) -> collections.Counter[str]:
        """Count the calls that concern a guest, without what differs between two guests that are alike.

        :param uuids: its own and those of its migrations
        """
        found = (called for called in self.made if any(uuid in called for uuid in uuids) or '/allocation_c' in called)
        return collections.Counter(map(_common, found))

    def _setUp(self) -> None:
        initialize = driver.LibvirtDriver.__init__

        def begin(made: Any, *args: Any, **kwargs: Any) -> None:
            initialize(made, *args, **kwargs)
            for name in dir(driver.LibvirtDriver):
                if name not in _ASKED_AGAIN and not name.startswith('_') \
                        and isinstance(inspect.getattr_static(driver.LibvirtDriver, name), FunctionType):
                    setattr(made, name, self._noting_driver(made, name))

        self._put(driver.LibvirtDriver, '__init__', begin)
        for name in ('call', 'cast'):
            self._around(client._BaseCallContext, name, lambda _client, _context, method, **kwargs: (
                f'message {method}', (), kwargs))
        for name in ('get', 'put', 'post', 'delete'):
            self._around(report.SchedulerReportClient, name, lambda _client, url, *args, _verb=name, **kwargs: (
                f'placement {_verb}', (url, *args), kwargs))
        for name in _DOMAIN:
            self._around(fakelibvirt.Domain, name, lambda domain, *args, _name=name, **kwargs: (
                f'domain {_name}', (domain.UUIDString(), *args), kwargs))
        for name in _CONNECTION:
            self._around(fakelibvirt.Connection, name, lambda _connection, *args, _name=name, **kwargs: (
                f'libvirt {_name}', args, kwargs))

    def _put(self, owner: Any, name: str, value: Any) -> None:
        self.useFixture(fixtures.MockPatchObject(owner, name, value))

    def _around(self, owner: Any, name: str, read: Callable[..., tuple[str, tuple[Any, ...], dict[str, Any]]]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def noting(*args: Any, **kwargs: Any) -> Any:
            self._note(*read(*args, **kwargs))
            return original(*args, **kwargs)

        self._put(owner, name, noting)

    def _noting_driver(self, made: Any, name: str) -> Callable[..., Any]:
        def noting(*args: Any, **kwargs: Any) -> Any:
            self._note(f'driver {name}', args, kwargs)
            # Tests replace methods of the class, and the object becomes one of another class.
            method = inspect.getattr_static(type(made), name)
            bound = method.__get__(made) if hasattr(method, '__get__') else method
            return bound(*args, **kwargs)
        return noting

    def _note(self, what: str, args: Iterable[Any], kwargs: dict[str, Any]) -> None:
        shown = [_shape(one) for one in args] + [f'{name}={_shape(one)}' for name, one in sorted(kwargs.items())]
        self.made.append(f'{what}({", ".join(shown)})')


def _common(called: str) -> str:
    """Leave out what is a guest's own."""
    return functools.reduce(lambda text, one: one[0].sub(one[1], text), _OWN, called)


def _shape(value: Any) -> str:
    """Write an argument down as far as it is the same for two guests that are alike."""
    if isinstance(value, objects.Instance):
        return f'instance {value.uuid}'
    if isinstance(value, nova_objects.NovaObject):
        fields = ', '.join(sorted(name for name in value.fields if value.obj_attr_is_set(name)))
        of = value.instance_uuid if 'instance_uuid' in value.fields and 'instance_uuid' in value else ''
        return f'{type(value).__name__} {of}({fields})'
    if isinstance(value, dict) and 'hypervisor_hostname' in value:
        return 'a host'                         # as its last report told it
    if isinstance(value, dict):
        shown = ', '.join(sorted((f'{name}: {_shape(one)}' for name, one in value.items()), key=_common))
        return f'{{{shown}}}'
    if isinstance(value, (list, tuple, set, frozenset)):
        return f'[{", ".join(map(_shape, value))}]'
    if value is None or isinstance(value, (bool, str)):
        return str(value)
    return type(value).__name__


class UntouchedTestCase(nova_base.LibvirtMigrationMixin, base.MdevGuests):
    """Two hosts with mediated devices, and a guest without any."""

    def setUp(self) -> None:
        # Those that can do it.
        self.FAKE_LIBVIRT_VERSION, self.FAKE_QEMU_VERSION = 8_006_000, 8_001_000
        super().setUp()
        self.fails = False
        self.useFixture(fixtures.MockPatch('nova.utils.generate_password', return_value='a password'))
        self.calls = self.useFixture(Calls())
        self.plain, self.larger = self._create_flavor(), self._create_flavor(memory_mb=4096)

    def compare(self, operate: Callable[[], None]) -> None:
        """Do something with a guest on hosts of Nova alone, and on hosts with the adapter, and compare the calls."""
        stock = self._calls('stock', operate)
        with adapted.with_adapter():
            ours = self._calls('ours', operate)
        self.assertIsNot(driver.LibvirtDriver, type(self.src.driver))
        self.assertTrue(stock)
        self.assertEqual('', '\n'.join(f'{ours[called]} instead of {stock[called]}: {called}'
                                       for called in sorted(stock | ours) if ours[called] != stock[called]))

    def _calls(self, name: str, operate: Callable[[], None]) -> collections.Counter[str]:
        self.calls.made.clear()
        self.source, self.destination = f'{name}1', f'{name}2'
        self.src, self.dest = (self.start_compute_with_vgpu(host) for host in (self.source, self.destination))
        self.server = self._create_server(name='a guest', image_uuid=base.IMAGE, flavor_id=self.plain, networks='none',
                                          host=self.source)
        operate()
        uuid = self.server['id']
        moves = self.moves()
        self._delete_server(self.server)
        for host in (self.source, self.destination):
            self.take_down(host)
        return self.calls.of(uuid, *(one.uuid for one in moves))

    def act(self, state: str, **action: Any) -> None:
        self.api.post_server_action(self.server['id'], action)
        self._wait_for_server_parameter(self.server, {'status': state, 'OS-EXT-STS:task_state': None})

    def test_what_happens_on_one_host(self) -> None:
        def operate() -> None:
            self.force_down(self.destination, True)
            self.act('ACTIVE', reboot={'type': 'SOFT'})
            self.act('ACTIVE', reboot={'type': 'HARD'})
            self.act('PAUSED', pause={})
            self.act('ACTIVE', unpause={})
            self.act('SUSPENDED', suspend={})
            self.act('ACTIVE', resume={})
            self.act('SHUTOFF', **{'os-stop': None})
            self.act('ACTIVE', **{'os-start': None})
            os.makedirs(os.path.join(nova.conf.CONF.instances_path, self.server['id']), exist_ok=True)
            self.act('RESCUE', rescue={})
            self.act('ACTIVE', unrescue={})
            self.act('ACTIVE', rebuild={'imageRef': base.IMAGE})
            self._shelve_server(self.server)
            self._unshelve_server(self.server)
        self.compare(operate)

    def test_disks_and_a_deletion_that_is_taken_back(self) -> None:
        def operate() -> None:
            volume = self.cinder.IMAGE_BACKED_VOL
            self.api.post_server_volume(self.server['id'], {'volumeAttachment': {'volumeId': volume}})
            self._wait_for_volume_attach(self.server['id'], volume)
            self.api.delete_server_volume(self.server['id'], volume)
            self._wait_for_volume_detach(self.server['id'], volume)
            for is_cold in (False, True):
                self.flags(disable_libvirt_livesnapshot=is_cold, group='workarounds')
                self._snapshot_server(self.server, 'a snapshot')
                self._wait_for_server_parameter(self.server, {'OS-EXT-STS:task_state': None})
            self.flags(reclaim_instance_interval=30000)
            self.api.delete_server(self.server['id'])
            self._wait_for_server_parameter(self.server, {'status': 'SOFT_DELETED'})
            self.act('ACTIVE', restore={})
            self.flags(reclaim_instance_interval=0)
        self.compare(operate)

    def test_cold_moves(self) -> None:
        def operate() -> None:
            self._resize_server(self.server, self.larger)
            self._revert_resize(self.server)
            self._resize_server(self.server, self.larger)
            self._confirm_resize(self.server, host=self.source)
            self._migrate_server(self.server)
            self._confirm_resize(self.server, host=self.destination)
        self.compare(operate)

    def test_a_live_migration(self) -> None:
        self.compare(lambda: self.migrate(completed=1))

    def test_a_live_migration_that_fails(self) -> None:
        self.fails = True
        self.compare(lambda: self.migrate(failed=1))

    def test_a_live_migration_that_the_destination_ends(self) -> None:
        def refuse(*_args: Any, **_kwargs: Any) -> None:
            raise nova_exception.Invalid('not here')

        def operate() -> None:
            with fixtures.MonkeyPatch('nova.virt.libvirt.LibvirtDriver.pre_live_migration', refuse):
                self.migrate(failed=1)
        self.compare(operate)

    def migrate(self, **ended: int) -> None:
        """Begin a live migration, and wait until so many have ended."""
        self.api.post_server_action(self.server['id'], {'os-migrateLive': {'host': None, 'block_migration': 'auto'}})
        self._wait_for_assert(lambda: self.assertEqual(ended, collections.Counter(
            'failed' if one.status == 'error' else one.status for one in self.moves())))
        self._wait_for_server_parameter(self.server, {'OS-EXT-STS:task_state': None})

    def moves(self) -> Any:
        return objects.MigrationList.get_by_filters(
            nova_context.get_admin_context(), {'instance_uuid': self.server['id']})

    def test_an_evacuation(self) -> None:
        def operate() -> None:
            self.take_down(self.source)
            self._evacuate_server(self.server, expected_host=self.destination, expected_state='SHUTOFF',
                                  expected_migration_status='done')
            self.restart_compute_service(self.source)
        self.compare(operate)

    def _migrate_stub(self, domain: Any, *args: Any, **kwargs: Any) -> None:
        if self.fails:
            domain.fail_job()
        else:
            super()._migrate_stub(domain, *args, **kwargs)
