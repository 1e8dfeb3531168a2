"""Captured documents, by the name of their file in ``devicetrack/tests/data``."""

from __future__ import annotations

import pathlib

DIRECTORY = pathlib.Path(__file__).parents[2] / 'data'
LIBVIRTS = ('9.0.0', '11.3.0')
NDCTLS = ('76.1', '81')


def read(name: str) -> str:
    return (DIRECTORY / name).read_text(encoding='utf-8')
