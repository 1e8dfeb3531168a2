"""Root directories of Debian 13, made by the script ``root`` and kept, and what is brought into them."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile
from typing import Final

from devicetrack.tests.host import image as images

ROOT: Final = pathlib.Path(__file__).with_name('root')


def made(kind: str, packages: Sequence[str]) -> pathlib.Path:
    """The root directory with these packages, made if there is none of this recipe: that takes minutes, and root.

    :param kind: what it is for; a directory of another recipe for the same is removed
    :raises CannotBuild: it cannot be made here
    """
    if os.geteuid() != 0:
        raise images.CannotBuild('A root directory is made and entered, which takes root.')
    digest = hashlib.sha256(ROOT.read_bytes() + repr(packages).encode()).hexdigest()[:16]
    directory = images.cache() / f'debian{kind}-{digest}'
    images.cache().mkdir(mode=0o700, parents=True, exist_ok=True)
    with images.one_builder(kind):
        if not directory.exists():
            for old in images.cache().glob(f'debian{kind}-*'):
                if not images.is_kept(old):
                    shutil.rmtree(old)
            new = directory.with_suffix('.new')
            if subprocess.run([ROOT, 'make', new, images.mirror(), *packages], stdin=subprocess.DEVNULL).returncode:
                raise images.CannotBuild(f'The root directory was not made; {new} has what there is of it.')
            new.rename(directory)
        images.keep(directory)
    return directory


@contextlib.contextmanager
def work(keep: bool = False) -> Iterator[pathlib.Path]:
    """A directory for what changes in a root directory."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix='run-', dir=images.cache()))
    try:
        yield directory
    finally:
        if not keep:
            shutil.rmtree(directory)


def bring_sources(project: pathlib.Path) -> None:
    """Copy the sources, committed or not, without ``.git``."""
    listed = subprocess.run(['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard'],
                            cwd=images.PROJECT, stdout=subprocess.PIPE, check=True).stdout
    for name in filter(None, listed.decode().split('\0')):
        if (images.PROJECT / name).is_file():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(images.PROJECT / name, project / name)


def enter(directory: pathlib.Path, changes: pathlib.Path, commands: str) -> None:
    """Run commands of a shell in a root directory, with the network of this machine."""
    subprocess.run([ROOT, 'enter', directory, changes, 'sh', '-ec', commands], check=True)
