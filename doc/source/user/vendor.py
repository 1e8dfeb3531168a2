"""The source ``vendor``: a file of a vendor's inventory says which version the drivers of each host have."""

from __future__ import annotations

import json
from typing import Any

from oslo_config import cfg

from devicetrack import conf as registry
from devicetrack import exception
from devicetrack.compatibility.facts import parse_version
from devicetrack.compatibility.facts import Sort
from devicetrack.compatibility.facts import UnknownVersion
from devicetrack.compatibility.sources import Said
from devicetrack.compatibility.sources import Source
from devicetrack.objects.values import MigrationType

OPTIONS = [cfg.StrOpt('inventory', help='Path of the inventory.')]


class Vendor(Source):

    def __init__(self, conf: Any, host: str) -> None:
        super().__init__(conf, host)
        registry.register(conf, 'vendor', OPTIONS)
        if conf.vendor.inventory is None:
            raise exception.InvalidConfiguration('[vendor] inventory', 'unset', 'name the file')
        self._versions: dict[str, str] | None = None

    def refresh(self) -> None:
        with open(self.conf.vendor.inventory, encoding='utf-8') as file:
            self._versions = json.load(file).get(self.host, {})

    def say(self, sort: Sort, said: MigrationType) -> Said:
        if self._versions is None:
            return Said(UnknownVersion('the inventory could not be read yet'))
        text = self._versions.get(f'{sort.kind} {sort.type}')
        return Said() if text is None else Said(parse_version(text))
