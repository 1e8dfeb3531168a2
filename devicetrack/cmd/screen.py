"""Output for people: tables as wide as their terminal, times in their zone, colours where they want them."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import datetime
import io
import os
import shutil
import textwrap
from typing import Any
from typing import Final
from typing import NamedTuple
from typing import TextIO

# The least width of a terminal: every table of default columns fits it. Output to a file has this width too.
WIDTH: Final = 80

# The least width of a column of sentences.
_NARROWEST: Final = 20

# The indent of cells that are put below others.
_INDENT: Final = 2

_BORDERS: Final = 3             # characters for each column, and one more at the end of the line

_RED, _GREEN, _YELLOW, _CYAN = 31, 32, 33, 36

# Words that fill a cell or begin a line.
_COLOURS: Final[Mapping[str, int]] = {
    'critical': _RED, 'warning': _YELLOW,
    'free': _GREEN, 'creatable': _GREEN, 'releasing': _CYAN, 'withheld': _YELLOW, 'missing': _RED, 'unknown': _RED,
    'yes': _GREEN, 'yes*': _YELLOW, 'no': _RED,
    'done': _GREEN, 'partly done': _YELLOW, 'waiting': _CYAN, 'refused': _RED, 'failed': _RED,
}


def escape_what_is_lacking(*streams: TextIO) -> None:
    """Let streams escape the characters that their encoding lacks. They would raise an error."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors='backslashreplace')


def is_terminal(stream: TextIO) -> bool:
    """Whether a stream is a terminal. A stream without a descriptor, as in a test, is not."""
    try:
        return stream.isatty()
    except ValueError:                  # the stream is closed
        return False


def width_of(stream: TextIO) -> int:
    """Return how many characters a line may have."""
    return shutil.get_terminal_size((WIDTH, 0)).columns if is_terminal(stream) else WIDTH


def has_colours(stream: TextIO) -> bool:
    """Whether to write colours: to a terminal that knows them, unless NO_COLOR is set (https://no-color.org)."""
    return is_terminal(stream) and not os.environ.get('NO_COLOR') and os.environ.get('TERM', 'dumb') != 'dumb'


def paint(word: str, stream: TextIO) -> str:
    """Return a word in its colour, if it has one."""
    colour = _COLOURS.get(word)
    return word if colour is None or not has_colours(stream) else f'\x1b[{colour}m{word}\x1b[0m'


def utc(seconds: float) -> str:
    """Return a time for programs: ISO 8601, in UTC."""
    return _at(seconds, datetime.UTC).replace('+00:00', 'Z')


def local(seconds: float) -> str:
    """Return a time for people: ISO 8601, in the local zone, with the zone's offset."""
    return _at(seconds, None)


def _at(seconds: float, zone: datetime.tzinfo | None) -> str:
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).astimezone(zone).isoformat(timespec='seconds')
    except (ValueError, OverflowError, OSError):
        return str(seconds)             # no clock has such a time, but a damaged row may


def wrap(text: str, width: int, indent: str = '') -> list[str]:
    """Wrap sentences into lines. A word is never broken: it may be an identifier."""
    return [line for part in text.split('\n') for line in textwrap.wrap(
        part, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False,
        break_on_hyphens=False) or ['']]


class Fitted(NamedTuple):
    """A table that fits: the names of its columns, their cells by row, and the columns that were left out."""

    names: list[str]
    rows: list[list[Any]]
    left_out: tuple[str, ...]


def fit(names: Sequence[str], rows: Sequence[Sequence[Any]], width: int, prose: Sequence[str] = (),
        spare: Sequence[str] = (), below: Sequence[str] = ()) -> Fitted:
    """Make a table fit. It may be wider if it cannot be narrower.

    :param prose: columns of sentences, whose lines may be broken between words
    :param spare: columns that are left out when there is no room, in this order
    :param below: columns whose cells are put below those of the first column, in this order, if leaving out the spare
        columns is not enough
    """
    cells = {name: [row[number] for row in rows] for number, name in enumerate(names)}
    spare, below = [name for name in spare if name in cells], [name for name in below if name in cells]
    columns: dict[str, _Column] = {}
    left_out: tuple[str, ...] = ()
    for stacked in range(len(below) + 1):
        for number in range(len(spare) + 1):
            left_out = tuple(spare[:number])
            columns = _columns({name: cells[name] for name in names if name not in left_out}, prose,
                               [name for name in below[:stacked] if name not in left_out])
            if _total({name: column.least for name, column in columns.items()}) <= width:
                break
        else:
            continue
        break
    least = {name: column.least for name, column in columns.items()}
    room = width - _total(least)
    growing = [name for name, column in columns.items() if column.widest > least[name]]
    while room > 0 and growing:
        share = max(1, room // len(growing))
        for name in list(growing):
            more = min(share, columns[name].widest - least[name], room)
            least[name] += more
            room -= more
            if least[name] == columns[name].widest:
                growing.remove(name)
    drawn = [column.drawn(least[name]) for name, column in columns.items()]
    return Fitted(list(columns), [list(row) for row in zip(*drawn, strict=True)] if drawn else [], left_out)


class _Part(NamedTuple):
    """The cells of one column of the answer. ``indent`` is not 0 if they are put below others."""

    cells: Sequence[Any]
    is_prose: bool
    indent: int

    @property
    def widest(self) -> int:
        return self.indent + max([0, *(len(line) for cell in self.cells for line in str(cell).split('\n'))])

    @property
    def least(self) -> int:
        if not self.is_prose:
            return self.widest
        return max([min(_NARROWEST, self.widest), *(self.indent + word for word in _words(self.cells))])

    def drawn(self, row: int, width: int) -> Any:
        cell = self.cells[row]
        if self.is_prose and isinstance(cell, str):
            return '\n'.join(wrap(cell, width, ' ' * self.indent))
        return '\n'.join(' ' * self.indent + line for line in str(cell).split('\n')) if self.indent else cell


class _Column(NamedTuple):
    """A column of the table: one column of the answer, perhaps with others below it."""

    least: int
    widest: int
    parts: Sequence[_Part]

    def drawn(self, width: int) -> list[Any]:
        first, *others = self.parts
        found = []
        for row in range(len(first.cells)):
            cell = first.drawn(row, width)
            more = [other.drawn(row, width) for other in others if other.cells[row] != '']
            found.append('\n'.join(map(str, (cell, *more))) if more else cell)
        return found


def _columns(cells: Mapping[str, Sequence[Any]], prose: Sequence[str], stacked: Sequence[str]) -> dict[str, _Column]:
    found: dict[str, _Column] = {}
    for name in cells:
        if name in stacked:
            continue
        parts = [_Part(cells[name], name in prose, 0)]
        if not found and stacked:
            parts += [_Part(cells[other], other in prose, _INDENT) for other in stacked]
            name = ' / '.join((name, *stacked))
        found[name] = _Column(max([len(name), *(part.least for part in parts)]),
                              max([len(name), *(part.widest for part in parts)]), parts)
    return found


def _total(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + _BORDERS * len(widths) + 1


def _words(cells: Sequence[Any]) -> list[int]:
    return [len(word) for cell in cells if isinstance(cell, str) for word in cell.split()]
