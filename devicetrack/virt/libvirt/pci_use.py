"""Tells from sysfs and proc(5) which PCI functions the host itself uses, and for what.

libvirt would give a guest even a controller whose file system the host has mounted, or the host's management network.
So code that hands out functions asks here first. These count as use:

- A block device of the function, or one that is built on it (partition, device mapper with LVM, LUKS and multipath, MD,
  bcache, a loop device, the common device of several NVMe paths), is mounted in any mount namespace that can be read,
  is swap, belongs to a mounted btrfs, is held by another block device, or is exported by the kernel (nvmet, LIO). nvmet
  also exports whole controllers.
- A process has a block or character device of the function open. Only root sees what other users' processes have open.
  A process that looks at devices for a moment, as udev does, counts for that moment. A guest that has the function by
  VFIO does not count. A driver may register a node without a device in sysfs, as NVIDIA's and AMD's do: see
  :class:`_Unlisted`.
- A route goes through a network interface of the function, the interface has an IPv4 address, or an IPv6 address beside
  its link-local one, another interface is built on it (bridge, bond, team, Open vSwitch, VLAN, macvlan), or it is in
  another network namespace.

A function in front of others, such as a bridge or Intel's Volume Management Device, is used if one of those is.

ZFS and DRBD leave no trace in these files. But they hold their devices exclusively, so root can tell by opening them
(:meth:`HostUse.held`).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import errno
import functools
import glob
import itertools
import os
import re
import stat
from typing import Final

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.virt.libvirt import device_users
from devicetrack.virt.libvirt import interface_addresses
from devicetrack.virt.libvirt import kernel_files
from devicetrack.virt.libvirt import worker

# A path of an NVMe namespace (nvme_mpath_set_disk_name in Linux: drivers/nvme/host/multipath.c), which is hidden, and
# the character device of a namespace.
_NVME_PATH: Final = re.compile(r'nvme([0-9]+)c[0-9]+n([0-9]+)')
_NVME_GENERIC: Final = re.compile(r'ng([0-9]+n[0-9]+)')
_CONTROLLER: Final = re.compile(r'/dev/nvme[0-9]+')
# How LIO names the file or block device of a fileio (Linux: drivers/target/target_core_file.c).
_FILEIO: Final = re.compile(r'\bFile: (\S+)')
_LOOP: Final = 'loop'
# Mount options that name further devices of a file system: those of XFS, of bcachefs and of ext4.
_BESIDE: Final = re.compile(r'(?:^|,)(?:logdev|rtdev|journal_path)=(/dev/[^,]+)')
# The source of a bcachefs on several disks is all their paths (bch2_show_devname in Linux: fs/bcachefs/fs.c).
_NEXT_DISK: Final = re.compile(r':(?=/dev/)')
_ESCAPED: Final = re.compile(r'\\([0-7]{3})')
_LOWER: Final = 'lower_'
_VIRTIO: Final = re.compile(r'virtio[0-9]+')
_VIRTIO_DRIVER: Final = 'virtio-pci'
# include/uapi/linux/if.h, include/uapi/linux/route.h, and the scopes that net/ipv6/addrconf.c prints.
_UP: Final = 0x1
_REJECT: Final = 0x200
_LINK_LOCAL: Final = 0x20
_ADDRESSED: Final = 'an address is on its interface'
_MANY_HAVE_OPEN: Final = frozenset(('null', 'zero', 'full', 'random', 'urandom', 'tty', 'ptmx', 'kvm'))
_SORTS: Final = {stat.S_IFBLK: 'block', stat.S_IFCHR: 'char'}
# Names of nodes of all functions of a driver that has another name: AMD's compute interface (Linux:
# drivers/gpu/drm/amd/amdkfd/kfd_chardev.c).
_OF_DRIVERS: Final = {'kfd': 'amdgpu'}
# What NVIDIA's driver writes into the files of a function and of a part of one, and how its nodes for parts are named.
_MINOR: Final = re.compile(rb'^Device(?: Minor|FileMinor):\s*([0-9]+)\s*$', re.MULTILINE)
_CAPABILITIES: Final = '-caps'
_SORTS_OF_NODES: Final = ('', '-frontend', _CAPABILITIES)
_UNTOLD: Final = (False, '')
# The places of the numbers in a disk's statistics: writes, sectors of them, discards, sectors of them.
_WRITTEN: Final = (4, 6, 11, 13)
_DISCARDED: Final = 13
_EXCLUSIVELY: Final = os.O_RDONLY | os.O_EXCL | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# It went away, has no node here, or has no medium.
_NOT_THERE: Final = frozenset((errno.ENOENT, errno.ENXIO, errno.ENODEV, errno.ENOMEDIUM))
# A file or a process went away, also after the file was opened (kernfs_seq_start in Linux: fs/kernfs/file.c). So did an
# interface whose attributes say what netdev_show (net/core/net-sysfs.c) says of one that is being unregistered.
_GONE: Final = frozenset((errno.ENOENT, errno.ESRCH, errno.ENODEV))
_UNREGISTERED: Final = _GONE | {errno.EINVAL}
_MULTICAST_OR_LINK_LOCAL: Final = ('ff', 'fe8', 'fe9', 'fea', 'feb')

# The end of one of the first words of the program that works on devices (devicetrack.virt.libvirt.jobs.command), and
# of the programs of earlier releases, which may go on after an upgrade.
_PROGRAMS: Final = (worker.__name__, '/devicetrack/virt/libvirt/wiper.py', '/devicetrack/virt/libvirt/reader.py')
_PROGRAM_AT: Final = 7


class HostUse:
    """The functions that the host uses now. The constructor reads everything, which costs most with many processes.

    :param sysfs: where sysfs is
    :param proc: where the process file system is
    :param dev: where the device nodes are that processes have open
    :param with_ipv4: tells the numbers of the interfaces that have an IPv4 address
    :raises CommandFailed: the mounts, the block devices or the interfaces of this host cannot be read, so its use of
        functions is unknown
    :raises InvalidDocument: the kernel's text about them cannot be parsed
    """

    def __init__(self, sysfs: str = '/sys', proc: str = '/proc', dev: str = '/dev',
                 with_ipv4: Callable[[], Collection[int]] = interface_addresses.with_ipv4) -> None:
        self._sysfs = sysfs
        self._uses: dict[str, str] = {}
        self._opened: set[str] = set()          # functions that processes have open, and nothing else uses
        self._dev = dev
        self._blocks = blocks = _Blocks(sysfs)
        processes = _Processes(proc, dev, blocks)
        for name, where in itertools.chain(_mounted(os.path.join(proc, 'self/mountinfo'), blocks), processes.mounted):
            self._use(blocks.functions(name), f'{where} is mounted from {name}')
        for name in blocks.of_btrfs():
            self._use(blocks.functions(name), f'{name} belongs to a mounted btrfs')
        for name in _swaps(proc, blocks):
            self._use(blocks.functions(name), f'{name} is swap')
        for name, upper in blocks.held():
            self._use(blocks.functions(name), f'{name} is part of {upper}')
        for addresses, name, target in _exported(sysfs, blocks):
            self._use(addresses, f'the kernel exports {name} ({target})')
        interfaces, why_used = _interfaces(sysfs, proc, with_ipv4)
        for interface, addresses in interfaces.items():
            if interface in why_used:
                self._use(addresses, why_used[interface])
        # The kernel lists interfaces of this network namespace only.
        self._here = frozenset(itertools.chain.from_iterable(interfaces.values()))
        self._elsewhere: dict[str, bool] = {}
        unlisted = _Unlisted(sysfs, proc)
        for pid, program, sort, number in processes.opened:
            addresses, name = _open_device(sysfs, sort, number, blocks, unlisted)
            self._opened.update(address for address in addresses if address not in self._uses)
            self._use(addresses, f'process {pid} ({program}) has {name} open')

    def of(self, address: str) -> str | None:
        """Say in one phrase why the host uses a function; None if it does not, as far as this process can see.

        Each function is looked at alone: the use of a virtual function does not count as use of its physical one.
        """
        use = self._uses.get(address)
        if use is None and self._is_elsewhere(address):
            use = 'its network interface is in another network namespace'
        return use

    def held(self, address: str) -> str | None:
        """Name a block device of a function that somebody holds exclusively; None if nobody holds any. For root alone.

        This opens each block device of the function exclusively for a moment, and reads nothing. Another process that
        opens it so in that moment finds it busy.

        :raises OSError: one cannot be opened, so its use is unknown
        """
        for name in self._blocks.names(address):
            try:
                if self._is_node(name):
                    os.close(os.open(os.path.join(self._dev, name), _EXCLUSIVELY))
            except OSError as error:
                if error.errno == errno.EBUSY:
                    return name
                if error.errno not in _NOT_THERE:
                    raise
        return None

    def _is_node(self, name: str) -> bool:
        """Whether the node of a block device's name is that of this block device."""
        status = os.lstat(os.path.join(self._dev, name))
        number = f'{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}'
        return stat.S_ISBLK(status.st_mode) and self._blocks.name_of(number) == name

    def is_only_open(self, address: str) -> bool:
        """Whether the only use of a function is that processes have it open, as udev does with a new disk."""
        return address in self._opened

    def _is_elsewhere(self, address: str) -> bool:
        """Whether a function has an interface in another network namespace, and none here."""
        if address in self._here or not vocabulary.PCI_ADDRESS.fullmatch(address):
            return False
        if address not in self._elsewhere:
            # The kernel keeps the directory for interfaces of other namespaces, and shows none of them in it.
            found = [one for one in map(_entries, self._interfaces_of(address)) if one is not None]
            self._elsewhere[address] = bool(found) and not any(found)
        return self._elsewhere[address]

    def _interfaces_of(self, address: str) -> list[str]:
        """Return the directories in which the interfaces of a function can be."""
        directory = f'{self._sysfs}/bus/pci/devices/{address}'
        # Only this driver puts a device of its own in between. Listing every function would take longer than the rest.
        of_virtio = kernel_files.link(directory, 'driver') == _VIRTIO_DRIVER
        below = filter(_VIRTIO.fullmatch, _entries(directory) or ()) if of_virtio else ()
        return [f'{directory}/net', *(f'{directory}/{name}/net' for name in below)]

    def _use(self, addresses: Iterable[str], why: str) -> None:
        for address in addresses:
            self._uses.setdefault(address, why)


