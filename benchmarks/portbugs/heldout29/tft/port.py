"""MindSpore port of the temporal fusion transformer for forecasts of the sales of stores (PyNative, CPU or Ascend)."""

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

HISTORY, HORIZON = 14, 6
STORES, FORMATS, WEEKDAYS, MONTHS, EVENTS = 9, 5, 8, 13, 11
QUANTILES = np.array([0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98], np.float32)
MAD_FACTOR = 1.4826
MASKED = -1e9


def embed_dim(n):
    """Width of the embedding of n categories."""
    return int(min(round(1.6 * n**0.56), 16)) if n > 2 else 1


def steps_within(length, steps):
    """(batch, steps), true up to the length."""
    return ops.arange(steps).expand_dims(0) < length.expand_dims(1)


def average_where(x, keep, axis):
    """Average of what is kept along the axis; zero where nothing is."""
    weight = keep.astype(x.dtype)
    return (x * weight).sum(axis=axis) / ops.clamp(weight.sum(axis=axis), min=1.0)


def median_where(x, keep):
    """Lower median along the last axis of what is kept, (batch, 1); zero where nothing is."""
    n = keep.astype(ms.int32).sum(axis=-1, keepdims=True)
    ascending, _ = ops.sort(ops.where(keep, x, Tensor(np.inf, x.dtype)), axis=-1)
    at = ops.clamp((n - 1) // 2, min=0)
    return ops.where(n > 0, ops.gather_elements(ascending, 1, at), ops.zeros_like(n).astype(x.dtype))


class TargetScaler(nn.Cell):
    """Scales log1p of the target for each series; short histories lean on the values of their group."""

    def __init__(self, groups, strength=3.0, floor=0.05):
        super().__init__()
        self.strength = strength
        self.floor = floor
        self.group_center = Parameter(Tensor(np.zeros(groups, np.float32)), name="group_center", requires_grad=False)
        self.group_scale = Parameter(Tensor(np.ones(groups, np.float32)), name="group_scale", requires_grad=False)

    def construct(self, target, seen, group):
        logs = ops.log1p(target)
        history = logs[:, : seen.shape[1]]
        median = median_where(history, seen)
        spread = MAD_FACTOR * median_where(ops.abs(history - median), seen)
        n = seen.astype(ms.float32).sum(axis=1, keepdims=True)
        weight = n / (n + self.strength)
        prior_center = ops.gather(self.group_center, group, 0).expand_dims(1)
        prior_scale = ops.gather(self.group_scale, group, 0).expand_dims(1)
        center = prior_center + weight * (median - prior_center)
        scale = ops.clamp(prior_scale + weight * (spread - prior_scale), min=self.floor)
        return (logs - center) / scale, center, scale

    def restore(self, scaled, center, scale):
        """Sales from scaled values (batch, steps, quantiles)."""
        logs = scaled * scale.expand_dims(-1) + center.expand_dims(-1)
        return ops.relu(ops.expm1(logs))


class EventEmbedding(nn.Cell):
    """Averages the embeddings of a day's events, of which there are up to three."""

    def __init__(self, events, width):
        super().__init__()
        self.embedding = nn.Embedding(events, width, padding_idx=0)

    def construct(self, events):
        vectors = self.embedding(events)
        present = (events > 0).astype(vectors.dtype).expand_dims(-1)
        count = ops.clamp(present.sum(axis=-2), min=1.0)
        return (vectors * present).sum(axis=-2) / count


class CausalConv(nn.Cell):
    """(batch, steps) -> (batch, steps, width), each step from itself and earlier ones."""

    def __init__(self, width, kernel=3, dilation=2):
        super().__init__()
        self.conv = nn.Conv1d(1, width, kernel, pad_mode="pad", padding=(kernel - 1) * dilation, dilation=dilation,
                              has_bias=True)

    def construct(self, x):
        steps = x.shape[1]
        x = self.conv(x.expand_dims(1))
        return x[:, :, :steps].swapaxes(1, 2)


class GLU(nn.Cell):
    def __init__(self, width_in, width, drop=0.0):
        super().__init__()
        self.dropout = nn.Dropout(p=drop)
        self.fc = nn.Dense(width_in, 2 * width)

    def construct(self, x):
        value, gate = ops.chunk(self.fc(self.dropout(x)), 2, axis=-1)
        return value * ops.sigmoid(gate)


class Resample(nn.Cell):
    """Another width for a shortcut: linear interpolation along the features, gates, layer norm."""

    def __init__(self, width_in, width_out):
        super().__init__()
        self.width_out = width_out
        self.mask = Parameter(Tensor(np.zeros(width_out, np.float32)), name="mask")
        self.norm = nn.LayerNorm((width_out,), epsilon=1e-5)

    def construct(self, x):
        shape = x.shape
        rows = x.reshape(-1, 1, shape[-1])
        rows = ops.interpolate(rows, size=(self.width_out,), mode="linear", align_corners=True)
        x = rows.reshape(shape[:-1] + (self.width_out,))
        return self.norm(2.0 * ops.sigmoid(self.mask) * x)


class GatedSkip(nn.Cell):
    """Layer norm of a GLU's output and a shortcut, which may have gates of its own."""

    def __init__(self, width, gated=False, drop=0.0):
        super().__init__()
        self.gated = gated
        self.glu = GLU(width, width, drop)
        if gated:
            self.mask = Parameter(Tensor(np.zeros(width, np.float32)), name="mask")
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)

    def construct(self, x, shortcut):
        if self.gated:
            shortcut = shortcut * (2.0 * ops.sigmoid(self.mask))
        return self.norm(self.glu(x) + shortcut)


