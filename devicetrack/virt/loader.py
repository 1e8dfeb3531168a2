"""Find and make the virt driver that the configuration names."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import os
import socket
from typing import Any

from oslo_config import cfg

from devicetrack import conf as registry
from devicetrack import exception
from devicetrack import ownfiles
from devicetrack.conf import manager as manager_options
from devicetrack.virt import driver

NAMESPACE = 'devicetrack.virt_drivers'
OPTION = f'[{manager_options.GROUP}] virt_driver'


def load_driver(conf: cfg.ConfigOpts, host: str | None = None,
                connect: Callable[[], Any] | None = None, state_path: str | None = None) -> driver.VirtDriver:
    """Make the driver of ``[devicetrack] virt_driver``, without a connection.

    It checks an existing state directory; the manager makes a missing one when it starts.

    :param host: the host's name, the same as the manager's; by default the machine's
    :param connect: returns an open ``libvirt.virConnect`` for the driver to use instead of its own connection to
        ``[libvirt] connection_uri``. Any thread may call it: when the driver first needs the hypervisor, after
        ``driver.close()``, and after the connection was lost, when it must not return the lost one. The driver closes
        none of these connections. A ``libvirt.libvirtError`` of ``connect`` becomes a ``HypervisorUnreachable``.
    :param state_path: the host's state directory, by default that of ``[devicetrack] state_path``. If a process manages
        several hosts, give each host its own directory. The host's manager takes the directory from its driver, so both
        use the same one
    :raises InvalidConfiguration: there is no such driver, its code cannot be loaded (that error is the cause), it has
        no use for ``connect``, the state directory cannot be used, or the driver refuses one of its own options
    :raises UnsafePath: users other than the service's can change the state directory
    """
    manager_options.register(conf)
    group = conf[manager_options.GROUP]
    cls: type[driver.VirtDriver] = registry.load_plugin(NAMESPACE, OPTION, group.virt_driver)
    if connect is not None and not cls.takes_connection:
        # A driver that ignored ``connect`` would place devices on another hypervisor than the service's.
        raise exception.InvalidConfiguration(
            OPTION, group.virt_driver, 'this driver uses no libvirt connection, and the service hands one in')
    path = group.state_path if state_path is None else state_path
    try:
        if not os.path.isabs(path):
            raise exception.InvalidConfiguration(manager_options.STATE_PATH, path, 'the path must be absolute')
        with contextlib.suppress(FileNotFoundError):
            ownfiles.check_directory(path)
    except ownfiles.NotOurs as error:
        raise exception.UnsafePath(error.filename, error.strerror) from error
    except OSError as error:
        raise exception.InvalidConfiguration(
            manager_options.STATE_PATH, path, f'cannot be used: {error.strerror}') from error
    options = {} if connect is None else {'connect': connect}
    return cls(host or socket.gethostname(), conf, path, **options)
