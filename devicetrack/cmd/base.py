"""The base of all commands: exit codes, errors as one sentence, and the form of the output.

Exit codes, the same for every command:

==== ===============================================================================================================
0    done, and nothing needs attention
1    an error: one sentence on stderr says what, where and what to do; nothing more was done
2    the command line, or the request on it, is wrong
3    done, and something was found that needs attention: a finding, a part of the host that could not be read, devices
     that are too few, a guest that could not move, a schema of another release, work that is left
11…  done, except for some nodes: 10 more than their number; 125 for 115 or more
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
import itertools
import os
import re
import sys
import traceback
from typing import Any
from typing import Final
from typing import NamedTuple

from cliff import _argparse
from cliff import command
from cliff import lister
from cliff import show
from oslo_config import cfg

from devicetrack import exception
from devicetrack import log
from devicetrack.cmd import examples
from devicetrack.cmd import formatters
from devicetrack.cmd import screen
from devicetrack.objects import details as details_objects
from devicetrack.pictures import instance_names
from devicetrack.pictures import moments
from devicetrack.pictures import natural

OK: Final = 0
ERROR: Final = 1
USAGE: Final = 2
ATTENTION: Final = 3
SOME_LEFT: Final = 10           # plus the number of nodes that were left
MOST_LEFT: Final = 125          # shells use the codes above it
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141

# Nobody reads a longer sentence, and a terminal should not have to show one.
_LONGEST_SENTENCE: Final = 4000

# cliff makes a table fit by breaking its cells, identifiers too. Our tables already fit when cliff gets them.
_UNLIMITED: Final = 1_000_000

# For a table of two columns: the characters of its borders, and the least width of the second column.
_BORDERS_OF_TWO: Final = 7
_NARROWEST: Final = 20

# Where a row of an answer that may have millions has its text in JSON.
LINE: Final = 'JSON'

# So many rows of an answer that may have millions are one table.
_PAGE: Final = 5000

# These formatters print values as data. Every other formatter prints text for people, or cells of text.
STRUCTURED: Final = ('json', 'yaml')

# Most values: an answer may have millions, so nothing else is asked about them.
_PLAIN: Final = frozenset((str, int, float, bool, type(None)))


class UsageError(Exception):
    """The options of a command cannot be combined or are incomplete. Nothing was done."""


class RequestRefused(Exception):
    """The host cannot carry out the request. Nothing was done.

    The host's manager would refuse the same request in its answer, so the exit code is that of a refusal.
    """


class AnswerLost(Exception):
    """The output could not be written to its destination."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f'the answer cannot be written: {error.strerror}')


def sentence(error: BaseException) -> str:
    """Return an error as one line. An unexpected error is marked as unexpected."""
    text = exception.shown(log.printable(' '.join(str(error).split())), _LONGEST_SENTENCE)
    if isinstance(error, (exception.DeviceTrackError, cfg.Error, UsageError, RequestRefused, AnswerLost)):
        return text
    return f'unexpected {type(error).__name__}: {text or "no text"}; --debug shows where'


def not_loaded(error: ImportError) -> str:
    """Say why there is no command although it is installed."""
    return f'the command cannot be loaded: {log.printable(str(error))}: install what is missing'


def exit_code_of(error: BaseException) -> int:
    return USAGE if isinstance(error, (exception.BadRequest, exception.UnknownProvider, UsageError)) else ERROR


def unreadable(error: OSError | UnicodeDecodeError, places: Sequence[str]) -> str:
    """Say why no configuration could be read.

    :param places: the files and directories that were read; an OSError itself names the file
    """
    if isinstance(error, OSError):
        return f'configuration file {error.filename}: {error.strerror}; name a file that this user can read'
    return (f'configuration in {" or ".join(places) or "a file"}: byte {error.start} is not UTF-8; write the file in '
            'UTF-8')


