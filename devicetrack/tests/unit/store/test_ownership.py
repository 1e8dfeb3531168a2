"""Who had which device, from events."""

from __future__ import annotations

from typing import Any

from devicetrack.objects.event import Event
from devicetrack.store import ownership
from devicetrack.store.api import StoredEvent
from devicetrack.testing import fixtures
from devicetrack.tests import base

A, B = 'a' * 36, 'b' * 36


def events(*found: tuple[str, int, str | None] | tuple[str, int, str | None, dict[str, Any]]) -> list[StoredEvent]:
    """Events of one device: what, when, whose."""
    made = []
    for number, (event, at_ms, instance_uuid, *more) in enumerate(found):
        one = Event('h' * 36, 'mdev', 'unit0', event, at_ms, instance_uuid, parent='card0')
        made.append(StoredEvent(number, one._replace(**(more[0] if more else {}))))
    return made


def owned(found: list[StoredEvent]) -> list[tuple[Any, ...]]:
    return [one[4:] for one in ownership.of_events(found)]


class EventsTestCase(base.TestCase):
    scenarios = base.table(
        ('a whole life', events(('claimed', 1, A), ('realized', 2, A), ('started', 3, A), ('released', 4, A),
                                ('wiped', 5, A)), [(A, 1, 5, 3, 4)]),
        ('a guest that runs', events(('claimed', 1, A), ('realized', 2, A), ('started', 3, A)),
         [(A, 1, None, 3, None)]),
        ('a claim without a guest', events(('claimed', 1, A), ('released', 2, A), ('freed', 2, A)),
         [(A, 1, 2, None, None)]),
        ('one after the other', events(('claimed', 1, A), ('started', 2, A), ('released', 3, A), ('wiped', 4, A),
                                       ('claimed', 5, B), ('started', 6, B)), [(A, 1, 4, 2, 3), (B, 5, None, 6, None)]),
        ('the same owner twice', events(('claimed', 1, A), ('released', 2, A), ('freed', 2, A), ('claimed', 3, A)),
         [(A, 1, 2, None, None), (A, 3, None, None, None)]),
        ('a move that was undone', events(('claimed', 1, A), ('started', 2, A), ('leaving', 3, A), ('stayed', 4, A)),
         [(A, 1, None, 2, None)]),
        ('a guest that arrived', events(('claimed', 1, A), ('realized', 2, A), ('moved', 3, A)),
         [(A, 1, None, 3, None)]),
        ('a row that another guest gets', events(('recovered', 1, A), ('forgotten', 2, A), ('recovered', 2, B)),
         [(A, 1, 2, 1, 2), (B, 2, None, 2, None)]),
        ('the beginning is deleted', events(('released', 4, A), ('wiped', 5, A)), [(A, 4, 5, 4, 4)]),
        ('the claim is deleted', events(('realized', 2, A), ('started', 3, A)), [(A, 2, None, 3, None)]),
        ('conditions and wipes without an owner', events(
            ('withheld', 1, A), ('wiped', 2, None), ('admitted', 3, None), ('retired', 4, None)), []),
        ('several devices', events(('claimed', 1, A), ('claimed', 2, B, {'identifier': 'unit1'}), ('freed', 3, A)),
         [(A, 1, 3, None, None), (B, 2, None, None, None)]),
        names=('found', 'expected'))
    found: list[StoredEvent]
    expected: list[tuple[Any, ...]]

    def test_show_who_had_the_device(self) -> None:
        self.assertEqual(self.expected, owned(self.found))


class OfAHostTestCase(base.TestCase):
    """Asked of a store that a manager writes."""

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=1, parents={'card0': 2}))
        self.store = self.host.store.store
        self.first = self.host.spawn(pmem=1, vgpu=1)
        self.host.delete(self.first)
        self.second = self.host.spawn(pmem=1, vgpu=1)

    def test_a_device_and_a_parent_say_whose_they_were(self) -> None:
        for name, parent in (('d0', 'region0'), ('card0', 'card0')):
            before, now = ownership.of_device(self.store, name)
            self.assertEqual((self.first.uuid, self.second.uuid), (before.instance_uuid, now.instance_uuid))
            self.assertEqual((None, None), (now.until_ms, now.guest_until_ms))
            self.assertEqual((parent, parent), (before.parent, now.parent))
        self.assertEqual([], ownership.of_device(self.store, 'nobody'))
        self.assertEqual([], ownership.of_device(self.store, 'd0', host_uuid='f' * 36))

    def test_an_instance_says_what_it_had(self) -> None:
        self.assertEqual({'vpmem', 'mdev'}, {one.kind for one in ownership.of_instance(self.store, self.first.uuid)})

    def test_who_had_it_before_a_time_and_still_then_is_in_the_answer(self) -> None:
        before, now = ownership.of_device(self.store, 'd0')
        assert before.until_ms is not None
        end = before.until_ms
        for since_ms, until_ms, expected in (
                (now.since_ms + 1000, None, [now]), (end, None, [now]), (end - 1, None, [before, now]),
                (None, before.since_ms, []), (None, before.since_ms + 1, [before]),
                (before.since_ms, end, [before] if now.since_ms >= end else [before, now])):
            self.assertEqual(expected, ownership.of_device(self.store, 'd0', since_ms, until_ms))
