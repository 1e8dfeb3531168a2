"""Which device a device is: by the fields that its kind declares."""

from __future__ import annotations

from devicetrack.engine import reconcile
from devicetrack.engine import repair_plan
from devicetrack.objects import details
from devicetrack.objects import identity
from devicetrack.objects import VPMEMDetails
from devicetrack.tests import base
from devicetrack.tests.unit.engine import hosts
from devicetrack.tests.unit.engine.views import mdev
from devicetrack.tests.unit.engine.views import pmem
from devicetrack.tests.unit.engine.views import views
from devicetrack.tests.unit.objects import samples
from devicetrack.tests.unit.virt import disks

PLAIN = [details.to_text(disks.PlainDetails(serial=serial)) for serial in ('A', 'B', None)]


def disk(**changed: object) -> str:
    made = samples.pci_details()
    for name, value in changed.items():
        setattr(made, name, value)
    return details.to_text(made)


class SameDeviceTestCase(base.TestCase):

    scenarios = base.table(
        ('the same text', disks.text('A'), disks.text('A'), True),
        ('another serial', disks.text('A'), disks.text('B'), False),
        ('new firmware', disks.text('A'), disks.text('A', '2'), True),
        ('a serial that cannot be read now', disks.text('A'), disks.text(None), False),
        ('a serial that could not be read then', disks.text(None), disks.text('A'), False),
        ('a serial that never could be read', disks.text(None), disks.text(None), False),
        ('a class that declares nothing', PLAIN[0], PLAIN[0], True),
        ('a class that declares nothing, any difference', PLAIN[0], PLAIN[1], False),
        ('a class that declares nothing, None is a value', PLAIN[2], PLAIN[2], True),
        ('a name that the host tells no more', disk(nvm_subsystem='nqn.a'), disk(nvm_subsystem=''), False),
        ('a name that an earlier release did not record', disk(nvm_subsystem=''), disk(nvm_subsystem='nqn.a'), True),
        ('another path', pmem().details, pmem(devpath='/dev/dax9.0').details, True),
        ('another label', pmem().details, pmem(label='BIG').details, True),
        ('a text that nobody can read', 'x', 'x', True),
        ('two texts that nobody can read', 'x', 'y', False),
        ('a text that nobody can read, made by us, which the host cannot know', '{"x":1,"origin":"created"}',
         '{"x":1,"origin":"adopted"}', True),
        names=('recorded', 'found', 'same'))

    def test_by_what_its_class_declares(self) -> None:
        self.assertEqual(self.same, identity.same_device(self.recorded, self.found))


def function(serial: str, no_serial: bool = False, card: str = '') -> str:
    made = samples.pci_details()
    if card:
        made.serial, made.parent_card, made.parent_serial, made.vf_number = '', card, serial, 3
    else:
        made.serial = serial
    made.no_serial = no_serial
    return details.to_text(made)


class SerialNumberTestCase(base.TestCase):
    """A card of which one side could not read whether it has a serial number."""

    scenarios = base.table(
        ('the same', ('S1',), ('S1',), True, True, ()),
        ('another one', ('S1',), ('S2',), False, False, ()),
        ('another card without one', ('S1',), ('', True), False, False, ()),
        ('one that had none', ('', True), ('S1',), False, False, ()),
        ('one that has none', ('', True), ('', True), True, True, ()),
        ('read later', ('',), ('S1',), True, False, ('serial',)),
        ('read later, has none', ('',), ('', True), True, True, ()),
        ('not read now', ('S1',), ('',), False, False, ()),
        ('not read now, had none', ('', True), ('',), True, True, ()),
        ('never read', ('',), ('',), True, True, ()),
        names=('recorded', 'found', 'same', 'certain', 'learned'))

    def test_of_the_card_or_of_that_of_a_virtual_function(self) -> None:
        for card in ('', '1b36:0010 1af4:1100 0'):
            texts = function(*self.recorded, card=card), function(*self.found, card=card)
            compared = identity.compare(*texts)
            assert compared is not None
            learned = tuple(f'parent_{name}' if card else name for name in self.learned)
            self.assertEqual((self.same, self.certain, learned, self.certain),
                             (compared.is_same, compared.is_certain, compared.learned, identity.same_device(*texts)))


