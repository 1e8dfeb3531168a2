"""Instances that move between two hosts, each a libvirt of its own with files for namespaces; and those that stay.

The guests are those of libvirt's test driver: definitions without a machine, which is all that a manager reads of one.
"""

from __future__ import annotations

import itertools
import os
import threading
from typing import Any

from devicetrack import exception
from devicetrack.objects import DeviceRequest
from devicetrack.testing import compute_service
from devicetrack.testing import databases
from devicetrack.testing import fixtures
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.testing import region as regions
from devicetrack.tests import base
from devicetrack.tests.functional.claims import libvirt_hosts
from devicetrack.virt.libvirt import domain_xml

TYPE = 'nvidia-35'
SMALL, LARGE, VGPU = 'CUSTOM_PMEM_NAMESPACE_SMALL', 'CUSTOM_PMEM_NAMESPACE_LARGE', fixtures.VGPU

# A guest's own order, and how the destination's placement may name the same.
ASKED = DeviceRequest.of((SMALL, 1), (VGPU, 1), (LARGE, 1))
OTHERWISE = DeviceRequest.of((LARGE, 1), (SMALL, 1), (VGPU, 1))


class TwoHostsTestCase(base.TestCase):
    """Hosts ``one`` and ``two``, with two small namespaces, two large ones and two vGPUs each."""

    def region(self, store: Any = None) -> regions.Region:
        """:param store: gives each host the store that both share; else each has its own file"""
        numbers = itertools.count(1)

        def host(_devices: int, _parents: Any, name: str, **kwargs: Any) -> libvirt_hosts.LibvirtHost:
            number = next(numbers)
            node = self.useFixture(libvirt_fixtures.TestNode())
            parent = node.add_parent(f'0000:8{number}:00.0', {TYPE: 0})
            for group in range(2):
                node.add_mdev(parent, TYPE, group=group)
            # No device has its name on the other host too, so that none can be taken for its partner.
            names = {'SMALL': [f's{number}a', f's{number}b'], 'LARGE': [f'l{number}a', f'l{number}b']}
            if store is not None:
                kwargs['store'] = store()
            return libvirt_hosts.LibvirtHost(node.connect, names, self.temp_dir(), mdev_types=[TYPE], name=name,
                                             **kwargs)
        region = self.useFixture(regions.Region(host=host))
        self.one: Any = region.one
        self.two: Any = region.two
        return region

    def identifiers(self, host: Any, instance: Any, role: str = 'current') -> list[str]:
        return [record.identifier for record in host.records(instance) if record.role == role]

    def named(self, host: Any, domain: Any) -> tuple[list[str], list[str], list[str]]:
        """What a definition names: its namespaces, its vGPUs, and both by its record; each in its order."""
        assert domain.record is not None
        directory = os.path.dirname(host.machine.path('x'))
        self.assertEqual({directory}, {os.path.dirname(path) for path in domain.memory_paths} or {directory})
        return ([os.path.basename(path) for path in domain.memory_paths], list(domain.mdev_uuids),
                [device.identifier for device in domain.record.devices if not device.beside])

    def assert_runs_on(self, host: Any, instance: Any, identifiers: list[str]) -> None:
        """Both definitions of the guest name these devices, in this order, and the invariant holds."""
        namespaces = [name for name in identifiers if name in host.names]
        mdevs = [name for name in identifiers if name not in namespaces]
        for domain in (host.machine.live(instance.uuid), host.machine.defined(instance.uuid)):
            self.assertEqual((namespaces, mdevs, identifiers), self.named(host, domain))
        self.assertEqual([], host.disagreements())

    def fill(self, host: Any, instance: Any) -> dict[str, bytes]:
        """Leave other bytes in each namespace of an instance, and give what is in them then."""
        for name in self.identifiers(host, instance):
            if name in host.names:
                host.machine.write(name, f'{instance.uuid} in {name} '.encode() * 1000)
        return self.contents(host, instance)

    def contents(self, host: Any, instance: Any) -> dict[str, bytes]:
        return {name: host.machine.read(name) for name in self.identifiers(host, instance) if name in host.names}

    def assert_zero(self, host: Any, *but: str) -> None:
        """Every namespace but these holds nothing."""
        self.assertEqual([], [name for name in host.names if name not in but and any(host.machine.read(name))])


