"""What hosts of a store have declared, and what a guest has there."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping

from devicetrack import exception
from devicetrack.compatibility import guests
from devicetrack.compatibility import host_facts
from devicetrack.compatibility.guests import Guest
from devicetrack.compatibility.host_facts import HostFacts
from devicetrack.store.api import Store


def of_store(store: Store, names: Collection[str] = ()) -> list[HostFacts]:
    """What hosts of a store declare, by name.

    :param names: these hosts; none means all
    :raises UnknownHost: the store has no host of such a name
    """
    known = {host.uuid: host.name for host in store.hosts()}
    for name in names:
        if name not in known.values():
            raise exception.UnknownHost(name, known.values())
    return host_facts.from_rows({uuid: name for uuid, name in known.items() if not names or name in names},
                                store.declarations())


def guest(store: Store, hosts: Mapping[str, HostFacts], instance_uuid: str) -> Guest:
    """The devices that an instance has now, and what their host declares of them.

    :raises MigrationUntold: the store has no such instance, or has it at two hosts
    """
    return guests.find(instance_uuid, store.records(instance_uuid=instance_uuid),
                       {host.uuid: host.name for host in store.hosts()}, hosts)
