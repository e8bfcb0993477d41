"""Drafters with latent attention, whole and with one thing wrong: EAGLE-3 ones, and EAGLE-1 ones with experts.

They have many tensors and fields that are alike, so not everything is tried with every one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import ckptmorph
from tests import mla_builders, moe_builders
from tests.builders import ABSENT, Tensors, edited, floats, integers, write_folder
from tests.engines.files import File, id_lists, leaves, sizes
from tests.engines.targets import LAYERS, targets
from tests.mla_builders import MLA
from tests.moe_builders import MoE

IDS = (1, 3, 4)
# As those of .experts.0. and .experts.3., and of the first layer.
SAME = (".experts.1.", ".experts.2.", "layers.1.attention.", "layers.1.self_attn.")
NAMES = ("architectures", "model_type", "torch_dtype")
FLAGS = ("bias", "fc_norm", "norm_output", "tie_word_embeddings", "mla_use_nope")
E3 = {"sglang": MLA(ids=IDS), "vllm": MLA(layout="vllm", ids=(2, 4, 5))}
BEFORE = ("0.5.9", "0.5.11")  # SGLang without the EAGLE-3 class
ONLY = {"vllm": ("0.32.0",)}  # releases that are shown these; of other engines every one
# It takes seconds for each, and is spared tensors and fields of which it treats another one alike.
LIKE_OTHERS = re.compile(
    r"(l3|l1-deepseek)/(drop:.*(up_proj|kv_a_layernorm|kv_b_proj|o_proj|post_attention|q_b_proj|experts\.3).*"
    r"|drop:layers\.1\.(input_layernorm|mlp\.shared_experts\.down_proj).*|shorter:layers\.1\.input_layernorm.*"
    r"|ids:(down|minus|far|last)|absent:torch_dtype)"
    r"|l1-deepseek/[a-z]+:(rope_scaling\.(?!factor).*|torch_dtype|routed_scaling_factor|topk_group|scoring_func)"
)
# It takes some matrices of another size than it built.
OTHER_SIZES = {
    "l3": {
        "taller": ("layers.0.self_attn.q_a_proj", "layers.0.self_attn.kv_a_proj_with_mqa"),
        "wider": ("layers.0.self_attn.o_proj", "layers.0.mlp.down_proj"),
    },
    "l1-deepseek": {
        "taller": (
            *("layers.0.self_attn.q_a_proj", "layers.1.mlp.shared_experts.gate_proj"),
            *("layers.1.mlp.experts.0.gate_proj", "layers.1.mlp.experts.0.down_proj"),
        ),
        "wider": (
            *("layers.0.self_attn.o_proj", "layers.0.mlp.down_proj", "layers.1.mlp.shared_experts.down_proj"),
            "layers.1.mlp.experts.0.gate_proj",
        ),
        "shorter": ("layers.1.mlp.experts.0.gate_proj",),
        "narrower": ("layers.1.mlp.experts.0.gate_proj", "layers.1.mlp.experts.0.down_proj"),
    },
}
ROPE: dict[str, Mapping[str, Any]] = {
    **{f"null:rope_scaling.{k}": {f"rope_scaling.{k}": None} for k in ("beta_slow", "mscale_all_dim")},
    "null:rope_scaling.original": {"rope_scaling.original_max_position_embeddings": None},
    "absent:rope_scaling.factor": {"rope_scaling.factor": ABSENT},
    "plain:rope_scaling": {"rope_scaling.type": ABSENT, "rope_scaling.factor": None},
    "null:rope_theta": {"rope_theta": None},
}
E3_CLASSES = ("DeepseekV3ForCausalLM",)
E1 = {"sglang": ("sglang",), "vllm": ("mistral", "deepseek")}
E1_CLASSES = ("MistralLarge3ForCausalLM",)


def _file(
    name: str, method: str, target: str, content: Tensors, said: Mapping[str, Any], whole: bool = False
) -> File:
    return File(name, method, lambda folder: write_folder(folder, content, said), whole, target)


def changed(
    base: str,
    method: str,
    target: str,
    content: Tensors,
    said: dict[str, Any],
    classes: tuple[str, ...],
    flags: tuple[str, ...] = FLAGS,
) -> Iterator[File]:
    """One thing wrong at a time."""

    def file(change: str, tensors: Tensors, config: Mapping[str, Any]) -> File:
        return _file(f"{base}/{change}", method, target, tensors, config)

    def put(path: str, value: Any) -> File:
        what = "absent" if value is ABSENT else "null" if value is None else f"{value}".lower()
        return file(f"{what}:{path}", content, edited(said, {path: value}))

    yield _file(f"{base}/whole", method, target, content, said, whole=True)
    for number, (name, (dtype, shape, _)) in enumerate(content.items()):
        if any(part in name for part in SAME):
            continue
        rest = {k: v for k, v in content.items() if k != name}
        yield file(f"drop:{name}", rest, said)
        if number % 12 == 0:
            first, _, last = name.rpartition(".")
            yield file(f"typo:{name}", {**rest, f"{first}.z{last[1:]}".lstrip("."): content[name]}, said)
        if dtype in ("BF16", "F32") and number % 3 == 0:
            other = [*sizes(shape).items()]
            what, wrong = other[number // 3 % len(other)]
            yield file(f"{what}:{name}", {**rest, name: floats(name, wrong, dtype)}, said)
    yield file("prefix:module.", {"module." + k: v for k, v in content.items()}, said)
    yield file("extra:something.weight", {**content, "something.weight": floats("something", (4, 4))}, said)
    for number, (path, value) in enumerate(leaves(said)):
        if isinstance(value, bool):
            yield put(path, not value)
        elif isinstance(value, int) and number % 4 == 1:
            yield file(f"plus:{path}", content, edited(said, {path: value + 1}))
        else:
            yield put(path, ABSENT if number % 2 or path in NAMES else None)
    for named in classes:
        yield file(f"class:{named}", content, edited(said, {"architectures": [named]}))
    for kind in ("deepseek_v2", "nonsense"):
        yield file(f"type:{kind}", content, edited(said, {"model_type": kind}))
    for flag in flags:
        if flag not in said:
            yield file(f"set:{flag}", content, edited(said, {flag: True}))


def _sized(base: str, method: str, target: str, content: Tensors, said: Mapping[str, Any]) -> Iterator[File]:
    for what, names in OTHER_SIZES[base].items():
        for name in (f"{n}.weight" for n in names):
            dtype, shape, _ = content[name]
            other = {**content, name: floats(name, sizes(shape)[what], dtype)}
            yield _file(f"{base}/{what}:{name}", method, target, other, said)


# --- EAGLE-3 ---


def _e3(
    name: str, spec: MLA, edits: Mapping[str, Any] | None = None, *, without: str = "", whole: bool = False
) -> File:
    content = {k: v for k, v in mla_builders.tensors(spec).items() if k != without}
    return _file(name, "EAGLE3", "deepseek", content, edited(mla_builders.config(spec), edits or {}), whole)


def _eagle3(engine: str, release: str) -> Iterator[File]:
    spec = E3[engine]
    if release in BEFORE:
        yield _e3("l3/whole", spec)
        return
    content, said = mla_builders.tensors(spec), mla_builders.config(spec)
    yield from changed("l3", "EAGLE3", "deepseek", content, said, E3_CLASSES)
    if engine == "vllm":
        yield from _sized("l3", "EAGLE3", "deepseek", content, said)
        for what, edits in ROPE.items():
            yield _e3(f"l3/{what}", spec, edits)
    assert spec.ids is not None
    at = ("eagle_config." if engine == "sglang" else "") + "eagle_aux_hidden_state_layer_ids"
    for what, ids in id_lists(list(spec.ids)).items():
        yield _e3(f"l3/ids:{what}", spec, {at: ids})
    chosen = integers(mla_builders.scattered(spec.vocab, spec.draft))
    yield _file("l3/map:absolute", "EAGLE3", "deepseek", {**content, "d2t": chosen}, said)
    full = replace(spec, draft=spec.vocab)
    others: dict[str, MLA] = {
        "l3-extras": spec.having("fc_norm", "fc_bias", "input_norm", "embed"),
        "l3-norms": spec.having("fc_norm"),
        "l3-wide": replace(spec, target_hidden=24).having("embed"),
        "l3-vocabulary": full,
        "l3-q": replace(spec, q_rank=None),
        "l3-two": replace(spec, layers=2),
        "l3-float": replace(spec, dtype="F32"),
    } | {f"l3-{layout}": form for layout, form in E3.items() if layout != engine}
    for base, other in others.items():
        yield _e3(f"{base}/whole", other, whole=base in ("l3-norms", "l3-vocabulary"))
    yield _e3("l3-extras/absent:bias", others["l3-extras"], {"bias": ABSENT})
    yield _e3("l3-norms/drop:fc_norm.1.weight", others["l3-norms"], without="fc_norm.1.weight")
    yield _e3("l3-norms/instead:use_aux_norm", others["l3-norms"], {"fc_norm": ABSENT, "use_aux_norm": True})
    yield _e3("l3-wide/drop:embed_tokens.weight", others["l3-wide"], without="embed_tokens.weight")
    yield _e3("l3-vocabulary/absent:draft_vocab_size", full, {"draft_vocab_size": ABSENT})
    yield _e3("l3-vocabulary/drop:lm_head.weight", full, without="lm_head.weight")
    yield _e3("l3-q/absent:q_lora_rank", others["l3-q"], {"q_lora_rank": ABSENT})


# --- EAGLE-1 ---


def _said(spec: MoE, engine: str) -> dict[str, Any]:
    """The config. The engine with this form counts its layers from the target's last one on, of which there are few."""
    said = moe_builders.config(spec)
    if (engine, spec.form) == ("vllm", "deepseek") and spec.dense:
        said["first_k_dense_replace"] = LAYERS + spec.dense
    return said


