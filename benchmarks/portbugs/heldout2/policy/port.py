"""Decision transformer over chunks, for MindSpore (pynative).

Same scheme as the original: returns to go, mu-law bins, Transformer-XL memory, GTrXL gates.
"""
import math
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import nn, ops


@dataclass
class PolicyConfig:
    state_dim: int = 7
    act_dim: int = 3
    n_bins: int = 16
    n_embd: int = 32
    n_head: int = 4
    n_layer: int = 2
    chunk: int = 4          # steps, so 12 tokens
    mem_len: int = 15       # tokens
    clamp_len: int = 20
    max_timestep: int = 60
    gamma: float = 0.9
    mu: float = 40.0
    m: float = 2.0
    temperature: float = 0.7


def symlog(x):
    return ops.sign(x) * ops.log1p(ops.abs(x))


def returns_to_go(rewards, mask, gamma):
    # rewards, mask: (B, T), padding on the left
    T = rewards.shape[1]
    running = ops.zeros_like(rewards[:, 0])
    out = []
    for t in range(T - 1, -1, -1):
        running = rewards[:, t] * mask[:, t] + gamma * running
        out.append(running)
    return ops.stack(out[::-1], axis=1)


def mu_law(x, mu, m):
    return ops.sign(x) * ops.log(ops.abs(x) * mu + 1.0) / math.log(m * mu + 1.0)


def discretise(actions, n_bins, mu, m):
    x = ops.clamp(mu_law(actions, mu, m), -1.0, 1.0)
    tokens = ops.floor((x + 1.0) / 2.0 * n_bins).astype(ms.int32)
    return ops.clamp(tokens, 0, n_bins - 1)


def bin_centres(n_bins, mu, m):
    # middle of each bin, taken back through the mu-law
    c = (np.arange(n_bins) + 0.5) / n_bins * 2.0 - 1.0
    c = np.sign(c) * (np.power(1.0 + m * mu, np.abs(c)) - 1.0) / mu
    return c.astype(np.float32)


def rel_shift(x):
    b, h, q, r = x.shape
    zero = ops.zeros((b, h, q, 1), x.dtype)
    x = ops.concat([zero, x], axis=-1)
    x = x.reshape(b, h, r + 1, q)
    return x[:, :, 1:].reshape(b, h, q, r)


def interleave(*parts):
    b, t, d = parts[0].shape
    return ops.stack(parts, axis=2).reshape(b, len(parts) * t, d)


class RelAttention(nn.Cell):
    def __init__(self, cfg):
        super().__init__()
        self.n_head = cfg.n_head
        self.d_head = cfg.n_embd // cfg.n_head
        self.clamp_len = cfg.clamp_len
        self.qkv_net = nn.Dense(cfg.n_embd, 3 * cfg.n_embd, has_bias=False)
        self.r_net = nn.Dense(cfg.n_embd, cfg.n_embd, has_bias=False)
        self.o_net = nn.Dense(cfg.n_embd, cfg.n_embd)
        self.r_w_bias = ms.Parameter(ops.zeros((cfg.n_head, self.d_head), ms.float32))
        self.r_r_bias = ms.Parameter(ops.zeros((cfg.n_head, self.d_head), ms.float32))
        self.inv_freq = 1.0 / (10000 ** (np.arange(0, cfg.n_embd, 2, dtype=np.float32) / cfg.n_embd))

    def positions(self, klen):
        pos = np.arange(klen - 1, -1, -1, dtype=np.float32)
        pos = np.minimum(pos, self.clamp_len)
        angle = np.outer(pos, self.inv_freq)
        return ms.Tensor(np.concatenate([np.sin(angle), np.cos(angle)], axis=-1), ms.float32)

    def construct(self, w, mem, key_pad):
        # w: (B, q, D), mem: (B, m, D) or None, key_pad: (B, m + q), 1 where the key is padding
        b, qlen, d = w.shape
        cat = w if mem is None else ops.concat([mem, w], axis=1)
        klen = cat.shape[1]
        w_q, w_k, w_v = ops.chunk(self.qkv_net(cat), 3, axis=-1)
        w_q = w_q[:, -qlen:]
        r_k = self.r_net(self.positions(klen)).reshape(klen, self.n_head, self.d_head)

        w_q = w_q.reshape(b, qlen, self.n_head, self.d_head)
        w_k = w_k.reshape(b, klen, self.n_head, self.d_head).transpose(0, 2, 3, 1)
        w_v = w_v.reshape(b, klen, self.n_head, self.d_head).transpose(0, 2, 1, 3)
        r_k = r_k.transpose(1, 2, 0).expand_dims(0)

        AC = ops.matmul((w_q + self.r_w_bias).transpose(0, 2, 1, 3), w_k)
        BD = ops.matmul((w_q + self.r_r_bias).transpose(0, 2, 1, 3), r_k)
        BD = rel_shift(BD)
        score = (AC + BD) * (1.0 / self.d_head ** 0.5)

        future = ms.Tensor(np.triu(np.ones((qlen, klen)), k=1 + klen - qlen) > 0)
        blocked = ops.logical_or(future.reshape(1, 1, qlen, klen), key_pad.reshape(b, 1, 1, klen) > 0.5)
        score = score.masked_fill(blocked, -1e4)
        prob = ops.softmax(score, axis=-1)
        vec = ops.matmul(prob, w_v).transpose(0, 2, 1, 3).reshape(b, qlen, d)
        return self.o_net(vec)