class MovesTestCase(TwoHostsTestCase):

    scenarios = base.table(('one PostgreSQL', databases.PostgreSQLStore), ('a file each', None), names=('database',))

    def setUp(self) -> None:
        super().setUp()
        shared = self.useFixture(self.database()) if self.database is not None else None
        self.moving = self.region(shared.open if shared is not None else None)

    def test_resized_back_and_forth(self) -> None:
        region = self.moving
        instance = region.spawn('one', request=ASKED)
        before, secret = self.identifiers(self.one, instance), self.fill(self.one, instance)

        migration = region.resize(instance, 'two', request=OTHERWISE)
        self.assert_runs_on(self.two, instance, self.identifiers(self.two, instance))
        self.fill(self.two, instance)
        self.assertEqual([], region.audit())
        region.revert(instance, migration)
        self.assert_runs_on(self.one, instance, before)
        self.assertEqual((secret, []), (self.contents(self.one, instance), region.rows(instance)['two']))
        self.assert_zero(self.two)
        self.assertEqual([], region.audit())

        migration = region.resize(instance, 'two', request=ASKED)
        after = self.fill(self.two, instance)
        for host in region.hosts.values():
            host.restart()
        region.confirm(instance, migration)
        self.assertEqual((after, []), (self.contents(self.two, instance), region.rows(instance)['one']))
        self.assert_zero(self.one)
        self.assertEqual([], region.audit())
        self.assertEqual({('current', 'active', None)}, {
            (record.role, record.state, record.migration_uuid) for record in self.two.records(instance)})

    def test_migrated_live_with_the_definitions_that_the_source_wrote(self) -> None:
        region = self.moving
        instance, other = region.spawn('one', request=ASKED), region.spawn('two', request=ASKED)
        secret, of_other = self.fill(self.one, instance), self.fill(self.two, other)
        before = self.identifiers(self.one, instance)

        migration = region.live_migration(instance, 'two', request=OTHERWISE)
        partners = self.identifiers(self.two, instance, role='incoming')
        self.assertEqual(
            [record.resource_class for record in self.one.records(instance)],
            [record.resource_class for record in self.two.records(instance)])
        definitions = self.two.machine.received[instance.uuid]
        for text in (definitions.live, definitions.persistent):
            domain = domain_xml.parse(text)
            self.assertEqual(([partners[0], partners[2]], [partners[1]], partners), self.named(self.two, domain))
        self.assertEqual({'old'}, {record.role for record in self.one.records(instance)})
        region.audit()
        region.roll_back(instance, migration)
        self.assertEqual([], region.rows(instance)['two'])
        region.audit()
        self.assert_runs_on(self.one, instance, before)
        self.assertEqual(secret, self.contents(self.one, instance))
        self.assertEqual([], region.audit())

        migration = region.live_migration(instance, 'two', request=OTHERWISE)
        for host in region.hosts.values():
            host.restart()
        region.arrive(instance, migration)
        self.assert_runs_on(self.two, instance, self.identifiers(self.two, instance))
        region.audit()
        self.assertEqual([], region.rows(instance)['one'])
        self.assert_zero(self.one)
        self.assertEqual(of_other, self.contents(self.two, other))
        self.assertEqual([], region.audit())
        self.assertEqual({('current', 'active', None)}, {
            (record.role, record.state, record.migration_uuid) for record in self.two.records(instance)})

    def test_evacuated_and_the_source_comes_back(self) -> None:
        region = self.moving
        instance, other = region.spawn('one', request=ASKED), region.spawn('one', request=ASKED)
        self.fill(self.one, instance)
        of_other = self.fill(self.one, other)
        self.one.manager.close()

        region.evacuate(instance, 'two', request=OTHERWISE)
        self.assert_runs_on(self.two, instance, self.identifiers(self.two, instance))
        after = self.fill(self.two, instance)
        self.two.audit()
        # The guest that the dead host left is there until its manager is.
        self.assertIn(instance.uuid, self.one.machine.domains())
        self.one.restart()
        self.assertEqual({other.uuid}, self.one.machine.domains())
        self.assertEqual([], region.rows(instance)['one'])
        self.assert_zero(self.one, *of_other)
        self.assertEqual((of_other, after), (self.contents(self.one, other), self.contents(self.two, instance)))
        self.assertEqual([], region.audit())
        # What it gave back can be had again, by this instance too.
        region.confirm(instance, region.resize(instance, 'one', request=ASKED))
        self.assert_runs_on(self.one, instance, self.identifiers(self.one, instance))
        self.assert_zero(self.two)
        self.assertEqual([], region.audit())


class Rival(threading.Thread):
    """Claims everything that is free on a host and gives it back, again and again, until it is told to stop.

    ``got`` gets the identifiers of what it was given.
    """

    def __init__(self, host: Any, got: set[str]) -> None:
        super().__init__(daemon=True)
        self._host, self._got = host, got
        self._turn = threading.Condition()
        self._rounds = 0
        self._ended = False
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            while not self._ended:
                self._take_all_and_give_back()
                with self._turn:
                    self._rounds += 1
                    self._turn.notify_all()
        except BaseException as error:
            with self._turn:
                self.error = error
                self._turn.notify_all()

    def _take_all_and_give_back(self) -> None:
        instances = []
        for resource_class in (SMALL, LARGE, VGPU):
            for instance in iter(fixtures.Instance, None):
                try:
                    claim = self._host.claim(instance, DeviceRequest.of((resource_class, 1)))
                except exception.NoFit:
                    break
                instances.append(instance)
                self._got.update(assignment.identifier for assignment in claim.resources)
        for instance in instances:
            self._host.manager.release(None, instance)

    def next_round(self) -> None:
        """Wait until it has taken all that there was, from now on, and given it back."""
        with self._turn:
            begun = self._rounds
            self._turn.wait_for(lambda: self._rounds >= begun + 2 or self.error is not None)

    def end(self) -> None:
        self._ended = True
        self.join()


