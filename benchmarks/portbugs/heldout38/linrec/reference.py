"""LinRec: a small language model with linear recurrent attention.

Token shift, a short causal convolution, one (data dependent) decay per head, a bonus for the current token, a chunked
form for whole sequences beside a recurrent form for cached generation, group norm over the heads and gated channel
mixing.  Batches are padded on the left.
"""
import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class LinRecConfig:
    vocab_size: int = 53
    dim: int = 40
    n_layers: int = 3
    n_heads: int = 3
    head_key: int = 8
    head_value: int = 12
    hidden: int = 56
    lora_rank: int = 6
    conv_kernel: int = 3
    chunk: int = 5
    max_len: int = 64
    rotary_base: float = 1000.0
    rescale_every: int = 2
    norm_eps: float = 1e-5
    head_norm_eps: float = 64e-5
    logit_cap: float = 15.0
    label_smoothing: float = 0.05
    z_loss: float = 1e-2
    repetition_penalty: float = 1.3
    pad_id: int = 0
    eos_id: int = 8


# ---------------------------------------------------------------------------------------------------------------------
# functional parts
# ---------------------------------------------------------------------------------------------------------------------
def rotate_every_two(x):
    x1 = x[..., 0::2]
    x2 = x[..., 1::2]
    return torch.stack((-x2, x1), dim=-1).flatten(-2)


def apply_rotary(x, cos, sin):
    """x: (B, H, T, K); cos, sin: (B, T, K)"""
    return x * cos[:, None] + rotate_every_two(x) * sin[:, None]


def chunk_linear_attention(r, k, v, log_w, bonus, state, chunk):
    """Whole sequence at once, in chunks.

    r, k: (B, H, T, K)   v: (B, H, T, V)   log_w: (B, H, T)   bonus: (H, K)   state: (B, H, K, V)
    y_t = r_t (S_{t-1} + diag(bonus) k_t v_t^T),   S_t = w_t S_{t-1} + k_t v_t^T
    """
    B, H, T, K = r.shape
    V = v.shape[-1]
    pad = -T % chunk
    if pad:
        r, k, v = (F.pad(t, (0, 0, 0, pad)) for t in (r, k, v))
        log_w = F.pad(log_w, (0, pad))
    n = (T + pad) // chunk
    r = r.reshape(B, H, n, chunk, K)
    k = k.reshape(B, H, n, chunk, K)
    v = v.reshape(B, H, n, chunk, V)
    cum = log_w.reshape(B, H, n, chunk).cumsum(dim=-1)
    before = cum - log_w.reshape(B, H, n, chunk)
    total = cum[..., -1:]

    # inside a chunk: position i reads the positions j < i, and itself through the bonus
    strict = torch.ones(chunk, chunk, dtype=torch.bool, device=r.device).tril(-1)
    segment = before[..., :, None] - cum[..., None, :]
    decay = segment.masked_fill(~strict, float("-inf")).exp()
    scores = torch.einsum("bhnik,bhnjk->bhnij", r, k) * decay
    current = (r * bonus[None, :, None, None, :] * k).sum(-1)
    scores = scores + torch.diag_embed(current)
    inner = torch.einsum("bhnij,bhnjv->bhniv", scores, v)

    # between chunks: the state is carried on
    k_out = k * (total - cum).exp()[..., None]
    update = torch.einsum("bhnjk,bhnjv->bhnkv", k_out, v)
    r_in = r * before.exp()[..., None]
    cross = []
    for c in range(n):
        cross.append(torch.einsum("bhik,bhkv->bhiv", r_in[:, :, c], state))
        state = state * total[:, :, c].exp()[..., None] + update[:, :, c]
    y = inner + torch.stack(cross, dim=2)
    return y.reshape(B, H, n * chunk, V)[:, :, :T], state


def recurrent_linear_attention(r, k, v, log_w, bonus, state):
    """The same, token by token."""
    outs = []
    for t in range(r.shape[2]):
        kv = k[:, :, t, :, None] * v[:, :, t, None, :]
        outs.append(torch.einsum("bhk,bhkv->bhv", r[:, :, t], state + bonus[None, :, :, None] * kv))
        state = state * log_w[:, :, t].exp()[..., None, None] + kv
    return torch.stack(outs, dim=2), state


