"""What a move gave to its instance, as text and back."""

from __future__ import annotations

from devicetrack import exception
from devicetrack.objects.values import Leftover
from devicetrack.placement import notes
from devicetrack.tests import base

NOTE = Leftover('guest', 'move')


class TestNotes(base.TestCase):
    def test_text_and_back_is_the_same(self) -> None:
        for given in (None, {}, {'p': {'VGPU': 1, 'VCPU': 2}}):
            note = NOTE._replace(own=notes.to_text(given))
            self.assertEqual((given, True), (notes.given(note), notes.is_readable(note)))


class TestDamaged(base.TestCase):
    scenarios = base.table(
        ('no text', ''),
        ('torn', '{"p": {"VG'),
        ('nothing', 'null'),
        ('a list', '[]'),
        ('amounts without a provider', '{"VGPU": 1}'),
        ('a list of a provider', '{"p": ["VGPU"]}'),
        ('an amount in words', '{"p": {"VGPU": "1"}}'),
        ('a part', '{"p": {"VGPU": 0.5}}'),
        ('true', '{"p": {"VGPU": true}}'),
        ('less than nothing', '{"p": {"VGPU": -1}}'),
        ('deep', '[' * 100_000),
        names=('own',))
    own: str

    def test_is_an_error_that_names_the_migration(self) -> None:
        note = NOTE._replace(own=self.own)
        self.assertFalse(notes.is_readable(note))
        error = self.assertRaises(exception.MalformedObject, notes.given, note)
        self.assertTrue(str(error).startswith('the note of migration move: '), error)
