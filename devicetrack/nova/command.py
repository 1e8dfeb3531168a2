"""``devicetrack-nova-compute``: the program that takes the place of ``nova-compute``."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run Nova's compute service with its devices in our hands. Options and configuration files are those of Nova.

    It ends with status 1 and says why, on standard error and in Nova's log, when it does not know this Nova or cannot
    take hold of it.
    """
    # oslo.config looks for nova-compute.conf and nova-compute.conf.d only if the program has this name.
    sys.argv[0] = os.path.join(os.path.dirname(sys.argv[0]), 'nova-compute')
    # First of all: this chooses native threads or eventlet. Whatever loads oslo.log, as nearly all of ours does, loads
    # oslo.context, which eventlet must have changed before.
    import nova.cmd.compute  # noqa: F401

    from devicetrack.nova import startup
    startup.run()
