"""A retention language model (RetNet) in PyTorch: prompt in parallel, then greedy generation with recurrent states."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import nn

State = Dict[str, torch.Tensor]


@dataclass
class RetNetConfig:
    """What the model is made of."""

    vocab_size: int = 61
    embed_dim: int = 48
    value_dim: int = 80
    retention_heads: int = 4
    ffn_dim: int = 104
    num_layers: int = 3
    max_positions: int = 40
    decay_init: float = 2.0
    decay_range: float = 3.0
    rotary_base: float = 1000.0
    xpos_gamma: float = 0.4
    xpos_scale_base: float = 24.0
    layernorm_eps: float = 1e-5
    pad_token_id: int = 0
    no_scale_embedding: bool = False
    repetition_penalty: float = 1.4
    new_tokens: int = 4


# ---------------------------------------------------------------------------------------------------------------------
# helpers
# ---------------------------------------------------------------------------------------------------------------------


def rotate_every_two(x: torch.Tensor) -> torch.Tensor:
    """(x0, x1, x2, x3, ...) becomes (-x1, x0, -x3, x2, ...)."""
    x1 = x[..., ::2]
    x2 = x[..., 1::2]
    return torch.stack((-x2, x1), dim=-1).flatten(-2)


def duplicate_interleave(m: torch.Tensor) -> torch.Tensor:
    """Each column twice, side by side."""
    rows = m.shape[0]
    return m.reshape(-1, 1).repeat(1, 2).view(rows, -1)


def theta_shift(x: torch.Tensor, sin: torch.Tensor, cos: torch.Tensor) -> torch.Tensor:
    """Rotates the pairs of x."""
    return (x * cos) + (rotate_every_two(x) * sin)


def split_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[batch, length, heads * dim] to [batch, heads, length, dim]."""
    batch, length, _ = x.shape
    return x.view(batch, length, heads, -1).transpose(1, 2)


def left_padding_mask(lengths: torch.Tensor, size: int) -> torch.Tensor:
    """1 where there is a token and 0 where there is padding, which stands on the left."""
    places = torch.arange(size, device=lengths.device)
    return (places[None, :] >= (size - lengths)[:, None]).long()


def get_activation_fn(name: str):
    """The activation of that name."""
    if name == "swish":
        return F.silu
    if name == "gelu":
        return F.gelu
    if name == "relu":
        return F.relu
    raise NotImplementedError(name)


class RMSNorm(nn.Module):
    """Root mean square norm, in float32."""

    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        output = self._norm(x.float()).type_as(x)
        return output * self.weight


# ---------------------------------------------------------------------------------------------------------------------
# places and decays
# ---------------------------------------------------------------------------------------------------------------------


class RetNetRelPos(nn.Module):
    """Tables of the rotation, of the scale of xPos, and of the decay of each head."""

    def __init__(self, config: RetNetConfig):
        super().__init__()
        head_dim = config.embed_dim // config.retention_heads
        half = head_dim // 2
        inv_freq = 1.0 / (config.rotary_base ** torch.linspace(0, 1, half))
        places = torch.arange(config.max_positions).float()
        angle = torch.einsum("i,j->ij", places, inv_freq)
        self.register_buffer("sin", duplicate_interleave(torch.sin(angle)), persistent=False)
        self.register_buffer("cos", duplicate_interleave(torch.cos(angle)), persistent=False)

        base = (torch.arange(0, head_dim, 2).float() + config.xpos_gamma * head_dim) / ((1 + config.xpos_gamma) * head_dim)
        power = places / config.xpos_scale_base
        self.register_buffer("zeta", duplicate_interleave(base[None, :] ** power[:, None]), persistent=False)

        heads = config.retention_heads
        steps = torch.arange(heads, dtype=torch.float) / heads
        decay = torch.log(1 - 2 ** (-config.decay_init - config.decay_range * steps))
        self.register_buffer("decay", decay, persistent=False)

    def _rows(self, position_ids: torch.Tensor):
        """Rows of the tables with an axis for the heads: [batch, 1, length, head_dim]."""
        sin = self.sin[position_ids].unsqueeze(1)
        cos = self.cos[position_ids].unsqueeze(1)
        zeta = self.zeta[position_ids].unsqueeze(1)
        return sin, cos, zeta

    def _decay_mask(self, padding_mask: torch.Tensor):
        """Decay from each key to each query, without the padding, and its sums before they are taken out."""
        size = padding_mask.shape[1]
        index = torch.arange(size, device=padding_mask.device).to(self.decay)
        distance = index[:, None] - index[None, :]
        causal = torch.tril(torch.ones(size, size, device=padding_mask.device))
        distance = distance.masked_fill(~causal.bool(), float("inf"))
        mask = torch.exp(distance * self.decay[:, None, None])
        mask = torch.nan_to_num(mask)
        mask = mask[None] * padding_mask[:, None, None, :].to(mask)
        scale = mask.sum(dim=-1, keepdim=True).clamp(min=1.0)
        return mask / scale.sqrt(), scale

    def forward(self, position_ids: torch.Tensor, padding_mask: Optional[torch.Tensor] = None):
        rows = self._rows(position_ids)
        if padding_mask is None:
            gamma = torch.exp(self.decay)
            return rows, gamma[None, :, None, None], None
        mask, scale = self._decay_mask(padding_mask)
        return rows, mask, scale


