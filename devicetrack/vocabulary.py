"""The words that rows, objects, options and commands share, spelled in one place."""

from __future__ import annotations

import re
from typing import Final

# What an assignment is to its instance while it moves; at rest every assignment is ``current``.
CURRENT: Final = 'current'
OLD: Final = 'old'
INCOMING: Final = 'incoming'
ROLES: Final = (CURRENT, OLD, INCOMING)

# The life of an assignment. A row exists from ``claimed`` to the end of ``releasing``.
CLAIMED: Final = 'claimed'
ACTIVE: Final = 'active'
RELEASING: Final = 'releasing'
STATES: Final = (CLAIMED, ACTIVE, RELEASING)

# Where a device comes from decides whether giving it back removes it.
CREATED: Final = 'created'
ADOPTED: Final = 'adopted'
ORIGINS: Final = (CREATED, ADOPTED)

# How strictly devices follow the NUMA nodes of a request. ``legacy`` lets devices that know no node pass.
REQUIRED: Final = 'required'
PREFERRED: Final = 'preferred'
LEGACY: Final = 'legacy'
NONE: Final = 'none'
NUMA_AFFINITY_POLICIES: Final = (REQUIRED, PREFERRED, LEGACY, NONE)

# Why a device may not be handed out. It may have several of these reasons, and is free again when none is left.
DRAINED: Final = 'drained'
UNHEALTHY: Final = 'unhealthy'
FOREIGN: Final = 'foreign'
IN_DOUBT: Final = 'in doubt'
NOT_ADOPTED: Final = 'not to be adopted'
WITHHELD_REASONS: Final = (DRAINED, UNHEALTHY, FOREIGN, IN_DOUBT, NOT_ADOPTED)

# What is withheld: one device, or all that a parent has and could make.
DEVICE: Final = 'device'
PARENT: Final = 'parent'
SCOPES: Final = (DEVICE, PARENT)

# Who gave a reason. What an operator said ends when an operator says so, all else when it is seen to be over.
BY_OPERATOR: Final = 'operator'
BY_HOST: Final = 'host'
BY_AUDIT: Final = 'audit'

# How much a finding matters.
CRITICAL: Final = 'critical'
WARNING: Final = 'warning'
NOTE: Final = 'note'
SEVERITIES: Final = (CRITICAL, WARNING, NOTE)

# How devices are chosen over parents.
PACK: Final = 'pack'
SPREAD: Final = 'spread'
SELECTION_POLICIES: Final = (PACK, SPREAD)

# More devices of one class than any host has; what is above is a mistake and not a wish.
MAX_AMOUNT: Final = 1_000_000

_NOT_IN_A_CLASS = re.compile('[^A-Z0-9_]')
_NUMA_PROVIDER = re.compile('numa[0-9]+')


def pmem_resource_class(label: str) -> str:
    """The resource class that counts persistent-memory namespaces with an operator's label."""
    return 'CUSTOM_PMEM_NAMESPACE_' + _NOT_IN_A_CLASS.sub('_', label.upper())


def numa_provider(numa_node: int) -> str:
    """The stable name of the provider that counts the devices of a NUMA node, where such are counted by node."""
    return f'numa{numa_node}'


def is_numa_provider(name: str) -> bool:
    return _NUMA_PROVIDER.fullmatch(name) is not None
