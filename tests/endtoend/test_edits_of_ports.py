"""Edits of code as ports have it: tables of numpy, helpers, loops, several mistakes in one value."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

torch = pytest.importorskip("torch")

from aligner.cli import main  # noqa: E402 - only after it is known to be there

if not hasattr(getattr(torch, "overrides", None), "_push_mode"):
    pytest.skip("this torch does not tell of its operations", allow_module_level=True)

REFERENCE = """
import torch
from torch import nn


def spread(x, index, size):
    weight = torch.exp(x - x.amax(0))
    total = x.new_zeros((size, x.shape[1])).index_add(0, index, weight)
    return weight / total[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(16, 5)
        self.level = nn.Parameter(torch.rand(3, 8))

    def places(self, h, w):
        y, x = torch.meshgrid(torch.linspace(0.5, h - 0.5, h), torch.linspace(0.5, w - 0.5, w), indexing="ij")
        return torch.stack((y / h, x / w), -1).reshape(-1, 2)

    def forward(self, x, memory, sizes):
        n = x.shape[0]
        points = self.places(2, n // 2)
        source, target = torch.arange(n) // 2, (torch.arange(n) * 3 + 1) % 5
        steps = []
        for number in range(3):
            steps.append(self.embed(x) + self.level[number])
        x = torch.cat(steps, 1)[:, 8:16] + points.sum(-1, keepdim=True)
        x = x * spread(x, target, n)
        scale = (sizes[0] / sizes[1]).reshape(1, 1)
        return self.head(torch.cat((self.norm(x) * scale, self.norm(memory)), -1))


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(8, 8), torch.randn(8, 8), torch.tensor([7, 2]))
"""

PLACES = (
    '        y, x = torch.meshgrid(torch.linspace(0.5, h - 0.5, h), torch.linspace(0.5, w - 0.5, w), indexing="ij")\n'
    "        return torch.stack((y / h, x / w), -1).reshape(-1, 2)\n"
)
NUMPY = (
    "        rows = np.arange(h, dtype=np.float32) + 0.5\n"
    "        cols = np.arange(w, dtype=np.float32) + 0.5\n"
    '        y, x = np.meshgrid(rows, cols, indexing="ij")\n'
    "        return torch.from_numpy(np.stack((y / h, x / w), -1).reshape(-1, 2).astype(np.float32))\n"
)

MISTAKES = {
    "numpy: one more": [("(h, dtype=np.float32) + 0.5", "(h, dtype=np.float32) + 1.5")],
    "numpy: the order of two": [("np.stack((y / h, x / w), -1)", "np.stack((y / w, x / h), -1)")],
    "numpy: two in one value": [
        ("(h, dtype=np.float32) + 0.5", "(h, dtype=np.float32)"),
        ("(w, dtype=np.float32) + 0.5", "(w, dtype=np.float32)"),
    ],
    "what a helper is given": [("spread(x, target, n)", "spread(x, source, n)")],
    "an item in a loop": [("self.level[number]", "self.level[0]")],
    "a sign": [("(sizes[0] / sizes[1])", "(sizes[0] // sizes[1]).float()")],
}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def ported(folder, net, edits):
    """A net, and its port: the same text with these pieces of it, each of which it has once, in other words."""
    text = net
    for old, new in edits:
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / "ref.py").write_text(net, encoding="utf-8")
    (folder / "port.py").write_text(text, encoding="utf-8")


def answer(tmp_path, capsys, *words):
    """What is said of the port, captured with these words on the reference, which is captured once."""
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    source, dump = tmp_path / "ref.py", tmp_path / "ref.h5"
    if not dump.exists() or dump.stat().st_mtime_ns < source.stat().st_mtime_ns:
        assert main(["capture", "ref.py:build", "-o", "ref.h5", "--force", "--quiet"]) == 0
    assert main(["capture", "port.py:build", "--from", "ref.h5", "-o", "port.h5", "--force", "--quiet", *words]) == 0
    capsys.readouterr()
    main(["compare", "ref.h5", "port.h5", "--json"])
    return json.loads(capsys.readouterr().out)


def is_right_with_the_patch(tmp_path, capsys):
    main(["compare", "ref.h5", "port.h5", "--patch", "fix.diff"])
    subprocess.run(["git", "apply", "fix.diff"], check=True)
    mended = answer(tmp_path, capsys, "--search", "0")  # nothing is to be found any more
    return (mended["outcome"], mended["origins"], mended["suspects"]) == ("aligned", [], [])


def written(folder, edits):
    text = REFERENCE.replace(PLACES, NUMPY).replace("import torch\n", "import numpy as np\nimport torch\n", 1)
    for old, new in edits:
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / "ref.py").write_text(REFERENCE, encoding="utf-8")
    (folder / "port.py").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_patch_makes_the_port_right(tmp_path, capsys, mistake):
    written(tmp_path, MISTAKES[mistake])
    found = answer(tmp_path, capsys)
    edits = [origin["edit"] for origin in found["origins"]]
    assert edits
    assert all(edit is not None and edit["confirmed"] and not edit["only_here"] for edit in edits)
    assert is_right_with_the_patch(tmp_path, capsys)


def test_a_right_port_with_numpy_in_it_has_no_edit(tmp_path, capsys):
    written(tmp_path, [])
    found = answer(tmp_path, capsys)
    assert (found["outcome"], found["origins"], found["suspects"]) == ("aligned", [], [])


IN_PLACE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x):
        y = self.a(x)
        y += x
        z = self.b(y)
        z *= 0.5
        return self.c(z + y.softmax(-1))


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(4, 8),)
"""


def test_code_that_writes_into_what_layers_hand_on_is_run_again_as_often_as_need_be(tmp_path, capsys):
    (tmp_path / "ref.py").write_text(IN_PLACE, encoding="utf-8")
    (tmp_path / "port.py").write_text(IN_PLACE.replace("softmax(-1)", "softmax(0)"), encoding="utf-8")
    (origin,) = answer(tmp_path, capsys)["origins"]
    (line,) = origin["edit"]["lines"]
    assert line["after"].strip() == "return self.c(z + y.softmax(-1))"


TABLES = """
import math

import numpy as np
import torch
from torch import nn


class Rotary(nn.Module):
    def __init__(self, width, length, *, base=100.0, **more):
        super().__init__()
        self.width = width
        self.mix = nn.Linear(width, width)
        nn.init.normal_(self.mix.weight)
        angle = np.outer(np.arange(length), base ** (-np.arange(0, width, 2) / width)).astype(np.float32)
        self.register_buffer("cos", torch.tensor(np.cos(angle)), persistent=False)
        self.register_buffer("sin", torch.tensor(np.sin(angle)), persistent=False)
        steps = torch.arange(length)
        self.decay = torch.exp(-0.3 * (steps[:, None] - steps[None, :]).clamp_min(0))

    def forward(self, x):
        x = self.mix(x)
        one, other = x.chunk(2, dim=-1)
        turned = torch.cat((one * self.cos - other * self.sin, one * self.sin + other * self.cos), dim=-1)
        return self.decay @ turned


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.turn = nn.ModuleList([Rotary(8, 6, base=50.0, unused=1) for _ in range(2)])
        self.out = nn.Linear(8, 5)

    def forward(self, x):
        for turn in self.turn:
            x = turn(x)
        return self.out(x)


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(4, 6, 8),)
"""
TABLE_MISTAKES = [
    ("np.arange(0, width, 2) / width", "np.arange(0, width, 2) / (width - 2)"),
    ("steps[:, None] - steps[None, :]", "steps[None, :] - steps[:, None]"),
]


@pytest.mark.parametrize(("right", "wrong"), TABLE_MISTAKES)
def test_a_table_that_a_constructor_makes_is_mended_there(tmp_path, capsys, right, wrong):
    (tmp_path / "ref.py").write_text(TABLES, encoding="utf-8")
    (tmp_path / "port.py").write_text(TABLES.replace(right, wrong), encoding="utf-8")
    found = answer(tmp_path, capsys)
    lines = found["origins"][0]["edit"]["lines"]
    assert [line["line"] for line in lines] == [1 + TABLES.split(right)[0].count("\n")]
    (tmp_path / "port.py").write_text(
        "\n".join(
            lines[0]["after"] if number + 1 == lines[0]["line"] else line
            for number, line in enumerate(TABLES.replace(right, wrong).split("\n"))
        ),
        encoding="utf-8",
    )
    assert answer(tmp_path, capsys)["outcome"] == "aligned"


ATTENTION = """
import torch
from torch import nn


def chosen(cdf, at):
    cdf = torch.cat((torch.zeros_like(cdf[:, :1]), cdf), -1)
    place = torch.searchsorted(cdf, at.expand(cdf.shape[0], -1).contiguous(), right=True)
    return torch.gather(cdf, 1, (place - 1).clamp(min=0))


def mixed(one, other, weight):
    one, other = one * weight, other / (1 + weight)
    return (one @ other.transpose(-2, -1)).softmax(-1)


def later(x, by=1):
    return torch.roll(x, by, -1)


class Pairs(nn.Module):
    def __init__(self, outgoing):
        super().__init__()
        self.outgoing = outgoing
        self.proj, self.out = nn.Linear(6, 12), nn.Linear(6, 6)

    def combine(self, a, b):
        a, b = a.permute(2, 0, 1), b.permute(2, 0, 1)
        if self.outgoing:
            x = a @ b.transpose(1, 2)
        else:
            x = b.transpose(1, 2) @ a
        return x.permute(1, 2, 0)

    def forward(self, z):
        a, b = self.proj(z).chunk(2, -1)
        return z + self.out(self.combine(a.sigmoid(), b))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.qk, self.head, self.fine = nn.Linear(6, 12), nn.Linear(6, 4), nn.Linear(5, 4)
        self.pairs = nn.ModuleList([Pairs(True), Pairs(False)])
        self.register_buffer("soft", torch.linspace(1.0, 0.5, 5), persistent=False)

    def again(self, x, y, kept):
        x = x + kept[0].tanh()
        return x, y - kept[1].mean(0)

    def forward(self, z, mask, at):
        for pair in self.pairs:
            z = pair(z)
        q, k = self.qk(z).chunk(2, -1)
        bias = (1e4 * (mask - 1))[:, None, :]
        a = (q @ k.transpose(1, 2) + bias).softmax(-1)
        first, second = a @ z, (a * a) @ z
        x, y = first, second
        x, y = self.again(first, second, (q, k))
        weights = mixed(x, y, z)
        fine = chosen((weights.sum(1) / weights.sum((1, 2))[:, None]).cumsum(-1), at)
        low, high = 1 / (1 / (1 + at)[None] + fine), fine[:, :-1]
        low = (later(low, by=2) + later(low * low)) * high.sum(-1, keepdim=True)
        return self.head(x * 0.1 + y), self.fine(low * self.soft)


def build():
    torch.manual_seed(3)
    mask = torch.tensor([[1.0, 1, 1, 0, 1], [1, 1, 0, 1, 1], [1, 1, 1, 1, 0], [1, 0, 1, 1, 1], [0, 1, 1, 1, 1]])
    return Net().eval(), (torch.randn(5, 5, 6), mask, torch.rand(5))
"""
ATTENTION_MISTAKES = {
    "a mask along the other axis": [("[:, None, :]\n        a =", "[:, :, None]\n        a =")],
    "one way of two": [("x = b.transpose(1, 2) @ a", "x = a.transpose(1, 2) @ b")],
    "what a function of two results is given": [("self.again(first, second,", "self.again(x, first,")],
    "zeros in front": [
        ("torch.cat((torch.zeros_like(cdf[:, :1]), cdf), -1)", "torch.cat((cdf, torch.ones_like(cdf[:, :1])), -1)")
    ],
    "another variable": [("mixed(x, y, z)", "mixed(x, y, first)")],
    "without the end": [("fine[:, :-1]", "fine[:, 1:]")],
    "an argument that has a default": [("later(low, by=2)", "later(low)")],
    "a table that was forgotten": [("(low * self.soft)", "(low)")],
    "an inverse": [("1 / (1 / (1 + at)[None] + fine)", "(1 + at)[None] + fine")],
}


@pytest.mark.parametrize("mistake", ATTENTION_MISTAKES)
def test_code_that_goes_several_ways_is_mended_where_it_is_wrong(tmp_path, capsys, mistake):
    text = ATTENTION
    for old, new in ATTENTION_MISTAKES[mistake]:
        assert text.count(old) == 1
        text = text.replace(old, new)
    (tmp_path / "ref.py").write_text(ATTENTION, encoding="utf-8")
    (tmp_path / "port.py").write_text(text, encoding="utf-8")
    edits = [origin["edit"] for origin in answer(tmp_path, capsys)["origins"]]
    assert edits
    assert all(edit is not None and edit["confirmed"] and not edit["only_here"] for edit in edits)
    main(["compare", "ref.h5", "port.h5", "--patch", "fix.diff"])
    subprocess.run(["git", "apply", "fix.diff"], check=True)
    assert answer(tmp_path, capsys)["outcome"] == "aligned"


PROJECTED = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def split(self, x):
        return x.reshape(x.shape[0], 2, 4).transpose(0, 1)

    def forward(self, x, places):
        q, k = self.split(self.q(x)), self.split(self.k(x))
        place_q = self.split(self.q(places))
        place_k = self.split(self.k(places))
        a = (q @ k.mT + q @ place_k.mT + place_q @ k.mT).softmax(-1)
        return self.out((a @ self.split(x)).transpose(0, 1).reshape(x.shape))


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(6, 8), torch.randn(6, 8))
"""


COUNTED = """
import torch
from torch import nn


