"""Wrappers for Nova's libvirt driver: devices in guests' definitions, starts of guests, and live migration."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import contextvars
import inspect
import os
from typing import Any
from typing import Final

from nova import exception as nova_exception
from nova.virt.libvirt import driver as nova_driver
from nova.virt.libvirt import utils as libvirt_utils

from devicetrack import exception
from devicetrack.nova import binding
from devicetrack.nova import errors
from devicetrack.nova import guest as guests
from devicetrack.nova import tracker
from devicetrack.nova import wire
from devicetrack.nova.subject import Subject
from devicetrack.nova.wrapping import wraps

_DRIVER: Final = 'nova.virt.libvirt.driver:LibvirtDriver.'
_MDEV: Final = 'mdev'

# The driver that carries out the live migration of the running thread.
_MIGRATING: contextvars.ContextVar[Any] = contextvars.ContextVar('devicetrack_migrating', default=None)


# -- what Nova reports -------------------------------------------------------------------------------------------------


@wraps(f'{_DRIVER}update_provider_tree')
def update_provider_tree(original: Callable[..., Any], driver: Any, provider_tree: Any, nodename: str,
                         allocations: Any = None) -> None:
    host = binding.of(driver)
    original(driver, provider_tree, nodename, allocations=allocations)
    host.providers.mark(provider_tree, host.reported())


@wraps(f'{_DRIVER}_get_mediated_devices')
def mediated_devices(original: Callable[..., Any], driver: Any, types: Any = None) -> list[Any]:
    """Read the host's mediated devices again if one goes between Nova's list and its look-up of each of them.

    Nova alone removes none, and lets libvirt's error end a delete, a confirmation or a boot of another instance.
    """
    listed: set[str] | None = None
    while True:
        try:
            found: list[Any] = original(driver, types)
            return found
        except nova_driver.libvirt.libvirtError as error:
            if error.get_error_code() != nova_driver.libvirt.VIR_ERR_NO_NODE_DEVICE:
                raise
            before, listed = listed, set(driver._host.list_mediated_devices())
            if listed == before:                # none has gone since the last error: libvirt contradicts itself
                raise


# -- Nova's own choices and wipes, which do nothing -------------------------------------------------------------------


@wraps(f'{_DRIVER}_allocate_mdevs')
@wraps(f'{_DRIVER}_get_ordered_vpmems')
def choose_none(original: Callable[..., Any], driver: Any, *args: Any, **kwargs: Any) -> list[Any]:
    """Choose none: the definition gets the devices of the instance's claim (:func:`guest_config`)."""
    binding.of(driver)
    return []


@wraps(f'{_DRIVER}_get_all_assigned_mediated_devices')
def assigned_mediated_devices(original: Callable[..., Any], driver: Any, instance: Any = None) -> dict[str, str]:
    """Return the devices that definitions name, and those that are claimed for an instance but in no definition yet."""
    claimed = {held.identifier: held.instance_uuid for held in _mediated_devices(driver)
               if not held.releasing and (instance is None or held.instance_uuid == instance.uuid)}
    return {**original(driver, instance), **claimed}


@wraps(f'{_DRIVER}_get_vpmems')
def vpmems(original: Callable[..., Any], driver: Any, instance: Any, prefix: str | None = None) -> list[Any]:
    """Return the namespaces of an instance here. Nova asks to decide on post-copy, and to wipe, which it never does."""
    return list(binding.of(driver).manager.held(instance.uuid))


@wraps(f'{_DRIVER}_cleanup_vpmems')
def cleanup_vpmems(original: Callable[..., Any], driver: Any, found: Any) -> None:
    """Wipe nothing: the manager wipes devices that are given back, after Nova destroyed the guest (:mod:`.compute`)."""
    binding.of(driver)


def _mediated_devices(driver: Any) -> list[Any]:
    """Return the host's mediated devices that instances have, including those that are being released."""
    return [held for held in binding.of(driver).manager.held() if held.kind == _MDEV]


# -- guests -----------------------------------------------------------------------------------------------------------


@wraps(f'{_DRIVER}_get_guest_config')
def guest_config(original: Callable[..., Any], driver: Any, instance: Any, *args: Any, **kwargs: Any) -> Any:
    """Add devices to every definition that Nova makes: for a boot, a reboot, a rescue, and the ends of moves."""
    host = binding.of(driver)
    call = inspect.signature(original).bind(driver, instance, *args, **kwargs)
    # Nova remembers the mediated devices of a guest by its definition. Nova itself adds those that are not ours, such
    # as an accelerator's.
    ours = {held.identifier for held in _mediated_devices(driver)}
    call.arguments['mdevs'] = [uuid for uuid in call.arguments.get('mdevs') or () if uuid not in ours]
    made = original(*call.args, **call.kwargs)
    guests.equip(made, host.guest_config(instance))
    return made


