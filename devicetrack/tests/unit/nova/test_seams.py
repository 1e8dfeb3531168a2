"""That the adapter refuses a Nova which it does not know, and says what it does not know."""

from __future__ import annotations

import functools
import importlib
import os
import pathlib
import shutil
import subprocess
from typing import Any
from unittest import mock

from testtools import matchers

from devicetrack import exception
from devicetrack.nova import package
from devicetrack.nova import seams
from devicetrack.tests import base
from devicetrack.tests.unit.nova import fake_nova
from devicetrack.tests.unit.nova.fake_nova import BOOT
from devicetrack.tests.unit.nova.fake_nova import CLAIM
from devicetrack.tests.unit.nova.fake_nova import DROP
from devicetrack.tests.unit.nova.fake_nova import XML

TRACKER, MANAGER = 'compute/tracker.py', 'compute/manager.py'


class SeamsTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.nova = self.useFixture(fake_nova.FakeNova())

    def check(self) -> None:
        seams.check(fake_nova.TARGETS, self.nova.tables)

    def differences(self) -> list[str]:
        error = self.assertRaises(exception.UnknownNova, self.check)
        self.assertIn('33.1.0', str(error))
        for difference in error.differences:
            self.assertIn(difference, str(error))
        return list(error.differences)


class FilesTestCase(SeamsTestCase):

    def test_a_release_after_the_known_ones_that_changed_nothing_of_ours_is_known(self) -> None:
        self.nova.change(MANAGER, 'def stop(self, instance)', 'def stop(self, instance, hard=False)')
        self.check()

    def test_what_changes_no_behaviour_is_no_change(self) -> None:
        self.nova.change(TRACKER, '"""Take devices."""\n        # They are taken here.\n',
                         '"""Take devices.\n\n        Return them.\n        """\n\n        # Here.   \n\n')
        self.check()

    def test_an_annotation_is_no_change_of_the_signature_but_one_of_the_source(self) -> None:
        self.nova.change(TRACKER, 'limits: dict = None', 'limits=None')
        [difference] = self.differences()
        self.assertThat(difference, matchers.StartsWith(f'{CLAIM}: its source differs ('))

    def test_a_method_that_is_gone(self) -> None:
        self.nova.change(TRACKER, 'def drop(', 'def leave(')
        self.assertEqual([f'{DROP}: missing'], self.differences())

    def test_a_parameter_that_is_new(self) -> None:
        self.nova.change(TRACKER, 'def drop(self, instance)', 'def drop(self, instance, *, node=None)')
        self.assertEqual([f'{DROP}: its signature is (self, instance, *, node=None), but known is (self, instance)'],
                         self.differences())

    def test_another_body(self) -> None:
        self.nova.change(TRACKER, 'return instance\n', 'return instance.uuid\n')
        [difference] = self.differences()
        self.assertThat(difference, matchers.StartsWith(f'{DROP}: its source differs ('))

    def test_a_change_within_a_string_is_a_change(self) -> None:
        self.nova.change(TRACKER, '        # {limits}\n\n', '        # {limits}\n')
        [difference] = self.differences()
        self.assertThat(difference, matchers.StartsWith(f'{CLAIM}: its source differs ('))

    def test_another_decorator(self) -> None:
        self.nova.change(TRACKER, "name='tracker'", "name='devices'")
        [difference] = self.differences()
        self.assertThat(difference, matchers.StartsWith(f'{CLAIM}: its source differs ('))

    def test_a_new_caller(self) -> None:
        self.nova.change(MANAGER, 'return instance\n', 'return getattr(self.tracker, "drop")(instance)\n')
        self.assertEqual(['nova.compute.manager:Manager.stop: a new caller of drop'], self.differences())

    def test_a_caller_in_a_new_file(self) -> None:
        self.nova.write('virt/libvirt/more.py', 'from nova.virt.libvirt.xml import guest_xml\n')
        self.assertEqual(['nova.virt.libvirt.more:: a new caller of guest_xml'], self.differences())

    def test_a_caller_that_changed(self) -> None:
        self.nova.change(MANAGER, 'tracker.claim(instance),', 'tracker.drop(instance), tracker.claim(instance),')
        [difference] = self.differences()
        self.assertThat(difference, matchers.StartsWith(
            f'{BOOT}: it calls claim, drop, guest_xml, drop anew, and its source differs ('))

    def test_a_caller_that_is_gone(self) -> None:
        self.nova.change(MANAGER, 'tracker.claim(instance), xml.guest_xml(instance)', 'None')
        self.assertEqual([f'{BOOT}: it no longer calls claim, guest_xml, or is gone'], self.differences())

    def test_every_difference_is_named(self) -> None:
        self.nova.change(TRACKER, 'def drop(self, instance)', 'def drop(self)')
        self.nova.change('virt/libvirt/xml.py', 'guest_xml', 'domain_xml')
        self.assertEqual([DROP, XML], [one.partition(': ')[0] for one in self.differences()])

    def test_a_module_without_a_source_file(self) -> None:
        os.unlink(self.nova.root / 'virt/libvirt/xml.py')
        self.assertEqual([f'{XML}: its module has no source file'], self.differences())

    def test_either_form_of_two_known_releases(self) -> None:
        self.nova.change(TRACKER, 'return instance\n', 'return instance.uuid\n')
        self.nova.know('33.0.1')
        self.check()
        self.nova.write(TRACKER, fake_nova.FILES[TRACKER])
        self.check()

    def test_a_caller_that_one_known_release_has_may_be_there_or_not(self) -> None:
        self.nova.change(MANAGER, 'return instance\n', 'return self.tracker.drop(instance)\n')
        self.nova.know('33.0.1')
        self.check()
        self.nova.write(MANAGER, fake_nova.FILES[MANAGER])
        self.check()

    def test_another_major_version_is_compared_with_the_nearest_and_refused(self) -> None:
        self.nova.write('version.py', 'def version_string():\n    return "35.0.0.0rc1"\n')
        error = self.assertRaises(exception.UnknownNova, self.check)
        self.assertEqual(((), '35.0.0.0rc1', ('33.0.0',)), (error.differences, error.release, error.known))
        self.nova.change(TRACKER, 'def drop(', 'def leave(')
        error = self.assertRaises(exception.UnknownNova, self.check)
        self.assertEqual((f'{DROP}: missing',), error.differences)

    def test_a_method_that_no_table_has_is_unknown(self) -> None:
        error = self.assertRaises(exception.UnknownNova, seams.check,
                                  [*fake_nova.TARGETS, 'nova.compute.manager:Manager.stop'], self.nova.tables)
        self.assertIn('nova.compute.manager:Manager.stop: no known release has it', error.differences)