def statistics(x, keep):
    count = keep.sum(1, keepdim=True).clamp_min(1.0)
    mean = (x * keep).sum(1, keepdim=True) / count
    spread = (torch.square(x - mean) * keep).sum(1, keepdim=True) / count
    return mean, (spread + 1e-5).sqrt()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x, keep):
        x = self.embed(x)
        mean, spread = statistics(x, keep)
        return self.out((x - mean) / spread)


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(3, 6, 8), (torch.rand(3, 6, 1) > 0.3).float())
"""


def test_a_number_that_stands_for_a_value_in_two_lines_is_changed_in_both(tmp_path, capsys):
    wrong = COUNTED.replace("keep.sum(1, keepdim=True).clamp_min(1.0)", "float(x.shape[1])")
    (tmp_path / "ref.py").write_text(COUNTED, encoding="utf-8")
    (tmp_path / "port.py").write_text(wrong, encoding="utf-8")
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert origin["edit"]["confirmed"]
    assert sum(line["after"].count("/ keep.sum(1, keepdim=True)") for line in origin["edit"]["lines"]) == 2


def test_a_layer_called_in_anothers_place_is_mended_where_it_is_called(tmp_path, capsys):
    """What it makes there is right elsewhere: only where it is used does it go wrong."""
    (tmp_path / "ref.py").write_text(PROJECTED, encoding="utf-8")
    (tmp_path / "port.py").write_text(PROJECTED.replace("self.k(places)", "self.q(places)"), encoding="utf-8")
    (origin,) = answer(tmp_path, capsys)["origins"]
    (line,) = origin["edit"]["lines"]
    assert line["after"].strip() == "place_k = self.split(self.k(places))"
    assert origin["edit"]["confirmed"]


KEPT = """
import torch
from torch import nn
from torch.nn import functional as F