class _Blocks:
    """The block devices of a host by their kernel names, and the devices on which they are built."""

    def __init__(self, sysfs: str) -> None:
        self._sysfs = sysfs
        self._directory = os.path.join(sysfs, 'class/block')
        self._targets: dict[str, str] = {}
        self._paths: dict[str, list[str]] = {}
        self._known: dict[str, Sequence[str]] = {}
        self._mapped: dict[str, str] = {}
        for name in kernel_files.names(self._directory):
            with contextlib.suppress(OSError):                  # it went away
                self._targets[name] = os.readlink(os.path.join(self._directory, name))
                path = _NVME_PATH.fullmatch(name)
                if path is not None:
                    self._paths.setdefault(f'nvme{path[1]}n{path[2]}', []).append(name)
        for name in self._targets:
            if name.startswith('dm-'):
                self._mapped[os.fsdecode(_bytes(os.path.join(self._directory, name, 'dm/name')).strip())] = name

    def functions(self, name: str) -> Sequence[str]:
        """Return the addresses of the functions on which a block device depends, the nearest first."""
        if name not in self._known:
            self._known[name] = ()                              # nothing is built on itself
            target = self._targets.get(name, '')
            found = _functions_in(target)
            below = () if found else (*sorted(self._slaves(name)), *self._paths.get(name, ()), *self._disk(target))
            self._known[name] = found or tuple(dict.fromkeys(
                itertools.chain.from_iterable(map(self.functions, below))))
        return self._known[name]

    def names(self, address: str) -> list[str]:
        """Return the names of the block devices that depend on a function."""
        return [name for name in sorted(self._targets) if address in self.functions(name)]

    def whole(self, address: str) -> list[str]:
        """Return the names of the disks of a function, without partitions and what is built on them."""
        return [name for name in self.names(address) if not self._disk(self._targets[name]) and not self._slaves(name)]

    def held(self) -> Iterator[tuple[str, str]]:
        """Yield each block device on which another one is built, together with that other one."""
        for name, target in sorted(self._targets.items()):
            if not _functions_in(target):
                for slave in sorted(self._slaves(name)):
                    yield slave, name

    def of_btrfs(self) -> Iterator[str]:
        """Yield all devices of mounted btrfs file systems: a mount names only one of several."""
        directory = os.path.join(self._sysfs, 'fs/btrfs')
        for name in kernel_files.names(directory):
            yield from kernel_files.names(os.path.join(directory, name, 'devices'))

    def has(self, name: str) -> bool:
        return name in self._targets

    def partitions(self, disk: str) -> set[str]:
        return {name for name, target in self._targets.items() if self._disk(target) == (disk,)}

    def name_of(self, number: str) -> str | None:
        """Return the name of the block device with a number, ``major:minor``."""
        return kernel_files.link(self._sysfs, 'dev/block', number)

    def at(self, path: str) -> str | None:
        """Return the name of the block device for a path in ``/dev``, as the kernel and mount(8) write it."""
        if path.startswith('/dev/mapper/'):
            return self._mapped.get(path.removeprefix('/dev/mapper/'))
        # The kernel has an exclamation mark where a name in /dev has a slash.
        name = path.removeprefix('/dev/').replace('/', '!')
        return name if name in self._targets else None

    def _disk(self, target: str) -> tuple[str, ...]:
        """Return the disk of a partition, by the partition's path in sysfs: the directory above it is the disk's."""
        above = os.path.basename(os.path.dirname(target))
        return (above,) if above in self._targets else ()

    def _slaves(self, name: str) -> list[str]:
        found = kernel_files.names(os.path.join(self._directory, name, 'slaves'))
        if name.startswith(_LOOP):
            # A loop device does not hold the device below it exclusively, and is not linked to it.
            backing = self.at(os.fsdecode(_bytes(os.path.join(self._directory, name, 'loop/backing_file')).strip()))
            found += [] if backing is None else [backing]
        return found


