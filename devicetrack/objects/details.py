"""The facts about a device that only its device kind knows.

A details object is stored as text beside its assignment: the primitive of the versioned object, as JSON. Reading
converts a text of an older version with the ``convert`` of its class; ``online-data-migrations`` writes the converted
text back.
"""

from __future__ import annotations

from collections.abc import Mapping
import functools
import json
import re
from typing import Any
from typing import ClassVar
from typing import Final
from typing import TYPE_CHECKING
import uuid

from oslo_utils import uuidutils
from oslo_utils import versionutils
from oslo_versionedobjects import fields as ovo_fields

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import base
from devicetrack.objects import fields
from devicetrack.objects import traits
from devicetrack.objects.network_port import Port

# The vendor by the name of the driver that makes the devices. Devices of other drivers get no trait for a vendor.
_VENDORS: Final = {'i915': 'INTEL', 'nvidia': 'NVIDIA'}

# libvirt replaces these characters in the names of node devices.
NOT_IN_NAMES: Final = re.compile('[^0-9A-Za-z]')

CREATED_TEXT: Final = f'"origin":"{vocabulary.CREATED}"'
_NETWORK: Final = '"physical_network":"'
_NO_NETWORK: Final = f'{_NETWORK}"'


class DeviceDetails(base.DeviceTrackObject):
    """Base of the details of every device kind.

    A new minor version adds fields. ``ADDED`` names them, and ``convert`` fills them in for a text that an older
    release stored.
    """

    VERSION = '1.0'
    fields = {}

    if TYPE_CHECKING:
        # Whoever has the details of some kind may read the fields of that kind.
        def __getattr__(self, name: str) -> Any: ...

    IDENTITY: ClassVar[tuple[str, ...] | None] = None
    """The fields that tell this device from another one of the same name. If they differ between a row and the host,
    the host has another device, which nobody hands out, wipes or writes into the row. None in such a field says that it
    cannot be read now. A class that declares no such fields has all fields but those of
    :attr:`.DeviceDetails.OF_THE_ROW`: then nothing about a device may change while it is owned."""

    TOLD: ClassVar[tuple[str, ...]] = ()
    """The fields that the host cannot always read and that tell no device from another. If one is empty on the host,
    that is no difference, and the row keeps its value."""

    OF_THE_ROW: ClassVar[tuple[str, ...]] = ()
    """The fields that only the row knows, because the claim chose them. The host's are never compared with them."""

    @classmethod
    def identity_fields(cls) -> frozenset[str]:
        """The fields of the identity: those that the class declares, or else all but the fields of the row."""
        return frozenset(cls.fields).difference(cls.OF_THE_ROW) if cls.IDENTITY is None else frozenset(cls.IDENTITY)

    @property
    def unknown_identity(self) -> tuple[str, ...]:
        """The fields of the identity that nobody could read, while the device counts as known without them.

        In a row, such a field is no difference: a later value is that of the same device. If a row has a value that the
        host cannot read now, nobody knows whether it is the same device.
        """
        return ()

    @property
    def serial_number(self) -> str:
        """The serial number of the card that the device is or is on, or the UUID of a namespace.

        It is '' if there is none, or nobody could read it.
        """
        return ''

    @classmethod
    def means_same(cls, name: str, one: Any, other: Any) -> bool:
        """Whether two different values of a field of the identity mean the same thing, spelled in two ways."""
        return False

    @property
    def goes_with_its_assignment(self) -> bool:
        """Whether giving the device back removes it from the host."""
        return False

    @property
    def type_name(self) -> str:
        """The name of the device's type for people; empty for a kind without types."""
        return ''

    @property
    def migration_type(self) -> str:
        """The type that a device must have to take this one's place in a live migration.

        Types are names within the kind, and hosts must spell them alike. A kind without an answer has a single type.
        """
        return ''

    @property
    def migration_obstacle(self) -> str | None:
        """Why no running guest with this device can move, by the device's details; None without a known reason.

        If devices of one parent differ in this, they differ in :attr:`.DeviceDetails.migration_type` too.
        """
        return None

    @property
    def port(self) -> Port | None:
        """The network port that the device is for its guest; None if it is not a port."""
        return None

    @property
    def needs_port(self) -> bool:
        """Whether a guest can get the device only as a network port, which its request must describe."""
        return False

    def as_port(self, port: Port) -> DeviceDetails:
        """The details of the same device as that port.

        :raises ValueError: the device cannot be that port; says why
        """
        raise ValueError('it is no function of a physical network')

    @property
    def is_stateless(self) -> bool:
        """Whether the hypervisor copies all of the device's state, so that no driver has any to transfer."""
        return False

    @property
    def traits(self) -> tuple[str, ...]:
        """The names of the traits that placement has for the device (:mod:`devicetrack.objects.traits`)."""
        return ()

    @classmethod
    def convert(cls, data: dict[str, Any], version: str) -> dict[str, Any]:
        """Convert the data of an older version to this one. The base changes nothing."""
        return data