class GRN(nn.Cell):
    """Gated residual network, with or without a context."""

    def __init__(self, width_in, hidden, width_out, context=0, drop=0.0):
        super().__init__()
        self.resample = Resample(width_in, width_out) if width_in != width_out else nn.Identity()
        self.fc1 = nn.Dense(width_in, hidden)
        self.elu = nn.ELU()
        if context:
            self.context = nn.Dense(context, hidden, has_bias=False)
        self.fc2 = nn.Dense(hidden, width_out)
        self.gate_norm = GatedSkip(width_out, drop=drop)

    def construct(self, x, context=None):
        hidden = self.fc1(x)
        if context is not None:
            hidden = hidden + self.context(context)
        return self.gate_norm(self.fc2(self.elu(hidden)), self.resample(x))


class VariableSelection(nn.Cell):
    """Variables come as a list of (..., width), in the order of the widths."""

    def __init__(self, widths, hidden, context=0, drop=0.0):
        super().__init__()
        self.joint = GRN(sum(widths), min(hidden, len(widths)), len(widths), context, drop)
        self.single = nn.CellList([GRN(w, min(w, hidden), hidden, 0, drop) for w in widths])
        self.softmax = nn.Softmax(axis=-1)

    def construct(self, variables, context=None):
        weights = self.softmax(self.joint(ops.cat(variables, axis=-1), context))
        selected = 0.0
        for i, grn in enumerate(self.single):
            selected = selected + weights[..., i : i + 1] * grn(variables[i])
        return selected, weights


class HistoryEncoder(nn.Cell):
    """LSTM that stops at the end of each history; series without one keep their first state."""

    def __init__(self, width, layers, drop=0.0):
        super().__init__()
        self.lstm = nn.LSTM(width, width, num_layers=layers, batch_first=True, dropout=drop)

    def construct(self, x, state, length):
        length = length.astype(ms.int32)
        y, (h, c) = self.lstm(x, state, seq_length=ops.clamp(length, min=1))
        known = (length > 0).reshape(1, -1, 1)
        return y, (ops.where(known, h, state[0]), ops.where(known, c, state[1]))


