"""The commands and files of the operator's guide, as they stand in its pages."""

from __future__ import annotations

import itertools
import pathlib
import re
import textwrap
from typing import Final

PAGES: Final = pathlib.Path(__file__).parents[3] / 'doc' / 'source' / 'nova'

_TITLE: Final = re.compile(r'^(\S.*)\n([-=~])\2+$', re.MULTILINE)
_BLOCK: Final = re.compile(r'::\n\n( +)(?=\S)')


def blocks(page: str, section: str) -> list[str]:
    """Return the literal blocks of one section of a page, in their order.

    :raises LookupError: the page has no such section
    """
    text = (PAGES / f'{page}.rst').read_text(encoding='utf-8')
    titles = list(_TITLE.finditer(text))
    for title, following in itertools.zip_longest(titles, titles[1:]):
        if title[1] == section:
            return _blocks(text[title.end():following.start() if following else len(text)])
    raise LookupError(f'{page}.rst has no section {section!r}')


def _blocks(body: str) -> list[str]:
    found = []
    for begins in _BLOCK.finditer(body):
        indented = itertools.takewhile(lambda line, indent=begins[1]: not line.strip() or line.startswith(indent),
                                       body[begins.start(1):].splitlines(keepends=True))
        found.append(textwrap.dedent(''.join(indented)).strip() + '\n')
    return found


def is_file(block: str) -> bool:
    """Whether a block is a file, whose path is in its first line, and not commands."""
    return block.startswith('# /')


def file_of(block: str) -> tuple[str, str]:
    """Return the path of a file and its text."""
    first, _newline, text = block.partition('\n')
    return first.removeprefix('# '), text
