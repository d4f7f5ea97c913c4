"""A recurrent language model whose blocks take turns: selective state spaces, WKV time mixing, and chunked retention.

Everything between the projections is written out: taps, discretisation, the scans over time, rotary terms, decays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


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


def shift(x, steps=1):
    """Each token sees the one `steps` before it, the first ones see zeros."""
    head = x.new_zeros(x.shape[0], steps, x.shape[2])
    return torch.cat([head, x[:, :-steps]], dim=1)


def blend(x, past, mix):
    return past + mix * (x - past)


def causal_taps(x, weight, bias):
    """Depthwise causal convolution, one tap at a time; weight is (channels, taps), the last tap is the present."""
    length, taps = x.shape[1], weight.shape[1]
    padded = F.pad(x, (0, 0, taps - 1, 0))
    out = bias
    for i in range(taps):
        out = out + padded[:, i : i + length] * weight[:, i]
    return out


def unit(x, eps=1e-6):
    return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + eps)


def discretise(dt, a, b, u):
    """Zero-order hold: exp(dt A) and (exp(dt A) - 1) / A * B u, both (batch, length, channels, states)."""
    decay = torch.exp(torch.einsum("bld,dn->bldn", dt, a))
    gain = (decay - 1.0) / a
    return decay, gain * torch.einsum("bld,bln->bldn", u, b)


def linear_scan(decay, drive, readout):
    batch, length, channels, states = decay.shape
    h = decay.new_zeros(batch, channels, states)
    ys = []
    for t in range(length):
        h = decay[:, t] * h + drive[:, t]
        ys.append(torch.einsum("bdn,bn->bd", h, readout[:, t]))
    return torch.stack(ys, dim=1), h


def rotary_table(length, dim, base=100.0):
    inverse = base ** (-torch.arange(0, dim, 2).float() / dim)
    angle = torch.arange(length).float()[:, None] * inverse[None, :]
    return angle.sin(), angle.cos()


def rotate(x, sin, cos):
    """Turns the pairs (0, 1), (2, 3), ... of the last axis."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


class SelectiveSSM(nn.Module):
    """Mamba's mixer: the step, the input and the output matrices depend on the token."""

    def __init__(self, args: Args):
        super().__init__()
        self.rank, self.state = args.rank, args.state
        self.dt_min, self.dt_max = 0.05, 1.2
        self.in_proj = nn.Linear(args.width, 2 * args.inner, bias=False)
        self.taps = nn.Parameter(torch.randn(args.inner, args.taps) * 0.5)
        self.taps_bias = nn.Parameter(torch.randn(args.inner) * 0.1)
        self.x_proj = nn.Linear(args.inner, args.rank + 2 * args.state, bias=False)
        self.dt_proj = nn.Linear(args.rank, args.inner)
        self.a_log = nn.Parameter(torch.log(torch.arange(1, args.state + 1).float() / 3).repeat(args.inner, 1))
        self.skip = nn.Parameter(torch.empty(args.inner).uniform_(0.5, 1.5))
        self.out_proj = nn.Linear(args.inner, args.width, bias=False)

    def forward(self, x):
        u, z = self.in_proj(x).chunk(2, dim=-1)
        u = F.silu(causal_taps(u, self.taps, self.taps_bias))
        dt, b, c = self.x_proj(u).split([self.rank, self.state, self.state], dim=-1)
        b, c = unit(b), unit(c)
        dt = F.softplus(self.dt_proj(dt)).clamp(self.dt_min, self.dt_max)
        a = -torch.exp(self.a_log)
        decay, drive = discretise(dt, a, b, u)
        y, _ = linear_scan(decay, drive, c)
        y = y + self.skip * u
        y = y * F.silu(z)
        return self.out_proj(y)


