"""Namespaces: what is offered, refused, recognised, and put into a guest."""

from __future__ import annotations

import errno
import functools
import json
import os
import stat
import threading
import types
from typing import Any
import uuid

from lxml import etree

from devicetrack import exception
from devicetrack.objects import details
from devicetrack.objects import identity
from devicetrack.tests import base
from devicetrack.tests.drivers import contract
from devicetrack.tests.unit.virt import data
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import guest_paths
from devicetrack.virt.libvirt import namespaces
from devicetrack.virt.libvirt import ndctl
from devicetrack.virt.libvirt import privileged
from devicetrack.virt.libvirt.kinds import vpmem

MIB = 1 << 20

# A guest with UEFI, a guest agent and the port of a network card.
GUEST = """<domain type='kvm'>
  <name>a</name>
  <uuid>8ad1cc0f-2c4b-4e87-9a8c-0d3b7d8f6a01</uuid>
  <os firmware='efi'>
    <type arch='x86_64' machine='pc-q35-9.0'>hvm</type>
    <nvram>{firmware}</nvram>
  </os>
  <devices>
    <interface type='hostdev' managed='yes'>
      <source>
        <address type='pci' domain='0x0000' bus='0x03' slot='0x10' function='0x0'/>
      </source>
    </interface>
    <channel type='unix'>
      <source mode='bind' path='{agent}'/>
      <target type='virtio' name='org.qemu.guest_agent.0'/>
    </channel>
  </devices>
</domain>
"""


