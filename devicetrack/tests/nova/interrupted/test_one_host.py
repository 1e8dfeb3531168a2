"""Moves on one host that never end: the guest must start on what it had."""

from __future__ import annotations

from typing import Any

import fixtures
from nova import context as nova_context
from nova import objects
from nova.compute import task_states

from devicetrack.tests.nova.stock_failures import base


class ResizeOnOneHostTestCase(base.PmemGuests):

    def setUp(self) -> None:
        super().setUp()
        self.flags(allow_resize_to_same_host=True)
        self.start('host1', 'ns_1', 'ns_2', 'ns_3')
        self.server = self.boot('host1', self.flavor_of(1))
        self.write('host1', self.server)
        self.had = self.namespaces('host1', self.server)

    def lose(self, cast: str) -> None:
        """Lose a message to a compute."""
        self.useFixture(fixtures.MonkeyPatch(f'nova.compute.rpcapi.ComputeAPI.{cast}', lambda *_args, **_kwargs: None))

    def resize(self, flavor: Any) -> None:
        self.api.post_server_action(self.server['id'], {'resize': {'flavorRef': flavor}})
        self._wait_for_migration_status(self.server, ['pre-migrating'])

    def count_starts(self) -> list[Any]:
        starts: list[Any] = []
        self.after('_create_guest', starts.append)
        return starts

    def assert_on_its_own(self) -> None:
        self.assertEqual(self.had, self.namespaces('host1', self.server))
        self.assertTrue(self.has_its_bytes('host1', self.server))

    def test_a_guest_whose_resize_never_began_reboots_on_what_it_has(self) -> None:
        self.lose('resize_instance')
        self.resize(self.flavor_of(2))
        self.restart('host1')
        starts = self.count_starts()
        self._reboot_server(self.server, hard=True)
        self.assertEqual(1, len(starts))
        self.assert_on_its_own()

    def test_a_guest_whose_resize_was_to_take_its_devices_reboots_on_what_it_has(self) -> None:
        self.lose('resize_instance')
        self.resize(self._create_flavor(memory_mb=4096))
        self.restart('host1')
        starts = self.count_starts()
        self._reboot_server(self.server, hard=True)
        self.assertEqual(1, len(starts))
        self.assert_on_its_own()

    def die_while_resizing(self) -> None:
        """The host dies while it moves the guest's disks. Its service does not start yet."""
        self.lose('resize_instance')
        self.resize(self.flavor_of(2))
        instance = self.instance(self.server)
        instance.task_state = task_states.RESIZE_MIGRATING
        instance.save()
        self.number = instance.migration_context.migration_id
        migration = self.migration
        migration.status = 'migrating'
        migration.save()
        self.fake('host1').lookupByUUIDString(self.server['id']).destroy()

    @property
    def migration(self) -> Any:
        return objects.Migration.get_by_id(nova_context.get_admin_context(), self.number)

    def allocations(self, consumer: str) -> dict[str, Any]:
        return {provider: found['resources']
                for provider, found in self._get_allocations_by_server_uuid(consumer).items()}

    def held(self) -> list[str]:
        manager = self.computes['host1'].driver.devicetrack.manager
        return [one.identifier for one in manager.assignments(self.server['id'])]

    def test_a_host_that_died_while_it_resized_starts_the_guest_on_what_it_had(self) -> None:
        self.flags(resume_guests_state_on_host_boot=True)
        self.die_while_resizing()
        starts = self.count_starts()
        self.restart('host1')
        self.assertEqual(1, len(starts))
        self.assert_on_its_own()

    def test_the_service_of_a_host_that_died_while_it_resized_ends_the_resize(self) -> None:
        had = self.allocations(self.server['id'])
        self.die_while_resizing()
        self.restart('host1')
        self.assertEqual('error', self.migration.status)
        self.assertIsNone(self.instance(self.server).migration_context)
        self.assertEqual([had, {}], [self.allocations(one) for one in (self.server['id'], self.migration.uuid)])
        self.assertTrue(self.wait_for(lambda: set(self.held()) == self.had), self.held())
        self._reboot_server(self.server, hard=True)
        self.assert_on_its_own()

    def test_a_resize_whose_message_may_still_come_goes_on(self) -> None:
        self.lose('resize_instance')
        self.resize(self.flavor_of(2))
        self.restart('host1')
        [migration] = objects.MigrationList.get_by_filters(
            nova_context.get_admin_context(), {'instance_uuid': self.server['id']})
        self.assertEqual('pre-migrating', migration.status)
        self.assertEqual(3, len(self.held()))
