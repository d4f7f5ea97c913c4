"""Cells by polygons and by flows in MindSpore: the correct port."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

PERCENTILES = (1.0, 99.8)
FLOW_SCALE = 5.0
FLAT = 0.01
LARGE = 1e9


def ray_directions(count):
    """Sine and cosine of each ray, two arrays (count,)."""
    angles = np.linspace(0.0, 2.0 * np.pi, count, endpoint=False)
    return np.sin(angles).astype(np.float32), np.cos(angles).astype(np.float32)


def percentile(ordered, q):
    """Of values in ascending order along the last axis, with linear interpolation."""
    place = q / 100.0 * (ordered.shape[-1] - 1)
    below = int(np.floor(place))
    above = min(below + 1, ordered.shape[-1] - 1)
    return ordered[..., below] + (ordered[..., above] - ordered[..., below]) * (place - below)


def rescale(image, valid):
    """Intensities of each image and channel to about [0, 1], judged by what is not padding."""
    b, c, h, w = image.shape
    scaled = []
    for picture, inside in zip(image.reshape(b, c, h * w), valid.reshape(b, h * w)):
        known = ops.gather(picture, ops.nonzero(inside).reshape(-1), 1)
        ordered, _ = ops.sort(known, axis=-1)
        low, high = (percentile(ordered, q).expand_dims(-1) for q in PERCENTILES)
        scaled.append((picture - low) / (high - low + 1e-6) * inside.astype(image.dtype))
    return ops.stack(scaled).reshape(b, c, h, w)


def neighbourhood(maps):
    """The 3 x 3 values around each pixel, row by row, zero outside: (b, h, w) -> (b, 9, h, w)."""
    h, w = maps.shape[-2:]
    padded = ops.pad(maps, (1, 1, 1, 1))
    return ops.stack([padded[:, i : i + h, j : j + w] for i in range(3) for j in range(3)], axis=1)


def central_pixels(labels):
    """1 at the pixel of each object that is nearest to its median, 0 elsewhere."""
    labels = labels.asnumpy()
    marks = np.zeros(labels.shape, np.float32)
    for mark, label in zip(marks, labels):
        for number in np.unique(label[label > 0]):
            rows, cols = np.nonzero(label == number)
            middle = (len(rows) - 1) // 2
            row, col = np.sort(rows)[middle], np.sort(cols)[middle]
            best = np.argmin((rows - row) ** 2 + (cols - col) ** 2)
            mark[rows[best], cols[best]] = 1.0
    return Tensor(marks)


def flows_of_labels(labels, steps):
    """Directions to the centres by diffusion inside of each object, (b, 2, h, w)."""
    source = central_pixels(labels)
    around = neighbourhood(labels.astype(ms.float32)) == labels.astype(ms.float32).expand_dims(1)
    around = ops.logical_and(around, (labels > 0).expand_dims(1)).astype(ms.float32)
    heat = ops.zeros_like(source)
    for _ in range(steps):
        heat = (neighbourhood(heat + source) * around).sum(axis=1) / 9.0
    near = neighbourhood(ops.log1p(heat)) * around
    down, right = near[:, 7] - near[:, 1], near[:, 5] - near[:, 3]
    length = ops.clamp(ops.sqrt(down * down + right * right), min=FLAT)
    return ops.stack((down / length, right / length), axis=1)


def conv(c_in, c_out, size=3, **options):
    options.setdefault("padding", size // 2)
    return nn.Conv2d(c_in, c_out, size, pad_mode="pad", has_bias=True, **options)


class NormConv(nn.Cell):
    """Batch norm, ReLU unless it is a projection, convolution."""

    def __init__(self, c_in, c_out, size=3, relu=True):
        super().__init__()
        self.norm = nn.BatchNorm2d(c_in, eps=1e-5, momentum=0.95)
        self.conv = conv(c_in, c_out, size)
        self.relu = relu

    def construct(self, x):
        x = self.norm(x)
        return self.conv(ops.relu(x) if self.relu else x)


class DownBlock(nn.Cell):
    def __init__(self, c_in, c_out):
        super().__init__()
        self.proj = NormConv(c_in, c_out, 1, relu=False)
        self.first = nn.SequentialCell(NormConv(c_in, c_out), NormConv(c_out, c_out))
        self.second = nn.SequentialCell(NormConv(c_out, c_out), NormConv(c_out, c_out))

    def construct(self, x):
        x = self.proj(x) + self.first(x)
        return x + self.second(x)


class StyledConv(nn.Cell):
    def __init__(self, width, style_width):
        super().__init__()
        self.conv = NormConv(width, width)
        self.full = nn.Dense(style_width, width)

    def construct(self, x, style):
        shift = self.full(style).reshape(x.shape[0], -1, 1, 1)
        return self.conv(x + shift)


class UpBlock(nn.Cell):
    """Twice the size, joined with the features of the way down, all convolutions but the first know the style."""

    def __init__(self, c_in, c_out, style_width):
        super().__init__()
        self.upsample = nn.Conv2dTranspose(c_in, c_in, 3, stride=2, pad_mode="valid", has_bias=True)
        self.conv0 = NormConv(c_in, c_out)
        self.conv1 = StyledConv(c_out, style_width)
        self.conv2 = StyledConv(c_out, style_width)
        self.conv3 = StyledConv(c_out, style_width)
        self.proj = NormConv(c_in, c_out, 1, relu=False)

    def construct(self, x, skip, style):
        x = self.upsample(x)[:, :, 1:, 1:]  # as with padding 1 and output padding 1
        joined = self.conv0(x) + skip
        x = self.proj(x) + self.conv1(joined, style)
        return x + self.conv3(self.conv2(x, style), style)


class Backbone(nn.Cell):
    def __init__(self, c_in, widths):
        super().__init__()
        steps = list(zip(widths, widths[1:]))
        self.down = nn.CellList([DownBlock(c_in, widths[0])] + [DownBlock(fine, deep) for fine, deep in steps])
        self.up = nn.CellList([UpBlock(deep, fine, widths[-1]) for fine, deep in steps[::-1]])
        self.halve = nn.MaxPool2d(kernel_size=2, stride=2)

    def style_of(self, deepest, valid):
        b, c, h, w = deepest.shape
        side = valid.shape[1] // h
        share = valid.astype(deepest.dtype).reshape(b, h, side, w, side).mean(axis=(2, 4)).reshape(b, 1, h * w)
        mean = (deepest.reshape(b, c, h * w) * share).sum(axis=-1) / ops.clamp(share.sum(axis=-1), min=1e-6)
        return mean / ops.sqrt((mean * mean).sum(axis=1, keepdims=True))

    def construct(self, x, valid):
        levels = [self.down[0](x)]
        for block in self.down[1:]:
            levels.append(block(self.halve(levels[-1])))
        x = levels.pop()
        style = self.style_of(x, valid)
        for block in self.up:
            x = block(x, levels.pop(), style)
        return x, style


class PolarHead(nn.Cell):
    """Object probability and ray lengths on every second pixel."""

    def __init__(self, c_in, hidden, rays):
        super().__init__()
        self.reduce = nn.AvgPool2d(3, stride=2, pad_mode="pad", padding=1, count_include_pad=False)
        self.features = conv(c_in, hidden)
        self.norm = nn.GroupNorm(4, hidden)
        self.act = nn.SiLU()
        self.context = conv(hidden, hidden, dilation=2, padding=2)
        self.prob = conv(hidden, 1, size=1)
        self.dist = conv(hidden, rays, size=1)

    def construct(self, x):
        x = self.act(self.norm(self.features(self.reduce(x))))
        x = x + ops.relu(self.context(x))
        return ops.sigmoid(self.prob(x))[:, 0], self.dist(x)


class PolygonDecoder(nn.Cell):
    """Polygons around the most probable places; each covers those that are less probable."""

    def __init__(self, rays, threshold=0.45, overlap=0.5, most=40):
        super().__init__()
        sine, cosine = ray_directions(rays)
        self.rays = rays
        self.sine, self.cosine = Tensor(sine), Tensor(cosine)
        self.threshold, self.overlap, self.most = threshold, overlap, most

    def fill(self, centres, lengths, h, w):
        """Masks (n, h, w): the union of the triangles between the centre and two rays next to each other."""
        rows = ops.arange(h).astype(ms.float32).reshape(1, 1, h, 1) - centres[:, 0].reshape(-1, 1, 1, 1)
        cols = ops.arange(w).astype(ms.float32).reshape(1, 1, 1, w) - centres[:, 1].reshape(-1, 1, 1, 1)
        ay, ax = lengths * self.sine, lengths * self.cosine
        by, bx = ops.cat((ay[:, 1:], ay[:, :1]), axis=1), ops.cat((ax[:, 1:], ax[:, :1]), axis=1)
        ay, ax, by, bx = (part.reshape(-1, self.rays, 1, 1) for part in (ay, ax, by, bx))
        wedge = ops.logical_and(ax * rows - ay * cols >= 0, bx * rows - by * cols <= 0)
        edge = (bx - ax) * (rows - ay) - (by - ay) * (cols - ax) >= 0
        return ops.logical_and(wedge, edge).any(axis=1)

    def survivors(self, masks):
        """Indices of those that do not overlap an earlier survivor."""
        flat = masks.reshape(masks.shape[0], -1).astype(ms.float32)
        sizes = flat.sum(axis=1)
        common = ops.matmul(flat, flat.T)
        share = common / ops.clamp(ops.minimum(sizes.reshape(-1, 1), sizes.reshape(1, -1)), min=1.0)
        share = share.asnumpy()
        kept = []
        for i in range(len(share)):
            if all(share[j, i] <= self.overlap for j in kept):
                kept.append(i)
        return kept

    def construct(self, prob, dist, valid):
        b, gh, gw = prob.shape
        h, w = valid.shape[1:]
        inner = np.zeros((gh, gw), bool)
        inner[1:-1, 1:-1] = True
        usable = ops.logical_and(valid[:, ::2, ::2], Tensor(inner))
        ranked = ops.where(usable, prob, ops.zeros_like(prob)).reshape(b, -1)
        all_coords, all_scores, all_labels = [], [], []
        for i in range(b):
            scores, order = ops.topk(ranked[i], self.most)
            found = int((scores > self.threshold).sum())
            scores, order = scores[:found], order[:found]
            centres = ops.stack((order // gw, order % gw), axis=1).astype(ms.float32) * 2.0
            lengths = ops.clamp(ops.gather(dist[i].reshape(self.rays, -1), order, 1).T, min=1e-3)
            masks = ops.logical_and(self.fill(centres, lengths, h, w), valid[i])
            kept = self.survivors(masks)
            index, blank = Tensor(kept, ms.int32), self.most - len(kept)
            centres, lengths, masks = (ops.gather(part, index, 0) for part in (centres, lengths, masks))
            # the first of those that cover a pixel has it
            height = ops.arange(len(kept), 0, -1).astype(ms.int32).reshape(-1, 1, 1)
            top = (masks.astype(ms.int32) * height).max(axis=0)
            all_labels.append(ops.where(top > 0, len(kept) + 1 - top, ops.zeros_like(top)))
            y = centres[:, :1] + lengths * self.sine
            x = centres[:, 1:] + lengths * self.cosine
            all_coords.append(ops.pad(ops.stack((y, x), axis=1), (0, 0, 0, 0, 0, blank)))
            all_scores.append(ops.pad(ops.gather(scores, index, 0), (0, blank)))
        return ops.stack(all_coords), ops.stack(all_scores), ops.stack(all_labels)


class FlowTracker(nn.Cell):
    """Lets pixels float along the field and makes one object of those that meet."""

    def __init__(self, steps=10, diffusion=30, crowd=7, smallest=48, side=5):
        super().__init__()
        self.steps, self.diffusion = steps, diffusion
        self.crowd, self.smallest, self.side = crowd, smallest, side
        self.peaks = nn.MaxPool2d(5, stride=1, pad_mode="same")
        self.spread = nn.MaxPool2d(3, stride=1, pad_mode="same")

    def sample(self, field, y, x):
        """Bilinear interpolation of (b, 2, h, w) at places (b, n) within the image."""
        b, c, h, w = field.shape
        flat = field.reshape(b, c, h * w)
        y0, x0 = ops.floor(y), ops.floor(x)
        fy, fx = (y - y0).expand_dims(1), (x - x0).expand_dims(1)
        top, left = y0.astype(ms.int32), x0.astype(ms.int32)
        bottom, right = ops.clamp(top + 1, max=h - 1), ops.clamp(left + 1, max=w - 1)

        def at(row, col):
            index = (row * w + col).expand_dims(1)
            return ops.gather_elements(flat, 2, ops.broadcast_to(index, (b, c, index.shape[-1])))

        upper = at(top, left) * (1.0 - fx) + at(top, right) * fx
        lower = at(bottom, left) * (1.0 - fx) + at(bottom, right) * fx
        return upper * (1.0 - fy) + lower * fy

    def drift(self, field):
        b, _, h, w = field.shape
        rows, cols = np.mgrid[:h, :w].astype(np.float32).reshape(2, 1, h * w)
        y, x = (Tensor(np.repeat(start, b, axis=0)) for start in (rows, cols))
        for _ in range(self.steps):
            move = self.sample(field, y, x)
            y = ops.clamp(y + move[:, 0], 0.0, h - 1.0)
            x = ops.clamp(x + move[:, 1], 0.0, w - 1.0)
        return ops.stack((y, x), axis=1).reshape(b, 2, h, w)

    def gather_up(self, places, cell):
        """Labels of one image from where its pixels arrived."""
        h, w = cell.shape
        side = self.side
        height, width = h + 2 * side, w + 2 * side
        arrival = ops.round(places).astype(ms.int32) + side
        arrival = arrival[0] * width + arrival[1]
        counts = np.bincount(arrival.asnumpy()[cell.asnumpy()], minlength=height * width)
        counts = Tensor(counts.reshape(height, width).astype(np.float32))
        highest = self.peaks(counts.reshape(1, 1, height, width))[0, 0]
        seeds = ops.nonzero(ops.logical_and(counts == highest, counts > self.crowd)).asnumpy()
        counts = counts.asnumpy()
        seeds = sorted(seeds.tolist(), key=lambda seed: counts[seed[0], seed[1]])
        basin = np.zeros((height, width), np.int32)
        for number, (row, col) in enumerate(seeds):
            box = slice(row - side, row + side + 1), slice(col - side, col + side + 1)
            crowded = Tensor((counts[box] > 2).astype(np.float32))
            grown = np.zeros((1, 1) + crowded.shape, np.float32)
            grown[..., side, side] = 1.0
            grown = Tensor(grown)
            for _ in range(side):
                grown = self.spread(grown) * crowded
            basin[box][grown[0, 0].asnumpy() > 0] = number + 1
        label = ops.gather(Tensor(basin.reshape(-1)), arrival.reshape(-1), 0).reshape(h, w) * cell.astype(ms.int32)
        sizes = np.bincount(label.asnumpy().reshape(-1))
        stays = sizes >= self.smallest
        stays[0] = False
        numbers = np.where(stays, np.cumsum(stays), 0).astype(np.int32)
        return ops.gather(Tensor(numbers), label.reshape(-1), 0).reshape(h, w)

    def construct(self, flow, valid):
        cell = ops.logical_and(flow[:, 2] > 0.0, valid)
        field = flow[:, :2] * cell.astype(flow.dtype).expand_dims(1) / FLOW_SCALE
        places = self.drift(field)
        labels = ops.stack([self.gather_up(places[i], cell[i]) for i in range(flow.shape[0])])
        wrong = flows_of_labels(labels, self.diffusion) - field
        return places, labels, (wrong * wrong).sum(axis=1)


class CellTable(nn.Cell):
    """Measures of each object by flow, and which polygon it meets."""

    def __init__(self, rows=20, least=0.3):
        super().__init__()
        self.rows, self.least = rows, least

    def members(self, labels):
        numbers = ops.arange(1, self.rows + 1).astype(ms.int32).reshape(1, -1, 1)
        labels = ops.clamp(labels.astype(ms.int32), max=self.rows).reshape(labels.shape[0], 1, -1)
        return (labels == numbers).astype(ms.float32)

    def construct(self, labels, stars, image, error):
        b, h, w = labels.shape
        member = self.members(labels)
        area = member.sum(axis=-1)
        safe = ops.clamp(area, min=1.0)
        y, x = (Tensor(axis.reshape(1, 1, h * w)) for axis in np.mgrid[:h, :w].astype(np.float32))
        cy, cx = (member * y).sum(axis=-1) / safe, (member * x).sum(axis=-1) / safe
        present = (area > 0).astype(ms.float32)
        away = (1.0 - member) * LARGE
        first = [(axis + away).min(axis=-1) * present for axis in (y, x)]
        last = [((axis - away).max(axis=-1) + 1.0) * present for axis in (y, x)]
        bright = ops.matmul(member, image.reshape(b, -1, h * w).swapaxes(1, 2)) / safe.expand_dims(-1)
        wrong = (member * error.reshape(b, 1, h * w)).sum(axis=-1) / safe
        dy, dx = y - cy.expand_dims(-1), x - cx.expand_dims(-1)
        yy, yx, xx = ((member * part).sum(axis=-1) / safe for part in (dy * dy, dy * dx, dx * dx))
        columns = [area, cy, cx, *first, *last, bright[..., 0], bright[..., 1], wrong, yy, yx, yx, xx]

        other = self.members(stars)
        common = ops.matmul(member, other.swapaxes(1, 2))
        both = area.expand_dims(2) + other.sum(axis=-1).expand_dims(1) - common
        iou = common / ops.clamp(both, min=1.0)
        best = iou.max(axis=2)
        partner = (iou.argmax(axis=2) + 1) * (best > self.least)
        return ops.stack(columns, axis=-1), best, partner


class LabelTargets(nn.Cell):
    """What the two decoders should say for a label map."""

    def __init__(self, rays, diffusion=30, longest=20):
        super().__init__()
        self.sine, self.cosine = ray_directions(rays)
        self.diffusion, self.longest = diffusion, longest

    def ray_lengths(self, labels):
        """Steps of one pixel along each ray until the object ends, less what the last step went too far."""
        b, h, w = labels.shape
        own = labels[:, ::2, ::2].expand_dims(1)
        rows, cols = np.mgrid[0:h:2, 0:w:2]
        too_far = 1.0 - 0.5 / np.maximum(np.abs(self.sine), np.abs(self.cosine))
        too_far = Tensor(too_far.astype(np.float32).reshape(1, -1, 1, 1))
        flat = labels.reshape(b, h * w)
        going = ops.broadcast_to(own > 0, (b, len(self.sine)) + own.shape[2:])
        length = ops.zeros(going.shape, ms.float32)
        for step in range(1, self.longest + 1):
            row = np.rint(rows + step * self.sine[:, None, None]).astype(np.int32)
            col = np.rint(cols + step * self.cosine[:, None, None]).astype(np.int32)
            within = (row >= 0) & (row < h) & (col >= 0) & (col < w)
            index = np.clip(row, 0, h - 1) * w + np.clip(col, 0, w - 1)
            seen = ops.gather(flat, Tensor(index.reshape(-1)), 1).reshape(going.shape)
            same = ops.logical_and(seen == own, Tensor(within))
            ends = ops.logical_and(going, ops.logical_not(same))
            length = ops.where(ends, step - too_far, length)
            going = ops.logical_and(going, same)
        return ops.where(going, ops.full_like(length, self.longest), length)

    def construct(self, labels):
        labels = labels.astype(ms.int32)
        length = self.ray_lengths(labels)
        own = labels[:, ::2, ::2]
        depth = length.min(axis=1)
        prob = ops.zeros_like(depth)
        for number in range(1, int(labels.max()) + 1):
            mask = (own == number).astype(ms.float32)
            deepest = (depth * mask).max(axis=(1, 2), keepdims=True)
            prob = prob + depth * mask / ops.clamp(deepest, min=1e-6)
        return length, prob, flows_of_labels(labels, self.diffusion)


class DetectionLoss(nn.Cell):
    """Five losses, and their sum under learned variances."""

    def __init__(self, background=0.05):
        super().__init__()
        self.background = background
        self.log_vars = Parameter(Tensor(np.zeros(5, np.float32)), name="log_vars")

    def construct(self, prob, dist, flow, labels, valid, targets):
        lengths, central, field = targets
        known = ops.logical_and(labels >= 0, valid).astype(ms.float32)
        coarse = known[:, ::2, ::2]
        weight = central * coarse
        by_place = ops.abs(dist - lengths).mean(axis=1)
        loss_dist = (by_place * weight).sum() / ops.clamp(weight.sum(), min=1.0 / dist.shape[1])
        empty = (central == 0).astype(ms.float32) * coarse
        loss_dist = loss_dist + self.background * (ops.abs(dist) * empty.expand_dims(1)).mean()
        loss_prob = ops.binary_cross_entropy(prob, central, weight=coarse, reduction="sum") / coarse.sum()

        cell = (labels > 0).astype(ms.float32)
        miss = flow[:, :2] - FLOW_SCALE * field
        loss_flow = 0.5 * (miss * miss * known.expand_dims(1)).sum() / (2.0 * known.sum())
        logit = flow[:, 2]
        entropy = ops.relu(logit) - logit * cell + ops.log1p(ops.exp(-ops.abs(logit)))
        loss_cell = (entropy * known).sum() / known.sum()
        guess, cell = ops.sigmoid(logit) * known, cell * known
        common, total = (guess * cell).sum(axis=(1, 2)), (guess + cell).sum(axis=(1, 2))
        loss_dice = (1.0 - (2.0 * common + 1.0) / (total + 1.0)).mean()
        losses = ops.stack((loss_dist, loss_prob, loss_flow, loss_cell, loss_dice))
        return losses, (losses * ops.exp(-self.log_vars) + self.log_vars).sum()


class PolarCells(nn.Cell):
    def __init__(self, c_in=2, widths=(16, 20, 24, 32), hidden=32, rays=16):
        super().__init__()
        self.backbone = Backbone(c_in, widths)
        self.polar = PolarHead(widths[0], hidden, rays)
        self.flow = nn.SequentialCell(NormConv(widths[0], hidden), NormConv(hidden, 3, 1))
        self.decoder = PolygonDecoder(rays)
        self.tracker = FlowTracker()
        self.table = CellTable()
        self.targets = LabelTargets(rays)
        self.loss = DetectionLoss()

    def construct(self, image, labels, valid):
        features, style = self.backbone(rescale(image, valid), valid)
        prob, dist = self.polar(features)
        flow = self.flow(features)
        coords, scores, star_labels = self.decoder(prob, dist, valid)
        ends, flow_labels, error = self.tracker(flow, valid)
        rows, iou, partner = self.table(flow_labels, star_labels, image, error)
        losses, total = self.loss(prob, dist, flow, labels, valid, self.targets(labels))
        return {
            "style": style, "prob": prob, "dist": dist, "flow": flow, "coords": coords, "scores": scores,
            "star_labels": star_labels, "ends": ends, "flow_labels": flow_labels, "rows": rows, "iou": iou,
            "partner": partner, "losses": losses, "total": total,
        }


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = PolarCells()
    net.set_train(False)
    return net
