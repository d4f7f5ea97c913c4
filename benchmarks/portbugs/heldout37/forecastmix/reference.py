"""ForecastMix: auto-correlation branch for the season, patch / channel-mixing branch for the trend, quantile heads."""
import math
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

CONFIG = SimpleNamespace(
    channels=6, lookback=54, horizon=13, label_len=22, quantiles=(0.1, 0.25, 0.5, 0.75, 0.9),
    d_season=24, season_heads=3, d_ff=40, enc_layers=2, factor=1.2, kernels=(6, 13),
    d_trend=32, trend_heads=2, mix_heads=4, trend_layers=2, patch_len=12, stride=6, min_observed=0.7)

def sinusoid_table(length, dim, base=10000.0):
    pos = torch.arange(length, dtype=torch.float32).unsqueeze(1)
    div = torch.exp(torch.arange(0, dim, 2, dtype=torch.float32) * -(math.log(base) / dim))
    table = torch.zeros(length, dim)
    table[:, 0::2] = torch.sin(pos * div)
    table[:, 1::2] = torch.cos(pos * div)
    return table

class RevIN(nn.Module):
    """Reversible instance normalisation; the statistics are taken over the observed steps only."""
    def __init__(self, channels, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x, mode, observed=None):
        if mode == "norm":
            m = observed.to(x.dtype)
            count = m.sum(dim=1, keepdim=True).clamp(min=1.0)
            self.mean = (x * m).sum(dim=1, keepdim=True) / count
            var = ((x - self.mean).pow(2) * m).sum(dim=1, keepdim=True) / count
            self.stdev = torch.sqrt(var + self.eps)
            return (x - self.mean) / self.stdev * self.weight + self.bias
        # denorm of (B, H, C, Q)
        x = (x - self.bias[:, None]) / (self.weight[:, None] + self.eps * self.eps)
        return x * self.stdev.unsqueeze(-1) + self.mean.unsqueeze(-1)

class GapFiller(nn.Module):
    """Fills gaps with the last observation, which fades to the channel's rest level as the gap grows (as in GRU-D)."""
    def __init__(self, channels):
        super().__init__()
        self.decay = nn.Parameter(torch.zeros(channels))
        self.rest = nn.Parameter(torch.zeros(channels))

    def forward(self, x, observed):
        B, L, C = x.shape
        last = self.rest.expand(B, C)
        gap = torch.zeros(B, C, dtype=x.dtype)
        rate = F.softplus(self.decay)
        steps = []
        for t in range(L):
            seen = observed[:, t]
            gap = torch.where(seen, torch.zeros_like(gap), gap + 1.0)
            last = torch.where(seen, x[:, t], last)
            fade = torch.exp(-rate * gap)
            steps.append(fade * last + (1.0 - fade) * self.rest)
        return torch.stack(steps, dim=1)

