"""Finds the Nova in a package that is not installed. Nothing of the package runs, and nobody needs to be root."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from importlib import metadata
import pathlib
import tempfile
from typing import Final
from typing import NamedTuple

from oslo_concurrency import processutils

from devicetrack import exception

OPTION: Final = '--check-package'


class NovaPackage(NamedTuple):
    """The Nova of a package.

    :ivar release: the version of the package, without an epoch
    :ivar root: the directory of its Python package ``nova``
    """

    release: str
    root: pathlib.Path


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[NovaPackage]:
    """Unpack a package while the block runs, and find the Nova in it.

    :param path: a package of Debian's kind, or a directory with the files of a package, of any kind
    :raises InvalidConfiguration: it cannot be read, or does not have exactly one Nova
    """
    if path.is_dir():
        yield _found(path, path)
        return
    with tempfile.TemporaryDirectory() as directory:
        try:
            # A file whose name begins with a hyphen is no option.
            version, _errors = processutils.execute('dpkg-deb', '--field', str(path.absolute()), 'Version')
            processutils.execute('dpkg-deb', '--extract', str(path.absolute()), directory)
        except (OSError, processutils.ProcessExecutionError) as error:
            said = getattr(error, 'stderr', None) or getattr(error, 'strerror', None) or str(error)
            raise exception.InvalidConfiguration(OPTION, str(path), ' '.join(said.split())) from error
        yield _found(path, pathlib.Path(directory))._replace(release=version.strip().rpartition(':')[2])


def _found(path: pathlib.Path, directory: pathlib.Path) -> NovaPackage:
    top, manager = directory.absolute(), 'compute/manager.py'
    roots = [top] if top.name == 'nova' and (top / manager).is_file() else [
        one.parents[1] for one in sorted(top.rglob(f'nova/{manager}'))]
    if len(roots) != 1:
        raise exception.InvalidConfiguration(OPTION, str(path), (
            f'it has several: {", ".join(map(str, roots))}' if roots else
            "there is no Nova in it; Debian's and Ubuntu's package of it is python3-nova"))
    [root] = roots
    described = next(iter(metadata.distributions(name='nova', path=[str(root.parent)])), None)
    if described is None:
        raise exception.InvalidConfiguration(OPTION, str(path), f'nothing beside {root} gives its release')
    return NovaPackage(described.version, root)
