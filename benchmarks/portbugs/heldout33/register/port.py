"""Diffeomorphic registration of brain volumes (VoxelMorph) in MindSpore: the correct port."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

import mindspore as ms
from mindspore import Tensor, nn, ops

# numbers of the scored structures in the segmentations
LABELS = np.array([2, 3, 4, 10, 17, 28, 41, 42], np.int64)

SPACE = (2, 3, 4)


@lru_cache(maxsize=None)
def voxel_places(depth, height, width):
    """The places of all voxels, (1, depth, height, width, 3), in the order of the axes."""
    places = np.stack(np.meshgrid(np.arange(depth), np.arange(height), np.arange(width), indexing="ij"), axis=-1)
    return Tensor(places[None].astype(np.float32))


def sample_at(volume, places, mode="bilinear", padding="zeros"):
    """Values of the volume (batch, channels, d, h, w) at places (batch, ..., 3) in voxels; three axes in between."""
    extent = Tensor(np.array(volume.shape[2:], np.float32) - 1)
    unit = (places / extent - 0.5) * 2
    # the sampler counts x first
    unit = ops.stack((unit[..., 2], unit[..., 1], unit[..., 0]), axis=-1)
    return ops.grid_sample(volume, unit, mode=mode, padding_mode=padding, align_corners=True)


def warp(volume, displacement, mode="bilinear", padding="zeros"):
    """Pull the volume back along a displacement field (batch, 3, d, h, w)."""
    places = voxel_places(*displacement.shape[2:]) + displacement.transpose(0, 2, 3, 4, 1)
    return sample_at(volume, places, mode, padding)


def foreground_quantile(ordered, count, q):
    """The quantile of the first `count` of the sorted values in each row, linear between neighbours."""
    position = (count - 1) * q
    below = ops.floor(position)
    share = position - below
    last = ordered.shape[1] - 1
    left = ops.gather_elements(ordered, 1, below.astype(ms.int64))
    right = ops.gather_elements(ordered, 1, ops.clamp(below + 1, max=last).astype(ms.int64))
    # nothing is taken of the right one where the quantile falls on the last value
    return ops.where(share > 0, left + share * (right - left), left)


def rescale_intensity(volume, low=0.02, high=0.98):
    """Each volume stretched to [0, 1] between quantiles of its foreground, and the foreground."""
    b = volume.shape[0]
    mask = (volume > 0).astype(ms.float32)
    flat = ops.where(volume > 0, volume, 1e9).reshape(b, -1)
    ordered = ops.sort(flat, axis=1)[0]
    count = mask.reshape(b, -1).sum(axis=1, keepdims=True)
    lower = foreground_quantile(ordered, count, low).reshape(b, 1, 1, 1, 1)
    upper = foreground_quantile(ordered, count, high).reshape(b, 1, 1, 1, 1)
    scaled = (volume - lower) / ops.clamp(upper - lower, min=1e-6)
    return ops.clamp(scaled, 0.0, 1.0) * mask, mask


def label_planes(segmentation):
    """One plane of zeros and ones for each scored structure."""
    return (segmentation == Tensor(LABELS.reshape(1, -1, 1, 1, 1))).astype(ms.float32)


def conv_bn_act(cin, cout, stride=1):
    """The usual three."""
    return nn.SequentialCell(
        nn.Conv3d(cin, cout, 3, stride=stride, pad_mode="pad", padding=1, has_bias=False),
        nn.BatchNorm3d(cout),
        nn.LeakyReLU(alpha=0.2),
    )


class GatedUp(nn.Cell):
    """One step up: the coarse features gate the skipped ones, then both are fused on the finer grid."""

    def __init__(self, cin, cskip, cout, groups):
        super().__init__()
        inner = cskip // 2
        self.deconv = nn.Conv3dTranspose(cin, cout, 3, stride=2, pad_mode="pad", padding=1, output_padding=1,
                                         has_bias=True)
        self.gate_skip = nn.Conv3d(cskip, inner, 2, stride=2, pad_mode="valid", has_bias=False)
        self.gate_coarse = nn.Conv3d(cin, inner, 1, pad_mode="valid", has_bias=True)
        self.gate_out = nn.Conv3d(inner, 1, 1, pad_mode="valid", has_bias=True)
        self.fuse = nn.Conv3d(cout + cskip, cout, 3, pad_mode="pad", padding=1, has_bias=False)
        self.norm = nn.GroupNorm(groups, cout)
        self.act = nn.LeakyReLU(alpha=0.2)

    def construct(self, coarse, skip):
        joint = ops.relu(self.gate_skip(skip) + self.gate_coarse(coarse))
        alpha = ops.sigmoid(self.gate_out(joint))
        alpha = ops.interpolate(alpha, size=tuple(skip.shape[2:]), mode="trilinear", align_corners=False)
        fine = ops.cat((self.deconv(coarse), skip * alpha), axis=1)
        return self.act(self.norm(self.fuse(fine)))


class VelocityNet(nn.Cell):
    """Attention U-Net from a pair of volumes to the velocity's mean and log variance at half resolution."""

    def __init__(self, stem=8, down=(12, 16, 24), up=(16, 12), tail=(12, 8), groups=4):
        super().__init__()
        self.stem = conv_bn_act(2, stem)
        widths = (stem,) + tuple(down)
        self.encoder = nn.CellList([conv_bn_act(a, b, stride=2) for a, b in zip(widths[:-1], widths[1:])])
        steps = []
        channels = down[-1]
        for k, cout in enumerate(up):
            steps.append(GatedUp(channels, down[-2 - k], cout, groups))
            channels = cout
        self.decoder = nn.CellList(steps)
        widths = (channels,) + tuple(tail)
        self.tail = nn.SequentialCell([conv_bn_act(a, b) for a, b in zip(widths[:-1], widths[1:])])
        # mean and log variance in one convolution
        self.head = nn.Conv3d(tail[-1], 6, 3, pad_mode="pad", padding=1, has_bias=True)

    def construct(self, moving, fixed):
        x = self.stem(ops.cat((moving, fixed), axis=1))
        levels = []
        for stage in self.encoder:
            x = stage(x)
            levels.append(x)
        for k, stage in enumerate(self.decoder):
            x = stage(x, levels[-2 - k])
        mean, log_var = ops.split(self.head(self.tail(x)), 3, axis=1)
        return mean, log_var