class SharedValueAttention(nn.Cell):
    """Multi-head attention with one set of values, so that the heads' weights may be averaged and read."""

    def __init__(self, width, heads, drop=0.0):
        super().__init__()
        self.heads = heads
        self.head_dim = width // heads
        self.scale = self.head_dim**-0.5
        self.q_proj = nn.Dense(width, heads * self.head_dim)
        self.k_proj = nn.Dense(width, heads * self.head_dim)
        self.v_proj = nn.Dense(width, self.head_dim)
        self.dropout = nn.Dropout(p=drop)
        self.out_proj = nn.Dense(self.head_dim, width, has_bias=False)

    def split(self, x):
        """(batch, steps, width) -> (batch, heads, steps, head_dim)."""
        return x.reshape(x.shape[0], -1, self.heads, self.head_dim).swapaxes(1, 2)

    def construct(self, query, memory, blocked):
        q, k = self.split(self.q_proj(query)), self.split(self.k_proj(memory))
        logits = ops.matmul(q * self.scale, k.swapaxes(2, 3))
        logits = ops.masked_fill(logits, blocked.expand_dims(1), MASKED)
        weights = self.dropout(ops.softmax(logits, axis=-1)).mean(axis=1)
        return self.out_proj(ops.matmul(weights, self.v_proj(memory))), weights


class QuantileOutput(nn.Cell):
    """Quantiles that keep their order: the median, and positive distances outwards from it."""

    def __init__(self, width, quantiles):
        super().__init__()
        self.side = quantiles // 2
        self.fc = nn.Dense(width, width)
        self.act = nn.GELU(approximate=False)
        self.out = nn.Dense(width, quantiles)
        self.upwards = Tensor(np.triu(np.ones((self.side, self.side), np.float32)))
        self.downwards = Tensor(np.tril(np.ones((self.side, self.side), np.float32)))

    def construct(self, x):
        raw = self.out(self.act(self.fc(x)))
        lower, median, upper = raw[..., : self.side], raw[..., self.side : self.side + 1], raw[..., self.side + 1 :]
        lower = median - ops.matmul(ops.softplus(lower), self.downwards)
        upper = median + ops.matmul(ops.softplus(upper), self.upwards)
        return ops.cat((lower, median, upper), axis=-1)


class QuantileLoss(nn.Cell):
    """Pinball loss without a reduction."""

    def __init__(self, quantiles):
        super().__init__()
        self.quantiles = Tensor(quantiles)

    def construct(self, prediction, target):
        short = target.expand_dims(-1) - prediction
        return self.quantiles * ops.relu(short) + (1.0 - self.quantiles) * ops.relu(-short)


