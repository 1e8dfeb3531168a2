"""The installed device kinds, and what the driver asks of them.

A kind may come from another project. An error in its code costs the kind its answer and nothing else. The answers on
which it depends whether a device has one owner, and whether it is clean, are checked, and so are the types of values
that would stop the whole host. The rest of what a kind must answer is checked by the contract's tests, which its author
runs (:mod:`devicetrack.testing.kinds`).

The functions that ask a kind raise DeviceKindFailed if its code fails or its answer cannot be right. A DriverError of
the kind passes through.
"""

from __future__ import annotations

import collections
import collections.abc
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import re
from typing import Any
from typing import Final

from oslo_config import cfg

from devicetrack import conf as registry
from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import identity
from devicetrack.objects.compact import Compact
from devicetrack.objects.values import Capacity
from devicetrack.objects.values import Fault
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Missing
from devicetrack.objects.values import Realized
from devicetrack.virt import device_kinds
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt.kinds import api

LOG = log.logger(__name__)

# In commands a kind's name stands before a slash.
_NAME: Final = re.compile(r'[A-Za-z0-9][A-Za-z0-9_.-]{0,63}')

# What the fields of a device or a capacity are. They are sorted and counted together with those of all other kinds.
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(('kind', 'identifier', 'provider', 'resource_class', 'device_type', 'details', 'taken_by'), (str,)),
    **dict.fromkeys(('parent', 'unhealthy', 'migration_type'), (str, type(None))),
    'numa_node': (int, type(None)), 'available': (int,), 'assignable': (bool,), 'exclusions': (tuple,),
    'features': (tuple,)}


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
            raise _no_kind(cls, f'it has the name of {registry.class_path(type(made[kind.name]))}, {kind.name}')
        made[kind.name] = kind
    return dict(sorted(made.items()))


def _make(cls: type[api.DeviceKind], conf: Any, hypervisor: connection.Connection, state_path: str,
          boot_id: Callable[[], str]) -> api.DeviceKind:
    if not (isinstance(cls, type) and issubclass(cls, api.DeviceKind)):
        raise _no_kind(cls, f'it is no subclass of {registry.class_path(api.DeviceKind)}')
    name = getattr(cls, 'name', None)
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise _no_kind(cls, f'its name, {name!r}, is not made of 1 to 64 letters, digits, dots, dashes and underscores')
    if not isinstance(getattr(cls, 'keeps_bytes', None), bool):
        raise _no_kind(cls, 'it does not say whether its devices store data: keeps_bytes is True or False')
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


@contextlib.contextmanager
def mistakes(kind: api.DeviceKind, method: str, tell: bool = True) -> Iterator[None]:
    """Turn an error of the kind's code in the block into DeviceKindFailed. A DriverError is left as it is.

    :param method: the kind's method that is called in the block
    :param tell: log the error with its traceback, which the author of the kind needs. False if the caller does
    """
    try:
        yield
    except exception.DriverError:
        raise
    except Exception as error:
        reason = f'its {method} fails with {_said(error)}'
        if tell:
            LOG.warning('Device kind %s made a mistake: %s', kind.name, reason, exc_info=error)
        raise exception.DeviceKindFailed(kind.name, reason) from error


