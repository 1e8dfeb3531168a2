"""Random histories of ten hosts and their mirror.

At every moment the mirror says nothing of a host that the host never said, and at rest exactly what the host says.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import random
import time

import fixtures as base_fixtures
import sqlalchemy as sa

from devicetrack import exception
from devicetrack.fleet import models
from devicetrack.fleet import push
from devicetrack.testing import fixtures
from devicetrack.tests.functional.fleet import hosts
from devicetrack.tests.functional.fleet.test_mirror import MirrorTestCase

_HOSTS = 10
_STEPS = 200
# The clocks of servers round.
_MS = 5


class _Lived:
    """A host with its instances, an older copy of its store, and all events that it had.

    ``said`` has the pictures that the mirror may have, and ``read`` between which times, by the clock of the machine,
    these were read. While the store ``is_old``, its guests have devices that it does not know.
    """

    def __init__(self, pushing: hosts.PushingHost) -> None:
        self.pushing, self.host = pushing, pushing.host
        self.instances: list[fixtures.Instance] = []
        self.backup = pushing.backup()
        self.said: list[push.Said | None] = [None]
        self.read: list[tuple[float, float]] = []
        self.had: set[str] = set()
        self.is_old = False


class TestHistories(MirrorTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.mirror.sync(days=30)
        self.useFixture(base_fixtures.MonkeyPatch('devicetrack.fleet.push.BATCH', 5))
        self.useFixture(base_fixtures.MonkeyPatch('devicetrack.fleet.push.WINDOW', 3))
        self.lived = [_Lived(self.useFixture(hosts.PushingHost(f'compute-{number}', parents={'gpu': 2})))
                      for number in range(_HOSTS)]
        url = self.options.devicetrack_fleet.connection
        self.options.set_override('connection', 'postgresql+psycopg2://nobody@127.0.0.1:1/none', 'devicetrack_fleet')
        self.away, self.is_away = self.open(), False
        self.options.set_override('connection', url, 'devicetrack_fleet')

    def test_the_mirror_says_nothing_that_no_host_said_and_at_rest_what_they_say(self) -> None:
        steps = (self.claim, self.claim, self.claim, self.release, self.cordon, self.kill, self.copy, self.put_back,
                 self.rebuild, self.lose, self.push, self.push, self.push, self.push_and_die, self.push_and_die,
                 self.leave)
        for seed in range(2):
            lots = random.Random(seed)
            for number in range(_STEPS):
                one = lots.choice(self.lived)
                lots.choice(steps)(one, lots)
                if number == _STEPS // 2:
                    self.lose_the_mirror()
                self.check(one)
            self.is_away = False
            for one in self.lived:
                self.rebuild(one, lots)
                self.push(one, lots)
                self.assertEqual(one.pushing.said(), hosts.mirrored(self.mirror, one.pushing.uuid))
                found = hosts.events_in(self.mirror, one.pushing.uuid)
                self.assertEqual(one.pushing.events(), one.pushing.events() & set(found))
                self.check(one)

    def check(self, one: _Lived) -> None:
        mirrored = hosts.mirrored(self.mirror, one.pushing.uuid)
        self.assertIn(mirrored, one.said)
        if mirrored is not None:
            [(read_at_ms,)] = self.mirror.rows(sa.select(models.fleet_hosts.c.read_at_ms).where(
                models.fleet_hosts.c.host_uuid == one.pushing.uuid))
            self.assertTrue(any(low - _MS <= read_at_ms <= high + _MS for low, high in one.read),
                            (read_at_ms, one.read))
        found = hosts.events_in(self.mirror, one.pushing.uuid)
        one.had |= one.pushing.events()
        self.assertEqual((set(), len(found)), (set(found) - one.had, len(set(found))))

    def claim(self, one: _Lived, lots: random.Random) -> None:
        if not one.is_old:
            with contextlib.suppress(exception.NoFit):
                one.instances.append(one.host.spawn(pmem=lots.randint(0, 1), vgpu=1))

    def release(self, one: _Lived, lots: random.Random) -> None:
        if one.instances and not one.is_old:
            one.host.delete(one.instances.pop(lots.randrange(len(one.instances))))

    def cordon(self, one: _Lived, lots: random.Random) -> None:
        if lots.random() < 0.5:
            one.host.manager.operator.cordon('vpmem', 'd3', reason='firmware')
        else:
            one.host.manager.operator.uncordon('vpmem', 'd3')

    def kill(self, one: _Lived, lots: random.Random) -> None:
        one.host.restart()

    def copy(self, one: _Lived, lots: random.Random) -> None:
        one.backup = one.pushing.backup()

    def put_back(self, one: _Lived, lots: random.Random) -> None:
        """Put an older copy in place of the store. Guests may have come and gone since."""
        one.had |= one.pushing.events()
        one.pushing.restore(one.backup)
        one.is_old = True

    def lose(self, one: _Lived, lots: random.Random) -> None:
        one.had |= one.pushing.events()
        one.pushing.lose()
        one.is_old = False

    def rebuild(self, one: _Lived, lots: random.Random) -> None:
        """Rebuild a store that is older than its guests."""
        if one.is_old:
            self.lose(one, lots)

    def push(self, one: _Lived, lots: random.Random) -> None:
        if self.is_away:
            self.assertRaises(exception.StoreUnavailable, one.pushing.push, self.away)
            return
        with self._saying(one):
            one.pushing.push(self.mirror)
        one.said, one.read = one.said[-1:], one.read[-1:]

    def push_and_die(self, one: _Lived, lots: random.Random) -> None:
        if not self.is_away:
            with self._saying(one):
                hosts.interrupted(self.mirror, lots.randrange(12), lambda: one.pushing.push(self.mirror))

    @contextlib.contextmanager
    def _saying(self, one: _Lived) -> Iterator[None]:
        one.had |= one.pushing.events()
        one.said.append(one.pushing.said())
        began = time.time()
        yield
        one.read.append((began * 1000, time.time() * 1000))

    def leave(self, one: _Lived, lots: random.Random) -> None:
        """The mirror goes away, or comes back."""
        self.is_away = not self.is_away and lots.random() < 0.5

    def lose_the_mirror(self) -> None:
        with self.mirror.unhurried() as database:
            database.transact(models.metadata.drop_all)
        self.mirror.sync(days=30)
        for one in self.lived:
            one.said, one.read = [None], []
