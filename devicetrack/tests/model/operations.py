"""What may happen to a world: what users ask of the service, what the service asks of its hosts, what hosts do.

Each operation is what a Nova-like service does, call by call, and saves its data where the service saves it. It may be
cut off at every point. The other operations find what is left then, and none repairs more than the service would.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import Final
from typing import NamedTuple

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.testing import compute_service as service
from devicetrack.tests.model import memory
from devicetrack.tests.model import service as states
from devicetrack.tests.model.service import Guest
from devicetrack.tests.model.service import Move
from devicetrack.tests.model.world import host_devices
from devicetrack.tests.model.world import World
from devicetrack.tests.model.world import WrongDevices

# With these a claim may be refused, whatever the model knows: there is no room, or the store waits for an operator.
REFUSED: Final = (exception.NoFit, exception.NodeUnavailable)

Arguments = tuple[Any, ...]


class Step(NamedTuple):
    """A step of a trace: an operation and its arguments.

    ``cut`` is '' or the call at which the process that does it was killed, with how many there were before it.
    """

    name: str
    arguments: Arguments
    cut: str = ''

    def __str__(self) -> str:
        words = ' '.join(str(argument) for argument in (self.name, *self.arguments))
        return f'{words}, killed {self.cut}' if self.cut else words


class Operation(NamedTuple):
    name: str
    choices: Callable[[World], Iterator[Arguments]]
    run: Callable[..., None]


OPERATIONS: Final[dict[str, Operation]] = {}


def operation(choices: Callable[[World], Iterator[Arguments]]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function an operation.

    :param choices: the arguments that it can have in a world
    """
    def made(run: Callable[..., None]) -> Callable[..., None]:
        name = run.__name__.replace('_', ' ')
        OPERATIONS[name] = Operation(name, choices, run)
        return run
    return made


def enabled(world: World) -> Iterator[Step]:
    """Everything that may happen next."""
    for one in OPERATIONS.values():
        for arguments in one.choices(world):
            yield Step(one.name, arguments)


def perform(world: World, step: Step) -> None:
    """Do a step. Errors that the service does not expect are raised."""
    try:
        OPERATIONS[step.name].run(world, *step.arguments)
    finally:
        world.service.tidy(frozenset().union(*(database.migrations() for database in world.databases)),
                           {(name, row.instance_uuid) for name in world.hosts for row in world.rows_of(name)})


# -- who can ask for what ---------------------------------------------------------------------------------------------


def _alive(world: World) -> list[str]:
    return [name for name, host in world.hosts.items() if host.is_alive]


def _guests(world: World, *wanted: str) -> list[Guest]:
    return [guest for guest in world.service.guests.values() if guest.state in wanted]


def _moving(world: World, kinds: tuple[str, ...], *phases: str) -> Iterator[tuple[Guest, Move]]:
    for guest in _guests(world, service.ACTIVE):
        move = world.service.move_of(guest)
        if move is not None and move.kind in kinds and move.phase in phases:
            yield guest, move


def _at_rest(world: World) -> Iterator[Guest]:
    for guest in _guests(world, service.ACTIVE):
        if world.service.move_of(guest) is None:
            yield guest


def _named(world: World, name: str) -> tuple[Guest, Any]:
    guest = world.service.guests[name]
    return guest, world.service.move_of(guest)


def _end(move: Move, status: str) -> None:
    move.status, move.phase, move.device_map = status, states.OVER, None


# -- hosts ------------------------------------------------------------------------------------------------------------


def _dead(world: World) -> Iterator[Arguments]:
    return ((name,) for name, host in world.hosts.items() if host.powered and not host.is_alive)


@operation(lambda world: ((name,) for name in _alive(world)))
def audit(world: World, host: str) -> None:
    world.audit(host)


@operation(lambda world: ((name,) for name in _alive(world)))
def kill(world: World, host: str) -> None:
    """The service's process on a host is killed between two operations. Guests run on."""
    world.kill(host)


@operation(_dead)
def start(world: World, host: str) -> None:
    """The service's process on a host starts."""
    world.start(host)


