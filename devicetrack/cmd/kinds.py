"""Device kinds that are loaded: what one of them stored can be read then."""

from __future__ import annotations

import logging

from oslo_config import cfg

from devicetrack import log
from devicetrack.virt import device_kinds

LOG = log.logger(__name__)


def load(conf: cfg.ConfigOpts) -> None:
    """Load our device kinds and those that an option names, and with them the classes of their details.

    A kind that cannot be loaded hides nothing but its own details, and a command says of each that it cannot read it.

    :raises InvalidConfiguration: the option names one that no package has
    """
    for entry_point in device_kinds.entry_points(conf):
        try:
            entry_point.load()
        except Exception as error:
            # Commands that ask the store alone work without the extra; what our own kinds store is read all the same.
            without_libvirt = isinstance(error, ImportError) and error.name == 'libvirt'
            LOG.log(logging.INFO if without_libvirt else logging.WARNING,
                    'The device kind %s cannot be loaded: %s', entry_point.name, error)
