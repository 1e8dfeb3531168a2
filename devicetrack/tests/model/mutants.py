"""Faults planted into the shipped code, to see that the search finds them: one for each arrow of the invariant.

Each breaks the library in one place for as long as its block lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import inspect
from typing import Any
from typing import Final
from typing import NamedTuple
from unittest import mock

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import audit
from devicetrack.claims import public_calls
from devicetrack.claims.claim import Arrival
from devicetrack.claims.claim import Claim
from devicetrack.claims.claim import Claiming
from devicetrack.claims.life import Life
from devicetrack.claims.moves import Moves
from devicetrack.claims.rows import KnownRows
from devicetrack.claims.rows import Rows
from devicetrack.engine import containment
from devicetrack.engine import exclusion
from devicetrack.engine import ledger as changes_of
from devicetrack.engine import migrations
from devicetrack.engine import unsettled
from devicetrack.engine.snapshot import Snapshot
from devicetrack.engine.states import Hold
from devicetrack.engine.views import Views
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.values import Record
from devicetrack.store.api import Changes
from devicetrack.tests.model.world import Shape

NAMESPACES: Final = Shape(devices=2)
MDEVS: Final = Shape(devices=0, mdevs=2)
CARD: Final = Shape(devices=3, shared=False, card=True)
PART_AND_WHOLE: Final = Shape(devices=0, mdevs=2, shared=False, whole=True)
FAILING: Final = Shape(devices=2, shared=False, failing=True)
GROUP: Final = Shape(devices=3, shared=False, group=2)


class Mutant(NamedTuple):
    """A planted fault: the arrow that it breaks, what it does, and the shape of the world in which it shows."""

    arrow: str
    what: str
    shape: Shape
    planted: Callable[[], contextlib.AbstractContextManager[Any]]

    def __str__(self) -> str:
        return f'{self.arrow}: {self.what}'


MUTANTS: Final[dict[str, Mutant]] = {}


def mutant(arrow: str, what: str, shape: Shape = NAMESPACES) -> Callable[[Callable[[], Iterator[None]]], object]:
    """Make a generator function a planted fault, by the function's name."""
    def made(planted: Callable[[], Iterator[None]]) -> object:
        MUTANTS[planted.__name__] = Mutant(arrow, what, shape, contextlib.contextmanager(planted))
        return planted
    return made


def _in_place_of(owner: Any, name: str, function: Callable[..., Any]) -> Any:
    """Replace a method by a function, which gets the method as its first argument.

    :raises TypeError: the function does not take what the method takes. Whatever called it would fail, and the search
        would call that a fault that it found
    """
    original = getattr(owner, name)
    wanted = inspect.signature(original).parameters
    taken = list(inspect.signature(function).parameters.values())[1:]
    if len(taken) != len(wanted) and not any(one.kind is one.VAR_POSITIONAL for one in taken):
        raise TypeError(f'{function.__qualname__} takes {len(taken)} arguments, and {name} takes {list(wanted)}')

    def instead(*arguments: Any, **named: Any) -> Any:
        return function(original, *arguments, **named)

    return mock.patch.object(owner, name, instead)


# -- taking -----------------------------------------------------------------------------------------------------------


@mutant('hold in the ledger → record', 'it records what it no longer holds')
def records_without_holding() -> Iterator[None]:
    def insert(original: Any, rows: Rows, changes: Changes) -> None:
        vars(rows)['_ledger'].put_back(Hold(
            changes.insert[0].instance_uuid, tuple(record.key for record in changes.insert), ()))
        original(rows, changes)

    with _in_place_of(Rows, 'insert', insert):
        yield


@mutant('record → realize', 'it makes devices before their rows', MDEVS)
def realizes_before_the_record() -> Iterator[None]:
    def changes_for(original: Any, claiming: Claiming, *arguments: Any) -> Changes:
        changes: Changes = original(claiming, *arguments)
        for record in changes.insert:
            vars(claiming)['_driver'].realize(DeviceAssignment.from_record(record))
        return changes

    with _in_place_of(Claiming, '_changes_for', changes_for):
        yield


@mutant('realize → the guest starts', 'it lets a guest start on devices that nobody made', MDEVS)
def realizes_nothing() -> Iterator[None]:
    with mock.patch.object(Claiming, 'realize', lambda claiming, records: list(records)):
        yield


# -- giving -----------------------------------------------------------------------------------------------------------


def _giving(life: Life) -> dict[str, Any]:
    """What the end of the give path uses."""
    return vars(vars(life)['releasing'])


@mutant('the guest is gone → mark releasing', 'it gives back what is deleted, and does not look for a guest')
def gives_back_under_a_guest() -> Iterator[None]:
    def is_over(instance_uuid: str, views: Views) -> bool:
        return (views.instances or {}).get(instance_uuid) in migrations.INSTANCE_OVER

    with mock.patch.object(audit, 'is_over', is_over):
        yield


@mutant('mark releasing → unrealize, wipe', 'it wipes before it says so in the row')
def wipes_before_the_mark() -> Iterator[None]:
    def advance(original: Any, life: Life, settlement: migrations.Settlement, *more: Any) -> Any:
        if settlement.give:
            _giving(life)['_driver'].unclaim([DeviceAssignment.from_record(record) for record in settlement.give])
        return original(life, settlement, *more)

    with _in_place_of(Life, 'advance', advance):
        yield


@mutant('wipe, proven → delete the row', 'it deletes the row and wipes then')
def deletes_before_the_wipe() -> Iterator[None]:
    def release(original: Any, life: Life, leaving: Sequence[Record], *_wait: Any) -> None:
        if not leaving:
            return
        vars(life)['_rows'].write(Changes(delete=tuple(leaving)))
        _giving(life)['_driver'].unclaim([DeviceAssignment.from_record(record) for record in leaving])
        _giving(life)['_ledger'].free_of(leaving[0].instance_uuid, [record.key for record in leaving])

    with _in_place_of(Life, 'release', release):
        yield


