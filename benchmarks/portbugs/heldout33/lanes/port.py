"""Anchor-based lane detector for MindSpore: pyramid, pooling along the anchors, refinement, losses and decoding."""

import math

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

IMAGE_H, IMAGE_W = 80, 160
POINTS = 24
STRIPS = POINTS - 1
RGB_MEAN = np.array([123.675, 116.28, 103.53], np.float32)
RGB_STD = np.array([58.395, 57.12, 57.375], np.float32)


class ConvNorm(nn.Cell):
    """Convolution without bias, batch norm, and a ReLU if asked for; padding is (rows, columns)."""

    def __init__(self, cin, cout, kernel, stride=1, padding=(0, 0), dilation=1, act=True):
        super().__init__()
        rows, cols = padding
        self.conv = nn.Conv2d(cin, cout, kernel, stride=stride, pad_mode="pad", padding=(rows, rows, cols, cols),
                              dilation=dilation, has_bias=False)
        self.norm = nn.BatchNorm2d(cout)
        self.act = nn.ReLU() if act else None

    def construct(self, x):
        x = self.norm(self.conv(x))
        return x if self.act is None else self.act(x)


class ResidualBlock(nn.Cell):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1 = ConvNorm(cin, cout, 3, stride=stride, padding=(1, 1))
        self.conv2 = ConvNorm(cout, cout, 3, padding=(1, 1), act=False)
        self.has_shortcut = stride > 1 or cin != cout
        if self.has_shortcut:
            # the last row and column of an odd map are averages of what is there
            self.shortcut_pool = nn.AvgPool2d(stride, stride, pad_mode="same")
            self.shortcut = ConvNorm(cin, cout, 1, act=False)
        self.relu = nn.ReLU()

    def construct(self, x):
        out = self.conv2(self.conv1(x))
        if self.has_shortcut:
            x = self.shortcut(self.shortcut_pool(x))
        return self.relu(out + x)


class Trunk(nn.Cell):
    """ResNet-like; returns the maps with strides 8, 16 and 32."""

    def __init__(self, stem=12, widths=(12, 16, 24, 32), depths=(2, 1, 2, 1)):
        super().__init__()
        self.stem = ConvNorm(3, stem, 7, stride=2, padding=(3, 3))
        self.pool = nn.MaxPool2d(kernel_size=3, stride=2, pad_mode="pad", padding=1)
        stages, cin = [], stem
        for level in range(4):
            blocks = [ResidualBlock(cin, widths[level], stride=1 if level == 0 else 2)]
            blocks += [ResidualBlock(widths[level], widths[level]) for _ in range(depths[level] - 1)]
            stages.append(nn.SequentialCell(blocks))
            cin = widths[level]
        self.stage1, self.stage2, self.stage3, self.stage4 = stages

    def construct(self, x):
        c2 = self.stage1(self.pool(self.stem(x)))
        c3 = self.stage2(c2)
        c4 = self.stage3(c3)
        return c3, c4, self.stage4(c4)


class Pyramid(nn.Cell):
    """Returns the levels from the coarsest to the finest."""

    def __init__(self, cins, cout):
        super().__init__()
        self.lateral = nn.CellList([nn.Conv2d(c, cout, 1, has_bias=True) for c in cins])
        self.smooth = nn.CellList([nn.Conv2d(cout, cout, 3, pad_mode="pad", padding=1, has_bias=True) for _ in cins])

    def construct(self, c3, c4, c5):
        p5 = self.lateral[2](c5)
        p4 = self.lateral[1](c4)
        p4 = p4 + ops.interpolate(p5, size=p4.shape[-2:], mode="nearest")
        p3 = self.lateral[0](c3)
        p3 = p3 + ops.interpolate(p4, size=p3.shape[-2:], mode="nearest")
        return [self.smooth[2](p5), self.smooth[1](p4), self.smooth[0](p3)]


