"""Decides which instance owns each device, on a host whose guests had devices before this library. No I/O.

Three sources name devices: the definition of a guest, Nova's record, and the allocations in placement. Nova records the
namespaces of an instance, but no mediated devices. A device is recorded for an instance only if all sources that name
the device agree. This module asks no service, and knows none of Nova's classes.
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
# The device kinds that the adapter handles for Nova, in the order in which plans list devices.
KINDS: Final = (NAMESPACE, MDEV)

# The outcomes for the devices of an instance.
ADOPT: Final = 'adopt'              # they belong to the instance, and would be recorded
ADOPTED: Final = 'adopted'          # they have just been recorded
ALREADY: Final = 'already'          # they were recorded before
WITHHELD: Final = 'withheld'        # their owner cannot be told

# The results of a check.
OK: Final = 'ok'
WARNING: Final = 'warning'          # the host can be changed, but an operator has to know or do something first
FAILURE: Final = 'failure'          # the host cannot be changed

STILL_UP: Final = ('Nova reports that nova-compute of this host runs. If it was stopped just now, all is well; if it '
                   'runs, stop it: its changes meanwhile are not in this plan')

# By provider and resource class.
Amounts = Mapping[tuple[str, str], int]


class NamedNamespace(NamedTuple):
    """A namespace in Nova's record of an instance.

    :param path: its path when the record was written
    :param provider: the UUID of the provider that counted it
    """

    name: str
    label: str
    path: str
    provider: str


class Instance(NamedTuple):
    """An instance as Nova knows it.

    :param host: the name of its host in Nova; None when no host has it
    :param deleted: whether Nova has deleted it
    :param namespaces: the namespaces in Nova's record of it; while it moves, those of both ends
    :param asked: the labels of the namespaces that its flavor asks for, in the order of ``hw:pmem``
    :param moving: the unfinished move of the instance, and how to end that; '' for none
    :param wants: the resource classes of devices that its flavor asks for
    """

    uuid: str
    host: str | None
    deleted: bool = False
    namespaces: tuple[NamedNamespace, ...] = ()
    asked: tuple[str, ...] = ()
    moving: str = ''
    wants: frozenset[str] = frozenset()


class AdoptedHost(NamedTuple):
    """The facts that were read about a host.

    :param name: its name in Nova
    :param instances: by UUID: those that Nova has on it, those that move from or to it, and those of its domains
    :param allocations: by consumer: the allocations in placement at the providers of this host
    :param usage: the devices that its domains name
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


class AdoptionLine(NamedTuple):
    """The outcome for the devices of one instance, and why. The devices of each kind are in the order of the guest.

    ``undefined`` are those of them that the host has and no domain names: only Nova's record says whose they are.
    """

    outcome: str
    instance_uuid: str
    devices: tuple[DeviceKey, ...]
    reason: str
    undefined: tuple[DeviceKey, ...] = ()


class AdoptionPlan(NamedTuple):
    """The devices that would be recorded, and other facts for the operator.

    :param lines: one for each instance with devices
    :param obstacles: mistakes in the options that keep any manager from starting
    :param unread: the parts of the host that could not be read
    :param moving: how many instances with devices are in the middle of a move
    :param is_up: whether Nova reports that the compute service runs
    """

    lines: list[AdoptionLine]
    obstacles: list[str]
    unread: list[str]
    moving: int
    is_up: bool

    @property
    def warnings(self) -> list[str]:
        return [*([STILL_UP] if self.is_up else []), *(f'the service does not start: {one}' for one in self.obstacles),
                *(f'could not be read: {one}' for one in self.unread)]


class HostCheck(NamedTuple):
    """A result of a check of whether the host can be changed now; ``result`` is one of the words above."""

    check: str
    result: str
    details: str


def plan(host: AdoptedHost, refusal: Callable[[str, Sequence[DeviceKey]], str | None]) -> list[AdoptionLine]:
    """Return the outcome for the devices of each instance that has any, or should have.

    :param refusal: says why the library would not record these devices for this instance; None if it would
    :returns: one line for each instance, sorted by UUID
    """
    return list(_Comparison(host, refusal).lines())


def checks_of_host(obstacles: Sequence[str], unmet: Sequence[str], unread: Sequence[str]) -> Iterator[HostCheck]:
    """Check whether the host can be changed now, as far as the host itself shows without asking Nova.

    A check has a result for each problem, those that keep the service from starting first.

    :param obstacles: as in :class:`AdoptionPlan`
    :param unmet: what the options name, and the host does not have or do; a manager starts without it
    :param unread: as in :class:`AdoptionPlan`, and the rights that this user lacks
    """
    yield from _one_each('options', (FAILURE, obstacles), (WARNING, unmet))
    # The guests and devices were read in the same way as the service will read them: same user, same privileges.
    yield from _one_each('privileges', (FAILURE, unread))


