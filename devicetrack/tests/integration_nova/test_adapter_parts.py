"""The parts of the adapter by themselves, with Nova's own objects."""

import json
from unittest import mock

import fixtures
from nova import exception as nova_exception
from nova import objects
from nova.compute import provider_tree
from nova.compute import task_states
from nova.compute import vm_states
from nova.objects import migrate_data
from nova.virt.libvirt import config
from oslo_utils.fixture import uuidsentinel as uuids

from devicetrack import exception
from devicetrack.nova import errors
from devicetrack.nova import guest
from devicetrack.nova import options
from devicetrack.nova import overrides
from devicetrack.nova import providers
from devicetrack.nova import resources
from devicetrack.nova import service
from devicetrack.nova import wire
from devicetrack.objects import DeviceMap
from devicetrack.objects import DevicePair
from devicetrack.objects import InstanceResources
from devicetrack.objects import LiveMigrationCheck
from devicetrack.objects import Provider
from devicetrack.objects.details import MdevDetails
from devicetrack.objects.details import VPMEMDetails
from devicetrack.objects.pci_alias import PCIAlias
from devicetrack.objects.pci_alias import PCIChoice
from devicetrack.objects.values import GuestConfig
from devicetrack.tests import base

NVDIMM = ("<memory model='nvdimm' access='shared'><source><path>/dev/dax0.1</path></source>"
          "<target><size unit='KiB'>4192256</size><node>0</node></target></memory>")
MDEV = "<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address uuid='{}'/></source></hostdev>"


def setUpModule():
    objects.register_all()


def namespaces(*names):
    return InstanceResources.from_tuples(uuids.instance, [
        (uuids.provider, 'CUSTOM_PMEM_NAMESPACE_4GB', name, VPMEMDetails(
            namespace_uuid=uuids.namespace, label='4GB', devpath=f'/dev/{name}', size_bytes=2 ** 32,
            align_bytes=2 ** 21)) for name in names])


class OptionsTestCase(base.TestCase):

    def test_functions_that_nova_hands_out_have_no_second_owner(self):
        options.check(self.conf)
        self.configuration.set('devicetrack_pci', functions=['all'])
        error = self.assertRaises(exception.InvalidConfiguration, options.check, self.conf)
        self.assertEqual('[devicetrack_pci] functions', error.option)
        self.assertIn('Nova assigns', error.reason)

    def test_a_nova_without_functions_for_one_time_use_has_none_to_clean(self):
        self.configuration.set('devicetrack_nova', pci='clean')
        with mock.patch('devicetrack.nova.seams.installed', lambda: '33.0.0'):
            options.check(self.conf)
        with mock.patch('devicetrack.nova.seams.installed', lambda: '31.2.0'):
            error = self.assertRaises(exception.InvalidConfiguration, options.check, self.conf)
        self.assertEqual('[devicetrack_nova] pci', error.option)

    def test_entries_for_one_time_use_are_reported_where_nova_ignores_them(self):
        spec = {'vendor_id': '144d', 'one_time_use': 'true'}
        for written, installed, entries in (
                ([spec], '31.2.0', 'entry 1'), ([spec], '33.0.0', None),
                ([{**spec, 'one_time_use': 'no'}], '31.2.0', None),
                ([{}, [{}, spec]], '31.2.0', 'entry 2')):
            self.configuration.set('pci', device_spec=[json.dumps(one) for one in written])
            with mock.patch('devicetrack.nova.seams.installed', lambda installed=installed: installed):
                told = options.ignored(self.conf)
            self.assertEqual(entries, told and told.split(': ')[1])


