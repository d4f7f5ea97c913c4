"""A small chat model: reads the turns so far into its cache, picks a word, and reads that as well."""
from typing import List, Optional, Tuple

import math

import torch
from torch import nn, Tensor
from torch.nn import functional as F

VOCABULARY = 90
CAPACITY = 28
PAD = 0
ASSISTANT = 2
ROPE_BASE = 2000.0
ROPE_TRAINED = 48
ROPE_SLOWEST, ROPE_FASTEST = 1.0, 4.0
ROPE_STRETCH = 8.0
QUERY_SCALE = 20.0
ATTENTION_CAP = 4.0
LOGIT_CAP = 6.0
WINDOW = 5
BRANCH = 0.8
PENALTY = 1.25
TEMPERATURE = 0.7
TOP_P = 0.8


# ---------------------------------------------------------------- helpers


def linear(d_in: int, d_out: int, bias: bool = False) -> nn.Linear:
    return nn.Linear(d_in, d_out, bias=bias)


def soft_cap(x: Tensor, cap: float) -> Tensor:
    return cap * torch.tanh(x / cap)


def frequencies(dim: int) -> Tensor:
    """Those that did not turn once in training are slowed down, the fast ones are left as they are."""
    freq = ROPE_BASE ** (-torch.arange(0, dim, 2).float() / dim)
    turns = ROPE_TRAINED * freq / (2 * math.pi)
    keep = ((turns - ROPE_SLOWEST) / (ROPE_FASTEST - ROPE_SLOWEST)).clamp(0, 1)
    return keep * freq + (1 - keep) * freq / ROPE_STRETCH


def rotate(x: Tensor, positions: Tensor, dim: int) -> Tensor:
    """x: (b, heads, t, d); the first `dim` channels are turned, the rest is kept."""
    angle = positions[:, None, :, None] * frequencies(dim)
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., : dim // 2], x[..., dim // 2: dim]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., dim:]], dim=-1)


def at(x: Tensor, index: Tensor) -> Tensor:
    """The row of (b, t, c) that each sample asks for."""
    return x[torch.arange(x.shape[0]), index]


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps) * (1 + self.weight)


class Cache:
    """Keys and values of one layer, written in place."""

    def __init__(self, batch: int, heads: int, dim: int):
        self.k = torch.zeros(batch, heads, CAPACITY, dim)
        self.v = torch.zeros(batch, heads, CAPACITY, dim)

    def update(self, positions: Tensor, k: Tensor, v: Tensor) -> Tuple[Tensor, Tensor]:
        rows = torch.arange(positions.shape[0])[:, None]
        self.k[rows, :, positions] = k.transpose(1, 2)
        self.v[rows, :, positions] = v.transpose(1, 2)
        return self.k, self.v


# ---------------------------------------------------------------- layers


