"""The small nets an adapter's author writes in the framework: what each one is made of and what it returns.

Every net takes one float32 tensor `x`. Layers have the names given here; Linear has a bias, and weights are whatever
the framework gives at the start.

nested
    body    Sequential of Linear(4, 4) and ReLU
    shared  Linear(4, 4), registered a second time as `again`
    head    a layer of the author's own, see below
    def forward(x, *, scale=None):
        y = body(x)
        y = again(shared(y))
        return head((y, x), [y], named={"left": x, "deep": [y, None]}, record=Point(x, y), data=Box(x, 3),
                    nothing=None, flag=7)
    head's forward(pair, items, *, named, record, data, nothing, flag), with y, x = pair, returns
        {"sum": y + x, "parts": [y, x], "pair": (y, None), "record": record, "data": data, "flag": flag}
raising
    first   Linear(4, 4);  bad: a layer whose forward raises ValueError("broken layer")
    forward: bad(first(x))
inplace
    first   Linear(4, 4);  second: a layer whose forward adds 2 to its input in place and returns it
    forward: y = first(x); add 1 to y in place; return second(y)
plain
    blocks  a plain Python list of two Linear(4, 4);  table: a plain dict {"a": Linear(4, 4)}
    forward: table["a"](blocks[1](blocks[0](x)))
norm
    fc      Linear(4, 4);  bn: BatchNorm over 4 features, with running statistics
    forward: bn(fc(x))
layout
    conv    Conv1d(2, 3, kernel_size=3) with bias and without padding;  act: PReLU of one parameter
    table   Embedding(5, 2), which does not run
    forward: act(conv(x))
dropout
    fc      Linear(4, 4);  drop: Dropout(p=0.5)
    forward: the framework's functional dropout of drop(fc(x)) with p=0.5, active in train mode
recurrent
    rnn     LSTM(4, 4, num_layers=2, batch_first=True, dropout=0.5)
    forward: rnn(x), that is (output, (h, c))
attention
    block   TransformerEncoderLayer(4, 2, dim_feedforward=8, dropout=0.5, batch_first=True)
    forward: block(x)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class Point(NamedTuple):
    """A named tuple that travels through the net "nested"."""

    x: Any
    y: Any


@dataclass
class Box:
    """A dataclass that travels through the net "nested"."""

    value: Any
    count: int


@dataclass(frozen=True)
class Net:
    """The shape of a net's input and the paths of its layers in the order they are defined.

    A recurrent or attention layer has whatever layers the framework builds it from: `inner` says that more may follow.
    """

    shape: tuple[int, ...]
    paths: tuple[str, ...]
    inner: bool = False


NETS: Mapping[str, Net] = {
    "nested": Net((3, 4), ("", "body", "body.0", "body.1", "shared", "head")),
    "raising": Net((3, 4), ("", "first", "bad")),
    "inplace": Net((3, 4), ("", "first", "second")),
    "plain": Net((3, 4), ("", "blocks.0", "blocks.1", "table.a")),
    "norm": Net((8, 4), ("", "fc", "bn")),
    "layout": Net((2, 2, 8), ("", "conv", "act", "table")),
    "dropout": Net((64, 4), ("", "fc", "drop")),
    "recurrent": Net((16, 5, 4), ("", "rnn"), inner=True),
    "attention": Net((16, 5, 4), ("", "block"), inner=True),
}
