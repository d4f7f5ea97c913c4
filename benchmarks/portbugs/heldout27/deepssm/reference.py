"""Deep state space model for probabilistic forecasts of many related time series, in PyTorch.

A recurrent encoder over covariates emits, for each series and each time, the parameters of a linear Gaussian state
space model in innovation form (damped level and trend, additive season). The likelihood comes from a Kalman filter that
tolerates missing observations, the past is cleaned up by a Rauch-Tung-Striebel smoother, and the horizon is forecast by
sample paths that start at the last filtered state.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

LOG_2PI = math.log(2.0 * math.pi)

# (lower, upper) of what the heads may emit, in units of the scaled series
NOISE_STD_BOUNDS = (0.05, 0.8)
INNOVATION_BOUNDS = (0.01, 0.35)
DAMPING_BOUNDS = (0.6, 0.98)


class Config:
    """The small model of the daily data."""

    context, horizon = 18, 6
    season_length = 5
    num_time_feat = 4
    num_static_real = 2
    cardinality = (7, 4)
    embedding_dim = (4, 3)
    hidden, rnn_layers = 20, 2
    kernel, dilations = 3, (1, 2, 4)
    dropout = 0.1
    minimum_scale = 1e-3
    prior_floor = 0.05
    jitter = 1e-5
    quantiles = (0.1, 0.25, 0.5, 0.9)


class LDS(NamedTuple):
    """A linear Gaussian state space model, per series and time; D is the size of the state."""

    prior_mean: Tensor  # (B, D), of the state at the first step, before its observation
    prior_cov: Tensor  # (B, D, D)
    emission: Tensor  # (B, T, D)
    transition: Tensor  # (B, T, D, D), from step t to step t + 1
    innovation: Tensor  # (B, T, D), standard deviations of what comes in between t and t + 1
    noise_std: Tensor  # (B, T)
    offset: Tensor  # (B, T)

    def slice(self, start, stop):
        """The same model on a part of the time axis; the prior stays."""
        return LDS(self.prior_mean, self.prior_cov, *(x[:, start:stop] for x in self[2:]))


def bounded(x, lower, upper):
    """Squash to an open interval."""
    return lower + (upper - lower) * torch.sigmoid(x)


def block_diag(left, right):
    """Block diagonal of two batches of matrices (..., n, n) and (..., m, m)."""
    n, m = left.shape[-1], right.shape[-1]
    return F.pad(left, (0, m, 0, m)) + F.pad(right, (n, 0, n, 0))


def age_feature(batch, length):
    """How long the series has been running, on a log scale: (batch, length, 1)."""
    age = torch.log10(2.0 + torch.arange(length, dtype=torch.float32))
    return age.view(1, length, 1).expand(batch, length, 1)


class MeanScaler(nn.Module):
    """Mean absolute value of what has been observed of a series; one never observed gets the scale of the batch."""

    def __init__(self, minimum_scale):
        super().__init__()
        self.minimum_scale = minimum_scale

    def forward(self, target, observed):
        weight = observed.to(target.dtype)
        total, count = (target.abs() * weight).sum(dim=1), weight.sum(dim=1)
        default_scale = total.sum() / count.sum().clamp(min=1.0)
        scale = torch.where(count > 0, total / count.clamp(min=1.0), default_scale)
        return scale.clamp(min=self.minimum_scale)


class FeatureEmbedder(nn.Module):
    """One table for each categorical feature, side by side."""

    def __init__(self, cardinality, embedding_dim):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(c, d) for c, d in zip(cardinality, embedding_dim))

    def forward(self, categories):
        columns = torch.unbind(categories, dim=1)
        return torch.cat([table(column) for table, column in zip(self.tables, columns)], dim=-1)


class GatedCausalBlock(nn.Module):
    """Dilated causal convolution with a gate; returns the residual path and what is skipped to the end."""

    def __init__(self, channels, kernel, dilation, dropout):
        super().__init__()
        self.conv = nn.Conv1d(channels, 2 * channels, kernel, padding=(kernel - 1) * dilation, dilation=dilation)
        self.norm = nn.BatchNorm1d(2 * channels)
        self.mix = nn.Conv1d(channels, channels, 1)
        self.skip = nn.Conv1d(channels, channels, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        y = self.norm(self.conv(x)[..., : x.shape[-1]])
        value, gate = y.chunk(2, dim=1)
        y = self.dropout(torch.tanh(value) * torch.sigmoid(gate))
        return x + self.mix(y), self.skip(y)


class CovariateEncoder(nn.Module):
    """Covariates of context and horizon to hidden states; the recurrent state is handed from one to the other."""

    def __init__(self, num_feat, num_static, cfg):
        super().__init__()
        self.layers, self.hidden = cfg.rnn_layers, cfg.hidden
        # calendar features are smoothed by their neighbours, which are known in the future too
        self.smooth = nn.AvgPool1d(3, stride=1, padding=1, count_include_pad=False)
        self.proj = nn.Linear(2 * num_feat + num_static + 1, cfg.hidden)
        block = partial(GatedCausalBlock, cfg.hidden, cfg.kernel, dropout=cfg.dropout)
        self.blocks = nn.ModuleList(block(dilation=dilation) for dilation in cfg.dilations)
        self.init_h = nn.Linear(num_static, cfg.rnn_layers * cfg.hidden)
        self.init_c = nn.Linear(num_static, cfg.rnn_layers * cfg.hidden)
        self.rnn = nn.LSTM(cfg.hidden, cfg.hidden, cfg.rnn_layers, batch_first=True, dropout=cfg.dropout)
        self.norm = nn.LayerNorm(cfg.hidden, eps=1e-3)

    def initial_state(self, static):
        """(layers, batch, hidden) for the states and the cells."""
        h = torch.tanh(self.init_h(static)).view(-1, self.layers, self.hidden).transpose(0, 1).contiguous()
        c = self.init_c(static).view(-1, self.layers, self.hidden).transpose(0, 1).contiguous()
        return h, c

    def forward(self, time_feat, static, context):
        batch, length, _ = time_feat.shape
        smoothed = self.smooth(time_feat.transpose(1, 2)).transpose(1, 2)
        repeated = static.unsqueeze(1).expand(-1, length, -1)
        x = torch.cat([time_feat, smoothed, age_feature(batch, length), repeated], dim=-1)
        x = self.proj(x).transpose(1, 2)
        skips = 0.0
        for block in self.blocks:
            x, skip = block(x)
            skips = skips + skip
        x = (x + skips / math.sqrt(len(self.blocks))).transpose(1, 2)

        past, state = self.rnn(x[:, :context], self.initial_state(static))
        future, _ = self.rnn(x[:, context:], state)
        return self.norm(torch.cat([past, future], dim=1) + x)


class LDSHead(nn.Module):
    """Hidden states to the free parameters of the state space model."""

    def __init__(self, hidden, season_length, prior_floor):
        super().__init__()
        self.season_length = season_length
        self.prior_floor = prior_floor
        self.fc = nn.Linear(hidden, hidden)
        self.act = nn.GELU()
        self.noise_std = nn.Linear(hidden, 1)
        self.innovation = nn.Linear(hidden, 3)  # level, trend, season
        self.damping = nn.Linear(hidden, 1)
        self.offset = nn.Linear(hidden, 1)
        self.prior_mean = nn.Linear(hidden, 2 + season_length)
        self.prior_std = nn.Linear(hidden, 2 + season_length)

    def forward(self, hidden):
        hidden = self.act(self.fc(hidden))
        noise_std = bounded(self.noise_std(hidden), *NOISE_STD_BOUNDS).squeeze(-1)
        innovation = bounded(self.innovation(hidden), *INNOVATION_BOUNDS)
        damping = bounded(self.damping(hidden), *DAMPING_BOUNDS).squeeze(-1)
        offset = self.offset(hidden).squeeze(-1)
        first = hidden[:, 0]
        level_trend, season = self.prior_mean(first).split([2, self.season_length], dim=-1)
        # the level is not the season's business
        prior_mean = torch.cat([level_trend, season - season.mean(dim=-1, keepdim=True)], dim=-1)
        prior_std = F.softplus(self.prior_std(first)) + self.prior_floor
        return noise_std, innovation, damping, offset, prior_mean, prior_std


class LevelTrendISSM(nn.Module):
    """Level and damped trend: l' = l + d b, b' = d b, observed is l + d b."""

    def forward(self, damping, innovation):
        ones, zeros = torch.ones_like(damping), torch.zeros_like(damping)
        emission = torch.stack([ones, damping], dim=-1)
        transition = torch.stack([emission, torch.stack([zeros, damping], dim=-1)], dim=-2)
        # the trend takes a share of its innovation only, the less the more it is damped
        return emission, transition, innovation * emission


class SeasonalISSM(nn.Module):
    """One state for each phase of the season; only the current one is observed and takes innovations."""

    def __init__(self, season_length):
        super().__init__()
        self.season_length = season_length
        self.log_gain = nn.Parameter(torch.zeros(season_length))

    def forward(self, start, innovation):
        batch, length = innovation.shape
        phase = (start[:, None] + torch.arange(length)[None, :]) % self.season_length
        emission = F.one_hot(phase, self.season_length).to(innovation.dtype)
        transition = torch.eye(self.season_length).expand(batch, length, -1, -1)
        innovation = emission * self.log_gain.exp() * innovation.unsqueeze(-1)
        return emission, transition, innovation


class CompositeISSM(nn.Module):
    """Level, trend and season as one state space model."""

    def __init__(self, season_length):
        super().__init__()
        self.level_trend = LevelTrendISSM()
        self.season = SeasonalISSM(season_length)

    def forward(self, start, noise_std, innovation, damping, offset, prior_mean, prior_std):
        emission_lt, transition_lt, innovation_lt = self.level_trend(damping, innovation[..., :2])
        emission_s, transition_s, innovation_s = self.season(start, innovation[..., 2])
        emission = torch.cat([emission_lt, emission_s], dim=-1)
        innovation = torch.cat([innovation_lt, innovation_s], dim=-1)
        transition = block_diag(transition_lt, transition_s)
        prior_cov = torch.diag_embed(prior_std.square())
        return LDS(prior_mean, prior_cov, emission, transition, innovation, noise_std, offset)


class KalmanFilter(nn.Module):
    """Filter with missing observations; covariances are updated in Joseph's form."""

    def forward(self, target, observed, lds):
        """Log densities (B, T), filtered moments, and predicted ones, whose entry t belongs to step t + 1."""
        mean, cov = lds.prior_mean, lds.prior_cov
        eye = torch.eye(mean.shape[-1])
        seen = observed.to(target.dtype)
        log_probs, means, covs, means_pred, covs_pred = [], [], [], [], []
        for t in range(target.shape[1]):
            emission, weight = lds.emission[:, t], seen[:, t]
            noise_var = lds.noise_std[:, t].square()
            cross = torch.matmul(cov, emission.unsqueeze(-1)).squeeze(-1)
            var = (emission * cross).sum(dim=-1) + noise_var
            residual = target[:, t] - lds.offset[:, t] - (emission * mean).sum(dim=-1)
            log_prob = -0.5 * (LOG_2PI + var.log() + residual.square() / var)
            gain = cross / var.unsqueeze(-1) * weight.unsqueeze(-1)
            mean = mean + gain * residual.unsqueeze(-1)
            keep = eye - gain.unsqueeze(-1) * emission.unsqueeze(-2)
            noise = noise_var[:, None, None] * gain.unsqueeze(-1) * gain.unsqueeze(-2)
            cov = keep @ cov @ keep.transpose(-1, -2) + noise
            cov = 0.5 * (cov + cov.transpose(-1, -2))
            log_probs.append(log_prob * weight)
            means.append(mean)
            covs.append(cov)

            transition = lds.transition[:, t]
            mean = torch.matmul(transition, mean.unsqueeze(-1)).squeeze(-1)
            cov = transition @ cov @ transition.transpose(-1, -2) + torch.diag_embed(lds.innovation[:, t].square())
            means_pred.append(mean)
            covs_pred.append(cov)
        filtered = torch.stack(means, dim=1), torch.stack(covs, dim=1)
        predicted = torch.stack(means_pred, dim=1), torch.stack(covs_pred, dim=1)
        return torch.stack(log_probs, dim=1), filtered, predicted


