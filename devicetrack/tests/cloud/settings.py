"""Configuration files of Nova's services, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from typing import Final
from typing import NamedTuple
from typing import TypeAlias

from devicetrack.tests.cloud import trusting

Sections: TypeAlias = Mapping[str, Mapping[str, Any]]

# For hanging, not for slowness: hosts are emulated.
RPC_S: Final = 900
# A host is down when the test says so (force-down), not when its clock or processor is late.
SERVICE_DOWN_S: Final = 7200


class Addresses(NamedTuple):
    """Where services are, as ``HOST:PORT``, for whoever reads the file."""

    messages: str
    placement: str
    neighbours: str
    message_user: str


def common(at: Addresses) -> dict[str, dict[str, Any]]:
    """What all services need."""
    endpoint = f'http://{at.neighbours}'
    return {
        'DEFAULT': {
            'transport_url': f'rabbit://{at.message_user}@{at.messages}/', 'rpc_response_timeout': RPC_S,
            'service_down_time': SERVICE_DOWN_S,
            # What is deleted can be restored for longer than a test takes.
            'reclaim_instance_interval': 86400,
            'default_log_levels': 'amqp=WARNING,amqplib=WARNING,oslo.messaging=INFO,oslo_messaging=INFO,'
                                  'keystoneauth=WARNING,urllib3=WARNING,sqlalchemy=WARNING,oslo_concurrency=INFO',
        },
        # A host that is slow misses heartbeats, and a connection that is made anew loses nothing that is wanted.
        'oslo_messaging_rabbit': {'heartbeat_timeout_threshold': 0},
        'placement': {'auth_type': 'admin_token', 'token': trusting.TOKEN, 'endpoint': f'http://{at.placement}',
                      'endpoint_override': f'http://{at.placement}'},
        'glance': {'api_servers': endpoint, 'num_retries': 2},
        'neutron': {'auth_type': 'admin_token', 'token': trusting.TOKEN, 'endpoint': endpoint,
                    'endpoint_override': endpoint},
        'service_user': {'send_service_user_token': False},
        'notifications': {'notification_format': 'unversioned'},
    }


def controller(at: Addresses, directory: str, database: str, api_database: str) -> dict[str, dict[str, Any]]:
    """What nova-api, nova-scheduler and nova-conductor need."""
    made = common(at)
    made['DEFAULT'] |= {'host': 'controller', 'my_ip': '127.0.0.1', 'state_path': directory, 'log_dir': directory}
    return made | {
        'database': {'connection': database},
        'api_database': {'connection': api_database},
        'scheduler': {'workers': 1, 'discover_hosts_in_cells_interval': 2},
        'conductor': {'workers': 1},
        'oslo_concurrency': {'lock_path': directory},
        'quota': {'instances': -1, 'cores': -1, 'ram': -1},
    }


def merged(one: Sections, other: Sections) -> dict[str, dict[str, Any]]:
    """The options of both."""
    return {name: {**one.get(name, {}), **other.get(name, {})} for name in {**one, **other}}


def text(sections: Sections) -> str:
    """The text of a configuration file; an option with a list is there once for each of its values."""
    lines = []
    for name, options in sections.items():
        lines += [f'[{name}]', *(f'{option} = {one}' for option, value in options.items()
                                 for one in (value if isinstance(value, list) else [value])), '']
    return '\n'.join(lines)


def pipeline(original: str) -> str:
    """Nova's own pipeline with our filter in place of the one that asks Keystone.

    :param original: Nova's api-paste.ini
    :raises ValueError: it has no such filter, or has it elsewhere
    """
    theirs = 'paste.filter_factory = keystonemiddleware.auth_token:filter_factory'
    if original.count(theirs) != 1:
        raise ValueError(f'api-paste.ini has no line {theirs!r}, or several')
    return original.replace(theirs, f'paste.filter_factory = {trusting.__name__}:filter_factory')
