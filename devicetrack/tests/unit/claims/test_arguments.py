"""What a public call is given: refused when it means nothing, and then nothing has changed."""

import copy
import types
from typing import Any
import uuid

import hypothesis
from hypothesis import strategies as st

from devicetrack import exception
from devicetrack import objects
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.testing.fixtures import Migration
from devicetrack.testing.fixtures import PMEM
from devicetrack.testing.fixtures import VGPU
from devicetrack.tests import base

# Without a type: what these tests hand over is of every type but the right one.
A_UUID: Any = '4f1c9c7e-2d0b-4f0e-9a55-0c6d7e8f9a10'
NO_UUIDS: Any = (
    None, '', 0, 7, True, 1.5, A_UUID.encode(), uuid.UUID(A_UUID), A_UUID.upper(), A_UUID.replace('-', ''),
    f'{{{A_UUID}}}', f'{A_UUID}\n', f' {A_UUID}', '%', '*', [A_UUID], {}, object())
# These are no texts either.
NO_TEXTS: Any = (None, 7, b'd0', [], {})

CALLS_OF_AN_INSTANCE = {
    'instance_claim': lambda call, instance, _move: call(None, instance, 'host', fixtures.a_request(pmem=1)),
    'realize': lambda call, instance, _move: call(None, instance),
    'guest_config': lambda call, instance, _move: call(instance),
    'kept_definition': lambda call, instance, _move: call(instance, '<domain/>'),
    'started': lambda call, instance, _move: call(None, instance),
    'adopt': lambda call, instance, _move: call(None, instance, [('vpmem', 'd1')]),
    'rebooted': lambda call, instance, _move: call(None, instance),
    'release': lambda call, instance, _move: call(None, instance),
    'abort_instance_claim': lambda call, instance, _move: call(None, instance),
    'drop_move_claim': lambda call, instance, _move: call(None, instance, 'host'),
    'update_usage': lambda call, instance, _move: call(None, instance, 'host'),
    'check_can_live_migrate_destination': lambda call, instance, _move: call(instance),
    'check_can_live_migrate_source': lambda call, instance, _move: call(instance),
}
CALLS_OF_A_MOVE = {
    'resize_claim': lambda call, instance, move: call(None, instance, 'host', fixtures.a_request(pmem=1), move),
    'rebuild_claim': lambda call, instance, move: call(None, instance, 'host', fixtures.a_request(pmem=1), move),
    'live_migration_claim': lambda call, instance, move: call(None, instance, 'host', None, move),
    'drop_move_claim_at_source': lambda call, instance, move: call(None, instance, move),
    'drop_move_claim_at_dest': lambda call, instance, move: call(None, instance, move),
    'finish_evacuation': lambda call, instance, move: call(None, instance, 'host', move),
    'device_map': lambda call, instance, move: call(instance, move),
    'migration_definitions': lambda call, instance, move: call(
        None, instance, move, objects.DeviceMap.of(A_UUID, A_UUID, (), '')),
}
CALLS = CALLS_OF_AN_INSTANCE | CALLS_OF_A_MOVE
# Without a migration, these have the service create one, or ask the instance for it.
MIGRATION_IS_OPTIONAL = {'resize_claim', 'rebuild_claim', 'live_migration_claim', 'finish_evacuation'}


def trace(host):
    """All that a call could leave behind: rows, contexts, what is withheld, the ledger, the machine and its guests."""
    store, machine = host.store.store, host.machine
    uuid = host.manager.state().host_uuid
    return (store.records(), store.contexts(uuid), store.withheld(uuid),
            sorted(host.running.ledger.now.states(), key=repr), host.running.rows.doubts, host.running.gate.report_only,
            dict(machine.devices), dict(machine.contents), copy.deepcopy(machine.domains))


class HostTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.host = self.busy_host()

    def busy_host(self):
        """A host with guests, of which one is between two claims of a resize, and with free devices."""
        host = self.useFixture(fixtures.Host(devices=5, parents={'p0': 4}))
        self.guests = [host.spawn(pmem=1, vgpu=1), host.spawn(pmem=1)]
        self.migration = host.resize(self.guests[1], pmem=1)
        host.claim(Instance(), pmem=1)
        return host


