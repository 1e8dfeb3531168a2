"""A service's code with mistakes that mypy finds, since the package has types.

Nothing runs it. ``make lint`` fails if mypy finds one no more: then the comment that expects it is superfluous.
"""

from __future__ import annotations

import devicetrack
from devicetrack import ClaimManager


def mistakes(manager: ClaimManager, instance: object, driver: str) -> None:
    devicetrack.ClaimManger()                           # type: ignore[attr-defined]
    devicetrack.open_store('sqlite:///store')           # type: ignore[arg-type]
    devicetrack.load_driver(driver, 'compute-7', 1)     # type: ignore[arg-type]
    manager.instance_claims(None, instance)             # type: ignore[attr-defined]
    version: int = devicetrack.__version__              # type: ignore[assignment]
    devicetrack.InstanceResources.from_text(version)    # type: ignore[arg-type]
