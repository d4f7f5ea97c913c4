"""A line that several layers share, and that would have to say something else for some of them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from aligner.cli import main  # noqa: E402
from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch  # noqa: E402, F401

NET = """
import torch
from torch import nn


class Part(nn.Module):
    def __init__(self, size, times):
        super().__init__()
        self.line, self.other = nn.Linear(size, size), nn.Linear(size, size)
        self.times = times

    def forward(self, x):
        return self.other(self.line(x) * TIMES)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(Part(6, times) for times in (3.7, 3.7, 4.3))

    def forward(self, x):
        for part in self.parts:
            x = x + part(x)
        return x


def build():
    torch.manual_seed(4)
    return Net().eval(), torch.randn(5, 6)
"""
REFERENCE = NET.replace("TIMES", "self.times")


def test_no_patch_says_what_is_right_for_some_alone(tmp_path, capsys):
    (tmp_path / "ref.py").write_text(REFERENCE, encoding="utf-8")
    port = NET.replace("        self.times = times\n", "").replace("TIMES", "2.9")
    (tmp_path / "port.py").write_text(port, encoding="utf-8")
    found = answer(tmp_path, capsys)
    edits = [one["edit"] for one in found["origins"] if one["edit"]]
    assert len({one["layer"] for one in found["origins"]}) == 3
    assert all(edit["only_here"] for edit in edits)
    main(["compare", "ref.h5", "port.h5", "--patch", "fix.diff"])
    assert not (tmp_path / "fix.diff").exists()


TURNED = """
import torch
from torch import nn


class Turn(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.line = nn.Linear(size, size)

    def forward(self, x, lengths):
        steps = torch.arange(x.shape[1])[None, :]
        index = torch.where(steps < lengths[:, None], lengths[:, None] - 1 - steps, steps)
        return self.line(torch.gather(x, 1, index.unsqueeze(-1).expand_as(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.few, self.wide, self.many = Turn(4), nn.Linear(4, 6), Turn(6)

    def forward(self, x, lengths):
        return self.many(self.wide(self.few(x, lengths)), lengths)


def build():
    torch.manual_seed(4)
    return Net().eval(), (torch.randn(3, 7, 4), torch.tensor([7, 4, 5]))
"""


def test_sizes_are_told_by_the_values_that_have_them(tmp_path, capsys):
    (tmp_path / "ref.py").write_text(TURNED, encoding="utf-8")
    begin, end = TURNED.index("        steps"), TURNED.index("\n\nclass Net")
    port = TURNED[:begin] + "        return self.line(torch.flip(x, (1,)))\n" + TURNED[end:]
    (tmp_path / "port.py").write_text(port, encoding="utf-8")
    edits = [one["edit"] for one in answer(tmp_path, capsys)["origins"]]
    assert not any(edit["only_here"] for edit in edits)
    assert "torch.arange(x.shape[1])" in edits[0]["lines"][0]["after"]
    assert is_right_with_the_patch(tmp_path, capsys)
