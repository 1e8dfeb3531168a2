"""The libvirt driver where libvirt does what is seldom seen: a connection in memory, and a kind of the tests' own."""

from __future__ import annotations

import os
from typing import Any
from unittest import mock
import uuid

import libvirt

from devicetrack import exception
from devicetrack import filelock
from devicetrack.objects import details
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Realized
from devicetrack.objects.values import Unknown
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.tests import base
from devicetrack.tests.drivers import contract
from devicetrack.virt import metadata
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import driver as libvirt_driver
from devicetrack.virt.libvirt import guest_xml
from devicetrack.virt.libvirt.kinds import api

A, B = '11111111-1b54-4048-85b3-a6a62d165c01', '22222222-1b54-4048-85b3-a6a62d165c02'
DETAILS = details.to_text(details.VPMEMDetails(
    namespace_uuid=A, label='x', devpath='/x', size_bytes=1, align_bytes=1))


def libvirt_error(code: int, text: str = 'secret-name', domain: int = libvirt.VIR_FROM_QEMU) -> libvirt.libvirtError:
    error = libvirt.libvirtError(text)
    error.err = (code, domain, text, 2, text, None, None, -1, -1)
    return error


def xml(uuid: str, *paths: str, live: bool = False) -> str:
    memory = ''.join(f"<memory model='nvdimm'><source><path>{path}</path></source></memory>" for path in paths)
    identity = " id='1'" if live else ''
    return (f"<domain type='kvm'{identity}><name>secret-name</name><uuid>{uuid}</uuid>"
            f'<devices>{memory}</devices></domain>')


def snapshot(definitions: str) -> str:
    return f'<domainsnapshot><name>secret-name</name>{definitions}</domainsnapshot>'


def recorded(text: str, path: str, boot_id: str, beside: str | None = None) -> str:
    """A definition with a record of ours."""
    element = metadata.element(
        [contract.assignment(B, 'path', path, None, DETAILS)], 'g1',
        [] if beside is None else [contract.assignment(B, 'path', beside, None, DETAILS)], boot_id=boot_id)
    return text.replace('<devices>', f'<metadata>{element}</metadata><devices>')


class Domain:
    """What libvirt answers for one domain: a document for each of its definitions, or an error to raise."""

    def __init__(self, uuid: str, current: Any, defined: Any = None, state: Any = None, saved: Any = None,
                 snapshots: Any = ()) -> None:
        self.uuid, self.current, self.defined, self._state, self.saved = uuid, current, defined, state, saved
        self.snapshots = snapshots
        self.resumed: str | None = None         # its live definition, once somebody has read the other one

    def UUIDString(self) -> str:
        return self.uuid

    def XMLDesc(self, flags: int) -> Any:
        answer = self.defined if flags == libvirt.VIR_DOMAIN_XML_INACTIVE else self.current
        if isinstance(answer, Exception):
            raise answer
        if self.resumed is not None:
            self.saved, self.current, self.resumed = None, self.resumed, None
        return answer

    def listAllSnapshots(self, flags: int) -> Any:
        if isinstance(self.snapshots, Exception):
            raise self.snapshots
        return [Snapshot(text) for text in self.snapshots]

    def hasManagedSaveImage(self, flags: int) -> bool:
        return self.saved is not None

    def managedSaveGetXMLDesc(self, flags: int) -> Any:
        if isinstance(self.saved, Exception):
            raise self.saved
        return self.saved

    def state(self) -> Any:
        if isinstance(self._state, Exception):
            raise self._state
        return self._state


class Snapshot:
    def __init__(self, text: Any) -> None:
        self.text = text

    def getXMLDesc(self, flags: int) -> Any:
        if isinstance(self.text, Exception):
            raise self.text
        return self.text


