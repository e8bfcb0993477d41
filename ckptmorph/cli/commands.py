"""The click commands: parse, call the API, print. Data goes to stdout, talk to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ckptmorph import __version__
from ckptmorph.cli import views
from ckptmorph.errors import UsageError, did_you_mean
from ckptmorph.findings import Severity, plain

F = TypeVar("F", bound=Callable[..., Any])
EXIT_FINDINGS = 1


class Suggesting(click.Group):
    """A group that answers an unknown command with the nearest known one."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            close = did_you_mean(args[0], self.list_commands(ctx), cutoff=0.6)
            raise UsageError(
                f"there is no command {args[0]!r}",
                code="unknown-command",
                hint=f"did you mean {close}?" if close else f"commands: {', '.join(self.list_commands(ctx))}",
                next="ckptmorph --help",
            )
        return super().resolve_command(ctx, args)


@click.group(cls=Suggesting, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", message="ckptmorph %(version)s")
def root() -> None:
    """Move speculative-decoding drafter checkpoints between frameworks, and know what an engine will do with them.

    Exit codes: 0 fine; 1 findings (verify failed, diff differs); 2 usage; 3 input is not usable; 4 refused (no open
    route, a guard, a loss not accepted, a question not answered); 5 IO; 70 a fault of ckptmorph.
    """


def common(function: F) -> F:
    """Options that every command has."""
    for option in reversed(
        [
            click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout."),
            click.option("-q", "--quiet", is_flag=True, help="Only the result's exit code, and errors."),
            click.option("-v", "--verbose", is_flag=True, help="Every detail, with the source of every rule."),
            click.option(
                "--schema-path", multiple=True, type=click.Path(path_type=Path), metavar="DIR",
                help="More schemas, from a folder or file. May be repeated.",
            ),
        ]
    ):  # fmt: skip
        function = option(function)
    return function


def wishes(function: F) -> F:
    """Options that say what a conversion should do and what the source leaves open."""
    for option in reversed(
        [
            click.option(
                "--from",
                "from_",
                metavar="LAYOUT[@RELEASE]",
                help="Layout of the source. Detected by default.",
            ),
            click.option(
                "--to",
                required=True,
                metavar="NAME[@RELEASE]",
                help="Engine, engine at a release, or layout to write.",
            ),
            click.option("--layout", metavar="LAYOUT", help="Which of the layouts that the engine reads."),
            *_target_options(),
            *_fact_options(),
            click.option(
                "--assume-default", is_flag=True, help="Use documented defaults for what is not stated."
            ),
            click.option(
                "--accept", multiple=True, metavar="LOSS", help="Accept one loss by its id. May be repeated."
            ),
        ]
    ):
        function = option(function)
    return function


def _target_options() -> list[Callable[[F], F]]:
    return [
        click.option(
            "--target",
            type=click.Path(path_type=Path),
            metavar="DIR",
            help="Folder or config.json of the target model.",
        ),
        click.option("--target-arch", metavar="CLASS", help="Class name of the target model."),
    ]


def _fact_options() -> list[Callable[[F], F]]:
    stated = "State a fact that the source does not. May be repeated."
    states = "States that fc takes: decoder layers already applied; 0 is the embedding output."
    layers = "The same as ids, numbered the way the source's layout numbers them."
    return [
        click.option("--set", "facts", multiple=True, metavar="FACT=VALUE", help=stated),
        click.option("--aux-states", metavar="H,H,H", help=states),
        click.option("--aux-layers", metavar="ID,ID,ID", help=layers),
    ]


def _numbers(text: str | None, option: str) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.replace(" ", "").strip("[]").split(",")]
    except ValueError:
        raise UsageError(
            f"{option} {text!r}: whole numbers with commas between, such as 2,18,33", code="usage"
        ) from None


def _pairs(items: tuple[str, ...]) -> dict[str, str]:
    out = {}
    for item in items:
        name, sign, value = item.partition("=")
        if not sign or not name:
            raise UsageError(f"--set {item!r}: write FACT=VALUE", code="usage")
        if name in out:
            raise UsageError(f"--set {name} is given twice", code="usage")
        out[name] = value
    return out


def _emit(value: Any, human: str, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(plain(value), indent=2, ensure_ascii=False) + "\n")
    elif not quiet:
        sys.stdout.write(human)


