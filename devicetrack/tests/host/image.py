"""A host's root disk, from nothing but a Debian mirror and a Python index.

recipe/ says what goes into it. It is made once for each state of the recipe and kept. Machines write on a layer above.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import configparser
import contextlib
import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
from typing import NamedTuple

SUITES = {12: 'bookworm', 13: 'trixie'}

HERE = pathlib.Path(__file__).parent
PROJECT = HERE.parents[2]
RECIPE = HERE / 'recipe'

# Extras of setup.cfg, and the packages of its extra `test` that tests inside need. stestr brings subunit.
EXTRAS = ('libvirt', 'placement')
FOR_TESTS = {'fixtures', 'hypothesis', 'oslotest', 'stestr', 'testscenarios', 'testtools'}

# Where Python's packages are inside, and the project, which comes with every run.
VENV = '/opt/venv'
PROJECT_INSIDE = '/job/project'

# Room for what tests write; the file is sparse.
SIZE = '6G'


class Contents(NamedTuple):
    """What an image has besides what the tests of the library need."""

    name: str = ''
    packages: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()


class CannotBuild(Exception):
    """An image cannot be built here; the text says what to do."""


class Image(NamedTuple):
    """A disk that machines boot from, and never write to."""

    debian: int
    directory: pathlib.Path

    @property
    def disk(self) -> pathlib.Path:
        return self.directory / 'root.img'

    @property
    def kernel(self) -> pathlib.Path:
        return self.directory / 'vmlinuz'

    @property
    def initrd(self) -> pathlib.Path:
        return self.directory / 'initrd'


def cache() -> pathlib.Path:
    """Where images are kept."""
    directory = os.environ.get('DEVICETRACK_HOST_CACHE')
    return pathlib.Path(directory) if directory else pathlib.Path.home() / '.cache' / 'devicetrack' / 'host'


def requirements(setup_cfg: str) -> list[str]:
    """The packages that the library and the tests inside need, from the text of setup.cfg."""
    parser = configparser.ConfigParser()
    parser.read_string(setup_cfg)
    extras = parser['options.extras_require']
    needed = [parser['options']['install_requires'], *(extras[extra] for extra in EXTRAS)]
    for_tests = [line for line in extras['test'].splitlines() if line.partition('>')[0] in FOR_TESTS]
    return [line for text in needed for line in text.splitlines() if line] + for_tests


def key(debian: int, recipe: pathlib.Path, required: Sequence[str], packages: Sequence[str] = ()) -> str:
    """A digest of the recipe of an image. The mirror has no part in it: an image stays until its recipe changes."""
    seen = hashlib.sha256(repr([debian, *required, *packages, VENV, PROJECT_INSIDE, SIZE]).encode())
    for path in sorted(path for path in recipe.rglob('*') if path.is_file()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        seen.update(repr([str(path.relative_to(recipe)), os.access(path, os.X_OK), content]).encode())
    return seen.hexdigest()[:16]


def get(debian: int, contents: Contents | None = None) -> Image:
    """The image of this release, built if there is none: that takes minutes, and root.

    :param contents: what it has besides
    :raises CannotBuild: it cannot be built here
    """
    more = contents or Contents()
    required = [*requirements((PROJECT / 'setup.cfg').read_text()), *more.requirements]
    digest = key(debian, RECIPE, required, more.packages)
    image = Image(debian, cache() / f'debian{debian}{more.name}-{digest}')
    cache().mkdir(mode=0o700, parents=True, exist_ok=True)
    with one_builder(debian):
        if not image.directory.exists():
            _build(image, more.packages, required)
        keep(image.directory)
    return image


def keep(directory: pathlib.Path) -> None:
    """Until this process ends nobody removes what its machines have below their disks."""
    fcntl.flock(os.open(directory, os.O_RDONLY), fcntl.LOCK_SH)


def is_kept(directory: pathlib.Path) -> bool:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextlib.contextmanager
def one_builder(debian: int | str) -> Iterator[None]:
    with open(cache() / f'debian{debian}.lock', 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(image: Image, packages: Sequence[str], required: Sequence[str]) -> None:
    if os.geteuid() != 0:
        raise CannotBuild('An image is built by debootstrap in a chroot, which takes root; run this once as root.')
    _remove(image.directory.name.rpartition('-')[0])
    new = image.directory.with_suffix('.new')
    new.mkdir()
    log = image.directory.with_suffix('.log')
    with log.open('wb') as output:
        status = subprocess.run(
            [RECIPE / 'build', SUITES[image.debian], mirror(), new, SIZE, VENV, PROJECT_INSIDE,
             ' '.join(packages), *required],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output).returncode
    if status:
        tail = ''.join(log.read_text(errors='replace').splitlines(keepends=True)[-20:])
        raise CannotBuild(f'{tail}The image was not built; {log} has the rest.')
    new.rename(image.directory)


def _remove(family: str) -> None:
    """Remove images of the same release and contents that another recipe made, or that were never finished."""
    for path in cache().glob(f'{family}-*'):
        if path.is_dir() and not is_kept(path):
            shutil.rmtree(path)
            path.with_suffix('.log').unlink(missing_ok=True)


def mirror() -> str:
    """The Debian mirror that this machine installs its own packages from."""
    answer = subprocess.run(
        ['apt-get', 'indextargets', '--format', '$(REPO_URI)', 'Created-By: Packages', 'Label: Debian'],
        stdout=subprocess.PIPE, text=True, check=True)
    if not (uris := answer.stdout.split()):
        raise CannotBuild('apt-get knows no Debian mirror; an image is built from the one that this machine uses.')
    return uris[0]
