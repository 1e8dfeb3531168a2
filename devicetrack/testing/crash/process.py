"""The process of one host: a compute service, and proxies for everything that it can change.

The kit forks the process, and the process makes its manager itself. The machine and the service's data outlive the
process: they are in the kit's process, at the other end of a line.
"""

from __future__ import annotations

import abc
import collections
from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import functools
import inspect
import logging
import os
import pickle
import signal
import threading
from typing import Any
from typing import NamedTuple

from oslo_config import cfg

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import workers
from devicetrack.claims.locked_ledger import LockedLedger
from devicetrack.claims.manager import ClaimManager
from devicetrack.engine import selection
from devicetrack.engine import withholding
from devicetrack.engine.snapshot import Snapshot
from devicetrack.store import api
from devicetrack.testing.crash import moments
from devicetrack.virt import driver as virt_driver

# Messages on the line. The process sends its moments, its calls to the other end, and the answers to its orders. It
# receives orders, and the answers to its calls. While it waits for such an answer it may receive orders, and obeys them
# first.
MOMENT = 'moment'
CALL = 'call'
ORDER = 'order'
ANSWER = 'answer'
ERROR = 'error'

# The kind of a call that is for no object at the other end: a commit that the database will do later.
LATE = 'late'


class Parts(NamedTuple):
    """The parts that the kit gives to a compute service's process.

    ``driver`` and ``store`` are for its manager. ``hypervisor`` starts and stops guests
    (:class:`~devicetrack.testing.crash.world.Hypervisor`). ``data`` is the service's own data (from the operation's
    ``data()``). ``tell(host, method, *args)`` calls a method of the process of another host, waits for its end, and
    raises its errors; :class:`~devicetrack.testing.crash.world.Crashed` if that process is dead or dies. Arguments and
    answers of these three are copies.
    """

    host: str
    driver: virt_driver.VirtDriver
    store: api.Store
    conf: cfg.ConfigOpts
    hypervisor: Any
    data: Any
    tell: Callable[..., Any]


class ComputeProcess:
    """A compute service's process on one host. An operation calls its methods by name. Subclasses add methods.

    ``__init__`` must set ``manager``, because the kit looks at its ledger.
    """

    manager: ClaimManager

    def __init__(self, parts: Parts) -> None:
        self.host = parts.host
        self.driver, self.store, self.conf = parts.driver, parts.store, parts.conf
        self.hypervisor, self.data = parts.hypervisor, parts.data
        self.context: Any = None

    def start(self) -> None:
        """Begin to work, after each start of the process."""
        self.manager.init_host(self.context)

    def audit(self) -> list[Any]:
        """Do the periodic audit and return its findings."""
        return list(self.manager.update_available_resource(self.context, self.manager.nodename))


class DeviceView(NamedTuple):
    """One device of a ledger."""

    kind: str
    identifier: str | None
    instance_uuid: str | None
    withheld: str                               # the reasons, or ''


class LedgerView(NamedTuple):
    """A ledger as seen from outside: its devices, how many of each class claims can still take, and commits in doubt.

    ``cordoned`` says how many more of each class claims could take if nothing were cordoned.
    """

    devices: tuple[DeviceView, ...]
    room: dict[str, int]
    doubts: int
    cordoned: dict[str, int]


def view_of(manager: ClaimManager) -> LedgerView | None:
    """The manager's ledger, or None before the manager is ready. It takes no lock, as everything else stands still."""
    running = vars(manager)['_running']
    if running is None:
        return None
    now: Snapshot = vars(running.ledger)['_now']
    room: collections.Counter[str] = collections.Counter()
    cordoned: collections.Counter[str] = collections.Counter()
    for pool in now.pool_states():
        room[pool.resource_class] += pool.room
        cordoned[pool.resource_class] += pool.free + pool.makes - pool.room
    devices = now.states()
    for device in devices:
        if device.state == selection.FREE and device.withheld == {vocabulary.CORDONED}:
            cordoned[device.resource_class] += 1
    return LedgerView(
        tuple(DeviceView(device.kind, device.identifier,
                       None if device.state == selection.FREE else device.instance_uuid,
                       withholding.text(device.withheld)) for device in devices),
        dict(room), len(running.rows.doubts), dict(cordoned))


# -- the line ---------------------------------------------------------------------------------------------------------


