"""Virtual functions as the options want them, on a host that is made of files."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import errno
import json
import os
from typing import Any

import fixtures

from devicetrack import exception
from devicetrack import filelock
from devicetrack.testing import pci_models
from devicetrack.tests import base
from devicetrack.tests.unit.virt import pci_functions
from devicetrack.tests.unit.virt import pci_hosts
from devicetrack.virt.libvirt import bounded
from devicetrack.virt.libvirt import pci_privileged
from devicetrack.virt.libvirt.kinds import pci
from devicetrack.virt.libvirt.kinds import pci_vfs

CARD = pci_hosts.CARD
VFS = {'vendor_id': '8086', 'product_id': '10ca'}
CARDS = {'vendor_id': '8086', 'product_id': '10c9'}


class RulesTestCase(base.TestCase):

    scenarios = base.table(
        ('a number', {'number': 8}, {'number': 8}),
        ('no number', {}, {}),
        ('null', {'number': None, 'autoprobe': None}, {}),
        ('with drivers', {'number': 8, 'autoprobe': True}, {'number': 8, 'autoprobe': True}),
        ('without', {'number': 8, 'autoprobe': 'no'}, {'number': 8, 'autoprobe': False}),
        ('private', {'private_namespaces': 'yes'}, {'private_namespaces': True}),
        names=('keys', 'fields'))

    def test_says(self) -> None:
        [rule] = pci_vfs.read([json.dumps({**CARDS, **self.keys})])
        self.assertEqual(pci_vfs.VFRule(rule.match)._replace(**self.fields), rule)
        self.assertTrue(rule.match.matches(pci_functions.PF))


class MistakesTestCase(base.TestCase):

    scenarios = base.table(
        ('a text', {**CARDS, 'number': '8'}, "key 'number': \"8\" is not a number of virtual functions"),
        ('none', {**CARDS, 'number': 0}, 'write one from 1 to 65535'),
        ('too many', {**CARDS, 'number': 65536}, 'write one from 1 to 65535'),
        ('yes', {**CARDS, 'number': True}, 'true is not a number'),
        ('a fraction', {**CARDS, 'number': 1.5}, '1.5 is not a number'),
        ('neither yes nor no', {**CARDS, 'autoprobe': 'maybe'}, "key 'autoprobe'"),
        ('another key', {**CARDS, 'numbers': 8}, "key 'numbers': there is no such key"),
        ('every function', {'number': 8}, 'it names every function'),
        names=('entry', 'reason'))

    def test_is_refused(self) -> None:
        error = self.assertRaises(exception.InvalidConfiguration, pci_vfs.read, [json.dumps(self.entry)])
        self.assertIn('[devicetrack_pci] vfs', str(error))
        self.assertIn(self.reason, str(error))


class VFsTestCase(pci_hosts.PCIHostTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host.add_igb(CARD)
        self.busy: set[str] = set()
        self.asked: list[str] = []

    def kind_with(self, *vfs: dict[str, Any], specs: tuple[dict[str, Any], ...] = (VFS,)) -> pci.PCI:
        self.configuration.set('devicetrack_pci', vfs=list(map(json.dumps, vfs)))
        return self.kind(*specs)

    def prepare(self, kind: pci.PCI, *recorded: str) -> dict[str, str]:
        """Do what an audit does, and return the faults by address."""
        @contextlib.contextmanager
        def locked(identifier: str) -> Iterator[bool]:
            self.asked.append(identifier)
            yield identifier not in self.busy

        kind.prepare(dict.fromkeys(recorded, '{}'), locked)
        faults = kind.stock().faults
        self.assertEqual({('pci', '[devicetrack_pci] vfs')} if faults else set(),
                         {(fault.key.kind, fault.option) for fault in faults})
        return {fault.key.identifier: fault.reason for fault in faults}

    def made(self) -> list[str]:
        return sorted(self.host.vfs_of(CARD))

    def test_are_made_and_offered(self) -> None:
        kind = self.kind_with({'address': CARD, 'number': 3, 'autoprobe': False})
        self.assertEqual({}, self.devices(kind))
        self.assertEqual({}, self.prepare(kind))
        self.assertEqual(['0000:03:10.0', '0000:03:10.2', '0000:03:10.4'], self.made())
        self.assertEqual([None] * 3, list(map(self.host.driver_of, self.made())))
        self.assertEqual(self.made(), list(self.devices(kind)))
        self.assertEqual([CARD], self.asked)
        written = list(self.host.written)
        for _audit in range(2):
            self.assertEqual({}, self.prepare(kind))
        self.assertEqual(written, self.host.written)

    def test_of_a_driver_that_always_makes_all_the_advice_ends(self) -> None:
        qat = '0000:08:00.0'
        self.host.add(qat, pci_models.QAT)
        kind = self.kind_with({'address': qat, 'number': 8})
        [first] = self.prepare(kind).values()
        self.assertIn('would do so again: write "number": 16', first)
        self.assertNotIn('sriov_numvfs', first)
        self.assertEqual([first], list(self.prepare(kind).values()))
        # A service that starts later has not seen that, and learns it again from whoever follows its advice.
        kind = self.kind_with({'address': qat, 'number': 8})
        self.assertIn('to keep them write "number": 16', self.prepare(kind)[qat])
        for vf in self.host.vfs_of(qat):
            self.host.remove(vf)
        self.assertEqual({qat: first}, self.prepare(kind))
        self.assertEqual({}, self.prepare(self.kind_with({'address': qat, 'number': 16})))

    def test_with_the_drivers_that_the_kernel_gives_them(self) -> None:
        self.prepare(self.kind_with({**CARDS, 'number': 2}))
        self.assertEqual(['igbvf'] * 2, list(map(self.host.driver_of, self.made())))

    def test_none_without_a_number_and_none_without_the_option(self) -> None:
        self.assertEqual({}, self.prepare(self.kind_with()))
        self.assertEqual({}, self.prepare(self.kind_with({**CARDS, 'private_namespaces': True})))
        self.assertEqual([], self.made())

    def test_the_first_rule_counts(self) -> None:
        other = self.host.add_igb('0000:05:00.0')
        self.prepare(self.kind_with({'address': CARD}, {**CARDS, 'number': 2}))
        self.assertEqual(([], 2), (self.made(), len(self.host.vfs_of(other))))

    def test_a_card_that_comes_later_has_them_too(self) -> None:
        kind = self.kind_with({**CARDS, 'number': 2})
        self.prepare(kind)
        other = self.host.add_igb('0000:05:00.0')
        self.prepare(kind)
        self.assertEqual(2, len(self.host.vfs_of(other)))

    def test_existing_ones_are_never_changed(self) -> None:
        before = self.host.make_vfs(CARD, 2)
        faults = self.prepare(self.kind_with({**CARDS, 'number': 3}))
        self.assertIn('it has 2 virtual functions, but 3 are asked for', faults[CARD])
        self.assertEqual((before, []), (self.made(), self.host.written))

    def test_too_many(self) -> None:
        self.assertEqual({CARD: 'it can have 7 virtual functions, but 8 are asked for'},
                         self.prepare(self.kind_with({**CARDS, 'number': 8})))

    def test_of_a_function_that_can_have_none(self) -> None:
        disk = self.host.add_nvme(pci_hosts.DISK, 'S1')
        self.assertEqual({disk: 'it can have 0 virtual functions, but 2 are asked for'},
                         self.prepare(self.kind_with({'address': disk, 'number': 2})))
        # An option that names a sort of cards means those that can.
        self.assertEqual({}, self.prepare(self.kind_with({**pci_hosts.NVME, 'number': 2})))

    def test_of_a_function_that_is_not_there(self) -> None:
        away = '0000:0f:00.0'
        kind = self.kind_with({'address': away, 'number': 2})
        self.assertEqual({away: 'no PCI function has this address'}, self.prepare(kind))
        self.host.add_igb(away)
        self.assertEqual({}, self.prepare(kind))

    def test_not_while_an_instance_has_the_card(self) -> None:
        kind = self.kind_with({**CARDS, 'number': 2}, specs=(VFS, CARDS))
        self.assertEqual({}, self.prepare(kind, CARD))
        self.assertEqual([], self.made())
        # Somebody realizes it just now, and has done so by then.
        self.busy.add(CARD)
        self.assertEqual({}, self.prepare(kind))
        self.busy.clear()
        kind.realize(self.assigned(kind, CARD))
        self.assertEqual({}, self.prepare(kind))
        self.assertEqual([], self.made())

    def test_not_while_a_manager_with_another_state_directory_works_on_the_card(self) -> None:
        kind = self.kind_with({**CARDS, 'number': 2})
        with filelock.NodeLock(kind.tree.path(CARD)):
            self.assertEqual({}, self.prepare(kind))
        self.assertEqual([], self.made())
        self.assertEqual({}, self.prepare(kind))
        self.assertEqual(2, len(self.made()))

    def test_not_while_the_host_or_a_guest_uses_the_card(self) -> None:
        kind = self.kind_with({**CARDS, 'number': 2})
        self.host.give_address('enp3s0')
        self.assertIn(f'the host uses {CARD}', self.prepare(kind)[CARD])
        self.give_to_guest(CARD)
        self.assertIn('it has a driver for guests', self.prepare(kind)[CARD])
        self.host.unbind(CARD)
        self.assertIn('it has no driver', self.prepare(kind)[CARD])
        self.assertEqual([], self.made())

    def test_what_the_kernel_refuses(self) -> None:
        kind = self.kind_with({**CARDS, 'number': 2})
        self.host.fail_after(0)
        self.assertEqual({CARD: 'its 2 virtual functions cannot be made: Input/output error'}, self.prepare(kind))
        self.host.fail_after(None)
        self.assertEqual({}, self.prepare(kind))
        other = self.host.add('0000:05:00.0', pci_models.IGB)
        for number, reason in ((errno.ENOENT, 'its driver igb makes none'), (errno.ENOMEM, 'pci=realloc')):
            def refuse(*_arguments: Any, number: int = number) -> None:
                raise OSError(number, 'refused')

            with fixtures.MonkeyPatch(f'{pci_privileged.__name__}.set_vfs', refuse):
                self.assertIn(reason, self.prepare(kind)[other])

    def test_the_kernel_gives_no_answer(self) -> None:
        self.host.hanging.add(CARD)
        self.configuration.set('devicetrack_pci', vfs_timeout_s=7)
        kind = self.kind_with({**CARDS, 'number': 2, 'autoprobe': True})
        for _audit in range(2):
            self.assertIn('the kernel gave no answer within 7 s', self.prepare(kind)[CARD])
        # It is asked once.
        self.assertEqual(1, len(self.host.written))
        self.host.make_vfs(CARD, 2)
        self.assertEqual({}, self.prepare(kind))

    def test_nor_does_the_privileged_daemon(self) -> None:
        kind = self.kind_with({**CARDS, 'number': 2})

        def late(_calls: Any, _work: Any) -> None:
            raise bounded.Late('no answer')

        with fixtures.MonkeyPatch(f'{bounded.__name__}.Calls.call', late):
            self.assertIn('no answer within', self.prepare(kind)[CARD])
        self.assertIn('no answer within', self.prepare(kind)[CARD])
        self.assertEqual([], self.host.written)

    def test_a_card_that_makes_fewer(self) -> None:
        kind = self.kind_with({**CARDS, 'number': 2})

        def fewer(*_arguments: Any) -> None:
            self.host.make_vfs(CARD, 1)

        with fixtures.MonkeyPatch(f'{pci_privileged.__name__}.set_vfs', fewer):
            self.assertEqual({CARD: 'its driver made 1 virtual functions when 2 were asked for, and would do so again: '
                             'write "number": 1'}, self.prepare(kind))

    def test_one_that_its_card_is_taking_away(self) -> None:
        vf, _other = self.host.make_vfs(CARD, 2)
        kind = self.kind_with()
        assignment = self.assigned(kind, vf)
        os.unlink(self.host.path(vf, 'physfn'))
        error = self.assertRaises(exception.DeviceGone, kind.realize, assignment)
        self.assertIn(f'it is no longer a virtual function of {CARD}: its card takes its virtual functions away',
                      str(error))
