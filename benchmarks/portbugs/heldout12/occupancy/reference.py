"""Pillars of lidar points to boxes and a small occupancy volume (PointPillars, CenterPoint), in PyTorch: the reference."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

POINT_CLOUD_RANGE = (-4.8, -11.0, -3.0, 11.2, 13.0, 1.0)
VOXEL_SIZE = (0.4, 0.5, 4.0)
GRID_SIZE = (40, 48)  # nx, ny
MAX_POINTS = 10
OUT_STRIDE = 2
TASKS = (("car", "truck"), ("pedestrian", "cyclist", "barrier"))


def limit_period(val, offset=0.5, period=math.pi):
    """The angle plus as many periods as bring it to [-offset, 1 - offset) of one."""
    return val - torch.floor(val / period + offset) * period


def transpose_and_gather_feat(feat, ind):
    """(B, C, H, W) at (B, K) places of H times W gives (B, K, C)."""
    feat = feat.permute(0, 2, 3, 1).flatten(1, 2)
    return feat.gather(1, ind.unsqueeze(2).expand(-1, -1, feat.size(2)))


def scatter_to_bev(pillars, coords, batch_size):
    """(P, C) pillars at their cells of an empty canvas: (B, C, ny, nx)."""
    nx, ny = GRID_SIZE
    canvases = []
    for b in range(batch_size):
        canvas, here = pillars.new_zeros(pillars.shape[1], nx * ny), coords[:, 0] == b
        canvas[:, coords[here, 2] * nx + coords[here, 3]] = pillars[here].t()
        canvases.append(canvas)
    return torch.stack(canvases, 0).view(batch_size, -1, ny, nx)


def circle_nms(xy, scores, min_radius):
    """Greedy, by falling score: a kept centre silences all later ones within the radius. Returns a mask of the kept."""
    order = torch.argsort(scores, descending=True)
    dist = (xy.unsqueeze(1) - xy.unsqueeze(0)).pow(2).sum(-1)
    keep = torch.zeros_like(scores, dtype=torch.bool)
    suppressed = torch.zeros_like(keep)
    for i in order.tolist():
        if not suppressed[i]:
            keep[i] = True
            suppressed = suppressed | (dist[i] <= min_radius**2)
    return keep


class PFNLayer(nn.Module):
    """Linear, norm, ReLU on each point; the pillar's maximum goes along to the next layer."""

    def __init__(self, in_channels, out_channels, last_layer=False):
        super().__init__()
        self.last_vfe = last_layer
        self.units = out_channels if last_layer else out_channels // 2
        self.linear = nn.Linear(in_channels, self.units, bias=False)
        self.norm = nn.BatchNorm1d(self.units, eps=1e-3, momentum=0.01)

    def forward(self, inputs, mask):
        x = self.linear(inputs)
        x = self.norm(x.permute(0, 2, 1).contiguous()).permute(0, 2, 1).contiguous()
        x = F.relu(x) * mask
        x_max = torch.max(x, dim=1, keepdim=True)[0]
        if self.last_vfe:
            return x, x_max
        return torch.cat([x, x_max.repeat(1, inputs.shape[1], 1)], dim=2)


class AttentivePool(nn.Module):
    """A masked softmax over the points of a pillar, beside the maximum."""

    def __init__(self, channels, hidden):
        super().__init__()
        self.query = nn.Linear(2 * channels, hidden)
        self.score = nn.Linear(hidden, channels, bias=False)

    def forward(self, x, x_max, mask):
        context = torch.cat([x - x_max, x_max.expand_as(x)], dim=-1)
        score = self.score(torch.tanh(self.query(context))) / math.sqrt(self.score.in_features)
        return (torch.softmax(score.masked_fill(mask == 0, -1e9), dim=1) * x).sum(dim=1)