class Attention(nn.Module):
    """Heads of queries share heads of keys; with a window, only what is near is seen, and the first word."""

    def __init__(self, width: int, heads: int, shared: int, dim: int, window: Optional[int]):
        super().__init__()
        self.heads, self.shared, self.dim, self.window = heads, shared, dim, window
        self.q_proj = linear(width, heads * dim, bias=True)
        self.k_proj = linear(width, shared * dim, bias=True)
        self.v_proj = linear(width, shared * dim)
        self.o_proj = linear(heads * dim, width)
        self.q_norm = RMSNorm(dim)
        self.k_norm = RMSNorm(dim)

    def forward(self, x, positions, cache: Cache):
        b, t, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(b, t, self.heads, self.dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(b, t, self.shared, self.dim)).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.shared, self.dim).transpose(1, 2)
        turned = self.dim // 3 * 2
        q, k = rotate(q, positions, turned), rotate(k, positions, turned)
        k, v = cache.update(positions, k, v)
        k = k.repeat_interleave(self.heads // self.shared, dim=1)
        v = v.repeat_interleave(self.heads // self.shared, dim=1)
        score = soft_cap(q @ k.transpose(2, 3) * QUERY_SCALE**-0.5, ATTENTION_CAP)
        ago = positions[:, :, None] - torch.arange(CAPACITY)
        allowed = ago >= 0
        if self.window is not None:
            near = (ago < self.window) | (torch.arange(CAPACITY) == 0)
            allowed = allowed & near
        score = score.masked_fill(~allowed[:, None], float("-inf"))
        y = (score.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, t, -1)
        return self.o_proj(y)


class SwiGLU(nn.Module):
    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.gate_up = linear(width, 2 * hidden)
        self.down = linear(hidden, width)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    """Norms before and behind each branch."""

    def __init__(self, width: int, heads: int, shared: int, dim: int, hidden: int, window: Optional[int]):
        super().__init__()
        self.norm_in = RMSNorm(width)
        self.attn = Attention(width, heads, shared, dim, window)
        self.norm_attn = RMSNorm(width)
        self.norm_mlp = RMSNorm(width)
        self.mlp = SwiGLU(width, hidden)
        self.norm_out = RMSNorm(width)

    def forward(self, x, positions, cache):
        x = x + BRANCH * self.norm_attn(self.attn(self.norm_in(x), positions, cache))
        return x + BRANCH * self.norm_out(self.mlp(self.norm_mlp(x)))


# ---------------------------------------------------------------- sampling


def penalised(logits: Tensor, ids: Tensor, present: Tensor) -> Tensor:
    """Words that were said already lose, whatever their sign; padding is never picked."""
    seen = F.one_hot(ids, VOCABULARY).masked_fill(~present[:, :, None], 0).amax(dim=1) > 0
    lowered = torch.where(logits > 0, logits / PENALTY, logits * PENALTY)
    logits = torch.where(seen, lowered, logits)
    return logits.index_fill(1, torch.tensor([PAD]), float("-inf"))


def nucleus(logits: Tensor) -> Tensor:
    """Probabilities of the fewest words that have TOP_P together."""
    probs = torch.softmax(logits / TEMPERATURE, dim=-1)
    ordered, order = probs.sort(dim=-1, descending=True)
    before = ordered.cumsum(dim=-1) - ordered
    ordered = ordered * (before < TOP_P)
    probs = torch.zeros_like(probs).scatter(1, order, ordered)
    return probs / probs.sum(dim=-1, keepdim=True)


# ---------------------------------------------------------------- the model


class ChatModel(nn.Module):
    def __init__(self, width: int = 48, depth: int = 3, heads: int = 6, shared: int = 2, dim: int = 12,
                 hidden: int = 80):
        super().__init__()
        self.shared, self.dim = shared, dim
        self.embed = nn.Embedding(VOCABULARY, width)
        self.role = nn.Embedding(3, width)
        self.blocks = nn.ModuleList([
            Block(width, heads, shared, dim, hidden, WINDOW if i % 2 == 0 else None) for i in range(depth)
        ])
        self.norm = RMSNorm(width)
        self.value = nn.Sequential(
            nn.LayerNorm(width), linear(width, 2 * width, bias=True), nn.GELU(), linear(2 * width, 2, bias=True)
        )

    def run(self, ids, roles, positions, caches: List[Cache]):
        x = self.embed(ids) * math.sqrt(self.embed.embedding_dim) + self.role(roles)
        for block, cache in zip(self.blocks, caches):
            x = block(x, positions, cache)
        x = self.norm(x)
        return x, soft_cap(x @ self.embed.weight.t(), LOGIT_CAP)

    def forward(self, ids, roles, lengths):
        b, t = ids.shape
        caches = [Cache(b, self.shared, self.dim) for _ in self.blocks]
        positions = torch.arange(t).expand(b, t)
        hidden, logits = self.run(ids, roles, positions, caches)
        present = positions < lengths[:, None]

        # how surprising the prompt was: each word, but the first, by those before it
        logp = F.log_softmax(logits[:, :-1], dim=-1).gather(2, ids[:, 1:, None])[..., 0]
        counted = present[:, 1:] & (roles[:, 1:] != ASSISTANT)
        surprise = -(logp * counted).sum(dim=1) / counted.sum(dim=1).clamp(min=1)

        pooled = (hidden * present[:, :, None]).sum(dim=1) / lengths[:, None]
        last = at(hidden, lengths - 1)
        value = self.value(0.5 * (pooled + last))

        first = at(logits, lengths - 1)
        probs = nucleus(penalised(first, ids, present))
        choice = probs.argmax(dim=-1)
        entropy = -(probs * torch.log(probs + 1e-6)).sum(dim=-1)

        speaker = torch.full_like(choice, ASSISTANT)
        _, second = self.run(choice[:, None], speaker[:, None], lengths[:, None], caches)
        return first, probs, second[:, 0], surprise, entropy, value


def build():
    """The net with the same weights on every run, and three chats of unequal length."""
    torch.manual_seed(8)
    net = ChatModel()
    for name, module in net.named_modules():
        if isinstance(module, RMSNorm):
            nn.init.normal_(module.weight, std=0.3)
        elif isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.3)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=1.1 / math.sqrt(module.in_features))
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.3)
    nn.init.normal_(net.role.weight, std=0.8)
    lengths = torch.tensor([19, 11, 16])
    ids = torch.randint(1, VOCABULARY, (3, 20))
    ids[:, 7:10] = ids[:, 2:5]
    ids = ids * (torch.arange(20) < lengths[:, None])
    turns = torch.tensor([[4, 10, 14], [3, 6, 9], [5, 9, 13]])
    roles = (torch.arange(20)[None, :, None] >= turns[:, None]).sum(dim=-1)
    roles = torch.tensor([0, 1, 2, 1])[roles]
    return net.eval(), (ids, roles, lengths)
