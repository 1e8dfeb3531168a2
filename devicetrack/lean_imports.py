"""Imports of other libraries without what they load besides: eventlet, and the message bus.

A compute service may use both, and then it has loaded them before. Any other process would load them for nothing, and
eventlet warns of itself.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import importlib.util
import sys
from typing import Any


@contextlib.contextmanager
def without_eventlet() -> Iterator[None]:
    """Hide eventlet during a block, unless this process has loaded it.

    oslo.concurrency and oslo.privsep try to import it, to see whether it has replaced the threads of the process.
    """
    # Without a lock, which an interrupt before the block would leave held: at worst another thread loads eventlet.
    if 'eventlet' in sys.modules:
        yield
        return
    hidden: Any = None
    sys.modules['eventlet'] = hidden
    try:
        yield
    finally:
        if sys.modules.get('eventlet') is None:
            sys.modules.pop('eventlet', None)


def load_versioned_objects() -> None:
    """Load oslo.versionedobjects without oslo.messaging, unless this process has loaded oslo.messaging.

    It takes one class from there, for a serializer that we do not use: this gets the class from its module, which needs
    nothing else of the package. If the process loads oslo.messaging later, it has the same class.
    """
    spec = importlib.util.find_spec('oslo_messaging')
    if 'oslo_messaging' not in sys.modules and 'oslo_versionedobjects.base' not in sys.modules and spec is not None:
        package: Any = importlib.util.module_from_spec(spec)
        sys.modules['oslo_messaging'] = package
        try:
            package.NoOpSerializer = importlib.import_module('oslo_messaging.serializer').NoOpSerializer
            importlib.import_module('oslo_versionedobjects.base')
        finally:
            del sys.modules['oslo_messaging']
