"""What a person reads on stdout for each kind of result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptmorph.cli.render import colour, findings, show, size, table
from ckptmorph.matching import fold_names
from ckptmorph.plans import OF_TARGET

if TYPE_CHECKING:
    from ckptmorph.compare import Difference
    from ckptmorph.explanations import Explanation
    from ckptmorph.findings import Finding
    from ckptmorph.matrix import Matrix
    from ckptmorph.plans import Plan, Report
    from ckptmorph.results import GraphView, Inspection, Restored, Verification
    from ckptmorph.schemas_api import SchemaChecked, SchemaList, SchemaShown

FEW_ALIKE = 3  # tensors that one operation is done to are named one by one up to here


def inspection(view: Inspection, *, verbose: bool) -> str:
    """`inspect`."""
    version = f", written by release {view.version}" if view.version else ""
    out = [f"{view.path}\n{view.algorithm} drafter in layout {view.layout}{version}\n"]
    out.append(f"  because  {'; '.join(view.evidence)}\n")
    out.append(f"  size     {len(view.tensors)} tensors, {size(view.bytes)}\n\nfacts\n")
    out.append(table([(n, show(k.value), str(k.evidence)) for n, k in view.facts.items()]))
    out.append("\ntensors\n")
    out.append(table([(t.name, t.dtype, show(list(t.shape)), t.file) for t in view.tensors]))
    if view.findings:
        out.append("\n" + findings(view.findings, verbose=verbose))
    return "".join(out)


def plan(view: Plan, *, verbose: bool) -> str:
    """`plan` and `convert --dry-run`."""
    out = [_headline(view), "\ntensors\n"]
    rows = [
        (
            ", ".join(s.sources) or "-",
            "->",
            s.target,
            "; ".join(s.operations) or ("" if s.sources[:1] == (s.target,) else "rename"),
        )
        for s in view.tensors
    ]
    out.append(table(rows))
    out += [f"  {d.name} is left out: {d.because}\n" for d in view.dropped]
    out.append("\nconfig.json\n")
    out.append(table([(c.field, show(c.value), str(c.evidence)) for c in view.config]))
    out.append(_losses(view) + _findings(view, verbose))
    out.append(
        f"\n{size(view.bytes.copied)} to copy, {size(view.bytes.computed)} to compute. Nothing was written.\n"
    )
    return "".join(out)


def _headline(view: Plan) -> str:
    target = (
        f"{view.target.engine} {view.target.release}, layout {view.target.layout}"
        if view.target.engine
        else f"layout {view.target.layout}"
    )
    because = f"  source   {view.source.path}: {view.source.layout} ({'; '.join(view.source.evidence)})\n"
    return f"{view.source.layout} -> {target}\n{because}  route    {' -> '.join(view.route)}\n"


def _losses(view: Plan) -> str:
    if not view.losses:
        return ""
    return "\nlosses\n" + table([(loss.id, loss.severity, loss.message) for loss in view.losses])


def _findings(view: Plan, verbose: bool) -> str:
    shown = [f for f in view.findings if verbose or f.severity.value != "note"]
    return "\n" + findings(shown, verbose=verbose) if shown else ""


def report(view: Report, *, verbose: bool) -> str:
    """`convert`."""
    if verbose:
        return plan(view, verbose=True).replace(" Nothing was written.", "") + f"wrote {view.output}\n"
    renamed = sum(1 for s in view.tensors if s.sources != (s.target,) and s.moves_only and not s.operations)
    changed = [s for s in view.tensors if s.operations]
    out = [_headline(view), f"  tensors  {len(view.tensors)}: {renamed} renamed, {len(changed)} transformed"]
    out.append(f", {len(view.dropped)} left out\n")
    alike: dict[str, list[str]] = {}
    for s in changed:
        alike.setdefault("; ".join(s.operations), []).append(s.target)
    for said, names in alike.items():
        shown = names if len(names) <= FEW_ALIKE else [f"{len(names)} tensors"]
        out += [f"           {name}: {said}\n" for name in shown]
    theirs = [s for s in view.tensors if s.sources and s.sources[0].startswith(OF_TARGET)]
    out += [f"           {s.target} is the target's {s.sources[0].removeprefix(OF_TARGET)}\n" for s in theirs]
    out += [f"           {d.name} is left out: {d.because}\n" for d in view.dropped]
    aux = next((c for c in view.config if c.field.endswith("layer_ids")), None)
    if aux is not None and view.prediction is not None and view.prediction.captured is not None:
        out.append(
            f"  states   {aux.field} = {show(aux.value)} captures the states {list(view.prediction.captured)}\n"
        )
    kept = [loss for loss in view.losses if loss.severity == "recoverable"]
    if kept:
        out.append(
            f"  side-car keeps {', '.join(loss.id.removeprefix('no-slot-') for loss in kept)} for the way back\n"
        )
    out += [
        f"  lost     {loss.id}: {loss.message}\n" for loss in view.losses if loss.severity != "recoverable"
    ]
    out.append(_findings(view, verbose))
    words = {"ok": "checked: everything loads", "warn": "checked: loads, with the warnings above"}
    word = (
        words.get(view.prediction.verdict, "checked") if view.prediction else "checked: reads back as planned"
    )
    written = size(view.bytes.copied + view.bytes.computed)
    if view.method == "in-place":
        written += " of tensors changed"
        word += f"\nundo it with ckptmorph restore {view.output}"
    out.append(f"{colour('done', 'ok')} {view.output} ({written} in {view.seconds:.2f} s); {word}\n")
    return "".join(out)


def verification(view: Verification, *, verbose: bool) -> str:
    """`verify`."""
    kind = view.verdict
    out = [f"{colour(kind, kind)}  {view.path} for {view.engine} {view.release} (layout {view.layout})\n"]
    out.append(f"  effect             {view.effect.words}\n")
    for fate in ("loaded", "from_target", "ignored", "dropped", "missing", "misshapen", "raises"):
        names = getattr(view.tensors, fate)
        if names:
            out.append(f"  {fate.replace('_', ' '):<12} {len(names):>4}  {_folded(names, verbose)}\n")
    if view.captured is not None:
        trained = (
            f", trained on {list(view.trained)}" if view.trained else ", what it was trained on is not stated"
        )
        open_end = (
            "; the highest one is not checked: the target is not known" if _unbounded(view.findings) else ""
        )
        out.append(f"  states             captured {list(view.captured)}{trained}{open_end}\n")
    out.append(_against_target(view))
    shown = [f for f in view.findings if verbose or f.severity.value != "note"]
    if shown:
        out.append("\n" + findings(shown, verbose=verbose))
    return "".join(out)


def _unbounded(found: tuple[Finding, ...]) -> bool:
    return any(f.code == "states-not-bounded" and f.severity.value == "note" for f in found)


def _against_target(view: Verification | Matrix) -> str:
    """What was taken for the target, and how the drafter's tables compare with its."""
    if view.target is None:
        return ""
    out = [f"  target             {view.target}\n"]
    out += [f"  {'table':<18} {seen.tensor} {seen.words}\n" for seen in view.compared]
    return "".join(out)


