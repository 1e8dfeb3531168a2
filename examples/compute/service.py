"""A compute service on hosts with libvirt: what it writes itself so that its instances have devices and keep them."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
import contextlib
import json
import sqlite3
from typing import Any

import libvirt
from oslo_config import cfg

import devicetrack
from devicetrack.objects.values import GuestConfig
from devicetrack.objects.values import MigrationDefinitions

TABLE = 'CREATE TABLE IF NOT EXISTS instances (uuid TEXT PRIMARY KEY, document TEXT, hosts TEXT)'
DOMAIN = """
<domain type='{type}'>
  <name>{uuid}</name>
  <uuid>{uuid}</uuid>
  <metadata>{config.metadata}</metadata>
  <maxMemory slots='16' unit='GiB'>64</maxMemory>
  <memory unit='MiB'>{memory_mb}</memory>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <features><acpi/></features>
  <cpu><numa><cell id='0' cpus='0' memory='{memory_mb}' unit='MiB'/></numa></cpu>
  <devices>{devices}</devices>
</domain>
"""


class Database:
    """The service's database, which all hosts share. ``ask(host, uuid)`` reaches the service of another host."""

    def __init__(self, path: str, ask: Callable[[str, str], None]) -> None:
        self._path, self.ask = path, ask
        self._do(TABLE)

    def document(self, instance_uuid: str) -> str | None:
        found = self._do('SELECT document FROM instances WHERE uuid = ?', instance_uuid)
        return found[0][0] if found else None

    def documents(self, host: str) -> dict[str, str]:
        return dict(self._do('SELECT uuid, document FROM instances, json_each(hosts) WHERE value = ?', host))

    def save(self, instance_uuid: str, document: str, replaces: str | None, hosts: Collection[str]) -> bool:
        names = json.dumps(sorted(hosts))
        if replaces is None:
            return bool(self._do('INSERT INTO instances VALUES (?, ?, ?) ON CONFLICT DO NOTHING RETURNING uuid',
                                 instance_uuid, document, names))
        return bool(self._do('UPDATE instances SET document = ?, hosts = ? WHERE uuid = ? AND document = ? '
                             'RETURNING uuid', document, names, instance_uuid, replaces))

    def _do(self, statement: str, *values: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self._path, timeout=60)) as connection, connection:
            return connection.execute(statement, values).fetchall()


class Guests:
    """The guests of one host."""

    def __init__(self, connection: libvirt.virConnect) -> None:
        self.connection = connection

    def start(self, instance_uuid: str, flavor: Mapping[str, Any], config: GuestConfig) -> None:
        self.connection.defineXML(DOMAIN.format(
            type=flavor.get('virt_type', 'kvm'), uuid=instance_uuid, config=config, devices=''.join(config.devices),
            memory_mb=flavor['memory_mb'])).create()

    def stop(self, instance_uuid: str) -> None:
        for domain in self._domains(instance_uuid):
            if domain.isActive():
                domain.destroy()

    def delete(self, instance_uuid: str) -> None:
        self.stop(instance_uuid)
        for domain in self._domains(instance_uuid):
            domain.undefine()

    def migrate(self, instance_uuid: str, host: str, definitions: MigrationDefinitions) -> None:
        [domain] = self._domains(instance_uuid)
        domain.migrateToURI3(f'qemu+tls://{host}/system', {
            libvirt.VIR_MIGRATE_PARAM_DEST_XML: definitions.live,
            libvirt.VIR_MIGRATE_PARAM_PERSIST_XML: definitions.persistent,
        }, libvirt.VIR_MIGRATE_LIVE | libvirt.VIR_MIGRATE_PEER2PEER | libvirt.VIR_MIGRATE_PERSIST_DEST
            | libvirt.VIR_MIGRATE_UNDEFINE_SOURCE)

    def is_migrating(self, instance_uuid: str) -> bool:
        return any(domain.isActive() and domain.jobInfo()[0] != libvirt.VIR_DOMAIN_JOB_NONE
                   for domain in self._domains(instance_uuid))

    def _domains(self, instance_uuid: str) -> list[libvirt.virDomain]:
        return [one for one in self.connection.listAllDomains() if one.UUIDString() == instance_uuid]


def configured(path: str) -> cfg.ConfigOpts:
    conf = cfg.ConfigOpts()
    devicetrack.register_options(conf)
    conf(['--config-file', path], project='compute')
    return conf


def open_host(host: str, conf: cfg.ConfigOpts, database: Database, guests: Guests) -> devicetrack.Lifecycle:
    """What each host's process does when it starts. Then it serves requests, and audits every minute."""
    driver = devicetrack.load_driver(conf, host, connect=lambda: guests.connection)
    lifecycle = devicetrack.Lifecycle(host, driver, devicetrack.open_store(conf), conf, database, guests)
    lifecycle.open()
    return lifecycle
