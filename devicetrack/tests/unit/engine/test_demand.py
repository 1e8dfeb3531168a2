"""What a claim asks for, from every form it may come in, and what is refused."""

from devicetrack import exception
from devicetrack import objects
from devicetrack.engine import demand
from devicetrack.objects.pci_alias import PCIAlias
from devicetrack.objects.pci_alias import PCIChoice
from devicetrack.tests import base
from devicetrack.tests.unit.engine.hosts import PMEM
from devicetrack.tests.unit.engine.hosts import provider
from devicetrack.tests.unit.engine.hosts import SMALL
from devicetrack.tests.unit.engine.hosts import VGPU

HERE, THERE = provider('here'), provider('there')
OURS = (PMEM, SMALL, VGPU)


def read(allocations, extra_specs=None):
    return demand.from_allocations(allocations, (HERE, THERE), OURS, extra_specs)


class AllocationsTestCase(base.TestCase):

    scenarios = base.table(
        ('none', None, ()),
        ('empty', {}, ()),
        ('nothing of a provider', {HERE: {'resources': {}}}, ()),
        ('classes that are not ours', {HERE: {'resources': {'VCPU': 4, 'MEMORY_MB': 2048}}}, ()),
        ('one', {HERE: {'resources': {VGPU: 1}}}, ((VGPU, 1, HERE),)),
        ('among others', {HERE: {'resources': {'VCPU': 4, PMEM: 2}}}, ((PMEM, 2, HERE),)),
        ('of two providers', {HERE: {'resources': {VGPU: 1}}, THERE: {'resources': {VGPU: 2}}},
         ((VGPU, 1, HERE), (VGPU, 2, THERE))),
        ('with a generation beside', {HERE: {'resources': {VGPU: 1}, 'generation': 7}}, ((VGPU, 1, HERE),)),
        ('not ours on a provider that is not ours', {'x': {'resources': {'VCPU': 4}}}, ()),
        ('what is not ours may be anything', {HERE: {'resources': {'VCPU': 'many', VGPU: 1}}}, ((VGPU, 1, HERE),)),
        names=('allocations', 'items'))

    def test_ask_for(self):
        self.assertEqual(self.items, tuple(item[:3] for item in read(self.allocations).items))


class BadAllocationsTestCase(base.TestCase):

    scenarios = base.table(
        ('a list', [HERE]),
        ('a text', 'VGPU=1'),
        ('a number', 1),
        ('no resources', {HERE: {}}),
        ('no mapping of a provider', {HERE: 1}),
        ('none of a provider', {HERE: None}),
        ('a list of a provider', {HERE: [VGPU]}),
        ('a class that is no text', {HERE: {'resources': {None: 1}}}),
        ('a class in small letters', {HERE: {'resources': {'vgpu': 1}}}),
        ('resources that are no mapping', {HERE: {'resources': [VGPU]}}),
        ('a text as resources', {HERE: {'resources': VGPU}}),
        ('negative', {HERE: {'resources': {VGPU: -1}}}),
        ('zero', {HERE: {'resources': {VGPU: 0}}}),
        ('huge', {HERE: {'resources': {VGPU: 10 ** 100}}}),
        ('one more than any host has', {HERE: {'resources': {VGPU: 1_000_001}}}),
        ('true', {HERE: {'resources': {VGPU: True}}}),
        ('a float', {HERE: {'resources': {VGPU: 1.0}}}),
        ('not a number', {HERE: {'resources': {VGPU: float('nan')}}}),
        ('a text for an amount', {HERE: {'resources': {VGPU: '1'}}}),
        ('none for an amount', {HERE: {'resources': {VGPU: None}}}),
        names=('allocations',))

    def test_are_refused_with_their_place(self):
        error = self.assertRaises(exception.BadRequest, read, self.allocations)
        self.assertIn('allocations', error.where)
        self.assertIn('must be', error.reason)


