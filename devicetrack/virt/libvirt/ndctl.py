"""The namespaces in ndctl's JSON. Pure: text in, tuples out.

The form of ``ndctl list`` depends on its arguments (ndctl-list(1)). With regions it prints an object that has the
namespaces inside their regions. For namespaces alone it prints a list, or a single object when there is only one. The
list has no order. Without any namespace ndctl prints nothing.
"""

from __future__ import annotations

import json
import re
from typing import Any
from typing import NamedTuple
import uuid

from devicetrack import exception

DOCUMENT = 'ndctl list'
# --configured lists disabled namespaces too, and --verbose lists NUMA nodes.
ARGUMENTS = ('list', '--namespaces', '--regions', '--device-dax', '--configured', '--verbose')
MAX_LENGTH = 16 * 1024 * 1024

# Both become parts of paths.
_CHARDEV = re.compile(r'dax[0-9]+\.[0-9]+')
_REGION = re.compile(r'region[0-9]+')


class Namespace(NamedTuple):
    """One namespace of this host, as it is now.

    ``name`` and ``uuid`` are '' if it has none. ``uuid`` is None while nobody can read which namespace it is, and then
    it has a ``problem``: while it is disabled or raw, ndctl prints the UUID and the size of the whole, which are
    others. ``path`` is valid in this boot, and '' if it has none. ``dax`` says that it is a device-dax character
    device, not a file. ``problem`` is None, or the reason why no guest can have it. An unknown NUMA node is None.
    """

    name: str
    uuid: str | None
    path: str
    size_bytes: int
    align_bytes: int
    region: str | None
    numa_node: int | None
    dax: bool
    problem: str | None = None


def parse(text: str) -> list[Namespace]:
    """Read what ``ndctl list`` printed, in any of its forms, without ``--human``.

    A namespace with a name of which something cannot be read has a ``problem``, and only its name.

    :raises InvalidDocument: it is too long, is no JSON, has another form, or has a namespace of which not even the name
        can be read
    """
    if len(text) > MAX_LENGTH:
        raise exception.InvalidDocument(DOCUMENT, 'length', f'more than {MAX_LENGTH} characters')
    if not text.strip():
        return []
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise exception.InvalidDocument(DOCUMENT, 'document', 'not JSON') from error
    if isinstance(found, dict) and 'dev' not in found:
        if found and ('error' in found or not found.keys() & {'regions', 'namespaces'}):
            raise exception.InvalidDocument(DOCUMENT, 'document', 'neither regions nor namespaces')
        listed = []
        for index, region in enumerate(_list(found.get('regions', []), 'regions')):
            where = f'regions[{index}]'
            _object(region, where)
            listed.extend(_listed(_list(region.get('namespaces', []), f'{where}.namespaces'), region, where))
        return listed + _listed(_list(found.get('namespaces', []), 'namespaces'), {}, 'namespaces')
    return _listed(_list(found, 'document'), {}, 'document')


def _listed(namespaces: list[Any], region: dict[str, Any], where: str) -> list[Namespace]:
    return [_one_or_its_name(_object(namespace, f'{where}[{index}]'), region, f'{where}[{index}]')
            for index, namespace in enumerate(namespaces)]


def _one_or_its_name(namespace: dict[str, Any], region: dict[str, Any], where: str) -> Namespace:
    try:
        return _one(namespace, region, where)
    except exception.InvalidDocument as error:
        name = namespace.get('name')
        if not isinstance(name, str) or not name:
            raise
        return Namespace(name, None, '', 0, 0, None, None, True,
                         f'{DOCUMENT} cannot be understood at {error.where}: {error.reason}')


def _one(namespace: dict[str, Any], region: dict[str, Any], where: str) -> Namespace:
    mode = namespace.get('mode')
    chardev, devices, device = namespace.get('chardev'), 1, {}
    if 'daxregion' in namespace:
        dax = _list(_object(namespace['daxregion'], f'{where}.daxregion').get('devices', []), f'{where}.devices')
        devices, device = len(dax), _object(dax[0], f'{where}.devices[0]') if dax else {}
        chardev = chardev or device.get('chardev')
    if chardev is not None and not (isinstance(chardev, str) and _CHARDEV.fullmatch(chardev)):
        raise exception.InvalidDocument(DOCUMENT, f'{where}.chardev', 'not the name of a dax device')
    problem = None
    if namespace.get('state') == 'disabled':
        problem = 'it is disabled'      # checked first, because ndctl lists a disabled namespace as a raw one
    elif mode != 'devdax':
        problem = f'its mode is {mode if isinstance(mode, str) else "unknown"}, not devdax'
    elif chardev is None:
        problem = 'it has no character device'
    elif devices != 1:
        problem = f'it is divided into {devices} character devices'
    elif device.get('mode', 'devdax') != 'devdax':
        problem = 'its character device is given to the host as memory'
    elif device.get('state') == 'disabled':
        problem = 'its character device is disabled'
    elif namespace.get('badblock_count'):
        problem = 'it has bad blocks'
    name = namespace.get('name', '')
    if not isinstance(name, str):
        raise exception.InvalidDocument(DOCUMENT, f'{where}.name', 'not a string')
    parent = region.get('dev')
    if parent is not None and not (isinstance(parent, str) and _REGION.fullmatch(parent)):
        raise exception.InvalidDocument(DOCUMENT, f'{where}.region', 'not the name of a region')
    itself: str | None = _uuid(namespace.get('uuid'), f'{where}.uuid', required=bool(name))
    size_bytes = _number(namespace.get('size', 0), f'{where}.size')
    # ndctl prints the UUID of the whole beside that of an enabled namespace (raw_uuid), and in its place otherwise.
    if name and (mode == 'raw' or not isinstance(mode, str) or (
            namespace.get('state') == 'disabled' and 'raw_uuid' not in namespace)):
        itself, size_bytes = None, 0
    return Namespace(
        name, itself, f'/dev/{chardev}' if chardev else '', size_bytes,
        _number(namespace.get('align', 0), f'{where}.align'), parent,
        _node(namespace.get('numa_node', region.get('numa_node')), f'{where}.numa_node'), True, problem)


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise exception.InvalidDocument(DOCUMENT, where, 'not an object')
    return value


def _list(value: Any, where: str) -> list[Any]:
    """Return the value as a list. ndctl prints a list of one as an object."""
    if isinstance(value, dict):
        return [value]
    if not isinstance(value, list):
        raise exception.InvalidDocument(DOCUMENT, where, 'not a list')
    return value


def _number(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise exception.InvalidDocument(DOCUMENT, where, 'not a number of bytes')
    return value


def _node(value: Any, where: str) -> int | None:
    """Return a NUMA node. The kernel reports -1 for none."""
    if value is None or value == -1:
        return None
    return _number(value, where)


def _uuid(value: Any, where: str, required: bool) -> str:
    if value is None and not required:
        return ''
    try:
        found = uuid.UUID(value)
        if not found.int and required:          # the namespace has none: its name alone would be its identity
            raise ValueError
        return str(found)
    except (ValueError, AttributeError, TypeError):
        raise exception.InvalidDocument(DOCUMENT, where, 'not a UUID') from None
