"""The device kind ``fpga``: PCI functions that an option names, and that forget everything when they are reset."""

import os

from oslo_config import cfg
from oslo_versionedobjects import fields

from devicetrack import conf as registry
from devicetrack import exception
from devicetrack.objects import base
from devicetrack.objects import details
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Realized
from devicetrack.virt.libvirt import guest_xml
from devicetrack.virt.libvirt.kinds import api

OPTIONS = [cfg.ListOpt('functions', default=[], help='The PCI addresses of the functions for guests.'),
           cfg.StrOpt('sysfs', default='/sys/bus/pci/devices', help='The directory of all functions.')]


@base.register
class FPGADetails(details.DeviceDetails):
    fields = {'model': fields.StringField()}


class FPGA(api.DeviceKind):
    name, keeps_bytes, form = 'fpga', False, guest_xml.PCI
    configured, resource_classes = False, frozenset()

    def __init__(self, conf, hypervisor):
        super().__init__(conf, hypervisor)
        registry.register(conf, 'fpga', OPTIONS)
        if conf.fpga.functions:
            self.configured, self.resource_classes = True, frozenset(['CUSTOM_FPGA'])

    def stock(self):
        try:
            there = set(os.listdir(self.conf.fpga.sysfs))
            return api.Stock([
                InventoryDevice(kind=self.name, identifier=address, provider='', resource_class='CUSTOM_FPGA',
                                parent=None, numa_node=None, details=details.to_text(self.read(address)))
                for address in self.conf.fpga.functions if address in there])
        except OSError as error:                # never answer with fewer devices than there are
            raise exception.CommandFailed('read', str(error)) from error

    def read(self, address):
        with open(f'{self.conf.fpga.sysfs}/{address}/device') as file:
            return FPGADetails(model=file.read().strip())

    def addresses(self, domain):
        return domain.pci_addresses

    def identify(self, addresses):
        return {address: address for address in addresses if address in self.conf.fpga.functions}

    def realize(self, assignment):
        [device] = [one for one in self.stock().devices if one.key == assignment.key] or [None]
        if device is None or device.details != details.to_text(assignment.details):
            raise exception.DeviceGone(*assignment.key, 'its slot is empty, or has a card of another model')
        return Realized(device.key, device.details)

    def unclaim(self, assignment, lock_fd):
        self.realize(assignment)
        try:
            with open(f'{self.conf.fpga.sysfs}/{assignment.identifier}/reset', 'w') as file:
                file.write('1')
        except OSError as error:
            raise exception.UnclaimFailed(*assignment.key, str(error)) from error

    def guest_elements(self, assignments):
        return [guest_xml.pci_hostdev(self.realize(one).key.identifier, 'yes') for one in assignments]
