"""``docs/cli.md``: the command line, from the click tree."""

from __future__ import annotations

from collections.abc import Iterator

import click

from ckptmorph.cli.commands import root
from ckptmorph.cli.groups import EXIT_CODES

HEAD = """# The command line

Generated from the commands themselves by `python -m tools.generate`. Do not edit.

Data goes to stdout, words about errors to stderr. Every command has `--json`, which prints one document on stdout,
also when it fails; the documents are described in [docs/json](json).

"""


def markdown() -> str:
    """The whole page."""
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in _exit_codes())
    commands = "".join(_section(path, command) for path, command in _commands("ckptmorph", root))
    return f"{HEAD}| exit code | meaning |\n| ---: | --- |\n{codes}\n{commands}".rstrip() + "\n"


def _exit_codes() -> Iterator[tuple[str, str]]:
    for item in EXIT_CODES.removeprefix("Exit codes: ").removesuffix(".").split("; "):
        code, _, meaning = item.partition(" ")
        yield code, meaning


def _commands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            yield from _commands(f"{path} {name}", command.commands[name])
    else:
        yield path, command


def _section(path: str, command: click.Command) -> str:
    context = click.Context(command, info_name=path, **root.context_settings)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    rows = []
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if record is not None and isinstance(param, click.Option):
            names, about = record
            required = " Required." if param.required else ""
            rows.append(f"| `{_cell(names)}` | {_cell(about.removesuffix('  [required]'))}{required} |\n")
    table = "| option | meaning |\n| --- | --- |\n" + "".join(rows)
    return f"## {path}\n\n{(command.help or '').strip()}\n\n```\n{usage}\n```\n\n{table}\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