class PillarVFE(nn.Module):
    """Raw points with their offsets to the pillar's (recent) mean and to its geometric centre."""

    def __init__(self, channels=(24, 32), tau=0.3):
        super().__init__()
        widths = [5 + 3 + 3 + 1, *channels]
        self.pfn_layers = nn.ModuleList(
            [PFNLayer(widths[i], widths[i + 1], last_layer=i == len(widths) - 2) for i in range(len(widths) - 1)]
        )
        self.pool = AttentivePool(channels[-1], 16)
        self.tau = tau
        self.register_buffer("voxel_size", torch.tensor(VOXEL_SIZE))
        self.register_buffer("offset", torch.tensor([POINT_CLOUD_RANGE[i] + VOXEL_SIZE[i] / 2 for i in range(3)]))

    def forward(self, points, point_index, num_points, coords):
        voxels = points[point_index.clamp(min=0)]  # (P, M, 5): x, y, z, intensity, lag
        mask = (torch.arange(voxels.shape[1]) < num_points.unsqueeze(1)).unsqueeze(-1).type_as(voxels)
        xyz = voxels[:, :, :3]
        weight = torch.exp(-voxels[:, :, 4:5] / self.tau) * mask
        f_cluster = xyz - (xyz * weight).sum(dim=1, keepdim=True) / weight.sum(dim=1, keepdim=True)
        centre = coords[:, [3, 2, 1]].type_as(voxels) * self.voxel_size + self.offset  # coords: batch, z, y, x
        distance = torch.norm(xyz, p=2, dim=2, keepdim=True) / POINT_CLOUD_RANGE[4]
        intensity, lag = torch.tanh(voxels[:, :, 3:4]), voxels[:, :, 4:5]
        x = torch.cat([xyz, intensity, lag, f_cluster, xyz - centre.unsqueeze(1), distance], dim=-1) * mask
        for pfn in self.pfn_layers[:-1]:
            x = pfn(x, mask)
        x, x_max = self.pfn_layers[-1](x, mask)
        pillars = x_max.squeeze(1) + self.pool(x, x_max, mask)
        z, absent = voxels[:, :, 2], mask.squeeze(-1) == 0
        top, bottom = z.masked_fill(absent, -math.inf).amax(dim=1), z.masked_fill(absent, math.inf).amin(dim=1)
        density = torch.log1p(num_points.type_as(z)) / math.log1p(MAX_POINTS)
        return torch.cat([pillars, torch.stack([density, top - bottom], dim=1)], dim=1)


class ResidualUnit(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=2, dilation=2, bias=False)
        self.bn2 = nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + x)


def conv_bn_relu(conv, channels):
    return [conv, nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01), nn.ReLU()]


class BaseBEVBackbone(nn.Module):
    """Three levels, each half the size of the one before; all are brought to the first one's size and concatenated."""

    def __init__(self, in_channels, filters=(32, 48, 64), up_channels=24):
        super().__init__()
        widths = [in_channels, *filters]
        self.blocks, self.deblocks = nn.ModuleList(), nn.ModuleList()
        for level, channels in enumerate(filters):
            down = conv_bn_relu(nn.Conv2d(widths[level], channels, 3, stride=2, padding=0, bias=False), channels)
            self.blocks.append(nn.Sequential(nn.ZeroPad2d(1), *down, ResidualUnit(channels)))
            if level < 2:
                conv = nn.ConvTranspose2d(channels, up_channels, 2**level, stride=2**level, bias=False)
            else:
                conv = nn.Conv2d(channels, up_channels, 1, bias=False)
            self.deblocks.append(nn.Sequential(*conv_bn_relu(conv, up_channels)))
        self.eca = nn.Conv1d(1, 1, 3, padding=1, bias=False)  # efficient channel attention: along the channels' means

    def forward(self, x):
        ups = []
        for i, block in enumerate(self.blocks):
            x = block(x)
            y = self.deblocks[i](x)
            if ups and y.shape[-2:] != ups[0].shape[-2:]:  # no transposed convolution for the coarsest
                y = F.interpolate(y, size=ups[0].shape[-2:], mode="bilinear", align_corners=False)
            ups.append(y)
        x = torch.cat(ups, dim=1)
        gate = self.eca(F.adaptive_avg_pool2d(x, 1).squeeze(-1).transpose(-1, -2)).transpose(-1, -2)
        return x * torch.sigmoid(gate).unsqueeze(-1)


