"""A host on libvirt's test driver whose guest every process sees: for trying the commands.

``guests.py DIRECTORY`` makes it there. ``guests.py --serve DIRECTORY`` runs a manager on it, which carries out what
commands request, until Ctrl-C; it makes the host if there is none. A host with devices of another kind takes the
options of that kind from a file, and its guest takes devices by extra specs::

    guests.py --options scratch.conf --extra-spec resources:CUSTOM_SCRATCH=1 DIRECTORY

``Guests`` is for a service: the guests of one libvirt connection, with the devices of the library in their definitions.
"""

import argparse
import os
import pathlib
import sys
import time
import types
import uuid

import libvirt
from lxml import etree
from oslo_config import cfg

import devicetrack
from devicetrack import exception

HOST = 'compute-7'
AUDIT_EVERY_S = 2

# On libvirt's test driver the memory of a guest includes its namespaces, so it must be more than all of them together.
DOMAIN = """
<domain type='test'>
  <name>{name}</name>
  <uuid>{uuid}</uuid>
  <metadata>{metadata}</metadata>
  <maxMemory slots='16' unit='GiB'>64</maxMemory>
  <memory unit='MiB'>1024</memory>
  <os><type arch='x86_64'>hvm</type></os>
  <cpu><numa><cell id='0' cpus='0' memory='128' unit='MiB'/></numa></cpu>
  <devices>{devices}</devices>
</domain>
"""


# As everywhere with documents of others: no entities, no network.
PARSER = etree.XMLParser(resolve_entities=False, no_network=True)
RUNSTATE = '{http://libvirt.org/schemas/domain/test/1.0}runstate'


class Guests:
    """The guests of one libvirt connection. ``guest_config`` returns ``devices`` and ``metadata``.

    On the test driver guests end with their connection. ``node`` is the path of the connection's file: each call also
    writes the guests there, so that the next connection has them, as a real host has them when its service starts. Call
    ``keep`` after ``init_host`` and after an audit: the manager removes the guests of evacuated instances by itself.
    """

    def __init__(self, connection, node=None):
        self.connection, self.node = connection, node

    @staticmethod
    def definition(name, uuid, devices, metadata):
        """The elements of ``devices`` go into <devices>, and ``metadata``, one element or '', into <metadata>."""
        return DOMAIN.format(name=name, uuid=uuid, devices=''.join(devices), metadata=metadata)

    def read(self, uuid):
        """Return the devices and the metadata that the definition has, as libvirt writes them.

        ``DOMAIN`` has no such elements of its own. A service whose definitions have some tells them apart.
        """
        domain = self._domain(uuid)
        root = etree.fromstring(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE), PARSER)
        found = [*root.iterfind('devices/memory'), *root.iterfind('devices/hostdev')]
        try:
            metadata = domain.metadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, 'urn:devicetrack:guest-devices:1',
                                       libvirt.VIR_DOMAIN_AFFECT_CONFIG)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN_METADATA:
                raise
            metadata = ''
        return [etree.tostring(one, encoding='unicode', with_tail=False) for one in found], metadata

    def start_guest(self, uuid, devices, metadata=''):
        """Define a guest, in place of an earlier definition, and start it."""
        self.connection.defineXML(self.definition(f'guest-{uuid}', uuid, devices, metadata)).create()
        self.keep()

    def stop_guest(self, uuid):
        """Stop a guest that runs. It stays defined."""
        self._domain(uuid).destroy()
        self.keep()

    def delete_guest(self, uuid):
        """Stop and undefine a guest; do nothing if there is none."""
        domain = self._domain(uuid)
        if domain is not None:
            if domain.isActive():
                domain.destroy()
            domain.undefine()
            self.keep()

    def keep(self):
        """Write the guests of the connection to the file ``node``."""
        if self.node is None:
            return
        tree = etree.parse(self.node, PARSER)
        root = tree.getroot()
        for before in root.findall('domain'):
            root.remove(before)
        for domain in self.connection.listAllDomains():
            kept = etree.SubElement(root, 'domain')
            kept.extend(etree.fromstring(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE), PARSER))
            kept.set('type', 'test')
            if not domain.isActive():
                etree.SubElement(kept, RUNSTATE).text = str(libvirt.VIR_DOMAIN_SHUTOFF)
        tree.write(f'{self.node}.new')
        os.replace(f'{self.node}.new', self.node)

    def _domain(self, uuid):
        try:
            return self.connection.lookupByUUIDString(uuid)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                raise
            return None


