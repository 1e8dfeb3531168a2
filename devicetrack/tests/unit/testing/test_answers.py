"""What the contract's checks refuse of a stock, each by name."""

from __future__ import annotations

from typing import Any
from typing import cast

from devicetrack.objects.values import Attribute
from devicetrack.objects.values import Capacity
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Fault
from devicetrack.objects.values import MigrationType
from devicetrack.objects.values import Missing
from devicetrack.testing.kinds import answers
from devicetrack.tests import base
from devicetrack.tests.unit.virt.test_installed import DETAILS
from devicetrack.tests.unit.virt.test_installed import device
from devicetrack.tests.unit.virt.test_installed import Tape
from devicetrack.virt.libvirt.kinds import api


class StockTestCase(base.TestCase):

    scenarios = base.table(
        ('no details', [device('t1', text='')], "device 't1' has no details as"),
        ('details that are no text', [device(), device('t1', text=None)], "device 't1' has no details as"),
        ('details of a later device', [device(), device('t2', text='')], "device 't2' has no details as"),
        ('details of another class', [device(), device('t2', resource_class='CUSTOM_REEL', text='{}')], "device 't2'"),
        ('another kind', [device('t1', kind='vpmem')], "device 't1' is of kind 'vpmem'"),
        ('a class that it did not announce', [device(resource_class='CUSTOM_DISC')], "'CUSTOM_DISC', which is not in"),
        ('no identifier', [device('')], "device '' has an identifier"),
        ('an identifier that is no text', [device(7)], 'device 7 has an identifier'),
        ('an identifier that no store takes', [device('a' * 256)], 'no text of 1 to 255 characters'),
        ('an identifier with a slash', [device(), device('a/b')], "device 'a/b' has an identifier that is no text of 1 "
         'to 255 characters that can be printed, without a slash'),
        ('an identifier of two lines', [device(), device('a\nb')], "device 'a\\nb' has an identifier"),
        ('a NUMA node as text', [device(), device('t1')._replace(numa_node='0')],  # type: ignore[arg-type]
         "device 't1' has the NUMA node '0', which is neither None nor a number from 0"),
        ('a NUMA node that sysfs does not know', [device(), device('t1')._replace(numa_node=-1)], 'the NUMA node -1'),
        ('truth for a NUMA node', [device(), device('t1')._replace(numa_node=True)],
         'the NUMA node True'),
        ('a capacity on a NUMA node as text',
         api.Stock(capacities=(Capacity('tape', 'drive', 'lto', '', 'CUSTOM_TAPE', '0', 1,  # type: ignore[arg-type]
                                        DETAILS),)),
         "the capacity of drive for lto has the NUMA node '0'"),
        ('exclusions that are no pairs', [device(), device('t1')._replace(exclusions=('x',))],  # type: ignore[arg-type]
         "device 't1' has the exclusions ('x',), which are no tuple of (token, mode)"),
        ('a token twice', [device(), device('t1')._replace(exclusions=(('x', 'part'), ('x', 'whole')))],
         "device 't1' has the exclusions (('x', 'part'), ('x', 'whole')), which are no tuple of (token, mode), each"),
        ('a token twice in one mode', [device('t1')._replace(exclusions=(('x', 'part'), ('x', 'part')))],
         'each token once'),
        ('a mode that is none', [device('t1')._replace(exclusions=(('x', 'half'),))], 'part, whole, together'),
        ('features that are one text', [device('t1')._replace(features='big')],  # type: ignore[arg-type]
         "device 't1' has the features 'big', which are no tuple of texts"),
        ('a set of features', [device('t1')._replace(features=frozenset(('big',)))],  # type: ignore[arg-type]
         'which are no tuple of texts'),
        ('features that are no texts', [device('t1')._replace(features=(1,))],  # type: ignore[arg-type]
         'which are no tuple of texts'),
        ('a provider of two lines', [device(), device('t1')._replace(provider='a\nb')],
         "device 't1' has the provider 'a\\nb', which is neither empty nor 1 to 128 characters"),
        ('a provider with a slash', [device('t1')._replace(provider='a/b')], "has the provider 'a/b'"),
        ('a provider that is too long', [device('t1')._replace(provider='a' * 129)], 'has the provider'),
        ('no provider', [device('t1')._replace(provider=None)], 'has the provider None'),  # type: ignore[arg-type]
        ('a parent with a slash', [device(), device('t1')._replace(parent='a/b')],
         "device 't1' has the parent 'a/b', which is neither None nor 1 to 255 characters"),
        ('a parent that is too long', [device('t1')._replace(parent='a' * 256)], 'has the parent'),
        ('an empty parent', [device('t1')._replace(parent='')], "has the parent ''"),
        ('a capacity of a parent that is none',
         api.Stock(capacities=(Capacity('tape', 'a/b', 'lto', '', 'CUSTOM_TAPE', None, 1, DETAILS),)),
         "the capacity of a/b for lto has the parent 'a/b'"),
        ('a capacity without details',
         api.Stock(capacities=(Capacity('tape', 'drive', 'lto', '', 'CUSTOM_TAPE', None, 1, ''),)),
         'the capacity of drive for lto has no details'),
        ('health that is no text', [device(), device('t1')._replace(unhealthy=False)],  # type: ignore[arg-type]
         "device 't1' is unhealthy by False"),
        ('assignable by a text', [device(), device('t1')._replace(assignable='no')],  # type: ignore[arg-type]
         "is assignable by 'no', which"),
        ('a migration type that is no text', [device(), device('t1')._replace(migration_type=7)],  # type: ignore[arg-type]
         "device 't1' has the migration type 7, which is neither None nor a text"),
        *((f'a capacity of {wrong!r} devices',
           api.Stock(capacities=(
               Capacity('tape', 'drive', 'lto', '', 'CUSTOM_TAPE', None, cast(Any, wrong), DETAILS),)),
           f'the capacity of drive for lto has {wrong!r} available, which is no number')
          for wrong in (None, '1', 1.0, True)),
        *((f'{field} {wrong!r}', api.Stock((device(),))._replace(**cast(Any, {field: wrong})),
           f'its {field}')
          for field in ('missing', 'faults', 'written', 'nothing_kept', 'by_person') for wrong in (None, 7, (7,))),
        ('faults that are texts', api.Stock((device(),), faults=('x',)), 'its faults have'),  # type: ignore[arg-type]
        ('an iterator of faults', api.Stock((device(),), faults=iter(())),  # type: ignore[arg-type]
         'are no sequence'),
        ('a fault of another kind', api.Stock((device(),), faults=(Fault(DeviceKey('other', 'b'), 'x', 'y'),)),
         'which is no Fault of this kind'),
        ('what is missing without a reason',
         api.Stock((device(),), missing=(Missing(DeviceKey('tape', 'b'), 'x', None),)),  # type: ignore[arg-type]
         'which is no Missing of this kind'),
        ('one written text', api.Stock((device(),), written='a'), "its written, 'a', are no collection"),
        names=('said', 'says'))

    def test_it_is_refused(self) -> None:
        kind: Any = Tape(self.conf, None)  # type: ignore[arg-type]
        kind.said = self.said
        error = self.assertRaises(answers.WrongAnswer, answers.stock, kind)
        self.assertIn(self.says, str(error))


