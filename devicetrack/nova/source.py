"""Reads Nova's source files into a form in which two releases can be compared.

This module reads only text and imports nothing of Nova. All supported releases of Python must read the same result from
the same file, because one of them writes the tables and another compares them.
"""

from __future__ import annotations

import ast
import bisect
from collections.abc import Collection
from collections.abc import Iterator
import dataclasses
import functools
import hashlib
import pathlib
import re
import tokenize
from typing import Final
from typing import TypeAlias

# The code that may call methods which the adapter uses: it runs in the process of nova-compute with the libvirt driver.
CALLERS: Final = ('compute/**/*.py', 'manager.py', 'service.py', 'virt/*.py', 'virt/libvirt/**/*.py')
# Drivers of Nova's tests.
NO_CALLERS: Final = frozenset({'virt/fake.py', 'virt/libvirt/fake.py'})

_Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
# New in Python 3.12; before, a whole f-string is a STRING.
_FSTRING_START: Final = getattr(tokenize, 'FSTRING_START', -1)
_FSTRING_END: Final = getattr(tokenize, 'FSTRING_END', -1)


@dataclasses.dataclass(frozen=True)
class NovaFunction:
    """A function or method in its source file.

    :ivar signature: its parameters with their defaults, without annotations; empty for a statement that is no function
    :ivar text: its text, as :func:`text_of` returns it
    :ivar line: its first line, including decorators
    :ivar decorators: the number of its decorators
    """

    signature: str
    text: str
    line: int
    decorators: int

    @property
    def digest(self) -> str:
        """16 hexadecimal digits for its text. They tell releases apart; they are no protection against an attacker."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Reading:
    """The targets and callers found. A name is ``package.module:Class.method`` or ``package.module:function``.

    :ivar targets: the targets that were found
    :ivar callers: the functions that mention the last name of a target, each with these names
    :ivar paths: the file of each module with targets or callers
    """

    targets: dict[str, NovaFunction] = dataclasses.field(default_factory=dict)
    callers: dict[str, tuple[NovaFunction, frozenset[str]]] = dataclasses.field(default_factory=dict)
    paths: dict[str, pathlib.Path] = dataclasses.field(default_factory=dict)


def last_name(target: str) -> str:
    return re.split('[:.]', target)[-1]


def read(root: pathlib.Path, targets: Collection[str]) -> Reading:
    """Read targets and their callers from a package's files.

    A function that mentions a name counts as a caller, whatever object the name belongs to. The mention may be an
    attribute, a name, an import, or, within a function, a string, since a call by RPC or ``getattr`` names the method
    in a string. Mentions in a class or a module outside of its functions belong to one caller, which is named for the
    class or has nothing after the colon. The main function of a program has no caller in Nova, and ``__init__`` has too
    many.

    :param root: the directory of the package, for instance ``…/site-packages/nova``
    :raises OSError: the package cannot be read; a module that is missing is no error, its targets are not found
    :raises SyntaxError: a module cannot be parsed
    """
    found = Reading()
    names = sorted({last_name(target) for target in targets if not target.startswith(f'{root.name}.cmd.')}
                   - {'__init__'})
    mentioned = re.compile(rf'\b({"|".join(names)})\b' if names else r'(?!)')
    callers = {path for pattern in CALLERS for path in root.glob(pattern)
               if path.relative_to(root).as_posix() not in NO_CALLERS}
    wanted = {_path(root, target.partition(':')[0]) for target in targets}
    for path in sorted(callers | {path for path in wanted if path.exists()}):
        text = path.read_text(encoding='utf-8')
        if path in wanted or mentioned.search(text):
            parts = path.relative_to(root).with_suffix('').parts
            module = '.'.join([root.name, *parts[:-1], *parts[-1:] * (parts[-1] != '__init__')])
            found.paths[module] = path
            _read_module(found, module, text, targets, mentioned, path in callers)
    return found


def _path(root: pathlib.Path, module: str) -> pathlib.Path:
    path = root.joinpath(*module.split('.')[1:])
    return path / '__init__.py' if path.is_dir() else path.with_suffix('.py')


def _read_module(found: Reading, module: str, text: str, targets: Collection[str], mentioned: re.Pattern[str],
                 has_callers: bool) -> None:
    lines = text.split('\n')
    starts = [0, *(match.end() for match in re.finditer('\n', text))]
    hits = [bisect.bisect(starts, match.start()) for match in mentioned.finditer(text)]
    mentions: dict[str, tuple[list[ast.stmt], set[str]]] = {}
    for name, statement in _statements(ast.parse(text), ''):
        full = f'{module}:{name}'
        is_function = isinstance(statement, _Definition)
        if is_function and full in targets:
            found.targets[full] = _function(lines, [statement])
        first, last = _first_line(statement), _last_line(statement)
        if has_callers and bisect.bisect_left(hits, first) < bisect.bisect(hits, last):
            names = {one for one in _mentions(statement, is_function) if mentioned.fullmatch(one)}
            if names:
                # A property has its name twice, and a class many statements.
                statements, together = mentions.setdefault(full, ([], set()))
                statements.append(statement)
                together |= names
    for full, (statements, together) in mentions.items():
        found.callers[full] = _function(lines, statements), frozenset(together)


def _statements(scope: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, ast.stmt]]:
    for statement in scope.body:
        if isinstance(statement, ast.ClassDef):
            yield from _statements(statement, f'{prefix}{statement.name}.')
        elif isinstance(statement, _Definition):
            yield prefix + statement.name, statement
        else:
            yield prefix[:-1], statement


def _mentions(statement: ast.stmt, is_function: bool) -> Iterator[str]:
    for node in ast.walk(statement):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.alias(name=name):
                yield name
            case ast.Constant(value=str() as name) if is_function:
                yield name


def _function(lines: list[str], statements: list[ast.stmt]) -> NovaFunction:
    last = statements[-1]
    text = '\n'.join(text_of(lines, statement) for statement in statements)
    if isinstance(last, _Definition):
        return NovaFunction(signature(last), text, _first_line(last), len(last.decorator_list))
    return NovaFunction('', text, _first_line(last), 0)


def _first_line(statement: ast.stmt) -> int:
    decorators = statement.decorator_list if isinstance(statement, _Definition) else []
    return min([statement.lineno, *(one.lineno for one in decorators)])


def _last_line(statement: ast.stmt) -> int:
    assert statement.end_lineno is not None         # a parsed statement always has it
    return statement.end_lineno


def signature(function: _Definition) -> str:
    """Write the parameters with their defaults in one line. Annotations change nothing for a caller."""
    for node in ast.walk(function.args):
        if isinstance(node, ast.arg):
            node.annotation = None
    return f'({ast.unparse(function.args)})'


def text_of(lines: list[str], statement: ast.stmt) -> str:
    """Return the text of a statement without parts that do not affect its behaviour. A distribution may change those.

    Comments, docstrings, blank lines, indentation and spaces at the ends of lines are left out. The text is compared
    and not the syntax tree, because ``ast.dump`` and ``ast.unparse`` change between releases of Python.

    :param lines: the lines of the whole file, without line ends
    """
    first = _first_line(statement)
    indent = ' ' * (len(lines[first - 1]) - len(lines[first - 1].lstrip(' ')))
    kept = {row: line.removeprefix(indent) for row, line in enumerate(lines[first - 1:_last_line(statement)], 1)}
    in_a_string: set[int] = set()
    begun: list[int] = []
    for token in tokenize.generate_tokens(functools.partial(next, iter([f'{line}\n' for line in kept.values()]), '')):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            kept[row] = kept[row][:column].rstrip()
        elif token.type == tokenize.STRING and token.start[0] < token.end[0]:
            in_a_string.update(range(token.start[0], token.end[0] + 1))
        elif token.type == _FSTRING_START:
            begun.append(token.start[0])
        elif token.type == _FSTRING_END and (start := begun.pop()) < token.end[0]:
            in_a_string.update(range(start, token.end[0] + 1))
    for line in _docstrings(statement):
        kept.pop(line - first + 1, None)
    return '\n'.join(line if row in in_a_string else line.rstrip()
                     for row, line in kept.items() if row in in_a_string or line.strip())


def _docstrings(statement: ast.stmt) -> Iterator[int]:
    for node in ast.walk(statement):
        if isinstance(node, (_Definition, ast.ClassDef)) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            if docstring.lineno > node.lineno:
                yield from range(docstring.lineno, _last_line(docstring) + 1)
