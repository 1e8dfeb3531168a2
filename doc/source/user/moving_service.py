"""What the claim manager of one host asks of a service whose instances move. The service's database answers."""

import time

LONG_S = 24 * 60 * 60


class MovingService:

    def __init__(self, database, host):
        self.database, self.host = database, host

    def instances(self, uuids):
        """By what is recorded: ``host`` changes in the transaction that says so.

        ``offloaded`` is set with the host None, and unset before the claim that brings the instance back. An instance
        that has no host otherwise is being built, and left out.
        """
        return {one.uuid: 'deleted' if one.deleted else 'offloaded' if one.offloaded
                else 'here' if one.host == self.host else 'elsewhere'
                for one in self.database.instances
                if one.uuid in uuids and (one.deleted or one.offloaded or one.host is not None)}

    def migrations(self, uuids):
        """Those that were asked for, and those that take an instance away from here and are not long over."""
        recently = time.time() - LONG_S
        return {one.uuid: one for one in self.database.migrations
                if one.uuid in uuids or (one.source_compute == self.host and one.updated_at > recently)}

    def evacuated_from_here(self):
        """Evacuations that are done, until the instance comes back: its guest may have come up here again.

        When the instance has come back and leaves once more, it is not away because of the evacuation.
        """
        away = {one.uuid for one in self.database.instances if one.host != self.host}
        back = {one.instance_uuid: one.id for one in sorted(self.database.migrations, key=lambda one: one.id)
                if one.dest_compute == self.host and one.status not in ('error', 'failed', 'cancelled', 'reverted')}
        return [one.instance_uuid for one in self.database.migrations
                if (one.migration_type, one.source_compute, one.status) == ('evacuation', self.host, 'done')
                and one.instance_uuid in away and back.get(one.instance_uuid, -1) < one.id]

    def create_migration(self, context, instance, nodename, move_type):
        return self.database.create_migration(instance, nodename, move_type)

    def fail_migration(self, migration_uuid):
        self.database.set_status(migration_uuid, 'error')
