"""Operator requests, on each database."""

from __future__ import annotations

import functools
from typing import Any
import uuid

from devicetrack.store import api
from devicetrack.store.sql import store as stores
from devicetrack.tests.functional.store import records
from devicetrack.tests.functional.store.test_contract import StoreTestCase


def operator_request(verb: str = 'cordon', **facts: Any) -> api.OperatorRequest:
    made = api.OperatorRequest(str(uuid.uuid4()), records.HOST_UUID, verb, '{"kind": "vpmem"}', 1_700_000_000)
    return made._replace(**facts)


class TestOperatorRequests(StoreTestCase):
    def test_another_process_finds_what_was_requested(self) -> None:
        made = operator_request(arguments='{"name": "ns\u00f6 %s ?"}', created_at=1 << 40)
        self.store.add_operator_request(made)
        self.assertEqual([made], self.fixture.open().operator_requests())

    def test_they_come_as_they_were_added_whatever_the_clock_says(self) -> None:
        made = [operator_request(created_at=created_at) for created_at in (5, 5, 9, 1, 5)]
        for one in made:
            self.store.add_operator_request(one)
        self.assertEqual(made, self.store.operator_requests())

    def test_what_is_given_narrows_the_answer(self) -> None:
        mine, answered, elsewhere = operator_request(), operator_request(), operator_request(host_uuid='0' * 36)
        for one in (mine, answered, elsewhere):
            self.store.add_operator_request(one)
        self.assertTrue(self.store.answer_operator_request(answered.uuid, 7, '{}'))
        answered = answered._replace(answered_at=7, answer='{}')
        self.assertEqual([mine, answered], self.store.operator_requests_of_host(records.HOST_UUID))
        self.assertEqual([mine], self.store.operator_requests_of_host(records.HOST_UUID, waiting=True))
        self.assertEqual([mine, elsewhere], self.store.operator_requests(waiting=True))

    def test_the_first_answer_stays(self) -> None:
        made = operator_request()
        self.store.add_operator_request(made)
        self.assertTrue(self.store.answer_operator_request(made.uuid, 7, '"first"'))
        self.assertFalse(self.fixture.open().answer_operator_request(made.uuid, 8, '"second"'))
        self.assertEqual([made._replace(answered_at=7, answer='"first"')], self.store.operator_requests())

    def test_of_many_who_answer_one_does(self) -> None:
        made = operator_request()
        self.store.add_operator_request(made)
        answers = self.together(*[functools.partial(store.answer_operator_request, made.uuid, number, str(number))
                                  for number, store in enumerate([self.store, self.fixture.open()] * 4)])
        self.assertEqual(1, answers.count(True))
        self.assertEqual(7, answers.count(False))
        self.assertEqual([str(answers.index(True))], [one.answer for one in self.store.operator_requests()])

    def test_a_request_that_is_gone_takes_no_answer(self) -> None:
        self.assertFalse(self.store.answer_operator_request('0' * 36, 7, '{}'))

    def test_adding_a_request_again_is_harmless(self) -> None:
        made = operator_request()
        self.store.add_operator_request(made)
        self.store.add_operator_request(made)
        self.assertTrue(self.store.answer_operator_request(made.uuid, 7, '{}'))
        self.store.add_operator_request(made)
        self.assertEqual([made._replace(answered_at=7, answer='{}')], self.store.operator_requests())

    def test_another_request_with_the_same_uuid_is_a_mistake(self) -> None:
        made = operator_request()
        self.store.add_operator_request(made)
        self.assertRaises(ValueError, self.store.add_operator_request, made._replace(verb='uncordon'))
        self.assertEqual([made], self.store.operator_requests())

    def test_answers_may_be_long(self) -> None:
        made = operator_request()
        self.store.add_operator_request(made)
        self.store.answer_operator_request(made.uuid, 7, 'x' * 1_000_000)
        self.assertEqual(['x' * 1_000_000], [one.answer for one in self.store.operator_requests()])

    def test_the_oldest_answered_ones_of_a_host_go(self) -> None:
        self.patch(stores, 'ANSWERED_OPERATOR_REQUESTS_KEPT', 3)
        made = [operator_request() for _number in range(6)]
        waiting, elsewhere = operator_request(), operator_request(host_uuid='0' * 36)
        for one in (waiting, elsewhere, *made):
            self.store.add_operator_request(one)
        for one in (elsewhere, *made):
            self.store.answer_operator_request(one.uuid, 7, '{}')
        last = operator_request()
        self.store.add_operator_request(last)
        self.assertEqual([waiting.uuid, elsewhere.uuid, *[one.uuid for one in made[3:]], last.uuid],
                         [one.uuid for one in self.store.operator_requests()])
