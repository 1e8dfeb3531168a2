"""The policies of functions that options mean by a name, when the function does not have the name yet, or any more."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import testscenarios

from devicetrack import exception
from devicetrack.objects import details
from devicetrack.testing import pci_models
from devicetrack.tests import base
from devicetrack.tests.drivers import contract
from devicetrack.tests.unit.virt import pci_hosts
from devicetrack.tests.unit.virt.pci_hosts import CARD
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt.kinds import pci

OTHER = '0000:05:00.0'
DEVICE = '0000:06:00.0'
INTEL = {'vendor_id': '8086'}
NAME = 'enp3s0'
PERSON, NONE = 'person', 'none'


class NamesTestCase(pci_hosts.PCIHostTestCase):
    """A host with a network card, and the kind with several rules."""

    def setUp(self) -> None:
        super().setUp()
        self.host.add_igb(CARD)

    def kind_with(self, *rules: dict[str, Any], specs: tuple[dict[str, Any], ...] = (INTEL,)) -> pci.PCI:
        self.kind(*specs)
        self.configuration.set('devicetrack_pci', cleaning=list(map(json.dumps, rules)))
        kind = pci.PCI(self.conf, connection.Connection('', None))
        kind.state_path, kind.boot_id, kind.host_use = self.state_path, lambda: self.boot, self.host.use
        return kind

    def come_back(self, address: str, interface: str | None) -> None:
        """Do what libvirt does when a guest ends. The interface has this name, or is not there yet."""
        self.host.unbind(address)
        self.name(address, interface or NAME)
        self.host.bind(address, 'igb')
        if interface is None:
            self.host.hide_interface(address)
            os.rmdir(self.host.path(address, 'net'))

    def name(self, address: str, interface: str) -> None:
        self.host._functions[address] = self.host._functions[address]._replace(interface=interface)

    def policy(self, kind: pci.PCI, assignment: Any) -> str:
        function = kind.tree.function(kind._places.address(assignment.identifier))
        assert function is not None
        return kind._cleaner._policy_after(assignment, function).name

    def of_earlier_release(self, assignment: Any) -> Any:
        text = json.dumps(assignment.details.obj_to_primitive(target_version='1.1'))
        return contract.assignment(self.instance, 'pci', assignment.identifier, assignment.parent, text,
                                   was_realized=assignment.was_realized)


class SettlingTestCase(NamesTestCase):
    """A function that has its driver, but not its interface or not the name of that."""

    scenarios = testscenarios.multiply_scenarios(
        base.table(('no interface', None), ('the name of the kernel', 'eth0'), ('its name', NAME),
                   names=('interface',)),
        base.table(
            ('a rule', ({'devname': NAME, 'policy': PERSON},), (INTEL,)),
            ('a rule before another one', ({'devname': NAME, 'policy': PERSON}, {'policy': NONE}), (INTEL,)),
            ('a spec', ({'policy': NONE},), ({'devname': NAME, 'one_time_use': True}, INTEL)),
            names=('rules', 'specs')))

    def test_is_cleaned_as_its_name_says(self) -> None:
        kind = self.kind_with(*self.rules, specs=self.specs)
        claimed = self.realized(kind, CARD)
        self.give_to_guest(CARD)
        self.come_back(CARD, self.interface)
        # A service that starts in between knows only the row.
        kind = self.kind_with(*self.rules, specs=self.specs)
        for assignment in (claimed, self.of_earlier_release(claimed)):
            self.assertIs(False, kind.keeps_nothing(assignment))
            self.assertEqual([], list(kind.is_blank([assignment])))
            error = self.assertRaises(exception.UnclaimFailed, self.unclaim, kind, assignment)
            self.assertIn('a person has to clean it', str(error))


class KnownTestCase(NamesTestCase):

    def test_a_release_waits_until_the_interface_has_its_name(self) -> None:
        kind = self.kind_with({'devname': NAME, 'policy': NONE}, {'policy': PERSON})
        kind.options = kind.options._replace(release_wait_s=600)
        kind._cleaner._options = kind.options
        assignment = self.realized(kind, CARD)
        self.give_to_guest(CARD)
        self.come_back(CARD, 'eth0')

        self.patch(time, 'sleep', lambda _seconds: self.come_back(CARD, NAME))
        self.unclaim(kind, assignment)
        self.assertEqual((NAME,), kind.tree.function(CARD).net)            # type: ignore[union-attr]

    def test_rules_for_others_do_not_reach_it(self) -> None:
        kind = self.kind_with({'devname': 'enp5s0', 'policy': PERSON})
        assignment = self.realized(kind, CARD)
        self.give_to_guest(CARD)
        for interface in (NAME, None, 'eth0'):
            self.come_back(CARD, interface)
            self.assertEqual(NONE, self.policy(kind, assignment), str(interface))

    def test_whose_names_were_not_recorded_may_have_any_that_no_other_has(self) -> None:
        kind = self.kind_with({'devname': 'enp5s0', 'policy': PERSON})
        assignment = self.of_earlier_release(self.realized(kind, CARD))
        self.assertEqual(PERSON, self.policy(kind, assignment))
        self.host.add_igb(OTHER)
        self.assertEqual(NONE, self.policy(kind, assignment))
        kind = self.kind_with({'devname': NAME, 'policy': 'program', 'program': '/bin/false'})
        self.assertEqual('program', self.policy(kind, assignment))

    def test_a_function_that_can_have_no_interface_has_no_name(self) -> None:
        self.host.add(DEVICE, pci_models.EDU._replace(reset_methods=('flr',)))
        kind = self.kind_with({'devname': NAME, 'policy': PERSON}, specs=({},))
        self.assertEqual(NONE, self.policy(kind, self.of_earlier_release(self.realized(kind, DEVICE))))

    def test_names_that_are_not_settled_are_not_recorded(self) -> None:
        kind = self.kind_with()
        assignment = self.assigned(kind, CARD)
        self.assertEqual([NAME], assignment.details.interfaces)
        for interface in (None, 'eth0', NAME):
            self.come_back(CARD, interface)
            recorded = details.from_text(kind.realize(assignment).details)
            self.assertEqual([NAME] if interface == NAME else None, recorded.interfaces)

    def test_the_names_of_the_claim_stay_while_a_guest_has_it(self) -> None:
        kind = self.kind_with()
        assignment = self.realized(kind, CARD)
        self.give_to_guest(CARD)
        again = details.from_text(kind.realize(assignment).details)
        self.assertEqual([NAME], again.interfaces)
        self.assertIsNone(self.assigned(kind, CARD).details.interfaces)

    def test_a_virtual_function_has_the_names_of_its_card(self) -> None:
        [vf] = self.host.make_vfs(CARD, 1)
        kind = self.kind_with({'devname': f'{NAME}v0', 'policy': PERSON}, {'devname': NAME, 'policy': NONE})
        assignment = self.realized(kind, vf)
        self.assertEqual(([NAME, f'{NAME}v0'], CARD), (assignment.details.interfaces,
                                                       assignment.details.claimed_parent))
        self.host.hide_interface(vf)
        for one in (assignment, self.of_earlier_release(assignment)):
            self.assertEqual(PERSON, self.policy(kind, one))


class MovedTestCase(NamesTestCase):
    """A card that came to another address at a boot of the host."""

    def moved(self, kind: pci.PCI, assignment: Any, address: str) -> Any:
        kind._memory.move({assignment.identifier: address})
        realized = kind.realize(assignment)
        return contract.assignment(self.instance, 'pci', assignment.identifier, assignment.parent, realized.details,
                                   was_realized=assignment.was_realized)

    def test_is_cleaned_as_its_old_or_its_new_address_says(self) -> None:
        kind = self.kind_with()
        claimed = self.realized(kind, CARD)
        self.host.add_igb(OTHER)
        assignment = self.moved(kind, claimed, OTHER)
        self.assertEqual((CARD, OTHER), (assignment.identifier, assignment.details.address))
        for rules, policy in (([CARD], PERSON), ([OTHER], PERSON), ([], NONE)):
            kind = self.kind_with(*({'address': rule, 'policy': PERSON} for rule in rules))
            for one in (claimed, assignment, self.of_earlier_release(assignment)):
                self.assertEqual(policy, self.policy(kind, one))

    def test_is_for_a_person_if_two_policies_clean_it(self) -> None:
        kind = self.kind_with({'address': CARD, 'policy': 'program', 'program': '/bin/one'},
                              {'policy': 'program', 'program': '/bin/two'})
        claimed = self.realized(kind, CARD)
        self.assertEqual('program', self.policy(kind, claimed))
        self.host.add_igb(OTHER)
        self.assertEqual(PERSON, self.policy(kind, self.moved(kind, claimed, OTHER)))

    def test_so_are_its_virtual_functions(self) -> None:
        [vf] = self.host.make_vfs(CARD, 1)
        kind = self.kind_with({'address': CARD, 'policy': PERSON})
        assignment = self.realized(kind, vf)
        self.host.add_igb(OTHER)
        [new] = self.host.make_vfs(OTHER, 1)
        assignment = self.moved(kind, assignment, new)
        self.assertEqual((OTHER, CARD), (assignment.details.parent_address, assignment.details.claimed_parent))
        self.assertEqual(PERSON, self.policy(kind, assignment))
