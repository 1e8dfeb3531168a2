"""Runs our tests beside Nova, Nova's own with the adapter and on stock Nova, and what stock Nova does wrong."""

from __future__ import annotations

import argparse
import collections
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import functools
from importlib import metadata
import os
import pathlib
import subprocess
import sys
import sysconfig

import yaml

from devicetrack.conf import nova
from devicetrack.tests.nova import comparison
from devicetrack.tests.nova import results
from devicetrack.tests.nova import runs
from devicetrack.tests.nova import suites
from devicetrack.tests.nova.runs import Outcome

_HERE = pathlib.Path(__file__).parent
_FAILURES = 'devicetrack.tests.nova.stock_failures'
# Tests of ours that need Nova's packages and no fixture of its tests, and the repository with their runs.
_BESIDE = _HERE.parent / 'integration_nova'
_BESIDE_RESULTS = _HERE.parents[2] / '.stestr-nova'
# Our own tests on Nova's functional bases: modules, what they show, and whether the services have the adapter at once.
_OURS = (
    (('test_hypervisor',), 'The stand-in for libvirt', False),
    (('test_adopting', 'test_way_back'), 'From Nova alone to the adapter, and back', False),
    (('test_untouched_guests',), 'Guests without devices of ours', False),
    (('test_pci', 'test_pci_cleaning', 'test_stock_source', 'interrupted.test_claims', 'interrupted.test_forgotten',
      'interrupted.test_live_migrations', 'interrupted.test_moves', 'interrupted.test_one_host',
      'interrupted.test_removals', 'interrupted.test_reports', 'interrupted.test_starts'),
     'PCI functions of Nova, live migrations from Nova alone, and what is interrupted or refused halfway', True),
)
_RESULTS = _HERE.parents[2] / '.stestr-nova-suites'


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog='devicetrack.tests.nova', description=__doc__)
    parser.add_argument('--all', action='store_true', help='every suite; else those of devices alone')
    parser.add_argument('--both', action='store_true',
                        help='every test on stock Nova too, as with --all; else those that fail with the adapter')
    parser.add_argument('--threads', choices=(runs.EVENTLET, runs.NATIVE), action='append',
                        help="by default all that the release's tests can have, without --all the first of them")
    parser.add_argument('--processes', type=int, default=2)
    parser.add_argument('--no-stock-failures', action='store_true', help='only what Nova ships')
    parser.add_argument('only', nargs='*', help='parts of names of suites; others do not run')
    options = parser.parse_args(arguments)
    release = int(metadata.version('nova').partition('.')[0])
    if release not in suites.THREADS:
        print(f'Nova {release} is not one that the adapter knows')
        return 1
    _place_configuration()
    can = suites.THREADS[release]
    wanted = options.threads or (can if options.all else can[:1])
    if not set(wanted) <= set(can):
        print(f'The tests of Nova {release} can run with threads: {", ".join(can)}')
        return 1
    # They are about the newest release, and none of them is a suite.
    bad = _beside() if release == max(suites.THREADS) and not options.only else 0
    with results.Results(_RESULTS) as kept:
        for threads in wanted:
            with_threads = functools.partial(_keep, kept, f'nova{release},{threads}')
            for modules, what, adapter in _OURS:
                bad += _own(threads, modules, what, adapter, options.processes, with_threads)
            bad += _compare(release, threads, suites.names(release, options.all, options.only), options.processes,
                            options.both or options.all, with_threads)
            functions = suites.names(release, options.all, options.only, functions=True)
            if functions and release >= suites.CLEANS_SINCE and threads == wanted[0]:
                # Each of them has just run with clean, and on stock Nova. Observing is the same with all threads.
                bad += _compare(release, threads, functions, options.processes, False, functools.partial(
                    _keep, kept, f'nova{release},{threads},{nova.OBSERVE}'), nova.OBSERVE)
            if not options.no_stock_failures:
                bad += _failures(release, threads, options.processes, with_threads)
    print(f'Nova {release}: ' + ('all is as it should be' if not bad else f'{bad} problems'))
    return int(bad > 0)


def _beside() -> int:
    """Run our tests beside Nova; returns 1 if one of them fails."""
    _BESIDE_RESULTS.mkdir(exist_ok=True)
    command = [sys.executable, '-m', 'stestr', '--repo-url', str(_BESIDE_RESULTS), '--test-path', str(_BESIDE)]
    done = subprocess.run([*command, 'run', '--concurrency', '3'], cwd=_BESIDE_RESULTS.parent, check=False)
    return int(done.returncode != 0)


Keep = Callable[[str, str, str], None]


def _keep(kept: results.Results, run: str, name: str, status: str, reason: str) -> None:
    kept.add(f'{name}({run})', status, reason)


