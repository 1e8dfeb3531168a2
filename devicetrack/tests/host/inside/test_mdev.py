"""Mediated devices on the kernel, libvirt and mdevctl of a host."""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import functools
import json
import os
import re
import time
from typing import Any

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.compatibility import host_facts
from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.facts import UnknownVersion
from devicetrack.compatibility.rules import decide
from devicetrack.compatibility.rules import VERSION_UNKNOWN
from devicetrack.engine import findings
from devicetrack.objects import details
from devicetrack.objects import DeviceRequest
from devicetrack.testing import fixtures
from devicetrack.tests.host.inside.mdevs import BUS
from devicetrack.tests.host.inside.mdevs import DEFINITIONS
from devicetrack.tests.host.inside.mdevs import Host
from devicetrack.tests.host.inside.mdevs import MdevTestCase
from devicetrack.tests.host.inside.mdevs import PARENT
from devicetrack.virt.libvirt import nodedev_xml
from devicetrack.virt.libvirt.kinds import busy

# One type of each parent, and what its devices count as.
EVERY = {'mtty-2': (PARENT, 'VGPU'), 'mdpy-vga': ('mdpy', 'CUSTOM_MDPY'), 'mbochs-small': ('mbochs', 'CUSTOM_MBOCHS')}


class BlackHoleTestCase(MdevTestCase):

    def test_a_parent_that_cannot_make_devices_is_passed_over(self) -> None:
        """It shows room, and each write to ``create`` fails with EINVAL, as with a driver that is half broken."""
        there = self.make('mdpy', 'mdpy-vga')
        host = self.host({name: (parent, 'VGPU') for name, (parent, _class) in EVERY.items()})
        host.configuration.set('devicetrack', selection_policy=vocabulary.SPREAD)
        host.restart()
        create = os.path.realpath(os.path.join(BUS, 'mtty', 'mdev_supported_types', 'mtty-2', 'create'))
        # A number belongs into this file, and no UUID is one.
        self.run_program('mount', '--bind', '/proc/sys/vm/swappiness', create)
        with contextlib.ExitStack() as mounted:
            mounted.callback(self.run_program, 'umount', create)
            instance = host.take()
            self.assertEqual({there: instance.uuid}, host.owners())
            self.assertEqual(([there], 12), (self.there(), self.room('mtty', 'mtty-2')))
            found = [(one.kind, one.device.identifier) for one in host.audit()]
            self.assertEqual([(findings.NOT_REALIZED, PARENT)], found)
            self.assertIn(f'parent mdev/{PARENT}', str(self.assertRaises(exception.NoFit, host.take)))
        host.audit()                            # the second one since: now claims may try it again
        other = host.take()
        self.assertEqual(PARENT, host.records(other)[0].parent)
        self.assertEqual([], host.audit())
        host.release(instance)
        host.release(other)
        self.remove(there)
        self.assert_nothing_left()


