"""``devicetrack-nova-compute``: the program that takes the place of ``nova-compute``."""

from __future__ import annotations

import os
import sys

from devicetrack.nova import process


def main() -> None:
    """Run Nova's compute service with its devices in our hands. Options and configuration files are those of Nova.

    It ends with status 1 and says why in one line, on standard error and in Nova's log, when it does not know this
    Nova, cannot take hold of it, or cannot start the host's claim manager.
    """
    # oslo.config looks for nova-compute.conf and nova-compute.conf.d only if the program has this name.
    sys.argv[0] = os.path.join(os.path.dirname(sys.argv[0]), 'nova-compute')
    process.end_without_nova(process.COMPUTE)
    # First of all: this chooses native threads or eventlet. Whatever loads oslo.log, as nearly all of ours does, loads
    # oslo.context, which eventlet must have changed before.
    try:
        import nova.cmd.compute  # noqa: F401
    except Exception as error:
        # Nova reads its configuration to choose.
        from oslo_config import cfg
        if not isinstance(error, cfg.Error):
            raise
        sys.stderr.write(f'{process.COMPUTE} does not start: {error}\n')
        raise SystemExit(1) from error

    from devicetrack.nova import startup
    startup.run()
