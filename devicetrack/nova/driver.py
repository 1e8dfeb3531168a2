"""Nova's libvirt driver: devices in guests' definitions, what starts a guest, and live migration."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import contextvars
import inspect
import os
from typing import Any
from typing import Final

from nova import exception as nova_exception
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

# The driver of the live migration that a thread runs.
_MIGRATING: contextvars.ContextVar[Any] = contextvars.ContextVar('devicetrack_migrating', default=None)


# -- start ------------------------------------------------------------------------------------------------------------


def starts(settings: binding.Settings) -> Callable[..., None]:
    """Make the wrapper of ``init_host``: the manager starts before Nova looks at any guest."""
    def init_host(original: Callable[..., Any], driver: Any, host: str) -> None:
        original(driver, host)
        binding.start(driver, host, settings)
    return init_host


INIT_HOST: Final = f'{_DRIVER}init_host'


@wraps(f'{_DRIVER}update_provider_tree')
def update_provider_tree(original: Callable[..., Any], driver: Any, provider_tree: Any, nodename: str,
                         allocations: Any = None) -> None:
    host = binding.of(driver)
    original(driver, provider_tree, nodename, allocations=allocations)
    host.providers.mark(provider_tree, host.reported())


# -- Nova chooses and wipes nothing -----------------------------------------------------------------------------------


@wraps(f'{_DRIVER}_allocate_mdevs')
def allocate_mdevs(original: Callable[..., Any], driver: Any, allocations: Any) -> list[str]:
    """None: the definition gets those of the instance's claim, below."""
    binding.of(driver)
    return []


@wraps(f'{_DRIVER}_get_all_assigned_mediated_devices')
def assigned_mediated_devices(original: Callable[..., Any], driver: Any, instance: Any = None) -> dict[str, str]:
    """Those that definitions name, and those that are claimed for an instance and in no definition yet."""
    claimed = {held.identifier: held.instance_uuid for held in _mediated_devices(driver)
               if not held.releasing and (instance is None or held.instance_uuid == instance.uuid)}
    return {**original(driver, instance), **claimed}


@wraps(f'{_DRIVER}_get_ordered_vpmems')
def ordered_vpmems(original: Callable[..., Any], driver: Any, instance: Any, flavor: Any) -> list[Any]:
    """None, as above."""
    binding.of(driver)
    return []


@wraps(f'{_DRIVER}_get_vpmems')
def vpmems(original: Callable[..., Any], driver: Any, instance: Any, prefix: str | None = None) -> list[Any]:
    """Whatever the instance has here: Nova asks whether post-copy is allowed, and what to wipe, which it never is."""
    return list(binding.of(driver).manager.held(instance.uuid))


@wraps(f'{_DRIVER}_cleanup_vpmems')
def cleanup_vpmems(original: Callable[..., Any], driver: Any, found: Any) -> None:
    """Wiped is what goes back, after Nova has destroyed the guest: :mod:`.compute`."""
    binding.of(driver)


def _mediated_devices(driver: Any) -> list[Any]:
    """What instances have of the host's mediated devices, also what is on its way back."""
    return [held for held in binding.of(driver).manager.held() if held.kind == _MDEV]


# -- guests -----------------------------------------------------------------------------------------------------------


@wraps(f'{_DRIVER}_get_guest_config')
def guest_config(original: Callable[..., Any], driver: Any, instance: Any, *args: Any, **kwargs: Any) -> Any:
    """Every definition that Nova makes: for a boot, a reboot, a rescue, and the ends of moves."""
    host = binding.of(driver)
    call = inspect.signature(original).bind(driver, instance, *args, **kwargs)
    # Nova remembers the mediated devices of a guest by its definition. Those that are not ours, such as an
    # accelerator's, it adds itself.
    ours = {held.identifier for held in _mediated_devices(driver)}
    call.arguments['mdevs'] = [uuid for uuid in call.arguments.get('mdevs') or () if uuid not in ours]
    made = original(*call.args, **call.kwargs)
    guests.equip(made, host.guest_config(instance))
    return made


@wraps(f'{_DRIVER}_create_guest')
def create_guest(original: Callable[..., Any], driver: Any, context: Any, xml: str, instance: Any, *args: Any,
                 **kwargs: Any) -> Any:
    """Every guest that Nova starts, or defines without starting it."""
    host = binding.of(driver)
    definition = host.definition_of_this_boot(instance, xml)
    created = original(driver, context, definition, instance, *args, **kwargs)
    host.started(context, instance)
    return created


@wraps(f'{_DRIVER}_hard_reboot')
def hard_reboot(original: Callable[..., Any], driver: Any, context: Any, instance: Any, *args: Any,
                **kwargs: Any) -> Any:
    """It destroys the guest first, which must not be if the guest cannot be started again."""
    binding.of(driver).make_ready(instance)
    return original(driver, context, instance, *args, **kwargs)


