"""A framework's own layer that computes otherwise, with the same settings, weights and inputs, is nobody's mistake."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there

import aligner  # noqa: E402 - as above
from aligner.capture.session import Options  # noqa: E402 - as above
from tests.endtoend.pairs import compared, telling  # noqa: E402 - as above

DIFFERS = "framework-layer-differs"


def causes(folder, net, port):
    """Of the one layer that is wrong."""
    given = torch.randn(3, 4, 9)
    with torch.no_grad(), aligner.capture(net.eval(), folder / "ref.h5"):
        net(given)
    replay = aligner.replay(folder / "ref.h5", port.eval())
    with replay.capture(folder / "port.h5", Options(force=True)):
        port(*replay.inputs(0))
    (origin,) = aligner.compare(folder / "ref.h5", folder / "port.h5").origins
    return {cause.id: cause.confirmed for cause in origin.causes}


def made():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv1d(4, 4, 3), nn.BatchNorm1d(4), nn.ReLU())


def otherwise(layer):
    """As a kernel may be wrong: in no way that a setting or a weight could be."""
    plain = type(layer).forward
    layer.forward = lambda x: plain(layer, x) + 0.1 * torch.sin(7.0 * x.flip(-1))


def test_a_layer_that_has_all_that_the_reference_has(tmp_path):
    net = made()
    port = copy.deepcopy(net)
    otherwise(port[1])
    assert causes(tmp_path, net, port) == {DIFFERS: False}


def test_not_one_of_other_settings(tmp_path):
    net = made()
    port = copy.deepcopy(net)
    otherwise(port[1])
    port[1].eps = 0.1
    assert DIFFERS not in causes(tmp_path, net, port)


def test_not_one_of_the_users_own(tmp_path):
    class Own(nn.BatchNorm1d):
        def forward(self, x):
            return super().forward(x) + 0.1 * torch.sin(7.0 * x.flip(-1))

    net = made()
    port = copy.deepcopy(net)
    port[1].__class__ = Own
    assert DIFFERS not in causes(tmp_path, net, port)


class Curve(nn.Module):
    """An activation that is written out; its kernel approximates in float32."""

    def __init__(self, rough=False, factor=0.044715):
        super().__init__()
        self.rough, self.factor = rough, factor

    def forward(self, x):
        inner = torch.tanh(0.7978845608 * (x + self.factor * x**3))
        if self.rough and x.dtype == torch.float32:
            inner = inner + 2e-5 * torch.sin(1e3 * x)
        return 0.5 * x * (1.0 + inner)


def written_out(tmp_path, **wrong):
    torch.manual_seed(1)
    net, port = (nn.Sequential(nn.Linear(9, 9), curve, nn.Linear(9, 9)) for curve in (Curve(), Curve(**wrong)))
    return compared(tmp_path, telling(net), port, 2.0 * torch.randn(64, 9))


def test_what_a_kernel_approximates_in_a_layer_that_is_written_out_is_no_mistake(tmp_path):
    result = written_out(tmp_path, rough=True)
    assert (result.aligned, result.origins, result.suspects) == (True, (), ())


def test_a_number_that_is_a_little_off_in_it_is_one(tmp_path):
    result = written_out(tmp_path, factor=0.0447)
    assert [place.layer for place in (*result.origins, *result.suspects)] == ["1"]


@pytest.mark.parametrize("given", [{"norm_first": True}, {"activation": "gelu"}], ids=str)
def test_a_layer_that_calls_others_is_built_with_the_other_setting(tmp_path, given, monkeypatch):
    monkeypatch.setattr(torch.nn.TransformerEncoderLayer, "forward", by_its_children)
    torch.manual_seed(0)
    port = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    net = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, **given)
    result = compared(tmp_path, telling(nn.Sequential(net)), telling(nn.Sequential(port)), torch.randn(2, 5, 8))
    origin = result.origins[0]
    assert (origin.where, origin.causes[0].confirmed, origin.causes[0].change) == ("glue", True, given)


def by_its_children(self, x):
    """As it runs where it has no kernel of its own."""
    if self.norm_first:
        x = x + self._sa_block(self.norm1(x), None, None)
        return x + self._ff_block(self.norm2(x))
    x = self.norm1(x + self._sa_block(x, None, None))
    return self.norm2(x + self._ff_block(x))
