"""Sequences of several lengths: the reference packs them, MindSpore's layers are given the lengths beside."""

from __future__ import annotations

import shutil
import subprocess

import pytest

pytest.importorskip("torch")
pytest.importorskip("mindspore")

from aligner.cli import main
from tests.endtoend.test_edits_of_cells_mindspore import compared

REFERENCE = """
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.turns, self.norm = nn.GRU(6, 8, batch_first=True, bidirectional=True), nn.LayerNorm(16)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        states, last = self.turns(packed)
        states, _ = pad_packed_sequence(states, batch_first=True, total_length=x.shape[1])
        return self.norm(states), last.transpose(0, 1).flatten(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.reader, self.head = nn.Embedding(20, 6), Reader(), nn.Linear(16, 3)

    def forward(self, tokens, lengths):
        states, last = self.reader(self.embed(tokens), lengths)
        return self.head(states), self.head(last)


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randint(20, (3, 7)), torch.tensor([5, 7, 3]))
"""
PORT = """
import mindspore as ms
from mindspore import nn, ops


class Reader(nn.Cell):
    def __init__(self):
        super().__init__()
        self.turns, self.norm = nn.GRU(6, 8, batch_first=True, bidirectional=True), nn.LayerNorm((16,), epsilon=1e-5)

    def construct(self, x, lengths):
        start = ops.zeros((2, x.shape[0], 8), x.dtype)
        states, last = self.turns(x, start, lengths.astype(ms.int32))
        return self.norm(states), last.swapaxes(0, 1).reshape(x.shape[0], -1)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embed, self.reader, self.head = nn.Embedding(20, 6), Reader(), nn.Dense(16, 3)

    def construct(self, tokens, lengths):
        states, last = self.reader(self.embed(tokens), lengths)
        return self.head(states), self.head(last)


def build():
    return Net().set_train(False)
"""


@pytest.mark.parametrize("given", ["(x, start)", "(x)"])
def test_lengths_that_a_layer_is_not_given(tmp_path, monkeypatch, capsys, given):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ref.py").write_text(REFERENCE)
    (tmp_path / "port.py").write_text(PORT.replace("(x, start, lengths.astype(ms.int32))", given))
    assert compared() == 1
    assert main(["compare", "ref.h5", "port.h5", "--patch", "fix.diff", "--quiet"]) == 1
    assert "seq_length=lengths" in capsys.readouterr().out
    subprocess.run(["git", "apply", "fix.diff"], check=True)
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    assert compared() == 0