@operation(lambda world: ((name,) for name, host in world.hosts.items() if host.powered))
def power_off(world: World, host: str) -> None:
    """A machine loses its power: guests are off, the process is gone."""
    world.kill(host)
    world.hosts[host].powered = False
    world.hosts[host].machine.reboot()


@operation(lambda world: ((name,) for name, host in world.hosts.items() if not host.powered))
def power_on(world: World, host: str) -> None:
    world.hosts[host].powered = True


@operation(lambda world: ((name,) for name, host in world.hosts.items() if host.powered))
def reboot(world: World, host: str) -> None:
    """Power off and on in one step, which brings a search further."""
    world.kill(host)
    world.hosts[host].machine.reboot()


# -- the life of a guest ----------------------------------------------------------------------------------------------


def _run_guest(world: World, guest: Guest, host: str, new: bool = False) -> None:
    """Realize, define and start the guest on its instance's devices on a host: with ``new`` those that it moves to."""
    manager = world.hosts[host].manager
    instance = guest.instance()
    made = manager.realize(world.context, instance)
    if new:
        guest.new = world.instead(guest.new, host, made)
    else:
        guest.current = world.instead(guest.current, host, made)
    config = manager.guest_config(instance)
    world.start_guest(guest, host, config.devices, config.metadata, guest.new if new else guest.current)
    manager.started(world.context, instance)
    guest.save(instance)


def _run_new_guest(world: World, guest: Guest, host: str, new: bool = False) -> None:
    """The same for a guest that was not there: after an error the service removes the guest."""
    try:
        _run_guest(world, guest, host, new)
    except exception.DeviceTrackError:
        guest.written -= {place for place in guest.written if place[0] == host}
        world.delete_guest(guest, host)
        raise


def _first_guest(world: World) -> Iterator[Arguments]:
    """Guests that never were are all alike."""
    for guest in _guests(world, states.ABSENT)[:1]:
        for host in _alive(world):
            yield guest.name, host


@operation(_first_guest)
def boot(world: World, name: str, host: str) -> None:
    guest, _ = _named(world, name)
    world.acting = host
    guest.state = service.BUILDING
    _boot(world, guest, host, states.ABSENT)


def _boot(world: World, guest: Guest, host: str, refused: str,
          refusals: tuple[type[exception.DeviceTrackError], ...] = REFUSED) -> None:
    """Claim for a guest that is nowhere, and start it. When its claim is refused it gets the state ``refused``."""
    instance = guest.instance()
    try:
        claim = world.hosts[host].manager.instance_claim(world.context, instance, host, world.request(guest.size))
    except refusals:
        guest.state = refused
        return
    with claim:
        guest.save(instance)
        guest.host, guest.current = host, host_devices(host, claim.resources)
        world.point()
        _run_new_guest(world, guest, host)
    guest.state = service.ACTIVE


# How devices may fail: the error, and how many of them.
_FAILURES: Final[dict[str, tuple[type[exception.DeviceError], int | None]]] = {
    'one that fails': (exception.RealizeFailed, 1),
    'one that others use': (exception.DeviceInUse, 1),
    'all': (exception.DeviceInUse, None),
}


def _may_fail(world: World) -> bool:
    """Whether devices may fail now: one failure at a time, or a search would take twice as long."""
    return world.shape.failing and not any(memory.running(world.hosts[name].manager).withheld.not_realized
                                           for name in _alive(world))


@operation(lambda world: ((*arguments, how) for arguments in _first_guest(world) for how in _FAILURES
                          if _may_fail(world)))
def boot_past(world: World, name: str, host: str, how: str) -> None:
    """A device of a new guest cannot be made ready. Another one takes its place, or the service gives the boot up."""
    guest, _ = _named(world, name)
    with world.failing(host, *_FAILURES[how]):
        try:
            boot(world, name, host)
        except (exception.NoFit, exception.DeviceError):
            guest.state, guest.host, guest.resources, guest.current = states.ABSENT, None, None, frozenset()


