"""The interface of a virt driver: what the claim manager asks of a hypervisor and its host.

Every method may block and none is called under the ledger's lock. A driver keeps no record of owners: it says what
the world looks like and changes it when told. The suite in :mod:`devicetrack.tests.drivers` is the contract in
executable form; every driver passes it.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
import uuid

from devicetrack.exception import DriverError
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import DeviceMap
from devicetrack.objects.values import Candidate
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestConfig
from devicetrack.objects.values import GuestRecord
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import MigrationDefinitions
from devicetrack.objects.values import MigrationType
from devicetrack.objects.values import Realized
from devicetrack.objects.values import Usage


class VirtDriver(abc.ABC):
    """One hypervisor on one host.

    :param host: the host's name, for messages
    :param conf: the configuration (an ``oslo_config.cfg.ConfigOpts``); the driver registers what it needs
    :param state_path: a directory for lock files of the devices, which exists
    :raises InvalidConfiguration: an option cannot be used
    """

    takes_connection = False
    """Whether the constructor has an argument ``connect``, with which a service opens the driver's connection."""

    def __init__(self, host: str, conf: Any, state_path: str) -> None:
        self.host, self.conf, self.state_path = host, conf, state_path

    @abc.abstractmethod
    def boot_id(self) -> str:
        """What names this boot of the host; paths of another boot mean nothing."""

    def resource_classes(self) -> frozenset[str]:
        """The resource classes that the driver's options count devices as, whether or not any is there now.

        A claim for one of these is never taken for somebody else's business because its devices cannot be read.
        """
        return frozenset()

    @abc.abstractmethod
    def get_inventory(self) -> Inventory:
        """Read what the host has now: devices that exist and what its parents can still make.

        A part that cannot be read is in ``unknown`` and its kind not in ``known_kinds``; the rest is answered.

        :raises HypervisorUnreachable: no part could be read
        """

    @abc.abstractmethod
    def get_usage(self) -> Usage:
        """Ask the hypervisor which domain names which device.

        That is running and defined domains, live and inactive definitions. A document that cannot be read is in
        ``unknown``.

        The live definition of a guest is read by its addresses. So is an inactive one, unless its record says that
        it was written in another boot of the host: an address that is valid for one boot only means nothing then, and
        the record's identifiers count, in their order. An inactive definition of another boot whose record does not
        fit its elements is in ``unknown``.

        :raises HypervisorUnreachable: no answer; nobody may conclude that anything is unused
        """

    def claim_for_instance(self, instance_uuid: str, request: Any,
                           candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """Turn candidates into what is assigned: name what will be created. Quick and without I/O.

        :param request: the demand that the candidates were chosen for
        :param candidates: in the order of the guest; ``identifier`` is None for a device that is to be created
        :returns: the same candidates in the same order, each with an identifier
        """
        return [candidate if candidate.identifier is not None else candidate._replace(identifier=str(uuid.uuid4()))
                for candidate in candidates]

    @abc.abstractmethod
    def realize(self, assignment: DeviceAssignment) -> Realized:
        """Make one device ready for its guest: create, define and start it, or see that it is there.

        Idempotent, and exclusive with :meth:`unclaim` of the same device in any process of this host.

        :raises ParentFull: the parent can make no more; nothing is left behind
        :raises DeviceGone: the device is not there or is another one of its name
        :raises DeviceBusy: another process works on it
        :raises RealizeFailed: anything else about this device; what it did is undone, or is found by the next call
        :raises HypervisorUnreachable: no answer; the device may be half made, and the next call or unclaim ends it
        """

    @abc.abstractmethod
    def unclaim(self, assignments: Sequence[DeviceAssignment]) -> Mapping[DeviceKey, DriverError | None]:
        """Take devices back.

        See that no domain names them, unrealize or wipe them, prove that they are clean or gone.

        Idempotent: what is done already is seen and not done again, except that a wipe which was not proven is
        repeated. The hypervisor is asked once for all devices, after their lock files are held.

        :returns: for every device None, when it may be given to somebody else, or the error that keeps it held:
            :class:`DeviceInUse` (a domain names it; nothing was changed), :class:`DeviceBusy` (another process
            works on it; nothing was changed), :class:`DeviceGone` (it is not there or is another one of its name;
            nothing was changed, and nothing proves what became of its bytes) or :class:`UnclaimFailed` (not
            removed, not wiped, or nothing proves it)
        :raises HypervisorUnreachable: nobody said that the devices are unused; nothing was changed
        """

    @abc.abstractmethod
    def guest_config(self, assignments: Sequence[DeviceAssignment], flavor: str | None = None,
                     beside: Sequence[DeviceAssignment] = ()) -> GuestConfig:
        """What the guest's definition needs: its devices in the order of the assignments, with the paths of this boot.

        :param flavor: the name of the instance's flavor, for the metadata, where it is known
        :param beside: what else the instance has on this host and the guest does not use now. The metadata records
            it, so that a lost store can be rebuilt; there is no element for it
        :raises DeviceGone: a device among ``assignments`` is not there or is another one of its name
        """

    # -- guests that are there ----------------------------------------------------------------------------------------

    @abc.abstractmethod
    def guest_records(self) -> Sequence[GuestRecord]:
        """What guests' definitions record of their own devices: the live one of a running guest, else the inactive one.

        A record that cannot be read, or that speaks of another instance than its domain, is left out and a warning is
        logged. Records are for writing a lost store anew; the audit compares rows with usage, not with these.

        :raises HypervisorUnreachable: no answer
        """

    @abc.abstractmethod
    def destroy_guest(self, domain_uuid: str) -> None:
        """Stop a guest at once and remove every definition of it, with its firmware variables and saved state.

        A guest that is gone already is no error. The audit calls it for a guest that runs here and should not, after
        somebody said so. Its devices are as the guest left them, and free to be given back.

        :raises GuestNotRemoved: it may be off by now, and something of it is left
        :raises HypervisorUnreachable: no answer; it may be off or gone by now. Call again
        """

    @abc.abstractmethod
    def rewrite_guest(self, assignments: Sequence[DeviceAssignment], beside: Sequence[DeviceAssignment] = ()) -> bool:
        """Give an inactive definition that was written in another boot the addresses of this one.

        The definition of the assignments' instance gets new addresses, in its own order, and a new record with the
        flavor of the old one; nothing else in it changes. So does the state that a guest was saved with, if it starts
        from one. It is called after the devices are realized and before the guest starts. Idempotent.

        :param assignments: the devices that the definition has elements for, one or more
        :param beside: as for :meth:`guest_config`
        :returns: False when there is no definition, or none of another boot: nothing was changed
        :raises InvalidDocument: the definition does not say which element is which device, or has others than these;
            nothing was changed
        :raises DeviceGone: a device is not there or is another one of its name; nothing was changed
        :raises DriverError: the hypervisor refused the new definition; the old one is still there
        :raises HypervisorUnreachable: no answer; the definition is the old or the new one. Call again
        """

    def live_migration_obstacles(self) -> Mapping[str, str]:
        """By device kind, why no running guest with such a device can leave this host or come to it.

        Of a kind that is not in it nothing is known that would keep a guest from moving. By default there is none.

        :raises HypervisorUnreachable: no answer
        """
        return {}

    def can_become(self, source: str, destination: str) -> bool:
        """Whether a device of one kind can become one of another kind in a guest that moves here while it runs.

        By default no guest is shown another sort of device. No I/O.
        """
        return source == destination

    def migration_types(self) -> Sequence[MigrationType]:
        """What the host's parents say of their types, for guests that move live. By default nothing is said.

        Reads only. A type of which nothing is said may be left out.

        :raises HypervisorUnreachable: no answer
        """
        return ()

    @abc.abstractmethod
    def migration_definitions(self, device_map: DeviceMap) -> MigrationDefinitions:
        """At the source of a live migration: the guest's definitions with the destination's devices in them.

        Every device is replaced by its partner of the map and our metadata by the map's; nothing else changes. The
        texts hold secrets of the guest, and are never logged. Nothing is changed, here or there.

        :raises DomainGone: the guest does not run here
        :raises InvalidDocument: a definition has a device that the map does not have, or none for a pair of the map,
            or cannot be read
        :raises DriverError: the definitions cannot be had
        :raises HypervisorUnreachable: no answer
        """

    def close(self) -> None:
        """Let go of connections. The driver may be used again."""
