"""The two hosts of ``examples/two_hosts``, and a service of theirs that is killed."""

from __future__ import annotations

from collections.abc import Callable
import pathlib
import runpy
import sys
from typing import Any
from unittest import mock
import uuid

import devicetrack
from devicetrack.claims.claim import Claim
from devicetrack.testing import fake
from devicetrack.tests import base

ROOT = pathlib.Path(devicetrack.__file__).parent.parent
PROGRAM = ROOT / 'examples' / 'two_hosts' / 'service.py'


class TwoHostsTestCase(base.TestCase):
    """The hosts of the program, with an instance on the first."""

    def setUp(self) -> None:
        super().setUp()
        with mock.patch.object(sys, 'path', [str(PROGRAM.parent), *sys.path]):
            self.names = names = runpy.run_path(str(PROGRAM))
            self.go_on = runpy.run_path(str(PROGRAM.with_name('restart.py')))['go_on']
        directory = pathlib.Path(self.temp_dir())
        self.database = names['Database'](directory / 'database.json')
        self.hosts: dict[str, Any] = {}
        self.confs: dict[str, Any] = {}
        configuration = names['configuration']

        def configured(at: pathlib.Path) -> Any:
            self.confs[at.name] = configuration(at)
            return self.confs[at.name]

        names['Compute'].__init__.__globals__['configuration'] = configured
        for name in ('one', 'two'):
            self.addCleanup(fake.FakeHost.forget, name)
            self.hosts[name] = names['Compute'](name, directory / name, self.database)
            self.addCleanup(lambda host: host.manager.close(), self.hosts[name])
        self.small, self.large = (names['Flavor'](name, {'hw:pmem': pmem}) for name, pmem in
                                  (('small', '4GB'), ('large', '4GB,4GB')))
        self.instance = names['Instance'](str(uuid.uuid4()), self.small)
        self.migration = names['Migration'](str(uuid.uuid4()), 1, self.instance.uuid, 'one', 'two')
        self.one.boot(self.instance)
        self.addCleanup(self.check_guests)

    def check_guests(self) -> None:
        """No two hosts run the guest."""
        self.assertLessEqual(sum(map(self.runs, self.hosts)), 1)

    def runs(self, name: str) -> bool:
        return self.hosts[name].machine.usage().runs_here(self.instance.uuid)

    def hand_over(self) -> None:
        self.two.prep_resize(self.instance.uuid, self.migration, self.large)
        self.one.resize_instance(self.instance.uuid, self.migration)

    @property
    def one(self) -> Any:
        return self.hosts['one']

    @property
    def two(self) -> Any:
        return self.hosts['two']

    def finish(self) -> None:
        self.two.finish_resize(self.instance.uuid, self.migration)

    def roles(self) -> dict[str, list[str]]:
        return {name: [row.role for row in host.manager.resources_of(self.instance.uuid)]
                for name, host in self.hosts.items()}

    def audit(self) -> list[str]:
        """The kinds of findings of both hosts."""
        return [finding.kind for name, host in self.hosts.items()
                for finding in host.manager.update_available_resource(None, name)]

    def finish_revert(self) -> None:
        self.one.finish_revert_resize(self.instance.uuid, self.migration)

    def check_reverted(self) -> None:
        self.assertEqual(({'one': ['current'], 'two': []}, []), (self.roles(), self.audit()))
        saved = self.database.instance(self.instance.uuid)
        self.assertEqual(('one', 'small', 1), (saved.host, saved.flavor.name, len(saved.resources)))


class Killed(BaseException):
    """The process ends here: no handler of the program sees it."""


class InterruptedTestCase(TwoHostsTestCase):
    """One of the hosts is killed amid a move, and starts again."""

    def kill_before(self, thing: Any, name: str, step: Callable[..., None], *arguments: Any, calls: int = 1) -> None:
        """Take a step of the move, and end it before it calls this method for the last time of some."""
        real, left = getattr(thing, name), [calls]

        def called(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if not left[0]:
                raise Killed()
            return real(*args, **kwargs)

        # The block of a claim does not see the end of its process either.
        with mock.patch.object(thing, name, called), mock.patch.object(Claim, '__exit__', lambda *_error: None):
            self.assertRaises(Killed, step, self.instance.uuid, *arguments)

    def restart(self, name: str) -> None:
        host = self.hosts[name]
        host.manager.close()
        host.start()
        self.go_on(host, self.hosts.get)

    def check(self, status: str, host: str, roles: dict[str, list[str]]) -> None:
        migration = self.database.migrations()[-1]
        saved = self.database.instance(self.instance.uuid)
        self.assertEqual((status, host), (migration.status, saved.host))
        self.assertEqual([name == host for name in self.hosts], [self.runs(name) for name in self.hosts])
        self.audit()
        for each in self.hosts.values():
            each.manager.wait_for_wipes()
        self.assertEqual((roles, []), (self.roles(), self.audit()))
        self.assertEqual([row.identifier for row in self.hosts[host].manager.resources_of(saved.uuid)],
                         [row.identifier for row in saved.resources])
