"""The fields of the service's instances that concern devices. Only this module reads or sets them."""

from __future__ import annotations

from typing import Any
from typing import TypedDict

from devicetrack.objects import InstanceResources
from devicetrack.objects import MigrationContext


class Fields(TypedDict, total=False):
    """Fields of an instance and their values, by name. A field that is not in it stays as it is, or is not known."""

    resources: InstanceResources | None
    migration_context: MigrationContext | None


class InstanceFields:
    """Reads and sets ``resources`` and ``migration_context`` of instances; the service saves them.

    Every call that sets them returns the same :class:`Fields`, or a claim that has them, so a service whose instances
    take no objects of ours hands a :class:`ReturnedFields` or a class of its own to the manager.
    """

    def read(self, instance: Any) -> Fields:
        """What an instance keeps. A field of another class than ours is None, as one that is not there.

        A field that is left out is not known: then rows alone count.
        """
        resources = getattr(instance, 'resources', None)
        context = getattr(instance, 'migration_context', None)
        return {'resources': resources if isinstance(resources, InstanceResources) else None,
                'migration_context': context if isinstance(context, MigrationContext) else None}

    def set(self, instance: Any, fields: Fields) -> None:
        """Have an instance keep something, or with None nothing. Quick; it must not call the manager.

        An error of a claim's fields gives the claim back and goes on. Any other error goes on too, and what the call
        has recorded before stays so.
        """
        for name, value in fields.items():
            if getattr(instance, name, None) is not value:
                setattr(instance, name, value)


class ReturnedFields(InstanceFields):
    """For a service that takes what calls return: nothing is read from its instances, and nothing is set on them."""

    def read(self, instance: Any) -> Fields:
        """Nothing is known.

        The claim of a live migration needs the ``resources`` of the source, so a service with live migrations returns
        what the source's message said of them, by a subclass.
        """
        return {}

    def set(self, instance: Any, fields: Fields) -> None:
        """Do nothing."""
