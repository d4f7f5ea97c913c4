# A small sparse decoder in the manner of today's open checkpoints: grouped queries, qk-norm, sinks, sliding windows,
# sandwich norms, routed experts with a capacity beside a shared one, and a head tied to the embedding.
import math
from typing import Optional, Tuple

import torch
from torch import nn
from torch.nn import functional as F


class MixtureConfig:
    def __init__(self, **kwargs):
        self.vocab_size = 112
        self.hidden_size = 48
        self.num_hidden_layers = 3
        self.num_attention_heads = 4
        self.num_key_value_heads = 2
        self.head_dim = 12
        self.rotary_dim = 8
        self.rope_theta = 500.0
        self.rope_factor = 4.0
        self.rope_original_length = 48
        self.sliding_window = 5
        self.full_every = 3
        self.attn_softcap = 8.0
        self.final_softcap = 12.0
        self.num_experts = 5
        self.num_experts_per_tok = 2
        self.moe_intermediate_size = 28
        self.shared_intermediate_size = 36
        self.capacity_factor = 1.1
        self.routed_scaling = 1.8
        self.swiglu_limit = 1.5
        self.swiglu_alpha = 1.702
        self.rms_norm_eps = 1e-6
        self.__dict__.update(kwargs)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    dtype = x.dtype
    x = x.float()
    variance = x.pow(2).mean(-1, keepdim=True)
    x = x * torch.rsqrt(variance + eps)
    return (x * (1.0 + weight.float())).to(dtype)


