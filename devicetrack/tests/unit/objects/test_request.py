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
    return PCIAlias(name, tuple(map(PCIChoice, classes)), policy, 'type-VF')


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
        ('a comma at the end', {'hw:pmem': '4GB,'}, (A,), {A: 1}, None),
        ('empty labels', {'hw:pmem': ',4GB, ,SMALL'}, (A, B), {A: 1, B: 1}, None),
        ('no label', {'hw:pmem': ''}, (), {}, None),
        ('labels become classes', {'hw:pmem': 'my-label'}, ('CUSTOM_PMEM_NAMESPACE_MY_LABEL',),
         {'CUSTOM_PMEM_NAMESPACE_MY_LABEL': 1}, None),
        ('a resource class', {'resources:VGPU': '2'}, (), {'VGPU': 2}, None),
        ('of a numbered group', {'resources1:VGPU': '1', 'resources2:VGPU': '1'}, (), {'VGPU': 2}, None),
        ('of a named group', {'resources_gpu-1:VGPU': '1'}, (), {'VGPU': 1}, None),
        ('of a group with any name of placement',
         {'resourcesA:VGPU': '1', 'resources-a:VGPU': '2', 'resources_:VGPU': '4'}, (), {'VGPU': 7}, None),
        ('none of a class', {'resources:VGPU': '0'}, (), {'VGPU': 0}, None),
        ('of another service, in its own unit', {'resources:NET_BW_EGR_KILOBIT_PER_SEC': '2000000'}, (),
         {'NET_BW_EGR_KILOBIT_PER_SEC': 2_000_000}, None),
        ('what the service counts itself', {'resources:VCPU': '2', 'resources:DISK_GB': '1'}, (), {}, None),
        ('both ways', {'hw:pmem': '4GB', f'resources:{A}': '1'}, (A,), {A: 2}, None),
        ('a policy', {'hw:pci_numa_affinity_policy': 'legacy'}, (), {}, 'legacy'),
        ('a policy about sockets', {'hw:pci_numa_affinity_policy': 'socket'}, (), {}, 'socket'),
        ('those of others that look alike',
         dict.fromkeys(('hw:pmu', 'hw:mem_page_size', 'hw:cpu_policy', 'hw_rng:rate_bytes', 'quota:memory_reservation',
                        'accel:device_profile', 'group_policy', 'pmem', 'pci_weigher:alias'), '1'), (), {}, None),
        ('not quite a resource', {'resources': '1', 'resourcesX': '1'}, (), {}, None),
        names=('specs', 'order', 'amounts', 'policy'))

    def test_say(self):
        needs = extra_specs.read(self.specs)
        self.assertEqual((self.order, (), self.amounts, self.policy), needs)


class BadExtraSpecsTestCase(base.TestCase):

    scenarios = base.table(
        ('labels that are no text', 'hw:pmem', ['4GB']),
        ('no amount', 'resources:VGPU', ''),
        ('negative', 'resources:VGPU', '-1'),
        ('a fraction', 'resources:VGPU', '1.5'),
        ('a word', 'resources:VGPU', 'one'),
        ('digits of another script', 'resources:VGPU', '١'),
        ('thousands of digits', 'resources:VGPU', '9' * 10_000),
        ('a class in small letters', 'resources:vgpu', '1'),
        ('a class and a line break', 'resources:VGPU\n', '1'),
        ('no such policy', 'hw:pci_numa_affinity_policy', 'sometimes'),
        ('a name with a mistake', 'hw:pmen', '4GB'),
        ('a letter too few', 'hw:pme', '4GB'),
        ('another prefix', 'hw_pmem', '4GB'),
        ('the policy of images', 'hw_pci_numa_affinity_policy', 'required'),
        ('two names', 'pci_passthrough:aliases', 'gpu:1'),
        ('one resource', 'resource:VGPU', '1'),
        ('letters in another order', 'triat:CUSTOM_DEVICETRACK_MDEV_TYPE_NVIDIA_35', 'required'),
        ('a group that placement has not', 'resources.A:VGPU', '1'),
        ('a letter too few of a trait', 'tait:CUSTOM_X', 'required'),
        names=('name', 'value'))

    def test_are_refused_by_name(self):
        error = self.assertRaises(exception.BadRequest, extra_specs.read, {self.name: self.value})
        self.assertEqual((self.name, self.value), (error.where, error.value))


