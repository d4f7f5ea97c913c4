"""Decision transformer over chunks: (return, state, action) triples, Transformer-XL memory, GTrXL gates.

rewards -> discounted returns to go; actions are mu-law binned like in Gato; the policy reads the next action off the
state's place, next state and return off the action's place.
"""
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


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
    return torch.sign(x) * torch.log1p(torch.abs(x))


def returns_to_go(rewards, mask, gamma):
    # rewards, mask: (B, T), padding on the left
    out = torch.zeros_like(rewards)
    running = torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        running = rewards[:, t] * mask[:, t] + gamma * running
        out[:, t] = running
    return out


def mu_law(x, mu, m):
    return torch.sign(x) * torch.log(x.abs() * mu + 1.0) / math.log(m * mu + 1.0)


def discretise(actions, n_bins, mu, m):
    x = mu_law(actions, mu, m).clamp(-1.0, 1.0)
    tokens = torch.floor((x + 1.0) / 2.0 * n_bins).long()
    return tokens.clamp(0, n_bins - 1)


def bin_centres(n_bins, mu, m):
    # middle of each bin, taken back through the mu-law
    c = (np.arange(n_bins) + 0.5) / n_bins * 2.0 - 1.0
    c = np.sign(c) * (np.power(1.0 + m * mu, np.abs(c)) - 1.0) / mu
    return c.astype(np.float32)


def rel_shift(x):
    b, h, q, r = x.size()
    x = F.pad(x, (1, 0))
    x = x.view(b, h, r + 1, q)
    return x[:, :, 1:].reshape(b, h, q, r)


def interleave(*parts):
    b, t, d = parts[0].shape
    return torch.stack(parts, dim=2).reshape(b, len(parts) * t, d)


class RelAttention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.n_head = cfg.n_head
        self.d_head = cfg.n_embd // cfg.n_head
        self.clamp_len = cfg.clamp_len
        self.qkv_net = nn.Linear(cfg.n_embd, 3 * cfg.n_embd, bias=False)
        self.r_net = nn.Linear(cfg.n_embd, cfg.n_embd, bias=False)
        self.o_net = nn.Linear(cfg.n_embd, cfg.n_embd)
        self.r_w_bias = nn.Parameter(0.3 * torch.randn(cfg.n_head, self.d_head))
        self.r_r_bias = nn.Parameter(0.3 * torch.randn(cfg.n_head, self.d_head))
        inv_freq = 1.0 / (10000 ** (torch.arange(0, cfg.n_embd, 2).float() / cfg.n_embd))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def positions(self, klen):
        pos = torch.arange(klen - 1, -1, -1.0)
        pos = pos.clamp(max=self.clamp_len)
        angle = torch.outer(pos, self.inv_freq)
        return torch.cat([angle.sin(), angle.cos()], dim=-1)

    def forward(self, w, mem, key_pad):
        # w: (B, q, D), mem: (B, m, D) or None, key_pad: (B, m + q), 1 where the key is padding
        b, qlen, d = w.shape
        cat = w if mem is None else torch.cat([mem, w], dim=1)
        klen = cat.shape[1]
        w_q, w_k, w_v = torch.chunk(self.qkv_net(cat), 3, dim=-1)
        w_q = w_q[:, -qlen:]
        r_k = self.r_net(self.positions(klen)).view(klen, self.n_head, self.d_head)

        w_q = w_q.reshape(b, qlen, self.n_head, self.d_head)
        w_k = w_k.reshape(b, klen, self.n_head, self.d_head)
        w_v = w_v.reshape(b, klen, self.n_head, self.d_head)

        AC = torch.einsum("bihd,bjhd->bhij", w_q + self.r_w_bias, w_k)
        BD = torch.einsum("bihd,jhd->bhij", w_q + self.r_r_bias, r_k)
        BD = rel_shift(BD)
        score = (AC + BD) * (1.0 / self.d_head ** 0.5)

        future = torch.ones(qlen, klen).triu(diagonal=1 + klen - qlen).bool()
        blocked = future[None, None] | key_pad[:, None, None, :].bool()
        score = score.masked_fill(blocked, -1e4)
        prob = F.softmax(score, dim=-1)
        vec = torch.einsum("bhij,bjhd->bihd", prob, w_v).contiguous().view(b, qlen, d)
        return self.o_net(vec)


