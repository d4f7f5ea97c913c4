"""Wrong lines of a port's own code: the edit that is shown was run, and applied it makes the port right."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from types import SimpleNamespace

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


def halves(x):
    one, two = x.chunk(2, dim=-1)
    return torch.cat((-two, one), dim=-1)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.head = heads, width // heads
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.o = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def split(self, x):
        b, n, _ = x.shape
        return x.view(b, n, self.heads, self.head).transpose(1, 2)

    def forward(self, x, bias):
        b, n, width = x.shape
        y = self.norm(x)
        q, k, v = self.split(self.q(y)), self.split(self.k(y)), self.split(self.v(y))
        q = q + 0.5 * halves(q)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head) + bias
        mixed = scores.softmax(dim=-1) @ v
        x = x + self.o(mixed.transpose(1, 2).reshape(b, n, width))
        return x + self.down(F.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(31, 24)
        self.blocks = nn.ModuleList([Block(24, 3) for _ in range(2)])
        self.head = nn.Linear(24, 5)
        self.gate = nn.Parameter(torch.rand(24))

    def forward(self, tokens, lengths):
        places = torch.arange(tokens.shape[1])
        bias = (places[None] >= lengths[:, None])[:, None, None, :] * -1e4
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, bias)
        return self.head(x[:, 0] * (1.0 - self.gate))


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randint(0, 31, (2, 7)), torch.tensor([5, 7]))
"""

MISTAKES = {
    "axis": [("scores.softmax(dim=-1)", "scores.softmax(dim=-2)")],
    "axis by its place": [("scores.softmax(dim=-1)", "scores.softmax(-2)")],
    "order of pieces": [("torch.cat((-two, one), dim=-1)", "torch.cat((one, -two), dim=-1)")],
    "heads not moved back": [("mixed.transpose(1, 2).reshape(b, n, width)", "mixed.reshape(b, n, width)")],
    "no scale": [(" / math.sqrt(self.head) + bias", " + bias")],
    "other scale": [("math.sqrt(self.head)", "self.head")],
    "no mask": [(" / math.sqrt(self.head) + bias", " / math.sqrt(self.head)")],
    "no residual": [("return x + self.down(", "return self.down(")],
    "residual of the norm": [("x = x + self.o(", "x = y + self.o(")],
    "keys for values": [("@ v\n", "@ k\n")],
    "layers exchanged": [
        ("self.split(self.k(y)), self.split(self.v(y))", "self.split(self.v(y)), self.split(self.k(y))")
    ],
    "other function": [("F.gelu(", "F.relu(")],
    "other form of it": [("F.gelu(self.up(x))", 'F.gelu(self.up(x), approximate="tanh")')],
    "one thing too many": [("self.head(x[:, 0]", "self.head(torch.tanh(x[:, 0])")],
    "last for first": [("x[:, 0]", "x[:, -1]")],
    "an argument forgotten": [
        ("x = block(x, bias)", "x = block(x)"),
        ("def forward(self, x, bias):", "def forward(self, x, bias=0.0):"),
    ],
    "the other way round": [("1.0 - self.gate", "self.gate - 1.0")],
    "factor": [("0.5 * halves(q)", "0.25 * halves(q)")],
    "two in one code": [("scores.softmax(dim=-1)", "scores.softmax(dim=-2)"), ("x = x + self.o(", "x = y + self.o(")],
    "an order of steps": [
        (
            "        q = q + 0.5 * halves(q)\n        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head) + bias\n",
            "        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head) + bias\n        q = q + 0.5 * halves(q)\n",
        ),
    ],
    "three in one code": [
        ("0.5 * halves(q)", "0.25 * halves(q)"),
        ("scores.softmax(dim=-1)", "scores.softmax(dim=-2)"),
        ("return x + self.down(", "return self.down("),
    ],
    "two in two codes": [("x[:, 0]", "x[:, -1]"), ("F.gelu(", "F.relu(")],
}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def written(folder, *edits, reference=()):
    """The reference, both with these changes first, and a port with these mistakes."""
    ours = changed(REFERENCE, reference)
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    (folder / "ref.py").write_text(ours, encoding="utf-8")
    (folder / "port.py").write_text(changed(ours, edits), encoding="utf-8")