class NdctlTestCase(base.TestCase):
    """With a program that prints what it is told to in place of ndctl."""

    def setUp(self) -> None:
        super().setUp()
        self.program = os.path.join(self.temp_dir(), 'ndctl')
        self.prints(data.read('ndctl-76.1-list-NDRX.json'))
        self.patch(namespaces, 'REGIONS', self.temp_dir())
        for region in ('region0', 'region1'):
            os.mkdir(os.path.join(namespaces.REGIONS, region))
            self.set_read_only(region, '0')
        self.kind = self.make_kind('4GB:ns0_0|ns1_2')

    def prints(self, text: str, status: int = 0) -> None:
        with open(f'{self.program}.out', 'w') as file:
            file.write(text)
        with open(self.program, 'w') as file:
            file.write('#!/bin/sh\n'
                       '[ "$*" = "list --namespaces --regions --device-dax --configured --verbose" ] || exit 9\n'
                       f'cat "{self.program}.out"\nexit {status}\n')
        os.chmod(self.program, stat.S_IRWXU)

    def set_read_only(self, region: str, value: str) -> None:
        with open(os.path.join(namespaces.REGIONS, region, 'read_only'), 'w') as file:
            file.write(f'{value}\n')

    def changes(self, which: str, **facts: Any) -> None:
        listed = json.loads(data.read('ndctl-76.1-list-N.json'))
        self.prints(json.dumps([{**one, **facts} if one['name'] == which else one for one in listed]))

    def make_kind(self, *labels: str) -> vpmem.VPMEM:
        self.configuration.set('libvirt', pmem_namespaces=labels)
        self.configuration.set('devicetrack_vpmem', ndctl_command=self.program)
        return vpmem.VPMEM(self.conf, connection.Connection())

    def assigned(self, name: str) -> Any:
        device, = (device for device in self.kind.stock().devices if device.identifier == name)
        return contract.assignment(str(uuid.uuid4()), 'vpmem', name, device.parent, device.details)

    def test_configured_namespaces_are_devices(self) -> None:
        first, second = self.kind.stock().devices
        self.assertEqual(('vpmem', 'ns0_0', '', 'CUSTOM_PMEM_NAMESPACE_4GB', 'region0', None), first[:6])
        self.assertEqual(('ns1_2', 'region1', None), (second.identifier, second.parent, second.unhealthy))
        found = details.from_text(first.details)
        self.assertEqual(('822f99e8-515f-4bf1-98b3-cd11cf70c217', '4GB', '/dev/dax0.0', 130023424, 2097152),
                         tuple(getattr(found, name) for name in found.fields))

    def test_namespaces_may_be_counted_for_each_numa_node_that_is_known(self) -> None:
        listed = json.loads(data.read('ndctl-76.1-list-N.json'))
        self.prints(json.dumps([{**one, 'numa_node': 1} if one['name'] == 'ns1_2' else one for one in listed]))
        self.assertEqual(['', ''], [device.provider for device in self.kind.stock().devices])
        self.configuration.set('placement', pmem_per_numa_node=True)
        kind = self.make_kind('4GB:ns0_0|ns1_2')
        self.assertEqual(['', 'numa1'], [device.provider for device in kind.stock().devices])

    def test_a_namespace_that_the_host_does_not_have_is_missing_and_counts_all_the_same(self) -> None:
        kind = self.make_kind('4GB:ns0_0|nosuch', 'SMALL:ns9')
        missing = kind.stock().missing
        self.assertEqual([('vpmem', 'nosuch'), ('vpmem', 'ns9')], [one.key for one in missing])
        self.assertEqual('[libvirt] pmem_namespaces', missing[0].option)
        self.assertIn('ns1_2', missing[0].reason)
        self.assertEqual({'CUSTOM_PMEM_NAMESPACE_4GB', 'CUSTOM_PMEM_NAMESPACE_SMALL'}, kind.resource_classes)

    def test_only_the_option_names_a_namespace(self) -> None:
        kind = self.make_kind('4GB:ns0_0|nosuch')
        self.assertEqual([True, True, False], [kind.is_named(name, '') for name in ('ns0_0', 'nosuch', 'ns1_2')])

    def test_ndctl_missing_failing_or_printing_garbage_is_unknown(self) -> None:
        self.prints('', status=3)
        self.assertIn('status 3', str(self.assertRaises(exception.CommandFailed, self.kind.stock)))
        self.prints('{"regions":')
        self.assertRaises(exception.InvalidDocument, self.kind.stock)
        os.unlink(self.program)
        self.assertRaises(exception.CommandFailed, self.kind.stock)

    def test_two_namespaces_of_one_name_are_neither_handed_out_nor_wiped(self) -> None:
        wanted = self.assigned('ns0_0')
        self.changes('ns1_1', name='ns0_0')
        first, second = self.kind.stock().devices
        self.assertEqual(('another namespace has this name too', None), (first.unhealthy, second.unhealthy))
        self.assertRaises(exception.DeviceError, self.kind.unclaim, wanted, 0)
        self.assertEqual({'/dev/dax0.0': 'ns0_0', '/dev/dax1.1': 'ns0_0'},
                         self.kind.identify(['/dev/dax0.0', '/dev/dax1.1']))

    def test_two_namespaces_of_one_character_device_are_neither_handed_out_nor_wiped(self) -> None:
        wanted = self.assigned('ns0_0')
        for name in ('ns1_1', ''):
            self.changes('ns1_1', chardev='dax0.0', name=name)
            unhealthy = {device.identifier: device.unhealthy for device in self.kind.stock().devices}
            self.assertEqual('another namespace has its character device dax0.0 too', unhealthy['ns0_0'])
            self.assertRaises(exception.DeviceError, self.kind.unclaim, wanted, 0)

    def test_one_in_a_region_that_is_read_only_or_gone_is_unhealthy_until_it_is_well_again(self) -> None:
        wanted = self.assigned('ns0_0')
        self.set_read_only('region0', '1')
        self.assertEqual(['region0 is read-only', None], [device.unhealthy for device in self.kind.stock().devices])
        self.assertRaises(exception.DeviceGone, self.kind.realize, wanted)
        error = self.assertRaises(exception.UnclaimFailed, self.kind.unclaim, wanted, 0)
        self.assertEqual('region0 is read-only', error.reason)
        os.unlink(os.path.join(namespaces.REGIONS, 'region0', 'read_only'))
        self.assertEqual('region0 is gone', self.kind.stock().devices[0].unhealthy)
        self.set_read_only('region0', '0')
        self.assertIsNone(self.kind.stock().devices[0].unhealthy)
        self.kind.realize(wanted)

    def test_a_region_that_cannot_be_read_costs_its_own_namespaces(self) -> None:
        path = os.path.join(namespaces.REGIONS, 'region1', 'read_only')
        os.unlink(path)
        os.mkdir(path)
        self.assertEqual([None, f'{path} cannot be read: Is a directory'],
                         [device.unhealthy for device in self.kind.stock().devices])

    def test_one_that_ndctl_tells_wrongly_costs_itself(self) -> None:
        wanted = self.assigned('ns0_0')
        self.changes('ns0_0', size='1 GiB')
        self.assertEqual([True, False], [device.unhealthy is not None for device in self.kind.stock().devices])
        self.assertRaises(exception.RealizeFailed, self.kind.realize, wanted)
        self.assertEqual({'/dev/dax1.2': 'ns1_2', '/dev/dax0.0': None},
                         self.kind.identify(['/dev/dax1.2', '/dev/dax0.0']))

    def test_one_without_a_uuid_of_its_own_is_known_by_nothing_but_its_name(self) -> None:
        wanted = self.assigned('ns0_0')
        for itself in (str(uuid.UUID(int=0)), None):
            self.changes('ns0_0', uuid=itself)
            device, other = self.kind.stock().devices
            self.assertIn('not a UUID', str(device.unhealthy))
            self.assertIsNone(other.unhealthy)
            for call in (self.kind.realize, lambda one: self.kind.unclaim(one, 0)):
                self.assertRaises(exception.DeviceError, call, wanted)

    def test_one_that_no_guest_can_have_is_unhealthy(self) -> None:
        for facts, reason in (({'mode': 'fsdax'}, 'fsdax'), ({'size': 2 * MIB}, 'a guest needs at least 4194304'),
                              ({'size': 6 * MIB, 'align': 4096}, 'None'),
                              ({'size': 1 << 30, 'align': 1 << 30}, 'a guest needs at least 2147483648'),
                              ({'size': 2 << 30, 'align': 1 << 30}, 'None')):
            self.changes('ns0_0', **facts)
            self.assertIn(reason, str(self.kind.stock().devices[0].unhealthy))
            self.assertIsNone(self.kind.stock().devices[1].unhealthy)

    def test_a_renumbered_device_is_the_same_device(self) -> None:
        wanted = self.assigned('ns0_0')
        self.changes('ns0_0', chardev='dax7.0')
        realized = self.kind.realize(wanted)
        self.assertEqual('/dev/dax7.0', details.from_text(realized.details).devpath)
        self.assertIn('<path>/dev/dax7.0</path>', self.kind.guest_elements([wanted])[0])
        self.assertEqual({'/dev/dax7.0': 'ns0_0', '/dev/dax0.0': None, '/dev/../dev/dax1.2': 'ns1_2'},
                         self.kind.identify(['/dev/dax7.0', '/dev/dax0.0', '/dev/../dev/dax1.2']))

    def test_another_uuid_or_size_is_another_device(self) -> None:
        wanted = self.assigned('ns0_0')
        for facts in ({'uuid': str(uuid.uuid4())}, {'size': 130023424 + 2 * MIB}):
            self.changes('ns0_0', **facts)
            self.assertRaises(exception.DeviceGone, self.kind.realize, wanted)
            self.assertRaises(exception.DeviceGone, self.kind.guest_elements, [wanted])
            self.assertRaises(exception.DeviceGone, self.kind.unclaim, wanted, 0)

    def test_one_that_is_disabled_or_raw_is_said_to_be_so_and_to_be_no_other(self) -> None:
        wanted = self.assigned('ns0_0')
        for facts, reason in (({'state': 'disabled', 'mode': 'raw'}, 'it is disabled'),
                              ({'mode': 'raw'}, 'its mode is raw, not devdax')):
            self.changes('ns0_0', **facts, uuid=str(uuid.uuid4()), size=134217728, chardev=None)
            device = self.kind.stock().devices[0]
            self.assertEqual(reason, device.unhealthy)
            compared = identity.compare(details.to_text(wanted.details), device.details)
            assert compared is not None
            self.assertEqual(({}, ('namespace_uuid', 'size_bytes')), (compared.itself, compared.unread))
            for call, arguments in ((self.kind.realize, (wanted,)), (self.kind.guest_elements, ([wanted],))):
                self.assertEqual(reason, self.assertRaises(exception.RealizeFailed, call, *arguments).reason)
            self.assertEqual(reason, self.assertRaises(exception.UnclaimFailed, self.kind.unclaim, wanted, 0).reason)
        self.prints(data.read('ndctl-76.1-list-N.json'))
        self.kind.realize(wanted)

    def test_a_device_that_cannot_be_opened_is_not_free(self) -> None:
        self.changes('ns0_0', chardev='dax99.99')
        wanted = self.assigned('ns0_0')
        self.assertRaises(exception.UnclaimFailed, self.kind.unclaim, wanted, 0)

    def test_what_the_kernel_made_anew_in_one_boot_may_have_been_written(self) -> None:
        node = os.path.join(self.temp_dir(), 'dax0.0')
        parse = ndctl.parse
        self.patch(ndctl, 'parse', lambda text: [
            found._replace(path=node) if found.name == 'ns0_0' else found for found in parse(text)])
        boots = ['a boot']
        self.kind.boot_id = boots.pop
        shown: list[str] = []
        for boot in ('a boot', 'a boot', 'a boot', 'b'):
            boots.append(boot)
            if len(shown) != 1:                 # it came back from another mode
                with open(f'{node}.new', 'w'):
                    os.rename(f'{node}.new', node)
            shown += [self.kind.evidence(['ns0_0', 'ns1_2', 'nosuch'])['ns0_0']]
        self.assertEqual([False, True, False], [self.kind.is_written(shown[0], one) for one in shown[1:]])
        self.patch(privileged, 'open_daxes', lambda paths: paths)
        self.assertEqual(['ns0_0'], list(self.kind.opened(['ns0_0', 'ns1_2', 'nosuch'])))

    def test_the_privileged_part_looks_for_users_of_dax_devices_alone(self) -> None:
        for path in ('/dev/null', '/dev/../dev/dax0.0', '/tmp/dax0.0'):
            self.assertRaises(OSError, privileged.open_daxes, [path])
        self.assertEqual([], privileged.open_daxes([]))

    def test_an_owned_namespace_that_no_option_names_is_still_recognised(self) -> None:
        self.assertEqual({'/dev/dax1.1': 'ns1_1'}, self.kind.identify(['/dev/dax1.1']))

    def test_a_block_device_of_the_same_number_is_another_device(self) -> None:
        memory, disk, file = '/node', '/dev/dm-0', '/srv/memory'
        sorts = {'/dev/dax1.1': stat.S_IFCHR, memory: stat.S_IFCHR, disk: stat.S_IFBLK, file: stat.S_IFREG}
        self.patch(guest_paths, 'os', types.SimpleNamespace(
            **{**vars(os), 'stat': functools.partial(self._status, sorts)}))
        # What is of another sort than all namespaces is none of them. Of a character device nobody can tell.
        self.assertEqual({memory: 'ns1_1', '/other': None, '/nothing': None},
                         self.kind.identify([memory, disk, file, '/other', '/nothing']))

    def test_what_libvirt_makes_for_a_guest_may_be_out_of_reach(self) -> None:
        """Only libvirt's user may enter these directories. Definitions beside the usual, and snapshots, name them."""
        firmware, agent = '/var/lib/libvirt/qemu/nvram/a_VARS.fd', '/run/libvirt/qemu/channel/1-a/agent.0'
        text = GUEST.format(firmware=firmware, agent=agent)
        snapshot = f'<domainsnapshot>\n  <name>s</name>\n{text}</domainsnapshot>'
        self.within_reach()
        for one in (text, *domain_xml.in_snapshot(snapshot, 's')):
            domain = domain_xml.parse(one)
            self.assertEqual({firmware, agent}, set(self.kind.other_addresses(domain)))
            self.assertEqual({firmware: None, agent: None, '/dev/dax1.1': 'ns1_1'},
                             self.kind.identify([*self.kind.other_addresses(domain), '/dev/dax1.1']))
        # A root's service, for example, may enter: an ordinary file is no namespace, whoever made it.
        self.within_reach('/var/lib/libvirt/qemu/')
        self.assertEqual({agent: None}, self.kind.identify([firmware, agent]))

    def test_but_what_somebody_else_made_may_not(self) -> None:
        self.within_reach()
        for path in ('/srv/disk', '/var/lib/libvirt/images/disk', '/var/lib/libvirt/qemu/../images/disk'):
            error = self.assertRaises(exception.CommandFailed, self.kind.identify, [path])
            self.assertIn('Permission denied', str(error))

    def within_reach(self, *directories: str) -> None:
        """Let this process follow only paths below some directories, all to ordinary files, and those of ndctl."""
        def status(path: str) -> os.stat_result:
            if path.startswith(directories):
                return os.stat_result((stat.S_IFREG, 9, 1, 1, 0, 0, 0, 0, 0, 0), {'st_rdev': 0})
            if path.startswith('/dev/dax'):
                return os.stat_result((stat.S_IFCHR, 9, 1, 1, 0, 0, 0, 0, 0, 0), {'st_rdev': os.makedev(252, 0)})
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        self.patch(guest_paths, 'os', types.SimpleNamespace(**{**vars(os), 'stat': status}))

    @staticmethod
    def _status(sorts: Any, path: str) -> os.stat_result:
        if path == '/other':
            return os.stat_result((stat.S_IFCHR, 9, 1, 1, 0, 0, 0, 0, 0, 0), {'st_rdev': 1})
        if path not in sorts:
            raise FileNotFoundError(errno.ENOENT, path)
        number = 0 if sorts[path] == stat.S_IFREG else os.makedev(252, 0)
        return os.stat_result((sorts[path], 9, 1, 1, 0, 0, 0, 0, 0, 0), {'st_rdev': number})

    def test_paths_on_a_file_system_that_does_not_answer_are_unknown_in_time(self) -> None:
        answers = threading.Event()
        self.addCleanup(answers.set)
        self.patch(guest_paths, 'file_at', lambda path: answers.wait(60))
        self.configuration.set('devicetrack_libvirt', call_timeout_s=1)
        kind = self.make_kind('4GB:ns0_0')
        error = self.assertRaises(exception.CommandFailed, kind.identify, ['/mnt/hung/disk.qcow2'])
        self.assertIn('no answer within 1 s', str(error))
        self.assertNotIn('/mnt/hung', str(error))

    def test_without_a_path_nothing_is_asked(self) -> None:
        os.unlink(self.program)
        self.assertEqual({}, self.kind.identify([]))


