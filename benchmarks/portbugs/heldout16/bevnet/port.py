"""BEVNet in MindSpore: boxes in bird's eye view from a rig of cameras (PyNative, CPU and Ascend)."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops

# the perception range, the cell and the depth bins: (low, high, step)
X_RANGE = (-12.0, 12.0, 1.0)
Y_RANGE = (-10.0, 10.0, 1.0)
Z_RANGE = (-3.0, 3.0, 3.0)
DEPTH_RANGE = (1.0, 13.0, 1.0)
CLASSES_PER_TASK = (2, 3)
HEAD_CHANNELS = (("reg", 2), ("height", 1), ("dim", 3), ("rot", 2), ("vel", 2))


def cells(bound):
    """Number of cells along one axis."""
    return int(round((bound[1] - bound[0]) / bound[2]))


def conv3x3(cin, cout, stride=1, bias=False):
    return nn.Conv2d(cin, cout, 3, stride=stride, pad_mode="pad", padding=1, has_bias=bias)


def conv1x1(cin, cout, stride=1, bias=True):
    return nn.Conv2d(cin, cout, 1, stride=stride, pad_mode="valid", has_bias=bias)


class ConvBNReLU(nn.Cell):
    def __init__(self, cin, cout, bias=False):
        super().__init__()
        self.conv = conv3x3(cin, cout, bias=bias)
        self.bn = nn.BatchNorm2d(cout)

    def construct(self, x):
        return ops.relu(self.bn(self.conv(x)))


class ResBlock(nn.Cell):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1 = conv3x3(cin, cout, stride)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = conv3x3(cout, cout)
        self.bn2 = nn.BatchNorm2d(cout)
        self.relu = nn.ReLU()
        self.down_sample = None
        if stride != 1 or cin != cout:
            self.down_sample = nn.SequentialCell([conv1x1(cin, cout, stride, bias=False), nn.BatchNorm2d(cout)])

    def construct(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.down_sample is not None:
            x = self.down_sample(x)
        return self.relu(out + x)


class ResNetTiny(nn.Cell):
    """C2, C3 and C4 of a small ResNet."""

    def __init__(self, widths=(16, 24, 40, 56), depths=(1, 2, 1)):
        super().__init__()
        self.stem_conv = nn.Conv2d(3, widths[0], 3, stride=2, pad_mode="pad", padding=1, has_bias=False)
        self.stem_bn = nn.BatchNorm2d(widths[0])
        self.stages = nn.CellList()
        for cin, cout, depth in zip(widths[:-1], widths[1:], depths):
            blocks = [ResBlock(cin, cout, 2)] + [ResBlock(cout, cout) for _ in range(depth - 1)]
            self.stages.append(nn.SequentialCell(blocks))

    def construct(self, x):
        x = ops.relu(self.stem_bn(self.stem_conv(x)))
        c2 = self.stages[0](x)
        c3 = self.stages[1](c2)
        c4 = self.stages[2](c3)
        return c2, c3, c4


class FPN(nn.Cell):
    def __init__(self, in_channels=(24, 40, 56), width=28, out_channels=36):
        super().__init__()
        self.lateral = nn.CellList([conv1x1(c, width) for c in in_channels])
        self.smooth = nn.CellList([conv3x3(width, width, bias=True) for _ in in_channels])
        self.merge = ConvBNReLU(width * len(in_channels), out_channels)

    def construct(self, c2, c3, c4):
        l2, l3, l4 = self.lateral[0](c2), self.lateral[1](c3), self.lateral[2](c4)
        p4 = l4
        p3 = l3 + ops.interpolate(p4, size=l3.shape[2:], mode="nearest")
        p2 = l2 + ops.interpolate(p3, size=l2.shape[2:], mode="nearest")
        p2 = ops.avg_pool2d(self.smooth[0](p2), kernel_size=2, stride=2)
        p3 = self.smooth[1](p3)
        p4 = ops.interpolate(self.smooth[2](p4), size=p3.shape[2:], mode="bilinear", align_corners=False)
        return self.merge(ops.cat((p2, p3, p4), axis=1))


class CameraGate(nn.Cell):
    """Squeeze-and-excitation whose squeezed vector comes from the camera's parameters."""

    def __init__(self, camera_dim, channels):
        super().__init__()
        self.fc1 = nn.Dense(camera_dim, channels)
        self.fc2 = nn.Dense(channels, channels)
        self.reduce = conv1x1(channels, channels)
        self.expand = conv1x1(channels, channels)

    def construct(self, x, camera):
        code = self.fc2(ops.relu(self.fc1(camera)))
        code = code.reshape(code.shape + (1, 1))
        return x * ops.sigmoid(self.expand(ops.relu(self.reduce(code))))