class UnknownProviderTestCase(base.TestCase):

    def test_is_named_with_those_there_are(self):
        error = self.assertRaises(exception.UnknownProvider, read, {'elsewhere': {'resources': {VGPU: 1, 'VCPU': 2}}})
        self.assertEqual(('elsewhere', (VGPU,), (HERE, THERE)),
                         (error.provider_uuid, error.resource_classes, error.known))

    def test_each_of_several_is_named(self):
        error = self.assertRaises(exception.UnknownProvider, read, {
            'x': {'resources': {PMEM: 1}}, 'y': {'resources': {VGPU: 1, PMEM: 1}}, 'z': {'resources': {'VCPU': 1}}})
        self.assertEqual(('x', ('y',), (PMEM, VGPU)), (error.provider_uuid, error.others, error.resource_classes))
        self.assertIn("'x', 'y'", str(error))


class OtherHostTestCase(base.TestCase):
    """Allocations over two hosts: those of an instance that is evacuated, or that an earlier move left behind."""

    scenarios = base.table(
        ('as much there as here', {HERE: {VGPU: 1}, 'x': {VGPU: 1}}, {}, ('x',)),
        ('less there', {HERE: {VGPU: 2}, 'x': {VGPU: 1}}, {}, ('x',)),
        ('over providers', {HERE: {VGPU: 1}, THERE: {VGPU: 1}, 'x': {VGPU: 2}}, {}, ('x',)),
        ('two providers there', {HERE: {VGPU: 2}, 'x': {VGPU: 1}, 'y': {VGPU: 1}}, {}, ('x', 'y')),
        ('what the flavor needs is here', {HERE: {VGPU: 1}, 'x': {VGPU: 4}}, {'resources:VGPU': '1'}, ('x',)),
        ('several classes', {HERE: {VGPU: 1, PMEM: 1}, 'x': {VGPU: 1}, 'y': {PMEM: 1}}, {}, ('x', 'y')),
        ('nothing of ours there', {HERE: {VGPU: 1}, 'x': {'VCPU': 1}}, {}, ()),
        names=('allocated', 'extra_specs', 'skipped'))

    def test_is_skipped_and_said(self):
        asked = read({uuid: {'resources': resources} for uuid, resources in self.allocated.items()}, self.extra_specs)
        self.assertEqual(self.skipped, asked.skipped)
        self.assertEqual({HERE, THERE} & self.allocated.keys(), {item.provider_uuid for item in asked.items})


class PerhapsOursTestCase(base.TestCase):
    """Where it would be a claim of less than was meant, nothing is left out in silence."""

    scenarios = base.table(
        ('more there', {HERE: {VGPU: 1}, 'x': {VGPU: 2}}, {}, True),
        ('another class there', {HERE: {PMEM: 1}, 'x': {VGPU: 1}}, {}, True),
        ('none here of what the flavor needs', {HERE: {PMEM: 1}, 'x': {VGPU: 1}}, {'resources:VGPU': '1'}, True),
        ('less here than the flavor needs', {HERE: {VGPU: 1}, 'x': {VGPU: 1}}, {'resources:VGPU': '2'}, True),
        ('this host does not know all its providers', {HERE: {VGPU: 1}, 'x': {VGPU: 1}}, {}, False),
        names=('allocated', 'extra_specs', 'certain'))

    def read(self, **more):
        return demand.from_allocations({uuid: {'resources': resources} for uuid, resources in self.allocated.items()},
                                       (HERE, THERE), OURS, {**self.extra_specs, **more}, certain=self.certain)

    def test_is_refused_and_named(self):
        error = self.assertRaises(exception.UnknownProvider, self.read)
        self.assertEqual('x', error.provider_uuid)


class NotAllKnownTestCase(base.TestCase):

    def test_what_the_flavor_needs_is_certain_all_the_same(self):
        asked = demand.from_allocations({HERE: {'resources': {VGPU: 1}}, 'x': {'resources': {VGPU: 1}}}, (HERE,), OURS,
                                        {'resources:VGPU': '1'}, certain=False)
        self.assertEqual(('x',), asked.skipped)


