"""A decoder that embeds its first letter apart from the others, and a port that embeds all of them in one call."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch, ported  # noqa: E402, F401 - as above

NET = """
import numpy as np
import torch
from torch import nn

END, WIDTH, STEPS = 3, 8, 5


def orders(count):
    found = [np.arange(count) for _ in range(2)]
    found[1] = found[1][::-1]
    return found


def seen(order):
    rank = np.argsort(order)
    hidden = rank[None, :] > rank[:, None]
    return torch.tensor(hidden)


class Mix(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.norm = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x, mask, ended):
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        scores = scores.masked_fill(mask, -1e4).masked_fill(ended[:, None], -1e4)
        return self.norm(x + scores.softmax(-1) @ x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.mix, self.head = nn.Embedding(9, WIDTH), Mix(), nn.Linear(WIDTH, 9)
        self.places = nn.Parameter(torch.zeros(1, STEPS + 3, WIDTH))
        self.orders = [seen(order) for order in orders(STEPS)]

    def spell(self, tokens, mask):
        first = self.embedding(tokens[:, :1])
        rest = self.places[:, : tokens.shape[1] - 1] + self.embedding(tokens[:, 1:])
        ended = (tokens == END).int().cumsum(-1) > 0
        return self.head(self.mix(torch.cat([first, rest], 1), mask, ended))

    def forward(self, tokens):
        found = []
        for length in range(2, STEPS + 1):
            found += [self.spell(tokens[:, :length], mask[:length, :length])[:, -1] for mask in self.orders]
        return torch.stack(found, 1)


def build():
    torch.manual_seed(3)
    net = Net().eval()
    nn.init.normal_(net.places)
    return net, (torch.tensor([[7, 1, 3, 4, 3], [2, 8, 8, 1, 5], [6, 3, 2, 2, 7]]),)
"""

ONCE = (
    (
        """        first = self.embedding(tokens[:, :1])
        rest = self.places[:, : tokens.shape[1] - 1] + self.embedding(tokens[:, 1:])
""",
        """        embedded = self.embedding(tokens)
        places = self.places[:, : tokens.shape[1] - 1]
""",
    ),
    ("torch.cat([first, rest], 1)", "torch.cat([embedded[:, :1], embedded[:, 1:] + places], 1)"),
)

MISTAKES = {
    "places": ("places = self.places[:, : tokens.shape[1] - 1]", "places = self.places[:, 1 : tokens.shape[1]]"),
    "ended": ("ended = (tokens == END).int().cumsum(-1) > 0", "ended = tokens == END"),
    "orders": ("rank[None, :] > rank[:, None]", "rank[None, :] >= rank[:, None]"),
}


def test_the_port_is_right(tmp_path, capsys):
    ported(tmp_path, NET, ONCE)
    found = answer(tmp_path, capsys)
    assert (found["outcome"], found["origins"], found["suspects"]) == ("aligned", [], [])


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_in_the_code_and_the_patch_is_right(tmp_path, capsys, mistake):
    ported(tmp_path, NET, (*ONCE,))
    right = (tmp_path / "port.py").read_text(encoding="utf-8")
    assert right.count(MISTAKES[mistake][0]) == 1
    (tmp_path / "port.py").write_text(right.replace(*MISTAKES[mistake]), encoding="utf-8")
    told = answer(tmp_path, capsys)["origins"]
    assert [origin["layer"] for origin in told] == [""]
    assert told[0]["causes"][0]["confirmed"]
    assert is_right_with_the_patch(tmp_path, capsys)


def test_what_is_right_in_the_first_turn_alone_is_not_told_as_proved(tmp_path, capsys):
    """`self.places[:, :1]` is right where two letters are there; no other text that is tried is right for all."""
    ported(tmp_path, NET, ONCE)
    right = (tmp_path / "port.py").read_text(encoding="utf-8")
    wrong = right.replace(MISTAKES["places"][0], "places = self.places[:, 3 : tokens.shape[1] + 2]")
    start, end = wrong.index("def spell"), wrong.index("def forward(self, tokens)")
    spell = wrong[start:end].replace("tokens", "letters")  # the reference's words say nothing here
    (tmp_path / "port.py").write_text(wrong[:start] + spell + wrong[end:], encoding="utf-8")
    told = answer(tmp_path, capsys, "--search", "12")["origins"]
    assert told
    for origin in told:
        assert not origin["edit"] or is_right_with_the_patch(tmp_path, capsys)
