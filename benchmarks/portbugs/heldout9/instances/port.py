"""The small two-stage instance segmenter in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

STRIDES = (4, 8, 16, 32)
LONGEST = math.log(1000.0 / 16)


def base_anchors(size, ratios):
    """The anchors (x1, y1, x2, y2) of one size around the origin; a ratio is height over width."""
    root = np.sqrt(np.asarray(ratios, np.float32))
    heights, widths = size * root, size / root
    return np.stack([-widths, -heights, widths, heights], axis=1) / 2


def decode(deltas, boxes, weights):
    """Boxes moved and stretched by deltas (dx, dy, dw, dh)."""
    dx, dy, dw, dh = ops.unbind(deltas / Tensor(weights, deltas.dtype), -1)
    x1, y1, x2, y2 = ops.unbind(boxes, -1)
    w, h = x2 - x1, y2 - y1
    cx = dx * w + x1 + 0.5 * w
    cy = dy * h + y1 + 0.5 * h
    half_w = 0.5 * w * ops.exp(ops.clamp(dw, max=LONGEST))
    half_h = 0.5 * h * ops.exp(ops.clamp(dh, max=LONGEST))
    return ops.stack([cx - half_w, cy - half_h, cx + half_w, cy + half_h], axis=-1)


def clip(boxes, sizes):
    """Boxes (B, N, 4) cut at the border of each picture; sizes (B, 2) are height and width."""
    border = ops.flip(sizes, (1,)).astype(boxes.dtype)
    border = ops.concat([border, border], axis=1).expand_dims(1)
    return ops.maximum(ops.minimum(boxes, border), ops.zeros_like(boxes))


def take(values, index):
    """Rows of values (B, N, ...) at index (B, K)."""
    return ops.gather(values, index, axis=1, batch_dims=1)


def pairwise_iou(boxes):
    """The overlap of each box with each other: (B, N, N)."""
    extent = boxes[..., 2:] - boxes[..., :2]
    area = extent[..., 0] * extent[..., 1]
    low = ops.maximum(boxes[..., :2].expand_dims(2), boxes[..., :2].expand_dims(1))
    high = ops.minimum(boxes[..., 2:].expand_dims(2), boxes[..., 2:].expand_dims(1))
    sides = ops.relu(high - low)
    common = sides[..., 0] * sides[..., 1]
    union = area.expand_dims(2) + area.expand_dims(1) - common
    return common / (union + 1e-6)


def sample(feature, ys, xs):
    """Values of a map (B, C, H, W) at all pairs of ys and xs (B, R, P): (B, R, P, P, C)."""
    batch, channels, height, width = feature.shape
    inside_y = ops.logical_and(ys > -1, ys < height).expand_dims(-1)
    inside_x = ops.logical_and(xs > -1, xs < width).expand_dims(-2)
    inside = ops.logical_and(inside_y, inside_x).astype(feature.dtype)
    ys, xs = ops.clamp(ys, 0, height - 1), ops.clamp(xs, 0, width - 1)
    top, left = ops.floor(ys), ops.floor(xs)
    fy = (ys - top).expand_dims(-1).expand_dims(-1)
    fx = (xs - left).expand_dims(-2).expand_dims(-1)
    top, left = top.astype(ms.int32), left.astype(ms.int32)
    bottom, right = ops.clamp(top + 1, max=height - 1), ops.clamp(left + 1, max=width - 1)
    table = feature.transpose(0, 2, 3, 1).reshape(-1, channels)
    first = (ops.arange(batch) * (height * width)).astype(ms.int32).reshape(-1, 1, 1, 1)

    def look(y, x):
        return ops.gather(table, first + y.expand_dims(-1) * width + x.expand_dims(-2), 0)

    upper = look(top, left) * (1 - fx) + look(top, right) * fx
    lower = look(bottom, left) * (1 - fx) + look(bottom, right) * fx
    return (upper * (1 - fy) + lower * fy) * inside.expand_dims(-1)


def hat_weights(length, low, high, side):
    """How much each of a mask's cells gives to each pixel of one axis: (B, D, length, side)."""
    pixels = ops.arange(length).astype(ms.float32) + 0.5
    extent = ops.clamp(high - low, min=1.0).expand_dims(-1)
    where = (pixels - low.expand_dims(-1)) / extent * side - 0.5
    return ops.relu(1 - ops.abs(where.expand_dims(-1) - ops.arange(side).astype(ms.float32)))


