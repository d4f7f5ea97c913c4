"""A loss that is a layer: which wrong loss of the same tensors gives what the port made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Optional

import numpy as np

from aligner.explain import port_words
from aligner.explain.case import MINDSPORE, distance
from aligner.explain.patterns.loss_forms import TORCH_CLAMP, Given, Loss
from aligner.explain.patterns.loss_mistakes import NAMES, Mistake, called, mistakes
from aligner.explain.patterns.pair import Floats, Pair
from aligner.explain.patterns.scene import Scene
from aligner.explain.phrase import Fact, Phrase
from aligner.explain.suspect import Suspect
from aligner.record import LayerSpec

EXACT = 4e-6
"""Relative distance within which a formula is the reference's loss: one number alone must be met closely."""

CLOSE = 1e-4
"""The same for the port's value, which may be computed in a shorter type: one number is met by chance soon."""

APART = 10.0
"""How many times nearer to the port's value than the right loss a wrong one must come."""


def suspects(scene: Scene) -> Iterator[Suspect]:
    """The mistake that gives the port's value; the reference's own must come out by the same means."""
    base = BASES.get(scene.kind, _none)(scene)
    if base is None or not gives(base, scene.pair.expected, EXACT):
        return
    yield from told(scene.pair, base, constants(scene.case.reference, scene.case.port), scene, scene.case.words)


def told(
    pair: Pair, base: Loss, own: Iterable[float], scene: Optional[Scene] = None, words: str = MINDSPORE
) -> Iterator[Suspect]:
    """The mistakes in the right loss that give the port's value, the commonest first; `words` are the port's."""
    before = close(base(), pair.actual)
    limit = min(pair.limit, CLOSE) if pair.actual.size == 1 else pair.limit
    seen: list[float] = []
    for mistake in mistakes(base, own):
        left = close(mistake.loss(), pair.actual)
        if left in seen or left > limit or left * APART > before:
            continue
        seen.append(left)  # what leaves just as much is the same loss, said otherwise
        change = {} if scene is None else scene.change(mistake.setting)
        yield pair.suspect(mistake.cause, left, 0.93, change, **_facts(mistake, base, scene, words))


def gives(loss: Loss, wanted: Floats, limit: float) -> bool:
    """Whether the loss is this value."""
    return close(loss(), wanted) <= limit


def close(found: Optional[Floats], wanted: Floats) -> float:
    """Relative distance, whatever the two shapes; inf for other counts of numbers, and where something is no number."""
    if found is None or found.size != wanted.size or not np.isfinite(wanted).all():
        return float("inf")
    return distance(found.reshape(-1), wanted.astype(np.float64).reshape(-1))


def constants(*specs: LayerSpec) -> tuple[float, ...]:
    """Numbers that stand in the settings of layers: margins and temperatures that people gave."""
    values = [value for spec in specs for value in spec.attributes.values()]
    found = {float(v) for v in values if isinstance(v, (int, float)) and not isinstance(v, bool) and 0 <= v <= 100}
    return tuple(sorted(found))[:12]


def _facts(mistake: Mistake, base: Loss, scene: Optional[Scene], words: str) -> dict[str, Fact]:
    function = port_words.function(words, FUNCTIONS.get(base.family, "mse_loss"))
    value: Fact = mistake.reference
    if mistake.setting == "reduction":
        value = NAMES.get(str(base.get("reduction", "mean")), value)
    written = f"{function}(..., {mistake.setting}={'...' if isinstance(value, Phrase) else value})"
    if scene is not None and mistake.setting in scene.case.reference.attributes:
        written = port_words.written(scene.case, scene.case.reference, [mistake.setting])
    return {
        "loss": called(base.family),
        "setting": mistake.told or mistake.setting,
        "reference_value": mistake.reference,
        "port_value": mistake.port,
        "written": written,
        "given": ", ".join(given.text for given in base.given),
    }


FUNCTIONS: Mapping[str, str] = {
    "cross entropy": "cross_entropy",
    "soft cross entropy": "cross_entropy",
    "binary cross entropy": "binary_cross_entropy_with_logits",
    "L1 loss": "l1_loss",
    "Huber loss": "huber_loss",
    "smooth L1 loss": "smooth_l1_loss",
    "KL divergence": "kl_div",
    "Gaussian NLL": "gaussian_nll_loss",
    "cosine embedding": "cosine_embedding_loss",
    "triplet margin": "triplet_margin_loss",
    "margin ranking": "margin_ranking_loss",
    "hinge embedding": "hinge_embedding_loss",
    "multi margin": "multi_margin_loss",
}
"""A loss -> the function that people write for it, whose name is one in both frameworks."""


