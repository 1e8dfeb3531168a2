"""Checks of what a kind answers: its stock, its elements and what it says of its devices.

The driver relies on most of it and does not check it again: a host may have thousands of devices, and reads them in
every audit.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import os
from typing import Any
from typing import Final
from typing import NamedTuple

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import details
from devicetrack.objects.values import Capacity
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Fault
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Missing
from devicetrack.objects.values import Realized
from devicetrack.virt.libvirt import document as documents
from devicetrack.virt.libvirt.kinds import api
from devicetrack.virt.libvirt.kinds import installed

# In commands a slash stands before and after an identifier and a parent. The store keeps both in columns. Placement
# takes names of 200 characters, and a provider's name begins with the node's name.
_IDENTIFIER_CHARACTERS: Final = 255
_PARENT_CHARACTERS: Final = 255
_PROVIDER_CHARACTERS: Final = 128
_ABSENT: Final = object()
_NO_DETAILS: Final = 'has no details as devicetrack.objects.details.to_text makes them'


class WrongAnswer(AssertionError):
    """A kind answers what it must not."""


def stock(kind: api.DeviceKind) -> api.Stock:
    """Read the stock as the driver does, and check it.

    :raises WrongAnswer: it breaks a rule of :meth:`.api.DeviceKind.stock`
    :raises DeviceKindFailed: it breaks a rule that the driver checks too
    :raises DriverError: the host cannot be read
    """
    found = kind.stock() if kind.configured else api.Stock()
    _check_fields(kind, found)
    _check(kind, found.capacities)
    _check(kind, found.devices)
    return installed.stock(kind)


def realized(kind: api.DeviceKind, made: Realized) -> None:
    """:raises WrongAnswer: the parent of a device that was made cannot have these capacities"""
    _check(kind, made.capacities)


def nodes(kind: api.DeviceKind, devices: Iterable[InventoryDevice]) -> dict[DeviceKey, str]:
    """Ask what devices are on the host. Those that no other kind can offer are left out.

    :raises WrongAnswer: a node is no text
    """
    found = {device.key: text(kind.node(device)) for device in devices}
    return {key: node for key, node in found.items() if node is not None}


def text(found: Any) -> str | None:
    """Return an answer that is a text or None.

    :raises WrongAnswer: it is neither
    """
    if found is not None and not isinstance(found, str):
        raise WrongAnswer(f'{found!r} is no text')
    return found


def own_path(path: Any) -> None:
    """:raises WrongAnswer: it is neither None nor an absolute path"""
    if path is not None and not (isinstance(path, str) and os.path.isabs(path) and b'\0' not in os.fsencode(path)):
        raise WrongAnswer(f'{path!r} is neither None nor an absolute path')


def migration_types(kind: api.DeviceKind) -> None:
    """:raises WrongAnswer: a type is of another kind, or has a field that is no text"""
    for one in kind.migration_types() if kind.configured else ():
        if one.kind != kind.name:
            raise WrongAnswer(f'its type {one.type!r} is of kind {one.kind!r}')
        texts = (one.parent, one.driver, one.obstacle, *one.version, *one.aggregation)
        if not isinstance(one.type, str) or not all(said is None or isinstance(said, str) for said in texts):
            raise WrongAnswer(f'its type {one.type!r} has a field that is no text')


def named(kind: api.DeviceKind, addresses: Collection[str]) -> Mapping[str, str | None]:
    """Ask which devices addresses mean.

    :raises WrongAnswer: it is no mapping, or names devices by something else than texts
    """
    found = kind.identify(addresses)
    if not isinstance(found, Mapping) or not set(map(type, found.values())) <= {str, type(None)}:
        raise WrongAnswer(f'{found!r} is no mapping of texts or None')
    return found


def paths(element: str) -> Sequence[str]:
    """Return the paths of files and device nodes that one device element names as its source, as they are written.

    :raises InvalidDocument: it is not well-formed
    """
    devices = documents.parse(f'<devices>{element}</devices>', 'the element', 'devices')
    found: list[str] = []
    for source in devices.iter('source'):
        found += [(path.text or '').strip() for path in source.findall('path')]
        found += [str(source.attrib[name]) for name in ('file', 'path') if name in source.attrib]
    # Elsewhere than in a disk, the attribute is the name of an interface.
    return found + [str(source.attrib['dev']) for disk in devices.findall('disk') for source in disk.iter('source')
                    if 'dev' in source.attrib]


def _check_fields(kind: api.DeviceKind, found: api.Stock) -> None:
    """Check the fields of a stock beside its devices and its capacities."""
    for field, of in (('missing', Missing), ('faults', Fault)):
        said = getattr(found, field)
        if not isinstance(said, Sequence):      # an iterator would have nothing left for its next reader
            raise WrongAnswer(f'its {field}, {said!r}, are no sequence')
        for one in said:
            if not isinstance(one, of) or not (isinstance(one.key, tuple) and len(one.key) == 2) \
                    or set(map(type, (*one.key, one.option, one.reason))) != {str} or one.key[0] != kind.name:
                raise WrongAnswer(f'its {field} have {one!r}, which is no {of.__name__} of this kind')
    for field in ('written', 'nothing_kept', 'by_person'):
        names = getattr(found, field)
        if isinstance(names, str) or not isinstance(names, Collection) or not set(map(type, names)) <= {str}:
            raise WrongAnswer(f'its {field}, {names!r}, are no collection of identifiers')


class _Rule(NamedTuple):
    """What a field of a device or capacity must be: the field, a test, and what is said of one with a wrong value."""

    field: str
    fits: Callable[[Any], bool]
    mistake: str


def _rules(kind: api.DeviceKind) -> Sequence[_Rule]:
    return (
        _Rule('identifier', lambda name: _is_name(name, _IDENTIFIER_CHARACTERS),
              f'has an identifier that is no text of 1 to {_IDENTIFIER_CHARACTERS} characters that can be printed, '
              'without a slash'),
        _Rule('kind', lambda name: name == kind.name, 'is of kind {!r}'),
        _Rule('resource_class', lambda name: name in kind.resource_classes,
              'has the resource class {!r}, which is not in resource_classes'),
        _Rule('provider', _is_provider,
              f'has the provider {{!r}}, which is neither empty nor 1 to {_PROVIDER_CHARACTERS} characters that can be '
              'printed, without a slash'),
        _Rule('parent', _is_parent,
              f'has the parent {{!r}}, which is neither None nor 1 to {_PARENT_CHARACTERS} characters that can be '
              'printed, without a slash'),
        _Rule('numa_node', _is_numa_node, 'has the NUMA node {!r}, which is neither None nor a number from 0'),
        _Rule('exclusions', _are_exclusions,
              'has the exclusions {!r}, which are no tuple of (token, mode), each token once, with a mode of '
              f'{", ".join(vocabulary.EXCLUSION_MODES)}'),
        _Rule('features', _are_features, 'has the features {!r}, which are no tuple of texts'),
        _Rule('unhealthy', lambda said: said is None or isinstance(said, str),
              'is unhealthy by {!r}, which is neither None nor a text'),
        _Rule('assignable', lambda said: isinstance(said, bool),
              'is assignable by {!r}, which is neither True nor False'),
        _Rule('migration_type', lambda name: name is None or isinstance(name, str),
              'has the migration type {!r}, which is neither None nor a text'),
        _Rule('available', lambda number: type(number) is int, 'has {!r} available, which is no number'),
        _Rule('details', lambda said: isinstance(said, str) and said[:1] == '{', _NO_DETAILS))


def _check(kind: api.DeviceKind, found: Sequence[Any]) -> None:
    """Check every field of devices or of capacities."""
    for one in found:
        for rule in _rules(kind):
            value = getattr(one, rule.field, _ABSENT)
            if value is not _ABSENT and not rule.fits(value):
                raise _mistake(one, rule.mistake.format(value))
        try:
            details.from_text(one.details)
        except (exception.UnknownObject, exception.MalformedObject) as error:
            raise _mistake(one, f'{_NO_DETAILS}: {error}') from error


def _mistake(one: InventoryDevice | Capacity, mistake: str) -> WrongAnswer:
    what = f'device {one.identifier!r}' if isinstance(one, InventoryDevice) \
        else f'the capacity of {one.parent} for {one.device_type}'
    return WrongAnswer(f'{what} {mistake}')


def _is_provider(name: object) -> bool:
    return name == '' or _is_name(name, _PROVIDER_CHARACTERS)


def _is_parent(name: object) -> bool:
    return name is None or _is_name(name, _PARENT_CHARACTERS)


def _is_name(name: object, characters: int) -> bool:
    return isinstance(name, str) and 0 < len(name) <= characters and name.isprintable() and '/' not in name


def _is_numa_node(node: object) -> bool:
    return node is None or (type(node) is int and node >= 0)


def _are_exclusions(said: object) -> bool:
    return isinstance(said, tuple) and all(
        isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], str) and one[1] in vocabulary.EXCLUSION_MODES
        for one in said) and len({token for token, _mode in said}) == len(said)


def _are_features(said: object) -> bool:
    return isinstance(said, tuple) and all(isinstance(one, str) for one in said)
