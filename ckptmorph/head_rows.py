"""Rows of a pruned head: were they picked by target ids, or by mistake by the offsets that stand in the map?

Ids next to each other have equal offsets. A head whose rows were picked by offsets has equal rows there, which no
training gives. So a few rows prove it, and usually two prove the contrary.
"""

from __future__ import annotations

import struct

from ckptmorph.canonical import Drafter
from ckptmorph.findings import Finding, error
from ckptmorph.ops.nodes import Source
from ckptmorph.storage.folder import Folder

PLACES = 16  # pairs of rows that are compared, evenly apart
LEAST = 2  # one pair of equal rows may be an accident


def row_findings(drafter: Drafter, folder: Folder) -> list[Finding]:
    """The finding ``head-rows-by-offset``, if rows of a head are proven to be the wrong ones."""
    out: list[Finding] = []
    for name, head in drafter.tensors.items():
        canon = drafter.canon.get(name)
        ids = drafter.tensors.get(canon.spec.rows or "") if canon is not None else None
        if not isinstance(head, Source) or not isinstance(ids, Source) or drafter.map_form != "offset":
            continue
        data = folder.read(ids.tensor) if ids.dtype == "I64" else b""
        offsets = struct.unpack(f"<{len(data) // 8}q", data)
        if head.shape[:1] == (len(offsets),) and _repeated(head, offsets, folder):
            out.append(
                error(
                    "head-rows-by-offset",
                    f"wherever {ids.tensor} holds the same offset for two ids in a row, {head.tensor} has the same row "
                    f"for both: its rows were picked by the offsets, not by the ids that they lead to",
                    where=head.tensor,
                    hint="an exporter took row offset[i] of the whole head, where row i + offset[i] is meant; "
                    "the rows of most ids are not in this file",
                    next="export the drafter again from its training state, with the rows of the target ids",
                )
            )
    return out


def _repeated(head: Source, offsets: tuple[int, ...], folder: Folder) -> bool:
    pairs = range(len(offsets) - 1)
    same = [i for i in pairs if offsets[i] == offsets[i + 1]]
    other = [i for i in pairs if offsets[i] != offsets[i + 1]]
    if len(same) < LEAST:
        return False
    width = head.nbytes // head.shape[0]
    with folder.opened(head.tensor) as part:

        def equal(i: int) -> bool:
            return part(i * width, (i + 1) * width) == part((i + 1) * width, (i + 2) * width)

        # Rows that are equal everywhere are another fault, and tell nothing of the map.
        return all(map(equal, _some(same))) and not all(map(equal, _some(other)))


def _some(places: list[int]) -> list[int]:
    if len(places) <= PLACES:
        return places
    return [places[round(k * (len(places) - 1) / (PLACES - 1))] for k in range(PLACES)]


__all__ = ["row_findings"]
