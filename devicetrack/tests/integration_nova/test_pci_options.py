"""Options of PCI functions as Nova reads them and as we do: the same functions, classes, traits and aliases."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

import hypothesis
from hypothesis import strategies
from nova import conf as nova_conf
from nova import exception as nova_exception
from nova import objects
from nova.compute import pci_placement_translator
from nova.conf import pci as nova_pci
from nova.pci import request
from nova.pci import utils
from nova.pci import whitelist
from oslo_config import fixture as config_fixture

from devicetrack import exception
from devicetrack.conf import pci as options
from devicetrack.objects import DeviceRequest
from devicetrack.tests import base
from devicetrack.tests.unit.virt.pci_functions import function
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt.kinds import pci_options

# Few values, so that specs and functions meet.
IDS = ('8086', '10ca', '00ab')
DOMAINS, BUSES, SLOTS, NUMBERS = ('0000', '000a'), ('03', '0a', 'ff'), ('00', '10', '1f'), ('0', '1', '7')
NETS = ('eth0', 'eth1')
# Physical functions, so that specs name them often.
PARENTS = (('0000', '03', '00', '0'), ('000a', '0a', '1f', '7'))


def address_of(*fields: str) -> str:
    return '{}:{}:{}.{}'.format(*fields)


@strategies.composite
def functions(draw: Any) -> list[pci_sysfs.Function]:
    """Functions of one host: some are physical functions, others their virtual ones."""
    fields = strategies.tuples(*map(strategies.sampled_from, (DOMAINS, BUSES, SLOTS, NUMBERS)))
    parents = [address_of(*one) for one in PARENTS[:draw(strategies.integers(0, 2))]]
    others = [address_of(*one) for one in draw(strategies.lists(fields, min_size=1, max_size=4, unique=True))]
    addresses = [*parents, *(one for one in others if one not in parents)]
    nets = draw(strategies.permutations([NETS[:1], NETS[1:], (), (), (), ()]))
    physfns = strategies.sampled_from([None, *parents])
    return [function(address, draw(strategies.sampled_from(IDS)), draw(strategies.sampled_from(IDS)),
                     physfn=None if address in parents else draw(physfns), net=net)
            for address, net in zip(addresses, nets, strict=False)]


def written(values: tuple[str, ...]) -> Any:
    """A field of an address with wildcards: as it is, in capitals, without zeroes, with blanks, a star, or nothing."""
    plain = strategies.sampled_from(values)
    return strategies.one_of(
        plain, plain.map(str.upper), plain.map(lambda one: one.lstrip('0') or '0'), plain.map(' {} '.format),
        strategies.sampled_from(('*', '', '20', '100', 'g', '0x3')))


def expression(values: tuple[str, ...]) -> Any:
    plain = strategies.sampled_from(values)
    return strategies.one_of(plain, plain, plain, plain.map(lambda one: one[:1]), plain.map(lambda one: f'[{one}]'),
                             strategies.sampled_from(('.*', '', '.', '0', '0A', '[', '0|1')))


NAMES = ('domain', 'bus', 'slot', 'function')
FIELDS = (DOMAINS, BUSES, SLOTS, NUMBERS)
EXACT = strategies.one_of(strategies.sampled_from(PARENTS), strategies.tuples(*map(strategies.sampled_from, FIELDS)))
GLOBS = strategies.one_of(
    EXACT.map(lambda one: address_of(*one)),
    strategies.tuples(*map(written, FIELDS)).map(lambda one: address_of(*one)),
    strategies.tuples(written(BUSES), written(SLOTS)).map(':'.join),
    strategies.sampled_from(('', '*', '.', '.1', '10', ':', '::', ':::', '1.1.1', '0:0:0:0.0')))
EXPRESSIONS = strategies.fixed_dictionaries({}, optional=dict(zip(NAMES, map(expression, FIELDS), strict=True)))
ID = strategies.sampled_from((*IDS, '*', 'AB', '0x00ab', '10000', 'xyz', ' 8086 '))
FLAG = strategies.sampled_from(('yes', 'no', 'True', 'off', True, False, 'maybe'))
TEXTS = strategies.text(strategies.sampled_from('aB0_- ,ß'), max_size=8)
CLASSES = strategies.one_of(TEXTS, strategies.sampled_from(('PGPU', 'pgpu', 'CUSTOM_X', 'custom_x', 'CUSTOM_A-B')))
TRAITS = strategies.one_of(TEXTS, strategies.lists(strategies.sampled_from(
    ('HW_GPU_API_VULKAN', 'hw_gpu_api_vulkan', 'CUSTOM_X', 'blue', ' big')), max_size=3).map(','.join))
SPECS = strategies.one_of(
    strategies.fixed_dictionaries({'address': strategies.one_of(
        GLOBS, EXPRESSIONS, EXACT.map(lambda one: dict(zip(NAMES, one, strict=True))))},
        optional={'vendor_id': strategies.just('*'), 'product_id': ID}),
    strategies.fixed_dictionaries({}, optional={
        'vendor_id': ID, 'product_id': ID, 'address': GLOBS, 'devname': strategies.sampled_from((*NETS, 'eth2')),
        'physical_network': strategies.sampled_from(('one', None)), 'managed': FLAG, 'live_migratable': FLAG,
        'one_time_use': FLAG, 'resource_class': CLASSES, 'traits': TRAITS}))

ALIASES = strategies.fixed_dictionaries({'name': strategies.sampled_from(('a', 'b', ' a '))}, optional={
    'vendor_id': strategies.sampled_from((*IDS, '00AB', 'xyz')), 'product_id': strategies.sampled_from(IDS),
    'device_type': strategies.sampled_from(('type-PCI', 'type-PF', 'type-VF', 'vdpa')),
    'numa_policy': strategies.sampled_from(('required', 'legacy', 'preferred', 'socket', 'none')),
    'resource_class': CLASSES.filter(bool), 'traits': TRAITS,       # an empty one Nova takes, and asks for no class
    'live_migratable': strategies.sampled_from(('yes', 'no', 'maybe')),
    'vendor': strategies.just('8086')})


class NovaTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        objects.register_all()
        self.nova = self.useFixture(config_fixture.Config(nova_conf.CONF))
        self.nova.config(report_in_placement=True, group='pci')
        self.nova.config(pci_in_placement=True, group='filter_scheduler')
        self.configuration.set('devicetrack_pci', functions=['all'])

    def read(self, specs: list[Any], aliases: list[Any]) -> pci_options.PCIOptions:
        self.configuration.set('pci', device_spec=list(map(json.dumps, specs)), alias=list(map(json.dumps, aliases)))
        return pci_options.read(self.conf)


class RegisteredTestCase(NovaTestCase):

    def test_what_nova_has_registered_is_read(self) -> None:
        options.register(nova_conf.CONF)
        self.nova.config(device_spec=['{"vendor_id": "8086"}'], alias=['{"name": "a", "resource_class": "A"}'],
                         group='pci')
        self.assertEqual(pci_options.PCIOptions(), pci_options.read(nova_conf.CONF))
        self.nova.config(functions=['all'], group='devicetrack_pci')
        read = pci_options.read(nova_conf.CONF)
        self.assertEqual((1, ['a']), (len(read.specs), list(read.aliases or ())))

    def test_a_service_of_our_own_has_options_of_the_same_names_types_and_older_names(self) -> None:
        theirs = {one.dest: one for one in nova_pci.pci_opts}
        for ours in options.SERVICE_OPTIONS:
            self.assertEqual((type(theirs[ours.dest]), theirs[ours.dest].default, older(theirs[ours.dest])),
                             (type(ours), ours.default, older(ours)))


def older(option: Any) -> set[tuple[str, str]]:
    return {(one.group or 'DEFAULT', one.name) for one in option.deprecated_opts}


class MatchingTestCase(NovaTestCase):

    def theirs(self, specs: list[Any]) -> whitelist.Whitelist | None:
        try:
            return whitelist.Whitelist(list(map(json.dumps, specs)))
        # Of some mistakes Nova has no error of its own.
        except (nova_exception.NovaException, AttributeError, TypeError, ValueError):
            return None

    def ours(self, specs: list[Any]) -> pci_options.PCIOptions | None:
        try:
            return self.read(specs, [])
        except exception.InvalidConfiguration as error:
            self.assertIn('entry ', error.reason)
            self.stricter = 'placement does not take' in error.reason or 'a name is empty' in error.reason
            return None

    @hypothesis.settings(max_examples=600, deadline=None,
                         suppress_health_check=[hypothesis.HealthCheck.too_slow])
    @hypothesis.given(specs=strategies.lists(SPECS, min_size=1, max_size=3), host=functions())
    def test_each_function_has_the_spec_the_class_and_the_traits_that_nova_gives_it(
            self, specs: list[Any], host: list[pci_sysfs.Function]) -> None:
        by_address = {one.address: one for one in host}
        parents = {one.physfn for one in host if one.physfn}

        def is_physical_function(*fields: str) -> bool:
            return address_of(*fields) in parents

        def get_function_by_ifname(name: str) -> tuple[str | None, bool]:
            found = next((one.address for one in host if name in one.net), None)
            return found, found in parents

        # They read /sys, which has other functions.
        with mock.patch.multiple(utils, is_physical_function=is_physical_function,
                                 get_function_by_ifname=get_function_by_ifname):
            theirs, ours = self.theirs(specs), self.ours(specs)
            if ours is None and self.stricter:
                return
            self.assertEqual(theirs is None, ours is None)
            if theirs is None or ours is None:
                return
            for one in host:
                mine = ours.spec_of(one._replace(parent=by_address.get(one.physfn or '')))
                device = {'address': one.address, 'vendor_id': one.vendor_id, 'product_id': one.product_id}
                found = theirs.device_assignable({**device, 'parent_addr': one.physfn} if one.physfn else device)
                self.assertEqual(None if found is None else theirs.specs.index(found),
                                 None if mine is None else next(
                                     number for number, spec in enumerate(ours.specs) if spec is mine))
                if found is not None and mine is not None:
                    self.compare(one, mine, found.get_tags())

    def compare(self, ours: pci_sysfs.Function, mine: pci_options.DeviceSpec, tags: Any) -> None:
        found = pci_options.resource_class_of(mine, ours)
        if tags.get('physical_network') and not tags.get('resource_class'):
            # Nova keeps ports of networks out of placement.
            self.assertEqual('CUSTOM_PCI_NETWORK_' + tags['physical_network'].upper(), found)
        else:
            self.assertEqual(pci_placement_translator.get_resource_class(
                tags.get('resource_class'), ours.vendor_id, ours.product_id), found)
        traits = pci_placement_translator._get_traits_for_dev(tags)
        if tags.get('one_time_use') == 'true':
            traits.add(pci_options.ONE_TIME_USE)        # Nova adds it to those of whole functions later
        self.assertEqual(traits, pci_options.traits_of(mine))
        self.assertEqual((tags.get('managed', 'true') != 'false', tags.get('physical_network')),
                         (mine.managed, mine.physical_network))


class AliasesTestCase(NovaTestCase):

    def theirs(self, aliases: list[Any]) -> Any:
        self.nova.config(alias=list(map(json.dumps, aliases)), group='pci')
        request.get_alias_from_config.cache_clear()
        self.addCleanup(request.get_alias_from_config.cache_clear)
        try:
            return request.get_alias_from_config()
        except nova_exception.PciInvalidAlias:
            return None

    @hypothesis.settings(max_examples=300, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
    @hypothesis.given(aliases=strategies.lists(ALIASES, max_size=3, unique_by=lambda one: one['name'].strip()))
    def test_a_flavor_asks_for_the_classes_traits_and_policies_that_nova_asks_for(self, aliases: list[Any]) -> None:
        theirs = self.theirs(aliases)
        try:
            ours = self.read([], aliases).aliases
        except exception.InvalidConfiguration as error:
            if not any(words in error.reason for words in ('placement does not take', 'a name is empty')):
                self.assertIsNone(theirs)
            return
        assert theirs is not None and ours is not None
        self.assertEqual(list(theirs), list(ours))
        for name, (policy, [spec]) in theirs.items():
            [choice] = ours[name].choices
            self.assertEqual(pci_placement_translator.get_resource_class(
                spec.get('resource_class'), spec.get('vendor_id', ''), spec.get('product_id', '')),
                choice.resource_class)
            self.assertEqual(pci_placement_translator.get_traits(spec.get('traits', '')), choice.traits)
            self.assertEqual(policy, ours[name].numa_policy)
            self.assertEqual((spec.get('dev_type'), {'true': True, 'false': False, None: None}[
                spec.get('live_migratable')]), (ours[name].device_type, choice.live_migratable))

    def test_a_flavor_asks_for_as_many(self) -> None:
        aliases = [{'name': 'a', 'resource_class': 'A'}, {'name': 'b', 'vendor_id': '8086', 'product_id': '10ca'}]
        self.theirs(aliases)
        asked = 'b:1, a:2,b: 3'
        flavor = {'extra_specs': {'pci_passthrough:alias': asked}}
        ours = DeviceRequest.from_extra_specs(flavor['extra_specs'], aliases=self.read([], aliases).aliases)
        self.assertEqual(
            [(one.alias_name, one.count) for one in request.get_pci_requests_from_flavor(flavor).requests],
            [({'CUSTOM_A': 'a', 'CUSTOM_PCI_8086_10CA': 'b'}[one.resource_class], one.amount) for one in ours.wanted])

    def test_one_name_several_times(self) -> None:
        """Where Nova does not ask placement, it takes either; a name without a device type it does not take twice."""
        self.nova.config(pci_in_placement=False, group='filter_scheduler')
        one = {'name': 'a', 'vendor_id': '8086', 'product_id': '10ca', 'device_type': 'type-PF'}
        other = {**one, 'product_id': '00ab'}
        ours = self.read([], [one, other]).aliases
        assert ours is not None
        self.assertEqual([f'CUSTOM_PCI_8086_{spec["product_id"]}'.upper()
                          for spec in self.theirs([one, other])['a'][1]], list(ours['a'].resource_classes))
        for wrong in ({**other, 'device_type': 'type-VF'}, {**other, 'numa_policy': 'required'}):
            self.assertIsNone(self.theirs([one, wrong]))
            self.assertRaises(exception.InvalidConfiguration, self.read, [], [one, wrong])
