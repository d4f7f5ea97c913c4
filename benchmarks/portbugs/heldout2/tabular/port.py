"""The transformer for tables, MindSpore version."""

import math
from typing import List, Optional, Tuple

import mindspore as ms
import mindspore.nn as nn
import mindspore.ops as ops
import numpy as np
from mindspore import Parameter, Tensor

N_NUM = 9
CARDINALITIES = [4, 7, 3, 11, 5]


def make_bins(n_features: int, max_bins: int) -> List[np.ndarray]:
    """Edges per feature; like quantiles, they are unevenly spaced and not equally many."""
    bins = []
    for i in range(n_features):
        count = max_bins - i % 3
        t = np.linspace(-1.0, 1.0, count + 1)
        bins.append((1.8 * np.sinh((1.0 + 0.15 * i) * t) / np.sinh(1.0 + 0.15 * i) + 0.1 * np.cos(i)).astype(np.float32))
    return bins


def randn(*shape: int) -> np.ndarray:
    return np.random.randn(*shape).astype(np.float32)


def sparsemax(z: Tensor, axis: int = -1) -> Tensor:
    assert axis == -1 or axis == z.ndim - 1
    z = z - z.max(axis=axis, keepdims=True)
    z_sorted, _ = ops.sort(z, axis=axis, descending=True)
    cssv = ops.cumsum(z_sorted, axis) - 1.0
    ind = ops.arange(1, z.shape[axis] + 1).astype(z.dtype)
    support = ind * z_sorted > cssv
    k = support.astype(ms.int32).sum(axis=axis, keepdims=True)
    tau = ops.gather_elements(cssv, axis, k - 1) / k.astype(z.dtype)
    return ops.clamp(z - tau, min=0.0)


def geglu(x: Tensor) -> Tensor:
    a, b = ops.chunk(x, 2, axis=-1)
    return a * ops.gelu(b, approximate="none")


def rms(x: Tensor, eps: float = 1e-6) -> Tensor:
    return x * ops.rsqrt(ops.square(x).mean(axis=-1, keep_dims=True) + eps)


