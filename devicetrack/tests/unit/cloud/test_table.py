"""The table that comes out of a run."""

from __future__ import annotations

import pathlib

from devicetrack.tests import base
from devicetrack.tests.cloud import hosts
from devicetrack.tests.cloud import story
from devicetrack.tests.cloud import table


class TableTestCase(base.TestCase):

    def test_has_a_row_for_what_ran(self) -> None:
        made = table.text({
            hosts.STOCK: [story.Result('boot', story.KILL, ['b', 'a'], ['why'])],
            hosts.ADAPTED: [story.Result('boot', story.KILL, [], []), story.Result('boot', story.NOT, [], [])]})
        self.assertEqual(
            ['   * - boot', '     - undisturbed', '     - not tried', '     - nothing',
             '   * - boot', '     - ``kill -9``', '     - b, a', '     - nothing'],
            made.splitlines()[-8:])

    def test_is_read_as_it_was_written(self) -> None:
        results = {
            hosts.STOCK: [story.Result('resize, confirmed', story.RESET, [story.CONTENTS, story.SEEN], [])],
            hosts.ADAPTED: [story.Result('boot', story.KILL, [], []),
                            story.Result('resize, confirmed', story.RESET, [], [])]}
        path = pathlib.Path(self.temp_dir(), 'table')
        table.write(results, path)
        self.assertEqual(results, table.read(path))

    def test_texts_of_what_is_lost_are_told_apart(self) -> None:
        for text in (story.CONTENTS, story.FOREIGN_CONTENTS, story.SEEN, story.STATUS, story.STUCK, story.DISAGREE,
                     story.GUEST, story.NO_MOVE, story.SHARED):
            self.assertNotIn(',', text)