@operation(lambda world: ((guest.name, name) for guest in world.service.guests.values()
                          for name, host in world.hosts.items()
                          if host.powered and host.lives(guest) and not host.machine.domains[guest.uuid].arriving))
def shut_off(world: World, name: str, host: str) -> None:
    """A guest turns itself off, or a user does."""
    world.hosts[host].machine.stop_guest(world.service.guests[name].uuid)


@operation(lambda world: ((guest.name,) for guest in _guests(world, service.ACTIVE)
                          if str(guest.host) in _alive(world) and _may_start(world, guest)))
def hard_reboot(world: World, name: str) -> None:
    guest, _ = _named(world, name)
    host = world.acting = str(guest.host)
    world.stop_guest(guest, host)
    _run_guest(world, guest, host)


def _may_start(world: World, guest: Guest) -> bool:
    move = world.service.move_of(guest)
    return move is None or (move.phase == states.FINISHED and move.status == 'finished')


@operation(lambda world: ((guest.name, answers) for guest in _at_rest(world)
                          if str(guest.host) in _alive(world) and _rows_of_moves(world, guest) for answers in (0, 1)))
def hard_reboot_in_silence(world: World, name: str, answers: int) -> None:
    """A guest is to start whose host has not heard of the end of its move, and the service does not say which it was.

    Or it says so once, and not a second time.

    Nobody starts it on other devices than its own: the host refuses where it cannot know.
    """
    guest, _ = _named(world, name)
    host = world.acting = str(guest.host)
    world.stop_guest(guest, host)
    world.service.patience = answers
    try:
        _run_guest(world, guest, host)
    except exception.MigrationUndecided:
        pass
    finally:
        world.service.patience = None


@operation(lambda world: ((guest.name,) for guest in _guests(world, service.ACTIVE) if guest.host in _alive(world)
                          and any(row.instance_uuid == guest.uuid for row in world.rows_of(str(guest.host)))))
def look_at_a_store_that_lags(world: World, name: str) -> None:
    """The store shows no row of a guest for a moment: no guest starts without its devices, and nothing is freed."""
    guest, _ = _named(world, name)
    host = world.acting = str(guest.host)
    manager = world.hosts[host].manager
    with world.lagging(host, guest):
        try:
            found = manager.realize(world.context, guest.instance())
        except exception.RowsMissing:
            world.audit(host)
        else:
            raise WrongDevices(f'{guest.name} is to start on {len(list(found))} devices, and its rows are lost')
    world.point('the store shows all')
    world.audit(host)


def _rows_of_moves(world: World, guest: Guest) -> bool:
    return any(row.instance_uuid == guest.uuid and row.migration_uuid is not None
               for row in world.rows_of(str(guest.host)))


@operation(lambda world: ((guest.name,) for guest in _at_rest(world)
                          if guest.host not in _alive(world) and _other(world, guest.host) in _alive(world)))
def unshelve_elsewhere(world: World, name: str) -> None:
    """A guest was shelved while its host did not hear, and starts on the other one. No migration takes it there."""
    guest, _ = _named(world, name)
    left, host = str(guest.host), _other(world, guest.host)
    world.acting = host
    guest.forget(guest.owned | guest.written)
    guest.host, guest.state, guest.resources, guest.context = None, service.BUILDING, None, None
    if world.hosts[left].powered:
        world.delete_guest(guest, left)
    world.point()
    # It may have rows there of a move whose end that host has not heard of: the next audit gives them back.
    _boot(world, guest, host, service.DELETED, (*REFUSED, exception.InstanceHasClaim))


@operation(lambda world: ((guest.name,) for guest in _guests(world, service.BUILDING, service.ACTIVE, service.DELETING)
                          if guest.host in _alive(world) and _may_delete(world, guest)))
def delete(world: World, name: str) -> None:
    guest, move = _named(world, name)
    host = world.acting = str(guest.host)
    guest.state = service.DELETING
    guest.forget(guest.owned | guest.written)
    world.delete_guest(guest, host)
    world.hosts[host].manager.release(world.context, guest.instance())
    _forget(guest, move)


