"""Between any two steps of a service that does everything right, an audit finds nothing that it would put right."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import itertools

from devicetrack import vocabulary
from devicetrack.engine import migrations
from devicetrack.objects.values import Leftover
from devicetrack.placement import audit
from devicetrack.placement import auditor as auditors
from devicetrack.placement import tree
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import Instance
from devicetrack.testing.fixtures import VGPU
from devicetrack.tests.functional.placement.test_audit import AuditTestCase
from devicetrack.tests.functional.placement.test_audit import CPU

Step = Callable[[], object]


class TestBetween(AuditTestCase):
    # A resize to the same card changes none of placement's sums; of the two sides either may be told first.
    scenarios = [
        (f'{move}, {first} first', {'move': move, 'first': first})
        for move, first in itertools.product(
            ('confirm _p0', 'confirm _p1', 'revert _p0', 'revert _p1', 'leave', 'arrive'), ('placement', 'host'))]
    move: str
    first: str

    def setUp(self) -> None:
        super().setUp()
        self.elsewhere = {self.placement.provider(VCPU=8, VGPU=8): {**CPU, VGPU: 1}}
        self.instance = Instance(host=self.name, node=self.name)
        self.migration = fixtures.Migration(self.name, self.name, self.instance.uuid)
        self.host.service.moves = [self.migration]

    def on(self, card: str) -> dict[str, dict[str, int]]:
        return {self.node: CPU, self.providers[card]: {VGPU: 1}}

    def steps(self) -> Iterator[Step]:
        """The life of an instance: built, moved, the end of that."""
        host, context = self.host, self.host.context
        instance, migration = self.instance, self.migration
        ends = host.manager.drop_move_claim_at_source, host.manager.drop_move_claim_at_dest
        if self.move == 'arrive':
            instance.host = instance.node = migration.source_compute = 'elsewhere'
            self.allocations.spawn(instance.uuid, self.elsewhere, 'project', 'user')
            yield from self.moved(self.on('_p1'))
            yield from self.in_order(
                [lambda: self.allocations.revert(instance.uuid, migration.uuid)],
                [lambda: host.machine.delete_guest(instance.uuid), lambda: ends[1](context, instance, migration)])
            return
        old = self.on('_p0')
        yield lambda: self.allocations.spawn(instance.uuid, old, 'project', 'user')
        yield lambda: host.claim(instance, {provider: {'resources': amounts} for provider, amounts in old.items()})
        yield lambda: host.boot(instance)
        if self.move == 'leave':                # as a live migration: the source hears of it at its end
            migration.dest_compute = 'elsewhere'
            yield lambda: self.allocations.move(instance.uuid, migration.uuid, self.elsewhere)
            instance.host = instance.node = 'elsewhere'
            host.service.known = {instance.uuid: migrations.INSTANCE_ELSEWHERE}
            yield from self.in_order(
                [lambda: self.allocations.confirm(instance.uuid, migration.uuid)],
                [lambda: host.machine.delete_guest(instance.uuid), lambda: ends[0](context, instance, migration)])
            return
        end, card = self.move.split()
        yield from self.moved(self.on(card), lambda: host.machine.delete_guest(instance.uuid))
        if end == 'confirm':
            yield lambda: self.leftovers.record(Leftover(
                instance.uuid, migration.uuid, vocabulary.CONFIRM))             # as it begins
            yield from self.in_order([lambda: self.allocations.confirm(instance.uuid, migration.uuid)],
                                     [lambda: ends[0](context, instance, migration)])
        else:
            yield from self.in_order(
                [lambda: self.allocations.revert(instance.uuid, migration.uuid)],
                [lambda: host.machine.delete_guest(instance.uuid), lambda: ends[1](context, instance, migration),
                 lambda: host.boot(instance)])
        yield lambda: host.machine.delete_guest(instance.uuid)
        yield lambda: host.manager.release(context, instance)
        yield lambda: self.allocations.delete(instance.uuid)

    def moved(self, new: dict[str, dict[str, int]], *before_boot: Step) -> Iterator[Step]:
        yield lambda: self.allocations.move(self.instance.uuid, self.migration.uuid, new)
        yield lambda: self.host.resize(self.instance, migration=self.migration, request={
            provider: {'resources': amounts} for provider, amounts in new.items()})
        yield from before_boot
        yield lambda: setattr(self.migration, 'status', 'post-migrating')
        yield lambda: self.host.boot(self.instance)

    def in_order(self, at_placement: list[Step], at_host: list[Step]) -> list[Step]:
        return at_placement + at_host if self.first == 'placement' else at_host + at_placement

    def test_nothing_is_put_right_that_is_not_wrong(self) -> None:
        rest = self.spawn('_p0')
        manager = self.host.manager
        auditor = auditors.Auditor(
            self.direct, lambda: auditors.HostView(manager.providers(), manager.state().complete,
                                                   manager.assignments(), manager.usage()),
            tree.NESTED, manager.state().classes, self.leftovers)
        for number, step in enumerate(self.steps()):
            step()
            self.report()
            planned = [one.verb for one in auditor.plan()[0]]
            if planned != [audit.REMOVE]:
                self.assertEqual((number, []), (number, planned))
            else:                               # the host has given the devices back, and placement is told next
                self.assertEqual(('host', True), (self.first, self.move.startswith('confirm')))
        self.assertEqual(self.on('_p0'), self.held(rest))
        self.assertEqual([], auditor.audit())
