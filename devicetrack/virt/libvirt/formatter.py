"""The program that has an NVMe controller format one namespace and erase its data.

It is a process of its own so that it can outlive the service: it inherits the descriptors of the controller, of all its
disks and of the lock file, and as long as it runs nobody else can take the lock or open the disks. The kernel cannot
end a process that waits for a controller. If the service itself waited, no new service could start meanwhile. The
program imports what it needs before it begins, so an upgrade meanwhile does not affect it. On standard output it writes
one JSON object a line::

    {"phase": "format", "done": 33554432, "of": 67108864}
    {"phase": "formatted", "done": 67108864, "of": 67108864}

The last line and exit status 0 together say that the controller reported success. ``{"phase": "failed", "reason": …}``
and status 1 say that it did not.
"""

from __future__ import annotations

import argparse
import os

from devicetrack import threads
from devicetrack.virt.libvirt import nvme_admin
from devicetrack.virt.libvirt import wiper

_LOOK_EVERY_S = 1.0


def run(fd: int, nsid: int, wanted: nvme_admin.Format, erase: int, timeout_s: int, reporter: wiper.Reporter,
        size: int) -> None:
    """Format, and meanwhile report the progress that the controller tells.

    :raises OSError: the controller did not do it
    """
    failed: list[OSError] = []

    def send() -> None:
        try:
            nvme_admin.format_namespace(fd, nsid, wanted, erase, timeout_s)
        except OSError as error:
            failed.append(error)

    sender = threads.Thread('devicetrack-format', send)
    sender.start()
    while sender.is_alive():
        reporter('format', _done(fd, nsid, size))
        sender.join(_LOOK_EVERY_S)
    if failed:
        raise failed[0]


def _done(fd: int, nsid: int, size: int) -> int:
    """Return how many bytes are erased, as far as the controller tells; always less than all of them."""
    try:
        remaining = nvme_admin.identify_namespace(fd, nsid).remaining_percent
    except OSError:
        return 0                                # some controllers answer nothing while they format
    return 0 if not remaining else size * (100 - min(remaining, 100)) // 100


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description='Format a namespace of an NVMe controller.')
    parser.add_argument('--controller-fd', type=int, required=True)
    parser.add_argument('--disk-fd', type=int, action='append', default=[], help='held open until the end')
    parser.add_argument('--lock-fd', type=int, required=True, help='held open until the end; progress is written there')
    parser.add_argument('--size', type=int, required=True, help='in bytes')
    parser.add_argument('--nsid', type=int, required=True)
    parser.add_argument('--lbaf', type=int, required=True)
    parser.add_argument('--extended', type=int, required=True)
    parser.add_argument('--protection', type=int, required=True)
    parser.add_argument('--protection-first', type=int, required=True)
    parser.add_argument('--erase', type=int, required=True)
    parser.add_argument('--timeout', type=int, required=True, help='in seconds')
    options = parser.parse_args(arguments)
    wanted = nvme_admin.Format(options.lbaf, bool(options.extended), options.protection,
                               bool(options.protection_first))
    reporter = wiper.Reporter(options.size)
    try:
        for fd in options.disk_fd:
            os.fstat(fd)
        reporter = wiper.Reporter(options.size, wiper.lock_file(options.lock_fd, options.controller_fd))
        run(options.controller_fd, options.nsid, wanted, options.erase, options.timeout, reporter, options.size)
    except OSError as error:
        reporter.write({'phase': 'failed', 'reason': error.strerror or 'an error of the device'})
        return 1
    finally:
        reporter.end()
    reporter.write({'phase': 'formatted', 'done': options.size, 'of': options.size})
    return 0
