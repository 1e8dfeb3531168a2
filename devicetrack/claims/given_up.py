"""The claims of this process, and those of this host that failed and could not be given back.

The callers know that these claims failed, so nobody else gives the devices back. A file for each claim names the
instance. It lasts until the devices of the claim are on their way back.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import itertools
import json
import operator
import os
import re
import secrets
from typing import Final
from typing import NamedTuple

from devicetrack import log
from devicetrack import ownfiles
from devicetrack.claims.own_process import OwnProcess

LOG = log.logger(__name__)

_CLAIM_ID: Final = re.compile(r'[0-9a-f]+-[0-9a-f]+')
_UNFINISHED: Final = '.new'


class GivenUp(NamedTuple):
    """A failed claim, with its migration, if it had one. ``takes`` says that it is known to be a claim for devices."""

    instance_uuid: str
    claim_id: str
    migration_uuid: str | None
    takes: bool = False


class ClaimIds:
    """The ids of the claims that this process makes. They are unique, over restarts too."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(8)     # a UUID for each claim would cost more
        self._numbers = itertools.count()

    def next(self) -> str:
        return f'{self._prefix}-{next(self._numbers):x}'

    def made(self, claim_id: str) -> bool:
        """Whether this process made the claim with this id."""
        return claim_id.startswith(self._prefix)


class GivenUpClaims:
    """The failed claims of one host: those of this process, and those whose files it found.

    Files that appear later are not read. They come from a manager that was closed, whose claims belong to this one: it
    may have started a guest on their devices since. Any thread may call it, for different claims at the same time.

    :param state_path: the host's state directory. The caller has taken the host
    :param process: the manager's
    """

    def __init__(self, state_path: str, process: OwnProcess) -> None:
        self._directory, self._process = os.path.join(state_path, 'given-up'), process
        # Each step is one operation of a dict, so threads may share it. It also has those without a file.
        self._claims = {claim.claim_id: claim for claim in self._read()}

    def remember(self, claim: GivenUp) -> None:
        """Remember a claim durably, unless this is a forked child of the manager's process.

        An error of the file system is only logged, since the caller raises another one.
        """
        if _CLAIM_ID.fullmatch(claim.claim_id) is None:
            return                              # no manager made it, so nothing has it
        if not self._process.is_this:
            return                              # a forked child: its parent has the claim, and goes on with it
        self._claims[claim.claim_id] = claim
        path = os.path.join(self._directory, claim.claim_id)
        try:
            ownfiles.make_directory(self._directory)
            descriptor = os.open(path + _UNFINISHED, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, 'w', encoding='ascii') as file:
                json.dump(claim._asdict(), file)
                file.flush()
                os.fsync(descriptor)
            os.replace(path + _UNFINISHED, path)
            ownfiles.sync_directory(self._directory)
        except OSError as error:
            LOG.error('Claim %(claim)s of instance %(instance)s failed, and after a restart nobody would know it: '
                      '%(error)s; release the instance on this host, unless an audit gives its devices back before',
                      {'claim': claim.claim_id, 'instance': claim.instance_uuid, 'error': error})

    @contextlib.contextmanager
    def unless_it_ends(self, claim: GivenUp) -> Iterator[None]:
        """Remember a claim, durably after the block, unless the block ends it: then it calls :meth:`forget`."""
        self._claims[claim.claim_id] = claim
        try:
            yield
        finally:
            if claim.claim_id in self._claims:
                self.remember(claim)

    def forget(self, claim_id: str) -> None:
        """Forget a claim whose devices went back. An error is only logged: the next start checks the claim again."""
        if _CLAIM_ID.fullmatch(claim_id) is None:
            return                              # no file has such a name, and callers may pass any
        self._claims.pop(claim_id, None)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self._directory, claim_id))
        except OSError as error:
            LOG.warning('The record of the failed claim %(claim)s cannot be removed: %(error)s',
                        {'claim': claim_id, 'error': error})

    def has(self, claim_id: str) -> bool:
        """Whether a claim failed, and its devices may not be back. Quick: only from memory."""
        return claim_id in self._claims

    def all(self) -> list[GivenUp]:
        """Return every remembered claim. Quick: only from memory."""
        return sorted(self._claims.copy().values(), key=operator.attrgetter('claim_id'))

    def of_instance(self, instance_uuid: str) -> list[GivenUp]:
        """Return the remembered claims of an instance. Quick: only from memory."""
        return [claim for claim in self.all() if claim.instance_uuid == instance_uuid] if self._claims else []

    def _read(self) -> list[GivenUp]:
        """Read the files. One that cannot be read is logged and left out."""
        found = []
        names: list[str] = []
        try:
            ownfiles.check_directory(self._directory)       # else other users could name claims to give back
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
                claim = GivenUp(said['instance_uuid'], said['claim_id'], said['migration_uuid'],
                                said.get('takes') is True)
                if claim.claim_id != name or not isinstance(claim.instance_uuid, str):
                    raise ValueError('it names another claim')
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                LOG.warning('%(path)s cannot be read: %(error)s',
                            {'path': os.path.join(self._directory, name), 'error': error})
            else:
                found.append(claim)
        return found