class Raw:
    def __init__(self) -> None:
        self.domains: Any = []
        self.alive = True
        self.lists = 0

    def listAllDomains(self, flags: int) -> Any:
        if isinstance(self.domains, Exception):
            self.lists += 1
            raise self.domains
        if flags == libvirt.VIR_CONNECT_LIST_DOMAINS_TRANSIENT:
            return [domain for domain in self.domains if domain.defined is None]
        if flags == libvirt.VIR_CONNECT_LIST_DOMAINS_HAS_SNAPSHOT:
            return [domain for domain in self.domains if domain.snapshots]
        if flags == libvirt.VIR_CONNECT_LIST_DOMAINS_MANAGEDSAVE:
            return [domain for domain in self.domains if domain.saved is not None]
        if flags == libvirt.VIR_CONNECT_LIST_DOMAINS_PAUSED:
            return [domain for domain in self.domains if domain._state is not None]
        self.lists += 1
        return self.domains

    def isAlive(self) -> bool:
        return self.alive


class Paths(api.DeviceKind):
    """A kind that takes every path in a definition for the name of a device."""

    name = 'path'
    keeps_bytes = False
    configured = True
    resource_classes = frozenset(('CUSTOM_A',))

    def __init__(self, conf: Any, hypervisor: connection.Connection) -> None:
        super().__init__(conf, hypervisor)
        self.error: Exception | None = None
        self.unclaim_error: Exception | None = None
        self.given_back: list[str] = []
        self.after_unclaim: Any = None
        self.known = True

    def _try(self) -> None:
        if self.error is not None:
            raise self.error

    def stock(self) -> api.Stock:
        self._try()
        return api.Stock((InventoryDevice(self.name, 'a', '', 'CUSTOM_A', None, None, DETAILS),))

    def addresses(self, domain: Any) -> Any:
        return domain.memory_paths

    def identify(self, addresses: Any) -> Any:
        self._try()
        return {address: address if self.known else None for address in addresses}

    def realize(self, assignment: Any) -> Realized:
        self._try()
        return Realized(DeviceKey(self.name, assignment.identifier), DETAILS)

    def unclaim(self, assignment: Any, lock_fd: int) -> None:
        os.fstat(lock_fd)
        if self.unclaim_error is not None:
            raise self.unclaim_error
        self.given_back.append(assignment.identifier)
        if self.after_unclaim is not None:
            self.after_unclaim()

    def guest_elements(self, assignments: Any) -> Any:
        return [f'<path>{assignment.identifier}</path>' for assignment in assignments]


class DriverTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.raw = Raw()
        self.driver = libvirt_driver.LibvirtDriver('host', self.conf, self.state_path, [Paths], lambda: self.raw)
        self.kind: Any = self.driver._kinds['path']
        self.device = contract.assignment(A, 'path', '/a', None, DETAILS)
        self.key = DeviceKey('path', '/a')


