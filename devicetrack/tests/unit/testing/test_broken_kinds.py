"""The example of a kind in a package of its own, and kinds like it that break one promise each: a test notices."""

from __future__ import annotations

from collections.abc import Mapping
import os
import subprocess
import sys
import threading
from typing import Any
import unittest

import fixtures
from oslo_versionedobjects import fields

from devicetrack import exception
from devicetrack.objects import base as object_base
from devicetrack.objects import details
from devicetrack.objects.values import Capacity
from devicetrack.objects.values import MigrationType
from devicetrack.testing.kinds import contract
from devicetrack.tests import base
from devicetrack.tests.unit.testing import scratch_package
from devicetrack.tests.unit.testing import test_kind_contract
from devicetrack.virt.libvirt import guest_xml
from devicetrack.virt.libvirt.kinds import api
from devicetrack.virt.libvirt.kinds import mdev


@object_base.register
class LabelDetails(details.DeviceDetails):
    """``label`` is None while the host does not tell it."""

    VERSION = '1.0'
    IDENTITY = ('label',)
    fields = {'label': fields.StringField(nullable=True), 'size_bytes': fields.NonNegativeIntegerField()}


@object_base.register
class CardDetails(details.DeviceDetails):
    """``card`` is the name of a card, or that of the card of a part."""

    VERSION = '1.0'
    fields = {'handle': fields.StringField(nullable=True), 'size_bytes': fields.NonNegativeIntegerField(),
              'card': fields.StringField(), 'is_part': fields.BooleanField()}


def cards(scratch: Any) -> type[Any]:
    """Make a right kind beside the example's: the file ``three`` is a card, and the others are its parts."""
    class Cards(scratch.Scratch):
        CARD = 'three'

        def _device(self, name: str, *arguments: Any) -> Any:
            device, is_part = super()._device(name, *arguments), name != self.CARD
            known = details.from_text(device.details)
            return device._replace(
                parent=self.CARD if is_part else None, exclusions=(('card', 'part' if is_part else 'whole'),),
                details=details.to_text(CardDetails(handle=known.handle, size_bytes=known.size_bytes, card=self.CARD,
                                                    is_part=is_part)))

        def parts(self, assignment: Any) -> list[str]:
            return [] if assignment.details.is_part else [
                self._path(name) for name in os.listdir(self._directory) if name != self.CARD]

        def unclaim(self, assignment: Any, lock_fd: int) -> None:
            super().unclaim(assignment, lock_fd)
            for path in self.parts(assignment):
                size = os.path.getsize(path)
                os.truncate(path, 0)
                os.truncate(path, size)

        def _has_no_blocks(self, assignment: Any) -> bool:
            return super()._has_no_blocks(assignment) and not any(
                os.stat(path).st_blocks for path in self.parts(assignment))

        def read_through(self, assignment: Any, lock_fd: int, stop: Any) -> None:
            super().read_through(assignment, lock_fd, stop)
            for path in self.parts(assignment):
                with open(path, 'rb') as file:
                    if any(file.read()):
                        raise exception.NotProven(self.name, assignment.identifier, f'{path} has bytes')

        def within_reach(self, owned: Any, proven: Any) -> Any:
            whole = {known.card for known in map(details.from_text, owned) if not known.is_part}
            return [name for name, known in ((name, details.from_text(text)) for name, text in proven.items())
                    if known.is_part and known.card in whole]

        def check_unused(self, assignment: Any) -> None:
            self._check_is_free(assignment)

    return Cards


