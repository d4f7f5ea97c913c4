"""The small hybrid language model (Mamba-2, Mamba and grouped-query attention) in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.common.initializer import Normal, initializer

CONFIG = {
    "vocab": 120,
    "width": 48,
    "blocks": ("mamba2", "mamba", "attention", "mamba2"),
    "expand": 2,
    "conv": 4,
    "mamba2": {
        "head_dim": 16, "groups": 2, "state": 16, "chunk": 8, "dt_range": (0.02, 0.6),
        "multipliers": {"gate": 0.9, "x": 1.3, "B": 1.5, "C": 0.7, "dt": 1.1},
    },
    "mamba": {"state": 8, "dt_rank": 6},
    "attention": {"heads": 6, "kv_heads": 2, "head_dim": 16, "window": 9, "rotary_part": 0.5, "rope_base": 1000.0},
    "ffn": {"inner": 80, "gate_multiplier": 1.4, "down_multiplier": 0.8},
    "eps": 1e-5,
    "embedding_multiplier": 4.0,
    "residual_multiplier": 0.7,
    "logits_scaling": 3.0,
}


def linear(cin, cout, bias=False):
    return nn.Dense(cin, cout, has_bias=bias)


class RMSNorm(nn.Cell):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight = Parameter(initializer("ones", (width,)), name="weight")
        self.eps = eps

    def construct(self, x):
        return x * ops.rsqrt(ops.mean(ops.square(x), -1, keep_dims=True) + self.eps) * self.weight


class GroupRMSNorm(nn.Cell):
    """The norm behind Mamba-2's scan: the gate comes first, each group has its own root mean square."""

    def __init__(self, width, groups=1, eps=1e-6):
        super().__init__()
        self.weight = Parameter(initializer("ones", (width,)), name="weight")
        self.groups = groups
        self.eps = eps

    def construct(self, x, z):
        shape = x.shape
        x = x * mint.nn.functional.silu(z)
        x = x.reshape(shape[:-1] + (self.groups, -1))
        x = x * ops.rsqrt(x.pow(2).mean(axis=-1, keep_dims=True) + self.eps)
        return x.reshape(shape) * self.weight


class CausalConv(nn.Cell):
    """Depthwise convolution over time with SiLU, [b, l, c] to [b, l, c]; takes away what padding tokens got."""

    def __init__(self, channels, kernel):
        super().__init__()
        self.conv1d = nn.Conv1d(
            channels, channels, kernel, pad_mode="pad", padding=kernel - 1, group=channels, has_bias=True
        )

    def construct(self, x, keep):
        length = x.shape[1]
        y = self.conv1d(x.swapaxes(1, 2))[:, :, :length]
        return ops.silu(y).swapaxes(1, 2) * keep


