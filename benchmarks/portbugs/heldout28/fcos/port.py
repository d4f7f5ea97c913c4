"""FCOS with ATSS targets in MindSpore: the detector, its losses and its soft-NMS decoding."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

# BGR statistics for images in [0, 255]
MEAN = [103.53, 116.28, 123.675]
STD = [57.375, 57.12, 58.395]

STRIDES = (8, 16, 32, 64, 128)
ANCHOR_SCALE = 4
NUM_CLASSES = 5


def areas(boxes):
    """Areas of boxes (..., 4) as x1, y1, x2, y2."""
    wh = ops.clamp(boxes[..., 2:] - boxes[..., :2], min=0.0)
    return wh[..., 0] * wh[..., 1]


def iou_matrix(a, b, eps=1e-6):
    """(N, 4) and (M, 4) to (N, M)."""
    a, b = a.expand_dims(1), b.expand_dims(0)
    top_left = ops.maximum(a[..., :2], b[..., :2])
    bottom_right = ops.minimum(a[..., 2:], b[..., 2:])
    wh = ops.clamp(bottom_right - top_left, min=0.0)
    inter = wh[..., 0] * wh[..., 1]
    return inter / ops.clamp(areas(a) + areas(b) - inter, min=eps)


def sides_of(points, boxes):
    """Distances from points to the left, top, right and bottom side of their boxes."""
    return ops.cat((points - boxes[..., :2], boxes[..., 2:] - points), axis=-1)


def centerness_of(ltrb):
    left, top, right, bottom = (ltrb[:, i] for i in range(4))
    horizontal = ops.minimum(left, right) / ops.maximum(left, right)
    vertical = ops.minimum(top, bottom) / ops.maximum(top, bottom)
    return ops.sqrt(horizontal * vertical)


def focal_loss(logits, targets, counted, normalizer, alpha=0.25, gamma=2.0):
    """Sigmoid focal loss, summed over the counted rows."""
    error = ops.abs(targets - ops.sigmoid(logits))
    ones = ops.ones_like(logits)
    ce = ops.binary_cross_entropy_with_logits(logits, targets, ones, ones, reduction="none")
    balance = ops.where(targets > 0.5, alpha, 1.0 - alpha)
    return (balance * error**gamma * ce * counted).sum() / normalizer


def giou(a, b, eps=1e-6):
    """Generalised IoU of paired boxes (N, 4)."""
    wh = ops.clamp(ops.minimum(a[:, 2:], b[:, 2:]) - ops.maximum(a[:, :2], b[:, :2]), min=0.0)
    inter = wh[:, 0] * wh[:, 1]
    union = areas(a) + areas(b) - inter + eps
    corners = ops.cat((ops.minimum(a[:, :2], b[:, :2]), ops.maximum(a[:, 2:], b[:, 2:])), axis=1)
    hull = areas(corners) + eps
    return inter / union - (hull - union) / hull


def soft_nms(boxes, scores, labels, sigma=0.5, lowest=0.02, limit=12):
    """Gaussian soft-NMS within each class; a list of indices and a list of the decayed scores."""
    same = (labels.expand_dims(1) == labels.expand_dims(0)).astype(boxes.dtype)
    decay = ops.exp(-ops.square(iou_matrix(boxes, boxes) * same) / sigma)
    free = np.ones(boxes.shape[0], bool)
    order, values = [], []
    while len(order) < limit and free.any():
        best = int(ops.where(Tensor(free), scores, -1.0).argmax())
        if float(scores[best]) < lowest:
            break
        order.append(best)
        values.append(scores[best])
        free[best] = False
        scores = scores * decay[best]
    return order, values


class ConvNorm(nn.Cell):
    """Convolution and batch norm, with or without a ReLU."""

    def __init__(self, cin, cout, kernel, stride=1, relu=True):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, kernel, stride, pad_mode="pad", padding=kernel // 2, has_bias=False)
        self.norm = nn.BatchNorm2d(cout)
        self.relu = nn.ReLU() if relu else nn.Identity()

    def construct(self, x):
        return self.relu(self.norm(self.conv(x)))


class ChannelGate(nn.Cell):
    """Effective squeeze and excitation."""

    def __init__(self, channels):
        super().__init__()
        self.fc = nn.Conv2d(channels, channels, 1, has_bias=True)
        self.gate = nn.HSigmoid()

    def construct(self, x):
        return x * self.gate(self.fc(ops.mean(x, (2, 3), keep_dims=True)))


class ResidualBlock(nn.Cell):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = ConvNorm(cin, cout, 3, stride)
        self.conv2 = ConvNorm(cout, cout, 3, relu=False)
        self.attention = ChannelGate(cout)
        self.strided = stride > 1
        if self.strided:
            self.pool = nn.AvgPool2d(3, stride, pad_mode="pad", padding=1, count_include_pad=False)
            self.project = ConvNorm(cin, cout, 1, relu=False)

    def construct(self, x):
        residual = self.attention(self.conv2(self.conv1(x)))
        if self.strided:
            x = self.project(self.pool(x))
        return ops.relu(x + residual)


class ResNetSmall(nn.Cell):
    def __init__(self, widths):
        super().__init__()
        self.stem = ConvNorm(3, widths[0], 3, stride=2)
        self.pool = nn.MaxPool2d(3, 2, pad_mode="pad", padding=1)
        blocks = [ResidualBlock(widths[0], widths[0], 1)]
        for i in range(1, len(widths)):
            blocks.append(ResidualBlock(widths[i - 1], widths[i], 2))
        self.blocks = nn.CellList(blocks)

    def construct(self, x):
        x = self.blocks[0](self.pool(self.stem(x)))
        c3 = self.blocks[1](x)
        c4 = self.blocks[2](c3)
        c5 = self.blocks[3](c4)
        return c3, c4, c5


def conv3x3(cin, cout, stride=1):
    return nn.Conv2d(cin, cout, 3, stride, pad_mode="pad", padding=1, has_bias=True)


class Pyramid(nn.Cell):
    """P3 to P7 from C3 to C5."""

    def __init__(self, channels, width):
        super().__init__()
        self.lateral = nn.CellList([nn.Conv2d(c, width, 1, has_bias=True) for c in channels])
        self.smooth = nn.CellList([conv3x3(width, width) for _ in channels])
        self.p6 = conv3x3(width, width, 2)
        self.p7 = conv3x3(width, width, 2)

    def construct(self, maps):
        merged = None
        levels = []
        for i in reversed(range(len(maps))):
            side = self.lateral[i](maps[i])
            if merged is not None:
                side = side + ops.interpolate(merged, size=side.shape[2:], mode="nearest")
            merged = side
            levels.insert(0, self.smooth[i](merged))
        p6 = self.p6(levels[-1])
        p7 = self.p7(ops.relu(p6))
        return levels + [p6, p7]


class LevelScale(nn.Cell):
    def __init__(self):
        super().__init__()
        self.scale = Parameter(Tensor(np.ones(1, np.float32)), name="scale")

    def construct(self, x):
        return self.scale * x


class DenseHead(nn.Cell):
    """Class scores, distances to the sides in strides, and centre-ness, with weights shared by the levels."""

    def __init__(self, width, classes, levels, depth=2, groups=8):
        super().__init__()
        self.cls_tower = self.make_tower(width, depth, groups)
        self.reg_tower = self.make_tower(width, depth, groups)
        self.cls_logits = conv3x3(width, classes)
        self.bbox_pred = conv3x3(width, 4)
        self.centerness = conv3x3(width, 1)
        self.scales = nn.CellList([LevelScale() for _ in range(levels)])

    @staticmethod
    def make_tower(width, depth, groups):
        cells = []
        for _ in range(depth):
            cells.extend([conv3x3(width, width), nn.GroupNorm(groups, width), nn.ReLU()])
        return nn.SequentialCell(cells)

    def construct(self, pyramid):
        rows = []
        for x, scale in zip(pyramid, self.scales):
            cls_x, reg_x = self.cls_tower(x), self.reg_tower(x)
            distances = ops.exp(scale(self.bbox_pred(reg_x)))
            rows.append((self.cls_logits(cls_x), distances, self.centerness(reg_x)))
        return tuple(self.to_rows(kind) for kind in zip(*rows))

    @staticmethod
    def to_rows(maps):
        """Maps (B, C, H, W) of all levels as rows (B, N, C), level after level."""
        return ops.cat([ops.transpose(m, (0, 2, 3, 1)).reshape(m.shape[0], -1, m.shape[1]) for m in maps], axis=1)


class ATSS(nn.Cell):
    """Assigns to each point of an image a box, or none."""

    def __init__(self, topk):
        super().__init__()
        self.topk = topk

    def nearest(self, distances, counts):
        """(N, M) distances to (M, K) indices, the closest points of each level."""
        chosen, first = [], 0
        for count in counts:
            part = distances[first : first + count].T
            _, index = ops.topk(part, min(self.topk, count), largest=False)
            chosen.append(index + first)
            first += count
        return ops.cat(chosen, axis=1)

    def construct(self, points, strides, counts, boxes, labels, inside):
        num = points.shape[0]
        reach = strides.expand_dims(1) * (ANCHOR_SCALE / 2)
        iou = iou_matrix(ops.cat((points - reach, points + reach), axis=1), boxes)

        centers = 0.5 * (boxes[:, :2] + boxes[:, 2:])
        offsets = points.expand_dims(1) - centers.expand_dims(0)
        index = self.nearest(ops.sqrt(ops.square(offsets).sum(axis=-1)), counts)
        candidate = ops.one_hot(index, num).sum(axis=1).T > 0

        seen = ops.gather_elements(iou.T, 1, index)
        threshold = seen.mean(axis=1) + seen.std(axis=1, ddof=1)
        within = sides_of(points.expand_dims(1), boxes.expand_dims(0)).min(axis=-1) > 0.01

        positive = ops.logical_and(candidate, iou >= threshold.expand_dims(0))
        positive = ops.logical_and(positive, within)
        positive = ops.logical_and(positive, ops.logical_and(inside.expand_dims(1), (labels >= 0).expand_dims(0)))

        claims = ops.where(positive, iou, -1.0)
        owner = claims.argmax(axis=1)
        classes = ops.where(positive.any(axis=1), labels[owner], NUM_CLASSES)
        return classes, boxes[owner]


class FCOSDetector(nn.Cell):
    """Anchor-free detector with shared heads over five levels."""

    def __init__(self, widths=(16, 32, 48, 64), fpn_width=32, topk=6, score_threshold=0.05, pre_nms=40, max_dets=12):
        super().__init__()
        self.mean = Tensor(np.array(MEAN, np.float32).reshape(1, 3, 1, 1))
        self.std = Tensor(np.array(STD, np.float32).reshape(1, 3, 1, 1))
        self.score_threshold = score_threshold
        self.pre_nms = pre_nms
        self.max_dets = max_dets
        self.backbone = ResNetSmall(widths)
        self.fpn = Pyramid(widths[1:], fpn_width)
        self.head = DenseHead(fpn_width, NUM_CLASSES, len(STRIDES))
        self.assigner = ATSS(topk)
        self.grid_cache = {}

    def prepare(self, images, image_sizes):
        height, width = images.shape[2:]
        rows = ops.arange(height).reshape(1, 1, height, 1) < image_sizes[:, 0].reshape(-1, 1, 1, 1)
        columns = ops.arange(width).reshape(1, 1, 1, width) < image_sizes[:, 1].reshape(-1, 1, 1, 1)
        mask = ops.logical_and(rows, columns).astype(images.dtype)
        return (images - self.mean) / self.std * mask

    def grid(self, height, width, stride):
        """Centres (x, y) of the cells of one level."""
        key = (height, width, stride)
        if key not in self.grid_cache:
            y = (ops.arange(height).astype(ms.float32) + 0.5) * stride
            x = (ops.arange(width).astype(ms.float32) + 0.5) * stride
            y, x = ops.meshgrid(y, x, indexing="ij")
            self.grid_cache[key] = ops.stack((x.reshape(-1), y.reshape(-1)), axis=1)
        return self.grid_cache[key]

    def compute_losses(self, logits, boxes, centerness, points, strides, counts, gt_boxes, gt_labels, inside):
        assigned = [
            self.assigner(points, strides, counts, gt_boxes[i], gt_labels[i], inside[i]) for i in range(len(gt_boxes))
        ]
        classes = ops.cat([a[0] for a in assigned])
        targets = ops.cat([a[1] for a in assigned])
        index = ops.nonzero(classes < NUM_CLASSES).reshape(-1)
        num_pos = max(index.shape[0], 1)

        onehot = ops.one_hot(classes, NUM_CLASSES + 1)[:, :NUM_CLASSES].astype(logits.dtype)
        counted = inside.reshape(-1, 1).astype(logits.dtype)
        loss_cls = focal_loss(logits.reshape(-1, NUM_CLASSES), onehot, counted, num_pos)

        # from here on positive rows only
        targets = targets[index]
        all_points = ops.tile(points, (logits.shape[0], 1))
        quality = centerness_of(sides_of(all_points[index], targets))
        overlap = giou(boxes.reshape(-1, 4)[index], targets)
        loss_box = 2.0 * ((1.0 - overlap) * quality).sum() / ops.clamp(quality.sum(), min=1e-6)
        guess = centerness.reshape(-1)[index]
        ones = ops.ones_like(guess)
        loss_ctr = ops.binary_cross_entropy_with_logits(guess, quality, ones, ones, reduction="sum") / num_pos
        return loss_cls, loss_box, loss_ctr

    def decode(self, logits, boxes, centerness, counts, inside, image_size, scale_factor):
        """Detections (max_dets, 5) and labels (max_dets,) of one image."""
        scores = ops.sqrt(ops.sigmoid(logits) * ops.sigmoid(centerness))
        scores = ops.where(ops.logical_and(inside.expand_dims(1), scores > self.score_threshold), scores, 0.0)
        flat = scores.reshape(-1)
        index, first = [], 0
        for count in counts:
            size = count * NUM_CLASSES
            _, best = ops.topk(flat[first : first + size], min(self.pre_nms, size))
            index.append(best + first)
            first += size
        index = ops.cat(index)
        scores, labels = flat[index], index % NUM_CLASSES
        boxes = boxes[index // NUM_CLASSES]

        height, width = image_size[0].astype(ms.float32), image_size[1].astype(ms.float32)
        x1, y1, x2, y2 = (ops.clamp(boxes[:, i], min=0.0) for i in range(4))
        x1, x2 = ops.minimum(x1, width), ops.minimum(x2, width)
        y1, y2 = ops.minimum(y1, height), ops.minimum(y2, height)
        scale_x, scale_y = scale_factor[0], scale_factor[1]
        boxes = ops.stack((x1 / scale_x, y1 / scale_y, x2 / scale_x, y2 / scale_y), axis=1)

        order, values = soft_nms(boxes, scores, labels, limit=self.max_dets)
        dets = ops.zeros((self.max_dets, 5), ms.float32)
        kinds = ops.full((self.max_dets,), -1, dtype=ms.int64)
        if order:
            dets[: len(order)] = ops.cat((boxes[order], ops.stack(values).expand_dims(1)), axis=1)
            kinds[: len(order)] = labels[order].astype(ms.int64)
        return dets, kinds

    def construct(self, images, image_sizes, scale_factors, gt_boxes, gt_labels):
        pyramid = self.fpn(self.backbone(self.prepare(images, image_sizes)))
        logits, distances, centerness = self.head(pyramid)

        counts = [p.shape[2] * p.shape[3] for p in pyramid]
        points = ops.cat([self.grid(p.shape[2], p.shape[3], s) for p, s in zip(pyramid, STRIDES)])
        strides = Tensor(np.repeat(STRIDES, counts).astype(np.float32))
        inside = ops.logical_and(points[:, 0] < image_sizes[:, 1:], points[:, 1] < image_sizes[:, :1])

        distances = distances * strides.reshape(1, -1, 1)
        boxes = ops.cat((points - distances[..., :2], points + distances[..., 2:]), axis=-1)
        losses = self.compute_losses(
            logits, boxes, centerness, points, strides, counts, gt_boxes, gt_labels, inside
        )
        found = [
            self.decode(logits[i], boxes[i], centerness[i], counts, inside[i], image_sizes[i], scale_factors[i])
            for i in range(images.shape[0])
        ]
        return (*losses, ops.stack([f[0] for f in found]), ops.stack([f[1] for f in found]))


def build():
    """The detector for evaluation, and a batch of two images of which the second is padded."""
    net = FCOSDetector()
    net.set_train(False)
    rng = np.random.default_rng(1904)
    blocks = np.kron(rng.random((2, 3, 13, 17)), np.ones((8, 8)))
    images = 255.0 * (0.7 * blocks + 0.3 * rng.random((2, 3, 104, 136)))
    image_sizes = np.array([[104, 136], [88, 117]], np.int64)
    scale_factors = np.array([[2.72, 2.6], [2.106, 2.2]], np.float32)
    boxes = np.zeros((2, 5, 4), np.float32)
    boxes[0] = [[39.6, 12.3, 62.9, 99.0], [22.8, 21.1, 68.3, 45.2], [77.6, 51.8, 108.0, 83.0],
                [39.7, 33.2, 106.5, 67.8], [70.7, 8.9, 89.0, 98.3]]
    boxes[1, :3] = [[41.3, 21.8, 111.0, 83.1], [34.3, 3.1, 110.2, 83.1], [31.5, 4.0, 84.4, 82.4]]
    labels = np.array([[2, 0, 4, 1, 3], [1, 3, 0, -1, -1]], np.int64)
    inputs = (images.astype(np.float32), image_sizes, scale_factors, boxes, labels)
    return net, tuple(Tensor(value) for value in inputs)
