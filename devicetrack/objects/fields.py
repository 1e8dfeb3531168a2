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
    """A field that may be None, and is None by default.

    The types of oslo.versionedobjects do not declare that a default may be None, so the call is left untyped.
    """
    return field(nullable=True, default=None)


def wanted(field: fields.Field, value: Any) -> str | None:
    """What a JSON value must be for a field of plain values; None if it is that. Reading alone would coerce it.

    For fields of objects, and of a device kind's own types, reading decides.
    """
    if isinstance(field, (fields.StringField, fields.BaseEnumField, fields.UUIDField)):
        return None if _is_text(value) else 'a text'
    if isinstance(field, fields.ListOfStringsField):
        return None if isinstance(value, list) and all(map(_is_text, value)) else 'a list of texts'
    if isinstance(field, fields.BooleanField):
        return None if isinstance(value, bool) else 'true or false'
    if isinstance(field, (fields.IntegerField, fields.NonNegativeIntegerField)):
        return None if type(value) is int else 'a whole number'
    return None


def _is_text(value: Any) -> bool:
    return vocabulary.is_text(value) and '\0' not in value       # which no database takes


class RoleField(fields.BaseEnumField):
    """The role of an assignment in a move of its instance."""

    AUTO_TYPE = fields.Enum(valid_values=vocabulary.ROLES)


class StateField(fields.BaseEnumField):
    """The state of an assignment."""

    AUTO_TYPE = fields.Enum(valid_values=vocabulary.STATES)


class OriginField(fields.BaseEnumField):
    """Whether a device was made for its assignment, or existed before."""

    AUTO_TYPE = fields.Enum(valid_values=vocabulary.ORIGINS)


class NUMAAffinityPolicyField(fields.BaseEnumField):
    """How strictly a request follows NUMA nodes."""

    AUTO_TYPE = fields.Enum(valid_values=vocabulary.NUMA_AFFINITY_POLICIES)


class Amount(fields.Integer):
    """A number of devices. Only whole numbers are accepted; oslo.versionedobjects would cut 1.9 down to 1."""

    def coerce(self, obj: Any, attr: str, value: Any) -> int:
        if type(value) is not int:
            raise exception.BadRequest(attr, value, 'must be a whole number')
        return value


class AmountField(fields.AutoTypedField):
    AUTO_TYPE = Amount()

    def coerce(self, obj: Any, attr: str, value: Any) -> Any:
        return self._type.coerce(obj, attr, value)              # also None, which a field refuses with a ValueError


class ForeignObject(fields.FieldType):
    """A versioned object of the compute service, which we transport and do not interpret, or one of ours in its place.

    Its primitive names its project (``nova_object.name``). Only a class of that project may read it, and no class of
    the same name from another project.
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
