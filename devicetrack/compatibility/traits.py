"""Names of traits by which the scheduler finds hosts for a running guest, and the traits that a guest requires.

Placement does not compare versions; it only knows whether a provider has a trait. So a host has every trait that it
fulfils, and a guest requires only the weakest ones.

A name is ``CUSTOM_MIG_<KIND>_<TYPE>`` and one of

- ``_V<major>_<minor>``: a device with this version, or with a newer minor of it;
- ``_VOPAQUE_<digest>``: with a vendor's own version string;
- ``_VNONE``: without a driver's state, so without a version;
- ``_VUNKNOWN``: with an unknown version;
- ``_ANY``: with any version;
- ``_F_<FEATURE>``: that offers a feature.

Each name means one thing. A kind of ``[a-z0-9]``, and a type whose parts of ``[a-z0-9]`` are joined by hyphens, are
written in capitals, with underscores for the hyphens; a feature of ``[A-Z0-9_]`` is written as it is. Any other text
is written as its letters and digits, then ``_H`` and a digest of the whole text. The same goes for a text that is too
long, which is cut, and for a text that has a part with a meaning of its own (``any``, ``f``, ``v1``, ``vnone``,
``vunknown``, ``vopaque``, or ``h`` and 16 hexadecimal digits), from which such parts are left out. A digest is the
first 16 hexadecimal digits of the SHA-256.

So the first part that has a meaning and is not a digest ends the type, and the digests before it show where the kind
ends. Only two texts with the same digest can have the same name, and :func:`of_host` refuses them.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
import hashlib
import re
from typing import Final

from devicetrack import exception
from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.facts import MigrationVersion
from devicetrack.compatibility.facts import newest_seen
from devicetrack.compatibility.facts import Opaque
from devicetrack.compatibility.facts import Sort
from devicetrack.compatibility.facts import UnknownVersion
from devicetrack.compatibility.facts import Version
from devicetrack.compatibility.partners import Held
from devicetrack.compatibility.rules import Rules
from devicetrack.objects.traits import MIGRATION

# A version with a larger minor is offered and required as this one: a provider has a trait for each minor.
LARGEST_MINOR: Final = 99

_ANY: Final = '_ANY'
_UNKNOWN: Final = '_VUNKNOWN'

_KIND: Final = re.compile('[a-z0-9]{1,32}')
_TYPE: Final = re.compile('(?=.{1,64}$)[a-z0-9]+(-[a-z0-9]+)*')
_FEATURE: Final = re.compile('(?!(.*_)?H[0-9A-F]{16}$)[A-Z0-9_]{1,90}')
# With these lengths a name of all three has at most the 255 characters that placement takes.
_LETTERS: Final = {_KIND: 32, _TYPE: 64, _FEATURE: 90}

_RUN: Final = re.compile('[A-Za-z0-9]+')
_MEANS_SOMETHING: Final = re.compile('ANY|F|V[0-9]+|VNONE|VUNKNOWN|VOPAQUE|H[0-9A-F]{16}')


# -- offered by a host ------------------------------------------------------------------------------------------------


def offered(facts: Facts) -> frozenset[str]:
    """Return the traits of a provider that counts devices with these facts; none if its host cannot migrate them."""
    return frozenset(_meanings(facts))


def of_host(host: Iterable[Facts]) -> dict[Facts, frozenset[str]]:
    """Return the traits for each of the facts of a host.

    :raises BadRequest: two meanings have one name; the message names both
    """
    meant: dict[str, tuple[Sort, str]] = {}
    found = {}
    for facts in host:
        meanings = _meanings(facts)
        for name, meaning in meanings.items():
            other = meant.setdefault(name, meaning)
            if other != meaning:
                raise exception.BadRequest(f'trait {name}', [f'{what} of {sort}' for sort, what in (other, meaning)],
                                           'both have this name; declare one of them under another')
        found[facts] = frozenset(meanings)
    return found


def _meanings(facts: Facts) -> dict[str, tuple[Sort, str]]:
    if facts.obstacle is not None:
        return {}
    sort, version = facts.sort, facts.version
    # Devices whose versions are unknown for different reasons have the same trait.
    versions = {_suffix(version): 'unknown version' if isinstance(version, UnknownVersion) else f'version {version}'}
    if isinstance(version, Version):
        accepted = (version._replace(minor=minor, patch=0) for minor in range(min(version.minor, LARGEST_MINOR) + 1))
        versions = {_suffix(one): f'version {one}' for one in accepted}
    features = {_feature(feature): f'feature {feature}' for feature in facts.offered}
    return {_of_sort(sort) + suffix: (sort, what)
            for suffix, what in {_ANY: 'any version', **versions, **features}.items()}


# -- required by a guest ----------------------------------------------------------------------------------------------


def required(device: Held, rules: Rules) -> tuple[frozenset[str], ...]:
    """Return the traits that a provider with a partner for a guest's device must have: one name from each set.

    Every provider with a partner has them. A provider that has them may still have no partner: the destination checks
    the conditions that traits cannot express.

    :raises NoDestination: no device of any host can be its partner
    """
    facts = device.facts
    if facts.obstacle is not None:
        raise exception.NoDestination(facts.sort.kind, device.identifier, facts.obstacle)
    if isinstance(facts.version, UnknownVersion) and rules.require_version:
        raise exception.NoDestination(facts.sort.kind, device.identifier,
                                      f'its version is {facts.version}, and the deployment requires versions')
    sorts = {facts.sort, *(to for source, to in rules.crossings if source == facts.sort and source.kind != to.kind)}
    names = [_of_sort(sort) for sort in sorts]
    version = newest_seen(facts.version, device.seen) if isinstance(facts.version, Version) else facts.version
    suffixes = [_ANY] if isinstance(version, UnknownVersion) else [_suffix(version)]
    if not rules.require_version and suffixes != [_ANY]:
        suffixes.append(_UNKNOWN)
    return (frozenset(name + suffix for name in names for suffix in suffixes),
            *(frozenset(name + _feature(feature) for name in names) for feature in sorted(facts.required)))


def query(devices: Iterable[tuple[str, Held]], rules: Rules, known: Collection[str]) -> list[tuple[str, str]]:
    """Return parameters of ``GET /allocation_candidates``, from microversion 1.39 on, for a guest that moves live.

    Each device has its own group, ``_MIG1`` and so on, so that each may come from another provider. The caller adds
    everything else that the instance needs, and a ``group_policy`` if it adds groups and there is none yet.

    :param devices: the devices, each with its resource class
    :param known: all names of traits in placement that begin with ``CUSTOM_MIG_``; placement refuses a query with a
        name that it does not know
    :raises NoDestination: no device of any host, or of any known host, can be the partner of one of these
    """
    parameters = []
    number = 0
    for number, (resource_class, device) in enumerate(devices, 1):
        parameters.append((f'resources_MIG{number}', f'{resource_class}:1'))
        for names in required(device, rules):
            there = sorted(names.intersection(known))
            if not there:
                raise exception.NoDestination(device.facts.sort.kind, device.identifier,
                                              f'no host ever had {" or ".join(sorted(names))}')
            parameters.append((f'required_MIG{number}', there[0] if len(there) == 1 else f'in:{",".join(there)}'))
    return [*parameters, ('group_policy', 'none')] if number > 1 else parameters


# -- names ------------------------------------------------------------------------------------------------------------


def _of_sort(sort: Sort) -> str:
    return f'{MIGRATION}{_normalized(sort.kind, _KIND)}_{_normalized(sort.type, _TYPE)}'


def _feature(feature: str) -> str:
    return f'_F_{_normalized(feature, _FEATURE)}'


def _suffix(version: MigrationVersion) -> str:
    if isinstance(version, Version):
        return f'_V{version.major}_{min(version.minor, LARGEST_MINOR)}'
    if isinstance(version, Opaque):
        return f'_VOPAQUE_{_digest(version.text)}'
    return _UNKNOWN if isinstance(version, UnknownVersion) else '_VNONE'


def _normalized(text: str, plain: re.Pattern[str]) -> str:
    parts = text.upper().split('-')
    if plain.fullmatch(text) and (plain is _FEATURE or not any(map(_MEANS_SOMETHING.fullmatch, parts))):
        return '_'.join(parts)
    # Cut first: the rest of a part may have a meaning.
    letters = '_'.join(_RUN.findall(text)).upper()[:_LETTERS[plain]].split('_')
    kept = [part for part in letters if part and not _MEANS_SOMETHING.fullmatch(part)]
    return '_'.join([*kept, f'H{_digest(text)}'])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16].upper()
