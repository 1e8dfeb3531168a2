"""How the adapter gets into Nova's compute service: between Nova's configuration and Nova's service.

Nova's compute manager and its libvirt driver read options while they are imported. So nothing of them may be imported,
and nothing wrapped, before Nova's ``main`` has read its configuration. It makes its service right after that, by
``Service.create``; that is when the adapter checks Nova and wraps it.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
from importlib import metadata
import logging
import sys
from typing import Any
from typing import Final

from nova import service
import nova.cmd.compute
import nova.conf
from nova.conf import devices
import nova.config
from oslo_log import log as oslo_log

import devicetrack
from devicetrack import exception
from devicetrack import log
from devicetrack.nova import seams

LOG = log.logger(__name__)

NAME: Final = 'devicetrack-nova-compute'
# We rely on what it does in which order, so it must be known like what is wrapped.
MAIN: Final = 'nova.cmd.compute:main'


def targets() -> list[str]:
    """Every function of Nova that must be known."""
    # It imports Nova's libvirt driver.
    from devicetrack.nova import install
    return [MAIN, *install.targets()]


def run() -> None:
    """Run Nova's ``main``, with the adapter installed before the service is made.

    :raises SystemExit: with status 1 when this Nova is not known, or the adapter cannot be installed
    """
    if '--version' in sys.argv[1:]:
        sys.stdout.write(f'{NAME} {metadata.version("devicetrack")}, Nova {seams.installed()}\n')
        return
    _or_end(lambda: seams.check([MAIN]), _begin_log)
    create = service.Service.create

    @functools.wraps(create)
    def install_and_create(*args: Any, **kwargs: Any) -> Any:
        _or_end(_install)
        return create(*args, **kwargs)

    service.Service.create = staticmethod(install_and_create)
    nova.cmd.compute.main()


def _install() -> None:
    # Nova's own options of a type first: it cannot register what we have registered, and we can what it has.
    devices.register_dynamic_opts(nova.conf.CONF)
    devicetrack.register_options(nova.conf.CONF)
    from devicetrack.nova import install
    seams.check(targets())
    install.install()


def _begin_log() -> None:
    """Log to where Nova does, before Nova has begun to."""
    nova.config.parse_args(sys.argv, configure_db=False, init_rpc=False)
    oslo_log.setup(nova.conf.CONF, 'nova')


def _or_end(work: Callable[[], None], begin_log: Callable[[], None] = lambda: None) -> None:
    """Do something, and end the process when it goes wrong, since Nova alone would choose, wipe and remove devices.

    :raises SystemExit: with status 1
    """
    try:
        return work()
    except Exception as error:
        cause = error
    # While an error is being handled, the formatter of oslo.log repeats it at the end of the line.
    begin_log()
    is_ours = isinstance(cause, exception.DeviceTrackError)
    text = f'{cause}' if is_ours else f'{type(cause).__name__}: {cause}'
    LOG.critical('%s does not start: %s', NAME, text, exc_info=None if is_ours else cause)
    if not any(getattr(handler, 'stream', None) is sys.stderr for handler in logging.getLogger().handlers):
        sys.stderr.write(f'{NAME} does not start: {log.printable(text)}\n')
    raise SystemExit(1) from cause
