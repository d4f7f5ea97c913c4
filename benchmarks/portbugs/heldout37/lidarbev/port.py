"""PillarCenter for MindSpore: a small lidar detector in bird's eye view (pillars -> 2d convnet -> center heads)."""
import math

import numpy as np
import mindspore as ms
from mindspore import Tensor, nn, ops

PC_RANGE = (0.0, -16.0, -3.0, 32.0, 16.0, 1.0)
VOXEL = (0.8, 1.0)
STRIDE = 2
TASKS = (("truck",), ("pedestrian", "cyclist"))
HEADS = (("hm", None), ("reg", 2), ("height", 1), ("dim", 3), ("rot", 2), ("vel", 2), ("iou", 1))


def batch_norm(dim):
    # momentum of MindSpore is one minus that of PyTorch
    return nn.BatchNorm2d(dim, eps=1e-3, momentum=0.99)


class ConvBNReLU(nn.SequentialCell):
    def __init__(self, cin, cout, kernel, stride=1):
        super().__init__(nn.Conv2d(cin, cout, kernel, stride=stride, pad_mode="pad", padding=kernel // 2,
                                   has_bias=False),
                         batch_norm(cout), nn.ReLU())


def gather_at(feat, ind):
    """Reads the map (B, C, H, W) at the flat positions (B, K) -> (B, K, C)"""
    b, c, h, w = feat.shape
    feat = feat.reshape(b, c, h * w).swapaxes(1, 2)
    index = ind.expand_dims(-1).broadcast_to((b, ind.shape[1], c))
    return ops.gather_elements(feat, 1, index)


def wrap_angle(val):
    return val - ops.floor(val / (2 * math.pi) + 0.5) * (2 * math.pi)


class PointNetLayer(nn.Cell):
    def __init__(self, cin, cout, last=False):
        super().__init__()
        self.last = last
        units = cout if last else cout // 2
        self.dense = nn.Dense(cin, units, has_bias=False)
        self.bn = nn.BatchNorm1d(units, eps=1e-3, momentum=0.99)

    def construct(self, x, segment, keep, num_segments):
        x = ops.relu(self.bn(self.dense(x))) * keep
        # the maximum of an empty segment is the lowest float
        pooled = ops.relu(ops.unsorted_segment_max(x, segment, num_segments))
        if self.last:
            return pooled
        return ops.concat((x, pooled[segment]), axis=1)