class OccupancyHead(nn.Module):
    """Channels to heights: a class distribution for each bin above a cell, what is seen of it from above, and how high."""

    def __init__(self, in_channels, num_bins=4, num_classes=3):
        super().__init__()
        self.num_bins, self.num_classes = num_bins, num_classes
        self.conv = nn.Sequential(*conv_bn_relu(nn.Conv2d(in_channels, 32, 3, padding=1, bias=False), 32))
        self.predicter = nn.Conv2d(32, num_bins * (num_classes + 1), 1)
        height = (POINT_CLOUD_RANGE[5] - POINT_CLOUD_RANGE[2]) / num_bins
        self.register_buffer("bin_centers", POINT_CLOUD_RANGE[2] + (torch.arange(num_bins) + 0.5) * height)

    def forward(self, x):
        logits = self.predicter(self.conv(x))
        b, _, h, w = logits.shape
        coarse = logits.view(b, self.num_bins, self.num_classes + 1, h, w)
        column = 1 - torch.softmax(coarse, dim=2)[:, :, 0].prod(dim=1, keepdim=True)
        fine = F.interpolate(logits, scale_factor=2, mode="bilinear", align_corners=True)
        fine = fine.view(b, self.num_bins, self.num_classes + 1, 2 * h, 2 * w).permute(0, 2, 1, 3, 4)
        prob = torch.softmax(fine, dim=1)
        free = prob[:, 0]  # (B, Z, H, W), the lowest bin first
        above = torch.cumprod(torch.flip(free, dims=[1]), dim=1)
        visible = torch.flip(torch.cat([torch.ones_like(above[:, :1]), above[:, :-1]], dim=1), dims=[1])
        hit = visible * (1 - free)
        surface = (hit * self.bin_centers.view(1, -1, 1, 1)).sum(dim=1) / (hit.sum(dim=1) + 1e-2)
        return prob[:, 1:] * visible.unsqueeze(1), surface, column


class SeparateHead(nn.Module):
    def __init__(self, in_channels, heads, head_channels=24):
        super().__init__()
        self.head_names = list(heads)
        for name, channels in heads.items():
            fc = conv_bn_relu(nn.Conv2d(in_channels, head_channels, 3, padding=1, bias=False), head_channels)
            self.add_module(name, nn.Sequential(*fc, nn.Conv2d(head_channels, channels, 3, padding=1)))

    def forward(self, x):
        return {name: getattr(self, name)(x) for name in self.head_names}


