"""What the kinds do alike whose parents make devices of some types: mediated devices and vGPUs."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from oslo_config import cfg

from devicetrack import log
from devicetrack.virt.libvirt import attributes
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import vfio_migration
from devicetrack.virt.libvirt.kinds import api
from devicetrack.virt.libvirt.kinds import pci_cards
from devicetrack.virt.libvirt.kinds import type_options

LOG = log.logger(__name__)


class TypedKind(api.DeviceKind):
    """Base of such a kind.

    :param read: reads its options, and checks them
    """

    keeps_bytes = False         # its vendor's driver clears and resets it between two guests, and it has no storage

    def __init__(self, conf: Any, hypervisor: connection.Connection,
                 read: Callable[[cfg.ConfigOpts], type_options.Options]) -> None:
        super().__init__(conf, hypervisor)
        self.options = read(conf)
        self._attributes = attributes.paths(conf)
        self._serials = pci_cards.ParentSerials()
        self._warned: set[object] = set()

    @property
    def configured(self) -> bool:
        return bool(self.options.types)

    def is_named(self, identifier: str, stored: str) -> bool:
        return self.options.are_naming(stored)

    @property
    def resource_classes(self) -> frozenset[str]:
        return self.options.resource_classes

    def live_migration_obstacle(self) -> str | None:
        return vfio_migration.obstacle(self.hypervisor.versions())

    def warn(self, found: Mapping[object, str]) -> None:
        """Log what is wrong with the options on this host, once as long as it lasts: every audit finds it.

        :param found: texts by the types, or by the types and addresses, that options name
        """
        for text in sorted(text for about, text in found.items() if about not in self._warned):
            LOG.warning('%s', text)
        self._warned = set(found)
