"""Latent ODE with Poisson intensities for irregularly sampled series, in MindSpore."""

import math

import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal

FEATURES = ["heart_rate", "spo2", "temperature", "resp_rate"]
CENTRE = np.array([86.8, 97.2, 36.9, 19.3], np.float32)
SPREAD = np.array([17.4, 2.9, 0.8, 5.5], np.float32)
HOURS_PER_UNIT = 7.0
CLIP = 1.5

# Tableau of Dormand and Prince; the last stage is the solution of fifth order itself.
NODES = [1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0]
STAGES = [
    [1 / 5],
    [3 / 40, 9 / 40],
    [44 / 45, -56 / 15, 32 / 9],
    [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
    [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656],
    [35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84],
]
EMBEDDED = [1951 / 21600, 0.0, 22642 / 50085, 451 / 720, -12231 / 42400, 649 / 6300, 1 / 60]
ERROR = [high - low for high, low in zip(STAGES[-1] + [0.0], EMBEDDED)]
MIDDLE = [
    0.5 * 6025192743 / 30085553152,
    0.0,
    0.5 * 51252292925 / 65400821598,
    -0.5 * 2691868925 / 45128329728,
    0.5 * 187940372067 / 1594534317056,
    -0.5 * 1776094331 / 19743644256,
    0.5 * 11237099 / 235043384,
]


def weighted(slopes, weights):
    """Linear combination of slopes; weights that are zero are skipped."""
    total = None
    for slope, weight in zip(slopes, weights):
        if weight != 0.0:
            total = slope * weight if total is None else total + slope * weight
    return total


def row_norm(x):
    return ops.sqrt(ops.square(x).mean(axis=-1, keep_dims=True))


def locate(knots, t):
    """Index of the interval of knots (rows, n + 1) for times (rows, m): how many inner knots lie at or before each."""
    inner = knots[:, 1:-1].expand_dims(1)
    return (inner <= t.expand_dims(-1)).astype(ms.int32).sum(axis=-1).astype(ms.int32)


def pick(values, index):
    """values[row, index[row, j]] for values with any number of trailing axes."""
    rows, count = values.shape[:2]
    offsets = Tensor(np.arange(rows, dtype=np.int32)[:, None] * count)
    flat = values.reshape((rows * count,) + values.shape[2:])
    return ops.gather(flat, (index + offsets).astype(ms.int32), 0)


class KuttaRule:
    """Kutta's 3/8 rule for states (rows, channels); each row has a time of its own, (rows, 1)."""

    def __init__(self, fn):
        self.fn = fn

    def step(self, t, dt, y, k1=None):
        if k1 is None:
            k1 = self.fn(t, y)
        third = dt / 3.0
        k2 = self.fn(t + third, y + third * k1)
        k3 = self.fn(t + 2.0 * third, y + dt * k2 - third * k1)
        k4 = self.fn(t + dt, y + dt * (k1 - k2 + k3))
        return y + dt * (0.125 * k1 + 0.375 * k2 + 0.375 * k3 + 0.125 * k4)

    def travel(self, y, start, stop, substeps):
        """Integrate between two times, backwards if stop is before start."""
        dt = (stop - start) / substeps
        t = start
        for _ in range(substeps):
            y = self.step(t, dt, y)
            t = t + dt
        return y

    def knots(self, y, stop, count):
        """States and slopes at count evenly spaced times from zero to stop."""
        grid = stop * Tensor(np.linspace(0.0, 1.0, count, dtype=np.float32))
        states, slopes = [y], [self.fn(grid[:, 0:1], y)]
        for n in range(1, count):
            t, t_next = grid[:, n - 1 : n], grid[:, n : n + 1]
            y = self.step(t, t_next - t, y, slopes[-1])
            states.append(y)
            slopes.append(self.fn(t_next, y))
        return grid, ops.stack(states, axis=1), ops.stack(slopes, axis=1)


def cubic_between_knots(solution, t):
    """Hermite's cubic through the states and slopes on both sides of each time."""
    grid, states, slopes = solution
    left = locate(grid, t)
    t0 = pick(grid, left)
    width = (pick(grid, left + 1) - t0).expand_dims(-1)
    s = (t - t0).expand_dims(-1) / width
    r = 1.0 - s
    start, stop = pick(states, left), pick(states, left + 1)
    slope0, slope1 = pick(slopes, left) * width, pick(slopes, left + 1) * width
    return r * r * ((1.0 + 2.0 * s) * start + s * slope0) + s * s * ((3.0 - 2.0 * s) * stop - r * slope1)


class DormandPrince:
    """Adaptive integration from time zero; every row has its own step, all make the same number of attempts."""

    def __init__(self, fn, attempts=10, rtol=1e-2, atol=1e-2, safety=0.9, grow=6.0, shrink=0.2):
        self.fn = fn
        self.attempts = attempts
        self.rtol, self.atol = rtol, atol
        self.safety, self.grow, self.shrink = safety, grow, shrink

    def first_step(self, t, y, slope):
        """A guess from the sizes of the state, the slope and the second derivative."""
        scale = self.atol + self.rtol * ops.abs(y)
        size, speed = row_norm(y / scale), row_norm(slope / scale)
        trial = 0.01 * size / ops.clamp(speed, min=1e-5)
        bend = row_norm((self.fn(t + trial, y + trial * slope) - slope) / scale) / trial
        guess = ops.pow(0.01 / ops.clamp(ops.maximum(speed, bend), min=1e-5), 1.0 / 5.0)
        return ops.minimum(100.0 * trial, guess)

    def attempt(self, t, h, y, slope):
        slopes = [slope]
        for node, weights in zip(NODES, STAGES):
            stage = y + h * weighted(slopes, weights)
            slopes.append(self.fn(t + node * h, stage))
        return stage, slopes[-1], h * weighted(slopes, ERROR), h * weighted(slopes, MIDDLE)

    def error_ratio(self, error, y, y_new):
        tolerance = self.atol + self.rtol * ops.maximum(ops.abs(y), ops.abs(y_new))
        return row_norm(error / tolerance)

    def resize(self, h, ratio):
        factor = self.safety * ops.pow(ops.clamp(ratio, min=1e-8), -0.2)
        floor = ops.where(ratio < 1.0, ops.ones_like(ratio), ops.full_like(ratio, self.shrink))
        return h * ops.clamp(ops.maximum(factor, floor), max=self.grow)

    @staticmethod
    def quartic(y, rise, half, slope, slope_new, h):
        """Coefficients of the interpolating polynomial on the unit interval, the constant one first."""
        start, end = h * slope, h * slope_new
        quadratic = end - 4.0 * start - 5.0 * rise + 16.0 * half
        cubic = 5.0 * start - 3.0 * end + 14.0 * rise - 32.0 * half
        fourth = 2.0 * (end - start) - 8.0 * rise + 16.0 * half
        return ops.stack([y, start, quadratic, cubic, fourth], axis=1)

    def solve(self, y, stop):
        """Knots (rows, attempts + 1), quartics (rows, attempts, 5, channels); a rejected attempt repeats its knot."""
        t = ops.zeros_like(stop)
        slope = self.fn(t, y)
        h = self.first_step(t, y, slope)
        knots, pieces = [t], []
        for n in range(self.attempts):
            final = n + 1 == self.attempts
            left = ops.clamp(stop - t, min=0.0)
            h = left if final else ops.minimum(h, left)
            y_new, slope_new, error, half = self.attempt(t, h, y, slope)
            pieces.append(self.quartic(y, y_new - y, half, slope, slope_new, h))
            ratio = self.error_ratio(error, y, y_new)
            accepted = ops.logical_or(ratio <= 1.0, Tensor(final))
            t = ops.where(accepted, t + h, t)
            y = ops.where(accepted, y_new, y)
            slope = ops.where(accepted, slope_new, slope)
            h = self.resize(h, ratio)
            knots.append(t)
        return ops.cat(knots, axis=1), ops.stack(pieces, axis=1)

    @staticmethod
    def evaluate(solution, t):
        knots, pieces = solution
        left = locate(knots, t)
        t0 = pick(knots, left)
        width = ops.clamp(pick(knots, left + 1) - t0, min=1e-6)
        s = ops.clamp((t - t0) / width, 0.0, 1.0).expand_dims(-1)
        piece = pick(pieces, left)
        value = piece[:, :, 4]
        for power in (3, 2, 1, 0):
            value = value * s + piece[:, :, power]
        return value


class Softplus(nn.Cell):
    """log(1 + exp(beta x)) / beta."""

    def __init__(self, beta=1.0):
        super().__init__()
        self.beta = beta

    def construct(self, x):
        return ops.softplus(x, self.beta)


def dense(inputs, outputs):
    return nn.Dense(inputs, outputs, weight_init=Normal(inputs**-0.5), bias_init=Normal(0.1))


def vector(size, name, mean=0.0, sigma=0.3):
    values = np.random.RandomState(len(name) + size).normal(mean, sigma, size)
    return Parameter(Tensor(values.astype(np.float32)), name=name)


def mlp(inputs, hidden, outputs, act, last=None):
    cells = [dense(inputs, hidden), act, dense(hidden, outputs)]
    return nn.SequentialCell(cells if last is None else cells + [last])


class ODEFunc(nn.Cell):
    """The time-dependent right-hand side of the latent ODEs."""

    def __init__(self, dim, units, time_dim=5, extra_layers=1):
        super().__init__()
        self.omega = vector(time_dim, "omega", 1.0)
        self.phi = vector(time_dim, "phi")
        self.inp = dense(dim + time_dim, units)
        self.norm = nn.LayerNorm((units,), epsilon=1e-5)
        self.act = Softplus(beta=2.0)
        self.hidden = nn.CellList([dense(units, units) for _ in range(extra_layers)])
        self.out = dense(units, dim)
        self.squash = nn.Softsign()
        self.speed = vector(dim, "speed", 2.0)
        self.damping = vector(dim, "damping")

    def embed_time(self, t):
        angle = t * self.omega + self.phi
        return ops.cat([angle[:, :1], ops.sin(angle[:, 1:])], axis=-1)

    def construct(self, t, y):
        h = self.act(self.norm(self.inp(ops.cat([y, self.embed_time(t)], axis=-1))))
        for layer in self.hidden:
            h = h + self.act(layer(h))
        return self.speed * self.squash(self.out(h)) - ops.exp(self.damping) * y


class GaussianGRU(nn.Cell):
    """GRU cell whose state is a mean and a deviation."""

    def __init__(self, dim, inputs, units):
        super().__init__()
        self.dim = dim
        self.update_gate = mlp(2 * dim + inputs, units, dim, nn.Softsign(), nn.Sigmoid())
        self.reset_gate = mlp(2 * dim + inputs, units, dim, nn.Softsign(), nn.Sigmoid())
        self.new_state = mlp(2 * dim + inputs, units, 2 * dim, nn.Softsign())

    def construct(self, mean, std, x, mask):
        joint = ops.cat([mean, std, x], axis=-1)
        keep = self.update_gate(joint)
        reset = self.reset_gate(joint)
        candidate = self.new_state(ops.cat([reset * mean, reset * std, x], axis=-1))
        mean_new, std_new = candidate[:, : self.dim], ops.abs(candidate[:, self.dim :])
        mean_new = mean_new + keep * (mean - mean_new)
        std_new = std_new + keep * (std - std_new)
        seen = mask.max(axis=-1, keepdims=True) > 0
        return ops.where(seen, mean_new, mean), ops.where(seen, std_new, std)


class Imputer(nn.Cell):
    """Fills a gap with the value read last, which fades with the time since then."""

    def __init__(self, features):
        super().__init__()
        self.rate = vector(features, "rate", 2.0)
        self.offset = vector(features, "offset")

    def construct(self, x, mask, last, since):
        fade = ops.exp(-ops.relu(self.rate * since + self.offset))
        return ops.where(mask > 0, x, fade * last)


class RecognitionODERNN(nn.Cell):
    """Posterior of the first latent state: an ODE-RNN that runs from the last observation to time zero."""

    def __init__(self, features, dim, units, gru_units, embed, latent, substeps=2, margin=0.01):
        super().__init__()
        self.dim, self.latent = dim, latent
        self.substeps = substeps
        self.margin = margin
        self.impute = Imputer(features)
        self.embed = nn.SequentialCell(
            dense(2 * features, embed), nn.LayerNorm((embed,), epsilon=1e-5), nn.GELU(approximate=False)
        )
        self.field = ODEFunc(dim, units)
        self.gru = GaussianGRU(dim, embed, gru_units)
        self.to_z0 = mlp(2 * dim, units, 2 * latent, nn.Softsign())
        self.bound = nn.Hardtanh(-3.0, 0.5)

    def construct(self, x, mask, times):
        batch, steps, _ = x.shape
        solver = KuttaRule(self.field)
        mean = ops.zeros((batch, self.dim), ms.float32)
        std = ops.zeros((batch, self.dim), ms.float32)
        last = ops.zeros_like(x[:, 0])
        since = ops.zeros_like(last)
        # the clock when each observation is reached, latest first, and where it comes from
        arrivals = [times[:, n : n + 1] for n in range(steps - 1, -1, -1)]
        departures = [arrivals[0] + self.margin] + arrivals[:-1]
        for n, (start, stop) in enumerate(zip(departures, arrivals)):
            value, present = x[:, steps - 1 - n], mask[:, steps - 1 - n]
            mean = solver.travel(mean, start, stop, self.substeps)
            since = since + (start - stop)
            filled = self.impute(value, present, last, since)
            mean, std = self.gru(mean, std, self.embed(ops.cat([filled, present], axis=-1)), present)
            last = ops.where(present > 0, value, last)
            since = ops.where(present > 0, ops.zeros_like(since), since)
        mean = solver.travel(mean, arrivals[-1], ops.zeros_like(arrivals[-1]), self.substeps)
        stats = self.to_z0(ops.cat([mean, std], axis=-1))
        return stats[:, : self.latent], self.bound(stats[:, self.latent :])


class IntensityODE(nn.Cell):
    """Joint dynamics of latent states and of the integrals of the intensities."""

    def __init__(self, latent, units, features):
        super().__init__()
        self.latent = latent
        self.field = ODEFunc(latent, units)
        self.rate = mlp(latent, units, features, nn.SiLU())
        self.squash = nn.Softsign()

    def log_rate(self, z):
        return 1.5 * (self.squash(self.rate(z)) - 1.0)

    def construct(self, t, state):
        z = state[:, : self.latent]
        return ops.cat([self.field(t, z), ops.exp(self.log_rate(z))], axis=-1)


class Trajectories(nn.Cell):
    """Latent paths from samples of the first state."""

    def __init__(self, latent, units, features, points=8):
        super().__init__()
        self.features = features
        self.points = points
        self.dynamics = IntensityODE(latent, units, features)

    def construct(self, z0, obs_times, ask_times):
        samples, batch, latent = z0.shape
        state = ops.cat([z0, ops.zeros((samples, batch, self.features), ms.float32)], axis=-1)
        width = latent + self.features
        state = state.reshape(samples * batch, width)
        obs_t = ops.tile(obs_times, (samples, 1))
        ask_t = ops.tile(ask_times, (samples, 1))
        even = KuttaRule(self.dynamics).knots(state, obs_t[:, -1:], self.points)
        at_obs = cubic_between_knots(even, obs_t)
        solver = DormandPrince(self.dynamics)
        adaptive = solver.solve(state, ask_t.max(axis=1, keepdims=True))
        at_ask = solver.evaluate(adaptive, ask_t)
        return at_obs.reshape(samples, batch, -1, width), at_ask.reshape(samples, batch, -1, width)


class Emission(nn.Cell):
    """Mean and deviation of the vital signs, given latent states."""

    def __init__(self, latent, units, features, floor=0.4):
        super().__init__()
        self.floor = floor
        self.features = features
        self.fc1 = dense(latent, units)
        self.norm = nn.BatchNorm1d(units, eps=1e-5)
        self.act = nn.GELU(approximate=False)
        self.fc2 = dense(units, 2 * features)

    def construct(self, z):
        lead = z.shape[:-1]
        hidden = self.act(self.norm(self.fc1(z.reshape(-1, z.shape[-1]))))
        out = self.fc2(hidden).reshape(lead + (2 * self.features,))
        sigma = self.floor + (1.0 - self.floor) * ops.softplus(out[..., self.features :])
        return out[..., : self.features], sigma


class LatentODE(nn.Cell):
    """Values, mask, times, asked times and noise to predictions and the terms of the bound."""

    def __init__(self, features=4, latent=6, gen_units=28, rec_dim=10, rec_units=24, gru_units=20, embed=16,
                 free_nats=0.3, kl_weight=0.7, event_weight=0.4):
        super().__init__()
        self.latent = latent
        self.free_nats, self.kl_weight, self.event_weight = free_nats, kl_weight, event_weight
        self.centre, self.spread = Tensor(CENTRE), Tensor(SPREAD)
        self.encoder = RecognitionODERNN(features, rec_dim, rec_units, gru_units, embed, latent)
        self.generator = Trajectories(latent, gen_units, features)
        self.decoder = Emission(latent, gen_units, features)
        self.prior_mean = vector(latent, "prior_mean")
        self.prior_logvar = vector(latent, "prior_logvar")

    def gaussian_term(self, x, mean, sigma, mask):
        """Average log density over each feature's readings, then over the features with any."""
        z = (x - mean) / sigma
        density = -0.5 * (z * z + math.log(2.0 * math.pi)) - ops.log(sigma)
        readings = mask.sum(axis=1)
        average = (density * mask).sum(axis=2) / ops.maximum(readings, Tensor(1.0, ms.float32))
        measured = (readings > 0).astype(ms.float32).sum(axis=-1)
        return average.sum(axis=-1) / ops.clamp(measured, min=1.0)

    def event_term(self, log_rate, integral, mask):
        """Log likelihood of the Poisson processes, averaged over the features."""
        at_events = (log_rate * mask).sum(axis=2)
        return (at_events - integral[:, :, -1]).mean(axis=-1)

    def kl_term(self, mean, logvar):
        distance = ops.square(mean - self.prior_mean) * ops.exp(-self.prior_logvar)
        shape = ops.exp(logvar - self.prior_logvar) - 1.0 - (logvar - self.prior_logvar)
        return ops.clamp(0.5 * (distance + shape), min=self.free_nats).sum(axis=-1)

    def construct(self, values, mask, times, ask_times, noise):
        x = ops.clamp((values - self.centre) / self.spread, -CLIP, CLIP)
        x = x * mask
        obs_t, ask_t = times / HOURS_PER_UNIT, ask_times / HOURS_PER_UNIT
        mean, logvar = self.encoder(x, mask, obs_t)
        z0 = mean + ops.exp(0.5 * logvar) * noise

        at_obs, at_ask = self.generator(z0, obs_t, ask_t)
        z_obs, integral = at_obs[..., : self.latent], at_obs[..., self.latent :]
        z_ask, expected = at_ask[..., : self.latent], at_ask[..., self.latent :]
        recon, recon_sigma = self.decoder(z_obs)
        pred, pred_sigma = self.decoder(z_ask)

        log_lik = self.gaussian_term(x, recon, recon_sigma, mask)
        events = self.event_term(self.generator.dynamics.log_rate(z_obs), integral, mask)
        kl = self.kl_term(mean, logvar)
        weights = log_lik + self.event_weight * events - self.kl_weight * kl
        elbo = ops.logsumexp(weights, 0) - math.log(noise.shape[0])

        pred_mean = pred.mean(axis=0)
        within = ops.square(pred_sigma).mean(axis=0)
        between = ops.square(pred - pred_mean).mean(axis=0)
        rates = ops.exp(self.generator.dynamics.log_rate(z_ask)).mean(axis=0)
        return pred_mean, ops.sqrt(within + between), rates, expected.mean(axis=0), recon, log_lik, events, kl, elbo


def example_stays(batch=5, steps=7, asked=6, samples=3, latent=6):
    """Five stays in hospital, of which two end early; the padding repeats the last time."""
    rng = np.random.RandomState(48)
    features = len(FEATURES)
    times = np.sort(rng.uniform(0.5, 40.0, (batch, steps)), axis=1)
    mask = (rng.uniform(size=(batch, steps, features)) < 0.55).astype(np.float64)
    for row, length in ((1, 4), (3, 5)):
        times[row, length:] = times[row, length - 1]
        mask[row, length:] = 0.0
    mask[2, :, 3] = 0.0
    frequency, phase = rng.uniform(0.1, 0.5, features), rng.uniform(0, 6, (batch, 1, features))
    signal = 1.2 * np.sin(times[:, :, None] * frequency + phase)
    signal = signal + 0.4 * rng.normal(size=signal.shape)
    mean = np.array([86.8, 97.2, 36.9, 19.3])
    values = (mean + np.array([17.4, 2.9, 0.8, 5.5]) * signal) * (mask > 0)
    ask_times = np.sort(rng.uniform(2.0, 60.0, (batch, asked)), axis=1)
    noise = rng.normal(size=(samples, batch, latent))
    return tuple(Tensor(a.astype(np.float32)) for a in (values, mask, times, ask_times, noise))


def build():
    """The net for evaluation and an example of its inputs."""
    ms.set_seed(7)
    net = LatentODE()
    net.set_train(False)
    return net, example_stays()
