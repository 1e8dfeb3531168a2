"""What people see: tables as wide as their terminal, times in their zone, colours where they want them."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import datetime
import os
import shutil
import textwrap
from typing import Any
from typing import Final
from typing import TextIO

# Every table of default columns fits it. So wide is also what is not written to a terminal.
WIDTH: Final = 80

# A column of sentences is not made narrower than this.
_NARROWEST: Final = 20

_BORDERS: Final = 3             # of each column, and one more at the end of the line

_RED, _GREEN, _YELLOW, _CYAN = 31, 32, 33, 36

# Words that stand alone in a cell or at the beginning of a line.
_COLOURS: Final[Mapping[str, int]] = {
    'critical': _RED, 'warning': _YELLOW,
    'free': _GREEN, 'creatable': _GREEN, 'releasing': _CYAN, 'withheld': _YELLOW, 'missing': _RED, 'unknown': _RED,
    'yes': _GREEN, 'yes*': _YELLOW, 'no': _RED,
    'done': _GREEN, 'partly done': _YELLOW, 'waiting': _CYAN, 'refused': _RED, 'failed': _RED,
}


def is_terminal(stream: TextIO) -> bool:
    """Whether a person reads it. What has no descriptor, as in a test, is no terminal."""
    try:
        return stream.isatty()
    except ValueError:                  # it is closed
        return False


def width_of(stream: TextIO) -> int:
    """How many characters a line may have."""
    return shutil.get_terminal_size((WIDTH, 0)).columns if is_terminal(stream) else WIDTH


def has_colours(stream: TextIO) -> bool:
    """Whether to write colours: to a terminal that knows them, unless NO_COLOR is set (https://no-color.org)."""
    return is_terminal(stream) and not os.environ.get('NO_COLOR') and os.environ.get('TERM', 'dumb') != 'dumb'


def paint(word: str, stream: TextIO) -> str:
    """A word in its colour, if it has one."""
    colour = _COLOURS.get(word)
    return word if colour is None or not has_colours(stream) else f'\x1b[{colour}m{word}\x1b[0m'


def utc(seconds: float) -> str:
    """A time for programs. ISO 8601."""
    return _at(seconds, datetime.UTC).replace('+00:00', 'Z')


def local(seconds: float) -> str:
    """A time for people: in the local zone, and it says in which. ISO 8601."""
    return _at(seconds, None)


def _at(seconds: float, zone: datetime.tzinfo | None) -> str:
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).astimezone(zone).isoformat(timespec='seconds')
    except (ValueError, OverflowError, OSError):
        return str(seconds)             # no clock says so; a damaged row may


def wrap(text: str, width: int, indent: str = '') -> list[str]:
    """Lines of sentences. A word is never broken: it may be an identifier."""
    return [line for part in text.split('\n') for line in textwrap.wrap(
        part, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False,
        break_on_hyphens=False) or ['']]


def fit(names: Sequence[str], rows: Sequence[Sequence[Any]], width: int, prose: Sequence[str] = (),
        spare: Sequence[str] = ()) -> tuple[list[str], list[list[Any]]]:
    """Make a table fit.

    :param prose: columns of sentences, whose lines may be broken between words
    :param spare: columns that are left out when there is no room, the first of them first
    :returns: the columns that stay, and their cells; the table may be wider if it cannot be narrower
    """
    columns = {name: [row[number] for row in rows] for number, name in enumerate(names)}
    widest = {name: max([len(name), *(len(line) for cell in cells for line in str(cell).split('\n'))])
              for name, cells in columns.items()}
    least = {name: max([len(name), min(_NARROWEST, widest[name]), *_words(cells)]) if name in prose else widest[name]
             for name, cells in columns.items()}
    for name in spare:
        if _total(least) > width and least.pop(name, None) is not None:
            del columns[name]
    room = width - _total(least)
    growing = [name for name in columns if name in prose and widest[name] > least[name]]
    while room > 0 and growing:
        share = max(1, room // len(growing))
        for name in list(growing):
            more = min(share, widest[name] - least[name], room)
            least[name] += more
            room -= more
            if least[name] == widest[name]:
                growing.remove(name)
    for name in columns:
        if name in prose:
            columns[name] = ['\n'.join(wrap(cell, least[name])) if isinstance(cell, str) else cell
                             for cell in columns[name]]
    return list(columns), [list(row) for row in zip(*columns.values(), strict=True)] if columns else []


def _total(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + _BORDERS * len(widths) + 1


def _words(cells: Sequence[Any]) -> list[int]:
    return [len(word) for cell in cells if isinstance(cell, str) for word in cell.split()]
