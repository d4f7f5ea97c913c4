"""Lidar segmentation in the range image, in MindSpore: the correct port."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

# range, x, y, z, remission
CHANNEL_MEAN = [12.12, 10.88, 0.23, -1.04, 0.21]
CHANNEL_STD = [12.32, 11.47, 6.91, 0.86, 0.16]

THETA_ANGLE = [0.9, 0.9, 1.3, 1.6, 0.7, 0.9]
THETA_SPACE = [1.5, 1.5, 2.5, 4.0, 0.8, 1.2]

INF = float("inf")


def window_grid(rows, cols):
    """Offsets (dy, dx) of the places of a window around its centre, row by row."""
    dy, dx = np.mgrid[:rows, :cols]
    return dy.reshape(-1) - rows // 2, dx.reshape(-1) - cols // 2


def wrap(x, rows, cols, fill=0.0):
    """The image (b, c, h, w) with `cols` columns more at either side, taken from the opposite one, and filled rows."""
    if cols > 0:
        x = ops.cat((x[..., -cols:], x, x[..., :cols]), axis=-1)
    if rows > 0:
        band = ops.full((x.shape[0], x.shape[1], rows, x.shape[3]), fill, dtype=x.dtype)
        x = ops.cat((band, x, band), axis=2)
    return x


def surroundings(x, rows, cols, fill=0.0, centre=True):
    """(b, c, h, w) -> (b, c, rows * cols, h, w): what stands at each place of a window around each pixel."""
    h, w = x.shape[2:]
    padded = wrap(x, rows // 2, cols // 2, fill)
    shifted = []
    for dy, dx in zip(*window_grid(rows, cols)):
        if dy == 0 and dx == 0 and not centre:
            continue
        top, left = int(dy) + rows // 2, int(dx) + cols // 2
        shifted.append(padded[:, :, top : top + h, left : left + w])
    return ops.stack(shifted, axis=2)


class Rasteriser(nn.Cell):
    """Spherical projection of points to an image; of the points on one pixel the nearest is kept."""

    def __init__(self, height, width, fov_up, fov_down, min_range):
        super().__init__()
        self.height, self.width = height, width
        self.down = abs(fov_down) * np.pi / 180.0
        self.fov = (abs(fov_up) + abs(fov_down)) * np.pi / 180.0
        self.min_range = min_range

    def locate(self, points, depth):
        """Flat index of the pixel each point falls upon."""
        azimuth = -ops.atan2(points[..., 1], points[..., 0])
        elevation = ops.asin(ops.clamp(points[..., 2] / ops.clamp(depth, min=1e-6), -1.0, 1.0))
        u = 0.5 * (azimuth / np.pi + 1.0) * self.width
        v = (1.0 - (elevation + self.down) / self.fov) * self.height
        u = ops.clamp(ops.floor(u), 0, self.width - 1).astype(ms.int32)
        v = ops.clamp(ops.floor(v), 0, self.height - 1).astype(ms.int32)
        return v * self.width + u

    def construct(self, points, counts):
        batch, n = points.shape[:2]
        size = self.height * self.width
        depth = ops.sqrt((points[..., :3] ** 2).sum(axis=-1))
        number = Tensor(np.arange(n), counts.dtype)
        alive = ops.logical_and(number.expand_dims(0) < counts.expand_dims(1), depth >= self.min_range)
        cell = self.locate(points, depth)

        # a small image: every pixel may look at every point
        lands = cell.expand_dims(2) == Tensor(np.arange(size), ms.int32).reshape(1, 1, size)
        lands = ops.logical_and(lands, alive.expand_dims(2))
        candidates = ops.where(lands, depth.expand_dims(2), Tensor(INF, ms.float32))
        winner = ops.argmin(candidates, axis=1)
        hit = lands.astype(ms.int32).sum(axis=1) > 0

        features = ops.cat((depth.expand_dims(-1), points), axis=-1)
        index = ops.broadcast_to(winner.expand_dims(-1), (batch, size, features.shape[-1]))
        image = ops.gather_elements(features, 1, index)
        image = ops.masked_fill(image, ops.logical_not(hit).expand_dims(-1), -1.0)
        image = image.swapaxes(1, 2).reshape(batch, -1, self.height, self.width)
        return image, hit.reshape(batch, 1, self.height, self.width), cell, depth, alive


class AzimuthConv(nn.Cell):
    """Convolution that goes round in azimuth; the padding is made by hand."""

    def __init__(self, cin, cout, size, border, dilation=1):
        super().__init__()
        self.border = border
        self.body = nn.Conv2d(cin, cout, size, pad_mode="valid", dilation=dilation, has_bias=True)

    def construct(self, x):
        return self.body(wrap(x, self.border, self.border))


class ConvActNorm(nn.Cell):
    def __init__(self, cin, cout, size, border, dilation=1):
        super().__init__()
        self.conv = AzimuthConv(cin, cout, size, border, dilation)
        self.act = nn.LeakyReLU(alpha=0.01)
        self.norm = nn.BatchNorm2d(cout)

    def construct(self, x):
        return self.norm(self.act(self.conv(x)))


class WideContext(nn.Cell):
    """The stem's block."""

    def __init__(self, cin, cout):
        super().__init__()
        self.entry = nn.Conv2d(cin, cout, 1, has_bias=True)
        self.entry_act = nn.LeakyReLU(alpha=0.01)
        self.near = ConvActNorm(cout, cout, size=3, border=1)
        self.wide = ConvActNorm(cout, cout, size=3, border=2, dilation=2)

    def construct(self, x):
        x = self.entry_act(self.entry(x))
        return x + self.wide(self.near(x))