class TFTForecaster(nn.Cell):
    """Forecasts the quantiles of the sales of the horizon, and tells what it looked at."""

    def __init__(self, width=24, width_real=10, heads=4, layers=2, drop=0.1, clip=2.5):
        super().__init__()
        self.layers = layers
        self.clip = clip
        self.scaler = TargetScaler(FORMATS)
        self.embeddings = nn.CellList([nn.Embedding(n, embed_dim(n)) for n in (STORES, FORMATS, WEEKDAYS, MONTHS)])
        self.events = EventEmbedding(EVENTS, embed_dim(EVENTS))
        self.known_norm = nn.BatchNorm1d(2)
        self.observed_norm = nn.BatchNorm1d(1)
        self.area = nn.Dense(1, width_real)
        self.price = nn.Dense(1, width_real)
        self.temperature = nn.Dense(1, width_real)
        self.relative_time = nn.Dense(1, width_real)
        self.traffic = nn.Dense(1, width_real)
        self.trend = nn.Dense(1, width_real)
        self.smooth = nn.AvgPool1d(kernel_size=3, stride=1, pad_mode="pad", padding=1, count_include_pad=False)
        self.target_conv = CausalConv(width_real)

        static = [embed_dim(STORES), embed_dim(FORMATS), width_real]
        known = [embed_dim(WEEKDAYS), embed_dim(MONTHS), embed_dim(EVENTS)] + 3 * [width_real]
        self.static_selection = VariableSelection(static, width, drop=drop)
        self.past_selection = VariableSelection(known + 3 * [width_real], width, width, drop)
        self.future_selection = VariableSelection(known, width, width, drop)
        self.context_selection = GRN(width, width, width, drop=drop)
        self.context_hidden = GRN(width, width, width, drop=drop)
        self.context_cell = GRN(width, width, width, drop=drop)
        self.context_enrichment = GRN(width, width, width, drop=drop)

        self.encoder = HistoryEncoder(width, layers, drop)
        self.decoder = nn.LSTM(width, width, num_layers=layers, batch_first=True, dropout=drop)
        self.post_lstm = GatedSkip(width, drop=drop)
        self.enrichment = GRN(width, width, width, width, drop)
        self.attention = SharedValueAttention(width, heads, drop)
        self.post_attention = GatedSkip(width, gated=True, drop=drop)
        self.feed_forward = GRN(width, width, width, drop=drop)
        self.pre_output = GatedSkip(width, gated=True)
        self.head = QuantileOutput(width, len(QUANTILES))
        self.pinball = QuantileLoss(QUANTILES)

    def known_variables(self, calendar, events, reals, valid, history_length):
        """The list of variables that both parts of the sequence have, each (batch, HISTORY + HORIZON, width)."""
        batch, steps = valid.shape
        price = reals[:, :, 0]
        usual = average_where(price, valid, axis=1).expand_dims(1)
        reals = ops.stack((price / usual - 1.0, reals[:, :, 1]), axis=-1)
        reals = self.known_norm(reals.reshape(-1, 2)).reshape(batch, steps, 2)
        past = ops.arange(HISTORY).expand_dims(0) - history_length.expand_dims(1)
        future = ops.tile(ops.arange(HORIZON).expand_dims(0), (batch, 1))
        position = ops.cat((past, future.astype(past.dtype)), axis=1).astype(ms.float32) / HISTORY
        return [
            self.embeddings[2](calendar[:, :, 0]),
            self.embeddings[3](calendar[:, :, 1]),
            self.events(events),
            self.price(reals[:, :, :1]),
            self.temperature(reals[:, :, 1:]),
            self.relative_time(position.expand_dims(-1)),
        ]

    def observed_variables(self, traffic, history, seen):
        """The list of variables of the history alone."""
        history = ops.clamp(history, -self.clip, self.clip) * seen.astype(history.dtype)
        traffic = self.observed_norm(ops.log1p(traffic).reshape(-1, 1)).reshape(traffic.shape)
        smooth = self.smooth(history.expand_dims(1)).swapaxes(1, 2)
        return [self.traffic(traffic), self.trend(smooth), self.target_conv(history)]

    def blocked(self, seen):
        """(batch, HORIZON, HISTORY + HORIZON), true where the attention must not look."""
        batch = seen.shape[0]
        past = ops.tile(ops.logical_not(seen).expand_dims(1), (1, HORIZON, 1))
        future = Tensor(np.triu(np.ones((HORIZON, HORIZON), bool), k=1))
        return ops.cat((past, ops.tile(future.expand_dims(0), (batch, 1, 1))), axis=2)

    def lag_profile(self, weights, history_length, wanted):
        """The attention to the last step of the history, to the one before, ...: (batch, HISTORY)."""
        weights = average_where(weights, wanted.expand_dims(-1), axis=1)
        at = history_length.expand_dims(1) - 1 - ops.arange(HISTORY).expand_dims(0)
        profile = ops.gather_elements(weights[:, :HISTORY], 1, ops.clamp(at, min=0))
        return ops.where(at >= 0, profile, ops.zeros_like(profile))

    def construct(self, static_cat, static_real, calendar, events, known_real, traffic, target, history_length,
                  horizon_length):
        seen = steps_within(history_length, HISTORY)
        wanted = steps_within(horizon_length, HORIZON)
        scaled, center, scale = self.scaler(target, seen, static_cat[:, 1])

        static = [self.embeddings[0](static_cat[:, 0]), self.embeddings[1](static_cat[:, 1]), self.area(static_real)]
        static, static_weights = self.static_selection(static)
        context = self.context_selection(static).expand_dims(1)
        known = self.known_variables(calendar, events, known_real, ops.cat((seen, wanted), axis=1), history_length)
        past = [v[:, :HISTORY] for v in known] + self.observed_variables(traffic, scaled[:, :HISTORY], seen)
        past, past_weights = self.past_selection(past, context)
        future, future_weights = self.future_selection([v[:, HISTORY:] for v in known], context)

        hidden = ops.tile(self.context_hidden(static).expand_dims(0), (self.layers, 1, 1))
        cell = ops.tile(self.context_cell(static).expand_dims(0), (self.layers, 1, 1))
        encoded, state = self.encoder(past, (hidden, cell), history_length)
        decoded, _ = self.decoder(future, state)
        temporal = self.post_lstm(ops.cat((encoded, decoded), axis=1), ops.cat((past, future), axis=1))

        enriched = self.enrichment(temporal, self.context_enrichment(static).expand_dims(1))
        query = enriched[:, HISTORY:]
        attended, attention = self.attention(query, enriched, self.blocked(seen))
        attended = self.post_attention(attended, query)
        out = self.pre_output(self.feed_forward(attended), temporal[:, HISTORY:])

        quantiles = self.head(out)
        forecast = self.scaler.restore(quantiles, center, scale)
        loss = average_where(self.pinball(quantiles, scaled[:, HISTORY:]).sum(axis=-1), wanted, axis=1)
        wanted_f = wanted.astype(ms.float32)
        truth = target[:, HISTORY:]
        risk = (self.pinball(forecast, truth) * wanted_f.expand_dims(-1)).sum(axis=(0, 1))
        risk = 2.0 * risk / ops.abs(truth * wanted_f).sum()

        lags = self.lag_profile(attention, history_length, wanted)
        past_weights = average_where(past_weights, seen.expand_dims(-1), axis=1)
        future_weights = average_where(future_weights, wanted.expand_dims(-1), axis=1)
        return forecast, loss, risk, lags, static_weights, past_weights, future_weights


