"""The small hybrid language model in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import mint, nn, ops

PAD_ID = 0
CHUNK_SIZE = 8
GATE_LOGIT_NORMALIZER = 16.0
SLIDING_WINDOW = 5
ROPE_THETA = 500.0
MAX_POSITIONS = 64
ATTN_LOGIT_SOFTCAP = 6.0
FINAL_LOGIT_SOFTCAP = 12.0
ROUTED_SCALING_FACTOR = 1.8
AUX_LOSS_COEF = 0.1
MTP_LOSS_COEF = 0.3
Z_LOSS_COEF = 0.01


def linear(inputs, outputs):
    return nn.Dense(inputs, outputs, has_bias=False)


def previous(x):
    """The tokens moved by one place to the right."""
    return mint.cat((ops.zeros_like(x[:, :1]), x[:, :-1]), dim=1)


def unit(x, eps=1e-6):
    return x / ops.sqrt(ops.square(x).sum(axis=-1, keepdims=True) + eps)


def tanh_cap(x, cap):
    return ops.tanh(x / cap) * cap


def rope_tables(dim):
    inv_freq = 1.0 / np.power(ROPE_THETA, np.arange(0, dim, 2) / dim)
    angles = np.arange(MAX_POSITIONS)[:, None] * inv_freq[None]
    return ms.Tensor(np.cos(angles), ms.float32), ms.Tensor(np.sin(angles), ms.float32)


def rope(x, cos, sin):
    """x (batch, length, ..., head): the first half of a head is paired with the second."""
    length, half = x.shape[1], x.shape[-1] // 2
    shape = (1, length) + (1,) * (x.ndim - 3) + (half,)
    cos, sin = cos[:length].reshape(shape), sin[:length].reshape(shape)
    left, right = x[..., :half], x[..., half:]
    return mint.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


class ZeroCentredRMSNorm(nn.Cell):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = ms.Parameter(ops.zeros(dim, ms.float32))
        self.eps = eps

    def construct(self, x):
        root = ops.sqrt(ops.mean(x * x, axis=-1, keep_dims=True) + self.eps)
        return (self.weight + 1.0) * (x / root)


class CausalDepthwise(nn.Cell):
    def __init__(self, channels, kernel_size=4, has_bias=False):
        super().__init__()
        self.left = kernel_size - 1
        self.depthwise = nn.Conv1d(
            channels, channels, kernel_size, pad_mode="valid", group=channels, has_bias=has_bias
        )

    def construct(self, x):
        batch, _, channels = x.shape
        padded = mint.cat((ops.zeros((batch, self.left, channels), x.dtype), x), dim=1)
        return ops.silu(self.depthwise(padded.swapaxes(1, 2)).swapaxes(1, 2))


class GatedDeltaNet(nn.Cell):
    """The state is kept as (batch, head, value, key)."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.query, self.key, self.value = linear(dim, dim), linear(dim, dim), linear(dim, dim)
        self.query_conv, self.key_conv = CausalDepthwise(dim), CausalDepthwise(dim)
        self.value_conv = CausalDepthwise(dim)
        self.alpha = linear(dim, num_heads)
        self.beta_proj = linear(dim, num_heads)
        self.log_a = ms.Parameter(ops.zeros(num_heads, ms.float32))
        self.dt_shift = ms.Parameter(ops.zeros(num_heads, ms.float32))
        self.gate = linear(dim, dim)
        self.out_norm = ZeroCentredRMSNorm(self.head_dim, eps=1e-5)
        self.out = linear(dim, dim)

    def construct(self, x):
        batch, length, dim = x.shape
        split = (batch, length, self.num_heads, self.head_dim)
        q = unit(self.query_conv(self.query(x)).reshape(split)) / math.sqrt(self.head_dim)
        k = unit(self.key_conv(self.key(x)).reshape(split))
        v = self.value_conv(self.value(x)).reshape(split)
        beta = ops.sigmoid(self.beta_proj(x)).expand_dims(-1)
        log_alpha = -ops.exp(self.log_a) * ops.softplus(self.alpha(x) + self.dt_shift)
        alpha = ops.exp(log_alpha).reshape(batch, length, self.num_heads, 1, 1)

        memory = ops.zeros((batch, self.num_heads, self.head_dim, self.head_dim), ms.float32)
        steps = []
        for t in range(length):
            key = k[:, t].expand_dims(-1)
            memory = alpha[:, t] * memory
            recall = mint.matmul(memory, key).squeeze(-1)
            delta = beta[:, t] * (v[:, t] - recall)
            memory = memory + delta.expand_dims(-1) * key.swapaxes(-1, -2)
            steps.append(mint.matmul(memory, q[:, t].expand_dims(-1)).squeeze(-1))
        y = self.out_norm(ops.stack(steps, axis=1))
        y = y * ops.silu(self.gate(x).reshape(split))
        return self.out(y.reshape(batch, length, dim))


