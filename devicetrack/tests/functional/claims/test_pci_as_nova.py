"""What Nova's own functional tests expect of PCI functions, played on this library with made hosts.

The cases are in ``pci_as_nova.yaml``, whose head says how to read them. Managers, stores and the device kind are real,
the functions are files, and guests are definitions in libvirt's test driver. Each case is played in two ways: with a
request that has the guest's NUMA nodes, and with placement's allocations by a service that says the nodes after the
claim.
"""

from __future__ import annotations

import collections
import copy
import json
import os
from typing import Any
from unittest import mock

import yaml

from devicetrack import exception
from devicetrack.objects import DeviceRequest
from devicetrack.objects.request import RequestedDevices
from devicetrack.testing import compute_service
from devicetrack.testing import fixtures
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.testing import pci as made
from devicetrack.testing import pci_models
from devicetrack.testing import region as regions
from devicetrack.tests import base
from devicetrack.tests.functional.claims import libvirt_hosts
from devicetrack.virt.libvirt.kinds import pci

CARD = pci_models.EDU._replace(total_vfs=0)
PRODUCTS = {'CARD': CARD.product, 'PF': pci_models.IGB.product,
            'VF': pci_models.IGB.vf.product if pci_models.IGB.vf else ''}

# Tests of Nova's that have no case, by class or by test, and why.
WITHOUT_CASE = {
    'SRIOVServersTest.test_start_compute_with_live_migratable_fails_version':
        'about versions of libvirt and QEMU that can migrate functions',
    'SRIOVServersTest.test_create_server_with_neutron': 'a port of a network',
    'SRIOVServersTest.test_live_migrate_server_with_VF_legacy':
        'the request is of an older service, and has nothing that a claim here would read',
    'SRIOVServersTest.test_live_migrate_VF': 'live migration of functions, which has tests of its own',
    'SRIOVServersTest.test_unshelve_server_with_neutron': 'a port of a network',
    'SRIOVServersTest.test_cold_migrate_server_with_neutron': 'a port of a network',
    'SRIOVServersTest.test_cold_migrate_and_rever_server_with_neutron': 'a port of a network',
    'SRIOVServersTest.test_evacuate_server_with_neutron': 'a port of a network',
    'SRIOVServersTest.test_live_migrate_server_with_neutron': 'a port of a network',
    'SRIOVServersTest.test_get_server_diagnostics_server_with_VF': "the service's diagnostics of ports",
    'SRIOVServersTest.test_change_bound_port_vnic_type_kills_compute_at_restart': 'a port of a network',
    'SRIOVAttachDetachTest': 'ports of networks that running guests get and give back',
    'VDPAServersTest': 'vDPA devices, which this library does not hand out',
    'RemoteManagedServersTest': 'functions of a remote backend, which the options refuse',
    'TestPackNUMACellsWithPCIDevices': 'the nodes that a service gives to guests without functions',
    'PlacementPCIInventoryReportingTests': 'what a service reports to placement',
    'PlacementPCIAllocationHealingTests': 'what a service heals in placement',
    'RCAndTraitBasedPCIAliasTests.test_one_time_use_workflow': 'what happens to a function after its use',
    'RCAndTraitBasedPCIAliasTests.test_otu_configured_late': 'what happens to a function after its use',
}


def load() -> list[dict[str, Any]]:
    """The cases. One with nodes becomes one for each: the function is on it, and the guest gets it or is refused."""
    with open(os.path.join(os.path.dirname(__file__), 'pci_as_nova.yaml'), encoding='utf-8') as file:
        read = yaml.safe_load(file)
    cases = []
    for case in read:
        for node, fits in case.pop('nodes', {None: None}).items():
            one = _with_node(copy.deepcopy(case), node)
            if fits is not None:
                one['source'] += f' (function on node {node})'
            if fits is False:
                [[_boot, _name, step]] = one['steps']
                del step['gets']
                step['refused'] = 'on another NUMA node'
            cases.append(one)
    return cases


def _with_node(value: Any, node: int | None) -> Any:
    if isinstance(value, dict):
        return {key: _with_node(one, node) for key, one in value.items()}
    if isinstance(value, list):
        return [_with_node(one, node) for one in value]
    return node if value == 'NODE' else value


CASES = load()
WAYS = ('request', 'allocations')


