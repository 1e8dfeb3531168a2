"""Names of resource classes and traits as operators write them, in the form in which placement knows them.

The rules are those of Nova's options, so that one service reports the names that the other asks for. A name that
os-traits or os-resource-classes has stays as it is. A name with the prefix is put into capital letters. Any other name
also gets the prefix, with an underscore for everything between letters and digits. Blanks after a comma count as part
of a trait's name, as they do in Nova: ``blue, big`` are ``CUSTOM_BLUE`` and ``CUSTOM__BIG``.
"""

from __future__ import annotations

import re
from typing import Final

from devicetrack import vocabulary
from devicetrack.objects.extra_specs import OF_THE_SERVICE

_CUSTOM: Final = 'CUSTOM_'
_PRODUCT: Final = re.compile('CUSTOM_PCI_([0-9A-F]{4}|UNKNOWN)_([0-9A-F]{4}|UNKNOWN)')
_UNKNOWN: Final = 'UNKNOWN'
_BETWEEN: Final = re.compile('[^0-9A-Z]+')


def resource_class(text: str) -> str:
    """Return the resource class for a name.

    :raises ValueError: the name cannot be a resource class; the message has the reason
    """
    import os_resource_classes
    name = text.upper()
    if name in OF_THE_SERVICE:
        raise ValueError(f'{name} counts resources of the compute service itself: choose another name')
    if name not in os_resource_classes.STANDARDS and not name.startswith(_CUSTOM):
        name = _prefixed(name)
    return _checked(text, name)


def of_product(vendor_id: str, product_id: str) -> str:
    """Return the resource class of a product without one of its own. The ids have four hexadecimal digits.

    An empty id is one that nobody can read.
    """
    return f'{_CUSTOM}PCI_{vendor_id or _UNKNOWN}_{product_id or _UNKNOWN}'.upper()


def product_of(resource_class: str) -> tuple[str, str] | None:
    """Return the vendor's and the product's id of a class that :func:`of_product` makes; None for any other."""
    match = _PRODUCT.fullmatch(resource_class)
    return None if match is None else (match[1].lower(), match[2].lower())


def traits(text: str) -> frozenset[str]:
    """Return the traits for names separated by commas.

    :raises ValueError: one of them cannot be a trait; the message has the reason
    """
    # Import os_traits only here, because its import reads some hundred files.
    import os_traits
    if not text:
        return frozenset()
    standard, rest = os_traits.check_traits(text.split(','))
    return frozenset(standard) | frozenset(_trait(name) for name in rest)


def _trait(text: str) -> str:
    name = text.upper()
    return _checked(text, name if name.startswith(_CUSTOM) else _prefixed(name))


def _prefixed(name: str) -> str:
    return _CUSTOM + _BETWEEN.sub('_', name)


def _checked(text: str, name: str) -> str:
    if not text or name == _CUSTOM:
        raise ValueError('a name is empty: remove it, or the comma beside it')
    if not vocabulary.PLACEMENT_NAME.fullmatch(name):
        raise ValueError(f'{text!r} would be {name}, which placement does not take: write at most 255 capital letters, '
                         'digits and underscores')
    return name
