"""Next steps as their user can paste them: with the drafter's path, and the options that were given to this command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import click

# Options that say what the drafter is and what was found out about it, by parameter. A step names its own goal.
_CARRIED = (
    "from_",
    "layout",
    "target",
    "target_arch",
    "facts",
    "aux_states",
    "aux_layers",
    "assume_default",
    "deep",
)
_EVERYWHERE = ("schema_path",)

_drafter: list[str] = []  # the one that the command is about, as it was typed
_given: list[click.Context] = []  # the command that runs


def about(drafter: str | None) -> None:
    """From now on the next steps name this drafter; none for no drafter, and no command."""
    _drafter[:] = [drafter] if drafter is not None else []
    if drafter is None:
        _given.clear()


def running(ctx: click.Context) -> None:
    """From now on the next steps carry the options of this command."""
    _given[:] = [ctx]


def completed(text: str) -> str:
    """A step with the user's own path for the placeholder and the options that matter for it."""
    command, mark, words = text.partition("  # ")
    parts = command.split(" ")
    if parts[0] != "ckptmorph" or "--help" in parts:
        return text
    import shlex

    missing = [word for name in _options(parts) for word in name]
    if _drafter and "DRAFTER" in parts:
        parts[parts.index("DRAFTER")] = shlex.quote(_as_operand(_drafter[0]))
    return " ".join([*parts, *map(shlex.quote, missing)]) + mark + words


def in_document(data: Any) -> Any:
    """A JSON document, with its steps completed where they stand."""
    if isinstance(data, dict):
        if isinstance(data.get("next"), str):
            data["next"] = completed(data["next"])
        inside: Iterable[Any] = data.values()
    else:
        inside = data
    for value in inside:
        if type(value) is dict:
            in_document(value)
        elif type(value) is list:
            # Most hold numbers and words, and there may be several for each of thousands of tensors.
            for item in value:
                if type(item) is dict or type(item) is list:
                    in_document(item)
    return data


def _as_operand(path: str) -> str:
    return f"./{path}" if path.startswith("-") else path


def _options(parts: list[str]) -> Iterator[tuple[str, ...]]:
    """Options to add to a command: those of ours that it takes and does not have itself."""
    command = _command(parts)
    if command is None:
        return
    given = _given[0].params
    carried = _CARRIED if "DRAFTER" in parts else ()
    for option in command.params:
        name, value = option.name or "", given.get(option.name or "")
        if name not in (*carried, *_EVERYWHERE) or not value or not isinstance(option, click.Option):
            continue
        flag = option.opts[0]
        own = {part.split("=")[0] for at, part in enumerate(parts) if parts[at - 1] == flag}
        if option.is_flag:
            yield (flag,)
        elif option.multiple:
            yield from ((flag, str(item)) for item in value if str(item).split("=")[0] not in own)
        elif not own:
            yield flag, str(value)


def _command(parts: list[str]) -> click.Command | None:
    """The command that a step calls."""
    found: click.Command | None = _given[0].find_root().command if _given else None
    for word in parts[1:]:
        if not isinstance(found, click.Group):
            break
        found = found.commands.get(word)
    return found