class UsageTestCase(DriverTestCase):

    def test_live_and_defined_are_told_apart(self) -> None:
        self.raw.domains = [Domain(A, xml(A, '/a', '/b', live=True), xml(A, '/b', '/c'))]
        self.assertEqual([('/a', True, True, False), ('/b', True, True, True), ('/c', True, False, True)],
                         [(use.identifier, use.running, use.live, use.defined)
                          for use in self.driver.get_usage().uses])

    def test_a_domain_that_went_away_after_it_was_listed_uses_nothing(self) -> None:
        gone = libvirt_error(libvirt.VIR_ERR_NO_DOMAIN)
        self.raw.domains = [Domain(A, gone), Domain(A[:-1] + '2', xml(A[:-1] + '2', live=True), gone),
                            Domain(B, xml(B, '/b', live=True))]
        usage = self.driver.get_usage()
        self.assertEqual((frozenset((B,)), ()), (usage.domains, usage.unknown))

    def test_two_domains_of_one_uuid_are_unknown(self) -> None:
        self.raw.domains = [Domain(A, xml(A, '/a', live=True)), Domain(A, xml(A, '/b', live=True))]
        usage = self.driver.get_usage()
        self.assertEqual([f'domain {A}'], [unknown.what for unknown in usage.unknown])
        self.assertEqual({'/a', '/b'}, {use.identifier for use in usage.uses})

    def test_a_definition_that_did_not_change_is_not_read_again(self) -> None:
        self.raw.domains = [Domain(A, xml(A, '/a', live=True)), Domain(B, xml(B, '/b', live=True))]
        self.driver.get_usage()
        parse = mock.Mock(wraps=domain_xml.parse)
        self.patch(domain_xml, 'parse', parse)
        self.raw.domains[1] = Domain(B, xml(B, '/c', live=True))
        self.assertEqual(['/a', '/c'], [use.identifier for use in self.driver.get_usage().uses])
        self.assertEqual([f'domain {B}'], [document for (_text, document), _named in parse.call_args_list])

    def test_a_definition_that_cannot_be_read_is_unknown_in_every_look(self) -> None:
        self.raw.domains = [Domain(A, xml(A, '/\udc80', live=True))]
        for _look in range(2):
            self.assertEqual([f'domain {A}'], [unknown.what for unknown in self.driver.get_usage().unknown])

    def test_a_boot_that_cannot_be_named_is_an_error_of_the_driver(self) -> None:
        self.patch(libvirt_driver, 'BOOT_ID', os.path.join(self.temp_dir(), 'not there'))
        for call in (self.driver.boot_id, self.driver.get_usage):
            self.assertIn('No such file', str(self.assertRaises(exception.CommandFailed, call)))

    def test_what_cannot_be_read_is_unknown_and_the_rest_is_known(self) -> None:
        self.raw.domains = [
            Domain(A, '<domain><name>secret-name</name'), Domain(B, xml(A, '/x')),
            Domain(A[:-1] + '2', 'x' * 5_000_000),
            Domain(A[:-1] + '3', libvirt_error(libvirt.VIR_ERR_OPERATION_INVALID)),
            Domain(A[:-1] + '4', xml(A[:-1] + '4', '/d', live=True))]
        usage = self.driver.get_usage()
        self.assertEqual(['/d'], [use.identifier for use in usage.uses])
        self.assertEqual([f'domain {A}', f'domain {B}', f'domain {A[:-1]}2', f'domain {A[:-1]}3'],
                         [unknown.what for unknown in usage.unknown])
        self.assertEqual(5, len(usage.domains))
        self.assertNotIn('secret', str(usage))

    def test_what_a_file_of_arguments_names_is_unknown(self) -> None:
        for argument in ('-readconfig', '--readconfig'):
            own = ("<qemu:commandline xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>"
                   f"<qemu:arg value='{argument}'/><qemu:arg value='/etc/qemu.cfg'/></qemu:commandline></domain>")
            for live in (True, False):
                self.raw.domains = [Domain(A, xml(A, '/a', live=live).replace('</domain>', own))]
                usage = self.driver.get_usage()
                self.assertEqual([Unknown(f'domain {A}', 'qemu:commandline: a file that it names may name devices')],
                                 list(usage.unknown))
                self.assertEqual(['/a'], [use.identifier for use in usage.uses])
                self.assertIn(A, str(self.driver.unclaim([self.device])[self.key]))

    def test_addresses_that_nobody_can_identify_are_unknown(self) -> None:
        self.raw.domains = [Domain(A, xml(A, '/a', live=True))]
        self.kind.error = exception.CommandFailed('ndctl', 'failed')
        usage = self.driver.get_usage()
        self.assertEqual((Unknown('path devices that domains name', 'ndctl: failed'),), usage.unknown)
        self.assertEqual([None], [use.identifier for use in usage.uses])

    def test_a_kind_without_options_is_identified_when_that_can_be_done(self) -> None:
        self.raw.domains = [Domain(A, xml(A, '/a', live=True))]
        self.kind.configured = False
        self.assertEqual(['/a'], [use.identifier for use in self.driver.get_usage().uses])
        self.kind.error = exception.CommandFailed('ndctl', 'not installed')
        usage = self.driver.get_usage()
        self.assertEqual((['/a'], [None], ()), ([use.address for use in usage.uses],
                                                [use.identifier for use in usage.uses], usage.unknown))
        # Whoever gives a device of the kind back must know.
        self.assertIsInstance(self.driver.unclaim([self.device])[self.key], exception.UnclaimFailed)

    def test_a_path_of_no_device_is_named_all_the_same(self) -> None:
        self.raw.domains = [Domain(A, xml(A, '/z', live=True))]
        self.kind.known = False
        use, = self.driver.get_usage().uses
        self.assertEqual((None, '/z'), (use.identifier, use.address))

    def test_what_is_no_business_of_the_kind_is_not_named(self) -> None:
        self.raw.domains = [Domain(A, xml(A, '/a', '/z', live=True))]
        self.patch(self.kind, 'identify', lambda addresses: {address: address for address in addresses
                                                             if address != '/z'})
        self.assertEqual(['/a'], [use.address for use in self.driver.get_usage().uses])

    def test_no_connection_is_no_answer(self) -> None:
        self.raw.domains = libvirt_error(libvirt.VIR_ERR_INTERNAL_ERROR, 'closed', libvirt.VIR_FROM_RPC)
        error = self.assertRaises(exception.HypervisorUnreachable, self.driver.get_usage)
        self.assertEqual('qemu:///system', error.hypervisor)
        self.assertIsInstance(error.__cause__, libvirt.libvirtError)
        self.assertEqual(2, self.raw.lists)       # opened again once, and no more

    def test_a_connection_that_is_lost_between_two_domains_is_no_answer(self) -> None:
        lost = libvirt_error(libvirt.VIR_ERR_SYSTEM_ERROR, 'broken pipe', libvirt.VIR_FROM_RPC)
        self.raw.domains = [Domain(A, xml(A)), Domain(B, lost)]
        self.assertRaises(exception.HypervisorUnreachable, self.driver.get_usage)

    def test_a_definition_that_the_daemon_cannot_send_hides_no_other(self) -> None:
        too_long = libvirt_error(libvirt.VIR_ERR_RPC, 'Unable to encode message payload', libvirt.VIR_FROM_RPC)
        self.raw.domains = [Domain(A, too_long), Domain(B, xml(B, '/b', live=True))]
        usage = self.driver.get_usage()
        self.assertEqual(([f'domain {A}'], [B]), (
            [one.what for one in usage.unknown], [use.domain_uuid for use in usage.uses]))
        self.raw.alive = False
        self.assertRaises(exception.HypervisorUnreachable, self.driver.get_usage)

    def test_another_error_on_a_dead_connection_is_no_answer(self) -> None:
        self.raw.domains = [Domain(A, libvirt_error(libvirt.VIR_ERR_OPERATION_FAILED))]
        self.raw.alive = False
        self.assertRaises(exception.HypervisorUnreachable, self.driver.get_usage)


