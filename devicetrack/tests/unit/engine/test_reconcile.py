"""What the views say differently, view by view."""

from devicetrack.engine import findings
from devicetrack.engine import reconcile
from devicetrack.engine import repair_plan
from devicetrack.engine.withholding import Cause
from devicetrack.objects import values
from devicetrack.tests import base
from devicetrack.tests.unit.engine import hosts
from devicetrack.tests.unit.engine.hosts import namespace
from devicetrack.tests.unit.engine.views import ANOTHER_UUID
from devicetrack.tests.unit.engine.views import DEVICE
from devicetrack.tests.unit.engine.views import guest
from devicetrack.tests.unit.engine.views import made
from devicetrack.tests.unit.engine.views import mdev
from devicetrack.tests.unit.engine.views import NAMESPACE_UUID
from devicetrack.tests.unit.engine.views import pmem
from devicetrack.tests.unit.engine.views import recorded
from devicetrack.tests.unit.engine.views import row
from devicetrack.tests.unit.engine.views import UNHEALTHY
from devicetrack.tests.unit.engine.views import usage
from devicetrack.tests.unit.engine.views import use
from devicetrack.tests.unit.engine.views import views
from devicetrack.tests.unit.virt import disks

KEY = DEVICE.key
GPU = hosts.capacity('gpu', 0)
UNREAD = DEVICE._replace(details=disks.text(None))
USED = values.Use('mdev', 'm', 'm', 'i', True, True, True)
RUNS_ON_OLD = usage(use('i'))
HERE = {'i': 'here'}


def exclusive(identifier, *exclusions):
    return namespace(identifier)._replace(exclusions=exclusions)


def claimed(device, owner='i', state='claimed'):
    return hosts.row(device, owner, state)


CARD = exclusive('card', ('t', 'whole'))
FUNCTIONS = [exclusive(f'f{number}', ('t', 'part')) for number in range(7)]
MEMBERS = [exclusive(f'g{number}', ('g', 'together')) for number in range(3)]


