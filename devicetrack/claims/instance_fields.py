"""The fields and the images of the service's instances. Only this module reads or sets what concerns devices there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from typing import TypedDict

from devicetrack.objects import InstanceResources
from devicetrack.objects import MigrationContext
from devicetrack.objects.values import NAME_LENGTH


class Fields(TypedDict, total=False):
    """Fields of an instance and their values, by name. A missing field stays as it is, or is unknown."""

    resources: InstanceResources | None
    migration_context: MigrationContext | None


class InstanceFields:
    """Reads and sets ``resources`` and ``migration_context`` of instances; the service saves them.

    Every call that sets fields also returns them as :class:`Fields`, or in a claim. So a service whose instances cannot
    keep objects of this library passes a :class:`ReturnedFields` or a class of its own to the manager.
    """

    def read(self, instance: Any) -> Fields:
        """Return the fields of an instance. A field with an object of another class is None, like a missing one.

        A field that is left out is unknown: then only the rows count.
        """
        resources = getattr(instance, 'resources', None)
        context = getattr(instance, 'migration_context', None)
        return {'resources': resources if isinstance(resources, InstanceResources) else None,
                'migration_context': context if isinstance(context, MigrationContext) else None}

    def set(self, instance: Any, fields: Fields) -> None:
        """Set fields on an instance, or clear them with None. Quick; it must not call the manager.

        If an error occurs in a claim, the claim gives its devices back and raises the error. Other calls also raise it,
        and everything that they recorded before stays recorded.
        """
        for name, value in fields.items():
            if getattr(instance, name, None) is not value:
                setattr(instance, name, value)

    def display_name(self, instance: Any) -> str | None:
        """Return what people call an instance, for its claim to record; None, as here, records nothing.

        Every claim asks. Quick; it must not call the manager. Its error ends the claim before that holds anything.
        Operators see the name beside the UUID, and it means nothing else. Names are data of the service's tenants, so
        override this only if operators may see and keep them.
        """
        return None


def name_to_record(fields: InstanceFields, instance: Any) -> str | None:
    """The name of an instance as every database can store it: not with NUL or half a surrogate pair."""
    name = fields.display_name(instance)
    if not name:
        return None
    return str(name).replace('\0', '\\x00').encode('utf-8', 'backslashreplace').decode()[:NAME_LENGTH]


class ReturnedFields(InstanceFields):
    """For a service that uses the fields that calls return. It reads and sets nothing on instances."""

    def read(self, instance: Any) -> Fields:
        """Return no field: nothing is known.

        The claim of a live migration needs the ``resources`` of the source, so a service with live migrations writes a
        subclass that returns them from the message of the source.
        """
        return {}

    def set(self, instance: Any, fields: Fields) -> None:
        """Do nothing."""


class ImageProperties:
    """The properties of an instance's image: ``instance.image_meta.properties``, a mapping or an object with fields.

    They are read only when needed, since a service may fetch them from its database.
    """

    __slots__ = ('_instance',)

    def __init__(self, instance: Any) -> None:
        self._instance = instance

    def get(self, name: str) -> Any:
        """Return a property, or None if the image has no such property or the instance has no image."""
        image = getattr(self._instance, 'image_meta', None)
        if image is None:
            return None
        properties = image.get('properties') if isinstance(image, Mapping) else getattr(image, 'properties', None)
        get = getattr(properties, 'get', None)
        return get(name) if get is not None else getattr(properties, name, None)
