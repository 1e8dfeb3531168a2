"""The options of PCI functions: what operators write, and every mistake in it."""

from __future__ import annotations

import json
import os
from typing import Any

from oslo_config import cfg

from devicetrack import exception
from devicetrack.conf import opts
from devicetrack.tests import base
from devicetrack.tests.unit.virt.pci_functions import EVERY
from devicetrack.tests.unit.virt.pci_functions import GPU
from devicetrack.tests.unit.virt.pci_functions import NVME
from devicetrack.tests.unit.virt.pci_functions import OTHER_VF
from devicetrack.tests.unit.virt.pci_functions import PF
from devicetrack.tests.unit.virt.pci_functions import VF
from devicetrack.virt.libvirt.kinds import pci_options

GPUS = {'vendor_id': '10de', 'product_id': '25b6'}


def as_written(values: list[Any]) -> list[str]:
    return [value if isinstance(value, str) else json.dumps(value) for value in values]


class OptionsTestCase(base.TestCase):

    def read(self, specs: list[Any], functions: Any = ('all',), aliases: Any = (),
             cleaning: Any = ()) -> pci_options.PCIOptions:
        self.configuration.set('pci', device_spec=as_written(specs), alias=as_written(aliases))
        self.configuration.set('devicetrack_pci', functions=as_written(functions), cleaning=as_written(cleaning))
        return pci_options.read(self.conf)

    def spec(self, **keys: Any) -> pci_options.DeviceSpec:
        [spec] = self.read([keys]).specs
        return spec


class SpecTestCase(OptionsTestCase):

    scenarios = base.table(
        ('nothing', {}, {}),
        ('a network', {'physical_network': 'physnet1', 'trusted': 'true'},
         {'physical_network': 'physnet1', 'trusted': True}),
        ('no network', {'physical_network': None}, {}),
        ('not managed', {'managed': 'no'}, {'managed': False}),
        ('managed', {'managed': 'YES'}, {'managed': True}),
        ('managed by JSON', {'managed': False}, {'managed': False}),
        ('nothing said of it', {'managed': None}, {'managed': True}),
        ('it can migrate', {'live_migratable': 'yes'}, {'live_migratable': True}),
        ('for one guest', {'one_time_use': 'true'}, {'one_time_use': True}),
        ('not managed remotely', {'remote_managed': 'false'}, {}),
        ('a class', {'resource_class': 'GPU_VF'}, {'resource_class': 'CUSTOM_GPU_VF'}),
        ('an empty class', {'resource_class': ''}, {}),
        ('traits', {'traits': 'HW_GPU_API_VULKAN,big'}, {'traits': frozenset({'HW_GPU_API_VULKAN', 'CUSTOM_BIG'})}),
        ('no traits', {'traits': ''}, {}),
        names=('keys', 'fields'))

    def test_says(self) -> None:
        spec = self.spec(**GPUS, **self.keys)
        self.assertEqual(pci_options.DeviceSpec(spec.match)._replace(**self.fields), spec)


class ClassAndTraitsTestCase(OptionsTestCase):

    def test_a_function_is_counted_by_the_specs_class_or_by_its_product(self) -> None:
        self.assertEqual('PGPU', pci_options.resource_class_of(self.spec(resource_class='pgpu'), GPU))
        self.assertEqual('CUSTOM_PCI_10DE_25B6', pci_options.resource_class_of(self.spec(vendor_id='10de'), GPU))

    def test_a_provider_has_the_traits_that_the_scheduler_asks_for(self) -> None:
        self.assertEqual({'COMPUTE_MANAGED_PCI_DEVICE'}, pci_options.traits_of(self.spec()))
        self.assertEqual({'COMPUTE_MANAGED_PCI_DEVICE', 'CUSTOM_BIG', 'HW_PCI_LIVE_MIGRATABLE', 'HW_PCI_ONE_TIME_USE'},
                         pci_options.traits_of(self.spec(traits='big', live_migratable='yes', one_time_use='yes')))

    def test_classes_are_known_where_a_spec_names_them(self) -> None:
        read = self.read([GPUS, {'vendor_id': '8086'}, {'resource_class': 'NVME'},
                          {'vendor_id': '15b3', 'product_id': '101e', 'physical_network': 'one'}])
        self.assertEqual({'CUSTOM_PCI_10DE_25B6', 'CUSTOM_NVME', 'CUSTOM_PCI_NETWORK_ONE'}, read.resource_classes)


