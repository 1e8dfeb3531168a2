"""What every store does, on each database."""

from __future__ import annotations

from typing import Any

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine.guest_records import LONGEST
from devicetrack.objects.values import DeviceKey
from devicetrack.store import api
from devicetrack.store.sql import changing
from devicetrack.store.sql import models
from devicetrack.testing import databases
from devicetrack.tests import base
from devicetrack.tests.functional.store import records
from devicetrack.tests.functional.store.records import delete
from devicetrack.tests.functional.store.records import insert
from devicetrack.tests.functional.store.records import moved_on
from devicetrack.tests.functional.store.records import record
from devicetrack.tests.functional.store.records import update


class StoreTestCase(base.TestCase):
    """A test with an empty store."""

    scenarios = databases.SCENARIOS
    database: type[databases.StoreFixture]

    def setUp(self) -> None:
        super().setUp()
        self.fixture = self.useFixture(self.database())
        self.store = self.fixture.store


class TestHosts(StoreTestCase):
    def test_a_host_is_found_by_its_name(self) -> None:
        host = api.Host(records.HOST_UUID, 'compute-1', 'digest')
        self.store.add_host(host)
        self.assertEqual(host, self.store.host('compute-1'))
        self.assertIsNone(self.store.host('compute-2'))

    def test_a_host_without_a_name_or_with_one_of_several_lines_is_refused(self) -> None:
        for name in ('', 'compute\n1', 'compute\x1b[2J'):
            self.assertRaises(exception.InvalidConfiguration, self.store.add_host,
                              api.Host(records.HOST_UUID, name, 'digest'))
        self.assertEqual([], self.store.hosts())

    def test_hosts_come_by_name(self) -> None:
        made = [api.Host(f'{number:036}', f'compute-{number}', 'digest') for number in (3, 1, 2)]
        for host in made:
            self.store.add_host(host)
        self.assertEqual(sorted(made, key=lambda host: host.name), self.store.hosts())

    def test_adding_a_host_again_is_harmless(self) -> None:
        host = api.Host(records.HOST_UUID, 'compute-1', 'digest')
        self.store.add_host(host)
        self.store.add_host(host)
        self.assertEqual([host], self.store.hosts())

    def test_a_second_machine_of_the_same_name_is_refused(self) -> None:
        host = api.Host(records.HOST_UUID, 'compute-1', 'digest')
        self.store.add_host(host)
        error = self.assertRaises(exception.HostIdentityChanged, self.store.add_host,
                                  api.Host('0' * 36, 'compute-1', 'another digest'))
        self.assertEqual('compute-1', error.host)
        self.assertEqual([host], self.store.hosts())

    def test_a_name_with_a_blank_at_an_end_is_refused(self) -> None:
        for name in ('compute-1 ', ' compute-1'):
            error = self.assertRaises(exception.InvalidConfiguration, self.store.add_host,
                                      api.Host(records.HOST_UUID, name, 'digest'))
            self.assertEqual(f'"{name}"', error.value)
        self.assertEqual([], self.store.hosts())

    def test_the_boot_of_a_host_is_kept(self) -> None:
        host = api.Host(records.HOST_UUID, 'compute-1', 'digest')
        other = api.Host('0' * 36, 'compute-2', 'digest', 'boot-0')
        for made in (host, other):
            self.store.add_host(made)
        for boot_id in ('boot-1', 'boot-2', 'boot-2'):
            self.store.set_boot_id(host.uuid, boot_id)
            self.assertEqual([host._replace(boot_id=boot_id), other], self.store.hosts())
        self.assertEqual(host._replace(boot_id='boot-2'), self.store.host('compute-1'))

    def test_the_boot_of_an_unknown_host(self) -> None:
        self.store.add_host(api.Host(records.HOST_UUID, 'compute-1', 'digest'))
        error = self.assertRaises(exception.UnknownHost, self.store.set_boot_id, '0' * 36, 'boot-1')
        self.assertEqual(('0' * 36, ('compute-1',)), (error.host, error.known))

    def test_since_when_a_host_is_nested_is_kept(self) -> None:
        host = api.Host(records.HOST_UUID, 'compute-1', 'digest', 'boot-1')
        other = api.Host('0' * 36, 'compute-2', 'digest')
        for made in (host, other):
            self.store.add_host(made)
        for at in (1_800_000_000, 5_000_000_000):
            self.store.set_nested(host.uuid, 1, at)
            self.assertEqual([host._replace(nested_version=1, nested_at=at), other], self.store.hosts())
        self.store.set_nested(host.uuid, None, None)
        self.assertEqual([host, other], self.store.hosts())
        error = self.assertRaises(exception.UnknownHost, self.store.set_nested, 'f' * 36, 1, 5)
        self.assertEqual('f' * 36, error.host)

    def test_adding_a_host_again_after_it_has_booted_is_harmless(self) -> None:
        host = api.Host(records.HOST_UUID, 'compute-1', 'digest')
        self.store.add_host(host)
        self.store.set_boot_id(host.uuid, 'boot-1')
        self.store.add_host(host)
        self.assertEqual([host._replace(boot_id='boot-1')], self.store.hosts())


