"""Which findings are repaired, and what no plan does whatever the views say."""

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from devicetrack import vocabulary
from devicetrack.engine import findings
from devicetrack.engine import migrations
from devicetrack.engine import reconcile
from devicetrack.engine import repair_plan
from devicetrack.objects import details
from devicetrack.objects import identity
from devicetrack.objects import values
from devicetrack.tests import base
from devicetrack.tests.unit.engine import hosts
from devicetrack.tests.unit.engine.views import guest
from devicetrack.tests.unit.engine.views import made
from devicetrack.tests.unit.engine.views import mdev
from devicetrack.tests.unit.engine.views import pmem
from devicetrack.tests.unit.engine.views import recorded
from devicetrack.tests.unit.engine.views import usage
from devicetrack.tests.unit.engine.views import use
from devicetrack.tests.unit.engine.views import views

DELETED = {'i': 'deleted'}
LEFT = {'beside': True, 'role': 'old', 'migration': 'M'}
OURS = guest(recorded(pmem('a')), recorded(pmem('b'), **LEFT))
LOST = views(usage(use('i')), [pmem('a'), pmem('b')], guests=[OURS])


def row(device, state='active', owner='i'):
    return hosts.row(device, owner, state)


def planned(seen):
    return repair_plan.plan(reconcile.compare(seen), seen)


class PlanTestCase(base.TestCase):

    scenarios = base.table(
        ('nothing found', views(), []),
        ('nothing to repair', views(there=(), rows=[row(pmem())]), []),
        ('rows were lost', LOST, [('adopt', 'a', None, 'active'), ('adopt', 'b', None, 'active')]),
        ('a row was lost, and the one beside it was not', LOST._replace(records=(row(pmem('b')),)),
         [('adopt', 'a', None, 'active')]),
        ('the row was not lost, the one beside it may have been given back', LOST._replace(records=(row(pmem('a')),)),
         []),
        ('the one beside it is used by another guest', LOST._replace(usage=usage(use('i'), use('x', identifier='b'))),
         [('adopt', 'a', None, 'active')]),
        ('the one beside it is recorded by another guest', LOST._replace(guests=(
            OURS, guest(recorded(pmem('b')), instance='x'))), [('adopt', 'a', None, 'active')]),
        ('the one beside it is another device', LOST._replace(inventory=hosts.inventory(
            pmem('a'), pmem('b', size_bytes=1))), [('adopt', 'a', None, 'active')]),
        ('the one beside it is gone', LOST._replace(inventory=hosts.inventory(pmem('a'))),
         [('adopt', 'a', None, 'active')]),
        ('the one beside it was not left', LOST._replace(guests=(guest(
            recorded(pmem('a')), recorded(pmem('b'), beside=True)),)), [('adopt', 'a', None, 'active')]),
        ('a guest was about to arrive', LOST._replace(guests=(guest(
            recorded(pmem('a'), role='incoming', migration='M')),)), [('adopt', 'a', None, 'claimed')]),
        ('two domains name it', LOST._replace(usage=usage(use('i'), use('x'))), []),
        ('details changed', views(rows=[made()], there=[mdev(iommu_group=8)]),
         [('update details', 'm', 'active', 'active')]),
        ('being released', views(rows=[row(pmem(), 'releasing')], there=[pmem()]),
         [('retry release', 'a', 'releasing', None)]),
        ('deleted', views(rows=[row(pmem())], there=[pmem()], instances=DELETED), [('give back', 'a', 'active', None)]),
        ('deleted, with other details', views(rows=[row(pmem())], there=[pmem(devpath='/dev/dax9.0')],
                                              instances=DELETED), [('give back', 'a', 'active', None)]),
        ('recorded with other details, and used by whoever records it', views(
            usage(use('x')), [pmem(devpath='/dev/dax9.0')], [row(pmem())],
            guests=[guest(recorded(pmem()), instance='x')]),
         [('adopt', 'a', 'active', 'active')]),
        ('everything at once', views(
            usage(use('x', identifier='d')), [pmem('d'), pmem('c', devpath='/dev/dax9.0'), pmem('b'), pmem('a')],
            [row(pmem('a')), row(pmem('b'), 'releasing'), row(pmem('c'), owner='j')], DELETED,
            guests=[guest(recorded(pmem('d')), instance='x')]),
         [('adopt', 'd', None, 'active'), ('update details', 'c', 'active', 'active'),
          ('retry release', 'b', 'releasing', None), ('give back', 'a', 'active', None)]),
        names=('seen', 'expected'))

    def test_plans(self):
        self.assertEqual(self.expected, [
            (one.verb, one.device.identifier, one.before and one.before.state, one.after and one.after.state)
            for one in planned(self.seen)])

    def test_the_order_of_what_was_read_does_not_matter(self):
        seen = self.seen._replace(
            records=self.seen.records[::-1], guests=self.seen.guests[::-1],
            usage=self.seen.usage._replace(uses=self.seen.usage.uses[::-1]),
            inventory=self.seen.inventory._replace(devices=self.seen.inventory.devices[::-1]))
        self.assertEqual(planned(self.seen), repair_plan.plan(reconcile.compare(self.seen)[::-1], seen))

    def test_is_a_line_for_a_person(self):
        for one in planned(self.seen):
            self.assertRegex(str(one), f'^{one.verb} (vpmem|mdev)/. of instance .: before: .+; after: .+ \\(.+\\)$')
            self.assertTrue(str(one).isprintable())


