"""The program that does a job on a device: one process for one job.

It wipes a device, reads one through, has an NVMe controller format a namespace, or runs an operator's program. It is a
process of its own for these reasons:

- It inherits the descriptors of the device and of the lock file. As long as it runs, nobody else can take the lock or
  open the device, even if the service is gone. A job that changes a device goes on without the service to its end. A
  reading ends soon after the service, because then nobody wants the outcome.
- A bad block of a device ends it (SIGBUS), and not the service.
- The kernel cannot end a process that waits for a controller. If the service itself waited, no new service could start
  meanwhile.

It imports what it needs before it begins, so an upgrade meanwhile does not affect it. It has the standard library and
this project alone. Its argument is a JSON object: the job, the descriptors, how much there is to do, and the parameters
of the function here that does the job. On standard output it writes one JSON object a line::

    {"phase": "zero", "done": 67108864, "of": 130023424}
    {"phase": "verify", "done": 67108864, "of": 130023424}
    {"phase": "ended", "job": "wipe", "done": 130023424, "of": 130023424}

The last line and exit status 0 together are the outcome, which :mod:`.jobs` judges: after the last byte was written,
every byte was read back and is zero; or every byte was read and is zero; or the controller reported success; or the
operator's program has ended, and its answer is in the line. ``{"phase": "failed", "reason": …}`` and status 1 say that
the job failed.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import json
from typing import Any
from typing import Final

from devicetrack import threads
from devicetrack.virt.libvirt import nvme_admin
from devicetrack.virt.libvirt import progress
from devicetrack.virt.libvirt import supervisor
from devicetrack.virt.libvirt import zeroes

WIPE: Final = 'wipe'
READ: Final = 'read'
FORMAT: Final = 'format'
PROGRAM: Final = 'program'

_STDOUT: Final = 1
_LOOK_EVERY_S = 1.0

_Answer = Mapping[str, object]


def _wipe(report: progress.Reporter, fds: Sequence[int], of: int, align: int, rate: int, how: str) -> _Answer:
    zeroes.wipe(zeroes.device(fds[1], of, align), of, rate, report, how=how)
    return {}


def _read_through(report: progress.Reporter, fds: Sequence[int], of: int, align: int, rate: int) -> _Answer:
    zeroes.read_through(zeroes.device(fds[1], of, align), of, rate, report)
    return {}


def _format(report: progress.Reporter, fds: Sequence[int], of: int, nsid: int, wanted: Sequence[Any], erase: int,
            timeout_s: int) -> _Answer:
    """Format a namespace of the controller that is open first, and meanwhile report what the controller tells."""
    controller, failed = fds[1], list[OSError]()

    def send() -> None:
        try:
            nvme_admin.format_namespace(controller, nsid, nvme_admin.Format(*wanted), erase, timeout_s)
        except OSError as error:
            failed.append(error)

    sender = threads.Thread('devicetrack-format', send)
    sender.start()
    while sender.is_alive():
        report('format', _formatted(controller, nsid, of))
        sender.join(_LOOK_EVERY_S)
    if failed:
        raise failed[0]
    return {}


def _formatted(controller: int, nsid: int, size: int) -> int:
    """Return how many bytes are erased, as far as the controller tells; always less than all of them."""
    try:
        remaining = nvme_admin.identify_namespace(controller, nsid).remaining_percent
    except OSError:
        return 0                                # some controllers answer nothing while they format
    return 0 if not remaining else size * (100 - min(remaining, 100)) // 100


def _run_program(report: progress.Reporter, fds: Sequence[int], of: int, command: Sequence[str],
                 limit_s: float) -> _Answer:
    """Run a program, and answer with its status, the last line of its standard output and the end of its whole output.

    A status below zero is the number of a signal.
    """
    try:
        status, out, everything = supervisor.run(list(command), fds[0], limit_s, report)
    except OSError as error:
        raise progress.Failed(f'it cannot be run: {error.strerror}') from error
    return {'status': status, 'proof': out.lines[-1].decode(errors='replace')[:supervisor.KEPT],
            'said': everything.text}


_JOBS: Final[Mapping[str, Callable[..., _Answer]]] = {
    WIPE: _wipe, READ: _read_through, FORMAT: _format, PROGRAM: _run_program}


def main(arguments: list[str]) -> int:
    """Do one job.

    :param arguments: one JSON object. ``fds`` has the descriptors that this process inherited: first that of the lock
        file, into which progress is written, and then those of the devices. All are held open until the end
    """
    asked = json.loads(arguments[0])
    job, fds, of = asked.pop('job'), asked.pop('fds'), asked.pop('of')
    report = progress.Reporter(of, out=_STDOUT, must_be_heard=job == READ)
    try:
        report = progress.Reporter(of, progress.lock_file(*fds), _STDOUT, job == READ)
        report.write({'phase': 'ended', 'job': job, 'done': of, 'of': of, **_JOBS[job](report, fds, of, **asked)})
        return 0
    except (progress.Failed, OSError) as error:
        report.write({'phase': 'failed', 'reason': _why(error)})
    except progress.Unheard:
        pass
    finally:
        report.end()
    return 1


def _why(error: Exception) -> str:
    return error.strerror or 'an error of the device' if isinstance(error, OSError) else str(error)
