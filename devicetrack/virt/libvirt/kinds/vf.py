"""Virtual functions with a vGPU type, by NVIDIA's own VFIO interface (:mod:`devicetrack.virt.libvirt.vgpu_sysfs`).

A device is a virtual function, and its PCI address is its name. It is in stock while it has the type that the options
give its physical function, or can get that type now. So the functions of a full card that have no type are not in
stock. Realize sets the type, and unclaim removes it, so that its room on the card is free again. The function always
stays with its driver.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import errno
import functools
import itertools
from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.conf import libvirt as options
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import VFDetails
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import MigrationType
from devicetrack.objects.values import Realized
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import guest_xml
from devicetrack.virt.libvirt import nodedev_xml
from devicetrack.virt.libvirt import vgpu_sysfs
from devicetrack.virt.libvirt.kinds import api
from devicetrack.virt.libvirt.kinds import busy
from devicetrack.virt.libvirt.kinds import type_options
from devicetrack.virt.libvirt.kinds import typed_kind
from devicetrack.virt.libvirt.vgpu_sysfs import VGPUFunction

_DRIVER: Final = 'nvidia'


class VF(typed_kind.TypedKind):
    """The device kind ``vf``."""

    name = 'vf'
    form = guest_xml.PCI

    def __init__(self, conf: Any, hypervisor: connection.Connection) -> None:
        super().__init__(conf, hypervisor, type_options.read_vfs)
        self.tree = vgpu_sysfs.VGPUs(self.options.sysfs_root)

    def own_path(self, assignment: DeviceAssignment) -> str | None:
        return self.tree.path(assignment.identifier)

    def possible_parents(self) -> Collection[str]:
        return [nodedev_xml.pci_name(address) for address in self.tree.parents()]

    def migration_types(self) -> Sequence[MigrationType]:
        found = []
        for address in sorted(self.tree.parents()):
            for vgpu_type in self.options.types_of(address):
                named = MigrationType(self.name, nodedev_xml.pci_name(address), vgpu_type.id)
                directory = self.tree.path(address)
                found.append(self._attributes.read(self.tree.root, named, directory, directory))
        return found

    # -- stock --------------------------------------------------------------------------------------------------------

    def stock(self) -> api.Stock:
        functions = self.tree.vgpus()
        devices: list[InventoryDevice] = []
        there: set[str] = set()
        by_parent = sorted(functions, key=lambda function: function.parent)
        for parent, siblings in itertools.groupby(by_parent, key=lambda function: function.parent):
            if types := self.options.types_of(parent):
                silence = self.tree.silence(parent)
                found = self._devices(parent, types, [function._replace(
                    problem=function.problem or silence or self.tree.silence(function.address))
                    for function in siblings])
                devices += found
                there.update(details.from_text(device.details).type for device in found)
        self.warn(self._types_that_nothing_has(functions, there)
                  | self._addresses_without_functions({function.parent for function in functions}))
        return api.Stock(tuple(devices))

    def _devices(self, parent: str, types: Sequence[type_options.TypeOptions],
                 siblings: Sequence[VGPUFunction]) -> list[InventoryDevice]:
        """Return the devices of one physical function. Of several types the first ones take what they can.

        A function with another type than the options give its card is shown too, because it takes room there.
        """
        found, known = list[InventoryDevice](), {vgpu_type.id for vgpu_type in types}
        for vgpu_type in types:
            have = [function for function in siblings if function.current == vgpu_type.id
                    or (function.problem and function.current not in known)]
            can = [function for function in siblings if not function.problem and _can_be_given(function, vgpu_type.id)]
            if vgpu_type.max_instances is not None:
                can = can[:max(0, vgpu_type.max_instances - len(have))]
            found += [self._device(function, parent, vgpu_type) for function in (*have, *can)]
            siblings = [function for function in siblings if function not in have and function not in can]
        return found + [self._device(function, parent, types[0]) for function in siblings
                        if function.current != vgpu_sysfs.NO_TYPE]

    def _device(self, function: VGPUFunction, parent: str,
                vgpu_type: type_options.TypeOptions) -> InventoryDevice:
        name = nodedev_xml.pci_name(parent)
        has_type = function.current != vgpu_sysfs.NO_TYPE
        # Without the option, devicetrack sets every type that an owned function has, and removes it afterwards.
        uses_existing = function.current == vgpu_type.id and self.options.use_existing
        return InventoryDevice(
            self.name, function.address, name, vgpu_type.resource_class, name, function.numa_node,
            self._details_text(function.current if has_type else vgpu_type.id, parent,
                               vocabulary.EXISTING if uses_existing else vocabulary.CREATED),
            function.problem, uses_existing or not has_type)

    def _details_text(self, vgpu_type: str, parent: str, origin: str) -> str:
        return details.to_text(VFDetails(
            type=vgpu_type, parent=nodedev_xml.pci_name(parent), parent_address=parent, device_api='vfio-pci',
            origin=origin, parent_serial=self._serials.of(self.tree, parent)))

    def _types_that_nothing_has(self, functions: Sequence[VGPUFunction], there: Collection[str]) -> dict[object, str]:
        """Return warnings. The option may be wrong, or the virtual functions of a card may be enabled later."""
        made = ', '.join(sorted({f'{number} ({name})' for function in functions
                                 for number, name in function.creatable.items()})) or 'nothing'
        return {name: f'{type_options.VF_ENABLED} = {name}: no virtual function '
                + (f'of a parent in [{options.vf_group(name)}] device_addresses' if one.addresses else 'of this host')
                + f' has this type or can get it; those of this host can get {made}'
                for name, one in self.options.types.items() if name not in there}

    def _addresses_without_functions(self, parents: Collection[str]) -> dict[object, str]:
        return {(name, address): f'[{options.vf_group(name)}] device_addresses = {address}: '
                f'{self.tree.why_no_parent(address)}'
                for name, one in self.options.types.items() for address in one.addresses.difference(parents)}

    # -- usage --------------------------------------------------------------------------------------------------------

    def addresses(self, domain: domain_xml.Domain) -> Sequence[str]:
        return domain.pci_addresses

    def other_addresses(self, domain: domain_xml.Domain) -> Sequence[str]:
        return (*domain.other_pci_addresses, *domain_xml.argument_pci_addresses(domain))

    def identify(self, addresses: Iterable[str]) -> Mapping[str, str | None]:
        # All functions, not only those in stock: one that no option names any more may still have an owner.
        wanted = set(addresses)
        known = self.tree.known(wanted) if wanted else set()
        # An address without a device may be that of a function whose card is away. libvirt may have taken a function of
        # NVIDIA's from its driver.
        others = self.tree.others(wanted - known)
        return {address: address if address in known else None for address in wanted - others}

    # -- realize ------------------------------------------------------------------------------------------------------

    def check_free(self, assignment: DeviceAssignment) -> None:
        # Without a type it is no device that a process could open.
        if self._there(assignment).current != vgpu_sysfs.NO_TYPE and not self._is_closed(assignment):
            raise exception.DeviceInUse(*assignment.key, 'a process of the host has it open')

    def realize(self, assignment: DeviceAssignment) -> Realized:
        wanted = assignment.details
        if self.tree.card(assignment.identifier) is None and self.tree.has_left(
                wanted.parent_address, _DRIVER):
            raise exception.ParentGone(self.name, wanted.parent, wanted.type, 'nothing of it is at its address')
        function, origin = self._there(assignment, exception.RealizeFailed), wanted.origin
        for address in (function.parent, function.address):
            if (silence := self.tree.silence(address)) is not None:
                raise exception.RealizeFailed(*assignment.key, silence)
        if function.current == vgpu_sysfs.NO_TYPE:
            # This call sets the type, so the release has to remove it. A type that existed before is lost at a boot.
            function, origin = self._given_its_type(assignment, function), vocabulary.CREATED
        self._check_type(assignment, function)
        return Realized(assignment.key, self._details_text(wanted.type, wanted.parent_address, origin))

    def _given_its_type(self, assignment: DeviceAssignment, function: VGPUFunction) -> VGPUFunction:
        wanted = assignment.details
        if not _can_be_given(function, wanted.type):
            raise self._full(assignment)
        refused = None
        try:
            busy.retried(functools.partial(self.tree.set_type, assignment.identifier, wanted.type),
                         self.options.release_wait_s)
        except OSError as error:
            refused = error
        function = self._there(assignment, exception.RealizeFailed)
        if function.current == vgpu_sysfs.NO_TYPE:
            # Another function of the card may have taken the room since the read.
            if refused is not None and (refused.errno == errno.ENOSPC or not _can_be_given(function, wanted.type)):
                raise self._full(assignment) from refused
            raise exception.RealizeFailed(
                *assignment.key, 'it has no vGPU type after one was set' if refused is None
                else f'its vGPU type cannot be set: {refused.strerror}') from refused
        return function

    def _full(self, assignment: DeviceAssignment) -> exception.ParentFull:
        wanted = assignment.details
        return exception.ParentFull(self.name, wanted.parent, wanted.type, 'it has no room for more')

    def _there(self, assignment: DeviceAssignment,
               unreadable: type[exception.DeviceError] = exception.UnclaimFailed) -> VGPUFunction:
        """Read the assignment's virtual function.

        :param unreadable: the error if its types cannot be read
        :raises DeviceGone: there is none at its address, or it belongs to another card
        """
        function = self.tree.vgpu(assignment.identifier)
        if function is None and self.tree.card(assignment.identifier) == assignment.details.parent_address:
            # After a boot its driver may come late.
            raise unreadable(*assignment.key, "NVIDIA's driver does not have it")
        if function is None:
            raise exception.DeviceGone(*assignment.key, 'no virtual function has its address')
        if function.parent != assignment.details.parent_address:
            raise exception.DeviceGone(*assignment.key,
                                       f'it belongs to {function.parent}, not to the recorded '
                                       f'{assignment.details.parent_address}')
        if function.problem is not None:
            raise unreadable(*assignment.key, function.problem)
        return function

    def _check_type(self, assignment: DeviceAssignment, function: VGPUFunction) -> None:
        """Check that a function has no type or the recorded one.

        :raises DeviceGone: it has another one
        """
        if function.current not in (vgpu_sysfs.NO_TYPE, assignment.details.type):
            raise exception.DeviceGone(
                *assignment.key, f'it has the vGPU type {function.current}, not the recorded {assignment.details.type}')

    # -- unclaim ------------------------------------------------------------------------------------------------------

    def unclaim(self, assignment: DeviceAssignment, lock_fd: int) -> None:
        given_back = self._clear if assignment.details.origin == vocabulary.CREATED else self._is_closed
        if not busy.until(lambda: given_back(assignment), self.options.release_wait_s):
            raise exception.DeviceInUse(
                *assignment.key, f'a process of the host still has it open after {self.options.release_wait_s} s')

    def _is_away(self, assignment: DeviceAssignment) -> bool:
        """Whether the function is gone. Then it has no type, and no process has it open."""
        address = assignment.identifier
        return not self.tree.known((address,)) and self.tree.card(address) != assignment.details.parent_address

    def _clear(self, assignment: DeviceAssignment) -> bool:
        """Remove the recorded type, and return whether the function has none now."""
        if self._is_away(assignment):
            return True
        if not self.tree.known((assignment.identifier,)):
            if not self._is_closed(assignment):
                return False
            raise exception.UnclaimFailed(
                *assignment.key, "it is unknown whether it has a vGPU type, because NVIDIA's driver "
                'does not have it: bind it to that driver')
        function = self._there(assignment)
        self._check_type(assignment, function)
        if function.current == vgpu_sysfs.NO_TYPE:
            return True
        try:
            self.tree.set_type(assignment.identifier, vgpu_sysfs.NO_TYPE)
        except OSError as error:
            # EPERM: the function has no type any more, as the next read shows. Operators also report EPERM while it is
            # in use.
            if error.errno not in (*busy.BUSY, errno.EPERM):
                raise exception.UnclaimFailed(*assignment.key,
                                              f'its vGPU type cannot be taken away: {error.strerror}') from error
        return self._there(assignment).current == vgpu_sysfs.NO_TYPE

    def _is_closed(self, assignment: DeviceAssignment) -> bool:
        try:
            return not self.tree.is_open(assignment.identifier)
        except OSError as error:
            if self._is_away(assignment) or self._has_no_vfio_driver(assignment, error):
                return True
            raise exception.UnclaimFailed(*assignment.key,
                                          f'it is unknown whether a process has it open: {error.strerror}') from error

    def _has_no_vfio_driver(self, assignment: DeviceAssignment, error: OSError) -> bool:
        """Whether no process can have the function open, as nothing shows a VFIO device of its IOMMU group.

        NVIDIA's driver makes one although its name does not say so. While it has the function, that must be seen.

        :param error: the kernel's answer to whether a process has it open
        """
        return isinstance(error, FileNotFoundError) and not self.tree.known((assignment.identifier,))

    # -- guest --------------------------------------------------------------------------------------------------------

    def guest_elements(self, assignments: Sequence[DeviceAssignment]) -> Sequence[str]:
        return [self._guest_element(assignment) for assignment in assignments]

    def _guest_element(self, assignment: DeviceAssignment) -> str:
        function = self._there(assignment, exception.RealizeFailed)
        self._check_type(assignment, function)
        if function.current == vgpu_sysfs.NO_TYPE:
            raise exception.DeviceGone(*assignment.key, 'it has no vGPU type')
        # If it were managed, libvirt would bind it to another driver.
        return guest_xml.pci_hostdev(function.address, 'no')


def _can_be_given(function: VGPUFunction, vgpu_type: str) -> bool:
    return function.current == vgpu_sysfs.NO_TYPE and vgpu_type in function.creatable