class SpecOfTestCase(OptionsTestCase):

    def test_the_first_that_matches_counts(self) -> None:
        read = self.read([[{'address': '0000:0a:00.0', 'resource_class': 'first'}, {'vendor_id': '10de'}],
                          {'vendor_id': '10de', 'product_id': '*', 'resource_class': 'third'}])
        self.assertEqual(read.specs[0], read.spec_of(GPU))
        self.assertEqual(read.specs[1], read.spec_of(GPU._replace(address='0000:0b:00.0')))
        self.assertIsNone(read.spec_of(NVME))

    def test_the_interface_of_a_pf_means_its_vfs(self) -> None:
        read = self.read([{'devname': 'enp3s0', 'product_id': '10ca'}])
        self.assertEqual(read.specs[0], read.spec_of(VF))
        self.assertIsNone(read.spec_of(PF))


class FunctionsTestCase(OptionsTestCase):

    SPECS = [{'vendor_id': '8086', 'product_id': '10c9', 'physical_network': 'one'}, {'vendor_id': '8086'}, GPUS]

    scenarios = base.table(
        ('none', [], ()),
        ('all', ['all'], (GPU, VF, OTHER_VF)),
        ('all, with blanks', [' all '], (GPU, VF, OTHER_VF)),
        ('a vendor', [{'vendor_id': '10de'}], (GPU,)),
        ('what no spec matches', [{'vendor_id': '144d'}], ()),
        ('several', [{'vendor_id': '10de'}, {'address': '*:*:10.2'}], (GPU, OTHER_VF)),
        ('a list', [[{'vendor_id': '10de'}, {'address': '*:*:10.2'}]], (GPU, OTHER_VF)),
        ('the VFs of a PF', [{'address': '0000:03:00.0'}], (VF, OTHER_VF)),
        ('of the interface of a PF', [{'devname': 'enp3s0'}], (VF, OTHER_VF)),
        names=('functions', 'ours'))

    def test_are_ours_of_those_with_a_spec_and_without_a_network(self) -> None:
        read = self.read(self.SPECS, self.functions)
        self.assertEqual(self.ours, tuple(one for one in EVERY if read.ours(one)))

    def test_have_their_spec(self) -> None:
        read = self.read(self.SPECS, self.functions)
        self.assertEqual({read.spec_of(one) for one in self.ours},
                         {read.ours(one) for one in self.ours})


class NoneOfOursTestCase(OptionsTestCase):

    def test_what_the_service_has_of_its_own_is_not_read(self) -> None:
        read = self.read(['no JSON', {'remote_managed': 'true'}], (), ['no JSON'])
        self.assertEqual(pci_options.PCIOptions(), read)
        self.assertIsNone(read.aliases)
        self.assertEqual(frozenset(), read.resource_classes)

    def test_it_is_the_default(self) -> None:
        conf = cfg.ConfigOpts()
        conf([], default_config_files=[], default_config_dirs=[])
        self.assertEqual(pci_options.PCIOptions(), pci_options.read(conf))


class RegisteredTestCase(base.TestCase):

    def file(self, *lines: str) -> str:
        path = os.path.join(self.temp_dir(), 'service.conf')
        with open(path, 'w', encoding='utf-8') as file:
            file.write('\n'.join((*lines, '')))
        return path

    def test_a_file_of_a_service_is_read(self) -> None:
        conf = cfg.ConfigOpts()
        opts.register_options(conf)
        conf(['--config-file', self.file(
            '[pci]', 'device_spec = {"vendor_id": "10de",', '    "product_id": "25b6"}',
            'device_spec = [{"address": {"bus": "0[3-4]"}}]',
            'alias = {"name": "gpu", "vendor_id": "10de", "product_id": "25b6", "numa_policy": "socket"}',
            '[devicetrack_pci]', 'functions = {"vendor_id": "10de"}', 'functions = {"address": "*:03:*.*"}',
            'cleaning = {"policy": "none"}')])
        read = pci_options.read(conf)
        self.assertEqual((GPU, PF, VF, OTHER_VF), tuple(one for one in EVERY if read.ours(one)))
        assert read.aliases is not None
        self.assertEqual(['gpu'], list(read.aliases))
        self.assertEqual('none', read.cleaning_of(NVME).name)

    def test_names_of_older_files_are_read(self) -> None:
        conf = cfg.ConfigOpts()
        conf([], default_config_files=[self.file(
            '[DEFAULT]', 'pci_alias = {"name": "gpu", "resource_class": "PGPU"}',
            '[pci]', 'passthrough_whitelist = {"vendor_id": "10de"}', '[devicetrack_pci]', 'functions = all')],
            default_config_dirs=[])
        read = pci_options.read(conf)
        self.assertEqual((GPU,), tuple(one for one in EVERY if read.ours(one)))
        self.assertEqual(['gpu'], list(read.aliases or ()))

    def test_what_the_service_registered_is_read(self) -> None:
        conf = cfg.ConfigOpts()
        conf.register_opt(cfg.MultiStrOpt('device_spec', default=['{"vendor_id": "10de"}'], help='Theirs.'), 'pci')
        conf.register_opt(cfg.MultiStrOpt('alias', default=[], help='Theirs.'), 'pci')
        conf([], default_config_files=[self.file('[devicetrack_pci]', 'functions = all')], default_config_dirs=[])
        self.assertEqual((GPU,), tuple(one for one in EVERY if pci_options.read(conf).ours(one)))


