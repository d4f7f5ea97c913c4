"""A language model with a mixture of experts: sliding windows, sinks, soft caps and a router in groups. In PyTorch.

Sentences are padded on the left. Beside the logits, the net gives the loss of the next word, the losses of the router,
and the share of the words that each expert got.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    vocab_size: int = 97
    hidden_size: int = 48
    layers: int = 4
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 12
    rotary_dim: int = 8
    window: int = 5
    local_theta: float = 10000.0
    global_theta: float = 500000.0
    global_factor: float = 4.0
    floor_scale: int = 6
    attn_scale: float = 0.3
    attn_cap: float = 6.0
    logit_cap: float = 8.0
    experts: int = 8
    groups: int = 4
    groups_kept: int = 2
    top_k: int = 3
    expert_dim: int = 32
    dense_dim: int = 80
    routed_scale: float = 1.8
    swiglu_limit: float = 1.5
    swiglu_alpha: float = 1.702
    eps: float = 1e-6


def rotate_half(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def apply_rotary(x, cos, sin):
    """Turns the first part of each head and leaves the rest."""
    size = cos.shape[-1]
    turned, kept = x[..., :size], x[..., size:]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat((turned * cos + rotate_half(turned) * sin, kept), dim=-1)


def repeat_kv(x, times: int):
    batch, heads, length, dim = x.shape
    return x[:, :, None].expand(batch, heads, times, length, dim).reshape(batch, heads * times, length, dim)


def soft_cap(x, cap: float):
    return cap * torch.tanh(x / cap)


def make_masks(attention_mask, window: int):
    """What each word may see, in full and in windows; a word of padding sees itself."""
    length = attention_mask.shape[1]
    places = torch.arange(length)
    distance = places[:, None] - places[None, :]
    words = attention_mask.bool()[:, None, None, :]
    itself = torch.eye(length, dtype=torch.bool)
    full = (distance >= 0) & words | itself
    local = (distance >= 0) & (distance < window) & words | itself
    return full, local


class RMSNorm(nn.Module):
    """Scales by one plus the weight, as Gemma does."""

    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x * (1.0 + self.weight)


class RotaryEmbedding(nn.Module):
    def __init__(self, dim: int, theta: float, factor: float = 1.0):
        super().__init__()
        inv_freq = 1.0 / theta ** (torch.arange(0, dim, 2).float() / dim)
        self.register_buffer("inv_freq", inv_freq / factor, persistent=False)

    def forward(self, position_ids):
        angle = position_ids.float().unsqueeze(-1) * self.inv_freq
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos(), angle.sin()


class Attention(nn.Module):
    """Grouped queries with norms, rotary places, capped scores and a sink for each head."""

    def __init__(self, config: Config, is_local: bool):
        super().__init__()
        self.config, self.is_local = config, is_local
        self.q_proj = nn.Linear(config.hidden_size, config.heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, config.kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, config.kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.eps)
        self.k_norm = RMSNorm(config.head_dim, config.eps)
        self.sinks = nn.Parameter(torch.randn(config.heads))

    def forward(self, hidden, cos, sin, mask, position_ids):
        config = self.config
        batch, length, _ = hidden.shape
        query = self.q_norm(self.q_proj(hidden).view(batch, length, config.heads, config.head_dim)).transpose(1, 2)
        key = self.k_norm(self.k_proj(hidden).view(batch, length, config.kv_heads, config.head_dim)).transpose(1, 2)
        value = self.v_proj(hidden).view(batch, length, config.kv_heads, config.head_dim).transpose(1, 2)
        query, key = apply_rotary(query, cos, sin), apply_rotary(key, cos, sin)
        if not self.is_local:
            steps = torch.floor((position_ids.float() + 1.0) / config.floor_scale)
            query = query * (torch.log1p(steps) * config.attn_scale + 1.0)[:, None, :, None]
        key = repeat_kv(key, config.heads // config.kv_heads)
        value = repeat_kv(value, config.heads // config.kv_heads)
        scores = soft_cap(query @ key.transpose(-2, -1) / math.sqrt(config.head_dim), config.attn_cap)
        scores = scores.masked_fill(~mask, -1e9)
        sinks = self.sinks.view(1, -1, 1, 1).expand(batch, -1, length, 1)
        weights = torch.cat((scores, sinks), dim=-1).softmax(dim=-1)[..., :-1]
        out = (weights @ value).transpose(1, 2).reshape(batch, length, -1)
        return self.o_proj(out)


class SwiGLU(nn.Module):
    def __init__(self, dim: int, inner: int):
        super().__init__()
        self.gate_proj = nn.Linear(dim, inner, bias=False)
        self.up_proj = nn.Linear(dim, inner, bias=False)
        self.down_proj = nn.Linear(inner, dim, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Router(nn.Module):
    """Sigmoid scores; the bias helps to choose and not to weigh; only the best groups of experts may be chosen."""

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.randn(config.experts, config.hidden_size) * 0.2)
        self.choice_bias = nn.Parameter(torch.randn(config.experts) * 0.2)

    def forward(self, tokens):
        config = self.config
        logits = F.linear(tokens, self.weight)
        scores = logits.sigmoid()
        choice = scores + self.choice_bias
        grouped = choice.view(-1, config.groups, config.experts // config.groups)
        group_scores = grouped.topk(2, dim=-1)[0].sum(dim=-1)
        kept = group_scores.topk(config.groups_kept, dim=-1)[1]
        group_mask = torch.zeros_like(group_scores).scatter(1, kept, 1.0)
        allowed = group_mask.unsqueeze(-1).expand_as(grouped).reshape(-1, config.experts)
        chosen = choice.masked_fill(allowed == 0, -1.0).topk(config.top_k, dim=-1)[1]
        gates = scores.gather(1, chosen)
        gates = gates / (gates.sum(dim=-1, keepdim=True) + 1e-20) * config.routed_scale
        return logits, chosen, gates


class Experts(nn.Module):
    """All experts' weights in two tensors; gate and up stand in turns, and both are clamped."""

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.gate_up = nn.Parameter(torch.randn(config.experts, config.hidden_size, 2 * config.expert_dim) * 0.15)
        self.down = nn.Parameter(torch.randn(config.experts, config.expert_dim, config.hidden_size) * 0.15)

    def forward(self, tokens, chosen, gates):
        out = torch.zeros_like(tokens)
        for index in range(self.config.experts):
            rows, slot = torch.where(chosen == index)
            both = tokens[rows] @ self.gate_up[index]
            gate = both[:, 0::2].clamp(max=self.config.swiglu_limit)
            up = both[:, 1::2].clamp(min=-self.config.swiglu_limit, max=self.config.swiglu_limit)
            mixed = (up + 1.0) * gate * torch.sigmoid(self.config.swiglu_alpha * gate)
            out.index_add_(0, rows, mixed @ self.down[index] * gates[rows, slot, None])
        return out


