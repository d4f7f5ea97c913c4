"""Feed-forward 3D Gaussians from posed pictures (MVSplat) in MindSpore. The weights come from the PyTorch net."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

SH_C0 = 0.28209479177387814
SH_C1 = 0.4886025119029199
SH_C2 = (1.0925484305920792, -1.0925484305920792, 0.31539156525252005, -1.0925484305920792, 0.5462742152960396)


def conv2d(cin, cout, kernel, stride=1):
    return nn.Conv2d(cin, cout, kernel, stride, pad_mode="pad", padding=kernel // 2, has_bias=True)


def pixel_centres(height, width):
    """(H * W, 2): x and y of each pixel's middle, from 0 to 1."""
    xs, ys = np.meshgrid((np.arange(width) + 0.5) / width, (np.arange(height) + 0.5) / height)
    return np.stack((xs, ys), axis=-1).reshape(-1, 2).astype(np.float32)


def invert_pose(pose):
    """The inverse of a rigid motion, as rotation and translation."""
    rotation = pose[..., :3, :3].swapaxes(-1, -2)
    return rotation, -ops.matmul(rotation, pose[..., :3, 3:])


def camera_to_world_rays(uv, c2w, intrinsics):
    """Places in the picture (B, V, N, 2) to origins and unit directions (B, V, N, 3)."""
    focal = ops.stack((intrinsics[..., 0, 0], intrinsics[..., 1, 1]), axis=-1)
    principal = intrinsics[..., :2, 2]
    xy = (uv - ops.expand_dims(principal, -2)) / ops.expand_dims(focal, -2)
    direction = ops.cat((xy, ops.ones_like(xy[..., :1])), axis=-1)
    direction = direction / ops.sqrt(ops.square(direction).sum(-1, keepdims=True))
    direction = ops.matmul(direction, c2w[..., :3, :3].swapaxes(-1, -2))
    origin = ops.broadcast_to(ops.expand_dims(c2w[..., :3, 3], -2), direction.shape)
    return origin, direction


def cyclic(x, shift, axis):
    """What np.roll does; the CPU has no kernel for ops.roll."""
    shift = shift % x.shape[axis]
    if shift == 0:
        return x
    head, tail = ops.split(x, [x.shape[axis] - shift, shift], axis=axis)
    return ops.cat((tail, head), axis=axis)