class ClaimTestCase(MdevTestCase):

    def test_twelve_of_twenty_four_get_one_and_the_others_are_told_why(self) -> None:
        host = self.host()
        instances = [fixtures.Instance() for _ in range(24)]
        answers = self.together(*(functools.partial(host.take, instance) for instance in instances))
        refused = [answer for answer in answers if isinstance(answer, BaseException)]
        self.assertEqual(12, sum(isinstance(error, exception.NoFit) for error in refused), '\n'.join(map(str, refused)))
        for error in refused:
            self.assertEqual('1 VGPU wanted, 0 of 12 free: 12 held by',
                             re.sub(' [0-9]+ instances?.*', '', str(error)))
        won = [answer for answer in answers if isinstance(answer, fixtures.Instance)]
        self.assertEqual(sorted(instance.uuid for instance in won), sorted(host.owners().values()))
        self.assert_made(host.devices())
        self.assertEqual((0, 0), (self.room('mtty', 'mtty-1'), self.room('mtty', 'mtty-2')))
        error = self.assertRaises(exception.NoFit, host.take)
        self.assertEqual(f'1 VGPU wanted, 0 of 12 free: 12 held by 12 instances, no room left on {PARENT}', str(error))
        self.assertEqual([], host.audit())
        self.assertEqual([None] * 12, self.together(*(functools.partial(host.release, instance) for instance in won)))
        self.assert_nothing_left()
        self.assertEqual({}, host.owners())
        self.assertEqual(24, self.room('mtty', 'mtty-1'))

    def test_two_types_share_what_their_parent_has(self) -> None:
        one, two = self.host({'mtty-1': (None, 'VGPU')}), self.host()
        self.assertEqual((24, 12), (one.free(), two.free()))
        of_two = two.take()
        one.audit()
        self.assertEqual(22, one.free())
        of_one = one.take()
        two.audit()
        # An odd one takes half of another away.
        self.assertEqual((21, 10), (one.free(), two.free()))
        # Nobody sees the other's devices until the parent refuses. Nothing is left of the attempt.
        two.release(of_two)
        for _ in range(11):
            self.make('mtty', 'mtty-2', seen=False)
        error = self.assertRaises(exception.DeviceTrackError, two.take)
        self.assertIn(PARENT, str(error))
        self.assertEqual(({}, {'mtty': one.devices()}), (two.owners(), self.defined()))
        one.release(of_one)

    def test_a_definition_is_started_with_its_parent(self) -> None:
        def found() -> set[tuple[str, str, str | None]]:
            return {(one.kind, one.device.identifier, one.recorded_owner) for one in host.audit()}

        host = self.host()
        instance = host.take(amount=2)
        identifiers = host.devices(instance)
        self.assert_made(identifiers)
        host.manager.started(host.context, instance)
        self.addCleanup(self.run_program, 'modprobe', 'mtty')
        self.start_definitions()
        self.run_program('modprobe', '--remove', 'mtty')
        self.assertEqual([], self.there())
        self.wait_for(lambda: not self.libvirt.listDevices('mdev_types'))
        # Its guest has no domain, and its service does not say where it is.
        gone, of_nobody = ({(kind, identifier, instance.uuid) for identifier in identifiers}
                           for kind in (findings.GONE, findings.UNKNOWN_OWNER))
        self.assertEqual(gone | of_nobody, found())
        self.assertRaises(exception.RealizeFailed, host.manager.realize, host.context, instance)
        self.assertEqual(dict.fromkeys(identifiers, instance.uuid), host.owners())
        self.run_program('modprobe', 'mtty')
        self.run_program('udevadm', 'settle')
        self.assert_made(identifiers)
        # They have other groups, until they are made ready for the guest again.
        self.assertLessEqual({kind for kind, *_ in found() - of_nobody}, {findings.DETAILS_DIFFER})
        host.manager.realize(host.context, instance)
        self.assertEqual(of_nobody, found())
        # The host's own start of devices at a boot may come at the same time.
        self.remove(identifiers[0])
        self.together(lambda: self.run_program('mdevctl', 'start', '--uuid', identifiers[0]),
                      functools.partial(host.manager.realize, host.context, instance))
        self.assert_made(identifiers)
        host.release(instance)
        self.assert_nothing_left()

    def test_what_is_lost_of_it_is_made_again(self) -> None:
        host = self.host()
        instance = host.take()
        identifier, = host.devices(instance)
        path = os.path.join(DEFINITIONS, 'mtty', identifier)
        for lost, lose in enumerate((lambda: self.remove(identifier), lambda: os.unlink(path),
                                     lambda: self.run_program('mdevctl', 'modify', '--uuid', identifier, '--manual'))):
            self.wait_for(lambda: all(self.seen(identifier)))
            lose()
            self.wait_for(lambda lost=lost: not self.seen_anew(identifier)[lost])
            host.manager.realize(host.context, instance)
            self.assert_made([identifier])
        host.release(instance)
        self.assert_nothing_left()

    def test_a_host_without_power_comes_back(self) -> None:
        """A definition that was lost with the power: mdevctl has an empty file, and libvirt starts after that."""
        host = self.host()
        instance = host.take(amount=2)
        whole, lost = host.devices(instance)
        self.remove(whole)
        self.remove(lost)
        path = os.path.join(DEFINITIONS, 'mtty', lost)
        with open(path, 'w'):
            os.utime(path, (0, 0))
        self.addCleanup(self.restart_libvirt)
        self.restart_libvirt()
        self.assertEqual([], self.listed())
        host.manager.realize(host.context, instance)
        self.assert_made([whole, lost])
        # It read no events since it started.
        self.restart_libvirt()
        host.release(instance)
        self.assert_nothing_left()