ALIAS = 'pci_passthrough:alias'


EITHER = f'{QAT} or CUSTOM_PCI_8086_0442'


class AliasTestCase(base.TestCase):

    scenarios = base.table(
        ('one', {ALIAS: 'qat:1'}, [(QAT, 1, 'legacy')], {}, None),
        ('several, in their order', {ALIAS: 'qat:2,gpu:1,qat:1'},
         [(QAT, 2, 'legacy'), (GPU, 1, 'required'), (QAT, 1, 'legacy')], {}, None),
        ('blanks', {ALIAS: ' qat : 1 , gpu:1 '}, [(QAT, 1, 'legacy'), (GPU, 1, 'required')], {}, None),
        ('none of one', {ALIAS: 'gpu:0,qat:1'}, [(QAT, 1, 'legacy')], {}, None),
        ('beside namespaces', {ALIAS: 'gpu:1', 'hw:pmem': '4GB'}, [(GPU, 1, 'required')], {A: 1}, None),
        ('beside the class', {ALIAS: 'gpu:1', 'resources:PGPU': '2'}, [(GPU, 1, 'required')], {GPU: 2}, None),
        ("with the flavor's own policy", {ALIAS: 'gpu:1', 'hw:pci_numa_affinity_policy': 'none'},
         [(GPU, 1, 'required')], {}, 'none'),
        ('choices of one class', {ALIAS: 'both:1'}, [(QAT, 1, 'legacy')], {}, None),
        ('choices of several classes', {ALIAS: 'either:2'}, [(EITHER, 2, 'legacy')], {}, None),
        names=('specs', 'functions', 'amounts', 'policy'))

    @staticmethod
    def shown(needs):
        return [(' or '.join(dict.fromkeys(choice.resource_class for choice in one.choices)), one.amount,
                 one.numa_policy) for one in needs.functions]

    def test_says(self):
        needs = extra_specs.read(self.specs, ALIASES)
        self.assertEqual((self.functions, self.amounts, self.policy), (self.shown(needs), *needs[2:]))
        self.assertEqual({frozenset(('type-VF',))}, {choice.needs for one in needs.functions for choice in one.choices})

    def test_is_for_others_where_there_are_no_aliases(self):
        self.assertEqual((), extra_specs.read(self.specs).functions)

    def test_of_classes_of_others_is_for_others(self):
        needs = extra_specs.read({ALIAS: self.specs[ALIAS]}, ALIASES, ours=['CUSTOM_X'])
        self.assertEqual(((), (), {}, None), needs)

    def test_of_classes_of_others_leaves_ours(self):
        needs = extra_specs.read({ALIAS: self.specs[ALIAS]}, ALIASES, ours=[QAT])
        self.assertEqual([(QAT, amount, policy) for name, amount, policy in self.functions if QAT in name],
                         self.shown(needs))


class ImageTestCase(base.TestCase):
    """Whose NUMA policy counts: the flavor's and the image's before the alias's."""

    IMAGE = 'hw_pci_numa_affinity_policy'

    def test_flavor_or_image_or_both(self):
        for flavor, image, counts in ((None, None, None), ('required', None, 'required'), (None, 'socket', 'socket'),
                                      ('legacy', 'legacy', 'legacy')):
            self.assertEqual(counts, extra_specs.numa_policy(flavor, {} if image is None else {self.IMAGE: image}))
        self.assertEqual('legacy', extra_specs.numa_policy('legacy', None))

    def test_two_policies_are_refused(self):
        error = self.assertRaises(exception.BadRequest, extra_specs.numa_policy, 'required', {self.IMAGE: 'preferred'})
        self.assertEqual((self.IMAGE, 'preferred'), (error.where, error.value))

    def test_no_such_policy(self):
        error = self.assertRaises(exception.BadRequest, extra_specs.numa_policy, None, {self.IMAGE: 'sometimes'})
        self.assertIn('must be one of required, socket, ', error.reason)


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
        names=('value', 'reason'))

    def test_is_refused_by_name(self):
        error = self.assertRaises(exception.BadRequest, extra_specs.read, {ALIAS: self.value}, ALIASES)
        self.assertEqual((ALIAS, self.value), (error.where, error.value))
        self.assertIn(self.reason, error.reason)

    def test_is_not_read_where_there_are_no_aliases(self):
        self.assertEqual(((), (), {}, None), extra_specs.read({ALIAS: self.value}))


