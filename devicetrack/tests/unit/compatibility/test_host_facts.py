"""What hosts have declared: out of a store, into a file and back, and files that are something else."""

from __future__ import annotations

import json
import os
from typing import Any

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import report
from devicetrack.compatibility import host_facts
from devicetrack.compatibility.facts import Declaration
from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.facts import Opaque
from devicetrack.compatibility.facts import Sort
from devicetrack.compatibility.facts import STATELESS
from devicetrack.compatibility.facts import UnknownVersion
from devicetrack.compatibility.facts import Version
from devicetrack.compatibility.host_facts import Guest
from devicetrack.compatibility.host_facts import HostFacts
from devicetrack.compatibility.host_facts import UnreadDeclaration
from devicetrack.objects.values import Attribute
from devicetrack.objects.values import MigrationType
from devicetrack.store import api as store_api
from devicetrack.testing import fake
from devicetrack.testing import fixtures
from devicetrack.testing import region as regions
from devicetrack.tests import base

VGPU = Facts(Sort('mdev', 'nvidia-35'), 'vfio-pci', Version(2, 1, 0), frozenset('A'), frozenset('AB'), 2, 'too old')
EVERYTHING = HostFacts('compute-7', (
    Declaration('gpu', VGPU, (('required', 'table'), ('version', 'sysfs')), '550.54.10'),
    Declaration('gpu2', VGPU._replace(version=Opaque('535.104'), obstacle=None)),
    Declaration('gpu3', VGPU._replace(version=UnknownVersion('no source knows it'), aggregation=None)),
    Declaration(None, Facts(Sort('vpmem', '4GB'), '', STATELESS)),
), (UnreadDeclaration(Sort('vf', '558'), '0000:84:00.0', 'cannot be read: it is new'),
    UnreadDeclaration(Sort('vf', '560'), None, 'torn')))
SILENT = HostFacts('compute-8')

ROW: dict[str, Any] = next(host_facts.rows(EVERYTHING))
PROBLEM: dict[str, Any] = {**dict.fromkeys(host_facts.COLUMNS), 'host': 'compute-7', 'kind': 'vf', 'type': '558',
                           'problem': 'torn'}


class FileTestCase(base.TestCase):

    def file(self, content: Any, name: str = 'facts.json') -> str:
        path = os.path.join(self.state_path, name)
        with open(path, 'w', encoding='utf-8') as file:
            file.write(content if isinstance(content, str) else json.dumps(content))
        return path


class ReadTestCase(FileTestCase):

    def test_what_was_written_is_read(self) -> None:
        rows = [row for host in (EVERYTHING, SILENT) for row in host_facts.rows(host)]
        self.assertEqual([EVERYTHING, SILENT], host_facts.read(self.file(rows)))

    def test_what_an_older_release_printed(self) -> None:
        [host] = host_facts.read(self.file([{key: ROW[key] for key in ROW if key != 'driver'}]))
        self.assertEqual((EVERYTHING.declarations[0]._replace(driver=None),), host.declarations)

    def test_every_row_has_every_column(self) -> None:
        for host in (EVERYTHING, SILENT):
            for row in host_facts.rows(host):
                self.assertEqual(host_facts.COLUMNS, tuple(row))

    def test_a_file_that_is_not_there(self) -> None:
        error = self.assertRaises(exception.BadRequest, host_facts.read, '/nowhere/facts.json')
        self.assertEqual("file of facts: '/nowhere/facts.json': cannot be read: No such file or directory", str(error))