class Fuse(nn.Module):
    def __init__(self):
        super().__init__()
        self.ways = nn.ModuleList([nn.ModuleList([nn.Linear(6, 6) for _ in range(2)]) for _ in range(2)])

    def forward(self, one, other):
        kept = []
        for number in range(2):
            y = self.ways[number][0](one)
            if number == 0:
                y = y + other
            else:
                y = y * self.ways[number][1](other)
            kept.append(F.relu(y))
        return kept


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Fuse() for _ in range(2)]), nn.Linear(6, 3)

    def forward(self, x):
        one, other = x, 0.5 * x
        for block in self.blocks:
            one, other = block(one, other)
        return self.head(one - other)


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(4, 6),)
"""


def test_what_is_put_into_a_list_is_mended_where_it_is_put(tmp_path, capsys):
    (tmp_path / "ref.py").write_text(KEPT, encoding="utf-8")
    (tmp_path / "port.py").write_text(KEPT.replace("append(F.relu(y))", "append(y)"), encoding="utf-8")
    edits = [origin["edit"] for origin in answer(tmp_path, capsys)["origins"]]
    assert [[line["after"].strip() for line in edit["lines"]] for edit in edits] == [["kept.append(torch.relu(y))"]] * 2
    assert all(edit["confirmed"] and not edit["only_here"] for edit in edits)


WORDS = """
import torch
from torch import nn


