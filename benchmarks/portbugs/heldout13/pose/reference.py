"""Top-down human pose: high-resolution branches with window attention, a heatmap head and a SimCC head, in PyTorch."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

FLIP_PAIRS = [(1, 2), (3, 4), (5, 6), (7, 8), (9, 10), (11, 12)]


class ConvBN(nn.Sequential):
    def __init__(self, cin, cout, kernel=3, stride=1, groups=1):
        conv = nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=False)
        super().__init__(conv, nn.BatchNorm2d(cout))


class BasicBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.conv1 = ConvBN(dim, dim, 3)
        self.conv2 = ConvBN(dim, dim, 3)

    def forward(self, x):
        return F.relu(self.conv2(F.relu(self.conv1(x))) + x)


def window_partition(x, window):
    """(B, H, W, C) -> (B * windows, window * window, C)"""
    b, h, w, c = x.shape
    x = x.view(b, h // window, window, w // window, window, c)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, window * window, c)


def window_reverse(windows, window, h, w):
    b = windows.shape[0] // (h * w // window // window)
    x = windows.view(b, h // window, w // window, window, window, -1)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, -1)


class WindowAttention(nn.Module):
    """Attention inside a window with a table of relative positions."""

    def __init__(self, dim, heads, window):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        coords = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        relative = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0) + (window - 1)
        self.register_buffer("index", relative[..., 0] * (2 * window - 1) + relative[..., 1], persistent=False)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, mask):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        bias = self.relative_position_bias_table[self.index.flatten()].view(n, n, self.heads).permute(2, 0, 1)
        attn = (attn + bias).view(-1, mask.shape[0], self.heads, n, n) + mask[None, :, None]
        attn = attn.view(b, self.heads, n, n).softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(b, n, c))


class MixFFN(nn.Module):
    def __init__(self, dim, ratio=2):
        super().__init__()
        self.fc1 = ConvBN(dim, dim * ratio, 1)
        self.dw = ConvBN(dim * ratio, dim * ratio, 3, groups=dim * ratio)
        self.fc2 = ConvBN(dim * ratio, dim, 1)

    def forward(self, x):
        return F.gelu(self.fc2(F.gelu(self.dw(F.gelu(self.fc1(x))))))


class FormerBlock(nn.Module):
    """A block of HRFormer; every second one has its windows shifted."""

    def __init__(self, dim, heads, size, window, shift):
        super().__init__()
        self.window, self.shift = window, shift
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = WindowAttention(dim, heads, window)
        self.gamma1 = nn.Parameter(torch.ones(dim))
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.ffn = MixFFN(dim)
        self.gamma2 = nn.Parameter(torch.ones(dim))
        h, w = size
        pad_h, pad_w = -h % window, -w % window
        self.pad = (pad_w // 2, pad_w - pad_w // 2, pad_h // 2, pad_h - pad_h // 2)
        regions = torch.zeros(1, h + pad_h, w + pad_w, 1)
        if shift:
            spans = (slice(0, -window), slice(-window, -shift), slice(-shift, None))
            for number, (rows, columns) in enumerate((r, c) for r in spans for c in spans):
                regions[:, rows, columns] = number
        inside = torch.roll(F.pad(torch.ones(1, h, w, 1), (0, 0, *self.pad)), (-shift, -shift), dims=(1, 2))
        regions, inside = (window_partition(grid, window).squeeze(-1) for grid in (regions, inside))
        blocked = (regions[:, None, :] != regions[:, :, None]) | (inside[:, None, :] == 0)
        self.register_buffer("mask", blocked.float() * -100.0, persistent=False)

    def forward(self, x):
        (h, w), (left, _, top, _) = x.shape[2:], self.pad
        y = F.pad(self.norm1(x.permute(0, 2, 3, 1)), (0, 0, *self.pad))
        y = torch.roll(y, (-self.shift, -self.shift), dims=(1, 2))
        full = y.shape[1:3]
        y = window_reverse(self.attn(window_partition(y, self.window), self.mask), self.window, *full)
        y = torch.roll(y, (self.shift, self.shift), dims=(1, 2))
        y = y[:, top : top + h, left : left + w]
        x = x + (self.gamma1 * y).permute(0, 3, 1, 2)
        y = self.ffn(self.norm2(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
        return x + self.gamma2[:, None, None] * y


class HRModule(nn.Module):
    """Parallel branches, then every branch gets the sum of all, brought to its size."""

    def __init__(self, dims, size, attention=False, window=5, heads=4):
        super().__init__()
        self.branches = nn.ModuleList()
        for i, dim in enumerate(dims):
            if attention and i > 0:
                here = (size[0] // 2**i, size[1] // 2**i)
                blocks = [FormerBlock(dim, heads, here, window, shift) for shift in (0, window // 2)]
            else:
                blocks = [BasicBlock(dim)]
            self.branches.append(nn.Sequential(*blocks))
        self.fuse = nn.ModuleList()
        for i in range(len(dims)):
            row = nn.ModuleList()
            for j in range(len(dims)):
                if j > i:
                    row.append(ConvBN(dims[j], dims[i], 1))
                elif j == i:
                    row.append(nn.Identity())
                else:
                    steps = [layer for _ in range(i - j - 1) for layer in (ConvBN(dims[j], dims[j], 3, 2), nn.ReLU())]
                    row.append(nn.Sequential(*steps, ConvBN(dims[j], dims[i], 3, 2)))
            self.fuse.append(row)

    def forward(self, xs):
        xs = [branch(x) for branch, x in zip(self.branches, xs)]
        outs = []
        for i, row in enumerate(self.fuse):
            ys = [layer(x) for layer, x in zip(row, xs)]
            for j in range(i + 1, len(ys)):
                ys[j] = F.interpolate(ys[j], size=xs[i].shape[-2:], mode="bilinear", align_corners=False)
            outs.append(F.relu(sum(ys)))
        return outs


class ScaleNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.scale, self.eps = dim**-0.5, eps
        self.g = nn.Parameter(torch.ones(1))

    def forward(self, x):
        norm = torch.linalg.norm(x, dim=-1, keepdim=True) * self.scale
        return x / norm.clamp(min=self.eps) * self.g


def rope(x):
    """Rotary places along the second of four axes; the halves of the last axis turn together."""
    half = x.shape[-1] // 2
    frequency = 10000.0 ** (-torch.arange(half, dtype=torch.float32) / half)
    angle = torch.arange(x.shape[1], dtype=torch.float32)[:, None, None] * frequency
    sin, cos = angle.sin(), angle.cos()
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1)


class RTMCCBlock(nn.Module):
    """Gated attention unit over the keypoints."""

    def __init__(self, tokens, dim, s=32, expansion=2):
        super().__init__()
        self.s, self.e = s, dim * expansion
        self.ln = ScaleNorm(dim)
        self.uv = nn.Linear(dim, 2 * self.e + s)
        self.gamma = nn.Parameter(torch.rand(2, s))
        self.beta = nn.Parameter(torch.rand(2, s))
        self.w = nn.Parameter(torch.randn(2 * tokens - 1))
        self.o = nn.Linear(self.e, dim)
        self.res_scale = nn.Parameter(torch.ones(dim))

    def rel_pos_bias(self, n):
        t = F.pad(self.w, (0, n)).repeat(n)[:-n].reshape(n, 3 * n - 2)
        return t[:, n - 1 : 1 - n]

    def forward(self, x):
        uv = F.silu(self.uv(self.ln(x)))
        u, v, base = torch.split(uv, [self.e, self.e, self.s], dim=-1)
        base = rope(base.unsqueeze(2) * self.gamma + self.beta)
        q, k = base.unbind(2)
        qk = torch.bmm(q, k.transpose(1, 2)) + self.rel_pos_bias(x.shape[1])
        kernel = torch.square(F.relu(qk / math.sqrt(self.s)))
        return self.res_scale * x + self.o(u * torch.bmm(kernel, v))


class SimCCHead(nn.Module):
    """Each keypoint's map becomes a vector; columns and rows are classes."""

    def __init__(self, dims, size, keypoints, dim, bins):
        super().__init__()
        self.final_layer = nn.Conv2d(dims[1] + dims[2] // 4, keypoints, 5, padding=2)
        self.norm = ScaleNorm(size[0] * size[1])
        self.mlp = nn.Linear(size[0] * size[1], dim, bias=False)
        self.gau = RTMCCBlock(keypoints, dim)
        self.cls_x = nn.Linear(dim, bins[0], bias=False)
        self.cls_y = nn.Linear(dim, bins[1], bias=False)

    def forward(self, feats):
        x = torch.cat([feats[1], F.pixel_shuffle(feats[2], 2)], dim=1)
        x = self.gau(self.mlp(self.norm(self.final_layer(x).flatten(2))))
        return self.cls_x(x), self.cls_y(x)


class HeatmapHead(nn.Module):
    def __init__(self, dims, keypoints, dim=24):
        super().__init__()
        self.deconv = nn.ConvTranspose2d(dims[1], dim, 4, stride=2, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(dim)
        self.final_layer = nn.Conv2d(dim + dims[0], keypoints, 1)

    def forward(self, feats):
        return self.final_layer(torch.cat([F.relu(self.bn(self.deconv(feats[1]))), feats[0]], dim=1))


def dark_udp(coords, heatmaps, kernel, eps=1e-4):
    """One Newton step on the logarithm of the blurred maps."""
    b, k, h, w = heatmaps.shape
    peak = heatmaps.flatten(2).amax(-1)
    x = F.conv2d(heatmaps.reshape(b * k, 1, h, w), kernel, padding=kernel.shape[-1] // 2).view(b, k, h, w)
    x = x * (peak / x.flatten(2).amax(-1))[..., None, None]
    x = F.pad(x.clamp(1e-2, 50.0).log(), (1, 1, 1, 1), mode="replicate").flatten(2)
    index = coords[..., 0] + 1 + (coords[..., 1] + 1) * (w + 2)

    def at(dx, dy):
        return x.gather(2, (index + dx + dy * (w + 2)).unsqueeze(-1)).squeeze(-1)

    centre, east, west, south, north = at(0, 0), at(1, 0), at(-1, 0), at(0, 1), at(0, -1)
    gradient = torch.stack([0.5 * (east - west), 0.5 * (south - north)], dim=-1)
    dxx, dyy = east - 2 * centre + west, south - 2 * centre + north
    dxy = 0.5 * (at(1, 1) - east - south + 2 * centre - west - north + at(-1, -1))
    hessian = torch.stack([dxx, dxy, dxy, dyy], dim=-1).view(b, k, 2, 2) - eps * torch.eye(2)
    step = torch.linalg.solve(hessian, gradient.unsqueeze(-1)).squeeze(-1)
    return coords - step.clamp(-1.0, 1.0)


def simcc_maximum(logits):
    """The best class with a quarter's shift to the better neighbour, and its probability."""
    prob = logits.softmax(dim=-1)
    value, place = prob.max(dim=-1)
    last = prob.shape[-1] - 1
    sides = torch.stack([place - 1, place + 1], dim=-1).clamp(0, last)
    before, after = prob.gather(-1, sides).unbind(-1)
    shifted = place + 0.25 * torch.sign(after - before)
    return torch.where((place > 0) & (place < last), shifted, place.float()), value


class PoseEstimator(nn.Module):
    """Both heads on the same branches, with the mirrored image, decoded and brought back into the image."""

    def __init__(self, size=(128, 96), dims=(16, 32, 48), keypoints=13, split=2.0):
        super().__init__()
        self.split = split
        quarter = (size[0] // 4, size[1] // 4)
        self.stem = nn.Sequential(ConvBN(3, 16, 3, 2), nn.ReLU(), ConvBN(16, 16, 3, 2), nn.ReLU())
        self.layer1 = BasicBlock(16)
        self.transition1 = nn.ModuleList([ConvBN(16, dims[0], 3), ConvBN(16, dims[1], 3, 2)])
        self.stage2 = HRModule(dims[:2], quarter)
        self.transition2 = ConvBN(dims[1], dims[2], 3, 2)
        self.stage3 = HRModule(dims, quarter, attention=True)
        self.heatmap_head = HeatmapHead(dims, keypoints)
        bins = [int(side * split) for side in reversed(size)]
        self.simcc_head = SimCCHead(dims, (size[0] // 8, size[1] // 8), keypoints, 64, bins)
        flip = list(range(keypoints))
        for left, right in FLIP_PAIRS:
            flip[left], flip[right] = right, left
        self.register_buffer("flip", torch.tensor(flip), persistent=False)
        colours = torch.tensor([[123.675, 116.28, 103.53], [58.395, 57.12, 57.375]])
        self.register_buffer("colours", colours.view(2, 1, 3, 1, 1), persistent=False)
        self.register_buffer("extent", torch.tensor([size[1] - 1.0, size[0] - 1.0]), persistent=False)
        row = torch.softmax(-((torch.arange(7) - 3.0) ** 2) / (2 * 1.4**2), dim=0)
        self.register_buffer("kernel", torch.outer(row, row)[None, None], persistent=False)

    def raw(self, image):
        x = self.layer1(self.stem(image))
        xs = self.stage2([F.relu(step(x)) for step in self.transition1])
        feats = self.stage3([*xs, F.relu(self.transition2(xs[-1]))])
        return self.heatmap_head(feats), *self.simcc_head(feats)

    def flip_test(self, image):
        heatmaps, simcc_x, simcc_y = self.raw(image)
        other, other_x, other_y = self.raw(image.flip(-1))
        other = other.flip(-1)[:, self.flip]
        other[..., 1:] = other[..., :-1].clone()
        simcc_x = (simcc_x + other_x.flip(-1)[:, self.flip]) / 2
        return (heatmaps + other) / 2, simcc_x, (simcc_y + other_y[:, self.flip]) / 2

    def decode(self, heatmaps, simcc_x, simcc_y):
        """Keypoints of both heads in pixels of the crop, mixed by their scores."""
        h, w = heatmaps.shape[-2:]
        value, place = heatmaps.flatten(2).max(dim=-1)
        coords = torch.stack([place % w, torch.div(place, w, rounding_mode="floor")], dim=-1)
        dense = dark_udp(coords, heatmaps, self.kernel) / torch.tensor([w - 1.0, h - 1.0]) * self.extent
        (x, px), (y, py) = simcc_maximum(simcc_x), simcc_maximum(simcc_y)
        sparse = torch.stack([x, y], dim=-1) / self.split
        weights = torch.stack([value.clamp(0.0, 1.0), torch.minimum(px, py)], dim=-1)
        share = weights / weights.sum(-1, keepdim=True).clamp(min=1e-6)
        return dense * share[..., :1] + sparse * share[..., 1:], weights.mean(-1)

    def to_image(self, points, center, scale, rotation):
        """From the crop back into the image: centre, scale, turn, move."""
        points = (points / self.extent - 0.5) * scale[:, None]
        cos, sin = torch.deg2rad(rotation).cos(), torch.deg2rad(rotation).sin()
        turn = torch.stack([cos, sin, -sin, cos], dim=-1).view(-1, 2, 2)
        return points @ turn + center[:, None]

    def forward(self, image, center, scale, rotation):
        heatmaps, simcc_x, simcc_y = self.flip_test((image - self.colours[0]) / self.colours[1])
        points, scores = self.decode(heatmaps, simcc_x, simcc_y)
        return heatmaps, simcc_x, simcc_y, self.to_image(points, center, scale, rotation), scores


def build():
    """The net with the same weights on every run, and three crops of one image."""
    torch.manual_seed(31)
    net = PoseEstimator()
    for module in net.modules():
        if isinstance(module, (nn.BatchNorm2d, nn.LayerNorm)):
            nn.init.uniform_(module.weight, 0.6, 1.3)
            nn.init.normal_(module.bias, std=0.15)
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.15)
            nn.init.uniform_(module.running_var, 0.3, 1.2)
        elif isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
    for name, parameter in net.named_parameters():
        if name.endswith(("gamma1", "gamma2", "res_scale", "norm.g", "ln.g")):
            nn.init.uniform_(parameter, 0.5, 1.2)
        elif name.endswith(("bias_table", "qkv.weight", "cls_x.weight", "cls_y.weight")):
            nn.init.normal_(parameter, std=0.25 if "qkv" in name else 0.7)
    nn.init.normal_(net.heatmap_head.final_layer.weight, std=0.023)
    nn.init.constant_(net.heatmap_head.final_layer.bias, 0.25)
    image = F.interpolate(torch.rand(3, 3, 16, 12) * 200, size=(128, 96), mode="bilinear")
    center, scale = 150 + 80 * torch.rand(3, 2), 140 + 100 * torch.rand(3, 2)
    return net.eval(), (image + torch.rand(3, 3, 128, 96) * 55, center, scale, torch.tensor([12.0, -25.0, 40.0]))
