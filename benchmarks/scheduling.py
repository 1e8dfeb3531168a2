"""Compares two queries to placement: for hosts that may take a running guest, and for the device alone.

Each host has a provider for each of its cards, and no limit cuts the answer. The server is placement's own WSGI
application on SQLite.
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import functools
import time
import uuid

from benchmarks import measure
from benchmarks.measure import Effort
from benchmarks.report import Row
from benchmarks.report import Table
from devicetrack.compatibility import traits
from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.facts import Sort
from devicetrack.compatibility.facts import Version
from devicetrack.compatibility.partners import Held
from devicetrack.compatibility.rules import Rules
from devicetrack.objects.traits import MIGRATION
from devicetrack.placement import values
from devicetrack.placement.client import Client
from devicetrack.testing import placement as placements
from devicetrack.testing.fixtures import VGPU

_CARDS = 7                                  # cards of a host; the host is a provider too
_FEATURE = 'HW_GPU_API_VULKAN'
_SORT = Sort('mdev', 'nvidia-35')


def _facts(minor: int) -> Facts:
    return Facts(_SORT, 'vfio-pci', Version(2, minor, 0), frozenset({_FEATURE}), frozenset({_FEATURE}))


def _fill(client: Client, providers: int) -> tuple[int, int]:
    """Make so many providers. Returns the number of cards, and of those with the newest minor: every tenth host's."""
    of_hosts = [traits.offered(_facts(9 if number == 0 else 8)) for number in range(10)]
    for name in frozenset().union(*of_hosts):
        client.ensure_trait(name)
    cards = new = 0
    for host in range(providers // (1 + _CARDS)):
        root = str(uuid.uuid4())
        client.create_provider(root, root, None)
        for _ in range(_CARDS):
            card = str(uuid.uuid4())
            made = client.create_provider(card, card, root)
            now = client.put_inventories(card, made.generation, {VGPU: values.ClassInventory(4, max_unit=4)})
            client.put_traits(card, now.generation, of_hosts[host % 10])
        cards, new = cards + _CARDS, new + (_CARDS if host % 10 == 0 else 0)
    return cards, new


def run(effort: Effort) -> Table:
    with contextlib.ExitStack() as stack:
        # A server of its own, so that no other providers are candidates.
        server = stack.enter_context(placements.PlacementServer())
        client = stack.enter_context(placements.Placement(server)).direct
        cards, new = _fill(client, effort.asked_providers)
        known = client.find_traits(MIGRATION)
        queries: dict[str, Sequence[tuple[str, str]]] = {'device': [('resources_MIG1', f'{VGPU}:1')]}
        for name, minor in (('all', 8), ('some', 9)):
            queries[name] = traits.query([(VGPU, Held('device', _facts(minor)))], Rules(), known)
        samples = measure.side_by_side({name: functools.partial(_ask, client, query)
                                        for name, query in queries.items()}, effort.asked_rounds)
    return Table(f'Candidates for a running guest: {effort.asked_providers:,} providers', [
        Row('the device alone', samples.median('device') * 1000, 'ms', note=f'{cards} providers have one'),
        Row('with a version and a feature', samples.median('all') * 1000, 'ms', note='all of them have these'),
        Row('these against the device alone', samples.ratio('all', 'device'), at_most=1.2),
        Row('with a version that few have', samples.median('some') * 1000, 'ms', note=f'{new} have it'),
        Row('this against the device alone', samples.ratio('some', 'device'), at_most=1),
    ])


def _ask(client: Client, query: Sequence[tuple[str, str]]) -> float:
    began = time.perf_counter()
    client.find_roots(query)
    return time.perf_counter() - began
