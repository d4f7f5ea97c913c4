"""Alike layers that the port defines in another order than it runs them. Both nets are torch: order is the point."""

from __future__ import annotations

import pytest

import aligner
from aligner.replay.items import Item, Slot
from aligner.replay.trial import in_order

torch = pytest.importorskip("torch", reason="the nets are PyTorch nets")


class Branches(torch.nn.Module):
    """Three alike branches, run in the order of `run`, and a layer before them."""

    def __init__(self, stem, names, run):
        super().__init__()
        self.stem_name, self.run, self.calls = stem, run, 0
        self.add_module(stem, torch.nn.Linear(4, 5))
        for name in names:
            self.add_module(name, torch.nn.Linear(5, 5))

    def forward(self, x):
        self.calls += 1
        x = torch.relu(getattr(self, self.stem_name)(x))
        one, two, three = (getattr(self, name)(x) for name in self.run)
        return one + torch.tanh(two) * three


def captured(tmp_path):
    torch.manual_seed(0)
    net = Branches("stem", ["a", "b", "c"], ["a", "b", "c"]).eval()
    path = tmp_path / "ref.h5"
    with torch.no_grad(), aligner.capture(net, path):
        net(torch.randn(3, 4))
    return net, path


@pytest.mark.parametrize(
    ("names", "run", "expected"),
    [
        ("pqr", "pqr", "pqr"),
        ("rqp", "pqr", "pqr"),  # defined backwards
        ("qrp", "pqr", "pqr"),
    ],
)
def test_the_order_in_which_more_layers_agree_is_taken(tmp_path, names, run, expected):
    net, path = captured(tmp_path)
    port = Branches("first", list(names), list(run))
    with aligner.replay(path, port) as replay:
        assert not port.training
        assert [(a, b) for a, b, _ in replay.transfer.layers] == [("stem", "first"), *zip("abc", expected)]
    for ours, theirs in zip("abc", expected):
        assert torch.equal(getattr(net, ours).weight, getattr(port, theirs).weight)


def test_nothing_tells_so_the_order_of_definition_stays(tmp_path):
    """A bug before the branches: no layer agrees either way."""
    net, path = captured(tmp_path)
    port = Branches("first", ["r", "q", "p"], ["p", "q", "r"])
    port.first.register_forward_hook(lambda module, inputs, output: output * 3)
    with aligner.replay(path, port):
        assert torch.equal(net.a.weight, port.r.weight)


@pytest.mark.parametrize("wrong", [False, True])
def test_only_layers_that_are_given_something_else_are_computed_to_find_the_order(tmp_path, monkeypatch, wrong):
    _, path = captured(tmp_path)
    port = Branches("first", list("rqp"), list("pqr"))
    if wrong:
        port.register_forward_pre_hook(lambda module, given: (given[0] + 1.0,))
    linear, computed = torch.nn.functional.linear, []
    monkeypatch.setattr(torch.nn.functional, "linear", lambda *given: computed.append(1) or linear(*given))
    with aligner.replay(path, port):
        assert (len(computed) > 0) == wrong
        assert port.calls > 1


class Branched(torch.nn.Module):
    """Two layers that differ in a setting alone, and whose places in the sum could be exchanged."""

    def __init__(self, setting, names):
        super().__init__()
        for name, value in names:
            more = {"padding": value} if setting == "dilation" else {}
            self.add_module(name, torch.nn.Conv1d(4, 4, 3, **{setting: value}, **more))
        self.last = torch.nn.Conv1d(4, 2, 1)

    def forward(self, x):
        return self.last(sum(layer(x)[..., :4] for name, layer in self.named_children() if name != "last"))


@pytest.mark.parametrize("setting", ["stride", "dilation"])  # of the latter no shape tells
def test_a_layer_of_another_setting_is_computed_to_find_the_order(tmp_path, setting):
    torch.manual_seed(0)
    net = Branched(setting, [("a", 1), ("b", 2)]).eval()
    with torch.no_grad(), aligner.capture(net, tmp_path / "ref.h5"):
        net(torch.randn(3, 4, 10))
    port = Branched(setting, [("q", 2), ("p", 1)])
    with aligner.replay(tmp_path / "ref.h5", port):
        assert torch.equal(net.a.weight, port.p.weight)
        assert torch.equal(net.b.weight, port.q.weight)


def test_a_port_whose_names_tell_is_not_run(tmp_path):
    _, path = captured(tmp_path)
    port = Branches("stem", ["c", "b", "a"], ["a", "b", "c"])
    with aligner.replay(path, port):
        assert port.calls == 0


def test_a_port_that_raises_keeps_its_error_for_the_capture(tmp_path):
    _, path = captured(tmp_path)
    port = Branches("first", ["r", "q", "p"], ["p", "q", "missing"])
    with aligner.replay(path, port) as replay, pytest.raises(AttributeError, match="missing"):
        replay.run()


def test_parameters_of_layers_that_never_run_stay_behind_their_neighbour():
    items = [Item(Slot(path, "weight"), (1,), path, "Linear", True) for path in ("late", "late.inner", "early")]
    assert [item.slot.layer for item in in_order(items, {"early": 0, "late": 1})] == ["early", "late", "late.inner"]
