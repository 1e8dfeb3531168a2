"""Pages as people see them: in a browser, at three widths, light and dark, with the keyboard and by their names."""

from __future__ import annotations

import os
import pathlib
import re
from typing import Any
import unittest

import fixtures as base_fixtures

from devicetrack.cmd import base as cmd_base
from devicetrack.tests import base
from devicetrack.tests.functional.pictures import browser
from devicetrack.tests.unit.cmd.test_migration import MigrationCommandTestCase
from devicetrack.tests.unit.pictures import pictured
from devicetrack.tests.unit.pictures.pictured import HOSTILE

WIDTHS = (320, 800, 1600)
SCHEMES = ('light', 'dark')

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

    def test_several_hosts_look_right(self) -> None:
        self.another_host()
        self.draw('--all')
        self.check(self.page)
        self.browser.show(self.page, 800)
        self.assertEqual(['compute-7', 'compute-10'], self.browser.ask(
            'Array.from(document.querySelectorAll(".host > h2")).map((one) => one.textContent)'))
        self.assertIn('Host compute-10', self.browser.names('region'))

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
                word = 'claimed' if line['status'] == 'releasing' else 'since'
                self.assertIn(f'for instance {line["instance_uuid"]} {word} ', name)

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
