"""When a wait in the cloud ends because nobody works on what it waits for."""

from __future__ import annotations

import fixtures

from devicetrack.tests import base
from devicetrack.tests.cloud import compute_client


class StillnessTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch('devicetrack.tests.cloud.compute_client._STILL_S', 0))
        self.state = 'spawning'
        self.audits = {'host-a': 3, 'host-b': 40}
        self.stands_still = compute_client.Stillness(lambda: self.state, lambda: dict(self.audits))
        self.assertFalse(self.stands_still())

    def audit(self, **times: int) -> None:
        for name, number in times.items():
            self.audits[name.replace('_', '-')] += number

    def test_after_many_audits_of_each_host(self) -> None:
        self.audit(host_a=compute_client.STILL_AUDITS)
        self.assertFalse(self.stands_still())
        self.audit(host_b=compute_client.STILL_AUDITS)
        self.assertTrue(self.stands_still())

    def test_not_while_it_changes(self) -> None:
        self.audit(host_a=compute_client.STILL_AUDITS, host_b=compute_client.STILL_AUDITS)
        self.state = 'active'
        self.assertFalse(self.stands_still())

    def test_counts_anew_when_a_service_has_stopped_or_started(self) -> None:
        self.audit(host_b=compute_client.STILL_AUDITS)
        del self.audits['host-a']
        self.assertFalse(self.stands_still())

    def test_not_without_any_service(self) -> None:
        self.audits.clear()
        self.assertFalse(self.stands_still())
        self.assertFalse(self.stands_still())


class WaitTestCase(base.TestCase):

    def test_ends_when_nobody_works_on_it(self) -> None:
        self.assertRaisesRegex(compute_client.TooLate, 'a guest: nobody works on it', compute_client.wait_for,
                               'a guest', lambda: None, stands_still=lambda: True)

    def test_says_nothing_of_what_goes_on_until_the_limit(self) -> None:
        self.assertRaisesRegex(compute_client.Hangs, 'a guest: not within -1 s', compute_client.wait_for,
                               'a guest', lambda: None, timeout_s=-1)
