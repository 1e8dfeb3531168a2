"""The table of what is lost, as reStructuredText, from the results of both programs."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import pathlib
from typing import Final

from devicetrack.tests.cloud import hosts
from devicetrack.tests.cloud import story
from devicetrack.tests.host import image as images

#: Included by the documentation; ``make cloud-test ARGS=--write`` writes it.
PATH: Final = images.PROJECT / 'doc' / 'source' / 'nova' / 'lost.txt'

_NOT_RUN: Final = 'not tried'
_NOTHING: Final = 'nothing'
_COLUMNS: Final = 4
_HOW: Final = {story.NOT: 'undisturbed', story.KILL: '``kill -9``', story.RESET: 'power cut'}

_HEAD: Final = f"""\
.. Written by make cloud-test ARGS=--write: do not edit.

.. list-table::
   :header-rows: 1
   :widths: 24 14 31 31

   * - operation
     - disturbed by
     - lost with ``{hosts.STOCK}``
     - lost with ``{hosts.ADAPTED}``
"""


def text(results: Mapping[str, Sequence[story.Result]]) -> str:
    """The table.

    :param results: those of each program
    """
    lost = {(program, result.scene, result.how): ', '.join(result.lost) or _NOTHING
            for program, found in results.items() for result in found}
    ran = {(scene, how) for _program, scene, how in lost}
    lines = []
    for scene in story.SCENES:
        for how in story.HOWS:
            if (scene.NAME, how) in ran:
                lines += [f'   * - {scene.NAME}', f'     - {_HOW[how]}',
                          *(f'     - {lost.get((program, scene.NAME, how), _NOT_RUN)}'
                            for program in (hosts.STOCK, hosts.ADAPTED))]
    return _HEAD + '\n'.join(lines) + '\n'


def read(path: pathlib.Path = PATH) -> dict[str, list[story.Result]]:
    """What a table says, the results of each program. It has no details."""
    hows = {shown: how for how, shown in _HOW.items()}
    read: dict[str, list[story.Result]] = {hosts.STOCK: [], hosts.ADAPTED: []}
    cells = [line[7:] for line in path.read_text().splitlines() if line.startswith(('   * - ', '     - '))]
    for first in range(_COLUMNS, len(cells), _COLUMNS):
        scene, how, *found = cells[first:first + _COLUMNS]
        for program, lost in zip(read, found, strict=True):
            if lost != _NOT_RUN:
                # No text of what is lost has a comma.
                read[program].append(
                    story.Result(scene, hows[how], [] if lost == _NOTHING else lost.split(', '), []))
    return read


def write(results: Mapping[str, Sequence[story.Result]], path: pathlib.Path = PATH) -> None:
    path.write_text(text(results))
