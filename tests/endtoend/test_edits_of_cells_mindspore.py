"""Cells of MindSpore's that stand where the reference writes functions: what they do wrong is mended where they are
called. A parameter whose numbers are made when it is first used is in their way nowhere.
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
import torch.nn.functional as F
from torch import nn


class Mix(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.scale = nn.Parameter(torch.rand(8))
        self.register_buffer("table", torch.linspace(0.5, 1, 8), persistent=False)

    def forward(self, x):
        k = self.k(x).softmax(dim=1)
        return self.out(self.table * self.scale * self.q(x) @ (k.transpose(1, 2) @ self.v(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.stem = Mix(), nn.Conv2d(1, 4, 3, padding=1)
        self.kernel = nn.Parameter(torch.rand(4, 1, 3, 3))

    def forward(self, x):
        y = self.mix(x)
        y = F.conv2d(torch.relu(self.stem(y[:, None])), self.kernel, stride=2, padding=2, groups=4, dilation=2)
        return F.max_pool2d(y, 3, stride=2, padding=1)


def build():
    torch.manual_seed(3)
    return Net().eval(), torch.randn(2, 6, 8)
"""
PORT = """
import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.common.initializer import initializer


class Mix(nn.Cell):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Dense(8, 8) for _ in range(4))
        self.scale = ms.Parameter(initializer("ones", (8,)), name="scale")
        self.table = ms.Tensor(np.linspace(0.5, 1, 8).astype(np.float32))
        self.softmax = nn.Softmax(axis=-1)

    def construct(self, x):
        k = self.k(x).swapaxes(1, 2)
        k = self.softmax(k)
        y = ops.matmul(ops.matmul(self.table * self.scale * self.q(x), k), self.v(x))
        return self.out(y)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.mix, self.stem = Mix(), nn.Conv2d(1, 4, 3, padding=1, pad_mode="pad", has_bias=True)
        self.kernel = ms.Parameter(initializer("ones", (4, 1, 3, 3)), name="kernel")
        self.pool = nn.MaxPool2d(3, 2, pad_mode="pad", padding=1)

    def construct(self, x):
        y = self.mix(x)
        y = ops.relu(self.stem(y[:, None]))
        y = ops.conv2d(y, self.kernel, None, 2, "pad", 2, 2, 4)
        return self.pool(y)


def build():
    return Net().set_train(False)
"""
MISTAKES = {
    "along another axis": ("nn.Softmax(axis=-1)", "nn.Softmax(axis=-2)", "ops.softmax(k, axis=-1)"),
    "another way to pad": (
        '"pad", 2, 2, 4)',
        'pad_mode="same", dilation=2, groups=4)',
        'ops.conv2d(y, self.kernel, None, 2, pad_mode="pad", padding=2, dilation=2, groups=4)',
    ),
    "no padding": (
        '2, "pad", 2, 2, 4)',
        "2, dilation=2, groups=4)",
        'ops.conv2d(y, self.kernel, None, 2, dilation=2, groups=4, pad_mode="pad", padding=2)',
    ),
    "another pool": ("nn.MaxPool2d(3, 2, ", "nn.AvgPool2d(3, 2, ", "ops.max_pool2d(y, 3, 2, padding=1)"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_patch_makes_the_port_right(tmp_path, monkeypatch, capsys, mistake):
    monkeypatch.chdir(tmp_path)
    right, wrong, edit = MISTAKES[mistake]
    (tmp_path / "ref.py").write_text(REFERENCE)
    (tmp_path / "port.py").write_text(PORT.replace(right, wrong))
    assert compared() == 1
    assert main(["compare", "ref.h5", "port.h5", "--patch", "fix.diff", "--quiet"]) == 1
    told = capsys.readouterr().out
    assert f"= {edit}" in told or f"return {edit}" in told
    assert "confirmed" in told
    subprocess.run(["git", "apply", "fix.diff"], check=True)
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    assert compared() == 0


def compared():
    assert main(["capture", "ref.py:build", "-o", "ref.h5", "--force", "--quiet"]) == 0
    assert main(["capture", "port.py:build", "--from", "ref.h5", "-o", "port.h5", "--force", "--quiet"]) == 0
    return main(["compare", "ref.h5", "port.h5", "--quiet"])
