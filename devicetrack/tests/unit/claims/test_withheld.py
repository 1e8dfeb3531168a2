"""What is withheld, and stays so: through audits, restarts, and views and stores that do not answer."""

from __future__ import annotations

import json
from typing import Any

from devicetrack import exception
from devicetrack.engine import findings
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Missing
from devicetrack.store.api import Changes
from devicetrack.store.api import WithheldRow
from devicetrack.testing import fake
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base

D0, D1 = (DeviceKey(fake.VPMEM, name) for name in ('d0', 'd1'))
CORDONED, UNHEALTHY, FOREIGN, IN_DOUBT = (
    f'withheld: {reason}' for reason in ('cordoned', 'unhealthy', 'foreign', 'in doubt'))
REFUSED = exception.StoreUnavailable('store', 'full')
UNKNOWN = exception.OutcomeUnknown('store')
FORGOTTEN = 'withheld: in doubt, unproven'


class WithheldTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=2, parents={'p0': 2, 'p1': 1}))
        self.machine, self.store = self.host.machine, self.host.store

    @property
    def manager(self) -> Any:
        return self.host.manager

    def rows(self) -> list[WithheldRow]:
        return self.store.store.withheld(self.manager.state().host_uuid)

    def stored(self) -> dict[tuple[str, str], dict[str, Any]]:
        """By scope and name, by reason, why."""
        return {(row.scope, row.name): {reason: cause['detail'] for reason, cause in json.loads(row.reasons).items()}
                for row in self.rows()}

    def writes(self) -> int:
        return self.store.calls['set_withheld']

    def foreign_guest(self, key: DeviceKey = D0) -> None:
        path = fixtures.path_of(self.machine.devices[key])
        self.machine.start_guest('x', [f'<device kind="vpmem" address="{path}"/>'])