class RTSSmoother(nn.Module):
    """Rauch-Tung-Striebel smoother over what the filter has left behind."""

    def __init__(self, jitter):
        super().__init__()
        self.jitter = jitter

    def forward(self, filtered, predicted, transition):
        means, covs = filtered
        means_pred, covs_pred = predicted
        eye = torch.eye(means.shape[-1])
        mean, cov = means[:, -1], covs[:, -1]
        smoothed_means, smoothed_covs = [mean], [cov]
        for t in range(means.shape[1] - 2, -1, -1):
            chol = torch.linalg.cholesky(covs_pred[:, t] + self.jitter * eye)
            gain = torch.cholesky_solve(transition[:, t] @ covs[:, t], chol).transpose(-1, -2)
            mean = means[:, t] + torch.matmul(gain, (mean - means_pred[:, t]).unsqueeze(-1)).squeeze(-1)
            cov = covs[:, t] + gain @ (cov - covs_pred[:, t]) @ gain.transpose(-1, -2)
            smoothed_means.append(mean)
            smoothed_covs.append(cov)
        return torch.stack(smoothed_means[::-1], dim=1), torch.stack(smoothed_covs[::-1], dim=1)


def observe(mean, cov, lds):
    """Mean and standard deviation of the observations, given the moments of the states over time."""
    center = (lds.emission * mean).sum(dim=-1) + lds.offset
    var = torch.einsum("btd,btde,bte->bt", lds.emission, cov, lds.emission)
    return center, (var + lds.noise_std.square()).sqrt()