class MigrationTypesTestCase(base.TestCase):

    scenarios = base.table(
        ('another kind', [MigrationType('vpmem', None, 'lto')], "type 'lto' is of kind 'vpmem'"),
        ('a type that is no text', [MigrationType('tape', None, 7)],  # type: ignore[arg-type]
         'type 7 has a field that is no text'),
        ('a number for a version', [MigrationType('tape', None, 'lto', Attribute(2))],  # type: ignore[arg-type]
         "type 'lto' has a field that is no text"),
        names=('said', 'says'))

    def test_it_is_refused(self) -> None:
        kind: Any = Tape(self.conf, None)  # type: ignore[arg-type]
        kind.said = self.said
        self.assertIn(self.says, str(self.assertRaises(answers.WrongAnswer, answers.migration_types, kind)))


class AnswerTestCase(base.TestCase):

    def test_what_is_no_text_no_path_and_no_name_is_refused(self) -> None:
        for path in (7.5, b'/x', 'x', '/x\0', '/\ud800'):
            self.assertRaises((answers.WrongAnswer, UnicodeEncodeError), answers.own_path, path)
        self.assertRaises(answers.WrongAnswer, answers.text, False)
        for method, wrong in (('identify', None), ('identify', {'/x': 7})):
            kind = type('Broken', (Tape,), {method: lambda _kind, _addresses, wrong=wrong: wrong})
            self.assertRaises(answers.WrongAnswer, answers.named, kind(self.conf, None), ('/x',))
