"""Options of placement.

The same group has keystoneauth1's options for the connection (:func:`devicetrack.placement.session.open_adapter`).
"""

from __future__ import annotations

from typing import Final

from oslo_config import cfg

from devicetrack import conf as registry

GROUP: Final = 'placement'
ON_CONFLICT: Final = 'on_conflict_'

_FAIL: Final = ('fail', 'the operation fails and changes nothing; the caller decides')
_RETRY: Final = ('retry', 'repeat it, if its part of the allocations is unchanged')
_MERGE: Final = ('merge', 'repeat it, and keep the allocations of others')
_REMOVE: Final = ('merge', 'repeat it, and also remove the allocations of others')


def _on_conflict(operation: str, text: str, *choices: tuple[str, str]) -> cfg.Opt:
    return cfg.StrOpt(ON_CONFLICT + operation, default=_FAIL[0], choices=[_FAIL, _RETRY, *choices], help=f"""
What to do if somebody else changed the same allocations or providers during {text}. For the cost of each choice and
its effect for users, refer to the guide to conflicts.
""")


OPTIONS: list[cfg.Opt] = [
    _on_conflict('spawn', 'the allocation for a new instance'),
    _on_conflict('move', 'the start of a resize, a cold or a live migration', _MERGE),
    _on_conflict('confirm', 'the confirmation of a move', _REMOVE),
    _on_conflict('revert', 'the revert or rollback of a move', _MERGE),
    _on_conflict('delete', 'the deletion of an instance', _REMOVE),
    _on_conflict('evacuate', 'the start or the end of an evacuation', _MERGE),
    _on_conflict('change', 'a change for a port or an accelerator', _MERGE),
    cfg.IntOpt('allocation_attempts', default=4, min=1, max=100, help="""
Maximum number of attempts of an operation to write allocations. A conflict or a lost answer causes another attempt.
Each attempt reads every consumer concerned and writes once. Raise it if many writers change the same consumers.
"""),
    cfg.StrOpt('nested', default='off', choices=[
        ('off', 'all devices of a node are counted at the node'),
        ('manual', 'as off until the node is healed; the providers below it exist, reserved in full'),
        ('at_start', 'each device is counted at its own provider; the service moves allocations of the node when it '
                     'starts'),
        ('refuse', 'each device is counted at its own provider; the service does not start while guests have '
                   'allocations of the node'),
    ], help="""
Whether placement counts devices at their own providers below the node: one for each parent of mediated devices or of
virtual functions, and with pmem_per_numa_node one for each NUMA node of persistent memory. With such providers a flavor
can request devices of one parent, and the scheduler knows which parent is full. Devices that are allocated at the node
stay counted there until "devicetrack-manage placement heal", or a start with at_start, moves the allocations. No guest
moves.
"""),
    cfg.BoolOpt('pmem_per_numa_node', default=False, help="""
Whether persistent memory is counted for each NUMA node, at providers ``<node>_numa<N>`` with the trait
``HW_NUMA_ROOT``, and not at the node. Namespaces whose NUMA node is unknown are counted at the node. The service and
the commands must have the same value.
"""),
]


def register(conf: cfg.ConfigOpts) -> None:
    registry.register(conf, GROUP, OPTIONS)
