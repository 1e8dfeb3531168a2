"""Guests under QEMU that are resized on their host by a service that is killed on the way, or whose store is lost.

The bytes of a guest are written and read in the files that stand for its namespaces, and as the guest itself sees them,
by QEMU's monitor.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any

import libvirt_qemu

from devicetrack.testing import fixtures
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.tests import base
from devicetrack.tests import processes
from devicetrack.tests.functional.claims import libvirt_hosts
from devicetrack.tests.functional.claims import programs

NAMES = ('ns0', 'ns1', 'ns2', 'ns3')
NAMESPACES = {'4GB': NAMES}
LABELS = 2 << 20                                # the end of a guest's namespace, which its memory does not show

CLAIMED = 'claimed'                             # the old guest runs
BOOTED = 'booted'                               # the new guest runs, and nobody was told


class QEMUTestCase(base.TestCase):
    """A host on a libvirtd of the test's own."""

    own_processes = False

    def setUp(self) -> None:
        super().setUp()
        self.daemon = self.useFixture(libvirt_fixtures.Libvirtd())
        self.directory = self.temp_dir()
        self.host: Any = self.useFixture(libvirt_hosts.LibvirtHost(
            self.daemon.connect, NAMESPACES, self.directory, libvirt_hosts.QEMU, configuration=self.configuration))
        self.machine = self.host.machine
        self.host.service.known = {}

    def seen_by_guest(self, instance: fixtures.Instance) -> bytes:
        """What a running guest has in its only persistent memory, without the labels at its end."""
        [(address, size)] = re.findall(r'addr: (0x\w+).*size: (\d+)', self.ask_qemu(instance, 'info memory-devices'),
                                       re.DOTALL)
        saved = os.path.join(self.temp_dir(), 'saved')
        self.assertEqual('', self.ask_qemu(instance, f'pmemsave {address} {size} "{saved}"').strip())
        with open(saved, 'rb') as file:
            return file.read()

    def ask_qemu(self, instance: fixtures.Instance, question: str) -> str:
        answer: str = libvirt_qemu.qemuMonitorCommand(self.machine.domain(instance.uuid), question,
                                                      libvirt_qemu.VIR_DOMAIN_QEMU_MONITOR_COMMAND_HMP)
        return answer

    def fill(self, name: str) -> bytes:
        """Leave bytes all over a namespace, and give them."""
        data = os.urandom(os.path.getsize(self.machine.path(name)))
        self.machine.write(name, data)
        return data

    def rows(self, instance: fixtures.Instance) -> list[tuple[str, str, str]]:
        return [(record.identifier, record.role, record.state) for record in self.host.records(instance)]

    def free(self) -> list[str]:
        """The namespaces that nobody owns, by the store."""
        return [name for name in NAMES if name not in self.host.owners()]

    def assert_runs_on(self, instance: fixtures.Instance, name: str, data: bytes) -> None:
        """Both definitions of the guest name this namespace, and the guest finds these bytes in it."""
        for domain in (self.machine.live(instance.uuid), self.machine.defined(instance.uuid)):
            self.assertEqual((self.machine.path(name),), domain.memory_paths)
        self.assert_same(data, self.machine.read(name))
        self.assert_same(data[:-LABELS], self.seen_by_guest(instance))

    def assert_same(self, expected: bytes, found: bytes) -> None:
        """As ``assertEqual``, which would print millions of bytes."""
        self.assertEqual((len(expected), hashlib.sha256(expected).hexdigest()),
                         (len(found), hashlib.sha256(found).hexdigest()))

    def assert_others_get(self, *names: str) -> None:
        """Others can have these namespaces and no more, and there is nothing in them."""
        got = [self.host.claim(fixtures.Instance(), pmem=1) for _ in names]
        self.assertEqual(0, self.host.free())
        self.assertEqual(sorted(names), sorted(one.identifier for claim in got for one in claim.resources))
        self.assertEqual([], [name for name in names if any(self.machine.read(name))])
        for claim in got:
            claim.abort()


