"""``devicetrack-manage metrics``: a host's metrics for Prometheus, on stdout or in a file."""

from __future__ import annotations

import argparse
import os
from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack import metrics
from devicetrack import ownfiles
from devicetrack.cmd import base
from devicetrack.cmd import options
from devicetrack.conf import manager as manager_options

# The file must be readable for node_exporter, which runs as another user.
_MODE: Final = 0o644


class Metrics(base.Command):
    """Print the metrics of this host in the text format of Prometheus.

    If the host's service writes metrics, the command prints those that the manager wrote after its last audit: claims,
    commits, times, wipes, and the devices and findings of that moment. Otherwise, and with --read, it reads the devices
    and findings from the host, the hypervisor and the store, as "audit" does, and changes nothing. The exit code is 0
    whatever was found: the metrics count the findings.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        options.add_host(parser)
        parser.add_argument('--output', metavar='FILE',
                            help='Write to this file instead, in one step and with mode 0644: for the textfile '
                                 'collector of node_exporter, which reads files that end in .prom. After an error the '
                                 'old file stays as it was.')
        parser.add_argument('--read', action='store_true',
                            help='Read the devices and findings now, even if the manager has written metrics. That '
                                 'costs as much as an audit.')

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        metrics.check()
        from devicetrack.metrics import textfile
        found = self._left_by_manager()
        if parsed_args.read or not found:
            read = self._read(parsed_args.host)
            found = [*(metric for metric in found if metric.name not in {one.name for one in read}), *read]
        text = textfile.text_of(found)
        if parsed_args.output is None:
            self.app.stdout.write(text)
            return
        try:
            ownfiles.replace_text(parsed_args.output, text, _MODE)
        except OSError as error:
            raise exception.NotExported(parsed_args.output, error.strerror or str(error)) from error

    def _left_by_manager(self) -> list[Any]:
        from devicetrack.metrics import textfile
        path = os.path.join(self.app.conf[manager_options.GROUP].state_path, textfile.NAME)
        try:
            return textfile.read(path) or []
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else f'it cannot be read as metrics: {error}'
            raise exception.NotExported(path, str(reason)) from error

    def _read(self, host: str | None) -> list[Any]:
        from devicetrack.metrics import samples
        state = self.app.observer(host).state()
        return list(samples.metrics_of([samples.Numbers(state.host, None, state)]))
