"""What is asked: requests, and the extra specs that they may come from."""

from devicetrack import exception
from devicetrack import objects
from devicetrack.objects import extra_specs
from devicetrack.objects.pci_alias import PCIAlias
from devicetrack.objects.pci_alias import PCIChoice
from devicetrack.tests import base
from devicetrack.tests.unit.objects import samples

A, B = 'CUSTOM_PMEM_NAMESPACE_4GB', 'CUSTOM_PMEM_NAMESPACE_SMALL'
QAT, GPU = 'CUSTOM_PCI_8086_0443', 'PGPU'


def alias(name, *classes, policy='legacy'):
    return PCIAlias(name, tuple(map(PCIChoice, classes)), policy)


ALIASES = {one.name: one for one in (
    alias('qat', QAT), alias('gpu', GPU, policy='required'), alias('far', 'CUSTOM_FAR', policy='preferred'),
    alias('either', QAT, 'CUSTOM_PCI_8086_0442'), alias('both', QAT, QAT))}


class ExtraSpecsTestCase(base.TestCase):

    scenarios = base.table(
        ('nothing', {}, (), {}, None),
        ('nothing of ours', {'hw:cpu_policy': 'dedicated', 'trait:CUSTOM_X': 'required'}, (), {}, None),
        ('one namespace', {'hw:pmem': '4GB'}, (A,), {A: 1}, None),
        ('namespaces in their order', {'hw:pmem': 'SMALL,4GB,SMALL'}, (B, A, B), {A: 1, B: 2}, None),
        ('blanks between labels', {'hw:pmem': ' 4GB , SMALL '}, (A, B), {A: 1, B: 1}, None),
        ('labels become classes', {'hw:pmem': 'my-label'}, ('CUSTOM_PMEM_NAMESPACE_MY_LABEL',),
         {'CUSTOM_PMEM_NAMESPACE_MY_LABEL': 1}, None),
        ('a resource class', {'resources:VGPU': '2'}, (), {'VGPU': 2}, None),
        ('of a numbered group', {'resources1:VGPU': '1', 'resources2:VGPU': '1'}, (), {'VGPU': 2}, None),
        ('of a named group', {'resources_gpu-1:VGPU': '1'}, (), {'VGPU': 1}, None),
        ('none of a class', {'resources:VGPU': '0'}, (), {'VGPU': 0}, None),
        ('of another service, in its own unit', {'resources:NET_BW_EGR_KILOBIT_PER_SEC': '2000000'}, (),
         {'NET_BW_EGR_KILOBIT_PER_SEC': 2_000_000}, None),
        ('what the service counts itself', {'resources:VCPU': '2', 'resources:DISK_GB': '1'}, (), {}, None),
        ('both ways', {'hw:pmem': '4GB', f'resources:{A}': '1'}, (A,), {A: 2}, None),
        ('a policy', {'hw:pci_numa_affinity_policy': 'legacy'}, (), {}, 'legacy'),
        ('a policy about sockets', {'hw:pci_numa_affinity_policy': 'socket'}, (), {}, 'preferred'),
        ('not quite a resource', {'resources': '1', 'resourcesX': '1', 'resources_:VGPU': '1'}, (), {}, None),
        names=('specs', 'order', 'amounts', 'policy'))

    def test_say(self):
        needs = extra_specs.read(self.specs)
        self.assertEqual((self.order, self.amounts, self.policy), needs)


class BadExtraSpecsTestCase(base.TestCase):

    scenarios = base.table(
        ('no label', 'hw:pmem', ''),
        ('an empty label', 'hw:pmem', '4GB,,SMALL'),
        ('labels that are no text', 'hw:pmem', ['4GB']),
        ('no amount', 'resources:VGPU', ''),
        ('negative', 'resources:VGPU', '-1'),
        ('a fraction', 'resources:VGPU', '1.5'),
        ('a word', 'resources:VGPU', 'one'),
        ('digits of another script', 'resources:VGPU', '١'),
        ('thousands of digits', 'resources:VGPU', '9' * 10_000),
        ('a class in small letters', 'resources:vgpu', '1'),
        ('no such policy', 'hw:pci_numa_affinity_policy', 'sometimes'),
        names=('name', 'value'))

    def test_are_refused_by_name(self):
        error = self.assertRaises(exception.BadRequest, extra_specs.read, {self.name: self.value})
        self.assertEqual((self.name, self.value), (error.where, error.value))