class ResourcesTestCase(base.TestCase):

    def test_namespaces_are_kept_as_nova_keeps_them_and_read_back(self):
        kept = resources.of(namespaces('ns1', 'ns0'))
        self.assertEqual(['ns1', 'ns0'], [one.identifier for one in kept])
        self.assertEqual(('4GB', 'ns1', '/dev/ns1', 2 ** 32, 2 ** 21), tuple(
            getattr(kept[0].metadata, name) for name in ('label', 'name', 'devpath', 'size', 'align')))
        over_the_wire = objects.ResourceList.obj_from_primitive(kept.obj_to_primitive())
        self.assertEqual([(uuids.provider, 'CUSTOM_PMEM_NAMESPACE_4GB', name) for name in ('ns1', 'ns0')],
                         [one[:3] for one in resources.namespaces(over_the_wire)])

    def test_of_nothing_there_is_nothing(self):
        self.assertIsNone(resources.of(namespaces()))
        self.assertEqual([], resources.namespaces(None))

    def classes(self, types, allocated, classes):
        """The classes of a guest's mediated devices, of which a source without us told only the types."""
        data = migrate_data.LibvirtLiveMigrateData(source_mdev_types={
            getattr(uuids, f'mdev{number}'): one for number, one in enumerate(types)})
        instance = objects.Instance(uuid=uuids.instance, resources=resources.of(namespaces('ns0')))
        has = wire.source(data, instance).resources
        allocations = {getattr(uuids, f'provider{number}'): {'resources': {'VCPU': 1, **one}}
                       for number, one in enumerate(allocated)}
        found = resources.with_allocated_classes(has, allocations, classes)
        self.assertEqual([(one.kind, one.identifier) for one in has], [(one.kind, one.identifier) for one in found])
        self.assertEqual('CUSTOM_PMEM_NAMESPACE_4GB', found[0].resource_class)
        by_type = {one.identifier: one.resource_class for one in found}
        return [by_type[getattr(uuids, f'mdev{number}')] for number in range(len(types))]

    def test_a_device_whose_type_alone_is_known_has_the_class_of_the_type_here(self):
        here = {'a': 'CUSTOM_A', 'b': 'CUSTOM_B', 'c': 'VGPU'}
        self.assertEqual(['CUSTOM_A'], self.classes('a', [{'CUSTOM_A': 1}], here))
        self.assertEqual(['VGPU'], self.classes('c', [{'VGPU': 1}], here))
        self.assertEqual(['CUSTOM_B', 'CUSTOM_A', 'VGPU'], self.classes(
            'bac', [{'VGPU': 1, 'CUSTOM_A': 1}, {'CUSTOM_B': 1, 'CUSTOM_FPGA': 1}], here))

    def test_a_device_that_becomes_one_of_another_type_has_the_class_that_is_left(self):
        here = {'a': 'CUSTOM_A', 'b': 'CUSTOM_B'}
        self.assertEqual(['CUSTOM_A', 'CUSTOM_A'], self.classes('xa', [{'CUSTOM_A': 2}], here))
        self.assertEqual(['CUSTOM_A', 'CUSTOM_B'], self.classes('xb', [{'CUSTOM_A': 1}, {'CUSTOM_B': 1}], here))
        self.assertEqual(['CUSTOM_A'], self.classes('b', [{'CUSTOM_A': 1}], here))

    def test_more_devices_than_are_allocated_are_left_to_the_claim(self):
        self.assertCountEqual(['CUSTOM_A', 'VGPU'], self.classes('aa', [{'CUSTOM_A': 1}], {'a': 'CUSTOM_A'}))

    def test_a_flavor_asks_for_devices_also_of_a_host_that_has_none(self):
        asks = {'resources:VGPU': '1', 'hw:pmem': '4GB', 'resources:CUSTOM_FPGA': '1', 'resources:CUSTOM_A16': '1',
                'resources:DISK_GB': '1', 'resources:NET_BW_EGR_KILOBIT_PER_SEC': '2000000'}
        flavor = objects.Flavor(extra_specs=asks)
        self.assertEqual({'VGPU', 'CUSTOM_PMEM_NAMESPACE_4GB'}, resources.asked(flavor, frozenset()))
        self.assertEqual({'VGPU', 'CUSTOM_PMEM_NAMESPACE_4GB', 'CUSTOM_A16'},
                         resources.asked(flavor, frozenset({'CUSTOM_A16'})))

    def test_a_flavor_asks_for_functions_by_aliases_where_they_are_ours(self):
        flavor = objects.Flavor(extra_specs={'pci_passthrough:alias': 'ours:1,theirs:1'})
        aliases = {name: PCIAlias(name, (PCIChoice(f'CUSTOM_{name.upper()}'),), 'legacy')
                   for name in ('ours', 'theirs')}
        self.assertEqual({'CUSTOM_OURS'}, resources.asked(flavor, frozenset({'CUSTOM_OURS'}), aliases))
        self.assertEqual(set(), resources.asked(flavor, frozenset({'CUSTOM_OURS'})))


