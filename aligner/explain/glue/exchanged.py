"""What it is called when one view of a value stands in another's place."""

from __future__ import annotations

import re
from collections.abc import Mapping

from aligner.explain.glue import resizing
from aligner.explain.glue.lengths import apart, ends_apart
from aligner.explain.glue.views import View
from aligner.record import Scalar

NORMS = {"standardize", "standardize_by_std", "standardize_by_std_n", "rms_norm", "centre", "share", "cumsum"}
REDUCTIONS = {"mean", "max", "sum", "min", "norm", "norm1", "std", "var", "std_n", "var_n", "median", "numpy median"}
ENDS = {"first", "last", "second", "last but one", "slice", "stride", "index"}
TURNS = {"transpose", "reshape", "turned and reshaped"}


def instead(old: View, new: View) -> tuple[str, Mapping[str, Scalar], int]:
    """The cause's id, facts and doubt for one view in another's place."""
    facts: dict[str, Scalar] = {"other": old.text, "instead": new.text}
    if old.piece is not new.piece and apart(old.piece.name, new.piece.name):
        return "mask-boundary", facts, 0
    if old.piece is not new.piece and old.piece.name != new.piece.name:
        return "wrong-tensor", facts, 2 + (not new.plain) + new.piece.rank // 4
    hows = {old.how, new.how}
    if hows == {"mapped"} and old.detail.removesuffix(".T") == new.detail.removesuffix(".T"):
        return "matmul-transposed", facts, 0
    if hows in ({"cosine", "dot"}, {"cosines", "matmul"}):
        return ("normalize-missing" if old.how.startswith("cos") else "expression-differs"), facts, 0
    if old.how == new.how and "where" in old.how and old.detail == new.detail:
        return ("mask-boundary" if ends_apart(old.text, new.text) else "wrong-tensor"), facts, 0
    if old.how == new.how and "where" in old.how and "softmax" in old.how:
        return "softmax-axis", facts, 0
    masked = [how for how in hows if "where" in how]
    if len({re.sub(r"axis \d+", "axis", how) for how in hows}) < len(hows) and "softmax" in old.how:
        return "softmax-axis", facts, 0
    if any(" kept where" in how for how in hows) and len(masked) == 2:
        return "mask-after-softmax", facts, 0
    if len(masked) == 2 and len({how.replace(" not", "") for how in hows}) == 1:
        return "mask-inverted", facts, 0
    if masked and all("softmax" in how for how in hows) and len(masked) == 2 and old.how == new.how:
        return "softmax-axis", facts, 0
    if len(masked) == 2 and sum(how.endswith("not") for how in masked) != 1:
        return "reduction-other", facts, 0
    if len(masked) == 1 and len({re.split(" kept| where| of", how)[0] for how in hows}) == 2:
        return ("reduction-other" if hows & (REDUCTIONS | ENDS) else "expression-differs"), facts, 1
    if masked:
        cause = "mask-missing" if len(masked) == 1 else "mask-inverted" if old.how != new.how else "reduction-axis"
        return cause, facts, 0
    if hows in ({"std", "std_n"}, {"var", "var_n"}, {"standardize_by_std", "standardize_by_std_n"}):
        return "std-ddof", {**facts, "ratio": f"{new.text} / {old.text}"}, 0
    if hows == {"median", "numpy median"}:
        return "median-numpy-vs-torch", facts, 0
    if old.how == new.how and old.how in REDUCTIONS:
        return _axes(old, new), facts, 0
    if hows == {"norm", "norm1"}:
        return "norm-order", facts, 0
    if hows <= REDUCTIONS | ENDS and hows & REDUCTIONS:
        return "reduction-other", facts, 0
    if hows <= ENDS | {"chunk", "every", ""} and hows != {""}:
        return ("chunk-order" if hows <= {"chunk", "every"} else "slice-off"), facts, 0
    if hows == {"resize"}:
        told = {
            **facts,
            "setting": "mode",
            "reference_value": old.detail,
            "port_value": new.detail,
            "written": old.text,
        }
        cause = resizing.cause(old.detail, new.detail)
        if cause == "interpolate-align-corners":
            sides = {"reference_value": "corners" in old.detail, "port_value": "corners" in new.detail}
            told.update(setting="align_corners", **sides)
        return cause, told, 0
    if hows == {"pad", ""}:
        return "pad-differs", facts, 0
    if hows == {"pad"}:
        return (*_padding(old, new, facts), 0)
    if all(how.startswith("sum by softmax") for how in hows):
        return "softmax-axis", facts, 0
    if hows <= TURNS:
        return "view-vs-transpose", facts, 0
    return _along(old, new, facts)


def ratio_turned(facts: dict[str, Scalar]) -> dict[str, Scalar]:
    """A ratio of two deviations is the port's by the reference's, also where the one is known from the other."""
    if "instead" not in facts:
        return facts
    other, new = facts["instead"], facts["other"]
    return {**facts, "other": other, "instead": new, "ratio": f"{new} / {other}"}


def _axes(old: View, new: View) -> str:
    """Means of maps over their places, channels first on one side and last on the other, have a name of their own."""
    places = {view.detail for view in (old, new)} == {"axis (2, 3)", "axis (1, 2)"}
    return "mean-wrong-axes-nhwc" if places and old.how == "mean" and old.piece.array.ndim == 4 else "reduction-axis"


def _padding(old: View, new: View, facts: dict[str, Scalar]) -> tuple[str, Mapping[str, Scalar]]:
    """Whether a padding that stood in front of a sequence is on both sides, or behind it."""
    widths = [view.detail.rsplit(" ", 1)[0] for view in (old, new)]
    front, other = (re.findall(r"\((\d+), (\d+)\)", text.replace("(0, 0)", "")) for text in widths)
    both = len(front) == len(other) == 1 and "0" not in other[0]
    if both and front[0][1] == "0" and old.detail.endswith("constant"):
        return "causal-conv-padding", {**facts, "found": other[0][0], "wanted": front[0][0]}
    return "pad-differs", facts


def _along(old: View, new: View, facts: dict[str, Scalar]) -> tuple[str, Mapping[str, Scalar], int]:
    if hows := {old.how, new.how} & {"softmax", "log_softmax"}:
        if {old.how, new.how} <= hows:
            told = {**facts, "reference_function": old.text, "port_function": new.text}
            return "softmax-axis" if old.how == new.how else "activation-other", told, 1
        return "softmax-missing" if old.how in hows else "softmax-extra", facts, 1
    if {old.how, new.how} == {"l2_normalize", "rms_norm"}:
        return "reduction-other", facts, 1
    if "l2_normalize" in (old.how, new.how):
        same = "normalize-axis" if old.how == new.how else "normalize-missing" if old.how == "l2_normalize" else ""
        return same or "normalize-extra", facts, 1
    if "flip" in (old.how, new.how):
        axis = int((old if old.how == "flip" else new).detail.split()[-1])
        image = old.array.ndim >= 3 and old.array.shape[axis] == 3
        return ("rgb-bgr" if image else "axis-flipped"), {**facts, "axis": axis}, 0
    if old.how == new.how and (
        old.how.startswith("standardize") or old.how in ("rms_norm", "centre", "share", "cumsum")
    ):
        return "reduction-axis", facts, 1
    if old.how in ("roll(1)", "roll(-1)") and new.how in ("roll(1)", "roll(-1)"):
        return ("roll-sign" if old.detail == new.detail else "expression-differs"), facts, 1
    if {old.how, new.how} <= TURNS | {""}:
        return "view-vs-transpose", facts, 1
    return "expression-differs", facts, 2
