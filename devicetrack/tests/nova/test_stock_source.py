"""Guests that come from a source without the adapter, which tells what Nova's own messages have."""

from __future__ import annotations

from typing import Any

import fixtures
from nova import conf as nova_conf
from nova.conf import devices as devices_conf
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.libvirt import base as nova_base

from devicetrack.tests.nova.stock_failures import base

_CLASS = 'CUSTOM_NOTVGPU'
_TYPE = fakelibvirt.NVIDIA_11_VGPU_TYPE


class StockSourceTestCase(nova_base.LibvirtMigrationMixin, base.MdevGuests):

    def setUp(self) -> None:
        # Those that can do it.
        self.FAKE_LIBVIRT_VERSION, self.FAKE_QEMU_VERSION = 8_006_000, 8_001_000
        super().setUp()
        devices_conf.register_dynamic_opts(nova_conf.CONF)
        parents = [one.removeprefix('pci_').replace('_', ':', 2).replace('_', '.') for one in (
            fakelibvirt.MDEVCAP_DEV1_PCI_ADDR, fakelibvirt.MDEVCAP_DEV2_PCI_ADDR)]
        self.flags(device_addresses=parents, mdev_class=_CLASS, group=f'mdev_{_TYPE}')
        self.src = self.start_compute_with_vgpu('src')
        self.dest = self.start_compute_with_vgpu('dest')
        self.server = self.boot('src', self._create_flavor(extra_spec={f'resources:{_CLASS}': '2'}))

    def test_devices_of_a_class_of_their_own_migrate_by_type(self) -> None:
        said: list[Any] = []
        # The answer of a source with the adapter is more than that of Nova alone.
        self.useFixture(fixtures.MonkeyPatch('devicetrack.nova.wire.put_answer',
                                             lambda data, *_args: said.append(data.source_mdev_types)))
        self._live_migrate(self.server, 'completed')
        [types] = said
        self.assertEqual([_TYPE] * 2, list(types.values()))
        self.assertEqual('dest', self.instance(self.server).host)
        self.assertEqual(2, len(self.mdevs('dest', self.server) - types.keys()))
