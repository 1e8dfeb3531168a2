"""Mistakes in a device kind, which may be of another project, are called its own."""

from __future__ import annotations

import logging
import os
import pathlib
import pickle
import sys
from typing import Any
from typing import cast
import uuid

import fixtures as test_fixtures
import libvirt

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims.manager import ClaimManager
from devicetrack.engine import findings
from devicetrack.objects import details
from devicetrack.objects.pci_alias import PCIAlias
from devicetrack.objects.pci_alias import PCIChoice
from devicetrack.objects.values import Attribute
from devicetrack.objects.values import Capacity
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestConfig
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import MigrationType
from devicetrack.objects.values import Realized
from devicetrack.objects.values import Usage
from devicetrack.testing import fixtures
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.tests import base
from devicetrack.tests.drivers import contract
from devicetrack.tests.unit.virt import disks
from devicetrack.virt import device_kinds
from devicetrack.virt.libvirt import driver as libvirt_driver
from devicetrack.virt.libvirt.kinds import api
from devicetrack.virt.libvirt.kinds import installed

DETAILS = details.to_text(details.VPMEMDetails(
    namespace_uuid='11111111-1b54-4048-85b3-a6a62d165c01', label='x', devpath='/x', size_bytes=1, align_bytes=1))


def device(identifier: Any = 'a', kind: str = 'tape', resource_class: str = 'CUSTOM_TAPE',
           text: Any = DETAILS) -> InventoryDevice:
    return InventoryDevice(kind, identifier, '', resource_class, None, None, text)


class Tape(api.DeviceKind):
    """A kind that says what a test gave it to say: devices, or of types for migrations."""

    name = 'tape'
    keeps_bytes = False
    configured = True
    resource_classes = frozenset(('CUSTOM_TAPE', 'CUSTOM_REEL'))
    said: Any = ()

    def stock(self) -> api.Stock:
        if isinstance(self.said, Exception):
            raise self.said
        return self.said if isinstance(self.said, api.Stock) else api.Stock(tuple(self.said))

    def migration_types(self) -> Any:
        if isinstance(self.said, Exception):
            raise self.said
        return self.said

    def addresses(self, domain: Any) -> Any:
        return ()

    def identify(self, addresses: Any) -> Any:
        return {}

    def realize(self, assignment: Any) -> Any:
        raise NotImplementedError

    def unclaim(self, assignment: Any, lock_fd: int) -> None:
        raise NotImplementedError

    def guest_elements(self, assignments: Any) -> Any:
        raise NotImplementedError


class Other(Tape):
    name = 'other'
    resource_classes = frozenset(('CUSTOM_OTHER',))
    said = (device('b', 'other', 'CUSTOM_OTHER'),)


