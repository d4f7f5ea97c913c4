"""A small hybrid language model: delta rule, gated linear attention, selective scan, sliding window. In PyTorch: the reference."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

PAD = 0
CHUNK = 8
GATE_NORMALIZER = 16.0
WINDOW = 5
ROPE_BASE = 500.0
ATTENTION_CAP = 6.0
LOGIT_CAP = 12.0
ROUTED_SCALE = 1.8
BALANCE_WEIGHT = 0.1
MTP_WEIGHT = 0.3
Z_WEIGHT = 0.01


def l2norm(x, eps=1e-6):
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


def token_shift(x):
    """Each token's predecessor; zeros before the first."""
    return F.pad(x, (0, 0, 1, 0))[:, :-1]


def soft_cap(x, cap):
    return cap * torch.tanh(x / cap)


def rotary(x, base):
    """Turns x (batch, heads, length, head) by its places; the halves are paired."""
    length, head = x.shape[-2:]
    inverse = base ** (-torch.arange(0, head, 2).float() / head)
    angles = torch.arange(length).float()[:, None] * inverse[None, :]
    angles = torch.cat([angles, angles], dim=-1)
    first, second = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat([-second, first], dim=-1) * angles.sin()


class RMSNorm(nn.Module):
    """The weight is kept as the distance from one."""

    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * (1.0 + self.weight)


class ShortConv(nn.Module):
    """A causal convolution over the tokens, for each channel alone."""

    def __init__(self, channels, kernel=4, bias=False):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, kernel, groups=channels, padding=kernel - 1, bias=bias)

    def forward(self, x):
        return F.silu(self.conv(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))


