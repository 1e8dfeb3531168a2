"""Options of the claim manager."""

from __future__ import annotations

from oslo_config import cfg

from devicetrack import conf as registry
from devicetrack import vocabulary

GROUP = 'devicetrack'

OPTIONS = [
    cfg.StrOpt('state_path', default='/var/lib/devicetrack', help="""
Directory for lock files and, by default, for the SQLite store. It is made with mode 0700 when it is missing. It must be
on a local file system, because the locks in it are flock(2) locks, and it must outlive a restart of the service.
"""),
    cfg.StrOpt('virt_driver', default='libvirt', help="""
Name of the virt driver: an entry point of ``devicetrack.virt_drivers``. ``fake`` keeps a host in the memory of one
process and is for tests: commands, which are other processes, do not see its devices.
"""),
    cfg.StrOpt('selection_policy', default=vocabulary.PACK, choices=[
        (vocabulary.PACK, 'fill one parent device before the next, in the order of their names'),
        (vocabulary.SPREAD, 'take from the parent device that has the most room'),
    ], help="""
How devices are chosen over parent devices. ``pack`` keeps whole parents free, for types that need a whole one;
``spread`` gives each guest the least loaded parent and costs fragmentation.
"""),
    cfg.IntOpt('claim_attempts', default=5, min=1, max=100, help="""
How often a claim chooses again when the store refuses its devices because other writers own them. Each further attempt
costs one read and one transaction. Raise it only when another service writes to the same rows.
"""),
    cfg.StrOpt('machine_id_path', default='/etc/machine-id', help="""
File with this machine's id (machine-id(5)). A digest of it is kept with the host's row, so that a second machine with
the same host name is refused, and this machine under a second name while it has devices under the first. Change it only
in a test that plays several machines: two hosts on one machine need a store each.
"""),
]


def register(conf: cfg.ConfigOpts) -> None:
    registry.register(conf, GROUP, OPTIONS)
