"""Tests of a kind's report about its devices: identity, health, groups, NUMA nodes and details."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import contextlib
import functools
from importlib import metadata

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import identity
from devicetrack.objects.values import InventoryDevice
from devicetrack.testing import fixtures as our_fixtures
from devicetrack.testing.kinds import answers
from devicetrack.testing.kinds import base
from devicetrack.testing.kinds import watch
from devicetrack.virt import device_kinds
from devicetrack.virt.libvirt.kinds import installed

# A device vanishes at about so many of the moments at which the kind looks at the host: each time on a host of its own.
_LOOKS = 8


class StockContract(base.KindTestCase):

    def test_an_entry_point_leads_to_the_kind(self) -> None:
        found = [one.load() for one in metadata.entry_points(group=device_kinds.NAMESPACE)
                 if one.name == self.world.kind_class.name]
        self.assertEqual([self.world.kind_class], found)

    def test_a_kind_without_its_options_offers_nothing(self) -> None:
        kind = self.make(self.useFixture(our_fixtures.Configuration()).conf)
        self.assertEqual((False, frozenset()), (kind.configured, kind.resource_classes))

    def test_the_stock_has_the_devices_of_the_host(self) -> None:
        self.assertTrue(self.kind.configured)
        self.assertGreaterEqual(len(self.world.devices), 2, 'the contract needs two devices')
        found = self.stock()
        self.assertEqual(set(), set(self.world.devices) - set(found))
        for name in self.world.devices:
            self.assertEqual((None, True), (found[name].unhealthy, found[name].assignable), name)

    def test_every_device_has_a_place_of_its_own_on_the_host(self) -> None:
        nodes = answers.nodes(self.kind, self.stock().values())
        self.assertEqual(len(nodes), len(set(nodes.values())))

    def test_a_device_keeps_its_identifier_when_the_stock_is_read_again(self) -> None:
        before = self.stock()
        self.assertEqual(before, self.stock())
        self.assertEqual(before, self.stock(self.made()), 'the service started again')

    def test_a_device_is_the_same_after_a_boot(self) -> None:
        before = self.stock()
        self.world.reboot()
        after = self.stock(self.made())
        self.assertEqual(set(before), set(after))
        for name in self.world.devices:
            self.assertTrue(identity.same_device(before[name].details, after[name].details), name)

    def test_another_device_of_the_name_has_another_identity(self) -> None:
        name = self.world.devices[0]
        before = self.stock()[name].details
        self.world.replace(name)
        device = self.stock(self.made()).get(name)
        if device is not None:
            self.assertFalse(identity.same_device(before, device.details))

    def test_a_device_that_went_away_is_in_stock_no_more(self) -> None:
        first, second = self.world.devices[:2]
        self.world.remove(first)
        found = self.stock()
        self.assertNotIn(first, found)
        self.assertIn(second, found)

    def test_a_device_that_vanishes_while_the_stock_is_read_takes_no_other_with_it(self) -> None:
        """Each time the kind looks at the host, the device may just have gone: it is left out, or all are unknown."""
        with watch.watching() as seen:
            self.stock()
        if not seen:
            self.skipTest('the kind opens and lists no files')
        for at in range(1, len(seen) + 1, max(1, len(seen) // _LOOKS)):
            self.world = self.useFixture(self.world_class())
            kind = self.made()
            first, second = self.world.devices[:2]
            failed: list[Exception] = []

            def vanish(number: int, at: int = at, first: str = first, failed: list[Exception] = failed) -> None:
                if number == at:
                    try:
                        self.world.remove(first)
                    except Exception as error:  # the kind must not get it
                        failed.append(error)

            found: Mapping[str, InventoryDevice] | None = None
            with watch.watching(vanish) as seen_now:
                try:
                    found = self.stock(kind)
                except exception.DeviceKindFailed:
                    raise
                except exception.DriverError:
                    pass                        # all are unknown until the next look
            if failed:
                raise failed[0]
            if found is not None:
                self.assertIn(second, found, f'{first} vanished before {seen_now[at - 1][1]}, and {second} is missing')
            self.assertNotIn(first, self.stock(kind))

    def test_a_host_that_cannot_be_read_is_unknown_and_not_empty(self) -> None:
        self.world.unreadable()
        self.assertRaises(exception.DriverError, self.made().stock)

    def test_a_device_whose_identity_cannot_be_read_is_for_nobody(self) -> None:
        wanted = self.realized()
        if self.kind.keeps_bytes:
            self.world.write(wanted.identifier)
        self.world.hide_identity(wanted.identifier)
        try:
            device = self.stock(self.made()).get(wanted.identifier)
        except exception.DeviceKindFailed:
            raise
        except exception.DriverError:
            device = None                   # the kind knows no device at all then
        if device is not None:
            self.assertTrue(device.unhealthy, 'nobody knows which device it is')
        self._check_is_unknown(exception.RealizeFailed, self.made().realize, wanted)
        self._check_is_unknown(exception.UnclaimFailed, self.unclaim, wanted)
        if self.kind.keeps_bytes:
            self.assertFalse(self.world.is_clean(wanted.identifier))

    def _check_is_unknown(self, failed: type[exception.DriverError], call: Callable[[DeviceAssignment], object],
                         wanted: DeviceAssignment) -> None:
        """Check that a method fails, and does not say that the device is gone: it may be the recorded one.

        :param failed: the method's own error. The driver also makes it of an error about the host
        """
        try:
            self.assertRaises((failed, exception.CommandFailed, exception.InvalidDocument,
                               exception.HypervisorUnreachable), call, wanted)
        except exception.DeviceGone as error:
            self.fail(f'nobody knows which device it is, and DeviceGone says that it is certainly not the one: {error}')

    def test_preparing_the_host_takes_nothing_from_anybody(self) -> None:
        self.prepare({}, True)
        wanted = self.realized()
        if self.kind.keeps_bytes:
            self.world.write(wanted.identifier)
        before, recorded = self.stock(), {wanted.identifier: details.to_text(wanted.details)}
        for is_locked in (True, True, False):
            self.prepare(recorded, is_locked)
            self.assertEqual(before, self.stock())
        if self.kind.keeps_bytes:
            self.assertFalse(self.world.is_clean(wanted.identifier), 'the bytes of an owner are lost')

    def prepare(self, recorded: Mapping[str, str], is_locked: bool) -> None:
        """Let the kind prepare the host as a service does, which has the locks of all devices or of none."""
        installed.call(self.kind, 'prepare', recorded, lambda _identifier: contextlib.nullcontext(is_locked))

    def test_details_survive_the_store(self) -> None:
        for device in self.stock().values():
            found = details.from_text(device.details)
            self.assertIsInstance(found, details.DeviceDetails)
            self.assertEqual(device.details, details.to_text(found))
            self.assertEqual(found, details.from_text(details.to_text(found)))

    def test_details_name_their_identity(self) -> None:
        for name in self.world.devices:
            found = type(details.from_text(self.stock()[name].details))
            self.assertEqual(set(), {*(found.IDENTITY or ()), *found.OF_THE_ROW} - set(found.fields))
            self.assertEqual(set(), set(found.IDENTITY or ()) & set(found.OF_THE_ROW))

    def test_the_facts_of_devices_are_well_formed(self) -> None:
        for name, device in self.stock().items():
            self.assertIsNot(bool, type(device.numa_node), name)
            self.assertEqual(sorted(set(device.features)), list(device.features), f'the features of {name}')
            tokens = [token for token, _mode in device.exclusions]
            self.assertEqual(sorted(set(tokens)), sorted(tokens), f'the exclusions of {name}')
            self.assertIn(device.migration_type, (None, details.from_text(device.details).migration_type), name)

    def test_a_parent_makes_one_type_of_a_resource_class(self) -> None:
        """Otherwise no claim could choose the type."""
        made = [(one.parent, one.resource_class) for one in answers.stock(self.kind).capacities]
        self.assertEqual(sorted(set(made)), sorted(made))

    def test_a_device_is_on_its_numa_node(self) -> None:
        if not self.world.numa:
            self.skipTest('the world names no NUMA nodes')
        found = self.stock()
        self.assertEqual(dict(self.world.numa), {name: found[name].numa_node for name in self.world.numa})

    # -- what excludes what -------------------------------------------------------------------------------------------

    def modes(self, one: str, other: str) -> set[tuple[str, str]]:
        """The pair of modes of two devices for each token that they share."""
        found = self.stock()
        ours, theirs = dict(found[one].exclusions), dict(found[other].exclusions)
        return {(ours[token], theirs[token]) for token in ours.keys() & theirs.keys()}

    def test_devices_of_one_iommu_group_go_together(self) -> None:
        if not self.world.groups:
            self.skipTest('the world names no IOMMU groups')
        together = {(vocabulary.TOGETHER, vocabulary.TOGETHER)}
        for one, group in self.world.groups.items():
            for other, its_group in self.world.groups.items():
                if one < other:
                    self.assertEqual(group == its_group, bool(self.modes(one, other) & together), f'{one} and {other}')

    def test_a_whole_excludes_its_parts(self) -> None:
        if not self.world.parts:
            self.skipTest('the world names no parts')
        for whole, parts in self.world.parts.items():
            for part in parts:
                self.assertIn((vocabulary.WHOLE, vocabulary.PART), self.modes(whole, part))
                self.assertEqual(whole, self.stock()[part].parent)

    def test_what_two_guests_cannot_have_excludes_each_other(self) -> None:
        if not self.world.rivals:
            self.skipTest('the world names no rivals')
        excluding = {(vocabulary.WHOLE, vocabulary.WHOLE), (vocabulary.WHOLE, vocabulary.PART),
                     (vocabulary.PART, vocabulary.WHOLE)}
        for one, other in self.world.rivals:
            self.assertTrue(self.modes(one, other) & excluding, (one, other))

    def test_devices_that_have_nothing_in_common_exclude_nobody(self) -> None:
        first, second = self.world.devices[:2]
        related = {frozenset((first, second))} & {
            *map(frozenset, self.world.rivals),
            *(frozenset((whole, part)) for whole, parts in self.world.parts.items() for part in parts)}
        if not related and self.world.groups.get(first) != self.world.groups.get(second, -1):
            # Two guests may have two parts of one whole.
            self.assertEqual(set(), self.modes(first, second) - {(vocabulary.PART, vocabulary.PART)})

    # -- the host's own use -------------------------------------------------------------------------------------------

    def test_a_device_that_the_host_uses_is_unhealthy_until_it_lets_go(self) -> None:
        first, second = self.world.devices[:2]
        self.world.use(first)
        found = answers.stock(self.kind)
        unhealthy = {device.identifier: device.unhealthy for device in found.devices}
        self.assertTrue(unhealthy[first], 'no reason')
        self.assertIsNone(unhealthy[second])
        self.assertEqual({first} if self.kind.keeps_bytes else set(), set(found.written), (
            'the host uses it: a kind that stores data names it in Stock.written, others name none (section 6 of the '
            'page)'))
        self.world.let_go(first)
        found = answers.stock(self.kind)
        self.assertEqual([None], [device.unhealthy for device in found.devices if device.identifier == first])
        self.assertEqual(set(), set(found.written), 'the host uses none of these: Stock.written must not name them')

    def test_a_device_that_the_host_uses_is_not_touched(self) -> None:
        wanted = self.realized()
        if self.kind.keeps_bytes:
            self.world.write(wanted.identifier)
        self.world.use(wanted.identifier)
        for name, call in (('realize', self.kind.realize), ('unclaim', self.unclaim)):
            self.check_refuses(functools.partial(call, wanted), (
                f'the host uses the device, and {name} returned: it must see the use (section 6 of the page)'))
        if self.kind.keeps_bytes:
            self.assertFalse(self.world.is_clean(wanted.identifier))

    # -- live migration -----------------------------------------------------------------------------------------------

    def test_what_is_said_of_live_migrations_is_well_formed(self) -> None:
        answers.migration_types(self.kind)
        for obstacle in (self.kind.live_migration_obstacle(), self.kind.migration_obstacle_of(self.assigned())):
            answers.text(obstacle)
        named = {(one.parent, one.type) for one in self.kind.migration_types()}
        known = [details.from_text(device.details) for device in self.stock().values()]
        self.assertTrue(all(isinstance(one.migration_type, str) for one in known))
        if named:
            self.assertTrue(named & {(device.parent, details.from_text(device.details).migration_type)
                                     for device in self.stock().values()})
