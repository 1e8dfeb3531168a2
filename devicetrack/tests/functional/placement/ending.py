"""A process that ends a move when its standard input ends, for tests that kill it meanwhile."""

from __future__ import annotations

import sys

from oslo_config import cfg

from devicetrack.conf import opts
from devicetrack.placement.allocations import AllocationClient
from devicetrack.store.leftovers import HostLeftovers
from devicetrack.store.sql import open_store


def end(how: str, config_file: str, host_uuid: str, instance_uuid: str, migration_uuid: str) -> None:
    """Confirm or revert: ``how`` is the name of the call."""
    conf = cfg.ConfigOpts()
    opts.register_options(conf)
    conf(['--config-file', config_file], project='devicetrack')
    leftovers = HostLeftovers(open_store(conf), host_uuid)
    getattr(AllocationClient.from_conf(conf, leftovers), how)(instance_uuid, migration_uuid)


if __name__ == '__main__':
    sys.stdin.read()
    end(*sys.argv[1:])