def matrix(view: Matrix, *, verbose: bool) -> str:
    """`verify --for all`."""
    out = [f"{view.path}: {view.algorithm} drafter, layout {view.layout}\n", _against_target(view)]
    rows = []
    for row in view.rows:
        releases = row.first if row.first == row.last else f"{row.first} to {row.last}"
        rows.append((row.engine, releases, row.verdict, row.reason))
    out.append(table(rows))
    if view.not_looked_at:
        out.append(f"  not looked at for {view.algorithm} drafters: {', '.join(view.not_looked_at)}\n")
    own = [f for f in view.own if verbose or f.severity.value != "note"]
    if own:
        out.append("\n" + findings(own, verbose=verbose))
    return "".join(out)


def explanation(view: Explanation, *, verbose: bool) -> str:
    """`verify --explain`."""
    out = [f"{view.topic} for {view.engine} {view.release}: {view.about}\n\nrules\n"]
    for rule in view.rules:
        out.append(f"  - {rule.text}" + (f"  (releases {rule.versions})" if rule.versions else "") + "\n")
        out += [
            f"    {label} {text}\n"
            for label, text in (("because", rule.because), ("source ", rule.source))
            if text
        ]
    if not view.rules:
        out.append("  none in the contract\n")
    out.append(f"\nthis drafter  {show(view.drafter)}  {view.drafter_evidence or '(not stated)'}\n")
    out.append(f"the engine    {show(view.engine_reads)}  {view.engine_evidence or ''}".rstrip() + "\n")
    out.append(f"so            {view.outcome}\n")
    if view.findings:
        out.append("\n" + findings(view.findings, verbose=verbose))
    return "".join(out)


