"""Formatters that cliff lacks: CSV for one thing, and JSON for a list that is too long for memory."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from collections.abc import Sequence
import csv
import json
from typing import Any
from typing import TextIO

from cliff.formatters import base
from cliff.formatters import json_format


class CSVOne(base.SingleFormatter):
    """One thing as CSV: a line of names and a line of values, like a list with one row."""

    def add_argument_group(self, parser: argparse.ArgumentParser) -> None:
        pass

    def emit_one(self, column_names: Sequence[str], data: Sequence[Any], stdout: TextIO,
                 parsed_args: argparse.Namespace) -> None:
        writer = csv.writer(stdout, lineterminator='\n')
        writer.writerow(column_names)
        writer.writerow(data)


class JSONRows(json_format.JSONFormatter):
    """A list as JSON, written row by row: each row is a line. A row that is a text is that line already."""

    def emit_list(self, column_names: Sequence[str], data: Iterable[Sequence[Any] | str], stdout: TextIO,
                  parsed_args: argparse.Namespace) -> None:
        before = '[\n'
        for row in data:
            line = row if isinstance(row, str) else json.dumps(dict(zip(column_names, row, strict=True)))
            stdout.write(before + line)
            before = ',\n'
        stdout.write('[]\n' if before == '[\n' else '\n]\n')