class OperatorTestCase(SeamsTestCase):
    """A distribution patches a release. An operator reads the patch, and accepts it."""

    def setUp(self) -> None:
        super().setUp()
        self.operators = self.nova.path / 'operators'
        self.operators.mkdir()
        self.nova.write('../nova-33.1.0.dist-info/METADATA', 'Name: nova\nVersion: 33.1.0\n')

    def check(self) -> None:
        seams.check(fake_nova.TARGETS, self.nova.tables, self.operators)

    def check_package(self, path: pathlib.Path, table: str | None = None) -> list[str]:
        with package.opened(path) as found:
            return seams.check_package(found, self.operators / table if table else None, self.nova.tables,
                                       self.operators)

    def patch_nova(self) -> None:
        self.nova.change(TRACKER, 'return instance\n', 'return instance.uuid\n')

    def test_a_patch_that_nobody_accepted_is_refused_before_it_is_installed_and_after(self) -> None:
        self.assertEqual([], self.check_package(self.nova.path))
        self.patch_nova()
        error = self.assertRaises(exception.UnknownNova, self.check_package, self.nova.path)
        self.assertThat(str(error), matchers.Contains(f'{DROP}: its source differs ('))
        self.assertEqual(list(error.differences), self.differences())

    def test_an_accepted_patch_is_known_and_the_release_without_it_too(self) -> None:
        self.patch_nova()
        [accepted] = self.check_package(self.nova.path, 'patched.txt')
        self.assertThat(accepted, matchers.StartsWith(DROP))
        self.check()
        self.assertEqual([], self.check_package(self.nova.root))
        self.nova.write(TRACKER, fake_nova.FILES[TRACKER])
        self.check()

    def test_another_patch_is_not_accepted_with_it(self) -> None:
        self.patch_nova()
        self.check_package(self.nova.path, 'patched.txt')
        self.nova.change(TRACKER, 'return instance\n', 'return None\n')
        [difference] = self.differences()
        self.assertThat(difference, matchers.StartsWith(DROP))

    def test_a_table_that_was_made_for_fewer_targets_says_nothing_of_the_callers_of_others(self) -> None:
        self.check_package(self.nova.path, 'old.txt')
        old = self.operators / 'old.txt'
        old.write_text(''.join(line for line in old.read_text().splitlines(keepends=True)
                               if CLAIM not in line and BOOT not in line))
        self.nova.change(MANAGER, 'tracker.claim(instance), xml.guest_xml(instance)', 'None')
        self.assertEqual([f'{BOOT}: it no longer calls claim, guest_xml, or is gone'], self.differences())

    def test_no_operator_accepts_a_major_version_that_was_not_tested(self) -> None:
        self.nova.write('version.py', 'def version_string():\n    return "35.0.0"\n')
        self.nova.write('../nova-33.1.0.dist-info/METADATA', 'Name: nova\nVersion: 35.0.0\n')
        self.assertRaises(exception.UnknownNova, self.check_package, self.nova.path, 'new.txt')
        self.assertEqual([], os.listdir(self.operators))
        self.assertRaises(exception.UnknownNova, self.check_package, self.nova.path)
        (self.operators / 'new.txt').write_text('release 35.0.0\n')
        self.assertRaises(exception.UnknownNova, self.check)

    def test_a_table_that_cannot_be_read_is_named(self) -> None:
        (self.operators / 'torn.txt').write_text(f'release 33.0.0\nuses {DROP} 01\n')
        error = self.assertRaises(exception.InvalidConfiguration, self.check)
        self.assertThat(str(error), matchers.Contains(f'torn.txt: not a line of a table: uses {DROP} 01'))

    def test_a_debian_package_is_read_without_being_installed(self) -> None:
        self.patch_nova()
        tree = self.nova.path / 'tree'
        python = tree / 'usr/lib/python3/dist-packages'
        shutil.copytree(self.nova.root, python / 'nova')
        shutil.copytree(self.nova.path / 'nova-33.1.0.dist-info', python / 'nova-33.1.0.egg-info')
        (python / 'nova-33.1.0.egg-info/METADATA').rename(python / 'nova-33.1.0.egg-info/PKG-INFO')
        (tree / 'DEBIAN').mkdir()
        (tree / 'DEBIAN/control').write_text(
            'Package: python3-nova\nVersion: 2:33.1.0-6+deb13u2\nArchitecture: all\nMaintainer: a\nDescription: b\n')
        script = tree / 'DEBIAN/preinst'
        script.write_text(f'#!/bin/sh\ntouch {self.nova.path}/ran\n')
        script.chmod(0o755)
        deb = self.nova.path / 'nova.deb'
        subprocess.run(['dpkg-deb', '--root-owner-group', '--build', tree, deb], check=True, capture_output=True)
        error = self.assertRaises(exception.UnknownNova, self.check_package, deb)
        self.assertEqual(('33.1.0-6+deb13u2', 1), (error.release, len(error.differences)))
        self.check_package(deb, 'patched.txt')
        self.assertEqual([], self.check_package(deb))
        self.assertFalse((self.nova.path / 'ran').exists())

    def test_what_is_no_package_of_nova_is_named(self) -> None:
        (self.nova.path / 'torn.deb').write_text('!<arch>\n')
        shutil.copytree(self.nova.root, self.operators / 'nova')
        for path, reason in ((self.nova.path / 'torn.deb', 'torn.deb'),
                             (self.nova.path / 'gone', 'gone'),
                             (self.nova.tables, 'there is no Nova in it'),
                             (self.nova.path, 'it has several: '),
                             (self.operators, 'gives its release')):
            error = self.assertRaises(exception.InvalidConfiguration, self.check_package, path)
            self.assertThat(str(error), matchers.Contains(reason))


