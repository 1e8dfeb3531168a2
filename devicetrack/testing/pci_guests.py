"""Does to the PCI functions of guests what libvirt does, on a :class:`~devicetrack.testing.pci.PCIHost`.

::

    functions = pci_guests.GuestFunctions(host)
    functions.start('guest', ['0000:01:00.0'])      # vfio-pci has the function, and QEMU has it open
    functions.end('guest')                          # its earlier driver has it again
    functions.dies = True                           # libvirt is killed: from now on nobody gives functions back
"""

from __future__ import annotations

from collections.abc import Iterable
import contextlib

from devicetrack.testing import pci


class GuestFunctions:
    """The functions that guests have with ``managed='yes'``.

    While ``dies`` is true, libvirt gives nothing back: functions stay with vfio-pci, as if somebody killed libvirt at
    the wrong moment.
    """

    def __init__(self, host: pci.PCIHost) -> None:
        self.host = host
        self.dies = False
        self._had: dict[str, dict[str, str | None]] = {}
        self._open: dict[str, contextlib.ExitStack] = {}

    def start(self, guest: str, addresses: Iterable[str]) -> None:
        """Give a guest its functions."""
        had = self._had.setdefault(guest, {})
        opened = self._open.setdefault(guest, contextlib.ExitStack())
        for address in addresses:
            driver = self.host.driver_of(address)
            if driver != pci.VFIO_PCI:
                had[address] = driver
                self.host.unbind(address)
                self.host.bind(address, pci.VFIO_PCI)
            opened.enter_context(self.host.opened(address))

    def end(self, guest: str) -> None:
        """Take back the functions of a guest that has ended. A guest without functions is no error."""
        self._open.pop(guest, contextlib.ExitStack()).close()
        for address, driver in self._had.pop(guest, {}).items():
            if not self.dies and address in self.host.addresses:
                self._give_back(address, driver)

    def boot(self) -> None:
        """Boot the host: guests are gone, and every function has its own driver."""
        for guest in list(self._open):
            self._open.pop(guest).close()
        for had in self._had.values():
            for address, driver in had.items():
                self._give_back(address, driver)
        self._had.clear()

    def _give_back(self, address: str, driver: str | None) -> None:
        if self.host.driver_of(address) == pci.VFIO_PCI:
            self.host.unbind(address)
            if driver is not None:
                self.host.bind(address, driver)
