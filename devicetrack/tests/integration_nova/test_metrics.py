"""The adapter counts for Prometheus when its option says so."""

from __future__ import annotations

import builtins
from typing import Any
from unittest import mock

import fixtures
import nova.conf
import prometheus_client

import devicetrack
from devicetrack import exception
from devicetrack.nova import binding
from devicetrack.testing import fake
from devicetrack.tests import base


class MetricsTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        # Nova's own is the process's.
        self.useFixture(fixtures.MockPatchObject(nova.conf, 'CONF', self.conf))
        self.patch(binding, 'state_path', lambda host: self.state_path)
        self.patch(devicetrack, 'load_driver', lambda conf, host, connect, path: fake.FakeDriver(host, conf, path))
        self.driver = mock.Mock()
        self.driver._host.get_hostname.return_value = 'compute-7'

    def binding(self, counts: bool) -> binding.Binding:
        self.configuration.set('devicetrack', metrics=counts)
        bound = binding.Binding(self.driver, mock.Mock(host='compute-7', pci_tracker=None))
        self.addCleanup(bound.close)
        return bound

    def audits(self) -> float | None:
        return prometheus_client.REGISTRY.get_sample_value('devicetrack_audit_duration_seconds_count',
                                                           {'host': 'compute-7'})

    def test_it_counts_from_its_start_to_its_end(self) -> None:
        bound = self.binding(True)
        self.useFixture(fixtures.MockPatch('nova.objects.InstanceList.get_uuids_by_host', return_value=[]))
        bound.start()
        self.assertEqual(1, self.audits())
        bound.close()
        self.assertIsNone(self.audits())

    def test_it_does_not_without_the_option(self) -> None:
        self.assertIsNone(self.binding(False).manager.metering.meter)
        self.assertIsNone(self.audits())

    def test_without_the_extra_the_service_does_not_start(self) -> None:
        real = builtins.__import__

        def without(name: str, *arguments: Any, **named: Any) -> Any:
            if name == 'prometheus_client':
                raise ModuleNotFoundError(name)
            return real(name, *arguments, **named)

        self.patch(builtins, '__import__', without)
        error = self.assertRaises(exception.MissingExtra, self.binding, True)
        self.assertIn('pip install devicetrack[metrics]', str(error))
