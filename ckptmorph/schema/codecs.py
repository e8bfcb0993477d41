"""Codecs: how one fact is spelt in a config, read and written by the same object.

``read`` returns the normalised value or ABSENT. ``write`` returns the paths to set. Both raise `CodecFault` with a
sentence when the config says something impossible. A codec never guesses: what is absent stays absent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field

from ckptmorph.errors import ELSEWHERE
from ckptmorph.findings import in_json, some
from ckptmorph.schema.base import Cite
from ckptmorph.schema.capture import (
    CannotCapture,
    NeedsTarget,
    ids_for,
    known_classes,
    only,
    rule_for,
    states_of,
)  # fmt: skip
from ckptmorph.schema.engines import Capture, CaptureRule, Case
from ckptmorph.schema.faults import CodecFault as CodecFault
from ckptmorph.schema.paths import ABSENT, get_path, join
from ckptmorph.schema.rope import read_rope

#: A config that speaks of more layers is wrong, and lists of that length would take all memory.
MAX_LAYERS = 10_000

NO_SPELLING = "value-not-in-layout"


class Context(Struct, frozen=True):
    """What a codec may need to know beyond the config itself.

    Attributes:
        dims: known dimensions and facts by name.
        n: number of decoder layers of the target, if known.
        target_class: architecture name of the target, if known.
        captures: by engine name, how it reads auxiliary ids.
        releases: by engine name, the releases to consider (one when it is known, else all that were looked at).
    """

    dims: Mapping[str, Any] = field(default_factory=dict)
    n: int | None = None
    target_class: str | None = None
    captures: Mapping[str, Capture] = field(default_factory=dict)
    releases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


Args = Mapping[str, Any]
Read = Callable[[Any, str, Args, Context], Any]
Write = Callable[[Any, str, Args, Context], dict[str, Any]]


class Codec(Struct, frozen=True):
    """A pair of functions; ``write`` is None for read-only spellings.

    Attributes:
        args: the arguments a schema may give, and what each is: text, table, expression or engine.
        one_of: of these arguments one must be given.
        gives: types of facts whose values it can spell; empty for any.
    """

    read: Read
    write: Write | None
    args: Mapping[str, str] = field(default_factory=dict)
    one_of: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()


# --- plain, table, length ----------------------------------------------------------------------------------------


def _read_plain(config: Any, path: str, args: Args, ctx: Context) -> Any:
    return get_path(config, path)


def _write_plain(value: Any, path: str, args: Args, ctx: Context) -> dict[str, Any]:
    return {path: value}


_FLAGS = {"true": True, "false": False}  # keys of a table are texts, values of a flag are not


def _read_table(config: Any, path: str, args: Args, ctx: Context) -> Any:
    said = get_path(config, path)
    if said is ABSENT or said is None:
        return ABSENT
    for value, spelt in args["table"].items():
        if said == spelt or said in args.get("also", {}).get(value, []):
            return _FLAGS.get(value, value)
    if args.get("others") == "ignore":
        return ABSENT
    known = ", ".join(s if isinstance(s, str) else in_json(s) for s in args["table"].values())
    raise CodecFault(f"{path} is {in_json(said)}; known are {known}")


def _write_table(value: Any, path: str, args: Args, ctx: Context) -> dict[str, Any]:
    key = next((text for text, flag in _FLAGS.items() if flag is value), value)
    if key not in args["table"]:
        raise CodecFault(f"only {', '.join(args['table'])} can be said at {path}", code=NO_SPELLING)
    return {path: args["table"][key]}


def _read_length(config: Any, path: str, args: Args, ctx: Context) -> Any:
    said = get_path(config, path)
    if said == [] and args.get("empty") == "absent":
        return ABSENT
    return len(said) if isinstance(said, list) else ABSENT


# --- dtype -------------------------------------------------------------------------------------------------------


def _read_dtype(config: Any, path: str, args: Args, ctx: Context) -> Any:
    said = get_path(config, path)
    if said is ABSENT or said is None:
        return ABSENT
    if not isinstance(said, str):
        raise CodecFault(f"{path} is {in_json(said)}, not the name of a dtype")
    return said.removeprefix("torch.")


# --- rotary embedding --------------------------------------------------------------------------------------------


def _read_theta(config: Any, path: str, args: Args, ctx: Context) -> Any:
    return read_rope(config, path, args.get("form") == "older")[0]


def _write_theta(value: Any, path: str, args: Args, ctx: Context) -> dict[str, Any]:
    if args.get("form") == "parameters":
        return {join(path, "rope_parameters.rope_theta"): value}
    return {join(path, "rope_theta"): value}


def _read_scaling(config: Any, path: str, args: Args, ctx: Context) -> Any:
    theta, scaling = read_rope(config, path, args.get("form") == "older")
    # Where a base is stated and no scaling is, the absence is the statement: plain rotary embedding.
    return None if scaling is ABSENT and theta is not ABSENT else scaling


def _write_scaling(value: Any, path: str, args: Args, ctx: Context) -> dict[str, Any]:
    if args.get("form") == "parameters":
        fields = value or {"rope_type": "default"}
        return {join(path, f"rope_parameters.{k}"): v for k, v in fields.items()}
    if value is None:
        return {}
    name = "type" if args.get("form") == "older" else "rope_type"  # the older spelling had the older name
    fields = {name if k == "rope_type" else k: v for k, v in value.items()}
    return {join(path, "rope_scaling"): fields}


# --- sliding windows ---------------------------------------------------------------------------------------------


def _read_windows(config: Any, path: str, args: Args, ctx: Context) -> Any:
    """One window (tokens, or None for full attention) per draft layer."""
    layers = ctx.dims.get("num_hidden_layers")
    if layers is None:
        return ABSENT
    if layers > MAX_LAYERS:
        raise CodecFault(f"num_hidden_layers is {layers}; no drafter has that many layers")
    types = get_path(config, join(path, "layer_types"))
    window = get_path(config, join(path, "sliding_window")) or None
    use = get_path(config, join(path, "use_sliding_window"))
    if isinstance(types, list) and types:
        return [_window(kind, window, path) for kind in _fit(types, layers, path)]
    if window is None or use is False:
        return [None] * layers
    if use is True:
        first = get_path(config, join(path, "max_window_layers"))
        full = first if isinstance(first, int) and not isinstance(first, bool) else 0
        return [None if i < full else window for i in range(layers)]
    raise CodecFault(
        f"{join(path, 'sliding_window')} is {window} but neither layer_types nor use_sliding_window says where",
        code="ambiguous-window",
    )


def _fit(types: list[Any], layers: int, path: str) -> list[Any]:
    if len(types) == layers:
        return types
    if len(set(map(str, types))) == 1:
        return [types[0]] * layers
    raise CodecFault(f"{join(path, 'layer_types')} has {len(types)} entries for {layers} draft layers")


def _window(kind: Any, window: Any, path: str) -> int | None:
    if kind == "full_attention":
        return None
    if kind != "sliding_attention":
        raise CodecFault(
            f"{join(path, 'layer_types')} holds {in_json(kind)}; known are full_attention, sliding_attention"
        )
    if not isinstance(window, int) or isinstance(window, bool) or window <= 0:
        raise CodecFault(
            f"a layer is sliding_attention but {join(path, 'sliding_window')} is {in_json(window)}"
        )
    return window


def _write_windows(value: Any, path: str, args: Args, ctx: Context) -> dict[str, Any]:
    sizes = {w for w in value if w is not None}
    if not sizes:
        return {}
    if len(sizes) > 1:
        raise CodecFault(f"layers have different windows {sorted(sizes)}; one field holds them all")
    types = ["full_attention" if w is None else "sliding_attention" for w in value]
    return {
        join(path, "layer_types"): types,
        join(path, "sliding_window"): sizes.pop(),
        join(path, "use_sliding_window"): True,
    }


# --- auxiliary states --------------------------------------------------------------------------------------------

_INLINE = Cite(repo="ckptmorph", path="schemas", release="-")


def _rules(args: Args, ctx: Context) -> tuple[Capture, list[CaptureRule]]:
    """The capture and the rules that may apply: one inline, or the engine's for every release in question."""
    if "h" in args:
        rule = CaptureRule(
            classes="any",
            cases=[Case(h=args["h"])],
            lowest=args.get("lowest", "0"),
            highest=args.get("highest", "n"),
            outside="not a state of the target",
            because=f"h = {args['h']}",
            source=_INLINE,
        )
        order = args.get("order", "ascending")
        return Capture(at=[], order="ascending" if order == "increasing" else order, rules=[rule]), [rule]
    capture = ctx.captures[args["engine"]]
    releases = ctx.releases.get(args["engine"]) or (None,)
    rules = [rule_for(capture, ctx.target_class, release) for release in releases]
    found: list[CaptureRule] = []
    for one in rules:
        if one is not None and one not in found:
            found.append(one)
    # A release that does not know the class is none that the drafter was made for. Without a class none is sure.
    if not found or (ctx.target_class is None and None in rules):
        raise CodecFault(_no_rule(args["engine"], capture, ctx, releases), code="target-needed", next=_TARGET)
    return capture, found


