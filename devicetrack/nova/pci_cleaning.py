"""Tells which of Nova's PCI functions wait for their cleaning, and has Nova hand them out again (``pci = clean``).

Nova reserves a function with ``one_time_use`` in placement when an instance gets it, and never ends that itself. So the
scheduler gives the function to nobody until this module writes the inventory with ``reserved = 0``. It does so under
Nova's own lock, and with the generation of the provider: an allocation that is made meanwhile, or another writer of the
inventory, makes placement refuse the write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from typing import Final

from keystoneauth1 import exceptions as keystone
from nova import context as nova_context
from nova import utils
from nova.compute import resource_tracker
from nova.objects import fields

from devicetrack import exception
from devicetrack.nova.pci_functions import PCIFunction
from devicetrack.nova.pci_functions import PCIFunctions
from devicetrack.nova.pci_functions import PCIProvider
from devicetrack.objects import cleanable
from devicetrack.objects.cleanable import Cleanable
from devicetrack.objects.values import DeviceKey

_KIND: Final = 'pci'
# Nova reserves no others: nova/compute/pci_placement_translator.py.
_WHOLE: Final = (fields.PciDeviceType.STANDARD, fields.PciDeviceType.SRIOV_PF)
# The first version that takes an inventory of which everything is reserved.
_VERSION: Final = '1.26'
_CONFLICT: Final = 409
_TRIES: Final = 4


class NovaDevices:
    """As :class:`devicetrack.claims.service_cleaning.DeviceService`.

    :param tracker: Nova's resource tracker
    """

    def __init__(self, tracker: Any, functions: PCIFunctions) -> None:
        self._tracker, self._functions = tracker, functions

    def devices(self) -> Mapping[DeviceKey, Cleanable]:
        return {_key(function): self._state(function) for function in self._functions.all() if _waits(function)}

    def _state(self, function: PCIFunction) -> Cleanable:
        try:
            provider = self._functions.provider(function) if function.is_available else None
        except exception.NovaUnavailable as error:
            return Cleanable(cleanable.UNKNOWN, str(error))
        if not function.is_available or (provider is not None and provider.allocations):
            return Cleanable(cleanable.USED, _told(function))
        if provider is None:
            return Cleanable(cleanable.UNKNOWN, 'placement has no provider for it' if not function.network else (
                'it has a physical_network, and Nova reports no such function to placement, so nothing reserves it '
                'after its guest: remove one_time_use, or physical_network'))
        return Cleanable(cleanable.WAITING if provider.reserved else cleanable.FREE, _told(function))

    def check_waits(self, key: DeviceKey, told: str) -> None:
        self._waiting(key, told)

    def _waiting(self, key: DeviceKey, told: str) -> PCIProvider:
        function = self._functions.function(key.identifier)
        if function is None or not function.is_one_time_use:
            raise exception.DeviceInUse(*key, 'Nova no longer assigns it, or not with one_time_use')
        if not function.is_available or _told(function) != told:
            raise exception.DeviceInUse(
                *key, f'Nova assigned it to an instance ({function.instance_uuid or "gone again"})')
        provider = self._functions.provider(function)
        if provider is None or provider.allocations:
            raise exception.DeviceInUse(*key, 'placement has no provider for it' if provider is None else
                                        f'placement has allocations of it: {", ".join(sorted(provider.allocations))}')
        if not provider.reserved:
            raise exception.DeviceInUse(*key, 'another program lifted its reservation, so Nova may assign it')
        return provider

    def hand_out(self, key: DeviceKey, told: str) -> None:
        utils.synchronized(resource_tracker.COMPUTE_RESOURCE_SEMAPHORE, fair=True)(self._lift)(key, told)

    def _lift(self, key: DeviceKey, told: str) -> None:
        """Lift the reservation of a function. The caller has Nova's lock."""
        client, context = self._tracker.reportclient, nova_context.get_admin_context()
        for _ in range(_TRIES):
            provider = self._waiting(key, told)
            try:
                answer = client.put(
                    f'/resource_providers/{provider.uuid}/inventories/{provider.resource_class}',
                    {**provider.inventory, 'reserved': 0, 'resource_provider_generation': provider.generation},
                    version=_VERSION, global_request_id=context.global_id)
            except keystone.ClientException as error:
                raise exception.NovaUnavailable('placement', str(error)) from error
            if answer:
                # Else Nova would compare its next inventory with the one before.
                client.invalidate_resource_provider(provider.uuid, cacheonly=True)
                return
            if answer.status_code != _CONFLICT:
                break
        raise exception.NovaUnavailable('placement', f'{answer.status_code}: {answer.text}')


def given_to(instance_uuid: str, functions: PCIFunctions) -> set[DeviceKey]:
    """Return the functions of an instance that wait for their cleaning after it.

    :raises NotReady: Nova has not read its rows yet
    """
    return {_key(function) for function in functions.of(instance_uuid) if _waits(function)}


def _waits(function: PCIFunction) -> bool:
    return function.is_one_time_use and function.dev_type in _WHOLE


def _key(function: PCIFunction) -> DeviceKey:
    return DeviceKey(_KIND, function.address)


def _told(function: PCIFunction) -> str:
    """Return a text that is another one after an instance had a function: Nova saves each change of its row.

    Nova saves every row anew when it starts, so this says nothing about an earlier process.
    """
    return f'{function.row_id} {function.updated_at}'
