"""What the port's capture has found out by running its code again, by the reference's layer whose code it is: edits
that were proved, operations of the framework's that make something else of the same values.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from aligner.errors import DumpError, Reason, because, form_of
from aligner.explain.edit import Edit
from aligner.explain.line import FIRST, Fork, Spot
from aligner.explain.lines import FRAMEWORK
from aligner.explain.suspect import Cause, Suspect
from aligner.findings import EDIT
from aligner.record import display

if TYPE_CHECKING:
    from aligner.dump.reader import Dump


At = tuple[str, int, str, int, str]
"""The layer whose code it is, and the wrong value: step, layer, call, slot."""


def proved(port: Dump) -> Mapping[str, Sequence[Edit]]:
    """By layer, the one that tells most first; one that another layer's edit puts right has that one's lines.

    Raises:
        DumpError: a finding is damaged.
    """
    found: dict[str, list[tuple[Edit, str]]] = {}
    for kind, facts in port.findings:
        if kind != EDIT or facts.get("proved") is not True:
            continue
        layer = str(facts.get("layer"))
        try:
            edit = Edit.parsed(facts)
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            raise _damaged(port, facts, error) from error
        known = found.setdefault(layer, [])
        leads = bool(edit.hunks) and not (known and known[0][0].setting)
        known.insert(0 if leads else len(known), (edit, str(facts.get("like"))))
    heads = {layer: next((edit for edit, _ in edits if edit.hunks), None) for layer, edits in found.items()}
    told = {
        layer: [_at(edit, heads.get(like) if edit.like else None) for edit, like in edits]
        for layer, edits in found.items()
    }
    return {layer: [edit for edit in edits if edit.hunks] for layer, edits in told.items()}


class Home(NamedTuple):
    """The layer inside of the one that was held whose code is wrong, where the port has that code and no such layer."""

    held: str
    seen: str
    """The layer at whose border it was seen."""
    layer: str


def homes(port: Dump) -> Sequence[Home]:
    """What the search for edits has found of them.

    Raises:
        DumpError: a finding is damaged.
    """
    try:
        return [
            Home(str(facts["layer"]), str(facts["at"][1]), str(facts["home"]))
            for kind, facts in port.findings
            if kind == EDIT and facts.get("home")
        ]
    except (LookupError, TypeError) as error:
        raise DumpError(
            "dump-bad", path=port.path, reason=because(Reason("why-bad-edit", "", form_of(error)))
        ) from error


Slot = tuple[str, str, str]
"""The layer whose code it is, and what is wrong in some of its calls: layer and slot."""


def firsts(port: Dump) -> Mapping[Slot, Fork]:
    """Where no edit was found, the likeliest line, and the reference's first that makes what the port has nowhere.

    Raises:
        DumpError: a finding is damaged.
    """
    found: dict[Slot, Fork] = {}
    for kind, facts in port.findings:
        if kind != EDIT or not facts.get("first"):
            continue
        try:
            theirs, ours = (None if spot is None else _spot(spot) for spot in facts["first"])
            layer, _, at, _, slot = _value(facts)
            found.setdefault((layer, at, slot), Fork(FIRST, theirs, ours))
        except (LookupError, TypeError, ValueError) as error:
            raise _damaged(port, facts, error) from error
    return found


def _spot(facts: Mapping[str, Any]) -> Spot:
    file, text, operation = (str(facts[name]) for name in ("file", "text", "operation"))
    return Spot(file, int(facts["line"]), text, operation)


def _value(facts: Mapping[str, Any]) -> At:
    step, at, call, slot = facts["at"]
    return str(facts["layer"]), int(step), str(at), int(call), str(slot)


def _damaged(port: Dump, facts: Mapping[str, Any], error: Exception) -> DumpError:
    reason = Reason("why-bad-edit", display(str(facts.get("layer")))[:80], form_of(error))
    return DumpError("dump-bad", path=port.path, reason=because(reason))


def _at(edit: Edit, head: Optional[Edit]) -> Edit:
    if head is None:
        return edit
    return replace(edit, hunks=head.hunks, sizes=head.sizes, broken=edit.broken or head.broken)


def framework(dump: Dump) -> str:
    """Which one a net was written for, and its version."""
    words = (str(dump.header.get(word, "")) for word in ("framework", "framework_version"))
    return " ".join(filter(None, words))[:80]


def frameworks(port: Dump) -> Mapping[At, Cause]:
    """By what it makes wrong: an operation that is the reference's in the port's code, and does something else.

    Raises:
        DumpError: a finding is damaged.
    """
    found: dict[At, Cause] = {}
    for kind, facts in port.findings:
        told = facts.get("framework") if kind == EDIT else None
        if told is None:
            continue
        try:
            ours, theirs = (str(name) for name in reversed(told["names"]))
            place = f"{os.path.basename(str(told['file']))}:{int(told['line'])}"
            before = float(facts["before"])
            value = _value(facts)
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            raise _damaged(port, facts, error) from error
        names = {"operation": ours[:80], "port_operation": theirs[:80], "place": place, "framework": framework(port)}
        suspect = Suspect(FRAMEWORK, names)  # measured; no changed code was run
        found.setdefault(value, Cause(suspect.cause, False, suspect.facts, before, None))
    return found
