# The small sparse decoder in MindSpore.
import math
from typing import Optional

import mindspore as ms
import numpy as np
from mindspore import nn, ops


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


def zeros(*shape):
    return ms.Parameter(ops.zeros(shape, ms.float32))


def rms_norm(x, weight, eps):
    variance = ops.mean(ops.square(x), -1, True)
    x = x * ops.rsqrt(variance + eps)
    return x * (1.0 + weight)


def rotate_half(x):
    x1, x2 = ops.chunk(x, 2, axis=-1)
    return ops.cat((-x2, x1), axis=-1)


def apply_rotary_pos_emb(q, k, cos, sin):
    """Only the first channels of each head turn; the others pass."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    rotary_dim = cos.shape[-1]
    q_rot, q_pass = q[..., :rotary_dim], q[..., rotary_dim:]
    k_rot, k_pass = k[..., :rotary_dim], k[..., rotary_dim:]
    q_embed = (q_rot * cos) + (rotate_half(q_rot) * sin)
    k_embed = (k_rot * cos) + (rotate_half(k_rot) * sin)
    return ops.cat([q_embed, q_pass], axis=-1), ops.cat([k_embed, k_pass], axis=-1)


def repeat_kv(hidden_states, n_rep: int):
    """(batch, kv heads, length, dim) -> (batch, heads, length, dim)"""
    if n_rep == 1:
        return hidden_states
    return ops.repeat_interleave(hidden_states, n_rep, axis=1)


def make_mask(attention_mask, window: Optional[int] = None):
    """Causal, cut to the window if there is one, and without the padding: zeros and huge negative numbers."""
    length = attention_mask.shape[-1]
    idx = np.arange(length)
    gap = idx[:, None] - idx[None, :]
    allowed = gap >= 0
    if window is not None:
        allowed = allowed & (gap < window)
    allowed = ops.logical_and(ms.Tensor(allowed[None, None]), attention_mask[:, None, None, :].astype(ms.bool_))
    bias = ops.zeros(allowed.shape, ms.float32)
    return bias.masked_fill(ops.logical_not(allowed), float(np.finfo(np.float32).min))


class Attention(nn.Cell):
    def __init__(self, config: MixtureConfig, layer_idx: int):
        super().__init__()
        self.layer_idx = layer_idx
        self.eps = config.rms_norm_eps
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = config.head_dim**-0.5
        self.softcap = config.attn_softcap
        self.q_proj = nn.Dense(config.hidden_size, config.num_attention_heads * config.head_dim)
        self.k_proj = nn.Dense(config.hidden_size, config.num_key_value_heads * config.head_dim, has_bias=False)
        self.v_proj = nn.Dense(config.hidden_size, config.num_key_value_heads * config.head_dim)
        self.o_proj = nn.Dense(config.num_attention_heads * config.head_dim, config.hidden_size, has_bias=False)
        self.q_norm = zeros(config.head_dim)
        self.k_norm = zeros(config.head_dim)
        self.sinks = zeros(config.num_attention_heads)
        self.value_lambda = zeros(1)

    def construct(self, hidden_states, position_embeddings, attention_mask, first_values=None):
        batch, length, _ = hidden_states.shape
        hidden_shape = (batch, length, -1, self.head_dim)

        query_states = self.q_proj(hidden_states).reshape(hidden_shape)
        key_states = self.k_proj(hidden_states).reshape(hidden_shape)
        query_states = rms_norm(query_states, self.q_norm, self.eps).swapaxes(1, 2)
        key_states = rms_norm(key_states, self.k_norm, self.eps).swapaxes(1, 2)
        value_states = self.v_proj(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
        if first_values is None:
            first_values = value_states
        else:
            value_states = self.value_lambda * value_states + (1 - self.value_lambda) * first_values

        cos, sin = position_embeddings
        query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)
        key_states = repeat_kv(key_states, self.num_key_value_groups)
        value_states = repeat_kv(value_states, self.num_key_value_groups)

        attn_weights = ops.matmul(query_states, key_states.swapaxes(2, 3)) * self.scaling
        attn_weights = self.softcap * ops.tanh(attn_weights / self.softcap)
        attn_weights = attn_weights + attention_mask
        sinks = ops.broadcast_to(self.sinks.reshape(1, -1, 1, 1), (batch, self.sinks.shape[0], length, 1))
        combined = ops.cat([attn_weights, sinks], axis=-1)
        combined = combined - combined.max(axis=-1, keepdims=True)
        probs = ops.softmax(combined, axis=-1)
        attn_output = ops.matmul(probs[..., :-1], value_states)
        attn_output = attn_output.swapaxes(1, 2).reshape(batch, length, -1)
        return self.o_proj(attn_output), first_values


class SparseMoE(nn.Cell):
    """Sigmoid scores, a bias that counts for the choice only, and experts that take no more than their capacity.

    All experts see all tokens here; what the router did not send them is weighted with nought.
    """

    def __init__(self, config: MixtureConfig):
        super().__init__()
        self.top_k = config.num_experts_per_tok
        self.num_experts = config.num_experts
        self.capacity_factor = config.capacity_factor
        self.routed_scaling = config.routed_scaling
        self.limit, self.alpha = config.swiglu_limit, config.swiglu_alpha
        width, inner, shared = config.hidden_size, config.moe_intermediate_size, config.shared_intermediate_size
        self.router = nn.Dense(width, self.num_experts, has_bias=False)
        self.correction_bias = zeros(self.num_experts)
        self.gate_up_proj = zeros(self.num_experts, width, 2 * inner)
        self.gate_up_bias = zeros(self.num_experts, 2 * inner)
        self.down_proj = zeros(self.num_experts, inner, width)
        self.shared_gate_proj = nn.Dense(width, shared, has_bias=False)
        self.shared_up_proj = nn.Dense(width, shared, has_bias=False)
        self.shared_down_proj = nn.Dense(shared, width, has_bias=False)
        self.shared_router = nn.Dense(width, 1, has_bias=False)

    def route(self, x):
        scores = ops.sigmoid(self.router(x))
        choice = scores + self.correction_bias
        _, indices = ops.topk(choice, self.top_k, dim=-1)
        weights = ops.gather_elements(scores, 1, indices)
        weights = weights / (weights.sum(axis=-1, keepdims=True) + 1e-20)
        return weights * self.routed_scaling, indices

    def within_capacity(self, chosen):
        """All first choices are served before any second one, in the order of the tokens."""
        tokens = chosen.shape[0]
        capacity = math.ceil(self.capacity_factor * tokens * self.top_k / self.num_experts)
        chosen = chosen.swapaxes(0, 1).reshape(-1, self.num_experts)
        rank = ((ops.cumsum(chosen, 0) - 1) * chosen).sum(axis=-1)
        return rank.reshape(self.top_k, tokens).swapaxes(0, 1) < capacity

    def experts(self, x):
        """(tokens, width) -> (experts, tokens, width)"""
        x = ops.tile(x.expand_dims(0), (self.num_experts, 1, 1))
        gate, up = ops.chunk(ops.bmm(x, self.gate_up_proj) + self.gate_up_bias.expand_dims(1), 2, axis=-1)
        gate = ops.clamp(gate, max=self.limit)
        up = ops.clamp(up, min=-self.limit, max=self.limit)
        glu = gate * ops.sigmoid(self.alpha * gate)
        return ops.bmm((up + 1) * glu, self.down_proj)

    def construct(self, hidden_states):
        shape = hidden_states.shape
        x = hidden_states.reshape(-1, shape[-1])
        weights, indices = self.route(x)
        chosen = (indices.expand_dims(-1) == ops.arange(self.num_experts)).astype(ms.float32)
        weights = weights * self.within_capacity(chosen).astype(ms.float32)
        spread = (chosen * weights.expand_dims(-1)).sum(axis=1)
        out = (self.experts(x) * spread.swapaxes(0, 1).expand_dims(-1)).sum(axis=0)
        shared = self.shared_down_proj(ops.silu(self.shared_gate_proj(x)) * self.shared_up_proj(x))
        shared = ops.sigmoid(self.shared_router(x)) * shared
        return (out + shared).reshape(shape)


class DecoderLayer(nn.Cell):
    def __init__(self, config: MixtureConfig, layer_idx: int):
        super().__init__()
        self.eps = config.rms_norm_eps
        self.self_attn = Attention(config, layer_idx)
        self.mlp = SparseMoE(config)
        self.input_layernorm = zeros(config.hidden_size)
        self.post_attention_layernorm = zeros(config.hidden_size)
        self.pre_feedforward_layernorm = zeros(config.hidden_size)
        self.post_feedforward_layernorm = zeros(config.hidden_size)

    def construct(self, hidden_states, position_embeddings, attention_mask, first_values=None):
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


class MixtureForCausalLM(nn.Cell):
    def __init__(self, config: MixtureConfig):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.CellList([DecoderLayer(config, i) for i in range(config.num_hidden_layers)])
        self.norm = zeros(config.hidden_size)

        # long waves are stretched, short ones are left, what lies between is mixed
        exponent = np.arange(0, config.rotary_dim, 2, dtype=np.float32) / config.rotary_dim
        inv_freq = 1.0 / (config.rope_theta**exponent)
        wavelen = 2 * math.pi / inv_freq
        smooth = np.clip((config.rope_original_length / wavelen - 1.0) / (4.0 - 1.0), 0, 1)
        inv_freq = (1 - smooth) * inv_freq / config.rope_factor + smooth * inv_freq
        self.inv_freq = ms.Tensor(inv_freq.astype(np.float32))

    def rotary(self, position_ids):
        freqs = position_ids.astype(ms.float32).expand_dims(-1) * self.inv_freq
        emb = ops.cat((freqs, freqs), axis=-1)
        return ops.cos(emb), ops.sin(emb)

    def construct(self, input_ids, attention_mask):
        config = self.config
        position_ids = ops.clamp(ops.cumsum(attention_mask, -1) - 1, min=0)
        position_embeddings = self.rotary(position_ids)
        full_mask = make_mask(attention_mask)
        sliding_mask = make_mask(attention_mask, window=config.sliding_window)

        hidden_states = self.embed_tokens(input_ids) * config.hidden_size**0.5
        first_values = None
        for i, layer in enumerate(self.layers):
            mask = full_mask if (i + 1) % config.full_every == 0 else sliding_mask
            hidden_states, first_values = layer(hidden_states, position_embeddings, mask, first_values=first_values)

        hidden_states = rms_norm(hidden_states, self.norm, config.rms_norm_eps)
        logits = ops.matmul(hidden_states, self.embed_tokens.embedding_table.swapaxes(0, 1))
        return config.final_softcap * ops.tanh(logits / config.final_softcap)


def build():
    return MixtureForCausalLM(MixtureConfig())
