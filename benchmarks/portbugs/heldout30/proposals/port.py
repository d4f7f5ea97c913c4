"""A small Faster R-CNN with a feature pyramid in MindSpore: both stages, their losses and the detections."""

import math

import numpy as np

import mindspore as ms
from mindspore import Tensor, nn, ops

RGB_MEAN = [0.485, 0.456, 0.406]
RGB_STD = [0.229, 0.224, 0.225]

ANCHOR_SIZES = ((10, 14), (20, 28), (40, 56), (70, 90))
ANCHOR_RATIOS = (0.5, 1.0, 2.0)

MAX_LOG_RATIO = math.log(1000.0 / 16)


def area_of(boxes):
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def pairwise_iou(first, second):
    """Boxes (n, 4) and (m, 4) as corners -> (n, m)."""
    first_, second_ = first.expand_dims(1), second.expand_dims(0)
    top_left = ops.maximum(first_[..., :2], second_[..., :2])
    bottom_right = ops.minimum(first_[..., 2:], second_[..., 2:])
    sides = ops.relu(bottom_right - top_left)
    shared = sides[..., 0] * sides[..., 1]
    total = area_of(first_) + area_of(second_) - shared
    return shared / ops.clamp(total, min=1e-6)


def clip_to_image(boxes, height, width):
    """Corners (..., 4) are moved into an image of this height and width."""
    limit = Tensor([width, height, width, height], ms.float32)
    return ops.minimum(ops.relu(boxes), limit)


def to_centre_form(boxes):
    sides = boxes[..., 2:] - boxes[..., :2]
    return boxes[..., :2] + 0.5 * sides, sides


class BoxCoder:
    """Boxes relative to other boxes, and the way back."""

    def __init__(self, centre_weights, side_weights):
        self.centre_weights = Tensor(centre_weights, ms.float32)
        self.side_weights = Tensor(side_weights, ms.float32)

    def encode(self, targets, boxes):
        centre, sides = to_centre_form(boxes)
        target_centre, target_sides = to_centre_form(targets)
        shift = self.centre_weights * (target_centre - centre) / sides
        growth = self.side_weights * ops.log(target_sides / sides)
        return ops.cat((shift, growth), axis=-1)

    def decode(self, deltas, boxes):
        centre, sides = to_centre_form(boxes)
        shift = deltas[..., :2] / self.centre_weights
        growth = ops.clamp(deltas[..., 2:] / self.side_weights, max=MAX_LOG_RATIO)
        centre = centre + shift * sides
        half = 0.5 * ops.exp(growth) * sides
        return ops.cat((centre - half, centre + half), axis=-1)


def suppress(boxes, scores, groups, usable, threshold, count):
    """Greedy suppression within groups in fixed shapes.

    Returns the indices of the best boxes that are left (count,), and which of these are real. A box survives when no
    survivor above it overlaps it; repeating this from "all survive" ends at what the greedy algorithm keeps.
    """
    ranked, order = ops.sort(ops.masked_fill(scores, ops.logical_not(usable), -1.0), axis=0, descending=True)
    boxes, groups = boxes[order], groups[order]
    rivals = pairwise_iou(boxes, boxes) > threshold
    rivals = ops.logical_and(rivals, groups.expand_dims(1) == groups.expand_dims(0))
    above = ops.triu(rivals.astype(ms.float32), diagonal=1)
    candidates = (ranked >= 0).astype(ms.float32)
    alive = candidates
    while True:
        beaten = ops.matmul(alive.expand_dims(0), above)[0] > 0
        survivors = ops.masked_fill(candidates, beaten, 0.0)
        if bool((survivors == alive).all()):
            break
        alive = survivors
    best, position = ops.topk(ops.masked_fill(ranked, alive == 0, -1.0), count)
    return order[position], best >= 0


def assign_targets(iou, real, foreground, background, keep_best=False):
    """For each box its target's index, -1 for background, -2 for what takes no part. iou is (targets, boxes)."""
    iou = ops.masked_fill(iou, ops.logical_not(real).expand_dims(1), -1.0)
    nearest = iou.argmax(axis=0)
    overlap = iou.max(axis=0)
    assigned = ops.where(overlap < foreground, ops.full_like(nearest, -2), nearest)
    assigned = ops.where(overlap < background, ops.full_like(nearest, -1), assigned)
    if keep_best:
        best = ops.logical_and(iou == iou.max(axis=1, keepdims=True), real.expand_dims(1)).any(axis=0)
        assigned = ops.where(best, nearest, assigned)
    return assigned


