"""Recurrent cells that are written by hand: gates in another order, other functions, other states."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.explain import glue
from aligner.explain.catalogue import sentences
from tests.unit.explain.cases import case, value

RANDOM = np.random.default_rng(31)
GX, GH = (RANDOM.standard_normal((5, 48)).astype(np.float32) for _ in range(2))
C, H, N = (RANDOM.standard_normal((5, 12)).astype(np.float32) for _ in range(3))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(order="ifgo", state=C, new=np.tanh, shift=1.0):
    parts = dict(zip(order, np.split(GX + GH, 4, 1)))
    return sigmoid(parts["f"] + shift) * state + sigmoid(parts["i"]) * new(parts["g"])


def out(order="ifgo", state=N, gate=sigmoid):
    parts = dict(zip(order, np.split(GX + GH, 4, 1)))
    return gate(parts["o"]) * np.tanh(state)


def gru(order="rzn", inverted=False):
    x, h = (dict(zip(order, np.split(side[:, :36], 3, 1))) for side in (GX, GH))
    r, z = (sigmoid(x[gate] + h[gate]) for gate in "rz")
    new = np.tanh(x["n"] + r * h["n"])
    return z * new + (1 - z) * H if inverted else (1 - z) * new + z * H


def first(reference, port):
    sides = [value(np.asarray(side, np.float32), "output.0", "net.cell") for side in (reference, port)]
    known = (
        value(H, "input.1", "net.cell"),
        value(C, "input.2", "net.cell"),
        *(value(side, layer=f"net.cell.{name}") for name, side in (("x", GX), ("h", GH))),
        *(value(side[:, :36].copy(), layer=f"net.cell.{name}3") for name, side in (("x", GX), ("h", GH))),
        value(N, layer="net.cell.n"),
    )
    wrong = case(
        where="glue",
        layer="net.cell",
        between=("net.cell.h", ""),
        expected=sides[0],
        actual=sides[1],
        known=known,
        rounding=1e-7,
    )
    return next(suspect for suspect in glue.suspects(wrong) if suspect.error is not None)


@pytest.mark.parametrize(
    ("reference", "port", "cause"),
    [
        (lstm(), lstm("ifog"), "cell-gate-order"),
        (lstm(), lstm("figo"), "cell-gate-order"),
        (lstm(), lstm(shift=0.0), "cell-forget-bias"),
        (lstm(), lstm(new=sigmoid), "activation-other"),
        (lstm(), lstm(state=H), "wrong-tensor"),
        (out(), out("ifog"), "cell-gate-order"),
        (out(), out(state=C), "wrong-tensor"),
        (out(), out(gate=np.ones_like), "gate-missing"),
        (gru(), gru("zrn"), "cell-gate-order"),
        (gru(), gru(inverted=True), "gru-update-inverted"),
    ],
)
def test_a_mistake_in_a_cell_is_told(reference, port, cause):
    found = first(reference, port)
    assert found.cause == cause
    assert found.error < 1e-5
    for language in ("en", "zh"):
        assert "<" not in "".join(sentences(cause, found.facts, language))


def test_the_code_names_the_parts():
    found = first(lstm(), lstm("ifog"))
    assert "i, f, g = split(([net.cell.h output.0] + [net.cell.x output.0]), 4)[0, 1, 2]" in str(
        found.facts["reference_code"]
    )
    assert "4)[0, 1, 3]" in str(found.facts["port_code"])