class Roll(nn.Module):
    def __init__(self, by):
        super().__init__()
        self.by = by

    def forward(self, x):
        return torch.roll(x, (self.by, self.by), (1, 2))


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x):
        parts, kept = torch.split(x, 4, dim=-1), []
        for number, conv in enumerate(self.convs):
            if number == 0:
                now = parts[number]
            else:
                now = now + parts[number]
            now = torch.relu(conv(now))
            kept.append(now)
        return torch.cat((*kept, parts[3]), dim=-1)


class Attention(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.heads, self.quarter = heads, (16 // heads) ** -0.25
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x, mask=None):
        b, n, _ = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, 16 // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        scores = (q * self.quarter) @ (k * self.quarter).transpose(-2, -1)
        if mask is not None:
            scores = scores + mask
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, 16))


class Mix(nn.Module):
    def __init__(self, heads, rolls):
        super().__init__()
        self.attn, self.rolls = Attention(heads), rolls
        self.there, self.back = Roll(-1), Roll(1)
        self.register_buffer("mask", torch.randn(1, 1, 6, 6) if rolls else None)

    def forward(self, x):
        if self.rolls:
            x = self.there(x.reshape(-1, 2, 3, 16)).reshape(-1, 6, 16)
        x = self.attn(x, mask=self.mask)
        if self.rolls:
            x = self.back(x.reshape(-1, 2, 3, 16)).reshape(-1, 6, 16)
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.chain = Chain()
        self.mix = nn.ModuleList([Mix(2, True), Mix(4, False), Mix(4, True)])

    def forward(self, x):
        x = self.chain(x)
        for mix in self.mix:
            x = x + mix(x)
        return x


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(2, 6, 16),)
"""
THERE = "self.there(x.reshape(-1, 2, 3, 16))", "self.back(x.reshape(-1, 2, 3, 16))"
WORDS_MISTAKES = {
    "a value that is only named": [("now = now + parts[number]", "now = parts[number]")],
    "an argument that is None": [("self.attn(x, mask=self.mask)", "self.attn(x, mask=None)")],
    "two layers that the reference has not": [THERE, THERE[::-1]],
    "what the layer keeps, squared": [("(k * self.quarter).transpose", "k.transpose")],
    "sizes of several layers": [
        (
            "reshape(b, n, 3, self.heads, 16 // self.heads).permute(2,",
            "reshape(b, n, self.heads, 3, 16 // self.heads).permute(3,",
        ),
        ("0, 3, 1, 4)", "0, 2, 1, 4)"),
    ],
}


@pytest.mark.parametrize("mistake", WORDS_MISTAKES)
def test_edits_say_things_in_words_that_hold_in_every_layer(tmp_path, capsys, mistake):
    text = WORDS
    for number, (old, new) in enumerate(WORDS_MISTAKES[mistake]):
        assert old in text
        head, found, rest = text.rpartition(old) if number else text.partition(old)
        text = head + new + rest
    functional = WORDS.replace("self.there(", "roll(-1, ").replace("self.back(", "roll(1, ")
    functional = functional.replace(
        "class Roll", "def roll(by, x):\n    return torch.roll(x, (by, by), (1, 2))\n\n\nclass Roll", 1
    )
    (tmp_path / "ref.py").write_text(functional, encoding="utf-8")
    (tmp_path / "port.py").write_text(text, encoding="utf-8")
    found = answer(tmp_path, capsys)
    edits = [origin["edit"] for origin in found["origins"]]
    assert edits
    assert all(edit is not None and edit["confirmed"] and not edit["only_here"] for edit in edits)
    assert is_right_with_the_patch(tmp_path, capsys)


SHARED = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, down):
        super().__init__()
        self.one, self.two, self.act = nn.Linear(8, 8), nn.Linear(8, 8), nn.ReLU()
        self.down = nn.Linear(8, 8) if down else None

    def forward(self, x):
        identity = x
        out = self.act(self.one(x))
        out = self.two(out)
        if self.down is not None:
            identity = self.down(x)
        out += identity
        return self.act(out)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(True), Block(False))

    def forward(self, x):
        return self.blocks(x)


def build():
    torch.manual_seed(3)
    return Net().eval(), torch.randn(4, 8)
"""


