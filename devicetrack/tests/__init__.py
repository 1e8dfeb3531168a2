"""The tests of devicetrack."""

import gc
import logging
import os
import sys
import tempfile
import unittest

import hypothesis
import testscenarios

from devicetrack.testing import scratch

# Most tests write files, and each file that is in memory saves a wait for the disk.
if 'TMPDIR' not in os.environ and scratch.directory() != scratch.DISK:
    tempfile.tempdir = scratch.directory()

# oslo.messaging loads eventlet, and that a resolver of names of its own: a sixth of what a start of ours takes. Nothing
# here asks it, nor do the programs that tests start and that have this from them.
os.environ.setdefault('EVENTLET_NO_GREENDNS', 'yes')

# They tell of each entry point, command and connection: four of five records of a run, each of which is formatted.
for _name in ('cliff.commandmanager', 'stevedore.extension', 'urllib3.connectionpool'):
    logging.getLogger(_name).setLevel(logging.INFO)

# While tests are found, nearly all that is made stays. While they run, the collector is as it always is: what one test
# left in cycles must not wait for another's deepest call.
_COLLECTOR = gc.get_threshold()
gc.set_threshold(10_000)

# How long an example takes says something about the machine, and nothing about the code.
hypothesis.settings.register_profile('devicetrack', deadline=None,
                                     suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile('devicetrack')

# Run by the tox environments nova-34, …, which alone have Nova installed.
_APART = {'integration_nova', 'nova'}


def load_tests(loader, tests, pattern):
    """Discover every folder of tests but those that need an environment of their own.

    Scenarios are made to tests here, not when their test runs: lists of what not to run, groups and times name them.
    """
    suite = _find(loader, tests, pattern)
    # All that is there by now stays to the end: hundreds of thousands of objects, which the collector would go through
    # again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTOR)
    return suite


def _find(loader, tests, pattern):
    asked = _asked()
    if asked:
        suite = _of_modules(loader, asked)
        if not asked - _ids(suite):
            return suite
    here = os.path.dirname(__file__)
    for entry in sorted(os.scandir(here), key=lambda entry: entry.name):
        package = os.path.join(entry.path, '__init__.py')
        if entry.name not in _APART and os.path.exists(package):
            tests.addTests(loader.discover(entry.path, pattern or 'test*.py'))
    return loader.suiteClass(testscenarios.generate_scenarios(tests))


def _asked():
    """The tests that this process is to run, as stestr tells each of its workers; empty when nobody says so."""
    for option, path in zip(sys.argv, sys.argv[1:], strict=False):
        if option == '--load-list':
            with open(path, encoding='utf-8') as file:
                return set(file.read().split('\n')) - {''}
    return set()


def _of_modules(loader, asked):
    """The tests of those modules alone that tests are asked of.

    The other modules take a worker more than a second to load, and each of its forks has their memory to copy.
    """
    modules = sorted({name.partition('(')[0].rpartition('.')[0].rpartition('.')[0] for name in asked})
    return loader.suiteClass(testscenarios.generate_scenarios(loader.loadTestsFromNames(modules)))


def _ids(suite):
    return {name for test in suite for name in (_ids(test) if isinstance(test, unittest.TestSuite) else {test.id()})}
