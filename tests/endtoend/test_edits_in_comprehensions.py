"""Code in a comprehension: what has a name around it can be said in it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import (  # noqa: E402 - only after it is known to be there
    _here,  # noqa: F401 - a fixture
    answer,
    is_right_with_the_patch,
    ported,
)

NET = """
import torch
from torch import nn


class Letters(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 6)
        self.convs = nn.ModuleList([nn.Conv1d(6, width, 3, padding=1) for width in (4, 5)])
        self.last = nn.Linear(9, 3)

    def forward(self, ids):
        real = (ids != 0)[:, None]
        x = self.table(ids).transpose(1, 2)
        highest = [torch.relu(conv(x)).masked_fill(~real, -1.0).amax(-1) for conv in self.convs]
        return self.last(torch.cat(highest, -1))


def build():
    torch.manual_seed(3)
    return Letters(), (torch.tensor([[1, 4, 2, 8, 0, 0], [3, 3, 0, 0, 0, 0], [5, 1, 7, 2, 6, 4]]),)
"""


@pytest.mark.parametrize(
    "wrong", ["torch.relu(conv(x)).amax(-1)", "torch.relu(conv(x)).masked_fill(real, -1.0).amax(-1)"]
)
def test_a_mask_of_the_function_around_is_used(tmp_path, capsys, wrong):
    ported(tmp_path, NET, [("torch.relu(conv(x)).masked_fill(~real, -1.0).amax(-1)", wrong)])
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert "masked_fill(torch.logical_not(real), -1.0).amax(-1) for conv" in origin["edit"]["lines"][0]["after"]
    assert is_right_with_the_patch(tmp_path, capsys)
