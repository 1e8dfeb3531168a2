"""What withholds a device: the words, the stored text, and what is stored after an audit."""

import json

from devicetrack import vocabulary
from devicetrack.engine import withholding
from devicetrack.engine.withholding import Cause
from devicetrack.engine.withholding import Target
from devicetrack.objects.values import DeviceKey
from devicetrack.tests import base

KEY = DeviceKey('vpmem', 'a')
A, PARENT = Target.of(KEY), Target.named('vpmem', 'a', True)
CORDONED = Cause(1, 'firmware', 'operator')
FORGOTTEN = Cause(1, 'forgotten', 'operator')
HOT = Cause(2, 'hot', 'host')
USED = Cause(3, 'named by domain x', 'audit')
UNREAD = Cause(4, 'unread', 'audit')
NOW = 9


class WordsTestCase(base.TestCase):

    def test_reasons_have_an_order(self):
        self.assertEqual('cordoned, unhealthy, foreign, in doubt, made by others, a newer one, another',
                         withholding.text({'another', 'in doubt', 'foreign', 'a newer one', 'unhealthy',
                                           'made by others', 'cordoned'}))

    def test_none_is_nothing(self):
        self.assertEqual('', withholding.text(()))

    def test_places(self):
        self.assertEqual(('vpmem/a', 'parent vpmem/a'), (str(A), str(PARENT)))

    def test_what_a_place_has(self):
        for place, device, has in ((A, ('vpmem', 'a', 'p'), True), (A, ('vpmem', 'b', 'a'), False),
                                   (PARENT, ('vpmem', 'b', 'a'), True), (PARENT, ('vpmem', 'a', None), False),
                                   (PARENT, ('mdev', 'b', 'a'), False)):
            self.assertEqual(has, place.has(*device), f'{place} {device}')


class StoredTextTestCase(base.TestCase):

    def test_there_and_back(self):
        causes = {'cordoned': CORDONED, 'unhealthy': HOT, 'a newer one': Cause(5, 'ö', 'somebody')}
        stored = withholding.to_json(causes)
        self.assertEqual(causes, withholding.from_json(stored, vocabulary.DEVICE))
        self.assertEqual({'since': 1, 'detail': 'firmware', 'by': 'operator'}, json.loads(stored)['cordoned'])

    def test_the_name_that_an_earlier_release_stored(self):
        stored = withholding.to_json({'drained': CORDONED, 'unhealthy': HOT})
        self.assertEqual({'cordoned': CORDONED, 'unhealthy': HOT}, withholding.from_json(stored, vocabulary.PARENT))

    def test_what_cannot_be_read_withholds_until_somebody_has_seen_to_it(self):
        for text in ('', '{', '[]', '1', '{"cordoned": 1}', '{"cordoned": {"since": "x", "detail": "", "by": ""}}'):
            for scope, reason in ((vocabulary.DEVICE, 'in doubt'), (vocabulary.PARENT, 'cordoned')):
                [(found, cause)] = withholding.from_json(text, scope).items()
                self.assertEqual((reason, True), (found, cause.stands), text)


class AfterAuditTestCase(base.TestCase):
    """``said`` is what the ledger says of the device; ``known`` whether it could."""

    scenarios = base.table(
        ('nothing', {}, (), True, {}),
        ('it became unhealthy', {}, ('unhealthy',), True, {A: {'unhealthy': Cause(NOW, 'why unhealthy', 'host')}}),
        ('it became foreign', {}, ('foreign',), True, {A: {'foreign': Cause(NOW, 'why foreign', 'audit')}}),
        ('and both', {A: {'unhealthy': HOT}}, ('unhealthy', 'foreign'), True,
         {A: {'unhealthy': HOT._replace(detail='why unhealthy'), 'foreign': Cause(NOW, 'why foreign', 'audit')}}),
        ('it is well again', {A: {'unhealthy': HOT, 'foreign': USED}}, (), True, {}),
        ('a part of it is well again', {A: {'cordoned': CORDONED, 'unhealthy': HOT}}, ('cordoned',), True,
         {A: {'cordoned': CORDONED}}),
        ('nobody can say', {A: {'unhealthy': HOT, 'in doubt': UNREAD}}, (), False,
         {A: {'unhealthy': HOT, 'in doubt': UNREAD}}),
        ('cordoned, and nothing says so', {A: {'cordoned': CORDONED}}, (), True, {A: {'cordoned': CORDONED}}),
        ('forgotten, and nothing says so', {A: {'in doubt': FORGOTTEN}}, (), True, {A: {'in doubt': FORGOTTEN}}),
        ('forgotten, and in doubt', {A: {'in doubt': FORGOTTEN}}, ('in doubt',), True, {A: {'in doubt': FORGOTTEN}}),
        ('a parent', {PARENT: {'cordoned': CORDONED}}, ('cordoned',), True, {PARENT: {'cordoned': CORDONED}}),
        ('what an option says, and what is gone', {}, ('made by others', 'gone from the host'), True, {}),
        ('a reason of a newer release', {A: {'haunted': Cause(1, '', 'operator'), 'cursed': Cause(1, '', 'audit')}},
         (), True, {A: {'haunted': Cause(1, '', 'operator')}}),
        names=('marks', 'said', 'known', 'expected'))

    def after(self, marks):
        details = {(KEY, reason): f'why {reason}' for reason in ('unhealthy', 'foreign')}
        return withholding.after_audit(marks, {KEY: frozenset(self.said)} if self.said else {},
                                       [KEY] if self.known else [], details, NOW)

    def test_what_is_stored(self):
        self.assertEqual(self.expected, self.after(self.marks))

    def test_the_same_audit_again_changes_nothing(self):
        self.assertEqual(self.expected, self.after(self.expected))
