"""What a loader really does with a checkpoint, seen from below: which elements of which parameters are written.

No table of names is involved. A dispatch mode sees every operation of torch while weights are loaded: one that writes
into a parameter's memory marks the elements written, and one that takes a checkpoint tensor as input marks that tensor
as used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

VIEWS = (
    "view",
    "narrow",
    "slice",
    "t.default",
    "transpose",
    "select",
    "as_strided",
    "detach",
    "alias",
    "expand",
)


def tensors_in(values: Any) -> list[torch.Tensor]:
    """Every tensor among arguments."""
    return [value for value in tree_flatten(values)[0] if isinstance(value, torch.Tensor)]


class Recorder(TorchDispatchMode):
    """Note writes into a model's parameters and uses of a checkpoint's tensors.

    Attributes:
        reads: checkpoint tensor to the parameters that were written from it.
        computed: checkpoint tensors that went into a computation of another kind (a vocabulary map, say).
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.reads: dict[str, set[str]] = {}
        self.computed: set[str] = set()
        self.seen: list[str] = []
        self.current: str | None = None
        self._sources: dict[int, str] = {}
        self._kept: list[torch.Tensor] = []
        self.parameters = dict(model.named_parameters(remove_duplicate=False))
        self._before = {name: p.data_ptr() for name, p in self.parameters.items()}
        self._owners = {p.untyped_storage().data_ptr(): name for name, p in self.parameters.items()}
        self._marks = {
            name: torch.zeros(p.untyped_storage().nbytes() // p.element_size(), dtype=torch.bool)
            for name, p in self.parameters.items()
        }

    def watch(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """The same weights, with a note of which one is being loaded."""
        for name, tensor in weights:
            self.current = name
            self.seen.append(name)
            self.reads.setdefault(name, set())
            self._sources[tensor.untyped_storage().data_ptr()] = name
            self._kept.append(tensor)  # so that no other tensor gets its address
            yield name, tensor
        self.current = None

    def _source(self, tensors: list[torch.Tensor]) -> str | None:
        for tensor in tensors:
            found = self._sources.get(tensor.untyped_storage().data_ptr())
            if found is not None:
                return found
        return None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = str(func)
        if any(view in name for view in VIEWS):
            return out
        given = tensors_in((args, kwargs or {}))
        written = [a for a in given[:1] if func._schema.is_mutable]
        source = self._source(given)
        for target in written:
            owner = self._owners.get(target.untyped_storage().data_ptr())
            if owner is not None and self.current is not None:
                mark = self._marks[owner]
                torch.as_strided(mark, target.shape, target.stride(), target.storage_offset()).fill_(True)
                self.reads[source or self.current].add(owner)
        if source is not None and not (written and self._owners.get(written[0].untyped_storage().data_ptr())):
            self.computed.add(source)
        return out

    def result(self) -> dict[str, Any]:
        """What was seen, as plain data."""
        now = dict(self.model.named_parameters(remove_duplicate=False))
        written: dict[str, int] = {}
        for name, parameter in now.items():
            if name not in self._before or parameter.data_ptr() != self._before[name]:
                written[name] = parameter.numel()  # put in place of the one that was built
                source = self._sources.get(parameter.untyped_storage().data_ptr())
                if source is not None:
                    self.reads[source].add(name)
            else:
                written[name] = int(self._marks[name].sum())
        return {
            "parameters": {name: list(p.shape) for name, p in now.items()},
            "written": {name: n for name, n in written.items() if n},
            "reads": {name: sorted(to) for name, to in self.reads.items()},
            "computed": sorted(self.computed),
        }
