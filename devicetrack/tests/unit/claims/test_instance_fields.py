"""What calls set on the service's instances: in one place, returned too, and not at all where a service wants that."""

import ast
import pathlib

from devicetrack import claims
from devicetrack.claims.instance_fields import InstanceFields
from devicetrack.claims.instance_fields import ReturnedFields
from devicetrack.claims.manager import ClaimManager
from devicetrack.objects import InstanceResources
from devicetrack.testing import fake
from devicetrack.testing import fixtures
from devicetrack.testing.compute_service import Migration
from devicetrack.testing.fixtures import a_request
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base

NAMES = ('resources', 'migration_context')
NONE = {'resources': None}
NO_MOVE = {'migration_context': None}


class StrictInstance:
    """As an object of a service whose fields take no objects of other projects."""

    def __init__(self):
        object.__setattr__(self, 'uuid', Instance().uuid)
        object.__setattr__(self, 'host', 'host')
        object.__setattr__(self, 'resources', 'a list of its own')
        object.__setattr__(self, 'migration_context', 'one of its own')

    def __setattr__(self, name, value):
        raise ValueError(f'{name} takes no {type(value).__name__}')


class Noting(InstanceFields):
    """Sets what the default sets, and notes it."""

    def __init__(self):
        self.set_last = None

    def set(self, instance, fields):
        super().set(instance, fields)
        self.set_last = fields


class FieldsTestCase(base.TestCase):

    instance_class: type = StrictInstance

    def setUp(self):
        super().setUp()
        self.instance = self.instance_class()

    def host_with(self, instance_fields, name='host', devices=2):
        host = self.useFixture(fixtures.Host(devices=devices, name=name, ready=False))
        host.manager = ClaimManager(name, fake.FakeDriver(name, host.conf, host.configuration.state_path, host.machine),
                                    host.store, host.conf, host.service, instance_fields=instance_fields)
        host.manager.init_host(host.context)
        self.addCleanup(host.manager.close)
        return host

    def boot(self, host):
        """Claim and start; returns what the two calls gave."""
        claim = host.claim(self.instance, pmem=1)
        return claim, self.start(host)

    def start(self, host):
        host.manager.realize(host.context, self.instance)
        host.start_guest(self.instance.uuid, host.manager.guest_config(self.instance))
        return host.manager.started(host.context, self.instance)

    def leave(self, host):
        host.stop_guest(self.instance.uuid)
        host.delete_guest(self.instance.uuid)

    def names(self, resources):
        return [one.identifier for one in resources]

    def migration(self, host, source, destination):
        migration = Migration(source, destination, self.instance.uuid)
        host.service.moves = [migration]
        return migration


class ReturnedFieldsTestCase(FieldsTestCase):
    """An instance that takes nothing: what is returned suffices."""

    def setUp(self):
        super().setUp()
        self.host = self.host_with(ReturnedFields())
        self.manager, self.context = self.host.manager, self.host.context

    def test_without_it_the_claim_is_given_back(self):
        host = self.useFixture(fixtures.Host(devices=1))
        self.assertRaises(ValueError, host.claim, self.instance, pmem=1)
        self.assertEqual({'d0': FREE}, host.states())

    def test_of_a_life(self):
        claim, started = self.boot(self.host)
        self.assertEqual((['d0'], ['d0'], claim.resources), (
            self.names(claim.resources), self.names(started), claim.fields['resources']))
        self.leave(self.host)
        self.assertEqual(NONE, self.manager.release(self.context, self.instance))
        self.assertEqual({'d0': FREE, 'd1': FREE}, self.host.states())

    def test_of_a_claim_that_is_given_up(self):
        claim = self.host.claim(self.instance, pmem=1)
        self.assertEqual((NONE, {}), (claim.abort(), claim.abort()))
        claim = self.host.claim(self.instance, pmem=1)
        self.assertEqual(NONE, self.manager.abort_instance_claim(self.context, self.instance, claim.claim_id))
        self.assertEqual({'d0': FREE, 'd1': FREE}, self.host.states())

    def test_of_a_move_on_one_host(self):
        self.boot(self.host)
        migration = self.migration(self.host, 'host', 'host')
        claim = self.manager.resize_claim(self.context, self.instance, 'host', a_request(pmem=1), migration)
        context = claim.fields['migration_context']
        self.assertEqual((['d0'], ['d1'], {'migration_context'}), (
            self.names(context.old_resources), self.names(context.new_resources), set(claim.fields)))
        self.leave(self.host)
        migration.status = 'post-migrating'
        self.assertEqual(['d1'], self.names(self.start(self.host)))
        self.assertEqual(NO_MOVE, self.manager.drop_move_claim_at_source(self.context, self.instance, migration))

    def test_of_a_move_on_one_host_that_is_undone(self):
        self.boot(self.host)
        for undo in (lambda migration: self.manager.drop_move_claim_at_dest(self.context, self.instance, migration),
                     lambda migration: self.manager.drop_move_claim(self.context, self.instance, 'host')):
            migration = self.migration(self.host, 'host', 'host')
            self.manager.resize_claim(self.context, self.instance, 'host', a_request(pmem=1), migration)
            migration.status = 'reverting'
            fields = undo(migration)
            self.assertEqual((['d0'], None), (self.names(fields['resources']), fields['migration_context']))

    def test_of_a_claim_for_a_move_that_is_given_up(self):
        self.boot(self.host)
        migration = self.migration(self.host, 'host', 'host')
        claim = self.manager.resize_claim(self.context, self.instance, 'host', a_request(pmem=1), migration)
        fields = claim.abort()
        self.assertEqual((['d0'], None), (self.names(fields['resources']), fields['migration_context']))

    def test_of_an_evacuation(self):
        migration = self.migration(self.host, 'another', 'host')
        self.manager.rebuild_claim(self.context, self.instance, 'host', a_request(pmem=1), migration)
        fields = self.manager.finish_evacuation(self.context, self.instance, 'host', migration)
        self.assertEqual((['d0'], None), (self.names(fields['resources']), fields['migration_context']))

    def test_what_its_source_said_is_read_by_the_service_itself(self):
        source = self.host_with(ReturnedFields(), 'source')
        _claim, resources = self.boot(source)

        class Message(ReturnedFields):
            def read(self, instance):
                return {'resources': resources}

        host = self.host_with(Message(), 'destination')
        migration = self.migration(host, 'source', 'destination')
        check = source.manager.check_can_live_migrate_source(self.instance)
        claim = host.manager.live_migration_claim(host.context, self.instance, 'destination', a_request(pmem=1),
                                                  migration, check=check)
        self.assertEqual(resources, claim.fields['migration_context'].old_resources)
        fields = host.manager.drop_move_claim_at_dest(host.context, self.instance, migration)
        self.assertEqual({'resources': resources, 'migration_context': None}, fields)


