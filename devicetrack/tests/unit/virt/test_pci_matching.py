"""Which PCI functions the match part of an option means."""

from __future__ import annotations

import json
from typing import Any

from devicetrack import exception
from devicetrack.tests import base
from devicetrack.tests.unit.virt.pci_functions import EVERY
from devicetrack.tests.unit.virt.pci_functions import function
from devicetrack.tests.unit.virt.pci_functions import GPU
from devicetrack.tests.unit.virt.pci_functions import NVME
from devicetrack.tests.unit.virt.pci_functions import OTHER_VF
from devicetrack.tests.unit.virt.pci_functions import PF
from devicetrack.tests.unit.virt.pci_functions import VF
from devicetrack.virt.libvirt.kinds import json_entries
from devicetrack.virt.libvirt.kinds import pci_matching


def read(match: Any) -> pci_matching.Match:
    [entry] = json_entries.read('[pci] device_spec', [json.dumps(match)])
    return pci_matching.read(entry)


class MatchTestCase(base.TestCase):

    scenarios = base.table(
        ('nothing said', {}, EVERY),
        ('every vendor', {'vendor_id': '*', 'product_id': '*'}, EVERY),
        ('a vendor', {'vendor_id': '8086'}, (PF, VF, OTHER_VF)),
        ('a product', {'vendor_id': '8086', 'product_id': '10ca'}, (VF, OTHER_VF)),
        ('ids in capitals and with a prefix', {'vendor_id': ' 0x10DE ', 'product_id': '25B6'}, (GPU,)),
        ('a product of another vendor', {'vendor_id': '10de', 'product_id': '10ca'}, ()),
        ('an empty address', {'address': ''}, EVERY),
        ('no address', {'address': None}, EVERY),
        ('an address without expressions', {'address': {}}, EVERY),
        ('an address', {'address': '0000:81:00.0'}, (NVME,)),
        ('in capitals', {'address': '0000:0A:00.0'}, (GPU,)),
        ('without leading zeroes', {'address': '0:a:0.0'}, (GPU,)),
        ('with blanks', {'address': ' 0000 : 0a : 00 . 0 '}, (GPU,)),
        ('wildcards', {'address': '*:0a:00.*'}, (GPU,)),
        ('everything', {'address': '*:*:*.*'}, EVERY),
        ('fields left out', {'address': ':0a:00.'}, (GPU,)),
        ('bus and slot alone', {'address': '0a:00'}, (GPU,)),
        ('a slot alone', {'address': '10'}, (VF, OTHER_VF)),
        ('a function alone', {'address': '.2'}, (OTHER_VF,)),
        ('one star', {'address': '*'}, EVERY),
        ('address and product', {'address': '*:03:*.*', 'product_id': '10c9'}, (PF,)),
        ('the address of a PF means its VFs too', {'address': '0000:03:00.0'}, (PF, VF, OTHER_VF)),
        ('with a product of the VFs alone', {'address': '0000:03:00.0', 'product_id': '10ca'}, (VF, OTHER_VF)),
        ('a PF with a wildcard means it alone', {'address': '*:03:00.0'}, (PF,)),
        ('the address of a VF', {'address': '0000:03:10.0'}, (VF,)),
        ('expressions', {'address': {'domain': '.*', 'bus': '03', 'slot': '10', 'function': '[0-1]'}}, (VF,)),
        ('an expression for the bus alone', {'address': {'bus': '0[3-9]'}}, (PF, VF, OTHER_VF)),
        ('expressions match beginnings', {'address': {'bus': '0'}}, (GPU, PF, VF, OTHER_VF)),
        ('and no middles', {'address': {'bus': 'a'}}, ()),
        ('and small letters', {'address': {'bus': '0A'}}, ()),
        ('an empty expression', {'address': {'bus': ''}}, EVERY),
        ('expressions that spell out a PF mean its VFs too',
         {'address': {'domain': '0000', 'bus': '03', 'slot': '00', 'function': '0'}}, (PF, VF, OTHER_VF)),
        ('expressions that match a PF mean it alone',
         {'address': {'domain': '0000', 'bus': '03', 'slot': '00', 'function': '[0]'}}, (PF,)),
        ('the interface of a PF means its VFs too', {'devname': 'enp3s0'}, (PF, VF, OTHER_VF)),
        ('the interface of a VF', {'devname': 'enp3s0v0'}, (VF,)),
        ('no such interface', {'devname': 'eth0'}, ()),
        ('interface and product', {'devname': 'enp3s0', 'product_id': '10ca'}, (VF, OTHER_VF)),
        ('beside other keys', {'vendor_id': '10de', 'physical_network': 'one'}, (GPU,)),
        names=('match', 'meant'))

    def test_means(self) -> None:
        match = read(self.match)
        self.assertEqual(self.meant, tuple(one for one in EVERY if match.matches(one)))