class WireTestCase(base.TestCase):

    def sent(self, data):
        return migrate_data.LibvirtLiveMigrateData.obj_from_primitive(data.obj_to_primitive())

    def setUp(self):
        super().setUp()
        self.instance = objects.Instance(uuid=uuids.instance, resources=None)
        self.data = migrate_data.LibvirtLiveMigrateData()

    def test_each_end_reads_what_the_other_has_put(self):
        wire.put_question(self.data, LiveMigrationCheck(instance_uuid=uuids.instance, devices=None))
        asked = wire.question(self.sent(self.data))
        assert asked is not None
        self.assertEqual(uuids.instance, asked.instance_uuid)
        answer = LiveMigrationCheck.from_mdevs(uuids.instance, {uuids.a: 't'})
        # An earlier device of the guest is being released.
        has = InstanceResources.from_tuples(uuids.instance, [
            (uuids.provider, 'VGPU', identifier, MdevDetails(type='t', parent='p', parent_address=None,
                                                             device_api='vfio-pci', iommu_group=None, origin='created'))
            for identifier in (uuids.earlier, uuids.a)])
        wire.put_answer(self.data, answer, has)
        source = wire.source(self.sent(self.data), self.instance)
        assert source.check is not None
        self.assertEqual(([uuids.a], [uuids.a]), ([one.identifier for one in source.check.devices or ()],
                                                  [one.identifier for one in source.resources]))
        pair = DevicePair(kind='mdev', resource_class='VGPU', source=uuids.a, destination=uuids.b, type='t',
                          element=MDEV.format(uuids.b), seen=None)
        wire.put_map(self.data, DeviceMap.of(uuids.instance, uuids.migration, [pair], ''))
        sent = self.sent(self.data)
        found = wire.device_map(sent)
        assert found is not None
        self.assertEqual(uuids.b, found.pairs[0].destination)
        self.assertEqual(uuids.b, sent.target_mdevs[uuids.a])

    def test_a_host_without_us_says_nothing(self):
        self.assertIsNone(wire.question(self.data))
        self.assertIsNone(wire.device_map(self.data))
        self.data.target_mdevs = {uuids.a: uuids.b}
        self.assertIsNone(wire.device_map(self.data))

    def test_of_a_source_without_us_the_types_and_the_namespaces_are_known(self):
        self.data.source_mdev_types = {uuids.a: 'nvidia-35'}
        self.instance.resources = resources.of(namespaces('ns0'))
        source = wire.source(self.data, self.instance)
        self.assertIsNone(source.check)
        self.assertEqual([('vpmem', 'ns0'), ('mdev', uuids.a)],
                         [(one.kind, one.identifier) for one in source.resources])

    def test_without_the_devices_nova_changes_none(self):
        self.data.target_mdevs = {uuids.a: uuids.b}
        self.assertNotIn('target_mdevs', wire.without_devices(self.data))
        self.assertIn('target_mdevs', self.data)

    def test_what_cannot_be_read_is_an_error_and_no_silence(self):
        for text in ('', '[]', '{"check": 1}', '[' * 10 ** 6):
            self.data.target_mdevs = {wire.KEY: text}
            self.assertRaises(exception.MalformedObject, wire.question, self.data)
        self.data.target_mdevs = {wire.KEY: json.dumps({'check': '{}', 'resources': '{}', 'map': '{}'})}
        self.assertRaises(exception.MalformedObject, wire.question, self.data)
        self.assertRaises(exception.MalformedObject, wire.source, self.data, self.instance)
        self.assertRaises(exception.MalformedObject, wire.device_map, self.data)


