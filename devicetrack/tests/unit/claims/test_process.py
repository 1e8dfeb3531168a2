"""One manager a host, one process a manager."""

import os
import pickle
import textwrap

from devicetrack import exception
from devicetrack import filelock
from devicetrack.claims.host import check_unmanaged
from devicetrack.claims.host import HostLock
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base
from devicetrack.tests import processes

CALLS = base.table(
    ('instance_claim', lambda manager, instance: manager.instance_claim(None, instance, 'host', None)),
    ('abort_instance_claim', lambda manager, instance: manager.abort_instance_claim(None, instance)),
    ('realize', lambda manager, instance: manager.realize(None, instance)),
    ('guest_config', lambda manager, instance: manager.guest_config(instance)),
    ('started', lambda manager, instance: manager.started(None, instance)),
    ('release', lambda manager, instance: manager.release(None, instance)),
    ('update_available_resource', lambda manager, instance: manager.update_available_resource(None, 'host')),
    ('assignments', lambda manager, instance: manager.assignments(instance.uuid)),
    ('usage', lambda manager, instance: manager.usage()),
    ('explain', lambda manager, instance: manager.explain(None)),
    ('providers', lambda manager, instance: manager.providers()),
    names=('call',))


class HostTestCase(base.TestCase):

    def host(self, **kwargs):
        return self.useFixture(fixtures.Host(**kwargs))


class NotReadyTestCase(HostTestCase):

    scenarios = CALLS

    def test_before_init_host(self):
        host = self.host(ready=False)
        self.assertRaises(exception.NotReady, self.call, host.manager, Instance())

    def test_after_an_init_host_that_failed(self):
        host = self.host(ready=False)
        host.machine.before('get_usage', exception.HypervisorUnreachable('fake', 'gone'), times=1)
        self.assertRaises(exception.HypervisorUnreachable, host.manager.init_host, self.context)
        self.assertRaises(exception.NotReady, self.call, host.manager, Instance())
        host.manager.init_host(self.context)

    def test_after_close(self):
        host = self.host()
        host.manager.close()
        self.assertRaises(exception.NotReady, self.call, host.manager, Instance())

    def test_while_another_manages_the_host(self):
        host = self.host()
        second = host.another_manager()
        self.assertRaises(exception.HostInUse, second.init_host, self.context)
        self.assertRaises(exception.NotReady, self.call, second, Instance())


class InitHostTestCase(HostTestCase):

    scenarios = base.table(
        ('no usage', lambda host: host.machine.before('get_usage', exception.HypervisorUnreachable('f', 'x'))),
        ('no inventory', lambda host: host.machine.before('get_inventory', exception.HypervisorUnreachable('f', 'x'))),
        ('no store', lambda host: host.store.before('check', exception.StoreUnavailable('s', 'x'))),
        ('another schema', lambda host: host.store.before('check', exception.SchemaMismatch('s', None, '1', 'sync'))),
        ('no rows', lambda host: host.store.before('records_of_host', exception.StoreUnavailable('s', 'x'))),
        ('no row of the host', lambda host: host.store.before('add_host', exception.StoreUnavailable('s', 'x'))),
        ('an error of ours', lambda host: host.store.before('host', ZeroDivisionError())),
        names=('stage',))

    def test_that_fails_lets_go_of_the_host(self):
        host = self.host(devices=1, ready=False)
        self.stage(host)
        self.assertRaises((exception.DeviceTrackError, ZeroDivisionError), host.manager.init_host, self.context)
        host.machine.clear()
        host.store.clear()
        second = host.another_manager()
        second.init_host(self.context)
        second.close()
        host.manager.init_host(self.context)
        host.claim(Instance(), pmem=1)

    def test_twice_is_an_audit(self):
        host = self.host(devices=1)
        host.claim(Instance(), pmem=1)
        self.assertEqual([], host.manager.init_host(self.context))
        self.assertEqual(1, len(host.held()))


