"""Records for tests of stores."""

from __future__ import annotations

from typing import Any
import uuid

from devicetrack import vocabulary
from devicetrack.objects import details
from devicetrack.objects.values import Record
from devicetrack.store import api

HOST_UUID = 'b7d5fe3c-0d4a-4bd5-8c2f-6a1d4f0b7f11'
MIGRATION_UUID = '5e0a7c5e-52c5-4f0f-8a3c-7f1f3f0c6d42'
DETAILS = details.to_text(details.VPMEMDetails(
    namespace_uuid='d1a9e1b0-7b1e-4e0c-a8f0-1b1c1d1e1f10', label='4GB', devpath='/dev/dax0.0',
    size_bytes=4 << 30, align_bytes=2 << 20))


def record(identifier: str, **facts: Any) -> Record:
    """A new claim's record of one device; every call is a claim of its own."""
    return Record(
        host_uuid=HOST_UUID, kind='vpmem', identifier=identifier, instance_uuid=str(uuid.uuid4()), migration_uuid=None,
        role=vocabulary.CURRENT, state=vocabulary.CLAIMED, position=0, claim_id=uuid.uuid4().hex, generation=1,
        provider_uuid='9c0f1e5e-6d5b-4f7a-9b57-0c8f2f1f9a01', resource_class='CUSTOM_PMEM_NAMESPACE_4GB',
        parent=None, numa_node=None, details=DETAILS, created_at=1_700_000_000, was_realized=False)._replace(**facts)


def insert(*records: Record) -> api.Changes:
    return api.Changes(insert=records)


def delete(*records: Record) -> api.Changes:
    return api.Changes(delete=records)


def update(before: Record, **facts: Any) -> api.Changes:
    return api.Changes(update=(api.Update(before, moved_on(before, **facts)),))


def context(of: Record, text: str = '{"of": "a move"}', migration_uuid: str = MIGRATION_UUID) -> api.StoredContext:
    """The migration context of the instance that a record is of."""
    return api.StoredContext(of.host_uuid, of.instance_uuid, migration_uuid, text)


def drop(of: Record) -> api.StoredContext:
    """The change that leads to none."""
    return api.StoredContext(of.host_uuid, of.instance_uuid, None, None)


def moved_on(before: Record, **facts: Any) -> Record:
    return before.changed(**{'state': vocabulary.ACTIVE, **facts})
