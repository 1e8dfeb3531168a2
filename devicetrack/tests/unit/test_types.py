"""What a type checker says to those who use this package, which has types (``py.typed``)."""

import ast
import importlib
import itertools
import pathlib
import pkgutil
import re
import subprocess
import sys
import textwrap
import typing

import fixtures
import testtools

import devicetrack
from devicetrack import objects
from devicetrack.claims import manager
from devicetrack.objects import base

# The comment at a line names the error that mypy must report there. There must be no other.
SERVICE = """
    from __future__ import annotations

    from collections.abc import Mapping
    from typing import Any

    import devicetrack
    from devicetrack import exception
    from devicetrack.claims.instance_fields import ReturnedFields
    from devicetrack.claims.service import ComputeService
    from devicetrack.objects import DeviceAssignment
    from oslo_config import cfg


    def open_host(conf: cfg.ConfigOpts, service: ComputeService) -> devicetrack.ClaimManager:
        devicetrack.register_options(conf)
        devicetrack.sync_store(conf)
        manager = devicetrack.ClaimManager('compute-7', devicetrack.load_driver(conf, 'compute-7'),
                                           devicetrack.open_store(conf), conf, service,
                                           instance_fields=ReturnedFields())
        manager.init_host(None)
        devicetrack.ClaimManger                             # attr-defined
        devicetrack.open_store('sqlite:///store')           # arg-type
        version: int = devicetrack.__version__              # assignment
        return manager


    def boot(manager: devicetrack.ClaimManager, instance: Any, allocations: Mapping[str, Any]) -> DeviceAssignment:
        try:
            claim = manager.instance_claim(context=None, instance=instance, nodename='node', allocations=allocations)
        except exception.NoFit as error:
            raise RuntimeError(error.identifier)            # attr-defined
        manager.instance_claims(None, instance)             # attr-defined
        manager.release(instance)                           # call-arg
        first: DeviceAssignment = claim.resources.assignments[0]
        first.identifer                                     # attr-defined
        node: int = first.numa_node                         # assignment
        devicetrack.DeviceRequest.of(('CUSTOM_PMEM', 1)).wants                      # attr-defined
        moved: devicetrack.InstanceResources = devicetrack.MigrationContext().old_resources     # assignment
        return first
"""
KIND = """
    from __future__ import annotations

    from collections.abc import Sequence
    import threading

    from devicetrack import exception
    from devicetrack.objects import DeviceAssignment
    from devicetrack.objects.values import InventoryDevice
    from devicetrack.objects.values import Realized
    from devicetrack.virt.libvirt import domain_xml
    from devicetrack.virt.libvirt.kinds import api


    class Kind(api.DeviceKind):
        name = 'kind'
        keeps_bytes = 'yes'                                 # assignment

        def stock(self) -> list[str]:                       # override
            return []

        def realize(self, assignment: DeviceAssignment) -> Realized:
            if assignment.identifer == 'one':               # attr-defined
                raise exception.RealizeFailed(self.name, assignment.identifier)     # call-arg
            return Realized(assignment.identifier, 'details')       # arg-type
"""


class TypesTestCase(testtools.TestCase):

    def test_mypy_finds_each_mistake_of_those_who_use_the_package_and_nothing_else(self) -> None:
        scratch = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        expected = []
        for name, source in (('kind.py', textwrap.dedent(KIND)), ('service.py', textwrap.dedent(SERVICE))):
            (scratch / name).write_text(source)
            expected += [(name, number, match[1]) for number, line in enumerate(source.splitlines(), 1)
                         if (match := re.search(r' # ([a-z-]+)$', line))]
        self.useFixture(fixtures.EnvironmentVariable('MYPYPATH', str(pathlib.Path(devicetrack.__file__).parents[1])))
        # Follow as mypy follows an installed package: it reports nothing of the package's own files.
        ran = subprocess.run(
            [sys.executable, '-m', 'mypy', '--strict', '--config-file=', '--follow-imports=silent',
             '--cache-dir', str(scratch / 'cache'), '--no-error-summary', 'kind.py', 'service.py'],
            cwd=scratch, capture_output=True, text=True)
        self.assertEqual('', ran.stderr)
        errors = [line for line in ran.stdout.splitlines() if ': error: ' in line]
        found = [re.fullmatch(r'(\w+\.py):(\d+): error: .* \[([a-z-]+)\]', line) for line in errors]
        self.assertEqual(expected, sorted((match[1], int(match[2]), match[3]) for match in found if match), ran.stdout)
        self.assertEqual(len(expected), len(errors), ran.stdout)

    def test_the_page_about_stability_lists_the_public_names(self) -> None:
        page = pathlib.Path(devicetrack.__file__).parents[1] / 'doc' / 'source' / 'user' / 'stability.rst'
        listed = re.findall(r'^     \* - ``(\w+)``$', page.read_text(encoding='utf-8'), re.MULTILINE)
        self.assertEqual(devicetrack.__all__, sorted(listed))

    def test_no_other_call_than_the_page_names_has_an_argument_that_it_does_not_use(self) -> None:
        page = pathlib.Path(devicetrack.__file__).parents[1] / 'doc' / 'source' / 'user' / 'stability.rst'
        tree = ast.parse(pathlib.Path(manager.__file__).read_text(encoding='utf-8'))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and not node.name.startswith('_')
                 and not any(isinstance(one, ast.Name) and one.id == 'overload' for one in node.decorator_list)]
        unused = {(call.name, one.arg) for call in calls for one in (*call.args.args, *call.args.kwonlyargs)
                  if one.arg not in ('self', 'context')
                  and not any(isinstance(node, ast.Name) and node.id == one.arg for part in call.body
                              for node in ast.walk(part))}
        text = page.read_text(encoding='utf-8')
        self.assertEqual(set(), {name for name in itertools.chain(*unused) if f'``{name}``' not in text})
        self.assertIn(('update_usage', 'sign'), unused)

    def test_the_package_says_that_it_has_types(self) -> None:
        self.assertTrue((pathlib.Path(devicetrack.__file__).parent / 'py.typed').exists())

    def test_every_field_of_an_object_has_a_type(self) -> None:
        for module in pkgutil.iter_modules(objects.__path__):
            importlib.import_module(f'{objects.__name__}.{module.name}')
        classes = [cls for cls in _all_below(base.DeviceTrackObject) if cls.__module__.startswith(objects.__name__)]
        self.assertIn(objects.DeviceAssignment, classes)
        for cls in classes:
            hints = typing.get_type_hints(cls)
            for name, field in cls.fields.items():
                self.assertIn(name, hints, cls.__name__)
                if hints[name] is not typing.Any:
                    self.assertEqual(field.nullable, type(None) in typing.get_args(hints[name]),
                                     f'{cls.__name__}.{name}')


def _all_below(cls: type[base.DeviceTrackObject]) -> list[type[base.DeviceTrackObject]]:
    return [one for below in cls.__subclasses__() for one in (below, *_all_below(below))]
