"""A reference that takes rows out before it works on them, and a port that works on all: a mistake in what it makes of
them has its edit all the same."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch, ported  # noqa: E402, F401

NET = """
import torch
from torch import nn


def overlap(one, other):
    least = torch.maximum(one[..., :2], other[..., :2])
    most = torch.minimum(one[..., 2:], other[..., 2:])
    inter = (most - least).clamp(min=0).prod(dim=-1)
    areas = (one[..., 2:] - one[..., :2]).prod(dim=-1), (other[..., 2:] - other[..., :2]).prod(dim=-1)
    hull = (torch.maximum(one[..., 2:], other[..., 2:]) - torch.minimum(one[..., :2], other[..., :2])).prod(dim=-1)
    union = areas[0] + areas[1] - inter
    return inter / union - (hull - union) / hull


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.bce = nn.BCEWithLogitsLoss(reduction="none")

    def forward(self, boxes, due, logits, targets, mask):
        many = mask.sum()
        near = 1 - overlap(boxes[mask], due[mask])
        entropy = self.bce(logits[mask], targets[mask].sqrt())
        return torch.stack((near.sum() / many, entropy.mean(dim=-1).sum() / many))


class Best(nn.Module):
    def forward(self, boxes, scores):
        index = scores.topk(6).indices
        some, weights = boxes[index], scores[index]
        middle, size = (some[:, :2] + some[:, 2:]) / 2, some[:, 2:] - some[:, :2]
        return torch.cat((middle, size, weights.unsqueeze(1)), dim=1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.loss, self.best = nn.Linear(12, 9), Loss(), Best()

    def forward(self, x, due, targets):
        out = self.head(x)
        boxes = torch.cat((out[..., :2], out[..., :2] + out[..., 2:4].exp()), dim=-1)
        mask = out[..., 4] > 0.3
        losses = self.loss(boxes, due, out[..., 5:], targets, mask)
        return losses, torch.stack([self.best(boxes[i], out[i, :, 4].sigmoid()) for i in range(2)])


def build():
    torch.manual_seed(7)
    due = torch.rand(2, 40, 4)
    due[..., 2:] += due[..., :2] + 0.2
    return Net().eval(), (torch.randn(2, 40, 12), due, torch.rand(2, 40, 4))
"""
ALL = [
    ("near = 1 - overlap(boxes[mask], due[mask])", "near = (1 - overlap(boxes, due)) * mask"),
    ("self.bce(logits[mask], targets[mask].sqrt())", "self.bce(logits, targets.sqrt()) * mask.unsqueeze(-1)"),
    ("        some, weights = boxes[index], scores[index]\n", ""),
    (
        "middle, size = (some[:, :2] + some[:, 2:]) / 2, some[:, 2:] - some[:, :2]",
        "middle, size = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]",
    ),
    (
        "torch.cat((middle, size, weights.unsqueeze(1)), dim=1)",
        "torch.cat((middle, size, scores.unsqueeze(1)), dim=1)[index]",
    ),
]
KEPT = [
    ("self.bce(logits[mask], targets[mask].sqrt())", "self.bce(logits, targets.sqrt()) * mask.unsqueeze(-1)"),
    ("1 - overlap(boxes[mask], due[mask])", "((1 - overlap(boxes, due)) ** 2) * mask"),
]
"""A reference that keeps an axis of one: its rows are (rows, 1), the port's (batch, boxes)."""
MISTAKES = [
    ("(hull - union) / hull", "(hull - union) / union"),
    ("union = areas[0] + areas[1] - inter", "union = areas[0] + areas[1]"),
    ("targets.sqrt()", "targets"),
    ("torch.cat((middle, size, scores", "torch.cat((size, middle, scores"),
    ("(boxes[:, :2] + boxes[:, 2:]) / 2", "(boxes[:, :2] + boxes[:, 2:])"),
]


def test_the_port_is_right(tmp_path, capsys):
    ported(tmp_path, NET, ALL)
    assert answer(tmp_path, capsys)["outcome"] == "aligned"


@pytest.mark.parametrize("power", ["** 2", ""], ids=["right", "forgotten"])
def test_axes_of_one_are_left_as_the_port_has_them(tmp_path, capsys, power):
    reference = NET.replace(KEPT[1][0], "(1 - overlap(boxes[mask], due[mask])).unsqueeze(1) ** 2")
    kept = (KEPT[1][0].join(["(", ").unsqueeze(1) ** 2"]), KEPT[1][1].replace("** 2", power))
    ported(tmp_path, reference, [KEPT[0], kept])
    found = answer(tmp_path, capsys)
    assert found["outcome"] == ("aligned" if power else "diverged")
    assert power or is_right_with_the_patch(tmp_path, capsys)


@pytest.mark.parametrize("mistake", MISTAKES, ids=[right for right, _ in MISTAKES])
def test_the_patch_mends_what_is_made_of_all_rows(tmp_path, capsys, mistake):
    ported(tmp_path, NET, [*ALL, mistake])
    found = answer(tmp_path, capsys)
    assert found["origins"][0]["edit"]["confirmed"]
    assert is_right_with_the_patch(tmp_path, capsys)
