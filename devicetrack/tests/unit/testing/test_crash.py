"""That the crash kit lets a service pass that survives, and finds those that do not."""

import io
import os
import pathlib
import re
import runpy
import sys
import threading
from unittest import mock

import fixtures
import testtools

import devicetrack
from devicetrack import exception
from devicetrack.claims import running
from devicetrack.claims.life import Life
from devicetrack.engine import exclusion
from devicetrack.objects.values import Usage
from devicetrack.store.api import Changes
from devicetrack.testing import crash
from devicetrack.testing.crash import explore
from devicetrack.testing.crash import machines
from devicetrack.testing.crash import moments
from devicetrack.testing.crash import program
from devicetrack.testing.crash import stores
from devicetrack.tests.crash import operations
from devicetrack.tests.crash import service

ROOT = pathlib.Path(devicetrack.__file__).parents[1]
KILL = [moments.KILL]


class Boot(operations.Boot):
    """With one namespace, which is enough here and quick."""

    def setup(self, world):
        self.instance = world.data.create('one', service.Flavor(name='tiny', pmem=1))


class Delete(operations.Delete):

    def setup(self, world):
        self.instance = operations.booted(world, flavor=service.Flavor(name='tiny', pmem=1))


class ForgetfulStore:
    """A store that never deletes a row."""

    def __init__(self, store):
        self._store = store

    def __getattr__(self, name):
        return getattr(self._store, name)

    def at_epoch(self, host, own=None):
        return type(self)(self._store.at_epoch(host, own))

    def write(self, changes):
        if changes.insert or changes.update or changes.contexts:
            self._store.write(changes._replace(delete=()))


class StoreWithoutCordons(ForgetfulStore):
    """A store that never keeps what is withheld."""

    def write(self, changes):
        self._store.write(changes)

    def set_withheld(self, write, delete=(), events=()):
        pass


class WithoutCordons(service.Compute):

    def __init__(self, parts):
        super().__init__(parts._replace(store=StoreWithoutCordons(parts.store)))


class WithForgetfulStore(service.Compute):

    def __init__(self, parts):
        super().__init__(parts._replace(store=ForgetfulStore(parts.store)))


class HastyLife(Life):
    """Frees devices before their rows are deleted."""

    def release(self, leaving, wait=True):
        if leaving:
            vars(self)['_rows'].ledger.free_of(leaving[0].instance_uuid, [record.key for record in leaving])
        super().release(leaving, wait)


class WithHastyLife(service.Compute):

    def make_manager(self):
        return _with(HastyLife, super().make_manager)


class TrustfulLife(Life):
    """Takes devices that were being released for wiped. Only who is killed in between can see the difference."""

    def release_some(self, records, wait=True):
        if records:
            vars(self)['_rows'].write(Changes(delete=tuple(records)))
            vars(self)['_rows'].ledger.free_of(records[0].instance_uuid, [record.key for record in records])


class WithTrustfulLife(service.Compute):

    def make_manager(self):
        return _with(TrustfulLife, super().make_manager)


class UnfencedStore(ForgetfulStore):
    """A store in which a manager goes on to write when another one has taken its host."""

    def at_epoch(self, host, own=None):
        return self

    def write(self, changes):
        self._store.write(changes)


class Unfenced(service.Compute):

    def __init__(self, parts):
        super().__init__(parts._replace(store=UnfencedStore(parts.store)))


class SureStore(ForgetfulStore):
    """A store that takes a commit without an answer for one that never happened."""

    def write(self, changes):
        try:
            self._store.write(changes)
        except exception.OutcomeUnknown as error:
            raise exception.StoreUnavailable('store', 'it hangs') from error


class WithSureStore(service.Compute):

    def __init__(self, parts):
        super().__init__(parts._replace(store=SureStore(parts.store)))


class RashLife(Life):
    """Takes a hypervisor that does not answer for one that uses nothing and will make nothing."""

    def release(self, leaving, wait=True):
        try:
            super().release(leaving, wait)
        except exception.HypervisorUnreachable:
            vars(self)['_rows'].write(Changes(delete=tuple(leaving)))
            vars(self)['_rows'].ledger.free_of(leaving[0].instance_uuid, [record.key for record in leaving])


class WithRashLife(service.Compute):

    def make_manager(self):
        return _with(RashLife, super().make_manager)


class Unconfirmed(machines.Driver):
    """Asks nobody whether the row is still there that is given back."""

    def unclaim(self, assignments, confirm=None):
        return super().unclaim(assignments)


