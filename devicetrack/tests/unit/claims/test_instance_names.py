"""What people call an instance: recorded by its claims if the service gives it, and never a key."""

from __future__ import annotations

import logging
from typing import Any

import fixtures as base_fixtures
import prometheus_client

from devicetrack import exception
from devicetrack import metrics
from devicetrack.claims.instance_fields import InstanceFields
from devicetrack.nova.subject import NamedSubjects
from devicetrack.nova.subject import Subject
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestConfig
from devicetrack.service.lifecycle import Lifecycle
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import a_request
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.testing.fixtures import Migration
from devicetrack.tests import base
from devicetrack.tests.unit.claims.test_lost_rows import past
from devicetrack.tests.unit.claims.test_lost_rows import write_again

NAME = 'payroll of Ann'


class Names(InstanceFields):
    """Gives every instance one name, which a test may change."""

    def __init__(self, name: Any = NAME) -> None:
        self.name = name

    def display_name(self, instance: Any) -> Any:
        if isinstance(self.name, BaseException):
            raise self.name
        return self.name


class NamesTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.names = Names()

    def host_with(self, fields: InstanceFields | None, **facts: Any) -> fixtures.Host:
        host = fixtures.Host(**{'devices': 2, **facts})
        host.instance_fields = fields
        made: fixtures.Host = self.useFixture(host)
        return made

    def recorded(self, host: fixtures.Host) -> dict[str, str | None]:
        return {row.identifier: row.instance_name for row in host.records()}


class RecordedTestCase(NamesTestCase):

    def test_by_default_none_is_recorded(self) -> None:
        host, instance = self.host_with(None), Instance()
        vars(instance)['display_name'] = NAME
        host.spawn(instance, pmem=1)
        self.assertEqual({'d0': None}, self.recorded(host))

    def test_every_row_of_a_claim_has_it_until_the_devices_go_back(self) -> None:
        host = self.host_with(self.names, parents={'p': 1})
        instance = host.spawn(pmem=2, vgpu=1)
        self.names.name = 'another'             # later calls do not ask
        host.restart()
        host.audit()
        host.stop_guest(instance.uuid)
        host.manager.realize(host.context, instance)
        self.assertEqual([NAME] * 3, list(self.recorded(host).values()))
        host.delete(instance)
        self.assertEqual({}, self.recorded(host))
        self.assertEqual([NAME] * 3, [one.event.more.get('instance_name') for one in host.store.events_of_instance(
            instance.uuid) if one.event.event == 'claimed'])

    def test_a_move_on_one_host_takes_the_name_of_its_claim_and_leaves_the_old_rows(self) -> None:
        host = self.host_with(self.names)
        instance = host.spawn(pmem=1)
        self.names.name = 'renamed'
        host.service.moves = [migration := Migration('host', 'host', instance.uuid)]
        host.manager.resize_claim(host.context, instance, 'host', a_request(pmem=1), migration)
        self.assertEqual({'d0': NAME, 'd1': 'renamed'}, self.recorded(host))
        migration.status = 'reverting'
        host.manager.drop_move_claim_at_dest(host.context, instance, migration)
        self.assertEqual({'d0': NAME}, self.recorded(host))

    def test_a_guest_that_comes_from_another_host_brings_its_name(self) -> None:
        host, instance = self.host_with(self.names), Instance()
        host.service.moves = [migration := Migration('another', 'host', instance.uuid)]
        host.manager.rebuild_claim(host.context, instance, 'host', a_request(pmem=1), migration)
        self.assertEqual({'d0': NAME}, self.recorded(host))
        host.manager.finish_evacuation(host.context, instance, 'host', migration)
        self.assertEqual({'d0': NAME}, self.recorded(host))

    def test_a_device_in_place_of_another_has_it(self) -> None:
        host = self.host_with(self.names, devices=0, parents={'p0': 1, 'p1': 1})
        host.machine.broken['p0'] = 'Invalid argument'
        host.spawn(vgpu=1)
        self.assertEqual([('p1', NAME)], [(row.parent, row.instance_name) for row in host.records()])

    def test_the_objects_of_the_service_do_not_have_it(self) -> None:
        host = self.host_with(self.names)
        claim = host.claim(Instance(), pmem=1)
        self.assertNotIn(NAME, str(claim.resources.obj_to_primitive()))

    def test_an_error_of_the_service_ends_the_claim_and_nothing_else(self) -> None:
        host = self.host_with(self.names)
        self.names.name = LookupError('no answer')
        running = host.running
        self.assertRaises(LookupError, host.claim, Instance(), pmem=1)
        self.assertEqual({'d0': FREE, 'd1': FREE}, host.states())
        self.assertIs(running, host.running)
        self.names.name = NAME
        host.spawn(pmem=1)
        self.assertEqual({'d0': NAME}, self.recorded(host))


