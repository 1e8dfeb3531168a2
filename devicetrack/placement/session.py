"""Reaches placement as ``[placement]`` says, with the options of keystoneauth1 that operators know.

``auth_type`` names the authentication plugin. Options that a service registered itself keep its definition. A host
without a scheduler lacks keystoneauth1, so it is imported only where it is used.
"""

from __future__ import annotations

from typing import Final
from typing import TYPE_CHECKING

from oslo_config import cfg

from devicetrack import conf as registry
from devicetrack import exception
from devicetrack.conf.placement import GROUP

if TYPE_CHECKING:
    from keystoneauth1 import adapter as ks_adapter

# Defaults for unset options: keystoneauth1 itself would wait forever, and try only once.
_TIMEOUT_S: Final = 60
_CONNECT_RETRIES: Final = 3


def _options() -> list[cfg.Opt]:
    from keystoneauth1 import loading as ks_loading
    return [*ks_loading.get_auth_common_conf_options(), *ks_loading.get_session_conf_options(),
            *ks_loading.get_adapter_conf_options(include_deprecated=False)]


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options that keystoneauth1 and its ``password`` plugin read, for the sample configuration."""
    from keystoneauth1 import loading as ks_loading
    return [(GROUP, [*_options(), *ks_loading.get_auth_plugin_conf_options('password')])]


def is_configured(conf: cfg.ConfigOpts) -> bool:
    """Whether ``[placement]`` says how to reach a placement service."""
    registry.register(conf, GROUP, _options())
    return conf[GROUP].auth_type is not None


def open_adapter(conf: cfg.ConfigOpts) -> ks_adapter.Adapter:
    """Make the adapter that ``[placement]`` describes. It connects to nothing yet.

    A request times out after ``timeout`` seconds, by default 60, and is repeated ``connect_retries`` times, by default
    3, with growing pauses.

    :raises InvalidConfiguration: there is no such plugin, or the options contradict one another or cannot be used
    """
    from keystoneauth1 import exceptions as ks_exceptions
    from keystoneauth1 import loading as ks_loading
    registry.register(conf, GROUP, _options())
    group = conf[GROUP]
    if group.timeout == 0:
        raise exception.InvalidConfiguration(f'[{GROUP}] timeout', group.timeout, 'a request needs more than 0 s')
    try:
        auth = ks_loading.load_auth_from_conf_options(conf, GROUP)
    except ks_exceptions.ClientException as error:
        raise exception.InvalidConfiguration(f'[{GROUP}] auth_type', group.auth_type, str(error)) from error
    if auth is None:
        raise exception.InvalidConfiguration(f'[{GROUP}] auth_type', group.auth_type, 'name an auth plugin')
    try:
        session = ks_loading.load_session_from_conf_options(
            conf, GROUP, auth=auth, timeout=_TIMEOUT_S if group.timeout is None else group.timeout)
        return ks_loading.load_adapter_from_conf_options(
            conf, GROUP, session=session, service_type=group.service_type or 'placement',
            connect_retries=_CONNECT_RETRIES if group.connect_retries is None else group.connect_retries)
    except (ks_exceptions.ClientException, TypeError, ValueError) as error:
        raise exception.InvalidConfiguration(f'[{GROUP}]', group.auth_type, str(error)) from error
