"""Random histories of ten hosts and their mirror.

At every moment the mirror says nothing of a host that the host never said, and at rest exactly what the host says.
"""

from __future__ import annotations

import random

import fixtures as base_fixtures

from devicetrack import exception
from devicetrack.fleet import push
from devicetrack.testing import fixtures
from devicetrack.tests.functional.fleet import hosts
from devicetrack.tests.functional.fleet.test_mirror import MirrorTestCase

_HOSTS = 10
_STEPS = 200


class _Lived:
    """A host with its instances, the last two pictures that it may have in the mirror, and all events that it had."""

    def __init__(self, pushing: hosts.PushingHost) -> None:
        self.pushing, self.host = pushing, pushing.host
        self.instances: list[fixtures.Instance] = []
        self.backup = pushing.backup()
        self.said: list[push.Said | None] = [None]
        self.had: set[str] = set()


class TestHistories(MirrorTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.mirror.sync(days=30)
        self.useFixture(base_fixtures.MonkeyPatch('devicetrack.fleet.push.BATCH', 5))
        self.useFixture(base_fixtures.MonkeyPatch('devicetrack.fleet.push.WINDOW', 3))
        self.lived = [_Lived(self.useFixture(hosts.PushingHost(f'compute-{number}', parents={'gpu': 2})))
                      for number in range(_HOSTS)]
        self.away = False

    def test_the_mirror_says_nothing_that_no_host_said_and_at_rest_what_they_say(self) -> None:
        for seed in range(2):
            lots = random.Random(seed)
            for _step in range(_STEPS):
                one = lots.choice(self.lived)
                lots.choice((self.claim, self.claim, self.release, self.cordon, self.kill, self.restore, self.push,
                             self.push, self.push_and_die, self.push_and_die, self.leave))(one, lots)
                self.check(one)
            self.away = False
            for one in self.lived:
                self.push(one, lots)
                self.assertEqual(one.pushing.said(), hosts.mirrored(self.mirror, one.pushing.uuid))
                found = hosts.events_in(self.mirror, one.pushing.uuid)
                self.assertEqual(one.pushing.events(), one.pushing.events() & set(found))
                self.check(one)

    def check(self, one: _Lived) -> None:
        self.assertIn(hosts.mirrored(self.mirror, one.pushing.uuid), one.said)
        found = hosts.events_in(self.mirror, one.pushing.uuid)
        one.had |= one.pushing.events()
        self.assertEqual((set(), len(found)), (set(found) - one.had, len(set(found))))

    def claim(self, one: _Lived, lots: random.Random) -> None:
        try:
            one.instances.append(one.host.spawn(pmem=lots.randint(0, 1), vgpu=1))
        except exception.NoFit:
            pass

    def release(self, one: _Lived, lots: random.Random) -> None:
        if one.instances:
            one.host.delete(one.instances.pop(lots.randrange(len(one.instances))))

    def cordon(self, one: _Lived, lots: random.Random) -> None:
        if lots.random() < 0.5:
            one.host.manager.cordon('vpmem', 'd3', reason='firmware')
        else:
            one.host.manager.uncordon('vpmem', 'd3')

    def kill(self, one: _Lived, lots: random.Random) -> None:
        one.host.restart()

    def restore(self, one: _Lived, lots: random.Random) -> None:
        """Restore a backup from before all claims. Its guests are gone by then."""
        while one.instances:
            self.release(one, lots)
        if lots.random() < 0.5:
            one.backup = one.pushing.backup()
        else:
            one.had |= one.pushing.events()
            one.pushing.restore(one.backup)

    def push(self, one: _Lived, lots: random.Random) -> None:
        if not self.away:
            self._say(one)
            one.pushing.push(self.mirror)
            one.said = one.said[-1:]

    def push_and_die(self, one: _Lived, lots: random.Random) -> None:
        if not self.away:
            self._say(one)
            hosts.interrupted(self.mirror, lots.randrange(12), lambda: one.pushing.push(self.mirror))

    def _say(self, one: _Lived) -> None:
        one.had |= one.pushing.events()
        one.said.append(one.pushing.said())

    def leave(self, one: _Lived, lots: random.Random) -> None:
        """The mirror goes away, or comes back."""
        self.away = not self.away and lots.random() < 0.5
