"""Nova's libvirt driver with devices in guests' definitions, their starts, and live migration."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import os
from typing import Any
from typing import Final

from nova import exception as nova_exception
import nova.conf
from nova.virt.libvirt import config as nova_config
from nova.virt.libvirt import driver as nova_driver
from nova.virt.libvirt import guest as nova_guest
from nova.virt.libvirt import utils as libvirt_utils

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.nova import binding
from devicetrack.nova import errors
from devicetrack.nova import guest as guests
from devicetrack.nova import overrides
from devicetrack.nova import tracker
from devicetrack.nova import wire
from devicetrack.nova.subject import Subject

LOG = log.logger(__name__)

_MDEV: Final = 'mdev'


@overrides.of_nova
class LeavingGuest(nova_guest.Guest):
    """A guest that leaves by a live migration.

    :param define: takes Nova's definition for the destination, and returns it with the destination's devices
    """

    def __init__(self, domain: Any, define: Callable[[str], str]) -> None:
        super().__init__(domain)
        self._define = define

    def migrate(self, destination: Any, *args: Any, destination_xml: Any = None, **kwargs: Any) -> Any:
        return super().migrate(destination, *args, destination_xml=self._define(destination_xml), **kwargs)


@overrides.of_nova
class LibvirtDriver(nova_driver.LibvirtDriver):
    """Nova's libvirt driver, whose guests get the devices of their claims."""

    _binding: binding.Binding | None = None

    # -- start and stop -----------------------------------------------------------------------------------------------

    def start_devicetrack(self, resource_tracker: Any) -> None:
        """Start the host's manager, unless it has started.

        :raises DeviceTrackError: the manager cannot start; the host has none then
        """
        if self._binding is None:
            started = binding.Binding(self, resource_tracker)
            started.start()
            self._binding = started

    @property
    def devicetrack(self) -> binding.Binding:
        """The host's binding.

        :raises NotReady: its manager has not started
        """
        if self._binding is None:
            raise exception.NotReady(nova.conf.CONF.host)
        return self._binding

    def close_devicetrack(self) -> None:
        """Close the host's manager, if it has started."""
        started, self._binding = self._binding, None
        if started is not None:
            started.close()

    def update_provider_tree(self, provider_tree: Any, nodename: str, allocations: Any = None) -> None:
        host = self.devicetrack
        super().update_provider_tree(provider_tree, nodename, allocations=allocations)
        host.providers.mark(provider_tree, host.reported())

    def _get_mediated_devices(self, types: Any = None) -> list[Any]:
        """Read the host's mediated devices again if one goes between Nova's list and its look-up of each of them.

        Nova alone removes none, and lets libvirt's error end a delete, a confirmation or a boot of another instance.
        """
        listed: set[str] | None = None
        while True:
            try:
                found: list[Any] = super()._get_mediated_devices(types)
                return found
            except nova_driver.libvirt.libvirtError as error:
                if error.get_error_code() != nova_driver.libvirt.VIR_ERR_NO_NODE_DEVICE:
                    raise
                before, listed = listed, set(self._host.list_mediated_devices())
                if listed == before:                # none has gone since the last error: libvirt contradicts itself
                    raise

    # -- Nova's own choices and wipes, which do nothing ---------------------------------------------------------------

    def _allocate_mdevs(self, allocations: Any) -> list[Any]:
        """Choose none: the definition gets the devices of the instance's claim (:meth:`_get_guest_config`)."""
        self.devicetrack                        # noqa: B018        # it refuses if the manager has not started
        return []

    def _get_ordered_vpmems(self, instance: Any, flavor: Any) -> list[Any]:
        """Choose none, as :meth:`_allocate_mdevs`."""
        return self._allocate_mdevs(None)

    def _get_all_assigned_mediated_devices(self, instance: Any = None) -> dict[str, str]:
        """Return those that definitions name, and those that are claimed for an instance but in no definition yet."""
        claimed = {one.identifier: one.instance_uuid for one in self._assigned_mdevs()
                   if one.state != vocabulary.RELEASING and (instance is None or one.instance_uuid == instance.uuid)}
        return {**super()._get_all_assigned_mediated_devices(instance), **claimed}

    def _get_vpmems(self, instance: Any, prefix: str | None = None) -> list[Any]:
        """Return the namespaces of an instance here.

        Nova asks to decide on post-copy, and to wipe, which it never does.
        """
        return list(self.devicetrack.manager.assignments(instance.uuid))

    def _cleanup_vpmems(self, vpmems: Any) -> None:
        """Wipe nothing: the manager wipes devices that are given back, after Nova destroyed the guest."""
        self._allocate_mdevs(None)

    def _sorted_migrating_resources(self, instance: Any, flavor: Any) -> None:
        """Name no namespaces of the destination, with which Nova would replace the guest's by their position."""

    def _assigned_mdevs(self) -> list[Any]:
        """Return the host's mediated devices that instances have, including those that are being released."""
        return [one for one in self.devicetrack.manager.assignments() if one.kind == _MDEV]

    # -- guests -------------------------------------------------------------------------------------------------------

    def _get_guest_config(self, instance: Any, network_info: Any, image_meta: Any, disk_info: Any, rescue: Any = None,
                          block_device_info: Any = None, context: Any = None, mdevs: Any = None, *args: Any,
                          **kwargs: Any) -> Any:
        """Add devices to every definition that Nova makes: for a boot, a reboot, a rescue, and the ends of moves."""
        host = self.devicetrack
        # Nova remembers the mediated devices of a guest by its definition. Nova itself adds those that are not ours,
        # such as an accelerator's.
        ours = {one.identifier for one in self._assigned_mdevs()}
        made = super()._get_guest_config(instance, network_info, image_meta, disk_info, rescue, block_device_info,
                                         context, [uuid for uuid in mdevs or () if uuid not in ours], *args, **kwargs)
        guests.equip(made, host.guest_config(instance))
        return made

    def _create_guest(self, context: Any, xml: str, instance: Any, *args: Any, **kwargs: Any) -> Any:
        """Check the definition of every guest that Nova starts, or defines without starting it."""
        host = self.devicetrack
        created = super()._create_guest(context, host.kept_definition(instance, xml), instance, *args, **kwargs)
        host.started(context, instance)
        return created

    def power_off(self, instance: Any, *args: Any, **kwargs: Any) -> None:
        """Note first that the guest runs here. While it is off, nothing else says that it has not left."""
        with self.devicetrack.stopping(instance):
            super().power_off(instance, *args, **kwargs)

    def _hard_reboot(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> Any:
        """Make the devices ready first: a hard reboot destroys the guest, and must not if it cannot start again."""
        self.devicetrack.make_ready(instance, new_definition=True)
        return super()._hard_reboot(context, instance, *args, **kwargs)

    def rescue(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> Any:
        """Make the devices ready first: without a domain, a rescue would make one here.

        Nova has stopped the guest by then, by :meth:`power_off`. After an error here, as after any other error of a
        rescue, the guest stays off and the instance is in error.
        """
        self.devicetrack.make_ready(instance, new_definition=True)
        return super().rescue(context, instance, *args, **kwargs)

    def _soft_reboot(self, instance: Any) -> bool:
        """Check the definition first: libvirt restarts the guest from its own definition, or the guest boots by itself.

        The check comes before the guest is told to shut down. A guest that may not start again keeps running. Nova then
        does not fall back to a hard reboot, because nobody asked for one.
        """
        host = self.devicetrack
        host.make_ready(instance)
        self._check_kept(instance, inactive=True)
        rebooted: bool = super()._soft_reboot(instance)
        if rebooted:
            host.rebooted(instance)
        return rebooted

    def _check_kept(self, instance: Any, inactive: bool) -> None:
        """Check that libvirt's definition of a guest has this boot's addresses, and names the guest's own devices.

        :param inactive: for a running guest, check the definition that it starts from next
        :raises InternalError: as :meth:`.binding.Binding.kept_definition`, or the definition is of an earlier boot
        """
        with contextlib.suppress(nova_exception.InstanceNotFound):     # Nova reports it itself, or makes the definition
            definition = self._host.get_guest(instance).get_xml_desc(dump_inactive=inactive)
            if self.devicetrack.kept_definition(instance, definition) != definition:
                raise nova_exception.InternalError('The definition of the guest is of an earlier boot of the host')

    def resume(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> Any:
        """Check the definition of a suspended guest: Nova does not make it anew, and the host may have booted since.

        The check comes before Nova begins, because Nova removes a guest that it cannot start, and its saved state with
        it. A guest that may not start stays suspended.
        """
        try:
            self.devicetrack.make_ready(instance)
            self._check_kept(instance, inactive=False)
        except nova_exception.InternalError as refused:
            raise nova_exception.InstanceFaultRollback(refused) from refused
        resumed = super().resume(context, instance, *args, **kwargs)
        self._attach_again(instance)                # Nova leaves out a device that libvirt does not find
        return resumed

    def suspend(self, context: Any, instance: Any) -> None:
        """Attach the mediated devices of a guest again if it cannot be saved: Nova has detached some or all by then."""
        with contextlib.ExitStack() as failed:
            failed.callback(self._attach_again, instance)
            super().suspend(context, instance)
            failed.pop_all()

    def _resume_guest_after_snapshot(self, context: Any, live_snapshot: bool, original_power_state: int, instance: Any,
                                     guest: Any) -> None:
        """Attach the mediated devices of a guest again after a cold snapshot, which suspended it.

        Nova attaches PCI devices there, and mediated devices only when a user resumes a guest.
        """
        super()._resume_guest_after_snapshot(context, live_snapshot, original_power_state, instance, guest)
        self._attach_again(instance)

    def _attach_again(self, instance: Any) -> None:
        """Attach those of an instance's mediated devices that its running guest lacks.

        The guest runs in any case, so an error is only logged; the audit reports what the guest lacks.
        """
        host = self.devicetrack
        if not host.has(instance.uuid):
            return
        try:
            guest = self._host.get_guest(instance)
            if not guest.is_active():
                return
            there = {one.uuid for one in guest.get_all_devices(nova_config.LibvirtConfigGuestHostdevMDEV)}
            for device in guests.mediated(host.guest_config(instance)):
                if device.mdev not in there:
                    guest.attach_device(device, live=True)
                    LOG.info('Attached mediated device %(device)s of instance %(instance)s again',
                             {'device': device.mdev, 'instance': instance.uuid})
        except (nova_exception.NovaException, nova_driver.libvirt.libvirtError) as error:
            LOG.error('The guest of instance %(instance)s runs without mediated devices that it has: %(error)s; a hard '
                      'reboot attaches them', {'instance': instance.uuid, 'error': error})

    def unrescue(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> Any:
        """Check the definition as :meth:`resume` does. It is in a file, and Nova first stops the guest.

        If the host has booted since, :meth:`_create_guest` corrects the paths when Nova passes the definition to it.
        """
        host = self.devicetrack
        host.make_ready(instance, new_definition=True)
        path = os.path.join(libvirt_utils.get_instance_path(instance), 'unrescue.xml')
        host.kept_definition(instance, libvirt_utils.load_file(path))
        return super().unrescue(context, instance, *args, **kwargs)

    # -- live migration -----------------------------------------------------------------------------------------------

    def check_can_live_migrate_destination(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> Any:
        host = self.devicetrack
        data = super().check_can_live_migrate_destination(context, instance, *args, **kwargs)
        with errors.as_failed_check(instance):
            if host.asked(instance):
                wire.put_question(data, host.manager.check_can_live_migrate_destination(Subject(instance)))
        return data

    def check_can_live_migrate_source(self, context: Any, instance: Any, dest_check_data: Any, *args: Any,
                                      **kwargs: Any) -> Any:
        host, check = self.devicetrack, None
        data = super().check_can_live_migrate_source(context, instance, dest_check_data, *args, **kwargs)
        with errors.as_failed_check(instance):
            if host.has(instance.uuid):
                # Nova does not switch a guest with devicetrack's devices to post-copy: see _get_vpmems() above.
                asked = wire.question(dest_check_data)
                check = host.manager.check_can_live_migrate_source(Subject(instance), asked)
                if check.devices and asked is None:
                    raise nova_exception.MigrationPreCheckError(
                        reason='The destination does not run devicetrack, or does not manage such devices, so it '
                               'may assign the devices of the guest to others; migrate to a host that does, or cold')
            else:
                host.check_asks_for_none(instance)
        host.may_leave(instance)
        if check is not None and check.devices:
            wire.put_answer(data, check, host.manager.assignments(instance.uuid))
        else:
            wire.take_away(data)
        return data

    def check_source_migrate_data_at_dest(self, ctxt: Any, instance: Any, migrate_data: Any, migration: Any,
                                          limits: Any, allocs: Any) -> Any:
        """Claim the guest's partner devices in the last check, unless it has them. Nova would only choose them."""
        host = self.devicetrack
        with errors.as_failed_check(instance):
            source = wire.source(migrate_data, instance)
            if not source.resources:
                wire.take_away(migrate_data)        # a source of an earlier release answers for every guest
                # Without a claim, this host would hold the guest's next start until an earlier device of it has gone
                # back.
                if host.manager.assignments(instance.uuid) and not host.has(instance.uuid):
                    tracker.claim_for_live_migration(host, ctxt, instance, host.nodename, migration, allocs, source)
                return migrate_data
            if not any(one.migration_uuid == migration.uuid for one in host.manager.assignments(instance.uuid)):
                tracker.claim_for_live_migration(host, ctxt, instance, host.nodename, migration, allocs, source)
            host.manager.realize(ctxt, Subject(instance))
            wire.put_map(migrate_data, host.manager.device_map(Subject(instance), migration))
        return migrate_data

    def pre_live_migration(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> Any:
        """Check at the destination, last before the copy, that the guest's partners are still its own.

        The check comes after Nova's own work, which may take long, and where Nova undoes that work after an error.
        """
        host = self.devicetrack
        data = super().pre_live_migration(context, instance, *args, **kwargs)
        with errors.as_failure(instance):
            partners = wire.device_map(data)
            if partners is not None:
                host.check_claimed(instance, partners)
        return data

    def _live_migration_operation(self, context: Any, instance: Any, dest: Any, block_migration: Any,
                                  migrate_data: Any, guest: Any, device_names: Any) -> Any:
        """Send the guest's definition with the destination's devices."""
        host = self.devicetrack
        # The check was long ago if the migration had to wait. Meanwhile an operator may have reset the instance's
        # state, and have rebooted it.
        host.may_leave(instance)
        with errors.as_failure(instance):
            partners = wire.device_map(migrate_data)
            if partners is None and host.has(instance.uuid):
                raise exception.BadRequest('migrate_data.target_mdevs', None, 'the destination named no devices')
        if partners is not None:
            migration, named = migrate_data.migration, partners

            def define(definition: str) -> str:
                with errors.as_failure(instance):
                    text: str = host.manager.migration_definitions(None, Subject(instance), migration, named,
                                                                   definition=definition).live
                    return text

            # Let Nova replace everything except our devices, which it would replace by their position.
            migrate_data, guest = wire.without_devices(migrate_data), LeavingGuest(guest._domain, define)
        return super()._live_migration_operation(context, instance, dest, block_migration, migrate_data, guest,
                                                 device_names)
