"""What the caller of a claim holds."""

from __future__ import annotations

from types import TracebackType
from typing import Any
from typing import Protocol
from typing import Self

from oslo_log import log as logging

from devicetrack.objects import InstanceResources

LOG = logging.getLogger(__name__)


class _Giver(Protocol):
    def abort_instance_claim(self, context: Any, instance: Any, claim_id: str | None = None,
                             migration_uuid: str | None = None) -> None: ...


class Claim:
    """Devices that are held and recorded for an instance.

    A claim acts when it is made, so it needs no ``with``. In a ``with`` block an error that leaves the block gives
    back what this claim took, and goes on. ``migration`` is that of a claim for a move, else None.
    """

    __slots__ = ('resources', 'claim_id', 'migration', '_manager', '_context', '_instance', '_over')

    def __init__(self, manager: _Giver, context: Any, instance: Any, claim_id: str,
                 resources: InstanceResources, migration: Any = None, over: bool | None = None) -> None:
        self.resources = resources
        self.claim_id = claim_id
        self.migration = migration
        self._manager, self._context, self._instance = manager, context, instance
        self._over = not resources.assignments if over is None else over

    def abort(self) -> None:
        """Give back what this claim took, and nothing that another claim took since. A second call does nothing.

        :raises DeviceInUse: the guest is there still; its devices stay recorded and held
        :raises DriverError, StoreError: not everything could be given back; the audit goes on with it
        """
        if not self._over:
            self._manager.abort_instance_claim(self._context, self._instance, self.claim_id,
                                               None if self.migration is None else self.migration.uuid)
            self._over = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        if kind is None:
            return
        try:
            self.abort()
        except Exception as not_given:
            # The error of the block is the caller's business; this one is the audit's.
            LOG.warning('Claim %(claim)s could not be given back, the audit will go on with it: %(error)s',
                        {'claim': self.claim_id, 'error': not_given})
