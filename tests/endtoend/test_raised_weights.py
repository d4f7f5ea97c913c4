"""A norm that multiplies by 1 + weight against one that multiplies by its weight: a form, or a mistake."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there

from tests.endtoend import pairs  # noqa: E402 - as above

WIDE = 8


class Norm(nn.Module):
    """Gemma's RMSNorm if `one`, else everybody else's."""

    def __init__(self, one):
        super().__init__()
        self.weight, self.one = nn.Parameter(torch.full((WIDE,), 1.0 - one)), one

    def forward(self, x):
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        return x * (1 + self.weight) if self.one else x * self.weight


class Net(nn.Module):
    def __init__(self, one):
        super().__init__()
        self.a, self.b = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)
        self.norm1, self.norm2 = Norm(one), Norm(one)

    def forward(self, x):
        x = self.a(x)
        return self.norm2(x + self.b(self.norm1(x)))


def compared(tmp_path, net, port, held):
    """`held` is what the port's norms hold of their own, more than the reference's."""
    torch.manual_seed(0)
    for parameter in net.parameters():
        nn.init.normal_(parameter, 0.2, 0.4)
    if held is not None:
        port.load_state_dict({n: t + held * n.startswith("norm") for n, t in net.state_dict().items()})
    return pairs.compared(tmp_path, net, port, torch.randn(2, 3, WIDE))


@pytest.mark.parametrize(("one", "held"), [(True, 1.0), (False, -1.0)])
def test_the_port_s_own_weights_tell_that_one_is_added(tmp_path, one, held):
    result = compared(tmp_path, Net(one), Net(not one), held)
    assert result.aligned
    assert not result.origins
    assert not result.counts["unmatched"]


@pytest.mark.parametrize("held", [0.0, None], ids=["the reference's weights", "no weights of its own"])
@pytest.mark.parametrize("one", [True, False])
def test_a_port_that_has_forgotten_the_one_is_told_so(tmp_path, one, held):
    result = compared(tmp_path, Net(one), Net(not one), held)
    assert {origin.layer for origin in result.origins} == {"norm1", "norm2"}
    causes = {origin.causes[0].id for origin in result.origins}
    assert causes == {"code-edit"}


def test_weights_that_are_one_too_large_are_not_carried_so_where_the_norm_is_right(tmp_path):
    result = compared(tmp_path, Net(True), Net(True), 1.0)
    assert result.aligned
    assert not result.origins
