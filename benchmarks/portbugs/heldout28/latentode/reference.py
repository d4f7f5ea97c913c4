"""Latent ODE with a Poisson process over the observation times, for irregularly sampled clinical series (PyTorch).

An ODE-RNN reads a series backwards and gives a posterior over the latent state at time zero; a neural ODE carries
samples of that state forward, with the integrals of the intensities; a decoder turns states into observations.
In the solvers a state is (rows, channels) and a time (rows, 1): every row has a clock and a step of its own.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Config:
    """The small model for the vital signs."""

    num_features, embed_dim, time_dim = 4, 16, 5
    latent_dim, gen_units = 6, 28
    rec_dim, rec_units, gru_units, rec_substeps = 10, 24, 20, 2
    hours, clip_value = 7.0, 1.5  # the unit of the model's time is so many hours
    rk4_points, adaptive_steps, rtol, atol = 8, 10, 1e-2, 1e-2
    min_sigma, free_nats, kl_weight, poisson_weight = 0.4, 0.3, 0.7, 0.4


FEATURE_MEAN = (86.8, 97.2, 36.9, 19.3)
FEATURE_STD = (17.4, 2.9, 0.8, 5.5)

# Dormand-Prince (5)4 in Shampine's variant: nodes, stages (the last is the solution), the fourth order, the middle
DP_ALPHA = (1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0)
DP_BETA = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
DP_FOURTH = (1951 / 21600, 0.0, 22642 / 50085, 451 / 720, -12231 / 42400, 649 / 6300, 1 / 60)
DP_ERROR = tuple(b5 - b4 for b5, b4 in zip(DP_BETA[-1] + (0.0,), DP_FOURTH))
DP_MID = (
    6025192743 / 30085553152 / 2, 0.0, 51252292925 / 65400821598 / 2, -2691868925 / 45128329728 / 2,
    187940372067 / 1594534317056 / 2, -1776094331 / 19743644256 / 2, 11237099 / 235043384 / 2,
)


def rk4_step(func, t, dt, y, f0=None):
    """One step of the 3/8 rule; it costs what the classical rule costs and errs a little less."""
    k1 = func(t, y) if f0 is None else f0
    k2 = func(t + dt / 3, y + dt * k1 / 3)
    k3 = func(t + dt * 2 / 3, y + dt * (k2 - k1 / 3))
    k4 = func(t + dt, y + dt * (k1 - k2 + k3))
    return y + (k1 + 3 * (k2 + k3) + k4) * dt / 8


def rk4_between(func, y, t0, t1, substeps):
    """From t0 to t1 (either may be the later one) in a number of equal steps."""
    dt = (t1 - t0) / substeps
    for j in range(substeps):
        y = rk4_step(func, t0 + j * dt, dt, y)
    return y


def rk4_trajectory(func, y0, t_end, num_points):
    """Knots on an even grid of each row, with the derivatives that a cubic interpolation needs."""
    knots = torch.linspace(0.0, 1.0, num_points, dtype=y0.dtype)[None, :] * t_end
    ys, fs = [y0], [func(knots[:, :1], y0)]
    for j in range(num_points - 1):
        t, t_next = knots[:, j : j + 1], knots[:, j + 1 : j + 2]
        y = rk4_step(func, t, t_next - t, ys[-1], f0=fs[-1])
        ys.append(y)
        fs.append(func(t_next, y))
    return knots, torch.stack(ys, dim=1), torch.stack(fs, dim=1)


def find_interval(knots, t):
    """The interval of each row's knots (rows, n + 1) that holds each of the times (rows, m)."""
    return (torch.searchsorted(knots, t.contiguous(), right=True) - 1).clamp(0, knots.shape[1] - 2)


def take_rows(values, index):
    """values (rows, n, ...) at index (rows, m)."""
    shape = index.shape + (1,) * (values.ndim - 2)
    return torch.gather(values, 1, index.reshape(shape).expand(index.shape + values.shape[2:]))