class StayingTestCase(TwoHostsTestCase):
    """Whatever is done to a guest that stays where it is, its devices stay its own."""

    rival: Rival

    def setUp(self) -> None:
        super().setUp()
        self.staying = self.region()
        self.instance = self.staying.spawn('one', request=ASKED)
        self.machine = self.one.machine

    def destroy(self) -> None:
        self.machine.stop_guest(self.instance.uuid)

    def start(self) -> None:
        """As a service starts a guest whose definition is there."""
        self.one.manager.realize(None, self.instance)
        self.machine.domain(self.instance.uuid).create()
        self.one.manager.started(None, self.instance)

    def boot(self) -> None:
        """With a definition that is made anew."""
        self.one.boot(self.instance)

    def rebuild(self) -> None:
        with self.one.manager.rebuild_claim(None, self.instance, 'one', ASKED):
            self.machine.delete_guest(self.instance.uuid)
            self.between()
            self.boot()

    def fail_to_rebuild(self) -> None:
        def rebuild() -> None:
            with self.one.manager.rebuild_claim(None, self.instance, 'one', ASKED):
                self.machine.delete_guest(self.instance.uuid)
                raise RuntimeError('no image')
        self.assertRaises(RuntimeError, rebuild)

    def save(self) -> None:
        self.machine.domain(self.instance.uuid).managedSave(0)

    def restart(self) -> None:
        self.rival.end()
        self.one.restart()
        self.rival = Rival(self.one, self.got)

    def between(self) -> None:
        """What may happen at any time: an audit, and others who want devices."""
        self.assertEqual([], [finding for finding in self.one.audit()
                              if self.instance.uuid in (finding.recorded_owner, *finding.users)])
        self.rival.next_round()
        self.assertIsNone(self.rival.error)

    def test_it_has_the_same_devices_with_the_same_contents(self) -> None:
        mine, secret = self.identifiers(self.one, self.instance), self.fill(self.one, self.instance)
        records = self.one.records(self.instance)
        self.got: set[str] = set()
        self.rival = Rival(self.one, self.got)
        self.addCleanup(lambda: self.rival.end())
        for name, *steps in (
                ('hard reboot', self.destroy, self.boot),
                ('stop and start', self.destroy, self.start),
                ('suspend and resume', self.save, self.start),
                ('rescue and unrescue', self.destroy, self.boot, self.destroy, self.boot),
                ('rebuild in place', self.rebuild),
                ('rebuild that fails, and a start', self.fail_to_rebuild, self.boot),
                ('manager restarted while it is off', self.destroy, self.restart, self.start)):
            for step in steps:
                step()
                self.between()
            self.assert_runs_on(self.one, self.instance, mine)
            self.assertEqual((records, secret), (self.one.records(self.instance),
                                                 self.contents(self.one, self.instance)), name)
        self.rival.end()
        self.assertEqual(set(self.one.states()) - set(mine), self.got)
        self.assertEqual([], self.one.audit())

    def test_shelved_it_gives_everything_back_and_unshelved_it_claims_anew(self) -> None:
        mine = self.identifiers(self.one, self.instance)
        self.fill(self.one, self.instance)
        self.one.delete(self.instance)
        self.instance.host = self.instance.node = None
        self.instance.state = compute_service.OFFLOADED
        self.assertEqual({fixtures.FREE}, set(self.one.states().values()))
        self.assert_zero(self.one)
        others = [self.staying.spawn('one', request=ASKED) for _ in range(2)]
        secrets = [self.fill(self.one, other) for other in others]
        self.assertLess(set(mine), {name for other in others for name in self.identifiers(self.one, other)})

        self.assertRaises(exception.NoFit, self.one.spawn, self.instance, ASKED)
        self.two.spawn(self.instance, ASKED)
        self.assert_runs_on(self.two, self.instance, self.identifiers(self.two, self.instance))
        self.assertEqual([], self.staying.audit())
        self.assertEqual(secrets, [self.contents(self.one, other) for other in others])

    def test_offloaded_while_its_manager_was_away_it_gives_everything_back(self) -> None:
        self.fill(self.one, self.instance)
        self.one.manager.close()
        self.machine.delete_guest(self.instance.uuid)
        self.instance.host = self.instance.node = None
        self.instance.state = compute_service.OFFLOADED
        self.one.restart()
        self.assertEqual({fixtures.FREE}, set(self.one.states().values()))
        self.assert_zero(self.one)
        self.assertEqual([], self.staying.audit())