class WKV(nn.Module):
    """RWKV-4's time mixing, with the running maximum that keeps the exponentials small."""

    def __init__(self, args: Args):
        super().__init__()
        width = args.width
        self.time_decay = nn.Parameter(torch.linspace(-2.5, 0.7, width))
        self.time_first = nn.Parameter(torch.randn(width) * 0.6)
        self.mix_k = nn.Parameter(torch.rand(width))
        self.mix_v = nn.Parameter(torch.rand(width))
        self.mix_r = nn.Parameter(torch.rand(width))
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.receptance = nn.Linear(width, width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def wkv(self, k, v):
        batch, length, width = k.shape
        decay = -torch.exp(self.time_decay)
        top = k.new_zeros(batch, width)
        bottom = k.new_zeros(batch, width)
        peak = k.new_full((batch, width), -1e38)
        out = []
        for t in range(length):
            kk, vv = k[:, t], v[:, t]
            ww = self.time_first + kk
            new = torch.maximum(peak, ww)
            e1, e2 = torch.exp(peak - new), torch.exp(ww - new)
            out.append((e1 * top + e2 * vv) / (e1 * bottom + e2))
            ww = peak + decay
            new = torch.maximum(ww, kk)
            e1, e2 = torch.exp(ww - new), torch.exp(kk - new)
            top = e1 * top + e2 * vv
            bottom = e1 * bottom + e2
            peak = new
        return torch.stack(out, dim=1)

    def forward(self, x):
        past = shift(x)
        k = self.key(blend(x, past, self.mix_k))
        v = self.value(blend(x, past, self.mix_v))
        r = torch.sigmoid(self.receptance(blend(x, past, self.mix_r)))
        return self.output(r * self.wkv(k, v))


class Retention(nn.Module):
    """RetNet's mixer in its chunked form: parallel inside a chunk, recurrent from chunk to chunk."""

    def __init__(self, args: Args):
        super().__init__()
        self.heads, self.chunk = args.heads, args.chunk
        self.dim = args.width // args.heads
        self.qkvg = nn.Linear(args.width, 4 * args.width, bias=False)
        self.gain = nn.Parameter(torch.empty(args.width).uniform_(0.6, 1.4))
        self.shift = nn.Parameter(torch.randn(args.width) * 0.1)
        self.out = nn.Linear(args.width, args.width, bias=False)
        fall = torch.exp(torch.linspace(math.log(1 / 3), math.log(1 / 24), args.heads))
        self.register_buffer("log_gamma", torch.log1p(-fall), persistent=False)
        sin, cos = rotary_table(args.max_len, self.dim)
        self.register_buffer("sin", sin, persistent=False)
        self.register_buffer("cos", cos, persistent=False)

    def decays(self, size):
        steps = torch.arange(size).float()
        gap = steps[:, None] - steps[None, :]
        rate = self.log_gamma[:, None, None]
        inner = torch.exp(gap.clamp(min=0) * rate) * (gap >= 0)
        cross = torch.exp((steps + 1)[:, None] * rate)
        carry = torch.exp((size - 1 - steps)[:, None] * rate)
        return inner, cross, carry, torch.exp(size * rate)

    def normalise(self, y, eps=1e-5):
        centred = y - y.mean(dim=-1, keepdim=True)
        return centred / torch.sqrt(centred.pow(2).mean(dim=-1, keepdim=True) + eps)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v, g = self.qkvg(x).chunk(4, dim=-1)
        q, k, v = (m.view(batch, length, self.heads, self.dim).transpose(1, 2) for m in (q, k, v))
        q = rotate(q, self.sin[:length], self.cos[:length])
        k = rotate(k, self.sin[:length], self.cos[:length]) * self.dim**-0.5
        memory = x.new_zeros(batch, self.heads, self.dim, self.dim)
        pieces = []
        for start in range(0, length, self.chunk):
            stop = min(start + self.chunk, length)
            qc, kc, vc = q[:, :, start:stop], k[:, :, start:stop], v[:, :, start:stop]
            inner, cross, carry, fade = self.decays(stop - start)
            near = (qc @ kc.transpose(-2, -1) * inner) @ vc
            far = (qc * cross) @ memory
            memory = memory * fade + (kc * carry).transpose(-2, -1) @ vc
            pieces.append(near + far)
        y = self.normalise(torch.cat(pieces, dim=2))
        y = y.transpose(1, 2).reshape(batch, length, width) * self.gain + self.shift
        return self.out(F.silu(g) * y)


class ChannelMix(nn.Module):
    """RWKV's perceptron: a squared relu behind a token shift, gated by the receptance."""

    def __init__(self, args: Args, steps: int):
        super().__init__()
        self.steps = steps
        self.mix_k = nn.Parameter(torch.rand(args.width))
        self.mix_r = nn.Parameter(torch.rand(args.width))
        self.key = nn.Linear(args.width, args.ffn, bias=False)
        self.value = nn.Linear(args.ffn, args.width, bias=False)
        self.receptance = nn.Linear(args.width, args.width, bias=False)

    def forward(self, x):
        past = shift(x, self.steps)
        k = self.key(blend(x, past, self.mix_k))
        r = self.receptance(blend(x, past, self.mix_r))
        k = torch.relu(k).square()
        return torch.sigmoid(r) * self.value(k)


MIXERS = {"s": SelectiveSSM, "w": WKV, "r": Retention}


class Block(nn.Module):
    def __init__(self, args: Args, kind: str, index: int):
        super().__init__()
        self.ln1 = nn.LayerNorm(args.width)
        self.mixer = MIXERS[kind](args)
        self.ln2 = nn.LayerNorm(args.width)
        self.ffn = ChannelMix(args, steps=1 + index % 2)
        self.scale_mixer = nn.Parameter(torch.empty(args.width).uniform_(0.5, 1.5))
        self.scale_ffn = nn.Parameter(torch.empty(args.width).uniform_(0.5, 1.5))

    def forward(self, x):
        x = x + self.scale_mixer * self.mixer(self.ln1(x))
        x = x + self.scale_ffn * self.ffn(self.ln2(x))
        return x


class RecurrentLM(nn.Module):
    """Blocks that are reminded of the embedding, a last norm, and logits that are capped softly."""

    def __init__(self, args: Args):
        super().__init__()
        self.cap = args.cap
        self.scale = math.sqrt(args.width)
        self.embed = nn.Embedding(args.vocab, args.width)
        self.blocks = nn.ModuleList([Block(args, kind, i) for i, kind in enumerate(args.layout)])
        self.keep = nn.Parameter(torch.empty(len(args.layout)).uniform_(0.8, 1.1))
        self.recall = nn.Parameter(torch.empty(len(args.layout)).uniform_(0.1, 0.4))
        self.norm = nn.Parameter(torch.empty(args.width).uniform_(0.6, 1.4))
        self.head = nn.Linear(args.width, args.vocab)

    def forward(self, tokens):
        x = self.embed(tokens) * self.scale
        first = x
        for i, block in enumerate(self.blocks):
            x = self.keep[i] * x + self.recall[i] * first
            x = block(x)
        logits = self.head(unit(x, eps=1e-5) * self.norm)
        return self.cap * torch.tanh(logits / self.cap)


def build():
    """The net with the same weights on every run, and a batch of two sentences."""
    torch.manual_seed(23)
    net = RecurrentLM(Args())
    nn.init.normal_(net.embed.weight, std=0.12)
    for name, module in net.named_modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=1.3 / math.sqrt(module.in_features))
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.2)
    return net.eval(), (torch.randint(0, 96, (2, 20)),)