class PillarFeatureNet(nn.Cell):
    def __init__(self, pc_range, voxel, in_channels=5, channels=(24, 20)):
        super().__init__()
        self.low = Tensor(pc_range[:3], ms.float32)
        self.high = Tensor(pc_range[3:], ms.float32)
        self.voxel = Tensor(voxel, ms.float32)
        self.grid_x = int(round((pc_range[3] - pc_range[0]) / voxel[0]))
        self.grid_y = int(round((pc_range[4] - pc_range[1]) / voxel[1]))
        layers = []
        cin = in_channels + 7
        for i, c in enumerate(channels):
            layers.append(PointNetLayer(cin, c, last=i == len(channels) - 1))
            cin = c
        self.layers = nn.CellList(layers)

    def construct(self, points, num_points):
        b, n, _ = points.shape
        num_cells = b * self.grid_y * self.grid_x
        xyz = points[:, :, :3]

        inside = ops.logical_and(xyz >= self.low, xyz < self.high).all(axis=-1)
        filled = ops.arange(n).expand_dims(0) < num_points.expand_dims(1)
        keep = ops.logical_and(inside, filled)
        mask = keep.astype(ms.float32).expand_dims(-1)

        # cell of each point; what is not kept goes to one more cell behind the others
        coord = ops.floor((xyz[:, :, :2] - self.low[:2]) / self.voxel).astype(ms.int32)
        cx = ops.clamp(coord[:, :, 0], 0, self.grid_x - 1)
        cy = ops.clamp(coord[:, :, 1], 0, self.grid_y - 1)
        offset = (ops.arange(b) * (self.grid_y * self.grid_x)).astype(ms.int32)
        segment = offset.expand_dims(1) + cy * self.grid_x + cx
        segment = segment.masked_fill(ops.logical_not(keep), num_cells).reshape(-1)

        count = ops.unsorted_segment_sum(ops.ones(b * n, ms.float32), segment, num_cells + 1)
        total = ops.unsorted_segment_sum(xyz.reshape(-1, 3), segment, num_cells + 1)
        mean = total / ops.maximum(count, 1.0).expand_dims(-1)
        to_mean = xyz - mean[segment].reshape(b, n, 3)

        center = (ops.stack((cx, cy), axis=-1).astype(ms.float32) + 0.5) * self.voxel + self.low[:2]
        z_mid = (self.low[2] + self.high[2]) / 2
        to_center = ops.concat((xyz[:, :, :2] - center, xyz[:, :, 2:] - z_mid), axis=-1)

        rel = (xyz - self.low) / (self.high - self.low)
        intensity = ops.log1p(points[:, :, 3:4])
        depth = ops.sqrt(ops.square(xyz[:, :, :2]).sum(axis=-1, keepdims=True)) / self.high[0]
        x = ops.concat((rel, intensity, points[:, :, 4:], to_mean, to_center, depth), axis=-1) * mask

        x = x.reshape(b * n, -1)
        mask = mask.reshape(b * n, 1)
        for layer in self.layers:
            x = layer(x, segment, mask, num_cells + 1)

        canvas = x[:num_cells].reshape(b, self.grid_y, self.grid_x, -1).transpose(0, 3, 1, 2)
        count = count[:num_cells].reshape(b, 1, self.grid_y, self.grid_x)
        density = ops.log1p(count) / math.log(8.0)
        return ops.concat((canvas, density), axis=1), (count > 0).astype(ms.float32)


class OccupiedGate(nn.Cell):
    """Squeeze and excitation; the mean goes over the occupied cells only."""

    def __init__(self, dim):
        super().__init__()
        self.fc = nn.Conv2d(dim, dim, 1, has_bias=True)
        self.act = nn.HSigmoid()

    def construct(self, x, occ):
        area = ops.maximum(occ.sum(axis=(2, 3), keepdims=True), 1.0)
        desc = (x * occ).sum(axis=(2, 3), keepdims=True) / area
        return x * self.act(self.fc(desc))


class ResidualBlock(nn.Cell):
    def __init__(self, dim):
        super().__init__()
        self.conv1 = nn.Conv2d(dim, dim, 3, pad_mode="pad", padding=1)
        self.bn1 = batch_norm(dim)
        self.conv2 = nn.Conv2d(dim, dim, 3, pad_mode="pad", padding=1)
        self.bn2 = batch_norm(dim)
        self.gate = OccupiedGate(dim)
        self.relu = nn.ReLU()

    def construct(self, x, occ):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out = self.gate(out, occ)
        return self.relu(out + x)


class Stage(nn.Cell):
    def __init__(self, cin, dim, depth):
        super().__init__()
        self.down = ConvBNReLU(cin, dim, 3, stride=2)
        self.blocks = nn.CellList([ResidualBlock(dim) for _ in range(depth)])

    def construct(self, x, occ):
        x = self.down(x)
        occ = ops.max_pool2d(occ, 3, stride=2, padding=1)
        for block in self.blocks:
            x = block(x, occ)
        return x, occ


class Backbone(nn.Cell):
    def __init__(self, cin, dims=(16, 24, 32), depths=(1, 2, 1)):
        super().__init__()
        self.stages = nn.CellList([Stage(i, d, n) for i, d, n in zip((cin,) + dims[:-1], dims, depths)])

    def construct(self, x, occ):
        feats = []
        for stage in self.stages:
            x, occ = stage(x, occ)
            feats.append(x)
        return feats