class Exponential(nn.Cell):
    """Displacements there and back from a stationary velocity, at full resolution."""

    def __init__(self, steps=5, upscale=2):
        super().__init__()
        self.steps = steps
        self.upscale = upscale

    def construct(self, velocity):
        # both directions in one batch
        field = ops.cat((velocity, -velocity), axis=0) / 2**self.steps
        for _ in range(self.steps):
            field = field + warp(field, field, padding="border")
        size = tuple(n * self.upscale for n in field.shape[2:])
        field = ops.interpolate(field, size=size, mode="trilinear", align_corners=True) * self.upscale
        return ops.chunk(field, 2, axis=0)


class LocalCorrelation(nn.Cell):
    """Negative squared correlation in sliding cubes, over a pyramid of two or more levels."""

    def __init__(self, window=7, levels=2, eps=1e-3):
        super().__init__()
        self.windows = [window - 2 * k for k in range(levels)]
        self.eps = eps
        self.halve = nn.AvgPool3d(3, stride=2, pad_mode="pad", padding=1, count_include_pad=False)

    def one_level(self, a, b, mask, window):
        n = window**3
        moments = ops.cat((a, b, a * a, b * b, a * b), axis=1)
        # voxels beyond the border count as zeros
        means = ops.avg_pool3d(moments, window, 1, window // 2, count_include_pad=True)
        mean_a, mean_b, mean_aa, mean_bb, mean_ab = ops.split(means, 1, axis=1)
        cov = (mean_ab - mean_a * mean_b) * n
        var_a = (mean_aa - mean_a * mean_a) * n
        var_b = (mean_bb - mean_b * mean_b) * n
        squared = cov * cov / (var_a * var_b + self.eps)
        inside = ops.clamp(mask.sum(axis=(1, 2, 3, 4)), min=1.0)
        return -(squared * mask).sum(axis=(1, 2, 3, 4)) / inside

    def construct(self, a, b, mask):
        loss = self.one_level(a, b, mask, self.windows[0])
        factor = 1.0
        for window in self.windows[1:]:
            a, b, mask = self.halve(a), self.halve(b), self.halve(mask)
            factor = factor * 0.5
            loss = loss + factor * self.one_level(a, b, mask, window)
        return loss


def forward_differences(field):
    """Along depth, height and width."""
    return (
        field[:, :, 1:] - field[:, :, :-1],
        field[:, :, :, 1:] - field[:, :, :, :-1],
        field[..., 1:] - field[..., :-1],
    )


def smoothness(displacement, spacing):
    """Mean squared gradient of the displacement in millimetres."""
    in_mm = displacement * spacing.reshape(-1, 3, 1, 1, 1)
    total = 0
    for axis, step in enumerate(forward_differences(in_mm)):
        slope = step / spacing[:, axis].reshape(-1, 1, 1, 1, 1)
        total = total + (slope**2).mean(axis=(1, 2, 3, 4))
    return total / 3.0


@lru_cache(maxsize=None)
def neighbour_counts(size):
    """How many of its six neighbours each voxel has within the grid."""
    inside = np.pad(np.ones(size, np.float32), 1)
    counts = np.zeros(size, np.float32)
    for axis in range(3):
        for step in (-1, 1):
            counts += np.roll(inside, step, axis)[1:-1, 1:-1, 1:-1]
    return Tensor(counts)


class VelocityPrior(nn.Cell):
    """Kullback-Leibler divergence from a Gaussian whose precision is a graph Laplacian."""

    def __init__(self, strength=2.5):
        super().__init__()
        self.strength = strength

    def construct(self, mean, log_var):
        degree = neighbour_counts(tuple(mean.shape[2:]))
        trace = (self.strength * degree * ops.exp(log_var) - log_var).mean(axis=(1, 2, 3, 4))
        rough = sum((step * step).mean(axis=(1, 2, 3, 4)) for step in forward_differences(mean))
        return 1.5 * (trace + self.strength * rough / 6)


def soft_dice_loss(planes_true, planes_pred):
    """Over the structures which the fixed segmentation has."""
    size_true = planes_true.sum(axis=SPACE)
    size_pred = planes_pred.sum(axis=SPACE)
    common = (planes_true * planes_pred).sum(axis=SPACE)
    score = 2 * common / ops.clamp(size_true + size_pred, min=1e-5)
    present = (size_true > 0).astype(ms.float32)
    return 1 - (score * present).sum(axis=1) / ops.clamp(present.sum(axis=1), min=1.0)


def hard_dice(seg_true, seg_pred):
    """A score for each structure; structures that neither segmentation has score one."""
    planes_true, planes_pred = label_planes(seg_true), label_planes(seg_pred)
    common = (planes_true * planes_pred).sum(axis=SPACE)
    sizes = planes_true.sum(axis=SPACE) + planes_pred.sum(axis=SPACE)
    return ops.where(sizes > 0, 2 * common / ops.clamp(sizes, min=1.0), ops.ones_like(sizes))


class FoldingStatistics(nn.Cell):
    """Jacobian determinants by central differences, without the outermost voxels, and what they say."""

    def construct(self, displacement, mask):
        inner = displacement[:, :, :, 1:-1, 1:-1]
        along_z = (inner[:, :, 2:] - inner[:, :, :-2]) / 2
        inner = displacement[:, :, 1:-1, :, 1:-1]
        along_y = (inner[:, :, :, 2:] - inner[:, :, :, :-2]) / 2
        inner = displacement[:, :, 1:-1, 1:-1, :]
        along_x = (inner[..., 2:] - inner[..., :-2]) / 2

        # rows: the derivative of all components along one axis; the identity is the voxel itself
        zz, zy, zx = along_z[:, 0] + 1, along_z[:, 1], along_z[:, 2]
        yz, yy, yx = along_y[:, 0], along_y[:, 1] + 1, along_y[:, 2]
        xz, xy, xx = along_x[:, 0], along_x[:, 1], along_x[:, 2] + 1
        det = zz * (yy * xx - yx * xy) - zy * (yz * xx - yx * xz) + zx * (yz * xy - yy * xz)

        brain = mask[:, 0, 1:-1, 1:-1, 1:-1]
        voxels = ops.clamp(brain.sum(axis=(1, 2, 3)), min=1.0)
        folded = ((det <= 0).astype(ms.float32) * brain).sum(axis=(1, 2, 3)) / voxels
        log_det = ops.log(ops.clamp(det + 3, 1e-9, 1e9))
        mean = (log_det * brain).sum(axis=(1, 2, 3)) / voxels
        deviation = (log_det - mean.reshape(-1, 1, 1, 1)) * brain
        spread = ops.sqrt((deviation**2).sum(axis=(1, 2, 3)) / voxels)
        return det, folded, spread


def landmark_errors(displacement, fixed_points, moving_points, valid, spacing):
    """Mean and largest distance in millimetres between carried and true landmarks."""
    b, count, _ = fixed_points.shape
    shift = sample_at(displacement, fixed_points.reshape(b, count, 1, 1, 3), padding="border")
    shift = shift.reshape(b, 3, count).swapaxes(1, 2)
    offset = (fixed_points + shift - moving_points) * spacing.expand_dims(1)
    distance = ops.sqrt((offset**2).sum(axis=-1))
    valid = valid.astype(ms.float32)
    mean = (distance * valid).sum(axis=1) / ops.clamp(valid.sum(axis=1), min=1.0)
    return mean, (distance * valid).max(axis=1)


class BrainRegistration(nn.Cell):
    """Registers a moving volume to a fixed one and reports on it."""

    def __init__(self, weights=(1.0, 0.4, 0.02, 0.7)):
        super().__init__()
        self.backbone = VelocityNet()
        self.exponential = Exponential()
        self.correlation = LocalCorrelation()
        self.prior = VelocityPrior()
        self.folding = FoldingStatistics()
        self.weights = Tensor(np.array(weights, np.float32))

    def construct(self, moving, fixed, moving_seg, fixed_seg, moving_points, fixed_points, valid, spacing):
        moving, moving_mask = rescale_intensity(moving)
        fixed, fixed_mask = rescale_intensity(fixed)
        velocity, log_var = self.backbone(moving, fixed)
        forward, backward = self.exponential(velocity)

        # the volume and the planes of its structures take the same way
        planes = label_planes(moving_seg)
        carried = warp(ops.cat((moving, planes), axis=1), forward)
        moved, moved_planes = carried[:, :1], carried[:, 1:]
        fixed_back = warp(fixed, backward)
        moved_seg = warp(moving_seg.astype(ms.float32), forward, mode="nearest").astype(ms.int64)

        similarity = (
            self.correlation(fixed, moved, fixed_mask) + self.correlation(moving, fixed_back, moving_mask)
        ) / 2
        terms = ops.stack(
            (
                similarity,
                smoothness(forward, spacing),
                self.prior(velocity, log_var),
                soft_dice_loss(label_planes(fixed_seg), moved_planes),
            ),
            axis=1,
        )
        loss = (terms * self.weights).sum(axis=1)

        det, folded, spread = self.folding(forward, fixed_mask)
        mean_error, max_error = landmark_errors(forward, fixed_points, moving_points, valid, spacing)
        report = ops.stack((folded, spread, mean_error, max_error), axis=1)
        return moved, fixed_back, forward, loss, terms, moved_seg, hard_dice(fixed_seg, moved_seg), det, report


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = BrainRegistration()
    net.set_train(False)
    return net
