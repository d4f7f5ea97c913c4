"""YOLOX-pico in MindSpore: CSP backbone with a focus stem, PAFPN, decoupled heads, SimOTA, losses and NMS."""

from functools import lru_cache

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

BGR_MEAN = np.array([103.53, 116.28, 123.675], np.float32)
BGR_STD = np.array([57.375, 57.12, 58.395], np.float32)

STRIDES = (8, 16, 32)
FAR = 1e8


def to_corners(boxes):
    """(..., 4) boxes from centre and size to left, top, right, bottom."""
    xy, wh = boxes[..., :2], boxes[..., 2:]
    return ops.cat((xy - 0.5 * wh, xy + 0.5 * wh), axis=-1)


def box_area(corners):
    return (corners[..., 2] - corners[..., 0]) * (corners[..., 3] - corners[..., 1])


def intersection(a, b):
    """Area that two broadcastable sets of corners share."""
    side = ops.minimum(a[..., 2:], b[..., 2:]) - ops.maximum(a[..., :2], b[..., :2])
    side = ops.relu(side)
    return side[..., 0] * side[..., 1]


def iou_matrix(a, b):
    """(N, 4) and (M, 4) corners to (N, M) overlaps."""
    a, b = a.expand_dims(1), b.expand_dims(0)
    inter = intersection(a, b)
    return inter / (box_area(a) + box_area(b) - inter)


def giou_loss(pred, target, eps=1e-7):
    """1 - GIoU for pairs of boxes (..., 4) given by centre and size."""
    pred, target = to_corners(pred), to_corners(target)
    inter = intersection(pred, target)
    union = box_area(pred) + box_area(target) - inter
    hull = ops.maximum(pred[..., 2:], target[..., 2:]) - ops.minimum(pred[..., :2], target[..., :2])
    hull = ops.clamp(hull[..., 0] * hull[..., 1], min=eps)
    giou = inter / ops.clamp(union, min=eps) - (hull - union) / hull
    return 1.0 - ops.clamp(giou, min=-1.0, max=1.0)


def one_hot(index, depth):
    return ops.one_hot(index.astype(ms.int32), depth, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))


@lru_cache(maxsize=8)
def grid_cells(sizes, strides):
    """Columns and rows of all cells (A, 2) and their strides (A, 1), level after level, row by row."""
    cells, steps = [], []
    for (height, width), stride in zip(sizes, strides):
        rows, columns = np.divmod(np.arange(height * width), width)
        cells.append(np.stack((columns, rows), axis=1))
        steps.append(np.full((height * width, 1), stride))
    return Tensor(np.concatenate(cells), ms.float32), Tensor(np.concatenate(steps), ms.float32)


def decode(raw, cells, strides):
    """What the heads say to boxes in pixels of the input."""
    xy = (raw[..., :2] + cells) * strides
    wh = ops.exp(raw[..., 2:4]) * strides
    return ops.cat((xy, wh), axis=-1)


class ConvUnit(nn.Cell):
    """Convolution, batch norm and SiLU, padded so that stride 1 keeps the size."""

    def __init__(self, in_channels, out_channels, kernel, stride=1, dilation=1, group=1):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, stride=stride, pad_mode="pad",
                              padding=dilation * (kernel - 1) // 2, dilation=dilation, group=group, has_bias=False)
        self.bn = nn.BatchNorm2d(out_channels, eps=1e-3, momentum=0.97)
        self.act = nn.SiLU()

    def construct(self, x):
        return self.act(self.bn(self.conv(x)))


class SeparableUnit(nn.Cell):
    """A depthwise and a pointwise unit."""

    def __init__(self, width, dilation=1):
        super().__init__()
        self.depthwise = ConvUnit(width, width, 3, dilation=dilation, group=width)
        self.pointwise = ConvUnit(width, width, 1)

    def construct(self, x):
        return self.pointwise(self.depthwise(x))


class ChannelGate(nn.Cell):
    """Scales channels by a gate that sees their means."""

    def __init__(self, channels):
        super().__init__()
        self.fc = nn.Conv2d(channels, channels, 1, has_bias=True)
        self.act = nn.HSigmoid()

    def construct(self, x):
        pooled = x.mean(axis=(2, 3), keep_dims=True)
        return x * self.act(self.fc(pooled))