class StockTestCase(base.TestCase):

    scenarios = base.table(
        ('an error', KeyError('x'), "its stock fails with KeyError: 'x'"),
        ('an assertion without a word', AssertionError(), 'AssertionError'),
        ('no stock', api.Stock(None), 'TypeError'),  # type: ignore[arg-type]
        ('another kind', [device('t1', kind='vpmem')], "its stock is of kind 'vpmem'"),
        ('a capacity of another kind',
         api.Stock(capacities=(Capacity('other', 'drive', 'lto', '', 'CUSTOM_TAPE', None, 1, DETAILS),)),
         "its stock is of kind 'other'"),
        ('an identifier twice', [device('b'), device(), device('b')], "two devices have the identifier 'b'"),
        ('exclusions that are no pairs', [device(), device('t1')._replace(exclusions=('x',))],  # type: ignore[arg-type]
         'its stock fails with ValueError'),
        ('a token twice', [device(), device('t1')._replace(exclusions=(('x', 'part'), ('x', 'whole')))],
         "device 't1' has the exclusions (('x', 'part'), ('x', 'whole')), and not each token once"),
        ('a mode that is none', [device('t1')._replace(exclusions=(('x', 'half'),))], 'part, whole, together'),
        ('a token twice in one mode', [device('t1')._replace(exclusions=(('x', 'part'), ('x', 'part')))],
         'each token once'),
        ('a whole with the token of its parts', [device()._replace(exclusions=(('tape/a', 'part'), ('y', 'whole')))],
         "and 'tape/a' is the token of its parts that the host does not have now"),
        *((f'{field} None', api.Stock((device(),))._replace(**cast(Any, {field: None})),
           'its stock fails with TypeError') for field in ('capacities', 'missing', 'faults')),
        *((f'{field} of one text', api.Stock((device(),))._replace(**cast(Any, {field: 'a'})),
           "'a' is no collection of identifiers") for field in ('written', 'nothing_kept', 'by_person')),
        ('a class that it did not announce', [device(resource_class='CUSTOM_DISC')],
         "its stock has the resource class 'CUSTOM_DISC', which is not in resource_classes"),
        ('a token that is no text', [device('t1')._replace(exclusions=((7, 'part'),))],  # type: ignore[arg-type]
         "device 't1' has the exclusions ((7, 'part'),)"),
        names=('said', 'says'))

    def test_its_devices_are_unknown_and_those_of_others_are_not(self) -> None:
        broken = type('Broken', (Tape,), {'said': self.said})
        driver = libvirt_driver.LibvirtDriver('host', self.conf, self.state_path, [broken, Other])
        inventory = driver.get_inventory()
        self.assertEqual((['b'], {'other'}), ([one.identifier for one in inventory.devices], inventory.known_kinds))
        [unknown] = inventory.unknown
        self.assertEqual('tape', unknown.what)
        self.assertIn('device kind tape made a mistake: ', unknown.reason)
        self.assertIn(self.says, unknown.reason)


class GoodStockTestCase(base.TestCase):

    def test_is_handed_on_as_it_is(self) -> None:
        kind = Tape(self.conf, None)  # type: ignore[arg-type]
        kind.said = api.Stock((device(), device('t2')),
                              (Capacity('tape', 'drive', 'lto', '', 'CUSTOM_REEL', None, 1, DETAILS),))
        self.assertEqual(kind.said, installed.stock(kind))
        for exclusions in ((('tape/a', 'together'), ('y', 'part')), (('tape/b', 'whole'),)):
            kind.said = api.Stock((device()._replace(exclusions=exclusions),))
            self.assertEqual(kind.said, installed.stock(kind))

    def test_an_error_of_the_host_is_no_mistake(self) -> None:
        kind = Tape(self.conf, None)  # type: ignore[arg-type]
        kind.said = exception.CommandFailed('mt', 'no tape')
        self.assertRaises(exception.CommandFailed, installed.stock, kind)

    def test_a_mistake_survives_pickling(self) -> None:
        error = exception.DeviceKindFailed('tape', 'it broke')
        self.assertEqual(str(error), str(pickle.loads(pickle.dumps(error))))


class UnreadIdentityTestCase(base.TestCase):

    def test_nobody_gets_a_device_of_which_it_cannot_be_read_now(self) -> None:
        kind = disks.Disks(self.conf, None)
        kind.slots = {'s1': 'A', 's2': None}
        self.assertEqual([None, 'serial cannot be read now, so its identity is unknown'],
                         [one.unhealthy for one in installed.stock(kind).devices])


class MigrationTypesTestCase(base.TestCase):

    scenarios = base.table(
        ('an error', KeyError('x'), "its migration_types fails with KeyError: 'x'"),
        ('nothing', None, 'TypeError'),
        ('something else', ['lto'], 'not all of its answers are types of this kind'),
        ('another kind', [MigrationType('vpmem', None, 'lto')], 'not all of its answers are types of this kind'),
        names=('said', 'says'))

    def test_a_kind_that_fails_is_left_out_and_logged_with_its_traceback(self) -> None:
        log = self.useFixture(test_fixtures.FakeLogger(libvirt_driver.__name__, level=logging.WARNING))
        good = MigrationType('other', None, 'lto', Attribute('1.0.0'))
        kinds = [type('Broken', (Tape,), {'said': self.said}), type('Good', (Other,), {'said': [good]})]
        driver = libvirt_driver.LibvirtDriver('host', self.conf, self.state_path, kinds)
        self.assertEqual([good], driver.migration_types())
        self.assertIn('The live migration types of kind tape are unknown: device kind tape made a mistake', log.output)
        self.assertIn(self.says, log.output)
        self.assertIn('Traceback', log.output)


