"""The nets of the contract suite in MindSpore, as aligner.testing.nets describes them."""

from __future__ import annotations

import pytest

mindspore = pytest.importorskip("mindspore")

from mindspore import nn, ops  # noqa: E402 - only where MindSpore is installed

from aligner.testing import Box, Point  # noqa: E402 - stands with the imports it belongs to


class Head(nn.Cell):
    def construct(self, pair, items, *, named, record, data, nothing, flag):
        y, x = pair
        return {"sum": y + x, "parts": [y, x], "pair": (y, None), "record": record, "data": data, "flag": flag}


class Nested(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body = nn.SequentialCell(nn.Dense(4, 4), nn.ReLU())
        self.shared = nn.Dense(4, 4)
        self.again = self.shared
        self.head = Head()

    def construct(self, x, *, scale=None):
        y = self.again(self.shared(self.body(x)))
        return self.head(
            (y, x),
            [y],
            named={"left": x, "deep": [y, None]},
            record=Point(x, y),
            data=Box(x, 3),
            nothing=None,
            flag=7,
        )


class Bad(nn.Cell):
    def construct(self, x):
        raise ValueError("broken layer")


class Raising(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = nn.Dense(4, 4)
        self.bad = Bad()

    def construct(self, x):
        return self.bad(self.first(x))


class AddTwo(nn.Cell):
    def construct(self, x):
        x[:] = x + 2.0  # add_ is a silent no-op on CPU in 2.10
        return x


class InPlace(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = nn.Dense(4, 4)
        self.second = AddTwo()

    def construct(self, x):
        y = self.first(x)
        y[:] = y + 1.0
        return self.second(y)


class Plain(nn.Cell):
    def __init__(self):
        super().__init__()
        self.blocks = [nn.Dense(4, 4), nn.Dense(4, 4)]
        self.table = {"a": nn.Dense(4, 4)}

    def construct(self, x):
        return self.table["a"](self.blocks[1](self.blocks[0](x)))


class Norm(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(4, 4)
        self.bn = nn.BatchNorm1d(4)

    def construct(self, x):
        return self.bn(self.fc(x))


class Layout(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 3, 3, pad_mode="valid", has_bias=True)
        self.act = nn.PReLU()
        self.table = nn.Embedding(5, 2)

    def construct(self, x):
        return self.act(self.conv(x))


class Dropping(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(4, 4)
        self.drop = nn.Dropout(p=0.5)

    def construct(self, x):
        return ops.dropout(self.drop(self.fc(x)), p=0.5, training=self.training)


class Recurrent(nn.Cell):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 4, num_layers=2, batch_first=True, dropout=0.5)

    def construct(self, x):
        return self.rnn(x)


class Attending(nn.Cell):
    def __init__(self):
        super().__init__()
        self.block = nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, dropout=0.5, batch_first=True)

    def construct(self, x):
        return self.block(x)


FACTORIES = {
    "nested": Nested,
    "raising": Raising,
    "inplace": InPlace,
    "plain": Plain,
    "norm": Norm,
    "layout": Layout,
    "dropout": Dropping,
    "recurrent": Recurrent,
    "attention": Attending,
}
