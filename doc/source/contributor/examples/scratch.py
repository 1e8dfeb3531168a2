"""The device kind ``scratch``: files of one directory, given to guests as memory that lasts (virtio-pmem)."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import os
from typing import Any
from xml.sax import saxutils

from oslo_config import cfg
from oslo_versionedobjects import fields

from devicetrack import conf as registry
from devicetrack import exception
from devicetrack.objects import base
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Realized
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import guest_xml
from devicetrack.virt.libvirt.kinds import api

RESOURCE_CLASS = 'CUSTOM_SCRATCH'
OPTIONS = [cfg.StrOpt('directory', help='A directory whose files guests may get. Unset: none.')]


@base.register
class ScratchDetails(details.DeviceDetails):
    """What only this kind knows of a device. It is stored with the assignment, and versioned like every object."""

    VERSION = '1.0'
    IDENTITY = ('size_bytes',)
    fields = {'size_bytes': fields.NonNegativeIntegerField()}


class Scratch(api.DeviceKind):
    """One file is one device; its name is the identifier, its size part of what it is."""

    name = 'scratch'
    keeps_bytes = True
    form = guest_xml.MEMORY

    def __init__(self, conf: Any, hypervisor: connection.Connection) -> None:
        super().__init__(conf, hypervisor)
        registry.register(conf, 'scratch', OPTIONS)
        self._directory = conf.scratch.directory
        if self._directory and not os.path.isabs(self._directory):
            raise exception.InvalidConfiguration('[scratch] directory', self._directory, 'must be an absolute path')

    @property
    def configured(self) -> bool:
        return bool(self._directory)

    @property
    def resource_classes(self) -> frozenset[str]:
        return frozenset([RESOURCE_CLASS] if self.configured else ())

    # -- what there is ------------------------------------------------------------------------------------------------

    def stock(self) -> api.Stock:
        try:
            found = [entry for entry in os.scandir(self._directory) if entry.is_file()]
            return api.Stock(tuple(self._device(entry.name, entry.stat().st_size) for entry in found))
        except OSError as error:
            # Never an empty stock: what cannot be read is unknown, and nothing may be concluded from it.
            raise exception.CommandFailed('scandir', f'{self._directory}: {error.strerror}') from error

    def _device(self, name: str, size_bytes: int) -> InventoryDevice:
        return InventoryDevice(self.name, name, '', RESOURCE_CLASS, None, None,
                               details.to_text(ScratchDetails(size_bytes=size_bytes)))

    # -- who uses it --------------------------------------------------------------------------------------------------

    def addresses(self, domain: domain_xml.Domain) -> Sequence[str]:
        return domain.memory_paths

    def identify(self, addresses: Iterable[str]) -> Mapping[str, str | None]:
        return {address: os.path.basename(address) if self._is_ours(address) else None for address in addresses}

    def _is_ours(self, path: str) -> bool:
        return os.path.dirname(os.path.realpath(path)) == os.path.realpath(self._directory)

    # -- taking and giving --------------------------------------------------------------------------------------------

    def realize(self, assignment: DeviceAssignment) -> Realized:
        self._check_is_the_device(assignment)
        return Realized(DeviceKey(self.name, assignment.identifier), details.to_text(assignment.details))

    def unclaim(self, assignment: DeviceAssignment, lock_fd: int) -> None:
        path = self._check_is_the_device(assignment)
        try:
            with open(path, 'r+b') as file:
                file.truncate(0)
                file.truncate(assignment.details.size_bytes)
                os.fsync(file.fileno())
                clean = os.fstat(file.fileno()).st_blocks == 0      # the proof: nothing is stored for it
        except OSError as error:
            raise exception.UnclaimFailed(self.name, assignment.identifier, str(error.strerror)) from error
        if not clean:
            raise exception.UnclaimFailed(self.name, assignment.identifier, 'blocks of its last owner are left')

    def is_blank(self, assignments: Sequence[DeviceAssignment]) -> Collection[str]:
        """The files for which nothing is stored: nobody ever wrote to them, or they were given back."""
        paths = {one.identifier: self._check_is_the_device(one) for one in assignments}
        return [name for name, path in paths.items() if os.stat(path).st_blocks == 0]

    def guest_elements(self, assignments: Sequence[DeviceAssignment]) -> Sequence[str]:
        return [self._element(self._check_is_the_device(assignment), assignment.details.size_bytes)
                for assignment in assignments]

    @staticmethod
    def _element(path: str, size_bytes: int) -> str:
        return (f"<memory model='virtio-pmem' access='shared'><source><path>{saxutils.escape(path)}</path></source>"
                f"<target><size unit='KiB'>{size_bytes >> 10}</size></target></memory>")

    def _check_is_the_device(self, assignment: DeviceAssignment) -> str:
        """The path of the device; one of the same name and another size is another device, and is not touched."""
        path = os.path.join(self._directory, assignment.identifier)
        try:
            size_bytes = os.stat(path).st_size
        except OSError as error:
            raise exception.DeviceGone(self.name, assignment.identifier, str(error.strerror)) from error
        if size_bytes != assignment.details.size_bytes:
            raise exception.DeviceGone(self.name, assignment.identifier,
                                       f'it has {size_bytes} bytes, recorded were {assignment.details.size_bytes}')
        return path
