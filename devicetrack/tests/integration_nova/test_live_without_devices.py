"""A guest without devices arrives at a host where an earlier device of its instance is on its way back."""

from __future__ import annotations

from collections.abc import Callable
import types
from typing import Any

from nova import objects
from nova.objects import migrate_data

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


class LiveWithoutDevicesTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.moves = self.useFixture(region.Region())
        self.one, self.two = self.moves.one, self.moves.two
        self.instance = self.moves.spawn('one', pmem=1)
        self.driver = types.SimpleNamespace(devicetrack_binding=Bound(self.one))

    def leave_a_device_on_its_way_back(self) -> None:
        self.one.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd0', 'a bad block'))
        self.assertRaises(exception.UnclaimFailed, self.moves.confirm, self.instance,
                          self.moves.resize(self.instance, 'two'))
        self.moves.audit()

    def come_back(self, data: Any, original: Callable[..., Any] | None = None) -> Any:
        wire.put_answer(data, self.moves.check(self.instance, 'one'),
                        self.two.manager.resources_of(self.instance.uuid))
        return driver.claim_at_destination(
            original or self.fail, self.driver, None, self.instance, data,
            self.moves.migration(self.instance, 'one', compute_service.LIVE_MIGRATION), None, {})

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