# ---------------------------------------------------------------------------------------------------------------------
# modules
# ---------------------------------------------------------------------------------------------------------------------
class RotaryTable(nn.Module):
    def __init__(self, dim, max_len, base):
        super().__init__()
        inv = base ** (-torch.arange(0, dim, 2).float() / dim)
        angle = torch.outer(torch.arange(max_len).float(), inv).repeat_interleave(2, dim=-1)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, positions):
        return self.cos[positions], self.sin[positions]


class TokenShift(nn.Module):
    """n mixtures of each token with the token before it; `last` is the token before the first one"""

    def __init__(self, dim, n):
        super().__init__()
        self.mix = nn.Parameter(torch.rand(n, dim))

    def forward(self, x, last=None):
        if last is None:
            last = torch.zeros_like(x[:, 0])
        previous = torch.cat([last.unsqueeze(1), x[:, :-1]], dim=1)
        delta = previous - x
        mixed = x.unsqueeze(0) + delta.unsqueeze(0) * self.mix[:, None, None, :]
        return mixed.unbind(0), x[:, -1]


class ShortConv(nn.Module):
    """depthwise causal convolution with a cache of its last inputs"""

    def __init__(self, channels, kernel, dilation):
        super().__init__()
        self.dilation = dilation
        self.span = (kernel - 1) * dilation
        self.conv = nn.Conv1d(channels, channels, kernel, padding=self.span, dilation=dilation, groups=channels)

    def forward(self, x, cache=None):
        T = x.shape[1]
        h = x.transpose(1, 2)
        if cache is None:
            y = self.conv(h)[..., :T]
            full = F.pad(h, (self.span, 0))
        else:
            full = torch.cat([cache, h], dim=-1)
            windows = full.unfold(-1, self.span + 1, 1)[..., :: self.dilation]       # B, C, T, kernel
            y = (windows * self.conv.weight[:, 0][None, :, None, :]).sum(-1) + self.conv.bias[None, :, None]
        return F.silu(y).transpose(1, 2), full[..., -self.span:]


class HeadDecay(nn.Module):
    """log of the decay of every head: a fixed scale from short to long memory, bent by the token"""

    def __init__(self, dim, n_heads, rank):
        super().__init__()
        gamma = 1 - torch.exp(torch.linspace(math.log(1 / 2), math.log(1 / 24), n_heads))
        self.register_buffer("log_gamma", gamma.log(), persistent=False)
        self.down = nn.Linear(dim, rank, bias=False)
        self.up = nn.Linear(rank, n_heads)

    def forward(self, x):
        bend = self.up(torch.tanh(self.down(x)))
        return self.log_gamma * bend.clamp(-2.0, 2.0).exp()


class TimeMix(nn.Module):
    def __init__(self, cfg, layer_id):
        super().__init__()
        self.layer_id = layer_id
        self.n_heads, self.head_key, self.head_value = cfg.n_heads, cfg.head_key, cfg.head_value
        self.chunk = cfg.chunk
        self.key_dim = cfg.n_heads * cfg.head_key
        self.value_dim = cfg.n_heads * cfg.head_value
        self.bonus = nn.Parameter(torch.zeros(cfg.n_heads, cfg.head_key))
        self.shift = TokenShift(cfg.dim, 5)
        self.receptance = nn.Linear(cfg.dim, self.key_dim, bias=False)
        self.key = nn.Linear(cfg.dim, self.key_dim, bias=False)
        self.value = nn.Linear(cfg.dim, self.value_dim, bias=False)
        self.gate = nn.Linear(cfg.dim, self.value_dim, bias=False)
        self.conv = ShortConv(self.key_dim + self.value_dim, cfg.conv_kernel, 1 + layer_id % 2)
        self.decay = HeadDecay(cfg.dim, cfg.n_heads, cfg.lora_rank)
        if layer_id > 0:
            self.value_gate = nn.Linear(cfg.dim, self.value_dim)
        self.head_norm = nn.GroupNorm(cfg.n_heads, self.value_dim, eps=cfg.head_norm_eps)
        self.output = nn.Linear(self.value_dim, cfg.dim, bias=False)

    def forward(self, x, mask, rotary, v_first, cache):
        B, T, _ = x.shape
        H, K, V = self.n_heads, self.head_key, self.head_value
        last, conv_cache, state = cache if cache is not None else (None, None, None)

        (xr, xk, xv, xg, xw), last = self.shift(x, last)
        r = self.receptance(xr)
        kv, conv_cache = self.conv(torch.cat([self.key(xk), self.value(xv)], dim=-1), conv_cache)
        k, v = kv.split([self.key_dim, self.value_dim], dim=-1)
        k = k * mask.unsqueeze(-1)                       # padding writes nothing into the state
        gate = F.silu(self.gate(xg))
        log_w = self.decay(xw).transpose(1, 2)           # B, H, T
        if self.layer_id == 0:
            v_first = v
        else:
            v = v + (v_first - v) * torch.sigmoid(self.value_gate(xv))

        r = r.view(B, T, H, K).transpose(1, 2)
        k = k.view(B, T, H, K).transpose(1, 2)
        vh = v.reshape(B, T, H, V).transpose(1, 2)
        cos, sin = rotary
        r = apply_rotary(r, cos, sin) * K ** -0.5
        k = apply_rotary(k, cos, sin)

        if state is None:
            state = x.new_zeros(B, H, K, V)
        if T > 1:
            y, state = chunk_linear_attention(r, k, vh, log_w, self.bonus, state, self.chunk)
        else:
            y, state = recurrent_linear_attention(r, k, vh, log_w, self.bonus, state)

        y = y.transpose(1, 2).reshape(B * T, self.value_dim)
        y = self.head_norm(y).view(B, T, self.value_dim)
        return self.output(y * gate), v_first, (last, conv_cache, state)


