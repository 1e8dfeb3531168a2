"""Reads which devices the definitions of all domains name, and which devices these are."""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Container
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import hashlib
import re
from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects.compact import Compact
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Unknown
from devicetrack.objects.values import Usage
from devicetrack.objects.values import Use
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import guest_xml
from devicetrack.virt.libvirt.kinds import api
from devicetrack.virt.libvirt.kinds import installed

# The addresses of one device kind that a domain names, for the kind to identify: the kind, the domain's UUID, whether
# it runs (None for a snapshot of it), the addresses in the live and in the inactive definition, and whether they surely
# are of this kind. Otherwise most of them mean something else. A host has thousands of these and of the next, so they
# are plain tuples: the garbage collector drops those of texts, and all others bring its collections of the whole
# process nearer.
_Named = tuple[str, str, bool | None, Sequence[str], Sequence[str], bool]

# What the definitions of one domain say: its UUID, whether it runs, what it names, the devices that its record
# identifies, and what of it is unknown.
_Guest = tuple[str, bool, tuple[_Named, ...], tuple[Use, ...], Unknown | None]


# Characters that every writer of XML writes as they are.
_PLAIN: Final = re.compile(r'[\w.:-]*', re.ASCII)

_READS_FILES: Final = frozenset(('-readconfig', '--readconfig'))