@base.register
class VPMEMDetails(DeviceDetails):
    """A persistent-memory namespace in devdax mode, or a file that stands for one.

    ``devpath`` is valid for this boot of the host only. ``size_bytes`` is the usable size of the namespace, ndctl's
    ``size``. While a namespace is disabled or raw, nobody can read its UUID and its size. ``label`` is the operator's
    name for namespaces of this size.
    """

    VERSION = '1.0'
    IDENTITY = ('namespace_uuid', 'size_bytes')
    OF_THE_ROW = ('label',)
    # The kernel tells both of a namespace that is enabled in its mode, and of no other. Then they are this and 0.
    UNREAD_UUID: ClassVar[str] = str(uuid.UUID(int=0))
    fields = {
        'namespace_uuid': ovo_fields.UUIDField(),
        'label': ovo_fields.StringField(),
        'devpath': ovo_fields.StringField(),
        'size_bytes': ovo_fields.NonNegativeIntegerField(),
        'align_bytes': ovo_fields.NonNegativeIntegerField(),
    }
    namespace_uuid: str
    label: str
    devpath: str
    size_bytes: int
    align_bytes: int

    @property
    def unknown_identity(self) -> tuple[str, ...]:
        return self.IDENTITY if self.namespace_uuid == self.UNREAD_UUID else ()

    @property
    def serial_number(self) -> str:
        return '' if self.unknown_identity else str(self.namespace_uuid)

    @property
    def device_api(self) -> str:
        """The backing of the guest's memory. libvirt migrates no running guest from a device to a file, or back."""
        return 'devdax' if self.devpath.startswith('/dev/dax') else 'file'

    @property
    def type_name(self) -> str:
        return str(self.label)

    @property
    def migration_type(self) -> str:
        # The guest's NVDIMM, with its label area, is as large as the namespace allows. libvirt compares the sizes and
        # alignments of both ends (virDomainMemoryDefCheckABIStability in its source). A larger namespace could take the
        # guest, but the guest could not come back.
        return f'{self.label} {self.size_bytes} {self.align_bytes}'

    @property
    def is_stateless(self) -> bool:
        return True


class _TypedDetails(DeviceDetails):
    """Base of the details of devices that their parent makes, of one of its types."""

    IDENTITY = ('type', 'parent')
    OF_THE_ROW = ('origin',)
    TOLD = ('parent_serial',)

    @classmethod
    def convert(cls, data: dict[str, Any], version: str) -> dict[str, Any]:
        return {'parent_serial': '', **data}

    @property
    def serial_number(self) -> str:
        return str(self.parent_serial)

    @property
    def type_name(self) -> str:
        return str(self.type)

    @property
    def migration_type(self) -> str:
        return str(self.type)


