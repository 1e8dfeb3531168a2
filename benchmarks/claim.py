"""A claim in memory: the fair lock and the ledger, with few or many devices and parents.

A service waits some milliseconds for the commit of a claim. So a claim in memory may take a tenth of a millisecond, and
ten times that on a host with 100,000 devices. The ledgers are aged first: every device was held and came back in random
order.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
import random
import time
import uuid

from benchmarks.measure import Effort
from benchmarks.measure import side_by_side
from benchmarks.report import Row
from benchmarks.report import Table
from devicetrack import vocabulary
from devicetrack.claims.locked_ledger import LockedLedger
from devicetrack.engine.demand import Demand
from devicetrack.engine.demand import Item
from devicetrack.engine.states import Hold
from devicetrack.engine.views import Views
from devicetrack.objects.choice import Choice
from devicetrack.objects.values import Capacity
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Usage

KIND = 'mdev'
PROVIDER = str(uuid.UUID(int=1))
RESOURCE_CLASS = 'VGPU'
DEMAND = Demand((Item(RESOURCE_CLASS, 1, PROVIDER),))
CARD_CLASS = 'CUSTOM_CARD'
FEATURES = ('CUSTOM_FAST', 'product_id=10ca', 'type-VF', 'vendor_id=8086')
# The request of a pinned guest by an alias: the product, and the NUMA node.
ALIAS_DEMAND = Demand((Item(RESOURCE_CLASS, 1, PROVIDER, None, (
    Choice(RESOURCE_CLASS, frozenset(FEATURES), frozenset(('type-PF',))),), vocabulary.SOCKET),),
    numa_nodes=frozenset((1,)))
CARD_DEMAND = Demand((Item(CARD_CLASS, 1, PROVIDER),))
MICROSECONDS = 1e6
# At most so many microseconds up to so many devices.
MOST, MANY = 100, 4096


def run(effort: Effort) -> Table:
    return Table('Claim in memory, lock included', [*_sizes(effort), *_parents(effort), *_functions(effort)])


def _sizes(effort: Effort) -> list[Row]:
    subjects = {f'{size:,}': claims(existing_and_aged(size), effort.batch) for size in effort.sizes}
    samples = side_by_side(subjects, effort.rounds)
    return [Row(f'{size:,} devices', samples.median(f'{size:,}') * MICROSECONDS, 'µs',
                at_most=MOST if size <= MANY else 10 * MOST) for size in effort.sizes]


def _parents(effort: Effort) -> list[Row]:
    rows = []
    devices = effort.parents * effort.devices_a_parent
    for what, make in (('that exist', existing_and_aged), ('made when claimed', creatable)):
        one = f'one parent, devices {what}'
        ledgers = {one: make(devices, vocabulary.PACK, 1)}
        for policy in vocabulary.SELECTION_POLICIES:
            ledgers[f'{policy} over {effort.parents} parents, devices {what}'] = make(devices, policy, effort.parents)
        samples = side_by_side({name: claims(ledger, effort.batch) for name, ledger in ledgers.items()},
                               effort.rounds)
        rows += [Row(name, samples.median(name) * MICROSECONDS, 'µs', at_most=MOST) for name in ledgers]
    return rows


def _functions(effort: Effort) -> list[Row]:
    """Measure cards and their virtual functions, which exclude one another, beside devices that exclude nothing."""
    cards, functions = effort.cards, effort.functions_a_card
    plain, one = f'{cards * functions:,} functions that exclude nothing', f'a function of {cards} cards'
    alias, card = f'{one}, by an alias on a socket', f'a card with its {functions} functions'
    subjects = {
        plain: claims(existing_and_aged(cards * functions, parents=cards), effort.batch),
        one: claims(cards_and_functions(cards, functions), effort.batch),
        alias: claims(cards_and_functions(cards, functions), effort.batch, ALIAS_DEMAND),
        card: claims(cards_and_functions(cards, functions), effort.batch, CARD_DEMAND)}
    samples = side_by_side(subjects, effort.rounds)
    return [Row(name, samples.median(name) * MICROSECONDS, 'µs', at_most=MOST) for name in subjects]


def claims(ledger: LockedLedger, batch: int, demand: Demand = DEMAND) -> Callable[[], float]:
    """Time some claims and give everything back. Returns the seconds of one claim."""
    def measure() -> float:
        instances = [str(uuid.uuid4()) for _ in range(batch)]
        held = []
        began = time.perf_counter()
        for instance in instances:
            held.append(ledger.take(instance, demand))
        took = time.perf_counter() - began
        _free(ledger, held)
        return took / batch

    return measure


def existing(devices: int, policy: str = vocabulary.PACK, parents: int = 1) -> LockedLedger:
    """Make a ledger with so many free devices."""
    return _ledger(policy, Inventory(tuple(
        InventoryDevice(KIND, str(uuid.uuid4()), '', RESOURCE_CLASS, f'parent{index % parents:03}', 0, '{}')
        for index in range(devices)), (), frozenset((KIND,))))


def existing_and_aged(devices: int, policy: str = vocabulary.PACK, parents: int = 1) -> LockedLedger:
    """Make the same ledger, in which every device was held and came back in random order."""
    ledger = existing(devices, policy, parents)
    _age(ledger, devices, devices)
    return ledger


def cards_and_functions(cards: int, functions: int) -> LockedLedger:
    """Make a ledger of cards with so many functions each. Every function was held and came back in random order."""
    devices = []
    for number in range(cards):
        card = f'card{number:03}'
        devices.append(InventoryDevice(KIND, card, '', CARD_CLASS, None, 0, '{}',
                                       exclusions=((card, vocabulary.WHOLE),)))
        devices += [InventoryDevice(KIND, str(uuid.uuid4()), '', RESOURCE_CLASS, card, 0, '{}',
                                    exclusions=((card, vocabulary.PART),), features=FEATURES)
                    for _ in range(functions)]
    ledger = _ledger(vocabulary.PACK, Inventory(tuple(devices), (), frozenset((KIND,)), sockets=((0, 0), (1, 0))))
    _age(ledger, cards * functions, cards)
    return ledger


def creatable(devices: int, policy: str = vocabulary.PACK, parents: int = 1) -> LockedLedger:
    """Make a ledger of parents that together can make so many devices."""
    return _ledger(policy, Inventory((), tuple(
        Capacity(KIND, f'parent{index:03}', 'type', '', RESOURCE_CLASS, 0, devices // parents, '{}')
        for index in range(parents)), frozenset((KIND,))))


def _ledger(policy: str, inventory: Inventory) -> LockedLedger:
    ledger = LockedLedger(policy, lambda name: PROVIDER)
    ledger.open(Views(Usage((), frozenset(), frozenset()), inventory, (), None), {})
    return ledger


def _age(ledger: LockedLedger, devices: int, seed: int) -> None:
    held = [ledger.take(str(uuid.uuid4()), DEMAND) for _ in range(devices)]
    random.Random(seed).shuffle(held)
    _free(ledger, held)


def _free(ledger: LockedLedger, held: Iterable[Hold]) -> None:
    for hold in held:
        ledger.free_of(hold.instance_uuid, hold.keys)