class ExclusionTestCase(base.TestCase):
    """Rows that have devices beside one another that the host excludes."""

    scenarios = base.table(
        ('nobody has any', [], None),
        ('a card alone', [claimed(CARD)], None),
        ('functions alone', [claimed(FUNCTIONS[0]), claimed(FUNCTIONS[1], 'j')], None),
        ('a card and a function', [claimed(CARD), claimed(FUNCTIONS[0], 'j')],
         ('card', 'i', 't: its whole and something else of it are owned: vpmem/card: owner i; vpmem/f0: owner j')),
        ('of one owner, one being released', [claimed(CARD, state='releasing'), claimed(FUNCTIONS[0])],
         ('card', 'i', 'vpmem/card: owner i, being released; vpmem/f0: owner i')),
        ('a card and many functions', [claimed(one, 'j') for one in [*FUNCTIONS, CARD]],
         ('card', 'j', 'vpmem/f3: owner j and 3 more')),
        ('two wholes', [claimed(CARD), claimed(exclusive('other', ('t', 'whole')), 'j')],
         ('card', 'i', 'vpmem/other: owner j')),
        ('some of a group', [claimed(MEMBERS[0]), claimed(MEMBERS[2])], None),
        ('a group of two owners', [claimed(MEMBERS[0]), claimed(MEMBERS[2], 'j')],
         ('g0', 'i', 'g: what goes to one instance alone has several owners: vpmem/g0: owner i; vpmem/g2: owner j')),
        names=('rows', 'expected'))

    def test_is_one_critical_finding_for_a_token(self):
        other = exclusive('other', ('t', 'whole'))
        seen = views(there=[CARD, *FUNCTIONS, *MEMBERS, other, namespace('plain')], rows=self.rows)
        found = [finding for finding in reconcile.compare(seen) if finding.kind == findings.EXCLUSION_BROKEN]
        if self.expected is None:
            self.assertEqual([], found)
            return
        device, owner, detail = self.expected
        [finding] = found
        self.assertEqual((device, owner, 'critical', None),
                         (finding.device.identifier, finding.recorded_owner, finding.severity, finding.repair))
        self.assertIn(detail, finding.detail)


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
        ('the same beside one that goes back', views(
            usage(domains=['i']), [DEVICE, namespace('b')], [row(), hosts.row(namespace('b'), 'i', 'releasing')]),
         [('recorded but unused', 'warning'), ('release pending', 'note')]),
        ('not while its domain still names one that goes back', views(
            usage(use('i', identifier='b')), [DEVICE, namespace('b')],
            [row(), hosts.row(namespace('b'), 'i', 'releasing')]), [('release pending', 'note')]),
        ('the same, but documents are unreadable', views(usage(domains=['i'], unknown=['x']), rows=[row()]),
         [('view unknown', 'warning')]),
        ('its guest runs without it', views(usage(use('i', live=False)), rows=[row()]),
         [('recorded but unused', 'warning')]),
        ('the same, and it moves', views(usage(use('i', live=False)), rows=[row()._replace(migration_uuid='m')]), []),
        ('the same, and documents are unreadable', views(usage(use('i', live=False), unknown=['x']), rows=[row()]),
         [('view unknown', 'warning')]),
        ('its guest may have it by an address that is not found', views(
            usage(use('i', live=False), use('i', identifier=None)), rows=[row()]), [('view unknown', 'warning')]),
        ('its guest has it by another address than its next start', views(
            usage(use('i', live=False), use('i')._replace(address='old', defined=False)), rows=[row()]), []),
        ('it runs on it, and will not after its next start', views(usage(use('i')._replace(defined=False)),
                                                                   rows=[row()]), []),
        ('only a snapshot of its running guest names it', views(
            usage(use('i', running=False, live=False)._replace(defined=False), domains=['i'])._replace(
                running=frozenset('i')), rows=[row()]), [('recorded but unused', 'warning')]),
        ('a running guest without a row', views(usage(use('x'))), [('used but unrecorded', 'critical')]),
        ('a stopped guest without a row', views(usage(use('x', running=False))), [('used but unrecorded', 'warning')]),
        ('another guest than the owner', views(usage(use('x')), rows=[row()]),
         [('used by another than its owner', 'critical')]),
        ('another guest than the owner, stopped', views(usage(use('x', running=False)), rows=[row()]),
         [('used by another than its owner', 'warning')]),
        ('owner and another', views(usage(use('i'), use('x')), rows=[row()]), [('used by several', 'critical')]),
        ("another kind takes the owner's device for its own", views(
            usage(use('i'), use('i')._replace(kind='mdev', identifier='x')), rows=[row()]), []),
        ('the same without a row', views(usage(use('x'), use('x')._replace(kind='mdev', identifier='x'))),
         [('used but unrecorded', 'critical'), ('used but unrecorded', 'critical')]),
        ('two without a row', views(usage(use('x'), use('y'))), [('used by several', 'critical')]),
        ('two that are not the owner', views(usage(use('x'), use('y')), rows=[row()]),
         [('used by another than its owner', 'critical'), ('used by several', 'critical')]),
        ('an address of no device', views(usage(use('x', identifier=None))), []),
        ('gone under a running guest', views(usage(use('i')), there=(), rows=[row()]),
         [('gone from the host', 'critical')]),
        ('gone, and so is what its address led to', views(usage(use('i', identifier=None)), there=(), rows=[row()]),
         [('gone from the host', 'critical')]),
        ('there, and an old snapshot of its guest names what is gone', views(
            usage(use('i'), use('i', identifier=None)._replace(address='old', live=False, defined=False)),
            rows=[row()]), []),
        ('its domain names nothing, and an old snapshot names what is gone', views(
            usage(use('i', identifier=None)._replace(address='old', live=False, defined=False)), rows=[row()]),
         [('recorded but unused', 'warning')]),
        ('gone, and a stranger names it so', views(usage(use('x', identifier=None)._replace(address='a')), there=(),
                                                   rows=[row()]), [('gone from the host', 'critical')]),
        ('gone being released, and a domain misses it', views(usage(use('i', identifier=None)), there=(),
                                                               rows=[row(state='releasing')]),
         [('gone from the host', 'critical')]),
        ('its domain names something that is not found', views(usage(use('i', identifier=None)), rows=[row()]),
         [('view unknown', 'warning')]),
        ('its domain names something of another kind that is not found', views(
            usage(use('i', identifier=None)._replace(kind='mdev')), rows=[row()]),
         [('recorded but unused', 'warning')]),
        ('its domain names it and something that is not found', views(
            usage(use('i'), use('i', identifier=None)), rows=[row()]), []),
        ('gone', views(there=(), rows=[row()]), [('gone from the host', 'warning')]),
        ('a claimed namespace is gone', views(there=(), rows=[row(state='claimed')]),
         [('gone from the host', 'warning')]),
        ('not made yet', views(there=[GPU], rows=[made(state='claimed')]), []),
        ('not made yet, and its parent is gone', views(there=(), rows=[made(state='claimed')]),
         [('gone from the host', 'warning')]),
        ('not made yet, and its parent has others', views(there=[mdev('n')], rows=[made(state='claimed')]), []),
        ('made, and gone', views(there=(), rows=[made()]), [('gone from the host', 'warning')]),
        ('made, and not made again after a boot', views(there=[GPU], rows=[made()], boot_changed=True), []),
        ('made again after a boot, and gone since',
         views(there=[GPU], rows=[made()], boot_changed=True)._replace(realized=frozenset('i')),
         [('gone from the host', 'warning')]),
        ('its parent is gone after a boot', views(there=(), rows=[made()], boot_changed=True),
         [('gone from the host', 'warning')]),
        ('the same, and its kind could not be read', views(there=(), rows=[made()], boot_changed=True, known=('vpmem',),
                                                           unknown=[values.Unknown('mdev', 'no answer')]),
         [('view unknown', 'warning')]),
        ('gone being released', views(there=(), rows=[row(state='releasing')]), [('gone from the host', 'warning')]),
        ('gone being released, where its kind could not be read', views(
            there=(), rows=[row(state='releasing')], known=('mdev',),
            unknown=[values.Unknown('vpmem', 'ndctl failed')]),
         [('view unknown', 'warning'), ('release pending', 'note')]),
        ('removed being released', views(there=(), rows=[made(state='releasing')]), [('release pending', 'note')]),
        ('its kind could not be read', views(there=(), rows=[row()], known=('mdev',),
                                             unknown=[values.Unknown('vpmem', 'ndctl failed')]),
         [('view unknown', 'warning')]),
        ('unhealthy and free', views(there=[UNHEALTHY]), [('unhealthy', 'warning')]),
        ('unhealthy and owned', views(usage(use('i')), there=[UNHEALTHY], rows=[row()]), [('unhealthy', 'warning')]),
        ('being released', views(rows=[row(state='releasing')]), [('release pending', 'note')]),
        ('instance deleted', views(rows=[row()], instances={'i': 'deleted'}),
         [('owned by an instance that is over', 'warning')]),
        ('instance offloaded', views(rows=[row()], instances={'i': 'offloaded'}),
         [('owned by an instance that is over', 'warning')]),
        ('instance here', views(usage(domains=['another']), rows=[row()], instances={'i': 'here'}), []),
        ('instance here and no domain at all', views(rows=[row()], instances={'i': 'here'}),
         [('no guest at all', 'critical')]),
        ('one of two here and no domain at all', views(rows=[row(), hosts.row(namespace('b'), 'j', 'active')],
                                                       instances={'i': 'here', 'j': 'elsewhere'},
                                                       there=(DEVICE, namespace('b'))),
         [('no guest at all', 'warning')]),
        ('instance here whose guest has not started', views(rows=[row(state='claimed')], instances={'i': 'here'}), []),
        ('instance here and domains that cannot be read', views(usage(unknown=(values.Unknown('domain x', 'y'),)),
                                                                rows=[row()], instances={'i': 'here'}),
         [('view unknown', 'warning')]),
        ('instance in a state that we do not know', views(rows=[row()], instances={'i': 'shelving'}), []),
        ('instance that the service left out', views(rows=[row()], instances={}),
         [('owned by an unknown instance', 'warning')]),
        ('instance that the service left out, with its guest', views(RUNS_ON_OLD, rows=[row()], instances={}), []),
        ('left out, and a domain cannot be read', views(usage(unknown=(values.Unknown('domain x', 'y'),)), rows=[row()],
                                                        instances={}), [('view unknown', 'warning')]),
        ('instance forgotten', views(rows=[row()], instances={'i': 'forgotten'}),
         [('owned by an instance that is over', 'warning')]),
        ('instance forgotten, with its guest', views(RUNS_ON_OLD, rows=[row()], instances={'i': 'forgotten'}),
         [('owned by an instance that is over', 'warning')]),
        ('instance forgotten, being released', views(rows=[row(state='releasing')], instances={'i': 'forgotten'}),
         [('release pending', 'note')]),
        ('claimed for an instance that the service left out', views(rows=[row(state='claimed')], instances={}),
         [('owned by an unknown instance', 'warning')]),
        ('claimed, and the service does not answer', views(rows=[row(state='claimed')]), []),
        ('claimed for one in a state that we do not know', views(rows=[row(state='claimed')],
                                                                 instances={'i': 'building'}), []),
        ('claimed for one left out whose guest is defined', views(usage(domains=['i']), rows=[row(state='claimed')],
                                                                  instances={}), []),
        ('claimed for one left out, beside a domain that cannot be read', views(
            usage(unknown=(values.Unknown('domain x', 'y'),)), rows=[row(state='claimed')], instances={}),
         [('view unknown', 'warning')]),
        ('claimed by a migration for one left out', views(rows=[row(state='claimed')._replace(
            migration_uuid='m', role='incoming')], instances={}), []),
        ('claimed by a migration that the service forgot with its instance', views(rows=[row(state='claimed')._replace(
            migration_uuid='m', role='incoming')], instances={}, migrations={}),
         [('owned by an unknown instance', 'warning')]),
        names=('seen', 'expected'))

    def test_finds(self):
        self.assertEqual(self.expected, [(finding.kind, finding.severity) for finding in reconcile.compare(self.seen)])

    def test_names_the_owner_of_what_is_gone_or_unhealthy(self):
        for finding in reconcile.compare(self.seen):
            if finding.kind in (findings.GONE, findings.UNHEALTHY):
                self.assertEqual(finding.recorded_owner is not None, '; owner i' in finding.detail)

    def test_says_that_a_domain_misses_what_is_gone(self):
        for finding in reconcile.compare(self.seen):
            if finding.kind == findings.GONE:
                self.assertEqual(any(one.identifier is None for one in self.seen.usage.uses),
                                 'a domain names a device that is not there' in finding.detail)

    def test_a_repair_is_one_that_there_is(self):
        for finding in reconcile.compare(self.seen):
            self.assertIn(finding.repair, (None, *repair_plan.VERBS))

    def test_says_what_is_held_and_proposes(self):
        for finding in reconcile.compare(self.seen):
            self.assertTrue(finding.held and finding.proposal and finding.detail and str(finding))
            self.assertIn(finding.kind, findings.KINDS)

    def test_the_same_twice(self):
        self.assertEqual(reconcile.compare(self.seen), reconcile.compare(self.seen))


