"""Who says what devices are to running guests: the order of sources, and sources that are mistaken."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import fixtures
from oslo_config import cfg
from stevedore import extension
from stevedore import named

from devicetrack import exception
from devicetrack.compatibility.facts import Opaque
from devicetrack.compatibility.facts import Sort
from devicetrack.compatibility.facts import STATELESS
from devicetrack.compatibility.facts import TypeLook
from devicetrack.compatibility.facts import UnknownVersion
from devicetrack.compatibility.facts import Version
from devicetrack.compatibility.sources import Declarer
from devicetrack.compatibility.sources import NAMESPACE
from devicetrack.compatibility.sources import Said
from devicetrack.compatibility.sources import Source
from devicetrack.compatibility.sources import Sysfs
from devicetrack.objects.values import Attribute
from devicetrack.objects.values import MigrationType
from devicetrack.testing import fixtures as host_fixtures
from devicetrack.tests import base

GROUP = 'devicetrack_compatibility'
SORT = Sort('mdev', 'nvidia-35')
LOOK = TypeLook('nvidia-35', 'vfio-pci', False)
SILENT = Attribute()
A, B = frozenset('A'), frozenset('B')


class Vendor(Source):
    """Says what a test has it say, and reads what there is."""

    says: Any = Said()
    there: Any = None

    def __init__(self, conf: Any, host: str) -> None:
        super().__init__(conf, host)
        self.read: list[str] = []

    def refresh(self) -> None:
        if isinstance(self.there, Exception):
            raise self.there
        self.read.append(self.host)

    def say(self, sort: Sort, said: MigrationType) -> Said:
        if isinstance(self.says, Exception):
            raise self.says
        answer: Said = self.says
        return answer


class SourcesTestCase(base.TestCase):

    def install(self, **plugins: Any) -> None:
        """Have these found beside ``sysfs``, as if they were installed."""
        found = [extension.Extension(name, metadata.EntryPoint(name, '', ''), plugin, None)
                 for name, plugin in {'sysfs': Sysfs, **plugins}.items()]
        self.patch(named, 'NamedExtensionManager', lambda namespace, names, **_: [
            one for one in found if one.name in names])

    def declare(self, *sources: str, version: Attribute = SILENT, aggregation: Attribute = SILENT,
                look: TypeLook = LOOK) -> Any:
        self.configuration.set(GROUP, sources=list(sources))
        declarer = Declarer(self.conf, 'host')
        return declarer.declare(look, MigrationType('mdev', 'p', 'nvidia-35', version, aggregation), None)


class OrderTestCase(SourcesTestCase):

    def test_the_first_that_knows_counts_for_each_subject(self) -> None:
        self.patch(Vendor, 'says', Said(Version(2, 0, 0), A, None, 4))
        self.install(vendor=Vendor)
        first = self.declare('vendor', 'sysfs', version=Attribute('2.1.0'), aggregation=Attribute('2'))
        self.assertEqual((Version(2, 0, 0), A, frozenset(), 4), (first.facts.version, first.facts.required,
                                                                first.facts.offered, first.facts.aggregation))
        second = self.declare('sysfs', 'vendor', version=Attribute('2.1.0'), aggregation=Attribute('2'))
        self.assertEqual((Version(2, 1, 0), A, 2),
                         (second.facts.version, second.facts.required, second.facts.aggregation))
        self.assertEqual({'version': 'sysfs', 'aggregation': 'sysfs', 'required': 'vendor'}, dict(second.sources))

    def test_an_unknown_version_is_left_to_the_next_and_its_reason_kept(self) -> None:
        self.install(vendor=Vendor)
        self.assertEqual(UnknownVersion("sysfs: 'x' is not major.minor.patch, three numbers"),
                         self.declare('sysfs', 'vendor', version=Attribute('x')).facts.version)
        self.patch(Vendor, 'says', Said(UnknownVersion('not in stock')))
        self.assertEqual(UnknownVersion('sysfs: cannot be read; vendor: not in stock'), self.declare(
            'sysfs', 'vendor', version=Attribute(problem='cannot be read')).facts.version)
        self.patch(Vendor, 'says', Said(Version(1, 0, 0)))
        self.assertEqual(Version(1, 0, 0), self.declare('sysfs', 'vendor', version=Attribute('x')).facts.version)
        self.assertEqual(UnknownVersion('no source knows it'), self.declare().facts.version)

    def test_what_has_no_state_needs_no_version(self) -> None:
        self.patch(Vendor, 'says', Said(Version(1, 0, 0), B))
        self.install(vendor=Vendor)
        declared = self.declare('vendor', look=LOOK._replace(is_stateless=True))
        self.assertEqual((STATELESS, B, {'required': 'vendor'}),
                         (declared.facts.version, declared.facts.required, dict(declared.sources)))

    def test_a_vendors_own_text(self) -> None:
        self.configuration.set(GROUP, opaque_versions=True)
        self.assertEqual(Opaque('GRID-7'), self.declare('sysfs', version=Attribute('GRID-7')).facts.version)
        self.assertEqual(Version(1, 2, 3), self.declare('sysfs', version=Attribute('1.2.3')).facts.version)


class MistakenTestCase(SourcesTestCase):

    def test_while_a_source_fails_nothing_moves(self) -> None:
        log = self.useFixture(fixtures.FakeLogger())
        self.patch(Vendor, 'says', LookupError('no such shelf'))
        self.install(vendor=Vendor)
        self.configuration.set(GROUP, sources=['vendor', 'sysfs'])
        declarer = Declarer(self.conf, 'host')
        for _ in range(2):
            declared = declarer.declare(LOOK, MigrationType('mdev', 'p', 'nvidia-35', Attribute('2.1.0')), None)
            self.assertEqual((Version(2, 1, 0), 'source vendor fails with LookupError: no such shelf'),
                             (declared.facts.version, declared.facts.obstacle))
        self.assertEqual(1, log.output.count('Traceback'))

    def test_that_is_not_installed(self) -> None:
        refused = self.assertRaises(exception.InvalidConfiguration, self.declare, 'sysfs', 'vendor')
        self.assertEqual('[devicetrack_compatibility] sources = vendor: there is no entry point of this name in '
                         'devicetrack.compatibility.sources', str(refused))

    def test_that_is_none(self) -> None:
        for plugin, path in ((fixtures.Fixture, 'fixtures.fixture:Fixture'), (object(), ':<object object at ')):
            self.install(vendor=plugin)
            refused = self.assertRaises(exception.InvalidConfiguration, self.declare, 'vendor')
            self.assertRegex(str(refused), rf'^\[devicetrack_compatibility\] sources = vendor: {path}.* is no subclass '
                             r'of devicetrack.compatibility.sources:Source$')

    def test_that_cannot_be_made(self) -> None:
        says_nothing = type('Mute', (Source,), {'__module__': 'vendor'})
        self.install(vendor=says_nothing)
        refused = self.assertRaises(exception.InvalidConfiguration, self.declare, 'vendor')
        self.assertIn("sources = vendor: vendor:Mute fails with TypeError: Can't instantiate", str(refused))

    def test_whose_options_are_wrong(self) -> None:
        for error in (cfg.RequiredOptError('url'), exception.InvalidConfiguration('[vendor] url', 'x', 'no URL')):
            def fail(*_: Any, raised: Exception = error) -> None:
                raise raised

            self.patch(Vendor, '__init__', fail)
            self.install(vendor=Vendor)
            self.assertIs(error, self.assertRaises(type(error), self.declare, 'vendor'))

    def test_that_cannot_be_loaded(self) -> None:
        entry_point = metadata.EntryPoint('vendor', 'nowhere:Vendor', NAMESPACE)
        self.patch(named, 'NamedExtensionManager', lambda *_, on_load_failure_callback, **__: (
            on_load_failure_callback(None, entry_point, ImportError('no vendor')) or []))
        refused = self.assertRaises(exception.InvalidConfiguration, self.declare, 'vendor')
        self.assertIn('sources = vendor: cannot be loaded: no vendor', str(refused))

    def test_units_that_are_none_are_an_obstacle(self) -> None:
        for aggregation in (Attribute('0'), Attribute('4 units'), Attribute(problem='cannot be read')):
            self.assertIn('how many units mdev nvidia-35 has is not known',
                          str(self.declare('sysfs', aggregation=aggregation).facts.obstacle))


class RefreshTestCase(SourcesTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.install(vendor=Vendor, other=type('Other', (Vendor,), {}))
        self.configuration.set(GROUP, sources=['vendor', 'other'])

    def sources(self, declarer: Declarer) -> Any:
        return [source for _name, source in declarer._sources]

    def test_one_that_fails_is_logged_once_and_keeps_no_service_from_starting(self) -> None:
        self.patch(Vendor, 'says', Said(Version(2, 0, 0)))
        host = self.useFixture(host_fixtures.Host(configuration=self.configuration, parents={'a': 2}))
        vendor, other = self.sources(vars(host.running.declarations)['_declarer'])
        self.assertEqual((1, 1), (len(vendor.read), len(other.read)))
        vendor.there = OSError('the inventory is down')
        for _ in range(2):
            self.assertEqual([], host.audit())
        self.assertEqual((1, 3), (len(vendor.read), len(other.read)))
        self.assertEqual(1, self.log.output.count('Traceback'))
        self.assertIn('What was read before counts: source vendor cannot be read: OSError: the inventory is down',
                      self.log.output)
        self.patch(Vendor, 'there', OSError('the inventory is away'))
        host.restart()
        known = host.running.declarations.known
        self.assertEqual({Version(2, 0, 0)}, {one.facts.version for about, one in known.items()
                                              if about.kind == 'mdev'})

    def test_one_that_cannot_be_configured_keeps_a_service_from_starting(self) -> None:
        declarer = Declarer(self.conf, 'host')
        vendor, other = self.sources(declarer)
        vendor.there = exception.InvalidConfiguration('[vendor] url', 'x', 'no URL')
        self.assertRaises(exception.InvalidConfiguration, declarer.refresh)
        self.assertEqual(['host'], other.read)


# What another project's source hands over was never seen by our type checker.
_SAID: Any = Said
_VERSION: Any = Version
_OPAQUE: Any = Opaque
_UNKNOWN: Any = UnknownVersion


class MistakenAnswerTestCase(SourcesTestCase):

    scenarios = base.table(
        ('nothing', None, 'None, which is no Said'),
        ('an object', object(), '<object object>, which is no Said'),
        ('a text as version', _SAID('2.0.1'),
         "version '2.0.1', which is no Version of three numbers, Opaque, UnknownVersion or STATELESS"),
        ('a long text as version', _SAID('2' * 99), f"version '{'2' * 39}…, which is no "),
        ('a version of texts', _SAID(_VERSION('2', '0', '1')),
         "version Version(major='2', minor='0', patch='1'), which is no Version of three numbers"),
        ('a version below nothing', _SAID(Version(2, 0, -1)), 'version Version(major=2, minor=0, patch=-1), which is'),
        ('a string that is none', _SAID(_OPAQUE(7)), 'version Opaque(text=7), which is'),
        ('no reason', _SAID(_UNKNOWN(None)), 'version UnknownVersion(reason=None), which is'),
        ('a list of features', _SAID(required=['A']),
         "required ['A'], which is no frozenset of texts"),
        ('features that are none', _SAID(offered=frozenset({7})),
         'offered frozenset({7}), which is no frozenset of texts'),
        ('a text as units', _SAID(aggregation='4'),
         "aggregation '4', which is no number of units from 1"),
        ('no units', _SAID(aggregation=0), 'aggregation 0, which is no number of units from 1'),
        ('half of a pair', _SAID(obstacle='\ud800'), r"obstacle '\ud800', which is no text"),
        ('an obstacle that is none', _SAID(obstacle=True), 'obstacle True, which is no text'),
        names=('says', 'text'))

    def test_is_an_obstacle_and_logged_once(self) -> None:
        log = self.useFixture(fixtures.FakeLogger())
        self.patch(Vendor, 'says', self.says)
        self.install(vendor=Vendor)
        self.configuration.set(GROUP, sources=['vendor', 'sysfs'])
        declarer = Declarer(self.conf, 'host')
        for _ in range(2):
            facts = declarer.declare(LOOK, MigrationType('mdev', 'p', 'nvidia-35', Attribute('2.1.0')), None).facts
            self.assertEqual((Version(2, 1, 0), frozenset(), None),
                             (facts.version, facts.required, facts.aggregation))
            self.assertIn(f'source vendor says {self.text}', str(facts.obstacle))
        self.assertEqual(1, log.output.count(f'Nothing is known of the compatibility of mdev nvidia-35: source vendor '
                                             f'says {self.text}'))
