"""A recurrent language model in the manner of RWKV-6, with layers of retention between, that reads and then writes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    vocab: int = 61
    width: int = 48
    heads: int = 4
    kinds: tuple = ("wkv", "retention", "wkv", "wkv")
    hidden: int = 112
    mix_rank: int = 6
    decay_rank: int = 10
    chunk: int = 5
    head_divisor: int = 8
    rescale_every: int = 2
    soft_cap: float = 8.0
    temperature: float = 0.9
    top_p: float = 0.85
    presence: float = 0.4
    frequency: float = 0.3
    penalty_decay: float = 0.9


def token_shift(x, last):
    """Every token sees the one before it, the first one that of the call before."""
    return torch.cat([last.unsqueeze(1), x[:, :-1]], dim=1)


def wkv_step(r, k, v, logw, u, state):
    """The recurrence for tokens one at a time: [B, H, T, N] and a state [B, H, N, N] of keys by values."""
    out = []
    for t in range(r.shape[2]):
        kv = k[:, :, t].unsqueeze(-1) * v[:, :, t].unsqueeze(-2)
        seen = state + u.unsqueeze(-1) * kv
        out.append((r[:, :, t].unsqueeze(-2) @ seen).squeeze(-2))
        state = logw[:, :, t].exp().unsqueeze(-1) * state + kv
    return torch.stack(out, dim=2), state


def wkv_chunked(r, k, v, logw, u, state, chunk):
    """The same in chunks: pairs inside a chunk at once, the state from one chunk to the next."""
    length = r.shape[2]
    pad = -length % chunk
    if pad:
        r, k, v, logw = (F.pad(t, (0, 0, 0, pad)) for t in (r, k, v, logw))
    later = torch.ones(chunk, chunk, dtype=torch.bool).tril(-1).logical_not()
    out = []
    for start in range(0, length + pad, chunk):
        rc, kc, vc, wc = (t[:, :, start : start + chunk] for t in (r, k, v, logw))
        upto = wc.cumsum(dim=2)
        before = upto - wc
        gap = before.unsqueeze(3) - upto.unsqueeze(2)
        gap = gap.masked_fill(later[:, :, None], float("-inf")).exp()
        scores = torch.einsum("bhtn,bhjn,bhtjn->bhtj", rc, kc, gap)
        scores = scores + torch.diag_embed((rc * u.unsqueeze(1) * kc).sum(dim=-1))
        out.append(scores @ vc + (rc * before.exp()) @ state)
        total = upto[:, :, -1:]
        fresh = (kc * (total - upto).exp()).transpose(-1, -2) @ vc
        state = total.exp().transpose(-1, -2) * state + fresh
    return torch.cat(out, dim=2)[:, :, :length], state


class TimeMix(nn.Module):
    """Finch's time mixing: interpolations and decays that depend on the data."""

    def __init__(self, cfg: Config, layer: int):
        super().__init__()
        self.heads, self.chunk = cfg.heads, cfg.chunk
        self.size = cfg.width // cfg.heads
        d, depth = cfg.width, len(cfg.kinds)
        ratio0, ratio1 = layer / (depth - 1), 1.0 - layer / depth
        place = torch.arange(d).float()
        ddd = (place / d).reshape(1, 1, d)
        self.time_maa_x = nn.Parameter(1.0 - ddd**ratio1)
        self.time_maa_w = nn.Parameter(1.0 - ddd**ratio1)
        self.time_maa_k = nn.Parameter(1.0 - ddd**ratio1)
        self.time_maa_v = nn.Parameter(1.0 - (ddd**ratio1 + 0.3 * ratio0))
        self.time_maa_r = nn.Parameter(1.0 - ddd ** (0.5 * ratio1))
        self.time_maa_g = nn.Parameter(1.0 - ddd ** (0.5 * ratio1))
        self.time_maa_w1 = nn.Parameter(torch.empty(d, 5 * cfg.mix_rank).uniform_(-0.3, 0.3))
        self.time_maa_w2 = nn.Parameter(torch.empty(5, cfg.mix_rank, d).uniform_(-0.3, 0.3))
        decay = -5.0 + 6.0 * (place / (d - 1)) ** (0.7 + 1.3 * ratio0)
        self.time_decay = nn.Parameter(decay.reshape(1, 1, d))
        self.time_decay_w1 = nn.Parameter(torch.empty(d, cfg.decay_rank).uniform_(-0.3, 0.3))
        self.time_decay_w2 = nn.Parameter(torch.empty(cfg.decay_rank, d).uniform_(-0.3, 0.3))
        zigzag = ((torch.arange(d) + 1) % 3 - 1) * 0.3
        self.time_faaaa = nn.Parameter((ratio0 * (1 - place / (d - 1)) + 0.4 + zigzag).reshape(self.heads, self.size))
        self.receptance = nn.Linear(d, d, bias=False)
        self.key = nn.Linear(d, d, bias=False)
        self.value = nn.Linear(d, d, bias=False)
        self.gate = nn.Linear(d, d, bias=False)
        self.output = nn.Linear(d, d, bias=False)
        self.ln_x = nn.GroupNorm(self.heads, d, eps=1e-5 * cfg.head_divisor**2)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, self.size).transpose(1, 2)

    def forward(self, x, mask, state=None):
        b, t, d = x.shape
        if state is None:
            state = (x.new_zeros(b, d), x.new_zeros(b, self.heads, self.size, self.size))
        last, kv = state
        delta = token_shift(x, last) - x

        mixed = torch.tanh((x + delta * self.time_maa_x) @ self.time_maa_w1)
        mixed = mixed.view(b * t, 5, -1).transpose(0, 1)
        mw, mk, mv, mr, mg = torch.bmm(mixed, self.time_maa_w2).view(5, b, t, d).unbind(dim=0)
        xw = x + delta * (self.time_maa_w + mw)
        xk = x + delta * (self.time_maa_k + mk)
        xv = x + delta * (self.time_maa_v + mv)
        xr = x + delta * (self.time_maa_r + mr)
        xg = x + delta * (self.time_maa_g + mg)

        r, k = self.split(self.receptance(xr)), self.key(xk)
        v = self.split(self.value(xv))
        g = F.silu(self.gate(xg))
        logw = -torch.exp(self.time_decay + torch.tanh(xw @ self.time_decay_w1) @ self.time_decay_w2)
        # a place without a token writes nothing and forgets nothing
        k = self.split(k * mask.unsqueeze(-1))
        logw = self.split(logw * mask.unsqueeze(-1))

        if t == 1:
            y, kv = wkv_step(r, k, v, logw, self.time_faaaa, kv)
        else:
            y, kv = wkv_chunked(r, k, v, logw, self.time_faaaa, kv, self.chunk)
        y = y.transpose(1, 2).reshape(b * t, d)
        y = self.ln_x(y).view(b, t, d)
        return self.output(y * g), (x[:, -1], kv)