def _one_each(name: str, *problems: tuple[str, Sequence[str]]) -> Iterator[HostCheck]:
    """Make a result of each problem, so that a warning does not read as a failure; one ``ok`` if there is none."""
    found = [HostCheck(name, result, text) for result, texts in problems for text in dict.fromkeys(texts)]
    yield from found or [HostCheck(name, OK, '')]


def checks_of_guests(found: AdoptionPlan) -> Iterator[HostCheck]:
    """Check whether the host can be changed now, as far as a plan shows."""
    moving = f'instances with devices that are in the middle of a move: {found.moving}; let the moves end first'
    yield HostCheck('moves', WARNING, moving) if found.moving else HostCheck('moves', OK, '')
    outcomes = [line.outcome for line in found.lines]
    adopt, withheld = outcomes.count(ADOPT), outcomes.count(WITHHELD)
    left = (f'instances that have or ask for devices that are not recorded: {adopt} can be adopted, {withheld} stay '
            'withheld')
    yield HostCheck('guests', WARNING, left) if adopt or withheld else HostCheck('guests', OK, '')
    yield HostCheck('nova-compute', WARNING, STILL_UP) if found.is_up else HostCheck('nova-compute', OK, '')


class _Comparison:

    def __init__(self, host: AdoptedHost, refusal: Callable[[str, Sequence[DeviceKey]], str | None]) -> None:
        self._host, self._refusal = host, refusal
        self._uses: dict[str, list[Use]] = {}
        for use in host.usage.uses:
            if use.kind in KINDS:
                self._uses.setdefault(use.domain_uuid, []).append(use)
        self._defined = {(use.kind, use.identifier) for use in host.usage.uses}
        self._devices = {device.key: device for device in host.devices}
        self._names = {uuid: name for name, uuid in host.providers.items()}
        self._claimants: dict[DeviceKey, set[str]] = {}
        for uuid in self._uses.keys() | host.instances.keys():
            for key in self._spoken_of(uuid):
                self._claimants.setdefault(key, set()).add(uuid)

    def lines(self) -> Iterator[AdoptionLine]:
        for uuid in sorted(self._uses.keys() | self._host.instances.keys()):
            instance = self._host.instances.get(uuid)
            devices = self._spoken_of(uuid) or self._owned(uuid)
            # An instance that Nova has on another host counts only with the devices that it left here.
            is_here = instance is not None and instance.host == self._host.name
            lacks = instance is not None and is_here and bool(self._counted(uuid) or instance.wants)
            if not devices and uuid not in self._uses and not lacks:
                continue
            if devices and all(self._host.owners.get(key) == uuid for key in devices):
                yield AdoptionLine(ALREADY, uuid, devices, self._since(uuid, instance, devices))
                continue
            problem = self._problem(uuid, instance, devices)
            undefined = tuple(key for key in devices if key in self._devices and key not in self._defined
                              and key not in self._host.owners)
            outcome, why = (ADOPT, self._evidence(uuid, devices)) if problem is None else (WITHHELD, problem)
            yield AdoptionLine(outcome, uuid, devices, why, undefined)

    # -- the sources that name an instance's devices ------------------------------------------------------------------

    def _named(self, uuid: str) -> list[DeviceKey]:
        """Return the devices that its domain names: those of each kind in the order of the definition."""
        uses = sorted(self._uses.get(uuid, ()), key=lambda use: KINDS.index(use.kind))
        return list(dict.fromkeys(DeviceKey(use.kind, use.identifier) for use in uses if use.identifier is not None))

    def _recorded(self, uuid: str) -> list[DeviceKey]:
        """Return this host's devices in Nova's record, in the flavor's order, which Nova uses in a definition too."""
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

    def _owned(self, uuid: str) -> tuple[DeviceKey, ...]:
        """Return the devices that have a row for it: nothing else may name the mediated devices of a guest."""
        return tuple(sorted((key for key, owner in self._host.owners.items() if owner == uuid and key.kind in KINDS),
                            key=lambda key: (KINDS.index(key.kind), key.identifier)))

    def _counted(self, uuid: str) -> dict[tuple[str, str], int]:
        """Return its allocations in placement."""
        return {where: amount for where, amount in self._host.allocations.get(uuid, {}).items()
                if where[1] in self._host.classes and amount}

    # -- comparisons of the sources -----------------------------------------------------------------------------------

    def _problem(self, uuid: str, instance: Instance | None, devices: Sequence[DeviceKey]) -> str | None:
        """Return why the owner of the devices cannot be told; None if all sources agree."""
        problem = self._of_instance(instance) or self._of_definition(uuid, instance) or self._of_others(uuid, devices)
        if problem is None and devices:
            problem = self._refusal(uuid, devices)
        return problem or self._of_placement(uuid, devices) or self._of_flavor(instance, devices)

    def _since(self, uuid: str, instance: Instance | None, devices: Sequence[DeviceKey]) -> str:
        """Say that devices were recorded before, and what contradicts that since then."""
        problem = None
        if instance is None or not instance.moving:
            problem = (self._of_instance(instance) or self._of_others(uuid, devices)
                       or self._of_placement(uuid, devices))
        return 'recorded before' if problem is None else (
            f'recorded before, but {problem}; if nova-compute ran here without devicetrack since then, the record is '
            'out of date: move it away and adopt again')

    def _of_instance(self, instance: Instance | None) -> str | None:
        if instance is None:
            return 'Nova has no such instance: its domain is a leftover, or another program made it'
        if instance.moving:
            return instance.moving
        if instance.deleted:
            return f'Nova has deleted the instance{self._still_here(instance)}'
        if instance.host != self._host.name:
            where = 'on no host' if instance.host is None else f'on host {instance.host}'
            return f'Nova has the instance {where}{self._still_here(instance)}'
        return None

    def _still_here(self, instance: Instance) -> str:
        return ', and its domain is still here' if instance.uuid in self._host.usage.domains else ''

    def _of_definition(self, uuid: str, instance: Instance | None) -> str | None:
        """Return how its definitions differ from one another or from Nova's record; None if they agree."""
        uses = self._uses.get(uuid, ())
        paths = {} if instance is None else {one.path: one.name for one in instance.namespaces}
        for use in uses:
            then = paths.get(use.address, use.identifier)
            if use.kind == NAMESPACE and then != use.identifier:
                return (f'its definition has {use.address}, which was {then} when Nova recorded it and is '
                        f'{use.identifier or "no namespace of the options"} now')
            if use.identifier is None:
                return f'its definition has {use.address}, which is in no option of this host'
            if use.running and use.live != use.defined:
                which, other = ('uses', 'its definition lacks it') if use.live else (
                    'does not use', 'its definition has it')
                return f'its guest {which} {use.identifier}, but {other}'
        if uuid not in self._host.usage.domains:
            return None                                 # without a domain only Nova's record names namespaces
        named = {key for key in self._named(uuid) if key.kind == NAMESPACE}
        recorded = set(self._recorded(uuid))
        if named - recorded:
            return f"its definition has {_listed(named - recorded)}, which Nova's record lacks"
        if recorded - named:
            return f"Nova's record has {_listed(recorded - named)}, which its definition lacks"
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
            if device is None:                          # it has a row: without one the library would have refused it
                return f'the host does not have {key.identifier}, although it has a row'
            has[self._host.providers.get(device.provider, ''), device.resource_class] += 1
        counted = self._counted(uuid)
        for where in sorted(has.keys() | counted.keys()):
            if has[where] != counted.get(where, 0):
                provider, resource_class = where
                at = f' at provider {provider}' if provider not in self._names else (
                    f' at {self._names[provider]}' if self._names[provider] else '')
                return (f'placement allocates {counted.get(where, 0)} {resource_class}{at} to it, but it has '
                        f'{has[where]}')
        return None

    @staticmethod
    def _of_flavor(instance: Instance | None, devices: Sequence[DeviceKey]) -> str | None:
        if devices or instance is None or not instance.wants:
            return None
        return (f'its flavor asks for {", ".join(sorted(instance.wants))}, but no source lists such a device: it '
                'cannot start')

    def _evidence(self, uuid: str, devices: Iterable[DeviceKey]) -> str:
        """Say why the devices belong to it."""
        kinds = {key.kind for key in devices}
        speak = [] if uuid not in self._uses else ['its definition']
        speak += ["Nova's record"] if NAMESPACE in kinds else []
        said = f'{" and ".join(speak)} {"list" if len(speak) > 1 else "lists"} them, and placement allocates as many'
        return said if uuid in self._uses else f'{said}; it has no domain'


def _listed(keys: Iterable[DeviceKey]) -> str:
    return ', '.join(sorted(key.identifier for key in keys))