class NoAliasTestCase(base.TestCase):

    def test_a_host_without_names_says_so(self):
        error = self.assertRaises(exception.BadRequest, extra_specs.read, {ALIAS: 'qat:1'}, {})
        self.assertIn('this host has none', error.reason)

    def test_choices_of_several_classes_of_others_are_for_others(self):
        self.assertEqual((), extra_specs.read({ALIAS: 'either:1'}, ALIASES, ours=[GPU]).functions)


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

    def test_takes_the_policies_of_aliases_unless_somebody_says_another(self):
        flavor, image = 'hw:pci_numa_affinity_policy', {'hw_pci_numa_affinity_policy': 'socket'}
        for given, more, properties, of_request, of_functions in (
                (None, {}, None, 'none', ['required', 'legacy']),
                ('none', {}, image, 'none', ['none', 'none']),
                (None, {flavor: 'preferred'}, None, 'preferred', ['preferred', 'preferred']),
                (None, {}, image, 'socket', ['socket', 'socket'])):
            request = objects.DeviceRequest.from_extra_specs(
                {'pci_passthrough:alias': 'gpu:1,qat:1', **more}, [1], given, ALIASES, properties)
            self.assertEqual((of_request, of_functions), (
                request.numa_affinity_policy, [one.numa_affinity_policy for one in request.wanted]))

    def test_says_which_functions_will_do(self):
        [wanted] = objects.DeviceRequest.from_extra_specs(
            {'pci_passthrough:alias': 'either:2'}, aliases=ALIASES).wanted
        self.assertEqual([(QAT, ['type-VF'], []), ('CUSTOM_PCI_8086_0442', ['type-VF'], [])],
                         [(one.resource_class, one.needs, one.refuses) for one in wanted.choices])


TYPE_35, TYPE_36 = (f'CUSTOM_DEVICETRACK_MDEV_TYPE_NVIDIA_{number}' for number in (35, 36))


class TraitsTestCase(base.TestCase):
    """Traits in extra specs that no scheduler reads."""

    scenarios = base.table(
        ('of a type', {'resources:VGPU': '1', f'trait:{TYPE_36}': 'required'}, [('VGPU', 1, [TYPE_36], [])]),
        ('forbidden', {'resources:VGPU': '2', f'trait:{TYPE_36}': 'forbidden'}, [('VGPU', 2, [], [TYPE_36])]),
        ('of groups', {'resources1:VGPU': '1', f'trait1:{TYPE_35}': 'required', 'resources_B:VGPU': '1',
                       f'trait_B:{TYPE_36}': 'required', 'resources:VGPU': '1'},
         [('VGPU', 1, [TYPE_35], []), ('VGPU', 1, [TYPE_36], []), ('VGPU', 1)]),
        ('beside namespaces and functions', {'hw:pmem': '4GB', 'resources:VGPU': '1', f'trait:{TYPE_36}': 'required',
                                             ALIAS: 'qat:1'},
         [(A, 1), (QAT, 1, ['type-VF'], []), ('VGPU', 1, [TYPE_36], [])]),
        ('of a maker and an interface', {'resources:VGPU': '1', 'trait:CUSTOM_DEVICETRACK_VENDOR_NVIDIA': 'required',
                                         'trait:CUSTOM_DEVICETRACK_DEVICE_API_VFIO_PCI': 'required'},
         [('VGPU', 1, ['CUSTOM_DEVICETRACK_DEVICE_API_VFIO_PCI', 'CUSTOM_DEVICETRACK_VENDOR_NVIDIA'], [])]),
        ('of the host', {'resources:VGPU': '1', 'trait:HW_CPU_X86_AVX2': 'required',
                         'trait:COMPUTE_NODE': 'required'}, [('VGPU', 1)]),
        ('of processors', {'resources1:PCPU': '4', 'trait1:CUSTOM_FAST': 'required', 'resources2:VGPU': '1'},
         [('VGPU', 1)]),
        ('without devices', {'trait:CUSTOM_X': 'required', 'resources:VCPU': '1', 'resources:VGPU': '0'}, []),
        names=('specs', 'wanted'))

    def test_limit_the_devices_of_their_group(self):
        request = objects.DeviceRequest.from_extra_specs(self.specs, aliases=ALIASES)
        self.assertEqual(self.wanted, [
            (one.resource_class, one.amount, *((choice.needs, choice.refuses) for choice in one.choices))
            if not one.choices else (one.resource_class, one.amount, one.choices[0].needs, one.choices[0].refuses)
            for one in request.wanted])


