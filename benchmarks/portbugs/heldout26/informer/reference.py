"""Informer: a long-horizon forecaster with ProbSparse attention, self-attention distilling and a generative decoder.

The model follows "Informer: Beyond Efficient Transformer for Long Sequence Time-Series Forecasting" (Zhou et al., 2021).
The windows are normalised by reversible instance normalisation (Kim et al., 2022) over the values that were observed,
and the head gives a location and a spread for each channel and step.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

# Standard normal deviates of the 10 %, 50 % and 90 % quantiles.
QUANTILE_Z = (-1.2815516, 0.0, 1.2815516)


class Config:
    """The small model for hourly data with seven channels."""

    channels = 7
    seq_len, label_len, pred_len = 48, 24, 16
    d_model, n_heads, d_ff = 32, 4, 64
    # layers of each encoder of the stack; the i-th one reads the last seq_len / 2**i steps
    e_layers = (3, 2)
    d_layers = 2
    # the constant c of ProbSparse attention: c * ceil(ln L) samples and queries
    factor = 3
    dropout, max_len = 0.05, 256


def calendar_features(marks):
    """(batch, steps, 4) integers (month, day, weekday, hour) to features in [-0.5, 0.5], the finest first."""
    month, day, weekday, hour = marks.float().unbind(dim=-1)
    features = (hour / 23.0, weekday / 6.0, (day - 1.0) / 30.0, (month - 1.0) / 11.0)
    return torch.stack(features, dim=-1) - 0.5


def sinusoid_table(length, dim):
    """The sines and cosines of "Attention is all you need", interleaved: (length, dim)."""
    position = torch.arange(length).float().unsqueeze(1)
    div_term = torch.exp(torch.arange(0, dim, 2).float() * -(math.log(10000.0) / dim))
    table = torch.zeros(length, dim)
    table[:, 0::2] = torch.sin(position * div_term)
    table[:, 1::2] = torch.cos(position * div_term)
    return table


@lru_cache(maxsize=8)
def triangular_mask(length):
    """True where a query (row) must not look at a key (column)."""
    return torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)


def last_observed(x, observed):
    """The last value of each channel that was observed, zero where there is none: (batch, 1, channels)."""
    steps = torch.arange(1, x.shape[1] + 1)[None, :, None]
    index = (steps * observed.long()).amax(dim=1, keepdim=True) - 1
    value = x.gather(1, index.clamp(min=0))
    return torch.where(index >= 0, value, torch.zeros_like(value))


def sample_budget(length, factor):
    """How many keys are sampled, and how many queries are kept, of a sequence of this length."""
    return min(factor * int(math.ceil(math.log(length))), length)


def sparsity_measure(q, k, index_sample):
    """M(q, K) of the paper, on sampled keys: how far the largest product is from the even share.

    q and k are (batch, heads, length, dim), index_sample is (L_Q, sample_k).
    """
    (b, h, l_k, d), l_q = k.shape, q.shape[2]
    k_expand = k.unsqueeze(-3).expand(b, h, l_q, l_k, d)
    k_sample = k_expand[:, :, torch.arange(l_q).unsqueeze(1), index_sample, :]
    qk_sample = torch.matmul(q.unsqueeze(-2), k_sample.transpose(-2, -1)).squeeze(-2)
    return qk_sample.max(dim=-1)[0] - torch.div(qk_sample.sum(dim=-1), l_k)


def initial_context(v, l_q, masked):
    """What the lazy queries get: the mean of the values, or under a causal mask the cumulated sum."""
    return v.cumsum(dim=-2) if masked else v.mean(dim=-2, keepdim=True).repeat(1, 1, l_q, 1)


def prob_attention(q, k, v, draws, factor, masked):
    """ProbSparse attention: the most active queries attend, the others keep the initial context."""
    (b, h, l_q, d), l_k = q.shape, k.shape[2]
    index_sample = draws[:l_q, : sample_budget(l_k, factor)] % l_k
    measure = sparsity_measure(q, k, index_sample)
    top = measure.topk(sample_budget(l_q, factor), sorted=False)[1]

    batch_index, head_index = torch.arange(b)[:, None, None], torch.arange(h)[None, :, None]
    q_reduce = q[batch_index, head_index, top, :]
    scores = torch.matmul(q_reduce, k.transpose(-2, -1)) / math.sqrt(d)
    if masked:
        mask = triangular_mask(l_k).expand(b, h, l_q, l_k)[batch_index, head_index, top, :]
        scores = scores.masked_fill(mask, -np.inf)
    attn = torch.softmax(scores, dim=-1)

    context = initial_context(v, l_q, masked)
    context[batch_index, head_index, top, :] = torch.matmul(attn, v)
    return context


def full_attention(q, k, v):
    """Scaled dot-product attention of all queries."""
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
    return torch.matmul(torch.softmax(scores, dim=-1), v)


class RevIN(nn.Module):
    """Reversible instance normalisation of windows with missing values."""

    def __init__(self, channels, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.affine_weight = nn.Parameter(torch.ones(channels))
        self.affine_bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x, observed):
        """The normalised window, zero where nothing was observed, and its statistics for the way back."""
        weight = observed.to(x.dtype)
        count = weight.sum(dim=1, keepdim=True).clamp(min=1.0)
        mean = (x * weight).sum(dim=1, keepdim=True) / count
        var = (((x - mean) * weight) ** 2).sum(dim=1, keepdim=True) / count
        stdev = torch.sqrt(var + self.eps)
        x = (x - mean) / stdev * self.affine_weight + self.affine_bias
        return x * weight, (mean, stdev)

    def inverse(self, y, stats):
        y = (y - self.affine_bias) / (self.affine_weight + self.eps * self.eps)
        return y * stats[1] + stats[0]

    def inverse_scale(self, spread, stats):
        """The same for a spread, which has no place."""
        return spread / (self.affine_weight + self.eps * self.eps) * stats[1]


class TokenEmbedding(nn.Module):
    """Values (and which of them were observed) to the model's width, by a circular convolution over time."""

    def __init__(self, c_in, d_model):
        super().__init__()
        self.conv = nn.Conv1d(c_in, d_model, kernel_size=3, padding=1, padding_mode="circular", bias=False)

    def forward(self, x):
        return self.conv(x.permute(0, 2, 1)).transpose(1, 2)


