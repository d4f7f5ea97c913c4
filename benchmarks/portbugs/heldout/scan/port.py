"""The recurrent language model in MindSpore: the correct port."""

from __future__ import annotations

import math
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops


@dataclass
class Args:
    vocab: int = 96
    width: int = 32
    inner: int = 48
    state: int = 6
    rank: int = 4
    taps: int = 4
    heads: int = 4
    chunk: int = 6
    max_len: int = 64
    ffn: int = 72
    layout: str = "swrs"
    cap: float = 6.0


def uniform(low, high, *shape):
    return Parameter(Tensor(np.random.uniform(low, high, shape).astype(np.float32)))


def shift(x, steps=1):
    """Each token sees the one `steps` before it, the first ones see zeros."""
    batch, length, width = x.shape
    head = ops.zeros((batch, steps, width), x.dtype)
    return ops.concat([head, x[:, : length - steps]], axis=1)


def blend(x, past, mix):
    return past + mix * (x - past)


def causal_taps(x, weight, bias):
    """Depthwise causal convolution, one tap at a time; weight is (channels, taps), the last tap is the present."""
    batch, length, width = x.shape
    taps = weight.shape[1]
    padded = ops.concat([ops.zeros((batch, taps - 1, width), x.dtype), x], axis=1)
    out = bias
    for i in range(taps):
        out = out + padded[:, i : i + length] * weight[:, i]
    return out


def unit(x, eps=1e-6):
    return x * ops.rsqrt(ops.square(x).mean(-1, keep_dims=True) + eps)


def discretise(dt, a, b, u):
    """Zero-order hold: exp(dt A) and (exp(dt A) - 1) / A * B u, both (batch, length, channels, states)."""
    decay = ops.exp(dt.expand_dims(-1) * a)
    gain = (decay - 1.0) / a
    return decay, gain * u.expand_dims(-1) * b.expand_dims(2)


def linear_scan(decay, drive, readout):
    batch, length, channels, states = decay.shape
    h = ops.zeros((batch, channels, states), decay.dtype)
    ys = []
    for t in range(length):
        h = decay[:, t] * h + drive[:, t]
        ys.append(ops.matmul(h, readout[:, t].expand_dims(-1)).squeeze(-1))
    return ops.stack(ys, axis=1), h


def rotary_table(length, dim, base=100.0):
    inverse = base ** (-np.arange(0, dim, 2).astype(np.float32) / dim)
    angle = np.outer(np.arange(length).astype(np.float32), inverse)
    return Tensor(np.sin(angle).astype(np.float32)), Tensor(np.cos(angle).astype(np.float32))


def rotate(x, sin, cos):
    """Turns the pairs (0, 1), (2, 3), ... of the last axis."""
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = ops.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    return turned.reshape(x.shape)


class SelectiveSSM(nn.Cell):
    """Mamba's mixer: the step, the input and the output matrices depend on the token."""

    def __init__(self, args: Args):
        super().__init__()
        self.rank, self.state = args.rank, args.state
        self.dt_min, self.dt_max = 0.05, 1.2
        self.in_proj = nn.Dense(args.width, 2 * args.inner, has_bias=False)
        self.taps = uniform(-0.5, 0.5, args.inner, args.taps)
        self.taps_bias = uniform(-0.1, 0.1, args.inner)
        self.x_proj = nn.Dense(args.inner, args.rank + 2 * args.state, has_bias=False)
        self.dt_proj = nn.Dense(args.rank, args.inner)
        start = np.log(np.arange(1, args.state + 1) / 3).astype(np.float32)
        self.a_log = Parameter(Tensor(np.tile(start, (args.inner, 1))))
        self.skip = uniform(0.5, 1.5, args.inner)
        self.out_proj = nn.Dense(args.inner, args.width, has_bias=False)

    def construct(self, x):
        u, z = self.in_proj(x).chunk(2, axis=-1)
        u = ops.silu(causal_taps(u, self.taps, self.taps_bias))
        dt, b, c = ops.split(self.x_proj(u), [self.rank, self.state, self.state], axis=-1)
        b, c = unit(b), unit(c)
        dt = ops.clamp(ops.softplus(self.dt_proj(dt)), self.dt_min, self.dt_max)
        a = -ops.exp(self.a_log)
        decay, drive = discretise(dt, a, b, u)
        y, _ = linear_scan(decay, drive, c)
        y = y + self.skip * u
        y = y * ops.silu(z)
        return self.out_proj(y)