@wraps(f'{_DRIVER}_create_guest')
def create_guest(original: Callable[..., Any], driver: Any, context: Any, xml: str, instance: Any, *args: Any,
                 **kwargs: Any) -> Any:
    """Check the definition of every guest that Nova starts, or defines without starting it."""
    host = binding.of(driver)
    definition = host.definition_of_this_boot(instance, xml)
    created = original(driver, context, definition, instance, *args, **kwargs)
    host.started(context, instance)
    return created


@wraps(f'{_DRIVER}power_off')
def power_off(original: Callable[..., Any], driver: Any, instance: Any, *args: Any, **kwargs: Any) -> None:
    """Note first that the guest runs here. While it is off, nothing else says that it has not left."""
    with binding.of(driver).stopping(instance):
        original(driver, instance, *args, **kwargs)


@wraps(f'{_DRIVER}_hard_reboot')
@wraps(f'{_DRIVER}rescue')
def make_ready_first(original: Callable[..., Any], driver: Any, context: Any, instance: Any, *args: Any,
                     **kwargs: Any) -> Any:
    """Make the devices ready first: a hard reboot destroys the guest, and must not if it cannot start again.

    Without a domain, a rescue would make one here. Nova has stopped the guest by then, by :func:`power_off`. After an
    error here, as after any other error of a rescue, the guest stays off and the instance is in error.
    """
    binding.of(driver).make_ready(instance, new_definition=True)
    return original(driver, context, instance, *args, **kwargs)


@wraps(f'{_DRIVER}_soft_reboot')
def soft_reboot(original: Callable[..., Any], driver: Any, instance: Any) -> bool:
    """Check the definition first: libvirt restarts the guest from its own definition, or the guest boots by itself.

    The check comes before the guest is told to shut down. A guest that may not start again keeps running. Nova then
    does not fall back to a hard reboot, because nobody asked for one.
    """
    host = binding.of(driver)
    host.make_ready(instance)
    _check_kept(host, driver, instance, inactive=True)
    rebooted: bool = original(driver, instance)
    if rebooted:
        host.rebooted(instance)
    return rebooted


def _check_kept(host: binding.Binding, driver: Any, instance: Any, inactive: bool) -> None:
    """Check that libvirt's definition of a guest names the guest's own devices. It already has this boot's addresses.

    :param inactive: for a running guest, check the definition that it starts from next
    :raises InternalError: as :meth:`.binding.Binding.check_definition`
    """
    with contextlib.suppress(nova_exception.InstanceNotFound):      # Nova reports it itself, or makes the definition
        host.check_definition(instance, driver._host.get_guest(instance).get_xml_desc(dump_inactive=inactive))


@wraps(f'{_DRIVER}resume')
def resume(original: Callable[..., Any], driver: Any, context: Any, instance: Any, *args: Any, **kwargs: Any) -> Any:
    """Check the definition of a suspended guest: Nova does not make it anew, and the host may have booted since.

    The check comes before Nova begins, because Nova removes a guest that it cannot start, and its saved state with it.
    A guest that may not start stays suspended.
    """
    host = binding.of(driver)
    try:
        host.make_ready(instance)
        _check_kept(host, driver, instance, inactive=False)
    except nova_exception.InternalError as refused:
        raise nova_exception.InstanceFaultRollback(refused) from refused
    return original(driver, context, instance, *args, **kwargs)


@wraps(f'{_DRIVER}unrescue')
def unrescue(original: Callable[..., Any], driver: Any, context: Any, instance: Any, *args: Any, **kwargs: Any) -> Any:
    """Check the definition as :func:`resume` does. It is in a file, and Nova first stops the guest.

    If the host has booted since, :func:`create_guest` corrects the paths when Nova passes the definition to it.
    """
    host = binding.of(driver)
    host.make_ready(instance, new_definition=True)
    path = os.path.join(libvirt_utils.get_instance_path(instance), 'unrescue.xml')
    host.definition_of_this_boot(instance, libvirt_utils.load_file(path))
    return original(driver, context, instance, *args, **kwargs)


# -- live migration ---------------------------------------------------------------------------------------------------


@wraps(f'{_DRIVER}check_can_live_migrate_destination')
def check_at_destination(original: Callable[..., Any], driver: Any, context: Any, instance: Any, *args: Any,
                         **kwargs: Any) -> Any:
    host = binding.of(driver)
    data = original(driver, context, instance, *args, **kwargs)
    with errors.as_failed_check(instance):
        if host.asked(instance):
            wire.put_question(data, host.manager.check_can_live_migrate_destination(Subject(instance)))
    return data


