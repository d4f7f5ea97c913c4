"""A latent diffusion transformer for super-resolution: adaLN-Zero blocks, learned variance, DDIM and Heun samplers.

The backbone follows DiT, with long skips, register tokens and rotary positions; the loss follows the improved DDPM.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

# Scale of the autoencoder's latents, so that they have about unit variance.
LATENT_SCALE = 0.18215


class Config:
    """The hyperparameters of the smallest model."""

    latent_channels, patch_size, hidden_size, depth, num_heads, mlp_ratio = 4, 2, 64, 4, 4, 3
    num_classes, num_registers, base_grid, frequency_size, rope_theta = 10, 2, 4, 64, 100.0
    diffusion_steps, beta_start, beta_end = 1000, 1e-4, 0.02
    guidance, guidance_power, guidance_rescale = 3.0, 1.5, 0.6
    ddim_steps, ddim_eta = 4, 0.6
    heun_steps, sigma_min, sigma_max, rho, churn, churn_min, churn_max = 3, 0.1, 14.6, 7.0, 0.9, 0.2, 10.0
    threshold_quantile, latent_range = 0.97, 2.5


def sincos_2d(dim, grid_size, base_size):
    """Sine-cosine embedding of a grid (h, w) of patches, stretched to the base size: (h * w, dim)."""
    h, w = grid_size
    grid_h, grid_w = (np.arange(size, dtype=np.float64) / (size / base_size) for size in (h, w))
    omega = 1.0 / 10000 ** (np.arange(dim // 4, dtype=np.float64) / (dim / 4.0))
    parts = []
    for places in np.meshgrid(grid_w, grid_h):  # here w goes first
        out = np.einsum("m,d->md", places.reshape(-1), omega)
        parts += [np.sin(out), np.cos(out)]
    return np.concatenate(parts, axis=1)


def axial_rope(head_dim, grid_size, base_size, theta, num_prefix):
    """Cosines and sines for every token; half of a head's channels turn with the row, half with the column."""
    h, w = grid_size
    axis_dim = head_dim // 2
    freqs = 1.0 / theta ** (np.arange(0, axis_dim, 2, dtype=np.float64) / axis_dim)
    rows = np.repeat(np.arange(h)[:, None] / h * base_size * freqs, 2, axis=-1)
    cols = np.repeat(np.arange(w)[:, None] / w * base_size * freqs, 2, axis=-1)
    angles = np.concatenate([np.repeat(rows, w, axis=0), np.tile(cols, (h, 1))], axis=-1)
    angles = np.concatenate([np.zeros((num_prefix, head_dim)), angles], axis=0)
    return torch.from_numpy(np.cos(angles)).float(), torch.from_numpy(np.sin(angles)).float()


def rotate_pairs(x):
    """(x0, x1, x2, x3, ...) -> (-x1, x0, -x3, x2, ...)."""
    first, second = x.unflatten(-1, (-1, 2)).unbind(dim=-1)
    return torch.stack((-second, first), dim=-1).flatten(-2)


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class RMSNorm(nn.Module):
    """Root mean square normalisation over the last axis."""

    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps) * self.weight


class TimestepEmbedder(nn.Module):
    """Embeds scalar timesteps, which may be fractional."""

    def __init__(self, hidden_size, frequency_size):
        super().__init__()
        self.frequency_size = frequency_size
        self.mlp = nn.Sequential(nn.Linear(frequency_size, hidden_size), nn.SiLU(), nn.Linear(hidden_size, hidden_size))

    def forward(self, t, max_period=10000):
        half = self.frequency_size // 2
        freqs = torch.exp(-math.log(max_period) * torch.arange(half, dtype=torch.float64) / half).float()
        args = t[:, None].float() * freqs[None]
        return self.mlp(torch.cat([torch.cos(args), torch.sin(args)], dim=-1))


class LabelEmbedder(nn.Module):
    """Embeds class labels; one more row stands for no label."""

    def __init__(self, num_classes, hidden_size):
        super().__init__()
        self.num_classes = num_classes
        self.embedding_table = nn.Embedding(num_classes + 1, hidden_size)

    def forward(self, labels, force_drop_ids=None):
        if force_drop_ids is not None:
            labels = torch.where(force_drop_ids == 1, self.num_classes, labels)
        return self.embedding_table(labels)


