"""The facts that hosts declare about their devices: types, versions and features, their sources, and their plain form.

Facts and declarations are stored, sent to other hosts and written to files as mappings of plain values. A version keeps
its form in them, because it is also a fact that a version is unknown, and why.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import functools
import json
import re
from typing import Any
from typing import Final
from typing import NamedTuple
from typing import NoReturn

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment

# -- versions ----------------------------------------------------------------------------------------------------------

# A part has at most nine digits, so that no document can waste time. With leading zeros a version would have two
# spellings.
_PART: Final = '(0|[1-9][0-9]{0,8})'
_VERSION: Final = re.compile(rf'{_PART}\.{_PART}\.{_PART}')
_SHOWN: Final = 40


class Version(NamedTuple):
    """The version of the state that a device's driver writes when its guest moves."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f'{self.major}.{self.minor}.{self.patch}'


@dataclasses.dataclass(frozen=True)
class Opaque:
    """A vendor's own version string. It can only be compared for equality."""

    text: str

    def __str__(self) -> str:
        return repr(self.text)


@dataclasses.dataclass(frozen=True)
class UnknownVersion:
    """No version is known, for this reason."""

    reason: str

    def __str__(self) -> str:
        return f'unknown ({self.reason})'


@dataclasses.dataclass(frozen=True)
class Stateless:
    """The version of a device without state of its own: QEMU copies a namespace as it copies memory."""

    def __str__(self) -> str:
        return 'none needed'


STATELESS: Final = Stateless()
MigrationVersion = Version | Opaque | UnknownVersion | Stateless


def parse_version(text: str) -> Version | UnknownVersion:
    """Parse ``major.minor.patch``. Any other text gives an unknown version with the reason."""
    found = _VERSION.fullmatch(text)
    if found is None:
        shown = ascii(text[:_SHOWN]) + ('…' if len(text) > _SHOWN else '')
        return UnknownVersion(f'{shown} is not major.minor.patch, three numbers')
    return Version(*map(int, found.groups()))


def seen_since_boot(seen: Version | None, here: MigrationVersion) -> Version | None:
    """Return the highest version that a guest may have seen, after it started or may have rebooted on a device.

    A move alone does not change it, because the guest does not reboot.

    :param seen: the highest version before; None for a guest that starts, or when it is unknown
    :returns: None when it is unknown: on a device of unknown version the guest may have seen any version
    """
    if not isinstance(here, Version):
        return None
    return here if seen is None else max(seen, here)


def newest_seen(source: Version, seen: Version | None) -> Version:
    """Return the oldest version that a destination may have. A seen version with another major number is ignored."""
    return seen if seen is not None and seen.major == source.major else source


def version_seen(text: str | None) -> Version | None:
    """Return the version in a row; None if it is unknown, or in the format of a newer release."""
    version = parse_version(text) if text is not None else None
    return version if isinstance(version, Version) else None


# -- facts ------------------------------------------------------------------------------------------------------------

# The subjects about which a source can tell something for a type.
SUBJECTS: Final = ('version', 'required', 'offered', 'aggregation')


class Sort(NamedTuple):
    """The type of a device, within its kind."""

    kind: str
    type: str

    def __str__(self) -> str:
        return f'{self.kind} {self.type}'


class Facts(NamedTuple):
    """The facts that a host declares about a device.

    ``type`` of ``sort`` is the id of an mdev type, the number of a virtual function's vGPU type, or the label, size and
    alignment of a namespace. ``api`` is the device API (``vfio-pci``), or the backend of memory (``devdax``). A guest
    on the device needs the ``required`` features; a guest that arrives finds the ``offered`` ones. ``aggregation``
    counts the units of a type that is made of units, and is None for other types. ``obstacle`` says why the host's
    software cannot migrate the kind.
    """

    sort: Sort
    api: str
    version: MigrationVersion
    required: frozenset[str] = frozenset()
    offered: frozenset[str] = frozenset()
    aggregation: int | None = None
    obstacle: str | None = None


class TypeAtParent(NamedTuple):
    """The subject of a declaration, within its host. A kind without parents has its types at None."""

    kind: str
    parent: str | None
    type: str


class Declaration(NamedTuple):
    """Facts about devices of one type at one parent.

    ``sources`` names the source of each subject. ``driver`` is the version of the parent's driver, if it has one: the
    deployment's table may depend on it.
    """

    parent: str | None
    facts: Facts
    sources: tuple[tuple[str, str], ...] = ()
    driver: str | None = None

    @property
    def about(self) -> TypeAtParent:
        return TypeAtParent(self.facts.sort.kind, self.parent, self.facts.sort.type)


class TypeLook(NamedTuple):
    """The type of a device, and why a guest with it cannot move, as far as its details tell."""

    type: str
    api: str
    is_stateless: bool
    obstacle: str | None = None

    @classmethod
    def of(cls, known: details.DeviceDetails) -> TypeLook:
        return cls(known.migration_type, getattr(known, 'device_api', ''), known.is_stateless,
                   known.migration_obstacle)


@functools.lru_cache(maxsize=1 << 14)
def look_at(text: str) -> TypeLook:
    """Read the type from stored details. Details of a newer release or an unknown kind give an empty type."""
    try:
        return TypeLook.of(details.peek(text))
    except (exception.UnknownObject, exception.MalformedObject):
        return TypeLook('', '', False)


def facts_undeclared(device: DeviceAssignment) -> Facts:
    """Return the facts about a device of a host that declares nothing, as far as its details show them."""
    look = TypeLook.of(device.details)
    version = STATELESS if look.is_stateless else UnknownVersion('its host declares nothing')
    return Facts(Sort(device.kind, look.type), look.api, version, obstacle=look.obstacle)


