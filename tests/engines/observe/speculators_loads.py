"""Load drafters with the real speculators library and write down what happened. Runs where speculators is installed.

    python speculators_loads.py JOBS.json OUT.json

The library's own `from_pretrained` does everything. Ours: the Hub is a folder here (whatever repository a drafter names
as its verifier, the target of the jobs is found), and what transformers reports of its loading is noted on the way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open

from children import observe_all


def noting(noted: dict[str, Any]) -> None:
    """Let transformers report, for the innermost load, which names were missing and which unexpected."""
    real = transformers.PreTrainedModel.from_pretrained.__func__

    def from_pretrained(cls: Any, *args: Any, **options: Any) -> Any:
        model, info = real(cls, *args, **{**options, "output_loading_info": True})
        noted["info"] = info
        noted["fresh"] = {n: p.detach().clone() for n, p in _all(model).items() if n in info["missing_keys"]}
        return model

    transformers.PreTrainedModel.from_pretrained = classmethod(from_pretrained)


def _all(model: Any) -> dict[str, torch.Tensor]:
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


def _at_home(real: Any, folder: str) -> Any:
    return lambda name, *args, **options: real(name if Path(name).exists() else folder, *args, **options)


def hub_is(folder: str) -> None:
    """Every repository is this folder."""
    for auto in (transformers.AutoConfig, transformers.AutoModel, transformers.AutoModelForCausalLM):
        auto.from_pretrained = _at_home(auto.from_pretrained, folder)
    try:
        from speculators.utils import loading
    except ImportError:  # releases that never load a verifier's weights
        return
    loading._resolve_file = lambda _model, name: Path(folder) / name


def observe(job: dict[str, Any], drafter: dict[str, str], out: dict[str, Any]) -> None:
    """All about one drafter."""
    from speculators import SpeculatorModel

    out["stage"] = "load"
    noted: dict[str, Any] = {}
    noting(noted)
    hub_is(job["target"])
    torch.set_num_threads(1)
    model = SpeculatorModel.from_pretrained(drafter["path"])
    out["stage"] = "compare"
    held = _all(model)
    out["class"] = type(model).__name__
    out["parameters"] = {n: list(p.shape) for n, p in model.named_parameters(remove_duplicate=False)}
    missing = set(noted["info"]["missing_keys"])
    out["shared"] = sorted(n for n, before in noted["fresh"].items() if not torch.equal(before, held[n]))
    out["random"] = {
        n: held[n].numel() for n in sorted(missing - set(out["shared"])) if n in out["parameters"]
    }
    out["mismatched"] = sorted(str(key) for key in noted["info"].get("mismatched_keys", ()))
    out["idle"] = sorted(noted["info"]["unexpected_keys"])
    out["reads"], out["unequal"] = {}, []
    for path in Path(drafter["path"]).glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  safe_open is no mapping
                if name in held and name not in out["idle"]:
                    out["reads"][name] = [name]
                    if not torch.equal(file.get_tensor(name), held[name].cpu()):
                        out["unequal"].append(name)
                elif name not in out["idle"]:
                    out["idle"].append(name)
    out["stage"] = "done"


def main() -> None:
    """Import once, before any child, and observe."""
    import importlib.metadata

    import speculators  # noqa: F401

    observe_all(observe, importlib.metadata.version("speculators"))


if __name__ == "__main__":
    main()
