"""When an image is built, with a recipe that is quicker than the real one."""

from __future__ import annotations

import fcntl
import os
import pathlib

import fixtures

from devicetrack.tests import base
from devicetrack.tests.host import image as images

SETUP_CFG = """
[options]
install_requires =
    stevedore>=5.1
[options.extras_require]
libvirt =
    libvirt-python>=9.0
placement =
    os-traits>=3.0
mysql =
    PyMySQL>=1.0.2
test =
    coverage>=7.0
    fixtures>=4.0
    testtools>=2.6
"""

# Takes the arguments of the real one.
BUILD = """#!/bin/sh
echo "$@"
touch "$3/root.img" "$3/vmlinuz" "$3/initrd"
"""


class RequirementsTestCase(base.TestCase):

    def test_are_those_of_the_library_its_extras_and_the_tests_inside(self) -> None:
        self.assertEqual(
            ['stevedore>=5.1', 'libvirt-python>=9.0', 'os-traits>=3.0', 'fixtures>=4.0', 'testtools>=2.6'],
            images.requirements(SETUP_CFG))

    def test_of_this_project_there_are_some(self) -> None:
        found = images.requirements((images.PROJECT / 'setup.cfg').read_text())
        names = {requirement.partition('>')[0] for requirement in found}
        self.assertLessEqual(images.FOR_TESTS | {'lxml', 'libvirt-python'}, names)


class KeyTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.recipe = pathlib.Path(self.temp_dir())
        (self.recipe / 'root').mkdir()
        self.build, self.other = self.recipe / 'build', self.recipe / 'root' / 'other'
        self.build.write_text('1')
        self.other.write_text('2')

    def key(self, debian: int = 13, *required: str) -> str:
        return images.key(debian, self.recipe, required)

    def test_is_the_same_for_the_same(self) -> None:
        before = self.key(13, 'a')
        os.utime(self.build, (0, 0))
        self.assertEqual(before, self.key(13, 'a'))

    def test_is_another_for_whatever_decides_what_is_inside(self) -> None:
        keys = [self.key(), self.key(12), self.key(13, 'a'), self.key(13, 'a', 'b'),
                images.key(13, self.recipe, ['a'], ['package'])]
        self.build.chmod(0o755)
        keys.append(self.key())
        self.build.write_text('3')
        keys.append(self.key())
        self.other.rename(self.recipe / 'other')
        keys.append(self.key())
        self.assertEqual(len(keys), len(set(keys)))


class GetTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.cache = pathlib.Path(self.temp_dir(), 'new', 'cache')
        self.useFixture(fixtures.EnvironmentVariable('DEVICETRACK_HOST_CACHE', str(self.cache)))
        self.recipe = pathlib.Path(self.temp_dir())
        self.patch(images, 'RECIPE', self.recipe)
        self.patch(images, 'mirror', lambda: 'http://mirror.invalid/debian')
        self.patch(os, 'geteuid', lambda: 0)
        self.write(BUILD)

    def patch(self, *patch: object) -> None:
        self.useFixture(fixtures.MonkeyPatch(f'{patch[0].__name__}.{patch[1]}', patch[2]))  # type: ignore[attr-defined]

    def write(self, build: str) -> None:
        (self.recipe / 'build').write_text(build)
        (self.recipe / 'build').chmod(0o755)

    def test_builds_once_for_one_recipe(self) -> None:
        first = images.get(13)
        made = first.disk.stat().st_mtime_ns
        self.assertEqual(first, images.get(13))
        self.assertEqual(made, first.disk.stat().st_mtime_ns)
        self.assertEqual(0o700, self.cache.stat().st_mode & 0o777)

    def test_tells_the_build_what_to_build(self) -> None:
        image = images.get(12)
        said = image.directory.with_suffix('.log').read_text().split()
        self.assertEqual(['bookworm', 'http://mirror.invalid/debian', f'{image.directory}.new'], said[:3])
        self.assertIn('testtools>=2.6', said)

    def test_an_image_with_more_is_another_beside_the_first(self) -> None:
        more = images.get(13, images.Contents('nova', ('openssh-server', 'qemu-utils'), ('nova==34.*',)))
        said = more.directory.with_suffix('.log').read_text()
        self.assertIn(' openssh-server qemu-utils ', said)
        self.assertIn(' nova==34.*', said)
        plain = images.get(13)
        self.assertNotEqual(more, plain)
        self.assertTrue(more.disk.exists())
        self.assertTrue(plain.disk.exists())

    def test_removes_what_another_recipe_made_unless_machines_run_on_it(self) -> None:
        used = images.get(13)
        unused = self.cache / 'debian13-0123456789abcdef'
        unused.mkdir()
        other_release = images.get(12)
        self.write(BUILD + '# another')
        new = images.get(13)
        self.assertEqual((True, False, True, True), tuple(
            directory.exists() for directory in (used.directory, unused, other_release.directory, new.directory)))

    def test_is_kept_while_its_machines_may_run(self) -> None:
        descriptor = os.open(images.get(13).directory, os.O_RDONLY)
        self.addCleanup(os.close, descriptor)
        self.assertRaises(BlockingIOError, fcntl.flock, descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_a_build_that_fails_says_how_and_leaves_no_image(self) -> None:
        self.write('#!/bin/sh\necho "no space left" >&2\nexit 1\n')
        failed = self.assertRaises(images.CannotBuild, images.get, 13)
        self.assertRegex(str(failed), r'(?s)no space left.*\.log has the rest')
        self.write(BUILD)
        self.assertTrue(images.get(13).disk.exists())

    def test_building_takes_root_and_an_image_that_is_there_does_not(self) -> None:
        self.patch(os, 'geteuid', lambda: 1000)
        self.assertRaisesRegex(images.CannotBuild, 'takes root', images.get, 13)
        self.patch(os, 'geteuid', lambda: 0)
        image = images.get(13)
        self.patch(os, 'geteuid', lambda: 1000)
        self.assertEqual(image, images.get(13))


class MirrorTestCase(base.TestCase):

    def test_is_the_one_of_this_machine(self) -> None:
        self.assertRegex(images.mirror(), r'^[a-z+]+:/')
