"""A host with PCI functions, in one directory: an NVMe disk, and a network card with two virtual functions.

Files in the layout of sysfs stand for the kernel's view, and a file has the bytes of the disk. The simulated kernel is
in the process of the service, so the demo does not kill this service.
"""

from __future__ import annotations

import json
import os
from typing import Final
import uuid

from machine import Machine
from machine import MIB

DISK: Final = '0000:01:00.0'
CARD: Final = '0000:03:00.0'
DISK_BYTES: Final = 8 * MIB
PORTS: Final = 2

# The names of the functions in the options: an NVMe disk, the card, and its virtual function.
_ALIASES = {'disk': '1b36:0010', 'card': '8086:10c9', 'port': '8086:10ca'}
# An alias without a type never gets a physical function, as in Nova.
_TYPES = {'disk': 'type-PCI', 'card': 'type-PF', 'port': 'type-VF'}

_CONFIGURATION = """\
[DEFAULT]
log_file = {directory}/../service.log
debug = false

[devicetrack]
state_path = {directory}/state
machine_id_path = {directory}/machine-id

[pci]
{options}

[devicetrack_pci]
functions = all
sysfs_root = {sysfs}
cleaning = {{"vendor_id": "1b36", "policy": "zero"}}

[devicetrack_fleet]
connection = sqlite:///{mirror}
interval_s = 600
"""


class FunctionsHost(Machine):
    """The host in a directory, whose name it has. The service makes its functions and reports where they are."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        super().__init__(directory)
        self.name = self.directory.name
        self.log = self.directory.parent / 'service.log'
        self.mirror = self.directory.parent / 'mirror.sqlite'

    @property
    def serial(self) -> str:
        """The serial number of the disk."""
        return f'SN-{self.name}'

    def make(self) -> None:
        self.directory.mkdir()
        self.guests.directory.mkdir()
        (self.directory / 'machine-id').write_text(f'{uuid.uuid4().hex}\n')

    def options(self, sysfs: str) -> None:
        """Write the configuration of a service with these functions.

        :param sysfs: the directory that shows them
        """
        lines = []
        for name, product in _ALIASES.items():
            vendor_id, product_id = product.split(':')
            ids = {'vendor_id': vendor_id, 'product_id': product_id}
            alias = {'name': name, **ids, 'device_type': _TYPES[name]}
            lines += [f'device_spec = {json.dumps(ids)}', f'alias = {json.dumps(alias)}']
        self.configuration.write_text(_CONFIGURATION.format(
            directory=self.directory, sysfs=sysfs, options='\n'.join(lines), mirror=self.mirror))


def driver_of(sysfs: str, address: str) -> str:
    """The driver of a function, as sysfs shows it."""
    try:
        return os.path.basename(os.readlink(f'{sysfs}/bus/pci/devices/{address}/driver'))
    except FileNotFoundError:
        return '(none)'
