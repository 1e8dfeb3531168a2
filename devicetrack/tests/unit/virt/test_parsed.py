"""A definition that did not change is not parsed again, and one that did is."""

from __future__ import annotations

from unittest import mock

from devicetrack import exception
from devicetrack.tests import base
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import parsed

DOCUMENT = 'domain'


def definition(path: str, more: str = '') -> str:
    return (f"<domain type='qemu'><name>{more}</name><uuid>6c9af4d2-4f5b-4c0e-9a55-6a1e3f0a1b2c</uuid><devices>"
            f"<memory model='nvdimm'><source><path>{path}</path></source></memory></devices></domain>")


class ParsedTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.parsed = parsed.Parsed()
        patch = mock.patch.object(domain_xml, 'parse', wraps=domain_xml.parse)
        self.parse = patch.start()
        self.addCleanup(patch.stop)

    def look(self, *texts: str) -> list[str]:
        with self.parsed.look() as parse:
            return [path for text in texts for path in parse(text, DOCUMENT).memory_paths]

    def test_what_did_not_change_is_parsed_no_more(self) -> None:
        texts = [definition('/one'), definition('/two')]
        for _look in range(2):                          # the first look keeps nothing
            self.assertEqual(['/one', '/two'], self.look(*texts))
        self.parse.reset_mock()
        self.assertEqual(['/one', '/two'], self.look(*texts))
        self.parse.assert_not_called()

    def test_what_changed_is_parsed(self) -> None:
        self.look()
        self.look(definition('/one'))
        self.assertEqual(['/two'], self.look(definition('/two')))
        self.assertEqual(['/one'], self.look(definition('/one')))

    def test_what_was_not_seen_in_the_last_look_is_not_kept(self) -> None:
        self.look()
        self.look(definition('/one'))
        self.look()
        self.parse.reset_mock()
        self.look(definition('/one'))
        self.parse.assert_called_once()

    def test_a_look_that_failed_changes_nothing(self) -> None:
        self.look()
        self.look(definition('/one'))
        try:
            with self.parsed.look():
                raise exception.HypervisorUnreachable('test:///', 'gone')
        except exception.HypervisorUnreachable:
            pass
        self.parse.reset_mock()
        self.assertEqual(['/one'], self.look(definition('/one')))
        self.parse.assert_not_called()

    def test_what_cannot_be_parsed_is_an_error_each_time(self) -> None:
        self.look()
        for _look in range(2):
            self.assertRaises(exception.InvalidDocument, self.look, '<domain/>')

    def test_any_text_that_libvirt_hands_on(self) -> None:
        self.look()
        self.assertRaises(exception.InvalidDocument, self.look, definition('/one', '\udc80'))