class TextTestCase(base.TestCase):
    """What an operator reads."""

    scenarios = base.table(
        ('two domains', views(usage(use('y'), use('x'))), ['vpmem/a: used by several: domains x, y name it']),
        ('two that are not the owner', views(usage(use('x'), use('y')), rows=[row()]),
         ['vpmem/a: used by another than its owner: recorded for i, named by x, y',
          'vpmem/a: used by several: domains x, y name it']),
        ('no row', views(usage(use('x'))),
         ['vpmem/a: used but unrecorded: domain x names it and no row does; foreign: no record of this host in its '
          'definition has it']),
        ('being released, and named', views(usage(use('i')), rows=[row(state='releasing')]),
         ['vpmem/a: release pending: being released by i, and a domain names it']),
        ('gone being released, and named', views(usage(use('i')), there=(), rows=[row(state='releasing')]),
         ['vpmem/a: gone from the host: the host does not have it; nothing proves what became of its bytes; owner i, '
          'being released', 'vpmem/a: release pending: being released by i, and a domain names it']),
        ('its guest runs without it', views(usage(use('i', live=False)), rows=[row()]),
         ['vpmem/a: recorded but unused: the guest of i runs without it, and the definition of its domain names it']),
        ('only a snapshot names it', views(usage(use('i', running=False, live=False)._replace(defined=False)),
                                           rows=[row()]),
         ['vpmem/a: recorded but unused: the domain of i does not name it, but a snapshot of it does']),
        ('a view', views(usage(unknown=['no answer'])), ['view unknown: domain: no answer']),
        ('a kind that nobody reads', views(there=(), rows=[row()], known=['mdev']),
         ['view unknown: vpmem: rows have devices of this kind, and none of the installed device kinds knows it']),
        names=('seen', 'expected'))

    def test_says(self):
        self.assertEqual(self.expected, [str(finding) for finding in reconcile.compare(self.seen)])


