"""Informer in MindSpore: ProbSparse attention, distilling, generative decoding, reversible instance normalisation."""

from __future__ import annotations

import datetime
import math

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

CHANNELS = 7
SEQ_LEN = 48
LABEL_LEN = 24
PRED_LEN = 16
ENCODER_LAYERS = (3, 2)
DECODER_LAYERS = 2
FACTOR = 3
NORMAL_QUANTILES = np.array([-1.2815516, 0.0, 1.2815516], np.float32)


def time_features(marks):
    """Month, day, weekday and hour (last axis, integers) as features between -0.5 and 0.5; the hour comes first."""
    marks = marks.astype(ms.float32)
    month, day, weekday, hour = (marks[..., i : i + 1] for i in range(4))
    return ops.cat((hour / 23 - 0.5, weekday / 6 - 0.5, (day - 1) / 30 - 0.5, (month - 1) / 11 - 0.5), axis=-1)


def position_table(length, width):
    angle = np.arange(length)[:, None] * np.exp(np.arange(0, width, 2) * -(math.log(10000.0) / width))
    # sine and cosine take turns along the last axis
    return Tensor(np.stack((np.sin(angle), np.cos(angle)), axis=-1).reshape(length, width).astype(np.float32))


def last_values(x, observed):
    """For each channel, the value at its last observed step, (batch, 1, channels); zero if there is none."""
    steps = ops.arange(1, x.shape[1] + 1).reshape(1, -1, 1)
    latest = (steps * observed.astype(ms.int64)).max(axis=1, keepdims=True)
    # row 0 is for channels without any value
    rows = ops.cat((ops.zeros_like(x[:, :1]), x), axis=1)
    return ops.gather_elements(rows, 1, latest)


def budget(length):
    """Sampled keys, and active queries, for a sequence."""
    return min(FACTOR * math.ceil(math.log(length)), length)


def query_sparsity(query, key, index):
    """The paper's max-mean measure of each query, (batch, heads, queries), on the keys that index names."""
    batch, heads, n_query, width = query.shape
    n_key = key.shape[2]
    sampled_keys = ops.gather(key, index.reshape(-1), 2).reshape(batch, heads, n_query, -1, width)
    products = (query.expand_dims(3) * sampled_keys).sum(axis=-1)
    return products.max(axis=-1) - products.sum(axis=-1) / n_key


def lazy_context(value, n_query, causal):
    """What queries get that do not attend."""
    if causal:
        return ops.cumsum(value, 2)
    return ops.tile(value.mean(axis=2, keep_dims=True), (1, 1, n_query, 1))


def probsparse(query, key, value, draws, causal):
    """(batch, heads, steps, width) each. draws (steps, samples) are integers, their remainders choose the keys."""
    n_query, width = query.shape[2:]
    n_key = key.shape[2]
    index = draws[:n_query, : budget(n_key)] % n_key
    _, top = ops.topk(query_sparsity(query, key, index), budget(n_query))

    rows = ops.tile(top.expand_dims(-1), (1, 1, 1, width))
    active = ops.gather_elements(query, 2, rows)
    logits = ops.matmul(active, key.swapaxes(2, 3)) * width**-0.5
    if causal:
        later = ops.arange(n_key).reshape(1, 1, 1, n_key) > top.expand_dims(-1)
        logits = ops.masked_fill(logits, later, -1e9)
    attended = ops.matmul(ops.softmax(logits, axis=-1), value)
    return ops.tensor_scatter_elements(lazy_context(value, n_query, causal), rows, attended, axis=2)


def dense_attention(query, key, value):
    logits = ops.matmul(query, key.swapaxes(2, 3)) * query.shape[-1] ** -0.5
    return ops.matmul(ops.softmax(logits, axis=-1), value)


