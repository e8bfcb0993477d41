"""Quantised drafters: does the config fit the tensors? Which scales belong to weights, which layers are left out?

Only the consistency of the file itself is judged. Nothing here dequantises or converts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from ckptmorph.errors import CkptmorphError
from ckptmorph.findings import Finding, error, note, warning
from ckptmorph.matching import fold
from ckptmorph.module_lists import Rule
from ckptmorph.schema.paths import ABSENT, get_path
from ckptmorph.schema.quantised import QuantFormat, Quantisation, Stored
from ckptmorph.storage.folder import Folder
from ckptmorph.storage.jsontext import load_json

PLAIN = frozenset({"BF16", "F16", "F32", "F64"})
_AGAIN = "export the quantised drafter again, or take the drafter as it was before"


class Quantised(Struct, frozen=True):
    """What was found out about a folder.

    Attributes:
        method: the format that the config (or its side file) names; None when nothing says that it is quantised.
        form: that format, if it is known here.
        at: path of the settings in the config; None when they stand in a side file, or nowhere.
        weights: quantised weights, by the names in the file. ``packed`` are those of another shape than the numbers.
        scales: tensors that belong to them.
    """

    method: str | None = None
    form: QuantFormat | None = None
    at: str | None = None
    weights: tuple[str, ...] = ()
    packed: tuple[str, ...] = ()
    scales: frozenset[str] = frozenset()
    findings: tuple[Finding, ...] = ()

    def without_scales(self, folder: Folder) -> Folder:
        """The folder as if the scales were not in it."""
        if not self.scales:
            return folder
        kept = {name: info for name, info in folder.tensors.items() if name not in self.scales}
        return replace(folder, tensors=kept)


class _Module(Struct):
    parts: dict[str, str] = field(default_factory=dict)  # last part to dtype
    sizes: dict[str, int] = field(default_factory=dict)  # last part to number of dimensions


def quantisation_of(
    folder: Folder, known: Iterable[Quantisation], target_config: Mapping[str, Any]
) -> Quantised:
    """Compare what the config says about quantisation with the tensors. Headers only; raises nothing of its own.

    Codes: ``quantisation-copied``, ``quantisation-not-stated``, ``unknown-quantisation``, ``scale-without-weight``,
    ``weight-without-scale``, ``quantised-though-ignored``, ``plain-though-quantised``, ``ignore-names-nothing``.
    """
    for listing in known:
        return _Look(folder, listing, target_config).run()
    return Quantised()


class _Look:
    def __init__(self, folder: Folder, listing: Quantisation, target_config: Mapping[str, Any]) -> None:
        self.folder, self.listing, self.target_config = folder, listing, target_config
        self.at, self.said = self._settings()
        self.format: QuantFormat | None = None
        self.modules: dict[str, _Module] = {}
        for name, info in folder.tensors.items():
            module, _, part = name.rpartition(".")
            entry = self.modules.setdefault(module, _Module())
            entry.parts[part], entry.sizes[part] = info.dtype, len(info.shape)
        self.findings: list[Finding] = []

    def _settings(self) -> tuple[str | None, dict[str, Any] | None]:
        for path in self.listing.at:
            value = get_path(self.folder.config, path)
            if isinstance(value, dict) and value:
                return self._inner(path, value)
        for form in self.listing.formats:
            if form.side_file in self.folder.other_files and form.side_file is not None:
                try:
                    whole, _ = load_json(self.folder.file_path(form.side_file))
                except CkptmorphError:
                    continue
                value = get_path(whole, form.side_at) if form.side_at else whole
                if isinstance(value, dict) and value:
                    return form.side_file, {"quant_method": form.methods[0], **value}
        return None, None

    def _inner(self, path: str, value: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """The settings themselves, which some tools write into the config just as into their side file."""
        for form in self.listing.formats:
            inner = value.get(form.side_at)
            if "quant_method" not in value and isinstance(inner, dict) and inner:
                return f"{path}.{form.side_at}", {"quant_method": form.methods[0], **inner}
        return path, value

    def run(self) -> Quantised:
        forms = self.listing.formats
        if self.said is not None:
            method = str(self.said.get("quant_method"))
            self.format = next((f for f in forms if method in f.methods), None)
            if self.format is None:
                known = ", ".join(m for f in forms for m in f.methods)
                text = f"{self.at}.quant_method is {method}, which is not known here; nothing about it was checked"
                self.findings.append(
                    warning("unknown-quantisation", text, where=self.at, hint=f"known: {known}")
                )
                return Quantised(method=method, findings=tuple(self.findings))
            forms = [self.format]
        stored = {m: s for m, e in self.modules.items() if (s := _stored(e, forms)) is not None}
        scales = frozenset(self._scales(stored, forms))
        if self.said is None:
            return self._not_stated(stored, scales)
        assert self.format is not None
        if not stored:
            return self._copied(scales)
        self.findings += fold([*self._pairs(stored), *self._lists(stored)])
        inside = get_path(self.folder.config, self.at or "") if self.at else ABSENT
        return Quantised(
            str(self.said.get("quant_method")),
            self.format,
            self.at if isinstance(inside, dict) else None,
            tuple(f"{m}.{s.name}" for m, s in stored.items()),
            tuple(f"{m}.{s.name}" for m, s in stored.items() if s.packed),
            scales,
            tuple(self.findings),
        )

    def _scales(self, stored: Mapping[str, Stored], forms: list[QuantFormat]) -> Iterator[str]:
        for module, entry in self.modules.items():
            beside = [p for p in entry.parts if p in self.listing.beside]
            mine = [p for p in entry.parts if p in _names(forms)] if module in stored else []
            yield from (f"{module}.{part}" for part in [*beside, *mine])

    def _not_stated(self, stored: Mapping[str, Stored], scales: frozenset[str]) -> Quantised:
        if not stored:
            return Quantised(scales=scales)
        names = [f"{m}.{s.name}" for m, s in stored.items()]
        text = (
            f"{names[0]} and {len(names) - 1} more are quantised ({self.folder.tensors[names[0]].dtype}), but "
            f"config.json has no {self.listing.at[0]}"
            if len(names) > 1
            else f"{names[0]} is quantised ({self.folder.tensors[names[0]].dtype}), but config.json has no "
            f"{self.listing.at[0]}"
        )
        hint = "a reader takes the bytes for plain numbers, or refuses them; the settings were lost"
        found = error("quantisation-not-stated", text, where=self.listing.at[0], hint=hint, next=_AGAIN)
        return Quantised(weights=tuple(names), scales=scales, findings=(found,))

    def _copied(self, scales: frozenset[str]) -> Quantised:
        """The config speaks of quantisation, and no tensor is quantised."""
        assert self.said is not None and self.at is not None
        theirs = next(
            (v for p in self.listing.at if isinstance(v := get_path(self.target_config, p), dict)), None
        )
        whose = " (it is the target's, word for word)" if theirs == self.said else ""
        dtypes = sorted({info.dtype for info in self.folder.tensors.values() if info.dtype in PLAIN})
        text = (
            f"{self.at} says {self.said.get('quant_method')}{whose}, but no tensor is quantised: "
            f"all weights are {' and '.join(dtypes)}, and there is no scale"
        )
        found = error(
            "quantisation-copied",
            text,
            where=self.at,
            hint="an engine builds quantised layers from it and finds no scales: it raises, or computes nonsense",
            next=f"take {self.at} out of config.json",
        )
        return Quantised(str(self.said.get("quant_method")), scales=scales, findings=(found,))

    # --- tensors that belong together ---

    def _pairs(self, stored: Mapping[str, Stored]) -> Iterator[Finding]:
        assert self.format is not None
        names = _names([self.format])
        for module, entry in self.modules.items():
            way = stored.get(module)
            if way is not None:
                for group in way.needs:
                    if not any(part in entry.parts for part in group):
                        wanted = " or ".join(f"{module}.{part}" for part in group)
                        weight = f"{module}.{way.name}"
                        yield error(
                            "weight-without-scale",
                            f"{weight} is {entry.parts[way.name]}, but {wanted} is not in the file",
                            where=weight,
                            hint="without its scale a quantised weight means nothing",
                            next=_AGAIN,
                        )
                continue
            lost = [part for part in entry.parts if part in names and part not in self.listing.beside]
            for part in lost:
                plain = "weight" in entry.parts
                yield error(
                    "scale-without-weight",
                    f"{module}.{part} is in the file, but "
                    + (
                        f"{module}.weight is {entry.parts['weight']}, which has no scale"
                        if plain
                        else f"there is no weight of {module}"
                    ),
                    where=f"{module}.{part}",
                    hint="the weight was lost, renamed without its scales, or saved again unquantised",
                    next=_AGAIN,
                )

    # --- lists of layers ---

    def _lists(self, stored: Mapping[str, Stored]) -> Iterator[Finding]:
        assert self.format is not None and self.said is not None
        place, entries = self._ignored()
        weighty = [m for m, e in self.modules.items() if m and ("weight" in e.parts or m in stored)]
        rules = [Rule(entry, self.format) for entry in entries]
        for module in stored:
            rule = next((r for r in rules if r.names(module)), None)
            if rule is not None:
                yield error(
                    "quantised-though-ignored",
                    f"{module} is quantised in the file, but {place} names it ({rule.entry})",
                    where=place,
                    hint="an engine builds it as a plain layer and reads the quantised bytes as numbers",
                    next=f"take it out of {place}, or export the drafter again",
                )
        if self._everything():
            for module in weighty:
                entry = self.modules[module]
                plain = entry.parts.get("weight") in PLAIN and entry.sizes.get("weight") == 2
                exempt = module.rpartition(".")[2] in self.listing.exempt
                if plain and not exempt and module not in stored and not any(r.names(module) for r in rules):
                    yield error(
                        "plain-though-quantised",
                        f"{module}.weight is {entry.parts['weight']}, but {self.at} does not leave {module} out",
                        where=f"{module}.weight",
                        hint="an engine builds a quantised layer for it and misses its scale",
                        next=f"add it to {place}",
                    )
        for rule in rules:
            if rule.checkable and not any(rule.may_mean(module) for module in weighty):
                yield warning(
                    "ignore-names-nothing",
                    f"{place} names {rule.entry}, which no module of this drafter is called",
                    where=place,
                    hint="the list was made for another model, or the tensors were renamed without it",
                    next="rename the entry like the tensors, or take it out",
                )
        if any(not rule.checkable for rule in rules):
            text = ", ".join(r.entry[:60] for r in rules if not r.checkable)
            yield note("ignore-not-checked", f"{place}: not checked: {text}", where=place)

    def _ignored(self) -> tuple[str, list[str]]:
        assert self.format is not None and self.said is not None and self.at is not None
        for path in self.format.ignore_at:
            value = get_path(self.said, path)
            if isinstance(value, list):
                return f"{self.at}.{path}", [v for v in value if isinstance(v, str)]
        return f"{self.at}.{(self.format.ignore_at or ['ignore'])[0]}", []

    def _everything(self) -> bool:
        """Whether every linear layer is meant that is not left out."""
        assert self.format is not None and self.said is not None
        if self.format.targets_at is None:
            return True
        found = list(_walk(self.said, self.format.targets_at.split(".")))
        return bool(found) and all(
            isinstance(v, list) and any(t in self.format.all_targets for t in v) for v in found
        )


def _stored(entry: _Module, forms: list[QuantFormat]) -> Stored | None:
    for form in forms:
        for way in form.stored:
            if entry.parts.get(way.name) in way.dtypes:
                return way
    return None


def _names(forms: list[QuantFormat]) -> set[str]:
    needed = {part for f in forms for way in f.stored for group in way.needs for part in group}
    return needed | {part for f in forms for part in f.extra}


def _walk(value: Any, steps: list[str]) -> Iterator[Any]:
    if not steps:
        yield value
    elif isinstance(value, dict):
        for key in value if steps[0] == "*" else [k for k in steps[:1] if value.get(k, ABSENT) is not ABSENT]:
            yield from _walk(value[key], steps[1:])