class ObstacleTestCase(base.TestCase):

    scenarios = base.table(
        ('an error', KeyError('x'), "its live_migration_obstacle fails with KeyError: 'x'"),
        names=('said', 'says'))

    def test_of_a_kind_that_fails_no_guest_moves_and_of_others_they_do(self) -> None:
        log = self.useFixture(test_fixtures.FakeLogger(libvirt_driver.__name__, level=logging.WARNING))

        def fail(_kind: Any) -> Any:
            if isinstance(self.said, Exception):
                raise self.said
            return self.said

        kinds = [type('Broken', (Tape,), {'live_migration_obstacle': fail}), Other]
        driver = libvirt_driver.LibvirtDriver('host', self.conf, self.state_path, kinds)
        self.assertEqual({'tape': f'device kind tape made a mistake: {self.says}'}, driver.live_migration_obstacles())
        self.assertIn('Traceback', log.output)


    def test_a_device_of_which_it_is_not_known_stays(self) -> None:
        log = self.useFixture(test_fixtures.FakeLogger(libvirt_driver.__name__, level=logging.WARNING))

        def fail(_kind: Any, _assignment: Any) -> Any:
            if isinstance(self.said, Exception):
                raise self.said
            return self.said

        kinds = [type('Broken', (Tape,), {'migration_obstacle_of': fail}), Other]
        driver = libvirt_driver.LibvirtDriver('host', self.conf, self.state_path, kinds)
        tape, other, strange = (contract.assignment(str(uuid.uuid4()), kind, 'one', None, DETAILS)
                                for kind in ('tape', 'other', 'strange'))
        says = self.says.replace('live_migration_obstacle', 'migration_obstacle_of')
        self.assertEqual((f'device kind tape made a mistake: {says}', None, None), (
            driver.migration_obstacle_of(tape), driver.migration_obstacle_of(other),
            driver.migration_obstacle_of(strange)))
        self.assertIn('Traceback', log.output)


class MigrationTypesOfTheHostTestCase(base.TestCase):

    def make(self, **members: Any) -> libvirt_driver.LibvirtDriver:
        return libvirt_driver.LibvirtDriver('host', self.conf, self.state_path, [type('Made', (Tape,), members)])

    def test_an_error_of_the_host_is_no_mistake(self) -> None:
        log = self.useFixture(test_fixtures.FakeLogger(libvirt_driver.__name__, level=logging.WARNING))
        self.assertEqual([], self.make(said=exception.CommandFailed('mt', 'no tape')).migration_types())
        self.assertIn('mt: no tape', log.output)
        self.assertNotIn('Traceback', log.output)

    def test_without_an_answer_there_is_none(self) -> None:
        driver = self.make(said=exception.HypervisorUnreachable('qemu:///system', 'gone'))
        self.assertRaises(exception.HypervisorUnreachable, driver.migration_types)

    def test_a_kind_that_is_not_configured_is_not_asked(self) -> None:
        self.assertEqual([], self.make(said=ZeroDivisionError(), configured=False).migration_types())


