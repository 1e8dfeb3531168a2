"""Works on the guests of a host: removes them, gives them the addresses of a new boot, prepares them to move.

The texts of definitions hold secrets of guests. No message quotes them.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

import libvirt

from devicetrack import exception
from devicetrack import log
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import DeviceMap
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestRecord
from devicetrack.objects.values import MigrationDefinitions
from devicetrack.objects.values import Unknown
from devicetrack.virt import driver
from devicetrack.virt import metadata
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import guest_xml
from devicetrack.virt.libvirt.kinds import api
from devicetrack.virt.libvirt.kinds import installed

LOG = log.logger(__name__)

# Each flag makes libvirt remove something together with the definition. A hypervisor refuses a flag that it does not
# know. With fewer flags it refuses while something is left that a missing flag would have removed.
_UNDEFINE = (
    libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA | libvirt.VIR_DOMAIN_UNDEFINE_NVRAM,
    libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA,
    0,
)

_INACTIVE = libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE


class Guests(driver.VirtDriver):
    """The part of the driver that works on guests."""

    hypervisor: connection.Connection
    _kinds: Mapping[str, api.DeviceKind]
    forms: Mapping[str, guest_xml.Form]         # of those kinds that have one

    @abc.abstractmethod
    def elements(self, assignments: Sequence[DeviceAssignment]) -> Sequence[str]:
        """Make the elements of devices, with the addresses of this boot, in the order of the assignments.

        :raises DriverError: as :meth:`.VirtDriver.guest_config`
        """

    def guest_records(self, told: Callable[[int, int], None] | None = None,
                      unread: Callable[[Unknown], object] | None = None) -> Sequence[GuestRecord]:
        return [record for found in self.hypervisor.definitions(told)
                if (record := _record(found, unread)) is not None]

    def can_become(self, source: str, destination: str) -> bool:
        # libvirt refuses another sort of element in the definition of a running guest: "Target host device subsystem
        # pci does not match source mdev" (virDomainHostdevDefCheckABIStability in its source).
        form = self.forms.get(source)
        return source == destination or (form is not None and form is self.forms.get(destination))

    def destroy_guest(self, domain_uuid: str, stop: bool = True) -> None:
        try:
            # Somebody may start the guest after the first attempt.
            for _attempt in range(2):
                domain = self.hypervisor.domain(domain_uuid)
                if domain is None:
                    return
                self._remove(domain, stop)
            if self.hypervisor.domain(domain_uuid) is not None:
                raise exception.GuestNotRemoved(domain_uuid, 'somebody defined or started it again')
        except connection.Refused as error:
            raise exception.GuestNotRemoved(domain_uuid, str(error)) from error

    def _remove(self, domain: connection.Domain, stop: bool) -> None:
        try:
            if domain.is_active():
                if not stop:
                    raise exception.GuestNotRemoved(domain.uuid, 'it runs')
                self._stop(domain)
            if domain.is_persistent():
                self._undefine(domain)
        except exception.DomainGone:
            pass

    def _stop(self, domain: connection.Domain) -> None:
        try:
            domain.destroy()
        except connection.Refused:
            if domain.is_active():      # if not, it shut down by itself
                raise

    def _undefine(self, domain: connection.Domain) -> None:
        for flags in _UNDEFINE:
            try:
                domain.undefine(flags)
            except connection.Refused as error:
                refused = error
            else:
                return
        raise refused

    def rewrite_guest(self, assignments: Sequence[DeviceAssignment], beside: Sequence[DeviceAssignment] = (),
                      is_untracked: driver.IsUntracked = driver.is_never_untracked) -> bool:
        uuid = assignments[0].instance_uuid
        try:
            domain = self.hypervisor.domain(uuid)
            if domain is None or not domain.is_persistent():
                return False
            text, saved = domain.xml(_INACTIVE), domain.saved()
        except exception.DomainGone:
            return False
        new = self._rewritten(text, f'domain {uuid}, inactive', assignments, beside, is_untracked)
        # A saved guest starts from its saved state, so the saved state is written first. After a crash in between, the
        # definition is still the old one, so the next call does the work again.
        new_saved = None if saved is None else self._rewritten(saved, f'domain {uuid}, saved', assignments, beside,
                                                               is_untracked, saved=True)
        try:
            if new_saved is not None:
                _check_same(domain, text)
                domain.define_saved(new_saved)
            if new is not None:
                # libvirt would define a guest that somebody undefined meanwhile once more. It has no call that replaces
                # a definition only if there is one, so look right before the call.
                _check_same(domain, text)
                self.hypervisor.define_domain(new, uuid)
        except exception.DomainGone:
            return False
        return new is not None or new_saved is not None

    def rewrite_definition(self, definition: str, assignments: Sequence[DeviceAssignment],
                           beside: Sequence[DeviceAssignment] = (),
                           is_untracked: driver.IsUntracked = driver.is_never_untracked) -> str:
        document = f'definition for domain {assignments[0].instance_uuid}'
        if domain_xml.parse(definition, document).boot_id is None:
            return definition
        return self._rewritten(definition, document, assignments, beside, is_untracked) or definition

    def _rewritten(self, text: str, document: str, assignments: Sequence[DeviceAssignment],
                   beside: Sequence[DeviceAssignment], is_untracked: driver.IsUntracked,
                   saved: bool = False) -> str | None:
        """Make a definition with the addresses of this boot; None if the definition has them already.

        :param saved: as :meth:`_partners`
        """
        domain, boot_id = domain_xml.parse(text, document), self.boot_id()
        if domain.boot_id is None:
            if any(form.of_one_boot and form.addresses(domain) for form in guest_xml.FORMS):
                raise exception.InvalidDocument(document, 'metadata', 'it does not name the boot of its paths')
            self._check_places(domain, document, assignments, saved)
            return None
        if domain.boot_id == boot_id:
            return None
        old = domain.record
        if old is None:
            raise exception.InvalidDocument(document, 'metadata', str(domain.record_problem))
        wanted = dict(zip((one.key for one in assignments), self.elements(assignments), strict=True))
        partners = self._partners(domain, boot_id, document, wanted, is_untracked, saved)
        return guest_xml.retarget(text, document, partners, metadata.element(assignments, old.flavor, beside, boot_id))

    def _check_places(self, domain: domain_xml.Domain, document: str, assignments: Sequence[DeviceAssignment],
                      saved: bool) -> None:
        """Check a definition that does not name its boot: devices that may move must be at its addresses now.

        :param saved: as :meth:`_partners`
        :raises InvalidDocument: one is not, so another guest's device may have its address by now
        """
        for form in guest_xml.FORMS:
            wanted = {one.key for one in assignments if form.may_move and self.forms.get(one.kind) is form}
            there = set().union(*self._identified(form, domain)) if wanted else set()
            missing = sorted(wanted - there)
            if missing and (there or not saved):
                raise exception.InvalidDocument(
                    document, f'devices/{form.tag}', f'{missing[0].kind}/{missing[0].identifier} is not at one of its '
                    'addresses, and no metadata say which address was that of the device')

    def devices_in(self, definition: str) -> frozenset[DeviceKey]:
        domain = domain_xml.parse(definition, 'the definition')
        return frozenset(key for form in guest_xml.FORMS for keys in self._identified(form, domain) for key in keys)

    def migration_definitions(self, device_map: DeviceMap, definition: str | None = None) -> MigrationDefinitions:
        uuid = device_map.instance_uuid
        domain = self.hypervisor.domain(uuid)
        if domain is None or not domain.is_active():
            raise exception.DomainGone(uuid)
        # libvirt itself sends the migratable form, which an older libvirt can read too.
        flags = libvirt.VIR_DOMAIN_XML_MIGRATABLE | libvirt.VIR_DOMAIN_XML_SECURE
        wanted = {DeviceKey(pair.kind, pair.source): pair.element for pair in device_map.pairs}
        if definition is not None:
            moved = self._moved(definition, f'definition for domain {uuid}', wanted, device_map.metadata, None)
            return MigrationDefinitions(moved, None)
        live = self._moved(domain.xml(flags), f'domain {uuid}', wanted, device_map.metadata, None)
        persistent = None
        if domain.is_persistent():
            persistent = self._moved(domain.xml(flags | libvirt.VIR_DOMAIN_XML_INACTIVE), f'domain {uuid}, inactive',
                                     wanted, device_map.metadata, self.boot_id())
        return MigrationDefinitions(live, persistent)

    def _moved(self, text: str, document: str, wanted: Mapping[DeviceKey, str], record: str,
               boot_id: str | None) -> str:
        partners = self._partners(domain_xml.parse(text, document), boot_id, document, wanted)
        return guest_xml.retarget(text, document, partners, record)

    def _partners(self, domain: domain_xml.Domain, boot_id: str | None, document: str,
                  wanted: Mapping[DeviceKey, str], is_untracked: driver.IsUntracked = driver.is_never_untracked,
                  saved: bool = False) -> dict[guest_xml.Form, list[str | None]]:
        """Find a partner for each element, by form and in the definition's order; None for an element that stays.

        :param boot_id: this boot, or None for a live definition, whose addresses are of this boot
        :param wanted: the element that takes the place of each device
        :param is_untracked: as :meth:`devicetrack.virt.driver.VirtDriver.rewrite_guest`
        :param saved: it is that of a saved state, which may lack mediated devices and PCI functions: a service detaches
            them before it saves the guest, and attaches them again when the guest has resumed
        :raises InvalidDocument: the definition does not have each of these devices once, or has others
        """
        recorded = {} if boot_id is None else guest_xml.recorded(domain, self.forms, boot_id, document)
        partners: dict[guest_xml.Form, list[str | None]] = {}
        used: set[DeviceKey] = set()
        for form in guest_xml.FORMS:
            devices: list[set[DeviceKey]] = []
            if form not in recorded or None in recorded[form]:
                devices = self._identified(form, domain)
            if form in recorded:
                devices = [{key} if key is not None else devices[number] for number, key in enumerate(recorded[form])]
            for candidates in devices:
                ours = candidates.intersection(wanted)
                if candidates:
                    stays = form.untracked_too and not ours and all(map(is_untracked, candidates))
                else:
                    stays = form.others_too
                if stays:
                    partners.setdefault(form, []).append(None)
                    continue
                if len(ours) != 1:
                    raise exception.InvalidDocument(document, f'devices/{form.tag}',
                                                    'it has a device that is not assigned to the guest')
                key = ours.pop()
                if key in used:
                    raise exception.InvalidDocument(document, f'devices/{form.tag}', f'{key.identifier} is there twice')
                used.add(key)
                partners.setdefault(form, []).append(wanted[key])
        detachable = {name for name, form in self.forms.items() if not form.of_one_boot} if saved else set()
        missing = sorted(key for key in set(wanted).difference(used) if key.kind not in detachable)
        if missing:
            raise exception.InvalidDocument(document, 'devices',
                                            f'{missing[0].kind}/{missing[0].identifier} is not among them')
        return partners

    def _identified(self, form: guest_xml.Form, domain: domain_xml.Domain) -> list[set[DeviceKey]]:
        """Find the devices that each element's address may mean: at most one for each kind of its form."""
        addresses = form.addresses(domain)
        found: list[set[DeviceKey]] = [set() for _address in addresses]
        if addresses:
            for kind in self._kinds.values():
                means = installed.identify(kind, set(addresses)) if kind.form is form else {}
                for address, keys in zip(addresses, found, strict=True):
                    identifier = means.get(address)
                    if identifier is not None:
                        keys.add(DeviceKey(kind.name, identifier))
        return found


def _check_same(domain: connection.Domain, text: str) -> None:
    """:raises CommandFailed: the definition is another one than a moment ago"""
    if domain.xml(_INACTIVE) != text:
        raise exception.CommandFailed('rewrite a definition',
                                      f'somebody changed that of domain {domain.uuid} meanwhile')


def _record(found: connection.Definitions | connection.Unreadable,
            unread: Callable[[Unknown], object] | None) -> GuestRecord | None:
    """Read a domain's record of its devices; None if it has no record that can be read."""
    record, problem = None, None
    if isinstance(found, connection.Unreadable):
        problem = found.reason
    else:
        try:
            domain = domain_xml.parse(found.current, f'domain {found.uuid}')
        except exception.InvalidDocument as error:
            problem = f'{error.where}: {error.reason}'
        else:
            record, problem = domain.record, domain.record_problem
    if record is not None and record.instance_uuid != found.uuid:
        record, problem = None, 'it belongs to another instance'
    if problem is not None:
        LOG.warning('The device record of domain %s cannot be read: %s', found.uuid, problem)
        if unread is not None:
            unread(Unknown(f'the device record of domain {found.uuid}', problem))
    return record
