"""What `verify` looks at beyond reading: the numbers, the target's tables, quantisation, and the target's config."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from ckptmorph.errors import step
from ckptmorph.findings import Finding, Severity, in_json, note, warning
from ckptmorph.quant import Quantised, quantisation_of
from ckptmorph.schema.registry import Registry
from ckptmorph.sources import Source, Wish, open_source
from ckptmorph.storage.beside import beside_index
from ckptmorph.storage.folder import Folder
from ckptmorph.tables import compare_tables
from ckptmorph.weights import weight_findings


def examined(registry: Registry, folder: Folder, wish: Wish, *, deep: bool) -> tuple[Source, Quantised]:
    """Open a source and look at all of it that can be looked at; what is found is in the drafter's findings.

    Scales that belong to quantised weights are taken out first: they are no tensors of the drafter's own.
    Raises what `open_source` raises.
    """
    formats = registry.quantisations.values()
    quantised = quantisation_of(folder, formats, {})
    source = open_source(registry, quantised.without_scales(folder), wish)
    source.beside = beside_index(folder)
    if not quantised.scales:
        was = source.drafter  # what follows adds to these three
        source.as_read = replace(
            was, findings=list(was.findings), facts=dict(was.facts), compared=dict(was.compared)
        )
    target = source.request.target
    if quantised.method is not None and target.config:
        quantised = quantisation_of(folder, formats, target.config)
    drafter = source.drafter
    drafter.findings += [*quantised.findings, *_target_findings(source)]
    drafter.findings += weight_findings(drafter, source.folder, deep=deep)
    compare_tables(drafter, source.folder, target, next(iter(registry.targets.values()), None), deep=deep)
    return source, quantised


def _target_findings(source: Source) -> Iterator[Finding]:
    """What the config of the target says beside what must be equal (see `reader_checks`)."""
    target, facts = source.request.target, source.drafter.facts
    if target.taken is None:
        return
    for name, fact in source.drafter.algorithm.facts.items():
        theirs, ours = target.fields.get(fact.often_target or ""), facts.get(name)
        if theirs is not None and ours is not None and ours.value is not None and theirs != ours.value:
            yield note(
                "unlike-target",
                f"{name} is {in_json(ours.value)} for the drafter ({ours.evidence}) and {in_json(theirs)} for the "
                f"target ({target.origin}); that is allowed, but rare",
                where=name,
                expected=theirs,
                got=ours.value,
                hint="a drafter that was trained with the target's value and lost it looks like this",
            )


def own_faults(source: Source, quantised: Quantised, predicted: Iterable[Finding]) -> list[Finding]:
    """What is wrong with the drafter itself. A fact that it does not state is only a warning for an engine.

    What the prediction says about the same tensor is not said twice.
    """
    said = {f.where for f in predicted if f.where}
    out = []
    for finding in source.drafter.findings:
        if (
            finding.code in ("missing-tensor", "unexpected-tensor", "shape-mismatch", "unlisted-tensor")
            and finding.where in said
        ):
            continue
        if finding.code == "wrong-dtype" and finding.where in quantised.weights:
            continue
        if finding.code == "quantised-drafter":
            finding = _not_predicted(finding, quantised)
        if finding.code in ("fact-not-stated", "target-needed", "unclear-value"):
            finding = replace(finding, severity=Severity.WARNING)
        if finding.code == "absolute-map":
            text = (
                f"{finding.where} holds absolute target ids where offsets are read: wrong tokens are proposed"
            )
            finding = replace(
                finding,
                severity=Severity.ERROR,
                message=text,
                next=step(f"ckptmorph convert DRAFTER OUT --to {source.layout.layout}", "translates it"),
            )
        out.append(finding)
    if quantised.weights and quantised.method and not any(f.code == "quantised-drafter" for f in out):
        out.append(_not_predicted(warning("quantised-drafter", ""), quantised))  # said in a side file only
    return out


def _not_predicted(finding: Finding, quantised: Quantised) -> Finding:
    """Quantisation stops a conversion; about an engine it only limits what can be said."""
    text = f"the drafter is quantised ({quantised.method}): how an engine computes with it is not predicted"
    if quantised.packed:
        text += f"; packed weights such as {quantised.packed[0]} are not unpacked: what is said of them does not count"
    elif quantised.weights:
        text += "; names, shapes and scales are"
    return replace(
        finding, severity=Severity.WARNING, message=text, hint="it cannot be converted as it is", next=None
    )
