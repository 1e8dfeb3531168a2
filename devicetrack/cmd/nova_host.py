"""Finds and records the devices of the guests of a Nova compute host whose service is stopped."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import logging
import os
import tempfile
import types
from typing import Any
from typing import Final
from typing import TYPE_CHECKING

from oslo_config import cfg

import devicetrack
from devicetrack import exception
from devicetrack import log
from devicetrack import ownfiles
from devicetrack import vocabulary
from devicetrack.claims import report
from devicetrack.claims import withheld
from devicetrack.claims.host import HostLock
from devicetrack.claims.manager import ClaimManager
from devicetrack.claims.repairs import Adopting
from devicetrack.conf import manager as options
from devicetrack.engine.withholding import Marks
from devicetrack.nova import adoption
from devicetrack.nova import options as nova_options
from devicetrack.nova.subject import Subject
from devicetrack.objects.values import DeviceKey
from devicetrack.store.sql import schema

if TYPE_CHECKING:
    from devicetrack.nova.record import NovaRecord

# The parent of all loggers of this library.
_OURS: Final = log.logger(devicetrack.__name__).logger

# The beginning of the reason of each cordon that the command sets.
_KEPT: Final = 'devicetrack-nova-adopt: recorded in Nova, with no domain, for instance'

# What a check says as its result. Nova reads some of its options, and refuses their values, only when it needs them.
_REFUSALS: Final = (exception.DeviceTrackError, cfg.Error)


class NovaHost:
    """A compute host whose guests may have devices without a row.

    :param conf: the configuration, with Nova's options
    :param record: Nova's record of the host
    :param connect: opens a connection to the host's libvirt
    :param state_path: its state directory; by default that of ``[devicetrack] state_path``
    :param check_start: checks what keeps the service from starting with its command line
    """

    def __init__(self, conf: Any, record: NovaRecord, connect: Callable[[], Any], state_path: str | None = None,
                 check_start: Callable[[], None] = lambda: None) -> None:
        options.register(conf)
        self._conf, self._record, self._host, self._connect = conf, record, record.host, connect
        self._check_start = check_start
        self._state_path: str = state_path or conf[options.GROUP].state_path

    def plan(self, upgrade: bool = False) -> adoption.AdoptionPlan:
        """Read everything and say what would be recorded. Nothing is made, wiped, realized or written to any store.

        :param upgrade: the plan will be applied: first bring a store of an earlier release to this release's schema.
            Else a copy of the store is read, and a store that hosts share cannot be
        :raises HostInUse: the host's manager runs
        :raises NovaUnavailable, HypervisorUnreachable, StoreError: no answer
        :raises InvalidConfiguration, UnsafePath: an option or the state directory cannot be used
        """
        with self._opened(upgrade) as (store, driver):
            node = self._record.node()
            providers = self._record.providers(node)
            look = self._observer(store, driver, providers, self._record.service)
            return self._plan(look.adopting(), look.resource_classes, node, providers)

    def _plan(self, look: Adopting, classes: frozenset[str], node: Any, providers: Any) -> adoption.AdoptionPlan:
        classes |= {device.resource_class for device in look.inventory.devices}
        facts = adoption.AdoptedHost(
            self._host, self._record.instances(node, look.usage.domains, classes),
            self._record.allocations(providers.uuids.values()), look.usage, look.inventory.devices, providers.uuids,
            classes, {row.key: row.instance_uuid for row in look.records})
        lines = adoption.plan(facts, lambda uuid, keys: _refusal(look, uuid, keys))
        return adoption.AdoptionPlan(
            lines, list(look.obstacles()), _unread(look),
            sum(line.outcome != adoption.ALREADY and _moves(facts, line) for line in lines),
            self._record.is_reported_up())

    def _observer(self, store: Any, driver: Any, providers: Any = None, service: Any = None) -> report.Observer:
        known = report.locate(store, self._host, self._conf[options.GROUP].machine_id_path)
        return report.Observer(known, driver, store, self._conf, providers, service)

    @contextlib.contextmanager
    def _opened(self, upgrade: bool = False) -> Iterator[tuple[Any, Any]]:
        """Open the store and the driver for reading. Nothing is made on the host."""
        with contextlib.ExitStack() as undo:
            state_path = self._state_path
            if os.path.isdir(state_path):
                undo.enter_context(HostLock(self._host, state_path, by_command=True))
            else:
                # Without a state directory nothing was ever recorded here, and this must not make one.
                state_path = undo.enter_context(tempfile.TemporaryDirectory())
            store = undo.enter_context(contextlib.closing(self._store(undo, upgrade)))
            yield store, undo.enter_context(contextlib.closing(
                devicetrack.load_driver(self._conf, self._host, self._connect, state_path)))

    def _store(self, undo: contextlib.ExitStack, upgrade: bool) -> Any:
        """Open the host's store for reading, or an empty temporary one if it was not made yet.

        The file of an earlier release is copied, and the copy is brought to this release's schema.
        """
        store = devicetrack.open_store(self._conf, self._state_path)
        try:
            store.check()
            return store
        except exception.SchemaMismatch as error:
            store.close()
            found = error.found
            if found is not None and not upgrade and (store.path is None or not schema.is_known(found)):
                raise
        if found is not None and upgrade:
            devicetrack.sync_store(self._conf, self._state_path)
            return devicetrack.open_store(self._conf, self._state_path)
        conf, directory = cfg.ConfigOpts(), undo.enter_context(tempfile.TemporaryDirectory())
        devicetrack.register_options(conf)
        conf([], default_config_files=[], default_config_dirs=[])
        if found is not None:
            schema.copy_file(store, devicetrack.open_store(conf, directory))
        devicetrack.sync_store(conf, directory)
        return devicetrack.open_store(conf, directory)

    def apply(self, plan: adoption.AdoptionPlan) -> Iterator[adoption.AdoptionLine]:
        """Record the devices of a plan, instance by instance, with the checks of :meth:`.ClaimManager.adopt`.

        Moves of withheld instances away from the host that were interrupted are ended, unless Nova reports that the
        service runs. The reason of the line says which were ended and which were not. The next plan can then list
        their instances.

        Each instance gets all of its devices or none, and a line with the result. Nothing is wiped or read in the
        background, whatever ``[devicetrack] unproven_devices`` says. Devices of withheld instances that no domain names
        are cordoned, so that nothing wipes them, until a later call finds that no withheld instance has them. An
        operator's cordon stays as it is. The call may be repeated.

        :raises DeviceTrackError: the host could not be started; nothing was recorded
        """
        node = self._record.node()
        with contextlib.ExitStack() as undo:
            store = undo.enter_context(contextlib.closing(devicetrack.open_store(self._conf, self._state_path)))
            driver = undo.enter_context(contextlib.closing(
                devicetrack.load_driver(self._conf, self._host, self._connect, self._state_path)))
            manager = ClaimManager(self._host, driver, store, self._conf, self._record.service,
                                   self._record.providers(node), node.name)
            undo.callback(manager.close)
            manager.init_host(None, background=False,
                              prepare=lambda: devicetrack.sync_store(self._conf, self._state_path))
            unsettled = {line.instance_uuid for line in plan.lines if line.outcome == adoption.WITHHELD}
            outcomes = self._record.end_moves(node, unsettled, manager.usage(), manager.state().classes) if (
                unsettled and not plan.is_up) else []
            cordons = _cordons(withheld.load(store, manager.state().host_uuid))
            ended = {key for key, reason in cordons.items() if reason.startswith(_KEPT)}
            for line in plan.lines:
                if line.outcome == adoption.WITHHELD:
                    done = line._replace(reason='; '.join((line.reason, *(
                        one.text for one in outcomes if one.instance_uuid in (line.instance_uuid, None)))))
                else:
                    done = line if line.outcome != adoption.ADOPT else _recorded(
                        line, lambda instance, devices: manager.adopt(None, instance, devices))
                if done.outcome == adoption.WITHHELD:
                    for key in done.undefined:
                        # An operator's cordon keeps the device too, and a later call must not end it.
                        if cordons.get(key, _KEPT).startswith(_KEPT):
                            manager.operator.cordon(*key, reason=f'{_KEPT} {done.instance_uuid}')
                    # A device that the host or the options do not have now may come back with somebody's data.
                    ended.difference_update(done.devices)
                yield done
            for key in ended if not plan.unread else ():
                manager.operator.uncordon(*key)

    def checks(self) -> Iterator[adoption.HostCheck]:
        """Say whether the host can be changed to this adapter now. Checks that need no answer of Nova come first."""
        yield _checked('state directory', self._check_state)
        yield _checked('Nova', self._record.check_release)
        yield _checked('command line', self._check_start)
        try:
            with self._opened() as (store, driver), _Warnings() as warnings:
                look = self._observer(store, driver).adopting()
                obstacles, rights = list(look.obstacles()), _checked('privileges', driver.check_rights)
                unread = nova_options.ignored(self._conf)
        except _REFUSALS as error:
            name = 'options' if isinstance(error, (cfg.Error, exception.InvalidConfiguration)) else 'host'
            result, said = adoption.FAILURE, str(error)
            if isinstance(error, exception.SchemaMismatch) and error.found is not None and schema.is_known(error.found):
                result, said = adoption.WARNING, (
                    f'{error.store} has schema {error.found}, and the service brings it to {error.wanted} when it '
                    'starts: first back it up, and stop the services of all hosts that share it')
            yield adoption.HostCheck(name, result, f'{said}; so the rest of the host was not checked')
            return
        yield from adoption.checks_of_host(obstacles, [*warnings, *filter(None, [unread]), *(
            ': '.join(filter(None, (one.option, one.key.identifier, one.reason))) for one in look.inventory.faults)],
            [*filter(None, [rights.details]), *_unread(look)])
        try:
            plan = self.plan()
        except _REFUSALS as error:
            yield adoption.HostCheck('record', adoption.FAILURE,
                                     f'{error}; so moves, guests and nova-compute were not checked')
            return
        yield adoption.HostCheck('record', adoption.OK, '')
        yield from adoption.checks_of_guests(plan)

    def _check_state(self) -> None:
        """Check that the state directory belongs to this user, or can be made."""
        path = self._state_path
        try:
            ownfiles.check_directory(path)
        except ownfiles.NotOurs as error:
            raise exception.UnsafePath(error.filename, error.strerror) from error
        except OSError as error:
            parent = os.path.dirname(path)
            if not os.access(parent, os.W_OK | os.X_OK):
                raise exception.InvalidConfiguration(
                    options.STATE_PATH, path, f'{error.strerror}, and this user cannot make it in {parent}') from error


class _Warnings(logging.Handler):
    """Collects the warnings that a service would log when it looks at the host, such as those about options."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._found: list[str] = []

    def __enter__(self) -> list[str]:
        _OURS.addHandler(self)
        return self._found

    def __exit__(self, *_error: object) -> None:
        _OURS.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING:
            self._found.append(record.getMessage())