class GRUGate(nn.Module):
    """GTrXL's gate in place of the sum of a shortcut."""

    def __init__(self, d, bias=0.8):
        super().__init__()
        self.w = nn.Linear(d, 3 * d, bias=False)
        self.u = nn.Linear(d, 2 * d, bias=False)
        self.g = nn.Linear(d, d, bias=False)
        self.bias = bias

    def forward(self, x, y):
        wr, wz, wg = self.w(y).chunk(3, dim=-1)
        ur, uz = self.u(x).chunk(2, dim=-1)
        r = torch.sigmoid(wr + ur)
        z = torch.sigmoid(wz + uz - self.bias)
        h = torch.tanh(wg + self.g(r * x))
        return (1 - z) * x + z * h


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.ln_1 = nn.LayerNorm(cfg.n_embd)
        self.attn = RelAttention(cfg)
        self.gate_1 = GRUGate(cfg.n_embd)
        self.ln_2 = nn.LayerNorm(cfg.n_embd)
        self.fc = nn.Linear(cfg.n_embd, 2 * cfg.n_embd)
        self.proj = nn.Linear(2 * cfg.n_embd, cfg.n_embd)
        self.gate_2 = GRUGate(cfg.n_embd)

    def forward(self, x, mem, key_pad):
        m = None if mem is None else self.ln_1(mem)
        a = self.attn(self.ln_1(x), m, key_pad)
        x = self.gate_1(x, F.relu(a))
        h = F.gelu(self.fc(self.ln_2(x)), approximate="tanh")
        return self.gate_2(x, F.relu(self.proj(h)))


class Summary(nn.Module):
    """What is carried from chunk to chunk beside the memory: a running vector, updated by a gated mean."""

    def __init__(self, d):
        super().__init__()
        self.cand = nn.Linear(d, d)
        self.gate = nn.Linear(2 * d, d)

    def forward(self, carry, h, valid):
        weight = valid / valid.sum(dim=1, keepdim=True).clamp(min=1.0)
        pooled = (h * weight.unsqueeze(-1)).sum(dim=1)
        g = torch.sigmoid(self.gate(torch.cat([carry, pooled], dim=-1)))
        return g * carry + (1.0 - g) * torch.tanh(self.cand(pooled))