class GRUGate(nn.Cell):
    """GTrXL's gate in place of the sum of a shortcut."""

    def __init__(self, d, bias=0.8):
        super().__init__()
        self.w = nn.Dense(d, 3 * d, has_bias=False)
        self.u = nn.Dense(d, 2 * d, has_bias=False)
        self.g = nn.Dense(d, d, has_bias=False)
        self.bias = bias

    def construct(self, x, y):
        wr, wz, wg = ops.chunk(self.w(y), 3, axis=-1)
        ur, uz = ops.chunk(self.u(x), 2, axis=-1)
        r = ops.sigmoid(wr + ur)
        z = ops.sigmoid(wz + uz - self.bias)
        h = ops.tanh(wg + self.g(r * x))
        return (1 - z) * x + z * h


class Block(nn.Cell):
    def __init__(self, cfg):
        super().__init__()
        self.ln_1 = nn.LayerNorm((cfg.n_embd,), epsilon=1e-5)
        self.attn = RelAttention(cfg)
        self.gate_1 = GRUGate(cfg.n_embd)
        self.ln_2 = nn.LayerNorm((cfg.n_embd,), epsilon=1e-5)
        self.fc = nn.Dense(cfg.n_embd, 2 * cfg.n_embd)
        self.proj = nn.Dense(2 * cfg.n_embd, cfg.n_embd)
        self.gate_2 = GRUGate(cfg.n_embd)

    def construct(self, x, mem, key_pad):
        m = None if mem is None else self.ln_1(mem)
        a = self.attn(self.ln_1(x), m, key_pad)
        x = self.gate_1(x, ops.relu(a))
        h = ops.gelu(self.fc(self.ln_2(x)), approximate="tanh")
        return self.gate_2(x, ops.relu(self.proj(h)))


class Summary(nn.Cell):
    """What is carried from chunk to chunk beside the memory: a running vector, updated by a gated mean."""

    def __init__(self, d):
        super().__init__()
        self.cand = nn.Dense(d, d)
        self.gate = nn.Dense(2 * d, d)

    def construct(self, carry, h, valid):
        weight = valid / ops.clamp(valid.sum(axis=1, keepdims=True), min=1.0)
        pooled = (h * weight.expand_dims(-1)).sum(axis=1)
        g = ops.sigmoid(self.gate(ops.concat([carry, pooled], axis=-1)))
        return g * carry + (1.0 - g) * ops.tanh(self.cand(pooled))