class UUIDsTestCase(HostTestCase):

    scenarios = [(name, {'name': name}) for name in CALLS]

    def refused(self, instance, migration):
        return self.assertRaises(exception.BadRequest, CALLS[self.name], getattr(self.host.manager, self.name),
                                 instance, migration)

    def test_what_is_no_uuid_of_an_instance_is_refused(self):
        before = trace(self.host)
        for wrong in NO_UUIDS:
            error = self.refused(Instance(uuid=wrong), Migration('host', 'host'))
            self.assertEqual(('instance.uuid', wrong), (error.where, error.value))
            self.assertEqual(before, trace(self.host))

    def test_an_instance_without_a_uuid_is_refused(self):
        before = trace(self.host)
        for instance in (None, {}, A_UUID, object()):
            self.assertEqual('instance.uuid', self.refused(instance, Migration('host', 'host')).where)
            self.assertEqual(before, trace(self.host))

    def test_what_is_no_uuid_of_a_migration_is_refused(self):
        if self.name not in CALLS_OF_A_MOVE:
            return
        before = trace(self.host)
        for wrong in NO_UUIDS:
            error = self.refused(self.guests[0], Migration('other', 'host', uuid=wrong))
            self.assertEqual(('migration.uuid', wrong), (error.where, error.value))
            self.assertEqual(before, trace(self.host))
        for migration in (A_UUID, {}) if self.name in MIGRATION_IS_OPTIONAL else (None, A_UUID, {}):
            self.assertEqual('migration.uuid', self.refused(self.guests[0], migration).where)
            self.assertEqual(before, trace(self.host))

    def test_what_is_no_uuid_of_the_migration_in_a_context_is_refused(self):
        if self.name not in ('drop_move_claim', 'update_usage'):
            return
        before = trace(self.host)
        for wrong in NO_UUIDS:
            instance = Instance(uuid=self.guests[0].uuid, migration_context=objects.MigrationContext.of_known(
                instance_uuid=self.guests[0].uuid, migration_uuid=wrong, old_resources=None, new_resources=None))
            self.assertEqual('instance.migration_context.migration_uuid', self.refused(instance, None).where)
            self.assertEqual(before, trace(self.host))


class EveryCallTestCase(base.TestCase):

    def test_every_public_call_of_the_manager_is_among_these(self):
        # The others name no instance: they are about the host or a claim, or are in OtherArgumentsTestCase.
        others = {'init_host', 'close', 'explain', 'wipes', 'wait_for_wipes', 'wait_for_proofs',
                  'update_available_resource', 'assignments', 'usage', 'providers', 'narrow_claim', 'state',
                  'look_after', 'note_given'}
        host = self.useFixture(fixtures.Host(ready=False))
        public = {name for name, value in vars(type(host.manager)).items()
                  if not name.startswith('_') and isinstance(value, types.FunctionType)}
        self.assertEqual(public, CALLS.keys() | others)