class ArrivingTestCase(DriverTestCase):

    scenarios = base.table(
        ('waits for the source', (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION), True),
        ('its process starts', (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP), True),
        ('somebody paused it', (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER), False),
        ('runs by now', (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_MIGRATED), False),
        ('is gone by now', libvirt_error(libvirt.VIR_ERR_NO_DOMAIN), False),
        ('nobody can say', libvirt_error(libvirt.VIR_ERR_OPERATION_FAILED), True),
        names=('state', 'arriving'))

    def test_a_guest_that_is_paused(self) -> None:
        self.raw.domains = [Domain(A, xml(A, '/a', live=True), state=self.state), Domain(B, xml(B, '/b', live=True))]
        usage = self.driver.get_usage()
        self.assertEqual(({A, B}, {A} if self.arriving else set()), (usage.running, usage.arriving))

    def test_a_guest_that_came_after_all_were_listed_is_left_to_the_next_time(self) -> None:
        self.raw.domains = [Domain(A, '<domain', state=self.state)]
        self.assertEqual(frozenset(), self.driver.get_usage().arriving)


class InventoryTestCase(DriverTestCase):

    def test_a_kind_that_cannot_be_read_is_unknown(self) -> None:
        self.kind.error = exception.InvalidDocument('ndctl list', 'document', 'not JSON')
        inventory = self.driver.get_inventory()
        self.assertEqual(((), frozenset(), (Unknown('path', 'ndctl list: document: not JSON'),)),
                         (inventory.devices, inventory.known_kinds, inventory.unknown))

    def test_no_answer_for_everything_is_an_error(self) -> None:
        self.kind.error = exception.HypervisorUnreachable('x', 'y')
        self.assertRaises(exception.HypervisorUnreachable, self.driver.get_inventory)

    def test_a_kind_without_options_has_nothing_and_that_is_known(self) -> None:
        self.kind.error = exception.CommandFailed('ndctl', 'not installed')
        self.kind.configured = False
        inventory = self.driver.get_inventory()
        self.assertEqual(((), {'path'}, ()), (inventory.devices, inventory.known_kinds, inventory.unknown))


