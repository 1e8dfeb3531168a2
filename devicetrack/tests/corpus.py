"""Reads other people's domain documents, and compares what is found with an independent reading of them.

``python -m devicetrack.tests.corpus DIRECTORY`` reads every XML document below a directory whose root is a domain. It
was made for the tests in libvirt's source package, which has some two thousand. The exit code is 1 if a name of a
device was missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from typing import NamedTuple
from xml.parsers import expat

from devicetrack import exception
from devicetrack.virt.libvirt import domain_xml

_PCI = ('domain', 'bus', 'slot', 'function')
_OF_OTHER_BUSES = {'device', 'port', 'target', 'unit'}          # USB and SCSI have a bus too
_WORDS = {'name', 'title', 'description', 'metadata'}        # children of a domain that are for people
_NO_UUID = '<uuid>00000000-0000-4000-8000-000000000000</uuid>'


@dataclasses.dataclass
class Names:
    """What a document names: UUIDs, PCI addresses as numbers, absolute paths, and what goes to QEMU as it is."""

    uuids: set[str] = dataclasses.field(default_factory=set)
    addresses: set[tuple[int, ...]] = dataclasses.field(default_factory=set)
    paths: set[str] = dataclasses.field(default_factory=set)
    arguments: set[str] = dataclasses.field(default_factory=set)

    def count(self) -> int:
        return sum(len(getattr(self, field.name)) for field in dataclasses.fields(self))

    def missing_in(self, other: Names) -> list[str]:
        """What this has and the other lacks."""
        return [f'{field.name}: {", ".join(map(str, sorted(lacking)))}' for field in dataclasses.fields(self)
                if (lacking := getattr(self, field.name) - getattr(other, field.name))]


class _Reader:
    """Reads events of a parser, by the places of elements alone: no word of the code under test."""

    def __init__(self) -> None:
        self.names = Names()
        self.root = ''
        self.has_uuid = False
        self._place: list[str] = []
        self._texts: list[str] = []

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._place.append(tag)
        self._texts.append('')
        if len(self._place) == 1:
            self.root = tag
        self.has_uuid = self.has_uuid or self._place == ['domain', 'uuid']
        if self._names_devices():
            self.names.paths.update(value for value in attributes.values() if value.startswith('/'))
        if self._place[:2] == ['domain', 'devices']:
            self._address(attributes)
        elif tag.startswith('qemu:') and 'qemu:commandline' in self._place:
            self.names.arguments.update(value for name, value in attributes.items() if not name.startswith('xmlns'))

    def _names_devices(self) -> bool:
        return self._place[:1] == ['domain'] and len(self._place) > 1 and self._place[1] not in _WORDS

    def _address(self, attributes: dict[str, str]) -> None:
        if self._place[-2:] != ['source', 'address'] or len(self._place) != 5:
            return
        if 'uuid' in attributes and self._place[2] == 'hostdev':
            self.names.uuids.add(attributes['uuid'].lower())
        elif (self._place[2] in ('hostdev', 'interface', 'disk') and attributes.get('type', 'pci') == 'pci'
              and attributes.keys() & set(_PCI) and not attributes.keys() & _OF_OTHER_BUSES):
            self.names.addresses.add(tuple(int(attributes.get(name, '0'), 0) for name in _PCI))

    def text(self, text: str) -> None:
        self._texts[-1] += text

    def end(self, _tag: str) -> None:
        text = self._texts.pop().strip()
        if self._names_devices() and text.startswith('/'):
            self.names.paths.add(text)
        self._place.pop()


def independent(text: str) -> _Reader | None:
    """Read a document without the library; None if it is no well-formed document."""
    reader, parser = _Reader(), expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = reader.start, reader.end
    parser.CharacterDataHandler = reader.text
    try:
        parser.Parse(text, True)
    except expat.ExpatError:
        return None
    return reader


def of_library(text: str) -> Names:
    """Read a document with the library.

    :raises InvalidDocument: its devices are unknown
    """
    found = domain_xml.parse(text)
    return Names(set(found.mdev_uuids), {
        tuple(int(part, 16) for part in address.replace('.', ':').split(':'))
        for address in (*found.pci_addresses, *found.other_pci_addresses)},
        {*found.memory_paths, *found.other_paths}, set(found.arguments))


class Outcome(NamedTuple):
    """What became of a document: names that were missed, or the reason why it cannot be read."""

    path: str
    names: int
    missed: tuple[str, ...] = ()
    unreadable: str | None = None


def compare(path: str) -> Outcome | None:
    """Compare one document; None if it is no domain."""
    with open(path, encoding='utf-8', errors='surrogateescape') as file:
        text = file.read()
    reader = independent(text.encode('utf-8', 'surrogateescape').decode('utf-8', 'replace'))
    if reader is None or reader.root != 'domain':
        return None
    if not reader.has_uuid:                     # libvirt gives every domain one
        end = text.index('>', text.index('<domain')) + 1
        text = text[:end] + _NO_UUID + text[end:]
    try:
        missed = reader.names.missing_in(of_library(text))
    except exception.InvalidDocument as error:
        return Outcome(path, reader.names.count(), unreadable=f'{error.where}: {error.reason}')
    return Outcome(path, reader.names.count(), tuple(missed))


def documents(directory: str) -> list[str]:
    return sorted(os.path.join(where, name) for where, _directories, names in os.walk(directory)
                  for name in names if name.endswith('.xml'))


def _say(line: str) -> None:
    sys.stdout.write(f'{line}\n')


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser('devicetrack.tests.corpus', description=__doc__.partition('\n')[0])
    parser.add_argument('directory', help='where the documents are')
    outcomes = [outcome for path in documents(parser.parse_args(arguments).directory)
                if (outcome := compare(path)) is not None]
    for outcome in outcomes:
        for line in outcome.missed:
            _say(f'MISSED {outcome.path}: {line}')
        if outcome.unreadable is not None:
            _say(f'unknown {outcome.path}: {outcome.unreadable}')
    missed = sum(bool(outcome.missed) for outcome in outcomes)
    unknown = sum(outcome.unreadable is not None for outcome in outcomes)
    names = sum(outcome.names for outcome in outcomes)
    _say(f'{len(outcomes)} domains with {names} names, {missed} with names that were missed, '
         f'{unknown} whose devices are unknown')
    return 1 if missed or not outcomes else 0


if __name__ == '__main__':
    sys.exit(main())