class ProcessTestCase(SeamsTestCase):
    """Another plugin may have changed Nova before us: then the files do not say what runs."""

    def loaded(self, target: str) -> tuple[Any, str]:
        module, _colon, path = target.partition(':')
        owner: Any = importlib.import_module(module)
        *parents, name = path.split('.')
        for parent in parents:
            owner = getattr(owner, parent)
        return owner, name

    def replace(self, target: str, replacement: Any) -> None:
        owner, name = self.loaded(target)
        setattr(owner, name, replacement)

    def changed(self, target: str) -> None:
        [difference] = self.differences()
        self.assertThat(difference, matchers.StartsWith(f'{target}: changed in this process by '))
        self.assertIn(os.path.basename(__file__), difference)

    def test_a_method_that_is_another_function(self) -> None:
        self.replace(DROP, lambda self, instance: None)
        self.changed(DROP)

    def test_a_method_that_is_wrapped(self) -> None:
        owner, name = self.loaded(CLAIM)
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args: Any) -> Any:
            return original(*args)

        self.replace(CLAIM, wrapped)
        self.changed(CLAIM)

    def test_a_method_that_is_wrapped_once_more_by_a_decorator_of_nova(self) -> None:
        owner, name = self.loaded(CLAIM)
        self.replace(CLAIM, importlib.import_module('nova.compute.tracker').locked('more')(getattr(owner, name)))
        [difference] = self.differences()
        self.assertThat(difference, matchers.StartsWith(f'{CLAIM}: changed in this process by '))

    def test_a_method_that_is_another_of_nova(self) -> None:
        owner, name = self.loaded(DROP)
        self.replace(DROP, owner.claim)
        [difference] = self.differences()
        self.assertThat(difference, matchers.StartsWith(f'{DROP}: changed in this process by '))

    def test_a_method_that_is_an_object(self) -> None:
        self.replace(DROP, mock.Mock())
        self.assertEqual([f'{DROP}: changed in this process by an object of unittest.mock.Mock'], self.differences())

    def test_a_method_that_was_taken_away(self) -> None:
        owner, name = self.loaded(DROP)
        delattr(owner, name)
        [difference] = self.differences()
        self.assertThat(difference, matchers.StartsWith(f'{DROP}: missing in this process'))

    def test_a_function(self) -> None:
        self.replace(XML, lambda guest: None)
        self.changed(XML)

    def test_a_caller(self) -> None:
        self.replace(BOOT, lambda self, tracker, instance: None)
        self.changed(BOOT)

    def test_what_the_files_say(self) -> None:
        for target in (*fake_nova.TARGETS, BOOT):
            self.loaded(target)
        self.check()
