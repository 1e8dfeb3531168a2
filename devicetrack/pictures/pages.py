"""Draws pictures as pages: each is one file of HTML with its style and its shapes.

Text from the store and the host is untrusted. First its unprintable characters are spelled out, and then the templates
escape it for HTML. The policy in the head of each page allows no address and no script, except the one that a page of
many hosts has.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import metadata
import re
import shlex
import time
from typing import Any
from typing import Final

from devicetrack import log
from devicetrack import vocabulary
from devicetrack.objects.values import DeviceKey
from devicetrack.pictures import moments
from devicetrack.pictures import timeline
from devicetrack.pictures.fleet import FleetPicture
from devicetrack.pictures.heat_map import HeatMap
from devicetrack.pictures.host import Field
from devicetrack.pictures.host import HostPicture

# UUIDs, which a browser would break at their hyphens.
_UUID: Final = re.compile(f'({vocabulary.UUID.pattern})')

# Fields with names up to these lengths are put side by side: ns12, and a PCI address.
_TINY, _SMALL = 6, 14


def host_map(host: HostPicture) -> str:
    """Draw the page of a host.

    :raises ImportError: Jinja2 is not installed
    """
    return _draw('host_map.html', host=host)


def fleet_map(found: FleetPicture, told: str) -> str:
    """Draw the page of many hosts.

    :param told: how they were read
    :raises ImportError: Jinja2 is not installed
    """
    import markupsafe

    script, _path, _is_current = _environment().loader.get_source(_environment(), 'fleet.js')
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _draw('fleet_map.html', found=found, told=told, data=markupsafe.Markup(found.data),
                 script=markupsafe.Markup(script), digest=f'sha256-{digest}')


def heat_map(found: HeatMap) -> str:
    """Draw the page of a heat map.

    :raises ImportError: Jinja2 is not installed
    """
    return _draw('heat_map.html', found=found)


def _draw(template: str, **values: Any) -> str:
    drawn: str = _environment().get_template(template).render(now=time.time(), **values)
    return drawn


@functools.cache
def _environment() -> Any:
    # Import Jinja2 only here, so that everything else works without it.
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader('devicetrack.pictures'), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, finalize=_spell_out)
    environment.filters.update(iso=moments.local, ago=moments.ago, quoted=_quoted, event_state=timeline.state,
                               event_subject=timeline.subject, event_words=timeline.words, whole=_whole)
    environment.globals.update(version=metadata.version('devicetrack'), node_name=node_name, places=_places, room=_room)
    return environment


def node_name(number: int | None) -> str:
    """Return the name of a NUMA node for people."""
    return 'No NUMA node' if number is None else f'NUMA node {number}'


def _spell_out(value: Any) -> Any:
    """Spell out unprintable characters in plain values; finished HTML from a template or a macro stays as it is."""
    return log.printable(value) if isinstance(value, str) and not hasattr(value, '__html__') else value


def _whole(text: str) -> Any:
    """Return untrusted text as HTML in which no UUID is broken at the end of a line."""
    import markupsafe

    span = markupsafe.Markup('<span class="whole">{}</span>')
    return markupsafe.Markup('').join(span.format(part) if number % 2 else log.printable(part)
                                      for number, part in enumerate(_UUID.split(text)))


def _quoted(text: str) -> str:
    """Return a text as one word of a shell, whoever chose it."""
    return shlex.quote(log.printable(text))


def _room(field: Field) -> str:
    """Return a field's CSS class for its size, after a space; '' for a field that shows more than its name."""
    if field.identifier is None or not field.is_plain:
        return ''
    length = len(log.printable(field.identifier))
    return ' tiny' if length <= _TINY else ' small' if length <= _SMALL else ''


def _places(host: HostPicture, prefix: str) -> dict[DeviceKey, str]:
    """Return the HTML ids of a host's fields, by device. They are numbered, because names are chosen by others."""
    return {DeviceKey(field.kind, field.identifier): f'{prefix}-{number}'
            for number, field in enumerate(host.fields, 1) if field.identifier is not None}