@operation(lambda world: ((guest.name,) for guest in _guests(world, service.BUILDING, service.ACTIVE, service.DELETING)
                          if guest.host not in _alive(world) and _may_delete(world, guest)))
def delete_unheard(world: World, name: str) -> None:
    """A guest is deleted and its host, which does not answer, is not told."""
    guest, move = _named(world, name)
    guest.forget(guest.owned | guest.written)
    _forget(guest, move)


def _may_delete(world: World, guest: Guest) -> bool:
    """A resize is confirmed or reverted first."""
    move = world.service.move_of(guest)
    return move is None or move.phase in (states.CLAIMING, states.CLAIMED, states.UNDOING)


def _forget(guest: Guest, move: Move | None) -> None:
    guest.state, guest.resources, guest.context = service.DELETED, None, None
    if move is not None:
        _end(move, 'error')


@operation(lambda world: ((guest.name, name) for guest in world.service.guests.values()
                          for name in _alive(world) if _is_left_behind(world, guest, name)))
def clean_up(world: World, name: str, host: str) -> None:
    """The service removes a domain of a guest that is deleted, or that lives elsewhere."""
    world.acting = host
    world.delete_guest(world.service.guests[name], host)


def _is_left_behind(world: World, guest: Guest, host: str) -> bool:
    if guest.uuid not in world.hosts[host].machine.domains or guest.host == host and guest.state != service.DELETED:
        return False
    move = world.service.move_of(guest)
    return move is None or host not in (move.source, move.dest)


@operation(lambda world: ((guest.name, name) for guest in _at_rest(world)
                          for name in _alive(world) if _waits_for_a_person(world, guest, name)))
def release_by_hand(world: World, name: str, host: str) -> None:
    """An operator says that an instance has left a host for good."""
    world.acting = host
    memory.running(world.hosts[host].manager).repairs.release(world.service.guests[name].uuid)


def _waits_for_a_person(world: World, guest: Guest, host: str) -> bool:
    """Whether a migration that failed may have taken a guest away from a host, for all that the host can know."""
    return (guest.host != host and guest.uuid not in world.hosts[host].machine.domains
            and any(row.instance_uuid == guest.uuid and row.migration_uuid is None and row.state == vocabulary.ACTIVE
                    for row in world.rows_of(host))
            and any(move.instance_uuid == guest.uuid and move.source == host and move.status == 'error'
                    for move in world.service.migrations))


# -- resize and cold migration ----------------------------------------------------------------------------------------


def _claim(world: World, guest: Guest, move: Move, make: Callable[[Any], Any]) -> Any:
    """Make a claim for a move; without room the move fails and None is returned."""
    instance = guest.instance()
    try:
        claim = make(instance)
    except (*REFUSED, exception.NoDevicePair, exception.InstanceHasStaleRows):
        _end(move, 'error' if move.kind == service.RESIZE else 'failed')
        return None
    guest.context = instance.migration_context
    guest.new = host_devices(move.dest, claim.resources)
    if move.kind != service.LIVE_MIGRATION:         # whose source must be told which device becomes which
        move.phase = states.CLAIMED
    world.point()
    return claim


@operation(lambda world: ((guest.name, host, size) for guest in _at_rest(world) for host in _alive(world)
                          for size in world.shape.sizes))
def resize(world: World, name: str, host: str, size: int) -> None:
    """Claim at the destination, which may be the host that the guest is on."""
    guest, _ = _named(world, name)
    world.acting = host
    move = world.service.begin(guest, host, service.RESIZE, 'pre-migrating', size)
    world.point()
    manager = world.hosts[host].manager
    _claim(world, guest, move, lambda instance: manager.resize_claim(
        world.context, instance, host, world.request(size) if size else None, move))


@operation(lambda world: ((guest.name,) for guest, move in _moving(world, (service.RESIZE,), states.CLAIMED)
                          if move.source in _alive(world)))