class SparseMLP(nn.Module):
    """Routed experts, and one that all words share behind a gate of its own. Padding is not routed."""

    def __init__(self, config: Config):
        super().__init__()
        self.router = Router(config)
        self.experts = Experts(config)
        self.shared_expert = SwiGLU(config.hidden_size, config.expert_dim)
        self.shared_expert_gate = nn.Linear(config.hidden_size, 1, bias=False)

    def forward(self, hidden, attention_mask):
        batch, length, dim = hidden.shape
        tokens = hidden.reshape(-1, dim)
        logits, chosen, gates = self.router(tokens)
        gates = gates * attention_mask.reshape(-1, 1)
        routed = self.experts(tokens, chosen, gates)
        shared = self.shared_expert(tokens) * torch.sigmoid(self.shared_expert_gate(tokens))
        return (routed + shared).view(batch, length, dim), (logits, chosen)


class DecoderLayer(nn.Module):
    """A norm before and behind both parts. The first layer is dense, and every second one sees in full."""

    def __init__(self, config: Config, index: int):
        super().__init__()
        self.is_local = index % 2 == 0
        self.is_sparse = index > 0
        self.self_attn = Attention(config, self.is_local)
        self.mlp = SparseMLP(config) if self.is_sparse else SwiGLU(config.hidden_size, config.dense_dim)
        self.input_norm = RMSNorm(config.hidden_size, config.eps)
        self.post_attention_norm = RMSNorm(config.hidden_size, config.eps)
        self.pre_mlp_norm = RMSNorm(config.hidden_size, config.eps)
        self.post_mlp_norm = RMSNorm(config.hidden_size, config.eps)

    def forward(self, hidden, rotary, masks, position_ids, attention_mask):
        place = 1 if self.is_local else 0
        mixed = self.self_attn(self.input_norm(hidden), *rotary[place], masks[place], position_ids)
        hidden = hidden + self.post_attention_norm(mixed)
        routing = None
        mixed = self.pre_mlp_norm(hidden)
        if self.is_sparse:
            mixed, routing = self.mlp(mixed, attention_mask)
        else:
            mixed = self.mlp(mixed)
        return hidden + self.post_mlp_norm(mixed), routing


