"""A deployment's table of migration versions and features, in YAML.

Every scalar is read as it is written: a version ``535.10`` is not the number 535.1, and ``1022:1480`` does not mean
minutes and seconds. So the reader walks the nodes of the document, which also know their lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
import re
from typing import Any
from typing import Final
from typing import NamedTuple
from typing import NoReturn

import yaml

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.compatibility.facts import parse_version
from devicetrack.compatibility.facts import Sort
from devicetrack.compatibility.facts import UnknownVersion
from devicetrack.compatibility.facts import Version

_DECLARED: Final = ('version', 'requires', 'offers')
_TYPE: Final = (*_DECLARED, 'aggregation_may_grow', 'drivers', 'hosts')
# The format of a trait's name, so that the scheduler can use the same name.
_FEATURE: Final = re.compile('[A-Z][A-Z0-9_]{0,254}')
# A larger file is not a table, and reading it as YAML would take minutes.
_MAX_BYTES: Final = 1 << 20
_BOOLEANS: Final = {'true': True, 'false': False}


class Stated(NamedTuple):
    """The statement of the table, or of one entry, about devices of one type; a field is None where it says nothing."""

    version: Version | None = None
    required: frozenset[str] | None = None
    offered: frozenset[str] | None = None


class TableEntry(NamedTuple):
    """One statement of a table about a type: ``where`` it is, and the driver's version or the host that it is for.

    A cross-kind rule gives one entry for each of its two types.
    """

    sort: Sort
    where: str
    stated: Stated = Stated()
    may_grow: bool = False
    driver: str | None = None
    host: str | None = None


class _Type(NamedTuple):
    everywhere: Stated
    drivers: Mapping[str, Stated]
    hosts: Mapping[str, Stated]


class CompatibilityTable:
    """The statements of a table about types, and its rules for the deployment.

    ``crossings`` and ``growing`` are as in :class:`~devicetrack.compatibility.rules.Rules`.
    """

    def __init__(self, types: Mapping[Sort, _Type], crossings: frozenset[tuple[Sort, Sort]],
                 growing: frozenset[Sort]) -> None:
        self._types, self.crossings, self.growing = types, crossings, growing

    @property
    def kinds(self) -> frozenset[str]:
        """The device kinds that the table names."""
        crossing = (sort for pair in self.crossings for sort in pair)
        return frozenset(sort.kind for sort in (*self._types, *crossing))

    def entries(self) -> Iterator[TableEntry]:
        """Yield all statements in the order of the table; cross-kind rules come last."""
        for sort, found in self._types.items():
            yield TableEntry(sort, 'everywhere', found.everywhere, sort in self.growing)
            for driver, stated in found.drivers.items():
                yield TableEntry(sort, f'driver {driver}', stated, driver=driver)
            for host, stated in found.hosts.items():
                yield TableEntry(sort, f'host {host}', stated, host=host)
        for source, destination in sorted(self.crossings):
            yield TableEntry(source, f'cross_kind to {destination}')
            yield TableEntry(destination, f'cross_kind from {source}')

    def declared(self, sort: Sort, host: str, driver: str | None = None) -> Stated:
        """Return the statement for devices of a sort on a host, with a driver of this version.

        Each of version, requires and offers comes from the entry of the host, else of the driver, else of the type.
        """
        found = self._types.get(sort, _Type(Stated(), {}, {}))
        version, required, offered = found.everywhere
        for one in (found.drivers.get(driver or ''), found.hosts.get(host)):
            if one is not None:
                version = version if one.version is None else one.version
                required = required if one.required is None else one.required
                offered = offered if one.offered is None else one.offered
        return Stated(version, required, offered)


def read(path: str, option: str = 'table') -> CompatibilityTable:
    """Read a table from a file. Blocks for the disk.

    :param option: the option that names the path, for errors
    :raises InvalidConfiguration: the file cannot be read, or something in it is invalid; the message names the file,
        the line and the element
    """
    try:
        with open(path, 'rb') as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise exception.InvalidConfiguration(
            option, path, f'cannot be read: {error.strerror}; name a file that this user can read') from error
    if len(data) > _MAX_BYTES:
        raise exception.InvalidConfiguration(option, path, f'has more than {_MAX_BYTES} bytes; name a table, which is '
                                                           'smaller')
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise exception.InvalidConfiguration(path, 'no text', f'{error}; write it in UTF-8') from error
    return parse(text, path)


def parse(text: str, path: str) -> CompatibilityTable:
    """Read a table from a text.

    :param path: the name of the text in errors
    :raises InvalidConfiguration: something in it is invalid; the message names the line and the element
    """
    loader = None
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
    except yaml.YAMLError as error:
        mark = getattr(error, 'problem_mark', None)
        where = f'{path}, line {mark.line + 1}' if mark is not None else path
        problem = getattr(error, 'problem', None) or str(error).partition('\n')[0]
        raise exception.InvalidConfiguration(where, 'no YAML', f'{problem}; fix the line or what is before it') \
            from error
    except (ValueError, OverflowError) as error:
        # The parser checks neither the number of a character nor that of a version.
        line = loader.line + 1 if loader is not None else 1
        raise exception.InvalidConfiguration(
            f'{path}, line {line}', 'no YAML', 'the number of an escape such as "\\U00110000", or of the version of '
            'YAML, is too large; fix the line or what is before it') from error
    except RecursionError as error:
        raise exception.InvalidConfiguration(path, 'no table', 'nested too deeply; a table has few levels') from error
    if node is None:
        raise exception.InvalidConfiguration(path, 'empty', 'a table has at least types: {}')
    return _Reader(path).table(node)


class _Reader:
    """Walks the nodes of one document, each only once."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._visited: set[int] = set()

    def table(self, node: Any) -> CompatibilityTable:
        parts = self._mapping(node, 'the table', ('types', 'cross_kind'))
        found, growing = {}, set()
        for kind, types in self._named(parts, 'types', '').items():
            for name, entry in self._mapping(types, f'types.{kind}').items():
                sort, element = Sort(kind, name), f'types.{kind}.{name}'
                stated = self._mapping(entry, element, _TYPE)
                if self._boolean(stated, 'aggregation_may_grow', element):
                    growing.add(sort)
                found[sort] = _Type(self._stated(stated, element), self._by_name(stated, 'drivers', element),
                                    self._by_name(stated, 'hosts', element))
        return CompatibilityTable(found, self._crossings(parts), frozenset(growing))

    def _crossings(self, parts: Mapping[str, Any]) -> frozenset[tuple[Sort, Sort]]:
        found = set()
        for index, node in enumerate(self._list(parts, 'cross_kind', '')):
            element = f'cross_kind[{index}]'
            ends = self._mapping(node, element, ('from', 'to'))
            source, destination = self._sort(ends, 'from', node, element), self._sort(ends, 'to', node, element)
            if source.kind == destination.kind:
                self._fail(node, element, f'{source} to {destination}', 'a rule is about two kinds; within a kind only '
                           'the same type will do')
            if (source, destination) in found:
                self._fail(node, element, f'{source} to {destination}', 'this rule is there twice; remove one')
            found.add((source, destination))
        return frozenset(found)

    def _sort(self, ends: Mapping[str, Any], end: str, node: Any, element: str) -> Sort:
        self._check_has(ends, end, node, element)
        parts = self._mapping(ends[end], f'{element}.{end}', ('kind', 'type'))
        for part in ('kind', 'type'):
            self._check_has(parts, part, ends[end], f'{element}.{end}')
        return Sort(self._text(parts['kind'], f'{element}.{end}.kind'),
                    self._text(parts['type'], f'{element}.{end}.type'))

    def _by_name(self, parts: Mapping[str, Any], name: str, element: str) -> dict[str, Stated]:
        return {key: self._stated(self._mapping(node, f'{element}.{name}.{key}', _DECLARED), f'{element}.{name}.{key}')
                for key, node in self._named(parts, name, element).items()}

    def _stated(self, parts: Mapping[str, Any], element: str) -> Stated:
        version = None
        if 'version' in parts:
            node = parts['version']
            text = self._text(node, f'{element}.version')
            parsed = parse_version(text)
            if isinstance(parsed, UnknownVersion):
                self._fail(node, f'{element}.version', text, 'a version is three numbers, as 2.1.0')
            version = parsed
        return Stated(version, self._features(parts, 'requires', element), self._features(parts, 'offers', element))

    def _features(self, parts: Mapping[str, Any], name: str, element: str) -> frozenset[str] | None:
        if name not in parts:
            return None
        found = set()
        for index, node in enumerate(self._list(parts, name, element)):
            where = f'{element}.{name}[{index}]'
            text = self._text(node, where)
            if not _FEATURE.fullmatch(text):
                self._fail(node, where, text, 'a feature is named as a trait is: capitals, digits and _, a capital '
                           'first, at most 255')
            found.add(text)
        return frozenset(found)

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _named(self, parts: Mapping[str, Any], name: str, element: str) -> dict[str, Any]:
        return self._mapping(parts[name], _join(element, name)) if name in parts else {}

    def _mapping(self, node: Any, element: str, known: tuple[str, ...] | None = None) -> dict[str, Any]:
        self._visit(node, element)
        if not isinstance(node, yaml.MappingNode):
            self._fail(node, element, _shown(node), 'must be a mapping of names to values')
        found: dict[str, Any] = {}
        for key_node, value in node.value:
            key = self._text(key_node, f'a name in {element}')
            if known is not None and key not in known:
                self._fail(key_node, element, key, f'is not known here; there are {", ".join(known)}')
            if key in found:
                self._fail(key_node, element, key, 'is there twice; remove one')
            found[key] = value
        return found

    def _list(self, parts: Mapping[str, Any], name: str, element: str) -> list[Any]:
        if name not in parts:
            return []
        node, element = parts[name], _join(element, name)
        self._visit(node, element)
        if not isinstance(node, yaml.SequenceNode):
            self._fail(node, element, _shown(node), 'must be a list: [A, B]')
        return list(node.value)

    def _boolean(self, parts: Mapping[str, Any], name: str, element: str) -> bool:
        if name not in parts:
            return False
        text = self._text(parts[name], _join(element, name))
        if text not in _BOOLEANS:
            self._fail(parts[name], _join(element, name), text, 'must be true or false')
        return _BOOLEANS[text]

    def _text(self, node: Any, element: str) -> str:
        self._visit(node, element)
        if not isinstance(node, yaml.ScalarNode) or not node.value:
            self._fail(node, element, _shown(node), 'must be a word or a number')
        if not vocabulary.is_text(node.value):
            self._fail(node, element, _shown(node), 'has half of a surrogate pair, which no file can name')
        return str(node.value)

    def _check_has(self, parts: Mapping[str, Any], name: str, node: Any, element: str) -> None:
        if name not in parts:
            self._fail(node, element, _shown(node), f'{name} is missing; add it')

    def _visit(self, node: Any, element: str) -> None:
        """Refuse references: with them a small file could become very large."""
        if id(node) in self._visited:
            self._fail(node, element, 'an alias', 'write it out: a table has no aliases')
        self._visited.add(id(node))

    def _fail(self, node: Any, element: str, value: str, reason: str) -> NoReturn:
        line = node.start_mark.line + 1
        raise exception.InvalidConfiguration(f'{self._path}, line {line}, {element}', value, reason)


def _join(element: str, name: str) -> str:
    return f'{element}.{name}' if element else name


def _shown(node: Any) -> str:
    if isinstance(node, yaml.ScalarNode):
        value = str(node.value)
        return (value if vocabulary.is_text(value) else ascii(value)) or 'nothing'
    return 'a list' if isinstance(node, yaml.SequenceNode) else 'a mapping'