def call(kind: api.DeviceKind, method: str, *arguments: Any) -> Any:
    """Call a method of the kind, and return its answer as it is. The caller logs a mistake of the kind."""
    with mistakes(kind, method, tell=False):
        return getattr(kind, method)(*arguments)


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
    """Read the kind's stock. A kind that is not configured has none.

    A device whose identity cannot be read now is unhealthy: it may be another device.

    :raises DeviceKindFailed: the kind made a mistake, so its stock is unknown. That includes two devices of one name,
        devices of another kind or of an unknown class, values of wrong types, and tokens that would give a device two
        owners
    """
    with mistakes(kind, 'stock', tell=False):
        found = kind.stock() if kind.configured else api.Stock()
        found = found._replace(capacities=tuple(found.capacities), missing=tuple(found.missing),
                               faults=tuple(found.faults))
        for names in (found.written, found.nothing_kept, found.by_person):
            if isinstance(names, str) or not isinstance(names, collections.abc.Collection):
                raise TypeError(f'{names!r} is no collection of identifiers')
        if not (all(isinstance(one, Missing) for one in found.missing)
                and all(isinstance(one, Fault) for one in found.faults)):
            raise TypeError('what is missing is no Missing, or a fault is no Fault')
        rows = Compact(InventoryDevice, found.devices)
        makers = Compact(Capacity, found.capacities)
        others = {*rows.column('kind'), *makers.column('kind')} - {kind.name}
        if others:
            raise exception.DeviceKindFailed(kind.name, f'its stock is of kind {others.pop()!r}')
        _check_types(rows, InventoryDevice)
        _check_types(makers, Capacity)
        unknown = {*rows.column('resource_class'), *makers.column('resource_class')} - kind.resource_classes
        if unknown:
            raise exception.DeviceKindFailed(
                kind.name, f'its stock has the resource class {unknown.pop()!r}, which is not in resource_classes')
        identifiers = list(rows.column('identifier'))
        if len(set(identifiers)) != len(identifiers):
            twice = collections.Counter(identifiers).most_common(1)[0][0]
            raise exception.DeviceKindFailed(kind.name, f'two devices have the identifier {twice!r}')
        if any(rows.column('exclusions')):
            _check_tokens(kind, rows)
        return _without_identity_unhealthy(found, rows)


def observed(kind: api.DeviceKind) -> api.Stock:
    """Ask the kind for the devices that the service hands out itself."""
    with mistakes(kind, 'observed', tell=False):
        found = kind.observed()
        _check_types(Compact(InventoryDevice, found.devices), InventoryDevice)
        return found


def possible_parents(kind: api.DeviceKind) -> Collection[str]:
    """Ask the kind for parents that the host has, also one without options. Nothing if it cannot tell."""
    try:
        with mistakes(kind, 'possible_parents'):
            return [str(name) for name in kind.possible_parents()]
    except exception.DriverError as error:
        LOG.debug('The parents of kind %s are unknown: %s', kind.name, error)
        return ()


def identify(kind: api.DeviceKind, addresses: Collection[str]) -> Mapping[str, str | None]:
    """Ask the kind which devices addresses mean."""
    with mistakes(kind, 'identify'):
        found = dict(kind.identify(addresses))
        if not {*map(type, found.values())} <= {str, type(None)}:
            raise TypeError('a device that it names is neither a text nor None')
        return found


def evidence(kind: api.DeviceKind, identifiers: Collection[str]) -> Mapping[str, str]:
    """Ask the kind what the host shows of writes to devices, and check that the answers can be kept."""
    with mistakes(kind, 'evidence'):
        found = kind.evidence(identifiers)
        _some_of(list(found), identifiers)
        wrong = [text for text in found.values() if not (isinstance(text, str) and text and text.isprintable())]
        if wrong:
            raise ValueError(f'{wrong[0]!r} is no text of one line')
        return dict(found)


def is_written(kind: api.DeviceKind, before: str, now: str) -> bool:
    """Ask the kind whether a device was written to. Any answer but False says so."""
    with mistakes(kind, 'is_written'):
        return kind.is_written(before, now) is not False


def realize(kind: api.DeviceKind, assignment: DeviceAssignment) -> Realized:
    """Let the kind make a device ready, and check the answer.

    :raises DeviceKindFailed: the kind made a mistake, and perhaps the device is half made
    """
    with mistakes(kind, 'realize'):
        made = kind.realize(assignment)
        if made.key != (assignment.kind, assignment.identifier):
            raise ValueError(f'it answers for {made.key!r}')
        details.from_text(made.details)
        _check_types(Compact(Capacity, made.capacities), Capacity)
        return made


