"""A set-prediction detector for 3D boxes from several cameras, in the manner of DETR3D. In PyTorch: the reference.

Queries carry a point in space; the point and a few learnt neighbours are projected into every camera, the pyramids are
sampled there, and each decoder layer moves the point a little. Boxes are (cx, cy, w, l, cz, h, sin, cos, vx, vy).
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

PC_RANGE = (-20.0, -24.0, -3.0, 20.0, 24.0, 5.0)
CENTRE_RANGE = (-18.0, -21.0, -2.6, 18.0, 21.0, 4.2)
PIXEL_MEAN = (103.53, 116.28, 123.675)
PIXEL_STD = (57.375, 57.12, 58.395)


def inverse_sigmoid(x, eps: float = 1e-5):
    x = x.clamp(min=0.0, max=1.0)
    return torch.log(x.clamp(min=eps) / (1.0 - x).clamp(min=eps))


def to_metres(points):
    """Places in [0, 1] to metres in the range of the point cloud."""
    low = points.new_tensor(PC_RANGE[:3])
    high = points.new_tensor(PC_RANGE[3:])
    return points * (high - low) + low


def sine_embedding(points, features: int, temperature: float = 20.0):
    """(..., 3) to (..., 3 * features): y first, then x, then z."""
    points = points * 2.0 * math.pi
    steps = torch.arange(features, dtype=torch.float32)
    steps = temperature ** (2.0 * torch.div(steps, 2, rounding_mode="floor") / features)
    parts = []
    for axis in (1, 0, 2):
        angle = points[..., axis, None] / steps
        parts.append(torch.stack((angle[..., 0::2].sin(), angle[..., 1::2].cos()), dim=-1).flatten(-2))
    return torch.cat(parts, dim=-1)


def project(points, lidar2img, sizes, padded):
    """Points (B, Q, P, 3) to places of grid_sample (B, N, Q, P, 2), and which of them their camera sees."""
    batch, queries, count, _ = points.shape
    cameras = lidar2img.shape[1]
    points = torch.cat((points, torch.ones_like(points[..., :1])), dim=-1)
    points = points.view(batch, 1, queries * count, 4, 1).expand(-1, cameras, -1, -1, -1)
    seen = torch.matmul(lidar2img.unsqueeze(2), points).squeeze(-1)
    depth = seen[..., 2]
    pixels = seen[..., :2] / depth.clamp(min=0.5).unsqueeze(-1)
    height, width = sizes[..., 0].unsqueeze(-1), sizes[..., 1].unsqueeze(-1)
    mask = depth > 0.5
    mask = mask & (pixels[..., 0] > 0) & (pixels[..., 0] < width)
    mask = mask & (pixels[..., 1] > 0) & (pixels[..., 1] < height)
    grid = pixels / pixels.new_tensor((padded[1], padded[0]))
    grid = (grid - 0.5) * 2.0
    shape = (batch, cameras, queries, count)
    return grid.view(*shape, 2), mask.view(shape)


class BasicBlock(nn.Module):
    def __init__(self, inplanes: int, planes: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes, eps=1e-3)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes, eps=1e-3)
        self.downsample = None
        if stride != 1 or inplanes != planes:
            self.downsample = nn.Sequential(
                nn.Conv2d(inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes, eps=1e-3)
            )

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + identity)


class Backbone(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.conv = nn.Conv2d(3, widths[0], 7, 2, 3, bias=False)
        self.bn = nn.BatchNorm2d(widths[0], eps=1e-3)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.layers = nn.ModuleList()
        before = widths[0]
        for index, width in enumerate(widths):
            self.layers.append(BasicBlock(before, width, 1 if index == 0 else 2))
            before = width

    def forward(self, x):
        x = self.pool(F.relu(self.bn(self.conv(x))))
        outs = []
        for layer in self.layers:
            x = layer(x)
            outs.append(x)
        return outs


class FPN(nn.Module):
    """Three levels from the backbone and one more made of the last."""

    def __init__(self, widths, dim: int):
        super().__init__()
        self.lateral_convs = nn.ModuleList([nn.Conv2d(width, dim, 1) for width in widths])
        self.fpn_convs = nn.ModuleList([nn.Conv2d(dim, dim, 3, padding=1) for _ in widths])
        self.extra = nn.Conv2d(dim, dim, 3, 2, 1)

    def forward(self, features):
        laterals = [conv(feature) for conv, feature in zip(self.lateral_convs, features)]
        for i in range(len(laterals) - 1, 0, -1):
            laterals[i - 1] = laterals[i - 1] + F.interpolate(laterals[i], size=laterals[i - 1].shape[2:], mode="nearest")
        outs = [conv(lateral) for conv, lateral in zip(self.fpn_convs, laterals)]
        outs.append(self.extra(F.relu(outs[-1])))
        return outs


class DistanceAttention(nn.Module):
    """Self-attention whose scores fall with the distance of the queries' points, for each head at its own rate."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.tau = nn.Linear(dim, heads)
        self.out_proj = nn.Linear(dim, dim)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, query, query_pos, reference):
        batch, count, dim = query.shape
        placed = query + query_pos
        q, k, v = self.split(self.q_proj(placed)), self.split(self.k_proj(placed)), self.split(self.v_proj(query))
        scores = q @ k.transpose(-2, -1) / math.sqrt(dim // self.heads)
        centres = to_metres(reference)[..., :2]
        distance = (centres.unsqueeze(2) - centres.unsqueeze(1)).pow(2).sum(-1).sqrt()
        tau = F.softplus(self.tau(query)).permute(0, 2, 1)
        scores = scores - 0.2 * distance.unsqueeze(1) * tau.unsqueeze(-1)
        out = scores.softmax(dim=-1) @ v
        return self.out_proj(out.transpose(1, 2).reshape(batch, count, dim))


class CrossAttention(nn.Module):
    """Samples all cameras and levels at the query's points, and weighs what the cameras really see."""

    def __init__(self, dim: int, cameras: int, levels: int, points: int, groups: int, reach: float = 3.0):
        super().__init__()
        self.cameras, self.levels, self.points, self.groups, self.reach = cameras, levels, points, groups, reach
        self.sampling_offsets = nn.Linear(dim, points * 3)
        self.attention_weights = nn.Linear(dim, groups * cameras * points * levels)
        self.output_proj = nn.Linear(dim, dim)
        self.position_encoder = nn.Sequential(nn.Linear(dim * 3 // 2, dim), nn.LayerNorm(dim), nn.ReLU(), nn.Linear(dim, dim))

    def forward(self, query, query_pos, features, reference, lidar2img, sizes, padded):
        batch, count, dim = query.shape
        placed = query + query_pos
        offsets = torch.tanh(self.sampling_offsets(placed)).view(batch, count, self.points, 3) * self.reach
        points = to_metres(reference).unsqueeze(2) + offsets
        grid, mask = project(points, lidar2img, sizes, padded)
        sampled = []
        for feature in features:
            level = F.grid_sample(feature.flatten(0, 1), grid.flatten(0, 1), mode="bilinear", padding_mode="zeros", align_corners=False)
            level = level.view(batch, self.cameras, self.groups, dim // self.groups, count, self.points)
            sampled.append(level.permute(0, 4, 2, 3, 1, 5))
        sampled = torch.stack(sampled, dim=-1)
        weights = self.attention_weights(placed).sigmoid()
        weights = weights.view(batch, count, self.groups, 1, self.cameras, self.points, self.levels)
        visible = mask.permute(0, 2, 1, 3).float()
        weights = weights * visible.view(batch, count, 1, 1, self.cameras, self.points, 1)
        hits = visible.sum(dim=(2, 3)).clamp(min=1.0)
        out = (sampled * weights).sum(dim=(-3, -2, -1)).reshape(batch, count, dim) / hits.unsqueeze(-1)
        place = self.position_encoder(sine_embedding(reference, dim // 2))
        return query + self.output_proj(out) + place


class DecoderLayer(nn.Module):
    def __init__(self, dim: int, heads: int, cameras: int, levels: int, points: int, groups: int):
        super().__init__()
        self.self_attn = DistanceAttention(dim, heads)
        self.norm1 = nn.LayerNorm(dim)
        self.cross_attn = CrossAttention(dim, cameras, levels, points, groups)
        self.norm2 = nn.LayerNorm(dim)
        self.linear1 = nn.Linear(dim, 2 * dim)
        self.linear2 = nn.Linear(2 * dim, dim)
        self.norm3 = nn.LayerNorm(dim)

    def forward(self, query, query_pos, features, reference, lidar2img, sizes, padded):
        query = self.norm1(query + self.self_attn(query, query_pos, reference))
        query = self.norm2(self.cross_attn(query, query_pos, features, reference, lidar2img, sizes, padded))
        return self.norm3(query + self.linear2(F.relu(self.linear1(query))))


class Detr3D(nn.Module):
    def __init__(self, classes=6, queries=24, dim=32, cameras=4, depth=3, heads=4, points=3, groups=2, top=14):
        super().__init__()
        widths = (12, 16, 24)
        self.classes, self.top = classes, top
        self.backbone = Backbone(widths)
        self.neck = FPN(widths, dim)
        self.camera_embeds = nn.Parameter(torch.randn(cameras, dim) * 0.3)
        self.level_embeds = nn.Parameter(torch.randn(len(widths) + 1, dim) * 0.3)
        self.query_embedding = nn.Embedding(queries, dim * 2)
        self.reference_points = nn.Linear(dim, 3)
        self.layers = nn.ModuleList([DecoderLayer(dim, heads, cameras, len(widths) + 1, points, groups) for _ in range(depth)])
        self.cls_branches = nn.ModuleList(
            [nn.Sequential(nn.Linear(dim, dim), nn.LayerNorm(dim), nn.ReLU(), nn.Linear(dim, classes)) for _ in range(depth)]
        )
        self.reg_branches = nn.ModuleList(
            [nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 10)) for _ in range(depth)]
        )

    def extract(self, images, sizes):
        """Normalised pixels, black outside the valid part, through backbone and neck, with both embeddings."""
        batch, cameras, _, height, width = images.shape
        mean = images.new_tensor(PIXEL_MEAN).view(3, 1, 1)
        std = images.new_tensor(PIXEL_STD).view(3, 1, 1)
        images = (images - mean) / std
        rows = torch.arange(height).view(1, 1, height, 1) < sizes[..., 0].view(batch, cameras, 1, 1)
        columns = torch.arange(width).view(1, 1, 1, width) < sizes[..., 1].view(batch, cameras, 1, 1)
        images = images * (rows & columns).unsqueeze(2)
        features = []
        for level, feature in enumerate(self.neck(self.backbone(images.flatten(0, 1)))):
            feature = feature.view(batch, cameras, *feature.shape[1:])
            embed = self.camera_embeds + self.level_embeds[level]
            features.append(feature + embed.view(1, cameras, -1, 1, 1))
        return features

    def decode(self, logits, boxes):
        """The best of all queries and classes of the last layer; a box outside the centre range scores 0."""
        batch = logits.shape[0]
        scores, places = logits.sigmoid().flatten(1).topk(self.top, dim=1)
        labels = places % self.classes
        picked = torch.div(places, self.classes, rounding_mode="floor")
        picked = boxes.gather(1, picked.unsqueeze(-1).expand(batch, self.top, boxes.shape[-1]))
        centre = torch.cat((picked[..., 0:2], picked[..., 4:5]), dim=-1)
        size = torch.cat((picked[..., 2:4], picked[..., 5:6]), dim=-1).exp()
        yaw = torch.atan2(picked[..., 6:7], picked[..., 7:8])
        centre = torch.cat((centre[..., :2], centre[..., 2:] - 0.5 * size[..., 2:]), dim=-1)
        low, high = centre.new_tensor(CENTRE_RANGE[:3]), centre.new_tensor(CENTRE_RANGE[3:])
        keep = ((centre >= low) & (centre <= high)).all(dim=-1)
        return torch.cat((centre, size, yaw, picked[..., 8:10]), dim=-1), scores * keep, labels

    def forward(self, images, lidar2img, sizes):
        batch, padded = images.shape[0], images.shape[-2:]
        features = self.extract(images, sizes)
        query_pos, query = self.query_embedding.weight.chunk(2, dim=-1)
        query_pos = query_pos.unsqueeze(0).expand(batch, -1, -1)
        query = query.unsqueeze(0).expand(batch, -1, -1)
        reference = self.reference_points(query_pos).sigmoid()
        all_logits, all_boxes = [], []
        for layer, classify, regress in zip(self.layers, self.cls_branches, self.reg_branches):
            query = layer(query, query_pos, features, reference, lidar2img, sizes, padded)
            delta = regress(query)
            moved = torch.cat((delta[..., 0:2], delta[..., 4:5]), dim=-1) + inverse_sigmoid(reference)
            reference = moved.sigmoid()
            metres = to_metres(reference)
            boxes = torch.cat((metres[..., :2], delta[..., 2:4], metres[..., 2:], delta[..., 5:]), dim=-1)
            all_logits.append(classify(query))
            all_boxes.append(boxes)
        best = self.decode(all_logits[-1], all_boxes[-1])
        return (torch.stack(all_logits), torch.stack(all_boxes)) + best


def make_inputs(batch=2, cameras=4, height=52, width=84):
    """Images with a black border below and at the right, and cameras that look around from the roof."""
    rng = np.random.RandomState(7)
    rows, columns = np.arange(height).reshape(-1, 1), np.arange(width).reshape(1, -1)
    waves, phase = rng.uniform(0.03, 0.25, (2, batch, cameras, 3, 1, 1)), rng.uniform(0, 6, (batch, cameras, 3, 1, 1))
    images = 120 + 90 * np.sin(waves[0] * rows + phase) * np.cos(waves[1] * columns - phase)
    images = (images + rng.uniform(-20, 20, images.shape)).astype(np.float32)
    sizes = np.array([[[52, 84], [44, 84], [52, 72], [48, 76]], [[46, 80], [52, 84], [40, 84], [52, 66]]], np.int64)
    matrices = np.zeros((batch, cameras, 4, 4), np.float32)
    for b in range(batch):
        for n in range(cameras):
            yaw = 2 * math.pi * n / cameras + 0.15 * b + rng.uniform(-0.1, 0.1)
            forward, right = (math.cos(yaw), math.sin(yaw)), (math.sin(yaw), -math.cos(yaw))
            turn = np.array([[right[0], right[1], 0], [0, 0, -1], [forward[0], forward[1], 0]])
            move = -turn @ np.array([0.8 * forward[0], 0.8 * forward[1], 1.6])
            focal = rng.uniform(34, 44)
            inner = np.array([[focal, 0, sizes[b, n, 1] / 2], [0, focal, sizes[b, n, 0] / 2], [0, 0, 1]])
            matrices[b, n, :3] = inner @ np.concatenate((turn, move[:, None]), axis=1)
            matrices[b, n, 3, 3] = 1
    return images, matrices, sizes


def build():
    torch.manual_seed(0)
    net = Detr3D()
    for module in net.modules():
        if isinstance(module, (nn.LayerNorm, nn.BatchNorm2d)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.2, 1.5)
    nn.init.normal_(net.reference_points.weight, std=0.25)
    for layer in net.layers:
        nn.init.normal_(layer.cross_attn.sampling_offsets.weight, std=0.15)
        nn.init.normal_(layer.cross_attn.attention_weights.weight, std=0.2)
    for classify, regress in zip(net.cls_branches, net.reg_branches):
        nn.init.normal_(classify[-1].weight, std=0.3)
        nn.init.normal_(regress[-1].weight, std=0.15)
    return net.eval(), tuple(torch.from_numpy(x) for x in make_inputs())
