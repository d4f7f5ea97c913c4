"""The same weights in fewer or more parameters, in a port to MindSpore: folded norms, weight norm, own names."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
ms = pytest.importorskip("mindspore")
from mindspore import nn as cells  # noqa: E402 - only after it is known to be there
from mindspore import ops  # noqa: E402 - as above
from torch import nn  # noqa: E402 - as above
from torch.nn import functional as F  # noqa: E402 - as above

import aligner  # noqa: E402 - as above
from aligner.capture.session import Options  # noqa: E402 - as above


class Net(nn.Module):
    """A block with norms or without them, weight norm or not, and a LayerNorm."""

    def __init__(self, norms, lengths):
        super().__init__()
        self.one = nn.Conv2d(3, 8, 3, padding=1, bias=not norms)
        self.two = nn.Conv2d(8, 8, 3, padding=1, bias=not norms)
        if norms:
            self.bn1, self.bn2 = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        mixed = nn.Linear(8, 8)
        self.mixed = nn.utils.parametrizations.weight_norm(mixed) if lengths else mixed
        self.norm, self.norms = nn.LayerNorm(8), norms

    def forward(self, x):
        x = self.one(x)
        x = F.relu(self.bn1(x) if self.norms else x)
        y = self.two(x)
        x = F.relu(x + (self.bn2(y) if self.norms else y))
        return self.norm(self.mixed(x.mean((2, 3))))


class Length(cells.Cell):
    """Weight norm as people write it who miss it in MindSpore."""

    def __init__(self, ins, outs):
        super().__init__()
        self.weight_v = ms.Parameter(ms.Tensor(np.ones((outs, ins), np.float32)))
        self.weight_g = ms.Parameter(ms.Tensor(np.ones((outs, 1), np.float32)))
        self.bias = ms.Parameter(ms.Tensor(np.zeros(outs, np.float32)))

    def construct(self, x):
        length = ops.sqrt((self.weight_v * self.weight_v).sum(axis=1, keepdims=True))
        return ops.matmul(x, (self.weight_g * self.weight_v / length).T) + self.bias


class Norm(cells.Cell):
    """A LayerNorm whose author names what is added first."""

    def __init__(self, size):
        super().__init__()
        self.b_2 = ms.Parameter(ms.Tensor(np.zeros(size, np.float32)))
        self.a_2 = ms.Parameter(ms.Tensor(np.ones(size, np.float32)))

    def construct(self, x):
        x = x - x.mean(axis=-1, keep_dims=True)
        return self.a_2 * x / ops.sqrt((x * x).mean(axis=-1, keep_dims=True) + 1e-5) + self.b_2


class Port(cells.Cell):
    def __init__(self, norms, lengths):
        super().__init__()
        settings = {"pad_mode": "pad", "padding": 1, "has_bias": not norms}
        self.conv_a, self.conv_b = cells.Conv2d(3, 8, 3, **settings), cells.Conv2d(8, 8, 3, **settings)
        if norms:
            self.bn_a, self.bn_b = cells.BatchNorm2d(8), cells.BatchNorm2d(8)
        self.dense = Length(8, 8) if lengths else cells.Dense(8, 8)
        self.last, self.norms = Norm(8), norms

    def construct(self, x):
        x = self.conv_a(x)
        x = ops.relu(self.bn_a(x) if self.norms else x)
        y = self.conv_b(x)
        x = ops.relu(x + (self.bn_b(y) if self.norms else y))
        return self.last(self.dense(x.mean((2, 3))))


def compared(tmp_path, net, port, spoil=None):
    torch.manual_seed(0)
    with torch.no_grad():
        for name, tensor in (*net.named_parameters(), *net.named_buffers()):
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 2.0) if "var" in name or "original0" in name else tensor.normal_(0.3, 0.3)
        with aligner.capture(net.eval(), tmp_path / "ref.h5"):
            net(torch.randn(2, 3, 6, 6))
    replay = aligner.replay(tmp_path / "ref.h5", port.set_train(False))
    if spoil is not None:
        spoil(port)
    with replay.capture(tmp_path / "port.h5", Options()):
        port(*replay.inputs(0))
    return aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [((True, True), (False, False)), ((False, False), (True, True)), ((True, False), (False, True))],
    ids=["taken together", "taken apart", "one so, one so"],
)
def test_what_is_taken_together_on_one_side_is_the_same(tmp_path, ours, theirs):
    result = compared(tmp_path, Net(*ours), Port(*theirs))
    assert result.aligned
    assert not result.origins
    assert not result.counts["unmatched"]


def with_another_variance(port):
    values = port.conv_b.weight.asnumpy()
    values[3] *= 1.3
    port.conv_b.weight.set_data(ms.Tensor(values))


def with_another_length(port):
    values = port.dense.weight_g.asnumpy()
    values[5] *= 2
    port.dense.weight_g.set_data(ms.Tensor(values))


def swapped(port):
    one, other = port.last.a_2.asnumpy(), port.last.b_2.asnumpy()
    port.last.a_2.set_data(ms.Tensor(other))
    port.last.b_2.set_data(ms.Tensor(one))


@pytest.mark.parametrize(
    ("ours", "theirs", "spoil", "wanted"),
    [
        ((True, False), (False, False), with_another_variance, ("two", "weight[bn2]", "parameter-differs")),
        ((False, False), (True, True), with_another_length, ("mixed", "weight", "parameter-differs")),
        ((False, False), (False, False), swapped, ("norm", "weight", "parameter-swapped")),
    ],
    ids=["a variance", "a length", "what multiplies and what is added"],
)
def test_one_that_is_wrong_is_named(tmp_path, ours, theirs, spoil, wanted):
    result = compared(tmp_path, Net(*ours), Port(*theirs), spoil)
    assert [(o.layer, o.slot, o.causes[0].id) for o in result.origins] == [wanted]


class Table(nn.Module):
    """Scores that a table of relative positions moves, laid out as Swin does."""

    def __init__(self):
        super().__init__()
        self.relative_position_bias_table = nn.Parameter(torch.zeros(49, 3))
        self.query = nn.Linear(12, 12)

    def forward(self, x):
        x = self.query(x).reshape(2, 49, 3, 4).permute(0, 2, 1, 3)
        return (x.sum(-1) + self.relative_position_bias_table.T).softmax(-1)


class HeadsFirst(cells.Cell):
    def __init__(self):
        super().__init__()
        self.bias_table = ms.Parameter(ms.Tensor(np.zeros((1, 3, 7, 7), np.float32)))
        self.query = cells.Dense(12, 12)

    def construct(self, x):
        x = self.query(x).reshape(2, 49, 3, 4).transpose(0, 2, 1, 3)
        return ops.softmax(x.sum(-1) + self.bias_table.reshape(1, 3, 49), axis=-1)


class Embedded(cells.Cell):
    def __init__(self):
        super().__init__()
        self.relative_attention_bias = cells.Embedding(49, 3)
        self.query = cells.Dense(12, 12)

    def construct(self, x):
        x = self.query(x).reshape(2, 49, 3, 4).transpose(0, 2, 1, 3)
        return ops.softmax(x.sum(-1) + self.relative_attention_bias(ops.arange(49)).T, axis=-1)


@pytest.mark.parametrize("port", [HeadsFirst, Embedded])
def test_a_table_of_positions_is_laid_out_otherwise(tmp_path, port):
    net = Table()
    torch.manual_seed(0)
    with torch.no_grad():
        net.relative_position_bias_table.normal_()
        with aligner.capture(net.eval(), tmp_path / "ref.h5"):
            net(torch.randn(2, 49, 12))
    replay = aligner.replay(tmp_path / "ref.h5", port().set_train(False))
    with replay.capture(tmp_path / "port.h5", Options()):
        replay.model(*replay.inputs(0))
    result = aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5")
    assert result.aligned
    assert not result.origins
    assert not result.counts["unmatched"]