class AnchorContext(nn.Cell):
    """One vector per anchor: what lies along it on this level and the coarser ones, and a look at the whole map."""

    def __init__(self, channels, mid, hidden, anchors, samples, levels, grid):
        super().__init__()
        self.anchors, self.grid = anchors, grid
        self.temperature = 1.0 / math.sqrt(channels)
        self.to_key = ConvNorm(channels, hidden, 1)
        self.to_value = nn.Conv2d(channels, hidden, 1, has_bias=True)
        self.to_query = nn.SequentialCell(nn.Conv1d(anchors, anchors, 1, group=anchors, has_bias=True), nn.ReLU())
        self.mix = nn.Conv1d(anchors, anchors, 1, group=anchors, has_bias=True)
        self.dropout = nn.Dropout(p=0.1)
        along, fuse = [], []
        for level in range(levels):
            along.append(ConvNorm(channels, mid, (5, 1), padding=(4, 0), dilation=(2, 1)))
            fuse.append(ConvNorm(mid * (level + 1), channels, (5, 1), padding=(2, 0)))
        self.along, self.fuse = nn.CellList(along), nn.CellList(fuse)
        self.fc = nn.Dense(samples * channels, hidden)
        self.fc_norm = nn.LayerNorm((hidden,), epsilon=1e-5)

    def construct(self, strips, feature):
        level, batch = len(strips) - 1, feature.shape[0]
        x = ops.cat([self.along[i](strip) for i, strip in enumerate(strips)], axis=1)
        x = self.fuse[level](x)
        x = ops.relu(self.fc_norm(self.fc(x.reshape(batch, self.anchors, -1))))

        # a nearest resize commutes with convolutions of size one: shrink first
        small = ops.interpolate(feature, size=self.grid, mode="nearest")
        key = self.to_key(small).reshape(batch, x.shape[-1], -1)
        value = self.to_value(small).reshape(batch, x.shape[-1], -1)
        weight = ops.softmax(ops.bmm(self.to_query(x), key) * self.temperature, axis=2)
        context = ops.bmm(weight, value.swapaxes(1, 2))
        return x + self.dropout(self.mix(context))


class OtherAnchors(nn.Cell):
    """Attention over all anchors but oneself; the scores for the others are one shorter than the anchors."""

    def __init__(self, hidden, anchors):
        super().__init__()
        self.score = nn.Dense(hidden, anchors - 1)
        row, col = np.arange(anchors)[:, None], np.arange(anchors)[None, :]
        self.before = Tensor((col < row).astype(np.float32))
        self.after = Tensor((col > row).astype(np.float32))

    def construct(self, x):
        weight = ops.softmax(self.score(x), axis=-1)
        # columns after the diagonal move one to the right
        full = ops.pad(weight, (0, 1)) * self.before + ops.pad(weight, (1, 0)) * self.after
        return ops.cat((ops.matmul(full, x), x), axis=-1)


class AnchorRefiner(nn.Cell):
    """The anchors, and their refinement from level to level."""

    def __init__(self, channels=16, mid=12, hidden=20, anchors=32, samples=10, levels=3):
        super().__init__()
        self.levels = levels
        self.anchors = Parameter(Tensor(np.zeros((anchors, 3), np.float32)), name="anchors")
        rows = (np.linspace(0, 1, samples) * STRIPS).astype(np.int32)[::-1].copy()  # the top of the image first
        self.sample_rows = Tensor(rows)
        self.sample_ys = Tensor((1 - rows / STRIPS).astype(np.float32))
        self.heights = Tensor((np.linspace(0, 1, POINTS)).astype(np.float32))  # from the bottom upwards
        self.context = AnchorContext(channels, mid, hidden, anchors, samples, levels, grid=(4, 9))
        self.others = OtherAnchors(hidden, anchors)
        self.scores = nn.SequentialCell(nn.Dense(2 * hidden, hidden), nn.LeakyReLU(0.1), nn.Dense(hidden, 2))
        self.regression = nn.SequentialCell(nn.Dense(2 * hidden, hidden), nn.LeakyReLU(0.1))
        self.geometry = nn.Dense(hidden, 4)
        self.offsets = nn.Dense(hidden, POINTS)

    def trace(self, start):
        """x of the straight lines in each row, in units of the width."""
        start_y, start_x, theta = ops.split(start, 1, axis=-1)
        slope = 1.0 / ops.tan(theta * math.pi + 1e-5)
        return start_x + (self.heights - start_y) * slope * IMAGE_H / (IMAGE_W - 1)

    def sample(self, feature, xs):
        """(batch * anchors, channels, samples, 1)"""
        batch, anchors, _ = xs.shape
        xs = ops.gather(xs, self.sample_rows, 2)
        ys = ops.broadcast_to(self.sample_ys, xs.shape)
        grid = ops.stack((xs, ys), axis=-1) * 2 - 1
        strip = ops.grid_sample(feature, grid, mode="bilinear", padding_mode="zeros", align_corners=True)
        return strip.transpose(0, 2, 1, 3).reshape(batch * anchors, feature.shape[1], -1, 1)

    def construct(self, pyramid):
        batch = pyramid[0].shape[0]
        start = ops.tile(self.anchors.expand_dims(0), (batch, 1, 1))
        xs = self.trace(start)
        results, strips = [], []
        for level in range(self.levels):
            strips.append(self.sample(pyramid[level], xs))
            x = self.others(self.context(strips, pyramid[level]))
            logits = self.scores(x)
            hidden = self.regression(x)
            geometry = self.geometry(hidden)
            start = start + geometry[..., :3]
            xs = self.trace(start)
            refined = xs + self.offsets(hidden)
            results.append(ops.cat((logits, start, geometry[..., 3:], refined), axis=-1))
            start, xs = ops.stop_gradient(start), ops.stop_gradient(xs)
        return results


