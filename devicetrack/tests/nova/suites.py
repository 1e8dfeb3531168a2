"""Which of Nova's tests run, and why these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from typing import NamedTuple

from devicetrack.tests.nova import runs


class Suite(NamedTuple):
    """Some tests.

    :param name: a module below ``nova.tests``, or a class or test of one
    :param reason: what it shows of the adapter
    :param fast: whether it runs without ``--all``
    :param since: the first release that has it
    :param functions: whether it is about PCI functions: then it runs with each value of ``[devicetrack_nova] pci``
    """

    name: str
    reason: str
    fast: bool = False
    since: int = 31
    functions: bool = False


SUITES: Final = (
    Suite('functional.libvirt.test_vgpu', 'boots, resizes, shelves and live migrations of guests with mediated devices',
          fast=True),
    Suite('functional.libvirt.test_vpmem', 'boots and resizes of guests with namespaces, on one host and on two',
          fast=True),
    Suite('functional.regressions.test_bug_2074219', 'volumes come to a guest with a mediated device, and go',
          fast=True),
    Suite('functional.regressions.test_bug_2098892', 'an audit of a host with mediated devices logs no error',
          fast=True),
    Suite('functional.libvirt.test_reshape', 'inventories of mediated devices move to providers of their own'),
    Suite('functional.libvirt.test_evacuate', 'guests of a dead host are built anew, and it comes back'),
    Suite('functional.libvirt.test_live_migration', 'checks, failures and aborts of live migrations'),
    Suite('functional.libvirt.test_numa_live_migration', 'the one live migration that the tracker claims for'),
    Suite('functional.libvirt.test_numa_servers', 'claims that are narrowed by what Nova chose'),
    Suite('functional.libvirt.test_pci_in_placement', "Nova's PCI devices with the adapter beside their tracker",
          functions=True),
    Suite('functional.libvirt.test_pci_sriov_servers', 'the same through every operation, shelving and moves too',
          functions=True),
    Suite('functional.libvirt.test_report_cpu_traits', 'traits that Nova puts into the tree that we add to'),
    Suite('functional.libvirt.test_shared_resource_provider', 'a tree with a provider of another host'),
    Suite('functional.libvirt.test_power_manage', 'starts and stops of guests'),
    Suite('functional.libvirt.test_device_bus_migration', 'hard reboots, which make definitions anew'),
    Suite('functional.libvirt.test_rescue_deleted_base', 'rescue and unrescue'),
    Suite('functional.libvirt.test_vtpm', 'the other thing that a guest keeps through resizes, shelving and moves'),
    Suite('functional.libvirt.test_server_shares', 'starts that fail after the claim'),
    Suite('functional.compute.test_resource_tracker', 'the tracker with placement, on drivers without devices of ours'),
    # Its other class blocks a thread for ever, which only eventlet can end.
    Suite('functional.compute.test_init_host.TestComputeRestartInstanceStuckInBuild',
          'what a compute finishes at its start'),
    Suite('functional.compute.test_live_migration', 'rollbacks'),
    Suite('functional.test_cold_migrate', 'cold migration, on one host too'),
    Suite('functional.test_cross_cell_migrate', 'resizes across cells, with their own ends'),
    Suite('functional.regressions.test_bug_1595962', 'a live migration whose driver is as real as a fake can be'),
    Suite('functional.regressions.test_bug_1888395', 'live migration with neutron'),
    Suite('functional.regressions.test_bug_1879878', 'claims of a resize that race with an audit'),
    Suite('functional.regressions.test_bug_1896463', 'an evacuation that races with an audit'),
    Suite('functional.regressions.test_bug_1944619', 'a live migration that is rolled back'),
    Suite('functional.regressions.test_bug_1983753', 'a resize with PCI devices and NUMA'),
    Suite('functional.regressions.test_bug_1995153', 'a move of a guest with pinned processors'),
    Suite('functional.regressions.test_bug_1741364', "what else changes in a moving guest's definition", since=34),
    Suite('functional.regressions.test_bug_1939545', 'a live migration with volumes'),
    Suite('functional.regressions.test_bug_1899835', 'a live migration that fails early at its destination'),
    Suite('functional.regressions.test_bug_2139351', "the processors of a moving guest's definition", since=33),
    Suite('functional.regressions.test_bug_2152697', 'the same for a guest of an older release', since=34),
    Suite('functional.regressions.test_bug_2153425', 'a claim for a live migration with NUMA', since=34),
    Suite('functional.regressions.test_bug_2085975', 'the source comes back while an evacuation is under way'),
    Suite('functional.regressions.test_bug_2154495', 'a start that the driver refuses', since=34),
    Suite('functional.regressions.test_bug_1928063', 'a hard reboot of a guest with encrypted memory'),
    Suite('functional.regressions.test_bug_2098496', 'a PCI device of a deleted guest goes to the next one'),
    Suite('functional.regressions.test_bug_2102038', "aliases of Nova's PCI devices"),
    Suite('functional.regressions.test_bug_2111440', 'the same without a class'),
)

# Nova's unit tests make objects of Nova's own classes, which the adapter leaves as they are.

# Which threads each release's tests can run with, the default first. Before 34 functional tests need eventlet: a
# fixture asks which greenlet sent a notification, so with native threads each test that boots a guest fails on stock.
THREADS: Final = {31: (runs.EVENTLET,), 33: (runs.EVENTLET,), 34: (runs.NATIVE, runs.EVENTLET)}


# The first release that knows one_time_use, which [devicetrack_nova] pci = clean needs.
CLEANS_SINCE: Final = 33


def names(release: int, everything: bool, only: Sequence[str] = (), functions: bool = False) -> list[str]:
    """The full names of what runs.

    :param only: parts of names; others do not run
    :param functions: only what is about PCI functions
    """
    return [f'nova.tests.{suite.name}' for suite in SUITES if suite.since <= release and functions <= suite.functions
            and (any(part in suite.name for part in only) if only else everything or suite.fast)]