def _none(_scene: Scene) -> Optional[Loss]:
    return None


def _base(family: str, count: int, *same: str, **names: str) -> Callable[[Scene], Optional[Loss]]:
    """A loss of `count` tensors; settings of the same names, or of others: our word = the layer's."""
    table = {**{name: name for name in same}, **names}

    def base(scene: Scene) -> Optional[Loss]:
        if len(scene.inputs) != count:
            return None
        given = tuple(Given(f"input.{number}", array) for number, array in enumerate(scene.inputs))
        found = {ours: scene.case.reference.attributes.get(theirs) for ours, theirs in table.items()}
        settings: dict[str, Any] = {name: value for name, value in found.items() if isinstance(value, (int, float))}
        return Loss(family, given, {**settings, "reduction": str(scene.setting("reduction", "mean"))})

    return base


def class_axis(scores: Floats, labels: Floats) -> Optional[int]:
    """Where the classes are, in the scores: torch has them second."""
    if scores.ndim == labels.ndim + 1:
        if scores.shape[:1] + scores.shape[2:] == labels.shape:
            return 1
        if scores.shape[:-1] == labels.shape:
            return -1
    return None


def _cross_entropy(logs: str) -> Callable[[Scene], Optional[Loss]]:
    plain = _base("cross entropy", 2, ignore="ignore_index", smoothing="label_smoothing")
    soft = _base("soft cross entropy", 2)

    def base(scene: Scene) -> Optional[Loss]:
        loss = plain(scene)
        if loss is None:
            return None
        scores, labels = scene.inputs
        weight, axis = scene.parameter("weight"), class_axis(scores, labels)
        if axis is None and scores.shape == labels.shape and weight is None and not scene.number("label_smoothing", 0):
            made = soft(scene)
            return made and made.changed(axis=1 if scores.ndim > 1 else 0)
        if axis is None:
            return None
        whole = Loss(loss.family, (loss.given[0], Given("labels", labels.astype(np.int64))), loss.settings)
        return whole.changed(axis=axis, logs=logs, weight=weight)

    return base


def _binary(logits: bool) -> Callable[[Scene], Optional[Loss]]:
    plain = _base("binary cross entropy", 2)

    def base(scene: Scene) -> Optional[Loss]:
        loss = plain(scene)
        more: dict[str, Any] = {"logits": logits, "clamp": TORCH_CLAMP, "weight": scene.parameter("weight")}
        if scene.parameter("pos_weight") is not None:
            more["pos_weight"] = scene.parameter("pos_weight")
        return None if loss is None else loss.changed(**more)

    return base


BASES: Mapping[str, Callable[[Scene], Optional[Loss]]] = {
    "CrossEntropyLoss": _cross_entropy("log_softmax"),
    "NLLLoss": _cross_entropy("given"),
    "BCELoss": _binary(False),
    "BCEWithLogitsLoss": _binary(True),
    "L1Loss": _base("L1 loss", 2),
    "MSELoss": _base("MSE loss", 2),
    "SmoothL1Loss": _base("smooth L1 loss", 2, edge="beta"),
    "HuberLoss": _base("Huber loss", 2, edge="delta"),
    "KLDivLoss": _base("KL divergence", 2, "log_target"),
    "GaussianNLLLoss": _base("Gaussian NLL", 3, "full", "eps"),
    "PoissonNLLLoss": _base("Poisson NLL", 2, "log_input", "full", "eps"),
    "CosineEmbeddingLoss": _base("cosine embedding", 3, "margin"),
    "TripletMarginLoss": _base("triplet margin", 3, "margin", "p", "eps", "swap"),
    "MarginRankingLoss": _base("margin ranking", 3, "margin"),
    "HingeEmbeddingLoss": _base("hinge embedding", 2, "margin"),
    "SoftMarginLoss": _base("soft margin", 2),
    "MultiMarginLoss": _base("multi margin", 2, "margin", "p"),
}
"""Kind of layer -> the loss that the reference computes."""