class LongDomainTestCase(base.TestCase):

    def test_a_domain_of_more_than_four_digits_is_one_address(self) -> None:
        far = function('10000:81:00.0')
        for address, means in (('10000:81:00.0', True), ('*:81:00.0', True), ('0000:81:00.0', False)):
            self.assertEqual(means, read({'address': address}).matches(far), address)


class PhysicalFunctionTestCase(base.TestCase):

    def test_without_its_pf_the_interface_of_a_vf_is_its_own(self) -> None:
        alone = VF._replace(parent=None)
        self.assertFalse(read({'devname': 'enp3s0'}).matches(alone))
        self.assertTrue(read({'devname': 'enp3s0v0'}).matches(alone))


class MistakeTestCase(base.TestCase):

    scenarios = base.table(
        ('an id that is a number', {'vendor_id': 8086}, 'vendor_id', 'in quotation marks'),
        ('an id of five digits', {'vendor_id': '10000'}, 'vendor_id', 'is greater than FFFF'),
        ('an id of other letters', {'product_id': '10cg'}, 'product_id', 'no hexadecimal number'),
        ('a negative id', {'product_id': '-1'}, 'product_id', 'no hexadecimal number'),
        ('an id with an underscore', {'product_id': '1_0'}, 'product_id', 'no hexadecimal number'),
        ('digits of another script', {'product_id': '١٢٣٤'}, 'product_id', 'no hexadecimal number'),
        ('an empty id', {'vendor_id': ''}, 'vendor_id', 'no hexadecimal number'),
        ('address and interface', {'address': '0a:00', 'devname': 'eth0'}, 'devname', 'write one or the other'),
        ('an empty interface', {'devname': ''}, 'devname', 'it is empty'),
        ('an interface that is no text', {'devname': 1}, 'devname', 'in quotation marks'),
        ('an address that is a list', {'address': ['0a:00']}, 'address', 'is no address'),
        ('an address that is false', {'address': False}, 'address', 'is no address'),
        ('too many fields', {'address': '0:0:0:0.0'}, 'address', 'more than three fields'),
        ('two dots', {'address': '0000:0a:00.0.0'}, 'address', "the function '0.0' is no hexadecimal number"),
        ('a bus of three digits', {'address': '0000:100:00.0'}, 'address', 'the bus 100 is greater than FF'),
        ('a slot', {'address': '0000:00:20.0'}, 'address', 'the slot 20 is greater than 1F'),
        ('a function', {'address': '0000:00:00.8'}, 'address', 'the function 8 is greater than 7'),
        ('a domain', {'address': '100000000:00:00.0'}, 'address', 'the domain 100000000 is greater than FFFFFFFF'),
        ('a wildcard beside a digit', {'address': '0000:0*:00.0'}, 'address', "the bus '0*' is no hexadecimal"),
        ('a slip in a field', {'address': {'func': '1'}}, 'address', "'func' is no part of an address"),
        ('no expression', {'address': {'bus': '['}}, 'address', "the bus '[' is no regular expression"),
        ('an expression that is a number', {'address': {'bus': 2}}, 'address', 'the bus 2 is no text'),
        names=('match', 'key', 'reason'))

    def test_is_named_with_its_place(self) -> None:
        error = self.assertRaises(exception.InvalidConfiguration, read, self.match)
        self.assertEqual(('[pci] device_spec', json.dumps(self.match)), (error.option, error.value))
        self.assertTrue(error.reason.startswith(f"entry 1, key '{self.key}': "), error.reason)
        self.assertIn(self.reason, error.reason)