def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(q, k, cos, sin) -> Tuple[torch.Tensor, torch.Tensor]:
    """Only the first channels of each head turn; the others pass."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    rotary_dim = cos.shape[-1]
    q_rot, q_pass = q[..., :rotary_dim], q[..., rotary_dim:]
    k_rot, k_pass = k[..., :rotary_dim], k[..., rotary_dim:]
    q_embed = (q_rot * cos) + (rotate_half(q_rot) * sin)
    k_embed = (k_rot * cos) + (rotate_half(k_rot) * sin)
    return torch.cat([q_embed, q_pass], dim=-1), torch.cat([k_embed, k_pass], dim=-1)


def repeat_kv(hidden_states: torch.Tensor, n_rep: int) -> torch.Tensor:
    """(batch, kv heads, length, dim) -> (batch, heads, length, dim)"""
    batch, num_key_value_heads, slen, head_dim = hidden_states.shape
    if n_rep == 1:
        return hidden_states
    hidden_states = hidden_states[:, :, None, :, :].expand(batch, num_key_value_heads, n_rep, slen, head_dim)
    return hidden_states.reshape(batch, num_key_value_heads * n_rep, slen, head_dim)


def make_mask(attention_mask: torch.Tensor, window: Optional[int] = None) -> torch.Tensor:
    """Causal, cut to the window if there is one, and without the padding: zeros and huge negative numbers."""
    length = attention_mask.shape[-1]
    q_idx = torch.arange(length)[:, None]
    k_idx = torch.arange(length)[None, :]
    allowed = k_idx <= q_idx
    if window is not None:
        allowed = allowed & (q_idx - k_idx < window)
    allowed = allowed[None, None] & attention_mask[:, None, None, :].bool()
    bias = torch.zeros(allowed.shape)
    return bias.masked_fill(~allowed, torch.finfo(torch.float32).min)


class Attention(nn.Module):
    def __init__(self, config: MixtureConfig, layer_idx: int):
        super().__init__()
        self.layer_idx = layer_idx
        self.eps = config.rms_norm_eps
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = config.head_dim**-0.5
        self.softcap = config.attn_softcap
        self.q_proj = nn.Linear(config.hidden_size, config.num_attention_heads * config.head_dim, bias=True)
        self.k_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * config.head_dim, bias=True)
        self.o_proj = nn.Linear(config.num_attention_heads * config.head_dim, config.hidden_size, bias=False)
        self.q_norm = nn.Parameter(torch.empty(config.head_dim))
        self.k_norm = nn.Parameter(torch.empty(config.head_dim))
        self.sinks = nn.Parameter(torch.empty(config.num_attention_heads))
        self.value_lambda = nn.Parameter(torch.empty(1))

    def forward(self, hidden_states, position_embeddings, attention_mask, first_values=None):
        input_shape = hidden_states.shape[:-1]
        hidden_shape = (*input_shape, -1, self.head_dim)

        query_states = rms_norm(self.q_proj(hidden_states).view(hidden_shape), self.q_norm, self.eps).transpose(1, 2)
        key_states = rms_norm(self.k_proj(hidden_states).view(hidden_shape), self.k_norm, self.eps).transpose(1, 2)
        value_states = self.v_proj(hidden_states).view(hidden_shape).transpose(1, 2)
        if first_values is None:
            first_values = value_states
        else:
            value_states = self.value_lambda * value_states + (1 - self.value_lambda) * first_values

        cos, sin = position_embeddings
        query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)
        key_states = repeat_kv(key_states, self.num_key_value_groups)
        value_states = repeat_kv(value_states, self.num_key_value_groups)

        attn_weights = torch.matmul(query_states, key_states.transpose(2, 3)) * self.scaling
        attn_weights = self.softcap * torch.tanh(attn_weights / self.softcap)
        attn_weights = attn_weights + attention_mask
        sinks = self.sinks.reshape(1, -1, 1, 1).expand(attn_weights.shape[0], -1, attn_weights.shape[2], -1)
        combined = torch.cat([attn_weights, sinks], dim=-1)
        combined = combined - combined.max(dim=-1, keepdim=True).values
        probs = F.softmax(combined, dim=-1, dtype=torch.float32)
        attn_output = torch.matmul(probs[..., :-1], value_states)
        attn_output = attn_output.transpose(1, 2).reshape(*input_shape, -1)
        return self.o_proj(attn_output), first_values


class SparseMoE(nn.Module):
    """Sigmoid scores, a bias that counts for the choice only, and experts that take no more than their capacity."""

    def __init__(self, config: MixtureConfig):
        super().__init__()
        self.top_k = config.num_experts_per_tok
        self.num_experts = config.num_experts
        self.capacity_factor = config.capacity_factor
        self.routed_scaling = config.routed_scaling
        self.limit, self.alpha = config.swiglu_limit, config.swiglu_alpha
        width, inner, shared = config.hidden_size, config.moe_intermediate_size, config.shared_intermediate_size
        self.router = nn.Linear(width, self.num_experts, bias=False)
        self.correction_bias = nn.Parameter(torch.empty(self.num_experts))
        self.gate_up_proj = nn.Parameter(torch.empty(self.num_experts, width, 2 * inner))
        self.gate_up_bias = nn.Parameter(torch.empty(self.num_experts, 2 * inner))
        self.down_proj = nn.Parameter(torch.empty(self.num_experts, inner, width))
        self.shared_gate_proj = nn.Linear(width, shared, bias=False)
        self.shared_up_proj = nn.Linear(width, shared, bias=False)
        self.shared_down_proj = nn.Linear(shared, width, bias=False)
        self.shared_router = nn.Linear(width, 1, bias=False)

    def route(self, x):
        scores = torch.sigmoid(self.router(x).float())
        _, indices = torch.topk(scores + self.correction_bias, self.top_k, dim=-1)
        weights = scores.gather(1, indices)
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        return weights * self.routed_scaling, indices

    def within_capacity(self, indices):
        """All first choices are served before any second one, in the order of the tokens."""
        tokens = indices.shape[0]
        capacity = math.ceil(self.capacity_factor * tokens * self.top_k / self.num_experts)
        chosen = F.one_hot(indices, self.num_experts).transpose(0, 1).reshape(-1, self.num_experts)
        rank = ((chosen.cumsum(dim=0) - 1) * chosen).sum(dim=-1)
        return rank.view(self.top_k, tokens).transpose(0, 1) < capacity

    def expert(self, x, e):
        gate, up = (x @ self.gate_up_proj[e] + self.gate_up_bias[e]).chunk(2, dim=-1)
        gate = gate.clamp(max=self.limit)
        up = up.clamp(min=-self.limit, max=self.limit)
        glu = gate * torch.sigmoid(self.alpha * gate)
        return ((up + 1) * glu) @ self.down_proj[e]

    def forward(self, hidden_states):
        shape = hidden_states.shape
        x = hidden_states.reshape(-1, shape[-1])
        weights, indices = self.route(x)
        keep = self.within_capacity(indices)
        out = torch.zeros_like(x)
        for e in range(self.num_experts):
            token_idx, slot = torch.where((indices == e) & keep)
            if token_idx.numel() == 0:
                continue
            out.index_add_(0, token_idx, self.expert(x[token_idx], e) * weights[token_idx, slot, None])
        shared = self.shared_down_proj(F.silu(self.shared_gate_proj(x)) * self.shared_up_proj(x))
        shared = torch.sigmoid(self.shared_router(x)) * shared
        return (out + shared).view(shape)


class DecoderLayer(nn.Module):
    def __init__(self, config: MixtureConfig, layer_idx: int):
        super().__init__()
        self.eps = config.rms_norm_eps
        self.self_attn = Attention(config, layer_idx)
        self.mlp = SparseMoE(config)
        self.input_layernorm = nn.Parameter(torch.empty(config.hidden_size))
        self.post_attention_layernorm = nn.Parameter(torch.empty(config.hidden_size))
        self.pre_feedforward_layernorm = nn.Parameter(torch.empty(config.hidden_size))
        self.post_feedforward_layernorm = nn.Parameter(torch.empty(config.hidden_size))

    def forward(self, hidden_states, position_embeddings, attention_mask, first_values=None):
        residual = hidden_states
        hidden_states = rms_norm(hidden_states, self.input_layernorm, self.eps)
        hidden_states, first_values = self.self_attn(
            hidden_states, position_embeddings, attention_mask, first_values=first_values
        )
        hidden_states = rms_norm(hidden_states, self.post_attention_layernorm, self.eps)
        hidden_states = residual + hidden_states

        residual = hidden_states
        hidden_states = rms_norm(hidden_states, self.pre_feedforward_layernorm, self.eps)
        hidden_states = self.mlp(hidden_states)
        hidden_states = rms_norm(hidden_states, self.post_feedforward_layernorm, self.eps)
        hidden_states = residual + hidden_states
        return hidden_states, first_values


class MixtureForCausalLM(nn.Module):
    def __init__(self, config: MixtureConfig):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([DecoderLayer(config, i) for i in range(config.num_hidden_layers)])
        self.norm = nn.Parameter(torch.empty(config.hidden_size))

        # long waves are stretched, short ones are left, what lies between is mixed
        exponent = torch.arange(0, config.rotary_dim, 2).float() / config.rotary_dim
        inv_freq = 1.0 / (config.rope_theta**exponent)
        wavelen = 2 * math.pi / inv_freq
        smooth = ((config.rope_original_length / wavelen - 1.0) / (4.0 - 1.0)).clamp(0, 1)
        inv_freq = (1 - smooth) * inv_freq / config.rope_factor + smooth * inv_freq
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def rotary(self, position_ids):
        freqs = position_ids[:, :, None].float() * self.inv_freq[None, None, :]
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos(), emb.sin()

    def forward(self, input_ids, attention_mask):
        config = self.config
        position_ids = (attention_mask.cumsum(dim=-1) - 1).clamp(min=0)
        position_embeddings = self.rotary(position_ids)
        full_mask = make_mask(attention_mask)
        sliding_mask = make_mask(attention_mask, window=config.sliding_window)

        hidden_states = self.embed_tokens(input_ids) * config.hidden_size**0.5
        first_values = None
        for i, layer in enumerate(self.layers):
            mask = full_mask if (i + 1) % config.full_every == 0 else sliding_mask
            hidden_states, first_values = layer(hidden_states, position_embeddings, mask, first_values=first_values)

        hidden_states = rms_norm(hidden_states, self.norm, config.rms_norm_eps)
        logits = F.linear(hidden_states, self.embed_tokens.weight)
        return config.final_softcap * torch.tanh(logits / config.final_softcap)


def build():
    torch.manual_seed(31)
    net = MixtureForCausalLM(MixtureConfig())
    with torch.no_grad():
        for name, p in net.named_parameters():
            last = name.split(".")[-1]
            if last.endswith("norm"):
                p.uniform_(-0.4, 0.4)
            elif last == "sinks":
                p.normal_(0.3, 0.8)
            elif last == "value_lambda":
                p.fill_(0.35 + 0.1 * float(torch.rand(())))
            elif last == "correction_bias":
                p.normal_(0.0, 0.25)
            elif last in ("bias", "gate_up_bias"):
                p.normal_(0.0, 0.3)
            elif "embed_tokens" in name:
                p.normal_(0.0, 0.2)
            else:
                fan = p.shape[-2] if p.dim() == 3 else p.shape[-1]
                p.normal_(0.0, 1.4 / math.sqrt(fan))
    tokens = torch.randint(0, 112, (3, 16))
    mask = torch.ones(3, 16, dtype=torch.long)
    mask[1, :3] = 0
    mask[2, :5] = 0
    return net.eval(), (tokens, mask)