class Bottleneck(nn.Cell):
    def __init__(self, channels, residual):
        super().__init__()
        self.conv1 = ConvUnit(channels, channels, 1)
        self.conv2 = ConvUnit(channels, channels, 3)
        self.residual = residual

    def construct(self, x):
        out = self.conv2(self.conv1(x))
        if self.residual:
            out = out + x
        return out


class CSPStage(nn.Cell):
    """Half of the channels goes through the bottlenecks, the other half past them."""

    def __init__(self, in_channels, out_channels, depth=1, residual=False):
        super().__init__()
        half = out_channels // 2
        self.main_conv = ConvUnit(in_channels, half, 1)
        self.short_conv = ConvUnit(in_channels, half, 1)
        self.final_conv = ConvUnit(2 * half, out_channels, 1)
        self.blocks = nn.SequentialCell([Bottleneck(half, residual) for _ in range(depth)])
        self.attention = ChannelGate(2 * half)

    def construct(self, x):
        main = self.blocks(self.main_conv(x))
        short = self.short_conv(x)
        return self.final_conv(self.attention(ops.cat((main, short), axis=1)))


class FastSPP(nn.Cell):
    """Spatial pyramid pooling; windows of 9 and 13 are windows of 5 applied again."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        half = in_channels // 2
        self.conv1 = ConvUnit(in_channels, half, 1)
        self.pool = nn.MaxPool2d(kernel_size=5, stride=1, pad_mode="same")
        self.conv2 = ConvUnit(half * 4, out_channels, 1)

    def construct(self, x):
        levels = [self.conv1(x)]
        for _ in range(3):
            levels.append(self.pool(levels[-1]))
        return self.conv2(ops.cat(levels, axis=1))


class FocusStem(nn.Cell):
    """Space to depth by two, then a convolution."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = ConvUnit(4 * in_channels, out_channels, 3)

    def construct(self, x):
        b, c, h, w = x.shape
        x = x.reshape(b, c, h // 2, 2, w // 2, 2)
        x = x.transpose(0, 5, 3, 1, 2, 4)
        return self.conv(x.reshape(b, 4 * c, h // 2, w // 2))


class CSPDarknet(nn.Cell):
    """Features of strides 8, 16 and 32."""

    def __init__(self, widths, depths):
        super().__init__()
        self.stem = FocusStem(3, widths[0])
        self.dark2 = nn.SequentialCell(
            ConvUnit(widths[0], widths[1], 3, stride=2), CSPStage(widths[1], widths[1], depths[0], True))
        self.dark3 = nn.SequentialCell(
            ConvUnit(widths[1], widths[2], 3, stride=2), CSPStage(widths[2], widths[2], depths[1], True))
        self.dark4 = nn.SequentialCell(
            ConvUnit(widths[2], widths[3], 3, stride=2), CSPStage(widths[3], widths[3], depths[2], True))
        self.dark5 = nn.SequentialCell(
            ConvUnit(widths[3], widths[4], 3, stride=2), FastSPP(widths[4], widths[4]),
            CSPStage(widths[4], widths[4], depths[3], False))

    def construct(self, x):
        c3 = self.dark3(self.dark2(self.stem(x)))
        c4 = self.dark4(c3)
        c5 = self.dark5(c4)
        return c3, c4, c5


def upsample_like(x, reference):
    return ops.interpolate(x, size=tuple(reference.shape[-2:]), mode="nearest")


class PAFPN(nn.Cell):
    """Path aggregation: top-down, then bottom-up."""

    def __init__(self, widths):
        super().__init__()
        w3, w4, w5 = widths
        self.lateral_conv0 = ConvUnit(w5, w4, 1)
        self.c3_p4 = CSPStage(2 * w4, w4)
        self.reduce_conv1 = ConvUnit(w4, w3, 1)
        self.c3_p3 = CSPStage(2 * w3, w3)
        self.bu_conv2 = ConvUnit(w3, w3, 3, stride=2)
        self.c3_n3 = CSPStage(2 * w3, w4)
        self.bu_conv1 = ConvUnit(w4, w4, 3, stride=2)
        self.c3_n4 = CSPStage(2 * w4, w5)

    def construct(self, c3, c4, c5):
        top5 = self.lateral_conv0(c5)
        top4 = self.reduce_conv1(self.c3_p4(ops.cat((upsample_like(top5, c4), c4), axis=1)))
        out3 = self.c3_p3(ops.cat((upsample_like(top4, c3), c3), axis=1))
        out4 = self.c3_n3(ops.cat((self.bu_conv2(out3), top4), axis=1))
        out5 = self.c3_n4(ops.cat((self.bu_conv1(out4), top5), axis=1))
        return out3, out4, out5


class YOLOXHead(nn.Cell):
    """Decoupled towers; returns (batch, cells of all levels, 4 + 1 + classes)."""

    def __init__(self, widths, hidden, num_classes):
        super().__init__()
        self.stems = nn.CellList([ConvUnit(width, hidden, 1) for width in widths])
        self.cls_convs = nn.CellList(
            [nn.SequentialCell(SeparableUnit(hidden), SeparableUnit(hidden, dilation=2)) for _ in widths])
        self.reg_convs = nn.CellList(
            [nn.SequentialCell(SeparableUnit(hidden), SeparableUnit(hidden)) for _ in widths])
        self.cls_preds = nn.CellList([nn.Conv2d(hidden, num_classes, 1, has_bias=True) for _ in widths])
        self.reg_preds = nn.CellList([nn.Conv2d(hidden, 4, 1, has_bias=True) for _ in widths])
        self.obj_preds = nn.CellList([nn.Conv2d(hidden, 1, 1, has_bias=True) for _ in widths])
        self.scales = Parameter(Tensor(np.ones(len(widths), np.float32)), name="scales")

    def construct(self, features):
        levels = []
        for i, feature in enumerate(features):
            shared = self.stems[i](feature)
            cls_feat = self.cls_convs[i](shared)
            reg_feat = self.reg_convs[i](shared)
            boxes = self.scales[i] * self.reg_preds[i](reg_feat)
            objectness = self.obj_preds[i](reg_feat)
            level = ops.cat((boxes, objectness, self.cls_preds[i](cls_feat)), axis=1)
            b, channels = level.shape[:2]
            levels.append(level.reshape(b, channels, -1).swapaxes(1, 2))
        return ops.cat(levels, axis=1)


class SimOTAAssigner(nn.Cell):
    """Matches the boxes of one image with predictions; everything keeps the full length A, without selections."""

    def __init__(self, center_radius=2.5, topk=10, iou_weight=3.0, outside_cost=1000.0):
        super().__init__()
        self.center_radius = center_radius
        self.topk = topk
        self.iou_weight = iou_weight
        self.outside_cost = outside_cost

    def prior(self, gt, cells, strides):
        """(G, A) masks: centre of the cell inside of the box, and close to the centre of the box."""
        points = ((cells + 0.5) * strides).expand_dims(0)
        corners = to_corners(gt).expand_dims(1)
        inside = ((points > corners[..., :2]) & (points < corners[..., 2:])).all(axis=-1)
        offset = ops.abs(points - gt[:, :2].expand_dims(1))
        near = (offset < self.center_radius * strides).all(axis=-1)
        return inside, near

    def cls_cost(self, cls_logits, obj_logits, targets):
        """Binary cross-entropy of each prediction against each one-hot row, summed over the classes: (G, A)."""
        prob = ops.sqrt(ops.sigmoid(cls_logits) * ops.sigmoid(obj_logits))
        log_pos, log_neg = ops.log(prob), ops.log(1.0 - prob)
        return -ops.matmul(targets, (log_pos - log_neg).swapaxes(0, 1)) - log_neg.sum(axis=1)

    def construct(self, boxes, obj_logits, cls_logits, gt, gt_classes, cells, strides):
        inside, near = self.prior(gt, cells, strides)
        candidate = (inside | near).any(axis=0)
        ious = iou_matrix(to_corners(gt), to_corners(boxes)) * candidate.astype(ms.float32)
        cost = self.cls_cost(cls_logits, obj_logits, one_hot(gt_classes, cls_logits.shape[-1]))
        cost = cost - self.iou_weight * ops.log(ious + 1e-8)
        cost = ops.where(inside & near, cost, cost + self.outside_cost)
        cost = ops.where(candidate.expand_dims(0), cost, Tensor(FAR, ms.float32))

        best_ious, _ = ops.topk(ious, self.topk)
        dynamic_k = ops.clamp(ops.floor(best_ious.sum(axis=1)), min=1.0)
        rank = cost.argsort(axis=1).argsort(axis=1)
        matching = rank.astype(ms.float32) < dynamic_k.expand_dims(1)

        crowded = matching.astype(ms.int32).sum(axis=0) > 1
        cheapest = one_hot(cost.argmin(axis=0), gt.shape[0]).swapaxes(0, 1) > 0
        matching = ops.where(crowded.expand_dims(0), cheapest, matching)

        weights = matching.astype(ms.float32)
        return matching.any(axis=0), weights.argmax(axis=0), (weights * ious).sum(axis=0)


class DetectionLoss(nn.Cell):
    """Losses over a batch, each divided by the number of positive predictions."""

    def __init__(self, num_classes, reg_weight=5.0):
        super().__init__()
        self.num_classes = num_classes
        self.reg_weight = reg_weight
        self.assigner = SimOTAAssigner()
        self.bce = nn.BCEWithLogitsLoss(reduction="none")
        self.l1 = nn.L1Loss(reduction="none")

    def targets(self, raw, boxes, cells, strides, labels, count):
        """Mask of positives (A,), boxes (A, 4) and scores (A, classes) for one image."""
        if count == 0:
            return ops.zeros((raw.shape[0],), ms.float32), ops.zeros_like(boxes), ops.zeros_like(raw[:, 5:])
        classes, gt = labels[:count, 0].astype(ms.int32), labels[:count, 1:]
        positive, match, overlap = self.assigner(
            ops.stop_gradient(boxes), ops.stop_gradient(raw[:, 4:5]), ops.stop_gradient(raw[:, 5:]), gt, classes,
            cells, strides)
        positive = positive.astype(ms.float32)
        scores = one_hot(ops.gather(classes, match, 0), self.num_classes) * overlap.expand_dims(-1)
        return positive, ops.gather(gt, match, 0), scores

    def construct(self, raw, boxes, cells, strides, labels):
        counts = (labels.sum(axis=2) > 0).astype(ms.int32).sum(axis=1)
        per_image = [self.targets(raw[i], boxes[i], cells, strides, labels[i], n)
                     for i, n in enumerate(counts.asnumpy().tolist())]
        positive, gt, scores = (ops.stack(parts) for parts in zip(*per_image))
        num_pos = ops.clamp(positive.sum(), min=1.0)

        box_loss = (giou_loss(boxes, gt) * positive).sum() / num_pos
        obj_loss = self.bce(raw[..., 4], positive).sum() / num_pos
        cls_loss = (self.bce(raw[..., 5:], scores) * positive.expand_dims(-1)).sum() / num_pos
        offsets = gt[..., :2] / strides - cells
        sizes = ops.log(gt[..., 2:] / strides + 1e-8)
        l1_loss = self.l1(raw[..., :4], ops.cat((offsets, sizes), axis=-1)) * positive.expand_dims(-1)
        l1_loss = l1_loss.sum() / num_pos

        total = self.reg_weight * box_loss + obj_loss + cls_loss + l1_loss
        per_gt = num_pos / ops.clamp(counts.sum().astype(ms.float32), min=1.0)
        return ops.stack((total, box_loss, obj_loss, cls_loss, l1_loss, per_gt))


def nms(corners, classes, threshold):
    """Indices of the boxes that survive, for boxes sorted by their scores."""
    overlapping = iou_matrix(corners, corners) > threshold
    same_class = classes.expand_dims(0) == classes.expand_dims(1)
    suppresses = (overlapping & same_class).asnumpy()
    alive, keep = np.ones(len(suppresses), bool), []
    for i in range(len(suppresses)):
        if alive[i]:
            keep.append(i)
            alive &= ~suppresses[i]
    return keep


class YOLOX(nn.Cell):
    """The detector; gives decoded predictions, the losses and the detections of a batch."""

    def __init__(self, num_classes=7, widths=(16, 24, 32, 48, 64), depths=(1, 2, 2, 1), hidden=32, score_thr=0.25,
                 nms_thr=0.4, pre_nms=120, max_per_image=30):
        super().__init__()
        self.mean = Tensor(BGR_MEAN.reshape(1, 3, 1, 1))
        self.std = Tensor(BGR_STD.reshape(1, 3, 1, 1))
        self.backbone = CSPDarknet(widths, depths)
        self.neck = PAFPN(widths[2:])
        self.head = YOLOXHead(widths[2:], hidden, num_classes)
        self.criterion = DetectionLoss(num_classes)
        self.score_thr = score_thr
        self.nms_thr = nms_thr
        self.pre_nms = pre_nms
        self.max_per_image = max_per_image

    def detect(self, boxes, probs, info):
        """(max_per_image, 7) for one image: corners as fractions, objectness, class score, class."""
        class_scores, classes = ops.max(probs[:, 1:], axis=1)
        top, index = ops.topk(probs[:, 0] * class_scores, self.pre_nms)
        index = index[: int((top >= self.score_thr).sum())]
        if index.shape[0] == 0:
            return ops.zeros((self.max_per_image, 7), ms.float32)
        corners = to_corners(ops.gather(boxes, index, 0))
        keep = nms(corners, ops.gather(classes, index, 0), self.nms_thr)[: self.max_per_image]
        keep = Tensor(keep, ms.int32)
        index = ops.gather(index, keep, 0)

        height, width, ratio = info[0], info[1], info[2]
        extent = ops.stack((width, height, width, height)) * ratio
        corners = ops.clamp(ops.gather(corners, keep, 0) / extent, min=0.0, max=1.0)
        columns = ops.stack((probs[:, 0], class_scores, classes.astype(ms.float32)), axis=1)
        rows = ops.cat((corners, ops.gather(columns, index, 0)), axis=1)
        return ops.pad(rows, (0, 0, 0, self.max_per_image - rows.shape[0]))

    def construct(self, images, labels, image_info):
        height, width = images.shape[-2:]
        features = self.neck(*self.backbone((images - self.mean) / self.std))
        raw = self.head(features)
        cells, strides = grid_cells(tuple(tuple(f.shape[-2:]) for f in features), STRIDES)
        boxes = decode(raw, cells, strides)
        probs = ops.sigmoid(raw[..., 4:])

        losses = self.criterion(raw, boxes, cells, strides, labels)
        detections = ops.stack([self.detect(boxes[i], probs[i], image_info[i]) for i in range(images.shape[0])])
        scale = Tensor([width, height, width, height], ms.float32)
        return ops.cat((boxes / scale, probs), axis=-1), losses, detections


def sample_batch():
    """Three images in the corner of 96x128, their labels and height, width and ratio of the originals."""
    rng = np.random.RandomState(2107)
    blocks = np.kron(rng.uniform(0, 255, (3, 3, 12, 16)), np.ones((1, 1, 8, 8)))
    images = (0.6 * blocks + 0.4 * rng.uniform(0, 255, (3, 3, 96, 128))).astype(np.float32)
    images[1, :, 80:, :] = 114.0
    images[2, :, :, 112:] = 114.0
    boxes = (
        [[2, 40.5, 36.2, 46.0, 40.0], [5, 47.3, 42.1, 38.0, 44.0], [0, 98.7, 30.4, 30.0, 33.0],
         [6, 92.2, 70.8, 58.0, 37.0], [2, 19.1, 79.6, 21.0, 19.0]],
        [[3, 64.9, 42.3, 88.0, 60.0], [1, 84.4, 39.7, 26.0, 30.0], [4, 33.6, 27.5, 34.0, 25.0]],
    )
    labels = np.zeros((3, 6, 5), np.float32)
    for i, rows in enumerate(boxes):
        labels[i, : len(rows)] = rows
    info = np.array([[144.0, 192.0, 2.0 / 3.0], [100.0, 160.0, 0.8], [120.0, 140.0, 0.8]], np.float32)
    return images, labels, info


def build():
    """The net for evaluation and a batch."""
    net = YOLOX()
    net.set_train(False)
    return net, tuple(Tensor(array) for array in sample_batch())
