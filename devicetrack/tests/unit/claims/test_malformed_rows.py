"""A row whose details cannot be read: it is its own problem, and no other instance's."""

import contextlib
import json
import sqlite3
from typing import Any

import sqlalchemy as sa

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import operator_requests
from devicetrack.engine import findings
from devicetrack.engine import withholding
from devicetrack.objects import details
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Leftover
from devicetrack.store.api import Changes
from devicetrack.store.api import Update
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base

GONE = object()


def change(host: Any, statement: str) -> None:
    """Change the file of the store, as somebody does beside the library."""
    with contextlib.closing(sqlite3.connect(host.store.store.path)) as connection, connection:
        connection.execute(statement)


def damaged(text, **fields):
    """Stored details with other values, or (GONE) without some."""
    primitive = json.loads(text)
    primitive['versioned_object.data'].update(fields)
    primitive['versioned_object.data'] = {
        name: value for name, value in primitive['versioned_object.data'].items() if value is not GONE}
    return json.dumps(primitive)


class DamagedRowTestCase(base.TestCase):

    scenarios = base.table(
        ('a missing text', 0, {'namespace_uuid': GONE}),
        ('a missing number', 0, {'size_bytes': GONE}),
        ('nothing at all', 0, dict.fromkeys(('namespace_uuid', 'label', 'devpath', 'size_bytes', 'align_bytes'), GONE)),
        ('a number as text', 0, {'namespace_uuid': 7}),
        ('no uuid', 0, {'namespace_uuid': 'ns'}),
        ('a text that no file can have', 0, {'devpath': 'a\0b'}),
        ('an infinite number', 0, {'size_bytes': float('inf')}),
        ('a broken number', 0, {'size_bytes': 1.5}),
        ('a missing origin', 1, {'origin': GONE}),
        ('a missing type', 1, {'type': GONE, 'parent': GONE}),
        ('a list', 1, {'type': []}),
        ('yes', 1, {'iommu_group': True}),
        names=('index', 'fields'))

    def setUp(self):
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=3, parents={'p0': 2}))
        self.instance = self.host.spawn(pmem=1, vgpu=1)
        self.other = self.host.spawn(pmem=1)
        before = self.host.records(self.instance)[self.index]
        self.after = before._replace(details=damaged(before.details, **self.fields), generation=before.generation + 1)
        self.host.store.store.write(Changes(update=(Update(before, self.after),)))

    def test_it_is_not_read(self):
        self.assertRaises(exception.MalformedObject, details.from_text, self.after.details)
        self.assertRaises(exception.MalformedObject, details.peek, self.after.details)

    def test_audits_and_starts_go_on(self):
        self.host.audit()
        self.host.restart()
        self.host.manager.operator.withheld()
        self.host.manager.providers()
        self.assertIn(self.after, self.host.records())

    def test_it_keeps_its_device_and_others_are_served(self):
        self.host.delete(self.other)
        self.host.delete_guest(self.instance.uuid)
        self.assertRaises(exception.DeviceTrackError, self.host.manager.release, None, self.instance)
        self.host.service.known = {self.instance.uuid: 'deleted'}
        for _ in range(2):
            self.host.audit()
            self.host.restart()
            self.assertEqual({self.after.identifier: 'releasing'}, {
                name: state for name, state in self.host.states().items() if state != FREE})


class UnreadNameTestCase(base.TestCase):
    """A row whose identifier is no text may be of any device of its kind."""

    scenarios = base.table(
        ('bytes', "identifier = x'64ff'"),
        ('text that is none', "identifier = CAST(x'64ff' AS TEXT)"),
        names=('change',))
    change: str

    def test_no_other_instance_gets_its_device(self) -> None:
        host = self.useFixture(fixtures.Host(devices=2, parents={'p0': 2}))
        instance = Instance()
        host.claim(instance, pmem=1)
        change(host, f'UPDATE assignments SET {self.change}')
        for happens in (host.restart, host.audit):
            happens()
            self.assertRaises(exception.NoFit, host.claim, Instance(), pmem=1)
        self.assertEqual([('d0', withholding.UNNAMED), ('d1', withholding.UNNAMED)], [
            (one.target.name, one.causes[vocabulary.IN_DOUBT].detail) for one in host.manager.operator.withheld()
            if vocabulary.IN_DOUBT in one.causes])
        host.claim(Instance(), vgpu=1)
        change(host, "UPDATE assignments SET identifier = 'd0' WHERE kind = 'vpmem'")
        host.restart()
        host.claim(Instance(), pmem=1)
        self.assertRaises(exception.NoFit, host.claim, Instance(), pmem=1)


class UnreadKindTestCase(base.TestCase):
    """A row whose kind is no text may be of any device."""

    scenarios = base.table(
        ('bytes', "kind = x'ff'"),
        ('text that is none', "kind = CAST(x'76ff' AS TEXT)"),
        names=('change',))
    change: str

    def test_no_other_instance_gets_its_device(self) -> None:
        host = self.useFixture(fixtures.Host(devices=2))
        host.claim(Instance(), pmem=1)
        change(host, f'UPDATE assignments SET {self.change}')
        for happens in (host.restart, host.audit):
            happens()
            self.assertRaises(exception.NoFit, host.claim, Instance(), pmem=1)
        self.assertEqual([('d0', withholding.UNNAMED), ('d1', withholding.UNNAMED)], [
            (one.target.name, one.causes[vocabulary.IN_DOUBT].detail) for one in host.manager.operator.withheld()
            if vocabulary.IN_DOUBT in one.causes])
        change(host, "UPDATE assignments SET kind = 'vpmem'")
        host.restart()
        host.claim(Instance(), pmem=1)
        self.assertRaises(exception.NoFit, host.claim, Instance(), pmem=1)


