"""The drafters that engines are shown: whole ones, what conversion makes of real ones, and ones with one thing wrong.

Every file has a name and is made the same way each time, so that what an engine was seen to do with it can be stored
under the name and compared later.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import ckptmorph
from ckptmorph.errors import CkptmorphError
from tests import eagle1
from tests.builders import (
    ABSENT,
    E3,
    Tensors,
    config,
    edited,
    floats,
    integers,
    read_folder,
    tensors,
    write_folder,
)

FIXTURES = Path(__file__).parents[1] / "fixtures"
TARGET = FIXTURES / "trained-target"
CLASSES = (
    "LlamaForCausalLM",
    "LlamaForCausalLMEagle",
    "LlamaForCausalLMEagle3",
    "EagleLlamaForCausalLM",
    "Eagle3LlamaForCausalLM",
    "Qwen2ForCausalLMEagle",
    "NoSuchForCausalLM",
)
FLAGS = (
    "bias",
    "fc_norm",
    "norm_before_fc",
    "norm_output",
    "attention_bias",
    "mlp_bias",
    "norm_before_residual",
    "tie_word_embeddings",
    "use_aux_norm",
)
TINY = {"vocab": 256, "draft": 96, "states": (2, 4, 5)}


@dataclass(frozen=True)
class File:
    """A drafter to be shown.

    Attributes:
        name: ``group/what`` or ``group/change:what``.
        method: how the engine is told to draft, EAGLE or EAGLE3.
        build: writes it into a folder that does not exist yet.
        whole: nothing is wrong with it.
        target: which of `targets` it is shown beside.
    """

    name: str
    method: str
    build: Callable[[Path], Path]
    whole: bool = False
    target: str = "trained"


def digest(*folders: Path) -> str:
    """What the files in folders hold, in 12 letters; side-cars, readmes and the padding of headers are left out."""
    seen = hashlib.sha256()
    for path in (path for folder in folders for path in sorted(folder.iterdir())):
        if path.suffix in (".safetensors", ".json") and not path.name.startswith(("ckptmorph", "manifest")):
            data = path.read_bytes()
            if path.suffix == ".safetensors":
                end = 8 + int.from_bytes(data[:8], "little")
                data = data[8:end].rstrip(b" ") + data[end:]
            seen.update(path.name.encode() + b"\0" + data)
    return seen.hexdigest()[:12]


def digested(file: File, folder: Path, targets: Mapping[str, Path]) -> str:
    """The digest of a file, with its target's if that is made, too."""
    return digest(folder, *([] if file.target == "trained" else [targets[file.target]]))


def _plain(name: str, method: str, content: Tensors, said: dict[str, Any], whole: bool = False) -> File:
    return File(name, method, lambda folder: write_folder(folder, content, said), whole)


# --- changes ---


def _changed(base: str, method: str, content: Tensors, said: dict[str, Any]) -> Iterator[File]:
    """One thing wrong at a time: tensors, then fields."""

    def file(change: str, tensors: Tensors, config: dict[str, Any]) -> File:
        return _plain(f"{base}/{change}", method, tensors, config)

    yield _plain(f"{base}/whole", method, content, said, whole=True)
    for name, (dtype, shape, _) in content.items():
        rest = {k: v for k, v in content.items() if k != name}
        yield file(f"drop:{name}", rest, said)
        first, _, last = name.rpartition(".")
        yield file(
            f"typo:{name}", {**rest, f"{first}.z{last[1:]}" if first else f"z{name[1:]}": content[name]}, said
        )
        if dtype in ("BF16", "F16", "F32"):
            for what, other in sizes(shape).items():
                yield file(f"{what}:{name}", {**rest, name: floats(name, other, dtype)}, said)
    for prefix in ("model.", "module.", "draft_model."):
        yield file(f"prefix:{prefix}", {prefix + k: v for k, v in content.items()}, said)
    one = next(iter(content))
    yield file(f"prefix-one:{one}", {"model." + k if k == one else k: v for k, v in content.items()}, said)
    yield file("extra:something.weight", {**content, "something.weight": floats("something", (4, 4))}, said)
    yield file("extra:rotary", {**content, "rotary_emb.inv_freq": floats("rotary", (8,))}, said)
    for path, value in leaves(said):
        yield file(f"absent:{path}", content, edited(said, {path: ABSENT}))
        if path not in ("architectures", "model_type", "torch_dtype"):
            yield file(f"null:{path}", content, edited(said, {path: None}))
        if isinstance(value, bool):
            yield file(f"flip:{path}", content, edited(said, {path: not value}))
        elif isinstance(value, int):
            yield file(f"plus:{path}", content, edited(said, {path: value + 1}))
    for named in CLASSES:
        yield file(f"class:{named}", content, edited(said, {"architectures": [named]}))
    for kind in ("qwen2", "qwen3", "mistral", "nonsense"):
        yield file(f"type:{kind}", content, edited(said, {"model_type": kind}))
    for flag in FLAGS:
        if flag not in said:
            yield file(f"set:{flag}", content, edited(said, {flag: True}))