def leave(world: World, name: str) -> None:
    """At the source: the guest is turned off, and is the destination's from now on."""
    guest, move = _named(world, name)
    world.acting = move.source
    world.stop_guest(guest, move.source)
    guest.host, move.status, move.phase = move.dest, 'post-migrating', states.LEFT


@operation(lambda world: ((guest.name,) for guest, move in _moving(world, (service.RESIZE,), states.LEFT)
                          if move.dest in _alive(world)))
def finish(world: World, name: str) -> None:
    """At the destination: the guest starts on its new devices."""
    guest, move = _named(world, name)
    world.acting = move.dest
    _run_guest(world, guest, move.dest, new=True)
    guest.old, guest.current, guest.new = guest.current, guest.new, frozenset()
    guest.size, move.size = move.size, guest.size
    move.status, move.phase = 'finished', states.FINISHED


@operation(lambda world: ((guest.name,) for guest, move in _moving(world, (service.RESIZE,), states.FINISHED)
                          if move.source in _alive(world) and move.status != 'reverting'))
def confirm(world: World, name: str) -> None:
    """At the source: what the guest left goes back."""
    guest, move = _named(world, name)
    world.acting = move.source
    move.status = 'confirming'
    guest.forget(guest.old)
    if not move.one_host:
        world.delete_guest(guest, move.source)
    world.point()
    instance = guest.instance()
    world.hosts[move.source].manager.drop_move_claim_at_source(world.context, instance, move)
    guest.context = None
    _end(move, 'confirmed')


@operation(lambda world: ((guest.name,) for guest, move in _moving(world, (service.RESIZE,), states.FINISHED)
                          if move.status != 'reverting'))
def confirm_unheard(world: World, name: str) -> None:
    """The service says that a resize is confirmed, and the source was never told."""
    guest, move = _named(world, name)
    guest.forget(guest.old)
    guest.context = None
    _end(move, 'confirmed')


@operation(lambda world: ((guest.name,) for guest, move in _moving(world, (service.RESIZE,), states.FINISHED)
                          if move.dest in _alive(world) and move.status != 'confirming'))
def revert(world: World, name: str) -> None:
    """At the destination: the guest goes, and what was claimed for it."""
    guest, move = _named(world, name)
    world.acting = move.dest
    move.status = 'reverting'
    guest.written -= guest.current
    world.delete_guest(guest, move.dest)
    world.point()
    instance = guest.instance()
    world.hosts[move.dest].manager.drop_move_claim_at_dest(world.context, instance, move)
    guest.save(instance)
    guest.current, guest.old = guest.old, frozenset()
    guest.host, guest.size, move.phase = move.source, move.size, states.DROPPED


@operation(lambda world: ((guest.name,) for guest, move in _moving(world, (service.RESIZE,), states.FINISHED)
                          if world.hosts[move.dest].powered and move.status != 'confirming'))
def revert_unheard(world: World, name: str) -> None:
    """The service says that a resize is reverted, its guest is gone, and no host was told."""
    guest, move = _named(world, name)
    guest.written -= guest.current
    world.delete_guest(guest, move.dest)
    guest.current, guest.old = guest.old, frozenset()
    guest.host, guest.size, guest.context = move.source, move.size, None
    _end(move, 'reverted')


@operation(lambda world: ((guest.name,) for guest, move in _moving(world, (service.RESIZE,), states.DROPPED)
                          if move.source in _alive(world)))
def finish_revert(world: World, name: str) -> None:
    """At the source: the guest starts where it was."""
    guest, move = _named(world, name)
    world.acting = move.source
    _run_guest(world, guest, move.source)
    guest.context = None
    _end(move, 'reverted')


@operation(lambda world: ((guest.name,) for guest, move in _moving(world, (service.RESIZE,), states.CLAIMED,
                                                                   states.UNDOING) if move.dest in _alive(world)))
