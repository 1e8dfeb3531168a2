"""Writes what a move gave to its instance as the text of a note, and reads it back. Pure."""

from __future__ import annotations

import json

from devicetrack import exception
from devicetrack.objects.values import Leftover
from devicetrack.placement.values import Resources


def to_text(given: Resources | None) -> str | None:
    """Return the text for ``Leftover.own``; None if it is unknown what the move gave."""
    return None if given is None else json.dumps(given, sort_keys=True)


def given(leftover: Leftover) -> Resources | None:
    """Return what the move gave to the instance; None if the note does not say.

    :raises MalformedObject: the note is damaged: its text is not one of :func:`to_text`
    """
    if leftover.own is None:
        return None
    where = f'the note of migration {leftover.migration_uuid}'
    try:
        found = json.loads(leftover.own)
    except (ValueError, TypeError, RecursionError) as error:
        raise exception.MalformedObject(where, f'no JSON: {error}') from error
    if not isinstance(found, dict) or not all(
            isinstance(amounts, dict) and all(type(amount) is int and amount >= 0 for amount in amounts.values())
            for amounts in found.values()):
        raise exception.MalformedObject(where, 'must be amounts by provider and resource class')
    return found


def is_readable(leftover: Leftover) -> bool:
    """Whether :func:`given` can read the note. A damaged one proves nothing, not even which end of a move it is."""
    try:
        given(leftover)
    except exception.MalformedObject:
        return False
    return True
