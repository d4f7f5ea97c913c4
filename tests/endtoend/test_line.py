"""The line of a port's own code that does something else than the reference's: from two files to the answer."""

from __future__ import annotations

import json
import os
import shutil
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from aligner.cli import main  # noqa: E402 - only after it is known to be there
from aligner.mending.stepping import Stepping  # noqa: E402 - as above
from aligner.replay import examination  # noqa: E402 - as above

if not hasattr(getattr(torch, "overrides", None), "_push_mode"):
    pytest.skip("this torch does not tell of its operations", allow_module_level=True)

REFERENCE = """
import math
import torch
from torch import nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(24, 24) for _ in range(4))

    def split(self, x):
        return x.view(2, 7, 3, 8).transpose(1, 2)

    def forward(self, x, lengths):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        scores = q @ k.transpose(-2, -1) / math.sqrt(8)
        capped = 5.0 * torch.tanh(scores / 5.0)
        causal = torch.ones(7, 7).tril().bool()
        valid = torch.arange(7)[None, :] < lengths[:, None]
        hidden = ~(causal[None] & valid[:, None, :])
        masked = capped.masked_fill(hidden[:, None], float("-inf"))
        weights = F.softmax(masked, dim=-1)
        mixed = weights @ v
        joined = mixed.transpose(1, 2).reshape(2, 7, 24)
        gated = joined * torch.sigmoid(x)
        return self.o(gated) + x


def build():
    torch.manual_seed(0)
    return Net(), (3.0 * torch.randn(2, 7, 24), torch.tensor([7, 5]))
"""

OTHERWISE = [
    ("scores = q @ k.transpose(-2, -1) / math.sqrt(8)", "scores = (q * 8**-0.5) @ k.transpose(2, 3)"),
    ('capped.masked_fill(hidden[:, None], float("-inf"))', "capped - 1e9 * hidden[:, None].float()"),
    ("weights = F.softmax(masked, dim=-1)", "weights = torch.softmax(masked, 3)"),
]
"""The same in other words, as ports have it."""

MISTAKES = {
    "another axis": ("torch.softmax(masked, 3)", "torch.softmax(masked, 2)", "argument", "weights =", "weights ="),
    "another constant": ("5.0 * torch.tanh", "4.0 * torch.tanh", "argument", "capped =", "capped ="),
    "another comparison": ("[None, :] < lengths", "[None, :] <= lengths", "other", "valid =", "valid ="),
    "another function": ("torch.sigmoid(x)", "torch.tanh(x)", "other", "gated =", "gated ="),
    "another value": ("joined * torch.sigmoid(x)", "x * torch.sigmoid(x)", "operand", "gated =", "gated ="),
    "a line forgotten": (
        "capped = 5.0 * torch.tanh(scores / 5.0)",
        "capped = scores",
        "missing",
        "masked =",
        "capped =",
    ),
    "a transposition forgotten": ("mixed.transpose(1, 2).reshape", "mixed.reshape", "missing", "gated =", "joined ="),
    "a residual forgotten": ("return self.o(gated) + x", "return self.o(gated)", "missing", "return", "return"),
    "a layer left out": ("self.o(gated) + x", "gated + x", "operand", "return", "return"),
    "the input of another layer": ("self.split(self.v(x))", "self.split(self.v(self.k(x)))", "handed", "q, k, v", None),
    "a step too much": ("mixed = weights @ v", "mixed = (weights @ v).relu()", "extra", "mixed =", None),
}
"""What is changed in the port, what is said of it, and what its line and the reference's begin with."""


def written(tmp_path, *edits):
    text = REFERENCE
    for old, new in (*OTHERWISE, *edits):
        assert old in text
        text = text.replace(old, new)
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)  # a file of the same second and size is the same to it
    (tmp_path / "ref.py").write_text(REFERENCE)
    (tmp_path / "port.py").write_text(text)