class KilledResizeTestCase(QEMUTestCase):

    def resize_until(self, step: str) -> tuple[fixtures.Instance, fixtures.Migration, bytes]:
        """Let a service boot a guest and resize it, kill the service after a step, and start another one.

        :returns: what the first guest left on its device too
        """
        instance = fixtures.Instance(host=self.host.name, node=self.host.name)
        migration = fixtures.Migration(self.host.name, self.host.name, instance.uuid)
        self.host.manager.close()
        process = programs.start('resize', programs.options_of(
            self.conf, uri=self.daemon.uri, namespaces=NAMESPACES, directory=self.directory,
            instance_uuid=instance.uuid, migration_uuid=migration.uuid))
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        secret = b''
        said = ''
        while said != step:
            said = process.stdout.readline().strip()
            self.assertNotEqual('', said, 'the process ended by itself')
            if said == 'spawned':
                [(name, _, _)] = self.rows(instance)
                secret = self.fill(name)
            if said != step:
                process.stdin.write('go on\n')
                process.stdin.flush()
        process.kill()
        self.assertEqual(-9, process.wait())
        migration.status = 'finished' if step == BOOTED else 'migrating'
        self.host.service.known[instance.uuid] = 'here'
        self.host.service.moves.append(migration)
        self.host.restart()
        return instance, migration, secret

    def waiting(self, step: str) -> tuple[fixtures.Instance, fixtures.Migration, str, str, bytes]:
        """See that nothing of an instance whose resize was interrupted after a step is lost or up for grabs."""
        instance, migration, secret = self.resize_until(step)
        (old, *_), (new, *_) = rows = self.rows(instance)
        self.assert_same(secret, self.machine.read(old))
        if step == BOOTED:
            self.assertEqual([(old, 'old', 'active'), (new, 'current', 'active')], rows)
            self.assert_runs_on(instance, new, bytes(len(secret)))
            self.fill(new)
            self.assertEqual([(new, False), (old, True)], [
                (device.identifier, device.beside) for device in self.machine.live(instance.uuid).record.devices])
        else:
            self.assertEqual([(old, 'old', 'active'), (new, 'incoming', 'claimed')], rows)
            self.assert_runs_on(instance, old, secret)
        self.assertEqual([], self.host.audit())
        self.assertEqual(rows, self.rows(instance))
        self.assert_others_get(*self.free())
        return instance, migration, old, new, secret

    def test_reverted_it_has_the_bytes_that_it_had(self) -> None:
        lived: list[tuple[fixtures.Instance, str, bytes]] = []
        for step in (CLAIMED, BOOTED):
            instance, migration, old, new, secret = self.waiting(step)
            migration.status = 'reverting'
            if step == BOOTED:
                self.machine.delete_guest(instance.uuid)
            self.host.manager.drop_move_claim_at_dest(self.context, instance, migration)
            self.assertEqual([(old, 'current', 'active')], self.rows(instance))
            self.assertIn(new, self.free())
            if step == BOOTED:
                self.host.boot(instance)
            migration.status = 'reverted'
            self.assert_runs_on(instance, old, secret)
            lived.append((instance, old, secret))
            self.assert_others_get(*self.free())
            self.assertEqual([], self.host.audit())
        for instance, name, secret in lived:
            self.assertEqual([(name, 'current', 'active')], self.rows(instance))
            self.assert_runs_on(instance, name, secret)

    def test_confirmed_nobody_finds_the_bytes_that_it_had(self) -> None:
        for step in (CLAIMED, BOOTED):
            instance, migration, old, new, _secret = self.waiting(step)
            if step == CLAIMED:                 # the service goes on where it was
                self.machine.stop_guest(instance.uuid)
                migration.status = 'post-migrating'
                self.host.boot(instance)
                migration.status = 'finished'
                self.fill(new)
            kept = self.machine.read(new)
            migration.status = 'confirming'
            self.host.manager.drop_move_claim_at_source(self.context, instance, migration)
            migration.status = 'confirmed'
            self.assertEqual([(new, 'current', 'active')], self.rows(instance))
            self.assertIn(old, self.free())
            self.assert_others_get(*self.free())
            self.assert_runs_on(instance, new, kept)
            self.assertEqual([], self.host.audit())
            self.assertEqual([], self.host.store.contexts(self.host.manager.state().host_uuid))


class LostStoreTestCase(QEMUTestCase):

    def manage(self, *arguments: str) -> Any:
        """What ``devicetrack-manage`` answers, in a process of its own."""
        config_file = os.path.join(self.state_path, 'devicetrack.conf')
        with open(config_file, 'w', encoding='utf-8') as file:
            file.write(f"""
[devicetrack]
virt_driver = libvirt
state_path = {self.state_path}
machine_id_path = {self.conf.devicetrack.machine_id_path}
[libvirt]
connection_uri = {self.daemon.uri}
pmem_namespaces = 4GB:{'|'.join(NAMES)}
[devicetrack_vpmem]
directory = {self.directory}
""")
        answer = processes.run('devicetrack.cmd.manage', '--config-file', config_file, *arguments, '-f', 'json')
        self.assertEqual(0, answer.returncode, answer.stderr)
        return json.loads(answer.stdout)

    def lose_store(self) -> None:
        self.host.manager.close()
        self.host.store.close()
        for name in os.listdir(self.state_path):
            if name.startswith('devicetrack.sqlite'):
                os.unlink(os.path.join(self.state_path, name))

    def test_guests_run_on_and_a_resize_that_waits_can_be_reverted(self) -> None:
        staying, moving = (self.host.spawn(pmem=1) for _ in range(2))
        [(kept, _, _)], [(old, _, _)] = self.rows(staying), self.rows(moving)
        of_staying, of_moving = self.fill(kept), self.fill(old)
        migration = self.host.resize(moving, pmem=1)
        self.machine.stop_guest(moving.uuid)
        migration.status = 'post-migrating'
        self.host.boot(moving)
        migration.status = 'finished'
        [(new, _, _)] = [row for row in self.rows(moving) if row[0] != old]
        self.fill(new)
        [lost] = self.free()
        self.fill(lost)                         # as one whose guest is lost too may have left it
        before = self.host.records()
        self.host.service.known = {staying.uuid: 'here', moving.uuid: 'here'}

        self.lose_store()
        found = self.manage('recover', '--from-hypervisor', '--host', self.host.name, '--wipe-unrecorded')
        self.assertEqual({kept: ('write', 'current'), old: ('write', 'old'), new: ('write', 'current'),
                          lost: ('wipe', 'current')},
                         {row['identifier']: (row['outcome'], row['role']) for row in found})
        self.host.reopen()
        self.host.restart()
        self.assertEqual([record._replace(created_at=0, claim_id='', generation=0) for record in before],
                         [record._replace(created_at=0, claim_id='', generation=0) for record in self.host.records()])
        self.assertEqual([], self.host.audit())
        self.assert_runs_on(staying, kept, of_staying)
        self.assert_others_get(lost)

        migration.status = 'reverting'
        self.machine.delete_guest(moving.uuid)
        self.host.manager.drop_move_claim_at_dest(self.context, moving, migration)
        self.host.boot(moving)
        migration.status = 'reverted'
        self.assert_runs_on(moving, old, of_moving)
        self.assert_others_get(*{lost, new})
        self.assertEqual([], self.host.audit())
        self.assert_runs_on(staying, kept, of_staying)