class AsNovaTestCase(base.TestCase):

    scenarios = [(f"{case['source']}, {way}", {'case': case, 'way': way}) for case in CASES for way in WAYS
                 if case.get('by', way) == way]
    case: dict[str, Any]
    way: str

    def setUp(self) -> None:
        super().setUp()
        self.made = {name: self.useFixture(made.PCIHost()) for name in ('one', 'two')}
        for name, has in self.case['hosts'].items():
            self.make(self.made[name], **{key.replace(' ', '_'): value for key, value in has.items()})
        self.region = self.useFixture(regions.Region(host=self.host))
        self.instances: dict[str, Any] = {}
        self.moves: dict[str, Any] = {}

    @staticmethod
    def make(host: made.PCIHost, cards: Any = (), ports: Any = (), port_node: int | None = None,
             sockets: Any = ()) -> None:
        for number, node in enumerate(cards, 1):
            host.add(f'0000:8{number}:00.0', CARD, numa_node=-1 if node is None else node)
        for number, vfs in enumerate(ports, 1):
            host.make_vfs(host.add_igb(f'0000:9{number}:00.0', -1 if port_node is None else port_node), vfs)
        host.add_numa_nodes(sockets)

    def host(self, _devices: int, _parents: Any, name: str, configuration: Any,
             **kwargs: Any) -> libvirt_hosts.LibvirtHost:
        machine = self.made[name]

        class Kind(pci.PCI):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args)
                self.host_use = machine.use

        specs = self.case.get('specs', [{'product': product} for product in PRODUCTS])
        configuration.set('pci', device_spec=list(map(self.as_option, specs)),
                          alias=list(map(self.as_option, self.case.get('aliases', ()))))
        configuration.set('devicetrack_pci', functions=['all'], release_wait_s=0, sysfs_root=machine.root)
        return libvirt_hosts.LibvirtHost(self.useFixture(libvirt_fixtures.TestNode()).connect, {}, self.temp_dir(),
                                         kinds=[Kind], name=name, configuration=configuration, **kwargs)

    @staticmethod
    def as_option(said: dict[str, Any]) -> str:
        option = dict(said)
        if 'product' in option:
            option['vendor_id'], option['product_id'] = PRODUCTS[option.pop('product')].split(':')
        return json.dumps(option)

    def test_ends_as_in_nova(self) -> None:
        for step, about, *more in self.case['steps']:
            details = {key.replace(' ', '_'): value for one in more for key, value in one.items()}
            if details.pop('by', self.way) == self.way:
                getattr(self, f'do_{step.replace(" ", "_")}')(about, **details)
        self.assertEqual([], [finding for finding in self.region.audit() if finding.severity == 'critical'])

    # -- requests -----------------------------------------------------------------------------------------------------

    def flavor(self, asks: str, policy: str | None) -> fixtures.Flavor:
        specs = {'pci_passthrough:alias': asks} if asks else {}
        return fixtures.Flavor(specs if policy is None else {**specs, 'hw:pci_numa_affinity_policy': policy})

    def request(self, host: Any, asks: str, nodes: Any = (), flavor: str | None = None, image: str | None = None,
                allocated: Any = None, product: str | None = None, policy: str | None = None,
                **more: Any) -> Any:
        """What a service hands to a claim: a request, or the allocations that placement made."""
        nodes = list(nodes) if self.way == 'request' else []
        if product is not None:
            counted = f'CUSTOM_PCI_{PRODUCTS[product]}'.replace(':', '_').upper()
            return DeviceRequest(wanted=[RequestedDevices(resource_class=counted, amount=1,
                                                          numa_affinity_policy=policy)], numa_nodes=nodes)
        specs = self.flavor(asks, flavor).extra_specs
        if allocated is not None:
            return {self.uuid_of(host, name): {'resources': {more['class']: amount}}
                    for name, amount in allocated.items()}
        request = DeviceRequest.from_extra_specs(
            specs, nodes, aliases=host.manager.state().aliases,
            image_properties=None if image is None else {'hw_pci_numa_affinity_policy': image})
        if self.way == 'request' or not request.wanted:
            return request
        amounts = collections.Counter[str]()
        for wanted in request.wanted:
            amounts[wanted.resource_class] += wanted.amount
        # Placement that sees a flat host, and leaves the choice to it.
        return {self.uuid_of(host, ''): {'resources': dict(amounts)}}

    @staticmethod
    def uuid_of(host: Any, name: str) -> str:
        uuid: str = host.running.views.providers.present[name]
        return uuid

    def check_got(self, host: Any, instance: Any, gets: Any = None, parents: Any = None,
                  element: str | None = None) -> None:
        records = [record for record in host.records(instance) if record.role != 'old']
        if isinstance(gets, list):
            self.assertEqual(gets, sorted(record.identifier for record in records))
        elif gets is not None:
            products = collections.Counter(json.loads(record.details)['versioned_object.data']['product_id']
                                           for record in records)
            self.assertEqual({PRODUCTS[product].split(':')[1]: amount for product, amount in gets.items()}, products)
        if parents is not None:
            self.assertEqual(parents, collections.Counter(record.parent for record in records))
        addresses = sorted(record.identifier for record in records)
        self.assertEqual(addresses, sorted(host.machine.live(instance.uuid).pci_addresses))
        if element is not None:
            [one] = host.manager.guest_config(instance).devices
            self.assertIn(element, one)
        self.assertEqual([], host.disagreements())

    # -- steps --------------------------------------------------------------------------------------------------------

    def do_boot(self, name: str, at: str = 'one', asks: str = '', nodes: Any = (), flavor: str | None = None,
                image: str | None = None, refused: str | None = None, guest_fails: bool = False, gets: Any = None,
                parents: Any = None, element: str | None = None, **more: Any) -> None:
        host: Any = self.region.hosts[at]
        instance: Any = self.instances.get(name) or fixtures.Instance()
        if instance not in self.region.instances:
            self.region.instances.append(instance)
        instance.flavor = self.flavor(asks, flavor)
        if image is not None:
            instance.image_meta = {'properties': {'hw_pci_numa_affinity_policy': image}}
        request = self.request(host, asks, nodes, flavor, image, **more)
        if refused is not None:
            before = host.free()
            error = self.assertRaises(exception.NoFit, self.boot, host, instance, request, nodes)
            self.assertIn(refused, str(error))
            self.assertEqual((before, []), (host.free(), host.records(instance)))
            return
        if guest_fails:
            with mock.patch.object(host, 'start_guest', autospec=True,
                                   side_effect=exception.CommandFailed('start', 'it fails')):
                self.assertRaises(exception.CommandFailed, self.boot, host, instance, request, nodes)
            self.assertEqual([], host.records(instance))
            return
        self.boot(host, instance, request, nodes)
        self.instances[name] = instance
        self.check_got(host, instance, gets, parents, element)

    def boot(self, host: Any, instance: Any, request: Any, nodes: Any) -> None:
        if self.way == 'request' or not nodes:
            host.spawn(instance, request)
            return
        with host.manager.instance_claim(host.context, instance, host.name, request) as claim:
            host.manager.narrow_claim(host.context, claim, nodes, None)
            instance.host = instance.node = host.name
            host.boot_or_clean_up(instance)
        instance.state = compute_service.ACTIVE

    def do_delete(self, name: str) -> None:
        self.region.delete(self.instances.pop(name))
        self.settle()

    def do_offload(self, name: str) -> None:
        instance = self.instances[name]
        host: Any = self.region.hosts[instance.host]
        host.delete_guest(instance.uuid)
        host.manager.release(host.context, instance)
        instance.host, instance.state = None, compute_service.OFFLOADED
        self.settle()

    def do_resize(self, name: str, to: str, asks: str, gets: Any) -> None:
        instance, host = self.instances[name], self.region.hosts[to]
        self.moves[name] = self.region.resize(instance, to, request=self.request(host, asks))
        self.check_got(host, instance, gets)

    def do_confirm(self, name: str) -> None:
        self.region.confirm(self.instances[name], self.moves.pop(name))
        self.settle()

    def do_revert(self, name: str, gets: Any) -> None:
        move = self.moves.pop(name)
        self.region.revert(self.instances[name], move)
        self.settle()
        self.check_got(self.region.hosts[move.source_compute], self.instances[name], gets)

    def do_evacuate(self, name: str, to: str, asks: str, gets: Any) -> None:
        host = self.region.hosts[to]
        self.moves[name] = self.region.evacuate(self.instances[name], to, request=self.request(host, asks))
        self.check_got(host, self.instances[name], gets)

    def do_comes_back(self, name: str, without: str) -> None:
        host: Any = self.region.hosts[name]
        host.delete_guest(self.instances[without].uuid)
        host.restart()
        self.settle()

    def do_live_migrate(self, name: str, to: str, refused: str) -> None:
        error = self.assertRaises(exception.LiveMigrationUnsupported, self.region.check, self.instances[name], to)
        self.assertIn(refused, str(error))

    def do_gets_sriov(self, address: str, host: str, vfs: int) -> None:
        machine = self.made[host]
        machine.remove(address)
        machine.add(address, pci_models.IGB._replace(product=CARD.product, driver='igb'))
        machine.make_vfs(address, vfs)
        self.region.hosts[host].restart()
        self.settle()

    def do_free(self, amounts: dict[str, int]) -> None:
        self.assertEqual(amounts, {name: self.region.hosts[name].free() for name in amounts})

    def settle(self) -> None:
        for host in self.region.hosts.values():
            host.audit()

