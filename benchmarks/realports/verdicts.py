"""One answer of `aligner compare --json` against the truth of a pair: data in, data out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from pairs import Difference

NAMED = 2  # a reader looks at so many causes

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """What was right in the answer to one case: a port as published, or mended, or with a planted mistake."""

    id: str
    pair: str
    planted: bool
    held_out: bool
    differences: int
    small: int = 0
    mended: bool = False
    outcome: str = "none"  # aligned, diverged, incomparable, or refused: a command gave no answer
    named: int = 0
    small_named: int = 0
    caused: int = 0  # of these with a cause that a fair reader accepts among the first two
    proved: int = 0  # of these with such a cause confirmed
    first: bool = False  # the first place that was named is one of the differences
    false_origins: int = 0
    false_confirmed: int = 0
    unmatched: int = 0
    promised: bool = False  # an origin stands under ALIGNED, which is never to be
    held: int = 0  # calls that the forced pass held to the reference
    left: int = 0  # layers that it left with their own values
    advised: bool = False  # weights were left over; the capture was made again with --allow-missing, as it said
    code: bool = False  # one mistake in the port's own code, planted: a line is wrong
    lined: bool = False  # that line is told, or an edit of it
    patched: Optional[bool] = None  # with the edits that are told the port is right; None where it was not tried
    misses: tuple[str, ...] = ()
    figures: Json = field(default_factory=dict)  # of each command: exit code, seconds, peak memory

    @property
    def clean(self) -> bool:
        """A right port that was called right, with nothing named."""
        return not self.differences and self.outcome == "aligned" and not self.false_origins


def judge(case: Verdict, differences: Sequence[Difference], answer: Json) -> Verdict:
    """`case` with what of it was named."""
    entries = [*answer["origins"], *answer.get("suspects", ())]
    false = [entry for entry in entries if not any(one.is_at(entry) for one in differences)]
    told = [one for one in differences if not one.hidden]
    found = [(one, [entry for entry in entries if one.is_at(entry)]) for one in told]
    named = [one for one, places in found if places]
    causes = [_right_causes(one, places) for one, places in found]
    first = bool(entries) and any(one.is_at(entries[0]) for one in told)
    counts = answer.get("counts", {})
    return Verdict(
        **{
            **case.__dict__,
            "outcome": answer["outcome"],
            "named": len(named),
            "small_named": sum(one.small for one in named),
            "caused": sum(bool(right) for right in causes),
            "proved": sum(any(cause.get("confirmed") for cause in right) for right in causes),
            "first": first,
            "false_origins": len(false),
            "false_confirmed": sum(_confirmed(entry) for entry in false),
            "unmatched": sum(int(counts.get(key, 0)) for key in counts if "unmatched" in key),
            "promised": answer["outcome"] == "aligned" and bool(answer["origins"]),
            "held": int(answer.get("held", {}).get("calls", 0)),
            "left": len(answer.get("held", {}).get("left", ())),
            "code": case.planted and all(one.lines for one in told),
            "lined": any(_is_lined(one, places) for one, places in found),
            "misses": tuple(_misses(told, answer, entries, false, named, first)),
        }
    )


def refused(case: Verdict, reason: str) -> Verdict:
    """`case`, to which a command gave no answer."""
    return Verdict(**{**case.__dict__, "outcome": "refused", "misses": (f"refused: {reason}",)})


def _misses(
    differences: Sequence[Difference],
    answer: Json,
    entries: Sequence[Json],
    false: Sequence[Json],
    named: Sequence[Difference],
    first: bool,
) -> Iterator[str]:
    """One line for each thing that was answered wrongly."""
    if not differences and answer["outcome"] != "aligned":
        counts = ", ".join(f"{key} {value}" for key, value in answer.get("counts", {}).items() if value)
        yield f"a right port is called {answer['outcome']} ({counts})"
    for one in differences:
        if one not in named:
            yield f"not named: {one.id}" + (" (small)" if one.small else "")
    if differences and named and not first:
        yield f"first is {place(entries[0])}"
    for entry in false:
        yield f"false: {place(entry)}"


def place(entry: Json) -> str:
    """A place that was called wrong, in one line."""
    causes = [f"{cause['id']}{' confirmed' if cause.get('confirmed') else ''}" for cause in entry.get("causes") or ()]
    line = (entry.get("line") or {}).get("text") or ""
    parts = [entry["layer"] or "(net)", entry["where"], ", ".join(causes[:NAMED]), f"`{line.strip()}`" if line else ""]
    return " ".join(part for part in parts if part)


def edits(answer: Json) -> list[Json]:
    """The edits that are told, of all places."""
    entries = [*answer["origins"], *answer.get("suspects", ())]
    return [entry["edit"] for entry in entries if entry.get("edit")]


def _is_lined(one: Difference, places: Sequence[Json]) -> bool:
    """Whether the wrong line, or an edit of it, is told at these places."""
    lines = [(entry.get("line") or {}).get("text") or "" for entry in places]
    lines += [line["before"] for entry in places if entry.get("edit") for line in entry["edit"]["lines"]]
    return any(piece in line for line in lines for piece in one.lines)


def _confirmed(entry: Json) -> bool:
    return any(cause.get("confirmed") for cause in entry.get("causes") or ())


def _right_causes(one: Difference, places: Sequence[Json]) -> list[Json]:
    return [cause for entry in places for cause in (entry.get("causes") or ())[:NAMED] if cause["id"] in one.causes]