ALIAS = 'pci_passthrough:alias'


class AliasTestCase(base.TestCase):

    scenarios = base.table(
        ('one', {ALIAS: 'qat:1'}, (QAT,), {QAT: 1}, 'legacy'),
        ('several, in their order', {ALIAS: 'qat:2,gpu:1,qat:1'}, (QAT, QAT, GPU, QAT), {QAT: 3, GPU: 1}, 'required'),
        ('blanks', {ALIAS: ' qat : 1 , gpu:1 '}, (QAT, GPU), {QAT: 1, GPU: 1}, 'required'),
        ('none of one', {ALIAS: 'gpu:0,qat:1'}, (QAT,), {QAT: 1}, 'legacy'),
        ('after namespaces', {ALIAS: 'gpu:1', 'hw:pmem': '4GB'}, (A, GPU), {A: 1, GPU: 1}, 'required'),
        ('beside the class', {ALIAS: 'gpu:1', 'resources:PGPU': '2'}, (GPU,), {GPU: 3}, 'required'),
        ('the strictest policy', {ALIAS: 'far:1,qat:1'}, ('CUSTOM_FAR', QAT), {'CUSTOM_FAR': 1, QAT: 1}, 'legacy'),
        ('the loosest alone', {ALIAS: 'far:1'}, ('CUSTOM_FAR',), {'CUSTOM_FAR': 1}, 'preferred'),
        ("the flavor's own policy", {ALIAS: 'gpu:1', 'hw:pci_numa_affinity_policy': 'none'}, (GPU,), {GPU: 1}, 'none'),
        ('choices of one class', {ALIAS: 'both:1'}, (QAT,), {QAT: 1}, 'legacy'),
        names=('specs', 'order', 'amounts', 'policy'))

    def test_says(self):
        self.assertEqual((self.order, self.amounts, self.policy), extra_specs.read(self.specs, ALIASES))

    def test_is_for_others_where_there_are_no_aliases(self):
        self.assertNotIn(QAT, extra_specs.read(self.specs).order)

    def test_of_classes_of_others_is_for_others(self):
        needs = extra_specs.read({ALIAS: self.specs[ALIAS]}, ALIASES, ours=['CUSTOM_X'])
        self.assertEqual(((), {}, None), needs)

    def test_of_classes_of_others_leaves_ours(self):
        needs = extra_specs.read({ALIAS: self.specs[ALIAS]}, ALIASES, ours=[QAT])
        self.assertEqual({QAT} & self.amounts.keys(), set(needs.order))
        self.assertEqual('legacy' if needs.order else None, needs.policy)


class BadAliasTestCase(base.TestCase):

    scenarios = base.table(
        ('nothing', '', "'' is not NAME:COUNT"),
        ('no text', ['qat:1'], 'must be NAME:COUNT'),
        ('no number', 'qat', "'qat' is not NAME:COUNT"),
        ('an empty number', 'qat:', "'qat:' is not NAME:COUNT"),
        ('a word', 'gpu:1,qat:two', "'qat:two' is not NAME:COUNT, the count a whole number"),
        ('negative', 'qat:-1', "'qat:-1' is not NAME:COUNT"),
        ('digits of another script', 'qat:١', 'is not NAME:COUNT'),
        ('two numbers', 'qat:1:2', "'qat:1:2' is not NAME:COUNT"),
        ('no name', ':1', "':1' is not NAME:COUNT"),
        ('a comma at the end', 'qat:1,', "'' is not NAME:COUNT"),
        ('no such name', 'qat:1,tape:1', "no alias has the name 'tape'; this host has both, either, far, gpu, qat"),
        ('none of no such name', 'tape:0', "no alias has the name 'tape'"),
        ('more than any host has', 'qat:1000000,gpu:1', 'must ask for at most 1000000'),
        ('thousands of digits', 'qat:' + '9' * 10_000, 'of at most 32 digits'),
        ('choices of several classes', 'either:1', f"the alias 'either' stands for {QAT} or CUSTOM_PCI_8086_0442"),
        names=('value', 'reason'))

    def test_is_refused_by_name(self):
        error = self.assertRaises(exception.BadRequest, extra_specs.read, {ALIAS: self.value}, ALIASES)
        self.assertEqual((ALIAS, self.value), (error.where, error.value))
        self.assertIn(self.reason, error.reason)

    def test_is_not_read_where_there_are_no_aliases(self):
        self.assertEqual(((), {}, None), extra_specs.read({ALIAS: self.value}))


