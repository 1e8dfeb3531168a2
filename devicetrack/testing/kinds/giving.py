"""Tests of a kind that makes devices ready, takes them back, and proves that they are clean."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
import subprocess
import threading
import uuid

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import identity
from devicetrack.objects.values import DeviceKey
from devicetrack.testing.kinds import base
from devicetrack.virt.libvirt.kinds import api


class GivingContract(base.KindTestCase):

    def test_a_device_is_made_ready_every_time(self) -> None:
        wanted = self.assigned()
        first, again = self.kind.realize(wanted), self.made().realize(wanted)
        for made in (first, again):
            self.assertEqual(DeviceKey(self.kind.name, wanted.identifier), made.key)
            self.assertTrue(identity.same_device(details.to_text(wanted.details), made.details))
        self.assertEqual(first.details, again.details)

    def test_a_device_that_went_away_is_gone(self) -> None:
        wanted = self.assigned()
        self.world.remove(wanted.identifier)
        self.assertRaises(exception.DeviceGone, self.kind.realize, wanted)

    def test_another_device_of_the_name_is_not_touched(self) -> None:
        wanted = self.realized()
        self.world.replace(wanted.identifier)
        self.assertRaises(exception.DriverError, self.kind.realize, wanted)
        if self.kind.keeps_bytes:
            self.assertFalse(self.world.is_clean(wanted.identifier), 'replace() of the world left a clean device')
            self.assertRaises(exception.DriverError, self.unclaim, wanted)
            self.assertFalse(self.world.is_clean(wanted.identifier), 'bytes of somebody else are lost')
            return
        before = self.stock()
        with contextlib.suppress(exception.DriverError):
            self.unclaim(wanted)
        self.assertEqual(before, self.stock())

    def test_taking_back_may_be_repeated(self) -> None:
        wanted = self.realized()
        for _again in range(2):
            self.unclaim(wanted)
        self.assertIn(wanted.identifier, self.stock())
        self.realized(wanted.identifier)

    def test_a_device_that_is_taken_back_holds_nothing_of_its_guest(self) -> None:
        wanted = self.realized()
        if not self.kind.keeps_bytes:
            self.skipTest('its devices store no data')
        self.world.write(wanted.identifier)
        self.assertFalse(self.world.is_clean(wanted.identifier), 'the world does not see what it wrote')
        self.unclaim(wanted)
        self.assertTrue(self.world.is_clean(wanted.identifier))

    def test_the_neighbour_of_a_device_that_is_taken_back_keeps_its_bytes(self) -> None:
        wanted, other = self.realized(), self.realized(self.world.devices[1], 1)
        if not self.kind.keeps_bytes:
            self.skipTest('its devices store no data')
        self.world.write(other.identifier)
        self.unclaim(wanted)
        self.assertFalse(self.world.is_clean(other.identifier))

    def test_a_device_that_is_not_clean_is_not_given_back(self) -> None:
        wanted = self.realized()
        if not self.kind.keeps_bytes:
            self.skipTest('its devices store no data')
        self.world.write(wanted.identifier)
        self.world.cannot_clean()
        self.assertRaises(exception.DriverError, self.unclaim, wanted)

    def test_a_device_with_bytes_is_not_blank(self) -> None:
        clean, written = self.assigned(), self.assigned(self.world.devices[1], 1)
        if not self.kind.keeps_bytes:
            self.skipTest('its devices store no data')
        self.world.write(written.identifier)
        said = set(self.kind.is_blank([clean, written]))
        self.assertEqual(set(), said - {clean.identifier})

    def test_reading_finds_what_a_guest_left_and_changes_nothing(self) -> None:
        wanted = self.assigned()
        if not self.kind.keeps_bytes:
            self.skipTest('its devices store no data')
        self.world.write(wanted.identifier)
        with open(os.devnull) as lock:
            self.assertRaises(exception.NotProven, self.kind.read_through, wanted, lock.fileno(), threading.Event())
        self.assertFalse(self.world.is_clean(wanted.identifier))

    def test_a_clean_device_is_read_to_its_end(self) -> None:
        wanted = self.assigned()
        self.check_reads()
        with open(os.devnull) as lock:
            self.kind.read_through(wanted, lock.fileno(), threading.Event())

    def test_reading_that_is_stopped_proves_nothing(self) -> None:
        wanted, stop = self.assigned(), threading.Event()
        self.check_reads()
        stop.set()
        with open(os.devnull) as lock:
            self.assertRaises(exception.NotProven, self.kind.read_through, wanted, lock.fileno(), stop)

    def check_reads(self) -> None:
        if not self.kind.keeps_bytes:
            self.skipTest('its devices store no data')
        if type(self.kind).read_through is api.DeviceKind.read_through:
            self.skipTest('the kind cannot read its devices')

    # -- a device that a process has open -----------------------------------------------------------------------------

    def test_a_device_that_a_process_has_open_goes_to_nobody(self) -> None:
        wanted = self.assigned()
        with self.opened_by_a_process(wanted) as found, open(os.devnull) as lock:
            self.check_refuses(lambda: self.kind.check_free(wanted), (
                f'{found}, and check_free returned: it must refuse the claim (section 6 of the page)'))
            if self.kind.keeps_bytes:
                self.assertNotIn(wanted.identifier, set(self.kind.is_blank([wanted])), (
                    f'{found}, and is_blank says that it is clean (section 8 of the page)'))
                self.check_is_touched(wanted)
                self.check_refuses(lambda: self.kind.read_through(wanted, lock.fileno(), threading.Event()), (
                    f'{found}, and read_through says that it is clean (section 8 of the page)'))
        self.kind.check_free(wanted)

    def test_a_device_that_a_process_has_open_is_not_taken_back(self) -> None:
        wanted = self.realized()
        if self.kind.keeps_bytes:
            self.world.write(wanted.identifier)
        with self.opened_by_a_process(wanted) as found:
            self.check_refuses(lambda: self.unclaim(wanted), (
                f'{found}, and unclaim returned: it must leave the device alone (section 8 of the page)'))
        if self.kind.keeps_bytes:
            self.assertFalse(self.world.is_clean(wanted.identifier), f'{found}, and unclaim cleaned the device')
        self.unclaim(wanted)

    @contextlib.contextmanager
    def opened_by_a_process(self, wanted: DeviceAssignment) -> Iterator[str]:
        """Let another process have the file or node of a device open for writing in the block. Gives it this fact."""
        path = self.kind.node(api.as_device(wanted))
        if path is None or not os.path.isabs(path):
            self.skipTest('node gives no path that a process could open')
        fd = os.open(path, os.O_RDWR)
        try:
            process = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=(fd,))
        finally:
            os.close(fd)
        with process:                           # its end closes the pipe, and that ends the process
            yield f'a process has {path} open for writing'

    # -- a device that was claimed and never made ready ---------------------------------------------------------------

    def test_a_device_that_went_away_is_not_untouched(self) -> None:
        wanted = self.only_claimed()
        self.world.remove(wanted.identifier)
        self.check_is_touched(wanted)

    def test_another_device_of_the_name_is_not_untouched(self) -> None:
        wanted = self.only_claimed()
        self.world.replace(wanted.identifier)
        self.check_is_touched(wanted)

    def test_a_device_that_the_host_uses_is_not_untouched(self) -> None:
        wanted = self.only_claimed()
        self.world.use(wanted.identifier)
        self.check_is_touched(wanted)

    def only_claimed(self) -> DeviceAssignment:
        """Make an assignment that is being given back, and whose guest never got the device."""
        if not self.kind.keeps_bytes:
            self.skipTest('its devices store no data')
        return self.assigned(state=vocabulary.RELEASING, was_realized=False)

    def check_is_touched(self, wanted: DeviceAssignment) -> None:
        """Check that the kind does not call the device untouched: the driver would take it for clean."""
        try:
            self.assertIs(False, self.kind.is_untouched(wanted))
        except exception.DriverError:
            pass

    def test_a_device_that_was_made_goes_when_it_is_taken_back(self) -> None:
        capacities = [one for one in self.kind.stock().capacities if one.available]
        if not capacities:
            self.skipTest('the kind makes no devices')
        capacity = capacities[0]
        wanted = base.assignment(self.instance, self.kind.name, str(uuid.uuid4()), capacity.parent, capacity.details)
        made = self.kind.realize(wanted)
        self.assertEqual(DeviceKey(self.kind.name, wanted.identifier), made.key)
        self.assertIn(wanted.identifier, self.stock())
        for _again in range(2):
            self.unclaim(wanted)
        self.assertNotIn(wanted.identifier, self.stock())
        self.assertIn(capacity, self.kind.stock().capacities)
