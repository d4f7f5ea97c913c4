"""ForecastMix for MindSpore (PyNative)."""
import math
from types import SimpleNamespace

import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

CONFIG = SimpleNamespace(
    channels=6, lookback=54, horizon=13, label_len=22, quantiles=(0.1, 0.25, 0.5, 0.75, 0.9),
    d_season=24, season_heads=3, d_ff=40, enc_layers=2, factor=1.2, kernels=(6, 13),
    d_trend=32, trend_heads=2, mix_heads=4, trend_layers=2, patch_len=12, stride=6, min_observed=0.7)


def sinusoid(length, dim, base=10000.0):
    pos = np.arange(length, dtype=np.float32)[:, None]
    freq = np.exp(np.arange(0, dim, 2, dtype=np.float32) * -(math.log(base) / dim))
    angle = pos * freq
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(length, dim).astype(np.float32)


def init_param(*shape, value=0.0, name=None):
    return Parameter(Tensor(np.full(shape, value, np.float32)), name=name)


class CircularConv1d(nn.Cell):
    """Conv1d over time for (B, T, C) inputs, with circular padding."""

    def __init__(self, in_channels, out_channels, kernel_size=3):
        super().__init__()
        self.pad = (kernel_size - 1) // 2
        self.conv = nn.Conv1d(in_channels, out_channels, kernel_size, pad_mode="valid", has_bias=False)

    def construct(self, x):
        x = x.swapaxes(1, 2)
        x = ops.cat((x[..., -self.pad:], x, x[..., :self.pad]), axis=-1)
        return self.conv(x).swapaxes(1, 2)


