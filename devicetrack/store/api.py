"""The interface of a store: rows in, rows out, one transaction a call.

Many threads use a store at once. It keeps no cache: each call reads what it returns.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Final
from typing import NamedTuple

from devicetrack.objects.event import Event
from devicetrack.objects.event import NO_NOTE
from devicetrack.objects.event import Note
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Leftover
from devicetrack.objects.values import Record

# Between the machine and the new store, in the row of a host that moves to another store. No digest has a blank.
MOVING: Final = ' moves to '
MOVED: Final = ' moved to '


class Host(NamedTuple):
    """One host as the store knows it.

    ``machine_id`` is a digest, never the machine id itself. Once the host moves to another store, it also contains the
    name of that store (:attr:`moved_to`), so it matches no machine any more. ``boot_id`` is the boot in which a manager
    of this host last set it, or None. If the host's devices are at nested providers in placement, ``nested_version`` is
    the version of that layout and ``nested_at`` its beginning, in seconds since 1970 and only as a label; else both are
    None. ``epoch`` is a number that every start of a manager raises, by a random step; at first it is 0.
    """

    uuid: str
    name: str
    machine_id: str
    boot_id: str | None = None
    nested_version: int | None = None
    nested_at: int | None = None
    epoch: int = 0

    @property
    def identity(self) -> tuple[str, str, str]:
        """The fields that tell this host from every other."""
        return self.uuid, self.name, self.machine_id

    @property
    def machine(self) -> str:
        """The digest of the machine's id, also after the host has moved to another store."""
        return self.machine_id.partition(' ')[0]

    @property
    def moved_to(self) -> str | None:
        """The name, maybe cut, of the store to which the host moves or has moved; None if it is still in this one."""
        return self.machine_id.partition(' to ')[2] or None


class Update(NamedTuple):
    """A row as it was read, and the row that replaces it: same host, kind and identifier, a later generation."""

    before: Record
    after: Record


class StoredContext(NamedTuple):
    """The migration context of an instance that moves from or to a host.

    ``context`` is JSON text, the primitive of a ``MigrationContext``; the store does not look into it. It and
    ``migration_uuid`` are None in a change that removes the context, once the move has ended.
    """

    host_uuid: str
    instance_uuid: str
    migration_uuid: str | None
    context: str | None


class Changes(NamedTuple):
    """What one transaction does to one host's rows: all of it or nothing.

    ``contexts`` go with rows, never alone: when an answer is lost, only the rows show the outcome of the transaction.
    The events of the rows are written in the same transaction (``devicetrack.store.history``). ``note`` has the facts
    of the events that the rows do not have.
    """

    insert: tuple[Record, ...] = ()
    update: tuple[Update, ...] = ()
    delete: tuple[Record, ...] = ()
    contexts: tuple[StoredContext, ...] = ()
    note: Note = NO_NOTE

    @property
    def rows(self) -> tuple[Record, ...]:
        """Every row that the transaction touches: inserted ones, and the others as they were read."""
        return (*self.insert, *(update.before for update in self.update), *self.delete)

    @property
    def keys(self) -> tuple[DeviceKey, ...]:
        """Every device that the transaction touches."""
        return tuple(record.key for record in self.rows)


class OperatorRequest(NamedTuple):
    """A request of a command to the manager of a host, and the answer once there is one.

    ``arguments`` and ``answer`` are JSON text, the times are seconds since the epoch.
    """

    uuid: str
    host_uuid: str
    verb: str
    arguments: str
    created_at: int
    answered_at: int | None = None
    answer: str | None = None


class DamagedRow(NamedTuple):
    """A row with values of other types than those of the columns, for people."""

    table: str
    key: str
    columns: str


class WithheldRow(NamedTuple):
    """A device or a parent of a host that is withheld (``scope``, ``name``).

    ``reasons`` is JSON text: the beginning, the detail and the origin of each reason. The store does not look into it.
    ``generation`` is the number of writes of the row, ``updated_at`` is in seconds since the epoch and only a label.
    """

    host_uuid: str
    kind: str
    scope: str
    name: str
    reasons: str
    generation: int
    updated_at: int


class StoredDeclaration(NamedTuple):
    """The declaration of a host about its devices of one type at one parent, for live migrations of guests with them.

    ``parent`` is '' for devices without one. ``document`` is JSON text; the store does not look into it.
    """

    host_uuid: str
    kind: str
    parent: str
    type: str
    document: str


