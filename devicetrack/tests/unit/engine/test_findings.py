"""Which findings a second look confirms."""

from devicetrack.engine import findings
from devicetrack.engine import reconcile
from devicetrack.objects import values
from devicetrack.tests import base
from devicetrack.tests.unit.engine.views import row
from devicetrack.tests.unit.engine.views import usage
from devicetrack.tests.unit.engine.views import use
from devicetrack.tests.unit.engine.views import views


class ConfirmedTestCase(base.TestCase):

    FOUND = reconcile.compare(views(usage(use('x')), rows=[row()]))[0]

    scenarios = base.table(
        ('the same again', FOUND, True),
        ('another generation', FOUND._replace(generation=2), False),
        ('another user', FOUND._replace(users=('y',)), False),
        ('another device', FOUND._replace(device=values.DeviceKey('vpmem', 'b')), False),
        ('told in other words', FOUND._replace(detail='otherwise'), True),
        names=('again', 'confirmed'))

    def test_by_a_second_look(self):
        self.assertEqual([self.again] if self.confirmed else [], findings.confirmed([self.FOUND], [self.again]))

    def test_what_only_the_first_look_showed_is_nothing(self):
        self.assertEqual([], findings.confirmed([self.FOUND], []))
