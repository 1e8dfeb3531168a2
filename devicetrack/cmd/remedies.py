"""What an operator does about a store whose schema is not of this release. Beside Nova, that differs."""

from __future__ import annotations

from devicetrack import exception
from devicetrack.nova import process
from devicetrack.store.sql import schema


def is_made_at_start(error: exception.SchemaMismatch) -> bool:
    """Whether the service itself makes the schema of this release when it starts, as Nova's does."""
    return process.has_nova() and error.remedy == schema.remedy(error.found) and (
        error.found is None or schema.is_known(error.found))


def of(error: exception.SchemaMismatch) -> str:
    """Return the remedy on this host. A store that was lost must not begin anew, empty, with Nova either."""
    if not is_made_at_start(error):
        return error.remedy
    if error.found is not None:
        return 'start the service, which brings it to this release'
    return ('start the service, which makes it; before the first start, devicetrack-nova-adopt --check checks the '
            'host; if the store was lost, run devicetrack-manage recover --from-hypervisor --host NAME instead')
