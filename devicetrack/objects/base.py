"""What all versioned objects of devicetrack share.

The registry of oslo.versionedobjects is one for the whole process and goes by class names: a class registered later
replaces one of the same name and version, whoever wrote it. A compute service has a ``MigrationContext`` too. So our
objects are registered, and travel, under a name that starts with our own: ``devicetrack.MigrationContext``.
"""

from __future__ import annotations

from typing import Any
from typing import Self
from typing import TYPE_CHECKING

from oslo_versionedobjects import base
from oslo_versionedobjects import exception as ovo_exception

from devicetrack import exception

NAMESPACE = 'devicetrack'

register = base.VersionedObjectRegistry.register


def name_of(name: str) -> str:
    """The registered name of one of our classes."""
    return f'{NAMESPACE}.{name}'


class DeviceTrackObject(base.VersionedObject, base.ComparableVersionedObject):
    """Base of our objects. They do no I/O and know no manager."""

    OBJ_PROJECT_NAMESPACE = NAMESPACE

    if TYPE_CHECKING:
        # The fields are properties that the registry makes; a type checker cannot see them.
        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, context: Any = None, **values: Any) -> None:
        super().__init__(context, **values)
        self.obj_set_defaults()

    @classmethod
    def obj_name(cls) -> str:
        return name_of(cls.__name__)

    @classmethod
    def of_known(cls, **values: Any) -> Self:
        """Make an object from values that this library wrote itself: nothing is coerced, nothing counts as changed.

        A tenth of the price of the constructor. Fields that are left out load when they are asked for, where the
        class knows how, and are unset otherwise.
        """
        made = cls.__new__(cls)
        made._context = None
        made._changed_fields = set()
        for name, value in values.items():
            made.__dict__['_obj_' + name] = value
        return made

    def obj_to_primitive(self, target_version: Any = None, version_manifest: Any = None) -> Any:
        """The primitive without the list of changed fields.

        Our objects are values: nobody saves one by its changes, and the same facts give the same primitive.
        """
        primitive = super().obj_to_primitive(target_version=target_version, version_manifest=version_manifest)
        primitive.pop('versioned_object.changes', None)
        return primitive

    def _obj_relationship_for(self, field: str, target_version: str) -> Any:
        """Which version of a field's object a peer knows.

        Where a field takes subclasses, the peer's manifest names the class of the object, not that of the field.
        """
        value, manifest = getattr(self, field), getattr(self, '_obj_version_manifest', None)
        if manifest and isinstance(value, DeviceTrackObject) and value.obj_name() in manifest:
            return [(target_version, manifest[value.obj_name()])]
        return super()._obj_relationship_for(field, target_version)

    @classmethod
    def obj_from_primitive(cls, primitive: Any, context: Any = None) -> Any:
        """Read an object of ours from its primitive.

        :raises UnknownObject: a class or version in it, at any depth, is newer than this release; all of it is
            checked before the first object is made
        :raises MalformedObject: it is not in the form of a versioned object
        """
        try:
            check_known(primitive)
            return super().obj_from_primitive(primitive, context)
        except ovo_exception.VersionedObjectsException as error:
            raise exception.MalformedObject(cls.obj_name(), str(error)) from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise exception.MalformedObject(
                cls.obj_name(), f'not the primitive of one: {type(error).__name__}: {error}') from error


_NAME = 'versioned_object.name'
_VERSION = 'versioned_object.version'
_NAMESPACE = 'versioned_object.namespace'


def check_known(primitive: Any, where: str = 'object') -> None:
    """Refuse a primitive that holds, at any depth, an object of ours that this release cannot read.

    :raises UnknownObject: names the first one and where it stands
    """
    if isinstance(primitive, dict):
        if primitive.get(_NAMESPACE) == NAMESPACE:
            name, version = primitive.get(_NAME), primitive.get(_VERSION)
            classes = base.VersionedObjectRegistry.obj_classes().get(str(name))
            if not classes or not _readable(version, classes[0].VERSION):
                raise exception.UnknownObject(str(name), str(version), where)
        for key, value in primitive.items():
            check_known(value, where if key == 'versioned_object.data' else f'{where}.{key}')
    elif isinstance(primitive, list):
        for index, value in enumerate(primitive):
            check_known(value, f'{where}[{index}]')


def _readable(version: Any, ours: str) -> bool:
    """A release reads its own major version up to its own minor one."""
    try:
        major, minor = (int(part) for part in version.split('.'))
    except (AttributeError, ValueError):
        return False
    our_major, our_minor = (int(part) for part in ours.split('.'))
    return major == our_major and minor <= our_minor
