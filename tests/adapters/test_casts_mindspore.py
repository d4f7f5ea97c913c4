"""What a MindSpore cell computes in, as switches tell it and as its operators show it."""

from __future__ import annotations

import pytest

ms = pytest.importorskip("mindspore")
from mindspore import nn  # noqa: E402 - only after it is known to be there

from aligner import registry  # noqa: E402 - as above
from tests.adapters.told import told  # noqa: E402 - as above


class Net(nn.Cell):
    """In a file, since O1 reads the source of its class."""

    def __init__(self):
        super().__init__()
        self.one, self.norm, self.act = nn.Dense(4, 4), nn.LayerNorm((4,)), nn.ReLU()

    def construct(self, x):
        return self.act(self.norm(self.one(x)))


@pytest.fixture
def net(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # O1 writes what it has made of the source
    return Net()


def answer(net):
    adapter = registry.load("mindspore")
    switches, computed = told(adapter, net, ms.Tensor([[1.0, 2.0, 3.0, 5.0]], ms.float32))
    if not computed:
        pytest.skip("this MindSpore does not tell of its operators")
    return adapter.environment(net)["amp"], switches, computed


def test_a_cell_that_is_told_to_float(net):
    net.one.to_float(ms.float16)
    amp, switches, computed = answer(net)
    assert amp == "to_float"
    assert switches == {"": None, "one": ("float16", "to_float"), "norm": None, "act": None}
    assert computed["one"] == {"float16"}


def test_auto_casts_products(net):
    amp, switches, computed = answer(ms.amp.auto_mixed_precision(net, "auto"))
    assert amp == "auto"
    assert switches["one"] == ("float16", "auto")
    assert switches["norm"] is None
    assert "float16" in computed["one"]
    assert computed["norm"] == {"float32"}


def test_rewritten_classes_are_known_by_their_casts(net):
    amp, switches, computed = answer(ms.amp.auto_mixed_precision(net, "O1"))
    assert amp == "O1"
    assert switches == {"": None, "one": ("float16", "O1"), "norm": None, "act": ("float16", "O1")}
    assert (computed["one"], computed["norm"]) == ({"float16"}, {"float32"})


def test_a_white_list_of_the_users_own(net):
    made = ms.amp.custom_mixed_precision(net, white_list=[ms.nn.ReLU])
    amp, switches, computed = answer(made)
    assert amp == "custom"
    assert (switches["one"], switches["act"]) == (None, ("float16", "O1"))
    assert (computed["one"], computed["act"]) == ({"float32"}, {"float16"})


def test_a_black_list_of_the_users_own(net):
    made = ms.amp.custom_mixed_precision(net, black_list=[*ms.amp.get_black_list(), ms.nn.Dense])
    _, switches, computed = answer(made)
    assert switches["one"] == ("float32", "to_float")
    assert switches["act"] == ("float16", "to_float")
    assert (computed["one"], computed["act"]) == ({"float32"}, {"float16"})


class Raising(nn.Cell):
    def construct(self, x):
        raise ValueError("on purpose")


def test_a_cell_that_raises_leaves_no_cast_on():
    net, adapter, x = nn.SequentialCell(Raising()), registry.load("mindspore"), ms.Tensor([[1.0, 2.0]], ms.float32)
    net.to_float(ms.float16)
    with pytest.raises(ValueError, match="on purpose"), adapter.running(net), adapter.running(net):
        net(x)
    assert nn.Dense(2, 2)(x).dtype == ms.float32
