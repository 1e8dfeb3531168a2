"""The list of all commands, for people who do not know them yet."""

from __future__ import annotations

from typing import Any

from devicetrack.cmd import base
from devicetrack.cmd import screen

_INDENT = 2


def commands(app: Any) -> str:
    """Return all commands, with a sentence about each, in aligned columns."""
    told = {}
    for name, entry_point in sorted(app.command_manager):
        try:
            description = ' '.join((entry_point.load().__doc__ or '').split())
        except ImportError as error:
            description = base.not_loaded(error)
        told[name] = (description.partition('. ')[0].rstrip('.') or name)
    wide = max(map(len, told))
    lines = []
    for name, sentence in told.items():
        rest = ' ' * (_INDENT + wide + 2)
        first, *more = screen.wrap(sentence, screen.width_of(app.stdout), rest)
        lines += [f'{" " * _INDENT}{name:{wide}}  {first.strip()}', *more]
    return '\n'.join(lines)
