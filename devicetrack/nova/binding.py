"""One compute host of Nova and its claim manager."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import functools
from typing import Any
from typing import Final

from keystoneauth1 import exceptions as keystone
import libvirt
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
import nova.conf
from nova.virt import driver as virt_driver
from nova.virt.libvirt import driver as nova_driver
import oslo_messaging

import devicetrack
from devicetrack import exception
from devicetrack import log
from devicetrack import metrics
from devicetrack import vocabulary
from devicetrack.claims.claim import Claim
from devicetrack.claims.manager import ClaimManager
from devicetrack.conf import libvirt as libvirt_options
from devicetrack.conf import manager as options
from devicetrack.conf import nova as adapter_options
from devicetrack.nova import errors
from devicetrack.nova import interrupted
from devicetrack.nova import options as nova_options
from devicetrack.nova import pci_cleaning
from devicetrack.nova import pci_functions
from devicetrack.nova import providers
from devicetrack.nova import resources
from devicetrack.nova import service
from devicetrack.nova.subject import NamedSubjects
from devicetrack.nova.subject import Subject
from devicetrack.objects import DeviceMap
from devicetrack.objects import Provider
from devicetrack.objects.values import GuestConfig
from devicetrack.objects.values import Usage

LOG = log.logger(__name__)

_NAMESPACE: Final = 'vpmem'


def connect(driver: Any) -> Any:
    """Open a separate connection to the libvirt that Nova's driver works with."""
    return libvirt.open(driver._uri())


def state_path(_host: str) -> str:
    """Return the state directory of a host: that of the option, since a process of Nova has one host."""
    options.register(nova.conf.CONF)
    path: str = nova.conf.CONF[options.GROUP].state_path
    return path


