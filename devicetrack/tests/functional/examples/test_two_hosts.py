"""The compute service of ``examples/two_hosts`` prints what the page about wiring says, and saves what it lists."""

from __future__ import annotations

from collections.abc import Callable
import logging
import pathlib
import re
import runpy
import textwrap
from typing import Any
from unittest import mock
import uuid

import devicetrack
from devicetrack import exception
from devicetrack.claims.claim import Claim
from devicetrack.engine import findings
from devicetrack.tests import base
from devicetrack.tests import processes
from devicetrack.tests.functional.docs import test_documented_code
from devicetrack.virt import fake

ROOT = pathlib.Path(devicetrack.__file__).parent.parent
PROGRAM = ROOT / 'examples' / 'two_hosts' / 'service.py'
PAGE = ROOT / 'doc' / 'source' / 'user' / 'wiring.rst'


class TestTwoHosts(base.TestCase):

    def test_it_prints_what_the_page_says(self) -> None:
        answer = processes.run(str(PROGRAM), cwd=self.temp_dir())
        self.assertEqual('', answer.stderr if answer.returncode else '')
        self.assertIn('::\n\n' + textwrap.indent(answer.stdout, '    ') + '\n', PAGE.read_text(encoding='utf-8'))

    def test_the_page_lists_every_save_of_the_program(self) -> None:
        numbered = re.findall(r'self\.database\.save\(.*# ([0-9]+): ', PROGRAM.read_text(encoding='utf-8'))
        listed = re.findall(r'^   \* - ([0-9]+)$', PAGE.read_text(encoding='utf-8'), re.M)
        self.assertEqual(numbered, listed)
        self.assertEqual(PROGRAM.read_text(encoding='utf-8').count('self.database.save('), len(numbered))


class TwoHostsTestCase(base.TestCase):
    """The hosts of the program, with an instance on the first."""

    def setUp(self) -> None:
        super().setUp()
        self.names = names = runpy.run_path(str(PROGRAM))
        directory = pathlib.Path(self.temp_dir())
        self.database = names['Database'](directory / 'database.json')
        self.hosts: dict[str, Any] = {}
        self.confs: dict[str, Any] = {}
        configuration = names['configuration']

        def configured(at: pathlib.Path) -> Any:
            self.confs[at.name] = configuration(at)
            return self.confs[at.name]

        names['Compute'].__init__.__globals__['configuration'] = configured
        for name in ('one', 'two'):
            self.addCleanup(fake.FakeHost.forget, name)
            self.hosts[name] = names['Compute'](name, directory / name, self.database)
            self.addCleanup(lambda host: host.manager.close(), self.hosts[name])
        # The recipes of the page, as methods of the program's service.
        names['LOG'] = logging.getLogger(__name__)
        methods: dict[str, Any] = {}
        for recipe in test_documented_code.code_blocks(PAGE):
            exec(compile(recipe, 'wiring.rst', 'exec'), names, methods)
        for name, method in methods.items():
            setattr(names['Compute'], name, method)
        self.small, self.large = (names['Flavor'](name, {'hw:pmem': pmem}) for name, pmem in
                                  (('small', '4GB'), ('large', '4GB,4GB')))
        self.instance = names['Instance'](str(uuid.uuid4()), self.small)
        self.migration = names['Migration'](str(uuid.uuid4()), 1, self.instance.uuid, 'one', 'two')
        self.one.boot(self.instance)
        self.addCleanup(self.check_guests)

    def check_guests(self) -> None:
        """No two hosts run the guest."""
        self.assertLessEqual(sum(map(self.runs, self.hosts)), 1)

    def runs(self, name: str) -> bool:
        return self.hosts[name].machine.usage().runs_here(self.instance.uuid)

    def hand_over(self) -> None:
        self.two.prep_resize(self.instance.uuid, self.migration, self.large)
        self.one.resize_instance(self.instance.uuid, self.migration)

    @property
    def one(self) -> Any:
        return self.hosts['one']

    @property
    def two(self) -> Any:
        return self.hosts['two']

    def finish(self) -> None:
        self.two.finish_resize(self.instance.uuid, self.migration, self.large)

    def roles(self) -> dict[str, list[str]]:
        return {name: [row.role for row in host.manager.resources_of(self.instance.uuid)]
                for name, host in self.hosts.items()}

    def audit(self) -> list[str]:
        """The kinds of findings of both hosts."""
        return [finding.kind for name, host in self.hosts.items()
                for finding in host.manager.update_available_resource(None, name)]

    def finish_revert(self) -> None:
        self.one.finish_revert_resize(self.instance.uuid, self.migration, self.small)

    def check_reverted(self) -> None:
        self.assertEqual(({'one': ['current'], 'two': []}, []), (self.roles(), self.audit()))
        saved = self.database.instance(self.instance.uuid)
        self.assertEqual(('one', 'small', 1), (saved.host, saved.flavor.name, len(saved.resources)))


