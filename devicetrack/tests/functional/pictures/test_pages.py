"""Pages as people see them: in a browser, at three widths, light and dark, with the keyboard and by their names."""

from __future__ import annotations

import json
import os
import pathlib
import random
import re
import shlex
import subprocess
import sys
from typing import Any
import unittest
import uuid

import fixtures as base_fixtures

from devicetrack import log
from devicetrack.claims import report
from devicetrack.cmd import base as cmd_base
from devicetrack.engine import findings
from devicetrack.pictures import fleet as pictures
from devicetrack.pictures import pages
from devicetrack.testing import fixtures
from devicetrack.tests import base
from devicetrack.tests.functional.pictures import browser
from devicetrack.tests.unit.cmd.test_migration import MigrationCommandTestCase
from devicetrack.tests.unit.fleet import fleets
from devicetrack.tests.unit.pictures import pictured
from devicetrack.tests.unit.pictures.pictured import HOSTILE

WIDTHS = (320, 800, 1600)
SCHEMES = ('light', 'dark')

# A script draws the page of many hosts.
_DRAWN = """new Promise((done) => {
    const look = () => document.getElementById('needs').hidden ? done() : setTimeout(look, 10);
    look();
})"""
_DOCUMENTATION = pathlib.Path(__file__).parents[4] / 'doc'
_PAINT = 'window.dispatchEvent(new Event("beforeprint"))'
_LOOK = pathlib.Path(__file__).with_name('look.js').read_text(encoding='utf-8')


_BROWSER = browser.Browser()


def setUpModule() -> None:
    # One for all: to start it costs more than to look.
    _BROWSER.setUp()
    unittest.addModuleCleanup(_BROWSER.cleanUp)


class PageTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.browser = _BROWSER
        self.page = os.path.join(self.useFixture(base_fixtures.TempDir()).path, 'page.html')

    def check(self, page: str) -> None:
        """Look at a page in all the ways in which people do."""
        for width in WIDTHS:
            for scheme in SCHEMES:
                self.browser.show(page, width, scheme)
                self.assertEqual([], self.browser.ask(_LOOK), f'{width} pixels, {scheme}')
        self.browser.show(page, 794, media='print')
        self.assertEqual([], self.browser.ask(_LOOK), 'in print')


class LookTestCase(PageTestCase):
    """Looking finds what is wrong."""

    def found(self, body: str) -> str:
        pathlib.Path(self.page).write_text(f'<!DOCTYPE html><body style="margin: 0; font: 16px monospace">{body}')
        self.browser.show(self.page, 320)
        return '\n'.join(self.browser.ask(_LOOK))

    def test_nothing_is_wrong_with_plain_text(self) -> None:
        self.assertEqual('', self.found('<p>words</p>'))

    def test_finds_what_is_wrong(self) -> None:
        for wrong, body in (
                ('wide', '<p style="width: 900px">words</p>'),
                ('out of the window', '<p style="white-space: nowrap">' + 'words ' * 20),
                ('sticks out', '<p style="width: 2em; overflow: hidden">endless-words-in-a-narrow-box'),
                ('over "words"', '<p>words</p><p style="margin-top: -34px">others</p>'),
                ('contrast', '<p style="color: #999">words'),
                ('contrast', '<p style="background: #14171a; color: color-mix(in srgb, #14171a 75%, #fff)">words'),
                ('too small', '<p style="font-size: 9px">words'),
                ('boxes overlap', '<div class="field" style="height: 9px">a</div><div class="field" style="margin-top: '
                                  '-6px">b</div>'),
                ('no text', '')):
            self.assertIn(wrong, self.found(body))