class DataEmbedding(nn.Module):
    """Sum of the embeddings of values, places and calendar."""

    def __init__(self, c_in, d_model, max_len, dropout):
        super().__init__()
        self.value_embedding = TokenEmbedding(c_in, d_model)
        self.temporal_embedding = nn.Linear(4, d_model, bias=False)
        self.position_scale = nn.Parameter(torch.ones(1))
        self.norm = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("pe", sinusoid_table(max_len, d_model), persistent=False)

    def forward(self, x, features, start=0):
        """start is the place of the first step within the window."""
        places = self.pe[start : start + x.shape[1]].unsqueeze(0)
        x = self.value_embedding(x) + self.temporal_embedding(features) + self.position_scale * places
        return self.dropout(self.norm(x))


class AttentionLayer(nn.Module):
    """Projections around an attention over heads."""

    def __init__(self, d_model, n_heads, factor, kind="prob", masked=False, mix=False):
        super().__init__()
        self.n_heads, self.factor = n_heads, factor
        self.kind, self.masked, self.mix = kind, masked, mix
        self.query_projection = nn.Linear(d_model, d_model)
        self.key_projection = nn.Linear(d_model, d_model)
        self.value_projection = nn.Linear(d_model, d_model)
        self.out_projection = nn.Linear(d_model, d_model)

    def _heads(self, x):
        return x.view(x.shape[0], x.shape[1], self.n_heads, -1).transpose(1, 2)

    def forward(self, queries, keys, draws=None):
        b, length, width = queries.shape
        q = self._heads(self.query_projection(queries))
        k = self._heads(self.key_projection(keys))
        v = self._heads(self.value_projection(keys))
        if self.kind == "prob":
            out = prob_attention(q, k, v, draws, self.factor, self.masked)
        else:
            out = full_attention(q, k, v)
        # (batch, heads, length, dim); mixing reads the heads' rows one after the other as they lie
        if not self.mix:
            out = out.transpose(1, 2)
        return self.out_projection(out.reshape(b, length, width))


class FeedForward(nn.Module):
    """Position-wise perceptron."""

    def __init__(self, d_model, d_ff, dropout):
        super().__init__()
        self.fc1 = nn.Linear(d_model, d_ff)
        self.activation = nn.GELU()
        self.fc2 = nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.dropout(self.fc2(self.dropout(self.activation(self.fc1(x)))))