def answer(tmp_path, capsys, *options):
    os.chdir(tmp_path)
    assert main(["capture", "ref.py:build", "-o", "ref.h5", "--force"]) == 0
    assert main(["capture", "port.py:build", "--from", "ref.h5", "-o", "port.h5", "--force"]) == 0
    capsys.readouterr()
    main(["compare", "ref.h5", "port.h5", *options])
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def stay(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def test_a_port_in_other_words_is_aligned(tmp_path, capsys):
    written(tmp_path)
    assert json.loads(answer(tmp_path, capsys, "--json"))["outcome"] == "aligned"


@pytest.mark.parametrize("name", MISTAKES)
def test_the_line_is_named(tmp_path, capsys, name):
    old, new, kind, port, reference = MISTAKES[name]
    written(tmp_path, (old, new))
    origins = json.loads(answer(tmp_path, capsys, "--json"))["origins"]
    assert len(origins) == 1
    line = origins[0]["line"]
    assert line["sure"]
    assert line["kind"] == kind
    for side, begins in (("port", port), ("reference", reference)):
        if begins is not None:
            assert line[side]["text"].startswith(begins)
            source = (tmp_path / ("port.py" if side == "port" else "ref.py")).read_text().splitlines()
            assert source[line[side]["line"] - 1].strip() == line[side]["text"]


def test_the_two_numbers_are_told(tmp_path, capsys):
    written(tmp_path, ("torch.softmax(masked, 3)", "torch.softmax(masked, 2)"))
    (origin,) = json.loads(answer(tmp_path, capsys, "--json"))["origins"]
    assert origin["line"]["argument"] == {"reference": "-1", "port": "2"}


def test_what_is_forgotten_between_a_layer_and_the_next_line_is_hemmed_in(tmp_path, capsys):
    written(tmp_path, ("return self.o(gated) + x", "last = self.o(gated)\n        return last"))
    (origin,) = json.loads(answer(tmp_path, capsys, "--json"))["origins"]
    assert origin["line"]["kind"] == "between"
    assert origin["line"]["port"]["text"] == "last = self.o(gated)"
    assert origin["line"]["until"]["port"]["text"] == "return last"
    assert origin["line"]["reference"]["text"] == "return self.o(gated) + x"


def test_code_that_looks_at_its_own_frame_is_held_all_the_same(tmp_path, capsys):
    """It does not run in the form that tells; then no line is known."""
    own = "import sys\nfrom torch import nn\n"
    looks = "        assert sys._getframe().f_code is Net.forward.__code__\n        q, k, v ="
    edits = ("from torch import nn\n", own), ("        q, k, v =", looks)
    written(tmp_path, *edits)
    assert json.loads(answer(tmp_path, capsys, "--json"))["outcome"] == "aligned"
    written(tmp_path, *edits, ("torch.softmax(masked, 3)", "torch.softmax(masked, 2)"))
    found = json.loads(answer(tmp_path, capsys, "--json"))
    assert found["port"]["forced"] is True
    assert [(origin["where"], origin["line"]) for origin in found["origins"]] == [("glue", None)]


def test_two_mistakes_that_mix_are_only_hemmed_in(tmp_path, capsys):
    edits = ("(q * 8**-0.5) @ k", "(q * 9**-0.5) @ v"), ("torch.softmax(masked, 3)", "torch.sigmoid(masked)")
    written(tmp_path, *edits)
    (origin,) = json.loads(answer(tmp_path, capsys, "--json"))["origins"]
    assert origin["line"]["kind"] == "between"
    assert origin["line"]["port"]["text"].startswith("scores =")
    assert not any(cause["id"].startswith("line-") for cause in origin["causes"])


@pytest.mark.parametrize(("language", "words"), [("en", "no edit puts it right"), ("zh", "未找到能改正的修改")])
def test_where_no_edit_is_found_the_first_lines_that_differ_are_told(tmp_path, capsys, monkeypatch, language, words):
    for way in ("_candidates", "grafts"):
        monkeypatch.setattr(Stepping, way, lambda *_: iter(()))
    edits = ("(q * 8**-0.5) @ k", "(q * 9**-0.5) @ v"), ("torch.softmax(masked, 3)", "torch.sigmoid(masked)")
    written(tmp_path, *edits)
    (origin,) = json.loads(answer(tmp_path, capsys, "--json"))["origins"]
    line = origin["line"]
    assert (line["kind"], line["sure"]) == ("first", False)
    assert line["port"]["text"].startswith("scores =")
    assert line["reference"]["text"].startswith("scores =")
    assert not any(cause["id"].startswith("line-") for cause in origin["causes"])
    main(["compare", "ref.h5", "port.h5", "--lang", language])
    assert words in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("language", "words"), [("en", "the first value"), ("zh", "第一个标杆中没有的值")])
def test_the_report_shows_both_lines(tmp_path, capsys, monkeypatch, language, words):
    """Where no edit of them was proved."""
    monkeypatch.setattr(examination, "Mending", lambda *_: SimpleNamespace(mended=lambda: ()))
    written(tmp_path, ("torch.sigmoid(x)", "torch.tanh(x)"))
    shown = answer(tmp_path, capsys, "--lang", language)
    said = "".join(shown.split())
    assert "port.py:27`gated=joined*torch.tanh(x)`" in said
    assert "ref.py:27`gated=joined*torch.sigmoid(x)`" in said
    assert "".join(words.split()) in said


def test_values_drawn_at_random_name_no_line(tmp_path, capsys):
    written(tmp_path, ("mixed = weights @ v", "mixed = weights @ v + torch.rand(2, 3, 7, 8)"))
    (origin,) = json.loads(answer(tmp_path, capsys, "--json"))["origins"]
    assert origin["line"] is None or origin["line"]["port"]["text"].startswith("mixed =")
