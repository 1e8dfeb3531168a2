"""Chapter 9: PCI functions. A disk goes to a guest and comes back clean. A card and its ports exclude one another."""

from __future__ import annotations

import pathlib
import time

from functions_host import CARD
from functions_host import DISK
from functions_host import DISK_BYTES
from functions_host import driver_of
from functions_host import FunctionsHost
from instances import Instances
from machine import MIB
from machine import text_to_fill
from observer import expect
from observer import text_of
from page import chapter
from page import quote
from page import say
from page import show
from page import table
from process import Process
import record
from stage import Stage

DISK_USER, SECOND_DISK_USER, PORT_USER, CARD_USER = 'first-tenant', 'second-tenant', 'port-user', 'card-user'


def given(stage: Stage) -> None:
    chapter('9. PCI functions')
    host = FunctionsHost(stage.machine.directory / 'functions')
    host.make()
    functions = Functions(host, {DISK_USER: 'disk', SECOND_DISK_USER: 'disk', PORT_USER: 'port', CARD_USER: 'card'})
    _the_host(functions)
    _a_disk_comes_back_clean(functions)
    _a_card_or_its_functions(functions)
    findings = functions.service.call('audit')['findings']
    expect(not findings, f'the audit finds no difference: {findings}')
    expect(not record.read(host.directory), 'nobody has anything any more')
    expect(functions.service.end() == 0, 'the service ends in peace')
    say('All devices are released, and the audit finds 0 differences.')


class Functions:
    """The host with functions and its service, as seen from outside."""

    def __init__(self, host: FunctionsHost, users: dict[str, str]) -> None:
        """Start the service. Its instances are ``users``, by their flavors."""
        self.host, self.instances = host, Instances(host.directory)
        self.instances.add(users)
        self.service = Process(host, 'functions_service.py')
        self.began = self.service.call('start')
        made = self.service.call('functions')
        self.sysfs: str = made['sysfs']
        self.ports: list[str] = made['ports']
        self.node_devices: list[str] = made['node_devices']
        self._content = pathlib.Path(made['content'])

    def owners(self) -> dict[str, str]:
        """The owner of each function by the record, by address."""
        names = {instance.uuid: instance.name for instance in self.instances.all()}
        return {row.identifier: names[row.owner] for row in record.read(self.host.directory)}

    def driver(self, address: str) -> str:
        return driver_of(self.sysfs, address)

    def read_disk(self) -> bytes:
        return self._content.read_bytes()

    def write_disk(self, text: str) -> None:
        """Fill the disk with a text, as a guest may do."""
        self._content.write_bytes(text_to_fill(text, DISK_BYTES))

    def build_when_proven(self, name: str) -> None:
        """Build an instance as soon as the service has read the whole disk."""
        while (refusal := self.build(name)) is not None:
            expect('unproven' in refusal, 'nothing else keeps the disk from anybody')
            time.sleep(0.1)

    def build(self, name: str) -> str | None:
        """Build an instance.

        :returns: None, or the reason why it was refused
        """
        refusal: str | None = self.service.call('build', name=name).get('refusal')
        return refusal


def _the_host(functions: Functions) -> None:
    expect(not functions.began['findings'], 'a new host has nothing to report')
    everything = [DISK, CARD, *functions.ports]
    names = [f'pci_{address.replace(":", "_").replace(".", "_")}' for address in everything]
    expect(sorted(names) == functions.node_devices, 'libvirt has the same functions')
    say(f"""
        Another host assigns whole PCI functions: an NVMe disk of {DISK_BYTES // MIB} MiB, and a network card
        with {len(functions.ports)} virtual functions. They are node devices of libvirt's test driver, and files
        stand for sysfs. Flavors request them as in Nova: `pci_passthrough:alias = disk:1`.""")
    table(('function', 'what', "the host's driver"), [
        (address, what, functions.driver(address)) for address, what in zip(
            everything, ('disk', 'card', *('port of the card' for _port in functions.ports)), strict=True)])


def _a_disk_comes_back_clean(functions: Functions) -> None:
    functions.build_when_proven(DISK_USER)
    expect(functions.owners() == {DISK: DISK_USER}, 'the record has its owner')
    expect(functions.driver(DISK) == 'vfio-pci', 'the guest has the disk')
    [guest] = functions.host.guests
    expect(guest.functions() == [DISK], 'the guest names the disk')
    functions.write_disk(text_of(DISK_USER))
    refusal = functions.build(SECOND_DISK_USER)
    expect(refusal is not None, 'the disk has one owner')
    say(f"""
        At first the disk is not proven clean, so the service reads all of it: every byte is zero. Then
        {DISK_USER} gets the disk. libvirt takes it from the host's driver (its driver is
        {functions.driver(DISK)} now), and the guest fills it with its name. The element in the guest's
        definition:""")
    show(guest.elements())
    say(f'{SECOND_DISK_USER} requests a disk and is refused:')
    quote(str(refusal))
    functions.service.call('delete', name=DISK_USER)
    content = functions.read_disk()
    expect(content == bytes(DISK_BYTES), 'every byte of the disk is zero')
    expect(functions.driver(DISK) == 'nvme', 'the host has the disk again')
    expect(functions.build(SECOND_DISK_USER) is None, 'the disk is free again')
    say(f"""
        {DISK_USER} is deleted. The disk returns to the driver nvme, and the service overwrites it and reads it
        back: it reads {len(content) // MIB} MiB of zeros. Only then {SECOND_DISK_USER} gets it.""")
    functions.service.call('delete', name=SECOND_DISK_USER)


def _a_card_or_its_functions(functions: Functions) -> None:
    expect(functions.build(PORT_USER) is None, 'a port is free')
    [(port, _owner)] = functions.owners().items()
    refusal = functions.build(CARD_USER)
    expect(refusal is not None and 'excluded' in refusal, 'the card is refused because of its port')
    expect(functions.driver(CARD) == 'igb', 'nobody touches the card')
    say(f"""
        {PORT_USER} gets {port}, a port of the card. Then {CARD_USER} requests the card itself. On a real host,
        libvirtd would hang on this until the port's guest is gone. The library refuses the claim before it
        calls libvirt:""")
    quote(str(refusal))
    functions.service.call('delete', name=PORT_USER)
    expect(functions.build(CARD_USER) is None, 'the card is free')
    refusal = functions.build(PORT_USER)
    expect(refusal is not None and 'excluded' in refusal, 'ports are refused because of the card')
    expect(functions.owners() == {CARD: CARD_USER}, 'the card has one owner, and its ports have none')
    say(f'When {PORT_USER} is deleted, {CARD_USER} gets the card. Then its ports are not available:')
    quote(str(refusal))
    functions.service.call('delete', name=CARD_USER)
