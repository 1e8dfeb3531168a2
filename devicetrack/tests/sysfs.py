"""Parts of sysfs in a directory: what parents say of their types, and trees that kernels were seen to have."""

from __future__ import annotations

import os
import pathlib
import re

from devicetrack.objects.values import Attribute
from devicetrack.objects.values import MigrationType

_PARENT = re.compile(r'/sys/(class/mdev_bus/\S+) -> /sys/(devices/\S+)')
_TYPE = re.compile(r' (\S+)')
_DIRECTORY = re.compile(r'  (\S+)/ : ')
_ATTRIBUTE = re.compile(r'  (\S+) \(\d+\) = (.*)')


def build(root: str, listing: str) -> list[str]:
    """Make the parents of mediated devices of a listing, with their types.

    A line like ``create (200) = cat: …`` is an attribute that nobody can read.

    :returns: the directories of the types
    """
    made: list[str] = []
    parent = directory = None
    for line in listing.splitlines():
        if found := _PARENT.fullmatch(line):
            parent = os.path.join(root, found[2])
            os.makedirs(parent)
            link(root, found[1], found[2])
        elif line.startswith('/'):
            break                               # the devices
        elif found := _TYPE.fullmatch(line):
            directory = f'{parent}/mdev_supported_types/{found[1]}'
            os.makedirs(directory)
            made.append(directory)
        elif found := _DIRECTORY.match(line):
            os.mkdir(f'{directory}/{found[1]}')
        elif found := _ATTRIBUTE.fullmatch(line):
            path = pathlib.Path(f'{directory}/{found[1]}')
            if found[2].startswith('cat: '):
                path.mkdir()                    # permissions do not keep root from reading a file
            else:
                path.write_text(found[2] + '\n')
    return made


def declare(root: str, said: MigrationType, directory: str, device: str) -> None:
    """Let a driver say something of a type, by its default attributes. What it does not say is not there.

    :param directory: that of the type, in ``root``
    :param device: that of the parent, in ``root``
    """
    for name, attribute in (('migration_version', said.version), ('aggregation', said.aggregation)):
        write(os.path.join(root, directory, name), attribute)
    os.makedirs(os.path.join(root, device), exist_ok=True)
    if said.driver is not None:
        link(root, f'{device}/driver', 'bus/pci/drivers/vendor')
        link(root, 'bus/pci/drivers/vendor/module', 'module/vendor')
        write(os.path.join(root, 'module/vendor/version'), Attribute(said.driver))


def write(path: str, attribute: Attribute) -> None:
    """Make an attribute: a file, or where there is a problem something that is none."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if attribute.problem is not None:
        os.mkdir(path)
    elif attribute.text is not None:
        pathlib.Path(path).write_text(attribute.text + '\n')


def link(root: str, path: str, target: str) -> None:
    """Make a link as sysfs has them: relative, and within it."""
    path, target = os.path.join(root, path), os.path.join(root, target)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.makedirs(target, exist_ok=True)
    os.symlink(os.path.relpath(os.path.realpath(target), os.path.realpath(os.path.dirname(path))), path)