class AdaptiveNeck(nn.Cell):
    """Brings all scales to the size of the first one and weights them per pixel."""

    def __init__(self, dims=(16, 24, 32), out=18):
        super().__init__()
        self.fine = ConvBNReLU(dims[0], out, 1)
        self.mid = nn.SequentialCell(
            nn.Conv2dTranspose(dims[1], out, 2, stride=2, pad_mode="pad", padding=0, has_bias=False),
            batch_norm(out), nn.ReLU())
        self.coarse = ConvBNReLU(dims[2], out, 3)
        self.logits = nn.CellList([nn.Conv2d(out, 1, 1, has_bias=True) for _ in dims])
        self.num_levels = len(dims)

    def construct(self, feats):
        fine, mid, coarse = feats
        b, _, h, w = fine.shape
        coarse = ops.interpolate(self.coarse(coarse), size=(h, w), mode="bilinear", align_corners=False)
        levels = (self.fine(fine), self.mid(mid), coarse)
        logits = ops.concat([conv(f) for conv, f in zip(self.logits, levels)], axis=1)
        weight = ops.softmax(logits, axis=1) * self.num_levels
        # (B, L, C, H, W), the levels one after the other in the channels
        fused = ops.stack(levels, axis=1) * weight.expand_dims(2)
        return fused.reshape(b, -1, h, w)


class TaskHead(nn.Cell):
    def __init__(self, cin, num_cls, mid=16):
        super().__init__()
        self.names = [name for name, _ in HEADS]
        self.heads = nn.CellList()
        for _, dim in HEADS:
            self.heads.append(nn.SequentialCell(
                ConvBNReLU(cin, mid, 3),
                nn.Conv2d(mid, dim or num_cls, 3, pad_mode="pad", padding=1, has_bias=True)))

    def construct(self, x):
        return {name: head(x) for name, head in zip(self.names, self.heads)}


class CenterHead(nn.Cell):
    def __init__(self, cin, height, width, mid=28):
        super().__init__()
        ys = (np.arange(height) + 0.5) / height * 2 - 1
        xs = (np.arange(width) + 0.5) / width * 2 - 1
        grid_x, grid_y = np.meshgrid(xs, ys)
        self.coords = Tensor(np.stack([grid_x, grid_y])[None], ms.float32)
        self.shared = ConvBNReLU(cin + 2, mid, 3)
        self.tasks = nn.CellList([TaskHead(mid, len(t)) for t in TASKS])

    def construct(self, x):
        b = x.shape[0]
        x = ops.concat((x, ops.tile(self.coords, (b, 1, 1, 1))), axis=1)
        x = self.shared(x)
        return [task(x) for task in self.tasks]


