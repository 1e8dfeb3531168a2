"""What the rows that a settling transaction finds say about the lost one."""

from __future__ import annotations

from devicetrack import vocabulary
from devicetrack.objects.values import Record
from devicetrack.store import api
from devicetrack.store.sql import settle
from devicetrack.tests import base
from devicetrack.tests.functional.store.records import delete
from devicetrack.tests.functional.store.records import insert
from devicetrack.tests.functional.store.records import moved_on
from devicetrack.tests.functional.store.records import record
from devicetrack.tests.functional.store.records import update

_OURS = record('ns0')
_THEIRS = record('ns0')
_SECOND = record('ns1')
_ON = moved_on(_OURS)
_OTHERWISE = moved_on(_OURS, state=vocabulary.RELEASING)


class TestHappened(base.TestCase):
    scenarios = base.table(
        ('inserted, there', insert(_OURS), (_OURS,), True),
        ('inserted, there and changed since', insert(_OURS), (_ON,), True),
        ('inserted, not there', insert(_OURS), (), False),
        ('inserted, another claim has it', insert(_OURS), (_THEIRS,), False),
        ('two inserted, one given back since', insert(_OURS, _SECOND), (_SECOND,), True),
        ('two inserted, another claim has one', insert(_OURS, _SECOND), (_THEIRS,), False),
        ('updated', update(_OURS), (_ON,), True),
        ('updated, and again since', update(_OURS), (moved_on(_ON),), True),
        ('updated, and its details converted since', update(_OURS), (_ON._replace(details='{}'),), True),
        ('not updated', update(_OURS), (_OURS,), False),
        ('updated by somebody else', update(_OURS), (_OTHERWISE,), False),
        ('to be updated, gone', update(_OURS), (), False),
        ('to be updated, of another claim', update(_OURS), (_THEIRS,), False),
        ('deleted', delete(_OURS), (), True),
        ('deleted, and taken by another claim since', delete(_OURS), (_THEIRS,), True),
        ('not deleted', delete(_OURS), (_OURS,), False),
        ('two to be deleted, one is as it was', delete(_OURS, _SECOND), (_SECOND,), False),
        ('deleted and inserted', api.Changes(insert=(_THEIRS,), delete=(_OURS,)), (_THEIRS,), True),
        ('neither deleted nor inserted', api.Changes(insert=(_THEIRS,), delete=(_OURS,)), (_OURS,), False),
        ('updated, and an insert given back since',
         api.Changes(insert=(_SECOND,), update=(api.Update(_OURS, _ON),)), (_ON,), True),
        names=('changes', 'found', 'answer'))
    changes: api.Changes
    found: tuple[Record, ...]
    answer: bool

    def test_the_rows_say(self) -> None:
        self.assertEqual(self.answer, settle.happened(self.changes, {row[:3]: row for row in self.found}))