class NumericEmbeddings(nn.Cell):
    """Piecewise-linear encoding, then a linear map for each feature; periodic features are added."""

    def __init__(self, n_features: int, max_bins: int, n_freq: int, d: int) -> None:
        super().__init__()
        bins = make_bins(n_features, max_bins)
        left = np.zeros((n_features, max_bins), np.float32)
        width = np.ones((n_features, max_bins), np.float32)
        mask = np.zeros((n_features, max_bins), np.float32)
        last = np.zeros((n_features, max_bins), bool)
        first = np.zeros((n_features, max_bins), bool)
        first[:, 0] = True
        for i, edges in enumerate(bins):
            count = len(edges) - 1
            left[i, :count] = edges[:-1]
            width[i, :count] = np.diff(edges)
            mask[i, :count] = 1.0
            last[i, count - 1] = True
        self.left = Tensor(left)
        self.width = Tensor(width)
        self.mask = Tensor(mask)
        self.last = Tensor(last)
        self.first = Tensor(first)
        self.norm = nn.BatchNorm1d(n_features)
        self.weight = Parameter(Tensor(randn(n_features, max_bins, d) * 0.4))
        self.bias = Parameter(Tensor(randn(n_features, d) * 0.2))
        self.frequencies = Parameter(Tensor(randn(n_features, n_freq) * 0.5))
        self.periodic = nn.Dense(2 * n_freq, d)

    def encode(self, x: Tensor) -> Tensor:
        x = (x.expand_dims(-1) - self.left) / self.width
        # The outer bins are open: values beyond the edges go on linearly.
        low = ops.where(self.first, x, ops.clamp(x, min=0.0))
        x = ops.where(self.last, low, ops.clamp(low, max=1.0))
        return x * self.mask

    def construct(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        ple = self.encode(x)
        out = ops.bmm(ple.swapaxes(0, 1), self.weight).swapaxes(0, 1) + self.bias
        angles = 2 * math.pi * self.frequencies.expand_dims(0) * x.expand_dims(-1)
        waves = ops.concat([ops.cos(angles), ops.sin(angles)], axis=-1)
        return ops.relu(out) + 0.5 * self.periodic(waves)


class CategoryEmbeddings(nn.Cell):
    """One table for all features; the last category of each stands for what was never seen."""

    def __init__(self, cardinalities: List[int], d: int) -> None:
        super().__init__()
        sizes = np.array(cardinalities) + 1
        self.limits = Tensor(np.array(cardinalities), ms.int64)
        self.offsets = Tensor(np.cumsum(sizes) - sizes, ms.int64)
        self.table = nn.Embedding(int(sizes.sum()), d)
        self.bias = Parameter(Tensor(randn(len(cardinalities), d) * 0.3))

    def construct(self, x: Tensor) -> Tensor:
        unseen = ops.logical_or(x < 0, x >= self.limits)
        x = ops.where(unseen, self.limits.broadcast_to(x.shape), x)
        return self.table(x + self.offsets) + self.bias


class FeatureGate(nn.Cell):
    """A step of TabNet's attentive choice over the tokens; `prior` says how free each feature still is."""

    def __init__(self, d: int, gamma: float = 1.4) -> None:
        super().__init__()
        self.gamma = gamma
        self.context = nn.Dense(d, d)
        self.score = nn.Dense(d, 1)

    def construct(self, x: Tensor, prior: Tensor) -> Tuple[Tensor, Tensor]:
        context = self.context(x.mean(axis=1, keep_dims=True))
        scores = self.score(ops.tanh(x + context)).squeeze(-1)
        gate = sparsemax(1.5 * scores * prior)
        prior = prior * (self.gamma - gate)
        n = x.shape[1]
        return x * (0.5 + 0.5 * n * gate).expand_dims(-1), prior


class Attention(nn.Cell):
    def __init__(self, d: int, n_heads: int, n_tokens: int, n_compressed: int) -> None:
        super().__init__()
        assert d % n_heads == 0
        self.n_heads = n_heads
        self.W_q = nn.Dense(d, d)
        self.W_k = nn.Dense(d, d)
        self.W_v = nn.Dense(d, d)
        self.W_out = nn.Dense(d, d)
        self.compress = nn.Dense(n_tokens, n_compressed, has_bias=False)

    def _reshape(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        d_head = d // self.n_heads
        return x.reshape(b, t, self.n_heads, d_head).swapaxes(1, 2).reshape(b * self.n_heads, t, d_head)

    def construct(self, x_q: Tensor, x_kv: Tensor) -> Tensor:
        q, k, v = self.W_q(x_q), self.W_k(x_kv), self.W_v(x_kv)
        k = self.compress(k.swapaxes(1, 2)).swapaxes(1, 2)
        v = self.compress(v.swapaxes(1, 2)).swapaxes(1, 2)
        q, k, v = self._reshape(q), self._reshape(k), self._reshape(v)
        q, k = rms(q), rms(k)
        b, t = len(x_q), q.shape[1]
        scores = ops.bmm(q, k.swapaxes(1, 2)) / math.sqrt(k.shape[-1])
        x = ops.bmm(ops.softmax(scores * 3.0, axis=-1), v)
        x = x.reshape(b, self.n_heads, t, -1).swapaxes(1, 2).reshape(b, t, -1)
        return self.W_out(x)


class Block(nn.Cell):
    def __init__(self, d: int, n_heads: int, n_tokens: int, n_compressed: int, prenorm: bool) -> None:
        super().__init__()
        self.norm0 = nn.LayerNorm((d,), epsilon=1e-5) if prenorm else None
        self.attention = Attention(d, n_heads, n_tokens, n_compressed)
        self.norm1 = nn.LayerNorm((d,), epsilon=1e-5)
        self.linear0 = nn.Dense(d, 3 * d)
        self.linear1 = nn.Dense(3 * d // 2, d)

    def construct(self, x: Tensor, last: bool) -> Tensor:
        h = x if self.norm0 is None else self.norm0(x)
        # In the last block only the CLS token (at the end) asks.
        x = (x[:, -1:] if last else x) + self.attention(h[:, -1:] if last else h, h)
        h = self.norm1(x)
        h = self.linear1(geglu(self.linear0(h)))
        return x + h


class Neighbours(nn.Cell):
    """Rows of the batch look at those most like them, never at themselves."""

    def __init__(self, d: int, k: int) -> None:
        super().__init__()
        self.k = k
        self.norm = nn.LayerNorm((d,), epsilon=1e-5)
        self.key = nn.Dense(d, d)
        self.shift = nn.Dense(d, d, has_bias=False)

    def construct(self, x: Tensor, y: Optional[Tensor] = None) -> Tensor:
        keys = self.key(self.norm(x))
        squares = ops.square(keys).sum(-1)
        distance = squares.expand_dims(1) + squares.expand_dims(0) - 2.0 * ops.matmul(keys, keys.swapaxes(0, 1))
        distance = ops.clamp(distance, min=0.0)
        own = Tensor(np.eye(len(x), dtype=bool))
        distance = distance.masked_fill(own, float("inf"))
        near, index = ops.topk(distance, self.k, dim=1, largest=False)
        weights = ops.softmax(-near / keys.shape[1], axis=1)
        values = x[index] + self.shift(keys.expand_dims(1) - keys[index])
        return x + 0.5 * (weights.expand_dims(-1) * values).sum(axis=1)


class EnsembleHead(nn.Cell):
    """BatchEnsemble: members share `linear` and differ by what scales its inputs and outputs."""

    def __init__(self, d: int, hidden: int, n_classes: int, k: int) -> None:
        super().__init__()
        self.k = k
        self.linear = nn.Dense(d, hidden, has_bias=False)
        self.r = Parameter(Tensor(1.0 + 0.5 * randn(k, d)))
        self.s = Parameter(Tensor(1.0 + 0.5 * randn(k, hidden)))
        self.bias = Parameter(Tensor(0.2 * randn(k, hidden)))
        self.out_weight = Parameter(Tensor(randn(k, hidden, n_classes)))
        self.out_bias = Parameter(Tensor(0.2 * randn(k, n_classes)))

    def construct(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        x = x.expand_dims(1).broadcast_to((x.shape[0], self.k, x.shape[1]))
        x = self.linear(x * self.r) * self.s + self.bias
        x = ops.silu(x)
        x = ops.bmm(x.swapaxes(0, 1), self.out_weight).swapaxes(0, 1) + self.out_bias
        log_p = ops.log_softmax(x, axis=-1)
        mean = ops.logsumexp(log_p, 1) - math.log(self.k)
        spread = ops.std(ops.exp(log_p), axis=1, ddof=1)
        return mean, spread


class TabularTransformer(nn.Cell):
    def __init__(self, d: int = 40, n_heads: int = 4, n_blocks: int = 3, n_steps: int = 2, n_classes: int = 6) -> None:
        super().__init__()
        n_tokens = N_NUM + len(CARDINALITIES) + 1
        self.num = NumericEmbeddings(N_NUM, 8, 6, d)
        self.cat = CategoryEmbeddings(CARDINALITIES, d)
        self.cls = Parameter(Tensor(randn(d) * 0.3))
        self.gates = nn.CellList([FeatureGate(d) for _ in range(n_steps)])
        self.blocks = nn.CellList([Block(d, n_heads, n_tokens, 7, prenorm=i > 0) for i in range(n_blocks)])
        self.norm = nn.LayerNorm((d,), epsilon=1e-5)
        self.neighbours = Neighbours(d, 4)
        self.head = EnsembleHead(d, 24, n_classes, 5)

    def construct(self, x_num: Tensor, x_cat: Tensor) -> Tuple[Tensor, Tensor]:
        x = ops.concat([self.num(x_num), self.cat(x_cat)], axis=1)
        prior = ops.ones(x.shape[:2], x.dtype)
        total = ops.zeros_like(x)
        for gate in self.gates:
            step, prior = gate(x, prior)
            total = total + step
        x = (x + total) / (len(self.gates) + 1)
        x = ops.concat([x, self.cls.broadcast_to((len(x), 1, self.cls.shape[0]))], axis=1)
        for i, block in enumerate(self.blocks):
            x = block(x, last=i + 1 == len(self.blocks))
        x = ops.relu(self.norm(x[:, -1]))
        x = self.neighbours(x)
        return self.head(x)


def build():
    """The net only; weights come from the reference."""
    return TabularTransformer()