@wraps(f'{_DRIVER}_soft_reboot')
def soft_reboot(original: Callable[..., Any], driver: Any, instance: Any) -> bool:
    """The guest shuts down, and libvirt starts it again from the definition that it has; or it boots by itself.

    The definition is compared before the guest is told to shut down. One that may not start again runs on, and Nova
    reboots it neither softly nor hard: nobody asked for that.
    """
    host = binding.of(driver)
    host.make_ready(instance)
    _check_kept(host, driver, instance, inactive=True)
    rebooted: bool = original(driver, instance)
    if rebooted:
        host.rebooted(instance)
    return rebooted


def _check_kept(host: binding.Binding, driver: Any, instance: Any, inactive: bool) -> None:
    """See that the definition that libvirt has of a guest names its own devices. It has been brought to this boot.

    :param inactive: of a guest that runs, the one that it starts from next
    :raises InternalError: as :meth:`.binding.Binding.check_definition`
    """
    with contextlib.suppress(nova_exception.InstanceNotFound):      # Nova says so itself, or makes the definition
        host.check_definition(instance, driver._host.get_guest(instance).get_xml_desc(dump_inactive=inactive))


@wraps(f'{_DRIVER}resume')
def resume(original: Callable[..., Any], driver: Any, context: Any, instance: Any, *args: Any, **kwargs: Any) -> Any:
    """From a definition that Nova does not make anew, perhaps after a boot of the host.

    It is compared before Nova begins, who removes a guest that it cannot start, with what was saved of it. One that may
    not start stays suspended.
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
    """As above. The definition is in a file, and Nova stops the guest before it tries to start it from there.

    What the host's boot changed of the paths in it is mended when Nova hands it to ``_create_guest``.
    """
    host = binding.of(driver)
    host.make_ready(instance)
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
        wire.put_question(data, host.manager.check_can_live_migrate_destination(Subject(instance)))
    return data


@wraps(f'{_DRIVER}check_can_live_migrate_source')
def check_at_source(original: Callable[..., Any], driver: Any, context: Any, instance: Any, dest_check_data: Any,
                    *args: Any, **kwargs: Any) -> Any:
    host = binding.of(driver)
    with errors.as_failed_check(instance):
        asked = wire.question(dest_check_data)
    if asked is None and host.manager.held(instance.uuid):
        raise nova_exception.MigrationPreCheckError(
            reason='The destination does not run devicetrack, and would give the devices of the guest to others too; '
                   'migrate to a host that does, or cold')
    data = original(driver, context, instance, dest_check_data, *args, **kwargs)
    if asked is not None:
        with errors.as_failed_check(instance):
            # Nova does not switch a guest with devices of ours to post-copy: see vpmems() above.
            check = host.manager.check_can_live_migrate_source(Subject(instance), asked)
            wire.put_answer(data, check, host.manager.resources_of(instance.uuid))
    return data


@wraps(f'{_DRIVER}check_source_migrate_data_at_dest')
def claim_at_destination(original: Callable[..., Any], driver: Any, context: Any, instance: Any, migrate_data: Any,
                         migration: Any, limits: Any, allocs: Any) -> Any:
    """The last check: the guest has its partners, or gets them here. Nova's own does nothing but choose them."""
    host = binding.of(driver)
    with errors.as_failed_check(instance):
        source = wire.source(migrate_data, instance)
        if not source.resources:
            return migrate_data
        if not any(one.migration_uuid == migration.uuid for one in host.manager.resources_of(instance.uuid)):
            tracker.claim_for_live_migration(host, context, instance, host.nodename, migration, allocs, source)
        host.manager.realize(context, Subject(instance))
        wire.put_map(migrate_data, host.manager.device_map(Subject(instance), migration))
    return migrate_data


@wraps(f'{_DRIVER}_live_migration_operation')
def live_migration_operation(original: Callable[..., Any], driver: Any, *args: Any, **kwargs: Any) -> Any:
    binding.of(driver)
    token = _MIGRATING.set(driver)
    try:
        return original(driver, *args, **kwargs)
    finally:
        _MIGRATING.reset(token)


@wraps('nova.virt.libvirt.migration:get_updated_guest_xml')
def updated_guest_xml(original: Callable[..., Any], instance: Any, guest: Any, migrate_data: Any, *args: Any,
                      **kwargs: Any) -> Any:
    """The guest's definition for the destination, with the destination's devices."""
    host = binding.of(_MIGRATING.get())
    with errors.as_failure(instance):
        partners = wire.device_map(migrate_data)
        if partners is None:
            if host.manager.held(instance.uuid):
                raise exception.BadRequest('migrate_data.target_mdevs', None, 'the destination named no devices')
            return original(instance, guest, migrate_data, *args, **kwargs)
        # Nova replaces everything but our devices: it would do that by their position.
        kwargs['new_resources'] = None
        definition = original(instance, guest, wire.without_devices(migrate_data), *args, **kwargs)
        return host.manager.migration_definitions(None, Subject(instance), migrate_data.migration, partners,
                                                  definition=definition).live
