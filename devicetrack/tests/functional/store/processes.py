"""Other processes, for tests of what happens between processes."""

from __future__ import annotations

from collections.abc import Callable
import json
import os
import pickle
import sys
from typing import Any

from oslo_config import cfg

from devicetrack import exception
from devicetrack.store import sql
from devicetrack.testing import databases
from devicetrack.tests import processes
from devicetrack.tests.functional.store import records


def in_fork(call: Callable[[], Any]) -> Any:
    """What a call returns or raises in a forked child; the child ends without cleaning up after this process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = call()
        except BaseException as error:
            error.__cause__ = error.__context__ = None
            answer = error
        os.write(writer, pickle.dumps(answer))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, 'rb') as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(text)


def take_all(options: dict[str, str], identifiers: list[str], count: int) -> list[list[tuple[str, str]]]:
    """Let ``count`` new processes insert the same keys, each key in a transaction; what each one got, with claim ids.

    ``options`` is what :func:`options_of` made of the configuration of a store.
    """
    others = [processes.Process(__name__, json.dumps([options, identifiers])) for _ in range(count)]
    for other in others:
        other.stdout.readline()                 # it is there
    for other in others:
        other.stdin.close()
    return [[(identifier, claim_id) for identifier, claim_id in json.loads(other.communicate()[0])] for other in others]


def options_of(conf: cfg.ConfigOpts) -> dict[str, str]:
    return {'connection': conf.devicetrack_database.connection, 'state_path': conf.devicetrack.state_path}


def _take(options: dict[str, str], identifiers: list[str]) -> list[tuple[str, str]]:
    conf = databases.configuration(connection=options['connection'])
    conf.set_override('state_path', options['state_path'], 'devicetrack')
    store = sql.open_store(conf)
    taken = []
    for identifier in identifiers:
        wanted = records.record(identifier)
        try:
            store.write(records.insert(wanted))
        except exception.DeviceTaken:
            continue
        taken.append((identifier, wanted.claim_id))
    store.close()
    return taken


if __name__ == '__main__':
    sys.stdout.write('there\n')
    sys.stdout.flush()
    sys.stdin.read()
    json.dump(_take(*json.loads(sys.argv[1])), sys.stdout)
