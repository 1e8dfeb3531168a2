"""``devicetrack-nova-compute``: the program that replaces ``nova-compute``."""

from __future__ import annotations

import os
import sys

from devicetrack.nova import process


def main() -> None:
    """Run Nova's compute service, with devicetrack allocating its devices. It takes Nova's options and files.

    If the adapter does not support the installed Nova, or cannot start the host's claim manager, the program ends with
    status 1 and writes the reason in one line to standard error and to Nova's log.
    """
    # oslo.config looks for nova-compute.conf and nova-compute.conf.d only if the program has this name.
    sys.argv[0] = os.path.join(os.path.dirname(sys.argv[0]), 'nova-compute')
    process.end_without_nova(process.COMPUTE)
    # Import this first: it chooses native threads or eventlet. Nearly all of our modules load oslo.log and with it
    # oslo.context, which eventlet must have patched before.
    try:
        import nova.cmd.compute  # noqa: F401
    except Exception as error:
        # Nova reads its configuration to choose, so this may fail.
        from oslo_config import cfg
        if not isinstance(error, cfg.Error):
            raise
        sys.stderr.write(f'{process.COMPUTE} does not start: {error}\n')
        raise SystemExit(1) from error

    from devicetrack.nova import startup
    startup.run()
