"""Which functions Nova's own code and ours give to a flavor that asks by aliases: by what they are, and where they are.

Nova's part is its statistics of pools, which decide on a host, and where a class and traits are asked for, what it
reports of each function to placement.
"""

from __future__ import annotations

import json
from typing import Any
from typing import NamedTuple

import hypothesis
from hypothesis import strategies
from nova import conf as nova_conf
from nova import exception as nova_exception
from nova import objects
from nova.compute import pci_placement_translator
from nova.objects import fields
from nova.pci import request
from nova.pci import stats
from nova.pci import whitelist
from nova.virt import hardware
from oslo_config import fixture as config_fixture

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import demand
from devicetrack.objects import DeviceRequest
from devicetrack.objects import values
from devicetrack.tests import base
from devicetrack.tests.unit.engine import hosts
from devicetrack.tests.unit.virt.pci_functions import function as made
from devicetrack.virt.libvirt.kinds import pci_options

VENDORS, PRODUCTS = ('8086', '144d'), ('10ca', '00ab')
TYPES = (fields.PciDeviceType.STANDARD, fields.PciDeviceType.SRIOV_PF, fields.PciDeviceType.SRIOV_VF)
POLICIES = fields.PCINUMAAffinityPolicy.ALL
NODES = (0, 1, 2, None)


class Card(NamedTuple):
    """A function of a made host: what it is, and what the options say of it."""

    address: str
    vendor_id: str
    product_id: str
    device_type: str
    numa_node: int | None
    spec: dict[str, str]
    physfn: str | None = None

    def as_nova_has_it(self) -> objects.PciDevice:
        return objects.PciDevice.create(None, {
            'address': self.address, 'vendor_id': self.vendor_id, 'product_id': self.product_id,
            'dev_type': self.device_type, 'numa_node': self.numa_node, 'parent_addr': self.physfn,
            'dev_id': self.address, 'label': self.address, 'compute_node_id': 1, 'status': 'available'})

    def as_we_have_it(self, options: pci_options.PCIOptions) -> values.InventoryDevice:
        function = made(self.address, self.vendor_id, self.product_id, physfn=self.physfn)
        spec = options.spec_of(function)
        assert spec is not None
        parent = self.physfn or self.address
        return values.InventoryDevice(
            'pci', self.address, parent, pci_options.resource_class_of(spec, function), parent, self.numa_node,
            'details', features=pci_options.features_of(spec, function, self.device_type))


TRAITS = strategies.sampled_from(('blue', 'red', 'blue,red', 'HW_GPU_API_VULKAN', ''))
CLASSES = strategies.sampled_from(('', 'gpu', 'CUSTOM_QAT'))


@strategies.composite
def cards(draw: Any, most: int = 5) -> list[Card]:
    """Functions that exclude no others: a virtual one has a physical function of its own, which is not offered."""
    found = []
    for number in range(draw(strategies.integers(1, most))):
        device_type = draw(strategies.sampled_from(TYPES))
        address = f'0000:0{number}:00.{int(device_type == fields.PciDeviceType.SRIOV_VF)}'
        spec = {'address': address}
        for name, some in (('live_migratable', strategies.sampled_from(('', 'yes', 'no'))), ('traits', TRAITS),
                           ('resource_class', CLASSES)):
            if value := draw(some):
                spec[name] = value
        found.append(Card(
            address, draw(strategies.sampled_from(VENDORS)), draw(strategies.sampled_from(PRODUCTS)), device_type,
            draw(strategies.sampled_from(NODES)), spec,
            f'0000:0{number}:00.0' if device_type == fields.PciDeviceType.SRIOV_VF else None))
    return found


@strategies.composite
def aliases(draw: Any, name: str = 'a', several: bool = True, placement: bool = False) -> list[dict[str, str]]:
    """Objects of one name, with the device type and the policy that all of them have."""
    common = {'name': name}
    if device_type := draw(strategies.sampled_from(('', *TYPES))):
        common['device_type'] = device_type
    if policy := draw(strategies.sampled_from(('', *POLICIES))):
        common['numa_policy'] = policy
    found = []
    for _ in range(draw(strategies.integers(1, 2 if several and device_type else 1))):
        one = {**common, 'vendor_id': draw(strategies.sampled_from(VENDORS)),
               'product_id': draw(strategies.sampled_from(PRODUCTS))}
        if can := draw(strategies.sampled_from(('', 'yes', 'no'))):
            one['live_migratable'] = can
        if placement:
            one |= {key: value for key, value in (('traits', draw(TRAITS)), ('resource_class', draw(CLASSES))) if value}
            if 'resource_class' in one and draw(strategies.booleans()):
                del one['vendor_id'], one['product_id']
        found.append(one)
    return found


