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
    'devicetrack_accepts_claims', GAUGE, '1 while the host accepts claims; 0 while its store is older than its guests.')

# -- what the manager did, since its process registered it ------------------------------------------------------------

CLAIMS: Final = Family('devicetrack_claims', COUNTER, 'Claims that took devices.', ('call',))
REFUSALS: Final = Family('devicetrack_claim_refusals', COUNTER, 'Claims that failed, by reason.', ('call', 'reason'))
SHORTAGES: Final = Family(
    'devicetrack_claim_shortages', COUNTER, 'Claims that were refused because devices of this class are lacking, by '
    'reason.', ('resource_class', 'reason'))
CLAIM_SECONDS: Final = Family(
    'devicetrack_claim_duration_seconds', HISTOGRAM, 'Time of a claim, commit included, also of one that failed.',
    ('call',), _QUICK)
COMMITS: Final = Family(
    'devicetrack_commits', COUNTER, 'Transactions of the manager: committed, refused by the store, or unanswered, '
    'which means that the outcome is unknown.', ('outcome',))
COMMIT_SECONDS: Final = Family(
    'devicetrack_commit_duration_seconds', HISTOGRAM, 'Time of a transaction of the manager, whatever its outcome.',
    (), _QUICK)
SETTLED: Final = Family(
    'devicetrack_commits_settled', COUNTER, 'Commits in doubt whose outcome the store has told later.', ('outcome',))
REALIZE_SECONDS: Final = Family(
    'devicetrack_realize_duration_seconds', HISTOGRAM, 'Time to make the devices of an instance ready for its guest, '
    'also if that failed.', (), _SLOW)
REALIZE_FAILURES: Final = Family(
    'devicetrack_realize_failures', COUNTER, 'Calls of realize that failed, by reason.', ('reason',))
RELEASE_SECONDS: Final = Family(
    'devicetrack_release_duration_seconds', HISTOGRAM, 'Time of a release, also of one that failed. It includes '
    'the wipe if the service waits for wipes.', (), _SLOWEST)
RELEASE_FAILURES: Final = Family(
    'devicetrack_release_failures', COUNTER, 'Calls of release that failed, by reason. Audits continue these releases.',
    ('reason',))
WIPED_BYTES: Final = Family(
    'devicetrack_wiped_bytes', COUNTER, 'Bytes of devices that were wiped and proven clean.', ('device_kind',))
WIPE_SECONDS: Final = Family(
    'devicetrack_wipe_duration_seconds', SUMMARY, 'Time of wipes that were proven, including the reading back.',
    ('device_kind',))
WIPE_FAILURES: Final = Family(
    'devicetrack_wipe_failures', COUNTER, 'Failed tries to wipe a device. The device stays held, and audits try again.',
    ('device_kind',))
AUDIT_SECONDS: Final = Family(
    'devicetrack_audit_duration_seconds', HISTOGRAM, 'Time of an audit, also of one that failed.', (), _SLOW)
AUDIT_FAILURES: Final = Family(
    'devicetrack_audit_failures', COUNTER, 'Audits that failed, for example because the hypervisor did not answer.')

# -- what is so now ---------------------------------------------------------------------------------------------------

DEVICES: Final = Family(
    'devicetrack_devices', GAUGE, 'Devices of the host: free, held by an instance, releasing (being wiped or removed), '
    'or withheld from everybody.', ('device_kind', 'resource_class', 'parent', 'state'))
AVAILABLE: Final = Family(
    'devicetrack_devices_available', GAUGE, 'Devices that claims can get now, including those that can still be made. '
    'The types of one parent share the number that it can make.', ('device_kind', 'resource_class', 'parent'))
WITHHELD: Final = Family(
    'devicetrack_devices_withheld', GAUGE, 'Withheld devices by reason, as of the last audit. A device may have '
    'several reasons.', ('reason',))
FINDINGS: Final = Family(
    'devicetrack_findings', GAUGE, 'Findings of the last audit.', ('kind', 'severity'))
LAST_AUDIT: Final = Family(
    'devicetrack_last_audit_timestamp_seconds', GAUGE,
    "End of the manager's last complete audit, in seconds since 1970.")
IN_DOUBT: Final = Family(
    'devicetrack_commits_in_doubt', GAUGE, 'Commits whose outcome is still unknown. Their devices stay held.')
WIPES_RUNNING: Final = Family(
    'devicetrack_wipes_running', GAUGE, 'Devices that the manager is wiping in the background.')
WIPES_WAITING: Final = Family('devicetrack_wipes_waiting', GAUGE, 'Devices that wait for a wipe in the background.')
WIPE_RATE: Final = Family(
    'devicetrack_wipe_bytes_per_second', GAUGE, 'Bytes a second that all running wipes write or read back '
    'together.')

FAMILIES: Final = (
    MANAGER, TAKES_CLAIMS, CLAIMS, REFUSALS, SHORTAGES, CLAIM_SECONDS, COMMITS, COMMIT_SECONDS, IN_DOUBT, SETTLED,
    REALIZE_SECONDS, REALIZE_FAILURES, RELEASE_SECONDS, RELEASE_FAILURES, DEVICES, AVAILABLE, WITHHELD, WIPED_BYTES,
    WIPE_SECONDS, WIPE_FAILURES, WIPES_RUNNING, WIPES_WAITING, WIPE_RATE, FINDINGS, LAST_AUDIT, AUDIT_SECONDS,
    AUDIT_FAILURES)
