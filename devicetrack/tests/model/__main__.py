"""``python -m devicetrack.tests.model [DEPTH]``: see :mod:`devicetrack.tests.model.check`."""

import sys

from devicetrack.tests.model import check

if __name__ == '__main__':
    sys.exit(check.main())