# By NUMA node, its socket; None where one is not known.
SOCKETS = strategies.sampled_from(((0, 0, 1), (0, 1, 1), (0, 1, 2), (0, 0, 0), (0, None, 1)))
GUEST = strategies.frozensets(strategies.sampled_from((0, 1, 2)), max_size=2)
SLOW: dict[str, Any] = {'deadline': None, 'suppress_health_check': [hypothesis.HealthCheck.too_slow]}


class ChoiceTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        objects.register_all()
        self.nova = self.useFixture(config_fixture.Config(nova_conf.CONF))
        self.configuration.set('devicetrack_pci', functions=['all'])
        self.addCleanup(request.get_alias_from_config.cache_clear)

    def options(self, specs: list[dict[str, str]], said: list[dict[str, str]]) -> pci_options.PCIOptions:
        self.configuration.set('pci', device_spec=list(map(json.dumps, specs)), alias=list(map(json.dumps, said)))
        self.nova.config(alias=list(map(json.dumps, said)), group='pci')
        request.get_alias_from_config.cache_clear()
        return pci_options.read(self.conf)

    def theirs(self, host: list[Card], sockets: tuple[int | None, ...]) -> stats.PciDeviceStats:
        topology = objects.NUMATopology(cells=[objects.NUMACell(id=node, socket=socket)
                                               for node, socket in enumerate(sockets)])
        found = stats.PciDeviceStats(topology, dev_filter=whitelist.Whitelist(
            [json.dumps(card.spec) for card in host]))
        for card in host:
            found.add_device(card.as_nova_has_it())
        return found

    def ours(self, host: list[Card], sockets: tuple[int | None, ...], options: pci_options.PCIOptions) -> Any:
        ledger = hosts.Ledger(vocabulary.PACK, hosts.provider)
        known = tuple(enumerate(sockets)) if None not in sockets else ()
        ledger.read_inventory(hosts.inventory(*(card.as_we_have_it(options) for card in host),
                                              known=('pci',))._replace(sockets=known))
        return ledger

    def asked_of_nova(self, asked: str) -> list[objects.InstancePCIRequest]:
        found: list[objects.InstancePCIRequest] = request.get_pci_requests_from_flavor(
            {'extra_specs': {'pci_passthrough:alias': asked}}).requests
        return found

    def asked_of_us(self, asked: str, guest: frozenset[int], options: pci_options.PCIOptions) -> demand.Demand:
        wanted = DeviceRequest.from_extra_specs({'pci_passthrough:alias': asked}, sorted(guest),
                                                aliases=options.aliases)
        return demand.from_request(wanted, ())

    def supports(self, host: list[Card], sockets: tuple[int | None, ...], guest: frozenset[int],
                 asked: str) -> bool:
        cells = [objects.InstanceNUMACell(id=node) for node in guest] or None
        answer: bool = self.theirs(host, sockets).support_requests(self.asked_of_nova(asked), {}, cells)
        return answer

    def fits(self, host: list[Card], sockets: tuple[int | None, ...], guest: frozenset[int], asked: str,
             options: pci_options.PCIOptions) -> set[str] | None:
        try:
            hold = self.ours(host, sockets, options).take('i', self.asked_of_us(asked, guest, options))
        except exception.NoFit:
            return None
        return {candidate.identifier for candidate in hold.candidates}

    @hypothesis.settings(max_examples=200, **SLOW)
    @hypothesis.given(host=cards(), said=aliases(), sockets=SOCKETS, guest=GUEST, count=strategies.integers(1, 3))
    def test_as_many_fit_as_in_nova_and_each_is_one_that_nova_would_give(
            self, host: list[Card], said: list[dict[str, str]], sockets: tuple[int | None, ...],
            guest: frozenset[int], count: int) -> None:
        self.nova.config(pci_in_placement=False, group='filter_scheduler')
        # Without placement Nova asks for no class, and its specs are to have none.
        host = [card._replace(spec={key: value for key, value in card.spec.items() if key != 'resource_class'})
                for card in host]
        options = self.options([card.spec for card in host], said)
        for card in host:
            with_it = self.fits([card], sockets, guest, 'a:1', options)
            self.assertEqual(self.supports([card], sockets, guest, 'a:1'), with_it is not None, str(card))
        taken = self.fits(host, sockets, guest, f'a:{count}', options)
        # Nova counts a physical function as one on the guest's nodes, and then refuses it to an alias that asks for
        # none: the others on other nodes are forgotten by then (PciDeviceStats._filter_pools).
        counted = host if 'device_type' in said[0] else [
            card for card in host if card.device_type != fields.PciDeviceType.SRIOV_PF]
        self.assertEqual(self.supports(counted, sockets, guest, f'a:{count}'), taken is not None)
        for card in host:
            if taken is not None and card.address in taken:
                self.assertTrue(self.supports([card], sockets, guest, 'a:1'), card)

    @hypothesis.settings(max_examples=200, **SLOW)
    @hypothesis.given(host=cards(), first=aliases('a'), second=aliases('b'), sockets=SOCKETS, guest=GUEST)
    def test_what_fits_in_nova_for_two_names_fits_here(
            self, host: list[Card], first: list[dict[str, str]], second: list[dict[str, str]],
            sockets: tuple[int | None, ...], guest: frozenset[int]) -> None:
        """The reverse need not be: Nova gives the first name any function that will do, and looks no further."""
        self.nova.config(pci_in_placement=False, group='filter_scheduler')
        host = [card._replace(spec={key: value for key, value in card.spec.items() if key != 'resource_class'})
                for card in host]
        options = self.options([card.spec for card in host], first + second)
        if self.supports(host, sockets, guest, 'a:1,b:2'):
            self.assertIsNotNone(self.fits(host, sockets, guest, 'a:1,b:2', options))

    @hypothesis.settings(max_examples=200, **SLOW)
    @hypothesis.given(host=cards(3), said=aliases(several=False, placement=True), sockets=SOCKETS, guest=GUEST)
    def test_with_placement_the_class_and_the_traits_count_too(
            self, host: list[Card], said: list[dict[str, str]], sockets: tuple[int | None, ...],
            guest: frozenset[int]) -> None:
        self.nova.config(report_in_placement=True, group='pci')
        self.nova.config(pci_in_placement=True, group='filter_scheduler')
        options = self.options([card.spec for card in host], said)
        [asked] = self.asked_of_nova('a:1')
        [spec] = asked.spec
        wanted = pci_placement_translator.get_resource_class(
            spec.get('resource_class'), spec.get('vendor_id', ''), spec.get('product_id', ''))
        traits = pci_placement_translator.get_traits(spec.get('traits', ''))
        for card in host:
            tags = whitelist.Whitelist([json.dumps(card.spec)]).specs[0].get_tags()
            has = pci_placement_translator.get_resource_class(
                tags.get('resource_class'), card.vendor_id, card.product_id)
            candidate = wanted == has and traits <= pci_placement_translator._get_traits_for_dev(tags)
            taken = self.fits([card], sockets, guest, 'a:1', options)
            self.assertEqual(candidate and self.supports([card], sockets, guest, 'a:1'), taken is not None, str(card))


