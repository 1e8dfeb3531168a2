"""Makes the virtual functions that the options ask for (``[devicetrack_pci] vfs``), and those of NVMe ready.

A host that boots has no virtual functions. The start of a service and each audit make them for a physical function that
has none and that nobody uses. Existing ones are never changed. To make others, the kernel first removes all, and waits
for guests that have one; nothing can end a process that asks about the function meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import errno
import functools
import json
import os
from typing import Final
from typing import NamedTuple

from devicetrack import filelock
from devicetrack import log
from devicetrack.conf import pci as options
from devicetrack.virt.libvirt import bounded
from devicetrack.virt.libvirt import kernel_files
from devicetrack.virt.libvirt import nvme_controllers
from devicetrack.virt.libvirt import pci_privileged
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt import pci_variants
from devicetrack.virt.libvirt.kinds import api
from devicetrack.virt.libvirt.kinds import json_entries
from devicetrack.virt.libvirt.kinds import pci_cards
from devicetrack.virt.libvirt.kinds import pci_erasing
from devicetrack.virt.libvirt.kinds import pci_matching
from devicetrack.virt.libvirt.pci_namespaces import ids

LOG = log.logger(__name__)

OPTION: Final = f'[{options.GROUP}] vfs'

_KEYS: Final = pci_matching.KEYS | {'number', 'autoprobe', 'private_namespaces'}
# The largest number that the specification allows (PCI Express: NumVFs of the SR-IOV capability).
_MOST: Final = 2**16 - 1
# How many seconds longer this process waits than the one that writes.
LONGER_S: Final = 5.0
_VOUCH: Final = f'"private_namespaces": true in {OPTION}'


class VFRule(NamedTuple):
    """The virtual functions that the physical functions of a match should have.

    A ``number`` of None makes none. ``autoprobe`` says whether drivers of the host take them; None keeps the kernel's
    setting. ``private_namespaces``: the operator has made sure that the virtual functions of an NVMe controller share
    no namespace, so this library does not check that.
    """

    match: pci_matching.Match
    number: int | None = None
    autoprobe: bool | None = None
    private_namespaces: bool = False


def read(values: Iterable[str]) -> tuple[VFRule, ...]:
    """Read the option.

    :raises InvalidConfiguration: a value cannot be used
    """
    return tuple(_rule(entry) for entry in json_entries.read(OPTION, values))


def _rule(entry: json_entries.Entry) -> VFRule:
    entry.check_keys(_KEYS)
    number = entry.values.get('number')
    if number is not None and (type(number) is not int or not 1 <= number <= _MOST):
        raise entry.mistake('number', f'{json.dumps(number)} is not a number of virtual functions: write one from 1 to '
                                      f'{_MOST}, without quotation marks')
    match = pci_matching.read(entry)
    if match == pci_matching.EVERYTHING:
        raise entry.mistake(None, 'it names every function: write an address, a devname, a vendor_id or a product_id')
    return VFRule(match, number, entry.flag('autoprobe'), bool(entry.flag('private_namespaces')))


def of(rules: Sequence[VFRule], physfn: pci_sysfs.Function) -> VFRule | None:
    """Return the first rule that matches a physical function."""
    return next((rule for rule in rules if rule.match.matches(physfn)), None)


class Maker:
    """Makes virtual functions. ``faults`` says, by physical function, why it does not have those that it should.

    :param timeout_s: how long the kernel may take for one physical function
    """

    def __init__(self, tree: pci_sysfs.Tree, rules: Sequence[VFRule], timeout_s: float) -> None:
        self._tree, self._rules, self._timeout_s = tree, rules, timeout_s
        self._calls = bounded.Calls(timeout_s + LONGER_S)
        self.faults: Mapping[str, str] = {}
        self._drivers_number: dict[str, int] = {}       # by address: how many its driver made, whatever was asked for
        self._late: dict[str, int] = {}         # by address: the number of the directory of a function that timed out

    def make(self, is_held: Callable[[str], bool], locked: api.Locked) -> None:
        """Make the missing virtual functions.

        :param is_held: whether an instance has the physical function at an address. It is called with the function's
            lock held
        :param locked: as for :meth:`.api.DeviceKind.prepare`, by address
        :raises CommandFailed: the functions of this host cannot be listed
        """
        if not any(rule.number for rule in self._rules):
            return
        functions = {function.address: function for function in self._tree.functions()}
        named = {address for rule in self._rules if rule.number
                 and (address := pci_matching.one_address(rule.match)) is not None}
        faults: dict[str, str | None] = dict.fromkeys(named - functions.keys(), 'no PCI function has this address')
        for address, function in functions.items():
            rule = of(self._rules, function) if function.physfn is None else None
            if rule is not None and rule.number is not None and (function.total_vfs or address in named):
                # Those before it may have taken minutes.
                now = self._tree.function(address) or function
                faults[address] = self._make(now, rule, rule.number, is_held, locked)
        self.faults = {address: fault for address, fault in faults.items() if fault is not None}

    def _make(self, function: pci_sysfs.Function, rule: VFRule, number: int, is_held: Callable[[str], bool],
              locked: api.Locked) -> str | None:
        """Make the virtual functions of one physical one; return why it does not have them, or None."""
        address, why_not = function.address, _why_not(function, number)
        if why_not is not None or len(function.vfs) == number:
            return why_not
        if function.vfs:
            return self._has_others(address, len(function.vfs), number)
        with locked(address) as is_locked, contextlib.ExitStack() as locks:
            try:
                # Managers with other state directories share only this lock.
                locks.enter_context(filelock.NodeLock(self._tree.path(address)))
            except (OSError, filelock.FileLocked):
                is_locked = False
            if not is_locked or is_held(address):
                return None                     # its owner has all of it; an audit makes them once it is back
            return self._set(function, rule, number)

    def _set(self, function: pci_sysfs.Function, rule: VFRule, number: int) -> str | None:
        address = function.address
        if pci_variants.is_vfio(function.driver):
            return f'its {number} virtual functions cannot be made: it has a driver for guests, {function.driver}'
        try:
            directory = os.stat(self._tree.path(address)).st_ino
            if self._late.get(address) == directory:
                return self._no_answer()
            LOG.info('Making %d virtual functions of %s.', number, address)
            self._calls.call(lambda: pci_privileged.set_vfs(self._tree.root, address, number, rule.autoprobe,
                                                        self._timeout_s))
        except bounded.Late:
            self._late[address] = directory
            return self._no_answer()
        except OSError as error:
            if error.errno == errno.ETIMEDOUT:
                self._late[address] = directory
                return self._no_answer()
            return f'its {number} virtual functions cannot be made: {_reason(error, function)}'
        after = self._tree.function(address)
        made = 0 if after is None else len(after.vfs)
        if not made or made == number:
            return None if made else f'it has no virtual functions after {number} were made'
        self._drivers_number[address] = made
        return self._has_others(address, made, number)

    def _has_others(self, address: str, there: int, number: int) -> str:
        """Say that a function has another number of virtual functions than is asked for, and what helps."""
        if self._drivers_number.get(address) == there:
            return (f'its driver made {there} virtual functions when {number} were asked for, and would do so again: '
                    f'write "number": {there}')
        return (f'it has {there} virtual functions, but {number} are asked for. Existing ones are never changed: to '
                f'keep them write "number": {there}. Otherwise, while nobody has one, write 0 to its sriov_numvfs, and '
                'the next audit makes them')

    def _no_answer(self) -> str:
        return (f'the kernel gave no answer within {self._timeout_s:g} s when its virtual functions were made: see its '
                'log. This service does not try again, and uses them once they appear')


def _why_not(function: pci_sysfs.Function, number: int) -> str | None:
    """Return why a function cannot have so many virtual functions, as far as sysfs shows; None without a reason."""
    if function.problem is not None:
        return function.problem
    if number > function.total_vfs:
        return f'it can have {function.total_vfs} virtual functions, but {number} are asked for'
    if not function.vfs and function.driver is None:
        return f'its {number} virtual functions cannot be made: it has no driver'
    return None


def _reason(error: OSError, function: pci_sysfs.Function) -> str:
    if error.errno == errno.ENOENT:
        return f'its driver {function.driver} makes none'
    if error.errno == errno.ENOMEM:
        return 'the firmware left no room for their memory: turn SR-IOV on there, or boot with pci=realloc'
    return str(error.strerror or error)


# A primary controller's answer about its NVM subsystem, or why it cannot be asked, by the address of its function.
Ask = Callable[[str], nvme_controllers.NVMeSubsystem | OSError]


class Secondaries:
    """The virtual functions of NVMe controllers: their secondary controllers, and the namespaces that guests would see.

    A secondary controller is useless until its primary controller has given it queues and brought it online (NVM
    Express Base Specification, "Virtualization Enhancements"). It stays online until the primary controller is reset.
    So each start of a service and each audit brings the offered ones online, before a claim can have them. A guest
    starts even with an offline controller, but finds no disk. Therefore each one is checked once more, and brought
    online, before its guest starts.

    A guest sees every namespace that is attached to its controller. If the controller manages namespaces, the guest can
    also attach a namespace that is attached to no controller, or one that may be attached to several.
    """

    def __init__(self, tree: pci_sysfs.Tree, rules: Sequence[VFRule]) -> None:
        self._tree, self._rules = tree, rules
        self._failures: Mapping[str, str] = {}

    def asking(self) -> Ask:
        """Return a function that asks each controller once."""
        @functools.cache
        def ask(physfn: str) -> nvme_controllers.NVMeSubsystem | OSError:
            try:
                return nvme_controllers.read_subsystem(self._tree.root, physfn)
            except OSError as error:
                return error

        return ask

    def bring_online(self, functions: Iterable[pci_sysfs.Function],
                     spec_of: Callable[[pci_sysfs.Function], object | None], is_held: Callable[[str], bool],
                     locked: api.Locked) -> None:
        """Bring the controllers online that no guest has. If no instance has one either, a host driver takes it.

        :param functions: all functions of the host
        :param spec_of: returns the spec by which a virtual function is offered, or None if it is not offered
        :param is_held: whether an instance has the function at an address. It is called with the function's lock held
        :param locked: as for :meth:`.api.DeviceKind.prepare`, by address
        """
        ask, failures = self.asking(), dict[str, str]()
        for function in functions:
            if not self._is_offline(function, ask) or spec_of(function) is None:
                continue
            with locked(function.address) as is_locked:
                if not is_locked:
                    continue                    # it is checked again before its guest starts
                try:
                    self._bring_one_online(function, not is_held(function.address))
                except OSError as error:
                    failures[function.address] = str(error.strerror or error)
        self._failures = failures

    @staticmethod
    def _is_offline(function: pci_sysfs.Function, ask: Ask) -> bool:
        if function.physfn is None or not pci_cards.is_nvme(function):
            return False
        subsystem = ask(function.physfn)
        if isinstance(subsystem, OSError):
            return False                        # the stock reports why it cannot be asked
        one = subsystem.secondaries.get(_number(function))
        return one is not None and not one.is_online

    def _bring_one_online(self, function: pci_sysfs.Function, with_driver: bool) -> None:
        """Bring the controller of one function online.

        :param with_driver: whether a driver of the host takes it then, if the card is set up so
        :raises OSError: it is still not online, or no driver of the host can take it
        """
        LOG.info('Bringing the NVMe controller of the virtual function %s online.', function.address)
        nvme_controllers.bring_online(self._tree.root, function.address)
        # A driver that found the controller offline has given up on it, so let the kernel try again.
        now = self._tree.function(function.address) if with_driver else None
        if now is not None and now.driver is None and self._probes(function) \
                and not pci_variants.is_vfio(self._tree.driver_override(function.address)):
            pci_privileged.probe(self._tree.root, function.address)

    def _probes(self, function: pci_sysfs.Function) -> bool:
        """Whether drivers of the host take the virtual functions of a card."""
        return kernel_files.text(self._tree.path(function.physfn or ''), 'sriov_drivers_autoprobe') == '1'

    def realize(self, function: pci_sysfs.Function, with_driver: bool) -> None:
        """Bring a function online again if it was reset since it was offered. It has no guest yet.

        :param with_driver: whether a driver of the host had it
        :raises OSError: it is still not online
        """
        if self._is_offline(function, self.asking()):
            self._bring_one_online(function, with_driver)

    def problem(self, function: pci_sysfs.Function, ask: Ask) -> str | None:
        """Say why no guest may have a virtual function of an NVMe controller; None for any other function."""
        if function.physfn is None or not pci_cards.is_nvme(function):
            return None
        rule = None if function.parent is None else of(self._rules, function.parent)
        vouched = rule is not None and rule.private_namespaces
        subsystem = ask(function.physfn)
        if isinstance(subsystem, OSError):
            return None if vouched else (
                f'the namespaces that a guest would see are unknown: for its physical function {function.physfn}, '
                f'{pci_erasing.unasked(subsystem)}. If each namespace is private, say so: {_VOUCH}')
        one = subsystem.secondaries.get(_number(function))
        if one is not None and not one.is_online:
            failure = self._failures.get(function.address, 'the next audit brings it online')
            return f'its secondary controller {one.cntlid} is offline: {failure}'
        if vouched:
            return None
        if one is None:
            return (f'the controller of its physical function {function.physfn} does not know it, so the namespaces '
                    f'that a guest would see are unknown. If each is private, say so: {_VOUCH}')
        return _namespaces_problem(subsystem, one.cntlid)


def _namespaces_problem(subsystem: nvme_controllers.NVMeSubsystem, cntlid: int) -> str | None:
    """Return why a guest with a secondary controller would see foreign namespaces, or none; None if all is well."""
    if subsystem.shared:
        return (f'a guest would see the namespace {ids(subsystem.shared)}, which may be attached to several '
                f'controllers (NMIC). Make private ones; or, if no other controller can have it, say so: {_VOUCH}')
    own = {nsid for nsid, attached in subsystem.attached.items() if cntlid in attached}
    if not own:
        return f'no namespace is attached to its secondary controller {cntlid}: attach one (nvme attach-ns -c {cntlid})'
    loose = {nsid for nsid, attached in subsystem.attached.items() if not attached}
    if loose:
        return (f'a guest could attach the namespace {ids(loose)}, which is attached to no controller: delete it, or '
                'attach it')
    return None


def _number(function: pci_sysfs.Function) -> int:
    return -1 if function.vf_number is None else function.vf_number
