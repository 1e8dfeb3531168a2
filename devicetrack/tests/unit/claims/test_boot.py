"""The host booted, and a guest's definition has no record: this library did not write it."""

from __future__ import annotations

import itertools
from typing import Any

import fixtures as patches

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import findings
from devicetrack.objects.values import DeviceKey
from devicetrack.testing import fake_guests
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base

D0 = DeviceKey('vpmem', 'd0')


class NoRecordTestCase(base.TestCase):

    def booted(self, devices: int, adopted: DeviceKey = D0) -> Any:
        """A host that has booted since it adopted the guest of ``self.instance``, which is off now."""
        self.log = self.useFixture(patches.FakeLogger())
        host = self.useFixture(fixtures.Host(devices=devices, parents={'card': 1}))
        self.other, self.instance = host.spawn(vgpu=1), Instance()
        host.service.known = {self.other.uuid: 'here', self.instance.uuid: 'here'}
        host.machine.start_guest(self.instance.uuid, [fake_guests.element(
            'vpmem', fixtures.path_of(host.machine.devices[adopted]))])
        host.manager.adopt(None, self.instance, [adopted])
        host.machine.reboot()
        host.restart()
        return host

    def start_anew(self, host: Any) -> None:
        host.manager.realize(None, self.instance, new_definition=True)
        config = host.manager.guest_config(self.instance)
        host.machine.start_guest(self.instance.uuid, config.devices, metadata=config.metadata)
        host.manager.started(None, self.instance)

    def test_it_starts_from_a_new_definition(self) -> None:
        for devices in (1, 2):                  # the namespace keeps its path, or has another one
            host = self.booted(devices)
            self.start_anew(host)
            [use] = [use for use in host.machine.usage().uses if use.domain_uuid == self.instance.uuid]
            self.assertEqual('d0', use.identifier)
            host.audit()
            self.assertEqual([], host.audit())
            host.machine.stop_guest(self.instance.uuid)
            host.manager.realize(None, self.instance)

    def test_it_starts_from_no_other(self) -> None:
        for devices in (1, 2):
            host = self.booted(devices)
            for look in (host.audit, host.restart, host.audit):
                look()
                error = self.assertRaises(exception.InvalidDocument, host.manager.realize, None, self.instance)
                self.assertIn('does not name the boot', error.reason)
            self.start_anew(host)

    def test_the_others_do_not_wait_for_it(self) -> None:
        host = self.booted(1)
        host.boot(self.other)
        host.machine.stop_guest(self.other.uuid)
        [record] = host.records(self.other)
        self.assertEqual([findings.NOT_RECOVERABLE], [one.kind for one in host.audit()])
        host.machine.remove(record.key)
        self.assertEqual([(findings.GONE, record.key)], [(one.kind, one.device) for one in host.audit()
                                                           if one.severity != vocabulary.NOTE])
        self.assertEqual([(findings.GONE, record.key)], [(one.kind, one.device) for one in host.audit()
                                                           if one.severity != vocabulary.NOTE])

    def test_the_log_says_once_what_it_needs(self) -> None:
        host = self.booted(1)
        for _ in range(2):
            host.audit()
        self.assertEqual(1, self.log.output.count('does not name the boot'))
        self.assertIn('new definition', self.log.output)


class CardThatMovedTestCase(base.TestCase):
    """A card of vGPUs came to another address at a boot. A vGPU keeps nothing, so any other one does for its guest."""

    def test_its_guests_get_devices_of_the_card_where_it_is_now(self) -> None:
        host = self.useFixture(fixtures.Host(parents={'card at 3d': 2}))
        instances = [host.spawn(vgpu=1) for _ in range(2)]
        host.service.known = {instance.uuid: 'here' for instance in instances}
        before = {record.provider_uuid for record in host.records()}
        host.machine.reboot()
        for record in host.records():
            host.machine.remove(record.key)
        del host.machine.parents['card at 3d']
        host.machine.add_parent('card at 3e', units=2)
        # What each instance had is gone, and what it gets in its place is made.
        answers = itertools.cycle((exception.ParentGone('mdev', 'card at 3d', 'nvidia-35', 'nothing is there'), None))

        def create() -> None:
            if (error := next(answers)) is not None:
                raise error

        host.machine.before('create', create)
        host.restart()
        for instance in instances:
            host.manager.realize(None, instance, new_definition=True)
            [record] = host.records(instance)
            self.assertEqual('card at 3e', record.parent)
            self.assertNotIn(record.provider_uuid, before)
            config = host.manager.guest_config(instance)
            host.machine.start_guest(instance.uuid, config.devices, metadata=config.metadata)
            host.manager.started(None, instance)
        host.audit()
        self.assertEqual([], host.audit())
