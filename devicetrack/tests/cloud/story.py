"""What happens to guests and their devices: each operation of Nova alone, cut short by ``kill -9``, and by a power cut.

A :class:`Scene` is one operation on a cloud without instances, and leaves it without instances. It returns what was
lost, a short text for each thing, and says nothing of how long it took.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import time
from typing import Any
from typing import Final
from typing import NamedTuple

from devicetrack.tests.cloud import cloud as clouds
from devicetrack.tests.cloud import compute_client
from devicetrack.tests.cloud import hosts

# What the test has all over a guest's namespace, but for the guest's own counter.
OURS: Final = 0xa5
_LOOK_AGAIN_S: Final = 0.2
# An instance that is built has no task for a moment.
_AT_REST: Final = {'ACTIVE', 'SHUTOFF', 'VERIFY_RESIZE', 'ERROR'}

# How a scene is disturbed.
NOT: Final = ''
KILL: Final = 'kill -9'
RESET: Final = 'power cut'
HOWS: Final = (NOT, KILL, RESET)

# What is lost.
CONTENTS: Final = 'contents of the namespace'
FOREIGN_CONTENTS: Final = "contents of another guest's namespace"
SEEN: Final = "the next owner reads the last owner's data"
STATUS: Final = 'the instance is in ERROR'
STUCK: Final = 'the operation never ends'
DISAGREE: Final = 'agreement'
FOR_GOOD: Final = 'agreement for good'
GUEST: Final = 'the guest'
SHARED: Final = 'two guests run on one device'
NO_MOVE: Final = 'the guest does not move'


# Nova gives up what it built when it was killed, and says so: nobody has lost anything.
SAID: Final = frozenset({STATUS})


class Missed(Exception):
    """An operation was over before it could be disturbed: this scene has no result."""


class Result(NamedTuple):
    """What one scene lost, and what the four disagreed on after it."""

    scene: str
    how: str
    lost: list[str]
    details: list[str]

    @property
    def passed(self) -> bool:
        return SAID.issuperset(self.lost)


class Scene:
    """One operation. ``how`` is one of :data:`HOWS`."""

    def __init__(self, cloud: clouds.Cloud, how: str) -> None:
        self.cloud, self.nova, self.how = cloud, cloud.nova, how
        self.lost: list[str] = []
        self.details: list[str] = []
        self.is_clear = False

    @property
    def a(self) -> hosts.Host:
        return self.cloud.hosts['host-a']

    @property
    def b(self) -> hosts.Host:
        return self.cloud.hosts['host-b']

    # -- steps --------------------------------------------------------------------------------------------------------

    def wait_for_room(self, host: hosts.Host, flavor: str = 'small') -> None:
        """Wait until the scheduler can choose a host: what was given back is wiped first, and then reported."""
        def has_room() -> bool:
            return self.cloud.has_room(host, flavor)

        compute_client.wait_for(f'{host.name} has room', has_room, stands_still=self.nova.stillness(has_room))

    def boot(self, host: hosts.Host, flavor: str = 'small') -> str:
        """Boot a guest, wait until it has counted, and fill its namespace."""
        self.wait_for_room(host, flavor)
        uuid = self.nova.boot('guest', self.cloud.flavors[flavor], host.name)
        booted = self.nova.wait(uuid, 'ACTIVE')
        if booted['status'] != 'ACTIVE':
            raise compute_client.TooLate(f'{uuid} was not booted: {booted.get("fault")}')
        self.wait_for_boots(uuid, host, 1)
        host.look(self.namespace(uuid, host), str(OURS))
        return uuid

    def namespace(self, uuid: str, host: hosts.Host) -> str:
        [name] = [device.removeprefix('vpmem/') for device in host.look_briefly()['domains'][uuid]['defined']
                  if device.startswith('vpmem/')]
        return str(name)

    def memory(self, uuid: str, host: hosts.Host) -> Mapping[str, Any]:
        """What is in the namespace of a guest."""
        look = host.look_briefly()
        defined = look['domains'].get(uuid, {}).get('defined') or ()
        for name in (device.removeprefix('vpmem/') for device in defined):
            if name in look['namespaces']:
                return dict(look['namespaces'][name])
        return {'boots': 0, 'last': 0}

    def wait_for_boots(self, uuid: str, host: hosts.Host, boots: int) -> None:
        """Wait until a guest's memory has seen so many boots, or more.

        Firmware of an emulated guest on an emulated host takes its time, and nobody says when it is done.
        """
        self._wait_for_memory(uuid, host, boots, lambda found: found['boots'] >= boots)

    def _wait_for_memory(self, uuid: str, host: hosts.Host, boots: int, is_it: Callable[[Mapping[str, Any]], Any],
                         ) -> None:
        compute_client.wait_for(f'{uuid} has booted {boots} times', lambda: is_it(self.memory(uuid, host)),
                                stands_still=self.nova.stillness(lambda: self.memory(uuid, host)))

    def expect_kept(self, uuid: str, host: hosts.Host, boots: int) -> None:
        """Note when a guest has lost what it wrote.

        :param boots: how many its memory has seen, when it is still the same
        """
        try:
            self._wait_for_memory(uuid, host, boots, lambda found: found['boots'] >= boots or (
                found['boots'] and found['last'] != OURS))
        except compute_client.TooLate as late:
            self.details.append(str(late))
        found = self.memory(uuid, host)
        if found['boots'] < boots or found['last'] != OURS:
            self.lost.append(CONTENTS)
            self.details.append(f'namespace of {uuid}: {found}')

    def expect_clean_for_next(self, host: hosts.Host, owners: int) -> None:
        """Boot guests that together get all namespaces that are free, and note when one of them is not theirs alone."""
        for _ in range(owners):
            self.wait_for_room(host)
            owner = self.nova.boot('guest', self.cloud.flavors['small'], host.name)
            if self.settle(owner, 'ACTIVE') != 'ACTIVE':
                continue
            self.wait_for_boots(owner, host, 1)
            found = self.memory(owner, host)
            if found['boots'] != 1 or found['last']:
                self.lost.append(SEEN)
                self.details.append(f'namespace of the next owner: {found}')
        devices = [device for domain in host.look_briefly()['domains'].values() for device in domain['live'] or ()]
        if len(set(devices)) < len(devices):
            self.lost.append(SHARED)
            self.details.append(f'the devices of the guests that run: {sorted(devices)}')

    def expect_agreement(self, lost: str = DISAGREE) -> bool:
        found = self.cloud.disagreements()
        if found:
            self.lost.append(lost)
            self.details += found
        return not found

    def disturb(self, host: hosts.Host, start: Callable[[], object], middle: Callable[[], bool]) -> None:
        """Start an operation, and kill the service of a host, or cut its power, in the middle of it.

        :param middle: whether it is there now
        :raises Missed: it is over
        """
        start()
        if self.how == NOT:
            return
        while not middle():
            if all(found['status'] in _AT_REST and not found['OS-EXT-STS:task_state']
                   for found in self.nova.instances()):
                raise Missed(f'{self.NAME}, {self.how}: it was over before it could be disturbed')
            time.sleep(_LOOK_AGAIN_S)
        self.interrupt(host)

    def interrupt(self, host: hosts.Host) -> None:
        if self.how == KILL:
            host.kill_service()
        else:
            host.cut()
            # Namespaces and their devices in /dev get other numbers.
            host.boot_renumbered()
        self.cloud.start_services(host)

    def task(self, uuid: str, *names: str) -> Callable[[], bool]:
        """Whether an instance has one of these tasks."""
        return lambda: any(found['id'] == uuid and found['OS-EXT-STS:task_state'] in names
                           for found in self.nova.instances())

    def settle(self, uuid: str, *statuses: str) -> str:
        """Wait for the end of an operation, and note when it has none or a bad one.

        :returns: the status of the instance
        """
        try:
            status = str(self.nova.wait(uuid, *statuses)['status'])
        except compute_client.TooLate as late:
            self.lost.append(STUCK)
            self.details.append(str(late))
            self.nova.act(uuid, 'os-resetState', {'state': 'error'})
            return 'ERROR'
        if status == 'ERROR':
            self.lost.append(STATUS)
            self.details.append(f'{uuid}: {self.nova.instance(uuid).get("fault", {}).get("message")}')
        return status

    def delete(self, *uuids: str) -> None:
        for uuid in uuids:
            self.nova.delete(uuid)
        for uuid in uuids:
            self.nova.wait_until_gone(uuid)

    # -- what it is ---------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        """Play the scene, and clear the stage; ``is_clear`` says whether that was done.

        :raises Missed: what was to disturb the operation came after it
        """
        missed = None
        for part in (self.play, self.clear):
            try:
                part()
            except Missed as error:
                missed = error
            except (compute_client.TooLate, compute_client.Refused) as error:
                self.lost.append(STUCK)
                self.details.append(str(error))
        if missed is not None:
            raise missed
        return Result(self.NAME, self.how, sorted(set(self.lost)), self.details)

    def clear(self) -> None:
        for host in self.cloud.hosts.values():
            if not host.serves:
                if not host.machine.runs:
                    host.boot_renumbered()
                self.cloud.start_services(host)
            self.nova.force_down(host.name, False)
        self.delete(*(found['id'] for found in self.nova.instances()))
        stuck = STUCK in self.lost
        if stuck:
            self.tidy()
        self.is_clear = self.expect_agreement(FOR_GOOD if stuck else DISAGREE)

    def tidy(self) -> None:
        """Do what doc/source/nova/lost.rst asks of an operator after an operation that never ends, and the deletes."""
        for host in self.cloud.hosts.values():
            for uuid in host.look_briefly()['domains']:
                host.undefine(uuid)
        self.cloud.delete_allocations()

    NAME = ''
    HOWS: tuple[str, ...] = HOWS
    # Whether it is about the disks that Nova gives to guests.
    DISKS = False

    def play(self) -> None:
        raise NotImplementedError


class Boot(Scene):
    NAME = 'boot'

    def play(self) -> None:
        made: list[str] = []
        self.wait_for_room(self.a)

        def start() -> None:
            made.append(self.nova.boot('guest', self.cloud.flavors['small'], self.a.name))

        self.disturb(self.a, start, lambda: self.task(made[0], 'spawning')())
        if self.settle(made[0], 'ACTIVE') == 'ACTIVE':
            self.wait_for_boots(made[0], self.a, 1)
        self.expect_agreement()


class HardReboot(Scene):
    NAME = 'hard reboot'

    def play(self) -> None:
        uuid = self.boot(self.a)
        self.disturb(self.a, lambda: self.nova.act(uuid, 'reboot', {'type': 'HARD'}),
                     self.task(uuid, 'rebooting_hard', 'reboot_pending_hard', 'reboot_started_hard'))
        if self.settle(uuid, 'ACTIVE') == 'ACTIVE':
            # Nova calls off what its service had not begun when it was killed: the guest runs on.
            self.expect_kept(uuid, self.a, 1 if self.how == KILL else 2)
        self.expect_agreement()


class StopAndStart(Scene):
    NAME = 'stop and start'

    def play(self) -> None:
        uuid = self.boot(self.a)
        self.nova.act(uuid, 'os-stop')
        self.settle(uuid, 'SHUTOFF')
        self.disturb(self.a, lambda: self.nova.act(uuid, 'os-start'), self.task(uuid, 'powering-on'))
        if self.nova.wait(uuid, 'ACTIVE', 'SHUTOFF')['status'] == 'SHUTOFF':
            self.nova.act(uuid, 'os-start')
        if self.settle(uuid, 'ACTIVE') == 'ACTIVE':
            self.expect_kept(uuid, self.a, 2)
        self.expect_agreement()


class _Resize(Scene):
    """To the other host, whose flavor has another namespace: a new one, with nothing in it."""

    def resized(self) -> tuple[str, str]:
        uuid = self.boot(self.a)
        self.wait_for_room(self.b, 'large')
        self.disturb(self.a, lambda: self.nova.act(uuid, 'resize', {'flavorRef': self.cloud.flavors['large']}),
                     self.task(uuid, 'resize_migrating'))
        return uuid, self.settle(uuid, 'VERIFY_RESIZE', 'ACTIVE', 'SHUTOFF')


class ResizeAndConfirm(_Resize):
    NAME = 'resize, confirmed'

    def play(self) -> None:
        uuid, status = self.resized()
        self.expect_agreement()
        if status == 'VERIFY_RESIZE':
            self.wait_for_boots(uuid, self.b, 1)
            self.nova.act(uuid, 'confirmResize')
            self.settle(uuid, 'ACTIVE')
        elif status == 'ACTIVE':
            self.expect_kept(uuid, self.a, 1)
        self.expect_agreement()


class ResizeAndRevert(_Resize):
    NAME = 'resize, reverted'

    def play(self) -> None:
        how, self.how = self.how, NOT
        uuid, status = self.resized()
        self.how = how
        if status != 'VERIFY_RESIZE':
            return
        self.wait_for_boots(uuid, self.b, 1)
        self.disturb(self.b, lambda: self.nova.act(uuid, 'revertResize'), self.task(uuid, 'resize_reverting'))
        if self.settle(uuid, 'ACTIVE') == 'ACTIVE':
            self.expect_kept(uuid, self.a, 2)
        self.expect_agreement()


class LiveMigration(Scene):
    NAME = 'live migration, there and back'

    def play(self) -> None:
        uuid = self.boot(self.a)
        self.move(uuid, self.a, self.b)
        self.expect_agreement()
        how, self.how = self.how, NOT
        if self.nova.instance(uuid)['OS-EXT-SRV-ATTR:host'] == self.b.name:
            self.move(uuid, self.b, self.a)
        self.how = how
        self.expect_agreement()

    def move(self, uuid: str, source: hosts.Host, destination: hosts.Host) -> None:
        self.wait_for_room(destination)
        before = self.nova.newest_migration(uuid)

        def running() -> bool:
            newest = next(iter(self.nova.migrations(uuid)), None)
            return newest is not None and newest['id'] > before and newest['status'] not in (
                'accepted', 'queued', 'preparing', 'pre-migrating')

        self.disturb(source, lambda: self.nova.act(uuid, 'os-migrateLive', {
            'host': destination.name, 'block_migration': 'auto'}), running)
        try:
            ended = self.nova.wait_for_migration(uuid, before)
        except compute_client.TooLate as late:
            self.lost.append(STUCK)
            self.details.append(str(late))
            return
        self.details.append(f'the live migration is {ended["status"]}')
        if self.how == NOT and ended['status'] != 'completed':
            self.lost.append(NO_MOVE)
        if self.settle(uuid, 'ACTIVE') == 'ACTIVE':
            where = self.nova.instance(uuid)['OS-EXT-SRV-ATTR:host']
            if uuid in self.cloud.hosts[where].look_briefly()['domains']:
                self.expect_kept(uuid, self.cloud.hosts[where], 1)
            else:
                self.lost.append(GUEST)


class Evacuation(Scene):
    """The first host is gone for a while. Its guest is made anew on the other host, with nothing in its namespace.

    Meanwhile a neighbour keeps its namespace on the first host, which has the name of the one that the guest gets.
    """

    NAME = 'evacuation, and the host comes back'

    def play(self) -> None:
        uuid, neighbour = self.boot(self.a), self.boot(self.a)
        wanted = self.namespace(neighbour, self.a)
        in_the_way = [self.boot(self.b), self.boot(self.b)]
        [unwanted] = [one for one in in_the_way if self.namespace(one, self.b) == wanted]
        self.delete(unwanted)
        self.wait_for_room(self.b)
        self.a.cut()
        self.nova.force_down(self.a.name, True)
        self.disturb(self.b, lambda: self.nova.act(uuid, 'evacuate', {'host': self.b.name}),
                     self.task(uuid, 'rebuild_spawning'))
        # Since microversion 2.95 Nova stops the guest when it is rebuilt, and its owner starts it.
        if self.settle(uuid, 'SHUTOFF') == 'SHUTOFF':
            self.nova.act(uuid, 'os-start')
            if self.settle(uuid, 'ACTIVE') == 'ACTIVE':
                self.wait_for_boots(uuid, self.b, 1)
        self.a.boot_renumbered()
        # Nova takes it back only after it has removed what was evacuated.
        self.cloud.start_services(self.a)
        self.nova.force_down(self.a.name, False)
        self.settle(neighbour, 'ACTIVE', 'SHUTOFF')
        if self.memory(neighbour, self.a)['last'] != OURS:
            self.lost.append(FOREIGN_CONTENTS)
            self.details.append(f'namespace of the neighbour: {self.memory(neighbour, self.a)}')
        self.expect_agreement()


class Delete(Scene):
    NAME = 'delete, and the next owners'

    def play(self) -> None:
        uuid = self.boot(self.a)
        self.disturb(self.a, lambda: self.nova.delete(uuid), self.task(uuid, 'deleting'))
        try:
            self.nova.wait_until_gone(uuid)
        except compute_client.TooLate as late:
            self.lost.append(STUCK)
            self.details.append(str(late))
        # One of the two next owners has its namespace.
        self.expect_clean_for_next(self.a, 2)
        self.expect_agreement()


class SoftDelete(Scene):
    """A guest is deleted so that it can be restored, and another one boots before it is."""

    NAME = 'soft delete, and restore'

    def play(self) -> None:
        uuid = self.boot(self.a)
        self.nova.soft_delete(uuid)
        self.settle(uuid, 'SOFT_DELETED')
        self.boot(self.a)
        self.expect_agreement()
        self.disturb(self.a, lambda: self.nova.act(uuid, 'restore'), self.task(uuid, 'restoring'))
        if self.settle(uuid, 'ACTIVE') == 'ERROR':
            self.nova.act(uuid, 'reboot', {'type': 'HARD'})
            self.settle(uuid, 'ACTIVE')
        self.expect_kept(uuid, self.a, 2)
        self.expect_agreement()


class FailedUnshelve(Scene):
    """The guest of an unshelve runs when its start fails: undisturbed, by the end of libvirt's daemon."""

    NAME = 'unshelve that fails after the start of the guest'

    def play(self) -> None:
        uuid = self.boot(self.a)
        self.nova.act(uuid, 'shelve')
        self.settle(uuid, 'SHELVED_OFFLOADED')
        self.wait_for_room(self.a)
        self.a.hold_next_start()
        self.nova.act(uuid, 'unshelve', {'host': self.a.name})
        compute_client.wait_for('the guest has started', self.a.holds_start,
                                stands_still=self.nova.stillness(self.a.holds_start))
        if self.how == NOT:
            self.a.kill_libvirt()
        else:
            self.interrupt(self.a)
        status = self.settle(uuid, 'SHELVED_OFFLOADED')
        # An instance in ERROR keeps its namespace.
        self.expect_clean_for_next(self.a, 2 if status == 'SHELVED_OFFLOADED' else 1)
        if status == 'SHELVED_OFFLOADED':
            self.wait_for_room(self.b)
            self.nova.act(uuid, 'unshelve', {'host': self.b.name})
            if self.settle(uuid, 'ACTIVE') == 'ACTIVE':
                self.wait_for_boots(uuid, self.b, 1)
        self.expect_agreement()


class Idle(Scene):
    """No operation at all: two guests run, and the host is disturbed."""

    NAME = 'two guests that run'

    def play(self) -> None:
        uuids = [self.boot(self.a), self.boot(self.a)]
        if self.how != NOT:
            self.interrupt(self.a)
        for uuid in uuids:
            if self.settle(uuid, 'ACTIVE') == 'ACTIVE':
                self.expect_kept(uuid, self.a, 2 if self.how == RESET else 1)
        self.expect_agreement()


SCENES: Final[tuple[type[Scene], ...]] = (
    Boot, Idle, HardReboot, StopAndStart, ResizeAndConfirm, ResizeAndRevert, LiveMigration, Evacuation, Delete,
    SoftDelete, FailedUnshelve)
