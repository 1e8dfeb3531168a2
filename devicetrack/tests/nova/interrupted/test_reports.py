"""What placement hears of devices between two audits of Nova."""

from __future__ import annotations

import threading
from typing import Any

import fixtures

from devicetrack.tests.nova.stock_failures import base
from devicetrack.virt.libvirt.kinds import vpmem


class ReportTestCase(base.PmemGuests):

    def setUp(self) -> None:
        super().setUp()
        self.flags(shelved_offload_time=0)
        self.start('host1', 'ns_1')
        self.server = self.boot('host1', self.flavor_of(1))
        self.write('host1', self.server)

    @property
    def manager(self) -> Any:
        return self.computes['host1'].driver.devicetrack.manager

    def reserved(self) -> int:
        node, = self.api.api_get('/os-hypervisors').body['hypervisors']
        return sum(one['reserved'] for name, one in self._get_provider_inventory(node['id']).items() if 'PMEM' in name)

    def test_a_guest_is_unshelved_as_soon_as_its_namespace_is_clean(self) -> None:
        go_on = threading.Event()
        self.addCleanup(go_on.set)
        unclaim = vpmem.VPMEM.unclaim

        def wait_and_unclaim(*args: Any, **kwargs: Any) -> Any:
            go_on.wait(60)
            return unclaim(*args, **kwargs)

        self.useFixture(fixtures.MonkeyPatch('devicetrack.virt.libvirt.kinds.vpmem.VPMEM.unclaim', wait_and_unclaim))
        self._shelve_server(self.server, expected_state='SHELVED_OFFLOADED')
        self.assertEqual(1, self.reserved())
        go_on.set()
        self.manager.wait_for_wipes()
        self.assertEqual(0, self.reserved())
        self._unshelve_server(self.server)
        self.assertEqual({'ns_1'}, self.namespaces('host1', self.server))
