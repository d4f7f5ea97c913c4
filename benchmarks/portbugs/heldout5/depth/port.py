"""Depth from one camera in motion, in MindSpore."""
import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

IMAGE_MEAN = np.array([0.485, 0.456, 0.406], np.float32).reshape(1, 3, 1, 1)
IMAGE_STD = np.array([0.229, 0.224, 0.225], np.float32).reshape(1, 3, 1, 1)
NEAR, FAR = 0.8, 12.0
NUM_PLANES = 10
NUM_GROUPS = 4
FILL = -0.5
TAU = 0.1
EDGE_WEIGHT = 6.0
MOUNT_HEIGHT = 1.5


# ---------------------------------------------------------------- building blocks


def conv2d(c_in, c_out, kernel=3, stride=1):
    return nn.Conv2d(c_in, c_out, kernel, stride, pad_mode="pad", padding=kernel // 2, has_bias=True)


def conv_norm(c_in, c_out, kernel=3, stride=1, slope=0.1):
    cells = [
        nn.Conv2d(c_in, c_out, kernel, stride, pad_mode="pad", padding=kernel // 2),
        nn.BatchNorm2d(c_out, eps=1e-3),
    ]
    if slope is not None:
        cells.append(nn.LeakyReLU(alpha=slope))
    return nn.SequentialCell(cells)


def l2_normalize(x, axis):
    length = ops.sqrt(ops.reduce_sum(ops.square(x), axis).expand_dims(axis))
    return x / ops.maximum(length, Tensor(1e-12, x.dtype))


class SEBlock(nn.Cell):
    """Two convolutions, channels weighed by what is in the image, a shortcut."""

    def __init__(self, c_in, c_out, stride):
        super().__init__()
        self.conv_a = conv_norm(c_in, c_out, 3, stride)
        self.conv_b = conv_norm(c_out, c_out, slope=None)
        self.fc_down = nn.Dense(c_out, c_out // 4, activation="relu")
        self.fc_up = nn.Dense(c_out // 4, c_out)
        self.shortcut = conv_norm(c_in, c_out, 1, stride, slope=None)

    def construct(self, x):
        out = self.conv_b(self.conv_a(x))
        pooled = ops.mean(out, (2, 3))
        gate = ops.sigmoid(self.fc_up(self.fc_down(pooled))) * 2.0
        out = out * gate.reshape(gate.shape + (1, 1)) + self.shortcut(x)
        return ops.leaky_relu(out, 0.1)


class Backbone(nn.Cell):
    def __init__(self, widths):
        super().__init__()
        self.entry = conv_norm(3, widths[0], 5, 2)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=1, pad_mode="same")
        self.blocks = nn.CellList([SEBlock(widths[i], widths[i + 1], 2) for i in range(len(widths) - 1)])

    def construct(self, image):
        x = (image - Tensor(IMAGE_MEAN)) / Tensor(IMAGE_STD)
        x = self.maxpool(self.entry(x))
        outs = ()
        for block in self.blocks:
            x = block(x)
            outs += (x,)
        return outs


class FeaturePyramid(nn.Cell):
    """From the coarsest level down; the two sides of each sum are weighed against each other."""

    def __init__(self, widths, width):
        super().__init__()
        self.proj = nn.CellList([conv2d(c, width, 1) for c in widths])
        self.post = nn.CellList([conv2d(width, width) for _ in widths])
        self.mix = Parameter(ops.ones((len(widths) - 1, 2), ms.float32))

    def merged(self, fine, coarse, level):
        share = ops.relu(self.mix[level])
        share = share / (share.sum() + 1e-4)
        coarse = ops.interpolate(coarse, size=fine.shape[2:], mode="nearest")
        return share[0] * fine + share[1] * coarse

    def construct(self, feats):
        last = len(feats) - 1
        x = self.proj[last](feats[last])
        outs = [self.post[last](ops.silu(x)) + x]
        for level in range(last - 1, -1, -1):
            x = self.merged(self.proj[level](feats[level]), x, level)
            outs.insert(0, self.post[level](ops.silu(x)) + x)
        return outs


# ---------------------------------------------------------------- geometry


def resize_camera(camera, factor):
    """(fx, fy, cx, cy) of a smaller image; pixels are counted from their centres."""
    focal = camera[:, :2] * factor
    centre = (camera[:, 2:] + 0.5) * factor - 0.5
    return ops.concat((focal, centre), axis=1)


def pixel_rays(camera, height, width):
    """(b, 3, h * w): where each pixel looks, one deep."""
    rows, cols = np.mgrid[:height, :width].astype(np.float32)
    pixels = Tensor(np.stack([cols.ravel(), rows.ravel()])).expand_dims(0)
    xy = (pixels - camera[:, 2:, None]) / camera[:, :2, None]
    return ops.concat((xy, ops.ones_like(xy[:, :1])), axis=1)


def sweep(target, source, camera, pose):
    """How alike both images' features are if everything lay on one plane; (b, groups, planes, h, w)."""
    b, c, h, w = target.shape
    inv_depth = Tensor(np.linspace(1 / FAR, 1 / NEAR, NUM_PLANES), ms.float32)
    rotation, translation = pose[:, :, :3], pose[:, :, 3:]
    turned = ops.bmm(rotation, pixel_rays(camera, h, w))
    points = turned.expand_dims(1) + translation.expand_dims(1) * inv_depth.reshape(1, -1, 1, 1)
    z = ops.clamp(points[:, :, 2:], min=1e-2)
    focal = camera[:, None, :2, None]
    centre = camera[:, None, 2:, None]
    pixel = points[:, :, :2] / z * focal + centre
    size = Tensor(np.array([w, h], np.float32).reshape(1, 1, 2, 1))
    grid = (pixel * 2 + 1) / size - 1
    grid = grid.swapaxes(2, 3)
    visible = ops.logical_and(grid[..., 0].abs() < 1, grid[..., 1].abs() < 1)
    visible = visible.reshape(b, 1, NUM_PLANES, h, w)
    warped = ops.grid_sample(source, grid.reshape(b, NUM_PLANES * h, w, 2), mode="bilinear", align_corners=False)
    ours = l2_normalize(target.reshape(b, NUM_GROUPS, -1, 1, h, w), 2)
    theirs = l2_normalize(warped.reshape(b, NUM_GROUPS, -1, NUM_PLANES, h, w), 2)
    match = ops.reduce_sum(ours * theirs, 2)
    return ops.select(visible.broadcast_to(match.shape), match, ops.fill(match.dtype, match.shape, FILL)), visible


def disparity_to_depth(disparity):
    """Zero is the farthest depth, one the nearest."""
    lowest = 1.0 / FAR
    highest = 1.0 / NEAR
    return ops.reciprocal(lowest + (highest - lowest) * disparity)


def surface(depth, camera):
    """Points (b, 3, h, w) and the surfaces' normals there, at the border those of the neighbours."""
    b, _, h, w = depth.shape
    cloud = pixel_rays(camera, h, w) * depth.reshape(b, 1, h * w)
    cloud = cloud.reshape(b, 3, h, w)
    du = cloud[:, :, 1:-1, 2:] - cloud[:, :, 1:-1, :-2]
    dv = cloud[:, :, 2:, 1:-1] - cloud[:, :, :-2, 1:-1]
    normal = l2_normalize(ops.cross(dv, du, dim=1), 1)
    return cloud, ops.pad(normal, (1, 1, 1, 1), mode="replicate")


def edge_aware(disparity, image):
    """Steps of the disparity, those at edges of the image count less; one number for each image."""
    mean = disparity.mean((2, 3), keep_dims=True)
    disp = disparity / (mean + 1e-3)
    step_y = ops.abs(disp[:, :, 1:] - disp[:, :, :-1])
    step_x = ops.abs(disp[..., 1:] - disp[..., :-1])
    edge_y = ops.abs(image[:, :, 1:] - image[:, :, :-1]).mean(1, keep_dims=True)
    edge_x = ops.abs(image[..., 1:] - image[..., :-1]).mean(1, keep_dims=True)
    rough_y = (step_y * ops.exp(-EDGE_WEIGHT * edge_y)).mean((1, 2, 3))
    rough_x = (step_x * ops.exp(-EDGE_WEIGHT * edge_x)).mean((1, 2, 3))
    return rough_x + rough_y


# ---------------------------------------------------------------- the net


class CostVolume(nn.Cell):
    """Makes scores of planes from likeness, the same way on each plane, and reads off the disparity."""

    def __init__(self, hidden):
        super().__init__()
        self.stem = conv_norm(2 * NUM_GROUPS, hidden)
        self.head = conv2d(hidden, 1)

    def construct(self, match, visible):
        b, g, p, h, w = match.shape
        nothing = ops.zeros_like(match[:, :, :1])
        change = match - ops.concat((nothing, match[:, :, :-1]), axis=2)
        x = ops.concat((match, change), axis=1).transpose(0, 2, 1, 3, 4).reshape(-1, 2 * g, h, w)
        score = self.head(self.stem(x)).reshape(b, p, h, w)
        score = score + match.mean(1) / TAU
        prob = ops.softmax(score, axis=1)
        level = Tensor(np.linspace(0, 1, p).reshape(1, p, 1, 1), ms.float32)
        mean = (prob * level).sum(1, keepdims=True)
        spread = ops.sqrt((prob * ops.square(level - mean)).sum(1, keepdims=True))
        entropy = -(prob * ops.log(prob + 1e-6)).sum(1, keepdims=True)
        certain = 1.0 - entropy / math.log(p)
        seen = visible.squeeze(1).astype(ms.float32).mean(1, keep_dims=True)
        return ops.concat((mean, spread, certain, seen), axis=1), prob


class ConvexUpsample(nn.Cell):
    """Each fine pixel is a mixture of the nine coarse ones around it."""

    def __init__(self, width, factor):
        super().__init__()
        self.factor = factor
        self.context = conv2d(width, width)
        self.weights = conv2d(width, 9 * factor * factor, 1)

    def construct(self, coarse, context):
        b, _, h, w = coarse.shape
        f = self.factor
        logits = self.weights(ops.elu(self.context(context))) * 0.5
        weights = ops.softmax(logits.reshape(b, 9, f, f, h, w), axis=1)
        padded = ops.pad(coarse, (1, 1, 1, 1), mode="replicate")
        taps = [padded[:, 0, i:i + h, j:j + w] for i in range(3) for j in range(3)]
        taps = ops.stack(taps, axis=1).reshape(b, 9, 1, 1, h, w)
        fine = (weights * taps).sum(1)
        return fine.transpose(0, 3, 1, 4, 2).reshape(b, 1, h * f, w * f)


class MotionDepth(nn.Cell):
    def __init__(self, widths=(12, 16, 24, 32), width=16):
        super().__init__()
        self.backbone = Backbone(widths)
        self.fpn = FeaturePyramid(widths[1:], width)
        self.cost = CostVolume(12)
        self.merge = nn.SequentialCell(conv_norm(width + NUM_PLANES + 4, 24), conv_norm(24, width))
        self.update = nn.CellList([conv2d(width, 1) for _ in range(2)])
        self.single = conv2d(width, 1)
        self.up = ConvexUpsample(width, 4)

    def features(self, image):
        return self.fpn(self.backbone(image))

    def ground_scale(self, cloud, normal):
        """How much too small the scene is: what lies low and flat should be the ground, the mount's height below."""
        rows = cloud.shape[2]
        flat = ops.square(ops.relu(-normal[:, 1] - 0.2))
        lower = Tensor((np.arange(rows) >= rows // 2).reshape(1, rows, 1), ms.float32)
        weight = flat * lower
        height = (weight * cloud[:, 1]).sum((1, 2)) / (weight.sum((1, 2)) + 1e-2)
        return MOUNT_HEIGHT / ops.clamp(height, min=0.2)

    def construct(self, image, previous, camera, pose):
        now = self.features(image)
        past = self.features(previous)
        match, visible = sweep(now[0], past[0], resize_camera(camera, 0.25), pose)
        facts, prob = self.cost(match, visible)
        guess = ops.sigmoid(self.single(now[1]))
        guess = ops.interpolate(guess, size=prob.shape[2:], mode="bilinear", align_corners=False)
        mean, _, certain, seen = ops.split(facts, 1, axis=1)
        trust = certain * seen
        start = ops.clamp(trust * mean + (1.0 - trust) * guess, 1e-3, 1.0 - 1e-3)
        x = self.merge(ops.concat((now[0], prob, facts), axis=1))
        logit = ops.log(start / (1.0 - start))
        for cell in self.update:
            logit = logit + 0.5 * ops.tanh(cell(x))
            x = x + x * ops.sigmoid(logit)
        disparity = self.up(ops.sigmoid(logit), x)
        depth = disparity_to_depth(disparity)
        cloud, normal = surface(depth, camera)
        scale = self.ground_scale(cloud, normal)
        return depth, normal, prob, trust, scale, edge_aware(disparity, image)


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return MotionDepth()
