"""The torch adapter: the shipped contract, and what only torch has."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from aligner_hooks.torch_ import TorchAdapter  # noqa: E402 - as above
from torch import nn  # noqa: E402 - only after it is known to be there
from torch.nn import functional as F  # noqa: E402 - as above

from aligner.dtypes import DTYPES  # noqa: E402 - as above
from aligner.testing import AdapterContract, Box, Point  # noqa: E402 - as above


class Head(nn.Module):
    def forward(self, pair, items, *, named, record, data, nothing, flag):
        y, x = pair
        return {"sum": y + x, "parts": [y, x], "pair": (y, None), "record": record, "data": data, "flag": flag}


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.shared = nn.Linear(4, 4)
        self.again = self.shared
        self.head = Head()

    def forward(self, x, *, scale=None):
        y = self.body(x)
        y = self.again(self.shared(y))
        return self.head(
            (y, x),
            [y],
            named={"left": x, "deep": [y, None]},
            record=Point(x, y),
            data=Box(x, 3),
            nothing=None,
            flag=7,
        )


class Bad(nn.Module):
    def forward(self, x):
        raise ValueError("broken layer")


class Raising(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.bad = Bad()

    def forward(self, x):
        return self.bad(self.first(x))


class AddTwo(nn.Module):
    def forward(self, x):
        return x.add_(2)


class Inplace(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = AddTwo()

    def forward(self, x):
        y = self.first(x)
        y += 1
        return self.second(y)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = [nn.Linear(4, 4), nn.Linear(4, 4)]
        self.table = {"a": nn.Linear(4, 4)}

    def forward(self, x):
        return self.table["a"](self.blocks[1](self.blocks[0](x)))


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.bn = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.bn(self.fc(x))


class Layout(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 3, 3)
        self.act = nn.PReLU()
        self.table = nn.Embedding(5, 2)

    def forward(self, x):
        return self.act(self.conv(x))


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return F.dropout(self.drop(self.fc(x)), 0.5, self.training)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 4, num_layers=2, batch_first=True, dropout=0.5)

    def forward(self, x):
        return self.rnn(x)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, dropout=0.5, batch_first=True)

    def forward(self, x):
        return self.block(x)


MODELS = {
    "nested": Nested,
    "raising": Raising,
    "inplace": Inplace,
    "plain": Plain,
    "norm": Norm,
    "layout": Layout,
    "dropout": Dropping,
    "recurrent": Recurrent,
    "attention": Attention,
}


def every_layer():
    """One layer or more of every class the vocabulary has a word for and this torch has."""
    if hasattr(nn, "RMSNorm"):
        yield nn.RMSNorm(4)
    for n in (1, 2, 3):
        yield getattr(nn, f"Conv{n}d")(2, 4, 3, padding="same")
        yield getattr(nn, f"Conv{n}d")(2, 4, 3, stride=2, padding=1, bias=False)
        yield getattr(nn, f"ConvTranspose{n}d")(2, 4, 3, stride=2, output_padding=1)
        yield getattr(nn, f"BatchNorm{n}d")(4)
        yield getattr(nn, f"InstanceNorm{n}d")(4)
        yield getattr(nn, f"MaxPool{n}d")(2)
        yield getattr(nn, f"AvgPool{n}d")(2)
        yield getattr(nn, f"AdaptiveAvgPool{n}d")(1)
        yield getattr(nn, f"AdaptiveMaxPool{n}d")(1)
        for name in ("ConstantPad", "ReflectionPad", "ReplicationPad", "ZeroPad", "CircularPad"):
            if hasattr(nn, f"{name}{n}d"):
                yield getattr(nn, f"{name}{n}d")(*((1, 0.5) if name == "ConstantPad" else (1,)))
    yield from (nn.Linear(2, 3), nn.Bilinear(2, 3, 4), nn.Embedding(5, 3), nn.LayerNorm(4))
    yield from (nn.GroupNorm(2, 4), nn.LocalResponseNorm(2), nn.SyncBatchNorm(4))
    yield from (nn.Dropout(), nn.Dropout2d(), nn.Dropout3d())
    for name in ("ReLU", "ReLU6", "LeakyReLU", "PReLU", "RReLU", "ELU", "CELU", "SELU", "GELU", "SiLU", "Mish"):
        yield getattr(nn, name)()
    for name in ("Hardswish", "Hardsigmoid", "Hardtanh", "Hardshrink", "Softshrink", "Softplus", "Softsign"):
        yield getattr(nn, name)()
    for name in ("Sigmoid", "LogSigmoid", "Tanh", "Tanhshrink", "GLU", "Softmax2d", "Flatten", "Identity"):
        yield getattr(nn, name)()
    yield from (nn.Threshold(0.1, 1), nn.Softmax(1), nn.LogSoftmax(1), nn.Softmin(1), nn.Unflatten(1, (2, 2)))
    yield from (nn.Upsample(scale_factor=2), nn.UpsamplingNearest2d(scale_factor=2), nn.UpsamplingBilinear2d(4))
    yield from (nn.PixelShuffle(2), nn.PixelUnshuffle(2), nn.Unfold(2))
    for kind in ("LSTM", "GRU", "RNN"):
        yield getattr(nn, kind)(2, 3)
        yield getattr(nn, f"{kind}Cell")(2, 3)
    yield nn.MultiheadAttention(4, 2)
    encoder, decoder = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.TransformerDecoderLayer(4, 2, 8)
    yield from (encoder, decoder, nn.TransformerEncoder(encoder, 1))
    yield from (nn.TransformerDecoder(decoder, 1), nn.Sequential(), nn.ModuleList(), nn.ModuleDict())
    yield nn.Transformer(4, 2, 1, 1, 8, batch_first=True)


class TestTorchContract(AdapterContract):
    dtypes = tuple(dtype for dtype in DTYPES if hasattr(torch, dtype))

    def make_adapter(self):
        return TorchAdapter()

    def make_net(self, name):
        return MODELS[name]()

    def installed(self):
        from torch.utils import _python_dispatch

        mha = getattr(torch.backends, "mha", None)
        return (
            torch.overrides._get_current_function_mode_stack(),
            _python_dispatch._get_current_dispatch_mode_stack(),
            mha is not None and mha.get_fastpath_enabled(),
            torch.is_grad_enabled(),
        )

    def gradients(self, net, x):
        x.requires_grad_()
        net.zero_grad(set_to_none=True)
        net(x).sum().backward()
        return [x.grad, *(parameter.grad for parameter in net.parameters() if parameter.grad is not None)]

    def training(self, net):
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

        def step(x):
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()

        return optimizer, step

    def spec_layers(self):
        return every_layer()

    def transposed(self, tensor):
        return tensor.t()

    def add_in_place(self, tensor, amount):
        tensor.add_(amount)

    def unreadable(self):
        yield torch.empty(2, device="meta")
        yield torch.eye(2).to_sparse()
        if hasattr(torch, "_subclasses"):
            with torch._subclasses.fake_tensor.FakeTensorMode():
                yield torch.ones(2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # both are on their way out of torch, and still met
            quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
            nested = [torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])] if hasattr(torch, "nested") else []
        yield from (quantized, *nested)


def test_what_is_handed_on_is_where_the_model_is():
    adapter, net = TorchAdapter(), nn.Linear(2, 2)
    array = np.zeros(3, np.float32)
    assert adapter.from_numpy(array, "float32").device.type == "cpu"
    with adapter.running(net.to("meta")):
        assert adapter.from_numpy(array, "float32").device.type == "meta"
        with adapter.running(nn.ReLU()):
            assert adapter.from_numpy(array, "float32").device.type == "meta"