# ---------------------------------------------------------------------------------------------------------------------
# retention
# ---------------------------------------------------------------------------------------------------------------------


class MultiScaleRetention(nn.Module):
    """Retention with a decay for each head, a norm for each head, and a gate."""

    def __init__(self, config: RetNetConfig, gate_fn: str = "swish"):
        super().__init__()
        self.embed_dim = config.embed_dim
        self.value_dim = config.value_dim
        self.num_heads = config.retention_heads
        self.key_dim = self.embed_dim // self.num_heads
        self.head_dim = self.value_dim // self.num_heads
        self.scaling = self.key_dim ** -0.5
        self.gate_fn = get_activation_fn(gate_fn)

        self.q_proj = nn.Linear(self.embed_dim, self.embed_dim, bias=True)
        self.k_proj = nn.Linear(self.embed_dim, self.embed_dim, bias=True)
        self.v_proj = nn.Linear(self.embed_dim, self.value_dim, bias=True)
        self.g_proj = nn.Linear(self.embed_dim, self.value_dim, bias=True)
        self.out_proj = nn.Linear(self.value_dim, self.embed_dim, bias=True)
        self.group_norm = nn.GroupNorm(self.num_heads, self.value_dim, eps=config.layernorm_eps)

    def parallel_forward(self, q, k, v, mask, scale) -> Tuple[torch.Tensor, State]:
        """All tokens of the prompt at once, and the state after the last of them."""
        qk_mat = q @ k.transpose(-1, -2)
        qk_mat = qk_mat * mask
        inner = qk_mat.detach().abs().sum(dim=-1, keepdim=True).clamp(min=1.0, max=5e4)
        output = torch.matmul(qk_mat / inner, v)

        # what the last query would see is what the state holds
        last = mask[:, :, -1, :]
        kv = torch.einsum("bhs,bhsk,bhsv->bhkv", last, k, v)
        state = {"prev_key_value": kv, "scale": scale[:, :, -1:, :]}
        return output.transpose(1, 2), state

    def recurrent_forward(self, q, k, v, gamma, state: State) -> Tuple[torch.Tensor, State]:
        """One token, and the state with it."""
        kv = k.transpose(-1, -2) * v
        prev_kv = state["prev_key_value"]
        prev_scale = state["scale"]
        scale = prev_scale * gamma + 1
        kv = prev_kv * (prev_scale.sqrt() * gamma / scale.sqrt()) + kv / scale.sqrt()
        output = torch.sum(q.transpose(-1, -2) * kv, dim=2, keepdim=True)
        return output.transpose(1, 2), {"prev_key_value": kv, "scale": scale}

    def forward(self, x, rel_pos, state: Optional[State] = None):
        batch, length, _ = x.shape
        (sin, cos, zeta), inner_mask, scale = rel_pos

        q = self.q_proj(x)
        k = self.k_proj(x)
        v = self.v_proj(x)
        g = self.g_proj(x)

        k = k * self.scaling
        q = split_heads(q, self.num_heads)
        k = split_heads(k, self.num_heads)
        v = split_heads(v, self.num_heads)

        qr = theta_shift(q, sin, cos) * zeta
        kr = theta_shift(k, sin, cos) / zeta

        if state is None:
            output, state = self.parallel_forward(qr, kr, v, inner_mask, scale)
        else:
            output, state = self.recurrent_forward(qr, kr, v, inner_mask, state)

        output = output.reshape(batch * length, self.value_dim)
        output = self.group_norm(output).view(batch, length, self.value_dim)
        output = self.gate_fn(g) * output
        output = self.out_proj(output)
        return output, state


class GLU(nn.Module):
    """Perceptron with a gate and a norm in the middle."""

    def __init__(self, config: RetNetConfig):
        super().__init__()
        self.activation_fn = nn.GELU()
        self.fc1 = nn.Linear(config.embed_dim, config.ffn_dim)
        self.gate = nn.Linear(config.embed_dim, config.ffn_dim)
        self.ffn_layernorm = nn.LayerNorm(config.ffn_dim, eps=config.layernorm_eps)
        self.fc2 = nn.Linear(config.ffn_dim, config.embed_dim)

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, x.size(-1))
        g = self.gate(x)
        x = self.fc1(x)
        x = self.activation_fn(x.float()).type_as(x)
        x = x * g
        x = self.ffn_layernorm(x)
        x = self.fc2(x)
        return x.view(shape)


