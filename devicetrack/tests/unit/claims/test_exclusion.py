"""Devices that exclude one another, through a claim manager with its store: races, restarts, rows that contradict."""

from __future__ import annotations

import threading
from typing import Any
import uuid

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import findings
from devicetrack.objects import DeviceRequest
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Record
from devicetrack.store.api import Changes
from devicetrack.testing import exclusions
from devicetrack.testing import fake_guests
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base

WHOLE = (('card', vocabulary.WHOLE),)
PART = (('card', vocabulary.PART),)
TOGETHER = (('iommu:7', vocabulary.TOGETHER),)
EXCLUDED = fixtures.WITHHELD + vocabulary.EXCLUDED

CARD, FUNCTION = 'CUSTOM_PMEM_NAMESPACE_CARD', 'CUSTOM_PMEM_NAMESPACE_FUNCTION'


def a_card(amount: int = 1) -> DeviceRequest:
    return DeviceRequest.of((CARD, amount))


def functions(amount: int = 1) -> DeviceRequest:
    return DeviceRequest.of((FUNCTION, amount))


class ExclusionTestCase(base.TestCase):

    def host(self, parts: int = 2, group: int = 0) -> fixtures.Host:
        """A host with a card of so many functions, and so many functions of one group."""
        host = fixtures.Host()
        host.machine.resource_classes.update((CARD, FUNCTION))
        if parts:
            host.machine.add_namespace('pf', 'card', parent=None, exclusions=WHOLE)
        for number in range(parts):
            host.machine.add_namespace(f'vf{number}', 'function', parent='pf', exclusions=PART)
        for number in range(group):
            host.machine.add_namespace(f'g{number}', 'function', exclusions=TOGETHER)
        return self.useFixture(host)

    def owned(self, host: fixtures.Host) -> list[exclusions.ExclusiveDevice]:
        """What rows own, by the exclusions of the machine."""
        rows = host.owners()
        return [exclusions.ExclusiveDevice(key, device.exclusions, rows.get(key.identifier), False, False)
                for key, device in host.machine.devices.items()]

    def insert_row(self, host: fixtures.Host, name: str, owner: str) -> None:
        """Behind the manager's back."""
        store, device = host.store.store, host.machine.devices[DeviceKey('vpmem', name)]
        of_host: Any = store.host(host.name)
        store.write(Changes(insert=(a_row(of_host.uuid, device, owner),)))


def a_row(host_uuid: str, device: InventoryDevice, owner: str) -> Record:
    return Record(host_uuid, device.kind, device.identifier, owner, None, vocabulary.CURRENT, vocabulary.ACTIVE, 0,
                  'other', 1, host_uuid, device.resource_class, device.parent, device.numa_node, device.details, 0)


class WipeForNobodyTestCase(ExclusionTestCase):
    """A wipe of a card reaches the data of its functions, also the wipe that an operator asks for."""

    def setUp(self) -> None:
        super().setUp()
        self.wiping, self.go_on = threading.Event(), threading.Event()
        self.addCleanup(self.go_on.set)
        host = fixtures.Host()
        host.machine.resource_classes.update((CARD, FUNCTION))
        pf = host.machine.add_namespace('pf', 'card', parent=None, exclusions=WHOLE, proven=False)
        for number in range(2):
            host.machine.add_namespace(f'vf{number}', 'function', parent='pf', exclusions=PART)
        slow = host.machine.add_namespace('slow', '4GB', proven=False)
        host.machine.contents.update({pf: b'old', slow: b'old'})
        host.machine.before('wipe', self.wiping.set, times=1)
        host.machine.before('wipe', lambda: self.go_on.wait(base.HANGS_S), times=1)
        self.host_ = self.useFixture(host)
        host.running.unproven.wait()

    def admit(self, name: str) -> None:
        self.host_.manager.operator.admit('vpmem', name, wipe=True)

    def finish(self) -> None:
        self.go_on.set()
        self.host_.running.unproven.wait()

    def test_it_waits_for_nobody_who_got_a_function_meanwhile(self) -> None:
        self.admit('slow')
        self.wiping.wait(base.HANGS_S)
        self.admit('pf')
        instance = self.host_.spawn(request=functions())
        self.finish()
        self.assertEqual(b'old', self.host_.machine.read(DeviceKey('vpmem', 'pf')))
        self.host_.audit()
        [withheld] = self.host_.manager.operator.withheld()
        self.assertIn(f'instance {instance.uuid} has vpmem/vf0', withheld.causes[vocabulary.UNPROVEN].detail)
        self.host_.delete(instance)
        self.host_.wait()
        self.admit('pf')
        self.host_.running.unproven.wait()
        self.assertEqual({FREE}, set(self.host_.states().values()))

    def test_nobody_gets_a_function_while_it_goes_on(self) -> None:
        self.admit('pf')
        self.wiping.wait(base.HANGS_S)
        refused = self.assertRaises(exception.NoFit, self.host_.claim, Instance(), functions())
        self.assertIn('2 withheld (excluded)', str(refused))
        self.assertIn('a wipe has vpmem/pf', str(self.host_.manager.operator.withheld()))
        self.finish()
        self.host_.spawn(request=functions())

    def test_nor_after_the_host_has_started_anew_meanwhile(self) -> None:
        self.admit('pf')
        self.wiping.wait(base.HANGS_S)
        before = self.host_.running
        before.end()
        self.assertRaises(exception.NoFit, self.host_.claim, Instance(), functions())
        self.finish()
        before.unproven.wait()
        self.host_.audit()
        self.host_.spawn(request=functions())