class Binding:
    """A claim manager and the host of Nova that it works for.

    :param driver: Nova's driver of the host, which knows the name of its node
    :param tracker: Nova's resource tracker of the host
    """

    def __init__(self, driver: Any, tracker: Any) -> None:
        nova_options.check(nova.conf.CONF)
        if (ignored := nova_options.ignored(nova.conf.CONF)) is not None:
            LOG.warning('%s', ignored)
        adapter_options.register(nova.conf.CONF)
        self._driver, self._tracker = driver, tracker
        host = self.host = tracker.host
        self.nodename = driver._host.get_hostname()
        self.providers = providers.NovaProviders(driver, self.nodename)
        self._service = service.NovaService(host, lambda: self.pci)
        self._reported: list[Provider] = []
        # The guests that were here when Nova was about to stop, undefine or start them. Until they run again, libvirt
        # has no domain of such a guest or one that is off, although the guest is not elsewhere.
        self._seen: set[str] = set()
        self._state_path = path = state_path(host)
        options.register(nova.conf.CONF)
        self.manager = ClaimManager(
            host, devicetrack.load_driver(nova.conf.CONF, host, lambda: connect(driver), path),
            devicetrack.open_store(nova.conf.CONF, path), nova.conf.CONF, self._service, self.providers, self.nodename,
            instance_fields=NamedSubjects() if nova.conf.CONF[options.GROUP].instance_names else None,
            after_wipe=self.report_changes)
        self._counting = contextlib.ExitStack()
        if nova.conf.CONF[options.GROUP].metrics:
            self._counting.callback(metrics.register(self.manager).unregister)

    def start(self) -> None:
        """Start the manager. Any error from it keeps the compute service from starting."""
        # Before the host is taken, a service of an older release may still run here, and use the older schema.
        self.manager.init_host(nova_context.get_admin_context(), prepare=lambda: devicetrack.sync_store(
            nova.conf.CONF, self._state_path))
        LOG.info('Devices of host %s: devicetrack decides who gets them', self.host)

    def close(self) -> None:
        self._counting.close()
        self.manager.close()

    def source(self) -> interrupted.SourceHost:
        """Return the host as the source of moves that were interrupted. Its domains are read when it is asked."""
        usage = functools.cache(self._usage)

        def runs(instance_uuid: str) -> bool | None:
            found = interrupted.runs(usage(), instance_uuid)
            return None if found and self._may_be_leaving(instance_uuid) else found

        return interrupted.SourceHost(self.host, self.providers.node_uuid,
                                      {one.instance_uuid for one in self.manager.assignments()}, runs,
                                      self.manager.state().classes)

    def _usage(self) -> Usage | None:
        try:
            return self.manager.usage()
        except exception.DeviceTrackError as error:
            LOG.warning('The domains of host %(host)s could not be read: %(error)s',
                        {'host': self.host, 'error': error})
            return None

    def _may_be_leaving(self, instance_uuid: str) -> bool:
        """Whether libvirt may be copying a guest, or works on it in another way, whatever its migration's status is."""
        try:
            domain = self._driver._host.get_connection().lookupByUUIDString(instance_uuid)
            return bool(domain.jobInfo()[0] != libvirt.VIR_DOMAIN_JOB_NONE)
        except nova_driver.libvirt.libvirtError:
            return True

    def record_paths(self) -> None:
        """Have Nova's record name the paths of this boot, for the instances that have rows.

        For other instances only Nova's record says which namespaces the paths in their definitions were, and adoption
        asks it. If Nova does not answer, the next start tries again.
        """
        has = {one.instance_uuid for one in self.manager.assignments() if one.kind == _NAMESPACE}
        try:
            # What Nova's driver found when it started is what Nova alone would compare with the record.
            service.record_paths(self.host, has, {
                name: found.devpath for name, found in self._driver._vpmems_by_name.items()})
        except (nova_exception.NovaException, oslo_messaging.MessagingException) as error:
            LOG.warning("Host %(host)s: the paths in Nova's record of namespaces may be those of an earlier boot: "
                        '%(error)s; the next start of the service tries again', {'host': self.host, 'error': error})

    @property
    def pci(self) -> pci_functions.PCIFunctions | None:
        """The functions that Nova hands out itself; None before it has read them, or if no option asks for them."""
        if nova.conf.CONF[adapter_options.GROUP].pci == adapter_options.OFF or self._tracker.pci_tracker is None:
            return None
        return pci_functions.PCIFunctions(self._tracker, self.nodename)

    def audit(self, nodename: str) -> None:
        """Audit the host after Nova. After a failed audit nothing is given back until the next one succeeds."""
        try:
            self.manager.update_available_resource(None, nodename)
        except exception.DeviceTrackError as error:
            LOG.error('The audit of the devices of host %(host)s failed: %(error)s',
                      {'host': self.host, 'error': error})
        if self.pci is not None and nova.conf.CONF[adapter_options.GROUP].pci == adapter_options.CLEAN:
            with contextlib.suppress(exception.DeviceTrackError):       # as the audit, which logged it
                self.manager.look_after(pci_cleaning.NovaDevices(self._tracker, self.pci))

    @contextlib.contextmanager
    def noting_functions(self, instance: Any) -> Iterator[None]:
        """Note which PCI functions Nova claims for an instance in the block, so that they are cleaned after it.

        Nova may have reserved one in placement before its claim fails. An error of the note is left to the audit: it
        notes those that the instance still has then.
        """
        try:
            yield
        finally:
            if self.pci is not None and nova.conf.CONF[adapter_options.GROUP].pci == adapter_options.CLEAN:
                with errors.left_to_the_audit(instance, 'The note of the PCI functions'):
                    if given := pci_cleaning.given_to(instance.uuid, self.pci):
                        self.manager.note_given(given)

    def reported(self) -> list[Provider]:
        """Return the providers of the host for Nova's report, which is made under Nova's lock, so this reads nothing.

        If an interrupt left the manager without its ledger, this returns the last answer. The audit that follows the
        report rebuilds the ledger.
        """
        with contextlib.suppress(exception.StartIsOver):
            self._reported = self.manager.providers(wait=False)
        return self._reported

    def report_changes(self) -> None:
        """Report the host if anything of it has changed since the last report. Call it outside of Nova's lock.

        Otherwise a device stays reserved until Nova's next audit after it is clean. An error is left to that audit.
        """
        try:
            if _primitives(self.manager.providers(wait=False)) != _primitives(self._reported):
                self._tracker.report(nova_context.get_admin_context(), self.nodename)
        except (exception.NotReady, exception.StartIsOver):
            pass                                # the service stops, or the next audit starts the host anew
        except (exception.DeviceTrackError, nova_exception.NovaException, keystone.ClientException,
                oslo_messaging.MessagingException) as error:
            LOG.warning("Host %(host)s: what has changed is reported by Nova's next audit: %(error)s",
                        {'host': self.host, 'error': error})

    @staticmethod
    def mdev_classes() -> dict[str, str]:
        """Return the resource class of each type of mediated devices that this host makes."""
        conf = nova.conf.CONF
        return {name: conf[libvirt_options.mdev_group(name)].mdev_class
                for name in map(str.strip, conf[libvirt_options.DEVICES_GROUP].enabled_mdev_types)}

    def narrow(self, context: Any, claim: Claim, instance: Any, numa_topology: Any) -> bool:
        """Exchange claimed devices for ones near the NUMA nodes that Nova chose.

        PCI functions are as near as the flavor, image or alias demands; other devices are near if any near one is free.

        :returns: whether the claim has other devices now
        """
        if numa_topology is None or not claim.resources:
            return False
        before = claim.resources
        with errors.as_unavailable(instance):
            self.manager.narrow_claim(context, claim, {cell.id for cell in numa_topology.cells}, None)
        return claim.resources is not before

    def make_ready(self, instance: Any, new_definition: bool = False) -> None:
        """Make the devices of an instance ready, before Nova takes its guest apart or starts it.

        :param new_definition: Nova starts the guest from another definition than the one that libvirt has now, so that
            one does not matter, even if it is of an earlier boot and nobody knows what its paths meant
        :raises InternalError: they cannot be made ready, or the record has none although the flavor asks for some, or
            the guest may run on another host, or that is unknown
        """
        self._check_not_left(instance)
        self._make_ready(instance, new_definition)

    def _make_ready(self, instance: Any, new_definition: bool) -> None:
        with errors.as_failure(instance):
            if not self.manager.realize(None, Subject(instance), new_definition):
                self.check_asks_for_none(instance)

    def guest_config(self, instance: Any) -> GuestConfig:
        """Return the elements for the guest's definition.

        :raises InternalError: they cannot be made ready, or the record has none although the flavor asks for some
        """
        self._make_ready(instance, new_definition=True)
        with errors.as_failure(instance):
            return self.manager.guest_config(Subject(instance))

    def kept_definition(self, instance: Any, definition: str) -> str:
        """Return the definition to start a guest from, given one that Nova made, or kept across a boot of the host.

        :returns: the definition with the paths of this boot; it names the guest's own devices and no others
        :raises InternalError: it would name others, or that is unknown
        """
        with errors.as_failure(instance):
            return self.manager.kept_definition(Subject(instance), definition)

    def has(self, instance_uuid: str) -> bool:
        """Whether an instance has devices here, beside those that are being released."""
        return any(one.state != vocabulary.RELEASING for one in self.manager.assignments(instance_uuid))

    def check_claimed(self, instance: Any, partners: DeviceMap) -> None:
        """Check that the migration of a device map still has the devices of this host that the map names.

        :raises InstanceNotClaimed: it has not
        :raises HostTakenOver: another manager of this host has started, and may have given them back
        :raises StoreError: no answer
        """
        self.manager.store.check_epoch()
        has = {(one.kind, one.identifier) for one in self.manager.assignments(instance.uuid)
               if one.migration_uuid == partners.migration_uuid and one.state == vocabulary.CLAIMED}
        for pair in partners.pairs:
            if (pair.kind, pair.destination) not in has:
                raise exception.InstanceNotClaimed(
                    instance.uuid, f'the owner of {pair.kind}/{pair.destination} by migration '
                                   f'{partners.migration_uuid}')

    def _check_not_left(self, instance: Any) -> None:
        """Refuse to start a second copy of a guest that left by a live migration, and Nova does not know that it did.

        :raises InternalError: the guest may run on another host, or that is unknown
        """
        if not self.has(instance.uuid):
            return
        if self._is_here(instance):
            self._seen.add(instance.uuid)
        elif instance.uuid not in self._seen:
            self._check_stayed(instance)

    def _is_here(self, instance: Any) -> bool:
        """Whether the guest runs here, or its saved state is here.

        A definition alone proves nothing: libvirt still has the one of a guest that left if the host lost its power at
        that moment.
        """
        try:
            guest = self._driver._host.get_guest(instance)
            return bool(guest.is_active() or guest._domain.hasManagedSaveImage(0))
        except (nova_exception.InstanceNotFound, nova_driver.libvirt.libvirtError):
            return False

    @contextlib.contextmanager
    def stopping(self, instance: Any) -> Iterator[None]:
        """Note that a guest runs here which Nova stops: while it is off, nothing else says that it has not left.

        If a copy of it ends at that moment, libvirt undefines it here. Then it may have left, and is not noted.
        """
        here = self.has(instance.uuid) and self._is_here(instance)
        yield
        if here and self._has_domain(instance):
            self._seen.add(instance.uuid)

    def _has_domain(self, instance: Any) -> bool:
        with contextlib.suppress(nova_exception.NovaException):
            self._driver._host.get_guest(instance)
            return True
        return False

    def _check_stayed(self, instance: Any) -> None:
        try:
            destination = interrupted.left_for(self.host, instance.uuid, self._driver.virtapi.reportclient)
        except (nova_exception.NovaException, keystone.ClientException, oslo_messaging.MessagingException) as error:
            LOG.error('The guest of instance %(instance)s must not start: it does not run here, and it is unknown '
                      'whether it left by a live migration: %(error)s',
                      {'instance': instance.uuid, 'error': error})
            raise nova_exception.InternalError('Whether the guest runs on another host is unknown; the log of the '
                                               'compute service says why') from error
        if destination is not None:
            LOG.error('The guest of instance %(instance)s must not start: it does not run here, and it may run on '
                      'host %(destination)s since its live migration was interrupted',
                      {'instance': instance.uuid, 'destination': destination})
            raise nova_exception.InternalError('The guest may run on another host; the log of the compute service '
                                               'says which')

    def may_leave(self, instance: Any) -> None:
        """Note that the guest begins to leave, or has left: if it does not run here, it may run elsewhere."""
        self._seen.discard(instance.uuid)

    def asked(self, instance: Any) -> frozenset[str]:
        """Return the classes of this host's devices that the flavor of an instance asks for.

        :raises BadRequest: an extra spec is not valid
        """
        host = self.manager.state()
        return resources.asked(instance.flavor, host.classes, host.aliases)

    def check_asks_for_none(self, instance: Any) -> None:
        """Refuse a guest without rows whose flavor asks for devices: one from before this adapter would lose them.

        :raises RowsMissing: its flavor asks for some
        :raises BadRequest: as :meth:`asked`
        """
        missing = sorted(self.asked(instance))
        if missing:
            raise exception.RowsMissing(instance.uuid, f'its flavor asks for {", ".join(missing)}, but nothing is '
                                        'recorded for it here: adopt its devices')

    def remove_guest(self, context: Any, instance: Any, destroy_disks: bool = True) -> None:
        """Remove the guest of a claim that ends, if its definition has devices of the claim.

        If it cannot be removed, the devices stay held. Its volumes are disconnected before Nova ends their connections.

        :param destroy_disks: False if other hosts may share them
        """
        with errors.left_to_the_audit(instance, 'The removal of the guest'):
            claimed = {(one.kind, one.identifier) for one in self.manager.assignments(instance.uuid)
                       if one.state != vocabulary.RELEASING}
            if not claimed or not any(use.domain_uuid == instance.uuid and (use.kind, use.identifier) in claimed
                                      for use in self.manager.usage().uses):
                return
            LOG.warning('The guest of instance %s is removed: its start failed after it had begun', instance.uuid)
            try:
                volumes = objects.BlockDeviceMappingList.get_by_instance_uuid(context, instance.uuid)
                self._driver.destroy(context, instance, instance.get_network_info(),
                                     virt_driver.get_block_device_info(instance, volumes), destroy_disks)
            except Exception as error:              # also of commands and of os-brick; the claim must end all the same
                raise nova_exception.InternalError(f'{error}') from error

    def release(self, context: Any, instance: Any) -> None:
        """Give back the devices of an instance whose guest is gone. Devices that store data are wiped in background."""
        self._seen.discard(instance.uuid)
        with errors.left_to_the_audit(instance, 'The release'):
            self.manager.release(context, Subject(instance), wait=False)

    def started(self, context: Any, instance: Any) -> None:
        """Record that the guest has started. It runs in any case, so an error is left to the audit."""
        with errors.left_to_the_audit(instance, 'The record of the start'):
            self.manager.started(context, Subject(instance))

    def rebooted(self, instance: Any) -> None:
        """Record that a running guest has booted again. Nova called no overridden method in the middle of that."""
        self.started(None, instance)
        with errors.left_to_the_audit(instance, 'The record of the reboot'):
            self.manager.rebooted(None, Subject(instance))


def _primitives(reported: list[Provider]) -> list[Any]:
    return [one.obj_to_primitive() for one in reported]
