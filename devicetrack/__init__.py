"""One owner for every device of a compute host, durably, at every instant.

What a compute service needs stands here under short names and loads when it is first used; importing the package alone
loads neither SQLAlchemy nor versioned objects.
"""

from __future__ import annotations

import importlib
from typing import Any
import warnings

# oslo.versionedobjects loads oslo.messaging, that oslo.service, and that eventlet, itself or by futurist; oslo.privsep
# loads it too. eventlet then prints that it is deprecated. Nothing here uses it, and who imports this library can do
# nothing about it.
# A program that imports eventlet itself is still warned. A filter within catch_warnings() around each import would not
# do: it undoes what other threads change in the filters meanwhile.
warnings.filterwarnings('ignore', r'\s*Eventlet is deprecated', module='oslo_|futurist')

_PUBLIC = {
    'Claim': 'devicetrack.claims.claim',
    'ClaimManager': 'devicetrack.claims.manager',
    'DeviceRequest': 'devicetrack.objects',
    'InstanceResources': 'devicetrack.objects',
    'MigrationContext': 'devicetrack.objects',
    'load_driver': 'devicetrack.virt.loader',
    'open_store': 'devicetrack.store.sql',
    'register_options': 'devicetrack.conf.opts',
    'sync_store': 'devicetrack.store.sql',
}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
