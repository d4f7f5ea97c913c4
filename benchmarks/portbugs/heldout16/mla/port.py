"""The small DeepSeek-V3 decoder in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import nn, ops

CONFIG = dict(
    vocab=101,
    width=44,
    ffn_width=60,
    expert_width=18,
    depth=3,
    mtp_depth=2,
    heads=4,
    q_rank=26,
    kv_rank=16,
    nope=10,
    rope=12,
    v_dim=14,
    experts=12,
    shared=2,
    top_k=4,
    groups=4,
    top_groups=2,
    route_scale=1.8,
    dense_layers=1,
    eps=1e-6,
    theta=1000.0,
    factor=8.0,
    original_length=512,
    beta_fast=32.0,
    beta_slow=1.0,
    mscale=1.0,
    mscale_all_dim=0.8,
    max_length=64,
    mtp_weight=0.3,
    balance=0.05,
)


def yarn_mscale(factor, mscale):
    """How much longer contexts raise the temperature."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def yarn_tables(cfg):
    """Cosines and sines, one column for each pair."""
    dim, theta, factor = cfg["rope"], cfg["theta"], cfg["factor"]

    def turning_dim(turns):
        return dim * math.log(cfg["original_length"] / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(turning_dim(cfg["beta_fast"])), 0)
    high = min(math.ceil(turning_dim(cfg["beta_slow"])), dim - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(dim // 2, dtype=np.float32) - low) / (high - low), 0, 1)
    freq = 1.0 / theta ** (np.arange(0, dim, 2, dtype=np.float32) / dim)
    freq = freq / factor * ramp + freq * (1 - ramp)
    amplitude = yarn_mscale(factor, cfg["mscale"]) / yarn_mscale(factor, cfg["mscale_all_dim"])
    angles = np.outer(np.arange(cfg["max_length"], dtype=np.float32), freq.astype(np.float32))
    cos = (np.cos(angles) * amplitude).astype(np.float32)
    sin = (np.sin(angles) * amplitude).astype(np.float32)
    return ms.Tensor(cos), ms.Tensor(sin)


def rotate(x, cos, sin):
    """x: (b, s, n, d) with neighbours as pairs; cos, sin: (b, s, d/2). The pairs come out as halves."""
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = cos.expand_dims(2), sin.expand_dims(2)
    return ops.cat([even * cos - odd * sin, odd * cos + even * sin], axis=-1)


def shift_left(x):
    """The next token at each place; zero at the last."""
    return ops.cat([x[:, 1:], ops.zeros_like(x[:, :1])], axis=1)


def token_loss(logits, labels, valid):
    """Cross entropy, mean over the valid tokens."""
    logp = ops.log_softmax(logits, axis=-1)
    nll = -ops.gather_elements(logp, 2, labels.expand_dims(-1).astype(ms.int32)).squeeze(-1)
    valid = valid.astype(nll.dtype)
    return (nll * valid).sum() / ops.maximum(valid.sum(), ms.Tensor(1.0, ms.float32))


class RMSNorm(nn.Cell):
    """Root mean square norm."""

    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.gamma = ms.Parameter(ops.ones(dim), name="gamma")
        self.eps = eps

    def construct(self, x):
        return self.gamma * (x * ops.rsqrt(ops.square(x).mean(-1, keep_dims=True) + self.eps))


class LatentAttention(nn.Cell):
    """Attention through a compressed cache of keys and values, with a separate rotary key."""

    def __init__(self, cfg):
        super().__init__()
        self.heads, self.kv_rank = cfg["heads"], cfg["kv_rank"]
        self.nope, self.rope, self.v_dim = cfg["nope"], cfg["rope"], cfg["v_dim"]
        self.qk_dim = self.nope + self.rope
        width, eps = cfg["width"], cfg["eps"]
        self.q_down = nn.Dense(width, cfg["q_rank"])
        self.q_norm = RMSNorm(cfg["q_rank"], eps)
        self.q_up = nn.Dense(cfg["q_rank"], self.heads * self.qk_dim, has_bias=False)
        self.kv_down = nn.Dense(width, self.kv_rank + self.rope)
        self.kv_norm = RMSNorm(self.kv_rank, eps)
        self.kv_up = nn.Dense(self.kv_rank, self.heads * (self.nope + self.v_dim), has_bias=False)
        self.wo = nn.Dense(self.heads * self.v_dim, width)
        temperature = yarn_mscale(cfg["factor"], cfg["mscale_all_dim"])
        self.scale = temperature**2 / math.sqrt(self.qk_dim)

    def construct(self, x, blocked, cos, sin):
        b, s, _ = x.shape
        q = self.q_up(self.q_norm(self.q_down(x))).reshape(b, s, self.heads, self.qk_dim)
        q_nope, q_rope = q[..., : self.nope], q[..., self.nope :]

        kv = self.kv_down(x)
        latent, k_rope = kv[..., : self.kv_rank], kv[..., self.kv_rank :]
        kv = self.kv_up(self.kv_norm(latent)).reshape(b, s, self.heads, self.nope + self.v_dim)
        k_nope, value = kv[..., : self.nope], kv[..., self.nope :]

        q_rope = rotate(q_rope, cos, sin)
        k_rope = rotate(k_rope.expand_dims(2), cos, sin)
        k_rope = ops.broadcast_to(k_rope, (b, s, self.heads, self.rope))
        query = ops.cat([q_nope, q_rope], axis=-1).transpose(0, 2, 1, 3)
        key = ops.cat([k_nope, k_rope], axis=-1).transpose(0, 2, 3, 1)

        scores = ops.matmul(query, key) * self.scale
        scores = ops.masked_fill(scores, blocked, float(np.finfo(np.float32).min))
        weights = ops.softmax(scores, axis=-1)
        out = ops.matmul(weights, value.transpose(0, 2, 1, 3))
        return self.wo(out.transpose(0, 2, 1, 3).reshape(b, s, -1))


class SwiGLU(nn.Cell):
    """Gated perceptron."""

    def __init__(self, width, inner):
        super().__init__()
        self.w_gate = nn.Dense(width, inner, has_bias=False)
        self.w_up = nn.Dense(width, inner, has_bias=False)
        self.w_down = nn.Dense(inner, width, has_bias=False)
        self.act = nn.SiLU()

    def construct(self, x):
        return self.w_down(self.act(self.w_gate(x)) * self.w_up(x))


class Router(nn.Cell):
    """Which experts a token goes to, and how much of each it gets."""

    def __init__(self, cfg, top_groups=1):
        super().__init__()
        self.top_k, self.experts = cfg["top_k"], cfg["experts"]
        self.groups, self.top_groups = cfg["groups"], top_groups
        self.route_scale = cfg["route_scale"]
        self.weight = ms.Parameter(ops.zeros((cfg["experts"], cfg["width"])), name="weight")
        self.correction = ms.Parameter(ops.zeros(cfg["experts"]), name="correction")

    def construct(self, x):
        scores = ops.sigmoid(ops.matmul(x, self.weight.T))
        biased = scores + self.correction

        grouped = biased.reshape(-1, self.groups, self.experts // self.groups)
        group_scores = ops.topk(grouped, 2, dim=-1)[0].sum(-1)
        best_groups = ops.topk(group_scores, self.top_groups, dim=-1)[1]
        kept = ops.one_hot(best_groups, self.groups, ms.Tensor(1.0), ms.Tensor(0.0)).sum(1)
        kept = ops.repeat_elements(kept, self.experts // self.groups, 1)
        candidates = ops.where(kept > 0, biased, ms.Tensor(-np.inf, ms.float32))

        chosen = ops.topk(candidates, self.top_k, dim=-1)[1]
        weights = ops.gather_elements(scores, 1, chosen)
        weights = weights / (weights.sum(-1, keepdims=True) + 1e-20)
        return chosen, weights * self.route_scale, scores


class MoE(nn.Cell):
    """Routed experts and shared ones."""

    def __init__(self, cfg):
        super().__init__()
        self.router = Router(cfg, top_groups=cfg["top_groups"])
        self.experts = nn.CellList([SwiGLU(cfg["width"], cfg["expert_width"]) for _ in range(cfg["experts"])])
        self.shared = SwiGLU(cfg["width"], cfg["expert_width"] * cfg["shared"])

    def construct(self, x):
        flat = x.reshape(-1, x.shape[-1])
        chosen, weights, scores = self.router(flat)
        picks = chosen.asnumpy()
        routed = ops.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows, slots = np.nonzero(picks == number)
            if rows.size == 0:
                continue
            rows, slots = ms.Tensor(rows.astype(np.int32)), ms.Tensor(slots.astype(np.int32))
            part = expert(flat[rows]) * weights[rows, slots].expand_dims(-1)
            routed = ops.index_add(routed, rows, part, 0)
        return routed.reshape(x.shape) + self.shared(x), (scores, chosen)


class Layer(nn.Cell):
    """Decoder layer, dense or with experts."""

    def __init__(self, cfg, number):
        super().__init__()
        self.sparse = number >= cfg["dense_layers"]
        self.attention = LatentAttention(cfg)
        self.ffn = MoE(cfg) if self.sparse else SwiGLU(cfg["width"], cfg["ffn_width"])
        self.attention_norm = RMSNorm(cfg["width"], eps=cfg["eps"])
        self.ffn_norm = RMSNorm(cfg["width"], eps=cfg["eps"])

    def construct(self, x, blocked, cos, sin):
        x = x + self.attention(self.attention_norm(x), blocked, cos, sin)
        y = self.ffn_norm(x)
        if not self.sparse:
            return x + self.ffn(y), None
        y, routing = self.ffn(y)
        return x + y, routing


class NextToken(nn.Cell):
    """One further depth of prediction."""

    def __init__(self, cfg, number):
        super().__init__()
        self.embed_norm = RMSNorm(cfg["width"], eps=cfg["eps"])
        self.state_norm = RMSNorm(cfg["width"], eps=cfg["eps"])
        self.merge = nn.Dense(2 * cfg["width"], cfg["width"], has_bias=False)
        self.layer = Layer(cfg, number)
        self.out_norm = RMSNorm(cfg["width"], eps=cfg["eps"])

    def construct(self, embedded, state, blocked, cos, sin):
        x = self.merge(ops.cat([self.embed_norm(embedded), self.state_norm(state)], axis=-1))
        x, routing = self.layer(x, blocked, cos, sin)
        return x, routing


class DeepSeek(nn.Cell):
    """The language model, with its predictors of further tokens and its losses."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.embedding = nn.Embedding(cfg["vocab"], cfg["width"])
        self.layers = nn.CellList([Layer(cfg, i) for i in range(cfg["depth"])])
        self.final_norm = RMSNorm(cfg["width"], eps=cfg["eps"])
        self.head = nn.Dense(cfg["width"], cfg["vocab"], has_bias=False)
        self.predictors = nn.CellList([NextToken(cfg, cfg["depth"] + i) for i in range(cfg["mtp_depth"])])
        self.cos_table, self.sin_table = yarn_tables(cfg)

    def balance_loss(self, scores, chosen, valid):
        """How unevenly the experts are used within each sentence."""
        b, s = valid.shape
        experts = scores.shape[-1]
        valid = valid.astype(scores.dtype).expand_dims(-1)
        length = valid.sum(1)
        hits = ops.one_hot(chosen, experts, ms.Tensor(1.0), ms.Tensor(0.0)).sum(1).reshape(b, s, experts)
        load = (hits * valid).sum(1) * experts / (chosen.shape[-1] * length)
        share = (scores / scores.sum(-1, keepdims=True)).reshape(b, s, experts)
        share = (share * valid).sum(1) / length
        return self.cfg["balance"] * (load * share).sum(1).mean()

    def construct(self, ids, valid):
        s = ids.shape[1]
        places = ops.cumsum(valid.astype(ms.int32), 1) - 1
        places = ops.where(valid == 0, ops.ones_like(places), places)
        cos, sin = self.cos_table[places], self.sin_table[places]
        order = ops.arange(s)
        future = order.expand_dims(0) > order.expand_dims(1)
        blocked = ops.logical_or(future.expand_dims(0), (valid == 0).expand_dims(1)).expand_dims(1)

        routings = []
        x = self.embedding(ids)
        for layer in self.layers:
            x, routing = layer(x, blocked, cos, sin)
            routings.append(routing)
        logits = self.head(self.final_norm(x))

        labels, label_valid = shift_left(ids), shift_left(valid)
        loss = token_loss(logits, labels, label_valid)

        tokens, further, further_loss = ids, [], 0.0
        for predictor in self.predictors:
            tokens = shift_left(tokens)
            labels, label_valid = shift_left(labels), shift_left(label_valid)
            x, routing = predictor(self.embedding(tokens), x, blocked, cos, sin)
            routings.append(routing)
            guess = self.head(predictor.out_norm(x))
            further.append(guess)
            further_loss = further_loss + token_loss(guess, labels, label_valid)
        loss = loss + self.cfg["mtp_weight"] * further_loss / len(self.predictors)

        balance = sum(self.balance_loss(*routing, valid) for routing in routings if routing is not None)
        return logits, ops.stack(further, axis=1), loss, balance


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return DeepSeek(CONFIG)
