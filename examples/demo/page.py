"""Formats the demo's text."""

from __future__ import annotations

from collections.abc import Sequence
import sys
import textwrap

WIDTH = 96
INDENT = 4
_MARGIN = ' ' * INDENT


def title(text: str) -> None:
    _line(text)
    _line('=' * len(text))


def chapter(heading: str) -> None:
    _line()
    _line()
    _line(heading)
    _line('-' * len(heading))


def say(text: str) -> None:
    """Print a paragraph. The line breaks in ``text`` do not matter."""
    _line()
    _line(textwrap.fill(' '.join(text.split()), WIDTH, break_on_hyphens=False))


def quote(text: str) -> None:
    """Print a paragraph as a quotation."""
    _line()
    _line(textwrap.fill(' '.join(text.split()), WIDTH, initial_indent=_MARGIN,
                        subsequent_indent=_MARGIN, break_on_hyphens=False))


def show(text: str) -> None:
    """Print lines as a terminal shows them."""
    _line()
    for line in text.splitlines():
        for part in textwrap.wrap(line, WIDTH - INDENT, break_on_hyphens=False) or ['']:
            _line((_MARGIN + part).rstrip())


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print columns, each as wide as its widest entry. Numbers are aligned to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    right = [all(isinstance(row[index], int) for row in rows) for index in range(len(columns))]
    _line()
    for row in (columns, ['-' * width for width in widths], *cells):
        placed = [cell.rjust(width) if is_number else cell.ljust(width)
                  for cell, width, is_number in zip(row, widths, right, strict=True)]
        _line(_MARGIN + '  '.join(placed).rstrip())


def _line(text: str = '') -> None:
    sys.stdout.write(f'{text}\n')
    sys.stdout.flush()


def count(number: int, noun: str) -> str:
    return f'{number} {noun}' if number == 1 else f'{number} {noun}s'


def a(flavor: str) -> str:
    """A flavor with its article: a or an."""
    return f'an {flavor}' if flavor.startswith('m') else f'a {flavor}'


def listed(names: Sequence[str]) -> str:
    """Names, listed as in a sentence."""
    return ' and '.join(filter(None, (', '.join(names[:-1]), *names[-1:])))
