"""Prepares a process to call Nova's conductor and placement as Nova's compute service does, without being a service."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from importlib import util
import os
import pwd
import sys
from typing import Any
from typing import Final
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from devicetrack.nova.unit import ServiceCommand

# The program that replaces nova-compute.
COMPUTE: Final = 'devicetrack-nova-compute'


def end_without_nova(program: str) -> None:
    """End a program if Nova or libvirt's bindings are not installed. This imports neither.

    :raises SystemExit: with status 1, after one line on standard error
    """
    missing = [name for name in ('nova', 'libvirt') if util.find_spec(name) is None]
    if missing:
        sys.stderr.write(f'{program} does not start: {sys.executable} has no package {missing[0]}: install '
                         'devicetrack with the extra nova into the Python environment of Nova\n')
        raise SystemExit(1)


def choose_threads() -> None:
    """Make Nova choose native threads. Call it before importing anything that Nova or eventlet would patch.

    ``sys.argv`` names the compute service from then on: oslo.config looks for ``nova-compute.conf`` by that name.
    """
    os.environ['OS_NOVA_DISABLE_EVENTLET_PATCHING'] = 'true'
    sys.argv[0] = os.path.join(os.path.dirname(sys.argv[0]), 'nova-compute')
    import nova.cmd.compute  # noqa: F401      # loading it chooses the threads


def has_nova() -> bool:
    """Whether Nova is installed beside this program: then the service of this host is Nova's. This does not load it."""
    return util.find_spec('nova') is not None


def share_root_helper(conf: Any) -> None:
    """Have a program that does not load Nova start its privileged daemon as Nova's programs do, if Nova is installed.

    Else a command would ask ``sudo`` for a program that Nova's user may only start by nova-rootwrap. ``helper_command``
    in ``[devicetrack_privileged]`` counts more. A program that runs as root needs no daemon.
    """
    if os.geteuid() == 0 or not has_nova():
        return
    from oslo_config import cfg

    from devicetrack import lean_imports
    with lean_imports.without_eventlet():
        from oslo_privsep import priv_context
    # Nova's own options: nova/conf/base.py and nova/conf/workarounds.py. Loading Nova takes seconds.
    conf.register_opt(cfg.StrOpt('rootwrap_config', default='/etc/nova/rootwrap.conf'))
    conf.register_opt(cfg.BoolOpt('disable_rootwrap', default=False), 'workarounds')
    priv_context.init(root_helper=['sudo'] if conf.workarounds.disable_rootwrap else [
        'sudo', 'nova-rootwrap', conf.rootwrap_config])


def versions(name: str) -> str:
    """Return one line with the versions of a program of ours and of the installed Nova, if there is one."""
    from devicetrack.nova import seams
    try:
        installed = f'Nova {seams.installed()}'
    except ModuleNotFoundError:
        installed = 'no Nova'
    return f'{name} {metadata.version("devicetrack")}, {installed}'


def begin(arguments: Sequence[str]) -> Any:
    """Read Nova's configuration and prepare to call its conductor and placement.

    Nova's libvirt driver reads options while it is imported, so import modules that need it after this call.

    :param arguments: as Nova's own programs take them, with ``--config-file`` and ``--config-dir``
    :returns: the configuration, with Nova's options and ours
    :raises oslo_config.cfg.Error, OSError: a file or an option cannot be used
    :raises InvalidConfiguration: an option of devicetrack cannot be used
    """
    import shlex

    from nova import config
    from nova import objects
    from nova import utils
    from nova.conductor import rpcapi
    import nova.conf
    from nova.conf import devices
    import nova.db.main.api
    from nova.objects import base
    from oslo_privsep import priv_context

    import devicetrack
    from devicetrack.nova import options
    conf = nova.conf.CONF
    config.parse_args([sys.argv[0], *arguments], configure_db=False)
    priv_context.init(root_helper=shlex.split(utils.get_root_helper()))
    objects.register_all()
    nova.db.main.api.DISABLE_DB_ACCESS = True
    base.NovaObject.indirection_api = rpcapi.ConductorAPI()
    # Register Nova's own options of a type first: Nova cannot register options that devicetrack has registered.
    devices.register_dynamic_opts(conf)
    devicetrack.register_options(conf)
    options.check(conf)
    return conf


def check_start(conf: Any, command: ServiceCommand | None) -> None:
    """Check what keeps the service from starting with its command and files, and that no other check shows.

    :param conf: the configuration, as :func:`begin` returns it
    :param command: how the unit of the service starts it, if the host has such a unit
    :raises InvalidConfiguration, MissingExtra: the service would not start, or would read other files
    """
    from nova.virt.libvirt import driver
    from oslo_config import cfg
    from oslo_utils import importutils

    from devicetrack import exception
    from devicetrack import metrics
    from devicetrack.conf import manager
    if command is not None:
        if _number_of(command.user) != os.geteuid():
            raise exception.InvalidConfiguration(command.unit, f'User={command.user}', (
                'run this as that user: another one has other files and other rights'))
        if not os.access(command.program, os.X_OK):
            raise exception.InvalidConfiguration(command.unit, command.program, 'this user cannot run the program')
        files, directories = command.files
        wanted = [*(files or cfg.find_config_files('nova', 'nova-compute')),
                  *(directories or cfg.find_config_dirs('nova', 'nova-compute'))]
        read = [*(conf.config_file or ()), *(conf.config_dir or ())]
        if command.arguments is not None and [*map(os.path.abspath, wanted)] != [*map(os.path.abspath, read)]:
            raise exception.InvalidConfiguration('--config-file', ' '.join(read), (
                f'the unit {command.unit} starts the service with other files: {" ".join(wanted)}'))
    try:
        found = importutils.import_class(f'nova.virt.{conf.compute_driver}')
    except ImportError:
        found = None
    if found is None or not issubclass(found, driver.LibvirtDriver):
        raise exception.InvalidConfiguration('[DEFAULT] compute_driver', conf.compute_driver, (
            'it must be libvirt.LibvirtDriver: no service starts without a driver, and devicetrack does nothing in a '
            'service with another one; distributions set the option in nova-compute.conf'))
    if conf.log_file or conf.log_dir:
        path = os.path.join(conf.log_dir or '', conf.log_file or f'{COMPUTE}.log')
        if not os.access(path if os.path.lexists(path) else os.path.dirname(path) or '.', os.W_OK):
            raise exception.InvalidConfiguration('log file', path, 'this user cannot write it')
    if conf[manager.GROUP].metrics:
        metrics.check()


def _number_of(user: str) -> int | None:
    try:
        return int(user) if user.isdigit() else pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


def connect() -> Any:
    """Open a connection to the libvirt that Nova's driver works with."""
    import libvirt
    from nova.virt.libvirt import driver
    return libvirt.open(driver.LibvirtDriver._uri())
