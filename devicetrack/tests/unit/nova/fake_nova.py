"""A package called nova with a few methods to wrap, and a table of it."""

from __future__ import annotations

import importlib
import pathlib
import sys

import fixtures

from devicetrack.nova import seam_table
from devicetrack.nova import source

CLAIM = 'nova.compute.tracker:Tracker.claim'
DROP = 'nova.compute.tracker:Tracker.drop'
XML = 'nova.virt.libvirt.xml:guest_xml'
BOOT = 'nova.compute.manager:Manager.boot'
TARGETS = (CLAIM, DROP, XML)

FILES = {
    '__init__.py': '',
    'version.py': 'def version_string():\n    return "33.1.0"\n',
    'compute/__init__.py': '',
    'compute/tracker.py': '''
import functools


def locked(name):
    def decorator(function):
        @functools.wraps(function)
        def inner(*args, **kwargs):
            return function(*args, **kwargs)
        return inner
    return decorator


class Tracker:

    @locked(name='tracker')
    def claim(self, instance, limits: dict = None):
        """Take devices."""
        # They are taken here.
        return f"""{instance}
        # {limits}

        """

    def drop(self, instance):
        return instance
''',
    'compute/manager.py': """
from nova.virt.libvirt import xml


class Manager:
    def boot(self, tracker, instance):
        return tracker.claim(instance), xml.guest_xml(instance)

    def stop(self, instance):
        return instance
""",
    'virt/__init__.py': '',
    'virt/libvirt/__init__.py': '',
    'virt/libvirt/xml.py': 'def guest_xml(guest):\n    return guest\n',
}


class FakeNova(fixtures.Fixture):
    """Writes the package. A test changes its files and then imports it.

    :ivar tables: the directory of the tables: one of Nova 33 as it was written
    """

    def _setUp(self) -> None:
        self.path = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.root = self.path / 'nova'
        for name, text in FILES.items():
            self.write(name, text)
        self.tables = self.path / 'tables'
        self.tables.mkdir()
        self.know('33.0.0')
        self._forget()
        self.addCleanup(self._forget, {name: module for name, module in sys.modules.items() if _is_nova(name)})
        sys.path.insert(0, str(self.path))
        self.addCleanup(sys.path.remove, str(self.path))
        importlib.invalidate_caches()

    def _forget(self, before: dict[str, object] | None = None) -> None:
        for name in [name for name in sys.modules if _is_nova(name)]:
            del sys.modules[name]
        sys.modules.update(before or {})        # type: ignore[arg-type]

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def change(self, name: str, old: str, new: str) -> None:
        assert old in FILES[name]
        self.write(name, FILES[name].replace(old, new))

    def know(self, release: str) -> None:
        """Add what the files say now to the table of a release."""
        tables = seam_table.load(self.tables)
        table = tables.get(seam_table.major(release), seam_table.SeamTable())
        table.add(release, source.read(self.root, TARGETS))
        self.tables.joinpath(f'{seam_table.major(release)}.txt').write_text(str(table))


def _is_nova(name: str) -> bool:
    return name.partition('.')[0] == 'nova'