class BrokenFileTestCase(FileTestCase):

    scenarios = base.table(
        ('no JSON', 'letter', "file of facts: '{}': is no JSON: Expecting value"),
        ('half a JSON', '[{', "file of facts: '{}': is no JSON: "),
        ('nothing', '', "file of facts: '{}': is no JSON: "),
        ('one too deep', '[' * 100_000, "file of facts: '{}': is no JSON: "),
        ('no list', {}, "file of facts: '{}': has an object, and a list of rows is wanted, as \"migration facts -f "),
        ('a text', '"x"', "file of facts: '{}': has a text, and a list of rows is wanted"),
        ('no row', [ROW, 1], "{}, row 2: 'a number': must be an object"),
        ('no host', [{**ROW, 'host': None}], '{}, row 1.host: None: must be the name of a host'),
        ('an empty host', [{**ROW, 'host': ''}], "{}, row 1.host: '': must be"),
        ('no kind', [{**ROW, 'kind': None}], '{}, row 1.kind: None: must be a text'),
        ('a column that is missing', [{key: ROW[key] for key in ROW if key != 'obstacle'}],
         "{}, row 1: 'obstacle': is missing; print all columns, without -c"),
        ('all columns but one', [{'host': 'compute-7'}], "{}, row 1: 'kind': is missing; print all columns"),
        ('a parent', [{**ROW, 'parent': 1}], '{}, row 1.parent: 1: must be a text, or null'),
        ('a version', [{**ROW, 'version': '2.1'}], "{}, row 1.version: '2.1': must be major.minor.patch"),
        ('a form', [{**ROW, 'version_form': 'new'}], "{}, row 1.version_form: 'new': must be one of"),
        ('units', [{**ROW, 'aggregation': 'two'}], "{}, row 1.aggregation: 'two': must be a number of units"),
        ('features', [{**ROW, 'offered': 'A'}], "{}, row 1.offered: 'A': must be a list of names"),
        ('sources', [{**ROW, 'sources': {'colour': 'x'}}], "{}, row 1.sources.colour: 'x': must name the source"),
        ('the name of a host', [{**ROW, 'host': '\ud800'}], r"{}, row 1.host: '\ud800': must be the name"),
        ('a row twice', [ROW, PROBLEM, ROW], "{}, row 3: 'compute-7, mdev, gpu, nvidia-35': has a row already"),
        ('a problem twice', [PROBLEM, PROBLEM], "{}, row 2: 'compute-7, vf, 558': has a row already"),
        ('a problem', [{**PROBLEM, 'problem': 1}], '{}, row 1.problem: 1: must be a text'),
        ('the type of a problem', [{**PROBLEM, 'type': None}], '{}, row 1.type: None: must be a text'),
        ('the kind of a problem', [{**PROBLEM, 'kind': 1}], '{}, row 1.kind: 1: must be a text'),
        ('the parent of a problem', [{**PROBLEM, 'parent': 1}], '{}, row 1.parent: 1: must be a text'),
        names=('content', 'says'))

    def test_the_error_names_file_row_and_field(self) -> None:
        path = self.file(self.content)
        error = self.assertRaises(exception.BadRequest, host_facts.read, path)
        self.assertIn(self.says.format(path), str(error))


class MergeTestCase(base.TestCase):

    def test_what_the_store_has_counts(self) -> None:
        older = EVERYTHING._replace(unread=())
        self.assertEqual({'compute-7': EVERYTHING, 'compute-8': SILENT},
                         host_facts.merge([EVERYTHING], {'a.json': [older], 'b.json': [SILENT]}))

    def test_a_host_that_is_silent_in_the_store_may_speak_in_a_file(self) -> None:
        self.assertEqual({'compute-7': EVERYTHING},
                         host_facts.merge([HostFacts('compute-7')], {'a.json': [EVERYTHING]}))

    def test_a_host_in_two_files(self) -> None:
        error = self.assertRaises(exception.BadRequest, host_facts.merge, [],
                                  {'a.json': [EVERYTHING], 'b.json': [EVERYTHING]})
        self.assertEqual("b.json: 'compute-7': this host is in a.json too; leave out the older file", str(error))


class StoreTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=1, parents={'gpu': 4}, name='compute-7'))
        self.store = self.host.store.store
        self.store.add_host(store_api.Host('7c9e6f2e-3a58-4a0e-8a53-0b8a3f8f0001', 'compute-8', 'another machine'))
        self.host.machine.declare(MigrationType(fake.MDEV, 'gpu', 'nvidia-35', Attribute('2.1.0')))
        self.host.audit()

    def damage(self, kind: str) -> None:
        """Let a newer release have written what the host declares of a kind."""
        rows = self.store.declarations_of_host(self.host.manager.state().host_uuid)
        self.store.set_declarations(self.host.manager.state().host_uuid, [
            row._replace(document=row.document.replace('"numbered"', '"dated"').replace('"none needed"', '"dated"'))
            if row.kind == kind else row for row in rows])

    def guest(self, instance: fixtures.Instance) -> Guest:
        hosts = {host.host: host for host in report.declared(self.store)}
        return report.guest(self.store, hosts, instance.uuid)

    def test_hosts_by_name(self) -> None:
        first, second = report.declared(self.store)
        self.assertEqual(('compute-7', ['mdev', 'vpmem'], HostFacts('compute-8')),
                         (first.host, [one.facts.sort.kind for one in first.declarations], second))
        self.assertEqual([second], report.declared(self.store, ['compute-8']))

    def test_a_host_that_the_store_does_not_know(self) -> None:
        error = self.assertRaises(exception.UnknownHost, report.declared, self.store, ['compute-9'])
        self.assertEqual(('compute-7', 'compute-8'), error.known)

    def test_what_cannot_be_read_hides_nothing_else(self) -> None:
        self.damage('mdev')
        host = report.declared(self.store)[0]
        [unread] = host.unread
        self.assertEqual((('mdev', 'gpu', 'nvidia-35'), ['vpmem']),
                         (unread.about, [one.facts.sort.kind for one in host.declarations]))
        self.assertIn("version_form: 'dated'", unread.problem)
        self.assertIn('if the host runs a newer release, use its own commands or upgrade here', unread.problem)

    def test_a_guest_with_what_its_host_declares(self) -> None:
        instance = self.host.spawn(pmem=1, vgpu=1)
        guest = self.guest(instance)
        self.assertEqual('compute-7', guest.source.host)
        self.assertEqual({'vpmem': STATELESS, 'mdev': Version(2, 1, 0)},
                         {one.sort.kind: one.facts and one.facts.version for one in guest.devices})

    def test_a_device_of_which_nothing_can_be_read(self) -> None:
        instance = self.host.spawn(pmem=1, vgpu=1)
        self.damage('mdev')
        pmem, vgpu = sorted(self.guest(instance).devices, key=lambda one: one.sort, reverse=True)
        self.assertEqual((True, None), (pmem.facts is not None, vgpu.facts))
        self.assertIn('at the source, cannot be read: ', vgpu.unknown)

    def test_a_device_of_which_nothing_is_declared(self) -> None:
        instance = self.host.spawn(vgpu=1)
        self.store.set_declarations(self.host.manager.state().host_uuid, [])
        self.assertEqual(['at the source, host compute-7 declares nothing of it'],
                         [one.unknown for one in self.guest(instance).devices])

    def test_a_row_that_a_newer_release_wrote(self) -> None:
        instance = self.host.spawn(vgpu=1)
        [row] = self.host.records()
        after = row._replace(details=row.details.replace('"1.1"', '"9.0"'), generation=row.generation + 1)
        self.store.write(store_api.Changes(update=(store_api.Update(row, after),)))
        [device] = self.guest(instance).devices
        self.assertEqual((None, ''), (device.facts, device.sort.type))
        self.assertIn('at the source, its row cannot be read', device.unknown)

    def test_an_instance_that_the_store_does_not_know(self) -> None:
        error = self.assertRaises(exception.CompatibilityUnknown, self.guest, fixtures.Instance(uuid='nobody'))
        self.assertEqual('it is unknown whether instance nobody could move: the store has no device that it has now',
                         str(error))

    def test_an_instance_that_moves(self) -> None:
        region = self.useFixture(regions.Region(parents={'gpu': 4}, shared_store=True))
        self.store = region.one.store.store
        instance = region.spawn('one', vgpu=1)
        migration = region.live_migration(instance, 'two', vgpu=1)
        self.assertEqual(({'old'}, 'one'), ({role for _, role, _ in region.rows(instance)['one']},
                                            self.guest(instance).source.host))
        region.arrive(instance, migration)
        self.assertEqual('two', self.guest(instance).source.host)

    def test_an_instance_that_moves_to_a_host_with_another_store(self) -> None:
        region = self.useFixture(regions.Region(parents={'gpu': 4}))
        self.store = region.one.store.store
        instance = region.spawn('one', vgpu=1)
        migration = region.live_migration(instance, 'two', vgpu=1)
        error = self.assertRaises(exception.CompatibilityUnknown, self.guest, instance)
        self.assertEqual(f'migration {migration.uuid} takes it away from host one, and the store has none of its '
                         'devices elsewhere', error.reason)

    def test_an_instance_at_two_hosts(self) -> None:
        instance = self.host.spawn(vgpu=1)
        [row] = self.host.records()
        there = row._replace(host_uuid='7c9e6f2e-3a58-4a0e-8a53-0b8a3f8f0001')
        self.store.write(store_api.Changes(insert=(there,)))
        error = self.assertRaises(exception.CompatibilityUnknown, self.guest, instance)
        self.assertEqual('the store has it at compute-7 and at compute-8', error.reason)
        self.store.write(store_api.Changes(delete=(there,), insert=(there._replace(role=vocabulary.INCOMING),)))
        self.assertEqual('compute-7', self.guest(instance).source.host)
