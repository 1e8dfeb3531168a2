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

import requests

from devicetrack.tests.cloud import cloud as clouds
from devicetrack.tests.cloud import compute_client
from devicetrack.tests.cloud import disks
from devicetrack.tests.cloud import hosts
from devicetrack.tests.cloud import image
from devicetrack.tests.cloud import story
from devicetrack.tests.cloud import table
from devicetrack.tests.host import image as images
from devicetrack.tests.host import machine as machines

#: The last result of each scene and program: a run of one scene replaces that.
RESULTS: Final = images.PROJECT / '.cloud-test'

PROGRAMS: Final = {'stock': hosts.STOCK, 'devicetrack': hosts.ADAPTED}

# How often a scene is played that comes to no result. None of these says anything of the program.
TRIES: Final = 3
NO_RESULT: Final = (story.Missed, compute_client.Hangs, machines.Gone, machines.Failed, TimeoutError,
                    requests.RequestException)


def main() -> int:
    options = _options()
    # Ends by an exception, so that nothing is left behind.
    signal.signal(signal.SIGTERM, _end)
    scenes = [(scene, how) for scene in (*story.SCENES, *disks.SCENES) for how in scene.HOWS
              if re.search(options.pattern, f'{scene.NAME} {how}'.strip())]
    if not scenes:
        _say(f'no scene has {options.pattern!r} in its name')
        return 1
    failed = False
    for name in PROGRAMS if options.program == 'both' else [options.program]:
        # Stock Nova leaves the disks to somebody else.
        for with_disks in (False, True) if name == 'devicetrack' else (False,):
            some = [(scene, how) for scene, how in scenes if scene.DISKS == with_disks]
            results = _play(PROGRAMS[name], some, options.keep, with_disks)
            failed |= len(results) < len(some)
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
                        'from the last result of each scene, and from the table for the others')
    parser.add_argument('--keep', action='store_true', help="leave the hosts' disks and consoles, and say where")
    return parser.parse_args()


def _play(program: str, scenes: list[tuple[type[story.Scene], str]], keep: bool, with_disks: bool = False,
          ) -> list[story.Result]:
    """Play scenes on a new cloud. One that leaves something behind is the last on it.

    :returns: the result of each scene that came to one
    """
    if not scenes:
        return []
    built = image.get()
    # A machine with disks to give away cannot be saved.
    booted = {} if with_disks else hosts.begin(built)
    waiting, results = [(*scene, TRIES) for scene in scenes], []
    while waiting:
        directory = tempfile.mkdtemp(prefix='run-', dir=images.cache())
        try:
            with clouds.Cloud(built, booted, directory, program, with_disks) as cloud:
                _say(f'{program}: a new cloud')
                while waiting:
                    kind, how, tries = waiting.pop(0)
                    began = time.monotonic()
                    scene = kind(cloud, how)
                    try:
                        result = scene.run()
                    except NO_RESULT as error:
                        _say(f'{time.monotonic() - began:6.0f} s {program}: {kind.NAME}, {how}: no result: {error!r}')
                        _log(program, kind.NAME, how, cloud)
                        if tries > 1:
                            waiting.append((kind, how, tries - 1))
                        if scene.is_clear:
                            continue
                        break
                    results.append(result)
                    _keep(program, result)
                    _say(f'{time.monotonic() - began:6.0f} s {program}: {_shown(result)}')
                    if not result.passed:
                        _say('\n'.join(result.details))
                        _log(program, result.scene, result.how, cloud)
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


def _log(program: str, scene: str, how: str, cloud: clouds.Cloud) -> None:
    """Keep the logs of all services; a host that gives none has none."""
    try:
        logs = cloud.logs()
    except NO_RESULT as error:
        logs = f'there are no logs: {error!r}'
    RESULTS.mkdir(exist_ok=True)
    _path(program, scene, how, '.log').write_text(logs)


def _path(program: str, scene: str, how: str, suffix: str) -> pathlib.Path:
    """One file for each scene: several runs may play at once."""
    return RESULTS / re.sub('[^a-z0-9.]+', '-', f'{program}-{scene}-{how or "undisturbed"}{suffix}')


def _kept() -> dict[str, list[story.Result]]:
    """The last result of each scene: one that was played here, or what the table says of it."""
    kept = {program: {(found.scene, found.how): found for found in results}
            for program, results in table.read().items()}
    for path in sorted(RESULTS.glob('*.json')):
        program, *found = json.loads(path.read_text())
        result = story.Result(*found)
        kept[program][result.scene, result.how] = result
    return {program: list(found.values()) for program, found in kept.items()}


def _keep(program: str, result: story.Result) -> None:
    RESULTS.mkdir(exist_ok=True)
    _path(program, result.scene, result.how, '.json').write_text(json.dumps([program, *result], indent=1))


def _end(number: int, _frame: Any) -> None:
    raise SystemExit(128 + number)


def _say(text: str) -> None:
    sys.stdout.write(f'{text}\n')
    sys.stdout.flush()


if __name__ == '__main__':
    sys.exit(main())
