"""Placement's interface, call by call: what it answers, and which error says what."""

from __future__ import annotations

from http import server as http_server
import socket
import threading
import uuid

import fixtures
from keystoneauth1 import adapter as ks_adapter
from keystoneauth1 import session as ks_session
from keystoneauth1 import token_endpoint
from oslo_config import cfg
import requests

from devicetrack import exception
from devicetrack.conf import opts
from devicetrack.placement import client as clients
from devicetrack.placement import errors
from devicetrack.placement import values
from devicetrack.testing import placement as placements
from devicetrack.testing.http_proxy import Loss
from devicetrack.tests import base

_NOBODY = '00000000-0000-4000-8000-000000000000'


class ClientTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.placement = self.useFixture(placements.Placement())
        self.client = self.placement.client

    def consumer(self, resources: values.Resources, generation: int | None = None, **kwargs) -> values.Consumer:
        return values.Consumer(kwargs.pop('uuid', None) or str(uuid.uuid4()), resources, generation, 'project', 'user',
                               kwargs.pop('type', values.INSTANCE))


class TestProviders(ClientTestCase):

    def test_a_tree(self):
        root = self.placement.provider(VCPU=8)
        child = self.client.create_provider(str(uuid.uuid4()), f'child of {root}', root)
        self.assertEqual((root, root, 0), (child.parent_uuid, child.root_uuid, child.generation))
        self.assertEqual({root, child.uuid}, {provider.uuid for provider in self.client.get_tree(child.uuid)})
        self.assertEqual(child, self.client.find_provider(child.name))
        self.assertEqual(child, self.client.get_provider(child.uuid))
        self.assertRaises(errors.ProviderInUse, self.client.delete_provider, root)
        self.client.delete_provider(child.uuid)
        self.assertEqual([root], [provider.uuid for provider in self.client.get_tree(root)])
        self.assertIsNone(self.client.find_provider(child.name))

    def test_a_name_or_uuid_that_is_taken(self):
        root = self.placement.provider(name='of one only')
        self.assertRaises(errors.ProviderExists, self.client.create_provider, str(uuid.uuid4()), 'of one only', None)
        self.assertRaises(errors.ProviderExists, self.client.create_provider, root, 'another', None)

    def test_nobody(self):
        self.assertEqual([], self.client.get_tree(_NOBODY))
        for call in (self.client.get_provider, self.client.delete_provider, self.client.get_inventories,
                     self.client.get_traits, self.client.get_aggregates, self.client.get_usages,
                     lambda provider: self.client.put_inventories(provider, 0, {}),
                     lambda provider: self.client.put_traits(provider, 0, set())):
            self.assertEqual(_NOBODY, self.assertRaises(errors.NoSuchProvider, call, _NOBODY).provider)

    def test_inventories(self):
        root = self.placement.provider()
        wanted = {'VGPU': values.ClassInventory(8, reserved=2, max_unit=4),
                  'VCPU': values.ClassInventory(4, allocation_ratio=16)}
        put = self.client.put_inventories(root, 1, wanted)
        self.assertEqual((2, wanted), (put.generation, put.inventories))
        self.assertEqual(put, self.client.get_inventories(root))
        error = self.assertRaises(errors.ProviderConflict, self.client.put_inventories, root, 1, {})
        self.assertEqual((root,), error.providers)

    def test_an_inventory_in_use_stays(self):
        root = self.placement.provider(VGPU=1)
        self.client.replace_allocations([self.consumer({root: {'VGPU': 1}})])
        found = self.client.get_inventories(root)
        self.assertRaises(errors.InventoryInUse, self.client.put_inventories, root, found.generation, {})
        self.assertRaises(errors.ProviderInUse, self.client.delete_provider, root)

    def test_traits_and_aggregates(self):
        root = self.placement.provider()
        self.client.ensure_trait('CUSTOM_RED')
        self.client.ensure_trait('CUSTOM_RED')
        put = self.client.put_traits(root, 1, {'CUSTOM_RED', 'COMPUTE_NODE'})
        self.assertEqual((put, {'CUSTOM_RED', 'COMPUTE_NODE'}), (self.client.get_traits(root), put.traits))
        self.assertRaises(errors.ProviderConflict, self.client.put_traits, root, 1, set())
        self.assertEqual(frozenset(), self.client.get_aggregates(root))

    def test_a_class_is_made_once(self):
        root = self.placement.provider()
        name = f'CUSTOM_{uuid.uuid4().hex.upper()}'
        error = self.assertRaises(errors.PlacementRefused, self.client.put_inventories, root, 1,
                                  {name: values.ClassInventory(1)})
        self.assertEqual(400, error.status)
        for _time in range(2):
            self.client.ensure_class(name)
        self.client.put_inventories(root, 1, {name: values.ClassInventory(1)})
        self.assertRaises(errors.PlacementRefused, self.client.ensure_class, 'not custom')


