"""``make crash-test``."""

import sys

from devicetrack.testing.crash import program
from devicetrack.tests.crash import operations

sys.exit(program.main(operations.OPERATIONS))