class DeltaRule(nn.Module):
    """Gated delta rule: the state forgets, then what it recalls for a key is corrected."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.head = heads, width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width, bias=False)
        self.q_conv, self.k_conv, self.v_conv = ShortConv(width), ShortConv(width), ShortConv(width)
        self.a_proj = nn.Linear(width, heads, bias=False)
        self.b_proj = nn.Linear(width, heads, bias=False)
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.dt_bias = nn.Parameter(torch.zeros(heads))
        self.g_proj = nn.Linear(width, width, bias=False)
        self.o_norm = RMSNorm(self.head, eps=1e-5)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x):
        b, n, _ = x.shape
        q = l2norm(self.q_conv(self.q_proj(x)).view(b, n, self.heads, self.head)) * self.head**-0.5
        k = l2norm(self.k_conv(self.k_proj(x)).view(b, n, self.heads, self.head))
        v = self.v_conv(self.v_proj(x)).view(b, n, self.heads, self.head)
        beta = torch.sigmoid(self.b_proj(x))
        decay = torch.exp(-self.A_log.exp() * F.softplus(self.a_proj(x) + self.dt_bias))
        state = x.new_zeros(b, self.heads, self.head, self.head)
        outputs = []
        for t in range(n):
            state = state * decay[:, t, :, None, None]
            recalled = torch.einsum("bhk,bhkv->bhv", k[:, t], state)
            change = beta[:, t, :, None] * (v[:, t] - recalled)
            state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], change)
            outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
        y = self.o_norm(torch.stack(outputs, dim=1))
        gate = self.g_proj(x).view(b, n, self.heads, self.head)
        return self.o_proj((y * F.silu(gate)).flatten(2))


class GatedLinear(nn.Module):
    """Gated linear attention in chunks, behind a mix of each token with the one before."""

    def __init__(self, width, heads, rank=8):
        super().__init__()
        self.heads, self.head = heads, width // heads
        self.mix = nn.Parameter(torch.full((5, width), 0.5))
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width, bias=False)
        self.decay_down = nn.Linear(width, rank, bias=False)
        self.decay_up = nn.Linear(rank, width)
        self.g_proj = nn.Linear(width, width, bias=False)
        self.norm = nn.GroupNorm(heads, width, eps=1e-5 * heads)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x):
        b, n, c = x.shape
        change = token_shift(x) - x
        xq, xk, xv, xw, xg = (x + change * self.mix[i] for i in range(5))
        log_decay = F.logsigmoid(self.decay_up(torch.tanh(self.decay_down(xw)))) / GATE_NORMALIZER
        parts = [self.q_proj(xq) * self.head**-0.5, self.k_proj(xk), self.v_proj(xv), log_decay]
        rest = -n % CHUNK
        q, k, v, g = (
            F.pad(part, (0, 0, 0, rest)).view(b, -1, CHUNK, self.heads, self.head).permute(1, 0, 3, 2, 4)
            for part in parts
        )
        total = g.cumsum(dim=-2)
        lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool).tril()
        state = x.new_zeros(b, self.heads, self.head, self.head)
        outputs = []
        for i in range(q.shape[0]):
            last = total[i, :, :, -1:]
            grown = q[i] * total[i].exp()
            scores = grown @ (k[i] * (-total[i]).exp()).transpose(-1, -2)
            outputs.append(scores.masked_fill(~lower, 0.0) @ v[i] + grown @ state)
            state = state * last.exp().transpose(-1, -2) + (k[i] * (last - total[i]).exp()).transpose(-1, -2) @ v[i]
        y = torch.stack(outputs, dim=1).permute(0, 1, 3, 2, 4).reshape(b, -1, c)[:, :n]
        y = self.norm(y.reshape(b * n, c)).view(b, n, c)
        return self.o_proj(y * F.silu(self.g_proj(xg)))


class SelectiveScan(nn.Module):
    """A state space whose step, input and output depend on the token."""

    def __init__(self, width, inner=64, states=8, rank=4):
        super().__init__()
        self.states, self.rank = states, rank
        self.in_proj = nn.Linear(width, 2 * inner, bias=False)
        self.conv = ShortConv(inner, bias=True)
        self.x_proj = nn.Linear(inner, rank + 2 * states, bias=False)
        self.dt_proj = nn.Linear(rank, inner)
        self.A_log = nn.Parameter(torch.zeros(inner, states))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        u, z = self.in_proj(x).chunk(2, dim=-1)
        u = self.conv(u)
        dt, B, C = self.x_proj(u).split([self.rank, self.states, self.states], dim=-1)
        dt = F.softplus(self.dt_proj(dt))
        A = -torch.exp(self.A_log)
        h = u.new_zeros(u.shape[0], u.shape[2], self.states)
        outputs = []
        for t in range(u.shape[1]):
            h = h * torch.exp(dt[:, t, :, None] * A) + (dt[:, t] * u[:, t])[..., None] * B[:, t, None, :]
            outputs.append((h * C[:, t, None, :]).sum(-1))
        y = torch.stack(outputs, dim=1) + self.D * u
        return self.out_proj(y * F.silu(z))


class SlidingAttention(nn.Module):
    """Attention to the last few tokens; the queries share key and value heads in groups."""

    def __init__(self, width, heads=6, shared=2):
        super().__init__()
        self.heads, self.shared, self.head = heads, shared, width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.kv_proj = nn.Linear(width, 2 * shared * self.head, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x):
        b, n, c = x.shape
        q = self.q_proj(x).view(b, n, self.heads, self.head).transpose(1, 2)
        k, v = self.kv_proj(x).view(b, n, 2, self.shared, self.head).permute(2, 0, 3, 1, 4)
        q, k = rotary(q, ROPE_BASE), rotary(k, ROPE_BASE)
        k = k.repeat_interleave(self.heads // self.shared, dim=1)
        v = v.repeat_interleave(self.heads // self.shared, dim=1)
        scores = soft_cap(q @ k.transpose(-1, -2) * self.head**-0.5, ATTENTION_CAP)
        distance = torch.arange(n)[:, None] - torch.arange(n)[None, :]
        scores = scores.masked_fill((distance < 0) | (distance >= WINDOW), float("-inf"))
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c))


class SwiGLU(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class ChannelMix(nn.Module):
    """Squared relu behind a token shift, with a receptance."""

    def __init__(self, width, inner):
        super().__init__()
        self.mix = nn.Parameter(torch.full((2, width), 0.5))
        self.key = nn.Linear(width, inner, bias=False)
        self.value = nn.Linear(inner, width, bias=False)
        self.receptance = nn.Linear(width, width, bias=False)

    def forward(self, x):
        change = token_shift(x) - x
        key = F.relu(self.key(x + change * self.mix[0])).square()
        return torch.sigmoid(self.receptance(x + change * self.mix[1])) * self.value(key)


class SparseMoE(nn.Module):
    """The best experts by biased scores, weighed by the unbiased ones, and one expert for all."""

    def __init__(self, width, experts=6, inner=24, chosen=2):
        super().__init__()
        self.experts, self.chosen = experts, chosen
        self.router = nn.Linear(width, experts, bias=False)
        self.router_bias = nn.Parameter(torch.zeros(experts))
        self.w_in = nn.Parameter(torch.empty(experts, width, 2 * inner))
        self.w_out = nn.Parameter(torch.empty(experts, inner, width))
        self.shared = SwiGLU(width, 2 * inner)

    def forward(self, x, real):
        flat = x.flatten(0, 1)
        scores = torch.sigmoid(self.router(flat))
        chosen = torch.topk(scores + self.router_bias, self.chosen, dim=-1).indices
        weights = scores.gather(1, chosen)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-9) * ROUTED_SCALE
        y = torch.zeros_like(flat)
        for e in range(self.experts):
            rows, places = torch.where(chosen == e)
            gate, up = (flat[rows] @ self.w_in[e]).chunk(2, dim=-1)
            y = y.index_add(0, rows, (F.silu(gate) * up) @ self.w_out[e] * weights[rows, places, None])
        keep = real.flatten()
        load = F.one_hot(chosen[keep], self.experts).float().sum(1).mean(0) * self.experts / self.chosen
        share = (scores / scores.sum(-1, keepdim=True))[keep].mean(0)
        return y.view_as(x) + self.shared(x), (load * share).sum()


class Block(nn.Module):
    def __init__(self, width, mixer, feed):
        super().__init__()
        self.norm1 = RMSNorm(width)
        self.mixer = mixer
        self.norm2 = RMSNorm(width)
        self.feed = feed

    def forward(self, x, real):
        x = x + self.mixer(self.norm1(x))
        if isinstance(self.feed, SparseMoE):
            y, balance = self.feed(self.norm2(x), real)
            return x + y, balance
        return x + self.feed(self.norm2(x)), x.new_zeros(())


class HybridLM(nn.Module):
    """Four blocks of four kinds, a head, and one more block that predicts the token after the next."""

    def __init__(self, vocabulary=90, width=48):
        super().__init__()
        self.scale = width**0.5
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList([
            Block(width, DeltaRule(width, 4), SwiGLU(width, 64)),
            Block(width, GatedLinear(width, 4), ChannelMix(width, 64)),
            Block(width, SelectiveScan(width), SparseMoE(width)),
            Block(width, SlidingAttention(width), SparseMoE(width)),
        ])
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.mtp_norm_hidden = RMSNorm(width)
        self.mtp_norm_embed = RMSNorm(width)
        self.mtp_proj = nn.Linear(2 * width, width, bias=False)
        self.mtp_block = Block(width, SlidingAttention(width), SwiGLU(width, 64))
        self.mtp_norm = RMSNorm(width)

    def logits(self, x):
        return soft_cap(self.head(x), LOGIT_CAP)

    def forward(self, tokens):
        real = tokens != PAD
        words = self.embed(tokens) * self.scale
        x, balance = words, 0.0
        for block in self.blocks:
            x, extra = block(x, real)
            balance = balance + extra
        logits = self.logits(self.norm(x))

        ahead = torch.cat([self.mtp_norm_hidden(x[:, :-1]), self.mtp_norm_embed(words[:, 1:])], dim=-1)
        ahead, _ = self.mtp_block(self.mtp_proj(ahead), real[:, 1:])
        mtp_logits = self.logits(self.mtp_norm(ahead))

        labels = tokens.masked_fill(~real, -100)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        mtp_loss = F.cross_entropy(mtp_logits[:, :-1].flatten(0, 1), labels[:, 2:].flatten(), ignore_index=-100)
        z_loss = logits[real].logsumexp(-1).square().mean()
        total = loss + MTP_WEIGHT * mtp_loss + BALANCE_WEIGHT * balance + Z_WEIGHT * z_loss
        return logits, mtp_logits, total


def build():
    """The net with the same weights on every run, and three texts of several lengths."""
    import numpy as np

    torch.manual_seed(62)
    net = HybridLM()
    for name, parameter in net.named_parameters():
        if name.endswith("A_log"):
            nn.init.uniform_(parameter, -1.5, 0.8)
        elif name.endswith(("mix", ".D")):
            nn.init.uniform_(parameter, 0.1, 0.9)
        elif name.endswith(("w_in", "w_out")):
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        elif name.endswith("mixer.norm.weight"):
            nn.init.uniform_(parameter, 0.6, 1.4)
        elif parameter.dim() == 1:
            nn.init.normal_(parameter, std=0.25)
        elif "q_proj" in name or "kv_proj" in name or "router" in name:
            nn.init.normal_(parameter, std=0.3)
        elif name.endswith("decay_up.weight"):
            nn.init.normal_(parameter, std=1.5)
        elif name == "embed.weight":
            nn.init.normal_(parameter, std=0.15)
        elif name == "head.weight":
            nn.init.normal_(parameter, std=0.4)
    rng = np.random.default_rng(62)
    tokens = rng.integers(1, 90, (3, 21))
    tokens[1, 15:] = PAD
    tokens[2, 18:] = PAD
    return net.eval(), (torch.from_numpy(tokens.astype(np.int64)),)