class WrongTypeTestCase(base.TestCase):
    """SQLite keeps a value of any type in any column: whoever changed the file, one row is lost and not the host."""

    scenarios = base.table(
        ('position', 'assignments', "position = 'first'"),
        ('generation', 'assignments', "generation = x'01'"),
        ('time', 'assignments', "created_at = 'today'"),
        ('NUMA node', 'assignments', "numa_node = x'00'"),
        ('details', 'assignments', 'details = CAST(details AS BLOB)'),
        ('owner', 'assignments', 'instance_uuid = CAST(instance_uuid AS BLOB)'),
        ('identifier', 'assignments', 'identifier = CAST(identifier AS BLOB)'),
        ('kind', 'assignments', 'kind = CAST(kind AS BLOB)'),
        ('host', 'assignments', 'host_uuid = CAST(host_uuid AS BLOB)'),
        ('host that is no text', 'assignments', "host_uuid = x'ff'"),
        ('host that is none', 'assignments', 'host_uuid = substr(host_uuid, 2)'),
        ('role', 'assignments', "role = x'ff'"),
        ('state', 'assignments', "state = x'00'"),
        ('claim', 'assignments', "claim_id = x'ff'"),
        ('a role that is no text', 'assignments', "role = CAST(x'ff' AS TEXT)"),
        ('details that are no text', 'assignments', "details = CAST(x'7bff' AS TEXT)"),
        ('a boot that is no text', 'hosts', "boot_id = CAST(x'ff' AS TEXT)"),
        ('an event that is no text', 'events', "details = CAST(x'ff' AS TEXT)"),
        ('reasons that are no text', 'withheld', "reasons = CAST(x'ff' AS TEXT)"),
        ('a document that is no text', 'declarations', "document = CAST(x'ff' AS TEXT)"),
        ('a question that is no text', 'operator_requests', "arguments = CAST(x'ff' AS TEXT)"),
        ('a context that is no text', 'migration_contexts', "context = CAST(x'ff' AS TEXT)"),
        ('an allocation that is no text', 'leftovers', "own = CAST(x'ff' AS TEXT)"),
        ('time of an event', 'events', "at_ms = 'today'"),
        ('details of an event', 'events', "details = x'ff'"),
        ('name of an event', 'events', "event = x'ff'"),
        ('why', 'withheld', "reasons = x'ff'"),
        ('generation of a mark', 'withheld', "generation = 'x'"),
        ('document', 'declarations', "document = x'ff'"),
        ('boot', 'hosts', "boot_id = x'ff'"),
        ('providers', 'hosts', "nested_version = 'x'"),
        ('question', 'operator_requests', "arguments = x'ff'"),
        ('time of a request', 'operator_requests', "created_at = 'x'"),
        names=('table', 'change'))
    table: str
    change: str

    def test_audits_and_starts_go_on_and_the_device_stays_with_its_owner(self):
        host = self.useFixture(fixtures.Host(devices=4, parents={'p0': 2}))
        instance = host.spawn(pmem=1)
        host.manager.operator.cordon('vpmem', 'd3')
        request = operator_requests.make(host.manager.state().host_uuid, operator_requests.REPAIR, accept=False)
        host.store.store.add_operator_request(request)
        uuid = host.manager.state().host_uuid
        host.store.store.add_leftover(uuid, Leftover(Instance().uuid, 'move', 'confirm', '{}'))
        store: Any = host.store.store
        with sqlite3.connect(store.path) as connection:
            connection.execute('INSERT INTO migration_contexts VALUES (?, ?, ?, ?)',
                               (uuid, instance.uuid, 'move', '{}'))
            connection.execute(f'UPDATE {self.table} SET {self.change}')
        connection.close()
        found = host.audit()
        if self.table != 'events':
            named, *others = [one for one in found if one.kind == findings.ROW_DAMAGED]
            self.assertIn(self.change.split(' =')[0], named.detail)
            self.assertEqual(self.table == 'declarations', bool(others))        # a host has several
        if self.table == 'assignments':
            self.assertEqual((DeviceKey('vpmem', 'd0'), instance.uuid, vocabulary.CRITICAL),
                             (named.device, named.recorded_owner, named.severity))
        for _ in range(2):
            host.audit()
            host.restart()
        host.manager.operator.withheld()
        host.manager.providers()
        host.store.store.events_of_device('d0')
        for _ in range(2):
            host.claim(Instance(), pmem=1)
        self.assertRaises(exception.NoFit, host.claim, Instance(), pmem=1)
        store.transact(lambda connection: connection.execute(sa.text('DELETE FROM migration_contexts')))
        self.assertEqual({'d1', 'd2'}, {name for name, owner in host.held().items() if owner != instance.uuid})
        self.assertEqual(instance.uuid, host.held()['d0'])