def _folded(names: tuple[str, ...], verbose: bool) -> str:
    folded = fold_names(names)
    if verbose or len(folded) <= 4:
        return ", ".join(folded)
    return ", ".join(folded[:3]) + f", ... ({len(folded) - 3} more; -v shows all)"


def difference(view: Difference, *, verbose: bool) -> str:
    """`diff`."""
    word = colour("same drafter", "ok") if view.same else colour("different", "fail")
    out = [f"{word}: {view.a} ({view.layout_a}) and {view.b} ({view.layout_b})\n"]
    if view.renamed:
        pairs = [f"{a} = {b}" for a, b in view.renamed.items()]
        more = "" if verbose or len(pairs) <= 3 else f", ... ({len(pairs) - 3} more)"
        out.append(
            f"  {len(pairs)} tensors under other names: {', '.join(pairs if verbose else pairs[:3])}{more}\n"
        )
    for t in view.tensors:
        where = f" from byte {t.first_difference}" if t.first_difference is not None else ""
        sides = f" ({t.a} and {t.b})" if t.a else ""
        out.append(f"  tensor {t.tensor}: {t.kind.replace('-', ' ')}{sides}{where}\n")
    for f in view.facts:
        mark = "" if f.changes_results else " (does not change results)"
        if f.changes_results or verbose:
            out.append(f"  fact {f.fact}: {show(f.a)} and {show(f.b)}{mark}\n")
    return "".join(out) + findings(view.findings, verbose=verbose)


def restored(view: Restored, *, verbose: bool) -> str:
    """`restore`."""
    return f"restored {view.path}\n"


def graph(view: GraphView, *, verbose: bool) -> str:
    """`graph`."""
    if view.destinations:
        rows = [
            (d.engine, d.first if d.first == d.last else f"{d.first} to {d.last}", "open" if d.layout else "closed",
             f"as layout {d.layout}" if d.layout else d.reason)
            for d in view.destinations
        ]  # fmt: skip
        return f"from {view.start}\n{table(rows)}"
    if view.goal is None:
        hubs = sorted({n.split("/")[0] for n in view.nodes})
        lines = []
        for hub in hubs:
            layouts = [n.split("/")[1] for n in view.nodes if n.startswith(hub + "/")]
            lines.append(f"{hub}: {' <-> '.join(['canonical form', '{' + ', '.join(layouts) + '}'])}\n")
        return "".join(lines)
    out = []
    if view.route:
        out.append(f"{colour('open', 'ok')}    {' -> '.join(view.route)}\n")
    for edge in view.closed:
        for f in edge.closed_by:
            out.append(
                f"{colour('closed', 'fail')}  {edge.start} -> {edge.end}: {f.message}\n"
                + (f"        {f.hint}\n" if f.hint else "")
            )
        out += [f"also    {edge.start} -> {edge.end}: {c}\n" for c in edge.conditions]
    if view.conditions:
        out.append(f"\nwhat {view.goal} asks of a drafter\n")
        out += [f"  - {condition}\n" for condition in view.conditions]
    return "".join(out)


def schema_list(view: SchemaList, *, verbose: bool) -> str:
    """`schemas list`."""
    return table([(r.algorithm, r.kind, r.name, r.releases or "-", r.file) for r in view.schemas], indent="")


def schema_show(view: SchemaShown, *, verbose: bool) -> str:
    """`schemas show`."""
    return "".join(f"# {name}\n{text}\n" for name, text in view.files.items())


def schema_check(view: SchemaChecked, *, verbose: bool) -> str:
    """`schemas check`."""
    if not view.findings:
        article = "an" if (view.kind or "").startswith(tuple("aeiou")) else "a"
        return f"{colour('ok', 'ok')} {view.file}: {article} {view.kind} schema\n"
    return findings(view.findings, verbose=verbose)
