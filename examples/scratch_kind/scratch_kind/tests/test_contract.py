"""The kind keeps the contract of device kinds."""

from __future__ import annotations

from collections.abc import Sequence
import os

import fixtures
import testtools

from devicetrack import conf as registry
from devicetrack import exception
from devicetrack.testing import fixtures as our_fixtures
from devicetrack.testing.kinds import contract
from devicetrack.testing.kinds import world
from scratch_kind import handles
from scratch_kind import kind
from scratch_kind import options
from scratch_kind import privileged

SIZE = 2 << 20


class ScratchWorld(world.KindWorld):
    """A directory with three files. One of them has a second name."""

    kind_class = kind.Scratch
    devices = ('one', 'two')
    numa = {'one': 1, 'two': 1}
    rivals = (('three', 'three-again'),)

    def make_host(self) -> None:
        top = self.useFixture(fixtures.TempDir()).path
        if handles.of(top) is None:             # an overlay file system, as in a container
            top = self.useFixture(fixtures.TempDir(rootdir='/dev/shm')).path
        self.directory, self.sysfs = os.path.join(top, 'files'), os.path.join(top, 'sys')
        os.mkdir(self.directory)
        for name in ('one', 'two', 'three'):
            self._file(name)
        os.link(self._path('three'), self._path('three-again'))
        os.symlink(self._path('one'), os.path.join(top, 'link'))
        registry.register(self.configuration.conf, options.GROUP, options.OPTIONS)
        self.configuration.set('scratch', directory=self.directory, numa_node=1, sysfs_root=self.sysfs)
        one, two = (str(handles.of(self._path(name))) for name in self.devices)
        self.refused = (lambda: privileged.clear_as_root(self.directory, '../link', one, SIZE),
                        lambda: privileged.clear_as_root(self.directory, 'one', one, SIZE + 1),
                        lambda: privileged.clear_as_root(self.directory, 'one', two, SIZE),
                        lambda: privileged.clear_as_root(self.directory, '.', one, SIZE))

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def _file(self, name: str, data: bytes = b'') -> None:
        with open(self._path(name), 'wb') as file:
            file.write(data)
            file.truncate(SIZE)

    def remove(self, identifier: str) -> None:
        os.unlink(self._path(identifier))

    def replace(self, identifier: str) -> None:
        # The new file may get the inode number of the old one.
        os.unlink(self._path(identifier))
        self._file(identifier, b'of somebody else')

    def hide_identity(self, identifier: str) -> None:
        read = handles.of
        self.useFixture(fixtures.MonkeyPatch('scratch_kind.handles.of', lambda path: (
            None if path == self._path(identifier) else read(path))))

    def use(self, identifier: str) -> None:
        os.makedirs(os.path.join(self.sysfs, 'block/loop7/loop'))
        with open(os.path.join(self.sysfs, 'block/loop7/loop/backing_file'), 'w') as file:
            file.write(f'{self._path(identifier)}\n')

    def let_go(self, identifier: str) -> None:
        os.unlink(os.path.join(self.sysfs, 'block/loop7/loop/backing_file'))

    def write(self, identifier: str) -> None:
        with open(self._path(identifier), 'r+b') as file:
            file.write(b'a secret')

    def is_clean(self, identifier: str) -> bool:
        with open(self._path(identifier), 'rb') as file:
            return not any(file.read())

    def other_addresses(self, identifier: str) -> Sequence[str]:
        return [f'{self.directory}/../files/{identifier}',
                os.path.join(os.path.dirname(self.directory), 'link')]

    def unreadable(self) -> None:
        os.rename(self.directory, f'{self.directory}.away')

    def cannot_clean(self) -> None:
        self.useFixture(fixtures.MonkeyPatch('os.ftruncate', lambda _fd, _size: None))

    def without_privileges(self) -> None:
        def refuse(*_arguments: object) -> int:
            raise PermissionError(1, 'Operation not permitted')

        self.useFixture(fixtures.MonkeyPatch('scratch_kind.privileged.clear', refuse))


class ScratchTestCase(contract.KindContract):
    world_class = ScratchWorld
    world: ScratchWorld

    def test_a_file_is_known_by_its_path_without_links_and_by_its_other_name(self) -> None:
        link = f'{self.world.directory}.link'
        os.symlink(self.world.directory, link)
        self.world.configuration.set('scratch', directory=f'{link}/')
        self.world.use('three')                 # the loop device has the path without the link
        linked, wanted = self.made(), self.assigned('three-again')
        self.assertEqual({'three', 'three-again'}, {
            name for name, device in self.stock(linked).items() if device.unhealthy})
        self.assertRaises(exception.DeviceInUse, linked.realize, wanted)

    def test_what_is_there_and_is_no_file_of_the_directory_is_left_out(self) -> None:
        top = os.path.dirname(self.world.directory)
        os.link(f'{self.world.directory}/two', f'{top}/other-name')
        self.assertEqual({f'{top}/gone': None, f'{top}/other-name': 'two'}, dict(self.kind.identify(
            [f'{top}/gone', f'{top}/other-name', '/dev/null', top])))


class OptionsTestCase(testtools.TestCase):
    """Tests without a world. Nothing here asks libvirt, so the connection is None."""

    def test_a_directory_that_is_no_absolute_path_is_refused(self) -> None:
        configuration = self.useFixture(our_fixtures.Configuration())
        registry.register(configuration.conf, options.GROUP, options.OPTIONS)
        configuration.set('scratch', directory='files')
        self.assertRaises(exception.InvalidConfiguration, kind.Scratch, configuration.conf, None)