class StaleFindingsTestCase(base.TestCase):
    """A plan is made by what the views say now."""

    SEEN = views(rows=[row(pmem())], there=[pmem()], instances=DELETED)

    scenarios = base.table(
        ('as it was', SEEN, True),
        ('the row was written', SEEN._replace(records=(SEEN.records[0]._replace(generation=2),)), False),
        ('the row is gone', SEEN._replace(records=()), False),
        ('a guest came', SEEN._replace(usage=usage(use('i'))), False),
        ('another guest came', SEEN._replace(usage=usage(use('x'))), False),
        ('the hypervisor does not say', SEEN._replace(usage=usage(unknown=['x'])), False),
        ('the host does not say', SEEN._replace(inventory=hosts.inventory(known=())), False),
        ('the service does not say', SEEN._replace(instances=None), False),
        ('the instance is here', SEEN._replace(instances={'i': 'here'}), False),
        names=('now', 'repaired'))

    def test_is_planned(self):
        self.assertEqual(self.repaired, bool(repair_plan.plan(reconcile.compare(self.SEEN), self.now)))


class RowTestCase(base.TestCase):

    def test_an_adopted_row_is_what_the_guest_records(self):
        device = recorded(pmem(), 3, role='current', migration='M', claim_id='7')
        [one] = planned(LOST._replace(guests=(guest(device),)))
        self.assertEqual(values.Record(
            'host', 'vpmem', 'a', 'i', 'M', 'current', 'active', 3, '7', 1, 'provider',
            device.resource_class, device.parent, device.numa_node, device.details, 0), one.after)

    def test_once_adopted_there_is_nothing_to_repair(self):
        records = tuple(one.after for one in planned(LOST))
        self.assertEqual([], reconcile.compare(LOST._replace(records=records)))

    def test_updated_details_keep_what_only_the_row_knows(self):
        [one] = planned(views(rows=[made()], there=[mdev(iommu_group=8)]))
        found = details.from_text(one.after.details)
        self.assertEqual((8, 'created'), (found.iommu_group, found.origin))
        self.assertEqual(one.before._replace(details=one.after.details, generation=2), one.after)
        [one] = planned(views(rows=[row(pmem())], there=[pmem(label='BIG', devpath='/dev/dax1.0')]))
        found = details.from_text(one.after.details)
        self.assertEqual(('4GB', '/dev/dax1.0'), (found.label, found.devpath))

    def test_once_updated_there_is_nothing_to_repair(self):
        seen = views(rows=[made()], there=[mdev(iommu_group=8)])
        self.assertEqual([], reconcile.compare(seen._replace(records=tuple(one.after for one in planned(seen)))))


class LineTestCase(base.TestCase):

    def test_shows_what_changes(self):
        [one] = planned(views(rows=[made()], there=[mdev(iommu_group=8)]))
        self.assertEqual(
            f'update details mdev/m of instance i: before: generation=1 details={one.before.details}; '
            f'after: generation=2 details={one.after.details} '
            '(iommu_group is 8 and was recorded as 7)', str(one))

    def test_shows_all_of_a_row_that_comes_or_goes(self):
        [one] = planned(views(rows=[row(pmem())], there=[pmem()], instances=DELETED))
        self.assertEqual(
            'give back vpmem/a of instance i: before: instance_uuid=i state=active role=current migration_uuid=- '
            f'position=0 claim_id=claim generation=1 provider_uuid={one.before.provider_uuid} '
            f'resource_class=CUSTOM_PMEM_NAMESPACE_4GB parent=region0 numa_node=0 details={one.before.details} '
            'was_realized=True; after: no row (instance i is deleted, and no domain names it)', str(one))

    def test_what_a_definition_says_makes_no_line_of_its_own(self):
        device = recorded(pmem(), claim_id='1\ngive back vpmem b')
        [one] = planned(LOST._replace(guests=(guest(device),)))
        self.assertIn(r"claim_id='1\ngive back vpmem b' generation=1", str(one))
        self.assertTrue(str(one).isprintable())


# -- whatever the views say -------------------------------------------------------------------------------------------

NAMES, INSTANCES = ('a', 'b', 'm', 'n'), ('i', 'j', 'x')
ROLES = st.sampled_from([('current', None), ('current', 'M'), ('old', 'M'), ('incoming', 'M')])


def device_named(draw, name):
    if name in 'mn':
        return mdev(name, assignable=draw(st.booleans()), iommu_group=draw(st.sampled_from([7, 8])),
                    type=draw(st.sampled_from(['nvidia-35', 'nvidia-35', 'nvidia-36'])))
    return pmem(name, devpath=draw(st.sampled_from(['/dev/dax0.0', '/dev/dax1.0'])),
                size_bytes=draw(st.sampled_from([4 << 30, 4 << 30, 1 << 30])))


