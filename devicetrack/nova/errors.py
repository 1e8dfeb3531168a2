"""Translates errors of the claim manager into errors that Nova can handle.

Nova shows the reason of a failed boot to the owner of the instance. The manager's messages name devices of the host, so
they go to the log, and the owner reads only that devices were refused.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
from typing import Any

from keystoneauth1 import exceptions as keystone
from nova import exception as nova_exception
import oslo_messaging

from devicetrack import exception
from devicetrack import log

LOG = log.logger(__name__)


def as_unavailable(instance: Any) -> contextlib.AbstractContextManager[None]:
    """Translate errors of claims, so that the scheduler tries another host."""
    return _translated(instance, lambda reason: nova_exception.ComputeResourcesUnavailable(reason=reason))


def as_failed_check(instance: Any) -> contextlib.AbstractContextManager[None]:
    """Translate errors of the checks before a live migration, so that the guest stays where it is."""
    return _translated(instance, lambda reason: nova_exception.MigrationPreCheckError(reason=reason))


def as_failure(instance: Any) -> contextlib.AbstractContextManager[None]:
    """Translate all other errors."""
    return _translated(instance, nova_exception.InternalError)


@contextlib.contextmanager
def left_to_the_audit(instance: Any, what: str) -> Iterator[None]:
    """Log errors of steps after Nova's own work: that is done, so an error must not undo it. The audit goes on."""
    try:
        yield
    except (exception.DeviceTrackError, nova_exception.NovaException, keystone.ClientException,
            oslo_messaging.MessagingException) as error:
        LOG.warning('%(what)s of instance %(instance)s has to wait for the next audit: %(error)s',
                    {'what': what, 'instance': instance.uuid, 'error': error})


def untold(error: exception.DeviceTrackError) -> Exception:
    """Log an error that no part of the adapter expected, and return it in a form that Nova can pass on."""
    LOG.exception('Devices: %s', error)
    failure: Exception = nova_exception.InternalError(_reason(error))
    return failure


def _reason(error: exception.DeviceTrackError) -> str:
    return f'The host refused the devices ({type(error).__name__}); the log of its compute service has the reason'


@contextlib.contextmanager
def _translated(instance: Any, made: Callable[[str], Exception]) -> Iterator[None]:
    try:
        yield
    except exception.DeviceTrackError as error:
        LOG.error('Devices for instance %(instance)s: %(kind)s: %(error)s',
                  {'instance': instance.uuid, 'kind': type(error).__name__, 'error': error})
        raise made(f'{_reason(error)} for this instance') from error
