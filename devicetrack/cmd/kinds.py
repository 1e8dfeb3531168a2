"""Device kinds that are installed: what one of them stored can be read once its code is loaded."""

from __future__ import annotations

import logging
from typing import Any
from typing import Final

from stevedore import extension

from devicetrack import log

LOG = log.logger(__name__)

# As in devicetrack.virt.libvirt.kinds.api, which cannot be imported where libvirt-python is not installed.
NAMESPACE: Final = 'devicetrack.libvirt.device_kinds'


def load() -> None:
    """Load every device kind, and with it the class of its details; none is asked anything.

    A kind that cannot be loaded hides nothing but its own details, and a command says of each that it cannot read it.
    """
    extension.ExtensionManager(NAMESPACE, on_load_failure_callback=_failed)


def _failed(_manager: Any, entry_point: Any, error: BaseException) -> None:
    # Commands that ask the store alone work without the extra; what our own kinds store is read all the same.
    without_libvirt = isinstance(error, ImportError) and error.name == 'libvirt'
    LOG.log(logging.INFO if without_libvirt else logging.WARNING,
            'The device kind %s cannot be loaded: %s', entry_point.name, error)