FAILED = 'being released by i; that failed at 2001-09-09T01:46:40+00:00, because hot'


class RetiredTestCase(base.TestCase):

    def test_a_device_that_an_operator_gave_up_is_no_finding_in_any_state(self):
        for there in ([UNHEALTHY], []):
            self.assertEqual([], reconcile.compare(views(there=there), retired={DEVICE.key}))
        self.assertEqual(['unhealthy'], [one.kind for one in reconcile.compare(views(there=[UNHEALTHY]))])

    def test_with_an_owner_it_is_one(self):
        found = reconcile.compare(views(there=[UNHEALTHY], rows=[row()]), retired={DEVICE.key})
        self.assertEqual(['unhealthy'], [one.kind for one in found])


class OneCauseTestCase(base.TestCase):
    """A device that does not come back is reported once, with the reason."""

    scenarios = base.table(
        ('it was not tried yet', UNHEALTHY, None, [
            ('unhealthy', 'hot; owner i, being released'), ('release pending', 'being released by i')]),
        ('its wipe fails because it is unhealthy', UNHEALTHY, 'hot', [('release pending', FAILED)]),
        ('its wipe fails for another reason', UNHEALTHY, 'an error of the device', [
            ('release pending', FAILED.replace('hot', 'an error of the device')),
            ('unhealthy', 'hot; owner i, being released')]),
        ('it was tried, and has gone since', None, 'hot', [
            ('gone from the host', 'the host does not have it; nothing proves what became of its bytes; owner i, '
             'being released'), ('release pending', FAILED)]),
        ('it is gone', None, None, [
            ('gone from the host', 'the host does not have it; nothing proves what became of its bytes; owner i, '
             'being released')]),
        names=('device', 'failed', 'expected'))

    def test_is_reported_once(self):
        failures = {} if self.failed is None else {
            DEVICE.key: Cause(1_000_000_000, self.failed, 'host', 1)}
        there = [self.device] if self.device is not None else ()
        found = reconcile.compare(views(there=there, rows=[row(state='releasing')]), failures)
        self.assertEqual(self.expected, [(one.kind, one.detail) for one in found])