def changed(text, edits):
    for old, new in edits:
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


def captured(*options):
    port = ["port.py:build", "--from", "ref.h5", "-o", "port.h5", *options]
    assert main(["capture", "ref.py:build", "-o", "ref.h5", "--force", "--quiet"]) == 0
    assert main(["capture", *port, "--force", "--quiet"]) == 0


def compared(capsys, *options):
    """What compare says on stdout and stderr."""
    capsys.readouterr()
    main(["compare", "ref.h5", "port.h5", *options])
    return capsys.readouterr()


def answer(capsys):
    captured()
    return json.loads(compared(capsys, "--json").out)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_patch_makes_the_port_right(tmp_path, capsys, mistake):
    written(tmp_path, *MISTAKES[mistake])
    found = answer(capsys)
    edits = [origin["edit"] for origin in found["origins"] + found["suspects"]]
    assert edits
    assert all(edit is not None and edit["confirmed"] and not edit["only_here"] for edit in edits)
    assert all(float(edit["error_after"]) * 5 < float(edit["error_before"]) for edit in edits)
    compared(capsys, "--patch", "fix.diff")
    subprocess.run(["git", "apply", "fix.diff"], check=True)
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    mended = answer(capsys)
    assert (mended["outcome"], mended["origins"], mended["suspects"]) == ("aligned", [], [])


def test_one_line_that_many_layers_run_is_one_change(tmp_path, capsys):
    written(tmp_path, *MISTAKES["axis"])
    found = answer(capsys)
    assert [origin["layer"] for origin in found["origins"]] == ["blocks.0", "blocks.1"]
    one, other = (origin["edit"] for origin in found["origins"])
    assert (one["lines"], one["like"]) == (other["lines"], False)
    assert other["like"]
    assert {origin["family"] for origin in found["origins"]} == {0}
    (line,) = one["lines"]
    before, after = "mixed = scores.softmax(dim=-2) @ v", "mixed = scores.softmax(dim=-1) @ v"
    assert (line["before"].strip(), line["after"].strip()) == (before, after)
    text = (tmp_path / "port.py").read_text(encoding="utf-8").splitlines()
    assert text[line["line"] - 1] == line["before"]
    assert line["before"][line["column"] - 1 :].startswith("2)")


@pytest.mark.parametrize(("language", "words"), [("en", "the line was run so"), ("zh", "已按此运行该行")])
def test_the_report_shows_the_change_and_its_proof(tmp_path, capsys, language, words):
    written(tmp_path, *MISTAKES["other function"])
    captured()
    said = compared(capsys, "--lang", language).out
    assert "- return x + self.down(F.relu(self.up(x)))" in said
    assert "+ return x + self.down(" in said
    assert "".join(words.split()) in "".join(said.split())


def test_a_right_port_has_no_edit(tmp_path, capsys):
    written(tmp_path)
    found = answer(capsys)
    assert (found["outcome"], found["origins"], found["suspects"]) == ("aligned", [], [])
    said = compared(capsys, "--patch", "fix.diff")
    assert "no edit" in said.err
    assert not (tmp_path / "fix.diff").exists()


def test_a_line_that_is_right_elsewhere_is_no_change_to_be_made(tmp_path, capsys):
    """What is wrong is a switch that is set in `__init__`."""
    heads = "self.heads, self.head = heads, width // heads\n"
    act = "F.gelu(self.up(x))"
    built = "self.head = nn.Linear(24, 5)"
    reference = (
        (heads, f"{heads}        self.first = False\n"),
        (act, "(F.relu if self.first else F.gelu)(self.up(x))"),
        (built, f"{built}\n        self.blocks[0].first = True"),
    )
    written(
        tmp_path,
        ("self.blocks[0].first = True", "self.blocks[0].first = self.blocks[1].first = True"),
        reference=reference,
    )
    (origin,) = answer(capsys)["origins"]
    assert origin["layer"] == "blocks.1"
    assert origin["edit"]["only_here"] == ["blocks.0"]
    assert "no edit" in compared(capsys, "--patch", "fix.diff").err
    assert "only here" in compared(capsys).out