def hardest(loss, mask, most):
    """Indices of the boxes under the mask that have the highest loss."""
    most = min(most, int(mask.sum()))
    return ops.topk(ops.masked_fill(loss, ops.logical_not(mask), -1.0), most)[1]


class BasicBlock(nn.Cell):
    """Two 3x3 convolutions, with an averaging projection as shortcut."""

    def __init__(self, c_in, c_out, stride=1, dilation=1):
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride=stride, pad_mode="pad", padding=1)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, pad_mode="pad", padding=dilation, dilation=dilation)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.relu = nn.ReLU()
        self.pool = nn.Identity()
        if stride > 1:
            self.pool = nn.AvgPool2d(3, stride, pad_mode="pad", padding=1, count_include_pad=False)
        self.down = nn.Conv2d(c_in, c_out, 1)
        self.down_bn = nn.BatchNorm2d(c_out)

    def construct(self, x):
        shortcut = self.down_bn(self.down(self.pool(x)))
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.bn2(self.conv2(x))
        return self.relu(x + shortcut)


class ResNet(nn.Cell):
    """The features at strides 4, 8 and 16."""

    def __init__(self, stem_width=16, widths=(24, 32, 48)):
        super().__init__()
        self.stem = nn.Conv2d(3, stem_width, 7, stride=2, pad_mode="pad", padding=3)
        self.stem_bn = nn.BatchNorm2d(stem_width)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, pad_mode="pad", padding=1)
        self.layer1 = BasicBlock(stem_width, widths[0])
        self.layer2 = BasicBlock(widths[0], widths[1], stride=2)
        self.layer3 = BasicBlock(widths[1], widths[2], stride=2, dilation=2)

    def construct(self, x):
        x = self.layer1(self.maxpool(self.relu(self.stem_bn(self.stem(x)))))
        y = self.layer2(x)
        return x, y, self.layer3(y)


class FPN(nn.Cell):
    """Feature pyramid; the coarsest level is every second place of the one before."""

    def __init__(self, widths=(24, 32, 48), width=32):
        super().__init__()
        self.lateral_convs = nn.CellList([nn.Conv2d(c, width, 1, has_bias=True) for c in widths])
        self.fpn_convs = nn.CellList(
            [nn.Conv2d(width, width, 3, pad_mode="pad", padding=1, has_bias=True) for _ in widths]
        )

    def construct(self, features):
        merged = [conv(feature) for conv, feature in zip(self.lateral_convs, features)]
        for i in (1, 0):
            size = merged[i].shape[2:]
            merged[i] = merged[i] + ops.interpolate(merged[i + 1], size=size, mode="nearest")
        pyramid = [conv(feature) for conv, feature in zip(self.fpn_convs, merged)]
        return pyramid + [pyramid[-1][:, :, ::2, ::2]]


class Anchors(nn.Cell):
    """All anchors of a batch, computed once for each shape."""

    def __init__(self, sizes=ANCHOR_SIZES, ratios=ANCHOR_RATIOS):
        super().__init__()
        self.per_place = len(sizes[0]) * len(ratios)
        roots = np.sqrt(np.array(ratios, np.float32))[:, None]
        self.templates = []
        for level in np.array(sizes, np.float32):
            half = np.stack((level / roots, level * roots), axis=-1).reshape(-1, 2) / 2
            self.templates.append(np.round(np.concatenate((-half, half), axis=1)))
        self.known = {}

    def construct(self, height, width, grids):
        key = (height, width, tuple(grids))
        if key not in self.known:
            levels = []
            for template, (rows, columns) in zip(self.templates, grids):
                step_y, step_x = height // rows, width // columns
                y, x = np.meshgrid(np.arange(rows) * step_y, np.arange(columns) * step_x, indexing="ij")
                places = np.stack((x, y, x, y), axis=-1).reshape(-1, 1, 4)
                levels.append((places + template).reshape(-1, 4))
            self.known[key] = Tensor(np.concatenate(levels).astype(np.float32))
        return self.known[key]


