"""What a loader really does with a checkpoint, seen from below: which elements of which parameters are written.

No table of names is involved. A dispatch mode sees every operation of torch while weights are loaded: one that writes
into a parameter's memory marks the elements written, and what is made of a checkpoint tensor, be it alone or with
others, is followed: it is used if it is written somewhere, or kept by the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


def tensors_in(values: Any) -> list[torch.Tensor]:
    """Every tensor among arguments."""
    return [value for value in tree_flatten(values)[0] if isinstance(value, torch.Tensor)]


class Recorder(TorchDispatchMode):
    """Note writes into a model's parameters and uses of a checkpoint's tensors.

    Attributes:
        reads: checkpoint tensor to the parameters that were written from it.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.reads: dict[str, set[str]] = {}
        self._made: dict[int, tuple[StorageWeakRef, frozenset[str]]] = {}
        self._kept: list[torch.Tensor] = []
        self.parameters = dict(model.named_parameters(remove_duplicate=False))
        self._before = {name: p.data_ptr() for name, p in self.parameters.items()}
        self._owners = {p.untyped_storage().data_ptr(): name for name, p in self.parameters.items()}
        self._marks = {
            name: torch.zeros(p.untyped_storage().nbytes() // p.element_size(), dtype=torch.bool)
            for name, p in self.parameters.items()
        }

    def __enter__(self) -> Recorder:
        self._submit = ThreadPoolExecutor.submit
        ThreadPoolExecutor.submit = _at_once  # type: ignore[method-assign]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        ThreadPoolExecutor.submit = self._submit  # type: ignore[method-assign]

    def watch(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """The same weights, each known by its memory from now on."""
        for name, tensor in weights:
            self.reads.setdefault(name, set())
            self._kept.append(tensor)  # so that no other tensor gets its address
            self._learn(tensor, frozenset([name]))
            yield name, tensor

    def _learn(self, tensor: torch.Tensor, sources: frozenset[str]) -> None:
        storage = tensor.untyped_storage()
        self._made[storage.data_ptr()] = (StorageWeakRef(storage), sources | self._sources(tensor))

    def _sources(self, tensor: torch.Tensor) -> frozenset[str]:
        """The checkpoint tensors that one is, or was made of."""
        made, sources = self._made.get(tensor.untyped_storage().data_ptr(), (None, frozenset()))
        return frozenset() if made is None or made.expired() else sources

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = tensors_in((args, kwargs or {}))
        written = given[:1] if func._schema.is_mutable else []
        sources = frozenset().union(*map(self._sources, given))
        for target in written:
            owner = self._owners.get(target.untyped_storage().data_ptr())
            if owner is None:
                continue
            mark = self._marks[owner]
            torch.as_strided(mark, target.shape, target.stride(), target.storage_offset()).fill_(True)
            for source in sources:
                self.reads[source].add(owner)
        if sources:
            for result in [*tensors_in(out), *written]:
                if result.untyped_storage().data_ptr() not in self._owners:
                    self._learn(result, sources)
        return out

    def result(self) -> dict[str, Any]:
        """What was seen, as plain data."""
        now = dict(self.model.named_parameters(remove_duplicate=False))
        written: dict[str, int] = {}
        for name, parameter in now.items():
            if name not in self._before or parameter.data_ptr() != self._before[name]:
                written[name] = parameter.numel()  # put in place of the one that was built
                for source in self._sources(parameter):
                    self.reads[source].add(name)
            else:
                written[name] = int(self._marks[name].sum())
        ours = {tensor.untyped_storage().data_ptr() for tensor in self._kept}
        kept = [of for at, (made, of) in self._made.items() if at not in ours and not made.expired()]
        return {
            "parameters": {name: list(p.shape) for name, p in now.items()},
            "written": {name: n for name, n in written.items() if n},
            "reads": {name: sorted(to) for name, to in self.reads.items()},
            "computed": sorted(
                frozenset().union(*kept)
            ),  # what the model keeps elsewhere: a vocabulary map, say
        }


def _at_once(_pool: ThreadPoolExecutor, work: Any, /, *args: Any, **options: Any) -> Future[Any]:
    """In place of another thread, where no operation would be seen."""
    done: Future[Any] = Future()
    try:
        done.set_result(work(*args, **options))
    except BaseException as error:
        done.set_exception(error)
    return done
