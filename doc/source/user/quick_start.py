"""A compute service in one file, on libvirt's test driver and two files that stand for persistent memory."""

import os
import tempfile
import types
import uuid

from oslo_config import cfg

import devicetrack
from devicetrack import exception

# What an operator writes into the service's configuration file.
temporary = tempfile.TemporaryDirectory()
directory = temporary.name
os.mkdir(os.path.join(directory, 'memory'))
for name in ('ns0', 'ns1'):
    with open(os.path.join(directory, 'memory', name), 'wb') as file:
        file.truncate(64 << 20)
with open(os.path.join(directory, 'machine-id'), 'w') as file:
    file.write(uuid.uuid4().hex)                # a real host has its own in /etc/machine-id
configuration = os.path.join(directory, 'service.conf')
with open(configuration, 'w') as file:
    file.write(f"""
[devicetrack]
state_path = {directory}/state
machine_id_path = {directory}/machine-id
[libvirt]
connection_uri = test:///default
pmem_namespaces = 4GB:ns0|ns1
[devicetrack_vpmem]
directory = {directory}/memory
""")

# What the service does when it starts. ``devicetrack-manage db sync`` makes the store; here it is done in place.
conf = cfg.ConfigOpts()
devicetrack.register_options(conf)
conf(['--config-file', configuration])
devicetrack.sync_store(conf)
store = devicetrack.open_store(conf)
manager = devicetrack.ClaimManager('compute-7', devicetrack.load_driver(conf, 'compute-7'), store, conf)
context = None                                  # the service's request context, handed through
print('findings:', manager.init_host(context))

# What it does for each instance. The library reads ``uuid`` and, when there is one, ``flavor``.
request = devicetrack.DeviceRequest.of(('CUSTOM_PMEM_NAMESPACE_4GB', 1))
instances = [types.SimpleNamespace(uuid=str(uuid.uuid4())) for _ in range(3)]
for number, instance in enumerate(instances):
    try:
        with manager.instance_claim(context, instance, 'compute-7', request):
            manager.realize(context, instance)
            config = manager.guest_config(instance)     # here the service defines and starts the guest
            manager.started(context, instance)
        print('instance', number, 'has', [device.identifier for device in instance.resources])
    except exception.NoFit as error:
        print('instance', number, 'has none:', error)

# What it does when the guest is gone. The namespace is wiped and the wipe proven; then it is free.
manager.release(context, instances[0])
with manager.instance_claim(context, instances[2], 'compute-7', request) as claim:
    print('instance 2 has', [device.identifier for device in claim.resources])
manager.close()                                 # lets go of the host
store.close()                                   # closes the connections, before the file of the store goes
temporary.cleanup()