def band_iou(pred, gt, half):
    """IoU of matched lines as bands of 2 * half; rows without a point of gt do not count."""
    on_image = ops.logical_and(gt >= 0, gt < IMAGE_W).astype(ms.float32)
    inter = ops.minimum(pred, gt) - ops.maximum(pred, gt) + 2 * half
    union = ops.maximum(pred, gt) - ops.minimum(pred, gt) + 2 * half
    return (inter * on_image).sum(-1) / ((union * on_image).sum(-1) + 1e-9)


def pick_anchors(cost, iou, top=4):
    """Numpy. Each lane takes its cheapest anchors, as many as the sum of its best overlaps; no anchor serves two."""
    best = np.sort(np.maximum(iou, 0), axis=0)[::-1][:top]
    counts = np.maximum(best.sum(axis=0).astype(np.int64), 1)
    taken = np.zeros(cost.shape, bool)
    for lane, k in enumerate(counts):
        taken[np.argsort(cost[:, lane], kind="stable")[:k], lane] = True
    for anchor in np.flatnonzero(taken.sum(axis=1) > 1):
        taken[anchor] = False
        taken[anchor, cost[anchor].argmin()] = True
    chosen = np.flatnonzero(taken.any(axis=1))
    return chosen, taken[chosen].argmax(axis=1)


class LaneLoss(nn.Cell):
    def __init__(self, weights=(2.0, 0.2, 2.0), alpha=0.7, gamma=2.0, half_width=15.0):
        super().__init__()
        self.weights, self.alpha, self.gamma, self.half_width = weights, alpha, gamma, half_width
        self.regression = nn.SmoothL1Loss(beta=4.0, reduction="mean")

    def focal(self, logits, positive):
        """Sum over the anchors; positive is 0 or 1 for each."""
        prob = ops.softmax(logits, axis=-1) + 1e-6
        loss = -((1 - prob) ** self.gamma) * ops.log(prob)
        return (self.alpha * positive * loss[:, 1] + (1 - self.alpha) * (1 - positive) * loss[:, 0]).sum()

    def assign(self, pred, gt):
        """Indices of anchors and of their lanes; numpy, as nothing is differentiated here."""
        xs, gt_xs = pred[:, None, 6:] * (IMAGE_W - 1), gt[None, :, 6:]
        seen = (gt_xs >= 0) & (gt_xs < IMAGE_W)
        gaps = np.where(seen, np.abs(gt_xs - xs), 0.0)
        distance = gaps.sum(-1) / (seen.sum(-1) + 1e-9)
        dy = (pred[:, None, 2] - gt[None, :, 2]) * (IMAGE_H - 1)
        dx = pred[:, None, 3] * (IMAGE_W - 1) - gt[None, :, 3]
        angle = np.abs(pred[:, None, 4] - gt[None, :, 4]) * 180
        likeness = 1.0
        for gap in (distance, np.hypot(dy, dx), angle):
            likeness = likeness * (1 - gap / gap.max() + 0.01)
        surprise = np.log1p(np.exp(pred[:, :1] - pred[:, 1:2]))
        cost = surprise - 3.0 * likeness**2
        # bands of the same width: what they share is as much narrower as they are apart
        width = 2 * self.half_width
        inter, union = np.where(seen, width - gaps, 0.0).sum(-1), np.where(seen, width + gaps, 0.0).sum(-1)
        return pick_anchors(cost, inter / (union + 1e-9))

    def image_loss(self, pred, gt):
        """Scores, regression and overlap for one image on one level; gt (numpy) has real lanes only."""
        anchors = pred.shape[0]
        if len(gt) == 0:
            return self.focal(pred[:, :2], ops.zeros((anchors,), ms.float32)), 0.0, 0.0
        rows, cols = self.assign(pred.asnumpy(), gt)
        positive = np.zeros((anchors,), np.float32)
        positive[rows] = 1
        score_loss = self.focal(pred[:, :2], Tensor(positive)) / len(gt)

        pred, gt = ops.gather(pred, Tensor(rows, ms.int32), 0), gt[cols]
        scaled = pred[:, 2:6] * Tensor([STRIPS, IMAGE_W - 1, 180, STRIPS], ms.float32)
        # a lane that starts higher than its label is shorter by as much
        shift = np.clip(np.round(pred[:, 2].asnumpy() * STRIPS), 0, STRIPS) - np.round(gt[:, 2] * STRIPS)
        wanted = np.stack((gt[:, 2] * STRIPS, gt[:, 3], gt[:, 4] * 180, gt[:, 5] - shift), axis=1)
        overlap = band_iou(pred[:, 6:] * (IMAGE_W - 1), Tensor(gt[:, 6:]), self.half_width)
        return score_loss, self.regression(scaled, Tensor(wanted)), (1 - overlap).mean()

    def construct(self, results, labels):
        labels = labels.asnumpy()
        sums = [0.0, 0.0, 0.0]
        for pred in results:
            for i, lanes in enumerate(labels):
                for part, value in enumerate(self.image_loss(pred[i], lanes[lanes[:, 1] == 1])):
                    sums[part] = sums[part] + value
        score, regression, overlap = [total / (len(results) * labels.shape[0]) for total in sums]
        total = self.weights[0] * score + self.weights[1] * regression + self.weights[2] * overlap
        return {"loss": total, "cls_loss": score, "reg_loss": regression, "iou_loss": overlap}


