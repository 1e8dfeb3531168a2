"""What a flavor asks for by alias, and functions that the host lacks: nobody boots with less, or with another card."""

from __future__ import annotations

import json
from typing import Any
import uuid

from devicetrack import exception
from devicetrack.testing import fixtures
from devicetrack.testing import pci_models
from devicetrack.tests.functional.claims import test_pci

CARD, KEPT, KEPT_TOO = '0000:81:00.0', '0000:82:00.0', '0000:83:00.0'
EDU = pci_models.EDU._replace(total_vfs=0)
VENDOR, PRODUCT = EDU.product.split(':')
COUNTED = f'CUSTOM_PCI_{VENDOR}_{PRODUCT}'.upper()
LACKING = f'CUSTOM_PCI_{VENDOR}_9999'.upper()


class NeedTestCase(test_pci.BootsTestCase):
    """A host whose options name a vendor or an address, and no product."""

    specs = ({'vendor_id': VENDOR},)

    def start(self, *functions: dict[str, Any]) -> Any:
        self.configuration.set('pci', alias=[
            json.dumps({'name': name, 'vendor_id': VENDOR, 'product_id': product})
            for name, product in (('card', PRODUCT), ('other', '9999'))])
        self.configuration.set('devicetrack_pci', vfs=[], cleaning=[json.dumps({'policy': 'none'})], functions=[
            *map(json.dumps, functions)] or ['all'])
        return super().start()

    def claim(self, asked: str | None, at: str, **resources: int) -> list[str]:
        flavor = fixtures.Flavor(extra_specs={} if asked is None else {'pci_passthrough:alias': asked})
        claim = self.host.manager.instance_claim(
            self.context, fixtures.Instance(flavor=flavor), self.host.name,
            {self.node_uuid: {'resources': {'VCPU': 1}}, at: {'resources': resources}})
        return [one.identifier for one in claim.resources]

    def refused(self, *arguments: Any, **resources: int) -> str:
        error = self.assertRaises(exception.DeviceTrackError, self.claim, *arguments, **resources)
        self.assertEqual([], self.host.records())
        return str(error)

    def test_a_card_that_was_gone_at_the_start_is_not_left_out(self) -> None:
        self.functions.add(CARD, EDU)
        at = self.start_and_find(CARD)
        for specs in (({'vendor_id': VENDOR},), ({'address': CARD},), ({'address': '*:81:*'}, {'vendor_id': '1b36'})):
            self.configuration.set('pci', device_spec=list(map(json.dumps, specs)))
            self.functions.remove(CARD)
            self.host.restart()
            for asked in ('card:1', None):
                self.assertIn(COUNTED, self.refused(asked, at, **{COUNTED: 1}))
            self.assertIn(COUNTED, self.refused('card:1', at, VCPU=1))
            self.functions.add(CARD, EDU)
            self.host.audit()
            self.assertEqual([CARD], self.claim('card:1', at, **{COUNTED: 1}))
            self.host.delete(fixtures.Instance(uuid=self.host.owners()[CARD]))

    def test_a_name_for_what_the_host_lacks_gets_nothing_else(self) -> None:
        self.functions.add(CARD, EDU)
        at = self.start_and_find(CARD)
        self.assertIn(LACKING, self.refused('other:1', at, **{COUNTED: 1}))
        self.assertIn(LACKING, self.refused('other:1', at, VCPU=1))
        self.assertIn(LACKING, self.refused('card:1,other:1', at, **{COUNTED: 2}))

    def test_functions_that_the_service_keeps_are_left_to_it(self) -> None:
        self.functions.add(CARD, EDU)
        kept = self.functions.add(KEPT, pci_models.IGB._replace(total_vfs=0))
        vendor, product = pci_models.IGB.product.split(':')
        of_service = f'CUSTOM_PCI_{vendor}_{product}'.upper()
        self.configuration.set('pci', device_spec=list(map(json.dumps, (
            {'vendor_id': VENDOR}, {'address': kept}, {'address': KEPT_TOO, 'resource_class': 'KEPT'}))))
        at = self.start_and_find(CARD, {'vendor_id': VENDOR})
        self.configuration.set('pci', alias=[json.dumps({'name': 'kept', 'vendor_id': vendor, 'product_id': product})])
        self.host.restart()
        elsewhere = str(uuid.uuid4())
        self.assertEqual([], self.claim('kept:1', elsewhere, **{of_service: 1}))
        self.assertEqual([], self.claim('kept:1', at, **{of_service: 1}))
        self.functions.add(KEPT_TOO, pci_models.IGB._replace(total_vfs=0))
        self.host.audit()
        self.assertEqual([], self.claim(None, elsewhere, CUSTOM_KEPT=1))

    def start_and_find(self, address: str, *functions: dict[str, Any]) -> str:
        """Start the host, and return the provider of a function."""
        self.start(*functions)
        found = {one.parent_uuid is None: one.uuid for one in self.host.manager.providers()
                 if one.parent_uuid is None or one.name.endswith(address.upper())}
        self.node_uuid = found[True]
        return found[False]
