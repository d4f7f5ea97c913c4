"""A port that calls a layer once where the reference calls it twice: which of the two it has is not sure."""

from __future__ import annotations

import json

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


class Decoder(nn.Module):
    def __init__(self, depth=2, width=12):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.boxes = nn.ModuleList([nn.Linear(width, 4) for _ in range(depth)])
        self.places, self.norm = nn.Linear(4, width), nn.LayerNorm(width)

"""
END = """

def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(2, 5, 12), torch.rand(2, 5, 4))
"""
REFERENCE = f"""{START}
    def forward(self, x, box):
        states, references = [], [box]
        for layer, predict in zip(self.layers, self.boxes):
            x = x + torch.tanh(layer(x + self.places(box)))
            box = torch.sigmoid(box + predict(x))
            states.append(self.norm(x))
            references.append(box)
        return states, references


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.decoder = Decoder()

    def forward(self, x, box):
        found = self.decoder(x, box)
        pairs = zip(self.decoder.boxes, *found)
        return torch.stack([torch.sigmoid(box + predict(state)) for predict, state, box in pairs])

{END}"""
PORT = f"""{START}
    def forward(self, x, box):
        found = []
        for layer, predict in zip(self.layers, self.boxes):
            x = x + torch.tanh(layer(x + self.places(box)))
            state = self.norm(x)
            found.append((state, torch.sigmoid(box + predict(state))))
            box = torch.sigmoid(box + predict(x))
        return found


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.decoder = Decoder()

    def forward(self, x, box):
        return torch.stack([box for _, box in self.decoder(x, box)])

{END}"""


@pytest.mark.parametrize("wrong", [False, True])
def test_no_edit_is_told_of_the_call_that_is_there(tmp_path, capsys, wrong):
    port = PORT.replace("box = torch.sigmoid(box + predict(x))", "box = found[-1][1]") if wrong else PORT
    (tmp_path / "ref.py").write_text(REFERENCE, encoding="utf-8")
    (tmp_path / "port.py").write_text(port, encoding="utf-8")
    told = answer(tmp_path, capsys)
    assert bool(told["origins"]) is wrong
    assert not any(one["edit"] for one in told["origins"]) or is_right_with_the_patch(tmp_path, capsys)


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("alone", [False, True])
def test_calls_in_another_order_are_no_mistake_behind_one(tmp_path, capsys, alone, deep):
    """The free run gives both calls wrong values: which is which, what they are given when held tells."""
    port = PORT.replace("self.decoder(x, box)", "self.decoder(x + 0.5, box)")
    if alone:  # of two lists one
        port = port.replace("(state, torch.sigmoid(box + predict(state)))", "torch.sigmoid(box + predict(state))")
        port = port.replace("[box for _, box in self.decoder(x + 0.5, box)]", "self.decoder(x + 0.5, box)")
    head, several = "nn.Linear(width, 4)", "nn.Sequential(nn.Linear(width, 7), nn.ReLU(), nn.Linear(7, 4))"
    for name, text in (("ref.py", REFERENCE), ("port.py", port)):  # what a layer inside has made is another call's, too
        (tmp_path / name).write_text(text.replace(head, several) if deep else text, encoding="utf-8")
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert origin["layer"] == ""
    assert "self.decoder(x, box)" in json.dumps(origin["edit"])
