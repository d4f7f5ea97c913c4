"""The graph net in MindSpore: the correct port."""

from __future__ import annotations

import mindspore as ms
from mindspore import nn, ops


class NodeNorm(nn.Cell):
    """Normalises each node's features by their mean and standard deviation, which torch takes with n - 1."""

    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        self.gain = ms.Parameter(ops.ones(width), name="gain")
        self.shift = ms.Parameter(ops.zeros(width), name="shift")
        self.eps = eps

    def construct(self, x):
        deviation = x.std(-1, ddof=1, keepdims=True)
        return self.gain * (x - x.mean(-1, keep_dims=True)) / (deviation + self.eps) + self.shift


class GraphConv(nn.Cell):
    """Sums up the neighbours with both degrees' roots as weights."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.linear = nn.Dense(inputs, outputs)

    def construct(self, x, edges):
        root = ops.rsqrt(edges.sum(-1).clamp(1.0))
        weights = root.expand_dims(-1) * edges * root.expand_dims(-2)
        return ops.matmul(weights, self.linear(x))


class GraphAttention(nn.Cell):
    """Each node looks at those that it has an edge to, with several heads."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.linear = nn.Dense(width, width, has_bias=False)
        self.own = nn.Dense(width, heads, has_bias=False)
        self.other = nn.Dense(width, heads, has_bias=False)
        self.leaky = nn.LeakyReLU(alpha=0.2)
        self.bias = ms.Parameter(ops.zeros(width), name="bias")

    def construct(self, x, edges):
        batch, nodes, width = x.shape
        values = self.linear(x)
        own, other = self.own(values).swapaxes(1, 2), self.other(values).swapaxes(1, 2)
        scores = self.leaky(own.expand_dims(-1) + other.expand_dims(-2))
        weights = ops.softmax(scores.masked_fill(edges.expand_dims(1) == 0, -1e4), axis=-1)
        values = values.reshape(batch, nodes, self.heads, -1).swapaxes(1, 2)
        return ops.matmul(weights, values).swapaxes(1, 2).reshape(batch, nodes, width) + self.bias


class GraphNet(nn.Cell):
    """Atoms and bonds in; one vector of properties a molecule out."""

    def __init__(self, kinds: int = 14, width: int = 36, heads: int = 3, properties: int = 7):
        super().__init__()
        self.atom = nn.Embedding(kinds, width, padding_idx=0)
        self.charge = nn.Dense(2, width)
        self.conv = GraphConv(width, width)
        self.norm = NodeNorm(width)
        self.attention1 = GraphAttention(width, heads)
        self.elu = nn.ELU()
        self.attention2 = GraphAttention(width, heads)
        self.last_norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.gate = nn.Dense(width, width)
        self.value = nn.Dense(width, width)
        self.out = nn.SequentialCell(nn.Dense(2 * width, 40), nn.Mish(), nn.Dense(40, properties))

    def construct(self, atoms, numbers, bonds):
        present = (atoms != 0).astype(ms.float32)
        edges = (bonds + ops.eye(bonds.shape[-1])) * present.expand_dims(-1) * present.expand_dims(-2)
        x = self.atom(atoms) + self.charge(numbers)
        x = x + ops.relu(self.norm(self.conv(x, edges)))
        x = x + self.elu(self.attention1(x, edges))
        x = self.last_norm(x + self.elu(self.attention2(x, edges)))
        gated = ops.sigmoid(self.gate(x)) * self.value(x)
        total = (gated * present.expand_dims(-1)).sum(1)
        highest = gated.masked_fill(present.expand_dims(-1) == 0, -1e4).amax(1)
        return self.out(ops.cat([total, highest], axis=-1))


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return GraphNet()


def build_float16():
    """The net in float16 but for its norms."""
    return ms.amp.auto_mixed_precision(GraphNet(), "O2")
