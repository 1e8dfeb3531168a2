"""The library in a Nova that runs with eventlet, and with native threads, where any import of eventlet fails.

Nova refuses to start when something has loaded eventlet before it chose its threads. Each test is a process of its own.
"""

import os
import pathlib
import subprocess
import sys
import textwrap

import devicetrack
from devicetrack.tests import base

ROOT = pathlib.Path(devicetrack.__file__).parent
MIB = 1 << 20

# Our tests are no part of a service, and neither is what only one of its commands loads within a migration.
_NOT_OF_A_SERVICE = ('tests', 'migrations')

_CHOOSE = """
from nova import monkey_patch
monkey_patch.patch(backend='threading')
"""

_CLAIM = """
from devicetrack.testing import fixtures
host = fixtures.Host(devices=1, parents={'p0': 1})
host.setUp()
instance = host.spawn(pmem=1, vgpu=1)
host.audit()
host.delete(instance)
host.cleanUp()
"""


def modules():
    for path in sorted(ROOT.rglob('*.py')):
        parts = [ROOT.name, *path.relative_to(ROOT).with_suffix('').parts]
        if not set(_NOT_OF_A_SERVICE).intersection(parts):
            yield '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


class ProgramTestCase(base.TestCase):

    def run_program(self, program):
        environment = {name: value for name, value in os.environ.items() if name != 'OS_NOVA_DISABLE_EVENTLET_PATCHING'}
        answer = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=False,
                                env=environment | {'PYTHONPATH': str(ROOT.parent)})
        self.assertEqual((0, ''), (answer.returncode, answer.stderr[-2000:] if answer.returncode else ''))
        return answer.stdout.strip(), answer.stderr


class EventletTestCase(ProgramTestCase):
    """Nova 31 and 33 choose eventlet by default."""

    def test_a_namespace_is_read_and_wiped(self):
        path = os.path.join(self.temp_dir(), 'ns0')
        with open(path, 'wb') as file:
            file.truncate(MIB)
        program = textwrap.dedent(f"""
            import os
            os.environ['OS_NOVA_DISABLE_EVENTLET_PATCHING'] = '0'
            from nova import monkey_patch
            monkey_patch.patch()
            assert monkey_patch.is_patched()
            import threading
            from devicetrack.virt.libvirt import jobs
            lock = os.open({path + '.lock'!r}, os.O_RDWR | os.O_CREAT)
            device = os.open({path!r}, os.O_RDWR)
            stop = threading.Event()
            print(jobs.read_through('ns0', device, lock, {MIB}, 0, 0, stop))
            os.pwrite(device, b'x', 5)
            print(jobs.read_through('ns0', device, lock, {MIB}, 0, 0, stop))
            jobs.wipe('ns0', device, lock, {MIB}, 0, 0)
            print(jobs.read_through('ns0', device, lock, {MIB}, 0, 0, stop))
            stop.set()
            print(jobs.read_through('ns0', device, lock, {MIB}, 0, 0, stop))
        """)
        self.assertEqual(['None', f'not all zero between bytes 0 and {MIB}', 'None', 'reading it was stopped'],
                         self.run_program(program)[0].splitlines())

    def test_a_call_into_a_library_stops_no_other_thread_and_has_a_deadline(self):
        """The library waits for a byte that another thread of the process writes."""
        program = textwrap.dedent("""
            import os
            os.environ['OS_NOVA_DISABLE_EVENTLET_PATCHING'] = '0'
            from nova import monkey_patch
            monkey_patch.patch()
            import ctypes, threading, time
            from devicetrack.virt.libvirt import bounded
            library = ctypes.CDLL(None)
            read, write = os.pipe()
            def call():
                return library.read(read, ctypes.create_string_buffer(1), 1)
            def other():
                time.sleep(0.1)
                os.write(write, b'x')
            threading.Thread(target=other).start()
            print(bounded.Calls(900, into_c=True).call(call))
            threading.Thread(target=other).start()
            print(bounded.Calls(900, into_c=True).natively(call))
            calls = bounded.Calls(0.5, into_c=True)
            try:
                calls.call(call)
            except bounded.Late as error:
                print(error, len(calls._unanswered))
            other()
            while calls._unanswered:
                time.sleep(0.01)
            try:
                calls.call(lambda: 1 / 0)
            except ZeroDivisionError as error:
                print(error)
        """)
        self.assertEqual(['1', '1', 'no answer within 0.5 s 1', 'division by zero'],
                         self.run_program(program)[0].splitlines())


class NativeThreadsTestCase(ProgramTestCase):

    def test_all_of_it_is_imported_and_a_guest_gets_devices_without_eventlet(self):
        named = list(modules())
        self.assertIn('devicetrack.virt.libvirt.driver', named)
        program = _CHOOSE + textwrap.dedent(f"""
            import importlib, sys
            for name in {named}:
                importlib.import_module(name)
        """) + _CLAIM + "print('eventlet' in sys.modules)"
        self.assertEqual('False', self.run_program(program)[0])

    def test_nova_can_choose_after_the_package_and_its_options(self):
        program = textwrap.dedent("""
            import sys
            import devicetrack
            from oslo_config import cfg
            devicetrack.register_options(cfg.ConfigOpts())
        """) + _CHOOSE + _CLAIM + "print('eventlet' in sys.modules)"
        self.assertEqual('False', self.run_program(program)[0])

    def test_another_service_that_chooses_native_threads_hears_nothing_of_eventlet(self):
        program = textwrap.dedent("""
            import devicetrack
            from oslo_service import backend
            backend.init_backend(backend.BackendType.THREADING)
            import devicetrack.claims.manager
            print(backend.get_backend_type().value)
        """)
        self.assertEqual(('threading', ''), self.run_program(program))