def run_to_the_end(name: str, run: Callable[[], int], lost: int = ERROR) -> int:
    """Run a program, flush its output, and return its exit code. No message is printed if the reader has gone away.

    :param lost: the exit code if the output cannot be written
    """
    screen.escape_what_is_lacking(sys.stdout, sys.stderr)
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
        return lost


def _forget_output() -> None:
    """Send the rest of the output to nowhere: Python flushes stdout once more at exit, and would complain then."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _HelpFormatter(_argparse.SmartHelpFormatter):
    """Keeps the lines of examples. Its base, whose methods argparse does not promise, would fill them."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text.replace('::', ':', 1) if text.startswith(examples.HEAD) else super()._fill_text(text, width, indent)


class Command(command.Command):
    """Base of all commands. ``take_action`` sets ``exit_code`` if something needs attention."""

    app: Any
    exit_code = OK
    exact: tuple[str, ...] = ()                 # fields with a time that people compare with other logs

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of the command."""

    def get_epilog(self) -> str:
        # cliff's epilog names the package that a command comes from. To find it, cliff reads the metadata of all
        # installed packages, which takes longer than most commands. The documentation makes commands without a program.
        return self._epilog or (examples.epilog(self.app.NAME, self.cmd_name or '') if self.app else '')

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        self.add_arguments(parser)
        parser.formatter_class = _HelpFormatter
        for action in parser._actions:
            if action.dest == 'formatter' and action.choices is not None:
                # argparse would print the list of choices twice on a line, wider than a terminal.
                action.metavar = 'FORMAT'
                action.help = f'One of {", ".join(map(str, action.choices))}. By default {action.default}.'
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        try:
            super().run(parsed_args)
        except (BrokenPipeError, KeyboardInterrupt):
            raise
        except Exception as error:
            # The last place to catch an error: a person gets one sentence, and with --debug a traceback.
            self.say(sentence(error))
            if self.app.options.debug:
                for line in ''.join(traceback.format_exception(error)).splitlines():
                    self.app.stderr.write(f'{log.printable(line)}\n')
            return exit_code_of(error)
        return self.exit_code

    def produce_output(self, *args: Any) -> int:
        try:
            # The method is abstract in cliff's base, and each class that this one is mixed into implements it.
            code: int = super().produce_output(*args)  # type: ignore[misc]
            return code
        except BrokenPipeError:
            raise
        except OSError as error:
            _forget_output()
            raise AnswerLost(error) from error

    def take_width(self, parsed_args: argparse.Namespace) -> int:
        """Return the width that a table may have. cliff is not to fit it again."""
        width: int = parsed_args.max_width
        parsed_args.max_width = _UNLIMITED
        return width if width > 0 else screen.width_of(self.app.stdout)

    def shown(self, value: Any, formatter: str, name: str) -> Any:
        """Return a value as a screen shows it: a time as how long ago it was, unless its name is in ``exact``."""
        if isinstance(value, Moment) and formatter == 'table' and name not in self.exact \
                and screen.is_terminal(self.app.stdout):
            return Shown(None, moments.ago(value.seconds))
        return value

    def say(self, text: str) -> None:
        """Tell the person something besides the answer, on stderr."""
        self.app.stderr.write(f'{self.app.NAME}: {log.printable(text)}\n')


class Moment(NamedTuple):
    """A time in a row, in seconds since 1970. People see it in their zone, programs in UTC."""

    seconds: float


class InstanceName(NamedTuple):
    """What people call an instance, or None. A table shows only the beginning of a long name."""

    text: str | None


class Shown(NamedTuple):
    """A value with a different text for people than for programs. A table shows a list in ``text`` as lines."""

    data: Any
    text: Any


def add_long(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--long', action='store_true', help='In a table, show more columns.')


class Lister(Command, lister.Lister):
    """Base of commands that list things.

    ``columns`` are stable names in a stable order; new ones come last. A table shows the columns in ``in_table``. With
    ``--long`` it shows those in ``in_long``, or all columns if that is empty; ``--column`` chooses others. Every other
    format shows all. A column in ``if_filled`` is in a table only if a row has a value in it.

    A table of ``in_table`` fits the terminal. In a pipe or a file it is as wide as it has to be. Sentences, in the
    columns in ``prose``, are wrapped over several lines; no other cell is broken. Without enough room the columns in
    ``spare`` are left out, in their order, and a line on stderr names them. If that is not enough, the cells of the
    columns in ``below`` are put below those of the first column.
    """

    columns: tuple[str, ...] = ()
    in_table: tuple[str, ...] = ()
    in_long: tuple[str, ...] = ()
    if_filled: tuple[str, ...] = ()
    prose: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()
    below: tuple[str, ...] = ()
    _left_out: tuple[str, ...] = ()

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        add_long(parser)
        return parser

    @property
    def need_sort_by_cliff(self) -> bool:
        return False                            # cliff would sort compute-10 before compute-7

    def rows(self, parsed_args: argparse.Namespace) -> Iterable[Mapping[str, Any]]:
        """Return the values of each row by the names of ``columns``. A row may have more values."""
        raise NotImplementedError

    def cells(self, parsed_args: argparse.Namespace, formatter: str) -> list[list[Any]]:
        """Return the rows as a formatter takes them, each in the order of ``columns``."""
        return [cells([self.shown(row[name], formatter, name) for name in self.columns], formatter)
                for row in self.rows(parsed_args)]

    def nothing(self, parsed_args: argparse.Namespace) -> str:
        """Return the sentence for people when there are no rows."""
        return 'there is nothing to list'

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
        _check_columns(parsed_args.columns, self.columns)
        _check_columns(parsed_args.sort_columns, self.columns)
        rows = self.cells(parsed_args, parsed_args.formatter)
        for column in reversed(parsed_args.sort_columns):
            number = self.columns.index(column)
            rows.sort(key=_by(number), reverse=parsed_args.sort_direction == 'desc')
        return self._fitted(parsed_args, rows) if parsed_args.formatter == 'table' else (self.columns, rows)

    def _fitted(self, parsed_args: argparse.Namespace,
                rows: list[list[Any]]) -> tuple[Sequence[str], list[list[Any]]]:
        """Return the columns and the cells of a table."""
        chosen = parsed_args.columns or ((self.in_long or self.columns) if parsed_args.long else self.in_table)
        filled = {name for row in rows for name, cell in zip(self.columns, row, strict=True) if cell != ''}
        if not parsed_args.columns:
            chosen = [name for name in chosen if name in filled or name not in self.if_filled]
        places = [self.columns.index(name) for name in chosen]
        # A table of chosen or all columns may be wider than a terminal: no column is left out of it.
        is_wide = parsed_args.max_width <= 0 and not screen.is_terminal(self.app.stdout)
        width = self.take_width(parsed_args)
        if is_wide:
            width = _UNLIMITED                  # a program reads it line by line, and misses what is left out
        spare, below = ((), ()) if parsed_args.columns or parsed_args.long else (self.spare, self.below)
        names, rows, self._left_out = screen.fit(chosen, [[row[place] for place in places] for row in rows], width,
                                                 self.prose, spare, below)
        parsed_args.columns = names
        return names, [[screen.paint(cell, self.app.stdout) if isinstance(cell, str) else cell for cell in row]
                       for row in rows]

    def produce_output(self, *args: Any) -> int:
        parsed_args, names, rows = args
        rows = list(rows)
        if not rows and parsed_args.formatter == 'table':
            self.say(self.nothing(parsed_args))
            return OK
        code = super().produce_output(parsed_args, names, rows)
        if self._left_out:
            noun = 'column' if len(self._left_out) == 1 else 'columns'
            self.say(f'no room for the {noun} {", ".join(self._left_out)}: --long shows more, -c NAME chooses columns')
        return code


class Stream(Lister):
    """Base of commands that may list millions of things. They are never all in memory, unless the answer is sorted.

    ``rows`` checks the request before it returns an iterator. With ``-f json`` each row is a line. A table that would
    be very long is several tables, each with its own widths.

    With ``-f json`` and all columns a row may have its line under ``LINE`` instead of its values.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
        _check_columns(parsed_args.columns, self.columns)
        if parsed_args.sort_columns:
            return super().take_action(parsed_args)
        return self.columns, (row[LINE] if LINE in row else
                              cells([self.shown(row[name], parsed_args.formatter, name) for name in self.columns],
                                    parsed_args.formatter) for row in self.rows(parsed_args))

    def produce_output(self, *args: Any) -> int:
        parsed_args, names, rows = args
        if parsed_args.sort_columns:
            return super().produce_output(*args)
        if parsed_args.formatter == 'json':
            self.formatter = formatters.JSONRows()
        if parsed_args.formatter not in ('table', 'yaml'):          # cliff writes the others row by row
            return super(Lister, self).produce_output(parsed_args, names, rows)
        rows = iter(rows)
        page = list(itertools.islice(rows, _PAGE))
        told: set[str] = set()
        while True:
            of_page = argparse.Namespace(**vars(parsed_args))       # a table changes them when it is made to fit
            shown = self._fitted(of_page, page) if parsed_args.formatter == 'table' else (names, page)
            self._left_out = tuple(name for name in self._left_out if name not in told)
            told.update(self._left_out)
            code = super().produce_output(of_page, *shown)
            page = list(itertools.islice(rows, _PAGE))
            if not page:
                return code


