"""Aliases: the names by which flavors ask for PCI functions, and the functions that they mean."""

from __future__ import annotations

import functools
from typing import Final
from typing import NamedTuple

from devicetrack.objects import choice
from devicetrack.objects.choice import Choice
from devicetrack.objects.choice import Features

PHYSICAL_FUNCTION: Final = 'type-PF'


@functools.lru_cache(maxsize=1024)
def features(vendor_id: str | None = None, product_id: str | None = None, device_type: str | None = None,
             traits: frozenset[str] = frozenset(), live_migratable: bool | None = None) -> Features:
    """Describe a function as features of a device. None for a property leaves it out.

    :param live_migratable: whether guests with it may migrate, by the options; None if they do not say
    """
    words = [f'{name}={value}' for name, value in (('vendor_id', vendor_id), ('product_id', product_id)) if value]
    if device_type is not None:
        words.append(device_type)
    if live_migratable is not None:
        words.append(f'live_migratable={"yes" if live_migratable else "no"}')
    return tuple(sorted({*words, *traits}))


class PCIChoice(NamedTuple):
    """Functions that a name may stand for: those of one resource class, with all of these traits.

    If ``live_migratable`` is not None, the host's options must say the same about the function. ``vendor_id`` and
    ``product_id`` have four hexadecimal digits, and are None if any will do.
    """

    resource_class: str
    traits: frozenset[str] = frozenset()
    live_migratable: bool | None = None
    vendor_id: str | None = None
    product_id: str | None = None


class PCIAlias(NamedTuple):
    """A name in the extra spec ``pci_passthrough:alias``.

    ``choices`` has one choice or more, and any of them will do. ``numa_policy`` is one of
    :data:`devicetrack.vocabulary.NUMA_AFFINITY_POLICIES`. ``device_type`` is ``type-PCI``, ``type-PF``, ``type-VF`` or,
    if the alias names no type, None. Then any function will do except a physical function with virtual ones, because
    its owner would take these from others.
    """

    name: str
    choices: tuple[PCIChoice, ...]
    numa_policy: str
    device_type: str | None = None

    @property
    def resource_classes(self) -> tuple[str, ...]:
        """The classes of the choices, each once, in their order."""
        return choice.classes(self.asked)

    @property
    def asked(self) -> tuple[Choice, ...]:
        """The choices, by the features that a function must have."""
        refused = frozenset((PHYSICAL_FUNCTION,) if self.device_type is None else ())
        return tuple(
            Choice(one.resource_class, frozenset(features(
                one.vendor_id, one.product_id, self.device_type, one.traits, one.live_migratable)), refused)
            for one in self.choices)

    @property
    def is_live_migratable(self) -> bool:
        """Whether a running guest that asks by this name can move, whichever of the choices it got."""
        return all(choice.live_migratable for choice in self.choices)
