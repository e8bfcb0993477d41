"""Quantised weights on their way: opaque bytes, with the scales and the lists of modules that belong to them.

Nothing is dequantised. A scale follows its weight: its name, and the order of its rows. Whatever else would happen to a
quantised weight is refused, because its scales would no longer fit it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from ckptmorph.canonical import Carried, Drafter, Request
from ckptmorph.errors import ELSEWHERE
from ckptmorph.facts import Known
from ckptmorph.findings import Finding, error, note, warning
from ckptmorph.module_lists import bare, renamed_in, with_parents
from ckptmorph.ops.nodes import Node, Source
from ckptmorph.outputs import Output
from ckptmorph.quant import Quantised
from ckptmorph.reader import read_drafter
from ckptmorph.scales import moved, scale_beside
from ckptmorph.schema.engines import Engine
from ckptmorph.schema.models import Layout
from ckptmorph.schema.paths import get_path, set_path
from ckptmorph.schema.registry import Registry
from ckptmorph.storage.folder import Folder
from ckptmorph.write import compose

FACT, REFUSED = "quantization_config", "quantised-drafter"
_BEFORE = "convert the drafter as it was before it was quantised"


# --- reading


def read_quantised(
    registry: Registry, layout: Layout, folder: Folder, request: Request, quantised: Quantised
) -> Drafter:
    """`read_drafter` for a folder whose weights may be quantised, with what was found out about that.

    If they can be carried, ``carried`` of the result says so. Otherwise the finding that refuses them says why not.
    """
    shown = quantised.without_scales(folder)
    drafter = read_drafter(registry, layout, shown.tensors, folder.config, folder.read, request)
    drafter.findings += quantised.findings
    if quantised.method is None:
        return drafter
    names = {bare(_module(real)): _module(name) for name, real in _single(drafter).items()}
    scales = {_renamed(name, names) or name: _as_it_is(folder, name) for name in sorted(quantised.scales)}
    why = _not_carried(quantised)
    if why is None and any(f.code == "wrapper-stripped" for f in drafter.findings):
        why = "whether its lists of modules mean names with or without the wrapper is not known"
    if why is None and len(scales) < len(quantised.scales):
        why = "two of its scales are called alike"
    if why is not None:
        drafter.findings = [_because(f, why) if f.code == REFUSED else f for f in drafter.findings]
        return drafter
    weights = frozenset(quantised.weights)
    drafter.findings = [f for f in drafter.findings if not _overruled(f, weights)]
    places = tuple(at for listing in registry.quantisations.values() for at in listing.at)
    assert quantised.form is not None and quantised.at is not None
    drafter.carried = Carried(
        form=quantised.form,
        inner=quantised.at.removeprefix(next(p for p in places if _within(quantised.at, p))).strip("."),
        at=places,
        weights=weights,
        scales=scales,
    )
    if quantised.form.side_file in folder.other_files:
        text = f"{quantised.form.side_file} stays behind: config.json has the settings, with the names of the output"
        drafter.findings.append(note("side-file-left", text, where=quantised.form.side_file))
    said = drafter.facts.get(FACT)
    if said is not None and isinstance(said.value, dict):
        value, _ = _renamed_settings(drafter.carried, said.value, names)
        drafter.carried = replace(drafter.carried, settings=said.value)
        drafter.facts[FACT] = Known(value=value, evidence=said.evidence)
    return drafter


def _not_carried(quantised: Quantised) -> str | None:
    if quantised.form is None:
        return f"the format {quantised.method} is not known here"
    if quantised.packed:
        return (
            f"{quantised.packed[0]} holds several numbers in an element, and packed weights are not carried"
        )
    odd = next(
        (n for n in sorted(quantised.scales) if n.rpartition(".")[2] in quantised.form.not_carried), None
    )
    if odd is not None:
        return f"{odd} is called otherwise in other layouts"
    if quantised.at is None:
        return "its settings do not stand in config.json"
    return None if quantised.weights else "no weight is quantised"


def _because(finding: Finding, why: str) -> Finding:
    text = f"the drafter says that it is quantised, and it cannot be converted like this: {why}"
    return replace(finding, message=text)


def _overruled(finding: Finding, weights: frozenset[str]) -> bool:
    """Whether it is only said because scales were nobody's business."""
    at = finding.where or ""
    opaque = any(name == at or name.endswith(f".{at}") for name in weights)
    return finding.code == REFUSED or (finding.code == "wrong-dtype" and opaque)