class GuestElementTestCase(base.TestCase):
    scenarios = base.table(
        ('a devdax namespace', 130023424, 2 * MIB, True, 126976, 2048),
        ('with pages of one GiB', (3 << 30) + 2 * MIB, 1 << 30, True, 3 << 20, 1 << 20),
        ('with pages of 4 KiB', 8 * MIB + 4096, 4096, True, 8192, 4),
        ('a file', 8 * MIB, 2 * MIB, False, 8192, 2048),
        ('a file of an odd size', 8 * MIB - 1, 2 * MIB, False, 6144, 2048),
        names=('size', 'align', 'dax', 'size_kib', 'align_kib'))

    def test_sizes(self) -> None:
        element = etree.fromstring(vpmem.guest_element(
            ndctl.Namespace('ns', '', '/a&<b', self.size, self.align, None, None, self.dax)))
        self.assertEqual('/a&<b', element.findtext('source/path'))
        self.assertEqual((str(self.size_kib), str(self.align_kib), '2048'),
                         tuple(element.findtext(path) for path in
                               ('target/size', 'source/alignsize', 'target/label/size')))
        self.assertEqual(self.dax, element.find('source/pmem') is not None)


class DirectoryTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.files = self.temp_dir()
        self.source = namespaces.DirectorySource(self.files)

    def path(self, name: str, size: int = 4 * MIB) -> str:
        path = os.path.join(self.files, name)
        with open(path, 'wb') as file:
            file.truncate(size)
        return path

    def test_only_regular_files_count(self) -> None:
        self.path('ns0')
        os.mkdir(os.path.join(self.files, 'directory'))
        os.mkfifo(os.path.join(self.files, 'fifo'))
        os.symlink('/etc/passwd', os.path.join(self.files, 'link'))
        self.assertEqual({'ns0'}, set(self.source.read()))

    def test_every_path_has_its_name(self) -> None:
        self.path('ns0')
        os.symlink('/etc/passwd', os.path.join(self.files, 'link'))
        self.assertEqual({os.path.join(self.files, 'ns0'): 'ns0'}, self.source.paths())
        self.assertRaises(exception.CommandFailed, namespaces.DirectorySource(self.files + '/no').paths)

    def test_the_uuid_of_a_file_never_changes(self) -> None:
        # It stands in rows: 5f1d5d3e-… is the namespace of such UUIDs for good.
        for name, inode in (('é', 2 ** 63), *(('ns0', number) for number in range(99))):
            self.assertEqual(
                str(uuid.uuid5(uuid.UUID('5f1d5d3e-8f2e-4a6c-9c3b-0b1f6f0f7a11'), f'{name}:{inode}')),
                namespaces._file_uuid(name, inode))

    def test_a_file_keeps_its_uuid_and_a_replaced_one_does_not(self) -> None:
        self.path('ns0')
        before = self.source.read()['ns0']
        self.assertEqual(before, self.source.read()['ns0'])
        self.path('new')
        os.rename(os.path.join(self.files, 'new'), os.path.join(self.files, 'ns0'))
        self.assertNotEqual(before.uuid, self.source.read()['ns0'].uuid)

    def test_what_became_a_link_or_a_fifo_is_not_opened(self) -> None:
        path = self.path('ns0')
        namespace = self.source.read()['ns0']
        for make in (lambda: os.symlink(self.path('other'), path), lambda: os.mkfifo(path)):
            os.unlink(path)
            make()
            self.assertRaises(OSError, self.source.open, namespace)

    def test_no_directory_is_unknown(self) -> None:
        self.assertRaises(exception.CommandFailed, namespaces.DirectorySource(self.files + '/no').read)
