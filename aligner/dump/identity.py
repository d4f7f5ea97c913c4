"""What a dump is known by: the capture it is, whatever it is called and wherever it was copied to, and what is in it.

A port's header keeps those of its reference and of the reference's own references, the nearest first: its lineage. So
compare can tell for sure what was captured from what.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from aligner.record import Phase

if TYPE_CHECKING:
    from aligner.dump.reader import Dump, Entry

LINEAGE = "lineage"
"""The header's word for it."""

STEPS = 64
"""Steps whose inputs are told apart one by one."""

GENERATIONS = 8
"""References of references that are kept."""

COUNTERS = ("num_batches_tracked",)
"""What only counts makes no other weights."""


@dataclass(frozen=True)
class Identity:
    """Of one capture; what an older aligner did not write down is empty."""

    path: str
    """As the user called it."""
    file: str
    """Where it stood."""
    created: str
    token: str
    """Of this capture alone; copies of the file have it too."""
    content: str = ""
    """Of all records: a capture made anew has the same if all its values are the same in every bit."""
    weights: str = ""
    """Of the parameters' values, whatever they are called; "" where there are none."""
    inputs: tuple[str, ...] = ()
    """Of what the net was called with, step by step."""

    def is_of(self, other: Identity) -> bool:
        """Whether the two are one capture, or one made anew that came out the same."""
        return bool((self.token and self.token == other.token) or (self.content and self.content == other.content))

    def differs(self, other: Identity) -> Optional[bool]:
        """Whether weights or inputs are others; None where that was not written down."""
        if not (self.content and other.content):
            return None
        weights = bool(self.weights and other.weights) and self.weights != other.weights
        return weights or any(one != two for one, two in zip(self.inputs, other.inputs))

    def facts(self) -> dict[str, Any]:
        """Plain facts for a header."""
        return {**vars(self), "inputs": list(self.inputs)}


def identity(dump: Dump) -> Identity:
    """Of an open dump; from its index, no values are read."""
    records = [entry for entry in dump.entries if entry.key.phase is not Phase.FORCED]
    weights = [e for e in records if e.key.phase is Phase.PARAMETER and e.key.slot not in COUNTERS]
    # A port that came out as its reference did, in every bit, is not that reference.
    known = [f"captured from {one.content or one.token or one.path}" for one in lineage(dump.header)[:1]]
    steps: dict[int, list[str]] = {}
    for entry in records:
        key = entry.key
        if key.phase is Phase.FORWARD and not key.layer and not key.call and key.slot.partition(".")[0] == "input":
            steps.setdefault(key.step, []).append(f"{key.slot} {_value(entry)}")
    return Identity(
        path=str(dump.path),
        file=os.path.abspath(dump.path),
        created=str(dump.header.get("created", "")),
        token=dump.token,
        content=_digest([*known, *(f"{[*e.key[2:]]} {e.key.step} {e.key.phase.value} {_value(e)}" for e in records)]),
        weights=_digest(map(_value, weights)) if weights else "",
        inputs=tuple(_digest(steps[step]) for step in sorted(steps)[:STEPS]),
    )


def _value(entry: Entry) -> str:
    return f"{tuple(entry.shape)} {entry.content}"


def _digest(lines: Iterable[str]) -> str:
    """The same in whatever order the lines come."""
    return hashlib.sha256("\n".join(sorted(lines)).encode("utf-8", "backslashreplace")).hexdigest()[:32]


def descended(reference: Dump) -> list[dict[str, Any]]:
    """What the header of a port says that is captured from this reference."""
    return [one.facts() for one in (identity(reference), *lineage(reference.header))][:GENERATIONS]


def lineage(header: Mapping[str, Any]) -> list[Identity]:
    """The reference that a dump was captured from, and that one's own; nothing for a dump that has none.

    Of what an older aligner wrote, the path is known, and the token where there was a forced pass.
    """
    rows = header.get(LINEAGE)
    found = [_identity(row) for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    path, token = (value if isinstance(value := header.get(n), str) else "" for n in ("reference", "reference_token"))
    if not found and (path or token):
        found = [Identity(path or "?", "", "", token)]
    return found[:GENERATIONS]


def _identity(row: Mapping[str, Any]) -> Identity:
    """From a header, which anybody may have written: what is no text is nothing."""
    names = ("path", "file", "created", "token", "content", "weights")
    words = {name: value if isinstance(value := row.get(name), str) else "" for name in names}
    inputs = row.get("inputs")
    return Identity(**words, inputs=tuple(map(str, inputs[:STEPS])) if isinstance(inputs, list) else ())