class Attention(nn.Module):
    """Self-attention with normalised queries and keys and rotary positions."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.qkv = nn.Linear(dim, dim * 3)
        self.q_norm = RMSNorm(self.head_dim)
        self.k_norm = RMSNorm(self.head_dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, rope):
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        cos, sin = rope
        q = q * cos + rotate_pairs(q) * sin
        k = k * cos + rotate_pairs(k) * sin
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(b, n, c))


class DiTBlock(nn.Module):
    """A block with adaLN-Zero conditioning; the later half of the blocks takes a long skip."""

    def __init__(self, dim, num_heads, mlp_ratio, skip):
        super().__init__()
        self.skip_norm = nn.LayerNorm(2 * dim, eps=1e-6) if skip else None
        self.skip_linear = nn.Linear(2 * dim, dim) if skip else None
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.attn = Attention(dim, num_heads)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        act = nn.GELU(approximate="tanh")
        self.mlp = nn.Sequential(nn.Linear(dim, mlp_ratio * dim), act, nn.Linear(mlp_ratio * dim, dim))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))

    def forward(self, x, c, rope, skip=None):
        if skip is not None:
            x = self.skip_linear(self.skip_norm(torch.cat([x, skip], dim=-1)))
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = self.adaLN_modulation(c).chunk(6, dim=1)
        x = x + gate_msa.unsqueeze(1) * self.attn(modulate(self.norm1(x), shift_msa, scale_msa), rope)
        x = x + gate_mlp.unsqueeze(1) * self.mlp(modulate(self.norm2(x), shift_mlp, scale_mlp))
        return x


class FinalLayer(nn.Module):
    """Tokens to the pixels of their patches."""

    def __init__(self, dim, patch_size, out_channels):
        super().__init__()
        self.norm_final = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.linear = nn.Linear(dim, patch_size**2 * out_channels)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(dim, 2 * dim))

    def forward(self, x, c):
        shift, scale = self.adaLN_modulation(c).chunk(2, dim=1)
        return self.linear(modulate(self.norm_final(x), shift, scale))


class DiT(nn.Module):
    """The denoiser: noisy latents, timesteps, labels and small latents to the noise and the variance's fraction."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg, dim = cfg, cfg.hidden_size
        self.out_channels = 2 * cfg.latent_channels
        self.upsample = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.x_embedder = nn.Conv2d(2 * cfg.latent_channels, dim, cfg.patch_size, stride=cfg.patch_size)
        self.t_embedder = TimestepEmbedder(dim, cfg.frequency_size)
        self.y_embedder = LabelEmbedder(cfg.num_classes, dim)
        self.registers = nn.Parameter(torch.zeros(1, cfg.num_registers, dim))
        self.blocks = nn.ModuleList(
            [DiTBlock(dim, cfg.num_heads, cfg.mlp_ratio, skip=i >= cfg.depth // 2) for i in range(cfg.depth)]
        )
        self.final_layer = FinalLayer(dim, cfg.patch_size, self.out_channels)
        self.refine = nn.Conv2d(self.out_channels, self.out_channels, 3, padding=2, dilation=2)
        self._positions = {}

    def positions(self, grid):
        """The tables for a grid of patches, made once for each."""
        if grid not in self._positions:
            cfg, head_dim = self.cfg, self.blocks[0].attn.head_dim
            pos = torch.from_numpy(sincos_2d(cfg.hidden_size, grid, cfg.base_grid)).float()
            rope = axial_rope(head_dim, grid, cfg.base_grid, cfg.rope_theta, cfg.num_registers)
            self._positions[grid] = (pos, rope)
        return self._positions[grid]

    def unpatchify(self, x, grid):
        (h, w), p, c = grid, self.cfg.patch_size, self.out_channels
        x = torch.einsum("nhwpqc->nchpwq", x.reshape(x.shape[0], h, w, p, p, c))
        return x.reshape(x.shape[0], c, h * p, w * p)

    def forward(self, x, t, y, low_res, force_drop_ids=None):
        x = self.x_embedder(torch.cat([x, self.upsample(low_res)], dim=1))
        grid, x = tuple(x.shape[2:]), x.flatten(2).transpose(1, 2)
        pos, rope = self.positions(grid)
        x = torch.cat([self.registers.expand(x.shape[0], -1, -1), x + pos], dim=1)
        c = self.t_embedder(t) + self.y_embedder(y, force_drop_ids)
        skips = []
        for i, block in enumerate(self.blocks):
            if i < self.cfg.depth // 2:
                x = block(x, c, rope)
                skips.append(x)
            else:
                x = block(x, c, rope, skips.pop())
        x = self.unpatchify(self.final_layer(x, c)[:, self.cfg.num_registers :], grid)
        return x + self.refine(x)


class NoiseSchedule:
    """A linear schedule of betas and what follows from it; computed in float64."""

    def __init__(self, cfg):
        self.num_timesteps = cfg.diffusion_steps
        betas = np.linspace(cfg.beta_start, cfg.beta_end, cfg.diffusion_steps, dtype=np.float64)
        alphas = 1.0 - betas
        self.betas, self.alphas_cumprod = betas, np.cumprod(alphas)
        self.alphas_cumprod_prev = np.append(1.0, self.alphas_cumprod[:-1])
        # the posterior q(x_{t-1} | x_t, x_0); its variance is 0 at the beginning of the chain
        self.posterior_variance = betas * (1.0 - self.alphas_cumprod_prev) / (1.0 - self.alphas_cumprod)
        self.posterior_log_variance_clipped = np.log(np.append(self.posterior_variance[1], self.posterior_variance[1:]))
        self.posterior_mean_coef1 = betas * np.sqrt(self.alphas_cumprod_prev) / (1.0 - self.alphas_cumprod)
        self.posterior_mean_coef2 = (1.0 - self.alphas_cumprod_prev) * np.sqrt(alphas) / (1.0 - self.alphas_cumprod)
        self.log_sigmas = 0.5 * np.log(1.0 / self.alphas_cumprod - 1.0)  # of the noise relative to the data

    def sigma_to_t(self, sigma):
        """The fractional timestep at which the noise, relative to the data, has this deviation."""
        log_sigma = np.log(sigma)
        low = int(np.clip(np.searchsorted(self.log_sigmas, log_sigma) - 1, 0, self.num_timesteps - 2))
        below, above = self.log_sigmas[low : low + 2]
        weight = float(np.clip((below - log_sigma) / (below - above), 0.0, 1.0))
        return (1.0 - weight) * low + weight * (low + 1)


def extract(table, t):
    """The table's values at the timesteps t, with axes of one for broadcasting."""
    return torch.from_numpy(table)[t].float().reshape(-1, 1, 1, 1)


def approx_standard_normal_cdf(x):
    return 0.5 * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def discretized_gaussian_log_likelihood(x, means, log_scales):
    """Log-likelihood of values in bins of 1 / 127.5 under a normal distribution, in float64 for its tails."""
    centered_x, inv_stdv = (x - means).double(), torch.exp(-log_scales.double())
    cdf_plus = approx_standard_normal_cdf(inv_stdv * (centered_x + 1.0 / 255.0))
    cdf_min = approx_standard_normal_cdf(inv_stdv * (centered_x - 1.0 / 255.0))
    log_cdf_plus = torch.log(cdf_plus.clamp(min=1e-12))
    log_one_minus_cdf_min = torch.log((1.0 - cdf_min).clamp(min=1e-12))
    log_delta = torch.log((cdf_plus - cdf_min).clamp(min=1e-12))
    return torch.where(x < -2.499, log_cdf_plus, torch.where(x > 2.499, log_one_minus_cdf_min, log_delta))


def dynamic_threshold(x, quantile, limit):
    """Pull a prediction of the data back into the range when a sample's large values leave it."""
    size = torch.quantile(x.abs().flatten(1), quantile, dim=1).clamp(min=limit).reshape(-1, 1, 1, 1)
    return torch.maximum(torch.minimum(x, size), -size) * (limit / size)


class Process(nn.Module):
    """Something that follows the schedule."""

    def __init__(self, schedule, cfg):
        super().__init__()
        self.schedule, self.cfg = schedule, cfg


class HybridLoss(Process):
    """The mean squared error of the noise, plus the variational bound that the variance learns from."""

    def forward(self, model_output, x_start, x_t, t, noise):
        s = self.schedule
        eps, var_values = model_output.chunk(2, dim=1)
        mse = ((noise - eps) ** 2).mean(dim=(1, 2, 3))
        true_mean = extract(s.posterior_mean_coef1, t) * x_start + extract(s.posterior_mean_coef2, t) * x_t
        true_log_variance = extract(s.posterior_log_variance_clipped, t)
        eps = eps.detach()  # the bound teaches the variance only
        frac = (var_values + 1) / 2
        log_variance = frac * extract(np.log(s.betas), t) + (1 - frac) * true_log_variance
        sigma = extract(np.exp(s.log_sigmas), t)
        pred_xstart = torch.sqrt(1.0 + sigma**2) * x_t - sigma * eps
        mean = extract(s.posterior_mean_coef1, t) * pred_xstart + extract(s.posterior_mean_coef2, t) * x_t
        kl = torch.exp(true_log_variance - log_variance) + (true_mean - mean) ** 2 * torch.exp(-log_variance)
        kl = (0.5 * (log_variance - true_log_variance + kl - 1.0)).mean(dim=(1, 2, 3))
        log_likelihood = discretized_gaussian_log_likelihood(x_start, mean, 0.5 * log_variance)
        decoder_nll = -log_likelihood.mean(dim=(1, 2, 3)).float()
        vb = torch.where(t == 0, decoder_nll, kl) / math.log(2.0)
        return mse, vb, (mse + vb * (s.num_timesteps / 1000.0)).mean()


class DDIMSampler(Process):
    """Denoising along a subsequence of the timesteps."""

    def forward(self, x, noises, predict):
        s, cfg = self.schedule, self.cfg
        steps = np.linspace(0, s.num_timesteps - 1, cfg.ddim_steps).round().astype(int)
        for i, noise in zip(reversed(range(len(steps))), noises):
            alpha_bar = s.alphas_cumprod[steps[i]]
            alpha_bar_prev = s.alphas_cumprod[steps[i - 1]] if i > 0 else 1.0
            eps = predict(x, float(steps[i]))
            pred_xstart = (x - math.sqrt(1.0 - alpha_bar) * eps) / math.sqrt(alpha_bar)
            pred_xstart = dynamic_threshold(pred_xstart, cfg.threshold_quantile, cfg.latent_range)
            eps = (x - math.sqrt(alpha_bar) * pred_xstart) / math.sqrt(1.0 - alpha_bar)
            sigma = cfg.ddim_eta * math.sqrt((1 - alpha_bar_prev) / (1 - alpha_bar) * (1 - alpha_bar / alpha_bar_prev))
            x = math.sqrt(alpha_bar_prev) * pred_xstart + math.sqrt(1.0 - alpha_bar_prev - sigma**2) * eps
            x = x + sigma * noise
        return x


class HeunSampler(Process):
    """Heun's method with churn over the deviations of the noise (Karras et al., algorithm 2)."""

    def sigmas(self):
        cfg = self.cfg
        ramp = np.linspace(0, 1, cfg.heun_steps)
        low, high = cfg.sigma_min ** (1 / cfg.rho), cfg.sigma_max ** (1 / cfg.rho)
        return np.append((high + ramp * (low - high)) ** cfg.rho, 0.0)

    def derivative(self, x, sigma, predict):
        eps = predict(x / math.sqrt(sigma**2 + 1.0), self.schedule.sigma_to_t(sigma))
        denoised = dynamic_threshold(x - sigma * eps, self.cfg.threshold_quantile, self.cfg.latent_range)
        return (x - denoised) / sigma

    def forward(self, x, noises, predict):
        sigmas = self.sigmas()
        x = x * float(sigmas[0])
        for i, noise in enumerate(noises):
            sigma, sigma_next = float(sigmas[i]), float(sigmas[i + 1])
            churned = self.cfg.churn_min <= sigma <= self.cfg.churn_max
            gamma = min(self.cfg.churn / self.cfg.heun_steps, math.sqrt(2.0) - 1.0) if churned else 0.0
            sigma_hat = sigma * (1.0 + gamma)
            x = x + noise * math.sqrt(sigma_hat**2 - sigma**2)
            slope = self.derivative(x, sigma_hat, predict)
            x_next = x + slope * (sigma_next - sigma_hat)
            if sigma_next > 0:
                slope_next = self.derivative(x_next, sigma_next, predict)
                x_next = x + (slope + slope_next) / 2 * (sigma_next - sigma_hat)
            x = x_next
        return x


class LatentDiffusion(nn.Module):
    """The denoiser with its loss and its samplers; samples stay in the scaled latent space."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg, self.schedule = cfg, NoiseSchedule(cfg)
        self.model = DiT(cfg)
        self.loss = HybridLoss(self.schedule, cfg)
        self.ddim = DDIMSampler(self.schedule, cfg)
        self.heun = HeunSampler(self.schedule, cfg)

    def guided_noise(self, x, t, y, low_res):
        """Classifier-free guidance that grows along the chain, with the deviation drawn back to the conditional one."""
        cfg = self.cfg
        y_null = torch.full_like(y, cfg.num_classes)
        times = torch.full((2 * x.shape[0],), t)
        out = self.model(torch.cat([x, x]), times, torch.cat([y, y_null]), torch.cat([low_res, low_res]))
        eps = out[:, : cfg.latent_channels]
        cond_eps, uncond_eps = eps.chunk(2, dim=0)
        progress = (1.0 - t / self.schedule.num_timesteps) ** cfg.guidance_power
        scale = 1.0 + (cfg.guidance - 1.0) * 0.5 * (1.0 - math.cos(math.pi * progress))
        guided = uncond_eps + scale * (cond_eps - uncond_eps)
        rescaled = guided * cond_eps.std(dim=(1, 2, 3), keepdim=True) / guided.std(dim=(1, 2, 3), keepdim=True)
        return cfg.guidance_rescale * rescaled + (1.0 - cfg.guidance_rescale) * guided

    def forward(self, latents, low_res, labels, drop_ids, t, noise, start, ddim_noise, heun_noise):
        x_start, low_res = latents * LATENT_SCALE, low_res * LATENT_SCALE
        alpha_bar = self.schedule.alphas_cumprod
        x_t = extract(np.sqrt(alpha_bar), t) * x_start + extract(np.sqrt(1.0 - alpha_bar), t) * noise
        model_output = self.model(x_t, t, labels, low_res, drop_ids)
        mse, vb, loss = self.loss(model_output, x_start, x_t, t, noise)
        count = start.shape[0]
        predict = partial(self.guided_noise, y=labels[:count], low_res=low_res[:count])
        return model_output, mse, vb, loss, self.ddim(start, ddim_noise, predict), self.heun(start, heun_noise, predict)


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    nn.init.normal_(net.model.registers, std=0.5)
    nn.init.normal_(net.model.y_embedder.embedding_table.weight, std=0.8)
    for name, module in net.named_modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            gain = 0.8 if "adaLN" in name else 3.0 if "blocks" in name and "mlp.2" in name else 1.0
            nn.init.normal_(module.weight, std=gain * module.weight[0].numel() ** -0.5)
            nn.init.normal_(module.bias, mean=0.3 if "adaLN" in name else 0.0, std=0.1)
        elif "skip_norm" in name or "q_norm" in name or "k_norm" in name:
            nn.init.uniform_(module.weight, 0.5, 1.7)
            if getattr(module, "bias", None) is not None:
                nn.init.normal_(module.bias, std=0.15)
    net.model.final_layer.linear.weight.data *= 0.6
    net.model.refine.weight.data *= 0.5
    return net


def build():
    """The net with the same weights on every run, three latents to learn from, of which two are sampled as well."""
    torch.manual_seed(2212)
    cfg = Config()
    net = trained_like(LatentDiffusion(cfg))
    rng = np.random.default_rng(9748)

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    low_res = 4.0 * normal(3, 4, 6, 8)
    latents = 0.8 * low_res.repeat(2, axis=2).repeat(2, axis=3) + 2.0 * normal(3, 4, 12, 16)
    labels, drop_ids, t = np.array([3, 7, 1]), np.array([0, 0, 1]), np.array([0, 417, 902])
    noise, start = normal(3, 4, 12, 16), normal(2, 4, 12, 16)
    ddim_noise, heun_noise = normal(cfg.ddim_steps, 2, 4, 12, 16), normal(cfg.heun_steps, 2, 4, 12, 16)
    arrays = (latents, low_res, labels, drop_ids, t, noise, start, ddim_noise, heun_noise)
    return net.eval(), tuple(torch.from_numpy(array) for array in arrays)
