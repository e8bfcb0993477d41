"""The options that commands share, and how their texts become values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ckptmorph.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])


def _not_empty(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Refuse the empty text, which an unset variable of a script leaves: as a path it would be the folder we are in."""
    if "" in (value if isinstance(value, tuple) else (value,)):
        raise click.BadParameter("the path is empty", ctx, param)
    if isinstance(value, tuple):
        return tuple(Path(item) for item in value)
    return None if value is None else Path(value)


def _some_text(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse the empty text, and leave the others as they are: a path or a name on the Hub."""
    _not_empty(ctx, param, value)
    return value


def _drafter(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """The path of the drafter; next steps name it."""
    from ckptmorph.cli.steps import about

    path = _not_empty(ctx, param, value)
    if path is not None:
        about(str(value))
    return path


def drafter_path(**more: Any) -> Callable[[F], F]:
    """The argument that a command is about."""
    return click.argument("drafter", callback=_drafter, **more)


def path_argument(name: str, **more: Any) -> Callable[[F], F]:
    """An argument that is a path."""
    return click.argument(name, callback=_not_empty, **more)


def path_option(*names: str, **more: Any) -> Callable[[F], F]:
    """An option that is a path."""
    return click.option(*names, callback=_not_empty, **more)


def common(function: F) -> F:
    """Options that every command has."""
    return _with(
        function,
        click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout."),
        click.option("-q", "--quiet", is_flag=True, help="Only the result's exit code, and errors."),
        click.option("-v", "--verbose", is_flag=True, help="Every detail, with the source of every rule."),
        path_option(
            "--schema-path",
            multiple=True,
            metavar="DIR",
            help="More schemas, from a folder or file. May be repeated.",
        ),
    )


def wishes(function: F) -> F:
    """Options that say what a conversion should do and what the source leaves open."""
    return _with(
        function,
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
        click.option("--accept", multiple=True, metavar="LOSS", help="Accept one loss by its id. May be repeated."),
        click.option(
            "--max-shard-size",
            metavar="SIZE",
            help="Largest weight file, such as 5GB or 500MB. The files of the source by default.",
        ),
        click.option("--dtype", metavar="DTYPE", help="Cast all weights: float16, bfloat16, float32 or float64."),
        click.option("--embed-from-target", is_flag=True, help="Take the embedding from the target's weights."),
        click.option("--head-from-target", is_flag=True, help="Take the head from the target's weights."),
        click.option(
            "--drop-embed", is_flag=True, help="Leave out an embedding that is the target's, or not used by the engine."
        ),
    )  # fmt: skip


def target_model(function: F) -> F:
    """Options that name the target model."""
    return _with(function, *_target_options())


def reading(function: F) -> F:
    """The option that names the layout of the source."""
    return _with(
        function, click.option("--from", "from_", metavar="LAYOUT[@RELEASE]", help="Read it as this layout.")
    )


def facts(function: F) -> F:
    """Options that state facts."""
    return _with(function, *_fact_options())


def _with(function: F, *options: Callable[[F], F]) -> F:
    for option in reversed(options):
        function = option(function)
    return function


def _target_options() -> list[Callable[[F], F]]:
    return [
        click.option(
            "--target",
            callback=_some_text,
            metavar="DIR|ORG/NAME[@REVISION]",
            help="Target model: a folder, its config.json, or a repository on the Hub (config, headers and samples).",
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
        click.option(
            "--assume-default", is_flag=True, help="Use documented defaults for what is not stated."
        ),
    ]


def values(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Click's raw values as the API takes them."""
    out = dict(kwargs)
    if "facts" in out:
        out["facts"] = _pairs(out["facts"])
    for name in ("aux_states", "aux_layers"):
        if name in out:
            out[name] = _numbers(out[name], "--" + name.replace("_", "-"))
    return out


def _numbers(text: str | None, option: str) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.replace(" ", "").strip("[]").split(",")]
    except ValueError:
        raise UsageError(
            f"{option} {text!r} is no list of whole numbers",
            code="bad-value",
            hint=f"whole numbers with commas between, such as {option} 2,18,33",
        ) from None


def _pairs(items: tuple[str, ...]) -> dict[str, str]:
    out: dict[str, str] = {}
    for item in items:
        name, sign, value = item.partition("=")
        if not sign or not name:
            raise UsageError(
                f"--set {item!r} is no FACT=VALUE", code="bad-value", hint="write --set FACT=VALUE"
            )
        if name in out:
            raise UsageError(f"--set {name} is given twice", code="bad-value", hint="give it once")
        out[name] = value
    return out
