"""Functions that the service hands out itself, cleaned between two guests: on files, with a libvirt and controllers."""

from __future__ import annotations

from collections.abc import Sequence
import json
import os
import pathlib
import re
import textwrap
import time
from typing import Any
import uuid

import fixtures as base_fixtures

from devicetrack import exception
from devicetrack.engine import findings
from devicetrack.objects import event as events
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestConfig
from devicetrack.objects.values import Holding
from devicetrack.objects.values import Word
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.testing import nvme
from devicetrack.testing import pci as made
from devicetrack.testing import pci_guests
from devicetrack.testing import pci_models
from devicetrack.tests import base
from devicetrack.tests.functional.claims import libvirt_hosts
from devicetrack.tests.service_devices import ServiceDevices
from devicetrack.tests.unit.cmd import program
from devicetrack.virt.libvirt import guest_xml
from devicetrack.virt.libvirt.driver import LibvirtDriver
from devicetrack.virt.libvirt.kinds import pci
from devicetrack.virt.libvirt.kinds import pci_of_service

DISK, CARD = '0000:01:00.0', '0000:02:00.0'
KEY = DeviceKey('pci', DISK)
OLD = b'of its 1st owner'


def comparable(text: str) -> str:
    """A text without what differs at each run, the lines of tables, and the ends of lines, which a screen decides."""
    for varies, name in (('[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}', 'UUID'), ('[0-9-]+T[0-9:]+[+]00:00', 'TIME'),
                         ('[0-9.]+ s', 'TIME'), (r'nvme\d+n1', 'DISK'), ('[|]|[+][-+]+', ' ')):
        text = re.sub(varies, name, text)
    return ' '.join(text.split())


class ServiceCleaningTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.hardware = self.useFixture(made.PCIHost())
        self.controllers = self.useFixture(nvme.Controllers(self.hardware))
        self.node = self.useFixture(libvirt_fixtures.TestNode())
        self.functions = pci_guests.GuestFunctions(self.hardware)
        made_for = pci_of_service.OfService.made_for

        def made_here(*arguments: Any) -> Any:
            kind = made_for(*arguments)
            kind.host_use = self.hardware.use
            return kind

        self.patch(pci_of_service.OfService, 'made_for', made_here)
        self.hardware.add_nvme(DISK, 'S1')
        self.controller = self.controllers.add(DISK)
        self.disk = self.controller.namespaces[1]
        self.service = ServiceDevices(DISK)

    def start(self, kinds: Sequence[Any] = (pci.PCI,), **cleaning: Any) -> None:
        self.configuration.set('devicetrack_pci', sysfs_root=self.hardware.root, release_wait_s=0,
                               cleaning=[json.dumps({'policy': 'zero', **cleaning})])
        self.host: Any = self.useFixture(libvirt_hosts.LibvirtHost(
            self.node.connect, {}, self.temp_dir(), kinds=list(kinds), configuration=self.configuration))
        self.service.note_given = lambda keys: self.host.manager.note_given(keys)
        self.look()

    def look(self) -> list[Any]:
        """One audit of the service, and all that it begins. Returns the findings of the next audit."""
        self.host.manager.look_after(self.service)
        self.host.running.service_cleaning.wait()
        self.host.audit()
        return [one for one in self.host.findings if one.kind == findings.NOT_CLEANED]

    def said(self) -> str:
        return ' '.join(one.detail for one in self.look())

    def boot_guest(self, address: str = DISK) -> str:
        guest = self.service.claim(address)
        self.functions.start(guest, [address])
        self.host.machine.connection.defineXML(libvirt_fixtures.guest(guest, GuestConfig(
            (guest_xml.pci_hostdev(address, 'yes'),), ''))).create()
        if address == DISK:
            self.disk.fill(OLD)
        return guest

    def delete_guest(self, guest: str, address: str = DISK) -> None:
        self.host.machine.delete_guest(guest)
        self.end_guest(guest)
        self.service.free(address)

    def end_guest(self, guest: str) -> None:
        self.functions.end(guest)
        if self.hardware.driver_of(DISK) == 'nvme':
            self.controllers.show(DISK)         # the driver reads it again

    def use(self, address: str = DISK) -> None:
        """A guest has a device, from its boot to its end."""
        guest = self.boot_guest(address)
        self.delete_guest(guest, address)

    def is_zero(self) -> bool:
        return not any(self.disk.content)

    def wiped(self) -> list[Any]:
        return [one.event for one in self.host.store.events_of_device(DISK) if one.event.event == events.WIPED]

    def check_stays(self, why: str) -> None:
        """The disk stays reserved as its guest left it, and a finding says why."""
        log = self.useFixture(base_fixtures.FakeLogger())
        self.assertIn(why, self.said())
        self.assertNotIn('had a guest and is clean', log.output)
        self.assertEqual(([], {DISK}), (self.service.handed_out, self.service.reserved))
        self.assertEqual(OLD, self.disk.content[:len(OLD)])
        self.assertEqual([], self.wiped())

    def test_a_disk_is_cleaned_after_its_guest_and_then_handed_out(self) -> None:
        self.start()
        for times in (1, 2):
            self.use()
            self.assertEqual([], self.look())
            self.assertEqual((True, [DISK] * times), (self.is_zero(), self.service.handed_out))
        [_first, event] = self.wiped()
        self.assertIsNone(event.instance_uuid)
        self.assertRegex(event.more['proof'], '^wiped ')

    def test_a_look_that_began_before_it_was_clean_says_nothing_of_it(self) -> None:
        self.start()
        self.use()
        cleaning, devices = self.host.running.service_cleaning, self.service.devices

        def look() -> None:
            self.service.devices = told_late    # type: ignore[method-assign]
            self.host.manager.look_after(self.service)

        def told_late() -> Any:
            told = devices()
            while cleaning.findings():
                time.sleep(0.01)
            return told

        self.service.before['check_waits'] = look
        self.assertEqual([], self.look())
        self.assertEqual((True, [DISK]), (self.is_zero(), self.service.handed_out))

    def test_while_a_guest_has_it_nothing_happens(self) -> None:
        self.start()
        guest = self.boot_guest()
        self.assertEqual([], self.look())
        # The service may believe that a guest is gone which runs.
        self.service.free(DISK)
        self.check_stays('names it')
        self.host.machine.delete_guest(guest)
        self.end_guest(guest)
        self.assertEqual([], self.look())
        self.assertEqual([DISK], self.service.handed_out)

    def test_a_disk_that_the_host_mounted_meanwhile_is_not_touched(self) -> None:
        self.start()
        self.use()
        self.hardware.mount(f'{self.hardware.controller_of(DISK)}n1', '/srv')
        self.check_stays('/srv is mounted')

    def test_another_disk_in_the_slot_is_not_touched(self) -> None:
        self.start()
        self.use()
        self.swap('S2')
        self.check_stays('its serial is S2, recorded was S1')
        # Somebody who looks can have this one cleaned.
        self.host.manager.operator.admit('pci', DISK, wipe=True)
        self.assertEqual([], self.look())
        self.assertEqual((True, [DISK]), (self.is_zero(), self.service.handed_out))

    def test_a_disk_whose_guest_nobody_saw_come_is_not_touched(self) -> None:
        self.service.claim(DISK)
        self.disk.fill(OLD)
        self.start()
        self.service.free(DISK)
        self.check_stays('which device its guest had was not noted')

    def test_a_disk_that_cannot_be_cleaned_by_its_policy_is_told_before_its_guest_and_after_it(self) -> None:
        self.start(policy='nvme-sanitize')
        self.assertIn('cannot sanitize by block erase', self.said())
        self.use()
        self.check_stays('cannot sanitize by block erase')

    def test_a_reservation_that_somebody_else_made_stays(self) -> None:
        self.start()
        self.service.reserved.add(DISK)
        self.assertIn('another program reserved it', self.said())
        self.assertEqual(([], {DISK}), (self.service.handed_out, self.service.reserved))

    def test_a_reservation_stays_whatever_the_service_tells_after_its_next_start(self) -> None:
        self.start()
        self.service.reserved.add(DISK)
        for _times in range(2):
            self.host.manager.close()
            self.service.times[DISK] += 1       # Nova saves its rows anew
            self.host.restart()
            self.assertIn('another program reserved it', self.said())
            self.assertEqual(([], {DISK}), (self.service.handed_out, self.service.reserved))
        self.service.reserved.clear()           # by that person
        self.use()
        self.assertEqual([], self.look())
        self.assertEqual((True, [DISK]), (self.is_zero(), self.service.handed_out))

    def test_a_guest_that_comes_and_goes_in_the_middle_of_a_look_counts(self) -> None:
        self.start()
        driver = self.host.running.service_cleaning._driver
        for where, name in ((self.service, 'devices'), (driver, 'prepare'), (driver, 'realize')):
            call = getattr(where, name)

            def used_meanwhile(*arguments: Any, where: Any = where, name: str = name, call: Any = call) -> Any:
                setattr(where, name, call)
                if name == 'realize':
                    self.use()
                    return call(*arguments)
                answer = call(*arguments)
                self.use()
                return answer

            self.host.running.service_cleaning._noted.clear()      # so the look notes the disk
            setattr(where, name, used_meanwhile)
            self.look()
            self.assertEqual((name, {DISK}), (name, self.service.reserved))
            self.assertEqual([], self.look())
            self.assertEqual((True, set()), (self.is_zero(), self.service.reserved))

    def test_a_guest_of_which_nothing_was_noted_in_time_counts_while_it_runs(self) -> None:
        self.start()
        self.service.note_given = lambda _keys: None
        guest = self.boot_guest()
        self.assertEqual([], self.look())
        self.delete_guest(guest)
        self.assertEqual([], self.look())
        self.assertEqual((True, [DISK]), (self.is_zero(), self.service.handed_out))
        self.assertEqual([], self.look())
        # Nobody knows of this one, so the disk stays reserved.
        self.use()
        self.assertIn('another program reserved it', self.said())
        self.assertEqual((OLD, {DISK}), (self.disk.content[:len(OLD)], self.service.reserved))

    def test_a_person_says_that_a_disk_is_clean(self) -> None:
        self.start(policy='person')
        self.use()
        self.check_stays('a person has to clean it')
        self.host.manager.operator.admit('pci', DISK, word=Word('alice', 'degaussed'))
        self.assertEqual([], self.look())
        self.assertEqual([DISK], self.service.handed_out)
        self.assertRegex(self.wiped()[0].more['proof'], '^word of alice: degaussed ')

    def start_with_commands(self) -> program.Program:
        """Start a manager that cleans the service's disks, and have commands that read the same options and host."""
        spec, hardware = json.dumps({'vendor_id': '1b36', 'product_id': '0010', 'one_time_use': 'true'}), self.hardware
        self.configuration.set('pci', device_spec=[spec])
        self.configuration.set('devicetrack_nova', pci='clean')

        class PCI(pci.PCI):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                self.host_use = hardware.use

        self.start(kinds=[PCI])
        commands = self.useFixture(program.Program(self.configuration))
        commands.config_file = program.write_configuration(
            self.configuration.state_path, self.configuration.conf, '[pci]', f'device_spec = {spec}',
            '[devicetrack_nova]', 'pci = clean', '[devicetrack_pci]', f'sysfs_root = {hardware.root}')

        def load_driver(conf: Any, host: str | None = None) -> LibvirtDriver:
            return LibvirtDriver(host or 'host', conf, self.configuration.state_path, [PCI], self.node.connect)

        self.useFixture(base_fixtures.MonkeyPatch('devicetrack.virt.loader.load_driver', load_driver))
        return commands

    def test_a_command_has_the_disk_cleaned_that_is_there_now(self) -> None:
        self.service.claim(DISK)
        self.disk.fill(OLD)
        commands = self.start_with_commands()
        self.service.free(DISK)
        self.check_stays('which device its guest had was not noted')
        # A command beside the manager waits for an audit.
        self.useFixture(base_fixtures.MonkeyPatch('devicetrack.cmd.requesting.time.sleep',
                                                  lambda _seconds: self.host.audit()))
        answer = commands.run('device', 'admit', f'pci/{DISK}', '--wipe')
        self.assertEqual(0, answer.code, answer.err)
        self.host.running.service_cleaning.wait()
        self.assertEqual((True, [DISK]), (self.is_zero(), self.service.handed_out))
        self.assertRegex(commands.run('device', 'history', f'pci/{DISK}').out, 'wiped')

    def test_the_page_shows_what_a_running_host_shows(self) -> None:
        self.hardware.add_nvme(CARD, 'S2')
        self.controllers.add(CARD)
        self.service = ServiceDevices(DISK, CARD)
        commands = self.start_with_commands()
        vars(self.host.service)['holdings'] = lambda: [
            Holding('pci', one, self.service.users.get(one), one in self.service.users) for one in (DISK, CARD)]
        played: list[str] = []

        def play(*arguments: str) -> None:
            answer = commands.run(*arguments)
            played.append(f'$ devicetrack-manage {" ".join(arguments)}\n{answer.out}{answer.err}')

        guest = self.boot_guest()
        self.look()
        play('device', 'list', '-c', 'device', '-c', 'status', '-c', 'reasons')
        play('audit')
        self.delete_guest(guest)
        mounts = pathlib.Path(self.hardware.proc, 'self', 'mountinfo')
        before = mounts.read_text()
        self.hardware.mount(f'{self.hardware.controller_of(DISK)}n1', '/srv')
        [finding] = self.look()
        play('audit')
        played.append(f'Host host: {finding.severity}: {finding}')
        mounts.write_text(before)
        self.assertEqual([], self.look())
        play('device', 'history', f'pci/{DISK}')
        page = (pathlib.Path(__file__).parents[4] / 'doc/source/nova/pci.rst').read_text(encoding='utf-8')
        section = page.partition('What a running host shows\n---')[2].partition('\nCleaning\n')[0]
        shown = [textwrap.dedent(one).strip() for one in re.findall(
            r'^\.\. code-block:: (?:console|text)\n\n((?:(?: +.*)?\n)+)', section, re.MULTILINE)]
        self.assertEqual([comparable(one) for one in shown], [comparable(one) for one in played])

    def test_only_what_waits_can_be_admitted(self) -> None:
        self.start()
        for how in ({}, {'wipe': True}):
            self.assertRaises((exception.BadRequest, exception.NotAdmitted), self.host.manager.operator.admit,
                              'pci', DISK, **how)

    def test_what_keeps_nothing_is_only_reset(self) -> None:
        self.hardware.add(CARD, pci_models.E1000E)
        self.service.times[CARD] = 0
        self.start(policy='none')
        self.functions.dies = True              # libvirt does not give it back
        self.use(CARD)
        self.hardware.resets.clear()
        self.assertEqual([], self.look())
        self.assertEqual([CARD], self.service.handed_out)
        self.assertEqual([CARD], [address for address, _methods in self.hardware.resets])
        self.assertEqual('e1000e', self.hardware.driver_of(CARD))

    def test_a_card_whose_virtual_function_a_guest_has_is_not_touched(self) -> None:
        self.hardware.add_igb(CARD)
        self.service = ServiceDevices(CARD)
        self.start(policy='none')
        self.use(CARD)
        [part] = self.hardware.make_vfs(CARD, 1)
        guest = str(uuid.uuid4())
        self.host.machine.connection.defineXML(libvirt_fixtures.guest(guest, GuestConfig(
            (guest_xml.pci_hostdev(part, 'yes'),), ''))).create()
        self.hardware.resets.clear()
        self.assertIn(f'names {part}, which is a part of it', self.said())
        self.assertEqual(([], []), (self.service.handed_out, self.hardware.resets))
        self.host.machine.delete_guest(guest)
        self.look()
        self.assertEqual([CARD], self.service.handed_out)

    def test_a_program_of_the_operator_cleans(self) -> None:
        path = os.path.join(self.temp_dir(), 'clean-it')
        with open(path, 'w') as file:
            file.write('#!/bin/sh\necho clean $2 $DEVICETRACK_TOKEN\n')
        os.chmod(path, 0o700)
        self.start(policy='program', program=path)
        self.use()
        self.assertEqual([], self.look())
        self.assertEqual([DISK], self.service.handed_out)

    def test_a_disk_that_leaves_while_it_waits_for_the_end_of_another_cleaning(self) -> None:
        self.one_after_the_other()
        self.hardware.add_nvme(CARD, 'S2')
        self.controllers.add(CARD)
        self.service = ServiceDevices(DISK, CARD)
        self.start()
        self.use()
        self.use(CARD)

        def leaves() -> None:
            self.hardware.remove(CARD)
            del self.service.times[CARD]
            self.host.manager.look_after(self.service)

        self.service.before['check_waits'] = leaves
        with self.assertNoLogs('devicetrack.claims.workers'):
            self.look()
        self.assertEqual((True, [DISK], []), (self.is_zero(), self.service.handed_out, self.look()))

    # -- beside the service -------------------------------------------------------------------------------------------

    def test_a_device_that_the_service_gives_away_before_the_first_byte_is_not_touched(self) -> None:
        self.start()
        self.use()

        def given() -> None:
            self.service.before['check_waits'] = lambda: self.service.claim(DISK)       # at the second question

        self.service.before['check_waits'] = given
        self.look()
        self.assertEqual([], self.look())       # it is used now
        self.assertEqual((OLD, []), (self.disk.content[:len(OLD)], self.service.handed_out))

    def test_a_device_that_the_service_gives_away_while_it_is_cleaned_is_not_handed_out(self) -> None:
        self.start()
        self.use()
        self.service.before['hand_out'] = lambda: self.service.claim(DISK)
        self.look()
        self.assertEqual(([], {DISK}), (self.service.handed_out, self.service.reserved))
        self.service.free(DISK)
        self.disk.fill(OLD)
        self.assertEqual([], self.look())
        self.assertEqual((True, [DISK]), (self.is_zero(), self.service.handed_out))

    def test_a_service_that_does_not_answer_leaves_the_device_reserved(self) -> None:
        self.start()
        self.use()

        def silent() -> None:
            raise exception.HypervisorUnreachable('the service', 'no answer')

        for call in ('devices', 'check_waits', 'hand_out'):
            self.service.before[call] = silent
            self.look()
            self.assertEqual(([], {DISK}), (self.service.handed_out, self.service.reserved))
        self.assertEqual([], self.look())
        self.assertEqual([DISK], self.service.handed_out)

    def unanswered(self, call: str, times: int) -> None:
        """Let the service give no answer to the so manieth call."""
        def count() -> None:
            if times > 1:
                self.unanswered(call, times - 1)
            else:
                raise exception.HypervisorUnreachable('the service', 'no answer')

        self.service.before[call] = count

    def test_a_service_that_answers_again_is_told_of_a_disk_that_is_clean_already(self) -> None:
        self.start()
        self.use()
        for call, times in (('hand_out', 1), ('hand_out', 1), ('check_waits', 1), ('hand_out', 1)):
            self.unanswered(call, times)
            self.assertIn('the service', self.said())
        self.assertEqual([], self.service.handed_out)
        self.assertEqual([], self.look())
        self.assertEqual((True, [DISK], 1), (self.is_zero(), self.service.handed_out, len(self.wiped())))

    def test_a_clean_disk_that_was_written_to_while_the_service_did_not_answer_is_cleaned_again(self) -> None:
        self.start()
        self.use()
        self.unanswered('hand_out', 1)
        self.look()
        self.disk.fill(OLD)
        self.hardware.write_to(f'{self.hardware.controller_of(DISK)}n1')
        self.assertEqual([], self.look())
        self.assertEqual((True, [DISK], 2), (self.is_zero(), self.service.handed_out, len(self.wiped())))

    def test_a_clean_disk_that_another_one_replaced_while_the_service_did_not_answer_stays(self) -> None:
        self.start()
        self.use()
        self.unanswered('hand_out', 1)
        self.look()
        self.swap('S2')
        self.disk.fill(OLD)
        for restarts in (False, True):
            if restarts:
                self.host.manager.close()
                self.host.restart()
            self.assertIn('its serial is S2, recorded was S1', self.said())
            self.assertEqual(([], {DISK}, OLD), (self.service.handed_out, self.service.reserved,
                                                 self.disk.content[:len(OLD)]))

    def test_a_proof_from_before_a_guest_proves_nothing_after_it(self) -> None:
        self.hardware.add(CARD, pci_models.E1000E)
        self.service = ServiceDevices(CARD)
        path, runs = os.path.join(self.temp_dir(), 'clean-it'), os.path.join(self.temp_dir(), 'runs')
        with open(path, 'w') as file:
            file.write(f'#!/bin/sh\necho >>{runs}\necho clean $2 $DEVICETRACK_TOKEN\n')
        os.chmod(path, 0o700)
        self.start(policy='program', program=path)
        self.use(CARD)
        # It is proven clean, and then the service does not answer. Somebody lifts the reservation by hand.
        self.unanswered('check_waits', 3)
        self.look()
        self.assertEqual([], self.service.handed_out)
        self.service.reserved.clear()
        self.use(CARD)
        self.assertEqual([], self.look())
        self.assertEqual([CARD], self.service.handed_out)
        with open(runs) as file:
            self.assertEqual(2, len(file.readlines()))

    def swap(self, serial: str) -> None:
        self.hardware.remove(DISK)
        self.hardware.add_nvme(DISK, serial)
        self.controllers.show(DISK)

    def one_after_the_other(self) -> None:
        """Let the look end before what was ordered meanwhile."""
        self.configuration.set('devicetrack', wipes_at_once=1)

    def check_order_is_not_for_another_disk(self, **how: Any) -> None:
        self.one_after_the_other()
        self.start(policy='person' if 'word' in how else 'zero')
        self.service.reserved.add(DISK)
        self.said()

        def ordered_before_the_exchange() -> None:
            self.host.manager.operator.admit('pci', DISK, **how)
            self.swap('S2')
            self.disk.fill(OLD)

        self.service.before['devices'] = ordered_before_the_exchange
        self.check_stays('its serial is S2, recorded was S1')
        self.assertEqual(OLD, self.disk.content[:len(OLD)])

    def test_an_order_to_wipe_is_for_the_disk_that_was_there_then(self) -> None:
        self.check_order_is_not_for_another_disk(wipe=True)

    def test_a_word_is_for_the_disk_that_was_there_then(self) -> None:
        self.check_order_is_not_for_another_disk(word=Word('alice', 'degaussed'))

    def test_an_order_is_over_when_a_guest_has_the_disk(self) -> None:
        self.one_after_the_other()
        self.start(policy='person')
        self.use()
        self.said()

        def ordered_before_the_guest() -> None:
            self.host.manager.operator.admit('pci', DISK, word=Word('alice', 'degaussed'))
            self.service.reserved.clear()
            self.use()

        self.service.before['devices'] = ordered_before_the_guest
        self.check_stays('the service gave it to an instance')
        self.check_stays('a person has to clean it')

    def test_after_a_restart_it_goes_on_with_what_was_noted(self) -> None:
        self.start()
        self.use()
        self.service.before['hand_out'] = self.host.running.service_cleaning.close
        self.host.manager.close()
        self.host.restart()
        self.assertEqual([], self.look())
        self.assertEqual((True, [DISK]), (self.is_zero(), self.service.handed_out))

    def test_a_stop_in_the_middle_hands_nothing_out(self) -> None:
        self.start()
        self.use()
        self.service.before['check_waits'] = self.host.running.service_cleaning.close
        self.look()
        self.assertEqual((OLD, []), (self.disk.content[:len(OLD)], self.service.handed_out))
        self.host.manager.close()
        self.host.restart()
        self.assertEqual([], self.look())
        self.assertEqual((True, [DISK]), (self.is_zero(), self.service.handed_out))

    def test_another_service_of_the_host_has_the_last_word(self) -> None:
        self.start()
        self.use()
        uuid = self.host.manager.state().host_uuid
        self.service.before['hand_out'] = lambda: self.host.store.take_epoch(uuid, set())
        self.service.before['check_waits'] = lambda: self.host.store.take_epoch(uuid, set())
        cleaning = self.host.running.service_cleaning
        self.host.manager.look_after(self.service)
        cleaning.wait()
        self.assertEqual(([], OLD), (self.service.handed_out, self.disk.content[:len(OLD)]))
        self.host.restart()

    def test_no_finding_and_no_directory_without_such_devices(self) -> None:
        self.service = ServiceDevices()
        self.start()
        self.assertEqual([], self.look())
