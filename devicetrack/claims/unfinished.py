"""What this process has begun and not ended, as far as no row says it: one table of calls.

What a restart must find is in the store or in the state directory of the host. Everything else that is unfinished is
here, so that one reader knows it.
"""

from __future__ import annotations

from collections.abc import Iterator
import itertools
import secrets
from typing import Any
from typing import NamedTuple
from typing import Protocol
from typing import Self
from typing import TypeVar

from devicetrack.objects.values import DeviceKey
from devicetrack.store.api import Changes


class Insertion(NamedTuple):
    """A claim whose commit has no answer yet."""

    key: int
    instance_uuid: str
    changes: Changes


class Doubt(NamedTuple):
    """A commit whose outcome is unknown. Its devices stay held until the outcome is known.

    ``undo`` is True if the caller was told that its claim failed: if the commit happened after all, the devices of the
    claim go back, and those that it made old are current again.
    """

    key: int
    instance_uuid: str
    changes: Changes
    undo: bool


class FailedClaim(NamedTuple):
    """A claim that failed and could not be undone yet. A file has it too, for the next start of the process.

    ``migration_uuid`` is that of a claim for a move. ``takes`` says that it is known to be a claim for devices.
    """

    instance_uuid: str
    claim_id: str
    migration_uuid: str | None
    takes: bool = False

    @property
    def key(self) -> str:
        return self.claim_id


class ToldStart(NamedTuple):
    """A guest that runs, as the service says, although no row may record that yet.

    It is about the claims that were there at its ``moment``. A later claim of the instance, as for a resize on one
    host, has another guest, and its failure gives its devices back. Who records the start does not matter: an audit may
    do so before the block of the claim ends, and then the claim must not give its devices back either.
    """

    instance_uuid: str
    moment: int

    @property
    def key(self) -> str:
        return self.instance_uuid


class OwnerlessWipe(NamedTuple):
    """A device without a row that a thread wipes."""

    key: DeviceKey


class _Entry(Protocol):
    @property
    def key(self) -> Any:
        ...


_Kind = TypeVar('_Kind', bound=_Entry)

_LASTS_ONE_START = (Insertion, Doubt)


class Unfinished:
    """The table. Each step is one operation of a dict, so any thread may call it.

    The service may call ``started`` in the block of a claim after another thread has closed the manager, and the guest
    runs all the same. So a told start belongs to the manager. A failed claim and a wipe last while the manager has the
    host, over all its starts. The next start finds in the store what became of the commits of this one.
    """

    def __init__(self) -> None:
        self._numbers: Iterator[int] = itertools.count()
        self._prefix = secrets.token_hex(8)     # of the ids of claims: a UUID for each would cost more
        self._entries: dict[type[Any], dict[Any, Any]] = {
            kind: {} for kind in (Insertion, Doubt, FailedClaim, ToldStart, OwnerlessWipe)}

    def _but(self, *kinds: type[Any]) -> Self:
        other = type(self)()
        other._numbers, other._prefix = self._numbers, self._prefix
        other._entries.update({kind: entries for kind, entries in self._entries.items() if kind not in kinds})
        return other

    def of_next_start(self) -> Self:
        """The table of the next start of the host in this process."""
        return self._but(*_LASTS_ONE_START)

    def of_next_host(self) -> Self:
        """The table for a manager that takes the host."""
        other = self._but(*_LASTS_ONE_START, FailedClaim, OwnerlessWipe)
        other._prefix = secrets.token_hex(8)
        return other

    def new_claim_id(self) -> str:
        """The id of a new claim. It is unique, over restarts too."""
        return f'{self._prefix}-{next(self._numbers):x}'

    def made(self, claim_id: str) -> bool:
        """Whether a claim with this id was made since this manager took the host."""
        return claim_id.startswith(self._prefix)

    def number(self) -> int:
        """A new number, greater than all before it: of a commit, or a moment."""
        return next(self._numbers)

    def note(self, entry: _Entry) -> None:
        self._entries[type(entry)][entry.key] = entry

    def note_start(self, instance_uuid: str) -> None:
        """Note that the service says that a guest runs. Until it is ended, errors give no device back."""
        # One line, since an interrupt before its end finds no note.
        self._entries[ToldStart][instance_uuid] = ToldStart(instance_uuid, next(self._numbers))

    def end(self, kind: type[_Entry], key: Any) -> bool:
        """Forget an entry; return whether it was there."""
        return self._entries[kind].pop(key, None) is not None

    def get(self, kind: type[_Kind], key: Any) -> _Kind | None:
        found: _Kind | None = self._entries[kind].get(key)
        return found

    def all(self, kind: type[_Kind]) -> list[_Kind]:
        """The entries of a kind, the oldest first."""
        return list(self._entries[kind].copy().values()) if self._entries[kind] else []
