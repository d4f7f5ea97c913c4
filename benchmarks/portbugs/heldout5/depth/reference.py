"""Depth from one camera in motion: an image, the one before it, and how the camera moved between them."""
from typing import List, Tuple

import math

import torch
from torch import nn, Tensor
from torch.nn import functional as F

PIXEL_MEAN = (0.485, 0.456, 0.406)
PIXEL_STD = (0.229, 0.224, 0.225)
MIN_DEPTH, MAX_DEPTH = 0.8, 12.0
PLANES = 10
GROUPS = 4
OUTSIDE = -0.5
TEMPERATURE = 0.1
EDGE = 6.0
CAMERA_HEIGHT = 1.5


# ---------------------------------------------------------------- layers


def conv(c_in: int, c_out: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2)


def conv_bn(c_in: int, c_out: int, kernel: int = 3, stride: int = 1, act: bool = True) -> nn.Sequential:
    layers: List[nn.Module] = [
        nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(c_out, eps=1e-3),
    ]
    if act:
        layers.append(nn.LeakyReLU(0.1))
    return nn.Sequential(*layers)


class Residual(nn.Module):
    """Two convolutions, channels weighed by what is in the image, a shortcut."""

    def __init__(self, c_in: int, c_out: int, stride: int):
        super().__init__()
        self.first = conv_bn(c_in, c_out, 3, stride)
        self.second = conv_bn(c_out, c_out, act=False)
        self.squeeze = nn.Linear(c_out, c_out // 4)
        self.excite = nn.Linear(c_out // 4, c_out)
        self.skip = conv_bn(c_in, c_out, 1, stride, act=False)

    def forward(self, x):
        y = self.second(self.first(x))
        s = F.relu(self.squeeze(y.mean(dim=(2, 3))))
        s = 2.0 * torch.sigmoid(self.excite(s))
        return F.leaky_relu(y * s[:, :, None, None] + self.skip(x), 0.1)


class Encoder(nn.Module):
    def __init__(self, widths: Tuple[int, ...]):
        super().__init__()
        self.stem = conv_bn(3, widths[0], 5, 2)
        self.pool = nn.MaxPool2d(3, stride=1, padding=1)
        self.stages = nn.ModuleList([Residual(a, b, 2) for a, b in zip(widths[:-1], widths[1:])])

    def forward(self, image):
        mean = torch.tensor(PIXEL_MEAN).view(1, 3, 1, 1)
        std = torch.tensor(PIXEL_STD).view(1, 3, 1, 1)
        x = self.pool(self.stem((image - mean) / std))
        feats = []
        for stage in self.stages:
            x = stage(x)
            feats.append(x)
        return feats


class Pyramid(nn.Module):
    """From the coarsest level down; the two sides of each sum are weighed against each other."""

    def __init__(self, widths: Tuple[int, ...], width: int):
        super().__init__()
        self.lateral = nn.ModuleList([conv(c, width, 1) for c in widths])
        self.smooth = nn.ModuleList([conv(width, width) for _ in widths])
        self.balance = nn.Parameter(torch.ones(len(widths) - 1, 2))

    def forward(self, feats):
        top, outs = None, []
        for i in reversed(range(len(feats))):
            x = self.lateral[i](feats[i])
            if top is not None:
                w = F.relu(self.balance[i])
                w = w / (w.sum() + 1e-4)
                x = w[0] * x + w[1] * F.interpolate(top, size=x.shape[-2:], mode="nearest")
            top = x
            outs.append(self.smooth[i](F.silu(x)) + x)
        return outs[::-1]


# ---------------------------------------------------------------- geometry


def rescaled(camera: Tensor, factor: float) -> Tensor:
    """(fx, fy, cx, cy) of a smaller image; pixels are counted from their centres."""
    focal, centre = camera[:, :2], camera[:, 2:]
    return torch.cat([focal * factor, (centre + 0.5) * factor - 0.5], dim=1)


def rays(camera: Tensor, height: int, width: int) -> Tensor:
    """(b, 3, h * w): where each pixel looks, one deep."""
    fx, fy, cx, cy = camera[:, :, None, None].unbind(1)
    v, u = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    x = (u[None] - cx) / fx
    y = (v[None] - cy) / fy
    return torch.stack([x, y, torch.ones_like(x)], dim=1).flatten(2)


def plane_sweep(target: Tensor, source: Tensor, camera: Tensor, pose: Tensor) -> Tuple[Tensor, Tensor]:
    """How alike both images' features are if everything lay on one plane; (b, groups, planes, h, w)."""
    b, c, h, w = target.shape
    inverse = torch.linspace(1 / MAX_DEPTH, 1 / MIN_DEPTH, PLANES)
    turned = pose[:, :, :3] @ rays(camera, h, w)
    points = turned[:, None] + inverse.view(1, -1, 1, 1) * pose[:, None, :, 3:]
    z = points[:, :, 2].clamp(min=1e-2)
    fx, fy, cx, cy = camera[:, :, None, None].unbind(1)
    u = points[:, :, 0] / z * fx + cx
    v = points[:, :, 1] / z * fy + cy
    grid = torch.stack([(2 * u + 1) / w - 1, (2 * v + 1) / h - 1], dim=-1)
    inside = (grid.abs() < 1).all(dim=-1).view(b, 1, PLANES, h, w)
    warped = F.grid_sample(source, grid.view(b, PLANES * h, w, 2), mode="bilinear", align_corners=False)
    ours = F.normalize(target.view(b, GROUPS, c // GROUPS, h, w), dim=2)
    theirs = F.normalize(warped.view(b, GROUPS, c // GROUPS, PLANES, h, w), dim=2)
    alike = (ours[:, :, :, None] * theirs).sum(dim=2)
    return torch.where(inside, alike, torch.full_like(alike, OUTSIDE)), inside


def to_depth(disparity: Tensor) -> Tensor:
    """Zero is the farthest depth, one the nearest."""
    low, high = 1 / MAX_DEPTH, 1 / MIN_DEPTH
    return 1 / (low + (high - low) * disparity)


def normals(depth: Tensor, camera: Tensor) -> Tuple[Tensor, Tensor]:
    """Points (b, 3, h, w) and the surfaces' normals there, at the border those of the neighbours."""
    b, _, h, w = depth.shape
    points = (rays(camera, h, w) * depth.flatten(2)).view(b, 3, h, w)
    across = points[:, :, 1:-1, 2:] - points[:, :, 1:-1, :-2]
    down = points[:, :, 2:, 1:-1] - points[:, :, :-2, 1:-1]
    n = F.normalize(torch.cross(down, across, dim=1), dim=1)
    return points, F.pad(n, (1, 1, 1, 1), mode="replicate")


def roughness(disparity: Tensor, image: Tensor) -> Tensor:
    """Steps of the disparity, those at edges of the image count less; one number for each image."""
    d = disparity / (disparity.mean(dim=(2, 3), keepdim=True) + 1e-3)
    total = 0.0
    for dim in (2, 3):
        step = torch.diff(d, dim=dim).abs()
        edge = torch.diff(image, dim=dim).abs().mean(dim=1, keepdim=True)
        total = total + (step * torch.exp(-EDGE * edge)).mean(dim=(1, 2, 3))
    return total


# ---------------------------------------------------------------- the net


class Volume(nn.Module):
    """Makes scores of planes from likeness, the same way on each plane, and reads off the disparity."""

    def __init__(self, hidden: int):
        super().__init__()
        self.inner = conv_bn(2 * GROUPS, hidden)
        self.outer = conv(hidden, 1)

    def forward(self, alike, inside):
        b, g, p, h, w = alike.shape
        before = F.pad(alike, (0, 0, 0, 0, 1, 0))[:, :, :-1]
        x = torch.cat([alike, alike - before], dim=1).transpose(1, 2).reshape(b * p, 2 * g, h, w)
        score = self.outer(self.inner(x)).view(b, p, h, w)
        score = score + alike.mean(dim=1) / TEMPERATURE
        share = torch.softmax(score, dim=1)
        level = torch.linspace(0, 1, p).view(1, -1, 1, 1)
        mean = (share * level).sum(dim=1, keepdim=True)
        spread = (share * (level - mean) ** 2).sum(dim=1, keepdim=True).sqrt()
        doubt = -(share * torch.log(share + 1e-6)).sum(dim=1, keepdim=True) / math.log(p)
        seen = inside[:, 0].float().mean(dim=1, keepdim=True)
        return torch.cat([mean, spread, 1 - doubt, seen], dim=1), share


class Upsampler(nn.Module):
    """Each fine pixel is a mixture of the nine coarse ones around it."""

    def __init__(self, width: int, factor: int):
        super().__init__()
        self.factor = factor
        self.hidden = conv(width, width)
        self.mask = conv(width, 9 * factor * factor, 1)

    def forward(self, coarse, context):
        b, _, h, w = coarse.shape
        f = self.factor
        mask = 0.5 * self.mask(F.elu(self.hidden(context)))
        mask = mask.view(b, 9, f, f, h, w).softmax(dim=1)
        around = F.unfold(F.pad(coarse, (1, 1, 1, 1), mode="replicate"), 3).view(b, 9, 1, 1, h, w)
        fine = (mask * around).sum(dim=1)
        return fine.permute(0, 3, 1, 4, 2).reshape(b, 1, h * f, w * f)


class DepthNet(nn.Module):
    def __init__(self, widths=(12, 16, 24, 32), width: int = 16):
        super().__init__()
        self.encoder = Encoder(widths)
        self.pyramid = Pyramid(widths[1:], width)
        self.volume = Volume(12)
        self.fuse = nn.Sequential(conv_bn(width + PLANES + 4, 24), conv_bn(24, width))
        self.refine = nn.ModuleList([conv(width, 1) for _ in range(2)])
        self.coarse = conv(width, 1)
        self.upsample = Upsampler(width, 4)

    def forward(self, image, previous, camera, pose):
        levels = self.pyramid(self.encoder(image))
        other = self.pyramid(self.encoder(previous))
        small = rescaled(camera, 0.25)
        alike, inside = plane_sweep(levels[0], other[0], small, pose)
        facts, share = self.volume(alike, inside)
        guess = F.interpolate(torch.sigmoid(self.coarse(levels[1])), size=share.shape[-2:], mode="bilinear",
                              align_corners=False)
        trust = facts[:, 2:3] * facts[:, 3:]
        start = trust * facts[:, :1] + (1 - trust) * guess
        x = self.fuse(torch.cat([levels[0], share, facts], dim=1))
        logit = torch.logit(start, eps=1e-3)
        for head in self.refine:
            logit = logit + 0.5 * torch.tanh(head(x))
            x = x * (1 + torch.sigmoid(logit))
        disparity = self.upsample(torch.sigmoid(logit), x)
        depth = to_depth(disparity)
        points, normal = normals(depth, camera)
        # how much too small the scene is: what lies low and flat should be the ground, the camera's height below
        flat = (-normal[:, 1] - 0.2).clamp(min=0) ** 2
        low = (torch.arange(depth.shape[2]) >= depth.shape[2] // 2).float()[None, :, None]
        weight = flat * low
        height = (weight * points[:, 1]).sum(dim=(1, 2)) / (weight.sum(dim=(1, 2)) + 1e-2)
        scale = CAMERA_HEIGHT / height.clamp(min=0.2)
        return depth, normal, share, trust, scale, roughness(disparity, image)


def build():
    """The net with the same weights on every run, and two pairs of images."""
    torch.manual_seed(12)
    net = DepthNet()
    for name, module in net.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.05, 0.8)
    nn.init.uniform_(net.pyramid.balance, 0.3, 1.5)
    for head in (*net.refine, net.coarse):
        nn.init.normal_(head.weight, std=0.08)
    nn.init.normal_(net.upsample.mask.weight, std=0.2)
    v, u = torch.meshgrid(torch.arange(52) / 52, torch.arange(68) / 68, indexing="ij")
    phase = torch.rand(2, 3, 1, 1) * 6
    image = 0.5 + 0.25 * torch.sin(9 * u + 5 * v**2 + phase) + 0.15 * torch.cos(31 * u * v + 2 * phase)
    image = (image + 0.05 * torch.randn(2, 3, 52, 68)).clamp(0, 1)
    previous = (torch.roll(image, (1, -2), dims=(2, 3)) * 0.95 + 0.02 * torch.randn(2, 3, 52, 68)).clamp(0, 1)
    camera = torch.tensor([[58.0, 57.0, 33.0, 26.5], [64.0, 66.0, 35.0, 24.0]])
    yaw = torch.tensor([0.04, -0.03])
    zero, one = torch.zeros(2), torch.ones(2)
    turn = torch.stack([yaw.cos(), zero, yaw.sin(), zero, one, zero, -yaw.sin(), zero, yaw.cos()], 1).view(2, 3, 3)
    move = torch.tensor([[0.25, 0.03, -0.15], [-0.2, 0.05, 0.2]])[:, :, None]
    return net.eval(), (image, previous, camera, torch.cat([turn, move], dim=2))