_TARGET = "--target DIR_OR_CONFIG, or --target-arch CLASS"


def _no_rule(engine: str, capture: Capture, ctx: Context, releases: tuple[str | None, ...]) -> str:
    release = releases[-1]
    at = f"{engine} {release}" if len(releases) == 1 and release else engine
    if ctx.target_class is None:
        return f"what the auxiliary layer ids mean to {at} depends on the target's class, which is not known"
    classes = some(known_classes(capture, release), ctx.target_class)
    return (
        f"{at} has no known rule for auxiliary layer ids of target class {ctx.target_class}; known: {classes}"
    )


def _read_states(config: Any, path: str, args: Args, ctx: Context) -> Any:
    ids = get_path(config, path)
    if ids is ABSENT or ids is None:
        return ABSENT
    if (
        not isinstance(ids, list)
        or not ids
        or not all(isinstance(i, int) and not isinstance(i, bool) and abs(i) <= MAX_LAYERS for i in ids)
    ):
        raise CodecFault(f"{path} is {in_json(ids)}, not a list of layer ids")
    capture, rules = _rules(args, ctx)
    readings = []
    for rule in rules:
        try:
            states = states_of(rule, ids, ctx.n)
        except NeedsTarget as exc:
            raise CodecFault(
                f"{path} is {ids}: {exc}", code="target-needed", next="--target DIR_OR_CONFIG"
            ) from None
        if states not in readings:
            readings.append(states)
    if len(readings) > 1:
        shown = " or ".join(str(r) for r in readings)
        raise CodecFault(
            f"{path} is {ids}; releases of {args['engine']} read it as states {shown}",
            code="ambiguous-aux-ids",
            next=f"--from {args['engine']}@RELEASE (the release the drafter was made for)",
        )
    states = readings[0]
    if args.get("order") == "increasing" and (ids != sorted(ids) or ids[0] < 0):
        text = f"{path} is {ids}: the library takes an increasing list of layers only"
        raise CodecFault(text, code="aux-ids-out-of-order")
    if len(set(states)) != len(states):
        raise CodecFault(f"{path} is {ids}: a layer is listed twice", code="duplicate-aux-id")
    bad = [h for h in states if h < 0 or (ctx.n is not None and h > ctx.n)]
    if bad:
        top = f"0..{ctx.n}" if ctx.n is not None else "0 and up"
        raise CodecFault(
            f"{path} is {ids}: state {bad[0]} does not exist ({top})", code="aux-id-out-of-range"
        )
    return sorted(states) if capture.order == "ascending" else states


