"""``devicetrack-manage explain``: shows whether a request would fit on this host, and why not."""

from __future__ import annotations

import argparse
import collections
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import re
from typing import Any
from typing import NamedTuple

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import report
from devicetrack.cmd import base
from devicetrack.cmd import device
from devicetrack.cmd import options
from devicetrack.cmd import records
from devicetrack.engine.explanation import Shortage
from devicetrack.objects import DeviceRequest
from devicetrack.objects import event as events
from devicetrack.objects import extra_specs
from devicetrack.pictures import instance_names
from devicetrack.pictures import moments

_NO_ALIAS = 'this host knows no alias, because its options hand out no PCI functions ([devicetrack_pci])'

# How many withheld devices are explained one by one.
_SHOWN = 10

_RESOURCE = re.compile(r'(?P<resource_class>[A-Z0-9_]+)=(?P<amount>[0-9]+)(@(?P<provider>.+))?')


class WantedResource(NamedTuple):
    resource_class: str
    amount: int
    provider: str | None


class Explain(base.Lister):
    """Show whether a request would fit on this host now, and which devices there are for each part. Claims nothing.

    Give the request by --resource, as the extra specs of a flavor by --extra-spec or --extra-specs, or as the instance
    that has these devices, or was refused last, by --instance. Exit code 3 when the whole request does not fit, also
    because this host takes no claims at all.
    """

    columns = ('resource_class', 'provider', 'provider_uuid', 'wanted', 'free', 'fits', 'exist', 'held', 'instances',
               'releasing', 'withheld', 'wrong_numa_node', 'wrong_provider', 'wrong_type', 'full_parents', 'not_meant',
               'unread', 'why', 'explanation', 'withheld_devices')
    in_table = ('resource_class', 'provider', 'wanted', 'free', 'fits', 'why')
    if_filled = ('provider', 'why')
    prose = ('why', 'explanation')
    spare = ('provider',)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        options.add_host(parser)
        # Both may be repeated, but not combined.
        request = parser.add_mutually_exclusive_group(required=True)
        request.add_argument('--resource', action='append', default=[], type=_resource,
                             metavar='CLASS=AMOUNT[@PROVIDER]',
                             help='A number of devices of a resource class, from any provider of this host or from the '
                                  'one with this UUID or parent device. May be repeated.')
        request.add_argument('--extra-spec', action='append', default=[], type=_extra_spec, metavar='KEY=VALUE',
                             help='An extra spec of a flavor, such as hw:pmem=4GB,SMALL or resources:VGPU=1. May be '
                                  'repeated; those that name no devices are skipped.')
        options.add_extra_specs(request)
        request.add_argument('--instance', metavar='UUID', type=options.canonical_uuid,
                             help='What the last refused claim of this instance wanted, or else the devices that it '
                                  'has: would another instance like it fit?')
        parser.add_argument('--numa-node', action='append', default=[], type=int, metavar='N',
                            help='A NUMA node of this host that the guest runs on. May be repeated.')
        parser.add_argument('--numa-policy', choices=vocabulary.NUMA_AFFINITY_POLICIES,
                            help='How strictly devices follow the NUMA nodes. By default "required" with --resource, '
                                 'and with --extra-spec what the extra specs say.')

    def rows(self, parsed_args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
        observer = self.app.observer(parsed_args.host)
        try:
            request = self._request(parsed_args, observer)
            if observer.aliases is None and extra_specs.ALIAS in _specs(parsed_args):
                self.say(f'{extra_specs.ALIAS} is left out: {_NO_ALIAS}')
            explanation = observer.explain(request)
        except exception.UnknownProvider as error:
            raise base.UsageError(f'{error} (UUIDs as they are derived; placement may have others: name the parent '
                                  'device)') from error
        if not explanation.fits:
            self.exit_code = base.ATTENTION
            if explanation.report_only is not None:
                self.say(records.report_only(observer.host.name, explanation.report_only))
            elif all(part.fits for part in explanation.parts):
                self.say('each part would fit alone, but not all together')
        for mistake in explanation.mistakes:
            self.say(f'until this is corrected no manager starts: {mistake}')
        for unknown in explanation.unknown:
            self.say(f'could not be read, and counts as none: {unknown}')
        for line in explanation.cordoned[:_SHOWN]:
            self.say(f'parent {line.kind}/{line.parent} is withheld, with all its devices: {line.reason}')
        for line in explanation.withheld[:_SHOWN]:
            self.say(f'{line.kind}/{line.identifier} is withheld: {line.reason}')
        for line in explanation.kept[:_SHOWN]:
            self.say(f'{line.kind}/{line.identifier} is {line.status}, and will not be reassigned when it is released: '
                     f'{line.reason}')
        if len(explanation.withheld) > _SHOWN:
            self.say(f'{len(explanation.withheld) - _SHOWN} more are withheld: see devicetrack-manage device list '
                     '--withheld')
        for part in explanation.parts:
            classes = part.resource_class.split(' or ')
            closed = explanation.report_only
            why = '' if part.fits else part.why or f'all {part.exist} that exist are free, and there are no more'
            if closed is not None:
                why = f'this host takes no claims: {closed}' + (f'; {why}' if why else '')
            yield {**part._asdict(), 'fits': part.fits and closed is None, 'why': why or None,
                   'explanation': str(part) + ('' if closed is None else f'; this host takes no claims: {closed}'),
                   'provider': explanation.providers.get(part.provider_uuid or ''), 'withheld': _withheld(part),
                   'withheld_devices': _named(line for line in explanation.withheld if line.resource_class in classes
                                              and part.provider_uuid in (None, line.provider_uuid))}


    def _request(self, parsed_args: argparse.Namespace, observer: report.Observer) -> DeviceRequest:
        if parsed_args.instance is None:
            return _request(parsed_args, observer, parsed_args.resource)
        store = self.app.checked_store
        refused = [one.event for one in store.events_of_instance(parsed_args.instance)
                   if one.event.event == events.REFUSED and one.event.more.get('wanted')]
        there = store.records_everywhere(parsed_args.instance)
        if refused:
            last = refused[-1]
            self.say(f'wanted by the claim that was refused {moments.local(last.at_ms / 1000)}: {last.more["wanted"]} '
                     f'({last.more.get("reason")}: {last.more.get("why")})')
            wanted = [_resource(part) for part in str(last.more['wanted']).split(', ')]
        elif there:
            counted = collections.Counter(record.resource_class for record in there if record.role != vocabulary.OLD)
            name = records.instance_name(there)
            self.say(('' if name is None else f'it is named "{instance_names.shown(name)}"; ')
                     + 'the devices that it has: ' + ', '.join(f'{name}={amount}' for name, amount in counted.items()))
            wanted = [WantedResource(name, amount, None) for name, amount in counted.items()]
        else:
            raise exception.UnknownToStore(
                'instance', parsed_args.instance, None,
                'it has no device, and no claim of it was refused, or that was longer ago than the history goes back')
        return _request(parsed_args, observer, wanted)


def _named(lines: Iterable[report.Line]) -> base.Shown:
    lines = list(lines)
    return base.Shown([{'device': records.name(line.kind, str(line.identifier)),
                        'reasons': [device.reason_fields(reason) for reason in line.reasons]} for line in lines],
                      [f'{records.name(line.kind, str(line.identifier))}: {line.reason}' for line in lines])


def _withheld(part: Shortage) -> base.Shown:
    return base.Shown([{'reasons': reasons, 'amount': amount} for reasons, amount in part.withheld],
                      ', '.join(f'{amount} ({reasons})' for reasons, amount in part.withheld))


def _specs(parsed_args: argparse.Namespace) -> dict[str, str]:
    return dict(parsed_args.extra_spec) or parsed_args.extra_specs or {}


def _request(parsed_args: argparse.Namespace, observer: report.Observer,
             wanted: Iterable[WantedResource]) -> DeviceRequest:
    nodes = parsed_args.numa_node
    policy = parsed_args.numa_policy
    if parsed_args.extra_spec or parsed_args.extra_specs is not None:
        specs, aliases = _specs(parsed_args), observer.aliases
        request = DeviceRequest.from_extra_specs(specs, nodes, policy, aliases)
        if not request.wanted:
            if aliases is None and extra_specs.ALIAS in specs:
                raise exception.BadRequest(extra_specs.ALIAS, specs[extra_specs.ALIAS], _NO_ALIAS)
            raise base.UsageError(f'the extra specs ask for no device: {", ".join(specs)}')
        return request
    return DeviceRequest.of(
        *[(one.resource_class, one.amount, observer.provider_uuid(one.provider) if one.provider else None)
          for one in wanted],
        numa_nodes=nodes,
        numa_affinity_policy=policy or (vocabulary.REQUIRED if nodes else vocabulary.NONE))


def _resource(text: str) -> WantedResource:
    match = _RESOURCE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f'{text!r} is not CLASS=AMOUNT[@PROVIDER], for example VGPU=1')
    return WantedResource(match['resource_class'], int(match['amount']), match['provider'])


def _extra_spec(text: str) -> tuple[str, str]:
    key, separator, value = text.partition('=')
    if not separator or not key:
        raise argparse.ArgumentTypeError(f'{text!r} is not KEY=VALUE, for example hw:pmem=4GB')
    return key, value
