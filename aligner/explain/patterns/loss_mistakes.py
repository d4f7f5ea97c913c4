"""What people get wrong in a loss: from the right one to each wrong one, with the cause that it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple, Optional

import numpy as np

from aligner.explain.patterns.loss_forms import MINDSPORE_CLAMP, REDUCTIONS, Loss
from aligner.explain.patterns.pair import figure
from aligner.explain.phrase import Fact, Phrase, phrase


class Mistake(NamedTuple):
    """A wrong loss, and which setting makes it so, with the two values."""

    cause: str
    loss: Loss
    setting: str
    reference: Fact
    port: Fact
    told: Optional[Phrase] = None
    """What the setting is called where its name does not say it."""


Rule = Callable[[Loss, Iterable[float]], Iterator[Mistake]]

PARTS: Mapping[str, Fact] = {
    "mean": "'mean'",
    "sum": "'sum'",
    "none": "'none'",
    "batchmean": phrase("per-batch"),
    "mean of counted": phrase("mean-of-counted"),
    "mean of all": phrase("mean-of-all"),
    "last summed": phrase("last-summed"),
    "row means": phrase("row-means"),
}
"""A reduction as a reader is told of it."""

NAMES: Mapping[str, Fact] = {how: repr(how) for how in ("mean", "sum", "none", "batchmean")}
"""Those that a loss has an argument for, as it is written."""

OF_LABELS = ("mean of counted", "mean of all")
"""What means something where labels are left out or weighted."""

SMOOTHINGS = (0.0, 0.1, 0.05, 0.2)
MARGINS = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0)
EDGES = (1.0, 0.5, 0.25, 0.1, 1.0 / 9.0, 0.11, 0.01, 2.0)
TEMPERATURES = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 0.5)
GAMMAS = (0.0, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0)
ALPHAS = (0.25, 0.75, 0.5)


def called(family: str) -> Phrase:
    """The name of a loss, as a reader is told of it."""
    return phrase(family.lower().replace(" ", "-"))


def mistakes(loss: Loss, own: Iterable[float] = ()) -> Iterator[Mistake]:
    """Each wrong loss once; `own` are numbers that stand in the nets' settings."""
    for rule in (*RULES.get(loss.family, ()), _rounded, _reduction):
        yield from rule(loss, tuple(own))


def _reduction(loss: Loss, _own: Iterable[float]) -> Iterator[Mistake]:
    wanted = loss.get("reduction", "mean")
    weighted = loss.get("weight") is not None and loss.family == "cross entropy"
    for how in REDUCTIONS:
        if how == wanted or (how in OF_LABELS and loss.family != "cross entropy"):
            continue
        cause = "loss-reduction"
        if loss.family == "KL divergence" and {how, wanted} == {"mean", "batchmean"}:
            cause = "kldiv-reduction-batchmean"
        elif loss.family == "smooth L1 loss" and how == "none":
            cause = "smoothl1-reduction-default"
        elif wanted == "mean" and how == "mean of counted" and weighted:
            cause = "ce-class-weight-mean"
        elif wanted == "mean" and how == "mean of all":
            ignores = loss.get("ignore") is not None
            cause = "ce-sparse-softmax-mean-over-padding" if ignores or not weighted else "ce-class-weight-mean"
        words = NAMES if cause == "kldiv-reduction-batchmean" else PARTS
        yield Mistake(cause, loss.changed(reduction=how), "reduction", words.get(wanted, wanted), words.get(how, how))


def _numbers(loss: Loss, cause: str, name: str, default: float, values: Iterable[float]) -> Iterator[Mistake]:
    """Another number for a setting."""
    wanted = loss.get(name, default)
    for value in sorted({float(value) for value in values}):
        if abs(value - wanted) > 1e-9 * (abs(wanted) + 1.0):
            yield Mistake(cause, loss.changed(**{name: value}), SPOKEN.get(name, name), figure(wanted), figure(value))


SPOKEN = {"smoothing": "label_smoothing", "ignore": "ignore_index", "edge": "beta"}
"""What people call a setting."""