@base.register
class MdevDetails(_TypedDetails):
    """A mediated device (Linux: Documentation/driver-api/vfio-mediated-device.rst).

    ``parent`` is libvirt's node-device name of the parent. Rows of earlier releases may have its address instead, if
    libvirt did not know the parent for a while. ``parent_address`` is its PCI address, None for a virtual parent.
    ``iommu_group`` is None until the device exists. ``parent_serial`` is the serial number of the parent's card, or
    empty if it has none or nobody could read it.

    1.1 added ``parent_serial``.
    """

    VERSION = '1.1'
    ADDED = {'1.1': ('parent_serial',)}
    fields = {
        'type': ovo_fields.StringField(),
        'parent': ovo_fields.StringField(),
        'parent_address': ovo_fields.StringField(nullable=True),
        'device_api': ovo_fields.StringField(),
        'iommu_group': ovo_fields.IntegerField(nullable=True),
        'origin': fields.OriginField(),
        'parent_serial': ovo_fields.StringField(default=''),
    }
    type: str
    parent: str
    parent_address: str | None
    device_api: str
    iommu_group: int | None
    origin: str
    parent_serial: str

    @classmethod
    def means_same(cls, name: str, one: Any, other: Any) -> bool:
        return name == 'parent' and (is_name_of(one, other) or is_name_of(other, one))

    @property
    def traits(self) -> tuple[str, ...]:
        # The name of a type starts with that of the driver that makes it.
        vendor = _VENDORS.get(self.type.partition('-')[0])
        known = (traits.ours('vendor', vendor),) if vendor is not None else ()
        return traits.ours('mdev_type', self.type), traits.ours('device_api', self.device_api), *known

    @property
    def goes_with_its_assignment(self) -> bool:
        created: bool = self.origin == vocabulary.CREATED
        return created


@base.register
class VFDetails(_TypedDetails):
    """A virtual function whose vGPU type is set through its vendor's own VFIO interface.

    ``type`` is the number of the type. ``parent``, ``parent_address`` and ``parent_serial`` tell of the physical
    function, in the form that they have for a mediated device. When a created device is given back, its type is cleared
    and the function stays.

    1.1 added ``parent_serial``.
    """

    VERSION = '1.1'
    ADDED = {'1.1': ('parent_serial',)}
    fields = {
        'type': ovo_fields.StringField(),
        'parent': ovo_fields.StringField(),
        'parent_address': ovo_fields.StringField(),
        'device_api': ovo_fields.StringField(),
        'origin': fields.OriginField(),
        'parent_serial': ovo_fields.StringField(default=''),
    }
    type: str
    parent: str
    parent_address: str
    device_api: str
    origin: str
    parent_serial: str

    @property
    def traits(self) -> tuple[str, ...]:
        return (traits.ours('vf_type', self.type), traits.ours('device_api', self.device_api),
                traits.ours('vendor', _VENDORS['nvidia']))