class RevIN(nn.Cell):
    """Normalises each window by the statistics of what was observed in it, and takes forecasts back."""

    def __init__(self, channels, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = Parameter(Tensor(np.ones(channels, np.float32)), name="weight")
        self.bias = Parameter(Tensor(np.zeros(channels, np.float32)), name="bias")

    def construct(self, x, observed):
        present = observed.astype(x.dtype)
        count = ops.maximum(present.sum(axis=1, keepdims=True), Tensor(1.0, x.dtype))
        mean = (x * present).sum(axis=1, keepdims=True) / count
        centred = x - mean
        variance = (centred * centred * present).sum(axis=1, keepdims=True) / count
        std = ops.sqrt(variance + self.eps)
        normed = centred / std * self.weight + self.bias
        return normed * present, mean, std

    def undo(self, y, mean, std):
        return (y - self.bias) / (self.weight + self.eps**2) * std + mean

    def undo_spread(self, spread, std):
        return spread * std / (self.weight + self.eps**2)


class WindowEmbedding(nn.Cell):
    """Values, calendar and places at the width of the model; a step's neighbours wrap around the window."""

    def __init__(self, in_channels, width, max_len=256, dropout=0.05):
        super().__init__()
        self.value_conv = nn.Conv1d(in_channels, width, 3, pad_mode="valid")
        self.temporal = nn.Dense(4, width, has_bias=False)
        self.position_scale = Parameter(Tensor(np.ones(1, np.float32)), name="position_scale")
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.dropout = nn.Dropout(p=dropout)
        self.positions = position_table(max_len, width)

    def construct(self, values, features, start=0):
        steps = values.shape[1]
        wrapped = ops.cat((values[:, -1:], values, values[:, :1]), axis=1)
        x = self.value_conv(wrapped.swapaxes(1, 2)).swapaxes(1, 2)
        x = x + self.temporal(features)
        x = x + self.position_scale * self.positions[start : start + steps]
        return self.dropout(self.norm(x))


class MultiHead(nn.Cell):
    """Projections and heads around one of the two attentions."""

    def __init__(self, width, heads, sparse=True, causal=False, mix=False):
        super().__init__()
        self.heads = heads
        self.sparse = sparse
        self.causal = causal
        self.mix = mix
        self.query = nn.Dense(width, width)
        self.key = nn.Dense(width, width)
        self.value = nn.Dense(width, width)
        self.out = nn.Dense(width, width)

    def split(self, x):
        batch, steps, width = x.shape
        return x.reshape(batch, steps, self.heads, width // self.heads).transpose(0, 2, 1, 3)

    def construct(self, x, memory, draws=None):
        query, key, value = self.split(self.query(x)), self.split(self.key(memory)), self.split(self.value(memory))
        if self.sparse:
            context = probsparse(query, key, value, draws, self.causal)
        else:
            context = dense_attention(query, key, value)
        # with mixing, the heads' rows are laid out one head after another
        context = context if self.mix else context.swapaxes(1, 2)
        return self.out(context.reshape(x.shape))


class Perceptron(nn.Cell):
    def __init__(self, width, hidden, dropout=0.05):
        super().__init__()
        self.fc1 = nn.Dense(width, hidden)
        self.act = nn.GELU(approximate=False)
        self.fc2 = nn.Dense(hidden, width)
        self.dropout = nn.Dropout(p=dropout)

    def construct(self, x):
        return self.dropout(self.fc2(self.dropout(self.act(self.fc1(x)))))


class Distil(nn.Cell):
    """Half the steps: convolution that wraps around, batch norm, ELU, max pooling."""

    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv1d(width, width, 3, pad_mode="valid", has_bias=True)
        self.norm = nn.BatchNorm1d(width)
        self.act = nn.ELU()
        self.pool = nn.MaxPool1d(3, stride=2, pad_mode="pad", padding=1)

    def construct(self, x):
        x = x.swapaxes(1, 2)
        x = ops.cat((x[:, :, -1:], x, x[:, :, :1]), axis=2)
        x = self.pool(self.act(self.norm(self.conv(x))))
        return x.swapaxes(1, 2)


class EncoderLayer(nn.Cell):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.attention = MultiHead(width, heads)
        self.norm1 = nn.LayerNorm((width,), epsilon=1e-5)
        self.ffn = Perceptron(width, hidden)
        self.norm2 = nn.LayerNorm((width,), epsilon=1e-5)
        self.dropout = nn.Dropout(p=0.05)

    def construct(self, x, draws):
        x = self.norm1(x + self.dropout(self.attention(x, x, draws)))
        return self.norm2(x + self.ffn(x))


class Encoder(nn.Cell):
    """Layers, and a distilling step after each but the last."""

    def __init__(self, width, heads, hidden, depth):
        super().__init__()
        self.layers = nn.CellList([EncoderLayer(width, heads, hidden) for _ in range(depth)])
        self.distils = nn.CellList([Distil(width) for _ in range(depth - 1)])
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)

    def construct(self, x, draws):
        depth = len(self.layers)
        for i in range(depth):
            x = self.layers[i](x, draws[i])
            if i < depth - 1:
                x = self.distils[i](x)
        return self.norm(x)


class EncoderStack(nn.Cell):
    """Several encoders; each reads the later half of what the one before it reads."""

    def __init__(self, width, heads, hidden, depths):
        super().__init__()
        self.depths = depths
        self.encoders = nn.CellList([Encoder(width, heads, hidden, depth) for depth in depths])

    def construct(self, x, draws):
        steps = x.shape[1]
        memories = []
        first = 0
        for depth, encoder in zip(self.depths, self.encoders):
            memories.append(encoder(x[:, x.shape[1] - steps :], draws[first : first + depth]))
            steps //= 2
            first += depth
        return ops.cat(memories, axis=1)


class DecoderLayer(nn.Cell):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.self_attention = MultiHead(width, heads, causal=True, mix=True)
        self.norm1 = nn.LayerNorm((width,), epsilon=1e-5)
        self.cross_attention = MultiHead(width, heads, sparse=False)
        self.norm2 = nn.LayerNorm((width,), epsilon=1e-5)
        self.ffn = Perceptron(width, hidden)
        self.norm3 = nn.LayerNorm((width,), epsilon=1e-5)
        self.dropout = nn.Dropout(p=0.05)

    def construct(self, x, memory, draws):
        x = self.norm1(x + self.dropout(self.self_attention(x, x, draws)))
        x = self.norm2(x + self.dropout(self.cross_attention(x, memory)))
        return self.norm3(x + self.ffn(x))


class Decoder(nn.Cell):
    def __init__(self, width, heads, hidden, depth):
        super().__init__()
        self.layers = nn.CellList([DecoderLayer(width, heads, hidden) for _ in range(depth)])
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)

    def construct(self, x, memory, draws):
        for i, layer in enumerate(self.layers):
            x = layer(x, memory, draws[i])
        return self.norm(x)