class ChannelMix(nn.Module):
    """RWKV's feed forward: squared relu, gated by the receptance"""

    def __init__(self, dim, hidden):
        super().__init__()
        self.shift = TokenShift(dim, 2)
        self.key = nn.Linear(dim, hidden, bias=False)
        self.receptance = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(hidden, dim, bias=False)

    def forward(self, x, last=None):
        (xk, xr), last = self.shift(x, last)
        k = torch.relu(self.key(xk)).square()
        return torch.sigmoid(self.receptance(xr)) * self.value(k), last


class GatedFFN(nn.Module):
    """GEGLU with a joint input projection"""

    def __init__(self, dim, hidden):
        super().__init__()
        self.inp = nn.Linear(dim, 2 * hidden)
        self.act = nn.GELU()
        self.out = nn.Linear(hidden, dim)

    def forward(self, x, last=None):
        value, gate = self.inp(x).chunk(2, dim=-1)
        return self.out(value * self.act(gate)), None


class Block(nn.Module):
    def __init__(self, cfg, layer_id):
        super().__init__()
        self.ln1 = nn.LayerNorm(cfg.dim, eps=cfg.norm_eps)
        self.ln2 = nn.LayerNorm(cfg.dim, eps=cfg.norm_eps)
        self.att = TimeMix(cfg, layer_id)
        self.ffn = GatedFFN(cfg.dim, cfg.hidden) if layer_id % 2 else ChannelMix(cfg.dim, cfg.hidden)

    def forward(self, x, mask, rotary, v_first, cache):
        att_cache, ffn_cache = cache if cache is not None else (None, None)
        keep = mask.unsqueeze(-1)
        a, v_first, att_cache = self.att(self.ln1(x) * keep, mask, rotary, v_first, att_cache)
        x = x + a
        f, ffn_cache = self.ffn(self.ln2(x) * keep, ffn_cache)
        return x + f, v_first, (att_cache, ffn_cache)


class LinRecLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.embed = nn.Embedding(cfg.vocab_size, cfg.dim)
        self.ln_in = nn.LayerNorm(cfg.dim, eps=cfg.norm_eps)
        self.rotary = RotaryTable(cfg.head_key, cfg.max_len, cfg.rotary_base)
        self.blocks = nn.ModuleList(Block(cfg, i) for i in range(cfg.n_layers))
        self.ln_out = nn.LayerNorm(cfg.dim, eps=cfg.norm_eps)
        self.head = nn.Linear(cfg.dim, cfg.vocab_size, bias=False)

    def backbone(self, ids, mask, positions, caches=None):
        """-> logits (B, T, vocab), the caches of all layers"""
        x = self.ln_in(self.embed(ids))
        rotary = self.rotary(positions)
        v_first, new_caches = None, []
        for i, block in enumerate(self.blocks):
            x, v_first, cache = block(x, mask, rotary, v_first, caches[i] if caches is not None else None)
            new_caches.append(cache)
            if (i + 1) % self.cfg.rescale_every == 0:
                x = x / 2
        logits = self.head(self.ln_out(x))
        logits = self.cfg.logit_cap * torch.tanh(logits / self.cfg.logit_cap)
        return logits, new_caches

    def loss(self, logits, ids, mask):
        labels = ids.masked_fill(mask == 0, -100)
        flat = logits[:, :-1].reshape(-1, logits.shape[-1])
        target = labels[:, 1:].reshape(-1)
        ce = F.cross_entropy(flat, target, ignore_index=-100, label_smoothing=self.cfg.label_smoothing)
        valid = (target != -100).to(flat.dtype)
        z = (torch.logsumexp(flat, dim=-1).square() * valid).sum() / valid.sum().clamp(min=1)
        return ce + self.cfg.z_loss * z

    def penalize(self, logits, seen):
        p = self.cfg.repetition_penalty
        return torch.where(seen > 0, torch.where(logits > 0, logits / p, logits * p), logits)

    def generate(self, logits, ids, mask, caches, max_new):
        """greedy, from the caches of the prompt"""
        cfg = self.cfg
        B = ids.shape[0]
        step_logits = logits[:, -1]
        lengths = mask.sum(dim=1).long()
        seen = torch.zeros(B, cfg.vocab_size).scatter_add(1, ids, mask)
        alive = torch.ones(B)
        score = torch.zeros(B)
        tokens, all_logits = [], []
        for step in range(max_new):
            adjusted = self.penalize(step_logits, seen)
            adjusted[:, cfg.pad_id] = -1e4
            log_p = F.log_softmax(adjusted, dim=-1)
            best = adjusted.argmax(dim=-1)
            score = score + log_p.gather(1, best[:, None]).squeeze(1) * alive
            token = torch.where(alive > 0, best, torch.full_like(best, cfg.pad_id))
            tokens.append(token)
            all_logits.append(step_logits)
            seen = seen.scatter_add(1, token[:, None], alive[:, None])
            alive = alive * (token != cfg.eos_id).float()
            positions = (lengths + step)[:, None]
            out, caches = self.backbone(token[:, None], alive[:, None], positions, caches)
            step_logits = out[:, 0]
        emitted = torch.stack([(t != cfg.pad_id).float() for t in tokens], dim=1).sum(dim=1)
        states = torch.stack([c[0][2] for c in caches], dim=1)             # B, layers, H, K, V
        return torch.stack(tokens, dim=1), torch.stack(all_logits, dim=1), score / emitted, states

    def forward(self, ids, mask, max_new):
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0).long()
        logits, caches = self.backbone(ids, mask, positions)
        loss = self.loss(logits, ids, mask)
        tokens, step_logits, score, states = self.generate(logits, ids, mask, caches, max_new)
        return logits, loss, step_logits, score, states, tokens


# ---------------------------------------------------------------------------------------------------------------------
def randomize(net):
    for name, p in net.named_parameters():
        with torch.no_grad():
            if name.endswith("shift.mix"):
                p.copy_(0.1 + 0.8 * torch.rand_like(p))
            elif name.endswith("bonus"):
                p.copy_(0.6 + 0.5 * torch.randn_like(p))
            elif ".conv." in name and p.dim() == 3:
                p.copy_(torch.randn_like(p) * 0.7)
            elif "norm" in name or ".ln" in name or name.startswith("ln"):
                p.copy_(torch.randn_like(p) * 0.2 + (1.0 if name.endswith("weight") else 0.0))
            elif name == "embed.weight":
                p.copy_(torch.randn_like(p) * 0.04)
            elif name == "head.weight":
                p.copy_(torch.randn_like(p) * 0.5)
            elif p.dim() == 2:
                p.copy_(torch.randn_like(p) * 1.2 / p.shape[1] ** 0.5)
            else:
                p.copy_(torch.randn_like(p) * 0.3)


def make_inputs():
    rng = np.random.RandomState(11)
    ids = rng.randint(3, 53, size=(2, 18))
    mask = np.ones((2, 18), dtype=np.float32)
    mask[1, :4] = 0
    ids[mask == 0] = 0
    return ids, mask


def build():
    torch.manual_seed(5)
    net = LinRecLM(LinRecConfig())
    randomize(net)
    ids, mask = make_inputs()
    return net.eval(), (torch.from_numpy(ids).long(), torch.from_numpy(mask), 5)