@wraps(f'{_DRIVER}check_can_live_migrate_source')
def check_at_source(original: Callable[..., Any], driver: Any, context: Any, instance: Any, dest_check_data: Any,
                    *args: Any, **kwargs: Any) -> Any:
    host = binding.of(driver)
    check = None
    with errors.as_failed_check(instance):
        if host.has(instance.uuid):
            # Nova does not switch a guest with devicetrack's devices to post-copy: see vpmems() above.
            asked = wire.question(dest_check_data)
            check = host.manager.check_can_live_migrate_source(Subject(instance), asked)
            if check.devices and asked is None:
                raise nova_exception.MigrationPreCheckError(
                    reason='The destination does not run devicetrack, or counts no such devices, and would give the '
                           'devices of the guest to others too; migrate to a host that does, or cold')
        else:
            host.check_asks_for_none(instance)
    data = original(driver, context, instance, dest_check_data, *args, **kwargs)
    host.may_leave(instance)
    if check is not None and check.devices:
        wire.put_answer(data, check, host.manager.resources_of(instance.uuid))
    else:
        wire.take_away(data)
    return data


@wraps(f'{_DRIVER}check_source_migrate_data_at_dest')
def claim_at_destination(original: Callable[..., Any], driver: Any, context: Any, instance: Any, migrate_data: Any,
                         migration: Any, limits: Any, allocs: Any) -> Any:
    """Claim the guest's partner devices in the last check, unless it has them. Nova's own method only chooses them."""
    host = binding.of(driver)
    with errors.as_failed_check(instance):
        source = wire.source(migrate_data, instance)
        if not source.resources:
            wire.take_away(migrate_data)        # a source of an earlier release answers for every guest
            # Without a claim, this host would hold the guest's next start until an earlier device of it has gone back.
            if host.manager.held(instance.uuid) and not host.has(instance.uuid):
                tracker.claim_for_live_migration(host, context, instance, host.nodename, migration, allocs, source)
            return migrate_data
        if not any(one.migration_uuid == migration.uuid for one in host.manager.resources_of(instance.uuid)):
            tracker.claim_for_live_migration(host, context, instance, host.nodename, migration, allocs, source)
        host.manager.realize(context, Subject(instance))
        wire.put_map(migrate_data, host.manager.device_map(Subject(instance), migration))
    return migrate_data


@wraps(f'{_DRIVER}pre_live_migration')
def pre_live_migration(original: Callable[..., Any], driver: Any, context: Any, instance: Any, *args: Any,
                       **kwargs: Any) -> Any:
    """Check at the destination, last before the copy, that the guest's partners are still its own.

    The check comes after Nova's own work, which may take long, and where Nova undoes that work after an error.
    """
    host = binding.of(driver)
    data = original(driver, context, instance, *args, **kwargs)
    with errors.as_failure(instance):
        partners = wire.device_map(data)
        if partners is not None:
            host.check_claimed(instance, partners)
    return data


@wraps(f'{_DRIVER}_live_migration_operation')
def live_migration_operation(original: Callable[..., Any], driver: Any, context: Any, instance: Any, *args: Any,
                             **kwargs: Any) -> Any:
    # The check was long ago if the migration had to wait. Meanwhile an operator may have reset the instance's state,
    # and have rebooted it.
    binding.of(driver).may_leave(instance)
    token = _MIGRATING.set(driver)
    try:
        return original(driver, context, instance, *args, **kwargs)
    finally:
        _MIGRATING.reset(token)


@wraps('nova.virt.libvirt.migration:get_updated_guest_xml')
def updated_guest_xml(original: Callable[..., Any], instance: Any, guest: Any, migrate_data: Any, *args: Any,
                      **kwargs: Any) -> Any:
    """Return the guest's definition for the destination, with the destination's devices."""
    host = binding.of(_MIGRATING.get())
    with errors.as_failure(instance):
        partners = wire.device_map(migrate_data)
        if partners is None:
            if host.has(instance.uuid):
                raise exception.BadRequest('migrate_data.target_mdevs', None, 'the destination named no devices')
            return original(instance, guest, migrate_data, *args, **kwargs)
        # Let Nova replace everything except our devices, which it would replace by their position.
        kwargs['new_resources'] = None
        definition = original(instance, guest, wire.without_devices(migrate_data), *args, **kwargs)
        return host.manager.migration_definitions(None, Subject(instance), migrate_data.migration, partners,
                                                  definition=definition).live
