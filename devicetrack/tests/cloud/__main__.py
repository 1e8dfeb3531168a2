"""``make cloud-test``."""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import shutil
import signal
import sys
import tempfile
import time
from typing import Any
from typing import Final

from devicetrack.tests.cloud import cloud as clouds
from devicetrack.tests.cloud import hosts
from devicetrack.tests.cloud import image
from devicetrack.tests.cloud import story
from devicetrack.tests.cloud import table
from devicetrack.tests.host import image as images

#: The last result of each scene and program: a run of one scene replaces that.
RESULTS: Final = images.PROJECT / '.cloud-test'

PROGRAMS: Final = {'stock': hosts.STOCK, 'devicetrack': hosts.ADAPTED}


def main() -> int:
    options = _options()
    # Ends by an exception, so that nothing is left behind.
    signal.signal(signal.SIGTERM, _end)
    scenes = [(scene, how) for scene in story.SCENES for how in story.HOWS
              if re.search(options.pattern, f'{scene.NAME} {how}'.strip())]
    if not scenes:
        _say(f'no scene has {options.pattern!r} in its name')
        return 1
    failed = False
    for name in PROGRAMS if options.program == 'both' else [options.program]:
        results = _play(PROGRAMS[name], scenes, options.keep)
        failed |= name == 'devicetrack' and not all(result.passed for result in results)
    text = table.text(_kept())
    _say(text)
    if options.write:
        table.write(_kept())
        _say(f'written: {table.PATH}')
    return int(failed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='make cloud-test', description='Play operations of Nova on a cloud with two compute hosts, which are '
        'virtual machines, with the library and without, and see what is lost.')
    parser.add_argument('pattern', nargs='?', default='', metavar='REGEX',
                        help='found in the name of a scene and what disturbs it, "resize.*kill" for example; all by '
                             'default')
    parser.add_argument('--program', choices=[*PROGRAMS, 'both'], default='both',
                        help='which compute service the hosts run; one after the other by default')
    parser.add_argument('--write', action='store_true', help='write the table that the documentation includes, '
                        'from the last result of each scene')
    parser.add_argument('--keep', action='store_true', help="leave the hosts' disks and consoles, and say where")
    return parser.parse_args()


def _play(program: str, scenes: list[tuple[type[story.Scene], str]], keep: bool) -> list[story.Result]:
    """Play scenes on a new cloud. One that leaves something behind is the last on it."""
    built = image.get()
    booted = hosts.begin(built)
    waiting, results = list(scenes), []
    while waiting:
        directory = tempfile.mkdtemp(prefix='run-', dir=images.cache())
        try:
            with clouds.Cloud(built, booted, directory, program) as cloud:
                _say(f'{program}: a new cloud')
                while waiting:
                    kind, how = waiting.pop(0)
                    began = time.monotonic()
                    scene = kind(cloud, how)
                    result = scene.run()
                    results.append(result)
                    _keep(program, result)
                    _say(f'{time.monotonic() - began:6.0f} s {program}: {_shown(result)}')
                    if not result.passed:
                        _say('\n'.join(result.details))
                        _path(program, result, '.log').write_text(cloud.logs())
                    if not scene.is_clear:
                        break
        finally:
            if keep:
                _say(f'kept: {directory}')
            else:
                shutil.rmtree(directory)
    return results


def _shown(result: story.Result) -> str:
    disturbed = f', {result.how}' if result.how else ''
    return f'{result.scene}{disturbed}: lost {", ".join(result.lost) or "nothing"}'


def _path(program: str, result: story.Result, suffix: str) -> pathlib.Path:
    """One file for each scene: several runs may play at once."""
    name = f'{program}-{result.scene}-{result.how or "undisturbed"}'
    return RESULTS / re.sub('[^a-z0-9.]+', '-', f'{name}{suffix}')


def _kept() -> dict[str, list[story.Result]]:
    kept: dict[str, list[story.Result]] = {program: [] for program in PROGRAMS.values()}
    for path in sorted(RESULTS.glob('*.json')):
        program, *found = json.loads(path.read_text())
        kept[program].append(story.Result(*found))
    return kept


def _keep(program: str, result: story.Result) -> None:
    RESULTS.mkdir(exist_ok=True)
    _path(program, result, '.json').write_text(json.dumps([program, *result], indent=1))


def _end(number: int, _frame: Any) -> None:
    raise SystemExit(128 + number)


def _say(text: str) -> None:
    sys.stdout.write(f'{text}\n')
    sys.stdout.flush()


if __name__ == '__main__':
    sys.exit(main())