class HostMapTestCase(pictured.HostTestCase, PageTestCase):

    def draw(self, *arguments: str) -> None:
        answer = self.program.run('host', 'map', *arguments, '--output', self.page)
        self.assertEqual((cmd_base.ATTENTION, ''), (answer.code, answer.out), answer.err)

    def test_looks_right(self) -> None:
        self.draw()
        self.check(self.page)

    def test_tells_what_happened_with_links_to_the_devices(self) -> None:
        self.draw()
        self.browser.show(self.page, 800)
        events = self.browser.ask("""Array.from(document.querySelectorAll('.events li')).map((one) => [
            one.querySelector('.state').textContent, one.querySelector('.mono').textContent,
            one.querySelector('a')
                && document.querySelector(one.querySelector('a').hash).querySelector('.id').textContent])""")
        self.assertEqual([['released', 'vpmem/d10', 'vpmem d10'], ['withheld', 'mdev/gpu2', None],
                          ['withheld', 'vpmem/d0', 'vpmem d0']], events[:3])

    def test_no_identifier_is_broken_where_it_fits(self) -> None:
        self.draw()
        for width in WIDTHS[1:]:             # on a telephone some are wider than their field
            self.browser.show(self.page, width)
            self.assertEqual([], self.browser.ask("""Array.from(document.querySelectorAll('.mono, .id, .whole')).filter(
                (one) => one.textContent.length <= 42 && one.checkVisibility() && one.offsetHeight > 24
            ).map((one) => one.textContent)"""), f'{width} pixels')

    def test_devices_with_nothing_but_a_name_stand_side_by_side(self) -> None:
        self.draw()
        for width in WIDTHS:
            self.browser.show(self.page, width)
            free = self.browser.ask("""Array.from(document.querySelectorAll('.field.free.tiny')).map(
                (one) => one.getBoundingClientRect().top)""")
            self.assertEqual(8, len(free))
            self.assertLess(len(set(free)), 6 if width == 320 else 4, f'{width} pixels')

    def test_every_device_is_found_by_its_name(self) -> None:
        self.draw()
        self.browser.show(self.page, 320)
        names = self.browser.names('DisclosureTriangle')
        lines = self.program.run('device', 'list', '-f', 'json').data
        self.assertEqual(len(lines), len(names))
        for line in lines:
            if line['identifier'] in (None, HOSTILE):
                continue
            [name] = [name for name in names if f' {line["kind"]} {line["identifier"]} ' in f'{name} ']
            self.assertEqual(line['status'], name.split()[0])
            if line['instance_uuid'] is not None:
                self.assertIn(f'for instance {line["instance_uuid"]} claimed ', name)

    def test_words_of_others_are_text(self) -> None:
        self.draw()
        for width in WIDTHS:
            self.browser.show(self.page, width)
            self.assertEqual('Devices of host compute-7', self.browser.ask('document.title'))
            self.assertEqual(0, self.browser.ask('document.scripts.length'))
            text = self.browser.ask('document.body.textContent')
            self.assertIn('<script>document.title = "run"</script>"\' onload=x \\u202e\\x1b[31m&amp;', text)
            self.assertNotIn('\u202e', text)
            self.assertEqual(0, self.browser.ask('document.querySelectorAll("[onload]").length'))

    def test_needs_nothing_else(self) -> None:
        self.draw()
        source = pathlib.Path(self.page).read_text(encoding='utf-8')
        self.assertEqual([], re.findall(r'(?:src|href|url)\s*[=(]\s*["\']?[^"\'#\s]', source))
        self.browser.show(self.page, 800)
        self.assertEqual([], self.browser.ask('performance.getEntriesByType("resource").map((one) => one.name)'))

    def test_a_device_with_a_critical_finding_looks_like_it(self) -> None:
        self.share()
        self.draw()
        self.check(self.page)
        self.browser.show(self.page, 800)
        [(name, why)] = self.browser.ask("""Array.from(document.querySelectorAll('.alarming')).map((one) => [
            one.querySelector('.id').textContent, one.querySelector('.critical .words').textContent])""")
        held, = [row.identifier for row in self.host.records() if row.instance_uuid == self.instances[1].uuid]
        self.assertEqual(f'mdev {held}', name)
        self.assertIn('name it', why)

    def test_times_are_relative_with_the_exact_one_on_hover(self) -> None:
        self.draw()
        self.browser.show(self.page, 800)
        times = self.browser.ask("""Array.from(document.querySelectorAll('main time')).map(
            (one) => [one.textContent, one.title, one.dateTime])""")
        self.assertNotEqual([], times)
        for shown, exact, machine in times:
            self.assertRegex(shown, r'^\d+ (s|min|h|d) ago$')
            self.assertEqual(exact, machine)
            self.assertRegex(exact, r'^\d{4}-\d\d-\d\dT')

    def test_a_device_shows_its_history_and_the_command_for_all_of_it(self) -> None:
        self.draw()
        self.browser.show(self.page, 800)
        found = dict(self.browser.ask("""Array.from(document.querySelectorAll('.field')).filter(
            (one) => one.querySelector('.id')).map((one) => [one.querySelector('.id').textContent,
                Array.from(one.querySelectorAll('.more .line')).map((line) => line.textContent.trim())])"""))
        told = [one['event'] for one in self.program.ask('device', 'history', 'vpmem/d0')][::-1]
        self.assertEqual(told, [line.split()[0] for line in found['vpmem d0'] if ' ago' in line][:len(told)])
        self.assertIn('devicetrack-manage device history vpmem/d0 --host compute-7', found['vpmem d0'][-1])
        [hostile] = [lines[-1] for name, lines in found.items() if '<script>' in name]
        [_program, *words] = shlex.split(hostile.partition('history')[2].strip())
        self.assertEqual(['device', 'history', f'vpmem/{log.printable(HOSTILE)}', '--host', 'compute-7'], words)

    def test_links_of_findings_lead_to_devices(self) -> None:
        self.draw()
        self.browser.show(self.page, 800)
        links = self.browser.ask('Array.from(document.querySelectorAll(".findings a")).map((one) => [one.textContent, '
                                 'document.querySelector(one.hash).querySelector(".id").textContent])')
        self.assertNotEqual([], links)
        for shown, there in links:
            self.assertEqual(shown.replace('/', ' ', 1), there)

    def test_the_keyboard_opens_a_device(self) -> None:
        self.draw()
        self.browser.show(self.page, 800)
        for _ in range(80):
            self.browser.press('Tab')
            if self.browser.ask('document.activeElement.tagName') == 'SUMMARY':
                break
        self.assertNotEqual('none', self.browser.ask('getComputedStyle(document.activeElement).outlineStyle'))
        self.browser.press('Enter')
        self.assertTrue(self.browser.ask('document.activeElement.parentElement.open'))
        self.assertEqual([], self.browser.ask(_LOOK))

    def test_states_differ_in_more_than_colour(self) -> None:
        self.draw()
        self.browser.show(self.page, 800)
        shapes = self.browser.ask('Object.fromEntries(Array.from(document.querySelectorAll(".field")).map((one) => '
                                  '[one.querySelector(".state").textContent, document.querySelector('
                                  'one.querySelector("use").getAttribute("href")).innerHTML]))')
        self.assertEqual({'held', 'free', 'creatable', 'releasing', 'withheld', 'missing'}, set(shapes))
        self.assertEqual(len(shapes), len(set(shapes.values())))


