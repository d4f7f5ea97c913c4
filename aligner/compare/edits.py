"""The edits that the port's capture has proved, by the reference's layer whose code they change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from aligner.errors import DumpError, Reason, because, form_of
from aligner.explain.edit import Edit
from aligner.findings import EDIT
from aligner.record import display

if TYPE_CHECKING:
    from aligner.dump.reader import Dump


def proved(port: Dump) -> Mapping[str, Edit]:
    """By layer; one that another layer's edit puts right has that one's lines.

    Raises:
        DumpError: a finding is damaged.
    """
    found: dict[str, Edit] = {}
    for kind, facts in port.findings:
        if kind != EDIT or facts.get("proved") is not True:
            continue
        layer = str(facts.get("layer"))
        try:
            edit = Edit.parsed(facts)
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            reason = Reason("why-bad-edit", display(layer)[:80], form_of(error))
            raise DumpError("dump-bad", path=port.path, reason=because(reason)) from error
        head = found.get(str(facts.get("like"))) if edit.like else None
        edit = edit if head is None else replace(edit, hunks=head.hunks, sizes=head.sizes)
        if edit.hunks:
            found.setdefault(layer, edit)
    return found
