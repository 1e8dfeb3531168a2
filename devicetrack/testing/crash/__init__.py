"""Does it survive a crash at every step? A kit that finds the steps of an operation, and kills a process at each.

An operation (:class:`Operation`) runs once while the kit notes every call that its processes make of store, driver and
ledger, and whether that changed anything. Each such call makes two points: before it, and after its effect and before
its return. Then the operation runs again for each point, in a real process that kills itself there. The process is
started anew, and the kit looks whether

* in use by a guest ⊆ realized on the host ⊆ rows in the store ⊆ held in the ledger, right after the crash, after the
  restart, and at the end, and at every moment of the runs that are recorded;
* no device has two owners;
* what an instance wrote to a device is there as long as the instance owns it, and gone afterwards; no device is wiped
  under a guest, whoever started it;
* and, when the operation was carried on or undone, every device is free or owned as the service's own data says.

Besides being killed, a process has its database cut off, and loses the answer to a commit; hypervisor or database hang;
another manager takes its host over; somebody starts a guest on what is being given back: ``VARIANTS``.

What runs in the processes is real: the claim manager, a store on SQLite, PostgreSQL or MariaDB, and a compute service
(:class:`ComputeProcess`). What must outlive them is at the other end of a line: machines in memory
(:class:`~devicetrack.testing.crash.world.Machine`) with their guests, and the service's data.
"""

from devicetrack.testing.crash.explore import Explorer
from devicetrack.testing.crash.explore import Operation
from devicetrack.testing.crash.explore import Report
from devicetrack.testing.crash.explore import Result
from devicetrack.testing.crash.explore import VARIANTS
from devicetrack.testing.crash.process import ComputeProcess
from devicetrack.testing.crash.process import Parts
from devicetrack.testing.crash.world import Crashed
from devicetrack.testing.crash.world import Machine
from devicetrack.testing.crash.world import World

__all__ = ['ComputeProcess', 'Crashed', 'Explorer', 'Machine', 'Operation', 'Parts', 'Report', 'Result', 'VARIANTS',
           'World']
