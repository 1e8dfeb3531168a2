"""Field types of the versioned objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from typing import TypeVar

from oslo_versionedobjects import base
from oslo_versionedobjects import exception as ovo_exception
from oslo_versionedobjects import fields

from devicetrack import exception
from devicetrack import vocabulary

Field = TypeVar('Field')


def or_none(field: Callable[..., Field]) -> Field:
    """A field that may be None, and is None where nobody says.

    The library's own types know no None for a default, so they are not asked.
    """
    return field(nullable=True, default=None)


class RoleField(fields.BaseEnumField):
    """What an assignment is to its instance."""

    AUTO_TYPE = fields.Enum(valid_values=vocabulary.ROLES)


class StateField(fields.BaseEnumField):
    """Where an assignment is in its life."""

    AUTO_TYPE = fields.Enum(valid_values=vocabulary.STATES)


class OriginField(fields.BaseEnumField):
    """Whether a device was made for its assignment or was there before."""

    AUTO_TYPE = fields.Enum(valid_values=vocabulary.ORIGINS)


class NUMAAffinityPolicyField(fields.BaseEnumField):
    """How strictly a request follows NUMA nodes."""

    AUTO_TYPE = fields.Enum(valid_values=vocabulary.NUMA_AFFINITY_POLICIES)


class Amount(fields.Integer):
    """How many. What is no whole number is refused, where oslo.versionedobjects would cut 1.9 down to 1."""

    def coerce(self, obj: Any, attr: str, value: Any) -> int:
        if type(value) is not int:
            raise exception.BadRequest(attr, value, 'must be a whole number')
        return value


class AmountField(fields.AutoTypedField):
    AUTO_TYPE = Amount()

    def coerce(self, obj: Any, attr: str, value: Any) -> Any:
        return self._type.coerce(obj, attr, value)              # None too, which a field refuses in its own way


class ForeignObject(fields.FieldType):
    """A versioned object of the compute service, which we carry and never look into.

    Its primitive names its project (``nova_object.name``), and only a class of that project and version line may
    read it: a class of ours, or of a third project, that has the same name is not the same class.
    """

    def coerce(self, obj: Any, attr: str, value: Any) -> base.VersionedObject:
        if not isinstance(value, base.VersionedObject):
            raise ValueError(f'{attr} takes a versioned object, not {type(value).__name__}')
        return value

    def to_primitive(self, obj: Any, attr: str, value: base.VersionedObject) -> Any:
        return value.obj_to_primitive()

    def from_primitive(self, obj: Any, attr: str, value: Any) -> base.VersionedObject:
        if isinstance(value, base.VersionedObject):
            return value
        where = f'{obj.obj_name()}.{attr}'
        names = [key for key in value if key.endswith('.name')] if isinstance(value, dict) else []
        if len(names) != 1:
            raise exception.MalformedObject(where, 'not the primitive of a versioned object')
        name, space = value[names[0]], names[0].removesuffix('.name')
        project = value.get(f'{space}.namespace')
        for cls in base.VersionedObjectRegistry.obj_classes().get(name, ()):
            if (space, project) == (cls.OBJ_SERIAL_NAMESPACE, cls.OBJ_PROJECT_NAMESPACE):
                try:
                    return cls.obj_from_primitive(value)
                except ovo_exception.IncompatibleObjectVersion:
                    break
        raise exception.UnknownObject(name, value.get(f'{space}.version'), where)


class ForeignObjectField(fields.AutoTypedField):
    AUTO_TYPE = ForeignObject()