class GuestTestCase(base.TestCase):

    def guest(self):
        made = config.LibvirtConfigGuest()
        made.uuid, made.name, made.memory, made.vcpus = uuids.instance, 'instance-1', 2 ** 20, 1
        made.virt_type, made.os_type, made.os_mach_type = 'kvm', 'hvm', 'q35'
        return made

    def test_nova_reads_the_devices_in_what_it_writes(self):
        made = self.guest()
        guest.equip(made, GuestConfig((NVDIMM, MDEV.format(uuids.mdev)), '<x:devices xmlns:x="urn:x"/>'))
        text = made.to_xml()
        self.assertIn('<x:devices xmlns:x="urn:x"/>', text)
        read = config.LibvirtConfigGuest()
        read.parse_str(text)
        self.assertEqual([uuids.mdev], [one.uuid for one in read.devices
                                        if isinstance(one, config.LibvirtConfigGuestHostdevMDEV)])
        self.assertEqual(['/dev/dax0.1'], [one.source_path for one in read.devices
                                           if isinstance(one, config.LibvirtConfigGuestVPMEM)])

    def test_memory_devices_have_room_and_slots(self):
        made = self.guest()
        guest.equip(made, GuestConfig((NVDIMM, NVDIMM), ''))
        self.assertEqual((2 ** 20 + 2 * 4192256, 2), (made.max_memory_size, made.max_memory_slots))
        without = self.guest()
        guest.equip(without, GuestConfig())
        self.assertEqual((None, 0, []), (without.max_memory_size, without.max_memory_slots, without.metadata))


class ProvidersTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.tree = provider_tree.ProviderTree()
        self.tree.new_root('node', uuids.node)
        self.tree.new_child('node_pci_0000_84_00_0', 'node')
        self.driver = mock.Mock(provider_tree=self.tree)
        self.providers = providers.NovaProviders(self.driver, 'node')

    def mark(self, allocated=0, **facts):
        self.driver.virtapi.reportclient.get_allocations_for_resource_provider.return_value = mock.Mock(
            allocations={uuids.instance: {'resources': {'VGPU': allocated}}})
        self.providers.mark(self.tree, [Provider(uuid=uuids.any, name='node_pci_0000_84_00_0', parent_uuid=uuids.node,
                                                 **{'totals': {'VGPU': 4}, 'reserved': {}, 'traits': [], **facts})])
        return self.tree.data('node_pci_0000_84_00_0')

    def inventory(self, total):
        self.tree.update_inventory('node_pci_0000_84_00_0', {'VGPU': {'total': total, 'reserved': 0}})

    def test_a_parent_is_found_by_its_name_once_nova_has_made_its_provider(self):
        self.assertEqual(self.tree.data('node_pci_0000_84_00_0').uuid, self.providers.uuid_of('pci_0000_84_00_0'))
        self.assertIsNone(self.providers.uuid_of('pci_0000_85_00_0'))

    def test_before_nova_has_a_tree_placement_is_asked_until_it_answers(self):
        self.driver.provider_tree = None
        ask = self.driver.virtapi.reportclient.get_providers_in_tree
        ask.side_effect = nova_exception.ResourceProviderRetrievalFailed(uuid=uuids.node)
        self.assertIsNone(self.providers.uuid_of('pci_0000_84_00_0'))
        ask.side_effect = [[{'name': 'node', 'uuid': uuids.node},
                            {'name': 'node_pci_0000_84_00_0', 'uuid': uuids.parent}]]
        self.assertEqual([uuids.parent, None, uuids.parent], [self.providers.uuid_of(name) for name in (
            'pci_0000_84_00_0', 'pci_0000_85_00_0', 'pci_0000_84_00_0')])

    def test_the_node_is_the_one_that_nova_made(self):
        self.driver._host.get_node_uuid.return_value = uuids.node
        self.assertEqual(uuids.node, self.providers.uuid_of(''))

    def test_what_nobody_may_get_is_reserved(self):
        self.inventory(4)
        self.assertEqual({'total': 4, 'reserved': 1}, self.mark(reserved={'VGPU': 1}).inventory['VGPU'])
        self.assertEqual({'total': 4, 'reserved': 0}, self.mark().inventory['VGPU'])

    def test_nova_counts_more_than_we_would_hand_out(self):
        self.inventory(6)
        self.assertEqual(3, self.mark(reserved={'VGPU': 1}).inventory['VGPU']['reserved'])
        self.inventory(2)
        self.assertEqual(0, self.mark(reserved={'VGPU': 1}).inventory['VGPU']['reserved'])

    def test_what_is_allocated_is_never_reserved(self):
        for allocated, reserved in ((0, 3), (1, 3), (2, 2), (4, 0), (5, 0)):
            self.inventory(4)
            self.assertEqual(reserved, self.mark(allocated, reserved={'VGPU': 3}).inventory['VGPU']['reserved'])
        ask = self.driver.virtapi.reportclient.get_allocations_for_resource_provider
        ask.side_effect = nova_exception.ResourceProviderAllocationRetrievalFailed(rp_uuid=uuids.any, error='no')
        self.inventory(4)                       # all of it may be allocated
        self.assertEqual(0, self.mark(reserved={'VGPU': 3}).inventory['VGPU']['reserved'])

    def test_our_traits_are_replaced_and_those_of_others_stay(self):
        self.inventory(4)
        self.tree.add_traits('node_pci_0000_84_00_0', 'OWNER_NOVA', 'CUSTOM_DEVICETRACK_MDEV_TYPE_OLD')
        self.assertEqual({'OWNER_NOVA', 'CUSTOM_DEVICETRACK_MDEV_TYPE_NEW'},
                         set(self.mark(traits=['CUSTOM_DEVICETRACK_MDEV_TYPE_NEW']).traits))


