"""A host with everything that a picture can show."""

from __future__ import annotations

import uuid

from devicetrack import vocabulary
from devicetrack.engine import withholding
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Missing
from devicetrack.objects.values import WipeProgress
from devicetrack.store import api as store_api
from devicetrack.testing import fake
from devicetrack.testing import fixtures
from devicetrack.tests import base
from devicetrack.tests.unit.cmd import program

HOSTILE = '<script>document.title = "run"</script>"\' onload=x \u202e\x1b[31m&amp;'


class HostTestCase(base.TestCase):
    """compute-7 has devices in each state, names and words of others, and findings."""

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=12, parents={'gpu': 4, 'gpu2': 2}, name='compute-7'))
        self.program = self.useFixture(program.Program(self.host.configuration, self.host.machine))
        machine = self.host.machine
        machine.add_namespace(HOSTILE, 'card', parent=HOSTILE)
        machine.add_namespace('a-name-' + 'without-an-end-' * 8, 'card', parent='numa', numa_node=1)
        self.host.audit()
        self.instances = [self.host.spawn(pmem=2), self.host.spawn(vgpu=1), self.host.spawn(pmem=1, vgpu=1)]
        store = self.host.store.store
        [host] = store.hosts()
        store.set_withheld([store_api.WithheldRow(host.uuid, fake.VPMEM, vocabulary.DEVICE, 'd5', withholding.to_json(
            {vocabulary.CORDONED: withholding.Cause(1, HOSTILE, HOSTILE)}), 1, 1)])
        self.host.manager.operator.cordon(fake.VPMEM, 'd0', reason='the module reports errors')
        self.host.manager.operator.cordon(fake.MDEV, 'gpu2', parent=True, reason='a new firmware')
        machine.missing = (Missing(DeviceKey(fake.VPMEM, 'd99'), '[x] y', 'this host has d0'),)
        machine.delete_guest(self.instances[2].uuid)
        leaving = next(row for row in self.host.records()
                       if (row.kind, row.instance_uuid) == (fake.VPMEM, self.instances[2].uuid))
        store.write(store_api.Changes(update=(store_api.Update(leaving, leaving._replace(
            state=vocabulary.RELEASING, generation=leaving.generation + 1)),)))
        machine.wiping[leaving.key] = WipeProgress('zero', 3 << 30, 4 << 30, 1 << 30, 5)

    def share(self) -> None:
        """A second guest has the device of an instance: a critical finding."""
        instance = self.instances[1]
        self.host.machine.start_guest(str(uuid.UUID(int=7)), self.host.manager.guest_config(instance).devices)

    def another_host(self) -> None:
        """compute-10, another machine in the same store; one of its devices has an owner."""
        there = self.useFixture(fixtures.Host(
            name='compute-10', configuration=self.useFixture(fixtures.Configuration(machine='compute-10')),
            store=self.host.store.store, devices=2))
        there.spawn(pmem=1)
