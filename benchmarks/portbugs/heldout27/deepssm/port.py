"""DeepState forecasting of many series in MindSpore: recurrent encoder, state space model, filter, smoother, paths."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

LOG_2PI = float(np.log(2.0 * np.pi))

# what the heads may emit, for series of scale one
NOISE_RANGE = (0.05, 0.8)
INNOVATION_RANGE = (0.01, 0.35)
DAMPING_RANGE = (0.6, 0.98)


def identity(size):
    return Tensor(np.eye(size, dtype=np.float32))


def into_range(x, limits):
    """Sigmoid, stretched to the given limits."""
    low, high = limits
    return ops.sigmoid(x) * (high - low) + low


def matvec(matrix, vector):
    """(batch, n, m) times (batch, m)."""
    return ops.bmm(matrix, vector.expand_dims(-1)).squeeze(-1)


def outer(left, right):
    return left.expand_dims(-1) * right.expand_dims(-2)


def transposed(matrix):
    return matrix.swapaxes(-1, -2)


class ScaleEstimator(nn.Cell):
    """Mean absolute observed value of each series, with the batch's value for series that were never observed."""

    def __init__(self, lowest):
        super().__init__()
        self.lowest = lowest

    def construct(self, target, observed):
        weight = observed.astype(target.dtype)
        sums = (ops.abs(target) * weight).sum(axis=1)
        counts = weight.sum(axis=1)
        scale = sums / ops.clamp(counts, min=1.0)
        fallback = sums.sum() / ops.clamp(counts.sum(), min=1.0)
        scale = ops.where(counts > 0, scale, fallback)
        return ops.clamp(scale, min=self.lowest)


class CategoryEmbedder(nn.Cell):
    """Embeddings of all static categories, concatenated."""

    def __init__(self, sizes, dims):
        super().__init__()
        self.tables = nn.CellList([nn.Embedding(size, dim) for size, dim in zip(sizes, dims)])

    def construct(self, categories):
        parts = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        return ops.cat(parts, axis=-1)


class GatedBlock(nn.Cell):
    """Causal dilated convolution, gated; gives the residual stream and a skip."""

    def __init__(self, width, kernel, dilation, dropout):
        super().__init__()
        reach = (kernel - 1) * dilation
        self.conv = nn.Conv1d(width, 2 * width, kernel, pad_mode="pad", padding=reach, dilation=dilation, has_bias=True)
        self.norm = nn.BatchNorm1d(2 * width)
        self.mix = nn.Conv1d(width, width, 1, has_bias=True)
        self.skip = nn.Conv1d(width, width, 1, has_bias=True)
        self.dropout = nn.Dropout(p=dropout)
        self.width = width

    def construct(self, x):
        y = self.norm(self.conv(x)[:, :, : x.shape[2]])
        y = ops.tanh(y[:, : self.width]) * ops.sigmoid(y[:, self.width :])
        y = self.dropout(y)
        return x + self.mix(y), self.skip(y)


class Encoder(nn.Cell):
    """Hidden states for context and horizon; the horizon goes on from the recurrent state of the context."""

    def __init__(self, features, statics, width, layers, kernel, dilations, dropout):
        super().__init__()
        self.width = width
        self.layers = layers
        self.smooth = nn.AvgPool1d(3, stride=1, pad_mode="pad", padding=1, count_include_pad=False)
        self.proj = nn.Dense(2 * features + statics + 1, width)
        self.blocks = nn.CellList([GatedBlock(width, kernel, dilation, dropout) for dilation in dilations])
        self.init_h = nn.Dense(statics, layers * width)
        self.init_c = nn.Dense(statics, layers * width)
        self.rnn = nn.LSTM(width, width, num_layers=layers, batch_first=True, dropout=dropout)
        self.norm = nn.LayerNorm((width,), epsilon=1e-3)
        self.skip_factor = len(dilations) ** -0.5

    def by_layer(self, x):
        """(batch, layers * width) -> (layers, batch, width)."""
        return x.reshape(-1, self.layers, self.width).swapaxes(0, 1)

    def construct(self, calendar, static, context):
        batch, length, _ = calendar.shape
        smoothed = self.smooth(calendar.swapaxes(1, 2)).swapaxes(1, 2)
        age = Tensor(np.log10(np.arange(length) + 2.0).astype(np.float32))
        age = ops.broadcast_to(age.reshape(1, length, 1), (batch, length, 1))
        static_rows = ops.tile(static.expand_dims(1), (1, length, 1))
        x = self.proj(ops.cat((calendar, smoothed, age, static_rows), axis=-1))

        x = x.swapaxes(1, 2)
        total = ops.zeros_like(x)
        for block in self.blocks:
            x, skip = block(x)
            total = total + skip
        x = (x + total * self.skip_factor).swapaxes(1, 2)

        begin = (ops.tanh(self.by_layer(self.init_h(static))), self.by_layer(self.init_c(static)))
        past, carried = self.rnn(x[:, :context], begin)
        future, _ = self.rnn(x[:, context:], carried)
        return self.norm(x + ops.cat((past, future), axis=1))


