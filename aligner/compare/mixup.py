"""Dumps that were mixed up: what their headers know of where each came from, set against which stands where.

    a dump with itself, in whatever file      its token, which copies have too
    swapped, another reference, two ports     the lineage that a port's header keeps (aligner.dump.identity)
    a reference made anew                     the same, and when it was made
    other inputs                              the header's word for --inputs, and the values

Whether weights and inputs really are others is seen in their values: where they agree, there is no more than a hint.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

from aligner import messages
from aligner.dump.identity import Identity, identity, lineage
from aligner.record import Scalar

if TYPE_CHECKING:
    from aligner.dump.reader import Dump

SAME_WAY = (
    "framework",
    "framework_version",
    "device",
    "mode",
    "amp",
    "training",
    "selected",
    "target",
    "python",
    "platform",
)
"""What two captures of one program have in common unless somebody compares two ways of running it."""


@dataclass(frozen=True)
class Mixup:
    """`message` is an id of aligner.messages.mixups, filled by `facts`. `void`: the comparison means nothing."""

    message: str
    facts: Mapping[str, Scalar]
    void: bool
    otherwise: str = ""
    """The message to give if weights and inputs have the same values after all; then it is not void. "" for none."""
    unsure: bool = field(default=False, compare=False)
    """Nothing is known of the other reference's weights and inputs; only the values can tell."""

    def text(self) -> str:
        """What is mixed up, in English."""
        return messages.text(self.message, "en", self.facts).splitlines()[0]


def captured_from(port: Dump, reference: Dump) -> bool:
    """Whether the port was captured from this very reference, or from one that came out the same."""
    nearest = next(iter(lineage(port.header)), None)
    if nearest is None:
        return False
    return bool(nearest.token and nearest.token == reference.token) or nearest.is_of(identity(reference))


def mixed_up(reference: Dump, port: Dump) -> Optional[Mixup]:
    """What the headers tell; aligner.compare.basis says what the values make of it."""
    paths: dict[str, Scalar] = {"reference": str(reference.path), "port": str(port.path)}
    if _same(reference, port):
        return Mixup("mixup-self", paths, True)
    ours, theirs = lineage(reference.header), lineage(port.header)
    if theirs and theirs[0].token and theirs[0].token == reference.token:
        return _other_inputs(paths, port)
    one, other = identity(reference), identity(port)
    if any(known.is_of(one) for known in theirs):
        return _other_inputs(paths, port)
    if any(known.is_of(other) or (known.file and known.file == other.file and not theirs) for known in ours):
        return Mixup("mixup-swapped", paths, True)
    if not theirs:
        return None if ours else _one_program(reference, port, paths)
    if not (theirs[0].token or theirs[0].content):
        return None  # an older aligner did not write down more than a path
    if ours and not _renewed(theirs[0], one):
        return _two_ports(ours, theirs, paths)
    return _other_reference(theirs[0], one, paths)


def _same(reference: Dump, port: Dump) -> bool:
    if reference.token and reference.token == port.token:
        return True
    folder = reference.header.get("imported")
    if folder is None or folder != port.header.get("imported"):
        return False
    return identity(reference).content == identity(port).content


def _other_inputs(paths: Mapping[str, Scalar], port: Dump) -> Optional[Mixup]:
    """One that was captured from this reference, but run on other data."""
    file = port.header.get("inputs")
    return Mixup("mixup-inputs", {**paths, "inputs": file}, True) if isinstance(file, str) else None


def _one_program(reference: Dump, port: Dump, paths: Mapping[str, Scalar]) -> Optional[Mixup]:
    ours, theirs = reference.header, port.header
    target = ours.get("target")
    if not isinstance(target, str) or any(ours.get(name) != theirs.get(name) for name in SAME_WAY):
        return None
    return Mixup("mixup-two-references", {**paths, "target": os.path.basename(target)}, False)


def _two_ports(ours: Sequence[Identity], theirs: Sequence[Identity], paths: Mapping[str, Scalar]) -> Mixup:
    shared = next((known for known in theirs if any(known.is_of(mine) for mine in ours)), None)
    if shared is not None:
        return Mixup("mixup-two-ports", {**paths, "made": shared.path}, False)
    apart = {**paths, "made": ours[0].path, "other": theirs[0].path}
    if ours[0].differs(theirs[0]) is False:
        return Mixup("mixup-two-ports-apart", apart, False)
    return Mixup("mixup-two-ports-apart", apart, True, "mixup-two-ports-apart", ours[0].differs(theirs[0]) is None)


def _other_reference(known: Identity, one: Identity, paths: Mapping[str, Scalar]) -> Mixup:
    made = f"{known.path} ({known.created})" if known.created else known.path
    facts = {**paths, "made": made}
    renewed, differs = _renewed(known, one), known.differs(one)
    otherwise = "mixup-renewed" if renewed else "mixup-unknown-capture" if differs is None else "mixup-other-capture"
    if differs is False:
        return Mixup(otherwise, facts, False)
    message = "mixup-renewed-basis" if renewed else "mixup-other-reference"
    return Mixup(message, facts, True, otherwise, unsure=differs is None)


def _renewed(known: Identity, one: Identity) -> bool:
    """Whether this stands where the port's reference stood, and was made later."""
    there = known.file == one.file or os.path.basename(known.path) == os.path.basename(one.path)
    return there and bool(known.created) and known.created <= one.created