class CalendarEmbedding(nn.Module):
    """marks: (B, T, 4) integers: month 1..12, weekday 0..6, hour 0..23, minute 0..59."""
    def __init__(self, dim):
        super().__init__()
        self.month = nn.Embedding(12, dim)
        self.weekday = nn.Embedding(7, dim)
        self.quarter = nn.Embedding(4, dim)
        self.register_buffer("hour_table", sinusoid_table(24, dim, base=100.0), persistent=False)

    def forward(self, marks):
        month, weekday, hour, minute = marks.unbind(dim=-1)
        out = self.month(month - 1) + self.weekday(weekday) + self.quarter(minute // 15)
        return out + self.hour_table[hour]

class MultiDecomp(nn.Module):
    """Mixture of moving averages with edge padding; returns (season, trend)."""
    def __init__(self, kernels):
        super().__init__()
        self.kernels = kernels
        self.pools = nn.ModuleList([nn.AvgPool1d(k, stride=1, padding=0) for k in kernels])
        self.gate = nn.Linear(1, len(kernels))

    def forward(self, x):
        means = []
        for k, pool in zip(self.kernels, self.pools):
            end = (k - 1) // 2
            front = k - 1 - end
            padded = torch.cat([x[:, :1].repeat(1, front, 1), x, x[:, -1:].repeat(1, end, 1)], dim=1)
            means.append(pool(padded.permute(0, 2, 1)).permute(0, 2, 1))
        means = torch.stack(means, dim=-1)
        weights = F.softmax(self.gate(x.unsqueeze(-1)), dim=-1)
        trend = (means * weights).sum(dim=-1)
        return x - trend, trend

class AutoCorrelation(nn.Module):
    """Period-based attention: delays are scored in the frequency domain, values are aggregated over the best delays."""
    def __init__(self, dim, heads, factor, per_sample):
        super().__init__()
        self.heads = heads
        self.factor = factor
        self.per_sample = per_sample
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(dim, dim) for _ in range(4))

    def aggregate_shared(self, values, corr, top_k):
        mean_corr = corr.mean(dim=1).mean(dim=1)
        delays = torch.topk(mean_corr.mean(dim=0), top_k, dim=-1)[1]
        weights = torch.softmax(mean_corr[:, delays], dim=-1)
        agg = torch.zeros_like(values)
        for i in range(top_k):
            pattern = torch.roll(values, -int(delays[i]), dims=-1)
            agg = agg + pattern * weights[:, i].view(-1, 1, 1, 1)
        return agg

    def aggregate_per_sample(self, values, corr, top_k):
        B, H, E, L = values.shape
        mean_corr = corr.mean(dim=1).mean(dim=1)
        weights, delays = torch.topk(mean_corr, top_k, dim=-1)
        weights = torch.softmax(weights, dim=-1)
        base = torch.arange(L).view(1, 1, 1, L).expand(B, H, E, L)
        doubled = values.repeat(1, 1, 1, 2)
        agg = torch.zeros_like(values)
        for i in range(top_k):
            index = base + delays[:, i].view(B, 1, 1, 1)
            agg = agg + torch.gather(doubled, -1, index) * weights[:, i].view(B, 1, 1, 1)
        return agg

    def forward(self, queries, keys, values):
        B, L, D = queries.shape
        S = keys.shape[1]
        q = self.q_proj(queries).view(B, L, self.heads, -1)
        k = self.k_proj(keys).view(B, S, self.heads, -1)
        v = self.v_proj(values).view(B, S, self.heads, -1)
        if L > S:
            zeros = torch.zeros_like(q[:, : L - S])
            k = torch.cat([k, zeros], dim=1)
            v = torch.cat([v, zeros], dim=1)
        else:
            k, v = k[:, :L], v[:, :L]
        q_fft = torch.fft.rfft(q.permute(0, 2, 3, 1), dim=-1)
        k_fft = torch.fft.rfft(k.permute(0, 2, 3, 1), dim=-1)
        corr = torch.fft.irfft(q_fft * torch.conj(k_fft), n=L, dim=-1)
        corr = corr / math.sqrt(L)
        top_k = int(self.factor * math.log(L))
        v = v.permute(0, 2, 3, 1)
        out = self.aggregate_per_sample(v, corr, top_k) if self.per_sample else self.aggregate_shared(v, corr, top_k)
        return self.out_proj(out.permute(0, 3, 1, 2).reshape(B, L, D))

def conv_ffn(dim, hidden):
    return nn.Sequential(nn.Conv1d(dim, hidden, 1), nn.GELU(), nn.Conv1d(hidden, dim, 1, bias=False))

class EncoderLayer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.attn = AutoCorrelation(cfg.d_season, cfg.season_heads, cfg.factor, per_sample=True)
        self.decomp1 = MultiDecomp(cfg.kernels)
        self.ffn = conv_ffn(cfg.d_season, cfg.d_ff)
        self.decomp2 = MultiDecomp(cfg.kernels)

    def forward(self, x):
        x, _ = self.decomp1(x + self.attn(x, x, x))
        x, _ = self.decomp2(x + self.ffn(x.transpose(1, 2)).transpose(1, 2))
        return x

class DecoderLayer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.self_attn = AutoCorrelation(cfg.d_season, cfg.season_heads, cfg.factor, per_sample=True)
        self.cross_attn = AutoCorrelation(cfg.d_season, cfg.season_heads, cfg.factor, per_sample=False)
        self.decomp1, self.decomp2, self.decomp3 = (MultiDecomp(cfg.kernels) for _ in range(3))
        self.ffn = conv_ffn(cfg.d_season, cfg.d_ff)
        self.trend_proj = nn.Conv1d(cfg.d_season, cfg.channels, 3, padding=1, padding_mode="circular", bias=False)

    def forward(self, x, memory):
        x, t1 = self.decomp1(x + self.self_attn(x, x, x))
        x, t2 = self.decomp2(x + self.cross_attn(x, memory, memory))
        x, t3 = self.decomp3(x + self.ffn(x.transpose(1, 2)).transpose(1, 2))
        return x, self.trend_proj((t1 + t2 + t3).transpose(1, 2)).transpose(1, 2)