class ClaimTestCase(ExclusionTestCase):

    def test_a_part_excludes_the_whole_until_it_is_given_back(self) -> None:
        host = self.host()
        instance = host.spawn(request=functions())
        self.assertEqual({'pf': EXCLUDED, 'vf0': 'active', 'vf1': FREE}, host.states())
        refused = self.assertRaises(exception.NoFit, host.claim, Instance(), a_card())
        self.assertIn('1 withheld (excluded)', str(refused))
        host.delete(instance)
        host.wait()
        self.assertEqual({'pf': FREE, 'vf0': FREE, 'vf1': FREE}, host.states())

    def test_a_whole_excludes_its_parts_while_it_is_wiped(self) -> None:
        host = self.host()
        instance = host.spawn(request=a_card())
        host.machine.before('wipe', exception.UnclaimFailed('vpmem', 'pf', 'the medium fails'))
        self.assertRaises(exception.UnclaimFailed, host.delete, instance)
        self.assertEqual({'pf': 'releasing', 'vf0': EXCLUDED, 'vf1': EXCLUDED}, host.states())
        self.assertRaises(exception.NoFit, host.claim, Instance(), functions())
        host.machine.clear()
        host.restart()
        self.assertEqual({'pf': FREE, 'vf0': FREE, 'vf1': FREE}, host.states())

    def test_one_instance_gets_what_goes_together_and_nobody_else_a_part_of_it(self) -> None:
        host = self.host(parts=0, group=3)
        host.spawn(request=functions(2))
        self.assertRaises(exception.NoFit, host.claim, Instance(), functions())
        self.assertEqual(['active', 'active', EXCLUDED], sorted(host.states().values()))

    def test_a_claim_that_cannot_be_recorded_excludes_nothing(self) -> None:
        host = self.host()
        host.store.before('write', exception.StoreUnavailable('store', 'gone'), times=1)
        self.assertRaises(exception.StoreUnavailable, host.claim, Instance(), a_card())
        self.assertEqual({'pf': FREE, 'vf0': FREE, 'vf1': FREE}, host.states())

    def test_a_guest_gets_more_of_its_group_by_a_resize_on_its_host(self) -> None:
        host = self.host(parts=0, group=3)
        instance = host.spawn(request=functions())
        host.resize(instance, request=functions(2))
        self.assertEqual({instance.uuid}, set(host.owners().values()))
        self.assertEqual(3, len(host.owners()))

    def test_a_resize_on_one_host_never_goes_from_a_part_to_its_whole(self) -> None:
        host = self.host()
        instance = host.spawn(request=functions())
        refused = self.assertRaises(exception.NoFit, host.resize, instance, request=a_card())
        self.assertIn('1 withheld (excluded)', str(refused))
        self.assertEqual({'pf': EXCLUDED, 'vf0': 'active', 'vf1': FREE}, host.states())
        host.machine.add_namespace('pf2', 'card', parent=None)
        host.restart()
        host.resize(instance, request=a_card())
        self.assertEqual({'vf0': instance.uuid, 'pf2': instance.uuid}, host.owners())

    def test_placement_hears_that_what_is_excluded_is_reserved(self) -> None:
        host = self.host()
        host.spawn(request=a_card())
        [provider] = host.manager.providers()
        self.assertEqual({CARD: 0, FUNCTION: 2}, {name: provider.reserved.get(name, 0) for name in (CARD, FUNCTION)})

    def test_the_list_of_what_is_withheld_says_who_has_what(self) -> None:
        host = self.host()
        instance = host.spawn(request=functions())
        [withheld] = host.manager.operator.withheld()
        self.assertEqual(('pf', f'instance {instance.uuid} has vpmem/vf0 of card'),
                         (withheld.target.name, withheld.causes[vocabulary.EXCLUDED].detail))

    def test_an_excluded_device_is_not_wiped_by_an_operators_word(self) -> None:
        host = self.host()
        instance = host.spawn(request=functions())
        host.machine.unproven.add(DeviceKey('vpmem', 'pf'))
        host.audit()
        refused = self.assertRaises(exception.NotAdmitted, host.manager.operator.admit, 'vpmem', 'pf', wipe=True)
        self.assertIn(f'instance {instance.uuid} has vpmem/vf0 of card', str(refused))


