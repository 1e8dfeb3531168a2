"""One owner for every device of a compute host, durably, at every instant.

The package has short names for the objects that a compute service needs, and loads each at its first use. Importing
only the package loads neither SQLAlchemy nor versioned objects.
"""

from __future__ import annotations

import importlib
from typing import Any
from typing import TYPE_CHECKING
import warnings

if TYPE_CHECKING:
    from devicetrack.claims.claim import Claim as Claim
    from devicetrack.claims.manager import ClaimManager as ClaimManager
    from devicetrack.conf.opts import register_options as register_options
    from devicetrack.objects import DeviceRequest as DeviceRequest
    from devicetrack.objects import InstanceResources as InstanceResources
    from devicetrack.objects import MigrationContext as MigrationContext
    from devicetrack.service.lifecycle import Lifecycle as Lifecycle
    from devicetrack.store.sql import open_store as open_store
    from devicetrack.store.sql import sync_store as sync_store
    from devicetrack.virt.loader import load_driver as load_driver
    __version__: str

# eventlet warns that it is deprecated. devicetrack.lean_imports keeps it out of processes that do not use it, but a
# program may load a library that brings it before us. A program that imports eventlet itself still gets the warning. A
# filter within catch_warnings() around each import would be wrong: it undoes changes that other threads make to the
# filters meanwhile.
warnings.filterwarnings('ignore', r'\s*Eventlet is deprecated', module='oslo_|futurist')

_PUBLIC = {
    'Claim': 'devicetrack.claims.claim',
    'ClaimManager': 'devicetrack.claims.manager',
    'DeviceRequest': 'devicetrack.objects',
    'InstanceResources': 'devicetrack.objects',
    'Lifecycle': 'devicetrack.service.lifecycle',
    'MigrationContext': 'devicetrack.objects',
    'load_driver': 'devicetrack.virt.loader',
    'open_store': 'devicetrack.store.sql',
    'register_options': 'devicetrack.conf.opts',
    'sync_store': 'devicetrack.store.sql',
}

__all__ = sorted(_PUBLIC)


if not TYPE_CHECKING:                           # for a type checker it would be an answer to every name

    def __getattr__(name: str) -> Any:
        if name == '__version__':
            from importlib import metadata
            return metadata.version(__name__)
        if name not in _PUBLIC:
            raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
        return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__, '__version__']