def _e1(
    name: str,
    spec: MoE,
    edits: Mapping[str, Any] | None = None,
    *,
    engine: str,
    without: str = "",
    whole: bool = False,
) -> File:
    content = {k: v for k, v in moe_builders.tensors(spec).items() if k != without}
    return _file(name, "EAGLE", "mistral", content, edited(_said(spec, engine), edits or {}), whole)


# What no drafter in this form is asked: the class raises on every one, see `class-broken` in the contract.
BROKEN = ("vllm", "mistral")


def _eagle(engine: str) -> Iterator[File]:
    one = partial(_e1, engine=engine)
    for form in E1[engine]:
        base, spec = f"l1-{form}", MoE(form=form)
        if (engine, form) == BROKEN:
            yield one(f"{base}/whole", spec)
            yield one(f"{base}-dense/whole", replace(spec, dense=2))
            continue
        content, said = moe_builders.tensors(spec), _said(spec, engine)
        yield from changed(base, "EAGLE", "mistral", content, said, E1_CLASSES)
        if engine == "vllm":
            yield from _sized(base, "EAGLE", "mistral", content, said)
        others = {
            f"{base}-dense": replace(spec, dense=2),
            f"{base}-experts": replace(spec, dense=0),
            f"{base}-bias": spec.having("bias", "head", "embed"),
            f"{base}-alone": replace(spec, shared=0),
            f"{base}-q": replace(spec, q_rank=None),
            f"{base}-float": replace(spec, dtype="F32"),
        }
        for name, other in others.items():
            yield one(f"{name}/whole", other, whole=not name.endswith("float"))
        for field in ("first_k_dense_replace", "moe_layer_freq"):
            if field in _said(others[f"{base}-dense"], engine):
                yield one(f"{base}-dense/absent:{field}", others[f"{base}-dense"], {field: ABSENT})
        for number in (0, 1, 3) if engine == "sglang" else (0, 1, LAYERS, LAYERS + 1):
            yield one(
                f"{base}-dense/first:{number}", others[f"{base}-dense"], {"first_k_dense_replace": number}
            )
        biased = others[f"{base}-bias"]
        names = [k for k in moe_builders.tensors(biased) if "router_biases" in k or "correction_bias" in k]
        yield one(f"{base}-bias/drop:{names[0]}", biased, without=names[0])
        yield one(f"{base}-bias/null:topk_method", biased, {"topk_method": None})
        yield one(
            f"{base}-alone/absent:n_shared_experts", others[f"{base}-alone"], {"n_shared_experts": ABSENT}
        )
        # Not q_lora_rank: absent means a low rank, whose projection has a name that the whole drafter does not know.
    for form in moe_builders.FORMS:
        if form not in E1[engine]:
            yield one(f"l1-{form}/whole", MoE(form=form))


