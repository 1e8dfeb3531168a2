"""``devicetrack-manage device history`` and ``instance history``."""

from __future__ import annotations

import datetime
import json
import time
from typing import Any

import fixtures as base_fixtures

from devicetrack.cmd import base as cmd_base
from devicetrack.cmd import history
from devicetrack.objects.event import Event
from devicetrack.store.api import WithheldRow
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base
from devicetrack.tests.unit.cmd import program

REQUEST = 'req-7b0c5a3e-91d1-4a0e-9c55-2f1f4f6c7d80'
# Some days apart; the first is 2026-11-17T21:00:00.250Z, a Tuesday.
AT_MS = 1_794_949_200_250
MDEV = '9c6a1f0e-3f63-4b5b-9d0e-5b3c2a1f7d44'


class Context:
    request_id = REQUEST


class HistoryCommandTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=2, name='compute-7'))
        self.host.context = Context()
        self.program = self.useFixture(program.Program(self.host.configuration, self.host.machine))
        self.useFixture(base_fixtures.EnvironmentVariable('TZ', 'Europe/Berlin'))
        time.tzset()
        self.addCleanup(time.tzset)

    def add(self, *events: Event) -> None:
        self.host.store.set_withheld([], events=events)

    def event(self, event: str, days: float = 0, **facts: Any) -> Event:
        made = Event(self.host.manager.state().host_uuid, 'mdev', MDEV, event, AT_MS + int(days * 86_400_000), 'a' * 8 +
                     '-0000-4000-8000-000000000001', claim_id='claim-1', request_id=REQUEST)
        return made._replace(**facts)

    def lines(self, *arguments: str) -> list[str]:
        answer = self.program.run(*arguments)
        self.assertEqual((cmd_base.OK, ''), (answer.code, answer.err))
        return answer.out.splitlines()


class DamagedEventTestCase(HistoryCommandTestCase):

    def test_the_others_are_shown(self) -> None:
        self.add(self.event('claimed'), self.event('wiped', 1, details='{"bytes":"many","seconds":"x"}'))
        self.assertIn('claimed', '\n'.join(self.lines('device', 'history', f'mdev/{MDEV}')))


