"""What follows from the views of a host alone."""

from oslotest import base

from devicetrack.engine.views import named_by_domain
from devicetrack.engine.views import Names
from devicetrack.engine.views import Views
from devicetrack.objects import values
from devicetrack.tests.unit.engine import hosts

ONE, TWO = 'one', 'two'


def use(kind, identifier, domain_uuid):
    return values.Use(kind, identifier, f'address of {identifier}', domain_uuid, True, True, False)


class NamesTestCase(base.BaseTestCase):

    def names(self, rows, uses):
        records = tuple(hosts.row(device, instance_uuid) for device, instance_uuid in rows)
        usage = values.Usage(tuple(uses), frozenset((ONE, TWO)), frozenset(), ())
        return Views(usage, hosts.inventory(*(device for device, _uuid in rows)), records, {}).names

    def test_devices_that_domains_name(self) -> None:
        a, b, of_another_kind = hosts.namespace('a'), hosts.namespace('b'), hosts.mdev('a', 'gpu')
        own = [use('vpmem', 'a', ONE), use('mdev', 'a', ONE)]
        rows = [(a, ONE), (of_another_kind, ONE), (b, TWO)]
        read_by_another = own[0]._replace(kind='mdev', identifier='x')
        for title, uses, named, strange, nowhere in (
                ('all of them', [*own, use('vpmem', 'b', TWO)], {('vpmem', 'a'), ('mdev', 'a'), ('vpmem', 'b')},
                 set(), set()),
                ('one is not named', own, {('vpmem', 'a'), ('mdev', 'a')}, set(), set()),
                ('one is named twice', [*own, own[0]], {('vpmem', 'a'), ('mdev', 'a')}, set(), set()),
                ('none', [], set(), set(), set()),
                ('another names one', [*own, use('vpmem', 'b', ONE)],
                 {('vpmem', 'a'), ('mdev', 'a'), ('vpmem', 'b')}, {('vpmem', 'b')}, set()),
                ('one has no row', [*own, use('vpmem', 'c', TWO)], {('vpmem', 'a'), ('mdev', 'a'), ('vpmem', 'c')},
                 {('vpmem', 'c')}, set()),
                ('two kinds read one address', [*own, read_by_another],
                 {('vpmem', 'a'), ('mdev', 'a'), ('mdev', 'x')}, set(), set()),
                ('and another domain names it', [*own, read_by_another, read_by_another._replace(domain_uuid=TWO)],
                 {('vpmem', 'a'), ('mdev', 'a'), ('mdev', 'x')}, {('mdev', 'x')}, set()),
                ('and another address', [*own, read_by_another, use('mdev', 'x', ONE)],
                 {('vpmem', 'a'), ('mdev', 'a'), ('mdev', 'x')}, {('mdev', 'x')}, set()),
                ('and it is a device of the host', [*own, read_by_another._replace(kind='vpmem', identifier='b')],
                 {('vpmem', 'a'), ('mdev', 'a'), ('vpmem', 'b')}, {('vpmem', 'b')}, set()),
                ('an address leads nowhere', [*own, use('vpmem', None, TWO)], {('vpmem', 'a'), ('mdev', 'a')}, set(),
                 {('vpmem', TWO), ('vpmem', 'address of None')})):
            with self.subTest(title):
                self.assertEqual(Names(named, strange, nowhere, set()), self.names(rows, uses))


class NamedByDomainTestCase(base.BaseTestCase):

    def test_what_only_a_snapshot_names_is_left_out(self) -> None:
        in_snapshot = use('vpmem', 'b', ONE)._replace(live=False)
        usage = values.Usage((use('vpmem', 'a', ONE), in_snapshot, use('vpmem', None, ONE),
                              in_snapshot._replace(domain_uuid=TWO, defined=True)), frozenset(), frozenset())
        self.assertEqual({ONE: {('vpmem', 'a')}, TWO: {('vpmem', 'b')}}, named_by_domain(usage))
