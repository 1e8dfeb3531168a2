"""Names by which flavors ask for PCI functions."""

from __future__ import annotations

from typing import NamedTuple


class PCIChoice(NamedTuple):
    """Functions that a name may stand for: those of one resource class, at a provider with all of these traits.

    ``live_migratable`` is None when either will do.
    """

    resource_class: str
    traits: frozenset[str] = frozenset()
    live_migratable: bool | None = None


class PCIAlias(NamedTuple):
    """A name in the extra spec ``pci_passthrough:alias``.

    ``choices`` has one or more: any of them will do. ``numa_policy`` is one of
    :data:`devicetrack.vocabulary.NUMA_AFFINITY_POLICIES`. ``device_type`` is ``type-PCI``, ``type-PF``, ``type-VF`` or,
    where the alias says none, None.
    """

    name: str
    choices: tuple[PCIChoice, ...]
    numa_policy: str
    device_type: str | None = None

    @property
    def resource_classes(self) -> tuple[str, ...]:
        """The classes of the choices, each once, in their order."""
        return tuple(dict.fromkeys(choice.resource_class for choice in self.choices))

    @property
    def is_live_migratable(self) -> bool:
        """Whether whoever asks by this name can be moved while it runs, whichever of the choices it was given."""
        return all(choice.live_migratable for choice in self.choices)