def _rounded(loss: Loss, _own: Iterable[float]) -> Iterator[Mistake]:
    for dtype in ("float16", "bfloat16"):
        if not loss.get("through") and loss.given[0].array.dtype.kind == "f":
            yield Mistake("loss-in-fp16", loss.changed(through=dtype), "dtype", "float32", dtype)


def _labels(loss: Loss, _own: Iterable[float]) -> Iterator[Mistake]:
    """Labels that count or do not, and labels that stand elsewhere."""
    wanted = loss.get("ignore")
    labels = loss.given[1].array
    for value in (None, *{0, -1, -100, 255, int(labels.max())} - {wanted}):
        if value is None and wanted is None:
            continue
        for clip in (False, True) if labels.min() < 0 else (False,):
            changed = loss.changed(ignore=value, clip=clip)
            yield Mistake("ce-ignore-index-lost", changed, "ignore_index", str(wanted), str(value))
    for shift in (0, 1, -1, 2):
        if shift != loss.get("shift", 0) and labels.ndim == 2 and loss.get("axis", -1) == -1:
            yield Mistake(
                "lm-label-shift", loss.changed(shift=shift), "shift", _shifted(loss.get("shift", 0)), _shifted(shift)
            )


def _shifted(by: int) -> str:
    if not by:
        return "logits, labels"
    codes = (f"[:, :-{abs(by)}]", f"[:, {abs(by)}:]")[:: 1 if by > 0 else -1]
    return f"logits{codes[0]}, labels{codes[1]}"


def _scores(loss: Loss, own: Iterable[float]) -> Iterator[Mistake]:
    """What is done to class scores before and inside the loss."""
    if loss.get("logs", "log_softmax") == "log_softmax":
        for function in ("softmax", "sigmoid"):
            changed = loss.changed(through=function)
            yield Mistake("ce-on-softmax-output", changed, "scores", "logits", f"{function}(logits)")
        given = loss.changed(logs="given", through="softmax")
        yield Mistake("nll-on-probabilities", given, "scores", "log_softmax(logits)", "softmax(logits)")
        given = loss.changed(logs="given")
        yield Mistake("nll-on-probabilities", given, "scores", "log_softmax(logits)", "logits")
        yield from _numbers(loss, "distillation-temperature", "temperature", 1.0, (*TEMPERATURES, *own))
    else:
        yield Mistake("nll-on-probabilities", loss.changed(through="exp"), "scores", "log(p)", "p")
    if loss.family == "cross entropy":
        if loss.get("weight") is not None:
            yield Mistake("ce-class-weight-missing", loss.changed(weight=None), "weight", phrase("given"), "None")
            plain = loss.changed(weight=None, reduction="mean of all")
            yield Mistake("ce-class-weight-missing", plain, "weight", phrase("given"), "None")
        inside = [value for value in (*SMOOTHINGS, *own) if 0 <= value < 1]
        yield from _numbers(loss, "ce-label-smoothing", "smoothing", 0.0, inside)
        yield from _plain(loss)
        if loss.get("smoothing"):
            share = figure(loss.get("smoothing"))
            wanted, found = phrase("smoothing-all", share), phrase("smoothing-others", share)
            yield Mistake("ce-label-smoothing", loss.changed(spread="others"), "label_smoothing", wanted, found)


def _plain(loss: Loss) -> Iterator[Mistake]:
    """An older loss that lacks several settings at once."""
    said = {
        "ignore": ("ignore_index", loss.get("ignore")),
        "weight": ("weight", loss.get("weight")),
        "smoothing": ("label_smoothing", loss.get("smoothing") or None),
    }
    given = [name for name, (_, value) in said.items() if value is not None]
    for count in range(2, len(given) + 1):
        for lost in combinations(given, count):
            changed = loss.changed(**{name: 0.0 if name == "smoothing" else None for name in lost})
            words = ", ".join(said[name][0] for name in lost)
            yield Mistake("ce-settings-lost", changed, words, phrase("given"), "None")