class UnnamedTestCase(base.TestCase):
    """A device that nobody looks for: it may be there, so nobody is told to give it up."""

    def test_the_finding_says_that_no_option_names_it(self):
        for seen, severity in ((views(there=(), rows=[row()]), 'warning'),
                               (views(usage(use('i')), there=(), rows=[row()]), 'critical')):
            [found] = reconcile.compare(seen._replace(unnamed=frozenset({KEY})))
            self.assertEqual(('gone from the host', severity,
                              'no option names it, so nobody looks whether the host has it; owner i'),
                             (found.kind, found.severity, found.detail))
            self.assertNotIn('forget', found.proposal)


class FailedBeforeTestCase(base.TestCase):

    def compare(self, **seen):
        return reconcile.compare(views(there=[UNHEALTHY], **seen),
                                 {DEVICE.key: Cause(1_000_000_000, 'hot', 'host', 1)})

    def test_what_a_domain_names_is_to_be_removed_from_it_first(self):
        [found] = self.compare(usage=RUNS_ON_OLD, rows=[row(state='releasing')])
        self.assertEqual('remove it from the domain', found.proposal)
        [found] = self.compare(rows=[row(state='releasing')])
        self.assertIn('fix the device', found.proposal)

    def test_each_further_try_is_counted(self):
        [found] = reconcile.compare(views(there=[UNHEALTHY], rows=[row(state='releasing')]),
                                    {DEVICE.key: Cause(1_000_000_000, 'hot', 'host', 2)})
        self.assertEqual('being released by i; that failed 2 times since 2001-09-09T01:46:40+00:00, the last time '
                         'because hot', found.detail)

    def test_a_device_that_has_an_owner_again_is_unhealthy_whatever_its_release_failed_of(self):
        [found] = self.compare(usage=RUNS_ON_OLD, rows=[row()])
        self.assertEqual((findings.UNHEALTHY, 'hot; owner i'), (found.kind, found.detail))


