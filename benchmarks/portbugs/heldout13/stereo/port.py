"""The stereo matching net in MindSpore: the correct port."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops

IMAGE_MEAN = (0.485, 0.456, 0.406)
IMAGE_STD = (0.229, 0.224, 0.225)


def channel_table(values):
    return Tensor(np.array(values, np.float32).reshape(1, 3, 1, 1))


def conv(cin, cout, kernel, stride=1, has_bias=True):
    return nn.Conv2d(
        cin, cout, kernel, stride=stride, pad_mode="pad", padding=(kernel - 1) // 2, has_bias=has_bias
    )


class ConvUnit(nn.Cell):
    """Convolution and norm of an image, with a ReLU if wanted."""

    def __init__(self, cin, cout, kernel, stride=1, dilation=1, relu=False):
        super().__init__()
        padding = dilation * (kernel - 1) // 2
        self.conv = nn.Conv2d(cin, cout, kernel, stride, "pad", padding, dilation, has_bias=False)
        self.bn = nn.BatchNorm2d(cout)
        self.relu = relu

    def construct(self, x):
        x = self.bn(self.conv(x))
        return ops.relu(x) if self.relu else x


class VolumeUnit(nn.Cell):
    """The same of a volume."""

    def __init__(self, cin, cout, kernel=3, stride=1, relu=True):
        super().__init__()
        self.conv = nn.Conv3d(cin, cout, kernel, stride, "pad", (kernel - 1) // 2, has_bias=False)
        self.bn = nn.BatchNorm3d(cout)
        self.relu = relu

    def construct(self, x):
        x = self.bn(self.conv(x))
        return ops.relu(x) if self.relu else x


class VolumeUp(nn.Cell):
    """Twice the size in all three directions."""

    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv3dTranspose(cin, cout, 3, 2, "pad", 1, output_padding=1, has_bias=False)
        self.bn = nn.BatchNorm3d(cout)

    def construct(self, x):
        return self.bn(self.conv(x))


class ResidualUnit(nn.Cell):
    def __init__(self, cin, cout, stride=1, dilation=1):
        super().__init__()
        self.conv1 = ConvUnit(cin, cout, 3, stride, dilation, relu=True)
        self.conv2 = ConvUnit(cout, cout, 3, 1, dilation)
        self.project = stride != 1 or cin != cout
        if self.project:
            self.downsample = ConvUnit(cin, cout, 1, stride)

    def construct(self, x):
        short = self.downsample(x) if self.project else x
        return self.conv2(self.conv1(x)) + short


class PooledBranch(nn.Cell):
    """What a wide surrounding looks like, brought back to the size of the features."""

    def __init__(self, cin, cout, size):
        super().__init__()
        self.pool = nn.AvgPool2d(size, size)
        self.unit = ConvUnit(cin, cout, 1, relu=True)

    def construct(self, x):
        y = self.unit(self.pool(x))
        return ops.interpolate(y, size=x.shape[2:], mode="bilinear", align_corners=False)


class FeatureNet(nn.Cell):
    def __init__(self, channels, concat_channels, pools=(4, 2)):
        super().__init__()
        self.firstconv = nn.SequentialCell(ConvUnit(3, 12, 3, 2, relu=True), ConvUnit(12, 12, 3, relu=True))
        self.layer1 = ResidualUnit(12, 12)
        self.layer2 = nn.SequentialCell(ResidualUnit(12, 16, 2), ResidualUnit(16, 16))
        self.layer3 = ResidualUnit(16, 24, dilation=2)
        self.branches = nn.CellList([PooledBranch(24, 8, size) for size in pools])
        self.lastconv = nn.SequentialCell(
            ConvUnit(40 + 8 * len(pools), 32, 3, relu=True), conv(32, channels, 1, has_bias=False)
        )
        self.concatconv = nn.SequentialCell(
            ConvUnit(channels, 16, 3, relu=True), conv(16, concat_channels, 1, has_bias=False)
        )

    def construct(self, image):
        raw = self.layer2(self.layer1(self.firstconv(image)))
        skip = self.layer3(raw)
        pooled = [branch(skip) for branch in self.branches]
        gwc = self.lastconv(mint.cat([raw, skip] + pooled, dim=1))
        return gwc, self.concatconv(gwc)


class ContextNet(nn.Cell):
    """The states at the start, and the gates' share of the image, for the fine and the coarse cell."""

    def __init__(self, hidden):
        super().__init__()
        self.stem_conv = nn.Conv2d(3, 12, 7, 2, pad_mode="pad", padding=3, has_bias=True)
        self.stem_norm = nn.GroupNorm(3, 12)
        self.layer1 = ResidualUnit(12, 16, 2)
        self.layer2 = ResidualUnit(16, 24, 2)
        self.head04 = conv(16, 2 * hidden, 3)
        self.head08 = conv(24, 2 * hidden, 3)
        self.zqr = nn.CellList([conv(hidden, 3 * hidden, 3) for _ in range(2)])

    def start(self, features, gates):
        state, seen = mint.chunk(features, 2, dim=1)
        return mint.tanh(state), gates(ops.relu(seen))

    def construct(self, image):
        fine = self.layer1(ops.relu(self.stem_norm(self.stem_conv(image))))
        coarse = self.layer2(ops.relu(fine))
        state04, gates04 = self.start(self.head04(fine), self.zqr[0])
        state08, gates08 = self.start(self.head08(coarse), self.zqr[1])
        return state04, state08, gates04, gates08


