"""Events: what happened to a device or a claim, and who did it. The store keeps them when the rows are gone."""

from __future__ import annotations

from collections.abc import Mapping
import json
from typing import Any
from typing import Final
from typing import NamedTuple

from devicetrack.objects.values import DeviceKey

# Events of ownership. Each is about one device and one instance.
CLAIMED: Final = 'claimed'          # the instance holds the device
RECOVERED: Final = 'recovered'      # the row was made for a guest that had the device already
REALIZED: Final = 'realized'        # the device was made ready for the guest, or has new details
STARTED: Final = 'started'          # the guest runs on it
LEAVING: Final = 'leaving'          # a migration takes the instance away from it
STAYED: Final = 'stayed'            # that migration was undone
MOVED: Final = 'moved'              # a migration brought the guest to it, and the guest runs on it
RELEASED: Final = 'released'        # the instance gave it up; it is not free yet
WIPED: Final = 'wiped'              # it was wiped after that, and its row is gone
FREED: Final = 'freed'              # its row is gone; it did not have to be wiped
FORGOTTEN: Final = 'forgotten'      # an operator ended its row or gave it to another owner; nobody took the device back
# After an event in OWNING the device has an owner, and after one in ENDS_OWNING it has none.
OWNING: Final = (CLAIMED, RECOVERED, REALIZED, STARTED, LEAVING, STAYED, MOVED, RELEASED)
ENDS_OWNING: Final = (WIPED, FREED, FORGOTTEN)
# Events of condition. If one is about a parent, ``identifier`` has the parent's name.
WITHHELD: Final = 'withheld'
RETIRED: Final = 'retired'
ADMITTED: Final = 'admitted'
# An event of no device: a claim was refused. Its kind and identifier are ''.
REFUSED: Final = 'refused'
EVENTS: Final = (*OWNING, *ENDS_OWNING, WITHHELD, RETIRED, ADMITTED, REFUSED)

# Longer ids are cut: those of compute services have 40 characters.
REQUEST_ID_LENGTH: Final = 64


class Event(NamedTuple):
    """One change of the ownership or the condition of a device, or refused claims. Nobody changes it afterwards.

    ``event`` is one of ``EVENTS``. ``at_ms`` is the time by the clock of the host, in milliseconds since 1970
    (UTC): a label that only the trimming of the history uses. ``instance_uuid``, ``migration_uuid`` and ``claim_id``
    are None where there is none. ``request_id`` is that of the service's context; None for what the manager did by
    itself. ``details`` is a JSON object with the facts that only this sort of event has (:attr:`more`), or None.
    ``parent`` is the parent that the device's row names; None for a device without one, and for events that are about
    no row. ``serial`` is the serial number of the device's card, or the UUID of a namespace, as the row or the host
    told it then; None if nobody knew it, and in events of releases that did not write it.
    """

    host_uuid: str
    kind: str
    identifier: str
    event: str
    at_ms: int
    instance_uuid: str | None = None
    migration_uuid: str | None = None
    claim_id: str | None = None
    request_id: str | None = None
    details: str | None = None
    parent: str | None = None
    serial: str | None = None

    @property
    def device_key(self) -> DeviceKey:
        """The device, or the parent that has this name."""
        return DeviceKey(self.kind, self.identifier)

    @property
    def more(self) -> dict[str, Any]:
        """The facts that only this sort of event has; {} if there are none or they cannot be read.

        ``claimed``, ``leaving``, ``moved``: ``from``, ``to``, names of hosts. ``claimed``, ``recovered``:
        ``instance_name``, if the row has it. ``wiped``: ``bytes`` (None when nobody knows), ``seconds``, ``proof``.
        ``withheld``, ``retired``, ``admitted``: ``reason``, ``why``, ``by``; ``scope`` for a parent; ``proof`` where
        that ended a reason. ``refused``: ``reason``, the class of the error, and ``why``, its text; ``wanted``, the
        request; ``call``; ``by`` if the service's context has a user or a project; ``count`` and ``first_ms``, how many
        equal refusals it is about and when the first of them was: ``at_ms`` is the last.
        """
        try:
            found = json.loads(self.details or '{}')
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


class Wiped(NamedTuple):
    """A wipe that was proven: how much it covered, how long it took, and what its proof is.

    ``size_bytes`` is None for a device whose size nobody knows. ``proof`` says how the proof was seen.
    """

    size_bytes: int | None
    seconds: float
    proof: str

    def as_details(self) -> str:
        """The stored text."""
        return text(bytes=self.size_bytes, seconds=round(self.seconds, 3), proof=self.proof)


class Note(NamedTuple):
    """What the events of a transaction say beyond its rows.

    ``request_id`` is that of the service's context. ``ends`` are the names of a migration's source and destination,
    with None for an unknown one. ``wiped`` has the wipes of the devices whose rows end. ``forgotten`` says that the
    rows end although nobody took the devices back.
    """

    request_id: str | None = None
    ends: tuple[str | None, str | None] | None = None
    wiped: Mapping[DeviceKey, Wiped] | None = None
    forgotten: bool = False


NO_NOTE: Final = Note()


def text(**more: Any) -> str:
    """The stored text of the facts that only one event has."""
    return json.dumps(more, sort_keys=True)
