"""Namespaces of the kernel's own NVDIMM driver, with guests under the QEMU of the host's libvirt.

The host has devdax namespaces of one size, and room for one more in a region.
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import json
import mmap
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import textwrap
import time
from typing import Any
from typing import BinaryIO

import libvirt
import libvirt_qemu

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import findings
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestConfig
from devicetrack.testing import fixtures
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.tests import base
from devicetrack.tests.functional.claims import libvirt_hosts
from devicetrack.tests.host.inside import firmware
from devicetrack.tests.host.inside import hosts
from devicetrack.virt.libvirt import namespaces
from devicetrack.virt.libvirt import worker
from devicetrack.virt.libvirt.kinds import mdev
from devicetrack.virt.libvirt.kinds import vpmem
from devicetrack.virt.libvirt.ndctl import Namespace

FIRST, SECOND = 'pmem0', 'pmem1'
LABELS = 2 << 20                                # the end of a guest's namespace, which its memory does not show
PATTERN = b'of the first owner '

# As a service that never was root: its daemon is started by sudo, and what it opens is wiped by a child of the service.
UNPRIVILEGED = textwrap.dedent("""
    import json, mmap, os, sys
    from oslo_config import cfg
    from devicetrack.virt.libvirt import jobs, namespaces

    path, name = sys.argv[1:]
    cfg.CONF(['--config-file', path], project='service')
    source = namespaces.NdctlSource('/usr/bin/ndctl')
    found = source.read()[name]
    said = {'uid': os.geteuid(), 'found': found, 'paths': len(source.paths())}
    try:
        os.close(os.open(found.path, os.O_RDWR))
    except PermissionError:
        said['alone'] = 'refused'
    try:
        source.open(found._replace(path='/dev/mem'))
    except OSError:
        said['memory'] = 'refused'
    fd = source.open(found)
    with mmap.mmap(fd, found.size_bytes) as mapped:
        said['read'] = mapped[:4].decode()
    jobs.wipe(name, fd, fd, found.size_bytes, found.align_bytes, 0)
    print(json.dumps(said))