class _Unlisted:
    """The functions behind character devices whose numbers lead to no function in sysfs.

    ``/proc/devices`` has the name under which a driver registered the number. A driver may tell the functions of its
    nodes in ``/proc/driver``, as NVIDIA's does. Then nodes that it does not tell are of no function, for example that
    of its control program. Of another driver, an open node counts as use of every function that the driver has.
    """

    def __init__(self, sysfs: str, proc: str) -> None:
        self._sysfs, self._proc = sysfs, proc

    def functions(self, number: str) -> tuple[Sequence[str], str]:
        """Return the addresses of the functions of a character device, and its name.

        :param number: ``major:minor``
        """
        major, _colon, minor = number.partition(':')
        for name in self._names.get(major, ()):
            driver = self._driver(name)
            if driver is not None:
                told = self._told(driver)
                if not told:
                    return self._of_driver(driver), name
                for sort in _SORTS_OF_NODES:
                    if f'{driver}{sort}' in self._names[major]:
                        return told.get((sort.endswith(_CAPABILITIES), minor), told.get(_UNTOLD, ())), f'{name} {minor}'
                return (), name
        return (), number

    @functools.cached_property
    def _names(self) -> dict[str, list[str]]:
        """The names under which drivers registered character devices, by the major number."""
        found: dict[str, list[str]] = {}
        for fields in _table(os.path.join(self._proc, 'devices'), 0):
            if fields[0] == 'Block':
                break
            if len(fields) == 2 and fields[0].isdecimal():
                found.setdefault(fields[0], []).append(fields[1])
        return found

    def _driver(self, name: str) -> str | None:
        """Return the PCI driver that registered a name: ``nvidia`` for ``nvidia-caps``. None if no such one is here."""
        name = _OF_DRIVERS.get(name, name)
        while name and not os.path.isdir(os.path.join(self._sysfs, 'bus/pci/drivers', name)):
            name = name.rpartition('-')[0]
        return name or None

    def _of_driver(self, driver: str) -> Sequence[str]:
        return tuple(filter(vocabulary.PCI_ADDRESS.fullmatch,
                            kernel_files.names(os.path.join(self._sysfs, 'bus/pci/drivers', driver))))

    def _told(self, driver: str) -> dict[tuple[bool, str], list[str]]:
        """Return the functions of a driver by the minor numbers of their nodes, and those that it does not tell.

        A capability of a function has a node too. So a key says whether it is one.
        """
        found: dict[tuple[bool, str], list[str]] = {}
        directory = os.path.join(self._proc, 'driver', driver)
        for address in filter(vocabulary.PCI_ADDRESS.fullmatch, kernel_files.names(os.path.join(directory, 'gpus'))):
            minor = None
            with contextlib.suppress(exception.CommandFailed):  # one that is broken must not hide the others
                minor = _MINOR.search(_bytes(os.path.join(directory, 'gpus', address, 'information')))
            found.setdefault(_UNTOLD if minor is None else (False, minor[1].decode()), []).append(address)
        for path in glob.glob(os.path.join(glob.escape(directory), 'capabilities/gpu*/mig/**/access'), recursive=True):
            gpu = path.removeprefix(os.path.join(directory, 'capabilities/gpu')).partition('/')[0]
            with contextlib.suppress(exception.CommandFailed):
                if (minor := _MINOR.search(_bytes(path))) is not None:
                    found.setdefault((True, minor[1].decode()), []).extend(found.get((False, gpu), ()))
        return found


