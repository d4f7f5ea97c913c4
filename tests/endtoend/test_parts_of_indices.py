"""Indices of which one side hands on a part, and the other one cuts what its layer makes of all of them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch  # noqa: E402, F401

NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.mix = nn.Embedding(11, 6), nn.LayerNorm(6), nn.Linear(6, 6)
        self.start, self.places = nn.Parameter(torch.randn(6)), nn.Embedding(9, 6)

    def forward(self, ids):
        batch, length = ids.shape
        start = self.start.expand(batch, 1, 6)
        x = torch.cat([start, self.embed(ids[:, :-1])], dim=1)
        x = self.norm(x) + self.places(torch.arange(length))
        return x.cumsum(1) * torch.sigmoid(self.mix(x))


def build():
    torch.manual_seed(5)
    return Net().eval(), (torch.randint(0, 11, (3, 7)),)
"""
CUT_BEHIND = [("self.embed(ids[:, :-1])", "self.embed(ids)[:, :-1]")]
MORE_PLACES = [("self.places(torch.arange(length))", "self.places(torch.arange(9))[:7]")]
MISTAKES = [("nn.LayerNorm(6)", "nn.LayerNorm(6, eps=0.5)"), ("x.cumsum(1)", "x.cumsum(0)")]


def _written(tmp_path, *changes):
    (tmp_path / "ref.py").write_text(NET, encoding="utf-8")
    port = NET
    for old, new in changes:
        assert port.count(old) == 1
        port = port.replace(old, new)
    (tmp_path / "port.py").write_text(port, encoding="utf-8")


@pytest.mark.parametrize("form", [CUT_BEHIND, MORE_PLACES, CUT_BEHIND + MORE_PLACES])
def test_a_port_that_cuts_behind_its_layer_is_right(tmp_path, capsys, form):
    _written(tmp_path, *form)
    found = answer(tmp_path, capsys)
    assert (found["outcome"], found["origins"], found["suspects"]) == ("aligned", [], [])


@pytest.mark.parametrize(("mistake", "layer"), [(MISTAKES[0], "norm"), (MISTAKES[1], "")])
def test_a_mistake_elsewhere_is_named_alone(tmp_path, capsys, mistake, layer):
    _written(tmp_path, *CUT_BEHIND, *MORE_PLACES, mistake)
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert origin["layer"] == layer
    assert is_right_with_the_patch(tmp_path, capsys)


@pytest.mark.parametrize("wrong", ["self.embed(ids)[:, 1:]", "self.embed(ids[:, 1:])"])
def test_the_wrong_part_is_a_mistake(tmp_path, capsys, wrong):
    _written(tmp_path, ("self.embed(ids[:, :-1])", wrong))
    found = answer(tmp_path, capsys)
    assert found["outcome"] == "diverged"
    assert found["origins"][0]["layer"] == ""
