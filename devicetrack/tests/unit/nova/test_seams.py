"""That the adapter refuses a Nova which it does not know, and says what it does not know."""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any
from unittest import mock

from testtools import matchers

from devicetrack import exception
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
