"""The devices that an instance needs."""

from __future__ import annotations

from collections.abc import Mapping
import itertools

from oslo_versionedobjects import fields as ovo_fields

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import base
from devicetrack.objects import extra_specs as specs
from devicetrack.objects import fields
from devicetrack.objects.pci_alias import PCIAlias


@base.register
class RequestedDevices(base.DeviceTrackObject):
    """``amount`` devices of one resource class, all from the provider ``provider_uuid`` unless it is None."""

    VERSION = '1.0'
    fields = {
        'resource_class': ovo_fields.StringField(),
        'amount': fields.AmountField(),
        'provider_uuid': fields.or_none(ovo_fields.UUIDField),
    }


@base.register
class DeviceRequest(base.DeviceTrackObject):
    """All devices that an instance needs. The order of ``wanted`` is their order in the guest.

    ``numa_nodes`` are the host's nodes that the guest runs on, empty when it is not pinned. They matter only with a
    policy other than ``none``.
    """

    VERSION = '1.0'
    fields = {
        'wanted': ovo_fields.ListOfObjectsField(base.name_of('RequestedDevices')),
        'numa_nodes': ovo_fields.ListOfIntegersField(default=[]),
        'numa_affinity_policy': fields.NUMAAffinityPolicyField(default=vocabulary.NONE),
    }

    @classmethod
    def of(cls, *wanted: tuple[str, int] | tuple[str, int, str | None], numa_nodes: list[int] | None = None,
           numa_affinity_policy: str = vocabulary.NONE) -> DeviceRequest:
        """Make a request from (resource class, amount) or (resource class, amount, provider UUID) tuples.

        :raises BadRequest: something else was given
        """
        for item in wanted:
            if not isinstance(item, (tuple, list)) or len(item) not in (2, 3):
                raise exception.BadRequest('request', item, 'must be a tuple (resource class, amount) or '
                                           '(resource class, amount, provider UUID)')
        return cls(
            wanted=[RequestedDevices(resource_class=item[0], amount=item[1],
                                     provider_uuid=item[2] if len(item) > 2 else None) for item in wanted],
            numa_nodes=numa_nodes or [], numa_affinity_policy=numa_affinity_policy)

    @classmethod
    def from_extra_specs(cls, extra_specs: Mapping[str, str], numa_nodes: list[int] | None = None,
                         numa_affinity_policy: str | None = None,
                         aliases: Mapping[str, PCIAlias] | None = None) -> DeviceRequest:
        """Make a request from a flavor's extra specs.

        It begins with the namespaces of ``hw:pmem`` and the functions of ``pci_passthrough:alias``, in their order. It
        has every class of a ``resources`` extra spec, except those that the service's own tracker counts on every host
        (``VCPU``, ``PCPU``, ``MEMORY_MB``, ``DISK_GB``).

        :param numa_affinity_policy: replaces the flavor's policy, and that of its aliases
        :param aliases: the names that ``pci_passthrough:alias`` may have (``ClaimManager.aliases``); None leaves that
            extra spec to others
        :raises BadRequest: a value is not valid; the error names the extra spec
        """
        needs = specs.read(extra_specs, aliases)
        rest = dict(needs.amounts)
        for resource_class in needs.order:
            rest[resource_class] -= 1
        wanted = [(name, len(list(same))) for name, same in itertools.groupby(needs.order)]
        wanted += [(name, amount) for name, amount in rest.items() if amount]
        policy = numa_affinity_policy or needs.policy or vocabulary.NONE
        return cls.of(*wanted, numa_nodes=numa_nodes, numa_affinity_policy=policy)
