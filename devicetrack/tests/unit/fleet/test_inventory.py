"""A snapshot that was a document answers as the first one did."""

from __future__ import annotations

from devicetrack import vocabulary
from devicetrack.claims import report
from devicetrack.engine import allocator
from devicetrack.engine import demand as demands
from devicetrack.engine.explanation import Shortage
from devicetrack.fleet import inventory
from devicetrack.objects import DeviceRequest
from devicetrack.testing import fake
from devicetrack.testing import fixtures
from devicetrack.tests import base
from devicetrack.tests.unit.engine import hosts


class TestInventory(base.TestCase):
    def test_it_has_the_same_free_devices_and_the_same_answers(self) -> None:
        host = self.useFixture(fixtures.Host(devices=4, parents={'gpu': 2, 'gpu2': 2}))
        host.spawn(pmem=1, vgpu=1)
        host.manager.operator.cordon('mdev', 'gpu2', parent=True, reason='firmware')
        host.manager.operator.cordon('vpmem', 'd3', reason='bad')
        observer = report.Observer(host.store.hosts()[0], fake.FakeDriver('host', host.conf, '', host.machine),
                                   host.store, host.conf)
        now = observer.picture().snapshot
        again = inventory.from_text(inventory.to_text(now))
        self.assertEqual(now.pool_states(), again.pool_states())
        self.assertEqual([one._replace(details='') for one in now.states() if one.instance_uuid is None],
                         [one._replace(details='') for one in again.states()])
        self.assertEqual(now.reasons(), again.reasons())
        for amounts in ({'CUSTOM_PMEM_NAMESPACE_4GB': 2}, {'CUSTOM_PMEM_NAMESPACE_4GB': 3}, {'VGPU': 1}, {'VGPU': 2}):
            demand = demands.from_request(DeviceRequest.of(*amounts.items()), frozenset())
            self.assertEqual(_chosen(allocator.choose(now, '', demand)), _chosen(allocator.choose(again, '', demand)))


def _chosen(answer: allocator.Chosen | list[Shortage]) -> object:
    if isinstance(answer, list):
        return answer
    return [(device.place, device.key if device.is_named else None) for device in answer.devices]


class TestSomebodyHasADevice(base.TestCase):
    CARD = [hosts.namespace('pf', hosts.PMEM)._replace(exclusions=(('pf', vocabulary.WHOLE),)),
            *(hosts.namespace(name, hosts.SMALL)._replace(exclusions=(('pf', vocabulary.PART),))
              for name in ('vf0', 'vf1'))]
    scenarios = base.table(
        ('nobody', CARD, (), {'pf'}),
        ('a function excludes its card', CARD, ('vf0',), set()),
        ('a card excludes its functions', CARD, ('pf',), set()),
        ('what excludes nothing', [hosts.namespace('a', hosts.PMEM), hosts.namespace('b', hosts.PMEM)], ('a',), {'b'}),
        ('every device', [hosts.namespace('a', hosts.PMEM)], ('a',), set()),
        names=('devices', 'held', 'expected'))

    def test_who_has_it_is_not_told_and_the_answers_are_the_same(self) -> None:
        ledger = hosts.ledger(*self.devices)
        for device in self.devices:
            if device.identifier in self.held:
                ledger.hold([hosts.row(device, f'owner of {device.identifier}')])
        text = inventory.to_text(ledger.now)
        again = inventory.from_text(text)
        self.assertNotIn('owner of', text)
        self.assertEqual(ledger.now.pool_states(), again.pool_states())
        demand = hosts.wants((hosts.PMEM, 1))
        answer = allocator.choose(again, '', demand)
        self.assertEqual(_chosen(allocator.choose(ledger.now, '', demand)), _chosen(answer))
        self.assertEqual(self.expected, set() if isinstance(answer, list) else {
            device.key.identifier for device in answer.devices})
