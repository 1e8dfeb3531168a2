"""The installed device kinds, and checks of their answers.

A kind may come from another project. Without the checks, a kind's mistake could show much later, as an error of this
library in a claim or a release.
"""

from __future__ import annotations

import collections
import collections.abc
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import os
import re
from typing import Any
from typing import Final
from typing import NamedTuple

from oslo_config import cfg

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import identity
from devicetrack.objects.compact import Compact
from devicetrack.objects.values import Capacity
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Fault
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import MigrationType
from devicetrack.objects.values import Missing
from devicetrack.objects.values import Realized
from devicetrack.virt import device_kinds
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt.kinds import api

LOG = log.logger(__name__)

# In commands a kind's name stands before a slash and an identifier after it. The store keeps both in columns.
_NAME: Final = re.compile(r'[A-Za-z0-9][A-Za-z0-9_.-]{0,63}')
_IDENTIFIER_CHARACTERS: Final = 255
# The store keeps the parent in a column, and in commands the parent's name stands after a slash. Placement takes names
# of 200 characters, and a provider's name begins with the node's name.
_PARENT_CHARACTERS: Final = 255
_PROVIDER_CHARACTERS: Final = 128
_NO_DETAILS: Final = 'has no details as devicetrack.objects.details.to_text makes them'


def classes(conf: cfg.ConfigOpts) -> list[type[api.DeviceKind]]:
    """Load our own classes, and those of other packages that ``[devicetrack] device_kinds`` names.

    :raises InvalidConfiguration: one is not installed or cannot be loaded
    """
    found = []
    for entry_point in device_kinds.entry_points(conf):
        try:
            found.append(entry_point.load())
        except Exception as error:
            raise exception.InvalidConfiguration(
                device_kinds.NAMESPACE, entry_point.name, f'cannot be loaded: {error}') from error
    return found


def make(kinds: Sequence[type[api.DeviceKind]], conf: Any, hypervisor: connection.Connection, state_path: str,
         boot_id: Callable[[], str]) -> dict[str, api.DeviceKind]:
    """Make one object of each class, and return them by name, in the order of the names.

    :param state_path: the host's state directory
    :param boot_id: names this boot of the host
    :raises InvalidConfiguration: an option cannot be used, or a class is not a device kind
    """
    made: dict[str, api.DeviceKind] = {}
    for cls in kinds:
        kind = _make(cls, conf, hypervisor, state_path, boot_id)
        if kind.name in made:
            raise _no_kind(cls, f'it has the name of {_path(type(made[kind.name]))}, {kind.name}')
        made[kind.name] = kind
    return dict(sorted(made.items()))


def _make(cls: type[api.DeviceKind], conf: Any, hypervisor: connection.Connection, state_path: str,
          boot_id: Callable[[], str]) -> api.DeviceKind:
    if not (isinstance(cls, type) and issubclass(cls, api.DeviceKind)):
        raise _no_kind(cls, f'it is no subclass of {_path(api.DeviceKind)}')
    name = getattr(cls, 'name', None)
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise _no_kind(cls, f'its name, {name!r}, is not made of 1 to 64 letters, digits, dots, dashes and underscores')
    if not isinstance(getattr(cls, 'keeps_bytes', None), bool):
        raise _no_kind(cls, 'it does not say whether its devices keep bytes: keeps_bytes is True or False')
    try:
        kind = cls.made_for(conf, hypervisor, state_path, boot_id)
        resource_classes = kind.resource_classes
    except (exception.DeviceTrackError, cfg.Error):
        raise
    except Exception as error:
        raise _no_kind(cls, f'it fails with {_said(error)}') from error
    if not isinstance(resource_classes, frozenset):
        raise _no_kind(cls, 'its resource_classes are no frozenset')
    for resource_class in resource_classes:
        if not isinstance(resource_class, str) or vocabulary.PLACEMENT_NAME.fullmatch(resource_class) is None:
            raise _no_kind(cls, f'its resource class {resource_class!r} is not made of capital letters, digits and '
                                'underscores')
    return kind


