"""Crowd counting and localisation in MindSpore: point proposals, density map, losses, detections and metrics."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

RGB_MEAN = [0.485, 0.456, 0.406]
RGB_STD = [0.229, 0.224, 0.225]

# "M" is a pooling; the outputs are read in front of the last two and at the end
VGG_LAYERS = [8, "M", 12, "M", 16, 16, "M", 24, 24, "M", 28, 28]

POINT_STRIDE = 8
DENSITY_STRIDE = 4
LOG_ZERO = -1e9
LOSS_WEIGHTS = {"cls": 1.0, "point": 0.2, "count": 0.1, "region": 0.25, "tv": 0.05, "ot": 0.5}


def conv(c_in, c_out, kernel=3, dilation=1):
    pad = dilation * (kernel // 2)
    return nn.Conv2d(c_in, c_out, kernel, pad_mode="pad", padding=pad, dilation=dilation, has_bias=True)


def valid_cells(height, width, stride, sizes):
    """(batch, height, width): one where the upper left corner of a cell lies in the image, else zero."""
    rows = np.arange(height).reshape(1, -1, 1) * stride < sizes[:, 0].reshape(-1, 1, 1)
    cols = np.arange(width).reshape(1, 1, -1) * stride < sizes[:, 1].reshape(-1, 1, 1)
    return (rows & cols).astype(np.float32)


def pair_distance(a, b):
    """Euclidean distances of two sets of points in numpy."""
    gap = a[:, None, :].astype(np.float64) - b[None, :, :].astype(np.float64)
    return np.sqrt((gap**2).sum(axis=-1))


def assign(cost, used_rows, used_cols, limit=np.inf):
    """Greedy assignment below the limit: pairs by increasing cost of which neither was used; adds what it takes."""
    rows, cols = [], []
    for row, col in zip(*np.unravel_index(np.argsort(cost, axis=None, kind="stable"), cost.shape)):
        if not cost[row, col] < limit or len(rows) == cost.shape[1]:
            break
        if row not in used_rows and col not in used_cols:
            used_rows.add(row)
            used_cols.add(col)
            rows.append(row)
            cols.append(col)
    return rows, cols


def split_matrix(valid, length, parts):
    """(batch, parts, length): which part of the valid stretch of an axis a cell belongs to."""
    matrix = np.zeros((len(valid), parts, length), np.float32)
    for i, n in enumerate(valid):
        edges = np.arange(parts + 1) * n // parts
        for k in range(parts):
            matrix[i, k, edges[k] : edges[k + 1]] = 1.0
    return matrix


def box_sums(maps, sizes, parts):
    """Sums of each map (numpy or Tensor) over parts x parts boxes of its image: (batch, parts, parts)."""
    height, width = maps.shape[1:]
    used = np.ceil(sizes / DENSITY_STRIDE).astype(np.int64)
    left = split_matrix(used[:, 0], height, parts)
    right = split_matrix(used[:, 1], width, parts).transpose(0, 2, 1)
    if isinstance(maps, np.ndarray):
        return left @ maps @ right
    return ops.bmm(ops.bmm(Tensor(left), maps), Tensor(right))


def head_counts(points, counts, height, width):
    """How many heads lie in each cell of the density map."""
    grid = np.zeros((len(points), height, width), np.float32)
    for i, n in enumerate(counts):
        x, y = np.floor(points[i, :n] / DENSITY_STRIDE).astype(np.int64).T
        np.add.at(grid[i], (np.clip(y, 0, height - 1), np.clip(x, 0, width - 1)), 1.0)
    return grid


class VGG(nn.Cell):
    def __init__(self):
        super().__init__()
        cells, self.taps = [], []
        c_in = 3
        for item in VGG_LAYERS:
            if item == "M":
                self.taps.append(len(cells) - 1)
                cells.append(nn.MaxPool2d(kernel_size=2, stride=2))
            else:
                cells += [conv(c_in, item), nn.BatchNorm2d(item), nn.ReLU()]
                c_in = item
        self.taps = self.taps[-2:] + [len(cells) - 1]
        self.features = nn.CellList(cells)

    def construct(self, x):
        taken = []
        for i, cell in enumerate(self.features):
            x = cell(x)
            if i in self.taps:
                taken.append(x)
        return taken


class Neck(nn.Cell):
    """Top-down pyramid with normalised weights of fusion."""

    def __init__(self, c3=16, c4=24, c5=28, width=16):
        super().__init__()
        self.fusion = Parameter(Tensor(np.ones((2, 2), np.float32)), name="fusion")
        self.in3 = conv(c3, width, 1)
        self.in4 = conv(c4, width, 1)
        self.in5 = conv(c5, width, 1)
        self.out3 = conv(width, width)
        self.out4 = conv(width, width)
        self.out5 = conv(width, width)

    @staticmethod
    def enlarge(x, like):
        return ops.interpolate(x, size=like.shape[2:], mode="nearest")

    def construct(self, c3, c4, c5):
        share = ops.relu(self.fusion)
        share = share / (share.sum(axis=1, keepdims=True) + 1e-4)
        p5, p4, p3 = self.in5(c5), self.in4(c4), self.in3(c3)
        p4 = share[1, 0] * p4 + share[1, 1] * self.enlarge(p5, p4)
        p3 = share[0, 0] * p3 + share[0, 1] * self.enlarge(p4, p3)
        return self.out3(p3), self.out4(p4), self.out5(p5)


class Tower(nn.Cell):
    """Head of the proposals: a pair of numbers for each of six anchors in a cell."""

    def __init__(self, width=16, anchors=6):
        super().__init__()
        cells = []
        for _ in range(2):
            cells += [conv(width, width), nn.GroupNorm(8, width), nn.ReLU()]
        self.body = nn.SequentialCell(cells)
        self.out = conv(width, anchors * 2)

    def construct(self, x):
        x = self.out(self.body(x))
        batch = x.shape[0]
        return x.transpose(0, 2, 3, 1).reshape(batch, -1, 2)


class DensityBranch(nn.Cell):
    def __init__(self, width=16, rates=(1, 2, 3)):
        super().__init__()
        self.squeeze = conv(2 * width, width, 1)
        self.bn = nn.BatchNorm2d(width, eps=1e-3)
        self.act = nn.LeakyReLU(alpha=0.01)
        self.dilated = nn.CellList([conv(width, width // 2, dilation=rate) for rate in rates])
        self.local_mean = nn.AvgPool2d(3, stride=1, pad_mode="pad", padding=1, count_include_pad=False)
        self.mix = conv(len(rates) * (width // 2) + width, width, 1)
        self.predict = conv(width, 1, 1)
        self.log_scale = Parameter(Tensor(np.zeros(1, np.float32)), name="log_scale")

    def construct(self, p3, p4, mask):
        height, width = p4.shape[2:]
        p4 = ops.interpolate(p4, size=(2 * height, 2 * width), mode="bilinear", align_corners=False)
        x = self.act(self.bn(self.squeeze(ops.cat((p3, p4), axis=1))))
        views = [cell(x) for cell in self.dilated]
        views.append(x - self.local_mean(x))
        x = self.act(self.mix(ops.cat(views, axis=1)))
        density = ops.softplus(self.predict(x))[:, 0] * ops.exp(self.log_scale)
        return density * mask


class PointLoss(nn.Cell):
    """Classification and regression of the proposals after a greedy matching in numpy."""

    def __init__(self, background=0.5, cost_class=1.0, cost_point=0.05):
        super().__init__()
        self.class_weight = Tensor(np.array([background, 1.0], np.float32))
        self.cost_class, self.cost_point = cost_class, cost_point
        self.distance = nn.SmoothL1Loss(beta=0.5, reduction="sum")

    def match(self, prob, proposals, valid, points, counts):
        """Labels (1 matched, 0 not, -1 outside of the image) and the pairs as three lists of indices."""
        labels = np.where(valid, 0, -1)
        batch_index, row_index, col_index = [], [], []
        for i, n in enumerate(counts):
            used_rows, used_cols = set(), set()
            cost = self.cost_point * pair_distance(proposals[i], points[i, :n]) - self.cost_class * prob[i][:, None]
            cost = np.where(valid[i][:, None], cost, np.inf)
            rows, cols = assign(cost, used_rows, used_cols)
            labels[i, rows] = 1
            batch_index += [i] * len(rows)
            row_index += rows
            col_index += cols
        return labels, np.array(batch_index, int), np.array(row_index, int), np.array(col_index, int)

    def construct(self, logits, proposals, valid, points, counts):
        log_prob = ops.log_softmax(logits, -1)
        prob = np.exp(log_prob.asnumpy()[..., 1])
        points = points.asnumpy()
        labels, image, row, col = self.match(prob, proposals.asnumpy(), valid, points, counts)

        known = Tensor((labels >= 0).astype(np.float32))
        index = Tensor(np.maximum(labels, 0).astype(np.int32))
        weight = ops.gather(self.class_weight, index, 0) * known
        picked = ops.gather_elements(log_prob, 2, index.expand_dims(-1)).squeeze(-1)
        loss_cls = -(weight * picked).sum() / weight.sum()

        flat = Tensor((image * proposals.shape[1] + row).astype(np.int32))
        matched = ops.gather(proposals.reshape(-1, 2), flat, 0)
        goal = Tensor(points[image, col])
        loss_point = self.distance(matched / POINT_STRIDE, goal / POINT_STRIDE) / max(len(row), 1)
        return loss_cls, loss_point, Tensor(labels.astype(np.int32))


class DensityLoss(nn.Cell):
    """Counts of the images and of their regions, and the total variation of the normalised maps."""

    def __init__(self, splits=(2, 3)):
        super().__init__()
        self.splits = splits

    def construct(self, density, truth, counts, sizes):
        wanted = Tensor(counts.astype(np.float32))
        total = density.sum(axis=(1, 2))
        loss_count = ops.abs(total - wanted).mean()

        loss_region = 0.0
        for parts in self.splits:
            found, goal = box_sums(density, sizes, parts), Tensor(box_sums(truth, sizes, parts))
            loss_region = loss_region + ops.smooth_l1_loss(found, goal, reduction="mean") / len(self.splits)

        share = density / (total + 1e-6).reshape(-1, 1, 1)
        goal_share = Tensor(truth) / (wanted + 1e-6).reshape(-1, 1, 1)
        variation = ops.abs(share - goal_share).sum(axis=(1, 2))
        return loss_count, loss_region, (variation * wanted).mean()


class TransportLoss(nn.Cell):
    """Sinkhorn in log space for the whole batch; cells and points that are none have a weight of zero."""

    def __init__(self, first=2.0, last=0.1, factor=0.5, repeats=6):
        super().__init__()
        steps = []
        while first > last:
            steps.append(first)
            first *= factor
        self.steps = steps + [last] * repeats

    def costs(self, points, height, width, sizes):
        """(batch, cells, points): squared distances where the longer side of the image is two units."""
        side = Tensor(sizes.max(axis=1).astype(np.float32)).reshape(-1, 1, 1)
        y, x = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
        cells = (np.stack((x, y), axis=-1).reshape(1, -1, 2) + 0.5) * DENSITY_STRIDE
        cells, goals = Tensor(cells.astype(np.float32)) / side * 2 - 1, points / side * 2 - 1
        return ((cells.expand_dims(2) - goals.expand_dims(1)) ** 2).sum(axis=-1)

    def construct(self, density, mask, points, counts, sizes):
        batch, height, width = density.shape
        most = points.shape[1]
        cost = self.costs(points, height, width, sizes)
        inside = mask.reshape(batch, -1) > 0
        real = np.arange(most)[None, :] < counts[:, None]
        some = Tensor((counts > 0).astype(np.float32))

        mass = density.reshape(batch, -1)
        total = mass.sum(axis=1, keepdims=True)
        log_a = ops.where(inside, ops.log(ops.clamp(mass / total, min=1e-30)), Tensor(LOG_ZERO, ms.float32))
        log_b = np.where(real, -np.log(np.maximum(counts, 1))[:, None], LOG_ZERO)
        log_b = Tensor(log_b.astype(np.float32))

        f, g = ops.zeros_like(log_a), ops.zeros_like(log_b)
        for eps in self.steps:
            f = -eps * ops.logsumexp(log_b.expand_dims(1) + (g.expand_dims(1) - cost) / eps, 2)
            g = -eps * ops.logsumexp(log_a.expand_dims(2) + (f.expand_dims(2) - cost) / eps, 1)
        a, b = ops.exp(log_a), ops.exp(log_b)
        log_plan = log_a.expand_dims(2) + log_b.expand_dims(1) + (f.expand_dims(2) + g.expand_dims(1) - cost) / eps
        log_plan = ops.where(Tensor(real).expand_dims(1), log_plan, Tensor(LOG_ZERO, ms.float32))
        moved = (ops.exp(log_plan) * cost).sum(axis=(1, 2))

        mean_f = (a * f).sum(axis=1, keepdims=True)
        dual = (mean_f[:, 0] + (b * g).sum(axis=1)) * some
        loss = dual.sum() / max(int((counts > 0).sum()), 1)
        force = (f - mean_f) / total * inside.astype(ms.float32) * some.expand_dims(1)
        return loss, moved, force.reshape(batch, height, width)


def decode_points(prob, proposals, valid, sizes, keep=64, threshold=0.5, radius=7.0):
    """Detections of a batch in numpy: weighted means of clusters around the best proposals, padded with -1."""
    batch = len(prob)
    points = np.full((batch, keep, 2), -1.0, np.float32)
    confidence = np.zeros((batch, keep), np.float32)
    number = np.zeros(batch, np.int64)
    for i in range(batch):
        score = np.where(valid[i], prob[i], 0.0)
        order = np.argsort(-score, kind="stable")[:keep]
        order = order[score[order] > threshold]
        score = score[order]
        height, width = sizes[i]
        xy = np.clip(proposals[i][order], 0.0, [width - 1, height - 1])
        apart = pair_distance(xy, xy)
        alive = np.ones(len(order), bool)
        for j in range(len(order)):
            if not alive[j]:
                continue
            cluster = np.flatnonzero(alive & (apart[j] < radius))
            alive[cluster] = False
            weight = score[cluster]
            points[i, number[i]] = (xy[cluster] * weight[:, None]).sum(axis=0) / weight.sum()
            confidence[i, number[i]] = score[j]
            number[i] += 1
    return points, confidence, number


def counting_table(density, truth, found, number, points, counts, sizes, radius=8.0):
    """Per image: errors of both counts, normalised error, GAME(1), GAME(2), precision, recall, F1; then the summary."""
    by_points = np.abs(number - counts).astype(np.float64)
    by_density = np.abs(density.astype(np.float64).sum(axis=(1, 2)) - counts)
    columns = [by_points, by_density, by_density / np.maximum(counts, 1)]
    for level in (1, 2):
        gap = box_sums(density - truth, sizes, 2**level)
        columns.append(np.abs(gap).sum(axis=(1, 2)))

    located = []
    for i, n in enumerate(counts):
        detections = found[i, : number[i]]
        distance = pair_distance(detections, points[i, :n])
        hits = len(assign(distance, set(), set(), limit=radius)[0])
        precision = hits / max(len(detections), 1)
        recall = hits / max(n, 1)
        located.append([precision, recall, 2 * precision * recall / max(precision + recall, 1e-6)])

    table = np.concatenate((np.stack(columns, axis=1), np.array(located)), axis=1)
    rmse = np.sqrt((table[:, :2] ** 2).mean(axis=0))
    return table, np.concatenate((table.mean(axis=0), rmse))


class CrowdCounter(nn.Cell):
    """The whole: padded images with their sizes, heads and counts to a dictionary of results."""

    def __init__(self, anchor_rows=3, anchor_cols=2, offset_scale=6.0):
        super().__init__()
        self.mean = Tensor(np.array(RGB_MEAN, np.float32).reshape(1, 3, 1, 1))
        self.std = Tensor(np.array(RGB_STD, np.float32).reshape(1, 3, 1, 1))
        self.anchor_rows, self.anchor_cols = anchor_rows, anchor_cols
        self.offset_scale = offset_scale
        self.backbone = VGG()
        self.neck = Neck()
        self.offsets = Tower(anchors=anchor_rows * anchor_cols)
        self.classes = Tower(anchors=anchor_rows * anchor_cols)
        self.density = DensityBranch()
        self.point_loss = PointLoss()
        self.density_loss = DensityLoss()
        self.transport = TransportLoss()

    def anchor_grid(self, height, width):
        """Anchors (height * width * anchors, 2) as (x, y), cell after cell."""
        ys = (np.arange(height * self.anchor_rows) + 0.5) * POINT_STRIDE / self.anchor_rows
        xs = (np.arange(width * self.anchor_cols) + 0.5) * POINT_STRIDE / self.anchor_cols
        ys = ys.reshape(height, 1, self.anchor_rows, 1)
        xs = xs.reshape(1, width, 1, self.anchor_cols)
        grid = np.stack(np.broadcast_arrays(xs, ys), axis=-1)
        return grid.reshape(-1, 2).astype(np.float32)

    def construct(self, images, sizes, points, counts):
        sizes, counts = sizes.asnumpy(), counts.asnumpy()
        height, width = images.shape[2:]
        pixels = Tensor(valid_cells(height, width, 1, sizes)).expand_dims(1)
        images = (images - self.mean) / self.std * pixels
        p3, p4, _ = self.neck(*self.backbone(images))

        anchors = self.anchor_grid(*p4.shape[2:])
        inside = (anchors[None, :, 0] < sizes[:, 1:]) & (anchors[None, :, 1] < sizes[:, :1])
        logits = self.classes(p4)
        proposals = Tensor(anchors) + self.offsets(p4) * self.offset_scale
        mask = Tensor(valid_cells(p3.shape[2], p3.shape[3], DENSITY_STRIDE, sizes))
        density = self.density(p3, p4, mask)
        truth = head_counts(points.asnumpy(), counts, *density.shape[1:])

        losses = {}
        losses["cls"], losses["point"], target = self.point_loss(logits, proposals, inside, points, counts)
        losses["count"], losses["region"], losses["tv"] = self.density_loss(density, truth, counts, sizes)
        losses["ot"], moved, force = self.transport(density, mask, points, counts, sizes)
        total = 0.0
        for name, weight in LOSS_WEIGHTS.items():
            total = total + weight * losses[name]

        prob = ops.softmax(logits, axis=-1).asnumpy()[..., 1]
        found, confidence, number = decode_points(prob, proposals.asnumpy(), inside, sizes)
        table, summary = counting_table(density.asnumpy(), truth, found, number, points.asnumpy(), counts, sizes)

        result = {"logits": logits, "proposals": proposals, "density": density, "target": target}
        for name, value in losses.items():
            result["loss_" + name] = value
        result.update(loss=total, wasserstein=moved, force=force, found=Tensor(found), confidence=Tensor(confidence),
                      number=Tensor(number), table=Tensor(table.astype(np.float32)),
                      summary=Tensor(summary.astype(np.float32)))
        return result


def build():
    """The net alone, in evaluation mode; weights and inputs are the reference's."""
    net = CrowdCounter()
    net.set_train(False)
    return net
