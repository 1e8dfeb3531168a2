"""Run an operator's program that cleans a device, and judge its proof.

The guide for operators has the contract ("PCI functions", "A program of your own"). The program runs with the rights of
the service: the privileged daemon accepts no program from its callers.
"""

from __future__ import annotations

from collections.abc import Mapping
import os
import secrets
from typing import Final
import unicodedata

from devicetrack import exception
from devicetrack import log
from devicetrack.virt.libvirt import children
from devicetrack.virt.libvirt import jobs
from devicetrack.virt.libvirt import privileged
from devicetrack.virt.libvirt import progress

LOG = log.logger(__name__)

# EX_TEMPFAIL (sysexits.h): the device is as it was, and the next audit tries again.
LATER: Final = 75
_PATH: Final = '/usr/sbin:/usr/bin:/sbin:/bin'
_SHOWN: Final = 200                     # characters of the program's output in a message


def clean(program: str, address: str, facts: Mapping[str, str], lock_fd: int, limit_s: int) -> None:
    """Run a program on a PCI function, and wait for its proof. Blocks for ``limit_s`` seconds at most.

    :param facts: environment variables for the program, named without their prefix ``DEVICETRACK_``
    :raises TryLater: the program says that it cannot clean the device now
    :raises CommandFailed: nothing proves that the function is clean
    """
    try:
        found = privileged.program(program) if os.geteuid() == 0 else os.path.realpath(program, strict=True)
    except OSError as error:
        raise exception.CommandFailed(program, f'it cannot be run: {error.strerror or error}') from error
    token = secrets.token_hex(16)
    environment = {'PATH': _PATH, 'LANG': 'C.UTF-8', 'DEVICETRACK_TOKEN': token, 'DEVICETRACK_LOCK_FD': str(lock_fd),
                   **{f'DEVICETRACK_{name}': value for name, value in facts.items()}}
    try:
        ended = jobs.run_program(found, ('clean', address), environment, lock_fd, limit_s)
    except progress.Failed as error:
        raise exception.CommandFailed(program, str(error)) from error
    status, proof, said = ended['status'], ended['proof'], cleaned(ended['said'])
    if status == LATER:
        raise TryLater(said)
    if status != 0:
        raise exception.CommandFailed(program, f'{children.end(status)}: {said}')
    if proof != f'clean {address} {token}':
        raise exception.CommandFailed(
            program, f'its last line is no proof (clean, the address and DEVICETRACK_TOKEN): {said}')
    LOG.info('%s says that %s is clean.', program, address)


class TryLater(Exception):
    """The program cannot clean the device now. The text is the end of what it printed."""


def cleaned(text: str) -> str:
    """The end of a program's output for a message: one line without control characters."""
    words = ''.join(one if unicodedata.category(one)[0] not in 'CZ' else ' ' for one in text).split()
    line = ' '.join(words)
    return (line if len(line) <= _SHOWN else f'…{line[-_SHOWN:]}') or 'it printed nothing'
