"""A decoder that generates with a cache: a mistake that shows from its second call on is one origin, with a patch."""

from __future__ import annotations

import json
import subprocess

import pytest

torch = pytest.importorskip("torch")

from aligner.cli import main  # noqa: E402 - only after it is known to be there

if not hasattr(getattr(torch, "overrides", None), "_push_mode"):
    pytest.skip("this torch does not tell of its operations", allow_module_level=True)

REFERENCE = """
import math

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def split(self, x):
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, x, cache=None):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        if cache is not None:
            k = torch.cat([cache[0], k], dim=2)
            v = torch.cat([cache[1], v], dim=2)
        n, total = x.shape[1], k.shape[2]
        mask = torch.ones(n, total, dtype=torch.bool).tril(total - n)
        scores = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).masked_fill(~mask, -1e9)
        y = F.softmax(scores, dim=-1) @ v
        return self.out(y.transpose(1, 2).reshape(x.shape)), (k, v)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(dim), Attention(dim, heads), nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 3 * dim), nn.Linear(3 * dim, dim)

    def forward(self, x, cache=None):
        y, cache = self.attn(self.norm1(x), cache)
        x = x + y
        return x + self.down(F.gelu(self.up(self.norm2(x)))), cache


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(37, 24), nn.Embedding(32, 24)
        self.blocks = nn.ModuleList([Block(24, 3) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 37)

    def step(self, tokens, start, caches):
        positions = torch.arange(start, start + tokens.shape[1])
        x = self.embed(tokens) + self.place(positions)
        new = []
        for block, cache in zip(self.blocks, caches):
            x, cache = block(x, cache)
            new.append(cache)
        return self.head(self.norm(x)), new

    def forward(self, tokens):
        logits, caches = self.step(tokens, 0, [None] * len(self.blocks))
        found, length = [logits[:, -1]], tokens.shape[1]
        for _ in range(3):
            token = found[-1].argmax(-1, keepdim=True)
            logits, caches = self.step(token, length, caches)
            length = length + 1
            found.append(logits[:, -1])
        return torch.stack(found, dim=1)


def build():
    torch.manual_seed(1)
    net = Decoder()
    for parameter in net.parameters():
        if parameter.dim() == 1:
            nn.init.uniform_(parameter, 0.3, 1.1)
    return net.eval(), (torch.randint(0, 37, (2, 7)),)
"""

PLACE = ("self.step(token, length, caches)", "self.step(token, length - 1, caches)")
ORDER = ("v = torch.cat([cache[1], v], dim=2)", "v = torch.cat([v, cache[1]], dim=2)")
STEP = ("length = length + 1", "length = length + 2")
MISTAKES = {
    "a position one less": [PLACE],
    "values in another order": [ORDER],
    "steps of two": [STEP],
    "a position and an order": [PLACE, ORDER],
}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def answer(capsys, port):
    assert main(["capture", "ref.py:build", "-o", "ref.h5", "--force", "--quiet"]) == 0
    assert main(["capture", f"{port}:build", "--from", "ref.h5", "-o", "port.h5", "--force", "--quiet"]) == 0
    capsys.readouterr()
    main(["compare", "ref.h5", "port.h5", "--json"])
    return json.loads(capsys.readouterr().out)


def written(folder, edits):
    text = REFERENCE
    for old, new in edits:
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / "ref.py").write_text(REFERENCE, encoding="utf-8")
    (folder / "port.py").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_one_origin_and_the_patch_mends_it(tmp_path, capsys, mistake):
    written(tmp_path, MISTAKES[mistake])
    found = answer(capsys, "port.py")
    edits = [origin["edit"] for origin in found["origins"]]
    assert all(edit is not None and edit["confirmed"] and not edit["only_here"] for edit in edits)
    before = {line["before"].strip() for edit in edits for line in edit["lines"]}
    assert len(before) == len(MISTAKES[mistake])
    assert all(any(new in line for line in before) for _, new in MISTAKES[mistake])
    main(["compare", "ref.h5", "port.h5", "--patch", "fix.diff"])
    subprocess.run(["git", "apply", "fix.diff"], check=True)
    (tmp_path / "port.py").rename(tmp_path / "mended.py")
    mended = answer(capsys, "mended.py")
    assert (mended["outcome"], mended["origins"], mended["suspects"]) == ("aligned", [], [])


def test_the_right_one_is_aligned(tmp_path, capsys):
    written(tmp_path, [])
    found = answer(capsys, "port.py")
    assert (found["outcome"], found["origins"], found["suspects"]) == ("aligned", [], [])