class StatesTestCase(base.TestCase):

    def state(self, **facts):
        instance = objects.Instance(**{'uuid': uuids.instance, 'deleted': False, 'host': None, 'task_state': None,
                                       'vm_state': vm_states.ACTIVE, **facts})
        return service.NovaService('compute-7')._state(instance)

    def test_what_became_of_an_instance(self):
        self.assertEqual('deleted', self.state(deleted=True, host='compute-7'))
        self.assertEqual('here', self.state(host='compute-7', vm_state=vm_states.SOFT_DELETED))
        self.assertEqual('elsewhere', self.state(host='compute-8'))
        self.assertEqual('offloaded', self.state(vm_state=vm_states.SHELVED_OFFLOADED))
        self.assertEqual('elsewhere', self.state(vm_state=vm_states.ERROR))

    def test_one_that_nova_works_on_is_unknown(self):
        self.assertIsNone(self.state(vm_state=vm_states.BUILDING, task_state=task_states.SCHEDULING))
        self.assertIsNone(self.state(vm_state=vm_states.SHELVED_OFFLOADED, task_state=task_states.UNSHELVING))
        self.assertIsNone(self.state(vm_state=vm_states.BUILDING))


class MigrationsTestCase(base.TestCase):
    """The migrations of Nova's database, as the host compute-7 tells them."""

    def told(self, instance_host, *migrations):
        """How the first one stands by what is told of it, while the instance is on some host."""
        instance = objects.Instance(uuid=uuids.instance, host=instance_host)
        found = [objects.Migration(**{
            'id': number, 'uuid': getattr(uuids, f'migration{number}'), 'instance_uuid': uuids.instance,
            'status': 'error', 'migration_type': 'live-migration', 'source_compute': 'compute-7',
            'dest_compute': 'compute-8', **facts}) for number, facts in enumerate(migrations)]
        with mock.patch.object(objects.MigrationList, 'get_by_filters', autospec=True,
                               side_effect=[found, [], []]), \
                mock.patch.object(objects.InstanceList, 'get_by_filters', autospec=True, return_value=[instance]):
            answer = service.NovaService('compute-7').migrations([uuids.migration0])
        return answer[uuids.migration0].status

    def test_a_live_migration_that_went_wrong_after_its_guest_had_left_is_over(self):
        self.assertEqual('completed', self.told('compute-8', {}))
        self.assertEqual('completed', self.told('compute-9', {}, {'source_compute': 'compute-8',
                                                                  'dest_compute': 'compute-9', 'status': 'completed'}))

    def test_while_the_instance_is_here_or_on_no_host_nobody_knows(self):
        self.assertEqual('error', self.told('compute-7', {}))
        self.assertEqual('error', self.told(None, {}))

    def test_of_a_newer_move_that_leaves_from_here_the_end_is_awaited(self):
        for status in ('migrating', 'finished', 'error'):
            newer = {'migration_type': 'resize', 'status': status}
            self.assertEqual('error', self.told('compute-8', {}, newer))

    def test_an_older_move_from_here_is_no_reason_to_wait(self):
        self.assertEqual('completed', self.told('compute-8', {'id': 9}, {'status': 'failed'}))

    def test_any_other_migration_may_have_left_data_here(self):
        for kind in ('migration', 'resize', 'evacuation'):
            self.assertEqual('error', self.told('compute-8', {'migration_type': kind}))
        self.assertEqual('error', self.told('compute-7', {'source_compute': 'compute-8', 'dest_compute': 'compute-7'}))
        self.assertEqual('running', self.told('compute-8', {'status': 'running'}))


