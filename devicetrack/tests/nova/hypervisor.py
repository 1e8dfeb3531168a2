"""What libvirt would say and do on a host of Nova's functional tests.

Nova's tests have a libvirt in memory (``nova.tests.fixtures.libvirt``), made for what Nova asks. Our driver asks more,
and in other ways. :class:`Connection` answers our driver from the state of such a connection, as libvirt would: Nova
and our driver then work on the same domains and the same mediated devices.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any
from typing import Final

import libvirt
from lxml import etree
from nova.tests.fixtures import libvirt as fakelibvirt

# An attribute of a connection of Nova's: the definitions of mediated devices, which it does not know.
_DEFINITIONS: Final = 'devicetrack_definitions'
# What a domain of Nova's keeps of its definition beside what it reads itself.
METADATA: Final = 'devicetrack_metadata'
# And its mediated devices that the running guest has lost.
DETACHED: Final = 'devicetrack_detached'

_OFF: Final = (fakelibvirt.VIR_DOMAIN_SHUTOFF, fakelibvirt.VIR_DOMAIN_SHUTDOWN)


def keep_metadata(patch: Callable[[Any, str, Any], Any]) -> None:
    """Have Nova's domains keep ``<metadata>``, as libvirt does.

    :param patch: sets an attribute of an object
    """
    parse, describe = fakelibvirt.Domain._parse_definition, fakelibvirt.Domain.XMLDesc

    def parse_definition(domain: Any, text: Any) -> Any:
        definition = parse(domain, text)
        found = etree.fromstring(text).find('metadata')
        definition[METADATA] = '' if found is None else etree.tostring(found, encoding='unicode', with_tail=False)
        return definition

    def describe_with_metadata(domain: Any, flags: int) -> str:
        text: str = describe(domain, flags)
        return text.replace('</uuid>', '</uuid>' + domain._def.get(METADATA, ''), 1)

    patch(fakelibvirt.Domain, '_parse_definition', parse_definition)
    patch(fakelibvirt.Domain, 'XMLDesc', describe_with_metadata)


def keep_detached(patch: Callable[[Any, str, Any], Any]) -> None:
    """Have Nova's domains keep a mediated device in their definition if only the running guest loses it.

    :param patch: sets an attribute of an object
    """
    domains = fakelibvirt.Domain
    detach, attach, describe = domains.detachDeviceFlags, domains.attachDeviceFlags, domains.XMLDesc

    def detach_live(domain: Any, text: str, flags: int) -> None:
        uuid = _mdev_of(text)
        if uuid is None:
            detach(domain, text, flags)
            return
        hostdevs = domain._def['devices']['hostdevs']
        gone = [one for one in hostdevs if one.get('address_uuid') == uuid]
        if not gone:
            raise error(libvirt.VIR_ERR_DEVICE_MISSING, f'no mediated device {uuid}', libvirt.VIR_FROM_QEMU)
        hostdevs[:] = [one for one in hostdevs if one not in gone]
        domain._def.setdefault(DETACHED, []).extend(gone)

    def attach_live(domain: Any, text: str, flags: int) -> None:
        uuid = _mdev_of(text)
        detached = domain._def.get(DETACHED, [])
        again = [one for one in detached if one['address_uuid'] == uuid]
        if not again:
            attach(domain, text, flags)
            return
        domain._def['devices']['hostdevs'].extend(again)
        domain._def[DETACHED] = [one for one in detached if one not in again]

    def describe_persistent(domain: Any, flags: int) -> str:
        is_live = is_running(domain._connection, domain) and not flags & libvirt.VIR_DOMAIN_XML_INACTIVE
        detached = [] if is_live else domain._def.get(DETACHED, [])
        hostdevs = domain._def['devices']['hostdevs']
        hostdevs.extend(detached)
        try:
            # Nova's fake leaves out an attribute that libvirt always sets, and without which Nova cannot detach it.
            text: str = describe(domain, flags).replace(" type='mdev' model", " type='mdev' managed='no' model")
        finally:
            hostdevs[:] = [one for one in hostdevs if one not in detached]
        return text

    patch(domains, 'detachDeviceFlags', detach_live)
    patch(domains, 'attachDeviceFlags', attach_live)
    patch(domains, 'XMLDesc', describe_persistent)


def _mdev_of(text: str) -> str | None:
    element: Any = etree.fromstring(text)
    return element.find('source/address').get('uuid') if element.get('type') == 'mdev' else None


def error(code: int, text: str, subsystem: int = libvirt.VIR_FROM_NODEDEV) -> libvirt.libvirtError:
    made = libvirt.libvirtError(text)
    made.err = (code, subsystem, text, libvirt.VIR_ERR_ERROR, None, None, None, -1, -1)
    return made


def is_running(fake: Any, domain: Any) -> bool:
    # Nova's fake sets no state when it saves a domain, and lists a domain that was reset twice.
    return domain._state not in _OFF and any(one is domain for one in list(fake._running_vms.values()))


class Connection:
    """A ``virConnect`` with the state of a connection of Nova's tests.

    :param find: returns that connection; a test may replace it
    """

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find

    @property
    def fake(self) -> Any:
        return self._find()

    def isAlive(self) -> int:
        return 1

    def getType(self) -> str:
        return 'QEMU'

    def getLibVersion(self) -> int:
        version: int = self.fake.getLibVersion()
        return version

    def getVersion(self) -> int:
        version: int = self.fake.getVersion()
        return version

    # -- domains ------------------------------------------------------------------------------------------------------

    def _domains(self) -> list[Domain]:
        # A guest whose migration has ended is gone from its source: Nova asks for VIR_MIGRATE_UNDEFINE_SOURCE.
        fake = self.fake
        return [Domain(fake, domain) for domain in list(fake._vms.values())
                if domain._job_type != fakelibvirt.VIR_DOMAIN_JOB_COMPLETED]

    def listAllDomains(self, flags: int = 0) -> list[Domain]:
        found = self._domains()
        if flags & libvirt.VIR_CONNECT_LIST_DOMAINS_TRANSIENT:
            # A guest that came by a live migration has been defined too: Nova asks for VIR_MIGRATE_PERSIST_DEST.
            return []
        if flags & libvirt.VIR_CONNECT_LIST_DOMAINS_MANAGEDSAVE:
            return [domain for domain in found if domain.hasManagedSaveImage(0)]
        if flags & libvirt.VIR_CONNECT_LIST_DOMAINS_HAS_SNAPSHOT:
            return []                           # Nova leaves the metadata of its snapshots away
        if flags & libvirt.VIR_CONNECT_LIST_DOMAINS_PAUSED:
            return [domain for domain in found if domain.state()[0] == libvirt.VIR_DOMAIN_PAUSED]
        return found

    def lookupByUUIDString(self, uuid: str) -> Domain:
        for domain in self._domains():
            if domain.UUIDString() == uuid:
                return domain
        raise error(libvirt.VIR_ERR_NO_DOMAIN, f'Domain not found: no domain with matching uuid {uuid!r}',
                    libvirt.VIR_FROM_QEMU)

    def defineXML(self, text: str) -> Domain:
        uuid = etree.fromstring(text).findtext('uuid')
        for domain in self._domains():
            if domain.UUIDString() == uuid:
                domain.define(text)
                return domain
        fake = self.fake
        return Domain(fake, fake.defineXML(text))

    # -- node devices -------------------------------------------------------------------------------------------------

    def listAllDevices(self, flags: int = 0) -> list[Any]:
        fake = self.fake
        if flags & libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV_TYPES:
            return [Parent(fake, name) for name in fake.pci_info.get_all_mdev_capable_devices()]
        if flags & libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV:
            return [Mdev(fake, name) for name in dict.fromkeys((*fake.mdev_info.devices, *definitions(fake)))]
        raise error(libvirt.VIR_ERR_NO_SUPPORT, f'node devices by flags {flags}')

    def nodeDeviceLookupByName(self, name: str) -> Any:
        fake = self.fake
        if name in fake.mdev_info.devices or name in definitions(fake):
            return Mdev(fake, name)
        if name in fake.pci_info.devices:
            return Parent(fake, name)
        raise _no_device(name)

    def nodeDeviceDefineXML(self, text: str, flags: int = 0) -> Mdev:
        fake, document = self.fake, etree.fromstring(text)
        parent, uuid = document.findtext('parent'), document.findtext('capability/uuid')
        device_type = document.find('capability/type')
        assert parent is not None and uuid is not None and device_type is not None
        if parent not in fake.pci_info.get_all_mdev_capable_devices():
            raise error(libvirt.VIR_ERR_INVALID_ARG, f"invalid parent device '{parent}'")
        name = f'mdev_{uuid.replace("-", "_")}'
        definitions(fake)[name] = (parent, device_type.get('id'))
        return Mdev(fake, name)


def definitions(fake: Any) -> dict[str, Any]:
    """The definitions of mediated devices on a host: parent and type, by the device's name."""
    found: dict[str, Any] = fake.__dict__.setdefault(_DEFINITIONS, {})
    return found