class IdentityTestCase(HostTestCase):

    def test_another_machine_of_this_name_is_refused(self):
        host = self.host(devices=1)
        instance = host.spawn(pmem=1)
        host.manager.close()
        elsewhere = fixtures.Configuration(self.temp_dir(), machine='b')
        other = self.host(devices=1, configuration=self.useFixture(elsewhere), store=host.store, ready=False)
        error = self.assertRaises(exception.HostIdentityChanged, other.manager.init_host, self.context)
        self.assertIn('machine_id_path', str(error))
        self.assertRaises(exception.NotReady, other.manager.assignments, instance.uuid)
        self.assertEqual({'d0': instance.uuid}, host.owners())

    def test_the_same_machine_keeps_its_uuid_when_the_store_is_lost(self):
        path = self.temp_dir()
        uuids = []
        for _ in range(2):
            host = self.host(configuration=self.useFixture(fixtures.Configuration(path)))
            uuids.append(host.manager.state().host_uuid)
            host.manager.close()
            host.store.close()
            os.remove(host.store.store.path)
        self.assertEqual(1, len(set(uuids)))

    def test_two_hosts_share_a_store(self):
        first = self.host(devices=1, name='first')
        elsewhere = self.useFixture(fixtures.Configuration(machine='b'))
        second = self.host(devices=1, name='second', configuration=elsewhere, store=first.store.store)
        one, two = first.spawn(pmem=1), second.spawn(pmem=1)
        self.assertEqual(({'d0': one.uuid}, {'d0': two.uuid}), (first.owners(), second.owners()))
        self.assertEqual(([], []), (first.audit(), second.audit()))

    def under_another_name(self, host, **kwargs):
        """A manager of the same machine that is not ready: same store, another name."""
        return self.host(devices=1, name='another', store=host.store.store, ready=False, **kwargs)

    def test_another_name_cannot_be_managed_beside_the_first_in_one_directory(self):
        host = self.host(devices=1)
        another = self.under_another_name(host, configuration=host.configuration)
        error = self.assertRaises(exception.HostInUse, another.manager.init_host, self.context)
        self.assertIn('another host with the same state_path', str(error))
        self.assertEqual(os.getpid(), error.pid)
        self.assertIn(f'process {error.pid} holds {error.path}', str(error))
        self.assertEqual(['host'], [known.name for known in host.store.hosts()])

    def test_what_a_service_prepares_waits_until_no_other_process_manages_the_host(self):
        host = self.host(devices=1)
        prepared = []
        another = self.under_another_name(host, configuration=host.configuration)
        self.assertRaises(exception.HostInUse, another.manager.init_host, self.context,
                          prepare=lambda: prepared.append('too early'))
        host.manager.close()

        def prepare():
            self.assertRaises(exception.HostInUse, another.manager.init_host, self.context)
            prepared.append('alone')

        host.manager.init_host(self.context, prepare=prepare)
        self.assertEqual(['alone'], prepared)

    def test_a_lock_file_that_was_removed_makes_no_second_manager(self):
        host = self.host(devices=1)
        os.unlink(os.path.join(host.configuration.state_path, 'manager.lock'))
        another = self.under_another_name(host, configuration=host.configuration)
        error = self.assertRaises(exception.HostInUse, another.manager.init_host, self.context)
        self.assertEqual((host.configuration.state_path, os.getpid()), (error.path, error.pid))

    def test_a_command_that_has_the_host_says_that_it_is_one(self):
        host = self.host(devices=1)
        path = host.configuration.state_path
        for by_command in (False, True, False):
            host.manager.close()
            with HostLock('host', path, by_command):
                for take in (lambda: check_unmanaged('host', path), HostLock('host', path).__enter__):
                    error = self.assertRaises(exception.HostInUse, take)
                    self.assertEqual((by_command, by_command),
                                     (error.by_command, 'a command works on host host' in str(error)))
            with open(os.path.join(path, 'manager.lock'), encoding='ascii') as file:
                self.assertEqual('', file.read())       # a manager of an earlier release would leave the word there
            host.manager.init_host(self.context)
            self.assertFalse(self.assertRaises(exception.HostInUse, check_unmanaged, 'host', path).by_command)

    def test_a_manager_of_a_short_program_is_one_of_a_command(self):
        host = self.host(devices=1)
        path = host.configuration.state_path
        for background in (True, False):
            host.manager.close()
            host.manager.init_host(self.context, background=background)
            error = self.assertRaises(exception.HostInUse, check_unmanaged, 'host', path)
            self.assertEqual(not background, error.by_command)

    def test_a_process_that_cannot_be_told_is_another_process(self):
        host = self.host(devices=1)
        self.patch(filelock, '_LOCKS', '/no/such/table')
        another = self.under_another_name(host, configuration=host.configuration)
        error = self.assertRaises(exception.HostInUse, another.manager.init_host, self.context)
        self.assertIsNone(error.pid)
        self.assertIn('another process holds ', str(error))

    def test_whether_a_living_process_has_it_is_said_at_once(self):
        host = self.host(devices=1)
        self.patch(filelock.FileLock, 'acquire', lambda *_arguments, **_named: self.fail('it waits for the lock'))
        path = host.configuration.state_path
        error = self.assertRaises(exception.HostInUse, check_unmanaged, 'host', path)
        self.assertEqual((os.path.join(path, 'manager.lock'), os.getpid()), (error.path, error.pid))
        os.unlink(error.path)
        self.assertEqual(path, self.assertRaises(exception.HostInUse, check_unmanaged, 'host', path).path)
        host.manager.close()
        check_unmanaged('host', path)

    def test_a_state_directory_that_others_can_change_is_refused(self):
        host = self.host(devices=1)
        host.manager.close()
        path = host.configuration.state_path
        lock = os.path.join(path, 'manager.lock')
        for wrong, says in ((path, 'chmod go-w'), (lock, 'chmod go-w')):
            mode = os.stat(wrong).st_mode
            os.chmod(wrong, mode | 0o002)
            error = self.assertRaises(exception.UnsafePath, host.manager.init_host, self.context)
            self.assertEqual(wrong, error.path)
            self.assertIn(says, error.reason)
            os.chmod(wrong, mode)
        host.manager.init_host(self.context)

    def test_a_state_directory_that_cannot_be_made_or_used(self):
        host = self.host(devices=1)
        host.manager.close()
        os.rename(host.configuration.state_path, f'{host.configuration.state_path}.away')
        with open(host.configuration.state_path, 'w'):
            error = self.assertRaises(exception.InvalidConfiguration, host.manager.init_host, self.context)
        self.assertEqual(('[devicetrack] state_path', host.configuration.state_path), (error.option, error.value))
        self.assertTrue(error.reason.endswith('File exists: move away what is in its place'), error.reason)
        os.remove(host.configuration.state_path)
        os.rename(f'{host.configuration.state_path}.away', host.configuration.state_path)
        host.manager.init_host(self.context)

    def test_a_machine_that_has_devices_is_refused_under_another_name(self):
        host = self.host(devices=1)
        instance = host.spawn(pmem=1)
        another = self.under_another_name(host)         # in a directory of its own
        error = self.assertRaises(exception.MachineHasHost, another.manager.init_host, self.context)
        self.assertEqual(('another', 'host', 1), (error.host, error.other, error.rows))
        self.assertIn('start the service as host;', str(error))
        self.assertEqual(str(error), str(pickle.loads(pickle.dumps(error))))
        self.assertEqual(['host'], [known.name for known in host.store.hosts()])
        host.delete(instance)
        another.manager.init_host(self.context)

    def test_a_machine_is_refused_under_a_name_that_it_had_before_too(self):
        host = self.host(devices=1)
        another = self.under_another_name(host)
        another.manager.init_host(self.context)         # while neither has devices
        host.spawn(pmem=1)
        self.assertRaises(exception.MachineHasHost, another.restart)

    def test_a_machine_that_has_nothing_may_change_its_name(self):
        host = self.host(devices=1)
        host.manager.close()
        another = self.under_another_name(host, configuration=host.configuration)
        another.manager.init_host(self.context)
        another.spawn(pmem=1)
        another.manager.close()
        self.assertRaises(exception.MachineHasHost, host.restart)

    def test_what_is_withheld_goes_with_the_machine_to_its_new_name_and_back(self):
        host = self.host(devices=3)
        for number in range(3):
            host.manager.operator.cordon('vpmem', f'd{number}', reason=f'slot {number}')
        host.manager.close()
        another = self.host(devices=3, name='another', store=host.store.store, ready=False,
                            configuration=host.configuration)
        another.manager.init_host(self.context)
        self.assertEqual({'vpmem/d0': 'slot 0', 'vpmem/d1': 'slot 1', 'vpmem/d2': 'slot 2'}, self.cordoned(another))
        self.assertRaises(exception.NoFit, another.claim, fixtures.Instance(), pmem=1)
        another.manager.operator.uncordon('vpmem', 'd0')
        another.restart()                       # the old name has nothing more to hand on
        self.assertEqual({'vpmem/d1': 'slot 1', 'vpmem/d2': 'slot 2'}, self.cordoned(another))
        another.manager.close()
        host.manager.init_host(self.context)
        self.assertEqual({'vpmem/d1': 'slot 1', 'vpmem/d2': 'slot 2'}, self.cordoned(host))

    @staticmethod
    def cordoned(host):
        return {str(one.target): one.causes['cordoned'].detail for one in host.manager.operator.withheld()}

    def test_nothing_is_lost_when_the_store_fails_in_a_start_under_a_new_name(self):
        host = self.host(devices=1)
        host.manager.operator.cordon('vpmem', 'd0', reason='slot 0')
        host.manager.close()
        another = self.under_another_name(host, configuration=host.configuration)
        another.store.before('set_withheld', exception.StoreUnavailable('store', 'full'), times=1)
        self.assertRaises(exception.StoreUnavailable, another.manager.init_host, self.context)
        another.manager.init_host(self.context)
        self.assertEqual({'vpmem/d0': 'slot 0'}, self.cordoned(another))

    def test_a_machine_is_two_hosts_with_two_stores(self):
        first, second = self.host(devices=1, name='first'), self.host(devices=1, name='second')
        first.spawn(pmem=1)
        second.spawn(pmem=1)

    def test_a_machine_id_that_cannot_be_read_is_named(self):
        for content in (None, '', 'Ünlesbar'):
            host = self.host(ready=False)
            path = os.path.join(self.temp_dir(), 'machine-id')
            if content is not None:
                with open(path, 'w', encoding='latin-1') as file:
                    file.write(content)
            host.configuration.set('devicetrack', machine_id_path=path)
            error = self.assertRaises(exception.InvalidConfiguration, host.manager.init_host, self.context)
            self.assertEqual(path, error.value)


