"""Right ports in which a layer without weights does more than the one it is taken for, and a head works in parts."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import (  # noqa: E402 - only after it is known to be there
    _here,  # noqa: F401 - a fixture
    answer,
    is_right_with_the_patch,
)

REFERENCE = """
import torch
from torch import nn
from torch.nn import functional as F


class Penalty(nn.Module):
    def forward(self, logits, seen):
        return torch.where(seen, torch.where(logits < 0, logits * 1.4, logits / 1.4), logits)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(23, 12), nn.Linear(12, 12), nn.Linear(12, 23, bias=False)
        self.penalty = Penalty()

    def forward(self, ids):
        states = torch.tanh(self.cell(self.embed(ids)))
        loss = -self.head(states[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None]).mean()
        seen = F.one_hot(ids, 23).bool().any(1)
        hidden, found = states[:, -1], []
        for _ in range(3):
            probs = (self.penalty(self.head(hidden), seen) / 0.7).softmax(-1)
            token = probs.argmax(-1)
            seen = seen | F.one_hot(token, 23).bool()
            hidden = torch.tanh(self.cell(self.embed(token)) + hidden)
            found.append(probs)
        return loss, torch.stack(found, 1)


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randint(0, 23, (3, 9)),)
"""
AT_ONCE = """
class NextToken(nn.Module):
    def forward(self, logits, counts):
        factor = torch.where(logits > 0, 1 / 1.4, 1.4)
        return (torch.where(counts > 0, logits * factor, logits) / 0.7).softmax(-1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(23, 12), nn.Linear(12, 12), nn.Linear(12, 23, bias=False)
        self.next = NextToken()

    def forward(self, ids):
        states, total = torch.tanh(self.cell(self.embed(ids))), 0.0
        for part, wanted in zip(states.split(4, 1), torch.cat([ids[:, 1:], ids[:, :1] * 0 - 1], 1).split(4, 1)):
            scores = self.head(part)
            nll = scores.logsumexp(-1) - scores.gather(-1, wanted.clamp(min=0)[..., None])[..., 0]
            total = total + (nll * (wanted >= 0)).sum()
        counts = F.one_hot(ids, 23).float().sum(1)
        hidden, found = states[:, -1], []
        for _ in range(3):
            probs = self.next(self.head(hidden), counts)
            token = probs.argmax(-1)
            counts = counts + F.one_hot(token, 23)
            hidden = torch.tanh(self.cell(self.embed(token)) + hidden)
            found.append(probs)
        return total / (ids[:, 1:].numel()), torch.stack(found, 1)
"""


def told(tmp_path, capsys, *mistake):
    (tmp_path / "ref.py").write_text(REFERENCE, encoding="utf-8")
    start, end = REFERENCE.index("class Penalty"), REFERENCE.index("def build")
    port = REFERENCE[:start] + AT_ONCE + "\n\n" + REFERENCE[end:]
    (tmp_path / "port.py").write_text(port.replace(*mistake) if mistake else port, encoding="utf-8")
    return answer(tmp_path, capsys)


def test_neither_is_blamed(tmp_path, capsys):
    found = told(tmp_path, capsys)
    assert found["outcome"] == "aligned"
    assert not found["origins"]


MISTAKES = [
    ("self.cell(self.embed(token)) + hidden", "self.cell(self.embed(token)) - hidden"),
    ("torch.tanh(self.cell(self.embed(ids)))", "torch.sigmoid(self.cell(self.embed(ids)))"),
]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_nor_beside_a_mistake(tmp_path, capsys, mistake):
    found = told(tmp_path, capsys, *mistake)
    assert {(one["layer"], one["family"]) for one in found["origins"]} == {("", 0)}
    assert "penalty" not in {one["measured"]["layer"] for one in found["origins"]}
    assert mistake[0] in found["origins"][0]["edit"]["lines"][0]["after"]
    assert is_right_with_the_patch(tmp_path, capsys)
