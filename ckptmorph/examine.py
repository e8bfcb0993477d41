"""What `verify` looks at beyond reading: the numbers, the target's tables, quantisation, and the target's config."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from ckptmorph.carried import REFUSED, not_predicted
from ckptmorph.errors import step
from ckptmorph.findings import Finding, Severity, in_json, note
from ckptmorph.quant import Quantised, quantisation_of
from ckptmorph.schema.registry import Registry
from ckptmorph.sources import Source, Wish, open_source
from ckptmorph.storage.beside import beside_index
from ckptmorph.storage.folder import Folder
from ckptmorph.tables import compare_tables
from ckptmorph.weights import weight_findings


def examined(registry: Registry, folder: Folder, wish: Wish, *, deep: bool) -> tuple[Source, Quantised]:
    """Open a source and look at all of it that can be looked at; what is found is in the drafter's findings.

    Raises what `open_source` raises.
    """
    source = open_source(registry, folder, wish)
    source.beside = beside_index(folder)
    was = source.drafter  # what follows adds to these three
    source.as_read = replace(
        was, findings=list(was.findings), facts=dict(was.facts), compared=dict(was.compared)
    )
    quantised, target, drafter = source.quantised, source.request.target, source.drafter
    if quantised.method is not None and target.config:
        quantised = quantisation_of(folder, registry.quantisations.values(), target.config)
        drafter.findings = [f for f in drafter.findings if f not in source.quantised.findings]
        drafter.findings += quantised.findings
    drafter.findings += _target_findings(source)
    drafter.findings += weight_findings(drafter, source.folder, deep=deep)
    compare_tables(drafter, source.folder, target, registry.target_reading, deep=deep)
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
        if finding.code == REFUSED:
            continue  # that stops a conversion; about an engine it only limits what can be said
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
    refused = any(f.code == REFUSED for f in source.drafter.findings)
    return [*out, *(not_predicted(source.drafter, quantised) if quantised.weights or refused else ())]
