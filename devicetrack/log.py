"""Loggers that keep each message on one line, and the escape of text that others wrote.

Rows, operator requests, guests' definitions and host files have text that others wrote. A newline in it could forge a
line of the log, and an escape sequence could control the terminal that shows it.
"""

from __future__ import annotations

import logging

from oslo_log import log


def printable(text: str) -> str:
    """Escape characters that are not printable, as Python does: ``\\\\n``, ``\\\\x1b``, ``\\\\u202e``."""
    if text.isprintable():
        return text
    return ''.join(one if one.isprintable() else one.encode('unicode_escape').decode() for one in text)


def logger(name: str) -> log.BaseLoggerAdapter:
    """Return the logger of a module. Its messages are escaped; tracebacks below them keep their lines."""
    found = log.getLogger(name)
    found.logger.addFilter(_escape)         # only once, however often this is called
    return found


def _escape(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    if not message.isprintable():
        record.msg, record.args = printable(message), None
    return True
