"""The numbers of a host for Prometheus, in the process of its service. Needs the extra ``metrics``.

It opens no port and starts no thread: what scrapes the service's registry gets these numbers too. Whoever has no such
registry reads them by ``devicetrack-manage metrics``.
"""

from __future__ import annotations

from typing import Any
from typing import TYPE_CHECKING

from devicetrack import exception
from devicetrack.claims.manager import ClaimManager

if TYPE_CHECKING:
    from devicetrack.metrics.exporter import Registration


def check() -> None:
    """:raises MissingExtra: prometheus_client is not installed"""
    try:
        import prometheus_client  # noqa: F401      # only whether it is there
    except ModuleNotFoundError as error:
        raise exception.MissingExtra('prometheus_client', 'metrics') from error


def register(manager: ClaimManager, registry: Any = None) -> Registration:
    """Count what a manager does from now on, and add its host's numbers to a registry.

    Call it before ``init_host``, so that the start is counted too. A process may register several managers in one
    registry; each sample has the label ``host``. After each audit the numbers of the host are also written to
    ``metrics.prom`` in its state directory, for ``devicetrack-manage metrics``.

    :param registry: a ``prometheus_client.CollectorRegistry``; None means the default one
    :returns: takes the host out of the registry by its ``unregister()``
    :raises MissingExtra: prometheus_client is not installed
    :raises BadRequest: the manager is registered already
    """
    check()
    from devicetrack.metrics import exporter
    return exporter.register(manager, registry)
