"""Claims record Nova's names of instances when the option says so."""

from __future__ import annotations

from unittest import mock

import fixtures
from nova import objects
import nova.conf

import devicetrack
from devicetrack.claims.instance_fields import name_to_record
from devicetrack.nova import binding
from devicetrack.nova.subject import Subject
from devicetrack.testing import fake
from devicetrack.tests import base


class InstanceNamesTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        # Nova's own is the process's.
        self.useFixture(fixtures.MockPatchObject(nova.conf, 'CONF', self.conf))
        self.patch(binding, 'state_path', lambda host: self.state_path)
        self.patch(devicetrack, 'load_driver', lambda conf, host, connect, path: fake.FakeDriver(host, conf, path))
        objects.register_all()

    def recorded(self) -> str | None:
        driver = mock.Mock()
        driver._host.get_hostname.return_value = 'compute-7'
        bound = binding.Binding(driver, mock.Mock(host='compute-7', pci_tracker=None))
        self.addCleanup(bound.close)
        instance = objects.Instance(uuid='0c3f9a52-0b1a-4f0e-9d0c-3a7f8a1e2b01', display_name='web-1')
        return name_to_record(bound.manager._parts.instances, Subject(instance))

    def test_they_are_recorded_with_the_option(self) -> None:
        self.configuration.set('devicetrack', instance_names=True)
        self.assertEqual('web-1', self.recorded())

    def test_they_are_not_by_default(self) -> None:
        self.assertIsNone(self.recorded())
