"""What the views say differently, view by view."""

from devicetrack.engine import reconcile
from devicetrack.objects import values
from devicetrack.tests import base
from devicetrack.tests.unit.engine import hosts
from devicetrack.tests.unit.engine.hosts import inventory
from devicetrack.tests.unit.engine.hosts import namespace

DEVICE = namespace('a')
KEY = DEVICE.key
UNHEALTHY = namespace('a', unhealthy='hot')


def use(domain, running=True, live=True, defined=True, identifier='a'):
    return values.Use('vpmem', identifier, '/dev/dax0.0', domain, running, live, defined)


def usage(*uses, unknown=(), domains=None):
    names = frozenset(one.domain_uuid for one in uses) if domains is None else frozenset(domains)
    return values.Usage(tuple(uses), names, frozenset(one.domain_uuid for one in uses if one.running),
                        tuple(values.Unknown('domain', reason) for reason in unknown))


def row(owner='i', state='active'):
    return hosts.row(DEVICE, owner, state)


def views(usage=usage(), there=(DEVICE,), rows=(), instances=None, known=('vpmem', 'mdev'), unknown=()):  # noqa: B008
    return reconcile.Views(usage, inventory(*there, known=known)._replace(unknown=tuple(unknown)), tuple(rows),
                           instances)


class CompareTestCase(base.TestCase):

    scenarios = base.table(
        ('nothing anywhere', views(there=()), []),
        ('a free device', views(), []),
        ('a running owner', views(usage(use('i')), rows=[row()]), []),
        ('a stopped owner', views(usage(use('i', running=False, live=False)), rows=[row()]), []),
        ('claimed, no guest yet', views(rows=[row(state='claimed')]), []),
        ('active, the domain is lost', views(rows=[row()]), []),
        ('active, the domain does not name it', views(usage(domains=['i']), rows=[row()]),
         [('recorded but unused', 'warning')]),
        ('the same, but documents are unreadable', views(usage(domains=['i'], unknown=['x']), rows=[row()]),
         [('view unknown', 'warning')]),
        ('a running guest without a row', views(usage(use('x'))), [('used but unrecorded', 'critical')]),
        ('a stopped guest without a row', views(usage(use('x', running=False))), [('used but unrecorded', 'warning')]),
        ('another guest than the owner', views(usage(use('x')), rows=[row()]),
         [('used by another than its owner', 'critical')]),
        ('another guest than the owner, stopped', views(usage(use('x', running=False)), rows=[row()]),
         [('used by another than its owner', 'warning')]),
        ('owner and another', views(usage(use('i'), use('x')), rows=[row()]), [('used by several', 'critical')]),
        ('two without a row', views(usage(use('x'), use('y'))), [('used by several', 'critical')]),
        ('two that are not the owner', views(usage(use('x'), use('y')), rows=[row()]),
         [('used by another than its owner', 'critical'), ('used by several', 'critical')]),
        ('an address of no device', views(usage(use('x', identifier=None))), []),
        ('gone under a running guest', views(usage(use('i')), there=(), rows=[row()]),
         [('gone from the host', 'critical')]),
        ('gone', views(there=(), rows=[row()]), [('gone from the host', 'warning')]),
        ('not made yet', views(there=(), rows=[row(state='claimed')]), []),
        ('its kind could not be read', views(there=(), rows=[row()], known=('mdev',),
                                             unknown=[values.Unknown('vpmem', 'ndctl failed')]),
         [('view unknown', 'warning')]),
        ('unhealthy and free', views(there=[UNHEALTHY]), [('unhealthy', 'warning')]),
        ('unhealthy and owned', views(usage(use('i')), there=[UNHEALTHY], rows=[row()]), [('unhealthy', 'warning')]),
        ('on its way back', views(rows=[row(state='releasing')]), [('release pending', 'note')]),
        ('instance deleted', views(rows=[row()], instances={'i': 'deleted'}),
         [('owned by an instance that is over', 'warning')]),
        ('instance offloaded', views(rows=[row()], instances={'i': 'offloaded'}),
         [('owned by an instance that is over', 'warning')]),
        ('instance here', views(rows=[row()], instances={'i': 'here'}), []),
        ('instance in a state that we do not know', views(rows=[row()], instances={'i': 'shelving'}), []),
        ('instance that the service left out', views(rows=[row()], instances={}), []),
        names=('seen', 'expected'))

    def test_finds(self):
        self.assertEqual(self.expected, [(finding.kind, finding.severity) for finding in reconcile.compare(self.seen)])

    def test_says_what_is_held_and_proposes(self):
        for finding in reconcile.compare(self.seen):
            self.assertTrue(finding.held and finding.proposal and finding.detail and str(finding))
            self.assertIn(finding.kind, reconcile.FINDINGS)

    def test_the_same_twice(self):
        self.assertEqual(reconcile.compare(self.seen), reconcile.compare(self.seen))


class OrderTestCase(base.TestCase):

    def test_the_worst_comes_first(self):
        others = [namespace(name) for name in 'bc']
        seen = views(usage(use('x', identifier='c')), there=[UNHEALTHY, *others],
                     rows=[hosts.row(others[0], 'i', 'releasing')])
        self.assertEqual(['critical', 'warning', 'note'], [found.severity for found in reconcile.compare(seen)])


class ConfirmedTestCase(base.TestCase):

    FOUND = reconcile.compare(views(usage(use('x')), rows=[row()]))[0]

    scenarios = base.table(
        ('the same again', FOUND, True),
        ('another generation', FOUND._replace(generation=2), False),
        ('another user', FOUND._replace(users=('y',)), False),
        ('another device', FOUND._replace(device=values.DeviceKey('vpmem', 'b')), False),
        ('told in other words', FOUND._replace(detail='otherwise'), True),
        names=('again', 'confirmed'))

    def test_by_a_second_look(self):
        self.assertEqual([self.again] if self.confirmed else [], reconcile.confirmed([self.FOUND], [self.again]))

    def test_what_only_the_first_look_showed_is_nothing(self):
        self.assertEqual([], reconcile.confirmed([self.FOUND], []))
