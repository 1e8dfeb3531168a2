"""Guests that move, while they run, with PCI functions: between two hosts with virtual functions of one card each.

The guests are those of libvirt's test driver. The cards are made of files, which are the same for both hosts: each host
hands out the functions of one card. The tests give functions to drivers as the libvirt of a real host does.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

from devicetrack import exception
from devicetrack.objects import DeviceRequest
from devicetrack.testing import compute_service
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.testing import pci as made
from devicetrack.testing import pci_models
from devicetrack.testing import region as regions
from devicetrack.tests import base
from devicetrack.tests.functional.claims import libvirt_hosts
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt.kinds import pci

VARIANT = 'igbvf_vfio_pci'
CLASS = 'CUSTOM_PCI_8086_10CA'
ONE_FUNCTION = DeviceRequest.of((CLASS, 1))


class LiveFunctionsTestCase(base.TestCase):
    """Hosts ``one`` and ``two``, with two virtual functions each, at other addresses."""

    def start(self, module: str | None = VARIANT, **spec: str) -> None:
        """:param spec: keys of ``device_spec``, on both hosts"""
        self.cards = self.useFixture(made.PCIHost())
        self.functions: dict[str, list[str]] = {}
        buses = itertools.count(3)
        if module is not None:
            self.cards.add_module(pci_models.IGB.vf or pci_models.IGB, module)

        def host(_devices: int, _parents: Any, name: str, configuration: Any,
                 **kwargs: Any) -> libvirt_hosts.LibvirtHost:
            address = self.cards.add_igb(f'0000:{next(buses):02x}:00.0')
            self.functions[name] = self.cards.make_vfs(address, 2)
            configuration.set('pci', device_spec=[json.dumps({
                'address': address, 'product_id': '10ca', 'live_migratable': 'yes', **spec})], alias=[
                    json.dumps({'name': name, 'vendor_id': '8086', 'product_id': '10ca', **says}) for name, says in (
                        ('moves', {'live_migratable': 'yes'}), ('stays', {'live_migratable': 'no'}), ('silent', {}))])
            configuration.set('devicetrack_pci', sysfs_root=self.cards.root, release_wait_s=0, functions=['all'])
            node = self.useFixture(libvirt_fixtures.TestNode())
            return libvirt_hosts.LibvirtHost(node.connect, {}, self.temp_dir(), name=name, kinds=[pci.PCI],
                                             configuration=configuration, **kwargs)

        self.region = self.useFixture(regions.Region(host=host))

    def spawn(self, alias: str | None = None, driver: str = VARIANT) -> Any:
        """Boot an instance on host one; libvirt binds its function."""
        instance = self.region.spawn('one', request=ONE_FUNCTION)
        if alias is not None:
            instance.flavor = compute_service.Flavor({'pci_passthrough:alias': f'{alias}:1'})
        self.bind(self.function_of('one', instance), driver)
        return instance

    def bind(self, function: str, driver: str) -> None:
        self.cards.unbind(function)
        self.cards.bind(function, driver)

    def function_of(self, host: str, instance: Any) -> str:
        [record] = self.region.hosts[host].records(instance)
        return str(record.identifier)

    def assert_refused(self, text: str, instance: Any) -> None:
        refused = self.assertRaises(exception.LiveMigrationUnsupported, self.region.live_migration, instance, 'two',
                                    request=ONE_FUNCTION)
        self.assertIn(text, str(refused))
        self.assertNotIn('\n', str(refused))
        self.assertEqual([], self.region.rows(instance)['two'])


class MovedTestCase(LiveFunctionsTestCase):

    def test_another_function_of_its_class_takes_its_place(self) -> None:
        self.start()
        instance = self.spawn('moves')
        before = self.function_of('one', instance)
        migration = self.region.live_migration(instance, 'two', request=ONE_FUNCTION)
        after = self.function_of('two', instance)
        self.assertIn(after, self.functions['two'])
        two: Any = self.region.two
        definitions = two.machine.received[instance.uuid]
        for text in (definitions.live, definitions.persistent):
            domain = domain_xml.parse(text)
            assert domain.record is not None
            self.assertEqual(((after,), [after]), (
                domain.pci_addresses, [device.identifier for device in domain.record.devices]))
        self.bind(after, VARIANT)
        self.region.arrive(instance, migration)
        self.bind(before, 'igbvf')
        self.region.audit()
        self.assertEqual({'one': [], 'two': [(after, 'current', 'active')]}, self.region.rows(instance))
        self.assertEqual('igbvf', self.cards.driver_of(before))
        self.region.spawn('one', request=ONE_FUNCTION)

    def test_a_function_that_libvirt_left_with_the_vendors_driver_comes_back(self) -> None:
        self.start()
        instance = self.spawn()
        before = self.function_of('one', instance)
        self.region.arrive(instance, self.region.live_migration(instance, 'two', request=ONE_FUNCTION))
        self.region.audit()
        self.assertEqual([], self.region.rows(instance)['one'])
        self.assertEqual(('igbvf', [(before, 'flr')]), (self.cards.driver_of(before), self.cards.resets))

    def test_a_move_that_fails_leaves_nothing(self) -> None:
        self.start()
        instance = self.spawn()
        before = self.region.rows(instance)
        migration = self.region.live_migration(instance, 'two', request=ONE_FUNCTION)
        self.region.roll_back(instance, migration)
        self.region.two.machine.delete_guest(instance.uuid)
        self.region.audit()
        self.assertEqual(before, self.region.rows(instance))

    def test_who_binds_the_function_is_the_destinations_to_say(self) -> None:
        self.start(managed='no')
        self.bind(self.functions['two'][0], VARIANT)
        self.bind(self.functions['one'][0], VARIANT)
        self.region.audit()
        instance = self.region.spawn('one', request=ONE_FUNCTION)
        self.region.live_migration(instance, 'two', request=ONE_FUNCTION)
        two: Any = self.region.two
        self.assertIn("managed='no'", two.machine.received[instance.uuid].live.replace('"', "'"))


class RefusedTestCase(LiveFunctionsTestCase):

    def test_a_function_that_no_spec_declares(self) -> None:
        self.start(live_migratable='no')
        self.assert_refused('no [pci] device_spec says live_migratable', self.spawn())

    def test_one_whose_alias_does_not_say_so(self) -> None:
        self.start()
        for alias in ('stays', 'silent'):
            instance = self.spawn(alias)
            self.assert_refused(f'the alias {alias} does not say live_migratable', instance)

    def test_one_whose_driver_copies_no_state(self) -> None:
        self.start()
        instance = self.spawn(driver=made.VFIO_PCI)
        self.assert_refused('has the driver vfio-pci, which cannot copy its state', instance)

    def test_where_the_destination_has_no_driver_that_can(self) -> None:
        self.start(module=None)
        instance = self.spawn()
        refused = self.assertRaises(exception.NoDevicePair, self.region.live_migration, instance, 'two',
                                    request=ONE_FUNCTION)
        self.assertIn('at the destination, ', str(refused))
        self.assertIn('this kernel has no module that can migrate 8086:10ca', str(refused))
        self.assertEqual([], self.region.rows(instance)['two'])
