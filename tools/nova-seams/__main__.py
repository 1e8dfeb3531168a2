"""Compare releases of Nova with the tables that the adapter has of them, and write these tables.

doc/source/contributor/nova_seams.rst explains the output.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
import difflib
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

import nova.cmd.compute  # noqa: F401     # this must come first: it chooses the kind of threads

from devicetrack.nova import seam_table
from devicetrack.nova import seams
from devicetrack.nova import source
from devicetrack.nova import startup

# Other versions belong to packages of distributions.
PUBLISHED = re.compile(r'\d+\.\d+\.\d+')


def main() -> int:
    parser = argparse.ArgumentParser(prog='make nova-seams', description=__doc__)
    parser.add_argument('releases', nargs='*', metavar='RELEASE', help='by default what is installed')
    parser.add_argument('--all', action='store_true', help='every release that is known, and those that are named')
    parser.add_argument('--write', action='store_true', help='make these releases known: write or extend their tables')
    parser.add_argument('--as', dest='label', metavar='VERSION',
                        help="what the installed Nova is called in its table: the version of a distribution's package")
    parser.add_argument('--against', metavar='RELEASE', help='show the changes since this release, line by line')
    asked = parser.parse_args()
    if asked.label and (asked.releases or asked.all):
        parser.error('--as names what is installed, and nothing that is downloaded')
    known = seam_table.load()
    releases = set(asked.releases).union(*(filter(PUBLISHED.fullmatch, table.releases)
                                           for table in known.values() if asked.all))
    targets = startup.targets()
    status = 0
    with tempfile.TemporaryDirectory() as directory:
        readings = {release: read(release, targets, pathlib.Path(directory))
                    for release in seam_table.in_order(releases)}
        for release in readings or [asked.label or seams.installed()]:
            reading = readings.get(release)
            differences = list(seam_table.nearest(known, release).differences(reading, targets) if reading else
                               seams.differ(release, targets, known))
            print(f'Nova {release}: {count(len(differences))}', *differences, sep='\n    ')
            status |= bool(differences)
            if asked.against:
                before = read(asked.against, targets, pathlib.Path(directory))
                for line in changes(asked.against, before, release, reading or seams.read(targets)):
                    print(line)
            if asked.write:
                known.setdefault(seam_table.major(release), seam_table.SeamTable()).add(
                    release, reading or seams.read(targets))
    if asked.write:
        for number, table in known.items():
            seam_table.DIRECTORY.joinpath(f'{number}.txt').write_text(str(table), encoding='utf-8')
        return 0
    return status


def count(differences: int) -> str:
    return f'{differences} difference(s)' if differences else 'as known'


def read(release: str, targets: list[str], directory: pathlib.Path) -> source.Reading:
    """Read a release from its package, without installing it."""
    place = directory / release
    if not place.exists():
        subprocess.run([sys.executable, '-m', 'pip', 'download', '-qq', '--disable-pip-version-check', '--no-deps',
                        '--only-binary', ':all:', '--dest', place, f'nova=={release}'], check=True)
        [wheel] = place.glob('nova-*.whl')
        with zipfile.ZipFile(wheel) as package:
            package.extractall(place)
    return source.read(place / 'nova', targets)


def changes(old_release: str, old: source.Reading, new_release: str, new: source.Reading) -> Iterator[str]:
    """The functions that differ between two releases, as a unified diff without comments."""
    before, after = functions(old), functions(new)
    for name in sorted(before.keys() | after.keys()):
        texts = [found[name].text.splitlines() if name in found else [] for found in (before, after)]
        yield from difflib.unified_diff(*texts, f'{old_release} {name}', f'{new_release} {name}', lineterm='')


def functions(reading: source.Reading) -> dict[str, source.NovaFunction]:
    return {name: function for name, (function, _names) in reading.callers.items()} | reading.targets


if __name__ == '__main__':
    sys.exit(main())