def broken_cards(right: Any, scratch: Any) -> dict[str, tuple[dict[str, Any], str]]:
    """As :func:`broken`, for the kind of :func:`cards` and one test each."""
    def only_there(self: Any, owned: Any, proven: Any) -> Any:
        return [name for name in right.within_reach(self, owned, proven) if os.path.exists(self._path(name))]

    def of_any_owner(self: Any, owned: Any, proven: Any) -> Any:
        return [name for name in proven if name != self.CARD]

    def nothing_kept(self: Any) -> Any:
        found = right.stock(self)
        return found._replace(nothing_kept=[one.identifier for one in found.devices])

    def used(self: Any, assignment: Any) -> None:
        raise exception.DeviceInUse(self.name, assignment.identifier, 'by somebody')

    return {
        'a card that leaves the bytes of its parts': ({'unclaim': scratch.Scratch.unclaim}, 'goes_with_the_whole'),
        'a card without the reach of its parts': ({'within_reach': api.DeviceKind.within_reach}, 'reaches_its_parts'),
        'the reach of what is there': ({'within_reach': only_there}, 'reaches_its_parts'),
        'the reach of neighbours': ({'within_reach': of_any_owner}, 'reaches_no_neighbour'),
        'a card that is blank without a look at its parts': ({'_has_no_blocks': scratch.Scratch._has_no_blocks},
                                                             'not_proven_clean_while_a_part'),
        'a card that is read without its parts': ({'read_through': scratch.Scratch.read_through},
                                                  'not_proven_clean_while_a_part'),
        'nothing kept, and no device named': ({'keeps_nothing': lambda self, assignment: True}, 'names_what_keeps'),
        'devices named, and something kept': ({'stock': nothing_kept}, 'names_what_keeps'),
        'a use that nobody looks for': ({'check_unused': lambda self, assignment: None}, 'taken_back_is_unused'),
        'a use by nobody': ({'check_unused': used}, 'taken_back_is_unused'),
    }


class ExampleTestCase(base.TestCase):

    def test_a_package_runs_the_contract_where_it_is_installed(self) -> None:
        package = self.useFixture(scratch_package.Installed())
        answer = subprocess.run(
            [sys.executable, '-W', 'ignore', '-m', 'unittest', '-v', 'scratch_kind.tests.test_contract'],
            env={**os.environ, 'PYTHONPATH': os.pathsep.join((package.path, str(scratch_package.EXAMPLE.parents[1])))},
            cwd=self.temp_dir(), capture_output=True, text=True, check=False, timeout=base.HANGS_S)
        self.assertEqual(0, answer.returncode, answer.stderr)
        self.assertIn('OK (skipped=3)', answer.stderr)
        for reason in ('the kind makes no devices', 'the world names no IOMMU groups', 'the world names no parts'):
            self.assertIn(f'skipped {reason!r}', answer.stderr)


