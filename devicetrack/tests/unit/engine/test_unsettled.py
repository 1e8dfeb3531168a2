"""Which rows of instances that move no audit settles by itself."""

from devicetrack.engine import findings
from devicetrack.engine import reconcile
from devicetrack.engine import unsettled
from devicetrack.tests import base
from devicetrack.tests.unit.engine import hosts
from devicetrack.tests.unit.engine.hosts import namespace
from devicetrack.tests.unit.engine.views import DEVICE
from devicetrack.tests.unit.engine.views import move
from devicetrack.tests.unit.engine.views import moving
from devicetrack.tests.unit.engine.views import row
from devicetrack.tests.unit.engine.views import usage
from devicetrack.tests.unit.engine.views import use
from devicetrack.tests.unit.engine.views import views

NEW, OLD = namespace('new'), namespace('a')
RUNS_ON_NEW = usage(use('i', identifier='new'))
RUNS_ON_OLD = usage(use('i'))
ONE_HOST = {'destination': 'compute-7'}
RESIZED = [moving(OLD), moving(NEW, 'current')]
RESIZING = [moving(OLD), moving(NEW, 'incoming', 'claimed')]
STALE = [('stale migration', 'warning')]
ELSEWHERE, HERE = {'i': 'elsewhere'}, {'i': 'here'}


class MovingTestCase(base.TestCase):
    """An instance that moves is where its rows say, and what an audit settles by itself is no finding."""

    scenarios = base.table(
        ('a resize on one host, claimed', views(RUNS_ON_OLD, [OLD, NEW], RESIZING, HERE, migrations=move(
            'migrating', **ONE_HOST)), []),
        ('the guest runs on the new ones', views(RUNS_ON_NEW, [OLD, NEW], RESIZED, HERE, migrations=move(
            'finished', **ONE_HOST)), []),
        ('the same before the rows followed', views(RUNS_ON_NEW, [OLD, NEW], RESIZING, HERE, migrations=move(
            'post-migrating', **ONE_HOST)), []),
        ('turned back to the old ones', views(RUNS_ON_OLD, [OLD, NEW], RESIZED, HERE, migrations=move(
            'reverting', **ONE_HOST)), []),
        ('confirmed: the next audit gives the old one back', views(RUNS_ON_NEW, [OLD, NEW], RESIZED, HERE,
                                                                   migrations=move('confirmed', **ONE_HOST)), []),
        ('confirmed, and the guest is on the old one', views(RUNS_ON_OLD, [OLD, NEW], RESIZED, HERE,
                                                             migrations=move('confirmed', **ONE_HOST)), STALE),
        ('reverted, and the guest runs on the new ones', views(RUNS_ON_NEW, [OLD, NEW], RESIZED, HERE,
                                                               migrations=move('reverted', **ONE_HOST)), STALE * 2),
        ('an error with the guest defined on the new ones', views(
            usage(use('i', running=False, live=False, identifier='new')), [OLD, NEW], RESIZED, HERE,
            migrations=move('error', **ONE_HOST)), STALE * 2),
        ('the source of a resize', views(usage(domains=['i']), rows=[moving(OLD)], instances=ELSEWHERE,
                                         migrations=move('finished')), []),
        ('the source after the guest has left', views(rows=[moving(OLD)], instances=ELSEWHERE,
                                                      migrations=move('completed')), []),
        ('the source, completed, with the guest still there', views(RUNS_ON_OLD, rows=[moving(OLD)],
                                                                    instances=ELSEWHERE,
                                                                    migrations=move('completed')), STALE),
        ('the same, and the instance is here by the service', views(RUNS_ON_OLD, rows=[moving(OLD)], instances=HERE,
                                                                    migrations=move('completed')), STALE),
        ('the same when a document cannot be read', views(usage(use('i'), unknown=['x']), rows=[moving(OLD)],
                                                          instances=ELSEWHERE, migrations=move('completed')),
         [('view unknown', 'warning')]),
        ('the same when the service does not tell', views(RUNS_ON_OLD, rows=[moving(OLD)]), []),
        ('a migration that the service does not know', views(rows=[moving(OLD)], instances=ELSEWHERE, migrations={}),
         STALE),
        ('the same of an instance that is here', views(RUNS_ON_OLD, rows=[moving(OLD)], instances=HERE, migrations={}),
         []),
        ('the same of an instance that is over', views(rows=[moving(OLD)], instances={'i': 'deleted'}, migrations={}),
         [('owned by an instance that is over', 'warning')]),
        ('a status that we do not know', views(rows=[moving(OLD)], instances=ELSEWHERE, migrations=move('odd')), []),
        ('the destination before the guest', views(rows=[moving(OLD, 'incoming', 'claimed')], instances=ELSEWHERE,
                                                   migrations=move('running', 'compute-8', 'compute-7')), []),
        ('the destination while the guest arrives', views(
            RUNS_ON_OLD._replace(arriving=frozenset('i')), rows=[moving(OLD, 'incoming', 'claimed')],
            instances=ELSEWHERE, migrations=move('running', 'compute-8', 'compute-7')), []),
        ('elsewhere, and on its way there by the service', views(rows=[row()], instances=ELSEWHERE,
                                                                 migrations=move('completed')), []),
        ('elsewhere, and nothing says how it got there', views(rows=[row()], instances=ELSEWHERE, migrations={}),
         [('owned by an instance that is over', 'warning')]),
        ('the same beside one being released', views(rows=[hosts.row(namespace('b'), 'i', 'releasing'), row()],
                                                      there=[namespace('b'), DEVICE], instances=ELSEWHERE,
                                                      migrations={}),
         [('owned by an instance that is over', 'warning'), ('release pending', 'note')]),
        ('the same beside one that a migration left', views(
            rows=[row(), moving(namespace('b'))], there=[namespace('b'), DEVICE], instances=ELSEWHERE, migrations={}),
         [('recorded but unused', 'warning'), *STALE]),
        ('here, beside what moves', views(
            usage(domains=['another']), rows=[row(), moving(NEW, 'incoming', 'claimed')], there=[OLD, NEW],
            instances=HERE, migrations=move('migrating', **ONE_HOST)), []),
        ('a migration that the service does not know, beside one that is done', views(
            rows=[moving(OLD), moving(NEW, migration='N')], there=[OLD, NEW], instances=ELSEWHERE,
            migrations=move('completed')), STALE),
        ('elsewhere, with a guest here', views(RUNS_ON_OLD, rows=[row()], instances=ELSEWHERE, migrations={}), []),
        ('elsewhere, and just claimed for', views(rows=[row(state='claimed')], instances=ELSEWHERE, migrations={}), []),
        names=('seen', 'expected'))

    def test_finds(self):
        self.assertEqual(self.expected, [(finding.kind, finding.severity) for finding in reconcile.compare(self.seen)])

    def test_proposes_no_repair_of_a_stale_migration(self):
        for finding in reconcile.compare(self.seen):
            self.assertTrue(finding.repair is None or finding.kind != findings.STALE_MIGRATION)


