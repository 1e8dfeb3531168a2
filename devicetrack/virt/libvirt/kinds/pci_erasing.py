"""Erases the disks of one NVMe controller, and compares its namespaces with those that the claim found.

Bytes that can be read are read. The controller's own report counts only where reading proves nothing: that it erased by
changing the key, or that it erased its whole NVM subsystem.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import errno
import time
from typing import Final
from typing import TypeVar

from devicetrack import exception
from devicetrack import filelock
from devicetrack import log
from devicetrack import ownfiles
from devicetrack.objects import DeviceAssignment
from devicetrack.virt.libvirt import disk_nodes
from devicetrack.virt.libvirt import jobs
from devicetrack.virt.libvirt import nvme_admin
from devicetrack.virt.libvirt import nvme_controllers
from devicetrack.virt.libvirt import pci_namespaces
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt import progress
from devicetrack.virt.libvirt.kinds import busy
from devicetrack.virt.libvirt.kinds import pci_cleaning
from devicetrack.virt.libvirt.pci_namespaces import ids
from devicetrack.virt.libvirt.pci_namespaces import NamespaceRecord

LOG = log.logger(__name__)

# Seconds between two questions to a controller about its progress.
_LOOK_EVERY_S: Final = 1.0
# Seconds between two tries to format while the daemon runs as many formats as it can.
_FORMAT_AGAIN_S: Final = 1.0
_ALIGN_BYTES: Final = 4096
_SANITIZE_DONE: Final = 0xFFFF

_FORMATS: Final = {pci_cleaning.USER_DATA: nvme_admin.USER_DATA, pci_cleaning.CRYPTOGRAPHIC: nvme_admin.CRYPTOGRAPHIC}
_SANITIZES: Final = {pci_cleaning.BLOCK: nvme_admin.BLOCK_ERASE, pci_cleaning.OVERWRITE: nvme_admin.OVERWRITE,
                     pci_cleaning.CRYPTOGRAPHIC: nvme_admin.CRYPTO_ERASE}

_Answer = TypeVar('_Answer')


class Unshown(OSError):
    """The kernel does not show the namespaces of a controller as the controller has them, or not yet.

    ``strerror`` says which, and what helps if that stays so.
    """

    def __init__(self, how: str) -> None:
        super().__init__(errno.ENXIO, how)


def unasked(error: OSError) -> str:
    """Say why nobody knows the namespaces of a controller, and what to do."""
    if isinstance(error, Unshown):
        return str(error.strerror)
    reason = f'its controller cannot be asked: {error.strerror or error}'
    if error.errno in (errno.EACCES, errno.EPERM):
        reason += (': a service that does not run as root needs CAP_SYS_ADMIN in [devicetrack_privileged] capabilities '
                   'to clean NVMe disks')
    return reason


def obstacle(tree: pci_sysfs.Tree, function: pci_sysfs.Function, policy: pci_cleaning.Policy,
             recorded: NamespaceRecord | None = None) -> str | None:
    """Say why a controller cannot be cleaned by a policy; None if it can.

    :param recorded: the namespaces that a claim found, after its guest. This leaves out those that the guest made
    :raises Unshown: the kernel shows other namespaces. This is not checked after a guest
    :raises OSError: it cannot be asked
    """
    controller = nvme_controllers.read_controller(tree.root, function.address)
    lacking = _lacking(controller, policy)
    if lacking is not None:
        return lacking
    others = _others(function, controller)
    if others is not None and (policy.name == pci_cleaning.SANITIZE or (
            policy.name == pci_cleaning.FORMAT and controller.formats_all_at_once)):
        return (f'{others}, and {policy.name} of its controller would erase the data of others, too: give it another '
                'policy')
    found = (asked if recorded is None else _answer)(tree, function, controller)
    before = found if recorded is None or recorded.formats is None else recorded
    shared = {*before.shared, *before.sizes.keys() & set(found.shared)}
    if others is not None and shared:
        return (f'{others}, and its namespace {ids(shared)} is shared with other controllers: cleaning it would erase '
                'the data of others')
    # A guest can attach a detached namespace, write to it and detach it again. Only Sanitize reaches it.
    return None if policy.name == pci_cleaning.SANITIZE else detached(
        found, before.detached, f'its policy {policy.name} does not clean', 'use nvme-sanitize')


def incapable(tree: pci_sysfs.Tree, function: pci_sysfs.Function, policy: pci_cleaning.Policy) -> str | None:
    """Say why a controller can never be cleaned by a policy, whatever state it is in; None if it can.

    :raises OSError: it cannot be asked
    """
    if policy.name not in pci_cleaning.ERASURES:
        return None
    return _lacking(nvme_controllers.read_controller(tree.root, function.address), policy)


def _lacking(controller: nvme_admin.Controller, policy: pci_cleaning.Policy) -> str | None:
    """Say which command of a policy a controller does not have; None if it has them all."""
    if policy.name == pci_cleaning.FORMAT:
        if not controller.formats:
            return 'its controller has no Format NVM (OACS), which its policy nvme-format needs'
        if policy.erase == pci_cleaning.CRYPTOGRAPHIC and not controller.formats_cryptographically:
            return 'its controller cannot erase cryptographically when it formats (FNA), which its policy needs'
    if policy.name == pci_cleaning.SANITIZE and not controller.sanitizes(_SANITIZES[policy.erase]):
        return (f'its controller cannot sanitize by {policy.erase} erase (SANICAP {controller.sanicap:#x}), which its '
                f'policy nvme-sanitize needs' if policy.erase != pci_cleaning.OVERWRITE else
                f'its controller cannot sanitize by overwriting (SANICAP {controller.sanicap:#x}), which its policy '
                'nvme-sanitize needs')
    return None


def _others(function: pci_sysfs.Function, controller: nvme_admin.Controller) -> str | None:
    """Say that other controllers of the NVM subsystem may have other owners; None if there are no others."""
    if function.physfn is not None:
        return 'it is a virtual function'
    if controller.others is None:
        return 'its NVM subsystem may have other controllers (CMIC), which its controller does not name'
    return f'its NVM subsystem also has the controller {ids(controller.others)}' if controller.others else None


def detached(found: NamespaceRecord, which: Collection[int], unreached: str, instead: str) -> str | None:
    """Say that a guest could attach namespaces that its controller does not have; None if there are none.

    :param found: the answer of the controller
    :param which: the namespaces in question
    :param unreached: ends a sentence about them: what does not reach them
    :param instead: what else one can do about those that no controller has
    """
    # An operator must not delete what another owner uses, so tell the two apart.
    elsewhere = {nsid: found.elsewhere[nsid] for nsid in which if nsid in found.elsewhere}
    if elsewhere:
        having = ids({cntlid for cntlids in elsewhere.values() for cntlid in cntlids})
        return (f'the namespace {ids(elsewhere)} belongs to the controller {having} of its NVM subsystem. A guest of '
                f'this one could take it, and {unreached} it: do not hand out this function while somebody needs it')
    loose = (found.detached.keys() | found.sizes.keys()) & set(which) - elsewhere.keys()
    return (f'its controller has the detached namespace {ids(loose)}, which {unreached}: delete or attach it, or '
            f'{instead}') if loose else None


def asked(tree: pci_sysfs.Tree, function: pci_sysfs.Function, controller: nvme_admin.Controller | None = None
          ) -> NamespaceRecord:
    """Ask a controller for its namespaces.

    :param controller: its answer about itself, if it was asked already
    :raises Unshown: the kernel shows other namespaces, or does not show them yet
    :raises OSError: it cannot be asked
    """
    found, shown = _answer(tree, function, controller), pci_namespaces.shown(tree, function.address)
    differs = 'its driver does not show its namespaces now' if shown is None else pci_namespaces.mismatch(
        found.sizes, pci_namespaces.sizes(shown))
    if differs is not None:
        raise Unshown(differs)
    return found


def _answer(tree: pci_sysfs.Tree, function: pci_sysfs.Function, controller: nvme_admin.Controller | None = None
            ) -> NamespaceRecord:
    """Return the namespaces of a controller as it tells them, whatever the kernel shows.

    :param controller: as for :func:`asked`
    :raises OSError: it cannot be asked
    """
    controller = controller or nvme_controllers.read_controller(tree.root, function.address)
    found = nvme_controllers.read_namespaces(tree.root, function.address)
    sizes, loose = ({nsid: pci_namespaces.Size(one.size_bytes, one.block_bytes)
                     for nsid, one in found.items() if one.attached is attached} for attached in (True, False))
    # A virtual function sees neither the namespaces of other controllers nor the capacity.
    whole = function.physfn is None
    return NamespaceRecord(
        sizes, {nsid: found[nsid].format for nsid in sizes}, loose if whole else {},
        controller.total_bytes if whole else 0, controller.unallocated_bytes if whole else 0,
        frozenset(nsid for nsid in sizes if found[nsid].shared),
        {nsid: attached for nsid in loose if whole and (attached := found[nsid].attached_to)})


class Erasing:
    """Erases the disks of one function, which is back at the host's driver and which nobody uses.

    :param wait_s: how long the driver may take to show the disks, and other processes to close them
    :param check: raises a DriverError if another function than the recorded one is there. It is called before each
        change, because somebody may exchange a card while this waits
    """

    def __init__(self, tree: pci_sysfs.Tree, assignment: DeviceAssignment, function: pci_sysfs.Function, lock_fd: int,
                 wait_s: float, check: Callable[[], None]) -> None:
        self._tree, self._assignment, self._function = tree, assignment, function
        self._lock_fd, self._wait_s, self._check_same = lock_fd, wait_s, check

    # -- reading ------------------------------------------------------------------------------------------------------

    def disks(self) -> list[pci_namespaces.Disk]:
        """Wait until the driver shows the disks of the function: at least one.

        :raises UnclaimFailed: it shows none
        """
        found = busy.until(self._shown, self._wait_s)
        if not found:
            raise self._failed(f'the driver {self._function.driver or "(none)"} shows no disk of it, so nothing proves '
                               'that it is clean')
        return list(found)

    def check(self, formatted: bool = False) -> NamespaceRecord:
        """Check that the namespaces are those that the claim found, and return the record of them.

        :param formatted: as for :func:`.pci_namespaces.difference`
        :raises UnclaimFailed: they are not
        """
        recorded = self._recorded()
        # The driver reads a formatted namespace again.
        differs = busy.until(lambda: self._difference(recorded, formatted), self._wait_s, lambda differs: not differs)
        if differs is not None:
            raise self._failed(differs)
        return recorded

    def _recorded(self) -> NamespaceRecord:
        text = self._assignment.details.disks
        try:
            if text is not None:
                return pci_namespaces.parse(text)
        except (ValueError, IndexError):
            pass
        raise self._failed('the namespaces that the claim found are unknown')

    def _difference(self, recorded: NamespaceRecord, formatted: bool) -> str | None:
        shown = NamespaceRecord(pci_namespaces.sizes(self.disks()))
        found = self._found()
        # The kernel may show fewer namespaces than the controller has, or less of one, and knows no formats.
        differs = pci_namespaces.difference(recorded, shown if recorded.formats is None else found, formatted)
        if differs is not None:
            return f'its guest changed its namespaces: {differs}'
        # Without a recorded format nobody can restore a size.
        return pci_namespaces.mismatch(found.sizes, shown.sizes, formatted and recorded.formats is not None)

    # -- restoring and erasing ----------------------------------------------------------------------------------------

    def check_policy(self, policy: pci_cleaning.Policy) -> None:
        """Check that a policy can be carried out now. It may be another one than at the claim. This changes nothing.

        :raises DriverError: it cannot, or that is unknown
        """
        recorded = self._recorded()
        self._wait_until_live()
        why = self._told(lambda: obstacle(self._tree, self._function, policy, recorded))
        if why is not None:
            raise self._failed(why)

    def restore(self, policy: pci_cleaning.Policy) -> None:
        """Undo a guest's changes to namespaces, as far as the controller can. :meth:`check` reports remaining ones.

        This deletes namespaces that the guest made, makes those again that it deleted, attaches and detaches others as
        they were, and gives those with other blocks their old LBA format. It erases nothing. Each step may be the last
        one before a crash: the next call does the remaining steps.

        :raises DriverError: the controller refuses a step, or there is no way back
        """
        recorded = self._recorded()
        if recorded.formats is None:
            return                              # the record was made without asking the controller
        self._wait_until_live()
        controller = self._ask(nvme_controllers.read_controller)
        if controller.manages_namespaces:
            self._restore_namespaces(recorded)
        # A format that reaches all namespaces must not reach those of others.
        if policy.name != pci_cleaning.FORMAT and controller.formats and not (controller.formats_all_at_once and (
                recorded.detached or _others(self._function, controller) is not None)):
            self._restore_formats(recorded, policy)

    def _wait_until_live(self) -> None:
        """Wait until the driver has the controller ready, with or without disks.

        :raises UnclaimFailed: the driver does not get it ready
        """
        if busy.until(self._shown, self._wait_s, lambda shown: shown is not None) is None:
            raise self._failed(f'the driver {self._function.driver or "(none)"} does not have its controller ready')

    def _shown(self) -> Sequence[pci_namespaces.Disk] | None:
        return pci_namespaces.shown(self._tree, self._function.address)

    def _restore_namespaces(self, recorded: NamespaceRecord) -> None:
        found = self._found()
        if self._function.physfn is None:
            self._restore_allocated(recorded, found)
            found = self._found()
        else:
            # A namespace that a virtual function sees may belong to another function, so delete none and make none.
            # A namespace without an owner keeps all virtual functions from being offered.
            for nsid in sorted(found.sizes.keys() - recorded.sizes.keys()):
                self._attach(nsid, False)
        for nsid in sorted(recorded.sizes.keys() - found.sizes.keys()):
            self._attach(nsid, True)
        for nsid in sorted(recorded.detached.keys() & found.sizes.keys()):
            self._attach(nsid, False)

    def _restore_allocated(self, recorded: NamespaceRecord, found: NamespaceRecord) -> None:
        """Restore the recorded namespaces of a controller, attached or not, and delete all others."""
        address, now = self._function.address, {**found.detached, **found.sizes}
        # A namespace of another size is no longer the recorded one.
        for nsid in sorted(nsid for nsid, size in now.items() if nsid not in recorded.detached and (
                nsid not in recorded.sizes or size.size_bytes != recorded.sizes[nsid].size_bytes)):
            LOG.warning('Deleting namespace %d of %s, which its guest made.', nsid, address)
            self._change(nvme_controllers.delete_namespace, nsid, where=f'its guest made namespace {nsid}: ')
            del now[nsid]
        # A controller gives a new namespace the lowest free number.
        for nsid in sorted(recorded.sizes.keys() - now.keys()):
            size, form = recorded.sizes[nsid], (recorded.formats or {})[nsid]
            LOG.warning('Making namespace %d of %s again, which its guest deleted.', nsid, address)
            self._change(nvme_controllers.create_namespace, nsid, size.size_bytes // size.block_bytes, form,
                         nsid in recorded.shared,
                         where=f'its guest deleted namespace {nsid}, of {size.size_bytes} bytes in blocks of '
                               f'{size.block_bytes} (LBA format {form}): ')

    def _attach(self, nsid: int, is_to_be: bool) -> None:
        LOG.info('%s namespace %d %s %s, as it was before its guest.', 'Attaching' if is_to_be else 'Detaching', nsid,
                 'to' if is_to_be else 'from', self._function.address)
        self._change(nvme_controllers.attach, nsid, is_to_be,
                     where=f'its guest {"detached" if is_to_be else "attached"} namespace {nsid}: ')

    def _restore_formats(self, recorded: NamespaceRecord, policy: pci_cleaning.Policy) -> None:
        found = self._found()
        for nsid, form in sorted((recorded.formats or {}).items()):
            now = (found.formats or {}).get(nsid)
            if now is None or (now == form and found.sizes[nsid] == recorded.sizes[nsid]):
                continue
            LOG.info('Formatting namespace %d of %s with LBA format %s again: its guest chose %s.', nsid,
                     self._function.address, form, now)
            # The policy erases it afterwards.
            self._format_one(nsid, form, nvme_admin.NO_ERASURE, policy.timeout_s)
            found = self._found()

    def _format_one(self, nsid: int, form: nvme_admin.Format, erase: int, timeout_s: int) -> None:
        self._change(nvme_controllers.format_namespace, nsid, form, erase, timeout_s, self._lock_fd, disks=self.disks)
        self.disks()

    def wipe(self, how: str) -> None:
        """Make every byte of every disk zero, and read all bytes back.

        :param how: as for :func:`.jobs.wipe`
        :raises DriverError: a byte is not zero, or the driver does not show the disks that the claim found
        """
        disks = self.disks()
        differs = pci_namespaces.difference(self._recorded()._replace(formats=None),
                                            NamespaceRecord(pci_namespaces.sizes(disks)))
        if differs is not None:
            raise self._failed(f'its driver shows other disks now: {differs}')
        for disk in disks:
            with self.opened(disk) as fd:
                jobs.wipe(f'{self._function.address} {disk.nsid}', fd, self._lock_fd, disk.size_bytes, _ALIGN_BYTES, 0,
                          how)

    def format(self, policy: pci_cleaning.Policy) -> None:
        """Have the controller format every namespace as it was recorded, and erase its data.

        After an erasure of the user data, this reads every byte back as zero if the controller says that the bytes are
        zero then.

        :raises DriverError: a namespace is not as it was, or nothing proves that it is erased
        """
        recorded = self.check(formatted=True)
        for nsid in sorted(recorded.sizes):
            self._format_one(nsid, self._format_of(recorded, nsid), _FORMATS[policy.erase], policy.timeout_s)
        self.check()
        found = self._ask(nvme_controllers.read_namespaces)
        if policy.erase == pci_cleaning.USER_DATA and all(found[nsid].zeroes for nsid in recorded.sizes):
            self.wipe(progress.READ)
        else:
            LOG.info('The controller of %s reports that it erased its namespaces; nothing else can prove it.',
                     self._function.address)

    def _format_of(self, recorded: NamespaceRecord, nsid: int) -> nvme_admin.Format:
        """Return the format that a namespace had at the claim."""
        if recorded.formats is not None:
            return recorded.formats[nsid]
        found = self._found()
        if found.sizes.get(nsid) != recorded.sizes[nsid] or found.formats is None:
            raise self._failed(f'its namespace {nsid} has other blocks than the claim found, and the claim recorded no '
                               'LBA format')
        return found.formats[nsid]

    def sanitize(self, policy: pci_cleaning.Policy) -> None:
        """Have the controller sanitize its NVM subsystem, and wait until it reports success.

        :raises DriverError: it reported no success, or an operation takes longer than the policy allows
        """
        action = _SANITIZES[policy.erase]
        self._follow_sanitize(policy.timeout_s)     # an earlier operation, which proves nothing about this one
        self._change(nvme_controllers.start_sanitize, action, disks=self.disks)
        status = self._follow_sanitize(policy.timeout_s)
        if not status.is_completed or status.action != action:
            raise self._failed(f'its controller did not sanitize it: SSTAT {status.status}, action {status.action}')
        LOG.info('The controller of %s reports that it sanitized its NVM subsystem.', self._function.address)

    def _follow_sanitize(self, timeout_s: int) -> nvme_admin.SanitizeStatus:
        """Wait until no sanitize operation is in progress, and meanwhile report the progress.

        :raises UnclaimFailed: one is still in progress when that time is over. The controller goes on with it
        """
        size, reporter, deadline = 0, None, time.monotonic() + timeout_s
        try:
            while True:
                status = self._ask(nvme_controllers.sanitize_status)
                if status.status != nvme_admin.IN_PROGRESS:
                    return status
                if reporter is None:
                    size = max(1, sum(disk.size_bytes for disk in self.disks()))
                    reporter = progress.Reporter(size, self._lock_fd)
                reporter('sanitize', min(size - 1, size * status.progress // _SANITIZE_DONE))
                if time.monotonic() >= deadline:
                    raise self._failed(
                        f'its controller has been sanitizing it for {timeout_s} seconds (timeout_s), and reports '
                        f'{status.progress * 100 // _SANITIZE_DONE} percent: the next audit waits for it again, and '
                        'then has it sanitized anew')
                time.sleep(_LOOK_EVERY_S)
        finally:
            if reporter is not None:
                reporter.end()

    @contextlib.contextmanager
    def opened(self, disk: pci_namespaces.Disk, writing: bool = True) -> Iterator[int]:
        """Open a disk for this process alone: no file system is mounted from it, and no other process has it open."""
        fd = self._told(lambda: disk_nodes.open_disk(self._tree.root, self._function.address, disk.name,
                                                     disk.size_bytes, writing),
                        f'its namespace {disk.nsid} cannot be opened: ')
        with ownfiles.closed_by_error(fd):
            self._check_same()                  # the open disk is one of the function that is there now
            # As long as it is open, the kernel gives its name to no other one.
            if disk not in (self._shown() or ()):
                raise self._failed(f'its namespace {disk.nsid} changed while it was opened')
            yield fd
        filelock.close(fd)

    def _found(self) -> NamespaceRecord:
        return self._told(lambda: _answer(self._tree, self._function))

    def _ask(self, call: Callable[[str, str], _Answer]) -> _Answer:
        """Have a privileged function ask the controller, as :meth:`_told`."""
        return self._told(lambda: call(self._tree.root, self._function.address))

    def _change(self, call: Callable[..., object], *arguments: object, where: str = '',
                disks: Callable[[], Sequence[pci_namespaces.Disk] | None] | None = None) -> None:
        """Have a privileged function change the disk, as :meth:`_told`, if it is still the recorded one.

        :param disks: finds the disks whose names it gets, by default those that the driver shows at the moment
        """
        def checked() -> None:
            self._check_same()
            shown = (disks or self._shown)() or ()
            call(self._tree.root, self._function.address, [(disk.name, disk.size_bytes) for disk in shown], *arguments)

        self._told(checked, where)

    def _told(self, call: Callable[[], _Answer], where: str = '') -> _Answer:
        """Call a privileged function. Retry while it is busy, since udev looks at each new disk for a moment.

        This waits without a limit for the end of other formats, which have limits of their own.
        """
        while True:
            try:
                return busy.retried(call, self._wait_s)
            except OSError as error:
                if error.errno == errno.EUSERS:
                    time.sleep(_FORMAT_AGAIN_S)
                    continue
                reason = unasked(error) if error.errno in (errno.EACCES, errno.EPERM) else str(error.strerror or error)
                if error.errno == errno.EBUSY:
                    raise exception.DeviceInUse(*self._assignment.key, f'{where}{reason}') from error
                raise self._failed(f'{where}{reason}') from error

    def _failed(self, reason: str) -> exception.UnclaimFailed:
        return exception.UnclaimFailed(*self._assignment.key, reason)
