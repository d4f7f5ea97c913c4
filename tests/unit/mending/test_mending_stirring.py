"""Operations that round otherwise: what is not rounded stays."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from aligner.mending.stirring import Stirring  # noqa: E402 - only after torch is known to be there
from aligner.noise import noise  # noqa: E402
from aligner.registry import load  # noqa: E402
from aligner.values import Values  # noqa: E402


def run(word, function, *args):
    adapter = load("torch")
    stirring = Stirring(Values(adapter), adapter, noise(1e-7))
    return stirring.run(word, function, args, {}, lambda: function(*args))


def test_a_product_that_is_rounded_comes_out_a_little_otherwise():
    x = torch.rand(100) + 0.1
    made = run("mul", torch.mul, x, x * 3.7)
    assert not torch.equal(made, x * (x * 3.7))
    assert torch.allclose(made, x * (x * 3.7), rtol=1e-6)


def test_whole_numbers_beside_a_border_stay():
    x = torch.arange(100.0)
    assert torch.equal(run("mul", torch.mul, x, 0.5), x * 0.5)
    assert torch.equal(run("floor", torch.floor, x / 2), torch.floor(x / 2))
    assert torch.equal(run("own", lambda x: x.clone() * 2, x), x * 2), "an operation that nobody knows"


def test_a_kernel_that_approximates_is_put_right():
    x = torch.rand(50)
    rough = run("exp", lambda x: torch.exp(x) if x.dtype is torch.float64 else torch.exp(x) * 1.001, x)
    assert torch.allclose(rough, torch.exp(x), rtol=1e-6)


def test_what_only_hands_on_stays():
    x = torch.rand(4, 3)
    assert torch.equal(run("transpose", torch.transpose, x, 0, 1), x.T)