class Disks:
    """Finds the functions behind the paths of block devices, as definitions name them."""

    def __init__(self, sysfs: str, proc: str = '/proc') -> None:
        self._sysfs = sysfs
        self._blocks, self._unlisted = _Blocks(sysfs), _Unlisted(sysfs, proc)

    def functions(self, path: str) -> Sequence[str]:
        """Return the addresses of the functions on which a block device depends, the nearest first. Follows no link.

        The character device of a namespace counts as its block device.
        """
        generic = _NVME_GENERIC.fullmatch(path.removeprefix('/dev/'))
        name = self._blocks.at(path if generic is None else f'/dev/nvme{generic[1]}')
        return () if name is None else self._blocks.functions(name)

    def of_node(self, sort: int, number: int) -> Sequence[str]:
        """Return the addresses of the functions on which the device of a node depends, the nearest first.

        :param sort: ``stat.S_IFBLK`` or ``stat.S_IFCHR``
        :param number: the device number, ``st_rdev``
        """
        return _open_device(self._sysfs, _SORTS[sort], f'{os.major(number)}:{os.minor(number)}', self._blocks,
                            self._unlisted)[0]

    def writes(self, address: str) -> list[str]:
        """Read what the kernel counted of writes to the disks of a function, a text for each disk that it counts for.

        The text has the number of the disk among all of this boot, which gets a new one whenever it comes back to its
        driver; the numbers of writes and discards and of their sectors (Linux: Documentation/block/stat.rst), whether
        the kernel counts them at all, and the number of the disk's partitions.

        :raises CommandFailed: they cannot be read
        """
        found = []
        for name in self._blocks.whole(address):
            directory = os.path.join(self._sysfs, 'class/block', name)
            counts = os.fsdecode(_bytes(os.path.join(directory, 'stat'))).split()
            if len(counts) > _DISCARDED:
                sequence, counted = (os.fsdecode(_bytes(os.path.join(directory, file)).strip())
                                     for file in ('diskseq', 'queue/iostats'))
                found.append(':'.join((sequence, *(counts[number] for number in _WRITTEN), counted,
                                       str(len(self._blocks.partitions(name))))))
        return found

    def ways_around(self, disk: str, address: str) -> dict[tuple[int, int], str]:
        """Find the devices by which a process reaches the bytes of a disk without the disk's own node.

        They are the partitions of the disk and the character devices of its function.

        :returns: their names, by the sorts and numbers of :meth:`of_node`
        """
        partitions, found = self._blocks.partitions(disk), dict[tuple[int, int], str]()
        for sort, kind in _SORTS.items():
            for number in kernel_files.names(os.path.join(self._sysfs, 'dev', kind)):
                addresses, name = _open_device(self._sysfs, kind, number, self._blocks, self._unlisted)
                if name in partitions if kind == 'block' else address in addresses:
                    found[sort, os.makedev(*map(int, number.split(':')))] = name
        return found


