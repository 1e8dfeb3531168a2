"""The base of all versioned objects of devicetrack.

A process has one registry of oslo.versionedobjects, by class name. A class that is registered later replaces an earlier
one of the same name and version, and a compute service has a ``MigrationContext`` too. So our objects have names with a
prefix, in the registry and on the wire: ``devicetrack.MigrationContext``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from typing import ClassVar
from typing import Self

from oslo_utils import versionutils

from devicetrack import exception
from devicetrack import lean_imports

lean_imports.load_versioned_objects()

from oslo_versionedobjects import base  # noqa: E402
from oslo_versionedobjects import exception as ovo_exception  # noqa: E402

NAMESPACE = 'devicetrack'

register = base.VersionedObjectRegistry.register


def name_of(name: str) -> str:
    """The registered name of one of our classes."""
    return f'{NAMESPACE}.{name}'


def class_of(name: object) -> Any:
    """The newest class of this registered name; None if there is none."""
    classes = base.VersionedObjectRegistry.obj_classes().get(str(name))
    return classes[0] if classes else None


class DeviceTrackObject(base.VersionedObject, base.ComparableVersionedObject):
    """Base of our objects. They do no I/O.

    The registry makes a property for each of ``fields``, which a type checker cannot see. So each class also annotates
    its fields.
    """

    OBJ_PROJECT_NAMESPACE = NAMESPACE

    ADDED: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """The fields that minor versions of the class added, by version. A peer that knows only an older version gets none
    of them."""

    def __init__(self, context: Any = None, **values: Any) -> None:
        super().__init__(context, **values)
        self.obj_set_defaults()

    @classmethod
    def obj_name(cls) -> str:
        return name_of(cls.__name__)

    @classmethod
    def of_known(cls, **values: Any) -> Self:
        """Make an object from values that this library wrote itself, without coercing them or counting them as changed.

        It takes a tenth of the constructor's time. A field that is left out is loaded on first use, if the class can
        load it, and is unset otherwise.
        """
        made = cls.__new__(cls)
        made._context = None
        made._changed_fields = set()
        for name, value in values.items():
            setattr(made, '_obj_' + name, value)        # so that objects share the keys of their dictionaries
        return made

    @classmethod
    def unknown_to(cls, version: str) -> list[str]:
        """The names of the fields that a peer does not know who knows this version of the class."""
        known = versionutils.convert_version_to_tuple(version)
        return [name for since, names in cls.ADDED.items() if known < versionutils.convert_version_to_tuple(since)
                for name in names]

    def obj_make_compatible(self, primitive: dict[str, Any], target_version: str) -> None:
        super().obj_make_compatible(primitive, target_version)
        for name in self.unknown_to(target_version):
            primitive.pop(name, None)

    def unset_fields(self) -> list[str]:
        """The names of fields that are not set."""
        return [name for name in self.fields if not self.obj_attr_is_set(name)]

    def obj_to_primitive(self, target_version: Any = None, version_manifest: Any = None) -> Any:
        """The primitive without the list of changed fields.

        Our objects are values. Nobody saves them by their changes, and equal objects have equal primitives.
        """
        primitive = super().obj_to_primitive(target_version=target_version, version_manifest=version_manifest)
        primitive.pop('versioned_object.changes', None)
        return primitive

    def _obj_relationship_for(self, field: str, target_version: str) -> Any:
        """The version of a field's object that a peer knows.

        If a field takes subclasses, the peer's manifest names the class of the object, not that of the field.
        """
        value, manifest = getattr(self, field), getattr(self, '_obj_version_manifest', None)
        if manifest and isinstance(value, DeviceTrackObject) and value.obj_name() in manifest:
            return [(target_version, manifest[value.obj_name()])]
        return super()._obj_relationship_for(field, target_version)

    @classmethod
    def obj_from_primitive(cls, primitive: Any, context: Any = None) -> Any:
        """Read an object of ours from its primitive.

        :raises UnknownObject: a class or version in it, at any depth, is newer than this release; no object was made
        :raises MalformedObject: it is not the primitive of a versioned object
        """
        try:
            check_known(primitive)
            return super().obj_from_primitive(primitive, context)
        except ovo_exception.VersionedObjectsException as error:
            raise exception.MalformedObject(cls.obj_name(), str(error)) from error
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise exception.MalformedObject(
                cls.obj_name(), f'not the primitive of one: {type(error).__name__}: {error}') from error


_NAME = 'versioned_object.name'
_VERSION = 'versioned_object.version'
_NAMESPACE = 'versioned_object.namespace'


def check_known(primitive: Any, where: str = 'object') -> None:
    """Refuse a primitive that contains, at any depth, an object of ours that this release cannot read.

    :raises UnknownObject: names the first such object and its place
    """
    if isinstance(primitive, dict):
        if primitive.get(_NAMESPACE) == NAMESPACE:
            name, version = primitive.get(_NAME), primitive.get(_VERSION)
            cls = class_of(name)
            if cls is None or not is_readable(version, cls.VERSION):
                raise exception.UnknownObject(str(name), str(version), where)
        for key, value in primitive.items():
            check_known(value, where if key == 'versioned_object.data' else f'{where}.{key}')
    elif isinstance(primitive, list):
        for index, value in enumerate(primitive):
            check_known(value, f'{where}[{index}]')


def is_readable(version: Any, ours: str) -> bool:
    """Whether a version has the major number of ours and no higher minor number."""
    try:
        major, minor = (int(part) for part in version.split('.'))
    except (AttributeError, ValueError):
        return False
    our_major, our_minor = (int(part) for part in ours.split('.'))
    return major == our_major and minor <= our_minor
