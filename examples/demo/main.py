"""One owner for every device: the demo, ``make demo``.

This process is the outside world. It owns the machine, starts the service as a child process, and kills it. It looks at
everything without the library: it reads the record by plain SQL, the guests' definitions by a plain XML parser, the
namespaces' bytes, and placement by plain HTTP. It looks up every fact right before it prints the fact. If one is wrong,
the demo ends with status 1.
"""

from __future__ import annotations

import argparse
import pathlib
import shutil
import signal
import sys
import tempfile

import auditing
import claiming
import crashing
import fleet
import functions
from observer import NotAsPromised
from page import chapter
from page import say
from page import title
import placing
from process import ServiceFailed
import resizing
from stage import Stage

PATIENCE_S = 1800       # after so long the demo hangs; on a busy machine it is only slow


def tell(stage: Stage) -> None:
    """The story."""
    title('devicetrack: one owner for every device')
    say("""
        This demo runs a compute service whose guests need persistent-memory namespaces and vGPUs. There are
        fewer devices than guests. The demo kills the service three times, replaces its record by an old copy,
        and adds a scheduler. After each step it checks who owns each device.""")
    claiming.the_host(stage)
    stopped = claiming.the_race(stage)
    crashing.killed_between_record_and_boot(stage, stopped)
    crashing.killed_in_a_wipe(stage)
    claiming.release_and_reuse(stage)
    resizing.resized_twice(stage)
    auditing.repaired(stage)
    placing.placed(stage)
    functions.given(stage)
    fleet.mirrored(stage)
    chapter('From here')
    say("""
        README.rst has the ten lines that a service needs. examples/compute/service.py is a whole service that
        boots real guests. `make test` tests all this on real servers, and `make thorough-test` with real
        guests. `make docs` builds the documentation.""")


def out_of_patience(*_: object) -> None:
    raise NotAsPromised(f'the demo has an end: {PATIENCE_S} s have passed')


def main() -> int:
    parser = argparse.ArgumentParser(description='One owner for every device: the demo. It takes about a minute.')
    parser.add_argument('--keep', metavar='DIRECTORY', type=pathlib.Path,
                        help='A new directory that stays after the demo, with its host, for devicetrack-manage. By '
                             'default a temporary one, which is deleted.')
    keep = parser.parse_args().keep
    signal.signal(signal.SIGALRM, out_of_patience)
    signal.alarm(PATIENCE_S)
    if keep is None:
        directory = pathlib.Path(tempfile.mkdtemp(prefix='devicetrack-demo-'))
    else:
        directory = keep.resolve()
        directory.mkdir(mode=0o700)
    try:
        tell(Stage(directory))
    except (NotAsPromised, ServiceFailed) as error:
        print(f'\nThe demo failed. This did not hold: {error}. See {directory}/service.log', file=sys.stderr)
        return 1
    if keep is None:
        shutil.rmtree(directory)
    else:
        print(f'\nThe host of the demo is in {directory}. Ask about it, for example:\n'
              f'    devicetrack-manage --config-file {directory}/service.conf instance list\n'
              f'    devicetrack-manage --config-file {directory}/service.conf instance history --refused')
    return 0


if __name__ == '__main__':
    sys.exit(main())