class TestResizeThatDoesNotStart(TwoHostsTestCase):
    """The destination cannot start the guest after the instance was handed over."""

    def setUp(self) -> None:
        super().setUp()
        self.hand_over()
        self.two.machine.before('realize', ZeroDivisionError(), times=1)
        self.assertRaises(ZeroDivisionError, self.finish)
        self.assertEqual({'one': ['old'], 'two': ['incoming'] * 2}, self.roles())

    def test_nothing_goes_back_until_the_service_decides(self) -> None:
        self.assertEqual([], self.audit())
        self.assertEqual({'one': ['old'], 'two': ['incoming'] * 2}, self.roles())

    def test_it_can_be_tried_again(self) -> None:
        self.finish()
        self.assertEqual({'one': ['old'], 'two': ['current'] * 2}, self.roles())

    def test_it_is_reverted_as_the_page_says(self) -> None:
        self.two.revert_resize(self.instance.uuid, self.migration)
        self.assertEqual({'one': ['old'], 'two': []}, self.roles())
        self.finish_revert()
        self.check_reverted()
        self.assertIsNone(self.database.instance(self.instance.uuid).migration_context)

    def test_the_audit_of_the_destination_does_the_work_of_a_call_that_is_lost(self) -> None:
        self.migration.status = 'reverting'
        self.database.save(self.migration)
        self.assertEqual([], self.audit())
        self.assertEqual({'one': ['old'], 'two': ['incoming'] * 2}, self.roles())
        self.finish_revert()
        self.assertEqual([], self.audit())
        self.two.manager.wait_for_wipes()
        self.check_reverted()

    def test_after_an_error_the_destination_keeps_it(self) -> None:
        self.migration.status = 'error'
        self.database.save(self.migration)
        self.audit()
        self.assertEqual([findings.STALE_MIGRATION], self.audit())
        self.assertEqual({'one': ['old'], 'two': ['current'] * 2}, self.roles())


class Killed(BaseException):
    """The process ends here: no handler of the program sees it."""


