"""Whether anybody uses a device: one question, whoever asks it."""

from __future__ import annotations

from devicetrack import exception
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Unknown
from devicetrack.objects.values import Usage
from devicetrack.objects.values import Use
from devicetrack.tests import base
from devicetrack.virt.driver import obstacle

D0 = DeviceKey('vpmem', 'd0')
TORN = Unknown('domain x', 'torn')


def usage(*domains: str, unknown: tuple[Unknown, ...] = ()) -> Usage:
    return Usage([Use(*D0, '/dev/dax0.0', domain, True, True, True) for domain in domains], frozenset(domains),
                 frozenset(), unknown)


class ObstacleTestCase(base.TestCase):

    def test_nobody_uses_it(self) -> None:
        self.assertIsNone(obstacle(D0, usage()))
        self.assertIsNone(obstacle(DeviceKey('vpmem', 'd1'), usage('a')))

    def test_domains_that_name_it_are_all_named_once(self) -> None:
        found = obstacle(D0, usage('b', 'a', 'a'))
        self.assertIsInstance(found, exception.DeviceInUse)
        self.assertEqual('domain a, b names it', found.reason if found else '')

    def test_unknown_is_not_unused_and_says_what_cannot_be_read(self) -> None:
        found = obstacle(DeviceKey('vpmem', 'd1'), usage('a', unknown=(TORN,)))
        self.assertIsInstance(found, exception.UsersUnknown)
        self.assertEqual('its users are unknown: domain x cannot be read (torn)', found.reason if found else '')

    def test_a_domain_that_is_known_to_name_it_comes_before_those_that_may(self) -> None:
        self.assertIsInstance(obstacle(D0, usage('a', unknown=(TORN,))), exception.DeviceInUse)

    def test_advice_of_the_caller_ends_the_reason(self) -> None:
        for found, wanted in ((obstacle(D0, usage('a'), None, 'remove it', 'mend that'),
                               'domain a names it: remove it'),
                              (obstacle(D0, usage(unknown=(TORN,)), None, 'remove it', 'mend that'),
                               'its users are unknown: domain x cannot be read (torn): mend that')):
            self.assertEqual(wanted, found.reason if found else '')

    def test_an_address_that_leads_nowhere_may_be_that_of_the_owners_device(self) -> None:
        lost = usage()._replace(uses=[Use('vpmem', None, '/srv/link', 'a', False, False, True)])
        found = obstacle(D0, lost, 'a', 'remove it')
        self.assertIsInstance(found, exception.DeviceInUse)
        self.assertEqual('domain a may name it: its address /srv/link leads to no device of kind vpmem: remove it',
                         found.reason if found else '')
        for key, owner in ((D0, 'b'), (D0, None), (DeviceKey('mdev', 'd0'), 'a')):
            self.assertIsNone(obstacle(key, lost, owner))

    def test_a_snapshot_that_names_it_is_to_be_deleted(self) -> None:
        snapshot = usage()._replace(uses=[Use(*D0, '/dev/dax0.0', 'a', False, False, False)])
        found = obstacle(D0, snapshot, 'a', 'remove it')
        self.assertIsInstance(found, exception.DeviceInUse)
        self.assertEqual('a snapshot of domain a names it: delete the snapshot', found.reason if found else '')

    def test_what_an_old_snapshot_names_may_be_gone(self) -> None:
        for address, in_use in (('/srv/link', False), ('d0', True)):
            lost = usage()._replace(uses=[Use('vpmem', None, address, 'a', False, False, False)])
            self.assertEqual(in_use, obstacle(D0, lost, 'a') is not None)

    def test_an_address_that_leads_nowhere_may_be_the_devices_own_name(self) -> None:
        lost = usage()._replace(uses=[Use('vpmem', None, 'd0', 'a', False, False, True)])
        self.assertIsInstance(obstacle(D0, lost, 'b'), exception.DeviceInUse)
