"""Blocks that are all given one value (a style), and that a port cuts otherwise: where a mistake in them is told."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import (  # noqa: E402 - only after it is known to be there
    _here,  # noqa: F401 - a fixture
    answer,
    is_right_with_the_patch,
)

START = """
import torch
from torch import nn


def conv(ins, outs):
    return nn.Sequential(nn.BatchNorm2d(ins), nn.ReLU(), nn.Conv2d(ins, outs, 3, padding=1))

"""
END = """

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.style = nn.Linear(12, 8)
        self.up = nn.ModuleList([Up(6, 5, 8), Up(5, 4, 8)])

    def forward(self, x, one, other, style):
        style = torch.tanh(self.style(style))
        for up, skip in zip(self.up, (one, other)):
            x = up(x, skip, style)
        return x


def build():
    torch.manual_seed(3)
    net = Net().eval()
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.weight), nn.init.normal_(layer.bias), nn.init.normal_(layer.running_mean)
    sizes = (2, 6, 4, 5), (2, 5, 8, 10), (2, 4, 16, 20), (2, 12)
    return net, tuple(torch.randn(size) for size in sizes)
"""
REFERENCE = f"""{START}
class Styled(nn.Module):
    def __init__(self, width, style):
        super().__init__()
        self.conv, self.full = conv(width, width), nn.Linear(style, width)

    def forward(self, x, style, skip=None):
        if skip is not None:
            x = x + skip
        return self.conv(x + self.full(style)[:, :, None, None])


class Up(nn.Module):
    def __init__(self, ins, outs, style):
        super().__init__()
        self.upsample = nn.ConvTranspose2d(ins, ins, 3, stride=2, padding=1, output_padding=1)
        self.conv0 = conv(ins, outs)
        self.conv = nn.ModuleList([Styled(outs, style) for _ in range(3)])
        self.proj = nn.Conv2d(ins, outs, 1)

    def forward(self, x, skip, style):
        x = self.upsample(x)
        x = self.proj(x) + self.conv[0](self.conv0(x), style, skip)
        return x + self.conv[2](self.conv[1](x, style), style)

{END}"""
PORT = f"""{START}
class Normed(nn.Module):
    def __init__(self, ins, outs):
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(ins), nn.Conv2d(ins, outs, 3, padding=1)

    def forward(self, x):
        return self.conv(self.norm(x).relu())


class WithStyle(nn.Module):
    def __init__(self, width, style):
        super().__init__()
        self.conv, self.full = Normed(width, width), nn.Linear(style, width)

    def forward(self, x, style):
        shift = self.full(style).reshape(x.shape[0], -1, 1, 1)
        return self.conv(x + shift)


class Up(nn.Module):
    def __init__(self, ins, outs, style):
        super().__init__()
        self.upsample = nn.ConvTranspose2d(ins, ins, 3, stride=2)
        self.conv0 = Normed(ins, outs)
        self.conv1, self.conv2, self.conv3 = (WithStyle(outs, style) for _ in range(3))
        self.proj = nn.Conv2d(ins, outs, 1)

    def forward(self, x, skip, style):
        x = self.upsample(x)[:, :, 1:, 1:]
        joined = self.conv0(x) + skip
        x = self.proj(x) + self.conv1(joined, style)
        return x + self.conv3(self.conv2(x, style), style)

{END}"""


def test_the_right_port_is_right(tmp_path, capsys):
    (tmp_path / "ref.py").write_text(REFERENCE, encoding="utf-8")
    (tmp_path / "port.py").write_text(PORT, encoding="utf-8")
    assert not answer(tmp_path, capsys)["origins"]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("self.conv(x + shift)", "self.conv(x) + shift"),
        ("x + self.conv3(self.conv2", "x - self.conv3(self.conv2"),
        ("joined = self.conv0(x) + skip", "joined = self.conv0(x) - skip"),
    ],
)
def test_one_mistake_is_one_place(tmp_path, capsys, right, wrong):
    (tmp_path / "ref.py").write_text(REFERENCE, encoding="utf-8")
    (tmp_path / "port.py").write_text(PORT.replace(right, wrong), encoding="utf-8")
    told = answer(tmp_path, capsys)["origins"]
    assert len({one["family"] for one in told}) == 1
    assert {one["where"] for one in told} == {"glue"}
    assert is_right_with_the_patch(tmp_path, capsys)