class BoxDecoder(nn.Cell):
    """Peaks of the heatmaps -> boxes (x, y, z, l, w, h, yaw, vx, vy)."""

    def __init__(self, topk=14, score_thr=0.35, iou_alpha=((0.68,), (0.71, 0.55)),
                 post_range=(-1.0, -16.5, -4.0, 33.0, 15.5, 3.0)):
        super().__init__()
        self.topk = topk
        self.score_thr = score_thr
        self.iou_alpha = [Tensor(a, ms.float32) for a in iou_alpha]
        self.post_low = Tensor(post_range[:3], ms.float32)
        self.post_high = Tensor(post_range[3:], ms.float32)

    def find_peaks(self, heat):
        b, c, h, w = heat.shape
        k = self.topk
        pooled = ops.max_pool2d(heat, 3, stride=1, padding=1)
        heat = ops.where(pooled == heat, heat, ops.zeros_like(heat))
        score, pos = ops.topk(heat.reshape(b, c, h * w), k)
        score, order = ops.topk(score.reshape(b, c * k), k)
        cls = order // k
        pos = ops.gather_elements(pos.reshape(b, c * k), 1, order)
        row = (pos // w).astype(ms.float32)
        col = (pos % w).astype(ms.float32)
        return score, cls, pos, row, col

    def decode(self, pred, alpha):
        score, cls, pos, row, col = self.find_peaks(ops.sigmoid(pred["hm"]))
        reg = gather_at(pred["reg"], pos)
        z = gather_at(pred["height"], pos)[:, :, 0]
        x = (col + reg[:, :, 0]) * STRIDE * VOXEL[0] + PC_RANGE[0]
        y = (row + reg[:, :, 1]) * STRIDE * VOXEL[1] + PC_RANGE[1]
        center = ops.stack((x, y, z), axis=-1)

        # the head gives (w, l, h), the boxes are (l, w, h)
        dim = ops.exp(ops.clamp(gather_at(pred["dim"], pos), -3.0, 3.0))
        width, length, height = ops.split(dim, 1, axis=-1)
        rot = gather_at(pred["rot"], pos)
        yaw = wrap_angle(-ops.atan2(rot[:, :, 0:1], rot[:, :, 1:2]) - math.pi / 2)
        vel = gather_at(pred["vel"], pos)
        boxes = ops.concat((center, length, width, height, yaw, vel), axis=-1)

        iou = gather_at(pred["iou"], pos)[:, :, 0]
        iou = ops.clamp((iou + 1) / 2, 0.0, 1.0)
        alpha = alpha[cls]
        score = ops.pow(score, 1 - alpha) * ops.pow(iou, alpha)
        keep = ops.logical_and(center >= self.post_low, center <= self.post_high).all(axis=-1)
        keep = ops.logical_and(keep, score > self.score_thr)
        return boxes, score * keep.astype(ms.float32), cls

    def construct(self, preds):
        all_boxes, all_scores, all_labels = [], [], []
        first = 0
        for names, pred, alpha in zip(TASKS, preds, self.iou_alpha):
            boxes, score, cls = self.decode(pred, alpha)
            all_boxes.append(boxes)
            all_scores.append(score)
            all_labels.append(cls.astype(ms.int64) + first)
            first += len(names)
        return ops.concat(all_boxes, axis=1), ops.concat(all_scores, axis=1), ops.concat(all_labels, axis=1)


class CircleSuppression(nn.Cell):
    """Greedy suppression by the distance of the centres with a fixed number of rows (padding: zeros, label -1)."""

    def __init__(self, max_out=11, radius=(4.0, 1.5, 2.2)):
        super().__init__()
        self.max_out = max_out
        self.radius = Tensor(radius, ms.float32)

    def construct(self, boxes, scores, labels):
        num = scores.shape[1]
        xy = boxes[:, :, :2]
        # distances of all pairs (B, P, P)
        dist = ops.sqrt(ops.square(xy.expand_dims(2) - xy.expand_dims(1)).sum(axis=-1))
        same = labels.expand_dims(2) == labels.expand_dims(1)
        r = self.radius[labels].expand_dims(2)
        soft = ops.clamp(dist / r - 1, 0.0, 1.0)
        hard = (dist >= 0.5 * r).astype(ms.float32)
        # decay[b, i, j]: what is left of the score of j once i is taken
        decay = ops.where(same, soft, hard)

        picks, picked_scores = [], []
        for _ in range(self.max_out):
            best = ops.argmax(scores, dim=1)
            chosen = ops.one_hot(best, num, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))
            picks.append(best)
            picked_scores.append((scores * chosen).sum(axis=1))
            factor = (decay * chosen.expand_dims(-1)).sum(axis=1)
            scores = scores * factor * (1 - chosen)

        pick = ops.stack(picks, axis=1).astype(ms.int32)
        out_scores = ops.stack(picked_scores, axis=1)
        found = out_scores > 0
        index = pick.expand_dims(-1).broadcast_to((*pick.shape, boxes.shape[-1]))
        out_boxes = ops.gather_elements(boxes, 1, index) * found.expand_dims(-1).astype(ms.float32)
        out_labels = ops.gather_elements(labels, 1, pick).masked_fill(ops.logical_not(found), -1)
        return out_boxes, out_scores, out_labels


