"""Which part of devicetrack may import which, and what importing it costs."""

import ast
import functools
import importlib
from importlib import metadata
import pathlib
import subprocess
import sys
import textwrap

import testscenarios
import testtools

import devicetrack

ROOT = pathlib.Path(devicetrack.__file__).parent

FOUNDATION = {'exception', 'vocabulary', 'conf', 'ethernet', 'filelock', 'lean_imports', 'log', 'ownfiles', 'threads',
              'watchdog'}

# For each part of the package, the parts that it may import; itself it may always.
MAY_IMPORT = {
    'vocabulary': set(),
    'exception': {'vocabulary'},
    'conf': {'exception', 'vocabulary'},
    'lean_imports': set(),
    'log': set(),
    'threads': set(),
    'watchdog': {'log', 'threads'},
    'ethernet': set(),
    'ownfiles': set(),
    'filelock': {'exception', 'vocabulary', 'ownfiles'},
    'objects': FOUNDATION,
    'engine': FOUNDATION | {'objects'},
    'compatibility': FOUNDATION | {'objects', 'engine'},
    'store': FOUNDATION | {'objects', 'compatibility'},
    'virt': FOUNDATION | {'objects', 'compatibility'},
    'placement': FOUNDATION | {'objects', 'compatibility'},
    'claims': FOUNDATION | {'objects', 'engine', 'compatibility', 'store', 'virt'},
    'fleet': FOUNDATION | {'objects', 'engine', 'compatibility', 'store', 'claims'},
    'service': FOUNDATION | {'objects', 'engine', 'store', 'virt', 'claims'},
    'metrics': FOUNDATION | {'engine', 'claims'},
    'nova': FOUNDATION | {'objects', 'claims', 'metrics'},
    'pictures': FOUNDATION | {'objects', 'engine', 'compatibility', 'claims'},
    'cmd': FOUNDATION | {'objects', 'engine', 'compatibility', 'store', 'virt', 'placement', 'claims', 'fleet',
                         'metrics', 'nova', 'pictures'},
}
# These may import everything, and nothing above imports them.
APART = {'testing', 'tests'}

# Interfaces are for everyone, what stands behind them is chosen by whoever puts a service together.
BEHIND_AN_INTERFACE = (
    'devicetrack.store.sql',
    'devicetrack.virt.libvirt',
)

# What those who call as any other service does may know of the claims.
CALLED_BY_SERVICES = ('devicetrack.claims.claim', 'devicetrack.claims.instance_fields', 'devicetrack.claims.manager',
                      'devicetrack.claims.providers')

# Libraries with one home: where else they are imported, something is in the wrong room.
HOMES = {
    'alembic': {'store'},
    'jinja2': {'pictures'},
    'libvirt': {'virt', 'nova'},
    'lxml': {'virt', 'nova'},
    'oslo_db': {'store', 'fleet'},
    'sqlalchemy': {'store', 'fleet'},
    'keystoneauth1': {'placement', 'nova'},
    'nova': {'nova'},
    'prometheus_client': {'metrics'},
    'yaml': {'compatibility'},
}

# It reads options for the sources that it loads; everything beside it decides.
ASKS_THE_WORLD = 'devicetrack.compatibility.sources'

# The engine decides; it reads no clock, takes no lock, draws no lots and touches no world.
NOT_IN_THE_ENGINE = {
    'oslo_concurrency', 'oslo_config', 'oslo_privsep', 'os', 'pathlib', 'random', 'secrets',
    'shutil', 'socket', 'subprocess', 'tempfile', 'threading', 'time',
}


def module_name(path, root=ROOT):
    """The dotted name of the module in a file below ``root``."""
    parts = [root.name, *path.relative_to(root).with_suffix('').parts]
    return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