""")

# A service that gives one device back, says how far it is, and is killed.
RELEASES = textwrap.dedent("""
    import json, logging, sys
    from oslo_config import cfg
    from devicetrack.conf import opts
    from devicetrack.objects import DeviceAssignment
    from devicetrack.virt.libvirt import driver
    from devicetrack.virt.libvirt.kinds import vpmem

    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format='%(message)s')
    state_path, rate, assignment = sys.argv[1:]
    conf = cfg.ConfigOpts()
    opts.register_options(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    conf.set_override('wipe_rate_mib_s', int(rate), group='devicetrack_vpmem')
    driver.LibvirtDriver('host', conf, state_path, [vpmem.VPMEM]).unclaim(
        [DeviceAssignment.obj_from_primitive(json.loads(assignment))])
""")


# A database that writes to a namespace, and has it mapped but not open.
MAPS = textwrap.dedent("""
    import mmap, os, sys
    fd = os.open(sys.argv[1], os.O_RDWR)
    mapped = mmap.mmap(fd, 2 << 20)
    os.close(fd)
    mapped[:13] = b'of a database'
    print('mapped', flush=True)
    sys.stdin.read()
""")


class Machine(libvirt_hosts.Machine):
    """This host, and what is in its namespaces."""

    def __init__(self) -> None:
        super().__init__(lambda: libvirt.open(hosts.URI), libvirt_hosts.QEMU, '/dev', firmware.path())
        self.source = namespaces.NdctlSource('/usr/bin/ndctl')

    def namespace(self, name: str) -> Namespace:
        return self.source.read()[name]

    def path(self, name: str) -> str:
        return self.namespace(name).path

    def write(self, name: str, data: bytes) -> None:
        with self._mapped(name) as mapped:
            mapped[:len(data)] = data

    def read(self, name: str) -> bytes:
        with self._mapped(name) as mapped:
            return mapped[:]

    @contextlib.contextmanager
    def _mapped(self, name: str) -> Any:
        found = self.namespace(name)
        with open(found.path, 'r+b', buffering=0) as file, mmap.mmap(file.fileno(), found.size_bytes) as mapped:
            yield mapped


class Host(hosts.KernelHost):
    """The compute host, with some of its namespaces under one label.

    :param unproven: what to do with namespaces that nothing proves clean; each host has a state directory of its own
    """

    kinds = (mdev.Mdev, vpmem.VPMEM)

    def __init__(self, *names: str, rate_mib_s: int = 0, unproven: str = vocabulary.TRUST) -> None:
        super().__init__()
        self.machine = Machine()
        self._names, self._rate, self._unproven = names, rate_mib_s, unproven

    def configure(self, configuration: fixtures.Configuration) -> None:
        configuration.set('libvirt', pmem_namespaces=[f'4GB:{"|".join(self._names)}'])
        configuration.set('devicetrack_vpmem', wipe_rate_mib_s=self._rate, wipe_wait_s=0)
        configuration.set('devices', enabled_mdev_types=['mtty-2'])
        configuration.set('devicetrack', unproven_devices=self._unproven)


class VPMEMTestCase(base.TestCase):

    own_processes = False

    def host(self, *names: str, rate_mib_s: int = 0, unproven: str = vocabulary.TRUST) -> Any:
        host = self.useFixture(Host(*names, rate_mib_s=rate_mib_s, unproven=unproven))
        self.machine = host.machine
        return host

    def ndctl(self, *arguments: str) -> Any:
        done = subprocess.run(('ndctl', *arguments), capture_output=True, text=True, check=False)
        self.assertEqual(0, done.returncode, done.stderr)
        return json.loads(done.stdout) if done.stdout.strip().startswith(('[', '{')) else None

    def make_namespace(self, name: str, *options: str) -> Namespace:
        """Make one by hand in the room that a region has left."""
        region = next(region for region in self.ndctl('list', '--regions') if region['max_available_extent'])
        made = self.ndctl('create-namespace', '--mode=devdax', f'--name={name}', f"--region={region['dev']}",
                          *options)
        self.addCleanup(self._destroy, made['uuid'])
        return namespaces.NdctlSource('/usr/bin/ndctl').read()[name]

    def _destroy(self, uuid: str) -> None:
        for found in self.ndctl('list', '--namespaces'):
            if found['uuid'] == uuid:
                self.ndctl('destroy-namespace', '--force', found['dev'])

    def set_read_only(self, region: str, value: str) -> None:
        with open(os.path.join(namespaces.REGIONS, region, 'read_only'), 'w') as file:
            file.write(value)

    # -- guests -------------------------------------------------------------------------------------------------------

    def ask_qemu(self, instance: fixtures.Instance, question: str) -> str:
        answer: str = libvirt_qemu.qemuMonitorCommand(self.machine.domain(instance.uuid), question,
                                                      libvirt_qemu.VIR_DOMAIN_QEMU_MONITOR_COMMAND_HMP)
        return answer

    def memory_of(self, instance: fixtures.Instance) -> tuple[int, int]:
        """Where a guest has its only persistent memory, and how much."""
        [(address, size)] = re.findall(r'addr: (0x\w+).*size: (\d+)', self.ask_qemu(instance, 'info memory-devices'),
                                       re.DOTALL)
        return int(address, 16), int(size)

    def write_as_guest(self, instance: fixtures.Instance, address: int, data: bytes) -> None:
        """Let a guest's processor write, by QEMU's stub for debuggers."""
        self.ask_qemu(instance, 'gdbserver tcp:127.0.0.1:9999')
        with socket.create_connection(('127.0.0.1', 9999), timeout=60) as debugger, debugger.makefile('rb') as answers:
            for command in ('Qqemu.PhyMemMode:1', f'M{address:x},{len(data):x}:{data.hex()}', 'D'):
                debugger.sendall(f'${command}#{sum(command.encode()) & 0xff:02x}'.encode())
                answer = b'T'                   # the answer that the processor stopped, which may come late
                while answer.startswith(b'T'):
                    answer = self._packet(answers)
                    debugger.sendall(b'+')
                self.assertEqual(b'OK', answer, command)
        self.ask_qemu(instance, 'gdbserver none')

    def _packet(self, answers: BinaryIO) -> bytes:
        """The data between ``$`` and ``#``. An acknowledgement may come before it, and two digits follow it."""
        packet = b''
        while not packet.endswith(b'#'):
            packet += answers.read(1) or self.fail(f'it hung up after {packet!r}')
        answers.read(2)
        return packet.lstrip(b'+')[1:-1]

    def read_as_guest(self, instance: fixtures.Instance) -> bytes:
        """All that a guest has in its only persistent memory, without the labels at its end."""
        saved = os.path.join('/var/lib/libvirt/qemu', instance.uuid)
        self.addCleanup(os.unlink, saved)
        self.assertEqual('', self.ask_qemu(instance, 'pmemsave {} {} "{}"'.format(*self.memory_of(instance), saved))
                         .strip())
        with open(saved, 'rb') as file:
            return file.read()

    def foreign_guest(self, path: str) -> fixtures.Instance:
        """Start a guest that nobody placed, with a namespace."""
        found = next(one for one in self.machine.source.read().values() if one.path == path)
        config = GuestConfig((vpmem.guest_element(found),), '')
        guest = fixtures.Instance()
        self.machine.connection.createXML(libvirt_fixtures.guest(
            guest.uuid, config, 'qemu', firmware=firmware.path()), 0)
        self.addCleanup(self.machine.delete_guest, guest.uuid)
        return guest

    # -- what must hold -----------------------------------------------------------------------------------------------

    def assert_same(self, expected: bytes, found: bytes) -> None:
        """Compare as ``assertEqual`` does, without printing millions of bytes."""
        self.assertEqual(len(expected), len(found))
        if expected != found:
            place = next(place for place, pair in enumerate(zip(expected, found, strict=True))
                         if pair[0] != pair[1])
            self.fail(f'{found[place:place + 32]!r} at {place}, instead of {expected[place:place + 32]!r}')

    def assert_found(self, expected: Sequence[tuple[str, str]], found: Sequence[findings.Finding]) -> None:
        self.assertEqual(list(expected), [(one.kind, one.device.identifier) for one in found],
                         '\n'.join(map(str, found)))

    def pattern(self, name: str) -> bytes:
        """As many bytes as a namespace has."""
        size = self.machine.namespace(name).size_bytes
        return (PATTERN * (size // len(PATTERN) + 1))[:size]

    def owner(self, host: Any, pmem: int = 1) -> fixtures.Instance:
        """A new instance that has namespaces and no guest: starting one takes most of a test's time."""
        instance = fixtures.Instance()
        host.claim(instance, pmem=pmem)
        return instance

    def nobody_gets(self, host: Any, pmem: int) -> None:
        self.assertRaises(exception.NoFit, host.claim, fixtures.Instance(), pmem=pmem)


class NamespaceTestCase(VPMEMTestCase):

    def test_namespaces_are_what_the_kernel_says(self) -> None:
        found = namespaces.NdctlSource('/usr/bin/ndctl').read()
        self.assertLessEqual({FIRST, SECOND}, set(found))
        for namespace in found.values():
            number = os.stat(namespace.path).st_rdev
            device = f'/sys/dev/char/{os.major(number)}:{os.minor(number)}'
            self.assertEqual([str(namespace.size_bytes), str(namespace.align_bytes), str(namespace.numa_node)],
                             [_line(f'{device}/{name}') for name in ('size', 'align', 'numa_node')])
            self.assertIsNone(namespace.problem)
            self.assertIn(f'/{namespace.region}/', os.path.realpath(device))

    def test_what_nothing_proves_clean_is_read_before_it_is_handed_out(self) -> None:
        Machine().write(SECOND, b'of a guest that no row knows')
        self.addCleanup(Machine().write, SECOND, bytes(64))
        host = self.host(FIRST, SECOND, unproven=vocabulary.VERIFY)
        self.wait_for(lambda: host.states()[FIRST] == fixtures.FREE)
        self.nobody_gets(host, 2)
        self.assertEqual('withheld: unproven', host.states()[SECOND])
        self.assertIn(b'of a guest', self.machine.read(SECOND))
        host.manager.operator.admit('vpmem', SECOND, wipe=True)
        self.wait_for(lambda: host.states()[SECOND] == fixtures.FREE)
        self.assertEqual(b'', self.machine.read(SECOND).strip(b'\0'))

    def test_what_a_program_has_mapped_between_release_and_claim_goes_to_no_guest(self) -> None:
        host = self.host(FIRST, SECOND, unproven=vocabulary.VERIFY)
        self.wait_for(lambda: [host.states()[name] for name in (FIRST, SECOND)] == [fixtures.FREE] * 2)
        program = subprocess.Popen((sys.executable, '-c', MAPS, self.machine.path(FIRST)), stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE)
        self.addCleanup(self.machine.write, FIRST, bytes(64))
        self.addCleanup(program.communicate)
        assert program.stdout is not None
        self.assertEqual(b'mapped\n', program.stdout.readline())
        instances = [self.owner(host)]
        host.manager.realize(host.context, instances[0])
        self.assertEqual([SECOND], [one.identifier for one in host.manager.assignments(instances[0].uuid)])
        self.nobody_gets(host, 1)
        self.assertIn('withheld', host.states()[FIRST])
        program.communicate()
        host.manager.update_available_resource(host.context, host.name)
        self.nobody_gets(host, 1)
        self.assertTrue(self.machine.read(FIRST).startswith(b'of a database'))

    def wait_for(self, condition: Any) -> None:
        while not condition():
            time.sleep(0.1)

    def test_a_service_that_is_not_root_lists_opens_and_wipes_by_the_privileged_daemon(self) -> None:
        path = '/etc/sudoers.d/service'
        with open(path, 'w', opener=lambda path, flags: os.open(path, flags, 0o440)) as file:
            file.write('nobody ALL=(root) NOPASSWD: ALL\n')
        self.addCleanup(os.unlink, path)
        paths = os.pathsep.join(sys.path)
        helper = ('sudo', '-n', 'env', f'PYTHONPATH={paths}', sys.executable, '-W', 'ignore', '-c',
                  'from oslo_privsep.daemon import helper_main; helper_main()')
        configuration = '/etc/service.conf'
        with open(configuration, 'w') as file:
            file.write(f'[devicetrack_privileged]\nhelper_command = {shlex.join(helper)}\n')
        self.addCleanup(os.unlink, configuration)
        machine = Machine()
        machine.write(FIRST, b'data')
        done = subprocess.run((sys.executable, '-W', 'ignore', '-c', UNPRIVILEGED, configuration, FIRST),
                              capture_output=True, text=True, check=False, user='nobody', group='nogroup',
                              extra_groups=(), cwd='/', env={'PYTHONPATH': paths, 'PATH': os.environ['PATH']})
        self.assertEqual(0, done.returncode, done.stderr)
        there = machine.source.read()
        self.assertEqual({'uid': 65534, 'found': list(there[FIRST]), 'paths': len(there), 'alone': 'refused',
                          'memory': 'refused', 'read': 'data'}, json.loads(done.stdout))
        self.assert_same(bytes(there[FIRST].size_bytes), machine.read(FIRST))

    def test_a_wipe_that_was_killed_is_repeated_and_nobody_else_wipes_meanwhile(self) -> None:
        host = self.host(FIRST)
        instance = self.owner(host)
        secret = self.pattern(FIRST)
        self.machine.write(FIRST, secret)
        [assignment] = instance.resources
        key = DeviceKey('vpmem', FIRST)
        service = subprocess.Popen(
            (sys.executable, '-W', 'ignore', '-c', RELEASES, host.configuration.state_path, '2',
             json.dumps(assignment.obj_to_primitive())), stdout=subprocess.PIPE, text=True)
        self.addCleanup(service.communicate)
        self.addCleanup(service.kill)
        assert service.stdout is not None
        self.assertTrue(any(': zero,' in line for line in service.stdout))
        self.assertIsInstance(self.machine.driver.unclaim([assignment])[key], exception.DeviceBusy)
        service.kill()
        service.wait()
        # The child that it started works on, and keeps the lock.
        self.assertIsInstance(self.machine.driver.unclaim([assignment])[key], exception.DeviceBusy)
        [child] = [int(pid) for pid in os.listdir('/proc') if pid.isdigit() and worker.__name__ in _command(pid)]
        ended = os.pidfd_open(child)
        self.addCleanup(os.close, ended)
        signal.pidfd_send_signal(ended, signal.SIGKILL)
        select.select([ended], [], [])
        self.assertEqual((bytes(4096), secret[-4096:]),
                         (self.machine.read(FIRST)[:4096], self.machine.read(FIRST)[-4096:]))
        self.assertEqual({FIRST: instance.uuid}, host.owners())
        self.nobody_gets(host, pmem=1)
        host.manager.release(host.context, instance)
        self.assert_same(bytes(len(secret)), self.machine.read(FIRST))
        self.assertEqual({}, host.owners())

    def test_another_namespace_of_the_recorded_name_is_neither_handed_out_nor_wiped(self) -> None:
        made = self.make_namespace('byhand')
        host = self.host('byhand')
        instance = self.owner(host)
        host.manager.realize(host.context, instance)
        assert made.uuid is not None
        self._destroy(made.uuid)
        self.assert_found([(findings.GONE, 'byhand')], host.audit())
        again = self.make_namespace('byhand')
        self.assertEqual(made, again._replace(uuid=made.uuid, path=made.path))
        data = self.pattern('byhand')
        self.machine.write('byhand', data)
        [finding] = host.audit()
        self.assertEqual((findings.UNHEALTHY, vocabulary.CRITICAL, instance.uuid),
                         (finding.kind, finding.severity, finding.recorded_owner))
        self.assertRaises(exception.DriverError, host.manager.release, host.context, instance)
        host.audit()
        self.nobody_gets(host, pmem=1)
        self.assertEqual({'byhand': instance.uuid}, host.owners())
        self.assert_same(data, self.machine.read('byhand'))

    def test_a_region_that_is_read_only_holds_its_namespaces_until_it_is_not(self) -> None:
        host = self.host(FIRST, SECOND)
        instance = self.owner(host)
        host.manager.realize(host.context, instance)
        region = self.machine.namespace(FIRST).region
        self.assertEqual(region, self.machine.namespace(SECOND).region)
        secret = self.pattern(FIRST)
        self.machine.write(FIRST, secret)
        self.addCleanup(self.set_read_only, region, '0')
        self.set_read_only(region, '1')
        self.assertEqual({(FIRST, instance.uuid), (SECOND, None)},
                         {(found.device.identifier, found.recorded_owner) for found in host.audit()
                          if found.kind == findings.UNHEALTHY})
        self.nobody_gets(host, pmem=1)
        error = self.assertRaises(exception.DriverError, host.manager.release, host.context, instance)
        self.assertIn('read-only', str(error))
        self.assert_same(secret, self.machine.read(FIRST))
        self.set_read_only(region, '0')
        host.audit()
        self.assert_same(bytes(len(secret)), self.machine.read(FIRST))
        self.assertEqual({}, host.owners())
        self.owner(host, pmem=2)

    def test_a_namespace_that_was_disabled_is_back_with_its_owner_when_it_is_enabled(self) -> None:
        host = self.host(FIRST, SECOND)
        instance = self.owner(host)
        host.manager.realize(host.context, instance)
        disabled = [found['dev'] for found in self.ndctl('list', '--namespaces')
                    if found.get('name') in (FIRST, SECOND)]
        for device in disabled:
            self.addCleanup(self.ndctl, 'enable-namespace', device)
            self.ndctl('disable-namespace', device)
        self.assertEqual({(FIRST, instance.uuid), (SECOND, None)},
                         {(found.device.identifier, found.recorded_owner) for found in host.audit()
                          if found.kind == findings.UNHEALTHY})
        self.nobody_gets(host, pmem=1)
        self.assertRaises(exception.DriverError, host.manager.realize, host.context, instance)
        # A service that starts now starts all the same.
        host.service.known = {instance.uuid: 'here'}
        host.restart()
        for device in disabled:
            self.ndctl('enable-namespace', device)
        self.assert_found([], host.audit())
        host.manager.realize(host.context, instance)
        self.owner(host)


class GuestTestCase(VPMEMTestCase):

    def test_what_its_first_owner_wrote_and_read_is_gone_for_the_next(self) -> None:
        host = self.host(FIRST, rate_mib_s=10)
        instance = host.spawn(pmem=1, vgpu=1)
        self.assert_runs_as_recorded(host, instance)
        secret = self.pattern(FIRST)
        self.machine.write(FIRST, secret)
        address, size = self.memory_of(instance)
        namespace = self.machine.namespace(FIRST)
        self.assertEqual(namespace.size_bytes - LABELS, size)
        self.write_as_guest(instance, address + size - 16, b'the guest itself')
        self.assert_same(secret[:size - 16] + b'the guest itself', self.read_as_guest(instance))
        with self.assertLogs('devicetrack.virt.libvirt.jobs', 'INFO') as logged:
            host.delete(instance)
        told = [re.findall(r': (\w+), (\d+) of (\d+) bytes', line) for line in logged.output]
        for phase in ('zero', 'verify'):
            done = [int(done) for found in told for said, done, of in found if said == phase]
            self.assertEqual((sorted(set(done)), namespace.size_bytes), (done, done[-1]))
            # At 10 MiB a second it takes three seconds, and it says so every second.
            self.assertGreater(len(done), 2, logged.output)
        self.assert_same(bytes(len(secret)), self.machine.read(FIRST))
        following = host.spawn(pmem=1)
        self.assertEqual({FIRST: following.uuid}, host.owners())
        self.assert_same(bytes(size), self.read_as_guest(following))
        self.assert_found([], host.audit())
        host.delete(following)

    def assert_runs_as_recorded(self, host: Any, instance: fixtures.Instance) -> None:
        """The guest, the hypervisor's answers and the rows name the same devices."""
        rows = {record.kind: record.identifier for record in host.records(instance)}
        self.assertEqual({'vpmem', 'mdev'}, set(rows))
        for domain in (self.machine.live(instance.uuid), self.machine.defined(instance.uuid)):
            self.assertEqual(((self.machine.path(rows['vpmem']),), (rows['mdev'],)),
                             (domain.memory_paths, domain.mdev_uuids))
        usage = self.machine.usage()
        self.assertEqual({(kind, identifier, instance.uuid, True, True) for kind, identifier in rows.items()},
                         {(use.kind, use.identifier, use.domain_uuid, use.live, use.defined) for use in usage.uses})
        self.assertEqual((), usage.unknown)
        self.assert_found([], host.audit())

    def test_a_guest_of_somebody_else_keeps_a_namespace_that_was_made_by_hand(self) -> None:
        made = self.make_namespace('byhand', '--align=4096')
        self.assertEqual(4096, made.align_bytes)
        host = self.host(FIRST)
        foreign = self.foreign_guest(made.path)
        self.assertEqual(made.size_bytes - LABELS, self.memory_of(foreign)[1])
        secret = self.pattern('byhand')
        self.machine.write('byhand', secret)
        self.assert_found([(findings.USED_UNRECORDED, 'byhand')], host.audit())
        # An option names it too.
        host.configuration.set('libvirt', pmem_namespaces=[f'4GB:byhand|{FIRST}'])
        self.assert_found([(findings.USED_UNRECORDED, 'byhand')], host.restart())
        self.nobody_gets(host, pmem=2)
        host.manager.release(host.context, self.owner(host))
        self.assertEqual(made, self.machine.namespace('byhand'))
        self.assert_same(secret, self.machine.read('byhand'))
        self.machine.delete_guest(foreign.uuid)
        self.assert_found([], host.audit())
        host.manager.release(host.context, self.owner(host, pmem=2))
        self.assert_same(bytes(made.size_bytes), self.machine.read('byhand'))

    def test_two_guests_on_one_namespace_are_told_and_it_is_not_given_back(self) -> None:
        host = self.host(FIRST)
        instance = host.spawn(pmem=1)
        secret = self.pattern(FIRST)
        self.machine.write(FIRST, secret)
        # Neither libvirt nor QEMU nor the kernel minds.
        other = self.foreign_guest(self.machine.path(FIRST))
        self.assertTrue(self.machine.domain(other.uuid).isActive())
        self.assert_found([(findings.SHARED, FIRST)], host.audit())
        error = self.assertRaises(exception.DeviceInUse, host.delete, instance)
        self.assertIn(other.uuid, str(error))
        self.assert_same(secret, self.machine.read(FIRST))
        self.assertEqual({FIRST: instance.uuid}, host.owners())
        self.machine.delete_guest(other.uuid)
        self.assert_found([], host.audit())
        self.assert_same(bytes(len(secret)), self.machine.read(FIRST))
        self.assertEqual({}, host.owners())



def _line(path: str) -> str:
    with open(path, encoding='ascii') as file:
        return file.read().strip()


def _command(pid: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f'/proc/{pid}/cmdline') as file:
        return file.read().split('\0')
    return []