class WKV(nn.Cell):
    """RWKV-4's time mixing, with the running maximum that keeps the exponentials small."""

    def __init__(self, args: Args):
        super().__init__()
        width = args.width
        self.time_decay = Parameter(Tensor(np.linspace(-2.5, 0.7, width).astype(np.float32)))
        self.time_first = uniform(-1, 1, width)
        self.mix_k = uniform(0, 1, width)
        self.mix_v = uniform(0, 1, width)
        self.mix_r = uniform(0, 1, width)
        self.key = nn.Dense(width, width, has_bias=False)
        self.value = nn.Dense(width, width, has_bias=False)
        self.receptance = nn.Dense(width, width, has_bias=False)
        self.output = nn.Dense(width, width, has_bias=False)

    def wkv(self, k, v):
        batch, length, width = k.shape
        decay = -ops.exp(self.time_decay)
        top = ops.zeros((batch, width), ms.float32)
        bottom = ops.zeros((batch, width), ms.float32)
        peak = ops.full((batch, width), -1e38, dtype=ms.float32)
        out = []
        for t in range(length):
            kk, vv = k[:, t], v[:, t]
            ww = self.time_first + kk
            new = ops.maximum(peak, ww)
            e1, e2 = ops.exp(peak - new), ops.exp(ww - new)
            out.append((e1 * top + e2 * vv) / (e1 * bottom + e2))
            ww = peak + decay
            new = ops.maximum(ww, kk)
            e1, e2 = ops.exp(ww - new), ops.exp(kk - new)
            top = e1 * top + e2 * vv
            bottom = e1 * bottom + e2
            peak = new
        return ops.stack(out, axis=1)

    def construct(self, x):
        past = shift(x)
        k = self.key(blend(x, past, self.mix_k))
        v = self.value(blend(x, past, self.mix_v))
        r = ops.sigmoid(self.receptance(blend(x, past, self.mix_r)))
        return self.output(r * self.wkv(k, v))


class Retention(nn.Cell):
    """RetNet's mixer in its chunked form: parallel inside a chunk, recurrent from chunk to chunk."""

    def __init__(self, args: Args):
        super().__init__()
        self.heads, self.chunk = args.heads, args.chunk
        self.dim = args.width // args.heads
        self.qkvg = nn.Dense(args.width, 4 * args.width, has_bias=False)
        self.gain = uniform(0.6, 1.4, args.width)
        self.shift = uniform(-0.1, 0.1, args.width)
        self.out = nn.Dense(args.width, args.width, has_bias=False)
        fall = np.exp(np.linspace(math.log(1 / 3), math.log(1 / 24), args.heads))
        self.log_gamma = Tensor(np.log1p(-fall).astype(np.float32))
        self.sin, self.cos = rotary_table(args.max_len, self.dim)

    def decays(self, size):
        steps = ops.arange(size).astype(ms.float32)
        gap = steps.expand_dims(1) - steps.expand_dims(0)
        rate = self.log_gamma.reshape(-1, 1, 1)
        inner = ops.exp(ops.relu(gap) * rate) * (gap >= 0).astype(ms.float32)
        cross = ops.exp((steps + 1).expand_dims(1) * rate)
        carry = ops.exp((size - 1 - steps).expand_dims(1) * rate)
        return inner, cross, carry, ops.exp(size * rate)

    def normalise(self, y, eps=1e-5):
        centred = y - y.mean(-1, keep_dims=True)
        return centred / ops.sqrt(ops.square(centred).mean(-1, keep_dims=True) + eps)

    def construct(self, x):
        batch, length, width = x.shape
        q, k, v, g = self.qkvg(x).chunk(4, axis=-1)
        q, k, v = (m.reshape(batch, length, self.heads, self.dim).swapaxes(1, 2) for m in (q, k, v))
        sin, cos = self.sin[:length], self.cos[:length]
        q = rotate(q, sin, cos)
        k = rotate(k, sin, cos) * self.dim**-0.5
        memory = ops.zeros((batch, self.heads, self.dim, self.dim), x.dtype)
        pieces = []
        for start in range(0, length, self.chunk):
            stop = min(start + self.chunk, length)
            qc, kc, vc = q[:, :, start:stop], k[:, :, start:stop], v[:, :, start:stop]
            inner, cross, carry, fade = self.decays(stop - start)
            near = ops.matmul(ops.matmul(qc, kc.swapaxes(-2, -1)) * inner, vc)
            far = ops.matmul(qc * cross, memory)
            memory = memory * fade + ops.matmul((kc * carry).swapaxes(-2, -1), vc)
            pieces.append(near + far)
        y = self.normalise(ops.concat(pieces, axis=2))
        y = y.swapaxes(1, 2).reshape(batch, length, width) * self.gain + self.shift
        return self.out(ops.silu(g) * y)


