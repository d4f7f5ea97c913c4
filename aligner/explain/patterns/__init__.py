"""Causes told from a layer's numbers: what was given, what the reference made of it, what the port did.

Each rule is a hypothesis in numbers: what the mistake would make of the reference's data, set against what the port
made. A rule that fits has proved itself (`Suspect.error`); nothing that merely looks alike is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import numpy as np

from aligner.explain.case import Case
from aligner.explain.inquiry import current
from aligner.explain.patterns import (
    accuracy,
    activations,
    convolution,
    linear,
    norms,
    pooling,
    products,
    softmaxes,
    upsampling,
)
from aligner.explain.patterns.limits import broken
from aligner.explain.patterns.relations import relations
from aligner.explain.patterns.scene import Scene
from aligner.explain.suspect import Suspect

Rule = Callable[[Scene], Iterable[Suspect]]

TOUCHED = 5
"""Elements that a rule touches for each of the value's, about; one that is made for other layers touches none."""

LAYERS: Mapping[str, Rule] = {
    "layer.accuracy": accuracy.suspects,
    "layer.activations": activations.suspects,
    "layer.softmaxes": softmaxes.suspects,
    "layer.norms": norms.suspects,
    "layer.products": products.suspects,
    "layer.linear": linear.suspects,
    "layer.convolution": convolution.suspects,
    "layer.pooling": pooling.suspects,
    "layer.upsampling": upsampling.suspects,
}
"""What is known of layers; each leaves alone what it is not made for."""


def suspects(case: Case) -> Iterator[Suspect]:
    """What the numbers of a wrong layer tell: as that layer's mistake where one fits, else as a mere relation."""
    if case.where != "layer":
        return
    scene = Scene.of(case)
    if scene is None:
        return
    with np.errstate(all="ignore"):  # what overflows fits nothing
        found = list(_of_layer(scene))
        if any(suspect.error is not None for suspect in found):
            found += current().ask("layer.broken", partial(broken, scene.pair))
        else:
            found += current().ask("layer.relations", partial(relations, scene.pair))
    yield from found


def _of_layer(scene: Scene) -> Iterator[Suspect]:
    """The first rule that proves something has the word."""
    if scene.pair.alike and scene.pair.before <= scene.pair.limit / 20.0:
        return
    for name, rule in LAYERS.items():
        found = current().ask(name, partial(rule, scene), TOUCHED * scene.pair.expected.size)
        yield from found
        if any(suspect.error is not None for suspect in found):
            return