# "Not clean" and "not free" are errors. An author who answers it instead, with False or a reason, must not get a proof.


def ask(kind: api.DeviceKind, method: str, *arguments: Any) -> None:
    """Call a method of the kind that says by errors alone what it found, and check that it answers nothing.

    :raises DeviceKindFailed: the kind made a mistake, and perhaps a device that it should take back is not clean
    """
    with mistakes(kind, method):
        found = getattr(kind, method)(*arguments)
        if found is not None:
            raise ValueError(f'it answers {found!r}, and must raise an error')


def some_of(kind: api.DeviceKind, method: str, asked: Collection[str], *arguments: Any) -> Collection[str]:
    """Ask the kind by one of its methods which of some devices are of a sort, and check that these are some of them."""
    with mistakes(kind, method):
        return _some_of(getattr(kind, method)(*arguments), asked)


def _some_of(found: Any, asked: Collection[str]) -> frozenset[str]:
    if not isinstance(found, list | tuple | collections.abc.Set):
        raise TypeError(f'{found!r} is no list, tuple or set')
    names = frozenset(found)
    if not names <= set(asked):
        raise ValueError(f'{found!r} names other devices than it was asked for')
    return names


def _check_types(rows: Compact[Any], of: Any) -> None:
    """:raises TypeError: a field has a value of a wrong type, or one that cannot be a key"""
    for field in of._fields:
        for found in {*map(type, rows.column(field))}:
            if not issubclass(found, _TYPES[field]):
                raise TypeError(f'{field} is a {found.__name__}')
        if _TYPES[field] == (tuple,):
            values = {*rows.column(field)}      # an error if a list is in it
            if field == 'features' and not all(isinstance(word, str) for words in values for word in words):
                raise TypeError(f'{field} are no texts')


def _check_tokens(kind: api.DeviceKind, rows: Compact[InventoryDevice]) -> None:
    """Check that each token has one mode that we know, and that no whole names the token that the ledger adds to it.

    The parts of the whole have that token while they are away.
    """
    for identifier, exclusions in rows.columns('identifier', 'exclusions'):
        modes, own = dict(exclusions), f'{kind.name}/{identifier}'
        if (len(modes) != len(exclusions) or not {*modes.values()} <= {*vocabulary.EXCLUSION_MODES}
                or not all(isinstance(token, str) for token in modes)):
            raise exception.DeviceKindFailed(
                kind.name, f'device {identifier!r} has the exclusions {exclusions!r}, and not each token once, with a '
                f'mode of {", ".join(vocabulary.EXCLUSION_MODES)}')
        if own in modes and vocabulary.WHOLE in modes.values():
            raise exception.DeviceKindFailed(
                kind.name, f'device {identifier!r} has the exclusions {exclusions!r}, and {own!r} is the token of its '
                'parts that the host does not have now')


def _without_identity_unhealthy(found: api.Stock, rows: Compact[InventoryDevice]) -> api.Stock:
    # Hardly any kind has such fields. For a kind without them, the thousands of detail texts are not read: those of one
    # resource class are of one sort.
    one_of_each = dict(rows.columns('resource_class', 'details'))
    if not any(identity.may_be_unread(type(details.peek(text))) for text in one_of_each.values()):
        return found
    return found._replace(devices=tuple(
        one._replace(unhealthy=f'{", ".join(unread)} cannot be read now, so its identity is unknown')
        if one.unhealthy is None and (unread := identity.unread(details.from_text(one.details))) else one
        for one in found.devices))


def _no_kind(cls: Any, reason: str) -> exception.InvalidConfiguration:
    return exception.InvalidConfiguration(device_kinds.NAMESPACE, registry.class_path(cls), reason)


def _said(error: Exception) -> str:
    return f'{type(error).__name__}: {error}' if str(error) else type(error).__name__