class OtherArgumentsTestCase(HostTestCase):

    def refused(self, where, call, *args, **kwargs):
        before = trace(self.host)
        error = self.assertRaises(exception.BadRequest, call, *args, **kwargs)
        self.assertEqual((where, before), (error.where, trace(self.host)))

    def test_resources_are_asked_for_by_uuid(self):
        for wrong in NO_UUIDS[1:]:
            self.refused('instance_uuid', self.host.manager.assignments, wrong)

    def test_a_claim_and_a_migration_to_abort_are_named(self):
        abort = self.host.manager.abort_instance_claim
        for wrong in NO_TEXTS[1:]:
            self.refused('claim_id', abort, None, self.guests[0], wrong)
        for wrong in NO_UUIDS[1:]:
            self.refused('migration_uuid', abort, None, self.guests[0], 'a claim', wrong)

    def test_a_service_that_creates_a_migration_without_a_uuid_makes_no_claim(self):
        nameless: Any = types.SimpleNamespace(uuid=None)
        self.host.service.create_migration = lambda *_args: nameless
        self.refused('migration.uuid', self.host.manager.resize_claim, None, self.guests[0], 'host',
                     fixtures.a_request(pmem=1), None)

    def test_devices_to_adopt_are_pairs(self):
        adopt, instance = self.host.manager.adopt, Instance()
        hostile: Any = (None, 7, 'd1', b'd1', object())
        for wrong in hostile:
            self.refused('devices', adopt, None, instance, wrong)
        hostile = (None, 7, 'd1', (), ('vpmem',), ('vpmem', 'd1', 'd2'), {'vpmem': 'd1', 'kind': 'x'})
        for wrong in hostile:
            self.refused('devices', adopt, None, instance, [('vpmem', 'd1'), wrong])
        for where, wrong in (('kind', (7, 'd1')), ('identifier', ('vpmem', None))):
            self.refused(where, adopt, None, instance, [wrong])

    def test_allocations_are_a_mapping_of_mappings(self):
        root = self.host.manager.state().host_uuid
        hostile: Any = (0, '', False, [], (), 7, 'VGPU', object(), [(root, {})])
        for wrong in hostile:
            self.refused('allocations', self.host.manager.instance_claim, None, Instance(), 'host', wrong)
        hostile = (None, 7, [], {'resources': [(PMEM, 1)]}, {'resources': None}, {})
        for wrong in hostile:
            self.refused(f'allocations[{root}]', self.host.claim, Instance(), {root: wrong})
        for amount in (None, True, -1, 0, 1.0, '1', 1 << 70):
            self.refused(f'allocations[{root}][{PMEM}]', self.host.claim, Instance(),
                         {root: {'resources': {PMEM: amount}}})

    def test_an_amount_of_another_type_is_refused_after_the_same_number_was_claimed(self):
        root = self.host.manager.state().host_uuid
        self.host.claim(Instance(), {root: {'resources': {PMEM: 1}}}).abort()
        for amount in (True, 1.0):
            self.refused(f'allocations[{root}][{PMEM}]', self.host.claim, Instance(),
                         {root: {'resources': {PMEM: amount}}})

    def test_the_image_of_each_instance_is_read_after_an_equal_claim_too(self):
        root = self.host.manager.state().host_uuid
        allocations = {root: {'resources': {PMEM: 1}}}
        self.host.claim(Instance(), allocations).abort()
        wrong: Any = Instance()
        wrong.image_meta = {'properties': {'hw_pci_numa_affinity_policy': 'near'}}
        self.refused('hw_pci_numa_affinity_policy', self.host.claim, wrong, allocations)
        right: Any = Instance()
        right.image_meta = {'properties': {'hw_pci_numa_affinity_policy': 'required'}}
        self.host.claim(right, allocations).abort()
        self.host.claim(Instance(), allocations).abort()

    def test_an_equal_claim_goes_by_the_flavor_that_it_has_now(self):
        root = self.host.manager.state().host_uuid
        allocations = {root: {'resources': {PMEM: 1}}}
        for labels in ('4GB', '4GB,4GB', '4GB'):
            instance = Instance(flavor=types.SimpleNamespace(extra_specs={'hw:pmem': labels}))
            if labels == '4GB':
                self.host.claim(instance, allocations).abort()
            else:
                self.refused('allocations', self.host.claim, instance, allocations)

    def test_more_different_claims_than_are_remembered(self):
        root = self.host.manager.state().host_uuid
        for number in (*range(250), 0):
            self.host.claim(Instance(), {root: {'resources': {PMEM: 1, f'CUSTOM_{number}': 1}}}).abort()
        self.assertLessEqual(len(self.host.running.views._read_demands[1]), 100)

    def test_a_request_is_complete(self):
        wanted = objects.request.RequestedDevices
        for wrong in (objects.DeviceRequest(), objects.DeviceRequest(wanted=[wanted()]),
                      objects.DeviceRequest(wanted=[wanted(resource_class=PMEM)])):
            before = trace(self.host)
            self.assertRaises(exception.BadRequest, self.host.claim, Instance(), wrong)
            self.assertEqual(before, trace(self.host))

    def test_extra_specs_of_a_flavor_are_texts_by_name(self):
        root = self.host.manager.state().host_uuid
        hostile: Any = (7, {7: '1'}, [('hw:pmem', '4GB')])
        for wrong in hostile:
            self.refused('flavor.extra_specs', self.host.claim,
                         Instance(flavor=types.SimpleNamespace(extra_specs=wrong)), {root: {'resources': {PMEM: 1}}})

    def test_a_device_map_is_of_the_instance_and_its_migration(self):
        instance, move = self.guests[0], Migration('host', 'other')
        hostile: Any = (None, {}, objects.DeviceMap.of(A_UUID, move.uuid, (), ''),
                        objects.DeviceMap.of(instance.uuid, A_UUID, (), ''))
        for wrong in hostile:
            before = trace(self.host)
            self.assertRaises(exception.BadRequest, self.host.manager.migration_definitions, None, instance, move,
                              wrong)
            self.assertEqual(before, trace(self.host))

    def test_a_device_is_named_by_texts(self):
        manager = self.host.manager
        for wrong in (*NO_TEXTS, 'd\udcff'):
            self.refused('kind', manager.operator.cordon, wrong, 'd0')
            self.refused('name', manager.operator.cordon, 'vpmem', wrong)
            self.refused('kind', manager.operator.uncordon, wrong, 'd0')
            self.refused('name', manager.operator.uncordon, 'vpmem', wrong)
            self.refused('kind', manager.operator.admit, wrong, 'd0')
            self.refused('name', manager.operator.admit, 'vpmem', wrong)
            self.refused('kind', manager.operator.retire, wrong, 'd0', A_UUID)
            self.refused('identifier', manager.operator.retire, 'vpmem', wrong, A_UUID)
        for wrong in NO_UUIDS:
            self.refused('instance_uuid', manager.operator.retire, 'vpmem', 'd0', wrong)

    def test_a_reason_is_a_short_printable_text(self):
        manager = self.host.manager
        for wrong in (*NO_TEXTS, 'a\nb', '\x1b[2J', 'x' * 256, '\ud800', '\u202e'):
            self.refused('reason', manager.operator.cordon, 'vpmem', 'd4', reason=wrong)
            self.refused('reason', manager.operator.retire, 'vpmem', 'd4', A_UUID, reason=wrong)
        manager.operator.cordon('vpmem', 'd4', reason='Lüfter defekt, DIMM 4')
        self.assertIn(('d4', 'withheld: cordoned'), self.host.states().items())


