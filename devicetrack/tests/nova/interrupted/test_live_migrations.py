"""Live migrations that Nova calls failed though the guest has moved: what the source does with its devices."""

from __future__ import annotations

from typing import Any

import fixtures
from nova.compute import rpcapi
from nova.tests.functional.libvirt import base as nova_base
from oslo_messaging import exceptions as messaging_exceptions

from devicetrack.nova import binding
from devicetrack.tests.nova.stock_failures import base

_POST = 'nova.compute.rpcapi.ComputeAPI.post_live_migration_at_destination'


class LostAnswerTestCase(nova_base.LibvirtMigrationMixin, base.MdevGuests):
    """The destination has finished, or never heard that it should, and the source waits in vain for its answer."""

    def setUp(self) -> None:
        # Those that can do it.
        self.FAKE_LIBVIRT_VERSION, self.FAKE_QEMU_VERSION = 8_006_000, 8_001_000
        super().setUp()
        self.src = self.start_compute_with_vgpu('src')
        self.dest = self.start_compute_with_vgpu('dest')
        self.server = self.boot('src', self.flavor)
        self.definition_at_source = self.fake('src').lookupByUUIDString(self.server['id']).XMLDesc(0)

    def migrate(self, heard: bool = True) -> None:
        original = rpcapi.ComputeAPI.post_live_migration_at_destination

        def lose_the_answer(*args: Any, **kwargs: Any) -> None:
            if heard:
                original(*args, **kwargs)
            raise messaging_exceptions.MessagingTimeout()

        self.useFixture(fixtures.MonkeyPatch(_POST, lose_the_answer))
        self._live_migrate(self.server, 'error', 'ERROR')
        self.assertEqual('dest', self.instance(self.server).host)

    def held(self, host: str) -> list[str]:
        return [held.identifier for held in binding.of(self.computes[host].driver).manager.held(self.server['id'])]

    def assert_moved(self) -> None:
        self.assertTrue(self.wait_for(lambda: not self.held('src')), self.held('src'))
        self.assertEqual(set(), self.existing('src'))
        self.assertEqual(self.mdevs('dest', self.server), set(self.held('dest')))
        self.assertEqual(1, len(self.held('dest')))

    def test_the_source_gives_its_device_back(self) -> None:
        self.migrate()
        self.assert_moved()

    def test_so_it_does_when_the_destination_never_heard(self) -> None:
        self.migrate(heard=False)
        self.assert_moved()

    def test_so_it_does_when_its_service_starts(self) -> None:
        self.migrate()
        self.assertEqual(1, len(self.held('src')))
        self.src = self.restart_compute_service('src')
        self.assertEqual([], self.held('src'))
        self.assert_moved()

    def test_while_the_source_has_a_domain_of_the_guest_it_keeps_the_device(self) -> None:
        self.migrate()
        left = self.fake('src').defineXML(self.definition_at_source)
        self.audit()
        self.assertEqual(self.mdevs('src', self.server), set(self.held('src')))
        left.undefine()
        self.assert_moved()
