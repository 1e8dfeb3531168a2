"""The compute service of one host, by orders: boots and deletes guests with devices.

    devicetrack-manage --config-file FILE db sync
    one_host.py --config-file FILE boot NAME hw:pmem=4GB resources:VGPU=1
    one_host.py --config-file FILE delete NAME
    one_host.py --config-file FILE audit

A real service keeps running. This one starts for each order, which shows that nothing depends on its memory.
"""

from __future__ import annotations

import argparse
import os
import socket
import uuid

import libvirt

from service import configured
from service import Database
from service import Guests
from service import open_host


def ask(host: str, _instance_uuid: str) -> None:
    raise LookupError(f'this service has no host {host}')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--config-file', required=True)
    parser.add_argument('--host', default=socket.gethostname(), help='name of this host in the store')
    parser.add_argument('--virt-type', default='kvm', choices=['kvm', 'qemu'], help='how QEMU runs guests')
    parser.add_argument('order', choices=['boot', 'delete', 'audit'])
    parser.add_argument('name', nargs='?', default='')
    parser.add_argument('specs', nargs='*', metavar='SPEC=VALUE')
    order = parser.parse_args()
    conf = configured(order.config_file)
    os.makedirs(conf.devicetrack.state_path, exist_ok=True)
    database = Database(os.path.join(conf.devicetrack.state_path, 'service.sqlite'), ask)
    lifecycle = open_host(order.host, conf, database, Guests(libvirt.open(conf.libvirt.connection_uri)))
    instance_uuid = str(uuid.uuid5(uuid.NAMESPACE_DNS, order.name))
    try:
        if order.order == 'boot':
            specs = dict(spec.split('=', 1) for spec in order.specs)
            flavor = {'memory_mb': 128, 'virt_type': order.virt_type, 'extra_specs': specs}
            for device in lifecycle.claim(instance_uuid, flavor):
                print(f'{order.name} has {device.kind} {device.identifier}')
        elif order.order == 'delete':
            lifecycle.release(instance_uuid)
    finally:
        lifecycle.manager.wait_for_wipes()      # a real service lives on, and they go on in its background
    for finding in lifecycle.audit():
        print(finding)


if __name__ == '__main__':
    main()
