"""The formatters of commands that show one thing: cliff's own, and CSV, which cliff only has for lists."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import csv
from typing import Any
from typing import TextIO

from cliff.formatters import base


class CSVOne(base.SingleFormatter):
    """One thing as CSV: a line of names and a line of values, like a list with one row."""

    def add_argument_group(self, parser: argparse.ArgumentParser) -> None:
        pass

    def emit_one(self, column_names: Sequence[str], data: Sequence[Any], stdout: TextIO,
                 parsed_args: argparse.Namespace) -> None:
        writer = csv.writer(stdout, lineterminator='\n')
        writer.writerow(column_names)
        writer.writerow(data)
