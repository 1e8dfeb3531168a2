"""Decides whether a running guest can go from one device to another, with every reason.

The caller hands in what both hosts have declared; nothing else is read. Versions, features and units are compared only
between devices that match by kind and type or by a cross-kind rule: between others they mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from typing import Final
from typing import NamedTuple

from devicetrack import exception
from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.facts import MigrationVersion
from devicetrack.compatibility.facts import newest_seen
from devicetrack.compatibility.facts import Sort
from devicetrack.compatibility.facts import UnknownVersion
from devicetrack.compatibility.facts import Version

# The subjects of reasons.
SOURCE_HOST: Final = 'source host'
DESTINATION_HOST: Final = 'destination host'
KIND: Final = 'kind'
TYPE: Final = 'type'
API: Final = 'api'
VERSION_UNKNOWN: Final = 'version unknown'
VERSION_STRING: Final = 'version string'
MAJOR: Final = 'major version'
MINOR: Final = 'minor version'
FEATURES: Final = 'features'
AGGREGATION: Final = 'aggregation'

# A tenant reads the same text for every reason, because reasons name hosts, drivers and other devices.
REFUSED: Final = exception.LiveMigrationRefused.for_tenant


class Rules(NamedTuple):
    """The rules of a deployment.

    ``crossings`` are the pairs of source and destination that may differ in kind, each in one direction. ``growing``
    are the types of a source whose guests may get more units. Without ``require_version`` an unknown version is a note.
    """

    require_version: bool = True
    crossings: frozenset[tuple[Sort, Sort]] = frozenset()
    growing: frozenset[Sort] = frozenset()

    def followed_by(self, can_become: Callable[[str, str], bool]) -> Rules:
        """Return the rules as far as a hypervisor follows them: it says whether one kind can become another."""
        return self._replace(crossings=frozenset((source, destination) for source, destination in self.crossings
                                                 if can_become(source.kind, destination.kind)))


class PairReason(NamedTuple):
    """One difference that refuses a pair of devices, or that was allowed: its subject, and the value at either end."""

    about: str
    source: object
    destination: object

    def __str__(self) -> str:
        here, there = self.source, self.destination
        if self.about == SOURCE_HOST:
            return f'at the source, {here}'
        if self.about == DESTINATION_HOST:
            return f'at the destination, {there}'
        if self.about == KIND:
            return f'{here} and {there} are of different kinds'
        if self.about == FEATURES:
            return f'the guest requires {here}, the destination offers {there}'
        if self.about == MINOR:
            return f'the guest may have seen version {here}, the destination has the older {there}'
        if self.about == MAJOR:
            return f'versions {here} at the source and {there} at the destination differ in their major number'
        if self.about == VERSION_UNKNOWN:
            return f'versions cannot be compared: {here} at the source, {there} at the destination'
        return f'{self.about} is {here} at the source, {there} at the destination'

    def as_data(self) -> Mapping[str, str]:
        return {'about': self.about, 'source': str(self.source), 'destination': str(self.destination)}


class Verdict(NamedTuple):
    """Whether the guest can move from one device to the other. ``notes`` are reasons that an option or table allows."""

    reasons: tuple[PairReason, ...] = ()
    notes: tuple[PairReason, ...] = ()

    @property
    def accepted(self) -> bool:
        return not self.reasons

    @property
    def for_tenant(self) -> str:
        """The text that the owner of the guest may read; empty if accepted."""
        return REFUSED if self.reasons else ''

    def __str__(self) -> str:
        answer = 'no: ' + '; '.join(map(str, self.reasons)) if self.reasons else 'yes'
        return answer + ''.join(f'; allowed although {note}' for note in self.notes)

    def as_data(self) -> Mapping[str, object]:
        return {'accepted': self.accepted, 'reasons': [reason.as_data() for reason in self.reasons],
                'notes': [note.as_data() for note in self.notes]}


def decide(source: Facts, destination: Facts, rules: Rules, seen: Version | None = None) -> Verdict:
    """Say whether a running guest can go from ``source`` to ``destination``.

    :param seen: the highest version that the guest may have seen since its boot; None counts as that of its device
    """
    reasons: list[PairReason] = []
    notes: list[PairReason] = []
    if source.obstacle is not None:
        reasons.append(PairReason(SOURCE_HOST, source.obstacle, ''))
    if destination.obstacle is not None:
        reasons.append(PairReason(DESTINATION_HOST, '', destination.obstacle))
    matches = True
    if source.sort.kind != destination.sort.kind:
        matches = (source.sort, destination.sort) in rules.crossings
        (notes if matches else reasons).append(PairReason(KIND, source.sort, destination.sort))
    elif source.sort.type != destination.sort.type:
        matches = False
        reasons.append(PairReason(TYPE, source.sort.type, destination.sort.type))
    if source.api != destination.api:
        reasons.append(PairReason(API, source.api, destination.api))
    if matches:
        version = _version(source.version, destination.version, seen)
        if version is not None:
            overlooked = version.about == VERSION_UNKNOWN and not rules.require_version
            (notes if overlooked else reasons).append(version)
        if not source.required <= destination.offered:
            # Name only the missing features: the others that the guest requires are no reason.
            missing = _names(source.required - destination.offered)
            reasons.append(PairReason(FEATURES, missing, _names(destination.offered)))
        if not _units_fit(source, destination, rules):
            reasons.append(PairReason(AGGREGATION, _units(source), _units(destination)))
    return Verdict(tuple(reasons), tuple(notes))


def _version(source: MigrationVersion, destination: MigrationVersion, seen: Version | None) -> PairReason | None:
    if isinstance(source, Version) and isinstance(destination, Version):
        if source.major != destination.major:
            return PairReason(MAJOR, source, destination)
        newest = newest_seen(source, seen)
        return PairReason(MINOR, newest, destination) if destination.minor < newest.minor else None
    if isinstance(source, UnknownVersion) or isinstance(destination, UnknownVersion):
        return PairReason(VERSION_UNKNOWN, source, destination)
    return PairReason(VERSION_STRING, source, destination) if source != destination else None


def _units_fit(source: Facts, destination: Facts, rules: Rules) -> bool:
    here, there = source.aggregation, destination.aggregation
    if here is None or there is None or source.sort not in rules.growing:
        return here == there
    return there >= here


def _units(facts: Facts) -> str:
    return 'none' if facts.aggregation is None else str(facts.aggregation)


def _names(features: frozenset[str]) -> str:
    return ', '.join(sorted(features)) or 'none'