def _no_device(name: str) -> libvirt.libvirtError:
    return error(libvirt.VIR_ERR_NO_NODE_DEVICE, f'Node device not found: no node device with matching name {name!r}')


class Domain:
    """A ``virDomain``."""

    def __init__(self, fake: Any, domain: Any) -> None:
        self._fake, self._domain = fake, domain

    def UUIDString(self) -> str:
        uuid: str = self._domain.UUIDString()
        return uuid

    def XMLDesc(self, flags: int = 0) -> str:
        text: str = self._domain.XMLDesc(flags)
        if self.isActive() and not flags & libvirt.VIR_DOMAIN_XML_INACTIVE:
            # Only the definition of a running guest has an id.
            return text.replace('<domain ', f"<domain id='{self._domain.ID()}' ", 1)
        return text

    def isActive(self) -> int:
        return int(is_running(self._fake, self._domain))

    def isPersistent(self) -> int:
        return 1

    def state(self, flags: int = 0) -> list[int]:
        if not self.isActive():
            return [libvirt.VIR_DOMAIN_SHUTOFF, 0]
        paused = self._domain._state == fakelibvirt.VIR_DOMAIN_PAUSED
        return [libvirt.VIR_DOMAIN_PAUSED if paused else libvirt.VIR_DOMAIN_RUNNING, 0]

    def hasManagedSaveImage(self, flags: int = 0) -> int:
        saved: int = self._domain.hasManagedSaveImage(0)
        return saved

    def managedSaveGetXMLDesc(self, flags: int = 0) -> str:
        return self.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)

    def managedSaveDefineXML(self, text: str, flags: int = 0) -> None:
        self.define(text)

    def define(self, text: str) -> None:
        self._domain._def = self._domain._parse_definition(text)

    def destroy(self) -> None:
        self._domain.destroy()

    def undefineFlags(self, flags: int = 0) -> None:
        self._domain.undefine()