class TraitsNobodyKnowsTestCase(base.TestCase):

    scenarios = base.table(
        ("an operator's", 'trait:CUSTOM_GOLD', 'required', {'resources:VGPU': '1'}),
        ("an operator's, forbidden", 'trait:CUSTOM_GOLD', 'forbidden', {'resources:VGPU': '1'}),
        ('of a group', 'trait1:CUSTOM_GOLD', 'required', {'resources1:VGPU': '1'}),
        ('of a named group', 'trait_GPU:CUSTOM_GOLD', 'required', {'resources_GPU:VGPU': '1'}),
        ('of a group without an underscore', 'traitGPU:CUSTOM_GOLD', 'required', {'resourcesGPU:VGPU': '1'}),
        ('with a line break', f'trait:{TYPE_36}\n', 'required', {'resources:VGPU': '1'}),
        ('of os-traits, about a device', 'trait:HW_GPU_API_VULKAN', 'required', {'resources:VGPU': '1'}),
        ('of a host, in a group of devices', 'trait1:HW_CPU_X86_AVX2', 'required', {'resources1:VGPU': '1'}),
        ('of a migration', 'trait:CUSTOM_MIG_MDEV_NVIDIA_36_ANY', 'required', {'resources:VGPU': '1'}),
        ('a mark of a report', 'trait:CUSTOM_DEVICETRACK_COUNTS_VGPU', 'forbidden', {'resources:VGPU': '1'}),
        ('of a group without resources', 'trait_A:HW_NUMA_ROOT', 'required', {'resources1:VGPU': '1'}),
        ('a word', f'trait:{TYPE_36}', 'wanted', {'resources:VGPU': '1'}),
        ('of one of two classes', f'trait:{TYPE_36}', 'required', {'resources:VGPU': '1', 'resources:CUSTOM_A': '1'}),
        ('of namespaces', f'trait:{TYPE_36}', 'required', {'hw:pmem': '4GB'}),
        ('of a group of namespaces', 'trait1:CUSTOM_GOLD', 'required', {f'resources1:{A}': '1'}),
        ('of a group of namespaces, forbidden', 'trait_A:CUSTOM_GOLD', 'forbidden', {f'resources_A:{A}': '1'}),
        ('of functions', 'trait:CUSTOM_GOLD', 'required', {ALIAS: 'qat:1'}),
        ('other providers for each group', 'group_policy', 'isolate', {'resources1:VGPU': '1', 'resources2:VGPU': '1'}),
        names=('name', 'value', 'beside'))

    def test_are_refused_by_name(self):
        error = self.assertRaises(exception.BadRequest, objects.DeviceRequest.from_extra_specs,
                                  {**self.beside, self.name: self.value}, aliases=ALIASES)
        self.assertEqual((self.name, self.value), (error.where, error.value))


class GroupTestCase(base.TestCase):
    """The devices of a group come from one provider, and without a scheduler nobody has chosen it."""

    def test_of_several_devices_is_refused_by_name(self):
        for specs, group in (({'resources1:VGPU': '2'}, 'resources1'), ({'resources_A:VGPU': '2'}, 'resources_A'),
                             ({'resources1:VGPU': '1', 'resources1:CUSTOM_A': '1'}, 'resources1'),
                             ({'resources1:VGPU': '2', f'trait1:{TYPE_36}': 'required'}, 'resources1')):
            error = self.assertRaises(exception.BadRequest, objects.DeviceRequest.from_extra_specs, specs)
            self.assertEqual(group, error.where)

    def test_of_one_device_or_of_namespaces_of_the_node_is_served(self):
        for specs in ({'resources1:VGPU': '1', 'resources2:VGPU': '1', 'resources1:PCPU': '4'}, {'resources:VGPU': '2'},
                      {'resources1:CUSTOM_PMEM_NAMESPACE_4GB': '2'}):
            self.assertEqual(2, sum(one.amount for one in objects.DeviceRequest.from_extra_specs(specs).wanted))