class StartTestCase(base.TestCase):

    def manager(self, said: Any) -> ClaimManager:
        """The manager of a host whose kind of tapes says this, beside another kind."""
        broken = type('Broken', (Tape,), {'said': said, 'migration_types': lambda _self: ()})
        other = type('Good', (Other,), {'migration_types': lambda _self: ()})
        driver = libvirt_driver.LibvirtDriver('host', self.conf, self.state_path, [broken, other],
                                              lambda: libvirt.open('test:///default'))
        self.addCleanup(driver.close)
        manager = ClaimManager('host', driver, self.useFixture(fixtures.SQLiteStore(self.conf)).store, self.conf)
        self.addCleanup(manager.close)
        return manager

    def test_a_manager_starts_beside_a_kind_that_fails(self) -> None:
        manager = self.manager(ZeroDivisionError('in its code'))
        [finding] = manager.init_host(self.context)
        self.assertIn('ZeroDivisionError: in its code', finding.detail)
        self.assertEqual({'CUSTOM_OTHER': 1}, manager.providers()[0].totals)

    def test_a_value_of_a_wrong_type_keeps_no_other_kind_from_its_place(self) -> None:
        capacity = Capacity('tape', 'drive', 'lto', '', 'CUSTOM_TAPE', None, 1, DETAILS)
        stocks = [api.Stock((device()._replace(**cast(Any, {field: wrong})), device('t2'))) for field, wrong in (
            ('identifier', 7), ('provider', None), ('parent', 7), ('numa_node', '0'), ('resource_class', None),
            ('details', None), ('unhealthy', 7), ('migration_type', 7), ('assignable', 'no'), ('features', ['big']),
            ('features', (7,)), ('features', 'big'), ('exclusions', (['x', 'whole'],)))]
        stocks += [api.Stock(capacities=(capacity._replace(**cast(Any, {field: wrong})),)) for field, wrong in (
            ('available', None), ('available', '1'), ('device_type', 7), ('provider', None))]
        stocks += [api.Stock((device(),), **cast(Any, {field: wrong})) for field, wrong in (
            ('faults', ('x',)), ('missing', ('x',)), ('written', 7), ('by_person', 7))]
        for said in stocks:
            broken = type('Broken', (Tape,), {'said': said})
            driver = libvirt_driver.LibvirtDriver('host', self.conf, self.state_path, [broken, Other])
            inventory = driver.get_inventory()
            self.assertEqual({'other'}, inventory.known_kinds, str(said))
            self.assertIn('device kind tape made a mistake: its stock fails with ', inventory.unknown[0].reason)
        manager = self.manager(stocks[3])
        [finding] = manager.init_host(self.context)
        self.assertIn('numa_node is a str', finding.detail)
        self.assertEqual([finding], manager.update_available_resource(self.context, 'host'))
        self.assertEqual({'CUSTOM_OTHER': 1}, manager.providers()[0].totals)

    def test_a_kind_that_names_a_token_twice_keeps_no_other_from_starting(self) -> None:
        manager = self.manager([device()._replace(exclusions=(('x', 'part'), ('x', 'whole')))])
        [finding] = manager.init_host(self.context)
        self.assertIn('each token once', finding.detail)
        self.assertEqual([finding], manager.update_available_resource(self.context, 'host'))
        self.assertEqual({'CUSTOM_OTHER': 1}, manager.providers()[0].totals)


class PrepareTestCase(base.TestCase):

    scenarios = base.table(
        ('an error of the host', exception.CommandFailed('mt', 'no tape'), 'mt: no tape', False),
        ('a mistake', RuntimeError('x'), 'device kind tape made a mistake: its prepare fails with RuntimeError: x',
         True),
        names=('said', 'says', 'traced'))

    def test_an_error_is_a_finding_until_it_works_again(self) -> None:
        log = self.useFixture(test_fixtures.FakeLogger(libvirt_driver.__name__, level=logging.WARNING))
        errors = [self.said]

        def prepare(_kind: Any, _recorded: Any, _locked: Any) -> None:
            if errors:
                raise errors.pop()

        without = {'migration_types': lambda _kind: ()}
        broken = type('Broken', (Tape,), {'said': (device(),), 'prepare': prepare, **without})
        driver = libvirt_driver.LibvirtDriver('host', self.conf, self.state_path,
                                              [broken, type('Good', (Other,), without)],
                                              lambda: libvirt.open('test:///default'))
        self.addCleanup(driver.close)
        store = self.useFixture(fixtures.SQLiteStore(self.conf)).store
        manager = ClaimManager('host', driver, store, self.conf)
        self.addCleanup(manager.close)
        [finding] = manager.init_host(self.context)
        self.assertEqual((findings.NOT_AS_CONFIGURED, 'tape', f'prepare: {self.says}'),
                         (finding.kind, finding.device.kind, finding.detail))
        self.assertEqual(self.traced, 'Traceback' in log.output)
        self.assertEqual({'CUSTOM_OTHER': 1, 'CUSTOM_TAPE': 1}, manager.providers()[0].totals)
        self.assertEqual([], manager.update_available_resource(self.context, 'host'))


