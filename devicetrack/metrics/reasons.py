"""Why a call failed, in a word: a bounded number of them, since each is a value of a label."""

from __future__ import annotations

from typing import Final

from devicetrack import exception

FAULT: Final = 'fault'

# A class stands before its bases.
_REASONS: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (exception.UnknownProvider, 'unknown_provider'),
    (exception.NoFit, 'no_fit'),
    (exception.BadRequest, 'bad_request'),
    (exception.InstanceHasStaleRows, 'stale_rows'),
    (exception.InstanceHasClaim, 'already_claimed'),
    (exception.InstanceNotClaimed, 'not_claimed'),
    (exception.NoDevicePair, 'no_partner'),
    (exception.LiveMigrationRefused, 'live_migration_refused'),
    (exception.MigrationSuperseded, 'migration_superseded'),
    (exception.MigrationUndecided, 'migration_undecided'),
    (exception.NodeUnavailable, 'node_unavailable'),
    (exception.NotReady, 'not_ready'),
    (exception.RowsMissing, 'rows_missing'),
    (exception.OutcomeUnknown, 'outcome_unknown'),
    (exception.HostTakenOver, 'taken_over'),
    (exception.StoreError, 'store'),
    (exception.HypervisorUnreachable, 'hypervisor'),
    (exception.DeviceInUse, 'in_use'),
    (exception.DriverError, 'device'),
    (exception.DeviceTrackError, 'other'),
)

REASONS: Final = (*(reason for _error, reason in _REASONS), FAULT)


def reason_of(error: BaseException) -> str:
    """The word for an error; ``fault`` for one that is not of this library, as a signal's or a mistake's."""
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), FAULT)