class OddTestCase(NamesTestCase):

    scenarios = base.table(
        ('none', None, None), ('nothing', '', None),
        ('as long as it may be', '\U0001f600' * 255, '\U0001f600' * 255), ('longer', 'x' * 256, 'x' * 255),
        ('lines and escapes', 'a\n\x1b[2J\u202e<b>', 'a\n\x1b[2J\u202e<b>'),
        ('what no database takes', 'a\0b\ud800c', 'a\\x00b\\ud800c'),
        ('no text', 7, '7'), names=('given', 'kept'))
    given: Any
    kept: str | None

    def test_it_is_kept_as_it_can_be(self) -> None:
        self.names.name = self.given
        host = self.host_with(self.names)
        host.spawn(pmem=1)
        self.assertEqual({'d0': self.kept}, self.recorded(host))


class TenantsDataTestCase(NamesTestCase):

    def test_no_log_error_finding_or_metric_has_it(self) -> None:
        log = self.useFixture(base_fixtures.FakeLogger(level=logging.DEBUG))
        host = self.host_with(self.names, parents={'p': 2})
        registry = prometheus_client.CollectorRegistry()
        metrics.register(host.manager, registry)
        go_back = past(self, host)
        instance = host.spawn(pmem=1, vgpu=1)
        go_back()
        said = list(map(repr, host.audit()))
        write_again(host)                       # the log has each row
        self.assertEqual([NAME] * 2, list(self.recorded(host).values()))
        for refused in (lambda: host.claim(instance, pmem=1), lambda: host.claim(Instance(), pmem=9),
                        lambda: host.manager.adopt(host.context, Instance(), [DeviceKey('vpmem', 'd0')])):
            said.append(str(self.assertRaises(exception.DeviceTrackError, refused)))
        host.machine.before('unrealize', exception.DeviceInUse('vpmem', 'd0', 'staged'), times=1)
        host.machine.delete_guest(instance.uuid)
        host.service.known = {}
        said += map(repr, host.audit())
        said += map(repr, host.restart())
        said.append(prometheus_client.generate_latest(registry).decode())
        said += [one.event.details or '' for one in host.store.events_of_instance(instance.uuid)
                 if one.event.event not in ('claimed', 'recovered')]
        self.assertIn(instance.uuid, log.output)
        for text in (log.output, *said):
            self.assertNotIn(NAME, text)


class Documents:
    """Of one instance, in memory."""

    def __init__(self) -> None:
        self._text: str | None = None

    def document(self, instance_uuid: str) -> str | None:
        return self._text

    def documents(self, host: str) -> dict[str, str]:
        return {}

    def save(self, instance_uuid: str, document: str, replaces: str | None, hosts: Any) -> bool:
        self._text = document
        return True

    def ask(self, host: str, instance_uuid: str) -> None:
        raise AssertionError('there is one host')


class Guests:

    def __init__(self, host: fixtures.Host) -> None:
        self._host = host

    def start(self, instance_uuid: str, flavor: Any, config: GuestConfig) -> None:
        self._host.start_guest(instance_uuid, config)

    def stop(self, instance_uuid: str) -> None:
        self._host.stop_guest(instance_uuid)

    def delete(self, instance_uuid: str) -> None:
        self._host.delete_guest(instance_uuid)

    def migrate(self, instance_uuid: str, host: str, definitions: Any) -> None:
        raise AssertionError('there is one host')

    def is_migrating(self, instance_uuid: str) -> bool:
        return False


class LifecycleTestCase(NamesTestCase):

    def test_the_service_gives_it_by_the_uuid(self) -> None:
        host, uuid = self.host_with(None, ready=False), Instance().uuid
        lifecycle = Lifecycle('host', host.driver, host.store, host.conf, Documents(), Guests(host),
                              display_name={uuid: NAME}.get)
        lifecycle.open()
        self.addCleanup(lifecycle.close)
        lifecycle.claim(uuid, {'extra_specs': {'hw:pmem': '4GB'}})
        host.manager = lifecycle.manager
        self.assertEqual({'d0': NAME}, self.recorded(host))


class NovaTestCase(NamesTestCase):

    def test_a_subject_has_the_display_name(self) -> None:
        class NovaInstance(Instance):
            display_name = NAME

        host = self.host_with(NamedSubjects())
        host.manager.instance_claim(host.context, Subject(NovaInstance()), 'host', a_request(pmem=1))
        self.assertEqual({'d0': NAME}, self.recorded(host))
