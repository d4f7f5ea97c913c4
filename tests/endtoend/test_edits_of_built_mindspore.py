"""Cells of MindSpore's that are built otherwise than the reference's layers: with other parameters, or cast to a short
type. The line that builds or casts them is what is changed.
"""

from __future__ import annotations

import shutil
import subprocess

import pytest

pytest.importorskip("torch")
pytest.importorskip("mindspore")

from aligner.cli import main

REFERENCE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.slopes, self.norm = nn.Linear(6, 8), nn.PReLU(8), nn.LayerNorm(8)
        self.reader = nn.GRU(8, 8, batch_first=True)
        self.across = nn.MultiheadAttention(8, 2, batch_first=True)
        self.last = nn.Linear(8, 5)
        nn.init.uniform_(self.slopes.weight)
        nn.init.uniform_(self.across.in_proj_bias)
        nn.init.uniform_(self.across.out_proj.bias)

    def forward(self, x):
        x = self.norm(self.slopes(self.first(x).flatten(0, 1)).view(x.shape[0], -1, 8))
        x = self.reader(x)[0]
        return self.last(self.across(x, x, x, need_weights=False)[0])


def build():
    torch.manual_seed(3)
    return Net().eval(), torch.randn(2, 6, 6)
"""
PORT = """
import mindspore as ms
from mindspore import nn


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = nn.Dense(6, 8)
        self.slopes, self.norm = nn.PReLU(8), nn.LayerNorm((8,), epsilon=1e-5)
        self.reader = nn.GRU(8, 8, batch_first=True)
        self.across = nn.MultiheadAttention(8, 2, batch_first=True)
        self.last = nn.Dense(8, 5)

    def construct(self, x):
        x = self.norm(self.slopes(self.first(x).float().reshape(-1, 8)).reshape(x.shape[0], -1, 8))
        x = self.reader(x)[0]
        return self.last(self.across(x, x, x, need_weights=False)[0])


def build():
    return Net().set_train(False)
"""
MISTAKES = {
    "one slope": ("nn.PReLU(8)", "nn.PReLU()", "nn.PReLU(channel=8)"),
    "over the batch": ("nn.GRU(8, 8, batch_first=True)", "nn.GRU(8, 8)", "nn.GRU(8, 8, batch_first=True)"),
    "no bias": ("(8, 2, batch_first=True)", "(8, 2, has_bias=False, batch_first=True)", "has_bias=True"),
    "cast where it is built": ("nn.Dense(6, 8)", "nn.Dense(6, 8).to_float(ms.float16)", "self.first = nn.Dense(6, 8)"),
    "cast later": ("        self.last = nn.Dense(8, 5)\n",
                   "        self.last = nn.Dense(8, 5)\n        self.last.to_float(ms.float16)\n",
                   "-        self.last.to_float(ms.float16)"),
    "cast by what is around": ("return Net().set_train(False)",
                               "net = nn.SequentialCell(Net())\n    net[0].to_float(ms.float16)\n"
                               "    return net[0].set_train(False)", ""),
}  # fmt: skip


@pytest.mark.parametrize("mistake", [mistake for mistake, (*_, edit) in MISTAKES.items() if edit])
def test_the_patch_makes_the_port_right(tmp_path, monkeypatch, capsys, mistake):
    monkeypatch.chdir(tmp_path)
    right, wrong, edit = MISTAKES[mistake]
    written(tmp_path, right, wrong)
    assert "confirmed" in answer(capsys)
    assert edit in (tmp_path / "fix.diff").read_text()
    subprocess.run(["git", "apply", "fix.diff"], check=True)
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    captured()
    assert main(["compare", "ref.h5", "port.h5", "--strict", "--quiet"]) == 0


def test_a_net_that_is_cast_as_a_whole_is_left_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, *MISTAKES["cast by what is around"][:2])
    answer(capsys)
    assert not (tmp_path / "fix.diff").exists()


def test_a_layer_that_is_handed_short_values_is_not_changed_alone(tmp_path, monkeypatch, capsys):
    """Without its own cast it would raise."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "nn.Dense(6, 8)", "nn.Dense(6, 8).to_float(ms.float16)", "self.first(x)", "self.first(x.half())")
    answer(capsys)
    assert "to_float" not in (tmp_path / "fix.diff").read_text()


def written(folder, *changes):
    port = PORT
    for right, wrong in zip(changes[::2], changes[1::2]):
        assert port.count(right) == 1
        port = port.replace(right, wrong)
    (folder / "ref.py").write_text(REFERENCE)
    (folder / "port.py").write_text(port)


def captured():
    assert main(["capture", "ref.py:build", "-o", "ref.h5", "--force", "--quiet"]) == 0
    given = ["--from", "ref.h5", "--allow-missing", "-o", "port.h5", "--force", "--quiet"]
    assert main(["capture", "port.py:build", *given]) == 0


def answer(capsys):
    captured()
    main(["compare", "ref.h5", "port.h5", "--patch", "fix.diff", "--quiet"])
    return capsys.readouterr().out


SPREAD = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, dilation):
        super().__init__()
        padding = (dilation, 1)
        self.conv = nn.Conv2d(3, 3, 3, padding=padding, dilation=padding)

    def forward(self, x):
        return torch.tanh(self.conv(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(dilation) for dilation in (1, 2, 3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def build():
    torch.manual_seed(3)
    return Net().eval(), torch.randn(2, 3, 8, 9)
"""
SPREAD_PORT = """
from mindspore import nn, ops


class Block(nn.Cell):
    def __init__(self, dilation):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, pad_mode="same", dilation=(1, dilation), has_bias=True)

    def construct(self, x):
        return ops.tanh(self.conv(x))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.blocks = nn.CellList([Block(dilation) for dilation in (1, 2, 3)])

    def construct(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def build():
    return Net().set_train(False)
"""


def test_a_padding_that_follows_is_left_and_an_axis_has_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ref.py").write_text(SPREAD, encoding="utf-8")
    (tmp_path / "port.py").write_text(SPREAD_PORT, encoding="utf-8")
    assert main(["capture", "ref.py:build", "-o", "ref.h5", "--quiet"]) == 0
    assert main(["capture", "port.py:build", "--from", "ref.h5", "-o", "port.h5", "--quiet"]) == 0
    assert main(["compare", "ref.h5", "port.h5", "--patch", "fix.diff"]) == 1
    patch = (tmp_path / "fix.diff").read_text(encoding="utf-8")
    assert '+        self.conv = nn.Conv2d(3, 3, 3, pad_mode="same", dilation=(dilation, 1), has_bias=True)' in patch
    subprocess.run(["git", "apply", "fix.diff"], check=True)
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    assert main(["capture", "port.py:build", "--from", "ref.h5", "-o", "port.h5", "--force", "--quiet"]) == 0
    assert main(["compare", "ref.h5", "port.h5"]) == 0
