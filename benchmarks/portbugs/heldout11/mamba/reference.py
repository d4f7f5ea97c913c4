"""A small hybrid language model (Mamba-2, Mamba and grouped-query attention blocks) in PyTorch: the reference."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class HybridConfig:
    vocab_size: int = 120
    hidden_size: int = 48
    layers_block_type: tuple = ("mamba2", "mamba", "attention", "mamba2")
    mamba_expand: int = 2
    mamba_head_dim: int = 16
    mamba_n_groups: int = 2
    mamba_state: int = 16
    mamba_conv: int = 4
    mamba_chunk: int = 8
    selective_state: int = 8
    selective_dt_rank: int = 6
    time_step_limit: tuple = (0.02, 0.6)
    ssm_multipliers: tuple = (0.9, 1.3, 1.5, 0.7, 1.1)  # gate, x, B, C, dt
    num_attention_heads: int = 6
    num_key_value_heads: int = 2
    head_dim: int = 16
    partial_rotary_factor: float = 0.5
    rope_theta: float = 1000.0
    sliding_window: int = 9
    intermediate_size: int = 80
    mlp_multipliers: tuple = (1.4, 0.8)
    rms_norm_eps: float = 1e-5
    embedding_multiplier: float = 4.0
    residual_multiplier: float = 0.7
    logits_scaling: float = 3.0


def apply_mask_to_padding_states(hidden_states, attention_mask):
    """Zero the states of padding tokens: they must not leak into the convolution or the recurrent state."""
    return hidden_states * attention_mask[:, :, None].to(hidden_states.dtype)


def reshape_into_chunks(tensor, pad_size: int, chunk_size: int):
    """Pad with zeros at the end and split the sequence: [b, l, ...] -> [b, c, l, ...]."""
    tensor = F.pad(tensor, (0, 0) * (tensor.dim() - 2) + (0, pad_size))
    return tensor.reshape(tensor.shape[0], -1, chunk_size, *tensor.shape[2:])


def segment_sum(x):
    """Stable segment sums: out[..., i, j] = x[..., j + 1] + ... + x[..., i], -inf above the diagonal."""
    length = x.size(-1)
    x = x[..., None].expand(*x.size(), length)
    mask = torch.ones(length, length, dtype=torch.bool, device=x.device)
    out = torch.cumsum(x.masked_fill(~mask.tril(-1), 0), dim=-2)
    return out.masked_fill(~mask.tril(0), -torch.inf)


def ssd_chunk_scan(x, dt, A, B, C, D, chunk_size: int):
    """Mamba-2 over chunks: x [b, l, h, p], dt [b, l, h], A and D [h], B and C [b, l, h, n]; y and the last state."""
    seq_len = x.shape[1]
    pad_size = (chunk_size - seq_len % chunk_size) % chunk_size
    D_residual = D[..., None] * x
    x, A = x * dt[..., None], A.to(x.dtype) * dt
    x, A, B, C = (reshape_into_chunks(t, pad_size, chunk_size) for t in (x, A, B, C))
    A = A.permute(0, 3, 1, 2)  # [b, h, c, l]
    A_cumsum = torch.cumsum(A, dim=-1)
    # 1. within the chunks: the diagonal blocks
    L = torch.exp(segment_sum(A))
    Y_diag = torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", C, B, L, x)
    # 2. the state at the end of each chunk, from within it
    decay_states = torch.exp(A_cumsum[:, :, :, -1:] - A_cumsum)
    states = torch.einsum("bclhn,bhcl,bclhp->bchpn", B, decay_states, x)
    # 3. the recurrence between the chunks
    states = torch.cat([torch.zeros_like(states[:, :1]), states], dim=1)
    decay_chunk = torch.exp(segment_sum(F.pad(A_cumsum[:, :, :, -1], (1, 0))))
    new_states = torch.einsum("bhzc,bchpn->bzhpn", decay_chunk, states)
    states, last_state = new_states[:, :-1], new_states[:, -1]
    # 4. from the state before each chunk to the outputs
    Y_off = torch.einsum("bclhn,bchpn,bhcl->bclhp", C, states, torch.exp(A_cumsum))
    y = (Y_diag + Y_off).reshape(x.shape[0], -1, *x.shape[3:])
    return y[:, :seq_len] + D_residual, last_state


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden_states * torch.rsqrt(variance + self.variance_epsilon))


class RMSNormGated(nn.Module):
    """Gate first, then normalise each group of channels alone."""

    def __init__(self, hidden_size: int, n_groups: int, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.n_groups = n_groups
        self.variance_epsilon = eps

    def forward(self, hidden_states, gate):
        hidden_states = hidden_states * F.silu(gate)
        grouped = hidden_states.unflatten(-1, (self.n_groups, -1))
        variance = grouped.pow(2).mean(-1, keepdim=True)
        return self.weight * (grouped * torch.rsqrt(variance + self.variance_epsilon)).flatten(-2)


class Mamba2Mixer(nn.Module):
    """The scalar-decay state space layer, computed in chunks."""

    def __init__(self, config: HybridConfig):
        super().__init__()
        self.intermediate_size = config.mamba_expand * config.hidden_size
        self.head_dim, self.n_groups = config.mamba_head_dim, config.mamba_n_groups
        self.num_heads = self.intermediate_size // self.head_dim
        self.ssm_state_size, self.chunk_size = config.mamba_state, config.mamba_chunk
        self.time_step_limit = config.time_step_limit
        self.groups_time_state = self.n_groups * self.ssm_state_size
        self.conv_dim, kernel = self.intermediate_size + 2 * self.groups_time_state, config.mamba_conv
        self.conv1d = nn.Conv1d(self.conv_dim, self.conv_dim, kernel, groups=self.conv_dim, padding=kernel - 1)
        projection_size = self.intermediate_size + self.conv_dim + self.num_heads
        self.in_proj = nn.Linear(config.hidden_size, projection_size, bias=False)
        self.dt_bias = nn.Parameter(torch.ones(self.num_heads))
        self.A_log = nn.Parameter(torch.log(torch.arange(1, self.num_heads + 1).float()))
        self.norm = RMSNormGated(self.intermediate_size, self.n_groups, eps=config.rms_norm_eps)
        self.D = nn.Parameter(torch.ones(self.num_heads))
        self.out_proj = nn.Linear(self.intermediate_size, config.hidden_size, bias=False)
        # one multiplier for each part of the projection
        widths = [self.intermediate_size] * 2 + [self.groups_time_state] * 2 + [self.num_heads]
        mup = torch.cat([torch.full((1, 1, n), scale) for n, scale in zip(widths, config.ssm_multipliers)], dim=-1)
        self.register_buffer("mup_vector", mup, persistent=False)

    def forward(self, input_states, attention_mask):
        batch_size, seq_len, _ = input_states.shape
        projected_states = self.in_proj(apply_mask_to_padding_states(input_states, attention_mask)) * self.mup_vector
        sizes = [self.intermediate_size, self.conv_dim, self.num_heads]
        gate, hidden_states_B_C, dt = projected_states.split(sizes, dim=-1)
        hidden_states_B_C = F.silu(self.conv1d(hidden_states_B_C.transpose(1, 2))[..., :seq_len].transpose(1, 2))
        hidden_states_B_C = apply_mask_to_padding_states(hidden_states_B_C, attention_mask)
        sizes = [self.intermediate_size, self.groups_time_state, self.groups_time_state]
        hidden_states, B, C = hidden_states_B_C.split(sizes, dim=-1)
        A = -torch.exp(self.A_log.float())
        dt = torch.clamp(F.softplus(dt + self.dt_bias), *self.time_step_limit)
        hidden_states = hidden_states.reshape(batch_size, seq_len, -1, self.head_dim)
        B = B.reshape(batch_size, seq_len, -1, self.ssm_state_size)
        C = C.reshape(batch_size, seq_len, -1, self.ssm_state_size)
        B = B.repeat_interleave(self.num_heads // self.n_groups, dim=2)
        C = C.repeat_interleave(self.num_heads // self.n_groups, dim=2)
        y, ssm_state = ssd_chunk_scan(hidden_states, dt, A, B, C, self.D, self.chunk_size)
        return self.out_proj(self.norm(y.reshape(batch_size, seq_len, -1), gate)), ssm_state


class MambaMixer(nn.Module):
    """The selective scan of the first Mamba with Jamba's norms on dt, B and C, token by token."""

    def __init__(self, config: HybridConfig):
        super().__init__()
        self.ssm_state_size, self.time_step_rank = config.selective_state, config.selective_dt_rank
        self.intermediate_size = config.mamba_expand * config.hidden_size
        width, kernel = self.intermediate_size, config.mamba_conv
        self.conv1d = nn.Conv1d(width, width, kernel, groups=width, padding=kernel - 1)
        self.in_proj = nn.Linear(config.hidden_size, self.intermediate_size * 2, bias=False)
        self.x_proj = nn.Linear(self.intermediate_size, self.time_step_rank + self.ssm_state_size * 2, bias=False)
        self.dt_proj = nn.Linear(self.time_step_rank, self.intermediate_size, bias=True)
        self.A_log = nn.Parameter(torch.log(torch.arange(1, self.ssm_state_size + 1).float()).repeat(width, 1))
        self.D = nn.Parameter(torch.ones(self.intermediate_size))
        self.out_proj = nn.Linear(self.intermediate_size, config.hidden_size, bias=False)
        self.dt_layernorm = RMSNorm(self.time_step_rank, eps=config.rms_norm_eps)
        self.b_layernorm = RMSNorm(self.ssm_state_size, eps=config.rms_norm_eps)
        self.c_layernorm = RMSNorm(self.ssm_state_size, eps=config.rms_norm_eps)

    def forward(self, input_states, attention_mask):
        batch_size, seq_len, _ = input_states.shape
        hidden_states, gate = self.in_proj(input_states).transpose(1, 2).chunk(2, dim=1)
        hidden_states = hidden_states * attention_mask.unsqueeze(1)
        hidden_states = F.silu(self.conv1d(hidden_states)[..., :seq_len])
        hidden_states = hidden_states * attention_mask.unsqueeze(1)
        # input-dependent dt, B and C
        ssm_parameters = self.x_proj(hidden_states.transpose(1, 2))
        sizes = [self.time_step_rank, self.ssm_state_size, self.ssm_state_size]
        time_step, B, C = torch.split(ssm_parameters, sizes, dim=-1)
        time_step, B, C = self.dt_layernorm(time_step), self.b_layernorm(B), self.c_layernorm(C)
        discrete_time_step = F.softplus(self.dt_proj(time_step)).transpose(1, 2)  # [b, d, l]
        A = -torch.exp(self.A_log.float())
        discrete_A = torch.exp(A[None, :, None, :] * discrete_time_step[:, :, :, None])
        discrete_B = discrete_time_step[:, :, :, None] * B[:, None, :, :].float()
        deltaB_u = discrete_B * hidden_states[:, :, :, None].float()
        ssm_state = torch.zeros(batch_size, self.intermediate_size, self.ssm_state_size)
        scan_outputs = []
        for i in range(seq_len):
            ssm_state = discrete_A[:, :, i, :] * ssm_state + deltaB_u[:, :, i, :]
            scan_outputs.append(torch.matmul(ssm_state, C[:, i, :].unsqueeze(-1))[:, :, 0])
        scan_output = (torch.stack(scan_outputs, dim=-1) + hidden_states * self.D[None, :, None]) * F.silu(gate)
        return self.out_proj(scan_output.transpose(1, 2)), ssm_state


