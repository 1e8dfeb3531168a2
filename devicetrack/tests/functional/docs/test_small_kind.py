"""The kind with which the page about device kinds starts is whole: installed, used and tested as the page says."""

from __future__ import annotations

import importlib
import os
import pathlib
import re
import sys
import textwrap
from typing import ClassVar

import fixtures
from oslo_versionedobjects import base as ovo_base

from devicetrack.testing.kinds import contract
from devicetrack.testing.kinds import world
from devicetrack.tests import base
from devicetrack.tests import processes
from devicetrack.tests.unit.testing import scratch_package

ROOT = pathlib.Path(__file__).parents[4]
PAGE = ROOT / 'doc' / 'source' / 'contributor' / 'device_kind.rst'


def block(caption: str) -> str:
    """The code on the page with this caption."""
    [found] = re.findall(rf'   :caption: {re.escape(caption)}\n\n((?:   .*\n|\n)+)', PAGE.read_text(encoding='utf-8'))
    return textwrap.dedent(found)


def package(source: pathlib.Path) -> None:
    source.mkdir()
    source.joinpath('fpga.py').write_bytes(PAGE.parent.joinpath('fpga.py').read_bytes())
    source.joinpath('pyproject.toml').write_text(block('pyproject.toml of the small kind'))


class Installed(fixtures.Fixture):
    """The package, installed for this process and for others (``path``)."""

    def _setUp(self) -> None:
        self.path = scratch_package.installed(package)
        sys.path.insert(0, self.path)
        importlib.invalidate_caches()
        self.addCleanup(self._forget)

    def _forget(self) -> None:
        sys.path.remove(self.path)
        sys.modules.pop('fpga', None)
        ovo_base.VersionedObjectRegistry.obj_classes().pop('devicetrack.FPGADetails', None)


class FPGAWorld(world.KindWorld):
    """A directory that stands for that of sysfs."""

    devices = ('0000:3d:00.0', '0000:41:00.0')

    def make_host(self) -> None:
        self.useFixture(Installed())
        type(self).kind_class = importlib.import_module('fpga').FPGA
        self.directory = self.useFixture(fixtures.TempDir()).path
        for address in self.devices:
            self.add(address, '0x09c4')
        # Registers the options.
        self.kind_class(self.configuration.conf, self.hypervisor)
        self.configuration.set('fpga', functions=list(self.devices), sysfs=self.directory)

    def add(self, address: str, model: str) -> None:
        os.mkdir(os.path.join(self.directory, address))
        pathlib.Path(self.directory, address, 'device').write_text(f'{model}\n')

    def remove(self, identifier: str) -> None:
        os.rename(os.path.join(self.directory, identifier), f'{self.directory}.{identifier}')

    def replace(self, identifier: str) -> None:
        self.remove(identifier)
        self.add(identifier, '0x09c5')

    def unreadable(self) -> None:
        os.rename(self.directory, f'{self.directory}.away')

    def without_privileges(self) -> None:
        for address in self.devices:
            os.mkdir(os.path.join(self.directory, address, 'reset'))


class SmallKindTestCase(contract.KindContract, base.TestCase):
    world_class: ClassVar[type[world.KindWorld]] = FPGAWorld


class GuestTestCase(base.TestCase):

    def test_a_guest_gets_a_device_as_the_page_says(self) -> None:
        path = self.useFixture(Installed()).path
        directory = pathlib.Path(self.temp_dir())
        functions, options = directory / 'functions', directory / 'fpga.conf'
        functions.joinpath('0000:3d:00.0').mkdir(parents=True)
        functions.joinpath('0000:3d:00.0', 'device').write_text('0x09c4\n')
        options.write_text(block('fpga.conf').replace('/srv/functions', str(functions)))
        answer = processes.run(
            str(ROOT / 'doc' / 'source' / 'user' / 'guests.py'), '--options', str(options),
            '--extra-spec', 'resources:CUSTOM_FPGA=1', str(directory / 'try'),
            env={**os.environ, 'PYTHONPATH': os.pathsep.join((path, str(ROOT)))})
        self.assertEqual((0, "['0000:3d:00.0']\n"), (answer.returncode, answer.stdout), answer.stderr)
        self.assertIn("<address domain='0x0000' bus='0x3d' slot='0x00' function='0x0'/>",
                      (directory / 'try' / 'guest.xml').read_text())
