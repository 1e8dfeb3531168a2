"""The command: ``python -m benchmarks [subject …]``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from collections.abc import Sequence
import importlib
import json
import os
import platform
import sys
import time
import traceback

from benchmarks.measure import Effort
from benchmarks.measure import FULL
from benchmarks.measure import TINY
from benchmarks.measure import WHOLE
from benchmarks.report import Row
from benchmarks.report import Table
from benchmarks.report import Verdict

SUBJECTS = ('claim', 'guests', 'recovery', 'wipes', 'store', 'memory', 'imports', 'placement', 'heal', 'compatibility',
            'scheduling', 'functions', 'metrics', 'history', 'fleet', 'use')
# These need more than the others, so they are measured only by name.
ON_REQUEST = ('nova',)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print.

    :returns: 0, or 1 if something could not be measured or, with ``--strict``, missed its limit
    """
    parser = argparse.ArgumentParser('benchmarks', description='Measure the library beside what it stands on.')
    parser.add_argument('subjects', nargs='*', metavar='SUBJECT',
                        help=f'of {", ".join(SUBJECTS)}, all by default, and {", ".join(ON_REQUEST)}')
    parser.add_argument('--json', metavar='FILE', help='write the same as JSON')
    parser.add_argument('--strict', action='store_true', help='fail when something was not reached')
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument('--tiny', action='store_true', help='the least of everything: only to see that it runs')
    effort.add_argument('--whole', action='store_true', help='"fleet" with 2,000 hosts and 2 million events')
    options = parser.parse_args(arguments)
    unknown = [subject for subject in options.subjects if subject not in SUBJECTS + ON_REQUEST]
    if unknown:
        parser.error(f'no such subject: {", ".join(unknown)}; there are {", ".join(SUBJECTS)}')
    began = time.monotonic()
    tables = []
    for subject in options.subjects or SUBJECTS:
        tables.append(measure(subject, TINY if options.tiny else WHOLE if options.whole else FULL))
        print(tables[-1].as_text(), end='\n\n', flush=True)
    verdicts = [row.verdict for table in tables for row in table.rows]
    print(f'{verdicts.count(Verdict.OK)} reached, {verdicts.count(Verdict.MISSED)} missed, '
          f'{verdicts.count(Verdict.FAILED)} not measured; {time.monotonic() - began:.0f} s, '
          f'Python {platform.python_version()}, {os.cpu_count()} processors')
    if options.json:
        with open(options.json, 'w', encoding='utf-8') as file:
            json.dump([table.as_json() for table in tables], file, indent=1, ensure_ascii=False)
            file.write('\n')
    return int(Verdict.FAILED in verdicts or (options.strict and Verdict.MISSED in verdicts))


def measure(subject: str, effort: Effort) -> Table:
    """Measure one subject. If that fails, the reason becomes a row of its table."""
    try:
        run: Callable[[Effort], Table] = importlib.import_module(f'benchmarks.{subject}').run
        return run(effort)
    except Exception as error:
        traceback.print_exc()
        return Table(subject, [Row(subject, None, note=f'{type(error).__name__}: {error}')])


if __name__ == '__main__':
    sys.exit(main())
