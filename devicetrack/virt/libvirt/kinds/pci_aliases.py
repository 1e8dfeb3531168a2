"""The aliases by which flavors ask for PCI functions: ``[pci] alias``, read and checked."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from typing import Final

from devicetrack import vocabulary
from devicetrack.conf import pci as options
from devicetrack.objects.pci_alias import PCIAlias
from devicetrack.objects.pci_alias import PCIChoice
from devicetrack.virt.libvirt.kinds import json_entries
from devicetrack.virt.libvirt.kinds import pci_matching
from devicetrack.virt.libvirt.kinds import placement_names

OPTION: Final = f'[{options.SERVICE_GROUP}] alias'

DEVICE_TYPES: Final = ('type-PCI', 'type-PF', 'type-VF')
_POLICIES: Final = (vocabulary.REQUIRED, vocabulary.LEGACY, vocabulary.PREFERRED, vocabulary.SOCKET)
_KEYS: Final = frozenset(('name', 'capability_type', 'vendor_id', 'product_id', 'device_type', 'numa_policy',
                          'resource_class', 'traits', 'live_migratable'))
_LONGEST: Final = 256                   # characters of a name, in Nova


def read(values: Iterable[str]) -> Mapping[str, PCIAlias]:
    """Read the option. Objects with the same name are choices of one alias.

    :returns: the aliases by name
    :raises InvalidConfiguration: a value cannot be used
    """
    aliases: dict[str, PCIAlias] = {}
    said: dict[str, tuple[str | None, str]] = {}        # by name: the device type and policy of its objects
    for entry in json_entries.read(OPTION, values, lists=False):
        entry.check_keys(_KEYS)
        name = _name(entry)
        choice = _choice(entry)
        entry.choice('capability_type', ('pci',))
        device_type = entry.choice('device_type', DEVICE_TYPES)
        policy = entry.choice('numa_policy', _POLICIES) or vocabulary.LEGACY
        if name not in aliases:
            said[name] = device_type, policy
            aliases[name] = PCIAlias(name, (choice,), policy, device_type)
            continue
        for key, mine, first in zip(('device_type', 'numa_policy'), (device_type, policy), said[name], strict=True):
            if mine != first:
                raise entry.mistake(key, f'it is {mine or "missing"}, but {first or "missing"} in the first object '
                                         f'named {name!r}: write the same in all of them')
        aliases[name] = aliases[name]._replace(choices=(*aliases[name].choices, choice))
    return aliases


def _name(entry: json_entries.Entry) -> str:
    name = (entry.text('name') or '').strip()
    if not name:
        raise entry.mistake('name', 'it is missing: write the name that flavors ask for')
    if len(name) > _LONGEST:
        raise entry.mistake('name', f'it has more than {_LONGEST} characters: write a shorter one')
    if ':' in name or ',' in name:
        raise entry.mistake('name', 'no flavor can ask for a name with a colon or a comma: remove it')
    return name


def _choice(entry: json_entries.Entry) -> PCIChoice:
    vendor_id, product_id = (entry.read(key, pci_matching.hex_id) for key in ('vendor_id', 'product_id'))
    resource_class = entry.read('resource_class', placement_names.resource_class) if entry.text('resource_class') \
        else None
    if resource_class is None:
        if vendor_id is None or product_id is None:
            raise entry.mistake('product_id' if vendor_id else 'vendor_id',
                                'it is missing: write vendor_id and product_id, or resource_class')
        resource_class = placement_names.of_product(vendor_id, product_id)
    return PCIChoice(resource_class, entry.read('traits', placement_names.traits) or frozenset(),
                     entry.flag('live_migratable'), vendor_id, product_id)
