"""Write the man pages of the programs. The package installs these pages.

Arguments and options come from the programs. The rest of the text is here. A test compares the pages in share/man/man1
with the output of this program.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import inspect
import io
import pathlib
import sys
from typing import Any
from typing import Final

from oslo_config import cfg

from devicetrack.cmd import base
from devicetrack.cmd import manage
from devicetrack.cmd import nova_adopt
from devicetrack.cmd import watching

PAGES: Final = pathlib.Path(__file__).parents[2] / 'share' / 'man' / 'man1'

_EXIT_CODES: Final = (
    ('0', 'Done, and nothing needs attention.'),
    ('1', 'An error. One sentence on stderr says what, where and what to do.'),
    ('2', 'The command line is wrong. Nothing was done.'),
    ('3', 'Done, and something needs attention: a finding, a part of the host that could not be read, a request that '
          'does not fit.'),
)
_CONFIG: Final = (
    ('--config-file PATH', 'A configuration file; may be repeated, and later files override earlier ones. Give the '
                           'files of the service, in the same order. Default: devicetrack.conf in ~/.devicetrack, ~, '
                           '/etc/devicetrack and /etc.'),
    ('--config-dir DIR', 'A directory whose *.conf files are read after the configuration files; may be repeated.'),
)
_OUTPUT: Final = 'The options of the output, as -f, -c and --max-width, are those of every command.'


def escaped(text: str) -> str:
    """Escape a text for troff: hyphens stay the characters that people type, and no line begins a request."""
    text = text.replace('\\', r'\e').replace('-', r'\-')
    return '\n'.join(rf'\&{line}' if line[:1] in ('.', "'") else line for line in text.split('\n'))


def bold(text: str) -> str:
    return rf'\fB{escaped(text)}\fP'


def section(title: str, *lines: str) -> Iterator[str]:
    yield f'.SH {escaped(title)}'
    yield from lines


def paragraphs(*texts: str) -> Iterator[str]:
    for text in texts:
        yield '.PP'
        yield escaped(text)


def listed(items: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Names or options, each with its text."""
    for name, text in items:
        yield from ('.TP', bold(name), escaped(text))


