"""The memory that the ledger needs, in bytes."""

from __future__ import annotations

from collections.abc import Callable
import gc
import tracemalloc
from typing import ParamSpec
from typing import TypeVar
import uuid

from benchmarks import claim
from benchmarks.measure import Effort
from benchmarks.report import Row
from benchmarks.report import Table
from devicetrack.claims.locked_ledger import LockedLedger

Given = ParamSpec('Given')
Made = TypeVar('Made')


def run(effort: Effort) -> Table:
    entries, assignments = [], []
    for devices in effort.held:
        ledger, entry = _growth(claim.existing, devices)
        _, assignment = _growth(_hold, ledger, devices)
        entries.append(entry / devices)
        assignments.append(assignment / devices)
    sizes = ', '.join(f'{devices:,}' for devices in effort.held)
    # Hash tables grow in steps, so the cost of an entry depends on how many came after the last step.
    return Table('Memory of the ledger', [
        Row('an assignment: one device held for one instance', max(assignments), 'bytes', at_most=600,
            note=f'most of {sizes} held, with the UUID of the instance; at least {min(assignments):.0f}'),
        Row('beside it, a device: held or free', max(entries), 'bytes',
            note=f'with its identifier, without the text of its details; at least {min(entries):.0f}'),
    ])


def _hold(ledger: LockedLedger, devices: int) -> None:
    for _ in range(devices):
        ledger.take(str(uuid.uuid4()), claim.DEMAND)


def _growth(make: Callable[Given, Made], *given: Given.args, **named: Given.kwargs) -> tuple[Made, int]:
    """Call a function. Returns its result, and how many more bytes are in use afterwards."""
    gc.collect()
    tracemalloc.start()
    try:
        made = make(*given, **named)
        gc.collect()
        return made, tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
