"""Tables that the code keeps from call to call, and a state that it keeps so, which is no table."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch  # noqa: E402, F401

NET = """
import functools
import torch
from torch import nn

KEPT = {}


def decay(length, width):
    rate = 2 ** torch.linspace(1.0, 3.0, width)
    return torch.exp(-torch.arange(float(length))[:, None] / rate)


HOW


class Mix(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x):
        y = self.first(x) * table(x.shape[1], 8)
        return self.last(y)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mixes = nn.ModuleList([Mix(), Mix()])

    def forward(self, x):
        for mix in self.mixes:
            x = mix(x)
        return x


def build():
    torch.manual_seed(2)
    return Net().eval(), torch.randn(3, 5, 6)
"""

DICT = """
def table(length, width):
    if (length, width) not in KEPT:
        KEPT[length, width] = decay(length, width)
    return KEPT[length, width]
"""

LRU = """
@functools.lru_cache(maxsize=4)
def table(length, width):
    return decay(length, width)
"""

STATE = """
import torch
from torch import nn

KEPT = {}


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.scale = nn.Linear(6, 6), 0.5

    def forward(self, x):
        y = torch.tanh(self.mix(x)) * self.scale
        y = y + KEPT["last"] if "last" in KEPT else y
        KEPT["last"] = y
        return y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.last = Cell(), nn.Linear(6, 3)

    def forward(self, x):
        KEPT.clear()
        for row in x.unbind(1):
            y = self.cell(row)
        return self.last(y)


def build():
    torch.manual_seed(2)
    return Net().eval(), torch.randn(3, 4, 6)
"""


@pytest.mark.parametrize(("reference", "port"), [(LRU, DICT), (DICT, LRU)], ids=["in a dict", "by lru_cache"])
@pytest.mark.parametrize(
    ("right", "wrong"),
    [("linspace(1.0, 3.0", "linspace(1.0, 2.0"), ("exp(-torch", "exp(torch")],
    ids=["number", "sign"],
)
def test_the_code_of_a_kept_table_is_mended(tmp_path, capsys, reference, port, right, wrong):
    (tmp_path / "ref.py").write_text(NET.replace("HOW", reference), encoding="utf-8")
    (tmp_path / "port.py").write_text(NET.replace("HOW", port).replace(right, wrong), encoding="utf-8")
    origins = answer(tmp_path, capsys)["origins"]
    assert {origin["layer"] for origin in origins} == {"mixes.0", "mixes.1"}
    assert all(origin["edit"]["confirmed"] for origin in origins)
    assert is_right_with_the_patch(tmp_path, capsys)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ('        y = y + KEPT["last"] if "last" in KEPT else y\n', "        y = y + self.kept if self.count else y\n"),
    ],
    ids=["in the file", "in the layer"],
)
def test_code_that_keeps_a_state_gets_no_edit_that_is_none(tmp_path, capsys, old, new):
    """It does not find the state as it was when it is run again: an edit that is right there may be wrong."""
    text = STATE
    if old:
        text = text.replace(old, new).replace(
            '        KEPT["last"] = y\n', "        self.kept, self.count = y, self.count + 1\n"
        )
        text = text.replace("self.scale = nn.Linear(6, 6), 0.5", "self.scale, self.count = nn.Linear(6, 6), 0.5, 0")
        text = text.replace("KEPT.clear()", "self.cell.count = 0")
    (tmp_path / "ref.py").write_text(text, encoding="utf-8")
    (tmp_path / "port.py").write_text(text.replace("* self.scale", "/ self.scale"), encoding="utf-8")
    origins = answer(tmp_path, capsys)["origins"]
    assert origins[0]["layer"] == "cell"
    told = any(origin["edit"] for origin in origins)
    assert not told or is_right_with_the_patch(tmp_path, capsys)