def broken(scratch: Any) -> dict[str, tuple[dict[str, Any], tuple[str, ...]]]:
    """What a class beside the example's kind has, and which tests fail for it, by the broken promise."""
    kind, text = scratch.Scratch, details.to_text

    def stock_with(**fields: Any) -> Any:
        def stock(self: Any) -> api.Stock:
            found = kind.stock(self)
            return found._replace(devices=[one._replace(**{
                name: value(one) if callable(value) else value for name, value in fields.items()})
                for one in found.devices])
        return stock

    def two_types(self: Any) -> api.Stock:
        found = kind.stock(self)
        return found._replace(capacities=[
            Capacity(one.kind, 'parent', device_type, '', one.resource_class, None, 0, one.details)
            for one in found.devices[:1] for device_type in ('big', 'small')])

    def numbered(self: Any) -> api.Stock:
        self.__class__.count = getattr(self.__class__, 'count', 0) + 1
        found = kind.stock(self)
        return found._replace(devices=[one._replace(identifier=f'{one.identifier}-{self.count}')
                                       for one in found.devices])

    def empty(self: Any) -> api.Stock:
        try:
            return kind.stock(self)
        except exception.DriverError:
            return api.Stock()

    def unguarded(self: Any) -> api.Stock:
        found = kind.stock(self)
        for one in found.devices:
            with open(self._path(one.identifier), 'rb'):
                pass
        return found

    def empty_on_error(self: Any) -> api.Stock:
        try:
            return unguarded(self)
        except FileNotFoundError:
            return api.Stock()

    def by_boot(self: Any) -> api.Stock:
        found = kind.stock(self)
        return found._replace(devices=[one._replace(details=text(scratch.ScratchDetails(
            handle=self.boot_id() + one.identifier, size_bytes=1))) for one in found.devices])

    def remembering(self: Any) -> api.Stock:
        found = kind.stock(self)
        seen = self.__class__.__dict__.get('seen') or {}
        seen.update({one.identifier: one for one in found.devices})
        self.__class__.seen = seen
        return found._replace(devices=list(seen.values()))

    def any_file(self: Any, assignment: Any) -> str:
        return str(self._path(assignment.identifier))

    def any_status(self: Any, assignment: Any) -> Any:
        return os.stat(self._directory)

    def uncleaned(self: Any, assignment: Any, lock_fd: int) -> None:
        self._check_is_free(assignment)

    def cleaned_unseen(self: Any, assignment: Any, lock_fd: int) -> None:
        self._check_is_free(assignment)
        try:
            sys.modules['scratch_kind.privileged'].clear(
                self._directory, assignment.identifier, assignment.details.handle, assignment.details.size_bytes)
        except OSError as error:
            raise exception.UnclaimFailed(self.name, assignment.identifier, str(error)) from error

    def cleaned_open(self: Any, assignment: Any, lock_fd: int) -> None:
        self._check_is_free(assignment)
        os.truncate(self._path(assignment.identifier), 0)
        os.truncate(self._path(assignment.identifier), assignment.details.size_bytes)

    def plain_error(self: Any, assignment: Any, lock_fd: int) -> None:
        self._check_is_free(assignment)
        sys.modules['scratch_kind.privileged'].clear(
            self._directory, assignment.identifier, assignment.details.handle, assignment.details.size_bytes)

    def cleaned_all(self: Any, assignment: Any, lock_fd: int) -> None:
        kind.unclaim(self, assignment, lock_fd)
        for name in os.listdir(self._directory):
            os.truncate(self._path(name), 0)
            os.truncate(self._path(name), assignment.details.size_bytes)

    def removed(self: Any, assignment: Any, lock_fd: int) -> None:
        kind.unclaim(self, assignment, lock_fd)
        os.unlink(self._path(assignment.identifier))

    def writing(self: Any, assignment: Any, lock_fd: int, stop: Any) -> None:
        os.truncate(self._path(assignment.identifier), 0)

    def reading_writes(self: Any) -> api.Stock:
        with open(self._path('.lock'), 'w'):
            pass
        os.unlink(self._path('.lock'))
        return kind.stock(self)

    def wrong_key(self: Any, assignment: Any) -> Any:
        return kind.realize(self, assignment)._replace(key=('scratch', 'other'))

    def asks(self: Any, domain: Any) -> Any:
        return [path for path in domain.memory_paths if os.listdir('/')]

    def greedy(self: Any, addresses: Any) -> Any:
        return {address: os.path.basename(address) for address in addresses}

    def everything(self: Any, addresses: Any) -> Any:
        return dict.fromkeys(addresses, 'one')

    def literal(self: Any, addresses: Any) -> Any:
        return {address: os.path.basename(address) if os.path.dirname(address) == self._directory else None
                for address in addresses}

    def working(self: Any, conf: Any, hypervisor: Any) -> None:
        kind.__init__(self, conf, hypervisor)
        os.listdir('/')

    def sorted_elements(self: Any, assignments: Any) -> Any:
        return sorted(kind.guest_elements(self, assignments))

    def one_more(self: Any, assignments: Any) -> Any:
        return [*kind.guest_elements(self, assignments), '<memory/>']

    def numbered_elements(self: Any, assignments: Any) -> Any:
        return [element.replace("access='shared'", f"access='shared' number='{number}'")
                for number, element in enumerate(kind.guest_elements(self, assignments))]

    def relative(self: Any, assignments: Any) -> Any:
        return [element.replace(f'<path>{self._directory}/', '<path>') for element in kind.guest_elements(
            self, assignments)]

    def sourceless(self: Any, assignments: Any) -> Any:
        return [element.replace('virtio-pmem', 'dimm') for element in kind.guest_elements(self, assignments)]

    def blind_reading(self: Any, assignment: Any, lock_fd: int, stop: Any) -> None:
        kind.read_through(self, assignment, lock_fd, threading.Event())

    def no_reading(self: Any, assignment: Any, lock_fd: int, stop: Any) -> None:
        raise exception.NotProven(self.name, assignment.identifier, 'it is never read')

    def failing(self: Any, recorded: Any, locked: Any) -> None:
        raise RuntimeError('in its code')

    def clearing(self: Any, recorded: Any, locked: Any) -> None:
        for name in recorded:
            size = os.stat(self._path(name)).st_size
            os.truncate(self._path(name), 0)
            os.truncate(self._path(name), size)

    def migration_types(self: Any) -> Any:
        return [MigrationType('scratch', 'no such parent', 'no such type')]

    configured = property(lambda self: True)
    return {
        'no kind by its entry point': ({}, ('entry_point',)),
        'configured without options': ({'configured': configured}, ('without_its_options',)),
        'unhealthy without a reason in the host': ({'stock': stock_with(unhealthy='?')}, ('has_the_devices',)),
        'one node for all': ({'node': lambda self, device: '/srv/x'}, ('place_of_its_own',)),
        'no node': ({'node': lambda self, device: None}, ('another_kind_that_offers',)),
        'the node of another device': ({'node': lambda self, device: f'/srv/{device.identifier}'},
                                       ('another_kind_that_offers',)),
        'a provider that no placement takes': ({'stock': stock_with(provider='a/\n' * 100)}, ('has_the_devices',)),
        'a parent that no command takes': ({'stock': stock_with(parent='a/b')}, ('has_the_devices',)),
        'a preparation that fails': ({'prepare': failing}, ('preparing',)),
        'a preparation that clears': ({'prepare': clearing}, ('preparing',)),
        'numbers for names': ({'stock': numbered}, ('keeps_its_identifier',)),
        'identity by the boot': ({'stock': by_boot}, ('same_after_a_boot',)),
        'identity by the name alone': ({'stock': stock_with(details=text(scratch.ScratchDetails(
            handle='1', size_bytes=1)))}, ('has_another_identity',)),
        'a memory of what was there': ({'stock': remembering}, ('in_stock_no_more',)),
        'empty for unknown': ({'stock': empty}, ('unknown_and_not_empty',)),
        'a file that is gone by now': ({'stock': unguarded}, ('vanishes_while_the_stock',)),
        'nothing for one that is gone by now': ({'stock': empty_on_error}, ('vanishes_while_the_stock',)),
        'details with spaces': ({'stock': stock_with(details=lambda one: one.details + ' ')}, ('survive_the_store',)),
        'features in disorder': ({'stock': stock_with(features=('red', 'big'))}, ('facts_of_devices_are_well_formed',)),
        'a feature twice': ({'stock': stock_with(features=('big', 'big'))}, ('facts_of_devices_are_well_formed',)),
        'a token twice': ({'stock': stock_with(exclusions=(('x', 'part'), ('x', 'whole')))},
                          ('facts_of_devices_are_well_formed',)),
        'a migration type that its details do not have': ({'stock': stock_with(migration_type='y')},
                                                          ('facts_of_devices_are_well_formed',)),
        'two types of one class at a parent': ({'stock': two_types}, ('one_type_of_a_resource_class',)),
        'another NUMA node': ({'stock': stock_with(numa_node=0)}, ('numa_node',)),
        'no exclusions': ({'stock': stock_with(exclusions=())}, ('excludes_each_other',)),
        'everything excludes everything': ({'stock': stock_with(exclusions=(('all', 'whole'),))},
                                           ('exclude_nobody',)),
        'no look at the host': ({'_used_by_host': lambda self: {}},
                                ('unhealthy_until', 'host_uses_is_not_touched')),
        'a type that no device has': ({'migration_types': migration_types}, ('live_migrations',)),
        'elements in another order': ({'guest_elements': sorted_elements}, ('is_read_as_the_same',)),
        'elements by their place': ({'guest_elements': numbered_elements}, ('alone_and_beside',)),
        'an element too many': ({'guest_elements': one_more}, ('no_device_is_no_element',)),
        'elements with relative paths': ({'guest_elements': relative}, ('name_absolute_paths',)),
        'elements without a path': ({'guest_elements': sourceless}, ('is_read_as_the_same', 'source_is_damaged')),
        'every address is a device': ({'identify': everything}, ('of_others_are_ignored', 'mean_no_device')),
        'devices by the end of a path': ({'identify': lambda self, addresses: {
            address: 'two' for address in addresses if not os.path.exists(address)} | greedy(self, addresses)},
            ('other_addresses',)),
        'devices by the letters of a path': ({'identify': literal}, ('other_addresses_of_a_device',)),
        'no look at disks': ({'other_addresses': lambda self, domain: []},
                             ('element_of_another_sort',)),
        'I/O while a definition is read': ({'addresses': asks}, ('reading_a_definition_asks_nobody',)),
        'I/O while it says what a device is': ({'node': asks}, ('contains_it_asks_nobody',)),
        'another form': ({'form': guest_xml.MDEV}, ('takes_the_place',)),
        'any file of the name': ({'_check_is_the_device': any_file, '_status': any_status}, (
            'another_device_of_the_name_has_no_element', 'of_the_name_is_not_touched', 'went_away_is_gone',
            'is_gone_has_no_element')),
        'another key': ({'realize': wrong_key}, ('made_ready',)),
        'taken back and gone': ({'unclaim': removed}, ('may_be_repeated',)),
        'no cleaning': ({'unclaim': uncleaned}, ('holds_nothing', 'not_given_back', 'called_clean')),
        'cleaning without a look': ({'unclaim': cleaned_unseen}, ('not_given_back',)),
        'cleaning of all': ({'unclaim': cleaned_all}, ('neighbour',)),
        'everything is blank': ({'is_blank': lambda self, all: [one.identifier for one in all]}, ('not_blank',)),
        'reading that writes': ({'read_through': writing}, ('changes_nothing',)),
        'reading that does not stop': ({'read_through': blind_reading}, ('stopped_proves_nothing',)),
        'no reading to the end': ({'read_through': no_reading}, ('read_to_its_end',)),
        'untouched without a look': ({'is_untouched': lambda self, assignment: True}, (
            'went_away_is_not_untouched', 'of_the_name_is_not_untouched', 'host_uses_is_not_untouched')),
        'work in the constructor': ({'__init__': working}, ('making_the_kind',)),
        'a stock that writes': ({'stock': reading_writes}, ('reading_changes',)),
        'errors of Python': ({'unclaim': plain_error}, ('without_privileges',)),
        'a claim without a look at processes': ({'check_free': lambda self, assignment: None},
                                                ('open_goes_to_nobody',)),
        'blank without a look at processes': ({'opened': lambda self, names: ()}, ('open_goes_to_nobody',)),
        'cleaning without a look at processes': ({'unclaim': cleaned_open}, ('open_is_not_taken_back',)),
    }