class NoAliasTestCase(base.TestCase):

    def test_a_host_without_names_says_so(self):
        error = self.assertRaises(exception.BadRequest, extra_specs.read, {ALIAS: 'qat:1'}, {})
        self.assertIn('this host has none', error.reason)

    def test_choices_of_several_classes_of_others_are_for_others(self):
        self.assertEqual((), extra_specs.read({ALIAS: 'either:1'}, ALIASES, ours=[GPU]).order)


class RequestTestCase(base.TestCase):

    def test_of_tuples(self):
        request = objects.DeviceRequest.of(('VGPU', 2), (A, 1, samples.PROVIDER))
        self.assertEqual([('VGPU', 2, None), (A, 1, samples.PROVIDER)],
                         [(one.resource_class, one.amount, one.provider_uuid) for one in request.wanted])
        self.assertEqual(([], 'none'), (request.numa_nodes, request.numa_affinity_policy))

    def test_of_what_is_no_tuple_is_refused(self):
        for wanted in (('VGPU', 1), (('VGPU',),), (('VGPU', 1, None, 2),)):
            error = self.assertRaises(exception.BadRequest, objects.DeviceRequest.of, *wanted)
            self.assertIn('must be a tuple (resource class, amount)', str(error))

    def test_requests_share_nothing(self):
        objects.DeviceRequest.of(('VGPU', 1)).numa_nodes.append(1)
        self.assertEqual([], objects.DeviceRequest.of(('VGPU', 1)).numa_nodes)

    def test_with_affinity(self):
        request = samples.request()
        self.assertEqual(([0, 1], 'preferred'), (request.numa_nodes, request.numa_affinity_policy))


class AmountTestCase(base.TestCase):

    scenarios = [(repr(amount), {'amount': amount}) for amount in (1.0, 1.9, '1', True, None, [1])]

    def test_that_is_no_whole_number_is_refused(self):
        self.assertRaises(exception.BadRequest, objects.DeviceRequest.of, ('VGPU', self.amount))


class RequestFromExtraSpecsTestCase(base.TestCase):

    scenarios = base.table(
        ('nothing', {}, []),
        ('namespaces in their order', {'hw:pmem': 'SMALL,4GB,SMALL'}, [(B, 1), (A, 1), (B, 1)]),
        ('namespaces come first', {'resources:VGPU': '2', 'hw:pmem': '4GB'}, [(A, 1), ('VGPU', 2)]),
        ('both ways', {'resources:' + A: '2', 'hw:pmem': '4GB'}, [(A, 1), (A, 2)]),
        ('none of a class', {'resources:VGPU': '0'}, []),
        ('namespaces that follow one another', {'hw:pmem': '4GB,4GB,SMALL'}, [(A, 2), (B, 1)]),
        ('functions in their order', {'pci_passthrough:alias': 'gpu:2,qat:1,gpu:1'}, [(GPU, 2), (QAT, 1), (GPU, 1)]),
        ('functions after namespaces', {'pci_passthrough:alias': 'qat:2', 'hw:pmem': '4GB', 'resources:VGPU': '1'},
         [(A, 1), (QAT, 2), ('VGPU', 1)]),
        names=('specs', 'wanted'))

    def test_wants(self):
        request = objects.DeviceRequest.from_extra_specs(self.specs, aliases=ALIASES)
        self.assertEqual(self.wanted, [(one.resource_class, one.amount) for one in request.wanted])

    def test_takes_the_policy_and_the_guests_nodes(self):
        request = objects.DeviceRequest.from_extra_specs(
            {**self.specs, 'hw:pci_numa_affinity_policy': 'required'}, numa_nodes=[1])
        self.assertEqual(([1], 'required'), (request.numa_nodes, request.numa_affinity_policy))

    def test_takes_the_policy_of_an_alias_unless_it_is_given_one(self):
        specs = {'pci_passthrough:alias': 'gpu:1'}
        for given, policy in ((None, 'required'), ('none', 'none')):
            self.assertEqual(policy, objects.DeviceRequest.from_extra_specs(
                specs, [1], given, ALIASES).numa_affinity_policy)
