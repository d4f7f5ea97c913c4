"""Which calls are made in a loop."""

from __future__ import annotations

import pytest

from aligner.compare.net import nest
from aligner.compare.turns import loops
from aligner.record import Call, Phase


def visits(*layers):
    """The net's calls of these layers, one after the other."""
    inside = [call(layer, layers[:n].count(layer), 2 * n + 1, 2 * n + 2) for n, layer in enumerate(layers)]
    return nest([call("", 0, 0, 2 * len(layers) + 1), *inside])


def call(layer, number, first, last):
    return Call(step=0, phase=Phase.FORWARD, layer=layer, number=number, first=first, last=last, inputs=(), outputs=())


@pytest.mark.parametrize(
    ("layers", "found"),
    [
        (["cell", "out", "cell", "out", "cell", "out"], {"cell"}),
        (["emb", "cell", "out", "cell", "out", "cell", "out"], {"cell"}),
        (["cell", "cell", "cell"], {"cell"}),
        (["cell", "out", "cell", "out"], set()),
        (["act", "conv", "norm", "act", "pool", "act"], set()),
    ],
)
def test_all_calls_but_the_first_come_after_the_same_layer(layers, found):
    assert loops(visits(*layers)) == {("", layer) for layer in found}