class ParameterHead(nn.Cell):
    """Emits what the state space model is made of."""

    def __init__(self, width, period, prior_floor):
        super().__init__()
        states = 2 + period
        self.fc = nn.Dense(width, width)
        self.act = nn.GELU(approximate=False)
        self.noise_std = nn.Dense(width, 1)
        self.innovation = nn.Dense(width, 3)
        self.damping = nn.Dense(width, 1)
        self.offset = nn.Dense(width, 1)
        self.prior_mean = nn.Dense(width, states)
        self.prior_std = nn.Dense(width, states)
        self.prior_floor = prior_floor

    def construct(self, hidden):
        hidden = self.act(self.fc(hidden))
        noise_std = into_range(self.noise_std(hidden)[..., 0], NOISE_RANGE)
        innovation = into_range(self.innovation(hidden), INNOVATION_RANGE)
        damping = into_range(self.damping(hidden)[..., 0], DAMPING_RANGE)
        offset = self.offset(hidden)[..., 0]
        first = hidden[:, 0]
        prior_mean = self.prior_mean(first)
        season = prior_mean[:, 2:]
        season = season - season.mean(axis=-1, keep_dims=True)
        prior_mean = ops.cat((prior_mean[:, :2], season), axis=-1)
        prior_std = ops.softplus(self.prior_std(first)) + self.prior_floor
        return noise_std, innovation, damping, offset, prior_mean, prior_std


class LevelTrend(nn.Cell):
    """Two states: a level, and a trend that is damped from step to step."""

    def construct(self, damping, innovation):
        one = ops.ones_like(damping)
        upper = ops.stack((one, damping), axis=-1)
        lower = ops.stack((ops.zeros_like(damping), damping), axis=-1)
        level_std, trend_std = innovation[..., 0], innovation[..., 1] * damping
        return upper, ops.stack((upper, lower), axis=-2), ops.stack((level_std, trend_std), axis=-1)


class Season(nn.Cell):
    """As many states as the period has phases; the phase of a step picks its state."""

    def __init__(self, period):
        super().__init__()
        self.period = period
        self.log_gain = Parameter(Tensor(np.zeros(period, np.float32)), name="log_gain")

    def construct(self, start, innovation):
        batch, length = innovation.shape
        phase = start.reshape(batch, 1) + ops.arange(length).reshape(1, length)
        phase = phase % self.period
        picked = ops.one_hot(phase, self.period, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))
        transition = ops.broadcast_to(identity(self.period), (batch, length, self.period, self.period))
        return picked, transition, picked * outer(innovation, ops.exp(self.log_gain))


class StructuralModel(nn.Cell):
    """Joins level, trend and season; the model is a dictionary of batched tensors."""

    def __init__(self, period):
        super().__init__()
        self.level_trend = LevelTrend()
        self.season = Season(period)

    def construct(self, start, noise_std, innovation, damping, offset, prior_mean, prior_std):
        emit_a, trans_a, innov_a = self.level_trend(damping, innovation[..., :2])
        emit_b, trans_b, innov_b = self.season(start, innovation[..., 2])
        n, m = trans_a.shape[-1], trans_b.shape[-1]
        lead = tuple(damping.shape)
        top = ops.cat((trans_a, ops.zeros(lead + (n, m), ms.float32)), axis=-1)
        bottom = ops.cat((ops.zeros(lead + (m, n), ms.float32), trans_b), axis=-1)
        return {
            "prior_mean": prior_mean,
            "prior_cov": ops.square(prior_std).expand_dims(-1) * identity(n + m),
            "emission": ops.cat((emit_a, emit_b), axis=-1),
            "transition": ops.cat((top, bottom), axis=-2),
            "innovation": ops.cat((innov_a, innov_b), axis=-1),
            "noise_std": noise_std,
            "offset": offset,
        }


def over_time(model, begin, end):
    """The model between two steps."""
    return {key: x if key.startswith("prior") else x[:, begin:end] for key, x in model.items()}


