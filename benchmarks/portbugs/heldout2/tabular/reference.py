"""A transformer for tables.

Numbers are encoded piecewise linearly (plus a few periodic features), categories are looked up in one table with
offsets, a sparse gate picks features in steps, keys and values are compressed along the tokens, rows look at their
neighbours in the batch, and an ensemble of small heads that share a weight votes.
"""

import math
from typing import List, Optional, Tuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

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


def sparsemax(z: Tensor, dim: int = -1) -> Tensor:
    assert dim == -1 or dim == z.ndim - 1
    z = z - z.max(dim=dim, keepdim=True).values
    z_sorted = torch.sort(z, dim=dim, descending=True).values
    cssv = z_sorted.cumsum(dim) - 1.0
    ind = torch.arange(1, z.shape[dim] + 1, dtype=z.dtype, device=z.device)
    support = ind * z_sorted > cssv
    k = support.sum(dim=dim, keepdim=True)
    tau = cssv.gather(dim, k - 1) / k.to(z.dtype)
    return torch.clamp(z - tau, min=0.0)


def geglu(x: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return a * F.gelu(b)


def rms(x: Tensor, eps: float = 1e-6) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + eps)


class NumericEmbeddings(nn.Module):
    """Piecewise-linear encoding, then a linear map for each feature; periodic features are added."""

    def __init__(self, n_features: int, max_bins: int, n_freq: int, d: int) -> None:
        super().__init__()
        bins = make_bins(n_features, max_bins)
        left = torch.zeros(n_features, max_bins)
        width = torch.ones(n_features, max_bins)
        mask = torch.zeros(n_features, max_bins)
        last = torch.zeros(n_features, max_bins, dtype=torch.bool)
        for i, edges in enumerate(bins):
            count = len(edges) - 1
            edges = torch.as_tensor(edges)
            left[i, :count] = edges[:-1]
            width[i, :count] = edges.diff()
            mask[i, :count] = 1.0
            last[i, count - 1] = True
        self.register_buffer("left", left, persistent=False)
        self.register_buffer("width", width, persistent=False)
        self.register_buffer("mask", mask, persistent=False)
        self.register_buffer("last", last, persistent=False)
        self.norm = nn.BatchNorm1d(n_features)
        self.weight = nn.Parameter(torch.randn(n_features, max_bins, d) * 0.4)
        self.bias = nn.Parameter(torch.randn(n_features, d) * 0.2)
        self.frequencies = nn.Parameter(torch.randn(n_features, n_freq) * 0.5)
        self.periodic = nn.Linear(2 * n_freq, d)

    def encode(self, x: Tensor) -> Tensor:
        x = (x[..., None] - self.left) / self.width
        first = torch.zeros_like(self.last)
        first[:, 0] = True
        # The outer bins are open: values beyond the edges go on linearly.
        low = torch.where(first, x, x.clamp_min(0.0))
        x = torch.where(self.last, low, low.clamp_max(1.0))
        return x * self.mask

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        ple = self.encode(x)
        out = torch.einsum("bfk,fkd->bfd", ple, self.weight) + self.bias
        angles = 2 * math.pi * self.frequencies[None] * x[..., None]
        waves = torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1)
        return F.relu(out) + 0.5 * self.periodic(waves)


