"""Claims on each of the three databases: many threads, several processes, and writers that should not be there."""

import collections
import itertools
import threading

from devicetrack import exception
from devicetrack.testing import databases
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base
from devicetrack.tests.functional.claims import programs

THREADS, CLAIMS, LIVES, DEVICES = 64, 1000, 320, 64


class StoreTestCase(base.TestCase):

    scenarios = databases.SCENARIOS

    def host(self, devices=DEVICES):
        """A host on the scenario's database, whose configuration names that database."""
        made = self.useFixture(self.database())
        connection = made.conf.devicetrack_database.connection
        self.configuration.set('devicetrack_database', connection=connection or f'sqlite:///{made.store.path}')
        return self.useFixture(fixtures.Host(devices=devices, configuration=self.configuration, store=made.store))

    def by_threads(self, work, calls=CLAIMS):
        """Let 64 threads share so many calls of ``work``; the answers, or errors, counted by name."""
        numbers = iter(range(calls))
        answers: collections.Counter[str] = collections.Counter()
        lock = threading.Lock()

        def share():
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                try:
                    answer = work(number)
                except exception.DeviceTrackError as error:
                    answer = type(error).__name__
                with lock:
                    answers[answer] += 1
        self.assertEqual([None] * THREADS, self.together(*[share] * THREADS))
        return answers

    def test_a_thousand_claims_by_64_threads_get_exactly_what_there_is(self):
        host = self.host()
        instances = [Instance() for _ in range(CLAIMS)]

        def claim(number):
            host.claim(instances[number], pmem=1)
            return 'claimed'
        self.assertEqual({'claimed': DEVICES, 'NoFit': CLAIMS - DEVICES}, dict(self.by_threads(claim)))
        self.assertEqual(DEVICES, len(host.owners()))
        self.assertEqual(host.owners(), host.held())
        self.assertEqual(DEVICES, len(set(host.owners().values())))

        self.by_threads(lambda number: str(host.manager.release(self.context, instances[number])))
        self.assertEqual({'free'}, set(host.states().values()))
        self.assertEqual((DEVICES, []), (host.free(), host.audit()))

    def test_five_lives_each_of_64_threads_leave_nothing(self):
        host = self.host(devices=THREADS)
        owners: dict[str, str] = {}
        twice: list[str] = []

        def life(number):
            instance = Instance()
            with host.claim(instance, pmem=1) as claim:
                identifier = next(iter(claim.resources)).identifier
                if owners.setdefault(identifier, instance.uuid) != instance.uuid:
                    twice.append(identifier)
                host.manager.realize(self.context, instance)
                host.manager.started(self.context, instance)
                del owners[identifier]
            host.manager.release(self.context, instance)
            return 'lived'
        self.assertEqual({'lived': LIVES}, dict(self.by_threads(life, LIVES)))
        self.assertEqual([], twice)
        self.assertEqual(({'free'}, THREADS, []), (set(host.states().values()), host.free(), host.audit()))

    def test_of_four_managers_that_start_at_once_one_wins(self):
        host = self.host(devices=1)
        host.manager.close()
        for _ in range(2):
            others = [programs.start('manage', programs.options_of(host.conf)) for _ in range(4)]
            self.assertEqual(['there'] * 4, [other.stdout.readline().strip() for other in others])
            for other in others:
                other.stdin.write('go\n')
                other.stdin.flush()
            said = [other.stdout.readline().strip() for other in others]
            self.assertEqual(['HostInUse'] * 3 + ['ready'], sorted(said))
            for other in others:
                other.communicate()
                self.assertEqual(0, other.returncode)
        host.manager.init_host(self.context)

    def test_beside_four_writers_a_manager_neither_livelocks_nor_refuses(self):
        host = self.host(devices=16)
        instance = Instance()
        host.claim(instance, pmem=1)
        template = host.records()[0]
        host.manager.release(self.context, instance)
        names = [device.identifier for device in host.machine.inventory().devices]
        others = [programs.start('write_rows', programs.options_of(
            host.conf, seed=seed, record=list(template), devices=names)) for seed in range(4)]
        self.assertEqual(['there'] * 4, [other.stdout.readline().strip() for other in others])
        try:
            answers = self.together(*[lambda: self.lives(host, 25)] * 4)
        finally:
            said = [other.communicate()[0].split() for other in others]
        self.assertEqual([25] * 4, answers)
        self.assertEqual(['written'] * 4, [words[0] for words in said])
        self.assertTrue(all(int(words[1]) for words in said))
        host.audit()
        host.audit()
        self.assertEqual(({}, 16), (host.owners(), host.free()))

    def lives(self, host, count):
        """Claim and release; twelve of sixteen devices are always free or ours, so no claim may fail."""
        for done in itertools.count():
            if done == count:
                return done
            instance = Instance()
            host.claim(instance, pmem=1)
            self.assertEqual(1, len(host.records(instance)))
            host.manager.release(self.context, instance)
