"""A host on libvirt's test driver whose guest every process sees: for trying the commands. In the directory named."""

import os
import pathlib
import sys
import types
import uuid

from oslo_config import cfg

import devicetrack

# On libvirt's test driver the memory of a guest includes its namespaces, so it must be more than all of them together.
DOMAIN = """
<domain type='test'>
  <name>{name}</name>
  <uuid>{uuid}</uuid>
  <metadata>{config.metadata}</metadata>
  <maxMemory slots='16' unit='GiB'>64</maxMemory>
  <memory unit='MiB'>1024</memory>
  <os><type arch='x86_64'>hvm</type></os>
  <cpu><numa><cell id='0' cpus='0' memory='128' unit='MiB'/></numa></cpu>
  <devices>{devices}</devices>
</domain>
"""

directory = pathlib.Path(sys.argv[1]).absolute()
(directory / 'memory').mkdir(parents=True)
for name in ('ns0', 'ns1'):
    (directory / 'memory' / name).touch()
    os.truncate(directory / 'memory' / name, 64 << 20)
(directory / 'machine-id').write_text(uuid.uuid4().hex)
node = pathlib.Path(__file__).with_name('host.xml').read_text()
(directory / 'host.xml').write_text(node)
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
""")

conf = cfg.ConfigOpts()
devicetrack.register_options(conf)
conf(['--config-file', str(directory / 'service.conf')])
devicetrack.sync_store(conf)
store = devicetrack.open_store(conf)
manager = devicetrack.ClaimManager('compute-7', devicetrack.load_driver(conf, 'compute-7'), store, conf)
manager.init_host(None)

instance = types.SimpleNamespace(uuid='0c3f9a52-0b1a-4f0e-9d0c-3a7f8a1e2b01')
request = devicetrack.DeviceRequest.of(('CUSTOM_PMEM_NAMESPACE_4GB', 1), ('VGPU', 1))
with manager.instance_claim(None, instance, 'compute-7', request):
    manager.realize(None, instance)
    config = manager.guest_config(instance)
    guest = directory / 'guest.xml'
    guest.write_text(DOMAIN.format(name='web-1', uuid=instance.uuid, config=config, devices=''.join(config.devices)))
    # Every connection that is opened from now on has a hypervisor of its own with this guest, running.
    (directory / 'host.xml').write_text(node.replace('</node>', f'<domain file="{guest}"/>\n</node>'))
    manager.started(None, instance)
print([device.identifier for device in instance.resources])
manager.close()
