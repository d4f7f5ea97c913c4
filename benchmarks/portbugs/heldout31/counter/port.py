"""Crowd counting by a density map and by points, ported to MindSpore (PyNative)."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

RGB_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
RGB_STD = np.array([0.229, 0.224, 0.225], np.float32)

TINY = 1e-6
FAR = 1e9


def conv(c_in, c_out, kernel, stride=1, rate=1, bias=True):
    """A convolution with PyTorch's kind of padding, which keeps the size at stride one."""
    return nn.Conv2d(c_in, c_out, kernel, stride=stride, pad_mode="pad", padding=rate * (kernel // 2), dilation=rate,
                     has_bias=bias)


def centres(count, stride):
    return Tensor((np.arange(count, dtype=np.float32) + 0.5) * stride)


def inside_mask(sizes, height, width, stride):
    """(batch, 1, height, width): which cells belong to the pictures."""
    rows = centres(height, stride).reshape(1, -1) < sizes[:, :1]
    columns = centres(width, stride).reshape(1, -1) < sizes[:, 1:]
    return ops.logical_and(rows.expand_dims(2), columns.expand_dims(1)).astype(ms.float32).expand_dims(1)


def axis_averages(length, bins):
    """(bins, length): the matrix that averages an axis into overlapping bins."""
    matrix = np.zeros((bins, length), np.float32)
    for i in range(bins):
        first, last = i * length // bins, -(-(i + 1) * length // bins)
        matrix[i, first:last] = 1.0 / (last - first)
    return Tensor(matrix)


def resize(x, size):
    return ops.interpolate(x, size=size, mode="bilinear", align_corners=False)


def sum_windows(x, side):
    """Sums over windows that do not overlap."""
    b, c, h, w = x.shape
    return x.reshape(b, c, h // side, side, w // side, side).sum(axis=(3, 5))


class Residual(nn.Cell):
    """The block of the trunk, with its gate."""

    def __init__(self, c_in, c_out, stride, reduction=4):
        super().__init__()
        self.conv_a = conv(c_in, c_out, 3, stride, bias=False)
        self.norm_a = nn.BatchNorm2d(c_out)
        self.conv_b = conv(c_out, c_out, 3, bias=False)
        self.norm_b = nn.BatchNorm2d(c_out)
        self.squeeze = nn.Dense(c_out, c_out // reduction)
        self.excite = nn.Dense(c_out // reduction, c_out)
        self.swish = nn.SiLU()
        self.reshapes = stride != 1 or c_in != c_out
        if self.reshapes:
            self.side_conv = conv(c_in, c_out, 1, stride, bias=False)
            self.side_norm = nn.BatchNorm2d(c_out)

    def recalibrate(self, x, mask):
        cells = ops.clamp(mask.sum(axis=(2, 3)), min=1.0)
        pooled = (x * mask).sum(axis=(2, 3)) / cells
        strength = self.excite(ops.relu(self.squeeze(pooled)))
        strength = ops.clamp(strength / 6.0 + 0.5, 0.0, 1.0)
        return x * strength.reshape(x.shape[0], -1, 1, 1)

    def construct(self, x, mask):
        branch = self.swish(self.norm_a(self.conv_a(x)))
        branch = self.recalibrate(self.norm_b(self.conv_b(branch)), mask)
        if self.reshapes:
            x = self.side_norm(self.side_conv(x))
        return ops.relu(x + branch) * mask


class Trunk(nn.Cell):
    """Two scales of features."""

    def __init__(self, widths):
        super().__init__()
        first, quarter, eighth = widths
        self.entry = conv(3, first, 3, stride=2, bias=False)
        self.entry_norm = nn.BatchNorm2d(first)
        self.shrink = nn.MaxPool2d(3, 2, pad_mode="pad", padding=1)
        self.quarter = nn.CellList([Residual(first, quarter, 1), Residual(quarter, quarter, 1)])
        self.eighth = nn.CellList([Residual(quarter, eighth, 2), Residual(eighth, eighth, 1)])

    def construct(self, x, mask4, mask8):
        x = self.shrink(ops.relu(self.entry_norm(self.entry(x)))) * mask4
        for block in self.quarter:
            x = block(x, mask4)
        fine = x
        for block in self.eighth:
            x = block(x, mask8)
        return fine, x


class Pyramid(nn.Cell):
    """Context on the coarse scale, which is then added to the fine one."""

    def __init__(self, c_fine, c_coarse, width, bins=(1, 2, 3)):
        super().__init__()
        self.bins = bins
        self.fine_in = conv(c_fine, width, 1)
        self.coarse_in = conv(c_coarse, width, 1)
        self.bin_convs = nn.CellList([conv(width, width, 1, bias=False) for _ in bins])
        self.contrast = conv(width, width, 1)
        self.context_out = conv(2 * width, width, 1)
        self.merge = conv(width, width, 3)
        self.merge_norm = nn.GroupNorm(4, width)
        self.gelu = nn.GELU(approximate=False)

    def context(self, x):
        h, w = x.shape[2:]
        means, weights = [], []
        for bins, project in zip(self.bins, self.bin_convs):
            pooled = ops.matmul(ops.matmul(axis_averages(h, bins), x), axis_averages(w, bins).T)
            mean = resize(project(pooled), (h, w))
            means.append(mean)
            weights.append(ops.sigmoid(self.contrast(mean - x)))
        means, weights = ops.stack(means), ops.stack(weights)
        weights = weights / weights.sum(axis=0, keepdims=True)
        mixed = (means * weights).sum(axis=0)
        return ops.relu(self.context_out(ops.cat((mixed, x), axis=1)))

    def construct(self, fine, coarse, mask4, mask8):
        coarse = self.context(self.coarse_in(coarse) * mask8) * mask8
        merged = self.fine_in(fine) + resize(coarse, mask4.shape[2:])
        return self.gelu(self.merge_norm(self.merge(merged))) * mask4, coarse


class DensityBranch(nn.Cell):
    def __init__(self, c_in, width, rates=(2, 3), divisor=5.0):
        super().__init__()
        self.divisor = divisor
        self.conv1 = conv(c_in, width, 3, rate=rates[0], bias=False)
        self.norm1 = nn.BatchNorm2d(width, eps=1e-3)
        self.conv2 = conv(width, width, 3, rate=rates[1], bias=False)
        self.norm2 = nn.BatchNorm2d(width, eps=1e-3)
        self.leaky = nn.LeakyReLU(alpha=0.01)
        self.last = conv(width, 1, 1)

    def construct(self, x, mask):
        x = self.leaky(self.norm1(self.conv1(x)))
        x = self.last(self.leaky(self.norm2(self.conv2(x))))
        positive = ops.relu(x) + ops.log1p(ops.exp(-ops.abs(x)))
        return positive * mask / self.divisor


class PointBranch(nn.Cell):
    """Offsets from anchors, and whether there is a head."""

    def __init__(self, width, stride=8, rows=2, lines=1, reach=12.0):
        super().__init__()
        self.stride, self.rows, self.lines, self.reach = stride, rows, lines, reach
        self.mix = conv(width + 2, width, 3)
        self.mix_norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.gelu = nn.GELU(approximate=False)
        self.to_offset = conv(width, 2 * rows * lines, 3)
        self.to_class = conv(width, 2 * rows * lines, 3)

    def anchors(self, h, w):
        """(h * w * rows * lines, 2): x and y of the anchors, cell by cell."""
        ys = (np.arange(h * self.rows) + 0.5) * (self.stride / self.rows)
        xs = (np.arange(w * self.lines) + 0.5) * (self.stride / self.lines)
        grid_x, grid_y = np.meshgrid(xs, ys)
        grid = np.stack((grid_x, grid_y), axis=-1).reshape(h, self.rows, w, self.lines, 2)
        return Tensor(grid.transpose(0, 2, 1, 3, 4).reshape(-1, 2).astype(np.float32))

    def per_anchor(self, x):
        """(batch, anchors * 2, h, w) -> (batch, h * w * anchors, 2)."""
        return x.transpose(0, 2, 3, 1).reshape(x.shape[0], -1, 2)

    def construct(self, x, sizes, mask):
        b, _, h, w = x.shape
        extent = sizes.astype(ms.float32)
        place_y = centres(h, self.stride).reshape(1, -1) / extent[:, :1] * 2.0 - 1.0
        place_x = centres(w, self.stride).reshape(1, -1) / extent[:, 1:] * 2.0 - 1.0
        place_y = ops.broadcast_to(place_y.reshape(b, 1, h, 1), (b, 1, h, w)) * mask
        place_x = ops.broadcast_to(place_x.reshape(b, 1, 1, w), (b, 1, h, w)) * mask
        x = self.mix(ops.cat((x, place_x, place_y), axis=1)).transpose(0, 2, 3, 1)
        x = self.gelu(self.mix_norm(x)).transpose(0, 3, 1, 2) * mask

        moved = self.anchors(h, w) + ops.tanh(self.per_anchor(self.to_offset(x))) * self.reach
        border = ops.stack((extent[:, 1], extent[:, 0]), axis=1).expand_dims(1) - 1.0
        moved = ops.minimum(ops.relu(moved), border)
        alive = mask.reshape(b, h * w, 1)
        alive = ops.broadcast_to(alive, (b, h * w, self.rows * self.lines)).reshape(b, -1) > 0.5
        return moved, self.per_anchor(self.to_class(x)), alive


class Transport(nn.Cell):
    """Optimal transport between proposals and annotated points, each side with a dustbin."""

    def __init__(self, rounds=12, hot=1.0, cold=0.15, per_pixel=0.08, per_class=1.5, least=0.2):
        super().__init__()
        self.dustbin = Parameter(Tensor(-1.0, ms.float32), name="dustbin")
        self.temperatures = np.geomspace(hot, cold, rounds).tolist()
        self.per_pixel, self.per_class, self.least = per_pixel, per_class, least

    def sinkhorn(self, benefit, log_rows, log_columns):
        row_dual, column_dual = ops.zeros_like(log_rows), ops.zeros_like(log_columns)
        for t in self.temperatures:
            row_dual = t * (log_rows - ops.logsumexp((benefit + column_dual.expand_dims(1)) / t, 2))
            column_dual = t * (log_columns - ops.logsumexp((benefit + row_dual.expand_dims(2)) / t, 1))
        return ops.exp((benefit + row_dual.expand_dims(2) + column_dual.expand_dims(1)) / t)

    def log_mass(self, present, opposite, total):
        """One for each that is present, and for the dustbin as much as the other side has."""
        mass = ops.cat((present, opposite), axis=1)
        return ops.select(mass > 0, ops.log(ops.clamp(mass / total, min=TINY)), ops.full_like(mass, -1e4))

    def construct(self, proposals, heads, alive, points, known):
        b, n, m = proposals.shape[0], proposals.shape[1], points.shape[1]
        gap = proposals.expand_dims(2) - points.expand_dims(1)
        distance = ops.sqrt((gap * gap).sum(axis=-1))
        benefit = self.per_class * heads.expand_dims(2) - self.per_pixel * distance
        benefit = ops.cat((benefit, ops.broadcast_to(self.dustbin, (b, n, 1))), axis=2)
        benefit = ops.cat((benefit, ops.broadcast_to(self.dustbin, (b, 1, m + 1))), axis=1)

        alive, known_mass = alive.astype(ms.float32), known.astype(ms.float32)
        n_alive, n_known = alive.sum(axis=1, keepdims=True), known_mass.sum(axis=1, keepdims=True)
        total = n_alive + n_known
        log_rows = self.log_mass(alive, n_known, total)
        log_columns = self.log_mass(known_mass, n_alive, total)
        plan = self.sinkhorn(benefit, log_rows, log_columns) * total.expand_dims(2)

        core = plan[:, :n, :m]
        choice, strongest = ops.argmax(core, 1), core.max(axis=1)
        answer = ops.gather_elements(ops.argmax(core, 2), 1, choice)
        matched = ops.logical_and(answer == ops.arange(m).reshape(1, m), strongest > self.least)
        matched = ops.logical_and(matched, known)
        weight = core / ops.clamp(core.sum(axis=1, keepdims=True), min=TINY)
        middle = ops.matmul(weight.swapaxes(1, 2), proposals) * known_mass.expand_dims(2)
        return plan, choice, matched, middle


def bayesian_counts(density, points, known, sizes, sigma=7.0, ratio=0.25, stride=4):
    """Expected counts (batch, points + 1), background last, and the loss of each picture."""
    b, _, h, w = density.shape
    m = points.shape[1]
    dx = points[:, :, :1] - centres(w, stride)
    dy = points[:, :, 1:] - centres(h, stride)
    squared = (dy * dy).reshape(b, m, h, 1) + (dx * dx).reshape(b, m, 1, w)
    squared = squared.reshape(b, m, h * w)
    squared = ops.select(ops.broadcast_to(known.expand_dims(2), squared.shape), squared, ops.full_like(squared, FAR))
    nearest = squared.min(axis=1, keepdims=True)
    shorter = sizes.min(axis=1).astype(ms.float32).reshape(b, 1, 1)
    nothing = ops.square(shorter * ratio) / (nearest + 1e-5)
    posterior = ops.softmax(ops.cat((squared, nothing), axis=1) / (-2.0 * sigma * sigma), axis=1)
    counts = (posterior * density.reshape(b, 1, h * w)).sum(axis=2)
    wanted = ops.cat((known.astype(ms.float32), ops.zeros((b, 1), ms.float32)), axis=1)
    return counts, ops.abs(wanted - counts).sum(axis=1)


def class_loss(scores, alive, choice, matched, empty=0.4):
    """Weighted cross entropy over all proposals in the pictures; matched ones should be heads."""
    n = scores.shape[1]
    chosen = ops.logical_and(choice.expand_dims(2) == ops.arange(n), matched.expand_dims(2))
    chosen = chosen.astype(ms.float32).max(axis=1)
    log_p = ops.log_softmax(scores, axis=-1)
    entropy = -(chosen * log_p[..., 1] + (1.0 - chosen) * log_p[..., 0])
    weight = (empty + (1.0 - empty) * chosen) * alive.astype(ms.float32)
    return (entropy * weight).sum() / weight.sum()


def point_loss(proposals, choice, matched, points, known, beta=4.0):
    index = ops.broadcast_to(choice.expand_dims(2), points.shape)
    gap = ops.abs(ops.gather_elements(proposals, 1, index) - points)
    huber = ops.select(gap < beta, 0.5 * gap * gap / beta, gap - 0.5 * beta)
    total = (huber * matched.astype(ms.float32).expand_dims(2)).sum()
    return total / ops.clamp(known.astype(ms.float32).sum(), min=1.0)


def variation_loss(density, points, known, stride=4):
    """Total variation between where the heads are and where the density is, times the number of heads."""
    b, _, h, w = density.shape
    column = ops.floor(points[..., 0] / stride).astype(ms.int32)
    row = ops.floor(points[..., 1] / stride).astype(ms.int32)
    known = known.astype(ms.float32)
    number = known.sum(axis=1)
    heads = ops.tensor_scatter_elements(ops.zeros((b, h * w), ms.float32), row * w + column, known, 1, "add")
    flat = density.reshape(b, h * w)
    difference = heads / (number + TINY).reshape(b, 1) - flat / (flat.sum(axis=1, keepdims=True) + TINY)
    return (0.5 * ops.abs(difference).sum(axis=1) * number).mean()


class Peaks(nn.Cell):
    """Where the smoothed density has its maxima."""

    def __init__(self, stride=4, kernel=5, sigma=1.2, share=0.25, most=10, neighbours=2, factor=0.3):
        super().__init__()
        self.stride, self.kernel, self.share, self.most = stride, kernel, share, most
        self.neighbours, self.factor = neighbours, factor
        bell = np.exp(-((np.arange(kernel) - kernel // 2) ** 2) / (2.0 * sigma**2))
        self.bell = (bell / bell.sum()).tolist()
        self.local_max = nn.MaxPool2d(3, 1, pad_mode="pad", padding=1)

    def smooth(self, x):
        h, w = x.shape[2:]
        side = self.kernel // 2
        x = ops.pad(x, (side, side, side, side), mode="reflect")
        x = sum(g * x[:, :, i : i + h] for i, g in enumerate(self.bell))
        return sum(g * x[:, :, :, i : i + w] for i, g in enumerate(self.bell))

    def refine(self, level, index):
        """Steps (x, y) from the peaks to the centres of mass around them."""
        b, _, h, w = level.shape
        padded = ops.pad(level, (1, 1, 1, 1), mode="replicate")[:, 0]
        steps = [(dx, dy) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]
        around = [padded[:, 1 + dy : 1 + dy + h, 1 + dx : 1 + dx + w].reshape(b, -1) for dx, dy in steps]
        around = ops.stack([ops.gather_elements(cells, 1, index) for cells in around], axis=2)
        around = around - around.min(axis=2, keepdims=True)
        around = around / ops.clamp(around.sum(axis=2, keepdims=True), min=1e-8)
        return ops.matmul(around, Tensor(np.array(steps, np.float32)))

    def construct(self, density, mask):
        b, _, _, w = density.shape
        level = self.smooth(density) * mask
        top = level.max(axis=(1, 2, 3)).reshape(b, 1)
        peak = ops.logical_and(level == self.local_max(level), level > self.share * top.reshape(b, 1, 1, 1))
        height, index = ops.topk((level * peak.astype(ms.float32)).reshape(b, -1), self.most, dim=1)
        found = height > 0
        cell = ops.stack((index % w, index // w), axis=2).astype(ms.float32)
        place = (cell + self.refine(level, index) + 0.5) * self.stride

        gap = place.expand_dims(2) - place.expand_dims(1)
        distance = ops.sqrt((gap * gap).sum(axis=-1))
        real = ops.broadcast_to(found.expand_dims(1), distance.shape)
        distance = ops.select(real, distance, ops.full_like(distance, 1e3))
        distance = distance + 1e3 * ops.eye(self.most, self.most, ms.float32)
        near, _ = ops.topk(distance, self.neighbours, dim=-1, largest=False)
        radius = ops.clamp(self.factor * near.mean(axis=-1), max=16.0) * found.astype(ms.float32)
        shown = found.astype(ms.float32).expand_dims(2)
        return place * shown - (1.0 - shown), height / top, radius


class CrowdNet(nn.Cell):
    """Pictures, their sizes, annotated points and which of these count -> what is counted where."""

    def __init__(self, widths=(10, 16, 24), width=16, density_width=14):
        super().__init__()
        self.trunk = Trunk(widths)
        self.pyramid = Pyramid(widths[1], widths[2], width)
        self.density = DensityBranch(width, density_width)
        self.points = PointBranch(width)
        self.transport = Transport()
        self.peaks = Peaks()

    def normalise(self, images, sizes):
        mean, std = Tensor(RGB_MEAN.reshape(1, 3, 1, 1)), Tensor(RGB_STD.reshape(1, 3, 1, 1))
        return (images / 255.0 - mean) / std * inside_mask(sizes, *images.shape[2:], 1)

    def total_count(self, regions, heads):
        """Dense regions are counted by the density, sparse ones by the points; heads is (batch, 1, h, w)."""
        sure = sum_windows(heads, 2)
        trust = ops.sigmoid((regions - 0.5) * 4.0)
        return (trust * regions + (1.0 - trust) * sure).sum(axis=(1, 2, 3))

    def construct(self, images, sizes, points, known):
        b, _, h, w = images.shape
        mask4, mask8 = inside_mask(sizes, h // 4, w // 4, 4), inside_mask(sizes, h // 8, w // 8, 8)
        fine, coarse = self.trunk(self.normalise(images, sizes), mask4, mask8)
        fine, coarse = self.pyramid(fine, coarse, mask4, mask8)
        density = self.density(fine, mask4)
        proposals, scores, alive = self.points(coarse, sizes, mask8)
        heads = ops.softmax(scores, axis=-1)[..., 1] * alive.astype(ms.float32)

        limit = ops.stack((sizes[:, 1], sizes[:, 0]), axis=1).astype(ms.float32).expand_dims(1)
        within = ops.logical_and(points >= 0, points < limit).all(axis=-1)
        known = ops.logical_and(known, within)
        points = points * known.astype(ms.float32).expand_dims(2)

        plan, choice, matched, middle = self.transport(proposals, heads, alive, points, known)
        counts, bayes_loss = bayesian_counts(density, points, known, sizes)
        losses = ops.stack((
            bayes_loss.mean(),
            class_loss(scores, alive, choice, matched),
            point_loss(proposals, choice, matched, points, known),
            variation_loss(density, points, known),
        ))
        place, height, radius = self.peaks(density, mask4)
        regions = sum_windows(density, 4)
        sure = ops.select(heads > 0.5, heads, ops.zeros_like(heads)).reshape(b, h // 8, w // 8, -1).sum(axis=-1)
        return {
            "density": density,
            "count": self.total_count(regions, sure.expand_dims(1)),
            "regions": regions,
            "coords": proposals * alive.astype(ms.float32).expand_dims(2),
            "probs": heads,
            "plan": plan,
            "matched": matched.astype(ms.float32),
            "assigned": middle,
            "expected": counts,
            "losses": losses,
            "peaks": place,
            "peak_scores": height,
            "radius": radius,
        }


def build():
    """The net for evaluation (its weights come from a checkpoint), and three pictures."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_seed(0)
    net = CrowdNet()
    net.set_train(False)
    rng = np.random.RandomState(7)
    sizes = np.array([[64, 96], [44, 70], [56, 88]])
    points = (rng.rand(3, 10, 2) * np.array([96, 64])).astype(np.float32)
    known = np.zeros((3, 10), bool)
    known[0, [0, 1, 2, 4, 5, 6, 7, 8]] = True
    known[1, 1:9] = True
    images = 40.0 + rng.rand(3, 3, 64, 96) * 50.0 + rng.rand(3, 3, 8, 12).repeat(8, axis=2).repeat(8, axis=3) * 60.0
    yy, xx = np.mgrid[:64, :96]
    for picture, heads in zip(images, points):
        for x, y in heads:
            picture += rng.rand(3, 1, 1) * 200.0 * np.exp(-((xx - x) ** 2 + (yy - y) ** 2) / 20.0)
    images = np.clip(images, 0, 255).astype(np.float32)
    return net, tuple(Tensor(array) for array in (images, sizes, points, known))