class MistakesTestCase(base.TestCase):
    """An error in a method, or an answer that is none, is called the kind's own and is no end of the driver's call."""

    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(test_fixtures.FakeLogger(installed.__name__, level=logging.WARNING))
        self.node = self.useFixture(libvirt_fixtures.TestNode())
        self.tape = contract.assignment(str(uuid.uuid4()), 'tape', 'one', None, DETAILS)

    def make(self, method: str, *answers: Any, keeps_bytes: bool = False) -> libvirt_driver.LibvirtDriver:
        def answer(_kind: Any, *_arguments: Any) -> Any:
            if answers:
                return answers[0]
            raise ZeroDivisionError('in its code')

        works = {'realize': lambda _kind, one: Realized(DeviceKey('tape', one.identifier), DETAILS),
                 'unclaim': lambda _kind, one, lock_fd: None}
        broken = type('Broken', (Tape,), {**works, 'keeps_bytes': keeps_bytes, method: answer})
        driver = libvirt_driver.LibvirtDriver('host', self.conf, self.state_path, [broken, Other], self.node.connect)
        self.addCleanup(driver.close)
        return driver

    def says(self, method: str, error: Any, traced: bool = True) -> None:
        self.assertIn(f'device kind tape made a mistake: its {method} fails with ', str(error))
        self.assertEqual(traced, 'Traceback' in self.log.output)

    def test_realize(self) -> None:
        other = Realized(DeviceKey('tape', 'other'), DETAILS)
        for answers in ((), (None,), (other,), (other._replace(key=DeviceKey('tape', 'one'), details=''),)):
            driver = self.make('realize', *answers)
            self.says('realize', self.assertRaises(exception.RealizeFailed, driver.realize, self.tape))

    def test_is_named(self) -> None:
        keys = [DeviceKey('tape', 'one'), DeviceKey('other', 'two'), DeviceKey('film', 'three')]
        for answers, named in (((), True), ((None,), True), ((True,), True), ((False,), False)):
            unnamed = self.make('is_named', *answers).unnamed([(key, DETAILS) for key in keys])
            self.assertEqual({keys[2]} if named else {keys[0], keys[2]}, unnamed)

    def test_own_path(self) -> None:
        driver = self.make('own_path', keeps_bytes=True)
        self.says('own_path', self.assertRaises(exception.RealizeFailed, driver.realize, self.tape))
        [error] = driver.unclaim([self.tape]).values()
        self.assertIsInstance(error, exception.UnclaimFailed)
        self.says('own_path', error)
        [error] = driver.prove([self.tape], vocabulary.READ).values()
        self.says('own_path', error)

    def test_an_answer_in_place_of_an_error_is_no_proof(self) -> None:
        two = contract.assignment(str(uuid.uuid4()), 'tape', 'two', None, DETAILS)
        for answer in (False, True, 'not all zero between bytes 0 and 4096'):
            for method, step in (('unclaim', lambda driver: driver.unclaim([self.tape])),
                                 ('check_unused', lambda driver: driver.unclaim([self.tape, two])),
                                 ('unclaim', lambda driver: driver.prove([self.tape], vocabulary.WIPE)),
                                 ('read_through', lambda driver: driver.prove([self.tape], vocabulary.READ))):
                driver = self.make(method, answer, keeps_bytes=True)
                self.says(method, step(driver)[DeviceKey('tape', 'one')])
                self.assertIsNone(driver._proofs.how(DeviceKey('tape', 'one'), DETAILS))

    def test_unclaim_of_one_device_does_not_keep_another(self) -> None:
        driver = self.make('unclaim')
        other = contract.assignment(str(uuid.uuid4()), 'other', 'b', None, DETAILS)
        self.useFixture(test_fixtures.MonkeyPatch(f'{__name__}.Other.unclaim', lambda kind, one, lock_fd: None))
        answers = driver.unclaim([self.tape, other])
        self.assertIsNone(answers['other', 'b'])  # type: ignore[index]
        self.assertIsInstance(answers['tape', 'one'], exception.UnclaimFailed)  # type: ignore[index]
        self.says('unclaim', answers['tape', 'one'])  # type: ignore[index]

    def test_a_child_that_an_error_leaves_keeps_the_lock(self) -> None:
        left: list[int] = []

        def leaves(_kind: Any, _assignment: Any, lock_fd: int, _stop: Any = None) -> None:
            left.append(os.dup(lock_fd))        # as a child that inherits it
            raise exception.CommandFailed('the wiper', 'killed')

        for step in (lambda driver: driver.unclaim([self.tape]), lambda driver: driver.prove([self.tape], 'read'),
                     lambda driver: driver.prove([self.tape], 'wipe')):
            driver = self.make('unclaim', keeps_bytes=True)
            for method in ('unclaim', 'read_through'):
                self.patch(type(driver._kinds['tape']), method, leaves)
            [error] = step(driver).values()
            self.assertIn('killed', str(error))
            [error] = driver.unclaim([self.tape]).values()
            self.assertIsInstance(error, exception.DeviceBusy)
            os.close(left.pop())

    def test_check_free(self) -> None:
        for answers in ((), (False,), ('open',)):
            driver = self.make('check_free', *answers)
            self.says('check_free', self.assertRaises(exception.RealizeFailed, driver.realize, self.tape))

    def test_evidence(self) -> None:
        for answers in ((), (7,), ({'one': 7},), ({'one': ''},), ({'one': 'a\tb'},), ({'other': 'text'},)):
            driver = self.make('evidence', *answers, keeps_bytes=True)
            [error] = driver.prove([self.tape], vocabulary.WIPE).values()
            self.says('evidence', error)
            self.assertIsNone(driver._proofs.how(DeviceKey('tape', 'one'), DETAILS))

    def test_opened(self) -> None:
        for answers in ((), (7,), ('one',), (['other'],)):
            driver = self.make('opened', *answers, keeps_bytes=True)
            self.assertEqual([None], list(driver.prove([self.tape], vocabulary.WIPE).values()))
            self.says('opened', self.assertRaises(exception.DeviceKindFailed, driver._proving.used,
                                                  driver._kinds['tape'], ['one']))

    def test_is_written(self) -> None:
        for answers in ((), (None,), (True,), ('no',)):
            driver = self.make('is_written', *answers, keeps_bytes=True)
            self.patch(type(driver._kinds['tape']), 'evidence', lambda kind, names: {'one': 'text'})
            self.assertEqual([None], list(driver.prove([self.tape], vocabulary.WIPE).values()))
            error = self.assertRaises(exception.DriverError, driver.realize, self.tape)
            self.assertIsInstance(error, exception.NotProven if answers else exception.RealizeFailed)

    def test_is_untouched(self) -> None:
        driver = self.make('is_untouched', keeps_bytes=True)
        only_claimed = contract.assignment(str(uuid.uuid4()), 'tape', 'one', None, DETAILS,
                                           state=vocabulary.RELEASING, was_realized=False)
        self.assertEqual([None], list(driver.unclaim([self.tape]).values()))            # which proves it clean
        [error] = driver.unclaim([only_claimed]).values()
        self.assertIsInstance(error, exception.UnclaimFailed)
        self.says('is_untouched', error)

    def test_proofs(self) -> None:
        driver = self.make('read_through', keeps_bytes=True)
        [error] = driver.prove([self.tape], 'read').values()
        self.says('read_through', error)
        blank: tuple[tuple[Any, ...], ...] = ((), (None,), ('one-and-more',), ({'one': False},), (['two'],), ([[]],))
        for answers in blank:
            driver = self.make('is_blank', *answers, keeps_bytes=True)
            [error] = driver.prove([self.tape], 'blank').values()
            self.assertIsInstance(error, exception.DeviceKindFailed)
            self.says('is_blank', error)

    def test_within_reach(self) -> None:
        wrong: tuple[tuple[Any, ...], ...] = ((), (None,), ('two',), (['three'],), ([[]],))
        for answers in wrong:
            driver = self.make('within_reach', *answers, keeps_bytes=True)
            driver._proofs.record(dict.fromkeys(
                (self.tape.key, DeviceKey('tape', 'two'), DeviceKey('other', 'three')), DETAILS), vocabulary.WIPED)
            self.says('within_reach', self.assertRaises(exception.RealizeFailed, driver.realize, self.tape))
        driver = self.make('within_reach', ['two'], keeps_bytes=True)
        driver.get_inventory()
        driver.realize(self.tape)
        self.assertEqual({}, driver._proofs.of_kind('tape'))
        self.assertEqual(['three'], list(driver._proofs.of_kind('other')))

    def test_a_kind_that_cannot_look_takes_no_proof_from_the_devices_of_others(self) -> None:
        def cannot(_kind: Any, _assignments: Any) -> Any:
            raise exception.CommandFailed('look', 'no answer')

        kinds = [type('Blind', (Tape,), {'keeps_bytes': True, 'is_blank': cannot}),
                 type('Seeing', (Other,), {'keeps_bytes': True, 'is_blank': lambda _kind, assignments: ['b']})]
        driver = libvirt_driver.LibvirtDriver('host', self.conf, self.state_path, kinds, self.node.connect)
        self.addCleanup(driver.close)
        other = contract.assignment(str(uuid.uuid4()), 'other', 'b', None, DETAILS)
        answers = driver.prove([self.tape, other], vocabulary.BLANK)
        self.assertIsInstance(answers[DeviceKey('tape', 'one')], exception.CommandFailed)
        self.assertIsNone(answers[DeviceKey('other', 'b')])

    def test_guest_elements(self) -> None:
        wrong: tuple[tuple[Any, ...], ...] = ((), (None,), ([],))
        for answers in wrong:
            driver = self.make('guest_elements', *answers)
            self.says('guest_elements', self.assertRaises(exception.DeviceKindFailed, driver.guest_config, [self.tape]))

    def test_reading_definitions(self) -> None:
        for method in ('addresses', 'other_addresses', 'identify'):
            for answers in ((), (None,)):
                [unknown] = self.with_guest(self.make(method, *answers)).unknown
                self.says(method, unknown.reason)
        for wrong in (7, ['a']):
            [unknown] = self.with_guest(self.make('identify', {'/x': wrong})).unknown
            self.says('identify', unknown.reason)

    def with_guest(self, driver: libvirt_driver.LibvirtDriver) -> Usage:
        connection = self.node.connect()
        if not connection.numOfDomains():
            connection.createXML(libvirt_fixtures.guest(str(uuid.uuid4()), GuestConfig()), 0)
        return driver.get_usage()

    def test_the_check_of_the_host(self) -> None:
        error = self.assertRaises(exception.InvalidConfiguration, self.make('check_host').check_host)
        self.assertIn('Broken: its check_host fails with ZeroDivisionError: in its code', str(error))


