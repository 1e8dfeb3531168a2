"""``devicetrack-manage fleet capacity``: what is free in a fleet, and how many instances with a request fit now."""

from __future__ import annotations

import argparse
import collections
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import re
from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import report
from devicetrack.cmd import base
from devicetrack.cmd import mirrored
from devicetrack.cmd import options
from devicetrack.conf import pci
from devicetrack.engine import demand as demands
from devicetrack.engine.demand import Demand
from devicetrack.fleet import capacity
from devicetrack.fleet import models
from devicetrack.fleet.reading import Picture
from devicetrack.fleet.reading import Reader
from devicetrack.objects import DeviceRequest
from devicetrack.objects import extra_specs
from devicetrack.pictures import natural

_CLASS: Final = re.compile('([A-Z0-9_]+)=([0-9]+)')
_NOT_OURS: Final = (report.UNKNOWN, report.MISSING, report.OBSERVED)
# A cell of a table names so many hosts.
_SHOWN: Final = 3


class Capacity(mirrored.OfMirror):
    """Show how many devices of each resource class the fleet has, and how many are free; or what fits a request.

    With a request it counts how many instances that ask for it fit now, all together, and on how many hosts ("fits",
    "fits_on"). It asks the allocator that claims use, so NUMA nodes and devices that exclude one another count.
    "stranded" are free devices that are left after that: on their hosts something else of the request is missing.
    "lost" is how many more instances would fit if the free devices were not divided among hosts and NUMA nodes.

    A device of a silent host is "unknown", and one of a host that is report-only is withheld. The types that one parent
    can make share its room, and each counts all of it. Exit code 3 when a host is unknown, or when nothing fits. Reads
    only the mirror, and reserves nothing.
    """

    columns = ('resource_class', 'total', 'held', 'free', 'releasing', 'withheld', 'unknown', 'hosts', 'unknown_hosts',
               'age_s', 'wanted', 'fits', 'fits_on', 'stranded', 'stranded_on', 'lost')
    in_table: tuple[str, ...] = ('resource_class', 'total', 'held', 'free', 'withheld', 'unknown', 'hosts')
    spare: tuple[str, ...] = ('unknown', 'total', 'withheld')

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        mirrored.add_hosts(parser)
        request = parser.add_mutually_exclusive_group()
        request.add_argument('--request', metavar='CLASS=AMOUNT|ALIAS[:AMOUNT],…',
                             help='What each instance asks for, such as VGPU=1,CUSTOM_PMEM_NAMESPACE_4GB=2. The '
                                  'aliases are those of [pci] alias in the configuration.')
        options.add_extra_specs(request)
        mirrored.add_numa(parser, 'By default what hw:numa_nodes of the extra specs says, or 0: the devices may be '
                          'anywhere.', 'By default "required" with --numa-nodes and --request, and what the extra '
                          'specs say with --extra-specs.')

    def nothing(self, parsed_args: argparse.Namespace) -> str:
        return 'no host has a device'

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        if parsed_args.request or parsed_args.extra_specs:
            self.in_table = ('resource_class', 'wanted', 'free', 'fits', 'fits_on', 'stranded', 'lost')
            self.spare = ('wanted', 'free')
        return super().take_action(parsed_args)

    def rows(self, parsed_args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
        demand, nodes = self._demand(parsed_args)
        reader = self.read(parsed_args.host)
        classes = _classes(reader, self._pictures)
        if demand is None:
            for name in sorted(classes, key=natural.key):
                yield {**classes[name], **dict.fromkeys(self.columns[self.columns.index('wanted'):])}
            return
        total, hosts, free, stranded, on = 0, 0, collections.Counter[str](), collections.Counter[str](), \
            collections.defaultdict[str, list[dict[str, Any]]](list)
        for picture, found in self._fitting(reader, demand, nodes):
            total += found.instances
            hosts += bool(found.instances)
            free.update(found.free)
            stranded.update(found.stranded)
            for name, amount in found.stranded.items():
                if amount:
                    on[name].append({'host': picture.name, 'amount': amount})
        wanted = capacity.wanted(demand)
        lost = min(sum(free[name] for name in names) // amount for names, amount in wanted.items()) - total
        if not total:
            self.exit_code = base.ATTENTION
        self.say(f'{base.count(total, "instance")} with that would fit now on {base.count(hosts, "host")}' + (
            f'; {lost:,} more if the free devices were not divided' if lost > 0 else ''))
        for names, amount in wanted.items():
            for name in names:
                yield {**classes.get(name, _none(name)), 'wanted': amount, 'fits': total, 'fits_on': hosts,
                       'stranded': stranded[name], 'stranded_on': base.Shown(on[name], _in_words(on[name])),
                       'lost': max(0, lost)}

    def _fitting(self, reader: Reader, demand: Demand, nodes: int) -> Iterator[tuple[Picture, capacity.Fitting]]:
        open_hosts = [one for one in self._pictures if not one.is_silent and one.report_only is None]
        for picture, parts in reader.parts(open_hosts, (models.INVENTORY,)):
            if models.INVENTORY in parts:
                yield picture, capacity.fitting(parts[models.INVENTORY], demand, nodes)
            else:
                self.say(f'host {picture.name} has pushed no inventory, and counts as full')

    def _demand(self, parsed_args: argparse.Namespace) -> tuple[Demand | None, int]:
        """Return what each instance wants, and on how many NUMA nodes it runs.

        :raises UsageError, BadRequest: it asks for no device, or it is malformed
        """
        nodes, policy = parsed_args.numa_nodes, parsed_args.numa_policy
        if parsed_args.request is not None:
            specs = _as_extra_specs(parsed_args.request)
            policy = policy or (vocabulary.REQUIRED if nodes else None)
        elif parsed_args.extra_specs is not None:
            specs = parsed_args.extra_specs
            if nodes is None and specs.get('hw:numa_nodes', '').isdecimal():
                nodes = int(specs['hw:numa_nodes'])
        elif nodes is not None or policy is not None:
            raise base.UsageError('--numa-nodes and --numa-policy are about a request: add --request or --extra-specs')
        else:
            return None, 0
        request = DeviceRequest.from_extra_specs(specs, None, policy, self._aliases(specs))
        if not request.wanted:
            raise base.UsageError(f'the request asks for no device: {", ".join(specs)}')
        return demands.from_request(request, ()), nodes or 0

    def _aliases(self, specs: Mapping[str, str]) -> Any:
        if extra_specs.ALIAS not in specs:
            return None
        from devicetrack.virt.libvirt.kinds import pci_options  # no other request needs it
        return pci_options.read_aliases(self.app.conf[pci.SERVICE_GROUP].alias)


def _classes(reader: Reader, pictures: Sequence[Picture]) -> dict[str, dict[str, Any]]:
    """Return the numbers of each resource class."""
    found: dict[str, dict[str, Any]] = {}
    hosts: dict[str, set[Picture]] = collections.defaultdict(set)
    for picture, name, status, amount in reader.amounts(pictures):
        if status in _NOT_OURS:
            continue
        of_class = found.setdefault(name, _none(name))
        hosts[name].add(picture)
        if status == report.CREATABLE:
            status = report.FREE
        if picture.is_silent:
            status = report.UNKNOWN
        elif status == report.FREE and picture.report_only is not None:
            status = report.WITHHELD
        of_class['total'] += amount
        of_class[status] += amount
    for name, of_class in found.items():
        of_class.update(hosts=len(hosts[name]), unknown_hosts=sum(one.is_silent for one in hosts[name]),
                        age_s=max((one.age_s for one in hosts[name] if not one.is_silent), default=None))
    return found


def _none(name: str) -> dict[str, Any]:
    return {'resource_class': name, **dict.fromkeys(('total', report.HELD, report.FREE, report.RELEASING,
                                                     report.WITHHELD, report.UNKNOWN, 'hosts', 'unknown_hosts'), 0),
            'age_s': None}


def _in_words(on: Sequence[Mapping[str, Any]]) -> str:
    most = sorted(on, key=lambda one: -one['amount'])
    return exception.in_short([f'{one["amount"]} on {one["host"]}' for one in most], _SHOWN)


def _as_extra_specs(text: str) -> dict[str, str]:
    """Return a request in the form of extra specs."""
    specs: dict[str, str] = {}
    aliases = []
    for part in filter(None, map(str.strip, text.split(','))):
        match = _CLASS.fullmatch(part)
        if match is None:
            aliases.append(part if ':' in part else f'{part}:1')
        elif (name := f'resources:{match[1]}') in specs:
            raise base.UsageError(f'--request {text!r} names {match[1]} twice')
        else:
            specs[name] = match[2]
    return specs | ({extra_specs.ALIAS: ','.join(aliases)} if aliases else {})
