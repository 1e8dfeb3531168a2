"""Cleans PCI functions that a guest had, by the policy that the options give them (``[devicetrack_pci] cleaning``).

A guest can do more to a disk than write: it can make and remove namespaces and format them with other block sizes. So
the cleaner compares the namespaces with those that the claim found. It restores differences as far as the controller
can, and leaves the rest to a person. Every policy can be interrupted at any moment: the cleaner carries it out again,
as a whole, until the function is proven clean.

The guide for operators says what each policy proves. Policies of controllers are in :mod:`.pci_erasing`.
"""

from __future__ import annotations

from collections.abc import Callable
import errno
import os
import threading
from typing import Final

from devicetrack import exception
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import values
from devicetrack.virt.libvirt import jobs
from devicetrack.virt.libvirt import operator_program
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt import progress
from devicetrack.virt.libvirt.kinds import busy
from devicetrack.virt.libvirt.kinds import pci_cards
from devicetrack.virt.libvirt.kinds import pci_cleaning
from devicetrack.virt.libvirt.kinds import pci_erasing
from devicetrack.virt.libvirt.kinds import pci_names
from devicetrack.virt.libvirt.kinds import pci_options

# The alignment argument of the jobs. It has an effect only for device-dax memory.
_ALIGN_BYTES: Final = 4096

_WAYS: Final = {pci_cleaning.ZERO: progress.ZERO, pci_cleaning.DISCARD: progress.DISCARD}


