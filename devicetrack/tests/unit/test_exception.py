"""What every error promises, and what its base does with the facts that it declares."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
import copy
import inspect
import pickle

import testscenarios
import testtools

from devicetrack import exception
from devicetrack.placement import errors as placement_errors
from devicetrack.virt.libvirt import connection

# What a text leaves out: data for programs, and what its reason says in words.
NOT_IN_THE_TEXT = {('HostInUse', 'by_command'), ('NoDevicePair', 'found'), ('OperationFailed', 'for_tenant'),
                   ('ParentFull', 'kind'), ('ParentGone', 'kind'), ('PlacementUnavailable', 'status'),
                   ('Refused', 'meaning')}


def classes_below(base: type[exception.DeviceTrackError]) -> Iterator[type[exception.DeviceTrackError]]:
    for cls in base.__subclasses__():
        if cls.__module__ in (exception.__name__, placement_errors.__name__, connection.__name__):
            yield cls
            yield from classes_below(cls)


def fact_for(parameter: inspect.Parameter) -> object:
    """A value of the sort that a parameter is annotated with, which names the parameter where it can."""
    kind = parameter.annotation.partition(' | ')[0]
    if kind.startswith('Sequence[tuple'):
        return [('mdev', parameter.name), ('vf', 'another')]
    if kind.startswith(('Collection', 'Iterable', 'Sequence')):
        return [parameter.name, 'another']
    values = {'str': parameter.name, 'object': {'a': parameter.name}, 'int': 7, 'bool': True,
              'Mapping[str, int]': {'a': 7}, 'Mapping[str, object]': {'a': 7}, 'Meaning': connection.Meaning.FULL}
    return values[kind]


class EveryErrorTestCase(testscenarios.WithScenarios, testtools.TestCase):

    scenarios = [(f'{cls.__module__}.{cls.__name__}', {'cls': cls})
                 for cls in classes_below(exception.DeviceTrackError)]
    cls: type[exception.DeviceTrackError]

    def setUp(self) -> None:
        super().setUp()
        self.facts = {name: fact_for(parameter) for name, parameter in inspect.signature(self.cls).parameters.items()}
        self.error = self.cls(*self.facts.values())

    def test_it_takes_its_facts_by_name_too(self) -> None:
        again = self.cls(**self.facts)
        self.assertEqual((self.error.args, vars(self.error)), (again.args, vars(again)))

    def test_its_facts_are_attributes(self) -> None:
        kept = {name: tuple(fact) if isinstance(fact, list) else fact for name, fact in self.facts.items()}
        self.assertEqual(kept, {name: getattr(self.error, name) for name in kept})
        self.assertEqual(tuple(kept.values()), self.error.args)

    def test_its_text_is_made_from_its_facts(self) -> None:
        text = str(self.error)
        for name, fact in self.facts.items():
            if (self.cls.__name__, name) not in NOT_IN_THE_TEXT:
                for part in fact if isinstance(fact, Collection) and not isinstance(fact, str) else [fact]:
                    for word in part if isinstance(part, tuple) else [part]:
                        self.assertIn(str(word), text)

    def test_a_pickle_and_a_copy_have_its_class_its_facts_and_its_text(self) -> None:
        self.error.add_note('while it was tried')
        for again in (pickle.loads(pickle.dumps(self.error)), copy.copy(self.error), copy.deepcopy(self.error)):
            self.assertIs(self.cls, type(again))
            self.assertEqual((self.error.args, vars(self.error), str(self.error)),
                             (again.args, vars(again), str(again)))

    def test_no_two_are_equal(self) -> None:
        again = copy.copy(self.error)
        self.assertNotEqual(self.error, again)
        self.assertEqual(2, len({self.error, again}))


class FactsTestCase(testtools.TestCase):

    def test_a_fact_too_few_too_many_or_of_another_name_is_refused(self) -> None:
        for facts, named in [((), {}), (('a', 'b'), {}), (('a',), {'host': 'a'}), ((), {'hots': 'a'})]:
            self.assertRaises(TypeError, exception.NotReady, *facts, **named)

    def test_a_default_is_a_fact_as_others_are(self) -> None:
        error = exception.NotAssigned('ns0')
        self.assertEqual((None, ('ns0', None)), (error.host, error.args))

    def test_an_iterator_is_kept_as_a_tuple(self) -> None:
        known: Collection[str] = iter(['a', 'b'])      # type: ignore[assignment]
        error = exception.UnknownHost('c', known)
        self.assertEqual(('c', ('a', 'b')), error.args)
        self.assertEqual(str(error), str(error))

    def test_a_class_adds_facts_to_those_of_its_base(self) -> None:
        parameters = inspect.signature(connection.Refused).parameters
        self.assertEqual(['command', 'reason', 'meaning'], list(parameters))
        self.assertEqual(connection.Meaning.OTHER, parameters['meaning'].default)

    def test_a_constructor_of_its_own_shows_its_parameters(self) -> None:
        self.assertEqual(['provider_uuid', 'resource_classes', 'known', 'others'],
                         list(inspect.signature(exception.UnknownProvider).parameters))

    def test_an_error_keeps_its_cause_and_goes_into_a_group(self) -> None:
        cause = OSError(5, 'no')
        try:
            raise exception.StoreUnavailable('sqlite', 'gone') from cause
        except exception.NothingWritten as error:
            group = ExceptionGroup('both', [error, cause])
        caught, _rest = group.split(exception.StoreError)
        assert caught is not None
        self.assertIs(cause, caught.exceptions[0].__cause__)