class DepthNet(nn.Cell):
    def __init__(self, cin, mid, context_channels, depth_bins, camera_dim):
        super().__init__()
        self.reduce = ConvBNReLU(cin, mid)
        self.camera_bn = nn.BatchNorm1d(camera_dim)
        self.context_gate = CameraGate(camera_dim, mid)
        self.context_conv = conv1x1(mid, context_channels)
        self.depth_gate = CameraGate(camera_dim, mid)
        self.depth_block = ResBlock(mid, mid)
        self.depth_conv = conv1x1(mid, depth_bins)

    def construct(self, x, camera):
        camera = self.camera_bn(camera)
        x = self.reduce(x)
        context = self.context_gate(x, camera)
        depth = self.depth_gate(x, camera)
        return self.depth_conv(self.depth_block(depth)), self.context_conv(context)


class LiftSplat(nn.Cell):
    """From features of the cameras to the grid around the vehicle."""

    def __init__(self, image_size, stride, cin, mid, cout):
        super().__init__()
        bounds = (X_RANGE, Y_RANGE, Z_RANGE)
        self.lower = Tensor([b[0] for b in bounds], ms.float32)
        self.cell = Tensor([b[2] for b in bounds], ms.float32)
        self.nx, self.ny, self.nz = [cells(b) for b in bounds]
        self.cout = cout
        frustum = self.make_frustum(image_size, stride)
        self.bins, self.fh, self.fw = frustum.shape[:3]
        self.frustum = Tensor(frustum.reshape(-1, 3), ms.float32)
        self.depth_net = DepthNet(cin, mid, cout, self.bins, 22)

    @staticmethod
    def make_frustum(image_size, stride):
        height, width = image_size
        depth = np.arange(DEPTH_RANGE[0], DEPTH_RANGE[1], DEPTH_RANGE[2])
        u = np.linspace(0, width - 1, width // stride)
        v = np.linspace(0, height - 1, height // stride)
        d, v, u = np.meshgrid(depth, v, u, indexing="ij")
        return np.stack([u, v, d], axis=-1).astype(np.float32)

    def camera_vector(self, rots, trans, intrins, post_rots, post_trans):
        """22 numbers for each camera, (B * N, 22)."""
        count = rots.shape[0] * rots.shape[1]
        inner = ops.stack((intrins[..., 0, 0], intrins[..., 1, 1], intrins[..., 0, 2], intrins[..., 1, 2]), axis=-1)
        augment = ops.cat((post_rots[..., :2, :2], post_trans[..., :2].expand_dims(-1)), axis=-1)
        outer = ops.cat((rots, trans.expand_dims(-1)), axis=-1)
        return ops.cat((inner.reshape(count, 4), augment.reshape(count, 6), outer.reshape(count, 12)), axis=1)

    def ego_points(self, rots, trans, intrins, post_rots, post_trans):
        """(B, N, D * H * W, 3); points are rows, so that the matrices are transposed."""
        points = self.frustum - post_trans.expand_dims(2)
        points = ops.matmul(points, ops.inverse(post_rots).swapaxes(-1, -2))
        depth = points[..., 2:]
        points = ops.cat((points[..., :2] * depth, depth), axis=-1)
        cam2ego = ops.matmul(rots, ops.inverse(intrins))
        return ops.matmul(points, cam2ego.swapaxes(-1, -2)) + trans.expand_dims(2)

    def splat(self, points, volume):
        batch = points.shape[0]
        per_sample = points.shape[1] * points.shape[2]
        places = (points.reshape(-1, 3) - self.lower) / self.cell
        index = places.astype(ms.int32)
        ix, iy, iz = index[:, 0], index[:, 1], index[:, 2]
        inside = ops.logical_and(ix >= 0, ix < self.nx)
        inside = ops.logical_and(inside, ops.logical_and(iy >= 0, iy < self.ny))
        inside = ops.logical_and(inside, ops.logical_and(iz >= 0, iz < self.nz))
        sample = ops.repeat_interleave(ops.arange(batch), per_sample, 0).astype(ms.int32)
        flat = ((sample * self.nz + iz) * self.ny + iy) * self.nx + ix
        # what is outside goes into one more cell, which is thrown away
        total = batch * self.nz * self.ny * self.nx
        flat = ops.where(inside, flat, ops.full_like(flat, total))
        grid = ops.unsorted_segment_sum(volume.reshape(-1, self.cout), flat, total + 1)[:total]
        grid = grid.reshape(batch, self.nz, self.ny, self.nx, self.cout)
        return grid.transpose(0, 1, 4, 2, 3).reshape(batch, self.nz * self.cout, self.ny, self.nx)

    def construct(self, feat, rots, trans, intrins, post_rots, post_trans):
        camera = self.camera_vector(rots, trans, intrins, post_rots, post_trans)
        depth, context = self.depth_net(feat, camera)
        depth = ops.softmax(depth, axis=1)
        volume = depth.expand_dims(-1) * context.transpose(0, 2, 3, 1).expand_dims(1)
        points = self.ego_points(rots, trans, intrins, post_rots, post_trans)
        return self.splat(points, volume)


class GatedMemory(nn.Cell):
    """Recurrent fusion of the grids over time."""

    def __init__(self, channels):
        super().__init__()
        self.channels = channels
        nx, ny = cells(X_RANGE), cells(Y_RANGE)
        xs = X_RANGE[0] + X_RANGE[2] * (np.arange(nx) + 0.5)
        ys = Y_RANGE[0] + Y_RANGE[2] * (np.arange(ny) + 0.5)
        gx, gy = np.meshgrid(xs, ys)
        self.centres = Tensor(np.stack([gx, gy, np.ones_like(gx)], -1).reshape(1, -1, 3), ms.float32)
        self.origin = Tensor([xs[0], ys[0]], ms.float32)
        self.span = Tensor([xs[-1] - xs[0], ys[-1] - ys[0]], ms.float32)
        # candidate and gate in one convolution
        self.conv = conv3x3(2 * channels, 2 * channels, bias=True)
        self.act = nn.LeakyReLU(alpha=0.01)

    def warp(self, memory, pose_prev, pose_cur):
        batch, _, height, width = memory.shape
        motion = ops.matmul(ops.inverse(pose_prev), pose_cur)
        planar = ops.cat((motion[:, :2, :2], motion[:, :2, 3:]), axis=-1)
        where = ops.matmul(self.centres, planar.swapaxes(1, 2))
        where = 2.0 * (where - self.origin) / self.span - 1.0
        where = where.reshape(batch, height, width, 2)
        return ops.grid_sample(memory, where, mode="bilinear", padding_mode="zeros", align_corners=True)

    def construct(self, bev, memory, pose_prev, pose_cur):
        if memory is None:
            warped = bev
        else:
            warped = self.warp(memory, pose_prev, pose_cur)
        both = self.conv(ops.cat((bev, warped), axis=1))
        candidate, gate = ops.split(both, self.channels, axis=1)
        gate = ops.sigmoid(gate)
        return warped + gate * (self.act(candidate) - warped)


class Upsample2x(nn.Cell):
    def construct(self, x):
        size = (2 * x.shape[2], 2 * x.shape[3])
        return ops.interpolate(x, size=size, mode="bilinear", align_corners=True)


class BEVBackbone(nn.Cell):
    def __init__(self, cin, widths=(44, 64), cout=48):
        super().__init__()
        self.stage1 = nn.SequentialCell([ResBlock(cin, widths[0], 2), ResBlock(widths[0], widths[0])])
        self.stage2 = ResBlock(widths[0], widths[1], 2)
        self.up_a = Upsample2x()
        self.fuse = ConvBNReLU(widths[1] + widths[0], widths[1])
        self.up_b = Upsample2x()
        self.last = ConvBNReLU(widths[1], cout)
        self.skip = conv1x1(cin, cout)

    def construct(self, x):
        half = self.stage1(x)
        quarter = self.stage2(half)
        up = self.fuse(ops.cat((self.up_a(quarter), half), axis=1))
        return self.last(self.up_b(up)) + self.skip(x)


def take(table, index):
    """Rows of a (B, L, C) table at (B, K) places."""
    index = index.expand_dims(-1).broadcast_to(index.shape + (table.shape[-1],))
    return mint.gather(table, 1, index)


class TaskHead(nn.Cell):
    """One branch for each quantity, the heatmap last."""

    def __init__(self, cin, num_classes, width=20):
        super().__init__()
        channels = [number for _, number in HEAD_CHANNELS] + [num_classes]
        self.branches = nn.CellList()
        for number in channels:
            self.branches.append(nn.SequentialCell([ConvBNReLU(cin, width), conv3x3(width, number, bias=True)]))

    def construct(self, x):
        return tuple(branch(x) for branch in self.branches)


class CenterPointHead(nn.Cell):
    def __init__(self, cin, share=32, top=6, post_top=9, threshold=0.1):
        super().__init__()
        self.top = top
        self.post_top = post_top
        self.threshold = threshold
        self.shared = ConvBNReLU(cin, share, bias=True)
        self.tasks = nn.CellList([TaskHead(share, number) for number in CLASSES_PER_TASK])

    def peaks(self, logits):
        """Scores, flat places and classes of the best local maxima."""
        batch, classes, height, width = logits.shape
        heat = ops.sigmoid(logits)
        highest = ops.max_pool2d(heat, 3, stride=1, padding=1)
        heat = heat * (highest == heat).astype(heat.dtype)
        per_class, where = ops.topk(heat.reshape(batch, classes, height * width), self.top)
        score, chosen = ops.topk(per_class.reshape(batch, -1), self.top)
        where = mint.gather(where.reshape(batch, -1), 1, chosen)
        return score, where, chosen // self.top

    def decode(self, reg, height, dim, rot, vel, logits):
        score, where, label = self.peaks(logits)
        batch, _, _, columns = logits.shape
        row = (where // columns).astype(ms.float32)
        column = (where % columns).astype(ms.float32)
        values = ops.cat((reg, height, ops.exp(dim), rot, vel), axis=1)
        values = values.reshape(batch, values.shape[1], -1).swapaxes(1, 2)
        values = take(values, where)
        reg, z, size, rot, vel = ops.split(values, [2, 1, 3, 2, 2], axis=-1)
        x = (column + reg[..., 0]) * X_RANGE[2] + X_RANGE[0]
        y = (row + reg[..., 1]) * Y_RANGE[2] + Y_RANGE[0]
        bottom = z[..., 0] - 0.5 * size[..., 2]
        yaw = ops.atan2(rot[..., 0], rot[..., 1])
        boxes = ops.cat((ops.stack((x, y, bottom), axis=-1), size, yaw.expand_dims(-1), vel), axis=-1)
        score = ops.where(score > self.threshold, score, ops.zeros_like(score))
        return boxes, score, label

    def construct(self, x):
        x = self.shared(x)
        results = []
        first_class = 0
        for task, number in zip(self.tasks, CLASSES_PER_TASK):
            boxes, score, label = self.decode(*task(x))
            results.append((boxes, score, label + first_class))
            first_class += number
        boxes, score, label = [ops.cat(parts, axis=1) for parts in zip(*results)]
        score, order = ops.topk(score, self.post_top, dim=1)
        return take(boxes, order), score, mint.gather(label, 1, order)


class BEVNet(nn.Cell):
    """`images` is (B, T, N, 3, H, W) with values of 0 to 255, the oldest frame first."""

    def __init__(self, image_size=(48, 80), neck_channels=36, bev_channels=20):
        super().__init__()
        self.mean = Tensor(np.array([123.675, 116.28, 103.53]).reshape(1, 3, 1, 1), ms.float32)
        self.std = Tensor(np.array([58.395, 57.12, 57.375]).reshape(1, 3, 1, 1), ms.float32)
        self.backbone = ResNetTiny()
        self.neck = FPN(out_channels=neck_channels)
        self.lift_splat = LiftSplat(image_size, 8, neck_channels, 32, bev_channels)
        channels = bev_channels * cells(Z_RANGE)
        self.memory = GatedMemory(channels)
        self.bev_backbone = BEVBackbone(channels)
        self.head = CenterPointHead(48)

    def construct(self, images, rots, trans, intrins, post_rots, post_trans, poses):
        batch, frames, cameras, _, height, width = images.shape
        fused = None
        for t in range(frames):
            frame = images[:, t].reshape(batch * cameras, 3, height, width)
            feat = self.neck(*self.backbone((frame - self.mean) / self.std))
            bev = self.lift_splat(feat, rots, trans, intrins, post_rots, post_trans)
            fused = self.memory(bev, fused, poses[:, max(t - 1, 0)], poses[:, t])
        return self.head(self.bev_backbone(fused))


def build():
    """The net alone; its weights come from elsewhere."""
    return BEVNet().set_train(False)
