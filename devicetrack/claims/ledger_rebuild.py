"""Rebuilds the ledger of a started host from the rows and the host, after it was discarded."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import TypeVar

from devicetrack import exception
from devicetrack import log
from devicetrack.claims.locked_ledger import LockedLedger
from devicetrack.claims.rows import Rows
from devicetrack.claims.views import HostViews
from devicetrack.claims.withheld_devices import WithheldDevices
from devicetrack.engine.states import Hold

LOG = log.logger(__name__)

Answer = TypeVar('Answer')


class LedgerRebuild:
    """Reads the host as a start does, without the repairs, for a call that needs the ledger before an audit."""

    def __init__(self, ledger: LockedLedger, rows: Rows, views: HostViews, withheld: WithheldDevices) -> None:
        self._ledger, self._rows, self._views, self._withheld = ledger, rows, views, withheld

    def ensure(self) -> None:
        """Rebuild the ledger if it was discarded. Then it blocks while it reads the host; else it does nothing.

        :raises HypervisorUnreachable, StoreError: no answer; there is no ledger yet
        """
        if self._ledger.is_discarded:
            self._build()

    def until_done(self, take: Callable[[], Answer]) -> Answer:
        """Take devices and record them; do it again on a new ledger if the old one is discarded meanwhile.

        :param take: raises LedgerDiscarded only if it recorded nothing. Any other exception than our own may leave the
            ledger with devices that were only held: then it is discarded. The rows show what was recorded
        :raises HypervisorUnreachable, StoreError: as :meth:`ensure`
        """
        while True:
            try:
                return take()
            except exception.LedgerDiscarded:
                self.ensure()
            except exception.DeviceTrackError:
                raise
            except BaseException:
                self._ledger.discard()
                raise

    def put_back(self, holds: Sequence[Hold]) -> None:
        """Put back the holds of a discarded ledger whose rows were not sent. A newer ledger may have them, too.

        :raises HypervisorUnreachable, StoreError: as :meth:`ensure`; nobody holds them
        """
        self.ensure()                           # first: a rebuild that goes on may know of the rows
        for hold in reversed(holds):
            self._ledger.put_back(hold)

    def _build(self) -> None:
        with self._views.alone():
            if not self._ledger.is_discarded:
                return                          # another thread has rebuilt it
            LOG.warning('An interrupt left the ledger in an unknown state; it is rebuilt from the rows and the host')
            # First: a commit that is answered while the host is read may be in no view.
            in_doubt = self._rows.in_doubt()
            views, marks = self._views.read(), None
            while marks is not self._withheld.marks:        # operators may change them meanwhile
                marks = self._withheld.marks
                self._views.open(views, marks, in_doubt)
        # Rows came and went while the host was read, and a discarded ledger notes nothing.
        self._rows.follow(self._rows.all())
