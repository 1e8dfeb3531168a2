"""What hosts declare, as plain values and back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from devicetrack import exception
from devicetrack.compatibility.facts import Declaration
from devicetrack.compatibility.facts import declaration_as_text
from devicetrack.compatibility.facts import declaration_from_data
from devicetrack.compatibility.facts import declaration_from_text
from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.facts import Opaque
from devicetrack.compatibility.facts import Sort
from devicetrack.compatibility.facts import STATELESS
from devicetrack.compatibility.facts import SUBJECTS
from devicetrack.compatibility.facts import UnknownVersion
from devicetrack.compatibility.facts import Version
from devicetrack.tests import base

PART = st.integers(0, 999_999_999)
VERSIONS = st.one_of(st.builds(Version, PART, PART, PART), st.builds(Opaque, st.text()),
                     st.builds(UnknownVersion, st.text()), st.just(STATELESS))
NAMES = st.frozensets(st.text('ABC_', min_size=1, max_size=5), max_size=3)
DECLARATIONS = st.builds(
    Declaration, st.none() | st.text(max_size=5),
    st.builds(Facts, st.builds(Sort, st.text(max_size=5), st.text(max_size=5)), st.text(max_size=5), VERSIONS, NAMES,
              NAMES, st.none() | st.integers(1), st.none() | st.text(max_size=5)),
    st.dictionaries(st.sampled_from(SUBJECTS), st.text(max_size=5)).map(
        lambda sources: tuple(sorted(sources.items()))), st.none() | st.text(max_size=5))

WELL: dict[str, object] = {
    'parent': 'p', 'kind': 'mdev', 'type': 'nvidia-35', 'api': 'vfio-pci', 'version_form': 'numbered',
    'version': '2.1.0', 'required': [], 'offered': [], 'aggregation': None, 'obstacle': None, 'sources': {},
}


class RoundTripTestCase(base.TestCase):

    @given(DECLARATIONS)
    def test_through_json(self, declared: Declaration) -> None:
        self.assertEqual(declared, declaration_from_text(declaration_as_text(declared), 'here'))


class MeaninglessTestCase(base.TestCase):

    scenarios = base.table(
        ('no mapping', [], '^here: .*mapping'),
        ('without a kind', {'kind': None}, '^here.kind: None: must be a text'),
        ('a parent that is a number', {'parent': 1}, '^here.parent: 1: '),
        ('a form that nobody knows', {'version_form': 'roman'}, '^here.version_form: .*numbered, opaque'),
        ('two numbers', {'version': '2.1'}, "^here.version: '2.1': .*three numbers"),
        ('a version that is a number', {'version': 2.1}, '^here.version: 2.1: must be a text'),
        ('names in one text', {'required': 'AB'}, "^here.required: 'AB': must be a list"),
        ('a name that is none', {'offered': [1]}, '^here.offered: '),
        ('no units at all', {'aggregation': 0}, '^here.aggregation: 0: '),
        ('units that are true', {'aggregation': True}, '^here.aggregation: True: '),
        ('an obstacle without a reason', {'obstacle': True}, '^here.obstacle: True: '),
        ('a source of something else', {'sources': {'colour': 'sysfs'}}, '^here.sources.colour: '),
        ('a driver that is a number', {'driver': 550.54}, '^here.driver: 550.54: must be a text, or null'),
        ('a type with half of a pair', {'type': '\ud800'}, "^here.type: '.ud800': must be a text"),
        ('a version with half of a pair', {'version_form': 'opaque', 'version': '\ud800'}, '^here.version: '),
        ('a feature with half of a pair', {'required': ['\ud800']}, '^here.required: '),
        ('an obstacle with half of a pair', {'obstacle': '\ud800'}, '^here.obstacle: '),
        ('sources that are a list', {'sources': []}, '^here.sources: '),
        names=('wrong', 'text'))

    def test_is_refused(self) -> None:
        data = {**WELL, **self.wrong} if isinstance(self.wrong, dict) else self.wrong
        refused = self.assertRaises(exception.BadRequest, declaration_from_data, data, 'here')
        self.assertRegex(str(refused), self.text)

    def test_the_same_without_it_is_well(self) -> None:
        self.assertEqual(('mdev', 'p', 'nvidia-35'), declaration_from_data(WELL, 'here').about)