class FlavorTestCase(base.TestCase):

    scenarios = base.table(
        ('nothing', {}, {HERE: {'resources': {VGPU: 1}}}, ()),
        ('an order', {'hw:pmem': 'SMALL,4GB'}, {HERE: {'resources': {PMEM: 1, SMALL: 1}}}, (SMALL, PMEM)),
        ('more was allocated', {'hw:pmem': '4GB'}, {HERE: {'resources': {PMEM: 2}}}, (PMEM,)),
        ('over providers', {'resources:VGPU': '2'}, {HERE: {'resources': {VGPU: 1}}, THERE: {'resources': {VGPU: 1}}},
         ()),
        ('classes that are not ours', {'resources:VCPU': '4'}, {HERE: {'resources': {VGPU: 1}}}, ()),
        ('more of such a class than any host has devices', {'resources:NET_BW_EGR_KILOBIT_PER_SEC': '2000000'},
         {HERE: {'resources': {VGPU: 1}}, THERE: {'resources': {'NET_BW_EGR_KILOBIT_PER_SEC': 2_000_000}}}, ()),
        ('none of a class', {'resources:VGPU': '0'}, {HERE: {'resources': {PMEM: 1}}}, ()),
        names=('extra_specs', 'allocations', 'order'))

    def test_orders_what_was_allocated(self):
        self.assertEqual(self.order, read(self.allocations, self.extra_specs).order)

    def test_may_have_a_policy(self):
        asked = read(self.allocations, {**self.extra_specs, 'hw:pci_numa_affinity_policy': 'required'})
        self.assertEqual('required', asked.numa_policy)


class FlavorNeedsMoreTestCase(base.TestCase):

    scenarios = base.table(
        ('of a class', {'resources:VGPU': '2'}, {HERE: {'resources': {VGPU: 1}}}, VGPU),
        ('more than any host has', {'resources:VGPU': '1000001'}, {HERE: {'resources': {VGPU: 1}}}, VGPU),
        ('namespaces', {'hw:pmem': '4GB,4GB'}, {HERE: {'resources': {PMEM: 1}}}, PMEM),
        ('one that this host does not know', {'hw:pmem': 'HUGE'}, {HERE: {'resources': {PMEM: 1}}},
         'CUSTOM_PMEM_NAMESPACE_HUGE'),
        ('only classes of others were allocated', {'resources:VGPU': '1'}, {HERE: {'resources': {'VCPU': 1}}}, VGPU),
        names=('extra_specs', 'allocations', 'resource_class'))

    def test_is_refused_and_never_claimed_as_less(self):
        error = self.assertRaises(exception.BadRequest, read, self.allocations, self.extra_specs)
        self.assertIn(self.resource_class, str(error))


class AliasTestCase(base.TestCase):
    """Flavors that ask for PCI functions by names, some of ours and some of the service's own."""

    ALIASES = {name: PCIAlias(name, (PCIChoice(resource_class),), policy) for name, resource_class, policy in (
        ('qat', 'CUSTOM_QAT', 'legacy'), ('gpu', 'PGPU', 'required'), ('theirs', 'CUSTOM_THEIRS', 'required'))}

    def read(self, asked, allocated, **more):
        return demand.from_allocations({HERE: {'resources': allocated}}, (HERE,), (PMEM, 'CUSTOM_QAT', 'PGPU'),
                                       {'pci_passthrough:alias': asked, **more}, aliases=self.ALIASES)

    def test_orders_what_was_allocated(self):
        asked = self.read('gpu:1,qat:2', {'CUSTOM_QAT': 2, 'PGPU': 1, PMEM: 1}, **{'hw:pmem': '4GB'})
        self.assertEqual((PMEM, 'PGPU', 'CUSTOM_QAT', 'CUSTOM_QAT'), asked.order)
        self.assertEqual({PMEM: None, 'PGPU': 'required', 'CUSTOM_QAT': 'legacy'},
                         {item.resource_class: item.numa_policy for item in asked.items})
        self.assertEqual('none', asked.numa_policy)

    def test_less_than_it_asks_for_is_refused(self):
        for asked, allocated in (('qat:2', {'CUSTOM_QAT': 1}), ('qat:1,gpu:1', {'CUSTOM_QAT': 1}),
                                 ('qat:1', {'VCPU': 1})):
            error = self.assertRaises(exception.BadRequest, self.read, asked, allocated)
            self.assertIn('the flavor needs', error.reason)

    def test_for_functions_of_the_service_is_left_to_it(self):
        asked = self.read('theirs:2,qat:1', {'CUSTOM_QAT': 1, 'CUSTOM_THEIRS': 2})
        self.assertEqual((('CUSTOM_QAT',), ['legacy']), (asked.order, [item.numa_policy for item in asked.items]))
        self.assertEqual(((), 'none'), self.read('theirs:2', {'VCPU': 1})[1:4:2])

    def test_by_no_name_is_refused(self):
        error = self.assertRaises(exception.BadRequest, self.read, 'tape:1', {'CUSTOM_QAT': 1})
        self.assertIn('this host has gpu, qat, theirs', error.reason)

    def test_is_left_to_the_service_without_names(self):
        asked = demand.from_allocations({HERE: {'resources': {PMEM: 1}}}, (HERE,), OURS,
                                        {'pci_passthrough:alias': 'tape:1'})
        self.assertEqual(((), 'none'), (asked.order, asked.numa_policy))


