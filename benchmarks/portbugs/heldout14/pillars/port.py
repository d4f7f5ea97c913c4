"""The pillar detector with a centre head in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import mint, nn, ops

PC_RANGE = (0.0, -12.8, -3.0, 32.0, 12.8, 1.0)
PILLAR = (0.4, 0.4)
NX, NY = 80, 64
POINTS = 8
CLASSES = (("car", "truck"), ("pedestrian", "cyclist", "cone"))
BRANCHES = (("reg", 2), ("height", 1), ("dim", 3), ("rot", 2), ("vel", 2), ("iou", 1))


def points_mask(counts, size):
    """(V, size): True where a slot of the pillar holds a point."""
    return mint.unsqueeze(counts, 1) > ops.arange(size).expand_dims(0)


def conv3x3(cin, cout, stride=1, bias=False):
    return nn.Conv2d(cin, cout, 3, stride=stride, pad_mode="pad", padding=1, has_bias=bias)


def conv_norm_relu(conv, channels):
    return [conv, nn.BatchNorm2d(channels, eps=1e-3, momentum=0.99), nn.ReLU()]


class PFN(nn.Cell):
    """Dense, norm, ReLU and the masked maximum over the points."""

    def __init__(self, cin, cout, last):
        super().__init__()
        self.last = last
        self.units = cout if last else cout // 2
        self.linear = nn.Dense(cin, self.units, has_bias=False)
        self.norm = nn.BatchNorm1d(self.units, eps=1e-3, momentum=0.99)

    def construct(self, x, mask):
        v, p, _ = x.shape
        x = self.linear(x).reshape(v * p, self.units)
        x = ops.relu(self.norm(x)).reshape(v, p, self.units)
        best = ops.masked_fill(x, ops.logical_not(mask.expand_dims(-1)), -1e30).amax(axis=1, keepdims=True)
        if self.last:
            return best
        return mint.cat((x, mint.tile(best, (1, p, 1))), dim=2)


class PillarGate(nn.Cell):
    """Weights by point, by channel and by pillar."""

    def __init__(self, channels, points, reduction=4):
        super().__init__()
        self.point_fc = nn.SequentialCell(
            nn.Dense(points, points // 2), nn.LeakyReLU(alpha=0.01), nn.Dense(points // 2, points)
        )
        self.channel_fc = nn.SequentialCell(
            nn.Dense(channels, channels // reduction),
            nn.LeakyReLU(alpha=0.01),
            nn.Dense(channels // reduction, channels),
        )
        self.squeeze = nn.Dense(channels + 3, 1)
        self.gather = nn.Dense(points, 1)

    def construct(self, x, center, mask):
        keep = mask.astype(ms.float32)
        x = x * keep.expand_dims(-1)
        by_point = self.point_fc(x.amax(axis=2))
        by_channel = self.channel_fc(x.amax(axis=1))
        x = x * mint.sigmoid(mint.matmul(by_point.expand_dims(2), by_channel.expand_dims(1)))
        center = ops.broadcast_to(center / 10.0, (-1, x.shape[1], -1))
        pillar = self.squeeze(mint.cat((x, center), dim=2))[..., 0] * keep
        gate = mint.sigmoid(self.gather(ops.relu(pillar)))
        return x * gate.expand_dims(2)


class PillarEncoder(nn.Cell):
    """Points of a pillar to one vector."""

    def __init__(self, raw=5, width=32):
        super().__init__()
        self.gate = PillarGate(width, POINTS)
        self.pfn = nn.CellList([PFN(raw + 6, width, False), PFN(2 * width, width, True)])
        self.size = ms.Tensor(PILLAR, ms.float32)
        self.origin = ms.Tensor([PILLAR[0] / 2 + PC_RANGE[0], PILLAR[1] / 2 + PC_RANGE[1]], ms.float32)

    def construct(self, voxels, counts, coords):
        xyz = voxels[..., :3]
        mean = xyz.sum(axis=1, keepdims=True) / counts.astype(ms.float32).reshape(-1, 1, 1)
        cell_xy = coords[:, 1:].flip((1,)).astype(ms.float32) * self.size + self.origin
        to_center = voxels[..., :2] - cell_xy.expand_dims(1)
        distance = mint.sqrt(mint.sum(xyz * xyz, dim=-1, keepdim=True))
        intensity = mint.tanh(voxels[..., 3:4])
        x = mint.cat((xyz, intensity, voxels[..., 4:], xyz - mean, to_center, distance), dim=-1)
        mask = points_mask(counts, voxels.shape[1])
        x = x * mask.astype(ms.float32).expand_dims(-1)
        x = self.pfn[0](x, mask)
        x = mint.cat((x, self.gate(x, mean, mask)), dim=-1)
        return self.pfn[1](x, mask)[:, 0]


def to_canvas(pillars, coords, batch):
    """All frames at once: one long row of cells, then frame, row and column, channels first."""
    where = (coords[:, 0] * NY + coords[:, 1]) * NX + coords[:, 2]
    flat = ops.scatter_nd(where.expand_dims(1).astype(ms.int32), pillars, (batch * NY * NX, pillars.shape[1]))
    return flat.reshape(batch, NY, NX, -1).transpose(0, 3, 1, 2)


class ResBlock(nn.Cell):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = conv3x3(channels, channels)
        self.bn1 = nn.BatchNorm2d(channels, eps=1e-3, momentum=0.99)
        self.conv2 = conv3x3(channels, channels)
        self.bn2 = nn.BatchNorm2d(channels, eps=1e-3, momentum=0.99)

    def construct(self, x):
        out = ops.relu(self.bn1(self.conv1(x)))
        return ops.relu(self.bn2(self.conv2(out)) + x)


class Neck(nn.Cell):
    """Three levels going down, all brought to the first one's size, joined and gated by channel."""

    def __init__(self, cin=32, depths=(1, 2, 1), channels=(32, 48, 64), up=24):
        super().__init__()
        blocks = []
        for depth, cout in zip(depths, channels):
            down = conv_norm_relu(conv3x3(cin, cout, stride=2), cout)
            blocks.append(nn.SequentialCell(*down, *[ResBlock(cout) for _ in range(depth)]))
            cin = cout
        self.blocks = nn.CellList(blocks)
        lateral = nn.Conv2d(channels[0], up, 1, has_bias=False)
        double = nn.Conv2dTranspose(channels[1], up, 2, stride=2, pad_mode="valid", has_bias=False)
        self.deblocks = nn.CellList(
            [
                nn.SequentialCell(*conv_norm_relu(lateral, up)),
                nn.SequentialCell(*conv_norm_relu(double, up)),
                nn.SequentialCell(*conv_norm_relu(conv3x3(channels[2], up), up)),
            ]
        )
        self.se_reduce = nn.Conv2d(3 * up, 3 * up // 4, 1, has_bias=True)
        self.se_expand = nn.Conv2d(3 * up // 4, 3 * up, 1, has_bias=True)

    def construct(self, x):
        fine = self.blocks[0](x)
        middle = self.blocks[1](fine)
        coarse = self.blocks[2](middle)
        size = tuple(fine.shape[2:])
        coarse = ops.interpolate(coarse, size=size, mode="bilinear", align_corners=False)
        joined = ops.cat((self.deblocks[0](fine), self.deblocks[1](middle), self.deblocks[2](coarse)), axis=1)
        scale = ops.mean(joined, (2, 3), keep_dims=True)
        scale = self.se_expand(ops.relu(self.se_reduce(scale)))
        return joined * ops.sigmoid(scale)


class TaskHead(nn.Cell):
    """One branch for each thing that is foretold, the heat map last."""

    def __init__(self, cin, classes, width=24):
        super().__init__()
        self.names = [name for name, _ in BRANCHES] + ["hm"]
        self.branches = nn.CellList(
            [
                nn.SequentialCell(
                    conv3x3(cin, width, bias=True),
                    nn.BatchNorm2d(width, eps=1e-5),
                    nn.ReLU(),
                    conv3x3(width, cout, bias=True),
                )
                for cout in [cout for _, cout in BRANCHES] + [classes]
            ]
        )

    def construct(self, x):
        return [branch(x) for branch in self.branches]


def take_cells(feature, index):
    """(B, C, H, W) at (B, K) places: (B, K, C)."""
    b, c, h, w = feature.shape
    rows = feature.transpose(0, 2, 3, 1).reshape(b, h * w, c)
    return ops.gather(rows, index, 1, batch_dims=1)


def upright(boxes):
    """The upright rectangle nearest to each turned box."""
    half = boxes[..., 3:5] * 0.5
    heading = boxes[..., 6]
    heading = heading - mint.floor(heading / math.pi + 0.5) * math.pi
    turned = (mint.abs(heading) > math.pi / 4).expand_dims(-1)
    half = mint.where(turned, mint.flip(half, (-1,)), half)
    return boxes[..., :2] - half, boxes[..., :2] + half


def overlaps(boxes):
    low, high = upright(boxes)
    wh = ops.minimum(high.expand_dims(2), high.expand_dims(1)) - ops.maximum(low.expand_dims(2), low.expand_dims(1))
    wh = mint.clamp(wh, min=0.0)
    shared = wh[..., 0] * wh[..., 1]
    area = (high - low)[..., 0] * (high - low)[..., 1]
    union = area.expand_dims(2) + area.expand_dims(1) - shared
    return shared / mint.clamp(union, min=1e-6)


class BoxDecoder(nn.Cell):
    """Maps of one task to its boxes, scores and labels."""

    def __init__(self, names, first, alpha, top_k=16, stride=2, sigma=2.0):
        super().__init__()
        self.first = first
        self.top_k = top_k
        self.sigma = sigma
        self.step = (stride * PILLAR[0], stride * PILLAR[1])
        small = [name in ("pedestrian", "cone") for name in names]
        self.small = ms.Tensor(np.array(small).reshape(1, -1, 1, 1))
        self.alpha = ms.Tensor(alpha, ms.float32)
        self.low = ms.Tensor([2.0, -12.0, -3.0], ms.float32)
        self.high = ms.Tensor([30.5, 12.0, 2.0], ms.float32)
        self.pool = nn.MaxPool2d(kernel_size=3, stride=1, pad_mode="valid")

    def peaks(self, heat):
        """Keeps what is the greatest of its neighbourhood; the border has none, things that are small are their own."""
        around = ops.pad(self.pool(heat), (1, 1, 1, 1), mode="constant", value=0.0)
        peak = mint.logical_or(self.small, heat == around)
        return heat * peak.astype(heat.dtype)

    def best(self, heat):
        b, c, h, w = heat.shape
        scores, cells = ops.topk(heat.reshape(b, c, h * w), self.top_k)
        scores, chosen = ops.topk(scores.reshape(b, -1), self.top_k)
        cells = ops.gather_elements(cells.reshape(b, -1), 1, chosen)
        return scores, chosen // self.top_k, cells, cells // w, cells % w

    def suppress(self, boxes, scores, labels):
        iou = ops.triu(overlaps(boxes), diagonal=1)
        same = labels.expand_dims(2) == labels.expand_dims(1)
        iou = iou * same.astype(iou.dtype)
        worst = iou.amax(axis=1).expand_dims(2)
        decay = mint.exp(-self.sigma * (mint.square(iou) - mint.square(worst)))
        return scores * decay.amin(axis=1)

    def construct(self, maps):
        reg, height, dim, rot, vel, iou, hm = maps
        heat = self.peaks(ops.clamp(ops.sigmoid(hm), 1e-4, 1 - 1e-4))
        scores, labels, cells, ys, xs = self.best(heat)
        reg = take_cells(reg, cells)
        sizes = mint.exp(mint.clamp(take_cells(dim, cells), min=-4.0, max=4.0))
        rot = take_cells(rot, cells)
        heading = ops.atan2(rot[..., :1], rot[..., 1:])
        x = (xs.astype(ms.float32).expand_dims(-1) + reg[..., :1]) * self.step[0] + PC_RANGE[0]
        y = (ys.astype(ms.float32).expand_dims(-1) + reg[..., 1:]) * self.step[1] + PC_RANGE[1]
        boxes = mint.cat((x, y, take_cells(height, cells), sizes, heading, take_cells(vel, cells)), dim=-1)
        alpha = self.alpha[labels]
        quality = mint.clamp((take_cells(iou, cells)[..., 0] + 1) * 0.5, min=0.0, max=1.0)
        scores = mint.pow(scores, 1 - alpha) * mint.pow(quality, alpha)
        scores, order = ops.sort(scores, axis=1, descending=True)
        boxes = ops.gather(boxes, order, 1, batch_dims=1)
        labels = ops.gather_elements(labels, 1, order)
        scores = self.suppress(boxes, scores, labels)
        inside = mint.logical_and(boxes[..., :3] >= self.low, boxes[..., :3] <= self.high).all(axis=-1)
        return boxes, scores * inside.astype(scores.dtype), labels + self.first


class Detector(nn.Cell):
    """Pillars of points to boxes, scores and classes."""

    def __init__(self, share=32):
        super().__init__()
        self.reader = PillarEncoder()
        self.neck = Neck()
        self.shared_conv = conv3x3(72, share)
        self.shared_norm = nn.GroupNorm(4, share, eps=1e-5)
        self.heads = nn.CellList([TaskHead(share, len(names)) for names in CLASSES])
        alphas = ([0.68, 0.55], [0.71, 0.65, 0.5])
        starts = (0, len(CLASSES[0]))
        self.decoders = nn.CellList([BoxDecoder(*task) for task in zip(CLASSES, starts, alphas)])

    def construct(self, voxels, counts, coords):
        batch = int(coords[:, 0].max()) + 1
        canvas = to_canvas(self.reader(voxels, counts, coords), coords, batch)
        x = ops.relu(self.shared_norm(self.shared_conv(self.neck(canvas))))
        found = [decoder(head(x)) for head, decoder in zip(self.heads, self.decoders)]
        boxes, scores, labels = (ops.cat(parts, axis=1) for parts in zip(*found))
        return boxes, scores, labels


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Detector()
