"""Options of the adapter for Nova."""

from __future__ import annotations

from typing import Final

from oslo_config import cfg

from devicetrack import conf as registry

GROUP: Final = 'devicetrack_nova'

# Values of ``pci``.
OFF: Final = 'off'
OBSERVE: Final = 'observe'
CLEAN: Final = 'clean'

OPTIONS: list[cfg.Opt] = [
    cfg.StrOpt('pci', default=OFF, choices=[
        (OFF, 'nothing'),
        (OBSERVE, 'check them in every audit, report faults, and keep a history of their owners'),
        (CLEAN, 'also clean those with ``one_time_use`` that Nova has freed, and lift their reservation in placement'),
    ], help="""
What devicetrack does for the PCI functions of ``[pci] device_spec``, which Nova assigns itself. Nova owns their records
and their scheduling in any case. ``observe`` writes nothing to Nova and needs no further privileges. ``clean`` needs
Nova 33 or later and ``[pci] report_in_placement``.
"""),
]


def register(conf: cfg.ConfigOpts) -> None:
    registry.register(conf, GROUP, OPTIONS)