class SharedAliasTestCase(base.TestCase):
    """Names that stand for one class, or for several, and which of what was allocated each may have."""

    QAT, GPU = 'CUSTOM_QAT', 'PGPU'
    ALIASES = {one.name: one for one in (
        PCIAlias('blue', (PCIChoice(QAT, frozenset(('BLUE',))),), 'legacy', 'type-VF'),
        PCIAlias('red', (PCIChoice(QAT, frozenset(('RED',))),), 'required', 'type-VF'),
        PCIAlias('either', (PCIChoice(QAT, frozenset(('BLUE',))), PCIChoice(GPU)), 'legacy', 'type-VF'))}

    def read(self, asked, allocated, image=None, **more):
        return demand.from_allocations(
            {provider: {'resources': amounts} for provider, amounts in allocated.items()}, tuple(allocated),
            (PMEM, self.QAT, self.GPU), {'pci_passthrough:alias': asked, **more}, aliases=self.ALIASES,
            image_properties=image)

    @staticmethod
    def shown(items):
        """Each item: its class, amount and provider, and the traits that it needs."""
        return [(item.resource_class, item.amount, item.provider_uuid,
                 ' or '.join(''.join(choice.needs - {'type-VF'}) for choice in item.choices)) for item in items]

    def test_one_name_has_all_that_was_allocated_of_its_class(self):
        asked = self.read('blue:3', {HERE: {self.QAT: 1}, THERE: {self.QAT: 2}})
        self.assertEqual([(self.QAT, 1, HERE, 'BLUE'), (self.QAT, 2, THERE, 'BLUE')], self.shown(asked.items))
        self.assertEqual(((), (self.QAT,) * 3), (asked.alternatives, asked.order))

    def test_two_names_share_a_class_in_every_way(self):
        asked = self.read('blue:1,red:1', {HERE: {self.QAT: 1}, THERE: {self.QAT: 1}})
        first, second = ([(self.QAT, 1, one, 'BLUE'), (self.QAT, 1, other, 'RED')]
                         for one, other in ((HERE, THERE), (THERE, HERE)))
        self.assertEqual([first, [second]], [self.shown(asked.items), list(map(self.shown, asked.alternatives))])
        self.assertEqual(['legacy', 'required'], [item.numa_policy for item in asked.items])

    def test_what_the_flavor_asks_for_without_a_name_may_be_any_device(self):
        asked = self.read('blue:1', {HERE: {self.QAT: 2, PMEM: 1}}, **{f'resources:{self.QAT}': '1', 'hw:pmem': '4GB'})
        self.assertEqual([(PMEM, 1, HERE, ''), (self.QAT, 1, HERE, 'BLUE'), (self.QAT, 1, HERE, '')],
                         self.shown(asked.items))
        self.assertEqual([(self.QAT, 1, THERE, 'BLUE'), (self.QAT, 1, HERE, '')], self.shown(self.read(
            'blue:1', {HERE: {self.QAT: 1}, THERE: {self.QAT: 1}}).alternatives[0]))

    def test_a_name_for_several_classes_takes_what_there_is(self):
        asked = self.read('either:3', {HERE: {self.QAT: 1, self.GPU: 2}})
        self.assertEqual([(self.QAT, 1, HERE, 'BLUE'), (self.GPU, 2, HERE, '')], self.shown(asked.items))
        self.assertEqual((self.QAT, self.GPU, self.GPU), asked.order)

    def test_a_name_for_several_classes_leaves_to_others_theirs(self):
        asked = self.read('either:1,red:1', {HERE: {self.QAT: 1, self.GPU: 1}})
        self.assertEqual([(self.GPU, 1, HERE, ''), (self.QAT, 1, HERE, 'RED')], self.shown(asked.items))
        self.assertEqual((self.GPU, self.QAT), asked.order)

    def test_less_than_several_names_need_together_is_refused(self):
        for asked, allocated in (('either:2', {self.QAT: 1}), ('either:1,blue:1', {self.QAT: 1}),
                                 ('either:1', {self.QAT: 1}), ('blue:1,red:1', {self.QAT: 1})):
            more = {f'resources:{self.QAT}': '1'} if asked == 'either:1' else {}
            error = self.assertRaises(exception.BadRequest, self.read, asked, {HERE: allocated}, **more)
            self.assertIn('the flavor needs', error.reason)

    def test_flavor_and_image_come_before_the_names(self):
        image = {'hw_pci_numa_affinity_policy': 'socket'}
        flavor = {'hw:pci_numa_affinity_policy': 'preferred'}
        allocated = {HERE: {self.QAT: 2}}
        for properties, more, policy in ((image, {}, 'socket'), (None, flavor, 'preferred')):
            asked = self.read('blue:1,red:1', allocated, properties, **more)
            self.assertEqual([policy] * 3, [asked.numa_policy, *(item.numa_policy for item in asked.items)])
        self.assertRaises(exception.BadRequest, self.read, 'blue:2', allocated, image, **flavor)

    def test_an_image_is_not_read_for_what_is_not_ours(self):
        class Unread:
            def get(self, name):
                raise AssertionError(name)
        self.assertEqual((), demand.from_allocations({HERE: {'resources': {'VCPU': 1}}}, (HERE,), OURS, {},
                                                     image_properties=Unread()).items)