def _write_states(value: Any, path: str, args: Args, ctx: Context) -> dict[str, Any]:
    capture, rules = _rules(args, ctx)
    try:
        if "always" in args:
            only(args["always"], value, ctx.n)
            return {}
        return {path: ids_for(capture, rules[-1], value, ctx.n)}
    except CannotCapture as exc:
        raise CodecFault(
            f"states {value} cannot be written: {exc}", code="states-not-capturable", next=ELSEWHERE
        ) from None
    except NeedsTarget as exc:
        raise CodecFault(
            f"states {value} cannot be written: {exc}", code="target-needed", next="--target DIR_OR_CONFIG"
        ) from None


_STATES = {"engine": "engine", "order": "text"} | dict.fromkeys(
    ("h", "lowest", "highest", "always"), "expression"
)
_FORM = {"form": "text"}

CODECS: dict[str, Codec] = {
    "plain": Codec(_read_plain, _write_plain),
    "table": Codec(
        _read_table, _write_table, {"table": "table", "also": "table", "others": "text"}, ("table",)
    ),
    "length": Codec(_read_length, None, {"empty": "text"}, gives=("int",)),
    "dtype": Codec(_read_dtype, _write_plain, gives=("dtype",)),
    "rope_theta": Codec(_read_theta, _write_theta, _FORM, gives=("float",)),
    "rope_scaling": Codec(_read_scaling, _write_scaling, _FORM, gives=("object",)),
    "windows": Codec(_read_windows, _write_windows, gives=("list",)),
    "states": Codec(_read_states, _write_states, _STATES, ("h", "engine"), gives=("states",)),
}