class LifeTestCase(HistoryCommandTestCase):

    def test_it_survives_the_release_of_the_device(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.host.delete(instance)
        found = self.program.ask('instance', 'history', instance.uuid)
        self.assertEqual(['claimed', 'realized', 'started', 'released', 'wiped'], [row['event'] for row in found])
        self.assertEqual(found, self.program.ask('device', 'history', 'vpmem/d0'))
        self.assertEqual(found, self.program.ask('device', 'history', 'd0', '--host', 'compute-7'))
        self.assertEqual([], self.program.ask('instance', 'list'))

    def test_each_field_has_its_type(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.host.delete(instance)
        wiped = self.program.ask('instance', 'history', instance.uuid)[-1]
        self.assertEqual(list(history.DeviceHistory.columns), list(wiped))
        self.assertEqual(
            ('compute-7', 'vpmem/d0', 'vpmem', 'd0', 'device', instance.uuid, REQUEST, 4 << 30, 'wiped', None, None,
             None),
            tuple(wiped[name] for name in ('host', 'device', 'kind', 'identifier', 'scope', 'instance_uuid',
                                           'request_id', 'bytes', 'proof', 'reason', 'migration_uuid', 'from_host')))
        self.assertIsInstance(wiped['seconds'], float)
        self.assertIsInstance(wiped['number'], int)
        at = datetime.datetime.fromisoformat(wiped['at'])
        self.assertEqual((datetime.timedelta(0), 'Z'), (at.utcoffset(), wiped['at'][-1]))
        self.assertEqual(int(at.timestamp()), wiped['at_ms'] // 1000)


class CardTestCase(HistoryCommandTestCase):

    def test_it_follows_the_card_to_another_address(self) -> None:
        self.host.machine.add_parent('0000:84:00.0', serial='S1')
        self.host.audit()
        first = self.host.spawn(vgpu=1)
        self.host.delete(first)
        del self.host.machine.parents['0000:84:00.0']
        self.host.machine.add_parent('0000:3b:00.0', serial='S1')
        self.host.audit()
        second = self.host.spawn(vgpu=1)
        found = self.program.ask('device', 'history', '--serial', 'S1')
        self.assertEqual([first.uuid, second.uuid], list(dict.fromkeys(row['instance_uuid'] for row in found)))
        self.assertEqual({'S1'}, {row['serial'] for row in found})
        self.assertEqual(['0000:84:00.0', '0000:3b:00.0'], list(dict.fromkeys(row['parent'] for row in found)))
        [held] = self.program.ask('device', 'list', '--status', 'held')
        self.assertEqual('S1', held['serial'])
        self.assertEqual('S1', self.program.ask('device', 'show', held['device'])['serial'])
        self.assertEqual({'S1'}, {row['serial'] for row in self.program.ask('device', 'list', '--status', 'creatable')})

    def test_a_namespace_has_its_uuid(self) -> None:
        instance = self.host.spawn(pmem=1)
        [device] = self.program.ask('device', 'list', '--status', 'held')
        self.assertEqual(device['details']['namespace_uuid'], device['serial'])
        self.host.delete(instance)
        found = self.program.ask('device', 'history', '--serial', device['serial'])
        self.assertEqual(self.program.ask('device', 'history', device['device']), found)

    def test_what_withholds_it_is_of_the_card(self) -> None:
        self.host.machine.add_parent('0000:84:00.0', serial='S1')
        made = self.host.machine.add_mdev('0000:84:00.0')
        self.host.audit()
        self.host.manager.operator.cordon('mdev', made.identifier, reason='hot')
        self.host.manager.operator.cordon('mdev', '0000:84:00.0', parent=True, reason='hot')
        self.assertEqual([('withheld', 'device'), ('withheld', 'parent')], [
            (row['event'], row['scope']) for row in self.program.ask('device', 'history', '--serial', 'S1')])

    def test_one_that_nobody_knows_is_refused(self) -> None:
        answer = self.program.run('device', 'history', '--serial', 'S9')
        self.assertIn('no card S9', answer.err)

    def test_it_takes_a_device_or_a_card(self) -> None:
        for arguments in ((), ('d0', '--serial', 'S1')):
            self.assertEqual(cmd_base.USAGE, self.program.run('device', 'history', *arguments).code)


class TextTestCase(HistoryCommandTestCase):

    def test_a_line_for_each_event_and_what_it_says_below(self) -> None:
        self.add(self.event('claimed'), self.event('wiped', 6, request_id=None, details=json.dumps(
            {'bytes': 4 << 30, 'seconds': 2.25, 'proof': 'wiped'})))
        self.assertEqual([
            '2026-11-17T22:00:00+01:00 claimed   aaaaaaaa-0000-4000-8000-000000000001',
            '    on compute-7; request req-7b0c5a3e-91d1-4a0e-9c55-2f1f4f6c7d80',
            '2026-11-23T22:00:00+01:00 wiped     aaaaaaaa-0000-4000-8000-000000000001',
            '    on compute-7; 4,294,967,296 bytes; in 2.2 s',
        ], self.lines('device', 'history', f'mdev/{MDEV}'))

    def test_long_shows_the_claim_and_the_number_too(self) -> None:
        self.add(self.event('claimed'))
        self.assertEqual({'claim_id: claim-1', 'number: 1'}, {line.strip() for line in self.lines(
            'device', 'history', MDEV, '--long') if not line.strip().startswith(('2026', 'on ', 'host_uuid: '))})

    def test_it_fits_into_80_columns_and_breaks_no_identifier(self) -> None:
        self.add(self.event('leaving', migration_uuid='b' * 8 + '-0000-4000-8000-000000000002', details=json.dumps(
                     {'from': 'compute-7.example.org', 'to': 'compute-10.example.org'})),
                 self.event('withheld', details=json.dumps(
                     {'reason': 'unhealthy', 'why': 'the parent reports an error of its memory ' * 4, 'by': 'host'})))
        out = self.lines('instance', 'history', 'a' * 8 + '-0000-4000-8000-000000000001')
        self.assertLessEqual(max(map(len, out)), 80)
        for whole in (f'mdev/{MDEV}', 'b' * 8 + '-0000-4000-8000-000000000002', 'compute-10.example.org', REQUEST):
            self.assertTrue(any(whole in line for line in out), whole)

    def test_words_of_others_cannot_draw_on_the_terminal(self) -> None:
        self.add(self.event('withheld', details=json.dumps({'reason': 'cordoned', 'why': '\x1b[2J', 'by': 'operator'})))
        self.assertNotIn('\x1b', '\n'.join(self.lines('device', 'history', MDEV)))

    def test_a_table_of_chosen_columns(self) -> None:
        self.add(self.event('claimed'))
        out = self.lines('device', 'history', MDEV, '-c', 'at', '-c', 'event')
        self.assertIn('| 2026-11-17T22:00:00+01:00 | claimed |', out)

    def test_a_name_that_is_longer_than_a_line_has_one_for_itself(self) -> None:
        name = 'x' * 120
        self.add(self.event('claimed', identifier=name))
        self.assertIn(f'    mdev/{name}', self.lines('instance', 'history', 'a' * 8 + '-0000-4000-8000-000000000001'))


class ParentTestCase(HistoryCommandTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host.machine.add_parent('pci_0000_84_00_0', units=2)
        self.host.audit()
        self.instances = [self.host.spawn(vgpu=1) for _ in range(2)]
        self.host.delete(self.instances[0])

    def test_it_has_the_events_of_all_devices_that_it_ever_had(self) -> None:
        found = self.program.ask('device', 'history', 'mdev/pci_0000_84_00_0')
        self.assertEqual(
            [(instance.uuid, event) for instance, events in zip(
                [*self.instances, self.instances[0]],
                [('claimed', 'realized', 'started')] * 2 + [('released', 'freed')], strict=True) for event in events],
            [(row['instance_uuid'], row['event']) for row in found])
        self.assertEqual({'pci_0000_84_00_0'}, {row['parent'] for row in found})
        [mine] = {row['device'] for row in found if row['instance_uuid'] == self.instances[0].uuid}
        self.assertEqual([row for row in found if row['device'] == mine], self.program.ask('device', 'history', mine))

    def test_people_read_the_device_of_a_parent_and_the_parent_of_a_device(self) -> None:
        [device] = self.host.mdevs()
        for name, words in (('mdev/pci_0000_84_00_0', f'on compute-7; device mdev/{device};'),
                            (f'mdev/{device}', 'on compute-7; parent pci_0000_84_00_0;')):
            self.assertIn(words, ' '.join(map(str.strip, self.lines('device', 'history', name))))
        self.assertIn('parent pci_0000_84_00_0', ' '.join(self.lines('instance', 'history', self.instances[0].uuid)))

    def test_a_parent_whose_devices_have_no_event_in_that_time_is_known(self) -> None:
        answer = self.program.run('device', 'history', 'mdev/pci_0000_84_00_0', '--until', '2020-01-01')
        self.assertEqual((cmd_base.OK, ''), (answer.code, answer.out))

    def test_a_parent_of_a_device_that_is_held_is_known_without_an_event(self) -> None:
        self.host.store.trim_events(self.host.manager.state().host_uuid, 1 << 60, 0, 1000)
        answer = self.program.run('device', 'history', 'mdev/pci_0000_84_00_0')
        self.assertEqual((cmd_base.OK, ''), (answer.code, answer.out))
        self.assertIn('there is no event', answer.err)


class MoveTestCase(HistoryCommandTestCase):

    def test_what_one_event_knows_of_the_hosts_another_one_says(self) -> None:
        migration_uuid = 'b' * 8 + '-0000-4000-8000-000000000002'
        self.add(self.event('claimed', migration_uuid=migration_uuid,
                            details='{"from": "compute-1", "to": "compute-7"}'),
                 self.event('moved', migration_uuid=migration_uuid))
        moved = self.program.ask('device', 'history', MDEV)[-1]
        self.assertEqual(('compute-1', 'compute-7'), (moved['from_host'], moved['to_host']))

    def test_also_one_before_the_time_that_is_asked_for(self) -> None:
        migration_uuid = 'b' * 8 + '-0000-4000-8000-000000000002'
        self.add(self.event('claimed', migration_uuid=migration_uuid,
                            details='{"from": "compute-1", "to": "compute-7"}'),
                 self.event('moved', 3, migration_uuid=migration_uuid))
        claimed, moved = self.program.ask('device', 'history', MDEV, '--since', '2026-11-19')
        self.assertEqual(('claimed', True, False),
                         (claimed['event'], claimed['before_since'], moved['before_since']))
        self.assertEqual(('moved', 'compute-1', 'compute-7'), (moved['event'], moved['from_host'], moved['to_host']))


class BetweenTestCase(HistoryCommandTestCase):
    scenarios = base.table(
        ('since a day, in the local zone', ('--since', '2026-11-18'), [1, 2, 3], [0]),
        ('since a time with its zone', ('--since', '2026-11-17T21:00:00.250Z'), [0, 1, 2, 3], []),
        ('until a time', ('--until', '2026-11-17T22:00:01'), [0], []),
        ('between', ('--since', '2026-11-18T00:00+00:00', '--until', '2026-11-19T23:00'), [1, 2], [0]),
        ('in a time without events', ('--since', '2027-01-01'), [], [3]),
        names=('arguments', 'found', 'standing'))
    arguments: tuple[str, ...]
    found: list[int]
    standing: list[int]

    def test_only_those_and_the_one_that_says_who_had_the_device_then(self) -> None:
        self.add(*[self.event('claimed', days, claim_id=str(days)) for days in range(4)])
        for command in (('device', 'history', MDEV), ('instance', 'history', 'a' * 8 + '-0000-4000-8000-000000000001')):
            rows = self.program.ask(*command, *self.arguments)
            self.assertEqual(list(map(str, self.found)), [row['claim_id'] for row in rows if not row['before_since']])
            self.assertEqual(list(map(str, self.standing)), [row['claim_id'] for row in rows if row['before_since']])


class StandingOwnerTestCase(HistoryCommandTestCase):
    """Who had a device at the time of --since, whatever happened later."""

    SINCE = ('--since', '2026-11-20')

    def test_an_owner_that_holds_on_is_shown_and_marked(self) -> None:
        self.add(self.event('claimed'), self.event('started', 0.5), self.event('withheld', 1, details=json.dumps(
            {'reason': 'unhealthy', 'why': 'hot', 'by': 'host'})))
        for command in (('device', 'history', MDEV), ('instance', 'history', 'a' * 8 + '-0000-4000-8000-000000000001')):
            head, *more = self.lines(*command, *self.SINCE, '--until', '2026-11-21')
            self.assertTrue(head.startswith('2026-11-18T10:00:00+01:00 started'), head)
            self.assertIn('before that time, and still so then; on compute-7', ' '.join(more))

    def test_a_device_that_is_on_its_way_back_is_still_its_owner_s(self) -> None:
        self.add(self.event('claimed'), self.event('released', 1), self.event('wiped', 3))
        self.assertEqual([('released', True), ('wiped', False)], [
            (row['event'], row['before_since']) for row in self.program.ask('device', 'history', MDEV, *self.SINCE)])

    def test_an_owner_that_was_gone_by_then_is_not_shown(self) -> None:
        for end in ('wiped', 'freed', 'forgotten'):
            self.add(self.event('claimed', identifier=end), self.event(end, 1, identifier=end))
            self.assertEqual([], self.program.ask('device', 'history', end, *self.SINCE))

    def test_every_device_of_an_instance_counts(self) -> None:
        self.add(self.event('claimed', identifier='one'), self.event('claimed', identifier='two'),
                 self.event('freed', 1, identifier='one'), self.event('claimed', identifier='three', kind='vpmem'))
        rows = self.program.ask('instance', 'history', 'a' * 8 + '-0000-4000-8000-000000000001', *self.SINCE)
        self.assertEqual(['mdev/two', 'vpmem/three'], [row['device'] for row in rows])


class NothingTestCase(HistoryCommandTestCase):

    def test_an_unknown_device_is_an_error_that_says_what_to_do(self) -> None:
        for arguments in (('device', 'history', 'nobody'), ('device', 'history', 'nobody', '--since', '2026-01-01')):
            answer = self.program.run(*arguments)
            self.assertEqual((cmd_base.ERROR, ''), (answer.code, answer.out))
            self.assertIn('the store has no device nobody', answer.err)
            self.assertIn('device list', answer.err)

    def test_a_device_that_is_withheld_with_its_parent_is_unknown_and_the_parent_is_not(self) -> None:
        self.host.store.set_withheld([WithheldRow(
            self.host.manager.state().host_uuid, 'mdev', 'parent', 'pci_0000_84_00_0', '{}', 1, 0)])
        answer = self.program.run('device', 'history', f'mdev/{MDEV}')
        self.assertEqual((cmd_base.ERROR, ''), (answer.code, answer.out))
        self.assertIn('it was never withheld by itself', answer.err)
        self.assertIn('the history of the parent says so', answer.err)
        for name, code in (('mdev/pci_0000_84_00_0', 0), ('pci_0000_84_00_0', 0), ('vf/pci_0000_84_00_0', 1)):
            self.assertEqual(code, self.program.run('device', 'history', name).code, name)

    def test_a_device_of_another_kind_or_host_is_unknown(self) -> None:
        self.add(self.event('claimed'))
        self.assertEqual(cmd_base.ERROR, self.program.run('device', 'history', f'vpmem/{MDEV}').code)
        answer = self.program.run('device', 'history', MDEV, '--host', 'compute-8')
        self.assertEqual(cmd_base.ERROR, answer.code)
        self.assertIn('the store has no host compute-8', answer.err)

    def test_an_unknown_instance_is_an_error(self) -> None:
        answer = self.program.run('instance', 'history', Instance().uuid)
        self.assertEqual(cmd_base.ERROR, answer.code)
        self.assertIn('never had a device', answer.err)

    def test_what_is_known_and_has_no_event_says_so(self) -> None:
        instance = self.host.spawn(pmem=1)
        host_uuid = self.host.manager.state().host_uuid
        self.host.store.trim_events(host_uuid, 1 << 60, 0, 1000)
        self.assertEqual('devicetrack-manage: there is no event of device d0\n',
                         self.nothing('device', 'history', 'd0'))
        self.assertEqual(f'devicetrack-manage: there is no event of instance {instance.uuid}\n',
                         self.nothing('instance', 'history', instance.uuid))
        self.assertEqual([], self.program.ask('device', 'history', 'd0'))

    def test_no_event_in_that_time(self) -> None:
        self.add(self.event('claimed'))
        self.assertEqual(f'devicetrack-manage: there is no event of device {MDEV} in that time\n',
                         self.nothing('device', 'history', MDEV, '--until', '2026-01-01'))

    def nothing(self, *arguments: str) -> str:
        answer = self.program.run(*arguments)
        self.assertEqual((cmd_base.OK, ''), (answer.code, answer.out))
        return answer.err

    def test_times_that_are_none(self) -> None:
        for arguments in (('--since', 'tomorrow'), ('--since', '2026-13-01'), ('--until', ''),
                          ('--since', '2026-11-02', '--until', '2026-11-01')):
            answer = self.program.run('device', 'history', 'd0', *arguments)
            self.assertEqual(cmd_base.USAGE, answer.code)
            self.assertEqual('', answer.out)