def hermite_interpolate(trajectory, t):
    """Cubic Hermite interpolation between the knots of a fixed grid, at times (rows, m)."""
    knots, ys, fs = trajectory
    index = find_interval(knots, t)
    t0, t1 = torch.gather(knots, 1, index), torch.gather(knots, 1, index + 1)
    h = (t1 - t0).unsqueeze(-1)
    s = ((t - t0) / (t1 - t0)).unsqueeze(-1)
    y0, y1 = take_rows(ys, index), take_rows(ys, index + 1)
    f0, f1 = take_rows(fs, index), take_rows(fs, index + 1)
    values = (1 + 2 * s) * (1 - s) ** 2 * y0 + s**2 * (3 - 2 * s) * y1
    return values + h * (s * (1 - s) ** 2 * f0 + s**2 * (s - 1) * f1)


def rms_norm(x):
    return x.pow(2).mean(dim=-1, keepdim=True).sqrt()


def select_initial_step(func, t0, y0, f0, order, rtol, atol):
    """Hairer, Norsett and Wanner, II.4: an explicit Euler step tells the size of the second derivative."""
    scale = atol + y0.abs() * rtol
    d0, d1 = rms_norm(y0 / scale), rms_norm(f0 / scale)
    h0 = 0.01 * d0 / d1.clamp(min=1e-5)
    f1 = func(t0 + h0, y0 + h0 * f0)
    d2 = rms_norm((f1 - f0) / scale) / h0
    h1 = (0.01 / torch.max(d1, d2).clamp(min=1e-5)) ** (1.0 / (order + 1))
    return torch.min(100 * h0, h1)


def dopri5_step(func, t, h, y, f0):
    """The solution of fifth order, its derivative, the error of the fourth order, and the state in the middle."""
    k = [f0]
    for alpha, beta in zip(DP_ALPHA, DP_BETA):
        yi = y + h * sum(b * ki for b, ki in zip(beta, k))
        k.append(func(t + alpha * h, yi))
    error = h * sum(c * ki for c, ki in zip(DP_ERROR, k))
    middle = y + h * sum(c * ki for c, ki in zip(DP_MID, k))
    return yi, k[-1], error, middle


def next_step_size(h, ratio, safety=0.9, ifactor=6.0, dfactor=0.2, order=5):
    """The controller: no step shrinks after it was accepted, none grows by more than ifactor."""
    lowest = torch.where(ratio < 1, torch.ones_like(ratio), torch.full_like(ratio, dfactor))
    factor = safety * ratio.clamp(min=1e-8) ** (-1.0 / order)
    return h * torch.max(factor, lowest).clamp(max=ifactor)


def fit_quartic(y0, y1, middle, f0, f1, h):
    """Coefficients, of the fourth power first, of the polynomial through three states and two derivatives."""
    rise, half = y1 - y0, middle - y0
    a = 2 * h * (f1 - f0) - 8 * rise + 16 * half
    b = h * (5 * f0 - 3 * f1) + 14 * rise - 32 * half
    c = h * (f1 - 4 * f0) - 5 * rise + 16 * half
    return torch.stack([a, b, c, h * f0, y0], dim=1)


def dopri5_trajectory(func, y0, t_end, num_steps, rtol, atol):
    """Adaptive steps, a fixed number of attempts. The last attempt goes to the end, whatever its error."""
    t, y = torch.zeros_like(t_end), y0
    f = func(t, y)
    h = select_initial_step(func, t, y, f, 4, rtol, atol)
    knots, coefficients = [t], []
    for attempt in range(num_steps):
        last = attempt == num_steps - 1
        remaining = (t_end - t).clamp(min=0.0)
        step = remaining if last else torch.min(h, remaining)
        y1, f1, error, middle = dopri5_step(func, t, step, y, f)
        tolerance = atol + rtol * torch.max(y.abs(), y1.abs())
        ratio = rms_norm(error / tolerance)
        accept = torch.ones_like(ratio, dtype=torch.bool) if last else ratio <= 1
        coefficients.append(fit_quartic(y, y1, middle, f, f1, step))
        h = next_step_size(step, ratio)
        # after a rejected attempt the knot stays where it is: an empty interval, into which no time falls
        t, y, f = torch.where(accept, t + step, t), torch.where(accept, y1, y), torch.where(accept, f1, f)
        knots.append(t)
    return torch.cat(knots, dim=1), torch.stack(coefficients, dim=1)


