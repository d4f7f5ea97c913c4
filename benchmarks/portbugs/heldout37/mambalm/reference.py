"""A small hybrid language model: selective state-space blocks interleaved with grouped-query attention blocks.

Layers alternate between a Mamba-like mixer followed by a dense MLP and an attention mixer followed by a sparse
mixture of experts (top-2 routing plus one gated shared expert). The output embedding is tied to the input embedding.
"""
import math
from dataclasses import dataclass
from typing import List, Optional, Tuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class HybridConfig:
    vocab_size: int = 59
    dim: int = 36
    layer_types: Tuple[str, ...] = ("ssm", "attn", "ssm", "attn", "ssm")
    scan_modes: Tuple[str, ...] = ("loop", "", "chunk", "", "chunk")
    windows: Tuple[Optional[int], ...] = (None, 6, None, None, None)
    norm_eps: float = 1e-5
    # state-space blocks
    d_inner: int = 60
    d_state: int = 7
    d_conv: int = 4
    dt_rank: int = 5
    chunk_size: int = 5
    norm_groups: int = 4
    mlp_dim: int = 50
    # attention blocks
    n_heads: int = 6
    n_kv_heads: int = 2
    head_dim: int = 14
    rotary_dim: int = 8
    rope_theta: float = 500.0
    attn_softcap: float = 8.0
    # mixture of experts
    n_experts: int = 5
    top_k: int = 2
    expert_dim: int = 22
    shared_dim: int = 18
    # objective
    balance_coef: float = 0.05
    z_coef: float = 0.01
    ignore_index: int = -100


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        dtype = x.dtype
        x = x.float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * x.to(dtype)


class RotaryEmbedding(nn.Module):
    """Cosine and sine tables for the first `rotary_dim` channels of every head."""

    def __init__(self, rotary_dim: int, theta: float):
        super().__init__()
        inv_freq = 1.0 / (theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, position_ids):
        freqs = position_ids.float().unsqueeze(-1) * self.inv_freq
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos(), emb.sin()


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary(x, cos, sin):
    """x: (batch, length, heads, head_dim); only the first rotary_dim channels are turned."""
    rot = cos.shape[-1]
    x_rot, x_pass = x[..., :rot], x[..., rot:]
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
    x_rot = x_rot * cos + rotate_half(x_rot) * sin
    return torch.cat((x_rot, x_pass), dim=-1)


def selective_scan_loop(u, delta, A, B, C):
    """Sequential recurrence. u, delta: (b, l, d); A: (d, n); B, C: (b, l, n)."""
    b, l, d = u.shape
    dA = torch.exp(torch.einsum("bld,dn->bldn", delta, A))
    dBu = torch.einsum("bld,bln,bld->bldn", delta, B, u)
    state = u.new_zeros(b, d, A.shape[1])
    ys = []
    for t in range(l):
        state = dA[:, t] * state + dBu[:, t]
        ys.append(torch.einsum("bdn,bn->bd", state, C[:, t]))
    return torch.stack(ys, dim=1)


def selective_scan_chunked(u, delta, A, B, C, chunk):
    """The same recurrence, quadratic inside of chunks and recurrent between them."""
    b, l, d = u.shape
    n = A.shape[1]
    pad = (-l) % chunk
    if pad:
        u, delta = F.pad(u, (0, 0, 0, pad)), F.pad(delta, (0, 0, 0, pad))
        B, C = F.pad(B, (0, 0, 0, pad)), F.pad(C, (0, 0, 0, pad))
    nc = (l + pad) // chunk
    log_decay = torch.einsum("bld,dn->bldn", delta, A).view(b, nc, chunk, d, n)
    dBu = torch.einsum("bld,bln->bldn", delta * u, B).view(b, nc, chunk, d, n)
    C = C.view(b, nc, chunk, n)
    cum = torch.cumsum(log_decay, dim=2)

    # inside of a chunk: position t reads every s <= t
    seg = cum.unsqueeze(3) - cum.unsqueeze(2)
    causal = torch.tril(torch.ones(chunk, chunk, dtype=torch.bool, device=u.device))
    seg = seg.masked_fill(~causal[None, None, :, :, None, None], float("-inf"))
    y_intra = torch.einsum("bctn,bctsdn,bcsdn->bctd", C, torch.exp(seg), dBu)

    # what every chunk adds to the state at its end, and the state with which it begins
    to_end = torch.exp(cum[:, :, -1:] - cum)
    chunk_states = (to_end * dBu).sum(dim=2)
    chunk_decay = torch.exp(cum[:, :, -1])
    state = u.new_zeros(b, d, n)
    entering = []
    for c in range(nc):
        entering.append(state)
        state = chunk_decay[:, c] * state + chunk_states[:, c]
    entering = torch.stack(entering, dim=1)
    y_inter = torch.einsum("bctn,bctdn,bcdn->bctd", C, torch.exp(cum), entering)

    return (y_intra + y_inter).reshape(b, nc * chunk, d)[:, :l]