class Blocks(Lister):
    """Base of commands that tell more about each thing than the columns of a table have room for.

    People get a block of lines for each thing, unless they choose columns; other formats are those of a list.
    ``--long`` adds the columns that are not ``in_block``.
    """

    in_block: tuple[str, ...] = ()

    def head(self, row: Mapping[str, Any]) -> tuple[str, str]:
        """Return the first line of a block: a word that may have a colour, and the rest."""
        raise NotImplementedError

    def body(self, row: Mapping[str, Any]) -> Iterable[str]:
        """Return the sentences and facts of a block, as text as in a table."""
        raise NotImplementedError

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
        if not _in_blocks(parsed_args):
            return super().take_action(parsed_args)
        # Return mappings, not rows: ``produce_output`` takes the values by the names of their columns.
        found: Any = [dict(zip(self.columns, row, strict=True)) for row in self.cells(parsed_args, 'table')]
        return self.columns, found

    def produce_output(self, *args: Any) -> int:
        parsed_args, _names, rows = args
        if not _in_blocks(parsed_args) or not rows:
            return super().produce_output(*args)
        stdout = self.app.stdout
        for row in rows:
            word, rest = self.head(row)
            lines = list(self.body(row))
            if parsed_args.long:
                lines += [f'{name}: {", ".join(str(cell).split(chr(10)))}' for name, cell in row.items()
                          if cell != '' and name not in self.in_block]
            width = screen.width_of(stdout)
            first, *more = screen.wrap(f'{word} {rest}', width)
            text = [screen.paint(word, stdout) + first.removeprefix(word)]
            for line in (' '.join(more), *lines):
                text += screen.wrap(line, width, '    ') if line else []
            stdout.write('\n'.join(text) + '\n')
        return OK


