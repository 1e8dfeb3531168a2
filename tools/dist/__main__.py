"""Build what a release consists of, into a directory, and check what somebody installs from it.

tox -e dist runs it. The directory gets the archive of the sources, the wheel that is built from this archive, and the
list of all packages that come along in an empty environment (CycloneDX).
"""

from __future__ import annotations

import configparser
import pathlib
import subprocess
import sys
import tempfile
import venv

TREE = pathlib.Path(__file__).parents[2]
RESULTS = TREE / 'dist'


def run(*command: object) -> str:
    done = subprocess.run([str(part) for part in command], cwd=TREE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True)
    if done.returncode:
        sys.exit(f'{" ".join(str(part) for part in command)} ended with {done.returncode}\n{done.stdout}')
    return done.stdout


def install(wheel: pathlib.Path, setup: configparser.ConfigParser, environment: pathlib.Path) -> None:
    """Install the wheel into an empty environment, and see that what it brings is there and starts."""
    venv.create(environment, with_pip=True)
    python = environment / 'bin' / 'python'
    run(python, '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', wheel)
    run(python, '-m', 'pip', 'check')
    programs = [line.split()[0] for line in setup['options.entry_points']['console_scripts'].strip().splitlines()]
    missing = [str(path) for path in [
        *(environment / 'share' / 'man' / 'man1' / f'{program}.1' for program in programs),
        *(environment / directory / pathlib.Path(file).name
          for directory, files in setup['options.data_files'].items() for file in files.split())]
               if not path.is_file()]
    if missing:
        sys.exit(f'not installed: {", ".join(missing)}')
    version = setup['metadata']['version']
    for program in programs:
        # The service of Nova starts only beside Nova.
        arguments = ['--version'] if program != 'devicetrack-nova-compute' else ['--help']
        done = subprocess.run([environment / 'bin' / program, *arguments], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        expected = version if program != 'devicetrack-nova-compute' else 'has no package nova'
        if expected not in done.stdout:
            sys.exit(f'{program} {" ".join(arguments)} ended with {done.returncode}\n{done.stdout}')


def main() -> int:
    setup = configparser.ConfigParser()
    setup.read(TREE / 'setup.cfg')
    for old in RESULTS.glob('devicetrack-*'):
        old.unlink()
    with tempfile.TemporaryDirectory() as directory:
        # A build writes beside the sources, where other programs may look meanwhile.
        run('sh', '-ec', 'git ls-files -z --cached --others --exclude-standard | tar --create --null --files-from - '
            '--ignore-failed-read | tar --extract --directory "$0"', directory)
        run(sys.executable, '-m', 'build', '--outdir', RESULTS, directory)
    release = f'devicetrack-{setup["metadata"]["version"]}'
    archive, wheel = RESULTS / f'{release}.tar.gz', RESULTS / f'{release}-py3-none-any.whl'
    run(sys.executable, '-m', 'twine', 'check', '--strict', archive, wheel)
    packages = RESULTS / f'{release}.cdx.json'
    with tempfile.TemporaryDirectory() as directory:
        environment = pathlib.Path(directory, 'environment')
        install(wheel, setup, environment)
        run(sys.executable, '-m', 'cyclonedx_py', 'environment', '--output-reproducible', '--output-file', packages,
            environment / 'bin' / 'python')
    for made in (archive, wheel, packages):
        print(made)
    return 0


if __name__ == '__main__':
    sys.exit(main())
