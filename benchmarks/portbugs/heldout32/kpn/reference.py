"""Burst denoising by predicted kernels: align, predict full and separable kernels for each pixel, blend (PyTorch)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

# linear sensor colours to linear sRGB; the rows sum to one
COLOR_MATRIX = ((1.6605, -0.4876, -0.1729), (-0.1746, 1.4204, -0.2458), (-0.0182, -0.5283, 1.5465))
LUMA = (0.2126, 0.7152, 0.0722)
BLACK_LEVEL = 64.0


class Config:
    num_frames = 5
    channels = 3
    widths = (16, 24, 32)
    gate_reduction = 4
    full_size = 3
    sep_size = 7
    tile = 8
    coarse_radius = 2
    fine_radius = 2
    shift_penalty = 2e-4
    anneal_start = 10.0
    anneal_decay = 0.9998
    linear_weight = 4.0
    gradient_weight = 0.5
    saturation = 0.85
    border = 2


def noise_variance(linear, read, shot):
    """Read noise is given as a deviation, shot noise as variance per unit of signal; (batch,) each."""
    shape = (-1,) + (1,) * (linear.ndim - 1)
    return read.view(shape) ** 2 + shot.view(shape) * linear.clamp(min=0.0)


def srgb_gamma(x):
    """The transfer curve of sRGB, with its linear foot."""
    x = x.clamp(0.0, 1.0)
    return torch.where(x <= 0.0031308, x * 12.92, 1.055 * x.clamp(min=1e-6) ** (1 / 2.4) - 0.055)


def pad_to_multiple(x, multiple):
    """Reflect at the bottom and at the right, so that both sides are multiples."""
    h, w = x.shape[-2:]
    pad_h, pad_w = -h % multiple, -w % multiple
    flat = F.pad(x.reshape(-1, *x.shape[-3:]), (0, pad_w, 0, pad_h), mode="reflect")
    return flat.reshape(*x.shape[:-2], h + pad_h, w + pad_w)


class HalfSize(nn.Module):
    """Binomial blur and every second pixel."""

    def __init__(self):
        super().__init__()
        line = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0]) / 16
        self.register_buffer("kernel", torch.outer(line, line)[None, None], persistent=False)

    def forward(self, x):
        x = F.pad(x.unsqueeze(1), (2, 2, 2, 2), mode="replicate")
        return F.conv2d(x, self.kernel, stride=2).squeeze(1)


class BlockMatcher(nn.Module):
    """For each tile, the shift around a start with the least mean absolute difference."""

    def __init__(self, tile, radius, penalty):
        super().__init__()
        self.tile, self.radius, self.penalty = tile, radius, penalty

    def forward(self, ref, alt, start):
        """ref and alt are (batch, height, width), start (batch, rows, columns, 2) whole shifts (y, x)."""
        b, h, w = ref.shape
        tile, r = self.tile, self.radius
        ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        base = start.repeat_interleave(tile, dim=1).repeat_interleave(tile, dim=2)
        costs = []
        for dy in range(-r, r + 1):
            for dx in range(-r, r + 1):
                y = (ys + base[..., 0] + dy).clamp(0, h - 1)
                x = (xs + base[..., 1] + dx).clamp(0, w - 1)
                moved = alt.flatten(1).gather(1, (y * w + x).flatten(1)).view(b, h, w)
                cost = (moved - ref).abs().view(b, h // tile, tile, w // tile, tile).mean(dim=(2, 4))
                costs.append(cost + self.penalty * (dy * dy + dx * dx))
        costs = torch.stack(costs, dim=-1)
        best = costs.argmin(dim=-1)
        side = 2 * r + 1
        offset = torch.stack((best // side - r, best % side - r), dim=-1)
        return start + offset, self.vertex(costs, best, side)

    def vertex(self, costs, best, side):
        """The fraction of a pixel by a parabola through the best cost and its two neighbours, along y and along x."""
        def pick(index):
            return costs.gather(-1, index.clamp(0, side * side - 1).unsqueeze(-1)).squeeze(-1)

        middle = pick(best)
        fractions = []
        for step, place in ((side, best // side), (1, best % side)):
            before, after = pick(best - step), pick(best + step)
            curve = (before - 2 * middle + after).clamp(min=1e-4)
            fraction = (0.5 * (before - after) / curve).clamp(-0.5, 0.5)
            inside = (place > 0) & (place < side - 1)
            fractions.append(torch.where(inside, fraction, torch.zeros_like(fraction)))
        return torch.stack(fractions, dim=-1)


class AlignBurst(nn.Module):
    """Brings all frames onto the first one, tile by tile, and tells how well each pixel fits."""

    def __init__(self, cfg):
        super().__init__()
        self.tile = cfg.tile
        self.register_buffer("luma", torch.tensor(LUMA).view(1, 1, 3, 1, 1), persistent=False)
        self.shrink = HalfSize()
        self.coarse = BlockMatcher(cfg.tile // 2, cfg.coarse_radius, cfg.shift_penalty)
        self.fine = BlockMatcher(cfg.tile, cfg.fine_radius, cfg.shift_penalty)
        self.smooth = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)

    def warp(self, frame, flow):
        """frame (batch, channels, height, width), flow (batch, rows, columns, 2)."""
        h, w = frame.shape[-2:]
        flow = F.interpolate(flow.permute(0, 3, 1, 2), scale_factor=self.tile, mode="bilinear", align_corners=False)
        ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        y, x = ys + flow[:, 0], xs + flow[:, 1]
        grid = torch.stack((2 * x / (w - 1) - 1, 2 * y / (h - 1) - 1), dim=-1)
        return F.grid_sample(frame, grid, mode="bilinear", padding_mode="border", align_corners=True)

    def confidence(self, aligned, variance):
        """One where the difference to the first frame is no more than noise, less beyond that."""
        luma = (aligned * self.luma).sum(dim=2)
        expected = 2 * (variance * self.luma[0] ** 2).sum(dim=1, keepdim=True)
        error = self.smooth((luma - luma[:, :1]) ** 2)
        return 1 / (1 + F.relu(error / expected - 1))

    def forward(self, frames, variance, valid):
        b, t, _, h, w = frames.shape
        luma = (frames * self.luma).sum(dim=2)
        ref, ref_half = luma[:, 0], self.shrink(luma[:, 0])
        prior = torch.zeros(b, h // self.tile, w // self.tile, 2, dtype=torch.long)
        flows, aligned = [prior.to(frames.dtype)], [frames[:, 0]]
        for i in range(1, t):
            # the hand moves on as it did: the search starts where the last frame that is there was found
            start = torch.div(prior, 2, rounding_mode="floor")
            coarse, _ = self.coarse(ref_half, self.shrink(luma[:, i]), start)
            found, fraction = self.fine(ref, luma[:, i], coarse * 2)
            there = valid[:, i, None, None, None]
            prior = torch.where(there, found, prior)
            flow = prior + torch.where(there, fraction, torch.zeros_like(fraction))
            flows.append(flow)
            aligned.append(self.warp(frames[:, i], flow))
        aligned = torch.stack(aligned, dim=1) * valid[:, :, None, None, None]
        fits = self.confidence(aligned, variance) * valid[:, :, None, None]
        return aligned, fits, torch.stack(flows, dim=1)


class ConvUnit(nn.Module):
    def __init__(self, cin, cout, dilation=1):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, padding=dilation, dilation=dilation, bias=False)
        self.bn = nn.BatchNorm2d(cout, eps=1e-3)
        self.act = nn.LeakyReLU(0.1)

    def forward(self, x):
        return self.act(self.bn(self.conv(x)))


class ChannelGate(nn.Module):
    """Gate for each channel from its mean and its maximum, through one perceptron."""

    def __init__(self, channels, reduction):
        super().__init__()
        self.fc1 = nn.Linear(channels, channels // reduction)
        self.fc2 = nn.Linear(channels // reduction, channels)

    def forward(self, x):
        pooled = x.mean(dim=(2, 3)), x.amax(dim=(2, 3))
        logits = sum(self.fc2(F.relu(self.fc1(p))) for p in pooled)
        return x * torch.sigmoid(logits)[:, :, None, None]


class SpatialGate(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 1, 7, padding=3)

    def forward(self, x):
        pooled = torch.cat((x.amax(dim=1, keepdim=True), x.mean(dim=1, keepdim=True)), dim=1)
        return x * torch.sigmoid(self.conv(pooled))


class Stage(nn.Module):
    """Two convolutions; the second one is gated and added to the first one's result."""

    def __init__(self, cin, cout, reduction):
        super().__init__()
        self.unit = ConvUnit(cin, cout)
        self.conv = nn.Conv2d(cout, cout, 3, padding=1)
        self.channel_gate = ChannelGate(cout, reduction)
        self.spatial_gate = SpatialGate()
        self.act = nn.PReLU(cout)

    def forward(self, x):
        x = self.unit(x)
        return self.act(x + self.spatial_gate(self.channel_gate(self.conv(x))))