@base.register
class PCIDetails(DeviceDetails):
    """A PCI function that a guest gets whole (Linux: Documentation/driver-api/vfio.rst).

    ``address`` is the function's address in this boot of the host. ``vendor_id`` and ``product_id`` have four
    hexadecimal digits. ``subsystem`` has the same two ids of the card's maker, or is empty. ``serial`` is empty for a
    function without a serial number. For a disk it is None while the host cannot read it. Other functions are handed
    out without it, and it is empty then, too: ``no_serial`` says that the card was asked, and has none. For a virtual
    function it says that of ``parent_serial``. ``nvm_subsystem`` is the name of the NVM subsystem, as the kernel tells
    it, and for a virtual function that of its card. It is empty if the kernel told none. Some vendors give all their
    disks one serial number.

    For a virtual function, ``vf_number`` is its number at its physical function, and ``parent_address`` is the physical
    function's address in this boot. ``parent_card`` says which sort of card that is and which function on it, and
    ``parent_serial`` is its serial number; both are None while they cannot be read. For other functions ``vf_number``
    is -1 and the other three are empty.

    ``driver`` is the host's own driver, which gets the function back when its guest is gone, or empty. ``disks`` are
    the namespaces that the claim found (identifier, bytes, and bytes a block of each), empty if there are none, and
    None if the host could not tell. ``config`` has the stable parts of the configuration space as they were before the
    guest, and is empty until then. ``traits_of_spec`` are the names of the traits that the options give the function.

    ``physical_network`` is the network to which the function leads, or empty if the function is not for ports. Its
    guest's port in this network is ``mac``, ``vlan`` and ``trusted``. Before a claim ``mac`` is empty.

    Options may mean the function by the names that it had at the claim. ``interfaces`` are those of its network
    interfaces and of its physical function's, and None if the host could not tell. ``claimed_parent`` is the address
    that the physical function had then, or empty.

    1.1 added ``physical_network``, ``mac``, ``vlan`` and ``trusted``. 1.2 added ``interfaces`` and ``claimed_parent``.
    1.3 added ``no_serial``. 1.4 added ``nvm_subsystem``.
    """

    VERSION = '1.4'
    # A card may come to another address at a boot. A virtual function is known by its card and its number there.
    IDENTITY = ('vendor_id', 'product_id', 'subsystem', 'serial', 'parent_card', 'parent_serial', 'vf_number',
                'nvm_subsystem')
    # The host's own driver is visible only while no guest has the function. It goes back to the one that the claim saw.
    # The port comes from the request, whatever the options call the network by now.
    # While a guest has the function, it has no interface, and nobody asks its card.
    OF_THE_ROW = ('driver', 'disks', 'config', 'physical_network', 'mac', 'vlan', 'trusted', 'interfaces',
                  'claimed_parent', 'no_serial')
    fields = {
        'address': ovo_fields.StringField(),
        'vendor_id': ovo_fields.StringField(),
        'product_id': ovo_fields.StringField(),
        'subsystem': ovo_fields.StringField(),
        'serial': ovo_fields.StringField(nullable=True),
        'parent_address': ovo_fields.StringField(),
        'parent_card': ovo_fields.StringField(nullable=True),
        'parent_serial': ovo_fields.StringField(nullable=True),
        'vf_number': ovo_fields.IntegerField(),
        'device_type': ovo_fields.StringField(),
        'driver': ovo_fields.StringField(),
        'disks': ovo_fields.StringField(nullable=True),
        'config': ovo_fields.StringField(),
        'traits_of_spec': ovo_fields.ListOfStringsField(),
        'physical_network': ovo_fields.StringField(default=''),
        'mac': ovo_fields.StringField(default=''),
        'vlan': ovo_fields.IntegerField(default=0),
        'trusted': ovo_fields.BooleanField(default=False),
        # The library's types forget that a nullable field may have None for its default.
        'interfaces': ovo_fields.ListOfStringsField(nullable=True, default=None),     # type: ignore[arg-type]
        'claimed_parent': ovo_fields.StringField(default=''),
        'no_serial': ovo_fields.BooleanField(default=False),
        'nvm_subsystem': ovo_fields.StringField(default=''),
    }
    address: str
    vendor_id: str
    product_id: str
    subsystem: str
    serial: str | None
    parent_address: str
    parent_card: str | None
    parent_serial: str | None
    vf_number: int
    device_type: str
    driver: str
    disks: str | None
    config: str
    traits_of_spec: list[str]
    physical_network: str
    mac: str
    vlan: int
    trusted: bool
    interfaces: list[str] | None
    claimed_parent: str
    no_serial: bool
    nvm_subsystem: str
    _NO_PORT: ClassVar[Mapping[str, object]] = {'physical_network': '', 'mac': '', 'vlan': 0, 'trusted': False}
    ADDED = {'1.1': tuple(_NO_PORT), '1.2': ('interfaces', 'claimed_parent'), '1.3': ('no_serial',),
             '1.4': ('nvm_subsystem',)}

    @classmethod
    def convert(cls, data: dict[str, Any], version: str) -> dict[str, Any]:
        return {**cls._NO_PORT, 'interfaces': None, 'claimed_parent': data.get('parent_address', ''),
                'no_serial': False, 'nvm_subsystem': '', **data}

    @classmethod
    def means_same(cls, name: str, one: Any, other: Any) -> bool:
        # Rows and proofs of earlier releases do not have the name. The other fields have to tell then, as before.
        return name == 'nvm_subsystem' and '' in (one, other)

    @property
    def unknown_identity(self) -> tuple[str, ...]:
        if not self.product_id:
            return self.IDENTITY             # the host could not read which function it is
        name = 'serial' if self.vf_number < 0 else 'parent_serial'
        return (name,) if getattr(self, name) == '' and not self.no_serial else ()

    @property
    def type_name(self) -> str:
        return f'{self.vendor_id}:{self.product_id}'

    @property
    def device_api(self) -> str:
        return 'vfio-pci'

    @property
    def serial_number(self) -> str:
        return self.serial or self.parent_serial or ''

    @property
    def port(self) -> Port | None:
        return Port(self.physical_network, self.mac, self.vlan, self.trusted) if self.mac else None

    @property
    def needs_port(self) -> bool:
        return bool(self.physical_network)

    def as_port(self, port: Port) -> PCIDetails:
        if self.physical_network != port.physical_network:
            raise ValueError(f'it is of the physical network {self.physical_network}' if self.physical_network
                             else 'it is of no physical network')
        changed: Any = self.obj_clone()
        changed.mac, changed.vlan, changed.trusted = port.mac, port.vlan, port.trusted
        as_asked: PCIDetails = changed
        return as_asked

    @property
    def migration_type(self) -> str:
        return self.migration_type_of(self.device_type, self.vendor_id, self.product_id,
                                      self.migration_obstacle is None)

    @property
    def migration_obstacle(self) -> str | None:
        if self.needs_port:
            return f'it is a port of the physical network {self.physical_network}, which stays at its card'
        return None if self._is_migratable else 'its [pci] device_spec does not say live_migratable'

    @staticmethod
    def migration_type_of(device_type: str, vendor_id: str, product_id: str, is_migratable: bool = True) -> str:
        """The type of functions; by default of those that the options declare for live migration."""
        return f'{device_type} {vendor_id}:{product_id}' + ('' if is_migratable else ' that stays')

    @property
    def _is_migratable(self) -> bool:
        return traits.PCI_LIVE_MIGRATABLE in self.traits_of_spec

    @property
    def traits(self) -> tuple[str, ...]:
        return tuple(self.traits_of_spec)


