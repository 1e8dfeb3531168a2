"""The interface of a store: rows in, rows out, one transaction a call.

A store is used by many threads at once. It keeps no cache: what it answers was read in the call.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable
from typing import NamedTuple

from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record


class Host(NamedTuple):
    """One host as the store knows it. ``machine_id`` is a digest, never the machine id itself."""

    uuid: str
    name: str
    machine_id: str


class Update(NamedTuple):
    """One row as it was read and as it shall be: same host, kind and identifier, one generation on."""

    before: Record
    after: Record


class Changes(NamedTuple):
    """What one transaction does to one host's rows: all of it or nothing."""

    insert: tuple[Record, ...] = ()
    update: tuple[Update, ...] = ()
    delete: tuple[Record, ...] = ()

    @property
    def keys(self) -> tuple[DeviceKey, ...]:
        """Every device that the transaction touches."""
        return tuple(record.key for record in
                     (*self.insert, *(update.before for update in self.update), *self.delete))


class Store(abc.ABC):
    """Where assignments last. Every method may block; none is called under the ledger's lock."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The store for messages: its kind and place, never a user name or a password."""

    @abc.abstractmethod
    def check(self) -> None:
        """See that the store can be used by this release.

        :raises SchemaMismatch: its schema is missing, older or newer, or it is no store of ours
        :raises StoreUnavailable: it cannot be reached or written
        """

    @abc.abstractmethod
    def host(self, name: str) -> Host | None:
        """The host of this name, or None."""

    @abc.abstractmethod
    def hosts(self) -> list[Host]:
        """Every host, by name."""

    @abc.abstractmethod
    def add_host(self, host: Host) -> None:
        """Record a new host.

        :raises HostIdentityChanged: another machine took the name meanwhile
        """

    @abc.abstractmethod
    def records(self, host_uuid: str | None = None, instance_uuid: str | None = None,
                keys: Iterable[DeviceKey] | None = None) -> list[Record]:
        """The rows that match all that is given, by instance and then position. One query.

        :param keys: at most some hundreds
        """

    @abc.abstractmethod
    def write(self, changes: Changes) -> None:
        """Carry out one transaction. Blocks for one commit.

        Updates and deletes count only on rows that still have the generation and claim of their ``before``.

        :raises DeviceTaken: an inserted device has a row; nothing was written
        :raises StaleAssignment: a row moved on or is gone; nothing was written
        :raises StoreUnavailable: the store is gone, read-only, full or locked; nothing was written
        :raises OutcomeUnknown: the commit was sent and not answered; ask :meth:`settle`
        """

    @abc.abstractmethod
    def settle(self, changes: Changes) -> bool:
        """Find out what became of a commit whose answer was lost.

        Writes the same keys in a transaction that is then undone. That waits for the lost one, wherever it still
        runs: a read would see the time before it and prove nothing.

        :returns: True when the changes happened, False when they did not and cannot any more
        :raises StoreUnavailable: no answer yet (not reachable, or the lost transaction is still open); ask again
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Close every connection. The store may be used again: it opens new ones."""
