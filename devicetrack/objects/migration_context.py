"""The old and the new resources of an instance that moves."""

from __future__ import annotations

from oslo_versionedobjects import fields as ovo_fields

from devicetrack.objects import base
from devicetrack.objects import fields


@base.register
class MigrationContext(base.DeviceTrackObject):
    """The old and the new resources of an instance that moves, for the service and the wire. The rows decide.

    The NUMA topologies are the compute service's own versioned objects, which we transport and do not interpret.

    1.1 has resources of 1.1.
    """

    VERSION = '1.1'
    fields = {
        'instance_uuid': ovo_fields.UUIDField(),
        'migration_uuid': ovo_fields.UUIDField(),
        'old_resources': ovo_fields.ObjectField(base.name_of('InstanceResources'), nullable=True),
        'new_resources': ovo_fields.ObjectField(base.name_of('InstanceResources'), nullable=True),
        'old_numa_topology': fields.ForeignObjectField(nullable=True, default=None),
        'new_numa_topology': fields.ForeignObjectField(nullable=True, default=None),
    }
    obj_relationships = {name: [('1.0', '1.0'), ('1.1', '1.1')] for name in ('old_resources', 'new_resources')}
