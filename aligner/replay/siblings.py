"""Arguments in a form of the port's own that can only be wrong: another layer of the class is given the same value and
is right, and the reference gives these two different ones.

A mask that the layers share, each of them one of several: what is wrong inside of the layer that got the wrong one
comes of it, though its form tells nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Optional

from aligner.compare.checks import OTHER_FORM, Check
from aligner.compare.net import is_input

if TYPE_CHECKING:
    from aligner.dump.reader import Dump
    from aligner.replay.frames import Plan

MOST = 64
"""Arguments with something wrong inside their layers that are set against others."""


def wrongly_given(checks: Sequence[Check], kinds: Mapping[str, type], port: Dump, plan: Plan) -> list[Check]:
    """The checks, in which such arguments are what is wrong, and what their layers make of them follows."""
    found = [*checks]
    wrong = [at for at, check in enumerate(found) if check.fails]
    formed = [at for at, one in enumerate(found) if one.reason == OTHER_FORM and is_input(one.port.slot)]
    asked = 0
    for at in formed if wrong else ():
        argument = found[at]
        inside = [n for n in wrong if found[n].fails and _is_inside(found[n], argument)]
        asked += bool(inside)
        looked = formed if inside and asked <= MOST else ()
        others = (found[n] for n in looked if _is_other(found[n], argument, kinds, port, plan))
        right = any(all(_is_right(found, found[n], argument, other) for n in inside) for other in others)
        if right:
            worst = max((found[n] for n in inside), key=lambda check: check.error)
            found[at] = replace(
                argument,
                error=worst.error,
                deviation=worst.deviation,
                expected=worst.expected,
                reason="",
                by_effect=True,
            )
            for n in inside:
                found[n] = replace(found[n], follows=True)
    return found


def _is_inside(check: Check, argument: Check) -> bool:
    """Whether a value is made, or handed over, in the call that is given the argument."""
    same = (check.port.step, check.port.call) == (argument.port.step, argument.port.call)
    own = check.port.layer == argument.port.layer and not is_input(check.port.slot)
    return same and (own or check.port.layer.startswith(f"{argument.port.layer}."))


def _is_other(other: Check, argument: Check, kinds: Mapping[str, type], port: Dump, plan: Plan) -> bool:
    """Whether another layer of the class is given the same by the port, and something else by the reference."""
    one, two = argument.port, other.port
    if one.layer == two.layer or one.slot != two.slot or kinds.get(one.layer) is not kinds.get(two.layer):
        return False
    given = [_content(port.find(key)) for key in (one, two)]
    wanted = [_content(plan.entries.get(key)) for key in (one, two)]
    return None not in (*given, *wanted) and given[0] == given[1] and wanted[0] != wanted[1]


def _content(entry: object) -> Optional[object]:
    return getattr(entry, "content", None)


def _is_right(checks: Sequence[Check], wrong: Check, argument: Check, other: Check) -> bool:
    """Whether the other layer is right where this one is wrong."""
    layer = other.port.layer + wrong.port.layer[len(argument.port.layer) :]
    there = wrong.port._replace(layer=layer, call=other.port.call, step=other.port.step)
    return any(check.port == there and not check.suspicious for check in checks)
