"""A framework's own layer that computes otherwise, with the same settings, weights and inputs, is nobody's mistake."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there

import aligner  # noqa: E402 - as above
from aligner.capture.session import Options  # noqa: E402 - as above

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
