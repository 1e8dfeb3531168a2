"""What hosts have for devices by what they declare, in one answer and with the reasons."""

from __future__ import annotations

import itertools
import json
import time

from devicetrack.compatibility import matrix
from devicetrack.compatibility import partners
from devicetrack.compatibility.facts import Declaration
from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.facts import Sort
from devicetrack.compatibility.facts import STATELESS
from devicetrack.compatibility.facts import UnknownVersion
from devicetrack.compatibility.facts import Version
from devicetrack.compatibility.host_facts import HostFacts
from devicetrack.compatibility.host_facts import UnreadDeclaration
from devicetrack.compatibility.rules import Rules
from devicetrack.tests import base

MDEV, OTHER, VF = Sort('mdev', 'nvidia-35'), Sort('mdev', 'nvidia-36'), Sort('vf', '558')
OLD, NEW, UNTOLD = Version(2, 0, 0), Version(2, 1, 0), UnknownVersion('no source knows it')
RULES = Rules(require_version=False, crossings=frozenset([(MDEV, VF)]))

VGPU = Facts(MDEV, 'vfio-pci', NEW)
OLDER = VGPU._replace(version=OLD)
UNVERSIONED = VGPU._replace(version=UNTOLD)
OF_ANOTHER_TYPE = VGPU._replace(sort=OTHER)
FUNCTION = VGPU._replace(sort=VF)
PMEM = Facts(Sort('vpmem', '4GB'), '', STATELESS)
UNREAD = UnreadDeclaration(MDEV, 'gpu', 'cannot be read: it is new')
MINOR = 'the guest may have seen version 2.1.0, the destination has the older 2.0.0'
NO_VERSION = 'versions cannot be compared: 2.1.0 at the source, unknown (no source knows it) at the destination'


def declared(*facts: Facts, host: str = 'compute-8', unread: tuple[UnreadDeclaration, ...] = ()) -> HostFacts:
    return HostFacts(host, tuple(Declaration(f'gpu{number}', one) for number, one in enumerate(facts)), unread)


class OutlookTestCase(base.TestCase):

    scenarios = base.table(
        ('the same', [VGPU], [], matrix.YES, VGPU, '', ''),
        ('older', [OLDER], [], matrix.NO, None, MINOR, ''),
        ('one of two', [OLDER, VGPU], [], matrix.YES, VGPU, '', ''),
        ('an option allows it', [OLDER, UNVERSIONED], [], matrix.NOTED, UNVERSIONED, '', NO_VERSION),
        ('without notes before with them', [UNVERSIONED, VGPU], [], matrix.YES, VGPU, '', ''),
        ('across kinds', [OF_ANOTHER_TYPE, FUNCTION], [], matrix.NOTED, FUNCTION, '',
         'mdev nvidia-35 and vf 558 are of different kinds'),
        ('two that do not do', [OLDER, VGPU._replace(api='vfio-ap')], [], matrix.NO, None,
         f'{MINOR} | api is vfio-pci at the source, vfio-ap at the destination', ''),
        ('other types', [OF_ANOTHER_TYPE, PMEM], [], matrix.NO, None,
         'the destination declares no mdev nvidia-35: it declares mdev nvidia-36', ''),
        ('other types of a kind that cannot move', [OF_ANOTHER_TYPE._replace(obstacle='QEMU is too old')], [],
         matrix.NO, None,
         'the destination declares no mdev nvidia-35: it declares mdev nvidia-36; at the destination, QEMU is too old',
         ''),
        ('across kinds, and too old', [FUNCTION._replace(version=OLD)], [], matrix.NO, None, f'vf 558: {MINOR}', ''),
        ('other kinds', [PMEM], [], matrix.NO, None,
         'the destination declares no mdev nvidia-35: it declares vpmem 4GB', ''),
        ('nothing', [], [], matrix.UNKNOWN, None, 'the host declares nothing', ''),
        ('what cannot be read', [OLDER], [UNREAD], matrix.UNKNOWN, None, UNREAD.problem, ''),
        ('nothing but what cannot be read', [], [UNREAD._replace(sort=PMEM.sort)], matrix.UNKNOWN, None,
         UNREAD.problem, ''),
        ('what cannot be read and does not matter', [OLDER], [UNREAD._replace(sort=PMEM.sort)], matrix.NO, None,
         MINOR, ''),
        ('what cannot be read, of a type that it may cross to', [OLDER], [UNREAD._replace(sort=VF)], matrix.UNKNOWN,
         None, UNREAD.problem, ''),
        ('what cannot be read, and is not needed', [VGPU], [UNREAD], matrix.YES, VGPU, '', ''),
        names=('there', 'unread', 'answer', 'partner', 'reasons', 'notes'))

    def test_outlook(self) -> None:
        host = declared(*self.there, unread=tuple(self.unread))
        found = matrix.Destination(host, RULES).outlook(VGPU)
        self.assertEqual((self.answer, self.partner, self.reasons, self.notes),
                         (found.answer, found.best and found.best.facts, found.reasons, found.notes))
        data = found.as_data()
        self.assertEqual((data, self.answer), (json.loads(json.dumps(data)), data['verdict']))
        self.assertEqual((self.partner is None and bool(self.there), bool(self.notes)),
                         (bool(data['reasons']), bool(data['notes'])))