class KalmanFilter(nn.Cell):
    """Filters in Joseph form and skips what is missing.

    Returns log densities (B, T), then means and covariances after the update, and those predicted for the next step.
    """

    def construct(self, target, observed, model):
        mean, cov = model["prior_mean"], model["prior_cov"]
        eye = identity(mean.shape[-1])
        mask = observed.astype(target.dtype)
        noise_var = ops.square(model["noise_std"])
        deviation = target - model["offset"]
        densities, after, before = [], [], []
        for t in range(target.shape[1]):
            emission = model["emission"][:, t]
            r = noise_var[:, t]
            weight = mask[:, t]

            cov_emission = matvec(cov, emission)
            variance = (cov_emission * emission).sum(axis=-1) + r
            error = deviation[:, t] - (emission * mean).sum(axis=-1)
            density = -0.5 * (ops.square(error) / variance + ops.log(variance) + LOG_2PI)
            densities.append(weight * density)

            gain = cov_emission * (weight / variance).expand_dims(-1)
            mean = mean + gain * error.expand_dims(-1)
            left = eye - outer(gain, emission)
            cov = ops.bmm(ops.bmm(left, cov), transposed(left)) + r.reshape(-1, 1, 1) * outer(gain, gain)
            cov = (cov + transposed(cov)) / 2
            after.append((mean, cov))

            step = model["transition"][:, t]
            added = ops.square(model["innovation"][:, t]).expand_dims(-1) * eye
            mean = matvec(step, mean)
            cov = ops.bmm(ops.bmm(step, cov), transposed(step)) + added
            before.append((mean, cov))
        filtered = tuple(ops.stack(list(moments), axis=1) for moments in zip(*after))
        predicted = tuple(ops.stack(list(moments), axis=1) for moments in zip(*before))
        return ops.stack(densities, axis=1), filtered, predicted


class BackwardSmoother(nn.Cell):
    """Moments given the whole context, after Rauch, Tung and Striebel."""

    def __init__(self, jitter):
        super().__init__()
        self.jitter = jitter

    def construct(self, filtered, predicted, transition):
        means, covs = filtered
        means_next, covs_next = predicted
        steps, size = means.shape[1:]
        precision = ops.inverse(covs_next + self.jitter * identity(size))
        mean, cov = means[:, steps - 1], covs[:, steps - 1]
        smoothed = [(mean, cov)]
        for t in reversed(range(steps - 1)):
            gain = ops.bmm(ops.bmm(covs[:, t], transposed(transition[:, t])), precision[:, t])
            mean = means[:, t] + matvec(gain, mean - means_next[:, t])
            cov = covs[:, t] + ops.bmm(ops.bmm(gain, cov - covs_next[:, t]), transposed(gain))
            cov = (cov + transposed(cov)) / 2
            smoothed.insert(0, (mean, cov))
        return tuple(ops.stack(list(moments), axis=1) for moments in zip(*smoothed))


def observation_moments(mean, cov, model):
    """Center and deviation of the observations that belong to moments of the states."""
    emission = model["emission"]
    center = (emission * mean).sum(axis=-1) + model["offset"]
    variance = (outer(emission, emission) * cov).sum(axis=(-2, -1)) + ops.square(model["noise_std"])
    return center, ops.sqrt(variance)


def draw_paths(mean, cov, model, noise_state, noise_step, noise_obs):
    """Paths (batch, paths, horizon); the series come first here, so that a step is one batched product."""
    noise_state = noise_state.swapaxes(0, 1)
    noise_step = noise_step.swapaxes(0, 1)
    noise_obs = noise_obs.swapaxes(0, 1)
    root = ops.cholesky(cov)
    state = mean.expand_dims(1) + ops.bmm(noise_state, transposed(root))
    paths = []
    for h in range(noise_obs.shape[2]):
        mean_h = matvec(state, model["emission"][:, h]) + model["offset"][:, h : h + 1]
        paths.append(mean_h + noise_obs[:, :, h] * model["noise_std"][:, h : h + 1])
        state = ops.bmm(state, transposed(model["transition"][:, h]))
        state = state + noise_step[:, :, h] * model["innovation"][:, h].expand_dims(1)
    return ops.stack(paths, axis=-1)


def empirical_quantiles(paths, levels):
    """(levels, batch, horizon): quantiles over the paths, linear between neighbours."""
    ordered, _ = ops.sort(paths, axis=1)
    count = paths.shape[1]
    rows = []
    for level in levels:
        position = level * (count - 1)
        low = int(np.floor(position))
        high = min(low + 1, count - 1)
        rows.append(ordered[:, low] + (ordered[:, high] - ordered[:, low]) * (position - low))
    return ops.stack(rows, axis=0)