class RequestTestCase(base.TestCase):

    def read(self, *wanted, **affinity):
        return demand.from_request(objects.DeviceRequest.of(*wanted, **affinity), (HERE,))

    def test_asks_for_its_items_in_their_order(self):
        asked = self.read((SMALL, 1), (PMEM, 2, HERE), numa_nodes=[1], numa_affinity_policy='legacy')
        self.assertEqual((((SMALL, 1, None), (PMEM, 2, HERE)), frozenset((1,)), 'legacy'),
                         (tuple(item[:3] for item in asked.items), asked.numa_nodes, asked.numa_policy))

    def test_amounts_that_cannot_be_meant(self):
        for amount in (0, -1, 1_000_001):
            error = self.assertRaises(exception.BadRequest, self.read, (PMEM, 1), (VGPU, amount))
            self.assertEqual(('wanted[1].amount', amount), (error.where, error.value))

    def test_an_unknown_provider(self):
        self.assertRaises(exception.UnknownProvider, self.read, (VGPU, 1, THERE))

    def test_asks_for_functions_by_what_they_are(self):
        alias = PCIAlias('one', (PCIChoice('CUSTOM_QAT', frozenset(('BLUE',))), PCIChoice('PGPU')), 'socket')
        request = objects.DeviceRequest.from_extra_specs({'pci_passthrough:alias': 'one:2'}, aliases={'one': alias})
        [item] = demand.from_request(objects.DeviceRequest.obj_from_primitive(request.obj_to_primitive()), ()).items
        self.assertEqual((alias.asked, 2, 'socket'), (item.choices, item.amount, item.numa_policy))
        self.assertEqual([frozenset(('type-PF',))] * 2, [choice.refuses for choice in item.choices])


