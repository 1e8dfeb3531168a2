"""``python -m devicetrack.testing.model [DEPTH]``: see :mod:`devicetrack.testing.model.check`."""

import sys

from devicetrack.testing.model import check

if __name__ == '__main__':
    sys.exit(check.main())
