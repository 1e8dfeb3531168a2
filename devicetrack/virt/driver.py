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
from devicetrack.objects.values import Candidate
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestConfig
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import Realized
from devicetrack.objects.values import Usage


class VirtDriver(abc.ABC):
    """One hypervisor on one host.

    :param host: the host's name, for messages
    :param conf: the configuration (an ``oslo_config.cfg.ConfigOpts``); the driver registers what it needs
    :param state_path: a directory for lock files of the devices, which exists
    :raises InvalidConfiguration: an option cannot be used
    """

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
    def guest_config(self, assignments: Sequence[DeviceAssignment], flavor: str | None = None) -> GuestConfig:
        """What the guest's definition needs: its devices in the order of the assignments, with the paths of this boot.

        :param flavor: the name of the instance's flavor, for the metadata, where it is known
        :raises DeviceGone: a device is not there or is another one of its name
        """

    def close(self) -> None:
        """Let go of connections. The driver may be used again."""
