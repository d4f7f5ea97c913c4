"""A long-convolution language model (Hyena operators, hashed bigrams, local ALiBi attention every third block), in PyTorch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

PAD_ID = 0

# Multipliers of the bigram hash, both odd.
HASH_CURRENT = 36313
HASH_PREVIOUS = 27191


@dataclass
class HyenaConfig:
    vocab_size: int = 61
    dim: int = 36
    depth: int = 6
    attention_every: int = 3
    # bigrams
    bigram_buckets: int = 89
    bigram_dim: int = 14
    # hyena operator
    order: int = 3
    short_kernel: int = 3
    short_dilations: tuple = (1, 2)
    max_len: int = 48
    filter_emb_dim: int = 9
    filter_hidden: int = 16
    filter_shift: float = 0.05
    fast_decay_pct: float = 0.3
    slow_decay_pct: float = 1.5
    decay_target: float = 1e-2
    # local attention
    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 10
    window: int = 7
    # the rest
    mlp_hidden: int = 52
    head_hidden: int = 23
    num_classes: int = 11
    dropout: float = 0.1
    norm_eps: float = 1e-5
    logit_cap: float = 6.0


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        x = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps)
        return x * self.weight


# ---------------------------------------------------------------------------------------------------------------------
# Embeddings
# ---------------------------------------------------------------------------------------------------------------------


def hash_bigrams(input_ids, mask, buckets):
    """The bucket of each token with the one before it; the last bucket is for tokens that nothing real comes before."""
    boundary = buckets - 1
    prev_ids = F.pad(input_ids[:, :-1], (1, 0), value=PAD_ID)
    prev_real = F.pad(mask[:, :-1], (1, 0), value=False)
    hashed = torch.bitwise_xor(HASH_CURRENT * input_ids, HASH_PREVIOUS * prev_ids) % boundary
    return torch.where(prev_real & mask, hashed, torch.full_like(hashed, boundary))


class BigramEmbedding(nn.Module):
    """Narrow table of hashed bigrams, normed and widened to the model."""

    def __init__(self, buckets, bigram_dim, dim, eps):
        super().__init__()
        self.buckets = buckets
        self.table = nn.Embedding(buckets, bigram_dim)
        self.norm = RMSNorm(bigram_dim, eps=eps)
        self.proj = nn.Linear(bigram_dim, dim, bias=False)
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, input_ids, mask):
        index = hash_bigrams(input_ids, mask, self.buckets)
        return self.proj(self.norm(self.table(index))) * self.scale


# ---------------------------------------------------------------------------------------------------------------------
# Hyena
# ---------------------------------------------------------------------------------------------------------------------


def fftconv(u, k, bias):
    """Causal convolution of u (batch, dim, length) with k (dim, length), plus a skip connection for each channel."""
    seqlen = u.shape[-1]
    fft_size = 2 * seqlen
    k_f = torch.fft.rfft(k, n=fft_size) / fft_size
    u_f = torch.fft.rfft(u, n=fft_size)
    y = torch.fft.irfft(u_f * k_f, n=fft_size, norm="forward")[..., :seqlen]
    return y + u * bias.unsqueeze(-1)


class Sin(nn.Module):
    def __init__(self, dim, w=1.0):
        super().__init__()
        self.freq = nn.Parameter(w * torch.ones(1, dim))

    def forward(self, x):
        return torch.sin(self.freq * x)


class PositionalFeatures(nn.Module):
    """Time, cosines and sines at every place of a sequence of the greatest length, cut to what is asked."""

    def __init__(self, emb_dim, max_len):
        super().__init__()
        assert emb_dim % 2 == 1 and emb_dim >= 3, "the features are the time and pairs of cosine and sine"
        bands = (emb_dim - 1) // 2
        t = torch.linspace(0, 1, max_len)[None, :, None]
        t_rescaled = torch.linspace(0, max_len - 1, max_len)[None, :, None]
        w = 2 * math.pi * t_rescaled / max_len
        f = torch.linspace(1e-4, bands - 1, bands)[None, None]
        z = torch.cat([t, torch.cos(f * w), -torch.sin(f * w)], dim=-1)
        self.register_buffer("z", z, persistent=False)
        self.register_buffer("t", t, persistent=False)

    def forward(self, length):
        return self.z[:, :length], self.t[:, :length]


class ExponentialModulation(nn.Module):
    """Window that decays at another speed in every channel."""

    def __init__(self, channels, fast_decay_pct, slow_decay_pct, target, shift):
        super().__init__()
        self.shift = shift
        max_decay = math.log(target) / fast_decay_pct
        min_decay = math.log(target) / slow_decay_pct
        deltas = torch.linspace(min_decay, max_decay, channels)[None, None]
        self.register_buffer("deltas", deltas, persistent=False)

    def forward(self, t, h):
        decay = torch.exp(-t * self.deltas.abs())
        return h * (decay + self.shift)


class HyenaFilter(nn.Module):
    """Implicit long filters: a sine network over positional features, windowed and normalised."""

    def __init__(self, cfg):
        super().__init__()
        self.dim = cfg.dim
        self.num_filters = cfg.order - 1
        channels = cfg.dim * self.num_filters
        self.bias = nn.Parameter(torch.zeros(channels))
        self.pos_emb = PositionalFeatures(cfg.filter_emb_dim, cfg.max_len)
        self.implicit_filter = nn.Sequential(
            nn.Linear(cfg.filter_emb_dim, cfg.filter_hidden),
            Sin(cfg.filter_hidden),
            nn.Linear(cfg.filter_hidden, cfg.filter_hidden),
            Sin(cfg.filter_hidden),
            nn.Linear(cfg.filter_hidden, channels, bias=False),
        )
        self.modulation = ExponentialModulation(
            channels, cfg.fast_decay_pct, cfg.slow_decay_pct, cfg.decay_target, cfg.filter_shift
        )

    def forward(self, length):
        z, t = self.pos_emb(length)
        h = self.implicit_filter(z)
        h = self.modulation(t, h)
        h = h / torch.norm(h, dim=1, p=1, keepdim=True)
        # l (v o) -> o v l
        k = h.squeeze(0).reshape(length, self.dim, self.num_filters).permute(2, 1, 0)
        bias = self.bias.reshape(self.dim, self.num_filters).transpose(0, 1)
        return k, bias


class HyenaOperator(nn.Module):
    """Projections with short convolutions; the value goes through gates and long convolutions in turn."""

    def __init__(self, cfg, dilation):
        super().__init__()
        self.dim = cfg.dim
        self.order = cfg.order
        inner = cfg.dim * (cfg.order + 1)
        self.in_proj = nn.Linear(cfg.dim, inner)
        self.short_filter = nn.Conv1d(
            inner, inner, cfg.short_kernel, padding=(cfg.short_kernel - 1) * dilation, dilation=dilation, groups=inner
        )
        self.filter_fn = HyenaFilter(cfg)
        self.dropout = nn.Dropout(cfg.dropout)
        self.out_proj = nn.Linear(cfg.dim, cfg.dim)

    def forward(self, u, mask):
        length = u.shape[1]
        keep = mask.unsqueeze(1).to(u.dtype)

        u = self.in_proj(u).transpose(1, 2) * keep
        uc = self.short_filter(u)[..., :length] * keep
        *x, v = uc.split(self.dim, dim=1)

        k, bias = self.filter_fn(length)
        for o, x_i in enumerate(reversed(x[1:])):
            v = self.dropout(v * x_i)
            v = fftconv(v, k[o], bias[o])
        y = (v * x[0]).transpose(1, 2)
        return self.out_proj(y)


# ---------------------------------------------------------------------------------------------------------------------
# Local attention
# ---------------------------------------------------------------------------------------------------------------------


def alibi_slopes(num_heads):
    """Slopes as in the ALiBi paper, also for counts of heads that are no power of two."""

    def power_of_two(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(num_heads).is_integer():
        return power_of_two(num_heads)
    closest = 2 ** math.floor(math.log2(num_heads))
    return power_of_two(closest) + power_of_two(2 * closest)[0::2][: num_heads - closest]


def look_back(x, pad_value=0.0):
    """Every chunk of x (batch, chunks, size, ...) with the chunk before it in front; the first has padding there."""
    first = torch.full_like(x[:, :1], pad_value)
    previous = torch.cat([first, x[:, :-1]], dim=1)
    return torch.cat([previous, x], dim=2)


class LocalAttention(nn.Module):
    """Causal attention within a window, computed chunk by chunk, with grouped keys and values."""

    def __init__(self, cfg):
        super().__init__()
        self.num_heads = cfg.num_heads
        self.num_kv_heads = cfg.num_kv_heads
        self.head_dim = cfg.head_dim
        self.window = cfg.window
        self.q_proj = nn.Linear(cfg.dim, cfg.num_heads * cfg.head_dim, bias=False)
        self.kv_proj = nn.Linear(cfg.dim, 2 * cfg.num_kv_heads * cfg.head_dim, bias=False)
        self.out_proj = nn.Linear(cfg.num_heads * cfg.head_dim, cfg.dim)
        self.dropout = nn.Dropout(cfg.dropout)
        slopes = torch.tensor(alibi_slopes(cfg.num_heads)).view(1, 1, -1, 1, 1)
        self.register_buffer("slopes", slopes, persistent=False)

    def forward(self, x, mask):
        batch, length, _ = x.shape
        size = self.window
        extra = -length % size
        x = F.pad(x, (0, 0, 0, extra))
        real = F.pad(mask, (0, extra), value=False)
        chunks = (length + extra) // size

        q = self.q_proj(x).reshape(batch, chunks, size, self.num_heads, self.head_dim)
        kv = self.kv_proj(x).reshape(batch, chunks, size, 2, self.num_kv_heads, self.head_dim)
        k, v = kv.unbind(dim=3)
        groups = self.num_heads // self.num_kv_heads
        k = look_back(k).repeat_interleave(groups, dim=3)
        v = look_back(v).repeat_interleave(groups, dim=3)
        key_real = look_back(real.reshape(batch, chunks, size), pad_value=False)

        distance = torch.arange(size, device=x.device)[:, None] + size - torch.arange(2 * size, device=x.device)[None, :]
        allowed = (distance >= 0) & (distance < self.window)
        allowed = allowed[None, None] & key_real[:, :, None, :]

        scores = torch.einsum("bnihd,bnjhd->bnhij", q, k) * self.head_dim**-0.5
        scores = scores - self.slopes * distance.to(scores.dtype)
        scores = torch.where(allowed[:, :, None], scores, torch.finfo(scores.dtype).min)
        attn = self.dropout(scores.softmax(dim=-1))
        out = torch.einsum("bnhij,bnjhd->bnihd", attn, v)
        out = out.reshape(batch, chunks * size, -1)[:, :length]
        return self.out_proj(out) * mask.unsqueeze(-1).to(out.dtype)


# ---------------------------------------------------------------------------------------------------------------------
# The net
# ---------------------------------------------------------------------------------------------------------------------


class GatedMLP(nn.Module):
    def __init__(self, dim, hidden, dropout):
        super().__init__()
        self.fc1 = nn.Linear(dim, 2 * hidden)
        self.act = nn.GELU()
        self.dropout = nn.Dropout(dropout)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x):
        value, gate = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(self.dropout(value * self.act(gate)))


class Block(nn.Module):
    def __init__(self, cfg, index):
        super().__init__()
        self.norm1 = RMSNorm(cfg.dim, eps=cfg.norm_eps)
        if (index + 1) % cfg.attention_every == 0:
            self.mixer = LocalAttention(cfg)
        else:
            self.mixer = HyenaOperator(cfg, cfg.short_dilations[index % cfg.attention_every])
        self.norm2 = RMSNorm(cfg.dim, eps=cfg.norm_eps)
        self.mlp = GatedMLP(cfg.dim, cfg.mlp_hidden, cfg.dropout)

    def forward(self, x, mask):
        x = x + self.mixer(self.norm1(x), mask)
        x = x + self.mlp(self.norm2(x))
        return x


class ClassifierHead(nn.Module):
    """Scores from the state at the last real token of each sequence."""

    def __init__(self, dim, hidden, num_classes, dropout):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.bn = nn.BatchNorm1d(hidden)
        self.act = nn.LeakyReLU(0.05)
        self.dropout = nn.Dropout(dropout)
        self.fc2 = nn.Linear(hidden, num_classes)

    def forward(self, hidden, mask):
        places = torch.arange(mask.shape[1], device=mask.device)
        last = torch.where(mask, places, torch.zeros_like(places)).amax(dim=1)
        pooled = hidden[torch.arange(hidden.shape[0], device=hidden.device), last]
        return self.fc2(self.dropout(self.act(self.bn(self.fc1(pooled)))))


class HyenaLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.tok_emb = nn.Embedding(cfg.vocab_size, cfg.dim)
        self.bigram = BigramEmbedding(cfg.bigram_buckets, cfg.bigram_dim, cfg.dim, cfg.norm_eps)
        self.drop = nn.Dropout(cfg.dropout)
        self.blocks = nn.ModuleList([Block(cfg, i) for i in range(cfg.depth)])
        self.norm_f = RMSNorm(cfg.dim, eps=cfg.norm_eps)
        self.head = ClassifierHead(cfg.dim, cfg.head_hidden, cfg.num_classes, cfg.dropout)

    def lm_logits(self, hidden):
        """Tied to the token table, soft-capped."""
        logits = F.linear(hidden, self.tok_emb.weight)
        return self.cfg.logit_cap * torch.tanh(logits / self.cfg.logit_cap)

    @staticmethod
    def next_token_scores(logits, input_ids, mask):
        """Log-probability of each token after the first, given what comes before it; zero where either is padding."""
        logp = F.log_softmax(logits[:, :-1], dim=-1)
        scores = logp.gather(-1, input_ids[:, 1:, None]).squeeze(-1)
        return scores * (mask[:, 1:] & mask[:, :-1]).to(scores.dtype)

    def forward(self, input_ids, attention_mask):
        """Token ids (batch, length), padded on the left, and the mask of what is real."""
        mask = attention_mask.bool()
        x = self.tok_emb(input_ids) + self.bigram(input_ids, mask)
        x = self.drop(x) * mask.unsqueeze(-1).to(x.dtype)
        for block in self.blocks:
            x = block(x, mask)
        hidden = self.norm_f(x)

        logits = self.lm_logits(hidden) * mask.unsqueeze(-1).to(x.dtype)
        scores = self.next_token_scores(logits, input_ids, mask)
        return self.head(hidden, mask), logits, scores


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, RMSNorm):
            nn.init.uniform_(module.weight, 0.6, 1.4)
        elif isinstance(module, nn.BatchNorm1d):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.3)
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.6)
        elif isinstance(module, Sin):
            nn.init.uniform_(module.freq, 1.0, 3.0)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, nn.Conv1d):
            nn.init.normal_(module.weight, std=0.4)
            module.weight.data[..., -1] += 0.7
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, HyenaFilter):
            nn.init.normal_(module.bias, std=0.6)
    nn.init.normal_(net.tok_emb.weight, std=0.5)
    nn.init.normal_(net.bigram.table.weight, std=0.02)
    nn.init.uniform_(net.bigram.scale, 0.2, 0.9)
    return net


def pad_left(sequences, length):
    """A batch of token ids with the padding in front, and its mask."""
    ids = torch.full((len(sequences), length), PAD_ID)
    mask = torch.zeros(len(sequences), length, dtype=torch.long)
    for row, sequence in enumerate(sequences):
        ids[row, length - len(sequence) :] = sequence
        mask[row, length - len(sequence) :] = 1
    return ids, mask


def build():
    """The net with the same weights on every run, and a batch of three sequences of different lengths."""
    torch.manual_seed(4242)
    cfg = HyenaConfig()
    net = trained_like(HyenaLM(cfg))
    sequences = [torch.randint(1, cfg.vocab_size, (n,)) for n in (27, 19, 13)]
    input_ids, attention_mask = pad_left(sequences, 27)
    return net.eval(), (input_ids, attention_mask)
