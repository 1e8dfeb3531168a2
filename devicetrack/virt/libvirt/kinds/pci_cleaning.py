"""What is done to PCI functions that come back from guests: ``[devicetrack_pci] cleaning``, read and checked."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from typing import Final
from typing import NamedTuple

from devicetrack.conf import pci as options
from devicetrack.virt.libvirt.kinds import json_entries
from devicetrack.virt.libvirt.kinds import pci_matching

OPTION: Final = f'[{options.GROUP}] cleaning'

NONE: Final = 'none'
ZERO: Final = 'zero'
PERSON: Final = 'person'
POLICIES: Final = (NONE, ZERO, PERSON)

_KEYS: Final = pci_matching.KEYS | {'policy'}
_MASS_STORAGE: Final = '01'              # the first two digits of the class code (PCI Code and ID Assignment)


class Rule(NamedTuple):
    """How the functions of a match are cleaned."""

    match: pci_matching.Match
    policy: str


def read(values: Iterable[str]) -> tuple[Rule, ...]:
    """Read the option.

    :raises InvalidConfiguration: a value cannot be used
    """
    return tuple(_rule(entry) for entry in json_entries.read(OPTION, values))


def of(rules: Sequence[Rule], function: pci_matching.Function,
       physfn: pci_matching.Function | None = None) -> str:
    """Return the policy for a function: by the first rule that matches it, else by its class.

    :param physfn: of a virtual function, its physical function
    """
    for rule in rules:
        if rule.match.matches(function, physfn):
            return rule.policy
    is_reset = bool(function.reset_methods)
    return NONE if is_reset and not function.class_code.startswith(_MASS_STORAGE) else PERSON


def _rule(entry: json_entries.Entry) -> Rule:
    entry.check_keys(_KEYS)
    policy = entry.choice('policy', POLICIES)
    if policy is None:
        raise entry.mistake('policy', f'it is missing: write one of {", ".join(POLICIES)}')
    return Rule(pci_matching.read(entry), policy)