class LaneDecoder:
    """From the last level's predictions to points of lanes; all in numpy."""

    def __init__(self, confidence=0.4, min_distance=24.0, max_lanes=6, full_height=120, cut=40):
        self.confidence, self.min_distance, self.max_lanes = confidence, min_distance, max_lanes
        rows = np.linspace(1, 0, POINTS) * (full_height - cut) + cut
        self.ys = (rows / full_height).astype(np.float32)

    def span(self, lane):
        """First and last row of a lane."""
        first = int(np.clip(np.round(lane[2] * STRIPS), 0, None))
        return first, min(first + int(np.round(lane[5] * STRIPS)) - 1, STRIPS)

    def too_close(self, a, b):
        (first_a, last_a), (first_b, last_b) = self.span(a), self.span(b)
        rows = slice(max(first_a, first_b), min(last_a, last_b) + 1)
        if rows.start >= rows.stop:
            return False
        return np.abs(a[6:][rows] - b[6:][rows]).mean() * (IMAGE_W - 1) < self.min_distance

    def points(self, lane):
        xs = lane[6:].copy()
        first, last = self.span(lane)
        first = min(first, STRIPS)
        xs[last + 1 :] = -2
        # go on downwards from the start until the line leaves the image
        row = first - 1
        while row >= 0 and 0 <= xs[row] <= 1:
            row -= 1
        xs[: row + 1] = -2
        points = np.stack((xs, self.ys), axis=1)
        points[xs < 0] = -2
        return points[::-1]

    def __call__(self, predictions, scores):
        lanes = np.full((len(predictions), self.max_lanes, POINTS, 2), -2, np.float32)
        lane_scores = np.zeros((len(predictions), self.max_lanes), np.float32)
        for i, (image, score) in enumerate(zip(predictions, scores)):
            kept = []
            for j in np.argsort(-score, kind="stable"):
                if score[j] < self.confidence or len(kept) == self.max_lanes:
                    break
                if any(self.too_close(image[k], image[j]) for k in kept):
                    continue
                lanes[i, len(kept)] = self.points(image[j])
                lane_scores[i, len(kept)] = score[j]
                kept.append(j)
        return Tensor(lanes), Tensor(lane_scores)


class LaneDetector(nn.Cell):
    """Images (batch, 3, 80, 160) of 0..255 and labels of lanes to predictions, lanes and losses."""

    def __init__(self):
        super().__init__()
        self.mean, self.std = Tensor(RGB_MEAN.reshape(1, 3, 1, 1)), Tensor(RGB_STD.reshape(1, 3, 1, 1))
        self.trunk = Trunk()
        self.pyramid = Pyramid((16, 24, 32), 16)
        self.refiner = AnchorRefiner()
        self.loss = LaneLoss()
        self.decoder = LaneDecoder()

    def construct(self, images, labels):
        c3, c4, c5 = self.trunk((images - self.mean) / self.std)
        results = self.refiner(self.pyramid(c3, c4, c5))
        last = results[-1]
        probability = ops.softmax(last[..., :2], axis=-1)[..., 1]
        lanes, lane_scores = self.decoder(last.asnumpy(), probability.asnumpy())
        outputs = {"predictions": ops.stack(results), "lanes": lanes, "lane_scores": lane_scores}
        outputs.update(self.loss(results, labels))
        return outputs


def build():
    """The detector alone, for evaluation: weights and inputs come from the reference's dump."""
    net = LaneDetector()
    net.set_train(False)
    return net
