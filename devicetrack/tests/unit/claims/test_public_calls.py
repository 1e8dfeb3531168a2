"""What a call of the manager keeps while it lasts, and what an interrupt leaves of it."""

from __future__ import annotations

from typing import Any

from devicetrack.claims import public_calls
from devicetrack.tests import base
from devicetrack.tests import interrupts


class Context:
    request_id = 'req-1'


class Manager:

    @public_calls.of_request
    def call(self, context: Any) -> None:
        with public_calls.keeping_answers():
            answers = public_calls.answers()
            assert answers is not None
            answers['which instances live here?'] = None


class InterruptTestCase(base.TestCase):

    def run_until(self, at: int | None) -> interrupts.Lines:
        lines = interrupts.Lines(at)
        lines.run(lambda: Manager().call(Context()))
        return lines

    def test_no_later_call_of_the_thread_has_the_answers_of_one_that_was_interrupted(self) -> None:
        count = self.run_until(None).count
        self.assertGreater(count, 10)
        for at in range(count):
            where = self.run_until(at).where
            self.assertEqual((None, None), (public_calls.answers(), public_calls.present()), where)
