"""Fetching ahead: order, errors, and the end of the thread."""

import threading

from devicetrack.tests import base
from devicetrack.virt.libvirt import ahead


class AheadTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.fetched = []
        before = set(threading.enumerate())
        self.addCleanup(lambda: self.assertEqual(before, set(threading.enumerate())))

    def things(self, number, error=None):
        for thing in range(number):
            self.fetched.append(thing)
            yield thing
        if error is not None:
            raise error

    def test_comes_in_order_and_whole(self):
        for number in (0, 1, ahead.READY, 10 * ahead.READY):
            self.assertEqual(list(range(number)), list(ahead.of(lambda number=number: self.things(number))))

    def test_an_error_comes_behind_what_came_before(self):
        found = []

        def read():
            for thing in ahead.of(lambda: self.things(3, KeyError('gone'))):
                found.append(thing)

        self.assertRaises(KeyError, read)
        self.assertEqual([0, 1, 2], found)

    def test_whoever_stops_early_ends_it(self):
        for taken in range(3):
            self.fetched.clear()
            found = ahead.of(lambda: self.things(1000))
            for _ in range(taken):
                next(found)
            found.close()
            self.assertLess(len(self.fetched), taken + 2 * ahead.READY)

    def test_no_more_is_fetched_than_is_kept_ready(self):
        found = ahead.of(lambda: self.things(1000))
        for expected in found:
            self.assertLessEqual(len(self.fetched), expected + ahead.READY + 2)
