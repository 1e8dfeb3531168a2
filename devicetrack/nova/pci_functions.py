"""Reads the PCI functions that Nova itself hands out: their rows, their tags, and their providers in placement.

Nothing here writes or takes a lock of Nova.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import Final
from typing import NamedTuple

from keystoneauth1 import exceptions as keystone
from nova import context as nova_context
from nova import exception as nova_exception
import nova.conf
from nova.objects import fields

from devicetrack import exception

_PLACEMENT: Final = 'placement'


class PCIFunction(NamedTuple):
    """A function as Nova has it.

    :param parent_address: that of its physical function, for a virtual one
    :param status: as in ``nova.objects.fields.PciDeviceStatus``
    :param instance_uuid: the instance that has it, or for which it is claimed
    :param row_id: the number of its row in Nova's database; None until Nova has saved it
    :param extra_info: as Nova keeps it
    :param card_serial: the serial number of the card, as libvirt told Nova; '' if it did not
    :param updated_at: when Nova last saved a change of its row
    :param tags: those of the first ``[pci] device_spec`` that matches it, as Nova reads them; None if none does any
        more: Nova keeps the function until its instance is gone
    """

    address: str
    dev_type: str
    parent_address: str | None
    status: str
    instance_uuid: str | None
    row_id: int | None
    extra_info: Mapping[str, str]
    card_serial: str
    updated_at: str
    tags: Mapping[str, str] | None

    @property
    def is_one_time_use(self) -> bool:
        """Whether its ``device_spec`` says so. Then Nova 33 and later reserve it for good once an instance has it."""
        return self.tags is not None and self.tags.get('one_time_use') == 'true'

    @property
    def network(self) -> str | None:
        """The physical network that its ``device_spec`` names."""
        return (self.tags or {}).get('physical_network')

    @property
    def is_available(self) -> bool:
        return self.status == fields.PciDeviceStatus.AVAILABLE and self.instance_uuid is None

    def provider_name(self, nodename: str) -> str:
        """Return the name of the provider that counts it, by the rule of ``nova.compute.pci_placement_translator``."""
        return f'{nodename}_{(self.parent_address or self.address).upper()}'


class PCIProvider(NamedTuple):
    """A provider of functions in placement.

    :param generation: as it was before the allocations were read. If one is made or ends afterwards, placement refuses
        a write with this generation
    :param inventory: the record of its one class: ``total``, ``reserved`` and the others
    :param allocations: the amounts of this class by consumer: an instance, or a migration
    """

    uuid: str
    generation: int
    resource_class: str
    inventory: Mapping[str, Any]
    allocations: Mapping[str, int]

    @property
    def reserved(self) -> int:
        reserved: int = self.inventory['reserved']
        return reserved


class PCIFunctions:
    """The functions of one compute node.

    :param tracker: Nova's resource tracker
    """

    def __init__(self, tracker: Any, nodename: str) -> None:
        self._tracker, self.nodename = tracker, nodename

    def all(self) -> list[PCIFunction]:
        """Return every function by its address, as the memory of Nova's tracker has it. Reads nothing else.

        That memory is what Nova decides by. It saves it after each of its decisions.

        :raises NotReady: Nova has not read its rows yet
        """
        return self._those(lambda _row: True)

    def of(self, instance_uuid: str) -> list[PCIFunction]:
        """Return the functions that an instance has, or that are claimed for it.

        :raises NotReady: as :meth:`all`
        """
        return self._those(lambda row: 'instance_uuid' in row and row.instance_uuid == instance_uuid)

    def function(self, address: str) -> PCIFunction | None:
        """Return one function; None if Nova has none at this address.

        :raises NotReady: as :meth:`all`
        """
        return next(iter(self._those(lambda row: row.address == address)), None)

    def _those(self, which: Callable[[Any], bool]) -> list[PCIFunction]:
        pci_tracker = self._tracker.pci_tracker
        if pci_tracker is None:
            raise exception.NotReady(self._tracker.host)
        # Another thread of Nova may change the list.
        return [_function(row, pci_tracker.dev_filter.get_devspec(row))
                for row in sorted(filter(which, pci_tracker.pci_devs.objects.copy()), key=lambda row: row.address)]

    def provider(self, function: PCIFunction) -> PCIProvider | None:
        """Ask placement for the provider that counts a function; None if it has none.

        Nova reports no functions without ``[pci] report_in_placement``, and none with a physical network.

        :raises NovaUnavailable: placement does not answer, or its answer has not one class
        """
        if not nova.conf.CONF.pci.report_in_placement or function.network:
            return None
        name, client = function.provider_name(self.nodename), self._tracker.reportclient
        context = nova_context.get_admin_context()
        try:
            uuid = function.extra_info.get('rp_uuid') or _uuid_of(client, context, name)
            if uuid is None:
                return None
            # In this order: see PCIProvider.
            answer = client.get(f'/resource_providers/{uuid}/inventories', global_request_id=context.global_id)
            if answer.status_code == _NOT_FOUND:
                return None
            if not answer:
                raise exception.NovaUnavailable(_PLACEMENT, f'{answer.status_code}: {answer.text}')
            found = client.get_allocations_for_resource_provider(context, uuid).allocations
        except (nova_exception.NovaException, keystone.ClientException) as error:
            raise exception.NovaUnavailable(_PLACEMENT, f'{type(error).__name__}: {error}') from error
        inventories = answer.json()['inventories']
        if len(inventories) != 1:
            raise exception.NovaUnavailable(_PLACEMENT, f'provider {name} has the classes '
                                                        f'{", ".join(sorted(inventories)) or "(none)"}')
        (resource_class, inventory), = inventories.items()
        return PCIProvider(uuid, answer.json()['resource_provider_generation'], resource_class, inventory, {
            consumer: one['resources'].get(resource_class, 0) for consumer, one in found.items()})


_NOT_FOUND: Final = 404


def _uuid_of(client: Any, context: Any, name: str) -> str | None:
    try:
        uuid: str = client.get_provider_by_name(context, name)['uuid']
    except nova_exception.ResourceProviderNotFound:
        return None
    return uuid


def _function(row: Any, spec: Any) -> PCIFunction:
    # A row that Nova has not saved yet lacks some fields.
    said = {name: getattr(row, name) if name in row else None for name in (
        'parent_addr', 'instance_uuid', 'id', 'updated_at')}
    return PCIFunction(row.address, row.dev_type, said['parent_addr'], row.status, said['instance_uuid'], said['id'],
                       dict(row.extra_info), row.card_serial_number or '', str(said['updated_at']),
                       None if spec is None else dict(spec.get_tags()))