class DomainUsage:
    """Asks the hypervisor for all definitions, and the device kinds what the definitions name.

    :param forms: of those kinds that have one
    :param boot_id: reads the id of the current boot of the host
    """

    def __init__(self, hypervisor: connection.Connection, kinds: Mapping[str, api.DeviceKind],
                 forms: Mapping[str, guest_xml.Form], boot_id: Callable[[], str]) -> None:
        self._hypervisor, self._kinds, self._forms, self._boot_id = hypervisor, kinds, forms, boot_id
        # The definitions that the last look read, by the digests of their texts: at the next one nearly all of them are
        # unchanged. A digest takes a small part of the time of parsing, and the texts are too large to be kept.
        self._known: dict[bytes, domain_xml.Domain] = {}

    def read(self, needed: Container[str], guarding: Collection[DeviceKey] = ()) -> Usage:
        """Ask the hypervisor once.

        :param needed: the kinds that must identify their devices, or else the usage is unknown. The other kinds are
            asked too, since devices of a kind that no option names any more may still have owners here. An error of
            such a kind does no harm: its tools may not even be installed.
        :param guarding: devices that are about to be taken back. A definition uses such a device if its addresses name
            the device, whatever boot its record names, and also if its record names the device, whatever its addresses
            say
        """
        named: list[_Named] = []
        uses: list[tuple[Any, ...]] = []        # the fields of each, as they are kept
        domains: set[str] = set()
        running: set[str] = set()
        unknown: list[Unknown] = []
        read_now: dict[bytes, domain_xml.Domain] = {}
        read = functools.partial(self._read_guest, read_now, self._boot_id(), guarding)
        returning = self._hypervisor.returning()
        defined = [*map(read, self._hypervisor.definitions())]
        # Saved states are read after the definitions, so they include a guest that was saved meanwhile. A saved
        # guest resumes with the devices of its saved state, whatever its definition says. A guest that somebody
        # reverts to a snapshot gets the devices of the snapshot.
        kept = [*map(read, self._hypervisor.saved())]
        snapshots = [guest for found in self._hypervisor.snapshots() for guest in self._read_snapshot(read, found)]
        # If a guest came back meanwhile, its definition was read before, and its saved state or snapshot may be
        # gone since.
        # Reverting to a snapshot leaves it in the list, so before a device is taken back all are read again.
        left = returning if guarding or not returning else returning - self._hypervisor.returning()
        resumed = {uuid for _list, uuid in left}
        if resumed:
            kept += map(read, self._hypervisor.definitions(only=resumed))
        self._known = read_now
        unknown += [Unknown(f'domain {uuid}', 'two domains have this UUID') for uuid, number in collections.Counter(
            uuid for uuid, *_said in defined).items() if number > 1]
        for uuid, runs, its_named, its_uses, problem in (*defined, *kept, *snapshots):
            domains.add(uuid)
            if runs:
                running.add(uuid)
            if problem is not None and problem not in unknown:
                unknown.append(problem)
            named += its_named
            uses += map(tuple, its_uses)
        left_out: set[tuple[str, str]] = set()
        for kind in self._kinds.values():
            ours = [one for one in named if one[0] == kind.name]
            means: Mapping[str, str | None] = {}
            is_known = False
            try:
                means = installed.identify(kind, {address for *_names, now, later, _surely in ours
                                                  for address in (*now, *later)})
                is_known = True
            except exception.DriverError as error:
                if kind.name in needed:
                    unknown.append(Unknown(f'{kind.name} devices that domains name', str(error)))
            for _kind, uuid, is_on, now, later, surely in ours:
                in_now, in_later = frozenset(now), frozenset(later if is_on is not None else ())
                for address in dict.fromkeys((*now, *later)):
                    how = address, uuid, bool(is_on), address in in_now, address in in_later
                    name = means.get(address)
                    if surely if not is_known else address in means and (surely or name is not None):
                        uses.append((kind.name, name, *how))
                    elif surely and is_on is not None and vocabulary.PCI_ADDRESS.fullmatch(address):
                        left_out.add((uuid, address))
        seen = Compact(Use, dict.fromkeys(uses))    # a saved guest often names what its definition names
        if left_out:
            left_out -= set(seen.columns('domain_uuid', 'address'))
        without_record = ({domain.uuid for domain in read_now.values()}
                          - {domain.uuid for domain in read_now.values() if domain.record_text})
        return Usage(seen, frozenset(domains), frozenset(running), tuple(unknown),
                     self._hypervisor.arriving() & running if running else frozenset(), tuple(sorted(left_out)),
                     frozenset(without_record.intersection(seen.column('domain_uuid')) if without_record else ()))

    def _read_guest(self, seen: dict[bytes, domain_xml.Domain], boot_id: str, guarding: Collection[DeviceKey],
                    found: connection.Definitions | connection.Unreadable) -> _Guest:
        """Read which devices one domain names, as far as they can be read."""
        if isinstance(found, connection.Unreadable):
            return found.uuid, False, (), (), Unknown(f'domain {found.uuid}', found.reason)
        named: list[_Named] = []
        uses: list[Use] = []
        unknown = None
        try:
            self._read_definitions(seen, found, boot_id, guarding, named, uses)
        except exception.InvalidDocument as error:
            unknown = Unknown(error.document, f'{error.where}: {error.reason}')
        except exception.DriverError as error:
            unknown = Unknown(f'domain {found.uuid}', str(error))
        return found.uuid, found.running, tuple(named), tuple(uses), unknown

    @staticmethod
    def _read_snapshot(read: Callable[[connection.Definitions | connection.Unreadable], _Guest],
                       found: connection.Definitions | connection.Unreadable) -> list[_Guest]:
        """Read which devices one domain gets back if somebody reverts it to a snapshot."""
        if isinstance(found, connection.Unreadable):
            return [read(found)]
        try:
            texts = domain_xml.in_snapshot(found.current, f'domain {found.uuid}, snapshot')
        except exception.InvalidDocument as error:
            return [read(connection.Unreadable(found.uuid, f'a snapshot: {error.where}: {error.reason}'))]
        return [(uuid, runs, tuple((kind, uuid, None, now, later, surely) for kind, _, _, now, later, surely in named),
                 tuple(use._replace(defined=False) for use in uses), problem)
                for uuid, runs, named, uses, problem in (read(found._replace(current=text)) for text in texts)]

    def _read_definitions(self, seen: dict[bytes, domain_xml.Domain], found: connection.Definitions, boot_id: str,
                          guarding: Collection[DeviceKey], named: list[_Named], uses: list[Use]) -> None:
        """Add the devices that one domain names.

        :raises InvalidDocument: a definition cannot be read. If the live one could, its devices were added before
        :raises DeviceKindFailed: a kind made a mistake
        """
        document = f'domain {found.uuid}'
        current = self._parse(seen, found.current, document)
        defined = None if found.defined is None else self._parse(seen, found.defined, f'{document}, inactive')
        for domain in (current, defined):
            if domain is not None and domain.uuid != found.uuid:
                raise exception.InvalidDocument(document, 'uuid', 'not the one of the domain')
        # A guest that is off has only an inactive definition.
        live, inactive = (current, defined) if found.running else (None, current)
        recorded: Mapping[guest_xml.Form, Sequence[DeviceKey | None]] = {}
        problem = None
        if inactive is not None:
            try:
                recorded = guest_xml.recorded(inactive, self._forms, boot_id, document)
            except exception.InvalidDocument as error:
                inactive, problem = None, error
        for kind in self._kinds.values():
            with installed.mistakes(kind, 'addresses'):
                now = tuple(kind.addresses(live)) if live is not None else ()
                later: Sequence[str] = () if inactive is None else tuple(kind.addresses(inactive))
            if inactive is not None and kind.form is not None and kind.form in recorded and not guarding:
                by_address = {address for address, key in zip(
                    kind.form.addresses(inactive), recorded[kind.form], strict=True) if key is None}
                later = [address for address in later if address in by_address]
            if now or later:
                named.append((kind.name, found.uuid, found.running, now, later, True))
            with installed.mistakes(kind, 'other_addresses'):
                now = tuple(kind.other_addresses(live)) if live is not None else ()
                later = tuple(kind.other_addresses(inactive)) if inactive is not None else ()
            if now or later:
                named.append((kind.name, found.uuid, found.running, now, later, False))
        for form, keys in recorded.items():
            uses += [Use(*key, address, found.uuid, found.running, False, True)
                     for key, address in zip(keys, () if inactive is None else form.addresses(inactive), strict=True)
                     if key is not None]
        if inactive is not None and guarding:
            uses += [Use(*key, key.identifier, found.uuid, found.running, False, True)
                     for key in _recorded_of(inactive, guarding, document)]
        if problem is not None:
            raise problem
        for domain in (live, inactive):
            # QEMU takes an option with one dash or with two.
            if domain is not None and not _READS_FILES.isdisjoint(domain.arguments):
                raise exception.InvalidDocument(document, 'qemu:commandline', 'a file that it names may name devices')

    def _parse(self, seen: dict[bytes, domain_xml.Domain], text: str, document: str) -> domain_xml.Domain:
        """As :func:`.domain_xml.parse`, for a definition that the last look may have read.

        :param seen: takes the definition, for the next look
        """
        # libvirt may pass on bytes that are not UTF-8.
        digest = hashlib.sha256(text.encode('utf-8', 'surrogatepass')).digest()
        seen[digest] = self._known.get(digest) or domain_xml.parse(text, document)
        return seen[digest]


def _recorded_of(domain: domain_xml.Domain, wanted: Collection[DeviceKey], document: str) -> list[DeviceKey]:
    """Find those of some devices that the record of a definition names as the guest's own.

    :raises InvalidDocument: the record seems to name one of them, and cannot be read
    """
    # Hardly any record names one, and parsing them all would take longer than everything else. XML has one way to write
    # plain text, and several for the rest.
    text = domain.record_text
    if not text or ('&' not in text and text.isascii() and not any(
            key.identifier in text or _PLAIN.fullmatch(key.identifier) is None for key in wanted)):
        return []
    if domain.record is None:
        raise exception.InvalidDocument(document, 'metadata', str(domain.record_problem))
    return [device.key for device in domain.record.devices if not device.beside and device.key in wanted]
