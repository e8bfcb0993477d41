"""Load drafters with the real speculators library and write down what happened. Runs where speculators is installed.

    python speculators_loads.py JOBS.json OUT.json

The library's own `from_pretrained` does everything. Ours: the Hub is a folder here (whatever repository a drafter names
as its verifier, the target of the jobs is found), memory that nobody writes holds zeros, and what the model holds
right after transformers has loaded it is noted on the way. What became of a tensor is told by its numbers: the
parameters that hold them in the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open

from children import observe_all


def noting(noted: dict[str, Any]) -> None:
    """Keep, of the outermost load, what transformers calls unexpected, and what the model holds then."""
    real = transformers.PreTrainedModel.from_pretrained.__func__

    def from_pretrained(cls: Any, *args: Any, **options: Any) -> Any:
        model, info = real(cls, *args, **{**options, "output_loading_info": True})
        noted["info"] = info
        noted["fresh"] = {name: value.clone() for name, value in _held(model).items()}
        return model

    transformers.PreTrainedModel.from_pretrained = classmethod(from_pretrained)


def _held(model: Any) -> dict[str, torch.Tensor]:
    """What the model holds of its own and would save, without the target that releases before 0.5 attach whole."""
    state = model.state_dict()
    return {name: value.detach() for name, value in state.items() if not name.startswith("verifier.")}


def fresh_memory_is_zero() -> None:
    """Where transformers leaves memory as it comes, let it be zeros.

    A table of real size comes fresh from the system, which gives zeros. The small ones here would get what lay there
    before, and behave otherwise on every run.
    """
    torch.empty_like = lambda like, **options: torch.zeros_like(like, **options)


def _at_home(real: Any, folder: str) -> Any:
    def from_pretrained(name: Any, *args: Any, **options: Any) -> Any:
        away = isinstance(name, str) and not Path(name).exists()
        return real(folder if away else name, *args, **options)

    return from_pretrained


def hub_is(folder: str) -> None:
    """Every repository is this folder."""
    for auto in (transformers.AutoConfig, transformers.AutoModel, transformers.AutoModelForCausalLM):
        auto.from_pretrained = _at_home(auto.from_pretrained, folder)
    try:
        from speculators.utils import loading
    except ImportError:  # releases that never load a verifier's weights
        return
    loading._resolve_file = lambda _model, name: Path(folder) / name


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """The same numbers bit by bit, after the cast to the type that the model has. On the meta device there are none."""
    if one.shape != other.shape or one.is_meta or other.is_meta:
        return False
    cast = one.to(other.dtype).contiguous().view(-1).view(torch.uint8)
    return torch.equal(cast, other.contiguous().view(-1).view(torch.uint8))


def _tensors(folder: str) -> Iterator[tuple[str, torch.Tensor]]:
    for path in Path(folder).glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  safe_open is no mapping
                yield name, file.get_tensor(name)


def _where(name: str, tensor: torch.Tensor, held: dict[str, torch.Tensor]) -> list[str]:
    """The parameters and buffers that hold a tensor's numbers; if one of them has its name, only that one."""
    found = [own for own, value in held.items() if _same(tensor, value)]
    return [name] if name in found else found


def fates(drafter: str, noted: dict[str, Any], held: dict[str, torch.Tensor], out: dict[str, Any]) -> None:
    """What became of every tensor of the file.

    ``reads``: what holds its numbers. ``replaced``: they were there after the load, and something else is now.
    ``unequal``: there is something of its name, with other numbers. ``idle``: nothing came of it. ``cast``: from which
    type to which one the numbers went.
    """
    out.update(reads={}, replaced=[], unequal=[], idle=[])
    cast = set()
    for name, tensor in _tensors(drafter):
        now, before = _where(name, tensor, held), _where(name, tensor, noted["fresh"])
        if now or before:
            out["reads"][name] = now or before
            out["replaced"] += [] if now else [name]
            cast |= {f"{tensor.dtype} to {held[own].dtype}" for own in now if tensor.dtype != held[own].dtype}
        elif name in held and name not in noted["info"]["unexpected_keys"]:
            out["reads"][name] = [name]
            out["unequal"].append(name)
        else:
            out["idle"].append(name)
    out["cast"] = sorted(cast)


def left(model: Any, target: str, noted: dict[str, Any], out: dict[str, Any]) -> None:
    """Parameters that nothing of the file came into: the target's (``shared``), or initial values (``random``).

    Those that are one with another parameter of the drafter are ``tied``; the targets of the jobs are not.
    Of the target's, those that have no numbers are ``empty``: the target was loaded where nothing has any.
    """
    held, fresh, of_target = _held(model), noted["fresh"], dict(_tensors(target))
    filled = {own for to in out["reads"].values() for own in to}
    rest = {name: held[name] for name in out["parameters"] if name in held and name not in filled}
    own = dict(model.named_parameters(remove_duplicate=False))
    attached = {id(p) for name, p in own.items() if name.startswith("verifier.")}
    shared = {
        name
        for name, value in rest.items()
        if id(own[name]) in attached
        or (not value.is_meta and not _same(fresh[name], value))
        or any(_same(theirs, value) for theirs in of_target.values())
    }
    out["shared"] = sorted(shared)
    one = {id(p): name for name, p in own.items() if not name.startswith("verifier.")}
    out["tied"] = sorted(name for name in out["parameters"] if name in held and one[id(own[name])] != name)
    out["empty"] = sorted(name for name in shared if held[name].is_meta)
    out["random"] = {name: value.numel() for name, value in rest.items() if name not in shared}


def observe(job: dict[str, Any], drafter: dict[str, str], out: dict[str, Any]) -> None:
    """All about one drafter."""
    from speculators import SpeculatorModel

    out["stage"] = "load"
    noted: dict[str, Any] = {}
    noting(noted)
    hub_is(job["target"])
    fresh_memory_is_zero()
    torch.set_num_threads(1)
    model = SpeculatorModel.from_pretrained(drafter["path"])
    out["stage"] = "compare"
    out["class"] = type(model).__name__
    out["parameters"] = {n: list(p.shape) for n, p in model.named_parameters(remove_duplicate=False)}
    out["mismatched"] = sorted(str(key) for key in noted["info"].get("mismatched_keys", ()))
    fates(drafter["path"], noted, _held(model), out)
    left(model, job["target"], noted, out)
    out["stage"] = "done"


def main() -> None:
    """Import once, before any child, and observe."""
    import importlib.metadata

    import speculators  # noqa: F401

    observe_all(observe, importlib.metadata.version("speculators"))


if __name__ == "__main__":
    main()