# --- all ---


@cache
def latent(engine: str, release: str) -> tuple[File, ...]:
    """What an engine release is shown, with what conversion makes for it of drafters in other forms."""
    if engine not in E3 or release not in ONLY.get(engine, (release,)):
        return ()
    to, out = f"{engine}@{release}", [*_eagle3(engine, release), *_eagle(engine)]
    for layout, spec in E3.items():
        build = _converted(to, "deepseek", mla_builders.tensors(spec), mla_builders.config(spec))
        out.append(File(f"l3-converted-{layout}/whole", "EAGLE3", build, True, "deepseek"))
    for form in moe_builders.FORMS:
        for extras in ((), ("bias",)):
            one = MoE(form=form).having(*extras)
            build = _converted(to, "mistral", moe_builders.tensors(one), _said(one, engine))
            name = "-".join(("l1-converted", form, *extras))
            out.append(File(f"{name}/whole", "EAGLE", build, True, "mistral"))
    return tuple(file for file in out if engine != "vllm" or not LIKE_OTHERS.fullmatch(file.name))


def _converted(to: str, target: str, content: Tensors, said: Mapping[str, Any]) -> Callable[[Path], Path]:
    def build(out: Path) -> Path:
        start = write_folder(out.with_name(f"{out.name}-start"), content, said)
        ckptmorph.convert(start, out, to=to, target=targets(out.parent)[target])
        return out

    return build