class Line:
    """The process's end of its line.

    :param obey: carries out an order, by its name and arguments
    """

    def __init__(self, connection: Any, obey: Callable[..., Any]) -> None:
        self._connection, self._obey = connection, obey
        self._lock = threading.RLock()
        self._calls = threading.local()
        self._attention = moments.Attention()
        self._passed: list[tuple[str, str, str]] = []
        self.process: ComputeProcess | None = None

    @property
    def recording(self) -> bool:
        return self._attention.recording

    def serve(self) -> None:
        """Obey orders until there are no more."""
        with contextlib.suppress(EOFError):
            self._wait()

    def ask(self, tag: str, *message: Any, confirm: virt_driver.Confirm | None = None) -> Any:
        """:param confirm: a function that the other end may call before it answers"""
        with self._lock:
            self._send(tag, *message)
            return self._wait(confirm)

    def _send(self, tag: str, *message: Any) -> None:
        self._connection.send((tag, self._passed, *message))
        self._passed = []

    def _wait(self, confirm: virt_driver.Confirm | None = None) -> Any:
        """Obey orders until an answer comes, and return that."""
        while True:
            tag, self._attention, *message = self._connection.recv()
            if tag == ANSWER:
                return message[0]
            name, args = message
            calls = self._calls
            try:
                if name == CONFIRM and confirm is not None:
                    answer = confirm(*args)
                else:
                    self._calls = threading.local()             # an order is inside no call
                    answer = self._obey(name, *args)
            except Exception as error:
                logging.exception('%s failed', name)
                self._send(ERROR, _that_travels(error))
            else:
                self._send(ANSWER, answer)
            finally:
                self._calls = calls

    def reach(self, kind: str, call: str, when: str, state: object = None) -> str | None:
        """Pass a moment. If the run says so, the process kills itself here.

        :returns: another fault, which the caller must act out, or None
        """
        if not self._attention.wants(len(self._passed)):
            if self._attention.counts:
                self._passed.append((kind, call, when))         # sent with the next message
            return None
        view = self.view() if self.recording else None
        action: str | None = self.ask(MOMENT, kind, call, when, state, view)
        if action == moments.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        return action

    def view(self) -> LedgerView | None:
        """Look at the process's ledger without passing a moment."""
        if self.process is None:
            return None
        with self._inside(moments.LEDGER):
            return view_of(self.process.manager)

    @contextlib.contextmanager
    def _inside(self, kind: str) -> Iterator[None]:
        before = getattr(self._calls, kind, False)
        setattr(self._calls, kind, True)
        try:
            yield
        finally:
            setattr(self._calls, kind, before)

    @contextlib.contextmanager
    def around(self, kind: str, call: str, state: Callable[[], object] = lambda: None) -> Iterator[None]:
        """Pass a moment before a call and one after it. A call inside another of the same kind passes no moments."""
        if getattr(self._calls, kind, False):
            yield
            return
        self.reach(kind, call, moments.BEFORE, state())
        try:
            with self._inside(kind):
                yield
        finally:
            self.reach(kind, call, moments.AFTER, state())

    def call(self, kind: str, name: str, *args: Any, confirm: virt_driver.Confirm | None = None, **kwargs: Any) -> Any:
        """Call a method at the other end. A function there replaces ``confirm``, which cannot be pickled."""
        with self.around(kind, name):
            tag, value = self.ask(CALL, kind, name, args, kwargs, confirm=confirm)
            if tag == ERROR:
                raise value
            return value


class Remote:
    """An object at the other end of the line, by its methods."""

    def __init__(self, line: Line, kind: str) -> None:
        self._line, self._kind = line, kind

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith('_'):
            raise AttributeError(name)
        return functools.partial(self._line.call, self._kind, name)


# -- proxies, made from what the interfaces have ----------------------------------------------------------------------


def _public(cls: type) -> dict[str, Any]:
    return {name: member for name, member in inspect.getmembers(cls)
            if not name.startswith('_') and (inspect.isfunction(member) or isinstance(member, property))}


def remote_driver(line: Line, host: str, conf: cfg.ConfigOpts) -> virt_driver.VirtDriver:
    """Make a driver whose methods all run at the other end."""

    def forward(name: str) -> Callable[..., Any]:
        return lambda _self, *args, **kwargs: line.call(moments.DRIVER, name, *args, **kwargs)

    members = {name: forward(name) for name in _public(virt_driver.VirtDriver)}
    members['unclaim'] = lambda _self, assignments, confirm=None: line.call(
        moments.DRIVER, 'unclaim', assignments, confirm=confirm)
    members['prove'] = lambda _self, assignments, how, confirm=None: line.call(
        moments.DRIVER, 'prove', assignments, how, confirm=confirm)
    # A function of the manager cannot be pickled. This one can, and no guest here has a device that nobody tracks.
    for name in ('rewrite_guest', 'rewrite_definition'):
        members[name] = lambda _self, *args, name=name: line.call(
            moments.DRIVER, name, *args[:-1], virt_driver.is_never_untracked)
    made: Any = abc.ABCMeta('RemoteDriver', (virt_driver.VirtDriver,), members)
    driver: virt_driver.VirtDriver = made(host, conf, conf.devicetrack.state_path)
    return driver


