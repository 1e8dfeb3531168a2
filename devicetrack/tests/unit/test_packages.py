"""Which packages users install, by setup.cfg."""

import configparser
import fnmatch

import testtools

from devicetrack.tests.unit.test_imports import imports_in
from devicetrack.tests.unit.test_imports import module_name
from devicetrack.tests.unit.test_imports import ROOT


class InstalledPackagesTestCase(testtools.TestCase):

    def setUp(self):
        super().setUp()
        parser = configparser.ConfigParser()
        parser.read(ROOT.parent / 'setup.cfg')
        find = parser['options.packages.find']
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
