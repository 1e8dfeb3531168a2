"""A kit that tests whether a service survives a crash: it finds the steps of an operation and kills a process at each.

An operation (:class:`Operation`) runs once. Meanwhile the kit notes every call that its processes make to the store,
the driver and the ledger, and whether the call changed anything. Each such call makes two points: one before it, and
one after its effect and before its return. Then the operation runs again for each point, in a real process that kills
itself there. The kit starts the process again, and checks that

* in use by a guest ⊆ realized on the host ⊆ rows in the store ⊆ held in the ledger: right after the crash, after the
  restart, at the end, and at every moment of the runs that are recorded;
* no device has two owners;
* the bytes that an instance wrote to a device are there as long as the instance owns the device, and gone afterwards;
* no device is wiped under a guest, whoever started the guest;
* after the operation was continued or undone, every device is free or has the owner that the service's own data names.

A kill is one fault, and ``VARIANTS`` has the others. A process loses its database, or the answer to a commit. The
hypervisor or the database hangs. Another manager takes the host over. Somebody starts a guest on devices that are being
given back.

The processes run real parts: the claim manager, a store on SQLite, PostgreSQL or MariaDB, and a compute service
(:class:`ComputeProcess`). The machines (:class:`~devicetrack.testing.crash.machines.Machine`) with their guests and the
service's data have to outlive these processes. So they live in the memory of the kit's process, and the other processes
talk to it.
"""

from devicetrack.testing.crash.explore import Explorer
from devicetrack.testing.crash.explore import Operation
from devicetrack.testing.crash.explore import Report
from devicetrack.testing.crash.explore import Result
from devicetrack.testing.crash.explore import VARIANTS
from devicetrack.testing.crash.machines import Machine
from devicetrack.testing.crash.process import ComputeProcess
from devicetrack.testing.crash.process import Parts
from devicetrack.testing.crash.world import Crashed
from devicetrack.testing.crash.world import World

__all__ = ['ComputeProcess', 'Crashed', 'Explorer', 'Machine', 'Operation', 'Parts', 'Report', 'Result', 'VARIANTS',
           'World']