PREAMBLE = """
    import json, os, signal, sys
    from devicetrack import exception
    from devicetrack.testing import fixtures
    configuration = fixtures.Configuration(sys.argv[1])
    configuration.setUp()
    host = fixtures.Host(devices=2, configuration=configuration)

    def say(*words):
        print(*words, flush=True)

    def ask(call):
        try:
            call()
        except Exception as error:
            return type(error).__name__
        return 'answered'
"""


class ForkTestCase(base.TestCase):

    def run_program(self, program):
        """Lines that a process printed which has a host of two devices."""
        source = textwrap.dedent(PREAMBLE) + textwrap.dedent(program)
        return processes.run('-c', source, self.state_path).stdout.splitlines()

    def test_every_call_in_a_child_is_refused(self):
        lines = self.run_program("""
            from devicetrack.tests.unit.claims import test_process
            host.setUp()
            if not os.fork():
                for name, facts in test_process.CALLS:
                    say(name, ask(lambda: facts['call'](host.manager, fixtures.Instance())))
                say('init_host', ask(lambda: host.manager.init_host(None)))
                os._exit(0)
            os.wait()
            say('parent', ask(lambda: host.claim(fixtures.Instance(), pmem=1)))
            os._exit(0)
        """)
        expected = [f'{name} ForkedManager' for name, _ in CALLS] + ['init_host ForkedManager', 'parent answered']
        self.assertEqual(expected, lines)

    def test_the_death_of_a_child_does_not_free_the_host(self):
        lines = self.run_program("""
            host.setUp()
            child = os.fork()
            if not child:
                os._exit(0)
            os.waitpid(child, 0)
            say(ask(lambda: host.another_manager().init_host(None)))
            os._exit(0)
        """)
        self.assertEqual(['HostInUse'], lines)

    def test_a_child_that_closes_its_copy_of_a_manager_does_not_free_the_host(self):
        """It waits for no lock either: a thread of the parent may have had any of them during the fork."""
        lines = self.run_program("""
            host.setUp()
            with vars(host.running.wipes)['_lock'].held():
                child = os.fork()
                if not child:
                    say(ask(host.manager.close))
                    os._exit(0)
            os.waitpid(child, 0)
            say(ask(lambda: host.another_manager().init_host(None)))
            os._exit(0)
        """)
        self.assertEqual(['ForkedManager', 'HostInUse'], lines)

    def test_a_child_that_leaves_the_block_of_a_claim_does_not_give_it_back(self):
        lines = self.run_program("""
            host.setUp()
            instance, parent = fixtures.Instance(), os.getpid()
            try:
                with host.claim(instance, pmem=1) as claim:
                    if not os.fork():
                        say(ask(claim.abort))
                        raise SystemExit
                    os.wait()
                    host.audit()
                    say(sorted(host.states().values()))
            except SystemExit:
                os._exit(0 if os.getpid() != parent else 1)
            os._exit(0)
        """)
        self.assertEqual(['ForkedManager', "['claimed', 'free']"], lines)

    def test_a_killed_manager_frees_the_host_although_a_child_of_it_lives(self):
        lines = self.run_program("""
            alive, end = os.pipe()
            said, tell = os.pipe()
            manager = os.fork()
            if not manager:
                host.setUp()
                if not os.fork():                       # outlives the manager
                    os.close(end)
                    os.write(tell, b'!')
                    os.read(alive, 1)
                    say('child ends')
                    os._exit(0)
                os.read(said, 1)
                os.kill(os.getpid(), signal.SIGKILL)
            os.waitpid(manager, 0)
            host.setUp()
            say('managed')
            os.close(end)
            os._exit(0)
        """)
        self.assertEqual('managed', lines[0])

    def test_a_fork_while_claims_run_leaves_them_alone(self):
        lines = self.run_program("""
            import threading
            host.setUp()
            stop = threading.Event()
            failed = []

            def lives():
                while not stop.is_set():
                    instance = fixtures.Instance()
                    try:
                        host.claim(instance, pmem=1).abort()
                    except Exception as error:
                        failed.append(error)

            threads = [threading.Thread(target=lives) for _ in range(2)]
            for thread in threads:
                thread.start()
            answers = set()
            for _ in range(20):
                read, write = os.pipe()
                child = os.fork()
                if not child:
                    os.write(write, ask(lambda: host.claim(fixtures.Instance(), pmem=1)).encode())
                    os._exit(0)
                os.close(write)
                answers.add(os.read(read, 99).decode())
                os.waitpid(child, 0)
            stop.set()
            for thread in threads:
                thread.join()
            say(*sorted(answers), len(failed), sorted(host.states().values()))
            os._exit(0)
        """)
        self.assertEqual(["ForkedManager 0 ['free', 'free']"], lines)

    def test_a_second_process_is_refused(self):
        host = self.useFixture(fixtures.Host(devices=2, configuration=self.configuration))
        program = """
            host = fixtures.Host(devices=2, configuration=configuration, ready=False)
            host.setUp()
            try:
                host.manager.init_host(None)
                say('answered')
            except exception.HostInUse as error:
                say(error.pid)
            os._exit(0)
        """
        self.assertEqual([str(os.getpid())], self.run_program(program))
        host.manager.close()
        self.assertEqual(['answered'], self.run_program(program))
