"""A manager's memory, which it loses with its process: taken out of it, and put into it again.

The one place of the kit that knows how a manager is made inside.
"""

from __future__ import annotations

import pickle
from typing import Final

from devicetrack.claims.manager import ClaimManager
from devicetrack.engine.ledger import Ledger

# What a manager was handed, what is the same in every process of it, and locks, which nobody holds between two calls.
# All else is memory.
_NOT_MEMORY: Final = frozenset((
    'host', 'nodename', 'driver', 'store', 'service', '_conf', '_lock', '_working', '_reading', 'marking', '_auditing',
    '_pid', '_host_lock', '_claim_prefix', '_claim_numbers', '_ledger'))


def of(manager: ClaimManager) -> bytes:
    """The memory of a manager between two calls."""
    ledger = dict(vars(manager.ledger))
    ledger.pop('_provider_uuid_of')
    kept = {name: value for name, value in vars(manager).items() if name not in _NOT_MEMORY}
    return pickle.dumps((kept, ledger), protocol=pickle.HIGHEST_PROTOCOL)


def put_back(manager: ClaimManager, memory: bytes) -> None:
    """Give a manager the memory that it, or another manager of this host, had."""
    if vars(manager)['_host_lock'] is not None:
        manager.close()
    kept, of_ledger = pickle.loads(memory)
    ledger = Ledger.__new__(Ledger)
    vars(ledger).update(of_ledger, _provider_uuid_of=kept['_provider_names'].__getitem__)
    vars(manager).update(kept, _ledger=ledger)


def is_ready(manager: ClaimManager) -> bool:
    """Whether ``init_host`` has succeeded."""
    return bool(vars(manager)['_ready'])