class TestAllocations(ClientTestCase):

    def test_what_was_put_is_read(self):
        root = self.placement.provider(VCPU=8, VGPU=2)
        put = self.consumer({root: {'VCPU': 2, 'VGPU': 1}})
        self.client.replace_allocations([put])
        self.assertEqual(put._replace(generation=1), self.client.get_allocations(put.uuid))
        self.assertEqual({'VCPU': 2, 'VGPU': 1}, self.client.get_usages(root))
        self.assertEqual({put.uuid: values.Holding(1, {'VCPU': 2, 'VGPU': 1})},
                         self.client.list_consumers(root).consumers)

    def test_one_that_does_not_exist_holds_nothing(self):
        self.assertEqual(values.Consumer(_NOBODY, {}, None), self.client.get_allocations(_NOBODY))
        self.assertIs(False, self.client.delete_allocations(_NOBODY))

    def test_one_that_is_emptied_is_forgotten(self):
        root = self.placement.provider(VCPU=8)
        put = self.consumer({root: {'VCPU': 2}})
        self.client.replace_allocations([put])
        self.client.replace_allocations([put._replace(resources={}, generation=1)])
        self.assertFalse(self.client.get_allocations(put.uuid).exists)
        self.client.replace_allocations([put])
        self.assertIs(True, self.client.delete_allocations(put.uuid))
        self.assertFalse(self.client.get_allocations(put.uuid).exists)

    def test_generations_that_are_not_those_of_now(self):
        root = self.placement.provider(VCPU=8)
        put = self.consumer({root: {'VCPU': 2}})
        self.assertRaises(errors.GenerationConflict, self.client.replace_allocations, [put._replace(generation=1)])
        self.client.replace_allocations([put])
        for generation in (None, 0, 2):
            self.assertRaises(errors.GenerationConflict, self.client.replace_allocations,
                              [put._replace(generation=generation)])

    def test_several_are_written_or_none(self):
        root = self.placement.provider(VCPU=4)
        one, two = self.consumer({root: {'VCPU': 2}}), self.consumer({root: {'VCPU': 2}})
        self.assertRaises(errors.GenerationConflict, self.client.replace_allocations, [one, two._replace(generation=1)])
        self.assertRaises(errors.NoCapacity, self.client.replace_allocations, [one, two._replace(
            resources={root: {'VCPU': 3}})])
        self.assertFalse(self.client.get_allocations(one.uuid).exists)
        self.client.replace_allocations([one, two])
        self.assertEqual({'VCPU': 4}, self.client.get_usages(root))

    def test_no_inventory_of_a_class_is_no_capacity(self):
        root = self.placement.provider(VCPU=4)
        self.assertRaises(errors.NoCapacity, self.client.replace_allocations, [self.consumer({root: {'VGPU': 1}})])

    def test_reshape(self):
        root = self.placement.provider(VCPU=8, VGPU=2)
        child = self.client.create_provider(str(uuid.uuid4()), f'child of {root}', root)
        put = self.consumer({root: {'VCPU': 2, 'VGPU': 1}})
        self.client.replace_allocations([put])
        inventories = {
            root: values.Inventories(self.client.get_inventories(root).generation, {'VCPU': values.ClassInventory(8)}),
            child.uuid: values.Inventories(0, {'VGPU': values.ClassInventory(2)})}
        moved = put._replace(resources={root: {'VCPU': 2}, child.uuid: {'VGPU': 1}}, generation=1)
        self.assertRaises(errors.InventoryInUse, self.client.reshape, inventories, [])
        self.assertRaises(errors.GenerationConflict, self.client.reshape, inventories, [moved._replace(generation=2)])
        self.assertRaises(errors.NoCapacity, self.client.reshape, inventories,
                          [moved._replace(resources={root: {'VCPU': 2}, child.uuid: {'VGPU': 3}})])
        self.client.reshape(inventories, [moved])
        self.assertEqual(moved._replace(generation=2), self.client.get_allocations(put.uuid))


