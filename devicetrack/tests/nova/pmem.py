"""Namespaces of persistent memory on the hosts of Nova's functional tests.

What Nova's tests have Nova read of ndctl, our driver reads too. A small file stands for each namespace, so that our own
code proves and wipes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
import contextlib
import json
import os
from typing import Any
from typing import Final

from nova.privsep import libvirt as nova_privileged

from devicetrack import filelock
from devicetrack.virt.libvirt import device_users
from devicetrack.virt.libvirt import namespaces
from devicetrack.virt.libvirt import ndctl

# Of every namespace, whatever Nova's tests say of its size: they are written through.
SIZE: Final = 8 << 20

# Attributes of a connection of Nova's tests: what ndctl prints on its host, and where the files are.
_LISTED: Final = 'devicetrack_ndctl'
_DIRECTORY: Final = 'devicetrack_pmem'


def listed(fake: Any) -> list[dict[str, Any]]:
    """What ndctl lists on a host, from its start on. A test may change it."""
    if _LISTED not in fake.__dict__:
        told = nova_privileged.get_pmem_namespaces
        found = json.loads(told()) if hasattr(told, 'assert_called') else []
        for namespace in found:
            # Nova reads the alignment of the region, and ndctl prints that of the namespace besides.
            namespace.setdefault('align', namespace['daxregion']['align'])
            namespace['size'] = SIZE
        setattr(fake, _LISTED, found)
    answer: list[dict[str, Any]] = getattr(fake, _LISTED)
    return answer


def file_of(directory: str, name: str) -> str:
    """The file that stands for a namespace. It is made, all holes, when it is first asked for."""
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, name)
    if not os.path.exists(path):
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        os.ftruncate(fd, SIZE)
        os.close(fd)
    return path


class Source(namespaces.NdctlSource):
    """The namespaces of one host.

    :param host: its :class:`~devicetrack.tests.nova.hypervisor.Connection`
    """

    has_holes = True

    def __init__(self, hypervisor: Any, directory_of: Any) -> None:
        super().__init__('/usr/bin/ndctl')
        self._hypervisor, self._directory_of = hypervisor, directory_of

    def _list(self) -> list[ndctl.Namespace]:
        return ndctl.parse(json.dumps(listed(self._hypervisor.raw().fake)))

    def _file(self, namespace: ndctl.Namespace) -> str:
        return file_of(self._directory_of(self._hypervisor.raw().fake.getHostname()), namespace.name)

    def blank(self, found: Iterable[ndctl.Namespace]) -> Sequence[ndctl.Namespace]:
        with contextlib.ExitStack() as opened:
            files = {os.open(self._file(namespace), os.O_RDONLY | os.O_CLOEXEC): namespace for namespace in found}
            for fd in files:
                opened.callback(filelock.close, fd)
            return namespaces.unused_holes(files)

    def open(self, namespace: ndctl.Namespace, writing: bool = True) -> int:
        fd = os.open(self._file(namespace), (os.O_RDWR if writing else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            device_users.check_alone(fd)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def is_locked(self, namespace: ndctl.Namespace) -> bool:
        lock = filelock.NodeLock(self._file(namespace))
        try:
            lock.acquire()
        except filelock.FileLocked:
            return True
        lock.release()
        return False
