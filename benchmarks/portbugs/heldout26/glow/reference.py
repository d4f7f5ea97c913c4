"""A conditional flow for small images (Glow with a low-resolution context and a mixture prior), in PyTorch."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

LOG_2PI = math.log(2 * math.pi)


class Config:
    """The small model of the appendix."""

    image_size, upscale, num_classes = (16, 24), 4, 5
    num_levels, num_steps, hidden = 3, 2, 24
    context_dim, embed_dim = 12, 10
    components, prior_hidden, max_logs = 3, 32, 2.5
    num_bits, alpha = 8, 0.05  # of the pixels
    tau_split, tau_top = 0.7, 0.85


def sum_except_batch(x):
    return x.flatten(1).sum(dim=1)


def split_feature(x, mode="split"):
    """Two halves of the channels, either one after the other or interleaved."""
    return x.chunk(2, dim=1) if mode == "split" else (x[:, 0::2], x[:, 1::2])


def gaussian_logp(mean, logs, x):
    """Elementwise log-density of a normal with the logarithm of its deviation."""
    return -0.5 * (LOG_2PI + 2.0 * logs + (x - mean) ** 2 * torch.exp(-2.0 * logs))


def soft_clamp(x, limit=1.0):
    return limit * 2.0 / math.pi * torch.atan(x / limit)


def concat_elu(x):
    """ELU of both signs; doubles the channels."""
    return F.elu(torch.cat((x, -x), dim=1))


def squeeze2d(x, factor=2):
    """Trade space for channels; the pixels of one channel's window stay next to each other."""
    b, c, h, w = x.shape
    x = x.view(b, c, h // factor, factor, w // factor, factor)
    return x.permute(0, 1, 3, 5, 2, 4).reshape(b, c * factor * factor, h // factor, w // factor)


def unsqueeze2d(x, factor=2):
    b, c, h, w = x.shape
    x = x.view(b, c // factor**2, factor, factor, h, w)
    return x.permute(0, 1, 4, 2, 5, 3).reshape(b, c // factor**2, h * factor, w * factor)


def checkerboard(height, width, parity):
    return ((torch.arange(height)[:, None] + torch.arange(width) + parity) % 2).float()[None, None]


class ZeroConv2d(nn.Module):
    """Last convolution of a net, with a learned and amplified scale of each output channel."""

    def __init__(self, in_channels, out_channels, logscale_factor=3.0):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.logs = nn.Parameter(torch.zeros(1, out_channels, 1, 1))
        self.logscale_factor = logscale_factor

    def forward(self, x):
        return self.conv(x) * torch.exp(self.logs * self.logscale_factor)


class GatedResidual(nn.Module):
    """Residual block, modulated by the label's embedding, with a gate at its end."""

    def __init__(self, channels, embed_dim):
        super().__init__()
        self.norm = nn.GroupNorm(6, channels)
        self.film = nn.Linear(embed_dim, 2 * channels)
        self.conv1 = nn.Conv2d(2 * channels, channels, 3, padding=1)
        self.act = nn.GELU()
        self.conv2 = nn.Conv2d(channels, 2 * channels, 1)

    def forward(self, x, embed):
        scale, shift = self.film(embed)[:, :, None, None].chunk(2, dim=1)
        h = self.act(self.conv1(concat_elu(self.norm(x) * (1.0 + scale) + shift)))
        value, gate = self.conv2(h).chunk(2, dim=1)
        return x + value * torch.sigmoid(gate)


class Conditioner(nn.Module):
    """From one half of the channels, the context and the label to the raw parameters of an affine map."""

    def __init__(self, in_channels, out_channels, cfg):
        super().__init__()
        self.conv_in = nn.Conv2d(in_channels + cfg.context_dim, cfg.hidden, 3, padding=1)
        self.block = GatedResidual(cfg.hidden, cfg.embed_dim)
        self.norm_out = nn.GroupNorm(1, cfg.hidden)
        self.conv_out = ZeroConv2d(cfg.hidden, out_channels)

    def forward(self, x, context, embed):
        h = self.block(self.conv_in(torch.cat((x, context), dim=1)), embed)
        return self.conv_out(F.relu(self.norm_out(h)))


class ContextEncoder(nn.Module):
    """Features of the low-resolution image on the grid of the pixels and on that of each level."""

    def __init__(self, cfg):
        super().__init__()
        dim = cfg.context_dim
        self.conv1 = nn.Conv2d(3, dim, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(dim)
        self.conv2 = nn.Conv2d(dim, dim, 3, padding=2, dilation=2)
        self.bn2 = nn.BatchNorm2d(dim)
        self.act = nn.GELU()
        self.pool = nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False)
        self.heads = nn.ModuleList([nn.Conv2d(dim, dim, 1) for _ in range(cfg.num_levels + 1)])

    def forward(self, low, grids):
        h = self.act(self.bn1(self.conv1(2.0 * low - 1.0)))
        h = h + self.act(self.bn2(self.conv2(h)))
        maps = []
        for head, (rows, cols) in zip(self.heads, grids):
            f = self.pool(h) if rows < h.shape[2] else h
            if rows > h.shape[2]:
                f = F.interpolate(h, size=(rows, cols), mode="bilinear", align_corners=False)
            maps.append(head(f))
        return maps, h.mean(dim=(2, 3))


class ActNorm(nn.Module):
    """Scale and bias of each channel."""

    def __init__(self, channels):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.logs = nn.Parameter(torch.zeros(1, channels, 1, 1))

    def forward(self, x, logdet, reverse=False):
        dlogdet = self.logs.sum() * x.shape[2] * x.shape[3]
        if reverse:
            return x * torch.exp(-self.logs) - self.bias, logdet - dlogdet
        return (x + self.bias) * torch.exp(self.logs), logdet + dlogdet


class InvertibleConv1x1(nn.Module):
    """Invertible 1x1 convolution by the decomposition W = P L (U + diag(s))."""

    def __init__(self, channels):
        super().__init__()
        p, l, u = torch.linalg.lu(torch.linalg.qr(torch.randn(channels, channels))[0])
        self.l = nn.Parameter(l)
        self.log_s = nn.Parameter(torch.log(torch.abs(torch.diagonal(u))))
        self.u = nn.Parameter(torch.triu(u, 1))
        self.register_buffer("p", p)
        self.register_buffer("sign_s", torch.sign(torch.diagonal(u)))

    def get_weight(self, reverse):
        eye = torch.eye(self.l.shape[0])
        l = torch.tril(self.l, -1) + eye
        u = torch.triu(self.u, 1) + torch.diag(self.sign_s * torch.exp(self.log_s))
        if not reverse:
            return self.p @ l @ u
        l_inv = torch.linalg.solve_triangular(l, eye, upper=False, unitriangular=True)
        return torch.linalg.solve_triangular(u, l_inv, upper=True) @ self.p.t()

    def forward(self, x, logdet, cache, reverse=False):
        if (self, reverse) not in cache:
            cache[self, reverse] = self.get_weight(reverse)
        x = F.conv2d(x, cache[self, reverse][:, :, None, None])
        dlogdet = self.log_s.sum() * x.shape[2] * x.shape[3]
        return x, logdet - dlogdet if reverse else logdet + dlogdet


class MaskedCoupling(nn.Module):
    """Affine coupling on a checkerboard of pixels (before any squeeze)."""

    def __init__(self, channels, parity, cfg):
        super().__init__()
        self.parity = parity
        self.net = Conditioner(channels, 2 * channels, cfg)
        self.rescale = nn.Parameter(torch.ones(channels, 1, 1))

    def forward(self, x, logdet, context, embed, reverse=False):
        mask = checkerboard(x.shape[2], x.shape[3], self.parity).to(x)
        raw_s, t = split_feature(self.net(x * mask, context, embed), "split")
        s, t = self.rescale * soft_clamp(raw_s) * (1.0 - mask), t * (1.0 - mask)
        if reverse:
            return (x - t) * torch.exp(-s), logdet - sum_except_batch(s)
        return x * torch.exp(s) + t, logdet + sum_except_batch(s)


class AffineCoupling(nn.Module):
    """Affine coupling of the halves of the channels; every other one swaps their roles."""

    def __init__(self, channels, swap, cfg):
        super().__init__()
        self.swap = swap
        self.net = Conditioner(channels // 2, channels, cfg)

    def forward(self, x, logdet, context, embed, reverse=False):
        a, b = split_feature(x, "split")[:: -1 if self.swap else 1]
        shift, raw = split_feature(self.net(a, context, embed), "cross")
        scale = torch.sigmoid(raw + 2.0)
        dlogdet = sum_except_batch(torch.log(scale))
        b = b / scale - shift if reverse else (b + shift) * scale
        x = torch.cat((b, a) if self.swap else (a, b), dim=1)
        return x, logdet - dlogdet if reverse else logdet + dlogdet


class FlowStep(nn.Module):
    """Activation normalisation, 1x1 convolution and coupling."""

    def __init__(self, channels, swap, cfg):
        super().__init__()
        self.actnorm = ActNorm(channels)
        self.invconv = InvertibleConv1x1(channels)
        self.coupling = AffineCoupling(channels, swap, cfg)

    def forward(self, x, logdet, context, embed, cache, reverse=False):
        if reverse:
            x, logdet = self.coupling(x, logdet, context, embed, reverse=True)
            return self.actnorm(*self.invconv(x, logdet, cache, reverse=True), reverse=True)
        return self.coupling(*self.invconv(*self.actnorm(x, logdet), cache), context, embed)


class Split2d(nn.Module):
    """Factors out half of the channels; their normal depends on the other half and on the context."""

    def __init__(self, channels, cfg):
        super().__init__()
        self.max_logs = cfg.max_logs
        self.prior = ZeroConv2d(channels // 2 + cfg.context_dim, channels)

    def forward(self, x, logp, context, eps=None, tau=1.0, reverse=False):
        z1, z2 = (x, None) if reverse else split_feature(x, "split")
        mean, raw = split_feature(self.prior(torch.cat((z1, context), dim=1)), "cross")
        logs = soft_clamp(raw, self.max_logs)
        if reverse:
            z2 = mean + torch.exp(logs) * tau * eps
            return torch.cat((z1, z2), dim=1), logp + sum_except_batch(gaussian_logp(mean, logs, z2))
        eps = (z2 - mean) * torch.exp(-logs)
        return z1, logp + sum_except_batch(gaussian_logp(mean, logs, z2)), eps


class MixturePrior(nn.Module):
    """Mixture of normals for the coarsest latent, given the label's embedding and the pooled context."""

    def __init__(self, shape, cfg):
        super().__init__()
        self.shape, self.components, self.max_logs = shape, cfg.components, cfg.max_logs
        self.fc1 = nn.Linear(cfg.embed_dim + cfg.context_dim, cfg.prior_hidden)
        self.norm = nn.LayerNorm(cfg.prior_hidden)
        self.fc2 = nn.Linear(cfg.prior_hidden, cfg.components * (1 + 2 * shape[0]))
        self.place = nn.Parameter(torch.zeros(1, 1, *shape))

    def parameters_of(self, embed, pooled):
        k, c = self.components, self.shape[0]
        h = self.fc2(F.silu(self.norm(self.fc1(torch.cat((embed, pooled), dim=-1)))))
        logits, stats = h[:, :k], h[:, k:].reshape(-1, k, 2, c, 1, 1)
        mean, logs = stats[:, :, 0] + self.place, soft_clamp(stats[:, :, 1], self.max_logs)
        return torch.log_softmax(logits, dim=1), mean, logs.expand_as(mean)

    def forward(self, embed, pooled, z=None, eps=None, choice=None, tau=1.0):
        """The log-density of z, or of a sample from the component whose cumulated weight first reaches the choice."""
        log_pi, mean, logs = self.parameters_of(embed, pooled)
        if z is None:
            cdf = log_pi.exp().cumsum(dim=1)
            index = (choice[:, None] > cdf).sum(dim=1).clamp(max=self.components - 1)
            index = index.view(-1, 1, 1, 1, 1).expand(-1, 1, *self.shape)
            z = mean.gather(1, index).squeeze(1) + logs.gather(1, index).squeeze(1).exp() * tau * eps
        logp = gaussian_logp(mean, logs, z.unsqueeze(1)).flatten(2).sum(dim=2)
        return z, torch.logsumexp(log_pi + logp, dim=1)


class ConditionalGlow(nn.Module):
    """Likelihoods of images, and samples, given a low-resolution image and a label."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        (height, width), channels = cfg.image_size, 3
        self.dims = channels * height * width
        self.pixel_logdet = self.dims * (math.log(1.0 - 2.0 * cfg.alpha) - cfg.num_bits * math.log(2.0))
        self.label_embed = nn.Embedding(cfg.num_classes, cfg.embed_dim)
        self.context = ContextEncoder(cfg)
        self.pixel_flows = nn.ModuleList([MaskedCoupling(3, parity, cfg) for parity in (0, 1)])
        self.levels, self.splits = nn.ModuleList(), nn.ModuleList()
        self.shapes = []  # of what the splits factor out, finest first, and of the coarsest latent
        for level in range(cfg.num_levels):
            channels *= 4
            self.levels.append(nn.ModuleList([FlowStep(channels, i % 2 == 1, cfg) for i in range(cfg.num_steps)]))
            if level < cfg.num_levels - 1:
                self.splits.append(Split2d(channels, cfg))
                channels //= 2
            self.shapes.append((channels, height >> level + 1, width >> level + 1))
        self.prior = MixturePrior(self.shapes[-1], cfg)

    def preprocess(self, image, noise):
        """Integers to logits: uniform dequantisation, then the logit of what is drawn in from 0 and 1."""
        x = (image + noise) / 2.0**self.cfg.num_bits
        x = self.cfg.alpha + (1.0 - 2.0 * self.cfg.alpha) * x
        logdet = sum_except_batch(-torch.log(x) - torch.log(1.0 - x)) + self.pixel_logdet
        return torch.log(x) - torch.log(1.0 - x), logdet

    def postprocess(self, x):
        """Logits to [0, 1], with the log-determinant of the map to the integers' scale."""
        logdet = sum_except_batch(-F.softplus(x) - F.softplus(-x)) - self.pixel_logdet
        return (torch.sigmoid(x) - self.cfg.alpha) / (1.0 - 2.0 * self.cfg.alpha), logdet

    def encode(self, x, logdet, maps, embed, cache):
        for flow in self.pixel_flows:
            x, logdet = flow(x, logdet, maps[0], embed)
        logp, residuals = torch.zeros_like(logdet), []
        for level, steps in enumerate(self.levels):
            x = squeeze2d(x)
            for step in steps:
                x, logdet = step(x, logdet, maps[level + 1], embed, cache)
            if level < len(self.splits):
                x, logp, eps = self.splits[level](x, logp, maps[level + 1])
                residuals.append(eps)
        return x, logdet, logp, residuals

    def decode(self, z, residuals, maps, embed, tau, cache):
        logdet = logp = z.new_zeros(z.shape[0])
        for level in reversed(range(len(self.levels))):
            if level < len(self.splits):
                z, logp = self.splits[level](z, logp, maps[level + 1], residuals[level], tau, reverse=True)
            for step in reversed(self.levels[level]):
                z, logdet = step(z, logdet, maps[level + 1], embed, cache, reverse=True)
            z = unsqueeze2d(z)
        for flow in reversed(self.pixel_flows):
            z, logdet = flow(z, logdet, maps[0], embed, reverse=True)
        return z, logdet, logp

    def cut_noise(self, noise):
        """The flat noise of a sample: that of the coarsest latent comes first, that of the finest split last."""
        pieces = noise.split([math.prod(shape) for shape in reversed(self.shapes)], dim=1)
        pieces = [piece.view(-1, *shape) for piece, shape in zip(pieces, reversed(self.shapes))]
        return pieces[0], pieces[:0:-1]

    def class_scores(self, z, pooled):
        """Per-dimension log-likelihood of the coarsest latent under each label."""
        b, n = z.shape[0], self.cfg.num_classes
        z, pooled = (a.repeat_interleave(n, dim=0) for a in (z, pooled))
        _, logp = self.prior(self.label_embed.weight.repeat(b, 1), pooled, z=z)
        return logp.view(b, n) / math.prod(self.shapes[-1])

    def forward(self, image, low, labels, dequant, noise, choice):
        cfg, cache = self.cfg, {}
        grids = [tuple(size >> level for size in cfg.image_size) for level in range(cfg.num_levels + 1)]
        maps, pooled = self.context(low, grids)
        embed = self.label_embed(labels)
        # likelihood of the images, and the way back
        x, logdet = self.preprocess(image, dequant)
        top, logdet, logp, residuals = self.encode(x, logdet, maps, embed, cache)
        bpd = -(logdet + logp + self.prior(embed, pooled, z=top)[1]) / (math.log(2.0) * self.dims)
        scores = self.class_scores(top, pooled)
        latents = torch.cat([eps.flatten(1) for eps in residuals] + [top.flatten(1)], dim=1)
        rebuilt, _ = self.postprocess(self.decode(top, residuals, maps, embed, 1.0, cache)[0])
        # samples from the given noise
        eps_top, eps_splits = self.cut_noise(noise)
        z, logp_top = self.prior(embed, pooled, eps=eps_top, choice=choice, tau=cfg.tau_top)
        y, logdet, logp = self.decode(z, eps_splits, maps, embed, cfg.tau_split, cache)
        sample, dlogdet = self.postprocess(y)
        sample_bpd = -(logp_top + logp - logdet - dlogdet) / (math.log(2.0) * self.dims)
        drift = (F.avg_pool2d(sample.clamp(0.0, 1.0), cfg.upscale) - low).abs().mean(dim=(1, 2, 3))
        return bpd, scores, latents, rebuilt, sample.clamp(0.0, 1.0), sample_bpd, drift


def trained_like(net):
    """Values as after some epochs, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.normal_(module.weight, std=1.2 * module.weight[0].numel() ** -0.5)
            nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, (nn.GroupNorm, nn.LayerNorm, nn.BatchNorm2d)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, ActNorm):
            nn.init.normal_(module.bias, std=0.15)
            nn.init.normal_(module.logs, mean=0.05, std=0.12)
        elif isinstance(module, InvertibleConv1x1):
            for parameter in (module.l, module.u, module.log_s):
                parameter.data += 0.1 * torch.randn(parameter.shape) / len(parameter) ** 0.5
        elif isinstance(module, MaskedCoupling):
            nn.init.uniform_(module.rescale, 0.3, 0.7)
    for module in net.modules():
        if isinstance(module, ZeroConv2d):
            module.conv.weight.data *= 0.3
            nn.init.normal_(module.logs, std=0.12)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.3, 1.5)
    net.prior.fc2.weight.data *= 0.5
    nn.init.normal_(net.prior.place, std=0.3)
    nn.init.normal_(net.label_embed.weight, std=0.8)
    return net


def build():
    """The net with the same weights on every run, and three images with what their likelihood and samples need."""
    torch.manual_seed(1807)
    cfg = Config()
    net = trained_like(ConditionalGlow(cfg))
    rng = np.random.default_rng(1807)
    (height, width), shape = cfg.image_size, (3, 3) + cfg.image_size
    phase = rng.uniform(0.0, 2.0 * np.pi, (2, 3, 3, 1, 1))
    waves = np.sin(0.3 * np.arange(height)[:, None] + phase[0]) + np.sin(0.25 * np.arange(width) + phase[1])
    image = np.rint(np.clip(128.0 + 48.0 * waves + 20.0 * rng.standard_normal(shape), 0.0, 255.0))
    low = image.reshape(3, 3, height // 4, 4, width // 4, 4).mean(axis=(3, 5)) / 255.0
    labels, choice = np.array([3, 0, 2]), np.array([0.12, 0.55, 0.91])
    dequant, noise = rng.random(shape), rng.standard_normal((3, net.dims))
    image, low, dequant, noise, choice = (torch.from_numpy(a).float() for a in (image, low, dequant, noise, choice))
    return net.eval(), (image, low, torch.from_numpy(labels), dequant, noise, choice)
