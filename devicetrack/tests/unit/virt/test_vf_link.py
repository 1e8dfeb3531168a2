"""What pyroute2 asks the kernel about virtual functions, and what is made of the answers."""

from __future__ import annotations

import asyncio
import errno
import os
import queue
import subprocess
import sys
import threading
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from devicetrack.testing import pci_links
from devicetrack.tests import base
from devicetrack.virt.libvirt import bounded
from devicetrack.virt.libvirt import vf_link
from devicetrack.virt.libvirt.vf_link import BLANK
from devicetrack.virt.libvirt.vf_link import Settings

MAC = '52:54:00:aa:bb:01'
LOOPBACK = 1
# Seen with strace: `ip link set lo vf 3 mac 52:54:00:aa:bb:01`, `… vlan 41`, `… trust on` of iproute2 6.1, without the
# header, whose sequence number is another one in each message.
HEAD = '00000000 01000000 00000000 00000000'
SET_MAC = HEAD + '3000 1600 2c00 0100 2800 0100 03000000 525400aabb01' + '00' * 26
SET_VLAN = HEAD + '1800 1600 1400 0100 1000 0200 03000000 29000000 00000000'
SET_TRUST = HEAD + '1400 1600 1000 0100 0c00 0900 03000000 01000000'
HEADER_BYTES = 16
# Green threads of eventlet ask side by side, in a process of their own.
GREEN = """
import eventlet
eventlet.monkey_patch()
from devicetrack.virt.libvirt import vf_link
print(*{link.name for link in eventlet.GreenPool().imap(vf_link.read, [1] * 8)})
"""

macs = st.binary(min_size=6, max_size=6).map(lambda octets: bytes((octets[0] & 0xFE,)) + octets[1:]).map(
    lambda octets: octets.hex(':'))
every_settings = st.builds(Settings, macs, st.integers(0, vf_link.MAX_VLAN), st.booleans())


class LinksTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.card: pci_links.Card | None = pci_links.Card('enp3s0', {0: 'first', 1: 'second', 3: 'fourth', 5: 'third'})
        self.links = pci_links.Links(lambda _index: self.card)
        self.patch(vf_link, 'link', self.links.link)


class RequestsTestCase(LinksTestCase):

    def test_have_the_bytes_of_iproute2(self) -> None:
        asked, real = list[bytes](), self.links.exchange

        def exchange(request: bytes) -> bytes:
            asked.append(request[HEADER_BYTES:])
            return real(request)

        self.patch(self.links, 'exchange', exchange)
        vf_link.write(LOOPBACK, 3, BLANK, Settings(MAC, 41, True))
        self.assertEqual([bytes.fromhex(text) for text in (SET_MAC, SET_VLAN, SET_TRUST)], asked)

    def test_change_what_differs_only(self) -> None:
        for before, after, number in ((Settings(MAC, 41, True), Settings(MAC, 7, True), 1),
                                      (Settings(MAC, 41, None), Settings(MAC, 41, False), 1),
                                      (Settings(MAC, 41, None), Settings(MAC, 41, True), 1),
                                      (Settings(MAC, 41, True), BLANK, 3)):
            self.links.settings, self.links.written = {'second': before}, []
            vf_link.write(LOOPBACK, 1, before, after)
            self.assertEqual((number, after), (len(self.links.written), self.links.settings['second']))


class SettingsTestCase(base.TestCase):

    scenarios = base.table(
        ('no MAC address', ('', 0, False), 'MAC address'),
        ('a short one', ('52:54:00', 0, False), 'six pairs'),
        ('capital digits', ('52:54:00:AA:BB:01', 0, False), 'lower-case hexadecimal digits'),
        ('one of a group', ('01:00:5e:00:00:01', 0, False), 'is a group address'),
        ('a VLAN too many', (MAC, 4095, False), 'from 1 to 4094'),
        ('a VLAN too few', (MAC, -1, False), 'from 1 to 4094'),
        ('a VLAN that is true', (MAC, True, False), 'VLAN'),
        ('trust as a number', (MAC, 1, 1), 'true or false'),
        names=('settings', 'reason'))

    def test_is_refused(self) -> None:
        error = self.assertRaises(ValueError, vf_link.check, *self.settings)
        self.assertIn(self.reason, str(error))

    def test_others_are_not(self) -> None:
        for settings in ((MAC, 0, False), (MAC, 1, True), (MAC, 4094, False), (vf_link.NO_MAC, 0, False)):
            vf_link.check(*settings)