def paste(masks, boxes, height, width):
    """Masks (B, D, M, M) drawn into pictures at their boxes, bilinear, zero outside."""
    side = masks.shape[-1]
    x1, y1, x2, y2 = ops.unbind(boxes, -1)
    rows = hat_weights(height, y1, y2, side)
    columns = hat_weights(width, x1, x2, side)
    return ops.matmul(ops.matmul(rows, masks), columns.swapaxes(-1, -2))


class FrozenBatchNorm(nn.Cell):
    """A batch norm whose statistics and weights are constants."""

    def __init__(self, channels, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = Parameter(ops.ones(channels, ms.float32), requires_grad=False)
        self.bias = Parameter(ops.zeros(channels, ms.float32), requires_grad=False)
        self.running_mean = Parameter(ops.zeros(channels, ms.float32), requires_grad=False)
        self.running_var = Parameter(ops.ones(channels, ms.float32), requires_grad=False)

    def construct(self, x):
        scale = self.weight * ops.rsqrt(self.running_var + self.eps)
        shift = self.bias - self.running_mean * scale
        return x * scale.reshape(1, -1, 1, 1) + shift.reshape(1, -1, 1, 1)


def conv3x3(inner, outer, stride=1, dilation=1, has_bias=True):
    """A 3 by 3 convolution with the padding of PyTorch."""
    return nn.Conv2d(
        inner, outer, 3, stride, pad_mode="pad", padding=dilation, dilation=dilation, has_bias=has_bias
    )


class Residual(nn.Cell):
    """Two convolutions and a shortcut; the second one may be dilated."""

    def __init__(self, inner, outer, stride=1, dilation=1):
        super().__init__()
        self.conv1 = conv3x3(inner, outer, stride, has_bias=False)
        self.norm1 = FrozenBatchNorm(outer)
        self.conv2 = conv3x3(outer, outer, dilation=dilation, has_bias=False)
        self.norm2 = FrozenBatchNorm(outer)
        self.shortcut = None
        if stride != 1 or inner != outer:
            self.shortcut = nn.SequentialCell(
                nn.Conv2d(inner, outer, 1, stride, pad_mode="valid", has_bias=False), FrozenBatchNorm(outer)
            )

    def construct(self, x):
        identity = x if self.shortcut is None else self.shortcut(x)
        y = ops.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return ops.relu(identity + y)


class Backbone(nn.Cell):
    """A stem and three stages; gives the maps at strides 4, 8 and 16."""

    def __init__(self, widths=(16, 24, 40)):
        super().__init__()
        self.conv = nn.Conv2d(3, widths[0], 7, 2, pad_mode="pad", padding=3, has_bias=False)
        self.norm = FrozenBatchNorm(widths[0])
        self.pool = nn.MaxPool2d(3, 2, pad_mode="pad", padding=1)
        self.stages = nn.CellList(
            [
                nn.SequentialCell(Residual(widths[0], widths[0]), Residual(widths[0], widths[0])),
                nn.SequentialCell(Residual(widths[0], widths[1], 2), Residual(widths[1], widths[1])),
                nn.SequentialCell(Residual(widths[1], widths[2], 2), Residual(widths[2], widths[2], dilation=2)),
            ]
        )

    def construct(self, x):
        x = self.pool(ops.relu(self.norm(self.conv(x))))
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps


class Pyramid(nn.Cell):
    """Maps of one width, each with what the coarser ones know; one coarser map on top."""

    def __init__(self, widths=(16, 24, 40), channels=32):
        super().__init__()
        self.inner = nn.CellList([nn.Conv2d(w, channels, 1, pad_mode="valid", has_bias=True) for w in widths])
        self.outer = nn.CellList([conv3x3(channels, channels) for _ in widths])

    def construct(self, maps):
        laterals = [conv(x) for conv, x in zip(self.inner, maps)]
        for i in range(len(maps) - 1, 0, -1):
            size = laterals[i - 1].shape[-2:]
            laterals[i - 1] = laterals[i - 1] + ops.interpolate(laterals[i], size=size, mode="nearest")
        results = [conv(x) for conv, x in zip(self.outer, laterals)]
        results.append(results[-1][:, :, ::2, ::2])
        return results


class Proposals(nn.Cell):
    """Scores anchors on all maps and gives the best boxes of each picture."""

    def __init__(self, channels=32, ratios=(0.5, 1.0, 2.0), before=12, after=16):
        super().__init__()
        self.before, self.after = before, after
        self.conv = conv3x3(channels, channels)
        self.score = nn.Conv2d(channels, len(ratios), 1, pad_mode="valid", has_bias=True)
        self.delta = nn.Conv2d(channels, 4 * len(ratios), 1, pad_mode="valid", has_bias=True)
        self.bases = [Tensor(base_anchors(6.0 * stride, ratios), ms.float32) for stride in STRIDES]

    def anchors(self, level, height, width):
        """Every base anchor around the middle of every cell: (H * W * A, 4)."""
        y = (ops.arange(height).astype(ms.float32) + 0.5) * STRIDES[level]
        x = (ops.arange(width).astype(ms.float32) + 0.5) * STRIDES[level]
        y, x = ops.meshgrid(y, x, indexing="ij")
        shifts = ops.stack([x, y, x, y], axis=-1).reshape(-1, 1, 4)
        return (shifts + self.bases[level]).reshape(-1, 4)

    def construct(self, maps, sizes):
        boxes, scores = [], []
        for level, x in enumerate(maps):
            batch, _, height, width = x.shape
            x = ops.relu(self.conv(x))
            score = self.score(x).transpose(0, 2, 3, 1).reshape(batch, -1)
            delta = self.delta(x).transpose(0, 2, 3, 1).reshape(batch, -1, 4)
            anchors = self.anchors(level, height, width)
            score, index = ops.topk(score, self.before, dim=1)
            boxes.append(decode(take(delta, index), ops.gather(anchors, index, 0), (1.0, 1.0, 1.0, 1.0)))
            scores.append(score)
        boxes = clip(ops.concat(boxes, axis=1), sizes)
        scores = ops.sigmoid(ops.concat(scores, axis=1))
        extent = boxes[..., 2:] - boxes[..., :2]
        large = ops.logical_and(extent[..., 0] >= 8, extent[..., 1] >= 8)
        scores = ops.select(large, scores, scores - 1.0)
        scores, index = ops.topk(scores, self.after, dim=1)
        return take(boxes, index), scores


class Pooler(nn.Cell):
    """RoI align: each box is cut from the map that fits its size."""

    def __init__(self, side, ratio=2, levels=3, canonical=28.0, middle=1):
        super().__init__()
        self.side, self.ratio, self.levels = side, ratio, levels
        self.canonical, self.middle = canonical, middle

    def construct(self, maps, boxes):
        batch, count = boxes.shape[:2]
        corner, extent = boxes[..., :2], boxes[..., 2:] - boxes[..., :2]
        size = ops.sqrt(extent[..., 0] * extent[..., 1])
        level = ops.floor(self.middle + ops.log2(size / self.canonical + 1e-6))
        level = ops.clamp(level, 0, self.levels - 1)
        steps = self.side * self.ratio
        places = (ops.arange(steps).astype(ms.float32) + 0.5) / steps
        pooled = 0
        for i in range(self.levels):
            start = (corner / STRIDES[i] - 0.5).expand_dims(-1)
            grid = start + (extent / STRIDES[i]).expand_dims(-1) * places
            chosen = (level == i).astype(ms.float32).reshape(batch, count, 1, 1, 1)
            pooled = pooled + chosen * sample(maps[i], grid[:, :, 1], grid[:, :, 0])
        cells = pooled.reshape(batch * count, self.side, self.ratio, self.side, self.ratio, -1)
        return cells.mean((2, 4)).transpose(0, 3, 1, 2)


class BoxHead(nn.Cell):
    """The class of a cut-out and one refined box for each class."""

    def __init__(self, channels=32, side=6, width=64, classes=5):
        super().__init__()
        self.fc1 = nn.Dense(channels * side * side, width)
        self.fc2 = nn.Dense(width, width)
        self.label = nn.Dense(width, classes)
        self.delta = nn.Dense(width, 4 * classes)

    def construct(self, x):
        x = ops.relu(self.fc1(x.reshape(x.shape[0], -1)))
        x = ops.relu(self.fc2(x))
        return self.label(x), self.delta(x)


class MaskHead(nn.Cell):
    """A mask of twice the cut-out's size for each class."""

    def __init__(self, channels=32, classes=5):
        super().__init__()
        self.conv1 = conv3x3(channels, channels)
        self.norm = nn.GroupNorm(4, channels)
        self.conv2 = conv3x3(channels, channels)
        self.up = nn.Conv2dTranspose(channels, channels, 2, 2, pad_mode="valid", has_bias=True)
        self.logits = nn.Conv2d(channels, classes, 1, pad_mode="valid", has_bias=True)

    def construct(self, x):
        x = ops.relu(self.norm(self.conv1(x)))
        x = x + ops.relu(self.conv2(x))
        return self.logits(ops.relu(self.up(x)))


class Heads(nn.Cell):
    """Boxes, classes and masks of the proposals."""

    def __init__(self, keep=5, sigma=2.0):
        super().__init__()
        self.keep, self.sigma = keep, sigma
        self.box_pooler = Pooler(6)
        self.box = BoxHead()
        self.mask_pooler = Pooler(8)
        self.mask = MaskHead()

    def suppress(self, boxes, scores, labels):
        """Matrix NMS: the scores of boxes that repeat a better one decay."""
        count = scores.shape[1]
        scores, order = ops.topk(scores, count, dim=1)
        boxes, labels = take(boxes, order), take(labels, order)
        same = ops.equal(labels.expand_dims(2), labels.expand_dims(1)).astype(boxes.dtype)
        above = Tensor(np.triu(np.ones((count, count)), 1), boxes.dtype)
        overlap = pairwise_iou(boxes) * same * above
        most = ops.amax(overlap, axis=1)
        decay = ops.exp(self.sigma * (ops.square(most).expand_dims(2) - ops.square(overlap)))
        return boxes, scores * ops.amin(decay, axis=1), labels

    def construct(self, maps, boxes, objectness, sizes):
        batch, count = boxes.shape[:2]
        logits, deltas = self.box(self.box_pooler(maps, boxes))
        probabilities = ops.softmax(logits, axis=-1).reshape(batch, count, -1)
        labels = ops.argmax(probabilities[..., 1:], dim=-1) + 1
        best = ops.amax(probabilities[..., 1:], axis=-1)
        row = ops.arange(batch * count) * probabilities.shape[-1] + labels.reshape(-1)
        delta = ops.gather(deltas.reshape(-1, 4), row, 0).reshape(batch, count, 4)
        boxes = clip(decode(delta, boxes, (10.0, 10.0, 5.0, 5.0)), sizes)
        boxes, scores, labels = self.suppress(boxes, ops.sqrt(best * ops.relu(objectness)), labels)
        scores, index = ops.topk(scores, self.keep, dim=1)
        boxes, labels = take(boxes, index), take(labels, index)
        masks = self.mask(self.mask_pooler(maps, boxes))
        masks = ops.gather(masks, labels.reshape(-1), axis=1, batch_dims=1)
        masks = masks.reshape(batch, self.keep, masks.shape[-2], masks.shape[-1])
        return boxes, scores, labels, ops.sigmoid(masks)


class Segmenter(nn.Cell):
    """Pictures in, the best instances of each out: boxes (x, y, w, h), scores, classes and masks."""

    def __init__(self):
        super().__init__()
        self.mean = Tensor(np.array([0.485, 0.456, 0.406]).reshape(1, 3, 1, 1), ms.float32)
        self.std = Tensor(np.array([0.229, 0.224, 0.225]).reshape(1, 3, 1, 1), ms.float32)
        self.backbone = Backbone()
        self.pyramid = Pyramid()
        self.proposals = Proposals()
        self.heads = Heads()

    def construct(self, pictures, sizes):
        height, width = pictures.shape[-2:]
        rows = ops.arange(height).reshape(1, 1, -1, 1) < sizes[:, 0].reshape(-1, 1, 1, 1)
        columns = ops.arange(width).reshape(1, 1, 1, -1) < sizes[:, 1].reshape(-1, 1, 1, 1)
        inside = ops.logical_and(rows, columns).astype(pictures.dtype)
        x = (pictures - self.mean) / self.std * inside
        maps = self.pyramid(self.backbone(x))
        boxes, objectness = self.proposals(maps, sizes)
        boxes, scores, labels, masks = self.heads(maps, boxes, objectness, sizes)
        masks = paste(masks, boxes, height, width) * inside
        total = ops.clamp(masks.sum((2, 3)), min=1e-3)
        quality = ops.square(masks).sum((2, 3)) / total
        boxes = ops.concat([boxes[..., :2], boxes[..., 2:] - boxes[..., :2]], axis=-1)
        return boxes, scores * quality, labels, masks


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Segmenter()