class EncoderDecoder(nn.Module):
    """U-shaped, two halvings; skips are concatenated."""

    def __init__(self, cin, widths, reduction):
        super().__init__()
        w1, w2, w3 = widths
        self.stem = ConvUnit(cin, w1)
        self.enc1 = Stage(w1, w1, reduction)
        self.down1 = nn.AvgPool2d(2)
        self.enc2 = Stage(w1, w2, reduction)
        self.down2 = nn.MaxPool2d(2)
        self.enc3 = Stage(w2, w3, reduction)
        self.context = nn.Conv2d(w3, w3, 3, padding=2, dilation=2)
        self.context_norm = nn.GroupNorm(4, w3)
        self.up2 = nn.ConvTranspose2d(w3, w2, 4, stride=2, padding=1)
        self.dec2 = Stage(2 * w2, w2, reduction)
        self.up1 = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.dec1 = Stage(w2 + w1, w1, reduction)

    def forward(self, x):
        skip1 = self.enc1(self.stem(x))
        skip2 = self.enc2(self.down1(skip1))
        x = self.enc3(self.down2(skip2))
        x = x + F.gelu(self.context_norm(self.context(x)))
        x = self.dec2(torch.cat((self.up2(x), skip2), dim=1))
        return self.dec1(torch.cat((self.up1(x), skip1), dim=1))


