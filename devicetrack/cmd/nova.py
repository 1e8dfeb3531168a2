"""Entry points of programs that work with Nova: Nova must choose its threads before anything else is imported."""

from __future__ import annotations

import sys

from devicetrack.nova import process


def adopt() -> int:
    """Run ``devicetrack-nova-adopt`` (:mod:`devicetrack.cmd.nova_adopt`).

    :returns: its exit code
    """
    # Whoever asks for help or about a package may not have Nova yet.
    if not any(word in ('-h', '--help', '--version') or word.startswith('--check-p') for word in sys.argv[1:]):
        process.end_without_nova('devicetrack-nova-adopt')
        process.choose_threads()
    from devicetrack.cmd import nova_adopt
    return nova_adopt.main()