class AsksOnce(machines.Driver):
    """Asks the hypervisor once, before it gives back the first of several devices."""

    def unclaim(self, assignments, confirm=None):
        usage = self.machine.usage(guarding=True)
        with mock.patch.object(self.machine, 'usage', lambda **_: usage):
            return super().unclaim(assignments, confirm)


class AsksNoMoreAfterwards(machines.Driver):
    """Asks before it changes a device, and not again before its row goes."""

    def unclaim(self, assignments, confirm=None):
        answers = iter([self.machine.usage] * len(assignments))
        nobody = Usage((), frozenset(), frozenset(), ())
        with mock.patch.object(self.machine, 'usage', lambda **_: next(answers, lambda: nobody)()):
            return super().unclaim(assignments, confirm)


class SeesNothingSaved(crash.Machine):
    """A hypervisor that is not asked for managed-save images."""

    def usage(self, guarding=False):
        saved = {name: domain.saved for name, domain in self.domains.items()}
        try:
            for domain in self.domains.values():
                domain.saved = None
            return super().usage(guarding)
        finally:
            for name, domain in self.domains.items():
                domain.saved = saved[name]


class LeavesTheDriver(crash.Machine):
    """A machine on which functions that are given back stay with the driver for guests."""

    def unrealize(self, assignment):
        lent = set(self.lent)
        super().unrealize(assignment)
        self.lent |= lent


class ExcludesNothing(service.Compute):
    """Its ledger knows no device that keeps another one from being handed out."""

    def make_manager(self):
        # The process was forked for one run, so nobody has to end it.
        mock.patch.object(exclusion, 'is_excluded', lambda _tokens, _exclusions, _is_taken=False: False).start()
        return super().make_manager()


class DeleteFunction(operations.Delete):

    def setup(self, world):
        self.instance = operations.booted(world, flavor=service.Flavor(name='function', vfs=1))


def _with(life, make):
    """Have hosts of this process live another life; the process is forked for one run."""
    vars(running)['Life'] = life
    return make()


class ForgetfulService(service.Compute):
    """Does not go on with a delete after a start."""

    def resume(self):
        pass


class Relaying(service.Compute):
    """Hands an order on to the process of another host, which may hand it on too."""

    def __init__(self, parts):
        super().__init__(parts)
        self.tell = parts.tell

    def relay(self, hosts, name, *args):
        if hosts:
            self.tell(hosts[0], 'relay', hosts[1:], name, *args)
        else:
            getattr(self, name)(*args)


class Hanging(service.Compute):

    def hang(self):
        threading.Event().wait()

    def work_without_end(self):
        while True:
            self.audit()


class Hang(Delete):
    process = Hanging

    def __init__(self, call):
        self.call = call

    def run(self, world):
        self.pid = world['a'].pid
        world['a'].tell(self.call)


class RelayedBoot(Boot):
    hosts = ('a', 'b')
    process = Relaying

    def run(self, world):
        instance = world.data.get_instance(self.instance)
        world['a'].relay(['b', 'a', 'b'], 'spawn', instance, instance.flavor.request)


def on(process, operation):
    """The operation with another compute service."""
    made = operation()
    made.process = process
    return made


class CrashTestCase(testtools.TestCase):

    def explorer(self, **options):
        explorer = crash.Explorer(stores.SQLiteStores(), **options)
        self.addCleanup(explorer.close)
        return explorer