def _binary(loss: Loss, own: Iterable[float]) -> Iterator[Mistake]:
    if loss.get("logits", True):
        yield Mistake("bce-double-sigmoid", loss.changed(through="sigmoid"), "scores", "logits", "sigmoid(logits)")
        given = loss.changed(logits=False)
        yield Mistake("bce-logits-as-probabilities", given, "loss", phrase("of-logits"), phrase("of-probabilities"))
    else:
        taken = loss.changed(logits=True)
        told = phrase("of-probabilities"), phrase("of-logits-sigmoid")
        yield Mistake("bce-double-sigmoid", taken, "loss", *told)
        clamp = loss.changed(clamp=MINDSPORE_CLAMP)
        yield Mistake("bce-log-clamp", clamp, "clamp", figure(loss.get("clamp", 100.0)), figure(MINDSPORE_CLAMP))
    positive = loss.get("pos_weight")
    if positive is not None:
        both = loss.changed(pos_weight=1.0, weight=positive)
        yield Mistake("bce-logits-pos-weight", both, "pos_weight", phrase("given"), phrase("given-as-weight"))
        missing = loss.changed(pos_weight=1.0)
        yield Mistake("bce-pos-weight-missing", missing, "pos_weight", phrase("given"), "None")
    yield from _focal(loss, own)


def _focal(loss: Loss, own: Iterable[float]) -> Iterator[Mistake]:
    alpha, gamma = loss.get("alpha"), loss.get("gamma", 0.0)
    if gamma:
        yield from _numbers(loss, "focal-gamma", "gamma", 0.0, (*GAMMAS, *own))
    if alpha is not None:
        yield Mistake("focal-alpha", loss.changed(alpha=None), "alpha", figure(alpha), "None")
        shares = (1.0 - alpha, *(value for value in (*ALPHAS, *own) if 0 < value < 1))
        yield from _numbers(loss, "focal-alpha", "alpha", 0.0, shares)


DISTANCES = ("L1 loss", "MSE loss", "Huber loss", "smooth L1 loss")


def _distance(loss: Loss, own: Iterable[float]) -> Iterator[Mistake]:
    edges = [value for value in (*EDGES, *own) if value > 0]
    if loss.family == "smooth L1 loss":
        yield from _numbers(loss, "smoothl1-beta", "edge", 1.0, edges)
    elif loss.family == "Huber loss":
        for mistake in _numbers(loss, "huber-delta", "edge", 1.0, edges):
            yield mistake._replace(setting="delta")
    swap = {"smooth L1 loss", "Huber loss"}
    for family in DISTANCES:
        if family == loss.family:
            continue
        cause = "huber-vs-smoothl1" if {family, loss.family} == swap else "loss-other"
        for edge in sorted({loss.get("edge", 1.0), *edges}) if family in swap else (1.0,):
            name = called(family)
            if family in swap:
                name = phrase("with-setting", name, "delta" if family == "Huber loss" else "beta", figure(edge))
            yield Mistake(cause, loss.turned(family, edge=edge), "loss", called(loss.family), name)
    for function in ("sqrt", "square", "sigmoid", "exp", "log"):
        if not loss.get("through") and function in ("sigmoid", "exp"):
            changed = loss.changed(through=function)
            yield Mistake("loss-input", changed, "prediction", "x", f"{function}(x)")