@functools.cache
def imports_in(source, module, is_package=False):
    """Every module that ``source`` names in an import, wherever in the file it stands.

    ``from a import b`` names a and a.b, for b may be a module.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ''
            if node.level:
                package = module if is_package else module.rpartition('.')[0]
                above = package.split('.')[:len(package.split('.')) - node.level + 1]
                base = '.'.join([*above, base] if base else above)
            found.add(base)
            found.update(f'{base}.{alias.name}' for alias in node.names)
    return frozenset(found)


def part_of(name):
    """``objects`` for devicetrack.objects.details, nothing for devicetrack itself."""
    return name.split('.')[1] if '.' in name else None


def all_imports():
    """Pairs of a module of ours, tests apart, and the set of what it imports."""
    for path in sorted(ROOT.rglob('*.py')):
        name = module_name(path)
        if part_of(name) not in APART | {None}:
            yield name, imports_in(path.read_text(), name, path.name == '__init__.py')


def parts_that_exist():
    names = {part_of(module_name(path)) for path in ROOT.rglob('*.py')}
    return names - {None}


def breaches(imports, part):
    """The parts of devicetrack among ``imports`` that ``part`` may not import."""
    ours = {part_of(name) for name in imports if name.startswith('devicetrack.')}
    known = set(MAY_IMPORT) | APART
    return sorted((ours & known) - MAY_IMPORT[part] - {part})


class LayersTestCase(testtools.TestCase):

    def test_every_part_has_its_place_among_the_layers(self):
        self.assertEqual(set(), parts_that_exist() - set(MAY_IMPORT) - APART)

    def test_imports_go_one_way(self):
        wrong = [
            f'{module} imports {part}'
            for module, imports in all_imports()
            for part in breaches(imports, part_of(module))
        ]
        self.assertEqual([], wrong)

    def test_claims_and_their_equals_see_interfaces_only(self):
        wrong = [
            f'{module} imports {name}'
            for module, imports in all_imports() if part_of(module) == 'claims'
            for name in sorted(imports) if name.startswith(BEHIND_AN_INTERFACE)
        ]
        self.assertEqual([], wrong)

    def test_the_adapter_for_nova_and_the_wiring_of_services_make_public_calls_alone(self):
        wrong = [
            f'{module} imports {name}'
            for module, imports in all_imports() if part_of(module) in ('nova', 'service')
            for name in sorted(imports)
            if name.startswith('devicetrack.claims.') and not name.startswith(CALLED_BY_SERVICES)
        ]
        self.assertEqual([], wrong)

    def test_a_library_with_a_home_is_imported_there_only(self):
        wrong = [
            f'{module} imports {name}'
            for module, imports in all_imports()
            for name in sorted(imports)
            if part_of(module) not in HOMES.get(name.split('.')[0], {part_of(module)})
        ]
        self.assertEqual([], wrong)

    def test_the_engine_and_compatibility_decide_and_do_nothing_else(self):
        wrong = [
            f'{module} imports {name}'
            for module, imports in all_imports()
            if part_of(module) in ('engine', 'compatibility') and module != ASKS_THE_WORLD
            for name in sorted(imports) if name.split('.')[0] in NOT_IN_THE_ENGINE
        ]
        self.assertEqual([], wrong)


def edges(sources):
    """For each module, the modules that it imports, also for its types and within its functions.

    ``from a import b`` means the module a.b where there is one: that it runs the package's own file first is no use of
    it.

    :param sources: by module name, the text and whether it is a package
    """
    found = {}
    for module, (source, is_package) in sources.items():
        named = imports_in(source, module, is_package) & sources.keys()
        inner = {name for name in named if any(other.startswith(name + '.') for other in named)}
        found[module] = named - {module} - {name for name in inner if sources[name][1]}
    return found


def circles(imports):
    """The sets of modules that import one another, one by way of the other."""
    reached = {}
    for module in imports:
        seen: set[str] = set()
        todo = [module]
        while todo:
            for name in imports[todo.pop()] - seen:
                seen.add(name)
                todo.append(name)
        reached[module] = seen
    return sorted({tuple(sorted(name for name in reached[module] if module in reached[name]))
                   for module in imports if module in reached[module]})


class CirclesTestCase(testtools.TestCase):

    def test_no_modules_import_one_another(self):
        sources = {module_name(path): (path.read_text(), path.name == '__init__.py') for path in ROOT.rglob('*.py')}
        self.assertEqual([], circles(edges({name: source for name, source in sources.items()
                                            if part_of(name) not in APART})))

    def test_a_circle_is_seen_wherever_its_imports_stand(self):
        sources = {
            'devicetrack.a': ('', True),
            'devicetrack.a.b': ('from devicetrack.a import c', False),
            'devicetrack.a.c': ('if TYPE_CHECKING:\n    from devicetrack.a.d import D', False),
            'devicetrack.a.d': ('def f():\n    from devicetrack.a.b import B', False),
            'devicetrack.a.e': ('from devicetrack.a.b import B', False),
        }
        self.assertEqual([('devicetrack.a.b', 'devicetrack.a.c', 'devicetrack.a.d')], circles(edges(sources)))

    def test_nobody_below_the_top_knows_the_manager(self):
        knowing = [f'{path.name}:{node.lineno}' for path in ROOT.rglob('*.py')
                   if part_of(module_name(path)) not in APART | {'cmd', 'metrics', 'service', None}
                   for node in ast.walk(ast.parse(path.read_text()))
                   if isinstance(node, ast.arg) and node.arg == 'manager']
        self.assertEqual([], knowing)


class LedgerLockTestCase(testtools.TestCase):

    def test_one_module_takes_the_lock_of_the_ledger(self):
        taking = {path.name for path in ROOT.joinpath('claims').glob('*.py')
                  for node in ast.walk(ast.parse(path.read_text()))
                  if isinstance(node, ast.Name) and node.id == 'LedgerLock'}
        self.assertEqual({'locked_ledger.py'}, taking)


class ImportsOfASourceTestCase(testscenarios.WithScenarios, testtools.TestCase):
    """That the tests above would see a wrong import, however it is written."""

    scenarios = [
        (name, {'source': source, 'breach': breach}) for name, source, breach in [
            ('import', 'import devicetrack.virt.driver', ['virt']),
            ('import as', 'import devicetrack.virt as v', ['virt']),
            ('from the package', 'from devicetrack import virt', ['virt']),
            ('from a module', 'from devicetrack.virt.driver import Driver', ['virt']),
            ('relative', 'from ..virt import driver', ['virt']),
            ('relative, bare', 'from .. import virt, objects', ['virt']),
            ('its own', 'from . import models', []),
            ('in a function', 'def f():\n    from devicetrack import engine', ['engine']),
            ('for types', 'if TYPE_CHECKING:\n    from devicetrack import claims', ['claims']),
            ('tests', 'from devicetrack.tests import unit', ['tests']),
            ('allowed', 'from devicetrack.objects import device', []),
            ('somebody else', 'import virt', []),
        ]
    ]
    source: str
    breach: list[str]

    def test_a_store_module_that_says(self):
        imports = imports_in(self.source, 'devicetrack.store.api')
        self.assertEqual(self.breach, breaches(imports, 'store'))


class PublicNamesTestCase(testtools.TestCase):

    def test_a_type_checker_sees_the_names_that_a_program_gets(self):
        tree = ast.parse(pathlib.Path(devicetrack.__file__).read_text())
        [checked] = [node for node in tree.body
                     if isinstance(node, ast.If) and ast.unparse(node.test) == 'TYPE_CHECKING']
        seen = {alias.asname: node.module for node in checked.body if isinstance(node, ast.ImportFrom)
                for alias in node.names}
        self.assertEqual(seen, devicetrack._PUBLIC)
        for name, module in devicetrack._PUBLIC.items():
            self.assertIs(getattr(importlib.import_module(module), name), getattr(devicetrack, name))

    def test_the_package_says_its_version(self):
        self.assertEqual(metadata.version('devicetrack'), devicetrack.__version__)


class CostOfImportTestCase(testtools.TestCase):

    def test_importing_devicetrack_loads_no_heavy_library(self):
        heavy = ['alembic', 'libvirt', 'lxml', 'oslo_config', 'oslo_db', 'oslo_versionedobjects',
                 'sqlalchemy']
        program = textwrap.dedent(f"""
            import sys
            import devicetrack
            print(*[name for name in {heavy} if name in sys.modules])
        """)
        answer = subprocess.run(
            [sys.executable, '-c', program], capture_output=True, text=True, check=True)
        self.assertEqual('', answer.stdout.strip())

    def test_nothing_loads_eventlet_or_a_message_bus(self):
        """Every module but the adapter for Nova, a host that starts and claims, and the main command on its store."""
        program = textwrap.dedent("""
            import importlib, pkgutil, sys
            import devicetrack
            def leave(name):
                raise ImportError(name)
            for found in pkgutil.walk_packages(devicetrack.__path__, 'devicetrack.', leave):
                if found.name.split('.')[1] not in ('nova', 'tests') and not found.name.endswith(('.env', '__main__')):
                    importlib.import_module(found.name)
            from devicetrack.testing import fixtures
            from devicetrack.tests.unit.cmd import program
            with fixtures.Configuration() as configuration:
                with fixtures.Host(configuration=configuration, devices=1) as host:
                    host.claim(fixtures.Instance(), pmem=1)
                with program.Program(configuration) as command:
                    answer = command.run('device', 'list')
                assert 'd0' in answer.out, answer
            print(*sorted(name for name in sys.modules if name.partition('.')[0] in {
                'amqp', 'eventlet', 'kombu', 'oslo_messaging', 'oslo_service'}))
        """)
        answer = subprocess.run([sys.executable, '-c', program], stdout=subprocess.PIPE, text=True, check=True)
        # One class, of which oslo.versionedobjects makes another.
        self.assertEqual('oslo_messaging.serializer', answer.stdout.strip())

    def test_a_service_that_loads_the_message_bus_later_has_all_of_it(self):
        program = textwrap.dedent("""
            import devicetrack.objects
            import oslo_messaging
            from oslo_versionedobjects import base
            print(issubclass(base.VersionedObjectSerializer, oslo_messaging.NoOpSerializer), oslo_messaging.RPCClient)
        """)
        answer = subprocess.run(
            [sys.executable, '-W', 'ignore', '-c', program], capture_output=True, text=True, check=True)
        self.assertIn("True <class 'oslo_messaging.rpc.client.RPCClient'>", answer.stdout)

    def test_a_service_that_does_not_count_needs_no_library_for_that(self):
        program = textwrap.dedent("""
            import sys
            import devicetrack
            from devicetrack.claims import manager
            from devicetrack.cmd import manage, metrics
            print('prometheus_client' in sys.modules)
        """)
        answer = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=True)
        self.assertEqual('False', answer.stdout.strip())

    def test_the_libvirt_driver_of_a_root_service_loads_no_privileged_daemon(self):
        program = textwrap.dedent("""
            import sys
            from devicetrack.virt.libvirt import driver
            from devicetrack.virt.libvirt.kinds import mdev, vf, vpmem
            print('oslo_privsep' in sys.modules)
        """)
        answer = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=True)
        self.assertEqual('False', answer.stdout.strip())

    def test_importing_devicetrack_starts_no_thread(self):
        program = 'import threading, devicetrack; print(threading.active_count())'
        answer = subprocess.run(
            [sys.executable, '-c', program], capture_output=True, text=True, check=True)
        self.assertEqual('1', answer.stdout.strip())

    def test_importing_every_module_and_making_drivers_prints_nothing(self):
        # The adapter needs Nova, beside which integration_nova imports it.
        modules = [name for name, _imports in all_imports() if '.migrations' not in name and part_of(name) != 'nova']
        program = textwrap.dedent(f"""
            import importlib, tempfile
            for name in {modules}:
                importlib.import_module(name)
            import devicetrack
            from oslo_config import cfg
            for driver in ('fake', 'libvirt'):
                conf = cfg.ConfigOpts()
                devicetrack.register_options(conf)
                conf([], default_config_files=[])
                conf.set_override('virt_driver', driver, 'devicetrack')
                with tempfile.TemporaryDirectory() as path:
                    conf.set_override('state_path', path, 'devicetrack')
                    devicetrack.load_driver(conf)
        """)
        answer = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=True)
        self.assertEqual(('', ''), (answer.stdout, answer.stderr))