class ForeignTestCase(MdevTestCase):

    def test_they_are_reported_left_alone_handed_out_where_that_is_wanted_and_kept(self) -> None:
        made = {'VGPU': self.make_by_libvirt('mtty-2'), 'CUSTOM_MDPY': self.make_by_mdevctl('mdpy', 'mdpy-vga'),
                'CUSTOM_MBOCHS': self.make('mbochs', 'mbochs-small')}
        everything = DeviceRequest.of(*((resource_class, 1) for resource_class in made))
        left, used = self.host(EVERY, existing=False), self.host(EVERY)
        self.assertEqual({(findings.LEFT_OVER, identifier) for identifier in made.values()},
                         {(found.kind, found.device.identifier) for found in left.findings})
        self.assertEqual([], used.findings)
        error = self.assertRaises(exception.NoFit, left.claim, fixtures.Instance(), everything)
        self.assertEqual({'CUSTOM_MDPY', 'CUSTOM_MBOCHS'}, {short.resource_class for short in error.shortages})
        # While a guest has them it makes no difference.
        guest = self.start_guest(*made.values())
        for host in (left, used):
            self.assert_found(findings.USED_UNRECORDED, made, host.audit(), guest)
            for resource_class in ('CUSTOM_MDPY', 'CUSTOM_MBOCHS'):
                error = self.assertRaises(exception.NoFit, host.take, of=resource_class)
                self.assertIn('1 withheld', str(error))
            instance = host.take()
            self.assertNotIn(made['VGPU'], host.devices(instance))
            host.release(instance)
        self.libvirt.lookupByUUIDString(guest).destroy()
        self.assertEqual([], used.audit())
        instance = used.spawn(request=everything)
        self.assertEqual(dict.fromkeys(made.values(), instance.uuid), used.owners())
        used.delete(instance)
        self.assertEqual(({}, sorted(made.values()), {}), (used.owners(), self.there(), self.defined()))

    def assert_found(self, kind: str, devices: dict[str, str], found: Sequence[Any], user: str) -> None:
        self.assertEqual({(kind, identifier, (user,)) for identifier in devices.values()},
                         {(one.kind, one.device.identifier, one.users) for one in found})

    def test_parents_that_libvirt_does_not_know(self) -> None:
        made = {'mdpy': self.make('mdpy', 'mdpy-vga'), 'mbochs': self.make('mbochs', 'mbochs-small')}
        defined = self.define('mdpy', 'mdpy-vga')
        host = self.host(EVERY)
        inventory = host.machine.driver.get_inventory()
        self.assertEqual([(PARENT, 'mtty-2', 12)], [(capacity.parent, capacity.device_type, capacity.available)
                                                   for capacity in inventory.capacities])
        # Their names are those that libvirt would give them.
        self.assertEqual({(identifier, f'{parent}_{parent}', f'{parent}_{parent}', None)
                          for parent, identifier in made.items()},
                         {(device.identifier, device.parent, device.provider, device.unhealthy)
                          for device in inventory.devices})
        for device in inventory.devices:
            found = details.from_text(device.details)
            self.assertEqual((device.parent, None, 'vfio-pci'),
                             (found.parent, found.parent_address, found.device_api))
        read = nodedev_xml.parse_mdev(self.node_device(defined).XMLDesc(0))
        self.assertEqual(('computer', 'mdpy', 'mdpy-vga'), (read.parent, read.parent_address, read.type))
        # The owner's guest is off and somebody stopped the device: it is there again when it is wanted.
        instance = host.take(of='CUSTOM_MDPY')
        self.run_program('mdevctl', 'define', '--uuid', made['mdpy'])
        self.remove(made['mdpy'])
        self.wait_for(lambda: self.seen(made['mdpy'])[:2] == (False, True))
        host.manager.realize(host.context, instance)
        self.assertEqual(('mdpy-vga', 'mdpy'), self.made(made['mdpy'])[:2])
        host.release(instance)
        self.assertEqual({'mdpy': sorted([defined, made['mdpy']])}, self.defined())

    def test_a_definition_of_another_type_does_not_change_what_exists(self) -> None:
        identifier = self.make('mtty', 'mtty-2')
        self.run_program('mdevctl', 'define', '--uuid', identifier)
        path = os.path.join(DEFINITIONS, 'mtty', identifier)
        with open(path, 'w') as file:
            json.dump({'mdev_type': 'mtty-1', 'start': 'manual', 'attrs': []}, file)
        self.wait_for(lambda: self._is_defined_as(identifier, 'mtty-1'))
        host = self.host()
        self.assertEqual([identifier], [device.identifier for device in host.machine.driver.get_inventory().devices])
        instance = host.take()
        self.assertEqual([identifier], host.devices(instance))
        host.release(instance)
        self.assertEqual(([identifier], {'mtty': [identifier]}), (self.there(), self.defined()))

    def _is_defined_as(self, identifier: str, device_type: str) -> bool:
        device = self.node_device(identifier)
        try:
            document = device.XMLDesc(1)        # of the definition, where libvirt tells both
        except Exception:
            document = device.XMLDesc(0)
        return bool(device.isPersistent()) and nodedev_xml.parse_mdev(document).type == device_type

    def test_a_definition_elsewhere_with_its_uuid_is_not_removed_with_it(self) -> None:
        host = self.host()
        instance = host.take()
        identifier, = host.devices(instance)
        self.define('mdpy', 'mdpy-vga', identifier)
        error = self.assertRaises(exception.UnclaimFailed, host.release, instance)
        self.assertIn('a device of type mdpy-vga and parent mdpy_mdpy has its UUID', str(error))
        self.assertEqual(([identifier], {'mtty': [identifier], 'mdpy': [identifier]}), (self.there(), self.defined()))
        self.assertEqual({identifier: instance.uuid}, host.owners())
        os.unlink(os.path.join(DEFINITIONS, 'mdpy', identifier))
        self.wait_for(lambda: len(self.listed()) == 1)
        host.audit()
        self.assert_nothing_left()
        self.assertEqual({}, host.owners())


