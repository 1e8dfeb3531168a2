"""The host's boot: the one that guests' definitions were last brought to, and the one that runs."""

from __future__ import annotations

from devicetrack.store.api import Store
from devicetrack.virt.driver import VirtDriver


class Boot:
    """Paths in a definition are valid only for the boot that wrote them.

    :param recorded: the boot that the store knows, None when no manager of the host ever ran
    """

    def __init__(self, driver: VirtDriver, store: Store, host_uuid: str, recorded: str | None) -> None:
        self._driver, self._store, self._host_uuid = driver, store, host_uuid
        self._recorded = recorded
        self._ready: set[str] = set()

    @property
    def is_new_host(self) -> bool:
        """Whether there is no earlier boot, so that no definition has addresses of one."""
        return self._recorded is None

    @property
    def is_recorded(self) -> bool:
        """Whether the store knows the boot that runs."""
        return self._recorded == self._driver.boot_id()

    @property
    def has_changed(self) -> bool:
        """Whether the host booted, and not all definitions have been brought to the boot that runs."""
        return not self.is_new_host and not self.is_recorded

    def is_ready(self, instance_uuid: str) -> bool:
        """Whether one instance's devices and definition have been brought to the boot that runs."""
        return instance_uuid in self._ready

    def set_ready(self, instance_uuid: str) -> None:
        self._ready.add(instance_uuid)

    def record(self) -> None:
        """All is ready: record the boot that runs.

        :raises StoreError: perhaps not recorded; call again
        """
        now = self._driver.boot_id()
        self._store.set_boot_id(self._host_uuid, now)
        self._recorded = now
        self._ready.clear()
