"""What a compute service gives its :class:`~devicetrack.service.lifecycle.Lifecycle`."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from typing import Any
from typing import Protocol

from devicetrack.objects.values import GuestConfig
from devicetrack.objects.values import MigrationDefinitions


class Instances(Protocol):
    """The documents of the instances, in the service's database, which all hosts share.

    A document is an opaque text, one for each instance, which the library needs after a crash. The service stores it
    beside its own instance. Every method may raise an error of its own; then the operation continues at the next audit.
    """

    def document(self, instance_uuid: str) -> str | None:
        """Return the document that was saved last, on any host. None if none was."""

    def documents(self, host: str) -> Mapping[str, str]:
        """Return, by instance UUID, every document whose last save had this host among its ``hosts``.

        More than these do no harm.
        """

    def save(self, instance_uuid: str, document: str, replaces: str | None, hosts: Collection[str]) -> bool:
        """Save a document durably, if ``replaces`` is what was saved last; None means that none was. Atomic.

        In SQL this is ``UPDATE … SET document = ? WHERE uuid = ? AND document = ?``, and an ``INSERT`` for None.

        :param hosts: the hosts that have work with this instance, for :meth:`documents`. When there are none, the
            instance is deleted everywhere, and the service may remove the document
        :returns: whether it was saved. False if another host was faster: then this one looks again
        """

    def ask(self, host: str, instance_uuid: str) -> None:
        """Have the service of another host call ``go_on(instance_uuid)``, and wait for its end.

        :raises Exception: the host does not answer, or its call raised an error
        """


class Guests(Protocol):
    """The guests of this host, by the UUIDs of their instances. Every call may come again after a crash."""

    def start(self, instance_uuid: str, flavor: Mapping[str, Any], config: GuestConfig) -> None:
        """Define the guest, in place of an earlier definition, and start it.

        :param config: ``devices`` and ``metadata`` go into the definition
        """

    def stop(self, instance_uuid: str) -> None:
        """Turn the guest off; its definition stays. Do nothing if the guest is off or gone."""

    def delete(self, instance_uuid: str) -> None:
        """Turn the guest off and undefine it, also one that waits for its live migration. Do nothing if it is gone."""

    def migrate(self, instance_uuid: str, host: str, definitions: MigrationDefinitions) -> None:
        """Migrate the running guest to another host, with these definitions, and wait for the end.

        After an error the library asks the hypervisors of both hosts where the guest is.
        """

    def is_migrating(self, instance_uuid: str) -> bool:
        """Say whether a live migration of the guest from here is running, perhaps one that an earlier process began."""