def box_corners(boxes):
    """(B, K, 9) -> (B, K, 8, 3), counterclockwise, bottom first"""
    sx = Tensor([1, -1, -1, 1, 1, -1, -1, 1], ms.float32) / 2
    sy = Tensor([1, 1, -1, -1, 1, 1, -1, -1], ms.float32) / 2
    sz = Tensor([-1, -1, -1, -1, 1, 1, 1, 1], ms.float32) / 2
    x, y, z = boxes[:, :, 3:4] * sx, boxes[:, :, 4:5] * sy, boxes[:, :, 5:6] * sz
    cos, sin = ops.cos(boxes[:, :, 6:7]), ops.sin(boxes[:, :, 6:7])
    corners = ops.stack((x * cos - y * sin, x * sin + y * cos, z), axis=-1)
    return corners + boxes[:, :, None, :3]


def gaussian_radius(length, width, overlap):
    """Largest shift of a box's corners that leaves an overlap of `overlap` (CornerNet)."""
    total, area = length + width, length * width
    r1 = (total + ops.sqrt(total ** 2 - 4 * area * (1 - overlap) / (1 + overlap))) / 2
    r2 = (2 * total + ops.sqrt(4 * total ** 2 - 16 * (1 - overlap) * area)) / 8
    b3 = -2 * overlap * total
    r3 = (b3 + ops.sqrt(b3 ** 2 + 16 * overlap * (1 - overlap) * area)) / (8 * overlap)
    return ops.minimum(ops.minimum(r1, r2), r3)


class CenterLoss(nn.Cell):
    def __init__(self, height, width, min_overlap=0.1, min_radius=1):
        super().__init__()
        self.height, self.width = height, width
        self.min_overlap, self.min_radius = min_overlap, min_radius
        self.grid_x = ops.arange(width).astype(ms.float32).reshape(1, 1, 1, width)
        self.grid_y = ops.arange(height).astype(ms.float32).reshape(1, 1, height, 1)
        self.code_weight = Tensor([1, 1, 1, 1, 1, 1, 1.5, 1.5, 0.2, 0.2], ms.float32)

    def make_targets(self, boxes, labels, first, num_cls):
        step_x, step_y = VOXEL[0] * STRIDE, VOXEL[1] * STRIDE
        fx = (boxes[:, :, 0] - PC_RANGE[0]) / step_x
        fy = (boxes[:, :, 1] - PC_RANGE[1]) / step_y
        ix, iy = ops.floor(fx), ops.floor(fy)
        mask = (labels >= first) & (labels < first + num_cls)
        mask = mask & (ix >= 0) & (ix < self.width) & (iy >= 0) & (iy < self.height)
        mask = mask.astype(ms.float32)

        radius = gaussian_radius(boxes[:, :, 3] / step_x, boxes[:, :, 4] / step_y, self.min_overlap)
        radius = ops.maximum(ops.floor(radius), float(self.min_radius))[:, :, None, None]
        sigma = (2 * radius + 1) / 6
        dx = self.grid_x - ix[:, :, None, None]
        dy = self.grid_y - iy[:, :, None, None]
        blob = ops.exp(-(dx ** 2 + dy ** 2) / (2 * sigma ** 2))
        window = ops.logical_and(ops.abs(dx) <= radius, ops.abs(dy) <= radius)
        blob = blob * window.astype(ms.float32)
        heat = []
        for c in range(num_cls):
            own = mask * (labels == first + c).astype(ms.float32)
            heat.append((blob * own[:, :, None, None]).max(axis=1))
        heat = ops.stack(heat, axis=1)

        yaw = -boxes[:, :, 6:7] - math.pi / 2
        log_dim = ops.log(ops.maximum(boxes[:, :, 3:6], 1e-2))
        length, width, height = ops.split(log_dim, 1, axis=-1)
        code = ops.concat(((fx - ix).expand_dims(-1), (fy - iy).expand_dims(-1), boxes[:, :, 2:3],
                           width, length, height, ops.sin(yaw), ops.cos(yaw), boxes[:, :, 7:9]), axis=-1)
        pos = (iy * self.width + ix).astype(ms.int32)
        pos = ops.clamp(pos, 0, self.height * self.width - 1)
        return heat, code, pos, mask

    def construct(self, preds, gt_boxes, gt_labels):
        hm_losses, reg_losses = [], []
        first = 0
        for names, pred in zip(TASKS, preds):
            heat, code, pos, mask = self.make_targets(gt_boxes, gt_labels, first, len(names))
            prob = ops.clamp(ops.sigmoid(pred["hm"]), 1e-4, 1 - 1e-4)
            is_pos = (heat == 1).astype(ms.float32)
            pos_loss = -ops.log(prob) * (1 - prob) ** 2 * is_pos
            neg_loss = -ops.log(1 - prob) * prob ** 2 * (1 - heat) ** 4 * (1 - is_pos)
            hm_losses.append((pos_loss.sum() + neg_loss.sum()) / ops.maximum(is_pos.sum(), 1.0))

            out = ops.concat([gather_at(pred[k], pos) for k in ("reg", "height", "dim", "rot", "vel")], axis=-1)
            diff = ops.abs(out - code) * mask.expand_dims(-1)
            diff = diff.sum(axis=(0, 1)) / (mask.sum() + 1e-4)
            reg_losses.append((diff * self.code_weight).sum())
            first += len(names)
        return ops.stack(hm_losses), ops.stack(reg_losses)


