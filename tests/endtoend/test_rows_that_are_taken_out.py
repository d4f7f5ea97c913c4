"""Rows that the reference takes out of a value, where the port works on all and hides the others behind a mask."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch  # noqa: E402, F401

LAYERS = """
import torch
from torch import nn


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.mix, self.out = nn.Embedding(9, 6, padding_idx=0), nn.Linear(6, 7), nn.Linear(7, 5)

    def forward(self, letters):
        batch, length, width = letters.shape
        letters = letters.reshape(batch * length, width)
        keep = letters != 0
"""
NET = (
    LAYERS
    + """
        there = keep.any(-1)
        letters, keep = letters[there], keep[there]
        x = torch.tanh(self.mix(self.letters(letters)))
        x = self.out((x * keep[..., None]).sum(1) / keep.sum(1, keepdim=True))
        found = x.new_zeros(batch * length, 5)
        found[there] = x
        return found.reshape(batch, length, 5)
"""
)
PORT = (
    LAYERS
    + """
        x = torch.tanh(self.mix(self.letters(letters)))
        x = self.out((x * keep[..., None]).sum(1) / keep.sum(1, keepdim=True).clamp(min=1))
        x = x * keep.any(-1, keepdim=True)
        return x.reshape(batch, length, 5)
"""
)
REST = """

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.step = Words(), nn.Linear(5, 5)

    def forward(self, letters):
        x = self.words(letters)
        return x + torch.relu(self.step(x)).cumsum(1)


def build():
    torch.manual_seed(3)
    letters = torch.randint(1, 9, (3, 4, 6))
    letters *= torch.arange(6) < torch.tensor([[[6], [3], [2], [0]], [[5], [0], [0], [0]], [[1], [4], [6], [5]]])
    return Net().eval(), (letters,)
"""


def _written(tmp_path, old="", new=""):
    (tmp_path / "ref.py").write_text(NET + REST, encoding="utf-8")
    assert (PORT + REST).count(old) == 1 or not old
    (tmp_path / "port.py").write_text((PORT + REST).replace(old, new) if old else PORT + REST, encoding="utf-8")


def test_a_port_that_works_on_all_rows_is_right(tmp_path, capsys):
    _written(tmp_path)
    found = answer(tmp_path, capsys)
    assert (found["outcome"], found["origins"]) == ("aligned", [])


@pytest.mark.parametrize(
    ("old", "new", "layer"),
    [
        ("torch.tanh(self.mix", "torch.sigmoid(self.mix", "words"),
        ("torch.relu(self.step(x)).cumsum(1)", "torch.relu(self.step(x)).cumsum(0)", ""),
        ("(x * keep[..., None]).sum(1)", "x.sum(1)", "words"),
    ],
)
def test_a_mistake_in_such_code_or_behind_it_is_found_where_it_is(tmp_path, capsys, old, new, layer):
    _written(tmp_path, old, new)
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert origin["layer"] == layer


def test_a_mistake_behind_it_is_mended(tmp_path, capsys):
    _written(tmp_path, "torch.relu(self.step(x)).cumsum(1)", "torch.relu(self.step(x)).cumsum(0)")
    assert answer(tmp_path, capsys)["origins"][0]["edit"]["confirmed"]
    assert is_right_with_the_patch(tmp_path, capsys)
