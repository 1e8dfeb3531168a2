"""What the comparison of the four views finds, and that it finds nothing where they agree."""

from __future__ import annotations

from typing import Any

from devicetrack.tests import base
from devicetrack.tests.cloud import checker

INSTANCE, OTHER, MOVE = 'instance', 'other', 'move'
PMEM, VGPU = 'CUSTOM_PMEM_NAMESPACE_SMALL', 'VGPU'
DEVICES = frozenset({'vpmem/pmem0', 'mdev/m'})
AMOUNTS = {('a', PMEM): 1, ('a', VGPU): 1}


def row(device: str, **changes: Any) -> checker.Row:
    found = checker.Row('a', device, INSTANCE, 'current', 'active', VGPU if device.startswith('mdev') else PMEM, None)
    return found._replace(**changes)


def guest(**changes: Any) -> checker.Domain:
    return checker.Domain(True, DEVICES, DEVICES)._replace(**changes)


def host(domains: dict[str, checker.Domain] | None = None, mdevs: tuple[str, ...] = (),
         dirty: tuple[str, ...] = ()) -> checker.Host:
    return checker.Host(domains or {}, frozenset(mdevs), tuple(
        checker.Namespace(name, name not in dirty) for name in ('pmem0', 'pmem3')))


# One instance that runs with both of its devices, and what it wrote.
AGREED = checker.Views(
    instances={INSTANCE: checker.Instance('a', 'ACTIVE', (PMEM, VGPU))},
    moves=[],
    allocations={INSTANCE: AMOUNTS},
    hosts={'a': host({INSTANCE: guest()}, ('m',), ('pmem0',)), 'b': host()},
    rows=[row('vpmem/pmem0'), row('mdev/m')],
    findings=[])

# It waits on b to be confirmed; a keeps what it left.
RESIZED = AGREED._replace(
    instances={INSTANCE: checker.Instance('b', 'VERIFY_RESIZE', (PMEM,))},
    moves=[checker.Move(MOVE, INSTANCE, 'a', 'b')],
    allocations={INSTANCE: {('b', PMEM): 1}, MOVE: AMOUNTS},
    hosts={'a': host({INSTANCE: guest(runs=False, live=None)}, ('m',), ('pmem0',)),
           'b': host({INSTANCE: checker.Domain(True, frozenset({'vpmem/pmem3'}), frozenset({'vpmem/pmem3'}))})},
    rows=[row('vpmem/pmem0', role='old', migration=MOVE), row('mdev/m', role='old', migration=MOVE),
          row('vpmem/pmem3', host='b')])


class CheckerTestCase(base.TestCase):

    def assert_found(self, expected: str, views: checker.Views) -> None:
        self.assertIn(expected, '\n'.join(checker.differences(views)))

    def on_a(self, **changes: Any) -> checker.Views:
        made = host({INSTANCE: guest()}, ('m',), ('pmem0',))
        return AGREED._replace(hosts={'a': made._replace(**changes), 'b': host()})

    def test_agreement_is_no_difference(self) -> None:
        for views in (AGREED, RESIZED, AGREED._replace(rows=None)):
            self.assertEqual([], checker.differences(views))

    def test_an_instance_that_placement_does_not_count(self) -> None:
        self.assert_found('placement counts {}', AGREED._replace(allocations={}))

    def test_an_instance_that_is_shelved_has_no_devices(self) -> None:
        found = {'status': 'SHELVED_OFFLOADED', 'OS-EXT-STS:task_state': None, 'OS-EXT-SRV-ATTR:host': None,
                 'flavor': {'extra_specs': {'hw:pmem': 'SMALL', 'resources:VGPU': '1'}}}
        self.assertEqual((), checker._instance(found).wants)

    def test_allocations_of_nobody(self) -> None:
        left = AGREED._replace(allocations={INSTANCE: AMOUNTS, OTHER: {('b', VGPU): 1}})
        self.assert_found('for other, which is no instance', left)
        self.assert_found('for move, which is no instance and no resize that is open', RESIZED._replace(moves=[]))

    def test_allocations_of_a_move_that_are_not_of_its_source(self) -> None:
        self.assert_found('for the migration move, which left a', RESIZED._replace(
            allocations={INSTANCE: {('b', PMEM): 1}, MOVE: {('b', VGPU): 1}}))

    def test_domains(self) -> None:
        for expected, domains in (
                ('a has a domain other of no instance', {INSTANCE: guest(), OTHER: guest(defined=frozenset())}),
                ('a has no domain of it', {}),
                ('does not run, and Nova says ACTIVE', {INSTANCE: guest(runs=False, live=None)}),
                ("has ['mdev/m'], and its definition", {INSTANCE: guest(live=frozenset({'mdev/m'}))}),
                ('is in the definitions of instance and other', {INSTANCE: guest(), OTHER: guest()}),
                ("has ['mdev/m'], and the record", {INSTANCE: guest(defined=frozenset({'mdev/m'}))})):
            self.assert_found(expected, self.on_a(domains=domains))

    def test_a_domain_on_a_host_that_the_instance_left(self) -> None:
        self.assert_found('a has a domain instance, whose instance is on b', RESIZED._replace(moves=[]))

    def test_rows(self) -> None:
        rows = list(AGREED.rows or ())
        for expected, changed in (
                ('for other, which is no instance', [*rows, row('vpmem/pmem3', instance=OTHER)]),
                ('as old for instance without an open move', [*rows, row('vpmem/pmem3', role='old', migration=MOVE)]),
                ('for instance as releasing', [rows[0], row('mdev/m', state='releasing')]),
                ("and the record has ['VGPU']", rows[1:]),
                ('and placement counts', rows[:1]),
                ("has the mediated devices ['mdev/m'], and the record []", rows[:1])):
            self.assert_found(expected, AGREED._replace(rows=changed))

    def test_bytes_without_an_owner(self) -> None:
        self.assert_found('pmem3 of a has no owner, and bytes that are not zero', self.on_a(
            namespaces=(checker.Namespace('pmem0', False), checker.Namespace('pmem3', False))))

    def test_findings_of_the_library(self) -> None:
        self.assertEqual(['a: in doubt'], checker.differences(AGREED._replace(findings=['a: in doubt'])))
