"""The click commands: parse, call the API, print. What they need beyond click is loaded when a command runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ckptmorph import __version__
from ckptmorph.cli import streams
from ckptmorph.cli.groups import Verbs
from ckptmorph.cli.options import (
    common,
    drafter_path,
    facts,
    path_argument,
    reading,
    target_model,
    values,
    wishes,
)
from ckptmorph.errors import UsageError

if TYPE_CHECKING:
    from ckptmorph.findings import Value

R = TypeVar("R", bound="Value")
EXIT_FINDINGS = 1
EXIT_REFUSED = 4

drafter_argument = drafter_path()


def _emit(value: R, human: Callable[..., str], *, as_json: bool, quiet: bool, verbose: bool) -> None:
    if as_json:
        from ckptmorph.cli.steps import in_document
        from ckptmorph.findings import in_lines, plain

        escaped = not streams.holds_all(sys.stdout)
        streams.data(in_lines(in_document(plain(value)), ascii_only=escaped))
    elif not quiet:
        streams.data(human(value, verbose=verbose))


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", message="ckptmorph %(version)s")
def root() -> None:
    """Move speculative-decoding drafter checkpoints between frameworks, and know what an engine will do with them."""


@root.command()
@drafter_argument
@reading
@target_model
@facts
@common
def inspect(drafter: Path, as_json: bool, quiet: bool, verbose: bool, **kwargs: Any) -> int:
    """Say what a drafter is: algorithm, layout, version, facts with evidence, tensors."""
    options = values(kwargs)
    from ckptmorph import api
    from ckptmorph.cli import views

    result = api.inspect(drafter, **options)
    _emit(result, views.inspection, as_json=as_json, quiet=quiet, verbose=verbose)
    return 0


@root.command()
@drafter_argument
@wishes
@common
def plan(drafter: Path, as_json: bool, quiet: bool, verbose: bool, **kwargs: Any) -> int:
    """Show what a conversion would do. Nothing is written."""
    options = values(kwargs)
    from ckptmorph import api
    from ckptmorph.cli import views

    result = api.plan(drafter, **options)
    _emit(result, views.plan, as_json=as_json, quiet=quiet, verbose=verbose)
    return 0


@root.command()
@drafter_argument
@path_argument("out", required=False)
@wishes
@click.option(
    "--in-place",
    is_flag=True,
    help="Change DRAFTER itself, without OUT: headers, config and changed tensors. `restore` undoes it.",
)
@click.option(
    "--overwrite", is_flag=True, help="Replace OUT; its content is kept and `restore` brings it back."
)
@click.option("--dry-run", is_flag=True, help="The same as plan.")
@click.option("--hash", is_flag=True, help="Record the sha256 of the source files.")
@click.option(
    "--no-fsync", is_flag=True, help="Do not wait for the disk: for outputs that are soon deleted again."
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    default=2,
    show_default=True,
    help="Threads for one large file: one writes, the others read ahead; or so many compute.",
)
@common
def convert(
    drafter: Path,
    out: Path | None,
    dry_run: bool,
    in_place: bool,
    overwrite: bool,
    hash: bool,
    no_fsync: bool,
    jobs: int,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    **kwargs: Any,
) -> int:
    """Convert DRAFTER into the new folder OUT, or --in-place."""
    options = values(kwargs)
    if (out is None) is not in_place:
        text = "give OUT or --in-place, not both" if in_place else "the argument OUT is missing"
        code = "usage" if in_place else "missing-argument"
        raise UsageError(text, code=code, next="ckptmorph convert --help")
    from ckptmorph import api
    from ckptmorph.cli import views
    from ckptmorph.cli.progress import progress

    if dry_run:
        planned = api.plan(drafter, out, **options)
        _emit(planned, views.plan, as_json=as_json, quiet=quiet, verbose=verbose)
        return 0
    with progress(drafter, quiet=quiet or as_json) as report:
        result = api.convert(
            drafter,
            out,
            in_place=in_place,
            overwrite=overwrite,
            hash=hash,
            fsync=not no_fsync,
            jobs=jobs,
            progress=report,
            **options,
        )
    _emit(result, views.report, as_json=as_json, quiet=quiet, verbose=verbose)
    if overwrite and not quiet and out is not None:
        _say_what_was_kept(out)
    return 0


def _say_what_was_kept(out: Path) -> None:
    from ckptmorph.storage.files import is_folder
    from ckptmorph.storage.target import backup_of

    kept = backup_of(out)
    if is_folder(kept):
        import shlex

        step = f"ckptmorph restore {shlex.quote(str(out))}"
        streams.talk(f"what was there before is in {kept}; bring it back with {step}\n")


@root.command()
@drafter_argument
@click.option(
    "--for",
    "engine",
    required=True,
    metavar="ENGINE[@RELEASE]|all",
    help="Engine, at its newest known release by default; or all engines and releases.",
)
@click.option(
    "--explain", "topic", metavar="FACT", help="Explain one fact: rules, sources, both sides, outcome."
)
@click.option(
    "--deep",
    is_flag=True,
    help="Look at every number, and at every row of a local target's embedding and head, not at samples.",
)
@reading
@target_model
@facts
@common
def verify(
    drafter: Path,
    engine: str,
    topic: str | None,
    deep: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    **kwargs: Any,
) -> int:
    """Predict what an engine release will do with a drafter: loaded, ignored, dropped, missing, misread.

    Exit code 1 when the verdict is fail; with --for all, when it is fail everywhere.
    """
    options = values(kwargs)
    from ckptmorph import api
    from ckptmorph.cli import views

    if engine == "all":
        if topic is not None:
            raise UsageError("--explain is about one engine: --for all has many", code="usage")
        table = api.verify_all(drafter, deep=deep, **options)
        _emit(table, views.matrix, as_json=as_json, quiet=quiet, verbose=verbose)
        return EXIT_FINDINGS if all(row.verdict == "fail" for row in table.rows) else 0
    if topic is not None:
        said = api.explain(drafter, topic, engine=engine, **options)
        _emit(said, views.explanation, as_json=as_json, quiet=quiet, verbose=verbose)
        return 0
    result = api.verify(drafter, engine=engine, deep=deep, **options)
    _emit(result, views.verification, as_json=as_json, quiet=quiet, verbose=verbose)
    return EXIT_FINDINGS if result.verdict == "fail" else 0


@root.command()
@path_argument("a")
@path_argument("b")
@common
def diff(a: Path, b: Path, as_json: bool, quiet: bool, verbose: bool, **kwargs: Any) -> int:
    """Compare two drafters up to renaming. Exit code 1 when they differ."""
    from ckptmorph import api
    from ckptmorph.cli import views

    result = api.diff(a, b, **kwargs)
    _emit(result, views.difference, as_json=as_json, quiet=quiet, verbose=verbose)
    return 0 if result.same else EXIT_FINDINGS


@root.command()
@path_argument("out")
@common
def restore(out: Path, as_json: bool, quiet: bool, verbose: bool, schema_path: tuple[Path, ...]) -> int:
    """Undo the last --in-place conversion of OUT, or the last --overwrite, byte for byte."""
    from ckptmorph import api
    from ckptmorph.cli import views

    result = api.restore(out)
    _emit(result, views.restored, as_json=as_json, quiet=quiet, verbose=verbose)
    return 0


@root.command()
@drafter_path(required=False)
@click.option("--from", "from_", metavar="LAYOUT", help="Where from; detected when a drafter is given.")
@click.option("--to", metavar="NAME[@RELEASE]", help="Where to.")
@target_model
@facts
@common
def graph(drafter: Path | None, as_json: bool, quiet: bool, verbose: bool, **kwargs: Any) -> int:
    """Show the route from one layout to another, and why other routes are closed. Exit code 4 when none is open.

    With a drafter and no --to: every engine and release that it can go to.
    """
    options = values(kwargs)
    from ckptmorph import api
    from ckptmorph.cli import views

    result = api.graph(drafter, **options)
    _emit(result, views.graph, as_json=as_json, quiet=quiet, verbose=verbose)
    asked = result.goal is not None or bool(result.destinations)
    return EXIT_REFUSED if asked and not result.open else 0


@root.group()
def schemas() -> None:
    """List, show and check the schemas: algorithms, layouts and engine contracts."""


@schemas.command("list")
@common
def schemas_list(as_json: bool, quiet: bool, verbose: bool, schema_path: tuple[Path, ...]) -> int:
    """List everything the schemas know."""
    from ckptmorph import schemas_api
    from ckptmorph.cli import views

    result = schemas_api.listing(schema_path)
    _emit(result, views.schema_list, as_json=as_json, quiet=quiet, verbose=verbose)
    return 0


@schemas.command("show")
@click.argument("name")
@common
def schemas_show(name: str, as_json: bool, quiet: bool, verbose: bool, schema_path: tuple[Path, ...]) -> int:
    """Show one schema: an algorithm, a layout or an engine."""
    from ckptmorph import schemas_api
    from ckptmorph.cli import views

    result = schemas_api.shown(name, schema_path)
    _emit(result, views.schema_show, as_json=as_json, quiet=quiet, verbose=verbose)
    return 0


@schemas.command("check")
@path_argument("file")
@common
def schemas_check(
    file: Path, as_json: bool, quiet: bool, verbose: bool, schema_path: tuple[Path, ...]
) -> int:
    """Check a schema file, alone and together with all others. Exit code 1 when something is wrong with it."""
    from ckptmorph import schemas_api
    from ckptmorph.cli import views
    from ckptmorph.findings import errors_in

    result = schemas_api.checked(file, schema_path)
    _emit(result, views.schema_check, as_json=as_json, quiet=quiet, verbose=verbose)
    return EXIT_FINDINGS if errors_in(result.findings) else 0