class SelectiveSSM(nn.Module):
    def __init__(self, cfg: HybridConfig, scan_mode: str):
        super().__init__()
        self.d_inner, self.d_state, self.dt_rank = cfg.d_inner, cfg.d_state, cfg.dt_rank
        self.scan_mode, self.chunk_size = scan_mode, cfg.chunk_size
        self.in_proj = nn.Linear(cfg.dim, 2 * cfg.d_inner, bias=False)
        self.conv1d = nn.Conv1d(cfg.d_inner, cfg.d_inner, cfg.d_conv, groups=cfg.d_inner, padding=cfg.d_conv - 1)
        self.x_proj = nn.Linear(cfg.d_inner, cfg.dt_rank + 2 * cfg.d_state, bias=False)
        self.dt_norm = RMSNorm(cfg.dt_rank, cfg.norm_eps)
        self.b_norm = RMSNorm(cfg.d_state, cfg.norm_eps)
        self.c_norm = RMSNorm(cfg.d_state, cfg.norm_eps)
        self.dt_proj = nn.Linear(cfg.dt_rank, cfg.d_inner, bias=True)
        A = torch.arange(1, cfg.d_state + 1, dtype=torch.float32).repeat(cfg.d_inner, 1)
        self.A_log = nn.Parameter(torch.log(A))
        self.D = nn.Parameter(torch.ones(cfg.d_inner))
        self.out_norm = nn.GroupNorm(cfg.norm_groups, cfg.d_inner, eps=64e-5)
        self.out_proj = nn.Linear(cfg.d_inner, cfg.dim, bias=False)

    def forward(self, hidden, attention_mask, cos=None, sin=None):
        b, l, _ = hidden.shape
        keep = attention_mask.to(hidden.dtype).unsqueeze(-1)
        x, z = self.in_proj(hidden).chunk(2, dim=-1)

        x = x * keep
        x = self.conv1d(x.transpose(1, 2))[..., :l].transpose(1, 2)
        x = F.silu(x)
        x = x * keep  # the bias of the convolution must not enter the state at padding

        dt, B, C = torch.split(self.x_proj(x), [self.dt_rank, self.d_state, self.d_state], dim=-1)
        dt, B, C = self.dt_norm(dt), self.b_norm(B), self.c_norm(C)
        delta = F.softplus(self.dt_proj(dt))
        A = -torch.exp(self.A_log.float())
        if self.scan_mode == "loop":
            y = selective_scan_loop(x, delta, A, B, C)
        else:
            y = selective_scan_chunked(x, delta, A, B, C, self.chunk_size)
        y = y + x * self.D

        y = y * F.silu(z)
        y = self.out_norm(y.reshape(b * l, self.d_inner)).view(b, l, self.d_inner)
        return self.out_proj(y)


class GroupedAttention(nn.Module):
    def __init__(self, cfg: HybridConfig, window: Optional[int]):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = cfg.n_heads, cfg.n_kv_heads, cfg.head_dim
        self.window, self.softcap = window, cfg.attn_softcap
        self.scale = 1.0 / math.sqrt(cfg.head_dim)
        self.q_proj = nn.Linear(cfg.dim, cfg.n_heads * cfg.head_dim, bias=True)
        self.k_proj = nn.Linear(cfg.dim, cfg.n_kv_heads * cfg.head_dim, bias=True)
        self.v_proj = nn.Linear(cfg.dim, cfg.n_kv_heads * cfg.head_dim, bias=True)
        self.q_norm = nn.LayerNorm(cfg.head_dim)
        self.k_norm = nn.LayerNorm(cfg.head_dim)
        self.o_proj = nn.Linear(cfg.n_heads * cfg.head_dim, cfg.dim, bias=False)

    def forward(self, hidden, attention_mask, cos, sin):
        b, l, _ = hidden.shape
        groups = self.n_heads // self.n_kv_heads
        q = self.q_norm(self.q_proj(hidden).view(b, l, self.n_heads, self.head_dim))
        k = self.k_norm(self.k_proj(hidden).view(b, l, self.n_kv_heads, self.head_dim))
        v = self.v_proj(hidden).view(b, l, self.n_kv_heads, self.head_dim)
        q, k = apply_rotary(q, cos, sin), apply_rotary(k, cos, sin)

        q = q.view(b, l, self.n_kv_heads, groups, self.head_dim)
        scores = torch.einsum("bqhgd,bkhd->bhgqk", q, k) * self.scale
        scores = self.softcap * torch.tanh(scores / self.softcap)

        idx = torch.arange(l, device=hidden.device)
        distance = idx[:, None] - idx[None, :]
        allowed = distance >= 0
        if self.window is not None:
            allowed = allowed & (distance < self.window)
        allowed = allowed[None] & attention_mask.bool()[:, None, :]
        scores = scores.masked_fill(~allowed[:, None, None], torch.finfo(scores.dtype).min)
        probs = torch.softmax(scores, dim=-1)

        out = torch.einsum("bhgqk,bkhd->bqhgd", probs, v)
        return self.o_proj(out.reshape(b, l, self.n_heads * self.head_dim))