class _Mistakes(contextlib.AbstractContextManager[None]):
    """Turns an error in the kind's code into DeviceKindFailed. A DriverError is not a mistake and is left as it is.

    This is a class because a generator takes several times as long, and every definition of every guest is read in it.
    """

    __slots__ = ('_kind', '_method', '_tell')

    def __init__(self, kind: api.DeviceKind, method: str, tell: bool = False) -> None:
        self._kind, self._method, self._tell = kind, method, tell

    def __exit__(self, cls: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, exception.DriverError):
            return
        reason = f'its {self._method} fails with {_said(error)}'
        if self._tell:
            # The author of a kind needs the traceback of a mistake in its code.
            LOG.warning('Device kind %s made a mistake: %s', self._kind.name, reason, exc_info=error)
        raise exception.DeviceKindFailed(self._kind.name, reason) from error


def mistakes(kind: api.DeviceKind, method: str) -> contextlib.AbstractContextManager[None]:
    """Log an error of the kind's code in the block, and turn it into DeviceKindFailed. A DriverError is left as it is.

    :param method: the kind's method that is called in the block
    """
    return _Mistakes(kind, method, tell=True)


def check_host(kind: api.DeviceKind) -> None:
    """Let the kind check the host.

    :raises InvalidConfiguration: an option does not fit the host, or the kind made a mistake
    :raises DriverError: the host cannot be read
    """
    try:
        kind.check_host()
    except exception.DeviceTrackError:
        raise
    except Exception as error:
        raise _no_kind(type(kind), f'its check_host fails with {_said(error)}') from error


def stock(kind: api.DeviceKind) -> api.Stock:
    """Read and check the kind's stock. A kind that is not configured has none.

    A device whose identity cannot be read now is unhealthy: it may be another device.

    :raises DeviceKindFailed: the kind made a mistake, so its stock is unknown
    :raises DriverError: the stock cannot be read
    """
    with _Mistakes(kind, 'stock'):
        found = kind.stock() if kind.configured else api.Stock()
        _check_fields(kind, found)
        _check(kind, Capacity, found.capacities)
        _check(kind, InventoryDevice, found.devices)
        identifiers = collections.Counter(Compact(InventoryDevice, found.devices).column('identifier'))
        twice = [name for name, count in identifiers.items() if count > 1]
        if twice:
            raise exception.DeviceKindFailed(kind.name, f'two devices have the identifier {twice[0]!r}')
        _check_own_tokens(kind, found.devices)
        return _without_identity_unhealthy(found)


def possible_parents(kind: api.DeviceKind) -> Collection[str]:
    """Ask the kind for parents that the host has, also one without options. Nothing if it cannot tell."""
    try:
        with mistakes(kind, 'possible_parents'):
            return [str(name) for name in kind.possible_parents()]
    except exception.DriverError as error:
        LOG.debug('The parents of kind %s are unknown: %s', kind.name, error)
        return ()


def is_named(kind: api.DeviceKind, identifier: str, stored: str) -> bool:
    """Ask the kind whether its options name a device.

    :raises DeviceKindFailed: the kind made a mistake
    """
    with _Mistakes(kind, 'is_named'):
        found = kind.is_named(identifier, stored)
    if not isinstance(found, bool):
        raise exception.DeviceKindFailed(kind.name, f'its is_named, {found!r}, is neither True nor False')
    return found


def prepare(kind: api.DeviceKind, recorded: Mapping[str, str], locked: api.Locked) -> None:
    """Let the kind prepare the host.

    :raises DeviceKindFailed: the kind made a mistake
    :raises DriverError: something cannot be prepared
    """
    with _Mistakes(kind, 'prepare'):
        kind.prepare(recorded, locked)


def text(kind: api.DeviceKind, method: str, *arguments: Any) -> str | None:
    """Ask the kind for a text or None, by one of its methods.

    :raises DeviceKindFailed: the kind made a mistake
    :raises DriverError: as the method
    """
    with _Mistakes(kind, method):
        found = getattr(kind, method)(*arguments)
    if found is not None and not isinstance(found, str):
        raise exception.DeviceKindFailed(kind.name, f'its {method}, {found!r}, is no text')
    return found


