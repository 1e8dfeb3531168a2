"""Every promise of a device kind, as tests. Another package runs them for its own kind::

    from devicetrack.testing.kinds import contract
    from devicetrack.testing.kinds import world

    class OurWorld(world.KindWorld):
        kind_class = OurKind

        def make_host(self):
            ...

    class OurKindTestCase(contract.KindContract):
        world_class = OurWorld

Where several worlds are wanted, a class that also derives from ``testscenarios.WithScenarios`` takes ``world_class``
from its scenarios. The tests need the extras ``libvirt`` and ``test``.
"""

from __future__ import annotations

from devicetrack.testing.kinds import giving
from devicetrack.testing.kinds import guests
from devicetrack.testing.kinds import privileges
from devicetrack.testing.kinds import stock


class KindContract(stock.StockContract, guests.GuestContract, giving.GivingContract, privileges.PrivilegesContract):
    """Every promise of :class:`devicetrack.virt.libvirt.kinds.api.DeviceKind`, on the host of ``world_class``.

    A test that needs what the world cannot do is skipped, and its reason names the method of the world.
    """