class ChunkedScan(nn.Cell):
    """Mamba-2's scan (no parameters of its own). u [b, l, h, p], dt [b, l, h], a [h], B and C [b, l, h, n]."""

    def __init__(self, chunk):
        super().__init__()
        self.chunk = chunk

    def split(self, x):
        """[b, l, h, ...] to [b, h, c, l, ...], filled up with zeros at the end."""
        fill = -x.shape[1] % self.chunk
        if fill:
            x = ops.cat([x, ops.zeros((x.shape[0], fill) + x.shape[2:], x.dtype)], axis=1)
        x = x.reshape((x.shape[0], x.shape[1] // self.chunk, self.chunk) + x.shape[2:])
        return x.transpose((0, 3, 1, 2) + tuple(range(4, x.ndim)))

    @staticmethod
    def decays(a):
        """exp(a[j + 1] + ... + a[i]) at [..., i, j], and zero where j > i."""
        n = a.shape[-1]
        grid = ops.broadcast_to(a.expand_dims(-1), a.shape + (n,))
        grid = ops.cumsum(ops.tril(grid, -1), axis=-2)
        lower = Tensor(np.tril(np.ones((n, n), dtype=bool)))
        return ops.where(lower, ops.exp(grid), ops.zeros_like(grid))

    def construct(self, u, dt, a, B, C, D):
        batch, length, heads, size = u.shape
        skip = u * D.reshape(1, 1, heads, 1)
        u = self.split(u * dt.expand_dims(-1))
        B = self.split(B)
        C = self.split(C)
        log_decay = self.split(dt * a)
        cum = ops.cumsum(log_decay, axis=-1)

        # inside of each chunk
        scores = ops.matmul(C, B.swapaxes(-1, -2)) * self.decays(log_decay)
        y = ops.matmul(scores, u)

        # what each chunk leaves behind, [b, h, c, p, n]
        to_end = ops.exp(cum[..., -1:] - cum)
        left = ops.matmul(u.swapaxes(-1, -2), B * to_end.expand_dims(-1))

        # from chunk to chunk: the state before each, and the one after the last
        total = ops.pad(cum[..., -1], (1, 0))
        left = ops.cat([ops.zeros_like(left[:, :, :1]), left], axis=2)
        chunks = left.shape[2]
        carried = ops.matmul(self.decays(total), left.reshape(batch, heads, chunks, -1)).reshape(left.shape)
        before, last = carried[:, :, :-1], carried[:, :, -1]

        y = y + ops.matmul(C * ops.exp(cum).expand_dims(-1), before.swapaxes(-1, -2))
        y = y.transpose(0, 2, 3, 1, 4).reshape(batch, -1, heads, size)
        return y[:, :length] + skip, last


class Mamba2(nn.Cell):
    def __init__(self, width, expand, kernel, head_dim, groups, state, chunk, dt_range, multipliers, eps):
        super().__init__()
        self.inner = expand * width
        self.head_dim = head_dim
        self.heads = self.inner // head_dim
        self.groups = groups
        self.state = state
        self.dt_range = dt_range
        bc = groups * state
        self.sections = [self.inner, self.inner + 2 * bc, self.heads]
        self.bc = bc

        self.dt_bias = Parameter(initializer("ones", (self.heads,)), name="dt_bias")
        self.A_log = Parameter(Tensor(np.log(np.arange(1, self.heads + 1)), ms.float32), name="A_log")
        self.D = Parameter(initializer("ones", (self.heads,)), name="D")
        self.conv = CausalConv(self.inner + 2 * bc, kernel)
        self.in_proj = linear(width, sum(self.sections))
        self.norm = GroupRMSNorm(self.inner, groups, eps)
        self.out_proj = linear(self.inner, width)
        self.scan = ChunkedScan(chunk)
        sizes = {"gate": self.inner, "x": self.inner, "B": bc, "C": bc, "dt": self.heads}
        parts = [np.full(size, multipliers[name], np.float32) for name, size in sizes.items()]
        self.mup = Tensor(np.concatenate(parts))

    def per_head(self, t):
        """[b, l, g * n] to [b, l, h, n]; neighbouring heads share a group."""
        t = t.reshape(t.shape[0], t.shape[1], self.groups, self.state)
        return ops.repeat_interleave(t, self.heads // self.groups, axis=2)

    def construct(self, x, mask):
        batch, length, _ = x.shape
        keep = mask.expand_dims(-1).astype(x.dtype)
        z, xbc, dt = mint.split(self.in_proj(x * keep) * self.mup, self.sections, dim=-1)
        xbc = self.conv(xbc, keep)
        u, B, C = mint.split(xbc, [self.inner, self.bc, self.bc], dim=-1)
        dt = mint.nn.functional.softplus(dt + self.dt_bias)
        dt = ops.clamp(dt, self.dt_range[0], self.dt_range[1])
        u = u.reshape(batch, length, self.heads, self.head_dim)
        y, last = self.scan(u, dt, -ops.exp(self.A_log), self.per_head(B), self.per_head(C), self.D)
        return self.out_proj(self.norm(y.reshape(batch, length, self.inner), z)), last


def selective_scan(u, dt, A, B, C):
    """The recurrence token by token: u and dt [b, l, d], A [d, n], B and C [b, l, n]; y [b, l, d], state [b, d, n]."""
    state = ops.zeros((u.shape[0],) + A.shape, ms.float32)
    drive = dt * u
    outputs = []
    for t in range(u.shape[1]):
        decay = ops.exp(dt[:, t].expand_dims(-1) * A)
        state = decay * state + drive[:, t].expand_dims(-1) * B[:, t].expand_dims(1)
        outputs.append((state * C[:, t].expand_dims(1)).sum(axis=-1))
    return ops.stack(outputs, axis=1), state


class Mamba(nn.Cell):
    def __init__(self, width, expand, kernel, state, dt_rank, eps):
        super().__init__()
        self.inner = expand * width
        self.splits = [dt_rank, state, state]
        self.kernel = kernel
        table = np.tile(np.arange(1, state + 1, dtype=np.float32), (self.inner, 1))
        self.A_log = Parameter(Tensor(np.log(table)), name="A_log")
        self.D = Parameter(initializer("ones", (self.inner,)), name="D")
        self.conv1d = nn.Conv1d(self.inner, self.inner, kernel, pad_mode="valid", group=self.inner, has_bias=True)
        self.in_proj = linear(width, 2 * self.inner)
        self.x_proj = linear(self.inner, sum(self.splits))
        self.dt_proj = linear(dt_rank, self.inner, bias=True)
        self.out_proj = linear(self.inner, width)
        self.dt_norm = RMSNorm(dt_rank, eps)
        self.b_norm = RMSNorm(state, eps)
        self.c_norm = RMSNorm(state, eps)

    def construct(self, x, mask):
        keep = mask.expand_dims(-1).astype(x.dtype)
        u, z = ops.chunk(self.in_proj(x), 2, axis=-1)
        u = (u * keep).swapaxes(1, 2)
        u = self.conv1d(ops.pad(u, (self.kernel - 1, 0)))
        u = ops.silu(u).swapaxes(1, 2) * keep

        dt, B, C = mint.split(self.x_proj(u), self.splits, dim=-1)
        dt = ops.softplus(self.dt_proj(self.dt_norm(dt)))
        y, state = selective_scan(u, dt, -ops.exp(self.A_log), self.b_norm(B), self.c_norm(C))
        y = (y + u * self.D) * ops.silu(z)
        return self.out_proj(y), state


class Rotary(nn.Cell):
    """Turns the first part of each head by its place; the angles of every place come from the caller."""

    def construct(self, x, cos, sin):
        half = cos.shape[-1]
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return ops.cat([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


class GroupedAttention(nn.Cell):
    def __init__(self, width, heads, kv_heads, head_dim):
        super().__init__()
        self.heads = heads
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.q_proj = linear(width, heads * head_dim)
        self.k_proj = linear(width, kv_heads * head_dim)
        self.v_proj = linear(width, kv_heads * head_dim)
        self.o_proj = linear(heads * head_dim, width)
        self.rotary = Rotary()
        self.softmax = nn.Softmax(axis=-1)

    def heads_first(self, x, heads):
        return x.reshape(x.shape[0], x.shape[1], heads, self.head_dim).transpose(0, 2, 1, 3)

    def construct(self, x, bias, cos, sin):
        batch, length, _ = x.shape
        q = self.rotary(self.heads_first(self.q_proj(x), self.heads), cos, sin)
        k = self.rotary(self.heads_first(self.k_proj(x), self.kv_heads), cos, sin)
        v = self.heads_first(self.v_proj(x), self.kv_heads)
        # queries of one group stand in a row: [b, kv, group, l, d]
        q = q.reshape(batch, self.kv_heads, self.heads // self.kv_heads, length, self.head_dim)
        scores = ops.matmul(q, k.expand_dims(2).swapaxes(-1, -2)) / math.sqrt(self.head_dim)
        weights = self.softmax(scores + bias.expand_dims(2))
        out = ops.matmul(weights, v.expand_dims(2)).reshape(batch, self.heads, length, self.head_dim)
        return self.o_proj(out.transpose(0, 2, 1, 3).reshape(batch, length, -1))


class GatedFFN(nn.Cell):
    def __init__(self, width, inner, gate_multiplier, down_multiplier):
        super().__init__()
        self.gate_multiplier = gate_multiplier
        self.down_multiplier = down_multiplier
        self.gate = linear(width, inner)
        self.up = linear(width, inner)
        self.down = linear(inner, width)
        self.act = nn.SiLU()

    def construct(self, x):
        return self.down(self.act(self.gate(x) * self.gate_multiplier) * self.up(x)) * self.down_multiplier


class Block(nn.Cell):
    def __init__(self, kind, cfg):
        super().__init__()
        width, eps = cfg["width"], cfg["eps"]
        self.kind = kind
        self.scale = cfg["residual_multiplier"]
        self.norm1 = RMSNorm(width, eps)
        if kind == "attention":
            att = cfg["attention"]
            self.mixer = GroupedAttention(width, att["heads"], att["kv_heads"], att["head_dim"])
        elif kind == "mamba2":
            self.mixer = Mamba2(width, cfg["expand"], cfg["conv"], eps=eps, **cfg["mamba2"])
        else:
            self.mixer = Mamba(width, cfg["expand"], cfg["conv"], eps=eps, **cfg["mamba"])
        self.norm2 = RMSNorm(width, eps)
        self.ffn = GatedFFN(width, **cfg["ffn"])

    def construct(self, x, mask, bias, cos, sin):
        state = None
        if self.kind == "attention":
            y = self.mixer(self.norm1(x), bias, cos, sin)
        else:
            y, state = self.mixer(self.norm1(x), mask)
        x = x + self.scale * y
        x = x + self.scale * self.ffn(self.norm2(x))
        return x, state


class HybridLM(nn.Cell):
    """Logits of the next token, each sequence's mean loss, and the states after the last token."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        att = cfg["attention"]
        self.embed = nn.Embedding(cfg["vocab"], cfg["width"], embedding_table=Normal(0.25))
        self.blocks = nn.CellList([Block(kind, cfg) for kind in cfg["blocks"]])
        self.norm = RMSNorm(cfg["width"], cfg["eps"])
        rotary = int(att["head_dim"] * att["rotary_part"])
        self.inv_freq = Tensor(att["rope_base"] ** (-np.arange(0, rotary, 2) / rotary), ms.float32)
        self.window = att["window"]

    def angles(self, mask):
        places = ops.cumsum(mask.astype(ms.int32), axis=-1) - 1
        places = ops.masked_fill(places, mask == 0, 1)
        freqs = places[:, None, :, None].astype(ms.float32) * self.inv_freq
        return ops.cos(freqs), ops.sin(freqs)

    def attention_bias(self, mask):
        length = mask.shape[1]
        band = np.tril(np.ones((length, length), bool)) & ~np.tril(np.ones((length, length), bool), -self.window)
        allowed = ops.logical_and(Tensor(band)[None, None], mask[:, None, None, :].astype(ms.bool_))
        zero = ops.zeros(allowed.shape, ms.float32)
        return zero.masked_fill(ops.logical_not(allowed), float(np.finfo(np.float32).min))

    def loss(self, logits, ids, mask):
        log_probs = ops.log_softmax(logits[:, :-1], axis=-1)
        nll = -ops.gather_elements(log_probs, 2, ids[:, 1:].expand_dims(-1)).squeeze(-1)
        weight = mask[:, 1:].astype(nll.dtype)
        return (nll * weight).sum(axis=1) / ops.clamp(weight.sum(axis=1), min=1.0)

    def construct(self, ids, mask):
        x = self.embed(ids) * self.cfg["embedding_multiplier"]
        cos, sin = self.angles(mask)
        bias = self.attention_bias(mask)
        states = []
        for block in self.blocks:
            x, state = block(x, mask, bias, cos, sin)
            if state is not None:
                states.append(state.reshape(state.shape[0], -1))
        logits = ops.matmul(self.norm(x), self.embed.embedding_table.T) / self.cfg["logits_scaling"]
        return logits, self.loss(logits, ids, mask), ops.cat(states, axis=1)


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    ms.set_seed(5)
    return HybridLM(CONFIG).set_train(False)
