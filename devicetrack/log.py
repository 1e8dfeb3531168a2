"""Loggers whose lines stay lines, and the escape of text that others wrote.

Rows, operator requests, guests' definitions and host files hold words of others. A newline in one would forge a line
of a log, and an escape sequence would command the terminal that shows it.
"""

from __future__ import annotations

import logging

from oslo_log import log


def printable(text: str) -> str:
    """Escape what is no printable character as Python does: ``\\\\n``, ``\\\\x1b``, ``\\\\u202e``."""
    if text.isprintable():
        return text
    return ''.join(one if one.isprintable() else one.encode('unicode_escape').decode() for one in text)


def logger(name: str) -> log.BaseLoggerAdapter:
    """Return the logger of a module. Its messages are escaped; tracebacks below them keep their lines."""
    found = log.getLogger(name)
    found.logger.addFilter(_escape)         # once, however often it is asked for
    return found


def _escape(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    if not message.isprintable():
        record.msg, record.args = printable(message), None
    return True
