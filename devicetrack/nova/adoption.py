"""Whose devices are, on a host whose guests had them before this library came: decided from what was read, alone.

Three sources speak of a device: the definition of a guest, Nova's record, and the allocations in placement. Nova
records the namespaces of an instance and no mediated device. A device is recorded for an instance only if all that
speak of it agree. Nothing here asks anybody, and nothing here knows Nova's classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Final
from typing import NamedTuple

from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Usage
from devicetrack.objects.values import Use

NAMESPACE: Final = 'vpmem'
MDEV: Final = 'mdev'
# The device kinds of Nova's instances that the adapter decides about, in the order in which plans list devices.
KINDS: Final = (NAMESPACE, MDEV)

# What becomes of the devices of an instance.
ADOPT: Final = 'adopt'              # they are its own, and would be recorded
ADOPTED: Final = 'adopted'          # they were recorded just now
ALREADY: Final = 'already'          # they have been recorded before
WITHHELD: Final = 'withheld'        # whose they are cannot be told

# How a check ends.
OK: Final = 'ok'
WARNING: Final = 'warning'          # the host can be changed, and something is to be known or done first
FAILURE: Final = 'failure'          # it cannot

STILL_UP: Final = ('Nova takes nova-compute of this host to run. If it was stopped just now, all is well; if it runs, '
                    'stop it: what it does meanwhile is not in this plan')

# By provider and resource class.
Amounts = Mapping[tuple[str, str], int]


class Namespace(NamedTuple):
    """A namespace in Nova's record of an instance.

    :param path: the one that it had when the record was written
    :param provider: the UUID of the provider that it was counted at
    """

    name: str
    label: str
    path: str
    provider: str


class Instance(NamedTuple):
    """An instance as Nova knows it.

    :param host: the name of its host in Nova; None when no host has it
    :param deleted: whether Nova has deleted it
    :param namespaces: those that Nova's record of it names; while it moves, those of both ends
    :param asked: the labels of the namespaces that its flavor asks for, in the order of ``hw:pmem``
    :param moving: what it is in the middle of, and what ends that; '' for nothing
    """

    uuid: str
    host: str | None
    deleted: bool = False
    namespaces: tuple[Namespace, ...] = ()
    asked: tuple[str, ...] = ()
    moving: str = ''


class Host(NamedTuple):
    """What was read of a host.

    :param name: its name in Nova
    :param instances: by UUID: those that Nova has on it, those that move from or to it, and those of its domains
    :param allocations: by consumer, what placement counts at the providers of this host
    :param usage: what its domains name
    :param devices: its inventory
    :param providers: the UUIDs of its providers, by the stable names of parents
    :param classes: the resource classes that count devices
    :param owners: the instance of each device that has a row
    """

    name: str
    instances: Mapping[str, Instance]
    allocations: Mapping[str, Amounts]
    usage: Usage
    devices: Sequence[InventoryDevice]
    providers: Mapping[str, str]
    classes: frozenset[str]
    owners: Mapping[DeviceKey, str] = {}


class Line(NamedTuple):
    """What becomes of the devices of one instance, and why. Those of each kind are in the order of the guest."""

    outcome: str
    instance_uuid: str
    devices: tuple[DeviceKey, ...]
    reason: str


class Plan(NamedTuple):
    """What would be recorded, and what an operator has to know beside it.

    :param lines: one for each instance with devices
    :param obstacles: mistakes in the options that keep any manager from starting
    :param unread: what of the host could not be read
    :param moving: how many instances with devices are in the middle of a move
    :param is_up: whether Nova takes the compute service to run
    """

    lines: list[Line]
    obstacles: list[str]
    unread: list[str]
    moving: int
    is_up: bool

    @property
    def warnings(self) -> list[str]:
        return [*([STILL_UP] if self.is_up else []), *(f'no manager starts: {one}' for one in self.obstacles),
                *(f'could not be read: {one}' for one in self.unread)]


class Check(NamedTuple):
    """One question whether the host can be changed now; ``result`` is one of the words above."""

    check: str
    result: str
    details: str


def plan(host: Host, refusal: Callable[[str, Sequence[DeviceKey]], str | None]) -> list[Line]:
    """Say what becomes of the devices of each instance that has any, or should have.

    :param refusal: says why the library would not record these devices for this instance, None when it would
    :returns: one line an instance, by UUID
    """
    return list(_Comparison(host, refusal).lines())


def checks_of_host(obstacles: Sequence[str], unread: Sequence[str]) -> Iterator[Check]:
    """Say what the host itself, of which Nova was not asked, shows of whether it can be changed now.

    :param obstacles: as in :class:`Plan`
    :param unread: the same
    """
    yield Check('options', FAILURE if obstacles else OK, '; '.join(obstacles))
    # The guests and devices were read as the service will read them, by the same user with the same privileges.
    yield Check('privileges', FAILURE if unread else OK, '; '.join(unread))


def checks_of_guests(found: Plan) -> Iterator[Check]:
    """Say what a plan shows of the same."""
    moving = f'instances with devices that are in the middle of a move: {found.moving}; let the moves end first'
    yield Check('moves', WARNING, moving) if found.moving else Check('moves', OK, '')
    outcomes = [line.outcome for line in found.lines]
    adopt, withheld = outcomes.count(ADOPT), outcomes.count(WITHHELD)
    left = f'instances with devices that are not recorded: {adopt} can be adopted, {withheld} stay withheld'
    yield Check('guests', WARNING, left) if adopt or withheld else Check('guests', OK, '')
    yield Check('nova-compute', WARNING, STILL_UP) if found.is_up else Check('nova-compute', OK, '')


class _Comparison:

    def __init__(self, host: Host, refusal: Callable[[str, Sequence[DeviceKey]], str | None]) -> None:
        self._host, self._refusal = host, refusal
        self._uses: dict[str, list[Use]] = {}
        for use in host.usage.uses:
            if use.kind in KINDS:
                self._uses.setdefault(use.domain_uuid, []).append(use)
        self._devices = {device.key: device for device in host.devices}
        self._names = {uuid: name for name, uuid in host.providers.items()}
        self._claimants: dict[DeviceKey, set[str]] = {}
        for uuid in self._uses.keys() | host.instances.keys():
            for key in self._spoken_of(uuid):
                self._claimants.setdefault(key, set()).add(uuid)

    def lines(self) -> Iterator[Line]:
        for uuid in sorted(self._uses.keys() | self._host.instances.keys()):
            instance = self._host.instances.get(uuid)
            devices = self._spoken_of(uuid)
            # One that Nova has on another host counts only with what it left here.
            is_here = instance is not None and instance.host == self._host.name
            if not devices and uuid not in self._uses and not (is_here and self._counted(uuid)):
                continue
            if devices and all(self._host.owners.get(key) == uuid for key in devices):
                yield Line(ALREADY, uuid, devices, 'recorded before')
                continue
            problem = self._problem(uuid, instance, devices)
            yield Line(ADOPT, uuid, devices, self._evidence(uuid, devices)) if problem is None else Line(
                WITHHELD, uuid, devices, problem)

    # -- what speaks of an instance's devices -------------------------------------------------------------------------

    def _named(self, uuid: str) -> list[DeviceKey]:
        """Those that its domain names: of each kind in the order of the definition."""
        uses = sorted(self._uses.get(uuid, ()), key=lambda use: KINDS.index(use.kind))
        return list(dict.fromkeys(DeviceKey(use.kind, use.identifier) for use in uses if use.identifier is not None))

    def _recorded(self, uuid: str) -> list[DeviceKey]:
        """Those of this host in Nova's record, in the order of the flavor, as Nova would put them into a definition."""
        instance = self._host.instances.get(uuid)
        if instance is None:
            return []
        # Namespaces have the same names on many hosts.
        settled, ours = instance.host == self._host.name and not instance.moving, set(self._host.providers.values())
        left = [namespace for namespace in instance.namespaces if settled or namespace.provider in ours]
        found = []
        for label in instance.asked:
            for namespace in left:
                if namespace.label == label:
                    left.remove(namespace)
                    found.append(namespace)
                    break
        return [DeviceKey(NAMESPACE, namespace.name) for namespace in (*found, *left)]

    def _spoken_of(self, uuid: str) -> tuple[DeviceKey, ...]:
        return tuple(dict.fromkeys((*self._named(uuid), *self._recorded(uuid))))

    def _counted(self, uuid: str) -> dict[tuple[str, str], int]:
        """What placement counts for it."""
        return {where: amount for where, amount in self._host.allocations.get(uuid, {}).items()
                if where[1] in self._host.classes and amount}

    # -- whether they agree -------------------------------------------------------------------------------------------

    def _problem(self, uuid: str, instance: Instance | None, devices: Sequence[DeviceKey]) -> str | None:
        """Why nobody can tell whose the devices are; None when all agree."""
        problem = self._of_instance(instance) or self._of_definition(uuid, instance) or self._of_others(uuid, devices)
        if problem is None and devices:
            problem = self._refusal(uuid, devices)
        return problem or self._of_placement(uuid, devices)

    def _of_instance(self, instance: Instance | None) -> str | None:
        if instance is None:
            return 'Nova does not know the instance: a domain was left behind, or somebody else made it'
        if instance.moving:
            return instance.moving
        if instance.deleted:
            return 'Nova has deleted the instance, and its domain is still here'
        if instance.host != self._host.name:
            where = 'on no host' if instance.host is None else f'on host {instance.host}'
            return f'Nova has the instance {where}, and its domain is still here'
        return None

    def _of_definition(self, uuid: str, instance: Instance | None) -> str | None:
        """What its definitions say otherwise than one another and Nova's record."""
        uses = self._uses.get(uuid, ())
        paths = {} if instance is None else {one.path: one.name for one in instance.namespaces}
        for use in uses:
            then = paths.get(use.address, use.identifier)
            if use.kind == NAMESPACE and then != use.identifier:
                return (f'its definition names {use.address}, which was {then} when Nova recorded it and is '
                        f'{use.identifier or "no namespace of the options"} now')
            if use.identifier is None:
                return f'its definition names {use.address}, which is no device that the options name'
            if use.running and use.live != use.defined:
                which, other = ('runs on', 'its definition does not name it') if use.live else (
                    'does not run on', 'its definition names it')
                return f'its guest {which} {use.identifier}, and {other}'
        if uuid not in self._host.usage.domains:
            return None                                 # then only Nova's record speaks of namespaces
        named = {key for key in self._named(uuid) if key.kind == NAMESPACE}
        recorded = set(self._recorded(uuid))
        if named - recorded:
            return f"its definition names {_listed(named - recorded)}, which Nova's record does not have"
        if recorded - named:
            return f"Nova's record has {_listed(recorded - named)}, which its definition does not name"
        return None

    def _of_others(self, uuid: str, devices: Iterable[DeviceKey]) -> str | None:
        for key in devices:
            others = sorted(self._claimants.get(key, set()) - {uuid})
            if others:
                return f'{key.identifier} is in the definition or the record of instance {", ".join(others)} too'
        return None

    def _of_placement(self, uuid: str, devices: Iterable[DeviceKey]) -> str | None:
        has: Counter[tuple[str, str]] = Counter()
        for key in devices:
            device = self._devices.get(key)
            if device is None:                          # with a row, or the library would have refused it
                return f'the host does not have {key.identifier}, which it has a row for'
            has[self._host.providers.get(device.provider, ''), device.resource_class] += 1
        counted = self._counted(uuid)
        for where in sorted(has.keys() | counted.keys()):
            if has[where] != counted.get(where, 0):
                provider, resource_class = where
                at = f' at provider {provider}' if provider not in self._names else (
                    f' at {self._names[provider]}' if self._names[provider] else '')
                return (f'placement counts {counted.get(where, 0)} {resource_class}{at} for it, and it has '
                        f'{has[where]}')
        return None

    def _evidence(self, uuid: str, devices: Iterable[DeviceKey]) -> str:
        """Why they are its own."""
        kinds = {key.kind for key in devices}
        speak = [] if uuid not in self._uses else ['its definition']
        speak += ["Nova's record"] if NAMESPACE in kinds else []
        said = f'{" and ".join(speak)} {"name" if len(speak) > 1 else "names"} them, and placement counts as many'
        return said if uuid in self._uses else f'{said}; it has no domain'


def _listed(keys: Iterable[DeviceKey]) -> str:
    return ', '.join(sorted(key.identifier for key in keys))
