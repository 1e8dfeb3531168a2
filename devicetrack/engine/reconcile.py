"""Compares the views of one host: the record, the hypervisor, the host and the compute service.

Pure: views go in, findings come out.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from collections.abc import Set
import datetime
import functools
import operator
from types import MappingProxyType
from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import findings
from devicetrack.engine import guest_records
from devicetrack.engine import migrations
from devicetrack.engine import observed
from devicetrack.engine.findings import Finding
from devicetrack.engine.unsettled import Unsettled
from devicetrack.engine.views import Views
from devicetrack.engine.withholding import Cause
from devicetrack.engine.withholding import Target
from devicetrack.objects import details
from devicetrack.objects import identity
from devicetrack.objects import things
from devicetrack.objects.compact import Compact
from devicetrack.objects.compact import Key
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Record
from devicetrack.objects.values import RecordedDevice
from devicetrack.objects.values import UNKNOWN_GENERATION
from devicetrack.objects.values import Use

Failures = Mapping[DeviceKey, Cause]
NO_FAILURES: Final[Failures] = {}
# A finding names at most this many rows.
_SHOWN: Final = 5
# After this many failures to give a device back, the finding is critical.
CRITICAL_TRIES: Final = 5


def compare(views: Views, failures: Failures = NO_FAILURES, retired: Set[DeviceKey] = frozenset(),
            not_realized: Mapping[Target, Cause] = MappingProxyType({})) -> list[Finding]:
    """Compare the views of one host.

    :param failures: by device, why it could not be given back
    :param retired: devices that an operator gave up. While one has no owner, no finding says that it is unhealthy
    :param not_realized: the devices that could not be made ready for a guest, and the parents that could make none
    :returns: findings, worst first; each difference once
    """
    seen = _Reconciliation(views, failures, retired)
    found = [*seen.lost(), *seen.damaged(), *seen.unknown(), *seen.missing_guests(), *seen.used(),
             *seen.recorded(), *seen.without_record(), *seen.unsettled(), *seen.stock(), *seen.exclusions(),
             *seen.faults(), *seen.not_realized(not_realized), *observed.compare(views)]
    return sorted(found, key=lambda one: (vocabulary.SEVERITIES.index(one.severity), one.kind, one.device))


class _Reconciliation:
    """Compares the views of one host in one pass. ``named`` are the devices that any domain names."""

    def __init__(self, views: Views, failures: Failures, retired: Set[DeviceKey]) -> None:
        self._failures, self._retired = failures, retired
        self.views, self.usage, self.inventory = views, views.usage, views.inventory
        self.states = views.instances or {}
        self.owners, self.devices = views.owners, views.devices
        self.named, self._strange, self._nowhere, self._not_had = views.names
        self._finding, self._unsettled = functools.partial(findings.about, views), Unsettled(views)
        self._suspects: set[str] = set()                # instances that move, or that the service says are elsewhere
        self._replaced: set[Key] = set()               # devices that have the name of a recorded one
        self._known_owners: dict[Key, str] = {
            (one.known.kind, one.known.identifier): one.instance_uuid for one in views.lost if one.known is not None}

    @functools.cached_property
    def _by_guests(self) -> guest_records.ByGuests:
        return guest_records.by_guests(self.views)

    def _missed(self, key: Key, record: Record) -> bool:
        """Whether a domain may name a device that is not there: :meth:`.Use.may_mean`, for thousands of rows."""
        return bool(self._nowhere) and (key in self._nowhere or (key[0], record.instance_uuid) in self._nowhere)

    def _lost_address(self, record: Record) -> str:
        """The first address that leads to no device of this kind: in the owner's domain, or else in any domain."""
        return min((use.domain_uuid != record.instance_uuid, use.address) for use in self.usage.uses
                   if use.may_mean(record.key, record.instance_uuid))[1]

    def _certain(self, key: Key) -> bool:
        """Whether both views of a device were read in full. Otherwise nothing is repaired."""
        return not self.usage.unknown and key[0] in self.inventory.known_kinds

    def lost(self) -> Iterable[Finding]:
        for one in self.views.lost:
            if one.known is None:
                continue
            row, shown = one.known, one.shown
            now = ('no row of it' if shown is None else f'one of instance {shown.instance_uuid}'
                   if shown.instance_uuid != row.instance_uuid else
                   f'an older one ({shown.role}, {shown.state}, generation {shown.generation})')
            yield self._finding(
                findings.ROW_LOST, vocabulary.CRITICAL, (row.kind, row.identifier),
                f'the store had confirmed a row of instance {row.instance_uuid} ({row.role}, {row.state}, generation '
                f'{row.generation}), and shows {now}',
                'see whether the store was restored, or one of its servers lags behind. If it will not show the row '
                'again by itself, have this service write it again, and do not restart the service before that',
                repair=findings.WRITE_AGAIN)._replace(recorded_owner=row.instance_uuid, generation=row.generation)

    def damaged(self) -> Iterable[Finding]:
        records = Compact(Record, self.views.records)
        if UNKNOWN_GENERATION not in set(records.column('generation')):
            return
        for row in records:
            if row.generation == UNKNOWN_GENERATION:
                yield self._finding(
                    findings.ROW_DAMAGED, vocabulary.CRITICAL, (row.kind, row.identifier),
                    f'its row, of instance {row.instance_uuid}, has {row.details}',
                    'stop the service, repair the row by hand or restore the store, and look at the disk')

    def unknown(self) -> Iterable[Finding]:
        for unknown in (*self.usage.unknown, *self.inventory.unknown):
            yield Finding(findings.VIEW_UNKNOWN, vocabulary.WARNING, findings.NO_DEVICE, None, (), 0,
                          f'{unknown.what}: {unknown.reason}', 'every free device that it may be about',
                          'fix the error that keeps it from being read')
        known = self.inventory.known_kinds.union(unknown.what for unknown in self.inventory.unknown)
        for kind in sorted(set(Compact(Record, self.views.records).column('kind')) - known):
            yield Finding(findings.VIEW_UNKNOWN, vocabulary.WARNING, findings.NO_DEVICE, None, (), 0,
                          f'{kind}: rows have devices of this kind, and none of the installed device kinds knows it',
                          'the devices of these rows',
                          'install what provides the device kind again, or name the kind in [devicetrack] device_kinds')

    def missing_guests(self) -> Iterable[Finding]:
        """Report a hypervisor without any domain if the service says that started instances are here.

        It may be the wrong hypervisor. A claim whose guest has not started yet needs no domain.
        """
        if self.usage.domains or self.usage.unknown:
            return
        started = {record.instance_uuid for record in self.views.records if record.state == vocabulary.ACTIVE}
        here = {uuid for uuid in started if self.states.get(uuid) == migrations.INSTANCE_HERE}
        if not here:
            return
        detail = (f'the hypervisor has no domain, and the service says that {len(here)} of the {len(started)} '
                  'instances with devices are here')
        leaving = here & self._may_have_left()
        if leaving:
            detail += f'; {len(leaving)} of these may have left, by a migration that the service has not ended yet'
        if leaving == here:
            severity, proposal = vocabulary.NOTE, 'end these migrations in the compute service, each where its guest is'
        else:
            severity = vocabulary.CRITICAL if here == started else vocabulary.WARNING
            proposal = ('see that the hypervisor is the one of this host ([libvirt] connection_uri), before anything '
                        'is released')
        yield Finding(findings.NO_GUESTS, severity, findings.NO_DEVICE, None, (), 0, detail, 'nothing', proposal)

    def _may_have_left(self) -> frozenset[str]:
        """Instances whose domains a migration under way may have removed, before the service saved where they are."""
        here = self.views.here
        return frozenset(move.instance_uuid for move in (self.views.migrations or {}).values()
                         if move.instance_uuid is not None and move.may_have_removed_domain_from(here))

    # -- devices that domains name -------------------------------------------------------------------------------------

    def used(self) -> Iterable[Finding]:
        if not self._strange:
            return
        users: dict[Key, list[Use]] = {}
        for use in self.usage.uses:
            key = (use.kind, use.identifier)
            if key in self._strange:
                users.setdefault(key, []).append(use)
        for key, uses in users.items():
            domains = tuple(sorted({use.domain_uuid for use in uses}))
            owner = self.owners.get(key)
            severity = vocabulary.CRITICAL if any(use.running for use in uses) else vocabulary.WARNING
            names = ', '.join(domains)
            if domains == (self._known_owners.get(key),):
                continue                        # its row is lost, which is reported
            if len(domains) > 1:
                yield self._finding(findings.SHARED, vocabulary.CRITICAL, key, f'domains {names} name it',
                                    'stop all but one of them, and see whose it is' if owner is None
                                    else f'stop all but its owner, {owner.instance_uuid}', domains)
            elif owner is None:
                yield self._unrecorded(severity, key, domains)
            if owner is not None and owner.instance_uuid not in domains:
                yield self._wrong_owner(severity, key, owner, domains)

    def _wrong_owner(self, severity: str, key: Key, owner: Record, domains: tuple[str, ...]) -> Finding:
        detail, proposal = f'recorded for {owner.instance_uuid}, named by {", ".join(domains)}', (
            'stop the domain that does not own it')
        device = guest_records.own_record(self._by_guests, key, domains[0]) if len(domains) == 1 else None
        if device is None:
            return self._finding(findings.WRONG_OWNER, severity, key, detail, proposal, domains)
        # The guest got the device from a store that was newer than this one.
        may = self._may_adopt(key, device)
        return self._finding(findings.WRONG_OWNER, severity, key, f'{detail}, whose definition records it as its own',
                             'write its row from what the definition records, if the store is older than the guest'
                             if may else 'see which device it is and whose', domains, findings.ADOPT if may else None)

    def _unrecorded(self, severity: str, key: Key, domains: tuple[str, ...]) -> Finding:
        detail = f'domain {domains[0]} names it and no row does'
        device = guest_records.own_record(self._by_guests, key, domains[0])
        if device is None and self._of_another_store(key, domains[0]):
            return self._finding(
                findings.USED_UNRECORDED, severity, key,
                f'{detail}; orphaned: its definition records it for this machine under another UUID of the host',
                'leave the domain as it is, stop the service and run devicetrack-manage recover --from-hypervisor '
                f'--host {self.views.host}', domains)
        if device is None:
            return self._finding(
                findings.USED_UNRECORDED, severity, key,
                f'{detail}; foreign: no record of this host in its definition has it',
                'record its owner, or remove it from the domain', domains)
        may = self._may_adopt(key, device)
        return self._finding(
            findings.USED_UNRECORDED, severity, key, f'{detail}; orphaned: its definition records it as ours',
            'write its row from what the definition records' if may else 'see which device it is and whose',
            domains, findings.ADOPT if may else None)

    def _of_another_store(self, key: Key, domain_uuid: str) -> bool:
        return any(guest.instance_uuid == domain_uuid and guest.host_uuid != self.views.host_uuid
                   and any((device.kind, device.identifier) == key and not device.beside for device in guest.devices)
                   for guest in self.views.guests)

    def _may_adopt(self, key: Key, device: RecordedDevice) -> bool:
        claims = [other for _guest, other in self._by_guests.get(key, ()) if not other.beside]
        there = self.devices.get(key)
        return (self._certain(key) and len(claims) == 1 and guest_records.is_whole(device)
                and (there is None or identity.same_device(device.details, there.details)))

    # -- rows ---------------------------------------------------------------------------------------------------------

    def without_record(self) -> Iterable[Finding]:
        """Report each guest whose definition does not say which devices are its own, at the first of its devices."""
        if not self.usage.without_record:
            return
        first: dict[str, DeviceKey] = {}
        for record in self.views.records:
            uuid, key = record.instance_uuid, record.key
            if uuid in self.usage.without_record and record.state == vocabulary.ACTIVE and key in self.named:
                first[uuid] = min(key, first.get(uuid, key))
        for uuid, key in first.items():
            yield self._finding(
                findings.NOT_RECOVERABLE, vocabulary.NOTE, key,
                f'the definition of its guest, {uuid}, has no record of its devices in <metadata>: they cannot be '
                'recovered if the store is lost',
                'define the guest anew with the metadata element that guest_config returns, at its next start',
                (uuid,))._replace(held='nothing')

    def recorded(self) -> Iterable[Finding]:
        if self._is_as_recorded():
            return []
        found: list[Finding] = []
        named, states, there = self.named, self.states, self.devices.column('details')
        of_rows = self.owners.columns('instance_uuid', 'migration_uuid', 'state', 'details')
        for key, (instance_uuid, migration_uuid, row_state, text) in of_rows:
            state = states.get(instance_uuid)
            if migration_uuid is not None or state == migrations.INSTANCE_ELSEWHERE:
                self._suspects.add(instance_uuid)
            text_there = there.get(key)
            alike = text == text_there or (text_there is not None and identity.alike(text, text_there))
            if (alike and row_state == vocabulary.ACTIVE and key in named and key not in self._not_had
                    and state not in migrations.INSTANCE_OVER_OR_FORGOTTEN):
                continue
            same, record, device = alike, self.owners[key], self.devices.get(key)
            # If a device is healthy, all of its identity could be read. So equal texts mean the same device.
            if device is not None and (not alike or device.unhealthy is not None):
                compared = identity.compare(record.details, device.details)
                same = alike if compared is None else compared.is_same
                found += [] if alike else self._different(key, record, compared)
            found += self._row(key, record, device is not None, same)
        return found

    def _is_as_recorded(self) -> bool:
        """Whether every row is as it should be. It makes the checks of the loop above for thousands of rows at once."""
        rows, states, owners = Compact(Record, self.views.records), self.states, self.owners
        if (self._strange or self._nowhere or self._not_had
                or len(self.named) != len(owners)                   # else owners' domains name all
                or set(rows.column('state')) - {vocabulary.ACTIVE} or any(rows.column('migration_uuid'))
                or not set(migrations.INSTANCE_OVER_OR_FORGOTTEN).isdisjoint(
                    map(states.get, set(rows.column('instance_uuid'))))):
            return False
        try:
            return all(map(operator.eq, self.devices.of(owners, 'details'), owners.each('details')))
        except KeyError:
            return False                        # the host does not have one of them

    def _different(self, key: Key, record: Record, compared: identity.DetailsComparison | None) -> list[Finding]:
        """The findings about one device whose details differ between its row and the host."""
        if compared is None:
            return [self._finding(findings.DETAILS_DIFFER, vocabulary.NOTE, key,
                                  'this release cannot read the details that the row or the host has',
                                  'see which release wrote the row')]
        # A disabled namespace shows only some of its details, and this text says that it is disabled.
        problem = f'{self.devices[key].unhealthy}; ' if self.devices[key].unhealthy else ''
        if compared.itself:
            self._replaced.add(key)
            return [self._finding(findings.UNHEALTHY, vocabulary.CRITICAL, key,
                                  f'{_another(compared)}; {problem}{_whose(record)}',
                                  'bring the recorded device back; this one is neither handed out nor wiped')]
        if compared.unread:
            self._replaced.add(key)
            return [self._finding(findings.UNHEALTHY, vocabulary.WARNING, key,
                                  f'{problem}nobody knows whether it is the recorded device: '
                                  f'{", ".join(compared.unread)} cannot be read now; {_whose(record)}',
                                  'let the host read it again; until then the device is neither handed out nor wiped')]
        # Realizing the device updates its details, before the guest runs and after a boot. The details of a device that
        # will be given back do not matter. An unhealthy device may show only a part of itself, and less than a row has.
        different = compared.others
        if (not different or problem or record.state != vocabulary.ACTIVE
                or self.views.waits_for_devices(record.instance_uuid)
                or self.states.get(record.instance_uuid) in migrations.INSTANCE_OVER_OR_FORGOTTEN):
            return []
        # While somebody else uses the device, the question is whose row it is.
        may = self._certain(key) and key not in self._strange
        return [self._finding(findings.DETAILS_DIFFER, vocabulary.NOTE, key, _as_text(different),
                              'write what the host shows into the row',
                              repair=findings.UPDATE_DETAILS if may else None)]

    @functools.cached_property
    def _waits_for_its_definition(self) -> frozenset[str]:
        """Instances whose domains still name devices that go back: a move on this host is being undone."""
        return frozenset(instance_uuid for key, (instance_uuid, state) in self.owners.columns('instance_uuid', 'state')
                         if state == vocabulary.RELEASING and key in self.named)

    def _row(self, key: Key, record: Record, there: bool, same: bool) -> Iterable[Finding]:
        """The findings about one row.

        :param same: the host has the device, and it is certainly the recorded one
        """
        uuid, usage = record.instance_uuid, self.usage
        state = self.states.get(uuid)
        used = key in self.named
        # The release looks for the device again; one that we made ourselves may be gone already.
        free_of_guests = self._certain(key) and not used and (same or (not there and details.is_made(record.details)))
        if record.state == vocabulary.RELEASING:
            away = [] if there or details.is_made(record.details) else list(
                self._gone(key, record, 'nothing proves what became of its bytes; '))
            # If the device is gone, or replaced by another, that finding is enough, unless the release has more to say.
            said = bool(away) or key in self._replaced
            if not said or used or self._failure(key) is not None:
                yield self._pending(key, uuid, used, findings.RETRY_RELEASE if free_of_guests else None)
            yield from away
            return
        if state in migrations.INSTANCE_OVER:
            # An offloaded instance comes back by a new claim, and the service's answer may be older than that claim.
            may = (free_of_guests and uuid not in usage.domains
                   and (state == migrations.INSTANCE_DELETED or record.state != vocabulary.CLAIMED))
            yield self._finding(findings.ABANDONED, vocabulary.WARNING, key, f'instance {uuid} is {state}'
                                + (', and its domain is still there' if uuid in usage.domains else ''),
                                'give it back', repair=findings.GIVE_BACK if may else None)
        elif state == migrations.INSTANCE_FORGOTTEN:
            yield self._forgotten(key, record, free_of_guests)
        elif self._is_of_nobody(record):
            had = 'claimed' if record.state == vocabulary.CLAIMED else 'recorded'
            yield self._finding(findings.UNKNOWN_OWNER, vocabulary.WARNING, key,
                                f'{had} for {uuid}; the hypervisor has no domain of it, and the compute service does '
                                'not say where it is',
                                'have the compute service boot the instance here or delete it; if it does not know the '
                                f'instance, run devicetrack-manage instance release {uuid}')
        elif (state == migrations.INSTANCE_ELSEWHERE and record.state != vocabulary.CLAIMED
                and uuid in self._unsettled.left):
            yield self._finding(findings.ABANDONED, vocabulary.WARNING, key,
                                f'the compute service says that {uuid} lives elsewhere; no migration took it there, '
                                'and nothing here is its guest', 'give it back',
                                repair=findings.GIVE_BACK if free_of_guests else None)
        elif (record.state == vocabulary.ACTIVE and record.migration_uuid is None and not usage.unknown
                and (not used or key in self._not_had)
                and uuid in usage.domains and uuid not in self._waits_for_its_definition):
            if not self._missed(key, record):
                yield self._without(key, uuid)
            elif there:                         # else it is gone, which is reported
                yield self._finding(findings.VIEW_UNKNOWN, vocabulary.WARNING, key,
                                    f'nobody knows whether the domain of {uuid} names it: it names '
                                    f'{self._lost_address(record)}, which leads to no device of kind '
                                    f'{record.kind}', 'see which device the guest uses by this address; until the '
                                    'address leads to it again, nothing of the guest is taken back')
        if not there:
            if not self.views.is_to_be_made(record):
                yield from self._gone(key, record)
            elif (record.kind, record.parent) not in self.views.parents:
                yield from self._gone(key, record, f'its parent {record.parent}, which is to make it, is not there; ')

    def _without(self, key: Key, uuid: str) -> Finding:
        """The finding about a guest that does not have a device of its instance."""
        if key in self._not_had and any(use.defined and use.domain_uuid == uuid and (use.kind, use.identifier) == key
                                        for use in self.usage.uses):
            return self._finding(findings.RECORDED_UNUSED, vocabulary.WARNING, key,
                                 f'the guest of {uuid} runs without it, and the definition of its domain names it',
                                 'stop the guest and start it again; then it has the device')
        return self._finding(findings.RECORDED_UNUSED, vocabulary.WARNING, key, f'the domain of {uuid} does not name it'
                             + (', but a snapshot of it does' if key in self._not_had else ''),
                             'see whether the instance still needs it')

    def _forgotten(self, key: Key, record: Record, free_of_guests: bool) -> Finding:
        uuid = record.instance_uuid
        has = uuid in self.usage.domains
        may = free_of_guests and record.state != vocabulary.CLAIMED and record in self._unsettled.forgotten
        return self._finding(
            findings.ABANDONED, vocabulary.WARNING, key, f'the compute service has no record of instance {uuid}'
            + (', and its domain is still there' if has else ''),
            'see that the compute service uses its own database and should not have the instance, then undefine the '
            'domain: audits give the device back after that' if has else 'give it back',
            repair=findings.GIVE_BACK if may else None)

    def _is_of_nobody(self, record: Record) -> bool:
        """Whether the service answers, but not about the owner of a row, of whom nothing else is here.

        A service that was killed between a claim and its own first save leaves such a row, and so does one that forgot
        an instance. No later call of it names the instance. The service may yet boot an instance without a migration,
        or have a reason not to report one, so no audit gives its device back; :func:`.unsettled.forgotten` has the rows
        that go back. A started guest that moves is not settled, which :class:`.unsettled.Unsettled` reports. One that
        has a domain here is no difference: the service need not report it.
        """
        uuid, usage, migration, known = record.instance_uuid, self.usage, record.migration_uuid, self.views.migrations
        return (self.views.instances is not None and uuid not in self.states
                and not usage.unknown and uuid not in usage.domains
                and (migration is None or (record.state == vocabulary.CLAIMED and known is not None
                                           and migration not in known)))

    def _pending(self, key: Key, owner: str, used: bool, repair: str | None) -> Finding:
        detail = f'being released by {owner}' + (', and a domain names it' if used else '')
        proposal = 'remove it from the domain' if used else 'none: the next audit goes on with it'
        failure = self._failure(key)
        if failure is None:
            return self._finding(findings.RELEASE_PENDING, vocabulary.NOTE, key, detail, proposal, repair=repair)
        since = datetime.datetime.fromtimestamp(failure.since, datetime.UTC).isoformat(timespec='seconds')
        failed = (f'failed at {since}, because' if failure.tries == 1 else
                  f'failed {failure.tries} times since {since}, the last time because')
        severity = vocabulary.CRITICAL if failure.tries >= CRITICAL_TRIES else vocabulary.WARNING
        return self._finding(
            findings.RELEASE_PENDING, severity, key,
            f'{detail}; that {failed} {failure.detail}',
            proposal if used else 'fix the device, and an audit goes on with it, less often after each failure; or '
            f'run devicetrack-manage device retire {DeviceKey(key[0], key[1] or "")} --confirm {owner}',
            repair=repair)._replace(since=failure.since)

    def _failure(self, key: Key) -> Cause | None:
        return self._failures.get(DeviceKey(key[0], key[1] or ''))

    def _gone(self, key: Key, record: Record, why: str = '') -> Iterable[Finding]:
        if record.kind in self.inventory.known_kinds:
            missed = self._missed(key, record)
            severity = vocabulary.CRITICAL if missed or key in self.named else vocabulary.WARNING
            if key in self.views.unnamed:
                yield self._finding(findings.GONE, severity, key,
                                    f'{findings.NO_OPTION}, so nobody looks whether the host has it; {_whose(record)}',
                                    'name it in the options again: one of them may be misspelt, '
                                    'or this may be another configuration than the service has')
                return
            yield self._finding(findings.GONE, severity, key, 'the host does not '
                                f'have it; {"a domain names a device that is not there; " if missed else ""}'
                                f'{why}{_whose(record)}', 'bring it back; if it is gone for good, '
                                + ('remove it from the domain and ' if missed or key in self.named else '')
                                + f'run devicetrack-manage device forget {record.key} --confirm {record.instance_uuid}')

    # -- instances that move ------------------------------------------------------------------------------------------

    def unsettled(self) -> Iterable[Finding]:
        """Call this after :meth:`recorded`, which finds the suspects."""
        return self._unsettled.findings_of(self._suspects)

    # -- devices that exclude one another ------------------------------------------------------------------------------

    def exclusions(self) -> Iterable[Finding]:
        """Report rows whose devices may not be held beside one another: one finding for each token."""
        recorded = self.views.containment.recorded
        if not recorded and not any(Compact(InventoryDevice, self.inventory.devices).column('exclusions')):
            return
        tokens: dict[str, dict[str, list[Record]]] = {}
        for key, exclusions in (*self.devices.column('exclusions').items(), *recorded.items()):
            owner = self.owners.get(key) if exclusions else None
            if owner is not None:
                for token, mode in exclusions:
                    tokens.setdefault(token, {}).setdefault(mode, []).append(owner)
        for token, modes in sorted(tokens.items()):
            wholes, parts = modes.get(vocabulary.WHOLE, []), modes.get(vocabulary.PART, [])
            together = modes.get(vocabulary.TOGETHER, [])
            if wholes and len(wholes) + len(parts) > 1:
                yield self._broken(token, 'its whole and something else of it are owned', [*wholes, *parts])
            if len({record.instance_uuid for record in together}) > 1:
                yield self._broken(token, 'what goes to one instance alone has several owners', together)

    def _broken(self, token: str, what: str, records: Sequence[Record]) -> Finding:
        owned = [f'{record.key}: {_whose(record)}' for record in records]
        first = records[0]
        return self._finding(
            findings.EXCLUSION_BROKEN, vocabulary.CRITICAL, (first.kind, first.identifier),
            f'{things.in_words(token)}: {what}: {exception.in_short(owned, _SHOWN, "; ")}',
            "see which guest uses which device, and move or delete the others; each device stays its owner's until "
            'then')._replace(held='every device of it')

    # -- options that the host does not follow ------------------------------------------------------------------------

    def faults(self) -> Iterable[Finding]:
        for key, option, reason in self.inventory.faults:
            yield self._finding(
                findings.NOT_AS_CONFIGURED, vocabulary.WARNING, key, f'{option}: {reason}',
                'fix it, or change the option; every audit tries again')._replace(held='nothing more than before')

    # -- devices that could not be made ready --------------------------------------------------------------------------

    def not_realized(self, causes: Mapping[Target, Cause]) -> Iterable[Finding]:
        for target, cause in causes.items():
            key, of_parent = (target.kind, target.name), target.scope == vocabulary.PARENT
            if not of_parent and target.kind in self.inventory.known_kinds and (
                    (there := self.devices.get(key)) is None or there.unhealthy or key in self._replaced):
                continue                        # another finding says it, or the host has no such device
            yield self._finding(
                findings.NOT_REALIZED, vocabulary.WARNING, key,
                f'{"this parent could not make a device" if of_parent else "it could not be made ready for a guest"}: '
                f'{cause.text}', 'fix it; claims try it again after the next audit if somebody else used it, else '
                'after some audits, more of them after each failure, and at once when the host reports a change of '
                'it')._replace(
                    held='what the parent could make' if of_parent else 'the device', since=cause.since)

    # -- devices of the host ------------------------------------------------------------------------------------------

    def stock(self) -> Iterable[Finding]:
        devices = Compact(InventoryDevice, self.inventory.devices)
        if not any(devices.column('unhealthy')) and all(devices.column('assignable')):
            return
        for key, (unhealthy, assignable) in self.devices.columns('unhealthy', 'assignable'):
            if not unhealthy and assignable:
                continue
            device = self.devices[key]
            if unhealthy and key not in self._replaced:
                owner = self.owners.get(key)
                if owner is None and key in self._retired:
                    continue
                failure = None if owner is None or owner.state != vocabulary.RELEASING else self._failure(key)
                if failure is None or failure.detail != unhealthy:              # else the pending release says it
                    yield self._finding(findings.UNHEALTHY, vocabulary.WARNING, key, unhealthy
                                        + (f'; {_whose(owner)}' if owner is not None else ''),
                                        'remove the cause; then the device comes back by itself')
            if not assignable and key not in self.owners and key not in self.named and not self.usage.unknown:
                yield self._finding(findings.LEFT_OVER, vocabulary.NOTE, key, self._left_over(device),
                                    'none; it may be handed out if the options allow to use existing devices, and '
                                    'removed by whoever made it')

    def _left_over(self, device: InventoryDevice) -> str:
        text, origin = device.details, 'not recorded'
        for guest, recorded in self._by_guests.get((device.kind, device.identifier), ()):
            text, origin = recorded.details, f'recorded by instance {guest.instance_uuid}'
        try:
            known = details.from_text(text)
        except (exception.MalformedObject, exception.UnknownObject):
            return f'nobody owns it; parent {device.parent}, origin {origin}'
        if 'origin' in known.fields and text != device.details:
            origin = f'{known.origin}, {origin}'
        sort = known.type_name or device.resource_class
        return f'nobody owns it; type {sort}, parent {device.parent}, origin {origin}'


def _whose(record: Record) -> str:
    return f'owner {record.instance_uuid}' + (', being released' if record.state == vocabulary.RELEASING else '')


def replaced(views: Views) -> dict[DeviceKey, str]:
    """The devices that have the name of a recorded device but are certainly others, and how they differ."""
    there, found = views.devices.column('details'), {}
    for key, text in views.owners.column('details').items():
        text_there = there.get(key)
        if text_there is None or text == text_there or identity.alike(text, text_there):
            continue
        compared = identity.compare(text, text_there)
        if compared is not None and compared.itself:
            found[DeviceKey(key[0], key[1] or '')] = _another(compared)
    return found


def _another(compared: identity.DetailsComparison) -> str:
    return f'another device has its name: {_as_text(compared.itself)}'


def _as_text(different: Mapping[str, tuple[Any, Any]]) -> str:
    return ', '.join(f'{name} is {_value(found)} and was recorded as {_value(recorded)}'
                     for name, (recorded, found) in different.items())


def _value(value: Any) -> str:
    return 'unknown' if value is None else str(value) or 'empty'
