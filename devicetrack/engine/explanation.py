"""Why a request does not fit, as data and as one sentence."""

from __future__ import annotations

from typing import NamedTuple


class Shortage(NamedTuple):
    """One part of a request and what became of every device that could have served it.

    ``wanted`` counts what the whole request wants of this resource class (from ``provider_uuid``, when it names
    one); ``exist`` the devices there are and the ones that could still be made when the host was last read;
    ``free`` those that could be had now. Of the rest, ``held`` are held by ``instances`` instances, ``releasing``
    are being wiped or removed, ``withheld`` is by reason, ``wrong_numa_node`` are free but not on a node that the
    request allows, and each parent in ``full_parents`` can make no more. ``wrong_provider`` devices of the class are
    free at other providers, ``wrong_type`` devices of the same provider count as another class.
    """

    resource_class: str
    provider_uuid: str | None
    wanted: int
    exist: int
    free: int
    held: int
    instances: int
    releasing: int
    withheld: tuple[tuple[str, int], ...]
    wrong_numa_node: int
    wrong_provider: int
    wrong_type: int
    full_parents: tuple[str, ...]

    @property
    def fits(self) -> bool:
        return self.free >= self.wanted

    def __str__(self) -> str:
        where = f' from provider {self.provider_uuid}' if self.provider_uuid else ''
        if not self.exist and not self.wrong_provider:
            return f'{self.wanted} {self.resource_class} wanted{where}, this host has none{self._wrong_type()}'
        parts = []
        if self.held:
            parts.append(f'{self.held} held by {_count(self.instances, "instance")}')
        if self.releasing:
            parts.append(f'{self.releasing} being wiped or removed')
        parts += [f'{count} withheld ({reason})' for reason, count in self.withheld]
        if self.wrong_numa_node:
            parts.append(f'{self.wrong_numa_node} on another NUMA node')
        if self.full_parents:
            parts.append(f'no room left on {", ".join(self.full_parents)}')
        if self.wrong_provider:
            parts.append(f'{self.wrong_provider} free at other providers')
        reasons = ': ' + ', '.join(parts) if parts else ''
        return (f'{self.wanted} {self.resource_class} wanted{where}, {self.free} of {self.exist} free'
                f'{reasons}{self._wrong_type()}')

    def _wrong_type(self) -> str:
        return f' ({_count(self.wrong_type, "device")} of another type there)' if self.wrong_type else ''


def _count(number: int, noun: str) -> str:
    return f'{number} {noun}' if number == 1 else f'{number} {noun}s'
