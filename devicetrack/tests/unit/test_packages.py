"""What users install, by setup.cfg."""

import configparser
import fnmatch
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import testtools

from devicetrack.tests import base
from devicetrack.tests.debian import package
from devicetrack.tests.unit.test_imports import imports_in
from devicetrack.tests.unit.test_imports import module_name
from devicetrack.tests.unit.test_imports import ROOT

_WITH_SUITE = {pathlib.PurePath('devicetrack/tests'), pathlib.PurePath('devicetrack/tests/drivers')}


def _setup():
    parser = configparser.ConfigParser()
    parser.read(ROOT.parent / 'setup.cfg')
    return parser


class InstalledPackagesTestCase(testtools.TestCase):

    def setUp(self):
        super().setUp()
        find = _setup()['options.packages.find']
        self.include, self.exclude = find['include'].split(), find['exclude'].split()

    def is_installed(self, package):
        return (any(fnmatch.fnmatch(package, pattern) for pattern in self.include)
                and not any(fnmatch.fnmatch(package, pattern) for pattern in self.exclude))

    def test_what_is_installed_imports_nothing_of_ours_that_is_not(self):
        sources = {module_name(path): path for path in ROOT.rglob('*.py')}
        packages = {name: name if path.name == '__init__.py' else name.rpartition('.')[0]
                    for name, path in sources.items()}
        installed = {name for name, package in packages.items() if self.is_installed(package)}
        wrong = [f'{name} imports {imported}' for name in sorted(installed)
                 for imported in sorted(imports_in(sources[name].read_text(), name, packages[name] == name))
                 if imported in sources and imported not in installed]
        self.assertEqual([], wrong)
        self.assertIn('devicetrack.tests.drivers.contract', installed)
        self.assertNotIn('devicetrack.tests.model.search', installed)


class BuildTestCase(base.TestCase):
    """What is built does not depend on git, nor on how the sources came."""

    def setUp(self):
        super().setUp()
        self.directory = pathlib.Path(self.temp_dir())
        self.copy = self.directory / 'copy'
        listed = self.git(ROOT.parent, 'ls-files', '-z', '--cached', '--others', '--exclude-standard').split('\0')
        self.sources = {name for name in listed if name and (ROOT.parent / name).is_file()}
        for name in self.sources:
            (self.copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT.parent / name, self.copy / name)

    def git(self, directory, *arguments):
        return subprocess.run(['git', '-c', 'user.name=a', '-c', 'user.email=a@b', *arguments], cwd=directory,
                              check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout

    def build(self, what, source):
        """Call the hook that installers call, and return the file that it makes."""
        result = self.directory / f'{what} of {source.name}'
        result.mkdir()
        done = subprocess.run([sys.executable, '-W', 'ignore', '-c', 'import sys; from setuptools import build_meta; '
                               f'build_meta.build_{what}(sys.argv[1])', result], cwd=source, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(0, done.returncode, done.stdout)
        [made] = result.iterdir()
        return made

    def test_a_shallow_clone_a_copy_and_a_release_give_the_same_wheel(self):
        release = self.build('sdist', self.copy)
        subprocess.run(['tar', '-xf', release, '-C', self.directory], check=True)
        unpacked = self.directory / release.name.removesuffix('.tar.gz')
        self.assertEqual(set(), {name for name in self.sources if not (unpacked / name).is_file()})
        for arguments in (['init', '-q'], ['add', '-A', '-f', *self.sources], ['commit', '-q', '-m', 'one'],
                          ['commit', '-q', '-m', 'two', '--allow-empty'],
                          ['clone', '-q', '--depth', '1', f'file://{self.copy}', str(self.directory / 'shallow')]):
            self.git(self.copy, *arguments)
        shallow = self.directory / 'shallow'
        self.assertEqual('1', self.git(shallow, 'rev-list', '--count', 'HEAD').strip())
        shutil.rmtree(self.copy / '.git')
        wheels = [self.build('wheel', source) for source in (self.copy, shallow, unpacked)]
        version = _setup()['metadata']['version']
        self.assertEqual({f'devicetrack-{version}-py3-none-any.whl'}, {wheel.name for wheel in wheels})
        first, *others = [{entry.filename: entry.CRC for entry in zipfile.ZipFile(wheel).infolist()}
                          for wheel in wheels]
        self.assertEqual([first, first], others)
        self.check_contents(set(first), f'devicetrack-{version}')

    def check_contents(self, names, release):
        """Compare a wheel with the sources: the library, the suite for drivers, and what lies in share and etc."""
        library = {name for name in self.sources if fnmatch.fnmatch(name, 'devicetrack/*')
                   and not fnmatch.fnmatch(name, 'devicetrack/tests/*')}
        suite = {name for name in self.sources if pathlib.PurePath(name).parent in _WITH_SUITE and name.endswith('.py')}
        self.assertEqual(library | suite, {name for name in names if not name.startswith(release)})
        data = {pathlib.PurePath(name).name for name in names if name.startswith(f'{release}.data/')}
        files = ' '.join(_setup()['options.data_files'].values()).split()
        self.assertEqual({pathlib.PurePath(file).name for file in files}, data)
        self.assertEqual(set(), {name for name in self.sources if name.startswith(('share/', 'etc/'))
                                 and not name.endswith('-generator.conf')} - set(files))

    def test_the_readme_and_the_package_for_debian_have_the_version(self):
        version = _setup()['metadata']['version']
        self.assertIn(f'Version {version},', (ROOT.parent / 'README.rst').read_text())
        self.assertTrue((ROOT.parent / 'debian' / 'changelog').read_text().startswith(f'devicetrack ({version}) '))

    def test_the_page_of_the_dependencies_has_those_of_the_package(self):
        page = (ROOT.parent / 'doc' / 'source' / 'contributor' / 'dependencies.rst').read_text()
        listed = re.findall(r'^   \* - (\S+>=\S+)$', page, re.M)
        self.assertEqual(_setup()['options']['install_requires'].split(), listed)

    def test_the_root_directory_for_debian_has_what_a_build_takes(self):
        wanted = package.build_packages(package.CONTROL.read_text())
        self.assertLessEqual({'debhelper', 'furo', 'lintian', 'python3-alembic', 'python3-yaml'}, set(wanted))
        self.assertNotIn('python3-devicetrack', wanted)
