"""The option and the file of commands that write a page of HTML."""

from __future__ import annotations

import argparse
from collections.abc import Callable
import os

from devicetrack import ownfiles
from devicetrack.cmd import base


def add_output(parser: argparse.ArgumentParser, required: bool = False) -> None:
    """Add ``--output``, for commands that can draw a page, or only draw pages."""
    parser.add_argument('--output', metavar='FILE.html', required=required,
                        help='Draw a page of HTML into this file. It needs no other file and no network. An older file '
                             'of this name is replaced when the new one is complete.')


def write(path: str, draw: Callable[[], str]) -> None:
    """Draw a page into a file, in one step: the file is complete or unchanged.

    :raises UsageError: Jinja2 is not installed, or the file cannot be written
    """
    try:
        page = draw()
    except ImportError as missing:
        raise base.UsageError(
            f'{missing.name}, which draws pages, is not installed: install devicetrack[pictures]') from missing
    try:
        umask = os.umask(0)
        os.umask(umask)
        ownfiles.replace_text(path, page, 0o666 & ~umask)
    except OSError as error:
        raise base.UsageError(f'{path} cannot be written: {error.strerror}') from error
