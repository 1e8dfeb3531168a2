"""What the commands share: exit codes, errors as one sentence, and the form of what they print.

Exit codes, the same for every command:

==== ===============================================================================================================
0    done, and nothing needs attention
1    an error: one sentence on stderr says what, where and what to do; nothing more was done
2    the command line, or the request on it, means nothing
3    done, and something needs attention: findings, a request that does not fit, a guest that could not move,
     a schema of another release, work that is left, a part of an answer that could not be read
11…  done, but for some: 10 more than how many nodes were left as they are; 125 for 115 or more
130  interrupted
141  nobody reads the output any more
==== ===============================================================================================================
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import os
import re
import sys
import traceback
from typing import Any
from typing import Final

from cliff import command
from cliff import lister
from cliff import show
from oslo_config import cfg

from devicetrack import exception
from devicetrack import log
from devicetrack.objects import details as details_objects

OK: Final = 0
ERROR: Final = 1
USAGE: Final = 2
ATTENTION: Final = 3
SOME_LEFT: Final = 10           # and as many more as were left
MOST_LEFT: Final = 125          # above it shells have their own
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141

# Nobody reads more, and a terminal should not have to show it.
_LONGEST_SENTENCE: Final = 4000

# Their values are data; what every other formatter prints is text for people, or cells of text.
STRUCTURED: Final = ('json', 'yaml')


class UsageError(Exception):
    """The options of a command do not go together. Nothing was done."""


class AnswerLost(Exception):
    """The answer could not be written where it was sent."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f'the answer cannot be written: {error.strerror}')


def sentence(error: BaseException) -> str:
    """An error on one line. Those that nobody expected say so."""
    text = exception.shown(log.printable(' '.join(str(error).split())), _LONGEST_SENTENCE)
    if isinstance(error, (exception.DeviceTrackError, cfg.Error, UsageError, AnswerLost)):
        return text
    return f'unexpected {type(error).__name__}: {text or "no text"}; --debug shows where'


def exit_code_of(error: BaseException) -> int:
    return USAGE if isinstance(error, (exception.BadRequest, exception.UnknownProvider, UsageError)) else ERROR


def run_to_the_end(name: str, run: Callable[[], int]) -> int:
    """Run a program and flush what it printed; its exit code. A reader that went away is no error to talk about."""
    try:
        code = run()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _forget_output()
        return BROKEN_PIPE
    except OSError as error:
        _forget_output()
        sys.stderr.write(f'{name}: {AnswerLost(error)}\n')
        return ERROR


def _forget_output() -> None:
    """Python flushes stdout once more after the last line of a program, and would complain there."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Command(command.Command):
    """Base of all commands. ``take_action`` sets ``exit_code`` when something needs attention."""

    app: Any
    app_dist_name = 'devicetrack'       # else cliff says of every command which package it comes from
    exit_code = OK

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of the command."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        self.add_arguments(parser)
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        try:
            super().run(parsed_args)
        except (BrokenPipeError, KeyboardInterrupt):
            raise
        except Exception as error:
            # The last stop before a person: whatever it is, they get a sentence, and a traceback when they ask.
            self.say(sentence(error))
            if self.app.options.debug:
                for line in ''.join(traceback.format_exception(error)).splitlines():
                    self.app.stderr.write(f'{log.printable(line)}\n')
            return exit_code_of(error)
        return self.exit_code

    def produce_output(self, *args: Any) -> int:
        try:
            # Abstract in cliff's base, and there in each class that this one is mixed into.
            code: int = super().produce_output(*args)  # type: ignore[misc]
            return code
        except BrokenPipeError:
            raise
        except OSError as error:
            _forget_output()
            raise AnswerLost(error) from error

    def say(self, text: str) -> None:
        """Tell the person something beside the answer."""
        self.app.stderr.write(f'{self.app.NAME}: {log.printable(text)}\n')


class Lister(Command, lister.Lister):
    """Base of commands that list things.

    ``columns`` are stable names in a stable order; new ones come last. A table shows ``in_table`` of them unless
    ``--column`` chooses others, every other format shows all. Those of them that are ``if_filled`` too are only in a
    table where a row has something in them.
    """

    columns: tuple[str, ...] = ()
    in_table: tuple[str, ...] = ()
    if_filled: tuple[str, ...] = ()

    def rows(self, parsed_args: argparse.Namespace) -> Iterable[Sequence[Any]]:
        """The values of each row, in the order of ``columns``."""
        raise NotImplementedError

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
        _check_columns(parsed_args.columns, self.columns)
        _check_columns(parsed_args.sort_columns, self.columns)
        rows = [cells(row, parsed_args.formatter) for row in self.rows(parsed_args)]
        if parsed_args.formatter == 'table' and not parsed_args.columns:
            filled = {name for row in rows for name, cell in zip(self.columns, row, strict=True) if cell != ''}
            parsed_args.columns = [name for name in self.in_table if name in filled or name not in self.if_filled]
        return self.columns, rows


class ShowOne(Command, show.ShowOne):
    """Base of commands that show one thing, by its fields."""

    @property
    def formatter_namespace(self) -> str:
        return 'devicetrack.formatter.show'

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        """The fields in their order."""
        raise NotImplementedError

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        fields = self.fields(parsed_args)
        _check_columns(parsed_args.columns, fields)
        return tuple(fields), cells(tuple(fields.values()), parsed_args.formatter)


def _check_columns(asked: Iterable[str], known: Iterable[str]) -> None:
    """cliff leaves out a column that it does not know; a script that reads it would find nothing and not see why."""
    known = tuple(known)
    for column in asked:
        if column not in known:
            raise UsageError(f'there is no column {column}; there are {", ".join(known)}')


def cells(values: Sequence[Any], formatter: str) -> list[Any]:
    """Values as a formatter takes them: plain data for those that keep structure, text for the others."""
    plain = [_plain(value) for value in values]
    if formatter in STRUCTURED:
        return plain                    # these escape by themselves
    return [_harmless(_text(value), formatter) for value in plain]


def _harmless(value: Any, formatter: str) -> Any:
    """Escape the words of others: for terminals, and for a shell that evaluates what the formatter prints."""
    if not isinstance(value, str):
        return value
    # cliff puts the value between double quotes and escapes these, and nothing else.
    return re.sub(r'[\\$`]', r'\\\g<0>', log.printable(value)) if formatter == 'shell' else log.printable(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return value


def _text(value: Any) -> Any:
    if value is None:
        return ''
    if isinstance(value, bool):
        return 'yes' if value else 'no'
    if isinstance(value, dict):
        return ', '.join(f'{key}={_text(item)}' for key, item in value.items())
    if isinstance(value, list):
        return ', '.join(str(_text(item)) for item in value)
    return value


def details_fields(text: str) -> dict[str, Any] | None:
    """Stored details as fields, with the class first. One that cannot be read says why: the rest is worth showing."""
    if not text:
        return None
    try:
        details = details_objects.from_text(text)
    except (exception.UnknownObject, exception.MalformedObject) as error:
        return {'unreadable': str(error)}
    data = {name: getattr(details, name) for name in details.obj_fields if details.obj_attr_is_set(name)}
    return {'class': type(details).__name__, 'version': details.VERSION, **data}
