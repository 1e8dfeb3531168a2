"""Examples for the help of each command: what an operator most often wants of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

HEAD: Final = 'Examples::'

_INSTANCE: Final = '1c9e5b7a-4d20-4683-9f0e-3f635b5b9d0e'
_REQUEST: Final = '5d0e3a1c-7a52-4f5e-9d0b-8a1c6f2e4b77'

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    'audit': ('', '--repair --dry-run', '--repair', '-f json'),
    'complete': ('--shell bash',),
    'db check': ('',),
    'db move': ('--to new-store.conf',),
    'db online-data-migrations': ('', '--max-count 1000'),
    'db sync': ('',),
    'db version': ('',),
    'device admit': ('vpmem/ns3', "pci/0000:81:00.0 --clean-by-my-word 'erased with the tool of its vendor'"),
    'device cordon': ("vpmem/ns3 --reason 'bad blocks soon'", 'mdev/pci_0000_84_00_0 --parent --no-wait'),
    'device forget': ('vpmem/ns3', f'vpmem/ns3 --confirm {_INSTANCE}'),
    'device history': ('vpmem/ns3 --since 7d', 'mdev/pci_0000_84_00_0 --since yesterday', '--serial 1320220000123'),
    'device list': ('', '--withheld --watch', '--status free --status creatable', "--host 'rack7*'", '-f json'),
    'device retire': ('vpmem/ns3', f"vpmem/ns3 --confirm {_INSTANCE} --reason 'DIMM 4 is broken'"),
    'device show': ('vpmem/ns3', '4b20d080-1b54-4048-85b3-a6a62d165c01'),
    'device uncordon': ('vpmem/ns3', 'mdev/pci_0000_84_00_0 --parent'),
    'device wipe': ('vpmem/ns3',),
    'explain': ('--resource VGPU=2', '--extra-spec hw:pmem=4GB,SMALL', f'--instance {_INSTANCE}'),
    'fleet capacity': ('', '--request VGPU=1,CUSTOM_PMEM_NAMESPACE_4GB=2'),
    'fleet device history': ('--serial 1320220000123', 'vpmem/ns3 --since 7d'),
    'fleet device list': ('', '--status withheld'),
    'fleet drain': ('compute-7',),
    'fleet forget': ('compute-7',),
    'fleet map': ('--output fleet.html',),
    'fleet host list': ('', '-f json'),
    'fleet instance history': (_INSTANCE, f'{_INSTANCE} --since yesterday', '--refused --since yesterday'),
    'fleet migration matrix': ('',),
    'fleet push': ('',),
    'fleet sync': ('',),
    'host cordon': ("--reason 'new mainboard on Friday'",),
    'host forget': ('compute-7', 'compute-7 --machine-gone --confirm compute-7'),
    'host list': ('',),
    'host map': ('', '--output map.html'),
    'host show': ('', 'compute-7'),
    'host uncordon': ('',),
    'instance history': (f'{_INSTANCE} --since 7d', '--refused --since yesterday'),
    'instance list': ('', '--host compute-7'),
    'instance release': (_INSTANCE, f'{_INSTANCE} --yes'),
    'instance show': (_INSTANCE,),
    'metrics': ('', '--output /var/lib/node_exporter/devicetrack.prom'),
    'migration check': (f'--instance {_INSTANCE} --host compute-8',),
    'migration facts': ('-f json',),
    'migration matrix': ('', '--output matrix.html'),
    'migration table': ('',),
    'placement audit': ('', '--repair --dry-run'),
    'placement heal': ('--node compute-7 --dry-run', '--all'),
    'placement sync': ('--dry-run',),
    'recover': ('--from-hypervisor --dry-run', '--from-hypervisor'),
    'request list': ('--waiting', '--since 1h'),
    'request show': (f'{_REQUEST} --wait',),
}


def epilog(program: str, command: str) -> str:
    """Return the examples of a command, as a literal block of reStructuredText; '' if it has none."""
    lines = [f'    {program} {command} {arguments}'.rstrip() for arguments in EXAMPLES.get(command, ())]
    return '\n'.join((HEAD, '', *lines)) if lines else ''
