"""Reads the sysfs attributes in which drivers declare the types of their devices for live migration. It never writes.

Mainline Linux has no such attribute, so options name them. A vendor's driver writes them, so the reader expects
anything: a file that never ends, bytes that are no text, a link that leads somewhere else.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import Any
from typing import Final
from typing import NamedTuple

from devicetrack import exception
from devicetrack.conf import compatibility as options
from devicetrack.objects.values import Attribute
from devicetrack.objects.values import MigrationType
from devicetrack.virt.libvirt import kernel_files

_PRINTABLE: Final = re.compile(rb'[ -~]*')
_DRIVER_VERSION: Final = 'driver/module/version'


class Paths(NamedTuple):
    """The paths of attributes, below the directory of a type. The reader skips an empty path."""

    version: str
    aggregation: str

    def read(self, root: str, of: MigrationType, directory: str, device: str) -> MigrationType:
        """Fill in what a driver declares about a type.

        :param root: where sysfs is
        :param of: names the type
        :param directory: the directory of the type, in ``root``
        :param device: the directory of the parent, in ``root``
        """
        version, aggregation = (read(root, directory, path) if path else Attribute() for path in self)
        return of._replace(version=version, aggregation=aggregation, driver=read(root, device, _DRIVER_VERSION).text)


def paths(conf: Any) -> Paths:
    """Read the paths from ``[devicetrack_compatibility]``, and register that group.

    :raises InvalidConfiguration: an option cannot be used; the message names it, its value and the reason
    """
    options.register(conf)
    ours = conf[options.GROUP]
    return Paths(_checked('version_attribute', ours.version_attribute),
                 _checked('aggregation_attribute', ours.aggregation_attribute))


def _checked(option: str, path: str) -> str:
    reason = None
    if '\0' in path:
        reason = 'a path cannot contain a NUL'
    elif path.startswith('/') or '..' in path.split('/'):
        reason = 'the path must be below the directory of a type, neither absolute nor with ".."'
    if reason is not None:
        # Nobody would see a NUL in the message.
        raise exception.InvalidConfiguration(f'[{options.GROUP}] {option}', path.replace('\0', '\\0'), reason)
    return path


def read(root: str, directory: str, relative_path: str) -> Attribute:
    """Read one attribute: a line of printable ASCII, without blanks around it.

    It opens only a file below ``root``. A problem names the path, for operators.

    :param root: where sysfs is
    :param directory: a directory in it
    :param relative_path: the attribute's path in the directory, which may be a link or lead through links
    """
    path = os.path.join(root, directory, relative_path)
    real, real_root = os.path.realpath(path), os.path.realpath(root)
    if os.path.commonpath((real, real_root)) != real_root:
        return Attribute(problem=f'{path} is refused: it leads out of {root}')
    try:
        if not stat.S_ISREG(os.stat(real).st_mode):
            raise OSError(errno.EINVAL, 'it is not a regular file')
        data = kernel_files.data(real, kernel_files.PAGE + 1)
    except FileNotFoundError:
        return Attribute()
    except OSError as error:
        return Attribute(problem=f'{path} cannot be read: {error.strerror or error}')
    problem = _problem(data)
    if problem is not None:
        return Attribute(problem=f'{path} {problem}')
    return Attribute(data.decode('ascii').strip())


def _problem(data: bytes) -> str | None:
    """Say why these bytes cannot be an attribute; None if they can."""
    if len(data) > kernel_files.PAGE:
        return f'has more than {kernel_files.PAGE} bytes'
    lines = data.removesuffix(b'\n').split(b'\n')
    if not all(map(_PRINTABLE.fullmatch, lines)):
        return 'has bytes that are not printable ASCII'
    if len(lines) > 1:
        return f'has {len(lines)} lines, one is expected'
    return None if lines[0].strip() else 'is empty'
