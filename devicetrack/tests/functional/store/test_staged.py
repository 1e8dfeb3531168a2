"""The store that fails as it is told: every call reaches the real one, and every one can be made to fail."""

from __future__ import annotations

from typing import Any

from devicetrack import exception
from devicetrack.objects.values import Leftover
from devicetrack.store import api
from devicetrack.store.sql import store as sql_store
from devicetrack.testing import databases
from devicetrack.testing import staged_store
from devicetrack.tests import base
from devicetrack.tests.functional.store import records
from devicetrack.tests.functional.store.records import context
from devicetrack.tests.functional.store.records import insert
from devicetrack.tests.functional.store.records import record

_HOST = api.Host(records.HOST_UUID, 'compute-1', 'digest', 'boot-1')
_OTHER = api.Host('0' * 36, 'compute-2', 'digest')
_EPOCH = 5
_ROW = record('ns0')
_REQUEST = api.OperatorRequest('0' * 36, _HOST.uuid, 'cordon', '{}', 1)
_LEFTOVER = Leftover('1' * 36, records.MIGRATION_UUID)
_DECLARED = api.StoredDeclaration(_HOST.uuid, 'mdev', 'p', 'nvidia-35', '{}')
_WITHHELD = api.WithheldRow(_HOST.uuid, 'vpmem', 'device', 'ns0', '{}', 1, 1)

_CALLS: list[tuple[str, tuple[Any, ...], Any]] = [
    ('check', (), None),
    ('add_host', (_HOST,), None),
    ('host', ('compute-2',), None),
    ('set_boot_id', (_HOST.uuid, 'boot-2'), None),
    ('set_nested', (_HOST.uuid, 1, 5), None),
    ('take_epoch', (_HOST.uuid,), _EPOCH),
    ('check_epoch', (), None),
    ('hosts', (), [_HOST._replace(boot_id='boot-2', nested_version=1, nested_at=5, epoch=_EPOCH)]),
    ('tallies', ([_OTHER.uuid],), {_OTHER.uuid: api.Tally()}),
    ('write', (insert(_ROW)._replace(contexts=(context(_ROW),)),), None),
    ('settle', (insert(_ROW),), True),
    ('records', (), [_ROW]),
    ('records_of_host', (_HOST.uuid,), [_ROW]),
    ('records_of_hosts', ([_HOST.uuid, _OTHER.uuid],), [_ROW]),
    ('records_of_instance', (_HOST.uuid, _ROW.instance_uuid), [_ROW]),
    ('records_everywhere', (_ROW.instance_uuid,), [_ROW]),
    ('records_named', ('ns0', _HOST.uuid), [_ROW]),
    ('is_named', ('ns0', 'vpmem', _HOST.uuid), True),
    ('damaged', (_HOST.uuid,), []),
    ('records_of_devices', (_HOST.uuid, [_ROW.key]), [_ROW]),
    ('contexts', (_HOST.uuid,), [context(_ROW)]),
    ('context', (_HOST.uuid, _ROW.instance_uuid), context(_ROW)),
    ('add_operator_request', (_REQUEST,), None),
    ('operator_request', (_REQUEST.uuid,), _REQUEST),
    ('operator_requests', (True,), [_REQUEST]),
    ('operator_requests_of_host', (_HOST.uuid, True), [_REQUEST]),
    ('answer_operator_request', (_REQUEST.uuid, 2, '{}'), True),
    ('set_withheld', ([_WITHHELD], []), None),
    ('withheld', (_HOST.uuid,), [_WITHHELD]),
    ('withheld_of_hosts', ([_HOST.uuid, _OTHER.uuid], ['device']), [_WITHHELD]),
    ('set_declarations', (_HOST.uuid, [_DECLARED]), None),
    ('declarations', (), [_DECLARED]),
    ('declarations_of_host', (_HOST.uuid,), [_DECLARED]),
    ('add_leftover', (_HOST.uuid, _LEFTOVER), None),
    ('leftovers', (_HOST.uuid,), [_LEFTOVER]),
    ('remove_leftover', (_HOST.uuid, _LEFTOVER), None),
    ('events_of_device', ('ns1', None, None, _HOST.uuid), []),
    ('events_of_serial', ('S1', None, None, _HOST.uuid), []),
    ('events_of_instance', ('0' * 36, None, None), []),
    ('count_events', (_HOST.uuid, 1, 10), (0, 1)),
    ('trim_events', (_HOST.uuid, 1 << 60, 0, 10), 1),
    ('events_after', (_HOST.uuid, 0, 5), []),
    ('latest_events', (_HOST.uuid, 5), []),
]


class TestStagedStore(base.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.store = staged_store.StagedStore(self.useFixture(databases.SQLiteStore()).store)
        self.patch(sql_store, 'next_step', lambda: _EPOCH)

    def test_every_call_reaches_the_store_and_can_be_made_to_fail(self) -> None:
        for name, args, answer in _CALLS:
            call = getattr(self.store, name)
            self.store.before(name, exception.StoreUnavailable('store', name))
            self.assertEqual(name, self.assertRaises(exception.StoreUnavailable, call, *args).reason)
            self.assertEqual(answer, call(*args), name)
        self.store.add_host(_OTHER)
        self.store.before('replace_host', exception.StoreUnavailable('store', 'gone'))
        after = _OTHER._replace(machine_id='another digest')
        self.assertRaises(exception.StoreUnavailable, self.store.replace_host, _OTHER, after)
        self.assertEqual(_OTHER, self.store.host('compute-2'))
        self.store.replace_host(_OTHER, after)
        self.assertEqual(after._replace(epoch=_EPOCH), self.store.host('compute-2'))

    def test_no_call_is_left_out(self) -> None:
        self.assertEqual(api.Store.__abstractmethods__ - {'name', 'close', 'at_epoch', 'is_taken_over'},
                         {name for name, _args, _answer in _CALLS} | {'replace_host'})

    def test_what_is_staged_is_staged_for_every_epoch(self) -> None:
        self.store.add_host(_HOST)
        older = self.store.at_epoch(_HOST._replace(epoch=self.store.take_epoch(_HOST.uuid)))
        self.store.lose_commit()
        self.assertRaises(exception.OutcomeUnknown, older.write, insert(_ROW))
        self.assertEqual(([insert(_ROW)], 1), (self.store.written, self.store.calls['write']))
        self.store.take_epoch(_HOST.uuid)
        self.assertRaises(exception.HostTakenOver, older.write, insert(_ROW))
        self.assertEqual((True, False), (older.is_taken_over, self.store.is_taken_over))