class SameTestCase(FieldsTestCase):
    """What calls return is what they set."""

    instance_class = Instance

    def setUp(self):
        super().setUp()
        self.noting = Noting()
        self.host = self.host_with(self.noting)
        self.manager, self.context = self.host.manager, self.host.context

    def check(self, returned):
        self.assertIsNotNone(self.noting.set_last)
        self.assertEqual(self.noting.set_last, returned)
        for name, value in returned.items():
            self.assertIs(value, getattr(self.instance, name, None))
        self.noting.set_last = None

    def test_in_a_life(self):
        claim = self.host.claim(self.instance, pmem=1)
        self.check(claim.fields)
        self.check(claim.abort())
        self.check(self.host.claim(self.instance, pmem=1).fields)
        self.check({'resources': self.start(self.host)})
        self.leave(self.host)
        self.check(self.manager.release(self.context, self.instance))

    def test_in_moves(self):
        self.boot(self.host)
        for undo in (self.manager.drop_move_claim_at_dest, self.manager.drop_move_claim_at_source):
            migration = self.migration(self.host, 'host', 'host')
            claim = self.manager.resize_claim(self.context, self.instance, 'host', a_request(pmem=1), migration)
            self.check(claim.fields)
            if undo == self.manager.drop_move_claim_at_source:
                self.leave(self.host)
                migration.status = 'post-migrating'
                self.start(self.host)
            self.check(undo(self.context, self.instance, migration))
        migration = self.migration(self.host, 'host', 'host')
        claim = self.manager.resize_claim(self.context, self.instance, 'host', a_request(pmem=1), migration)
        self.noting.set_last = None
        self.check(self.manager.abort_instance_claim(self.context, self.instance, claim.claim_id, migration.uuid))

    def test_in_an_evacuation(self):
        migration = self.migration(self.host, 'another', 'host')
        self.check(self.manager.rebuild_claim(self.context, self.instance, 'host', a_request(pmem=1), migration).fields)
        self.check(self.manager.finish_evacuation(self.context, self.instance, 'host', migration))


class OnePlaceTestCase(base.TestCase):

    def test_nothing_else_reads_or_sets_them(self):
        for path in pathlib.Path(claims.__file__).parent.rglob('*.py'):
            if path.name != 'instance_fields.py':
                self.assertEqual([], [ast.unparse(node) for node in ast.walk(ast.parse(path.read_text()))
                                      if self.touches(node)], path.name)

    @staticmethod
    def touches(node):
        if isinstance(node, ast.Attribute):
            return isinstance(node.value, ast.Name) and node.value.id == 'instance' and node.attr in NAMES
        return (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
                and node.func.id in ('getattr', 'setattr') and any(
                    isinstance(one, ast.Constant) and one.value in NAMES for one in node.args))

    def test_a_resource_list_is_ours(self):
        self.assertEqual({'resources': None, 'migration_context': None}, InstanceFields().read(StrictInstance()))
        resources = InstanceResources(instance_uuid=Instance().uuid, host_uuid=Instance().uuid, assignments=[])
        instance = Instance()
        InstanceFields().set(instance, {'resources': resources})
        self.assertIs(resources, InstanceFields().read(instance)['resources'])