class RoomTestCase(base.TestCase):

    def test_it_is_what_partners_would_be_with_as_many_offers_as_devices(self) -> None:
        every = (VGPU, OLDER, UNVERSIONED, OF_ANOTHER_TYPE, FUNCTION, PMEM)
        for size, guest_size in itertools.product((1, 2), repeat=2):
            for there in itertools.combinations(every, size):
                for guest in itertools.combinations_with_replacement(every, guest_size):
                    offers = [partners.Offer(f'{place}.{number}', facts) for place, facts in enumerate(there)
                              for number in range(guest_size)]
                    held = [partners.Held(str(number), facts) for number, facts in enumerate(guest)]
                    destination = matrix.Destination(declared(*there), RULES)
                    self.assertEqual(partners.find(held, offers, RULES).accepted,
                                     all(destination.outlook(one).best is not None for one in guest))

    def test_what_the_guest_has_seen_counts(self) -> None:
        destination = matrix.Destination(declared(OLDER), RULES)
        self.assertEqual(matrix.YES, destination.outlook(VGPU, seen=OLD).answer)


class MatrixTestCase(base.TestCase):

    def answers(self, *hosts: HostFacts, types: tuple[str, ...] = ()) -> list[tuple[str, Facts, dict[str, str]]]:
        return [(' '.join(row.hosts), row.facts, {' '.join(names): one.answer for names, one in row.outlooks})
                for row in matrix.rows(hosts, RULES, types)]

    def test_a_row_for_what_is_alike_and_an_answer_for_all_other_hosts(self) -> None:
        self.assertEqual([('a', VGPU, {'b': 'no', 'c': 'unknown'}),
                          ('b', OLDER, {'a': 'yes', 'c': 'unknown'}), ('b', PMEM, {'a': 'no', 'c': 'unknown'})],
                         self.answers(declared(VGPU, VGPU, host='a'), declared(OLDER, PMEM, host='b'), HostFacts('c')))

    def test_hosts_that_declare_alike_are_one_and_may_be_their_own_destination(self) -> None:
        self.assertEqual([('a c', VGPU, {'a c': 'yes', 'b': 'no'}), ('b', OLDER, {'a c': 'yes'})],
                         self.answers(*(declared(one, host=name) for name, one in zip(
                             'abc', (VGPU, OLDER, VGPU), strict=True))))

    def test_rows_of_some_types_and_destinations_of_all(self) -> None:
        self.assertEqual([('b', PMEM, {'a': 'no'})],
                         self.answers(declared(VGPU, host='a'), declared(OLDER, PMEM, host='b'), types=('4GB',)))

    def test_a_hundred_hosts_no_two_alike_are_told_in_seconds(self) -> None:
        hosts = [declared(*(VGPU._replace(sort=Sort('mdev', str(number)), version=Version(2, place, 0))
                            for number in range(10)), host=str(place)) for place in range(100)]
        start = time.process_time()
        self.assertEqual(100 * 10 * 99, sum(len(row.outlooks) for row in matrix.rows(hosts, RULES)))
        self.assertLess(time.process_time() - start, 15)