class Fusion(nn.Cell):
    """A chain of three convolutions; all its stages are mixed."""

    def __init__(self, cin, cout):
        super().__init__()
        self.stage1 = ConvActNorm(cin, cout, size=3, border=1)
        self.stage2 = ConvActNorm(cout, cout, size=3, border=2, dilation=2)
        self.stage3 = ConvActNorm(cout, cout, size=2, border=1, dilation=2)
        self.mix = nn.Conv2d(3 * cout, cout, 1, has_bias=True)
        self.mix_act = nn.LeakyReLU(alpha=0.01)
        self.mix_norm = nn.BatchNorm2d(cout)

    def construct(self, x):
        first = self.stage1(x)
        second = self.stage2(first)
        third = self.stage3(second)
        return self.mix_norm(self.mix_act(self.mix(ops.cat((first, second, third), axis=1))))


class MaskedGate(nn.Cell):
    """Weights for the channels, from mean and maximum over the pixels that were hit."""

    def __init__(self, channels, reduction):
        super().__init__()
        self.squeeze = nn.Dense(2 * channels, channels // reduction)
        self.act = nn.GELU(approximate=False)
        self.excite = nn.Dense(channels // reduction, channels)

    def construct(self, x, hit):
        batch, channels = x.shape[:2]
        alive = hit.astype(x.dtype)
        average = (x * alive).sum(axis=(2, 3)) / ops.clamp(alive.sum(axis=(2, 3)), min=1.0)
        highest = ops.masked_fill(x, ops.logical_not(hit), -INF).max(axis=(2, 3))
        gate = self.excite(self.act(self.squeeze(ops.cat((average, highest), axis=1))))
        return x * ops.sigmoid(gate).reshape(batch, channels, 1, 1)


class EncoderStage(nn.Cell):
    def __init__(self, cin, cout, reduction, drop):
        super().__init__()
        self.skip = nn.Conv2d(cin, cout, 1, has_bias=True)
        self.skip_act = nn.LeakyReLU(alpha=0.01)
        self.fusion = Fusion(cin, cout)
        self.gate = MaskedGate(cout, reduction)
        self.drop = nn.Dropout2d(drop)

    def construct(self, x, hit):
        y = self.skip_act(self.skip(x)) + self.fusion(x)
        return self.gate(y, hit)


class Shrink(nn.Cell):
    """Half the size, for features and mask."""

    def __init__(self):
        super().__init__()
        self.mean = nn.AvgPool2d(3, stride=2, pad_mode="pad", padding=1, count_include_pad=False)
        self.any = nn.MaxPool2d(2, stride=2)

    def construct(self, x, hit):
        return self.mean(x), self.any(hit.astype(x.dtype)) > 0.5


def depth_to_space(x):
    """(b, 4 c, h, w) -> (b, c, 2 h, 2 w)."""
    b, c, h, w = x.shape
    x = x.reshape(b, c // 4, 2, 2, h, w)
    return x.transpose(0, 1, 4, 2, 5, 3).reshape(b, c // 4, 2 * h, 2 * w)


class DecoderStage(nn.Cell):
    def __init__(self, cin, cskip, cout, drop):
        super().__init__()
        self.drop = nn.Dropout2d(drop)
        self.skip_norm = nn.GroupNorm(4, cskip)
        self.fusion = Fusion(cin // 4 + cskip, cout)

    def construct(self, x, skip):
        x = self.drop(depth_to_space(x))
        return self.fusion(ops.cat((x, self.skip_norm(skip)), axis=1))


class MeanField(nn.Cell):
    """The recurrent CRF."""

    def __init__(self, classes, window=(3, 5), steps=3, first_step=0.9, last_step=0.5):
        super().__init__()
        self.window = window
        self.rates = [float(r) for r in np.linspace(first_step, last_step, steps, dtype=np.float32)]
        dy, dx = window_grid(*window)
        square = (dy**2 + dx**2).astype(np.float32)
        square = square[square > 0].reshape(1, 1, -1, 1, 1)
        angle = np.array(THETA_ANGLE, np.float32).reshape(1, -1, 1, 1, 1)
        space = np.array(THETA_SPACE, np.float32).reshape(1, -1, 1, 1, 1)
        self.angle_kernel = Tensor(np.exp(-square / (2.0 * angle**2)))
        self.space_scale = Tensor(1.0 / (2.0 * space**2))
        self.mix_angle = nn.Conv2d(classes, classes, 1, has_bias=False)
        self.mix_space = nn.Conv2d(classes, classes, 1, has_bias=False)

    def others(self, x):
        return surroundings(x, *self.window, centre=False)

    def kernels(self, xyz, hit):
        """Both sets of weights (b, classes, k, h, w), each with a sum of one where there is anybody."""
        square = (self.others(xyz) - xyz.expand_dims(2)).square().sum(axis=1, keepdims=True)
        angle = self.angle_kernel * self.others(hit.astype(xyz.dtype))
        space = angle * ops.exp(-square * self.space_scale)
        angle = angle / ops.clamp(angle.sum(axis=2, keepdims=True), min=1e-4)
        space = space / ops.clamp(space.sum(axis=2, keepdims=True), min=1e-4)
        return angle, space

    def construct(self, unary, xyz, hit):
        angle, space = self.kernels(xyz, hit)
        belief = ops.softmax(unary, axis=1)
        for rate in self.rates:
            near = self.others(belief)
            message = self.mix_angle((near * angle).sum(axis=2)) + self.mix_space((near * space).sum(axis=2))
            fresh = ops.softmax(unary - message, axis=1)
            belief = belief + rate * (fresh - belief)
        return belief


class PointVote(nn.Cell):
    """The points' labels: those pixels around a point vote whose ranges are close to the point's."""

    def __init__(self, classes, side=5, chosen=7, sigma=1.0, cutoff=2.5):
        super().__init__()
        self.classes, self.side, self.chosen = classes, side, chosen
        self.sigma, self.cutoff = sigma, cutoff
        dy, dx = window_grid(side, side)
        bell = np.exp(-(dy**2 + dx**2) / (2.0 * sigma**2))
        self.penalty = Tensor((1.0 - bell / bell.sum()).astype(np.float32).reshape(1, -1, 1))
        self.is_centre = Tensor(((dy == 0) & (dx == 0)).reshape(1, -1, 1))

    def construct(self, ranges, labels, cell, depth, alive):
        batch, n = cell.shape
        places = self.side * self.side
        mine = depth.expand_dims(1)
        index = ops.broadcast_to(cell.expand_dims(1), (batch, places, n))
        range_windows = surroundings(ranges, self.side, self.side, fill=-1.0).reshape(batch, places, -1)
        label_windows = surroundings(labels.astype(ms.float32), self.side, self.side).reshape(batch, places, -1)
        theirs = ops.gather_elements(range_windows, 2, index)
        theirs = ops.where(self.is_centre, mine, theirs)
        theirs_label = ops.gather_elements(label_windows, 2, index).astype(ms.int32)

        gap = ops.where(theirs < 0, Tensor(1e4, ms.float32), ops.abs(theirs - mine))
        rank = ops.argsort(gap * self.penalty, axis=1)[:, : self.chosen]
        gap = ops.gather_elements(gap, 1, rank)
        theirs_label = ops.gather_elements(theirs_label, 1, rank)

        # the width of the Gaussian grows with the range
        width = self.sigma * (0.5 + mine / 20.0)
        weight = ops.exp(-0.5 * (gap / width) ** 2)
        weight = ops.where(gap <= self.cutoff * width, weight, Tensor(0.0, ms.float32))
        share = [(weight * (theirs_label == c)).sum(axis=1) for c in range(1, self.classes)]
        share = ops.stack(share, axis=1)
        total = share.sum(axis=1)
        share = share / ops.clamp(total, min=1e-6).expand_dims(1)
        label = ops.argmax(share, dim=1) + 1
        label = label * ops.logical_and(alive, total > 1e-6).astype(label.dtype)
        return share * alive.astype(share.dtype).expand_dims(1), label


def ray_directions(height, width, fov_up, fov_down):
    """(1, 3, height, width): unit vectors through the centres of the pixels."""
    yaw = (1.0 - 2.0 * (np.arange(width) + 0.5) / width) * np.pi
    pitch = np.radians(fov_up - (np.arange(height) + 0.5) / height * (fov_up - fov_down))
    yaw, pitch = yaw[None, :], pitch[:, None]
    rays = np.stack([np.cos(pitch) * np.cos(yaw), np.cos(pitch) * np.sin(yaw), np.sin(pitch) + 0.0 * yaw])
    return rays.astype(np.float32)[None]


def census(label, depth, alive, classes):
    """(b, classes, 2): the classes' shares of the points of a scan, and their mean ranges in units of 50 m."""
    member = ops.stack([(label == c).astype(depth.dtype) for c in range(classes)], axis=1)
    member = member * alive.astype(depth.dtype).expand_dims(1)
    count = member.sum(axis=2)
    share = count / ops.clamp(alive.astype(depth.dtype).sum(axis=1, keepdims=True), min=1.0)
    mean_range = (member * depth.expand_dims(1)).sum(axis=2) / ops.clamp(count, min=1.0)
    return ops.stack((share, mean_range / 50.0), axis=-1)


class LidarSegmenter(nn.Cell):
    """Points (batch, n, 4) and their counts to labels of pixels and of points."""

    def __init__(self, height=16, width=64, fov_up=3.0, fov_down=-25.0, classes=6, base=12, widths=(16, 24),
                 deepest=32, drop=0.2, reduction=4):
        super().__init__()
        self.classes = classes
        self.channel_mean = Tensor(np.array(CHANNEL_MEAN, np.float32).reshape(1, -1, 1, 1))
        self.channel_std = Tensor(np.array(CHANNEL_STD, np.float32).reshape(1, -1, 1, 1))
        self.rays = Tensor(ray_directions(height, width, fov_up, fov_down))
        self.raster = Rasteriser(height, width, fov_up, fov_down, min_range=1.0)
        self.stem = nn.CellList([WideContext(8, base), WideContext(base, base)])

        sizes = (base,) + tuple(widths)
        self.encoder = nn.CellList([EncoderStage(a, b, reduction, drop) for a, b in zip(sizes[:-1], sizes[1:])])
        self.shrink = nn.CellList([Shrink() for _ in widths])
        self.deep = EncoderStage(widths[-1], deepest, reduction, drop)
        sizes = (deepest,) + tuple(widths[::-1])
        self.decoder = nn.CellList([DecoderStage(a, b, b, drop) for a, b in zip(sizes[:-1], sizes[1:])])

        self.fine = nn.Conv2d(sizes[-1], classes, 1, has_bias=True)
        self.coarse = nn.Conv2d(sizes[1], classes, 1, has_bias=True)
        self.balance = Parameter(Tensor(np.zeros(classes, np.float32)), name="balance")
        self.mean_field = MeanField(classes)
        self.point_vote = PointVote(classes)

    def unet(self, x, hit):
        """Two sets of features: those at half the size, after the first decoder, and the last ones."""
        for block in self.stem:
            x = block(x)
        kept = []
        for stage, shrink in zip(self.encoder, self.shrink):
            x = stage(x, hit)
            kept.append(x)
            x, hit = shrink(stage.drop(x), hit)
        x = self.deep.drop(self.deep(x, hit))
        half = self.decoder[0](x, kept[1])
        return half, self.decoder[1](half, kept[0])

    def construct(self, points, counts):
        image, hit, cell, depth, alive = self.raster(points, counts)
        batch, _, height, width = image.shape
        x = (image - self.channel_mean) / self.channel_std
        x = ops.cat((x, ops.broadcast_to(self.rays, (batch, 3, height, width))), axis=1)
        x = x * hit.astype(x.dtype)

        half, full = self.unet(x, hit)
        coarse = ops.interpolate(self.coarse(half), size=(height, width), mode="bilinear", align_corners=False)
        part = ops.sigmoid(self.balance).reshape(1, -1, 1, 1)
        logits = self.fine(full) + part * (coarse - self.fine(full))

        belief = self.mean_field(logits, image[:, 1:4], hit)
        confidence = belief.max(axis=1)
        pixel_label = ops.argmax(belief, dim=1).expand_dims(1)
        pixel_label = pixel_label * hit.astype(pixel_label.dtype)
        votes, label = self.point_vote(image[:, :1], pixel_label, cell, depth, alive)
        certainty = ops.gather_elements(confidence.reshape(batch, -1), 1, cell) * votes.max(axis=1)
        return dict(
            logits=logits, refined=belief, votes=votes, label=label, certainty=certainty,
            census=census(label, depth, alive, self.classes),
        )


def street_scans(seed=0, n=1200):
    """Two scans of a street; the buffer of the second one is not full."""
    rng = np.random.RandomState(seed)
    yaw = rng.uniform(-np.pi, np.pi, (2, n))
    pitch = np.radians(rng.uniform(-26.0, 4.0, (2, n)))
    ground = 1.7 / np.maximum(np.sin(-pitch), 0.02)
    wall = rng.uniform(6.0, 9.0, (2, 1)) / np.maximum(np.abs(np.sin(yaw)), 0.12)
    box = np.where(np.sin(5.0 * yaw + rng.uniform(0.0, 6.0, (2, 1))) > 0.45, 7.0 + 3.0 * np.cos(3.0 * yaw), 80.0)
    reach = np.minimum(np.minimum(ground, wall), box) * rng.uniform(0.93, 1.07, (2, n))
    reach = np.where(rng.rand(2, n) < 0.08, reach * rng.uniform(0.1, 0.8, (2, n)), reach)
    x, y = reach * np.cos(pitch) * np.cos(yaw), reach * np.cos(pitch) * np.sin(yaw)
    remission = np.clip(0.25 + 0.2 * np.sin(reach) + 0.08 * rng.randn(2, n), 0.0, 1.0)
    points = np.stack((x, y, reach * np.sin(pitch), remission), axis=-1).astype(np.float32)
    return points, np.array([n, n - 330], np.int64)


def build():
    net = LidarSegmenter()
    net.set_train(False)
    points, counts = street_scans()
    return net, (Tensor(points), Tensor(counts))
