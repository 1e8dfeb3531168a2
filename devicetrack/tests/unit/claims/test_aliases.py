"""Flavors that ask for devices by an alias: what the driver says of aliases reaches claims, reports and services."""

from __future__ import annotations

from typing import Any
from typing import NamedTuple

from devicetrack import exception
from devicetrack.objects.pci_alias import PCIAlias
from devicetrack.objects.pci_alias import PCIChoice
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import PMEM
from devicetrack.testing.fixtures import VGPU
from devicetrack.tests import base

ASKED = 'pci_passthrough:alias'
ALIASES = {'one': PCIAlias('one', (PCIChoice(PMEM),), 'legacy'), 'two': PCIAlias('two', (PCIChoice(VGPU),), 'legacy'),
           'theirs': PCIAlias('theirs', (PCIChoice('CUSTOM_THEIRS'),), 'legacy')}


class Image(NamedTuple):
    properties: Any


class Policy(NamedTuple):
    """Properties without ``get``."""

    hw_pci_numa_affinity_policy: str


class AliasesTestCase(base.TestCase):

    def host(self, aliases: Any) -> fixtures.Host:
        host = fixtures.Host(devices=3, parents={'card': 2})
        host.machine.aliases = aliases
        return self.useFixture(host)

    def claim(self, host: fixtures.Host, asked: str, pmem: int = 0, vgpu: int = 0) -> list[str]:
        instance = fixtures.Instance(flavor=fixtures.Flavor(extra_specs={ASKED: asked}))
        wanted = {PMEM: pmem, VGPU: vgpu}
        allocations = {provider.uuid: {'resources': {name: wanted[name] for name in provider.totals if wanted[name]}}
                       for provider in host.manager.providers()}
        return [one.resource_class for one in host.claim(instance, allocations).resources]

    def test_order_what_was_allocated(self) -> None:
        host = self.host(ALIASES)
        self.assertEqual([VGPU, PMEM], self.claim(host, 'two:1,one:1', pmem=1, vgpu=1))
        self.assertEqual([PMEM, VGPU], self.claim(host, 'one:1,two:1', pmem=1, vgpu=1))

    def test_are_the_least_that_is_claimed(self) -> None:
        host = self.host(ALIASES)
        self.assertRaises(exception.BadRequest, self.claim, host, 'one:2', pmem=1)
        self.assertEqual([], host.records())

    def test_of_others_are_left_to_them(self) -> None:
        self.assertEqual([PMEM], self.claim(self.host(ALIASES), 'theirs:4', pmem=1))

    def test_that_nobody_has_are_refused(self) -> None:
        host = self.host(ALIASES)
        error = self.assertRaises(exception.BadRequest, self.claim, host, 'tape:1', pmem=1)
        self.assertIn('this host has one, theirs, two', str(error))
        self.assertEqual([], host.records())

    def test_are_not_read_by_a_driver_without_any(self) -> None:
        host = self.host(None)
        self.assertEqual([PMEM], self.claim(host, 'tape:1', pmem=1))
        self.assertIsNone(host.manager.state().aliases)

    def test_the_policy_of_an_image_counts(self) -> None:
        host = self.host({'one': PCIAlias('one', (PCIChoice(PMEM),), 'preferred')})
        instance = fixtures.Instance(flavor=fixtures.Flavor(extra_specs={ASKED: 'one:1'}))
        [root] = [provider.uuid for provider in host.manager.providers() if provider.parent_uuid is None]
        for image in ({'properties': {'hw_pci_numa_affinity_policy': 'required'}},
                      Image({'hw_pci_numa_affinity_policy': 'required'}), Image(Policy('required')), None):
            instance.image_meta = image         # type: ignore[attr-defined]
            claim = host.claim(instance, {root: {'resources': {PMEM: 1}}})
            if image is None:
                self.assertEqual({}, host.manager.narrow_claim(host.context, claim, [1], None))
            else:
                self.assertRaises(exception.NoFit, host.manager.narrow_claim, host.context, claim, [1], None)
            claim.abort()
            host.wait()

    def test_are_for_services_that_make_requests(self) -> None:
        self.assertEqual(ALIASES, self.host(ALIASES).manager.state().aliases)
