"""The form in which facts and declarations travel: a mapping of plain values.

They are kept in a store, sent to other hosts and written to files, always in this form. Of a version not only its text
counts: that it is unknown, and why, is a fact too.
"""

from __future__ import annotations

from collections.abc import Mapping
import json
from typing import Any
from typing import Final
from typing import NoReturn

from devicetrack import exception
from devicetrack.compatibility.facts import Declaration
from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.facts import Sort
from devicetrack.compatibility.facts import SUBJECTS
from devicetrack.compatibility.versions import MigrationVersion
from devicetrack.compatibility.versions import Opaque
from devicetrack.compatibility.versions import parse_version
from devicetrack.compatibility.versions import STATELESS
from devicetrack.compatibility.versions import Stateless
from devicetrack.compatibility.versions import Unknown
from devicetrack.compatibility.versions import Version

# What the text of a version is.
NUMBERED: Final = 'numbered'                    # major.minor.patch
OPAQUE: Final = 'opaque'                        # a vendor's own
UNKNOWN: Final = 'unknown'                      # the reason why
NONE_NEEDED: Final = 'none needed'              # nothing
FORMS: Final = (NUMBERED, OPAQUE, UNKNOWN, NONE_NEEDED)


def declaration_as_data(one: Declaration) -> dict[str, Any]:
    """A declaration as plain values."""
    return {'parent': one.parent, **facts_as_data(one.facts), 'sources': dict(one.sources), 'driver': one.driver}


def declaration_from_data(data: object, where: str) -> Declaration:
    """Read what :func:`declaration_as_data` made.

    :param where: what errors call it
    :raises BadRequest: it is something else; names what
    """
    values = _mapping(data, where)
    parent = values.get('parent')
    if parent is not None and not isinstance(parent, str):
        _fail(where, 'parent', parent, 'must be the name of a parent, or null')
    sources = _mapping(values.get('sources', {}), f'{where}.sources')
    for subject, source in sources.items():
        if subject not in SUBJECTS or not isinstance(source, str):
            _fail(where, f'sources.{subject}', source, f'must name the source of {", ".join(SUBJECTS)}')
    driver = values.get('driver')
    if driver is not None and not isinstance(driver, str):
        _fail(where, 'driver', driver, 'must be the version of a driver, or null')
    return Declaration(parent, facts_from_data(values, where), tuple(sorted(sources.items())), driver)


def declaration_as_text(one: Declaration) -> str:
    """A declaration as a row of the store has it: JSON, alike for what is alike."""
    return json.dumps(declaration_as_data(one), separators=(',', ':'), sort_keys=True)


def declaration_from_text(text: str, where: str) -> Declaration:
    """Read what :func:`declaration_as_text` made.

    :raises BadRequest: a newer release wrote it, or it is damaged
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise exception.BadRequest(where, text[:40], f'is no JSON: {error}') from error
    return declaration_from_data(data, where)


def facts_as_data(facts: Facts) -> dict[str, Any]:
    """Facts as plain values."""
    form, text = version_as_data(facts.version)
    return {'kind': facts.sort.kind, 'type': facts.sort.type, 'api': facts.api, 'version_form': form, 'version': text,
            'required': sorted(facts.required), 'offered': sorted(facts.offered), 'aggregation': facts.aggregation,
            'obstacle': facts.obstacle}


def facts_from_data(data: object, where: str) -> Facts:
    """Read what :func:`facts_as_data` made. What else is in it does not matter.

    :raises BadRequest: it is something else; names what
    """
    values = _mapping(data, where)
    aggregation, obstacle = values.get('aggregation'), values.get('obstacle')
    if aggregation is not None and (type(aggregation) is not int or aggregation < 1):
        _fail(where, 'aggregation', aggregation, 'must be a number of units from 1, or null')
    if obstacle is not None and not isinstance(obstacle, str):
        _fail(where, 'obstacle', obstacle, 'must be a reason, or null')
    return Facts(Sort(_text(values, 'kind', where), _text(values, 'type', where)), _text(values, 'api', where),
                 version_from_data(values.get('version_form'), values.get('version'), where),
                 _names(values, 'required', where), _names(values, 'offered', where), aggregation, obstacle)


def version_as_data(version: MigrationVersion) -> tuple[str, str]:
    """The form of a version, and its text."""
    if isinstance(version, Version):
        return NUMBERED, str(version)
    if isinstance(version, Opaque):
        return OPAQUE, version.text
    if isinstance(version, Stateless):
        return NONE_NEEDED, ''
    return UNKNOWN, version.reason


def version_from_data(form: object, text: object, where: str) -> MigrationVersion:
    """Read what :func:`version_as_data` made.

    :raises BadRequest: it is something else
    """
    if not isinstance(text, str):
        _fail(where, 'version', text, 'must be a text')
    if form == NUMBERED:
        version = parse_version(text)
        if isinstance(version, Unknown):
            _fail(where, 'version', text, 'must be major.minor.patch, three numbers')
        return version
    if form == OPAQUE:
        return Opaque(text)
    if form == NONE_NEEDED:
        return STATELESS
    if form != UNKNOWN:
        _fail(where, 'version_form', form, f'must be one of {", ".join(FORMS)}')
    return Unknown(text)


def _mapping(data: object, where: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise exception.BadRequest(where, type(data).__name__, 'must be a mapping')
    return data


def _text(values: Mapping[str, Any], name: str, where: str) -> str:
    value = values.get(name)
    if not isinstance(value, str):
        _fail(where, name, value, 'must be a text')
    return value


def _names(values: Mapping[str, Any], name: str, where: str) -> frozenset[str]:
    names = values.get(name, [])
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        _fail(where, name, names, 'must be a list of names')
    return frozenset(names)


def _fail(where: str, element: str, value: object, reason: str) -> NoReturn:
    raise exception.BadRequest(f'{where}.{element}', value, reason)