class SurvivalTestCase(CrashTestCase):

    def test_a_boot_survives(self):
        # ``make crash-test`` has the other variants.
        report = self.explorer().explore(Boot(), (moments.KILL, explore.AGAIN))
        self.assertIsNone(report.first, report.first and report.describe())
        self.assertEqual({}, report.failures)
        self.assertEqual(report.points, report.runs[moments.KILL])
        self.assertLess(10, report.points)
        self.assertLess(report.points, report.restarts)
        self.assertLess(1, report.states)

    def test_points_are_found_and_not_listed(self):
        [course] = self.explorer().try_out(Boot(), record=True).courses
        calls = list(dict.fromkeys(f'{moment.kind}.{moment.call}' for moment in course.points()))
        in_order = ['ledger.take', 'driver.claim_for_instance', 'store.write', 'driver.realize', 'driver.guest_config',
                    'hypervisor.start_guest']
        self.assertEqual(in_order, [call for call in calls if call in in_order])
        self.assertNotIn('store.records', calls)
        self.assertNotIn('ledger.device', calls)
        commits = [moment.when for moment in course.points() if (moment.kind, moment.call) == ('store', 'write')]
        self.assertEqual(['before', 'after'] * 3, commits)

    def test_a_run_can_be_repeated_at_one_point(self):
        explorer = self.explorer()
        [course] = explorer.try_out(Boot(), record=True).courses
        after_commit = next(moment for moment in course.points()
                            if (moment.kind, moment.when) == (moments.STORE, moments.AFTER))
        result = explorer.try_out(Boot(), [moments.Fault(after_commit.number, moments.KILL)], [course.moments])
        self.assertEqual([], result.wrong)
        self.assertEqual(after_commit, result.courses[0].struck)
        self.assertIn(f'    {after_commit}', result.trace())

    def test_a_process_that_gets_orders_while_it_waits_for_another_one_survives(self):
        report = self.explorer().explore(RelayedBoot(), KILL, every_point=False)
        self.assertEqual({}, report.failures, report.first and report.describe())

    def test_it_is_killed_before_and_after_it_tells_another_one_something_and_in_the_part_of_that(self):
        explorer = self.explorer()
        [course] = explorer.try_out(RelayedBoot(), record=True).courses
        points = course.points()
        told = [moment for moment in points if moment.kind == moments.HOST]
        self.assertEqual(
            [*[(host, moments.BEFORE) for host in 'aba'], *[(host, moments.AFTER) for host in 'aba']],
            [(moment.host, moment.when) for moment in told])
        for struck in (*told, points[len(points) // 2]):
            result = explorer.try_out(RelayedBoot(), [moments.Fault(struck.number, moments.KILL)], [course.moments])
            self.assertEqual(([], struck), (result.wrong, result.courses[0].struck))


class FailureTestCase(CrashTestCase):

    def assert_found(self, operation, *words, variants=KILL, until_failure=True):
        report = self.explorer().explore(operation, variants, until_failure=until_failure)
        self.assertIsNotNone(report.first, 'nothing was found')
        for word in words:
            self.assertIn(word, report.describe())
        if until_failure:
            self.assertEqual(1, sum(report.failures.values()))
        return report

    def test_a_row_that_is_not_deleted(self):
        report = self.assert_found(on(WithForgetfulStore, Delete), 'has a row for', 'without any fault')
        self.assertEqual({'none': 1}, report.failures)

    def test_a_device_that_is_free_before_its_row_is_deleted(self):
        report = self.assert_found(on(WithHastyLife, Delete), 'd0 has a row for',
                                   'and is held for None; at the moments [host a: ledger.free_of, after]')
        self.assertEqual(1, report.describe().count('d0 has a row for'))

    def test_a_device_that_is_free_and_not_wiped_after_a_crash(self):
        report = self.assert_found(on(WithTrustfulLife, Delete), 'has no owner and has what', 'is killed',
                                   until_failure=False)
        self.assertNotIn('none', report.failures)
        self.assertLess(report.failures[moments.KILL], report.runs[moments.KILL])

    def test_a_cordon_that_is_in_memory_alone(self):
        report = self.assert_found(on(WithoutCordons, operations.Cordon), 'is cordoned, and should be', 'is killed')
        self.assertNotIn('none', report.failures)

    def test_a_service_that_does_not_go_on(self):
        report = self.assert_found(on(ForgetfulService, Delete), 'is killed')
        self.assertNotIn('none', report.failures)

    def test_a_store_without_a_fence(self):
        operation = on(Unfenced, Boot)
        operation.next_sizes = (1,)             # so that the older manager finds a device that is free
        report = self.assert_found(operation, 'has a row for', 'another manager of the host',
                                   variants=[moments.TAKEOVER])
        self.assertNotIn('none', report.failures)

    def test_a_wipe_without_a_look_at_the_row(self):
        self.useFixture(fixtures.MonkeyPatch('devicetrack.testing.crash.machines.Driver', Unconfirmed))
        self.assert_found(Delete(), 'lost what its owner', 'another manager', variants=[moments.TAKEOVER])

    def test_a_commit_that_comes_after_the_death_of_its_process(self):
        self.assert_found(on(Unfenced, Boot), 'has a row for', 'in the end the database does', variants=[moments.HUNG])

    def test_a_commit_that_is_taken_for_lost_while_the_database_hangs(self):
        self.assert_found(on(WithSureStore, Boot), 'has a row for', 'when it comes back', variants=[moments.HANG])

    def test_a_device_that_a_hypervisor_makes_after_it_hung(self):
        self.assert_found(on(WithRashLife, operations.Boot), 'is realized without a row', 'when it comes back',
                          variants=[moments.HANG])

    def test_a_guest_that_is_started_while_another_device_is_wiped(self):
        self.useFixture(fixtures.MonkeyPatch('devicetrack.testing.crash.machines.Driver', AsksOnce))
        self.assert_found(operations.Delete(), 'was wiped under', 'somebody else starts', variants=[moments.GUEST])

    def test_a_guest_that_is_started_after_the_wipe(self):
        self.useFixture(fixtures.MonkeyPatch('devicetrack.testing.crash.machines.Driver', AsksNoMoreAfterwards))
        self.assert_found(Delete(), 'without a row', 'somebody else starts', variants=[moments.GUEST])

    def test_a_function_that_stays_with_the_driver_for_guests(self):
        self.useFixture(fixtures.MonkeyPatch('devicetrack.tests.crash.operations.Machine', LeavesTheDriver))
        report = self.assert_found(DeleteFunction(), 'has the driver for guests still', 'without any fault')
        self.assertEqual({'none': 1}, report.failures)

    def test_a_card_that_is_handed_out_beside_its_function(self):
        self.assert_found(on(ExcludesNothing, operations.Excluded), 'beside 0000:81:00.1', 'without any fault')

    def test_a_managed_save_image_that_nobody_looks_at(self):
        self.useFixture(fixtures.MonkeyPatch('devicetrack.tests.crash.operations.Machine', SeesNothingSaved))
        self.assert_found(operations.DeleteSaved(), 'd0 is in use', 'without a row')

    def test_a_process_that_does_not_end_its_work(self):
        for call in ('hang', 'work_without_end'):
            operation = Hang(call)
            [wrong] = self.explorer(timeout_s=2).try_out(operation).wrong
            self.assertIn('did not end, and the run took longer than 2 s', wrong)
            if hasattr(operation, 'pid'):       # else this machine is slow, and the setup took as long
                self.assertRaises(ProcessLookupError, os.kill, operation.pid, 0)

    def test_what_is_wrong_at_several_points_is_said_once_with_the_points(self):
        report = self.assert_found(on(ForgetfulService, Delete), 'the process is killed: host a: store.write, before',
                                   until_failure=False)
        _first, others = report.describe().split('in the other failures, and their points:')
        self.assertEqual(1, others.count('and should be {'))
        self.assertLess(1, others.count('the process is killed'))

    def test_an_error_that_nobody_staged(self):
        class Nothing(Delete):
            def run(self, world):
                world['a'].no_such_method()

        self.assert_found(Nothing(), 'no_such_method')


class CourseTestCase(testtools.TestCase):

    def recorded(self, *calls):
        """A course of calls: kind, whether something changed."""
        course = moments.Course(recording=True)
        for kind, changed in calls:
            course.reach('a', kind, 'call', moments.BEFORE, 'before')
            course.reach('a', kind, 'call', moments.AFTER, 'after' if changed else 'before')
        return course

    def test_what_changes_something_makes_two_points(self):
        course = self.recorded((moments.STORE, True), (moments.STORE, False), (moments.LEDGER, True),
                               (moments.LEDGER, False))
        self.assertEqual([0, 1, 4, 5], [moment.number for moment in course.points()])

    def test_a_call_of_the_driver_always_does(self):
        self.assertEqual([0, 1], [moment.number for moment in self.recorded((moments.DRIVER, False)).points()])

    def test_a_cut_is_before_every_call_of_the_store_and_after_every_commit(self):
        course = self.recorded((moments.STORE, True), (moments.LEDGER, True), (moments.STORE, False))
        self.assertEqual([0, 1, 4], [fault.number for fault in course.faults(moments.CUT)])
        self.assertEqual([1], [fault.number for fault in course.faults(moments.LOST)])

    def test_another_way_is_not_gone_in_silence(self):
        recorded = self.recorded((moments.STORE, True), (moments.DRIVER, True)).moments
        course = moments.Course(moments.Fault(3, moments.KILL), recorded=recorded)
        course.reach('a', moments.STORE, 'call', moments.BEFORE)
        self.assertRaises(moments.WentAnotherWay, course.reach, 'a', moments.DRIVER, 'call', moments.BEFORE)

    def test_a_process_tells_of_the_moments_that_matter(self):
        attention = moments.Course(moments.Fault(5, moments.KILL)).attention()
        self.assertEqual([4, 5], [passed for passed in range(9) if attention.wants(passed)])
        self.assertFalse(moments.Course().attention().counts)


class ProgramTestCase(testtools.TestCase):

    def run_program(self, operations_, *arguments):
        output = io.StringIO()
        self.useFixture(fixtures.MonkeyPatch('sys.stdout', output))
        self.useFixture(fixtures.MonkeyPatch('sys.stderr', io.StringIO()))
        status = program.main(operations_, [*arguments, '--store', 'sqlite'])
        sys.stdout = sys.__stdout__
        return status, output.getvalue()

    def test_a_table_and_zero(self):
        status, output = self.run_program([Delete], '--variant', 'lost', '--workers', '1')
        self.assertEqual(0, status, output)
        self.assertRegex(output, r'delete +SQLite +a \d+ +2/2 .* ok')

    def test_kills_at_all_points_or_once_for_what_they_leave_behind(self):
        status, output = self.run_program([Delete], '--variant', 'kill', '--no-every-point', '--workers', '1')
        [(points, killed, _of, left)] = re.findall(r'delete +SQLite +a (\d+) +(\d+)/(\d+) +\d+ +(\d+) +ok', output)
        self.assertEqual((0, left), (status, killed))
        self.assertLess(int(killed), int(points))
        self.assertIn('On sqlite the process is killed at the first of the points', output)

    def test_the_smallest_failure_and_one(self):
        status, output = self.run_program([Delete, lambda: on(WithForgetfulStore, Delete)], '--variant', 'lost')
        self.assertEqual(1, status)
        self.assertIn('FAILED', output)
        self.assertIn('The smallest failure:\n\ndelete on SQLite: without any fault', output)

    def test_a_name_that_no_operation_has(self):
        status, output = self.run_program([Delete], 'explode')
        self.assertEqual(2, status)
        self.assertIn('delete', output)


class DocumentationTestCase(CrashTestCase):
    """Killed once for each different thing that is left behind: a restart sees nothing else."""

    def setUp(self):
        super().setUp()
        self.example = runpy.run_path(str(ROOT / 'doc' / 'source' / 'user' / 'crash_kit.py'))

    def assert_survives(self, operation, *variants):
        report = self.explorer().explore(operation, (moments.KILL, *variants), every_point=False)
        self.assertEqual({}, report.failures, report.first and report.describe())

    def test_a_boot_and_a_delete_survive(self):
        self.assert_survives(self.example['Boot'](), 'takeover')
        self.assert_survives(self.example['Delete']())

    def test_a_revert_survives(self):
        self.assert_survives(self.example['Revert'](), 'outage', 'takeover')

    def test_a_cold_migration_survives(self):
        self.assert_survives(self.example['ColdMigration']())

    def test_a_cold_migration_of_a_guest_that_is_off_survives(self):
        instance, operation = self.example['INSTANCE'], self.example['ColdMigration']()
        setup, finish = operation.setup, operation.finish

        def turn_off(world):
            setup(world)
            world['a'].stop(instance)

        def turn_on(world):
            finish(world)
            for document in operation.documents(world):
                world[document.host].power_on(instance)

        operation.setup, operation.finish = turn_off, turn_on
        self.assert_survives(operation)

    def test_a_live_migration_survives(self):
        self.assert_survives(self.example['LiveMigration'](), 'takeover')

    def test_an_evacuation_survives(self):
        self.assert_survives(self.example['Evacuation']())

    def test_both_hosts_of_a_live_migration_are_killed_at_each_save_and_call(self):
        [course] = self.explorer().try_out(self.example['LiveMigration'](), record=True).courses
        calls = {f'{moment.host}: {moment.kind}.{moment.call}' for moment in course.points()}
        self.assertLessEqual({f'{host}: {call}' for host in 'ab' for call in ('data.save', 'store.write')}, calls)
        self.assertLessEqual({'a: host.tell_other', 'a: hypervisor.send_guest', 'a: hypervisor.hand_over'}, calls)

    def test_what_the_page_invites_to_break_is_found(self):
        careless = type('Careless', (self.example['Service'],), {'start': crash.ComputeProcess.start,
                                                                 'audit': crash.ComputeProcess.audit})
        report = self.explorer().explore(on(careless, self.example['Boot']), KILL, until_failure=True)
        self.assertIn('owners are {} and should be', report.describe())
