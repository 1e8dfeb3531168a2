"""The compute service of a host, with the library or without: what the console scripts of the two packages run.

``service.py PID_FILE devicetrack-nova-compute|nova-compute [--config-file …]``
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    with open(sys.argv[1], 'w') as file:
        file.write(str(os.getpid()))
    sys.argv[:] = sys.argv[2:]
    if sys.argv[0] == 'devicetrack-nova-compute':
        from devicetrack.nova import command
        command.main()
    else:
        from nova.cmd import compute
        compute.main()


if __name__ == '__main__':
    main()