class _Processes:
    """The devices that processes have mounted and open.

    ``mounted`` has pairs: the name of a block device and its mount point, from the mount namespaces of all processes
    that can be looked at. ``opened`` has tuples: the number of a process, its name, ``block`` or ``char``, and the
    number of the device.
    """

    def __init__(self, proc: str, dev: str, blocks: _Blocks) -> None:
        self._proc = proc
        self._dev = dev
        self._blocks = blocks
        self.mounted: list[tuple[str, str]] = []
        self.opened: list[tuple[str, str, str, str]] = []
        self._namespaces: set[str] = set()
        for pid in filter(str.isdecimal, kernel_files.names(proc)):
            # Another user's process, or it has ended.
            with contextlib.suppress(PermissionError, FileNotFoundError, ProcessLookupError):
                self._look_at(pid)
        ours = self._ours({opened[0] for opened in self.opened})
        self.opened = [opened for opened in self.opened if opened[0] not in ours]

    def _ours(self, pids: Collection[str]) -> set[str]:
        """Find those of these processes that clean devices: nobody is given the devices that they have open.

        They are this process and its children; the programs that wipe, read and format, which may outlive the process
        that started them; and the process that started them, which has the same devices open.
        """
        found = {str(os.getpid())}
        for pid in pids:
            with contextlib.suppress(OSError, IndexError):      # it ended, or is another user's
                parent = _bytes(os.path.join(self._proc, pid, 'stat')).rpartition(b')')[2].split()[1].decode()
                command = os.fsdecode(_bytes(os.path.join(self._proc, pid, 'cmdline'))).split('\0')
                if any(part.endswith(_PROGRAMS) for part in command[:_PROGRAM_AT]):
                    found |= {pid, parent}
                elif parent == str(os.getpid()):
                    found.add(pid)
        return found

    def _look_at(self, pid: str) -> None:
        process = os.path.join(self._proc, pid)
        if not self._look_in(process, pid):
            for thread in device_users.other_threads(process):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):        # it has ended
                    self._look_in(thread, pid)

    def _look_in(self, directory: str, pid: str) -> bool:
        """Look at a process or at a thread of it. Returns False if that shows no open file."""
        try:
            namespace = os.readlink(os.path.join(directory, 'ns/mnt'))
        except FileNotFoundError:
            return False                        # it has ended, or the first thread of a process has
        if namespace not in self._namespaces:
            # The mounts of a process that is ending cannot be read. Then the next process of this namespace is asked.
            with contextlib.suppress(exception.CommandFailed):
                self.mounted += _mounted(os.path.join(directory, 'mountinfo'), self._blocks)
                self._namespaces.add(namespace)
        entries = list(os.scandir(os.path.join(directory, 'fd')))
        for entry in entries:
            with contextlib.suppress(OSError):                  # it was closed
                if self._may_be_a_device(os.readlink(entry.path)):
                    status = os.stat(entry.path)
                    sort = _SORTS.get(stat.S_IFMT(status.st_mode))
                    if sort is not None:
                        number = f'{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}'
                        self.opened.append((pid, self._name(os.path.join(self._proc, pid)), sort, number))
        return bool(entries)

    def _may_be_a_device(self, path: str) -> bool:
        """Whether an open file is worth a look. A look at every file would wait for file servers that do not answer."""
        directory, name = os.path.split(path)
        if directory == self._dev:
            return name not in _MANY_HAVE_OPEN
        return directory.startswith(f'{self._dev}/') or self._blocks.has(name)

    @staticmethod
    def _name(process: str) -> str:
        name = os.fsdecode(_bytes(os.path.join(process, 'comm')).strip())
        return ''.join(one if one.isprintable() else '?' for one in name)


