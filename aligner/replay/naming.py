"""Parameters that are matched by the names they have on both sides, or by renames that the user gave."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Optional

from aligner.errors import ReplayError
from aligner.replay.items import Item, Match, Slot


def check_renames(reference: Sequence[Item], port: Sequence[Item], renames: Mapping[str, str]) -> None:
    for side, items, wanted in (("reference", reference, renames.keys()), ("port", port, renames.values())):
        for name in wanted:
            known = {item.slot.layer for item in items} | {".".join(item.slot).lstrip(".") for item in items}
            if not any(_inside(path, name) for path in known):
                close = ", ".join(difflib.get_close_matches(name, sorted(known), n=3)) or "-"
                raise ReplayError("rename-unknown", name=name, side=side, close=close)


def _inside(path: str, prefix: str) -> bool:
    return path == prefix or prefix == "" or path.startswith(f"{prefix}.")


def named_slot(slot: Slot, renames: Mapping[str, str]) -> Optional[Slot]:
    """The port's slot by the longest rename that covers this slot, or None when no rename does."""
    whole = ".".join(slot).lstrip(".")
    for prefix in sorted(renames, key=len, reverse=True):
        if _inside(whole, prefix):
            rest = whole[len(prefix) :].lstrip(".")
            layer, _, role = ".".join(part for part in (renames[prefix], rest) if part).rpartition(".")
            return Slot(layer, role)
    return None


def by_name(reference: Sequence[Item], port: Sequence[Item], renames: Mapping[str, str]) -> list[Match]:
    meant = {Slot(item.slot.layer, item.role): item for item in port}
    ports = {**meant, **{item.slot: item for item in port}}
    taken = {renamed for item in reference for renamed in (named_slot(item.slot, renames),) if renamed is not None}
    matches = []
    for item in reference:
        renamed = named_slot(item.slot, renames)
        if renamed is None and item.slot in taken:
            continue  # it was given to another one
        found = ports.get(renamed or item.slot) or meant.get(renamed or Slot(item.slot.layer, item.role))
        if found is not None and found.shape == item.shape:
            matches.append(Match(item, found, "rename" if renamed else "name", 1.0))
    return matches


def as_named(first: Sequence[Match], other: Sequence[Match]) -> list[Match]:
    """The second way to match, but for layers that it exchanges where the names say that the first one is meant.

    `mix_angle` is the reference's `compat_angle`, whatever it is given. Numbers in names say nothing.
    """
    before = {match.reference.slot: match for match in first}
    after = {match.port.slot: match for match in other}
    found = list(other)
    for at, match in enumerate(other):
        was = before.get(match.reference.slot)
        now = None if was is None else after.get(was.port.slot)
        if was is None or now is None or was.port.slot == match.port.slot or match.reformed or was.reformed:
            continue
        exchanged = before.get(now.reference.slot)
        if exchanged is None or exchanged.port.slot != match.port.slot:
            continue
        ours, theirs = (_words(one.reference) for one in (match, now)), (_words(one.port) for one in (was, match))
        (one, another), (its, others) = ours, theirs
        if (one & its) - another - others and (another & others) - one - its:
            found[at] = was
    return found


def _words(item: Item) -> frozenset[str]:
    return frozenset(re.findall("[a-z]{3,}", item.slot.layer.lower()))