@functools.lru_cache(maxsize=1024)
def traits_of(text: str) -> tuple[str, ...]:
    """The traits of stored details. Details of a newer release or an unknown device kind have none."""
    try:
        return from_text(text).traits if text else ()
    except (exception.UnknownObject, exception.MalformedObject):
        return ()


@functools.lru_cache(maxsize=1024)
def serial_of(text: str, of_parent: bool = False) -> str | None:
    """The serial number of stored details; None if they have none, or this release cannot read them.

    :param of_parent: only that of the parent's card
    """
    try:
        read = peek(text) if text else DeviceDetails()
        return (getattr(read, 'parent_serial', None) if of_parent else read.serial_number) or None
    except (exception.UnknownObject, exception.MalformedObject):
        return None


def is_name_of(name: str, address: str | None) -> bool:
    """Whether a parent with this address may have this node-device name: the sort of device, then the address."""
    return address is not None and name.endswith('_' + NOT_IN_NAMES.sub('_', address))


def to_text(details: DeviceDetails) -> str:
    """The stored text. Equal details give equal texts."""
    return json.dumps(details.obj_to_primitive(), separators=(',', ':'), sort_keys=True)


@functools.lru_cache(maxsize=1024)
def _parse(text: str) -> tuple[str, str, dict[str, Any]]:
    try:
        primitive = json.loads(text)
        name, version = primitive['versioned_object.name'], primitive['versioned_object.version']
        data = primitive['versioned_object.data']
        versionutils.convert_version_to_tuple(version)
        if not isinstance(name, str) or not isinstance(data, dict):
            raise TypeError('its name is no text, or its data no object')
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise exception.MalformedObject('stored details', f'{type(error).__name__}: {error}') from error
    return name, version, data


