"""Live migrations of guests without devices: nothing of ours is in their data, and one may come where an earlier one of
its devices is being released.
"""

from __future__ import annotations

import types
from typing import Any

from nova import exception as nova_exception
from nova import objects
from nova.objects import migrate_data
from nova.virt.libvirt import driver as nova_driver

from devicetrack import exception
from devicetrack.nova import binding
from devicetrack.nova import driver
from devicetrack.nova import wire
from devicetrack.testing import compute_service
from devicetrack.testing import fixtures
from devicetrack.testing import region
from devicetrack.tests import base


def setUpModule() -> None:
    objects.register_all()


class Bound(binding.Binding):
    """The binding of a host whose manager and hypervisor are in memory."""

    def __init__(self, host: fixtures.Host) -> None:
        self.host = self.nodename = host.name
        self.manager = host.manager
        self._seen = set()


def driver_of(host: fixtures.Host) -> driver.LibvirtDriver:
    made = driver.LibvirtDriver.__new__(driver.LibvirtDriver)
    made._binding = Bound(host)
    return made


class LiveWithoutDevicesTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.moves = self.useFixture(region.Region())
        self.one, self.two = self.moves.one, self.moves.two
        self.instance = self.moves.spawn('one', pmem=1)
        self.driver = driver_of(self.one)

    def leave_a_device_on_its_way_back(self) -> None:
        self.one.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd0', 'a bad block'))
        self.assertRaises(exception.UnclaimFailed, self.moves.confirm, self.instance,
                          self.moves.resize(self.instance, 'two'))
        self.moves.audit()

    def come_back(self, data: Any) -> Any:
        wire.put_answer(data, self.moves.check(self.instance, 'one'),
                        self.two.manager.assignments(self.instance.uuid))
        return self.driver.check_source_migrate_data_at_dest(
            None, self.instance, data, self.moves.migration(self.instance, 'one', compute_service.LIVE_MIGRATION),
            None, {})

    def test_it_starts_again_there(self) -> None:
        self.leave_a_device_on_its_way_back()
        self.assertRaises(exception.InstanceNotClaimed, self.one.manager.realize, None, self.instance)
        data = migrate_data.LibvirtLiveMigrateData()
        self.assertIs(data, self.come_back(data))
        self.one.boot(self.instance)
        self.assertEqual([('d0', 'old', 'releasing')], self.moves.rows(self.instance)['one'])

    def test_most_guests_without_devices_need_no_claim(self) -> None:
        self.moves.confirm(self.instance, self.moves.resize(self.instance, 'two'))
        self.one.store.before('write', AssertionError('it writes'))
        self.come_back(migrate_data.LibvirtLiveMigrateData())
        self.one.store.clear()


class DataTestCase(base.TestCase):
    """What Nova finds in the data of a live migration. With ``target_mdevs``, the guest counts as one with devices."""

    def setUp(self) -> None:
        super().setUp()
        self.moves = self.useFixture(region.Region())
        self.source, self.destination = (driver_of(host) for host in (self.moves.one, self.moves.two))

    def check(self, instance: Any) -> Any:
        """Nova's checks at both ends; returns the data that the source then begins with."""
        for name, answer in (('destination', lambda *_args: migrate_data.LibvirtLiveMigrateData()),
                             ('source', lambda _driver, _context, _instance, data: data)):
            self.patch(nova_driver.LibvirtDriver, f'check_can_live_migrate_{name}', answer)
        made = self.destination.check_can_live_migrate_destination(None, instance)
        said = self.source.check_can_live_migrate_source(None, instance, made)
        return self.destination.check_source_migrate_data_at_dest(
            None, instance, said, self.moves.migration(instance, 'two', compute_service.LIVE_MIGRATION), None, {})

    def guest(self, **extra_specs: str) -> Any:
        instance = self.moves.spawn('one')
        instance.flavor = types.SimpleNamespace(name='a flavor', extra_specs=extra_specs)
        return instance

    def test_a_guest_without_devices_has_nothing_of_ours_in_it(self) -> None:
        instance = self.guest()
        self.moves.two.store.before('write', AssertionError('it writes'))
        self.assertNotIn('target_mdevs', self.check(instance))
        self.moves.two.store.clear()

    def test_no_more_does_one_from_a_source_that_answers_for_every_guest(self) -> None:
        instance, data = self.guest(), migrate_data.LibvirtLiveMigrateData()
        wire.put_answer(data, self.moves.check(instance, 'two'), self.moves.one.manager.assignments(instance.uuid))
        self.assertIs(data, self.destination.check_source_migrate_data_at_dest(None, instance, data, None, None, {}))
        self.assertNotIn('target_mdevs', data)

    def test_what_nova_itself_says_stays(self) -> None:
        data = migrate_data.LibvirtLiveMigrateData(target_mdevs={'a': 'b', wire.KEY: '{}'})
        wire.take_away(data)
        self.assertEqual({'a': 'b'}, data.target_mdevs)

    def test_a_guest_that_was_not_adopted_stays(self) -> None:
        self.assertRaises(nova_exception.MigrationPreCheckError, self.check, self.guest(**{'hw:pmem': 'SMALL'}))
