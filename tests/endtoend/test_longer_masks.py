"""A mask that the port's caller makes longer than the reference's: it covers what the reference's layer adds itself."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there

from tests.endtoend.pairs import compared, places, telling  # noqa: E402 - as above

WIDE, WORDS, SPOTS = 8, 5, 4


class Joint(nn.Module):
    """Words and spots in one attention; of the words some are hidden."""

    def __init__(self, longer=False, queries=False, gated=True):
        super().__init__()
        self.qkv, self.out, self.mlp = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)
        self.longer, self.queries, self.gated = longer, queries, gated

    def forward(self, x, gate, mask):
        query, key, value = self.qkv(x).chunk(3, -1)
        scores = query @ key.transpose(1, 2) / WIDE**0.5
        if self.longer:
            scores = scores + (mask[:, :, None] if self.queries else mask[:, None, :])
        else:
            seen = torch.cat([mask, mask.new_ones(len(mask), SPOTS)], 1)
            scores = scores.masked_fill(~seen[:, None, :], float("-inf"))
        x = x + gate * self.out(scores.softmax(-1) @ value)
        return x + self.mlp(x) * (gate if self.gated else 1.0)


class Net(nn.Module):
    def __init__(self, **how):
        super().__init__()
        self.stem, self.gate = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)
        self.joint, self.head = Joint(**how), nn.Linear(WIDE, 3)

    def forward(self, x, present):
        mask = present
        if self.joint.longer:
            mask = torch.cat([(1.0 - present.float()) * -1e9, torch.zeros(len(x), SPOTS)], 1)
        return self.head(self.joint(self.stem(x), self.gate(x.mean(1, keepdim=True)), mask))


@pytest.mark.parametrize(
    ("how", "wanted"),
    [({}, []), ({"gated": False}, ["joint"]), ({"queries": True}, ["joint"])],
    ids=["right", "a gate is forgotten behind it", "along the queries"],
)
def test_the_longer_mask_is_not_what_is_wrong(tmp_path, how, wanted):
    torch.manual_seed(1)
    present = torch.arange(WORDS) < torch.tensor([[3], [5]])
    inputs = torch.randn(2, WORDS + SPOTS, WIDE), present
    found = compared(tmp_path, telling(Net()), Net(longer=True, **how), *inputs)
    assert [layer for layer, _, _ in places(found)] == wanted
    assert found.aligned is not bool(wanted)