class DeclarationTestCase(MdevTestCase):

    def declared(self, host: Host) -> Facts:
        """What is declared of the only type that the options enable; it is in the store too."""
        [(place, declaration)] = host.running.declarations.known.items()
        self.assertEqual(('mdev', PARENT, 'mtty-2'), place)
        self.assertEqual([declaration], [host_facts.declared_in(row) for row in host.store.declarations()])
        facts: Facts = declaration.facts
        self.assertEqual(('vfio-pci', host.machine.driver.live_migration_obstacles().get('mdev')),
                         (facts.api, facts.obstacle))
        return facts._replace(obstacle=None)

    def test_a_driver_of_the_kernel_declares_no_version_and_a_table_does(self) -> None:
        host = self.host()
        facts = self.declared(host)
        self.assertEqual(UnknownVersion('no source knows it'), facts.version)
        verdict = decide(facts, facts, host.running.declarations.rules)
        self.assertEqual((True, [VERSION_UNKNOWN]),
                         (verdict.accepted, [note.about for note in verdict.notes]))
        path = os.path.join(host.configuration.state_path, 'table.yaml')
        with open(path, 'w') as file:
            file.write('types: {mdev: {mtty-2: {version: 1.4.2}}}\n')
        host.configuration.set('devicetrack_compatibility', table=path)
        host.restart()
        self.assertEqual((1, 4, 2), self.declared(host).version)
        instance = fixtures.Instance()
        host.claim(instance, DeviceRequest.of(('VGPU', 1)))
        self.assertEqual([None], [record.seen for record in host.records(instance)])
        host.boot(instance)
        self.assertEqual(['1.4.2'], [record.seen for record in host.records(instance)])
        host.delete(instance)


