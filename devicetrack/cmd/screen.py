"""Output for people: tables as wide as their terminal, and colours where they want them."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import io
import itertools
import os
import shutil
import sys
import textwrap
from typing import Any
from typing import Final
from typing import NamedTuple
from typing import TextIO
import unicodedata

# The least width of a terminal: every table of default columns fits it. Output to a file has this width too.
WIDTH: Final = 80

# The least width of a column of sentences.
_NARROWEST: Final = 20

# The indent of cells that are put below others.
_INDENT: Final = '  '

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
    :param below: columns whose cells are put below those of the first column if leaving out the spare columns is not
        enough, in this order; each stands there in its place among the names
    """
    cells = {name: [row[number] for row in rows] for number, name in enumerate(names)}
    beside = {name: _Part(cells[name], name in prose) for name in names}
    under = {name: _Part(cells[name], name in prose, _INDENT) for name in below if name in cells}
    spare = [name for name in spare if name in cells]
    columns: dict[str, list[_Part]] = {}
    left_out: tuple[str, ...] = ()
    widths, room = list[int](), 0
    for stacked, number in itertools.product(range(len(under) + 1), range(len(spare) + 1)):
        left_out = tuple(spare[:number])
        lower = [name for name in names if name in list(under)[:stacked] and name not in left_out]
        columns = {name: [beside[name]] for name in names if name not in left_out and name not in lower}
        if lower:
            first, *others = columns.items()
            parts = first[1] + [under[name] for name in lower]
            heading = ' / '.join((first[0], *lower))
            if len(heading) > max(part.least for part in parts):
                heading = heading.replace(' ', '')
            columns = {heading: parts, **dict(others)}
        widths = [max(len(heading), *(part.least for part in parts)) for heading, parts in columns.items()]
        room = width - sum(widths) - _BORDERS * len(widths) - 1
        if room >= 0:
            break
    lacking = [max(part.widest for part in parts) - had for parts, had in zip(columns.values(), widths, strict=True)]
    places = sorted(range(len(lacking)), key=lacking.__getitem__)
    for left, place in zip(range(len(places), 0, -1), places, strict=True):
        more = max(0, min(lacking[place], room // left))
        widths[place] += more
        room -= more
    return Fitted(list(columns), [[_cell(parts, row, had) for parts, had in zip(columns.values(), widths, strict=True)]
                                  for row in range(len(rows))], left_out)


class _Part:
    """A column of the answer in a table. Sentences are wrapped; cells below those of another column are indented."""

    def __init__(self, cells: Sequence[Any], is_prose: bool, indent: str = '') -> None:
        self.cells, self._is_prose, self._indent = cells, is_prose, indent
        self.widest = self._longest(sys.maxsize)
        self.least = max(self._longest(_NARROWEST), min(_NARROWEST, self.widest))

    def _longest(self, width: int) -> int:
        return max((_columns(line) for row in range(len(self.cells)) for line in self.lines(row, width)), default=0)

    def lines(self, row: int, width: int) -> list[str]:
        text = str(self.cells[row])
        return (wrap(text, width, self._indent) if self._is_prose else
                [self._indent + line for line in text.split('\n')])


def _columns(line: str) -> int:
    """Return how many columns of a terminal a line takes. A character of an East Asian script takes two."""
    return len(line) + (0 if line.isascii() else sum(unicodedata.east_asian_width(one) in 'WF' for one in line))


def _cell(parts: Sequence[_Part], row: int, width: int) -> Any:
    first, *others = parts
    if not others and not isinstance(first.cells[row], str):
        return first.cells[row]                 # a number, which is aligned on the right
    shown = [first, *(other for other in others if other.cells[row] != '')]
    return '\n'.join(line for part in shown for line in part.lines(row, width))