class Head(nn.Cell):
    """Place and spread of each channel; the two stand side by side in the projection."""

    def __init__(self, width, channels):
        super().__init__()
        self.channels = channels
        self.projection = nn.Dense(width, 2 * channels)

    def construct(self, x):
        out = self.projection(x)
        place, raw = out[..., 0::2], out[..., 1::2]
        return place, ops.softplus(raw) + 1e-3


class InformerForecaster(nn.Cell):
    """All steps of the forecast at once, with their quantiles."""

    def __init__(self, width=32, heads=4, hidden=64):
        super().__init__()
        self.revin = RevIN(CHANNELS)
        self.enc_embedding = WindowEmbedding(2 * CHANNELS, width)
        self.dec_embedding = WindowEmbedding(2 * CHANNELS, width)
        self.encoder = EncoderStack(width, heads, hidden, ENCODER_LAYERS)
        self.decoder = Decoder(width, heads, hidden, DECODER_LAYERS)
        self.head = Head(width, CHANNELS)
        self.quantiles = Tensor(NORMAL_QUANTILES)

    def construct(self, x, observed, marks, future_marks, draws):
        past = time_features(marks)
        future = time_features(future_marks)

        x, mean, std = self.revin(x, observed)
        carried = last_values(x, observed)
        values = ops.cat((x, observed.astype(x.dtype)), axis=-1)
        memory = self.encoder(self.enc_embedding(values, past), draws)

        # the start token, then as many empty steps as are asked for
        start = SEQ_LEN - LABEL_LEN
        empty = ops.zeros((x.shape[0], PRED_LEN, values.shape[-1]), values.dtype)
        asked = ops.cat((values[:, start:], empty), axis=1)
        asked_features = ops.cat((past[:, start:], future), axis=1)
        dec = self.dec_embedding(asked, asked_features, start)
        dec = self.decoder(dec, memory, draws[sum(ENCODER_LAYERS) :])

        place, spread = self.head(dec[:, LABEL_LEN:])
        forecast = self.revin.undo(place + carried, mean, std)
        spread = self.revin.undo_spread(spread, std)
        return forecast, forecast.expand_dims(-1) + spread.expand_dims(-1) * self.quantiles


def hourly_marks(year, month, day, hour, count):
    moment = datetime.datetime(year, month, day, hour)
    rows = []
    for _ in range(count):
        rows.append((moment.month, moment.day, moment.weekday(), moment.hour))
        moment += datetime.timedelta(hours=1)
    return rows


def sample_windows():
    """Three windows of hourly series with gaps, their calendars, and the draws of the attentions."""
    rng = np.random.RandomState(2021)
    begins = [(2017, 3, 29, 5), (2018, 7, 14, 0), (2016, 12, 30, 17)]
    marks = np.array([hourly_marks(*begin, SEQ_LEN + PRED_LEN) for begin in begins], np.int64)
    hours = np.arange(SEQ_LEN).reshape(1, -1, 1)
    each = (len(begins), 1, CHANNELS)
    series = rng.uniform(0.5, 2.0, each) * np.sin(2 * np.pi * hours / 24 + rng.uniform(0, 6.28, each))
    series = series + rng.normal(0, 1.5, each) + rng.normal(0, 0.02, each) * hours
    series = series + 0.5 * rng.normal(size=series.shape)
    observed = rng.uniform(size=series.shape) > 0.15
    observed[1, -5:, :3] = False
    observed[2, :, 6] = False
    draws = rng.randint(0, 65536, (sum(ENCODER_LAYERS) + DECODER_LAYERS, SEQ_LEN, 4 * FACTOR)).astype(np.int64)
    series[~observed] = 0.0
    return series.astype(np.float32), observed, marks[:, :SEQ_LEN], marks[:, SEQ_LEN:], draws


def build():
    """The network, ready for evaluation, and its sample inputs."""
    net = InformerForecaster()
    net.set_train(False)
    return net, tuple(Tensor(np.ascontiguousarray(array)) for array in sample_windows())