def _in_blocks(parsed_args: argparse.Namespace) -> bool:
    return parsed_args.formatter == 'table' and not (parsed_args.columns or parsed_args.sort_columns)


class ShowOne(Command, show.ShowOne):
    """Base of commands that show one thing, by its fields."""

    @property
    def formatter_namespace(self) -> str:
        return 'devicetrack.formatter.show'

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        """Return the fields in their order."""
        raise NotImplementedError

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        fields = self.fields(parsed_args)
        _check_columns(parsed_args.columns, fields)
        values = cells([self.shown(value, parsed_args.formatter, name) for name, value in fields.items()],
                       parsed_args.formatter)
        if parsed_args.formatter == 'table':
            if not parsed_args.columns:         # leave out empty fields for people
                said = {name: value for name, value in zip(fields, values, strict=True)
                        if value != '' and name not in ('kind', 'identifier')}
                fields, values = said, list(said.values())
            room = self.take_width(parsed_args) - max(map(len, fields), default=0) - _BORDERS_OF_TWO
            values = [screen.paint('\n'.join(screen.wrap(value, max(room, _NARROWEST))), self.app.stdout)
                      if isinstance(value, str) else value for value in values]
        return tuple(fields), values


def _by(number: int) -> Callable[[Sequence[Any]], Any]:
    """The order of rows by one of their cells, as people count."""
    return lambda row: natural.key(row[number])


