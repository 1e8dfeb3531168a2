"""The line of free devices by itself: order, places at the front, and what is taken out of the middle."""

import collections
import pickle
from typing import Any

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from devicetrack.engine import line as lines
from devicetrack.tests import base

MANY = 3 * lines._READ_AHEAD + 1


class Device:
    """A device that knows its line, as the ledger's do by way of their pool."""

    def __init__(self, number, line=None):
        self.identifier, self.line = f'd{number}', line
        self.withheld: frozenset[str] = frozenset()


def taken(line):
    """What is left in a line, in the order in which it is taken."""
    return list(iter(line.take_first, None))


class LineTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.line: lines.Line[Any] = lines.Line()
        self.devices = [Device(number, self.line) for number in range(MANY)]
        for device in self.devices:
            self.line.append(device)

    def test_nobody_stands_in_a_new_line(self):
        self.assertEqual(([], None), (list(lines.Line()), lines.Line().take_first()))

    def test_who_came_first_is_first(self):
        self.assertEqual(self.devices, list(self.line))
        self.assertEqual(self.devices, taken(self.line))
        self.assertEqual(([], None), (list(self.line), self.line.take_first()))

    def test_who_comes_back_is_last(self):
        for _ in range(2 * MANY):
            self.line.append(self.line.take_first())
        self.assertEqual(self.devices, taken(self.line))

    def test_who_is_put_back_is_first_again(self):
        for amount in (1, lines._READ_AHEAD, MANY):
            some = [self.line.take_first() for _ in range(amount)]
            for device in reversed(some):
                self.line.put_first(device)
            self.assertEqual(self.devices, list(self.line))
        self.assertEqual(self.devices, taken(self.line))

    def test_who_is_put_first_before_anybody_was_taken_is_first(self):
        new = Device('new')
        self.line.put_first(new)
        self.assertEqual([new, *self.devices], list(self.line))
        self.assertEqual([new, *self.devices], taken(self.line))

    def test_whoever_is_removed_is_taken_no_more_wherever_they_stand(self):
        first = self.line.take_first()
        for device in (self.devices[1], self.devices[lines._READ_AHEAD], self.devices[-1]):
            self.line.remove(device)
        gone = (first, self.devices[1], self.devices[lines._READ_AHEAD], self.devices[-1])
        left = [device for device in self.devices if device not in gone]
        self.assertEqual(left, list(self.line))
        self.assertEqual(left, taken(self.line))

    def test_whoever_stands_nowhere_cannot_be_removed(self):
        self.assertRaises(ValueError, self.line.remove, self.line.take_first())

    def test_a_line_is_copied_with_its_devices_and_its_order(self):
        self.line.take_first()
        # It is reached by way of a device that stands in it, as when a ledger is copied.
        copy = pickle.loads(pickle.dumps(self.devices[1])).line
        self.assertEqual([device.identifier for device in self.line], [device.identifier for device in copy])
        self.assertTrue(all(device.line is copy for device in copy))
        self.assertEqual([device.identifier for device in self.line], [device.identifier for device in taken(copy)])

    def test_lines_of_the_same_order_are_the_same_once_they_are_written(self):
        before = pickle.dumps(self.line)
        self.line.put_first(self.line.take_first())
        self.assertEqual(before, pickle.dumps(self.line))


class ReadAheadTestCase(base.TestCase):
    """Taking is quick because the next few devices are read together."""

    class Device(Device):
        """One that counts how often its line read it."""

        reads = 0

        @property
        def withheld(self):
            type(self).reads += 1
            return frozenset()

        @withheld.setter
        def withheld(self, _reasons):
            pass

    def test_the_next_few_devices_are_read_together_once(self):
        few = lines._READ_AHEAD
        line: lines.Line[Any] = lines.Line()
        for number in range(3 * few):
            line.append(self.Device(number))
        reads = []
        for _device in iter(line.take_first, None):
            reads.append(self.Device.reads)
            self.Device.reads = 0
        self.assertEqual([few, *[0] * (few - 1)] * 3, reads)


class LikeADequeTestCase(base.TestCase):

    @settings(max_examples=200, deadline=None, database=None)
    @given(start=st.integers(0, MANY), steps=st.lists(st.tuples(
        st.sampled_from(['append', 'put_first', 'take', 'take', 'remove']), st.integers(0, MANY)), max_size=60))
    def test_every_history_leaves_the_order_of_a_deque(self, start, steps):
        devices = [Device(number) for number in range(start)]
        line: lines.Line[Any] = lines.Line()
        expected = collections.deque(devices)
        for device in devices:
            line.append(device)
        for number, (step, place) in enumerate(steps):
            device = Device(f'new{number}')
            if step == 'append':
                line.append(device)
                expected.append(device)
            elif step == 'put_first':
                line.put_first(device)
                expected.appendleft(device)
            elif step == 'take':
                self.assertIs(expected.popleft() if expected else None, line.take_first())
            elif expected:
                device = expected[place % len(expected)]
                line.remove(device)
                expected.remove(device)
            self.assertEqual(list(expected), list(line))