class Parent:
    """A ``virNodeDevice`` that makes mediated devices, as many fewer as there are."""

    def __init__(self, fake: Any, name: str) -> None:
        self._fake, self._name = fake, name

    def name(self) -> str:
        return self._name

    def _document(self) -> Any:
        device = self._fake.pci_info.devices.get(self._name)
        if device is None:
            raise _no_device(self._name)
        document = etree.fromstring(device.XMLDesc(0))
        made: list[Any] = [Mdev(self._fake, name).facts() for name in list(self._fake.mdev_info.devices)]
        for device_type in document.iter('type'):
            room = device_type.find('availableInstances')
            if room is not None:
                room.text = str(max(0, int(room.text or 0) - made.count((self._name, device_type.get('id')))))
        return document

    def XMLDesc(self, flags: int = 0) -> str:
        return etree.tostring(self._document(), encoding='unicode')

    def room(self, wanted: str) -> int:
        """How many more of a type it can make."""
        return sum(int(device_type.findtext('availableInstances') or 0) for device_type in self._document().iter('type')
                   if device_type.get('id') == wanted)

    def isActive(self) -> int:
        return 1

    def isPersistent(self) -> int:
        return 0


# A parent asks for those of every device to say how many more it can make, so each document is parsed once.
@functools.lru_cache(maxsize=10_000)
def _parent_and_type(document: str) -> tuple[str, str]:
    element: Any = etree.fromstring(document)
    return element.findtext('parent'), element.find('capability/type').get('id')


