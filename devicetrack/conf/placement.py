"""Options of placement.

How it is reached is in the same group: keystoneauth1 has those options
(:func:`devicetrack.placement.session.open_adapter`).
"""

from __future__ import annotations

from typing import Final

from oslo_config import cfg

from devicetrack import conf as registry

GROUP: Final = 'placement'

OPTIONS: list[cfg.Opt] = []


def register(conf: cfg.ConfigOpts) -> None:
    registry.register(conf, GROUP, OPTIONS)