class ChunkedGLA(nn.Cell):
    """Gated linear attention; the decays inside a chunk are taken as differences, so nothing grows."""

    def __init__(self, dim, num_heads, low_rank=8):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.mu = ms.Parameter(ops.ones((5, dim), ms.float32))
        self.query, self.key, self.value = linear(dim, dim), linear(dim, dim), linear(dim, dim)
        self.decay_a = linear(dim, low_rank)
        self.decay_b = nn.Dense(low_rank, dim)
        self.gate = linear(dim, dim)
        self.head_norm = nn.GroupNorm(num_heads, dim, eps=1e-5 * num_heads)
        self.out = linear(dim, dim)

    def heads(self, x):
        batch, length, _ = x.shape
        return x.reshape(batch, length, self.num_heads, self.head_dim).swapaxes(1, 2)

    def construct(self, x):
        batch, length, dim = x.shape
        past = previous(x)
        mixed = [x * (1.0 - mu) + past * mu for mu in ops.unstack(self.mu)]
        q = self.heads(self.query(mixed[0])) / math.sqrt(self.head_dim)
        k = self.heads(self.key(mixed[1]))
        v = self.heads(self.value(mixed[2]))
        decay = self.decay_b(ops.tanh(self.decay_a(mixed[3])))
        decay = self.heads(-ops.softplus(-decay) / GATE_LOGIT_NORMALIZER)

        memory = ops.zeros((batch, self.num_heads, self.head_dim, self.head_dim), ms.float32)
        chunks = []
        for start in range(0, length, CHUNK_SIZE):
            stop = min(start + CHUNK_SIZE, length)
            qc, kc, vc = q[:, :, start:stop], k[:, :, start:stop], v[:, :, start:stop]
            run = ops.cumsum(decay[:, :, start:stop], 2)
            causal = ms.Tensor(np.tril(np.ones((stop - start, stop - start))), ms.float32)
            causal = causal.expand_dims(-1)
            gap = ops.exp((run.expand_dims(3) - run.expand_dims(2)) * causal) * causal
            weights = (qc.expand_dims(3) * kc.expand_dims(2) * gap).sum(axis=-1)
            inside = mint.matmul(weights, vc)
            across = mint.matmul(qc * ops.exp(run), memory)
            chunks.append(inside + across)
            final = run[:, :, -1:]
            carried = (kc * ops.exp(final - run)).swapaxes(-1, -2)
            memory = ops.exp(final).swapaxes(-1, -2) * memory + mint.matmul(carried, vc)
        y = mint.cat(chunks, dim=2).swapaxes(1, 2).reshape(batch * length, dim, 1, 1)
        y = self.head_norm(y).reshape(batch, length, dim)
        return self.out(y * ops.silu(self.gate(mixed[4])))


class MambaMixer(nn.Cell):
    def __init__(self, dim, d_inner=64, d_state=8, dt_rank=4):
        super().__init__()
        self.d_inner, self.d_state, self.dt_rank = d_inner, d_state, dt_rank
        self.in_proj = linear(dim, 2 * d_inner)
        self.short = CausalDepthwise(d_inner, has_bias=True)
        self.x_proj = linear(d_inner, dt_rank + 2 * d_state)
        self.dt_proj = nn.Dense(dt_rank, d_inner)
        self.a_log = ms.Parameter(ops.zeros((d_inner, d_state), ms.float32))
        self.skip = ms.Parameter(ops.ones(d_inner, ms.float32))
        self.out_proj = linear(d_inner, dim)

    def construct(self, hidden):
        projected = self.in_proj(hidden)
        u = self.short(projected[..., : self.d_inner])
        z = projected[..., self.d_inner :]
        params = self.x_proj(u)
        step = ops.softplus(self.dt_proj(params[..., : self.dt_rank]))
        b_in = params[..., self.dt_rank : self.dt_rank + self.d_state].expand_dims(2)
        c_out = params[..., self.dt_rank + self.d_state :].expand_dims(-1)
        keep = ops.exp(-step.expand_dims(-1) * ops.exp(self.a_log))
        feed = (step * u).expand_dims(-1) * b_in

        state = ops.zeros_like(feed[:, 0])
        scanned = []
        for t in range(u.shape[1]):
            state = keep[:, t] * state + feed[:, t]
            scanned.append(mint.matmul(state, c_out[:, t]).squeeze(-1))
        y = ops.stack(scanned, axis=1) + u * self.skip
        return self.out_proj(y * ops.silu(z))