class KindTestCase(base.TestCase):

    scenarios = base.table(
        ('no class', [lambda conf, hypervisor: None], 'is no subclass'),
        ('another class', [dict], 'builtins:dict: it is no subclass'),
        ('no name', [type('Nameless', (Tape,), {'name': ''})], "its name, ''"),
        ('a name that no command takes', [type('Slashed', (Tape,), {'name': 'a/b'})], "its name, 'a/b'"),
        ('a name that is taken', [Tape, type('Again', (Tape,), {})], 'it has the name of'),
        ('methods that are missing', [type('Half', (api.DeviceKind,), {'name': 'half', 'keeps_bytes': False})],
         'it fails with TypeError'),
        ('nothing said about bytes', [type('Silent', (Tape,), {'keeps_bytes': None})],
         'it does not say whether its devices store data'),
        ('an error', [type('Failing', (Tape,), {'__init__': lambda *args: 1 / 0})], 'ZeroDivisionError'),
        ('a list of classes', [type('Listing', (Tape,), {'resource_classes': ['A']})], 'are no frozenset'),
        ('a class in small letters', [type('Small', (Tape,), {'resource_classes': frozenset(['a'])})],
         "its resource class 'a'"),
        names=('kinds', 'says'))

    def test_what_is_no_device_kind_is_refused_by_name(self) -> None:
        error = self.assertRaises(exception.InvalidConfiguration, libvirt_driver.LibvirtDriver,
                                  'host', self.conf, self.state_path, self.kinds)
        self.assertIn(self.says, str(error))
        self.assertIn('devicetrack.libvirt.device_kinds = ', str(error))


