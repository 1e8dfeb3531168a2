"""Finds the steps of an operation, kills a process at each of them, and checks that the operation survives.

An operation (:class:`Operation`) runs once while the kit notes every call of its processes to store, driver and ledger,
and whether the call changed anything. Each such call has two points: before it, and after its effect but before its
return. Then the operation runs again for each point, in a real process that kills itself there. The kit starts the
process again, and checks that

* in use by a guest ⊆ realized on the host ⊆ rows in the store ⊆ held in the ledger: right after the crash, after the
  restart, at the end, and at every moment of the recorded runs;
* no device has two owners;
* the data of an instance stays on a device as long as the instance owns the device, and is gone afterwards; no device
  is wiped under a guest, whoever started the guest;
* after the operation was finished or undone, every device is free or owned as the service's own data says.

``VARIANTS`` has more faults than the kill: a process is cut off from its database, or loses the answer to a commit; the
hypervisor or the database hangs; another manager takes over the host; somebody starts a guest on a device that is being
given back.

The processes run the real claim manager, a real store on SQLite, PostgreSQL or MariaDB, and a compute service
(:class:`ComputeProcess`). Machines in memory (:class:`~devicetrack.testing.crash.world.Machine`) with their guests, and
the service's data, outlive the processes: they are at the other end of a pipe, the *line*.
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