class PillarCenter(nn.Cell):
    def __init__(self):
        super().__init__()
        self.vfe = PillarFeatureNet(PC_RANGE, VOXEL)
        height, width = self.vfe.grid_y // STRIDE, self.vfe.grid_x // STRIDE
        self.backbone = Backbone(21)
        self.neck = AdaptiveNeck()
        self.head = CenterHead(54, height, width)
        self.decoder = BoxDecoder()
        self.nms = CircleSuppression()
        self.loss = CenterLoss(height, width)

    def construct(self, points, num_points, gt_boxes, gt_labels):
        canvas, occ = self.vfe(points, num_points)
        preds = self.head(self.neck(self.backbone(canvas, occ)))
        boxes, scores, labels = self.nms(*self.decoder(preds))
        loss_hm, loss_reg = self.loss(preds, gt_boxes, gt_labels)
        return boxes, scores, labels, box_corners(boxes), loss_hm, loss_reg


def make_inputs(seed=7, b=2, n=260, m=9):
    rng = np.random.RandomState(seed)
    low, high = np.array(PC_RANGE[:3]), np.array(PC_RANGE[3:])
    boxes, labels = np.zeros((b, m, 9)), rng.randint(0, 3, (b, m))
    boxes[..., :3] = low + rng.uniform(0.08, 0.92, (b, m, 3)) * (high - low)
    sizes = np.array([[8.5, 2.8, 3.1], [0.7, 0.8, 1.75], [1.8, 0.6, 1.6]])
    boxes[..., 3:6] = sizes[labels] * rng.uniform(0.8, 1.6, (b, m, 3))
    boxes[..., 6] = rng.uniform(-np.pi, np.pi, (b, m))
    boxes[..., 7:] = rng.randn(b, m, 2) * 2
    own = rng.randint(0, m, (b, n))
    xyz = np.take_along_axis(boxes[..., :3], own[..., None], 1) + rng.randn(b, n, 3) * [1.1, 1.0, 0.5]
    far = rng.uniform(-0.05, 1.05, (b, n, 3)) * (high - low) + low
    xyz = np.where(rng.rand(b, n, 1) < 0.45, far, xyz)
    points = np.concatenate([xyz, rng.gamma(2.0, 1.5, (b, n, 1)), rng.randint(0, 5, (b, n, 1)) * 0.1], -1)
    labels[0, 7:], labels[1, 8:] = -1, -1
    boxes[labels < 0] = 0.0
    num = np.array([n, n - 47])
    return points.astype(np.float32), num.astype(np.int64), boxes.astype(np.float32), labels.astype(np.int64)


def build():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    net = PillarCenter().set_train(False)
    return net, tuple(Tensor(a) for a in make_inputs())