class DetailsTestCase(base.TestCase):

    scenarios = base.table(
        ('made by us, which the host cannot know', [made()], [mdev()], False, []),
        ('another group', [made()], [mdev(iommu_group=8)], False,
         [('details differ', 'note', 'iommu_group is 8 and was recorded as 7', 'update details')]),
        ('another group, while it is being made', [made(state='claimed', iommu_group=None)], [mdev()], False, []),
        ('another group, being released', [made(state='releasing')], [mdev(iommu_group=8)], False,
         [('release pending', 'note', 'being released by i', 'retry release')]),
        ('another path', [hosts.row(pmem(), 'i', 'active')], [pmem(devpath='/dev/dax1.0')], False,
         [('details differ', 'note', 'devpath is /dev/dax1.0 and was recorded as /dev/dax0.0', 'update details')]),
        ('no path', [hosts.row(pmem(), 'i', 'active')], [pmem(devpath='')], False,
         [('details differ', 'note', 'devpath is empty and was recorded as /dev/dax0.0', 'update details')]),
        ('another path after a boot', [hosts.row(pmem(), 'i', 'active')], [pmem(devpath='/dev/dax1.0')], True, []),
        ('another label: the claim chose it', [hosts.row(pmem(), 'i', 'active')], [pmem(label='BIG')], False, []),
        ('another namespace, and a reason of its own', [hosts.row(pmem(), 'i', 'active')],
         [pmem(namespace_uuid=ANOTHER_UUID)._replace(unhealthy='disabled')], False,
         [('unhealthy', 'critical', f'another device has its name: namespace_uuid is {ANOTHER_UUID} and was recorded '
           f'as {NAMESPACE_UUID}; disabled; owner i', None)]),
        ('another namespace', [hosts.row(pmem(), 'i', 'active')], [pmem(namespace_uuid=ANOTHER_UUID)], False,
         [('unhealthy', 'critical', f'another device has its name: namespace_uuid is {ANOTHER_UUID} and was recorded '
           f'as {NAMESPACE_UUID}; owner i', None)]),
        ('another size, and a reason of its own', [hosts.row(pmem(), 'i', 'claimed')],
         [pmem(size_bytes=1 << 30)._replace(unhealthy='hot')], True,
         [('unhealthy', 'critical', 'another device has its name: size_bytes is 1073741824 and was recorded as '
           '4294967296; hot; owner i', None)]),
        ('another serial, which could not be read then or now', [hosts.row(UNREAD, 'i', 'releasing')],
         [UNREAD._replace(unhealthy='no answer')], False,
         [('unhealthy', 'warning', 'no answer; owner i, being released', None),
          ('release pending', 'note', 'being released by i', None)]),
        ('another type, being released', [made(state='releasing')], [mdev(type='nvidia-36')], False,
         [('unhealthy', 'critical', 'another device has its name: type is nvidia-36 and was recorded as nvidia-35; '
           'owner i, being released', None)]),
        ('another sort of details', [hosts.row(pmem(), 'i', 'active')],
         [pmem()._replace(details=mdev().details)], False,
         [('unhealthy', 'critical', 'another device has its name: type is devicetrack.MdevDetails and was recorded as '
           'devicetrack.VPMEMDetails; owner i', None)]),
        ('a row that cannot be read', [hosts.row(DEVICE, 'i', 'active')], [pmem()], False,
         [('details differ', 'note', 'this release cannot read the details that the row or the host has', None)]),
        names=('rows', 'there', 'boot_changed', 'expected'))

    def test_finds(self):
        found = reconcile.compare(views(there=self.there, rows=self.rows, boot_changed=self.boot_changed))
        self.assertEqual(self.expected, [(one.kind, one.severity, one.detail, one.repair) for one in found])

    def test_no_row_is_brought_up_to_date_while_documents_are_unreadable(self):
        found = reconcile.compare(views(usage(unknown=['x']), self.there, self.rows, boot_changed=self.boot_changed))
        self.assertEqual({None}, {one.repair for one in found})