class UnclaimTestCase(DriverTestCase):

    def unclaim(self) -> Any:
        return self.driver.unclaim([self.device])[self.key]

    def test_nothing_is_given_back_while_any_document_is_unknown(self) -> None:
        self.raw.domains = [Domain(B, '<domain')]
        error = self.unclaim()
        self.assertIsInstance(error, exception.UnclaimFailed)
        self.assertIn(B, error.reason)
        self.assertEqual([], self.kind.given_back)

    def test_nothing_is_given_back_while_addresses_are_unknown(self) -> None:
        self.raw.domains = [Domain(B, xml(B, '/b', live=True))]
        self.kind.error = exception.CommandFailed('ndctl', 'failed')
        self.assertIsInstance(self.unclaim(), exception.UnclaimFailed)

    def test_a_definition_alone_is_a_use(self) -> None:
        self.raw.domains = [Domain(B, xml(B, live=True), xml(B, '/a'))]
        error = self.unclaim()
        self.assertIsInstance(error, exception.DeviceInUse)
        self.assertIn(B, error.reason)

    def test_the_hypervisor_is_asked_before_each_and_after_the_last(self) -> None:
        others = [contract.assignment(A, 'path', f'/{number}', None, DETAILS) for number in range(10)]
        self.assertEqual({None}, set(self.driver.unclaim([self.device, *others]).values()))
        self.assertEqual((12, 11), (self.raw.lists, len(self.kind.given_back)))

    def test_a_saved_guest_keeps_what_it_comes_back_on(self) -> None:
        """Its definition may have been changed since it was saved."""
        self.raw.domains = [Domain(B, xml(B), saved=xml(B, '/a'))]
        self.assertIsInstance(self.unclaim(), exception.DeviceInUse)
        self.assertEqual([(B, '/a', False, False, True)],
                         [(use.domain_uuid, use.identifier, use.running, use.live, use.defined)
                          for use in self.driver.get_usage().uses])

    def test_a_saved_guest_whose_definition_says_the_same_uses_a_device_once(self) -> None:
        self.raw.domains = [Domain(B, xml(B, '/a'), saved=xml(B, '/a'))]
        self.assertEqual(1, len(self.driver.get_usage().uses))

    def test_a_saved_state_that_cannot_be_read_frees_nothing(self) -> None:
        for saved in ('<domain', libvirt_error(libvirt.VIR_ERR_OPERATION_INVALID)):
            self.raw.domains = [Domain(B, xml(B), saved=saved)]
            self.assertIsInstance(self.unclaim(), exception.UnclaimFailed)

    def test_a_saved_state_that_is_gone_is_no_use(self) -> None:
        self.raw.domains = [Domain(B, xml(B), saved=libvirt_error(libvirt.VIR_ERR_NO_DOMAIN))]
        self.assertIsNone(self.unclaim())

    def test_a_saved_guest_that_is_started_meanwhile_is_looked_at_again(self) -> None:
        domain = Domain(B, xml(B), saved=xml(B, '/a'))
        domain.resumed = xml(B, '/a', live=True)
        self.raw.domains = [domain]
        usage = self.driver.get_usage()
        self.assertEqual(({B}, [(B, '/a', True, True)]), (usage.running, [
            (use.domain_uuid, use.identifier, use.running, use.live) for use in usage.uses]))

    def test_so_is_one_that_has_a_snapshot_too(self) -> None:
        domain = Domain(B, xml(B), saved=xml(B, '/a'), snapshots=[snapshot(xml(B))])
        domain.resumed = xml(B, '/a', live=True)
        self.raw.domains = [domain]
        self.assertIn((B, '/a', True, True), [
            (use.domain_uuid, use.identifier, use.running, use.live) for use in self.driver.get_usage().uses])

    def test_a_snapshot_keeps_what_its_guest_gets_back(self) -> None:
        """It has the definition of then, and if the guest ran, the inactive one too."""
        inactive = xml(B, '/a').replace('domain', 'inactiveDomain')
        for definitions in (xml(B, '/a'), xml(B, '/a', live=True), xml(B, live=True) + inactive):
            self.raw.domains = [Domain(B, xml(B), snapshots=[snapshot(xml(B)), snapshot(definitions)])]
            self.assertIsInstance(self.unclaim(), exception.DeviceInUse)
            self.assertEqual([(B, '/a', False, False, False)],
                             [(use.domain_uuid, use.identifier, use.running, use.live, use.defined)
                              for use in self.driver.get_usage().uses])
        self.assertEqual([], self.kind.given_back)

    def test_a_snapshot_of_a_running_guest_that_names_the_same_changes_nothing(self) -> None:
        self.raw.domains = [Domain(B, xml(B, '/a', live=True), xml(B), snapshots=[snapshot(xml(B, '/a'))])]
        usage = self.driver.get_usage()
        self.assertEqual(({B}, [True, False]), (usage.running, [use.live for use in usage.uses]))

    def test_a_snapshot_that_cannot_be_read_frees_nothing(self) -> None:
        for snapshots in (['<domain/>'], ['<domainsnapshot'], [snapshot('<domain/>')],
                          [libvirt_error(libvirt.VIR_ERR_OPERATION_FAILED)],
                          libvirt_error(libvirt.VIR_ERR_OPERATION_FAILED)):
            self.raw.domains = [Domain(B, xml(B), snapshots=snapshots)]
            error = self.unclaim()
            self.assertIsInstance(error, exception.UsersUnknown)
            self.assertNotIn('secret-name', str(error))

    def test_a_snapshot_that_is_gone_and_one_without_a_definition_keep_nothing(self) -> None:
        for text in (libvirt_error(libvirt.VIR_ERR_NO_DOMAIN_SNAPSHOT), libvirt_error(libvirt.VIR_ERR_NO_DOMAIN),
                     snapshot(f'<domain><uuid>{B}</uuid></domain>'), snapshot('')):
            self.raw.domains = [Domain(B, xml(B), snapshots=[text])]
            self.assertIsNone(self.unclaim())

    def test_a_record_that_is_forged_frees_no_device_that_the_definition_names(self) -> None:
        """The record says that the path is of another boot, and that it meant another device."""
        self.patch(Paths, 'form', guest_xml.MEMORY)
        self.driver = libvirt_driver.LibvirtDriver('host', self.conf, self.state_path, [Paths], lambda: self.raw)
        self.raw.domains = [Domain(B, recorded(xml(B, '/a'), '/b', 'another boot'))]
        self.assertIsInstance(self.unclaim(), exception.DeviceInUse)
        self.assertEqual([(B, '/b')], [(use.domain_uuid, use.identifier) for use in self.driver.get_usage().uses])

    def test_what_a_record_alone_names_is_kept_too(self) -> None:
        self.raw.domains = [Domain(B, recorded(xml(B, '/c'), '/a', self.driver.boot_id()))]
        self.assertIsInstance(self.unclaim(), exception.DeviceInUse)

    def test_what_a_record_alone_names_is_kept_however_it_is_written(self) -> None:
        for name, written in (('/né', '/n&#xE9;'), ('/né', '/né'), ('/a"b', '/a&quot;b'), ("/a'b", '/a&apos;b'),
                              ('/a<b', '/a&#60;b'), ('/plain', '/pl&#97;in')):
            text = recorded(xml(B, '/c'), '/one', self.driver.boot_id())
            self.raw.domains = [Domain(B, text.replace('/one', written))]
            device = contract.assignment(A, 'path', name, None, DETAILS)
            self.assertIsInstance(self.driver.unclaim([device])[DeviceKey('path', name)], exception.DeviceInUse)
        self.assertEqual([], self.kind.given_back)

    def test_what_a_record_names_beside_the_guest_is_not_the_guests(self) -> None:
        self.raw.domains = [Domain(B, recorded(xml(B, '/c'), '/c', self.driver.boot_id(), beside='/a'))]
        self.assertIsNone(self.unclaim())

    def start(self, *paths: str) -> None:
        self.raw.domains = [Domain(B, xml(B, *paths, live=True))]

    def test_a_guest_that_is_started_while_another_device_is_wiped_keeps_its_own(self) -> None:
        other = contract.assignment(A, 'path', '/b', None, DETAILS)
        self.kind.after_unclaim = lambda: self.start('/b')
        results = self.driver.unclaim([self.device, other])
        self.assertIsNone(results[self.key])
        self.assertIsInstance(results[DeviceKey('path', '/b')], exception.DeviceInUse)
        self.assertEqual(['/a'], self.kind.given_back)

    def test_a_guest_that_is_started_during_the_wipe_keeps_the_row(self) -> None:
        self.kind.after_unclaim = lambda: self.start('/a')
        self.assertIsInstance(self.unclaim(), exception.DeviceInUse)

    def test_without_an_answer_after_the_wipe_nothing_is_free(self) -> None:
        def lose() -> None:
            self.raw.domains = libvirt_error(libvirt.VIR_ERR_INTERNAL_ERROR, domain=libvirt.VIR_FROM_RPC)

        self.kind.after_unclaim = lose
        self.assertIn('its users are unknown', str(self.unclaim()))

    def test_the_caller_is_asked_under_the_lock_before_each_device(self) -> None:
        other = contract.assignment(A, 'path', '/b', None, DETAILS)
        asked = []

        def confirm(assignment: Any) -> None:
            asked.append((assignment.identifier, list(self.kind.given_back)))
            self.assertIsInstance(self.unclaim_elsewhere(assignment), exception.DeviceBusy)
            if len(asked) == 2:
                raise exception.HostTakenOver('host')

        self.assertRaises(exception.HostTakenOver, self.driver.unclaim, [self.device, other], confirm)
        self.assertEqual([('/a', []), ('/b', ['/a'])], asked)
        self.assertEqual(['/a'], self.kind.given_back)

    def unclaim_elsewhere(self, assignment: Any) -> Any:
        driver = libvirt_driver.LibvirtDriver('host', self.conf, self.state_path, [Paths], lambda: self.raw)
        return driver.unclaim([assignment])[DeviceKey('path', assignment.identifier)]

    def test_errors_of_a_kind_are_answers(self) -> None:
        for error, wanted in ((exception.DeviceGone('path', '/a', 'x'), exception.DeviceGone),
                              (exception.CommandFailed('wiper', 'x'), exception.UnclaimFailed)):
            self.kind.unclaim_error = error
            self.assertIsInstance(self.unclaim(), wanted)

    def test_a_kind_that_is_not_installed_is_an_answer(self) -> None:
        unknown = contract.assignment(A, 'other', 'x', None, DETAILS)
        results = self.driver.unclaim([unknown, self.device])
        self.assertIsInstance(results[DeviceKey('other', 'x')], exception.UnclaimFailed)
        self.assertIsNone(results[self.key])
        self.assertRaises(exception.RealizeFailed, self.driver.realize, unknown)
        self.assertRaises(exception.DeviceGone, self.driver.guest_config, [unknown])

    def test_a_device_that_a_manager_with_another_state_directory_works_on_is_left_alone(self) -> None:
        own = os.path.join(self.temp_dir(), 'a')
        self.patch(Paths, 'own_path', lambda _kind, _assignment: own)
        self.assertIsNone(self.unclaim())                   # nothing stands for it yet
        os.mkdir(own)
        self.assertEqual(set(), self.driver.being_worked_on([self.device]))
        with filelock.NodeLock(own):
            self.assertEqual({self.key}, self.driver.being_worked_on([self.device]))
            self.assertIsInstance(self.unclaim(), exception.DeviceBusy)
            self.assertRaises(exception.DeviceBusy, self.driver.realize, self.device)
        self.assertEqual(['/a'], self.kind.given_back)
        self.driver.realize(self.device)
        self.assertIsNone(self.unclaim())

    def test_every_name_has_a_lock_file_of_its_own(self) -> None:
        names = ['/a', '%2Fa', 'a', '.', '..', 'ü' * 100, 'ü' * 101, 'x\0', 'A']
        self.driver.unclaim([contract.assignment(A, 'path', name, None, DETAILS) for name in names])
        self.assertEqual(len(names), len(os.listdir(os.path.join(self.state_path, 'locks'))))

    def test_a_lock_that_others_can_change_frees_nothing(self) -> None:
        locks = os.path.join(self.state_path, 'locks')
        os.mkdir(locks)
        os.chmod(locks, 0o770)
        error = self.unclaim()
        self.assertIsInstance(error, exception.UnclaimFailed)
        self.assertIn(f'cannot be used: {locks}: users other than its owner can write to it (mode 0770)', str(error))

    def test_locks_that_cannot_be_made_free_nothing(self) -> None:
        with open(os.path.join(self.state_path, 'locks'), 'w'):
            self.assertIsInstance(self.unclaim(), exception.UnclaimFailed)
        self.assertRaises(exception.RealizeFailed, self.driver.realize, self.device)
        self.assertRaises(exception.DeviceError, self.driver.being_worked_on, [self.device])