def _check_columns(asked: Iterable[str], known: Iterable[str]) -> None:
    """Refuse unknown columns. cliff would leave them out, and a script would not see why a column is missing."""
    known = tuple(known)
    for column in asked:
        if column not in known:
            raise UsageError(f'there is no column {column}; there are {", ".join(known)}')


def count(number: int, noun: str) -> str:
    """Return a number of things in words."""
    return f'{number:,} {noun}' if number == 1 else f'{number:,} {noun}s'


def cells(values: Sequence[Any], formatter: str) -> list[Any]:
    """Return values as a formatter takes them: plain data for those that keep structure, text for the others.

    Untrusted words are escaped in text: for terminals, and for a shell that evaluates the output.
    """
    is_data = formatter in STRUCTURED
    return [value if is_data and type(value) in _PLAIN else _cell(value, formatter) for value in values]


def _cell(value: Any, formatter: str, within: bool = False) -> Any:
    """:param within: whether the value is an item of another one"""
    is_data = formatter in STRUCTURED           # these formatters escape by themselves
    if type(value) in _PLAIN:
        return value if is_data else _leaf(value, formatter)
    if isinstance(value, Shown):
        return _cell(value.data if is_data else value.text, formatter, within)
    if isinstance(value, InstanceName):
        is_whole = value.text is None or formatter != 'table'
        return _cell(value.text if is_whole else instance_names.shown(str(value.text)), formatter, within)
    if isinstance(value, Moment):
        return moments.local(value.seconds) if formatter == 'table' else moments.utc(value.seconds)
    if isinstance(value, Mapping):
        items = {key: _cell(item, formatter, within=True) for key, item in value.items()}
        return items if is_data else _joined([f'{_leaf(key, formatter)}={item}' for key, item in items.items()],
                                             formatter, within)
    if isinstance(value, (list, tuple, set, frozenset)):
        parts = [_cell(item, formatter, within=True) for item in value]
        return parts if is_data else _joined(parts, formatter, within)
    return value if is_data else _leaf(value, formatter)


def _joined(parts: Sequence[Any], formatter: str, within: bool) -> str:
    # A table has the items on separate lines, so that names stay whole in a narrow one.
    return ('\n' if formatter == 'table' and not within else ', ').join(map(str, parts))


def _leaf(value: Any, formatter: str) -> Any:
    if value is None:
        return ''
    if isinstance(value, bool):
        return 'yes' if value else 'no'
    if not isinstance(value, str):
        return value
    # cliff puts the value between double quotes and escapes these, and nothing else.
    return re.sub(r'[\\$`]', r'\\\g<0>', log.printable(value)) if formatter == 'shell' else log.printable(value)


def details_fields(text: str) -> dict[str, Any] | None:
    """Return stored details as fields, with the class first. If they cannot be read, a field says why."""
    if not text:
        return None
    try:
        details = details_objects.from_text(text)
    except (exception.UnknownObject, exception.MalformedObject) as error:
        return {'unreadable': str(error)}
    data = {name: getattr(details, name) for name in details.obj_fields if details.obj_attr_is_set(name)}
    return {'class': type(details).__name__, 'version': details.VERSION, **data}