def make_host(directory, more_options):
    (directory / 'memory').mkdir(parents=True, exist_ok=True)
    for name in ('ns0', 'ns1'):
        (directory / 'memory' / name).touch()
        os.truncate(directory / 'memory' / name, 64 << 20)
    (directory / 'machine-id').write_text(uuid.uuid4().hex)
    (directory / 'host.xml').write_text(pathlib.Path(__file__).with_name('host.xml').read_text())
    (directory / 'service.conf').write_text(f"""
[devicetrack]
state_path = {directory}/state
machine_id_path = {directory}/machine-id
[libvirt]
connection_uri = test://{directory}/host.xml
pmem_namespaces = 4GB:ns0|ns1
[devices]
enabled_mdev_types = nvidia-35
[devicetrack_vpmem]
directory = {directory}/memory
{more_options}""")


def start_manager(directory):
    conf = cfg.ConfigOpts()
    devicetrack.register_options(conf)
    conf(['--config-file', str(directory / 'service.conf')])
    devicetrack.sync_store(conf)
    store = devicetrack.open_store(conf)
    manager = devicetrack.ClaimManager(HOST, devicetrack.load_driver(conf, HOST), store, conf)
    manager.init_host(None)
    return manager


def boot_guest(directory, manager, extra_specs):
    instance = types.SimpleNamespace(uuid='0c3f9a52-0b1a-4f0e-9d0c-3a7f8a1e2b01')
    request = devicetrack.DeviceRequest.from_extra_specs(extra_specs)
    with manager.instance_claim(None, instance, HOST, request):
        manager.realize(None, instance)
        config = manager.guest_config(instance)
        guest = directory / 'guest.xml'
        guest.write_text(Guests.definition('web-1', instance.uuid, config.devices, config.metadata))
        # Every connection that is opened from now on has a hypervisor of its own with this guest, running.
        node = (directory / 'host.xml').read_text()
        (directory / 'host.xml').write_text(node.replace('</node>', f'<domain file="{guest}"/>\n</node>'))
        manager.started(None, instance)
    print([device.identifier for device in instance.resources])


def serve(manager):
    print(f'a manager of {HOST} runs, and audits every {AUDIT_EVERY_S} s, until Ctrl-C', flush=True)
    while True:
        time.sleep(AUDIT_EVERY_S)
        manager.update_available_resource(None, HOST)           # the library logs what it finds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('directory', type=lambda text: pathlib.Path(text).absolute())
    parser.add_argument('--serve', action='store_true',
                        help='run a manager until Ctrl-C; make the host if there is none')
    parser.add_argument('--options', type=pathlib.Path,
                        help='a file whose text the configuration of a new host gets too')
    parser.add_argument('--extra-spec', action='append', metavar='KEY=VALUE', help='what the guest of a new host '
                        'takes; may be repeated (default: hw:pmem=4GB and resources:VGPU=1)')
    arguments = parser.parse_args()
    extra_specs = dict(one.split('=', 1) for one in arguments.extra_spec or ['hw:pmem=4GB', 'resources:VGPU=1'])
    is_there = (arguments.directory / 'service.conf').exists()
    if is_there and not arguments.serve:
        sys.exit(f'{arguments.directory} has a host already. Run a manager on it (guests.py --serve '
                 f'{arguments.directory}), remove the directory, or name another one')
    if not is_there:
        make_host(arguments.directory, arguments.options.read_text() if arguments.options else '')
        manager = start_manager(arguments.directory)
        try:
            boot_guest(arguments.directory, manager, extra_specs)
        except exception.NoFit as error:
            manager.close()
            if 'unproven' not in str(error):
                sys.exit(str(error))
            sys.exit(f'{error}\nFor this trial, set unproven_devices = trust in [devicetrack] of the options, and '
                     f'remove {arguments.directory} before the next try')
        # The hypervisor of this connection lives without the guest.
        manager.close()
    if arguments.serve:
        try:
            manager = start_manager(arguments.directory)
        except exception.DeviceTrackError as error:
            sys.exit(f'the manager does not start: {error}')
        try:
            serve(manager)
        except KeyboardInterrupt:
            manager.close()


if __name__ == '__main__':
    main()
