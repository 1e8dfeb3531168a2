"""Builds the ledger of a started host anew, from the rows and the host, after it was discarded."""

from __future__ import annotations

from devicetrack import log
from devicetrack.claims.locked_ledger import LockedLedger
from devicetrack.claims.rows import Rows
from devicetrack.claims.views import HostViews
from devicetrack.claims.withheld import WithheldDevices

LOG = log.logger(__name__)


class LedgerRebuild:
    """For who needs the ledger, and waits for no audit: the same reading as at a start, without its repairs."""

    def __init__(self, ledger: LockedLedger, rows: Rows, views: HostViews, withheld: WithheldDevices) -> None:
        self._ledger, self._rows, self._views, self._withheld = ledger, rows, views, withheld

    def ensure(self) -> None:
        """Have a ledger. Blocks for as long as reading the host takes, after an interrupt; else it does nothing.

        :raises HypervisorUnreachable, StoreError: no answer; there is none yet
        """
        if self._ledger.is_discarded:
            self._build()

    def _build(self) -> None:
        with self._views.alone():
            if not self._ledger.is_discarded:
                return                          # somebody else did it meanwhile
            LOG.warning('An interrupt left the ledger in an unknown state; it is built anew from the rows and the host')
            views, marks = self._views.read(), None
            while marks is not self._withheld.marks:        # which operators may change meanwhile
                marks = self._withheld.marks
                self._views.open(views, marks, self._rows.in_doubt())
        # Rows came and went while the host was read, and a discarded ledger notes nothing.
        self._rows.follow(self._rows.all())
