"""The adapter for both packages called `mindtorch`: the shipped contract, and what only they have."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

if find_spec("mindtorch") is None:
    pytest.skip("no mindtorch is installed", allow_module_level=True)

from aligner_hooks.mindtorch_ import make_adapter

ADAPTER = make_adapter()

import mindspore  # noqa: E402 - after the shim, which the adapter has put in
from aligner_hooks.mindtorch_.package import OPENI, package  # noqa: E402 - as above

from aligner.testing import AdapterContract, Box, Point  # noqa: E402 - as above

torch, nn = package().torch, package().nn
F = nn.functional
IS_OPENI = package().maker == OPENI


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
        named = {"left": x, "deep": [y, None]}
        return self.head((y, x), [y], named=named, record=Point(x, y), data=Box(x, 3), nothing=None, flag=7)


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
        y.add_(1)
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
        # OpenI's drops in eval mode too: test_recurrent_dropout_in_eval_mode_is_told_of.
        self.rnn = nn.LSTM(4, 4, num_layers=2, batch_first=True, dropout=0.0 if IS_OPENI else 0.5)

    def forward(self, x):
        return self.rnn(x)


class OneHead(nn.Module):
    """Attention in the user's own words, for mindnlp's MultiheadAttention does not run."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out_proj = nn.Linear(4, 12), nn.Linear(4, 4)

    def forward(self, x):
        q, k, v = (self.qkv(x)[..., i : i + 4] for i in (0, 4, 8))
        scores = torch.matmul(q, k.swapaxes(1, 2))
        return self.out_proj(torch.matmul(F.dropout(F.softmax(scores, -1), 0.5, self.training), v))


class Block(nn.Module):
    """What stands for a transformer layer where a package has none."""

    def __init__(self):
        super().__init__()
        self.self_attn = OneHead()
        self.linear1, self.linear2 = nn.Linear(4, 8), nn.Linear(8, 4)
        self.norm1, self.norm2 = nn.LayerNorm(4), nn.LayerNorm(4)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        x = self.norm1(x + self.dropout(self.self_attn(x)))
        return self.norm2(x + self.linear2(self.dropout(F.relu(self.linear1(x)))))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        if hasattr(nn, "TransformerEncoderLayer"):
            self.block = nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, dropout=0.5, batch_first=True)
        else:
            self.block = Block()

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
    """One layer or more of every class the vocabulary has a word for and this package has."""
    for n in (1, 2, 3):
        yield getattr(nn, f"Conv{n}d")(2, 4, 3, padding=1)
        yield getattr(nn, f"Conv{n}d")(2, 4, 3, stride=2, padding=1, bias=False)
        yield getattr(nn, f"ConvTranspose{n}d")(2, 4, 3, stride=2)
        yield getattr(nn, f"BatchNorm{n}d")(4)
        yield getattr(nn, f"InstanceNorm{n}d")(4)
        yield getattr(nn, f"MaxPool{n}d")(2)
        yield getattr(nn, f"AvgPool{n}d")(2)
        yield getattr(nn, f"AdaptiveAvgPool{n}d")(1)
        for name in ("ConstantPad", "ReflectionPad", "ReplicationPad", "ZeroPad"):
            if hasattr(nn, f"{name}{n}d"):
                yield getattr(nn, f"{name}{n}d")(*((1, 0.5) if name == "ConstantPad" else (1,)))
    yield from (nn.Linear(2, 3), nn.Bilinear(2, 3, 4), nn.Embedding(5, 3), nn.LayerNorm(4), nn.GroupNorm(2, 4))
    yield from (nn.Dropout(), nn.Dropout2d(), nn.Dropout3d())
    for name in ("ReLU", "ReLU6", "LeakyReLU", "PReLU", "ELU", "CELU", "SELU", "GELU", "SiLU", "Mish"):
        yield getattr(nn, name)()
    for name in ("Hardswish", "Hardsigmoid", "Hardtanh", "Hardshrink", "Softshrink", "Softplus", "Softsign"):
        yield getattr(nn, name)()
    for name in ("Sigmoid", "LogSigmoid", "Tanh", "Tanhshrink", "GLU", "Softmax2d", "Flatten", "Identity"):
        yield getattr(nn, name)()
    yield from (nn.Threshold(0.1, 1), nn.Softmax(1), nn.LogSoftmax(1), nn.Softmin(1), nn.Unflatten(1, (2, 2)))
    yield from (nn.Upsample(scale_factor=2), nn.PixelShuffle(2), nn.Unfold(2))
    for kind in ("LSTM", "GRU", "RNN"):
        yield getattr(nn, kind)(2, 3)
        if IS_OPENI:  # mindnlp's cells cannot be made
            yield getattr(nn, f"{kind}Cell")(2, 3)
    yield nn.MultiheadAttention(4, 2)
    if hasattr(nn, "TransformerEncoderLayer"):
        encoder, decoder = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.TransformerDecoderLayer(4, 2, 8)
        yield from (encoder, decoder, nn.TransformerEncoder(encoder, 1), nn.TransformerDecoder(decoder, 1))
    yield from (nn.Sequential(), nn.ModuleList(), nn.ModuleDict())


def batch_norm(
    input, running_mean=None, running_var=None, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5
):
    """What mindnlp's BatchNorm should compute: it hands its weights to its operator in the wrong order."""
    return F.execute("batch_norm", input, weight, bias, running_mean, running_var, training, momentum, eps)


class TestMindTorchContract(AdapterContract):
    @pytest.fixture(autouse=True)
    def without_the_bug_of_mindnlp(self, monkeypatch):
        if not IS_OPENI:
            monkeypatch.setattr(F, "batch_norm", batch_norm)

    dtypes = (
        *("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64", "bool", "complex64", "complex128"),
    )
    tells_operations = False

    def make_adapter(self):
        return ADAPTER

    def make_net(self, name):
        return MODELS[name]()

    def gradients(self, net, x):
        weights = [parameter for parameter in net.parameters() if parameter.requires_grad]
        backward = mindspore.value_and_grad(lambda x: net(x).sum(), 0, weights)
        of_x, of_weights = backward(x)[1]
        return [of_x, *of_weights]

    def spec_layers(self):
        return every_layer()

    def transposed(self, tensor):
        return tensor.t()

    def add_in_place(self, tensor, amount):
        tensor.add_(amount)

    @pytest.mark.parametrize("name", ["dropout", "attention", *([] if IS_OPENI else ["recurrent"])])
    def test_dropout_is_silenced_in_train_mode_and_comes_back(self, adapter, name):
        super().test_dropout_is_silenced_in_train_mode_and_comes_back(adapter, name)