def migration_types(kind: api.DeviceKind) -> Sequence[MigrationType]:
    """Read and check what the kind's types declare. A kind that is not configured has no types.

    :raises DeviceKindFailed: the kind made a mistake
    :raises DriverError: the types cannot be read
    """
    with _Mistakes(kind, 'migration_types'):
        found = tuple(kind.migration_types()) if kind.configured else ()
        for one in found:
            if one.kind != kind.name:
                raise exception.DeviceKindFailed(kind.name, f'its type {one.type!r} is of kind {one.kind!r}')
            texts = (one.parent, one.driver, one.obstacle, *one.version, *one.aggregation)
            if not isinstance(one.type, str) or not all(text is None or isinstance(text, str) for text in texts):
                raise exception.DeviceKindFailed(kind.name, f'its type {one.type!r} has a field that is no text')
        return found


def nodes(kind: api.DeviceKind, devices: Iterable[InventoryDevice]) -> dict[DeviceKey, str]:
    """Ask the kind what its devices are on the host, and check the answers.

    Devices that no other kind can offer are left out.

    :raises DeviceKindFailed: the kind made a mistake
    """
    with _Mistakes(kind, 'node'):
        found = {device.key: kind.node(device) for device in devices}
    wrong = [node for node in found.values() if node is not None and not isinstance(node, str)]
    if wrong:
        raise exception.DeviceKindFailed(kind.name, f'its node {wrong[0]!r} is no text')
    return {key: node for key, node in found.items() if node is not None}


def identify(kind: api.DeviceKind, addresses: Collection[str]) -> Mapping[str, str | None]:
    """Ask the kind which devices addresses mean, and check the answer.

    :raises DeviceKindFailed: the kind made a mistake
    :raises DriverError: the devices are unknown
    """
    with mistakes(kind, 'identify'):
        found = kind.identify(addresses)
        if not isinstance(found, Mapping):
            raise TypeError(f'{found!r} is no mapping')
        if not set(map(type, found.values())) <= {str, type(None)}:
            raise TypeError('a device that it names is neither a text nor None')
        return found


def below(kind: api.DeviceKind, addresses: Collection[str]) -> Mapping[str, Collection[str]]:
    """Ask the kind which devices are below directories, and check the answer.

    :raises DeviceKindFailed: the kind made a mistake
    :raises DriverError: the devices are unknown
    """
    with mistakes(kind, 'below'):
        found = kind.below(addresses)
        _some_of(list(found), addresses)
        if any(isinstance(names, str) or not set(map(type, names)) <= {str} for names in found.values()):
            raise TypeError(f'{found!r} does not have the names of devices')
        return found


def own_path(kind: api.DeviceKind, assignment: DeviceAssignment) -> str | None:
    """Ask the kind for the node or file that is a device on the host.

    :raises DeviceKindFailed: the kind made a mistake
    :raises DriverError: as :meth:`.api.DeviceKind.own_path`
    """
    with mistakes(kind, 'own_path'):
        path = kind.own_path(assignment)
        if path is not None and not (isinstance(path, str) and os.path.isabs(path) and b'\0' not in os.fsencode(path)):
            raise ValueError(f'{path!r} is neither None nor an absolute path')
        return path


def evidence(kind: api.DeviceKind, identifiers: Collection[str]) -> Mapping[str, str]:
    """Ask the kind what the host shows of writes to devices, and check that the answers can be kept.

    :raises DeviceKindFailed: the kind made a mistake
    :raises DriverError: as :meth:`.api.DeviceKind.evidence`
    """
    with mistakes(kind, 'evidence'):
        found = kind.evidence(identifiers)
        _some_of(list(found), identifiers)
        wrong = [text for text in found.values() if not (isinstance(text, str) and text and text.isprintable())]
        if wrong:
            raise ValueError(f'{wrong[0]!r} is no text of one line')
        return dict(found)


