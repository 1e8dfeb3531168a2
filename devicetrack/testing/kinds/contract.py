"""The promises of a device kind, as tests. A package runs them for its own kind::

    from devicetrack.testing.kinds import contract
    from devicetrack.testing.kinds import world

    class OurWorld(world.KindWorld):
        kind_class = OurKind

        def make_host(self):
            ...

    class OurKindTestCase(contract.KindContract):
        world_class = OurWorld

To test several worlds, also derive the class from ``testscenarios.WithScenarios``, and set ``world_class`` in its
scenarios. The tests need the extras ``libvirt`` and ``test``.
"""

from __future__ import annotations

from devicetrack.testing.kinds import giving
from devicetrack.testing.kinds import guests
from devicetrack.testing.kinds import privileges
from devicetrack.testing.kinds import reach
from devicetrack.testing.kinds import stock


class KindContract(stock.StockContract, guests.GuestContract, giving.GivingContract, reach.ReachContract,
                   privileges.PrivilegesContract):
    """The promises of :class:`devicetrack.virt.libvirt.kinds.api.DeviceKind`, on the host of ``world_class``.

    A test is skipped if the world or the kind does not have something that it needs, and says what. A subclass may have
    tests of its own. In each test ``world`` is the host, ``kind`` is the kind as a starting service makes it on this
    host, and ``instance`` is the UUID of an instance.
    """
