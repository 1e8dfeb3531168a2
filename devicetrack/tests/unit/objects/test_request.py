"""What is asked: requests, and the extra specs that they may come from."""

from devicetrack import exception
from devicetrack import objects
from devicetrack.objects import extra_specs
from devicetrack.tests import base
from devicetrack.tests.unit.objects import samples

A, B = 'CUSTOM_PMEM_NAMESPACE_4GB', 'CUSTOM_PMEM_NAMESPACE_SMALL'


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
        names=('specs', 'wanted'))

    def test_wants(self):
        request = objects.DeviceRequest.from_extra_specs(self.specs)
        self.assertEqual(self.wanted, [(one.resource_class, one.amount) for one in request.wanted])

    def test_takes_the_policy_and_the_guests_nodes(self):
        request = objects.DeviceRequest.from_extra_specs(
            {**self.specs, 'hw:pci_numa_affinity_policy': 'required'}, numa_nodes=[1])
        self.assertEqual(([1], 'required'), (request.numa_nodes, request.numa_affinity_policy))
