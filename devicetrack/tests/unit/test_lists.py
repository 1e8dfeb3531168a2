"""The lists of tests that one target leaves to another."""

from __future__ import annotations

import ast
import pathlib
import re

import devicetrack.tests
from devicetrack.tests import base

TESTS = pathlib.Path(devicetrack.tests.__file__).parent


def _lines(name: str) -> list[str]:
    return [line for line in (TESTS / name).read_text().splitlines() if line and not line.startswith('#')]


class ThoroughTestCase(base.TestCase):

    def test_every_line_names_a_module_or_a_class_that_has_tests(self) -> None:
        """A line that nothing matches any more would take its tests back into the short run, and nobody would know."""
        for line in _lines('thorough.txt'):
            module, _, case = line.partition('.test_')[2].partition('.')
            path = TESTS.joinpath(*line.partition('.test_')[0].split('.')[2:], f'test_{module}.py')
            body = ast.parse(path.read_text()).body
            found = [node for node in body if isinstance(node, ast.ClassDef) and case in ('', node.name)]
            self.assertTrue([node for one in found for node in one.body
                             if isinstance(node, ast.FunctionDef) and node.name.startswith('test_')], line)

    def test_none_is_part_of_the_quick_run(self) -> None:
        left_out = [re.compile(pattern) for pattern in _lines('not_quick.txt')]
        self.assertEqual([], [line for line in _lines('thorough.txt')
                              if not any(pattern.search(f'{line}.') for pattern in left_out)])
