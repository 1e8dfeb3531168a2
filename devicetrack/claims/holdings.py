"""Remembers the devices that the service hands out itself: which one each owner got. Their owners go into the history.

These devices have no rows. A file in the state directory has what the last audit saw of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
import json
import os
from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack import filelock
from devicetrack import log
from devicetrack import ownfiles
from devicetrack.claims.host import ThisHost
from devicetrack.claims.withheld import now_ms
from devicetrack.engine.views import Views
from devicetrack.objects import event as events
from devicetrack.objects import identity
from devicetrack.objects.details import serial_of
from devicetrack.objects.event import Event
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Holding
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import SeenDevice

LOG = log.logger(__name__)

_NAME: Final = 'observed.json'
_MODE: Final = 0o600


class SeenDevices:
    """The file of one host. Only its manager writes it."""

    def __init__(self, host: ThisHost) -> None:
        self._path = os.path.join(host.state_path, _NAME)

    def read(self) -> dict[DeviceKey, SeenDevice]:
        """Return what was seen before. A file that cannot be used is logged, and then nothing was."""
        try:
            with open(self._path, encoding='utf-8') as file:
                return {DeviceKey(kind, name): SeenDevice(owner, str(details), str(serial))
                        for kind, of_kind in json.load(file).items()
                        for name, (owner, details, serial) in of_kind.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            LOG.warning('What was seen of the devices that the service hands out is lost: %(path)s: %(error)s',
                        {'path': self._path, 'error': error})
            return {}

    def write(self, seen: Mapping[DeviceKey, SeenDevice]) -> None:
        """:raises OSError: the file is as it was"""
        found: dict[str, dict[str, Any]] = {}
        for key, one in sorted(seen.items()):
            found.setdefault(key.kind, {})[key.identifier] = one
        with filelock.writing(self._path):
            ownfiles.replace_text(self._path, json.dumps(found), _MODE)


class Holdings:
    """Follows the owners of the devices of a started host."""

    def __init__(self, host: ThisHost) -> None:
        self._host_uuid, self._store, self._seen = host.uuid, host.store, SeenDevices(host)

    def follow(self, views: Views) -> None:
        """Write new owners into the history, and then into the file.

        After a crash in between, the next audit writes the same events once more.
        """
        if views.holdings is None or not (views.holdings or views.seen):
            return
        there = {device.key: device for device in views.inventory.observed}
        held = {one.key: one for one in views.holdings}
        now = {key: seen for key in sorted({*there, *held, *views.seen})
               if (seen := _seen(views.seen.get(key), held.get(key), there.get(key))) is not None}
        if now == views.seen:
            return
        try:
            self._store.set_withheld((), events=list(self._events(views.seen, now)))
            self._seen.write(now)
        except (exception.StoreError, OSError) as error:
            LOG.warning('New owners of devices that the service hands out are recorded at the next audit: %s', error)

    def _events(self, before: Mapping[DeviceKey, SeenDevice], now: Mapping[DeviceKey, SeenDevice]) -> Iterator[Event]:
        for key in sorted({*before, *now}):
            old, new = before.get(key), now.get(key)
            was, has = (None if one is None else one.instance_uuid for one in (old, new))
            if was == has:
                continue
            for event, seen in ((events.FREED, old), (events.CLAIMED, new)):
                if seen is not None and seen.instance_uuid is not None:
                    yield Event(self._host_uuid, *key, event, now_ms(), seen.instance_uuid,
                                details=events.text(by='the service'), serial=seen.serial or None)


def _seen(before: SeenDevice | None, held: Holding | None, device: InventoryDevice | None) -> SeenDevice | None:
    """Return what is remembered of a device from now on; None if the service does not hand it out any more."""
    if held is None:
        return None
    text = None if device is None else device.details
    if before is not None and (text is None or held.instance_uuid in (None, before.instance_uuid)):
        # The owner has, or had, the device that it got. Only what nobody could read then is new.
        text = before.details if text is None else identity.kept(before.details, text)
    if text is None:
        return None
    return SeenDevice(held.instance_uuid, text, serial_of(text) or held.serial)