class WindowAttention(nn.Cell):
    """Queries are laid out as (shared head, group), so nothing is repeated."""

    def __init__(self, dim, num_heads=6, num_kv=2):
        super().__init__()
        self.num_kv = num_kv
        self.groups = num_heads // num_kv
        self.head_dim = dim // num_heads
        self.query = linear(dim, dim)
        self.key_value = linear(dim, 2 * num_kv * self.head_dim)
        self.out = linear(dim, dim)
        self.cos, self.sin = rope_tables(self.head_dim)

    def construct(self, x):
        batch, length, dim = x.shape
        q = self.query(x).reshape(batch, length, self.num_kv, self.groups, self.head_dim)
        kv = self.key_value(x).reshape(batch, length, 2, self.num_kv, self.head_dim)
        k, v = kv[:, :, 0], kv[:, :, 1]
        q = rope(q, self.cos, self.sin).transpose(0, 2, 3, 1, 4)
        k = rope(k, self.cos, self.sin).transpose(0, 2, 3, 1).expand_dims(2)
        logits = mint.matmul(q, k) * self.head_dim**-0.5
        logits = tanh_cap(logits, ATTN_LOGIT_SOFTCAP)
        place = np.arange(length)
        back = place[:, None] - place[None]
        hidden = np.where((back >= 0) & (back < SLIDING_WINDOW), 0.0, -1e9)
        probs = ops.softmax(logits + ms.Tensor(hidden, ms.float32), axis=-1)
        mixed = mint.matmul(probs, v.swapaxes(1, 2).expand_dims(2))
        return self.out(mixed.transpose(0, 3, 1, 2, 4).reshape(batch, length, dim))


class GatedMlp(nn.Cell):
    def __init__(self, dim, hidden):
        super().__init__()
        self.hidden = hidden
        self.fused = linear(dim, 2 * hidden)
        self.project = linear(hidden, dim)

    def construct(self, x):
        both = self.fused(x)
        return self.project(ops.silu(both[..., : self.hidden]) * both[..., self.hidden :])


class ReluSquaredMix(nn.Cell):
    def __init__(self, dim, hidden):
        super().__init__()
        self.mu = ms.Parameter(ops.ones((2, dim), ms.float32))
        self.up = linear(dim, hidden)
        self.down = linear(hidden, dim)
        self.receive = linear(dim, dim)

    def construct(self, x):
        past = previous(x)
        for_key = x * (1.0 - self.mu[0]) + past * self.mu[0]
        for_gate = x * (1.0 - self.mu[1]) + past * self.mu[1]
        value = self.down(ops.square(ops.relu(self.up(for_key))))
        return ops.sigmoid(self.receive(for_gate)) * value


class MixtureOfExperts(nn.Cell):
    """All experts see all tokens; the weights of those not chosen are zero."""

    def __init__(self, dim, num_experts=6, hidden=24, top_k=2):
        super().__init__()
        self.num_experts, self.top_k, self.hidden = num_experts, top_k, hidden
        self.gate = linear(dim, num_experts)
        self.correction = ms.Parameter(ops.zeros(num_experts, ms.float32))
        self.up_weights = ms.Parameter(ops.zeros((num_experts, dim, 2 * hidden), ms.float32))
        self.down_weights = ms.Parameter(ops.zeros((num_experts, hidden, dim), ms.float32))
        self.shared_expert = GatedMlp(dim, 2 * hidden)

    def construct(self, x, real):
        batch, length, dim = x.shape
        tokens = x.reshape(-1, dim)
        affinity = ops.sigmoid(self.gate(tokens))
        _, picked = ops.topk(affinity + self.correction, self.top_k, dim=-1)
        routed = ops.one_hot(picked, self.num_experts).sum(axis=1)
        weights = affinity * routed
        weights = weights / (weights.sum(axis=-1, keepdims=True) + 1e-9)
        weights = weights * ROUTED_SCALING_FACTOR

        both = mint.matmul(tokens.expand_dims(0), self.up_weights)
        inner = ops.silu(both[..., : self.hidden]) * both[..., self.hidden :]
        outs = mint.matmul(inner, self.down_weights)
        y = (outs * weights.swapaxes(0, 1).expand_dims(-1)).sum(axis=0)

        mask = real.reshape(-1, 1).astype(ms.float32)
        count = mask.sum()
        load = (routed * mask).sum(axis=0) / count
        share = affinity / affinity.sum(axis=-1, keepdims=True)
        share = (share * mask).sum(axis=0) / count
        balance = self.num_experts / self.top_k * (load * share).sum()
        return y.reshape(x.shape) + self.shared_expert(x), balance


