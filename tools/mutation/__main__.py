"""Measure how much the tests prove: change the code in one place at a time, and see whether a test fails.

doc/source/contributor/testing.rst explains the output.
"""

from __future__ import annotations

import argparse
import collections
from collections.abc import Callable
from collections.abc import Iterator
import functools
import gc
import json
import pathlib
import signal
import sys
from typing import Any

import children
import judges
import mutants
import yaml

MODULES = tuple(f'devicetrack.{name}' for name in (
    'engine.snapshot', 'engine.allocator', 'engine.frozen', 'engine.exclusion', 'engine.intake', 'engine.ledger',
    'engine.selection',
    'engine.migrations', 'engine.lifecycle', 'engine.reconcile', 'engine.findings', 'engine.guest_records',
    'engine.unsettled', 'objects.identity', 'store.sql.changing', 'store.sql.committer',
    'claims.life', 'claims.failed_claims', 'claims.claim', 'claims.locked_ledger', 'claims.rows', 'claims.moves',
    'claims.unfinished'))
# The packages of the tests that judge. Tests that need a server are left out.
TESTS = ('unit.objects', 'unit.engine', 'unit.store', 'unit.claims', 'functional.store')

# Survivors that no test can tell from the real code, or need not tell: a list of {in, line, change, reason}.
EXPLAINED = pathlib.Path(__file__).with_name('survivors.yaml')


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('modules', nargs='*', metavar='MODULE')
    parser.add_argument('--mutants', type=int, default=1000)
    parser.add_argument('--seed', default='1')
    parser.add_argument('--jobs', type=int, default=2)
    parser.add_argument('--patience', type=float, default=60, metavar='SECONDS',
                        help='of CPU time; a mutant that outlives it has survived')
    parser.add_argument('--least', type=float, default=95, metavar='PERCENT')
    asked = parser.parse_args()
    chosen = [name for name in MODULES if not asked.modules or name.endswith(tuple(asked.modules))]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))       # the exit ends the children
    sys.dont_write_bytecode = False             # every fork imports the package, and bytecode makes that quick
    drawn = sorted((mutant for name in chosen for mutant in mutants.of(name, asked.seed)),
                   key=lambda mutant: mutant.order)
    judges.KEPT.mkdir(exist_ok=True)
    tests = judges.Tests(MODULES, TESTS, asked.jobs)
    print(f'{len(drawn)} mutants, {tests.count} tests, seed {asked.seed}', flush=True)
    gc.freeze()
    explained = {(one['in'], one['line'], one['change']): one['reason']
                 for one in (yaml.safe_load(EXPLAINED.read_text()) if EXPLAINED.exists() else ())}
    judged_before = judges.KEPT / f'judged-{judges.state_of_code(mutants.TESTS, str(asked.patience))}'
    judged_before.touch()
    known = dict(line.split(' ', 1) for line in judged_before.read_text().splitlines())
    killed, survived = collections.Counter[str](), collections.Counter[str]()

    def works() -> Iterator[tuple[mutants.Mutant, Callable[[], Any]]]:
        for mutant in drawn:
            if killed.total() + survived.total() >= asked.mutants:
                return
            if mutant.order not in known:
                yield mutant, functools.partial(judges.judge, mutant, tests.of(mutant), asked.patience)

    def answers() -> Iterator[tuple[mutants.Mutant, str | None]]:
        yield from ((mutant, json.loads(known[mutant.order])) for mutant in drawn if mutant.order in known)
        for mutant, answer in children.work(works(), asked.jobs):
            with judged_before.open('a') as kept:
                kept.write(f'{mutant.order} {json.dumps(answer)}\n')
            yield mutant, answer

    for mutant, answer in answers():
        if answer is None:
            continue
        if answer:
            killed[mutant.module] += 1
            tests.learn(mutant, answer)
        else:
            survived[mutant.module] += 1
            path = mutants.path_of(mutant.module).relative_to(mutants.ROOT)
            reason = explained.get((f'{mutant.module} {mutant.function}', mutant.line, mutant.change), 'NO REASON')
            print(f'{path}:{mutant.at} {mutant.function}: {mutant.change}', mutant.difference(),
                  f'    # {len(tests.of(mutant))} tests reach it; {reason}', sep='\n', flush=True)
        if not (killed.total() + survived.total()) % 50:
            print(f'-- {killed.total()} killed, {survived.total()} survived', flush=True)
    for module in chosen:
        print(f'{module:45}{killed[module]:5} killed {survived[module]:4} survived')
    judged = killed.total() + survived.total()
    print(f'{killed.total()} of {judged} killed, {100 * killed.total() / judged:.1f} %')
    return 0 if 100 * killed.total() >= asked.least * judged else 1


if __name__ == '__main__':
    sys.exit(main())
