"""Options with several values, each a JSON object or a list of objects, and errors that locate a mistake in them."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
import json
from typing import Any
from typing import NamedTuple
from typing import TypeVar

from oslo_utils import strutils

from devicetrack import exception

Read = TypeVar('Read')


class Entry(NamedTuple):
    """One JSON object of an option. ``written`` is the value that contains it, ``place`` says which value that is."""

    option: str
    place: str
    written: str
    values: dict[str, Any]

    def mistake(self, key: str | None, reason: str) -> exception.InvalidConfiguration:
        """Make the error for a key of this object, or for the whole object."""
        where = self.place if key is None else f'{self.place}, key {key!r}'
        return exception.InvalidConfiguration(self.option, self.written, f'{where}: {reason}')

    def check_keys(self, known: Collection[str]) -> None:
        """Check that the object has no other keys: a misspelt key would silently match more or fewer functions.

        :raises InvalidConfiguration: it has another key
        """
        for key in self.values:
            if key not in known:
                raise self.mistake(key, f'there is no such key: remove it, or write one of {", ".join(sorted(known))}')

    def text(self, key: str) -> str | None:
        """Return the text at a key; None if the key is missing or null.

        :raises InvalidConfiguration: the value is not a text
        """
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise self.mistake(key, f'{json.dumps(value)} is no text: put it in quotation marks')
        return value

    def read(self, key: str, read: Callable[[str], Read]) -> Read | None:
        """Read and convert the text at a key; None if the key is missing or null.

        :param read: converts the text; raises ValueError, with the reason, for an invalid text
        :raises InvalidConfiguration: the value is not a text, or is invalid
        """
        value = self.text(key)
        if value is None:
            return None
        try:
            return read(value)
        except ValueError as error:
            raise self.mistake(key, str(error)) from error

    def flag(self, key: str) -> bool | None:
        """Return whether a key says yes; None if it is missing or null.

        :raises InvalidConfiguration: the value is neither yes nor no
        """
        value = self.values.get(key)
        if value is None:
            return None
        try:
            return bool(strutils.bool_from_string(value, strict=True))
        except ValueError as error:
            raise self.mistake(key, f'{json.dumps(value)} is neither yes nor no: write "yes" or "no"') from error

    def choice(self, key: str, choices: Collection[str]) -> str | None:
        """Return the text at a key, one of ``choices``; None if the key is missing or null.

        :raises InvalidConfiguration: the value is another text
        """
        value = self.text(key)
        if value is not None and value not in choices:
            raise self.mistake(key, f'{value!r} is not known: write one of {", ".join(choices)}')
        return value


def read(option: str, values: Iterable[str], lists: bool = True) -> Iterator[Entry]:
    """Read the values of an option in their order.

    :param lists: whether a value may be a list of objects
    :raises InvalidConfiguration: a value is not JSON, or not an object
    """
    for number, written in enumerate(values, 1):
        place = f'entry {number}'
        whole = Entry(option, place, written, {})
        try:
            found = json.loads(written)
        except (ValueError, RecursionError) as error:
            raise whole.mistake(None, f'it is no JSON ({error}): write an object, {{"KEY": "VALUE", …}}') from error
        if isinstance(found, dict):
            yield whole._replace(values=found)
        elif isinstance(found, list) and lists:
            for index, one in enumerate(found, 1):
                item = whole._replace(place=f'{place}, object {index} of its list')
                if not isinstance(one, dict):
                    raise item.mistake(None, f'{json.dumps(one)} is no object: write {{"KEY": "VALUE", …}}')
                yield item._replace(values=one)
        else:
            some = ', or a list of such objects' if lists else ''
            raise whole.mistake(None, f'it is no object: write {{"KEY": "VALUE", …}}{some}')
