"""One owner for every device of a compute host, durably, at every instant.

What a compute service needs stands here under short names and loads when it is first used; importing the package alone
loads neither SQLAlchemy nor versioned objects.
"""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {
    'Claim': 'devicetrack.claims.claim',
    'ClaimManager': 'devicetrack.claims.manager',
    'DeviceRequest': 'devicetrack.objects',
    'InstanceResources': 'devicetrack.objects',
    'MigrationContext': 'devicetrack.objects',
    'load_driver': 'devicetrack.virt.loader',
    'open_store': 'devicetrack.store.sql',
    'register_options': 'devicetrack.conf.opts',
}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