class PartlyNamedTestCase(base.TestCase):

    def test_a_device_that_the_guest_of_its_owner_does_not_name_is_found_whatever_else_it_names(self):
        [found] = reconcile.compare(views(usage(use('i')), [pmem(), pmem('b')], [
            hosts.row(pmem(), 'i', 'active'), hosts.row(pmem('b'), 'i', 'active')]))
        self.assertEqual((findings.RECORDED_UNUSED, 'b'), (found.kind, found.device.identifier))


class UnidentifiedTestCase(base.TestCase):
    """A domain names a device by an address that leads nowhere, and its row's device is there."""

    def test_nobody_says_that_the_domain_does_not_name_it(self):
        [found] = reconcile.compare(views(usage(use('i', identifier=None)), rows=[row()]))
        self.assertEqual((findings.VIEW_UNKNOWN, 'a', 'i', None, 'the device'),
                         (found.kind, found.device.identifier, found.recorded_owner, found.repair, found.held))
        self.assertEqual('nobody knows whether the domain of i names it: it names /dev/dax0.0, which leads to no '
                         'device of kind vpmem', found.detail)

    def test_the_address_is_one_of_its_own_domain(self):
        elsewhere = use('x', identifier=None)._replace(address='a')
        [found] = reconcile.compare(views(usage(elsewhere, use('i', identifier=None)), rows=[row()]))
        self.assertIn('it names /dev/dax0.0,', found.detail)


class LeftOverTestCase(base.TestCase):

    MADE = mdev(origin='created')

    scenarios = base.table(
        ('nobody owns it', {}, ['nobody owns it; type nvidia-35, parent gpu, origin not recorded']),
        ('a guest left it', {'guests': [guest(recorded(MADE, beside=True))]},
         ['nobody owns it; type nvidia-35, parent gpu, origin created, recorded by instance i']),
        ('details that cannot be read', {'there': [mdev(assignable=False)._replace(details='?')]},
         ['nobody owns it; parent gpu, origin not recorded']),
        ('it may be used: a free device', {'there': [mdev()]}, []),
        ('it has a row', {'rows': [made()]}, []),
        ('a domain may name it', {'usage': usage(unknown=['x'])}, []),
        names=('changed', 'expected'))

    def test_finds(self):
        seen = views(**{'there': [mdev(assignable=False)], **self.changed})
        self.assertEqual(self.expected, [one.detail for one in reconcile.compare(seen)
                                         if (one.kind, one.severity, one.repair) == ('left over', 'note', None)])

    def test_what_a_domain_names_is_used(self):
        found = reconcile.compare(views(values.Usage((USED,), frozenset('i'), frozenset('i')),
                                        [mdev(assignable=False)]))
        self.assertEqual([findings.USED_UNRECORDED], [one.kind for one in found])