class Cleaner:
    """Cleans the functions of one host. The functions are back at the host's driver, and nobody uses them.

    :param tree: the functions in sysfs
    :param options: the options, which have the policies
    """

    def __init__(self, tree: pci_sysfs.Tree, options: pci_options.PCIOptions) -> None:
        self._tree, self._options = tree, options
        # By address: the last controller without an obstacle, and the policy.
        self._judged: dict[str, tuple[int, pci_cleaning.Policy]] = {}

    def policy(self, function: pci_sysfs.Function) -> pci_cleaning.Policy:
        return self._options.cleaning_of(function, self._tree.is_alone)

    def kept_nothing(self, assignment: DeviceAssignment, function: pci_sysfs.Function) -> bool:
        """Whether the operator says that a function keeps nothing that its next owner could read.

        The names that the claim found count too. The function may not be settled.
        """
        return self._policy_after(assignment, function).name == pci_cleaning.NONE

    def _policy_after(self, assignment: DeviceAssignment, function: pci_sysfs.Function,
                      wait_s: float = 0.0) -> pci_cleaning.Policy:
        """Return the policy after a guest. Wait until the interface has its name, if the policy depends on that."""
        def found() -> frozenset[pci_cleaning.Policy]:
            return pci_names.policies(self._options, self._tree, assignment,
                                      self._tree.function(function.address) or function)

        return pci_names.strictest(busy.until(
            found, wait_s, lambda policies: len(policies) == 1 or not pci_names.may_have_one(function)))

    def mistake(self, function: pci_sysfs.Function) -> str | None:
        """Say why the policy of a function can never be carried out; None if it can, or while that is unknown.

        What its namespaces and other controllers are at the moment is no mistake, but an :meth:`obstacle`.

        :raises OSError: its controller cannot be asked
        """
        policy = self.policy(function)
        not_a_disk = self._not_a_disk(function, policy)
        if not_a_disk is not None or not self._asks(function, policy):
            return not_a_disk
        controller = self._controller(function)
        if controller is None or self._judged.get(function.address) == (controller, policy):
            return None
        return pci_erasing.incapable(self._tree, function, policy)

    def obstacle(self, function: pci_sysfs.Function) -> str | None:
        """Say why the policy of a function cannot be carried out; None if it can, or while that is unknown.

        While the host's driver has the controller, it is not asked again after it had no obstacle.

        :raises OSError: its controller cannot be asked, or the kernel does not show its namespaces
        """
        policy = self.policy(function)
        if (not_a_disk := self._not_a_disk(function, policy)) is not None:
            return not_a_disk
        if not self._asks(function, policy) or (controller := self._controller(function)) is None:
            return None
        if self._judged.get(function.address) == (controller, policy):
            return None
        obstacle = pci_erasing.obstacle(self._tree, function, policy)
        if obstacle is None:
            self._judged[function.address] = controller, policy
        return obstacle

    @staticmethod
    def _not_a_disk(function: pci_sysfs.Function, policy: pci_cleaning.Policy) -> str | None:
        if policy.name in pci_cleaning.OF_DISKS and not pci_cards.is_nvme(function):
            return f'it is not an NVMe disk, and the policy {policy.name} cleans nothing else'
        return None

    @staticmethod
    def _asks(function: pci_sysfs.Function, policy: pci_cleaning.Policy) -> bool:
        """Whether the controller has to be asked: its disks go to the next owner without a check by a person."""
        return pci_cards.is_nvme(function) and policy.name not in (pci_cleaning.NONE, pci_cleaning.PERSON)

    def _controller(self, function: pci_sysfs.Function) -> int | None:
        """Return what tells a controller from an earlier one of the same function; None without a controller."""
        try:
            return os.stat(os.path.join(self._tree.path(function.address), 'nvme')).st_ino
        except OSError:
            return None

    def namespaces(self, function: pci_sysfs.Function) -> str | None:
        """Return the record of a disk's namespaces to store before a guest gets the disk; None without a record.

        :raises OSError: its controller cannot be asked, or cannot be cleaned as its policy says
        """
        if not self._asks(function, self.policy(function)):
            return None
        # Ask again: somebody may have made namespaces since the controller was asked.
        self._judged.pop(function.address, None)
        if (obstacle := self.obstacle(function)) is not None:
            raise OSError(errno.EINVAL, obstacle)
        return str(pci_erasing.asked(self._tree, function))

    def clean(self, assignment: DeviceAssignment, function: pci_sysfs.Function, lock_fd: int,
              check: Callable[[], None]) -> None:
        """Clean a function, and prove it.

        :param lock_fd: as for :meth:`.api.DeviceKind.unclaim`
        :param check: as for :class:`.pci_erasing.Erasing`
        :raises DriverError: it is not clean
        """
        policy = self._policy_after(assignment, function, self._options.release_wait_s)
        check()                                 # that was a wait
        if policy.name == pci_cleaning.NONE:
            return
        if policy.name == pci_cleaning.PERSON:
            free = admits_by_word(assignment)
            raise exception.UnclaimFailed(*assignment.key, 'a person has to clean it. Then ' + (
                free if assignment.instance_uuid == values.NOBODY else
                f'devicetrack-manage device retire {assignment.key} --confirm {assignment.instance_uuid} ends the '
                f'assignment, and {free}'))
        if policy.name == pci_cleaning.PROGRAM and not pci_cards.is_nvme(function):
            self._run_program(assignment, function, policy, lock_fd)
            return
        erasing = pci_erasing.Erasing(self._tree, assignment, function, lock_fd, self._options.release_wait_s, check)
        # The options may have changed while the guest ran.
        erasing.check_policy(policy)
        if policy.name == pci_cleaning.PROGRAM:
            self._run_program(assignment, function, policy, lock_fd)
        if policy.name in pci_cleaning.OF_DISKS:        # a program gets the record, and restores what it can
            erasing.restore(policy)
        if policy.name == pci_cleaning.FORMAT:
            erasing.format(policy)
        else:
            erasing.check()
        if policy.name == pci_cleaning.SANITIZE:
            erasing.sanitize(policy)
        elif policy.name in _WAYS:
            erasing.wipe(_WAYS[policy.name])
        erasing.check()

    @staticmethod
    def _run_program(assignment: DeviceAssignment, function: pci_sysfs.Function, policy: pci_cleaning.Policy,
                     lock_fd: int) -> None:
        facts = {'VENDOR_ID': function.vendor_id, 'PRODUCT_ID': function.product_id, 'DRIVER': function.driver or '',
                 'SERIAL': assignment.details.serial or '', 'NAMESPACES': assignment.details.disks or '',
                 'TIMEOUT_S': str(policy.timeout_s)}
        try:
            operator_program.clean(policy.program, function.address, facts, lock_fd, policy.timeout_s)
        except operator_program.TryLater as error:
            raise exception.DeviceBusy(*assignment.key, f'{policy.program} cannot clean it now: {error}') from error

    def read_through(self, assignment: DeviceAssignment, function: pci_sysfs.Function, lock_fd: int,
                     stop: threading.Event, check: Callable[[], None]) -> None:
        """As :meth:`.api.DeviceKind.read_through`.

        :param check: as for :class:`.pci_erasing.Erasing`
        """
        try:
            obstacle = self.obstacle(function)
        except OSError as error:
            obstacle = pci_erasing.unasked(error)
        if obstacle is not None:
            raise exception.NotProven(*assignment.key, obstacle)
        policy = self.policy(function)
        if not pci_cards.is_nvme(function):
            raise exception.NotProven(*assignment.key, 'nobody can read it, because it is no '
                                      f'NVMe disk: {_instead_of_reading(assignment, policy)}')
        erasing = pci_erasing.Erasing(self._tree, assignment, function, lock_fd, self._options.release_wait_s, check)
        try:
            disks = erasing.disks()
        except exception.UnclaimFailed as error:
            raise exception.NotProven(*assignment.key,
                                      f'{error.reason}: {_instead_of_reading(assignment, policy)}') from error
        unread = self._unread(assignment, function, policy)
        if unread is not None:
            raise exception.NotProven(*assignment.key, unread)
        for disk in disks:
            with erasing.opened(disk, writing=False) as fd:
                problem = jobs.read_through(f'{function.address} {disk.nsid}', fd, lock_fd, disk.size_bytes,
                                            _ALIGN_BYTES, 0, stop)
            if problem is not None:
                raise exception.NotProven(
                    *assignment.key, f'its namespace {disk.nsid}: {problem}: {_instead_of_reading(assignment, policy)}')
        # The driver finds the namespaces one after the other, so compare them again.
        if erasing.disks() != disks:
            raise exception.NotProven(*assignment.key, 'its namespaces changed while they were read')

    def _unread(self, assignment: DeviceAssignment, function: pci_sysfs.Function,
                policy: pci_cleaning.Policy) -> str | None:
        """Say which namespaces of a disk nobody can read, although its first guest could; None if there are none.

        A policy that erases detached ones does so after a guest, and not before the first one.

        :raises CommandFailed: the controller cannot be asked
        """
        try:
            found = pci_erasing.asked(self._tree, function)
        except pci_erasing.Unshown as error:
            return pci_erasing.unasked(error)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM) and not self._asks(function, policy):
                return None                     # a person cleans it, so the service need not have the right to ask
            raise exception.CommandFailed('ask its controller', pci_erasing.unasked(error)) from error
        return pci_erasing.detached(found, found.detached, 'nobody can read',
                                    _instead_of_reading(assignment, policy))


def admits_by_word(assignment: DeviceAssignment) -> str:
    """Return the advice for a device that only a person can clean, when it is clean."""
    return f'devicetrack-manage device admit {assignment.key} --clean-by-my-word REASON makes it free'


def _instead_of_reading(assignment: DeviceAssignment, policy: pci_cleaning.Policy) -> str:
    """Return the advice for a device without an owner that reading does not prove clean."""
    if policy.name == pci_cleaning.PERSON:
        return f'a person has to clean it. Then {admits_by_word(assignment)}'
    return f'devicetrack-manage device admit {assignment.key} --wipe cleans it as its policy {policy.name} says'