class KeptTestCase(base.TestCase):
    """What a row says of its device after the device was made ready."""

    scenarios = base.table(
        ('the same', disks.text('A'), disks.text('A'), disks.text('A')),
        ('new firmware', disks.text('A'), disks.text('A', '2'), disks.text('A', '2')),
        ('another serial', disks.text('A'), disks.text('B', '2'), disks.text('A', '2')),
        ('a serial that cannot be read now', disks.text('A'), disks.text(None, '2'), disks.text('A', '2')),
        ('a serial that could not be read then', disks.text(None), disks.text('A'), disks.text('A')),
        ('a serial number that nobody could read then', function(''), function('S1'), function('S1')),
        ('a serial number that cannot be read now', function('S1'), function(''), function('S1')),
        ('a subsystem that the host does not tell now', disk(nvm_subsystem='nqn.a'), disk(device_type='x'),
         disk(nvm_subsystem='nqn.a', device_type='x')),
        ('a subsystem that an earlier release did not record', disk(), disk(nvm_subsystem='nqn.a'),
         disk(nvm_subsystem='nqn.a')),
        ('a class that declares nothing', PLAIN[0], PLAIN[1], PLAIN[1]),
        ('a parent by its name and then by its address', mdev(parent='pci_0000_3d_00_4').details,
         mdev(parent='0000:3d:00.4').details, mdev(parent='0000:3d:00.4').details),
        ('another parent', mdev().details, mdev(parent='other', iommu_group=9).details, mdev(iommu_group=9).details),
        ('a text that nobody can read', 'x', 'y', 'y'),
        names=('recorded', 'made', 'kept'))

    def test_a_view_replaces_no_recorded_identity(self) -> None:
        self.assertEqual(self.kept, identity.kept(self.recorded, self.made))


class UntoldTestCase(base.TestCase):
    """The name of an NVM subsystem, which the host tells or does not."""

    NAMED = disk(nvm_subsystem='nqn.a')

    scenarios = base.table(
        ('the host tells none now', NAMED, disk(), None),
        ('the host tells none now, and something else changed', NAMED, disk(address='0000:02:00.0'),
         disk(nvm_subsystem='nqn.a', address='0000:02:00.0')),
        ('an earlier release recorded none', disk(), NAMED, NAMED),
        ('another one', NAMED, disk(nvm_subsystem='nqn.b'), None),
        names=('recorded', 'found', 'written'))

    def test_no_repair_writes_an_empty_name_over_a_recorded_one(self) -> None:
        device = hosts.namespace('0000:01:00.0')._replace(details=self.found)
        seen = views(there=[device], rows=[hosts.row(device._replace(details=self.recorded), 'i', 'active')])
        plan = repair_plan.plan(reconcile.compare(seen), seen)
        self.assertEqual([] if self.written is None else [('update details', self.written)],
                         [(one.verb, one.after.details) for one in plan if one.after is not None])


class ParentTestCase(base.TestCase):
    """A row that was once written while libvirt did not know the parent has the parent's address for its name."""

    scenarios = base.table(
        ('a PCI device', '0000:3d:00.4', 'pci_0000_3d_00_4', True),
        ('a virtual device', 'mtty', 'mtty_mtty', True),
        ('another PCI device', '0000:3d:00.4', 'pci_0000_3d_00_5', False),
        ('another virtual device', 'mtty', 'mdpy_mdpy', False),
        names=('one', 'other', 'same'))

    def test_its_device_is_the_same(self) -> None:
        texts = mdev(parent=self.one).details, mdev(parent=self.other).details
        self.assertEqual([self.same] * 2, [identity.same_device(*texts), identity.same_device(*reversed(texts))])