class RPN(nn.Cell):
    """The first stage: proposals from the anchors."""

    def __init__(self, width=32, pre_nms=60, post_nms=28, nms_threshold=0.6, min_side=3.0):
        super().__init__()
        self.pre_nms, self.post_nms = pre_nms, post_nms
        self.nms_threshold, self.min_side = nms_threshold, min_side
        self.foreground, self.background = 0.6, 0.3
        self.batch, self.most_positive = 64, 32
        self.anchors = Anchors()
        self.coder = BoxCoder([1.0, 1.0], [1.0, 1.0])
        places = self.anchors.per_place
        self.rpn_conv = nn.Conv2d(width, width, 3, pad_mode="pad", padding=1, has_bias=True)
        self.relu = nn.ReLU()
        self.rpn_cls = nn.Conv2d(width, places, 1, has_bias=True)
        self.rpn_reg = nn.Conv2d(width, 4 * places, 1, has_bias=True)

    def propose(self, logit, boxes, counts, image_size):
        """The proposals of one image: boxes, scores, and which of them are real."""
        picked, start = [], 0
        for count in counts:
            picked.append(ops.topk(logit[start : start + count], self.pre_nms)[1] + start)
            start += count
        picked = ops.cat(picked)
        level = Tensor(np.repeat(np.arange(len(counts)), counts), ms.int32)[picked]
        scores = ops.sigmoid(logit[picked])
        boxes = clip_to_image(boxes[picked], *image_size)
        usable = (boxes[:, 2:] - boxes[:, :2]).min(axis=1) >= self.min_side
        kept, real = suppress(boxes, scores, level, usable, self.nms_threshold, self.post_nms)
        weight = real.astype(ms.float32)
        return boxes[kept] * weight.expand_dims(1), scores[kept] * weight, real

    def losses(self, anchors, logits, deltas, gt_boxes, gt_real):
        """Objectness and regression over the anchors that are hardest."""
        objectness, regression, total = 0.0, 0.0, 0
        for i in range(logits.shape[0]):
            iou = pairwise_iou(gt_boxes[i], anchors)
            assigned = assign_targets(iou, gt_real[i], self.foreground, self.background, keep_best=True)
            positive = assigned >= 0
            bce = ops.binary_cross_entropy_with_logits(logits[i], positive.astype(ms.float32), reduction="none")
            chosen = hardest(bce, positive, self.most_positive)
            others = hardest(bce, assigned == -1, self.batch - chosen.shape[0])
            targets = self.coder.encode(gt_boxes[i][assigned[chosen]], anchors[chosen])
            objectness += bce[chosen].sum() + bce[others].sum()
            regression += ops.smooth_l1_loss(deltas[i][chosen], targets, beta=1.0 / 9, reduction="sum")
            total += chosen.shape[0] + others.shape[0]
        return objectness / total, regression / total

    def construct(self, pyramid, shape, image_sizes, gt_boxes, gt_real):
        n, a = pyramid[0].shape[0], self.anchors.per_place
        grids = [feature.shape[2:] for feature in pyramid]
        counts = [rows * columns * a for rows, columns in grids]
        logits, deltas = [], []
        for feature in pyramid:
            hidden = self.relu(self.rpn_conv(feature))
            rows, columns = hidden.shape[2:]
            logits.append(self.rpn_cls(hidden).transpose(0, 2, 3, 1).reshape(n, -1))
            delta = self.rpn_reg(hidden).reshape(n, a, 4, rows, columns)
            deltas.append(delta.transpose(0, 3, 4, 1, 2).reshape(n, -1, 4))
        logits, deltas = ops.cat(logits, axis=1), ops.cat(deltas, axis=1)

        anchors = self.anchors(*shape, grids)
        boxes = self.coder.decode(deltas, anchors)
        results = [self.propose(logits[i], boxes[i], counts, image_sizes[i]) for i in range(n)]
        proposals, scores, real = (ops.stack(parts) for parts in zip(*results))
        return proposals, scores, real, self.losses(anchors, logits, deltas, gt_boxes, gt_real)


def neighbours(start, extent, steps, size):
    """Sampling points along one axis: the cell before, the cell after, and the share of the latter."""
    points = start.expand_dims(1) + extent.expand_dims(1) * steps
    points = ops.clamp(points, 0.0, size - 1.0)
    before = ops.floor(points)
    after = ops.clamp(before + 1, max=size - 1.0)
    return before.astype(ms.int32), after.astype(ms.int32), points - before


