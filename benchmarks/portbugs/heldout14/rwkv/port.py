"""The recurrent language model in the manner of RWKV-6 with layers of retention, in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

KINDS = ("wkv", "retention", "wkv", "wkv")


def weight(*shape):
    """A parameter that the checkpoint fills."""
    return Parameter(Tensor(np.random.uniform(-0.3, 0.3, shape), ms.float32))


def linear(inner, outer):
    return nn.Dense(inner, outer, has_bias=False)


def shifted(x, last):
    """The sequence one place later, with the last token of the call before in front."""
    front = ops.expand_dims(last, 1)
    if x.shape[1] == 1:
        return front
    return mint.cat((front, x[:, :-1]), dim=1)


class WKV(nn.Cell):
    """The linear attention with a decay for every channel; in chunks for a prompt, one by one for a step."""

    def __init__(self, chunk):
        super().__init__()
        self.chunk = chunk
        earlier = np.tril(np.ones((chunk, chunk)), -1)
        self.earlier = Tensor(earlier[:, :, None], ms.bool_)
        self.eye = Tensor(np.eye(chunk), ms.float32)

    def single(self, r, k, v, logw, u, state):
        kv = ops.matmul(k.swapaxes(-1, -2), v)
        y = ops.matmul(r, state + u.expand_dims(-1) * kv)
        return y, ops.exp(logw).swapaxes(-1, -2) * state + kv

    def construct(self, r, k, v, logw, u, state):
        b, h, length, n = r.shape
        if length == 1:
            return self.single(r, k, v, logw, u, state)
        count = (length + self.chunk - 1) // self.chunk
        missing = count * self.chunk - length
        if missing:
            room = (0, 0, 0, missing)
            r, k, v, logw = ops.pad(r, room), ops.pad(k, room), ops.pad(v, room), ops.pad(logw, room)
        grid = (b, h, count, self.chunk, n)
        r, k, v, logw = r.reshape(grid), k.reshape(grid), v.reshape(grid), logw.reshape(grid)

        after = ops.cumsum(logw, 3)
        before = after - logw
        total = after[:, :, :, -1:]

        # all pairs of a chunk, for all chunks at once
        gap = before.expand_dims(4) - after.expand_dims(3)
        decay = ops.exp(ops.masked_fill(gap, ops.logical_not(self.earlier), -float("inf")))
        pairs = (r.expand_dims(4) * k.expand_dims(3) * decay).sum(axis=-1)
        own = (r * k * u.reshape(1, h, 1, 1, n)).sum(axis=-1)
        pairs = pairs + own.expand_dims(-1) * self.eye
        inside = ops.matmul(pairs, v)

        # what is read from the chunks before
        query = r * ops.exp(before)
        fresh = ops.matmul((k * ops.exp(total - after)).swapaxes(-1, -2), v)
        kept = ops.exp(total).swapaxes(-1, -2)
        across = []
        for i in range(count):
            across.append(ops.matmul(query[:, :, i], state))
            state = kept[:, :, i] * state + fresh[:, :, i]
        y = inside + ops.stack(across, axis=2)
        return y.reshape(b, h, count * self.chunk, n)[:, :, :length], state


class RWKVTimeMix(nn.Cell):
    def __init__(self, width, heads, mix_rank, decay_rank, chunk, head_divisor):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.time_maa_x = weight(1, 1, width)
        self.time_maa_w = weight(1, 1, width)
        self.time_maa_k = weight(1, 1, width)
        self.time_maa_v = weight(1, 1, width)
        self.time_maa_r = weight(1, 1, width)
        self.time_maa_g = weight(1, 1, width)
        self.time_maa_w1 = weight(width, 5 * mix_rank)
        self.time_maa_w2 = weight(5, mix_rank, width)
        self.time_decay = weight(1, 1, width)
        self.time_decay_w1 = weight(width, decay_rank)
        self.time_decay_w2 = weight(decay_rank, width)
        self.time_first = weight(heads, width // heads)
        self.receptance = linear(width, width)
        self.key = linear(width, width)
        self.value = linear(width, width)
        self.gate = linear(width, width)
        self.output = linear(width, width)
        self.group_norm = nn.GroupNorm(heads, width, eps=1e-5 * head_divisor**2)
        self.wkv = WKV(chunk)

    def interpolate(self, x, delta):
        """The five inputs, each its own mixture of a token and the one before."""
        b, t, width = x.shape
        low = ops.tanh(ops.matmul(x + delta * self.time_maa_x, self.time_maa_w1))
        low = low.reshape(b, t, 5, -1).transpose(2, 0, 1, 3).reshape(5, b * t, -1)
        learnt = mint.bmm(low, self.time_maa_w2).reshape(5, b, t, width)
        bases = (self.time_maa_w, self.time_maa_k, self.time_maa_v, self.time_maa_r, self.time_maa_g)
        return [x + delta * (base + learnt[i]) for i, base in enumerate(bases)]

    def heads_first(self, x):
        b, t, _ = x.shape
        return x.reshape(b, t, self.heads, self.size).transpose(0, 2, 1, 3)

    def construct(self, x, mask, state):
        b, t, width = x.shape
        if state is None:
            last = ops.zeros((b, width), x.dtype)
            memory = ops.zeros((b, self.heads, self.size, self.size), x.dtype)
        else:
            last, memory = state
        xw, xk, xv, xr, xg = self.interpolate(x, shifted(x, last) - x)

        there = mask.expand_dims(-1)
        decay = self.time_decay + ops.matmul(ops.tanh(ops.matmul(xw, self.time_decay_w1)), self.time_decay_w2)
        logw = self.heads_first(-ops.exp(decay) * there)
        r = self.heads_first(self.receptance(xr))
        k = self.heads_first(self.key(xk) * there)
        v = self.heads_first(self.value(xv))
        y, memory = self.wkv(r, k, v, logw, self.time_first, memory)

        y = y.transpose(0, 2, 1, 3).reshape(b * t, width)
        y = self.group_norm(y).reshape(b, t, width)
        y = y * ops.silu(self.gate(xg))
        return self.output(y), (x[:, -1], memory)


class RelativePositions(nn.Cell):
    """Tables of the rotation and of the decays of the heads."""

    def __init__(self, size, heads):
        super().__init__()
        angle = 1.0 / (10000 ** np.linspace(0, 1, size // 2))
        self.angle = Tensor(np.repeat(angle, 2), ms.float32)
        self.log_decay = Tensor(np.log(1 - 2.0 ** (-2 - np.arange(heads))), ms.float32)

    def rotation(self, positions):
        index = positions.expand_dims(-1) * self.angle
        return ops.sin(index).expand_dims(1), ops.cos(index).expand_dims(1)

    def construct(self, mask):
        length = mask.shape[1]
        row = Tensor(np.arange(length), ms.float32)
        gap = row.expand_dims(1) - row.expand_dims(0)
        decay = ops.exp(ops.relu(gap) * self.log_decay.reshape(-1, 1, 1)) * (gap >= 0).astype(ms.float32)
        weights = decay.expand_dims(0) * mask[:, None, None, :]
        scale = ops.clamp(weights.sum(axis=-1, keepdims=True), min=1.0)
        return weights / ops.sqrt(scale), scale[:, :, -1, 0]


def rotate(x, sin, cos):
    """Neighbouring channels are the two sides of a plane."""
    pair = x.reshape(x.shape[:-1] + (-1, 2))
    turned = ops.stack((-pair[..., 1], pair[..., 0]), axis=-1).reshape(x.shape)
    return x * cos + turned * sin


class HeadNorm(nn.Cell):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps

    def construct(self, x):
        return x * ops.rsqrt(ops.square(x).mean(axis=-1, keep_dims=True) + self.eps)


class Retention(nn.Cell):
    def __init__(self, width, heads, factor=2):
        super().__init__()
        self.heads = heads
        self.scaling = (width // heads) ** -0.5
        self.q_proj = linear(width, width)
        self.k_proj = linear(width, width)
        self.v_proj = linear(width, width * factor)
        self.g_proj = linear(width, width * factor)
        self.out_proj = linear(width * factor, width)
        self.norm = HeadNorm()

    def heads_first(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.heads, -1).transpose(0, 2, 1, 3)

    def construct(self, x, rotation, inner, state):
        b, t, _ = x.shape
        sin, cos = rotation
        q = rotate(self.heads_first(self.q_proj(x)), sin, cos)
        k = rotate(self.heads_first(self.k_proj(x) * self.scaling), sin, cos)
        v = self.heads_first(self.v_proj(x))
        if state is None:
            weights, scale = inner
            scores = ops.matmul(q, k.swapaxes(-1, -2)) * weights
            scores = scores / ops.clamp(ops.abs(scores).sum(axis=-1, keepdims=True), min=1.0, max=5e4)
            out = ops.matmul(scores, v)
            last = weights[:, :, -1].expand_dims(-1)
            memory = ops.matmul((k * last).swapaxes(-1, -2), v)
        else:
            memory, before = state
            scale = before * inner + 1
            keep = ops.sqrt(before) * inner / ops.sqrt(scale)
            fresh = ops.matmul(k.swapaxes(-1, -2), v)
            memory = memory * keep[:, :, None, None] + fresh / ops.sqrt(scale)[:, :, None, None]
            out = ops.matmul(q, memory)
        out = self.norm(out.transpose(0, 2, 1, 3)).reshape(b, t, -1)
        return self.out_proj(ops.silu(self.g_proj(x)) * out), (memory, scale)


class RWKVChannelMix(nn.Cell):
    def __init__(self, width, hidden):
        super().__init__()
        self.time_maa_k = weight(1, 1, width)
        self.time_maa_r = weight(1, 1, width)
        self.key = linear(width, hidden)
        self.receptance = linear(width, width)
        self.value = linear(hidden, width)

    def construct(self, x, last):
        if last is None:
            last = ops.zeros_like(x[:, 0])
        delta = shifted(x, last) - x
        gate = ops.sigmoid(self.receptance(x + delta * self.time_maa_r))
        hidden = ops.square(ops.relu(self.key(x + delta * self.time_maa_k)))
        return gate * self.value(hidden), x[:, -1]


class RWKVBlock(nn.Cell):
    def __init__(self, layer, width, heads, hidden, rescale_every):
        super().__init__()
        self.is_wkv = KINDS[layer] == "wkv"
        self.damp = 1.0 / 2 ** (layer // rescale_every)
        self.halve = (layer + 1) % rescale_every == 0
        self.ln1 = nn.LayerNorm((width,), epsilon=1e-5)
        self.ln2 = nn.LayerNorm((width,), epsilon=1e-5)
        if self.is_wkv:
            self.attention = RWKVTimeMix(width, heads, mix_rank=6, decay_rank=10, chunk=5, head_divisor=8)
        else:
            self.attention = Retention(width, heads)
        self.feed_forward = RWKVChannelMix(width, hidden)

    def construct(self, x, mask, rotation, inner, state):
        there = mask.expand_dims(-1)
        memory, last = state
        if self.is_wkv:
            y, memory = self.attention(self.ln1(x) * there, mask, memory)
        else:
            y, memory = self.attention(self.ln1(x) * there, rotation, inner, memory)
        x = x + y * self.damp
        y, last = self.feed_forward(self.ln2(x) * there, last)
        x = x + y * self.damp
        if self.halve:
            x = x * 0.5
        return x, (memory, last)


class Sampler(nn.Cell):
    """Chooses words: penalties, temperature, nucleus, and a threshold in place of chance."""

    def __init__(self, temperature=0.9, top_p=0.85, presence=0.4, frequency=0.3):
        super().__init__()
        self.temperature, self.top_p = temperature, top_p
        self.presence, self.frequency = presence, frequency

    def construct(self, logits, counts, draw):
        seen = (counts > 0).astype(ms.float32)
        logits = logits - self.presence * seen - self.frequency * counts
        probs, order = ops.topk(ops.softmax(logits / self.temperature, axis=-1), logits.shape[-1])
        smaller = ops.cumsum(probs, -1) - probs
        probs = ops.select(smaller < self.top_p, probs, ops.zeros_like(probs))
        total = ops.cumsum(probs, -1) / probs.sum(axis=-1, keepdims=True)
        rank = (total <= draw.expand_dims(-1)).astype(ms.int32).sum(axis=-1, keepdims=True)
        rank = ops.minimum(rank, logits.shape[-1] - 1)
        return ops.gather_elements(order, 1, rank)


class RWKVForCausalLM(nn.Cell):
    def __init__(self, vocab=61, width=48, heads=4, hidden=112, rescale_every=2, soft_cap=8.0, penalty_decay=0.9):
        super().__init__()
        self.vocab, self.soft_cap, self.penalty_decay = vocab, soft_cap, penalty_decay
        self.embeddings = nn.Embedding(vocab, width)
        self.pre_ln = nn.LayerNorm((width,), epsilon=1e-5)
        self.positions = RelativePositions(width // heads, heads)
        self.blocks = nn.CellList([RWKVBlock(i, width, heads, hidden, rescale_every) for i in range(len(KINDS))])
        self.ln_out = nn.LayerNorm((width,), epsilon=1e-5)
        self.head = linear(width, vocab)
        self.sampler = Sampler()

    def body(self, tokens, mask, rotation, inner, states):
        x = self.pre_ln(self.embeddings(tokens))
        after = []
        for block, state in zip(self.blocks, states):
            x, state = block(x, mask, rotation, inner, state)
            after.append(state)
        logits = self.head(self.ln_out(x))
        return self.soft_cap * ops.tanh(logits / self.soft_cap), after

    def add_counts(self, counts, words, amount):
        return ops.tensor_scatter_elements(counts, words, amount, axis=1, reduction="add")

    def bits_per_word(self, logits, tokens, mask):
        logp = ops.log_softmax(logits[:, :-1], axis=-1)
        picked = ops.gather_elements(logp, 2, tokens[:, 1:].expand_dims(-1)).squeeze(-1)
        valid = mask[:, 1:] * mask[:, :-1]
        return -(picked * valid).sum(axis=1) / valid.sum(axis=1) / math.log(2)

    def construct(self, tokens, mask, draws):
        batch = tokens.shape[0]
        place = ops.clamp(ops.cumsum(mask, 1) - 1, min=0)
        empty = [(None, None) for _ in KINDS]
        prompt, states = self.body(tokens, mask, self.positions.rotation(place), self.positions(mask), empty)
        bits = self.bits_per_word(prompt, tokens, mask)

        counts = self.add_counts(ops.zeros((batch, self.vocab), ms.float32), tokens, mask)
        length = mask.sum(axis=1, keepdims=True)
        one = ops.ones((batch, 1), ms.float32)
        decay = ops.exp(self.positions.log_decay)
        logits = prompt[:, -1]
        words, steps = [], []
        for i in range(draws.shape[1]):
            word = self.sampler(logits, counts, draws[:, i])
            counts = self.add_counts(counts * self.penalty_decay, word, one)
            rotation = self.positions.rotation(length + i)
            out, states = self.body(word, one, rotation, decay, states)
            logits = out.squeeze(1)
            words.append(word)
            steps.append(logits)
        return prompt * mask.expand_dims(-1), bits, mint.cat(words, dim=1), ops.stack(steps, axis=1)


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return RWKVForCausalLM()
