"""Names in the order in which people count."""

from __future__ import annotations

from devicetrack.pictures import natural
from devicetrack.tests import base


class KeyTestCase(base.TestCase):

    def test_names_come_as_people_count_and_what_is_not_there_comes_last(self) -> None:
        names = ['ns10', 'compute-10', None, 'ns2', 'compute-7', '0000:81:00.2', 'compute-7b', 'a']
        self.assertEqual(['0000:81:00.2', 'a', 'compute-7', 'compute-7b', 'compute-10', 'ns2', 'ns10', None],
                         sorted(names, key=natural.key))
        self.assertEqual(natural.key(None), natural.key(''))

    def test_numbers_come_before_names(self) -> None:
        self.assertEqual([2, 10.5, '11', 'a'], sorted(['a', '11', 10.5, 2], key=natural.key))

    def test_the_digits_of_a_uuid_are_no_number(self) -> None:
        first, second = 'mdev/3097780a-6234-4db6-9d43-4af6a11c7977', 'mdev/3802aab1-c837-4a35-a272-44f417b3b7c8'
        self.assertEqual([first, second], sorted([second, first], key=natural.key))
