"""Guests with devices on the hosts of Nova's functional tests."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import json
import os
import pkgutil
import threading
from typing import Any
from typing import Final
import uuid

import fixtures
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.libvirt import base
from nova.tests.functional.libvirt import test_vgpu
from nova.virt.libvirt import driver

from devicetrack.tests.nova import adapted
from devicetrack.tests.nova import pmem

# In the message of every assertion about what stock Nova does wrong: a test that fails for any other reason shows
# nothing.
WRONG: Final = 'goes wrong here'

IMAGE: Final = '155d900f-4e14-4e4c-a73d-069cbf4541e6'
_DRIVER: Final = 'nova.virt.libvirt.driver.LibvirtDriver'


@contextlib.contextmanager
def migrations_deleted() -> Iterator[None]:
    """Delete the migrations of an instance, as Nova does with the instance, before anybody asks for them by it."""
    original = objects.MigrationList.get_by_filters

    def get(_cls: type, context: Any, filters: dict[str, Any], **kwargs: Any) -> Any:
        return [] if 'instance_uuid' in filters else original(context, filters, **kwargs)

    with fixtures.MonkeyPatch('nova.objects.MigrationList.get_by_filters', get):
        yield


class Guests(base.ServersTestBase):
    """What both kinds of devices need."""

    microversion = 'latest'
    ADMIN_API = True

    def must(self, well: object, what: str) -> None:
        """Assert what stock Nova does wrong."""
        self.assertTrue(well, f'{WRONG}: {what}')

    def boot(self, host: str, flavor: Any, state: str = 'ACTIVE') -> Any:
        return self._create_server(image_uuid=IMAGE, flavor_id=flavor, networks='none', host=host,
                                   expected_state=state)

    def fake(self, host: str) -> Any:
        """The hypervisor of a host."""
        return self.computes[host].driver._host.get_connection()

    def guests(self, host: str) -> set[str]:
        """The instances whose guests run on a host."""
        return {domain.UUIDString() for domain in self.fake(host).listAllDomains(
            fakelibvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)}

    def definition(self, host: str, server: Any) -> Any:
        """The devices of a guest's definition, as the hypervisor has it."""
        return self.fake(host).lookupByUUIDString(server['id'])._def['devices']

    def instance(self, server: Any) -> Any:
        return objects.Instance.get_by_uuid(nova_context.get_admin_context(), server['id'],
                                            expected_attrs=['resources', 'flavor', 'migration_context'])

    def before(self, method: str, action: Callable[[Any], None]) -> None:
        """Do something before a method of Nova's driver, once.

        :param action: gets the method's arguments
        """
        self._around(method, action, None)

    def after(self, method: str, action: Callable[[Any], None]) -> None:
        """The same, after it."""
        self._around(method, None, action)

    def _around(self, method: str, before: Callable[[Any], None] | None, after: Callable[[Any], None] | None) -> None:
        owner = adapted.running(driver.LibvirtDriver)
        original = getattr(owner, method)
        done: list[bool] = []

        def around(*args: Any, **kwargs: Any) -> Any:
            first, answer = not done, None
            done.append(True)
            if first and before is not None:
                before(args)
            answer = original(*args, **kwargs)
            if first and after is not None:
                after(args)
            return answer

        self.useFixture(fixtures.MockPatchObject(owner, method, around))

    def act_and_fail_late(self, server: Any, action: dict[str, Any], event: str) -> None:
        """Act on an instance, with an error when its guest already runs.

        :param event: the compute service's part of the action
        """
        def fail(_args: Any) -> None:
            raise nova_exception.HypervisorUnavailable()

        self.after('_create_guest_with_network', fail)
        # With calls in place of casts, nova-api hears of the failure.
        self.api.post_server_action(server['id'], action, check_response_status=[200, 202, 500])
        self._wait_for_action_fail_completion(server, *action, event)

    def end_of(self, method: str) -> threading.Event:
        """An event that says when a method of Nova's compute has ended, by its dotted name below ``nova.compute``."""
        name, _dot, method = method.rpartition('.')
        owner = adapted.running(pkgutil.resolve_name(f'nova.compute.{name}'))
        original, ended = getattr(owner, method), threading.Event()

        def note(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            finally:
                ended.set()

        self.useFixture(fixtures.MockPatchObject(owner, method, note))
        return ended

    def together(self, *calls: Callable[[], Any]) -> None:
        """Make calls in a thread each, and wait for them."""
        threads = [threading.Thread(target=call) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def take_down(self, host: str) -> Any:
        """Stop a compute service, and say that its host is down."""
        compute = self.computes[host]
        compute.stop()
        self.force_down(host, True)
        return compute

    def force_down(self, host: str, down: bool) -> None:
        service, = self.api.get_services(host=host, binary='nova-compute')
        self.api.put_service_force_down(service['id'], down)

    def audit(self) -> None:
        """Run the periodic tasks often enough for what needs two looks."""
        for _ in range(2):
            self._run_periodics()

    def wait_for(self, ready: Callable[[], bool]) -> bool:
        """Audit until something is so, at most a few times."""
        for _ in range(6):
            if ready():
                return True
            self._run_periodics()
        return ready()


class MdevGuests(Guests, test_vgpu.VGPUTestBase):
    """Hosts with two parents of sixteen mediated devices each."""

    def setUp(self) -> None:
        super().setUp()
        self.flags(enabled_mdev_types=fakelibvirt.NVIDIA_11_VGPU_TYPE, group='devices')
        self.flavor = self._create_flavor(extra_spec={'resources:VGPU': '1'})

    def mdevs(self, host: str, server: Any) -> set[str]:
        """The mediated devices of a guest."""
        return {hostdev['address_uuid'] for hostdev in self.definition(host, server)['hostdevs']
                if hostdev['type'] == 'mdev'}

    def existing(self, host: str) -> set[str]:
        """The mediated devices of a host."""
        return {name.removeprefix('mdev_')[:36].replace('_', '-') for name in self.fake(host).mdev_info.devices}


class PmemGuests(Guests):
    """Hosts with namespaces, each a file that guests write to and Nova's and our wipes zero."""

    def setUp(self) -> None:
        super().setUp()
        self.listed: dict[str, list[dict[str, Any]]] = {}
        self._asked: str | None = None
        self.useFixture(fixtures.MockPatch('nova.privsep.libvirt.get_pmem_namespaces',
                                           side_effect=lambda: json.dumps(self.listed[str(self._asked)])))
        self.useFixture(fixtures.MockPatch('nova.privsep.libvirt.cleanup_vpmem', side_effect=self._zero))
        self.useFixture(fixtures.MockPatch(f'{_DRIVER}._get_instance_disk_info', return_value=[]))
        self.useFixture(fixtures.MockPatch('os.rename'))
        self._note_the_host('_cleanup_vpmems')

    def _note_the_host(self, method: str) -> None:
        """Remember whose driver calls what is told no host."""
        original = getattr(driver.LibvirtDriver, method)

        def noting(nova: Any, *args: Any, **kwargs: Any) -> Any:
            self._asked = nova._host.get_hostname()
            return original(nova, *args, **kwargs)

        self.useFixture(fixtures.MonkeyPatch(f'{_DRIVER}.{method}', noting))

    def start(self, host: str, *names: str) -> None:
        """Start a compute service on a host with these namespaces, all of label SMALL."""
        self.listed[host] = [self._namespace(index, name) for index, name in enumerate(names)]
        self._configure(host, names)
        self.start_compute(hostname=host)

    def restart(self, host: str) -> None:
        self._configure(host, [one['name'] for one in self.listed[host]])
        self.restart_compute_service(host)

    def _configure(self, host: str, names: Sequence[str]) -> None:
        self._asked = host
        self.flags(pmem_namespaces=f'SMALL:{"|".join(names)}', group='libvirt')

    @staticmethod
    def _namespace(index: int, name: str) -> dict[str, Any]:
        return {'dev': f'namespace0.{index}', 'mode': 'devdax', 'map': 'mem', 'size': pmem.SIZE, 'name': name,
                'uuid': str(uuid.uuid5(uuid.NAMESPACE_DNS, name)), 'numa_node': 0,
                'daxregion': {'id': 0, 'size': pmem.SIZE, 'align': 2 << 20,
                              'devices': [{'chardev': f'dax0.{index}', 'size': pmem.SIZE}]}}

    def flavor_of(self, count: int) -> Any:
        return self._create_flavor(extra_spec={'hw:pmem': ','.join(['SMALL'] * count)})

    def renumber(self, host: str, by: int) -> None:
        """What a boot of the host may do: other numbers for the same namespaces."""
        for namespace in self.listed[host]:
            device, = namespace['daxregion']['devices']
            device['chardev'] = f'dax{by}.{device["chardev"].partition(".")[2]}'
        vars(self.fake(host)).pop('devicetrack_ndctl', None)

    # -- what guests have ---------------------------------------------------------------------------------------------

    def namespaces(self, host: str, server: Any) -> set[str]:
        """The names of a guest's namespaces, by the paths in its definition."""
        by_path = {f'/dev/{one["daxregion"]["devices"][0]["chardev"]}': one['name'] for one in self.listed[host]}
        return {by_path[found['path']] for found in self.definition(host, server)['vpmems']}

    def recorded(self, server: Any) -> set[str]:
        """The names of an instance's namespaces, by Nova's record."""
        return {resource.identifier for resource in self.instance(server).resources or ()}

    def _file(self, host: str, name: str) -> str:
        return pmem.file_of(adapted.WORLD.pmem(host), name)

    def write(self, host: str, server: Any) -> None:
        """Have a guest write into all that it has."""
        for name in self.namespaces(host, server):
            with open(self._file(host, name), 'r+b') as file:
                file.write(server['id'].encode())

    def has_its_bytes(self, host: str, server: Any, names: set[str] | None = None) -> bool:
        found = self.namespaces(host, server) if names is None else names
        return all(self.bytes_of(host, name).startswith(server['id'].encode()) for name in found)

    def bytes_of(self, host: str, name: str) -> bytes:
        with open(self._file(host, name), 'rb') as file:
            return file.read(64)

    def _zero(self, path: str) -> None:
        host = str(self._asked)
        for namespace in self.listed[host]:
            if path == f'/dev/{namespace["daxregion"]["devices"][0]["chardev"]}':
                with contextlib.suppress(FileNotFoundError):
                    os.truncate(self._file(host, namespace['name']), 0)
                    os.truncate(self._file(host, namespace['name']), pmem.SIZE)