class FleetMapTestCase(pictured.HostTestCase, PageTestCase):
    """compute-7 with everything, a host of another rack that is silent, and one that has nothing."""

    def setUp(self) -> None:
        super().setUp()
        self.fleet = self.useFixture(fleets.Fleet(f'sqlite:///{self.state_path}/mirror.db'))
        self.silent = self.useFixture(fixtures.Host(name='rack2-1', devices=3, parents={'gpu': 2}, configuration=(
            self.useFixture(fixtures.Configuration(machine='rack2-1')))))
        self.silent.spawn(pmem=1)
        bare = self.useFixture(fixtures.Host(name='rack2-10', devices=0, configuration=self.useFixture(
            fixtures.Configuration(machine='rack2-10'))))
        for host in (self.host, self.silent, bare):
            self.fleet.push(host)
        self.fleet.grow_old(self.silent, 3600)

    def draw(self, *arguments: str) -> None:
        answer = self.fleet.run('fleet', 'map', '--output', self.page, *arguments)
        self.assertEqual((cmd_base.ATTENTION, ''), (answer.code, answer.out), answer.err)

    def show(self, width: int, scheme: str = 'light', media: str = 'screen') -> None:
        self.browser.show(self.page, width, scheme, media)
        self.browser.ask(_DRAWN)

    def tiles(self) -> dict[str, dict[str, int]]:
        """The counts of each host that is shown, by its name."""
        found: dict[str, dict[str, int]] = self.browser.ask("""Object.fromEntries(
            Array.from(document.querySelectorAll('.tile:not([hidden])')).map((one) => [
                one.querySelector('b').textContent,
                Object.fromEntries(Array.from(one.querySelectorAll('.sums > span')).map((sum) => [
                    sum.querySelector('.unseen').textContent, Number(sum.lastChild.data.replaceAll(',', ''))]))]))""")
        return found

    def filtered(self, words: str) -> str:
        """Filter, and return what the page says of that."""
        said: str = self.browser.ask("""new Promise((done) => {
            const field = document.getElementById('filter'), said = document.getElementById('found');
            new MutationObserver(() => done(said.textContent)).observe(said, {childList: true});
            field.value = WORDS;
            field.dispatchEvent(new Event('input'));
        })""".replace('WORDS', json.dumps(words)))
        return said

    def said(self, *arguments: str) -> Any:
        return self.fleet.run(*arguments, '-f', 'json').data

    def test_looks_right(self) -> None:
        self.draw('--group', '^(rack[0-9]+)', '--link', 'maps/{host}.html')
        for width in WIDTHS:
            for scheme in SCHEMES:
                self.show(width, scheme)
                self.assertEqual([], self.browser.ask(_LOOK), f'{width} pixels, {scheme}')
                self.browser.ask('document.querySelector(".tile button").click()')
                self.assertEqual([], self.browser.ask(_LOOK), f'a host at {width} pixels, {scheme}')
        self.show(794, media='print')
        self.assertEqual([], self.browser.ask(_LOOK), 'in print')

    def test_what_it_counts_is_what_the_list_of_hosts_says(self) -> None:
        self.draw()
        self.show(800)
        tiles = self.tiles()
        for one in self.said('fleet', 'host', 'list'):
            found = tiles.pop(one['host'])
            if one['unknown_since'] is not None:
                self.assertEqual({'unknown': one['devices']}, found)
                continue
            self.assertEqual({name: one[name] for name in ('free', 'creatable', 'held', 'withheld') if one[name]},
                             {name: count for name, count in found.items() if name not in ('missing', 'releasing')})
            self.assertEqual(one['devices'], sum(count for name, count in found.items()
                                                 if name not in ('missing', 'creatable')))
        self.assertEqual({}, tiles)
        total = self.browser.ask("""Array.from(document.querySelectorAll('main > .counts b')).map(
            (one) => Number(one.textContent.replaceAll(',', ''))).reduce((one, other) => one + other)""")
        self.assertEqual(total, sum(sum(one.values()) for one in self.tiles().values()))

    def test_a_silent_host_is_hatched_and_says_since_when(self) -> None:
        self.draw()
        self.show(800)
        self.browser.ask(_PAINT)
        [tile] = self.browser.ask('Array.from(document.querySelectorAll(".tile.silent")).map((one) => ['
                                  'one.querySelector("b").textContent, one.querySelector(".age").textContent,'
                                  'getComputedStyle(one.querySelector(".grid")).backgroundImage.split("(")[0],'
                                  'Array.from(new Set(Array.from(one.querySelectorAll("path")).map((path) => '
                                  'path.className.baseVal)))])')
        self.assertEqual('rack2-1', tile[0])
        self.assertRegex(tile[1], r'^unknown since \d{4}-\d\d-\d\d \d\d:\d\d$')
        self.assertEqual(['repeating-linear-gradient', ['unknown']], tile[2:])
        self.assertRegex(self.browser.ask('document.querySelector(".tile .age").textContent'), 'ago$')

    def test_the_filter_finds_devices_by_what_an_operator_knows(self) -> None:
        self.draw('--group', '^rack[0-9]+')
        self.show(800)
        device = next(one for one in self.said('fleet', 'device', 'list') if one['serial'])
        for words, hosts in (
                ('rack2', {'rack2-1', 'rack2-10'}), (self.instances[0].uuid, {'compute-7'}), ('unknown', {'rack2-1'}),
                (device['serial'], {'compute-7'}), ('vgpu free', set()), ('creatable', {'compute-7'}),
                ('VGPU', {'compute-7'}), ('no such thing', set())):
            said = self.filtered(words)
            self.assertEqual(hosts, set(self.tiles()), words)
            self.assertTrue(said.startswith(f'{len(hosts)} of 3 hosts'), said)
        held = len(self.said('fleet', 'device', 'list', '--status', 'held'))
        self.assertIn(f', {held} devices: {held} held', self.filtered('held'))      # and none that is withheld
        self.assertEqual('', self.filtered(''))
        self.assertEqual(3, len(self.tiles()))

    def test_a_host_opens_with_its_devices_and_links_to_its_own_map(self) -> None:
        self.draw('--link', 'maps/{host}.html')
        self.show(800)
        self.browser.ask('document.querySelector(".tile button").click()')
        names = self.browser.ask('Array.from(document.querySelectorAll("#host .id")).map((one) => one.textContent)')
        lines = self.said('fleet', 'device', 'list', '--host', 'compute-7')
        self.assertEqual([log.printable(one['identifier']) for one in lines if one['identifier']], names)
        self.assertEqual('maps/compute-7.html', self.browser.ask(
            'document.querySelector("#host a").getAttribute("href")'))
        self.assertEqual([one['instance_uuid'] for one in lines if one['instance_uuid']], self.browser.ask(
            'Array.from(document.querySelectorAll("#host .line")).filter((one) => one.firstChild.textContent === "for")'
            '.map((one) => one.lastChild.textContent)'))

    def test_a_device_with_a_critical_finding_has_a_frame(self) -> None:
        self.share()
        self.fleet.push(self.host)
        self.draw()
        self.show(800)
        self.browser.ask(_PAINT)
        frames = self.browser.ask('document.querySelector("path.frame").getAttribute("d")')
        self.assertEqual(2, frames.count('M'))          # outside and inside
        self.filtered('critical compute-7')
        self.browser.ask('document.querySelector(".tile button").click()')
        [(name, why)] = self.browser.ask("""Array.from(document.querySelectorAll('.alarming')).map((one) => [
            one.querySelector('.id').textContent, one.querySelector('.critical .words').textContent])""")
        self.assertRegex(why, '^used by several: domains .* name it$')
        self.assertEqual(f'1 critical finding: {findings.SHARED}', self.browser.ask(
            'document.querySelector("#host .wrong").textContent'))
        self.assertIn(name, {row.identifier for row in self.host.records()
                             if row.instance_uuid == self.instances[1].uuid})

    def test_words_of_others_are_text(self) -> None:
        self.draw('--group', '^(.)')
        self.show(800)
        self.browser.ask('document.querySelector(".tile button").click()')
        self.assertEqual(['Devices of 3 hosts', 2, 0], self.browser.ask(
            '[document.title, document.scripts.length, document.querySelectorAll("[onload]").length]'))
        text = self.browser.ask('document.getElementById("host").textContent')
        self.assertIn('<script>document.title = "run"</script>"\' onload=x \\u202e\\x1b[31m&amp;', text)
        self.assertNotIn('\u202e', text)

    def test_without_a_script_it_has_the_sums(self) -> None:
        self.draw('--group', '^(rack[0-9]+)')
        source = pathlib.Path(self.page).read_text(encoding='utf-8')
        self.assertIn('1 host: 3 unknown', source.replace('2 hosts', '1 host'))
        self.assertIn('A script draws the hosts below', source)

    def test_it_needs_nothing_else(self) -> None:
        self.draw()
        source = pathlib.Path(self.page).read_text(encoding='utf-8')
        self.assertEqual([], re.findall(r'(?:src|href|url)\s*[=(]\s*["\']?[^"\'#\s$]', source.partition('<script')[0]))
        self.show(800)
        self.assertEqual([], self.browser.ask('performance.getEntriesByType("resource").map((one) => one.name)'))

    def test_a_changed_script_does_not_run(self) -> None:
        self.draw()
        page = pathlib.Path(self.page)
        page.write_text(page.read_text(encoding='utf-8').replace("'use strict';", "'use strict'; "), encoding='utf-8')
        self.browser.show(self.page, 800)
        self.assertEqual(0, self.browser.ask('document.querySelectorAll(".tile").length'))

    def test_all_hosts_of_a_store_have_the_same_page(self) -> None:
        self.another_host()
        answer = self.program.run('host', 'map', '--all', '--output', self.page, '--group=-(.*)')
        self.assertEqual((cmd_base.ATTENTION, ''), (answer.code, answer.out), answer.err)
        self.show(800)
        tiles = self.tiles()
        self.assertEqual(['compute-7', 'compute-10'], list(tiles))
        self.assertEqual({'held': 1}, tiles['compute-10'])
        self.assertEqual(['7', '10'], self.browser.ask(
            'Array.from(document.querySelectorAll(".rack h2")).map((one) => one.textContent)'))
        self.assertEqual([], self.browser.ask(_LOOK))


