"""A device is recorded for an instance only where its definition, Nova's record and placement agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from devicetrack.nova import adoption
from devicetrack.nova.adoption import Instance
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Usage
from devicetrack.objects.values import Use
from devicetrack.tests import base

HOST = 'compute-7'
A, B = 'instance-a', 'instance-b'
ROOT, CARD = 'provider-of-node', 'provider-of-card'
SMALL, LARGE = 'CUSTOM_PMEM_NAMESPACE_SMALL', 'CUSTOM_PMEM_NAMESPACE_LARGE'
SIZES = {'ns0': LARGE, 'ns1': SMALL, 'ns2': SMALL}
CARDS = {'pci_84': CARD, 'pci_85': 'provider-of-other-card'}


def use(identifier: str | None, domain: str = A, kind: str = 'vpmem', running: bool = True,
        address: str | None = None, **facts: Any) -> Use:
    return Use(kind, identifier, address or (f'/dev/{identifier}' if kind == 'vpmem' else str(identifier)), domain,
               running, **{'live': running, 'defined': True, **facts})


def mdev(identifier: str, domain: str = A) -> Use:
    return use(identifier, domain, 'mdev')


def instance(*names: str, uuid: str = A, host: str | None = HOST, at: str = ROOT, **facts: Any) -> Instance:
    """An instance, whose record in Nova has namespaces of these names."""
    namespaces = tuple(adoption.NamedNamespace(name, SIZES[name].rpartition('_')[2], f'/dev/{name}', at)
                       for name in names)
    return Instance(uuid, host, namespaces=namespaces, **facts)


def counted(*classes: str, cards: Sequence[str] = ()) -> dict[tuple[str, str], int]:
    """An allocation of these classes at the node, and of a vGPU at each of the cards."""
    found: dict[tuple[str, str], int] = {}
    for where in [*((ROOT, resource_class) for resource_class in classes), *((card, 'VGPU') for card in cards)]:
        found[where] = found.get(where, 0) + 1
    return found


class PlanTestCase(base.TestCase):

    def plan(self, *instances: Instance, uses: Sequence[Use] = (), allocations: Any = None,
             owners: Any = None, domains: Sequence[str] = (),
             refused: str | None = None) -> list[adoption.AdoptionLine]:
        devices = [InventoryDevice('vpmem', name, '', resource_class, None, None, '')
                   for name, resource_class in SIZES.items()]
        devices += [InventoryDevice('mdev', f'vgpu{number}', 'pci_84', 'VGPU', 'pci_84', None, '')
                    for number in range(3)]
        found = frozenset(use.domain_uuid for use in uses) | frozenset(domains)
        host = adoption.AdoptedHost(
            HOST, {one.uuid: one for one in instances}, allocations or {}, Usage(list(uses), found, found), devices,
            {'': ROOT, **CARDS}, frozenset((SMALL, LARGE, 'VGPU')), owners or {})
        return adoption.plan(host, lambda _uuid, _keys: refused)

    def adopted(self, *wanted: str, **facts: Any) -> str:
        [line] = self.plan(facts.pop('of', instance()), **facts)
        self.assertEqual((adoption.ADOPT, A, list(wanted)),
                         (line.outcome, line.instance_uuid, [key.identifier for key in line.devices]), line.reason)
        return line.reason

    def withheld(self, *instances: Instance, of: str = A, **facts: Any) -> str:
        [line] = [line for line in self.plan(*instances, **facts) if line.instance_uuid == of]
        self.assertEqual(adoption.WITHHELD, line.outcome, line.reason)
        return line.reason


class AgreeTestCase(PlanTestCase):

    def test_namespaces_in_the_order_of_the_definition(self) -> None:
        reason = self.adopted('ns2', 'ns0', of=instance('ns0', 'ns2'), uses=[use('ns2'), use('ns0')],
                              allocations={A: counted(SMALL, LARGE)})
        self.assertEqual("its definition and Nova's record list them, and placement allocates as many", reason)

    def test_mediated_devices_which_nova_does_not_record(self) -> None:
        reason = self.adopted('vgpu1', 'vgpu0', uses=[mdev('vgpu1'), mdev('vgpu0')],
                              allocations={A: counted(cards=[CARD, CARD])})
        self.assertEqual('its definition lists them, and placement allocates as many', reason)

    def test_both_kinds(self) -> None:
        self.adopted('ns1', 'vgpu0', of=instance('ns1'), uses=[mdev('vgpu0'), use('ns1')],
                     allocations={A: counted(SMALL, cards=[CARD])})

    def test_a_guest_that_is_off(self) -> None:
        self.adopted('ns1', of=instance('ns1'), uses=[use('ns1', running=False)], allocations={A: counted(SMALL)})

    def test_without_a_domain_in_the_order_of_the_flavor(self) -> None:
        reason = self.adopted('ns1', 'ns0', 'ns2', of=instance('ns0', 'ns1', 'ns2', asked=('SMALL', 'LARGE', 'SMALL')),
                              allocations={A: counted(SMALL, LARGE, SMALL)})
        self.assertEqual("Nova's record lists them, and placement allocates as many; it has no domain", reason)

    def test_classes_and_kinds_of_others_do_not_matter(self) -> None:
        self.adopted('ns1', of=instance('ns1'), uses=[use('ns1'), use('0000:84:00.1', kind='vf')],
                     allocations={A: {**counted(SMALL), (ROOT, 'VCPU'): 2, (CARD, 'VGPU'): 0}})

    def test_what_has_no_devices_has_no_line(self) -> None:
        self.assertEqual([], self.plan(
            instance(), instance(uuid=B, host='compute-8'), domains=[A], uses=[use('0000:84:00.1', kind='vf')],
            allocations={A: {(ROOT, 'VCPU'): 2}, B: counted(SMALL)}))

    def test_what_is_recorded_already_stays_so(self) -> None:
        owned = {DeviceKey('vpmem', 'ns1'): A}
        for moving in ('', 'it moves'):
            [line] = self.plan(instance('ns1', moving=moving), uses=[use('ns1')], owners=owned)
            self.assertEqual(adoption.ALREADY, line.outcome)
        self.adopted('ns1', 'vgpu0', of=instance('ns1'), uses=[use('ns1'), mdev('vgpu0')], owners=owned,
                     allocations={A: counted(SMALL, cards=[CARD])})

    def test_a_guest_without_a_domain_has_the_mediated_devices_that_were_recorded(self) -> None:
        [line] = self.plan(instance(wants=frozenset({'VGPU'})), owners={DeviceKey('mdev', 'vgpu0'): A},
                           allocations={A: counted(cards=[CARD])})
        self.assertEqual((adoption.ALREADY, (DeviceKey('mdev', 'vgpu0'),), 'recorded before'),
                         (line.outcome, line.devices, line.reason))

    def test_what_contradicts_a_record_from_before_is_said(self) -> None:
        """Nova alone may have worked here since then, and given the devices to others."""
        facts: dict[str, Any] = {'owners': {DeviceKey('vpmem', 'ns1'): A}, 'allocations': {A: counted(SMALL)}}
        cases: tuple[tuple[str, dict[str, Any], list[Instance]], ...] = (
            ('', {}, [instance('ns1')]),
            (', but Nova has deleted the instance, and its domain', {}, [instance('ns1', deleted=True)]),
            (', but Nova has the instance on host compute-8, and', {}, [instance('ns1', host='compute-8')]),
            (f', but placement allocates 0 {SMALL} to it', {'allocations': {}}, [instance('ns1')]),
            (f', but ns1 is in the definition or the record of instance {B} too', {},
             [instance('ns1'), instance('ns1', uuid=B)]))
        for wanted, changed, instances in cases:
            line = self.plan(*instances, uses=[use('ns1')], **{**facts, **changed})[0]
            self.assertEqual(adoption.ALREADY, line.outcome)
            self.assertTrue(line.reason.startswith(f'recorded before{wanted}'), line.reason)
            self.assertEqual(bool(wanted), 'move it away and adopt again' in line.reason)


class DisagreeTestCase(PlanTestCase):

    def test_a_domain_that_nova_does_not_know(self) -> None:
        self.assertIn('Nova has no such instance', self.withheld(uses=[use('ns1')]))

    def test_an_instance_that_is_deleted_or_elsewhere(self) -> None:
        facts: dict[str, Any] = {'uses': [use('ns1')], 'allocations': {A: counted(SMALL)}}
        self.assertIn('Nova has deleted the instance', self.withheld(instance('ns1', deleted=True), **facts))
        self.assertIn('Nova has the instance on host compute-8', self.withheld(
            instance('ns1', host='compute-8'), **facts))
        self.assertIn('Nova has the instance on no host', self.withheld(instance(host=None), **facts))

    def test_a_record_of_another_host_says_nothing_of_this_one(self) -> None:
        """Namespaces have the same names on many hosts."""
        for moving in ('', 'it moves'):
            there = instance('ns1', uuid=B, host='compute-8', at='provider-of-compute-8', moving=moving)
            lines = self.plan(instance('ns1'), there, uses=[use('ns1')], allocations={A: counted(SMALL)})
            self.assertEqual([(adoption.ADOPT, A)], [(line.outcome, line.instance_uuid) for line in lines])

    def test_the_record_of_an_instance_here_is_of_here_whatever_the_provider_was(self) -> None:
        """An operator may have deleted the node in Nova, and it got another provider."""
        self.adopted('ns1', of=instance('ns1', at='provider-of-before'), uses=[use('ns1')],
                     allocations={A: counted(SMALL)})

    def test_one_that_moves(self) -> None:
        self.assertEqual('confirm it', self.withheld(
            instance('ns1', moving='confirm it'), uses=[use('ns1')], allocations={A: counted(SMALL)}))
        lines = self.plan(instance('ns1', moving='confirm it', host='compute-8'))
        self.assertEqual([adoption.WITHHELD], [line.outcome for line in lines])

    def test_a_definition_with_a_namespace_that_nova_did_not_record(self) -> None:
        self.assertIn("its definition has ns2, which Nova's record lacks", self.withheld(
            instance('ns1'), uses=[use('ns1'), use('ns2')], allocations={A: counted(SMALL, SMALL)}))

    def test_a_record_with_a_namespace_that_the_definition_lacks(self) -> None:
        self.assertIn("Nova's record has ns2, which its definition lacks", self.withheld(
            instance('ns1', 'ns2'), uses=[use('ns1')], allocations={A: counted(SMALL, SMALL)}))
        self.assertIn("Nova's record has ns2", self.withheld(
            instance('ns2'), domains=[A], allocations={A: counted(SMALL)}))

    def test_a_path_that_means_another_namespace_since_a_boot(self) -> None:
        reason = self.withheld(instance('ns1'), uses=[use('ns2', running=False, address='/dev/ns1')],
                               allocations={A: counted(SMALL)})
        self.assertEqual('its definition has /dev/ns1, which was ns1 when Nova recorded it and is ns2 now', reason)
        self.assertIn('is no namespace of the options now', self.withheld(
            instance('ns1'), uses=[use(None, address='/dev/ns1')], allocations={A: counted(SMALL)}))

    def test_a_path_that_is_no_device(self) -> None:
        self.assertIn('/dev/dax9.9, which is in no option of this host', self.withheld(
            instance(), uses=[use(None, address='/dev/dax9.9')]))

    def test_a_guest_that_runs_on_other_devices_than_its_definition_says(self) -> None:
        facts: dict[str, Any] = {'allocations': {A: counted(SMALL)}}
        self.assertIn('its guest uses ns1, but its definition lacks it', self.withheld(
            instance('ns1'), uses=[use('ns1', defined=False)], **facts))
        self.assertIn('its guest does not use ns1, but its definition has it', self.withheld(
            instance('ns1'), uses=[use('ns1', live=False)], **facts))

    def test_one_device_in_two_definitions(self) -> None:
        facts: dict[str, Any] = {'uses': [mdev('vgpu0'), mdev('vgpu0', B)],
                                 'allocations': {A: counted(cards=[CARD]), B: counted(cards=[CARD])}}
        for of, other in ((A, B), (B, A)):
            self.assertIn(f'vgpu0 is in the definition or the record of instance {other} too', self.withheld(
                instance(), instance(uuid=B), of=of, **facts))

    def test_one_device_in_two_records(self) -> None:
        """Nothing but the record speaks of guests without a domain; the library would record the first of them."""
        facts: dict[str, Any] = {'allocations': {A: counted(SMALL), B: counted(SMALL)}}
        for of in (A, B):
            self.assertIn('ns1 is in the definition or the record', self.withheld(
                instance('ns1'), instance('ns1', uuid=B), of=of, **facts))

    def test_a_device_of_one_that_moves(self) -> None:
        self.assertIn(f'record of instance {B} too', self.withheld(
            instance('ns1'), instance('ns1', uuid=B, moving='it moves'), uses=[use('ns1')],
            allocations={A: counted(SMALL)}))

    def test_numbers_that_differ_from_those_of_placement(self) -> None:
        facts: dict[str, Any] = {'uses': [mdev('vgpu0')]}
        for allocations, wanted in (
                ({}, 'placement allocates 0 VGPU at pci_84 to it, but it has 1'),
                ({A: counted(cards=[CARD, CARD])}, 'placement allocates 2 VGPU at pci_84 to it, but it has 1'),
                ({A: counted(cards=[CARDS['pci_85']])}, 'placement allocates 0 VGPU at pci_84 to it, but it has 1'),
                ({A: counted('VGPU')}, 'placement allocates 0 VGPU at pci_84 to it, but it has 1'),
                ({A: counted(SMALL, cards=[CARD])}, f'placement allocates 1 {SMALL} to it, but it has 0')):
            self.assertEqual(wanted, self.withheld(instance(), allocations=allocations, **facts))

    def test_placement_counts_what_nothing_names(self) -> None:
        self.assertEqual('placement allocates 1 VGPU at pci_84 to it, but it has 0', self.withheld(
            instance(), allocations={A: counted(cards=[CARD])}))

    def test_a_flavor_that_asks_for_what_nothing_names(self) -> None:
        asks = instance(wants=frozenset({SMALL}))
        self.assertEqual(f'its flavor asks for {SMALL}, but no source lists such a device: it cannot start',
                         self.withheld(asks))
        self.assertEqual([], self.plan(asks._replace(host='compute-8')))

    def test_a_device_with_a_row_that_went_away(self) -> None:
        self.assertIn('the host does not have gone', self.withheld(
            instance(), uses=[mdev('gone'), mdev('vgpu0')], owners={DeviceKey('mdev', 'gone'): A},
            allocations={A: counted(cards=[CARD, CARD])}))

    def test_what_the_library_refuses(self) -> None:
        self.assertEqual('it is unhealthy', self.withheld(
            instance(), uses=[mdev('vgpu9')], allocations={A: counted(cards=[CARD])}, refused='it is unhealthy'))