class ErrorsTestCase(base.TestCase):

    def within(self, context, error):
        with context:
            raise error

    def test_the_owner_reads_nothing_of_the_host(self):
        instance = objects.Instance(uuid=uuids.instance)
        secret = exception.DeviceGone('mdev', 'secret-device', 'secret-reason')
        for made, wanted in ((errors.as_unavailable, nova_exception.ComputeResourcesUnavailable),
                             (errors.as_failed_check, nova_exception.MigrationPreCheckError),
                             (errors.as_failure, nova_exception.InternalError)):
            shown = self.assertRaises(wanted, self.within, made(instance), secret).format_message()
            self.assertNotIn('secret', shown)
            self.assertIn('DeviceGone', shown)

    def test_what_follows_on_novas_own_work_never_undoes_it(self):
        instance = objects.Instance(uuid=uuids.instance)
        for error in (exception.StoreUnavailable('store', 'gone'), exception.NotReady('compute-7')):
            self.within(errors.left_to_the_audit(instance, 'It'), error)
        self.assertRaises(ValueError, self.within, errors.left_to_the_audit(instance, 'It'), ValueError())

    def test_no_error_of_ours_gets_out_of_an_override(self):
        self.useFixture(fixtures.MockPatchObject(overrides, '_TARGETS', set()))

        class Driver:
            def method(self):
                return 'done'

            _check_for_host_rename = method

        @overrides.of_nova
        class Ours(Driver):
            def method(self):
                raise exception.DeviceGone('mdev', 'secret-device', 'secret-reason')

            _check_for_host_rename = more = method

        log = self.useFixture(fixtures.FakeLogger())
        shown = self.assertRaises(nova_exception.InternalError, Ours().method).format_message()
        self.assertNotIn('secret', shown)
        self.assertIn('secret-reason', log.output)
        self.assertEqual('done', Driver().method())
        # An operator must read why a service does not start, and Nova calls nothing that it does not have.
        self.assertRaises(exception.DeviceGone, Ours()._check_for_host_rename)
        self.assertRaises(exception.DeviceGone, Ours().more)
        name = f'{__name__}:{Driver.__qualname__}'
        self.assertEqual({f'{name}.method', f'{name}._check_for_host_rename'}, overrides.targets())

    def test_only_an_object_of_novas_own_class_becomes_one_of_ours(self):
        class Nova:
            pass

        class Ours(Nova):
            pass

        made = Nova()
        overrides.become(made, Ours)
        self.assertIsInstance(made, Ours)
        error = self.assertRaises(exception.UnknownNova, overrides.become, made, Ours)
        self.assertIn('Ours: not what ', str(error))