class KernelHeads(nn.Module):
    """All that is predicted for a pixel: kernels, how to mix them, how to blend the frames, and what to add."""

    def __init__(self, width, cfg):
        super().__init__()
        t = cfg.num_frames
        self.frames = t
        self.hidden = ConvUnit(width, width)
        self.full = nn.Conv2d(width, t * cfg.full_size**2, 1)
        self.vertical = nn.Conv2d(width, t * cfg.sep_size, 1)
        self.horizontal = nn.Conv2d(width, t * cfg.sep_size, 1)
        self.mix = nn.Conv2d(width, t, 1)
        self.blend = nn.Conv2d(width, t, 1)
        self.offset = nn.Conv2d(width, t * cfg.channels, 1)

    def split(self, x):
        return x.reshape(x.shape[0], self.frames, -1, *x.shape[-2:])

    def forward(self, x):
        x = self.hidden(x)
        full = self.split(self.full(x)).softmax(dim=2)
        # signed taps, so that these kernels can sharpen
        lines = self.split(self.vertical(x)), self.split(self.horizontal(x))
        vertical, horizontal = (k / k.abs().sum(dim=2, keepdim=True).clamp(min=1e-3) for k in lines)
        mix = torch.sigmoid(self.split(self.mix(x)))
        return full, vertical, horizontal, mix, self.blend(x), torch.tanh(self.split(self.offset(x)))