class GatedMLP(nn.Module):
    def __init__(self, dim: int, hidden_dim: int):
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden_dim, bias=False)
        self.up_proj = nn.Linear(dim, hidden_dim, bias=False)
        self.down_proj = nn.Linear(hidden_dim, dim, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class SparseMoE(nn.Module):
    def __init__(self, cfg: HybridConfig):
        super().__init__()
        self.n_experts, self.top_k = cfg.n_experts, cfg.top_k
        self.router = nn.Linear(cfg.dim, cfg.n_experts, bias=False)
        self.experts = nn.ModuleList([GatedMLP(cfg.dim, cfg.expert_dim) for _ in range(cfg.n_experts)])
        self.shared_expert = GatedMLP(cfg.dim, cfg.shared_dim)
        self.shared_gate = nn.Linear(cfg.dim, 1, bias=False)

    def forward(self, hidden):
        b, l, d = hidden.shape
        x = hidden.reshape(-1, d)
        router_logits = self.router(x)
        probs = F.softmax(router_logits, dim=-1, dtype=torch.float32)
        weights, selected = torch.topk(probs, self.top_k, dim=-1)
        weights = (weights / weights.sum(dim=-1, keepdim=True)).to(x.dtype)

        out = torch.zeros_like(x)
        expert_mask = F.one_hot(selected, num_classes=self.n_experts).permute(2, 1, 0)
        for e, expert in enumerate(self.experts):
            slot, token = torch.where(expert_mask[e] > 0)
            if token.numel() == 0:
                continue
            y = expert(x[token]) * weights[token, slot, None]
            out.index_add_(0, token, y)

        shared = torch.sigmoid(self.shared_gate(x)) * self.shared_expert(x)
        return (out + shared).view(b, l, d), router_logits


class HybridLayer(nn.Module):
    def __init__(self, cfg: HybridConfig, index: int):
        super().__init__()
        kind = cfg.layer_types[index]
        self.norm1 = RMSNorm(cfg.dim, cfg.norm_eps)
        self.norm2 = RMSNorm(cfg.dim, cfg.norm_eps)
        if kind == "ssm":
            self.mixer = SelectiveSSM(cfg, cfg.scan_modes[index])
            self.ffn = GatedMLP(cfg.dim, cfg.mlp_dim)
        else:
            self.mixer = GroupedAttention(cfg, cfg.windows[index])
            self.ffn = SparseMoE(cfg)
        self.sparse = kind == "attn"

    def forward(self, hidden, attention_mask, cos, sin):
        hidden = hidden + self.mixer(self.norm1(hidden), attention_mask, cos, sin)
        router_logits = None
        residual = hidden
        hidden = self.norm2(hidden)
        if self.sparse:
            hidden, router_logits = self.ffn(hidden)
        else:
            hidden = self.ffn(hidden)
        return residual + hidden, router_logits


def load_balancing_loss(router_logits: List[torch.Tensor], n_experts: int, top_k: int, attention_mask):
    """n_experts * sum_e f_e * p_e over the tokens of all layers that are no padding."""
    n_layers = len(router_logits)
    logits = torch.cat(router_logits, dim=0)
    probs = torch.softmax(logits, dim=-1)
    _, selected = torch.topk(probs, top_k, dim=-1)
    expert_mask = F.one_hot(selected, n_experts).float()
    keep = attention_mask.reshape(1, -1).expand(n_layers, -1).reshape(-1).float()
    tokens_per_expert = (expert_mask * keep[:, None, None]).sum(dim=0) / keep.sum()
    prob_per_expert = (probs * keep[:, None]).sum(dim=0) / keep.sum()
    balance = n_experts * torch.sum(tokens_per_expert * prob_per_expert.unsqueeze(0))
    z = (torch.logsumexp(logits, dim=-1).pow(2) * keep).sum() / keep.sum()
    return balance, z


class HybridLM(nn.Module):
    def __init__(self, cfg: HybridConfig):
        super().__init__()
        self.cfg = cfg
        self.embed = nn.Embedding(cfg.vocab_size, cfg.dim)
        self.rotary = RotaryEmbedding(cfg.rotary_dim, cfg.rope_theta)
        self.layers = nn.ModuleList([HybridLayer(cfg, i) for i in range(len(cfg.layer_types))])
        self.final_norm = RMSNorm(cfg.dim, cfg.norm_eps)
        self.lm_head = nn.Linear(cfg.dim, cfg.vocab_size, bias=False)
        self.lm_head.weight = self.embed.weight

    def token_loss(self, logits, labels, attention_mask):
        shift_logits = logits[:, :-1].contiguous()
        shift_labels = labels[:, 1:].contiguous()
        nll = F.cross_entropy(
            shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1),
            ignore_index=self.cfg.ignore_index, reduction="none",
        ).view_as(shift_labels)
        valid = (shift_labels != self.cfg.ignore_index) & attention_mask[:, 1:].bool()
        nll = nll * valid.to(nll.dtype)
        return nll.sum() / valid.sum().clamp(min=1)

    def forward(self, input_ids, attention_mask, labels):
        cfg = self.cfg
        hidden = self.embed(input_ids)
        position_ids = (attention_mask.cumsum(dim=-1) - 1).clamp(min=0)
        cos, sin = self.rotary(position_ids)

        all_router_logits = []
        for layer in self.layers:
            hidden, router_logits = layer(hidden, attention_mask, cos, sin)
            if router_logits is not None:
                all_router_logits.append(router_logits)

        logits = self.lm_head(self.final_norm(hidden))
        balance, z = load_balancing_loss(all_router_logits, cfg.n_experts, cfg.top_k, attention_mask)
        loss = self.token_loss(logits, labels, attention_mask)
        aux = cfg.balance_coef * balance + cfg.z_coef * z
        return logits, loss + aux, balance


