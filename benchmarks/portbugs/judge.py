"""One answer of `aligner compare --json` against what was planted: data in, data out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Optional

from corpus import Bug, Origin

TOLERANCE = 1e-3
NOTICED = 1e-6  # an edit that moves no record by more than this is no bug
EDITS = ("the line", "elsewhere", "none")
LINES = ("the line", "between", "none", "another")
NAMED = 2  # a reader looks at so many causes
EDITED = "code-edit"
FRAMEWORK = {"framework-differs", "framework-layer-differs"}
"""What is said of an operation or a layer of the framework's that makes something else of the same values."""

LINE_CAUSES = {"line-differs", "line-argument", "line-operand", "line-missing", "line-extra"}

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Judgement:
    """What was right in the answer to one bug; `None` where a question was not asked."""

    id: str
    net: str
    kind: str
    below: bool
    double: bool
    first: bool = False  # the first place that was named is a planted one
    every: bool = False  # all planted places were named
    alone: bool = False  # nothing else was named
    where: bool = False
    between: Optional[bool] = None
    cause: bool = False
    confirmed: bool = False
    edit: Optional[str] = None  # of code: whether the lines of a confirmed edit are those; the worst of two
    sure: Optional[bool] = None  # of code: the very line is shown, or an edit is confirmed, for each mistake
    mended: Optional[bool] = None  # with the patch the port is right; None where it was not tried
    told: bool = False  # there is an edit to apply
    line: Optional[str] = None  # of code: "the line", "between", "another" or "none"; the worst of two
    plain: str = "nothing"
    plain_every: bool = False
    misses: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()  # of the corpus, not of the answer
    timing: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Alarm:
    """What was said about a correct port."""

    net: str
    precision: str
    exit_code: int
    named: tuple[str, ...]
    timing: Json = field(default_factory=dict)

    @property
    def false(self) -> bool:
        """Whether a correct port was called wrong."""
        return self.exit_code != 0 or bool(self.named)


def judge(bug: Bug, answer: Json, changed: AbstractSet[int] = frozenset()) -> Judgement:
    """What of this bug was named; `changed` are the lines of the port that it has changed."""
    named = _named(answer)
    chosen = _chosen(bug.origins, named)
    strangers = [entry for entry in named if not any(origin.is_at(entry["layer"]) for origin in bug.origins)]
    matched = [(origin, entry) for origin, entry in zip(bug.origins, chosen) if entry is not None]
    every = len(matched) == len(bug.origins)
    first = bool(named) and named[0] not in strangers
    causes = [_right_causes(origin, entry, changed) for origin, entry in matched]
    between = [entry.get("between") == list(origin.between) for origin, entry in matched if origin.between]
    plain, plain_every = _plain(bug, answer)
    where = every and all(entry["where"] in origin.where for origin, entry in matched)
    return Judgement(
        id=bug.id,
        net=bug.net,
        kind=bug.kind,
        below=bug.below,
        double=bug.double,
        first=first,
        every=every,
        alone=not strangers,
        where=where,
        between=(every and all(between)) if any(origin.between for origin in bug.origins) else None,
        cause=every and all(causes),
        confirmed=every and all(any(cause.get("confirmed") for cause in right) for right in causes),
        line=_line(bug.origins, chosen, changed),
        edit=_edit(bug.origins, chosen, changed),
        told=any(entry.get("edit") for entry in named),
        sure=_sure(bug.origins, chosen, changed),
        plain=plain,
        plain_every=plain_every,
        misses=(*_misses(bug, named, first, strangers, chosen, changed), *_broken(answer)),
        faults=tuple(_faults(bug, answer)),
        timing=answer["port"].get("timing") or {},
    )


def failed(bug: Bug, reason: str) -> Judgement:
    """A case that gave no answer: all of it is missed."""
    return Judgement(bug.id, bug.net, bug.kind, bug.below, bug.double, faults=(reason,))


def alarm(net: str, precision: str, exit_code: int, answer: Json) -> Alarm:
    """What was said about a correct port."""
    named = tuple(_told(entry) for entry in _named(answer))
    return Alarm(net, precision, exit_code, named, answer["port"].get("timing") or {})