def _cordons(marks: Marks) -> dict[DeviceKey, str]:
    """Return the reasons of the cordons, by device."""
    return {DeviceKey(target.kind, target.name): causes[vocabulary.CORDONED].detail for target, causes in marks.items()
            if target.scope == vocabulary.DEVICE and vocabulary.CORDONED in causes}


def _unread(look: Adopting) -> list[str]:
    return [f'{one.what}: {one.reason}' for one in (*look.usage.unknown, *look.inventory.unknown)]


def _refusal(look: Adopting, uuid: str, keys: Sequence[DeviceKey]) -> str | None:
    try:
        look.check(uuid, keys)
    except exception.NotAdopted as error:
        return _said(error)
    return None


def _said(error: exception.NotAdopted) -> str:
    return f'{error.device}: {error.reason}'


def _moves(facts: adoption.AdoptedHost, line: adoption.AdoptionLine) -> bool:
    instance = facts.instances.get(line.instance_uuid)
    return instance is not None and bool(instance.moving)


def _recorded(line: adoption.AdoptionLine,
              adopt: Callable[[Subject, Sequence[DeviceKey]], object]) -> adoption.AdoptionLine:
    """Record the devices of a line, and return the line with its outcome."""
    try:
        adopt(Subject(types.SimpleNamespace(uuid=line.instance_uuid)), line.devices)
    except exception.HostTakenOver:
        raise
    except exception.NotAdopted as error:
        return line._replace(outcome=adoption.WITHHELD, reason=_said(error))
    except (exception.DriverError, exception.RowsMissing, exception.StoreError) as error:
        return line._replace(outcome=adoption.WITHHELD, reason=str(error))
    return line._replace(outcome=adoption.ADOPTED)


def _checked(name: str, check: Callable[[], None]) -> adoption.HostCheck:
    try:
        check()
    except _REFUSALS as error:
        return adoption.HostCheck(name, adoption.FAILURE, str(error))
    return adoption.HostCheck(name, adoption.OK, '')