def is_written(kind: api.DeviceKind, before: str, now: str) -> bool:
    """Ask the kind whether a device was written to. Any answer but False says so.

    :raises DeviceKindFailed: the kind made a mistake
    """
    with mistakes(kind, 'is_written'):
        return kind.is_written(before, now) is not False


def realize(kind: api.DeviceKind, assignment: DeviceAssignment) -> Realized:
    """Let the kind make a device ready, and check the answer.

    :raises DeviceKindFailed: the kind made a mistake, and perhaps the device is half made
    :raises DriverError: as :meth:`.api.DeviceKind.realize`
    """
    with mistakes(kind, 'realize'):
        made = kind.realize(assignment)
        if made.key != (assignment.kind, assignment.identifier):
            raise ValueError(f'it answers for {made.key!r}')
        details.from_text(made.details)
        _check(kind, Capacity, made.capacities)
        return made


# "Not clean" and "not free" are errors. An author who answers it instead, with False or a reason, must not get a proof.


def ask(kind: api.DeviceKind, method: str, *arguments: Any) -> None:
    """Call a method of the kind that says by errors alone what it found, and check that it answers nothing.

    :raises DeviceKindFailed: the kind made a mistake, and perhaps a device that it should take back is not clean
    :raises DriverError: as the method
    """
    with mistakes(kind, method):
        found = getattr(kind, method)(*arguments)
        if found is not None:
            raise ValueError(f'it answers {found!r}, and must raise an error')


def some_of(kind: api.DeviceKind, method: str, asked: Collection[str], *arguments: Any) -> Collection[str]:
    """Ask the kind by one of its methods which of some devices are of a sort, and check that these are some of them.

    :raises DeviceKindFailed: the kind made a mistake
    :raises DriverError: as the method
    """
    with mistakes(kind, method):
        return _some_of(getattr(kind, method)(*arguments), asked)


def _some_of(found: Any, asked: Collection[str]) -> frozenset[str]:
    if not isinstance(found, list | tuple | collections.abc.Set):
        raise TypeError(f'{found!r} is no list, tuple or set')
    names = frozenset(found)
    if not names <= set(asked):
        raise ValueError(f'{found!r} names other devices than it was asked for')
    return names


def guest_elements(kind: api.DeviceKind, assignments: Sequence[DeviceAssignment]) -> Sequence[str]:
    """Let the kind make the elements of devices, and check that there is one for each, with absolute paths.

    :raises DeviceKindFailed: the kind made a mistake
    :raises DriverError: as :meth:`.api.DeviceKind.guest_elements`
    """
    with mistakes(kind, 'guest_elements'):
        made = list(kind.guest_elements(assignments))
        if len(made) != len(assignments) or not all(isinstance(element, str) for element in made):
            raise ValueError(f'{made!r} is not one text for each of {len(assignments)} devices')
        for element in made:
            _check_paths(element)
        return made


def _check_paths(element: str) -> None:
    try:
        paths = domain_xml.source_paths(element)
    except exception.InvalidDocument as error:
        raise ValueError(f'{element!r} is no element: {error.reason}') from error
    for path in paths:
        # The hypervisor has another working directory than this process.
        if not os.path.isabs(path):
            raise ValueError(f'the path {path!r} in {element!r} is not absolute')


def _without_identity_unhealthy(found: api.Stock) -> api.Stock:
    # Hardly any kind has such fields. For a kind without them, the thousands of detail texts are not read.
    if not any(identity.may_be_unread(type(details.peek(one.details)))
               for one in _one_of_each(InventoryDevice, found.devices)):
        return found
    return found._replace(devices=tuple(
        one._replace(unhealthy=f'{", ".join(unread)} cannot be read now, so its identity is unknown')
        if one.unhealthy is None and (unread := identity.unread(details.from_text(one.details))) else one
        for one in found.devices))


