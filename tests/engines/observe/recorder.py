"""What a loader really does with a checkpoint, seen from below: which elements of which parameters are written.

No table of names is involved. A dispatch mode sees every operation of torch while weights are loaded. The numbers that
an operation makes come from the tensors of the file that its inputs come from; where they are written into a
parameter's memory, the elements are marked. What a pool of threads should do is done at once, to be seen as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NOTHING: frozenset[str] = frozenset()


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """The range of memory that a tensor lies in; an empty one for a tensor that has none."""
    if tensor.device.type == "meta" or not tensor.numel():
        return 0, 0
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()


def tensors_in(values: Any) -> list[torch.Tensor]:
    """Every tensor among arguments or results."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def held(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers; one that has two names, under both."""
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


def by_chance(tensor: torch.Tensor) -> torch.Tensor:
    """Which elements of a new tensor nobody has set, in the order of memory.

    With deterministic algorithms PyTorch fills these with NaN, or with the greatest number if they are whole.
    """
    start, stop = span(tensor)
    size = (stop - start) // tensor.element_size()
    if not size or tensor.dtype == torch.bool:
        return torch.zeros(size, dtype=torch.bool)
    flat = torch.as_strided(tensor.detach(), (size,), (1,), tensor.storage_offset())
    return flat.isnan() if tensor.dtype.is_floating_point else flat == torch.iinfo(tensor.dtype).max


@dataclass
class Slot:
    """The memory of a parameter or buffer.

    Attributes:
        copied: the elements that hold numbers from the file.
        touched: those that anything was written to.
        chance: those that held nothing when the model was built.
    """

    tensor: torch.Tensor
    start: int
    stop: int
    copied: torch.Tensor
    touched: torch.Tensor
    chance: torch.Tensor

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Slot:
        start, stop = span(tensor)
        mask = torch.zeros((stop - start) // tensor.element_size(), dtype=torch.bool)
        return cls(tensor, start, stop, mask, mask.clone(), by_chance(tensor))


class Recorder(TorchDispatchMode):
    """Note writes into a model's parameters and buffers while it loads, and where the numbers come from.

    Attributes:
        reads: tensor of the file to what was written from it.
        computed: tensors of the file that went into a computation (a vocabulary map, say).
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.slots = {name: Slot.of(tensor) for name, tensor in held(model).items()}
        self.reads: dict[str, set[str]] = {}
        self.computed: set[str] = set()
        self._known: list[tuple[int, int, frozenset[str], torch.Tensor]] = []

    def __enter__(self) -> Recorder:
        self._submit = ThreadPoolExecutor.submit
        ThreadPoolExecutor.submit = _at_once  # type: ignore[method-assign]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        ThreadPoolExecutor.submit = self._submit  # type: ignore[method-assign]

    def watch(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors of the file, as the loader gets them."""
        for name, tensor in weights:
            self.reads.setdefault(name, set())
            self._learn(tensor, frozenset([name]))
            yield name, tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        written: list[torch.Tensor] = []
        others: list[torch.Tensor] = []
        for index, argument in enumerate(func._schema.arguments):
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            into = written if argument.alias_info is not None and argument.alias_info.is_write else others
            into += tensors_in(value)
        origins = NOTHING.union(*map(self._origins, others))
        out = func(*args, **kwargs)
        kept = [self._write(tensor, origins) for tensor in written]
        if not origins:
            return out
        made = tensors_in(out)
        moved = (
            func is torch.ops.aten.cat.default
        )  # still the numbers of the file: used when they are written
        if not moved and not any(kept) and (written or not any(self._origins(tensor) for tensor in made)):
            self.computed |= origins  # neither kept in the model nor only seen in another way
        for tensor in [*made, *written]:
            self._learn(tensor, origins)
        return out

    def result(self) -> dict[str, Any]:
        """What was seen, as plain data.

        ``written`` counts the elements that hold numbers of the file, ``filled`` those set to something else, and
        ``by_chance`` those that nobody ever set.
        """
        for name, tensor in held(self.model).items():
            old = self.slots.get(name)
            if old is None or span(tensor) != (
                old.start,
                old.stop,
            ):  # the loader put another tensor in its place
                slot = self.slots[name] = Slot.of(tensor)
                origins = self._origins(tensor)
                slot.touched.fill_(True)
                slot.copied.fill_(bool(origins))
                for origin in origins:
                    self.reads[origin].add(name)
        counts = {name: (int(s.copied.sum()), int(s.touched.sum())) for name, s in self.slots.items()}
        left = {name: int((slot.chance & ~slot.touched).sum()) for name, slot in self.slots.items()}
        return {
            "parameters": {
                name: list(p.shape) for name, p in self.model.named_parameters(remove_duplicate=False)
            },
            "written": {name: some for name, (some, _) in counts.items() if some},
            "filled": {name: every - some for name, (some, every) in counts.items() if every > some},
            "by_chance": {name: n for name, n in left.items() if n},
            "reads": {name: sorted(into) for name, into in self.reads.items()},
            "computed": sorted(self.computed),
        }

    def _origins(self, tensor: torch.Tensor) -> frozenset[str]:
        start, stop = span(tensor)
        return NOTHING.union(*(names for lo, hi, names, _ in self._known if lo < stop and start < hi))

    def _learn(self, tensor: torch.Tensor, origins: frozenset[str]) -> None:
        start, stop = span(tensor)
        if start < stop and not origins <= self._origins(tensor):
            self._known.append((start, stop, origins, tensor))  # kept, so that its memory is not used again

    def _write(self, tensor: torch.Tensor, origins: frozenset[str]) -> bool:
        start, stop = span(tensor)
        found = False
        for name, slot in self.slots.items():
            if not (slot.start < stop and start < slot.stop):
                continue
            found = True
            for mask in (slot.copied, slot.touched) if origins else (slot.touched,):
                if slot.start <= start and stop <= slot.stop and tensor.dtype == slot.tensor.dtype:
                    first = (start - slot.start) // tensor.element_size()
                    torch.as_strided(mask, tensor.shape, tensor.stride(), first).fill_(True)
                else:
                    mask.fill_(True)
            for origin in origins:
                self.reads[origin].add(name)
        return found


def _at_once(_pool: ThreadPoolExecutor, work: Any, /, *args: Any, **options: Any) -> Future[Any]:
    """In place of another thread, where no operation would be seen."""
    done: Future[Any] = Future()
    try:
        done.set_result(work(*args, **options))
    except BaseException as error:
        done.set_exception(error)
    return done
