"""What consumers should hold by the record: named cases."""

from __future__ import annotations

from devicetrack import vocabulary
from devicetrack.objects.values import Record
from devicetrack.placement import expected
from devicetrack.placement import tree
from devicetrack.placement.expected import Share
from devicetrack.tests import base

VGPU = 'VGPU'
PMEM = 'CUSTOM_PMEM_NAMESPACE_4GB'


def row(provider: str, role: str = vocabulary.CURRENT, migration: str | None = None, state: str = vocabulary.ACTIVE,
        resource_class: str = VGPU, instance: str = 'guest') -> Record:
    return Record('host', 'mdev', 'a-device', instance, migration, role, state, 0, 'claim', 1, provider, resource_class,
                  provider, None, '', 0)


def old(provider: str, state: str = vocabulary.ACTIVE) -> Record:
    return row(provider, vocabulary.OLD, 'move', state)


def incoming(provider: str, state: str = vocabulary.CLAIMED) -> Record:
    return row(provider, vocabulary.INCOMING, 'move', state)


class TestShares(base.TestCase):

    scenarios = base.table(
        ('nobody', [], {}),
        ('an instance at rest', [row('a'), row('a'), row('b')],
         {'guest': Share('guest', {'a': {VGPU: 2}, 'b': {VGPU: 1}}, {})}),
        ('devices of two classes', [row('a'), row('root', resource_class=PMEM)],
         {'guest': Share('guest', {'a': {VGPU: 1}, 'root': {PMEM: 1}}, {})}),
        ('two instances', [row('a'), row('a', instance='other')],
         {'guest': Share('guest', {'a': {VGPU: 1}}, {}), 'other': Share('other', {'a': {VGPU: 1}}, {})}),
        ('one that moves away', [old('a')], {'move': Share('guest', {'a': {VGPU: 1}}, {})}),
        ('one that moves here', [incoming('a')], {'guest': Share('guest', {'a': {VGPU: 1}}, {})}),
        ('one that arrived and waits', [row('a', migration='move')], {'guest': Share('guest', {'a': {VGPU: 1}}, {})}),
        ('one that moves on this host', [old('a'), incoming('b')],
         {'move': Share('guest', {'a': {VGPU: 1}}, {}), 'guest': Share('guest', {'b': {VGPU: 1}}, {})}),
        ('a move on this host that is confirmed', [old('a', vocabulary.RELEASING), row('b')],
         {'move': Share('guest', {}, {'a': {VGPU: 1}}), 'guest': Share('guest', {'b': {VGPU: 1}}, {})}),
        ('a move on this host that is reverted', [row('a'), incoming('b', vocabulary.RELEASING)],
         {'guest': Share('guest', {'a': {VGPU: 1}}, {'b': {VGPU: 1}})}),
        ('one that is being deleted', [row('a', state=vocabulary.RELEASING)],
         {'guest': Share('guest', {}, {'a': {VGPU: 1}})}),
        names=('records', 'nested'))

    def test_nested_they_are_at_the_devices_own_providers(self) -> None:
        self.assertEqual(self.nested, expected.shares(self.records, 'root', tree.NESTED))

    def test_flat_they_are_at_the_node(self) -> None:
        for layout in (tree.FLAT, tree.ANNOUNCED):
            flat = expected.shares(self.records, 'root', layout)
            self.assertEqual(self.nested.keys(), flat.keys())
            for consumer, share in flat.items():
                self.assertEqual([_total(part) for part in self.nested[consumer][1:]],
                                 [part.get('root', {}) for part in share[1:]])


def _total(resources: dict[str, dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for amounts in resources.values():
        for name, amount in amounts.items():
            total[name] = total.get(name, 0) + amount
    return total
