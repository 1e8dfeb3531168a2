"""Exchanges devices of a claim for devices on NUMA nodes that the service chose after the claim."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence
import operator

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import life
from devicetrack.claims.claim import Claim
from devicetrack.claims.claiming import Claiming
from devicetrack.claims.claiming import in_place_of
from devicetrack.claims.declarations import Declarations
from devicetrack.claims.instance_fields import Fields
from devicetrack.claims.life import Life
from devicetrack.claims.locked_ledger import LockedLedger
from devicetrack.claims.rows import Rows
from devicetrack.engine import demand as demands
from devicetrack.engine.states import Hold
from devicetrack.objects import InstanceResources
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record
from devicetrack.store.api import Changes


class Narrowing:
    """Narrows claims of a started host."""

    def __init__(self, ledger: LockedLedger, rows: Rows, life: Life, claiming: Claiming,
                 declarations: Declarations) -> None:
        self._ledger, self._rows, self._life = ledger, rows, life
        self._claiming, self._declarations = claiming, declarations

    def narrow(self, claim: Claim, numa_nodes: Collection[int], numa_policy: str | None, wait: bool) -> Fields:
        """As :meth:`.manager.ClaimManager.narrow_claim`."""
        uuid = claim.instance.uuid
        with self._rows.working(uuid):
            records = [record for record in self._rows.there(uuid) if record.claim_id == claim.claim_id]
            if not records:
                raise exception.InstanceNotClaimed(uuid, f'of claim {claim.claim_id}')
            for record in records:
                if record.state != vocabulary.CLAIMED:
                    raise exception.InvalidTransition(record.state, 'narrow')
            return self._narrow(claim, records, frozenset(numa_nodes), numa_policy, wait)

    def _narrow(self, claim: Claim, records: Sequence[Record], numa_nodes: frozenset[int | None],
                numa_policy: str | None, wait: bool) -> Fields:
        exchanged = self._ledger.narrow(
            {record.key: self._declarations.like(record) if record.role == vocabulary.INCOMING else None
             for record in records}, numa_nodes, numa_policy)
        if not exchanged:
            return {}
        now, left = self._exchange(claim, records, exchanged)
        fields = claim.has_now(now, self._fields(claim, now))
        self._life.give_back_replaced(left, wait)
        return fields

    def _exchange(self, claim: Claim, records: Sequence[Record],
                  exchanged: Sequence[tuple[DeviceKey, Hold]]) -> tuple[InstanceResources, list[Record]]:
        """Record the exchange, in one transaction.

        :returns: the new devices of the claim, and the rows of its old ones, which are on their way back
        """
        holds = [hold for _key, hold in exchanged]
        try:
            details = {record.key: record.details for record in records}
            for index, (key, hold) in enumerate(exchanged):
                holds[index] = self._claiming.named(hold, demands.of_row(details[key]))
            others = {key: _instead(records, key, hold)
                      for (key, _), hold in zip(exchanged, holds, strict=True)}
            new = [others.get(record.key, record) for record in records]
            now = self._rows.resources(claim.instance.uuid, sorted(new, key=operator.attrgetter('position')))
            leaving = tuple(life.leaving(record) for record in records if record.key in others)
            context = self._fields(claim, now).get('migration_context')
            self._rows.write(Changes(insert=tuple(others.values()), update=leaving,
                                     contexts=() if context is None else (self._rows.of_move(context),)))
        except exception.OutcomeUnknown:
            raise                               # both stay held until the store answers
        except exception.DeviceTrackError:
            for hold in reversed(holds):
                self._ledger.put_back(hold)
            raise
        return now, [update.after for update in leaving]

    @staticmethod
    def _fields(claim: Claim, now: InstanceResources) -> Fields:
        """The fields that the claim sets on its instance if it has these devices."""
        before = claim.fields.get('migration_context')
        if before is None:
            return {'resources': now}
        return {'migration_context': before.instead(now)}


def _instead(records: Sequence[Record], key: DeviceKey, hold: Hold) -> Record:
    """The row of a device that replaces another device of its claim."""
    [record] = [record for record in records if record.key == key]
    [candidate] = hold.candidates
    return in_place_of(record, candidate)
