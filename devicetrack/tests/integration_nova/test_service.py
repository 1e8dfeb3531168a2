"""``devicetrack-nova-compute`` as a process: how it starts, why it does not, and how it ends.

Nova's service is real, with its own database in SQLite, a placement server, and libvirt's test driver.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import devicetrack
from devicetrack.nova import process
from devicetrack.testing import placement
from devicetrack.tests import base

ROOT = pathlib.Path(devicetrack.__file__).parent

# What the service needs beside a conductor in another process, which is its way to the database.
PROGRAM = textwrap.dedent("""
    import sys
    import time
    from devicetrack.nova import command

    def hang():
        # In short waits: eventlet looks for signals in between, and after a minute otherwise.
        while True:
            time.sleep(0.1)

    def prepare():
        # After Nova chose its threads, which importing its service before would do too early.
        from nova import service
        create = service.Service.create

        def create_here(*args, **named):
            from nova.db.main import api, models
            from nova.objects import base
            from nova.virt.libvirt import driver
            from devicetrack.claims.manager import ClaimManager
            from devicetrack.nova import startup
            api.DISABLE_DB_ACCESS, base.NovaObject.indirection_api = False, None
            models.BASE.metadata.create_all(api.context_manager.writer.get_engine())
            driver.MIN_QEMU_VERSION = driver.NEXT_MIN_QEMU_VERSION = (0, 0, 2)      # that of libvirt's test driver
            made, close = create(*args, **named), ClaimManager.close
            start, end_with = made.start, startup._end_with

            def start_here():
                START
                start()

            def end_with_and_tell(made):
                end_with(made)
                ours = made.start

                def start_and_tell():
                    ours()
                    print('started', flush=True)        # it has noted that, so a signal does not find it starting
                made.start = start_and_tell

            def close_and_tell(self):
                close(self)
                print('closed', flush=True)
            made.start, startup._end_with, ClaimManager.close = start_here, end_with_and_tell, close_and_tell
            return made
        service.Service.create = create_here

    class Prepares:
        def find_spec(self, name, path, target=None):
            if name == 'devicetrack.nova.startup':
                sys.meta_path.remove(self)
                prepare()
    sys.meta_path.insert(0, Prepares())
    command.main()
""")

NODE = '<node><memory>8388608</memory><cpu><mhz>2000</mhz><model>x86_64</model><active>4</active></cpu>{}</node>'
GUEST = '<domain type="test"><name>theirs</name><memory>65536</memory><os><type>hvm</type></os></domain>'


class ServiceTestCase(base.TestCase):
    scenarios = [('threads', {'native': 'true'}), ('eventlet', {'native': 'false'})]

    def setUp(self) -> None:
        super().setUp()
        self.directory = self.temp_dir()
        self.placement = placement.PlacementServer.shared()
        self.log = os.path.join(self.directory, 'nova.log')
        self.state = os.path.join(self.directory, 'devicetrack')
        os.mkdir(os.path.join(self.directory, 'instances'))
        self.node()

    def write(self, name: str, text: str) -> str:
        path = os.path.join(self.directory, name)
        with open(path, 'w') as file:
            file.write(textwrap.dedent(text))
        return path

    def node(self, *guests: str) -> None:
        self.write('node.xml', NODE.format(''.join(guests)))

    def configure(self, host: str = 'compute-7') -> str:
        return self.write('nova.conf', f"""
            [DEFAULT]
            host = {host}
            transport_url = fake:/
            log_file = {self.log}
            state_path = {self.directory}
            compute_driver = libvirt.LibvirtDriver
            # Nova 33 waits so long, whatever runs.
            manager_shutdown_timeout = {1 if process.versions('').split()[-1].startswith('33') else 600}
            graceful_shutdown_timeout = 700
            [database]
            connection = sqlite:///{self.directory}/nova.sqlite
            [libvirt]
            connection_uri = test://{self.directory}/node.xml
            cpu_mode = none
            virt_type = qemu
            [oslo_concurrency]
            lock_path = {self.directory}/locks
            [vnc]
            enabled = false
            [placement]
            auth_type = admin_token
            token = {placement.TOKEN}
            endpoint = {self.placement.url}
            endpoint_override = {self.placement.url}
            [devicetrack]
            state_path = {self.state}
        """)

    @contextlib.contextmanager
    def service(self, host: str = 'compute-7', before_start: str = 'pass') -> Iterator[subprocess.Popen[str]]:
        """A service, which the test ends."""
        program = self.write('program.py', PROGRAM.replace('START', before_start))
        running = subprocess.Popen(
            [sys.executable, '-W', 'ignore', program, '--config-file', self.configure(host)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {'PYTHONPATH': str(ROOT.parent), 'OS_NOVA_DISABLE_EVENTLET_PATCHING': self.native})
        with running:
            try:
                yield running
            finally:
                running.kill()

    def ended(self, running: subprocess.Popen[str]) -> tuple[int, str]:
        """How a service ended, and what it printed."""
        out, _err = running.communicate(timeout=base.HANGS_S)
        return running.returncode, out

    def refused(self, text: str, **how: str) -> None:
        """A start that ends with status 1, whose log says why."""
        with self.service(**how) as running:
            self.assertEqual((1, ''), self.ended(running))
        with open(self.log) as file:
            [logged] = [line for line in file if ' CRITICAL ' in line]
        self.assertIn(text, logged)
        os.unlink(self.log)

    def stopped(self, running: subprocess.Popen[str]) -> tuple[int, str]:
        """How a service ended that was told to stop once it had started, and what it printed after the start."""
        assert running.stdout is not None
        self.assertEqual('started\n', running.stdout.readline(), self.tail())
        running.send_signal(signal.SIGTERM)
        return self.ended(running)

    def tail(self) -> str:
        return pathlib.Path(self.log).read_text()[-3000:]

    def hosts(self) -> list[str]:
        with contextlib.closing(devicetrack.open_store(self.conf, self.state)) as store:
            return [host.name for host in store.hosts()]

    def test_a_service_that_is_told_to_stop_closes_the_manager_and_ends(self) -> None:
        with self.service() as running:
            self.assertEqual((0, 'closed\n'), self.stopped(running))
        self.assertNotIn('did not complete within', self.tail())

    def test_a_service_that_is_told_to_stop_while_it_starts_ends_at_once(self) -> None:
        with self.service(before_start="print('starts', flush=True), hang()") as running:
            assert running.stdout is not None
            self.assertEqual('starts\n', running.stdout.readline(), self.tail())
            running.send_signal(signal.SIGTERM)
            self.assertEqual((0, ''), self.ended(running))

    def test_a_start_that_the_manager_refuses_ends_the_process(self) -> None:
        with self.service() as first:
            assert first.stdout is not None
            self.assertEqual('started\n', first.stdout.readline(), self.tail())
            self.refused('it manages host compute-7, or another host with the same state_path')
        os.chmod(self.state, 0o777)
        self.refused(f'devicetrack-nova-compute does not start: {self.state}: users other than its owner can write')

    def test_a_start_that_nova_refuses_ends_the_process(self) -> None:
        self.node('nothing that libvirt can parse <')
        self.refused('HypervisorUnavailable')
        self.node(GUEST)
        self.refused('My hypervisor has existing instances, but I appear to be a new service')
        self.assertFalse(os.path.exists(self.state))

    def test_a_rename_that_nova_refuses_makes_no_host(self) -> None:
        with self.service() as running:
            self.assertEqual((0, 'closed\n'), self.stopped(running))
        self.refused('Possible rename detected', host='compute-8')
        self.assertEqual(['compute-7'], self.hosts())