class PolicyTestCase(base.TestCase):
    """Whose NUMA policy counts."""

    @hypothesis.settings(max_examples=100, **SLOW)
    @hypothesis.given(flavor=strategies.sampled_from((None, *POLICIES, 'sometimes')),
                      image=strategies.sampled_from((None, *POLICIES)), alias=strategies.sampled_from(POLICIES))
    def test_is_the_one_that_counts_in_nova(self, flavor: str | None, image: str | None, alias: str) -> None:
        objects.register_all()
        nova = self.useFixture(config_fixture.Config(nova_conf.CONF))
        self.configuration.set('devicetrack_pci', functions=['all'])
        said = [json.dumps({'name': 'a', 'vendor_id': '8086', 'product_id': '10ca', 'numa_policy': alias})]
        self.configuration.set('pci', alias=said)
        nova.config(alias=said, group='pci')
        request.get_alias_from_config.cache_clear()
        self.addCleanup(request.get_alias_from_config.cache_clear)
        specs = {'pci_passthrough:alias': 'a:1'} | (
            {} if flavor is None else {'hw:pci_numa_affinity_policy': flavor})
        properties = {} if image is None else {'hw_pci_numa_affinity_policy': image}
        theirs: str | None = None
        try:
            policy = hardware.get_pci_numa_policy_constraint(
                objects.Flavor(extra_specs=specs),
                objects.ImageMeta(properties=objects.ImageMetaProps(**properties)))
            [asked] = request.get_pci_requests_from_flavor({'extra_specs': specs}, policy).requests
            theirs = asked.numa_policy
        except (nova_exception.ImagePCINUMAPolicyForbidden, nova_exception.InvalidPCINUMAAffinity):
            pass
        try:
            [wanted] = DeviceRequest.from_extra_specs(specs, aliases=pci_options.read(self.conf).aliases,
                                                      image_properties=properties).wanted
        except exception.BadRequest:
            self.assertIsNone(theirs)
        else:
            self.assertEqual(theirs, wanted.numa_affinity_policy)