class ConstructorTestCase(base.TestCase):
    """The state directory and the boot, which a default may be made of."""

    def test_a_constructor_knows_the_state_directory_and_the_boot(self) -> None:
        seen = []

        class Remembering(Tape):
            def __init__(self, conf: Any, hypervisor: Any) -> None:
                super().__init__(conf, hypervisor)
                seen.extend([self.state_path, self.boot_id()])

        driver = libvirt_driver.LibvirtDriver('host', self.conf, self.state_path, [Remembering])
        self.assertEqual([self.state_path, driver.boot_id()], seen)


class AliasesTestCase(base.TestCase):

    def test_are_those_of_the_kind_that_has_any(self) -> None:
        aliases = {'x': PCIAlias('x', (PCIChoice('CUSTOM_TAPE'),), 'legacy')}
        for mine, theirs, found in ((None, None, None), (aliases, None, aliases), (None, {}, {})):
            kinds = [type('Named', (Tape,), {'aliases': mine}), type('Second', (Other,), {'aliases': theirs})]
            driver = libvirt_driver.LibvirtDriver('host', self.conf, self.state_path, kinds)
            self.assertEqual(found, driver.aliases())


class EntryPointsTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        path = pathlib.Path(self.temp_dir())
        info = path / 'tape-1.0.dist-info'
        info.mkdir()
        info.joinpath('METADATA').write_text('Metadata-Version: 2.1\nName: tape\nVersion: 1.0\n')
        info.joinpath('entry_points.txt').write_text(
            f'[{device_kinds.NAMESPACE}]\ntape = {__name__}:Tape\nvpmem = {__name__}:Tape\n'
            'broken = devicetrack_nosuch:Kind\n')
        self.useFixture(test_fixtures.MonkeyPatch('sys.path', [*sys.path, str(path)]))

    def loaded(self, *named: str) -> list[str]:
        self.configuration.set('devicetrack', device_kinds=named)
        return [cls.__module__.rpartition('.')[2] for cls in installed.classes(self.conf)]

    def test_our_kinds_are_loaded_and_others_only_if_they_are_named(self) -> None:
        self.assertEqual(['mdev', 'pci', 'vf', 'vpmem'], self.loaded())
        self.assertEqual(['mdev', 'pci', 'test_installed', 'vf', 'vpmem'], sorted(self.loaded('tape')))

    def test_one_that_is_not_there_or_cannot_be_loaded_is_refused_by_name(self) -> None:
        for name, says in (('nosuch', '[devicetrack] device_kinds = nosuch: no package has'),
                           ('broken', 'broken: cannot be loaded: No module named')):
            error = self.assertRaises(exception.InvalidConfiguration, self.loaded, name)
            self.assertIn(says, str(error))
