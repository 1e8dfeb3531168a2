"""The findings of an audit: their kinds, and the facts of each.

A finding is one difference between the views of a host. It says what is held because of it, and proposes a fix.
``repair`` names the repair if :mod:`devicetrack.engine.repair_plan` can do it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from typing import NamedTuple

from devicetrack.engine.views import Views
from devicetrack.objects.compact import Key
from devicetrack.objects.values import DeviceKey

USED_UNRECORDED: Final = 'used but unrecorded'
RECORDED_UNUSED: Final = 'recorded but unused'
WRONG_OWNER: Final = 'used by another than its owner'
SHARED: Final = 'used by several'
GONE: Final = 'gone from the host'
UNHEALTHY: Final = 'unhealthy'
RELEASE_PENDING: Final = 'release pending'
ABANDONED: Final = 'owned by an instance that is over'
UNKNOWN_OWNER: Final = 'owned by an unknown instance'
IN_DOUBT: Final = 'commit in doubt'
VIEW_UNKNOWN: Final = 'view unknown'
LEFT_OVER: Final = 'left over'
STALE_MIGRATION: Final = 'stale migration'
DETAILS_DIFFER: Final = 'details differ'
NO_GUESTS: Final = 'no guest at all'
NO_PROVIDER: Final = 'no provider yet'
EXCLUSION_BROKEN: Final = 'exclusion broken'
NOT_AS_CONFIGURED: Final = 'not as configured'
NOT_REALIZED: Final = 'not realized'
ROW_LOST: Final = 'row lost'
ROW_DAMAGED: Final = 'row damaged'
NOT_CLEANED: Final = 'not cleaned'
NOT_RECOVERABLE: Final = 'not recoverable'
KINDS: Final = (USED_UNRECORDED, RECORDED_UNUSED, WRONG_OWNER, SHARED, GONE, UNHEALTHY, RELEASE_PENDING, ABANDONED,
                UNKNOWN_OWNER, IN_DOUBT, VIEW_UNKNOWN, LEFT_OVER, STALE_MIGRATION, DETAILS_DIFFER, NO_GUESTS,
                NO_PROVIDER, EXCLUSION_BROKEN, NOT_AS_CONFIGURED, NOT_REALIZED, ROW_LOST, ROW_DAMAGED, NOT_CLEANED,
                NOT_RECOVERABLE)

# Why a device counts as gone although the host may have it: nobody looks for it.
NO_OPTION: Final = 'no option names it'

# The repairs that a finding may name; devicetrack.engine.repair_plan describes them.
WRITE_AGAIN: Final = 'write again'
ADOPT: Final = 'adopt'
UPDATE_DETAILS: Final = 'update details'
RETRY_RELEASE: Final = 'retry release'
GIVE_BACK: Final = 'give back'


class Finding(NamedTuple):
    """One difference between views.

    Both parts of ``device`` are '' when the finding is about a whole view. ``recorded_owner`` is the owner in the
    record, ``users`` are the owners by the hypervisor. ``generation`` is that of the row, 0 without a row: if a second
    look shows the finding with the same generation, the difference is not a passing one.

    ``service`` is the state of the recorded owner by the compute service, None when unknown. ``since`` says
    since when it is so, as far as an audit or a failed try noted it, in seconds since the epoch; it is only a label,
    and None when unknown.
    ``repair`` is the possible repair, None when a person must decide or nothing needs to be done.
    """

    kind: str
    severity: str
    device: DeviceKey
    recorded_owner: str | None
    users: tuple[str, ...]
    generation: int
    detail: str
    held: str
    proposal: str
    service: str | None = None
    since: int | None = None
    repair: str | None = None

    def __str__(self) -> str:
        device = f'{self.device if self.device.identifier else self.device.kind}: ' if self.device.kind else ''
        return f'{device}{self.kind}: {self.detail}'


NO_DEVICE = DeviceKey('', '')


def about(views: Views, kind: str, severity: str, key: Key, detail: str, proposal: str, users: tuple[str, ...] = (),
          repair: str | None = None) -> Finding:
    """Make a finding about one device, with what the record and the service say of its owner."""
    owner = views.owners.get(key)
    return Finding(kind, severity, DeviceKey(key[0], key[1] or ''), owner.instance_uuid if owner else None, users,
                   owner.generation if owner else 0, detail, 'the device', proposal,
                   (views.instances or {}).get(owner.instance_uuid) if owner else None, None, repair)


def confirmed(first: Collection[Finding], second: Collection[Finding]) -> list[Finding]:
    """The findings of the second look that the first one showed too, with the row unchanged."""
    seen = {(finding.kind, finding.device, finding.generation, finding.users) for finding in first}
    return [finding for finding in second
            if (finding.kind, finding.device, finding.generation, finding.users) in seen]