def test_a_layer_that_is_called_once_too_often_is_called_less(tmp_path, capsys):
    (tmp_path / "ref.py").write_text(SHARED, encoding="utf-8")
    wrong = SHARED.replace("out = self.two(out)", "out = self.act(self.two(out))")
    (tmp_path / "port.py").write_text(wrong, encoding="utf-8")
    found = answer(tmp_path, capsys)
    lines = {change["after"] for origin in found["origins"] for change in origin["edit"]["lines"]}
    assert {line.strip() for line in lines} == {"out = self.two(out)"}
    assert is_right_with_the_patch(tmp_path, capsys)


LISTED = """
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm, self.lin = nn.LayerNorm(size), nn.Linear(size, 4)

    def forward(self, parts):
        return self.lin(self.norm(torch.cat(parts, -1)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(8), Layer(12), Layer(16)])

    def forward(self, x):
        parts = [x]
        for layer in self.layers:
            parts.append(layer(parts))
        return torch.cat(parts, -1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.head = Block(), nn.Linear(20, 3)

    def forward(self, x):
        return self.head(self.block(x))


def build():
    torch.manual_seed(3)
    return Net().eval(), torch.randn(4, 6, 8)
"""
JOINED = LISTED.replace("torch.cat(parts, -1)))", "parts))").replace(
    "        parts = [x]\n        for layer in self.layers:\n            parts.append(layer(parts))\n"
    "        return torch.cat(parts, -1)\n",
    "        for layer in self.layers:\n            new = layer(x)\n            x = torch.cat((x, new), -1)\n"
    "        return x\n",
)


