"""Takes mediated devices back, by libvirt, or directly by the kernel and mdevctl where libvirt is behind them."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import errno

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.objects import DeviceAssignment
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import mdevctl
from devicetrack.virt.libvirt import nodedev_xml
from devicetrack.virt.libvirt import privileged
from devicetrack.virt.libvirt.kinds import busy
from devicetrack.virt.libvirt.kinds import mdev_devices
from devicetrack.virt.libvirt.kinds.mdev_devices import Device

LOG = log.logger(__name__)



class _Behind(Exception):
    """libvirt does not yet know what the kernel knows; ``error`` is the error for a caller."""

    def __init__(self, error: exception.DriverError) -> None:
        super().__init__(error)
        self.error = error


class Removal:
    """Removes a device only if its assignment says that it was made for it, and only if nothing else has its UUID.

    :param release_wait_s: how long a process of the host may keep a device open
    """

    def __init__(self, devices: mdev_devices.Devices, patience: busy.Patience, release_wait_s: float) -> None:
        self._devices, self._patience, self.release_wait_s = devices, patience, release_wait_s
        self._in_vain: set[str] = set()         # devices for which a release waited in vain; the next one does not wait

    def remove(self, assignment: DeviceAssignment) -> None:
        """Take a device back: one that was made for its guest is removed, and any other is closed.

        :raises DeviceInUse: a process of the host has it open
        :raises UnclaimFailed: it is still there, or that is unknown
        """
        made = assignment.details.origin == vocabulary.CREATED
        # Audits repeat the release of every device that is held, one after the other.
        again = assignment.identifier in self._in_vain
        try:
            if made:
                self._destroy(assignment, again)
            else:
                self._check_closed(assignment, again)
        except exception.DriverError:
            self._in_vain.add(assignment.identifier)
            raise
        self._in_vain.discard(assignment.identifier)
        if made:
            self._undefine(assignment)
            if not self._patience.wait_for(lambda: self._is_gone(assignment)):
                raise exception.UnclaimFailed(*assignment.key, 'it is still there after its removal')

    def check_closed(self, assignment: DeviceAssignment) -> None:
        """Check that no process has a device open, if there is such a device. This does not wait.

        :raises DeviceInUse: a process of the host has it open
        :raises UnclaimFailed: that is unknown
        """
        self._check_closed(assignment, again=True)

    def _check_closed(self, assignment: DeviceAssignment, again: bool) -> None:
        def closed() -> bool:
            try:
                return not self._devices.kernel.is_open(assignment.identifier)
            except OSError as error:
                raise exception.UnclaimFailed(
                    *assignment.key,
                    f'it is unknown whether a process has it open: {error.strerror or error}') from error

        self._while_in_use(assignment, closed, again)

    def _own(self, assignment: DeviceAssignment) -> Device | None:
        """Find the assignment's device; None if nothing has its UUID.

        :raises UnclaimFailed: something else has its UUID too, and libvirt and mdevctl remove by the UUID alone
        """
        parents = self._devices.parent(assignment.details.parent)
        own = None
        for device in self._devices.of(assignment.identifier, parents):
            if not mdev_devices.is_of(assignment, device, parents):
                raise exception.UnclaimFailed(
                    *assignment.key, f'a device of type {device.type} and parent '
                    f'{device.parent.name} has its UUID{"" if device.active else " and is not started"}')
            own = device if own is None or device.handle is not None else own
        for address in mdevctl.parents_of(assignment.identifier):
            if not mdev_devices.is_at(assignment, parents.of(nodedev_xml.ROOT_DEVICE, address), parents):
                raise exception.UnclaimFailed(*assignment.key, f'mdevctl has a definition with its UUID on {address}')
        return own

    def _destroy(self, assignment: DeviceAssignment, again: bool) -> None:
        """Remove a device from the kernel: by libvirt, or by the kernel itself where libvirt is behind the kernel."""
        settle_s = 0.0 if again else self._patience.settle_s
        first_s = min(settle_s, self._patience.behind_s)
        for wait_s in (first_s, settle_s - first_s):
            try:
                return self._destroy_by_libvirt(assignment, again, wait_s)
            except _Behind as error:
                behind = error
            if self._remove_by_kernel(assignment, again):
                return None
        raise behind.error from behind.error.__cause__

    def _destroy_by_libvirt(self, assignment: DeviceAssignment, again: bool, wait_s: float) -> None:
        """Remove a device from the kernel by libvirt.

        :raises _Behind: libvirt does not know that the device is there
        """
        device: Device | None = None

        def libvirt_knows() -> bool:
            nonlocal device
            device = self._own(assignment)
            return device is None or not device.active or device.handle is not None

        if not self._patience.wait_for(libvirt_knows, wait_s):
            raise _Behind(exception.UnclaimFailed(*assignment.key, 'libvirt does not know that it is there'))
        if device is None or not device.active or device.handle is None:
            return
        destroy = device.handle.destroy

        def destroyed() -> bool:
            try:
                self._patience.settled(destroy, lambda: not self._devices.kernel.has(assignment.identifier), wait_s)
            except connection.Refused as error:
                if error.meaning in busy.AGAIN:
                    raise _Behind(error) from error
                if not self._means_in_use(assignment, error):
                    raise
                return False
            return True

        self._while_in_use(assignment, destroyed, again)

    def _remove_by_kernel(self, assignment: DeviceAssignment, again: bool) -> bool:
        """Remove a device without libvirt. The caller checked that it is ours and that nothing else has its UUID.

        :returns: whether it is gone; False without the rights to remove it
        """
        kernel = self._devices.kernel

        def removed() -> bool:
            if not kernel.is_open(assignment.identifier):
                try:
                    privileged.remove_mdev(assignment.identifier)
                except OSError as error:
                    if error.errno != errno.EBUSY:
                        raise
            return not kernel.has(assignment.identifier)

        try:
            self._while_in_use(assignment, removed, again)
        except OSError as error:
            LOG.info('mdev %(identifier)s cannot be removed without libvirt: %(error)s',
                     {'identifier': assignment.identifier, 'error': error})
            return not kernel.has(assignment.identifier) and kernel.answers
        LOG.warning('libvirt was slow to notice mdev %s, so it was removed without libvirt', assignment.identifier)
        return True

    def _means_in_use(self, assignment: DeviceAssignment, error: connection.Refused) -> bool:
        if error.meaning is connection.Meaning.OTHER:
            # libvirt's text is in the host's language, so ask the kernel. If the kernel cannot tell, libvirt's error is
            # raised.
            with contextlib.suppress(OSError):
                return self._devices.kernel.is_open(assignment.identifier)
        return error.meaning is connection.Meaning.IN_USE

    def _while_in_use(self, assignment: DeviceAssignment, let_go: Callable[[], bool], again: bool) -> None:
        if not self._patience.wait_for(let_go, 0.0 if again else self.release_wait_s):
            raise exception.DeviceInUse(
                *assignment.key, 'a process of the host has it open' if again
                else f'a process of the host still has it open after {self.release_wait_s} s')

    def _undefine(self, assignment: DeviceAssignment) -> None:
        def undefined() -> bool:
            return not mdevctl.parents_of(assignment.identifier)

        def defined() -> connection.NodeDevice | None:
            return self._devices.definition(assignment, self._devices.parent(assignment.details.parent))

        handle = defined()
        if handle is None and not undefined():
            handle = self._patience.wait_for(defined, self._patience.behind_s)
            if handle is None and not self._remove_definitions(assignment):
                handle = self._patience.wait_for(defined)
        if handle is None:
            return
        try:
            self._patience.settled(handle.undefine, undefined, self._patience.behind_s)
        except connection.Refused as error:
            if error.meaning not in busy.AGAIN:
                raise
            if not self._remove_definitions(assignment):
                self._patience.settled(handle.undefine, undefined)

    def _remove_definitions(self, assignment: DeviceAssignment) -> bool:
        """Remove mdevctl's definitions of a device that is gone, without libvirt, which does not know of them.

        :returns: whether nothing is left; False without the rights to remove them
        """
        try:
            for parent in mdevctl.parents_of(assignment.identifier):
                privileged.remove_mdev_definition(parent, assignment.identifier)
        except OSError as error:
            LOG.info('The definition of mdev %(identifier)s cannot be removed without libvirt: %(error)s',
                     {'identifier': assignment.identifier, 'error': error})
        return mdevctl.lacks(assignment.identifier)

    def _is_gone(self, assignment: DeviceAssignment) -> bool:
        """Whether the kernel and mdevctl say that the device is gone.

        If this process cannot see mdevctl's definitions, libvirt has to say so too. libvirt's view may be out of date;
        another device with the UUID would be an error.
        """
        return (self._own(assignment) is None and not self._devices.kernel.has(assignment.identifier)
                and not mdevctl.parents_of(assignment.identifier))
