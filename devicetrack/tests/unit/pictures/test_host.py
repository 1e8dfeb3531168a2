"""What is in a picture of a host, and how a terminal shows it."""

from __future__ import annotations

import os
import re
import stat
import sys
from unittest import mock

import fixtures as base_fixtures

from devicetrack import vocabulary
from devicetrack.claims import report
from devicetrack.claims import withheld
from devicetrack.cmd import base as cmd_base
from devicetrack.objects import event as event_objects
from devicetrack.pictures import host as pictures
from devicetrack.pictures import pages
from devicetrack.pictures import terminal
from devicetrack.pictures import timeline
from devicetrack.testing import fake
from devicetrack.tests.unit.pictures import pictured

_COLOUR = re.compile(r'\x1b\[[0-9;]*m')


class PictureTestCase(pictured.HostTestCase):

    def read(self) -> pictures.HostPicture:
        """The picture that a report of the host gives."""
        store = self.host.store.store
        observer = report.Observer(store.hosts()[0], self.host.driver, store, self.host.conf)
        return pictures.read('compute-7', observer.inventory(), observer.audit(), self.host.records())

    def field(self, picture: pictures.HostPicture, identifier: str) -> pictures.Field:
        [found] = [field for field in picture.fields if field.identifier == identifier]
        return found

    def test_has_every_line_of_the_inventory(self) -> None:
        picture = self.read()
        lines = self.program.run('device', 'list', '-f', 'json').data
        self.assertEqual(sorted((line['kind'], line['identifier'] or '', line['status']) for line in lines),
                         sorted((field.kind, field.identifier or '', field.state) for field in picture.fields))
        self.assertEqual({'held': 4, 'free': 10, 'creatable': 2, 'releasing': 1, 'withheld': 3, 'missing': 1},
                         picture.counts)

    def test_devices_are_at_their_nodes_and_parents_in_the_order_of_people(self) -> None:
        picture = self.read()
        self.assertEqual([0, 1, None], [node.number for node in picture.nodes])
        region = next(parent for parent in picture.nodes[0].parents if parent.name == 'region0')
        self.assertEqual([f'd{number}' for number in range(12)], [field.identifier for field in region.fields])

    def test_says_who_has_a_device(self) -> None:
        held = self.field(self.read(), 'd0')
        record = next(row for row in self.host.records() if row.identifier == 'd0')
        self.assertEqual(record, held.owner)

    def test_says_what_is_withheld_and_why_whoever_has_it(self) -> None:
        picture = self.read()
        [reason] = self.field(picture, 'd0').reasons
        self.assertEqual((vocabulary.CORDONED, 'the module reports errors', 'operator'),
                         (reason.reason, reason.detail, reason.by))
        self.assertIsNotNone(reason.since)
        self.assertEqual(pictured.HOSTILE, self.field(picture, 'd5').reasons[0].detail)

    def test_what_a_parent_says_its_devices_do_not_repeat(self) -> None:
        parent = next(one for node in self.read().nodes for one in node.parents if one.name == 'gpu2')
        self.assertEqual(['a new firmware'], [reason.detail for reason in parent.reasons])
        self.assertEqual([(report.WITHHELD, ())], [(field.state, field.reasons) for field in parent.fields])

    def test_says_how_far_a_wipe_is(self) -> None:
        releasing = next(field for field in self.read().fields if field.state == report.RELEASING)
        self.assertEqual(3 << 30, releasing.wipe.done_bytes if releasing.wipe else None)
        self.assertEqual((), releasing.reasons)

    def test_the_worst_finding_comes_first(self) -> None:
        severities = [vocabulary.SEVERITIES.index(finding.severity) for finding in self.read().findings]
        self.assertEqual(sorted(severities), severities)
        self.assertEqual({1, 2}, set(severities))

    def test_what_could_not_be_read_is_said(self) -> None:
        self.host.machine.unknown_kinds[fake.VPMEM] = 'ndctl failed'
        picture = self.read()
        self.assertEqual({(fake.VPMEM, 'ndctl failed')}, set(picture.unread))
        self.assertTrue(picture.needs_attention)

    def test_tells_the_last_events_in_words(self) -> None:
        uuid = self.host.manager.state().host_uuid
        events = [stored.event for stored in self.host.store.store.latest_events(uuid, 3)]
        self.assertEqual([('released', report.RELEASING, ''),
                          ('withheld', report.WITHHELD, 'the whole parent, cordoned: a new firmware, by operator'),
                          ('withheld', report.WITHHELD, 'cordoned: the module reports errors, by operator')],
                         [(event.event, timeline.state(event), timeline.words(event)) for event in events])
        self.assertEqual({report.HELD, report.FREE, report.RELEASING, report.WITHHELD},
                         {timeline.state(events[0]._replace(event=name)) for name in event_objects.EVENTS})
        leaving = events[0]._replace(event=event_objects.LEAVING)
        self.assertEqual(report.HELD, timeline.state(leaving))          # the instance has it until the move is over
        wiped = events[0]._replace(event=event_objects.WIPED,
                                   details=event_objects.Wiped(1 << 30, 2.5, 'x').as_details())
        self.assertEqual('1,073,741,824 bytes, in 2.5 s', timeline.words(wiped))
        moved = events[0]._replace(event=event_objects.MOVED, details=event_objects.text(**{'from': 'a', 'to': None}))
        self.assertEqual('from a to an unknown host', timeline.words(moved))

    def test_a_reason_that_ended_is_not_shown_as_one_that_holds(self) -> None:
        more = {'reason': 'unproven', 'why': 'it has not been read through yet', 'by': 'host'}
        said = [', '.join(timeline.facts({**more, 'event': event, **proof})) for event, proof in (
            ('withheld', {}), ('admitted', {}), ('admitted', {'proof': 'read'}))]
        self.assertEqual([
            'unproven: it has not been read through yet, by host',
            'ended: unproven: it has not been read through yet, by host',
            'proven clean: read, ended: unproven: it has not been read through yet, by host'], said)

    def test_by_the_store_alone(self) -> None:
        marks = withheld.load(self.host.store.store, self.host.manager.state().host_uuid)
        records = self.host.records()
        picture = pictures.stored('compute-7', records, marks)
        self.assertEqual({'held': 4, 'releasing': 1, 'withheld': 1}, picture.counts)
        self.assertEqual(('d5', pictured.HOSTILE), next(
            (field.identifier, field.reasons[0].detail) for field in picture.fields if field.state == report.WITHHELD))
        self.assertEqual(['a new firmware'], [reason.detail for node in picture.nodes for parent in node.parents
                                              if parent.name == 'gpu2' for reason in parent.reasons])

    # -- in a terminal ------------------------------------------------------------------------------------------------

    def lines(self, width: int = 80, colour: bool = False, encoding: str = 'utf-8') -> list[str]:
        return list(terminal.Pen(width, colour, encoding).hosts([self.read()]))

    def test_fits_a_terminal(self) -> None:
        for width in (80, 120, 160):
            self.assertEqual([], [line for line in self.lines(width) if len(line) > width
                                  and not ('a-name-without-an-end' in line or '<script>' in line)])

    def test_identifiers_are_never_broken(self) -> None:
        drawn = '\n'.join(self.lines(60))
        for field in self.read().fields:
            if field.identifier is not None and field.identifier != pictured.HOSTILE:
                self.assertIn(field.identifier, drawn)
            if field.owner is not None:
                self.assertIn(f'for {field.owner.instance_uuid}', drawn)

    def test_the_time_of_an_owner_is_that_of_its_claim(self) -> None:
        drawn = ' '.join(' '.join(self.lines(160)).split())
        for field in self.read().fields:
            if field.owner is not None:
                self.assertIn(f'for {field.owner.instance_uuid} claimed ', drawn)

    def test_words_of_others_are_one_line_of_text(self) -> None:
        lines = self.lines()
        self.assertTrue(all(line.isprintable() for line in lines))
        self.assertIn('\\x1b[31m', '\n'.join(lines))

    def test_colours_change_nothing_else(self) -> None:
        coloured = self.lines(colour=True)
        self.assertEqual(self.lines(), [_COLOUR.sub('', line) for line in coloured])
        self.assertNotEqual(self.lines(), coloured)

    def test_ascii_is_enough(self) -> None:
        lines = self.lines(encoding='ascii')
        self.assertTrue('\n'.join(lines).isascii())
        self.assertTrue(any('############....' in line and '3,072 of 4,096 MiB' in line for line in lines), lines)

    def test_devices_of_which_there_is_nothing_to_say_share_lines(self) -> None:
        self.assertIn('    □ free      d2  d3  d4  d6  d7  d8  d9  d11', self.lines())


