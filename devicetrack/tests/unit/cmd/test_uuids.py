"""UUIDs on command lines: whatever Python reads as one is taken, in one form; anything else is refused at once."""

from __future__ import annotations

from devicetrack.claims import operator_requests
from devicetrack.cmd import base as cmd_base
from devicetrack.objects.values import DeviceKey
from devicetrack.testing import fake
from devicetrack.tests.unit.cmd.test_repair import RepairCommandTestCase


class UuidsTestCase(RepairCommandTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.instance = self.host.spawn(pmem=1, vgpu=1)

    def forms(self, uuid: str) -> tuple[str, ...]:
        return uuid, uuid.upper(), uuid.replace('-', ''), f'{{{uuid}}}', f'urn:uuid:{uuid.upper()}'

    def test_an_instance_that_is_shown(self) -> None:
        for form in self.forms(self.instance.uuid):
            self.assertEqual(2, len(self.program.ask('instance', 'show', form)['devices']), form)

    def test_a_mediated_device_by_its_identifier(self) -> None:
        [mdev] = self.host.mdevs()
        for form in self.forms(mdev):
            for name in (form, f'mdev/{form}'):
                self.assertEqual(mdev, self.program.ask('device', 'show', name)['identifier'], name)

    def test_a_namespace_that_is_named_like_one_keeps_its_name(self) -> None:
        name = self.instance.uuid.upper()
        answer = self.program.run('device', 'show', f'vpmem/{name}')
        self.assertIn(f'no device vpmem/{name}: ', answer.err)

    def test_an_instance_that_is_released_and_the_request_for_it(self) -> None:
        self.host.service.known = {}            # the service does not know it
        self.machine.delete_guest(self.instance.uuid)
        for form in self.forms(self.instance.uuid):
            answer = self.program.run('instance', 'release', form)
            self.assertIn(f'instance {self.instance.uuid} holds ', answer.err)
        data = self.run_to(cmd_base.OK, 'instance', 'release', self.instance.uuid.upper(), '--yes', '--no-wait').data
        self.assertEqual(self.instance.uuid, data['instance_uuid'])
        for form in self.forms(data['request_uuid']):
            self.assertEqual(cmd_base.OK, self.program.run('request', 'show', form).code)
        self.host.audit()
        self.assertEqual([], self.host.records())

    def test_an_owner_that_is_confirmed(self) -> None:
        self.machine.delete_guest(self.instance.uuid)
        self.machine.remove(DeviceKey(fake.VPMEM, 'd0'))
        self.host.manager.close()
        answer = self.run_to(cmd_base.OK, 'device', 'forget', 'vpmem/d0', '--confirm', self.instance.uuid.upper())
        self.assertEqual('forgotten', answer.data['outcome'])

    def test_what_is_none_is_a_mistake_on_the_command_line(self) -> None:
        for command in (('instance', 'show', 'web-1'), ('instance', 'release', 'web-1'),
                        ('request', 'show', 'web-1'), ('device', 'retire', 'vpmem/d0', '--confirm', 'web-1'),
                        ('device', 'forget', 'vpmem/d0', '--confirm', 'web-1'),
                        ('migration', 'check', '--instance', 'web-1', '--host', 'compute-8')):
            answer = self.program.run(*command)
            self.assertEqual(cmd_base.USAGE, answer.code, str(command))
            self.assertIn("'web-1' is no UUID", answer.err)

    def test_a_request_that_somebody_wrote_with_another_form_is_refused_with_the_form_that_counts(self) -> None:
        for verb in (operator_requests.FORGET, operator_requests.RETIRE, operator_requests.RELEASE):
            request = operator_requests.make(self.host.manager.state().host_uuid, verb, kind='vpmem', identifier='d0',
                                             reason='', instance_uuid=self.instance.uuid.upper())
            self.host.store.store.add_operator_request(request)
            self.host.audit()
            shown = self.program.run('request', 'show', request.uuid)
            self.assertIn('must be a UUID as a string: lower case, with hyphens', shown.column('Value'))
