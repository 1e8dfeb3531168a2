"""Compares the devices that the compute service hands out itself: its record, the hypervisor and the host.

Pure: views go in, findings come out. Nothing is held because of them and nothing repairs them, since the devices are
the service's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from devicetrack import vocabulary
from devicetrack.engine import findings
from devicetrack.engine.findings import Finding
from devicetrack.engine.views import Views
from devicetrack.objects import identity
from devicetrack.objects.details import serial_of
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Holding
from devicetrack.objects.values import InventoryDevice

_HELD: Final = 'nothing: the compute service hands it out'


def compare(views: Views) -> Iterator[Finding]:
    """Compare the devices of the service.

    Without the service's record, as for a command, only what the host and the hypervisor show is compared.
    """
    if views.inventory.observed or views.holdings:
        yield from _Comparison(views).findings()


class _Comparison:

    def __init__(self, views: Views) -> None:
        self._views = views
        self._there = {device.key: device for device in views.inventory.observed}
        self._record = None if views.holdings is None else {one.key: one for one in views.holdings}
        self._last_at = {one.serial: key for key, one in views.seen.items() if one.serial}
        self._names: dict[str, list[str]] = {}
        for domain_uuid, address in views.usage.others:
            self._names.setdefault(address, []).append(domain_uuid)

    def findings(self) -> Iterator[Finding]:
        for key in sorted({*self._there, *(self._record or ())}):
            row, device = (self._record or {}).get(key, Holding(*key)), self._there.get(key)
            domains = tuple(sorted(set(self._names.get(key.identifier, ()))))
            if device is not None:
                yield from self._of_host(device, row, domains)
                yield from self._of_identity(device, row)
            elif row.instance_uuid is not None and row.is_named:
                yield self._about(row, findings.GONE, vocabulary.CRITICAL if domains else vocabulary.WARNING,
                                  f'the host does not have it; owner {row.instance_uuid}{self._now_at(key)}',
                                  'bring it back, or move or delete the instance', domains)
            yield from self._of_guests(row, domains)
        yield from self._of_groups()

    def _about(self, row: Holding, kind: str, severity: str, detail: str, proposal: str,
               users: tuple[str, ...] = ()) -> Finding:
        return findings.about(self._views, kind, severity, row.key, detail, proposal, users)._replace(
            recorded_owner=row.instance_uuid, held=_HELD,
            service=(self._views.instances or {}).get(row.instance_uuid or ''))

    def _of_host(self, device: InventoryDevice, row: Holding, domains: tuple[str, ...]) -> Iterator[Finding]:
        has_guest = bool(domains) or row.instance_uuid is not None
        # The host's interface on it is the guest's.
        if device.unhealthy is None or (row.by_interface and row.instance_uuid is not None):
            return
        severity = vocabulary.CRITICAL if has_guest else (
            vocabulary.WARNING if device.assignable else vocabulary.NOTE)
        yield self._about(
            row, findings.UNHEALTHY, severity, device.unhealthy + (
                f'; owner {row.instance_uuid}' if row.instance_uuid is not None else ''),
            'remove the cause, or take it out of the options of the service: until then the service goes on to give it '
            'to guests' if severity != vocabulary.NOTE else
            'none, unless the service could give the whole card to a guest: then take it out of its options', domains)

    def _of_identity(self, device: InventoryDevice, row: Holding) -> Iterator[Finding]:
        known = self._views.seen.get(device.key)
        compared = None if known is None or known.details == device.details else identity.compare(
            known.details, device.details)
        serial = serial_of(device.details)
        before = self._last_at.get(serial) if serial else None
        if known is None and before is not None:
            yield self._about(row, findings.DETAILS_DIFFER, vocabulary.NOTE, f'the card with serial number {serial}, '
                              f'which was at {before.identifier}, is here now', 'none')
        if known is None or compared is None or not compared.itself:
            return
        owner = known.instance_uuid if self._record is None else row.instance_uuid
        had = owner is not None and owner == known.instance_uuid
        yield self._about(
            row, findings.DETAILS_DIFFER, vocabulary.CRITICAL if had else vocabulary.NOTE,
            f'another device is there than {f"its owner {owner} got" if had else "was there before"}: '
            + ', '.join(f'{name.replace("_", " ")} is {_said(now)} and was {_said(before)}'
                        for name, (before, now) in sorted(compared.itself.items())) + self._now_at(device.key),
            'see whether somebody exchanged the card, or a boot moved it: what a guest left on a card goes where the '
            'card goes. The next owner ends this')

    def _now_at(self, key: DeviceKey) -> str:
        """Say where the device is now that was known by a name."""
        known = self._views.seen.get(key)
        if known is None:
            return ''
        at = [other.identifier for other in self._there.values() if other.key != key
              and known.serial and serial_of(other.details) == known.serial]
        return f'; the card with serial number {known.serial} is at {", ".join(at)} now' if at else ''

    def _of_guests(self, row: Holding, domains: tuple[str, ...]) -> Iterator[Finding]:
        running = vocabulary.CRITICAL if any(uuid in self._views.usage.running for uuid in domains) \
            else vocabulary.WARNING
        if len(domains) > 1:
            yield self._about(row, findings.SHARED, vocabulary.CRITICAL, f'domains {", ".join(domains)} name it',
                              'stop all but one of them, and see whose it is', domains)
        if self._record is None:
            return
        if domains and row.instance_uuid is None:
            yield self._about(row, findings.USED_UNRECORDED, running,
                              f'domain {domains[0]} names it, and the service has recorded it for no instance: the '
                              'service may give it to another guest', 'remove it from the domain, or delete the '
                              'instance', domains)
        elif domains and row.instance_uuid not in domains:
            yield self._about(row, findings.WRONG_OWNER, running,
                              f'the service has recorded it for {row.instance_uuid}, named by {", ".join(domains)}',
                              'stop the domain that does not own it', domains)
        elif not domains and row.is_expected and not row.by_interface and not self._views.usage.unknown:
            uuid = row.instance_uuid
            has = 'does not name it' if uuid in self._views.usage.domains else 'is not there'
            yield self._about(row, findings.RECORDED_UNUSED, vocabulary.WARNING,
                              f'the service has recorded it for {uuid}, whose domain {has}',
                              'reboot the instance hard, or see why its guest lost the device')

    def _of_groups(self) -> Iterator[Finding]:
        """Report groups whose devices go to one guest alone and have several."""
        groups: dict[str, dict[str, list[DeviceKey]]] = {}
        for key, device in self._there.items():
            row = (self._record or {}).get(key)
            owners = {*self._names.get(key.identifier, ()), *([row.instance_uuid] if row and row.instance_uuid else ())}
            for token in (token for token, mode in device.exclusions if mode == vocabulary.TOGETHER):
                for owner in owners:
                    groups.setdefault(token, {}).setdefault(owner, []).append(key)
        for token, owners_of in sorted(groups.items()):
            if len(owners_of) > 1:
                first = min(key for keys in owners_of.values() for key in keys)
                row = (self._record or {}).get(first, Holding(*first))
                yield self._about(
                    row, findings.EXCLUSION_BROKEN, vocabulary.CRITICAL,
                    f'{token}: what goes to one guest alone has several: ' + '; '.join(
                        f'{", ".join(sorted(key.identifier for key in keys))}: {owner}'
                        for owner, keys in sorted(owners_of.items())),
                    'move or delete all but one of them, and take a part of the group out of the options')


def _said(value: object) -> str:
    return 'none' if value in ('', -1) else str(value)
