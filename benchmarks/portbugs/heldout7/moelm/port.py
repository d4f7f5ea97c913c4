"""The language model with a mixture of experts in MindSpore; all experts are run as one batched product."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

CONFIG = dict(
    vocab_size=97, hidden=48, num_layers=4, num_heads=6, num_kv_heads=2, head_dim=12, rotary_dim=8, window=5,
    rope_theta_local=10000.0, rope_theta=500000.0, rope_factor=4.0, floor_scale=6, attn_scale=0.3,
    attn_softcap=6.0, final_softcap=8.0, num_experts=8, n_group=4, topk_group=2, topk=3, moe_dim=32, ffn_dim=80,
    routed_scaling=1.8, limit=1.5, alpha=1.702, eps=1e-6,
)


def zeros(*shape):
    return Parameter(Tensor(np.zeros(shape, np.float32)))


def inverse_frequencies(dim, theta, factor=1.0):
    exponent = np.arange(0, dim, 2, dtype=np.float32) / dim
    return Tensor((1.0 / (theta**exponent) / factor).astype(np.float32))


def rotary_tables(positions, frequencies):
    """Cosine and sine, (B, 1, T, rotary / 2)."""
    angle = ops.expand_dims(positions.astype(ms.float32), -1) * frequencies
    return ops.expand_dims(ops.cos(angle), 1), ops.expand_dims(ops.sin(angle), 1)


def rotate(x, cos, sin):
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return ops.cat((a * cos - b * sin, b * cos + a * sin, rest), axis=-1)


def softcap(x, limit):
    return ops.tanh(x / limit) * limit


class RMSNorm(nn.Cell):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = zeros(dim)

    def construct(self, x):
        variance = ops.square(x).mean(-1, keep_dims=True)
        return x * ops.rsqrt(variance + self.eps) * (self.weight + 1.0)


class GroupedQueryAttention(nn.Cell):
    def __init__(self, cfg, sliding):
        super().__init__()
        self.cfg = cfg
        self.sliding = sliding
        self.heads, self.kv_heads, self.dim = cfg["num_heads"], cfg["num_kv_heads"], cfg["head_dim"]
        self.wq = nn.Dense(cfg["hidden"], self.heads * self.dim, has_bias=False)
        self.wk = nn.Dense(cfg["hidden"], self.kv_heads * self.dim, has_bias=False)
        self.wv = nn.Dense(cfg["hidden"], self.kv_heads * self.dim, has_bias=False)
        self.wo = nn.Dense(self.heads * self.dim, cfg["hidden"], has_bias=False)
        self.q_norm = RMSNorm(self.dim, cfg["eps"])
        self.k_norm = RMSNorm(self.dim, cfg["eps"])
        self.sinks = zeros(self.heads)

    def construct(self, x, tables, mask, positions):
        b, t, _ = x.shape
        q = self.q_norm(self.wq(x).reshape(b, t, self.heads, self.dim)).transpose(0, 2, 1, 3)
        k = self.k_norm(self.wk(x).reshape(b, t, self.kv_heads, self.dim)).transpose(0, 2, 1, 3)
        v = self.wv(x).reshape(b, t, self.kv_heads, self.dim).transpose(0, 2, 1, 3)
        q = rotate(q, *tables)
        k = rotate(k, *tables)
        if not self.sliding:
            stage = ops.floor((positions.astype(ms.float32) + 1.0) / self.cfg["floor_scale"])
            temperature = ops.log(stage + 1.0) * self.cfg["attn_scale"] + 1.0
            q = q * temperature.reshape(b, 1, t, 1)

        # the queries of one key head stand side by side
        shared = self.heads // self.kv_heads
        q = q.reshape(b, self.kv_heads, shared, t, self.dim)
        k = ops.expand_dims(k, 2)
        v = ops.expand_dims(v, 2)
        scores = ops.matmul(q, k.swapaxes(-1, -2)) / math.sqrt(self.dim)
        scores = softcap(scores, self.cfg["attn_softcap"])
        scores = ops.where(ops.expand_dims(mask, 1), scores, Tensor(-1e9, ms.float32))

        # softmax with one more place that nothing is read from
        sinks = self.sinks.reshape(1, self.kv_heads, shared, 1, 1)
        top = ops.maximum(scores.max(axis=-1, keepdims=True), sinks)
        powers = ops.exp(scores - top)
        total = powers.sum(-1, keepdims=True) + ops.exp(sinks - top)
        out = ops.matmul(powers / total, v)
        out = out.reshape(b, self.heads, t, self.dim).swapaxes(1, 2).reshape(b, t, self.heads * self.dim)
        return self.wo(out)


class GatedMLP(nn.Cell):
    def __init__(self, dim, inner):
        super().__init__()
        self.w1 = nn.Dense(dim, inner, has_bias=False)
        self.w3 = nn.Dense(dim, inner, has_bias=False)
        self.w2 = nn.Dense(inner, dim, has_bias=False)

    def construct(self, x):
        return self.w2(mint.nn.functional.silu(self.w1(x)) * self.w3(x))


class MoE(nn.Cell):
    """Router, routed experts and the shared one in a single cell."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        experts, dim, inner = cfg["num_experts"], cfg["hidden"], cfg["moe_dim"]
        self.router_weight = zeros(experts, dim)
        self.correction_bias = zeros(experts)
        self.w13 = zeros(experts, dim, 2 * inner)
        self.w2 = zeros(experts, inner, dim)
        self.shared = GatedMLP(dim, inner)
        self.shared_gate = nn.Dense(dim, 1, has_bias=False)

    def route(self, x):
        experts, groups = self.cfg["num_experts"], self.cfg["n_group"]
        n = x.shape[0]
        logits = ops.matmul(x, self.router_weight.T)
        scores = ops.sigmoid(logits)
        biased = scores + self.correction_bias
        by_group = biased.reshape(n, groups, experts // groups)
        best_two, _ = ops.topk(by_group, 2)
        group_scores = best_two.sum(-1)
        _, groups_kept = ops.topk(group_scores, self.cfg["topk_group"])
        open_groups = ops.one_hot(groups_kept, groups, Tensor(1.0), Tensor(0.0)).sum(1)
        is_open = ops.repeat_interleave(open_groups, experts // groups, axis=1)
        biased = ops.where(is_open > 0, biased, Tensor(-1.0))
        _, chosen = ops.topk(biased, self.cfg["topk"])
        weights = ops.gather_elements(scores, 1, chosen)
        weights = weights / (weights.sum(-1, keepdims=True) + 1e-20)
        return logits, chosen, weights * self.cfg["routed_scaling"]

    def run_experts(self, x, chosen, weights):
        """Every expert on every word, then the sum over the experts by the weights (0 where not chosen)."""
        experts, limit = self.cfg["num_experts"], self.cfg["limit"]
        n, dim = x.shape
        table = ops.one_hot(chosen, experts, Tensor(1.0), Tensor(0.0))
        table = (table * ops.expand_dims(weights, -1)).sum(1)
        hidden = ops.bmm(ops.broadcast_to(ops.expand_dims(x, 0), (experts, n, dim)), self.w13)
        hidden = hidden.reshape(experts, n, -1, 2)
        gate, linear = hidden[..., 0], hidden[..., 1]
        gate = ops.clamp(gate, max=limit)
        linear = ops.clamp(linear, -limit, limit)
        hidden = gate * ops.sigmoid(gate * self.cfg["alpha"]) * (linear + 1.0)
        out = ops.bmm(hidden, self.w2)
        return (out * ops.expand_dims(table.T, -1)).sum(0)

    def construct(self, x, valid):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        logits, chosen, weights = self.route(x)
        weights = weights * valid.reshape(-1, 1).astype(ms.float32)
        y = self.run_experts(x, chosen, weights)
        y = y + ops.sigmoid(self.shared_gate(x)) * self.shared(x)
        return y.reshape(shape), logits, chosen


class Block(nn.Cell):
    def __init__(self, cfg, index):
        super().__init__()
        self.sliding = index % 2 == 0
        self.sparse = index > 0
        dim, eps = cfg["hidden"], cfg["eps"]
        self.attention = GroupedQueryAttention(cfg, self.sliding)
        self.feed_forward = MoE(cfg) if self.sparse else GatedMLP(dim, cfg["ffn_dim"])
        self.attention_norm = RMSNorm(dim, eps)
        self.attention_out_norm = RMSNorm(dim, eps)
        self.ffn_norm = RMSNorm(dim, eps)
        self.ffn_out_norm = RMSNorm(dim, eps)

    def construct(self, x, context):
        if self.sliding:
            tables, mask = context["local_tables"], context["local_mask"]
        else:
            tables, mask = context["tables"], context["mask"]
        h = self.attention(self.attention_norm(x), tables, mask, context["positions"])
        x = x + self.attention_out_norm(h)
        h = self.ffn_norm(x)
        logits, chosen = None, None
        if self.sparse:
            h, logits, chosen = self.feed_forward(h, context["valid"])
        else:
            h = self.feed_forward(h)
        return x + self.ffn_out_norm(h), logits, chosen


class MoELanguageModel(nn.Cell):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.embedding = nn.Embedding(cfg["vocab_size"], cfg["hidden"])
        self.frequencies = inverse_frequencies(cfg["rotary_dim"], cfg["rope_theta"], cfg["rope_factor"])
        self.local_frequencies = inverse_frequencies(cfg["rotary_dim"], cfg["rope_theta_local"])
        self.blocks = nn.CellList([Block(cfg, i) for i in range(cfg["num_layers"])])
        self.final_norm = RMSNorm(cfg["hidden"], cfg["eps"])

    def prepare(self, valid):
        """Places, rotary tables and masks (B, 1, T, T), made once for all blocks."""
        t = valid.shape[1]
        positions = ops.clamp(ops.cumsum(valid, 1) - 1, min=0)
        row, col = np.arange(t).reshape(t, 1), np.arange(t).reshape(1, t)
        causal = Tensor(col <= row)
        near = Tensor(row - col < self.cfg["window"])
        diagonal = Tensor(np.eye(t, dtype=bool))
        words = (valid > 0).reshape(valid.shape[0], 1, 1, t)
        mask = ops.logical_and(causal, words)
        return {
            "valid": valid,
            "positions": positions,
            "tables": rotary_tables(positions, self.frequencies),
            "local_tables": rotary_tables(positions, self.local_frequencies),
            "mask": ops.logical_or(mask, diagonal),
            "local_mask": ops.logical_or(ops.logical_and(mask, near), diagonal),
        }

    def auxiliary(self, all_logits, all_chosen, valid):
        experts = self.cfg["num_experts"]
        real = valid.reshape(-1, 1).astype(ms.float32)
        count = real.sum()
        balance, z_loss, loads = 0.0, 0.0, []
        for logits, chosen in zip(all_logits, all_chosen):
            hits = ops.one_hot(chosen, experts, Tensor(1.0), Tensor(0.0)).sum(1)
            load = (hits * real).sum(0) / (count * self.cfg["topk"])
            prob = (ops.softmax(logits, axis=-1) * real).sum(0) / count
            balance = balance + (load * prob).sum() * experts
            z = ops.logsumexp(logits, -1, True)
            z_loss = z_loss + (ops.square(z) * real).sum() / count
            loads.append(load)
        return ops.stack((balance, z_loss)) / len(loads), ops.stack(loads)

    def lm_loss(self, logits, tokens, valid):
        log_prob = ops.log_softmax(logits[:, :-1], axis=-1)
        target = ops.expand_dims(tokens[:, 1:], -1)
        nll = -ops.gather_elements(log_prob, 2, target).squeeze(-1)
        pair = ops.logical_and(valid[:, 1:] > 0, valid[:, :-1] > 0).astype(ms.float32)
        return (nll * pair).sum(1) / pair.sum(1)

    def construct(self, tokens, valid):
        context = self.prepare(valid)
        x = self.embedding(tokens) * math.sqrt(self.cfg["hidden"])
        all_logits, all_chosen = [], []
        for block in self.blocks:
            x, router_logits, chosen = block(x, context)
            if router_logits is not None:
                all_logits.append(router_logits)
                all_chosen.append(chosen)
        x = self.final_norm(x)
        logits = ops.matmul(x, self.embedding.embedding_table.T)
        logits = softcap(logits, self.cfg["final_softcap"])
        aux, loads = self.auxiliary(all_logits, all_chosen, valid)
        return logits, self.lm_loss(logits, tokens, valid), aux, loads


TOKENS = [
    [36, 79, 80, 94, 39, 23, 17, 42, 73, 5, 8, 31, 60, 81, 31, 49, 40, 13, 48],
    [44, 34, 48, 31, 85, 87, 30, 19, 95, 58, 74, 75],
    [37, 15, 69, 42, 84, 60, 32],
]


def build():
    """The net and a batch of three sentences, padded on the left."""
    net = MoELanguageModel(CONFIG)
    net.set_train(False)
    longest = max(len(sentence) for sentence in TOKENS)
    tokens = np.zeros((len(TOKENS), longest), np.int64)
    mask = np.zeros((len(TOKENS), longest), np.int64)
    for row, sentence in enumerate(TOKENS):
        tokens[row, longest - len(sentence) :] = sentence
        mask[row, longest - len(sentence) :] = 1
    return net, (Tensor(tokens), Tensor(mask))
