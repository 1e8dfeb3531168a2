"""Connections of psycopg2 that wait for their server no longer than an option says."""

from __future__ import annotations

import os
import socket
from typing import Any

from psycopg2 import extensions  # type: ignore[import-untyped]      # psycopg2 has no types

from devicetrack import watchdog


class WatchedCursor(extensions.cursor):         # type: ignore[misc]
    """Waits for the answer to a statement no longer than its connection does."""

    def execute(self, query: Any, vars: Any = None) -> None:
        with self.connection.waiting():
            super().execute(query, vars)

    def executemany(self, query: Any, vars_list: Any) -> None:
        with self.connection.waiting():
            super().executemany(query, vars_list)


class WatchedConnection(extensions.connection):     # type: ignore[misc]
    """Ends by itself if its server is silent for too long. libpq would wait for ever for a server that hangs."""

    silence_s: float

    def waiting(self) -> watchdog.Watch:
        return watchdog.watch(self.silence_s, self._cut)

    def _cut(self) -> None:
        """Have the thread that waits read the end of the connection."""
        with socket.socket(fileno=os.dup(self.fileno())) as server:
            server.shutdown(socket.SHUT_RDWR)

    def commit(self) -> None:
        with self.waiting():
            super().commit()

    def rollback(self) -> None:
        with self.waiting():
            super().rollback()


def connect(silence_s: float, *arguments: Any, **named: Any) -> WatchedConnection:
    """Connect as psycopg2 does.

    :param silence_s: the seconds that the server may leave a statement without an answer
    """
    connection = WatchedConnection(*arguments, **named)
    connection.silence_s, connection.cursor_factory = silence_s, WatchedCursor
    return connection
