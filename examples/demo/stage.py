"""The stage that all chapters share: the machine, the running service, and the observer."""

from __future__ import annotations

import collections
from collections.abc import Iterable
import itertools
import pathlib
from typing import Any

from instances import Instances
from instances import RUNNING
from machine import Machine
from machine import needs
from observer import expect
from observer import Observer
from page import count
from page import show
from page import table
from process import manage
from process import Process
import record


class Stage:
    """The stage. ``refused`` has the instances that asked for devices in vain."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.machine = Machine(directory)
        self.machine.make()
        self.instances = Instances(directory)
        self.seen = Observer(self.machine, self.instances)
        self.refused: list[str] = []
        self.service: Process

    def start_service(self, wipe_rate_mib_s: int = 0) -> dict[str, Any]:
        self.machine.configure(wipe_rate_mib_s)
        self.service = Process(self.machine)
        return self.service.call('start')

    def start_placed_service(self, placement_url: str) -> dict[str, Any]:
        """Start the service beside a placement service."""
        self.machine.configure(placement_url=placement_url)
        self.service = Process(self.machine, 'placed_service.py')
        return self.service.call('start')

    def flavor_of(self, name: str) -> str:
        return self.instances.get(name).flavor.name

    def running(self) -> list[str]:
        """The instances whose guests run."""
        return [instance.name for instance in self.instances.all() if instance.state == RUNNING]

    def rows_of(self, name: str) -> list[record.Row]:
        return [row for row in self.seen.rows() if row.owner == name]

    def run_command(self, status: int, *arguments: str) -> None:
        """Run the operators' command, and show its output as a terminal does."""
        answer = manage(self.machine, *arguments)
        expect(answer.status == status, f'devicetrack-manage {" ".join(arguments)} ends with status {status}')
        show(f'$ devicetrack-manage {" ".join(arguments)}\n{answer.told.rstrip()}')

    def print_owners(self, rows: Iterable[record.Row]) -> None:
        table(('owner', 'flavor', 'state', 'devices, in the order of the guest'), [
            (owner, self.flavor_of(owner), state, ', '.join(map(str, devices)))
            for (owner, state), devices in itertools.groupby(rows, key=lambda row: (row.owner, row.state))])


def make_room(stage: Stage, flavor: str, but: str = '') -> list[str]:
    """Delete instances, except ``but``, until there is room for a flavor.

    :returns: the deleted instances
    """
    deleted = []
    while lacking := needs(flavor) - collections.Counter(stage.seen.devices[free] for free in stage.seen.free()):
        helps = {other: (needs(stage.flavor_of(other)) & lacking).total()
                 for other in stage.running() if other != but}
        deleted.append(max(helps, key=lambda other: helps[other]))
        stage.service.call('delete', name=deleted[-1])
    return deleted


def instances_in(rows: Iterable[record.Row]) -> str:
    return count(len({row.owner for row in rows}), 'instance')


def reported(began: dict[str, Any]) -> str:
    findings = began['findings']
    return f'It reports: {"; ".join(findings)}.' if findings else 'It reports no findings.'
