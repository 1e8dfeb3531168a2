"""Objects that go from host to host: as primitives, or as texts in a message that has room only for a string.

Reading checks every field, at any depth, before an object is made. The versioned object alone would coerce values of
another type, and leave missing fields unset.
"""

from __future__ import annotations

from collections.abc import Mapping
import json
from typing import Any
from typing import Self

from oslo_versionedobjects import base as ovo_base
from oslo_versionedobjects import fields as ovo_fields

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import base
from devicetrack.objects import details
from devicetrack.objects import fields

_DATA = 'versioned_object.data'
_NAME = 'versioned_object.name'
_VERSION = 'versioned_object.version'
# An error shows this many characters of a refused value.
_SHOWN = 40


class Message(base.DeviceTrackObject):
    """Base of the objects that go from host to host."""

    def to_text(self, target_version: str | None = None) -> str:
        """The object as a line of JSON. Equal objects give equal texts.

        :param target_version: the version of the class that the reader knows, by default ours
        """
        return json.dumps(self.obj_to_primitive(target_version=target_version), separators=(',', ':'), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read a text that :meth:`to_text` made, in this release or an older one.

        :raises UnknownObject: a newer release made it
        :raises MalformedObject: the text is something else; ``where`` names the field, from the class on
        """
        where = cls.obj_name()
        if not isinstance(text, str):
            raise exception.MalformedObject(where, f'must be a text, not {type(text).__name__}')
        try:
            primitive = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise exception.MalformedObject(where, f'no JSON: {error}') from error
        read: Self = cls.obj_from_primitive(primitive)
        return read

    @classmethod
    def obj_from_primitive(cls, primitive: Any, context: Any = None) -> Any:
        """Read a primitive as :meth:`from_text` reads a text."""
        read = super().obj_from_primitive(primitive, context)
        if read.obj_name() != cls.obj_name():
            raise _no_object(cls.obj_name(), cls.obj_name())
        return read

    @classmethod
    def _obj_from_primitive(cls, context: Any, objver: str, primitive: Any) -> Any:
        # A service's serializer calls only this method of ours. It may have read the objects in lists already.
        _check_object(primitive, cls.obj_name(), cls.obj_name())
        data = dict(primitive[_DATA])
        for name, field in cls.fields.items():
            # Otherwise oslo.versionedobjects would read them by obj_from_primitive() of this class.
            if isinstance(field, ovo_fields.ListOfObjectsField) and data.get(name) is not None:
                data[name] = [one if isinstance(one, ovo_base.VersionedObject)
                              else base.DeviceTrackObject.obj_from_primitive(one, context) for one in data[name]]
        return super()._obj_from_primitive(context, objver, {**primitive, _DATA: data})


def _check_object(primitive: Any, wanted: str | None, where: str) -> None:
    """:raises MalformedObject: the value is not a primitive of the class ``wanted``; None means any class of ours"""
    if isinstance(primitive, ovo_base.VersionedObject):
        primitive = {_NAME: primitive.obj_name(), _VERSION: primitive.VERSION, _DATA: {
            name: getattr(primitive, name) for name in primitive.fields if primitive.obj_attr_is_set(name)}}
    name = primitive.get(_NAME) if isinstance(primitive, Mapping) else None
    cls = base.class_of(name) if isinstance(name, str) else None
    if primitive is None or cls is None or wanted not in (None, name):
        raise _no_object(where, wanted)
    data = primitive.get(_DATA)
    if not isinstance(data, Mapping):
        raise exception.MalformedObject(where, 'has no data')
    # Details of an older version have no field that was added since.
    is_older = issubclass(cls, details.DeviceDetails) and primitive.get(_VERSION) != cls.VERSION
    for field, kind in cls.fields.items():
        if field in data:
            _check_value(data[field], kind, f'{where}.{field}')
        elif kind.default is ovo_fields.UnspecifiedDefault and not is_older:
            raise exception.MalformedObject(f'{where}.{field}', 'is missing')


def _check_value(value: Any, field: Any, where: str) -> None:
    if value is None:
        if not field.nullable:
            raise exception.MalformedObject(where, 'must not be null')
    elif isinstance(field, ovo_fields.ListOfObjectsField):
        if not isinstance(value, list):
            raise _wrong(where, value, 'a list')
        name = _object_of(field)
        for index, one in enumerate(value):
            _check_object(one, name, f'{where}[{index}]')
    elif isinstance(field, ovo_fields.ObjectField):
        _check_object(value, None, where)
    elif isinstance(field, ovo_fields.UUIDField):
        check_uuid(where, value)
    elif (wanted := fields.wanted(field, value)) is not None:
        raise _wrong(where, value, wanted)


def _object_of(field: Any) -> str:
    """The name of the class of the objects in a list. oslo.versionedobjects does not make it public."""
    return str(field._type._element_type._type._obj_name)


def _no_object(where: str, wanted: str | None) -> exception.MalformedObject:
    return exception.MalformedObject(where, f'must be a {wanted or "versioned object"}')


def _wrong(where: str, value: Any, wanted: str) -> exception.MalformedObject:
    shown = repr(value)
    return exception.MalformedObject(where, f'{shown[:_SHOWN]}{"…" if len(shown) > _SHOWN else ""}: must be {wanted}')


def check_map(where: str, value: Any) -> Mapping[str, str]:
    """Check a map from UUIDs of devices to texts.

    :raises MalformedObject: the value is something else
    """
    if not isinstance(value, Mapping):
        raise _wrong(where, value, 'a map of texts')
    for key, one in value.items():
        if not vocabulary.is_uuid(key):
            raise _wrong(f'{where}, a key', key, 'the UUID of a device: lower case, with hyphens')
        if not vocabulary.is_text(one) or not one:
            raise _wrong(f'{where}[{key}]', one, 'a text')
    return value


def check_uuid(where: str, value: Any) -> str:
    """:raises MalformedObject: the value is not a UUID"""
    if not vocabulary.is_uuid(value):
        raise _wrong(where, value, 'a UUID: lower case, with hyphens')
    return str(value)
