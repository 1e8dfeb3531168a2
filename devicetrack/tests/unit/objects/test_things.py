"""The names of things on a host."""

from __future__ import annotations

from devicetrack.objects import things
from devicetrack.tests import base


class InWordsTestCase(base.TestCase):

    def test_tokens_are_words_for_people(self) -> None:
        for token, words in ((things.of_function('0000:84:00.0'), 'function 0000:84:00.0'),
                             (things.of_group(17), 'IOMMU group 17'), ('block:259:0', '/dev/block/259:0'),
                             ('char:252:1', '/dev/char/252:1'), ('path:/dev/dax0.0', '/dev/dax0.0'),
                             ('file:65024:131', 'the same file'), ('nvm:1b36:S1', 'nvm:1b36:S1'), ('pf', 'pf')):
            self.assertEqual(words, things.in_words(token))


class AddressInTestCase(base.TestCase):

    def test_addresses_of_pci_devices_have_one_form(self) -> None:
        for text, wanted in (('0000:84:00.0', '0000:84:00.0'), ('0000:AF:1F.7', '0000:af:1f.7'),
                             ('pci_0000_84_00_0', '0000:84:00.0'), ('10000:01:00.0', '10000:01:00.0'),
                             ('00000042:00:00.0', '0042:00:00.0'),
                             ('84:00.0', None), ('0000:84:20.0', None), ('0000:84:00.8', None), ('mtty_mtty', None),
                             ('', None), ('0000:84:00.0\n', None)):
            self.assertEqual(wanted, things.address_in(text), text)