class ApplyKernels(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, frames, kernels):
        """Kernels (batch, frames, size * size, height, width) are shared by all channels of a frame."""
        b, t, c, h, w = frames.shape
        side = self.size // 2
        padded = F.pad(frames.reshape(b * t, c, h, w), (side, side, side, side), mode="replicate")
        patches = F.unfold(padded, self.size).reshape(b, t, c, self.size**2, h, w)
        return (patches * kernels.unsqueeze(2)).sum(dim=3)


class ApplySeparable(nn.Module):
    """The kernel is a column times a row."""

    def __init__(self, size):
        super().__init__()
        self.apply_full = ApplyKernels(size)

    def forward(self, frames, vertical, horizontal):
        kernels = torch.einsum("btihw,btjhw->btijhw", vertical, horizontal)
        return self.apply_full(frames, kernels.flatten(2, 3))


class AnnealedLoss(nn.Module):
    """Squares in linear space, squares and gradients in gamma space; the frames' own terms fade with the steps."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.register_buffer("matrix", torch.tensor(COLOR_MATRIX), persistent=False)

    def render(self, linear):
        return srgb_gamma(torch.einsum("ij,...jhw->...ihw", self.matrix, linear))

    def pixel_mask(self, target):
        """Neither saturated nor at the border: (batch, 1, height, width)."""
        mask = (target.amax(dim=1, keepdim=True) < self.cfg.saturation).to(target.dtype)
        n = self.cfg.border
        return F.pad(mask[..., n:-n, n:-n], (n, n, n, n))

    def masked_mean(self, error, mask):
        mask = mask.expand_as(error)
        return (error * mask).sum(dim=(-3, -2, -1)) / mask.sum(dim=(-3, -2, -1)).clamp(min=1.0)

    def basic(self, linear, target, mask):
        squares = self.masked_mean((linear - target) ** 2, mask)
        error = self.render(linear) - self.render(target)
        gamma = self.masked_mean(error**2, mask)
        dx, dy = error[..., :, 1:] - error[..., :, :-1], error[..., 1:, :] - error[..., :-1, :]
        mask_x, mask_y = mask[..., :, 1:] * mask[..., :, :-1], mask[..., 1:, :] * mask[..., :-1, :]
        gradient = self.masked_mean(dx.abs(), mask_x) + self.masked_mean(dy.abs(), mask_y)
        return self.cfg.linear_weight * squares + gamma + self.cfg.gradient_weight * gradient

    def forward(self, merged, single, target, valid, step):
        mask = self.pixel_mask(target)
        final = self.basic(merged, target, mask)
        each = self.basic(single, target.unsqueeze(1), mask.unsqueeze(1))
        weight = valid.to(each.dtype)
        each = (each * weight).sum(dim=1) / weight.sum(dim=1)
        factor = self.cfg.anneal_start * self.cfg.anneal_decay**step
        loss = (final + factor * each).mean()
        squares = self.masked_mean((self.render(merged) - self.render(target)) ** 2, mask)
        psnr = -10 * torch.log10(squares.clamp(min=1e-10))
        return loss, final, each, psnr


class BurstKPN(nn.Module):
    """Kernel prediction for bursts of colour frames with missing ones."""

    def __init__(self, cfg):
        super().__init__()
        t, c = cfg.num_frames, cfg.channels
        self.multiple = cfg.tile
        self.align = AlignBurst(cfg)
        self.unet = EncoderDecoder(t * c + t + c, cfg.widths, cfg.gate_reduction)
        self.heads = KernelHeads(cfg.widths[0], cfg)
        self.apply_full = ApplyKernels(cfg.full_size)
        self.apply_sep = ApplySeparable(cfg.sep_size)
        self.loss = AnnealedLoss(cfg)

    def forward(self, burst, white_level, noise, valid, target, step):
        """burst (batch, frames, 3, height, width) as counted by the sensor, noise (batch, 2), valid (batch, frames)."""
        h, w = burst.shape[-2:]
        span = (white_level - BLACK_LEVEL).view(-1, 1, 1, 1, 1)
        frames = pad_to_multiple((burst - BLACK_LEVEL) / span, self.multiple)
        variance = noise_variance(frames[:, 0], noise[:, 0], noise[:, 1])
        deviation = variance.sqrt()

        aligned, fits, flow = self.align(frames, variance, valid)
        features = self.unet(torch.cat((aligned.flatten(1, 2), fits, deviation), dim=1))
        full, vertical, horizontal, mix, blend, offset = self.heads(features)

        by_full = self.apply_full(aligned, full)
        by_sep = self.apply_sep(aligned, vertical, horizontal)
        single = mix * by_full + (1 - mix) * by_sep + offset * deviation.unsqueeze(1)
        blend = blend + torch.log(fits + 1e-2)
        blend = blend.masked_fill(~valid[:, :, None, None], float("-inf")).softmax(dim=1)
        merged = (single * blend.unsqueeze(2)).sum(dim=1)

        merged, single = merged[..., :h, :w], single[..., :h, :w]
        loss, final, each, psnr = self.loss(merged, single, target, valid, step)
        return merged, single, flow, blend[..., :h, :w], loss, final, each, psnr


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if getattr(module, "bias", None) is not None:
            nn.init.normal_(module.bias, std=0.2)
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.normal_(module.weight, std=1.2 * module.weight[0].numel() ** -0.5)
        elif isinstance(module, nn.ConvTranspose2d):
            nn.init.normal_(module.weight, std=(4 * module.in_channels) ** -0.5)
        elif isinstance(module, (nn.BatchNorm2d, nn.GroupNorm)):
            nn.init.uniform_(module.weight, 0.7, 1.3)
        elif isinstance(module, nn.PReLU):
            nn.init.uniform_(module.weight, 0.05, 0.4)
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.4, 1.6)
    # frames are dark: what the stem makes of them varies little
    net.unet.stem.bn.running_var.mul_(0.01)
    net.unet.stem.conv.weight.data.mul_(0.3)
    # kernels like to keep the middle
    net.heads.full.bias.data.view(net.heads.frames, -1)[:, 4] += 1.0
    for head in (net.heads.vertical, net.heads.horizontal):
        head.bias.data.view(net.heads.frames, -1)[:, 3] += 2.0
    return net


def build():
    """The net with the same weights on every run, and two bursts of which one misses a frame."""
    torch.manual_seed(1803)
    cfg = Config()
    net = trained_like(BurstKPN(cfg)).eval()
    b, t, h, w = 2, cfg.num_frames, 36, 44
    scene = F.interpolate(torch.rand(b, 3, 24, 28), size=(144, 168), mode="bicubic")
    scene = 0.75 * scene + 0.25 * F.interpolate(torch.rand(b, 3, 72, 84), size=(144, 168), mode="bilinear")
    scene = (1.2 * scene.clamp(0, 1.2) ** 2).clamp(max=1.0)
    # the hand's path in half pixels
    paths = ((0, 0), (-3, 4), (-5, 9), (-9, 11), (-13, 15)), ((0, 0), (4, -3), (9, -7), (11, -13), (15, -18))
    crops = [scene[k, :, 32 + y :, 40 + x :][:, : 2 * h, : 2 * w] for k in range(b) for y, x in paths[k]]
    clean = F.avg_pool2d(torch.stack(crops), 2).view(b, t, 3, h, w)
    noise = torch.tensor([[0.012, 0.002], [0.02, 0.006]])
    deviation = noise_variance(clean, noise[:, 0], noise[:, 1]).sqrt()
    linear = (clean + deviation * torch.randn(clean.shape)).clamp(max=1.0)
    valid = torch.ones(b, t, dtype=torch.bool)
    valid[1, 2] = False
    linear[1, 2] = torch.rand(3, h, w)
    white_level = torch.tensor([1023.0, 959.0])
    burst = linear * (white_level - BLACK_LEVEL).view(-1, 1, 1, 1, 1) + BLACK_LEVEL
    return net, (burst, white_level, noise, valid, clean[:, 0], torch.tensor([7000.0]))