class UnreadTestCase(base.TestCase):
    """What of a device's identity the host could not read, though it may be able to another time."""

    def test_a_field_without_a_value(self) -> None:
        self.assertEqual([(), ('serial',)], [
            identity.unread(disks.SlotDetails(serial=serial, firmware='1')) for serial in ('A', None)])

    def test_what_cannot_be_read_now_is_no_other_card(self) -> None:
        compared = identity.compare(function('S1'), function(''))
        self.assertEqual(((), ('serial',)), (tuple(compared.itself), compared.unread) if compared else None)

    def test_only_fields_of_the_identity_that_a_class_declares_and_that_may_have_none(self) -> None:
        self.assertEqual([('serial',), (), ()], [
            identity.may_be_unread(cls) for cls in (disks.SlotDetails, disks.PlainDetails, VPMEMDetails)])
        self.assertEqual((), identity.unread(disks.PlainDetails(serial=None)))


class OtherPackageTestCase(base.TestCase):
    """A kind of another package is protected as our own are: by its own identity."""

    def findings(self, recorded: str, found: str, state: str = 'active') -> list[tuple[str, str, str | None]]:
        device = pmem()._replace(details=recorded)
        self.seen = views(there=[device._replace(details=found)], rows=[hosts.row(device, 'i', state)])
        return [(one.kind, one.severity, one.repair) for one in reconcile.compare(self.seen)]

    def test_a_disk_that_was_exchanged_behind_its_address_is_not_written_into_the_row(self) -> None:
        self.assertEqual([('unhealthy', 'critical', None)], self.findings(disks.text('A'), disks.text('B')))
        self.assertEqual([], repair_plan.plan(reconcile.compare(self.seen), self.seen))

    def test_nor_is_it_given_back_which_would_reset_it(self) -> None:
        found = self.findings(disks.text('A'), disks.text('B'), 'releasing')
        self.assertEqual([('unhealthy', 'critical', None)], found)

    def test_a_serial_that_cannot_be_read_now_is_kept_in_the_row(self) -> None:
        self.assertEqual([('unhealthy', 'warning', None)], self.findings(disks.text('A'), disks.text(None)))
        self.assertIn('serial cannot be read now', reconcile.compare(self.seen)[0].detail)

    def test_a_serial_that_could_not_be_read_then_may_be_the_one_that_is_read_now(self) -> None:
        self.assertEqual([('unhealthy', 'warning', None)], self.findings(disks.text(None), disks.text('A')))

    def test_a_serial_number_that_nobody_could_read_then_is_written_into_the_row(self) -> None:
        self.assertEqual([('details differ', 'note', 'update details')], self.findings(function(''), function('S1')))
        repair, = repair_plan.plan(reconcile.compare(self.seen), self.seen)
        assert repair.after is not None
        self.assertEqual(function('S1'), repair.after.details)
        self.assertEqual([('unhealthy', 'critical', None)], self.findings(function('', True), function('S1')))

    def test_nor_does_it_keep_the_device_from_going_back(self) -> None:
        self.assertEqual(self.findings(function('S1'), function('S1'), 'releasing'),
                         self.findings(function(''), function('S1'), 'releasing'))

    def test_what_an_unhealthy_device_shows_is_not_written_into_the_row(self) -> None:
        device = pmem()._replace(details=disks.text('A'))
        seen = views(there=[device._replace(details=disks.text('A', '2'), unhealthy='hot')],
                     rows=[hosts.row(device, 'i')])
        self.assertEqual([('unhealthy', 'warning', None)],
                         [(one.kind, one.severity, one.repair) for one in reconcile.compare(seen)])

    def test_what_is_not_identity_may_change(self) -> None:
        self.assertEqual([('details differ', 'note', 'update details')],
                         self.findings(disks.text('A'), disks.text('A', '2')))