HOSTILE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
    | st.sampled_from([PMEM, VGPU, 'host', A_UUID, object()]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(['resources', PMEM, VGPU, A_UUID, 'hw:pmem', 'uuid']), inner, max_size=3), max_leaves=6)


@st.composite
def hostile_object(draw: Any, /, **known: Any) -> Any:
    """An object of the service of which each attribute may be anything, or missing."""
    made = types.SimpleNamespace()
    for name, value in known.items():
        choice = draw(st.sampled_from(['good', 'good', 'hostile', 'missing']))
        if choice != 'missing':
            setattr(made, name, value if choice == 'good' else draw(HOSTILE))
    return made


class HostileArgumentsTestCase(base.TestCase):

    def test_a_refused_call_leaves_no_trace(self):
        hosts: list[Any] = []                       # the host, its guest, and how they are

        @hypothesis.given(st.data())
        @hypothesis.settings(max_examples=400, derandomize=True, deadline=None, database=None,
                             suppress_health_check=list(hypothesis.HealthCheck))
        def refuse(data):
            if not hosts:
                hosts.append(self.useFixture(fixtures.Host(devices=4, parents={'p0': 4})))
                guest = hosts[0].spawn(pmem=1, vgpu=1)
                hosts[0].resize(hosts[0].spawn(pmem=1), pmem=1)
                hosts.extend([guest, trace(hosts[0])])
            host, guest, before = hosts
            root = host.manager.state().host_uuid
            name = data.draw(st.sampled_from(sorted(CALLS)))
            instance = data.draw(HOSTILE | hostile_object(
                uuid=data.draw(st.sampled_from([guest.uuid, A_UUID])), flavor=types.SimpleNamespace(extra_specs={}),
                host='host', resources=guest.resources, migration_context=None, numa_topology=None))
            migration = data.draw(HOSTILE | hostile_object(
                uuid=A_UUID, id=1, status='pre-migrating', source_compute='host', source_node='host',
                dest_compute='host', dest_node='host', instance_uuid=A_UUID))
            call = getattr(host.manager, name)
            if name.endswith('_claim') and name not in ('abort_instance_claim', 'drop_move_claim'):
                allocations = data.draw(HOSTILE | st.just({root: {'resources': {PMEM: 1}}}))
                arguments = [data.draw(st.sampled_from(['host', 'host', None, 7])), allocations]
                arguments += [migration] if name != 'instance_claim' else []

                def made(call, instance, _migration):
                    call(None, instance, *arguments)
            else:
                made = CALLS[name]
            try:
                made(call, instance, migration)
            except exception.DriverError:               # not refused: it began and could not go on
                hosts.clear()
            except Exception:
                self.assertEqual(before, trace(host))
            else:
                if before != trace(host):               # what it did is its right; the next one meets a host as before
                    hosts.clear()

        refuse()


class FreeDevicesTestCase(base.TestCase):

    def test_a_claim_for_nobody_puts_no_device_in_doubt(self):
        host, nobody = self.useFixture(fixtures.Host(devices=2)), Instance()
        vars(nobody)['uuid'] = None
        self.assertRaises(exception.BadRequest, host.claim, nobody, pmem=1)
        self.assertEqual({'d0': FREE, 'd1': FREE}, host.states())
        host.claim(Instance(), pmem=2)