def _as_it_is(folder: Folder, name: str) -> Source:
    info = folder.tensors[name]
    return Source(tensor=name, dtype=info.dtype, shape=tuple(info.shape))


def _within(path: str, outer: str) -> bool:
    return path == outer or path.startswith(f"{outer}.")


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _single(drafter: Drafter) -> dict[str, str]:
    """Canonical names to names in the file, of tensors that are not parts of a joined one."""
    count: dict[str, int] = {}
    for real in drafter.names.values():
        count[real] = count.get(real, 0) + 1
    return {name: real for name, real in drafter.names.items() if count[real] == 1}


def _renamed(name: str, modules: Mapping[str, str]) -> str | None:
    """The name of a scale whose module, or what is around it, is called otherwise."""
    module, _, part = name.rpartition(".")
    known = with_parents(modules).get(bare(module))
    return None if known is None else f"{known}.{part}"


def _renamed_settings(
    carried: Carried, settings: Mapping[str, Any], modules: Mapping[str, str]
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Settings with their lists in other names, and what could not be translated."""
    if not carried.inner:
        return renamed_in(settings, carried.form, modules)
    inner, left = renamed_in(get_path(settings, carried.inner), carried.form, modules)
    out = copy.deepcopy(dict(settings))
    set_path(out, carried.inner, inner)
    return out, left


# --- writing


def compose_carried(
    registry: Registry,
    drafter: Drafter,
    layout: Layout,
    request: Request,
    base: Mapping[str, Any] | None = None,
    *,
    restoring: Mapping[str, str] | None = None,
    anew: bool = False,
) -> Output:
    """`compose`, and what is carried is added to it; arguments as there."""
    carried = drafter.carried
    if carried is None:
        return compose(registry, drafter, layout, request, base, restoring=restoring, anew=anew)
    known = drafter.facts.get(FACT)
    before = None if base is None else _with_settings(base, carried, known.value if known else None)
    output = compose(registry, drafter, layout, request, before, restoring=restoring, anew=anew)
    placed = dict(_placed(output, carried))
    modules = {
        bare(_module(drafter.names[name])): bare(_module(out))
        for out, names in output.canon.items()
        for name in names
        if name in drafter.names and len(names) == 1
    }
    _add_scales(output, drafter, carried, placed, modules)
    _add_settings(output, drafter, layout, carried, base, modules)
    return output


def _with_settings(base: Mapping[str, Any], carried: Carried, value: Any) -> dict[str, Any]:
    """An earlier config with the settings that this drafter has, in canonical names; they are translated later."""
    out = {**base}
    for path in carried.at:
        if isinstance(get_path(base, path), dict):
            steps, here = path.split("."), out
            for step in steps[:-1]:
                here[step] = dict(here[step])
                here = here[step]
            here[steps[-1]] = value
    return out


def _placed(output: Output, carried: Carried) -> Iterator[tuple[str, str]]:
    """Quantised weights by the names in the source, and those in the output. What is done to one is refused."""
    for name, node in output.tensors.items():
        mine = [real for real in node.sources() if real in carried.weights]
        _, whole = moved(node)
        if whole is not None and mine:
            yield whole.tensor, name
        elif mine:
            output.findings.append(_changed(name, mine[0], node))


def _changed(name: str, real: str, node: Node) -> Finding:
    what = ", ".join(node.describe()) or "another form"
    return error(
        "quantised-weight-changed",
        f"{real} is quantised, and {name} would be made of it by {what}: its scales would not fit any more",
        where=real,
        hint="a scale follows the rows of its weight, or is one number for all; more is not done to such a weight",
        next=_BEFORE,
    )


def _add_scales(
    output: Output,
    drafter: Drafter,
    carried: Carried,
    placed: Mapping[str, str],
    modules: Mapping[str, str],
) -> None:
    owners = {_module(real): real for real in carried.weights}
    parted: set[str] = set()
    for scale in carried.scales.values():
        real, module = scale.tensor, _module(scale.tensor)
        owner = owners.get(module)
        if owner is not None and owner not in placed:
            if owner in output.dropped or owner in drafter.dropped:
                output.dropped[real] = f"it belongs to {owner}, which is left out"
            continue  # what was done to its weight has been said
        name = f"{_module(placed[owner])}.{real.rpartition('.')[2]}" if owner else _renamed(real, modules)
        if name is None or name in output.tensors:
            why = "there is no module that it could stand at" if name is None else f"{name} is there already"
            text = f"{real} has no place in the output: {why}"
            output.findings.append(error("no-place", text, where=real, next=ELSEWHERE))
            continue
        weight = output.tensors[placed[owner]] if owner is not None else None
        node = scale if weight is None else scale_beside(scale, weight, carried.form)
        if node is not None:
            output.tensors[name] = node
            output.scales.add(name)
        elif owner is not None and weight is not None and owner not in parted:
            parted.add(owner)
            output.findings.append(_changed(placed[owner], owner, weight))


def _add_settings(
    output: Output,
    drafter: Drafter,
    layout: Layout,
    carried: Carried,
    base: Mapping[str, Any] | None,
    modules: Mapping[str, str],
) -> None:
    known = drafter.facts.get(FACT)
    places = [path for path in carried.at if isinstance(get_path(output.config, path), dict)]
    if known is None or carried.settings is None or not places:
        text = f"the drafter is quantised, and layout {layout.layout} has no field that says how"
        output.findings.append(error(REFUSED, text, where=carried.at[0], next=ELSEWHERE))
        return
    back = {bare(_module(out)): _module(names[0]) for out, names in output.canon.items() if len(names) == 1}
    value, left = _renamed_settings(carried, carried.settings, modules)
    for path in places:
        old = get_path(base, path) if base is not None else None
        if isinstance(old, dict) and _renamed_settings(carried, old, back)[0] == known.value:
            new = old
        elif left or _renamed_settings(carried, value, back)[0] != known.value:
            where, entry = left[0] if left else (path, path)
            output.findings.append(_untold(where, entry, layout))
            return
        else:
            new = value
        set_path(output.config, path, new)
        output.steps = [replace(s, value=new) if s.field == path else s for s in output.steps]


def _untold(path: str, entry: str, layout: Layout) -> Finding:
    return error(
        "module-list-not-translated",
        f"{FACT}.{path} has {entry}, which means modules by names that they do not have in layout {layout.layout}; "
        "what it would have to be there is not known",
        where=f"{FACT}.{path}",
        hint="names of modules are translated, also with wildcards behind them; a pattern is kept if it finds the same",
        next="write out the modules that it stands for, and convert again",
    )


# --- engines


def not_known_quantised(engine: Engine, drafter: Drafter) -> list[Finding]:
    """Closes the way to an engine of which nothing is known about quantised drafters."""
    if drafter.carried is None or engine.quantised:
        return []
    text = f"whether {engine.engine} reads quantised {engine.algorithm} drafters is not known here"
    return [error(REFUSED, text, where=drafter.carried.at[0], next=_BEFORE)]


def not_predicted(drafter: Drafter, quantised: Quantised) -> list[Finding]:
    """What a prediction for a quantised drafter leaves open, as a warning; nothing for another drafter."""
    if quantised.method is None:
        return []
    text = f"the drafter is quantised ({quantised.method}): how an engine computes with it is not predicted"
    if quantised.packed:
        text += f"; packed weights such as {quantised.packed[0]} are not unpacked: what is said of them does not count"
    elif quantised.weights:
        text += ", nor how it matches lists of modules with its own names; names, shapes and scales are"
    hint = "it cannot be converted as it is" if drafter.carried is None else None
    return [warning(REFUSED, text, where=quantised.at, hint=hint)]


__all__ = ["compose_carried", "not_known_quantised", "not_predicted", "read_quantised"]
