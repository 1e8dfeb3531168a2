"""Tests of the limits of a kind: its imports, its reads, and its work without privileges."""

from __future__ import annotations

import ast
import inspect
import pathlib
import sys

from devicetrack import exception
from devicetrack.testing.kinds import base
from devicetrack.testing.kinds import watch


class PrivilegesContract(base.KindTestCase):

    def test_the_kind_imports_no_part_above_it(self) -> None:
        module = inspect.getmodule(self.world.kind_class)
        assert module is not None and module.__file__ is not None
        package = (module.__package__ or '').split('.')[0]
        wrong = []
        for name, loaded in sorted(sys.modules.items()):
            path = getattr(loaded, '__file__', None)
            if path is None or not (name == module.__name__ or (
                    package not in ('', 'devicetrack') and name.split('.')[0] == package and '.tests' not in name)):
                continue
            for imported in _imports(pathlib.Path(path)):
                parts = imported.split('.')
                if parts[0] == 'devicetrack' and len(parts) > 1 and parts[1] in self.world.layers:
                    wrong.append(f'{name} imports {imported}')
        self.assertEqual([], wrong, 'a kind may not import these; tests belong into a subpackage "tests"')

    def test_making_the_kind_does_nothing(self) -> None:
        with watch.watching() as seen:
            self.make(self.world.configuration.conf)
        self.assertEqual([], list(seen))

    def test_reading_changes_nothing(self) -> None:
        wanted = self.realized()
        with watch.watching() as seen:
            self.kind.stock()
            self.kind.guest_elements([wanted])
            self.kind.identify([wanted.identifier])
            self.kind.migration_types()
        # A kind may keep a file of its own in the host's state directory.
        self.assertEqual([], [what for sort, what in seen
                              if sort == 'change' and f' {self.kind.state_path}/' not in what])

    def test_privileged_functions_refuse_what_is_not_theirs(self) -> None:
        if not self.world.refused:
            self.skipTest('the world names no calls that are refused')
        for call in self.world.refused:
            self.assertRaises((OSError, ValueError), call)

    def test_without_privileges_nothing_is_called_clean(self) -> None:
        wanted = self.realized()
        if self.kind.keeps_bytes:
            self.world.write(wanted.identifier)
        self.world.without_privileges()
        for call in (self.kind.stock, lambda: self.kind.realize(wanted), lambda: self.kind.guest_elements([wanted])):
            try:
                call()
            except exception.DriverError:
                pass                    # an error of any other class is a mistake in the kind
        try:
            self.unclaim(wanted)
        except exception.DriverError:
            return
        if self.kind.keeps_bytes:
            self.assertTrue(self.world.is_clean(wanted.identifier), 'it is given back and not clean')


def _imports(path: pathlib.Path) -> list[str]:
    """The modules that a source file imports, and every name that it imports from a module."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [f'{node.module}.{alias.name}' for alias in node.names]
    return found
