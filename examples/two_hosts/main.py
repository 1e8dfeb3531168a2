"""Boots an instance on one of two hosts, moves it in each way there is, and prints what each host holds after a step.

    python examples/two_hosts/main.py
"""

from __future__ import annotations

import itertools
import pathlib
import tempfile
import uuid

from database import Database
from database import Flavor
from database import Instance
from database import Migration
from devicetrack.testing import fake
from restart import go_on
from service import Compute


def show(hosts: dict[str, Compute], instance_uuid: str, step: str) -> None:
    """Print which devices each host holds for the instance."""
    held = {name: sorted(f'{row.identifier} {row.role}' for row in host.manager.resources_of(instance_uuid))
            for name, host in hosts.items()}
    print(f'{step}:', '; '.join(f'{name} has {", ".join(rows) or "none"}' for name, rows in held.items()))


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        database = Database(pathlib.Path(directory, 'database.json'))
        hosts = {name: Compute(name, pathlib.Path(directory, name), database) for name in ('one', 'two')}
        one, two = hosts['one'], hosts['two']
        small, other = Flavor('small', {'hw:pmem': '4GB'}), Flavor('other', {'hw:pmem': '4GB'})
        large = Flavor('large', {'hw:pmem': '4GB,4GB'})
        numbers = itertools.count(1)

        instance = Instance(str(uuid.uuid4()), small)
        one.boot(instance)
        show(hosts, instance.uuid, 'booted')

        # On host one, to another device. The user reverts it.
        migration = Migration(str(uuid.uuid4()), next(numbers), instance.uuid, 'one', 'one')
        one.prep_resize(instance.uuid, migration, other)
        one.resize_instance(instance.uuid, migration)
        one.finish_resize(instance.uuid, migration)
        show(hosts, instance.uuid, 'resized on host one')
        one.revert_resize(instance.uuid, migration)
        one.finish_revert_resize(instance.uuid, migration)
        one.audit()                             # gives the new device back: no definition names it any more
        show(hosts, instance.uuid, 'reverted')

        migration = Migration(str(uuid.uuid4()), next(numbers), instance.uuid, 'one', 'two')
        two.prep_resize(instance.uuid, migration, large)
        show(hosts, instance.uuid, 'claimed')
        one.resize_instance(instance.uuid, migration)
        show(hosts, instance.uuid, 'handed over')
        two.finish_resize(instance.uuid, migration)
        show(hosts, instance.uuid, 'finished')
        one.confirm_resize(instance.uuid, migration)
        show(hosts, instance.uuid, 'confirmed')

        # Back, without a new flavor. The service of host two ends after save 8, before it called the library.
        migration = Migration(str(uuid.uuid4()), next(numbers), instance.uuid, 'two', 'one')
        one.prep_resize(instance.uuid, migration, large)
        two.resize_instance(instance.uuid, migration)
        one.finish_resize(instance.uuid, migration)
        migration.status = 'confirmed'
        database.save(migration)
        two.machine.delete_guest(instance.uuid)
        show(hosts, instance.uuid, 'back, and the last call is lost')
        two.audit()
        show(hosts, instance.uuid, 'after the audit of host two')

        # While it runs, to the other host.
        migration = Migration(str(uuid.uuid4()), next(numbers), instance.uuid, 'one', 'two', 'live-migration')
        one.live_migrate(instance.uuid, migration, hosts.__getitem__)
        show(hosts, instance.uuid, 'migrated live')
        two.audit()

        # Host two loses its power, and comes back after its instance was evacuated.
        two.manager.close()
        two.machine.reboot()
        migration = Migration(str(uuid.uuid4()), next(numbers), instance.uuid, 'two', 'one', 'evacuation')
        one.evacuate(instance.uuid, migration)
        two.start()
        go_on(two, hosts.__getitem__)
        two.manager.wait_for_wipes()
        show(hosts, instance.uuid, 'evacuated, and host two is back')

        one.delete(instance.uuid)
        show(hosts, instance.uuid, 'deleted')
        for host in hosts.values():
            host.manager.close()
            fake.FakeHost.forget(host.name)


if __name__ == '__main__':
    main()