class DocumentedFleetTestCase(PageTestCase):

    def test_the_fleet_of_the_documentation_is_drawn_and_looks_right(self) -> None:
        directory = os.path.dirname(self.page)
        subprocess.run([sys.executable, '-W', 'ignore', str(_DOCUMENTATION / 'fleet_picture.py'), directory],
                       check=True, env={**os.environ, 'PYTHONPATH': str(_DOCUMENTATION.parent)})
        self.browser.show(os.path.join(directory, 'demo-fleet.html'), 800)
        self.browser.ask(_DRAWN)
        self.assertEqual(20, self.browser.ask('document.querySelectorAll(".tile").length'))
        self.assertEqual([], self.browser.ask(_LOOK))


class FleetSizeTestCase(base.TestCase):

    def test_2000_hosts_with_100_devices_have_room_on_5_mb(self) -> None:
        """Each device is a mediated one with a UUID of its own, and with an owner of its own."""
        chance = random.Random(1)

        def new() -> str:
            return str(uuid.UUID(int=chance.getrandbits(128)))

        found = pictures.of(pictures.Tile(f'rack{number // 40}-compute-{number}', f'rack{number // 40}', [
            pictures.Square('mdev', new(), report.HELD, 1, 'VGPU', f'pci_0000_{card:02x}_00_0', card % 2, new(),
                            f'{number:06}{card:03}')
            for card in range(10) for _device in range(10)], '45 s ago') for number in range(2000))
        page = pages.fleet_map(found, 'Read')
        self.assertEqual({report.HELD: 200_000}, found.counts)
        self.assertLess(len(page.encode()), 5_000_000)