class ReleaseTestCase(base.TestCase):
    """Which devices an audit may go on giving back, and which it may begin to."""

    GONE, OFFLOADED = {'i': 'deleted'}, {'i': 'offloaded'}

    scenarios = base.table(
        ('being released', views(rows=[row(state='releasing')]), 'retry release'),
        ('a domain names it', views(RUNS_ON_OLD, rows=[row(state='releasing')]), None),
        ('another domain names it', views(usage(use('x')), rows=[row(state='releasing')]), None),
        ('documents are unreadable', views(usage(unknown=['x']), rows=[row(state='releasing')]), None),
        ('its kind could not be read', views(rows=[row(state='releasing')], known=['mdev']), None),
        ('it is gone', views(there=(), rows=[row(state='releasing')]), None),
        ('it was made by us, and is gone', views(there=(), rows=[made(state='releasing')]), 'retry release'),
        ('deleted', views(rows=[row()], instances=GONE), 'give back'),
        ('offloaded', views(rows=[row()], instances=OFFLOADED), 'give back'),
        ('deleted, claimed', views(rows=[row(state='claimed')], instances=GONE), 'give back'),
        ('offloaded, claimed: maybe it comes back', views(rows=[row(state='claimed')], instances=OFFLOADED), None),
        ('deleted, with a domain', views(usage(domains=['i']), rows=[row()], instances=GONE), None),
        ('deleted, its device is named by another', views(usage(use('x')), rows=[row()], instances=GONE), None),
        ('deleted, documents are unreadable', views(usage(unknown=['x']), rows=[row()], instances=GONE), None),
        ('deleted, its device is gone', views(there=(), rows=[row()], instances=GONE), None),
        names=('seen', 'repair'))

    def test_proposes(self):
        found = [one.repair for one in reconcile.compare(self.seen)
                 if one.kind in (findings.RELEASE_PENDING, findings.ABANDONED, findings.GONE)]
        self.assertEqual({self.repair}, set(found))


class ServiceTestCase(base.TestCase):

    def test_a_finding_has_the_services_word_on_the_recorded_owner(self):
        seen = views(usage(domains=['another']), there=(), rows=[row()])
        self.assertEqual([[None], ['here'], [None, None]], [
            [found.service for found in reconcile.compare(seen._replace(instances=words))]
            for words in (None, HERE, {})])


class OrderTestCase(base.TestCase):

    def test_the_worst_comes_first(self):
        others = [namespace(name) for name in 'bc']
        seen = views(usage(use('x', identifier='c')), there=[UNHEALTHY, *others],
                     rows=[hosts.row(others[0], 'i', 'releasing')])
        self.assertEqual(['critical', 'warning', 'note'], [found.severity for found in reconcile.compare(seen)])


class UnknownKindTestCase(base.TestCase):

    def test_rows_of_a_kind_that_is_not_installed_are_told_once(self):
        rows = [hosts.row(namespace(name), 'i')._replace(kind='tape') for name in ('a', 'b')]
        [found] = reconcile.compare(views(usage(domains=['i']), there=(), rows=rows))
        self.assertEqual((findings.VIEW_UNKNOWN, findings.NO_DEVICE, 0, True),
                         (found.kind, found.device, found.generation, 'tape' in found.detail))

    def test_a_kind_that_could_not_be_read_is_not_told_twice(self):
        rows = [hosts.row(namespace('a'), 'i')]
        found = reconcile.compare(views(usage(domains=['i']), there=(), rows=rows, known=(),
                                        unknown=(values.Unknown('vpmem', 'ndctl failed'),)))
        self.assertEqual([(findings.NO_DEVICE, 0)],
                         [(one.device, one.generation) for one in found if one.kind == findings.VIEW_UNKNOWN])
