"""A picture of the demo's host: ``python picture.py DIRECTORY`` draws it into ``demo-host.html`` and ``demo-host.txt``.

The host is that of ``make demo``, at a busy moment. Instances have devices. One instance was deleted, and its namespace
is being wiped. An operator withholds a namespace and a card. A namespace has changed its size.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import sys
import tempfile

from machine import CARDS
from observer import expect
from process import ATTENTION
from process import manage
from stage import Stage

FLAVORS = {'instance-01': 'g1.large', 'instance-02': 'g1.small', 'instance-03': 'g2.large', 'instance-04': 'm1.small',
           'instance-05': 'm1.small'}
DELETED = 'instance-04'
WIPE_RATE_MIB_S = 1


def draw(stage: Stage, directory: pathlib.Path) -> None:
    stage.start_service(WIPE_RATE_MIB_S)
    stage.instances.add(FLAVORS)
    for name in FLAVORS:
        expect('refusal' not in stage.service.call('build', name=name), f'there is room for {name}')
    free = next(name for name in sorted(stage.seen.free()) if name.startswith('ns'))
    for arguments in ((f'vpmem/{free}', '--reason', 'the module reports errors'),
                      ('--parent', f'mdev/{CARDS[1].name}', '--reason', 'a new firmware on Thursday')):
        manage(stage.machine, 'device', 'cordon', '--no-wait', *arguments)
    stage.service.call('audit')
    wiped, = [row.identifier for row in stage.rows_of(DELETED)]
    held = next(row.identifier for row in stage.rows_of('instance-05'))
    stage.service.send('delete', name=DELETED)
    wiper = stage.service.wait_for_wiper(wiped)
    try:
        os.truncate(stage.machine.directory / 'pmem' / held, 1 << 20)
        for name, arguments in (('demo-host.html', ('--output', str(directory / 'demo-host.html'))),
                                ('demo-host.txt', ())):
            answer = manage(stage.machine, 'host', 'map', *arguments)
            expect(answer.status == ATTENTION, f'host map ends with status {ATTENTION}: {answer.told}')
            if not arguments:
                (directory / name).write_text(answer.told, encoding='utf-8')
    finally:
        stage.service.kill()
        with contextlib.suppress(ProcessLookupError):
            os.kill(wiper, signal.SIGKILL)      # it would outlive the service


def main() -> int:
    with tempfile.TemporaryDirectory(prefix='devicetrack-demo-') as directory:
        draw(Stage(pathlib.Path(directory)), pathlib.Path(sys.argv[1]))
    return 0


if __name__ == '__main__':
    sys.exit(main())