class AnswersTestCase(LinksTestCase):

    @given(every_settings, every_settings, st.booleans())
    def test_what_is_written_is_read(self, before: Settings, after: Settings, is_known: bool) -> None:
        self.links.settings, self.links.untrusting = {'second': before}, set()
        vf_link.write(LOOPBACK, 1, before, after)
        self.links.untrusting = set() if is_known else {'second'}
        self.assertEqual(vf_link.Link('enp3s0', {
            0: BLANK, 1: after if is_known else after._replace(trusted=None), 3: BLANK, 5: BLANK}),
            vf_link.read(LOOPBACK))

    def test_all_functions_of_a_large_card_are_read(self) -> None:
        self.card = pci_links.Card('enp3s0', {number: str(number) for number in range(256)})
        self.assertEqual(dict.fromkeys(range(256), BLANK), vf_link.read(LOOPBACK).vfs)

    def test_a_refusal_names_what_is_refused(self) -> None:
        self.links.untrusting = {'second'}
        error = self.assertRaises(OSError, vf_link.write, LOOPBACK, 1, BLANK, Settings(MAC, 41, True))
        self.assertEqual((errno.EOPNOTSUPP, True), (error.errno, 'trust on is refused' in str(error)))
        self.assertEqual(Settings(MAC, 41), self.links.settings['second'])

    def test_an_interface_that_is_gone(self) -> None:
        self.card = None
        error = self.assertRaises(OSError, vf_link.read, LOOPBACK)
        self.assertEqual(errno.ENODEV, error.errno)

    def test_an_answer_of_another_sort(self) -> None:
        whole = tuple(self.links.link('get', index=LOOPBACK))
        answers: tuple[tuple[object, ...], ...] = ((), whole * 2, ({},))
        for answer in answers:
            self.patch(vf_link, 'link', lambda _command, answer=answer, **_arguments: answer)
            error = self.assertRaises(OSError, vf_link.read, LOOPBACK)
            self.assertEqual(errno.EBADMSG, error.errno)


class KernelTestCase(base.TestCase):
    """The kernel that runs the test: its loopback has no virtual functions."""

    def test_tells_an_interface_without_virtual_functions(self) -> None:
        self.assertEqual(vf_link.Link('lo', {}), vf_link.read(LOOPBACK))

    def test_knows_no_interface_with_a_great_number(self) -> None:
        error = self.assertRaises(OSError, vf_link.read, 2**31 - 1)
        self.assertEqual(errno.ENODEV, error.errno)

    def test_refuses_to_set_any_of_it(self) -> None:
        # Who may administer the network is told that loopback cannot do it; others, that they may not.
        error = self.assertRaises(OSError, vf_link.write, LOOPBACK, 0, BLANK, Settings(MAC))
        self.assertIn(error.errno, (errno.EOPNOTSUPP, errno.EPERM))
        self.assertIn(f'the MAC address {MAC} is refused', str(error))

    def test_is_not_asked_without_the_library_that_knows_how(self) -> None:
        with mock.patch.dict(sys.modules, {'pyroute2': None}):
            error = self.assertRaises(OSError, vf_link.read, LOOPBACK)
        self.assertEqual((errno.ENOPKG, 'pyroute2 is not installed: pip install devicetrack[libvirt]'),
                         (error.errno, error.strerror))

    def test_answers_a_thread_that_runs_an_event_loop(self) -> None:
        async def read() -> vf_link.Link:
            return vf_link.read(LOOPBACK)

        self.assertEqual('lo', asyncio.run(read()).name)

    def test_answers_call_after_call_with_the_same_descriptors(self) -> None:
        vf_link.read(LOOPBACK)
        before = len(os.listdir('/proc/self/fd'))
        for _number in range(5):
            vf_link.read(LOOPBACK)
        # Those of an earlier test may close meanwhile.
        self.assertLessEqual(len(os.listdir('/proc/self/fd')), before)

    def test_is_not_asked_more_while_it_answers_nothing(self) -> None:
        asked, goes_on = queue.Queue[str](), threading.Event()
        self.addCleanup(goes_on.set)

        def ask(command: str, _arguments: object) -> tuple[object, ...]:
            asked.put(command)
            goes_on.wait()
            return ()

        self.patch(vf_link, '_ask', ask)
        self.patch(vf_link, '_CALLS', bounded.Calls(0.01, into_c=True))
        self.patch(bounded, 'MOST_UNANSWERED', 2)
        for _number in range(5):
            error = self.assertRaises(OSError, vf_link.read, LOOPBACK)
            self.assertEqual(errno.ETIMEDOUT, error.errno)
        # Their threads may begin later than the callers gave up.
        self.assertEqual(['get'] * 2, [asked.get(timeout=base.HANGS_S) for _number in range(2)])
        self.assertTrue(asked.empty())

    def test_answers_threads_of_eventlet_side_by_side(self) -> None:
        done = subprocess.run([sys.executable, '-W', 'ignore', '-c', GREEN], capture_output=True, text=True)
        self.assertEqual(('lo\n', 0), (done.stdout, done.returncode), done.stderr)
