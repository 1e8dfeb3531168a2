"""The words that rows, objects, options and commands share, spelled in one place."""

from __future__ import annotations

import re
from typing import Final
import uuid

# The role of an assignment in a move of its instance. Without a move every assignment is ``current``.
CURRENT: Final = 'current'
OLD: Final = 'old'
INCOMING: Final = 'incoming'
ROLES: Final = (CURRENT, OLD, INCOMING)

# The states of an assignment. Its row exists from ``claimed`` to the end of ``releasing``.
CLAIMED: Final = 'claimed'
ACTIVE: Final = 'active'
RELEASING: Final = 'releasing'
STATES: Final = (CLAIMED, ACTIVE, RELEASING)

# The two ends of a move.
CONFIRM: Final = 'confirm'
REVERT: Final = 'revert'

# The origin of a device. A created device is removed when it is given back; one that existed before stays. Its text is
# in rows, in the records of guests and in messages, so it stays as it was in earlier releases.
CREATED: Final = 'created'
EXISTING: Final = 'adopted'
ORIGINS: Final = (CREATED, EXISTING)

# How strictly devices follow the NUMA nodes of a request. ``legacy`` also accepts devices whose node is unknown, and
# ``socket`` those of nodes on the same processor socket.
REQUIRED: Final = 'required'
SOCKET: Final = 'socket'
PREFERRED: Final = 'preferred'
LEGACY: Final = 'legacy'
NONE: Final = 'none'
NUMA_AFFINITY_POLICIES: Final = (REQUIRED, SOCKET, PREFERRED, LEGACY, NONE)

# Why a device may not be handed out. A device with several of these reasons is free again when the last one ends.
CORDONED: Final = 'cordoned'
UNHEALTHY: Final = 'unhealthy'
FOREIGN: Final = 'foreign'
IN_DOUBT: Final = 'in doubt'
UNPROVEN: Final = 'unproven'
MADE_BY_OTHERS: Final = 'made by others'
RETIRED: Final = 'retired'
# The compute service has not created the provider yet that will count it.
NO_PROVIDER: Final = 'no provider yet'
# Its owner left it, but it could not be taken back. It is still held, and this reason tells people so.
NOT_GIVEN_BACK: Final = 'not given back'
# A claim got it, and it could not be made ready for the guest, for a cause of its own. Audits let claims try it again.
NOT_REALIZED: Final = 'not realized'
# An instance holds another device that excludes this one.
EXCLUDED: Final = 'excluded'
WITHHELD_REASONS: Final = (CORDONED, RETIRED, UNHEALTHY, FOREIGN, IN_DOUBT, UNPROVEN, MADE_BY_OTHERS, NO_PROVIDER,
                           NOT_GIVEN_BACK, NOT_REALIZED, EXCLUDED)

# How a device uses a token that it shares with other devices. Instances may hold any parts of a token. A whole excludes
# every part and every other whole. Devices that go together must all belong to one instance.
PART: Final = 'part'
WHOLE: Final = 'whole'
TOGETHER: Final = 'together'
EXCLUSION_MODES: Final = (PART, WHOLE, TOGETHER)

# What happens to a free device that stores data and that nothing proves clean.
VERIFY: Final = 'verify'
WIPE: Final = 'wipe'
TRUST: Final = 'trust'

# How a device was proven clean: the host said without reading that it is empty, every byte was read, or it was wiped.
BLANK: Final = 'blank'
READ: Final = 'read'
WIPED: Final = 'wiped'
NOTHING_KEPT: Final = 'nothing kept'
# The beginning of the fifth way: a person says that it is clean (:class:`devicetrack.objects.values.Word`).
WORD_OF: Final = 'word of '

# The scope of a reason: one device, every device that a parent has or could make, or every device of the host.
DEVICE: Final = 'device'
PARENT: Final = 'parent'
HOST: Final = 'host'
SCOPES: Final = (DEVICE, PARENT, HOST)

# Who gave a reason. An operator ends what an operator began; the others end when their cause is gone.
BY_OPERATOR: Final = 'operator'
BY_HOST: Final = 'host'
BY_AUDIT: Final = 'audit'

# How much a finding matters.
CRITICAL: Final = 'critical'
WARNING: Final = 'warning'
NOTE: Final = 'note'
SEVERITIES: Final = (CRITICAL, WARNING, NOTE)

# How a claim chooses among the parents of devices.
PACK: Final = 'pack'
SPREAD: Final = 'spread'
SELECTION_POLICIES: Final = (PACK, SPREAD)

# No host has more devices of one class. A larger amount is a mistake in the request.
MAX_AMOUNT: Final = 1_000_000

# The names of resource classes and traits that placement accepts.
PLACEMENT_NAME: Final = re.compile('[A-Z0-9_]{1,255}')

# The address of a PCI function, as sysfs writes it.
PCI_ADDRESS: Final = re.compile(r'[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]')

# Canonical: the store compares texts, and a UUID in capitals would be another instance.
UUID: Final = re.compile(r'[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}')
_SURROGATE = re.compile('[\ud800-\udfff]')
_NOT_IN_A_CLASS = re.compile('[^A-Z0-9_]')
_NUMA_PROVIDER = re.compile('numa[0-9]+')


def is_uuid(value: object) -> bool:
    """Whether a value is a UUID in its canonical form: text, lower case, with hyphens."""
    return isinstance(value, str) and UUID.fullmatch(value) is not None


def is_text(value: object) -> bool:
    """Whether a value is text that UTF-8 can write. Half a surrogate pair, which an escape in JSON can make, is not."""
    return isinstance(value, str) and _SURROGATE.search(value) is None


def as_uuid(value: object) -> str | None:
    """The canonical form of a UUID object, or of a UUID's text in any case; None for anything else."""
    text = str(value) if isinstance(value, uuid.UUID) else value.lower() if isinstance(value, str) else None
    return text if is_uuid(text) else None


def pmem_resource_class(label: str) -> str:
    """The resource class that counts persistent-memory namespaces with an operator's label."""
    return 'CUSTOM_PMEM_NAMESPACE_' + _NOT_IN_A_CLASS.sub('_', label.upper())


def numa_provider(numa_node: int) -> str:
    """The stable name of the provider for a NUMA node, where devices are counted for each NUMA node."""
    return f'numa{numa_node}'


def is_numa_provider(name: str) -> bool:
    return _NUMA_PROVIDER.fullmatch(name) is not None
