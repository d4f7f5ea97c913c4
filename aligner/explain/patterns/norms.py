"""A normalisation that did something else than the reference's: the two forms are read off and set side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from aligner.explain.patterns.norm_form import Form, Reader
from aligner.explain.patterns.pair import figure
from aligner.explain.patterns.scene import Scene
from aligner.explain.suspect import Suspect

EPS_CAUSES = {
    "BatchNorm": "bn-eps-dropped",
    "LayerNorm": "layernorm-eps-default",
    "RMSNorm": "rmsnorm-eps-default",
}

MODES = {"bn-train-flag-default": True, "bn-train-at-eval": False}
"""The mode that the layer should have been in."""


def suspects(scene: Scene) -> Iterator[Suspect]:
    """At most one: the first of what differs, with the rest in its facts."""
    reader = Reader.of(scene)
    if reader is None:
        return
    wanted = reader.read(scene.pair.expected)
    if wanted is None:
        return
    found = reader.read(scene.pair.actual)
    if found is None or found[0] == wanted[0]:
        return
    left = found[1]
    if left * 8 > scene.pair.before:
        return
    differing = [name for name in Form.__dataclass_fields__ if getattr(found[0], name) != getattr(wanted[0], name)]
    yield _suspect(scene, found[0], wanted[0], left, differing)


def _suspect(scene: Scene, found: Form, wanted: Form, left: float, differing: list[str]) -> Suspect:
    told = {"form": _words(found), "wanted": _words(wanted)}
    if differing == ["eps"] or (found.eps != wanted.eps and differing == ["law", "eps"] and _plain(found, wanted)):
        return _eps(scene, found, wanted, left)
    cause, setting, value = _cause(found, wanted, differing)
    if cause in ("reduction-other", "reduction-axis"):
        both = {"instead": told["form"], "other": told["wanted"]}
        told.update(both, port_code=told["form"], reference_code=told["wanted"])
    suspect = scene.setting_suspect(cause, left, 0.85, setting, value, **told)
    return replace(suspect, training=MODES[cause]) if cause in MODES else suspect


def _plain(found: Form, wanted: Form) -> bool:
    return {found.law, wanted.law} == {"var"}


def _eps(scene: Scene, found: Form, wanted: Form, left: float) -> Suspect:
    kind = "RMSNorm" if not wanted.centred else scene.kind
    cause = EPS_CAUSES.get(kind, "norm-eps")
    suspect = scene.setting_suspect(
        cause, left, 0.85, "eps", figure(found.eps), form=_words(found), wanted=_words(wanted)
    )
    if suspect.facts["reference_value"] == "?":
        told = {**suspect.facts, "reference_value": figure(wanted.eps), "written": f"eps={figure(wanted.eps)}"}
        return Suspect(suspect.cause, told, suspect.change, error=left, weight=suspect.weight)
    return suspect


def _cause(found: Form, wanted: Form, differing: list[str]) -> tuple[str, str, str]:
    """The id, and the setting that stands for it, if one does."""
    if "over" in differing:
        cause, setting, value = _over(found.over, wanted.over)
        # A layer norm is written for the last axis; any other norm over one axis was merely told another one.
        other = cause == "layernorm-channels-first" and not wanted.centred
        return ("reduction-axis" if other else cause), setting, value
    if "centred" in differing:
        return ("rmsnorm-written-as-layernorm" if found.centred else "norm-mean-kept"), "", ""
    if "affine" in differing:
        return "norm-affine-differs", "affine", AFFINE[found.affine].strip() or "None"
    summed = "sum" in (found.law, wanted.law)
    return ("reduction-other" if summed else "norm-divisor"), "", ""


def _over(found: str, wanted: str) -> tuple[str, str, str]:
    if wanted == "running" and found.startswith("0"):
        return "bn-train-at-eval", "", _over_what(found)
    if found == "running":
        return "bn-train-flag-default", "", _over_what(found)
    if found.startswith("groups") and wanted.startswith("groups"):
        return "groupnorm-args-swapped", "num_groups", found.split()[1]
    one_axis = "," not in found and "," not in wanted
    return ("layernorm-channels-first" if one_axis else "norm-axes"), "", _over_what(found)


def _over_what(over: str) -> str:
    """What the statistics are taken over, as code."""
    if over == "running":
        return "running=True"
    return over.replace(" ", "=") if over.startswith("groups") else f"axes=({over})"


AFFINE = {"weight, bias": " * weight + bias", "weight": " * weight", "-": "", "bias": " + bias"}
AFFINE["1 + weight"] = " * (1 + weight)"
"""What is done with the parameters, as code."""


def _words(form: Form) -> str:
    """The form in a line of code."""
    root = {
        "var": "sqrt(var + {eps})",
        "unbiased": "sqrt(var(ddof=1) + {eps})",
        "std": "(std + {eps})",
        "unbiased std": "(std(ddof=1) + {eps})",
        "sum": "sqrt(sum(x ** 2))",
        "none": "1",
    }[form.law].format(eps=figure(form.eps))
    mean = "x - mean" if form.centred else "x"
    return f"{f'({mean})' if form.centred else mean} / {root}{AFFINE[form.affine]}, {_over_what(form.over)}"