def _divergence(loss: Loss, own: Iterable[float]) -> Iterator[Mistake]:
    function, target = loss.get("through", ""), loss.get("target", "")
    temperature = loss.get("temperature", 1.0)
    if function == "log_softmax":
        changed = loss.changed(through="softmax")
        yield Mistake("kldiv-input-not-log", changed, "input", "log_softmax(x)", "softmax(x)")
        swapped = loss.changed(swapped=True, through="log_softmax", target="softmax")
        yield Mistake("kldiv-argument-order", swapped, "order", "(input, target)", "(target, input)")
    elif not loss.get("log_target"):
        yield Mistake("kldiv-input-not-log", loss.changed(through="exp"), "input", "log(p)", "p")
        swapped = loss.changed(swapped=True, through="log", target="exp")
        yield Mistake("kldiv-argument-order", swapped, "order", "(input, target)", "(target, input)")
        yield Mistake("kldiv-argument-order", loss.changed(swapped=True), "order", "(input, target)", "(target, input)")
    else:
        yield Mistake("kldiv-log-target", loss.changed(log_target=False), "log_target", "True", "False")
        yield Mistake("kldiv-log-target", loss.changed(log_target=False, target="exp"), "log_target", "True", "False")
    if target == "softmax":
        given = loss.changed(target="log_softmax", log_target=False)
        yield Mistake("kldiv-log-target", given, "target", "softmax(y)", "log_softmax(y)")
        # Between the two temperatures: one forgotten on either side, or both, or another one.
        for own_value in sorted({1.0, *TEMPERATURES, *own} - {temperature}):
            if own_value > 0:
                told = figure(temperature), figure(own_value)
                one = loss.changed(temperature=own_value, target_temperature=temperature)
                yield Mistake("distillation-temperature", one, "temperature", *told, phrase("pupil-temperature"))
                other = loss.changed(target_temperature=own_value)
                yield Mistake("distillation-temperature", other, "temperature", *told, phrase("teacher-temperature"))
                both = loss.changed(temperature=own_value)
                yield Mistake("distillation-temperature", both, "temperature", *told, phrase("both-temperatures"))
    factor = loss.get("factor", 1.0)
    if factor != 1.0:
        for value in sorted({1.0, factor**0.5, temperature}):
            told = figure(factor), figure(value)
            yield Mistake("distillation-scale", loss.changed(factor=value), "factor", *told)


def _gaussian(loss: Loss, own: Iterable[float]) -> Iterator[Mistake]:
    full = loss.get("full", False)
    yield Mistake("gaussian-nll-full", loss.changed(full=not full), "full", str(full), str(not full))
    for function, told in (("square", "square"), ("sqrt", "root"), ("exp", "exp")):
        values = phrase("variance"), phrase(f"variance-{told}")
        yield Mistake("gaussian-nll-variance", loss.changed(through=function), "var", *values)
    yield from _numbers(loss, "loss-eps", "eps", 1e-6, (1e-6, 1e-8, 1e-5, 1e-3))


def _poisson(loss: Loss, own: Iterable[float]) -> Iterator[Mistake]:
    for name, cause, default in (("log_input", "poisson-log-input", True), ("full", "poisson-full", False)):
        wanted = loss.get(name, default)
        yield Mistake(cause, loss.changed(**{name: not wanted}), name, str(wanted), str(not wanted))


def _margin(default: float) -> Rule:
    def rule(loss: Loss, own: Iterable[float]) -> Iterator[Mistake]:
        if loss.family == "cosine embedding":  # a margin of one would do as well, and nobody has it
            labels = loss.given[2].array
            zeros = np.where(labels == -1, 0, labels)
            if (zeros != labels).any():
                given = (*loss.given[:2], type(loss.given[2])(loss.given[2].text, zeros))
                wrong = Loss(loss.family, given, loss.settings)
                yield Mistake("loss-labels", wrong, "labels", phrase("labels-signed"), phrase("labels-binary"))
        yield from _numbers(loss, "loss-margin", "margin", default, (*MARGINS, *own))
        if loss.family == "triplet margin":
            for power in (1.0, 2.0, *own):
                if power > 0 and power != loss.get("p", 2.0):
                    changed = loss.changed(p=power)
                    yield Mistake("triplet-power", changed, "p", figure(loss.get("p", 2.0)), figure(power))
            swap = bool(loss.get("swap"))
            yield Mistake("triplet-swap", loss.changed(swap=not swap), "swap", str(swap), str(not swap))

    return rule


RULES: Mapping[str, tuple[Any, ...]] = {
    "cross entropy": (_scores, _labels),
    "soft cross entropy": (_scores,),
    "binary cross entropy": (_binary,),
    **dict.fromkeys(DISTANCES, (_distance,)),
    "KL divergence": (_divergence,),
    "Gaussian NLL": (_gaussian,),
    "Poisson NLL": (_poisson,),
    "cosine embedding": (_margin(0.0),),
    "triplet margin": (_margin(1.0),),
    "margin ranking": (_margin(0.0),),
    "hinge embedding": (_margin(1.0),),
    "multi margin": (_margin(1.0),),
}
"""A loss by its name -> what goes wrong in it besides how its parts are put together."""
