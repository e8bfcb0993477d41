"""What every case asserts: nothing written, nothing changed, a message that names things, and a next step."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ckptmorph import api
from ckptmorph.errors import CkptmorphError
from ckptmorph.findings import Finding, errors_in
from ckptmorph.plans import Report
from ckptmorph.results import Verification
from tests.builders import Tensors, read_folder

LLAMA = "LlamaForCausalLM"
DEEPSEEK = "DeepseekV3ForCausalLM"
# The tensors of a one-layer drafter that stand under the decoder layer, without the layer's own name.
LAYER = tuple(
    f"{part}.weight"
    for part in (
        *(f"self_attn.{x}_proj" for x in "qkvo"),
        *(f"mlp.{x}_proj" for x in ("gate", "up", "down")),
        *("input_layernorm", "hidden_norm", "post_attention_layernorm"),
    )
)


def snapshot(folder: Path) -> dict[str, str]:
    """Everything below a folder with its content, to compare before and after."""
    found = {}
    for item in sorted(folder.rglob("*")):
        if item.is_symlink():
            what = "link " + os.readlink(item)
        elif item.is_dir():
            what = "folder"
        else:
            what = hashlib.sha256(item.read_bytes()).hexdigest()
        found[str(item.relative_to(folder))] = what
    return found


def convert(source: Path, to: str, name: str = "out", **options: Any) -> tuple[Path, Report]:
    """Convert into a folder beside the source; nothing else may appear, and the source stays as it was."""
    before = snapshot(source.parent)
    out = source.parent / name
    report = api.convert(source, out, to=to, **options)
    after = snapshot(source.parent)
    assert {k: v for k, v in after.items() if k != name and not k.startswith(f"{name}/")} == before
    listed_drops(source, out, report)
    return out, report


def listed_drops(source: Path, out: Path, report: Report) -> None:
    """B011: what went in and did not come out is in the report, with a reason, and nothing came from nowhere."""
    used = {name for step in report.tensors for name in step.sources}
    dropped = {drop.name for drop in report.dropped}
    assert all(drop.because for drop in report.dropped)
    assert used | dropped == set(names_in(source))
    assert not used & dropped
    assert {step.target for step in report.tensors} == set(names_in(out))


def names_in(folder: Path) -> Tensors:
    """Tensors of a folder that its index, if there is one, assigns to a file."""
    content = read_folder(folder)
    index = folder / "model.safetensors.index.json"
    if index.exists():
        assigned = json.loads(index.read_text())["weight_map"]
        return {name: tensor for name, tensor in content.items() if name in assigned}
    return content


def refuse(
    source: Path, to: str, kind: type[CkptmorphError], code: str, *words: str, **options: Any
) -> CkptmorphError:
    """The error that a conversion raises, after checking all that a refusal owes to its reader.

    ``words`` must stand in the messages: tensor or key, and value.
    """
    before = snapshot(source.parent)
    with pytest.raises(kind) as caught:
        api.convert(source, source.parent / "out", to=to, **options)
    assert snapshot(source.parent) == before, "something was written"
    error = caught.value
    assert type(error) is kind
    assert error.exit_code == {"UsageError": 2, "InputError": 3, "RefusedError": 4}[kind.__name__]
    found = errors_in(error.findings)
    assert code in {error.code, *(f.code for f in found)}, f"{error.code}: {error.message} {found}"
    text = said(error)
    assert [word for word in words if word not in text] == [], text
    assert error.next or (found and all(f.next for f in found)), f"no next step: {text} {found}"
    return error


def said(error: CkptmorphError) -> str:
    """All sentences of an error: its own, and those of its findings with their hints."""
    parts = [error.message, error.hint or ""]
    for finding in error.findings:
        parts += [finding.message, finding.hint or ""]
    return "\n".join(parts)


def finding(findings: tuple[Finding, ...], code: str) -> Finding:
    """The only finding of that code."""
    found = [f for f in findings if f.code == code]
    assert len(found) == 1, f"{code} in {[f.code for f in findings]}"
    return found[0]


def codes(findings: tuple[Finding, ...], severity: str | None = None) -> list[str]:
    """Codes, of one severity if wanted."""
    return [f.code for f in findings if severity is None or f.severity.value == severity]


def verify(source: Path, engine: str, **options: Any) -> Verification:
    """The prediction; looking changes nothing."""
    before = snapshot(source)
    result = api.verify(source, engine=engine, **options)
    assert snapshot(source) == before
    return result


def config_of(folder: Path) -> dict[str, Any]:
    """A folder's config."""
    said: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return said


def moved(source: Path, out: Path, names: dict[str, str]) -> None:
    """Every tensor of ``source`` is in ``out`` under its new name (the same one, if not listed), byte for byte."""
    ours, theirs = read_folder(source), read_folder(out)
    assert set(theirs) == {names.get(name, name) for name in ours}
    for name, tensor in ours.items():
        assert theirs[names.get(name, name)] == tensor, name


MIDLAYER_TO_LAYERS = {f"midlayer.{part}": f"layers.0.{part}" for part in LAYER}
LAYERS_TO_MIDLAYER = {new: old for old, new in MIDLAYER_TO_LAYERS.items()}
