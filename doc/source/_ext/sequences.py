"""Draws the tables of steps in moves.rst as sequence diagrams, with what changes only.

A test keeps those tables true. The drawing is made from the table when the documentation is built, so it is as true.
The table stays below it as text.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import html
import re
import textwrap
from typing import Any
from typing import Final
from typing import NamedTuple

from docutils import nodes

_HEAD: Final = re.compile(r'step +rows of host one +rows of host two$')
_NO_ROWS: Final = '–'
# The word of a row that a bar is drawn by: the first of them that it has.
_WORDS: Final = ('releasing', 'claimed', 'old', 'current')

# In pixels of the drawing: where the lines of the hosts are, and how far steps are apart.
_WIDTH: Final = 760
_LINES: Final = {'one': 196, 'two': 564}
_LANE: Final = 13
_STEP: Final = 25
_SECOND_LINE: Final = 14
_TOP: Final = 34
_CHARACTERS: Final = 46


class Step(NamedTuple):
    """A step of an operation, the host that takes it ('' for neither), and the rows of both hosts after it."""

    host: str
    text: str
    rows: dict[str, tuple[str, ...]]


def parse(table: str) -> list[Step] | None:
    """The steps of a table; None for a text that is none."""
    lines = table.splitlines()
    if len(lines) < 3 or not _HEAD.match(lines[0]):
        return None
    columns = [match.span() for match in re.finditer('─+', lines[1])]
    steps, begun = [], ''
    for line in lines[2:]:
        told, *rows = (line[start:end].strip() for start, end in zip(
            (start for start, _end in columns), [start for start, _end in columns[1:]] + [None], strict=True))
        begun = f'{begun} {told}'.strip()
        if rows[0]:                                 # else the step goes on in the next line
            host, colon, text = begun.partition(': ')
            known = colon and host in _LINES
            steps.append(Step(host if known else '', text if known else begun, {
                name: () if of_host == _NO_ROWS else tuple(of_host.split(', '))
                for name, of_host in zip(_LINES, rows, strict=True)}))
            begun = ''
    return steps


def draw(steps: Sequence[Step]) -> str:
    """The drawing of an operation."""
    parts: list[str] = []
    places, y = [], _TOP
    for step in steps:
        lines = textwrap.wrap(step.text, _CHARACTERS) or ['']
        y += _STEP + _SECOND_LINE * (len(lines) - 1)
        places.append(y)
        parts.extend(_step(step, lines, y))
    end = y + _STEP // 2
    for name in _LINES:
        parts.extend(_host(name, [step.rows[name] for step in steps], places, end))
    return (f'<div class="sequence"><svg viewBox="0 0 {_WIDTH} {end + 6}" width="{_WIDTH}" height="{end + 6}" '
            'role="img" aria-label="The steps of the table below, and how each changes the rows of both hosts">'
            f'{"".join(parts)}</svg></div>')


def _step(step: Step, lines: Sequence[str], y: int) -> Iterator[str]:
    middle = _WIDTH // 2
    for number, line in enumerate(lines):
        yield _text(middle, y - _SECOND_LINE * (len(lines) - 1 - number), line, 'step')
    if step.host:
        x = _LINES[step.host]
        towards = 1 if step.host == 'one' else -1
        length = max(map(len, lines)) * 3.3 + 8     # half of the text
        yield (f'<path class="arrow" d="M{middle - towards * length:.0f} {y - 4}H{x + towards * 12}"/>'
               f'<path class="head" d="M{x + towards * 8} {y - 4}l{towards * 7} -3.5v7z"/>')


def _host(name: str, rows: Sequence[tuple[str, ...]], places: Sequence[int], end: int) -> Iterator[str]:
    """The line of a host: a bar for each device while it has a row, and a word where that row changes."""
    x, side = _LINES[name], -1 if name == 'one' else 1
    yield _text(x, 16, f'host {name}', 'name')
    yield f'<path class="life" d="M{x} 24V{end}"/>'
    devices = sorted({row.split()[0] for of_step in rows for row in of_step})
    for lane, device in enumerate(devices):
        seen = [next((row for row in of_step if row.split()[0] == device), '') for of_step in rows]
        begun = None
        for number, row in enumerate([*seen, None]):
            before = seen[number - 1] if number else ''
            if row == before:
                continue
            top = places[number] - 11 if row is not None else end
            if before and begun is not None:
                yield (f'<rect class="{_class_of(before)}" x="{x + side * lane * _LANE - 5}" y="{begun}" width="10" '
                       f'height="{top - begun}"/>')
            begun = top
    for number, of_step in enumerate(rows):
        before = rows[number - 1] if number else ()
        changed = [row for row in of_step if row not in before]
        gone = [f'{row.split()[0]} free' for row in before
                if row.split()[0] not in {other.split()[0] for other in of_step}]
        at = x + side * (len(devices) * _LANE - 4)
        for line, word in enumerate([*gone, *changed]):
            yield _text(at, places[number] + line * 12 - 1, word, f'row {name}')


def _class_of(row: str) -> str:
    return next(word for word in _WORDS if word in row.split())


def _text(x: float, y: float, text: str, of_class: str) -> str:
    return f'<text class="{of_class}" x="{x}" y="{y}">{html.escape(text)}</text>'


def insert(app: Any, doctree: nodes.document) -> None:
    """Put a drawing above each table of steps, and the table below it where a reader can open it."""
    for block in list(doctree.findall(nodes.literal_block)):
        steps = parse(block.astext())
        if steps is not None:
            block.replace_self([
                nodes.raw('', f'{draw(steps)}<details class="sequence"><summary>As text</summary>', format='html'),
                block,
                nodes.raw('', '</details>', format='html')])


def setup(app: Any) -> dict[str, bool]:
    app.connect('doctree-read', insert)
    return {'parallel_read_safe': True, 'parallel_write_safe': True}
