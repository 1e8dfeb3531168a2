"""Compares a host's restart, and its audit, with fetching the documents that both have to read.

The guests are defined in a libvirtd of the benchmark's own, and are read through its socket. None of them runs, so
each has one document. Its size and content are those of a compute service's guests, with our record. Every guest owns
twelve namespaces, which are sparse files. Namespaces are the costliest devices to read: only the file system knows
where a path leads. The rows are in SQLite. All views agree.

*Fetching* is libvirt's binding alone: list the domains, ask each for its document, drop it. The libvirtd is another
process, and does a good part of all work here.
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import gc
import os
import time
import tracemalloc
from typing import Any
import uuid

from benchmarks.host import Flavor
from benchmarks.host import Host
from benchmarks.host import LABEL
from benchmarks.host import NAME
from benchmarks.measure import between
from benchmarks.measure import Effort
from benchmarks.report import Row
from benchmarks.report import Table
from devicetrack.claims.manager import ClaimManager
from devicetrack.compatibility.facts import look_at
from devicetrack.engine.findings import Finding
from devicetrack.objects.values import GuestConfig
from devicetrack.testing import databases
from devicetrack.virt import metadata
from devicetrack.virt.driver import VirtDriver

DEVICES_A_GUEST = 12
MILLISECONDS = 1e3
KIB = 1024
PARSE, RECOVERY, FIRST_AUDIT, AUDIT = 'parse', 'recovery', 'first audit', 'audit'
# A start has to parse what it fetches, and misses this; an audit has not. Fetching one document takes some 230 us. To
# parse it, libxml2 alone takes 0.75 of that, and the walk through its 330 elements as much again. For the twelve
# devices of the guest, reading the namespaces takes 0.25, reading the rows 0.2, and the ledger and the comparison 0.6.
# A part of that is done beside the fetching, as far as there are processors.
AT_MOST = 2.2
# The smallest namespace that a guest can have: one unit of QEMU's and the guest's own labels.
_NAMESPACE_BYTES = 4 << 20


class Guests(Host):
    """A host whose namespaces are files. Its guests are defined in a libvirtd, and own all namespaces."""

    flavor = Flavor({'hw:pmem': ','.join([LABEL] * DEVICES_A_GUEST)})

    def __init__(self, store: Any, conf: Any, guests: int) -> None:
        super().__init__(store, conf, guests * DEVICES_A_GUEST)

    def driver(self, state_path: str) -> VirtDriver:
        # Not at the top: the other subjects can be measured without libvirt.
        from devicetrack.conf import libvirt as options
        from devicetrack.testing import libvirt as libvirt_fixtures
        from devicetrack.virt.libvirt.kinds.vpmem import VPMEM
        self.kinds = [VPMEM]
        self.daemon = self.useFixture(libvirt_fixtures.Libvirtd())
        directory = os.path.join(state_path, 'namespaces')
        os.mkdir(directory)
        names = [f'ns{number:05}' for number in range(self.devices)]
        for name in names:
            with open(os.path.join(directory, name), 'wb') as file:
                file.truncate(_NAMESPACE_BYTES)
        options.register(self.conf)
        self.conf.set_override('pmem_namespaces', [f'{LABEL}:{"|".join(names)}'], options.LIBVIRT_GROUP)
        self.conf.set_override('connection_uri', self.daemon.uri, options.LIBVIRT_GROUP)
        self.conf.set_override('directory', directory, options.VPMEM_GROUP)
        self.state_path = state_path
        return self.another_driver()

    def another_driver(self) -> VirtDriver:
        from devicetrack.virt.libvirt.driver import LibvirtDriver
        self._driver = LibvirtDriver(NAME, self.conf, self.state_path, self.kinds)
        return self._driver

    def _setUp(self) -> None:
        super()._setUp()
        [(provider, allocation)] = self.allocations.items()
        self.allocations = {provider: {'resources': {
            **allocation['resources'], self.resource_class: DEVICES_A_GUEST}}}
        self.connection = self.daemon.connect()
        self.addCleanup(self.connection.close)

    def define(self, count: int) -> None:
        """Add guests with their devices. The record has them as running, but they are off."""
        from devicetrack.virt.libvirt.kinds import vpmem
        # Do as guest_config, but without listing all namespaces for each guest.
        kind: Any = self._driver._kinds['vpmem']
        namespaces = kind._source.read()
        for _ in range(count):
            instance = self.instance()
            assignments = list(self.claim(instance).resources)
            # Do as realize, also without listing all namespaces: a guest's device is no longer proven clean.
            self._driver.disprove([one.key for one in assignments])
            config = GuestConfig(tuple(vpmem.guest_element(namespaces[one.identifier]) for one in assignments),
                                 metadata.element(assignments, 'pmem.large'))
            self.connection.defineXML(definition(instance.uuid, config))
            self.manager.started(None, instance)

    def documents(self) -> list[str]:
        return [domain.XMLDesc(0) for domain in self.connection.listAllDomains(0)]

    def fetch(self) -> float:
        """Fetch all documents by the binding alone. Returns the seconds."""
        began = time.perf_counter()
        for domain in self.connection.listAllDomains(0):
            domain.XMLDesc(0)
        return time.perf_counter() - began

    def restart(self) -> float:
        """Close the host and start it again, as a new process does. Returns the seconds of the start."""
        self.manager.close()
        self._driver.close()
        self.manager = ClaimManager(NAME, self.another_driver(), self.store, self.conf)
        self.addCleanup(self._driver.close)
        self.addCleanup(self.manager.close)
        # Forget the definitions that the last manager has read: a new process does not know them.
        look_at.cache_clear()
        gc.collect()
        began = time.perf_counter()
        findings = self.manager.init_host(None)
        return _clean(began, findings)

    def first_audit(self) -> float:
        """Audit the host for the first time after its start. Returns the seconds."""
        self.restart()
        return self._audit()

    def audit(self) -> float:
        """Audit the host as a service does all day, after an audit of the same definitions. Returns the seconds."""
        self._audit()
        return self._audit()

    def _audit(self) -> float:
        began = time.perf_counter()
        findings = self.manager.update_available_resource(None, NAME)
        return _clean(began, findings)


def _clean(began: float, findings: Sequence[Finding]) -> float:
    took = time.perf_counter() - began
    if findings:
        raise AssertionError(f'{len(findings)} findings on a clean host, the first: {findings[0]}')
    return took


def definition(instance_uuid: str, config: GuestConfig) -> str:
    """A guest's definition as a compute service writes it. libvirt completes it to some 22 KB."""
    drives = ''.join(
        f"<disk type='file' device='disk'><driver name='qemu' type='qcow2' cache='none' discard='unmap'/>"
        f"<source file='/var/lib/nova/instances/{instance_uuid}/disk{letter}'/><target dev='vd{letter}' bus='virtio'/>"
        f'<serial>{uuid.uuid4()}</serial></disk>' for letter in 'abcdef')
    ports = ''.join(
        f"<interface type='ethernet'><mac address='fa:16:3e:00:00:{number:02x}'/><target dev='tap{number}'/>"
        f"<model type='virtio'/><mtu size='1442'/></interface>" for number in range(4))
    functions = ''.join(
        f"<hostdev mode='subsystem' type='pci' managed='yes'><source><address domain='0x0000' bus='0x81' "
        f"slot='0x00' function='0x{number}'/></source></hostdev>" for number in range(2))
    ram_kib, pmem_kib = 8 << 20, DEVICES_A_GUEST * _NAMESPACE_BYTES // KIB
    return f"""
      <domain type='qemu'>
        <name>instance-{instance_uuid}</name><uuid>{instance_uuid}</uuid>
        <metadata>
          <nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">
            <nova:package version="34.0.0"/><nova:name>guest &amp; co</nova:name>
            <nova:creationTime>2026-01-01 01:00:00</nova:creationTime>
            <nova:flavor name="pmem.large"><nova:memory>8192</nova:memory><nova:disk>40</nova:disk>
              <nova:swap>0</nova:swap><nova:ephemeral>0</nova:ephemeral><nova:vcpus>4</nova:vcpus></nova:flavor>
            <nova:owner><nova:user uuid="{uuid.uuid4().hex}">user</nova:user>
              <nova:project uuid="{uuid.uuid4().hex}">project</nova:project></nova:owner>
            <nova:root type="image" uuid="{uuid.uuid4()}"/>
          </nova:instance>
          {config.metadata}
        </metadata>
        <maxMemory slots='16' unit='GiB'>64</maxMemory>
        <memory unit='KiB'>{ram_kib + pmem_kib}</memory><currentMemory unit='KiB'>{ram_kib}</currentMemory>
        <vcpu>4</vcpu>
        <sysinfo type='smbios'><system><entry name='manufacturer'>OpenStack Foundation</entry>
          <entry name='product'>OpenStack Nova</entry><entry name='uuid'>{instance_uuid}</entry></system></sysinfo>
        <os><type arch='x86_64' machine='q35'>hvm</type><boot dev='hd'/><smbios mode='sysinfo'/></os>
        <features><acpi/><apic/></features>
        <cpu><numa><cell id='0' cpus='0-3' memory='{ram_kib}' unit='KiB' memAccess='shared'/></numa></cpu>
        <devices>{drives}{ports}{functions}<graphics type='vnc' autoport='yes' listen='0.0.0.0'/>
          <channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
          <rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>
          {''.join(config.devices)}</devices>
      </domain>"""


