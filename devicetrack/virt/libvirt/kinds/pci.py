"""PCI functions that guests get as a whole: cards, disks, and virtual functions of either.

A device is a function, and its PCI address is its name. It is in stock while the options say that guests may have it
(``[pci] device_spec``) and that this library hands it out (``[devicetrack_pci] functions``). Its details have the
function's identity: another card in the slot is another device, and is neither handed out nor touched.

libvirt binds a function to the driver for guests when a guest starts, and unbinds it when the guest ends
(``managed='yes'``). libvirt does not always get that far, for example when it is killed, so the kernel's state counts.
Taking a function back brings it to the driver that the claim found, resets it if a guest may have left something in
it, and cleans it as the options say.

A function that the host itself uses is neither offered nor touched. The functions of an IOMMU group are only handed out
together, and whole functions of one NVMe disk only to one instance. While a physical function is handed out, its
virtual functions are not, and the reverse. The ledger knows these rules from the exclusions of the stock.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import errno
import functools
import os
import re
import stat
import threading
from typing import Any
from typing import Final
from typing import TypeVar

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.conf import libvirt as libvirt_options
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import PCIDetails
from devicetrack.objects.network_port import Port
from devicetrack.objects.pci_alias import PCIAlias
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Fault
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import MigrationType
from devicetrack.objects.values import Realized
from devicetrack.virt.libvirt import attributes
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import guest_paths
from devicetrack.virt.libvirt import guest_xml
from devicetrack.virt.libvirt import nvme_controllers
from devicetrack.virt.libvirt import pci_config
from devicetrack.virt.libvirt import pci_driver
from devicetrack.virt.libvirt import pci_namespaces
from devicetrack.virt.libvirt import pci_privileged
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt import pci_use
from devicetrack.virt.libvirt import pci_variants
from devicetrack.virt.libvirt import vfio_migration
from devicetrack.virt.libvirt.kinds import api
from devicetrack.virt.libvirt.kinds import busy
from devicetrack.virt.libvirt.kinds import pci_cards
from devicetrack.virt.libvirt.kinds import pci_cleaner
from devicetrack.virt.libvirt.kinds import pci_cleaning
from devicetrack.virt.libvirt.kinds import pci_erasing
from devicetrack.virt.libvirt.kinds import pci_health
from devicetrack.virt.libvirt.kinds import pci_identity
from devicetrack.virt.libvirt.kinds import pci_memory
from devicetrack.virt.libvirt.kinds import pci_migration
from devicetrack.virt.libvirt.kinds import pci_names
from devicetrack.virt.libvirt.kinds import pci_options
from devicetrack.virt.libvirt.kinds import pci_places
from devicetrack.virt.libvirt.kinds import pci_ports
from devicetrack.virt.libvirt.kinds import pci_vfs

# What passes by itself when a disk has just come to its driver: somebody looks at it, its controller is not there yet,
# or the kernel has not shown its namespaces yet.
_PASSING: Final = busy.BUSY | {errno.ENODEV, errno.ENXIO}
# Devices in the text of a hypervisor's argument.
_PATHS: Final = re.compile(r'/[^\s,;"\'=]+')
# A file of any other sort is no device.
_NODES: Final = frozenset((stat.S_IFBLK, stat.S_IFCHR))

_Seen = TypeVar('_Seen')


class PCI(api.DeviceKind):
    """The device kind ``pci``."""

    name = 'pci'
    keeps_bytes = True          # some do; for a function that keeps none, the policy in the options is the proof
    form = guest_xml.PCI

    def __init__(self, conf: Any, hypervisor: connection.Connection) -> None:
        super().__init__(conf, hypervisor)
        self.options = self.read_options(conf)
        self.tree = pci_sysfs.Tree(self.options.sysfs_root)
        # Writing the details takes longer than reading the function, and every audit needs the same thousands of texts.
        self._details_text = functools.lru_cache(maxsize=1 << 13)(pci_identity.as_text)
        libvirt_options.register(conf)
        self._paths = guest_paths.GuestPaths(conf[libvirt_options.DEADLINES_GROUP].call_timeout_s)
        self.host_use: Callable[[], pci_use.HostUse] = functools.partial(pci_use.HostUse, self.tree.root)
        # A spec need not name a product. The classes of the functions that it matches are known after they were read.
        self._seen_classes: frozenset[str] = frozenset()
        # The service hands out functions that a spec matches and ``functions`` does not. These are their classes.
        self._classes_of_service: frozenset[str] = frozenset()
        self._serials = pci_cards.SerialNumbers(self.tree, lambda: self._memory)
        self._identity = pci_identity.Identity(self.tree, self._serials, lambda: self._places, self._like_row)
        self._follower = pci_places.Follower(self._serials, lambda: self._memory)
        self._vfs = pci_vfs.Maker(self.tree, self.options.vfs, self.options.vfs_timeout_s)
        self._secondaries = pci_vfs.Secondaries(self.tree, self.options.vfs)
        self._cleaner = pci_cleaner.Cleaner(self.tree, self.options)
        self._health = pci_health.Health(self.tree, self.options, self._cleaner, self._secondaries)
        self._attributes = attributes.paths(conf)
        self._in_stock: Mapping[str, pci_sysfs.Function] = {}
        self._offered: Sequence[tuple[pci_sysfs.Function, pci_options.DeviceSpec]] = ()
        self._differing: Mapping[str, str] = {}
        self._apart: frozenset[str] = frozenset()       # names of disks that only share their serial number with others
        self._recorded: Mapping[str, PCIDetails] = {}       # by name, the details of rows

    def read_options(self, conf: Any) -> pci_options.PCIOptions:
        return pci_options.read(conf)

    @functools.cached_property
    def _memory(self) -> pci_memory.Memory:
        return pci_memory.Memory(self.state_path, self.boot_id())

    @property
    def _places(self) -> pci_places.Places:
        known = self._memory.known
        return pci_places.Places(known.moved, known.doubted)

    @property
    def configured(self) -> bool:
        return bool(self.options.specs and self.options.functions)

    def is_named(self, identifier: str, stored: str) -> bool:
        row = pci_places.rows({identifier: stored}).get(identifier)
        return self.configured and (row is None or pci_names.is_offered(self.options, identifier, row))

    def own_path(self, assignment: DeviceAssignment) -> str | None:
        return self.tree.path(self._places.address(assignment.identifier))

    @property
    def resource_classes(self) -> frozenset[str]:
        return (self.options.resource_classes - self._classes_of_service) | self._seen_classes

    def may_count(self, resource_class: str) -> bool | None:
        if resource_class in self._classes_of_service:
            return False
        return True if self.configured and self.options.may_give(resource_class) else None

    @property
    def aliases(self) -> Mapping[str, PCIAlias] | None:
        return self.options.aliases

    @property
    def wait_s(self) -> float:
        return float(self.options.release_wait_s)

    def live_migration_obstacle(self) -> str | None:
        return pci_migration.obstacle_of_all(self.options) or vfio_migration.obstacle(self.hypervisor.versions())

    def migration_types(self) -> Sequence[MigrationType]:
        return pci_migration.types(self.tree, self._attributes, self._offered, self.hypervisor.versions())

    def migration_obstacle_of(self, assignment: DeviceAssignment) -> str | None:
        return pci_migration.obstacle_of(self.tree.root, assignment.details, self._identity.there(assignment))

    def prepare(self, recorded: Mapping[str, str], locked: api.Locked) -> None:
        places = self._places
        recorded = {**self._memory.known.rows, **recorded}

        def is_held(address: str) -> bool:
            return places.name(address) in {*recorded, *self._memory.known.given}

        def locked_there(address: str) -> contextlib.AbstractContextManager[bool]:
            return locked(places.name(address))

        self._vfs.make(is_held, locked_there)
        functions = {function.address: function for function in self.tree.functions()}
        self._secondaries.bring_online(functions.values(), self.options.ours, is_held, locked_there)
        self._follower.follow(recorded, places, functions)
        self._recorded = rows = pci_places.rows(recorded)
        # Compare ports last, because follow() may just have found functions at other addresses than their rows say.
        self._differing = dict(pci_ports.differences(self.tree, rows, self._in_guest))

    def _in_guest(self, name: str) -> pci_sysfs.Function | None:
        function = self.tree.function(self._places.address(name))
        with contextlib.suppress(OSError):
            if function is not None and pci_variants.is_vfio(function.driver) and pci_driver.has_guest(function):
                return function
        return None

    def check_host(self) -> None:
        for function in self.tree.functions():
            if function.is_bridge or not function.product_id or self.options.ours(function) is None:
                continue
            with contextlib.suppress(OSError):          # the stock reports a controller that cannot be asked
                if (mistake := self._cleaner.mistake(function)) is not None:
                    raise exception.InvalidConfiguration(pci_cleaning.OPTION, self._cleaner.policy(function).name,
                                                         f'for {function.address}: {mistake}')

    # -- stock --------------------------------------------------------------------------------------------------------

    def stock(self) -> api.Stock:
        functions = self._in_stock = {function.address: function for function in self.tree.functions()}
        places = self._places
        known = {address: self._as_recorded(function, places) for address, function in functions.items()}
        offered = {address: (function, spec) for address, function in known.items() if not function.is_bridge
                   and (spec := self.options.ours(function)) is not None}
        cards = self._serials.of((function for function, _spec in offered.values()), True)
        use = self.host_use()
        used = {address: said for address, (function, _spec) in offered.items()
                if (said := self._health.use_of(function, use, functions.get)) is not None}
        followed, ask = self._follower.followed, self._health.asking()
        problems = {address: places.problem(address) or followed.problem(function)
                    or self._health.problem(function, used.get(address), ask)
                    for address, (function, _spec) in offered.items()}
        groups = pci_health.groups_of(functions.values())
        subsystems, apart = pci_health.subsystems(
            [function for function, _spec in offered.values()], self._with_recorded(cards, places),
            functools.cache(self._is_alone))
        self._apart = frozenset(map(places.name, apart))
        devices = [
            InventoryDevice(
                self.name, places.name(address), self._provider(function),
                pci_options.resource_class_of(spec, function), function.physfn or address, function.numa_node,
                self._details_text(functions[address], cards.evidence(functions[address]), self._disks(function),
                                   pci_options.traits_of(spec), spec.physical_network or '',
                                   pci_names.interfaces(function)),
                problems[address] or pci_health.problem_of_group(function, groups, problems), True,
                exclusions=pci_health.exclusions(function, groups, subsystems),
                features=pci_options.features_of(spec, function, function.device_type))
            for address, (function, spec) in sorted(offered.items())]
        self._seen_classes = frozenset(device.resource_class for device in devices)
        self._classes_of_service = frozenset(
            pci_options.resource_class_of(spec, function) for function in functions.values() if not function.is_bridge
            and (spec := self.options.of_service(function)) is not None)
        self._offered = tuple(offered.values())
        # A disk that has the driver for guests now may have been written to by a guest that nobody saw.
        guests = {address for address, (function, _spec) in offered.items()
                  if (pci_cards.is_nvme(function) or not function.class_code)
                  and pci_variants.is_vfio(function.driver)}
        # The options may leave a function to a person by its product, so none that cannot be read keeps nothing.
        policies = {address: self._cleaner.policy(function).name
                    for address, (function, _spec) in offered.items() if functions[address].product_id}
        return api.Stock(devices, written=tuple(map(places.name, guests.union(used))),
                         faults=tuple(self._faults(functions.values(), places)),
                         nothing_kept=frozenset(places.name(address) for address, policy in policies.items()
                                                if policy == pci_cleaning.NONE),
                         by_person=frozenset(places.name(address) for address, policy in policies.items()
                                             if policy == pci_cleaning.PERSON))

    def observed(self) -> api.Stock:
        if not self.options.observed:
            return api.Stock()
        functions = {function.address: function for function in self.tree.functions()}
        watched = {address: spec for address, function in functions.items()
                   if (spec := self.options.observed_spec(function)) is not None}
        cards = self._serials.of(map(functions.__getitem__, watched), True, asks=False)
        groups, use, ask = pci_health.groups_of(functions.values()), self.host_use(), self._health.asking()
        found = []
        for address, spec in sorted(watched.items()):
            function = functions[address]
            used = use.of(address)
            problem = self._health.problem_of_any(function, used, ask) or pci_health.torn(function, groups)
            found.append(InventoryDevice(
                self.name, address, self._provider(function), pci_options.resource_class_of(spec, function),
                function.physfn or address, function.numa_node,
                # The host keeps the physical function of virtual ones as a rule, although one spec matches them all.
                self._details_text(function, cards.evidence(function), '', frozenset(), spec.physical_network or '',
                                   None),
                problem, used is None or not function.vfs,
                exclusions=pci_health.exclusions(function, groups, {})))
        nothing = self.options.nothing_observed(functions.values())
        return api.Stock(found, faults=() if nothing is None else (
            Fault(DeviceKey(self.name, ''), pci_options.SPECS, nothing),))

    def _is_alone(self, function: pci_sysfs.Function) -> bool:
        """Whether a controller says that its NVM subsystem has no other one; False if it cannot be asked."""
        try:
            return not nvme_controllers.read_controller(self.tree.root, function.address).is_one_of_several
        except (OSError, exception.CommandFailed):
            return False

    def _with_recorded(self, cards: pci_cards.Cards, places: pci_places.Places) -> pci_cards.Cards:
        """Return cards with the serial numbers in rows, where the numbers cannot be read now."""
        return cards._replace(serials={
            address: row.serial if serial is None and (row := self._recorded.get(places.name(address))) else serial
            for address, serial in cards.serials.items()})

    def _as_recorded(self, function: pci_sysfs.Function, places: pci_places.Places) -> pci_sysfs.Function:
        """Return a function that cannot be read with the sort and the card in its row, which count it in placement."""
        row = None if function.product_id else self._recorded.get(places.name(function.address))
        if row is None:
            return function
        physfn = function.physfn or row.parent_address or None
        return function._replace(vendor_id=row.vendor_id, product_id=row.product_id, physfn=physfn,
                                 parent=function.parent or self._in_stock.get(physfn or ''))

    def _faults(self, functions: Iterable[pci_sysfs.Function], places: pci_places.Places) -> Iterator[Fault]:
        for address, fault in sorted(self._vfs.faults.items()):
            yield Fault(DeviceKey(self.name, places.name(address)), pci_vfs.OPTION, fault)
        for function in functions:
            # A spec for virtual functions often matches their card too, by its interface.
            if not function.total_vfs and (why := self.options.not_a_port(function)) is not None:
                yield Fault(DeviceKey(self.name, places.name(function.address)), pci_options.SPECS, why)
        for name, differs in sorted(self._differing.items()):
            yield Fault(DeviceKey(self.name, name), pci_options.SPECS, differs)

    @staticmethod
    def _provider(function: pci_sysfs.Function) -> str:
        """Return the stable name of the provider that counts a function: that of its physical function.

        Nova's provider has the node's name, an underscore, and the address in capitals: ``compute-7_0000:3D:00.0``.
        """
        return (function.physfn or function.address).upper()

    def _disks(self, function: pci_sysfs.Function) -> str | None:
        if not pci_cards.is_nvme(function):
            return ''
        shown = pci_namespaces.shown(self.tree, function.address)
        return None if shown is None else str(pci_namespaces.NamespaceRecord(pci_namespaces.sizes(shown)))

    def node(self, device: InventoryDevice) -> str | None:
        return str(details.peek(device.details).address)

    def container(self, parent: str) -> str | None:
        return None             # the host shows it, also for a card that moved, whose rows name the parent of the claim

    # -- usage --------------------------------------------------------------------------------------------------------

    def addresses(self, domain: domain_xml.Domain) -> Sequence[str]:
        return domain.pci_addresses

    def other_addresses(self, domain: domain_xml.Domain) -> Sequence[str]:
        # When a guest is off, nobody has its disk open, and its definition may name the disk by its path.
        return (*domain.other_pci_addresses, *domain_xml.argument_pci_addresses(domain),
                *dict.fromkeys((*(path for path in domain.other_paths if path.startswith('/dev/')), *domain.files)),
                *(path for text in domain.arguments for path in _PATHS.findall(text)), *domain.interfaces)

    def identify(self, addresses: Iterable[str]) -> Mapping[str, str | None]:
        wanted = set(addresses)
        if not wanted:
            return {}
        given, places = self._memory.known.given, self._places
        if not self.configured and not any(places.name(address) in given for address in wanted):
            return {}
        means: dict[str, str | None] = {}
        paths = {address for address in wanted if address.startswith('/')}
        for path, functions in self._behind(paths).items():
            names = [places.name(one) for one in functions if self._is_ours(self.tree.function(one), places.name(one))]
            means.update((path, name) for name in names[:1])
        interfaces = {address for address in wanted - paths if not vocabulary.PCI_ADDRESS.fullmatch(address)}
        for interface in interfaces:
            owner = self.tree.owner_of(interface)
            # A function that a guest has shows no interface, and this may be one's. Others are no functions.
            if owner is None and not self.tree.has_interface(interface):
                means[interface] = None
            elif owner is not None and self._is_ours(self.tree.function(owner), places.name(owner)):
                means[interface] = places.name(owner)
        for address in wanted - paths - interfaces:
            function, name = self.tree.function(address), places.name(address)
            if self._is_ours(function, name):
                means[address] = name
            # Other functions belong to other software. An address without a function may belong to a card that is away.
            elif function is None:
                means[address] = None
        return means

    def _behind(self, paths: Collection[str]) -> Mapping[str, Sequence[str]]:
        """Find the functions on which the devices at some paths depend, the nearest first, by path.

        :raises CommandFailed: a path cannot be followed, or there is no answer in time
        """
        files = self._paths.files(paths) if paths else {}
        # Nearly all are ordinary files. A path at whose end there is nothing may have the name of a disk, because this
        # process need not see the nodes of the host.
        of_nodes = [path for path in paths if path not in files or files[path][0] in _NODES or path.startswith('/dev/')]
        if not of_nodes:
            return {}
        disks = pci_use.Disks(self.tree.root)
        found = {path: disks.functions(end) for path, end in self._paths.ends(of_nodes).items()}
        for path, (sort, _zero, number) in files.items():
            if sort in _NODES:
                found[path] = (*disks.of_node(sort, number), *found.get(path, ()))
        return found

    def _is_ours(self, function: pci_sysfs.Function | None, name: str) -> bool:
        return name in self._memory.known.given or (function is not None and not function.is_bridge
                                              and self.options.ours(function) is not None)

    # -- realize ------------------------------------------------------------------------------------------------------

    def evidence(self, identifiers: Collection[str]) -> Mapping[str, str]:
        if not identifiers:
            return {}
        disks, places, functions = pci_use.Disks(self.tree.root), self._places, self._functions()
        there = {name: functions.get(places.address(name)) for name in identifiers}
        alike = self._alike({pci_cards.card_of(one.parent or one) for one in there.values() if one is not None})
        found = {}
        for name, function in there.items():
            like, writes = '' if function is None else alike.of_function(function), disks.writes(places.address(name))
            if like or writes:
                found[name] = ';'.join((f'{self.boot_id()}@{like}', *writes))
        return found

    def _functions(self) -> Mapping[str, pci_sysfs.Function]:
        """Return the functions of the last stock by address."""
        return self._in_stock or {function.address: function for function in self.tree.functions()}

    def _alike(self, cards: Collection[str | None]) -> pci_cards.Alike:
        """Compare the disks of some sorts of cards."""
        functions = [function for function in self._functions().values()
                     if pci_cards.may_be_disk(function) and pci_cards.card_of(function) in cards]
        return pci_cards.Alike(functions, self._serials.of(functions))

    def _like_row(self, row: PCIDetails) -> str:
        return self._alike({pci_cards.card_of_row(row)}).of_row(row)

    def call_in_place(self, identifier: str) -> bool:
        alike = self._follower.alike.get(identifier)
        if alike is None or identifier not in self._memory.known.doubted:
            return False
        self._memory.believe(identifier, alike)
        return True

    def row_ended(self, identifier: str) -> None:
        self._memory.end(identifier)

    def is_written(self, before: str, now: str) -> bool:
        return pci_identity.is_written(before, now)

    def check_free(self, assignment: DeviceAssignment) -> None:
        function = self._identity.there(assignment)
        try:
            self._check_no_guest(assignment, function)
            # libvirt does not check this, and a service without root's rights cannot see what other users have open.
            self._settled(functools.partial(pci_privileged.check_host_use, self.tree.root, function.address))
        except OSError as error:
            failed = exception.DeviceInUse if error.errno == errno.EBUSY else exception.RealizeFailed
            raise failed(*assignment.key, str(error.strerror or error)) from error

    def _check_no_guest(self, assignment: DeviceAssignment, function: pci_sysfs.Function) -> None:
        if pci_driver.has_guest(function):
            raise exception.DeviceInUse(*assignment.key, f'a process has the VFIO group {function.iommu_group} open')

    def realize(self, assignment: DeviceAssignment) -> Realized:
        function = self._identity.there(assignment)
        try:
            busy.retried(functools.partial(self._secondaries.realize, function, bool(assignment.details.driver)),
                         self.options.release_wait_s)
        except OSError as error:
            raise exception.RealizeFailed(
                *assignment.key,
                f'its secondary controller cannot be brought online: {error.strerror or error}') from error
        function = self._identity.there(assignment)
        # The state that the claim found stays the state to restore, whatever a guest has changed since.
        had_it = assignment.was_realized or pci_variants.is_vfio(function.driver)
        problem = self._health.problem_now(function, self._settled_use(function))
        # A guest may go on with a disk of its own, whatever it has done to it. unclaim looks at that.
        if problem is None and not had_it:
            problem = self._uncleanable(function)
        if problem is not None:
            raise exception.RealizeFailed(*assignment.key, problem)
        try:
            # libvirt does not check this, and a service without root's rights cannot see what other users have open.
            self._settled(functools.partial(pci_privileged.check_host_use, self.tree.root, function.address))
        except OSError as error:
            raise exception.RealizeFailed(*assignment.key, str(error.strerror or error)) from error
        function = self._identity.there(assignment)         # that was a wait
        spec = self.options.ours(function)
        evidence = self._identity.evidence(function, assignment.details)
        unread = pci_cards.unread(assignment.details, evidence)
        if unread is not None and pci_cards.is_known(assignment.details):
            raise exception.RealizeFailed(
                *assignment.key, f'it may not be the recorded one: its {unread} cannot be read with '
                f'the driver {function.driver or "(none)"}')
        traits = assignment.details.traits_of_spec if spec is None else pci_options.traits_of(spec)
        recorded = assignment.details
        # This may fail, so it comes before the first change.
        before = {} if had_it else self._found(function, assignment)
        made = pci_identity.as_details(function, evidence, **{
            **{name: getattr(recorded, name) for name in PCIDetails.OF_THE_ROW}, **before,
            'traits_of_spec': sorted(traits)})
        self._memory.give(assignment.identifier, self._like_row(made), details.to_text(made))
        pci_ports.realize(self.tree, assignment, function, self.options.release_wait_s, lambda address: self._is_ours(
            self.tree.function(address), self._places.name(address)))
        return Realized(assignment.key, details.to_text(made))

    def _uncleanable(self, function: pci_sysfs.Function) -> str | None:
        """Say why a function could not be cleaned after a guest; None if it could."""
        try:
            return self._settled(functools.partial(self._cleaner.obstacle, function))
        except OSError as error:
            return pci_erasing.unasked(error)

    def _settled(self, look: Callable[[], _Seen]) -> _Seen:
        """Look at a function. Look again while its driver sets up its disks, or somebody has one of them open.

        :raises OSError: as the last look
        """
        return busy.retried(look, self.options.release_wait_s, _PASSING)

    def _found(self, function: pci_sysfs.Function, assignment: DeviceAssignment) -> Mapping[str, Any]:
        """Read the state that a guest may change, as fields of the details, to compare it when the guest is gone.

        :raises RealizeFailed: it cannot be read
        """
        try:
            return {'driver': function.driver or '',
                    'disks': self._settled(functools.partial(self._cleaner.namespaces, function))
                    or self._disks(function), 'config': self._config(function),
                    'interfaces': self._interfaces(function, assignment.details.interfaces),
                    'claimed_parent': function.physfn or ''}
        except (OSError, ValueError) as error:
            raise exception.RealizeFailed(
                *assignment.key, 'changes by its guest could not be detected later: '
                f'{getattr(error, "strerror", None) or error}') from error

    def _interfaces(self, function: pci_sysfs.Function, claimed: Sequence[str] | None) -> list[str] | None:
        """Return the names of its interfaces; None if they are not those that the claim found: udev may rename them."""
        found = pci_names.interfaces(function)
        return list(found) if found is not None and (claimed is None or list(found) == list(claimed)) else None

    def _config(self, function: pci_sysfs.Function) -> str:
        """:raises OSError, ValueError: its configuration space cannot be read"""
        path = self.tree.path(function.address)
        # The kernel shows the first 64 bytes to everybody (pci_read_config in Linux: drivers/pci/pci-sysfs.c).
        with open(os.path.join(path, 'config'), 'rb', buffering=0) as header, \
                open(os.path.join(path, 'resource'), encoding='ascii') as resource:
            return pci_config.stable(header.read(pci_config.HEADER_BYTES), resource.read())

    # -- unclaim ------------------------------------------------------------------------------------------------------

    def unclaim(self, assignment: DeviceAssignment, lock_fd: int) -> None:
        self._bring_back(assignment)
        # With the host's driver its serial number can be read.
        function = self._identity.there(assignment)
        self._identity.check_known(assignment, function)
        self._wait_for_lookers(assignment, function)
        self._identity.check(assignment)        # that was a wait
        self._cleaner.clean(assignment, function, lock_fd, functools.partial(self._identity.check, assignment))
        pci_ports.take_away(self.tree, assignment, self._identity.there(assignment), self.options.release_wait_s)
        self._check_back(assignment)
        self._memory.take_back(assignment.identifier)

    def _check_back(self, assignment: DeviceAssignment) -> None:
        """Check that a function is as it was recorded, and that no process has its group open.

        :raises DriverError: it is not, or that is unknown
        """
        function = self._identity.there(assignment)
        self._identity.check_known(assignment, function)
        wanted = assignment.details.driver
        if wanted != (function.driver or '') and not pci_variants.is_vfio(wanted):
            raise exception.UnclaimFailed(*assignment.key,
                                          f'its driver is {function.driver or "none"}, recorded was {wanted or "none"}')
        try:
            self._check_no_guest(assignment, function)
            config = self._config(function) if assignment.details.config else ''
        except (OSError, ValueError) as error:
            raise exception.UnclaimFailed(*assignment.key, str(getattr(error, 'strerror', None) or error)) from error
        if config != assignment.details.config:
            raise exception.UnclaimFailed(
                *assignment.key, 'its guest or a reset changed its configuration space (identifiers, '
                f'class, layout and sizes of its registers): it is {config}, recorded was {assignment.details.config}')

    def _bring_back(self, assignment: DeviceAssignment) -> None:
        """Bring a function that no guest has back to the driver that the claim found.

        libvirt does that after a guest, and takes a moment for it.

        :raises DeviceInUse: a process still has it open when that time is over
        :raises UnclaimFailed: it does not come back to its driver
        """
        wanted = assignment.details.driver
        function = busy.until(lambda: self._identity.there(assignment), self.options.release_wait_s,
                              lambda function: not pci_driver.may_come_back(function, wanted))
        try:
            pci_driver.bring_back(self.tree, function.address, wanted)
        except pci_driver.Open as error:
            raise exception.DeviceInUse(*assignment.key, str(error)) from error
        except OSError as error:
            raise exception.UnclaimFailed(*assignment.key, str(error.strerror or error)) from error

    def _wait_for_lookers(self, assignment: DeviceAssignment, function: pci_sysfs.Function) -> None:
        """Wait until processes such as udev have finished looking at a disk that has just come back.

        :raises DeviceInUse: the host uses the function for longer than such a look takes
        """
        used = self._health.use_of(function, self._settled_use(function))
        if used is not None:
            raise exception.DeviceInUse(*assignment.key, f'the host uses it: {used}')

    def _settled_use(self, function: pci_sysfs.Function) -> pci_use.HostUse:
        """Return what the host uses when nobody just looks at a function any more, or that takes too long."""
        return busy.until(self.host_use, self.options.release_wait_s, lambda use: not use.is_only_open(function.address)
                          or self._health.use_of(function, use) is None)

    def vacate(self, assignment: DeviceAssignment) -> None:
        if not assignment.details.needs_port:
            return
        function = self._identity.there(assignment)
        try:
            if pci_driver.has_guest(function):
                return
        except OSError as error:
            raise exception.UnclaimFailed(*assignment.key, str(error.strerror or error)) from error
        pci_ports.take_away(self.tree, assignment, function, 0.0)

    def within_reach(self, owned: Collection[str], proven: Mapping[str, str]) -> Collection[str]:
        return list(pci_identity.same_disk(owned, proven, self._apart))

    def keeps_nothing(self, assignment: DeviceAssignment) -> bool:
        return self._cleaner.kept_nothing(assignment, self._identity.there(assignment))

    def check_unused(self, assignment: DeviceAssignment) -> None:
        self._wait_for_lookers(assignment, self._identity.there(assignment))
        self._check_back(assignment)

    def is_untouched(self, assignment: DeviceAssignment) -> bool:
        function = self._identity.there(assignment)
        self._identity.check_known(assignment, function)
        if assignment.identifier in self._memory.known.given or (function.driver or '') != assignment.details.driver:
            return False
        return self._health.use_of(function, self.host_use()) is None

    def is_blank(self, assignments: Sequence[DeviceAssignment]) -> Collection[str]:
        blank = []
        for assignment in assignments:
            try:
                function = self._identity.there(assignment)
            except exception.DriverError:
                continue                        # the next audit reports its state
            if self._cleaner.kept_nothing(assignment, function):
                blank.append(assignment.identifier)
        return blank

    def read_through(self, assignment: DeviceAssignment, lock_fd: int, stop: threading.Event) -> None:
        function = self._identity.there(assignment)
        self._identity.check_known(assignment, function)
        self._wait_for_lookers(assignment, function)
        same = functools.partial(self._identity.check, assignment)
        self._cleaner.read_through(assignment, function, lock_fd, stop, same)
        same()

    # -- guest --------------------------------------------------------------------------------------------------------

    def guest_elements(self, assignments: Sequence[DeviceAssignment]) -> Sequence[str]:
        return [self._guest_element(self._identity.there(assignment), assignment.details.port)
                for assignment in assignments]

    def _guest_element(self, function: pci_sysfs.Function, port: Port | None) -> str:
        spec = self.options.ours(function)
        managed = 'yes' if spec is None or spec.managed else 'no'
        return guest_xml.pci_hostdev(function.address, managed) if port is None else pci_ports.element(
            function.address, port, managed)
