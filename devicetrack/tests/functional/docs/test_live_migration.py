"""The calls that stand for a live migration on libvirt's test driver, as the page about wiring says."""

from __future__ import annotations

import runpy
from typing import Any

import libvirt

import devicetrack
from devicetrack.testing import compute_service
from devicetrack.testing import fixtures
from devicetrack.tests import base
from devicetrack.tests.functional.docs.test_documented_code import DOCS
from devicetrack.tests.functional.docs.test_documented_code import GUESTS


class Host:
    """A host with mediated devices on a connection of its own to the test driver."""

    def __init__(self, test: base.TestCase, name: str, data: compute_service.ServiceData) -> None:
        configuration = test.useFixture(fixtures.Configuration(machine=name))
        uri = f'test://{DOCS}/user/host.xml'
        configuration.set('libvirt', connection_uri=uri)
        configuration.set('devices', enabled_mdev_types=['nvidia-35'])
        self.connection = libvirt.open(uri)
        self.guests = runpy.run_path(GUESTS)['Guests'](self.connection)
        test.addCleanup(self.connection.close)
        driver = devicetrack.load_driver(configuration.conf, name, connect=lambda: self.connection)
        store = test.useFixture(fixtures.SQLiteStore(configuration.conf)).store
        self.manager = devicetrack.ClaimManager(name, driver, store, configuration.conf,
                                                compute_service.View(data, name))
        test.addCleanup(self.manager.close)
        self.manager.init_host(None)


class TestOnTheTestDriver(base.TestCase):

    def test_a_guest_with_a_mediated_device_is_defined_by_what_the_source_returns(self) -> None:
        data = compute_service.ServiceData()
        one, two = Host(self, 'one', data), Host(self, 'two', data)
        instance: Any = compute_service.Instance(host='one')
        data.instances.append(instance)
        request = devicetrack.DeviceRequest.of(('VGPU', 1))
        with one.manager.instance_claim(None, instance, 'one', request):
            one.manager.realize(None, instance)
            config = one.manager.guest_config(instance)
            one.guests.start_guest(instance.uuid, config.devices, metadata=config.metadata)
            one.manager.started(None, instance)

        check = one.manager.check_can_live_migrate_source(
            instance, two.manager.check_can_live_migrate_destination(instance))
        migration = data.create_migration(instance, 'two', compute_service.LIVE_MIGRATION)
        with two.manager.live_migration_claim(None, instance, 'two', request, migration, check=check):
            two.manager.realize(None, instance)
            device_map = two.manager.device_map(instance, migration)
        definitions = one.manager.migration_definitions(None, instance, migration, device_map)
        two.connection.defineXML(definitions.persistent).create()
        left = one.connection.lookupByUUIDString(instance.uuid)
        self.assertRaises(libvirt.libvirtError, left.jobInfo)       # so ``is_copying`` is False here
        one.guests.delete_guest(instance.uuid)

        self.assertEqual([False, True], [host.manager.placed()[1].runs_here(instance.uuid) for host in (one, two)])
        two.manager.started(None, instance)
        instance.host, migration.status = 'two', 'completed'
        one.manager.drop_move_claim_at_source(None, instance, migration)
        self.assertEqual([[], []], [host.manager.update_available_resource(None, host.manager.host)
                                    for host in (one, two)])
        self.assertEqual([0, 1], [len(host.manager.resources_of(instance.uuid)) for host in (one, two)])