@mutant('delete the row → free in the ledger', 'it frees what it begins to give back')
def frees_before_the_row_is_gone() -> Iterator[None]:
    def releasing(original: Any, now: Snapshot, keys: Any) -> Snapshot:
        return changes_of.free(now, list(keys))

    with _in_place_of(changes_of, 'releasing', releasing):
        yield


# -- devices that fail ------------------------------------------------------------------------------------------------


@mutant('another one takes the place of a device that fails → it goes back', 'it frees it, and its row stays', FAILING)
def frees_what_fails() -> Iterator[None]:
    def release_replaced(_original: Any, life: Life, leaving: Sequence[Record], *_wait: Any) -> None:
        _giving(life)['_ledger'].free_of(leaving[0].instance_uuid, [record.key for record in leaving])

    with _in_place_of(Life, 'release_replaced', release_replaced):
        yield


@mutant('a device fails → claims do not get it', 'it does not withhold it', FAILING)
def withholds_nothing_that_fails() -> Iterator[None]:
    with mock.patch.object(Claiming, '_withhold', lambda claiming, record, error: None):
        yield


# -- devices that exclude one another ---------------------------------------------------------------------------------


@mutant('a card is held → nobody gets a part of it', 'it excludes nothing', CARD)
def excludes_nothing() -> Iterator[None]:
    with mock.patch.object(exclusion, 'is_excluded', lambda tokens, exclusions, is_taken=False: False):
        yield


@mutant('a part is held → nobody gets the whole from another kind', 'one kind knows nothing of another', PART_AND_WHOLE)
def knows_nothing_of_other_kinds() -> Iterator[None]:
    with mock.patch.object(containment, '_shared', lambda found: set()):
        yield


@mutant('a member of a group is held → its instance alone gets the others', 'a group excludes nothing', GROUP)
def groups_exclude_nothing() -> Iterator[None]:
    with mock.patch.dict(exclusion._AGAINST, {vocabulary.TOGETHER: ()}):
        yield


# -- moving -----------------------------------------------------------------------------------------------------------


@mutant('a claim on one host: new rows and the old mark at once', 'it marks what is left in a second transaction')
def marks_old_later() -> Iterator[None]:
    def take(original: Any, claiming: Claiming, claim: Claim, demand: Any, move: Arrival | None = None) -> Any:
        if move is None:
            return original(claiming, claim, demand)
        records = original(claiming, claim, demand, move._replace(leaving=()))
        if move.leaving:
            rows: Rows = vars(claiming)['_rows']
            rows.write(Changes(update=move.changes(rows, ()).update))
        return records

    with _in_place_of(Claiming, 'take', take):
        yield


@mutant('the guest runs on its new devices → they are its current ones, of this migration still',
        'it forgets the migration when the guest runs')
def forgets_the_migration() -> Iterator[None]:
    def advance(original: Any, life: Life, settlement: migrations.Settlement, *more: Any) -> Any:
        incoming = tuple(record for record in settlement.arrive if record.migration_uuid is not None)
        others = tuple(record for record in settlement.arrive if record.migration_uuid is None)
        return original(life, settlement._replace(arrive=others, settle=(*settlement.settle, *incoming)),
                        *more)

    with _in_place_of(Life, 'advance', advance):
        yield


@mutant('confirm or revert: one transaction', 'it ends the move in one transaction and begins to give in another')
def ends_a_move_in_two() -> Iterator[None]:
    def advance(original: Any, life: Life, settlement: migrations.Settlement, *more: Any) -> Any:
        if settlement.settle and settlement.give:
            original(life, settlement._replace(give=()), *more)
            settlement = settlement._replace(settle=(), arrive=(), leave=())
        return original(life, settlement, *more)

    with _in_place_of(Life, 'advance', advance):
        yield


@mutant('the guest starts on its own devices', 'it starts a guest while nobody says which of its devices are its own')
def starts_undecided() -> Iterator[None]:
    def settle_ended(original: Any, moves: Moves, *arguments: Any) -> bool:
        try:
            ended: bool = original(moves, *arguments)
        except exception.MigrationUndecided:
            return False
        return ended

    # The calls after realize() refuse, too.
    with _in_place_of(Moves, 'settle_ended', settle_ended), \
            mock.patch.object(Life, 'check_decided', lambda *_undecided: None):
        yield


@mutant('one call, one answer', 'it asks the service a second time, and goes on without an answer')
def asks_twice() -> Iterator[None]:
    with mock.patch.object(public_calls, 'answers', lambda: None), \
            mock.patch.object(Life, 'check_decided', lambda *_without_an_answer: None):
        yield


@mutant('a row that was confirmed stays', 'it believes a store that shows less than it had confirmed')
def believes_the_store() -> Iterator[None]:
    with mock.patch.object(KnownRows, 'lost', lambda known, *rows: ()), \
            mock.patch.object(KnownRows, 'of', lambda known, instance_uuid: {}):
        yield


@mutant('a row that was confirmed stays', 'it says that rows are lost, and frees their devices')
def frees_what_is_lost() -> Iterator[None]:
    def let_go(original: Any, rows: Rows, instance_uuid: str) -> None:
        with mock.patch.object(KnownRows, 'of', lambda known, instance_uuid: {}):
            original(rows, instance_uuid)

    with _in_place_of(Rows, 'let_go', let_go):
        yield


@mutant('what is elsewhere goes back', 'it waits for a migration that never was')
def waits_for_a_migration() -> Iterator[None]:
    with mock.patch.object(unsettled, 'left_without_migration', lambda views: frozenset()):
        yield