def _compare(release: int, threads: str, names: list[str], processes: int, both: bool, keep: Keep,
             pci: str = '') -> int:
    """Run tests with the adapter, and on stock Nova; returns how many problems there are.

    :param both: whether to run every test on stock Nova. Without it, only those which do not pass with the adapter, and
        those which are listed as different, since no other outcome can change a verdict
    :param pci: as for :class:`.runs.Run`
    """
    adapted = _run(names, True, threads, processes, pci)
    listed = {one.test for one in differences() if release in one.releases}
    compared = sorted(name for name, outcome in adapted.items()
                      if both or name in listed or outcome.outcome != runs.PASSED)
    stock = _run(names if both else compared, False, threads, processes)
    _table(names, stock, adapted)
    found = comparison.problems(release, stock, {name: adapted[name] for name in compared}, differences())
    found |= {name: 'none of its tests ran' for name in names
              if not any(test.startswith(f'{name}.') for test in adapted)}
    if not any(outcome.outcome == runs.PASSED for outcome in adapted.values()):
        found['the adapter'] = 'no test passes with it'
    for name, problem in found.items():
        print(f'- {name}: {problem}')
    for name, status in sorted(results.statuses(stock, adapted, found).items()):
        keep(name, status, found.get(name, ''))
    return len(found)


def _run(names: Sequence[str], adapter: bool, threads: str, processes: int, pci: str = '') -> dict[str, Outcome]:
    ended = runs.Run(names, adapter, threads, processes, _heard, pci).run().outcomes if names else {}
    which = f'with the adapter{pci and f", pci = {pci}"}' if adapter else 'stock'
    print(f'Nova {metadata.version("nova")}, {threads} threads, {which}: {_counted(ended)}')
    return ended


def _heard(name: str, outcome: str) -> None:
    print(f'  {outcome}: {name}', flush=True)


def _own(threads: str, modules: Sequence[str], what: str, adapter: bool, processes: int, keep: Keep) -> int:
    """Run tests of our own; returns how many problems there are."""
    outcomes = runs.Run([f'{__package__}.{module}' for module in modules], adapter, threads, processes).run().outcomes
    print(f'{what}: {_counted(outcomes)}')
    bad = {name: comparison.ending(outcome.details) for name, outcome in outcomes.items()
           if outcome.outcome != runs.PASSED}
    for name in outcomes:
        keep(name, results.BAD if name in bad else results.GOOD, bad.get(name, ''))
    for name, problem in bad.items():
        print(f'- {name}: {problem}')
    return len(bad) if outcomes else 1


def _failures(release: int, threads: str, processes: int, keep: Keep) -> int:
    """Run what stock Nova does wrong: each test fails on it, and passes with the adapter."""
    if not (_HERE / 'stock_failures').is_dir():
        return 0
    names = sorted(f'{_FAILURES}.{path.stem}' for path in (_HERE / 'stock_failures').glob('test_*.py'))
    stock, adapted = (runs.Run(names, adapter, threads, processes).run().outcomes for adapter in (False, True))
    print(f'What stock Nova does wrong, Nova {release}, {threads} threads:')
    bad = 0
    for name in sorted(stock.keys() | adapted):
        was, now = (outcomes.get(name) for outcomes in (stock, adapted))
        well = was is not None and now is not None and was.outcome == runs.FAILED and now.outcome == runs.PASSED \
            and 'goes wrong here' in was.details
        bad += not well
        print(f'  {"" if well else "NOT AS IT SHOULD BE: "}{name.removeprefix(_FAILURES + ".")}: '
              f'{was.outcome if was else "missing"} on stock, {now.outcome if now else "missing"} with the adapter')
        problem = '' if well else '\n    '.join(
            f'{which}: {comparison.ending(outcome.details)}' for which, outcome in (('stock', was), ('adapter', now))
            if outcome is not None and outcome.outcome != runs.PASSED)
        if problem:
            print(f'    {problem}')
        keep(name, results.GOOD if well else results.BAD, problem)
    if not stock:
        print('- no test ran')
        bad += 1
    return bad


def differences() -> list[comparison.Difference]:
    return [comparison.Difference(**one) for one in yaml.safe_load((_HERE / 'differences.yaml').read_text())]


def _counted(outcomes: Mapping[str, Outcome]) -> str:
    counts = collections.Counter(outcome.outcome for outcome in outcomes.values())
    return f'{len(outcomes)} tests: ' + ', '.join(f'{number} {outcome}' for outcome, number in sorted(counts.items()))


def _table(names: list[str], stock: Mapping[str, Outcome], adapted: Mapping[str, Outcome]) -> None:
    """Print, for each suite, how many tests ran and passed, and how long they took."""
    print(f'  {"suite":56} {"stock":>17} {"adapter":>17}')
    for name in names:
        cells = []
        for outcomes in (stock, adapted):
            ours = [outcome for test, outcome in outcomes.items() if test.startswith(f'{name}.')]
            passed = sum(outcome.outcome == runs.PASSED for outcome in ours)
            cells.append(f'{passed:4} of {len(ours):3} {sum(outcome.seconds for outcome in ours):5.0f} s')
        print(f'  {name.removeprefix("nova.tests."):56} {cells[0]:>17} {cells[1]:>17}')


def _place_configuration() -> None:
    """Nova's tests look for its configuration beside its package, and its wheel puts it elsewhere."""
    wanted = pathlib.Path(sysconfig.get_path('purelib'), 'etc')
    if not wanted.exists():
        os.symlink(os.path.join(sys.prefix, 'etc'), wanted)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