class DistilLayer(nn.Module):
    """Halves the sequence: circular convolution, ELU and max pooling."""

    def __init__(self, d_model):
        super().__init__()
        self.down_conv = nn.Conv1d(d_model, d_model, kernel_size=3)
        self.norm = nn.BatchNorm1d(d_model)
        self.activation = nn.ELU()
        self.max_pool = nn.MaxPool1d(kernel_size=3, stride=2, padding=1)

    def forward(self, x):
        x = F.pad(x.transpose(1, 2), (1, 1), mode="circular")
        x = self.max_pool(self.activation(self.norm(self.down_conv(x))))
        return x.transpose(1, 2)


class EncoderLayer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.attention = AttentionLayer(cfg.d_model, cfg.n_heads, cfg.factor)
        self.norm1 = nn.LayerNorm(cfg.d_model)
        self.ffn = FeedForward(cfg.d_model, cfg.d_ff, cfg.dropout)
        self.norm2 = nn.LayerNorm(cfg.d_model)
        self.dropout = nn.Dropout(cfg.dropout)

    def forward(self, x, draws):
        x = x + self.dropout(self.attention(x, x, draws))
        y = x = self.norm1(x)
        return self.norm2(x + self.ffn(y))


class Encoder(nn.Module):
    """Attention layers with distilling between them."""

    def __init__(self, cfg, n_layers):
        super().__init__()
        self.layers = nn.ModuleList([EncoderLayer(cfg) for _ in range(n_layers)])
        self.distils = nn.ModuleList([DistilLayer(cfg.d_model) for _ in range(n_layers - 1)])
        self.norm = nn.LayerNorm(cfg.d_model)

    def forward(self, x, draws):
        for i, layer in enumerate(self.layers):
            x = layer(x, draws[i])
            if i < len(self.distils):
                x = self.distils[i](x)
        return self.norm(x)


class EncoderStack(nn.Module):
    """Encoders on the whole window and on its last halves; all end at the same length and are put one after the other."""

    def __init__(self, cfg):
        super().__init__()
        self.encoders = nn.ModuleList([Encoder(cfg, n) for n in cfg.e_layers])

    def forward(self, x, draws):
        outs, site = [], 0
        for i, encoder in enumerate(self.encoders):
            inp_len = x.shape[1] // 2**i
            outs.append(encoder(x[:, -inp_len:, :], draws[site:]))
            site += len(encoder.layers)
        return torch.cat(outs, dim=1), site


class DecoderLayer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.self_attention = AttentionLayer(cfg.d_model, cfg.n_heads, cfg.factor, masked=True, mix=True)
        self.norm1 = nn.LayerNorm(cfg.d_model)
        self.cross_attention = AttentionLayer(cfg.d_model, cfg.n_heads, cfg.factor, kind="full")
        self.norm2 = nn.LayerNorm(cfg.d_model)
        self.ffn = FeedForward(cfg.d_model, cfg.d_ff, cfg.dropout)
        self.norm3 = nn.LayerNorm(cfg.d_model)
        self.dropout = nn.Dropout(cfg.dropout)

    def forward(self, x, memory, draws):
        x = self.norm1(x + self.dropout(self.self_attention(x, x, draws)))
        y = x = self.norm2(x + self.dropout(self.cross_attention(x, memory)))
        return self.norm3(x + self.ffn(y))


class Decoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.layers = nn.ModuleList([DecoderLayer(cfg) for _ in range(cfg.d_layers)])
        self.norm = nn.LayerNorm(cfg.d_model)

    def forward(self, x, memory, draws):
        for layer, own in zip(self.layers, draws):
            x = layer(x, memory, own)
        return self.norm(x)


class GaussianHead(nn.Module):
    """A location and a positive spread for each channel."""

    def __init__(self, d_model, channels):
        super().__init__()
        self.channels = channels
        self.projection = nn.Linear(d_model, channels * 2)

    def forward(self, x):
        out = self.projection(x).view(x.shape[0], x.shape[1], self.channels, 2)
        return out[..., 0], F.softplus(out[..., 1]) + 1e-3