CLAIM = moving(NEW, 'incoming', 'claimed')
ANOTHER = hosts.row(namespace('b'), 'j')


class ForgottenTestCase(base.TestCase):
    """Claims for moves of which the service knows neither the instance nor the migration."""

    scenarios = base.table(
        ('nothing else is here', views(rows=[CLAIM], instances={}, migrations={}), [CLAIM]),
        ('two of one instance', views(rows=[CLAIM, moving(OLD, 'incoming', 'claimed')], instances={}, migrations={}),
         [CLAIM, moving(OLD, 'incoming', 'claimed')]),
        ('beside another instance', views(usage(use('j', identifier='b')), rows=[CLAIM, ANOTHER],
                                          instances={'j': 'here'}, migrations={}), [CLAIM]),
        ('beside another that is not known either', views(usage(use('j', identifier='b')), rows=[CLAIM, ANOTHER],
                                                          instances={}, migrations={}), []),
        ('no answer about instances', views(rows=[CLAIM], migrations={}), []),
        ('no answer about migrations', views(rows=[CLAIM], instances={}), []),
        ('the migration is known', views(rows=[CLAIM], instances={}, migrations=move('accepted')), []),
        ('the instance is known', views(rows=[CLAIM], instances=ELSEWHERE, migrations={}), []),
        ('it has a domain', views(usage(domains=['i']), rows=[CLAIM], instances={}, migrations={}), []),
        ('a domain names the device', views(usage(use('j', identifier='new')), rows=[CLAIM], instances={},
                                            migrations={}), []),
        ('a domain cannot be read', views(usage(unknown=['x']), rows=[CLAIM], instances={}, migrations={}), []),
        ('beside what the instance left', views(rows=[CLAIM, moving(OLD)], instances={}, migrations={}), []),
        ('beside a claim for a migration that is known', views(
            rows=[CLAIM, moving(OLD, 'incoming', 'claimed', 'N')], instances={}, migrations=move('accepted', uuid='N')),
         []),
        ('its guest has been here', views(rows=[moving(NEW, 'current')], instances={}, migrations={}), []),
        ('a claim for a boot', views(rows=[row(state='claimed')], instances={}, migrations={}), []),
        names=('seen', 'expected'))

    def test_it(self):
        self.assertEqual(frozenset(self.expected), unsettled.forgotten(self.seen))


HAS_DOMAIN = ', and the hypervisor has a domain of the instance here'
UNDEFINE = '; if it runs at the other host, undefine the domain here'


class StaleMigrationTestCase(base.TestCase):
    """A migration that is stale because the guest was never undefined at the source says so."""

    scenarios = base.table(
        ('confirmed, and defined at the source', views(usage(domains=['i']), rows=[moving(OLD)], instances=ELSEWHERE,
                                                       migrations=move('confirmed')), True, True),
        ('the same, and the service says that it is here', views(usage(domains=['i']), rows=[moving(OLD)],
                                                                 instances=HERE, migrations=move('confirmed')),
         True, False),
        ('on one host, with the guest on the old one', views(RUNS_ON_OLD, [OLD, NEW], RESIZED, HERE, migrations=move(
            'confirmed', **ONE_HOST)), True, False),
        ('not known, and nothing of it is left', views(rows=[moving(OLD)], instances=ELSEWHERE, migrations={}), False,
         False),
        names=('seen', 'has_domain', 'undefine'))

    def test_says_that_a_domain_is_here(self):
        [finding] = reconcile.compare(self.seen)
        self.assertEqual((findings.STALE_MIGRATION, self.has_domain, self.undefine),
                         (finding.kind, finding.detail.endswith(HAS_DOMAIN), finding.proposal.endswith(UNDEFINE)))
