"""Every metric: its name, its type, its labels and what it says. Names follow Prometheus and OpenMetrics.

Each sample has the label ``host`` too. No label names an instance, a user or a project, and each has a bounded number
of values: calls, reasons and kinds of this library, and the resource classes and parent devices of the host.
"""

from __future__ import annotations

from typing import Final
from typing import NamedTuple

COUNTER: Final = 'counter'
GAUGE: Final = 'gauge'
HISTOGRAM: Final = 'histogram'
SUMMARY: Final = 'summary'
INFO: Final = 'info'

HOST: Final = 'host'

_QUICK: Final = (.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1., 2.5, 5., 10.)
_SLOW: Final = (.01, .025, .05, .1, .25, .5, 1., 2.5, 5., 10., 30., 60.)
# A release may wipe terabytes.
_SLOWEST: Final = (.01, .05, .1, .5, 1., 5., 10., 60., 300., 1800., 7200.)


class Family(NamedTuple):
    """One metric.

    ``name`` lacks the ending that its type gives to samples, as ``_total``. ``labels`` lack ``host``. ``bounds`` are
    the upper bounds of a histogram's buckets, in seconds.
    """

    name: str
    type: str
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()

    @property
    def shown(self) -> str:
        """The name that queries have."""
        return self.name + {COUNTER: '_total', INFO: '_info'}.get(self.type, '')


MANAGER: Final = Family('devicetrack_manager', INFO, 'The release of devicetrack that manages the host.', ('version',))
TAKES_CLAIMS: Final = Family(
    'devicetrack_accepts_claims', GAUGE, '1 while the host takes claims; 0 while the service has disabled its node, '
    'or its store is older than its guests.')

# -- what the manager did, since its process registered it ------------------------------------------------------------

CLAIMS: Final = Family('devicetrack_claims', COUNTER, 'Claims that took devices.', ('call',))
REFUSALS: Final = Family('devicetrack_claim_refusals', COUNTER, 'Claims that failed, by reason.', ('call', 'reason'))
CLAIM_SECONDS: Final = Family(
    'devicetrack_claim_duration_seconds', HISTOGRAM, 'Time of a claim, commit included, also of one that failed.',
    ('call',), _QUICK)
COMMITS: Final = Family(
    'devicetrack_commits', COUNTER, 'Transactions of the manager: committed, refused by the store, or unanswered, '
    'whose outcome is in doubt.', ('outcome',))
COMMIT_SECONDS: Final = Family(
    'devicetrack_commit_duration_seconds', HISTOGRAM, 'Time of a transaction of the manager, whatever its outcome.',
    (), _QUICK)
SETTLED: Final = Family(
    'devicetrack_commits_settled', COUNTER, 'Commits in doubt whose outcome the store has said since.', ('outcome',))
REALIZE_SECONDS: Final = Family(
    'devicetrack_realize_duration_seconds', HISTOGRAM, 'Time to make the devices of an instance ready for its guest, '
    'also when that failed.', (), _SLOW)
REALIZE_FAILURES: Final = Family(
    'devicetrack_realize_failures', COUNTER, 'Calls of realize that failed, by reason.', ('reason',))
RELEASE_SECONDS: Final = Family(
    'devicetrack_release_duration_seconds', HISTOGRAM, 'Time of a release, also of one that failed. It has a wipe in '
    'it when the service waits for wipes.', (), _SLOWEST)
RELEASE_FAILURES: Final = Family(
    'devicetrack_release_failures', COUNTER, 'Calls of release that failed, by reason. The audit goes on with them.',
    ('reason',))
WIPED_BYTES: Final = Family(
    'devicetrack_wiped_bytes', COUNTER, 'Bytes of devices that were wiped and proven clean.', ('device_kind',))
WIPE_SECONDS: Final = Family(
    'devicetrack_wipe_duration_seconds', SUMMARY, 'Time of wipes that were proven, reading back included.',
    ('device_kind',))
WIPE_FAILURES: Final = Family(
    'devicetrack_wipe_failures', COUNTER, 'Tries to wipe a device that failed. It stays held; audits try again.',
    ('device_kind',))
AUDIT_SECONDS: Final = Family(
    'devicetrack_audit_duration_seconds', HISTOGRAM, 'Time of an audit, also of one that was given up.', (), _SLOW)
AUDIT_FAILURES: Final = Family(
    'devicetrack_audit_failures', COUNTER, 'Audits that were given up, as when the hypervisor did not answer.')

# -- what is so now ---------------------------------------------------------------------------------------------------

DEVICES: Final = Family(
    'devicetrack_devices', GAUGE, 'Devices of the host: free, held by an instance, releasing (being wiped or removed), '
    'or withheld from everybody.', ('device_kind', 'resource_class', 'parent', 'state'))
AVAILABLE: Final = Family(
    'devicetrack_devices_available', GAUGE, 'Devices that claims can have now, with those that are made when claimed. '
    'The types of one parent share what it can make.', ('device_kind', 'resource_class', 'parent'))
WITHHELD: Final = Family(
    'devicetrack_devices_withheld', GAUGE, 'Devices that have a reason to be withheld, by the last audit. A device may '
    'have several reasons.', ('reason',))
FINDINGS: Final = Family(
    'devicetrack_findings', GAUGE, 'Findings of the last audit.', ('kind', 'severity'))
LAST_AUDIT: Final = Family(
    'devicetrack_last_audit_timestamp_seconds', GAUGE, "When the manager's last audit that was not given up ended, in "
    'seconds since 1970.')
IN_DOUBT: Final = Family(
    'devicetrack_commits_in_doubt', GAUGE, 'Commits whose outcome the store has not said yet. Their devices stay held.')
WIPES_RUNNING: Final = Family('devicetrack_wipes_running', GAUGE, 'Devices that are being wiped in the background.')
WIPES_WAITING: Final = Family('devicetrack_wipes_waiting', GAUGE, 'Devices that wait for a wipe in the background.')
WIPE_RATE: Final = Family(
    'devicetrack_wipe_bytes_per_second', GAUGE, 'Bytes a second that the wipes under way write, or read back, '
    'together.')

FAMILIES: Final = (
    MANAGER, TAKES_CLAIMS, CLAIMS, REFUSALS, CLAIM_SECONDS, COMMITS, COMMIT_SECONDS, IN_DOUBT, SETTLED, REALIZE_SECONDS,
    REALIZE_FAILURES, RELEASE_SECONDS, RELEASE_FAILURES, DEVICES, AVAILABLE, WITHHELD, WIPED_BYTES, WIPE_SECONDS,
    WIPE_FAILURES, WIPES_RUNNING, WIPES_WAITING, WIPE_RATE, FINDINGS, LAST_AUDIT, AUDIT_SECONDS, AUDIT_FAILURES)
