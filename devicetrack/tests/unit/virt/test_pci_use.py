"""For what the host itself uses its functions."""

from __future__ import annotations

import builtins
from collections.abc import Collection
import errno
import functools
import os
from typing import Any
from unittest import mock

from devicetrack import exception
from devicetrack.testing import pci
from devicetrack.testing import pci_models
from devicetrack.tests import base
from devicetrack.virt.libvirt import jobs
from devicetrack.virt.libvirt import pci_privileged
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt import pci_use

NVME, OTHER, IGB, VIRTIO = '0000:01:00.0', '0000:02:00.0', '0000:03:00.0', '0000:04:00.0'
VMD, BEHIND = '0000:64:00.5', '10000:01:00.0'
BRIDGE, NETWORK = '0000:06:00.0', '0000:07:00.0'
VIRTIO_NET = pci_models.E1000._replace(product='1af4:1041', driver='virtio-pci')


class UseTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(pci.PCIHost())
        self.host.add_nvme(NVME, 'one')                     # nvme0
        self.host.add_nvme(OTHER, 'two')                    # nvme1
        self.host.add_igb(IGB)                              # enp3s0

    def use(self) -> pci_use.HostUse:
        return self.host.use()

    def uses(self) -> dict[str, str]:
        use = self.use()
        found = {function.address: use.of(function.address)
                 for function in pci_sysfs.Tree(self.host.root).functions()}
        return {address: why for address, why in found.items() if why is not None}

    def put(self, path: str, text: str) -> None:
        """Write a file below sysfs."""
        path = os.path.join(self.host.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w') as file:
            file.write(f'{text}\n')

    def write(self, name: str, text: str) -> None:
        with open(os.path.join(self.host.proc, name), 'a') as file:
            file.write(text)


class BlockTestCase(UseTestCase):

    def test_nothing_is_used(self) -> None:
        self.assertEqual({}, self.uses())

    def test_no_function_is_used_by_nobody(self) -> None:
        for address in ('', '..', '0000:99:00.0', '0000:01:00.0/../0000:03:00.0'):
            self.assertIsNone(self.use().of(address))

    def test_a_mounted_disk(self) -> None:
        self.host.mount('nvme0n1', '/srv')
        self.assertEqual({NVME: '/srv is mounted from nvme0n1'}, self.uses())

    def test_a_mounted_partition(self) -> None:
        self.host.add_partition('nvme1n1', 'nvme1n1p2')
        self.host.mount('nvme1n1p2', r'/srv/a\040b')
        self.assertEqual({OTHER: '/srv/a b is mounted from nvme1n1p2'}, self.uses())

    def test_a_disk_that_another_mount_namespace_has_mounted(self) -> None:
        for pid in (70, 71):
            self.host.add_process(pid, 'guest-agent', namespace=4026532200)
            self.host.mount('nvme0n1', '/data', pid)
        self.assertEqual({NVME: '/data is mounted from nvme0n1'}, self.uses())
        # One of the two processes has ended, whichever is asked first.
        for pid in (70, 71):
            path = os.path.join(self.host.proc, str(pid), 'mountinfo')
            os.rename(path, f'{path} before')
            self.assertEqual({NVME: '/data is mounted from nvme0n1'}, self.uses())
            os.rename(f'{path} before', path)

    def test_swap(self) -> None:
        self.host.add_partition('nvme0n1', 'nvme0n1p1')
        self.host.swap('nvme0n1p1')
        self.write('swaps', '/srv/file\\040one file\t1024\t0\t-3\n')
        self.assertEqual({NVME: 'nvme0n1p1 is swap'}, self.uses())

    def test_a_volume_group_on_two_disks(self) -> None:
        self.host.add_partition('nvme0n1', 'nvme0n1p1')
        self.host.build('dm-0', ['nvme0n1p1', 'nvme1n1'], 'vg0-data')
        self.assertEqual({NVME: 'nvme0n1p1 is part of dm-0', OTHER: 'nvme1n1 is part of dm-0'}, self.uses())

    def test_a_mounted_partition_of_an_array_of_encrypted_disks(self) -> None:
        self.host.build('dm-0', ['nvme0n1'], 'first')
        self.host.build('dm-1', ['nvme1n1'], 'second')
        self.host.build('md0', ['dm-0', 'dm-1'])
        self.host.add_partition('md0', 'md0p1')
        self.host.mount('md0p1', '/srv')
        self.assertEqual({NVME: '/srv is mounted from md0p1', OTHER: '/srv is mounted from md0p1'}, self.uses())

    def test_swap_and_mounts_by_the_names_of_device_mapper(self) -> None:
        self.host.build('dm-0', ['nvme0n1'], 'vg0-data')
        self.host.build('dm-1', ['nvme1n1'], 'vg1-swap')
        self.write('self/mountinfo', '40 27 0:99 / /srv rw - btrfs /dev/mapper/vg0-data rw,subvol=/\n')
        self.host.swap('mapper/vg1-swap')
        self.assertEqual({NVME: '/srv is mounted from dm-0', OTHER: 'dm-1 is swap'}, self.uses())

    def test_the_log_of_a_file_system_on_another_disk(self) -> None:
        self.write('self/mountinfo', '40 27 8:0 / /srv rw,relatime - xfs /dev/sda rw,logbufs=8,logdev=/dev/nvme1n1,'
                                     'noquota\n')
        self.assertEqual({OTHER: '/srv is mounted from nvme1n1'}, self.uses())

    def test_every_device_of_a_bcachefs(self) -> None:
        self.host.build('dm-0', ['nvme1n1'], 'vg0-a:b')
        self.write('self/mountinfo', '40 27 0:45 / /srv rw,relatime shared:1 - bcachefs '
                                     '/dev/nvme0n1:/dev/mapper/vg0-a:b rw,metadata_replicas=2\n')
        self.assertEqual({NVME: '/srv is mounted from nvme0n1', OTHER: '/srv is mounted from dm-0'}, self.uses())

    def test_every_device_of_a_btrfs(self) -> None:
        devices = os.path.join(self.host.root, 'fs/btrfs/2f1e', 'devices')
        os.makedirs(devices)
        os.makedirs(os.path.join(self.host.root, 'fs/btrfs/features'))
        for name in ('nvme0n1', 'nvme1n1'):
            os.symlink(f'../../../../block/{name}', os.path.join(devices, name))
        self.assertEqual({NVME: 'nvme0n1 belongs to a mounted btrfs', OTHER: 'nvme1n1 belongs to a mounted btrfs'},
                         self.uses())

    def test_a_namespace_with_paths_through_two_controllers(self) -> None:
        # The kernel's own multipath: a device below the subsystem, of no function, and a hidden one below each.
        for address, path in ((NVME, 'nvme5c0n1'), (OTHER, 'nvme5c1n1')):
            directory = os.path.join(self.host.path(address, 'nvme'), self.host.controller_of(address), path)
            os.mkdir(directory)
            os.symlink(directory, os.path.join(self.host.root, 'class/block', path))
        self.host.add_device('virtual/nvme-subsystem/nvme-subsys5', 'nvme5n1', 'block', 'block/259')
        self.host.add_partition('nvme5n1', 'nvme5n1p1')
        self.host.mount('nvme5n1p1', '/srv')
        self.assertEqual(dict.fromkeys((NVME, OTHER), '/srv is mounted from nvme5n1p1'), self.uses())

    def test_a_disk_that_the_kernel_exports(self) -> None:
        for at, node, text, why in (
                ('nvmet/subsystems/s/namespaces/1', 'device_path', '/dev/nvme0n1', 'nvme0n1 (nvmet)'),
                ('nvmet/subsystems/s/passthru', 'device_path', '/dev/nvme0', 'nvme0 (nvmet)'),
                ('target/core/iblock_0/one', 'udev_path', '/dev/nvme0n1', 'nvme0n1 (LIO)'),
                ('target/core/fileio_1/one', 'info', 'Status: ACTIVATED  Max Queue Depth: 128\n        TCM FILEIO ID: 0'
                 '        File: /dev/nvme0n1  Size: 1073741824  Mode: O_DSYNC Async: 0', 'nvme0n1 (LIO)')):
            directory = os.path.join('kernel/config', at)
            self.put(f'{directory}/{node}', text)
            self.put(f'{directory}/enable', '0')
            self.assertEqual({}, self.uses())
            self.put(f'{directory}/enable', '1')
            self.assertEqual({NVME: f'the kernel exports {why}'}, self.uses())
            self.put(f'{directory}/enable', '0')

    def test_a_file_that_the_kernel_exports(self) -> None:
        for at, node, text in (('nvmet/subsystems/s/namespaces/1', 'device_path', '/srv/nvme0n1'),
                               ('nvmet/subsystems/t/passthru', 'device_path', '/dev/nvme7'),
                               ('target/core/fileio_1/one', 'info', 'Status: DEACTIVATED')):
            self.put(f'kernel/config/{at}/{node}', text)
            self.put(f'kernel/config/{at}/enable', '1')
        self.assertEqual({}, self.uses())

    def test_a_loop_device_on_a_partition(self) -> None:
        self.host.add_partition('nvme1n1', 'nvme1n1p2')
        for name, backing in (('loop0', '/srv/image'), ('loop1', '/dev/nvme1n1p2'), ('loop2', '')):
            self.host.build(name, [])
            self.put(f'class/block/{name}/loop/backing_file', backing)
        self.assertEqual({OTHER: 'nvme1n1p2 is part of loop1'}, self.uses())
        self.host.mount('loop1', '/srv')
        self.assertEqual({OTHER: '/srv is mounted from loop1'}, self.uses())

    def test_devices_that_go_while_they_are_read(self) -> None:
        self.host.mount('nvme0n1', '/srv')
        self.host.build('dm-0', [], 'gone')
        self.host.build('loop0', [])
        self.put('class/block/loop0/loop/backing_file', '/dev/nvme1n1')
        self.put('kernel/config/nvmet/subsystems/s/passthru/device_path', '/dev/nvme1')
        self.put('kernel/config/nvmet/subsystems/s/passthru/enable', '1')
        real = builtins.open

        def opened(name: str, path: Any, *arguments: Any, **named: Any) -> Any:
            file = real(path, *arguments, **named)
            if os.fspath(path).endswith(name):
                file.close()
                raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
            return file

        for name in ('dm/name', 'loop/backing_file', 'passthru/device_path', 'passthru/enable'):
            with mock.patch.object(builtins, 'open', functools.partial(opened, name)):
                self.assertEqual('/srv is mounted from nvme0n1', self.uses()[NVME])
        with mock.patch.object(builtins, 'open', functools.partial(opened, '/stat')):
            self.assertEqual([], pci_use.Disks(self.host.root).writes(NVME))

    def test_devices_that_are_built_in_a_circle(self) -> None:
        self.host.build('dm-0', ['nvme0n1'], 'first')
        self.host.build('dm-1', ['dm-0'], 'second')
        os.symlink('../../dm-1', os.path.join(self.host.root, 'class/block/dm-0/slaves/dm-1'))
        self.assertEqual([NVME], list(self.uses()))

    def test_a_mount_of_what_is_no_function(self) -> None:
        self.write('self/mountinfo', '41 27 0:44 / /nfs rw - nfs4 server:/export rw\n'
                                     '42 27 8:1 / /boot rw shared:1 master:2 - ext4 /dev/sda1 rw\n'
                                     '43 27 0:45 / /new\rline\x85 rw - tmpfs tmpfs rw\n')
        self.assertEqual({}, self.uses())


class AboveTestCase(UseTestCase):
    """A function in front of other functions, which depend on it."""

    def setUp(self) -> None:
        super().setUp()
        self.host.add(VMD, pci_models.VMD)
        self.host.add(BEHIND, pci_models.NVME, behind=VMD)              # nvme2

    def add_network_behind_a_bridge(self) -> None:
        self.host.add(BRIDGE, pci_models.BRIDGE)
        self.host.add(NETWORK, pci_models.E1000, behind=BRIDGE)

    def test_a_disk_behind_a_controller(self) -> None:
        self.assertEqual({}, self.uses())
        self.host.build('dm-0', ['nvme2n1'], 'root')
        self.host.mount('dm-0', '/')
        used = self.uses()
        self.assertEqual({VMD, BEHIND}, set(used))
        self.assertEqual({'/ is mounted from dm-0'}, set(used.values()))

    def test_a_disk_behind_a_controller_that_a_process_has_open(self) -> None:
        self.host.add_process(4711, 'smartd')
        self.host.open_device(4711, 'nvme2')
        used = self.uses()
        self.assertEqual({VMD, BEHIND}, set(used))
        self.assertEqual({'process 4711 (smartd) has nvme2 open'}, set(used.values()))

    def test_an_interface_behind_a_bridge(self) -> None:
        self.add_network_behind_a_bridge()
        self.host.route('enp7s0')
        used = self.uses()
        self.assertEqual({BRIDGE, NETWORK}, set(used))
        self.assertEqual({'a route goes through its interface enp7s0'}, set(used.values()))


class HeldTestCase(UseTestCase):
    """Disks that only an exclusive open shows to be in use."""

    def setUp(self) -> None:
        super().setUp()
        self.opened: list[str] = []
        self.errors: dict[str, int] = {}
        self.host.make_node('nvme0n1')
        self.patch(os, 'open', functools.partial(self.open, os.open))

    def open(self, real: Any, path: str, flags: int, *more: Any, **named: Any) -> Any:
        if os.path.dirname(path) != self.host.dev:
            return real(path, flags, *more, **named)
        self.assertEqual(os.O_RDONLY | os.O_EXCL, flags & (os.O_ACCMODE | os.O_EXCL))
        self.opened.append(os.path.basename(path))
        if path.endswith(tuple(self.errors)):
            number = self.errors[os.path.basename(path)]
            raise OSError(number, os.strerror(number))
        return real(os.devnull, os.O_RDONLY)

    def test_one_of_nobody(self) -> None:
        self.assertEqual([None, None, None], [self.use().held(address) for address in (NVME, OTHER, IGB)])
        self.assertEqual(['nvme0n1'], self.opened)
        pci_privileged.check_host_use(self.host.root, NVME)

    def test_one_that_the_kernel_holds(self) -> None:
        self.errors = {'nvme0n1': errno.EBUSY}
        self.assertEqual({}, self.uses())
        self.assertEqual('nvme0n1', self.use().held(NVME))
        error = self.assertRaises(OSError, pci_privileged.check_host_use, self.host.root, NVME)
        self.assertEqual((errno.EBUSY, True), (error.errno, 'nvme0n1 is held exclusively' in str(error)))
        pci_privileged.check_host_use(self.host.root, OTHER)

    def test_one_behind_a_controller(self) -> None:
        self.host.add(VMD, pci_models.VMD)
        self.host.add(BEHIND, pci_models.NVME, behind=VMD)
        self.host.make_node('nvme2n1')
        self.errors = {'nvme2n1': errno.EBUSY}
        self.assertEqual(['nvme2n1'] * 2, [self.use().held(address) for address in (VMD, BEHIND)])
        self.assertIsNone(self.use().held(NVME))

    def test_one_that_went_away(self) -> None:
        self.errors = {'nvme0n1': errno.ENXIO}
        self.assertIsNone(self.use().held(NVME))

    def test_one_that_cannot_be_opened(self) -> None:
        self.errors = {'nvme0n1': errno.EPERM}
        error = self.assertRaises(OSError, pci_privileged.check_host_use, self.host.root, NVME)
        self.assertEqual((errno.EIO, True), (error.errno, 'it is unknown whether the host uses' in str(error)))

    def test_a_node_of_another_device_is_left_alone(self) -> None:
        os.rename(os.path.join(self.host.dev, 'nvme0n1'), os.path.join(self.host.dev, 'nvme1n1'))
        self.assertIsNone(self.use().held(OTHER))
        self.assertEqual([], self.opened)


class ProcessTestCase(UseTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host.add_process(812, 'smartd')

    def test_what_a_program_that_works_on_it_has_open_is_no_use(self) -> None:
        """It may have outlived the service that started it, and may be of an earlier release."""
        self.host.open_device(812, 'nvme0n1')
        self.assertEqual({NVME}, set(self.uses()))
        self.write('812/stat', '812 (python3) S 1 812 812 0')
        for command in (jobs.command(), *(('python3', '-I', '-S', f'/usr/lib/devicetrack/virt/libvirt/{name}.py')
                                          for name in ('wiper', 'reader'))):
            self.write('812/cmdline', '\0'.join((*command, '{}', '')))
            self.assertEqual({}, self.uses())
            os.unlink(os.path.join(self.host.proc, '812/cmdline'))

    def test_a_node_of_any_sort_that_is_open(self) -> None:
        for name in ('nvme0n1', 'nvme0', 'ng0n1'):
            self.host.open_device(812, name)
            self.assertEqual({NVME: f'process 812 (smartd) has {name} open'}, self.uses())
            os.unlink(os.path.join(self.host.proc, '812/fd/3'))

    def add_gpus(self, driver: str, *addresses: str) -> None:
        for address in addresses:
            self.host.add(address, pci_models.E1000._replace(product='10de:25b6', driver=None))
            self.host.bind(address, driver)

    def test_a_node_that_nvidias_driver_makes_without_a_device_in_sysfs(self) -> None:
        self.add_gpus('nvidia', '0000:0a:00.0', '0000:0b:00.0')
        for address, minor in (('0000:0a:00.0', 0), ('0000:0b:00.0', 1)):
            self.host.tell(f'driver/nvidia/gpus/{address}/information',
                           f'Model: \t\t NVIDIA A16\nBus Location: \t {address}\nDevice Minor: \t {minor}\n')
        for name, number, registered in (('nvidia0', '195:0', 'nvidia'), ('nvidia1', '195:1', 'nvidia-modeset'),
                                         ('nvidiactl', '195:255', 'nvidiactl'), ('nvidia-uvm', '510:0', 'nvidia-uvm'),
                                         ('cap3', '509:3', 'nvidia-caps')):
            self.host.add_unlisted(name, number, registered)
        self.host.tell('driver/nvidia/capabilities/gpu1/mig/gi1/access', 'DeviceFileMinor: 3\nDeviceFileMode: 292\n')
        for name, used in (('nvidia0', '0000:0a:00.0'), ('nvidia1', '0000:0b:00.0'), ('cap3', '0000:0b:00.0'),
                           ('nvidiactl', None), ('nvidia-uvm', None)):
            self.host.open_device(812, name)
            uses = self.uses()
            self.assertEqual([] if used is None else [used], list(uses))
            self.assertTrue(all('process 812 (smartd) has nvidia' in why for why in uses.values()))
            os.unlink(os.path.join(self.host.proc, '812/fd/3'))

    def test_a_gpu_that_does_not_tell_its_node_hides_no_other(self) -> None:
        self.add_gpus('nvidia', '0000:0a:00.0', '0000:0b:00.0')
        os.makedirs(os.path.join(self.host.proc, 'driver/nvidia/gpus/0000:0a:00.0/information'))    # it cannot be read
        self.host.tell('driver/nvidia/gpus/0000:0b:00.0/information', 'Device Minor: \t 1\n')
        for minor, used in ((0, '0000:0a:00.0'), (1, '0000:0b:00.0')):
            self.host.add_unlisted(f'nvidia{minor}', f'195:{minor}', 'nvidia')
            self.host.open_device(812, f'nvidia{minor}')
            self.assertEqual([used], list(self.uses()))
            os.unlink(os.path.join(self.host.proc, '812/fd/3'))

    def test_a_node_of_a_driver_that_tells_nothing_counts_for_all_its_functions(self) -> None:
        self.add_gpus('accel', '0000:0a:00.0', '0000:0b:00.0')
        self.add_gpus('other', '0000:0c:00.0')
        self.host.add_unlisted('accel_ctl', '300:0', 'accel-ctl')
        self.host.open_device(812, 'accel_ctl')
        self.assertEqual(['0000:0a:00.0', '0000:0b:00.0'], sorted(self.uses()))

    def test_the_compute_interface_of_amds_driver_counts_for_all_its_functions(self) -> None:
        self.add_gpus('amdgpu', '0000:0a:00.0')
        self.host.add_device('virtual/kfd', 'kfd', number='char/236')
        self.host.tell('devices', 'Character devices:\n236 kfd\n\nBlock devices:\n')
        self.host.open_device(812, 'kfd')
        self.assertEqual({'0000:0a:00.0': 'process 812 (smartd) has kfd open'}, self.uses())

    def test_a_node_of_nothing_that_is_known(self) -> None:
        self.host.add_unlisted('odd', '301:0', 'odd')
        self.host.open_device(812, 'odd')
        self.assertEqual({}, self.uses())

    def test_the_character_device_of_a_namespace_with_several_paths(self) -> None:
        directory = os.path.join(self.host.path(NVME, 'nvme'), 'nvme0', 'nvme5c0n1')
        os.mkdir(directory)
        os.symlink(directory, os.path.join(self.host.root, 'class/block/nvme5c0n1'))
        self.host.build('nvme5n1', [])
        self.host.add_device('virtual/nvme-subsystem/nvme-subsys5', 'ng5n1', number='char/241')
        self.host.open_device(812, 'ng5n1')
        self.assertEqual({NVME: 'process 812 (smartd) has ng5n1 open'}, self.uses())

    def test_a_node_of_another_name_in_another_directory(self) -> None:
        self.host.open_device(812, 'nvme0n1')
        node = os.path.join(self.host.dev, 'nvme0n1')
        for name in ('disk by another name', '../nvme1n1', 'container/x'):
            renamed = os.path.join(self.host.dev, name)
            os.makedirs(os.path.dirname(renamed), exist_ok=True)
            os.rename(node, renamed)
            node = renamed
            os.unlink(os.path.join(self.host.proc, '812/fd/3'))
            os.symlink(os.path.normpath(renamed), os.path.join(self.host.proc, '812/fd/3'))
            self.assertEqual({NVME: 'process 812 (smartd) has nvme0n1 open'}, self.uses())

    def test_a_process_whose_first_thread_has_ended(self) -> None:
        """The kernel shows nothing of the process any more, and everything of its other threads."""
        self.host.open_device(812, 'nvme0n1')
        process = os.path.join(self.host.proc, '812')
        self.host.mount('nvme1n1', '/data', 812)
        for thread in ('813', '814'):
            os.makedirs(os.path.join(process, 'task', thread, 'ns'))
            os.makedirs(os.path.join(process, 'task', thread, 'fd'))
        # Thread 814 has ended since the threads were listed.
        os.symlink('mnt:[4026532812]', os.path.join(process, 'task/813/ns/mnt'))
        for name in ('mountinfo', 'fd/3'):
            os.rename(os.path.join(process, name), os.path.join(process, 'task/813', name))
        os.unlink(os.path.join(process, 'ns/mnt'))
        self.assertEqual({NVME: 'process 812 (smartd) has nvme0n1 open', OTHER: '/data is mounted from nvme1n1'},
                         self.uses())

    def test_a_guest_that_has_the_function_is_not_the_host(self) -> None:
        self.host.add_device(f'{NVME}/vfio-dev', 'vfio0', number='char/511')
        self.host.open_device(812, 'vfio0')
        self.assertEqual({}, self.uses())

    def test_any_other_file_is_not_looked_at(self) -> None:
        looked = []
        real = os.stat

        def noted(path: object, *arguments: object, **named: object) -> os.stat_result:
            looked.append(path)
            return real(path, *arguments, **named)  # type: ignore[arg-type]

        for number, target in enumerate(('/srv/dev/file', 'socket:[77]', 'pipe:[78]', 'anon_inode:[eventfd]', '/dev/x',
                                         os.path.join(self.host.dev, 'null'))):
            os.symlink(target, os.path.join(self.host.proc, f'812/fd/{number}'))
        self.patch(os, 'stat', noted)
        self.use()
        self.assertEqual([], [path for path in looked if '/fd/' in str(path)])

    def test_a_descriptor_that_was_closed_hides_no_other(self) -> None:
        os.symlink(os.path.join(self.host.dev, 'nvme9'), os.path.join(self.host.proc, '812/fd/0'))
        self.host.open_device(812, 'nvme0')
        self.assertEqual({NVME: 'process 812 (smartd) has nvme0 open'}, self.uses())

    def test_processes_that_end_or_that_this_user_may_not_look_at(self) -> None:
        self.host.open_device(812, 'nvme0')
        for pid, name in ((70, 'ns/mnt'), (71, 'comm'), (72, 'mountinfo')):
            self.host.add_process(pid, 'short', namespace=4026532000 + pid)
            os.unlink(os.path.join(self.host.proc, str(pid), name))
        real = os.scandir

        def refused(path: str) -> object:
            if path.endswith('/71/fd'):
                raise PermissionError(13, 'Permission denied')
            return real(path)

        self.patch(os, 'scandir', refused)
        self.assertEqual({NVME: 'process 812 (smartd) has nvme0 open'}, self.uses())

    def test_a_name_that_would_forge_a_line(self) -> None:
        with open(os.path.join(self.host.proc, '812/comm'), 'w') as file:
            file.write('a\x1b\nb\n')
        self.host.open_device(812, 'nvme0')
        self.assertEqual({NVME: 'process 812 (a??b) has nvme0 open'}, self.uses())


class InterfaceTestCase(UseTestCase):

    def test_an_interface_that_nobody_configured(self) -> None:
        self.host.give_address('enp3s0', link_local=True)
        self.assertEqual({}, self.uses())

    def test_routes_before_addresses_and_the_default_route_before_all(self) -> None:
        self.host.give_address('enp3s0')
        self.assertEqual({IGB: 'an address is on its interface enp3s0'}, self.uses())
        self.host.route('enp3s0')
        self.assertEqual({IGB: 'a route goes through its interface enp3s0'}, self.uses())
        self.host.route('enp3s0', default=True)
        self.assertEqual({IGB: 'the default route goes through its interface enp3s0'}, self.uses())

    def test_an_address_of_ipv4_without_a_route(self) -> None:
        self.host.give_ipv4('enp3s0')
        self.assertEqual({IGB: 'an address is on its interface enp3s0'}, self.uses())

    def test_an_address_of_an_interface_that_is_down(self) -> None:
        self.host.give_address('enp3s0')
        self.host.give_ipv4('enp3s0')
        with open(os.path.join(self.host.root, 'class/net/enp3s0/flags'), 'w') as file:
            file.write('0x1002\n')
        self.assertEqual({}, self.uses())

    def test_routes_of_ipv6(self) -> None:
        none, gateway = '0' * 32, 'fe80' + '0' * 27 + '1'
        for destination, prefix, flags, why in (
                (none, '00', '00200200', None), ('fd' + '0' * 30, '40', '00000001', 'a'),
                (none, '00', '00000003', 'the default')):
            self.write('net/ipv6_route', f'{destination} {prefix} {none} 00 {gateway} 00000400 00000001 00000000 '
                                         f'{flags}   enp3s0\n')
            self.assertEqual({IGB: f'{why} route goes through its interface enp3s0'} if why else {}, self.uses())

    def test_a_route_that_refuses_is_none(self) -> None:
        self.write('net/route', 'enp3s0\t00000000\t00000000\t0201\t0\t0\t0\t00000000\t0\t0\t0\n')
        self.assertEqual({}, self.uses())

    def test_a_bridge_on_a_virtual_function(self) -> None:
        first, _second = self.host.make_vfs(IGB, 2)
        self.host.build_interface('br0', 'enp3s0v0')
        self.assertEqual({first: 'br0 is built on its interface enp3s0v0'}, self.uses())

    def test_an_interface_in_another_network_namespace(self) -> None:
        first, _second = self.host.make_vfs(IGB, 2)
        self.host.hide_interface(first)
        self.assertEqual({first: 'its network interface is in another network namespace'}, self.uses())

    def test_an_interface_of_virtio(self) -> None:
        # Its directory is below virtio's device, which is below the function.
        self.host.add(VIRTIO, VIRTIO_NET)
        self.host.add_device(f'{VIRTIO}/virtio0/net', 'eth0', 'net')
        self.assertEqual({}, self.uses())
        self.host.route('eth0')
        self.assertEqual({VIRTIO: 'a route goes through its interface eth0'}, self.uses())

    def test_an_interface_of_virtio_in_another_network_namespace(self) -> None:
        self.host.add(VIRTIO, VIRTIO_NET)
        self.assertEqual({}, self.uses())
        os.makedirs(self.host.path(VIRTIO, 'virtio0/net'))
        self.assertEqual({VIRTIO: 'its network interface is in another network namespace'}, self.uses())
        error = self.assertRaises(OSError, pci_privileged.unbind, self.host.root, VIRTIO)
        self.assertEqual(errno.EBUSY, error.errno)

    def test_a_file_beside_the_interfaces(self) -> None:
        with open(os.path.join(self.host.root, 'class/net/bonding_masters'), 'w') as file:
            file.write('\n')
        self.host.route('enp3s0')
        self.assertEqual([IGB], list(self.uses()))

    def test_an_interface_that_is_just_going_away_hides_no_other(self) -> None:
        self.host.mount('nvme0n1', '/srv')
        self.host.give_address('enp3s0')
        self.host.give_ipv4('enp3s0')
        real = open

        def opened(gone: tuple[str, ...], number: int, path: str, *arguments: Any) -> Any:
            if os.path.basename(path) in gone:
                raise OSError(number, os.strerror(number))
            return real(path, *arguments)

        for gone in (('flags', 'ifindex'), ('flags',)):
            for number in (errno.EINVAL, errno.ENODEV):
                with mock.patch.object(builtins, 'open', functools.partial(opened, gone, number)):
                    self.assertEqual([NVME], list(self.uses()))


class UnknownTestCase(UseTestCase):
    """Unknown is not unused."""

    def test_mounts_that_are_not_there(self) -> None:
        os.unlink(os.path.join(self.host.proc, 'self/mountinfo'))
        error = self.assertRaises(exception.CommandFailed, self.use)
        self.assertIn('self/mountinfo: No such file or directory', str(error))

    def test_what_the_kernel_never_writes(self) -> None:
        for name, text, said in (('1/mountinfo', '40 27 259:1 / /srv rw\n', 'line 2: 6 fields, 10 are expected'),
                                 ('swaps', 'x\n', 'line 2: 1 fields, 2 are expected'),
                                 ('net/route', 'a\tx\tx\tx\t0\t0\t0\t0\n', 'x: not a hexadecimal number'),
                                 ('net/if_inet6', 'a b c d\n', 'line 1: 4 fields, 6 are expected'),
                                 ('net/ipv6_route', 'a b\n', 'line 1: 2 fields, 10 are expected')):
            path = os.path.join(self.host.proc, name)
            with open(path) as file:
                before = file.read()
            self.write(name, text)
            error = self.assertRaises(exception.InvalidDocument, self.use)
            self.assertEqual(f'{path}: {said}', str(error))
            with open(path, 'w') as file:
                file.write(before)

    def test_files_that_cannot_be_read(self) -> None:
        for name in ('swaps', 'net/route'):
            path = os.path.join(self.host.proc, name)
            os.rename(path, f'{path} before')
            os.mkdir(path)
            error = self.assertRaises(exception.CommandFailed, self.use)
            self.assertIn(f'{path}: Is a directory', str(error))
            os.rmdir(path)
            os.rename(f'{path} before', path)

    def test_addresses_of_which_the_kernel_does_not_tell(self) -> None:
        def fails() -> Collection[int]:
            raise PermissionError(1, 'Operation not permitted')

        self.assertRaises(exception.CommandFailed, pci_use.HostUse, self.host.root, self.host.proc, self.host.dev,
                          fails)

    def test_classes_that_cannot_be_listed(self) -> None:
        path = os.path.join(self.host.root, 'class/block')
        os.rename(path, f'{path} before')
        os.symlink('block', path)
        self.assertRaises(exception.CommandFailed, self.use)

    def test_a_kernel_without_block_devices_swap_and_ipv6(self) -> None:
        for path in ('class/block', 'dev', 'class/nvme'):
            os.rename(os.path.join(self.host.root, path), os.path.join(self.host.root, f'{path} before'))
        for path in ('swaps', 'net/ipv6_route', 'net/if_inet6'):
            os.unlink(os.path.join(self.host.proc, path))
        self.assertEqual({}, self.uses())


class ThisMachineTestCase(base.TestCase):
    """The kernel that runs the tests, with whatever it runs on."""

    def test_the_functions_of_mounted_disks_and_of_the_default_route_are_used(self) -> None:
        use = pci_use.HostUse()
        expected = set()
        with open('/proc/self/mountinfo') as mounts, open('/proc/net/route') as routes:
            links = [f'/sys/dev/block/{line.split()[2]}' for line in mounts]
            links += [f'/sys/class/net/{line.split()[0]}' for line in routes if line.split()[1] == '00000000']
        functions = {function.address for function in pci_sysfs.Tree().functions()}
        for link in filter(os.path.lexists, links):
            expected |= set(os.path.realpath(link).split('/')[-6:]) & functions
        self.assertEqual(set(), {address for address in expected if use.of(address) is None})
        for address in functions:
            self.assertNotEqual('', use.of(address))