def sample_paths(mean, cov, lds, noise_state, noise_step, noise_obs):
    """Paths (S, B, H) from the moments of the first state, with noise (S, B, D), (S, B, H, D) and (S, B, H)."""
    chol = torch.linalg.cholesky(cov)
    state = mean + torch.einsum("bij,sbj->sbi", chol, noise_state)
    paths = []
    for h in range(noise_obs.shape[-1]):
        signal = (lds.emission[:, h] * state).sum(dim=-1) + lds.offset[:, h]
        paths.append(signal + lds.noise_std[:, h] * noise_obs[:, :, h])
        state = torch.einsum("bij,sbj->sbi", lds.transition[:, h], state)
        state = state + lds.innovation[:, h] * noise_step[:, :, h]
    return torch.stack(paths, dim=-1)


def weighted_quantile_loss(forecast, target, weight, levels):
    """Pinball loss of each level (Q,), relative to the weighted sum of the absolute target; forecast is (Q, B, H)."""
    below = (target <= forecast).to(forecast.dtype)
    pinball = 2.0 * ((forecast - target) * (below - levels.view(-1, 1, 1))).abs()
    return (pinball * weight).sum(dim=(1, 2)) / (target.abs() * weight).sum()


class DeepStateNet(nn.Module):
    """Encoder, state space model, filter, smoother and forecasts."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.register_buffer("levels", torch.tensor(cfg.quantiles), persistent=False)
        self.scaler = MeanScaler(cfg.minimum_scale)
        self.embedder = FeatureEmbedder(cfg.cardinality, cfg.embedding_dim)
        num_static = sum(cfg.embedding_dim) + cfg.num_static_real + 1
        self.encoder = CovariateEncoder(cfg.num_time_feat, num_static, cfg)
        self.head = LDSHead(cfg.hidden, cfg.season_length, cfg.prior_floor)
        self.issm = CompositeISSM(cfg.season_length)
        self.filter = KalmanFilter()
        self.smoother = RTSSmoother(cfg.jitter)

    def forward(self, past_target, past_observed, static_cat, static_real, time_feat, start, future_target,
                future_weight, noise_state, noise_step, noise_obs):
        context = past_target.shape[1]
        scale = self.scaler(past_target, past_observed)
        scaled = past_target / scale.unsqueeze(1)
        static = torch.cat([self.embedder(static_cat), static_real, scale.log().unsqueeze(1)], dim=-1)
        hidden = self.encoder(time_feat, static, context)
        lds = self.issm(start, *self.head(hidden))
        past, future = lds.slice(0, context), lds.slice(context, None)

        # the density of the series itself, hence the scale
        log_probs, filtered, predicted = self.filter(scaled, past_observed, past)
        count = past_observed.sum(dim=1)
        log_prob = log_probs.sum(dim=1) - count * scale.log()
        nll = -log_prob.sum() / count.sum().clamp(min=1.0)

        # the past, with gaps filled
        smoothed_mean, smoothed_cov = self.smoother(filtered, predicted, past.transition)
        center, spread = observe(smoothed_mean, smoothed_cov, past)
        center, spread = center * scale.unsqueeze(1), spread * scale.unsqueeze(1)
        imputed = torch.where(past_observed, past_target, center)

        # the horizon
        first_mean, first_cov = predicted[0][:, -1], predicted[1][:, -1]
        paths = sample_paths(first_mean, first_cov, future, noise_state, noise_step, noise_obs)
        paths = paths * scale.view(1, -1, 1)
        forecast = torch.quantile(paths, self.levels, dim=0)
        loss = weighted_quantile_loss(forecast, future_target, future_weight, self.levels)
        return log_prob, nll, imputed, spread, forecast, paths.mean(dim=0), loss


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, (nn.Linear, nn.Conv1d)):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, nn.LSTM):
            for parameter in module.parameters():
                nn.init.normal_(parameter, std=0.25)
        elif isinstance(module, (nn.BatchNorm1d, nn.LayerNorm)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
            if isinstance(module, nn.BatchNorm1d):
                nn.init.normal_(module.running_mean, std=0.2)
                nn.init.uniform_(module.running_var, 0.4, 1.2)
        elif isinstance(module, SeasonalISSM):
            nn.init.normal_(module.log_gain, std=0.4)
    net.head.prior_mean.weight.data *= 0.5
    net.head.prior_std.weight.data *= 0.5
    return net


def build():
    """The net with the same weights on every run, and five series; one has a long gap, one has never been observed."""
    torch.manual_seed(1805)
    cfg = Config()
    net = trained_like(DeepStateNet(cfg))

    rng = np.random.RandomState(24)
    batch, paths, length, size = 5, 12, cfg.context + cfg.horizon, 2 + cfg.season_length
    steps = np.arange(length)
    start = rng.randint(0, cfg.season_length, batch)
    series = 1.0 + 0.03 * steps * rng.randn(batch, 1)
    series += 0.5 * np.sin(2 * np.pi * (start[:, None] + steps) / cfg.season_length) + 0.2 * rng.randn(batch, length)
    series *= np.array([0.6, 1.0, 1.7, 2.4, 3.2])[:, None]
    observed = rng.rand(batch, cfg.context) > 0.2
    observed[1, 7:12] = False
    observed[3] = False
    time_feat = np.sin(steps[None, :, None] / np.array([1.1, 2.3, 4.0, 9.0]) + rng.randn(batch, 1, 1))
    static_cat = np.stack([rng.randint(0, c, batch) for c in cfg.cardinality], axis=1)
    static_real = rng.randn(batch, cfg.num_static_real)
    future_weight = rng.choice([0.5, 1.0, 2.0], (batch, cfg.horizon))
    noise_state, noise_obs = rng.randn(paths, batch, size), rng.randn(paths, batch, cfg.horizon)
    noise_step = rng.randn(paths, batch, cfg.horizon, size)
    past, future = np.where(observed, series[:, : cfg.context], 0.0), series[:, cfg.context :]
    arrays = (past, observed, static_cat, static_real, time_feat, start, future, future_weight, noise_state,
              noise_step, noise_obs)
    tensors = (torch.from_numpy(x) for x in arrays)
    return net.eval(), tuple(x.float() if x.is_floating_point() else x for x in tensors)
