"""Options of placement.

How it is reached is in the same group: keystoneauth1 has those options
(:func:`devicetrack.placement.session.open_adapter`).
"""

from __future__ import annotations

from typing import Final

from oslo_config import cfg

from devicetrack import conf as registry

GROUP: Final = 'placement'
ON_CONFLICT: Final = 'on_conflict_'

_FAIL: Final = ('fail', 'the operation fails, nothing is changed, and the caller decides')
_RETRY: Final = ('retry', 'repeat it when what it is about to change is as it was believed to be')
_MERGE: Final = ('merge', 'repeat it with what others put there')


def _on_conflict(operation: str, text: str, *choices: tuple[str, str]) -> cfg.Opt:
    return cfg.StrOpt(ON_CONFLICT + operation, default=_FAIL[0], choices=[_FAIL, _RETRY, *choices], help=f"""
What {text} does when somebody else changed the same allocations or providers at the same time. What each choice costs
and what a user sees of it is in the guide to conflicts.
""")


OPTIONS: list[cfg.Opt] = [
    _on_conflict('spawn', 'the allocation for a new instance'),
    _on_conflict('move', 'the start of a resize, a cold or a live migration', _MERGE),
    _on_conflict('confirm', 'the confirmation of a move', ('merge', 'remove whatever the migration holds by then')),
    _on_conflict('revert', 'the revert or rollback of a move', _MERGE),
    _on_conflict('delete', 'the deletion of an instance', ('merge', 'remove whatever the instance holds by then')),
    _on_conflict('evacuate', 'an evacuation, at its start and when it is over', _MERGE),
    _on_conflict('change', 'a change of what an instance needs that comes from outside', _MERGE),
    cfg.IntOpt('allocation_attempts', default=4, min=1, max=100, help="""
How often an operation on allocations writes at most, for conflicts and lost answers together. Each attempt costs a read
of every consumer concerned and a write. Raise it when many writers change the same consumers.
"""),
    cfg.StrOpt('nested', default='off', choices=[
        ('off', 'all devices of a node are counted at the node'),
        ('manual', 'as off until the node is healed; the providers below it are there, reserved in full'),
        ('at_start', 'each device is counted at its own provider; a service that starts moves what is at the node'),
        ('refuse', 'each device is counted at its own provider; no service starts while guests have devices of the '
                   'node'),
    ], help="""
Whether devices are counted at providers of their own below the node: one for each parent of mediated devices or of
virtual functions, and one for each NUMA node of persistent memory if those are counted so. A flavor can ask for devices
of one parent, and the scheduler knows which parent is full, only where they are. While devices are allocated at the
node they stay counted there: "devicetrack-manage placement heal", or a start with at_start, moves them without moving a
guest.
"""),
    cfg.BoolOpt('pmem_per_numa_node', default=False, help="""
Whether persistent memory is counted for each NUMA node, at providers ``<node>_numa<N>`` with the trait
``HW_NUMA_ROOT``, and not at the node. Namespaces whose NUMA node is not known stay at the node. It must be the same for
the service and for commands.
"""),
]


def register(conf: cfg.ConfigOpts) -> None:
    registry.register(conf, GROUP, OPTIONS)