class RaceTestCase(ExclusionTestCase):

    def test_threads_that_race_for_a_card_and_its_functions_break_nothing(self) -> None:
        host = self.host(parts=4, group=3)
        for turn in range(6):
            wanted = [a_card(), functions(1), functions(2), a_card(), functions(3), functions(1)]
            wanted = wanted[turn:] + wanted[:turn]
            instances = [Instance() for _ in wanted]
            answers = self.together(*(lambda one=one, request=request: host.claim(one, request)
                                      for one, request in zip(instances, wanted, strict=True)), host.audit)
            refused = [answer for answer in answers if isinstance(answer, BaseException)]
            self.assertEqual([], [error for error in refused if not isinstance(error, exception.NoFit)])
            self.assertLess(len(refused), len(wanted))
            self.assertEqual([], list(exclusions.broken(self.owned(host))))
            self.assertEqual([], host.disagreements())
            before = host.states()
            if turn % 2:
                host.restart()
                self.assertEqual(before, host.states())
            claimed = [one for one in instances if one.uuid in set(host.owners().values())]
            self.together(*(lambda one=one: host.manager.release(host.context, one) for one in claimed))
            host.wait()
            self.assertEqual({FREE}, set(host.states().values()))


class RestartTestCase(ExclusionTestCase):

    def test_rows_exclude_before_the_first_claim(self) -> None:
        host = self.host()
        host.spawn(request=functions())
        self.assertEqual([], host.restart())
        self.assertEqual({'pf': EXCLUDED, 'vf0': 'active', 'vf1': FREE}, host.states())
        self.assertRaises(exception.NoFit, host.claim, Instance(), a_card())

    def test_a_card_is_excluded_while_its_owned_function_is_not_made_yet(self) -> None:
        """After a boot, software makes virtual functions anew, perhaps later than this service starts."""
        host = self.host(parts=1)
        instance = host.spawn(request=functions())
        host.stop_guest(instance.uuid)
        key = DeviceKey('vpmem', 'vf0')
        function, address = host.machine.devices[key], host.machine._addresses[key]
        host.machine.remove(key)
        host.restart()
        self.assertEqual({'pf': EXCLUDED, 'vf0': 'active'}, host.states())
        host.machine._put(function, address)
        host.audit()
        self.assertEqual({'pf': EXCLUDED, 'vf0': 'active'}, host.states())
        host.delete(instance)
        host.wait()
        self.assertEqual({'pf': FREE, 'vf0': FREE}, host.states())

    def test_a_group_has_another_number_after_a_boot(self) -> None:
        host = self.host(parts=0, group=2)
        host.spawn(request=functions())
        free, = (name for name, state in host.states().items() if state == EXCLUDED)
        host.machine.change(DeviceKey('vpmem', free), exclusions=(('iommu:8', vocabulary.TOGETHER),))
        host.audit()
        self.assertEqual(FREE, host.states()[free])
        for name in ('g0', 'g1'):
            host.machine.change(DeviceKey('vpmem', name), exclusions=(('iommu:9', vocabulary.TOGETHER),))
        host.audit()
        self.assertEqual(EXCLUDED, host.states()[free])


