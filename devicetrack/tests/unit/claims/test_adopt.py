"""Devices that guests had before this library came are recorded on the service's word, where nothing denies it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import report
from devicetrack.claims.repairs import Adopting
from devicetrack.engine import findings
from devicetrack.engine import migrations
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Missing
from devicetrack.objects.values import WipeProgress
from devicetrack.testing import fake_guests
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base

D0, D1, D2 = (DeviceKey('vpmem', f'd{number}') for number in range(3))


class AdoptingTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=3, parents={'card': 2}))
        self.machine, self.instance = self.host.machine, Instance()

    def guest(self, *keys: DeviceKey, instance: Instance | None = None) -> None:
        """A guest that was there before: its definition has no record of ours."""
        self.machine.start_guest((instance or self.instance).uuid, [
            fake_guests.element(key.kind, fixtures.path_of(self.machine.devices[key])) for key in keys])

    def adopt(self, *keys: DeviceKey, instance: Instance | None = None) -> list[str]:
        found = self.host.manager.adopt(self.host.context, instance or self.instance, keys)
        return [one.identifier for one in found]


class AdoptTestCase(AdoptingTestCase):

    def refused(self, *keys: DeviceKey) -> str:
        before = (self.host.records(), self.host.held(), self.host.states())
        error = self.assertRaises(exception.NotAdopted, self.adopt, *keys)
        self.assertEqual(before, (self.host.records(), self.host.held(), self.host.states()))
        return error.reason

    def test_a_guest_that_was_there_before(self) -> None:
        self.guest(D1, D0)
        self.host.audit()
        self.assertEqual('withheld: foreign', self.host.states()['d0'])
        self.assertEqual(['d1', 'd0'], self.adopt(D1, D0))
        self.assertEqual(['d1', 'd0'], [one.identifier for one in self.instance.resources])
        self.assertEqual({'d0': self.instance.uuid, 'd1': self.instance.uuid}, self.host.owners())
        self.assertEqual([findings.NOT_RECOVERABLE], [one.kind for one in self.host.audit()])
        self.assertEqual(['d1', 'd0'], [one.event.identifier for one in self.host.store.store.events_of_instance(
            self.instance.uuid) if one.event.event == 'recovered'])
        self.host.restart()
        self.assertEqual([findings.NOT_RECOVERABLE], [one.kind for one in self.host.audit()])
        self.assertEqual(self.host.owners(), self.host.held())
        self.assertEqual((vocabulary.ACTIVE, 0, 1), (self.host.records()[0].state, *sorted(
            record.position for record in self.host.records())))

    def test_what_it_wrote_is_wiped_when_it_goes(self) -> None:
        self.guest(D0)
        self.adopt(D0)
        self.machine.write(D0, b'secret')
        self.machine.delete_guest(self.instance.uuid)
        self.host.manager.release(self.host.context, self.instance)
        self.assertEqual(({}, 3), (self.host.owners(), self.host.free() - 2))
        self.assertNotEqual(b'secret', self.machine.read(D0))

    def test_it_is_not_clean_when_its_row_is_lost(self) -> None:
        self.guest(D0)
        self.adopt(D0)
        self.assertIn(D0, self.machine.unproven)

    def test_a_second_call_changes_nothing(self) -> None:
        self.guest(D0, D1)
        self.adopt(D0)
        records = self.host.records()
        self.assertEqual(['d0'], self.adopt(D0, D0))
        self.assertEqual(records, self.host.records())
        self.assertEqual(['d0', 'd1'], self.adopt(D0, D1))

    def test_its_guest_is_off_and_nothing_names_the_device(self) -> None:
        self.assertEqual(['d2'], self.adopt(D2))
        self.assertEqual({'d2': self.instance.uuid}, self.host.held())

    def test_none_of_several_when_one_is_refused(self) -> None:
        self.guest(D0)
        self.guest(D1, instance=Instance())
        self.assertIn('names it', self.refused(D0, D1))

    def test_devices_of_others(self) -> None:
        other = self.host.spawn(pmem=1)
        [record] = self.host.records()
        self.assertEqual(f'instance {other.uuid} has it', self.refused(record.key))

    def test_a_device_that_is_on_its_way_back(self) -> None:
        self.host.spawn(self.instance, pmem=1)
        [record] = self.host.records()
        self.machine.before('wipe', exception.UnclaimFailed(record.kind, record.identifier, 'a bad block'), times=1)
        self.machine.delete_guest(self.instance.uuid)
        self.assertRaises(exception.UnclaimFailed, self.host.manager.release, self.host.context, self.instance)
        self.assertIn('being released', self.refused(record.key))

    def test_what_the_host_does_not_have(self) -> None:
        self.assertIn('the host does not have it', self.refused(DeviceKey('vpmem', 'none')))
        self.assertIn('no option of this host', self.refused(DeviceKey('floppy', 'a')))

    def test_a_service_that_says_otherwise(self) -> None:
        self.guest(D0)
        for state in (migrations.INSTANCE_DELETED, migrations.INSTANCE_OFFLOADED, migrations.INSTANCE_ELSEWHERE):
            self.host.service.known = {self.instance.uuid: state}
            self.assertIn(f'the instance is {state}', self.refused(D0))

    def test_names_that_are_none(self) -> None:
        for key in ((None, 'd0'), ('vpmem', 7)):
            self.assertRaises(exception.BadRequest, self.host.manager.adopt, self.host.context, self.instance, [key])

    def test_a_claim_takes_no_device_that_is_being_adopted(self) -> None:
        """The device is free, and a claim that runs at the same time gets another one or waits for nothing."""
        others = [Instance() for _ in range(2)]
        calls: list[Callable[[], object]] = [lambda: self.adopt(D0)]
        calls += [lambda one=one: self.host.claim(one, pmem=1) for one in others]
        self.together(*calls)
        self.assertEqual(self.host.owners(), self.host.held())
        self.assertEqual(self.host.disagreements(), [])


class PartTestCase(AdoptingTestCase):
    """A part and its whole have one owner at most, whoever has the other one."""

    scenarios = base.table(
        *((f'{one} beside {other}', one, other)
          for pair in (('0000:81:00.0', '0000:81:00.1'), ('0000:84:00.0', 'disk0'))
          for one, other in (pair, pair[::-1])), names=('one', 'other'))

    def setUp(self) -> None:
        super().setUp()
        self.machine.add_card('0000:81:00.0', 2)
        self.machine.add_function('0000:84:00.0', 'CUSTOM_CONTROLLER')
        self.machine.add_namespace('disk0', parent='0000:84:00.0')
        self.host.audit()
        self.mine, self.beside = (next(key for key in self.machine.devices if key.identifier == name)
                                  for name in (self.one, self.other))

    def start(self, domain: str, key: DeviceKey) -> None:
        address = fixtures.path_of(self.machine.devices[key]) if key.kind == 'vpmem' else key.identifier
        self.machine.start_guest(domain, [fake_guests.element(key.kind, address)])

    def assert_refused(self, why: str) -> None:
        error = self.assertRaises(exception.NotAdopted, self.adopt, self.mine)
        self.assertIn(why, error.reason)
        self.assertEqual([], self.host.records())

    def test_a_domain_that_is_not_the_instances_has_the_other(self) -> None:
        self.start('x', self.beside)
        self.start(self.instance.uuid, self.mine)
        self.assert_refused('domain x names')
        if self.beside.kind != self.mine.kind:
            self.machine.unknown_kinds[self.beside.kind] = 'it fails'
            self.assert_refused('domain x names')
            self.machine.unknown_kinds.clear()
        self.machine.delete_guest('x')
        self.assertEqual([self.one], self.adopt(self.mine))

    def test_the_other_is_being_wiped(self) -> None:
        self.machine.write_beside(self.beside, b'old')
        self.host.audit()
        self.machine.before('wipe', lambda: self.assert_refused('wiped right now'), times=1)
        self.host.manager.operator.admit(*self.beside, wipe=True)
        self.host.running.unproven.wait()
        self.host.audit()
        self.assertEqual((fixtures.FREE, b''), (self.host.states()[self.other], self.machine.read(self.beside)))
        self.assertEqual([self.one], self.adopt(self.mine))

    def test_another_process_still_wipes_the_other(self) -> None:
        self.machine.wiping[self.beside] = WipeProgress('zero', 1, 2, 1, None)
        self.assert_refused('it is being wiped')


class FailedTestCase(AdoptingTestCase):
    """An adoption that fails has removed the proof that the device is clean, or may have."""

    def setUp(self) -> None:
        super().setUp()
        self.machine.write(D0, b'secret')
        self.guest(D0)

    def fails(self, error: type[Exception]) -> None:
        self.assertRaises(error, self.adopt, D0)
        self.assertEqual({}, self.host.owners())

    def check_nobody_gets_it(self) -> None:
        """Neither while its guest runs, nor when the guest is gone, before and after an audit."""
        for look in (lambda: self.machine.delete_guest(self.instance.uuid), self.host.audit,
                     self.host.running.unproven.wait):
            self.assertRaises(exception.NoFit, self.host.claim, Instance(), pmem=3)
            look()
        self.assertEqual('withheld: unproven', self.host.states()['d0'])
        self.assertRaises(exception.NoFit, self.host.claim, Instance(), pmem=3)
        self.assertEqual(b'secret', self.machine.read(D0))

    def test_the_store_refuses_it(self) -> None:
        self.host.store.before('write', exception.StoreUnavailable('store', 'gone'))
        self.fails(exception.StoreUnavailable)
        self.assertEqual('withheld: foreign, unproven', self.host.states()['d0'])
        self.check_nobody_gets_it()

    def test_the_store_does_not_tell_the_rows(self) -> None:
        self.host.store.before('records_of_devices', exception.StoreUnavailable('store', 'gone'))
        self.fails(exception.StoreUnavailable)
        self.assertNotIn(D0, self.machine.unproven)

    def test_the_proof_cannot_be_removed(self) -> None:
        plain = self.host.driver.disprove

        def disprove(keys: Iterable[DeviceKey]) -> None:
            plain(keys)
            raise exception.DeviceError('vpmem', 'd0', 'no space left')

        self.patch(self.host.driver, 'disprove', disprove)
        self.fails(exception.DeviceError)
        self.check_nobody_gets_it()

    def test_the_commit_did_not_happen(self) -> None:
        self.host.store.lose_commit()
        self.fails(exception.OutcomeUnknown)
        [doubt] = self.host.running.rows.doubts
        self.host.running.rows.settle(doubt)
        self.host.running.rows.let_go(self.instance.uuid)
        self.assertEqual('withheld: unproven', self.host.states()['d0'])
        self.check_nobody_gets_it()

    def test_no_claim_takes_it_when_its_proof_is_removed(self) -> None:
        plain = self.host.driver.disprove

        def disprove(keys: Iterable[DeviceKey]) -> None:
            self.together(lambda: self.host.claim(Instance(), pmem=2))
            plain(keys)

        self.patch(self.host.driver, 'disprove', disprove)
        self.assertEqual(['d0'], self.adopt(D0))
        self.assertEqual((self.instance.uuid, 3), (self.host.owners()['d0'], len(self.host.owners())))

    def test_it_is_interrupted(self) -> None:
        plain = self.host.driver.disprove

        def disprove(keys: Iterable[DeviceKey]) -> None:
            self.patch(self.host.driver, 'disprove', plain)
            plain(keys)
            raise KeyboardInterrupt

        self.patch(self.host.driver, 'disprove', disprove)
        self.assertRaises(KeyboardInterrupt, self.adopt, D0)
        self.check_nobody_gets_it()


class LookTestCase(base.TestCase):
    """Before anything is recorded, a report says what would be."""

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=3, ready=False))
        self.machine, self.instance = self.host.machine, Instance()
        self.machine.start_guest(self.instance.uuid, [fake_guests.element('vpmem', fixtures.path_of(
            self.machine.devices[D0]))])

    def look(self) -> Adopting:
        """A look at a host without a manager, which has never had one."""
        conf = self.host.conf
        host = report.locate(self.host.store, 'host', conf.devicetrack.machine_id_path)
        return report.Observer(host, self.host.driver, self.host.store, conf, service=self.host.service).adopting()

    def test_it_refuses_what_adopt_refuses_and_writes_nothing(self) -> None:
        look = self.look()
        look.check(self.instance.uuid, [D0, D1])
        for instance, key, reason in ((Instance(), D0, f'domain {self.instance.uuid} names it'),
                                      (self.instance, DeviceKey('vpmem', 'none'), 'the host does not have it')):
            error = self.assertRaises(exception.NotAdopted, look.check, instance.uuid, [key])
            self.assertIn(reason, error.reason)
        self.assertEqual((None, []), (self.host.store.store.host('host'), look.records))

    def test_it_asks_the_service(self) -> None:
        self.host.service.known = {self.instance.uuid: migrations.INSTANCE_DELETED}
        error = self.assertRaises(exception.NotAdopted, self.look().check, self.instance.uuid, [D0])
        self.assertIn('deleted', error.reason)

    def test_it_asks_for_providers(self) -> None:
        class NoneYet:
            def uuid_of(self, name: str) -> str | None:
                return None

        look = report.Observer(report.locate(self.host.store, 'host', self.host.conf.devicetrack.machine_id_path),
                               self.host.driver, self.host.store, self.host.conf, NoneYet()).adopting()
        error = self.assertRaises(exception.NotAdopted, look.check, self.instance.uuid, [D0])
        self.assertIn('provider that counts it is not known yet', error.reason)

    def test_a_device_that_is_being_wiped(self) -> None:
        self.machine.wiping[D0] = WipeProgress('zero', 1, 2, 1, None)
        error = self.assertRaises(exception.NotAdopted, self.look().check, self.instance.uuid, [D0])
        self.assertIn('it is being wiped', error.reason)

    def test_a_device_that_is_being_read(self) -> None:
        self.machine.wiping[D0] = WipeProgress('read', 1, 2, 1, None)
        self.look().check(self.instance.uuid, [D0])

    def test_mistakes_in_options_are_told(self) -> None:
        self.assertEqual([], list(self.look().obstacles()))
        self.machine.missing = (Missing(DeviceKey('vpmem', 'd9'), 'pmem_namespaces', 'there is no such namespace'),)
        [obstacle] = self.look().obstacles()
        self.assertIn('pmem_namespaces names d9: there is no such namespace', obstacle)


class WithoutBackgroundTestCase(base.TestCase):

    def test_a_start_without_background_reads_and_wipes_nothing(self) -> None:
        for background, left in ((False, True), (True, False)):
            host = self.useFixture(fixtures.Host(devices=1, ready=False))
            host.configuration.set('devicetrack', unproven_devices='wipe')
            host.machine.write(D0, b'a program')
            host.machine.unproven.add(D0)
            host.manager.init_host(host.context, background=background)
            host.running.unproven.wait()
            self.assertEqual(left, host.machine.read(D0).startswith(b'a program'))
            host.audit()
            host.running.unproven.wait()
            self.assertEqual(left, host.machine.read(D0).startswith(b'a program'))
