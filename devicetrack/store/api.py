"""The interface of a store: rows in, rows out, one transaction a call.

A store is used by many threads at once. It keeps no cache: what it answers was read in the call.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple

from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Leftover
from devicetrack.objects.values import Record


class Host(NamedTuple):
    """One host as the store knows it.

    ``machine_id`` is a digest, never the machine id itself. ``boot_id`` is of the boot in which a manager of this host
    last set it; None when none did. ``nested_version`` and ``nested_at`` are None unless the host's devices are counted
    at providers of their own: the version of how they are, and since when, in seconds since the epoch and only a label.
    """

    uuid: str
    name: str
    machine_id: str
    boot_id: str | None = None
    nested_version: int | None = None
    nested_at: int | None = None

    @property
    def identity(self) -> tuple[str, str, str]:
        """What stays the same for as long as it is this host."""
        return self.uuid, self.name, self.machine_id


class Update(NamedTuple):
    """One row as it was read and as it shall be: same host, kind and identifier, one generation on."""

    before: Record
    after: Record


class StoredContext(NamedTuple):
    """The migration context of an instance that moves from or to a host.

    ``context`` is JSON text, the primitive of a ``MigrationContext``; the store does not look into it.
    """

    host_uuid: str
    instance_uuid: str
    migration_uuid: str
    context: str


class ContextChange(NamedTuple):
    """What takes the place of an instance's migration context on a host: another one, or None for "nothing moves"."""

    host_uuid: str
    instance_uuid: str
    migration_uuid: str | None
    context: str | None


class Changes(NamedTuple):
    """What one transaction does to one host's rows: all of it or nothing.

    ``contexts`` go with rows, never alone: when an answer is lost, the rows tell what became of the transaction, and a
    context could not.
    """

    insert: tuple[Record, ...] = ()
    update: tuple[Update, ...] = ()
    delete: tuple[Record, ...] = ()
    contexts: tuple[ContextChange, ...] = ()

    @property
    def keys(self) -> tuple[DeviceKey, ...]:
        """Every device that the transaction touches."""
        return tuple(record.key for record in
                     (*self.insert, *(update.before for update in self.update), *self.delete))

    def check_contexts(self) -> None:
        """See that contexts come with rows, and each with its migration.

        :raises ValueError: they do not; this is a mistake of the caller
        """
        if self.contexts and not (self.insert or self.update or self.delete):
            raise ValueError('a migration context is written together with rows of its instance, never alone')
        for change in self.contexts:
            if (change.context is None) != (change.migration_uuid is None):
                raise ValueError(f'instance {change.instance_uuid}: a context has a migration, and no context has none')


class Order(NamedTuple):
    """What a command asks of the manager of a host, and the answer once there is one.

    ``arguments`` and ``answer`` are JSON text, the times are seconds since the epoch.
    """

    uuid: str
    host_uuid: str
    verb: str
    arguments: str
    created_at: int
    answered_at: int | None = None
    answer: str | None = None


class WithheldRow(NamedTuple):
    """A device or a parent of a host that is withheld (``scope``, ``name``).

    ``reasons`` is JSON text, by reason since when, why and by whose word; the store does not look into it.
    ``generation`` counts the writes of the row, ``updated_at`` is in seconds since the epoch and only a label.
    """

    host_uuid: str
    kind: str
    scope: str
    name: str
    reasons: str
    generation: int
    updated_at: int