def test_a_number_that_the_reference_has_in_one_operation_and_the_port_among_several(tmp_path, capsys):
    """A weight that is brought to a variance of one, with another eps."""
    reference = [
        ("x = x + self.o(mixed.transpose(1, 2).reshape(b, n, width))", "x = x + self.merged(mixed, b, n, width)"),
        (
            "    def forward(self, x, bias):\n",
            "    def merged(self, x, b, n, width):\n"
            "        weight = F.layer_norm(self.o.weight, (width,), eps=1e-2)\n"
            "        return x.transpose(1, 2).reshape(b, n, width) @ weight.t()\n\n"
            "    def forward(self, x, bias):\n",
        ),
    ]
    apart = (
        "weight = F.layer_norm(self.o.weight, (width,), eps=1e-2)",
        "weight = self.o.weight - self.o.weight.mean(1, keepdim=True)\n"
        "        weight = weight / torch.sqrt((weight * weight).mean(1, keepdim=True) + 1e-5)",
    )
    written(tmp_path, apart, reference=reference)
    found = answer(capsys)
    assert {origin["layer"] for origin in found["origins"]} == {"blocks.0", "blocks.1"}
    assert "+ 0.01)" in found["origins"][0]["edit"]["lines"][0]["after"]
    assert found["origins"][0]["causes"][0]["confirmed"]


def test_the_patch_goes_to_stdout_in_the_reports_place(tmp_path, capsys):
    written(tmp_path, *MISTAKES["axis"])
    captured()
    said = compared(capsys, "--patch", "-")
    assert said.out.startswith("--- a/port.py\n+++ b/port.py\n")
    assert "changes port.py" in said.err


def test_a_file_that_was_changed_since_is_left_alone(tmp_path, capsys):
    written(tmp_path, *MISTAKES["axis"])
    captured()
    written(tmp_path, *MISTAKES["factor"])
    said = compared(capsys, "--patch", "fix.diff")
    assert "no longer holds the lines" in said.err
    assert not (tmp_path / "fix.diff").exists()


def test_a_file_outside_the_folder_is_never_named(tmp_path, capsys):
    written(tmp_path, *MISTAKES["axis"])
    captured()
    (tmp_path / "empty").mkdir()
    said = compared(capsys, "--patch", "fix.diff", "--patch-folder", "empty")
    assert f"is no file of {tmp_path / 'empty'}" in said.err


def test_a_folder_that_was_moved_is_found_by_the_ends_of_paths(tmp_path, capsys):
    written(tmp_path, *MISTAKES["axis"])
    captured()
    (tmp_path / "moved").mkdir()
    (tmp_path / "port.py").rename(tmp_path / "moved" / "port.py")
    compared(capsys, "--patch", "fix.diff", "--patch-folder", "moved")
    assert "+++ b/port.py" in (tmp_path / "fix.diff").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--patch", "there.diff"], "there already"),
        (["--patch", "fix.diff", "--patch-folder", "nowhere"], "is no folder"),
        (["--patch", "-", "--json"], "both write to stdout"),
        (["--patch", "nowhere/fix.diff"], "cannot be written"),
    ],
)
def test_what_cannot_be_written_is_said(tmp_path, capsys, options, words):
    written(tmp_path, *MISTAKES["axis"])
    (tmp_path / "there.diff").write_text("mine")
    captured()
    capsys.readouterr()
    assert main(["compare", "ref.h5", "port.h5", *options]) == 2
    assert words in capsys.readouterr().err
    assert (tmp_path / "there.diff").read_text() == "mine"


