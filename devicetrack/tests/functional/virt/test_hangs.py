"""A libvirtd that hangs: it keeps its connections and answers nothing, for as long as the test likes."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import threading
import time
import types
from typing import Any

import libvirt

from devicetrack import exception
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base
from devicetrack.tests.functional.claims import libvirt_hosts
from devicetrack.virt.libvirt import bounded
from devicetrack.virt.libvirt import connection

ENDS_S = 60


class _Domain:
    """A domain of a libvirtd that answers about all others."""

    def __init__(self, name: str, answers: threading.Event) -> None:
        self.UUIDString, self._answers, self.asked = lambda: name, answers, 0

    def XMLDesc(self, flags: int) -> str:
        self.asked += 1
        self._answers.wait()
        return "<domain type='test'/>"

    def hasManagedSaveImage(self, flags: int) -> int:
        return int(bool(self.XMLDesc(flags)))

    def managedSaveGetXMLDesc(self, flags: int) -> str:
        return self.XMLDesc(flags)


class HangingDomainTestCase(base.TestCase):
    """libvirtd gives no answer about one domain."""

    def setUp(self) -> None:
        super().setUp()
        self.answers, always = threading.Event(), threading.Event()
        always.set()
        self.addCleanup(self.answers.set)
        self.hung, others = _Domain('hung', self.answers), [_Domain(name, always) for name in 'ab']
        transient = libvirt.VIR_CONNECT_LIST_DOMAINS_TRANSIENT
        self.opened, self.before = 0, set(threading.enumerate())

        def connect() -> Any:
            self.opened += 1
            return types.SimpleNamespace(
                isAlive=lambda: 1, listAllDomains=lambda flags: [] if flags == transient else [self.hung, *others])

        self.connection = connection.Connection(connect=connect, timeout_s=1)

    def check_looks(self, look: Callable[..., Any]) -> None:
        self.assertRaises(exception.HypervisorUnreachable, lambda: [*look()])
        while not self.connection._calls.is_late('hung'):
            pass
        for _number in range(2 * bounded.MOST_UNANSWERED):
            found = {one.uuid: type(one) for one in look()}
            self.assertEqual({'hung': connection.Unreadable, 'a': connection.Definitions, 'b': connection.Definitions},
                             found)
        self.assertEqual(1, self.hung.asked)
        # Those that remain are one for each call of a moment. A thread of the last look may still be about to end.
        while len(set(threading.enumerate()) - self.before) > len(found):
            pass
        self.assertLessEqual(self.opened, 2)
        self.answers.set()
        while self.connection._calls.is_late('hung'):
            pass
        self.assertEqual({connection.Definitions}, set(map(type, look())))

    def test_it_is_asked_about_once(self) -> None:
        self.check_looks(self.connection.definitions)

    def test_its_saved_state_is_asked_for_once(self) -> None:
        self.check_looks(self.connection.saved)

    def test_a_call_that_is_not_made_leaves_the_connection(self) -> None:
        self.patch(bounded, 'MOST_UNANSWERED', 1)
        raw, calls = self.connection.raw(), self.connection._calls
        busy = threading.Thread(target=calls.call, args=(self.answers.wait,))
        calls.timeout_s = base.HANGS_S
        busy.start()
        while not calls._unanswered:
            pass
        calls.timeout_s = 0.01
        self.assertRaises(exception.HypervisorUnreachable, self.connection.arriving)
        self.answers.set()
        busy.join()
        self.assertIs(raw, self.connection.raw())


class HangingLibvirtdTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.daemon = self.useFixture(libvirt_fixtures.Libvirtd())
        self.configuration.set('devicetrack_libvirt', call_timeout_s=base.HANGS_S)
        self.host = self.useFixture(libvirt_hosts.LibvirtHost(
            self.daemon.connect, {'4GB': ['ns0', 'ns1']}, self.temp_dir(), libvirt_hosts.QEMU,
            configuration=self.configuration))

    @contextlib.contextmanager
    def hanging(self) -> Iterator[bounded.Calls]:
        """Let libvirtd hang, and the driver wait for it no longer than a second."""
        calls = self.host.machine.driver.hypervisor._calls
        with self.daemon.hanging():
            calls.timeout_s = 1
            yield calls
        calls.timeout_s = base.HANGS_S

    def ends(self, call: Callable[..., Any], *arguments: Any) -> None:
        began = time.monotonic()
        error = self.assertRaises(exception.HypervisorUnreachable, call, *arguments)
        self.assertLess(time.monotonic() - began, ENDS_S)
        self.assertIn('check whether its daemon hangs', str(error))

    def test_releases_and_audits_end_and_go_on_when_it_answers(self) -> None:
        host, first, second = self.host, Instance(), Instance()
        host.claim(first, pmem=1)
        with self.hanging():
            host.claim(second, pmem=1)          # asks nobody but the store
            self.ends(host.manager.release, host.context, first)
            self.ends(host.audit)
            self.ends(host.audit)
        self.assertEqual([], host.audit())
        self.assertEqual([second.uuid], list(host.owners().values()))
        host.manager.release(host.context, second)
        self.assertEqual([FREE, FREE], list(host.states().values()))

    def test_a_start_ends_and_is_made_again(self) -> None:
        self.host.manager.close()
        self.host.manager = self.host.another_manager()
        with self.hanging():
            self.ends(self.host.manager.init_host, self.host.context)
        self.assertEqual([], self.host.manager.init_host(self.host.context))

    def test_whoever_asks_on_and_on_is_refused_at_once(self) -> None:
        self.patch(bounded, 'MOST_UNANSWERED', 4)
        driver = self.host.machine.driver
        with self.hanging() as calls:
            while len(calls._unanswered) < bounded.MOST_UNANSWERED:
                self.together(*[driver.get_usage] * 4)
            threads = threading.active_count()
            error = self.assertRaises(exception.HypervisorUnreachable, driver.get_usage)
            self.assertIn('earlier calls are not answered yet', str(error))     # so it did not wait for a place
            self.assertEqual(threads, threading.active_count())
        while calls._unanswered:
            time.sleep(0.05)
        driver.get_usage()