def quantile_losses(forecast, target, weight, levels):
    """Weighted pinball loss of each level over the weighted size of the target."""
    losses = []
    for i, level in enumerate(levels):
        under = target - forecast[i]
        pinball = ops.maximum(level * under, (level - 1.0) * under)
        losses.append(2.0 * (pinball * weight).sum())
    return ops.stack(losses) / (ops.abs(target) * weight).sum()


class DeepState(nn.Cell):
    """The whole model: likelihood and imputation of the context, quantiles and losses of the horizon."""

    def __init__(self, width=20, layers=2, period=5, kernel=3, dilations=(1, 2, 4), dropout=0.1, features=4, reals=2,
                 cardinality=(7, 4), embedding=(4, 3), levels=(0.1, 0.25, 0.5, 0.9)):
        super().__init__()
        self.levels = levels
        statics = sum(embedding) + reals + 1
        self.scaler = ScaleEstimator(lowest=1e-3)
        self.embedder = CategoryEmbedder(cardinality, embedding)
        self.encoder = Encoder(features, statics, width, layers, kernel, dilations, dropout)
        self.head = ParameterHead(width, period, prior_floor=0.05)
        self.model = StructuralModel(period)
        self.filter = KalmanFilter()
        self.smoother = BackwardSmoother(jitter=1e-5)

    def construct(self, past_target, past_observed, static_cat, static_real, time_feat, start, future_target,
                  future_weight, noise_state, noise_step, noise_obs):
        context = past_target.shape[1]
        scale = self.scaler(past_target, past_observed).expand_dims(-1)
        log_scale = ops.log(scale)
        static = ops.cat((self.embedder(static_cat), static_real, log_scale), axis=-1)
        hidden = self.encoder(time_feat, static, context)
        model = self.model(start, *self.head(hidden))
        past = over_time(model, 0, context)
        future = over_time(model, context, time_feat.shape[1])

        densities, filtered, predicted = self.filter(past_target / scale, past_observed, past)
        seen = past_observed.astype(ms.float32)
        log_prob = (densities - seen * log_scale).sum(axis=1)
        nll = -log_prob.sum() / ops.clamp(seen.sum(), min=1.0)

        smoothed_mean, smoothed_cov = self.smoother(filtered, predicted, past["transition"])
        center, spread = observation_moments(smoothed_mean, smoothed_cov, past)
        imputed = ops.where(past_observed, past_target, center * scale)

        paths = draw_paths(predicted[0][:, -1], predicted[1][:, -1], future, noise_state, noise_step, noise_obs)
        paths = paths * scale.expand_dims(-1)
        forecast = empirical_quantiles(paths, self.levels)
        losses = quantile_losses(forecast, future_target, future_weight, self.levels)
        return log_prob, nll, imputed, spread * scale, forecast, paths.mean(axis=1), losses


def example_batch(context=18, horizon=6, period=5, batch=5, paths=12):
    """Five series of different scales, one with a long gap and one that has never been observed."""
    rng = np.random.RandomState(24)
    length, states = context + horizon, 2 + period
    steps = np.arange(length)
    start = rng.randint(0, period, batch)
    series = 1.0 + 0.03 * steps * rng.randn(batch, 1)
    series += 0.5 * np.sin(2 * np.pi * (start[:, None] + steps) / period) + 0.2 * rng.randn(batch, length)
    series *= np.array([0.6, 1.0, 1.7, 2.4, 3.2])[:, None]
    observed = rng.rand(batch, context) > 0.2
    observed[1, 7:12] = False
    observed[3] = False
    time_feat = np.sin(steps[None, :, None] / np.array([1.1, 2.3, 4.0, 9.0]) + rng.randn(batch, 1, 1))
    static_cat = np.stack([rng.randint(0, size, batch) for size in (7, 4)], axis=1)
    static_real = rng.randn(batch, 2)
    future_weight = rng.choice([0.5, 1.0, 2.0], (batch, horizon))
    noise_state = rng.randn(paths, batch, states)
    noise_obs = rng.randn(paths, batch, horizon)
    noise_step = rng.randn(paths, batch, horizon, states)
    past = np.where(observed, series[:, :context], 0.0)
    arrays = [past, observed, static_cat, static_real, time_feat, start, series[:, context:], future_weight,
              noise_state, noise_step, noise_obs]
    return tuple(Tensor(x.astype(np.float32) if x.dtype == np.float64 else x) for x in arrays)


def build():
    """The net for evaluation and the inputs of the example."""
    net = DeepState()
    net.set_train(False)
    return net, example_batch()
