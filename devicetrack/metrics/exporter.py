"""The managers of a process in a registry of prometheus_client."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import os
import threading
from typing import Any
from typing import Final
import weakref

import prometheus_client
from prometheus_client import Metric
from prometheus_client.registry import Collector

from devicetrack import exception
from devicetrack import log
from devicetrack import ownfiles
from devicetrack.claims.manager import ClaimManager
from devicetrack.claims.metering import HostState
from devicetrack.metrics import textfile
from devicetrack.metrics.samples import metrics_of
from devicetrack.metrics.samples import Numbers
from devicetrack.metrics.tally import Tally

LOG = log.logger(__name__)

_OURS_ALONE: Final = 0o600


class Registration:
    """One manager that is counted.

    :param leave: takes it out of the registry
    """

    def __init__(self, manager: ClaimManager, leave: Callable[[Registration], None]) -> None:
        self._manager, self._leave = manager, leave
        self.tally = Tally(self._save)
        self._cannot_save = False

    def unregister(self) -> None:
        """Count no more, and take the host's numbers out of the registry. Idempotent."""
        if self._manager.metering.meter is self.tally:
            self._manager.metering.meter = None
        self._leave(self)

    def numbers(self) -> Numbers:
        """What is known now. By memory."""
        try:
            state = self._manager.state()
        except exception.DeviceTrackError:              # it has not started, or was closed
            state = None
        return Numbers(self._manager.host, self.tally, state)

    def _save(self, state: HostState) -> None:
        """Leave the numbers for ``devicetrack-manage metrics``."""
        path = os.path.join(state.state_path, textfile.NAME)
        text = textfile.text_of(metrics_of([Numbers(self._manager.host, self.tally, state)]))
        try:
            ownfiles.replace_text(path, text, _OURS_ALONE)
            self._cannot_save = False
        except OSError as error:
            if not self._cannot_save:
                LOG.warning('devicetrack-manage metrics will not have the numbers of host %(host)s: %(path)s: '
                            '%(error)s', {'host': self._manager.host, 'path': path, 'error': error.strerror})
            self._cannot_save = True


class Exporter(Collector):
    """All managers of one registry: a metric may stand in an answer only once, whatever the number of hosts."""

    def __init__(self) -> None:
        self.registrations: tuple[Registration, ...] = ()

    def remove(self, registration: Registration) -> None:
        with _LOCK:
            self.registrations = tuple(one for one in self.registrations if one is not registration)

    def collect(self) -> Iterator[Metric]:
        return metrics_of([one.numbers() for one in self.registrations])

    def describe(self) -> list[Metric]:
        """A registry asks this when a collector registers, instead of collecting."""
        return list(metrics_of([Numbers('', Tally(), None)]))


_LOCK: Final = threading.Lock()
_EXPORTERS: Final[weakref.WeakKeyDictionary[Any, Exporter]] = weakref.WeakKeyDictionary()


def register(manager: ClaimManager, registry: Any) -> Registration:
    """As :func:`devicetrack.metrics.register`."""
    registry = prometheus_client.REGISTRY if registry is None else registry
    with _LOCK:
        if manager.metering.meter is not None:
            raise exception.BadRequest('manager', manager.host, 'it has a meter already: unregister that first')
        exporter = _EXPORTERS.get(registry)
        if exporter is None:
            exporter = Exporter()
            registry.register(exporter)
            _EXPORTERS[registry] = exporter
        registration = Registration(manager, exporter.remove)
        exporter.registrations += (registration,)
        manager.metering.meter = registration.tally
    return registration
