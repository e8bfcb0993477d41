"""What an engine does with tensors that stand in the files of an index without being listed there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ckptmorph.facts import cite
from ckptmorph.findings import Finding, error, warning
from ckptmorph.predict import Treated
from ckptmorph.schema.engines import Engine, Unlisted
from ckptmorph.schema.versions import covers
from ckptmorph.storage.beside import Beside
from ckptmorph.storage.index import INDEX


def rule_for(engine: Engine, release: str) -> Unlisted | None:
    """The rule of a release, if it was looked at."""
    return next((rule for rule in engine.unlisted if covers(rule.versions, release)), None)


def read_too(rule: Unlisted | None, beside: Iterable[Beside]) -> dict[str, Beside]:
    """The tensors that this engine reads although the index does not list them, by name."""
    if rule is None or rule.does != "read":
        return {}
    return {item.name: item for item in beside if item.listed_in is None}


def unlisted_findings(
    who: str,
    rule: Unlisted | None,
    beside: Sequence[Beside],
    treated: Iterable[Treated],
    others: Iterable[Treated],
    repair: str,
) -> Iterator[Finding]:
    """What must be said of them beside the fate that each has like any other tensor.

    Args:
        others: the fates of those that the index lists in another file, if they were read in its place.
        repair: the next step.
    """
    if rule is None:
        return
    about = {"hint": rule.because, "source": cite(rule.source), "next": repair}
    loaded = {item.name for item in treated if item.fate == "loaded"}
    unfit = {item.name: item for item in others if item.fate == "misshapen" and item.taken is None}
    for item in beside:
        name = item.name[:200]
        if item.listed_in is not None and item.name in unfit:
            built = list(unfit[item.name].expected or ())
            text = (
                f"{who} reads {name} twice, from {item.listed_in} as {INDEX} says and from {item.file}; there it "
                f"has shape {list(item.shape)}, and {who} builds {built}"
            )
            yield error("tensor-read-twice", text, where=name, stops="start", **about)
        elif item.listed_in is not None:
            say, how = (error, "they differ") if item.differs else (warning, "a sample of them is equal")
            text = (
                f"{who} reads {name} twice, from {item.listed_in} as {INDEX} says and from {item.file}; {how}, and "
                "which one counts depends on the order of the files"
            )
            yield say("tensor-read-twice", text, where=name, **about)
        elif rule.does == "raise":
            text = f"{who} raises: {name} is in {item.file}, but not in {INDEX}"
            yield error("engine-raises", text, where=name, stops="start", **about)
        elif item.name in loaded:
            text = f"{who} loads {name} from {item.file}, though it is not in {INDEX}; readers that follow it do not"
            yield warning("unlisted-tensor-loaded", text, where=name, **about)