class MistakeTestCase(OptionsTestCase):

    scenarios = base.table(
        ('no JSON', [GPUS, '{"vendor_id": 10de}'], 'entry 2: it is no JSON'),
        ('nested too deeply', ['[' * 100_000], 'entry 1: it is no JSON'),
        ('a text', ['"all"'], 'entry 1: it is no object: write {"KEY": "VALUE", …}, or a list'),
        ('in a list', [GPUS, [GPUS, '10de']], 'entry 2, object 2 of its list: "10de" is no object'),
        ('a slip in a key', [{'vendor': '10de'}], "entry 1, key 'vendor': there is no such key: remove it, or write "
                                                  'one of address, devname'),
        ('in an object of a list', [GPUS, [GPUS, {'vendor_id': 'xyz'}]],
         "entry 2, object 2 of its list, key 'vendor_id': the id 'xyz' is no hexadecimal number"),
        ('neither yes nor no', [{'managed': 'maybe'}], "key 'managed': \"maybe\" is neither yes nor no: write"),
        ('nor is this', [{'live_migratable': []}], "key 'live_migratable': [] is neither yes nor no"),
        ('a network that is no text', [{'physical_network': 1}], "key 'physical_network': 1 is no text"),
        ('a class that is none', [{'resource_class': 'CUSTOM_A-B'}], "key 'resource_class': 'CUSTOM_A-B' would be"),
        ('a class that is no text', [{'resource_class': 7}], "key 'resource_class': 7 is no text"),
        ('a trait that is none', [{'traits': 'a,,b'}], "key 'traits': a name is empty"),
        ('managed remotely', [GPUS, {'vendor_id': '15b3', 'remote_managed': 'true'}],
         "entry 2, key 'remote_managed': this library hands out no functions that a remote network backend manages"),
        names=('specs', 'reason'))

    def test_in_a_spec_is_named_with_its_place(self) -> None:
        error = self.assertRaises(exception.InvalidConfiguration, self.read, self.specs)
        self.assertEqual('[pci] device_spec', error.option)
        self.assertIn(error.value, as_written(self.specs))
        self.assertIn(self.reason, error.reason)


class FunctionsMistakeTestCase(OptionsTestCase):

    scenarios = base.table(
        ('every one by an object', [{}], 'entry 1: it names every function: write "all" alone'),
        ('every one by wildcards', [GPUS, {'address': '*:*:*.*'}], 'entry 2: it names every function'),
        ('all beside others', [GPUS, 'all'], '"all" is there with other entries'),
        ('all twice', ['all', 'all'], '"all" is there with other entries'),
        ('another word', ['some'], 'entry 1: it is no JSON'),
        ('a key of specs', [{'vendor_id': '10de', 'managed': 'no'}], "entry 1, key 'managed': there is no such key"),
        names=('functions', 'reason'))

    def test_is_named_with_its_place(self) -> None:
        error = self.assertRaises(exception.InvalidConfiguration, self.read, [GPUS], self.functions)
        self.assertEqual('[devicetrack_pci] functions', error.option)
        self.assertIn(self.reason, error.reason)


class CleaningTestCase(OptionsTestCase):

    scenarios = base.table(
        ('nothing said', [], {NVME: 'person'}),
        ('for every function', [{'policy': 'zero'}], dict.fromkeys(EVERY, 'zero')),
        ('the first counts', [{'vendor_id': '144d', 'policy': 'zero'}, {'policy': 'person'}],
         {**dict.fromkeys(EVERY, 'person'), NVME: 'zero'}),
        ('a list', [[{'vendor_id': '144d', 'policy': 'zero'}, {'vendor_id': '10de', 'policy': 'person'}]],
         {NVME: 'zero', GPU: 'person'}),
        ('the VFs of a PF', [{'address': '0000:03:00.0', 'policy': 'zero'}],
         {NVME: 'person', **dict.fromkeys((PF, VF, OTHER_VF), 'zero')}),
        ('of the interface of a PF', [{'devname': 'enp3s0', 'policy': 'person'}],
         dict.fromkeys((NVME, PF, VF, OTHER_VF), 'person')),
        ('nothing for a disk', [{'vendor_id': '144d', 'policy': 'none'}], {}),
        names=('cleaning', 'policies'))

    def test_is(self) -> None:
        read = self.read([], cleaning=self.cleaning)
        found = {one: read.cleaning_of(one).name for one in EVERY}
        self.assertEqual(self.policies, {one: policy for one, policy in found.items() if policy != 'none'})


