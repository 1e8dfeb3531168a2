"""What every virt driver does: the interface's promises, as tests.

A driver's module subclasses ``Contract`` and says on which world it runs.
"""

from __future__ import annotations

from devicetrack.tests.drivers import case
from devicetrack.tests.drivers import cleaning
from devicetrack.tests.drivers import domains
from devicetrack.tests.drivers import having
from devicetrack.tests.drivers import moving

HOST, PROVIDER, assignment = case.HOST, case.PROVIDER, case.assignment


class Contract(having.HavingContract, cleaning.CleaningContract, domains.DomainContract, moving.MovingContract):
    """Every promise of :class:`devicetrack.virt.driver.VirtDriver`. ``world_class`` says on which host.

    The runner takes tests from modules called ``test_…``, so nothing runs here but in the subclasses.
    """
