"""The table that comes out of a run."""

from __future__ import annotations

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