class CommandTestCase(pictured.HostTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.output = os.path.join(self.useFixture(base_fixtures.TempDir()).path, 'map.html')

    def test_draws_this_machine(self) -> None:
        answer = self.program.run('host', 'map')
        self.assertEqual((cmd_base.ATTENTION, ''), (answer.code, answer.err))
        lines = answer.out.splitlines()
        self.assertEqual('Host compute-7', lines[0])
        self.assertEqual(['    ~ released', '    x withheld', '    x withheld', '    # started'], [
            line[:14].rstrip() for line in lines[lines.index('Last events') + 1:] if line[4] != ' '][:4])
        self.assertNotIn('\x1b', answer.out)

    def test_another_host_is_drawn_by_the_store(self) -> None:
        self.another_host()
        self.host.machine.calls.clear()
        answer = self.program.run('host', 'map', 'compute-10')
        self.assertEqual(cmd_base.OK, answer.code, answer.err)
        self.assertEqual({}, self.host.machine.calls)
        self.assertEqual(['Host compute-10', '# 1 held', 'Drawn from the store alone: free devices, findings and wipes '
                          'are known on the'], answer.out.splitlines()[:3])

    def test_all_hosts_come_as_people_count(self) -> None:
        self.another_host()
        lines = self.program.run('host', 'map', '--all').out.splitlines()
        self.assertEqual(['Host compute-7', 'Host compute-10'], [line for line in lines if line.startswith('Host')])
        self.assertEqual(cmd_base.USAGE, self.program.run('host', 'map', '--all', 'compute-7').code)

    def test_a_host_that_nobody_knows_is_an_error(self) -> None:
        answer = self.program.run('host', 'map', 'compute-9', '--output', self.output)
        self.assertEqual(cmd_base.ERROR, answer.code)
        self.assertIn('compute-9', answer.err)
        self.assertFalse(os.path.exists(self.output))

    def test_a_host_that_needs_nothing_is_no_error(self) -> None:
        machine = self.host.machine
        machine.missing = ()
        machine.wiping.clear()
        answer = self.program.run('host', 'map', '--output', self.output)
        self.assertEqual((cmd_base.OK, '', ''), answer)

    def test_a_page_takes_the_place_of_an_older_one(self) -> None:
        with open(self.output, 'w', encoding='utf-8') as file:
            file.write('older')
        self.program.run('host', 'map', '--output', self.output)
        with open(self.output, encoding='utf-8') as file:
            self.assertIn('Devices of host compute-7', file.read())
        umask = os.umask(0)
        os.umask(umask)
        self.assertEqual(0o666 & ~umask, stat.S_IMODE(os.stat(self.output).st_mode))
        self.assertEqual(['map.html'], os.listdir(os.path.dirname(self.output)))

    def test_a_page_that_cannot_be_written_is_an_error(self) -> None:
        answer = self.program.run('host', 'map', '--output', '/nowhere/map.html')
        self.assertEqual((cmd_base.USAGE, 'devicetrack-manage: /nowhere/map.html cannot be written: No such file or '
                                          'directory\n'), (answer.code, answer.err))

    def test_without_jinja2_a_terminal_is_drawn_and_a_page_says_what_is_missing(self) -> None:
        pages._environment.cache_clear()
        with mock.patch.dict(sys.modules, {'jinja2': None}):
            self._without_jinja2()
        pages._environment.cache_clear()

    def _without_jinja2(self) -> None:
        self.assertEqual(cmd_base.ATTENTION, self.program.run('host', 'map').code)
        answer = self.program.run('host', 'map', '--output', self.output)
        self.assertEqual(cmd_base.USAGE, answer.code)
        self.assertIn('jinja2, which draws pages, is not installed: install devicetrack[pictures]', answer.err)