def dense_output(trajectory, t):
    """The quartic of the interval that a time falls into, at times (rows, m)."""
    knots, coefficients = trajectory
    index = find_interval(knots, t)
    t0, t1 = torch.gather(knots, 1, index), torch.gather(knots, 1, index + 1)
    s = ((t - t0) / (t1 - t0).clamp(min=1e-6)).clamp(0.0, 1.0).unsqueeze(-1)
    coefficient = take_rows(coefficients, index)
    powers = torch.stack([s**4, s**3, s**2, s, torch.ones_like(s)], dim=2)
    return (coefficient * powers).sum(dim=2)


class VectorField(nn.Module):
    """dy/dt, bounded by a softsign and damped towards zero."""
    def __init__(self, dim, units, time_dim, num_hidden):
        super().__init__()
        self.omega = nn.Parameter(torch.ones(time_dim))
        self.phi = nn.Parameter(torch.zeros(time_dim))
        self.inp = nn.Linear(dim + time_dim, units)
        self.norm = nn.LayerNorm(units)
        self.act = nn.Softplus(beta=2.0)
        self.hidden = nn.ModuleList([nn.Linear(units, units) for _ in range(num_hidden)])
        self.out = nn.Linear(units, dim)
        self.speed = nn.Parameter(torch.ones(dim))
        self.damping = nn.Parameter(torch.zeros(dim))

    def forward(self, t, y):
        angle = t * self.omega + self.phi
        time = torch.cat([angle[:, :1], torch.sin(angle[:, 1:])], dim=-1)  # one linear feature, the others periodic
        h = self.act(self.norm(self.inp(torch.cat([y, time], dim=-1))))
        for layer in self.hidden:
            h = h + self.act(layer(h))
        return self.speed * F.softsign(self.out(h)) - torch.exp(self.damping) * y


class GRUUnit(nn.Module):
    """A GRU cell on the mean and the deviation of a hidden state; rows without an observation keep theirs."""
    def __init__(self, dim, input_dim, units):
        super().__init__()
        gates_in = 2 * dim + input_dim
        self.update_gate = nn.Sequential(nn.Linear(gates_in, units), nn.Softsign(), nn.Linear(units, dim), nn.Sigmoid())
        self.reset_gate = nn.Sequential(nn.Linear(gates_in, units), nn.Softsign(), nn.Linear(units, dim), nn.Sigmoid())
        self.new_state = nn.Sequential(nn.Linear(gates_in, units), nn.Softsign(), nn.Linear(units, 2 * dim))

    def forward(self, mean, std, x, mask):
        state = torch.cat([mean, std, x], dim=-1)
        update, reset = self.update_gate(state), self.reset_gate(state)
        new_mean, new_std = self.new_state(torch.cat([mean * reset, std * reset, x], dim=-1)).chunk(2, dim=-1)
        new_mean = (1 - update) * new_mean + update * mean
        new_std = (1 - update) * new_std.abs() + update * std
        observed = mask.sum(dim=-1, keepdim=True) > 0
        return torch.where(observed, new_mean, mean), torch.where(observed, new_std, std)