class CordonTestCase(WithheldTestCase):

    def test_nobody_gets_it_until_it_is_uncordoned(self) -> None:
        self.manager.operator.cordon('vpmem', 'd0', reason='firmware')
        self.assertEqual({'d0': CORDONED, 'd1': FREE}, self.host.states())
        error = self.assertRaises(exception.NoFit, self.host.claim, Instance(), pmem=2)
        self.assertIn('1 of 2 free: 1 withheld (cordoned)', str(error))
        self.assertEqual({('device', 'd0'): {'cordoned': 'firmware'}}, self.stored())
        self.manager.operator.uncordon('vpmem', 'd0')
        self.assertEqual([], self.rows())
        self.host.claim(Instance(), pmem=2)

    def test_it_lasts_over_audits_and_restarts(self) -> None:
        self.manager.operator.cordon('vpmem', 'd0')
        before = self.rows()
        for again in (self.host.audit, self.host.restart, self.host.audit):
            again()
            self.assertEqual({'d0': CORDONED, 'd1': FREE}, self.host.states())
        self.assertEqual((before, 1), (self.rows(), self.writes()))

    def test_it_lasts_when_views_are_unknown_at_the_start(self) -> None:
        self.manager.operator.cordon('vpmem', 'd0')
        self.machine.unknown_kinds[fake.VPMEM] = 'ndctl failed'
        self.machine.unknown_domains['x'] = 'garbage'
        self.host.restart()
        self.machine.clear()
        self.host.audit()
        self.assertEqual({'d0': CORDONED, 'd1': FREE}, self.host.states())

    def test_it_is_in_force_before_the_first_claim(self) -> None:
        """Not only once an audit has been."""
        self.manager.operator.cordon('mdev', 'p0', parent=True)
        self.manager.operator.cordon('mdev', 'p1', parent=True)
        self.host.restart()
        self.assertRaises(exception.NoFit, self.host.claim, Instance(), vgpu=1)

    def test_who_has_it_keeps_it_and_is_told(self) -> None:
        instance = self.host.spawn(pmem=1)
        cordoned = self.manager.operator.cordon('vpmem', 'd0')
        self.assertEqual([(instance.uuid, 'active')], [(row.instance_uuid, row.state) for row in cordoned.left])
        self.assertEqual(f'vpmem/d0 is withheld: cordoned; instance {instance.uuid} has d0, active', str(cordoned))
        self.host.boot(instance)
        self.assertEqual([], self.host.audit())
        self.host.delete(instance)
        self.assertEqual({'d0': CORDONED, 'd1': FREE}, self.host.states())

    def test_a_claim_that_is_given_up_does_not_hand_it_out_again(self) -> None:
        instance = Instance()
        claim = self.host.claim(instance, pmem=1)
        self.manager.operator.cordon('vpmem', 'd0')
        claim.abort()
        self.assertEqual({'d0': CORDONED, 'd1': FREE}, self.host.states())

    def test_a_parent_makes_no_more(self) -> None:
        instance = self.host.spawn(vgpu=2)
        cordoned = self.manager.operator.cordon('mdev', 'p0', parent=True, reason='new card')
        self.assertEqual([instance.uuid] * 2, [row.instance_uuid for row in cordoned.left])
        self.host.delete(instance)
        other = self.host.spawn(vgpu=1)
        self.assertEqual(['p1'], [row.parent for row in self.host.records(other)])
        error = self.assertRaises(exception.NoFit, self.host.claim, Instance(), vgpu=1)
        self.assertIn('0 of 3 free: 1 held by 1 instance, 2 withheld (cordoned), no room left on p1', str(error))
        self.host.restart()
        self.assertRaises(exception.NoFit, self.host.claim, Instance(), vgpu=1)
        self.manager.operator.uncordon('mdev', 'p0', parent=True)
        self.host.claim(Instance(), vgpu=2)

    def test_what_is_counted_stays_the_same(self) -> None:
        """A scheduler that is told of less would take what is used for more than there is."""
        before = self.manager.providers()
        self.manager.operator.cordon('mdev', 'p0', parent=True)
        self.manager.operator.cordon('vpmem', 'd0')
        self.assertEqual([one.totals for one in before], [one.totals for one in self.manager.providers()])

    def test_a_parent_of_devices_that_exist(self) -> None:
        self.manager.operator.cordon('vpmem', 'region0', parent=True)
        self.assertEqual({'d0': CORDONED, 'd1': CORDONED}, self.host.states())
        self.host.restart()
        self.manager.operator.cordon('vpmem', 'd1')
        self.manager.operator.uncordon('vpmem', 'region0', parent=True)
        self.assertEqual({'d0': FREE, 'd1': CORDONED}, self.host.states())

    def test_of_a_device_below_a_cordoned_parent_that_is_said(self) -> None:
        self.manager.operator.cordon('vpmem', 'region0', parent=True)
        self.assertEqual('vpmem/d0 is withheld: cordoned, its parent region0 is cordoned',
                         str(self.manager.operator.cordon('vpmem', 'd0')))
        for changed in (True, False):
            uncordoned = self.manager.operator.uncordon('vpmem', 'd0')
            self.assertEqual(('vpmem/d0 is withheld: its parent region0 is cordoned', changed),
                             (str(uncordoned), uncordoned.changed))
        self.assertEqual(CORDONED, self.host.states()['d0'])

    def test_to_cordon_it_again_keeps_since_when_and_says_why(self) -> None:
        self.manager.operator.cordon('vpmem', 'd0', reason='firmware')
        [row] = self.rows()
        earlier = json.dumps({'cordoned': {**json.loads(row.reasons)['cordoned'], 'since': 5}}, sort_keys=True)
        self.store.store.set_withheld([row._replace(reasons=earlier)])
        self.host.restart()
        self.manager.operator.cordon('vpmem', 'd0')
        self.assertEqual([row._replace(reasons=earlier)], self.rows())
        self.manager.operator.cordon('vpmem', 'd0', reason='it smokes')
        [now] = self.rows()
        self.assertEqual(({'cordoned': {'since': 5, 'detail': 'it smokes', 'by': 'operator'}}, 2),
                         (json.loads(now.reasons), now.generation))

    def test_to_uncordon_it_again_is_nothing(self) -> None:
        for _ in range(2):
            self.assertEqual({}, self.manager.operator.uncordon('vpmem', 'd0').causes)
        self.assertEqual(0, self.writes())

    def test_unhealthy_besides_it_is_cordoned_when_it_is_well_again(self) -> None:
        self.manager.operator.cordon('vpmem', 'd0')
        self.machine.change(D0, unhealthy='hot')
        self.host.audit()
        self.assertEqual('withheld: cordoned, unhealthy', self.host.states()['d0'])
        error = self.assertRaises(exception.NoFit, self.host.claim, Instance(), pmem=2)
        self.assertIn('1 withheld (cordoned, unhealthy)', str(error))
        self.host.restart()
        self.machine.change(D0, unhealthy=None)
        self.host.audit()
        self.assertEqual((CORDONED, {('device', 'd0'): {'cordoned': ''}}), (self.host.states()['d0'], self.stored()))

    def test_uncordoned_it_stays_withheld_for_other_reasons(self) -> None:
        self.manager.operator.cordon('vpmem', 'd0')
        self.machine.unknown_domains['x'] = 'garbage'
        self.host.audit()
        uncordoned = self.manager.operator.uncordon('vpmem', 'd0')
        self.assertEqual((['in doubt'], IN_DOUBT), (list(uncordoned.causes), self.host.states()['d0']))

    def test_what_this_host_does_not_have_is_refused_with_what_it_has(self) -> None:
        for arguments, has in ((('vpmem', 'd9', False), 'd0, d1'), (('mdev', 'p9', True), 'p0, p1'),
                               (('mdev', 'm', False), 'devices of these kinds: vpmem'),
                               (('vpmen', 'd0', False), 'vpmem'), (('vpmen', 'p0', True), 'mdev, vpmem'),
                               (('vpmem', 'd0', True), 'region0'),
                               (('mdev', 'p0', False), 'it is a parent of devices: add --parent')):
            for call in (self.manager.operator.cordon, self.manager.operator.uncordon):
                error = self.assertRaises(exception.BadRequest, call, *arguments)
                self.assertIn(has, str(error))
        self.assertEqual([], self.rows())

    def test_of_many_names_an_error_shows_some(self) -> None:
        for number in range(20):
            self.machine.add_namespace(f'e{number}')
        self.host.audit()
        error = self.assertRaises(exception.BadRequest, self.manager.operator.cordon, 'vpmem', 'd9')
        self.assertTrue(str(error).endswith('and 12 more'), error)

    def test_one_that_went_away_can_be_uncordoned(self) -> None:
        self.manager.operator.cordon('vpmem', 'd0')
        self.machine.remove(D0)
        self.host.restart()
        self.manager.operator.uncordon('vpmem', 'd0')
        self.assertEqual([], self.rows())
        self.assertRaises(exception.BadRequest, self.manager.operator.uncordon, 'vpmem', 'd0')

    def test_one_that_is_away_is_no_mistake_in_an_option_and_cordoned_when_it_is_back(self) -> None:
        self.manager.operator.cordon('vpmem', 'd0')
        self.machine.remove(D0)
        self.machine.missing = (Missing(D0, '[libvirt] pmem_namespaces', 'there is none'),)
        self.host.restart()
        self.machine.missing = ()
        self.machine.add_namespace('d0')
        self.host.audit()
        self.assertEqual(CORDONED, self.host.states()['d0'])

    def test_uncordoned_while_it_is_away_it_keeps_the_next_manager_from_starting_and_that_is_said(self) -> None:
        self.manager.operator.cordon('vpmem', 'd0')
        self.assertEqual('vpmem/d0 is not withheld', str(self.manager.operator.uncordon('vpmem', 'd0')))
        self.manager.operator.cordon('vpmem', 'd0')
        self.machine.remove(D0)
        self.machine.missing = (Missing(D0, '[libvirt] pmem_namespaces', 'there is none'),)
        self.host.audit()
        for _ in range(2):
            self.assertEqual('vpmem/d0 is not withheld; no manager starts while [libvirt] pmem_namespaces names it and '
                             'this host does not have it: take it out of the option, or bring it back',
                             str(self.manager.operator.uncordon('vpmem', 'd0')))
        error = self.assertRaises(exception.InvalidConfiguration, self.host.restart)
        self.assertIn('take it out of the option, or bring it back', str(error))

    def test_one_that_an_option_names_is_cordoned_while_it_is_away(self) -> None:
        self.machine.remove(D0)
        self.machine.missing = (Missing(D0, '[libvirt] pmem_namespaces', 'there is none'),)
        self.host.audit()
        self.manager.operator.cordon('vpmem', 'd0')
        self.host.restart()
        self.assertEqual({('device', 'd0'): {'cordoned': ''}}, self.stored())

    def test_before_the_start_nothing_is_said(self) -> None:
        manager = self.host.another_manager()
        self.assertRaises(exception.NotReady, manager.operator.cordon, 'vpmem', 'd0')
        self.assertRaises(exception.NotReady, manager.operator.withheld)

    def test_what_another_release_wrote_wrongly_withholds_all_the_same(self) -> None:
        host_uuid = self.manager.state().host_uuid
        rows = [WithheldRow(host_uuid, 'mdev', 'parent', 'p0', '{', 1, 1),
                WithheldRow(host_uuid, 'vpmem', 'device', 'd0', '[]', 1, 1)]
        self.store.store.set_withheld(rows)
        self.host.restart()
        self.host.audit()
        self.assertEqual((IN_DOUBT, rows), (self.host.states()['d0'], self.rows()))
        self.manager.operator.admit('vpmem', 'd0')
        self.manager.operator.uncordon('mdev', 'p0', parent=True)
        self.assertEqual(([], 5), (self.rows(), self.host.free()))


