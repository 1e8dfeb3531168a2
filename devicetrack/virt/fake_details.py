"""Stored details of the devices of a host in memory.

A details object costs ninety microseconds to make and to write, and a test may want a hundred thousand devices. So one
text of a class comes from a real object, and the others from that text.
"""

from __future__ import annotations

import json
from typing import Any

from devicetrack.objects import details

_TEXTS: dict[type[details.DeviceDetails], str] = {}


def text_of(cls: type[details.DeviceDetails], **values: Any) -> str:
    if cls not in _TEXTS:
        _TEXTS[cls] = details.to_text(cls(**values))
    return changed(_TEXTS[cls], **values)


def data(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)['versioned_object.data']
    return found


def changed(text: str, **values: Any) -> str:
    primitive = json.loads(text)
    primitive['versioned_object.data'].update(values)
    return json.dumps(primitive, separators=(',', ':'), sort_keys=True)
