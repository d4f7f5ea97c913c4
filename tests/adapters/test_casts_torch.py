"""What a torch layer computes in, as autocast tells it and as its operators show it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from aligner import registry  # noqa: E402 - only after torch is known to be there
from tests.adapters.told import told  # noqa: E402 - as above


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.norm, self.two = torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 4)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            x = self.norm(self.one(x))
            with torch.autocast("cpu", enabled=False):
                return self.two(x.float())


def test_autocast_is_told_inside_its_region_alone():
    switches, computed = told(registry.load("torch"), Net().eval(), torch.randn(3, 4))
    assert switches == {"": None, "one": ("bfloat16", "autocast"), "norm": None, "two": None}
    assert computed["one"] == {"bfloat16"}
    assert computed["two"] == {"float32"}


def test_a_cast_inside_a_layer_is_seen():
    class Careful(torch.nn.Module):
        def forward(self, x):
            return torch.softmax(x.float(), -1).half()

    _, computed = told(registry.load("torch"), Careful(), torch.randn(3, 4).half())
    assert computed == {"": {"float32"}}


def test_a_mode_of_somebody_elses_stays():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    adapter, x, words = registry.load("torch"), torch.randn(3), []
    handle = adapter.computations(lambda word, made: words.append(word))
    with Mode():
        handle.remove()
        x + x
    assert len(seen) == 1
    assert words == []
    again = adapter.computations(lambda word, made: words.append(word))
    x + x
    again.remove()
    assert words == ["add"]