class GuestConfigTestCase(DriverTestCase):

    def test_guests_are_read_once_from_claim_to_definition(self) -> None:
        self.driver.realize(self.device)
        self.assertEqual('<path>/a</path>', self.driver.guest_config([self.device]).devices[0])
        self.assertEqual(1, self.raw.lists)

    def test_no_guest_is_read_for_a_device_that_was_ready_before(self) -> None:
        self.driver.realize(contract.assignment(A, 'path', '/a', None, DETAILS, was_realized=True))
        self.assertEqual(0, self.raw.lists)


class NodeDeviceTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        node = self.useFixture(libvirt_fixtures.TestNode())
        uuid = node.add_mdev(node.add_parent('0000:84:00.0', {'nvidia-35': 1}), 'nvidia-35')
        self.name = f'mdev_{uuid.replace("-", "_")}'
        self.node = node

    def test_it_is_found_by_its_name(self) -> None:
        hypervisor = connection.Connection(connect=self.node.connect)
        found = hypervisor.node_device(self.name)
        assert found is not None
        self.assertIn(f'<name>{self.name}</name>', found.xml())
        self.assertIsNone(hypervisor.node_device(self.name + '_'))

    def test_a_lost_connection_is_opened_again(self) -> None:
        opened: list[Any] = []

        def connect() -> Any:
            opened.append(libvirt.open(self.node.write()))
            return opened[-1]

        hypervisor = connection.Connection(connect=connect)
        hypervisor.raw().close()
        self.assertIsNotNone(hypervisor.node_device(self.name))
        self.assertEqual(2, len(opened))
        opened[-1].close()

    def test_no_connection_is_no_answer(self) -> None:
        hypervisor = connection.Connection('nosuch:///')
        self.assertRaises(exception.HypervisorUnreachable, hypervisor.node_device, self.name)

    def test_it_says_what_to_do_and_shows_no_account(self) -> None:
        hypervisor = connection.Connection('nosuch://someone:secret@there/system')
        error = self.assertRaises(exception.HypervisorUnreachable, hypervisor.node_device, self.name)
        self.assertEqual('nosuch://there/system', error.hypervisor)
        self.assertIn('[libvirt] connection_uri', str(error))


class KindsTestCase(base.TestCase):

    def test_a_kind_that_refuses_its_options_refuses_the_driver(self) -> None:
        class Refusing(Paths):
            def __init__(self, conf: Any, hypervisor: connection.Connection) -> None:
                raise exception.InvalidConfiguration('[x] y', 'z', 'no')

        self.assertRaises(exception.InvalidConfiguration, libvirt_driver.LibvirtDriver, 'host', self.conf,
                          self.state_path, [Refusing])

    def test_no_connection_is_made_before_it_is_needed(self) -> None:
        def connect() -> Any:
            raise AssertionError

        driver = libvirt_driver.LibvirtDriver('host', self.conf, self.state_path, [Paths], connect)
        self.assertEqual(1, len(driver.get_inventory().devices))
        self.assertEqual(str(uuid.UUID(driver.boot_id())), driver.boot_id())

    def test_an_unknown_uri_is_no_answer(self) -> None:
        self.configuration.set('libvirt', connection_uri='nosuch:///')
        driver = libvirt_driver.LibvirtDriver('host', self.conf, self.state_path, [Paths])
        error = self.assertRaises(exception.HypervisorUnreachable, driver.get_usage)
        self.assertEqual('nosuch:///', error.hypervisor)
