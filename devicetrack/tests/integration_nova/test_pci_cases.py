"""The table of what Nova's functional tests expect of PCI functions leaves out no test in silence."""

from __future__ import annotations

import ast
import importlib.util
from typing import Final

from devicetrack.tests import base
from devicetrack.tests.functional.claims import test_pci_as_nova as cases

_MODULES: Final = {'': 'test_pci_sriov_servers', 'placement: ': 'test_pci_in_placement'}


def tests_of(module: str) -> set[str]:
    """Every test of a module of Nova's, as ``Class.test``."""
    spec = importlib.util.find_spec(f'nova.tests.functional.libvirt.{module}')
    assert spec is not None and spec.origin is not None
    with open(spec.origin, encoding='utf-8') as file:
        tree = ast.parse(file.read())
    return {f'{cls.name}.{one.name}' for cls in tree.body if isinstance(cls, ast.ClassDef)
            for one in cls.body if isinstance(one, ast.FunctionDef) and one.name.startswith('test_')}


class CasesTestCase(base.TestCase):

    def test_each_test_has_a_case_or_a_reason_for_none(self) -> None:
        played = {case['source'].partition(' (')[0] for case in cases.CASES}
        for prefix, module in _MODULES.items():
            there = tests_of(module)
            ours = {name.removeprefix(prefix) for name in played if name.startswith('placement: ') == bool(prefix)}
            self.assertEqual(set(), ours - there)
            without = {name for name in there if any(name.startswith(one) for one in cases.WITHOUT_CASE)}
            self.assertEqual(set(), there - ours - without)

    def test_no_reason_is_for_a_test_that_is_gone(self) -> None:
        there = set().union(*map(tests_of, _MODULES.values()))
        self.assertEqual([], [one for one in cases.WITHOUT_CASE if not any(name.startswith(one) for name in there)])