class PortsTestCase(base.TestCase):

    MACS = ('52:54:00:aa:bb:01', '52:54:00:aa:bb:02', '52:54:00:aa:bb:03')

    @staticmethod
    def port(mac, physical_network='physnet1', **more):
        return objects.NetworkPort(physical_network=physical_network, mac=mac, **more)

    def refused(self, request):
        return self.assertRaises(exception.BadRequest, demand.from_request, request, (HERE,))

    def test_are_in_the_order_of_the_devices(self):
        first, second, third = self.MACS
        ports = [self.port(first), self.port(second, vlan=41, trusted=True)]
        request = objects.DeviceRequest(wanted=[
            objects.RequestedDevices(resource_class='CUSTOM_NET', amount=2, networks=ports),
            objects.RequestedDevices(resource_class=VGPU, amount=2),
            objects.RequestedDevices.of_port(self.port(third), HERE)])
        asked = demand.from_request(objects.DeviceRequest.obj_from_primitive(request.obj_to_primitive()), (HERE,))
        self.assertEqual((('physnet1', first, 0, False), ('physnet1', second, 41, True), None, None,
                          ('physnet1', third, 0, False)), asked.ports)
        self.assertEqual([('CUSTOM_NET', 1, None), ('CUSTOM_NET', 1, None), (VGPU, 2, None),
                          ('CUSTOM_PCI_NETWORK_PHYSNET1', 1, HERE)], [item[:3] for item in asked.items])
        needs = [[set(choice.needs) for choice in item.choices] for item in asked.items]
        self.assertEqual([[{'physical_network=physnet1'}], [{'physical_network=physnet1', 'trusted=yes'}], [],
                          [{'physical_network=physnet1'}]], needs)

    def test_there_are_none_without(self):
        self.assertEqual((), demand.from_request(objects.DeviceRequest.of((VGPU, 3)), ()).ports)

    def test_one_address_twice(self):
        error = self.refused(objects.DeviceRequest.of((VGPU, 1)).with_ports([
            self.port(self.MACS[0]), self.port(self.MACS[0], 'physnet2', vlan=1)]))
        self.assertEqual(self.MACS[0], error.value)

    def test_what_is_no_port(self):
        for reason, port in (('is not a MAC address', self.port('02-00')),
                             ('is a group address', self.port('01:00:5e:00:00:01')),
                             ('write the one', self.port('00:00:00:00:00:00')),
                             ('digits', self.port('52:54:00:AA:BB:01')),
                             ('VLAN', self.port(self.MACS[0], vlan=4095)), ('VLAN', self.port(self.MACS[0], vlan=-1))):
            error = self.refused(objects.DeviceRequest.of((VGPU, 1)).with_ports([port]))
            self.assertEqual(('wanted[1].networks[0]', True), (error.where, reason in error.reason), error)
        self.refused(objects.DeviceRequest(wanted=[objects.RequestedDevices(
            resource_class=VGPU, amount=1, networks=[objects.NetworkPort(mac=self.MACS[0])])]))

    def test_as_many_as_devices_and_no_choices_beside(self):
        ports = [self.port(mac) for mac in self.MACS[:2]]
        choices = [objects.DeviceChoice(resource_class=VGPU)]
        for more in ({'amount': 1}, {'amount': 3}, {'amount': 2, 'choices': choices}):
            error = self.refused(objects.DeviceRequest(wanted=[
                objects.RequestedDevices(resource_class=VGPU, networks=ports, **more)]))
            self.assertEqual('wanted[0].networks', error.where)


class ArrangeTestCase(base.TestCase):

    scenarios = base.table(
        ('no order', 'a1 b1', '', 'a1 b1'),
        ('reversed', 'a1 b1', 'b a', 'b1 a1'),
        ('interleaved', 'a1 a2 b1 b2', 'b a b a', 'b1 a1 b2 a2'),
        ('less ordered than held', 'a1 b1 b2', 'b', 'b1 a1 b2'),
        ('more ordered than held', 'a1', 'b a a', 'a1'),
        names=('held', 'order', 'expected'))

    def test_puts_devices_into_the_order_of_the_guest(self):
        held = self.held.split()
        self.assertEqual(self.expected.split(),
                         demand.arrange(held, [name[0] for name in held], self.order.split()))
