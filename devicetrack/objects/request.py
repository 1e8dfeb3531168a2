"""The devices that an instance needs."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import itertools
from typing import Any

from oslo_utils import versionutils
from oslo_versionedobjects import fields as ovo_fields

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import base
from devicetrack.objects import extra_specs as specs
from devicetrack.objects import fields
from devicetrack.objects.choice import Choice
from devicetrack.objects.network_port import NetworkPort
from devicetrack.objects.network_port import resource_class_of
from devicetrack.objects.pci_alias import PCIAlias


@base.register
class DeviceChoice(base.DeviceTrackObject):
    """Devices of one resource class that have all features of ``needs`` and none of ``refuses``."""

    VERSION = '1.0'
    fields = {
        'resource_class': ovo_fields.StringField(),
        'needs': ovo_fields.ListOfStringsField(default=[]),
        'refuses': ovo_fields.ListOfStringsField(default=[]),
    }
    resource_class: str
    needs: list[str]
    refuses: list[str]

    @classmethod
    def of(cls, choice: Choice) -> DeviceChoice:
        return cls(resource_class=choice.resource_class, needs=sorted(choice.needs), refuses=sorted(choice.refuses))

    def as_choice(self) -> Choice:
        return Choice(self.resource_class, frozenset(self.needs), frozenset(self.refuses))


@base.register
class RequestedDevices(base.DeviceTrackObject):
    """``amount`` devices of one resource class, all from the provider ``provider_uuid`` unless it is None.

    With ``choices`` each device fits at least one choice, and ``resource_class`` is the class of the first choice.
    ``numa_affinity_policy`` is the policy for these devices; None means the request's.

    With ``networks`` the devices are virtual functions, the first for the first of these ports, and so on. There are as
    many ports as ``amount`` says, and no ``choices``.

    1.1 added ``choices`` and ``numa_affinity_policy``, 1.2 ``networks``. A request with them is not sent to a peer that
    does not know them: it would take any device of the class.
    """

    VERSION = '1.2'
    fields = {
        'resource_class': ovo_fields.StringField(),
        'amount': fields.AmountField(),
        'provider_uuid': fields.or_none(ovo_fields.UUIDField),
        'choices': ovo_fields.ListOfObjectsField(base.name_of('DeviceChoice'), default=[]),
        'numa_affinity_policy': fields.or_none(fields.NUMAAffinityPolicyField),
        'networks': ovo_fields.ListOfObjectsField(base.name_of('NetworkPort'), default=[]),
    }
    resource_class: str
    amount: int
    provider_uuid: str | None
    choices: list[DeviceChoice]
    numa_affinity_policy: str | None
    networks: list[NetworkPort]
    ADDED = {'1.1': ('choices', 'numa_affinity_policy'), '1.2': ('networks',)}
    obj_relationships = {'choices': [('1.1', '1.0')], 'networks': [('1.2', '1.0')]}

    @classmethod
    def of_port(cls, port: NetworkPort, provider_uuid: str | None = None,
                resource_class: str | None = None) -> RequestedDevices:
        """Request a virtual function for a port.

        :param resource_class: the class that ``[pci] device_spec`` gives its functions, if it gives one
        :raises BadRequest: placement does not accept a name made of that of the physical network
        """
        try:
            counted = resource_class or resource_class_of(port.physical_network)
        except ValueError as error:
            raise exception.BadRequest('port.physical_network', port.physical_network, str(error)) from error
        return cls(resource_class=counted, amount=1, provider_uuid=provider_uuid, networks=[port])

    def obj_make_compatible(self, primitive: dict[str, Any], target_version: str) -> None:
        for name in self.unknown_to(target_version):
            if primitive.get(name):
                raise exception.BadRequest(f'wanted.{name}', getattr(self, name),
                                           f'cannot be said to a peer that knows version {target_version}')
        super().obj_make_compatible(primitive, target_version)


@base.register
class DeviceRequest(base.DeviceTrackObject):
    """All devices that an instance needs. The order of ``wanted`` is their order in the guest.

    ``numa_nodes`` are the host's nodes that the guest runs on, empty when it is not pinned. They matter only with a
    policy other than ``none``.

    1.1 added the policy ``socket``, and has requested devices of 1.1. For a peer of 1.0 ``socket`` becomes
    ``required``, which allows fewer devices, and none that ``socket`` does not allow. 1.2 has requested devices of 1.2.
    """

    VERSION = '1.2'
    fields = {
        'wanted': ovo_fields.ListOfObjectsField(base.name_of('RequestedDevices')),
        'numa_nodes': ovo_fields.ListOfIntegersField(default=[]),
        'numa_affinity_policy': fields.NUMAAffinityPolicyField(default=vocabulary.NONE),
    }
    wanted: list[RequestedDevices]
    numa_nodes: list[int]
    numa_affinity_policy: str
    obj_relationships = {'wanted': [('1.0', '1.0'), ('1.1', '1.1'), ('1.2', '1.2')]}

    def obj_make_compatible(self, primitive: dict[str, Any], target_version: str) -> None:
        super().obj_make_compatible(primitive, target_version)
        if versionutils.convert_version_to_tuple(target_version) < (1, 1) \
                and primitive.get('numa_affinity_policy') == vocabulary.SOCKET:
            primitive['numa_affinity_policy'] = vocabulary.REQUIRED

    @classmethod
    def of(cls, *wanted: tuple[str, int] | tuple[str, int, str | None], numa_nodes: list[int] | None = None,
           numa_affinity_policy: str = vocabulary.NONE) -> DeviceRequest:
        """Make a request from (resource class, amount) or (resource class, amount, provider UUID) tuples.

        :raises BadRequest: a tuple is malformed
        """
        for item in wanted:
            if not isinstance(item, (tuple, list)) or len(item) not in (2, 3):
                raise exception.BadRequest('request', item, 'must be a tuple (resource class, amount) or '
                                           '(resource class, amount, provider UUID)')
        return cls._of([RequestedDevices(resource_class=item[0], amount=item[1],
                                         provider_uuid=item[2] if len(item) > 2 else None) for item in wanted],
                       numa_nodes, numa_affinity_policy)

    def with_ports(self, ports: Sequence[NetworkPort]) -> DeviceRequest:
        """Return the same request with a virtual function for each port after its devices.

        :raises BadRequest: placement does not accept a name made of that of a physical network
        """
        return DeviceRequest(
            wanted=[*self.wanted, *map(RequestedDevices.of_port, ports)], numa_nodes=list(self.numa_nodes),
            numa_affinity_policy=self.numa_affinity_policy)

    @classmethod
    def _of(cls, wanted: list[RequestedDevices], numa_nodes: list[int] | None, policy: str) -> DeviceRequest:
        return cls(wanted=wanted, numa_nodes=numa_nodes or [], numa_affinity_policy=policy)

    @classmethod
    def from_extra_specs(cls, extra_specs: Mapping[str, str], numa_nodes: list[int] | None = None,
                         numa_affinity_policy: str | None = None,
                         aliases: Mapping[str, PCIAlias] | None = None,
                         image_properties: specs.Properties | None = None) -> DeviceRequest:
        """Make a request from a flavor's extra specs.

        It begins with the namespaces of ``hw:pmem`` and the functions of ``pci_passthrough:alias``, in their order. It
        has every class of a ``resources`` extra spec, except those that the service's own tracker counts on every host
        (``VCPU``, ``PCPU``, ``MEMORY_MB``, ``DISK_GB``). A trait of a type (``CUSTOM_DEVICETRACK_…``) limits the
        devices of its group; other traits of devices are refused, because no scheduler has looked for them.

        :param numa_affinity_policy: replaces the policies of flavor and image, and those of the aliases
        :param aliases: the names that ``pci_passthrough:alias`` may have (``ClaimManager.aliases``); None leaves that
            extra spec to others
        :param image_properties: those of the guest's image: ``hw_pci_numa_affinity_policy`` is read
        :raises BadRequest: a value is not valid, a trait cannot be followed, or flavor and image have different
            policies; names the extra spec
        """
        needs = specs.read(extra_specs, aliases)
        limited = specs.limited(extra_specs) if needs.functions or any(needs.amounts.values()) else []
        rest = dict(needs.amounts)
        for asked in limited:
            rest[asked.choices[0].resource_class] -= asked.amount
        for resource_class in needs.namespaces:
            rest[resource_class] -= 1
        wanted = _plain((name, len(list(same))) for name, same in itertools.groupby(needs.namespaces))
        policy = numa_affinity_policy or specs.numa_policy(needs.policy, image_properties)
        wanted += [RequestedDevices(
            resource_class=asked.choices[0].resource_class, amount=asked.amount,
            choices=[DeviceChoice.of(choice) for choice in asked.choices],
            numa_affinity_policy=asked.numa_policy and (policy or asked.numa_policy))
            for asked in (*needs.functions, *limited)]
        wanted += _plain((name, amount) for name, amount in rest.items() if amount)
        return cls._of(wanted, numa_nodes, policy or vocabulary.NONE)


def _plain(amounts: Iterable[tuple[str, int]]) -> list[RequestedDevices]:
    return [RequestedDevices(resource_class=name, amount=amount) for name, amount in amounts]