class HeatMapTestCase(MigrationCommandTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.page = os.path.join(self.state_path, 'page.html')
        self.browser = _BROWSER
        self.declare(self.there, '2.0.0')
        self.another('compute-10', devices=1, parents={'gpu': 4})

    def draw(self) -> None:
        answer = self.program.run('migration', 'matrix', '--output', self.page)
        self.assertEqual((cmd_base.OK, ''), (answer.code, answer.out), answer.err)

    check = PageTestCase.check

    def test_looks_right(self) -> None:
        self.draw()
        self.check(self.page)

    def test_many_hosts_look_right(self) -> None:
        for number in range(20, 34):
            self.another(f'compute-{number}.example.org', devices=1, parents={'gpu': 4})
        self.draw()
        self.check(self.page)
        for width, media in ((320, 'screen'), (800, 'screen'), (794, 'print')):
            self.browser.show(self.page, width, media=media)
            self.assertEqual(0, self.browser.ask("""(() => { const heat = document.querySelector('.heat');
                return heat.scrollWidth - heat.clientWidth; })()"""), f'{width} pixels, {media}')

    def test_each_field_has_its_answer_and_its_reason(self) -> None:
        self.draw()
        self.browser.show(self.page, 1600)
        rows: list[Any] = self.browser.ask("""Array.from(document.querySelectorAll('tbody tr')).map((row) => [
            row.querySelector('b').textContent,
            ...Array.from(row.querySelectorAll('td')).map((cell) => [cell.querySelector('.host').textContent,
                cell.querySelector('.state')?.firstChild.nextSibling.data.trim() ?? 'itself',
                cell.querySelector('a') ? document.querySelector(cell.querySelector('a').hash)
                    .querySelector('p').textContent : ''])])""")
        expected = {row['type'] for row in self.program.run('migration', 'matrix', '-f', 'json').data}
        found = {title: {host: (answer, why) for host, answer, why in cells} for title, *cells in rows}
        newest = next(cells for title, cells in found.items() if title == 'mdev nvidia-35, 2.1.0')
        self.assertEqual(['compute-7', 'compute-8', 'compute-10'], list(newest))
        self.assertEqual(('itself', ''), newest['compute-7'])
        self.assertEqual('no', newest['compute-8'][0])
        self.assertIn('2.0.0', newest['compute-8'][1])
        self.assertEqual(sum(len(row) for row in found.values()), 3 * len(found))
        self.assertIn('nvidia-35', expected)


class MissingTestCase(base.TestCase):

    def test_a_missing_browser_fails_and_says_what_installs_it(self) -> None:
        self.useFixture(base_fixtures.MonkeyPatch('shutil.which', lambda name: None))
        error = self.assertRaises(AssertionError, browser.find)
        self.assertIn('apt-get install chromium', str(error))