def cancel(world: World, name: str) -> None:
    """A resize is given up before the guest left: the destination is told."""
    guest, move = _named(world, name)
    world.acting = move.dest
    move.phase = states.UNDOING
    world.point()
    instance = guest.instance()
    world.hosts[move.dest].manager.drop_move_claim_at_dest(world.context, instance, move)
    guest.context, guest.new = None, frozenset()
    _end(move, 'error')


@operation(lambda world: ((guest.name,) for guest, move in _moving(
    world, (service.RESIZE, service.LIVE_MIGRATION, service.EVACUATION),
    states.CLAIMING, states.CLAIMED, states.ARRIVING, states.UNDOING)))
def fail_unheard(world: World, name: str) -> None:
    """The service says that a move failed before the guest moved, and no host was told."""
    guest, move = _named(world, name)
    if move.phase == states.ARRIVING:
        world.delete_guest(guest, move.dest)        # the hypervisor gave it up
    if move.kind != service.RESIZE:
        guest.written -= {place for place in guest.written if place[0] == move.dest}
    guest.context, guest.new = None, frozenset()
    _end(move, 'error' if move.kind == service.RESIZE else 'failed')


# -- live migration ---------------------------------------------------------------------------------------------------


def _other(world: World, host: str | None) -> str:
    return next(name for name in world.hosts if name != host)


def _may_move_live(world: World) -> Iterator[Arguments]:
    return ((guest.name,) for guest in _at_rest(world)
            if world.hosts[str(guest.host)].lives(guest) and guest.host in _alive(world)
            and _other(world, guest.host) in _alive(world) and guest.size)


@operation(_may_move_live)
def live_claim(world: World, name: str) -> None:
    """At the destination: partners for the guest's devices are claimed and made ready."""
    guest, _ = _named(world, name)
    host = world.acting = _other(world, guest.host)
    move = world.service.begin(guest, host, service.LIVE_MIGRATION, 'accepted')
    world.point()
    manager, source = world.hosts[host].manager, world.hosts[str(guest.host)].manager
    claim = _claim(world, guest, move, lambda instance: manager.live_migration_claim(
        world.context, instance, host, world.request(guest.size), move,
        check=source.check_can_live_migrate_source(instance)))
    if claim is None:
        return
    with claim:
        instance = guest.instance()
        guest.new = world.instead(guest.new, host, manager.realize(world.context, instance))
        guest.context = instance.migration_context
        move.device_map = manager.device_map(instance, move)
    move.phase, move.status, move.boot = states.CLAIMED, 'preparing', world.hosts[host].machine.boot


@operation(lambda world: ((*arguments, how) for arguments in _may_move_live(world) for how in _FAILURES
                          if _may_fail(world)))
def live_claim_past(world: World, name: str, how: str) -> None:
    """A partner cannot be made ready. Another one takes its place, or the service gives the move up."""
    guest, _ = _named(world, name)
    with world.failing(_other(world, guest.host), *_FAILURES[how]):
        try:
            live_claim(world, name)
        except (exception.NoFit, exception.DeviceError):
            guest.context, guest.new = None, frozenset()
            _end(_named(world, name)[1], 'failed')


@operation(lambda world: ((guest.name,) for guest, move in _moving(world, (service.LIVE_MIGRATION,), states.CLAIMED)
                          if move.source in _alive(world) and world.hosts[move.dest].powered
                          and world.hosts[move.dest].machine.boot == move.boot
                          and world.hosts[move.source].lives(guest)))
def live_migrate(world: World, name: str) -> None:
    """At the source: the guest is sent. A map of another boot would name other devices: then the move is given up."""
    guest, move = _named(world, name)
    world.acting = move.source
    instance = guest.instance()
    definitions = world.hosts[move.source].manager.migration_definitions(world.context, instance, move, move.device_map)
    move.status, move.phase = 'running', states.ARRIVING
    machine = world.hosts[move.dest].machine
    machine.receive_guest(guest.uuid, definitions)
    world.write(guest, move.dest, world.keys_at(move.dest, machine.domains[guest.uuid].live or ()))


@operation(lambda world: ((guest.name,) for guest, move in _moving(world, (service.LIVE_MIGRATION,), states.ARRIVING)
                          if _can_arrive(world, guest, move)))
