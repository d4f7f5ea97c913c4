"""The probabilistic forecaster in MindSpore: seasons by auto-correlation and periods, trends by patches."""

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops


def as_pool_axis(x):
    """[B, L, C] to [B, C, L] and back."""
    return mint.permute(x, (0, 2, 1))


def amplitudes(x):
    """Of the real FFT along time, by hand: the absolute value of a complex tensor stays complex."""
    spectrum = ops.rfft(x, None, 1)
    return mint.sqrt(mint.square(ops.real(spectrum)) + mint.square(ops.imag(spectrum)))


class InstanceNorm(nn.Cell):
    """Statistics over what was observed; `construct` normalises, `restore` goes back."""

    def __init__(self, num_features, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.affine_weight = Parameter(ops.ones((num_features,), ms.float32), name="affine_weight")
        self.affine_bias = Parameter(ops.zeros((num_features,), ms.float32), name="affine_bias")

    def construct(self, x, observed):
        seen = observed.astype(ms.float32)
        count = mint.clamp(mint.sum(seen, dim=1, keepdim=True), min=1.0)
        mean = mint.sum(x * seen, dim=1, keepdim=True) / count
        centred = x - mean
        var = mint.sum(mint.square(centred * seen), dim=1, keepdim=True) / count
        stdev = mint.sqrt(var + self.eps)
        out = centred / stdev * self.affine_weight + self.affine_bias
        return out * seen, mean, stdev

    def restore(self, x, mean, stdev):
        """x: [B, H, C, Q]"""
        weight = self.affine_weight.expand_dims(-1)
        bias = self.affine_bias.expand_dims(-1)
        x = (x - bias) / (weight + self.eps * self.eps)
        return x * stdev.expand_dims(-1) + mean.expand_dims(-1)


class MovingAverage(nn.Cell):
    """The ends are repeated so that the length stays; an even window looks further back than ahead."""

    def __init__(self, window):
        super().__init__()
        self.after = (window - 1) // 2
        self.before = window - 1 - self.after
        self.pool = nn.AvgPool1d(kernel_size=window, stride=1, pad_mode="valid")

    def construct(self, x):
        first = mint.tile(x[:, :1, :], (1, self.before, 1))
        last = mint.tile(x[:, -1:, :], (1, self.after, 1))
        padded = mint.cat((first, x, last), dim=1)
        return as_pool_axis(self.pool(as_pool_axis(padded)))


class Decomposition(nn.Cell):
    def __init__(self, windows):
        super().__init__()
        self.averages = nn.CellList([MovingAverage(w) for w in windows])
        self.mixer = nn.Dense(1, len(windows))

    def construct(self, x):
        candidates = ops.stack([average(x) for average in self.averages], axis=-1)
        weights = mint.softmax(self.mixer(x.expand_dims(-1)), dim=-1)
        trend = mint.sum(candidates * weights, dim=-1)
        return x - trend, trend


class CircularConv1d(nn.Cell):
    """A convolution that goes round at the ends, without bias."""

    def __init__(self, c_in, c_out, kernel_size=3):
        super().__init__()
        self.side = kernel_size // 2
        self.conv = nn.Conv1d(c_in, c_out, kernel_size, pad_mode="valid", has_bias=False)

    def construct(self, x):
        return self.conv(mint.nn.functional.pad(x, (self.side, self.side), mode="circular"))


class CalendarEmbedding(nn.Cell):
    def __init__(self, width):
        super().__init__()
        self.hour = nn.Embedding(24, width)
        self.weekday = nn.Embedding(7, width)

    def construct(self, calendar):
        return self.hour(calendar[..., 0]) + self.weekday(calendar[..., 1])


class AutoCorrelation(nn.Cell):
    """Delays at which the series look like themselves; the values rolled by them, weighted."""

    def __init__(self, width, factor):
        super().__init__()
        self.factor = factor
        self.query_projection = nn.Dense(width, width)
        self.key_projection = nn.Dense(width, width)
        self.value_projection = nn.Dense(width, width)
        self.out_projection = nn.Dense(width, width)

    def construct(self, x):
        batch, length, width = x.shape
        query = as_pool_axis(self.query_projection(x))
        key = as_pool_axis(self.key_projection(x))
        value = as_pool_axis(self.value_projection(x))

        product = ops.rfft(query, None, -1) * ops.conj(ops.rfft(key, None, -1))
        correlation = ops.irfft(product, length, -1).mean(axis=1)

        count = int(self.factor * math.log(length))
        strengths, delays = ops.topk(correlation, count)
        strengths = mint.softmax(strengths, dim=-1)

        doubled = mint.tile(value, (1, 1, 2))
        start = ops.arange(length).astype(ms.int32).reshape(1, 1, length)
        total = 0.0
        for i in range(count):
            index = mint.broadcast_to(start + delays[:, i].reshape(batch, 1, 1), (batch, width, length))
            rolled = mint.gather(doubled, 2, index)
            total = total + rolled * strengths[:, i].reshape(batch, 1, 1)
        return self.out_projection(as_pool_axis(total))


class SeasonEncoderLayer(nn.Cell):
    def __init__(self, width, hidden, factor, window):
        super().__init__()
        self.attention = AutoCorrelation(width, factor)
        self.conv1 = nn.Conv1d(width, hidden, 1, has_bias=False)
        self.conv2 = nn.Conv1d(hidden, width, 1, has_bias=False)
        self.average = MovingAverage(window)

    def feed_forward(self, x):
        hidden = ops.gelu(self.conv1(as_pool_axis(x)))
        return as_pool_axis(self.conv2(hidden))

    def construct(self, x):
        x = x + self.attention(x)
        x = x - self.average(x)
        x = x + self.feed_forward(x)
        return x - self.average(x)


class SeasonLayerNorm(nn.Cell):
    """A layer norm, and then no series keeps a mean over time."""

    def __init__(self, width):
        super().__init__()
        self.layernorm = nn.LayerNorm((width,), epsilon=1e-5)

    def construct(self, x):
        x = self.layernorm(x)
        return x - mint.mean(x, dim=1, keepdim=True)


class Inception(nn.Cell):
    def __init__(self, c_in, c_out, count=3):
        super().__init__()
        self.kernels = nn.CellList(
            [nn.Conv2d(c_in, c_out, 2 * i + 1, pad_mode="pad", padding=i, has_bias=True) for i in range(count)]
        )

    def construct(self, x):
        total = self.kernels[0](x)
        for conv in self.kernels[1:]:
            total = total + conv(x)
        return total / len(self.kernels)


class TimesBlock(nn.Cell):
    """The series folded by each of its strongest periods into a picture, convolved and unfolded."""

    def __init__(self, width, hidden, count):
        super().__init__()
        self.count = count
        self.conv = nn.SequentialCell(Inception(width, hidden), nn.GELU(approximate=False), Inception(hidden, width))

    def find_periods(self, x):
        amplitude = amplitudes(x)
        overall = amplitude.mean(axis=(0, 2)).asnumpy()
        overall[0] = 0.0
        top = np.argsort(-overall, kind="stable")[: self.count]
        weights = amplitude.mean(axis=-1)[:, Tensor(top, ms.int32)]
        return [int(x.shape[1] // t) for t in top], mint.softmax(weights, dim=1)

    def fold(self, x, period):
        batch, total, width = x.shape
        rows = -(-total // period)
        if rows * period > total:
            x = mint.cat((x, ops.zeros((batch, rows * period - total, width), x.dtype)), dim=1)
        picture = x.reshape(batch, rows, period, width).transpose(0, 3, 1, 2)
        picture = self.conv(picture)
        return picture.transpose(0, 2, 3, 1).reshape(batch, -1, width)[:, :total]

    def construct(self, x):
        periods, weights = self.find_periods(x)
        out = x
        for i, period in enumerate(periods):
            out = out + self.fold(x, period) * weights[:, i].reshape(-1, 1, 1)
        return out


class SeasonBranch(nn.Cell):
    def __init__(self, c_in, history, horizon, width, hidden, window):
        super().__init__()
        self.history = history
        self.horizon = horizon
        self.token = CircularConv1d(c_in, width)
        self.calendar = CalendarEmbedding(width)
        self.layers = nn.CellList([SeasonEncoderLayer(width, hidden, 1.5, window) for _ in range(2)])
        self.norm = SeasonLayerNorm(width)
        self.extend = nn.Dense(history, history + horizon)
        self.times = nn.CellList([TimesBlock(width, width, 4) for _ in range(2)])
        self.layer_norm = nn.LayerNorm((width,), epsilon=1e-5)

    def construct(self, seasonal, calendar):
        stamps = self.calendar(calendar)
        h = as_pool_axis(self.token(as_pool_axis(seasonal))) + stamps[:, : self.history]
        for layer in self.layers:
            h = layer(h)
        h = self.norm(h)
        h = as_pool_axis(self.extend(as_pool_axis(h))) + stamps
        for block in self.times:
            h = self.layer_norm(block(h))
        return h[:, self.history :]


class PatchAttention(nn.Cell):
    """Attention over patches that returns its scores, for the next layer adds them to its own."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.head_dim = width // heads
        self.scale = self.head_dim ** -0.5
        self.qkv = nn.Dense(width, 3 * width)
        self.to_out = nn.Dense(width, width)

    def construct(self, x, empty, prev):
        batch, count, width = x.shape
        qkv = self.qkv(x).reshape(batch, count, 3, self.heads, self.head_dim).transpose(2, 0, 3, 1, 4)
        query, key, value = qkv[0], qkv[1], qkv[2]
        scores = mint.matmul(query, key.swapaxes(-1, -2)) * self.scale
        if prev is not None:
            scores = scores + prev
        scores = scores.masked_fill(empty[:, None, None, :], -1e4)
        mixed = mint.matmul(mint.softmax(scores, dim=-1), value)
        mixed = mixed.transpose(0, 2, 1, 3).reshape(batch, count, width)
        return self.to_out(mixed), scores


class TimeBatchNorm(nn.Cell):
    """Batch norm over the last axis of [N, T, D]."""

    def __init__(self, width):
        super().__init__()
        self.bn = nn.BatchNorm1d(width, eps=1e-5)

    def construct(self, x):
        return self.bn(x.reshape(-1, x.shape[-1])).reshape(x.shape)


class PatchEncoderLayer(nn.Cell):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.attention = PatchAttention(width, heads)
        self.norm_attn = TimeBatchNorm(width)
        self.ff = nn.SequentialCell(nn.Dense(width, hidden), nn.GELU(approximate=False), nn.Dense(hidden, width))
        self.norm_ffn = TimeBatchNorm(width)

    def construct(self, x, empty, prev):
        mixed, scores = self.attention(x, empty, prev)
        x = self.norm_attn(x + mixed)
        return self.norm_ffn(x + self.ff(x)), scores


class PatchBranch(nn.Cell):
    def __init__(self, history, patch, stride, width, heads, hidden):
        super().__init__()
        self.stride = stride
        self.count = (history - patch) // stride + 2
        offsets = np.arange(self.count)[:, None] * stride + np.arange(patch)[None, :]
        self.index = Tensor(offsets, ms.int32)
        self.W_P = nn.Dense(patch, width)
        self.W_pos = Parameter(ops.zeros((self.count, width), ms.float32), name="W_pos")
        self.layers = nn.CellList([PatchEncoderLayer(width, heads, hidden) for _ in range(3)])
        self.head = nn.Dense(self.count * width, width)

    def patches(self, x):
        """[B, L, C] to [B, C, count, patch]; the last value is repeated to fill the last patch."""
        x = ops.pad(as_pool_axis(x), [0, self.stride], mode="replicate")
        return ops.gather(x, self.index, 2)

    def construct(self, x, observed):
        batch, _, channels = x.shape
        z = self.W_P(self.patches(x)).reshape(batch * channels, self.count, -1) + self.W_pos
        seen = mint.sum(self.patches(observed.astype(ms.float32)), dim=-1)
        empty = (seen == 0).reshape(batch * channels, self.count)
        scores = None
        for layer in self.layers:
            z, scores = layer(z, empty, scores)
        z = z.reshape(batch, channels, self.count, -1).transpose(0, 1, 3, 2)
        return self.head(z.reshape(batch, channels, -1))


class Projector(nn.Cell):
    def __init__(self, c_in, history, hidden, c_out):
        super().__init__()
        self.series_conv = CircularConv1d(history, 1)
        self.fc1 = nn.Dense(2 * c_in, hidden)
        self.act = nn.LeakyReLU(alpha=0.01)
        self.fc2 = nn.Dense(hidden, c_out)

    def construct(self, x, statistic):
        joined = mint.cat((self.series_conv(x), statistic), dim=1)
        return self.fc2(self.act(self.fc1(joined.reshape(x.shape[0], -1))))


class InvertedLayer(nn.Cell):
    """Every variable is a token."""

    def __init__(self, width, heads, hidden):
        super().__init__()
        self.heads = heads
        self.head_dim = width // heads
        self.query = nn.Dense(width, width)
        self.key = nn.Dense(width, width)
        self.value = nn.Dense(width, width)
        self.out = nn.Dense(width, width)
        self.norm1 = nn.LayerNorm((width,), epsilon=1e-5)
        self.conv1 = nn.Conv1d(width, hidden, 1, has_bias=True)
        self.conv2 = nn.Conv1d(hidden, width, 1, has_bias=True)
        self.norm2 = nn.LayerNorm((width,), epsilon=1e-5)

    def split(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.heads, self.head_dim).transpose(0, 2, 1, 3)

    def construct(self, x, tau, delta, missing):
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = mint.matmul(query, key.swapaxes(-1, -2)) * tau[:, :, None, None] + delta[:, None, None, :]
        scores = ops.masked_fill(scores, missing[:, None, None, :], Tensor(-np.inf, ms.float32))
        attention = mint.softmax(scores / math.sqrt(self.head_dim), dim=-1)
        mixed = mint.matmul(attention, value).transpose(0, 2, 1, 3).reshape(x.shape)
        x = self.norm1(x + self.out(mixed))
        y = ops.gelu(self.conv1(x.swapaxes(1, 2)))
        return self.norm2(x + self.conv2(y).swapaxes(1, 2))


class QuantileHead(nn.Cell):
    """The median, and positive steps up and down from it."""

    def __init__(self, width, c_out, horizon, levels):
        super().__init__()
        self.horizon = horizon
        self.count = len(levels)
        self.mid = self.count // 2
        self.projection = nn.Dense(width, horizon * self.count)
        self.season = nn.Dense(width, c_out)
        self.gate = nn.Dense(width, horizon)
        levels = np.asarray(levels)
        borders = np.concatenate([[0.0], (levels[1:] + levels[:-1]) / 2, [1.0]])
        self.masses = Tensor(np.diff(borders), ms.float32)

    def construct(self, tokens, season):
        batch, channels, _ = tokens.shape
        raw = self.projection(tokens).reshape(batch, channels, self.horizon, self.count).transpose(0, 2, 1, 3)
        gate = mint.sigmoid(self.gate(tokens)).swapaxes(1, 2)
        median = mint.unsqueeze(raw[..., self.mid] + gate * self.season(season), -1)
        steps = ops.softplus(raw)
        above = median + ops.cumsum(steps[..., self.mid + 1 :], -1)
        below = mint.flip(steps[..., : self.mid], (-1,))
        below = median - mint.flip(ops.cumsum(below, -1), (-1,))
        return mint.cat((below, median, above), dim=-1)

    def expectation(self, quantiles):
        return mint.sum(quantiles * self.masses, dim=-1)


class Forecaster(nn.Cell):
    """History with gaps and a calendar; quantiles of what comes, and the mean that they make."""

    def __init__(self, c_in=5, history=48, horizon=18, width=32, heads=4, hidden=48):
        super().__init__()
        self.revin = InstanceNorm(c_in)
        self.decomp = Decomposition([5, 12, 24])
        self.season = SeasonBranch(c_in, history, horizon, width, hidden, 12)
        self.patches = PatchBranch(history, 8, 4, width, heads, hidden)
        self.variate_embedding = nn.Dense(history, width)
        self.calendar_embedding = nn.Dense(history + horizon, width)
        self.tau_learner = Projector(c_in, history, 24, 1)
        self.delta_learner = Projector(c_in, history, 24, c_in + 2)
        self.inverted = nn.CellList([InvertedLayer(width, heads, hidden) for _ in range(2)])
        self.head = QuantileHead(width, c_in, horizon, [0.05, 0.2, 0.5, 0.75, 0.9])

    def marks(self, calendar):
        """Hour and weekday between -0.5 and 0.5, as two more rows beside the variables."""
        calendar = calendar.astype(ms.float32)
        return ops.stack([calendar[..., 0] / 23.0 - 0.5, calendar[..., 1] / 6.0 - 0.5], axis=1)

    def construct(self, history, observed, calendar):
        channels = history.shape[2]
        x, mean, stdev = self.revin(history, observed)
        seasonal, trend = self.decomp(x)
        season = self.season(seasonal, calendar)

        tau = mint.exp(self.tau_learner(x, mint.log(stdev)))
        delta = self.delta_learner(x, mean)

        marks = self.marks(calendar)
        variates = self.variate_embedding(as_pool_axis(x)) + self.patches(trend, observed)
        tokens = mint.cat((variates, self.calendar_embedding(marks)), dim=1)
        missing = ops.logical_not(observed.any(axis=1))
        missing = mint.cat((missing, ops.zeros((marks.shape[0], marks.shape[1]), ms.bool_)), dim=1)
        for layer in self.inverted:
            tokens = layer(tokens, tau, delta, missing)

        quantiles = self.head(tokens[:, :channels], season)
        quantiles = self.revin.restore(quantiles, mean, stdev)
        return quantiles, self.head.expectation(quantiles)


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Forecaster()
