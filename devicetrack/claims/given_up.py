"""Claims that were given up and could not be given back, remembered on this host: it is the store that failed.

Their callers were told that they failed, so nobody else goes on with them. A file for each claim names the instance; it
lasts until an audit or a start has given back what the claim took.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from typing import Final
from typing import NamedTuple

from devicetrack import log
from devicetrack import ownfiles

LOG = log.logger(__name__)

_CLAIM_ID: Final = re.compile(r'[0-9a-f]+-[0-9a-f]+')
_UNFINISHED: Final = '.new'


class GivenUp(NamedTuple):
    """A claim, and the migration that it was for, if any."""

    instance_uuid: str
    claim_id: str
    migration_uuid: str | None


class GivenUpClaims:
    """Those of one host. May be called from any thread, for different claims at the same time.

    :param state_path: the host's state directory
    """

    def __init__(self, state_path: str) -> None:
        self._directory = os.path.join(state_path, 'given-up')

    def remember(self, claim: GivenUp) -> None:
        """Keep a claim, durably. An error of the file system is logged: the caller has one of its own to raise."""
        if _CLAIM_ID.fullmatch(claim.claim_id) is None:
            return                              # it is none of a manager's: nothing has it
        path = os.path.join(self._directory, claim.claim_id)
        try:
            ownfiles.make_directory(self._directory)
            descriptor = os.open(path + _UNFINISHED, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, 'w', encoding='ascii') as file:
                json.dump(claim._asdict(), file)
                file.flush()
                os.fsync(descriptor)
            os.replace(path + _UNFINISHED, path)
            directory = ownfiles.open_directory(self._directory)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            LOG.error('Claim %(claim)s of instance %(instance)s was given up, which cannot be remembered: %(error)s; '
                      'release the instance on this host',
                      {'claim': claim.claim_id, 'instance': claim.instance_uuid, 'error': error})

    def forget(self, claim_id: str) -> None:
        """What the claim took went back, or it took nothing. An error is logged: it will be asked about once more."""
        if _CLAIM_ID.fullmatch(claim_id) is None:
            return                              # no file has such a name, and callers may hand in any
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self._directory, claim_id))
        except OSError as error:
            LOG.warning('Claim %(claim)s cannot be forgotten: %(error)s', {'claim': claim_id, 'error': error})

    def all(self) -> list[GivenUp]:
        """Every claim that is remembered. What cannot be read is logged and left out."""
        found = []
        names: list[str] = []
        try:
            ownfiles.check_directory(self._directory)       # else somebody else could name claims to give back
            names = sorted(os.listdir(self._directory))
        except FileNotFoundError:
            pass
        except OSError as error:
            LOG.error('%(path)s cannot be read: %(error)s', {'path': self._directory, 'error': error})
        for name in names:
            if name.endswith(_UNFINISHED):
                continue
            try:
                with open(os.path.join(self._directory, name), encoding='ascii') as file:
                    said = json.load(file)
                claim = GivenUp(said['instance_uuid'], said['claim_id'], said['migration_uuid'])
                if claim.claim_id != name or not isinstance(claim.instance_uuid, str):
                    raise ValueError('it names another claim')
            except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
                LOG.warning('%(path)s cannot be read: %(error)s',
                            {'path': os.path.join(self._directory, name), 'error': error})
            else:
                found.append(claim)
        return found