class Tally(NamedTuple):
    """How many rows a host has: the instances and devices of assignments, the withheld, and the waiting requests."""

    instances: int = 0
    held: int = 0
    releasing: int = 0
    withheld: int = 0
    requests: int = 0


class StoredEvent(NamedTuple):
    """An event with its number: events of a store are numbered in the order in which they were written."""

    number: int
    event: Event


class Store(abc.ABC):
    """Keeps assignments durably. Every method may block, so never call one under the ledger's lock.

    A method raises StoreUnavailable if the store is gone, read-only, full or locked: then nothing was written. One that
    writes raises OutcomeUnknown if the commit was sent and not answered: it may have been written. Such a call may be
    repeated, unless the method says otherwise.
    """

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The store for messages: its kind and place, never a user name or a password."""

    @abc.abstractmethod
    def check(self) -> None:
        """Check that this release can use the store.

        :raises SchemaMismatch: its schema is missing, older or newer, or it is not a store of devicetrack
        :raises StoreUnavailable: it cannot be reached or written
        """

    @abc.abstractmethod
    def host(self, name: str) -> Host | None:
        """The host of this name, or None."""

    @abc.abstractmethod
    def hosts(self) -> list[Host]:
        """Every host, by name."""

    @abc.abstractmethod
    def tallies(self, host_uuids: Sequence[str]) -> dict[str, Tally]:
        """Count the rows of some hosts; each has a tally. The number of queries does not depend on that of hosts."""

    @abc.abstractmethod
    def add_host(self, host: Host) -> None:
        """Record a new host.

        :raises InvalidConfiguration: its name begins or ends with a blank; nothing was written
        :raises HostIdentityChanged: another machine took the name meanwhile
        """

    @abc.abstractmethod
    def set_boot_id(self, host_uuid: str, boot_id: str) -> None:
        """Record the boot for which a host's manager has prepared the devices.

        :raises UnknownHost: the store has no such host
        """

    @abc.abstractmethod
    def set_nested(self, host_uuid: str, version: int | None, at: int | None) -> None:
        """Record since when a host's devices are at nested providers in placement.

        None and None mean that they are at the node again.

        :raises UnknownHost: the store has no such host
        """

    @abc.abstractmethod
    def take_epoch(self, host_uuid: str, own: set[int] | None = None) -> int:
        """Raise the epoch of a host, for a manager that starts. It waits for transactions of older epochs.

        A later read sees everything that older managers have written, and they write nothing more. The step is random:
        no epoch comes a second time, even if the store was restored from a backup or made anew in between.

        :param own: the epochs that the caller took before, or may have taken. This call adds the new one before it is
            committed, so it is there whatever ends the call. If there are any, the epoch is raised only from one of
            them
        :returns: the epoch, for :meth:`at_epoch`
        :raises HostTakenOver: the host has an epoch of another manager, not one of ``own``; it was not raised
        :raises UnknownHost: the store has no such host
        :raises OutcomeUnknown: it may have been raised; call again for another one
        """

    @abc.abstractmethod
    def at_epoch(self, host: Host, own: set[int] | None = None) -> Store:
        """The same store for a manager of ``host`` that took the epoch in it.

        Once another manager took a later epoch, every call that writes for the host raises HostTakenOver, in its own
        transaction. Commands call ``add_host``, ``replace_host`` and ``add_operator_request``, and these are never
        refused.

        :param own: epochs as :meth:`take_epoch` adds them. The store continues with the database's epoch if that is
            among them, and raises HostTakenOver only for one that never was
        """

    @abc.abstractmethod
    def check_epoch(self) -> None:
        """Check that no other manager took a later epoch than the one of :meth:`at_epoch`. One query.

        :raises HostTakenOver: another manager did
        """

    @property
    @abc.abstractmethod
    def is_taken_over(self) -> bool:
        """Whether any call has raised HostTakenOver. No query."""

    @abc.abstractmethod
    def replace_host(self, before: Host, after: Host | None) -> None:
        """Replace a host without rows by another one, or delete it with None.

        The old host's migration contexts, operator requests and declarations are deleted. What is withheld there stays
        withheld, since it may be the same machine; that, the leftovers and the events pass to the new host, and are
        deleted if there is none. The old host's manager must not run: its later records would belong to no host.

        :raises HostHoldsDevices: it has rows; nothing was written
        :raises HostIdentityChanged: the store has neither of the two, or its host of this name is another one now;
            nothing was written
        """

    # The rows of a host, of an instance and of devices have a call each. A value that is missing by mistake finds
    # nothing. If one call had optional filters, a filter that is left out would find every row.

    @abc.abstractmethod
    def records(self) -> list[Record]:
        """Every row of every host, ordered by instance and position. One query."""

    @abc.abstractmethod
    def records_of_host(self, host_uuid: str) -> Sequence[Record]:
        """The rows of a host, ordered by instance and position. One query."""

    @abc.abstractmethod
    def records_of_hosts(self, host_uuids: Sequence[str]) -> Sequence[Record]:
        """The rows of some hosts, in the same order. One query."""

    @abc.abstractmethod
    def records_of_instance(self, host_uuid: str, instance_uuid: str) -> list[Record]:
        """The rows of an instance on a host, ordered by position. One query."""

    @abc.abstractmethod
    def records_everywhere(self, instance_uuid: str) -> list[Record]:
        """The rows of an instance on every host, ordered by position. One query."""

    @abc.abstractmethod
    def records_of_devices(self, host_uuid: str, keys: Iterable[DeviceKey]) -> list[Record]:
        """The rows of some devices of a host, ordered by instance and position. One query."""

    @abc.abstractmethod
    def records_named(self, identifier: str, host_uuid: str | None = None) -> list[Record]:
        """The rows of the devices of this identifier, of any kind, ordered by instance and position. One query.

        :param host_uuid: only on this host; None means any
        """

    @abc.abstractmethod
    def is_named(self, name: str, kind: str | None = None, host_uuid: str | None = None) -> bool:
        """Whether this device or parent is in a row or is withheld. At most two queries.

        :param kind: only of this kind; None means any
        :param host_uuid: only on this host; None means any
        """

    @abc.abstractmethod
    def contexts(self, host_uuid: str) -> list[StoredContext]:
        """The migration contexts on a host, ordered by instance. One query."""

    @abc.abstractmethod
    def context(self, host_uuid: str, instance_uuid: str) -> StoredContext | None:
        """The migration context of an instance on a host; None when it does not move. One query."""

    @abc.abstractmethod
    def write(self, changes: Changes) -> None:
        """Carry out one transaction. Blocks for one commit.

        An updated or deleted row must still have the generation and the claim with which it was read. A context
        replaces the one that its instance has on its host.

        :raises HostTakenOver: another manager took a later epoch; nothing was written
        :raises DeviceTaken: an inserted device has a row; nothing was written
        :raises StaleAssignment: a row changed or is gone; nothing was written
        :raises OutcomeUnknown: the commit was sent and not answered; call :meth:`settle`
        """

    @abc.abstractmethod
    def settle(self, changes: Changes) -> bool:
        """Find out the outcome of a commit whose answer was lost.

        It waits for the lost transaction to end, wherever that still runs. Then the rows show the outcome.

        :returns: True if the changes happened, False if they did not and cannot happen later
        :raises StoreUnavailable: the answer is not known yet: the store cannot be reached, or the lost transaction is
            still open; call again
        """

    @abc.abstractmethod
    def add_operator_request(self, request: OperatorRequest) -> None:
        """Store an operator request for the manager of a host. May be repeated; the request is stored once.

        The store keeps only the newest of a host's answered requests.

        :raises ValueError: another request has this UUID; nothing was written
        """

    @abc.abstractmethod
    def operator_request(self, uuid: str) -> OperatorRequest | None:
        """The operator request of this UUID, or None. One query."""

    @abc.abstractmethod
    def operator_requests(self, waiting: bool = False) -> list[OperatorRequest]:
        """The operator requests of all hosts, the oldest first.

        :param waiting: only those without an answer
        """

    @abc.abstractmethod
    def operator_requests_of_host(self, host_uuid: str, waiting: bool = False) -> list[OperatorRequest]:
        """The operator requests of a host, as :meth:`operator_requests`."""

    @abc.abstractmethod
    def answer_operator_request(self, uuid: str, answered_at: int, answer: str) -> bool:
        """Answer an operator request. The first answer stays; a second one changes nothing.

        :returns: False when the request has an answer already, or is gone
        """

    @abc.abstractmethod
    def withheld(self, host_uuid: str) -> list[WithheldRow]:
        """The devices and parents that are withheld on a host, ordered by kind, scope and name. One query."""

    @abc.abstractmethod
    def withheld_of_hosts(self, host_uuids: Sequence[str], scopes: Sequence[str]) -> list[WithheldRow]:
        """What is withheld on some hosts, of these scopes, in any order. One query."""

    @abc.abstractmethod
    def set_withheld(self, write: Sequence[WithheldRow], delete: Sequence[WithheldRow] = (),
                     events: Sequence[Event] = ()) -> None:
        """Write and delete rows of withheld devices and parents of a host, and add events, in one transaction.

        A row replaces the one of its kind, scope and name. The rows to delete may be of another host, for a machine
        that has a new name. A repeated call leaves the rows right, and adds the events a second time. Only the host's
        manager calls this, or a command that holds the host's lock instead.
        """

    @abc.abstractmethod
    def declarations(self) -> list[StoredDeclaration]:
        """The declarations of all hosts, ordered by host, kind, parent and type. One query."""

    @abc.abstractmethod
    def declarations_of_host(self, host_uuid: str) -> list[StoredDeclaration]:
        """The declarations of a host, ordered by kind, parent and type. One query."""

    @abc.abstractmethod
    def set_declarations(self, host_uuid: str, declarations: Sequence[StoredDeclaration]) -> None:
        """Replace all declarations of a host by these, in one transaction."""

    @abc.abstractmethod
    def damaged(self, host_uuid: str) -> list[DamagedRow]:
        """The rows of a host in which a value has a wrong type. Assignments and events are not checked.

        Such a row is read with stand-ins; a damaged assignment has the generation -1.
        """

    @abc.abstractmethod
    def leftovers(self, host_uuid: str) -> list[Leftover]:
        """The confirms and reverts of a host that have yet to reach placement, ordered by migration. One query."""

    @abc.abstractmethod
    def add_leftover(self, host_uuid: str, leftover: Leftover) -> None:
        """Store a leftover until it is removed. It replaces an earlier one of the same migration."""

    @abc.abstractmethod
    def remove_leftover(self, host_uuid: str, leftover: Leftover) -> None:
        """Delete a leftover, if it is there."""

    # write() writes the events of rows, set_withheld() those of withheld devices and parents. Nobody changes an event.

    @abc.abstractmethod
    def events_of_device(self, identifier: str, since_ms: int | None = None, until_ms: int | None = None,
                         host_uuid: str | None = None) -> list[StoredEvent]:
        """The events of the devices and parents of this name, of any kind, and of the devices of these parents.

        The oldest event comes first.

        :param since_ms: only those at this time or later, in milliseconds since 1970
        :param until_ms: only those before this time
        :param host_uuid: only those on this host. Without it the store may read the events of all hosts
        """

    @abc.abstractmethod
    def events_of_serial(self, serial: str, since_ms: int | None = None, until_ms: int | None = None,
                         host_uuid: str | None = None) -> list[StoredEvent]:
        """The events of the devices whose card has this serial number, and of a namespace with this UUID.

        The order, the times and the host are as for :meth:`events_of_device`.
        """

    @abc.abstractmethod
    def events_of_instance(self, instance_uuid: str, since_ms: int | None = None,
                           until_ms: int | None = None) -> list[StoredEvent]:
        """The events of an instance on every host, the oldest first. The times are as for :meth:`events_of_device`."""

    @abc.abstractmethod
    def latest_events(self, host_uuid: str, limit: int) -> list[StoredEvent]:
        """The events of a host that were written last, at most ``limit``, the newest first."""

    @abc.abstractmethod
    def events_after(self, host_uuid: str, number: int, limit: int) -> list[StoredEvent]:
        """The events of a host with greater numbers than ``number``, at most ``limit``, in the order of their numbers.

        On a database that hosts share, an event of a transaction that takes long may come after those with greater
        numbers.
        """

    @abc.abstractmethod
    def count_events(self, host_uuid: str, after: int, limit: int) -> tuple[int, int]:
        """Count the events of a host with greater numbers than ``after``, in the order of their numbers.

        It reads at most ``limit`` events. A store that can count without reading may count more.

        :returns: how many there are, and the number of the last one; ``after`` when there are none
        """

    @abc.abstractmethod
    def trim_events(self, host_uuid: str, before_ms: int, surplus: int, limit: int) -> int:
        """Delete the oldest events of a host: those before a time, and the ``surplus`` oldest.

        One transaction, which deletes at most ``limit``.

        :param surplus: how many of the oldest events are deleted, whatever their age
        :returns: how many were deleted
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Close every connection. The store may be used again: it opens new ones."""