class DecayImputation(nn.Module):
    """A missing value decays from the one read last towards the mean, which is zero after the standardisation."""
    def __init__(self, num_features):
        super().__init__()
        self.rate = nn.Parameter(torch.zeros(num_features))
        self.offset = nn.Parameter(torch.zeros(num_features))

    def forward(self, x, mask, last, since):
        gamma = torch.exp(-F.relu(self.rate * since + self.offset))
        return mask * x + (1 - mask) * gamma * last


class ODERNNEncoder(nn.Module):
    """Reads a series from its end to its start; between observations the hidden mean follows an ODE."""
    lead = 0.01

    def __init__(self, cfg):
        super().__init__()
        self.dim, self.substeps = cfg.rec_dim, cfg.rec_substeps
        self.impute = DecayImputation(cfg.num_features)
        embed_dim = cfg.embed_dim
        self.embed = nn.Sequential(nn.Linear(2 * cfg.num_features, embed_dim), nn.LayerNorm(embed_dim), nn.GELU())
        self.field = VectorField(cfg.rec_dim, cfg.rec_units, cfg.time_dim, num_hidden=1)
        self.gru = GRUUnit(cfg.rec_dim, embed_dim, cfg.gru_units)
        hidden = nn.Linear(2 * cfg.rec_dim, cfg.rec_units)
        self.to_z0 = nn.Sequential(hidden, nn.Softsign(), nn.Linear(cfg.rec_units, 2 * cfg.latent_dim))
        self.bound = nn.Hardtanh(-3.0, 0.5)

    def forward(self, x, mask, times):
        batch, steps, _ = x.shape
        mean, std = x.new_zeros(batch, self.dim), x.new_zeros(batch, self.dim)
        last, since = torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0])
        prev_t = times[:, -1:] + self.lead
        for i in reversed(range(steps)):
            t_i, m_i = times[:, i : i + 1], mask[:, i]
            mean = rk4_between(self.field, mean, prev_t, t_i, self.substeps)
            since = since + (prev_t - t_i)
            filled = self.impute(x[:, i], m_i, last, since)
            mean, std = self.gru(mean, std, self.embed(torch.cat([filled, m_i], dim=-1)), m_i)
            last, since = torch.where(m_i > 0, x[:, i], last), since * (1 - m_i)
            prev_t = t_i
        mean = rk4_between(self.field, mean, prev_t, torch.zeros_like(prev_t), self.substeps)
        z_mean, z_logvar = self.to_z0(torch.cat([mean, std], dim=-1)).chunk(2, dim=-1)
        return z_mean, self.bound(z_logvar)


class PoissonDynamics(nn.Module):
    """The latent state and, behind it, the integral of each feature's intensity."""
    def __init__(self, cfg):
        super().__init__()
        self.latent_dim = cfg.latent_dim
        self.field = VectorField(cfg.latent_dim, cfg.gen_units, cfg.time_dim, num_hidden=1)
        hidden = nn.Linear(cfg.latent_dim, cfg.gen_units)
        self.rate = nn.Sequential(hidden, nn.SiLU(), nn.Linear(cfg.gen_units, cfg.num_features))

    def log_intensity(self, z):
        return 1.5 * F.softsign(self.rate(z)) - 1.5

    def forward(self, t, state):
        z = state[..., : self.latent_dim]
        return torch.cat([self.field(t, z), torch.exp(self.log_intensity(z))], dim=-1)


class ObservationDecoder(nn.Module):
    """Mean and deviation of the observations, from latent states (..., latent_dim)."""
    def __init__(self, cfg):
        super().__init__()
        self.min_sigma = cfg.min_sigma
        self.fc1 = nn.Linear(cfg.latent_dim, cfg.gen_units)
        self.norm = nn.BatchNorm1d(cfg.gen_units)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(cfg.gen_units, 2 * cfg.num_features)

    def forward(self, z):
        h = self.fc1(z.reshape(-1, z.shape[-1]))
        mean, raw = self.fc2(self.act(self.norm(h))).reshape(z.shape[:-1] + (-1,)).chunk(2, dim=-1)
        return mean, self.min_sigma + (1 - self.min_sigma) * F.softplus(raw)


