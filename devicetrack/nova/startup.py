"""Gives Nova's compute service the adapter's manager: after Nova reads its configuration, before it makes its service.

Nova's compute manager and its libvirt driver read options while they are imported. So neither may be imported before
Nova's ``main`` has read its configuration. Right after that, Nova makes its service by ``Service.create``; at that
point the adapter checks Nova and names its manager.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import functools
import logging
import os
import sys
import threading
from typing import Any
from typing import Final
from typing import NoReturn

from nova import service
import nova.cmd.compute
import nova.conf
from nova.conf import devices
import nova.config
from oslo_config import cfg
from oslo_log import log as oslo_log

import devicetrack
from devicetrack import exception
from devicetrack import log
from devicetrack.nova import overrides
from devicetrack.nova import process
from devicetrack.nova import seams
from devicetrack.nova.process import COMPUTE

LOG = log.logger(__name__)

# Errors whose text tells an operator everything.
_EXPECTED: Final = (exception.DeviceTrackError, cfg.Error)

# The adapter relies on the order of the steps in this function, so it must be known like the overridden methods.
MAIN: Final = 'nova.cmd.compute:main'
# The driver replaces the devices in what this function returns.
XML: Final = 'nova.virt.libvirt.migration:get_updated_guest_xml'


def targets() -> list[str]:
    """Return every function of Nova that must be known."""
    # This notes what the adapter overrides. Import it only here, because it imports Nova's libvirt driver.
    from devicetrack.nova import compute  # noqa: F401
    return [MAIN, XML, *overrides.targets()]


def run() -> None:
    """Run Nova's ``main``, with the adapter's manager in the service.

    If this Nova is not known, or the service cannot start for any reason, the process ends here with status 1, whatever
    threads it has. It ends with 2 if the command line is wrong, and with 0 after help or the version.
    """
    with _ending():
        _or_end(_read_command_line)
        _or_end(lambda: seams.check([MAIN]), _begin_log)
        create = service.Service.create

        @functools.wraps(create)
        def create_with_manager(*args: Any, **kwargs: Any) -> Any:
            _or_end(_prepare)
            from devicetrack.nova import compute
            made = create(*args, manager=compute.MANAGER, **kwargs)
            _end_with(made)
            return made

        service.Service.create = staticmethod(create_with_manager)
        nova.cmd.compute.main()


def _end_with(made: Any) -> None:
    """Have the process end when Nova's service cannot start, and when it is told to stop.

    oslo.service runs the start in a thread if Nova uses eventlet. After an error there it ends the process with status
    0, and only after the time that Nova 33 gives its operations to end.
    """
    start, stop, is_started = made.start, made.stop, threading.Event()

    @functools.wraps(start)
    def start_or_end() -> None:
        with _ending():
            # Nova reports all other errors of the start itself.
            _or_end(start, ends=_EXPECTED)
        is_started.set()

    @functools.wraps(stop)
    def stop_and_close(*args: Any, **kwargs: Any) -> None:
        if not is_started.is_set():
            # Nova has no operation to wait for, and what the start has begun goes on at the next one, as after a crash.
            LOG.info('%s is told to stop before it has started', COMPUTE)
            _end(0)
        stop(*args, **kwargs)
        # Nova does not wait longer for its operations than its options say, and then it does not clean up the host.
        getattr(made.manager.driver, 'close_devicetrack', lambda: None)()

    made.start, made.stop = start_or_end, stop_and_close


@contextlib.contextmanager
def _ending() -> Iterator[None]:
    """End the process if the block fails.

    Python itself would wait for the threads of Nova's libvirt driver, of which one never ends.
    """
    try:
        yield
    except SystemExit as end:
        status = end.code
    except Exception as error:
        # As Python does it at the end of a program: oslo.log has put its own function there, which logs the error.
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    else:
        return
    if status is not None and not isinstance(status, int):
        sys.stderr.write(f'{status}\n')
        status = 1
    _end(status or 0)


def _end(status: int) -> NoReturn:
    """End the process, whatever threads it has, with everything written that was logged or printed."""
    for flush in (logging.shutdown, sys.stdout.flush, sys.stderr.flush):
        with contextlib.suppress(Exception):                # nobody reads it any more, or a signal came in a write
            flush()
    os._exit(status)


def _read_command_line() -> None:
    """Read the command line, so that ``--help``, ``--version`` and errors name this program.

    Nova's ``main`` reads it again under the name nova-compute, because the configuration files are nova-compute's.

    :raises cfg.Error: a file cannot be read
    """
    conf, program = nova.conf.CONF, os.path.basename(sys.argv[0])
    oslo_log.register_options(conf)
    conf(sys.argv[1:], project='nova', prog=COMPUTE, version=process.versions(COMPUTE),
         default_config_files=cfg.find_config_files('nova', program),
         default_config_dirs=cfg.find_config_dirs('nova', program))
    conf.clear()


def _prepare() -> None:
    # Register Nova's own options of a type first: Nova cannot register options that devicetrack has registered, but
    # devicetrack can register Nova's again.
    devices.register_dynamic_opts(nova.conf.CONF)
    devicetrack.register_options(nova.conf.CONF)
    seams.check(targets())


def _begin_log() -> None:
    """Set up logging to Nova's log, before Nova has done so."""
    nova.config.parse_args(sys.argv, configure_db=False, init_rpc=False)
    oslo_log.setup(nova.conf.CONF, 'nova')


def _or_end(work: Callable[[], None], begin_log: Callable[[], None] = lambda: None,
            ends: tuple[type[Exception], ...] = (Exception,)) -> None:
    """Do something, and end the process if it fails, because Nova alone would choose, wipe and remove devices.

    The log has one line, and at debug level the traceback too. For an unexpected error it always has the traceback.

    :param begin_log: sets up the log for that line
    :param ends: the errors that end the process; any other error is raised
    :raises SystemExit: with status 1
    """
    try:
        return work()
    except ends as error:
        cause = error
    # This is not in the except block, because oslo.log's formatter appends an error that is being handled to the line.
    begin_log()
    is_expected = isinstance(cause, _EXPECTED)
    text = f'{cause}' if is_expected else f'{type(cause).__name__}: {cause}'
    handlers = logging.getLogger().handlers
    if handlers:
        LOG.critical('%s does not start: %s', COMPUTE, text, exc_info=None if is_expected else cause)
        if is_expected:
            LOG.debug('It happened here', exc_info=cause)
    if not any(getattr(handler, 'stream', None) is sys.stderr for handler in handlers):
        sys.stderr.write(f'{COMPUTE} does not start: {log.printable(text)}\n')
    raise SystemExit(1) from cause