def group_units(x, groups):
    """Features as groups of unit length: [N, C, H, W] -> [N, G, C / G, H, W]."""
    n, c, h, w = x.shape
    x = x.reshape(n, groups, c // groups, h, w)
    length = ops.sqrt(ops.square(x).sum(axis=2, keepdims=True))
    return x / (length + 1e-5)


def shifted(x, i):
    """Moved to the right by i columns, zeros come in from the left."""
    if i == 0:
        return x
    pad = ops.zeros(x.shape[:-1] + (i,), x.dtype)
    return mint.cat([pad, x[..., :-i]], dim=-1)


def cost_volume(gwc1, gwc2, cat1, cat2, bins, groups):
    units1, units2 = group_units(gwc1, groups), group_units(gwc2, groups)
    columns = ops.arange(cat1.shape[-1])
    slices = []
    for i in range(bins):
        seen = (columns >= i).astype(cat1.dtype)
        similar = (units1 * shifted(units2, i)).mean(axis=2)
        slices.append(mint.cat([similar, cat1 * seen, shifted(cat2, i)], dim=1))
    return ops.stack(slices, axis=2)


def soft_argmin(logits):
    """Expected disparity and its deviation, from the logits [N, D, H, W]."""
    prob = mint.nn.functional.softmax(logits, dim=1)
    values = ops.arange(logits.shape[1]).astype(logits.dtype).reshape(1, -1, 1, 1)
    expected = (prob * values).sum(axis=1, keepdims=True)
    variance = (prob * ops.square(values - expected)).sum(axis=1, keepdims=True)
    return expected, ops.sqrt(variance + 1e-6)


def sample_lines(lines, x):
    """Linear interpolation in lines [P, C, L] at x [P, K]; zero beyond the ends."""
    length = lines.shape[-1]
    low = ops.floor(x)
    out = 0
    for place, weight in ((low, low + 1 - x), (low + 1, x - low)):
        inside = ((place >= 0) & (place <= length - 1)).astype(lines.dtype)
        index = ops.clamp(place, 0, length - 1).astype(ms.int64)
        index = index.expand_dims(1).broadcast_to((-1, lines.shape[1], -1))
        out = out + mint.gather(lines, 2, index) * (weight * inside).expand_dims(1)
    return out


def halved(lines):
    return ops.avg_pool2d(lines.expand_dims(2), (1, 2), (1, 2)).squeeze(2)


class GeometryLookup(nn.Cell):
    """Samples of the volume and of the correlation around a disparity, on all levels."""

    def __init__(self, levels, radius):
        super().__init__()
        self.levels = levels
        self.offsets = Tensor(np.arange(-radius, radius + 1, dtype=np.float32).reshape(1, -1))

    def pyramid(self, geo, fmap1, fmap2):
        n, c, d, h, w = geo.shape
        geo = geo.transpose(0, 3, 4, 1, 2).reshape(n * h * w, c, d)
        corr = mint.matmul(fmap1.transpose(0, 2, 3, 1), fmap2.transpose(0, 2, 1, 3)) / fmap1.shape[1] ** 0.5
        levels = [(geo, corr.reshape(n * h * w, 1, w))]
        for _ in range(self.levels - 1):
            levels.append(tuple(halved(lines) for lines in levels[-1]))
        return levels

    def construct(self, pyramid, disp):
        n, _, h, w = disp.shape
        columns = ops.arange(w).astype(disp.dtype)
        matched = (columns - disp).reshape(-1, 1)
        disp = disp.reshape(-1, 1)
        found = []
        for i, (geo, corr) in enumerate(pyramid):
            found.append(sample_lines(geo, disp / 2**i + self.offsets).reshape(n, h, w, -1))
            found.append(sample_lines(corr, matched / 2**i + self.offsets).reshape(n, h, w, -1))
        return mint.cat(found, dim=-1).transpose(0, 3, 1, 2)


class Hourglass(nn.Cell):
    def __init__(self, c):
        super().__init__()
        self.down1 = nn.SequentialCell(VolumeUnit(c, 2 * c, stride=2), VolumeUnit(2 * c, 2 * c))
        self.down2 = nn.SequentialCell(VolumeUnit(2 * c, 4 * c, stride=2), VolumeUnit(4 * c, 4 * c))
        self.up2 = VolumeUp(4 * c, 2 * c)
        self.up1 = VolumeUp(2 * c, c)
        self.redir1 = VolumeUnit(c, c, 1, relu=False)
        self.redir2 = VolumeUnit(2 * c, 2 * c, 1, relu=False)

    def construct(self, x):
        half = self.down1(x)
        y = ops.relu(self.up2(self.down2(half)) + self.redir2(half))
        return ops.relu(self.up1(y) + self.redir1(x))


class Aggregation(nn.Cell):
    def __init__(self, volume_channels, feature_channels, c=8):
        super().__init__()
        self.dres0 = nn.SequentialCell(VolumeUnit(volume_channels, c), VolumeUnit(c, c))
        self.dres1 = nn.SequentialCell(VolumeUnit(c, c), VolumeUnit(c, c, relu=False))
        self.excite = nn.SequentialCell(ConvUnit(feature_channels, 16, 1, relu=True), conv(16, c, 1))
        self.hourglass = Hourglass(c)
        self.classif_unit = VolumeUnit(c, c)
        self.classif = nn.Conv3d(c, 1, 3, pad_mode="pad", padding=1, has_bias=False)

    def construct(self, volume, features):
        x = self.dres0(volume)
        x = x + self.dres1(x)
        x = x * mint.sigmoid(self.excite(features)).expand_dims(2)
        geo = self.hourglass(x)
        return geo, self.classif(self.classif_unit(geo)).squeeze(1)


class MotionEncoder(nn.Cell):
    def __init__(self, lookup_channels, out):
        super().__init__()
        self.convc1 = conv(lookup_channels, 24, 1)
        self.convc2 = conv(24, 24, 3)
        self.convd1 = conv(2, 12, 7)
        self.convd2 = conv(12, 12, 3)
        self.conv = conv(36, out - 1, 3)

    def construct(self, disp, spread, lookup):
        c = ops.relu(self.convc2(ops.relu(self.convc1(lookup))))
        d = mint.cat([disp, spread], dim=1)
        d = ops.relu(self.convd2(ops.relu(self.convd1(d))))
        y = ops.relu(self.conv(mint.cat([c, d], dim=1)))
        return mint.cat([y, disp], dim=1)


class GatedCell(nn.Cell):
    """A convolutional GRU of which the gates also see a constant share."""

    def __init__(self, hidden, inputs):
        super().__init__()
        self.convz = conv(hidden + inputs, hidden, 3)
        self.convr = conv(hidden + inputs, hidden, 3)
        self.convq = conv(hidden + inputs, hidden, 3)

    def construct(self, h, gates, x):
        cz, cr, cq = mint.chunk(gates, 3, dim=1)
        hx = mint.cat([h, x], dim=1)
        z = mint.sigmoid(self.convz(hx) + cz)
        r = mint.sigmoid(self.convr(hx) + cr)
        q = mint.tanh(self.convq(mint.cat([r * h, x], dim=1)) + cq)
        return h + z * (q - h)


class UpdateStep(nn.Cell):
    def __init__(self, hidden, lookup_channels, factor, motion=24):
        super().__init__()
        self.encoder = MotionEncoder(lookup_channels, motion)
        self.gru08 = GatedCell(hidden, hidden)
        self.gru04 = GatedCell(hidden, motion + hidden)
        self.disp_head = nn.SequentialCell(conv(hidden, 24, 3), nn.ReLU(), conv(24, 1, 3))
        self.mask = nn.SequentialCell(conv(hidden, 24, 3), nn.ReLU(), conv(24, 9 * factor * factor, 1))
        self.pool = nn.AvgPool2d(3, 2, pad_mode="pad", padding=1)

    def construct(self, fine, coarse, gates04, gates08, lookup, disp, spread):
        motion = self.encoder(disp, spread, lookup)
        coarse_new = self.gru08(coarse, gates08, self.pool(fine))
        above = ops.interpolate(coarse_new, size=fine.shape[2:], mode="bilinear", align_corners=True)
        fine = self.gru04(fine, gates04, mint.cat([motion, above], dim=1))
        return fine, coarse_new, self.mask(fine) * 0.25, self.disp_head(fine)


class ConvexUpsample(nn.Cell):
    """Each fine pixel is a mean of the nine coarse ones around it."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def construct(self, disp, mask):
        n, _, h, w = disp.shape
        f = self.factor
        weights = mint.nn.functional.softmax(mask.reshape(n, 9, f * f, h, w), dim=1)
        around = ops.unfold(disp * f, 3, padding=1).reshape(n, 9, 1, h, w)
        fine = (weights * around).sum(axis=1).reshape(n, f, f, h, w)
        return fine.transpose(0, 3, 1, 4, 2).reshape(n, h * f, w * f)


def warp(img, disp):
    """The other view's img [N, C, H, W] at the place that disp [N, H, W] points to, and which places exist."""
    h, w = img.shape[2:]
    x = ops.arange(w).astype(img.dtype) - disp
    y = ops.arange(h).astype(img.dtype).reshape(1, h, 1).broadcast_to(x.shape)
    grid = ops.stack([x * (2.0 / (w - 1)) - 1, y * (2.0 / (h - 1)) - 1], axis=-1)
    warped = ops.grid_sample(img, grid, padding_mode="border", align_corners=True)
    return warped, (x >= 0).astype(img.dtype)


def row_mean(x):
    """Mean of nine neighbours in the row."""
    return ops.avg_pool2d(x.expand_dims(1), (1, 9), 1, (0, 0, 4, 4)).squeeze(1)


class RefineUnit(nn.Cell):
    def __init__(self, planes, dilation):
        super().__init__()
        self.unit = ConvUnit(planes, planes, 3, dilation=dilation)

    def construct(self, x):
        return ops.leaky_relu(x + self.unit(x), 0.01)


class Refinement(nn.Cell):
    def __init__(self, maxdisp, planes=12, dilations=(1, 2, 4)):
        super().__init__()
        self.maxdisp = maxdisp
        self.first = ConvUnit(8, planes, 3)
        self.act = nn.LeakyReLU(alpha=0.01)
        self.blocks = nn.SequentialCell([RefineUnit(planes, d) for d in dilations])
        self.last = conv(planes, 1, 3)

    def construct(self, left, right, disp, confidence):
        warped, inside = warp(right, disp)
        error = ops.abs(left - warped) * inside.expand_dims(1)
        maps = ops.stack([disp / self.maxdisp, confidence], axis=1)
        x = self.act(self.first(mint.cat([left, error, maps], dim=1)))
        return ops.relu(disp + self.last(self.blocks(x)).squeeze(1))


class StereoNet(nn.Cell):
    """Disparity of the left view, how far it agrees with the right view's, and all steps on the way."""

    def __init__(self, maxdisp=32, groups=8, hidden=16, channels=32, concat_channels=6, iters=3, factor=4):
        super().__init__()
        self.groups, self.iters = groups, iters
        self.bins = maxdisp // factor
        self.feature = FeatureNet(channels, concat_channels)
        self.context = ContextNet(hidden)
        self.aggregation = Aggregation(groups + 2 * concat_channels, channels)
        self.lookup = GeometryLookup(levels=2, radius=2)
        self.update_step = UpdateStep(hidden, 2 * 5 * (8 + 1), factor)
        self.upsample = ConvexUpsample(factor)
        self.refine = Refinement(maxdisp)
        self.mean, self.std = channel_table(IMAGE_MEAN), channel_table(IMAGE_STD)

    def match(self, image1, image2):
        gwc, cat = self.feature(mint.cat([image1, image2], dim=0))
        gwc1, gwc2 = mint.chunk(gwc, 2, dim=0)
        cat1, cat2 = mint.chunk(cat, 2, dim=0)
        volume = cost_volume(gwc1, gwc2, cat1, cat2, self.bins, self.groups)
        geo, logits = self.aggregation(volume, gwc1)
        disp, spread = soft_argmin(logits)
        pyramid = self.lookup.pyramid(geo, gwc1, gwc2)
        fine, coarse, gates04, gates08 = self.context(image1)
        steps = []
        for _ in range(self.iters):
            found = self.lookup(pyramid, disp)
            fine, coarse, mask, delta = self.update_step(fine, coarse, gates04, gates08, found, disp, spread)
            disp = disp + delta
            steps.append(self.upsample(disp, mask))
        return steps

    def agree(self, disp_left, disp_right):
        back, inside = warp(disp_right.expand_dims(1), disp_left)
        distance = ops.abs(disp_left - back.squeeze(1))
        confidence = ops.exp(-0.25 * distance) * ops.maximum(inside, Tensor(0.05, ms.float32))
        neighbours = row_mean(confidence * disp_left) / (row_mean(confidence) + 1e-4)
        return neighbours + confidence * (disp_left - neighbours), confidence

    def construct(self, left, right):
        b = left.shape[0]
        left = (left / 255.0 - self.mean) / self.std
        right = (right / 255.0 - self.mean) / self.std
        first = mint.cat([left, ops.flip(right, (-1,))], dim=0)
        second = mint.cat([right, ops.flip(left, (-1,))], dim=0)
        steps = self.match(first, second)
        disp_left = steps[-1][:b]
        disp_right = ops.flip(steps[-1][b:], (-1,))
        filled, confidence = self.agree(disp_left, disp_right)
        return self.refine(left, right, filled, confidence), confidence, ops.stack([s[:b] for s in steps], axis=1)


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return StereoNet()
