"""What a forced pass found, out of the port's dump."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from aligner.compare.checks import Check, by_record, from_facts
from aligner.compare.expected import Expectations
from aligner.compare.mixup import captured_from
from aligner.errors import DumpError, Reason, because
from aligner.findings import CHECK, CLEARED
from aligner.record import Key

if TYPE_CHECKING:
    from aligner.dump.reader import Dump


def found_by_force(reference: Dump, port: Dump, expectations: Expectations) -> Mapping[Key, Check]:
    """What a forced pass on this very reference found, by its records; nothing if there was none."""
    if port.header.get("forced") is not True or not captured_from(port, reference):
        return {}
    try:
        checks = [from_facts(facts) for kind, facts in port.findings if kind == CHECK]
    except Reason as error:
        raise DumpError("dump-bad", path=port.path, reason=because(error)) from error
    cleared = {repr(facts.get("at")) for kind, facts in port.findings if kind == CLEARED}
    for place, check in enumerate(checks):
        if cleared and repr([check.key.step, check.key.layer, check.key.call, check.key.slot]) in cleared:
            checks[place] = check = replace(check, follows=True)
        known = expectations.of(check.key)
        if known is not None and known.own > check.expected:
            checks[place] = replace(check, expected=known.own)
    return by_record(checks)


def held(port: Dump) -> tuple[int, tuple[str, ...]]:
    """How many of the port's calls were held to the reference, and the layers that were left with their own values."""
    count = port.header.get("held")
    return count if isinstance(count, int) else 0, tuple(map(str, port.header.get("left") or ()))