class OlderPeerTestCase(base.TestCase):
    """A request for a peer that knows neither choices nor the policy ``socket``."""

    def test_gets_a_stricter_policy(self):
        request = objects.DeviceRequest.of(('VGPU', 1), numa_nodes=[0], numa_affinity_policy='socket')
        known = request.obj_to_primitive(target_version='1.0')
        read = objects.DeviceRequest.obj_from_primitive(known)
        self.assertEqual(('1.0', '1.0'), (known['versioned_object.version'],
                                          known['versioned_object.data']['wanted'][0]['versioned_object.version']))
        self.assertEqual(('required', [0], 'VGPU'), (read.numa_affinity_policy, read.numa_nodes,
                                                     read.wanted[0].resource_class))

    def test_gets_no_request_for_which_any_device_would_do(self):
        request = objects.DeviceRequest.from_extra_specs({ALIAS: 'qat:1'}, aliases=ALIASES)
        error = self.assertRaises(exception.BadRequest, request.obj_to_primitive, target_version='1.0')
        self.assertEqual('wanted.choices', error.where)

    def test_gets_no_request_for_which_any_port_would_do(self):
        request = objects.DeviceRequest.of().with_ports([samples.network_port()])
        for version in ('1.0', '1.1'):
            error = self.assertRaises(exception.BadRequest, request.obj_to_primitive, target_version=version)
            self.assertEqual('wanted.networks', error.where)
        known = objects.DeviceRequest.of(('VGPU', 1)).obj_to_primitive(target_version='1.1')
        [wanted] = objects.DeviceRequest.obj_from_primitive(known).wanted
        self.assertEqual(('1.1', []), (known['versioned_object.version'], wanted.networks))

    def test_may_have_written_one(self):
        known = objects.DeviceRequest.of(('VGPU', 2)).obj_to_primitive(target_version='1.0')
        [wanted] = objects.DeviceRequest.obj_from_primitive(known).wanted
        self.assertEqual((2, [], None), (wanted.amount, wanted.choices, wanted.numa_affinity_policy))


class PortTestCase(base.TestCase):

    def test_ports_come_after_the_devices_each_of_the_class_of_its_network(self):
        before = objects.DeviceRequest.of(('VGPU', 1), numa_nodes=[1], numa_affinity_policy='required')
        request = before.with_ports([samples.network_port(), objects.NetworkPort(
            physical_network='left-hand net', mac='52:54:00:aa:bb:02')])
        self.assertEqual([('VGPU', 1), ('CUSTOM_PCI_NETWORK_PHYSNET1', 1), ('CUSTOM_PCI_NETWORK_LEFT_HAND_NET', 1)],
                         [(one.resource_class, one.amount) for one in request.wanted])
        self.assertEqual(([1], 'required', 1), (request.numa_nodes, request.numa_affinity_policy, len(before.wanted)))
        [port] = request.wanted[2].networks
        self.assertEqual(('left-hand net', '52:54:00:aa:bb:02', 0, False), port.as_port())

    def test_a_class_and_a_provider_of_its_own(self):
        wanted = objects.RequestedDevices.of_port(samples.network_port(), samples.PROVIDER, 'CUSTOM_FAST')
        self.assertEqual(('CUSTOM_FAST', samples.PROVIDER), (wanted.resource_class, wanted.provider_uuid))

    def test_a_network_that_placement_cannot_count(self):
        for name in ('', 'x' * 255):
            port = objects.NetworkPort(physical_network=name, mac='52:54:00:aa:bb:02')
            error = self.assertRaises(exception.BadRequest, objects.RequestedDevices.of_port, port)
            self.assertEqual(('port.physical_network', name), (error.where, error.value))
