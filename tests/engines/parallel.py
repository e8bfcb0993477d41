"""P-EAGLE drafters, which one forward pass of drafts several tokens: whole and with one thing wrong, in both forms.

They are EAGLE-3 drafters with few things more, and what they share with those is tried there with every tensor and
every field. Here most is tried once: each tensor is left out, some are misspelt or have another shape, each field is
changed in one way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import ckptmorph
from tests import peagle_builders
from tests.builders import ABSENT, Tensors, edited, floats, integers, write_folder
from tests.engines.files import FIXTURES, TARGET, TINY, File, id_lists
from tests.engines.latent import changed

RELEASE = "0.32.0"  # of vLLM, the only engine that drafts in parallel; it takes seconds for each
METHOD = "PEAGLE"
REAL = ("speculators-0.6.0-peagle", "speculators-0.9.0-peagle")
IDS = [*TINY["states"]]
TOKEN = 255
FACTS = {"mask_token_id": TOKEN, "target_name": "example-org/tiny-target", "speculative_tokens": 3}
CLASSES = ("PEagleDraftModel", "PeagleLlamaForCausalLM", "LlamaForCausalLM", "Eagle3Qwen3ForCausalLM")
FLAGS = (
    "fc_norm",
    "norm_before_fc",
    "norm_before_residual",
    "norm_output",
    "mlp_bias",
    "bias",
    "parallel_drafting",
)
# The token of masked positions, in every field that may name it.
TOKENS: dict[str, Mapping[str, Any]] = {
    "mask_token_id": {"mask_token_id": TOKEN},
    "pard_token": {"pard_token": TOKEN},
    "dspark_noise_token_id": {"dspark_noise_token_id": TOKEN},
    "dflash_config": {"dflash_config": {"mask_token_id": TOKEN}},
    "empty": {"dflash_config": {}},
    "null-before": {"mask_token_id": None, "pard_token": TOKEN},
    "null-last": {"pard_token": None},
}
# In the form with a config inside: the tensors, the fields that nobody but the library reads, and those of the layer.
KEPT = ("mask_hidden", "d2t", "fc.weight")
ASIDE = ("auto_map", "transformers_version", "speculators_version", "embed_requires_grad", "dtype")
LAYER = tuple(
    f"{where}.{name}"
    for where, names in {
        "speculators_config": ("proposal_methods", "verifier"),
        "transformer_layer_config": (
            *("attention_bias", "head_dim", "hidden_act", "mlp_bias", "num_key_value_heads", "rms_norm_eps"),
            *("max_position_embeddings", "model_type", "num_hidden_layers", "rope_parameters", "vocab_size"),
        ),
    }.items()
    for name in names
)
# In the flat form: parts of parameters of which another part is left out, and fields that no class reads.
FUSED = tuple(f"pe/drop:layers.0.{part}_proj" for part in ("self_attn.k", "self_attn.v", "mlp.up"))
UNREAD = ("bos_token_id", "eos_token_id", "torch_dtype")
QWEN = {"architectures": ["Eagle3Qwen3ForCausalLM"], "model_type": "qwen3"}


def content(layout: str, **knobs: Any) -> Tensors:
    """The tensors, of a drafter with one layer for the trained target."""
    return peagle_builders.content(layout, **{"layers": 1, **TINY, **knobs})


def said(layout: str, layers: int = 1) -> dict[str, Any]:
    """Its config."""
    found = peagle_builders.said(layout)
    inside = "transformer_layer_config." if layout == "speculators" else ""
    sizes = {f"{inside}vocab_size": TINY["vocab"], f"{inside}num_hidden_layers": layers}
    token = {"ptd_token_id" if layout == "vllm" else "mask_token_id": TOKEN}
    spelt = {"vllm": IDS, "speculators": IDS, "specforge": [h - 1 for h in IDS]}
    at = ("eagle_config." if layout == "specforge" else "") + "eagle_aux_hidden_state_layer_ids"
    ids = {at: spelt[layout]} if layout in spelt else {}
    if layout == "specforge":
        token = {}  # it writes none
    return edited(found, {"draft_vocab_size": TINY["draft"], **sizes, **token, **ids})


def _file(name: str, tensors: Tensors, config: Mapping[str, Any], whole: bool = False) -> File:
    return File(name, METHOD, lambda folder: write_folder(folder, tensors, config), whole)


def _flat() -> Iterator[File]:
    tensors, config = content("vllm"), said("vllm")
    for file in changed("pe", METHOD, "trained", tensors, config, CLASSES, FLAGS):
        if not file.name.startswith(FUSED) and file.name.partition(":")[2] not in UNREAD:
            yield file
    width = len(tensors["mask_hidden"][2]) // 2
    shapes = {
        "flat": (width,),
        "three": (1, 1, width),
        "turned": (width, 1),
        "shorter": (1, width - 1),
        "one": (1,),
    }
    for what, shape in shapes.items():
        yield _file(
            f"pe/mask_hidden:{what}", {**tensors, "mask_hidden": floats("mask_hidden", shape)}, config
        )
    yield _file("pe/typo:mask_hidden", _renamed(tensors, "mask_hidden", "mask_hiden"), config)
    yield _file("pe/inside:mask_hidden", _renamed(tensors, "mask_hidden", "model.mask_hidden"), config)
    for what, edits in TOKENS.items():
        yield _file(f"pe/token:{what}", tensors, edited(config, {"ptd_token_id": ABSENT, **edits}))
    for what, base in {"inside": 10000.0, "null-inside": None}.items():
        form = {"rope_theta": ABSENT, "rope_parameters": {"rope_theta": base, "rope_type": "default"}}
        yield _file(f"pe/rope:{what}", tensors, edited(config, form))
    lists = id_lists(IDS)
    for what in ("up", "four", "none", "back"):
        yield _file(
            f"pe/ids:{what}", tensors, edited(config, {"eagle_aux_hidden_state_layer_ids": lists[what]})
        )
    inside = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": IDS, "use_aux_hidden_state": True}}
    elsewhere = {"eagle_aux_hidden_state_layer_ids": ABSENT, **inside}
    yield _file("pe/ids:elsewhere", tensors, edited(config, elsewhere))
    yield _file(
        "pe/set:use_aux_hidden_state",
        tensors,
        edited(config, {"eagle_config": {"use_aux_hidden_state": False}}),
    )
    absolute = integers(peagle_builders.E3(**TINY).chosen)
    yield _file("pe/map:absolute", {**tensors, "d2t": absolute}, config)

    yield _file("pe-two/whole", content("vllm", layers=2), said("vllm", 2), whole=True)
    full = content("vllm", draft=TINY["vocab"], form="none")
    yield _file("pe-vocabulary/whole", full, edited(config, {"draft_vocab_size": TINY["vocab"]}), whole=True)
    yield _file("pe-vocabulary/absent:draft_vocab_size", full, edited(config, {"draft_vocab_size": ABSENT}))
    for knob, flag in {"fc_norm": "fc_norm", "input_norm": "norm_before_fc", "fc_bias": "bias"}.items():
        more = content("vllm", **{knob: True})
        yield _file(f"pe-{knob}/whole", more, edited(config, {flag: True}))
        yield _file(f"pe-{knob}/absent:{flag}", more, config)
    tensors, config = content("vllm", qk_norm=True), edited(config, QWEN)
    yield _file("pe-qwen/whole", tensors, config, whole=True)
    for name in ("mask_hidden", "layers.0.self_attn.q_norm.weight", "embed_tokens.weight"):
        yield _file(f"pe-qwen/drop:{name}", {k: v for k, v in tensors.items() if k != name}, config)
    yield _file(
        "pe-qwen/set:use_aux_hidden_state",
        tensors,
        edited(config, {"eagle_config": {"use_aux_hidden_state": False}}),
    )
    for what in ("head_dim", "num_key_value_heads", "ptd_token_id"):
        yield _file(f"pe-qwen/absent:{what}", tensors, edited(config, {what: ABSENT}))


def _renamed(tensors: Tensors, old: str, new: str) -> Tensors:
    return {new if name == old else name: tensor for name, tensor in tensors.items()}


def _nested() -> Iterator[File]:
    """The speculators form: its fields, and the tensors that only a P-EAGLE drafter must have."""
    tensors, config = content("speculators"), said("speculators")
    for file in changed("ps", METHOD, "trained", tensors, config, (), ("norm_output",)):
        what, _, at = file.name.partition("/")[2].partition(":")
        if (
            at in KEPT
            or what in ("whole", "set")
            or (at in config and at not in ASIDE)
            or at.startswith(LAYER)
        ):
            yield file
    inside = {
        f"transformer_layer_config.{k}": v for k, v in {"fc_norm": True, "model_type": "mistral"}.items()
    }
    for path, value in inside.items():
        yield _file(f"ps/inside:{path.rpartition('.')[2]}", tensors, edited(config, {path: value}))
    tensors = content("speculators", fc_norm=True)
    yield _file("ps-fc_norm/whole", tensors, edited(config, {"fc_norm": True}))
    yield _file("ps-fc_norm/inside", tensors, edited(config, {"transformer_layer_config.fc_norm": True}))
    # As many keys as queries: then no shape tells what the engine takes for a number that is missing.
    kind, heads = "transformer_layer_config.model_type", "transformer_layer_config.num_key_value_heads"
    for family in ("llama", "qwen3"):
        base, alike = f"ps-{family}", edited(config, {kind: family, heads: 4})
        tensors = content("speculators", kv=4, qk_norm=family == "qwen3")
        yield _file(f"{base}/whole", tensors, alike, whole=True)
        yield _file(f"{base}/absent:num_key_value_heads", tensors, edited(alike, {heads: ABSENT}))
        yield _file(f"{base}/null:num_key_value_heads", tensors, edited(alike, {heads: None}))
        yield _file(
            f"{base}/absent:head_dim", tensors, edited(alike, {"transformer_layer_config.head_dim": ABSENT})
        )


@cache
def parallel(engine: str, release: str) -> tuple[File, ...]:
    """What an engine release is shown, with what conversion makes for it of drafters in other forms."""
    if (engine, release) != ("vllm", RELEASE):
        return ()
    out, to = [*_flat(), *_nested()], f"{engine}@{release}"
    for layout in peagle_builders.LAYOUTS:
        if layout not in ("vllm", "speculators"):
            out.append(_file(f"pe-{layout}/whole", content(layout), said(layout)))
        out.append(File(f"pe-converted-{layout}/whole", METHOD, _converted(to, layout), whole=True))
    for name in REAL:
        out.append(File(f"pe-real/{name}", METHOD, _real(name)))
        out.append(File(f"pe-real-converted/{name}", METHOD, _real(name, to)))
    return tuple(out)


def _converted(to: str, layout: str) -> Callable[[Path], Path]:
    def build(out: Path) -> Path:
        start = write_folder(out.with_name(f"{out.name}-start"), content(layout), said(layout))
        stated = FACTS if layout == "specforge" else {}
        states = IDS if layout == "nemo-automodel" else None
        ckptmorph.convert(start, out, to=to, target=TARGET, facts=stated, aux_states=states)
        return out

    return build


def _real(name: str, to: str | None = None) -> Callable[[Path], Path]:
    def build(out: Path) -> Path:
        if to is None:
            return FIXTURES / name
        ckptmorph.convert(FIXTURES / name, out, to=to, target=TARGET)
        return out

    return build
