"""PCI functions that the compute service hands out itself, and that this library only cleans between two guests.

The service tells which ones they are. They have no rows. So when the service gets a function, its details are recorded
in the file of :mod:`.pci_memory`, as a row has them: which card it is, its driver, and the namespaces of a disk. After
the guest, the function is taken back by these details, as the kind :mod:`.pci` takes one back. A function without such
a record is not cleaned, because nobody knows whether it is the one that the guest had.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from typing import Any
from typing import cast
from typing import Final

from devicetrack import exception
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import PCIDetails
from devicetrack.objects.values import Realized
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt.kinds import api
from devicetrack.virt.libvirt.kinds import pci
from devicetrack.virt.libvirt.kinds import pci_cards
from devicetrack.virt.libvirt.kinds import pci_matching
from devicetrack.virt.libvirt.kinds import pci_options
from devicetrack.virt.libvirt.kinds import pci_places

NOT_RECORDED: Final = 'nothing recorded which card its guest had'


class _Listed(pci_matching.Match):
    """Matches the functions at some addresses."""

    addresses: Collection[str] = ()

    def matches(self, function: pci_sysfs.Function) -> bool:
        return function.address in self.addresses

    def may_match(self, function: pci_sysfs.Function) -> bool:
        return self.matches(function)


class OfService(pci.PCI):
    """The kind ``pci`` for functions of the service. It has a state directory of its own.

    ``are_free`` returns, by the addresses of these functions, whether the service may give them to its next guest now.
    """

    are_free: Callable[[], Mapping[str, bool]] = staticmethod(dict)

    def __init__(self, conf: Any, hypervisor: Any) -> None:
        self._listed = _Listed()
        super().__init__(conf, hypervisor)

    def read_options(self, conf: Any) -> pci_options.PCIOptions:
        return pci_options.of_service(conf, self._listed)

    @property
    def lent(self) -> Mapping[str, bool]:
        """Return the recorded functions, and whether the service has given each to no guest since."""
        return {name: is_free for name, (_row, is_free) in self._memory.known.lent.items()}

    def note_given(self, names: Collection[str]) -> None:
        """Record that the service gave functions to guests."""
        self._memory.note_given(names)

    def prepare(self, recorded: Mapping[str, str], locked: api.Locked) -> None:
        # A function stays at its address here, because the service knows it by that. Another card there is another one.
        rows = pci_places.rows({name: row for name, (row, _free) in self._memory.known.lent.items()})
        self._memory.compare({name: self._like_row(row) for name, row in rows.items()}, {})

    def stock(self) -> api.Stock:
        self._listed.addresses = frozenset(self.are_free())
        return super().stock()

    def realize(self, assignment: DeviceAssignment) -> Realized:
        """Record a function that the service hands out from now on, if it could be cleaned after a guest.

        :raises RealizeFailed: it could not
        """
        made = super().realize(assignment)
        if not pci_cards.is_known(cast(PCIDetails, details.from_text(made.details))):
            raise exception.RealizeFailed(*assignment.key, 'nothing would tell it from another one after a guest: its '
                                          'serial number cannot be read now')
        # A guest may have got it while it was read.
        self._memory.lend(assignment.identifier, made.details, lambda: self.are_free()[assignment.identifier])
        return made

    def unclaim(self, assignment: DeviceAssignment, lock_fd: int) -> None:
        super().unclaim(self._recorded_one(assignment), lock_fd)

    def _recorded_one(self, assignment: DeviceAssignment) -> DeviceAssignment:
        """Return a function as it was when the service got it.

        :raises UnclaimFailed: that is not known
        """
        row, _is_free = self._memory.known.lent.get(assignment.identifier, ('', False))
        if not row:
            raise exception.UnclaimFailed(*assignment.key, NOT_RECORDED)
        recorded: Any = assignment.obj_clone()
        recorded.details = details.from_text(row)
        return cast(DeviceAssignment, recorded)
