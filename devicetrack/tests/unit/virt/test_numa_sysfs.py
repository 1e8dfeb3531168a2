"""The sockets of NUMA nodes, from a tree of files as the kernel has it."""

from __future__ import annotations

from collections.abc import Mapping
import os
import shutil

import fixtures

from devicetrack.tests import base
from devicetrack.virt.libvirt import numa_sysfs


class TopologyTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.root = self.useFixture(fixtures.TempDir()).path

    def put(self, name: str, text: str) -> None:
        path = os.path.join(self.root, 'devices/system', name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w', encoding='ascii') as file:
            file.write(f'{text}\n')

    def add(self, lists: Mapping[int, str], sockets: Mapping[int, int]) -> None:
        """Add nodes with their lists of processors, and processors with their sockets."""
        self.put('node/online', ','.join(map(str, lists)))
        self.put('node/power/control', 'auto')
        for node, text in lists.items():
            self.put(f'node/node{node}/cpulist', text)
        for processor, socket in sockets.items():
            self.put(f'cpu/cpu{processor}/topology/physical_package_id', str(socket))

    def sockets(self) -> dict[int, int]:
        return dict(numa_sysfs.Topology(self.root).sockets())

    def test_two_nodes_of_each_socket(self) -> None:
        self.add({0: '0,4', 1: '1,5', 2: '2,6', 3: '3,7'}, {one: one % 4 // 2 for one in range(8)})
        self.assertEqual({0: 0, 1: 0, 2: 1, 3: 1}, self.sockets())

    def test_ranges_of_processors(self) -> None:
        self.add({0: '0-2,8-9', 10: '3-7'}, {one: int(3 <= one <= 7) for one in range(10)})
        self.assertEqual({0: 0, 10: 1}, self.sockets())

    def test_a_node_of_memory_alone_has_none_and_hinders_no_other(self) -> None:
        self.add({0: '0-1', 1: ''}, {0: 0, 1: 0})
        self.assertEqual({0: 0}, self.sockets())

    def test_a_node_keeps_its_socket_while_its_processors_are_offline(self) -> None:
        topology = numa_sysfs.Topology(self.root)
        self.add({0: '0-1', 1: ''}, {0: 0, 1: 0})
        self.assertEqual({0: 0}, dict(topology.sockets()))
        self.add({1: '3'}, {3: 0})
        for _again in range(2):
            self.assertEqual({0: 0, 1: 0}, dict(topology.sockets()))
            self.add({1: ''}, {})

    def test_one_node_on_two_sockets_makes_all_unknown(self) -> None:
        self.add({0: '0-1', 1: '2-3'}, {0: 0, 1: 1, 2: 1, 3: 1})
        self.assertEqual({}, self.sockets())

    def test_a_processor_without_a_socket_makes_all_unknown(self) -> None:
        for text in ('-1', 'none'):
            self.add({0: '0', 1: '1'}, {0: 0})
            self.put('cpu/cpu1/topology/physical_package_id', text)
            self.assertEqual({}, self.sockets())
        shutil.rmtree(os.path.join(self.root, 'devices/system/cpu/cpu1'))
        self.assertEqual({}, self.sockets())

    def test_no_list_makes_all_unknown(self) -> None:
        self.add({0: '0-', 1: '1'}, {0: 0, 1: 0})
        self.assertEqual({}, self.sockets())

    def test_no_nodes_at_all(self) -> None:
        self.assertEqual({}, self.sockets())

    def test_what_was_unknown_is_read_again(self) -> None:
        topology = numa_sysfs.Topology(self.root)
        self.assertEqual((), topology.sockets())
        self.add({0: '0', 1: '1'}, {0: 0, 1: 1})
        self.assertEqual(((0, 0), (1, 1)), topology.sockets())