class TestNoAnswer(ClientTestCase):

    def test_a_read_is_sent_again_and_a_write_of_allocations_is_not(self):
        root = self.placement.provider(VCPU=4)
        path = f'/resource_providers/{root}'
        self.placement.proxy.at_next('GET', path, Loss.REQUEST)
        self.client.get_provider(root)
        put = self.consumer({root: {'VCPU': 2}})
        self.placement.proxy.at_next('PUT', '/allocations/', Loss.REQUEST)
        error = self.assertRaises(errors.PlacementUnavailable, self.client.replace_allocations, [put])
        self.assertEqual(f'PUT /allocations/{put.uuid}', error.request)
        self.assertEqual([('GET', path), ('GET', path), ('PUT', f'/allocations/{put.uuid}')], self.placement.requests)

    def test_nobody_listens(self):
        with socket.create_server(('127.0.0.1', 0)) as listener:
            port = listener.getsockname()[1]
        client = self.placement.open(f'http://127.0.0.1:{port}')
        self.assertRaises(errors.PlacementUnavailable, client.get_tree, _NOBODY)

    def test_somebody_listens_and_says_nothing(self):
        listener = socket.create_server(('127.0.0.1', 0))
        self.addCleanup(listener.close)
        session = ks_session.Session(
            token_endpoint.Token(f'http://127.0.0.1:{listener.getsockname()[1]}', placements.TOKEN), timeout=0.2)
        client = clients.Client(ks_adapter.Adapter(session, service_type='placement'))
        self.assertRaises(errors.PlacementUnavailable, client.get_tree, _NOBODY)

    def test_somebody_else_answers(self):
        class Stranger(http_server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = bodies.pop()
                self.send_response(200)
                self.send_header('Content-Length', str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args) -> None:
                pass

        bodies = [b'<html>It works!</html>', b'{"allocations": null}', b'[]', b'{"allocations": {"x": {}}}']
        listening = http_server.HTTPServer(('127.0.0.1', 0), Stranger)
        self.addCleanup(listening.server_close)
        thread = threading.Thread(target=listening.serve_forever, args=(0.05,))
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(listening.shutdown)
        client = self.placement.open(f'http://127.0.0.1:{listening.server_address[1]}')
        while bodies:
            self.assertRaises(errors.PlacementUnavailable, client.get_allocations, _NOBODY)

    def test_it_does_not_let_us_in(self):
        client = clients.Client(ks_adapter.Adapter(ks_session.Session(), service_type='placement',
                                                   endpoint_override=self.placement.url))
        error = self.assertRaises(errors.PlacementUnavailable, client.get_tree, _NOBODY)
        self.assertIn('401', error.reason)

    def test_a_server_that_is_too_old(self):
        self.client.get_tree(_NOBODY)
        self.useFixture(fixtures.MonkeyPatch('devicetrack.placement.client.MICROVERSION', '1.999'))
        error = self.assertRaises(errors.PlacementTooOld, self.client.get_tree, _NOBODY)
        self.assertEqual('1.999', error.wanted)


class TestAnswersOfAnother(base.TestCase):
    """A proxy or a login page answers instead of placement: nobody knows what is there, or what was done."""

    def answered(self, status: int, body: str) -> clients.Client:
        class Another(ks_adapter.Adapter):
            def request(self, *_args: object, **_kwargs: object) -> requests.Response:
                answer = requests.Response()
                answer.status_code, answer._content = status, body.encode()
                return answer

        return clients.Client(Another(ks_session.Session()))

    def test_not_found_is_not_the_absence_of_a_provider_or_a_consumer(self):
        client = self.answered(404, '<html>Not Found</html>')
        for call in (client.get_provider, client.delete_provider, client.list_consumers,
                     client.delete_allocations, lambda uuid: client.put_traits(uuid, 0, set())):
            error = self.assertRaises(errors.PlacementUnavailable, call, _NOBODY)
            self.assertIn('404', error.reason)

    def test_a_page_is_not_the_success_of_a_write(self):
        consumer = values.Consumer(_NOBODY, {}, 1, 'project', 'user', values.INSTANCE)
        client = self.answered(200, '<html>Sign in</html>')
        for call in (lambda: client.replace_allocations([consumer]), lambda: client.replace_allocations([consumer] * 2),
                     lambda: client.reshape({}, []), lambda: client.delete_allocations(_NOBODY),
                     lambda: client.delete_provider(_NOBODY), lambda: client.ensure_class('CUSTOM_A'),
                     lambda: client.ensure_trait('CUSTOM_A')):
            error = self.assertRaises(errors.PlacementUnavailable, call)
            self.assertIn('200', error.reason)

    def test_allocations_without_a_generation_are_not_those_of_placement(self):
        client = self.answered(200, '{"allocations": {"p": {"resources": {"VGPU": 1}}}, "consumer_generation": null, '
                                    '"project_id": "p", "user_id": "u", "consumer_type": "INSTANCE"}')
        self.assertRaises(errors.PlacementUnavailable, client.get_allocations, _NOBODY)


class TestOptions(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.placement = self.useFixture(placements.Placement())

    def conf_of(self, text: str, conf: cfg.ConfigOpts | None = None) -> cfg.ConfigOpts:
        path = f'{self.temp_dir()}/service.conf'
        with open(path, 'w', encoding='utf-8') as file:
            file.write(text)
        conf = conf or cfg.ConfigOpts()
        opts.register_options(conf)
        conf([], default_config_files=[path], default_config_dirs=[])
        return conf

    def named(self) -> str:
        return (f'[placement]\nauth_type = admin_token\nendpoint = {self.placement.url}\n'
                f'token = {placements.TOKEN}\nconnect_retry_delay = 0.01\n')

    def test_a_client_of_the_configuration(self):
        client = clients.Client.from_conf(self.conf_of(self.named()))
        self.placement.proxy.at_next('GET', '/resource_providers', Loss.REQUEST)
        self.assertEqual([], client.get_tree(_NOBODY))

    def test_what_the_service_registered_is_read(self):
        conf = cfg.ConfigOpts()
        conf.register_opts([cfg.StrOpt('auth_type', default='admin_token', help='Of the service.'),
                            cfg.IntOpt('connect_retries', default=0, help='Of the service.')], 'placement')
        client = clients.Client.from_conf(self.conf_of(self.named().replace('auth_type = admin_token\n', ''), conf))
        self.placement.proxy.at_next('GET', '/resource_providers', Loss.REQUEST)
        self.assertRaises(errors.PlacementUnavailable, client.get_tree, _NOBODY)

    def test_what_cannot_be_used(self):
        for text in ('', '[placement]\nauth_type = telepathy\n', '[placement]\nauth_type = password\n',
                     self.named() + 'version = 1\nmin_version = 1\n'):
            self.assertRaises(exception.InvalidConfiguration, clients.Client.from_conf, self.conf_of(text))

    def test_a_timeout_that_gives_no_time(self):
        error = self.assertRaises(exception.InvalidConfiguration, clients.Client.from_conf,
                                  self.conf_of(f'{self.named()}timeout = 0\n'))
        self.assertIn('[placement] timeout = 0.0: ', str(error))

    def test_what_an_auth_plugin_lacks_is_said_with_the_option_that_names_it(self):
        for text, said in (('', 'auth_type = None: name an auth plugin'),
                           ('auth_type = telepathy', 'auth_type = telepathy: '),
                           ('auth_type = password', 'auth_type = password: Auth plugin requires parameters')):
            error = self.assertRaises(exception.InvalidConfiguration, clients.Client.from_conf,
                                      self.conf_of(f'[placement]\n{text}\n'))
            self.assertIn(f'[placement] {said}', str(error))
