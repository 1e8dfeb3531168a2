"""Decides whether two texts of details describe one device, by the fields that their class declares as its identity.

Two devices with one name and one address may be different devices: somebody exchanged a disk, or made a namespace
again. The class says which fields tell them apart (:attr:`.details.DeviceDetails.IDENTITY`). If such a field is None,
the host cannot read it now. Then the device is uncertain, and nobody concludes anything. Some devices have an owner
although nobody could read such a field (:attr:`.details.DeviceDetails.unknown_identity`); its value may come later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from typing import Final
from typing import NamedTuple

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import details

# A part of the texts of details. The host does not know who made a device, so its inventory says that it existed.
_EXISTING_TEXT: Final = f'"origin":"{vocabulary.EXISTING}"'

Fields = Mapping[str, tuple[Any, Any]]


class DetailsComparison(NamedTuple):
    """The differences between the details of a row and those of the host, by field: recorded and found.

    ``itself`` has the fields of the identity, ``others`` the rest. ``unread`` are fields of the identity that one side
    could not read. ``learned`` are fields of the identity, among ``others``, that the row has the device without.
    ``untold`` are fields of the identity that the host has empty and that are no difference for their class, and
    ``blank`` fields that tell no device from another and that the host has empty: the row keeps its values.
    ``new`` fields are such ones that the row has empty: the next audit fills them.
    """

    itself: Fields
    unread: tuple[str, ...]
    others: Fields
    learned: tuple[str, ...] = ()
    untold: tuple[str, ...] = ()
    blank: tuple[str, ...] = ()
    new: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        """Whether both describe one device, by all that was known of it when it got its owner."""
        return not self.itself and not self.unread

    @property
    def is_certain(self) -> bool:
        """Whether both certainly describe one device."""
        return self.is_same and not self.learned and not self.untold


def compare(recorded: str, found: str) -> DetailsComparison | None:
    """Compare two texts of details, without the fields that only the row knows.

    :returns: None when one of them cannot be read
    """
    try:
        one, other = details.from_text(recorded), details.from_text(found)
    except (exception.MalformedObject, exception.UnknownObject):
        return None
    if type(one) is not type(other):
        return DetailsComparison({'type': (one.obj_name(), other.obj_name())}, (), {})
    ours, theirs = (each.obj_to_primitive()['versioned_object.data'] for each in (one, other))
    differ = [name for name in sorted(one.fields) if name not in one.OF_THE_ROW and ours.get(name) != theirs.get(name)]
    unread = tuple(sorted(name for name in one.IDENTITY or () if ours.get(name) is None or theirs.get(name) is None
                          or (name in other.unknown_identity and name in differ)))
    untold = tuple(name for name in differ if name in (one.IDENTITY or ()) and theirs.get(name) == ''
                   and one.means_same(name, ours.get(name), ''))
    blank = tuple(name for name in differ if name in one.TOLD and theirs.get(name) == '')
    new = tuple(name for name in differ if name in one.TOLD and ours.get(name) == '')
    different = {name: (ours.get(name), theirs.get(name)) for name in differ
                 if name not in {*unread, *untold, *blank, *new}}
    learned = tuple(name for name in different if name in one.unknown_identity)
    itself = {name: values for name, values in different.items() if name in one.identity_fields()
              and name not in learned and not one.means_same(name, *values)}
    others = {name: values for name, values in different.items() if name not in itself}
    return DetailsComparison(itself, unread, others, learned, untold, blank, new)


def kept(recorded: str, made: str) -> str:
    """The details of a row whose device was made ready: what the host shows now, and the recorded identity.

    A declared field of the identity changes only if nobody could read it when it was recorded, or if it is only spelled
    in another way. An empty text is no spelling of another.
    """
    compared = None if alike(recorded, made) else compare(recorded, made)
    if compared is None or (compared.is_same and not compared.untold and not compared.blank):
        return made
    before, after = details.from_text(recorded), details.from_text(made)
    for name in {*compared.itself, *compared.unread, *compared.untold}.intersection(before.IDENTITY or ()).union(
            compared.blank):
        if getattr(before, name) is not None:
            setattr(after, name, getattr(before, name))
    return details.to_text(after)


def filled(recorded: str, found: str) -> str:
    """The details of a row, with what it lacks of the same device and the host tells."""
    compared = None if alike(recorded, found) else compare(recorded, found)
    if compared is None or not compared.is_same or not compared.new:
        return recorded
    before, after = details.from_text(recorded), details.from_text(found)
    for name in compared.new:
        setattr(before, name, getattr(after, name))
    return details.to_text(before)


def alike(recorded: str, found: str) -> bool:
    """Whether two texts of details are equal but for the origin, without parsing them. Nearly all are."""
    return recorded == found or recorded.replace(details.CREATED_TEXT, _EXISTING_TEXT) == found


def same_device(recorded: str, found: str) -> bool:
    """Whether two texts of details certainly describe one device."""
    compared = compare(recorded, found)
    return alike(recorded, found) if compared is None else compared.is_certain


def unread(one: details.DeviceDetails) -> tuple[str, ...]:
    """The fields of a device's identity that the host could not read now."""
    return tuple(name for name in may_be_unread(type(one)) if getattr(one, name) is None)


def may_be_unread(cls: type[details.DeviceDetails]) -> tuple[str, ...]:
    """The fields of the identity that the host cannot always read, by the declaration of the class."""
    return tuple(sorted(name for name in cls.IDENTITY or () if cls.fields[name].nullable))
