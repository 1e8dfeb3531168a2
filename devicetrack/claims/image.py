"""The image of an instance, as far as claims read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