def example_batch(seed=7, batch=5):
    """Five series of sales, of which one is new."""
    rng = np.random.RandomState(seed)
    steps = HISTORY + HORIZON
    day = rng.randint(0, 300, (batch, 1)) + np.arange(steps)[None, :]
    static_cat = np.stack([rng.randint(1, STORES, batch), rng.randint(1, FORMATS, batch)], axis=1)
    calendar = np.stack((day % 7 + 1, day // 30 % 12 + 1), axis=-1)
    events = rng.randint(1, EVENTS, (batch, steps, 3)) * (rng.rand(batch, steps, 3) < 0.45)
    price = rng.uniform(1.0, 8.0, (batch, 1)) * rng.choice([0.8, 0.9, 1.0, 1.1], (batch, steps))
    temperature = 14.0 + 8.0 * np.sin(day / 58.0) + 2.0 * rng.randn(batch, steps)
    traffic = np.exp(4.6 + 0.5 * rng.randn(batch, HISTORY, 1))
    level = rng.uniform(1.0, 1.9, (batch, 1)) + 0.3 * np.sin(day * (2.0 * np.pi / 7.0))
    target = np.floor(np.expm1(level + 0.45 * rng.randn(batch, steps)) * 10.0).clip(0.0) / 10.0
    static_real = rng.randn(batch, 1)
    reals = np.stack((price, temperature), axis=-1)
    history_length = np.array([HISTORY, 9, 0, 12, 4])
    horizon_length = np.array([HORIZON, HORIZON, 4, 5, HORIZON])
    arrays = (static_cat, static_real, calendar, events, reals, traffic, target, history_length, horizon_length)
    return tuple(Tensor(a.astype(np.int64 if a.dtype.kind in "iu" else np.float32)) for a in arrays)


def build():
    """The net, ready for evaluation, and a batch for it."""
    net = TFTForecaster()
    net.set_train(False)
    return net, example_batch()