class StoredDeclaration(NamedTuple):
    """What a host declares of the devices of one type at one parent, for guests that move with one while they run.

    ``parent`` is '' for devices without one. ``document`` is JSON text; the store does not look into it.
    """

    host_uuid: str
    kind: str
    parent: str
    type: str
    document: str


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
    def set_boot_id(self, host_uuid: str, boot_id: str) -> None:
        """Record the boot for which a host's manager has seen to its devices. May be repeated.

        :raises UnknownHost: the store has no such host
        :raises StoreUnavailable: nothing was written
        :raises OutcomeUnknown: it may have been written; call again
        """

    @abc.abstractmethod
    def set_nested(self, host_uuid: str, version: int | None, at: int | None) -> None:
        """Record that a host's devices are counted at providers of their own, and since when. May be repeated.

        None and None say that they are counted at the node again.

        :raises UnknownHost: the store has no such host
        :raises StoreUnavailable: nothing was written
        :raises OutcomeUnknown: it may have been written; call again
        """

    @abc.abstractmethod
    def replace_host(self, before: Host, after: Host) -> None:
        """Put another machine in the place of one that holds nothing. May be repeated.

        The migration contexts and the orders of the one that goes, if there are any left, go with it. What is withheld
        there stays withheld: it may be the same machine. Its leftovers are the new one's. What it declares goes too:
        the next start declares it anew. Its manager must not run: what it recorded after this would belong to no host.

        :raises HostHoldsDevices: it has rows; nothing was written
        :raises HostIdentityChanged: the store knows the host as neither of the two; nothing was written
        :raises StoreUnavailable: nothing was written
        :raises OutcomeUnknown: it may have happened; call again
        """

    @abc.abstractmethod
    def records(self, host_uuid: str | None = None, instance_uuid: str | None = None,
                keys: Iterable[DeviceKey] | None = None) -> list[Record]:
        """The rows that match all that is given, by instance and then position. One query.

        :param keys: at most some hundreds
        """

    @abc.abstractmethod
    def contexts(self, host_uuid: str, instance_uuid: str | None = None) -> list[StoredContext]:
        """The migration contexts on a host, by instance. One query; what is not listed does not move."""

    @abc.abstractmethod
    def write(self, changes: Changes) -> None:
        """Carry out one transaction. Blocks for one commit.

        Updates and deletes count only on rows that still have the generation and claim of their ``before``. A context
        takes the place of whatever its instance has on its host.

        :raises ValueError: contexts without rows, or without their migration; nothing was written
        :raises DeviceTaken: an inserted device has a row; nothing was written
        :raises StaleAssignment: a row moved on or is gone; nothing was written
        :raises StoreUnavailable: the store is gone, read-only, full or locked; nothing was written
        :raises OutcomeUnknown: the commit was sent and not answered; ask :meth:`settle`
        """

    @abc.abstractmethod
    def settle(self, changes: Changes) -> bool:
        """Find out what became of a commit whose answer was lost.

        Writes the same keys in a transaction that is then undone. That waits for the lost one, wherever it still
        runs: a read would see the time before it and prove nothing. The rows decide: contexts are only ever written
        together with them, in one transaction, so what the rows say holds for the contexts too.

        :returns: True when the changes happened, False when they did not and cannot any more
        :raises StoreUnavailable: no answer yet (not reachable, or the lost transaction is still open); ask again
        """

    @abc.abstractmethod
    def add_order(self, order: Order) -> None:
        """Leave an order for the manager of a host. The same order may be added again; it is added once.

        Of a host's answered orders only the newest are kept.

        :raises ValueError: another order has this UUID; nothing was written
        :raises StoreUnavailable: nothing was written
        :raises OutcomeUnknown: it may have been written; call again
        """

    @abc.abstractmethod
    def orders(self, host_uuid: str | None = None, waiting: bool = False) -> list[Order]:
        """Orders, in the order in which they were added.

        :param host_uuid: of this host; None means of all
        :param waiting: only those that have no answer yet
        """

    @abc.abstractmethod
    def answer_order(self, uuid: str, answered_at: int, answer: str) -> bool:
        """Answer an order. The first answer stays; a second one changes nothing.

        :returns: False when it has an answer already, or is gone
        :raises StoreUnavailable: nothing was written
        :raises OutcomeUnknown: it may have been written; call again
        """

    @abc.abstractmethod
    def withheld(self, host_uuid: str) -> list[WithheldRow]:
        """What is withheld on a host, by kind, scope and name. One query."""

    @abc.abstractmethod
    def set_withheld(self, write: Sequence[WithheldRow], delete: Sequence[WithheldRow] = ()) -> None:
        """Write and delete rows of what is withheld on a host, in one transaction. May be repeated.

        A row takes the place of whatever there is of its kind, scope and name. For the host's manager alone, and for
        who stands in for it.

        :raises StoreUnavailable: nothing was written
        :raises OutcomeUnknown: it may have been written; call again
        """

    @abc.abstractmethod
    def declarations(self, host_uuid: str | None = None) -> list[StoredDeclaration]:
        """What hosts declare, by host, kind, parent and type. One query.

        :param host_uuid: what this host declares; None means every one
        """

    @abc.abstractmethod
    def set_declarations(self, host_uuid: str, declarations: Sequence[StoredDeclaration]) -> None:
        """Put these in the place of all that a host declares, in one transaction. May be repeated.

        :raises ValueError: one of them is of another host; nothing was written
        :raises StoreUnavailable: nothing was written
        :raises OutcomeUnknown: it may have been written; call again
        """

    @abc.abstractmethod
    def leftovers(self, host_uuid: str) -> list[Leftover]:
        """What a host's confirms of moves have yet to remove from placement, by migration. One query."""

    @abc.abstractmethod
    def add_leftover(self, host_uuid: str, leftover: Leftover) -> None:
        """Keep a leftover until it is removed. May be repeated; it is kept once.

        :raises StoreUnavailable: nothing was written
        :raises OutcomeUnknown: it may have been written; call again
        """

    @abc.abstractmethod
    def remove_leftover(self, host_uuid: str, leftover: Leftover) -> None:
        """Forget a leftover, if it is there. May be repeated.

        :raises StoreUnavailable: nothing was written
        :raises OutcomeUnknown: it may have been written; call again
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Close every connection. The store may be used again: it opens new ones."""
