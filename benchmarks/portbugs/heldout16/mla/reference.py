"""A small decoder in the manner of DeepSeek-V3, in PyTorch: latent attention with a YaRN scaled rotary part, grouped routing
with shared experts, a dense first layer, and heads that predict further tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class DeepseekConfig:
    """The sizes and settings of the net."""

    vocab_size: int = 101
    hidden_size: int = 44
    intermediate_size: int = 60
    moe_intermediate_size: int = 18
    num_hidden_layers: int = 3
    num_nextn_predict_layers: int = 2
    num_attention_heads: int = 4
    q_lora_rank: int = 26
    kv_lora_rank: int = 16
    qk_nope_head_dim: int = 10
    qk_rope_head_dim: int = 12
    v_head_dim: int = 14
    attention_bias: bool = True
    n_routed_experts: int = 12
    n_shared_experts: int = 2
    num_experts_per_tok: int = 4
    n_group: int = 4
    topk_group: int = 2
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.8
    first_k_dense_replace: int = 1
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1000.0
    rope_factor: float = 8.0
    rope_original_max_position: int = 512
    rope_beta_fast: float = 32.0
    rope_beta_slow: float = 1.0
    rope_mscale: float = 1.0
    rope_mscale_all_dim: float = 0.8
    max_position_embeddings: int = 64
    tie_word_embeddings: bool = False
    mtp_loss_weight: float = 0.3
    balance_alpha: float = 0.05


def yarn_find_correction_dim(num_rotations, dim, base, max_position_embeddings):
    """The dimension that turns so many times over the original context."""
    return (dim * math.log(max_position_embeddings / (num_rotations * 2 * math.pi))) / (2 * math.log(base))


def yarn_find_correction_range(low_rot, high_rot, dim, base, max_position_embeddings):
    low = math.floor(yarn_find_correction_dim(low_rot, dim, base, max_position_embeddings))
    high = math.ceil(yarn_find_correction_dim(high_rot, dim, base, max_position_embeddings))
    return max(low, 0), min(high, dim - 1)


def yarn_get_mscale(scale=1.0, mscale=1.0):
    if scale <= 1:
        return 1.0
    return 0.1 * mscale * math.log(scale) + 1.0


def yarn_linear_ramp_mask(low, high, dim):
    if low == high:
        high += 0.001
    linear_func = (torch.arange(dim, dtype=torch.float32) - low) / (high - low)
    return torch.clamp(linear_func, 0, 1)


def rotate_half(x):
    """Rotates half the hidden dims of the input."""
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(q, k, cos, sin):
    """q: (b, h, s, d), k: (b, 1, s, d); neighbours are pairs in the weights, halves afterwards."""
    cos = cos.unsqueeze(1)
    sin = sin.unsqueeze(1)

    b, h, s, d = q.shape
    q = q.view(b, h, s, d // 2, 2).transpose(4, 3).reshape(b, h, s, d)

    b, h, s, d = k.shape
    k = k.view(b, h, s, d // 2, 2).transpose(4, 3).reshape(b, h, s, d)

    q_embed = (q * cos) + (rotate_half(q) * sin)
    k_embed = (k * cos) + (rotate_half(k) * sin)
    return q_embed, k_embed


def make_attention_mask(attention_mask, dtype):
    """(b, s) with ones for tokens -> (b, 1, s, s), zero where attention is allowed."""
    bsz, seq_len = attention_mask.shape
    causal = torch.ones(seq_len, seq_len, dtype=torch.bool, device=attention_mask.device).tril()
    allowed = causal[None, None, :, :] & attention_mask.bool()[:, None, None, :]
    mask = torch.zeros(bsz, 1, seq_len, seq_len, dtype=dtype, device=attention_mask.device)
    return mask.masked_fill(~allowed, torch.finfo(dtype).min)


def roll_tensor(tensor, shifts=-1, dims=-1):
    """Moves the sequence to the left by one; the last place becomes zero."""
    rolled = torch.roll(tensor, shifts=shifts, dims=dims)
    rolled.select(dims, shifts).fill_(0)
    return rolled


def masked_cross_entropy(logits, labels, mask):
    """Mean over the tokens that count."""
    nll = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), reduction="none")
    mask = mask.reshape(-1).to(nll.dtype)
    return (nll * mask).sum() / mask.sum().clamp(min=1.0)


def sequence_balance_loss(scores, topk_idx, attention_mask, alpha):
    """Complementary loss for each sequence: the share of tokens of an expert times its mean affinity."""
    bsz, seq_len = attention_mask.shape
    n_experts, top_k = scores.shape[-1], topk_idx.shape[-1]
    mask = attention_mask.to(scores.dtype)
    length = mask.sum(dim=1, keepdim=True)

    hits = F.one_hot(topk_idx, n_experts).sum(dim=1).to(scores.dtype).view(bsz, seq_len, n_experts)
    load = (hits * mask.unsqueeze(-1)).sum(dim=1) * n_experts / (top_k * length)

    affinity = scores / scores.sum(dim=-1, keepdim=True)
    affinity = (affinity.view(bsz, seq_len, n_experts) * mask.unsqueeze(-1)).sum(dim=1) / length
    return alpha * (load * affinity).sum(dim=1).mean()


class DeepseekRMSNorm(nn.Module):
    """Root mean square norm."""

    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(input_dtype)


class DeepseekYarnRotaryEmbedding(nn.Module):
    """Tables of cosines and sines, stretched for longer contexts."""

    def __init__(self, config):
        super().__init__()
        dim, base, factor = config.qk_rope_head_dim, config.rope_theta, config.rope_factor
        exponent = torch.arange(0, dim, 2, dtype=torch.float32) / dim
        freq_extra = 1.0 / (base**exponent)
        freq_inter = 1.0 / (factor * base**exponent)
        low, high = yarn_find_correction_range(
            config.rope_beta_fast, config.rope_beta_slow, dim, base, config.rope_original_max_position
        )
        inv_freq_mask = 1.0 - yarn_linear_ramp_mask(low, high, dim // 2)
        inv_freq = freq_inter * (1 - inv_freq_mask) + freq_extra * inv_freq_mask

        mscale = yarn_get_mscale(factor, config.rope_mscale) / yarn_get_mscale(factor, config.rope_mscale_all_dim)
        t = torch.arange(config.max_position_embeddings, dtype=torch.float32)
        freqs = torch.outer(t, inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        self.register_buffer("cos_cached", emb.cos() * mscale, persistent=False)
        self.register_buffer("sin_cached", emb.sin() * mscale, persistent=False)

    def forward(self, position_ids):
        return self.cos_cached[position_ids], self.sin_cached[position_ids]


class DeepseekAttention(nn.Module):
    """Multi-head latent attention: low-rank queries, keys and values, and a rotary key shared by the heads."""

    def __init__(self, config):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.kv_lora_rank = config.kv_lora_rank
        self.qk_nope_head_dim = config.qk_nope_head_dim
        self.qk_rope_head_dim = config.qk_rope_head_dim
        self.v_head_dim = config.v_head_dim
        self.q_head_dim = config.qk_nope_head_dim + config.qk_rope_head_dim

        self.q_a_proj = nn.Linear(config.hidden_size, config.q_lora_rank, bias=config.attention_bias)
        self.q_a_layernorm = DeepseekRMSNorm(config.q_lora_rank, config.rms_norm_eps)
        self.q_b_proj = nn.Linear(config.q_lora_rank, self.num_heads * self.q_head_dim, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(
            config.hidden_size, config.kv_lora_rank + config.qk_rope_head_dim, bias=config.attention_bias
        )
        self.kv_a_layernorm = DeepseekRMSNorm(config.kv_lora_rank, config.rms_norm_eps)
        self.kv_b_proj = nn.Linear(
            config.kv_lora_rank, self.num_heads * (self.qk_nope_head_dim + self.v_head_dim), bias=False
        )
        self.o_proj = nn.Linear(self.num_heads * self.v_head_dim, config.hidden_size, bias=config.attention_bias)

        mscale = yarn_get_mscale(config.rope_factor, config.rope_mscale_all_dim)
        self.softmax_scale = self.q_head_dim ** (-0.5) * mscale * mscale

    def forward(self, hidden_states, attention_mask, rotary):
        bsz, q_len, _ = hidden_states.size()
        cos, sin = rotary

        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden_states)))
        q = q.view(bsz, q_len, self.num_heads, self.q_head_dim).transpose(1, 2)
        q_nope, q_pe = torch.split(q, [self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)

        compressed_kv = self.kv_a_proj_with_mqa(hidden_states)
        compressed_kv, k_pe = torch.split(compressed_kv, [self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
        k_pe = k_pe.view(bsz, q_len, 1, self.qk_rope_head_dim).transpose(1, 2)
        kv = self.kv_b_proj(self.kv_a_layernorm(compressed_kv))
        kv = kv.view(bsz, q_len, self.num_heads, self.qk_nope_head_dim + self.v_head_dim).transpose(1, 2)
        k_nope, value_states = torch.split(kv, [self.qk_nope_head_dim, self.v_head_dim], dim=-1)

        q_pe, k_pe = apply_rotary_pos_emb(q_pe, k_pe, cos, sin)

        scores = torch.einsum("bhsd,bhtd->bhst", q_nope, k_nope)
        scores = scores + torch.einsum("bhsr,btr->bhst", q_pe, k_pe.squeeze(1))
        scores = scores * self.softmax_scale + attention_mask
        probs = F.softmax(scores, dim=-1, dtype=torch.float32).to(value_states.dtype)

        out = torch.einsum("bhst,bhtd->bshd", probs, value_states)
        return self.o_proj(out.reshape(bsz, q_len, self.num_heads * self.v_head_dim))


class DeepseekMLP(nn.Module):
    """Gated perceptron."""

    def __init__(self, hidden_size, intermediate_size):
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class MoEGate(nn.Module):
    """Sigmoid affinities; the best experts of the best groups, chosen with a correction, weighted without it."""

    def __init__(self, config):
        super().__init__()
        self.top_k = config.num_experts_per_tok
        self.n_routed_experts = config.n_routed_experts
        self.n_group = config.n_group
        self.topk_group = config.topk_group
        self.norm_topk_prob = config.norm_topk_prob
        self.routed_scaling_factor = config.routed_scaling_factor
        self.weight = nn.Parameter(torch.empty(config.n_routed_experts, config.hidden_size))
        self.e_score_correction_bias = nn.Parameter(torch.zeros(config.n_routed_experts))

    def forward(self, hidden_states):
        n_tokens = hidden_states.shape[0]
        logits = F.linear(hidden_states.float(), self.weight.float())
        scores = logits.sigmoid()
        scores_for_choice = scores + self.e_score_correction_bias.unsqueeze(0)

        group_scores = scores_for_choice.view(n_tokens, self.n_group, -1).topk(2, dim=-1)[0].sum(dim=-1)
        group_idx = torch.topk(group_scores, k=self.topk_group, dim=-1, sorted=False)[1]
        group_mask = torch.zeros_like(group_scores)
        group_mask.scatter_(1, group_idx, 1)
        score_mask = (
            group_mask.unsqueeze(-1)
            .expand(n_tokens, self.n_group, self.n_routed_experts // self.n_group)
            .reshape(n_tokens, -1)
        )
        tmp_scores = scores_for_choice.masked_fill(~score_mask.bool(), float("-inf"))
        _, topk_idx = torch.topk(tmp_scores, k=self.top_k, dim=-1)

        topk_weight = scores.gather(1, topk_idx)
        if self.top_k > 1 and self.norm_topk_prob:
            topk_weight = topk_weight / (topk_weight.sum(dim=-1, keepdim=True) + 1e-20)
        topk_weight = topk_weight * self.routed_scaling_factor
        return topk_idx, topk_weight, scores


class DeepseekMoE(nn.Module):
    """Routed experts and shared ones beside them."""

    def __init__(self, config):
        super().__init__()
        self.gate = MoEGate(config)
        self.experts = nn.ModuleList(
            [DeepseekMLP(config.hidden_size, config.moe_intermediate_size) for _ in range(config.n_routed_experts)]
        )
        self.shared_experts = DeepseekMLP(
            config.hidden_size, config.moe_intermediate_size * config.n_shared_experts
        )

    def forward(self, hidden_states):
        identity = hidden_states
        orig_shape = hidden_states.shape
        hidden_states = hidden_states.reshape(-1, orig_shape[-1])
        topk_idx, topk_weight, scores = self.gate(hidden_states)

        final = torch.zeros_like(hidden_states)
        expert_mask = F.one_hot(topk_idx, num_classes=len(self.experts)).permute(2, 0, 1)
        for expert_id, expert in enumerate(self.experts):
            token_indices, slot_indices = torch.where(expert_mask[expert_id])
            if token_indices.numel() == 0:
                continue
            weights = topk_weight[token_indices, slot_indices]
            expert_output = expert(hidden_states[token_indices])
            final.index_add_(0, token_indices, expert_output * weights.unsqueeze(-1))

        output = final.view(orig_shape) + self.shared_experts(identity)
        return output, (scores, topk_idx)


class DeepseekDecoderLayer(nn.Module):
    """Attention and perceptron, each with a norm before it; dense in the first layers."""

    def __init__(self, config, layer_idx):
        super().__init__()
        self.is_moe = layer_idx >= config.first_k_dense_replace
        self.self_attn = DeepseekAttention(config)
        self.mlp = DeepseekMoE(config) if self.is_moe else DeepseekMLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = DeepseekRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = DeepseekRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, hidden_states, attention_mask, rotary):
        residual = hidden_states
        hidden_states = self.self_attn(self.input_layernorm(hidden_states), attention_mask, rotary)
        hidden_states = residual + hidden_states

        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        router = None
        if self.is_moe:
            hidden_states, router = self.mlp(hidden_states)
        else:
            hidden_states = self.mlp(hidden_states)
        return residual + hidden_states, router


class DeepseekModel(nn.Module):
    """Embedding, layers and norm."""

    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([DeepseekDecoderLayer(config, i) for i in range(config.num_hidden_layers)])
        self.norm = DeepseekRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = DeepseekYarnRotaryEmbedding(config)

    def forward(self, input_ids, attention_mask):
        hidden_states = self.embed_tokens(input_ids)
        position_ids = attention_mask.long().cumsum(-1) - 1
        position_ids = position_ids.masked_fill(attention_mask == 0, 1)
        rotary = self.rotary_emb(position_ids)
        mask = make_attention_mask(attention_mask, hidden_states.dtype)

        routers = []
        for layer in self.layers:
            hidden_states, router = layer(hidden_states, mask, rotary)
            if router is not None:
                routers.append(router)
        return self.norm(hidden_states), hidden_states, (mask, rotary), routers


class MultiTokenPredictor(nn.Module):
    """One depth of prediction: the state so far and the embedding of the next token, through one more layer."""

    def __init__(self, config, layer_idx):
        super().__init__()
        self.enorm = DeepseekRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hnorm = DeepseekRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.eh_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.block = DeepseekDecoderLayer(config, layer_idx)
        self.norm = DeepseekRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, embeds, previous, attention_mask, rotary):
        hidden_states = self.eh_proj(torch.cat([self.enorm(embeds), self.hnorm(previous)], dim=-1))
        hidden_states, router = self.block(hidden_states, attention_mask, rotary)
        return self.norm(hidden_states), hidden_states, router


class DeepseekForCausalLM(nn.Module):
    """The model with its head, the predictors of further tokens, and the losses."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = DeepseekModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.mtp = nn.ModuleList(
            [
                MultiTokenPredictor(config, config.num_hidden_layers + i)
                for i in range(config.num_nextn_predict_layers)
            ]
        )

    def forward(self, input_ids, attention_mask):
        normed, hidden_states, (mask, rotary), routers = self.model(input_ids, attention_mask)
        logits = self.lm_head(normed)

        labels = roll_tensor(input_ids)
        label_mask = roll_tensor(attention_mask)
        lm_loss = masked_cross_entropy(logits, labels, label_mask)

        tokens = input_ids
        mtp_logits, mtp_loss = [], logits.new_zeros(())
        for predictor in self.mtp:
            tokens = roll_tensor(tokens)
            labels = roll_tensor(labels)
            label_mask = roll_tensor(label_mask)
            embeds = self.model.embed_tokens(tokens)
            normed, hidden_states, router = predictor(embeds, hidden_states, mask, rotary)
            depth_logits = self.lm_head(normed)
            mtp_logits.append(depth_logits)
            mtp_loss = mtp_loss + masked_cross_entropy(depth_logits, labels, label_mask)
            if router is not None:
                routers.append(router)
        mtp_loss = self.config.mtp_loss_weight * mtp_loss / len(self.mtp)

        aux_loss = logits.new_zeros(())
        for scores, topk_idx in routers:
            aux_loss = aux_loss + sequence_balance_loss(
                scores, topk_idx, attention_mask, self.config.balance_alpha
            )
        return logits, torch.stack(mtp_logits, dim=1), lm_loss + mtp_loss, aux_loss


def build():
    """The net with the same weights on every run, and three sentences, two of them padded on the left."""
    generator = torch.Generator().manual_seed(1607)
    config = DeepseekConfig()
    net = DeepseekForCausalLM(config)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("norm.weight"):
                parameter.copy_(1.0 + 0.25 * noise)
            elif name.endswith("embed_tokens.weight"):
                parameter.copy_(0.012 * noise)
            elif name.endswith("e_score_correction_bias"):
                parameter.copy_(0.15 * noise)
            elif parameter.dim() == 1:
                parameter.copy_(0.2 * noise)
            else:
                parameter.copy_(noise * 1.2 / math.sqrt(parameter.shape[1]))
    input_ids = torch.randint(3, config.vocab_size, (3, 15), generator=generator)
    attention_mask = torch.ones(3, 15, dtype=torch.long)
    attention_mask[1, :3] = 0
    attention_mask[2, :6] = 0
    input_ids = input_ids.masked_fill(attention_mask == 0, 2)
    return net.eval(), (input_ids, attention_mask)
