"""Providers that the compute service creates after the manager has started: a resolver that does not know them yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
import uuid

import fixtures as fixtures_of_tests

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims.providers import KnownProviders
from devicetrack.engine import findings
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import PMEM
from devicetrack.testing.fixtures import VGPU
from devicetrack.tests import base

PARENT = 'pci_0000_84_00_0'
OTHER = 'pci_0000_85_00_0'


class Created:
    """A resolver that knows what was created so far."""

    def __init__(self, *names: str) -> None:
        self.uuids: dict[str, str] = {}
        self.create(*names)

    def create(self, *names: str) -> None:
        self.uuids |= {name: str(uuid.uuid4()) for name in names}

    def uuid_of(self, name: str) -> str | None:
        return self.uuids.get(name)


class LateProvidersTestCase(base.TestCase):

    def start(self, *created: str, devices: int = 1, parents: Mapping[str, int] | None = None) -> fixtures.Host:
        self.created = Created(*created)
        host = fixtures.Host(devices=devices, parents=parents or {PARENT: 2}, ready=False)
        host.providers = self.created
        self.host = self.useFixture(host)
        host.findings = host.manager.init_host(host.context)
        return host

    def unknown(self) -> list[str]:
        return [finding.detail for finding in self.host.findings if finding.kind == findings.NO_PROVIDER]

    def test_a_start_goes_on_and_nothing_is_made_at_the_provider(self) -> None:
        host = self.start('')
        error = self.assertRaises(exception.NoFit, host.claim, fixtures.Instance(), vgpu=1)
        self.assertEqual('1 VGPU wanted, 0 of 2 free: 2 withheld (no provider yet)', str(error))
        self.assertEqual([], host.records())

    def test_other_providers_serve(self) -> None:
        host = self.start('', OTHER, parents={PARENT: 2, OTHER: 1})
        host.spawn(vgpu=1)
        host.spawn(pmem=1)
        self.assertEqual({self.created.uuids[OTHER], self.created.uuids['']},
                         {record.provider_uuid for record in host.records()})
        self.assertRaises(exception.NoFit, host.claim, fixtures.Instance(), vgpu=1)

    def test_the_audit_after_it_was_created_ends_it(self) -> None:
        host = self.start('')
        host.audit()
        self.assertRaises(exception.NoFit, host.claim, fixtures.Instance(), vgpu=1)
        self.created.create(PARENT)
        host.audit()
        self.assertEqual([], self.unknown())
        host.spawn(vgpu=1)
        self.assertEqual([self.created.uuids[PARENT]], [record.provider_uuid for record in host.records()])

    def test_one_that_was_made_anew_serves_after_the_next_audit(self) -> None:
        """Its UUID is another one, for example after placement lost it and the service made it again."""
        host = self.start('', PARENT)
        instance = host.spawn(vgpu=1)
        former = self.created.uuids[PARENT]
        self.created.create(PARENT)
        host.audit()
        new = self.created.uuids[PARENT]
        self.assertEqual([new], [one.uuid for one in host.manager.providers() if one.parent_uuid is not None])
        self.assertEqual([new], [one.provider_uuid for one in host.manager.assignments(instance.uuid)])
        self.assertRaises(exception.NoFit, host.claim, fixtures.Instance(), {former: {'resources': {VGPU: 1}}})
        host.claim(fixtures.Instance(), {new: {'resources': {VGPU: 1}}})
        self.assertRaises(exception.NoFit, host.claim, fixtures.Instance(), {new: {'resources': {VGPU: 1}}})
        host.delete(instance)
        host.claim(fixtures.Instance(), {new: {'resources': {VGPU: 1}}})

    def test_one_that_is_not_there_just_now_keeps_its_uuid(self) -> None:
        host = self.start('', PARENT)
        uuids = dict(self.created.uuids)
        self.created.uuids.clear()
        host.audit()
        self.assertEqual([], self.unknown())
        host.claim(fixtures.Instance(), {uuids[PARENT]: {'resources': {VGPU: 1}}})

    def test_starts_and_audits_report_it(self) -> None:
        host = self.start('')
        told = self.unknown()
        self.assertEqual(1, len(told))
        self.assertIn(PARENT, told[0])
        host.audit()
        self.assertEqual(told, self.unknown())

    def test_devices_that_exist_are_withheld_and_say_why(self) -> None:
        host = self.start(PARENT)
        self.assertEqual({'d0': f'{fixtures.WITHHELD}{vocabulary.NO_PROVIDER}'}, host.states())
        [withheld] = host.manager.operator.withheld()
        self.assertEqual(('d0', {vocabulary.NO_PROVIDER}), (withheld.target.name, set(withheld.causes)))
        [shortage] = host.manager.explain(fixtures.a_request(pmem=1))
        self.assertEqual(((vocabulary.NO_PROVIDER, 1),), shortage.withheld)
        self.created.create('')
        host.audit()
        self.assertEqual({'d0': fixtures.FREE}, host.states())
        self.assertEqual([], host.manager.operator.withheld())

    def test_a_start_after_it_was_created_withholds_nothing(self) -> None:
        host = self.start(PARENT)
        host.audit()
        self.created.create('')
        host.restart()
        host.spawn(pmem=1)

    def test_another_reason_stays(self) -> None:
        host = self.start(PARENT)
        host.manager.operator.cordon('vpmem', 'd0')
        self.created.create('')
        host.audit()
        self.assertEqual({'d0': f'{fixtures.WITHHELD}{vocabulary.CORDONED}'}, host.states())

    def test_what_is_cordoned_meanwhile_is_cordoned_after_it(self) -> None:
        host = self.start('')
        host.manager.operator.cordon('mdev', PARENT, parent=True)
        self.created.create(PARENT)
        host.audit()
        error = self.assertRaises(exception.NoFit, host.claim, fixtures.Instance(), vgpu=1)
        self.assertIn('2 withheld (cordoned)', str(error))

    def test_an_owned_device_stays_its_owners_and_keeps_the_provider_of_its_row(self) -> None:
        host = self.start('', PARENT)
        has = [host.spawn(pmem=1), host.spawn(vgpu=1)]
        before = host.records()
        self.created.uuids.clear()
        host.restart()
        host.audit()
        self.assertEqual(before, host.records())
        self.assertEqual({record.key: record.provider_uuid for record in before},
                         {one.key: one.provider_uuid for one in host.manager.assignments()})
        self.assertEqual({one.uuid for one in has}, set(host.held().values()))
        for instance in has:
            host.hard_reboot(instance)
        self.assertEqual({record.provider_uuid for record in before},
                         {record.provider_uuid for record in host.records()})

    def test_what_is_claimed_and_not_made_yet_is_made_and_counted(self) -> None:
        host = self.start('', PARENT)
        instance = fixtures.Instance()
        host.claim(instance, vgpu=1)
        uuids = dict(self.created.uuids)
        del self.created.uuids[PARENT]
        host.restart()
        host.manager.realize(host.context, instance)
        host.audit()
        self.created.uuids = uuids
        host.audit()
        self.assertEqual([uuids[PARENT]], [record.provider_uuid for record in host.records()])
        host.claim(fixtures.Instance(), vgpu=1)
        self.assertRaises(exception.NoFit, host.claim, fixtures.Instance(), vgpu=1)

    def test_what_its_owner_gives_back_is_withheld_too(self) -> None:
        host = self.start('', PARENT)
        instance = host.spawn(pmem=1)
        self.created.uuids.clear()
        host.restart()
        host.delete(instance)
        self.assertEqual({'d0': f'{fixtures.WITHHELD}{vocabulary.NO_PROVIDER}'}, host.states())

    def test_the_scheduler_is_told_of_the_others(self) -> None:
        host = self.start('', OTHER, parents={PARENT: 2, OTHER: 1})
        uuids = self.created.uuids
        self.assertEqual({uuids[''], uuids[OTHER]}, {one.uuid for one in host.manager.providers()})
        self.assertIn(VGPU, host.manager.state().classes)

    def test_without_the_node_it_is_told_of_none(self) -> None:
        host = self.start(PARENT)
        self.assertEqual([], host.manager.providers())
        self.assertIn(PMEM, host.manager.state().classes)

    def test_a_provider_that_may_be_the_missing_one_is_not_taken_for_another_hosts(self) -> None:
        """The service has just created it and allocates there before an audit hears of it."""
        host = self.start('', OTHER, parents={PARENT: 2, OTHER: 1})
        self.created.create(PARENT)
        both = {self.created.uuids[name]: {'resources': {VGPU: 1}} for name in (PARENT, OTHER)}
        self.assertRaises(exception.UnknownProvider, host.claim, fixtures.Instance(), both)
        host.audit()
        self.assertEqual(2, len(host.claim(fixtures.Instance(), both).resources))

    def test_no_uuid_but_the_services_is_recorded(self) -> None:
        host = self.start()
        self.assertRaises(exception.NoFit, host.claim, fixtures.Instance(), pmem=1)
        self.assertRaises(exception.NoFit, host.claim, fixtures.Instance(), vgpu=1)
        self.created.create('', PARENT)
        host.audit()
        host.spawn(pmem=1)
        host.spawn(vgpu=1)
        self.assertEqual(set(self.created.uuids.values()), {record.provider_uuid for record in host.records()})

    def test_a_log_names_it(self) -> None:
        logged = self.useFixture(fixtures_of_tests.FakeLogger())
        self.start('')
        self.assertIn(f'no provider yet: {PARENT}', logged.output)


class KnownProvidersTestCase(base.TestCase):

    def test_no_answer_is_no_uuid(self) -> None:
        answers: Any = iter((None, '', 'b'))

        class Resolver:
            def uuid_of(self, name: str) -> str | None:
                found: str | None = next(answers)
                return found

        known = KnownProviders(Resolver())
        for wanted in ({'a'}, {'a'}, set()):
            known.resolve(['a'])
            self.assertEqual((wanted, 'a' not in wanted), (known.missing({'a'}), 'a' in known))
        self.assertEqual(('b', frozenset('b')), (known.uuid_of('a'), known.all()))
