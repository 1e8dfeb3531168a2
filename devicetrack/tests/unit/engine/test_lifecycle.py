"""Every pair of a state and an event."""

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import lifecycle
from devicetrack.tests import base

TABLE = {
    ('claimed', 'started'): 'active',
    ('claimed', 'release'): 'releasing',
    ('active', 'started'): 'active',
    ('active', 'release'): 'releasing',
    ('releasing', 'started'): None,
    ('releasing', 'release'): 'releasing',
}

ROLES = {
    ('current', 'leaves'): 'old',
    ('current', 'stays'): 'current',
    ('current', 'set aside'): 'old',
    ('old', 'leaves'): 'old',
    ('old', 'stays'): 'current',
    ('old', 'set aside'): 'old',
    ('incoming', 'leaves'): None,
    ('incoming', 'stays'): 'current',
    ('incoming', 'set aside'): 'old',
}


class LifecycleTestCase(base.TestCase):

    scenarios = [(f'{state}, {event}', {'ask': ask, 'state': state, 'event': event, 'after': after})
                 for ask, table in ((lifecycle.next_state, TABLE), (lifecycle.next_role, ROLES))
                 for (state, event), after in table.items()]

    def test_leads_to(self):
        if self.after is None:
            error = self.assertRaises(exception.InvalidTransition, self.ask, self.state, self.event)
            self.assertEqual((self.state, self.event), (error.state, error.event))
        else:
            self.assertEqual(self.after, self.ask(self.state, self.event))


class CompleteTestCase(base.TestCase):

    def test_every_state_and_event_is_in_this_table(self):
        events = {event for _, event in lifecycle.TRANSITIONS}
        self.assertEqual({(state, event) for state in vocabulary.STATES for event in events}, set(TABLE))

    def test_every_role_and_event_is_in_this_table(self):
        events = {event for _, event in lifecycle.ROLE_TRANSITIONS}
        self.assertEqual({(role, event) for role in vocabulary.ROLES for event in events}, set(ROLES))

    def test_nothing_leads_back_from_releasing(self):
        self.assertEqual({'releasing'}, {after for (state, _), after in lifecycle.TRANSITIONS.items()
                                         if state == 'releasing'})

    def test_an_unknown_word_is_refused(self):
        self.assertRaises(exception.InvalidTransition, lifecycle.next_state, 'lost', 'release')