class BrokenKindsTestCase(base.TestCase):
    """Each broken promise is caught by the test of that promise, and each test catches one."""

    def setUp(self) -> None:
        super().setUp()
        self.package = self.useFixture(scratch_package.Loaded())

    def failing(self, cls: type[Any], attributes: Mapping[str, Any] = {}, part: str = '') -> dict[str, str]:
        """The tests that fail for a kind, with the text of the failure.

        :param part: only tests with this in their names run
        """
        its_world = type('World', (self.package.tests.ScratchWorld,), {'kind_class': cls, **attributes})
        case = type('Case', (contract.KindContract,), {'world_class': its_world})
        found = {}
        for name in unittest.defaultTestLoader.getTestCaseNames(case):
            if part not in name:
                continue
            result = unittest.TestResult()
            case(name).run(result)
            for one, reason in (*result.failures, *result.errors):
                found[one._testMethodName] = reason
        return found

    def test_the_example_breaks_nothing(self) -> None:
        self.assertEqual({}, self.failing(self.package.kind.Scratch))

    def test_every_broken_promise_is_noticed(self) -> None:
        missed, caught = [], set()
        for promise, (members, tests) in broken(self.package.kind).items():
            failing = self.failing(type('Broken', (self.package.kind.Scratch,), members))
            caught |= set(failing)
            missed += [f'{promise}: {test}' for test in tests if not any(test in name for name in failing)]
        right, its_world = self.cards()
        for promise, (members, test) in broken_cards(right, self.package.kind).items():
            failing = self.failing(type('Broken', (right,), members), its_world, test)
            caught |= set(failing)
            if not failing:
                missed.append(f'{promise}: {test}')
        self.assertEqual([], missed)
        self.others(caught)

    def cards(self) -> tuple[Any, dict[str, Any]]:
        return cards(self.package.kind), {
            'rivals': (), 'parts': {'three': ['one', 'two']}, 'layers': ()}     # this module is in the way of the last

    def test_two_parts_of_one_card_may_be_the_devices_of_a_world(self) -> None:
        right, its_world = self.cards()
        # The entry point names the example's class.
        self.assertEqual({'test_an_entry_point_leads_to_the_kind'}, set(self.failing(right, its_world)))

    def others(self, caught: set[str]) -> None:
        """What a class cannot break is broken in the module, the details, the privileged code, or the parts."""
        scratch = self.package.kind.Scratch
        caught |= set(self.failing(scratch, {'layers': ('objects',)}))
        self.assertIn('test_the_kind_imports_no_part_above_it', caught)
        with fixtures.MonkeyPatch('scratch_kind.privileged.clear_as_root', lambda *_arguments: 0):
            failing = set(self.failing(scratch))
            self.assertIn('test_privileged_functions_refuse_what_is_not_theirs', failing)
            caught |= failing
        with fixtures.MonkeyPatch('scratch_kind.kind.ScratchDetails.IDENTITY', ('serial',)):
            failing = set(self.failing(scratch))
            self.assertIn('test_details_name_their_identity', failing)
            caught |= failing
        for facts, test in (({'groups': {'one': 1, 'two': 1}}, 'test_devices_of_one_iommu_group_go_together'),
                            ({'parts': {'one': ['two']}}, 'test_a_whole_excludes_its_parts')):
            failing = set(self.failing(scratch, facts))
            self.assertIn(test, failing)
            caught |= failing
        every = set(unittest.defaultTestLoader.getTestCaseNames(contract.KindContract))
        self.assertEqual({'test_a_device_that_was_made_goes_when_it_is_taken_back'}, every - caught)

    def test_a_device_without_its_label_that_counts_as_healthy_is_noticed(self) -> None:
        scratch, its_world = self.package.kind.Scratch, self.package.tests.ScratchWorld

        class Labelled(scratch):  # type: ignore[valid-type]
            """The identity of a file is a label in a file beside it."""

            def _device(self, name: str, status: Any, handle: Any, used: Any) -> Any:
                known = LabelDetails(label=self.label(name), size_bytes=status.st_size)
                return super()._device(name, status, handle, used)._replace(details=details.to_text(known))

            def label(self, name: str) -> str | None:
                try:
                    with open(f'{self._directory}.labels/{name}', encoding='utf-8') as file:
                        return file.read()
                except FileNotFoundError:
                    return None

            def _check_is_the_device(self, assignment: Any) -> str:
                label = self.label(assignment.identifier)
                if label is None:
                    raise exception.CommandFailed('read', f'the label of {assignment.identifier}')
                if label != assignment.details.label:
                    raise exception.DeviceGone(self.name, assignment.identifier, 'its label is another one')
                return str(self._path(assignment.identifier))

        class Careless(Labelled):
            def label(self, name: str) -> str:
                return super().label(name) or ''

        class Trusting(Labelled):
            def _check_is_the_device(self, assignment: Any) -> str:
                return str(self._path(assignment.identifier))

        class Concluding(Labelled):
            def _check_is_the_device(self, assignment: Any) -> str:
                if self.label(assignment.identifier) is None:
                    raise exception.DeviceGone(self.name, assignment.identifier, 'it has no label')
                return str(super()._check_is_the_device(assignment))

        class Prejudiced(Labelled):
            def unclaim(self, assignment: Any, lock_fd: int) -> None:
                if self.label(assignment.identifier) is None:
                    raise exception.DeviceGone(self.name, assignment.identifier, 'it has no label')
                super().unclaim(assignment, lock_fd)

        class LabelledWorld(its_world):  # type: ignore[valid-type]
            def make_host(self) -> None:
                super().make_host()
                os.mkdir(f'{self.directory}.labels')
                for name in os.listdir(self.directory):
                    with open(f'{self.directory}.labels/{name}', 'w', encoding='utf-8') as file:
                        file.write(f'label of {name}')

            def hide_identity(self, identifier: str) -> None:
                os.unlink(f'{self.directory}.labels/{identifier}')

        found = []
        for cls in (Labelled, Careless, Trusting, Concluding, Prejudiced):
            case = type('Case', (contract.KindContract,), {
                'world_class': type('World', (LabelledWorld,), {'kind_class': cls})})
            result = unittest.TestResult()
            case('test_a_device_whose_identity_cannot_be_read_is_for_nobody').run(result)
            found.append((len(result.failures), len(result.errors), len(result.skipped)))
        self.assertEqual([(0, 0, 0), *[(1, 0, 0)] * 4], found)

    def test_what_was_made_and_stays_is_noticed(self) -> None:
        class Keeping(mdev.Mdev):
            def unclaim(self, assignment: Any, lock_fd: int) -> None:
                pass

        its_world = type('World', (test_kind_contract.MdevWorld,), {'kind_class': Keeping})
        case = type('Case', (contract.KindContract,), {'world_class': its_world})
        result = unittest.TestResult()
        case('test_a_device_that_was_made_goes_when_it_is_taken_back').run(result)
        self.assertEqual((1, 0), (len(result.failures), len(result.errors)), str(result.errors))
