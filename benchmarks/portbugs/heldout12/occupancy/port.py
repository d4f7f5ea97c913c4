"""The pillar net in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

PC_RANGE = np.array([-4.8, -11.0, -3.0, 11.2, 13.0, 1.0], np.float32)
VOXEL = np.array([0.4, 0.5, 4.0], np.float32)
NX, NY = 40, 48
POINTS_PER_PILLAR = 10
STRIDE = 2
HEADS = (("reg", 2), ("height", 1), ("dim", 3), ("rot", 2), ("vel", 2), ("iou", 1))
TASKS = (
    {
        "classes": ("car", "truck"),
        "radius": 2.5,
        "sizes": [[4.5, 1.9, 1.6], [8.0, 2.6, 3.0]],
        "alpha": [0.6, 0.5],
        "small": [False, False],
    },
    {
        "classes": ("pedestrian", "cyclist", "barrier"),
        "radius": 1.2,
        "sizes": [[0.7, 0.7, 1.75], [1.8, 0.6, 1.6], [0.5, 2.4, 1.0]],
        "alpha": [0.25, 0.4, 0.3],
        "small": [True, False, False],
    },
)


def conv3x3(cin, cout, stride=1, dilation=1, bias=False):
    return nn.Conv2d(
        cin, cout, 3, stride=stride, pad_mode="pad", padding=dilation, dilation=dilation, has_bias=bias
    )


def batch_norm(channels):
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.99)


class PointLayer(nn.Cell):
    """Dense, norm and ReLU on every point, and the maximum over each pillar."""

    def __init__(self, cin, cout):
        super().__init__()
        self.cout = cout
        self.linear = nn.Dense(cin, cout, has_bias=False)
        self.norm = nn.BatchNorm1d(cout, eps=1e-3, momentum=0.99)

    def construct(self, points, mask):
        count, places, cin = points.shape
        x = self.norm(self.linear(points.reshape(-1, cin)))
        x = ops.relu(x.reshape(count, places, self.cout)) * mask
        return x, x.max(axis=1, keepdims=True)


class PillarEncoder(nn.Cell):
    """Points gathered into pillars, decorated with offsets, and pooled by maximum and by attention."""

    def __init__(self, tau=0.3):
        super().__init__()
        self.pfn_layers = nn.CellList([PointLayer(12, 12), PointLayer(24, 32)])
        self.query = nn.Dense(64, 16)
        self.score = nn.Dense(16, 32, has_bias=False)
        self.tau = tau
        self.voxel_size = Tensor(VOXEL)
        self.first_centre = Tensor(PC_RANGE[:3] + VOXEL / 2)

    def decorate(self, gathered, mask, coords):
        xyz = gathered[..., :3]
        intensity, lag = gathered[..., 3:4], gathered[..., 4:5]
        recency = mint.exp(-lag / self.tau) * mask
        mean = mint.sum(xyz * recency, dim=1, keepdim=True) / mint.sum(recency, dim=1, keepdim=True)
        cell = ops.stack([coords[:, 3], coords[:, 2], coords[:, 1]], axis=1).astype(ms.float32)
        pillar_centre = cell * self.voxel_size + self.first_centre
        far = ops.sqrt(ops.square(xyz).sum(axis=-1, keepdims=True)) / float(PC_RANGE[4])
        parts = (xyz, ops.tanh(intensity), lag, xyz - mean, xyz - pillar_centre.expand_dims(1), far)
        return ops.concat(parts, axis=-1) * mask

    def attend(self, x, peak, mask):
        """A softmax over the points that are there, one for each channel."""
        spread = ops.broadcast_to(peak, x.shape)
        hidden = ops.tanh(self.query(ops.concat((x - spread, spread), axis=-1)))
        logits = self.score(hidden) * hidden.shape[-1] ** -0.5
        logits = ops.where(mask > 0, logits, Tensor(-1e9, ms.float32))
        return (ops.softmax(logits, axis=1) * x).sum(axis=1)

    def construct(self, points, point_index, num_points, coords):
        gathered = ops.gather(points, ops.clamp(point_index, min=0), 0)
        slots = ops.arange(gathered.shape[1])
        present = slots.expand_dims(0) < num_points.expand_dims(1)
        mask = present.expand_dims(-1).astype(ms.float32)

        x = self.decorate(gathered, mask, coords)
        x, peak = self.pfn_layers[0](x, mask)
        x = ops.concat((x, ops.tile(peak, (1, x.shape[1], 1))), axis=2)
        x, peak = self.pfn_layers[1](x, mask)
        pillars = peak.squeeze(1) + self.attend(x, peak, mask)

        z = gathered[..., 2]
        highest = z.masked_fill(ops.logical_not(present), -1e6).max(axis=1)
        lowest = z.masked_fill(ops.logical_not(present), 1e6).min(axis=1)
        density = ops.log1p(num_points.astype(ms.float32)) / math.log1p(POINTS_PER_PILLAR)
        return ops.concat((pillars, density.expand_dims(1), (highest - lowest).expand_dims(1)), axis=1)


class BirdsEye(nn.Cell):
    """All pillars of the batch at once: a flat index over frames and cells, then channels to the front."""

    def construct(self, pillars, coords, frames):
        cell = (coords[:, 0] * NY + coords[:, 2]) * NX + coords[:, 3]
        canvas = ops.zeros((frames * NY * NX, pillars.shape[1]), ms.float32)
        canvas = ops.tensor_scatter_elements(
            canvas, ops.broadcast_to(cell.expand_dims(1), pillars.shape), pillars, axis=0
        )
        return canvas.reshape(frames, NY, NX, -1).transpose(0, 3, 1, 2)


class DownBlock(nn.Cell):
    """A convolution of stride two, and a residual unit whose second convolution is dilated."""

    def __init__(self, cin, cout):
        super().__init__()
        self.conv = conv3x3(cin, cout, stride=2)
        self.norm = batch_norm(cout)
        self.conv1 = conv3x3(cout, cout)
        self.bn1 = batch_norm(cout)
        self.conv2 = conv3x3(cout, cout, dilation=2)
        self.bn2 = batch_norm(cout)

    def construct(self, x):
        x = ops.relu(self.norm(self.conv(x)))
        inner = ops.relu(self.bn1(self.conv1(x)))
        return ops.relu(self.bn2(self.conv2(inner)) + x)


class Backbone(nn.Cell):
    def __init__(self, cin, filters=(32, 48, 64), up=24):
        super().__init__()
        self.blocks = nn.CellList([DownBlock(a, b) for a, b in zip((cin, *filters), filters)])
        ups = [
            nn.Conv2dTranspose(filters[0], up, 1, stride=1, pad_mode="valid", has_bias=False),
            nn.Conv2dTranspose(filters[1], up, 2, stride=2, pad_mode="valid", has_bias=False),
            nn.Conv2d(filters[2], up, 1, pad_mode="valid", has_bias=False),
        ]
        self.deblocks = nn.CellList([nn.SequentialCell([conv, batch_norm(up), nn.ReLU()]) for conv in ups])
        self.eca = nn.Conv1d(1, 1, 3, pad_mode="pad", padding=1, has_bias=False)

    def construct(self, x):
        first = self.blocks[0](x)
        second = self.blocks[1](first)
        third = self.blocks[2](second)
        fine, middle, coarse = (up(level) for up, level in zip(self.deblocks, (first, second, third)))
        coarse = ops.interpolate(coarse, size=fine.shape[2:], mode="bilinear", align_corners=False)
        x = ops.concat((fine, middle, coarse), axis=1)
        squeezed = x.mean(axis=(2, 3)).expand_dims(1)  # (B, 1, C)
        gate = ops.sigmoid(self.eca(squeezed)).swapaxes(1, 2)
        return x * gate.expand_dims(-1)


class OccupancyHead(nn.Cell):
    def __init__(self, cin, bins=4, classes=3):
        super().__init__()
        self.bins, self.outcomes = bins, classes + 1
        self.conv = nn.SequentialCell(conv3x3(cin, 32), batch_norm(32), nn.ReLU())
        self.predicter = nn.Conv2d(32, bins * self.outcomes, 1, pad_mode="valid", has_bias=True)
        step = (PC_RANGE[5] - PC_RANGE[2]) / bins
        self.heights = Tensor(PC_RANGE[2] + step * (np.arange(bins) + 0.5), ms.float32)

    def split(self, logits):
        b, _, h, w = logits.shape
        return ops.softmax(logits.reshape(b, self.bins, self.outcomes, h, w), axis=2)

    def construct(self, x):
        logits = self.predicter(self.conv(x))
        column = 1 - ops.prod(self.split(logits)[:, :, 0], axis=1, keep_dims=True)

        h, w = logits.shape[2:]
        prob = self.split(ops.interpolate(logits, size=(2 * h, 2 * w), mode="bilinear", align_corners=True))
        free = prob[:, :, 0]
        # a ray from above: what it has passed before it comes to the bin, the highest bin first
        visible = [ops.ones_like(free[:, 0])]
        for k in range(self.bins - 1, 0, -1):
            visible.append(visible[-1] * free[:, k])
        visible = ops.stack(visible[::-1], axis=1)
        hit = visible * (1 - free)
        surface = mint.sum(hit * self.heights.reshape(1, -1, 1, 1), dim=1) / (mint.sum(hit, dim=1) + 1e-2)
        occupancy = (prob[:, :, 1:] * visible.expand_dims(2)).swapaxes(1, 2)
        return occupancy, surface, column


class TaskHead(nn.Cell):
    """The branches of one task."""

    def __init__(self, cin, classes, hidden=24):
        super().__init__()
        self.branches = ("hm", *[name for name, _ in HEADS])
        for name, cout in (("hm", classes), *HEADS):
            branch = nn.SequentialCell(
                conv3x3(cin, hidden), batch_norm(hidden), nn.ReLU(), conv3x3(hidden, cout, bias=True)
            )
            self.insert_child_to_cell(name, branch)

    def construct(self, x):
        return {name: getattr(self, name)(x) for name in self.branches}


def take_places(feature, places):
    """(B, C, H, W) and (B, K) to (B, K, C)."""
    b, c, h, w = feature.shape
    flat = feature.reshape(b, c, h * w).transpose(0, 2, 1)
    index = ops.broadcast_to(places.expand_dims(2), (b, places.shape[1], c))
    return ops.gather_elements(flat, 1, index)


def circle_nms(centres, scores, radius):
    """1 for every centre that stays, 0 for those near one of a higher score that stays."""
    order = ops.argsort(scores, descending=True)
    centres = centres[order]
    apart = ops.square(centres.expand_dims(1) - centres.expand_dims(0)).sum(axis=-1)
    near = (apart <= radius * radius).astype(ms.float32)
    near = ops.triu(near, diagonal=1)
    alive = ops.ones_like(scores)
    for i in range(scores.shape[0]):
        alive = alive * (1 - near[i] * alive[i])
    back = ops.argsort(order)
    return alive[back] > 0


class Decoder:
    """The boxes of one task, without weights of its own."""

    def __init__(self, settings, top=16, threshold=0.12):
        self.top, self.threshold = top, threshold
        self.radius = settings["radius"]
        self.sizes = Tensor(settings["sizes"], ms.float32)
        self.alpha = Tensor(settings["alpha"], ms.float32)
        self.small = Tensor(np.reshape(settings["small"], (1, -1, 1, 1)))
        self.pool = nn.MaxPool2d(kernel_size=3, stride=1, pad_mode="same")
        self.low = Tensor([-4.0, -10.0, -4.0], ms.float32)
        self.high = Tensor([10.5, 12.0, 2.0], ms.float32)

    def find(self, heatmap):
        """Scores, classes and places of the greatest peaks: first in each class, then over all of them."""
        b, c, _, w = heatmap.shape
        is_peak = ops.logical_or(ops.equal(self.pool(heatmap), heatmap), self.small)
        peaks = heatmap * is_peak.astype(heatmap.dtype)
        values, places = ops.topk(peaks.reshape(b, c, -1), self.top)
        scores, best = ops.topk(values.reshape(b, -1), self.top)
        labels = best // self.top
        places = ops.gather_elements(places.reshape(b, -1), 1, best)
        return scores, labels, places, places % w, places // w

    def heading(self, rot, vel):
        """The angle, turned round where the thing would drive backwards."""
        sine, cosine = ops.split(rot, 1, axis=-1)
        yaw = ops.atan2(sine, cosine)
        along = vel[..., 0:1] * ops.cos(yaw) + vel[..., 1:2] * ops.sin(yaw)
        fast = ops.norm(vel, dim=-1, keepdim=True) > 0.5
        yaw = ops.where(ops.logical_and(along < 0, fast), yaw + math.pi, yaw)
        return yaw - ops.floor(yaw / (2 * math.pi) + 0.5) * (2 * math.pi)

    def __call__(self, preds, heatmap):
        scores, labels, places, cols, rows = self.find(heatmap)
        at = {name: take_places(preds[name], places) for name, _ in HEADS}

        cell = ops.stack((cols, rows), axis=-1).astype(ms.float32)
        xy = (cell + at["reg"]) * Tensor(STRIDE * VOXEL[:2]) + Tensor(PC_RANGE[:2])
        size = ops.exp(ops.clamp(at["dim"], -1.0, 1.0)) * ops.gather(self.sizes, labels, 0)
        z = at["height"] + 0.5 * size[..., 2:3]
        yaw = self.heading(at["rot"], at["vel"])
        boxes = ops.concat((xy, z, size, yaw, at["vel"]), axis=-1)

        iou = ops.clamp((at["iou"].squeeze(-1) + 1) / 2, 0.05, 1.0)
        alpha = ops.gather(self.alpha, labels, 0)
        scores = ops.pow(scores, 1 - alpha) * ops.pow(iou, alpha)

        centre = boxes[..., :3]
        inside = ops.logical_and(centre >= self.low, centre <= self.high).all(axis=-1)
        good = ops.logical_and(inside, scores > self.threshold)
        offered = scores * good.astype(ms.float32)
        kept = ops.stack([circle_nms(boxes[b, :, :2], offered[b], self.radius) for b in range(boxes.shape[0])])
        kept = ops.logical_and(kept, good)
        number = kept.astype(ms.float32)
        return boxes * number.expand_dims(-1), scores * number, ops.where(kept, labels, -1)


class DetectionHead(nn.Cell):
    def __init__(self, cin, shared=32):
        super().__init__()
        across = np.linspace(-1, 1, NX // STRIDE, dtype=np.float32)
        along = np.linspace(-1, 1, NY // STRIDE, dtype=np.float32)
        self.grid = Tensor(np.stack(np.meshgrid(across, along))[None])
        self.shared_conv = nn.SequentialCell(conv3x3(cin + 2, shared), batch_norm(shared), nn.ReLU())
        self.tasks = nn.CellList([TaskHead(shared, len(task["classes"])) for task in TASKS])
        self.decoders = [Decoder(task) for task in TASKS]
        self.occ_gain = Parameter(ops.zeros((sum(len(task["classes"]) for task in TASKS),), ms.float32), "occ_gain")

    def construct(self, x, column):
        grid = ops.tile(self.grid, (x.shape[0], 1, 1, 1))
        x = self.shared_conv(ops.concat((x, grid), axis=1))
        prior = ops.log(ops.clamp(column, min=1e-3))
        gains = ops.softplus(self.occ_gain).reshape(1, -1, 1, 1)
        boxes, scores, labels, heatmaps = [], [], [], []
        first = 0
        for head, decoder in zip(self.tasks, self.decoders):
            preds = head(x)
            classes = preds["hm"].shape[1]
            heatmap = ops.sigmoid(preds["hm"] + gains[:, first : first + classes] * prior)
            heatmap = ops.clamp(heatmap, 1e-4, 1 - 1e-4)
            found, score, label = decoder(preds, heatmap)
            boxes.append(found)
            scores.append(score)
            labels.append(ops.where(label < 0, label, label + first))
            heatmaps.append(heatmap)
            first += classes
        return tuple(ops.concat(parts, axis=1) for parts in (boxes, scores, labels, heatmaps))


class PillarOccupancyNet(nn.Cell):
    """Points to boxes of two tasks, and the occupancy of the same scene."""

    def __init__(self):
        super().__init__()
        self.vfe = PillarEncoder()
        self.scatter = BirdsEye()
        self.backbone = Backbone(34)
        self.occ_head = OccupancyHead(72)
        self.dense_head = DetectionHead(72)

    def construct(self, points, point_index, num_points, coords):
        pillars = self.vfe(points, point_index, num_points, coords)
        features = self.backbone(self.scatter(pillars, coords, 2))
        occupancy, surface, column = self.occ_head(features)
        boxes, scores, labels, heatmap = self.dense_head(features, column)
        return boxes, scores, labels, heatmap, occupancy, surface


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return PillarOccupancyNet()
