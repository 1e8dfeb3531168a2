"""Loads device kinds, so that the commands can read the details that they stored."""

from __future__ import annotations

import logging

from oslo_config import cfg

from devicetrack import log
from devicetrack.virt import device_kinds

LOG = log.logger(__name__)


def load(conf: cfg.ConfigOpts) -> None:
    """Load our device kinds and those that an option names, and with them the classes of their details.

    If a kind cannot be loaded, only its own details cannot be read, and a command says so for each of them.

    :raises InvalidConfiguration: the option names a kind that no installed package has
    """
    for entry_point in device_kinds.entry_points(conf):
        try:
            entry_point.load()
        except Exception as error:
            # Commands that ask only the store work without the extra: they can still read our own kinds' details.
            without_libvirt = isinstance(error, ImportError) and error.name == 'libvirt'
            LOG.log(logging.INFO if without_libvirt else logging.WARNING,
                    'The device kind %s cannot be loaded: %s', entry_point.name, error)