class InUseTestCase(MdevTestCase):

    def assert_held(self, host: Host, instance: fixtures.Instance) -> None:
        identifier, = host.devices(instance)
        error = self.assertRaises(exception.DeviceInUse, host.release, instance)
        self.assertEqual(f'mdev/{identifier} is in use: a process of the host still has it open after 1 s', str(error))
        found, = host.audit()
        self.assertEqual((findings.RELEASE_PENDING, identifier, instance.uuid),
                         (found.kind, found.device.identifier, found.recorded_owner))
        self.assertEqual({identifier: 'releasing'}, host.states())
        self.assertIn(identifier, self.there())
        other = host.take()
        self.assertNotIn(identifier, host.devices(other))
        host.release(other)

    def test_one_that_was_made_is_held_until_a_guest_of_nobody_ends(self) -> None:
        host = self.host(release_wait_s=1)
        instance = host.take()
        qemu = self.start_qemu(*host.devices(instance))
        self.assert_held(host, instance)
        self.assert_made(host.devices(instance))
        qemu.kill()
        qemu.wait()
        self.assertEqual([], host.audit())
        self.assert_nothing_left()
        self.assertEqual({}, host.owners())

    def test_one_that_existed_is_held_until_its_group_is_closed(self) -> None:
        identifier = self.make('mtty', 'mtty-2')
        host = self.host(release_wait_s=1)
        instance = host.take()
        self.assertEqual([identifier], host.devices(instance))
        close = self.hold(identifier)
        self.assert_held(host, instance)
        close()
        self.assertEqual([], host.audit())
        self.assertEqual(({}, [identifier]), (host.owners(), self.there()))
        self.assertEqual([identifier], host.devices(host.take()))

    def test_a_release_waits_for_who_lets_go(self) -> None:
        existing = self.make('mtty', 'mtty-2')
        host = self.host(release_wait_s=60)
        instance = host.take(amount=2)
        made, = set(host.devices(instance)) - {existing}
        closes = [self.hold(made), self.hold(existing)]
        waited: list[float] = []
        sleep = time.sleep

        def let_go(seconds: float) -> None:
            waited.append(seconds)
            if len(waited) == 3 and closes:
                closes.pop()()
                waited.clear()
            sleep(seconds)

        self.patch(busy, 'time', _Time(let_go))
        host.release(instance)
        self.assertEqual(([], [existing], {}, {}), (closes, self.there(), self.defined(), host.owners()))

    def test_a_guest_that_was_stopped_has_let_go(self) -> None:
        host = self.host(release_wait_s=0)
        instance = fixtures.Instance()
        host.claim(instance, DeviceRequest.of(('VGPU', 2)))
        host.boot(instance)
        identifiers = host.devices(instance)
        self.assertEqual([True, True], [self.kernel.is_open(identifier) for identifier in identifiers])
        self.assertRaises(exception.DeviceInUse, host.release, instance)
        self.assertEqual(sorted(identifiers), self.there())
        host.machine.delete_guest(instance.uuid)
        self.assertEqual([False, False], [self.kernel.is_open(identifier) for identifier in identifiers])
        host.release(instance)
        self.assert_nothing_left()


class _Time:
    """The time module, with another sleep."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self, sleep: Any) -> None:
        self.sleep = sleep