# -- as plain values --------------------------------------------------------------------------------------------------

# The forms of a version: each says how to read its text.
NUMBERED: Final = 'numbered'                    # major.minor.patch
OPAQUE: Final = 'opaque'                        # a vendor's own
UNKNOWN: Final = 'unknown'                      # the reason why
NONE_NEEDED: Final = 'none needed'              # nothing
FORMS: Final = (NUMBERED, OPAQUE, UNKNOWN, NONE_NEEDED)


def declaration_as_data(one: Declaration) -> dict[str, Any]:
    """Return a declaration as plain values."""
    return {'parent': one.parent, **facts_as_data(one.facts), 'sources': dict(one.sources), 'driver': one.driver}


def declaration_from_data(data: object, where: str) -> Declaration:
    """Read the result of :func:`declaration_as_data`.

    :param where: the name of the data in errors
    :raises BadRequest: the data are something else; the message names the wrong element
    """
    values = _mapping(data, where)
    sources = _mapping(values.get('sources', {}), f'{where}.sources')
    for subject, source in sources.items():
        if subject not in SUBJECTS or not vocabulary.is_text(source):
            _fail(where, f'sources.{subject}', source, f'must name the source of {", ".join(SUBJECTS)}')
    return Declaration(get_optional_text(values, 'parent', where), facts_from_data(values, where),
                       tuple(sorted(sources.items())), get_optional_text(values, 'driver', where))


def declaration_as_text(one: Declaration) -> str:
    """Return a declaration as text for a row of the store: JSON, the same text for equal declarations."""
    return json.dumps(declaration_as_data(one), separators=(',', ':'), sort_keys=True)


def declaration_from_text(text: str, where: str) -> Declaration:
    """Read the result of :func:`declaration_as_text`.

    :raises BadRequest: a newer release wrote it, or it is damaged
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise exception.BadRequest(where, text[:40], f'is no JSON: {error}') from error
    return declaration_from_data(data, where)


def facts_as_data(facts: Facts) -> dict[str, Any]:
    """Return facts as plain values."""
    form, text = version_as_data(facts.version)
    return {'kind': facts.sort.kind, 'type': facts.sort.type, 'api': facts.api, 'version_form': form, 'version': text,
            'required': sorted(facts.required), 'offered': sorted(facts.offered), 'aggregation': facts.aggregation,
            'obstacle': facts.obstacle}


def facts_from_data(data: object, where: str) -> Facts:
    """Read the result of :func:`facts_as_data`. Other keys are ignored.

    :raises BadRequest: the data are something else; the message names the wrong element
    """
    values = _mapping(data, where)
    aggregation = values.get('aggregation')
    if aggregation is not None and (type(aggregation) is not int or aggregation < 1):
        _fail(where, 'aggregation', aggregation, 'must be a number of units from 1, or null')
    return Facts(Sort(get_text(values, 'kind', where), get_text(values, 'type', where)),
                 get_text(values, 'api', where),
                 version_from_data(values.get('version_form'), values.get('version'), where),
                 _names(values, 'required', where), _names(values, 'offered', where), aggregation,
                 get_optional_text(values, 'obstacle', where))


def version_as_data(version: MigrationVersion) -> tuple[str, str]:
    """Return the form of a version, and its text."""
    if isinstance(version, Version):
        return NUMBERED, str(version)
    if isinstance(version, Opaque):
        return OPAQUE, version.text
    if isinstance(version, Stateless):
        return NONE_NEEDED, ''
    return UNKNOWN, version.reason


def version_from_data(form: object, text: object, where: str) -> MigrationVersion:
    """Read the result of :func:`version_as_data`.

    :raises BadRequest: the data are something else
    """
    if not isinstance(text, str) or not vocabulary.is_text(text):
        _fail(where, 'version', text, 'must be a text')
    if form == NUMBERED:
        version = parse_version(text)
        if isinstance(version, UnknownVersion):
            _fail(where, 'version', text, 'must be major.minor.patch, three numbers')
        return version
    if form == OPAQUE:
        return Opaque(text)
    if form == NONE_NEEDED:
        return STATELESS
    if form != UNKNOWN:
        _fail(where, 'version_form', form, f'must be one of {", ".join(FORMS)}')
    return UnknownVersion(text)


def _mapping(data: object, where: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise exception.BadRequest(where, type(data).__name__, 'must be a mapping')
    return data


def get_text(values: Mapping[str, Any], name: str, where: str) -> str:
    """Return a text in a mapping.

    :raises BadRequest: it is missing or not a text
    """
    value = values.get(name)
    if not isinstance(value, str) or not vocabulary.is_text(value):
        _fail(where, name, value, 'must be a text')
    return value


def get_optional_text(values: Mapping[str, Any], name: str, where: str) -> str | None:
    """Return a text in a mapping, or None if it is missing or None."""
    value = values.get(name)
    if value is not None and not vocabulary.is_text(value):
        _fail(where, name, value, 'must be a text, or null')
    return value


def _names(values: Mapping[str, Any], name: str, where: str) -> frozenset[str]:
    names = values.get(name, [])
    if not isinstance(names, list) or not all(map(vocabulary.is_text, names)):
        _fail(where, name, names, 'must be a list of names')
    return frozenset(names)


def _fail(where: str, element: str, value: object, reason: str) -> NoReturn:
    raise exception.BadRequest(f'{where}.{element}', value, reason)