def _mounted(path: str, blocks: _Blocks) -> list[tuple[str, str]]:
    """Read the block devices in a ``mountinfo`` (proc(5)), and where each is mounted."""
    found = []
    for fields in _table(path, 10, b' ', must=True):
        number, where = fields[2], _unescaped(fields[4])
        _type, source, options = fields[fields.index('-', 6) + 1:][:3] if '-' in fields[6:-3] else ('', '', '')
        sources = _NEXT_DISK.split(source) if source.startswith('/dev/') else ()
        paths = [_unescaped(one) for one in (*sources, *_BESIDE.findall(options))]
        for name in dict.fromkeys(filter(None, (blocks.name_of(number), *map(blocks.at, paths)))):
            found.append((name, where))
    return found


def _swaps(proc: str, blocks: _Blocks) -> Iterator[str]:
    """Find the block devices in ``/proc/swaps``. A swap file is ignored: it is on a mounted file system."""
    for path, sort, *_rest in _table(os.path.join(proc, 'swaps'), 2, heading=True):
        if sort == 'partition' and (name := blocks.at(_unescaped(path))) is not None:
            yield name


def _exported(sysfs: str, blocks: _Blocks) -> Iterator[tuple[Sequence[str], str, str]]:
    """Find what the kernel exports, by configfs; yield the functions of each, its name, and the kernel's part.

    The kernel does not hold everything exclusively that it exports (nvmet_bdev_ns_enable in Linux:
    drivers/nvme/target/io-cmd-bdev.c, fd_configure_device in drivers/target/target_core_file.c).
    """
    for target, pattern in (('nvmet', 'nvmet/subsystems/*/namespaces/*/device_path'),
                            ('nvmet', 'nvmet/subsystems/*/passthru/device_path'),
                            ('LIO', 'target/core/iblock_*/*/udev_path'), ('LIO', 'target/core/fileio_*/*/info')):
        for file in sorted(glob.glob(os.path.join(glob.escape(sysfs), 'kernel/config', pattern))):
            text = os.fsdecode(_bytes(file).strip())
            named = _FILEIO.search(text) if file.endswith('/info') else None
            path = os.path.realpath(text if named is None else named[1])
            if _bytes(os.path.join(os.path.dirname(file), 'enable')).strip() != b'1':
                continue
            name = blocks.at(path)
            if name is not None:
                yield blocks.functions(name), name, target
            elif _CONTROLLER.fullmatch(path):
                name = os.path.basename(path)
                with contextlib.suppress(OSError):              # it went away
                    yield _functions_in(os.readlink(os.path.join(sysfs, 'class/nvme', name))), name, target