class RetNetRelPos(nn.Module):
    """Angles of the rotation and the decays of the heads, for a whole prompt or for one step."""

    def __init__(self, cfg: Config):
        super().__init__()
        size = cfg.width // cfg.heads
        angle = 1.0 / (10000 ** torch.linspace(0, 1, size // 2))
        self.register_buffer("angle", angle.unsqueeze(-1).repeat(1, 2).flatten())
        self.register_buffer("decay", torch.log(1 - 2 ** (-2 - torch.arange(cfg.heads, dtype=torch.float))))

    def forward(self, positions, mask, step=False):
        index = positions.unsqueeze(-1).float() * self.angle
        turn = (torch.sin(index).unsqueeze(1), torch.cos(index).unsqueeze(1))
        if step:
            return turn, self.decay.exp()
        length = mask.shape[1]
        row = torch.arange(length).float()
        gap = row[:, None] - row[None, :]
        causal = torch.exp(gap.clamp(min=0) * self.decay[:, None, None]) * (gap >= 0)
        weights = causal.unsqueeze(0) * mask[:, None, None, :]
        scale = weights.sum(dim=-1, keepdim=True).clamp(min=1.0)
        return turn, (weights / scale.sqrt(), scale[:, :, -1, 0])


def rotate_every_two(x):
    x1, x2 = x[..., ::2], x[..., 1::2]
    return torch.stack((-x2, x1), dim=-1).flatten(-2)


def theta_shift(x, sin, cos):
    return (x * cos) + (rotate_every_two(x) * sin)


class RMSNorm(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class MultiScaleRetention(nn.Module):
    """RetNet's retention: all pairs of a prompt at once, one token and a state afterwards."""

    def __init__(self, cfg: Config, factor: int = 2):
        super().__init__()
        d = cfg.width
        self.heads, self.factor = cfg.heads, factor
        self.key_dim = d // cfg.heads
        self.head_dim = d * factor // cfg.heads
        self.q_proj = nn.Linear(d, d, bias=False)
        self.k_proj = nn.Linear(d, d, bias=False)
        self.v_proj = nn.Linear(d, d * factor, bias=False)
        self.g_proj = nn.Linear(d, d * factor, bias=False)
        self.out_proj = nn.Linear(d * factor, d, bias=False)
        self.group_norm = RMSNorm()

    def parallel(self, qr, kr, v, mask, scale):
        qk = qr @ kr.transpose(-1, -2) * mask
        qk = qk / qk.abs().sum(dim=-1, keepdim=True).clamp(min=1, max=5e4)
        kv = (kr * mask[:, :, -1].unsqueeze(-1)).transpose(-1, -2) @ v
        return (qk @ v).transpose(1, 2), (kv, scale)

    def recurrent(self, qr, kr, v, decay, state):
        prev_kv, prev_scale = state
        scale = prev_scale * decay + 1
        keep = (prev_scale.sqrt() * decay / scale.sqrt())[:, :, None, None]
        kv = prev_kv * keep + (kr.transpose(-1, -2) * v) / scale.sqrt()[:, :, None, None]
        return torch.sum(qr.transpose(-1, -2) * kv, dim=2).unsqueeze(1), (kv, scale)

    def forward(self, x, rel_pos, state=None):
        b, t, _ = x.shape
        (sin, cos), inner = rel_pos
        q, k, v, g = self.q_proj(x), self.k_proj(x), self.v_proj(x), self.g_proj(x)
        k = k * self.key_dim**-0.5
        q = q.view(b, t, self.heads, self.key_dim).transpose(1, 2)
        k = k.view(b, t, self.heads, self.key_dim).transpose(1, 2)
        v = v.view(b, t, self.heads, self.head_dim).transpose(1, 2)
        qr, kr = theta_shift(q, sin, cos), theta_shift(k, sin, cos)
        if state is None:
            out, state = self.parallel(qr, kr, v, *inner)
        else:
            out, state = self.recurrent(qr, kr, v, inner, state)
        out = self.group_norm(out).reshape(b, t, self.head_dim * self.heads)
        return self.out_proj(F.silu(g) * out), state


class ChannelMix(nn.Module):
    def __init__(self, cfg: Config, layer: int):
        super().__init__()
        d = cfg.width
        ddd = (torch.arange(d) / d).reshape(1, 1, d) ** (1.0 - layer / len(cfg.kinds))
        self.time_maa_k = nn.Parameter(1.0 - ddd)
        self.time_maa_r = nn.Parameter(1.0 - ddd)
        self.key = nn.Linear(d, cfg.hidden, bias=False)
        self.receptance = nn.Linear(d, d, bias=False)
        self.value = nn.Linear(cfg.hidden, d, bias=False)

    def forward(self, x, last=None):
        last = torch.zeros_like(x[:, 0]) if last is None else last
        delta = token_shift(x, last) - x
        k = torch.relu(self.key(x + delta * self.time_maa_k)) ** 2
        r = torch.sigmoid(self.receptance(x + delta * self.time_maa_r))
        return r * self.value(k), x[:, -1]


class Block(nn.Module):
    def __init__(self, cfg: Config, layer: int):
        super().__init__()
        self.kind = cfg.kinds[layer]
        self.damp = 2.0 ** -(layer // cfg.rescale_every)
        self.halve = (layer + 1) % cfg.rescale_every == 0
        self.ln1 = nn.LayerNorm(cfg.width)
        self.ln2 = nn.LayerNorm(cfg.width)
        self.att = TimeMix(cfg, layer) if self.kind == "wkv" else MultiScaleRetention(cfg)
        self.ffn = ChannelMix(cfg, layer)

    def forward(self, x, mask, rel_pos, state):
        mixer, last = state
        normed = self.ln1(x) * mask.unsqueeze(-1)
        if self.kind == "wkv":
            y, mixer = self.att(normed, mask, mixer)
        else:
            y, mixer = self.att(normed, rel_pos, mixer)
        x = x + self.damp * y
        y, last = self.ffn(self.ln2(x) * mask.unsqueeze(-1), last)
        x = x + self.damp * y
        return x / 2 if self.halve else x, (mixer, last)


def sample(logits, counts, draw, cfg: Config):
    """The word at which the sum of the kept probabilities passes the threshold."""
    logits = logits - cfg.presence * (counts > 0) - cfg.frequency * counts
    probs, order = torch.softmax(logits / cfg.temperature, dim=-1).sort(dim=-1, descending=True)
    total = probs.cumsum(dim=-1)
    probs = torch.where(total - probs < cfg.top_p, probs, torch.zeros_like(probs))
    total = probs.cumsum(dim=-1) / probs.sum(dim=-1, keepdim=True)
    rank = (total <= draw.unsqueeze(-1)).sum(dim=-1, keepdim=True).clamp(max=logits.shape[-1] - 1)
    return order.gather(1, rank)


class RWKV(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.cfg = cfg
        self.emb = nn.Embedding(cfg.vocab, cfg.width)
        self.ln0 = nn.LayerNorm(cfg.width)
        self.rel_pos = RetNetRelPos(cfg)
        self.blocks = nn.ModuleList([Block(cfg, i) for i in range(len(cfg.kinds))])
        self.ln_out = nn.LayerNorm(cfg.width)
        self.head = nn.Linear(cfg.width, cfg.vocab, bias=False)

    def run(self, tokens, mask, positions, states, step):
        x = self.ln0(self.emb(tokens))
        rel_pos = self.rel_pos(positions, mask, step)
        following = []
        for block, state in zip(self.blocks, states):
            x, state = block(x, mask, rel_pos, state)
            following.append(state)
        logits = self.head(self.ln_out(x))
        return self.cfg.soft_cap * torch.tanh(logits / self.cfg.soft_cap), following

    def forward(self, tokens, mask, draws):
        """Prompts [B, T] filled up on their left side, and the thresholds [B, S] of the words to write."""
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        prompt, states = self.run(tokens, mask, positions, [(None, None)] * len(self.blocks), step=False)

        # how well the prompt was foretold: bits for a word
        logp = F.log_softmax(prompt[:, :-1], dim=-1)
        loss = -logp.gather(2, tokens[:, 1:].unsqueeze(-1)).squeeze(-1)
        valid = mask[:, 1:] * mask[:, :-1]
        bits = (loss * valid).sum(dim=1) / valid.sum(dim=1) / math.log(2)

        counts = torch.zeros(tokens.shape[0], self.cfg.vocab).scatter_add(1, tokens, mask)
        offset = mask.sum(dim=1, keepdim=True)
        here = torch.ones_like(offset)
        logits, words, steps = prompt[:, -1], [], []
        for i in range(draws.shape[1]):
            word = sample(logits, counts, draws[:, i], self.cfg)
            counts = (counts * self.cfg.penalty_decay).scatter_add(1, word, here)
            out, states = self.run(word, here, offset + i, states, step=True)
            logits = out[:, 0]
            words.append(word)
            steps.append(logits)
        return prompt * mask.unsqueeze(-1), bits, torch.cat(words, dim=1), torch.stack(steps, dim=1)


def build():
    """The net with the same weights on every run, three prompts of different length and the thresholds."""
    torch.manual_seed(41)
    cfg = Config()
    net = RWKV(cfg)
    for name, parameter in net.named_parameters():
        if "time_maa_w1" in name or "time_maa_w2" in name:
            continue
        if ".time_" in name:
            parameter.data.add_(torch.randn_like(parameter) * 0.05)
    for name, module in net.named_modules():
        if isinstance(module, (nn.LayerNorm, nn.GroupNorm)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, nn.Linear):
            gain = 0.3 if name.endswith(("att.key", "att.receptance")) else 1.1
            nn.init.normal_(module.weight, std=gain * module.in_features**-0.5)
    nn.init.uniform_(net.emb.weight, -2e-2, 2e-2)
    nn.init.normal_(net.head.weight, std=0.4)
    lengths = torch.tensor([[13], [9], [11]])
    mask = (torch.arange(13) >= 13 - lengths).float()
    tokens = torch.randint(1, cfg.vocab, (3, 13)) * mask.long()
    return net.eval(), (tokens, mask, torch.rand(3, 5))
