"""Connections of psycopg2 that wait for their server only as long as an option says, with limits for each transaction.

A pooler in transaction mode gives each transaction any connection of its own to the server. So nothing may be set for a
session: the limits go with the first statement of each transaction, in the same message.
"""

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
            if isinstance(query, str) and self.name is None and self.connection.begins():
                query = self.connection.limits + query
            else:
                self._begin()
            super().execute(query, vars)

    def executemany(self, query: Any, vars_list: Any) -> None:
        with self.connection.waiting():
            self._begin()
            super().executemany(query, vars_list)

    def _begin(self) -> None:
        """Send the limits by themselves, for what is no single statement."""
        if self.connection.begins():
            with self.connection.cursor() as cursor:
                cursor.execute('')


class WatchedConnection(extensions.connection):     # type: ignore[misc]
    """Ends by itself if its server is silent for too long. libpq would wait for ever for a server that hangs."""

    silence_s: float
    limits: str                                 # statements, each with its semicolon

    def begins(self) -> bool:
        """Whether the next statement is the first of a transaction."""
        return self.status == extensions.STATUS_READY and not self.autocommit

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


def connect(silence_s: float, limits: str, *arguments: Any, **named: Any) -> WatchedConnection:
    """Connect as psycopg2 does.

    :param silence_s: the seconds that the server may leave a statement without an answer
    :param limits: what is set for each transaction
    """
    connection = WatchedConnection(*arguments, **named)
    connection.silence_s, connection.limits, connection.cursor_factory = silence_s, limits, WatchedCursor
    # Whatever the default of the database is: a stricter level refuses more, and gains nothing here. psycopg2 sends it
    # with each BEGIN.
    connection.isolation_level = extensions.ISOLATION_LEVEL_READ_COMMITTED
    return connection