def options_of(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """The arguments and options of a parser, each with its help."""
    formatter = parser._get_formatter()
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        metavar = action.metavar if action.metavar is not None else (
            '' if action.nargs == 0 else '{' + ','.join(map(str, action.choices)) + '}' if action.choices
            else action.dest.upper())
        shown = ' '.join(metavar) if isinstance(metavar, tuple) else metavar
        name = ', '.join(action.option_strings) + (f' {shown}' if shown and action.option_strings else shown or '')
        yield name, formatter._expand_help(action) if action.help else ''


def own_parser(command: type[base.Command], app: Any) -> argparse.ArgumentParser:
    """The arguments of one command, without those that cliff gives to all commands."""
    parser = argparse.ArgumentParser(add_help=False)
    command(app, None).add_arguments(parser)
    if issubclass(command, base.Lister):
        base.add_long(parser)
    if issubclass(command, watching.Watched):
        watching.add_watch(parser)
    return parser


def said_of(command: type[base.Command]) -> list[str]:
    """The paragraphs of the docstring of a command, each on one line."""
    return [' '.join(part.split()) for part in inspect.cleandoc(command.__doc__ or '').split('\n\n')]


def of_manage() -> Iterator[str]:
    yield from section('SYNOPSIS', f'{bold("devicetrack-manage")} [options] command [arguments]')
    yield from section('DESCRIPTION', *paragraphs(
        'Shows the devices of hosts and their owners, and repairs the record. A command names first the object and '
        'then the action: device list. Most commands only report. Commands that look at the machine need the rights '
        'of the service: run them as its user, with its configuration files.',
        'A device is named KIND/IDENTIFIER, for example vpmem/ns0.'))
    yield from section('OPTIONS', *listed((
        *_CONFIG, ('-v, --verbose', 'Log the steps of the library; twice, those of the libraries below it too.'),
        ('-q, --quiet', 'Log errors only.'), ('--log-file FILE', 'Write the log to a file, too.'),
        ('--debug', 'Show the traceback of an error.'), ('--version', 'Show the version.'),
        ('-h, --help', 'List the options and commands. After a command: explain it, with all of its options.'))))
    yield from section('OUTPUT', *paragraphs(_OUTPUT), *listed((
        ('-f FORMAT, --format FORMAT', 'table, json, yaml, csv, value; shell for single things.'),
        ('-c COLUMN, --column COLUMN', 'Show this column; may be repeated.'),
        ('--max-width N', 'The width of a table. By default that of the terminal.'))))
    yield '.SH COMMANDS'
    app = manage.Manage(cfg.ConfigOpts(), io.StringIO(), io.StringIO())
    for name, entry_point in sorted(app.command_manager):
        command = entry_point.load()
        if issubclass(command, base.Command):           # not one of cliff's own commands
            yield f'.SS {escaped(name)}'
            yield from paragraphs(*said_of(command))
            yield from listed(options_of(own_parser(command, app)))
    yield from section('EXIT STATUS', *listed((*_EXIT_CODES, (
        '11 to 125', 'placement heal could not heal some nodes: 10 plus the number of them.'),
        ('130', 'Interrupted.'), ('141', 'The reader of the output has gone.'))))


def of_status() -> Iterator[str]:
    yield from section('SYNOPSIS', f'{bold("devicetrack-status")} [options] upgrade check [--json]')
    yield from section('DESCRIPTION', *paragraphs(
        'Says whether the installed release of devicetrack can start on what is here: the configuration, the files, '
        'the schema of the store, the stored details, and placement if it is configured. Run it as the user of the '
        'service, with its configuration files, before the service starts with a new release.',
        'A release with a new schema fails the check of the schema until devicetrack-manage db sync has run. Run the '
        'check once more after it.'))
    yield from section('OPTIONS', *listed((*_CONFIG, ('--json', 'Print the results as JSON.'))))
    yield from section('EXIT STATUS', *listed((
        ('0', 'Success.'), ('1', 'A check warns.'), ('2', 'A check failed.'), ('255', 'It could not check.'))))


def of_nova_compute() -> Iterator[str]:
    yield from section('SYNOPSIS', f'{bold("devicetrack-nova-compute")} [options of nova-compute]')
    yield from section('DESCRIPTION', *paragraphs(
        'Runs the compute service of OpenStack Nova, and manages its devices. Start it instead of nova-compute, with '
        'the same options. Without --config-file it reads the files that nova-compute reads.',
        'It does not start if it does not support the installed release of Nova, or if the claim manager of the host '
        'cannot start. Then it writes one line to stderr and to the log of Nova.'))
    yield from section('EXIT STATUS', *listed((
        ('0', 'The service was stopped.'), ('1', 'It could not start.'))))


def of_nova_adopt() -> Iterator[str]:
    first, *more = said_of(nova_adopt.Adopt)
    yield from section('SYNOPSIS', f'{bold("devicetrack-nova-adopt")} [options]')
    yield from section('DESCRIPTION', *paragraphs(first, *more, _OUTPUT.replace('every command', 'devicetrack-manage')))
    yield from section('OPTIONS', *listed(options_of(own_parser(nova_adopt.Adopt, None))))
    yield from section('EXIT STATUS', *listed(_EXIT_CODES))


PROGRAMS: Final = {
    'devicetrack-manage': ('ask about the devices of hosts and who holds them', of_manage),
    'devicetrack-nova-adopt': ('record the devices that guests of a Nova host have already', of_nova_adopt),
    'devicetrack-nova-compute': ('run the compute service of Nova with devicetrack', of_nova_compute),
    'devicetrack-status': ('say whether a release can start here', of_status),
}


def page(name: str) -> str:
    """The text of one page."""
    about, rest = PROGRAMS[name]
    others = [f'.BR {escaped(other)} (1)' + (',' if number else '')
              for number, other in reversed(list(enumerate(reversed([one for one in PROGRAMS if one != name]))))]
    lines = [r'.\" Made by tools/man-pages: change that, or the program.',
             f'.TH {name.upper()} 1 "" devicetrack "devicetrack"',
             *section('NAME', f'{escaped(name)} \\- {escaped(about)}'), *rest(), *section('SEE ALSO', *others)]
    return '\n'.join(lines) + '\n'


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description='Write the man pages.')
    parser.add_argument('directory', nargs='?', type=pathlib.Path, default=PAGES,
                        help='Where to write them; by default into share/man/man1.')
    directory = parser.parse_args(arguments).directory
    directory.mkdir(parents=True, exist_ok=True)
    for name in PROGRAMS:
        (directory / f'{name}.1').write_text(page(name), encoding='utf-8')


if __name__ == '__main__':
    main(sys.argv[1:])
