"""A feed-forward net of 3D Gaussians from a few posed pictures, in the manner of pixelSplat and MVSplat. The reference.

Three context views go through a small CNN and a transformer across views; a plane sweep gives the depth of each pixel,
a head turns each pixel into a Gaussian, and a plain splatting renderer draws the target view.
Cameras are OpenCV's, extrinsics lead from camera to world, intrinsics are normalised by the picture's size.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

C0, C1 = 0.28209479177387814, 0.4886025119029199
C2 = (1.0925484305920792, -1.0925484305920792, 0.31539156525252005, -1.0925484305920792, 0.5462742152960396)


@dataclass
class GaussianConfig:
    image_shape: tuple = (24, 32)
    target_shape: tuple = (20, 28)
    dim: int = 32
    heads: int = 4
    bins: int = 16
    window: tuple = (3, 4)
    sh_degree: int = 2
    scales: tuple = (0.5, 9.0)


@dataclass
class Gaussians:
    means: torch.Tensor
    covariances: torch.Tensor
    harmonics: torch.Tensor
    opacities: torch.Tensor


def sample_image_grid(height: int, width: int, device=None):
    """The centres of the pixels as (x, y) in (0, 1), of shape (H, W, 2)."""
    ys = (torch.arange(height, device=device, dtype=torch.float32) + 0.5) / height
    xs = (torch.arange(width, device=device, dtype=torch.float32) + 0.5) / width
    ys, xs = torch.meshgrid(ys, xs, indexing="ij")
    return torch.stack((xs, ys), dim=-1)


def homogenize(points):
    return F.pad(points, (0, 1), value=1.0)


def get_world_rays(coordinates, extrinsics, intrinsics):
    """Coordinates (..., N, 2) to origins and unit directions (..., N, 3) in the world."""
    directions = torch.einsum("...ij,...nj->...ni", intrinsics.inverse(), homogenize(coordinates))
    directions = directions / directions.norm(dim=-1, keepdim=True)
    directions = torch.einsum("...ij,...nj->...ni", extrinsics[..., :3, :3], directions)
    origins = extrinsics[..., None, :3, 3].expand_as(directions)
    return origins, directions


def window_partition(x, window):
    """(N, H, W, C) to (N * windows, wh * ww, C)."""
    n, h, w, c = x.shape
    x = x.view(n, h // window[0], window[0], w // window[1], window[1], c)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, window[0] * window[1], c)


def window_reverse(x, window, h, w):
    n = x.shape[0] * window[0] * window[1] // (h * w)
    x = x.view(n, h // window[0], w // window[1], window[0], window[1], -1)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, -1)


class CNNEncoder(nn.Module):
    """Features at a half and at a quarter of the picture's size."""

    def __init__(self, dim: int):
        super().__init__()
        self.register_buffer("mean", torch.tensor((0.485, 0.456, 0.406)).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor((0.229, 0.224, 0.225)).view(1, 3, 1, 1), persistent=False)
        self.conv1 = nn.Conv2d(3, 16, 7, 2, 3)
        self.norm1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 24, 3, 2, 1)
        self.norm2 = nn.BatchNorm2d(24)
        self.fuse = nn.Conv2d(24 + 16 * 4, dim, 1)

    def forward(self, images):
        x = (images - self.mean) / self.std
        half = F.relu(self.norm1(self.conv1(x)))
        quarter = F.relu(self.norm2(self.conv2(half)))
        quarter = self.fuse(torch.cat((quarter, F.pixel_unshuffle(half, 2)), dim=1))
        return {"half": half, "quarter": quarter}


def split_heads(x, heads: int):
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