class PolicyTestCase(OptionsTestCase):

    scenarios = base.table(
        ('a format', {'policy': 'nvme-format'}, ('nvme-format', 'user-data', '', 3600)),
        ('a cryptographic one', {'policy': 'nvme-format', 'erase': 'cryptographic', 'timeout_s': 9},
         ('nvme-format', 'cryptographic', '', 9)),
        ('sanitize', {'policy': 'nvme-sanitize'}, ('nvme-sanitize', 'block', '', 86400)),
        ('sanitize otherwise', {'policy': 'nvme-sanitize', 'erase': 'overwrite', 'timeout_s': 9},
         ('nvme-sanitize', 'overwrite', '', 9)),
        ('a program', {'policy': 'program', 'program': '/bin/x', 'timeout_s': 7}, ('program', '', '/bin/x', 7)),
        names=('rule', 'policy'))

    def test_is(self) -> None:
        self.assertEqual(self.policy, tuple(self.read([], cleaning=[self.rule]).cleaning_of(NVME)))


class OneTimeUseTestCase(OptionsTestCase):

    def test_is_for_a_person_whatever_the_policy(self) -> None:
        read = self.read([{'vendor_id': '144d', 'one_time_use': 'yes'}, {}], cleaning=[{'policy': 'none'}])
        self.assertEqual(['person', 'none'], [read.cleaning_of(one).name for one in (NVME, GPU)])


class ResetTestCase(OptionsTestCase):

    def test_what_cannot_be_reset_is_for_a_person(self) -> None:
        function = GPU._replace(reset_methods=())
        self.assertEqual('person', self.read([]).cleaning_of(function).name)
        self.assertEqual('none', self.read([], cleaning=[{'policy': 'none'}]).cleaning_of(function).name)

    def test_a_reset_of_its_bus_counts_for_a_function_that_is_alone_there(self) -> None:
        read, names = self.read([]), []
        for methods in (('bus',), ('cxl_bus', 'bus'), ('flr', 'bus')):
            function = GPU._replace(reset_methods=methods)
            names += [read.cleaning_of(function, lambda _address, alone=alone: alone).name
                      for alone in (True, False)]
        self.assertEqual(['none', 'person', 'none', 'person', 'none', 'none'], names)


class CleaningMistakeTestCase(OptionsTestCase):

    scenarios = base.table(
        ('no policy', [{'vendor_id': '144d'}], "entry 1, key 'policy': it is missing: write one of none, zero"),
        ('another policy', [{'policy': 'none'}, {'policy': 'erase'}], "entry 2, key 'policy': 'erase' is not known"),
        ('a policy that is no text', [{'policy': 0}], "key 'policy': 0 is no text"),
        ('a program', [{'policy': 'zero', 'program': '/bin/x'}], "key 'program': the policy zero has none: remove it"),
        ('no program', [{'policy': 'program'}], "key 'program': write the absolute path of a program"),
        ('a relative program', [{'policy': 'program', 'program': 'x'}], "key 'program': write the absolute path"),
        ('an erasure', [{'policy': 'blkdiscard', 'erase': 'block'}], "key 'erase': the policy blkdiscard has none"),
        ('another erasure', [{'policy': 'nvme-format', 'erase': 'block'}], "key 'erase': 'block' is not known"),
        ('a time of another policy', [{'policy': 'zero', 'timeout_s': 9}], "key 'timeout_s': the policy zero has none"),
        ('a time that is a text', [{'policy': 'nvme-format', 'timeout_s': '9'}], '"9" is not a number of seconds'),
        ('no time', [{'policy': 'nvme-format', 'timeout_s': 0}], "key 'timeout_s': 0 is not a number of seconds"),
        ('a slip in a key', [{'policy': 'zero', 'vendor': '144d'}], "key 'vendor': there is no such key"),
        names=('cleaning', 'reason'))

    def test_is_named_with_its_place(self) -> None:
        error = self.assertRaises(exception.InvalidConfiguration, self.read, [], (), (), self.cleaning)
        self.assertEqual('[devicetrack_pci] cleaning', error.option)
        self.assertIn(self.reason, error.reason)
