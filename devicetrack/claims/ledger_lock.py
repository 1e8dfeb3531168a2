"""The lock of the ledger: fair, for threads, and able to say whether the calling thread holds it.

Nothing but the ledger is touched while it is held: no SQL, no libvirt, no file, no HTTP. ``testing.no_io`` enforces
that wherever it is switched on.
"""

from __future__ import annotations

import itertools
import threading
from types import TracebackType
from typing import Any
import weakref

from oslo_concurrency import lockutils

_NUMBERS = itertools.count()
# Replaced as a whole and never changed, so that it can be read anywhere, in an audit hook too.
_LOCKS: tuple[weakref.ref[LedgerLock], ...] = ()
_ADDING = threading.Lock()


class LedgerLock:
    """One manager's lock. Kept, because making a lock costs more than taking it."""

    __slots__ = ('_lock', '__weakref__')

    def __init__(self) -> None:
        global _LOCKS
        # The name only has to be unique: oslo.concurrency keeps fair locks by name.
        self._lock: Any = lockutils.internal_fair_lock(f'devicetrack-ledger-{next(_NUMBERS)}')
        with _ADDING:
            _LOCKS = (*(other for other in _LOCKS if other() is not None), weakref.ref(self))

    def __enter__(self) -> None:
        self._lock.acquire_write_lock()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self._lock.release_write_lock()

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread holds it."""
        return bool(self._lock.is_writer(check_pending=False))


def held_by_this_thread() -> bool:
    """Whether the calling thread holds the ledger lock of any manager in this process."""
    return any((lock := other()) is not None and lock.is_mine for other in _LOCKS)