@st.composite
def any_views(draw):
    """A small host whose views say anything of one another."""
    records, guests, uses = [], [], []
    for name in draw(st.sets(st.sampled_from(NAMES))):
        role, migration = draw(ROLES)
        device = made(name) if name in 'mn' and draw(st.booleans()) else row(device_named(draw, name))
        records.append(device._replace(
            instance_uuid=draw(st.sampled_from(INSTANCES)), role=role, migration_uuid=migration, host_uuid='host',
            state=draw(st.sampled_from(vocabulary.STATES))))
    for instance in draw(st.sets(st.sampled_from(INSTANCES))):
        devices = []
        for name in draw(st.sets(st.sampled_from(NAMES))):
            role, migration = draw(ROLES)
            devices.append(recorded(device_named(draw, name), beside=draw(st.booleans()), role=role,
                                    migration=migration))
        guests.append(guest(*devices, instance=instance, host=draw(st.sampled_from(['host', 'host', 'other']))))
    for instance, name in draw(st.sets(st.tuples(st.sampled_from(INSTANCES), st.sampled_from(NAMES)), max_size=5)):
        kind = 'mdev' if name in 'mn' else 'vpmem'
        uses.append(values.Use(kind, name, name, instance, draw(st.booleans()), True, True))
    domains = {one.domain_uuid for one in uses} | draw(st.sets(st.sampled_from(INSTANCES)))
    there = [device_named(draw, name) for name in draw(st.sets(st.sampled_from(NAMES)))]
    status = draw(st.sampled_from(['running', 'completed', 'error', 'odd']))
    migration = migrations.Move('M', 1, status, 'i', ('compute-7', None),
                                (draw(st.sampled_from(['compute-7', 'c8'])), None))
    return views(
        usage(*uses, domains=domains, unknown=draw(st.sampled_from([(), (), (), ('x',)]))), there, records,
        draw(st.none() | st.dictionaries(st.sampled_from(INSTANCES), st.sampled_from(
            ['here', 'elsewhere', 'deleted', 'offloaded', 'odd']))),
        draw(st.sampled_from([('vpmem', 'mdev'), ('vpmem', 'mdev'), ('vpmem',)])),
        migrations=draw(st.sampled_from([None, {}, {'M': migration}])), boot_changed=draw(st.booleans()), guests=guests)


class AnyViewsTestCase(base.TestCase):

    def check(self, earlier, seen):
        """What holds of every plan, told from the views alone."""
        named = {(one.kind, one.identifier): {use.domain_uuid for use in seen.usage.uses
                                              if (use.kind, use.identifier) == (one.kind, one.identifier)}
                 for one in seen.usage.uses}
        rows = {record.key: record for record in seen.records}
        words = seen.instances or {}
        plan = repair_plan.plan(reconcile.compare(earlier), seen)
        self.assertEqual(len({one.device for one in plan}), len(plan))
        if seen.usage.unknown:
            self.assertEqual([], plan)
        for one in plan:
            self.assertIn(one.device.kind, seen.inventory.known_kinds)
            self.assertEqual(rows.get(one.device), one.before)
            if one.verb == findings.ADOPT:
                # A row for somebody else is of an older store: none of his domains names it.
                self.assertNotEqual(one.instance_uuid, one.before.instance_uuid if one.before is not None else None)
                self.assertLessEqual(named.get(one.device, set()), {one.instance_uuid})
                self.assertIn(one.instance_uuid, [record.instance_uuid for record in seen.guests
                                                  if record.host_uuid == 'host'])
            elif one.verb == findings.UPDATE_DETAILS:
                assert one.before is not None and one.after is not None
                self.assertEqual(one.before.changed(details=one.after.details), one.after)
                self.assertTrue(identity.same_device(one.before.details, one.after.details))
            else:
                self.assertIsNone(one.after)
                self.assertNotIn(one.device, named)
            if one.verb == findings.GIVE_BACK:
                word = words[one.instance_uuid]
                self.assertIn(word, ('deleted', 'offloaded', 'elsewhere'))
                if word == 'elsewhere':         # and no migration took it there: the service said which there are
                    self.assertIsNotNone(seen.migrations)
                self.assertNotIn(one.instance_uuid, seen.usage.domains)

    @settings(max_examples=300, deadline=None)
    @given(any_views())
    def test_nothing_is_taken_from_a_guest_nor_concluded_from_what_is_unknown(self, seen):
        self.check(seen, seen)

    @settings(max_examples=100, deadline=None)
    @given(any_views(), any_views())
    def test_nor_when_the_findings_are_of_other_views(self, earlier, seen):
        self.check(earlier, seen)

    @settings(max_examples=100, deadline=None)
    @given(any_views())
    def test_every_repair_that_a_finding_names_can_be_planned(self, seen):
        named = [(found.repair, found.device) for found in reconcile.compare(seen) if found.repair is not None]
        self.assertLessEqual(set(named), {(one.verb, one.device) for one in planned(seen)})
