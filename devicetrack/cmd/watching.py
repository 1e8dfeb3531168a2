"""``--watch``: the answer of a command, drawn again and again."""

from __future__ import annotations

import argparse
import copy
import io
import itertools
import shutil
import time
from typing import Final
from typing import TextIO

from devicetrack.cmd import base
from devicetrack.cmd import screen
from devicetrack.pictures import moments

# Seconds between two looks.
EVERY_S: Final = 2.0

_CLEAR: Final = '\x1b[2J\x1b[H'


class _Frame(io.StringIO):
    """A terminal's next content."""

    def __init__(self, terminal: TextIO) -> None:
        super().__init__()
        self._terminal = terminal

    @property                                   # where the base class has a plain attribute
    def encoding(self) -> str:                  # type: ignore[override]
        return self._terminal.encoding

    def isatty(self) -> bool:
        return True


def add_watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--watch', action='store_true',
                        help=f'On a terminal, show the answer again every {EVERY_S:.0f} seconds, until you interrupt '
                             'the command.')


class Watched(base.Command):
    """Mixed into commands that people watch. They only read, so they may run again and again."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        add_watch(parser)
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        if not parsed_args.watch:
            return super().run(parsed_args)
        if (getattr(parsed_args, 'formatter', 'table') != 'table' or getattr(parsed_args, 'output', None) is not None
                or not screen.is_terminal(self.app.stdout)):
            self.say('--watch draws a table on a terminal: it goes with no other format, no file and no pipe')
            return base.USAGE
        out, err = self.app.stdout, self.app.stderr
        try:
            for number in itertools.count():
                frame = _Frame(out)
                self.app.stdout = self.app.stderr = frame
                self.exit_code = base.OK
                code = super().run(copy.deepcopy(parsed_args))
                if not number and code in (base.ERROR, base.USAGE):
                    err.write(frame.getvalue())
                    return code
                out.write(_CLEAR + ''.join(f'{line}\n' for line in _visible(frame.getvalue())))
                out.flush()
                time.sleep(EVERY_S)
        finally:
            self.app.stdout, self.app.stderr = out, err
        raise AssertionError('only an error, or the person, ends it')


def _visible(text: str) -> list[str]:
    """Return the lines that fit on the terminal, below one with the time."""
    lines = [f'{moments.local(time.time())}, every {EVERY_S:.0f} s; Ctrl-C ends this', *text.rstrip('\n').split('\n')]
    room = max(shutil.get_terminal_size().lines - 1, 2)
    if len(lines) > room:
        lines[room - 1:] = [f'{len(lines) - room + 1} more lines: a higher terminal shows them']
    return lines
