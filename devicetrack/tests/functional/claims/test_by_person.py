"""Devices that only a person can clean: whoever follows the advice of each message gets the device back."""

from __future__ import annotations

import json
import os
import re
import stat
from typing import Any

import fixtures as base_fixtures

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import DeviceRequest
from devicetrack.objects.values import Word
from devicetrack.testing import fixtures
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.testing import nvme
from devicetrack.testing import pci as made
from devicetrack.testing import pci_models
from devicetrack.tests import base
from devicetrack.tests.functional.claims import libvirt_hosts
from devicetrack.tests.unit.cmd import program
from devicetrack.virt.libvirt.driver import LibvirtDriver
from devicetrack.virt.libvirt.kinds import pci

DEVICE, NAME, CLASS = '0000:01:00.0', 'pci/0000:01:00.0', 'CUSTOM_FUNCTION'
SATA = pci_models.Model('8086:2922', '010601', 'ahci', ('flr', 'bus'))
CAPTURE = pci_models.Model('1cd7:0017', '048000', None, ())
OLD = b'of its 1st owner'


class ByPersonTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.hardware = self.useFixture(made.PCIHost())
        self.controllers = self.useFixture(nvme.Controllers(self.hardware))
        self.node = self.useFixture(libvirt_fixtures.TestNode())
        hardware = self.hardware

        class Functions(pci.PCI):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                self.host_use = hardware.use

        self.kinds = [Functions]
        self.useFixture(base_fixtures.MonkeyPatch('devicetrack.cmd.requesting.TIMEOUT_S', 2.0))

    def start(self, model: pci_models.Model, cleaning: dict[str, Any] | None = None, **spec: Any) -> None:
        self.add(model)
        self.configuration.set('pci', device_spec=[json.dumps({
            'address': DEVICE, 'resource_class': CLASS, **spec})])
        self.configuration.set('devicetrack_pci', sysfs_root=self.hardware.root, release_wait_s=0, functions=['all'],
                               cleaning=[] if cleaning is None else [json.dumps(cleaning)])
        self.host: Any = self.useFixture(libvirt_hosts.LibvirtHost(
            self.node.connect, {}, self.temp_dir(), kinds=self.kinds, configuration=self.configuration))
        self.program = self.useFixture(program.Program(self.configuration))
        self.patch(self.program, '_load_driver', self.load_driver)
        self.useFixture(base_fixtures.MonkeyPatch('devicetrack.virt.loader.load_driver', self.load_driver))
        # A command beside the manager waits for an audit.
        self.useFixture(base_fixtures.MonkeyPatch('devicetrack.cmd.requesting.time.sleep',
                                                  lambda _seconds: self.host.audit()))
        self.host.audit()
        self.host.running.unproven.wait()
        self.host.audit()

    def add(self, model: pci_models.Model) -> None:
        if model is pci_models.NVME:
            self.hardware.add_nvme(DEVICE, 'S1')
            self.disk = self.controllers.add(DEVICE).namespaces[1]
            self.disk.fill(OLD)
        else:
            self.hardware.add(DEVICE, model)

    def load_driver(self, conf: Any, host: str | None = None) -> LibvirtDriver:
        return LibvirtDriver(host or 'host', self.host.conf, self.configuration.state_path, self.kinds,
                             self.node.connect)

    def state(self) -> str:
        self.host.running.unproven.wait()
        [state] = self.host.states().values()
        return str(state)

    def run_command(self, *command: str) -> str:
        """Run a command, and return everything that it and the lists say after that."""
        answer = self.program.run('device', *command)
        self.host.running.unproven.wait()
        self.host.audit()
        listed = self.program.run('device', 'show', NAME, '-f', 'json').data
        return ' '.join((answer.out, answer.err, *(str(one['detail']) for one in listed['reasons'])))

    def follow(self, said: str, instance: fixtures.Instance | None = None) -> list[str]:
        """Do what messages advise until the device is free, never the same thing twice; return what was done."""
        done: list[str] = []
        for advice, command in (
                ('device retire', lambda: ('retire', NAME, '--confirm', instance and instance.uuid)),
                ('--wipe', lambda: ('admit', NAME, '--wipe')),
                ('--clean-by-my-word', lambda: ('admit', NAME, '--clean-by-my-word', 'erased by its own tool'))):
            if self.state() != fixtures.FREE and re.search(advice, said):
                done.append(advice)
                said = self.run_command(*command())
        self.assertEqual(fixtures.FREE, self.state(), said)
        return done

    def withheld_text(self) -> str:
        return ' '.join(cause.detail for one in self.host.manager.operator.withheld() for cause in one.causes.values())

    def used(self) -> fixtures.Instance:
        """An instance whose guest ended, and whose device does not come back."""
        instance: fixtures.Instance = self.host.spawn(request=DeviceRequest.of((CLASS, 1)))
        self.host.machine.delete_guest(instance.uuid)
        self.assertRaises(exception.UnclaimFailed, self.host.manager.release, self.host.context, instance)
        return instance

    def check_circle(self) -> None:
        """From the first sight of the device to its second owner, every advice works."""
        self.assertIn(vocabulary.UNPROVEN, self.state())
        # A plain admit names a way that works, and so does the list.
        for said in (self.run_command('admit', NAME), self.withheld_text()):
            self.assertIn('--clean-by-my-word', said)
            self.assertNotIn('--wipe', said)
        wiping = self.run_command('admit', NAME, '--wipe')
        self.assertIn('--clean-by-my-word', wiping)
        self.assertNotIn('device retire', wiping)
        self.assertEqual(['--clean-by-my-word'], self.follow(wiping))
        # Again after a guest; the word was for the owner before it.
        instance = self.used()
        self.host.audit()
        [finding] = [one for one in self.host.findings if one.device.identifier == DEVICE]
        self.assertEqual(['device retire', '--clean-by-my-word'], self.follow(finding.detail, instance))
        self.host.restart()
        self.assertEqual(fixtures.FREE, self.state())

    def test_a_card_that_is_no_disk(self) -> None:
        self.start(pci_models.E1000E, {'policy': 'person'})
        self.check_circle()

    def test_a_card_without_a_reset(self) -> None:
        self.start(CAPTURE)
        self.check_circle()

    def test_a_sata_controller(self) -> None:
        self.start(SATA)
        self.check_circle()

    def test_an_nvme_disk_that_is_not_zero(self) -> None:
        self.start(pci_models.NVME)
        self.check_circle()

    def test_what_is_for_one_use(self) -> None:
        self.start(pci_models.E1000E, {'policy': 'none'}, one_time_use=True)
        self.check_circle()

    def test_a_policy_that_cleans_is_advised_where_there_is_one(self) -> None:
        self.start(pci_models.NVME, {'policy': 'zero'})
        self.assertEqual(['--wipe'], self.follow(self.withheld_text()))

    def test_a_program_that_cleans_is_advised_where_there_is_one(self) -> None:
        path = os.path.join(self.temp_dir(), 'clean-it')
        with open(path, 'w') as file:
            file.write('#!/bin/sh\necho clean $2 $DEVICETRACK_TOKEN\n')
        os.chmod(path, stat.S_IRWXU)
        self.start(CAPTURE, {'policy': 'program', 'program': path})
        self.assertEqual(['--wipe'], self.follow(self.withheld_text()))

    def test_the_word_works_with_the_manager_down(self) -> None:
        self.start(CAPTURE)
        self.host.manager.close()
        answer = self.program.run('device', 'admit', NAME, '--clean-by-my-word', 'it is new', '-f', 'json')
        self.assertEqual((0, 'admitted'), (answer.code, answer.data['outcome']), answer.err)
        self.host.restart()
        self.assertEqual(fixtures.FREE, self.state())

    def test_who_said_it_when_and_why_is_recorded(self) -> None:
        self.start(CAPTURE)
        self.useFixture(base_fixtures.MonkeyPatch('os.getuid', lambda: 0))
        self.useFixture(base_fixtures.EnvironmentVariable('SUDO_USER', 'alice'))
        self.run_command('admit', NAME, '--clean-by-my-word', 'it is new')
        shown = self.program.run('device', 'show', NAME, '-f', 'json').data
        self.assertRegex(shown['proof'], r'^word of alice: it is new \(20\d\d-')
        told = self.program.run('device', 'history', NAME, '-f', 'json').data
        [event] = [one for one in told if one['event'] == 'admitted']
        self.assertEqual(('word of alice: it is new', 'operator'), (event['proof'], event['by']))

    def test_it_is_void_as_soon_as_somebody_uses_the_device(self) -> None:
        self.start(CAPTURE)
        self.host.manager.operator.admit('pci', DEVICE, word=Word('alice', 'it is new'))
        self.assertEqual(fixtures.FREE, self.state())
        instance = self.host.spawn(request=DeviceRequest.of((CLASS, 1)))
        driver = self.load_driver(self.host.conf)
        self.assertEqual(frozenset({('pci', DEVICE)}), driver.get_inventory().unproven)
        [record] = self.host.records(instance)
        self.assertIsNone(driver.proof_of(record.key, record.details))

    def test_a_word_needs_a_reason_and_a_device_that_needs_a_proof(self) -> None:
        self.start(CAPTURE)
        for reason in ('', ' ', 'two\nlines'):
            self.assertNotEqual(0, self.program.run('device', 'admit', NAME, '--clean-by-my-word', reason).code)
            self.assertRaises(exception.BadRequest, self.host.manager.operator.admit, 'pci', DEVICE,
                              word=Word('alice', reason))
        self.assertIn(vocabulary.UNPROVEN, self.state())
        self.host.manager.operator.admit('pci', DEVICE, word=Word('alice', 'it is new'))
        error = self.assertRaises(exception.BadRequest, self.host.manager.operator.admit, 'pci', DEVICE,
                                  word=Word('alice', 'it is new'))
        self.assertIn('it is free', str(error))

    def test_no_word_helps_a_device_that_is_in_use(self) -> None:
        self.start(SATA)
        self.hardware.unbind(DEVICE)
        self.hardware.bind(DEVICE, made.VFIO_PCI)
        self.host.audit()
        with self.hardware.opened(DEVICE):
            self.assertRaises(exception.NotAdmitted, self.host.manager.operator.admit, 'pci', DEVICE,
                              word=Word('alice', 'it is new'))
        self.assertIn(vocabulary.UNPROVEN, self.state())
