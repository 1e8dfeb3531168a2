"""What guests record of their devices: which rows can be written from it, and which findings follow."""

from devicetrack import vocabulary
from devicetrack.engine import findings
from devicetrack.engine import guest_records
from devicetrack.engine import reconcile
from devicetrack.tests import base
from devicetrack.tests.unit.engine import hosts
from devicetrack.tests.unit.engine.hosts import namespace
from devicetrack.tests.unit.engine.views import DEVICE
from devicetrack.tests.unit.engine.views import guest
from devicetrack.tests.unit.engine.views import pmem
from devicetrack.tests.unit.engine.views import recorded
from devicetrack.tests.unit.engine.views import usage
from devicetrack.tests.unit.engine.views import use
from devicetrack.tests.unit.engine.views import views

# The longest texts for which a row has room.
COLUMNS = {'kind': 64, 'identifier': 255, 'resource_class': 255, 'parent': 255, 'claim_id': 64}


class WholeTestCase(base.TestCase):
    """Whether a guest's own record of a device is a row that can be written."""

    scenarios = base.table(
        *((f'{name} fills its column', {name: 'x' * most}, True) for name, most in COLUMNS.items()),
        *((f'{name} is too long', {name: 'x' * (most + 1)}, False) for name, most in COLUMNS.items()),
        ('details are too long', {'details': pmem(label='x' * 16_384).details}, False),
        ('no parent', {'parent': None}, True),
        ('the last position', {'position': vocabulary.MAX_AMOUNT - 1}, True),
        ('a position that no column has', {'position': vocabulary.MAX_AMOUNT}, False),
        ('a position before the first', {'position': -1}, False),
        ('no node', {'numa_node': None}, True),
        ('a node that nobody knows', {'numa_node': -1}, True),
        ('no number of a node', {'numa_node': -2}, False),
        ('a node that no column has', {'numa_node': vocabulary.MAX_AMOUNT}, False),
        ('a role that there is not', {'role': 'older'}, False),
        ('old for a migration', {'role': 'old', 'migration_uuid': 'M'}, True),
        ('old for none', {'role': 'old'}, False),
        ('details that nobody can read', {'details': 'x'}, False),
        names=('changed', 'whole'))

    def test_is_written_only_if_it_fits(self):
        self.assertEqual(self.whole, guest_records.is_whole(recorded(pmem(), **self.changed)))


class OrphanTestCase(base.TestCase):
    """A device that a domain names and no row has: whether it is one of ours."""

    OURS = guest(recorded(pmem()))

    scenarios = base.table(
        ('a guest of ours', [OURS], {}, 'orphaned', 'adopt'),
        ('no record', [], {}, 'foreign', None),
        ('a record without the device', [guest(recorded(namespace('b')))], {}, 'foreign', None),
        ('a record of another host', [guest(recorded(pmem()), host='other')], {}, 'under another UUID', None),
        ('a record of another instance', [guest(recorded(pmem()), instance='x')], {}, 'foreign', None),
        ('a record of another instance, of another host', [guest(recorded(pmem()), instance='x', host='other')], {},
         'foreign', None),
        ('recorded beside its own', [guest(recorded(pmem(), beside=True, role='old', migration='M'))], {}, 'foreign',
         None),
        ('recorded by two', [OURS, guest(recorded(pmem()), instance='x')], {}, 'orphaned', None),
        ('recorded by two, by one as left', [OURS, guest(recorded(pmem(), beside=True), instance='x')], {}, 'orphaned',
         'adopt'),
        ('recorded twice', [guest(recorded(pmem()), recorded(pmem(), 1))], {}, 'orphaned', None),
        ('another device by now', [guest(recorded(pmem(size_bytes=1)))], {}, 'orphaned', None),
        ('details that cannot be read', [guest(recorded(DEVICE))], {}, 'orphaned', None),
        ('incoming without a migration', [guest(recorded(pmem(), role='incoming'))], {}, 'orphaned', None),
        ('the host does not list it', [OURS], {'there': ()}, 'orphaned', 'adopt'),
        ('its kind could not be read', [OURS], {'known': ()}, 'orphaned', None),
        ('documents are unreadable', [OURS], {'usage': usage(use('i'), unknown=['x'])}, 'orphaned', None),
        names=('guests', 'changed', 'whose', 'repair'))

    def test_finds(self):
        seen = views(**{'usage': usage(use('i')), 'there': [pmem()], 'guests': self.guests, **self.changed})
        [found] = [one for one in reconcile.compare(seen) if one.kind == findings.USED_UNRECORDED]
        self.assertEqual((True, self.repair), (self.whose in found.detail, found.repair))
        self.assertEqual(self.repair is not None, found.proposal.startswith('write its row'))


class WrongOwnerTestCase(base.TestCase):
    """A device that a row has for another than the domain that names it, and whose definition records it."""

    scenarios = base.table(
        ('recorded as its own', [guest(recorded(pmem()))], ', whose definition records it as its own', 'adopt'),
        ('recorded twice', [guest(recorded(pmem()), recorded(pmem(), 1))], ', whose definition records it as its own',
         None),
        ('recorded by another', [guest(recorded(pmem()), instance='x')], '', None),
        ('recorded beside its own', [guest(recorded(pmem(), beside=True))], '', None),
        names=('guests', 'told', 'repair'))

    def test_finds(self):
        [found] = reconcile.compare(views(usage(use('i')), [pmem()], [hosts.row(pmem(), 'x', 'active')],
                                          guests=self.guests))
        self.assertEqual((findings.WRONG_OWNER, f'recorded for x, named by i{self.told}', self.repair),
                         (found.kind, found.detail, found.repair))
