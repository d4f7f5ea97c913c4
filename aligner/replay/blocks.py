"""Which numbered block of the port is which of the reference's, by the parameters whose counterparts are known.

A net that keeps its norms' weights as parameters of its blocks defines them in another order than one in which each
norm is a layer: first all that the net itself has, then what each block has, then what is inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aligner.replay.items import Item, Match


def rows(
    reference: Sequence[Item], port: Sequence[Item], known: Iterable[Match]
) -> list[tuple[list[Item], list[Item]]]:
    """Parameters of one shape in one block, with as many in its counterpart, each side in order of definition."""
    counterparts = _counterparts(known)
    theirs = _by_block(port)
    found = []
    for (block, shape), ours in _by_block(reference).items():
        others = theirs.get((counterparts[block], shape), []) if block in counterparts else []
        if len(ours) == len(others):
            found.append((ours, others))
    return found


def _counterparts(known: Iterable[Match]) -> Mapping[str, str]:
    """Blocks all of whose known parameters agree on one another."""
    ours: dict[str, set[str]] = {}
    theirs: dict[str, set[str]] = {}
    for match in known:
        one, other = _block(match.reference), _block(match.port)
        ours.setdefault(one, set()).add(other)
        theirs.setdefault(other, set()).add(one)
    alone = {one: min(others) for one, others in ours.items() if len(others) == 1}
    return {one: other for one, other in alone.items() if len(theirs[other]) == 1}


def _by_block(items: Iterable[Item]) -> dict[tuple[str, tuple[int, ...]], list[Item]]:
    found: dict[tuple[str, tuple[int, ...]], list[Item]] = {}
    for item in items:
        found.setdefault((_block(item), item.shape), []).append(item)
    return found


def _block(item: Item) -> str:
    """The path of the innermost numbered layer that the parameter stands in; "" where there is none."""
    parts = item.slot.layer.split(".")
    while parts and not parts[-1].isdigit():
        parts.pop()
    return ".".join(parts)