class DecoderLayer(nn.Module):
    """Retention and perceptron, with norms before them."""

    def __init__(self, config: RetNetConfig):
        super().__init__()
        self.alpha = math.pow(2.0 * config.num_layers, 0.25)
        self.retention_layer_norm = RMSNorm(config.embed_dim, eps=config.layernorm_eps)
        self.retention = MultiScaleRetention(config)
        self.final_layer_norm = RMSNorm(config.embed_dim, eps=config.layernorm_eps)
        self.ffn = GLU(config)

    def residual_connection(self, x, residual):
        return residual * self.alpha + x

    def forward(self, x, rel_pos, state: Optional[State] = None):
        residual = x
        x = self.retention_layer_norm(x)
        x, state = self.retention(x, rel_pos, state=state)
        x = self.residual_connection(x, residual)

        residual = x
        x = self.final_layer_norm(x)
        x = self.ffn(x)
        x = self.residual_connection(x, residual)
        return x, state


# ---------------------------------------------------------------------------------------------------------------------
# the model
# ---------------------------------------------------------------------------------------------------------------------


class RetNetForCausalLM(nn.Module):
    """Embedding, layers and head; forward reads the prompt and writes a few tokens."""

    def __init__(self, config: RetNetConfig):
        super().__init__()
        self.config = config
        self.embed_scale = 1.0 if config.no_scale_embedding else math.sqrt(config.embed_dim)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.embed_dim, padding_idx=config.pad_token_id)
        self.rel_pos = RetNetRelPos(config)
        self.layers = nn.ModuleList([DecoderLayer(config) for _ in range(config.num_layers)])
        self.layer_norm = RMSNorm(config.embed_dim, eps=config.layernorm_eps)
        self.output_projection = nn.Linear(config.embed_dim, config.vocab_size, bias=True)

    def decode(self, tokens, position_ids, padding_mask=None, states: Optional[List[State]] = None):
        """Logits of the tokens and the states of all layers after them."""
        x = self.embed_scale * self.embed_tokens(tokens)
        if padding_mask is not None:
            x = x * padding_mask[:, :, None].to(x)
        rel_pos = self.rel_pos(position_ids, padding_mask)

        new_states: List[State] = []
        for idx, layer in enumerate(self.layers):
            state = states[idx] if states is not None else None
            x, state = layer(x, rel_pos, state=state)
            new_states.append(state)

        x = self.layer_norm(x)
        logits = self.output_projection(x)
        return logits, new_states

    def seen_tokens(self, tokens):
        """1 for each word of the vocabulary that is in the row."""
        seen = torch.zeros(tokens.shape[0], self.config.vocab_size, device=tokens.device)
        seen = seen.scatter(1, tokens, 1.0)
        seen[:, self.config.pad_token_id] = 0.0
        return seen

    def pick(self, logits, seen):
        """The best word, if those seen before are punished and padding is never written."""
        penalty = self.config.repetition_penalty
        punished = torch.where(logits > 0, logits / penalty, logits * penalty)
        scores = torch.where(seen > 0, punished, logits)
        scores = scores.clone()
        scores[:, self.config.pad_token_id] = torch.finfo(scores.dtype).min
        return scores.argmax(dim=-1)

    def generate(self, logits, states, lengths, seen):
        """A few more tokens, one by one, each with the states of the one before."""
        collected = []
        for step in range(self.config.new_tokens):
            token = self.pick(logits, seen)
            seen = seen.scatter(1, token[:, None], 1.0)
            position_ids = (lengths + step)[:, None]
            step_logits, states = self.decode(token[:, None], position_ids, states=states)
            logits = step_logits[:, 0]
            collected.append(logits)
        return torch.stack(collected, dim=1)

    def forward(self, tokens, lengths):
        size = tokens.shape[1]
        padding_mask = left_padding_mask(lengths, size)
        position_ids = (padding_mask.cumsum(dim=-1) - 1).clamp(min=0)
        prompt_logits, states = self.decode(tokens, position_ids, padding_mask=padding_mask)
        seen = self.seen_tokens(tokens)
        step_logits = self.generate(prompt_logits[:, -1], states, lengths, seen)
        return prompt_logits, step_logits


@torch.no_grad()
def init_trained(net: RetNetForCausalLM) -> None:
    """Weights as they are after training."""
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=1.1 * module.in_features ** -0.5)
            nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, RMSNorm):
            nn.init.uniform_(module.weight, 0.6, 1.5)
        elif isinstance(module, (nn.LayerNorm, nn.GroupNorm)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.15)
    nn.init.normal_(net.embed_tokens.weight, std=net.config.embed_dim ** -0.5)
    net.embed_tokens.weight[net.config.pad_token_id].zero_()


def build():
    """The net with the same weights on every run, and three prompts with padding on the left."""
    torch.manual_seed(181)
    config = RetNetConfig()
    net = RetNetForCausalLM(config)
    init_trained(net)
    size = 11
    lengths = torch.tensor([11, 7, 9])
    tokens = torch.randint(1, config.vocab_size, (3, size))
    tokens = tokens * left_padding_mask(lengths, size)
    return net.eval(), (tokens, lengths)