class ChannelMix(nn.Cell):
    """RWKV's perceptron: a squared relu behind a token shift, gated by the receptance."""

    def __init__(self, args: Args, steps: int):
        super().__init__()
        self.steps = steps
        self.mix_k = uniform(0, 1, args.width)
        self.mix_r = uniform(0, 1, args.width)
        self.key = nn.Dense(args.width, args.ffn, has_bias=False)
        self.value = nn.Dense(args.ffn, args.width, has_bias=False)
        self.receptance = nn.Dense(args.width, args.width, has_bias=False)

    def construct(self, x):
        past = shift(x, self.steps)
        k = self.key(blend(x, past, self.mix_k))
        r = self.receptance(blend(x, past, self.mix_r))
        k = ops.square(ops.relu(k))
        return ops.sigmoid(r) * self.value(k)


MIXERS = {"s": SelectiveSSM, "w": WKV, "r": Retention}


class Block(nn.Cell):
    def __init__(self, args: Args, kind: str, index: int):
        super().__init__()
        self.ln1 = nn.LayerNorm((args.width,), epsilon=1e-5)
        self.mixer = MIXERS[kind](args)
        self.ln2 = nn.LayerNorm((args.width,), epsilon=1e-5)
        self.ffn = ChannelMix(args, steps=1 + index % 2)
        self.scale_mixer = uniform(0.5, 1.5, args.width)
        self.scale_ffn = uniform(0.5, 1.5, args.width)

    def construct(self, x):
        x = x + self.scale_mixer * self.mixer(self.ln1(x))
        x = x + self.scale_ffn * self.ffn(self.ln2(x))
        return x


class RecurrentLM(nn.Cell):
    """Blocks that are reminded of the embedding, a last norm, and logits that are capped softly."""

    def __init__(self, args: Args):
        super().__init__()
        self.cap = args.cap
        self.scale = math.sqrt(args.width)
        self.embed = nn.Embedding(args.vocab, args.width)
        self.blocks = nn.CellList([Block(args, kind, i) for i, kind in enumerate(args.layout)])
        self.keep = uniform(0.8, 1.1, len(args.layout))
        self.recall = uniform(0.1, 0.4, len(args.layout))
        self.norm = uniform(0.6, 1.4, args.width)
        self.head = nn.Dense(args.width, args.vocab)

    def construct(self, tokens):
        x = self.embed(tokens) * self.scale
        first = x
        for i, block in enumerate(self.blocks):
            x = self.keep[i] * x + self.recall[i] * first
            x = block(x)
        logits = self.head(unit(x, eps=1e-5) * self.norm)
        return self.cap * ops.tanh(logits / self.cap)


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return RecurrentLM(Args())
