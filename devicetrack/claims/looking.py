"""Reads the views of a host, and asks the compute service for its word.

Nothing is changed here. What cannot be told is unknown in the answer, and never empty.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import gc
import itertools
from typing import Any
from typing import TYPE_CHECKING

from oslo_log import log as logging

from devicetrack.engine import moves
from devicetrack.engine.reconcile import Views
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestRecord
from devicetrack.objects.values import Record
from devicetrack.objects.values import Usage
from devicetrack.virt.driver import VirtDriver

if TYPE_CHECKING:
    from devicetrack.claims.steps import Steps

LOG = logging.getLogger(__name__)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Let the garbage collector wait for as long as the views are read and compared.

    They are some objects a device, nearly all of which stay; the collector would look through them all again and again,
    and find nothing: a third of the time, on a host with thousands of devices.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def read(manager: Steps) -> Views:
    """Innermost first: a device that is taken meanwhile shows up as recorded and never as used without a row."""
    return _ask_service(manager, _look(manager))


def _look(manager: Steps) -> Views:
    """The views of this host, without the service's."""
    usage = manager.driver.get_usage()
    inventory = manager.read_inventory()
    records = tuple(manager.store.records(manager.host_uuid))
    views = Views(usage, inventory, records, None, host=manager.host, host_uuid=manager.host_uuid,
                  node=manager.nodename, boot_changed=manager.boot_id not in (None, manager.driver.boot_id()))
    return with_guests(views, manager.driver)


def with_guests(views: Views, driver: VirtDriver) -> Views:
    """The views with what guests record of themselves, where a domain names a device that is not recorded as its own.

    Elsewhere nobody needs it, and to read it takes as long as to read the usage.
    """
    owners = {(record.kind, record.identifier): record.instance_uuid for record in views.records}
    if all(use.identifier is None or owners.get((use.kind, use.identifier)) == use.domain_uuid
           for use in views.usage.uses):
        return views
    return views._replace(guests=tuple(driver.guest_records()))


def foreign(views: Views) -> set[DeviceKey]:
    """Devices that a domain names and no row does."""
    # Plain tuples, hashed as keys are: there are thousands, and nearly all of them have a row.
    recorded = {(record.kind, record.identifier) for record in views.records}
    return {DeviceKey(use.kind, use.identifier) for use in views.usage.uses
            if use.identifier is not None and (use.kind, use.identifier) not in recorded}


def used(usage: Usage) -> set[DeviceKey]:
    return {DeviceKey(use.kind, use.identifier) for use in usage.uses if use.identifier is not None}


def lost_rows(views: Views) -> dict[DeviceKey, GuestRecord]:
    """Devices that a guest of ours uses, by its own record, and whose row says otherwise or is not there.

    The store is older than the guest then. What several domains name is another matter.
    """
    if not views.guests:
        return {}
    owners = {record.key: record.instance_uuid for record in views.records}
    records = {record.instance_uuid: record for record in views.guests}
    users: dict[DeviceKey, set[str]] = {}
    for use in views.usage.uses:
        if use.identifier is not None:
            users.setdefault(DeviceKey(use.kind, use.identifier), set()).add(use.domain_uuid)
    lost = {}
    for key, domains in users.items():
        record = records.get(min(domains)) if len(domains) == 1 else None
        if record is not None and owners.get(key) != record.instance_uuid and any(
                (device.kind, device.identifier) == key and not device.beside for device in record.devices):
            lost[key] = record
    return lost


def by_instance(records: Iterable[Record]) -> list[list[Record]]:
    return [list(rows) for _, rows in itertools.groupby(records, key=lambda record: record.instance_uuid)]


# -- the service's word -----------------------------------------------------------------------------------------------


def _ask_service(manager: Steps, views: Views) -> Views:
    return views._replace(instances=instances(manager), migrations=migrations(manager, named_migrations(views.records)))


def named_migrations(records: Iterable[Record]) -> list[str]:
    """The migrations that rows name."""
    return sorted({record.migration_uuid for record in records if record.migration_uuid is not None})


def instances(manager: Steps) -> Mapping[str, str] | None:
    found: Mapping[str, str] | None = answer(manager, 'instances')
    return found


def migrations(manager: Steps, uuids: Sequence[str]) -> dict[str, moves.Move] | None:
    """The service's migrations: those with these UUIDs, and others that it tells of; None when it does not answer."""
    found = answer(manager, 'migrations', uuids)
    if found is None:
        return None
    said = {}
    for uuid, migration in found.items():
        try:
            said[uuid] = moves.Move.of(migration)
        except AttributeError as error:
            LOG.warning('The compute service says something of migration %(uuid)s that means nothing: %(error)s',
                        {'uuid': uuid, 'error': error})
    return said


def fail_migration(manager: Steps, migration_uuid: str) -> None:
    """Tell the service that a newer migration took the place of this one."""
    LOG.warning('Migration %s was replaced by a newer one of its instance', migration_uuid)
    answer(manager, 'fail_migration', migration_uuid)


def answer(manager: Steps, question: str, *arguments: Any) -> Any:
    """What the service says; None when it was not handed in, has no such method, or cannot tell."""
    ask = getattr(manager.service, question, None)
    if ask is None:
        return None
    try:
        return ask(*arguments)
    except Exception as error:
        # Whatever goes wrong in the service's own code means the same here: it cannot tell.
        LOG.warning('The compute service does not answer %(question)s: %(error)s',
                    {'question': question, 'error': type(error).__name__})
        return None