class MixerLayer(nn.Cell):
    def __init__(self, dim, mixer, ffn, sparse=False):
        super().__init__()
        self.mixer_norm = ZeroCentredRMSNorm(dim)
        self.mixer = mixer
        self.ffn_norm = ZeroCentredRMSNorm(dim)
        self.ffn = ffn
        self.sparse = sparse

    def construct(self, x, real=None):
        x = x + self.mixer(self.mixer_norm(x))
        normed = self.ffn_norm(x)
        if self.sparse:
            y, balance = self.ffn(normed, real)
            return x + y, balance
        return x + self.ffn(normed), 0.0


class MultiTokenHead(nn.Cell):
    """The hidden state of a token and the embedding of the next one, through one more layer."""

    def __init__(self, dim):
        super().__init__()
        self.hidden_norm = ZeroCentredRMSNorm(dim)
        self.embed_norm = ZeroCentredRMSNorm(dim)
        self.merge = linear(2 * dim, dim)
        self.layer = MixerLayer(dim, WindowAttention(dim), GatedMlp(dim, 64))
        self.final_norm = ZeroCentredRMSNorm(dim)

    def construct(self, hidden, embedded):
        merged = mint.cat((self.hidden_norm(hidden[:, :-1]), self.embed_norm(embedded[:, 1:])), dim=-1)
        out, _ = self.layer(self.merge(merged))
        return self.final_norm(out)


def token_loss(logits, tokens, ahead):
    """Mean cross-entropy of the tokens that lie `ahead` places on, without padding."""
    count = tokens.shape[1] - ahead
    labels = tokens[:, ahead:]
    logits = logits[:, :count]
    picked = ops.gather_elements(logits, 2, labels.expand_dims(-1)).squeeze(-1)
    losses = ops.logsumexp(logits, -1) - picked
    weight = (labels != PAD_ID).astype(ms.float32)
    return (losses * weight).sum() / weight.sum()


class HybridModel(nn.Cell):
    def __init__(self, vocab_size=90, dim=48):
        super().__init__()
        self.embed_scale = math.sqrt(dim)
        self.token_embedding = nn.Embedding(vocab_size, dim)
        self.layers = nn.CellList([
            MixerLayer(dim, GatedDeltaNet(dim, 4), GatedMlp(dim, 64)),
            MixerLayer(dim, ChunkedGLA(dim, 4), ReluSquaredMix(dim, 64)),
            MixerLayer(dim, MambaMixer(dim), MixtureOfExperts(dim), sparse=True),
            MixerLayer(dim, WindowAttention(dim), MixtureOfExperts(dim), sparse=True),
        ])
        self.final_norm = ZeroCentredRMSNorm(dim)
        self.lm_head = linear(dim, vocab_size)
        self.mtp = MultiTokenHead(dim)

    def construct(self, tokens):
        real = tokens != PAD_ID
        embedded = self.token_embedding(tokens) * self.embed_scale
        x = embedded
        aux = 0.0
        for layer in self.layers:
            x, balance = layer(x, real)
            aux = aux + balance
        logits = tanh_cap(self.lm_head(self.final_norm(x)), FINAL_LOGIT_SOFTCAP)
        mtp_logits = tanh_cap(self.lm_head(self.mtp(x, embedded)), FINAL_LOGIT_SOFTCAP)

        weight = real.astype(ms.float32)
        z_loss = (ops.square(ops.logsumexp(logits, -1)) * weight).sum() / weight.sum()
        loss = token_loss(logits, tokens, 1) + MTP_LOSS_COEF * token_loss(mtp_logits, tokens, 2)
        return logits, mtp_logits, loss + AUX_LOSS_COEF * aux + Z_LOSS_COEF * z_loss


def build():
    """The net, and the inputs of the reference."""
    rng = np.random.default_rng(62)
    tokens = rng.integers(1, 90, (3, 21))
    tokens[1, 15:] = PAD_ID
    tokens[2, 18:] = PAD_ID
    net = HybridModel()
    net.set_train(False)
    return net, (ms.Tensor(tokens.astype(np.int64)),)
