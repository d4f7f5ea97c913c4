"""A program that is written for a layer, for tests to change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from aligner.programs.repro import Repro, Tensor

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def one(name):
    return {"args": [{"tensor": name}]}


def made(**changes):
    repro = Repro(
        layer="blocks.0.fc",
        kind="Linear",
        framework="torch",
        version="2.13.0",
        python="nn.Linear(4, 2)",
        reason="",
        arguments=one("input.0"),
        outputs={"tensor": "output.0"},
        training=False,
        given={"input.0": Tensor(X, "float32")},
        expected={"output.0": Tensor(np.zeros((3, 2), np.float32), "float32")},
        parameters={
            name: Tensor(np.zeros(shape, np.float32), "float32") for name, shape in (("weight", (2, 4)), ("bias", 2))
        },
    )
    return replace(repro, **changes)