def run(effort: Effort) -> Table:
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(databases.SQLiteStore(durable=True))
        host = stack.enter_context(Guests(database.store, database.conf, effort.recovered_guests))
        few = max(1, effort.recovered_guests // 10)
        host.define(few)
        memory_of_few = _memory(host)
        host.define(effort.recovered_guests - few)
        memory = _memory(host)
        documents = host.documents()
        samples = between(host.fetch, {PARSE: lambda: _parse(documents), RECOVERY: host.restart,
                                       FIRST_AUDIT: host.first_audit, AUDIT: host.audit}, effort.recovery_rounds)
    size = sum(map(len, documents)) / len(documents) / KIB
    rows = [Row('fetching the documents of all guests', samples.reference() * MILLISECONDS, 'ms',
                note=f'{size:.1f} KiB each')]
    rows += [Row(f'{what}, to fetching', samples.ratio(subject), at_most=at_most,
                 note=f'{samples.median(subject) * MILLISECONDS:,.0f} ms')
             for what, subject, at_most in (('reading what they say of devices', PARSE, None),
                                            ('init_host, fetching included', RECOVERY, AT_MOST),
                                            ('the first audit, fetching included', FIRST_AUDIT, AT_MOST),
                                            ('an audit after another, fetching included', AUDIT, AT_MOST))]
    more = (memory - memory_of_few) / (effort.recovered_guests - few)
    rows.append(Row('memory that one more guest takes while all are read, to its document', more / (size * KIB),
                    at_most=0.05, note=f'{more:,.0f} bytes; {memory / KIB:,.0f} KiB for all, beside what is kept'))
    return Table(f'A host with {effort.recovered_guests:,} guests of {DEVICES_A_GUEST} devices starts again', rows)


def _parse(documents: Sequence[str]) -> float:
    from devicetrack.virt.libvirt import domain_xml
    began = time.perf_counter()
    for text in documents:
        domain_xml.parse(text)
    return time.perf_counter() - began


def _memory(host: Guests) -> int:
    """The peak of memory while every definition is read, in bytes above the memory in use afterwards.

    As a caller does, this keeps the devices that the definitions name.
    """
    from devicetrack.virt.libvirt import connection
    from devicetrack.virt.libvirt import domain_xml
    hypervisor = connection.Connection(host.daemon.uri)

    def read(definitions: connection.Definitions | connection.Unreadable) -> tuple[str, ...]:
        assert isinstance(definitions, connection.Definitions)
        return domain_xml.parse(definitions.current).memory_paths

    gc.collect()
    tracemalloc.start()
    try:
        named = [*map(read, hypervisor.definitions())]
        assert named
        kept, most = tracemalloc.get_traced_memory()
        return most - kept
    finally:
        tracemalloc.stop()
        hypervisor.close()
