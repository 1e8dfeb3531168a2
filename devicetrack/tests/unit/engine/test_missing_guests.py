"""A hypervisor without any domain."""

from devicetrack.engine import findings
from devicetrack.engine import reconcile
from devicetrack.tests import base
from devicetrack.tests.unit.engine import hosts
from devicetrack.tests.unit.engine.hosts import namespace
from devicetrack.tests.unit.engine.views import DEVICE
from devicetrack.tests.unit.engine.views import move
from devicetrack.tests.unit.engine.views import moving
from devicetrack.tests.unit.engine.views import row
from devicetrack.tests.unit.engine.views import views


class NoGuestsTestCase(base.TestCase):
    """A hypervisor without domains, whose instances a migration may have taken away."""

    scenarios = base.table(
        ('copied live', [moving(DEVICE)], move('running'), 'note', 1),
        ('a guest that was stopped for a resize', [moving(DEVICE)], move('migrating'), 'note', 1),
        ('a revert, at the destination', [moving(DEVICE, 'current')], move('reverting', 'compute-8', 'compute-7'),
         'note', 1),
        ('a revert, at the source', [moving(DEVICE)], move('reverting'), 'critical', 0),
        ('on its way to here', [moving(DEVICE, 'current')], move('running', 'compute-8', 'compute-7'), 'critical', 0),
        ('on one host', [moving(DEVICE)], move('migrating', destination='compute-7'), 'critical', 0),
        ('not begun', [moving(DEVICE)], move('pre-migrating'), 'critical', 0),
        ('over', [moving(DEVICE)], move('failed'), 'critical', 0),
        ('no migration', [row()], {}, 'critical', 0),
        ('migrations that the service does not tell', [moving(DEVICE)], None, 'critical', 0),
        ('one of two', [moving(DEVICE), hosts.row(namespace('b'), 'j', 'active')], move('running'), 'critical', 1),
        ('one of three, beside one that is elsewhere', [
            moving(DEVICE), hosts.row(namespace('b'), 'j', 'active'), hosts.row(namespace('c'), 'k', 'active')],
         move('running'), 'warning', 1),
        names=('rows', 'moves', 'severity', 'leaving'))

    def test_the_instances_that_may_have_left_count_less(self):
        seen = views(there=[DEVICE, namespace('b'), namespace('c')], rows=self.rows, migrations=self.moves,
                     instances={'i': 'here', 'j': 'here', 'k': 'elsewhere'})
        [finding] = [one for one in reconcile.compare(seen) if one.kind == findings.NO_GUESTS]
        self.assertEqual((self.severity, self.leaving > 0),
                         (finding.severity, f'; {self.leaving} of these may have left' in finding.detail))