class WindowSelfAttention(nn.Module):
    """Swin's attention inside each view; every second one shifted by half a window."""

    def __init__(self, dim: int, heads: int, grid, window, shifted: bool):
        super().__init__()
        self.heads, self.grid, self.window = heads, grid, window
        self.shift = (window[0] // 2, window[1] // 2) if shifted else (0, 0)
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.position_bias = nn.Parameter(torch.randn((2 * window[0] - 1) * (2 * window[1] - 1), heads) * 0.9)
        self.merge = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        coords = torch.stack(torch.meshgrid(torch.arange(window[0]), torch.arange(window[1]), indexing="ij")).flatten(1)
        relative = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0).contiguous()
        relative += torch.tensor((window[0] - 1, window[1] - 1))
        relative[..., 0] *= 2 * window[1] - 1
        self.register_buffer("position_index", relative.sum(-1), persistent=False)
        self.register_buffer("mask", self.shift_mask() if shifted else None, persistent=False)

    def shift_mask(self):
        h, w = self.grid
        regions = torch.zeros(1, h, w, 1)
        parts = [(slice(0, -win), slice(-win, -sh), slice(-sh, None)) for win, sh in zip(self.window, self.shift)]
        for count, (rows, columns) in enumerate(itertools.product(*parts)):
            regions[:, rows, columns] = count
        regions = window_partition(regions, self.window).squeeze(-1)
        differs = regions[:, None, :] != regions[:, :, None]
        return torch.zeros(differs.shape).masked_fill(differs, -100.0)

    def forward(self, x):
        n, tokens, c = x.shape
        h, w = self.grid
        source = torch.roll(x.view(n, h, w, c), (-self.shift[0], -self.shift[1]), dims=(1, 2))
        windows = window_partition(source, self.window)
        q, k, v = [split_heads(proj(windows), self.heads) for proj in (self.q_proj, self.k_proj, self.v_proj)]
        scores = q @ k.transpose(-2, -1) / math.sqrt(c // self.heads)
        bias = self.position_bias[self.position_index.view(-1)].view(*self.position_index.shape, self.heads)
        scores = scores + bias.permute(2, 0, 1).unsqueeze(0)
        if self.mask is not None:
            scores = scores + self.mask.repeat(n, 1, 1).unsqueeze(1)
        message = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(windows.shape)
        message = torch.roll(window_reverse(message, self.window, h, w), self.shift, dims=(1, 2))
        return x + self.norm(self.merge(message.view(n, tokens, c)))


class CrossViewAttention(nn.Module):
    """Each view asks all others; where two rays are far apart (their reciprocal product is not 0) it listens less."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.ray_gain = nn.Parameter(torch.linspace(0.5, 2.0, heads))
        self.merge = nn.Linear(dim, dim)
        self.norm1 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(2 * dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.norm2 = nn.LayerNorm(dim)

    def forward(self, x, rays):
        batch, views, tokens, c = x.shape
        outs = []
        for i in range(views):
            rest = [j for j in range(views) if j != i]
            source, target = x[:, i], x[:, rest].flatten(1, 2)
            q, k, v = self.q_proj(source), self.k_proj(target), self.v_proj(target)
            q, k, v = (split_heads(part, self.heads) for part in (q, k, v))
            scores = q @ k.transpose(-2, -1) / math.sqrt(c // self.heads)
            here, there = rays[:, i], rays[:, rest].flatten(1, 2).transpose(-2, -1)
            distance = (here[..., :3] @ there[:, 3:] + here[..., 3:] @ there[:, :3]).abs()
            scores = scores - F.softplus(self.ray_gain).view(1, -1, 1, 1) * distance.unsqueeze(1)
            message = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(batch, tokens, c)
            message = self.mlp(torch.cat((source, self.norm1(self.merge(message))), dim=-1))
            outs.append(source + self.norm2(message))
        return torch.stack(outs, dim=1)


class TransformerBlock(nn.Module):
    def __init__(self, dim: int, heads: int, grid, window, shifted: bool):
        super().__init__()
        self.self_attn = WindowSelfAttention(dim, heads, grid, window, shifted)
        self.cross_attn = CrossViewAttention(dim, heads)

    def forward(self, x, rays):
        x = self.self_attn(x.flatten(0, 1)).view(x.shape)
        return self.cross_attn(x, rays)


class MultiViewTransformer(nn.Module):
    def __init__(self, cfg: GaussianConfig):
        super().__init__()
        self.grid = tuple(size // 4 for size in cfg.image_shape)
        self.ray_embed = nn.Conv2d(6, cfg.dim, 4, 4)
        shifts = (False, True)
        self.layers = nn.ModuleList([TransformerBlock(cfg.dim, cfg.heads, self.grid, cfg.window, x) for x in shifts])

    def forward(self, features, rays):
        """Features (B, V, C, h, w) and the rays of all pixels (B, V, 6, H, W)."""
        b, v, c, h, w = features.shape
        embedded = self.ray_embed(rays.flatten(0, 1)).view(b, v, c, h * w)
        tokens = (features.flatten(-2) + embedded).transpose(-2, -1)
        token_rays = F.avg_pool2d(rays.flatten(0, 1), 4).view(b, v, 6, h * w).transpose(-2, -1)
        for layer in self.layers:
            tokens = layer(tokens, token_rays)
        return tokens.transpose(-2, -1).reshape(b, v, c, h, w)


def warp_with_depth_candidates(feature, source_intrinsics, target_intrinsics, pose, depth):
    """The target's features as the source's pixels see them at each depth (B, D); the pose leads from source to target."""
    (b, c, h, w), d = feature.shape, depth.shape[1]
    coords = homogenize(sample_image_grid(h, w, feature.device)).view(1, h * w, 3).transpose(1, 2).expand(b, -1, -1)
    points = torch.bmm(torch.inverse(source_intrinsics), coords)
    points = torch.bmm(pose[:, :3, :3], points).unsqueeze(2) * depth.view(b, 1, d, 1)
    points = points + pose[:, :3, 3].view(b, 3, 1, 1)
    points = torch.bmm(target_intrinsics, points.reshape(b, 3, d * h * w)).view(b, 3, d, h * w)
    z = points[:, 2]
    grid = (points[:, :2] / z.clamp(min=1e-3).unsqueeze(1)) * 2.0 - 1.0
    seen = (z > 1e-3) & (grid.abs() <= 1.0).all(dim=1)
    grid = grid.permute(0, 2, 3, 1).reshape(b, d * h, w, 2)
    warped = F.grid_sample(feature, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return warped.view(b, c, d, h, w), seen.view(b, d, h, w).float()


class DepthPredictor(nn.Module):
    """Cost volume by plane sweep, the expected inverse depth, and its refinement at half size."""

    def __init__(self, cfg: GaussianConfig):
        super().__init__()
        self.bins = cfg.bins
        self.register_buffer("fractions", torch.linspace(0.0, 1.0, cfg.bins), persistent=False)
        self.corr_conv1 = nn.Conv2d(cfg.bins + cfg.dim, 32, 3, 1, 1)
        self.corr_norm = nn.GroupNorm(8, 32)
        self.corr_conv2 = nn.Conv2d(32, cfg.bins, 3, 1, 1)
        self.refine = nn.Sequential(nn.Conv2d(16 + 2, 24, 3, 1, 1), nn.GELU(), nn.Conv2d(24, 2, 3, 1, 1))

    def cost_volume(self, features, intrinsics, extrinsics, depths):
        b, views, c, h, w = features.shape
        volumes = []
        for i in range(views):
            total, count = 0.0, 0.0
            for j in range(views):
                if i == j:
                    continue
                pose = torch.matmul(extrinsics[:, j].inverse(), extrinsics[:, i])
                inner = (intrinsics[:, i], intrinsics[:, j])
                warped, seen = warp_with_depth_candidates(features[:, j], *inner, pose, depths[:, i])
                score = (features[:, i].unsqueeze(2) * warped).sum(dim=1) / math.sqrt(c)
                total = total + score * seen
                count = count + seen
            volumes.append(total / count.clamp(min=1.0))
        return torch.stack(volumes, dim=1)

    def forward(self, features, half, intrinsics, extrinsics, near, far):
        b, v, _, h, w = features.shape
        low, high = 1.0 / far, 1.0 / near
        candidates = low.unsqueeze(-1) + self.fractions * (high - low).unsqueeze(-1)
        cost = self.cost_volume(features, intrinsics, extrinsics, 1.0 / candidates).flatten(0, 1)
        x = self.corr_conv1(torch.cat((cost, features.flatten(0, 1)), dim=1))
        cost = cost + self.corr_conv2(F.gelu(self.corr_norm(x)))
        cost = F.interpolate(cost, scale_factor=2, mode="bilinear", align_corners=True)
        pdf = cost.softmax(dim=1)
        disparity = (pdf * candidates.view(b * v, self.bins, 1, 1)).sum(dim=1, keepdim=True)
        confidence = pdf.max(dim=1, keepdim=True).values
        low, high = low.view(-1, 1, 1, 1), high.view(-1, 1, 1, 1)
        relative = (disparity - low) / (high - low)
        delta, density = self.refine(torch.cat((half.flatten(0, 1), relative, confidence), dim=1)).chunk(2, dim=1)
        disparity = (disparity + delta.tanh() * (high - low) / (self.bins - 1)).clamp(min=low, max=high)
        density = density.sigmoid() * (0.5 + 0.5 * confidence)
        return (1.0 / disparity).view(b, v, 2 * h, 2 * w), density.view(b, v, 2 * h, 2 * w)


def quaternion_to_matrix(quaternions, eps: float = 1e-8):
    """(..., 4), the real part last, to (..., 3, 3)."""
    i, j, k, r = torch.unbind(quaternions, dim=-1)
    two_s = 2 / ((quaternions * quaternions).sum(dim=-1) + eps)
    o = torch.stack(
        (
            1 - two_s * (j * j + k * k), two_s * (i * j - k * r), two_s * (i * k + j * r),
            two_s * (i * j + k * r), 1 - two_s * (i * i + k * k), two_s * (j * k - i * r),
            two_s * (i * k - j * r), two_s * (j * k + i * r), 1 - two_s * (i * i + j * j),
        ),
        -1,
    )  # fmt: skip
    return o.view(*quaternions.shape[:-1], 3, 3)


class GaussianHead(nn.Module):
    """One Gaussian for each pixel of the half-size picture."""

    def __init__(self, cfg: GaussianConfig):
        super().__init__()
        self.scales, self.exponent = cfg.scales, 1.5
        self.d_sh = (cfg.sh_degree + 1) ** 2
        convs = (nn.Conv2d(cfg.dim + 16 + 3, 48, 3, 1, 1), nn.Conv2d(48, 2 + 3 + 4 + 3 * self.d_sh, 1))
        self.to_gaussians = nn.Sequential(convs[0], nn.GELU(), convs[1])
        sh_mask = torch.ones(self.d_sh)
        for degree in range(1, cfg.sh_degree + 1):
            sh_mask[degree**2 : (degree + 1) ** 2] = 0.8 * 0.5**degree
        self.register_buffer("sh_mask", sh_mask, persistent=False)

    def forward(self, images, features, half, depth, density, intrinsics, extrinsics):
        b, v, h, w = depth.shape
        upper = F.interpolate(features.flatten(0, 1), size=(h, w), mode="bilinear", align_corners=False)
        small = F.avg_pool2d(images.flatten(0, 1), 2)
        raw = self.to_gaussians(torch.cat((upper, half.flatten(0, 1), small), dim=1))
        raw = raw.view(b, v, -1, h * w).transpose(-2, -1)
        offset, scales, rotations, sh = raw.split((2, 3, 4, 3 * self.d_sh), dim=-1)
        pixel_size = 1.0 / torch.tensor((w, h), dtype=torch.float32, device=raw.device)
        coords = sample_image_grid(h, w, raw.device).view(h * w, 2) + (offset.sigmoid() - 0.5) * pixel_size
        origins, directions = get_world_rays(coords, extrinsics, intrinsics)
        depth = depth.flatten(2).unsqueeze(-1)
        means = origins + directions * depth
        pixel = torch.einsum("bvij,j->bvi", intrinsics[..., :2, :2].inverse(), pixel_size).sum(dim=-1)
        scales = torch.lerp(*scales.new_tensor(self.scales), scales.sigmoid()) * depth * pixel[..., None, None] * 0.1
        rotations = rotations / (rotations.norm(dim=-1, keepdim=True) + 1e-8)
        factor = extrinsics[..., None, :3, :3] @ quaternion_to_matrix(rotations) @ scales.diag_embed()
        covariances = factor @ factor.transpose(-2, -1)
        harmonics = sh.view(b, v, h * w, 3, self.d_sh) * self.sh_mask
        pdf = density.flatten(2)
        opacities = 0.5 * (1 - (1 - pdf) ** self.exponent + pdf ** (1 / self.exponent))
        return Gaussians(*(x.flatten(1, 2) for x in (means, covariances, harmonics, opacities)))


def eval_sh(sh, directions):
    """Spherical harmonics of degree 2: (N, 3, 9) and unit (N, 3) to colours (N, 3)."""
    x, y, z = directions[..., 0:1], directions[..., 1:2], directions[..., 2:3]
    xx, yy, zz, xy, yz, xz = x * x, y * y, z * z, x * y, y * z, x * z
    result = C0 * sh[..., 0] - C1 * y * sh[..., 1] + C1 * z * sh[..., 2] - C1 * x * sh[..., 3]
    result = result + C2[0] * xy * sh[..., 4] + C2[1] * yz * sh[..., 5] + C2[2] * (2.0 * zz - xx - yy) * sh[..., 6]
    return result + C2[3] * xz * sh[..., 7] + C2[4] * (xx - yy) * sh[..., 8]


class SplatRenderer(nn.Module):
    """Elliptical weighted average splatting of all Gaussians onto all pixels, front to back."""

    def __init__(self, cfg: GaussianConfig, near: float = 0.2, blur: float = 0.3):
        super().__init__()
        self.shape, self.near, self.blur = cfg.target_shape, near, blur
        height, width = cfg.target_shape
        pixels = sample_image_grid(height, width).view(-1, 2) * torch.tensor((width, height), dtype=torch.float32)
        self.register_buffer("pixels", pixels, persistent=False)
        self.register_buffer("background", torch.tensor((0.35, 0.2, 0.6)), persistent=False)

    def project(self, means, covariances, w2c, intrinsics):
        height, width = self.shape
        fx, fy = intrinsics[0, 0] * width, intrinsics[1, 1] * height
        cx, cy = intrinsics[0, 2] * width, intrinsics[1, 2] * height
        camera = means @ w2c[:3, :3].T + w2c[:3, 3]
        x, y, z = camera.unbind(dim=-1)
        z = z.clamp(min=self.near)
        zero = torch.zeros_like(z)
        jacobian = torch.stack((fx / z, zero, -fx * x / z**2, zero, fy / z, -fy * y / z**2), dim=-1).view(-1, 2, 3)
        transform = jacobian @ w2c[:3, :3]
        flat = transform @ covariances @ transform.transpose(-2, -1)
        flat = flat + self.blur * torch.eye(2, device=flat.device)
        centres = torch.stack((fx * x / z + cx, fy * y / z + cy), dim=-1)
        return centres, flat, z, camera[:, 2] > self.near

    def render(self, gaussians: Gaussians, index: int, extrinsics, intrinsics):
        means, harmonics = gaussians.means[index], gaussians.harmonics[index]
        centres, flat, z, visible = self.project(means, gaussians.covariances[index], extrinsics.inverse(), intrinsics)
        directions = means - extrinsics[:3, 3]
        directions = directions / directions.norm(dim=-1, keepdim=True)
        colours = (eval_sh(harmonics, directions) + 0.5).clamp(min=0.0)
        opacities = gaussians.opacities[index] * visible
        order = torch.argsort(z)
        centres, flat, z, colours, opacities = (x[order] for x in (centres, flat, z, colours, opacities))
        a, b, c = flat[:, 0, 0], flat[:, 0, 1], flat[:, 1, 1]
        dx, dy = (self.pixels[:, None] - centres).unbind(dim=-1)
        power = -0.5 * (c * dx * dx + a * dy * dy - 2 * b * dx * dy) / (a * c - b * b)
        alpha = (opacities * power.exp()).clamp(max=0.99)
        through = torch.cumprod(torch.cat((torch.ones_like(alpha[:, :1]), 1 - alpha), dim=1), dim=1)
        weights = alpha * through[:, :-1]
        image = weights @ colours + through[:, -1:] * self.background
        covered = weights.sum(dim=1)
        depth = weights @ z / covered.clamp(min=1e-3)
        return image.T.reshape(3, *self.shape), depth.view(self.shape), covered.view(self.shape)

    def forward(self, gaussians, extrinsics, intrinsics):
        drawn = [self.render(gaussians, i, extrinsics[i], intrinsics[i]) for i in range(extrinsics.shape[0])]
        return tuple(torch.stack(x) for x in zip(*drawn))


class GaussianNet(nn.Module):
    def __init__(self, cfg: GaussianConfig):
        super().__init__()
        self.backbone = CNNEncoder(cfg.dim)
        self.transformer = MultiViewTransformer(cfg)
        self.depth_predictor = DepthPredictor(cfg)
        self.gaussian_head = GaussianHead(cfg)
        self.renderer = SplatRenderer(cfg)

    def forward(self, images, intrinsics, extrinsics, near, far, target_intrinsics, target_extrinsics):
        b, v, _, height, width = images.shape
        pyramid = {name: x.view(b, v, *x.shape[1:]) for name, x in self.backbone(images.flatten(0, 1)).items()}
        grid = sample_image_grid(height, width, images.device).view(-1, 2)
        origins, directions = get_world_rays(grid.expand(b, v, -1, -1), extrinsics, intrinsics)
        rays = torch.cat((directions, torch.cross(origins, directions, dim=-1)), dim=-1)
        rays = rays.transpose(-2, -1).reshape(b, v, 6, height, width)
        features = self.transformer(pyramid["quarter"], rays)
        depth, density = self.depth_predictor(features, pyramid["half"], intrinsics, extrinsics, near, far)
        gaussians = self.gaussian_head(images, features, pyramid["half"], depth, density, intrinsics, extrinsics)
        image, target_depth, covered = self.renderer(gaussians, target_extrinsics, target_intrinsics)
        return image, target_depth, covered, gaussians.means, gaussians.covariances, gaussians.opacities, depth


def look_at(eye, centre, roll):
    forward = (centre - eye) / np.linalg.norm(centre - eye)
    right = np.cross((math.sin(roll), math.cos(roll), 0.0), forward)
    right = right / np.linalg.norm(right)
    pose = np.stack((right, np.cross(forward, right), forward, eye), axis=1)
    return np.concatenate((pose, [[0, 0, 0, 1]]))


def make_inputs(batch=2, views=3, height=24, width=32):
    rng = np.random.RandomState(11)
    rows, columns = np.arange(height).reshape(-1, 1), np.arange(width).reshape(1, -1)
    waves, phase = rng.uniform(0.1, 0.7, (2, batch, 1, 3, 1, 1)), rng.uniform(0, 6, (batch, views, 3, 1, 1))
    images = 0.5 + 0.35 * np.sin(waves[0] * rows + 0.3 * phase) * np.cos(waves[1] * columns - phase)
    images = np.clip(images + rng.uniform(-0.12, 0.12, images.shape), 0, 1)
    intrinsics, extrinsics = np.zeros((batch, views + 1, 3, 3)), np.zeros((batch, views + 1, 4, 4))
    for b in range(batch):
        for n in range(views + 1):
            angle = 0.45 * (n - 1) + 0.2 * b if n < views else 0.25 - 0.4 * b
            eye = np.array([2.6 * math.sin(angle), 0.5 * math.cos(2 * n + b), -2.6 * math.cos(angle) + 0.2 * n])
            extrinsics[b, n] = look_at(eye, rng.uniform(-0.2, 0.2, 3) + (0.3, 0.1, 0.6), rng.uniform(-0.3, 0.3))
            fx, cx, cy = rng.uniform(0.75, 1.2), rng.uniform(0.44, 0.56), rng.uniform(0.44, 0.56)
            intrinsics[b, n] = [[fx, 0, cx], [0, fx * rng.uniform(1.2, 1.45), cy], [0, 0, 1]]
    near, far = rng.uniform(1.2, 1.6, (batch, views)), rng.uniform(5.0, 7.0, (batch, views))
    arrays = (images, intrinsics[:, :views], extrinsics[:, :views], near, far, intrinsics[:, views], extrinsics[:, views])
    return tuple(np.ascontiguousarray(x, dtype=np.float32) for x in arrays)


def build():
    torch.manual_seed(0)
    net = GaussianNet(GaussianConfig())
    for module in net.modules():
        if isinstance(module, (nn.LayerNorm, nn.BatchNorm2d, nn.GroupNorm)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.2, 1.2)
        if isinstance(module, nn.Conv2d):
            nn.init.xavier_uniform_(module.weight, gain=1.5)
            nn.init.normal_(module.bias, std=0.3)
    return net.eval(), tuple(torch.from_numpy(x) for x in make_inputs())