class CenterBoxCoder(nn.Module):
    """Peaks of the heatmap to boxes: x, y, z, dx, dy, dz, yaw, vx, vy."""

    def __init__(self, task, max_objs=16, score_threshold=0.12):
        super().__init__()
        self.max_objs, self.score_threshold = max_objs, score_threshold
        self.min_radius = (2.5, 1.2)[task]
        sizes = ([[4.5, 1.9, 1.6], [8.0, 2.6, 3.0]], [[0.7, 0.7, 1.75], [1.8, 0.6, 1.6], [0.5, 2.4, 1.0]])[task]
        self.register_buffer("mean_sizes", torch.tensor(sizes))
        self.register_buffer("iou_alpha", torch.tensor(([0.6, 0.5], [0.25, 0.4, 0.3])[task]))
        self.register_buffer("small_object", torch.tensor(([0, 0], [1, 0, 0])[task]).bool().view(1, -1, 1, 1))
        self.register_buffer("center_range", torch.tensor([-4.0, -10.0, -4.0, 10.5, 12.0, 2.0]))

    def local_peaks(self, heatmap):
        """Everything that is not the greatest of its 3 x 3 is zero, but for small things that stand close together."""
        peak = F.max_pool2d(heatmap, kernel_size=3, stride=1, padding=1)
        return heatmap * ((peak == heatmap) | self.small_object).type_as(heatmap)

    def topk(self, scores):
        batch, cat, height, width = scores.size()
        topk_scores, topk_inds = torch.topk(scores.view(batch, cat, -1), self.max_objs)
        topk_ys = torch.div(topk_inds, width, rounding_mode="floor").float()
        topk_xs = (topk_inds % width).float()
        topk_score, topk_ind = torch.topk(topk_scores.view(batch, -1), self.max_objs)
        topk_clses = torch.div(topk_ind, self.max_objs, rounding_mode="floor")
        picked = [t.view(batch, -1).gather(1, topk_ind) for t in (topk_inds, topk_ys, topk_xs)]
        return topk_score, topk_clses, *picked

    def forward(self, preds, heatmap):
        scores, labels, inds, ys, xs = self.topk(self.local_peaks(heatmap))
        feat = {k: transpose_and_gather_feat(v, inds) for k, v in preds.items() if k != "hm"}
        vel = feat["vel"]
        xs = (xs.unsqueeze(2) + feat["reg"][..., 0:1]) * OUT_STRIDE * VOXEL_SIZE[0] + POINT_CLOUD_RANGE[0]
        ys = (ys.unsqueeze(2) + feat["reg"][..., 1:2]) * OUT_STRIDE * VOXEL_SIZE[1] + POINT_CLOUD_RANGE[1]
        dim = torch.exp(feat["dim"].clamp(min=-1.0, max=1.0)) * self.mean_sizes[labels]
        zs = feat["height"] + dim[..., 2:3] / 2  # predicted at the ground
        yaw = torch.atan2(feat["rot"][..., 0:1], feat["rot"][..., 1:2])
        against = (vel[..., 0:1] * torch.cos(yaw) + vel[..., 1:2] * torch.sin(yaw)) < 0
        turn = against & (vel.norm(dim=-1, keepdim=True) > 0.5)
        yaw = limit_period(yaw + math.pi * turn.type_as(yaw), period=2 * math.pi)
        iou = ((feat["iou"].squeeze(-1) + 1) * 0.5).clamp(0.05, 1.0)
        alpha = self.iou_alpha[labels]
        scores = torch.pow(scores, 1 - alpha) * torch.pow(iou, alpha)
        boxes = torch.cat([xs, ys, zs, dim, yaw, vel], dim=-1)
        mask = (boxes[..., :3] >= self.center_range[:3]).all(-1) & (boxes[..., :3] <= self.center_range[3:]).all(-1)
        mask &= scores > self.score_threshold
        keep = torch.stack([circle_nms(b[:, :2], s * m, self.min_radius) for b, s, m in zip(boxes, scores, mask)])
        keep &= mask
        return boxes * keep.unsqueeze(-1), scores * keep, labels.masked_fill(~keep, -1)


class CenterHead(nn.Module):
    def __init__(self, in_channels, shared_channels=32):
        super().__init__()
        nx, ny = GRID_SIZE[0] // OUT_STRIDE, GRID_SIZE[1] // OUT_STRIDE
        rows, cols = torch.meshgrid(torch.linspace(-1, 1, ny), torch.linspace(-1, 1, nx), indexing="ij")
        self.register_buffer("grid", torch.stack([cols, rows]).unsqueeze(0), persistent=False)
        conv = nn.Conv2d(in_channels + 2, shared_channels, 3, padding=1, bias=False)
        self.shared_conv = nn.Sequential(*conv_bn_relu(conv, shared_channels))
        common = {"reg": 2, "height": 1, "dim": 3, "rot": 2, "vel": 2, "iou": 1}
        self.heads_list = nn.ModuleList([SeparateHead(shared_channels, {"hm": len(t), **common}) for t in TASKS])
        self.coders = nn.ModuleList([CenterBoxCoder(i) for i in range(len(TASKS))])
        self.occ_gain = nn.Parameter(torch.zeros(sum(len(t) for t in TASKS)))

    def forward(self, x, column):
        x = self.shared_conv(torch.cat([x, self.grid.expand(x.shape[0], -1, -1, -1)], dim=1))
        prior = torch.log(column.clamp(min=1e-3))
        start, results, heatmaps = 0, [], []
        for task, (head, coder) in enumerate(zip(self.heads_list, self.coders)):
            preds = head(x)
            gain = self.occ_gain[start : start + len(TASKS[task])].view(1, -1, 1, 1)
            heatmap = torch.sigmoid(preds["hm"] + F.softplus(gain) * prior).clamp(min=1e-4, max=1 - 1e-4)
            boxes, scores, labels = coder(preds, heatmap)
            results.append((boxes, scores, torch.where(labels >= 0, labels + start, labels)))
            heatmaps.append(heatmap)
            start += len(TASKS[task])
        return (*[torch.cat(parts, dim=1) for parts in zip(*results)], torch.cat(heatmaps, dim=1))


class PillarOccupancyNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.vfe = PillarVFE()
        self.backbone_2d = BaseBEVBackbone(32 + 2)
        self.occ_head = OccupancyHead(72)
        self.dense_head = CenterHead(72)

    def forward(self, points, point_index, num_points, coords):
        pillars = self.vfe(points, point_index, num_points, coords)
        features = self.backbone_2d(scatter_to_bev(pillars, coords, batch_size=2))
        occupancy, surface, column = self.occ_head(features)
        boxes, scores, labels, heatmap = self.dense_head(features, column)
        return boxes, scores, labels, heatmap, occupancy, surface


def make_pillars(rng, batch_size=2, count=450):
    """Ground and things on it; then each pillar's list of places among all points, -1 where there is none."""
    low, high = np.array(POINT_CLOUD_RANGE[:3]), np.array(POINT_CLOUD_RANGE[3:])
    clouds, index, number, coords, first = [], [], [], [], 0
    for b in range(batch_size):
        ground = rng.uniform(low, high, (count, 3)) * [1, 1, 0.05] - [0, 0, 1.8]
        things = np.repeat(rng.uniform(low, high, (15, 3)) * [1, 1, 0] - [0, 0, 1], count // 15, 0)
        cloud = np.concatenate([ground, things + rng.normal(0, 1, things.shape) * [0.7, 0.5, 0.5]])
        cloud = cloud[np.all((cloud > low) & (cloud < high), axis=1)]
        cells = ((cloud[:, :2] - low[:2]) / VOXEL_SIZE[:2]).astype(int)
        for cell in rng.permutation(np.unique(cells, axis=0)):
            members = np.flatnonzero((cells == cell).all(1))[:MAX_POINTS]
            index.append(np.pad(members + first, (0, MAX_POINTS - len(members)), constant_values=-1))
            number.append(len(members))
            coords.append([b, 0, cell[1], cell[0]])
        first += len(cloud)
        intensity, lag = rng.gamma(1.0, 0.5, len(cloud)), rng.integers(0, 5, len(cloud)) * 0.1
        clouds.append(np.column_stack([cloud, intensity, lag]))
    return torch.tensor(np.concatenate(clouds)).float(), *(torch.tensor(np.array(a)) for a in (index, number, coords))


def build():
    """The net with the same weights on every run, and two frames of points in pillars."""
    torch.manual_seed(47)
    net = PillarOccupancyNet()
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.uniform_(module.weight, 0.5, 1.3)
            nn.init.normal_(module.bias, std=0.2)
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.15, 1.5)
    net.vfe.pfn_layers[0].norm.running_var.mul_(12)
    nn.init.uniform_(net.vfe.pfn_layers[1].norm.running_var, 0.01, 0.3)
    nn.init.normal_(net.backbone_2d.eca.weight, std=0.8)
    nn.init.normal_(net.dense_head.occ_gain, std=0.8)
    net.occ_head.predicter.weight.data.mul_(4)
    net.occ_head.predicter.bias.data[::4] += 1.5
    for head in net.dense_head.heads_list:
        for name in head.head_names:
            weight = getattr(head, name)[-1].weight.data
            weight.sub_(weight.mean(dim=(1, 2, 3), keepdim=True)).mul_(1.5 if name == "reg" else 5.0)
        for name, value in (("hm", -0.6), ("reg", 0.5), ("height", -1.5)):
            nn.init.constant_(getattr(head, name)[-1].bias, value)
    return net.eval(), make_pillars(np.random.default_rng(47))
