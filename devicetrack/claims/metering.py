"""The state of a host in numbers, and how its manager reports its work to a meter.

The manager knows no library for metrics. It calls a :class:`Meter`, if it has one, with the kind and the duration of
the work. Without a meter each call costs only one attribute lookup.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import time
from typing import Any
from typing import cast
from typing import Final
from typing import NamedTuple
from typing import Protocol
from typing import TypeVar

from devicetrack import exception
from devicetrack import log
from devicetrack.compatibility.rules import Rules
from devicetrack.engine.findings import Finding
from devicetrack.engine.states import PoolState
from devicetrack.objects.pci_alias import PCIAlias
from devicetrack.objects.values import WipeProgress

LOG = log.logger(__name__)


class Audited(NamedTuple):
    """The result of an audit in numbers.

    ``at`` is the time when it ended, in seconds since 1970 (UTC), or None if nobody knows the time of the manager's
    last audit. ``findings`` counts findings by kind and severity. ``withheld`` counts devices by each of their reasons;
    None if nobody counted them.
    """

    at: float | None
    findings: Mapping[tuple[str, str], int]
    withheld: Mapping[str, int] | None

    @classmethod
    def of(cls, at: float | None, findings: Iterable[Finding], reasons: Iterable[Iterable[str]] | None) -> Audited:
        """Count findings, and the reasons of devices."""
        return cls(at, collections.Counter((finding.kind, finding.severity) for finding in findings),
                   None if reasons is None else
                   collections.Counter(reason for of_device in reasons for reason in of_device))


class Wiping(NamedTuple):
    """The devices that had an owner and are being wiped.

    ``progress`` has an entry for each device that a thread wipes, or None if its progress is unknown. ``waiting``
    counts the devices that wait for a thread.
    """

    progress: Sequence[WipeProgress | None]
    waiting: int


class HostState(NamedTuple):
    """One host at one moment. An unknown value is None, and never 0.

    ``pools`` is None after an interrupt, until the next claim or audit has started the host anew. ``audited`` is None
    until the audit of the start has ended. Only a manager knows the others, so a report lacks them:

    * ``takes_claims``; ``in_doubt``, the commits whose outcome is unknown; ``wiping``
    * ``host_uuid``, the host's UUID in the store, and ``state_path``, its state directory
    * ``complete``: whether the last look could read the whole host
    * ``classes``: the resource classes that count its devices
    * ``aliases``: the names by which flavors ask for PCI functions of it; None if its driver hands out none
    * ``rules``: the deployment's rules for the devices of guests that move while they run
    """

    host: str
    pools: Sequence[PoolState] | None
    audited: Audited | None
    takes_claims: bool | None = None
    in_doubt: int | None = None
    wiping: Wiping | None = None
    host_uuid: str = ''
    state_path: str = ''
    complete: bool = False
    classes: frozenset[str] = frozenset()
    aliases: Mapping[str, PCIAlias] | None = None
    rules: Rules = Rules()


INSTANCE_CLAIM: Final = 'instance_claim'
RESIZE_CLAIM: Final = 'resize_claim'
LIVE_MIGRATION_CLAIM: Final = 'live_migration_claim'
REBUILD_CLAIM: Final = 'rebuild_claim'
CLAIMS: Final = (INSTANCE_CLAIM, RESIZE_CLAIM, LIVE_MIGRATION_CLAIM, REBUILD_CLAIM)
REALIZE: Final = 'realize'
RELEASE: Final = 'release'
CALLS: Final = (*CLAIMS, REALIZE, RELEASE)
"""The names of the manager's calls that a meter hears of."""

_PublicCall = TypeVar('_PublicCall', bound=Callable[..., Any])


class Meter:
    """Counts the work of one host. A subclass overrides the methods for the events that it counts.

    Any thread may call any method at any time, also while it works on an instance. So a method must be quick: no I/O,
    and no call back into the manager. Only :meth:`audited` may take as long as writing a small file. If a method raises
    an exception, the manager logs it and continues.
    """

    def called(self, call: str, seconds: float, error: BaseException | None) -> None:
        """One of :data:`devicetrack.claims.metering.CALLS` ended, with this error or none.

        A claim that took nothing, for an instance that wants no device or is rebuilt in place, is not reported.
        """

    def committed(self, seconds: float, error: BaseException | None) -> None:
        """A transaction of the manager ended. After any error but ``NothingWritten`` its outcome is in doubt."""

    def settled(self, happened: bool) -> None:
        """The store answered whether a commit in doubt happened."""

    def wiped(self, kind: str, size_bytes: int | None, seconds: float) -> None:
        """A device that had an owner was wiped, and the wipe was proven.

        :param size_bytes: None if the size of the device is unknown
        """

    def wipe_failed(self, kind: str) -> None:
        """A device could not be wiped, or nothing proves that it was. It stays held, and audits try again."""

    def audited(self, seconds: float, state: HostState | None) -> None:
        """An audit, or the one of a start, ended.

        :param state: the host after the audit; None if the audit failed
        """


class _Metered(Protocol):
    """An object whose calls can be reported."""

    @property
    def metering(self) -> Metering:
        ...


class Metering:
    """The meter of one manager over all its starts, if it has one.

    ``meter`` may be replaced at any time.
    """

    __slots__ = ('meter', '_failed')

    def __init__(self) -> None:
        self.meter: Meter | None = None
        self._failed = False

    def tell(self, about: Callable[..., None], *facts: Any) -> None:
        """Report an event to the meter.

        :param about: a method of :class:`Meter`; the method of the same name of the present meter is called
        """
        meter = self.meter
        if meter is None:
            return
        try:
            getattr(meter, about.__name__)(*facts)
        except Exception:
            # A missing number is no reason to fail a claim, and a traceback for each claim would flood the log.
            if not self._failed:
                self._failed = True
                LOG.exception('A meter cannot count %s; the next failures are not logged', about.__name__)


def metered(call: str) -> Callable[[_PublicCall], _PublicCall]:
    """Decorate a call of a manager, to report it to the meter.

    :param call: one of :data:`CALLS`
    """
    is_claim = call in CLAIMS

    def decorate(method: _PublicCall) -> _PublicCall:
        @functools.wraps(method)
        def timed(self: _Metered, /, *args: Any, **kwargs: Any) -> Any:
            metering = self.metering
            if metering.meter is None:
                return method(self, *args, **kwargs)
            began = time.perf_counter()
            try:
                result = method(self, *args, **kwargs)
            except exception.ForkedManager:
                # Another thread of the parent may have held locks of the meter when the parent forked.
                raise
            except Exception as error:
                metering.tell(Meter.called, call, time.perf_counter() - began, error)
                raise
            if not (is_claim and getattr(result, 'is_over', False)):
                metering.tell(Meter.called, call, time.perf_counter() - began, None)
            return result

        return cast(_PublicCall, timed)

    return decorate