def test_a_search_that_fails_costs_nothing_but_the_edit(tmp_path, capsys, monkeypatch):
    def raised(self):
        raise RuntimeError("of ours")
        yield

    monkeypatch.setattr("aligner.mending.mend.Mending.mended", raised)
    written(tmp_path, *MISTAKES["axis"])
    found = answer(capsys)
    assert [origin["edit"] for origin in found["origins"]] == [None, None]
    assert found["port"]["forced"]
    assert any("RuntimeError: of ours" in warning["text"] for warning in found["warnings"])


def test_a_search_that_has_no_time_left_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("aligner.mending.mend.time", SimpleNamespace(monotonic=itertools.count(step=1e3).__next__))
    written(tmp_path, *MISTAKES["axis"])
    found = answer(capsys)
    assert [origin["edit"] for origin in found["origins"]] == [None, None]
    assert any("was ended after" in warning["text"] for warning in found["warnings"])


def test_how_long_is_searched_is_an_option(tmp_path, capsys):
    written(tmp_path, *MISTAKES["axis"])
    captured("--search", "0")
    main(["compare", "ref.h5", "port.h5", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [origin["edit"] for origin in found["origins"]] == [None, None]
    assert not any("was ended after" in warning["text"] for warning in found["warnings"])
    captured("--search", "90")
    assert "confirmed" in compared(capsys).out
    for words in (["--search", "9"], ["--from", "ref.h5", "--search", "-1"]):
        with pytest.raises(SystemExit) as stopped:
            raise SystemExit(main(["capture", "port.py:build", "-o", "x.h5", *words]))
        assert stopped.value.code == 2
        assert "--search" in capsys.readouterr().err


STAGES = """
import torch
from torch import nn


class Stage(nn.Module):
    def __init__(self, wide, out):
        super().__init__()
        self.first, self.second = nn.Linear(wide, out), nn.Linear(out, out)
        self.down = nn.Linear(wide, out) if wide != out else None

    def forward(self, x):
        shortcut = x if self.down is None else self.down(x)
        y = self.second(torch.relu(self.first(x)))
        return torch.relu(y + shortcut)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.Sequential(Stage(8, 8), Stage(8, 12), Stage(12, 12))

    def forward(self, x):
        return self.stages(x)


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(5, 8),)
"""


def test_an_edit_that_is_right_in_some_layers_gives_way_to_the_one_that_is_in_all(tmp_path, capsys):
    """The first stage could do with `y + x`; where the width changes, only the shortcut is right."""
    (tmp_path / "ref.py").write_text(STAGES, encoding="utf-8")
    (tmp_path / "port.py").write_text(changed(STAGES, [("y + shortcut", "y")]), encoding="utf-8")
    found = answer(capsys)
    assert [origin["layer"] for origin in found["origins"]] == ["stages.0", "stages.1", "stages.2"]
    for origin in found["origins"]:
        (line,) = origin["edit"]["lines"]
        assert line["after"].strip() == "return torch.relu(y + shortcut)"
        assert not origin["edit"]["only_here"]
        assert (origin["causes"][0]["id"], origin["causes"][0]["confirmed"]) == ("code-edit", True)


LOOP = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        x = self.a(x)
        for n in range(200):
            y = torch.tanh(x * (0.5 + n / 200))
            x = (x + 0.1 * y) / 1.01
        return self.b(x)


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(4, 16),)
"""


def test_a_thousand_operations_in_one_layer_are_followed_to_the_line(tmp_path, capsys):
    (tmp_path / "ref.py").write_text(LOOP, encoding="utf-8")
    (tmp_path / "port.py").write_text(changed(LOOP, [("0.1 * y", "0.2 * y")]), encoding="utf-8")
    (origin,) = answer(capsys)["origins"]
    assert (origin["line"]["kind"], origin["line"]["argument"]) == ("argument", {"reference": "0.1", "port": "0.2"})
    assert origin["edit"]["lines"][0]["after"].strip() == "x = (x + 0.1 * y) / 1.01"


def long_code(*wrong):
    """A thousand operations in one layer, each pair of lines with a number of its own."""
    pair = "        p = p + 0.02 * torch.{}(x + {:.2f})\n        x = x - 0.02 * p\n"
    lines = "".join(pair.format("cos" if n in wrong else "sin", 0.01 * n) for n in range(170))
    loop = LOOP[LOOP.index("        for n in") : LOOP.index("        return")]
    return changed(LOOP, [("        x = self.a(x)\n", "        x, p = self.a(x), self.b(x)\n"), (loop, lines)])


def test_several_mistakes_in_a_thousand_lines_are_mended_one_after_the_other(tmp_path, capsys):
    (tmp_path / "ref.py").write_text(long_code(), encoding="utf-8")
    (tmp_path / "port.py").write_text(long_code(30, 80, 120), encoding="utf-8")
    (origin,) = answer(capsys)["origins"]
    assert origin["edit"]["confirmed"]
    after = [line["after"].strip() for line in origin["edit"]["lines"]]
    assert [line.partition("(x + ")[0] for line in after] == ["p = p + 0.02 * torch.sin"] * 3
    compared(capsys, "--patch", "fix.diff")
    subprocess.run(["git", "apply", "fix.diff"], check=True)
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    assert answer(capsys)["outcome"] == "aligned"


def test_a_block_of_code_that_captures_is_followed_as_the_command_does(tmp_path, capsys):
    """The reference is captured by a program of the user's, the port by the command."""
    written(tmp_path, *MISTAKES["axis"])
    program = "import aligner, ref, torch\nnet, inputs = ref.build()\n"
    program += "with torch.no_grad(), aligner.capture(net, 'ref.h5'):\n    net(*inputs)\n"
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    assert main(["capture", "-q", "port.py:build", "--from", "ref.h5", "-o", "port.h5"]) == 0
    capsys.readouterr()
    assert main(["compare", "ref.h5", "port.h5", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert {origin["edit"]["lines"][0]["after"].strip() for origin in found["origins"]} == {
        "mixed = scores.softmax(dim=-1) @ v"
    }


HELPER = """
import torch
from torch import nn


def normed(x, groups, gain, shift):
    b, n, c = x.shape
    y = x.reshape(b, n, groups, -1)
    y = (y - y.mean(-1, keepdim=True)) / torch.sqrt(y.var(-1, unbiased=False, keepdim=True) + 1e-5)
    return y.reshape(b, n, c) * gain + shift


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(12, 12), nn.Linear(12, 12)
        self.gain, self.shift = nn.Parameter(torch.rand(12)), nn.Parameter(torch.rand(12))

    def forward(self, x):
        return self.b(torch.relu(normed(self.a(x), 3, self.gain, self.shift)))


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(2, 5, 12),)
"""


def test_arguments_of_a_function_in_each_others_places(tmp_path, capsys):
    (tmp_path / "ref.py").write_text(HELPER, encoding="utf-8")
    (tmp_path / "port.py").write_text(changed(HELPER, [("3, self.gain, self.shift", "3, self.shift, self.gain")]))
    (origin,) = answer(capsys)["origins"]
    (line,) = origin["edit"]["lines"]
    assert line["after"].strip() == "return self.b(torch.relu(normed(self.a(x), 3, self.gain, self.shift)))"


ACTIVATION = """
import torch
from torch import nn
from torch.nn import functional as F


class Swish(nn.Module):
    def forward(self, x):
        return x * F.relu6(x + 3.0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.act, self.b = nn.Linear(12, 12), nn.Hardswish(), nn.Linear(12, 12)

    def forward(self, x):
        return self.b(self.act(self.a(x)))


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(2, 5, 12),)
"""


def test_a_layer_of_the_framework_that_the_port_writes_by_hand(tmp_path, capsys):
    (tmp_path / "ref.py").write_text(ACTIVATION, encoding="utf-8")
    (tmp_path / "port.py").write_text(changed(ACTIVATION, [("nn.Hardswish()", "Swish()")]), encoding="utf-8")
    (origin,) = answer(capsys)["origins"]
    assert (origin["layer"], origin["where"]) == ("act", "layer")
    (line,) = origin["edit"]["lines"]
    assert line["after"].strip().endswith("hardswish(x)")
    assert origin["causes"][0]["confirmed"]


GIVEN = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.word, self.kind, self.norm = nn.Embedding(9, 12), nn.Embedding(3, 12), nn.LayerNorm(12)
        self.mix = Mix()

    def embedded(self, words, kinds):
        return self.norm(self.word(words) + self.kind(kinds))

    def forward(self, words, kinds, present):
        bias = (1.0 - present[:, None, :]) * -100.0
        return self.mix(self.embedded(words, kinds), bias)


class Mix(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(12, 12)

    def forward(self, x, bias):
        return self.out(torch.softmax(x @ x.transpose(1, 2) + bias, -1) @ x)


def build():
    torch.manual_seed(3)
    words, kinds = torch.arange(10).reshape(2, 5) % 9, torch.tensor([[0, 0, 2, 2, 1], [2, 0, 0, 1, 1]])
    return Net().eval(), (words, kinds, torch.tensor([[1.0, 1, 1, 1, 0], [1, 1, 0, 0, 0]]))
"""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("self.embedded(words, kinds", "self.embedded(words, present.long()"), ("[:, None, :]", "[:, :, None]")],
    ids=["another value", "axis of one"],
)
def test_what_a_function_or_a_layer_is_given_is_mended_where_it_is_given(tmp_path, capsys, right, wrong):
    (tmp_path / "ref.py").write_text(GIVEN, encoding="utf-8")
    (tmp_path / "port.py").write_text(changed(GIVEN, [(right, wrong)]), encoding="utf-8")
    (origin,) = answer(capsys)["origins"]
    (line,) = origin["edit"]["lines"]
    assert right in line["after"]
    assert origin["causes"][0]["confirmed"]


LOSSES = """
import torch
from torch import nn
from torch.nn import functional as F


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 4)
        self.register_buffer("weight", torch.tensor([0.3, 1.7, 1.1, 0.6]))

    def forward(self, x, tags):
        return F.cross_entropy(self.out(x).flatten(0, 1), tags.flatten(), weight=self.weight, ignore_index=-100)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.temperature = Head(), Head(), 3.0

    def forward(self, x, tags, other):
        close = F.kl_div(x.log_softmax(-1), other, reduction="batchmean") * self.temperature**2
        return 2.5 * self.one(x, tags) + self.two(x, tags) + 0.5 * close


def build():
    torch.manual_seed(3)
    x, tags = torch.randn(3, 5, 6), torch.arange(15).reshape(3, 5) % 4
    return Net().eval(), (x, tags, torch.randn(3, 5, 6).softmax(-1))
"""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("tags.flatten(), weight=self.weight,", "tags.flatten(),"),
        ('reduction="batchmean"', 'reduction="sum"'),
        ("2.5 * self.one", "self.one"),
        ("+ 0.5 * close", "- 0.5 * close"),
        ("self.temperature**2", "self.temperature"),
    ],
)
def test_losses_are_followed_as_other_values_are(tmp_path, capsys, right, wrong):
    (tmp_path / "ref.py").write_text(LOSSES, encoding="utf-8")
    (tmp_path / "port.py").write_text(changed(LOSSES, [(right, wrong)]), encoding="utf-8")
    edits = [origin["edit"] for origin in answer(capsys)["origins"]]
    assert edits
    assert all(edit is not None and edit["confirmed"] and not edit["only_here"] for edit in edits)
