"""Origins that are one mistake made in several places: the LayerNorm of every block without its eps.

A report shows the first of a family in full and names the others; JSON keeps them all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from aligner.compare.net import unnumbered
from aligner.compare.verdict import Origin
from aligner.explain.suspect import Cause
from aligner.record import Attribute, LayerSpec

Specs = Mapping[str, tuple[LayerSpec, LayerSpec]]
Difference = tuple[str, Attribute, Attribute]


@dataclass(frozen=True)
class Family:
    """`head` is the first in execution order."""

    head: Origin
    others: tuple[Origin, ...]

    @property
    def largest(self) -> float:
        """The largest own error among the others; inf where one has no number."""
        return max((origin.own_error for origin in self.others), default=math.nan)


def families(origins: Sequence[Origin], specs: Specs) -> list[Family]:
    """The families in the order of their heads."""
    heads = first_of_kind(origins, specs)
    members: dict[int, list[Origin]] = {}
    for origin, head in zip(origins, heads):
        members.setdefault(head, []).append(origin)
    return [Family(group[0], tuple(group[1:])) for group in members.values()]


def first_of_kind(origins: Sequence[Origin], specs: Specs) -> list[int]:
    """For each origin the index of the first one of its family, which is its own where there is none before."""
    first: dict[object, int] = {}
    return [first.setdefault(_mark(origin, specs), number) for number, origin in enumerate(origins)]


def _mark(origin: Origin, specs: Specs) -> object:
    """Equal for origins that are told as one: the same line of code, or the same kind of layer, wrong for the same
    reason or in the same way.
    """
    if origin.edit is not None:
        return origin.edit.hunks
    line = origin.line
    if line is not None and line.sure and line.port is not None and origin.where != "layer":
        return line.kind, line.port.file, line.port.line, origin.phase
    one, other = specs.get(origin.layer, (LayerSpec(origin.kind), LayerSpec(origin.kind)))
    cause = likeliest(origin)
    apart = tuple(differences(one, other))
    reason: object
    if cause is not None:
        reason = cause.id, cause.confirmed or cause.error_after is None
    else:
        reason = repr(apart) if apart else unnumbered(origin.layer)
    slot = origin.slot if origin.where != "layer" else ""
    between = _between(origin, cause is not None)
    return origin.where, origin.phase, origin.kind, other.kind, reason, slot, between, origin.cast


def _between(origin: Origin, known: bool) -> Optional[tuple[str, ...]]:
    """The layers around wrong code, as the parent calls them; with a cause at hand, the one behind it alone tells."""
    if origin.between is None:
        return None
    owner = origin.layer if origin.place is None else origin.place.owner
    prefix = f"{owner}." if owner else ""
    names = tuple(name[len(prefix) :] if name.startswith(prefix) else name for name in origin.between)
    return names[1:] if known else names


def likeliest(origin: Origin) -> Optional[Cause]:
    """The first cause that its trial does not speak against."""
    return next((cause for cause in origin.causes if not cause.refuted), None)


def differ(reference: LayerSpec, port: LayerSpec) -> bool:
    """Whether the layers are of other kinds or have other settings."""
    return reference.kind != port.kind or bool(differences(reference, port))


def differences(reference: LayerSpec, port: LayerSpec, absent: Attribute = None) -> list[Difference]:
    """The settings that differ: name, the reference's value, the port's. Of other kinds, only those both have."""
    names = dict.fromkeys((*reference.attributes, *port.attributes))
    if reference.kind != port.kind:
        names = dict.fromkeys(name for name in reference.attributes if name in port.attributes)
    pairs = ((n, reference.attributes.get(n, absent), port.attributes.get(n, absent)) for n in names)
    return [(name, mine, other) for name, mine, other in pairs if mine != other or type(mine) is not type(other)]