class StoreFailsTestCase(WithheldTestCase):
    """What is said holds from the first moment; what is taken back, only once the store has it."""

    def test_what_the_store_refuses_was_not_said(self) -> None:
        self.store.before('set_withheld', REFUSED)
        self.assertRaises(exception.StoreUnavailable, self.manager.operator.cordon, 'vpmem', 'd0')
        self.host.audit()
        self.assertEqual(({'d0': FREE, 'd1': FREE}, []), (self.host.states(), self.rows()))
        self.manager.operator.cordon('vpmem', 'd0')
        self.assertEqual(CORDONED, self.host.states()['d0'])

    def test_it_is_withheld_while_the_store_works(self) -> None:
        seen = []
        self.store.before('set_withheld', lambda: seen.append(self.host.states()['d0']))
        self.manager.operator.cordon('vpmem', 'd0')
        self.store.before('set_withheld', lambda: seen.append(self.host.states()['d0']))
        self.manager.operator.uncordon('vpmem', 'd0')
        self.assertEqual([CORDONED, CORDONED], seen)

    def test_a_doubt_of_before_is_there_again(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.machine.delete_guest(instance.uuid)
        self.machine.remove(D0)
        now = self.host.running.ledger.now
        vars(self.host.running.ledger)['_now'] = now.with_devices({
            D0: now.devices[D0]._replace(reasons=now.devices[D0].reasons | {'in doubt'})})
        self.machine.unknown_domains['x'] = 'garbage'
        self.host.audit()
        self.assertEqual(['audit', 'audit'], [json.loads(row.reasons)['in doubt']['by'] for row in self.rows()])
        self.machine.clear()
        self.store.before('set_withheld', REFUSED)
        self.assertRaises(exception.StoreUnavailable, self.host.running.repairs.forget, D0, instance.uuid)
        self.assertEqual([D0, D1], sorted(self.host.running.ledger.now.withheld_for('in doubt')))
        self.assertEqual(['d0'], [row.identifier for row in self.host.records()])

    def test_an_answer_that_was_lost(self) -> None:
        for stage in (self.store.before, self.store.after):
            stage('set_withheld', UNKNOWN)
            self.assertRaises(exception.OutcomeUnknown, self.manager.operator.cordon, 'vpmem', 'd0')
            self.assertEqual(CORDONED, self.host.states()['d0'])
            self.host.audit()
            self.assertEqual({('device', 'd0'): {'cordoned': ''}}, self.stored())
            writes = self.writes()
            self.host.audit()
            self.assertEqual(writes, self.writes())
            self.manager.operator.uncordon('vpmem', 'd0')

    def test_a_refusal_leaves_it_cordoned(self) -> None:
        self.manager.operator.cordon('vpmem', 'd0')
        self.store.before('set_withheld', REFUSED)
        self.assertRaises(exception.StoreUnavailable, self.manager.operator.uncordon, 'vpmem', 'd0')
        self.host.restart()
        self.assertEqual(CORDONED, self.host.states()['d0'])

    def test_it_stays_cordoned_when_the_answer_was_lost(self) -> None:
        for stage in (self.store.before, self.store.after):
            self.manager.operator.cordon('vpmem', 'd0')
            stage('set_withheld', UNKNOWN)
            self.assertRaises(exception.OutcomeUnknown, self.manager.operator.uncordon, 'vpmem', 'd0')
            self.host.audit()
            self.assertEqual((CORDONED, {('device', 'd0'): {'cordoned': ''}}),
                             (self.host.states()['d0'], self.stored()))
            self.manager.operator.uncordon('vpmem', 'd0')
            self.assertEqual((FREE, {}), (self.host.states()['d0'], self.stored()))

    def test_an_audit_goes_on_and_the_next_one_stores_what_it_saw(self) -> None:
        self.machine.change(D0, unhealthy='hot')
        for error in (REFUSED, UNKNOWN):
            self.store.before('set_withheld', error)
            self.assertEqual([findings.UNHEALTHY], [finding.kind for finding in self.host.audit()])
        self.host.audit()
        self.assertEqual({('device', 'd0'): {'unhealthy': 'hot'}}, self.stored())

    def test_a_start_goes_on_too(self) -> None:
        self.machine.change(D0, unhealthy='hot')
        self.store.before('set_withheld', REFUSED)
        self.host.restart()
        self.assertEqual((UNHEALTHY, []), (self.host.states()['d0'], self.rows()))

    def test_without_knowing_what_is_withheld_nothing_starts(self) -> None:
        self.store.before('withheld', REFUSED)
        self.assertRaises(exception.StoreUnavailable, self.host.restart)
        self.host.restart()


class AuditTestCase(WithheldTestCase):

    def test_a_clean_host_writes_nothing(self) -> None:
        self.host.spawn(pmem=1, vgpu=1)
        self.host.audit()
        self.host.restart()
        self.assertEqual(0, self.writes())

    def test_what_stays_as_it_is_is_written_once(self) -> None:
        instance = self.host.spawn(pmem=1)
        for name in ('d2', 'd3', 'd4'):
            self.machine.add_namespace(name)
        self.machine.delete_guest(instance.uuid)
        self.machine.remove(D0)
        self.host.running.repairs.forget(D0, instance.uuid)
        self.machine.add_namespace('d0')
        self.foreign_guest(D1)
        self.machine.change(DeviceKey(fake.VPMEM, 'd2'), unhealthy='hot')
        self.machine.change(DeviceKey(fake.VPMEM, 'd4'), assignable=False)
        self.host.audit()
        self.manager.operator.cordon('vpmem', 'd3')
        self.manager.operator.cordon('mdev', 'p0', parent=True)
        self.host.audit()
        before, writes = self.rows(), self.writes()
        self.assertEqual({('device', 'd0'), ('device', 'd1'), ('device', 'd2'), ('device', 'd3'), ('parent', 'p0')},
                         set(self.stored()))
        for again in (self.host.audit, self.host.audit, self.host.restart, self.host.audit):
            again()
        self.assertEqual((before, writes), (self.rows(), self.writes()))

    def test_what_cannot_be_read_for_long_is_written_once(self) -> None:
        self.machine.unknown_domains['x'] = 'garbage'
        self.host.audit()
        writes = self.writes()
        for again in (self.host.audit, self.host.restart, self.host.audit):
            again()
        self.assertEqual({('device', name): {'in doubt': 'who uses it could not be read'} for name in ('d0', 'd1')},
                         self.stored())
        self.assertEqual(writes, self.writes())
        self.machine.clear()
        self.host.audit()
        self.assertEqual(([], {'d0': FREE, 'd1': FREE}), (self.rows(), self.host.states()))

    def test_unhealthy_is_noted_follows_the_host_and_ends_by_itself(self) -> None:
        self.machine.change(D0, unhealthy='hot')
        self.host.audit()
        [row] = self.rows()
        self.machine.change(D0, unhealthy='read-only')
        self.host.audit()
        [now] = self.rows()
        cause, before = (json.loads(one.reasons)['unhealthy'] for one in (now, row))
        self.assertEqual({**before, 'detail': 'read-only', 'by': 'host'}, cause)
        self.machine.change(D0, unhealthy=None)
        self.host.audit()
        self.assertEqual(([], FREE), (self.rows(), self.host.states()['d0']))

    def test_unhealthy_names_device_and_owner_and_its_owner_keeps_it(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.machine.change(D0, unhealthy='read-only')
        [finding] = self.host.audit()
        self.assertEqual(f'vpmem/d0: unhealthy: read-only; owner {instance.uuid}', str(finding))
        self.assertEqual({('device', 'd0'): {'unhealthy': 'read-only'}}, self.stored())
        self.host.delete(instance)
        self.assertEqual(UNHEALTHY, self.host.states()['d0'])

    def test_foreign_is_noted_with_who_uses_it(self) -> None:
        self.foreign_guest()
        self.host.audit()
        self.assertEqual({('device', 'd0'): {'foreign': 'named by domain x'}}, self.stored())
        self.machine.delete_guest('x')
        self.host.audit()
        self.assertEqual([], self.rows())

    def test_foreign_stays_so_over_a_start_that_cannot_see_it(self) -> None:
        self.foreign_guest()
        self.host.audit()
        self.machine.unknown_domains['x'] = 'garbage'
        self.host.restart()
        self.assertEqual('withheld: foreign, in doubt, unproven', self.host.states()['d0'])
        self.assertEqual('named by domain x', self.stored()['device', 'd0']['foreign'])
        self.machine.delete_guest('x')
        self.machine.clear()
        self.host.restart()
        self.assertEqual((FREE, []), (self.host.states()['d0'], self.rows()))

    def test_nothing_ends_while_the_host_does_not_say(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.machine.change(D0, unhealthy='hot')
        self.machine.change(D1, unhealthy='hot')
        self.host.audit()
        before = self.rows()
        self.machine.change(D0, unhealthy=None)
        self.machine.change(D1, unhealthy=None)
        self.machine.unknown_kinds[fake.VPMEM] = 'ndctl failed'
        for again in (self.host.audit, self.host.restart, self.host.audit):
            again()
            self.assertEqual(before, self.rows())
        self.machine.clear()
        self.host.audit()
        self.assertEqual([], self.rows())
        self.assertEqual(instance.uuid, self.host.held()['d0'])

    def test_one_that_is_not_there_any_more_simply_is_not_there(self) -> None:
        self.machine.change(D0, unhealthy='hot')
        self.host.audit()
        self.machine.remove(D0)
        self.assertEqual([], self.host.audit())
        self.assertEqual(([], {'d1': FREE}), (self.rows(), self.host.states()))

    def test_one_that_the_store_refused_is_noted_until_its_owner_is_known(self) -> None:
        other = Instance()
        self.host.claim(other, pmem=1)
        [row] = self.host.records(other)
        self.manager.abort_instance_claim(None, other)
        self.store.store.write(Changes(insert=(row._replace(claim_id='theirs'),)))
        self.assertRaises(exception.NoFit, self.host.claim, Instance(), pmem=2)
        self.assertEqual([], self.rows())
        self.host.audit()
        self.assertEqual({('device', 'd0'): {'in doubt': 'the store says that it has an owner'}}, self.stored())
        self.host.audit()
        self.assertEqual(([], other.uuid), (self.rows(), self.host.held()['d0']))

    def test_a_domain_on_a_device_that_is_held_without_a_row_keeps_it_from_others(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.manager.close()                    # else it knows the row
        self.store.store.write(Changes(delete=tuple(self.host.records())))
        self.machine.domains[instance.uuid].metadata = ''
        self.host.restart()
        self.host.audit()
        self.assertEqual(FOREIGN + ', unproven', self.host.states()['d0'])
        self.machine.delete_guest(instance.uuid)

    def test_what_is_withheld_is_listed_with_who_has_it(self) -> None:
        instance = self.host.spawn(pmem=1, vgpu=1)
        self.manager.operator.cordon('vpmem', 'd0', reason='firmware')
        self.manager.operator.cordon('mdev', 'p0', parent=True)
        self.machine.change(D1, assignable=False)
        self.machine.change(D0, unhealthy='hot')
        self.host.audit()
        self.assertEqual([
            f'parent mdev/p0 is withheld: cordoned; instance {instance.uuid} has {self.host.mdevs()[0]}, active',
            f'vpmem/d0 is withheld: cordoned (firmware), unhealthy (hot); instance {instance.uuid} has d0, active',
            'vpmem/d1 is withheld: made by others'], [str(one) for one in self.manager.operator.withheld()])


class ForgottenTestCase(WithheldTestCase):
    """A device that was forgotten comes back with somebody's bytes on it, maybe."""

    def setUp(self) -> None:
        super().setUp()
        self.instance = self.host.spawn(pmem=1, vgpu=1)
        self.machine.delete_guest(self.instance.uuid)
        self.machine.remove(D0)

    def forget_and_bring_back(self) -> None:
        self.host.running.repairs.forget(D0, self.instance.uuid)
        self.machine.add_namespace('d0')
        self.host.audit()

    def test_it_is_withheld_when_it_comes_back(self) -> None:
        self.forget_and_bring_back()
        for again in (self.host.audit, self.host.restart, self.host.audit):
            again()
            self.assertEqual({'d0': FORGOTTEN, 'd1': FREE}, {key: self.host.states()[key] for key in ('d0', 'd1')})
        [finding] = [row for row in self.rows() if row.name == 'd0']
        self.assertIn(f'forgotten while instance {self.instance.uuid} had it', finding.reasons)
        self.assertIn('1 withheld (in doubt, unproven)', str(self.assertRaises(
            exception.NoFit, self.host.claim, Instance(), pmem=2)))

    def test_it_comes_back_when_somebody_says_that_it_is_clean(self) -> None:
        self.forget_and_bring_back()
        self.assertEqual({}, self.manager.operator.admit('vpmem', 'd0').causes)
        self.assertEqual((FREE, []), (self.host.states()['d0'], self.rows()))
        self.host.restart()
        self.assertEqual(FREE, self.host.states()['d0'])

    def test_that_cannot_be_said_before_it_is_back(self) -> None:
        self.host.running.repairs.forget(D0, self.instance.uuid)
        self.assertIn('the host does not have it', str(self.assertRaises(
            exception.NotAdmitted, self.manager.operator.admit, 'vpmem', 'd0')))
        self.machine.add_namespace('d0')
        self.machine.unknown_kinds[fake.VPMEM] = 'ndctl failed'
        self.assertIn('vpmem cannot be read (ndctl failed)', str(self.assertRaises(
            exception.NotAdmitted, self.manager.operator.admit, 'vpmem', 'd0')))
        self.machine.clear()
        self.host.audit()
        self.assertEqual(FORGOTTEN, self.host.states()['d0'])

    def test_an_audit_and_a_claim_that_finds_no_room_admit_only_what_they_withheld(self) -> None:
        self.machine.unknown_domains['x'] = 'garbage'
        self.host.audit()
        self.machine.clear()
        self.forget_and_bring_back()
        self.host.claim(Instance(), pmem=1)
        self.assertRaises(exception.NoFit, self.host.claim, Instance(), pmem=1)
        self.assertEqual(FORGOTTEN, self.host.states()['d0'])

    def test_it_is_not_admitted_while_somebody_uses_it_or_nobody_can_say(self) -> None:
        self.forget_and_bring_back()
        self.foreign_guest()
        self.assertIn('domain x names it', str(self.assertRaises(
            exception.NotAdmitted, self.manager.operator.admit, 'vpmem', 'd0')))
        self.machine.unknown_domains['x'] = 'garbage'
        self.assertIn('domain x cannot be read (garbage)', str(self.assertRaises(
            exception.NotAdmitted, self.manager.operator.admit, 'vpmem', 'd0')))
        self.machine.clear()
        self.machine.disconnected = 'restarting'
        self.assertRaises(exception.HypervisorUnreachable, self.manager.operator.admit, 'vpmem', 'd0')
        self.assertEqual(FORGOTTEN, self.host.states()['d0'])

    def test_only_what_was_forgotten_is_admitted(self) -> None:
        self.forget_and_bring_back()
        self.manager.operator.cordon('vpmem', 'd1')
        error = self.assertRaises(exception.BadRequest, self.manager.operator.admit, 'vpmem', 'd1')
        self.assertEqual("device: 'vpmem/d1': it is cordoned: end that with device uncordon. Only forgotten or "
                         'retired devices can be admitted; those of this host: vpmem/d0', str(error))
        self.manager.operator.admit('vpmem', 'd0')
        error = self.assertRaises(exception.BadRequest, self.manager.operator.admit, 'vpmem', 'd0')
        self.assertEqual("device: 'vpmem/d0': it was neither forgotten nor retired. Only forgotten or retired devices "
                         'can be admitted; those of this host: none', str(error))

    def test_a_device_that_an_instance_has_is_refused_for_that_reason(self) -> None:
        for wipe in (False, True):
            error = self.assertRaises(exception.BadRequest, self.manager.operator.admit, 'vpmem', 'd0', wipe)
            self.assertEqual(f"device: 'vpmem/d0': instance {self.instance.uuid} has it: it is free when the instance "
                             'gives it back', str(error))
        self.machine.delete_guest(self.instance.uuid)
        self.assertRaises(exception.DeviceGone, self.manager.release, None, self.instance)
        self.assertIn('is giving it back', str(self.assertRaises(
            exception.BadRequest, self.manager.operator.admit, 'vpmem', 'd0')))

    def test_a_crash_before_the_row_is_gone_leaves_it_noted(self) -> None:
        self.store.before('write', REFUSED)
        self.assertRaises(exception.StoreUnavailable, self.host.running.repairs.forget, D0, self.instance.uuid)
        self.host.restart()
        self.assertEqual(('active', ['d0']), (self.host.states()['d0'], [row.name for row in self.rows()]))
        self.assertIn('has it', str(self.assertRaises(exception.NotAdmitted, self.manager.operator.admit, 'vpmem',
                                                      'd0')))
        self.forget_and_bring_back()
        self.assertEqual(FORGOTTEN, self.host.states()['d0'])

    def test_what_the_store_does_not_note_is_not_forgotten(self) -> None:
        self.store.before('set_withheld', REFUSED)
        self.assertRaises(exception.StoreUnavailable, self.host.running.repairs.forget, D0, self.instance.uuid)
        self.assertEqual(('active', []), (self.host.states()['d0'], self.rows()))

    def test_a_mediated_device_that_we_made_comes_back_never(self) -> None:
        [row] = [row for row in self.host.records() if row.kind == fake.MDEV]
        self.machine.remove(row.key)
        self.host.running.repairs.forget(row.key, self.instance.uuid)
        self.assertEqual([], self.rows())

    def test_an_option_may_name_it_still(self) -> None:
        self.machine.missing = (Missing(D0, '[libvirt] pmem_namespaces', 'there is none'),)
        self.host.running.repairs.forget(D0, self.instance.uuid)
        self.host.restart()
        self.machine.missing = ()
        self.machine.add_namespace('d0')
        self.host.audit()
        self.assertEqual(FORGOTTEN, self.host.states()['d0'])

    def test_cordoned_and_forgotten(self) -> None:
        self.manager.operator.cordon('vpmem', 'd0')
        self.forget_and_bring_back()
        self.assertEqual('withheld: cordoned, in doubt, unproven', self.host.states()['d0'])
        self.manager.operator.uncordon('vpmem', 'd0')
        self.assertEqual(FORGOTTEN, self.host.states()['d0'])
        self.manager.operator.admit('vpmem', 'd0')
        self.assertEqual(FREE, self.host.states()['d0'])