def arrive(world: World, name: str) -> None:
    """The hypervisors let the guest run at its destination, and remove it from its source."""
    guest, move = _named(world, name)
    world.hosts[move.dest].machine.arrived(guest.uuid)
    world.hosts[move.source].machine.delete_guest(guest.uuid)
    move.phase = states.ARRIVED
    guest.forget(guest.current)
    guest.current, guest.new = guest.new, frozenset()


def _can_arrive(world: World, guest: Guest, move: Move) -> bool:
    source, dest = world.hosts[move.source], world.hosts[move.dest]
    return source.powered and dest.powered and source.lives(guest) and dest.lives(guest)


@operation(lambda world: ((guest.name,) for guest, move in _moving(world, (service.LIVE_MIGRATION,), states.ARRIVED)
                          if move.source in _alive(world) and not move.source_told))
def live_over_at_source(world: World, name: str) -> None:
    guest, move = _named(world, name)
    world.acting = move.source
    world.hosts[move.source].manager.drop_move_claim_at_source(world.context, guest.instance(), move)
    move.source_told = True


@operation(lambda world: ((guest.name,) for guest, move in _moving(world, (service.LIVE_MIGRATION,), states.ARRIVED)
                          if move.dest in _alive(world)))
def live_over_at_dest(world: World, name: str) -> None:
    guest, move = _named(world, name)
    world.acting = move.dest
    instance = guest.instance()
    world.hosts[move.dest].manager.started(world.context, instance)
    guest.save(instance)
    guest.host, guest.context = move.dest, None
    _end(move, 'completed')


@operation(lambda world: ((guest.name,) for guest, move in _moving(world, (service.LIVE_MIGRATION,), states.ARRIVED)))
def live_over_unheard(world: World, name: str) -> None:
    """The service says that a live migration is completed, and neither host was told.

    The service does not hear what the guest has now. It saves what the claim said, which another claim reads.
    """
    guest, move = _named(world, name)
    guest.resources = guest.context.new_resources
    guest.host, guest.context = move.dest, None
    _end(move, 'completed')


@operation(lambda world: ((guest.name,) for guest, move in _moving(world, (service.LIVE_MIGRATION,), states.CLAIMED,
                                                                   states.ARRIVING, states.UNDOING)
                          if move.dest in _alive(world)))
def roll_back(world: World, name: str) -> None:
    """A live migration is given up: the destination is told."""
    guest, move = _named(world, name)
    world.acting = move.dest
    move.phase = states.UNDOING
    guest.written -= guest.new
    world.delete_guest(guest, move.dest)
    instance = guest.instance()
    world.hosts[move.dest].manager.drop_move_claim_at_dest(world.context, instance, move)
    guest.context, guest.new = None, frozenset()
    _end(move, 'failed')


# -- evacuation -------------------------------------------------------------------------------------------------------


@operation(lambda world: ((guest.name,) for guest in _at_rest(world)
                          if not world.hosts[str(guest.host)].powered and _other(world, guest.host) in _alive(world)))
def evacuate(world: World, name: str) -> None:
    """The guest's host is down: it is built anew on the other one."""
    guest, _ = _named(world, name)
    host = world.acting = _other(world, guest.host)
    move = world.service.begin(guest, host, service.EVACUATION, 'accepted')
    world.point()
    manager = world.hosts[host].manager
    claim = _claim(world, guest, move, lambda instance: manager.rebuild_claim(
        world.context, instance, host, world.request(guest.size), migration=move))
    if claim is None:
        return
    move.status = 'pre-migrating'
    with claim:
        _run_new_guest(world, guest, host, new=True)
    # Saved first: when the process is killed in between, the audit finishes the evacuation.
    guest.host = host
    guest.forget(guest.current)
    guest.current, guest.new = guest.new, frozenset()
    _end(move, 'done')
    world.point()
    instance = guest.instance()
    manager.finish_evacuation(world.context, instance, host, move)
    guest.save(instance)
