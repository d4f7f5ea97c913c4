"""A norm's parameters under names that people give them: what they mean tells which is which, not their order."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there

from tests.endtoend import pairs  # noqa: E402 - as above

WIDE = 8


class Norm(nn.Module):
    """A LayerNorm of somebody's own; `names` in the order in which they are defined, `scale` is what multiplies."""

    def __init__(self, names, scale):
        super().__init__()
        self.names = scale, next(name for name in names if name != scale)
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.full((WIDE,), float(name == scale))))

    def forward(self, x):
        scale, shift = (getattr(self, name) for name in self.names)
        x = x - x.mean(-1, keepdim=True)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * scale + shift


class Net(nn.Module):
    def __init__(self, norm, names=("norm1", "norm2")):
        super().__init__()
        self.names = names
        self.stem = nn.Linear(5, WIDE)
        for name in names:
            setattr(self, name, norm())
        self.head = nn.Linear(WIDE, WIDE)

    def forward(self, x):
        one, two = (getattr(self, name) for name in self.names)
        return two(self.head(one(self.stem(x))))


OTHERS = {
    "framework": lambda: nn.LayerNorm(WIDE),
    "gamma beta": lambda: Norm(("gamma", "beta"), "gamma"),
    "beta gamma": lambda: Norm(("beta", "gamma"), "gamma"),
    "shift scale": lambda: Norm(("shift", "scale"), "scale"),
    "a_2 b_2": lambda: Norm(("a_2", "b_2"), "a_2"),
    "b g": lambda: Norm(("b", "g"), "g"),
    "b w": lambda: Norm(("b", "w"), "w"),
    "offset gain": lambda: Norm(("offset", "gain"), "gain"),
}


def compared(tmp_path, one, other, names=("norm1", "norm2"), spoil=None):
    torch.manual_seed(0)
    net, port = Net(OTHERS[one]), Net(OTHERS[other], names)
    for parameter in net.parameters():
        nn.init.normal_(parameter, 0.5, 0.3)
    return pairs.compared(tmp_path, net, port, torch.randn(2, 3, 5), spoil=spoil)


@pytest.mark.parametrize("renamed", [False, True], ids=["same layers", "renamed layers"])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        *[("framework", other) for other in OTHERS if other != "framework"],
        *[(other, "framework") for other in OTHERS if other != "framework"],
        ("beta gamma", "a_2 b_2"),
        ("gamma beta", "shift scale"),
    ],
)
def test_what_a_role_means_tells_which_it_is(tmp_path, one, other, renamed):
    result = compared(tmp_path, one, other, ("ln_a", "ln_b") if renamed else ("norm1", "norm2"))
    assert result.aligned
    assert not result.origins
    assert not result.counts["unmatched"]


def crossed(port):
    kept = port.norm1.gamma.clone()
    port.norm1.gamma.copy_(port.norm1.beta)
    port.norm1.beta.copy_(kept)


@pytest.mark.parametrize("other", ["gamma beta", "beta gamma"])
def test_those_that_are_swapped_are_named(tmp_path, other):
    result = compared(tmp_path, "framework", other, spoil=crossed)
    assert [(o.layer, o.slot, o.where) for o in result.origins] == [("norm1", "weight", "parameters")]
    cause = result.origins[0].causes[0]
    told = {name: cause.facts[name] for name in ("port_parameter", "other")}
    assert (cause.id, told) == ("parameter-swapped", {"port_parameter": "norm1.gamma", "other": "bias"})
