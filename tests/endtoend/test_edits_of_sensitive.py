"""Code that makes much of rounding: what an edit leaves is more than clean code has, and no mistake."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch, ported  # noqa: E402, F401

NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.head = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(12, 4)

    def forward(self, x):
        query, key = self.query(x), self.key(x)
        places = query @ key.transpose(1, 2)
        waves = torch.sin(100.0 * places).abs()
        return self.head(waves * 2.0 - 1.0)


def build():
    torch.manual_seed(5)
    return Net().eval(), (torch.randn(3, 12, 16),)
"""

FINER = ("query @ key.transpose(1, 2)", "(query.double() @ key.double().transpose(1, 2)).float()")
"""Right, and rounded otherwise."""

TURNED = "torch.cos(1.5707963267948966 - 100.0 * places)"
"""The same in another way."""


def test_a_forgotten_step_is_proved_though_rounding_leaves_more_than_usual(tmp_path, capsys):
    ported(tmp_path, NET, [FINER, ("torch.sin(100.0 * places).abs()", TURNED)])
    found = answer(tmp_path, capsys)
    [origin] = found["origins"]
    assert f"abs({TURNED})" in origin["edit"]["lines"][0]["after"]
    assert is_right_with_the_patch(tmp_path, capsys)