class Policy(nn.Cell):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        d = cfg.n_embd
        self.embed_return = nn.Dense(1, d)
        self.embed_state = nn.Dense(cfg.state_dim, d)
        self.embed_action = nn.Embedding(cfg.act_dim * cfg.n_bins, d)
        self.embed_time = nn.Embedding(cfg.max_timestep, d)
        self.embed_ln = nn.LayerNorm((d,), epsilon=1e-5)
        self.blocks = nn.CellList([Block(cfg) for _ in range(cfg.n_layer)])
        self.summary = Summary(d)
        self.ln_f = nn.LayerNorm((d,), epsilon=1e-5)
        self.predict_action = nn.Dense(d, cfg.act_dim * cfg.n_bins)
        self.predict_state = nn.Dense(d, cfg.state_dim)
        self.predict_return = nn.Dense(d, 1)
        i = np.arange(cfg.state_dim, dtype=np.float32)
        self.state_mean = ms.Tensor(0.4 * np.cos(i), ms.float32)
        self.state_std = ms.Tensor(0.8 + 0.1 * i, ms.float32)
        self.centres = ms.Tensor(bin_centres(cfg.n_bins, cfg.mu, cfg.m))

    def embed(self, rtg, states, actions, timesteps, mask):
        cfg = self.cfg
        tokens = discretise(actions, cfg.n_bins, cfg.mu, cfg.m)
        tokens = tokens + ops.arange(cfg.act_dim).astype(ms.int32) * cfg.n_bins
        time = self.embed_time(ops.clamp(timesteps, max=cfg.max_timestep - 1))
        r = self.embed_return(symlog(rtg).expand_dims(-1)) + time
        s = self.embed_state(states) + time
        a = self.embed_action(tokens).mean(axis=2) + time
        x = self.embed_ln(interleave(r, s, a))
        pad = 1.0 - ops.repeat_interleave(mask, 3, axis=1)
        return x * (1.0 - pad).expand_dims(-1), pad

    def update_mems(self, mems, hiddens):
        new = []
        for i, h in enumerate(hiddens):
            cat = h if mems[i] is None else ops.concat([mems[i], h], axis=1)
            new.append(ops.stop_gradient(cat[:, -self.cfg.mem_len:]))
        return new

    def step(self, x, pad, mems, mem_pad, carry):
        """One chunk: its hidden states, and what the next one needs."""
        x = x + carry.expand_dims(1) * (1.0 - pad).expand_dims(-1)
        key_pad = pad if mem_pad is None else ops.concat([mem_pad, pad], axis=1)
        hiddens = []
        for block, mem in zip(self.blocks, mems):
            hiddens.append(x)
            x = block(x, mem, key_pad)
        mems = self.update_mems(mems, hiddens)
        mem_pad = key_pad[:, -self.cfg.mem_len:]
        carry = self.summary(carry, x, 1.0 - pad)
        return x, mems, mem_pad, carry

    def decode(self, logits):
        probs = ops.softmax(logits / self.cfg.temperature, axis=-1)
        mean = (probs * self.centres).sum(axis=-1)
        entropy = -(probs * ops.log(probs + 1e-8)).sum(axis=-1)
        # sure of itself: the mean; unsure: shrunk towards doing nothing
        sure = 1.0 - entropy / math.log(self.cfg.n_bins)
        return mean * (0.5 + 0.5 * sure)

    def construct(self, rewards, states, actions, timesteps, mask):
        cfg = self.cfg
        B, T = rewards.shape
        rtg = returns_to_go(rewards, mask, cfg.gamma)
        states = (states - self.state_mean) / (self.state_std + 1e-6)
        states = ops.clamp(states, -3.0, 3.0)

        mems, mem_pad = [None] * cfg.n_layer, None
        carry = ops.zeros((B, cfg.n_embd), ms.float32)
        outs = []
        for start in range(0, T, cfg.chunk):
            sl = slice(start, min(start + cfg.chunk, T))
            x, pad = self.embed(rtg[:, sl], states[:, sl], actions[:, sl], timesteps[:, sl], mask[:, sl])
            x, mems, mem_pad, carry = self.step(x, pad, mems, mem_pad, carry)
            outs.append(x)
        x = self.ln_f(ops.concat(outs, axis=1))
        x = x.reshape(B, T, 3, cfg.n_embd).transpose(0, 2, 1, 3)

        logits = self.predict_action(x[:, 1]).reshape(B, T, cfg.act_dim, cfg.n_bins)
        action = self.decode(logits)
        next_state = states + self.predict_state(x[:, 2])
        next_return = self.predict_return(x[:, 2]).squeeze(-1)
        keep = mask.expand_dims(-1)
        return action * keep, logits * keep.expand_dims(-1), next_state * keep, next_return * mask


def build():
    """Net only."""
    return Policy(PolicyConfig())