def _open_device(sysfs: str, sort: str, number: str, blocks: _Blocks,
                 unlisted: _Unlisted) -> tuple[Sequence[str], str]:
    """Return the functions on which an open device depends, and the name of the device."""
    target = kernel_files.target(sysfs, 'dev', sort, number)
    if not target:
        return unlisted.functions(number) if sort == 'char' else ((), number)       # or it went away
    name = os.path.basename(target)
    if name in _OF_DRIVERS:
        return unlisted.functions(number)
    if sort == 'block':
        return blocks.functions(name), name
    if '/vfio-dev/' in target:
        return (), name
    generic = _NVME_GENERIC.fullmatch(name)
    if generic is not None:
        return blocks.functions(f'nvme{generic[1]}'), name
    return _functions_in(target), name


def _interfaces(sysfs: str, proc: str, with_ipv4: Callable[[], Collection[int]]
                ) -> tuple[dict[str, Sequence[str]], dict[str, str]]:
    """Return the functions on which network interfaces depend, and why interfaces are used; both by interface name."""
    directory = os.path.join(sysfs, 'class/net')
    why = _configured(directory, proc)
    try:
        numbers = {b'%d' % number for number in with_ipv4()}
    except OSError as error:
        raise exception.CommandFailed('reading the IPv4 addresses', str(error.strerror or error)) from error
    functions = dict[str, Sequence[str]]()
    for name in sorted(kernel_files.names(directory)):
        try:
            found = _functions_in(os.readlink(os.path.join(directory, name)))
        except OSError:
            continue                            # a file beside the links, or it went away
        if found:
            functions[name] = found
            try:
                index = _bytes(os.path.join(directory, name, 'ifindex'), gone=_UNREGISTERED)
                if index.strip() in numbers and _is_up(directory, name):
                    why.setdefault(name, f'{_ADDRESSED} {name}')
            except exception.CommandFailed as error:
                why.setdefault(name, str(error))        # its own functions may be in use, and no others
            continue
        for entry in kernel_files.names(os.path.join(directory, name)):
            if entry.startswith(_LOWER):
                lower = entry.removeprefix(_LOWER)
                why.setdefault(lower, f'{name} is built on its interface {lower}')
    return functions, why