class RevIN(nn.Cell):
    def __init__(self, channels, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.affine_weight = init_param(channels, value=1.0)
        self.affine_bias = init_param(channels)

    def construct(self, x, observed):
        m = observed.astype(x.dtype)
        count = ops.clamp(m.sum(axis=1, keepdims=True), min=1.0)
        mean = (x * m).sum(axis=1, keepdims=True) / count
        var = (ops.square(x - mean) * m).sum(axis=1, keepdims=True) / count
        stdev = ops.sqrt(var + self.eps)
        x = (x - mean) / stdev
        return x * self.affine_weight + self.affine_bias, mean, stdev

    def inverse(self, y, mean, stdev):
        """y: (B, H, C, Q)"""
        y = (y - self.affine_bias.expand_dims(-1)) / (self.affine_weight.expand_dims(-1) + self.eps ** 2)
        return y * stdev.expand_dims(-1) + mean.expand_dims(-1)


class GapFiller(nn.Cell):
    def __init__(self, channels):
        super().__init__()
        self.decay = init_param(channels)
        self.rest = init_param(channels)

    def construct(self, x, observed):
        batch, length, channels = x.shape
        rate = ops.softplus(self.decay)
        last = ops.broadcast_to(self.rest, (batch, channels))
        gap = ops.zeros((batch, channels), x.dtype)
        filled = []
        for t in range(length):
            seen = observed[:, t]
            gap = ops.where(seen, ops.zeros_like(gap), gap + 1.0)
            last = ops.where(seen, x[:, t], last)
            fade = ops.exp(-rate * gap)
            filled.append(self.rest + fade * (last - self.rest))
        return ops.stack(filled, axis=1)


class CalendarEmbedding(nn.Cell):
    def __init__(self, dim):
        super().__init__()
        self.month = nn.Embedding(12, dim)
        self.weekday = nn.Embedding(7, dim)
        self.quarter = nn.Embedding(4, dim)
        self.hour_table = Tensor(sinusoid(24, dim, base=100.0))

    def construct(self, marks):
        month, weekday, hour, minute = ops.unstack(marks, axis=-1)
        learned = self.month(month - 1) + self.weekday(weekday) + self.quarter(minute // 15)
        return learned + ops.gather(self.hour_table, hour, 0)


class MultiDecomp(nn.Cell):
    def __init__(self, kernels):
        super().__init__()
        self.kernels = kernels
        self.pools = nn.CellList([nn.AvgPool1d(kernel_size=k, stride=1, pad_mode="valid") for k in kernels])
        self.gate = nn.Dense(1, len(kernels))

    def construct(self, x):
        means = []
        for k, pool in zip(self.kernels, self.pools):
            right = (k - 1) // 2
            left = k - 1 - right
            padded = ops.cat((ops.tile(x[:, :1], (1, left, 1)), x, ops.tile(x[:, -1:], (1, right, 1))), axis=1)
            means.append(pool(padded.swapaxes(1, 2)).swapaxes(1, 2))
        weights = ops.softmax(self.gate(x.expand_dims(-1)), axis=-1)
        trend = (ops.stack(means, axis=-1) * weights).sum(axis=-1)
        return x - trend, trend


class AutoCorrelation(nn.Cell):
    def __init__(self, dim, heads, factor, per_sample=True):
        super().__init__()
        self.heads = heads
        self.factor = factor
        self.per_sample = per_sample
        self.q_proj = nn.Dense(dim, dim)
        self.k_proj = nn.Dense(dim, dim)
        self.v_proj = nn.Dense(dim, dim)
        self.out_proj = nn.Dense(dim, dim)

    def split_heads(self, x):
        """(B, T, D) -> (B, heads, D / heads, T)"""
        batch, length, dim = x.shape
        return x.reshape(batch, length, self.heads, dim // self.heads).transpose(0, 2, 3, 1)

    @staticmethod
    def fit_length(x, length):
        """Cuts or zero-pads the last axis."""
        size = x.shape[-1]
        if size >= length:
            return x[..., :length]
        return ops.cat((x, ops.zeros(x.shape[:-1] + (length - size,), x.dtype)), axis=-1)

    def shared_delays(self, v, scores, top_k):
        _, delays = ops.topk(scores.mean(axis=0), top_k)
        weights = ops.softmax(ops.gather(scores, delays, 1), axis=-1)
        out = ops.zeros_like(v)
        for i in range(top_k):
            d = int(delays[i])
            rolled = ops.cat((v[..., d:], v[..., :d]), axis=-1) if d else v
            out = out + rolled * weights[:, i].reshape(-1, 1, 1, 1)
        return out

    def sample_delays(self, v, scores, top_k):
        batch, _, _, length = v.shape
        scores, delays = ops.topk(scores, top_k)
        weights = ops.softmax(scores, axis=-1)
        steps = ops.arange(length).reshape(1, 1, 1, length)
        doubled = ops.cat((v, v), axis=-1)
        out = ops.zeros_like(v)
        for i in range(top_k):
            index = steps + delays[:, i].reshape(batch, 1, 1, 1)
            pattern = ops.gather_elements(doubled, 3, ops.broadcast_to(index, v.shape))
            out = out + pattern * weights[:, i].reshape(batch, 1, 1, 1)
        return out

    def construct(self, query, memory):
        batch, length, dim = query.shape
        q = self.split_heads(self.q_proj(query))
        k = self.fit_length(self.split_heads(self.k_proj(memory)), length)
        v = self.fit_length(self.split_heads(self.v_proj(memory)), length)

        spectrum = ops.rfft(q) * ops.conj(ops.rfft(k))
        corr = ops.irfft(spectrum, n=length) / math.sqrt(length)
        scores = corr.mean(axis=(1, 2))
        top_k = int(self.factor * math.log(length))
        out = self.sample_delays(v, scores, top_k) if self.per_sample else self.shared_delays(v, scores, top_k)
        return self.out_proj(out.transpose(0, 3, 1, 2).reshape(batch, length, dim))


class ConvFFN(nn.Cell):
    def __init__(self, dim, hidden):
        super().__init__()
        self.conv1 = nn.Conv1d(dim, hidden, 1, has_bias=True)
        self.act = nn.GELU(approximate=False)
        self.conv2 = nn.Conv1d(hidden, dim, 1)

    def construct(self, x):
        x = self.conv1(x.swapaxes(1, 2))
        return self.conv2(self.act(x)).swapaxes(1, 2)


class Distil(nn.Cell):
    def __init__(self, dim):
        super().__init__()
        self.conv = nn.Conv1d(dim, dim, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.norm = nn.BatchNorm1d(dim, eps=1e-3)
        self.act = nn.ELU()

    def construct(self, x):
        x = self.conv(x.swapaxes(1, 2))
        return self.act(self.norm(x)).swapaxes(1, 2)


class EncoderLayer(nn.Cell):
    def __init__(self, cfg):
        super().__init__()
        self.attn = AutoCorrelation(cfg.d_season, cfg.season_heads, cfg.factor)
        self.decomp1 = MultiDecomp(cfg.kernels)
        self.ffn = ConvFFN(cfg.d_season, cfg.d_ff)
        self.decomp2 = MultiDecomp(cfg.kernels)

    def construct(self, x):
        x, _ = self.decomp1(x + self.attn(x, x))
        season, _ = self.decomp2(x + self.ffn(x))
        return season


class DecoderLayer(nn.Cell):
    def __init__(self, cfg):
        super().__init__()
        self.self_attn = AutoCorrelation(cfg.d_season, cfg.season_heads, cfg.factor)
        self.cross_attn = AutoCorrelation(cfg.d_season, cfg.season_heads, cfg.factor, per_sample=False)
        self.decomp1 = MultiDecomp(cfg.kernels)
        self.decomp2 = MultiDecomp(cfg.kernels)
        self.decomp3 = MultiDecomp(cfg.kernels)
        self.ffn = ConvFFN(cfg.d_season, cfg.d_ff)
        self.trend_proj = CircularConv1d(cfg.d_season, cfg.channels)

    def construct(self, x, memory):
        x, trend1 = self.decomp1(x + self.self_attn(x, x))
        x, trend2 = self.decomp2(x + self.cross_attn(x, memory))
        x, trend3 = self.decomp3(x + self.ffn(x))
        return x, self.trend_proj(trend1 + trend2 + trend3)


class SeasonBranch(nn.Cell):
    def __init__(self, cfg):
        super().__init__()
        self.horizon = cfg.horizon
        self.label_len = cfg.label_len
        self.enc_token = CircularConv1d(cfg.channels, cfg.d_season)
        self.dec_token = CircularConv1d(cfg.channels, cfg.d_season)
        self.encoder = nn.CellList([EncoderLayer(cfg) for _ in range(cfg.enc_layers)])
        self.distil = nn.CellList([Distil(cfg.d_season) for _ in range(cfg.enc_layers - 1)])
        self.enc_norm = nn.LayerNorm((cfg.d_season,), epsilon=1e-5)
        self.decoder = DecoderLayer(cfg)
        self.dec_norm = nn.LayerNorm((cfg.d_season,), epsilon=1e-5)
        self.proj = nn.Dense(cfg.d_season, cfg.channels)

    @staticmethod
    def centred(x):
        return x - x.mean(axis=1, keep_dims=True)

    def construct(self, season, trend, level, calendar):
        batch, length, channels = season.shape
        start = length - self.label_len
        enc = self.enc_token(season) + calendar[:, :length]
        for i, layer in enumerate(self.encoder):
            enc = layer(enc)
            if i < len(self.distil):
                enc = self.distil[i](enc)
        memory = self.centred(self.enc_norm(enc))

        blank = ops.zeros((batch, self.horizon, channels), season.dtype)
        dec = self.dec_token(ops.cat((season[:, start:], blank), axis=1)) + calendar[:, start:]
        dec, trend_delta = self.decoder(dec, memory)
        trend_init = ops.cat((trend[:, start:], ops.tile(level, (1, self.horizon, 1))), axis=1)
        slow = trend_init + trend_delta
        season_out = self.proj(self.centred(self.dec_norm(dec)))
        return season_out[:, -self.horizon:], slow[:, -self.horizon:]


class PatchAttention(nn.Cell):
    def __init__(self, dim, heads, patches):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.qkv = nn.Dense(dim, 3 * dim)
        self.proj = nn.Dense(dim, dim)
        self.rel_bias = init_param(2 * patches - 1, heads)
        pos = np.arange(patches)
        self.rel_index = Tensor(pos[:, None] - pos[None, :] + patches - 1, ms.int32)

    def construct(self, x, reliable):
        b, c, n, d = x.shape
        qkv = self.qkv(x).reshape(b, c, n, 3, self.heads, d // self.heads).transpose(3, 0, 1, 4, 2, 5)
        q, k, v = qkv[0], qkv[1], qkv[2]
        logits = ops.matmul(q, k.swapaxes(-1, -2)) * self.scale
        logits = logits + ops.gather(self.rel_bias, self.rel_index, 0).transpose(2, 0, 1)
        logits = ops.masked_fill(logits, ops.logical_not(reliable)[:, :, None, None, :], -1e4)
        out = ops.matmul(ops.softmax(logits, axis=-1), v)
        return self.proj(out.transpose(0, 1, 3, 2, 4).reshape(b, c, n, d))


class ChannelAttention(nn.Cell):
    def __init__(self, dim, heads, channels):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Dense(dim, 3 * dim)
        self.proj = nn.Dense(dim, dim)
        self.log_temp = init_param(heads, 1, 1)
        self.max_log = math.log(20.0)
        self.unit = ops.L2Normalize(axis=-1, epsilon=1e-12)
        self.diagonal = Tensor(np.eye(channels, dtype=bool))

    def construct(self, x):
        b, c, n, d = x.shape
        qkv = self.qkv(x).reshape(b, c, n, 3, self.heads, d // self.heads).transpose(3, 0, 2, 4, 1, 5)
        q, k, v = qkv[0], qkv[1], qkv[2]                    # (B, N, heads, C, E)
        logits = ops.matmul(self.unit(q), self.unit(k).swapaxes(-1, -2))
        logits = logits * ops.exp(ops.clamp(self.log_temp, max=self.max_log))
        logits = ops.masked_fill(logits, self.diagonal, float("-inf"))
        out = ops.matmul(ops.softmax(logits, axis=-1), v)
        return self.proj(out.transpose(0, 3, 1, 2, 4).reshape(b, c, n, d))


class FeedForward(nn.Cell):
    def __init__(self, dim):
        super().__init__()
        self.fc1 = nn.Dense(dim, 2 * dim)
        self.act = nn.LeakyReLU(alpha=0.01)
        self.fc2 = nn.Dense(2 * dim, dim)

    def construct(self, x):
        return self.fc2(self.act(self.fc1(x)))


class MixerBlock(nn.Cell):
    def __init__(self, cfg, patches):
        super().__init__()
        self.time_attn = PatchAttention(cfg.d_trend, cfg.trend_heads, patches)
        self.norm1 = nn.BatchNorm1d(cfg.d_trend, eps=1e-5, momentum=0.9)
        self.channel_attn = ChannelAttention(cfg.d_trend, cfg.mix_heads, cfg.channels)
        self.norm2 = nn.LayerNorm((cfg.d_trend,), epsilon=1e-5)
        self.ffn = FeedForward(cfg.d_trend)
        self.norm3 = nn.LayerNorm((cfg.d_trend,), epsilon=1e-5)

    def construct(self, x, reliable):
        shape = x.shape
        x = x + self.time_attn(x, reliable)
        x = self.norm1(x.reshape(-1, shape[-1])).reshape(shape)
        x = x + self.channel_attn(self.norm2(x))
        x = x + self.ffn(self.norm3(x))
        return x


class TrendBranch(nn.Cell):
    def __init__(self, cfg):
        super().__init__()
        self.min_observed = cfg.min_observed
        patches = (cfg.lookback + cfg.stride - cfg.patch_len) // cfg.stride + 1
        # step of every cell of the patch table; steps after the end repeat the last one
        table = np.arange(patches)[:, None] * cfg.stride + np.arange(cfg.patch_len)[None, :]
        self.patch_index = Tensor(np.minimum(table, cfg.lookback - 1), ms.int32)
        self.embed = nn.Dense(cfg.patch_len + 1, cfg.d_trend)
        self.channel_embed = init_param(cfg.channels, cfg.d_trend)
        self.position = Tensor(sinusoid(patches, cfg.d_trend))
        self.blocks = nn.CellList([MixerBlock(cfg, patches) for _ in range(cfg.trend_layers)])
        self.head = nn.Dense(cfg.d_trend * patches, cfg.horizon)

    def to_patches(self, x):
        """(B, L, C) -> (B, C, N, P)"""
        return ops.gather(x.swapaxes(1, 2), self.patch_index, 2)

    def construct(self, trend, observed):
        patches = self.to_patches(trend)
        coverage = self.to_patches(observed.astype(trend.dtype)).mean(axis=-1)
        reliable = coverage >= self.min_observed
        reliable = ops.logical_or(reliable, ops.logical_not(reliable.any(axis=-1, keep_dims=True)))
        spread = ops.std(patches, axis=-1, ddof=1, keepdims=True)
        z = self.embed(ops.cat((patches, spread), axis=-1))
        z = z + self.position + self.channel_embed.expand_dims(1)
        for block in self.blocks:
            z = block(z, reliable)
        b, c = z.shape[:2]
        return self.head(z.swapaxes(2, 3).reshape(b, c, -1)).swapaxes(1, 2)


class QuantileHead(nn.Cell):
    def __init__(self, cfg, hidden=20):
        super().__init__()
        self.middle = len(cfg.quantiles) // 2
        self.fc1 = nn.Dense(2 + cfg.d_season, hidden, activation="tanh")
        self.fc2 = nn.Dense(hidden, len(cfg.quantiles))

    def construct(self, season, trend, calendar):
        channels = season.shape[2]
        context = ops.tile(calendar.expand_dims(2), (1, 1, channels, 1))
        season, trend = season.expand_dims(-1), trend.expand_dims(-1)
        raw = self.fc2(self.fc1(ops.cat((season, trend, context), axis=-1)))
        low, mid, high = raw[..., :self.middle], raw[..., self.middle:self.middle + 1], raw[..., self.middle + 1:]
        median = season + trend + mid
        below = ops.flip(ops.cumsum(ops.flip(ops.softplus(low), (-1,)), -1), (-1,))
        above = ops.cumsum(ops.softplus(high), -1)
        return ops.cat((median - below, median, median + above), axis=-1)


class PinballLoss(nn.Cell):
    def __init__(self, cfg):
        super().__init__()
        self.levels = Tensor(cfg.quantiles, ms.float32)
        weight = 1.0 / np.sqrt(np.arange(1, cfg.horizon + 1))
        self.weight = Tensor(weight / weight.mean(), ms.float32)

    def construct(self, pred, target, mask, scale):
        error = (target.expand_dims(-1) - pred) / scale.expand_dims(-1)
        loss = ops.maximum(self.levels * error, (self.levels - 1.0) * error)
        w = mask.astype(pred.dtype) * self.weight.expand_dims(-1)
        total = ops.clamp(w.sum(axis=(0, 1)), min=1.0)
        per_channel = (loss * w.expand_dims(-1)).sum(axis=(0, 1)) / total.expand_dims(-1)
        return per_channel.mean(axis=-1), 2.0 * per_channel.mean()


class ForecastMix(nn.Cell):
    def __init__(self, cfg):
        super().__init__()
        self.lookback = cfg.lookback
        self.revin = RevIN(cfg.channels)
        self.filler = GapFiller(cfg.channels)
        self.calendar = CalendarEmbedding(cfg.d_season)
        self.decomp = MultiDecomp(cfg.kernels)
        self.season_branch = SeasonBranch(cfg)
        self.trend_branch = TrendBranch(cfg)
        self.gate = nn.Dense(cfg.d_season, cfg.channels)
        self.head = QuantileHead(cfg)
        self.criterion = PinballLoss(cfg)

    def construct(self, x, observed, marks, target, target_mask):
        x, mean, stdev = self.revin(x, observed)
        x = self.filler(x, observed)
        calendar = self.calendar(marks)
        future = calendar[:, self.lookback:]

        season, trend = self.decomp(x)
        season_out, slow = self.season_branch(season, trend, x.mean(axis=1, keep_dims=True), calendar)
        anchor = trend[:, -1:]
        patched = self.trend_branch(trend - anchor, observed) + anchor
        gate = ops.sigmoid(self.gate(future))
        trend_out = gate * slow + (1.0 - gate) * patched

        quantiles = self.revin.inverse(self.head(season_out, trend_out, future), mean, stdev)
        per_channel, loss = self.criterion(quantiles, target, target_mask, stdev)
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
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    net = ForecastMix(CONFIG)
    net.set_train(False)
    return net, tuple(Tensor(np.ascontiguousarray(a)) for a in make_inputs(CONFIG))