class Mdev:
    """A ``virNodeDevice`` that is a mediated device, active or only defined."""

    def __init__(self, fake: Any, name: str) -> None:
        self._fake, self._name = fake, name

    def name(self) -> str:
        return self._name

    @property
    def uuid(self) -> str:
        return self._name.removeprefix('mdev_')[:36].replace('_', '-')

    def facts(self) -> Any:
        """Parent and type.

        :raises libvirtError: it is gone
        """
        device = self._fake.mdev_info.devices.get(self._name)
        if device is not None:
            return _parent_and_type(device.XMLDesc(0))
        found = definitions(self._fake).get(self._name)
        if found is None:
            raise _no_device(self._name)
        return found

    def XMLDesc(self, flags: int = 0) -> str:
        parent, device_type = self.facts()
        address = '{}:{}:{}.{}'.format(*parent.removeprefix('pci_').split('_'))
        return (f"<device><name>{self._name}</name><parent>{parent}</parent><capability type='mdev'>"
                f"<type id='{device_type}'/><uuid>{self.uuid}</uuid><parent_addr>{address}</parent_addr>"
                f"<iommuGroup number='{12 if self.isActive() else 0}'/></capability></device>")

    def isActive(self) -> int:
        return int(self._name in self._fake.mdev_info.devices)

    def isPersistent(self) -> int:
        return int(self._name in definitions(self._fake))

    def create(self, flags: int = 0) -> int:
        parent, device_type = self.facts()
        if self.isActive():
            raise error(libvirt.VIR_ERR_OPERATION_INVALID, 'Device is already active')
        if not Parent(self._fake, parent).room(device_type):
            raise error(libvirt.VIR_ERR_INTERNAL_ERROR, 'internal error: Unable to start mediated device: Error: '
                                                        f'No available instances of {device_type} on {parent}')
        self._fake.mdev_info.devices[self._name] = fakelibvirt.FakeMdevDevice(
            dev_name=self._name, type_id=device_type, parent=parent)
        return 0

    def destroy(self) -> int:
        if not self.isActive():
            raise error(libvirt.VIR_ERR_OPERATION_INVALID, 'Requested operation is not valid: device is not active')
        if any(is_running(self._fake, domain) and hostdev.get('address_uuid') == self.uuid
               for domain in list(self._fake._vms.values()) for hostdev in domain._def['devices']['hostdevs']):
            raise error(libvirt.VIR_ERR_INTERNAL_ERROR, f"Unable to destroy '{self._name}': device in use")
        del self._fake.mdev_info.devices[self._name]
        return 0

    def undefine(self, flags: int = 0) -> int:
        if definitions(self._fake).pop(self._name, None) is None:
            raise error(libvirt.VIR_ERR_OPERATION_INVALID, 'Requested operation is not valid: device is not persistent')
        return 0

    def setAutostart(self, autostart: int) -> int:
        if not self.isPersistent():
            raise error(libvirt.VIR_ERR_OPERATION_INVALID, 'Requested operation is not valid: device is not persistent')
        return 0
