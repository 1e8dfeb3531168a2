"""Hosts that have booted: the first minute of every host is done once for each image, and kept beside it.

Machines go on from there (see Machine.save). Each has booted by itself, so the two are two hosts.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent import futures
import hashlib
import pathlib
import shutil
import subprocess
import tempfile

from devicetrack.tests.host import agent
from devicetrack.tests.host import image as images
from devicetrack.tests.host import interpreter
from devicetrack.tests.host import machine as machines

# The modules that programs inside will import, some of them late.
MODULES = ('subunit.run', 'devicetrack.tests.host.inside.compute', 'devicetrack.tests.host.inside.test_mdev',
           'devicetrack.tests.host.inside.test_vpmem', 'devicetrack.store.sql.schema', 'devicetrack.store.sql.store',
           'alembic.command', 'alembic.context', 'sqlalchemy.dialects.sqlite')

# The sources that decide what a host has after its start, beside its image.
SOURCES = (agent, interpreter, machines)


def get(image: images.Image, modules: Sequence[str] = MODULES, services: Mapping[int, int] | None = None,
        prepare: Callable[[machines.Machine], None] = lambda _: None, text: str = '') -> dict[str, pathlib.Path]:
    """By name, the directory of each host that has booted. They are made if there are none, which takes a minute.

    :param modules: what its interpreter learns
    :param services: the ways out that its machines have; where they lead may differ later
    :param prepare: what else is done to each host once
    :param text: what decides what ``prepare`` does
    """
    kept = image.directory / f'started-{key(modules, sorted(services or ()), text)}'
    with images.one_builder(image.debian):
        if not kept.exists():
            for old in image.directory.glob('started-*'):
                if not images.is_kept(old):
                    shutil.rmtree(old)
            new = pathlib.Path(tempfile.mkdtemp(prefix='started-', dir=image.directory))
            with futures.ThreadPoolExecutor() as pool:
                for made in [pool.submit(_make, image, new, name, modules, services, prepare)
                             for name in machines.ADDRESSES]:
                    made.result()
            new.rename(kept)
        images.keep(kept)
    return {name: kept / name for name in machines.ADDRESSES}


def key(*decides: object) -> str:
    """A digest of what is not in the image. One version of QEMU may not read what another has written."""
    version = subprocess.run(['qemu-system-x86_64', '--version'], stdout=subprocess.PIPE, check=True).stdout
    seen = hashlib.sha256(version + repr(decides).encode())
    for module in SOURCES:
        seen.update(pathlib.Path(str(module.__file__)).read_bytes())
    return seen.hexdigest()[:16]


def _make(image: images.Image, directory: pathlib.Path, name: str, modules: Sequence[str],
          services: Mapping[int, int] | None, prepare: Callable[[machines.Machine], None]) -> None:
    own = directory / name
    own.mkdir()
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        machine = machines.Machine(image, scratch, name, services=services)
        try:
            machine.start()
            prepare(machine)
            machine.learn(modules)
            # libvirt asks QEMU once what it can do.
            machine.run(['virsh', 'domcapabilities', '--virttype', 'qemu'])
            machine.save(own)
        finally:
            if machine.runs:
                machine.cut()