def _named(answer: Json) -> list[Json]:
    """The places called wrong: over the tolerance first, then those below it, but for what is said to be no mistake of
    the port's there: what is the framework's own and makes a little of the same values otherwise.
    """
    named = (*answer["origins"], *answer.get("suspects", ()))
    return [one for one in named if not FRAMEWORK & {*_first_cause(one)} or not _is_small(one)]


def _is_small(entry: Json) -> bool:
    return float(entry.get("own_error") or 1.0) < TOLERANCE  # "inf" is one, too


def _first_cause(entry: Json) -> list[str]:
    return [cause["id"] for cause in (entry.get("causes") or ())[:1]]


def _chosen(origins: Sequence[Origin], named: Sequence[Json]) -> list[Optional[Json]]:
    """The entry that stands for each origin; two bugs in one layer's code need two entries."""
    chosen: list[Optional[Json]] = []
    for origin in origins:
        free = [entry for entry in named if origin.is_at(entry["layer"]) and not any(entry is one for one in chosen)]
        chosen.append(max(free, key=partial(_likeness, origin), default=None))
    return chosen


def _likeness(origin: Origin, entry: Json) -> tuple[bool, bool, bool]:
    """What speaks for this entry; of equals the first one is taken."""
    between = origin.between is None or entry.get("between") == list(origin.between)
    return entry["where"] in origin.where, entry["layer"] == origin.layer, between


def _right_causes(origin: Origin, entry: Json, changed: AbstractSet[int]) -> list[Json]:
    """Those that a fair reader accepts; of wrong code, the very line and the edit of it say all."""
    said = {*origin.causes}
    said |= {EDITED} if _edited(entry.get("edit"), changed) == "the line" else set()
    if "glue" in origin.where and entry["where"] == "glue":
        said |= LINE_CAUSES if _shown(entry.get("line"), changed) == "the line" else set()
    return [cause for cause in (entry.get("causes") or ())[:NAMED] if cause["id"] in said]


def _line(origins: Sequence[Origin], chosen: Sequence[Optional[Json]], changed: AbstractSet[int]) -> Optional[str]:
    """Whether the lines that are shown of wrong code are those that the bug has changed."""
    code = [entry for origin, entry in zip(origins, chosen) if "glue" in origin.where]
    shown = [_shown((entry or {}).get("line"), changed) for entry in code if not entry or entry["where"] == "glue"]
    return max(shown, key=LINES.index, default=None)


def _code(origins: Sequence[Origin], chosen: Sequence[Optional[Json]]) -> list[Json]:
    """What is said of each mistake in code."""
    found = [entry or {} for origin, entry in zip(origins, chosen) if "glue" in origin.where]
    return [entry for entry in found if not entry or entry["where"] == "glue"]


def _edit(origins: Sequence[Origin], chosen: Sequence[Optional[Json]], changed: AbstractSet[int]) -> Optional[str]:
    """Whether the lines of the edits that are confirmed are those that the bug has changed."""
    told = [_edited(entry.get("edit"), changed) for entry in _code(origins, chosen)]
    return max(told, key=EDITS.index, default=None)


def _edited(edit: Optional[Json], changed: AbstractSet[int]) -> str:
    if edit is None:
        return "none"
    rows = {line["line"] + n for line in edit["lines"] for n in range(len(line["before"].splitlines()) or 1)}
    return "the line" if rows & changed else "elsewhere"


def _sure(origins: Sequence[Origin], chosen: Sequence[Optional[Json]], changed: AbstractSet[int]) -> Optional[bool]:
    code = _code(origins, chosen)
    told = [entry.get("edit") is not None or _shown(entry.get("line"), changed) == "the line" for entry in code]
    return all(told) if told else None


