"""Chromium without a window, driven by its own protocol over a pair of pipes: it needs no driver and no port.

The protocol is the DevTools protocol: one JSON object a message, a NUL byte after each. What a page looks like is asked
of the browser itself: where each box stands, which colours text has, and which names a screen reader gets.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import pathlib
import selectors
import shutil
import subprocess
import sys
import time
from typing import Any

import fixtures

_NAMES = ('chromium', 'chromium-browser', 'google-chrome')
_PATIENCE_S = 120

# Files from here on are neither the pipes of the protocol nor standard streams.
_FIRST_FREE = 10

# The browser expects its pipes as files 3 and 4.
_BEGIN = ('import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); '
          'os.execvp(sys.argv[3], sys.argv[3:])')

_OPTIONS = ('--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--disable-extensions',
            '--disable-background-networking', '--disable-component-update', '--disable-sync', '--no-first-run',
            '--host-resolver-rules=MAP * ~NOTFOUND', '--hide-scrollbars', '--remote-debugging-pipe')


def find() -> str:
    """The path of a browser.

    :raises AssertionError: there is none; says what installs it
    """
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        raise AssertionError('these tests look at pages in Chromium, and it is not installed: '
                             'apt-get install chromium')
    return program


class Browser(fixtures.Fixture):
    """A browser with one page."""

    def _setUp(self) -> None:
        program = find()
        profile = self.useFixture(fixtures.TempDir()).path
        theirs_in, self._to = self._pipe()
        self._from, theirs_out = self._pipe()
        environment = {**os.environ, 'HOME': profile, 'XDG_CONFIG_HOME': profile, 'XDG_CACHE_HOME': profile}
        with open(os.path.join(profile, 'stderr'), 'wb') as stderr:
            self._process = subprocess.Popen(
                [sys.executable, '-c', _BEGIN, str(theirs_in), str(theirs_out), program, *_OPTIONS,
                 f'--user-data-dir={profile}', 'about:blank'], pass_fds=(theirs_in, theirs_out),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, env=environment)
        self.addCleanup(self._end)
        for end in (theirs_in, theirs_out):
            os.close(end)
        self._read, self._number, self._session = b'', 0, None
        [page] = [one for one in self.call('Target.getTargets')['targetInfos'] if one['type'] == 'page']
        self._session = self.call('Target.attachToTarget', targetId=page['targetId'], flatten=True)['sessionId']
        self.call('Page.enable')
        self.call('Accessibility.enable')

    def _pipe(self) -> tuple[int, int]:
        ends = os.pipe()
        high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE) for end in ends]
        for end in ends:
            os.close(end)
        return high[0], high[1]

    def _end(self) -> None:
        os.close(self._to)              # it ends by itself when nobody can tell it anything
        os.close(self._from)
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol and wait for its answer."""
        self._number += 1
        number = self._number
        message = {'id': number, 'method': method, 'params': parameters}
        if self._session is not None:
            message['sessionId'] = self._session
        os.write(self._to, json.dumps(message).encode() + b'\0')
        while (answer := self._next()).get('id') != number:
            pass
        if 'error' in answer:
            raise AssertionError(f'{method}: {answer["error"]}')
        return answer['result']

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + _PATIENCE_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._from, selectors.EVENT_READ)
            while b'\0' not in self._read:
                if not selector.select(max(0, until - time.monotonic())):
                    raise AssertionError(f'the browser has not answered for {_PATIENCE_S} s')
                part = os.read(self._from, 1 << 20)
                if not part:
                    raise AssertionError(f'the browser ended with status {self._process.wait()}')
                self._read += part
        message, _, self._read = self._read.partition(b'\0')
        found: dict[str, Any] = json.loads(message)
        return found

    # -- a page -------------------------------------------------------------------------------------------------------

    def show(self, path: str | pathlib.Path, width: int, scheme: str = 'light', media: str = 'screen') -> None:
        """Show a file, so many CSS pixels wide.

        :param scheme: ``light`` or ``dark``
        """
        self.call('Emulation.setDeviceMetricsOverride', width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call('Emulation.setEmulatedMedia', media=media,
                  features=[{'name': 'prefers-color-scheme', 'value': scheme}])
        self.call('Page.navigate', url=pathlib.Path(path).absolute().as_uri())
        while self.ask('document.readyState') != 'complete':
            time.sleep(0.01)

    def ask(self, expression: str) -> Any:
        """The value of an expression of JavaScript in the page."""
        answer = self.call('Runtime.evaluate', expression=expression, returnByValue=True, awaitPromise=True)
        if 'exceptionDetails' in answer:
            raise AssertionError(json.dumps(answer['exceptionDetails'], indent=1))
        return answer['result'].get('value')

    def names(self, role: str) -> list[str]:
        """The names that a screen reader gets of everything with a role, in the order of the page."""
        return [node['name']['value'] for node in self.call('Accessibility.getFullAXTree')['nodes']
                if not node.get('ignored') and node.get('role', {}).get('value') == role and 'name' in node]

    def press(self, key: str) -> None:
        """Press and release a key that has a name, such as Tab."""
        code = {'Tab': 9, 'Enter': 13}[key]
        text = {'text': '\r'} if key == 'Enter' else {}
        for kind in ('keyDown', 'keyUp'):
            self.call('Input.dispatchKeyEvent', type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                      **(text if kind == 'keyDown' else {}))

    def picture(self, path: str | pathlib.Path) -> None:
        """Write the whole page as PNG."""
        size = self.call('Page.getLayoutMetrics')['cssContentSize']
        data = self.call('Page.captureScreenshot', captureBeyondViewport=True, clip={
            'x': 0, 'y': 0, 'width': size['width'], 'height': size['height'], 'scale': 1})['data']
        pathlib.Path(path).write_bytes(base64.b64decode(data))