class GenerativeODE(nn.Module):
    """Carries samples of the first state to the observations (fixed grid) and to the asked times (adaptive steps)."""
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.dynamics = PoissonDynamics(cfg)

    def forward(self, z0, obs_times, ask_times):
        cfg = self.cfg
        samples, batch, _ = z0.shape
        state = torch.cat([z0, z0.new_zeros(samples, batch, cfg.num_features)], dim=-1).reshape(samples * batch, -1)
        obs_t, ask_t = obs_times.repeat(samples, 1), ask_times.repeat(samples, 1)
        fixed = rk4_trajectory(self.dynamics, state, obs_t[:, -1:], cfg.rk4_points)
        observed = hermite_interpolate(fixed, obs_t).reshape(samples, batch, -1, state.shape[-1])
        t_end = ask_t.max(dim=1, keepdim=True).values
        adaptive = dopri5_trajectory(self.dynamics, state, t_end, cfg.adaptive_steps, cfg.rtol, cfg.atol)
        asked = dense_output(adaptive, ask_t).reshape(samples, batch, -1, state.shape[-1])
        return observed, asked


class LatentODE(nn.Module):
    """Predictions at the asked times and the evidence lower bound of the observed ones."""
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.register_buffer("feature_mean", torch.tensor(FEATURE_MEAN), persistent=False)
        self.register_buffer("feature_std", torch.tensor(FEATURE_STD), persistent=False)
        self.encoder = ODERNNEncoder(cfg)
        self.generator = GenerativeODE(cfg)
        self.decoder = ObservationDecoder(cfg)
        self.prior_mean = nn.Parameter(torch.zeros(cfg.latent_dim))
        self.prior_logvar = nn.Parameter(torch.zeros(cfg.latent_dim))

    def prepare(self, values, mask, times, ask_times):
        """Standardised and clipped values, zero where nothing was measured; times in the model's unit."""
        x = ((values - self.feature_mean) / self.feature_std).clamp(-self.cfg.clip_value, self.cfg.clip_value)
        return torch.where(mask > 0, x, torch.zeros_like(x)), times / self.cfg.hours, ask_times / self.cfg.hours

    def gaussian_log_likelihood(self, x, mean, sigma, mask):
        """Mean over a feature's observations, then over the features that a series has: (samples, batch)."""
        log_density = -0.5 * ((x - mean) / sigma) ** 2 - sigma.log() - 0.5 * math.log(2 * math.pi)
        count = mask.sum(dim=1)
        per_feature = (log_density * mask).sum(dim=2) / count.clamp(min=1.0)
        return per_feature.sum(dim=-1) / (count > 0).sum(dim=-1).clamp(min=1)

    def poisson_log_likelihood(self, log_rate, integral, mask):
        """Log intensities at the events less the integral to the end of the series, as a mean over the features."""
        return ((log_rate * mask).sum(dim=2) - integral[:, :, -1]).mean(dim=-1)

    def kl_divergence(self, z_mean, z_logvar):
        """KL of the posterior from the prior, (batch,); every dimension has some nats for free."""
        ratio = (z_logvar.exp() + (z_mean - self.prior_mean) ** 2) / self.prior_logvar.exp()
        kl = 0.5 * (ratio - 1.0 + self.prior_logvar - z_logvar)
        return kl.clamp(min=self.cfg.free_nats).sum(dim=-1)

    def forward(self, values, mask, times, ask_times, noise):
        """A series that ends early repeats its last time with an empty mask; noise is (samples, batch, latent_dim)."""
        x, obs_t, ask_t = self.prepare(values, mask, times, ask_times)
        z_mean, z_logvar = self.encoder(x, mask, obs_t)
        z0 = z_mean + torch.exp(0.5 * z_logvar) * noise
        observed, asked = self.generator(z0, obs_t, ask_t)
        widths = [self.cfg.latent_dim, self.cfg.num_features]
        (z_obs, integral), (z_ask, events) = observed.split(widths, dim=-1), asked.split(widths, dim=-1)
        recon_mean, recon_sigma = self.decoder(z_obs)
        pred_mean, pred_sigma = self.decoder(z_ask)

        log_lik = self.gaussian_log_likelihood(x, recon_mean, recon_sigma, mask)
        poisson = self.poisson_log_likelihood(self.generator.dynamics.log_intensity(z_obs), integral, mask)
        kl = self.kl_divergence(z_mean, z_logvar)
        bound = log_lik + self.cfg.poisson_weight * poisson - self.cfg.kl_weight * kl
        elbo = torch.logsumexp(bound, dim=0) - math.log(noise.shape[0])
        # the mixture over the samples: its mean, and by the law of total variance its deviation
        mixture_mean = pred_mean.mean(dim=0)
        mixture_std = (pred_sigma.pow(2).mean(dim=0) + pred_mean.var(dim=0, unbiased=False)).sqrt()
        rates = self.generator.dynamics.log_intensity(z_ask).exp().mean(dim=0)
        return mixture_mean, mixture_std, rates, events.mean(dim=0), recon_mean, log_lik, poisson, kl, elbo


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=1.3 * module.in_features**-0.5)
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, (nn.LayerNorm, nn.BatchNorm1d)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, VectorField):
            nn.init.uniform_(module.omega, 0.3, 2.5)
            nn.init.uniform_(module.phi, -1.5, 1.5)
            nn.init.uniform_(module.speed, 1.5, 4.0)
            nn.init.normal_(module.damping, mean=-0.5, std=0.5)
    nn.init.normal_(net.decoder.norm.running_mean, std=0.4)
    nn.init.uniform_(net.decoder.norm.running_var, 0.5, 2.5)
    nn.init.uniform_(net.encoder.impute.rate, 1.0, 5.0)
    nn.init.normal_(net.encoder.impute.offset, std=0.2)
    nn.init.normal_(net.prior_mean, std=0.4)
    nn.init.normal_(net.prior_logvar, std=0.3)
    net.encoder.to_z0[2].weight.data[net.cfg.latent_dim :] *= 2.0
    net.encoder.to_z0[2].bias.data[net.cfg.latent_dim :] -= 0.6
    return net


