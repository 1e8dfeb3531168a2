"""Identity of the cloud: there is none. Whoever reaches nova-api, on loopback, is its administrator.

A filter of Nova's own pipeline (api-paste.ini), in place of keystonemiddleware: it says of each request what the
middleware would say of an administrator's token. Releases of Nova have no ``noauth`` any more.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from typing import Any
from typing import TypeAlias

PROJECT = 'c10d0000000040008000000000000001'
USER = 'c10d0000000040008000000000000002'
# What is sent to the other services, which look at none.
TOKEN = 'admin'

_SAID = {
    'HTTP_X_AUTH_TOKEN': TOKEN, 'HTTP_X_IDENTITY_STATUS': 'Confirmed',
    'HTTP_X_USER_ID': USER, 'HTTP_X_USER_NAME': 'admin', 'HTTP_X_USER_DOMAIN_ID': 'default',
    'HTTP_X_PROJECT_ID': PROJECT, 'HTTP_X_PROJECT_NAME': 'admin', 'HTTP_X_PROJECT_DOMAIN_ID': 'default',
    'HTTP_X_ROLES': 'admin,member,reader', 'HTTP_X_SERVICE_CATALOG': '[]',
}

Application: TypeAlias = Callable[[dict[str, Any], Any], Iterable[bytes]]


def filter_factory(_global_conf: Any, **_local_conf: Any) -> Callable[[Application], Application]:
    """Make the filter, as paste.deploy asks for it."""
    def trusting(application: Application) -> Application:
        def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            return application({**environ, **_SAID}, start_response)

        return answer

    return trusting
