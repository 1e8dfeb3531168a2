"""Instances of which the compute service has no record any more, though their devices are here."""

from __future__ import annotations

from typing import Any

from devicetrack.engine import findings
from devicetrack.objects.values import DeviceKey
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.tests.unit.claims import test_claim

D0 = DeviceKey('vpmem', 'd0')
OVER = findings.ABANDONED


class ForgottenTestCase(test_claim.HostTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.fixture = self.host(devices=2)
        self.instance = self.fixture.spawn(pmem=1)
        self.fixture.machine.write(D0, b'secret')
        self.fixture.service.known = {self.instance.uuid: 'forgotten'}

    def kinds(self) -> list[str]:
        return [finding.kind for finding in self.fixture.audit()]

    def reserved(self) -> int:
        return sum(sum(provider.reserved.values()) for provider in self.fixture.manager.providers())

    def check_goes_back(self) -> None:
        """In the second of two audits, and the first one keeps the scheduler from it."""
        self.assertEqual(([OVER], {'d0': 'active', 'd1': FREE}), (self.kinds(), self.fixture.states()))
        self.assertEqual(1, self.reserved())
        self.assertEqual(([], {'d0': FREE, 'd1': FREE}), (self.kinds(), self.fixture.states()))
        self.assertEqual((0, b''), (self.reserved(), self.fixture.machine.read(D0)))

    def test_without_a_domain_the_second_audit_gives_back(self) -> None:
        self.fixture.machine.delete_guest(self.instance.uuid)
        self.check_goes_back()

    def test_so_does_the_second_audit_after_a_start(self) -> None:
        self.fixture.machine.delete_guest(self.instance.uuid)
        self.fixture.audit()
        self.fixture.restart()
        self.assertEqual([OVER], [finding.kind for finding in self.fixture.findings])
        self.check_goes_back()

    def test_a_guest_keeps_its_devices_until_somebody_undefines_it(self) -> None:
        for _ in range(3):
            [found] = self.fixture.audit()
            self.assertEqual((OVER, None), (found.kind, found.repair))
            self.assertIn('its domain is still there', found.detail)
            self.assertEqual(({'d0': 'active', 'd1': FREE}, 1), (self.fixture.states(), self.reserved()))
        self.fixture.machine.stop_guest(self.instance.uuid)
        self.assertEqual([OVER], self.kinds())
        self.fixture.machine.delete_guest(self.instance.uuid)
        self.check_goes_back()

    def test_an_operator_need_not_wait_for_the_second_audit(self) -> None:
        self.fixture.machine.delete_guest(self.instance.uuid)
        [found] = self.fixture.audit()
        self.assertEqual(findings.GIVE_BACK, found.repair)
        repairs = self.fixture.running.repairs
        self.assertEqual([None], [done.error for done in repairs.repair(repairs.plan().repairs)])
        self.assertEqual({'d0': FREE, 'd1': FREE}, self.fixture.states())

    def test_both_looks_of_two_audits_have_to_show_it(self) -> None:
        self.fixture.machine.delete_guest(self.instance.uuid)
        for known in ((0,), (1,), (2,), (3,)):
            said = iter(range(4))
            self.patch(self.fixture.service, 'instances', lambda uuids, said=said, known=known: dict.fromkeys(
                uuids, 'here' if next(said) in known else 'forgotten'))
            # An audit looks only once if the first look shows nothing.
            for _ in range(2 if known[0] else 1):
                self.fixture.audit()
            self.fixture.restart()
            self.assertEqual({'d0': 'active', 'd1': FREE}, self.fixture.states(), str(known))

    def test_nothing_goes_back_while_anything_says_otherwise(self) -> None:
        machine, service = self.fixture.machine, self.fixture.service

        def unknown_domain() -> None:
            machine.unknown_domains['x'] = 'torn'

        def another_names_it() -> None:
            machine.start_guest(Instance().uuid, ['<device kind="vpmem" address="/dev/fakedax0"/>'])

        def no_answer() -> None:
            service.known = RuntimeError('no database')

        def knows_nobody() -> None:
            """Its answers come from another database."""
            self.fixture.spawn(pmem=1)
            service.known = dict.fromkeys((self.instance.uuid, *machine.domains), 'forgotten')

        machine.delete_guest(self.instance.uuid)
        for happens in (unknown_domain, another_names_it, no_answer, knows_nobody):
            happens()
            for _ in range(3):
                self.fixture.audit()
            self.assertEqual('active', self.fixture.states()['d0'], str(happens))
            machine.unknown_domains.clear()
            for domain in list(machine.domains):
                machine.delete_guest(domain)
            service.known = {self.instance.uuid: 'here'}
            self.fixture.audit()

    def test_a_boot_of_this_process_may_not_be_saved_yet(self) -> None:
        self.fixture.delete(self.instance)
        self.fixture.claim(Instance(uuid=self.instance.uuid), pmem=1)
        [device] = self.fixture.held()
        for _ in range(3):
            self.assertEqual(([], 'claimed'), (self.kinds(), self.fixture.states()[device]))
        self.fixture.restart()
        self.assertEqual(([OVER], 'claimed'), (self.kinds(), self.fixture.states()[device]))
        self.assertEqual(([], FREE), (self.kinds(), self.fixture.states()[device]))


class LeftOutTestCase(test_claim.HostTestCase):
    """The service answers without a word about an instance, so nobody knows what it would say."""

    def test_a_started_one_without_a_domain_is_reported_and_kept(self) -> None:
        host = self.host(devices=1)
        instance = host.spawn(pmem=1)
        host.service.known = {}
        self.assertEqual([], host.audit())
        host.machine.delete_guest(instance.uuid)
        for _ in range(3):
            [found] = host.audit()
            self.assertEqual((findings.UNKNOWN_OWNER, instance.uuid, None),
                             (found.kind, found.recorded_owner, found.repair))
            self.assertIn(f'recorded for {instance.uuid}', found.detail)
        self.assertEqual({'d0': 'active'}, host.states())
        host.delete(instance)
        self.assertEqual(([], {'d0': FREE}), (host.audit(), host.states()))


class MovedTestCase(test_claim.HostTestCase):

    def test_rows_of_a_migration_go_back_with_the_others(self) -> None:
        host = self.host(devices=2)
        instance = host.spawn(pmem=1)
        migration: Any = host.service.data.create_migration(instance, host.name, 'resize')
        host.resize(instance, pmem=1, migration=migration)
        host.service.known = {instance.uuid: 'forgotten'}
        host.machine.delete_guest(instance.uuid)
        for _ in range(3):
            host.audit()
        self.assertEqual({'d0': 'active', 'd1': 'claimed'}, host.states())      # the service knows the migration
        host.service.data.migrations.clear()
        host.audit()
        host.audit()
        self.assertEqual({'d0': FREE, 'd1': FREE}, host.states())
