"""The aliases of PCI functions: what operators write, and every mistake in it."""

from __future__ import annotations

import json
from typing import Any

from devicetrack import exception
from devicetrack.objects.pci_alias import PCIAlias
from devicetrack.objects.pci_alias import PCIChoice
from devicetrack.tests import base
from devicetrack.virt.libvirt.kinds import pci_options

QAT = {'name': 'qat', 'vendor_id': '8086', 'product_id': '0443'}
CLASS = 'CUSTOM_PCI_8086_0443'


def choice(resource_class: str = CLASS, **more: Any) -> PCIChoice:
    return PCIChoice(resource_class, **{'vendor_id': '8086', 'product_id': '0443', **more})


def read(aliases: list[Any]) -> Any:
    return pci_options.read_aliases([alias if isinstance(alias, str) else json.dumps(alias) for alias in aliases])


class AliasTestCase(base.TestCase):

    scenarios = base.table(
        ('a product', {}, PCIAlias('qat', (choice(),), 'legacy')),
        ('blanks around the name', {'name': ' qat '}, PCIAlias('qat', (choice(),), 'legacy')),
        ('in capitals', {'product_id': '0ABC'}, PCIAlias(
            'qat', (choice('CUSTOM_PCI_8086_0ABC', product_id='0abc'),), 'legacy')),
        ('a class', {'resource_class': 'GPU_VF'}, PCIAlias('qat', (choice('CUSTOM_GPU_VF'),), 'legacy')),
        ('an empty class', {'resource_class': ''}, PCIAlias('qat', (choice(),), 'legacy')),
        ('a capability', {'capability_type': 'pci'}, PCIAlias('qat', (choice(),), 'legacy')),
        ('traits', {'traits': 'blue,big'},
         PCIAlias('qat', (choice(traits=frozenset({'CUSTOM_BLUE', 'CUSTOM_BIG'})),), 'legacy')),
        *[(f'live_migratable {word}', {'live_migratable': word},
           PCIAlias('qat', (choice(live_migratable=can),), 'legacy'))
          for word, can in (('yes', True), ('no', False))],
        *[(kind, {'device_type': kind}, PCIAlias('qat', (choice(),), 'legacy', kind))
          for kind in ('type-PCI', 'type-PF', 'type-VF')],
        *[(policy, {'numa_policy': policy}, PCIAlias('qat', (choice(),), policy))
          for policy in ('required', 'legacy', 'preferred', 'socket')],
        names=('keys', 'alias'))

    def test_says(self) -> None:
        self.assertEqual({'qat': self.alias}, read([{**QAT, **self.keys}]))


class NamesTestCase(base.TestCase):

    def test_none_are_none(self) -> None:
        self.assertEqual({}, read([]))

    def test_a_class_needs_no_product(self) -> None:
        self.assertEqual(('CUSTOM_NVME',), read([{'name': 'nvme', 'resource_class': 'nvme'}])['nvme'].resource_classes)

    def test_objects_of_one_name_are_choices(self) -> None:
        found = read([QAT, {'name': 'gpu', 'resource_class': 'PGPU'}, {**QAT, 'product_id': '0442', 'traits': 'old'}])
        self.assertEqual(['qat', 'gpu'], list(found))
        other = choice('CUSTOM_PCI_8086_0442', product_id='0442', traits=frozenset({'CUSTOM_OLD'}))
        self.assertEqual((choice(), other),
                         found['qat'].choices)
        self.assertEqual((CLASS, 'CUSTOM_PCI_8086_0442'), found['qat'].resource_classes)

    def test_choices_of_one_class_are_of_one_class(self) -> None:
        self.assertEqual(('CUSTOM_QAT',), read([{**QAT, 'resource_class': 'qat'}, {
            **QAT, 'product_id': '0442', 'resource_class': 'CUSTOM_QAT'}])['qat'].resource_classes)


class MistakeTestCase(base.TestCase):

    scenarios = base.table(
        ('no JSON', ['qat'], 'entry 1: it is no JSON'),
        ('a list', [[QAT]], 'entry 1: it is no object: write {"KEY": "VALUE", …}'),
        ('no name', [{'resource_class': 'X'}], "entry 1, key 'name': it is missing"),
        ('a name of blanks', [{**QAT, 'name': ' '}], "entry 1, key 'name': it is missing"),
        ('a name that is no text', [{**QAT, 'name': 7}], "key 'name': 7 is no text"),
        ('a name too long', [{**QAT, 'name': 'x' * 257}], 'more than 256 characters'),
        ('a name with a colon', [{**QAT, 'name': 'a:b'}], 'no flavor can ask for a name with a colon or a comma'),
        ('a slip in a key', [QAT, {**QAT, 'device': '0443'}], "entry 2, key 'device': there is no such key"),
        ('no vendor', [{'name': 'x', 'product_id': '0443'}], "key 'vendor_id': it is missing: write vendor_id and"),
        ('no product', [{'name': 'x', 'vendor_id': '8086'}], "key 'product_id': it is missing"),
        ('nothing but traits', [{'name': 'x', 'traits': 'blue'}], "key 'vendor_id': it is missing"),
        ('every vendor', [{**QAT, 'vendor_id': '*'}], "key 'vendor_id': the id '*' is no hexadecimal number"),
        ('another type', [{**QAT, 'device_type': 'vdpa'}], "key 'device_type': 'vdpa' is not known: write one of "
                                                           'type-PCI, type-PF, type-VF'),
        ('another policy', [{**QAT, 'numa_policy': 'none'}], "key 'numa_policy': 'none' is not known"),
        ('another capability', [{**QAT, 'capability_type': 'usb'}], "key 'capability_type': 'usb' is not known"),
        ('perhaps', [{**QAT, 'live_migratable': 'perhaps'}], 'neither yes nor no'),
        ('two types', [{**QAT, 'device_type': 'type-PF'}, {**QAT, 'device_type': 'type-VF'}],
         "entry 2, key 'device_type': it is type-VF, but type-PF in the first object named 'qat'"),
        ('a type and none', [{**QAT, 'device_type': 'type-PF'}, QAT], "entry 2, key 'device_type': it is missing, but"),
        ('two policies', [QAT, {'name': 'y', 'resource_class': 'Y'}, {**QAT, 'numa_policy': 'required'}],
         "entry 3, key 'numa_policy': it is required, but legacy in the first object"),
        ('two policies that are one here', [{**QAT, 'numa_policy': 'socket'}, {**QAT, 'numa_policy': 'preferred'}],
         "entry 2, key 'numa_policy': it is preferred, but socket"),
        names=('aliases', 'reason'))

    def test_is_named_with_its_place(self) -> None:
        error = self.assertRaises(exception.InvalidConfiguration, read, self.aliases)
        self.assertEqual('[pci] alias', error.option)
        self.assertIn(self.reason, error.reason)
