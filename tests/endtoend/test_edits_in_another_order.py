"""A layer that is held hands on the reference's value with its axes as the changed code has them, not bare numbers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import answer, is_right_with_the_patch  # noqa: E402 - only after it is there
from tests.endtoend.test_edits_of_settings import _here  # noqa: E402, F401 - as above

NET = """
import torch
from torch import nn


def rotate(x):
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[2])[:, None] * torch.logspace(0, -2, half)
    left, right = x[..., :half], x[..., half:]
    return torch.cat((left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()), -1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(24, 24) for _ in range(4))
        self.q_norm, self.k_norm = nn.LayerNorm(8), nn.LayerNorm(8)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = (layer(x).reshape(b, n, 3, 8) for layer in (self.q, self.k, self.v))
        q = rotate(self.q_norm(q).transpose(1, 2))
        k = rotate(self.k_norm(k).transpose(1, 2))
        shares = (q @ k.transpose(-1, -2) / 8**0.5).softmax(-1)
        return self.out((shares @ v.transpose(1, 2)).transpose(1, 2).reshape(b, n, 24))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Attention() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


def build():
    torch.manual_seed(7)
    net = Net().eval()
    for name, value in net.state_dict().items():
        if "norm" in name:
            value.normal_(1.0 if name.endswith("weight") else 0.0, 0.4)
    return net, (torch.randn(2, 5, 24),)
"""


def test_a_norm_on_the_wrong_side_of_the_rotation_is_mended_for_good(tmp_path, capsys):
    port = NET
    for name in "qk":
        old, new = (
            f"rotate(self.{name}_norm({name}).transpose(1, 2))",
            f"self.{name}_norm(rotate({name}.transpose(1, 2)))",
        )
        assert port.count(old) == 1
        port = port.replace(old, new)
    (tmp_path / "ref.py").write_text(NET, encoding="utf-8")
    (tmp_path / "port.py").write_text(port, encoding="utf-8")
    found = answer(tmp_path, capsys)
    edits = [origin["edit"] for origin in found["origins"]]
    assert edits
    assert all(edit is not None and edit["confirmed"] and not edit["only_here"] for edit in edits)
    assert is_right_with_the_patch(tmp_path, capsys)