def build():
    """The net with the same weights on every run, and five stays in hospital of which two end early."""
    cfg = Config()
    torch.manual_seed(1921)
    net = trained_like(LatentODE(cfg))
    rng = np.random.RandomState(48)
    batch, steps, asked, samples = 5, 7, 6, 3
    times = np.sort(rng.uniform(0.5, 40.0, (batch, steps)), axis=1)
    mask = (rng.uniform(size=(batch, steps, cfg.num_features)) < 0.55).astype(np.float64)
    for row, length in enumerate((7, 4, 7, 5, 7)):
        times[row, length:] = times[row, length - 1]
        mask[row, length:] = 0.0
    mask[2, :, 3] = 0.0  # a feature that was never measured
    wave = 1.2 * np.sin(times[:, :, None] * rng.uniform(0.1, 0.5, 4) + rng.uniform(0, 6, (batch, 1, 4)))
    noisy = wave + 0.4 * rng.normal(size=wave.shape)
    values = (np.array(FEATURE_MEAN) + np.array(FEATURE_STD) * noisy) * (mask > 0)
    ask_times = np.sort(rng.uniform(2.0, 60.0, (batch, asked)), axis=1)
    noise = rng.normal(size=(samples, batch, cfg.latent_dim))
    inputs = tuple(torch.tensor(a, dtype=torch.float32) for a in (values, mask, times, ask_times, noise))
    return net.eval(), inputs