def _options(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Click's raw values as the API takes them."""
    out = dict(kwargs)
    if "facts" in out:
        out["facts"] = _pairs(out["facts"])
    for name in ("aux_states", "aux_layers"):
        if name in out:
            out[name] = _numbers(out[name], "--" + name.replace("_", "-"))
    return out


@root.command()
@click.argument("drafter", type=click.Path(path_type=Path))
@click.option("--from", "from_", metavar="LAYOUT[@RELEASE]", help="Read it as this layout.")
@common
def inspect(drafter: Path, as_json: bool, quiet: bool, verbose: bool, **kwargs: Any) -> int:
    """Say what a drafter is: algorithm, layout, version, facts with evidence, tensors."""
    from ckptmorph import api

    result = api.inspect(drafter, **kwargs)
    _emit(result, views.inspection(result, verbose=verbose), as_json=as_json, quiet=quiet)
    return 0


@root.command()
@click.argument("drafter", type=click.Path(path_type=Path))
@wishes
@common
def plan(drafter: Path, as_json: bool, quiet: bool, verbose: bool, **kwargs: Any) -> int:
    """Show what a conversion would do. Nothing is written."""
    from ckptmorph import api

    result = api.plan(drafter, **_options(kwargs))
    _emit(result, views.plan(result, verbose=verbose), as_json=as_json, quiet=quiet)
    return 0


@root.command()
@click.argument("drafter", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@wishes
@click.option(
    "--overwrite", is_flag=True, help="Replace OUT; its content is kept and `restore` brings it back."
)
@click.option("--dry-run", is_flag=True, help="The same as plan.")
@click.option("--hash", is_flag=True, help="Record the sha256 of the source files.")
@common
def convert(
    drafter: Path,
    out: Path,
    dry_run: bool,
    overwrite: bool,
    hash: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    **kwargs: Any,
) -> int:
    """Convert DRAFTER into the new folder OUT."""
    from ckptmorph import api

    if dry_run:
        planned = api.plan(drafter, out, **_options(kwargs))
        _emit(planned, views.plan(planned, verbose=verbose), as_json=as_json, quiet=quiet)
        return 0
    with views.progress(drafter, quiet=quiet or as_json) as progress:
        report = api.convert(
            drafter, out, overwrite=overwrite, hash=hash, progress=progress, **_options(kwargs)
        )
    _emit(report, views.report(report, verbose=verbose), as_json=as_json, quiet=quiet)
    return 0


@root.command()
@click.argument("drafter", type=click.Path(path_type=Path))
@click.option(
    "--for",
    "engine",
    required=True,
    metavar="ENGINE[@RELEASE]",
    help="Engine, at its newest known release by default.",
)
@click.option("--from", "from_", metavar="LAYOUT[@RELEASE]", help="Read it as this layout.")
@click.option(
    "--target",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder or config.json of the target model.",
)
@click.option("--target-arch", metavar="CLASS", help="Class name of the target model.")
@common
def verify(drafter: Path, as_json: bool, quiet: bool, verbose: bool, **kwargs: Any) -> int:
    """Predict what an engine release will do with a drafter: loaded, ignored, dropped, missing, misread."""
    from ckptmorph import api

    result = api.verify(drafter, **kwargs)
    _emit(result, views.verification(result, verbose=verbose), as_json=as_json, quiet=quiet)
    return EXIT_FINDINGS if result.verdict == "fail" else 0


@root.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@common
def diff(a: Path, b: Path, as_json: bool, quiet: bool, verbose: bool, **kwargs: Any) -> int:
    """Compare two drafters up to renaming. Exit code 1 when they differ."""
    from ckptmorph import api

    result = api.diff(a, b, **kwargs)
    _emit(result, views.difference(result, verbose=verbose), as_json=as_json, quiet=quiet)
    return 0 if result.same else EXIT_FINDINGS


@root.command()
@click.argument("out", type=click.Path(path_type=Path))
@common
def restore(out: Path, as_json: bool, quiet: bool, verbose: bool, **kwargs: Any) -> int:
    """Undo the last --overwrite of OUT, byte for byte."""
    from ckptmorph import api

    result = api.restore(out)
    _emit(result, f"restored {result.path}\n", as_json=as_json, quiet=quiet)
    return 0


@root.command()
@click.argument("drafter", type=click.Path(path_type=Path), required=False)
@click.option("--from", "from_", metavar="LAYOUT", help="Where from; detected when a drafter is given.")
@click.option("--to", metavar="NAME[@RELEASE]", help="Where to.")
@click.option(
    "--target",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder or config.json of the target model.",
)
@click.option("--target-arch", metavar="CLASS", help="Class name of the target model.")
@click.option(
    "--set", "facts", multiple=True, metavar="FACT=VALUE", help="State a fact that the source does not."
)
@click.option("--aux-states", metavar="H,H,H", help="States that fc takes.")
@common
def graph(drafter: Path | None, as_json: bool, quiet: bool, verbose: bool, **kwargs: Any) -> int:
    """Show the route from one layout to another, and why other routes are closed."""
    from ckptmorph import api

    result = api.graph(drafter, **_options(kwargs))
    _emit(result, views.graph(result, verbose=verbose), as_json=as_json, quiet=quiet)
    closed = result.goal is not None and not result.route
    return 4 if closed else 0


@root.group(cls=Suggesting)
def schemas() -> None:
    """List, show and check the schemas: algorithms, layouts and engine contracts."""


@schemas.command("list")
@common
def schemas_list(as_json: bool, quiet: bool, verbose: bool, schema_path: tuple[Path, ...]) -> int:
    """List everything the schemas know."""
    from ckptmorph import schemas_api

    result = schemas_api.listing(schema_path)
    _emit(result, views.schema_list(result), as_json=as_json, quiet=quiet)
    return 0


@schemas.command("show")
@click.argument("name")
@common
def schemas_show(name: str, as_json: bool, quiet: bool, verbose: bool, schema_path: tuple[Path, ...]) -> int:
    """Show one schema: an algorithm, a layout or an engine."""
    from ckptmorph import schemas_api

    result = schemas_api.shown(name, schema_path)
    _emit(result, views.schema_show(result), as_json=as_json, quiet=quiet)
    return 0


@schemas.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@common
def schemas_check(
    file: Path, as_json: bool, quiet: bool, verbose: bool, schema_path: tuple[Path, ...]
) -> int:
    """Check a schema file, alone and together with all others."""
    from ckptmorph import schemas_api

    result = schemas_api.checked(file, schema_path)
    _emit(result, views.schema_check(result), as_json=as_json, quiet=quiet)
    return EXIT_FINDINGS if any(f.severity is Severity.ERROR for f in result.findings) else 0
