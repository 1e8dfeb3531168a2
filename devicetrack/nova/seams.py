"""Checks that the adapter knows the installed Nova: the methods that it overrides, and those that call them.

The adapter's overrides rely on the behaviour of each of these methods. A changed method may take a device without
telling the adapter, and one that calls an overridden method at another time may wipe a device that a guest uses. So
the adapter refuses to start with any unknown method.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
import importlib
import os
import pathlib
import sys
from types import FunctionType
from typing import Any
from typing import cast
from typing import Final

from devicetrack import exception
from devicetrack.nova import package
from devicetrack.nova import seam_table
from devicetrack.nova import source

# The packages with the decorators that Nova uses on these methods.
_DECORATORS: Final = frozenset(
    {'contextlib', 'debtcollector', 'nova', 'oslo_concurrency', 'oslo_messaging', 'osprofiler', 'retrying', 'tenacity'})
# This package puts its own wrapper on methods, by a metaclass.
_UNWRITTEN: Final = frozenset({'osprofiler'})


def check(targets: Collection[str], tables: pathlib.Path = seam_table.DIRECTORY,
          operators: pathlib.Path = seam_table.OPERATORS) -> None:
    """Compare the Nova of this process with the known forms of its version.

    The modules of ``targets`` are imported. Nova's compute manager reads options while it is imported, so the
    configuration files must have been read. Blocks for about a second, most of it reading Nova's files.

    :param targets: what the adapter relies on, as ``package.module:Class.method`` or ``package.module:function``
    :raises UnknownNova: a method of ``targets``, or one that calls it, differs from every known release of this major
        version, or something else changed it in this process; nothing was changed
    :raises InvalidConfiguration: a table of the operator cannot be read
    """
    release, known = installed(), seam_table.known(tables, operators)
    _refuse(release, list(differ(release, targets, known)), known)


def check_package(found: package.NovaPackage, accepted: pathlib.Path | None = None,
                  tables: pathlib.Path = seam_table.DIRECTORY,
                  operators: pathlib.Path = seam_table.OPERATORS) -> list[str]:
    """Compare the Nova of a package with the known forms of its version. Nothing of it is imported.

    :param accepted: write the differences as a table of the operator to this file, rather than refuse them
    :returns: the differences that were accepted
    :raises UnknownNova: as :func:`check`
    :raises InvalidConfiguration: a table of the operator cannot be read, or the file cannot be written
    """
    known = seam_table.known(tables, operators)
    # Without an installed Nova only the tables say which methods the adapter relies on.
    targets = seam_table.nearest(seam_table.load(tables), found.release).targets
    reading = source.read(found.root, targets)
    differences = list(seam_table.nearest(known, found.release).differences(reading, targets))
    _refuse(found.release, differences if accepted is None else [], known)
    if accepted is not None:
        table = seam_table.SeamTable()
        table.add(found.release, reading)
        try:
            accepted.write_text(str(table), encoding='utf-8')
        except OSError as error:
            raise exception.InvalidConfiguration('--write-table', str(accepted), (
                f'{error.strerror}: its directory must be there, and this user must be able to write in it')) from error
    return differences


def _refuse(release: str, differences: list[str], known: dict[str, seam_table.SeamTable]) -> None:
    if differences or seam_table.major(release) not in known:
        raise exception.UnknownNova(differences, release, seam_table.in_order(
            one for table in known.values() for one in table.releases))


def installed() -> str:
    """Return the version of the Nova that this process imports."""
    version = importlib.import_module('nova.version')
    return str(version.version_string())


def differ(release: str, targets: Collection[str], known: dict[str, seam_table.SeamTable]) -> Iterator[str]:
    """Yield each unknown method of the Nova of this process, and the difference."""
    reading = read(targets)
    yield from seam_table.nearest(known, release).differences(reading, targets)
    for target, function in reading.targets.items():
        importlib.import_module(target.partition(':')[0])
        yield from _changed(target, function, reading)
    for caller, (function, _names) in reading.callers.items():
        # A module that nobody has imported cannot have been changed, and importing it would have side effects.
        if caller not in reading.targets and caller.partition(':')[0] in sys.modules:
            yield from _changed(caller, function, reading)


def read(targets: Collection[str]) -> source.Reading:
    """Read the source files of the Nova that this process imports. A module without a source file is not found."""
    nova = importlib.import_module('nova')
    return source.read(pathlib.Path(nova.__path__[0]), targets)


def _changed(name: str, function: source.NovaFunction, reading: source.Reading) -> Iterator[str]:
    """Yield the difference if the function that this process would call is not the one in the source file."""
    module, _colon, qualified = name.partition(':')
    if not function.signature:          # it stands in a class or module, not in a function
        return
    found: Any = sys.modules[module]
    for part in qualified.split('.'):
        found = vars(found).get(part)
        if found is None:
            yield f'{name}: missing in this process, but present in {reading.paths[module]}'
            return
    found = getattr(found, '__func__', getattr(found, 'fget', found))
    layers = 0
    while not _is_from(found, reading.paths[module], qualified, function.line):
        inner = _inner(found)
        layers += _package(found) not in _UNWRITTEN
        if inner is None or layers > function.decorators:
            yield f'{name}: changed in this process by {_described(found)}'
            return
        found = inner


def _is_from(found: Any, path: pathlib.Path, qualified: str, line: int) -> bool:
    if not isinstance(found, FunctionType) or hasattr(found, '__wrapped__'):
        return False
    code = found.__code__
    return (code.co_qualname, code.co_firstlineno) == (qualified, line) and _is_same(code.co_filename, path)


def _is_same(path: str, other: pathlib.Path) -> bool:
    try:
        return path == str(other) or os.path.samefile(path, other)
    except OSError:
        return False


def _inner(found: Any) -> Callable[..., Any] | None:
    """Return the function inside a wrapper of a known decorator; None if the wrapper is somebody else's."""
    if _package(found) not in _DECORATORS:
        return None
    if hasattr(found, '__wrapped__'):
        return cast('Callable[..., Any]', found.__wrapped__)
    # oslo.messaging's expected_exceptions does not set __wrapped__.
    inside = [cell.cell_contents for cell in getattr(found, '__closure__', None) or ()]
    functions = [one for one in inside if isinstance(one, FunctionType)]
    return functions[0] if len(functions) == 1 else None


def _package(found: Any) -> str:
    return str(getattr(found, '__globals__', {}).get('__name__', '')).partition('.')[0]


def _described(found: Any) -> str:
    if isinstance(found, FunctionType):
        return f'{found.__code__.co_filename}:{found.__code__.co_firstlineno}'
    return f'an object of {type(found).__module__}.{type(found).__qualname__}'