class Policy(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        d = cfg.n_embd
        self.embed_return = nn.Linear(1, d)
        self.embed_state = nn.Linear(cfg.state_dim, d)
        self.embed_action = nn.Embedding(cfg.act_dim * cfg.n_bins, d)
        self.embed_time = nn.Embedding(cfg.max_timestep, d)
        self.embed_ln = nn.LayerNorm(d)
        self.blocks = nn.ModuleList([Block(cfg) for _ in range(cfg.n_layer)])
        self.summary = Summary(d)
        self.ln_f = nn.LayerNorm(d)
        self.predict_action = nn.Linear(d, cfg.act_dim * cfg.n_bins)
        self.predict_state = nn.Linear(d, cfg.state_dim)
        self.predict_return = nn.Linear(d, 1)
        i = torch.arange(cfg.state_dim).float()
        self.register_buffer("state_mean", 0.4 * torch.cos(i), persistent=False)
        self.register_buffer("state_std", 0.8 + 0.1 * i, persistent=False)
        self.register_buffer("centres", torch.from_numpy(bin_centres(cfg.n_bins, cfg.mu, cfg.m)), persistent=False)

    def embed(self, rtg, states, actions, timesteps, mask):
        cfg = self.cfg
        tokens = discretise(actions, cfg.n_bins, cfg.mu, cfg.m)
        tokens = tokens + torch.arange(cfg.act_dim) * cfg.n_bins
        time = self.embed_time(timesteps.clamp(max=cfg.max_timestep - 1))
        r = self.embed_return(symlog(rtg).unsqueeze(-1)) + time
        s = self.embed_state(states) + time
        a = self.embed_action(tokens).mean(dim=2) + time
        x = self.embed_ln(interleave(r, s, a))
        pad = 1.0 - mask.repeat_interleave(3, dim=1)
        return x * (1.0 - pad).unsqueeze(-1), pad

    def update_mems(self, mems, hiddens):
        new = []
        for i, h in enumerate(hiddens):
            cat = h if mems[i] is None else torch.cat([mems[i], h], dim=1)
            new.append(cat[:, -self.cfg.mem_len:].detach())
        return new

    def step(self, x, pad, mems, mem_pad, carry):
        """One chunk: its hidden states, and what the next one needs."""
        x = x + carry.unsqueeze(1) * (1.0 - pad).unsqueeze(-1)
        key_pad = pad if mem_pad is None else torch.cat([mem_pad, pad], dim=1)
        hiddens = []
        for block, mem in zip(self.blocks, mems):
            hiddens.append(x)
            x = block(x, mem, key_pad)
        mems = self.update_mems(mems, hiddens)
        mem_pad = key_pad[:, -self.cfg.mem_len:]
        carry = self.summary(carry, x, 1.0 - pad)
        return x, mems, mem_pad, carry

    def decode(self, logits):
        probs = F.softmax(logits / self.cfg.temperature, dim=-1)
        mean = (probs * self.centres).sum(-1)
        entropy = -(probs * torch.log(probs + 1e-8)).sum(-1)
        # sure of itself: the mean; unsure: shrunk towards doing nothing
        sure = 1.0 - entropy / math.log(self.cfg.n_bins)
        return mean * (0.5 + 0.5 * sure)

    def forward(self, rewards, states, actions, timesteps, mask):
        cfg = self.cfg
        B, T = rewards.shape
        rtg = returns_to_go(rewards, mask, cfg.gamma)
        states = (states - self.state_mean) / (self.state_std + 1e-6)
        states = states.clamp(-3.0, 3.0)

        mems, mem_pad = [None] * cfg.n_layer, None
        carry = rewards.new_zeros(B, cfg.n_embd)
        outs = []
        for start in range(0, T, cfg.chunk):
            sl = slice(start, min(start + cfg.chunk, T))
            x, pad = self.embed(rtg[:, sl], states[:, sl], actions[:, sl], timesteps[:, sl], mask[:, sl])
            x, mems, mem_pad, carry = self.step(x, pad, mems, mem_pad, carry)
            outs.append(x)
        x = self.ln_f(torch.cat(outs, dim=1))
        x = x.reshape(B, T, 3, cfg.n_embd).permute(0, 2, 1, 3)

        logits = self.predict_action(x[:, 1]).view(B, T, cfg.act_dim, cfg.n_bins)
        action = self.decode(logits)
        next_state = states + self.predict_state(x[:, 2])
        next_return = self.predict_return(x[:, 2]).squeeze(-1)
        keep = mask.unsqueeze(-1)
        return action * keep, logits * keep.unsqueeze(-1), next_state * keep, next_return * mask


def build():
    torch.manual_seed(41)
    cfg = PolicyConfig()
    net = Policy(cfg)
    for m in net.modules():
        if isinstance(m, nn.LayerNorm):
            nn.init.uniform_(m.weight, 0.7, 1.4)
            nn.init.normal_(m.bias, std=0.1)
        elif isinstance(m, nn.Linear):
            nn.init.xavier_uniform_(m.weight, gain=1.15)
        elif isinstance(m, nn.Embedding):
            nn.init.normal_(m.weight, std=0.7)
    B, T = 3, 14
    rewards = torch.randn(B, T) * 2 + 0.5
    states = torch.randn(B, T, cfg.state_dim) * 1.6
    actions = torch.randn(B, T, cfg.act_dim)
    begin = torch.tensor([0, 5, 44])
    lengths = torch.tensor([14, 12, 9])
    places = torch.arange(T)[None] - (T - lengths)[:, None]
    mask = (places >= 0).float()
    timesteps = (begin[:, None] + places).clamp(min=0) + (places > 9).long() * 9
    return net.eval(), (rewards, states, actions, timesteps, mask)
