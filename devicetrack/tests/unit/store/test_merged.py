"""Changes of several callers, put together for one transaction."""

from __future__ import annotations

from devicetrack.objects.values import Record
from devicetrack.store import api
from devicetrack.store.sql import backend
from devicetrack.tests import base
from devicetrack.tests.functional.store.records import context
from devicetrack.tests.functional.store.records import drop
from devicetrack.tests.functional.store.records import insert
from devicetrack.tests.functional.store.records import put
from devicetrack.tests.functional.store.records import record
from devicetrack.tests.functional.store.records import update

_A = record('ns0', instance_uuid='a' * 36)
_B = record('ns1', instance_uuid='b' * 36)


def _with(of: Record, *contexts: api.ContextChange) -> api.Changes:
    return update(of)._replace(contexts=contexts)


class TestContexts(base.TestCase):
    scenarios = base.table(
        ('none', [update(_A), update(_B)], []),
        ('one', [_with(_A, put(context(_A)))], [put(context(_A))]),
        ('in the order of their keys', [_with(_B, drop(_B)), _with(_A, put(context(_A)))],
         [put(context(_A)), drop(_B)]),
        ('put, and dropped by who came later', [_with(_A, put(context(_A))), _with(_A, drop(_A))], [drop(_A)]),
        ('dropped, and put by who came later', [_with(_A, drop(_A)), _with(_A, put(context(_A)))],
         [put(context(_A))]),
        ('twice by one', [_with(_A, put(context(_A)), put(context(_A, '"last"')))], [put(context(_A, '"last"'))]),
        names=('members', 'contexts'))
    members: list[api.Changes]
    contexts: list[api.ContextChange]

    def test_the_last_of_an_instance_counts(self) -> None:
        self.assertEqual(self.contexts, list(backend.Merged.of(self.members).contexts))


class TestRows(base.TestCase):
    def test_they_come_in_the_order_of_their_keys(self) -> None:
        merged = backend.Merged.of([insert(_B), insert(_A), update(_B), update(_A)])
        self.assertEqual(([_A, _B], [_A, _B]), (merged.insert, [update.before for update in merged.update]))
