"""The compute service of ``examples/two_hosts`` prints what the page about wiring says, and saves what it lists."""

from __future__ import annotations

import pathlib
import re
import runpy
import textwrap
from typing import Any
import uuid

import devicetrack
from devicetrack.engine import reconcile
from devicetrack.tests import base
from devicetrack.tests import processes
from devicetrack.tests.functional.docs import test_documented_code
from devicetrack.virt import fake

ROOT = pathlib.Path(devicetrack.__file__).parent.parent
PROGRAM = ROOT / 'examples' / 'two_hosts' / 'service.py'
PAGE = ROOT / 'doc' / 'source' / 'user' / 'wiring.rst'


class TestTwoHosts(base.TestCase):

    def test_it_prints_what_the_page_says(self) -> None:
        answer = processes.run(str(PROGRAM), cwd=self.temp_dir())
        self.assertEqual('', answer.stderr if answer.returncode else '')
        self.assertIn('::\n\n' + textwrap.indent(answer.stdout, '    ') + '\n', PAGE.read_text(encoding='utf-8'))

    def test_the_page_lists_every_save_of_the_program(self) -> None:
        numbered = re.findall(r'self\.database\.save\(.*# ([0-9]+): ', PROGRAM.read_text(encoding='utf-8'))
        listed = re.findall(r'^   \* - ([0-9]+)$', PAGE.read_text(encoding='utf-8'), re.M)
        self.assertEqual(numbered, listed)
        self.assertEqual(PROGRAM.read_text(encoding='utf-8').count('self.database.save('), len(numbered))


class TestResizeThatDoesNotStart(base.TestCase):
    """The hosts of the program, of which the destination cannot start the guest after the instance was handed over."""

    def setUp(self) -> None:
        super().setUp()
        names = runpy.run_path(str(PROGRAM))
        directory = pathlib.Path(self.temp_dir())
        self.database = names['Database'](directory / 'database.json')
        self.hosts = {}
        for name in ('one', 'two'):
            self.addCleanup(fake.FakeHost.forget, name)
            self.hosts[name] = names['Compute'](name, directory / name, self.database)
            self.addCleanup(self.hosts[name].manager.close)
        # The recipe of the page, as methods of the program's service.
        [recipe] = test_documented_code.code_blocks(PAGE)
        exec(compile(recipe, 'wiring.rst', 'exec'), names)
        self.recipe = names
        self.small, self.large = (names['Flavor'](name, {'hw:pmem': pmem}) for name, pmem in
                                  (('small', '4GB'), ('large', '4GB,4GB')))
        self.instance = names['Instance'](str(uuid.uuid4()), self.small)
        self.migration = names['Migration'](str(uuid.uuid4()), 1, self.instance.uuid, 'one', 'two')
        one, two = self.one, self.two
        one.boot(self.instance)
        two.prep_resize(self.instance.uuid, self.migration, self.large)
        one.resize_instance(self.instance.uuid, self.migration)
        two.machine.before('realize', ZeroDivisionError(), times=1)
        self.assertRaises(ZeroDivisionError, self.finish)
        self.assertEqual({'one': ['old'], 'two': ['incoming'] * 2}, self.roles())

    @property
    def one(self) -> Any:
        return self.hosts['one']

    @property
    def two(self) -> Any:
        return self.hosts['two']

    def finish(self) -> None:
        self.two.finish_resize(self.instance.uuid, self.migration, self.large)

    def roles(self) -> dict[str, list[str]]:
        return {name: [row.role for row in host.manager.resources_of(self.instance.uuid)]
                for name, host in self.hosts.items()}

    def audit(self) -> list[str]:
        """The kinds of findings of both hosts."""
        return [finding.kind for name, host in self.hosts.items()
                for finding in host.manager.update_available_resource(None, name)]

    def finish_revert(self) -> None:
        self.recipe['finish_revert_resize'](self.one, self.instance.uuid, self.migration, self.small)

    def check_reverted(self) -> None:
        self.assertEqual(({'one': ['current'], 'two': []}, []), (self.roles(), self.audit()))
        saved = self.database.instance(self.instance.uuid)
        self.assertEqual(('one', 'small', 1), (saved.host, saved.flavor.name, len(saved.resources)))

    def test_nothing_goes_back_until_the_service_decides(self) -> None:
        self.assertEqual([], self.audit())
        self.assertEqual({'one': ['old'], 'two': ['incoming'] * 2}, self.roles())

    def test_it_can_be_tried_again(self) -> None:
        self.finish()
        self.assertEqual({'one': ['old'], 'two': ['current'] * 2}, self.roles())

    def test_it_is_reverted_as_the_page_says(self) -> None:
        self.recipe['revert_resize'](self.two, self.instance.uuid, self.migration)
        self.assertEqual({'one': ['old'], 'two': []}, self.roles())
        self.finish_revert()
        self.check_reverted()
        self.assertIsNone(self.database.instance(self.instance.uuid).migration_context)

    def test_the_audit_of_the_destination_does_the_work_of_a_call_that_is_lost(self) -> None:
        self.migration.status = 'reverting'
        self.database.save(self.migration)
        self.assertEqual([], self.audit())
        self.assertEqual({'one': ['old'], 'two': ['incoming'] * 2}, self.roles())
        self.finish_revert()
        self.assertEqual([], self.audit())
        self.two.manager.wait_for_wipes()
        self.check_reverted()

    def test_after_an_error_the_destination_keeps_it(self) -> None:
        self.migration.status = 'error'
        self.database.save(self.migration)
        self.audit()
        self.assertEqual([reconcile.STALE_MIGRATION], self.audit())
        self.assertEqual({'one': ['old'], 'two': ['current'] * 2}, self.roles())
