"""A manager's memory, which it loses with its process: taken out of it, and put into it again.

The one place of the kit that knows what a started host consists of.
"""

from __future__ import annotations

import pickle
from typing import Any
from typing import Final
import weakref

from devicetrack.claims.manager import ClaimManager
from devicetrack.claims.running import Running

# What each room remembers. All else was handed in, is the same at every start, or is a lock that nobody holds between
# two calls.
_REMEMBERED: Final = {
    'ledger': ('_now',),
    'store.store': ('_host', '_is_taken_over'),
    'service_store.store': ('_host', '_own', '_is_taken_over'),
    'rows.unfinished': ('_entries',),
    'rows.known': ('_rows', '_keys', '_contexts'),
    'gate': ('_behind',),
    'boot': ('_recorded', '_ready'),
    'views': ('providers',),
    'views._known': ('_uuids',),
    'declarations': ('known',),
    'withheld': ('_stored', 'marks', '_audits', '_failed'),
    'wipes': ('_waiting', '_working', '_tried', '_audits', '_begun', '_closed'),
    'audits': ('_since',),
}

# A host is put together once for each manager: what it remembers is replaced, and that is much faster.
_MADE: Final[weakref.WeakKeyDictionary[ClaimManager, Running]] = weakref.WeakKeyDictionary()


def running(manager: ClaimManager) -> Running:
    """The host of a manager that is ready."""
    found: Running | None = vars(manager)['_running']
    assert found is not None
    return found


def is_ready(manager: ClaimManager) -> bool:
    """Whether ``init_host`` has succeeded."""
    return vars(manager)['_running'] is not None


def of(manager: ClaimManager) -> bytes | None:
    """The memory of a manager between two calls; None for one that is not ready."""
    if not is_ready(manager):
        return None
    rooms = _rooms(running(manager))
    return pickle.dumps([[vars(rooms[name])[attribute] for attribute in attributes]
                         for name, attributes in _REMEMBERED.items()], protocol=pickle.HIGHEST_PROTOCOL)


def put_back(manager: ClaimManager, memory: bytes | None) -> None:
    """Give a manager the memory that it, or another manager of this host, had."""
    if is_ready(manager):
        _MADE[manager] = running(manager)
        manager.close()
    if memory is None:
        return
    host = _MADE[manager]
    rooms = _rooms(host)
    host.is_closed = False
    unfinished = vars(host.rows.unfinished)['_entries']
    for (name, attributes), values in zip(_REMEMBERED.items(), pickle.loads(memory), strict=True):
        vars(rooms[name]).update(zip(attributes, values, strict=True))
    # The tables of the manager and of its starts have some of the dictionaries in common.
    for kind, entries in unfinished.items():
        entries.clear()
        entries.update(vars(host.rows.unfinished)['_entries'][kind])
    vars(host.rows.unfinished)['_entries'] = unfinished
    vars(manager)['_running'] = host


def _rooms(host: Running) -> dict[str, Any]:
    rooms = {}
    for name in _REMEMBERED:
        room: Any = host
        for part in name.split('.'):
            room = getattr(room, part)
        rooms[name] = room
    return rooms
