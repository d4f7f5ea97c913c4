"""Causes told from a layer's numbers: what was given, what the reference made of it, what the port did.

Each rule is a hypothesis in numbers: what the mistake would make of the reference's data, set against what the port
made. A rule that fits has proved itself (`Suspect.error`); nothing that merely looks alike is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from aligner.explain.case import Case
from aligner.explain.patterns import (
    accuracy,
    activations,
    approximations,
    convolution,
    embedding,
    linear,
    losses,
    norms,
    notnumbers,
    pooling,
    products,
    rearranging,
    recurrent,
    softmaxes,
    ties,
    upsampling,
)
from aligner.explain.patterns.limits import broken
from aligner.explain.patterns.relations import relations
from aligner.explain.patterns.scene import Scene
from aligner.explain.suspect import Suspect

Rule = Callable[[Scene], Iterable[Suspect]]

LAYERS: tuple[Rule, ...] = (
    accuracy.suspects,
    notnumbers.suspects,
    ties.suspects,
    approximations.suspects,
    activations.suspects,
    softmaxes.suspects,
    norms.suspects,
    products.suspects,
    linear.suspects,
    convolution.suspects,
    pooling.suspects,
    upsampling.suspects,
    rearranging.suspects,
    embedding.suspects,
    recurrent.suspects,
    losses.suspects,
)
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
            found += broken(scene.pair)
        else:
            found += relations(scene.pair)
    yield from found


def _of_layer(scene: Scene) -> Iterator[Suspect]:
    """The first rule that proves something has the word."""
    if scene.pair.alike and scene.pair.before <= scene.pair.limit / 20.0:
        return
    for rule in LAYERS:
        proved = False
        for suspect in rule(scene):
            proved = proved or suspect.error is not None
            yield suspect
        if proved:
            return
