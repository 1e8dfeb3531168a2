"""``make host-test``."""

from __future__ import annotations

import argparse
import pathlib
import re
import shutil
import signal
import sys
import tempfile
import time
from typing import Any

from devicetrack.tests.host import image as images
from devicetrack.tests.host import suites
from devicetrack.tests.host.results import Results

RESULTS = images.PROJECT / '.stestr-host'


def main() -> int:
    options = _options()
    # Ends by an exception, so that nothing is left behind.
    signal.signal(signal.SIGTERM, _end)
    releases = list(images.SUITES) if options.debian == 'all' else [int(options.debian)]
    with Results(RESULTS, _say) as results:
        for release in releases:
            _say(f'Debian {release}')
            try:
                image = images.get(release)
            except images.CannotBuild as error:
                _say(str(error))
                return 1
            _run(image, options, results)
    for name in results.names:
        _say(f'failed: {name}')
    if not results.passed and not results.failed:
        _say(f'no test has {options.pattern!r} in its name, or all that have it are excluded')
    _say(f'{results.passed} passed, {results.failed} failed')
    return 1 if results.failed or not results.passed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='make host-test', description='Try the library on compute hosts, which are virtual machines.')
    parser.add_argument('pattern', nargs='?', default='', metavar='REGEX', type=_pattern,
                        help='found anywhere in the dotted name of a test: module, class or method; all by default')
    parser.add_argument('--exclude-list', dest='excluded', default=[], type=patterns, metavar='FILE',
                        help='a file of such regular expressions, a line each: tests that are left out')
    parser.add_argument('--debian', choices=[*map(str, images.SUITES), 'all'], default='all',
                        help='what the hosts run; all by default, for that is where they differ')
    parser.add_argument('--keep', action='store_true', help="leave the machines' disks and consoles, and say where")
    return parser.parse_args()


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f'{text!r} is no regular expression: {error}') from None
    return text


def patterns(path: str) -> list[str]:
    """The lines of a file, without those that are empty or a comment."""
    try:
        lines = pathlib.Path(path).read_text('utf-8').splitlines()
    except OSError as error:
        raise argparse.ArgumentTypeError(f'cannot read {path}: {error.strerror}') from None
    return [_pattern(line) for line in lines if line.strip() and not line.startswith('#')]


def _run(image: images.Image, options: argparse.Namespace, results: Results) -> None:
    began = time.monotonic()
    directory = tempfile.mkdtemp(prefix='run-', dir=images.cache())
    try:
        suites.run(image, directory, suites.Selection(options.pattern, options.excluded), results)
    finally:
        if options.keep:
            _say(f'kept: {directory}')
        else:
            shutil.rmtree(directory)
    _say(f'Debian {image.debian} took {time.monotonic() - began:.0f} s')


def _end(number: int, _frame: Any) -> None:
    raise SystemExit(128 + number)


def _say(text: str) -> None:
    sys.stdout.write(f'{text}\n')
    sys.stdout.flush()


if __name__ == '__main__':
    sys.exit(main())
