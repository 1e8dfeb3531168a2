"""Options of the claim manager."""

from __future__ import annotations

from oslo_config import cfg

from devicetrack import conf as registry
from devicetrack import vocabulary

GROUP = 'devicetrack'
STATE_PATH = f'[{GROUP}] state_path'

OPTIONS = [
    registry.PathOpt('state_path', default='/var/lib/devicetrack', help="""
Directory for lock files and, by default, for the SQLite store. The service creates it with mode 0700. It must be on a
local file system, because its locks are flock(2) locks, and must survive a restart of the service.
"""),
    cfg.StrOpt('virt_driver', default='libvirt', help="""
Virt driver: the name of an entry point of ``devicetrack.virt_drivers``. ``fake`` is for tests: its host exists in the
memory of one process, so commands do not see its devices.
"""),
    cfg.ListOpt('device_kinds', default=[], help="""
Device kinds of other packages to load, in addition to ``mdev``, ``pci``, ``vf`` and ``vpmem``: names of entry points in
``devicetrack.libvirt.device_kinds``. Their code runs with the rights of the service and of the commands, so an
installed package is not loaded unless this option has its name.
"""),
    cfg.StrOpt('selection_policy', default=vocabulary.PACK, choices=[
        (vocabulary.PACK, 'fill one parent device before the next, in the order of their names'),
        (vocabulary.SPREAD, 'take from the parent device that has the most room'),
    ], help="""
How a claim chooses among parent devices. ``pack`` keeps whole parents free for types that need one; ``spread`` gives
each guest the least loaded parent and fragments their capacity.
"""),
    cfg.StrOpt('unproven_devices', default=vocabulary.VERIFY, choices=[
        (vocabulary.VERIFY, 'read them in the background, and assign those that are all zeros'),
        (vocabulary.WIPE, 'wipe them in the background, with all their data, then assign them'),
        (vocabulary.TRUST, 'assign them as they are'),
    ], help="""
What to do with a free device that stores data (a persistent-memory namespace) and is not proven clean. The proof is a
file in the state directory: the device was wiped or read as zeros, and no guest used it since. At the first start, and
after the loss of the state directory, no device has a proof. ``verify`` does not write: a device that is not all zeros
stays withheld until ``devicetrack-manage device admit --wipe``. ``wipe`` destroys data that other programs may have
left on a namespace in ``[libvirt] pmem_namespaces``, except on a cordoned device, which waits for ``device uncordon``
or ``device admit --wipe``. With ``trust`` a guest can read the data of an earlier guest; use it only in tests.
"""),
    cfg.IntOpt('wipes_at_once', default=2, min=1, max=64, help="""
Maximum number of wipes that run at the same time in the background: wipes that a crash or an error interrupted, and
wipes of devices that the service releases without waiting. Wipes share the memory bandwidth with the guests. Raise it
if released namespaces on several NUMA nodes become free too slowly. ``[devicetrack_vpmem] wipe_rate_mib_s`` limits the
rate of each wipe.
"""),
    cfg.IntOpt('claim_attempts', default=5, min=1, max=100, help="""
Maximum number of attempts of a claim to choose devices, if the store refuses a choice because another writer owns a
device. Each further attempt costs one read and one transaction. Raise it only if another service writes to the same
rows.
"""),
    cfg.IntOpt('service_late_s', default=30, min=1, help="""
Seconds after which the manager logs that the compute service has not answered a question. A start, an audit or a move
continues to wait, because only the service can end its own code.
"""),
    cfg.BoolOpt('metrics', default=False, help="""
Collect metrics of the manager for Prometheus: claims, refusals, commits, times, wipes, audits. It needs the extra
``metrics`` (prometheus_client), opens no port, and costs a claim some microseconds. After each audit the numbers are
written to ``metrics.prom`` in ``state_path``, and ``devicetrack-manage metrics`` prints them. Only Nova's adapter reads
this option; any other service calls ``devicetrack.metrics.register`` instead.
"""),
    cfg.BoolOpt('instance_names', default=False, help="""
Record what users call their instances (Nova's ``display_name``), so that commands and pictures show the name beside the
UUID of an instance. A name is that of the last claim: a later change shows after the next one. No log, error or metric
has names. They are data of the users, though: they stay in the store until the devices go back, and in the history for
``history_days``. A mirror of the fleet has them too. Only Nova's adapter reads this option. Any other service
gives names itself, or none, and the option changes nothing there.
"""),
    cfg.IntOpt('history_days', default=400, min=1, max=36500, help="""
Number of days for which the events of this host's devices are kept (``devicetrack-manage device history``). The default
covers one year and one month. Lower it if the law limits how long you may keep such data. Each audit deletes at most
1000 older events. The newest 100 events of the host are always kept. The days are counted back from the earliest of
these 100, so a clock that is wrong for a while cannot erase the history.
"""),
    cfg.IntOpt('history_events', default=1_000_000, min=1000, max=1_000_000_000, help="""
Maximum number of events of this host's devices that are kept. The newest stay. An event takes about 0.25 KB in SQLite
and 0.5 KB in other databases, so the default is about 0.25 or 0.5 GB. An instance makes about five events for each
device that it has, from its claim to its end, so the default is 500 such devices a day for 400 days. Lower it where the
store has less room. Every audit deletes at most 1000 surplus events. In a database that hosts share, the manager first
counts the existing events after a restart, 2500 at each audit.
"""),
    registry.PathOpt('machine_id_path', default='/etc/machine-id', help="""
File with the id of this machine (machine-id(5)). The store keeps a digest of the id in the host's row. With it the
service refuses a second machine with the same host name, and a second host name of this machine while the first one has
devices. Change it only in tests that simulate several machines.
"""),
]


def register(conf: cfg.ConfigOpts) -> None:
    registry.register(conf, GROUP, OPTIONS)