class SeasonBranch(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.enc_token = nn.Conv1d(cfg.channels, cfg.d_season, 3, padding=1, padding_mode="circular", bias=False)
        self.dec_token = nn.Conv1d(cfg.channels, cfg.d_season, 3, padding=1, padding_mode="circular", bias=False)
        self.encoder = nn.ModuleList([EncoderLayer(cfg) for _ in range(cfg.enc_layers)])
        self.distil = nn.ModuleList([
            nn.Sequential(nn.Conv1d(cfg.d_season, cfg.d_season, 3, stride=2, padding=1),
                          nn.BatchNorm1d(cfg.d_season, eps=1e-3), nn.ELU()) for _ in range(cfg.enc_layers - 1)])
        self.enc_norm = nn.LayerNorm(cfg.d_season)
        self.decoder = DecoderLayer(cfg)
        self.dec_norm = nn.LayerNorm(cfg.d_season)
        self.proj = nn.Linear(cfg.d_season, cfg.channels)

    def forward(self, season, trend, level, calendar):
        cfg = self.cfg
        B, L, C = season.shape
        enc = self.enc_token(season.transpose(1, 2)).transpose(1, 2) + calendar[:, :L]
        for i, layer in enumerate(self.encoder):
            enc = layer(enc)
            if i < len(self.distil):
                enc = self.distil[i](enc.transpose(1, 2)).transpose(1, 2)   # halves the sequence
        memory = self.enc_norm(enc)
        memory = memory - memory.mean(dim=1, keepdim=True)
        season_init = torch.cat([season[:, -cfg.label_len:], torch.zeros(B, cfg.horizon, C)], dim=1)
        trend_acc = torch.cat([trend[:, -cfg.label_len:], level.expand(B, cfg.horizon, C)], dim=1)
        dec = self.dec_token(season_init.transpose(1, 2)).transpose(1, 2) + calendar[:, L - cfg.label_len:]
        dec, residual_trend = self.decoder(dec, memory)
        dec = self.dec_norm(dec)
        season_out = self.proj(dec - dec.mean(dim=1, keepdim=True))
        return season_out[:, -cfg.horizon:], (trend_acc + residual_trend)[:, -cfg.horizon:]

class PatchAttention(nn.Module):
    """Self-attention over the patches of one channel, with relative position bias and a mask of unreliable patches."""
    def __init__(self, dim, heads, patches):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.rel_bias = nn.Parameter(torch.zeros(2 * patches - 1, heads))
        pos = torch.arange(patches)
        self.register_buffer("rel_index", pos[:, None] - pos[None, :] + patches - 1, persistent=False)

    def forward(self, x, reliable):
        B, C, N, D = x.shape
        q, k, v = self.qkv(x).view(B, C, N, 3, self.heads, -1).permute(3, 0, 1, 4, 2, 5)
        logits = torch.einsum("bchnd,bchmd->bchnm", q * self.scale, k)
        logits = logits + self.rel_bias[self.rel_index].permute(2, 0, 1)
        logits = logits.masked_fill(~reliable[:, :, None, None, :], -1e4)
        out = torch.einsum("bchnm,bchmd->bcnhd", logits.softmax(dim=-1), v)
        return self.proj(out.reshape(B, C, N, D))

class ChannelAttention(nn.Module):
    """Cosine attention between the channels at the same patch; a channel does not look at itself."""
    def __init__(self, dim, heads, channels):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.proj = (nn.Linear(dim, dim) for _ in range(4))
        self.log_temp = nn.Parameter(torch.zeros(heads, 1, 1))
        self.register_buffer("diagonal", torch.eye(channels, dtype=torch.bool), persistent=False)

    def forward(self, x):
        B, C, N, D = x.shape
        split = lambda t: t.view(B, C, N, self.heads, -1).permute(0, 2, 3, 1, 4)
        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        logits = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        logits = logits * self.log_temp.clamp(max=math.log(20.0)).exp()
        logits = logits.masked_fill(self.diagonal, float("-inf"))
        out = logits.softmax(dim=-1) @ v
        return self.proj(out.permute(0, 3, 1, 2, 4).reshape(B, C, N, D))

class MixerBlock(nn.Module):
    def __init__(self, cfg, patches):
        super().__init__()
        self.time_attn = PatchAttention(cfg.d_trend, cfg.trend_heads, patches)
        self.norm1 = nn.BatchNorm1d(cfg.d_trend)
        self.channel_attn = ChannelAttention(cfg.d_trend, cfg.mix_heads, cfg.channels)
        self.norm2 = nn.LayerNorm(cfg.d_trend)
        self.fc1 = nn.Linear(cfg.d_trend, 2 * cfg.d_trend)
        self.act = nn.LeakyReLU()
        self.fc2 = nn.Linear(2 * cfg.d_trend, cfg.d_trend)
        self.norm3 = nn.LayerNorm(cfg.d_trend)

    def forward(self, x, reliable):
        B, C, N, D = x.shape
        x = x + self.time_attn(x, reliable)
        x = self.norm1(x.reshape(B * C, N, D).transpose(1, 2)).transpose(1, 2).reshape(B, C, N, D)
        x = x + self.channel_attn(self.norm2(x))
        return x + self.fc2(self.act(self.fc1(self.norm3(x))))

class TrendBranch(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.patches = (cfg.lookback + cfg.stride - cfg.patch_len) // cfg.stride + 1
        self.embed = nn.Linear(cfg.patch_len + 1, cfg.d_trend)
        self.channel_embed = nn.Parameter(torch.zeros(cfg.channels, cfg.d_trend))
        self.register_buffer("position", sinusoid_table(self.patches, cfg.d_trend), persistent=False)
        self.blocks = nn.ModuleList([MixerBlock(cfg, self.patches) for _ in range(cfg.trend_layers)])
        self.head = nn.Linear(cfg.d_trend * self.patches, cfg.horizon)

    def forward(self, trend, observed):
        cfg = self.cfg
        both = torch.stack([trend, observed.float()]).permute(0, 1, 3, 2).flatten(0, 1)
        both = F.pad(both, (0, cfg.stride), mode="replicate").unfold(-1, cfg.patch_len, cfg.stride)
        patches, seen = both.chunk(2, dim=0)                                   # (B, C, N, P)
        reliable = seen.mean(dim=-1) >= cfg.min_observed
        reliable = reliable | ~reliable.any(dim=-1, keepdim=True)
        spread = patches.std(dim=-1, keepdim=True)
        z = self.embed(torch.cat([patches, spread], dim=-1))
        z = z + self.position + self.channel_embed[:, None, :]
        for block in self.blocks:
            z = block(z, reliable)
        z = z.transpose(2, 3).flatten(start_dim=2)
        return self.head(z).transpose(1, 2)

class QuantileHead(nn.Module):
    """Quantiles around the median; the widths are cumulated outwards, so that they never cross."""
    def __init__(self, cfg, hidden=20):
        super().__init__()
        self.middle = len(cfg.quantiles) // 2
        self.fc1 = nn.Linear(2 + cfg.d_season, hidden)
        self.fc2 = nn.Linear(hidden, len(cfg.quantiles))

    def forward(self, season, trend, calendar):
        context = calendar.unsqueeze(2).expand(-1, -1, season.shape[2], -1)
        features = torch.cat([season.unsqueeze(-1), trend.unsqueeze(-1), context], dim=-1)
        raw = self.fc2(torch.tanh(self.fc1(features)))
        median = (season + trend).unsqueeze(-1) + raw[..., self.middle: self.middle + 1]
        below = F.softplus(raw[..., :self.middle]).flip(-1).cumsum(dim=-1).flip(-1)
        above = F.softplus(raw[..., self.middle + 1:]).cumsum(dim=-1)
        return torch.cat([median - below, median, median + above], dim=-1)

class PinballLoss(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.register_buffer("levels", torch.tensor(cfg.quantiles), persistent=False)
        weight = 1.0 / torch.sqrt(torch.arange(1, cfg.horizon + 1).float())
        self.register_buffer("weight", weight / weight.mean(), persistent=False)

    def forward(self, pred, target, mask, scale):
        error = (target.unsqueeze(-1) - pred) / scale.unsqueeze(-1)
        loss = torch.maximum(self.levels * error, (self.levels - 1.0) * error)
        w = mask.to(pred.dtype) * self.weight[:, None]
        per_channel = (loss * w.unsqueeze(-1)).sum(dim=(0, 1)) / w.sum(dim=(0, 1)).clamp(min=1.0).unsqueeze(-1)
        return per_channel.mean(dim=-1), 2.0 * per_channel.mean()

class ForecastMix(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.revin = RevIN(cfg.channels)
        self.filler = GapFiller(cfg.channels)
        self.calendar = CalendarEmbedding(cfg.d_season)
        self.decomp = MultiDecomp(cfg.kernels)
        self.season_branch = SeasonBranch(cfg)
        self.trend_branch = TrendBranch(cfg)
        self.gate = nn.Linear(cfg.d_season, cfg.channels)
        self.head = QuantileHead(cfg)
        self.criterion = PinballLoss(cfg)

    def forward(self, x, observed, marks, target, target_mask):
        L = self.cfg.lookback
        x = self.filler(self.revin(x, "norm", observed), observed)
        calendar = self.calendar(marks)
        season, trend = self.decomp(x)
        level = x.mean(dim=1, keepdim=True)
        season_out, slow = self.season_branch(season, trend, level, calendar)
        last = trend[:, -1:]
        patched = self.trend_branch(trend - last, observed) + last
        gate = torch.sigmoid(self.gate(calendar[:, L:]))
        trend_out = gate * slow + (1.0 - gate) * patched
        quantiles = self.revin(self.head(season_out, trend_out, calendar[:, L:]), "denorm")
        per_channel, loss = self.criterion(quantiles, target, target_mask, self.revin.stdev)
        return quantiles, per_channel, loss

def make_inputs(cfg, batch=3, seed=5):
    rng = np.random.RandomState(seed)
    total = cfg.lookback + cfg.horizon
    t = np.arange(total)[None, :, None] + rng.randint(0, 40, (batch, 1, 1))
    period = rng.uniform(7.0, 19.0, (1, 1, cfg.channels))
    series = np.sin(2 * np.pi * t / period) * rng.uniform(0.5, 2.0, (batch, 1, cfg.channels))
    series = series + 0.03 * t * rng.randn(batch, 1, cfg.channels) + 0.4 * rng.randn(batch, total, cfg.channels)
    series = (series + rng.randn(batch, 1, cfg.channels)).astype(np.float32)
    observed = rng.rand(batch, total, cfg.channels) > 0.22
    observed[0, 20:33, 1] = observed[1, 47:54, 4] = False
    minutes = rng.randint(0, 500000, (batch, 1)) + 45 * np.arange(total)[None, :]
    marks = np.stack([minutes // 43200 % 12 + 1, minutes // 1440 % 7, minutes // 60 % 24, minutes % 60], -1)
    L = cfg.lookback
    return series[:, :L], observed[:, :L], marks.astype(np.int64), series[:, L:], observed[:, L:]

def build():
    torch.manual_seed(8)
    net = ForecastMix(CONFIG)
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(torch.randn(p.shape) * (0.9 / math.sqrt(p[0].numel()) if p.dim() > 1 else 0.3))
        for m in net.modules():
            if isinstance(m, (nn.LayerNorm, nn.BatchNorm1d)):
                m.weight.copy_(1.0 + 0.25 * torch.randn(m.weight.shape))
            if isinstance(m, nn.BatchNorm1d):
                m.running_mean.copy_(0.4 * torch.randn(m.running_mean.shape))
                m.running_var.copy_(0.1 + 1.4 * torch.rand(m.running_var.shape))
            if isinstance(m, nn.Embedding):
                m.weight.copy_(0.6 * torch.randn(m.weight.shape))
            if isinstance(m, ChannelAttention):
                m.log_temp.copy_(1.5 + 1.2 * torch.randn(m.log_temp.shape))
            if isinstance(m, AutoCorrelation):
                m.k_proj.weight.mul_(2.5)
        net.revin.weight.add_(1.0)
        net.filler.decay.sub_(1.0)
        net.trend_branch.head.weight.mul_(0.6)
    return net.eval(), tuple(torch.from_numpy(np.ascontiguousarray(a)) for a in make_inputs(CONFIG))
