"""Layers with weights that one side alone has: told as such, once for all blocks."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there
from torch.nn import functional as F  # noqa: E402 - as above

from tests.endtoend.pairs import compared, telling  # noqa: E402 - as above


class Plain(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return F.relu(self.conv(x))


class Normed(Plain):
    def __init__(self, width):
        super().__init__(width)
        self.norm = nn.GroupNorm(2, width, eps=1e-3)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))


def net(block):
    return nn.Sequential(*(block(6) for _ in range(3)))


@pytest.fixture
def found(tmp_path):
    def compare(one, other):
        torch.manual_seed(1)
        port = telling(net(other))
        result = compared(tmp_path, telling(net(one)), port, torch.randn(2, 6, 5, 5), allow_missing=True)
        assert [origin.layer for origin in result.origins] == ["0", "1", "2"]
        return [origin.causes for origin in result.origins]

    return compare


def test_a_layer_that_the_port_lacks_is_named_and_spelled(found):
    for causes in found(Normed, Plain):
        assert (causes[0].id, causes[0].confirmed, causes[0].facts["called"]) == ("layer-left-out", False, "norm")
        assert causes[0].facts["written"].startswith("nn.GroupNorm(num_groups=2, num_channels=6, eps=0.001")


def test_a_layer_that_the_port_has_alone_is_named_and_left_out(found):
    for causes in found(Plain, Normed):
        assert (causes[0].id, causes[0].confirmed) == ("code-edit", True)
        assert ("layer-added", "norm") in [(cause.id, cause.facts.get("called")) for cause in causes]
