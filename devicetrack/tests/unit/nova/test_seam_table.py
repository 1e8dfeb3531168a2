"""The text form of what the adapter knows of Nova."""

from __future__ import annotations

from devicetrack.nova import seam_table
from devicetrack.nova import source
from devicetrack.tests import base

CLEANUP, INIT = 'nova.compute.manager:Manager.cleanup', 'nova.compute.manager:Manager.init'


def reading(text: str, *names: str) -> source.Reading:
    function = source.NovaFunction('(self, limits=None)', text, 1, 0)
    return source.Reading({CLEANUP: function}, {INIT: (function, frozenset(names))} if names else {})


class SeamTableTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.table = seam_table.SeamTable()

    def lines(self) -> list[str]:
        return str(self.table).splitlines()[1:]

    def test_a_line_for_each_form_with_the_releases_that_have_it(self) -> None:
        digests = [reading(text).targets[CLEANUP].digest for text in ('one', 'two')]
        self.table.add('31.10.0', reading('two', 'b', 'a'))
        self.table.add('31.9.0', reading('one', 'a'))
        self.table.add('31.10.1', reading('two', 'a', 'b'))
        self.assertEqual([
            'release 31.9.0', 'release 31.10.0', 'release 31.10.1',
            f'uses {CLEANUP} {digests[0]} 31.9.0 (self, limits=None)',
            f'uses {CLEANUP} {digests[1]} 31.10.0,31.10.1 (self, limits=None)',
            f'calls {INIT} {digests[0]} 31.9.0 a',
            f'calls {INIT} {digests[1]} 31.10.0,31.10.1 a b'], self.lines())

    def test_a_release_that_changes_nothing_adds_one_line(self) -> None:
        self.table.add('31.0.0', reading('one', 'a'))
        before = self.lines()
        self.table.add('31.0.1', reading('one', 'a'))
        self.assertEqual([before[0], 'release 31.0.1', *before[1:]], self.lines())
        self.assertIn(' * ', before[1])

    def test_a_release_that_is_read_again_takes_the_place_of_what_was_known(self) -> None:
        self.table.add('31.0.0', reading('one', 'a'))
        self.table.add('31.0.0', reading('two'))
        [_release, uses] = self.lines()
        self.assertIn(reading('two').targets[CLEANUP].digest, uses)

    def test_what_is_written_is_read(self) -> None:
        for release, text in (('31.0.0', 'one'), ('31.0.1', 'two')):
            self.table.add(release, reading(text, 'a', 'b'))
        self.assertEqual(str(self.table), str(seam_table.parse(str(self.table))))

    def test_another_line_is_refused(self) -> None:
        self.assertRaises(ValueError, seam_table.parse, f'wrap {CLEANUP} 0123 * (self)')

    def test_the_nearest_is_of_the_same_major_version_or_the_next_with_a_table(self) -> None:
        tables = {number: seam_table.SeamTable({f'{number}.0.0'}) for number in ('31', '33', '34')}
        self.assertEqual([{'31.0.0'}, {'31.0.0'}, {'33.0.0'}, {'33.0.0'}, {'34.0.0'}, {'34.0.0'}, set()],
                         [seam_table.nearest(tables, release).releases
                          for release in ('30.1', '31.5.0', '32.0.0', '33.0.0.dev3', '34.0.1', '36.0.0', 'unknown')])

    def test_the_tables_that_ship_can_be_read_and_are_written_so(self) -> None:
        for path in seam_table.DIRECTORY.glob('*.txt'):
            text = path.read_text()
            table = seam_table.parse(text)
            self.assertEqual(text, str(table))
            self.assertEqual({path.stem}, {seam_table.major(release) for release in table.releases})
        self.assertLessEqual({'31', '33', '34'}, seam_table.load().keys())
