"""Simulated cards. Their driver gives vGPU types to virtual functions.

::

    cards = self.useFixture(vgpu.Cards())
    functions = cards.add('0000:3d:00.0', 4, {'558': ('NVIDIA L40-1B', 2)})
    conf.set_override('sysfs_root', cards.root, group='devicetrack_vf')
    conf.set_override('enabled_types', ['558'], group='devicetrack_vf')
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import errno
import os
from typing import NamedTuple

import fixtures

from devicetrack.virt.libvirt import pci_privileged
from devicetrack.virt.libvirt import privileged
from devicetrack.virt.libvirt import root

NO_TYPE = '0'


class _Function(NamedTuple):
    card: str
    group: int


class Cards(fixtures.Fixture):
    """A part of sysfs in a temporary directory, and a driver that accepts types as NVIDIA's does.

    All virtual functions of a card that have a type have the same one, and only a limited number of them can have it.
    The driver lists the types that a function can get now. ``root`` stands for ``/sys``. ``written`` has the function
    and the number of every write, including refused ones.
    """

    def _setUp(self) -> None:
        self.root = self.useFixture(fixtures.TempDir()).path
        self.written: list[tuple[str, str]] = []
        self._types: dict[str, Mapping[str, tuple[str, int]]] = {}
        self._functions: dict[str, _Function] = {}
        self._open: set[str] = set()
        self._make('bus/pci/devices')
        self._vfio = self._make('vfio')
        self._set_type, self._is_group_open = pci_privileged.set_vgpu_type, privileged.is_group_open
        self.useFixture(fixtures.MonkeyPatch(f'{root.__name__}.VFIO', self._vfio))
        self.useFixture(fixtures.MonkeyPatch(f'{pci_privileged.__name__}.set_vgpu_type', self._store))
        self.useFixture(fixtures.MonkeyPatch(f'{privileged.__name__}.is_group_open', self._is_open))

    # -- hardware -----------------------------------------------------------------------------------------------------

    def add(self, address: str, functions: int, types: Mapping[str, tuple[str, int]], numa_node: int = -1) -> list[str]:
        """Add a card.

        :param functions: how many virtual functions it has
        :param types: the types that it knows, by number: their names, and how many of each fit on it
        :returns: the addresses of its virtual functions
        """
        self._types[address] = types
        self._device(address, numa_node)
        self._write(address, 'sriov_numvfs', f'{functions}\n')
        added = []
        for number in range(functions):
            # Cards number them so: the first is four after the physical function.
            place = number + 4
            function = f'{address[:-4]}{place // 8:02x}.{place % 8}'
            self._functions[function] = _Function(address, len(self._functions) + 70)
            self._device(function, numa_node)
            self._link(function, 'physfn', f'../{address}')
            self._link(address, f'virtfn{number}', f'../{function}')
            group = self._functions[function].group
            self._link(function, 'iommu_group', f'../../../kernel/iommu_groups/{group}')
            with open(os.path.join(self._vfio, str(group)), 'w'):
                pass
            os.mkdir(self._path(function, 'nvidia'))
            self._write(function, 'nvidia/current_vgpu_type', '0\n')
            added.append(function)
        self._list_types(address)
        return added

    def remove(self, function: str) -> None:
        """Take a virtual function away, as the driver does when it is unloaded."""
        os.unlink(os.path.join(self.root, 'bus/pci/devices', function))

    def boot(self) -> None:
        """Boot the host. Functions lose their types, and nobody has them open."""
        self._open.clear()
        for function in self._functions:
            self._write(function, 'nvidia/current_vgpu_type', '0\n')
        for card in self._types:
            self._list_types(card)

    def fail(self, function: str) -> None:
        """Make the list of a function's types unreadable from now on."""
        path = self._path(function, 'nvidia/creatable_vgpu_types')
        os.unlink(path)
        os.mkdir(path)

    # -- what others do -----------------------------------------------------------------------------------------------

    def type_of(self, function: str) -> str:
        with open(self._path(function, 'nvidia/current_vgpu_type')) as file:
            return file.read().strip()

    def set_type(self, function: str, number: str) -> None:
        """Write a type, or ``NO_TYPE``, as an operator does.

        :raises OSError: the driver refuses the type
        """
        pci_privileged.set_vgpu_type(self.root, function, int(number))

    @contextlib.contextmanager
    def opened(self, function: str) -> Iterator[None]:
        """Let a process have a function open."""
        self._open.add(function)
        try:
            yield
        finally:
            self._open.discard(function)

    # -- the driver ---------------------------------------------------------------------------------------------------

    def _store(self, root: str, address: str, number: int) -> None:
        self.written.append((address, str(number)))
        card = self._functions[address].card
        current, wanted = self.type_of(address), str(number)
        if address in self._open:
            raise _refused(errno.EBUSY)
        if (current == NO_TYPE) == (wanted == NO_TYPE):
            raise _refused(errno.EPERM)
        if wanted not in (NO_TYPE, *self._creatable(card)):
            raise _refused(errno.ENOSPC if wanted in self._on(card) else errno.EINVAL)
        self._set_type(root, address, number)
        self._list_types(card)

    def _is_open(self, number: int, sysfs: str | None = None) -> bool:
        return (any(self._functions[function].group == number for function in self._open)
                or self._is_group_open(number, sysfs))

    def _on(self, card: str) -> list[str]:
        """The types that the functions of a card have."""
        return [current for function, of in self._functions.items()
                if of.card == card and (current := self.type_of(function)) != NO_TYPE]

    def _creatable(self, card: str) -> list[str]:
        there = self._on(card)
        return [number for number, (_name, most) in self._types[card].items()
                if len(there) < most and set(there) <= {number}]

    def _list_types(self, card: str) -> None:
        creatable = self._creatable(card)
        text = 'ID    : vGPU Name\n' + ''.join(f'{number:<5} : {self._types[card][number][0]}\n'
                                               for number in creatable)
        for function, of in self._functions.items():
            if of.card == card:
                self._write(function, 'nvidia/creatable_vgpu_types',
                            text if self.type_of(function) == NO_TYPE else '')

    # -- files --------------------------------------------------------------------------------------------------------

    def _device(self, address: str, numa_node: int) -> None:
        self._make(f'devices/pci0000:3c/{address}')
        os.symlink(f'../../../devices/pci0000:3c/{address}', os.path.join(self.root, 'bus/pci/devices', address))
        self._write(address, 'numa_node', f'{numa_node}\n')

    def _make(self, name: str) -> str:
        path = os.path.join(self.root, name)
        os.makedirs(path)
        return path

    def _link(self, address: str, name: str, target: str) -> None:
        os.symlink(target, self._path(address, name))

    def _write(self, address: str, name: str, text: str) -> None:
        with open(self._path(address, name), 'w') as file:
            file.write(text)

    def _path(self, address: str, name: str) -> str:
        return os.path.join(self.root, 'devices/pci0000:3c', address, name)


def _refused(number: int) -> OSError:
    return OSError(number, os.strerror(number))