def sizes(shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Wrong shapes."""
    out: dict[str, tuple[int, ...]] = {
        "taller": (shape[0] + 1, *shape[1:]),
        "shorter": (shape[0] - 1, *shape[1:]),
    }
    if len(shape) == 2:
        out |= {"wider": (shape[0], shape[1] + 1), "narrower": (shape[0], shape[1] - 1)}
    return out


def leaves(said: dict[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """Every field with its dotted path, those that hold others too."""
    for key, value in said.items():
        yield at + key, value
        if isinstance(value, dict):
            yield from leaves(value, f"{at}{key}.")


def id_lists(ids: list[int]) -> dict[str, list[int]]:
    """Other lists of layer ids, of a target with eight layers."""
    return {
        "up": [i + 1 for i in ids],
        "down": [i - 1 for i in ids],
        "back": ids[::-1],
        "two": ids[:2],
        "four": [*ids, ids[-1] + 1],
        "none": [],
        "zero": [0, *ids[1:]],
        "minus": [-1, *ids[1:]],
        "last": [*ids[:2], 7],
        "past": [*ids[:2], 8],
        "far": [*ids[:2], 50],
    }


def _ids(base: str, content: Tensors, said: dict[str, Any], path: str, ids: list[int]) -> Iterator[File]:
    for what, given in id_lists(ids).items():
        yield _plain(f"{base}/ids:{what}", "EAGLE3", content, edited(said, {path: given}))
    other = (
        "eagle_aux_hidden_state_layer_ids" if "." in path else "eagle_config.eagle_aux_hidden_state_layer_ids"
    )
    yield _plain(f"{base}/ids:elsewhere", "EAGLE3", content, edited(said, {path: ABSENT, other: ids}))


def _map(base: str, content: Tensors, said: dict[str, Any], chosen: tuple[int, ...]) -> Iterator[File]:
    for what, tensor in {"absolute": integers(chosen), "int32": integers(chosen, "I32")}.items():
        yield _plain(f"{base}/map:{what}", "EAGLE3", {**content, "d2t": tensor}, said)


# --- groups ---

SGLANG, VLLM = E3(layout="sglang", **TINY), E3(layout="vllm", **TINY)
EVERYTHING = {
    "embed": True,
    "qkv_bias": True,
    "o_bias": True,
    "fc_bias": True,
    "fc_norm": True,
    "input_norm": True,
}
BASES = {
    "sglang": {
        "e3": SGLANG,
        "e3-two": replace(SGLANG, layers=2),
        "e3-full": replace(SGLANG, **EVERYTHING),
    },
    "vllm": {
        "e3": VLLM,
        "e3-two": replace(VLLM, layers=2),
        "e3-full": replace(VLLM, **EVERYTHING),
        "e3-qwen": replace(VLLM, qk_norm=True),
        **{f"e3-{one}": replace(VLLM, **{one: True}) for one in EVERYTHING},
    },
    "speculators": {
        "e3": replace(VLLM, layout="speculators", embed=True),
        "e3-two": replace(VLLM, layout="speculators", layers=2, embed=True),
    },
}
# One engine takes seconds for each drafter. It is shown every change of one base, and the other bases as they are.
ALL_CHANGES = {"vllm": ("e3", "e1", "real", "converted")}
# All but one release of vLLM are spared these: they show how tensors and fields are read, which is the same at every
# release, or change what only the size of a parameter follows from.
ONE_RELEASE = {
    "vllm": ("0.32.0", ("typo", "taller", "shorter", "wider", "narrower", "prefix", "type", "null", "plus"))
}
# Without a size, the decoder's config class means one of several gigabytes, which no small machine can build.
HUGE = {
    "speculators": (
        *(f".{size}" for size in ("hidden_size", "intermediate_size", "vocab_size")),
        "absent:transformer_layer_config",
    )
}
FOREIGN = {f"foreign-{engine}": bases["e3"] for engine, bases in BASES.items()}


@cache
def eagle3(engine: str) -> tuple[File, ...]:
    """EAGLE-3 drafters of our own: in the engine's layout, with one thing wrong each; in other layouts, whole."""
    out: list[File] = []
    for base, spec in BASES[engine].items():
        content, said = tensors(spec), config(spec)
        out += [
            f for f in _changed(base, "EAGLE3", content, said) if not f.name.endswith(HUGE.get(engine, ()))
        ]
        if base == "e3":
            path = "eagle_config." if spec.layout == "sglang" else ""
            assert spec.spelt is not None
            out += _ids(base, content, said, f"{path}eagle_aux_hidden_state_layer_ids", list(spec.spelt))
            out += _map(base, content, said, spec.chosen)
    for base, spec in FOREIGN.items():
        if not base.endswith(engine):
            out.append(_plain(f"{base}/whole", "EAGLE3", tensors(spec), config(spec)))
    return tuple(out)


@cache
def eagle(engine: str) -> tuple[File, ...]:
    """EAGLE-1 drafters of our own making, in the same way. No tiny one of speculators: its real ones stand for it."""
    out: list[File] = []
    for layout in eagle1.ARCHITECTURES:
        for layers in (1, 2):
            base = "e1" + ("-two" if layers == 2 else "")
            content, said = eagle1.tensors(layers), eagle1.config(layout, layers)
            if layout == engine:
                out += _changed(base, "EAGLE", content, said)
            else:
                out.append(_plain(f"{base}-{layout}/whole", "EAGLE", content, said))
    return tuple(out)


def files(engine: str, release: str) -> tuple[File, ...]:
    """Everything an engine release is shown. One that takes seconds to start is not shown every variant."""
    from tests.engines.latent import latent  # which are made of the above
    from tests.engines.parallel import parallel

    more = (*latent(engine, release), *parallel(engine, release))
    every = (
        *eagle3(engine),
        *eagle(engine),
        *more,
        *converted(engine, release),
        *again(engine, release),
        *tabled(engine, release),
    )
    bases, (shown, once) = ALL_CHANGES.get(engine, ()), ONE_RELEASE.get(engine, (release, ()))
    few = {file.name for file in more}  # they are chosen already

    def right(file: File) -> bool:
        base, _, change = file.name.partition("/")
        slow = bool(bases) and base not in bases and change != "whole"
        spared = slow or (release != shown and change.partition(":")[0] in once)
        return file.name in few or not spared

    return tuple(file for file in every if right(file))


def sample(every: tuple[File, ...], number: int) -> tuple[File, ...]:
    """About so many of them, from everywhere, and the whole drafter of each group that is in it; always the same."""
    chosen = {file.name for file in every[:: max(1, len(every) // number)]}
    chosen |= {f"{name.partition('/')[0]}/whole" for name in chosen}
    return tuple(file for file in every if file.name in chosen)


@cache
def converted(engine: str, release: str) -> tuple[File, ...]:
    """What conversion makes of the real drafters for one engine release, and the drafters themselves."""
    out = []
    for folder in sorted(FIXTURES.iterdir()):
        if folder == TARGET or not (folder / "config.json").exists():
            continue
        found = ckptmorph.inspect(folder)
        method = {"eagle": "EAGLE", "eagle3": "EAGLE3"}.get(found.algorithm)
        if method is None:
            continue  # drafters of other algorithms have modules of their own
        out.append(File(f"real/{folder.name}", method, _same(folder)))
        out.append(
            File(f"converted/{folder.name}", method, _convert(folder, f"{engine}@{release}"), whole=True)
        )
    return tuple(out)


# What a drafter does not say, and its new layout asks.
FACTS = {"target_name": "example-org/tiny-target", "speculative_tokens": 3}
# They have no table of their own, and the library leaves it empty: `e3/drop:embed_tokens.weight` and the first of them
# as it is (`real/`) show that.
TABLELESS = (
    "speculators-0.9.0-converted-eagle3",
    "speculators-0.9.0-converted-eagle3-src",
    "trained-eagle3-vllm",
)


@cache
def again(engine: str, release: str) -> tuple[File, ...]:
    """Real EAGLE-3 drafters that came by way of another layout, for a library that reads one layout alone."""
    if engine != "speculators":
        return ()
    out = []
    for folder in sorted(FIXTURES.iterdir()):
        if folder == TARGET or folder.name in TABLELESS or not (folder / "config.json").exists():
            continue
        if ckptmorph.inspect(folder).algorithm == "eagle3":
            out += [
                File(f"again/{folder.name}:{way}", "EAGLE3", _again(folder, way, release))
                for way in ("as it is", "lmdeploy", "sglang", "vllm")
            ]
    return tuple(out)


WITH_EAGLE = ("0.3.0", "0.4.0.1")  # the later ones have no EAGLE-1 model


@cache
def tabled(engine: str, release: str) -> tuple[File, ...]:
    """A real EAGLE-1 drafter with tables of its own, for the releases that attach the target's; or naming no target."""
    if engine != "speculators" or release not in WITH_EAGLE:
        return ()
    folder = FIXTURES / "speculators-0.3.0-eagle"
    content, said = read_folder(folder), json.loads((folder / "config.json").read_text())
    own = {name: floats(name, (256, 64)) for name in ("embed_tokens.weight", "lm_head.weight")}
    changes: dict[str, tuple[Tensors, dict[str, Any]]] = {
        **{f"own:{name}": ({**content, name: table}, said) for name, table in own.items()},
        "own:both": ({**content, **own}, said),
        "untied:both": ({**content, **own}, edited(said, {"tie_word_embeddings": False})),
        "untied:none": (content, edited(said, {"tie_word_embeddings": False})),
        "null:name_or_path": (content, edited(said, {"speculators_config.verifier.name_or_path": None})),
        "taller:embed_tokens.weight": ({**content, "embed_tokens.weight": floats("tall", (257, 64))}, said),
    }
    return tuple(_plain(f"tabled/{what}", "EAGLE", *made) for what, made in changes.items())


def _again(folder: Path, way: str, release: str) -> Callable[[Path], Path]:
    """Convert it there, forget where it came from, and convert it to the library's layout."""
    stated = {"facts": FACTS, "target": TARGET, "aux_states": [2, 4, 5]}

    def build(out: Path) -> Path:
        there = folder
        if way != "as it is":
            there = out.with_name(f"{out.name}-on-the-way")
            ckptmorph.convert(folder, there, to=way, **stated)
            (there / "ckptmorph.json").unlink()
        ckptmorph.convert(there, out, to=f"speculators@{release}", **stated)
        return out

    return build


def _same(folder: Path) -> Callable[[Path], Path]:
    return lambda _out: folder


def _convert(folder: Path, to: str) -> Callable[[Path], Path]:
    stated: dict[str, Any] = {"aux_states": [2, 4, 5]} if "2layers" in folder.name else {}

    def build(out: Path) -> Path:
        ckptmorph.convert(folder, out, to=to, target=TARGET, **stated)
        return out

    return build


def built(files: tuple[File, ...], root: Path) -> Iterator[tuple[File, Path]]:
    """Write them; those that cannot be (a conversion that is refused) are left out. Targets go into the same folder."""
    for k, file in enumerate(files):
        try:
            yield file, file.build(root / str(k))
        except CkptmorphError:
            continue