class CategoryEmbeddings(nn.Module):
    """One table for all features; the last category of each stands for what was never seen."""

    def __init__(self, cardinalities: List[int], d: int) -> None:
        super().__init__()
        sizes = torch.tensor(cardinalities) + 1
        self.register_buffer("limits", torch.tensor(cardinalities), persistent=False)
        self.register_buffer("offsets", torch.cumsum(sizes, 0) - sizes, persistent=False)
        self.table = nn.Embedding(int(sizes.sum()), d)
        self.bias = nn.Parameter(torch.randn(len(cardinalities), d) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        unseen = (x < 0) | (x >= self.limits)
        x = torch.where(unseen, self.limits.expand_as(x), x)
        return self.table(x + self.offsets[None]) + self.bias


class FeatureGate(nn.Module):
    """A step of TabNet's attentive choice over the tokens; `prior` says how free each feature still is."""

    def __init__(self, d: int, gamma: float = 1.4) -> None:
        super().__init__()
        self.gamma = gamma
        self.context = nn.Linear(d, d)
        self.score = nn.Linear(d, 1)

    def forward(self, x: Tensor, prior: Tensor) -> Tuple[Tensor, Tensor]:
        context = self.context(x.mean(dim=1, keepdim=True))
        scores = self.score(torch.tanh(x + context)).squeeze(-1)
        gate = sparsemax(1.5 * scores * prior)
        prior = prior * (self.gamma - gate)
        n = x.shape[1]
        return x * (0.5 + 0.5 * n * gate).unsqueeze(-1), prior


class Attention(nn.Module):
    def __init__(self, d: int, n_heads: int, n_tokens: int, n_compressed: int) -> None:
        super().__init__()
        assert d % n_heads == 0
        self.n_heads = n_heads
        self.W_q = nn.Linear(d, d)
        self.W_k = nn.Linear(d, d)
        self.W_v = nn.Linear(d, d)
        self.W_out = nn.Linear(d, d)
        self.compress = nn.Linear(n_tokens, n_compressed, bias=False)

    def _reshape(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        d_head = d // self.n_heads
        return x.reshape(b, t, self.n_heads, d_head).transpose(1, 2).reshape(b * self.n_heads, t, d_head)

    def forward(self, x_q: Tensor, x_kv: Tensor) -> Tensor:
        q, k, v = self.W_q(x_q), self.W_k(x_kv), self.W_v(x_kv)
        k = self.compress(k.transpose(1, 2)).transpose(1, 2)
        v = self.compress(v.transpose(1, 2)).transpose(1, 2)
        q, k, v = self._reshape(q), self._reshape(k), self._reshape(v)
        q, k = rms(q), rms(k)
        b, t = len(x_q), q.shape[1]
        scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(k.shape[-1])
        x = torch.bmm(F.softmax(scores * 3.0, dim=-1), v)
        x = x.reshape(b, self.n_heads, t, -1).transpose(1, 2).flatten(2)
        return self.W_out(x)


class Block(nn.Module):
    def __init__(self, d: int, n_heads: int, n_tokens: int, n_compressed: int, prenorm: bool) -> None:
        super().__init__()
        self.norm0 = nn.LayerNorm(d) if prenorm else None
        self.attention = Attention(d, n_heads, n_tokens, n_compressed)
        self.norm1 = nn.LayerNorm(d)
        self.linear0 = nn.Linear(d, 3 * d)
        self.linear1 = nn.Linear(3 * d // 2, d)

    def forward(self, x: Tensor, last: bool) -> Tensor:
        h = x if self.norm0 is None else self.norm0(x)
        # In the last block only the CLS token (at the end) asks.
        x = (x[:, -1:] if last else x) + self.attention(h[:, -1:] if last else h, h)
        h = self.norm1(x)
        h = self.linear1(geglu(self.linear0(h)))
        return x + h


class Neighbours(nn.Module):
    """Rows of the batch look at those most like them, never at themselves."""

    def __init__(self, d: int, k: int) -> None:
        super().__init__()
        self.k = k
        self.norm = nn.LayerNorm(d)
        self.key = nn.Linear(d, d)
        self.shift = nn.Linear(d, d, bias=False)

    def forward(self, x: Tensor, y: Optional[Tensor] = None) -> Tensor:
        keys = self.key(self.norm(x))
        squares = keys.square().sum(-1)
        distance = squares[:, None] + squares[None, :] - 2.0 * keys @ keys.t()
        distance = distance.clamp_min(0.0)
        distance = distance.masked_fill(torch.eye(len(x), dtype=torch.bool), float("inf"))
        near, index = torch.topk(distance, self.k, dim=1, largest=False)
        weights = F.softmax(-near / keys.shape[1], dim=1)
        values = x[index] + self.shift(keys.unsqueeze(1) - keys[index])
        return x + 0.5 * torch.einsum("bk,bkd->bd", weights, values)


class EnsembleHead(nn.Module):
    """BatchEnsemble: members share `linear` and differ by what scales its inputs and outputs."""

    def __init__(self, d: int, hidden: int, n_classes: int, k: int) -> None:
        super().__init__()
        self.k = k
        self.linear = nn.Linear(d, hidden, bias=False)
        self.r = nn.Parameter(1.0 + 0.5 * torch.randn(k, d))
        self.s = nn.Parameter(1.0 + 0.5 * torch.randn(k, hidden))
        self.bias = nn.Parameter(0.2 * torch.randn(k, hidden))
        self.out_weight = nn.Parameter(torch.randn(k, hidden, n_classes) * hidden**-0.5 * 2)
        self.out_bias = nn.Parameter(0.2 * torch.randn(k, n_classes))

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        x = x.unsqueeze(1).expand(-1, self.k, -1)
        x = self.linear(x * self.r) * self.s + self.bias
        x = F.silu(x)
        x = torch.einsum("bkh,khc->bkc", x, self.out_weight) + self.out_bias
        log_p = F.log_softmax(x, dim=-1)
        mean = torch.logsumexp(log_p, dim=1) - math.log(self.k)
        spread = log_p.exp().std(dim=1)
        return mean, spread


class TabularTransformer(nn.Module):
    def __init__(self, d: int = 40, n_heads: int = 4, n_blocks: int = 3, n_steps: int = 2, n_classes: int = 6) -> None:
        super().__init__()
        n_tokens = N_NUM + len(CARDINALITIES) + 1
        self.num = NumericEmbeddings(N_NUM, 8, 6, d)
        self.cat = CategoryEmbeddings(CARDINALITIES, d)
        self.cls = nn.Parameter(torch.randn(d) * 0.3)
        self.gates = nn.ModuleList([FeatureGate(d) for _ in range(n_steps)])
        self.blocks = nn.ModuleList([Block(d, n_heads, n_tokens, 7, prenorm=i > 0) for i in range(n_blocks)])
        self.norm = nn.LayerNorm(d)
        self.neighbours = Neighbours(d, 4)
        self.head = EnsembleHead(d, 24, n_classes, 5)

    def forward(self, x_num: Tensor, x_cat: Tensor) -> Tuple[Tensor, Tensor]:
        x = torch.cat([self.num(x_num), self.cat(x_cat)], dim=1)
        prior = torch.ones(x.shape[:2], dtype=x.dtype, device=x.device)
        total = torch.zeros_like(x)
        for gate in self.gates:
            step, prior = gate(x, prior)
            total = total + step
        x = (x + total) / (len(self.gates) + 1)
        x = torch.cat([x, self.cls.expand(len(x), 1, -1)], dim=1)
        for i, block in enumerate(self.blocks):
            x = block(x, last=i + 1 == len(self.blocks))
        x = F.relu(self.norm(x[:, -1]))
        x = self.neighbours(x)
        return self.head(x)


def build():
    torch.manual_seed(5)
    np.random.seed(5)
    model = TabularTransformer()
    for m in model.modules():
        if isinstance(m, (nn.LayerNorm, nn.BatchNorm1d)):
            nn.init.uniform_(m.weight, 0.7, 1.5)
            nn.init.normal_(m.bias, std=0.2)
        if isinstance(m, nn.BatchNorm1d):
            m.running_mean.normal_(0, 0.5)
            m.running_var.uniform_(0.5, 2.0)
        if isinstance(m, nn.Linear):
            nn.init.xavier_normal_(m.weight, gain=1.2)
    x_num = torch.randn(14, N_NUM) * 1.3
    x_cat = torch.stack([torch.randint(-1, c + 2, (14,)) for c in CARDINALITIES], dim=1)
    return model.eval(), (x_num, x_cat)
