"""Updates guests' devices and definitions after the host boots: paths of an earlier boot are invalid."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.claims.claim import Claiming
from devicetrack.claims.host import ThisHost
from devicetrack.claims.life import Life
from devicetrack.claims.rows import Rows
from devicetrack.claims.views import Boot
from devicetrack.engine.views import by_instance
from devicetrack.engine.views import named_by_domain
from devicetrack.engine.views import naming_domains
from devicetrack.engine.views import Views
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record

LOG = log.logger(__name__)


class Definitions:
    """The definitions that this host's guests start from."""

    def __init__(self, host: ThisHost, rows: Rows, life: Life, claiming: Claiming, boot: Boot) -> None:
        self._driver, self._ledger, self._rows, self._life = host.driver, rows.ledger, rows, life
        self._claiming, self.boot = claiming, boot
        self._told: dict[str, str] = {}         # by instance, why its definition is not of this boot yet

    def bring_one(self, instance_uuid: str) -> None:
        """Update the definition that a guest is about to start from, if the manager's start after a boot could not.

        The caller works on the instance and has realized its devices.

        :raises InvalidDocument: the definition does not say which device each of its paths meant
        """
        if not self.boot.has_changed or self.boot.is_ready(instance_uuid):
            return
        usage = self._driver.get_usage()
        if instance_uuid not in usage.running:
            self._rewrite(instance_uuid, named_by_domain(usage).get(instance_uuid, set()),
                          instance_uuid in naming_domains(usage))
        self.boot.set_ready(instance_uuid)

    def kept(self, instance_uuid: str, definition: str, used: Sequence[DeviceAssignment],
             beside: Sequence[DeviceAssignment]) -> str:
        """Update a definition that the hypervisor does not have, and check that it names these devices and no others.

        The caller has realized the devices.

        :param beside: other devices of the instance
        """
        if used:
            definition = self._driver.rewrite_definition(definition, used, beside, self._is_untracked)
        has, named = {one.key for one in used}, self._driver.devices_in(definition)
        for key in sorted(has - named):
            raise exception.DefinitionRefused(instance_uuid, *key, 'the instance has it, and it is missing')
        for key in sorted(named - has):
            # The service itself manages devices that this host does not track, such as accelerators.
            if self._ledger.now.device(key) is not None:
                raise exception.DefinitionRefused(instance_uuid, *key, 'the instance does not have it')
        return definition

    def bring_all(self, views: Views) -> bool:
        """After the host booted, realize devices again and write their new addresses into definitions.

        The boot counts as recorded only when every definition is of this boot. If one does not say what its paths
        meant, that takes until its guest starts from a new one: a manager that forgot this would let the guest start on
        the devices of others. The rest of the host does not wait for it.

        :returns: whether there was work to do
        """
        if self.boot.is_recorded:
            return False
        done, tried = True, not self.boot.is_new_host
        if tried:
            named, naming = named_by_domain(views.usage), naming_domains(views.usage)
            for rows in by_instance(views.records):
                instance_uuid = rows[0].instance_uuid
                if not self.boot.is_ready(instance_uuid):
                    if self._bring(rows, named.get(instance_uuid, set()), instance_uuid in naming, views):
                        self.boot.set_ready(instance_uuid)
                    else:
                        done = False
        if done:
            self.boot.record()
            self._told.clear()
        return tried

    def _bring(self, rows: Sequence[Record], named: Collection[DeviceKey], names_any: bool, views: Views) -> bool:
        """Make the devices of one instance ready, before its guest starts.

        :param named: the devices that its definition names. The guest may need other devices: it may have been about to
            move, or its service stopped before it said that the guest started
        :param names_any: whether the definition names anything
        :returns: False if it must be tried again
        """
        instance_uuid = rows[0].instance_uuid
        if not any(record.state == vocabulary.ACTIVE or record.key in named for record in rows):
            return True
        with self._rows.if_idle(instance_uuid) as idle:
            if not idle:
                return False
            try:
                self._claiming.realize([record for record in self._rows.there(instance_uuid)
                                        if record.state == vocabulary.ACTIVE or record.key in named])
            except exception.DeviceTrackError as error:
                # The service may get the same error when it starts the guest; the rest of the host works.
                LOG.warning('The devices of instance %(instance)s are not ready after the host booted; every audit '
                            'tries again: %(error)s', {'instance': instance_uuid, 'error': error})
                return False
            self.boot.set_realized(instance_uuid)
            return instance_uuid in views.usage.running or self._is_rewritten(instance_uuid, named, names_any)

    def _is_rewritten(self, instance_uuid: str, named: Collection[DeviceKey], names_any: bool) -> bool:
        """Try to write the addresses of this boot into the definition of a guest that is off."""
        try:
            self._rewrite(instance_uuid, named, names_any)
        except exception.DeviceTrackError as error:
            # The guest may stay off for months.
            if self._told.get(instance_uuid) != str(error):
                self._told[instance_uuid] = str(error)
                LOG.warning('The definition of instance %(instance)s is not of this boot of the host; every audit '
                            'tries again, and a guest that starts from a new definition does not need it: %(error)s',
                            {'instance': instance_uuid, 'error': error})
            return False
        return True

    def _rewrite(self, instance_uuid: str, named: Collection[DeviceKey], names_any: bool) -> None:
        """Write the addresses of this boot into the definition of a guest that is off."""
        records = self._rows.there(instance_uuid)
        in_it = [record for record in records if record.key in named]
        if names_any and not in_it:
            # Without a record a path of an earlier boot may mean another guest's device by now, or none. The driver
            # must refuse such a definition too.
            in_it = self._life.used_by_guest(records)
        if in_it:
            self._driver.rewrite_guest(list(map(DeviceAssignment.from_record, in_it)), [
                DeviceAssignment.from_record(record) for record in records if record not in in_it], self._is_untracked)

    def _is_untracked(self, key: DeviceKey) -> bool:
        """Whether a device is none of this host's, such as an accelerator that the service itself manages."""
        return self._ledger.now.device(key) is None and not self._rows.of_devices((key,))