class _Watched:
    """Makes the calls to a store and its views, unless the process is cut off from the store."""

    line: Line
    is_cut = False
    # The call that the database carries out when it comes back.
    late: Callable[[], Any] | None = None

    def call(self, view: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        store = view.store
        action = self.line.reach(moments.STORE, name, moments.BEFORE)
        if action in (*moments.CUTS, *moments.HANGS):
            self.is_cut = True
        if action in moments.HANGS:
            self._is_late(view, action, name, args)
            self.line.reach(moments.STORE, name, moments.AFTER)
            raise exception.OutcomeUnknown(store.name)
        try:
            if self.is_cut:
                raise exception.StoreUnavailable(store.name, 'the server is gone')
            answer = getattr(store, name)(*args, **kwargs)
        except BaseException:
            self.line.reach(moments.STORE, name, moments.AFTER)
            raise
        action = self.line.reach(moments.STORE, name, moments.AFTER)
        if action in moments.CUTS:
            self.is_cut = True
        if action in moments.LOSSES:
            raise exception.OutcomeUnknown(store.name)
        return answer

    def _is_late(self, view: Any, action: str | None, name: str, args: tuple[Any, ...]) -> None:
        if action == moments.HANG:
            self.late = lambda: getattr(view.store, name)(*args)
        elif name != moments.TAKES_EPOCH:       # this process will be dead by then, and must not take over
            self.line.ask(CALL, LATE, '', (view.host_of_epoch, name, args), {})

    def mend(self) -> None:
        """Let the database come back, and carry out the late call."""
        self.is_cut = False
        late, self.late = self.late, None
        with contextlib.suppress(exception.StoreError):         # nobody waits for the answer
            if late is not None:
                late()


def do_late(store: api.Store, host: api.Host | None, name: str, args: tuple[Any, ...]) -> None:
    """Let a database carry out the call of a dead process, on behalf of that process's manager."""
    with contextlib.suppress(exception.StoreError):
        getattr(store.at_epoch(host) if host is not None else store, name)(*args)


def watched_store(line: Line, store: api.Store) -> Any:
    """Make a store whose calls pass moments. It has all methods of the interface and of the store itself."""

    def forward(name: str) -> Callable[..., Any]:
        return lambda self, *args, **kwargs: self.calls.call(self, name, *args, **kwargs)

    def read(name: str) -> property:
        return property(lambda self: getattr(self.store, name))

    members: dict[str, Any] = {name: read(name) if isinstance(member, property) else forward(name)
                               for name, member in _public(api.Store).items() if name != 'close'}
    members['close'] = lambda self: self.store.close()
    members['at_epoch'] = lambda self, host, own=None: made_of(self.store.at_epoch(host, own), host)
    members['__getattr__'] = lambda self, name: getattr(vars(self)['store'], name)
    watched: Any = abc.ABCMeta('WatchedStore', (api.Store,), members)
    calls = _Watched()
    calls.line = line

    def made_of(store: api.Store, host: api.Host | None = None) -> Any:
        made = watched()
        made.store, made.calls, made.host_of_epoch = store, calls, host
        return made

    return made_of(store)


def _state_of(ledger: LockedLedger) -> bytes:
    """The snapshot of a ledger without the number of the next change, which says nothing about a device."""
    now: Snapshot = vars(ledger)['_now']
    return pickle.dumps(now._replace(number=0))


def watch_ledgers(line: Line) -> None:
    """Let every ledger of this process report its calls. Nobody can undo this, so it is for a forked process."""

    def wrap(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def watched(self: LockedLedger, *args: Any, **kwargs: Any) -> Any:
            with line.around(moments.LEDGER, name, lambda: _state_of(self) if line.recording else None):
                return function(self, *args, **kwargs)
        return watched

    for name, member in _public(LockedLedger).items():
        if inspect.isfunction(member):
            setattr(LockedLedger, name, wrap(name, member))


# -- the process ------------------------------------------------------------------------------------------------------


def run(connection: Any, make: Callable[[Parts], ComputeProcess], host: str, conf: cfg.ConfigOpts, opened: api.Store,
        log: str) -> None:
    """Be the process of a host: serve the line until it ends. This does not return."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)            # the kit's process ends this one
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        logging.basicConfig(filename=log, level=logging.INFO, force=True,
                            format=f'%(process)d {host} %(levelname)s %(message)s')
        line = Line(connection, lambda name, *args: _obey(line, store, name, *args))
        watch_ledgers(line)
        # Background work runs at once, so that faults come in the same order in every run.
        setattr(workers.Workers, 'start', lambda pool, _pieces=1: pool.run())   # noqa: B010   # mypy lets nobody assign to a method
        store = watched_store(line, opened)
        line.process = make(Parts(host, remote_driver(line, host, conf), store, conf,
                                  Remote(line, moments.HYPERVISOR), Remote(line, moments.DATA),
                                  functools.partial(line.call, moments.HOST, 'tell_other')))
        line.serve()
        status = 0
    except BaseException:
        logging.exception('The process of host %s ends', host)
    finally:
        os._exit(status)


def _obey(line: Line, store: Any, name: str, *args: Any) -> Any:
    if name == VIEW:
        return line.view()
    if name == CUT:
        store.calls.is_cut = True
        return None
    if name == MEND:
        return store.calls.mend()
    if name == DO_LATE:
        return do_late(store.store, *args)
    return getattr(line.process, name)(*args)


# Commands of the kit. They are not methods of a service.
VIEW = '(view)'
CONFIRM = '(confirm)'
CUT = '(cut)'
DO_LATE = '(do late)'
MEND = '(mend)'


class Failed(Exception):
    """An error of the process that pickle cannot carry, as text."""


def _that_travels(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return Failed(f'{type(error).__name__}: {error}')
    return error