def roi_align(feature, owners, boxes, scale, output=5, ratio=2):
    """Bilinear region alignment of boxes (k, 4) in the images that own them: (k, channels, output, output)."""
    _, c, h, w = feature.shape
    table = feature.transpose(0, 2, 3, 1).reshape(-1, c)
    boxes = boxes * scale - 0.5
    extent = boxes[:, 2:] - boxes[:, :2]
    steps = Tensor((np.arange(output * ratio) + 0.5) / (output * ratio), ms.float32)
    x0, x1, right = neighbours(boxes[:, 0], extent[:, 0], steps, w)
    y0, y1, lower = neighbours(boxes[:, 1], extent[:, 1], steps, h)
    owners = owners.reshape(-1, 1, 1)

    def read(y, x):
        index = (owners * h + y.expand_dims(2)) * w + x.expand_dims(1)
        return ops.gather(table, index, 0)

    right, lower = right.expand_dims(1).expand_dims(3), lower.expand_dims(2).expand_dims(3)
    first = read(y0, x0) + right * (read(y0, x1) - read(y0, x0))
    second = read(y1, x0) + right * (read(y1, x1) - read(y1, x0))
    samples = first + lower * (second - first)
    samples = samples.reshape(-1, output, ratio, output, ratio, c).mean(axis=(2, 4))
    return samples.transpose(0, 3, 1, 2)


class RegionHead(nn.Cell):
    """Pooled regions to vectors."""

    def __init__(self, width=32, output=5, hidden=96):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, pad_mode="pad", padding=1, has_bias=True)
        self.norm = nn.GroupNorm(8, width)
        self.act = nn.GELU(approximate=False)
        self.fc1 = nn.Dense(width * output * output, hidden)
        self.fc2 = nn.Dense(hidden, hidden)

    def construct(self, x):
        x = self.act(self.norm(self.conv(x)))
        x = self.act(self.fc1(x.reshape(x.shape[0], -1)))
        return self.act(self.fc2(x))


class SecondStage(nn.Cell):
    """Classes and class-wise refinements of the regions."""

    def __init__(self, num_classes=5, width=32, hidden=96, score_threshold=0.15, nms_threshold=0.4, detections=16):
        super().__init__()
        self.num_classes = num_classes
        self.score_threshold, self.nms_threshold, self.detections = score_threshold, nms_threshold, detections
        self.canonical_size, self.canonical_level = 12.0, 3
        self.batch, self.most_positive = 24, 6
        self.coder = BoxCoder([10.0, 10.0], [5.0, 5.0])
        self.region_head = RegionHead(width, 5, hidden)
        self.cls_score = nn.Dense(hidden, num_classes)
        self.bbox_pred = nn.Dense(hidden, 4 * num_classes)

    def pool(self, pyramid, boxes, image_width):
        """Each region comes from the level of the pyramid that suits its size."""
        n, r, _ = boxes.shape
        owners = Tensor(np.repeat(np.arange(n), r), ms.int32)
        boxes = boxes.reshape(-1, 4)
        size = ops.sqrt(ops.clamp(area_of(boxes), min=1e-3))
        level = ops.floor(self.canonical_level + ops.log2(size / self.canonical_size) + 1e-6)
        level = ops.clamp(level, 2, 4).astype(ms.int32)
        pooled, places = [], []
        for i, feature in enumerate(pyramid[:3]):
            here = ops.nonzero(level == i + 2).reshape(-1)
            if here.shape[0] == 0:
                continue
            scale = 2.0 ** round(math.log2(feature.shape[3] / image_width))
            pooled.append(roi_align(feature, owners[here], boxes[here], scale))
            places.append(here)
        # back into the order of the boxes
        back = ops.argsort(ops.cat(places).astype(ms.int32))
        return ops.gather(ops.cat(pooled), back, 0)

    def losses(self, boxes, real, logits, deltas, gt_boxes, gt_labels, gt_real):
        """Cross-entropy and regression over the regions that are hardest."""
        classification, regression, total = 0.0, 0.0, 0
        for i in range(boxes.shape[0]):
            assigned = assign_targets(pairwise_iou(gt_boxes[i], boxes[i]), gt_real[i], 0.5, 0.5)
            positive = ops.logical_and(assigned >= 0, real[i])
            negative = ops.logical_and(assigned == -1, real[i])
            labels = gt_labels[i][ops.clamp(assigned, min=0)].astype(ms.int32) * positive.astype(ms.int32)
            entropy = ops.cross_entropy(logits[i], labels, reduction="none")
            chosen = hardest(entropy, positive, self.most_positive)
            others = hardest(entropy, negative, self.batch - chosen.shape[0])
            targets = self.coder.encode(gt_boxes[i][assigned[chosen]], boxes[i][chosen])
            rows = chosen * self.num_classes + labels[chosen]
            predicted = ops.gather(deltas[i].reshape(-1, 4), rows, 0)
            classification += entropy[chosen].sum() + entropy[others].sum()
            regression += ops.smooth_l1_loss(predicted, targets, reduction="sum")
            total += chosen.shape[0] + others.shape[0]
        return classification / total, regression / total

    def detect(self, boxes, real, logits, deltas, image_size):
        """The detections of one image, zeros after the last."""
        classes = self.num_classes - 1
        scores = ops.softmax(logits, axis=-1)[:, 1:]
        usable = ops.logical_and(scores > self.score_threshold, real.expand_dims(1)).reshape(-1)
        scores = scores.reshape(-1)
        refined = self.coder.decode(deltas, boxes.expand_dims(1))
        refined = clip_to_image(refined, *image_size)[:, 1:].reshape(-1, 4)
        labels = ops.tile(Tensor(np.arange(1, classes + 1), ms.int32), (boxes.shape[0],))
        kept, found = suppress(refined, scores, labels, usable, self.nms_threshold, self.detections)
        weight = found.astype(ms.float32)
        return refined[kept] * weight.expand_dims(1), scores[kept] * weight, labels[kept] * found.astype(ms.int32)

    def construct(self, pyramid, proposals, real, image_width, image_sizes, gt_boxes, gt_labels, gt_real):
        n, r, _ = proposals.shape
        boxes = ops.cat((proposals, gt_boxes), axis=1)
        hidden = self.region_head(self.pool(pyramid, boxes, image_width))
        logits = self.cls_score(hidden).reshape(n, -1, self.num_classes)
        deltas = self.bbox_pred(hidden).reshape(n, -1, self.num_classes, 4)
        all_real = ops.cat((real, gt_real), axis=1)
        losses = self.losses(boxes, all_real, logits, deltas, gt_boxes, gt_labels, gt_real)

        logits, deltas = logits[:, :r], deltas[:, :r]
        results = [self.detect(proposals[i], real[i], logits[i], deltas[i], image_sizes[i]) for i in range(n)]
        return (logits, deltas), losses, tuple(ops.stack(parts) for parts in zip(*results))