def _configured(directory: str, proc: str) -> dict[str, str]:
    """Return why interfaces are in use, by their names: default routes first, then other routes, then addresses."""
    default: list[str] = []
    routed: list[str] = []
    addressed: list[str] = []
    ipv4, ipv6, addresses = (os.path.join(proc, 'net', name) for name in ('route', 'ipv6_route', 'if_inet6'))
    for name, destination, _gateway, flags, *others in _table(ipv4, 8, heading=True):
        if not _number(flags, ipv4) & _REJECT:
            (routed if _number(destination, ipv4) or _number(others[3], ipv4) else default).append(name)
    for destination, prefix, *others in _table(ipv6, 10):
        # The kernel itself gives every interface that is up routes for link-local and multicast addresses.
        if not _number(others[-2], ipv6) & _REJECT and not destination.startswith(_MULTICAST_OR_LINK_LOCAL):
            (routed if _number(prefix, ipv6) else default).append(others[-1])
    for _address, _index, _prefix, scope, _flags, name in _table(addresses, 6):
        if _number(scope, addresses) != _LINK_LOCAL and _is_up(directory, name):
            addressed.append(name)
    found: dict[str, str] = {}
    for names, why in ((default, 'the default route goes through its interface'),
                       (routed, 'a route goes through its interface'), (addressed, _ADDRESSED)):
        for name in names:
            found.setdefault(name, f'{why} {name}')
    return found


def _is_up(directory: str, name: str) -> bool:
    flags = os.path.join(directory, name, 'flags')
    text = os.fsdecode(_bytes(flags, gone=_UNREGISTERED)).strip()
    return bool(text) and bool(_number(text, flags) & _UP)


def _functions_in(target: str) -> Sequence[str]:
    """Return the addresses of the functions in a path in sysfs, the nearest to its end first."""
    return tuple(filter(vocabulary.PCI_ADDRESS.fullmatch, reversed(target.split('/'))))


def _entries(directory: str) -> list[str] | None:
    """Return the names in a directory; None if it cannot be listed, for example because there is none."""
    try:
        return os.listdir(directory)
    except OSError:
        return None


def _bytes(path: str, must: bool = False, gone: Collection[int] = _GONE) -> bytes:
    """Return the content of a file; empty if there is no such file, or it went away.

    :param gone: the errors that mean that
    :raises CommandFailed: it cannot be read, or is not there and must be
    """
    try:
        with open(path, 'rb') as file:
            return file.read()
    except OSError as error:
        if error.errno in gone and not must:
            return b''
        raise exception.CommandFailed('reading', f'{path}: {error.strerror}') from error


def _table(path: str, least: int, separator: bytes | None = None, heading: bool = False,
           must: bool = False) -> Iterator[list[str]]:
    """Read the fields of the lines in one of the kernel's files.

    :param least: how many fields a line has at least
    :param separator: the bytes between two fields, by default a run of blanks
    """
    # Split bytes, not text: names and paths may hold other characters that Unicode counts as line ends or blanks.
    for number, line in enumerate(_bytes(path, must).split(b'\n'), 1):
        if not line or (heading and number == 1):
            continue
        fields = line.split(separator)
        if len(fields) < least:
            raise exception.InvalidDocument(path, f'line {number}', f'{len(fields)} fields, {least} are expected')
        yield [os.fsdecode(field) for field in fields]


def _number(text: str, path: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        raise exception.InvalidDocument(path, exception.shown(text, 80), 'not a hexadecimal number') from None


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)
