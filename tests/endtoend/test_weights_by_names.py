"""Layers of one shape, whose names say which is which: a port that uses them crosswise is wrong."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import (  # noqa: E402 - only after it is known to be there
    _here,  # noqa: F401 - a fixture
    answer,
    is_right_with_the_patch,
)

REFERENCE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.compat_angle, self.compat_space = nn.Linear(6, 6), nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        angle, space = torch.relu(self.first(x)), torch.tanh(self.first(x))
        return self.last(self.compat_angle(angle) * self.compat_space(space))


def build():
    torch.manual_seed(3)
    return Net(), (torch.randn(4, 6),)
"""


def test_a_port_that_uses_them_crosswise_is_wrong(tmp_path, capsys):
    (tmp_path / "ref.py").write_text(REFERENCE)
    port = REFERENCE.replace("compat_", "mix_").replace(
        "mix_angle(angle) * self.mix_space(space)", "mix_angle(space) * self.mix_space(angle)"
    )
    (tmp_path / "port.py").write_text(port)
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert origin["edit"]["confirmed"]
    assert is_right_with_the_patch(tmp_path, capsys)


def test_a_port_that_defines_them_the_other_way_round_is_right(tmp_path, capsys):
    (tmp_path / "ref.py").write_text(REFERENCE)
    port = REFERENCE.replace("self.compat_angle, self.compat_space =", "self.mix_space, self.mix_angle =").replace(
        "compat_", "mix_"
    )
    (tmp_path / "port.py").write_text(port)
    assert answer(tmp_path, capsys)["outcome"] == "aligned"


def test_names_that_say_nothing_leave_it_to_what_runs(tmp_path, capsys):
    (tmp_path / "ref.py").write_text(REFERENCE)
    port = REFERENCE.replace("self.compat_angle, self.compat_space =", "self.b, self.a =")
    (tmp_path / "port.py").write_text(port.replace("compat_angle", "a").replace("compat_space", "b"))
    assert answer(tmp_path, capsys)["outcome"] == "aligned"