def _check_data(cls: type[DeviceDetails], data: Mapping[str, Any]) -> None:
    """Check that data has every field of its class, each of the right type. Reading alone would coerce the values.

    :raises MalformedObject: a field is missing or has another type
    """
    for name, field in cls.fields.items():
        if name not in data:
            raise exception.MalformedObject('stored details', f'{cls.__name__} without {name}')
        value = data[name]
        if field.nullable if value is None else (fields.wanted(field, value) is None and (
                not isinstance(field, ovo_fields.UUIDField) or uuidutils.is_uuid_like(value))):
            continue
        raise exception.MalformedObject('stored details', f'{cls.__name__}.{name} of another type')


def from_text(text: str) -> DeviceDetails:
    """Read details of this or an older version.

    :raises UnknownObject: the class or version comes from a newer release
    :raises MalformedObject: the text is not a stored details object, or a field is missing or of another type
    """
    name, version, data = _parse(text)
    cls = base.class_of(name)
    if cls is None or not issubclass(cls, DeviceDetails):
        raise exception.UnknownObject(name, version, 'stored details')
    if version != cls.VERSION:
        if not base.is_readable(version, cls.VERSION):
            raise exception.UnknownObject(name, version, 'stored details')
        data = cls.convert(dict(data), version)
    _check_data(cls, data)
    primitive = {'versioned_object.name': name, 'versioned_object.namespace': base.NAMESPACE,
                 'versioned_object.version': cls.VERSION, 'versioned_object.data': data}
    read: DeviceDetails = cls.obj_from_primitive(primitive)
    return read


def peek(text: str) -> DeviceDetails:
    """Read details of the present version without converting or coercing them; for callers with thousands.

    The values are complete and of their types, and not coerced: look at them and do not keep the object.

    :raises UnknownObject, MalformedObject: as :func:`from_text`
    """
    name, version, data = _parse(text)
    cls = base.class_of(name)
    if cls is None or not issubclass(cls, DeviceDetails) or cls.VERSION != version:
        return from_text(text)
    _check_data(cls, data)
    seen: DeviceDetails = cls.of_known(**data)
    return seen


def is_made(text: str) -> bool:
    """Whether the device of a stored text was made for its owner. It searches the text, and is fast for thousands."""
    return CREATED_TEXT in text


def is_current(text: str) -> bool:
    """Whether a stored text has the version of this release."""
    name, version, _data = _parse(text)
    cls = base.class_of(name)
    return cls is not None and cls.VERSION == version


def as_port(text: str, port: Port | None) -> str:
    """The stored text of a device that will be this port; with None it will not be a port.

    :raises ValueError: the device cannot be that; says why
    :raises UnknownObject, MalformedObject: as :func:`from_text`
    """
    if port is not None:
        return to_text(from_text(text).as_port(port))
    # Reading the details of every device of a claim would take longer than all else that a claim does with a device.
    if _NETWORK in text and _NO_NETWORK not in text and peek(text).needs_port:
        raise ValueError('it is given as a port of its physical network alone, and nothing says which: ask for it by a '
                         'DeviceRequest with networks')
    return text


def port_of(text: str) -> Port | None:
    """The port that the device of a stored text is; None if it is not a port.

    :raises UnknownObject, MalformedObject: as :func:`from_text`
    """
    return peek(text).port if _NETWORK in text and _NO_NETWORK not in text else None