@pytest.mark.parametrize("wrong", [False, True])
def test_what_a_layer_is_given_joined_is_told_by_what_it_hands_on(tmp_path, capsys, wrong):
    (tmp_path / "ref.py").write_text(LISTED, encoding="utf-8")
    port = JOINED.replace("(x, new)", "(new, x)") if wrong else JOINED
    (tmp_path / "port.py").write_text(port, encoding="utf-8")
    found = answer(tmp_path, capsys)
    if not wrong:
        assert (found["outcome"], found["origins"], found["suspects"]) == ("aligned", [], [])
        return
    assert {origin["layer"] for origin in found["origins"]} == {"block"}
    lines = {change["after"] for origin in found["origins"] for change in origin["edit"]["lines"]}
    assert {line.strip() for line in lines} == {"x = torch.cat((x, new), -1)"}
    assert is_right_with_the_patch(tmp_path, capsys)


SHAPED = """
import torch
from torch import nn


class Clock(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, hours):
        waves = hours[..., None] * torch.arange(1, 3)
        return self.out(torch.cat((waves.sin(), waves.cos()), -1))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.clock, self.place = Clock(), nn.Linear(3, 3)

    def at(self, table, index):
        return torch.gather(table, 1, index.expand(-1, 3)[:, None])[:, 0]

    def forward(self, hours, index):
        one, other = self.clock(hours), self.clock(hours[:, :2])
        return self.place(self.at(one, index[:, None])) + other.mean(1)


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.rand(3, 5) * 7, torch.tensor([1, 3, 4]))
"""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("torch.cat((waves.sin(), waves.cos()), -1)", "torch.stack((waves.sin(), waves.cos()), -1).flatten(-2)"),
        ("self.at(one, index[:, None])", "self.at(one, index[:, None] * 0 + 2)"),
    ],
)
def test_an_edit_that_stops_another_call_of_the_layer_is_in_no_patch(tmp_path, capsys, right, wrong):
    """What is told is right in every call, or says where it is not."""
    (tmp_path / "ref.py").write_text(SHAPED, encoding="utf-8")
    assert SHAPED.count(right) == 1
    (tmp_path / "port.py").write_text(SHAPED.replace(right, wrong), encoding="utf-8")
    told = answer(tmp_path, capsys)["origins"]
    assert told
    edits = [origin["edit"] for origin in told if origin["edit"] is not None]
    if edits and not any(edit["only_here"] for edit in edits):
        assert is_right_with_the_patch(tmp_path, capsys)