class Encoder(nn.Cell):
    """Two stages; the finer one is folded into the channels of the coarser one."""

    def __init__(self, dim):
        super().__init__()
        self.mean = Tensor(np.array([0.485, 0.456, 0.406], np.float32).reshape(1, 3, 1, 1))
        self.std = Tensor(np.array([0.229, 0.224, 0.225], np.float32).reshape(1, 3, 1, 1))
        self.stem = nn.SequentialCell(conv2d(3, 16, 7, 2), nn.BatchNorm2d(16, eps=1e-5), nn.ReLU())
        self.stage = nn.SequentialCell(conv2d(16, 24, 3, 2), nn.BatchNorm2d(24, eps=1e-5), nn.ReLU())
        self.fuse = conv2d(24 + 16 * 4, dim, 1)

    def construct(self, images):
        fine = self.stem((images - self.mean) / self.std)
        coarse = self.stage(fine)
        n, c, h, w = fine.shape
        folded = fine.reshape(n, c, h // 2, 2, w // 2, 2).transpose(0, 1, 3, 5, 2, 4).reshape(n, c * 4, h // 2, w // 2)
        return fine, self.fuse(ops.cat((coarse, folded), axis=1))


class WindowAttention(nn.Cell):
    """Swin attention in windows of each view, with cyclic shift in the second layer."""

    def __init__(self, dim, num_heads, grid, window, shift):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.grid = grid
        self.window = window
        self.shift = shift
        wh, ww = window
        self.relative_position_bias_table = Parameter(Tensor(np.zeros(((2 * wh - 1) * (2 * ww - 1), num_heads), np.float32)))
        self.qkv = nn.Dense(dim, dim * 3)
        self.proj = nn.Dense(dim, dim)
        self.norm = nn.LayerNorm((dim,), epsilon=1e-5)

        rows, columns = np.divmod(np.arange(wh * ww), ww)
        dy = rows[:, None] - rows[None, :] + wh - 1
        dx = columns[:, None] - columns[None, :] + ww - 1
        self.relative_index = Tensor((dy * (2 * ww - 1) + dx).reshape(-1).astype(np.int32))
        self.attn_mask = None
        if shift[0] > 0 or shift[1] > 0:
            self.attn_mask = Tensor(self.make_mask())

    def make_mask(self):
        """-100 between tokens that only the shift has brought into one window."""
        (h, w), (wh, ww), (sh, sw) = self.grid, self.window, self.shift
        row = np.digitize(np.arange(h), [h - wh, h - sh])
        column = np.digitize(np.arange(w), [w - ww, w - sw])
        region = row[:, None] * 3 + column[None, :]
        region = region.reshape(h // wh, wh, w // ww, ww).transpose(0, 2, 1, 3).reshape(-1, wh * ww)
        same = region[:, None, :] == region[:, :, None]
        return np.where(same, 0.0, -100.0).astype(np.float32)[None, :, None]

    def construct(self, x):
        n, tokens, c = x.shape
        (h, w), (wh, ww), (sh, sw) = self.grid, self.window, self.shift
        area = wh * ww
        shortcut = x
        x = cyclic(cyclic(x.reshape(n, h, w, c), -sh, 1), -sw, 2)
        x = x.reshape(n, h // wh, wh, w // ww, ww, c).transpose(0, 1, 3, 2, 4, 5).reshape(n, -1, area, c)
        count = x.shape[1]
        qkv = self.qkv(x).reshape(n, count, area, 3, self.num_heads, self.head_dim).transpose(3, 0, 1, 4, 2, 5)
        q, k, v = qkv[0] * self.head_dim**-0.5, qkv[1], qkv[2]
        attn = ops.matmul(q, k.swapaxes(-1, -2))
        bias = ops.gather(self.relative_position_bias_table, self.relative_index, 0)
        attn = attn + bias.reshape(area, area, self.num_heads).transpose(2, 0, 1)
        if self.attn_mask is not None:
            attn = attn + self.attn_mask
        x = ops.matmul(ops.softmax(attn, axis=-1), v).swapaxes(2, 3)
        x = x.reshape(n, h // wh, w // ww, wh, ww, c).transpose(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
        x = cyclic(cyclic(x, sh, 1), sw, 2)
        return shortcut + self.norm(self.proj(x.reshape(n, tokens, c)))


class Mlp(nn.Cell):
    def __init__(self, cin, hidden, cout):
        super().__init__()
        self.fc1 = nn.Dense(cin, hidden)
        self.act = nn.GELU(approximate=False)
        self.fc2 = nn.Dense(hidden, cout)

    def construct(self, x):
        return self.fc2(self.act(self.fc1(x)))


class EpipolarCrossAttention(nn.Cell):
    """Attention to the tokens of the other views, damped by the distance of the rays."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.ray_gain = Parameter(Tensor(np.zeros(num_heads, np.float32)))
        self.q = nn.Dense(dim, dim)
        self.kv = nn.Dense(dim, dim * 2)
        self.proj = nn.Dense(dim, dim)
        self.norm1 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.mlp = Mlp(dim * 2, dim * 4, dim)
        self.norm2 = nn.LayerNorm((dim,), epsilon=1e-5)

    def construct(self, x, rays):
        b, views, n, c = x.shape
        heads = (b, views, n, self.num_heads, c // self.num_heads)
        q = self.q(x).reshape(heads).transpose(0, 1, 3, 2, 4)
        key, value = ops.split(self.kv(x), c, axis=-1)
        key = key.reshape(heads).transpose(0, 1, 3, 2, 4)
        value = value.reshape(heads).transpose(0, 1, 3, 2, 4)
        gain = mint.nn.functional.softplus(self.ray_gain).reshape(1, -1, 1, 1)
        direction, moment = rays[..., :3], rays[..., 3:]
        messages = []
        for i in range(views):
            others = [j for j in range(views) if j != i]
            k = ops.cat([key[:, j] for j in others], axis=2)
            v = ops.cat([value[:, j] for j in others], axis=2)
            d = ops.cat([direction[:, j] for j in others], axis=1)
            m = ops.cat([moment[:, j] for j in others], axis=1)
            gap = ops.matmul(direction[:, i], m.swapaxes(1, 2)) + ops.matmul(moment[:, i], d.swapaxes(1, 2))
            attn = ops.matmul(q[:, i], k.swapaxes(-1, -2)) / math.sqrt(c // self.num_heads)
            attn = ops.softmax(attn - gain * ops.expand_dims(ops.abs(gap), 1), axis=-1)
            messages.append(ops.matmul(attn, v).transpose(0, 2, 1, 3).reshape(b, n, c))
        message = self.norm1(self.proj(ops.stack(messages, axis=1)))
        message = self.norm2(self.mlp(ops.cat((x, message), axis=-1)))
        return x + message


class MultiViewTransformer(nn.Cell):
    def __init__(self, dim, num_heads, grid, window):
        super().__init__()
        self.ray_embed = nn.Conv2d(6, dim, 4, 4, pad_mode="valid", has_bias=True)
        half = (window[0] // 2, window[1] // 2)
        blocks = []
        for shift in ((0, 0), half):
            blocks.append(WindowAttention(dim, num_heads, grid, window, shift))
            blocks.append(EpipolarCrossAttention(dim, num_heads))
        self.blocks = nn.CellList(blocks)

    def construct(self, features, rays):
        b, v, c, h, w = features.shape
        flat_rays = rays.reshape((b * v,) + rays.shape[2:])
        x = features.reshape(b * v, c, h, w) + self.ray_embed(flat_rays)
        x = x.reshape(b, v, c, h * w).swapaxes(2, 3)
        token_rays = flat_rays.reshape(b, v, 6, h, 4, w, 4).mean((4, 6)).reshape(b, v, 6, h * w).swapaxes(2, 3)
        for i, block in enumerate(self.blocks):
            if i % 2 == 0:
                x = block(x.reshape(b * v, h * w, c)).reshape(b, v, h * w, c)
            else:
                x = block(x, token_rays)
        return x.swapaxes(2, 3).reshape(b, v, c, h, w)


class PlaneSweepDepth(nn.Cell):
    """Matching costs over inverse depths, regularised, then refined at the finer size."""

    def __init__(self, dim, num_bins, grid):
        super().__init__()
        self.num_bins = num_bins
        self.steps = Tensor(np.linspace(0.0, 1.0, num_bins).astype(np.float32))
        self.pixels = Tensor(pixel_centres(*grid))
        self.regularizer = nn.SequentialCell(
            conv2d(num_bins + dim, 32, 3), nn.GroupNorm(8, 32, eps=1e-5), nn.GELU(approximate=False), conv2d(32, num_bins, 3)
        )
        self.refine_conv1 = conv2d(16 + 2, 24, 3)
        self.refine_conv2 = conv2d(24, 2, 3)

    def warp(self, target, intr_src, intr_tgt, rotation, translation, depth):
        """Everything has (b * v) in front; depth is (b * v, D). Returns (N, C, D, h * w) and who is inside."""
        n, c, h, w = target.shape
        focal = ops.stack((intr_src[:, 0, 0], intr_src[:, 1, 1]), axis=-1).reshape(n, 1, 2)
        xy = (self.pixels - intr_src[:, None, :2, 2]) / focal
        rays = ops.cat((xy, ops.ones_like(xy[..., :1])), axis=-1)
        rays = ops.matmul(rays, rotation.swapaxes(1, 2))
        points = ops.expand_dims(rays, 1) * depth.reshape(n, -1, 1, 1) + translation.reshape(n, 1, 1, 3)
        points = ops.matmul(points, ops.expand_dims(intr_tgt, 1).swapaxes(-1, -2))
        z = points[..., 2:]
        grid = points[..., :2] / ops.clamp(z, min=1e-3) * 2.0 - 1.0
        inside = ops.logical_and((ops.abs(grid) <= 1.0).all(-1), z[..., 0] > 1e-3)
        warped = ops.grid_sample(target, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        return warped, inside.astype(ms.float32)

    def cost_volume(self, features, intrinsics, c2w, depth):
        """Each view is set against the view one further, then two further, and so on."""
        b, v, c, h, w = features.shape
        source = features.reshape(b * v, c, 1, h * w)
        intr_src = intrinsics.reshape(b * v, 3, 3)
        total, count = 0.0, 0.0
        for step in range(1, v):
            target = cyclic(features, -step, 1).reshape(b * v, c, h, w)
            intr_tgt = cyclic(intrinsics, -step, 1).reshape(b * v, 3, 3)
            rotation, translation = invert_pose(cyclic(c2w, -step, 1))
            translation = ops.matmul(rotation, c2w[..., :3, 3:]) + translation
            rotation = ops.matmul(rotation, c2w[..., :3, :3])
            warped, inside = self.warp(
                target, intr_src, intr_tgt, rotation.reshape(-1, 3, 3), translation.reshape(-1, 3), depth.reshape(b * v, -1)
            )
            total = total + (source * warped).sum(1) / math.sqrt(c) * inside
            count = count + inside
        return (total / ops.clamp(count, min=1.0)).reshape(b * v, self.num_bins, h, w)

    def construct(self, features, fine, intrinsics, c2w, near, far):
        b, v, c, h, w = features.shape
        d_min = ops.expand_dims(1.0 / far, -1)
        d_max = ops.expand_dims(1.0 / near, -1)
        candidates = d_min + self.steps * (d_max - d_min)
        cost = self.cost_volume(features, intrinsics, c2w, 1.0 / candidates)
        cost = cost + self.regularizer(ops.cat((cost, features.reshape(b * v, c, h, w)), axis=1))
        cost = ops.interpolate(cost, size=(2 * h, 2 * w), mode="bilinear", align_corners=True)
        prob = ops.softmax(cost, axis=1)
        candidates = candidates.reshape(b * v, self.num_bins, 1, 1)
        disparity = (prob * candidates).sum(1, keepdims=True)
        peak = prob.max(axis=1, keepdims=True)
        d_min, d_max = d_min.reshape(-1, 1, 1, 1), d_max.reshape(-1, 1, 1, 1)
        x = ops.cat((fine, (disparity - d_min) / (d_max - d_min), peak), axis=1)
        x = self.refine_conv2(ops.gelu(self.refine_conv1(x), approximate="none"))
        bin_width = (d_max - d_min) / (self.num_bins - 1)
        disparity = disparity + ops.tanh(x[:, 0:1]) * bin_width
        disparity = ops.minimum(ops.maximum(disparity, d_min), d_max)
        density = ops.sigmoid(x[:, 1:2]) * (1.0 + peak) * 0.5
        return (1.0 / disparity).reshape(b, v, 2 * h, 2 * w), density.reshape(b, v, 2 * h, 2 * w)


def rotation_from_quaternion(q):
    """Quaternions with the real part last; they need not be of length 1."""
    x, y, z, w = q[..., 0], q[..., 1], q[..., 2], q[..., 3]
    s = 2.0 / (ops.square(q).sum(-1) + 1e-8)
    row0 = ops.stack((1 - s * (y * y + z * z), s * (x * y - z * w), s * (x * z + y * w)), axis=-1)
    row1 = ops.stack((s * (x * y + z * w), 1 - s * (x * x + z * z), s * (y * z - x * w)), axis=-1)
    row2 = ops.stack((s * (x * z - y * w), s * (y * z + x * w), 1 - s * (x * x + y * y)), axis=-1)
    return ops.stack((row0, row1, row2), axis=-2)


class GaussianAdapter(nn.Cell):
    """Reads a Gaussian off each pixel: mean, covariance, harmonics and opacity, all in the world."""

    def __init__(self, dim, sh_degree, scale_range, shape):
        super().__init__()
        self.scale_range = scale_range
        self.num_sh = (sh_degree + 1) ** 2
        self.head_conv1 = conv2d(dim + 16 + 3, 48, 3)
        self.head_conv2 = conv2d(48, 9 + 3 * self.num_sh, 1)
        self.uv = Tensor(pixel_centres(*shape))
        self.pixel_size = Tensor(np.array([1.0 / shape[1], 1.0 / shape[0]], np.float32))
        bands = [1.0] + [0.8 * 0.5**degree for degree in range(1, sh_degree + 1)]
        widths = [2 * degree + 1 for degree in range(sh_degree + 1)]
        self.sh_mask = Tensor(np.repeat(bands, widths).astype(np.float32))

    def to_opacity(self, p, exponent=1.5):
        return 0.5 * (1.0 - ops.pow(1.0 - p, exponent) + ops.pow(p, 1.0 / exponent))

    def construct(self, images, features, fine, depth, density, intrinsics, c2w):
        b, v, h, w = depth.shape
        features = features.reshape((b * v,) + features.shape[2:])
        features = ops.interpolate(features, size=(h, w), mode="bilinear", align_corners=False)
        colours = ops.avg_pool2d(images.reshape((b * v,) + images.shape[2:]), 2, 2)
        raw = self.head_conv1(ops.cat((features, fine, colours), axis=1))
        raw = self.head_conv2(ops.gelu(raw, approximate="none"))
        raw = raw.reshape(b, v, -1, h * w).swapaxes(2, 3)
        shift, scale, quaternion, sh = raw[..., :2], raw[..., 2:5], raw[..., 5:9], raw[..., 9:]

        uv = self.uv + (ops.sigmoid(shift) - 0.5) * self.pixel_size
        origin, direction = camera_to_world_rays(uv, c2w, intrinsics)
        depth = depth.reshape(b, v, h * w, 1)
        xyz = origin + direction * depth

        footprint = self.pixel_size[0] / intrinsics[..., 0, 0] + self.pixel_size[1] / intrinsics[..., 1, 1]
        smallest, largest = self.scale_range
        scale = smallest + (largest - smallest) * ops.sigmoid(scale)
        scale = scale * depth * footprint.reshape(b, v, 1, 1) * 0.1
        rotation = rotation_from_quaternion(quaternion)
        cov = ops.matmul(rotation * ops.expand_dims(ops.square(scale), -2), rotation.swapaxes(-1, -2))
        world = ops.expand_dims(c2w[..., :3, :3], 2)
        cov = ops.matmul(ops.matmul(world, cov), world.swapaxes(-1, -2))
        sh = sh.reshape(b, v, h * w, 3, self.num_sh) * self.sh_mask
        opacity = self.to_opacity(density)
        total = v * h * w
        return (
            xyz.reshape(b, total, 3),
            cov.reshape(b, total, 3, 3),
            sh.reshape(b, total, 3, self.num_sh),
            opacity.reshape(b, total),
        )


def sh_basis(direction):
    """The nine harmonics of degree 0 to 2 at unit vectors (B, G, 3), as (B, G, 9)."""
    x, y, z = direction[..., 0], direction[..., 1], direction[..., 2]
    basis = (
        ops.ones_like(x) * SH_C0,
        -SH_C1 * y,
        SH_C1 * z,
        -SH_C1 * x,
        SH_C2[0] * x * y,
        SH_C2[1] * y * z,
        SH_C2[2] * (2.0 * z * z - x * x - y * y),
        SH_C2[3] * x * z,
        SH_C2[4] * (x * x - y * y),
    )
    return ops.stack(basis, axis=-1)


class Rasterizer(nn.Cell):
    """Draws the Gaussians of the whole batch at once, sorted by depth."""

    def __init__(self, shape, near=0.2, blur=0.3):
        super().__init__()
        self.shape = shape
        self.near = near
        self.blur = blur
        self.size = Tensor(np.array([shape[1], shape[0]], np.float32))
        self.pixels = Tensor(pixel_centres(*shape) * np.array([shape[1], shape[0]], np.float32))
        self.background = Tensor(np.array([0.35, 0.2, 0.6], np.float32))

    def project(self, xyz, cov, c2w, intrinsics):
        rotation, translation = invert_pose(c2w)
        xyz = ops.matmul(xyz, rotation.swapaxes(1, 2)) + translation.swapaxes(1, 2)
        visible = (xyz[..., 2] > self.near).astype(ms.float32)
        x, y, z = xyz[..., 0], xyz[..., 1], ops.clamp(xyz[..., 2], min=self.near)
        focal = ops.stack((intrinsics[:, 0, 0], intrinsics[:, 1, 1]), axis=-1) * self.size
        principal = intrinsics[:, :2, 2] * self.size
        fx, fy = focal[:, 0:1], focal[:, 1:2]
        nil = ops.zeros_like(z)
        row_u = ops.stack((fx / z, nil, -fx * x / (z * z)), axis=-1)
        row_v = ops.stack((nil, fy / z, -fy * y / (z * z)), axis=-1)
        affine = ops.matmul(ops.stack((row_u, row_v), axis=-2), ops.expand_dims(rotation, 1))
        cov = ops.matmul(ops.matmul(affine, cov), affine.swapaxes(-1, -2))
        cov = cov + self.blur * ops.eye(2, 2, ms.float32)
        uv = ops.stack((x / z, y / z), axis=-1) * ops.expand_dims(focal, 1) + ops.expand_dims(principal, 1)
        return uv, cov, z, visible

    def construct(self, xyz, cov, sh, opacity, c2w, intrinsics):
        b, g, _ = xyz.shape
        uv, cov, z, visible = self.project(xyz, cov, c2w, intrinsics)
        view = xyz - ops.expand_dims(c2w[:, :3, 3], 1)
        view = view / ops.sqrt(ops.square(view).sum(-1, keepdims=True))
        colour = ops.relu((sh * ops.expand_dims(sh_basis(view), 2)).sum(-1) + 0.5)

        cov_a, cov_b, cov_c = cov[..., 0, 0], cov[..., 0, 1], cov[..., 1, 1]
        inverse = 1.0 / (cov_a * cov_c - cov_b * cov_b)
        conic = ops.stack((cov_c * inverse, -cov_b * inverse, cov_a * inverse), axis=-1)
        packed = ops.cat((uv, conic, colour, ops.stack((opacity * visible, z), axis=-1)), axis=-1)
        order = ops.argsort(z, axis=-1)
        packed = ops.gather_elements(packed, 1, ops.broadcast_to(ops.expand_dims(order, -1), packed.shape))
        uv, conic, colour = packed[..., :2], packed[..., 2:5], packed[..., 5:8]
        opacity, z = packed[..., 8], packed[..., 9:]

        delta = self.pixels[None, :, None] - ops.expand_dims(uv, 1)
        dx, dy = delta[..., 0], delta[..., 1]
        conic = ops.expand_dims(conic, 1)
        power = -0.5 * (conic[..., 0] * dx * dx + conic[..., 2] * dy * dy) - conic[..., 1] * dx * dy
        alpha = ops.clamp(ops.expand_dims(opacity, 1) * ops.exp(power), max=0.99)
        passed = ops.cumprod(1.0 - alpha, -1)
        before = ops.cat((ops.ones_like(passed[..., :1]), passed[..., :-1]), axis=-1)
        weight = alpha * before
        image = ops.matmul(weight, colour) + passed[..., -1:] * self.background
        covered = weight.sum(-1)
        depth = ops.matmul(weight, z)[..., 0] / ops.clamp(covered, min=1e-3)
        height, width = self.shape
        image = image.swapaxes(1, 2).reshape(b, 3, height, width)
        return image, depth.reshape(b, height, width), covered.reshape(b, height, width)


class MVGaussian(nn.Cell):
    def __init__(
        self, image_shape=(24, 32), target_shape=(20, 28), dim=32, num_heads=4, num_bins=16, window=(3, 4), sh_degree=2, scale_range=(0.5, 9.0)
    ):
        super().__init__()
        height, width = image_shape
        grid = (height // 4, width // 4)
        self.encoder = Encoder(dim)
        self.transformer = MultiViewTransformer(dim, num_heads, grid, window)
        self.depth_net = PlaneSweepDepth(dim, num_bins, grid)
        self.adapter = GaussianAdapter(dim, sh_degree, scale_range, (height // 2, width // 2))
        self.rasterizer = Rasterizer(target_shape)
        self.uv = Tensor(pixel_centres(height, width))

    def construct(self, images, intrinsics, c2w, near, far, target_intrinsics, target_c2w):
        b, v, c, h, w = images.shape
        fine, coarse = self.encoder(images.reshape(b * v, c, h, w))
        uv = ops.broadcast_to(self.uv, (b, v, h * w, 2))
        origin, direction = camera_to_world_rays(uv, c2w, intrinsics)
        moment = ops.cross(origin, direction, dim=-1)
        rays = ops.cat((direction, moment), axis=-1).swapaxes(2, 3).reshape(b, v, 6, h, w)
        features = self.transformer(coarse.reshape((b, v) + coarse.shape[1:]), rays)
        depth, density = self.depth_net(features, fine, intrinsics, c2w, near, far)
        xyz, cov, sh, opacity = self.adapter(images, features, fine, depth, density, intrinsics, c2w)
        image, target_depth, covered = self.rasterizer(xyz, cov, sh, opacity, target_c2w, target_intrinsics)
        return image, target_depth, covered, xyz, cov, opacity, depth


def look_at(eye, centre, roll):
    forward = (centre - eye) / np.linalg.norm(centre - eye)
    right = np.cross((math.sin(roll), math.cos(roll), 0.0), forward)
    right = right / np.linalg.norm(right)
    pose = np.stack((right, np.cross(forward, right), forward, eye), axis=1)
    return np.concatenate((pose, [[0, 0, 0, 1]]))


def sample_inputs(batch=2, views=3, height=24, width=32):
    rng = np.random.RandomState(11)
    rows, columns = np.arange(height).reshape(-1, 1), np.arange(width).reshape(1, -1)
    waves, phase = rng.uniform(0.1, 0.7, (2, batch, 1, 3, 1, 1)), rng.uniform(0, 6, (batch, views, 3, 1, 1))
    images = 0.5 + 0.35 * np.sin(waves[0] * rows + 0.3 * phase) * np.cos(waves[1] * columns - phase)
    images = np.clip(images + rng.uniform(-0.12, 0.12, images.shape), 0, 1)
    intrinsics, extrinsics = np.zeros((batch, views + 1, 3, 3)), np.zeros((batch, views + 1, 4, 4))
    for b in range(batch):
        for n in range(views + 1):
            angle = 0.45 * (n - 1) + 0.2 * b if n < views else 0.25 - 0.4 * b
            eye = np.array([2.6 * math.sin(angle), 0.5 * math.cos(2 * n + b), -2.6 * math.cos(angle) + 0.2 * n])
            extrinsics[b, n] = look_at(eye, rng.uniform(-0.2, 0.2, 3) + (0.3, 0.1, 0.6), rng.uniform(-0.3, 0.3))
            fx, cx, cy = rng.uniform(0.75, 1.2), rng.uniform(0.44, 0.56), rng.uniform(0.44, 0.56)
            intrinsics[b, n] = [[fx, 0, cx], [0, fx * rng.uniform(1.2, 1.45), cy], [0, 0, 1]]
    near, far = rng.uniform(1.2, 1.6, (batch, views)), rng.uniform(5.0, 7.0, (batch, views))
    arrays = (images, intrinsics[:, :views], extrinsics[:, :views], near, far, intrinsics[:, views], extrinsics[:, views])
    return tuple(np.ascontiguousarray(x, dtype=np.float32) for x in arrays)


def build():
    net = MVGaussian()
    net.set_train(False)
    return net, tuple(Tensor(x) for x in sample_inputs())
