"""Finishing what is under way: what an operator and the service would do, until nothing is left to do.

Any operation may have been cut off, and any host may not have been told. Once the machines run, their managers were
started and audited, and the service told the truth about everything, the rows must be what the service's data says.
"""

from __future__ import annotations

from typing import NamedTuple

from devicetrack.engine import findings
from devicetrack.testing import compute_service
from devicetrack.tests.model import canonical
from devicetrack.tests.model import memory
from devicetrack.tests.model import operations
from devicetrack.tests.model import oracle
from devicetrack.tests.model import service as states
from devicetrack.tests.model.operations import Step
from devicetrack.tests.model.world import World

# Far more than any state needs.
_PATIENCE = 60


class Ending(NamedTuple):
    """The steps that were done, and what is wrong after the last."""

    steps: tuple[Step, ...]
    wrong: tuple[str, ...]


def finish(world: World, known: set[bytes] | None = None) -> Ending:
    """Finish everything that is under way in a world.

    :param known: forms of worlds that were finished well before; those of this one are added
    """
    steps: list[Step] = []
    forms: list[bytes] = []
    for name, host in world.hosts.items():
        if not host.powered:
            steps.append(Step('power on', (name,)))
            operations.perform(world, steps[-1])
        steps.append(Step('audit' if host.is_alive else 'start', (name,)))
        wrong = _perform(world, steps[-1])
        if wrong:
            return Ending(tuple(steps), wrong)
    for _ in range(_PATIENCE):
        form = canonical.form(world)
        if known is not None and form in known:
            break
        forms.append(form)
        step = _next(world)
        if step is None:
            wrong = _settled(world, steps)
            if wrong:
                return Ending(tuple(steps), wrong)
            break
        steps.append(step)
        wrong = _perform(world, step)
        if wrong:
            return Ending(tuple(steps), wrong)
    else:
        return Ending(tuple(steps), ('it does not come to an end',))
    if known is not None:
        known.update(forms)
    return Ending(tuple(steps), ())


def _perform(world: World, step: Step) -> tuple[str, ...]:
    try:
        operations.perform(world, step)
    except Exception as error:
        return (f'{type(error).__name__}: {error}',)
    return tuple(oracle.broken(world))


def _next(world: World) -> Step | None:
    for guest in world.service.guests.values():
        name = (guest.name,)
        if guest.state in (compute_service.BUILDING, compute_service.DELETING):
            return Step('delete' if guest.host is not None else 'delete unheard', name)
        move = world.service.move_of(guest)
        if move is not None:
            return Step(_END_OF[move.phase] if move.status != 'reverting' or move.phase != states.FINISHED
                        else 'revert', name)
        if guest.state == compute_service.ACTIVE and guest.uuid not in world.hosts[str(guest.host)].machine.domains:
            return Step('hard reboot', name)
    for step in operations.enabled(world):
        if step.name in ('clean up', 'release by hand'):
            return step
    return None


_END_OF = {
    states.CLAIMING: 'fail unheard',
    states.CLAIMED: 'fail unheard',
    states.ARRIVING: 'fail unheard',
    states.UNDOING: 'fail unheard',
    states.LEFT: 'finish',
    states.FINISHED: 'confirm',
    states.DROPPED: 'finish revert',
    states.ARRIVED: 'live over at dest',
}


def _settled(world: World, steps: list[Step]) -> tuple[str, ...]:
    """Audits find what is left to give back, and then nothing. What failed becomes free after a few of them."""
    found: dict[str, list[findings.Finding]] = {}
    audits = 0
    while audits < 3 or (audits < _PATIENCE and any(
            memory.running(host.manager).withheld.not_realized for host in world.hosts.values())):
        audits += 1
        for name in world.hosts:
            steps.append(Step('audit', (name,)))
            found[name] = world.audit(name)
    return (*oracle.broken(world), *oracle.unfinished(world),
            *(f'the audit of host {name} finds {one}' for name, of_host in found.items() for one in of_host))