class RotaryEmbedding(nn.Module):
    def __init__(self, config: HybridConfig):
        super().__init__()
        dim = int(config.head_dim * config.partial_rotary_factor)
        inv_freq = 1.0 / (config.rope_theta ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, position_ids):
        freqs = position_ids[:, :, None].float() * self.inv_freq
        return freqs.cos().repeat(1, 1, 2), freqs.sin().repeat(1, 1, 2)


def rotate_half(x):
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(q, k, cos, sin):
    """Turn the first part of each head; the rest passes as it is."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    q_rot, q_pass = q[..., : cos.shape[-1]], q[..., cos.shape[-1] :]
    k_rot, k_pass = k[..., : cos.shape[-1]], k[..., cos.shape[-1] :]
    q_embed = (q_rot * cos) + (rotate_half(q_rot) * sin)
    k_embed = (k_rot * cos) + (rotate_half(k_rot) * sin)
    return torch.cat([q_embed, q_pass], dim=-1), torch.cat([k_embed, k_pass], dim=-1)


def repeat_kv(hidden_states, n_rep: int):
    batch, kv_heads, slen, head_dim = hidden_states.shape
    hidden_states = hidden_states[:, :, None, :, :].expand(batch, kv_heads, n_rep, slen, head_dim)
    return hidden_states.reshape(batch, kv_heads * n_rep, slen, head_dim)


class Attention(nn.Module):
    def __init__(self, config: HybridConfig):
        super().__init__()
        heads, kv_heads, self.head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.num_key_value_groups = heads // kv_heads
        self.scaling = self.head_dim**-0.5
        self.q_proj = nn.Linear(config.hidden_size, heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(heads * self.head_dim, config.hidden_size, bias=False)

    def forward(self, hidden_states, mask, cos, sin):
        bsz, q_len, _ = hidden_states.shape
        query = self.q_proj(hidden_states).view(bsz, q_len, -1, self.head_dim).transpose(1, 2)
        key = self.k_proj(hidden_states).view(bsz, q_len, -1, self.head_dim).transpose(1, 2)
        value = self.v_proj(hidden_states).view(bsz, q_len, -1, self.head_dim).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, cos, sin)
        key, value = repeat_kv(key, self.num_key_value_groups), repeat_kv(value, self.num_key_value_groups)
        attn_weights = torch.matmul(query, key.transpose(2, 3)) * self.scaling + mask
        attn_weights = F.softmax(attn_weights, dim=-1, dtype=torch.float32)
        return self.o_proj(torch.matmul(attn_weights, value).transpose(1, 2).reshape(bsz, q_len, -1))


class MLP(nn.Module):
    def __init__(self, config: HybridConfig):
        super().__init__()
        self.gate_multiplier, self.down_multiplier = config.mlp_multipliers
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        y = self.up_proj(x) * F.silu(self.gate_proj(x) * self.gate_multiplier)
        return self.down_proj(y) * self.down_multiplier


class HybridDecoderLayer(nn.Module):
    def __init__(self, config: HybridConfig, block_type: str):
        super().__init__()
        self.block_type = block_type
        self.residual_multiplier = config.residual_multiplier
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mixer = {"attention": Attention, "mamba": MambaMixer, "mamba2": Mamba2Mixer}[block_type](config)
        self.pre_ff_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.feed_forward = MLP(config)

    def forward(self, hidden_states, attention_mask, causal_mask, cos, sin):
        residual, state = hidden_states, None
        hidden_states = self.input_layernorm(hidden_states)
        if self.block_type == "attention":
            hidden_states = self.mixer(hidden_states, causal_mask, cos, sin)
        else:
            hidden_states, state = self.mixer(hidden_states, attention_mask)
        hidden_states = residual + hidden_states * self.residual_multiplier
        ff_output = self.feed_forward(self.pre_ff_layernorm(hidden_states))
        return hidden_states + ff_output * self.residual_multiplier, state


class HybridForCausalLM(nn.Module):
    """Logits of the next token, each sequence's mean loss, and the states after the last token."""

    def __init__(self, config: HybridConfig):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([HybridDecoderLayer(config, kind) for kind in config.layers_block_type])
        self.final_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = RotaryEmbedding(config)

    def _update_causal_mask(self, attention_mask):
        """[b, 1, l, l], added to the scores: 0 where a query may look, the least float elsewhere."""
        distance = torch.arange(attention_mask.shape[1])[:, None] - torch.arange(attention_mask.shape[1])
        allowed = (distance >= 0) & (distance < self.config.sliding_window)
        allowed = allowed[None, None] & attention_mask[:, None, None, :].bool()
        return torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)

    def forward(self, input_ids, attention_mask):
        hidden_states = self.embed_tokens(input_ids) * self.config.embedding_multiplier
        position_ids = (attention_mask.long().cumsum(-1) - 1).masked_fill(attention_mask == 0, 1)
        cos, sin = self.rotary_emb(position_ids)
        causal_mask = self._update_causal_mask(attention_mask)
        states = []
        for layer in self.layers:
            hidden_states, state = layer(hidden_states, attention_mask, causal_mask, cos, sin)
            if state is not None:
                states.append(state.flatten(1))
        logits = F.linear(self.final_layernorm(hidden_states), self.embed_tokens.weight) / self.config.logits_scaling
        log_probs = F.log_softmax(logits[:, :-1].float(), dim=-1)
        token_loss = -log_probs.gather(-1, input_ids[:, 1:, None]).squeeze(-1)
        weight = attention_mask[:, 1:].to(token_loss.dtype)
        loss = (token_loss * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1.0)
        return logits, loss, torch.cat(states, dim=1)


def build():
    """The net with the same weights on every run, and three sequences with padding on the left."""
    torch.manual_seed(2024)
    net = HybridForCausalLM(HybridConfig())
    for name, param in net.named_parameters():
        if "norm" in name:
            nn.init.uniform_(param, 0.6, 1.4)
        elif name.endswith("A_log"):
            param.data.add_(torch.randn_like(param) * 0.2)
        elif name.endswith((".dt_bias", "dt_proj.bias")):
            dt = torch.exp(torch.empty_like(param).uniform_(math.log(0.03), math.log(0.4)))
            param.data.copy_(dt + torch.log(-torch.expm1(-dt)))
        elif name.endswith((".D", "conv1d.bias")):
            nn.init.normal_(param, mean=1.0 if name.endswith(".D") else 0.0, std=0.3)
        else:
            nn.init.normal_(param, std=0.25 if "embed" in name else 1.0 / math.sqrt(param[0].numel()))
    attention_mask = (torch.arange(29) >= torch.tensor([[0], [7], [4]])).long()
    input_ids = torch.randint(1, 120, (3, 29)) * attention_mask
    return net.eval(), (input_ids, attention_mask)