class Informer(nn.Module):
    """Forecasts pred_len steps at once from a window of seq_len steps."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.revin = RevIN(cfg.channels)
        self.enc_embedding = DataEmbedding(cfg.channels * 2, cfg.d_model, cfg.max_len, cfg.dropout)
        self.dec_embedding = DataEmbedding(cfg.channels * 2, cfg.d_model, cfg.max_len, cfg.dropout)
        self.encoder = EncoderStack(cfg)
        self.decoder = Decoder(cfg)
        self.head = GaussianHead(cfg.d_model, cfg.channels)
        self.register_buffer("quantile_z", torch.tensor(QUANTILE_Z), persistent=False)

    def _decoder_input(self, x):
        """The last label_len steps as start token, and empty steps for what is asked."""
        token = x[:, -self.cfg.label_len :, :]
        return torch.cat((token, x.new_zeros(x.shape[0], self.cfg.pred_len, x.shape[2])), dim=1)

    def forward(self, x, observed, marks, future_marks, draws):
        """Forecast and quantiles.

        x and observed are (batch, seq_len, channels), marks (batch, seq_len, 4) and future_marks (batch, pred_len, 4)
        are calendar integers, draws (sites, length, samples) are integers from which each attention takes the keys that
        it samples.
        """
        cfg = self.cfg
        features = calendar_features(torch.cat((marks, future_marks), dim=1))
        x, stats = self.revin(x, observed)
        carried = last_observed(x, observed)
        values = torch.cat((x, observed.to(x.dtype)), dim=-1)

        memory, site = self.encoder(self.enc_embedding(values, features[:, : cfg.seq_len]), draws)

        start = cfg.seq_len - cfg.label_len
        dec = self.dec_embedding(self._decoder_input(values), features[:, start:], start=start)
        dec = self.decoder(dec, memory, draws[site:])

        location, spread = self.head(dec[:, -cfg.pred_len :, :])
        forecast = self.revin.inverse(location + carried, stats)
        spread = self.revin.inverse_scale(spread, stats)
        quantiles = forecast.unsqueeze(-1) + spread.unsqueeze(-1) * self.quantile_z
        return forecast, quantiles


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, (nn.LayerNorm, nn.BatchNorm1d)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
        if isinstance(module, nn.BatchNorm1d):
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
        elif isinstance(module, (nn.Linear, nn.Conv1d)):
            nn.init.normal_(module.weight, std=1.5 * module.weight[0].numel() ** -0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, RevIN):
            nn.init.uniform_(module.affine_weight, 0.6, 1.5)
            nn.init.normal_(module.affine_bias, std=0.2)
    for embedding in (net.enc_embedding, net.dec_embedding):
        nn.init.normal_(embedding.value_embedding.conv.weight, std=0.003)
        nn.init.normal_(embedding.temporal_embedding.weight, std=0.02)
        nn.init.constant_(embedding.position_scale, 0.015)
    return net


def calendar(start, steps):
    """(steps, 4) integers (month, day, weekday, hour) of the hours from start on."""
    hours = [start + timedelta(hours=i) for i in range(steps)]
    return np.array([(t.month, t.day, t.weekday(), t.hour) for t in hours], np.int64)


def example_inputs(cfg):
    """Hourly series with a daily rhythm, a trend and gaps."""
    rng = np.random.RandomState(2021)
    starts = (datetime(2017, 3, 29, 5), datetime(2018, 7, 14, 0), datetime(2016, 12, 30, 17))
    dates = np.stack([calendar(start, cfg.seq_len + cfg.pred_len) for start in starts])
    steps = np.arange(cfg.seq_len)[None, :, None]
    shape = (len(starts), 1, cfg.channels)
    x = rng.uniform(0.5, 2.0, shape) * np.sin(2 * np.pi * steps / 24 + rng.uniform(0, 6.28, shape))
    x = x + rng.normal(0, 1.5, shape) + rng.normal(0, 0.02, shape) * steps
    x = x + 0.5 * rng.normal(size=(len(starts), cfg.seq_len, cfg.channels))
    observed = rng.uniform(size=x.shape) > 0.15
    observed[1, -5:, :3] = observed[2, :, 6] = False
    draws = rng.randint(0, 1 << 16, (sum(cfg.e_layers) + cfg.d_layers, cfg.seq_len, cfg.factor * 4))
    x = np.where(observed, x, 0.0).astype(np.float32)
    return x, observed, dates[:, : cfg.seq_len], dates[:, cfg.seq_len :], draws.astype(np.int64)


def build():
    """The net with the same weights on every run, and three windows."""
    torch.manual_seed(2022)
    cfg = Config()
    net = trained_like(Informer(cfg))
    return net.eval(), tuple(torch.from_numpy(np.ascontiguousarray(a)) for a in example_inputs(cfg))