def _shown(fork: Optional[Json], changed: AbstractSet[int]) -> str:
    if fork is None:
        return "none"
    first, last = fork["port"], (fork["until"] or {}).get("port")
    if fork["kind"] != "between":
        return "the line" if first and first["line"] in changed else "another"
    start, end = (spot["line"] if spot else None for spot in (first, last))
    inside = any((start is None or start <= line) and (end is None or line <= end) for line in changed)
    return "between" if inside else "another"


def _misses(
    bug: Bug,
    named: Sequence[Json],
    first: bool,
    strangers: Sequence[Json],
    chosen: Sequence[Optional[Json]],
    changed: AbstractSet[int],
) -> Iterator[str]:
    """One line for each question that was answered wrongly."""
    if not first:
        yield f"first: {_told(named[0]) if named else 'nothing'} was named"
    for entry in strangers:
        yield f"extra: {_told(entry)}"
    for origin, found in zip(bug.origins, chosen):
        if found is None:
            yield f"origin: {origin.layer or '(net)'} was not named"
        else:
            yield from _half_right(origin, found, changed)


def _half_right(origin: Origin, entry: Json, changed: AbstractSet[int]) -> Iterator[str]:
    place = origin.layer or "(net)"
    if entry["where"] not in origin.where:
        yield f"where: {place} is {'/'.join(origin.where)}, not {entry['where']}"
    if origin.between and entry.get("between") != list(origin.between):
        yield f"between: {place} is {list(origin.between)}, not {entry.get('between')}"
    right = _right_causes(origin, entry, changed)
    ids = [cause["id"] for cause in entry.get("causes") or ()]
    if not right:
        yield f"cause: {place} is {'/'.join(origin.causes)}, not {', '.join(ids[:NAMED]) or 'none'}"
    elif not any(cause.get("confirmed") for cause in right):
        yield f"confirmed: {place} {right[0]['id']} was not"


def _broken(answer: Json) -> Iterator[str]:
    """A mistake of aligner's own."""
    for warning in answer.get("warnings", ()):
        if warning["id"] == "edits-failed":
            yield f"the search for edits ended with {warning['facts']['error']}"


def _told(entry: Json) -> str:
    between = f" {entry['between']}" if entry.get("between") else ""
    return f"{entry['layer'] or '(net)'} {entry['where']}{between} {entry.get('own_error')}"


def _faults(bug: Bug, answer: Json) -> Iterator[str]:
    """What makes this entry of the corpus no fair question."""
    largest = max((_error(pair) for pair in answer["pairs"] if pair["phase"] == "forward"), default=0.0)
    if largest <= NOTICED:
        yield f"no record differs by more than {NOTICED:.0e}"
    if bug.below and largest > TOLERANCE:
        yield f"called below 1e-3, but the largest error is {largest:.1e}"
    if not bug.below and largest <= TOLERANCE:
        yield f"not called below 1e-3, but the largest error is {largest:.1e}"


def _outputs(answer: Json) -> list[Json]:
    """Pairs of outputs of the forward run, in execution order."""
    pairs = [
        pair
        for pair in answer["pairs"]
        if pair["phase"] == "forward" and pair["slot"].startswith("output") and pair["reference"] and pair["port"]
    ]
    return sorted(pairs, key=lambda pair: int(pair["reference"]["order"]))


def _error(pair: Json) -> float:
    """The error by the rule; values of another shape cannot be nearer than infinitely far."""
    if pair["outcome"] == "incomparable":
        return float("inf")
    return 0.0 if pair["error"] is None else float(pair["error"])


def _plain(bug: Bug, answer: Json) -> tuple[str, bool]:
    """What "the first layer over 1e-3 is the culprit" says, and whether that is all that was planted."""
    over = [pair["layer"] for pair in _outputs(answer) if _error(pair) > TOLERANCE]
    if not over:
        return "nothing", False
    if any(origin.is_at(over[0]) for origin in bug.origins):
        return "origin", not bug.double
    if any(_inside(over[0], origin) for origin in bug.origins):
        return "inside", False
    return "elsewhere", False


def _inside(layer: str, origin: Origin) -> bool:
    parts = layer.split(".")
    return any(origin.is_at(".".join(parts[:count])) for count in range(len(parts)))
