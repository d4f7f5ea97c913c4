"""Mistakes that are mended where something was given its name, put into a list, or taken from a table."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import answer, is_right_with_the_patch  # noqa: E402 - only after it is there
from tests.endtoend.test_edits_of_settings import _here  # noqa: E402, F401 - as above

NET = """
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(inside), nn.Linear(inside, outside)
        self.grows = inside != outside
        if self.grows:
            self.short = nn.Linear(inside, outside)

    def forward(self, x):
        kept = x
        h = self.norm(x)
        h = self.inner(h.sigmoid() * h)
        if self.grows:
            kept = self.short(kept)
        return kept + h


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.moves = nn.Parameter(torch.randn(6, 6))
        self.never = (torch.arange(6)[:, None] * 2 > torch.arange(6)[None, :] * 3).float() * -9.0

    def forward(self, scores, there):
        best, sources = scores[:, 0], []
        stay = torch.arange(6).expand(len(scores), 6)
        for step in range(1, scores.shape[1]):
            value, source = (best.unsqueeze(2) + self.moves + self.never).max(dim=1)
            here = there[:, step].unsqueeze(1)
            best = torch.where(here, value + scores[:, step], best)
            sources.append(torch.where(here, source, stay))
        tag = best.argmax(1)
        path = [tag]
        for source in reversed(sources):
            tag = source.gather(1, tag.unsqueeze(1)).squeeze(1)
            path.append(tag)
        return torch.stack(path[::-1], 1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(8, 8), Block(8, 12), Block(12, 12)])
        self.sides = nn.ModuleList([nn.Linear(8, 6) for _ in range(3)])
        self.emit, self.chain, self.head = nn.Linear(12, 6), Chain(), nn.Linear(12, 12)

    def down(self, levels):
        found, below = [], None
        for side, x in zip(self.sides, levels):
            level = own = side(x)
            if below is not None:
                level = level + F.interpolate(below.transpose(1, 2), size=x.shape[1], mode="nearest").transpose(1, 2)
            below = level
            found.append(level)
        return found[-1]

    def guided(self, both, strength):
        one, other = both.chunk(2)
        return other + (1.0 + strength) * (one - other)

    def forward(self, x, there):
        wide = self.down([x[:, ::4], x[:, ::2], x])
        for block in self.blocks:
            x = block(x)
        path = self.chain(self.emit(x), there)
        half = self.guided(self.head(x), 0.7)
        return path, half, wide


def build():
    torch.manual_seed(4)
    return Net().eval(), (torch.randn(4, 8, 8), torch.arange(8)[None, :] < torch.tensor([8, 5, 6, 3])[:, None])
"""
MISTAKES = {
    "what a name was given": ("kept = x\n        h = self.norm(x)\n", "h = self.norm(x)\n        kept = h\n"),
    "what a name was given in a loop": ("below = level", "below = own"),
    "what is put into a list": ("sources.append(torch.where(here, source, stay))", "sources.append(source)"),
    "rows for columns of a table": ("[None, :] * 3).float()", "[None, :] * 3).float().T"),
    "a sum of a number and a name": ("other + (1.0 + strength) * (one - other)", "other + strength * (one - other)"),
    "an argument to be left out": ('mode="nearest")', 'mode="linear", align_corners=True)'),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_one_edit_mends_it(tmp_path, capsys, mistake):
    old, new = MISTAKES[mistake]
    assert NET.count(old) == 1
    (tmp_path / "ref.py").write_text(NET, encoding="utf-8")
    (tmp_path / "port.py").write_text(NET.replace(old, new), encoding="utf-8")
    found = answer(tmp_path, capsys)
    edits = [origin["edit"] for origin in found["origins"]]
    assert all(edit is not None and edit["confirmed"] and not edit["only_here"] for edit in edits)
    assert len({str(edit["lines"]) for edit in edits}) == 1
    assert is_right_with_the_patch(tmp_path, capsys)