def _check_fields(kind: api.DeviceKind, found: api.Stock) -> None:
    """Check the fields of a stock beside its devices and its capacities."""
    for field, of in (('missing', Missing), ('faults', Fault)):
        said = getattr(found, field)
        if not isinstance(said, Sequence):      # an iterator would have nothing left for its next reader
            raise TypeError(f'its {field}, {said!r}, are no sequence')
        for one in said:
            if not isinstance(one, of) or not (isinstance(one.key, tuple) and len(one.key) == 2) \
                    or set(map(type, (*one.key, one.option, one.reason))) != {str} or one.key[0] != kind.name:
                raise TypeError(f'its {field} have {one!r}, which is no {of.__name__} of this kind')
    for field in ('written', 'nothing_kept', 'by_person'):
        names = getattr(found, field)
        if isinstance(names, str) or not isinstance(names, Collection) or not set(map(type, names)) <= {str}:
            raise TypeError(f'its {field}, {names!r}, are no collection of identifiers')


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
        _Rule('adoptable', lambda said: isinstance(said, bool),
              'is adoptable by {!r}, which is neither True nor False'),
        _Rule('migration_type', lambda name: name is None or isinstance(name, str),
              'has the migration type {!r}, which is neither None nor a text'),
        _Rule('available', lambda number: type(number) is int, 'has {!r} available, which is no number'),
        _Rule('details', lambda said: isinstance(said, str) and said[:1] == '{', _NO_DETAILS))


def _check(kind: api.DeviceKind, of: type[Any], found: Sequence[Any]) -> None:
    """Check the values that would do harm beyond the kind, each value of a field once: a host may have many devices.

    One piece of code wrote all details of a kind, so this reads the details of one of each resource class. The contract
    checks what else a kind must keep to.

    :param of: the class of each: a device or a capacity
    """
    rows = Compact(of, found)
    for rule in _rules(kind):
        if rule.field not in of._fields:
            continue
        for value in set(rows.column(rule.field)):
            if not rule.fits(value):
                one = next(row for row in rows if getattr(row, rule.field) == value)
                raise _mistake(kind, one, rule.mistake.format(value))
    for one in _one_of_each(of, rows):
        try:
            details.from_text(one.details)
        except (exception.UnknownObject, exception.MalformedObject) as error:
            raise _mistake(kind, one, f'{_NO_DETAILS}: {error}') from error


def _check_own_tokens(kind: api.DeviceKind, devices: Sequence[InventoryDevice]) -> None:
    """Check that no whole names the token that the ledger adds to it, which its parts have while they are away."""
    rows = Compact(InventoryDevice, devices)
    for identifier, exclusions in zip(rows.column('identifier'), rows.column('exclusions'), strict=True):
        own = f'{kind.name}/{identifier}'
        if exclusions and own in dict(exclusions) and vocabulary.WHOLE in dict(exclusions).values():
            raise exception.DeviceKindFailed(
                kind.name, f'device {identifier!r} has the exclusions {exclusions!r}, and {own!r} is the token of its '
                'parts that the host does not have now')


def _one_of_each(of: type[Any], found: Sequence[Any]) -> list[Any]:
    """Return one device or capacity of each resource class."""
    return list({one: found[number] for number, one in enumerate(Compact(of, found).column('resource_class'))}.values())


def _mistake(kind: api.DeviceKind, one: InventoryDevice | Capacity, mistake: str) -> exception.DeviceKindFailed:
    what = f'device {one.identifier!r}' if isinstance(one, InventoryDevice) \
        else f'the capacity of {one.parent} for {one.device_type}'
    return exception.DeviceKindFailed(kind.name, f'{what} {mistake}')


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


def _no_kind(cls: Any, reason: str) -> exception.InvalidConfiguration:
    return exception.InvalidConfiguration(device_kinds.NAMESPACE, _path(cls), reason)


def _path(cls: Any) -> str:
    """Return the path of a class in the form of entry points."""
    return f'{getattr(cls, "__module__", "")}:{getattr(cls, "__qualname__", repr(cls))}'


def _said(error: Exception) -> str:
    return f'{type(error).__name__}: {error}' if str(error) else type(error).__name__
