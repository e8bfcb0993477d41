"""How our commands differ from click's own: nearest names for unknown commands, and exit codes in every help text."""

from __future__ import annotations

from typing import Any

import click

from ckptmorph.cli.steps import running
from ckptmorph.errors import UsageError, did_you_mean

EXIT_CODES = (
    "Exit codes: 0 fine; 1 findings (verify failed, diff differs); 2 usage; 3 input is not usable; "
    "4 refused (no open route, a guard, a loss not accepted, a question not answered); 5 IO; "
    "70 a fault of ckptmorph; 130 interrupted."
)


class HelpWanted(Exception):
    """A group was called without a command. The text of the exception is the help."""


class Verb(click.Command):
    """A command whose help names the exit codes, and whose next steps carry its options."""

    def invoke(self, ctx: click.Context) -> Any:
        running(ctx)
        return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _exit_codes(formatter)


class Verbs(click.Group):
    """A group of commands that answers an unknown one with the nearest known one."""

    command_class = Verb

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            raise HelpWanted(ctx.get_help())
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            known = self.list_commands(ctx)
            close = did_you_mean(args[0], known, cutoff=0.6)
            raise UsageError(
                f"there is no command {args[0]!r}",
                code="unknown-command",
                hint=f"did you mean {close}?" if close else f"commands: {', '.join(known)}",
                next=f"{ctx.command_path} --help",
            )
        return super().resolve_command(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _exit_codes(formatter)


Verbs.group_class = Verbs


def _exit_codes(formatter: click.HelpFormatter) -> None:
    formatter.write_paragraph()
    formatter.write_text(EXIT_CODES)
