"""Instances that Nova deleted while their host was down, and of which its database has nothing any more."""

from __future__ import annotations

from typing import Any

from nova import context as nova_context
from nova import objects
from nova.db.main import api as nova_database
from oslo_utils.fixture import uuidsentinel as uuids

from devicetrack.engine import findings
from devicetrack.nova import service
from devicetrack.tests.nova.stock_failures import base


class ForgottenTestCase(base.PmemGuests):

    def setUp(self) -> None:
        super().setUp()
        self.start('host1', 'ns_1', 'ns_2')
        self.other = self.boot('host1', self.flavor_of(1))
        self.server = self.boot('host1', self.flavor_of(1))
        self.write('host1', self.server)
        [self.had] = self.namespaces('host1', self.server)

    def delete_and_archive(self) -> None:
        """What the API and an operator do while the host is down."""
        self.take_down('host1')
        self._delete_server(self.server)
        nova_database.archive_deleted_rows(max_rows=1000)
        self.force_down('host1', False)

    def lose_the_domain(self) -> None:
        domain = self.fake('host1').lookupByUUIDString(self.server['id'])
        domain.destroy()
        domain.undefine()

    @property
    def manager(self) -> Any:
        return self.computes['host1'].driver.devicetrack.manager

    def held(self) -> set[str]:
        return {one.identifier for one in self.manager.assignments(self.server['id'])}

    def found(self) -> list[str]:
        return [finding.kind for finding in self.manager.update_available_resource(None, 'host1')]

    def reserved(self) -> int:
        """What placement has now; nothing waits for an audit of Nova."""
        node, = self.api.api_get('/os-hypervisors').body['hypervisors']
        return sum(one['reserved'] for name, one in self._get_provider_inventory(node['id']).items() if 'PMEM' in name)

    def test_without_a_domain_its_devices_go_back_by_two_answers(self) -> None:
        self.delete_and_archive()
        self.lose_the_domain()
        self.restart('host1')
        self.assertTrue(self.wait_for(lambda: not self.held()))
        self.manager.wait_for_wipes()
        self.assertEqual(bytes(64), self.bytes_of('host1', self.had))
        self.assertEqual(({'ns_1', 'ns_2'} - {self.had}, []), ({
            one.identifier for one in self.manager.assignments(self.other['id'])}, self.found()))
        self.assertEqual(0, self.reserved())

    def test_a_guest_that_runs_keeps_them_and_is_reported(self) -> None:
        self.delete_and_archive()
        self.restart('host1')
        self.assertEqual(1, self.reserved())
        for _ in range(2):
            self.assertEqual(([findings.ABANDONED], {self.had}), (self.found(), self.held()))
        self.assertTrue(self.has_its_bytes('host1', self.server, {self.had}))
        self.lose_the_domain()
        self.assertEqual([findings.ABANDONED], self.found())
        self.assertEqual([], self.found())
        self.manager.wait_for_wipes()
        self.assertEqual(set(), self.held())

    def test_a_hidden_instance_is_not_forgotten(self) -> None:
        instance = self.instance(self.server)
        instance.hidden = True
        instance.save()
        told = service.NovaService('host1').instances({instance.uuid, uuids.nobody, self.other['id']})
        self.assertEqual({uuids.nobody: 'forgotten', self.other['id']: 'here'}, told)

    def test_a_database_that_does_not_know_the_host_says_nothing(self) -> None:
        for node in objects.ComputeNodeList.get_all_by_host(nova_context.get_admin_context(), 'host1'):
            node.destroy()
        self.assertEqual({self.other['id']: 'here'}, service.NovaService('host1').instances({
            uuids.nobody, self.other['id']}))