class FasterRCNN(nn.Cell):
    """Padded images, their sizes and their annotations -> proposals, predictions, detections and losses."""

    def __init__(self):
        super().__init__()
        self.mean = Tensor(RGB_MEAN, ms.float32).reshape(1, 3, 1, 1)
        self.std = Tensor(RGB_STD, ms.float32).reshape(1, 3, 1, 1)
        self.backbone = ResNet()
        self.fpn = FPN()
        self.rpn = RPN()
        self.roi_heads = SecondStage()

    def construct(self, images, image_sizes, gt_boxes, gt_labels):
        height, width = images.shape[2:]
        sizes = [tuple(size) for size in image_sizes.asnumpy().tolist()]
        inside = np.zeros((len(sizes), 1, height, width), np.float32)
        for i, (h, w) in enumerate(sizes):
            inside[i, :, :h, :w] = 1.0
        images = (images - self.mean) / self.std
        images = images * Tensor(inside)

        gt_real = gt_labels > 0
        pyramid = self.fpn(self.backbone(images))
        proposals, scores, real, rpn_losses = self.rpn(pyramid, (height, width), sizes, gt_boxes, gt_real)
        predicted, losses, found = self.roi_heads(
            pyramid, proposals, real, width, sizes, gt_boxes, gt_labels, gt_real
        )
        unit = Tensor([width, height, width, height], ms.float32)
        return (proposals / unit, scores) + predicted + (found[0] / unit,) + found[1:] + rpn_losses + losses


def example_inputs():
    """Two images of noise in coarse blocks, the second smaller than the batch, with three and two annotations."""
    rng = np.random.RandomState(7)
    fine, coarse = rng.rand(2, 3, 104, 136), rng.rand(2, 3, 13, 17)
    images = 0.4 * fine + 0.6 * np.kron(coarse, np.ones((8, 8)))
    boxes = [
        [[31.9, 30.2, 48.1, 53.6], [38.8, 74.2, 59.5, 92.1], [60.2, 20.5, 118.7, 77.3]],
        [[43.2, 27.5, 72.6, 60.1], [64.3, 49.8, 110.6, 84.1], [0.0, 0.0, 0.0, 0.0]],
    ]
    image_sizes = Tensor([[104, 136], [86, 112]], ms.int64)
    labels = Tensor([[2, 4, 1], [3, 1, 0]], ms.int64)
    return Tensor(images.astype(np.float32)), image_sizes, Tensor(boxes, ms.float32), labels


def build():
    """The net for evaluation, and two annotated images of different sizes."""
    net = FasterRCNN()
    net.set_train(False)
    return net, example_inputs()
