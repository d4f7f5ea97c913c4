"""One wrong line that runs in every layer of a net: explained once, and told of all of them."""

from __future__ import annotations

import copy
import json
from collections import Counter

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there

import aligner  # noqa: E402 - as above
from aligner.capture.session import Options  # noqa: E402 - as above
from aligner.explain import inquiry  # noqa: E402 - as above
from aligner.report import json_, text  # noqa: E402 - as above
from aligner.report.terminal import Terminal  # noqa: E402 - as above

DEPTH = 6


class Block(nn.Module):
    """A part of the width is scaled; what `strange` does no rule knows."""

    def __init__(self, width, factor, strange):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(width, 24), nn.LayerNorm(24), nn.Linear(24, width)
        self.factor, self.strange = factor, strange

    def forward(self, x):
        y = self.norm(self.up(x))
        if self.strange:
            y = y + torch.sinh(y.flip(-1)) * torch.cumsum(y, 1).roll(3, -1) / 7.3
        return x + self.down(y * self.factor)


class Net(nn.Module):
    def __init__(self, factor=1.0, strange=False, eps=1e-5):
        super().__init__()
        self.blocks = nn.ModuleList([Block(8 + 4 * (n > 3), factor, strange) for n in range(DEPTH)])
        self.wide = nn.Linear(8, 12)
        for block in self.blocks:
            block.norm.eps = eps

    def forward(self, x):
        for number, block in enumerate(self.blocks):
            x = block(self.wide(x) if number == 4 else x)
        return x


def answer(tmp_path, **wrong):
    torch.manual_seed(0)
    reference, port = Net(), Net(**wrong)
    port.load_state_dict(copy.deepcopy(reference.state_dict()))
    reference.eval(), port.eval()
    with torch.no_grad(), aligner.capture(reference, tmp_path / "ref.h5"):
        reference(torch.randn(3, 10, 8))
    replay = aligner.replay(tmp_path / "ref.h5", port)
    with torch.no_grad(), replay.capture(tmp_path / "port.h5", Options(force=True)):
        port(*replay.inputs(0))
    return aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5")


def shown_in(result, language):
    """The text report without its blanks."""
    return "".join("".join(text.report_lines(result, Terminal(100, language=language))).split())


@pytest.fixture
def asked(monkeypatch):
    """How often each rule was asked."""
    counts: Counter[str] = Counter()
    ask = inquiry.Inquiry.ask

    def counted(self, name, rule, elements=0.0):
        if self.only is None or name in self.only:
            counts[name] += 1
        return ask(self, name, rule, elements)

    monkeypatch.setattr(inquiry.Inquiry, "ask", counted)
    return counts


def test_what_explained_the_first_is_asked_of_the_others_alone(tmp_path, asked):
    origins = answer(tmp_path, factor=0.7).origins
    assert [origin.layer for origin in origins] == [f"blocks.{n}" for n in range(DEPTH)]
    assert {origin.causes[0].id for origin in origins} == {"scale-missing"}
    assert all(origin.causes[0].confirmed for origin in origins), "by its own numbers"
    assert not any(origin.like or origin.untried for origin in origins)
    once = {name for name, count in asked.items() if count == 1}
    assert asked["elementwise"] + asked["scalars"] + asked["formulas"] >= DEPTH
    assert {"losses", "joins", "edges"} <= once, asked


def test_what_nothing_is_known_of_is_looked_into_twice_and_said_of_the_others(tmp_path, asked):
    result = answer(tmp_path, strange=True)
    assert len(result.origins) == DEPTH
    assert not any(cause.confirmed for origin in result.origins for cause in origin.causes)
    assert [origin.like for origin in result.origins] == ["", ""] + ["blocks.0"] * (DEPTH - 2)
    assert asked["formulas"] <= 3, asked
    document = json_.document(result)
    assert [origin["like"] for origin in document["origins"]][2:] == ["blocks.0"] * (DEPTH - 2)
    for language, said in (("en", "by the same line alone"), ("zh", "仅凭同一行代码")):
        shown = shown_in(result, language)
        assert said.replace(" ", "") in shown


def test_what_the_bounds_leave_out_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(inquiry, "ORIGIN", 1000.0)
    result = answer(tmp_path, factor=0.7, eps=1e-3)
    first = next(origin for origin in result.origins if origin.where == "glue")
    assert "formulas" in first.untried
    assert not first.causes or not first.causes[0].confirmed
    assert len([o for o in result.origins if o.where == "glue"]) == DEPTH, "origins themselves are never left out"
    norm = next(origin for origin in result.origins if origin.layer == "blocks.0.norm")
    assert norm.causes[0].change == {"eps": 1e-5}
    assert norm.causes[0].confirmed, "trials and settings cost nothing of it"
    for language, said in (("en", "formulas of the values in hand"), ("zh", "由已有数值组成的算式")):
        shown = shown_in(result, language)
        assert said.replace(" ", "") in shown
    assert "formulas of the values in hand" in result._repr_html_()
    assert json.loads(json_.dumps(json_.document(result)))["origins"][0]["untried"] is not None
