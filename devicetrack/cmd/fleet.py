"""``devicetrack-manage fleet``: the mirror of a fleet, its schema, and what hosts push to it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from devicetrack.cmd import base
from devicetrack.conf import fleet as options


class Sync(base.ShowOne):
    """Make the mirror that "[devicetrack_fleet] connection" names, or bring it to this release.

    Hosts of an older release go on with their pushes, and so do those of this release when it is done. It only adds
    tables, columns and indexes. "days" is how long the mirror keeps events from now on.
    """

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        mirror = self.app.mirror
        terms = mirror.sync(self.app.conf[options.GROUP].days)
        return {'mirror': mirror.name, **terms._asdict()}
