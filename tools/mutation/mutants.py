"""Finds the changes that can be made in one place of a module."""

from __future__ import annotations

import ast
import collections
from collections.abc import Callable
from collections.abc import Iterator
import difflib
import hashlib
import pathlib
from typing import Any
from typing import NamedTuple

import libcst as cst
from libcst import matchers
from libcst import metadata
from mutmut.mutation import mutators

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def path_of(module: str) -> pathlib.Path:
    """The file of a module. For a package it is the folder, with the ending .py."""
    return ROOT.joinpath(*module.split('.')).with_suffix('.py')


TESTS = ROOT / 'devicetrack' / 'tests'


def remove(node: cst.BaseSmallStatement) -> Iterator[cst.CSTNode]:
    """Leave out a call, a raise, or a change of an object. An assignment to a name stays: without it nothing runs."""
    targets = [target.target for target in node.targets] if isinstance(node, cst.Assign) else []
    if (isinstance(node, cst.Raise | cst.Del | cst.AugAssign) or matchers.matches(node, matchers.Expr(matchers.Call()))
            or any(isinstance(target, cst.Attribute | cst.Subscript) for target in targets)):
        yield cst.Pass()


def negate(node: Any) -> Iterator[cst.CSTNode]:
    test = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    yield node.with_changes(test=cst.UnaryOperation(cst.Not(), test))


def either_side(node: cst.BooleanOperation) -> Iterator[cst.CSTNode]:
    yield from (side.with_changes(lpar=node.lpar or side.lpar, rpar=node.rpar or side.rpar)
                for side in (node.left, node.right))


def return_nothing(node: cst.Return) -> Iterator[cst.CSTNode]:
    if node.value is not None and not matchers.matches(node.value, matchers.Name('None') | matchers.Name('False')):
        yield node.with_changes(value=cst.Name('None'), whitespace_after_return=cst.SimpleWhitespace(' '))


def fewer_elements(node: cst.Dict | cst.Set) -> Iterator[cst.CSTNode]:
    for index in range(len(node.elements) if len(node.elements) > 1 else 0):
        yield node.with_changes(elements=[*node.elements[:index], *node.elements[index + 1:]])


def fewer_members(node: cst.ComparisonTarget) -> Iterator[cst.CSTNode]:
    """Leave out each member of ``in (a, b)``."""
    if isinstance(node.operator, cst.In | cst.NotIn) and isinstance(node.comparator, cst.Tuple):
        for element in node.comparator.elements:
            rest = [other for other in node.comparator.elements if other is not element]
            yield node.with_changes(comparator=node.comparator.with_changes(elements=[
                other.with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(' '))) for other in rest]))


def fewer_keywords(node: cst.Call) -> Iterator[cst.CSTNode]:
    """Leave out each keyword argument, so that its parameter has the default."""
    for index, argument in enumerate(node.args):
        if argument.keyword is not None:
            rest = [*node.args[:index], *node.args[index + 1:]]
            yield node.with_changes(args=[*rest[:-1], rest[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)]
                                    if rest else [])


def catch_nothing(node: cst.ExceptHandler) -> Iterator[cst.CSTNode]:
    if node.type is not None:
        yield node.with_changes(type=cst.Tuple(()), whitespace_after_except=cst.SimpleWhitespace(' '))


def assign_nothing(node: cst.Assign | cst.AnnAssign) -> Iterator[cst.CSTNode]:
    """Replace a value by None, as mutmut does, except None and False."""
    if node.value is not None and not matchers.matches(node.value, matchers.Name('None') | matchers.Name('False')):
        yield from mutators.operator_assignment(node)


# The operators of mutmut and some more. Without those of mutmut that change texts: most texts are for people. Without
# those that remove positional arguments or replace them by None: most are type errors, which any test finds.
OPERATORS: list[tuple[Any, Callable[[Any], Any]]] = [
    *((kind, operator) for kind, operator in mutators.mutation_operators
      if operator not in (mutators.operator_string, mutators.operator_arg_removal, mutators.operator_dict_arguments,
                          mutators.operator_assignment)),
    (cst.Assign | cst.AnnAssign, assign_nothing), (cst.BaseSmallStatement, remove), (cst.Return, return_nothing),
    (cst.If | cst.While | cst.CompIf, negate), (cst.BooleanOperation, either_side), (cst.ExceptHandler, catch_nothing),
    (cst.Dict | cst.Set, fewer_elements), (cst.ComparisonTarget, fewer_members), (cst.Call, fewer_keywords),
]
LOGGING = matchers.Call(matchers.Attribute(matchers.Name('LOG')))


