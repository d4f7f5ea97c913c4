"""Segmentation of lidar scans in the range image: projection, dilated U-net, recurrent CRF, neighbours' vote."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

# range, x, y, z, remission over the training scans
IMAGE_MEAN = (12.12, 10.88, 0.23, -1.04, 0.21)
IMAGE_STD = (12.32, 11.47, 6.91, 0.86, 0.16)


class Config:
    """What the yaml of the small model says."""

    # sensor
    height, width = 16, 64
    fov_up, fov_down = 3.0, -25.0
    min_range = 1.0
    # net
    num_classes = 6  # class 0 is "unlabeled"
    base = 12
    widths = (16, 24)
    bottleneck = 32
    dropout = 0.2
    gate_reduction = 4
    # CRF
    crf_window = (3, 5)
    crf_iterations = 3
    crf_theta_angle = (0.9, 0.9, 1.3, 1.6, 0.7, 0.9)
    crf_theta_space = (1.5, 1.5, 2.5, 4.0, 0.8, 1.2)
    crf_step = (0.9, 0.5)  # from the first to the last iteration
    # vote
    search = 5
    neighbours = 7
    vote_sigma = 1.0
    vote_cutoff = 2.5


def ring_pad(x, pad_h, pad_w, value=0.0):
    """Pad (..., height, width): the scan closes upon itself in azimuth, and ends above and below."""
    if pad_w:
        x = F.pad(x, (pad_w, pad_w, 0, 0), mode="circular")
    return F.pad(x, (0, 0, pad_h, pad_h), value=value)


def windows(x, window, value=0.0):
    """(batch, channels, height, width) -> (batch, channels, places of the window, height, width)."""
    b, c, h, w = x.shape
    x = ring_pad(x, window[0] // 2, window[1] // 2, value)
    return F.unfold(x, window).reshape(b, c, window[0] * window[1], h, w)


def window_offsets(window):
    """Row and column of each place of a window, relative to its centre, in the order of unfold."""
    dy, dx = torch.meshgrid(*(torch.arange(n) - n // 2 for n in window), indexing="ij")
    return dy.reshape(-1), dx.reshape(-1)


class SphericalProjection(nn.Module):
    """Points to a range image; where several points fall upon one pixel the nearest is kept."""

    def __init__(self, height, width, fov_up, fov_down, min_range):
        super().__init__()
        self.height, self.width, self.min_range = height, width, min_range
        self.fov_up, self.fov_down = math.radians(fov_up), math.radians(fov_down)

    def forward(self, points, counts):
        """points (batch, n, 4) of which the first `counts` are real. Pixels nobody falls upon hold -1."""
        b, n, _ = points.shape
        xyz, remission = points[..., :3], points[..., 3]
        depth = xyz.norm(dim=-1)
        present = torch.arange(n)[None, :] < counts[:, None]
        present = present & (depth >= self.min_range)  # hits on the own car

        yaw = -torch.atan2(xyz[..., 1], xyz[..., 0])
        pitch = torch.asin((xyz[..., 2] / depth.clamp(min=1e-6)).clamp(-1.0, 1.0))
        fov = abs(self.fov_up) + abs(self.fov_down)
        column = 0.5 * (yaw / math.pi + 1.0) * self.width
        row = (1.0 - (pitch + abs(self.fov_down)) / fov) * self.height
        column = column.floor().clamp(0, self.width - 1)
        row = row.floor().clamp(0, self.height - 1)
        pixel = (row * self.width + column).long()

        size = self.height * self.width
        seen_depth = depth.masked_fill(~present, math.inf)
        buffer = torch.full((b, size), math.inf)
        buffer = buffer.scatter_reduce(1, pixel, seen_depth, reduce="amin")
        mask = torch.isfinite(buffer)
        wins = present & (seen_depth == buffer.gather(1, pixel))
        owner = torch.full((b, size), n)
        owner = owner.scatter_reduce(1, pixel, torch.where(wins, torch.arange(n), n), reduce="amin")

        channels = torch.cat((depth.unsqueeze(1), xyz.transpose(1, 2), remission.unsqueeze(1)), dim=1)
        source = owner.clamp(max=n - 1).unsqueeze(1).expand(-1, channels.shape[1], -1)
        image = channels.gather(2, source).masked_fill(~mask.unsqueeze(1), -1.0)
        image = image.reshape(b, -1, self.height, self.width)
        return image, mask.reshape(b, 1, self.height, self.width), pixel, depth, present


class RingConv2d(nn.Module):
    """A convolution that is circular in azimuth."""

    def __init__(self, c_in, c_out, kernel, padding, dilation=1):
        super().__init__()
        self.pad = padding
        self.conv = nn.Conv2d(c_in, c_out, kernel, dilation=dilation)

    def forward(self, x):
        return self.conv(ring_pad(x, self.pad, self.pad))


class ContextBlock(nn.Module):
    """Two convolutions, the second with a wider view, beside a shortcut."""

    def __init__(self, c_in, c_out):
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 1)
        self.act1 = nn.LeakyReLU()
        self.conv2 = RingConv2d(c_out, c_out, 3, 1)
        self.act2 = nn.LeakyReLU()
        self.bn1 = nn.BatchNorm2d(c_out)
        self.conv3 = RingConv2d(c_out, c_out, 3, 2, dilation=2)
        self.act3 = nn.LeakyReLU()
        self.bn2 = nn.BatchNorm2d(c_out)

    def forward(self, x):
        shortcut = self.act1(self.conv1(x))
        y = self.bn1(self.act2(self.conv2(shortcut)))
        y = self.bn2(self.act3(self.conv3(y)))
        return shortcut + y


class ChannelGate(nn.Module):
    """Squeeze and excitation over the pixels that hold a point."""

    def __init__(self, channels, reduction):
        super().__init__()
        self.fc1 = nn.Linear(2 * channels, channels // reduction)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(channels // reduction, channels)

    def forward(self, x, mask):
        weight = mask.to(x.dtype)
        mean = (x * weight).sum(dim=(2, 3)) / weight.sum(dim=(2, 3)).clamp(min=1.0)
        top = x.masked_fill(~mask, -math.inf).amax(dim=(2, 3))
        gate = self.fc2(self.act(self.fc1(torch.cat((mean, top), dim=1))))
        return x * torch.sigmoid(gate)[:, :, None, None]


class DilatedFusion(nn.Module):
    """Three convolutions in a row with growing views; all three results are fused."""

    def __init__(self, c_in, c_out):
        super().__init__()
        self.conv1 = RingConv2d(c_in, c_out, 3, 1)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.conv2 = RingConv2d(c_out, c_out, 3, 2, dilation=2)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.conv3 = RingConv2d(c_out, c_out, 2, 1, dilation=2)
        self.bn3 = nn.BatchNorm2d(c_out)
        self.fuse = nn.Conv2d(3 * c_out, c_out, 1)
        self.bn4 = nn.BatchNorm2d(c_out)
        self.act = nn.LeakyReLU()

    def forward(self, x):
        a = self.bn1(self.act(self.conv1(x)))
        b = self.bn2(self.act(self.conv2(a)))
        c = self.bn3(self.act(self.conv3(b)))
        return self.bn4(self.act(self.fuse(torch.cat((a, b, c), dim=1))))


class DownBlock(nn.Module):
    """Fusion beside a shortcut, a gate, and a pooling unless it is the last one."""

    def __init__(self, c_in, c_out, reduction, dropout, pooling=True):
        super().__init__()
        self.shortcut = nn.Conv2d(c_in, c_out, 1)
        self.act = nn.LeakyReLU()
        self.fusion = DilatedFusion(c_in, c_out)
        self.gate = ChannelGate(c_out, reduction)
        self.dropout = nn.Dropout2d(dropout)
        self.pool = nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False) if pooling else None

    def forward(self, x, mask):
        full = self.act(self.shortcut(x)) + self.fusion(x)
        full = self.gate(full, mask)
        if self.pool is None:
            return self.dropout(full), None, mask
        # a pooled pixel is there if any of its four is
        mask = F.max_pool2d(mask.float(), 2) > 0.5
        return self.pool(self.dropout(full)), full, mask


class UpBlock(nn.Module):
    """Shuffles channels to pixels, takes the skip's features in, and fuses."""

    def __init__(self, c_in, c_skip, c_out, dropout):
        super().__init__()
        self.dropout = nn.Dropout2d(dropout)
        self.norm = nn.GroupNorm(4, c_skip)
        self.fusion = DilatedFusion(c_in // 4 + c_skip, c_out)

    def forward(self, x, skip):
        x = self.dropout(F.pixel_shuffle(x, 2))
        x = torch.cat((x, self.norm(skip)), dim=1)
        return self.fusion(x)


class RecurrentCRF(nn.Module):
    """Mean-field steps over a small window: a smoothing by angle, and one by angle and place in space."""

    def __init__(self, num_classes, window, iterations, theta_angle, theta_space, step):
        super().__init__()
        self.window, self.iterations = window, iterations
        dy, dx = window_offsets(window)
        others = ((dy != 0) | (dx != 0)).nonzero().squeeze(1)
        theta_angle, theta_space = torch.tensor(theta_angle), torch.tensor(theta_space)
        d2 = (dy**2 + dx**2)[others].float()
        angular = torch.exp(-d2[None, :] / (2.0 * theta_angle[:, None] ** 2))
        self.register_buffer("others", others, persistent=False)
        self.register_buffer("angular", angular[None, :, :, None, None], persistent=False)
        self.register_buffer("inv_space", (0.5 / theta_space**2).view(1, -1, 1, 1, 1), persistent=False)
        self.register_buffer("step", torch.linspace(step[0], step[1], iterations), persistent=False)
        self.compat_angle = nn.Conv2d(num_classes, num_classes, 1, bias=False)
        self.compat_space = nn.Conv2d(num_classes, num_classes, 1, bias=False)

    def _around(self, x):
        return windows(x, self.window)[:, :, self.others]

    def forward(self, logits, xyz, mask):
        there = self._around(mask.to(logits.dtype))  # (b, 1, k, h, w); holes have no say
        d2 = ((self._around(xyz) - xyz.unsqueeze(2)) ** 2).sum(dim=1, keepdim=True)
        w_angle = self.angular * there
        w_space = w_angle * torch.exp(-d2 * self.inv_space)
        norm_angle = w_angle.sum(dim=2).clamp(min=1e-4)
        norm_space = w_space.sum(dim=2).clamp(min=1e-4)

        q = logits.softmax(dim=1)
        for i in range(self.iterations):
            around = self._around(q)
            by_angle = (around * w_angle).sum(dim=2) / norm_angle
            by_space = (around * w_space).sum(dim=2) / norm_space
            energy = self.compat_angle(by_angle) + self.compat_space(by_space)
            target = (logits - energy).softmax(dim=1)
            q = torch.lerp(q, target, self.step[i].item())
        return q


class NeighbourVote(nn.Module):
    """Labels of points from those pixels around theirs whose ranges are most like their own."""

    def __init__(self, num_classes, search, neighbours, sigma, cutoff):
        super().__init__()
        self.num_classes, self.search = num_classes, search
        self.neighbours, self.sigma, self.cutoff = neighbours, sigma, cutoff
        dy, dx = window_offsets((search, search))
        gauss = torch.exp(-(dy**2 + dx**2).float() / (2.0 * sigma**2))
        self.register_buffer("inv_gauss", (1.0 - gauss / gauss.sum()).view(1, -1, 1), persistent=False)

    def forward(self, ranges, labels, pixel, depth, present):
        """ranges and labels (batch, 1, h, w); pixel, depth, present (batch, n)."""
        b, n = pixel.shape
        places = self.search * self.search
        window = (self.search, self.search)
        near = windows(ranges, window, value=-1.0).reshape(b, places, -1)
        near_labels = windows(labels.float(), window).reshape(b, places, -1)
        where = pixel.unsqueeze(1).expand(-1, places, -1)
        near, near_labels = near.gather(2, where), near_labels.gather(2, where).long()

        # a hidden point's pixel shows another range: its own counts there
        near[:, places // 2] = depth
        distance = (near - depth.unsqueeze(1)).abs()
        distance = distance.masked_fill(near < 0, 1e4)
        _, which = (distance * self.inv_gauss).topk(self.neighbours, dim=1, largest=False)
        distance, near_labels = distance.gather(1, which), near_labels.gather(1, which)

        # far away the beams lie farther apart, and so do the ranges on one surface
        sigma = self.sigma * (0.5 + depth / 20.0).unsqueeze(1)
        weight = torch.exp(-(distance**2) / (2.0 * sigma**2))
        weight = weight * (distance <= self.cutoff * sigma)
        votes = torch.zeros(b, self.num_classes, n).scatter_add(1, near_labels, weight)
        votes = votes[:, 1:]  # nobody is voted to be unlabeled
        total = votes.sum(dim=1)
        votes = votes / total.clamp(min=1e-6).unsqueeze(1)
        label = votes.argmax(dim=1) + 1
        label = torch.where(present & (total > 1e-6), label, 0)
        return votes * present.unsqueeze(1), label


class RangeSegmenter(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.register_buffer("mean", torch.tensor(IMAGE_MEAN).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(IMAGE_STD).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("bearing", self._bearing(cfg), persistent=False)
        self.project = SphericalProjection(cfg.height, cfg.width, cfg.fov_up, cfg.fov_down, cfg.min_range)

        self.context = nn.ModuleList([ContextBlock(len(IMAGE_MEAN) + 3, cfg.base), ContextBlock(cfg.base, cfg.base)])
        self.downs = nn.ModuleList()
        width = cfg.base
        for w in cfg.widths:
            self.downs.append(DownBlock(width, w, cfg.gate_reduction, cfg.dropout))
            width = w
        self.bottom = DownBlock(width, cfg.bottleneck, cfg.gate_reduction, cfg.dropout, pooling=False)
        width = cfg.bottleneck
        self.ups = nn.ModuleList()
        for w in reversed(cfg.widths):
            self.ups.append(UpBlock(width, w, w, cfg.dropout))
            width = w
        self.head = nn.Conv2d(width, cfg.num_classes, 1)
        self.coarse_head = nn.Conv2d(cfg.widths[-1], cfg.num_classes, 1)
        self.coarse_share = nn.Parameter(torch.zeros(cfg.num_classes))
        self.crf = RecurrentCRF(
            cfg.num_classes, cfg.crf_window, cfg.crf_iterations, cfg.crf_theta_angle, cfg.crf_theta_space, cfg.crf_step
        )
        self.vote = NeighbourVote(cfg.num_classes, cfg.search, cfg.neighbours, cfg.vote_sigma, cfg.vote_cutoff)

    @staticmethod
    def _bearing(cfg):
        """Direction of the ray through each pixel's centre: (1, 3, height, width)."""
        yaw = (1.0 - 2.0 * (torch.arange(cfg.width) + 0.5) / cfg.width) * math.pi
        span = math.radians(cfg.fov_up) - math.radians(cfg.fov_down)
        pitch = math.radians(cfg.fov_up) - (torch.arange(cfg.height) + 0.5) / cfg.height * span
        pitch, yaw = torch.meshgrid(pitch, yaw, indexing="ij")
        rays = (pitch.cos() * yaw.cos(), pitch.cos() * yaw.sin(), pitch.sin())
        return torch.stack(rays).unsqueeze(0)

    def _census(self, label, depth, present):
        """For each scan and class: share of the points, and their mean range."""
        member = F.one_hot(label, self.cfg.num_classes).float() * present.unsqueeze(-1)
        count = member.sum(dim=1)
        share = count / present.sum(dim=1, keepdim=True).clamp(min=1)
        mean_range = (member * depth.unsqueeze(-1)).sum(dim=1) / count.clamp(min=1.0)
        return torch.stack((share, mean_range / 50.0), dim=-1)

    def forward(self, points, counts):
        image, mask, pixel, depth, present = self.project(points, counts)
        x = (image - self.mean) / self.std
        x = torch.cat((x, self.bearing.expand(x.shape[0], -1, -1, -1)), dim=1)
        x = x * mask.to(x.dtype)

        for block in self.context:
            x = block(x)
        skips, small_mask = [], mask
        for block in self.downs:
            x, full, small_mask = block(x, small_mask)
            skips.append(full)
        x, _, _ = self.bottom(x, small_mask)
        coarse = None
        for block, skip in zip(self.ups, reversed(skips)):
            x = block(x, skip)
            if coarse is None:
                coarse = self.coarse_head(x)
        coarse = F.interpolate(coarse, size=x.shape[2:], mode="bilinear", align_corners=False)
        share = torch.sigmoid(self.coarse_share).view(1, -1, 1, 1)
        logits = (1.0 - share) * self.head(x) + share * coarse

        q = self.crf(logits, image[:, 1:4], mask)
        confidence, labels = q.max(dim=1, keepdim=True)
        labels = labels.masked_fill(~mask, 0)
        votes, label = self.vote(image[:, :1], labels, pixel, depth, present)
        # a point is as certain as its pixel, less what the neighbours disagree
        certainty = confidence.flatten(1).gather(1, pixel) * votes.amax(dim=1)
        census = self._census(label, depth, present)
        return dict(logits=logits, refined=q, votes=votes, label=label, certainty=certainty, census=census)


def make_scans(seed=0, n=1200):
    """Two scans of a street: ground, walls at both sides, some boxes; the buffer of the second is not full."""
    rng = np.random.RandomState(seed)
    yaw = rng.uniform(-np.pi, np.pi, (2, n))
    pitch = np.radians(rng.uniform(-26.0, 4.0, (2, n)))
    ground = 1.7 / np.maximum(np.sin(-pitch), 0.02)
    wall = rng.uniform(6.0, 9.0, (2, 1)) / np.maximum(np.abs(np.sin(yaw)), 0.12)
    box = np.where(np.sin(5.0 * yaw + rng.uniform(0.0, 6.0, (2, 1))) > 0.45, 7.0 + 3.0 * np.cos(3.0 * yaw), 80.0)
    reach = np.minimum(np.minimum(ground, wall), box) * rng.uniform(0.93, 1.07, (2, n))
    reach = np.where(rng.rand(2, n) < 0.08, reach * rng.uniform(0.1, 0.8, (2, n)), reach)
    x, y = reach * np.cos(pitch) * np.cos(yaw), reach * np.cos(pitch) * np.sin(yaw)
    remission = np.clip(0.25 + 0.2 * np.sin(reach) + 0.08 * rng.randn(2, n), 0.0, 1.0)
    points = np.stack((x, y, reach * np.sin(pitch), remission), axis=-1).astype(np.float32)
    return points, np.array([n, n - 330], np.int64)


def trained_like(net, scans):
    """Values as after training: weights of use, statistics from passes over scans."""
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight, nonlinearity="leaky_relu")
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, (nn.BatchNorm2d, nn.GroupNorm)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
            module.momentum = None  # of batch norms: the plain mean over the passes
    for conv, strength in ((net.crf.compat_angle, 0.6), (net.crf.compat_space, 1.2)):
        c = conv.in_channels
        conv.weight.data = (strength * (1.0 - torch.eye(c)) + 0.25 * torch.randn(c, c)).view(c, c, 1, 1)
    nn.init.normal_(net.coarse_share, std=0.7)
    with torch.no_grad():
        net.train()
        for points, counts in scans:
            net(torch.from_numpy(points), torch.from_numpy(counts))
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_var.clamp_(min=0.1)  # no channel is nearly dead
    return net.eval()


def build():
    torch.manual_seed(0)
    net = trained_like(RangeSegmenter(Config()), [make_scans(seed) for seed in (11, 12, 13)])
    points, counts = make_scans()
    return net, (torch.from_numpy(points), torch.from_numpy(counts))
