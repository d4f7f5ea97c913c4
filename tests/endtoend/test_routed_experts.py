"""Experts that tokens are sent to: in a wrong net others are called, and not as often."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there

from tests.endtoend.pairs import compared, telling  # noqa: E402 - as above


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(6, 9), nn.SiLU(), nn.Linear(9, 6)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class Mixture(nn.Module):
    def __init__(self, again=False):
        super().__init__()
        self.router, self.experts = nn.Linear(6, 7), nn.ModuleList(Expert() for _ in range(7))
        self.again = again

    def forward(self, x):
        probs = torch.softmax(self.router(x), dim=-1)
        weights, chosen = torch.topk(probs, 2, dim=-1)
        weights = torch.softmax(weights, dim=-1) if self.again else weights / weights.sum(-1, keepdim=True)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == number)
            if len(rows) == 0:
                continue
            mixed = mixed.index_add(0, rows, expert(x[rows]) * weights[rows, slots, None])
        return mixed


class Block(nn.Module):
    def __init__(self, again=False):
        super().__init__()
        self.mixture = Mixture(again)

    def forward(self, x):
        return x + self.mixture(x)


class Net(nn.Module):
    """Works on one token after the other."""

    def __init__(self, again=False):
        super().__init__()
        self.blocks = nn.ModuleList(Block(again) for _ in range(3))

    def forward(self, tokens):
        state, found = torch.zeros(1, 6), []
        for token in tokens:
            state = torch.tanh(state) + token[None]
            for block in self.blocks:
                state = block(state)
            found.append(state)
        return torch.cat(found)


def test_one_wrong_line_in_all_mixtures_is_one_place_of_each(tmp_path):
    torch.manual_seed(3)
    result = compared(tmp_path, telling(Net()), Net(again=True), torch.randn(12, 6))
    assert {origin.layer for origin in result.origins} == {f"blocks.{n}.mixture" for n in range(3)}
    assert all(origin.causes[0].confirmed for origin in result.origins)


def test_the_right_net_is_aligned(tmp_path):
    torch.manual_seed(3)
    assert compared(tmp_path, telling(Net()), Net(), torch.randn(12, 6)).exit_code == 0
