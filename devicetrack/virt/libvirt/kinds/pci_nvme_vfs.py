"""Virtual functions of NVMe controllers: their secondary controllers, and the namespaces that their guests would see.

A secondary controller is useless until its primary controller has given it queues and brought it online (NVM Express
Base Specification, "Virtualization Enhancements"). It stays online until the primary controller is reset. So each start
of a service and each audit brings the offered ones online, before a claim can have them. A guest starts even with an
offline controller, but finds no disk. Therefore each one is checked once more, and brought online, before its guest
starts.

A guest sees every namespace that is attached to its controller. If the controller manages namespaces, the guest can
also attach a namespace that is attached to no controller, or one that may be attached to several.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import functools
from typing import Final

from devicetrack import log
from devicetrack.virt.libvirt import kernel_files
from devicetrack.virt.libvirt import nvme_controllers
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt import pci_variants
from devicetrack.virt.libvirt import privileged
from devicetrack.virt.libvirt.kinds import api
from devicetrack.virt.libvirt.kinds import pci_cards
from devicetrack.virt.libvirt.kinds import pci_erasing
from devicetrack.virt.libvirt.kinds import pci_vfs
from devicetrack.virt.libvirt.pci_namespaces import ids

LOG = log.logger(__name__)

_VOUCH: Final = f'"private_namespaces": true in {pci_vfs.OPTION}'


# A primary controller's answer about its NVM subsystem, or why it cannot be asked, by the address of its function.
Ask = Callable[[str], nvme_controllers.NVMeSubsystem | OSError]


class Secondaries:
    """The secondary controllers of one host."""

    def __init__(self, tree: pci_sysfs.Tree, rules: Sequence[pci_vfs.VFRule]) -> None:
        self._tree, self._rules = tree, rules
        self._failures: Mapping[str, str] = {}
        self._links: Mapping[str, int] = {}
        self._found: Sequence[pci_sysfs.Function] = ()

    def asking(self) -> Ask:
        """Return a function that asks each controller once."""
        @functools.cache
        def ask(physfn: str) -> nvme_controllers.NVMeSubsystem | OSError:
            try:
                return nvme_controllers.read_subsystem(self._tree.root, physfn)
            except OSError as error:
                return error

        return ask

    def bring_online(self, spec_of: Callable[[pci_sysfs.Function], object | None], is_held: Callable[[str], bool],
                     locked: api.Locked) -> None:
        """Bring the controllers online that no guest has. If no instance has one either, a host driver takes it.

        :param spec_of: returns the spec by which a virtual function is offered, or None if it is not offered
        :param is_held: whether an instance has the function at an address. It is called with the function's lock held
        :param locked: as for :meth:`.api.DeviceKind.prepare`, by address
        :raises CommandFailed: the functions of this host cannot be listed
        """
        if (links := self._tree.links()) != self._links:
            self._found = [function for function in self._tree.functions_again()
                           if function.physfn is not None and pci_cards.is_nvme(function)]
            self._links = links
        ask, failures = self.asking(), dict[str, str]()
        for function in self._found:
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
            privileged.probe(self._tree.root, function.address)

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
        rule = None if function.parent is None else pci_vfs.of(self._rules, function.parent)
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
