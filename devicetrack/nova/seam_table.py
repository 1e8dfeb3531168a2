"""The adapter's knowledge of one major version of Nova: a text file with a line for each form of each method.

::

    release 34.0.0
    uses nova.compute.manager:ComputeManager.cleanup_host 3f8e0c6a5b1d2947 * (self)
    calls nova.compute.manager:ComputeManager.init_host 91c4d20b7a6e35f8 34.0.0,34.0.1 cleanup_host init_host

After a name come the digest of its source and the releases that have it in this form; ``*`` means all releases of the
file. Then a method that the adapter uses has its signature, and a method that calls such ones has the names that it
mentions.

The package has a table of each major version. An operator who has read a distribution's patches adds tables of the
patched releases (:data:`OPERATORS`).
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
import dataclasses
import pathlib
import re
from typing import Final

from devicetrack import exception
from devicetrack.nova import source

DIRECTORY: Final = pathlib.Path(__file__).parent / 'seam_tables'
# One file for each patched release, of any name that ends in .txt.
OPERATORS: Final = pathlib.Path('/etc/devicetrack/nova-seams')
_ALL: Final = '*'
_HEAD: Final = '# Written by a program; see "Porting to another release of Nova" in the documentation.\n'


@dataclasses.dataclass(frozen=True)
class FunctionForm:
    """One form of a function.

    :ivar more: the signature of a method that the adapter uses, or the names that a caller mentions
    :ivar releases: the releases that have this form
    """

    digest: str
    more: str
    releases: frozenset[str]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.more.split())


@dataclasses.dataclass
class SeamTable:
    """The releases of one major version, and, by name, the forms that each method had in them."""

    releases: set[str] = dataclasses.field(default_factory=set)
    targets: dict[str, list[FunctionForm]] = dataclasses.field(default_factory=dict)
    callers: dict[str, list[FunctionForm]] = dataclasses.field(default_factory=dict)

    def add(self, release: str, reading: source.Reading) -> None:
        """Add a release, or replace what is known of it by this reading."""
        self.remove(release)
        self.releases.add(release)
        for name, function in reading.targets.items():
            _add(self.targets.setdefault(name, []), release, function.digest, function.signature)
        for name, (function, names) in reading.callers.items():
            _add(self.callers.setdefault(name, []), release, function.digest, ' '.join(sorted(names)))

    def remove(self, release: str) -> None:
        self.releases.discard(release)
        for functions in (self.targets, self.callers):
            for name, forms in list(functions.items()):
                left = [dataclasses.replace(form, releases=form.releases - {release}) for form in forms]
                functions[name] = [form for form in left if form.releases]
                if not functions[name]:
                    del functions[name]

    def join(self, other: SeamTable) -> None:
        """Add what another table knows."""
        self.releases |= other.releases
        for ours, theirs in ((self.targets, other.targets), (self.callers, other.callers)):
            for name, forms in theirs.items():
                for form in forms:
                    for release in form.releases:
                        _add(ours.setdefault(name, []), release, form.digest, form.more)

    def differences(self, reading: source.Reading, targets: Collection[str]) -> Iterator[str]:
        """Yield each method that differs from its form in every release of this table, and the difference."""
        for target in sorted(targets):
            forms = self.targets.get(target, [])
            function = reading.targets.get(target)
            if not forms:
                yield f'{target}: no known release has it'
            elif function is None:
                is_read = target.partition(':')[0] in reading.paths
                yield f'{target}: {"missing" if is_read else "its module has no source file"}'
            elif function.signature not in (signatures := {form.more for form in forms}):
                yield f'{target}: its signature is {function.signature}, but known is {" or ".join(sorted(signatures))}'
            elif function.digest not in (digests := {form.digest for form in forms}):
                yield f'{target}: its source differs ({function.digest}, known is {_listed(digests)})'
        yield from self._differences_of_callers(reading, targets)

    def _differences_of_callers(self, reading: source.Reading, targets: Collection[str]) -> Iterator[str]:
        used = {source.last_name(target) for target in targets}
        for caller, (function, names) in sorted(reading.callers.items()):
            forms = [form for form in self.callers.get(caller, ()) if form.names & used]
            digests = {form.digest for form in forms}
            if caller in reading.targets:
                continue                # the adapter uses it, so it has been compared already
            if not forms:
                yield f'{caller}: a new caller of {_listed(names)}'
            elif function.digest not in digests:
                new = names.difference(*(form.names for form in forms))
                yield (f'{caller}: it calls {_listed(names)}, {f"{_listed(new)} anew, " if new else ""}and its source '
                       f'differs ({function.digest}, known is {_listed(digests)})')
        # A table that was made for fewer targets lacks the callers of the others.
        complete = self.releases.intersection(*(
            frozenset(one for form in self.targets.get(target, ()) for one in form.releases) for target in targets))
        for caller, forms in sorted(self.callers.items()):
            calling = [form for form in forms if form.names & used]
            if caller not in reading.callers and calling and complete <= {
                    one for form in calling for one in form.releases}:
                gone = frozenset.union(*(form.names for form in calling)) & used
                yield f'{caller}: it no longer calls {_listed(gone)}, or is gone'

    def __str__(self) -> str:
        lines = [f'release {release}' for release in in_order(self.releases)]
        for word, functions in (('uses', self.targets), ('calls', self.callers)):
            lines += [f'{word} {name} {form.digest} {self._releases_of(form)} {form.more}'
                      for name, forms in sorted(functions.items())
                      for form in sorted(forms, key=lambda form: _order(in_order(form.releases)[0]))]
        return _HEAD + ''.join(f'{line}\n' for line in lines)

    def _releases_of(self, form: FunctionForm) -> str:
        return _ALL if form.releases == self.releases else ','.join(in_order(form.releases))


def _add(forms: list[FunctionForm], release: str, digest: str, more: str) -> None:
    for index, form in enumerate(forms):
        if (form.digest, form.more) == (digest, more):
            forms[index] = dataclasses.replace(form, releases=form.releases | {release})
            return
    forms.append(FunctionForm(digest, more, frozenset({release})))


def _listed(words: Iterable[str]) -> str:
    return ', '.join(sorted(words))


def major(release: str) -> str:
    return release.partition('.')[0]


def _order(release: str) -> list[int]:
    return [int(number) for number in re.findall(r'\d+', release)]


def in_order(releases: Iterable[str]) -> list[str]:
    return sorted(releases, key=_order)


def parse(text: str) -> SeamTable:
    """Read a table.

    :raises ValueError: a line does not belong in a table
    """
    table = SeamTable()
    for line in text.splitlines():
        word, *rest = line.split(' ', 4)
        if word == 'release':
            table.releases.update(rest)
        elif word in ('uses', 'calls') and len(rest) == 4:
            name, digest, releases, more = rest
            held = frozenset(table.releases if releases == _ALL else releases.split(','))
            functions = table.targets if word == 'uses' else table.callers
            functions.setdefault(name, []).append(FunctionForm(digest, more, held))
        elif line and not line.startswith('#'):
            raise ValueError(f'not a line of a table: {line}')
    return table


def load(directory: pathlib.Path = DIRECTORY) -> dict[str, SeamTable]:
    """Read every table, by major version."""
    return {path.stem: parse(path.read_text(encoding='utf-8')) for path in sorted(directory.glob('*.txt'))}


def known(directory: pathlib.Path = DIRECTORY, operators: pathlib.Path = OPERATORS) -> dict[str, SeamTable]:
    """Read every table, and add those of the operator to them.

    A table of the operator accepts patches of a major version that the tests ran on, and no other major version.

    :raises InvalidConfiguration: a table of the operator cannot be read
    """
    tables = load(directory)
    for path in sorted(operators.glob('*.txt')):
        try:
            table = parse(path.read_text(encoding='utf-8'))
        except (OSError, ValueError) as error:
            raise exception.InvalidConfiguration(str(operators), path.name, str(error)) from error
        for number in {major(release) for release in table.releases} & tables.keys():
            tables[number].join(table)
    return tables


def nearest(tables: dict[str, SeamTable], release: str) -> SeamTable:
    """Return the table of a release's major version, else of the nearest one; an empty one where there is none."""
    wanted = _order(major(release))
    if not tables or not wanted:
        return SeamTable()
    return tables[min(tables, key=lambda known: (abs(int(known) - wanted[0]), -int(known)))]