class MoeLM(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.rotary_full = RotaryEmbedding(config.rotary_dim, config.global_theta, config.global_factor)
        self.rotary_local = RotaryEmbedding(config.rotary_dim, config.local_theta)
        self.layers = nn.ModuleList([DecoderLayer(config, index) for index in range(config.layers)])
        self.norm = RMSNorm(config.hidden_size, config.eps)

    def router_losses(self, routings, attention_mask):
        """The balance of the load and the size of the logits over the words, padding left out."""
        experts, words = self.config.experts, attention_mask.reshape(-1).float()
        balance, size, shares = 0.0, 0.0, []
        for logits, chosen in routings:
            picked = F.one_hot(chosen, experts).sum(dim=1).float()
            share = (picked * words[:, None]).sum(dim=0) / (words.sum() * self.config.top_k)
            chance = (logits.softmax(dim=-1) * words[:, None]).sum(dim=0) / words.sum()
            balance = balance + experts * (share * chance).sum()
            size = size + (torch.logsumexp(logits, dim=-1).pow(2) * words).sum() / words.sum()
            shares.append(share)
        return torch.stack((balance, size)) / len(routings), torch.stack(shares)

    def next_word_loss(self, logits, input_ids, attention_mask):
        """Of each sentence, over the words whose next one is real."""
        chances = F.log_softmax(logits[:, :-1], dim=-1)
        taken = chances.gather(2, input_ids[:, 1:, None]).squeeze(-1)
        counted = (attention_mask[:, 1:] * attention_mask[:, :-1]).float()
        return -(taken * counted).sum(dim=1) / counted.sum(dim=1)

    def forward(self, input_ids, attention_mask):
        config = self.config
        position_ids = (attention_mask.cumsum(dim=-1) - 1).clamp(min=0)
        masks = make_masks(attention_mask, config.window)
        rotary = (self.rotary_full(position_ids), self.rotary_local(position_ids))
        hidden = self.embed_tokens(input_ids) * math.sqrt(config.hidden_size)
        routings = []
        for layer in self.layers:
            hidden, routing = layer(hidden, rotary, masks, position_ids, attention_mask)
            if routing is not None:
                routings.append(routing)
        hidden = self.norm(hidden)
        logits = soft_cap(F.linear(hidden, self.embed_tokens.weight), config.logit_cap)
        losses, shares = self.router_losses(routings, attention_mask)
        return logits, self.next_word_loss(logits, input_ids, attention_mask), losses, shares


SENTENCES = [
    [36, 79, 80, 94, 39, 23, 17, 42, 73, 5, 8, 31, 60, 81, 31, 49, 40, 13, 48],
    [44, 34, 48, 31, 85, 87, 30, 19, 95, 58, 74, 75],
    [37, 15, 69, 42, 84, 60, 32],
]


def build():
    torch.manual_seed(0)
    net = MoeLM(Config())
    nn.init.normal_(net.embed_tokens.weight, std=0.25)
    for module in net.modules():
        if isinstance(module, RMSNorm):
            nn.init.normal_(module.weight, std=0.25)
    for layer in net.layers:
        nn.init.normal_(layer.self_attn.q_norm.weight, mean=0.6, std=0.3)
    longest = max(len(sentence) for sentence in SENTENCES)
    tokens = torch.tensor([[0] * (longest - len(sentence)) + sentence for sentence in SENTENCES])
    return net.eval(), (tokens, (tokens > 0).long())
