"""The same of a port in MindSpore: its code is heard in its source, whatever MindSpore tells of itself."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mindspore")

from aligner.cli import main  # noqa: E402 - only after both are known to be there

if not hasattr(getattr(torch, "overrides", None), "_push_mode"):
    pytest.skip("this torch does not tell of its operations", allow_module_level=True)

REFERENCE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.outer = nn.Linear(6, 4)

    def turned(self, x):
        left, right = x.chunk(2, dim=-1)
        return torch.cat((-right, left), dim=-1)

    def forward(self, x):
        x = self.inner(x)
        x = self.turned(x) * 0.5 + x
        x = x[:, 1:]
        return self.outer(x)


def build():
    torch.manual_seed(0)
    return Net(), torch.randn(3, 5, 6)
"""

PORT = """
import mindspore as ms
from mindspore import nn, ops


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inner = nn.Dense(6, 6)
        self.outer = nn.Dense(6, 4)

    @staticmethod
    def turned(x):
        left, right = ops.chunk(x, 2, axis=-1)
        return ops.concat((-right, left), axis=-1)

    @ms.jit
    def construct(self, x):
        x = self.inner(x)
        x = self.turned(x) * 0.5 + x
        x = x[:, 1:]
        return self.outer(x)


def build():
    return Net()
"""

MISTAKES = [
    ("(-right, left), axis", "(right, left), axis", "return ops.concat((right"),
    ("* 0.5 + x", "* 0.25 + x", "x = self.turned(x) * 0.25"),
    ("x[:, 1:]", "x[:, :-1]", "x = x[:, :-1]"),
]


@pytest.mark.parametrize(("old", "new", "line"), MISTAKES)
def test_the_line_of_compiled_code_and_of_its_helpers(tmp_path, capsys, monkeypatch, old, new, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ref.py").write_text(REFERENCE)
    (tmp_path / "port.py").write_text(PORT.replace(old, new))
    assert main(["capture", "ref.py:build", "-o", "ref.h5"]) == 0
    assert main(["capture", "port.py:build", "--from", "ref.h5", "-o", "port.h5"]) == 0
    capsys.readouterr()
    main(["compare", "ref.h5", "port.h5", "--json"])
    (origin,) = json.loads(capsys.readouterr().out)["origins"]
    assert origin["line"]["sure"]
    assert origin["line"]["port"]["text"].startswith(line)


def test_the_right_port_is_aligned(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ref.py").write_text(REFERENCE)
    (tmp_path / "port.py").write_text(PORT)
    assert main(["capture", "ref.py:build", "-o", "ref.h5"]) == 0
    assert main(["capture", "port.py:build", "--from", "ref.h5", "-o", "port.h5"]) == 0
    assert main(["compare", "ref.h5", "port.h5"]) == 0
