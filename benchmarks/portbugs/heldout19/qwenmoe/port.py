"""The mixture-of-experts language model with greedy generation in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import nn, ops

LOWEST = float(np.finfo(np.float32).min)

SETTINGS = dict(
    vocab=67,
    width=40,
    layer_kinds=("sliding", "full", "sliding", "full"),
    heads=6,
    kv_heads=2,
    head_dim=12,
    num_experts=5,
    top_k=2,
    expert_width=22,
    shared_width=30,
    eps=1e-5,
    window=5,
    max_position=256,
    rope=dict(base=1000.0, factor=4.0, original=64, beta_fast=8.0, beta_slow=1.0),
    pad_id=1,
    eos_id=40,
    new_tokens=3,
    penalty=1.3,
)


def rope_tables(dim, max_position, base, factor=None, original=None, beta_fast=None, beta_slow=None):
    """Cosine and sine of every position; with a factor they are scaled as YaRN does it."""
    inv_freq = 1.0 / base ** (np.arange(0, dim, 2, dtype=np.float32) / dim)
    mscale = 1.0
    if factor is not None:

        def turns_to_dim(turns):
            return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

        low = max(math.floor(turns_to_dim(beta_fast)), 0)
        high = min(math.ceil(turns_to_dim(beta_slow)), dim - 1)
        ramp = np.clip((np.arange(dim // 2, dtype=np.float32) - low) / max(high - low, 0.001), 0, 1)
        inv_freq = inv_freq / factor * ramp + inv_freq * (1 - ramp)
        mscale = 0.1 * math.log(factor) + 1.0
    angles = np.outer(np.arange(max_position, dtype=np.float32), inv_freq.astype(np.float32))
    angles = np.concatenate([angles, angles], axis=-1)
    return (
        ms.Tensor((np.cos(angles) * mscale).astype(np.float32)),
        ms.Tensor((np.sin(angles) * mscale).astype(np.float32)),
    )


def rotate(x, cos, sin):
    """x of shape (batch, heads, length, dim), the tables (batch, length, dim)."""
    first, second = ops.chunk(x, 2, axis=-1)
    turned = ops.cat((-second, first), axis=-1)
    return x * cos.expand_dims(1) + turned * sin.expand_dims(1)


def visible_keys(attention_mask, q_len, kv_len, window=None):
    """True where a query sees a key: (batch, 1, q_len, kv_len), for the last slots of the sequence."""
    total = attention_mask.shape[1]
    q_slot = ops.arange(total - q_len, total).expand_dims(1)
    k_slot = ops.arange(total - kv_len, total).expand_dims(0)
    seen = q_slot >= k_slot
    if window is not None:
        seen = ops.logical_and(seen, q_slot - k_slot < window)
    not_padded = attention_mask[:, total - kv_len :] > 0
    return ops.logical_and(seen.expand_dims(0), not_padded.expand_dims(1)).expand_dims(1)


class RMSNorm(nn.Cell):
    """Root mean square norm, in float32 inside."""

    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = ms.Parameter(ops.ones(width), name="weight")

    def construct(self, x):
        dtype = x.dtype
        x = x.astype(ms.float32)
        x = x * ops.rsqrt(ops.square(x).mean(axis=-1, keep_dims=True) + self.eps)
        return self.weight * x.astype(dtype)


class Attention(nn.Cell):
    """Grouped-query attention; gives the cache of its layer back."""

    def __init__(self, cfg, kind):
        super().__init__()
        width, self.heads, self.kv_heads, self.head_dim = cfg["width"], cfg["heads"], cfg["kv_heads"], cfg["head_dim"]
        self.groups = self.heads // self.kv_heads
        self.scale = self.head_dim**-0.5
        self.keep = cfg["window"] - 1 if kind == "sliding" else None
        self.wq = nn.Dense(width, self.heads * self.head_dim)
        self.wk = nn.Dense(width, self.kv_heads * self.head_dim)
        self.wv = nn.Dense(width, self.kv_heads * self.head_dim)
        self.wo = nn.Dense(self.heads * self.head_dim, width)
        self.q_norm = RMSNorm(self.head_dim, cfg["eps"])
        self.k_norm = RMSNorm(self.head_dim, cfg["eps"])

    def construct(self, x, rope, visible, cache=None):
        batch, length, _ = x.shape
        q = self.wq(x).reshape(batch, length, self.heads, self.head_dim)
        k = self.wk(x).reshape(batch, length, self.kv_heads, self.head_dim)
        v = self.wv(x).reshape(batch, length, self.kv_heads, self.head_dim).swapaxes(1, 2)
        q = rotate(self.q_norm(q).swapaxes(1, 2), *rope)
        k = rotate(self.k_norm(k).swapaxes(1, 2), *rope)

        if cache is not None:
            k = ops.cat((cache[0], k), axis=2)
            v = ops.cat((cache[1], v), axis=2)
        cache = (k, v) if self.keep is None else (k[:, :, -self.keep :], v[:, :, -self.keep :])

        k = ops.repeat_interleave(k, self.groups, axis=1)
        v = ops.repeat_interleave(v, self.groups, axis=1)
        scores = ops.matmul(q, k.swapaxes(-1, -2)) * self.scale
        scores = scores.masked_fill(ops.logical_not(visible), LOWEST)
        out = ops.matmul(ops.softmax(scores, axis=-1), v)
        out = out.swapaxes(1, 2).reshape(batch, length, self.heads * self.head_dim)
        return self.wo(out), cache


class Expert(nn.Cell):
    """Gated perceptron of one expert."""

    def __init__(self, width, hidden):
        super().__init__()
        self.gate = nn.Dense(width, hidden, has_bias=False)
        self.up = nn.Dense(width, hidden, has_bias=False)
        self.down = nn.Dense(hidden, width, has_bias=False)
        self.act = nn.SiLU()

    def construct(self, x):
        return self.down(self.act(self.gate(x)) * self.up(x))


class SharedExpert(nn.Cell):
    """The expert of all tokens, with gate and up in one matrix."""

    def __init__(self, width, hidden):
        super().__init__()
        self.gate_up = nn.Dense(width, 2 * hidden, has_bias=False)
        self.down = nn.Dense(hidden, width, has_bias=False)
        self.silu = nn.SiLU()

    def construct(self, x):
        gate, up = ops.chunk(self.gate_up(x), 2, axis=-1)
        return self.down(self.silu(gate) * up)


class MoE(nn.Cell):
    """Router, experts, shared expert."""

    def __init__(self, cfg):
        super().__init__()
        self.top_k = cfg["top_k"]
        self.router = nn.Dense(cfg["width"], cfg["num_experts"], has_bias=False)
        self.experts = nn.CellList([Expert(cfg["width"], cfg["expert_width"]) for _ in range(cfg["num_experts"])])
        self.shared = SharedExpert(cfg["width"], cfg["shared_width"])
        self.shared_gate = nn.Dense(cfg["width"], 1, has_bias=False)

    def route(self, tokens):
        logits = self.router(tokens)
        probs = ops.softmax(logits.astype(ms.float32), axis=-1)
        weights, chosen = ops.topk(probs, self.top_k, dim=-1)
        weights = weights / weights.sum(axis=-1, keepdims=True)
        return logits, weights.astype(tokens.dtype), chosen

    def construct(self, x):
        tokens = x.reshape(-1, x.shape[-1])
        logits, weights, chosen = self.route(tokens)

        mixed = ops.zeros_like(tokens)
        chosen = chosen.swapaxes(0, 1)
        for number, expert in enumerate(self.experts):
            hits = ops.nonzero(chosen == number)
            if hits.shape[0] == 0:
                continue
            slots, rows = hits[:, 0], hits[:, 1]
            part = expert(tokens[rows]) * weights[rows, slots].expand_dims(-1)
            mixed = ops.index_add(mixed, rows.astype(ms.int32), part, 0)

        shared = self.shared(tokens)
        mixed = mixed + ops.sigmoid(self.shared_gate(tokens)) * shared
        return mixed.reshape(x.shape), logits


class DecoderLayer(nn.Cell):
    """Attention and experts, each behind its norm."""

    def __init__(self, cfg, kind):
        super().__init__()
        self.kind = kind
        self.norm1 = RMSNorm(cfg["width"], cfg["eps"])
        self.attention = Attention(cfg, kind)
        self.norm2 = RMSNorm(cfg["width"], eps=cfg["eps"])
        self.moe = MoE(cfg)

    def construct(self, x, rope, visible, cache=None):
        attended, cache = self.attention(self.norm1(x), rope, visible, cache)
        x = x + attended
        mixed, router_logits = self.moe(self.norm2(x))
        return x + mixed, router_logits, cache


class Decoder(nn.Cell):
    """Embedding, layers, last norm. The caches are handed in and out as a list."""

    def __init__(self, cfg):
        super().__init__()
        self.window = cfg["window"]
        self.embed = nn.Embedding(cfg["vocab"], cfg["width"], padding_idx=cfg["pad_id"])
        self.layers = nn.CellList([DecoderLayer(cfg, kind) for kind in cfg["layer_kinds"]])
        self.norm = RMSNorm(cfg["width"], cfg["eps"])
        scaled = rope_tables(cfg["head_dim"], cfg["max_position"], **cfg["rope"])
        plain = rope_tables(cfg["head_dim"], cfg["max_position"], cfg["rope"]["base"])
        self.tables = {"full": scaled, "sliding": plain}

    def construct(self, input_ids, attention_mask, position_ids, caches=None):
        x = self.embed(input_ids)
        length = input_ids.shape[1]
        caches = [None] * len(self.layers) if caches is None else caches

        ropes = {kind: tuple(table[position_ids] for table in pair) for kind, pair in self.tables.items()}
        masks = {}
        for layer, cache in zip(self.layers, caches):
            if layer.kind not in masks:
                kv_len = length if cache is None else length + cache[0].shape[2]
                window = self.window if layer.kind == "sliding" else None
                masks[layer.kind] = visible_keys(attention_mask, length, kv_len, window)

        new_caches, router_logits = [], []
        for layer, cache in zip(self.layers, caches):
            x, logits, cache = layer(x, ropes[layer.kind], masks[layer.kind], cache)
            new_caches.append(cache)
            router_logits.append(logits)
        return self.norm(x), new_caches, router_logits


class Qwen3MoeGenerator(nn.Cell):
    """The prompt and some greedy steps behind it."""

    def __init__(self, **cfg):
        super().__init__()
        self.num_experts, self.top_k = cfg["num_experts"], cfg["top_k"]
        self.pad_id, self.eos_id = cfg["pad_id"], cfg["eos_id"]
        self.new_tokens, self.penalty = cfg["new_tokens"], cfg["penalty"]
        self.decoder = Decoder(cfg)
        self.head = nn.Dense(cfg["width"], cfg["vocab"], has_bias=False)

    def balance(self, router_logits, attention_mask):
        """The load-balancing number over all layers; padding does not count."""
        valid = ops.tile(attention_mask.reshape(-1), (len(router_logits),)).astype(ms.float32)
        probs = ops.softmax(ops.cat(router_logits, axis=0), axis=-1)
        _, chosen = ops.topk(probs, self.top_k, dim=-1)
        chosen = ops.one_hot(chosen, self.num_experts, ms.Tensor(1.0, ms.float32), ms.Tensor(0.0, ms.float32))
        count = valid.sum()
        tokens_share = (chosen * valid.reshape(-1, 1, 1)).sum(axis=0) / count
        prob_share = (probs * valid.reshape(-1, 1)).sum(axis=0) / count
        return (tokens_share * prob_share).sum() * self.num_experts

    def penalize(self, history, scores):
        picked = ops.gather_elements(scores, 1, history)
        picked = ops.where(picked < 0, picked * self.penalty, picked / self.penalty)
        return ops.tensor_scatter_elements(scores, history, picked, 1)

    def construct(self, input_ids, attention_mask):
        position_ids = attention_mask.cumsum(axis=-1) - 1
        position_ids = position_ids.masked_fill(attention_mask == 0, 1)
        hidden, caches, router_logits = self.decoder(input_ids, attention_mask, position_ids)
        prompt_logits = self.head(hidden)
        aux = self.balance(router_logits, attention_mask)

        batch = input_ids.shape[0]
        alive = ops.ones((batch,), dtype=ms.bool_)
        scores = self.penalize(input_ids, prompt_logits[:, -1])
        steps = []
        for _ in range(self.new_tokens):
            token = ops.argmax(scores, dim=-1).astype(input_ids.dtype)
            token = token.masked_fill(ops.logical_not(alive), self.pad_id)
            alive = ops.logical_and(alive, token != self.eos_id)

            token = token.expand_dims(1)
            input_ids = ops.cat((input_ids, token), axis=1)
            attention_mask = ops.cat((attention_mask, ops.ones((batch, 1), dtype=attention_mask.dtype)), axis=1)
            position_ids = position_ids[:, -1:] + 1
            hidden, caches, _ = self.decoder(token, attention_mask, position_ids, caches)
            scores = self.penalize(input_ids, self.head(hidden)[:, -1])
            steps.append(scores)
        return prompt_logits, ops.stack(steps, axis=1), aux


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Qwen3MoeGenerator(**SETTINGS)
