"""Orders, on each database."""

from __future__ import annotations

import functools
from typing import Any
import uuid

from devicetrack.store import api
from devicetrack.store.sql import store as stores
from devicetrack.tests.functional.store import records
from devicetrack.tests.functional.store.test_contract import StoreTestCase


def order(verb: str = 'cordon', **facts: Any) -> api.Order:
    return api.Order(str(uuid.uuid4()), records.HOST_UUID, verb, '{"kind": "vpmem"}', 1_700_000_000)._replace(**facts)


class TestOrders(StoreTestCase):
    def test_another_process_finds_what_was_ordered(self) -> None:
        made = order(arguments='{"name": "ns\u00f6 %s ?"}', created_at=1 << 40)
        self.store.add_order(made)
        self.assertEqual([made], self.fixture.open().orders())

    def test_orders_come_as_they_were_added_whatever_the_clock_says(self) -> None:
        made = [order(created_at=created_at) for created_at in (5, 5, 9, 1, 5)]
        for one in made:
            self.store.add_order(one)
        self.assertEqual(made, self.store.orders())

    def test_what_is_given_narrows_the_answer(self) -> None:
        mine, answered, elsewhere = order(), order(), order(host_uuid='0' * 36)
        for one in (mine, answered, elsewhere):
            self.store.add_order(one)
        self.assertTrue(self.store.answer_order(answered.uuid, 7, '{}'))
        answered = answered._replace(answered_at=7, answer='{}')
        self.assertEqual([mine, answered], self.store.orders_of_host(records.HOST_UUID))
        self.assertEqual([mine], self.store.orders_of_host(records.HOST_UUID, waiting=True))
        self.assertEqual([mine, elsewhere], self.store.orders(waiting=True))

    def test_the_first_answer_stays(self) -> None:
        made = order()
        self.store.add_order(made)
        self.assertTrue(self.store.answer_order(made.uuid, 7, '"first"'))
        self.assertFalse(self.fixture.open().answer_order(made.uuid, 8, '"second"'))
        self.assertEqual([made._replace(answered_at=7, answer='"first"')], self.store.orders())

    def test_of_many_who_answer_one_does(self) -> None:
        made = order()
        self.store.add_order(made)
        answers = self.together(*[functools.partial(store.answer_order, made.uuid, number, str(number))
                                  for number, store in enumerate([self.store, self.fixture.open()] * 4)])
        self.assertEqual(1, answers.count(True))
        self.assertEqual(7, answers.count(False))
        self.assertEqual([str(answers.index(True))], [one.answer for one in self.store.orders()])

    def test_an_order_that_is_gone_takes_no_answer(self) -> None:
        self.assertFalse(self.store.answer_order('0' * 36, 7, '{}'))

    def test_adding_an_order_again_is_harmless(self) -> None:
        made = order()
        self.store.add_order(made)
        self.store.add_order(made)
        self.assertTrue(self.store.answer_order(made.uuid, 7, '{}'))
        self.store.add_order(made)
        self.assertEqual([made._replace(answered_at=7, answer='{}')], self.store.orders())

    def test_another_order_with_the_same_uuid_is_a_mistake(self) -> None:
        made = order()
        self.store.add_order(made)
        self.assertRaises(ValueError, self.store.add_order, made._replace(verb='uncordon'))
        self.assertEqual([made], self.store.orders())

    def test_answers_may_be_long(self) -> None:
        made = order()
        self.store.add_order(made)
        self.store.answer_order(made.uuid, 7, 'x' * 1_000_000)
        self.assertEqual(['x' * 1_000_000], [one.answer for one in self.store.orders()])

    def test_the_oldest_answered_ones_of_a_host_go(self) -> None:
        self.patch(stores, 'ANSWERED_ORDERS_KEPT', 3)
        made = [order() for _number in range(6)]
        waiting, elsewhere = order(), order(host_uuid='0' * 36)
        for one in (waiting, elsewhere, *made):
            self.store.add_order(one)
        for one in (elsewhere, *made):
            self.store.answer_order(one.uuid, 7, '{}')
        last = order()
        self.store.add_order(last)
        self.assertEqual([waiting.uuid, elsewhere.uuid, *[one.uuid for one in made[3:]], last.uuid],
                         [one.uuid for one in self.store.orders()])