class TestReplaceHost(StoreTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.before = api.Host(records.HOST_UUID, 'compute-1', 'digest')
        self.after = api.Host('a' * 36, 'compute-1', 'another digest')
        self.bystander = api.Host('b' * 36, 'compute-2', 'a third digest')
        for host in (self.before, self.bystander):
            self.store.add_host(host)

    def assert_replaced(self, after: api.Host) -> None:
        [replaced, bystander] = self.store.hosts()
        self.assertEqual((after, self.bystander), (replaced._replace(epoch=0), bystander))
        self.assertGreater(replaced.epoch, 0)

    def test_another_machine_takes_the_name(self) -> None:
        self.store.set_boot_id(self.before.uuid, 'boot-1')
        self.store.replace_host(self.before, self.after)
        self.assert_replaced(self.after)

    def test_to_do_it_again_is_harmless(self) -> None:
        self.store.replace_host(self.before, self.after)
        self.store.set_boot_id(self.after.uuid, 'boot-1')
        self.store.replace_host(self.before, self.after)
        self.assert_replaced(self.after._replace(boot_id='boot-1'))

    def test_a_machine_may_keep_its_uuid(self) -> None:
        after = self.after._replace(uuid=self.before.uuid)
        self.store.replace_host(self.before, after)
        self.assert_replaced(after)

    def test_a_host_may_go_with_all_that_is_left_of_it(self) -> None:
        self.store.set_withheld([api.WithheldRow(self.before.uuid, 'vpmem', 'device', 'ns0', '{}', 1, 1)])
        for _ in range(2):                              # the answer of the first may have been lost
            self.store.replace_host(self.before, None)
        self.assertEqual(([self.bystander], []), (self.store.hosts(), self.store.withheld(self.before.uuid)))
        self.store.write(insert(record('ns0', host_uuid=self.bystander.uuid)))
        error = self.assertRaises(exception.HostHoldsDevices, self.store.replace_host, self.bystander, None)
        self.assertEqual((self.bystander.name, 1), (error.host, error.rows))

    def test_a_host_that_holds_devices_stays_and_the_error_says_what_to_do(self) -> None:
        self.store.write(insert(record('ns0'), record('ns1')))
        error = self.assertRaises(exception.HostHoldsDevices, self.store.replace_host, self.before, self.after)
        self.assertEqual(('compute-1', 2), (error.host, error.rows))
        self.assertIn('release', str(error))
        self.assertIn('host forget', str(error))
        self.assertEqual([self.before, self.bystander], self.store.hosts())

    def test_rows_of_other_hosts_do_not_matter_and_stay(self) -> None:
        theirs = record('ns0', host_uuid=self.bystander.uuid)
        changes = insert(theirs)._replace(contexts=(records.context(theirs),))
        self.store.write(changes)
        self.store.replace_host(self.before, self.after)
        self.assertEqual([theirs], self.store.records())
        self.assertEqual([records.context(theirs)], self.store.contexts(self.bystander.uuid))

    def test_what_is_left_of_the_one_before_goes(self) -> None:
        row = record('ns0')
        self.store.write(insert(row)._replace(contexts=(records.context(row),)))
        self.store.write(delete(row))
        requests = [api.OperatorRequest(host.uuid, host.uuid, 'cordon', '{}', 1)
                    for host in (self.before, self.bystander)]
        for request in requests:
            self.store.add_operator_request(request)
        self.store.replace_host(self.before, self.after)
        self.assertEqual(([], requests[1:]), (self.store.contexts(self.before.uuid), self.store.operator_requests()))

    def test_a_host_that_is_another_one_by_now_stays(self) -> None:
        for before in (self.before._replace(machine_id='what it was'), self.before._replace(uuid='c' * 36)):
            error = self.assertRaises(exception.HostIdentityChanged, self.store.replace_host, before, self.after)
            self.assertEqual('compute-1', error.host)
        self.assertEqual([self.before, self.bystander], self.store.hosts())

    def test_a_name_that_a_third_one_has_is_refused(self) -> None:
        self.assertRaises(exception.HostIdentityChanged, self.store.replace_host, self.before,
                          self.after._replace(name=self.bystander.name))
        self.assertEqual([self.before, self.bystander], self.store.hosts())


class TestRecords(StoreTestCase):
    def test_a_record_comes_back_as_it_went_in(self) -> None:
        full = record('ns0', migration_uuid=records.HOST_UUID, role=vocabulary.OLD, parent='pci_0000_84_00_0',
                      numa_node=1, position=3, created_at=1 << 40)
        empty = record('ns1', parent=None, numa_node=None, migration_uuid=None)
        self.store.write(insert(full, empty))
        self.assertCountEqual([full, empty], self.store.records())

    def test_records_come_by_instance_and_position(self) -> None:
        made = [record(f'ns{instance}{position}', instance_uuid=f'{instance:036}', position=position)
                for instance, position in ((2, 0), (1, 1), (1, 0), (2, 1))]
        self.store.write(insert(*made))
        self.assertEqual(sorted(made, key=lambda row: (row.instance_uuid, row.position)), self.store.records())

    def test_what_is_given_narrows_the_answer(self) -> None:
        mine, of_instance, elsewhere = record('ns0'), record('ns1'), record('ns0', host_uuid='0' * 36)
        self.store.write(insert(mine, of_instance))
        self.store.write(insert(elsewhere))
        self.assertCountEqual([mine, of_instance], self.store.records_of_host(records.HOST_UUID))
        self.assertEqual([of_instance], self.store.records_everywhere(of_instance.instance_uuid))
        self.assertEqual([mine], self.store.records_of_devices(
            records.HOST_UUID, [mine.key, DeviceKey('mdev', 'ns1')]))
        self.assertEqual([mine], self.store.records_of_instance(records.HOST_UUID, mine.instance_uuid))

    def test_what_is_missing_matches_nothing(self) -> None:
        self.store.write(insert(record('ns0')))
        for nothing in (None, ''):
            missing: Any = nothing
            self.assertEqual([[]] * 5, [
                self.store.records_of_host(missing), self.store.records_everywhere(missing),
                self.store.records_of_instance(records.HOST_UUID, missing),
                self.store.records_of_instance(missing, record('ns0').instance_uuid),
                self.store.records_of_devices(missing, [DeviceKey('vpmem', 'ns0')])])
            self.assertEqual([[]] * 3, [self.store.contexts(missing), self.store.operator_requests_of_host(missing),
                                        self.store.declarations_of_host(missing)])
            self.assertIsNone(self.store.context(records.HOST_UUID, missing))

    def test_no_keys_match_nothing(self) -> None:
        self.store.write(insert(record('ns0')))
        self.assertEqual([], self.store.records_of_devices(records.HOST_UUID, []))

    def test_identifiers_differ_in_every_byte(self) -> None:
        made = [record(identifier) for identifier in ('ns0', 'NS0', 'ns\u00f6', 'nso')]
        self.store.write(insert(*made))
        self.assertCountEqual(made, self.store.records())

    def test_values_are_never_a_part_of_a_statement(self) -> None:
        made = [record("a'; DROP TABLE hosts; --", parent='%s %(name)s :name ? \\'), record('b%')]
        self.store.write(insert(*made))
        changed = [moved_on(row, parent="';%s") for row in made]
        self.store.write(api.Changes(update=tuple(map(api.Update, made, changed))))
        self.assertCountEqual(changed, self.store.records())


class TestWrite(StoreTestCase):
    def test_nothing_to_do_does_nothing(self) -> None:
        self.store.write(api.Changes())
        self.assertEqual([], self.store.records())

    def test_one_transaction_inserts_updates_and_deletes(self) -> None:
        changed, gone, new = record('changed'), record('gone'), record('new')
        self.store.write(insert(changed, gone))
        self.store.write(api.Changes((new,), (api.Update(changed, moved_on(changed)),), (gone,)))
        self.assertCountEqual([moved_on(changed), new], self.store.records())

    def test_many_rows_of_each_sort(self) -> None:
        first = [record(f'ns{number}') for number in range(1100)]
        self.store.write(insert(*first))
        second = [moved_on(row, numa_node=index % 2 or None, migration_uuid=None if index % 3 else row.instance_uuid)
                  for index, row in enumerate(first)]
        self.store.write(api.Changes(update=tuple(map(api.Update, first, second))))
        self.assertCountEqual(second, self.store.records())
        self.store.write(delete(*second))
        self.assertEqual([], self.store.records())

    def test_what_a_guest_has_seen_is_kept(self) -> None:
        rows = [record('ns0'), record('ns1', seen='1.0.0'), record('ns2', seen='1.0.0')]
        self.store.write(insert(*rows))
        self.assertCountEqual(rows, self.store.records())
        for seen in (('1.0.0', '65535.65535.65535', None), (None, None, None)):
            after = [moved_on(row, seen=version) for row, version in zip(rows, seen, strict=True)]
            self.store.write(api.Changes(update=tuple(map(api.Update, rows, after))))
            self.assertCountEqual(after, self.store.records())
            rows = after
        [row] = self.store.records_of_devices(records.HOST_UUID, [DeviceKey('vpmem', 'ns0')])
        self.store.write(update(row, seen='2.0.0'))
        self.assertEqual(['2.0.0'], [
            row.seen for row in self.store.records_of_devices(records.HOST_UUID, [row.key])])

    def test_whether_a_device_was_realized_is_a_truth_value_on_every_database(self) -> None:
        rows = [record('ns0'), record('ns1', was_realized=True)]
        self.store.write(insert(*rows))
        self.assertEqual({'ns0': 'False', 'ns1': 'True'}, {
            row.identifier: repr(row.was_realized) for row in self.store.records()})

    def test_the_name_of_an_instance_is_kept_whatever_it_is(self) -> None:
        names = (None, ' web-1 ', 'a\n\x1b[2J\u202e\'";--', '\U0001f600' * 255)
        rows = [record(f'ns{number}', instance_name=name) for number, name in enumerate(names)]
        self.store.write(insert(rows[0], *rows[2:]))
        self.store.write(insert(rows[1]))       # one row alone is another statement
        self.assertCountEqual(rows, self.store.records())
        after = [moved_on(row) for row in rows]
        self.store.write(api.Changes(update=tuple(map(api.Update, rows, after))))
        self.assertCountEqual(after, self.store.records())
        self.assertTrue(self.store.settle(api.Changes(update=tuple(map(api.Update, rows, after)))))

    def test_a_taken_device_is_named_and_nothing_is_written(self) -> None:
        owned = record('ns1')
        self.store.write(insert(owned))
        error = self.assertRaises(exception.DeviceTaken, self.store.write,
                                  insert(record('ns0'), record('ns1'), record('ns2')))
        self.assertEqual((('vpmem', 'ns1'),), error.devices)
        self.assertEqual([owned], self.store.records())

    def test_a_row_without_its_instance_is_refused_and_its_device_is_not_taken(self) -> None:
        nobody: Any = None
        self.assertRaises(exception.StoreUnavailable, self.store.write,
                          insert(record('ns0')._replace(instance_uuid=nobody)))
        self.assertEqual([], self.store.records())

    def test_the_same_identifier_of_another_kind_or_host_is_another_device(self) -> None:
        made = [record('ns0'), record('ns0', kind='mdev'), record('ns0', host_uuid='0' * 36)]
        for row in made:
            self.store.write(insert(row))
        self.assertCountEqual(made, self.store.records())

    def test_a_row_that_moved_on_is_not_updated(self) -> None:
        read = record('ns0')
        self.store.write(insert(read))
        self.store.write(update(read))
        error = self.assertRaises(exception.StaleAssignment, self.store.write,
                                  update(read, state=vocabulary.RELEASING))
        self.assertEqual(('vpmem', 'ns0', 1), (error.kind, error.identifier, error.generation))
        self.assertEqual([moved_on(read)], self.store.records())

    def test_a_row_that_moved_on_is_not_deleted(self) -> None:
        read = record('ns0')
        self.store.write(insert(read))
        self.store.write(update(read))
        self.assertRaises(exception.StaleAssignment, self.store.write, delete(read))
        self.assertEqual([moved_on(read)], self.store.records())

    def test_a_later_claim_of_the_same_generation_is_not_touched(self) -> None:
        ours, theirs = record('ns0'), record('ns0')
        self.store.write(insert(theirs))
        self.assertRaises(exception.StaleAssignment, self.store.write, update(ours))
        self.assertRaises(exception.StaleAssignment, self.store.write, delete(ours))
        self.assertEqual([theirs], self.store.records())

    def test_the_stale_row_of_several_is_the_one_that_is_named(self) -> None:
        kept, gone = record('kept'), record('gone')
        self.store.write(insert(kept))
        error = self.assertRaises(exception.StaleAssignment, self.store.write, delete(kept, gone))
        self.assertEqual('gone', error.identifier)
        self.assertEqual([kept], self.store.records())

    def test_a_device_can_be_given_and_taken_in_one_transaction(self) -> None:
        before, after = record('ns0'), record('ns0')
        self.store.write(insert(before))
        self.store.write(api.Changes(insert=(after,), delete=(before,)))
        self.assertEqual([after], self.store.records())

    def test_another_process_sees_what_was_written(self) -> None:
        made = record('ns0')
        self.store.write(insert(made))
        self.assertEqual([made], self.fixture.open().records())

    def test_the_store_can_be_used_after_it_was_closed(self) -> None:
        self.store.write(insert(record('ns0')))
        self.store.close()
        self.store.write(insert(record('ns1')))
        self.assertEqual(2, len(self.store.records()))


class TestSettleWithoutLoss(StoreTestCase):
    """What settle answers about transactions whose outcome is plain to see."""

    def test_an_insert_that_happened(self) -> None:
        changes = insert(record('ns0'), record('ns1'))
        self.store.write(changes)
        self.assertTrue(self.store.settle(changes))
        self.assertCountEqual(changes.insert, self.store.records())

    def test_an_insert_that_did_not(self) -> None:
        self.assertFalse(self.store.settle(insert(record('ns0'))))
        self.assertEqual([], self.store.records())

    def test_an_insert_of_a_device_that_another_claim_has(self) -> None:
        theirs = record('ns0')
        self.store.write(insert(theirs))
        self.assertFalse(self.store.settle(insert(record('ns0'), record('ns1'))))
        self.assertEqual([theirs], self.store.records())

    def test_an_update(self) -> None:
        read = record('ns0')
        self.store.write(insert(read))
        changes = update(read)
        self.assertFalse(self.store.settle(changes))
        self.store.write(changes)
        self.assertTrue(self.store.settle(changes))
        self.assertEqual([moved_on(read)], self.store.records())

    def test_a_delete(self) -> None:
        read = record('ns0')
        self.store.write(insert(read))
        self.assertFalse(self.store.settle(delete(read)))
        self.store.write(delete(read))
        self.assertTrue(self.store.settle(delete(read)))
        self.store.write(insert(record('ns0')))
        self.assertTrue(self.store.settle(delete(read)))

    def test_many_rows_of_each_sort(self) -> None:
        rows = [record(f'ns{number}') for number in range(1100)]
        changed = api.Changes(update=tuple(api.Update(row, moved_on(row)) for row in rows))
        gone = delete(*(after for _before, after in changed.update))
        for changes in (insert(*rows), changed, gone):
            self.assertFalse(self.store.settle(changes))
            self.store.write(changes)
            self.assertTrue(self.store.settle(changes))

    def test_it_waits_for_a_transaction_that_is_still_open(self) -> None:
        self.store = self.useFixture(self.database(busy_timeout_s=1)).store
        self.store.add_host(api.Host(records.HOST_UUID, 'compute-1', 'digest'))
        row = record('ns0')
        with self.store.engine.connect().execution_options(devicetrack_writes=True) as lost:
            changing.carry_out(lost, [(insert(row), None)])
            error = self.assertRaises(exception.StoreUnavailable, self.store.settle, insert(row))
            lost.commit()
        self.assertIn('lock', error.reason)
        self.assertTrue(self.store.settle(insert(row)))


class TestColumns(base.TestCase):
    def test_what_can_be_recovered_fits_into_them(self) -> None:
        columns = models.assignments.c
        self.assertEqual({'kind', 'identifier', 'resource_class', 'parent', 'claim_id', 'details'}, set(LONGEST))
        for name, most in LONGEST.items():
            self.assertEqual(most, vars(columns[name].type)['length'] or 65535 // 4, name)
