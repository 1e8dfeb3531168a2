"""The boots of a host: the one that guests' definitions were last updated for, and the present one."""

from __future__ import annotations

from devicetrack.store.api import Store
from devicetrack.virt.driver import VirtDriver


class Boot:
    """Paths in a definition are valid only for the boot that wrote them.

    :param recorded: the boot in the store, or None if no manager of the host ever ran
    """

    def __init__(self, driver: VirtDriver, store: Store, host_uuid: str, recorded: str | None) -> None:
        self._driver, self._store, self._host_uuid = driver, store, host_uuid
        self._recorded = recorded
        self._realized: set[str] = set()
        self._ready: set[str] = set()

    @property
    def is_new_host(self) -> bool:
        """Whether no earlier boot is known, so that no definition has addresses of one."""
        return self._recorded is None

    @property
    def is_recorded(self) -> bool:
        """Whether the store has the present boot."""
        return self._recorded == self._driver.boot_id()

    @property
    def has_changed(self) -> bool:
        """Whether the host has booted, and some definitions have not been updated since."""
        return not self.is_new_host and not self.is_recorded

    @property
    def realized(self) -> frozenset[str]:
        """The instances whose devices have been made ready for the present boot, until that is recorded for all."""
        return frozenset(self._realized)

    def set_realized(self, instance_uuid: str) -> None:
        self._realized.add(instance_uuid)

    def is_ready(self, instance_uuid: str) -> bool:
        """Whether the devices and the definition of an instance have been updated for the present boot."""
        return instance_uuid in self._ready

    def set_ready(self, instance_uuid: str) -> None:
        self._realized.add(instance_uuid)
        self._ready.add(instance_uuid)

    def record(self) -> None:
        """Record the present boot, once all definitions are updated.

        :raises StoreError: the boot may not be recorded; call again
        """
        now = self._driver.boot_id()
        self._store.set_boot_id(self._host_uuid, now)
        self._recorded = now
        self._realized.clear()
        self._ready.clear()
