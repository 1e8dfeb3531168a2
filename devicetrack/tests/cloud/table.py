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


def write(results: Mapping[str, Sequence[story.Result]], path: pathlib.Path = PATH) -> None:
    path.write_text(text(results))
