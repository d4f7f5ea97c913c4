"""A mixture-of-experts language model in the manner of Qwen3-MoE with greedy generation, in PyTorch: the reference."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class MoeConfig:
    vocab_size: int = 67
    hidden_size: int = 40
    num_hidden_layers: int = 4
    num_attention_heads: int = 6
    num_key_value_heads: int = 2
    head_dim: int = 12
    attention_bias: bool = True
    num_experts: int = 5
    num_experts_per_tok: int = 2
    norm_topk_prob: bool = True
    moe_intermediate_size: int = 22
    shared_expert_intermediate_size: int = 30
    rms_norm_eps: float = 1e-5
    sliding_window: int = 5
    layer_types: List[str] = field(
        default_factory=lambda: ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    )
    max_position_embeddings: int = 256
    rope_theta: float = 1000.0
    rope_factor: float = 4.0
    original_max_position_embeddings: int = 64
    beta_fast: float = 8.0
    beta_slow: float = 1.0
    pad_token_id: int = 1
    eos_token_id: int = 40
    max_new_tokens: int = 3
    repetition_penalty: float = 1.3


# ---------------------------------------------------------------------------------------------------------------------
# rotary tables
# ---------------------------------------------------------------------------------------------------------------------


def compute_default_inv_freq(config: MoeConfig) -> Tuple[torch.Tensor, float]:
    """Frequencies without any scaling."""
    dim = config.head_dim
    inv_freq = 1.0 / (config.rope_theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
    return inv_freq, 1.0


def compute_yarn_inv_freq(config: MoeConfig) -> Tuple[torch.Tensor, float]:
    """Frequencies by NTK-by-parts interpolation, and the factor for cosine and sine."""
    dim, base, factor = config.head_dim, config.rope_theta, config.rope_factor
    attention_factor = 0.1 * math.log(factor) + 1.0

    def find_correction_dim(num_rotations: float) -> float:
        original = config.original_max_position_embeddings
        return (dim * math.log(original / (num_rotations * 2 * math.pi))) / (2 * math.log(base))

    def find_correction_range(low_rot: float, high_rot: float) -> Tuple[int, int]:
        low = math.floor(find_correction_dim(low_rot))
        high = math.ceil(find_correction_dim(high_rot))
        return max(low, 0), min(high, dim - 1)

    def linear_ramp_factor(low: float, high: float, size: int) -> torch.Tensor:
        if low == high:
            high += 0.001
        linear = (torch.arange(size, dtype=torch.float32) - low) / (high - low)
        return torch.clamp(linear, 0, 1)

    pos_freqs = base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    inv_freq_extrapolation = 1.0 / pos_freqs
    inv_freq_interpolation = 1.0 / (factor * pos_freqs)
    low, high = find_correction_range(config.beta_fast, config.beta_slow)
    extrapolation_factor = 1 - linear_ramp_factor(low, high, dim // 2)
    inv_freq = (
        inv_freq_interpolation * (1 - extrapolation_factor) + inv_freq_extrapolation * extrapolation_factor
    )
    return inv_freq, attention_factor


class RotaryEmbedding(nn.Module):
    """Tables of cosine and sine: scaled ones for full attention, plain ones for the sliding window."""

    def __init__(self, config: MoeConfig):
        super().__init__()
        for layer_type, compute in (
            ("full_attention", compute_yarn_inv_freq),
            ("sliding_attention", compute_default_inv_freq),
        ):
            inv_freq, attention_scaling = compute(config)
            positions = torch.arange(config.max_position_embeddings, dtype=torch.float32)
            freqs = torch.outer(positions, inv_freq)
            emb = torch.cat((freqs, freqs), dim=-1)
            self.register_buffer(f"{layer_type}_cos", emb.cos() * attention_scaling, persistent=False)
            self.register_buffer(f"{layer_type}_sin", emb.sin() * attention_scaling, persistent=False)

    def forward(self, position_ids: torch.Tensor, layer_type: str):
        cos = getattr(self, f"{layer_type}_cos")[position_ids]
        sin = getattr(self, f"{layer_type}_sin")[position_ids]
        return cos, sin


def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
    cos = cos.unsqueeze(unsqueeze_dim)
    sin = sin.unsqueeze(unsqueeze_dim)
    q_embed = (q * cos) + (rotate_half(q) * sin)
    k_embed = (k * cos) + (rotate_half(k) * sin)
    return q_embed, k_embed


# ---------------------------------------------------------------------------------------------------------------------
# cache and masks
# ---------------------------------------------------------------------------------------------------------------------


class HybridCache:
    """Keys and values of each layer; a sliding layer keeps only what the next token can still see."""

    def __init__(self, config: MoeConfig):
        self.layer_types = config.layer_types
        self.window = config.sliding_window
        self.keys: List[Optional[torch.Tensor]] = [None] * config.num_hidden_layers
        self.values: List[Optional[torch.Tensor]] = [None] * config.num_hidden_layers

    def kept(self, layer_idx: int) -> int:
        return 0 if self.keys[layer_idx] is None else self.keys[layer_idx].shape[-2]

    def update(self, key_states, value_states, layer_idx: int):
        if self.keys[layer_idx] is not None:
            key_states = torch.cat([self.keys[layer_idx], key_states], dim=-2)
            value_states = torch.cat([self.values[layer_idx], value_states], dim=-2)
        if self.layer_types[layer_idx] == "sliding_attention":
            self.keys[layer_idx] = key_states[:, :, -(self.window - 1) :, :]
            self.values[layer_idx] = value_states[:, :, -(self.window - 1) :, :]
        else:
            self.keys[layer_idx] = key_states
            self.values[layer_idx] = value_states
        return key_states, value_states


def make_causal_mask(attention_mask, query_length: int, kv_length: int, window: Optional[int] = None):
    """Additive mask of shape (batch, 1, query, key) for the last `query_length` slots of the sequence."""
    total = attention_mask.shape[1]
    q_idx = torch.arange(total - query_length, total, device=attention_mask.device)[:, None]
    kv_idx = torch.arange(total - kv_length, total, device=attention_mask.device)[None, :]
    allowed = kv_idx <= q_idx
    if window is not None:
        allowed = allowed & (q_idx - kv_idx < window)
    allowed = allowed[None, :, :] & attention_mask[:, None, total - kv_length :].bool()
    mask = torch.zeros(allowed.shape, dtype=torch.float32, device=attention_mask.device)
    mask = mask.masked_fill(~allowed, torch.finfo(torch.float32).min)
    return mask[:, None]


# ---------------------------------------------------------------------------------------------------------------------
# layers
# ---------------------------------------------------------------------------------------------------------------------


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(input_dtype)

    def extra_repr(self):
        return f"{tuple(self.weight.shape)}, eps={self.variance_epsilon}"


def repeat_kv(hidden_states: torch.Tensor, n_rep: int) -> torch.Tensor:
    """(batch, kv heads, length, dim) to (batch, heads, length, dim)."""
    batch, num_key_value_heads, slen, head_dim = hidden_states.shape
    if n_rep == 1:
        return hidden_states
    hidden_states = hidden_states[:, :, None, :, :].expand(batch, num_key_value_heads, n_rep, slen, head_dim)
    return hidden_states.reshape(batch, num_key_value_heads * n_rep, slen, head_dim)


def eager_attention_forward(query, key, value, attention_mask, scaling: float, n_rep: int):
    key_states = repeat_kv(key, n_rep)
    value_states = repeat_kv(value, n_rep)
    attn_weights = torch.matmul(query, key_states.transpose(2, 3)) * scaling
    attn_weights = attn_weights + attention_mask
    attn_weights = F.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query.dtype)
    attn_output = torch.matmul(attn_weights, value_states)
    return attn_output.transpose(1, 2).contiguous()


class MoeAttention(nn.Module):
    def __init__(self, config: MoeConfig, layer_idx: int):
        super().__init__()
        self.layer_idx = layer_idx
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = self.head_dim**-0.5
        hidden, bias = config.hidden_size, config.attention_bias
        self.q_proj = nn.Linear(hidden, config.num_attention_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(hidden, config.num_key_value_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(hidden, config.num_key_value_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(config.num_attention_heads * self.head_dim, hidden, bias=bias)
        self.q_norm = RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.k_norm = RMSNorm(self.head_dim, eps=config.rms_norm_eps)

    def forward(self, hidden_states, position_embeddings, attention_mask, past_key_values: HybridCache):
        input_shape = hidden_states.shape[:-1]
        hidden_shape = (*input_shape, -1, self.head_dim)

        query_states = self.q_norm(self.q_proj(hidden_states).view(hidden_shape)).transpose(1, 2)
        key_states = self.k_norm(self.k_proj(hidden_states).view(hidden_shape)).transpose(1, 2)
        value_states = self.v_proj(hidden_states).view(hidden_shape).transpose(1, 2)

        cos, sin = position_embeddings
        query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)
        key_states, value_states = past_key_values.update(key_states, value_states, self.layer_idx)

        attn_output = eager_attention_forward(
            query_states, key_states, value_states, attention_mask, self.scaling, self.num_key_value_groups
        )
        attn_output = attn_output.reshape(*input_shape, -1)
        return self.o_proj(attn_output)


class MoeMLP(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int):
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class SparseMoeBlock(nn.Module):
    """Each token goes to its best experts, and all of them to the shared expert."""

    def __init__(self, config: MoeConfig):
        super().__init__()
        self.num_experts = config.num_experts
        self.top_k = config.num_experts_per_tok
        self.norm_topk_prob = config.norm_topk_prob
        self.gate = nn.Linear(config.hidden_size, config.num_experts, bias=False)
        self.experts = nn.ModuleList(
            [MoeMLP(config.hidden_size, config.moe_intermediate_size) for _ in range(self.num_experts)]
        )
        self.shared_expert = MoeMLP(config.hidden_size, config.shared_expert_intermediate_size)
        self.shared_expert_gate = nn.Linear(config.hidden_size, 1, bias=False)

    def forward(self, hidden_states):
        batch_size, sequence_length, hidden_dim = hidden_states.shape
        hidden_states = hidden_states.view(-1, hidden_dim)
        router_logits = self.gate(hidden_states)

        routing_weights = F.softmax(router_logits, dim=1, dtype=torch.float)
        routing_weights, selected_experts = torch.topk(routing_weights, self.top_k, dim=-1)
        if self.norm_topk_prob:
            routing_weights = routing_weights / routing_weights.sum(dim=-1, keepdim=True)
        routing_weights = routing_weights.to(hidden_states.dtype)

        final_hidden_states = torch.zeros_like(hidden_states)
        expert_mask = F.one_hot(selected_experts, num_classes=self.num_experts).permute(2, 1, 0)
        expert_hit = torch.greater(expert_mask.sum(dim=(-1, -2)), 0).nonzero().flatten()
        for expert_idx in expert_hit.tolist():
            idx, top_x = torch.where(expert_mask[expert_idx])
            current_state = hidden_states[top_x]
            current_hidden_states = self.experts[expert_idx](current_state) * routing_weights[top_x, idx, None]
            final_hidden_states.index_add_(0, top_x, current_hidden_states.to(hidden_states.dtype))

        shared_expert_output = self.shared_expert(hidden_states)
        shared_expert_output = torch.sigmoid(self.shared_expert_gate(hidden_states)) * shared_expert_output
        final_hidden_states = final_hidden_states + shared_expert_output
        return final_hidden_states.reshape(batch_size, sequence_length, hidden_dim), router_logits


class MoeDecoderLayer(nn.Module):
    def __init__(self, config: MoeConfig, layer_idx: int):
        super().__init__()
        self.attention_type = config.layer_types[layer_idx]
        self.self_attn = MoeAttention(config, layer_idx)
        self.mlp = SparseMoeBlock(config)
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, hidden_states, position_embeddings, attention_mask, past_key_values):
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states = self.self_attn(hidden_states, position_embeddings, attention_mask, past_key_values)
        hidden_states = residual + hidden_states

        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states, router_logits = self.mlp(hidden_states)
        hidden_states = residual + hidden_states
        return hidden_states, router_logits


class MoeModel(nn.Module):
    def __init__(self, config: MoeConfig):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList([MoeDecoderLayer(config, i) for i in range(config.num_hidden_layers)])
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = RotaryEmbedding(config)

    def forward(self, input_ids, attention_mask, position_ids, past_key_values: HybridCache):
        hidden_states = self.embed_tokens(input_ids)
        query_length = input_ids.shape[1]

        causal_mask_mapping, position_embeddings = {}, {}
        for layer_type in ("full_attention", "sliding_attention"):
            first = self.config.layer_types.index(layer_type)
            window = self.config.sliding_window if layer_type == "sliding_attention" else None
            kv_length = past_key_values.kept(first) + query_length
            causal_mask_mapping[layer_type] = make_causal_mask(attention_mask, query_length, kv_length, window)
            position_embeddings[layer_type] = self.rotary_emb(position_ids, layer_type)

        all_router_logits = ()
        for decoder_layer in self.layers:
            hidden_states, router_logits = decoder_layer(
                hidden_states,
                position_embeddings[decoder_layer.attention_type],
                causal_mask_mapping[decoder_layer.attention_type],
                past_key_values,
            )
            all_router_logits += (router_logits,)
        return self.norm(hidden_states), all_router_logits


def load_balancing_loss_func(gate_logits, num_experts: int, top_k: int, attention_mask):
    """The auxiliary number of the Switch Transformer over all layers, without the padded tokens."""
    concatenated_gate_logits = torch.cat(list(gate_logits), dim=0)
    routing_weights = F.softmax(concatenated_gate_logits, dim=-1)
    _, selected_experts = torch.topk(routing_weights, top_k, dim=-1)
    expert_mask = F.one_hot(selected_experts, num_experts).float()

    batch_size, sequence_length = attention_mask.shape
    num_hidden_layers = concatenated_gate_logits.shape[0] // (batch_size * sequence_length)
    expert_attention_mask = (
        attention_mask[None, :, :, None, None]
        .expand((num_hidden_layers, batch_size, sequence_length, top_k, num_experts))
        .reshape(-1, top_k, num_experts)
    )
    tokens_per_expert = torch.sum(expert_mask * expert_attention_mask, dim=0) / torch.sum(expert_attention_mask, dim=0)
    router_attention_mask = (
        attention_mask[None, :, :, None]
        .expand((num_hidden_layers, batch_size, sequence_length, num_experts))
        .reshape(-1, num_experts)
    )
    router_prob_per_expert = torch.sum(routing_weights * router_attention_mask, dim=0) / torch.sum(
        router_attention_mask, dim=0
    )
    overall_loss = torch.sum(tokens_per_expert * router_prob_per_expert.unsqueeze(0))
    return overall_loss * num_experts


def penalize_repetition(input_ids, scores, penalty: float):
    """A token that was there already is made less likely."""
    score = torch.gather(scores, 1, input_ids)
    score = torch.where(score < 0, score * penalty, score / penalty)
    return scores.scatter(1, input_ids, score)


class MoeForCausalLM(nn.Module):
    """The prompt and some greedy steps behind it."""

    def __init__(self, config: MoeConfig):
        super().__init__()
        self.config = config
        self.model = MoeModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, input_ids, attention_mask):
        config = self.config
        position_ids = attention_mask.long().cumsum(-1) - 1
        position_ids.masked_fill_(attention_mask == 0, 1)

        past_key_values = HybridCache(config)
        hidden_states, router_logits = self.model(input_ids, attention_mask, position_ids, past_key_values)
        logits = self.lm_head(hidden_states)
        aux_loss = load_balancing_loss_func(
            router_logits, config.num_experts, config.num_experts_per_tok, attention_mask
        )

        unfinished = torch.ones(input_ids.shape[0], dtype=torch.long, device=input_ids.device)
        scores = penalize_repetition(input_ids, logits[:, -1, :], config.repetition_penalty)
        all_scores = []
        for _ in range(config.max_new_tokens):
            next_tokens = torch.argmax(scores, dim=-1)
            next_tokens = next_tokens * unfinished + config.pad_token_id * (1 - unfinished)
            unfinished = unfinished * (next_tokens != config.eos_token_id).long()

            input_ids = torch.cat([input_ids, next_tokens[:, None]], dim=-1)
            attention_mask = torch.cat([attention_mask, attention_mask.new_ones((attention_mask.shape[0], 1))], dim=-1)
            position_ids = position_ids[:, -1:] + 1
            hidden_states, _ = self.model(next_tokens[:, None], attention_mask, position_ids, past_key_values)
            scores = penalize_repetition(input_ids, self.lm_head(hidden_states)[:, -1, :], config.repetition_penalty)
            all_scores.append(scores)
        return logits, torch.stack(all_scores, dim=1), aux_loss


def build():
    """The net with the same weights on every run, and three prompts, two of them padded on the left."""
    torch.manual_seed(2326)
    config = MoeConfig()
    net = MoeForCausalLM(config)
    for name, module in net.named_modules():
        if isinstance(module, RMSNorm):
            nn.init.uniform_(module.weight, 0.6, 1.5)
        elif isinstance(module, nn.Linear):
            gain = 2.0 if name.endswith("mlp.gate") else 1.1
            nn.init.normal_(module.weight, std=gain * module.in_features**-0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.012)
            with torch.no_grad():
                module.weight[module.padding_idx].zero_()

    length, padding = 11, (3, 0, 5)
    input_ids = torch.randint(3, config.vocab_size, (len(padding), length))
    attention_mask = torch.ones(len(padding), length, dtype=torch.long)
    for row, count in enumerate(padding):
        input_ids[row, :count] = config.pad_token_id
        attention_mask[row, :count] = 0
    return net.eval(), (input_ids, attention_mask)
