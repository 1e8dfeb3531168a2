"""``devicetrack-manage recover``: rebuilds a lost store from the records in the guests' definitions."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from devicetrack.claims import host as host_identity
from devicetrack.claims import recovery
from devicetrack.cmd import base
from devicetrack.cmd import kinds
from devicetrack.cmd import options
from devicetrack.cmd import progress
from devicetrack.cmd import records
from devicetrack.conf import manager as manager_options
from devicetrack.engine import rebuild
from devicetrack.store.sql import schema
from devicetrack.store.sql.store import SQLStore
from devicetrack.virt.driver import VirtDriver

_OF_ROW = ('role', 'state', 'position', 'migration_uuid', 'resource_class', 'provider_uuid', 'parent', 'numa_node',
           'claim_id', 'host_uuid')


class Recover(base.Blocks):
    """Rebuild the rows of a lost store from the records in the definitions of this host's guests.

    Run it only while the host's manager does not run. It never changes existing rows. If the store has no schema, it
    makes the schema. It lists every device with its outcome. Exit code 3 when one needs attention, or when a guest
    records a device that no option names.
    """

    columns = ('outcome', 'host', 'device', 'kind', 'identifier', 'instance_uuid', *_OF_ROW, 'reason', 'details')
    prose = ('reason',)
    in_block = ('outcome', 'device', 'kind', 'identifier', 'instance_uuid', 'reason')

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('--from-hypervisor', action='store_true', required=True,
                            help='Take the rows from the definitions of the guests. There is no other source.')
        parser.add_argument('--dry-run', action='store_true', help='Only show what would be written.')
        parser.add_argument('--wipe-unrecorded', action='store_true',
                            help='Have the manager wipe every device that no guest records when it starts, before a '
                                 'claim gets it. This destroys the data of instances without a guest on this host.')
        options.add_host(parser)

    def rows(self, parsed_args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
        conf = self.app.conf[manager_options.GROUP]
        kinds.load(self.app.conf)
        store = self._store()
        name = parsed_args.host or self.app.conf.host or recovery.name_of(store, conf.machine_id_path)
        if name is None:
            raise base.UsageError('the store has no host of this machine, and its guests do not record the name of '
                                  "theirs: name it with --host, by the compute service's name for it")
        driver = self.app.driver(name)
        if parsed_args.dry_run:
            plan = self._plan(name, driver, store, parsed_args)
        else:
            with host_identity.HostLock(name, conf.state_path, by_command=True):
                schema.sync(self.app.store)
                plan = self._plan(name, driver, self.app.store, parsed_args)
                recovery.write(plan, self.app.store)
        self._say_more(name, plan, parsed_args.dry_run)
        for one in plan.devices:
            row = one.row
            yield {**(dict.fromkeys(_OF_ROW) if row is None else row._asdict()), **one._asdict(), 'host': name,
                   **records.of_device(*one.device),
                   'details': None if row is None else base.details_fields(row.details)}

    def nothing(self, parsed_args: argparse.Namespace) -> str:
        return 'this host has no device, and no guest records one'

    def head(self, row: Mapping[str, Any]) -> tuple[str, str]:
        return row['outcome'], row['device'] + (f' of instance {row["instance_uuid"]}' if row['instance_uuid'] else '')

    def body(self, row: Mapping[str, Any]) -> Iterator[str]:
        if row['migration_uuid']:
            yield f'{row["role"]} for migration {row["migration_uuid"]}'
        yield row['reason']

    def _store(self) -> SQLStore | None:
        """The store; None if there is none yet, or it has no schema.

        :raises SchemaMismatch: its schema belongs to another release, or it is no store
        :raises StoreUnavailable: it cannot be reached, or this user cannot see whether it is there
        """
        store: SQLStore = self.app.store
        if not store.is_there():
            return None
        if schema.revision(store) is None:
            schema.check_tables(store)
            return None
        schema.check(store)
        return store

    def _plan(self, name: str, driver: VirtDriver, store: SQLStore | None,
              parsed_args: argparse.Namespace) -> recovery.Recovery:
        with progress.Progress(self) as shown:
            return recovery.plan(
                name, driver, store, self.app.conf, parsed_args.wipe_unrecorded,
                lambda number, total: shown.show(f'{number:,} of {base.count(total, "guest")} read'))

    def _say_more(self, name: str, plan: recovery.Recovery, dry_run: bool) -> None:
        """Tell the facts that are not in the list, and set the exit code if something needs attention."""
        outcomes = [one.outcome for one in plan.devices]
        written = outcomes.count(rebuild.WRITE) + outcomes.count(rebuild.WIPE)
        self.say(f'host {name}: ' + (f'{base.count(written, "row")} would be written, and nothing was' if dry_run
                                     else f'wrote {base.count(written, "row")}'))
        self.say('devices of instances without a domain on this host cannot be recovered')
        for uuid in plan.migrations:
            self.say(f'migration {uuid} has not ended in these rows: ask the compute service for its status')
        for unknown in plan.unknown:
            self.say(f'could not be read: {unknown}')
        if plan.unnamed:
            names = ', '.join(map(str, plan.unnamed))
            self.say(f'guests record devices that no option names: {names}. Give the command the configuration of the '
                     'service, and see that no option is misspelt: a device that neither a guest records nor an option '
                     'names is not in this list')
        if rebuild.UNRECORDED in outcomes:
            self.say(f'no guest records {base.count(outcomes.count(rebuild.UNRECORDED), "device")}: the manager hands '
                     'out those that this host has proven clean, and reads the others first, unless [devicetrack] '
                     'unproven_devices says otherwise. To have them all wiped, do not start the manager before '
                     f'recover --from-hypervisor --host {name} --wipe-unrecorded')
        if plan.unknown or plan.unnamed or any(outcome not in rebuild.WELL for outcome in outcomes):
            self.exit_code = base.ATTENTION