class InterruptedTestCase(TwoHostsTestCase):
    """One of the hosts is killed amid a move, and starts again."""

    def kill_before(self, thing: Any, name: str, step: Callable[..., None], *arguments: Any, calls: int = 1) -> None:
        """Take a step of the move, and end it before it calls this method for the last time of some."""
        real, left = getattr(thing, name), [calls]

        def called(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if not left[0]:
                raise Killed()
            return real(*args, **kwargs)

        # The block of a claim does not see the end of its process either.
        with mock.patch.object(thing, name, called), mock.patch.object(Claim, '__exit__', lambda *_error: None):
            self.assertRaises(Killed, step, self.instance.uuid, *arguments)

    def restart(self, name: str) -> None:
        host = self.hosts[name]
        host.manager.close()
        host.start()
        host.finish_moves(self.hosts.get, {one.uuid: (self.small, self.large) for one in self.database.migrations()})
        host.start_guests()

    def check(self, status: str, host: str, roles: dict[str, list[str]]) -> None:
        migration = self.database.migrations()[-1]
        saved = self.database.instance(self.instance.uuid)
        self.assertEqual((status, host), (migration.status, saved.host))
        self.assertEqual([name == host for name in self.hosts], [self.runs(name) for name in self.hosts])
        self.audit()
        for each in self.hosts.values():
            each.manager.wait_for_wipes()
        self.assertEqual((roles, []), (self.roles(), self.audit()))
        self.assertEqual([row.identifier for row in self.hosts[host].manager.resources_of(saved.uuid)],
                         [row.identifier for row in saved.resources])


class TestMoveThatWasInterrupted(InterruptedTestCase):
    """A resize to another host."""

    def test_before_the_guest_starts_at_the_destination(self) -> None:
        self.hand_over()
        self.kill_before(self.two.machine, 'start_guest', self.two.finish_resize, self.migration, self.large)
        self.restart('two')
        self.check('finished', 'two', {'one': ['old'], 'two': ['current'] * 2})

    def test_before_it_is_recorded_that_the_guest_runs_at_the_destination(self) -> None:
        self.hand_over()
        self.kill_before(self.two.manager, 'started', self.two.finish_resize, self.migration, self.large)
        self.restart('two')
        self.check('finished', 'two', {'one': ['old'], 'two': ['current'] * 2})

    def test_before_the_result_of_the_resize_is_saved(self) -> None:
        self.hand_over()
        self.kill_before(self.database, 'save', self.two.finish_resize, self.migration, self.large)
        self.restart('two')
        self.check('finished', 'two', {'one': ['old'], 'two': ['current'] * 2})

    def test_a_revert_at_either_end(self) -> None:
        for name in self.hosts:
            self.hand_over()
            self.finish()
            self.kill_before(self.two.manager, 'drop_move_claim_at_dest', self.two.revert_resize, self.migration)
            self.restart(name)
            self.check('reverted', 'one', {'one': ['current'], 'two': []})
            self.migration = self.names['Migration'](str(uuid.uuid4()), 2, self.instance.uuid, 'one', 'two')

    def test_a_revert_whose_guest_runs_at_the_source(self) -> None:
        self.hand_over()
        self.finish()
        self.two.revert_resize(self.instance.uuid, self.migration)
        self.kill_before(self.database, 'save', self.one.finish_revert_resize, self.migration, self.small)
        self.restart('one')
        self.check('reverted', 'one', {'one': ['current'], 'two': []})

    def test_a_claim_at_the_destination(self) -> None:
        self.database.save(self.migration)
        request = devicetrack.DeviceRequest.from_extra_specs(self.large.extra_specs)
        self.two.manager.resize_claim(None, self.database.instance(self.instance.uuid), 'two', request, self.migration,
                                      self.large)
        self.restart('one')
        self.assertEqual({'one': ['current'], 'two': ['incoming'] * 2}, self.roles())
        self.restart('two')
        self.check('error', 'one', {'one': ['current'], 'two': []})

    def test_before_the_instance_is_handed_over(self) -> None:
        for calls in (1, 2):
            self.two.prep_resize(self.instance.uuid, self.migration, self.large)
            self.kill_before(self.database, 'save', self.one.resize_instance, self.migration, calls=calls)
            self.restart('two')
            self.assertEqual({'one': ['old'], 'two': ['incoming'] * 2}, self.roles())
            self.restart('one')
            self.check('error', 'one', {'one': ['current'], 'two': []})
            self.migration = self.names['Migration'](str(uuid.uuid4()), 2, self.instance.uuid, 'one', 'two')


class TestEvacuationThatWasInterrupted(InterruptedTestCase):
    """The source is back while the destination, which was killed, has not started again."""

    def setUp(self) -> None:
        super().setUp()
        self.migration = self.names['Migration'](str(uuid.uuid4()), 1, self.instance.uuid, 'one', 'two', 'evacuation')
        self.one.manager.close()
        self.one.machine.reboot()

    def come_back(self) -> None:
        """Start the source, then the destination."""
        self.restart('one')
        self.check_guests()
        self.assertFalse(self.runs('one'))
        self.restart('two')

    def test_before_the_guest_starts_at_the_destination(self) -> None:
        self.kill_before(self.two.machine, 'start_guest', self.two.evacuate, self.migration)
        self.come_back()
        self.check('done', 'two', {'one': [], 'two': ['current']})

    def check_finished(self) -> None:
        self.come_back()
        self.check('done', 'two', {'one': [], 'two': ['current']})

    def test_before_it_is_recorded_that_the_guest_runs_at_the_destination(self) -> None:
        self.kill_before(self.two.manager, 'started', self.two.evacuate, self.migration)
        self.check_finished()

    def test_an_instance_without_devices(self) -> None:
        self.instance = self.names['Instance'](str(uuid.uuid4()), self.names['Flavor']('tiny', {}), 'one')
        self.database.save(self.instance)
        self.migration = self.names['Migration'](str(uuid.uuid4()), 2, self.instance.uuid, 'one', 'two', 'evacuation')
        self.kill_before(self.two.machine, 'start_guest', self.two.evacuate, self.migration)
        self.come_back()
        self.assertEqual(('done', True), (self.database.migrations()[-1].status, self.runs('two')))

    def test_before_the_evacuation_ends(self) -> None:
        self.kill_before(self.two.manager, 'finish_evacuation', self.two.evacuate, self.migration)
        self.check_finished()

    def test_before_the_result_of_the_evacuation_is_saved(self) -> None:
        self.kill_before(self.database, 'save', self.two.evacuate, self.migration, calls=3)
        self.check_finished()

    def test_a_claim_that_was_not_saved(self) -> None:
        self.kill_before(self.database, 'save', self.two.evacuate, self.migration, calls=2)
        self.come_back()
        self.assertEqual('error', self.database.migrations()[-1].status)
        self.restart('one')
        self.check('error', 'one', {'one': ['current'], 'two': []})

    def test_before_it_is_saved_that_the_guest_did_not_start(self) -> None:
        self.two.machine.before('realize', ZeroDivisionError(), times=1)
        with mock.patch.object(self.two, 'guest_state', autospec=True, side_effect=Killed()):
            self.assertRaises(Killed, self.two.evacuate, self.instance.uuid, self.migration)
        self.come_back()
        self.restart('one')
        self.check('error', 'one', {'one': ['current'], 'two': []})

    def test_a_guest_that_does_not_start_leaves_the_instance_to_its_host(self) -> None:
        self.two.machine.before('realize', ZeroDivisionError(), times=1)
        self.assertRaises(ZeroDivisionError, self.two.evacuate, self.instance.uuid, self.migration)
        self.restart('one')
        self.check('error', 'one', {'one': ['current'], 'two': []})

    def test_a_start_that_could_not_be_recorded_is_no_failure(self) -> None:
        real = self.two.manager.started

        def started(*arguments: Any) -> Any:
            with mock.patch.object(self.two.manager.store, 'check_epoch', autospec=True,
                                   side_effect=exception.StoreUnavailable('store', 'gone')):
                return real(*arguments)

        with mock.patch.object(self.two.manager, 'started', started):
            self.assertRaises(exception.StoreUnavailable, self.two.evacuate, self.instance.uuid, self.migration)
        self.check_finished()


class TestLiveMigrationThatWasInterrupted(InterruptedTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.migration = self.names['Migration'](str(uuid.uuid4()), 1, self.instance.uuid, 'one', 'two',
                                                 'live-migration')

    def migrate(self, instance_uuid: str) -> None:
        self.one.live_migrate(instance_uuid, self.migration, self.hosts.__getitem__)

    def test_before_the_copy(self) -> None:
        for calls in (2, 3):                    # before it is saved that the destination is ready, that the copy begins
            self.kill_before(self.database, 'save', self.migrate, calls=calls)
            self.restart('two')
            self.restart('one')
            self.check('error', 'one', {'one': ['current'], 'two': []})
            self.migration = self.names['Migration'](str(uuid.uuid4()), 2, self.instance.uuid, 'one', 'two',
                                                     'live-migration')

    def test_a_guest_that_did_not_leave(self) -> None:
        for name in self.hosts:
            self.kill_before(self.one, '_copy', self.migrate)
            self.restart(name)
            self.check('failed', 'one', {'one': ['current'], 'two': []})
            self.migration = self.names['Migration'](str(uuid.uuid4()), 2, self.instance.uuid, 'one', 'two',
                                                     'live-migration')

    def test_a_guest_that_arrived(self) -> None:
        for name, other in (('one', 'two'), ('two', 'one')):
            self.kill_before(self.one, 'finish_live_migration', self.migrate)
            self.one.machine.reboot()           # the source has no guest to start, whatever the database says
            self.assertFalse(self.runs('one'))
            self.restart(name)
            self.check('completed', 'two', {'one': [], 'two': ['current']})
            self.restart(other)
            self.check('completed', 'two', {'one': [], 'two': ['current']})
            self.migration = self.names['Migration'](str(uuid.uuid4()), 2, self.instance.uuid, 'two', 'one',
                                                     'live-migration')
            self.two.live_migrate(self.instance.uuid, self.migration, self.hosts.__getitem__)
            self.audit()
            self.migration = self.names['Migration'](str(uuid.uuid4()), 3, self.instance.uuid, 'one', 'two',
                                                     'live-migration')

    def test_the_source_starts_no_guest_while_the_destination_does_not_answer(self) -> None:
        self.kill_before(self.one, 'finish_live_migration', self.migrate)
        self.two.machine.disconnected = 'gone'
        self.restart('one')
        self.two.machine.disconnected = None
        self.check_guests()
        self.assertFalse(self.runs('one'))
        self.restart('one')
        self.check('completed', 'two', {'one': [], 'two': ['current']})

    def wait_at_destination(self) -> None:
        """The guest waits at the destination, and runs at the source."""
        self.kill_before(fake.FakeHost.named('two'), 'arrived', self.migrate)
        self.assertEqual(['runs', 'waits'], [host.guest_state(self.instance.uuid) for host in self.hosts.values()])

    def test_a_guest_that_waits_is_left_alone_while_it_is_copied(self) -> None:
        self.wait_at_destination()
        with mock.patch.object(self.one, 'is_copying', autospec=True, return_value=True):
            self.restart('one')
            self.restart('two')
        self.assertEqual(['runs', 'waits'], [host.guest_state(self.instance.uuid) for host in self.hosts.values()])
        self.assertEqual('running', self.database.migrations()[-1].status)

    def test_a_guest_that_waits_for_a_copy_that_ended_is_removed(self) -> None:
        self.wait_at_destination()
        self.restart('two')
        self.check('failed', 'one', {'one': ['current'], 'two': []})

    def test_a_guest_that_waits_is_all_that_is_left_of_it(self) -> None:
        self.wait_at_destination()
        self.one.machine.delete_guest(self.instance.uuid)
        self.restart('one')
        self.assertEqual(['none', 'waits'], [host.guest_state(self.instance.uuid) for host in self.hosts.values()])


class TestTakenOver(TwoHostsTestCase):
    """A newer process of host one, with a state directory of its own, starts while the older one boots a guest."""

    def setUp(self) -> None:
        super().setUp()
        self.other = self.names['Instance'](str(uuid.uuid4()), self.small)

    def take_over(self) -> None:
        conf = self.confs['one']
        conf.set_override('state_path', self.temp_dir(), 'devicetrack')
        self.newer = devicetrack.ClaimManager('one', devicetrack.load_driver(conf, 'one'), self.one.manager.store, conf,
                                              service=self.names['Answers'](self.database, 'one'))
        self.addCleanup(self.newer.close)
        self.newer.init_host(None)
        self.newer.realize(None, self.other)
        config = self.newer.guest_config(self.other)
        self.one.machine.start_guest(self.other.uuid, config.devices, metadata=config.metadata)
        self.newer.started(None, self.other)

    def check_other(self) -> None:
        self.assertTrue(self.one.machine.usage().runs_here(self.other.uuid))
        self.assertEqual([], self.newer.update_available_resource(None, 'one'))
        self.assertEqual('one', self.database.instance(self.other.uuid).host)

    def test_the_older_one_leaves_the_guest_of_the_newer_one(self) -> None:
        self.one.machine.before('guest_config', self.take_over, times=1)
        self.assertRaises(exception.HostTakenOver, self.one.boot, self.other)
        self.check_other()

    def test_also_when_its_own_guest_does_not_start(self) -> None:
        real, calls = self.one.machine.start_guest, []

        def start_guest(*arguments: Any, **options: Any) -> None:
            calls.append(arguments)
            if len(calls) == 1:
                self.take_over()
                raise ZeroDivisionError()       # it runs already
            real(*arguments, **options)

        with mock.patch.object(self.one.machine, 'start_guest', start_guest):
            self.assertRaises(exception.HostTakenOver, self.one.boot, self.other)
        self.check_other()

    def test_the_older_one_ends_no_live_migration(self) -> None:
        migration = self.names['Migration'](str(uuid.uuid4()), 1, self.instance.uuid, 'one', 'two', 'live-migration')

        def take_over(*_arguments: Any) -> None:
            self.other = self.instance
            self.take_over()
            raise ZeroDivisionError()           # the copy fails

        with mock.patch.object(self.one, '_copy', take_over):
            self.assertRaises(exception.HostTakenOver, self.one.live_migrate, self.instance.uuid, migration,
                              self.hosts.__getitem__)
        self.assertEqual('running', self.database.migrations()[-1].status)
