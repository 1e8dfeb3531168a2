"""What every test of this project starts from."""

from __future__ import annotations

from collections.abc import Callable
import fcntl
import os
import tempfile
import threading
from typing import Any
from typing import ClassVar
from typing import Final
from typing import TYPE_CHECKING

import fixtures
from oslotest import base
import testscenarios

from devicetrack.testing import fixtures as our_fixtures
from devicetrack.testing import no_io
from devicetrack.tests import processes
from devicetrack.virt.libvirt import device_users

# How long a test waits for what may hang. Nothing that works takes so long on the slowest and busiest machine.
HANGS_S: Final = 900


class TestCase(testscenarios.WithScenarios, base.BaseTestCase):
    """A test with a state directory and a configuration of its own, and no I/O under the ledger's lock.

    Scenarios (testscenarios) multiply tests; put their names before a test's facts: ``scenarios = [(name, {…}), …]``.
    """

    # Whether its hosts have the processes that it starts, and no others of the machine. Whoever asks who uses a device
    # goes through them, and those of all other tests would take most of the time. A guest in QEMU is none of its own.
    own_processes: ClassVar[bool] = True

    if TYPE_CHECKING:
        # The facts of a scenario are attributes that only the test runner sets.
        def __getattr__(self, name: str) -> Any: ...

    def setUp(self) -> None:
        super().setUp()
        if self.own_processes:
            self.patch(device_users, 'processes', lambda: processes.of(os.getpid()))
        self.no_io = self.useFixture(no_io.NoIOUnderTheLock())
        self.context = object()

    @property
    def configuration(self) -> our_fixtures.Configuration:
        """Made when it is first asked for: most tests of pure code need none."""
        if not hasattr(self, '_configuration'):
            self._configuration = self.useFixture(our_fixtures.Configuration())
        return self._configuration

    @property
    def conf(self) -> Any:
        return self.configuration.conf

    @property
    def state_path(self) -> str:
        return self.configuration.state_path

    def have_full_device(self) -> None:
        """Wait until no other test has ``/dev/full``, whose users some tests count, and keep it until this one ends."""
        file = open(os.path.join(tempfile.gettempdir(), 'devicetrack-test-full-device'), 'a')
        self.addCleanup(file.close)
        fcntl.lockf(file, fcntl.LOCK_EX)        # of this process: no child inherits it

    def temp_dir(self) -> str:
        """A new directory that goes when the test ends."""
        path: str = self.useFixture(fixtures.TempDir()).path
        return path

    def together(self, *calls: Callable[[], Any]) -> list[Any]:
        """Run calls in a thread each, begun at once; the answers in order, an error in place of its answer."""
        answers: list[Any] = [None] * len(calls)
        barrier = threading.Barrier(len(calls))

        def run(index: int, call: Callable[[], Any]) -> None:
            barrier.wait()
            try:
                answers[index] = call()
            except BaseException as error:
                answers[index] = error

        threads = [threading.Thread(target=run, args=(index, call)) for index, call in enumerate(calls)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers


def table(*rows: tuple[Any, ...], names: tuple[str, ...]) -> list[tuple[str, dict[str, Any]]]:
    """Scenarios from rows: the first cell is the scenario's name, the others are attributes called ``names``."""
    return [(row[0], dict(zip(names, row[1:], strict=True))) for row in rows]