def randomize(net: nn.Module):
    """Weights as after some training: nothing is at its initial value."""
    with torch.no_grad():
        for name, p in net.named_parameters():
            noise = torch.randn_like(p)
            if name.endswith("A_log"):
                p.add_(0.3 * noise - 1.0)
            elif name.endswith(".D"):
                p.add_(0.4 * noise)
            elif name.endswith("dt_proj.bias"):
                p.copy_(0.6 * noise - 1.5)
            elif name.endswith("dt_proj.weight"):
                p.copy_(0.4 * noise)
            elif "norm" in name:
                p.copy_(0.1 * noise if name.endswith("bias") else 1.0 + 0.25 * noise)
            elif "embed" in name:
                p.copy_(0.3 * noise)
            elif name.endswith("bias"):
                p.copy_(0.25 * noise)
            else:
                p.copy_(noise / math.sqrt(p[0].numel()))


def make_inputs(vocab_size: int, batch: int = 3, length: int = 19):
    rng = np.random.RandomState(11)
    input_ids = rng.randint(1, vocab_size, size=(batch, length)).astype(np.int64)
    attention_mask = np.ones((batch, length), dtype=np.int64)
    attention_mask[1, :4] = 0  # padded at the left
    attention_mask[2, -5:] = 0  # padded at the right
    input_ids[attention_mask == 0] = 0
    labels = input_ids.copy()
    labels[0, :3] = -100  # a prompt that is not learnt
    labels[2, 6:8] = -100
    return input_ids, attention_mask, labels


def build():
    torch.manual_seed(3)
    cfg = HybridConfig()
    net = HybridLM(cfg)
    randomize(net)
    inputs = tuple(torch.from_numpy(a) for a in make_inputs(cfg.vocab_size))
    return net.eval(), inputs


if __name__ == "__main__":
    net, inputs = build()
    with torch.no_grad():
        logits, loss, balance = net(*inputs)
    print(tuple(logits.shape), float(loss), float(balance))
