"""Metrics in a file, as node_exporter's textfile collector reads them: written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
import errno
import os
import stat
from typing import Final

from prometheus_client import exposition
from prometheus_client import Metric
from prometheus_client import parser
from prometheus_client.registry import Collector

# In the state directory of a host: its numbers after the last audit.
NAME: Final = 'metrics.prom'

# More than the metrics of any host take.
_LARGEST: Final = 64 << 20
_PREFIX: Final = 'devicetrack_'


class _Made(Collector):
    """Metrics that are there already, for the writer of the format, which takes a registry."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)


def text_of(metrics: Iterable[Metric]) -> str:
    """Metrics in Prometheus' text format."""
    return exposition.generate_latest(_Made(metrics)).decode()


def read(path: str) -> list[Metric] | None:
    """Read the metrics that :func:`write` wrote, and only those of this library.

    The file may be another user's, so a link is not followed.

    :returns: None when there is no such file
    :raises ValueError: it has something else in it
    :raises OSError: it cannot be read
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with open(fd, encoding='utf-8') as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
            raise OSError(errno.EINVAL, 'it is no file of metrics', path)
        metrics = list(parser.text_string_to_metric_families(file.read()))
    return [metric for metric in metrics if metric.name.startswith(_PREFIX)]
