"""``devicetrack-manage complete``: print the completion of a shell."""

from __future__ import annotations

import argparse
import pathlib
import sys
from typing import Final

from cliff import complete

from devicetrack import exception

ZSH: Final = 'zsh'
_FILE: Final = pathlib.Path('share', 'zsh', 'site-functions', '_devicetrack-manage')


class Complete(complete.CompleteCommand):
    """print bash completion command"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        [shell] = [action for action in parser._actions if action.dest == 'shell']
        shell.choices = sorted((*(shell.choices or ()), ZSH))
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        if parsed_args.shell != ZSH:
            return super().take_action(parsed_args)
        # The package installs the file below its prefix; a tree of sources has it too.
        for directory in (sys.prefix, pathlib.Path(__file__).parents[2]):
            try:
                self.app.stdout.write(pathlib.Path(directory, _FILE).read_text('utf-8'))
            except FileNotFoundError:
                continue
            return 0
        raise exception.CommandFailed('complete --shell zsh', f'{_FILE} is not below {sys.prefix}: install the package '
                                                              'again')
