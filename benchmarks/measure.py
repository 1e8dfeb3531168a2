"""Measures subjects side by side, so that noise of the machine hits all of them.

A round measures every subject once. The order rotates from round to round. Results are medians over rounds. Ratios are
medians of the ratios of each round: noise that slowed a round down slowed both sides of its ratio.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import statistics
from typing import NamedTuple


class Effort(NamedTuple):
    """How much to measure. Tests take the least of everything."""

    rounds: int                             # rounds of work that takes microseconds
    commit_rounds: int                      # rounds of work with a commit; short ones, since the speed of disks varies
    thread_rounds: int                      # rounds of the work of many threads
    guest_rounds: int                       # rounds of the way of a guest to its start
    boot_rounds: int                        # rounds of the way of a guest until it runs
    booted_beside: int                      # guests that are defined beside it
    batch: int                              # claims that a round times together
    sizes: tuple[int, ...]                  # devices of a host
    parents: int
    devices_a_parent: int
    cards: int                              # cards with virtual functions
    functions_a_card: int
    held: tuple[int, ...]                   # held devices while memory is measured
    guests: int
    rows: int                               # rows that a single thread writes in a round
    threads: int
    rows_a_thread: int
    fsyncs: int                             # claims that should take one fsync each
    imports: int                            # fresh interpreters for each of the imports
    recovered_guests: int                   # guests of a host that starts again
    recovery_rounds: int
    providers: int                          # providers of a node in placement, with the node itself
    placed_instances: int                   # instances with devices of these providers
    nodes: int                              # nodes that are healed one after another
    instances_a_node: int
    kills: int                              # kills of the command that heals them
    fleet: int                              # hosts that are compared with a guest
    fleet_rounds: int
    asked_providers: int                    # providers in placement to which a guest may move
    asked_rounds: int
    function_rounds: int
    events: int                             # events in the history of a host
    historic_guests: int
    historic_rounds: int
    mirrored_hosts: int                     # hosts in a mirror
    mirrored_devices: int                   # devices of each of them
    mirrored_events: int
    mirror_rounds: int                      # rounds of commands on it
    push_rounds: int
    change_rounds: int                      # rounds of pushes of a host that has changed
    durable: bool                           # commits on the servers wait for the disk


FULL = Effort(rounds=1500, commit_rounds=150, thread_rounds=25, guest_rounds=60, boot_rounds=20, booted_beside=50,
              batch=10, sizes=(10, 100, 1_000, 10_000, 100_000), parents=64, devices_a_parent=100, cards=64,
              functions_a_card=62,
              held=(1_000, 10_000, 22_000, 100_000), guests=1_000, rows=10, threads=16, rows_a_thread=25,
              fsyncs=50, imports=11, recovered_guests=1_000, recovery_rounds=15, providers=100, placed_instances=1_000,
              nodes=200, instances_a_node=20, kills=6, fleet=10_000, fleet_rounds=60,
              asked_providers=1_000, asked_rounds=15, function_rounds=5, events=1_000_000, historic_guests=200,
              historic_rounds=60, mirrored_hosts=200, mirrored_devices=100, mirrored_events=1_000, mirror_rounds=5,
              push_rounds=60, change_rounds=4, durable=True)
TINY = Effort(rounds=2, commit_rounds=1, thread_rounds=1, guest_rounds=1, boot_rounds=1, booted_beside=2,
              batch=2, sizes=(2, 5), parents=2,
              devices_a_parent=3, cards=2, functions_a_card=3, held=(10, 20), guests=3, rows=2, threads=2,
              rows_a_thread=2, fsyncs=2, imports=1, recovered_guests=3, recovery_rounds=1, providers=3,
              placed_instances=4, nodes=2, instances_a_node=2, kills=1, fleet=8, fleet_rounds=1,
              asked_providers=16, asked_rounds=1, function_rounds=1, events=30, historic_guests=3, historic_rounds=1,
              mirrored_hosts=2, mirrored_devices=20, mirrored_events=30, mirror_rounds=1, push_rounds=1,
              change_rounds=2, durable=False)
# A fleet that takes minutes to make.
WHOLE = FULL._replace(mirrored_hosts=2_000)


class Samples:
    """The times of each subject, round by round."""

    def __init__(self, measured: Mapping[str, Sequence[float]]) -> None:
        self.measured = measured

    def median(self, subject: str) -> float:
        return statistics.median(self.measured[subject])

    def ratio(self, subject: str, to: str) -> float:
        """The median over rounds of the ratio of one subject's time to another's."""
        pairs = zip(self.measured[subject], self.measured[to], strict=True)
        return statistics.median(one / other for one, other in pairs)


def side_by_side(subjects: Mapping[str, Callable[[], float]], rounds: int, warm_up: int = 1) -> Samples:
    """Measure every subject once a round.

    :param subjects: each prepares its work, times the part that counts and returns the seconds
    :param warm_up: first rounds that do not count
    """
    names = list(subjects)
    measured: dict[str, list[float]] = {name: [] for name in names}
    for number in range(warm_up + rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            value = subjects[name]()
            if number >= warm_up:
                measured[name].append(value)
    return Samples(measured)


class Between:
    """The times of each subject, and those of the reference just before and after it, round by round."""

    def __init__(self, measured: Mapping[str, Sequence[tuple[float, float, float]]]) -> None:
        self.measured = measured

    def median(self, subject: str) -> float:
        return statistics.median(value for _before, value, _after in self.measured[subject])

    def reference(self) -> float:
        """The median of the reference."""
        return statistics.median(before for rounds in self.measured.values() for before, _value, _after in rounds)

    def ratio(self, subject: str) -> float:
        """The median over rounds of the ratio of a subject's time to that of the reference around it."""
        return statistics.median(2 * value / (before + after) for before, value, after in self.measured[subject])


def between(reference: Callable[[], float], subjects: Mapping[str, Callable[[], float]], rounds: int) -> Between:
    """Measure every subject once a round, and the reference before and after each.

    This is for long subjects: the speed of the machine may have changed by the end of a round.

    :param reference: a subject, as for :func:`side_by_side`
    """
    names = list(subjects)
    measured: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    before = reference()
    for number in range(1 + rounds):                            # the first round is to warm up
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            value, after = subjects[name](), reference()
            if number:
                measured[name].append((before, value, after))
            before = after
    return Between(measured)
