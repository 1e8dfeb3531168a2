"""The policies for cleaning PCI functions that come back from guests: ``[devicetrack_pci] cleaning``."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import json
import os
from typing import Final
from typing import NamedTuple

from devicetrack.conf import pci as options
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt.kinds import json_entries
from devicetrack.virt.libvirt.kinds import pci_matching

OPTION: Final = f'[{options.GROUP}] cleaning'

NONE: Final = 'none'
ZERO: Final = 'zero'
DISCARD: Final = 'blkdiscard'
FORMAT: Final = 'nvme-format'
SANITIZE: Final = 'nvme-sanitize'
PROGRAM: Final = 'program'
PERSON: Final = 'person'
POLICIES: Final = (NONE, ZERO, DISCARD, FORMAT, SANITIZE, PROGRAM, PERSON)

USER_DATA: Final = 'user-data'
CRYPTOGRAPHIC: Final = 'cryptographic'
BLOCK: Final = 'block'
OVERWRITE: Final = 'overwrite'
# The ways in which a controller can erase, by policy; the first is the default.
ERASURES: Final = {FORMAT: (USER_DATA, CRYPTOGRAPHIC), SANITIZE: (BLOCK, CRYPTOGRAPHIC, OVERWRITE)}

# The policies that are only for disks of NVMe controllers.
OF_DISKS: Final = frozenset((ZERO, DISCARD, FORMAT, SANITIZE))

_OF_PROGRAM: Final = ('program', 'timeout_s')
_KEYS: Final = pci_matching.KEYS | {'policy', 'erase', *_OF_PROGRAM}
MASS_STORAGE: Final = '01'              # the first two digits of the class code (PCI Code and ID Assignment)
# The kernel lists these methods without knowing the functions that it finds later on the bus. If there is one, it
# refuses the reset (pci_parent_bus_reset in Linux: drivers/pci/pci.c).
_BUS_RESETS: Final = frozenset(('bus', 'cxl_bus'))
# The default timeouts. Overwriting a large disk takes many hours, and a new operation follows one that takes too long.
_TIMEOUT_S: Final = 3600
_SANITIZE_TIMEOUT_S: Final = 24 * 3600
_MAX_TIMEOUT_S: Final = 7 * 24 * 3600


class Policy(NamedTuple):
    """How functions are cleaned. ``erase`` is how the controller erases, ``program`` the path of an operator's program.

    ``timeout_s`` is how long a program may run, how long the kernel waits for a format, and how long the service waits
    for a sanitize operation.
    """

    name: str
    erase: str = ''
    program: str = ''
    timeout_s: int = _TIMEOUT_S


class CleaningRule(NamedTuple):
    """The policy for the functions of a match."""

    match: pci_matching.Match
    policy: Policy


def read(values: Iterable[str]) -> tuple[CleaningRule, ...]:
    """Read the option.

    :raises InvalidConfiguration: a value cannot be used
    """
    return tuple(_rule(entry) for entry in json_entries.read(OPTION, values))


def of(rules: Sequence[CleaningRule], function: pci_sysfs.Function, is_alone: Callable[[str], bool]) -> Policy:
    """Return the policy for a function: by the first rule that matches it, else by its class and its resets.

    :param is_alone: whether no other function is on the bus of the function at an address
    """
    for rule in rules:
        if rule.match.matches(function):
            return rule.policy
    if function.class_code.startswith(MASS_STORAGE) or not function.reset_methods:
        return Policy(PERSON)
    return Policy(NONE if set(function.reset_methods) - _BUS_RESETS or is_alone(function.address) else PERSON)


def _rule(entry: json_entries.Entry) -> CleaningRule:
    entry.check_keys(_KEYS)
    policy = entry.choice('policy', POLICIES)
    if policy is None:
        raise entry.mistake('policy', f'it is missing: write one of {", ".join(POLICIES)}')
    erasures = ERASURES.get(policy, ())
    if 'erase' in entry.values and not erasures:
        raise entry.mistake('erase', f'the policy {policy} has none: remove it')
    for key in _OF_PROGRAM:
        if key in entry.values and policy != PROGRAM and not (key == 'timeout_s' and policy in ERASURES):
            raise entry.mistake(key, f'the policy {policy} has none: remove it')
    program = entry.text('program') or ''
    if policy == PROGRAM and not os.path.isabs(program):
        raise entry.mistake('program', 'write the absolute path of a program')
    erase = entry.choice('erase', erasures) if erasures else None
    return CleaningRule(pci_matching.read(entry), Policy(
        policy, erase or (erasures[0] if erasures else ''), program, _timeout_s(entry, policy)))


def _timeout_s(entry: json_entries.Entry, policy: str) -> int:
    value = entry.values.get('timeout_s', _SANITIZE_TIMEOUT_S if policy == SANITIZE else _TIMEOUT_S)
    if type(value) is not int or not 1 <= value <= _MAX_TIMEOUT_S:
        raise entry.mistake('timeout_s', f'{json.dumps(value)} is not a number of seconds from 1 to {_MAX_TIMEOUT_S}: '
                                         'write one without quotation marks')
    return value