class Mutant(NamedTuple):
    """One change of one module.

    ``at`` is the number of its line. ``lines`` are the lines of its statement, without the statement's body. With
    ``at_import`` they run at the import of the module, not in a test. ``order`` is the mutant's place in the draw. It
    depends on nothing but the seed and the mutant. So the mutant stays in the sample when other code changes.
    """

    module: str
    function: str
    at: int
    lines: range
    at_import: bool
    line: str
    change: str
    order: str
    make: Callable[[], str]

    @property
    def source(self) -> str | None:
        """The module's code with the change. None if the change has no effect or is a syntax error."""
        source = self.make()
        try:
            same = ast.dump(ast.parse(source)) == ast.dump(ast.parse(path_of(self.module).read_text()))
        except SyntaxError:
            return None
        return None if same else source

    def difference(self) -> str:
        lines = difflib.unified_diff(path_of(self.module).read_text().splitlines(), self.make().splitlines(), n=0)
        return '\n'.join(f'    {line}' for line in lines if line[:3] not in ('---', '+++', '@@ '))


def of(module: str, seed: str) -> list[Mutant]:
    """Every mutant of a module."""
    return _Finder(module, seed).mutants


class _Finder(cst.CSTVisitor):

    def __init__(self, name: str, seed: str) -> None:
        super().__init__()
        self.mutants: list[Mutant] = []
        source = path_of(name).read_text()
        wrapper = metadata.MetadataWrapper(cst.parse_module(source))
        self._name, self._seed, self._lines, self._module = name, seed, source.splitlines(), wrapper.module
        self._positions = wrapper.resolve(metadata.PositionProvider)
        self._names: list[str] = []             # the classes and functions around a node
        self._statements: list[Any] = []
        self._alike: collections.Counter[str] = collections.Counter()
        self._module.visit(self)

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Annotation | cst.Decorator | cst.Import | cst.ImportFrom) or matchers.matches(
                node, LOGGING | matchers.Expr(LOGGING)):
            return False
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self._names.append(node.name.value)
        if isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement | cst.ExceptHandler):
            self._statements.append(node)
        for kind, operator in OPERATORS:
            # Everybody uses the constants of a module by name, whatever their values are.
            if isinstance(node, kind) and (self._names or operator is not assign_nothing):
                for mutated in operator(node):
                    self._add(node, mutated)
        return True

    def on_leave(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self._names.pop()
        if self._statements and node is self._statements[-1]:
            self._statements.pop()

    def _add(self, node: cst.CSTNode, mutated: cst.CSTNode) -> None:
        statement = self._statements[-1]
        first, last = self._positions[statement].start.line, self._positions[statement].end.line
        if not isinstance(statement, cst.SimpleStatementLine):
            last = max(first, self._positions[statement.body.body[0]].start.line - 1)
        at = self._positions[node].start.line if node in self._positions else first
        function, line = '.'.join(self._names), self._lines[at - 1].strip()
        code = [' '.join(self._module.code_for_node(one).split()) for one in (node, mutated)]
        if isinstance(node, cst.BaseCompoundStatement | cst.ExceptHandler):
            code = [one.partition(': ')[0] for one in code]
        what = '\0'.join((self._seed, self._name, function, line, *code))
        self._alike[what] += 1
        order = hashlib.sha256(f'{what}\0{self._alike[what]}'.encode()).hexdigest()
        at_import = not any(isinstance(outer, cst.FunctionDef) for outer in self._statements[:-1])
        self.mutants.append(Mutant(self._name, function, at, range(min(at, first), last + 1), at_import, line,
                                   ' -> '.join(code), order, lambda: _with(self._module, node, mutated)))


def _with(module: cst.Module, node: cst.CSTNode, mutated: cst.CSTNode) -> str:
    changed = module.deep_replace(node, mutated)
    assert isinstance(changed, cst.Module)
    return changed.code
