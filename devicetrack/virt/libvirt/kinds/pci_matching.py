"""Tells which PCI functions an option means: by vendor, product, address or network interface. No I/O.

The forms are those of Nova's ``[pci] device_spec``. An address is a text with wildcards or an object of regular
expressions. An expression matches from the beginning of a field and need not reach its end, as in Nova.
"""

from __future__ import annotations

from collections.abc import Mapping
import json
import re
from typing import Any
from typing import Final
from typing import NamedTuple

from devicetrack.virt.libvirt.kinds import json_entries
from devicetrack.virt.libvirt.pci_sysfs import Function

KEYS: Final = frozenset(('vendor_id', 'product_id', 'address', 'devname'))

ANY: Final = '*'
_FIELDS: Final = ('domain', 'bus', 'slot', 'function')
# The greatest value of each field of an address, and the number of its digits. Nova's greatest domain is FFFF; the
# kernel gives greater domains to controllers that have a domain of their own.
_LARGEST: Final = (0xFFFFFFFF, 0xFF, 0x1F, 0x7)
_DIGITS: Final = (4, 2, 2, 1)
_ID_LARGEST: Final = 0xFFFF
_ID_DIGITS: Final = 4
_HEX: Final = re.compile('(?:0[xX])?([0-9a-fA-F]+)')


class Addresses(NamedTuple):
    """The addresses that an option means: an expression for each field, which need not reach the end of the field.

    ``texts`` are the fields as they are written. ``exact`` says that each is :data:`ANY` or a whole field as in sysfs.
    """

    patterns: tuple[re.Pattern[str], ...]
    texts: tuple[str, ...]
    exact: bool

    def matches(self, address: str) -> bool:
        return all(mine.match(theirs) for mine, theirs in zip(self.patterns, _split(address), strict=True))

    def is_of(self, address: str) -> bool:
        """Whether this spells out that one address."""
        return self.texts == _split(address)


class Match(NamedTuple):
    """Matches a function when everything that is not None does."""

    vendor_id: str | None = None
    product_id: str | None = None
    address: Addresses | None = None
    devname: str | None = None

    def matches(self, function: Function) -> bool:
        """Whether this matches a function. The single address of a physical function matches its virtual ones too.

        So does the name of its interface.
        """
        if self.vendor_id not in (None, function.vendor_id) or self.product_id not in (None, function.product_id):
            return False
        return self._is_at(function)

    def may_match(self, function: Function) -> bool:
        """As :meth:`matches`, but a function without a product, which nobody can read, may be any product."""
        return self.matches(function) if function.product_id else self._is_at(function)

    def _is_at(self, function: Function) -> bool:
        if self.devname is not None:
            return self.devname in function.net or (function.parent is not None
                                                    and self.devname in function.parent.net)
        if self.address is None:
            return True
        return (function.physfn is not None and self.address.is_of(function.physfn)) \
            or self.address.matches(function.address)


EVERYTHING: Final = Match()


def read(entry: json_entries.Entry) -> Match:
    """Read the keys :data:`KEYS` of an object.

    :raises InvalidConfiguration: one cannot be used
    """
    devname, address = entry.text('devname'), entry.values.get('address')
    if devname is not None and address:
        raise entry.mistake('devname', 'the object has an address too: write one or the other')
    if devname is not None and not devname.strip():
        raise entry.mistake('devname', 'it is empty: write the name of a network interface, or remove the key')
    return Match(entry.read('vendor_id', _id), entry.read('product_id', _id), _address(entry, address), devname)


def one_address(match: Match) -> str | None:
    """Return the single address that a match spells out; None if it may mean several addresses, or none."""
    if match.address is None or not match.address.exact or ANY in match.address.texts:
        return None
    domain, bus, slot, function = match.address.texts
    return f'{domain}:{bus}:{slot}.{function}'


def hex_id(text: str) -> str:
    """Return a vendor's or a product's id in four hexadecimal digits.

    :raises ValueError: the text is not an id; the message has the reason
    """
    return _hex(text, _ID_LARGEST, _ID_DIGITS, 'id')


def _id(text: str) -> str | None:
    return None if text.strip() == ANY else hex_id(text)


def _hex(text: str, largest: int, digits: int, what: str) -> str:
    found = _HEX.fullmatch(text.strip())
    if found is None:
        raise ValueError(f'the {what} {text!r} is no hexadecimal number: write digits from 0 to f')
    if int(found[1], 16) > largest:
        raise ValueError(f'the {what} {text} is greater than {largest:X}: correct it')
    return format(int(found[1], 16), f'0{digits}x')


def _address(entry: json_entries.Entry, address: Any) -> Addresses | None:
    if not address and (address is None or isinstance(address, (str, dict))):
        return None
    try:
        if isinstance(address, str):
            return _glob(address)
        if isinstance(address, dict):
            return _expressions(address)
    except ValueError as error:
        raise entry.mistake('address', str(error)) from error
    raise entry.mistake('address', f'{json.dumps(address)} is no address: write a text like "0000:0a:00.0", or an '
                                   f'object with {", ".join(_FIELDS)}')


def _glob(text: str) -> Addresses | None:
    front, _dot, function = text.partition('.')
    fields = front.split(':') if front else []
    if len(fields) > 3:
        raise ValueError(f'{text!r} has more than three fields before the dot: write domain:bus:slot.function')
    written = [ANY] * (3 - len(fields)) + [field.strip() or ANY for field in fields] + [function.strip() or ANY]
    if set(written) == {ANY}:
        return None
    texts = tuple(field if field == ANY else _hex(field, largest, digits, name)
                  for field, largest, digits, name in zip(written, _LARGEST, _DIGITS, _FIELDS, strict=True))
    return Addresses(tuple(re.compile('' if text == ANY else f'{text}$') for text in texts), texts, True)


def _expressions(fields: Mapping[str, Any]) -> Addresses:
    for name in fields:
        if name not in _FIELDS:
            raise ValueError(f'{name!r} is no part of an address: write {", ".join(_FIELDS)}')
    patterns = tuple(_expression(name, fields.get(name, '.*')) for name in _FIELDS)
    return Addresses(patterns, tuple(pattern.pattern for pattern in patterns), False)


def _expression(name: str, text: Any) -> re.Pattern[str]:
    if not isinstance(text, str):
        raise ValueError(f'the {name} {json.dumps(text)} is no text: put it in quotation marks')
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f'the {name} {text!r} is no regular expression ({error}): correct it') from error


def _split(address: str) -> tuple[str, ...]:
    """Return the four fields of an address in the form of sysfs."""
    domain, bus, rest = address.split(':')
    slot, _dot, function = rest.partition('.')
    return domain, bus, slot, function
