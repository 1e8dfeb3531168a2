"""One guest against many hosts, with what they declare in memory.

Hosts declare the same facts over and over. So each distinct set of facts is kept once and decided on once for each
device of the guest, and only where kind and type may match. Hosts whose devices serve the guest alike have the same
signature, and a matching is sought once for each signature: a host costs no more than the sum of a few numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from devicetrack.engine import compatibility
from devicetrack.engine import partners
from devicetrack.engine.compatibility import Facts
from devicetrack.engine.compatibility import Rules
from devicetrack.engine.compatibility import Sort
from devicetrack.engine.partners import Held


class Fleet:
    """The free devices of many hosts, by the name of the host. It does not change: read anew, make a new one."""

    def __init__(self, hosts: Mapping[str, Iterable[Facts]]) -> None:
        number: dict[Facts, int] = {}
        self._hosts = [(name, tuple(number.setdefault(facts, len(number)) for facts in devices))
                       for name, devices in hosts.items()]
        self._facts = list(number)
        self._largest = max((len(devices) for _name, devices in self._hosts), default=0)
        self._of_sort: dict[Sort, list[int]] = {}
        for facts, index in number.items():
            self._of_sort.setdefault(facts.sort, []).append(index)

    def hosts_for(self, guest: Sequence[Held], rules: Rules) -> tuple[str, ...]:
        """The hosts where each device of a guest has a partner, in the order in which they were handed in.

        Why another host is none of them, :func:`.partners.find` says.
        """
        serves = self._serves(guest, rules)
        # By distinct facts: one digit of the signature for all that serve the same devices, and none for no device.
        place = {mask: index for index, mask in enumerate(sorted(set(serves) - {0}))}
        weights = [(self._largest + 1) ** place[mask] if mask else 0 for mask in serves]
        fits: dict[int, bool] = {}
        found = []
        for name, devices in self._hosts:
            signature = sum(map(weights.__getitem__, devices))
            if signature not in fits:
                fits[signature] = _fits(len(guest), [serves[device] for device in devices])
            if fits[signature]:
                found.append(name)
        return tuple(found)

    def _serves(self, guest: Sequence[Held], rules: Rules) -> list[int]:
        """By distinct facts, the devices of the guest that they serve: a bit for each."""
        serves = [0] * len(self._facts)
        alike: dict[Held, int] = {}
        for index, held in enumerate(guest):
            one = held._replace(identifier='')
            alike[one] = alike.get(one, 0) | 1 << index
        for held, bits in alike.items():
            sort = held.facts.sort
            for there in {sort, *(to for source, to in rules.crossings if source == sort)}:
                for index in self._of_sort.get(there, ()):
                    if compatibility.decide(held.facts, self._facts[index], rules, held.seen).accepted:
                        serves[index] |= bits
        return serves


def _fits(wanted: int, serves: Sequence[int]) -> bool:
    accepted = [[place for place, bits in enumerate(serves) if bits >> index & 1] for index in range(wanted)]
    return len(partners.maximum(accepted)) == wanted
