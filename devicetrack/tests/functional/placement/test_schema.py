"""What the commands about placement print with ``-f json``, against the schema that the documentation has."""

from __future__ import annotations

from typing import Any

import jsonschema

from devicetrack.placement import tree
from devicetrack.tests import base
from devicetrack.tests.functional.placement.test_audit import AuditTestCase
from devicetrack.tests.functional.placement.test_audit import CPU
from devicetrack.tests.functional.placement.test_heal_command import HealTestCase
from devicetrack.tests.unit.cmd import program as programs
from devicetrack.tests.unit.cmd import test_schema

AUDIT, REPAIR, HEAL, SYNC = 'placement audit', 'placement audit --repair', 'placement heal', 'placement sync'


def checked(command: str, answer: programs.Answer) -> Any:
    """The data of an answer, as the schema says. An empty list, which always is, is refused."""
    if answer.code in (1, 2) or not answer.data:
        raise AssertionError(f'{command}: exit code {answer.code}: {answer.err}')
    jsonschema.validate(answer.data, test_schema.schema_of(command))
    return answer.data


class AuditSchemaTestCase(AuditTestCase):

    def ask(self, command: str, *arguments: str) -> Any:
        return checked(command, self.program.run(*command.split(), *arguments, '-f', 'json',
                                                 config_file=self.config_file))

    def test_findings_repairs_and_differences(self) -> None:
        self.write(self.spawn('_p0').uuid, {self.node: CPU})
        self.ask(AUDIT)
        self.ask(REPAIR, '--dry-run')
        self.host.manager.operator.cordon('mdev', 'p1', parent=True)
        self.ask(SYNC, '--dry-run')
        self.assertEqual({None, f'{self.name}_p1'}, {one['provider'] for one in self.ask(REPAIR, '--dry-run')})


class HealSchemaTestCase(HealTestCase):

    def test_a_node_that_is_left_and_one_that_is_healed(self) -> None:
        self.here.spawn()
        self.here.report(tree.ANNOUNCED)
        stranger = self.disturb(self.here)
        [left] = checked(HEAL, self.heal('--all', '-f', 'json'))
        self.assertEqual([stranger], [one['consumer'] for one in left['obstacles']])
        self.direct.delete_allocations(stranger)
        [healed] = checked(HEAL, self.heal('--all', '-f', 'json'))
        self.assertEqual(1, healed['moved'])


class AllTestCase(base.TestCase):

    def test_no_command_is_forgotten(self) -> None:
        self.assertEqual(test_schema.ELSEWHERE, {AUDIT, REPAIR, HEAL, SYNC})
