"""Caches that layers write into what they are given: dicts and lists."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import answer, is_right_with_the_patch  # noqa: E402 - only after it is there
from tests.endtoend.test_edits_of_settings import _here  # noqa: E402, F401 - as above

NET = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x, cache, seen):
        k, v = self.k(x), self.v(x)
        if cache["keys"] is not None:
            k = torch.cat([cache["keys"], k], 1)
            v = torch.cat([cache['values'], v], 1)
        cache.update(keys=k, values=v)
        seen.append(x.shape[1])
        return self.o((self.q(x) @ k.transpose(1, 2)).softmax(-1) @ v)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(17, 8), nn.Parameter(torch.randn(20, 8))
        self.attention, self.head = Attention(), nn.Linear(8, 17)

    def forward(self, tokens, cache, seen):
        past, new = sum(seen), tokens.shape[1]
        x = self.words(tokens) + self.places[past : past + new]
        return self.head(x + self.attention(x, cache, seen))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.decoder = Decoder()

    def forward(self, tokens):
        cache, seen, made = {"keys": None, "values": None}, [], []
        for step in range(4):
            logits = self.decoder(tokens, cache, seen)
            scores = logits[:, -1] + 0.1 * sum(seen)
            floor = torch.where(scores.argmax(-1) % 2 == 0, 4 * step + 4, 4 * step)
            banned = torch.arange(17)[None] < floor[:, None]
            tokens = scores.masked_fill(banned, float("-inf")).argmax(-1, keepdim=True)
            made.append(scores)
        return torch.stack(made, 1)


def build():
    torch.manual_seed(8)
    return Net().eval(), (torch.randint(0, 17, (3, 5)),)
"""

MISTAKES = {
    "values in front": ("torch.cat([cache['values'], v], 1)", "torch.cat([v, cache['values']], 1)"),
    "places from the first": ("self.places[past : past + new]", "self.places[:new]"),
    "branches of whole numbers": ("== 0, 4 * step + 4, 4 * step)", "== 0, 4 * step, 4 * step + 4)"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_beside_a_cache_has_its_edit(tmp_path, capsys, mistake):
    assert NET.count(MISTAKES[mistake][0]) == 1
    (tmp_path / "ref.py").write_text(NET, encoding="utf-8")
    (tmp_path / "port.py").write_text(NET.replace(*MISTAKES[mistake]), encoding="utf-8")
    told = answer(tmp_path, capsys)["origins"]
    assert told
    assert all(one["edit"] is not None and one["edit"]["confirmed"] for one in told)
    assert len({str(one["edit"]["lines"]) for one in told}) == 1  # what it writes and what it hands on are one mistake
    assert is_right_with_the_patch(tmp_path, capsys)


TUPLES = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.q, self.kv, self.o, self.layer = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8), layer

    def forward(self, x, cache):
        q = self.q(x).unflatten(-1, (4, 4)).transpose(1, 2)
        k, v = (one.unflatten(-1, (2, 4)).transpose(1, 2) for one in self.kv(x).chunk(2, -1))
        k, v = self.appended(cache, k, v)
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        return self.o((q @ k.transpose(-1, -2)).softmax(-1).matmul(v).transpose(1, 2).flatten(2))

    def appended(self, cache, k, v):
        if cache[self.layer] is not None:
            k, v = (torch.cat(pair, 2) for pair in zip(cache[self.layer], (k, v)))
        cache[self.layer] = k, v
        return k, v


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(17, 8), nn.Linear(8, 17)
        self.layers = nn.ModuleList([Attention(n) for n in range(2)])

    def forward(self, tokens):
        cache, made = [None, None], []
        for step in range(3):
            x = self.words(tokens)
            for layer in self.layers:
                x = x + layer(x, cache)
            made.append(self.head(x[:, -1]))
            tokens = made[-1].argmax(-1, keepdim=True)
        return torch.stack(made, 1)


def build():
    torch.manual_seed(8)
    return Net().eval(), (torch.randint(0, 17, (3, 5)),)
"""
OBJECT = (
    ("k, v = self.appended(cache, k, v)", "k, v = cache.appended(self.layer, k, v)"),
    (
        """class Net(nn""",
        """class Cache:
    def __init__(self, size):
        self.seen, self.name = [None] * size, "keys and values"

    def appended(self, layer, k, v):
        if self.seen[layer] is not None:
            k, v = (torch.cat(pair, 2) for pair in zip(self.seen[layer], (k, v)))
        self.seen[layer] = k, v
        return k, v


class Net(nn""",
    ),
    ("cache, made = [None, None], []", "cache, made = Cache(2), []"),
)


@pytest.mark.parametrize(
    "mistake",
    [
        (
            "k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)",
            "k, v = k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1)",
        ),
        ("k, v = (one.unflatten", "v, k = (one.unflatten"),
    ],
)
def test_a_mistake_beside_a_cache_that_is_an_object_is_one_origin_with_its_edit(tmp_path, capsys, mistake):
    text = TUPLES
    for pair in (*OBJECT, mistake):
        assert text.count(pair[0]) == 1
        text = text.replace(*pair)
    (tmp_path / "ref.py").write_text(TUPLES, encoding="utf-8")
    (tmp_path / "port.py").write_text(text, encoding="utf-8")
    told = answer(tmp_path, capsys)["origins"]
    assert {one["layer"] for one in told} <= {"layers.0", "layers.1"}
    assert "layers.0 #1" in {call for one in told for call in one["edit"]["not_run"]}  # its cache has what was wrong
    assert all(one["edit"] is not None and one["edit"]["confirmed"] for one in told)
    assert is_right_with_the_patch(tmp_path, capsys)