class BrokenTestCase(ExclusionTestCase):
    """Rows that nobody's claim can have written."""

    def test_rows_of_a_whole_and_a_part_lose_nothing_and_are_critical(self) -> None:
        host = self.host()
        other = str(uuid.uuid4())
        instance = host.spawn(request=functions())
        self.insert_row(host, 'pf', other)
        for look in (host.audit, host.restart):
            found = [finding for finding in look() if finding.kind == findings.EXCLUSION_BROKEN]
            self.assertEqual([(vocabulary.CRITICAL, DeviceKey('vpmem', 'pf'), other)],
                             [(finding.severity, finding.device, finding.recorded_owner) for finding in found])
            self.assertIn(f'vpmem/vf0: owner {instance.uuid}', found[0].detail)
            self.assertEqual({'pf': other, 'vf0': instance.uuid}, host.owners())
            self.assertEqual({'pf': other, 'vf0': instance.uuid}, host.held())
            self.assertEqual(EXCLUDED, host.states()['vf1'])
        host.delete(instance)
        host.wait()
        self.assertEqual({'pf': 'active', 'vf0': EXCLUDED, 'vf1': EXCLUDED}, host.states())
        self.assertEqual([], [finding for finding in host.audit() if finding.kind == findings.EXCLUSION_BROKEN])

    def test_rows_of_two_owners_in_one_group_are_critical(self) -> None:
        host = self.host(parts=0, group=3)
        other = str(uuid.uuid4())
        instance = host.spawn(request=functions())
        self.insert_row(host, 'g2', other)
        found = [finding for finding in host.audit() if finding.kind == findings.EXCLUSION_BROKEN]
        self.assertEqual([vocabulary.CRITICAL], [finding.severity for finding in found])
        self.assertEqual({instance.uuid, other}, set(host.held().values()))
        self.assertEqual(EXCLUDED, host.states()['g1'])

    def test_a_row_that_a_claim_comes_upon_excludes_its_card(self) -> None:
        """The store's unique constraint refuses the function, and nothing in the store refuses the card."""
        host = self.host(parts=1)
        self.insert_row(host, 'vf0', str(uuid.uuid4()))
        self.assertRaises((exception.DeviceTaken, exception.NoFit), host.claim, Instance(), functions())
        self.assertRaises(exception.NoFit, host.claim, Instance(), a_card())
        host.audit()
        self.assertRaises(exception.NoFit, host.claim, Instance(), a_card())

    def test_a_function_that_a_foreign_guest_has_excludes_its_card(self) -> None:
        host = self.host()
        function = host.machine.devices[DeviceKey('vpmem', 'vf0')]
        host.machine.start_guest(str(uuid.uuid4()), [fake_guests.element('vpmem', fixtures.path_of(function))])
        host.audit()
        self.assertEqual({'pf': EXCLUDED, 'vf0': fixtures.WITHHELD + 'foreign', 'vf1': FREE}, host.states())


class DiscardedLedgerTestCase(ExclusionTestCase):
    """No constraint of the store keeps a card from one instance and its function from another: only the ledger does."""

    def discard_and_claim_the_card(self, host: fixtures.Host) -> Instance | None:
        instance = Instance()

        def claim() -> Instance | None:
            host.running.end()                          # an exception interrupts another thread
            try:
                host.claim(instance, a_card())          # this starts the host anew
            except exception.NoFit:
                return None
            return instance

        [other] = self.together(claim)
        return other

    def test_a_claim_has_chosen_a_function_before(self) -> None:
        host, others = self.host(parts=1), list[Instance | None]()
        plain = host.driver.claim_for_instance

        def claim_for_instance(*arguments: Any) -> Any:
            self.patch(host.driver, 'claim_for_instance', plain)
            others.append(self.discard_and_claim_the_card(host))
            return plain(*arguments)

        self.patch(host.driver, 'claim_for_instance', claim_for_instance)
        self.assertRaises(exception.StartIsOver, host.claim, Instance(), functions())
        self.assertEqual([{'pf': other and other.uuid} for other in others], [host.owners()])
        self.assertEqual([], host.audit())

    def test_a_narrowed_claim_records_a_function(self) -> None:
        host = self.host(parts=1)
        host.machine.add_namespace('far', 'function', numa_node=1)
        host.manager.operator.cordon('vpmem', 'vf0')
        host.audit()
        instance = Instance()
        claim = host.claim(instance, functions())
        host.manager.operator.uncordon('vpmem', 'vf0')
        others = list[Instance | None]()
        host.store.before('write', lambda: others.append(self.discard_and_claim_the_card(host)), times=1)
        self.assertRaises(exception.StartIsOver, host.manager.narrow_claim, host.context, claim, {0})
        self.assertEqual([{'far': instance.uuid, 'pf': other and other.uuid} for other in others], [host.owners()])
        self.assertEqual([], host.audit())
