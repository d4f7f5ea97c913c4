"""DETR3D in MindSpore: boxes in space from several cameras. The weights come from the PyTorch net."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

POINT_CLOUD = np.array([-20.0, -24.0, -3.0, 20.0, 24.0, 5.0], np.float32)
POST_CENTER = np.array([-18.0, -21.0, -2.6, 18.0, 21.0, 4.2], np.float32)
MEAN = np.array([103.53, 116.28, 123.675], np.float32)
STD = np.array([57.375, 57.12, 58.395], np.float32)


def conv(cin, cout, kernel, stride=1, bias=False):
    return nn.Conv2d(cin, cout, kernel, stride, pad_mode="pad", padding=kernel // 2, has_bias=bias)


def batch_norm(channels):
    return nn.BatchNorm2d(channels, eps=1e-3)


def logit(x, eps=1e-5):
    """The inverse of the sigmoid, kept finite at both ends."""
    x = ops.clamp(x, 0.0, 1.0)
    upper = ops.clamp(x, min=eps)
    lower = ops.clamp(1.0 - x, min=eps)
    return ops.log(upper / lower)


def denormalize(points):
    low = Tensor(POINT_CLOUD[:3])
    span = Tensor(POINT_CLOUD[3:] - POINT_CLOUD[:3])
    return points * span + low


def pos2posemb3d(pos, num_feats, temperature=20.0):
    """Sine embedding of normalised points, in the order y, x, z."""
    index = np.arange(num_feats)
    dim_t = Tensor((temperature ** (2.0 * (index // 2) / num_feats)).astype(np.float32))
    pos = pos * (2.0 * math.pi)

    def embed(coordinate):
        angle = ops.expand_dims(coordinate, -1) / dim_t
        pair = ops.stack((ops.sin(angle[..., 0::2]), ops.cos(angle[..., 1::2])), axis=-1)
        return pair.reshape(pair.shape[:-2] + (num_feats,))

    x, y, z = pos[..., 0], pos[..., 1], pos[..., 2]
    return ops.cat((embed(y), embed(x), embed(z)), axis=-1)


class ResidualUnit(nn.Cell):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = conv(cin, cout, 3, stride)
        self.bn1 = batch_norm(cout)
        self.conv2 = conv(cout, cout, 3)
        self.bn2 = batch_norm(cout)
        self.shortcut = None
        if stride != 1 or cin != cout:
            self.shortcut = nn.SequentialCell(conv(cin, cout, 1, stride), batch_norm(cout))

    def construct(self, x):
        residual = x
        x = ops.relu(self.bn1(self.conv1(x)))
        x = self.bn2(self.conv2(x))
        if self.shortcut is not None:
            residual = self.shortcut(residual)
        return ops.relu(x + residual)


class Backbone(nn.Cell):
    def __init__(self, widths):
        super().__init__()
        self.stem_conv = conv(3, widths[0], 7, 2)
        self.stem_bn = batch_norm(widths[0])
        self.pool = nn.MaxPool2d(3, 2, pad_mode="pad", padding=1)
        sources = (widths[0],) + tuple(widths[:-1])
        self.units = nn.CellList(
            [ResidualUnit(a, b, 1 if i == 0 else 2) for i, (a, b) in enumerate(zip(sources, widths))]
        )

    def construct(self, x):
        x = self.pool(ops.relu(self.stem_bn(self.stem_conv(x))))
        outs = ()
        for unit in self.units:
            x = unit(x)
            outs += (x,)
        return outs


class FeaturePyramid(nn.Cell):
    def __init__(self, widths, dim):
        super().__init__()
        self.lateral = nn.CellList([conv(width, dim, 1, bias=True) for width in widths])
        self.smooth = nn.CellList([conv(dim, dim, 3, bias=True) for _ in widths])
        self.extra = conv(dim, dim, 3, 2, bias=True)

    def construct(self, features):
        below = None
        merged = []
        for i in reversed(range(len(features))):
            level = self.lateral[i](features[i])
            if below is not None:
                level = level + ops.interpolate(below, size=level.shape[2:], mode="nearest")
            below = level
            merged.insert(0, level)
        outs = [self.smooth[i](level) for i, level in enumerate(merged)]
        outs.append(self.extra(ops.relu(outs[-1])))
        return outs


class DistanceSelfAttention(nn.Cell):
    """Attention between the queries, damped by how far apart they are seen from above."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.q = nn.Dense(dim, dim)
        self.k = nn.Dense(dim, dim)
        self.v = nn.Dense(dim, dim)
        self.tau = nn.Dense(dim, num_heads)
        self.proj = nn.Dense(dim, dim)

    def to_heads(self, x):
        b, n, _ = x.shape
        return x.reshape(b, n, self.num_heads, self.head_dim).transpose(0, 2, 1, 3)

    def construct(self, query, query_pos, reference):
        b, n, c = query.shape
        with_pos = query + query_pos
        q = self.to_heads(self.q(with_pos))
        k = self.to_heads(self.k(with_pos))
        v = self.to_heads(self.v(query))
        xy = denormalize(reference)[..., :2]
        gap = ops.expand_dims(xy, 2) - ops.expand_dims(xy, 1)
        dist = ops.sqrt(ops.square(gap).sum(-1))
        tau = mint.nn.functional.softplus(self.tau(query)).swapaxes(1, 2)
        attn = ops.matmul(q, k.swapaxes(-1, -2)) * self.head_dim**-0.5
        attn = attn - 0.2 * ops.expand_dims(dist, 1) * ops.expand_dims(tau, -1)
        attn = ops.softmax(attn, axis=-1)
        x = ops.matmul(attn, v).transpose(0, 2, 1, 3).reshape(b, n, c)
        return self.proj(x)


class FeatureSampler(nn.Cell):
    """The cross-attention of DETR3D with a few learnt points around each query."""

    def __init__(self, dim, num_cams, num_levels, num_points, num_groups, radius=3.0):
        super().__init__()
        self.num_cams = num_cams
        self.num_levels = num_levels
        self.num_points = num_points
        self.num_groups = num_groups
        self.radius = radius
        self.offsets = nn.Dense(dim, num_points * 3)
        self.gates = nn.Dense(dim, num_groups * num_cams * num_points * num_levels)
        self.proj = nn.Dense(dim, dim)
        self.pos_encoder = nn.SequentialCell(
            nn.Dense(dim * 3 // 2, dim), nn.LayerNorm((dim,), epsilon=1e-5), nn.ReLU(), nn.Dense(dim, dim)
        )

    def project(self, points, lidar2img, img_sizes, pad_shape):
        """Metres to grid_sample's coordinates and the mask of the points that lie in the picture."""
        b, q, p, _ = points.shape
        n = lidar2img.shape[1]
        ones = ops.ones(points.shape[:-1] + (1,), ms.float32)
        homo = ops.cat((points, ones), axis=-1).reshape(b, 1, q * p, 4)
        cam = ops.matmul(homo, lidar2img.swapaxes(-1, -2))
        z = cam[..., 2]
        front = z > 0.5
        z = ops.clamp(z, min=0.5)
        u = cam[..., 0] / z
        v = cam[..., 1] / z
        valid_h = img_sizes[..., 0:1].astype(ms.float32)
        valid_w = img_sizes[..., 1:2].astype(ms.float32)
        inside = ops.logical_and(ops.logical_and(u > 0, u < valid_w), ops.logical_and(v > 0, v < valid_h))
        mask = ops.logical_and(front, inside)
        grid = ops.stack((u / pad_shape[1], v / pad_shape[0]), axis=-1) * 2.0 - 1.0
        return grid.reshape(b, n, q, p, 2), mask.reshape(b, n, q, p)

    def construct(self, query, query_pos, features, reference, lidar2img, img_sizes, pad_shape):
        b, q, c = query.shape
        n, p, g = self.num_cams, self.num_points, self.num_groups
        with_pos = query + query_pos
        shift = ops.tanh(self.offsets(with_pos)) * self.radius
        points = ops.expand_dims(denormalize(reference), 2) + shift.reshape(b, q, p, 3)
        grid, mask = self.project(points, lidar2img, img_sizes, pad_shape)
        grid = grid.reshape(b * n, q, p, 2)

        gates = ops.sigmoid(self.gates(with_pos)).reshape(b, q, g, n, p, self.num_levels)
        seen = mask.astype(ms.float32).transpose(0, 2, 1, 3)
        gates = gates * seen.reshape(b, q, 1, n, p, 1)

        out = 0.0
        for i, feature in enumerate(features):
            values = ops.grid_sample(
                feature.reshape((b * n,) + feature.shape[2:]), grid, "bilinear", padding_mode="zeros", align_corners=False
            )
            values = values.reshape(b, n, g, c // g, q, p).transpose(0, 4, 2, 3, 1, 5)
            weight = ops.expand_dims(gates[..., i], 3)
            out = out + (values * weight).sum((-2, -1))
        hits = ops.clamp(seen.sum((2, 3)), min=1.0)
        out = out.reshape(b, q, c) / ops.expand_dims(hits, -1)
        pos = self.pos_encoder(pos2posemb3d(reference, c // 2))
        return query + self.proj(out) + pos


class FeedForward(nn.Cell):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1 = nn.Dense(dim, hidden)
        self.fc2 = nn.Dense(hidden, dim)

    def construct(self, x):
        return x + self.fc2(ops.relu(self.fc1(x)))


class DecoderLayer(nn.Cell):
    def __init__(self, dim, num_heads, num_cams, num_levels, num_points, num_groups):
        super().__init__()
        self.self_attn = DistanceSelfAttention(dim, num_heads)
        self.norm1 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.sampler = FeatureSampler(dim, num_cams, num_levels, num_points, num_groups)
        self.norm2 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.ffn = FeedForward(dim, dim * 2)
        self.norm3 = nn.LayerNorm((dim,), epsilon=1e-5)

    def construct(self, x, pos, features, reference, *cameras):
        x = self.norm1(x + self.self_attn(x, pos, reference))
        x = self.norm2(self.sampler(x, pos, features, reference, *cameras))
        return self.norm3(self.ffn(x))


class BoxHead(nn.Cell):
    """The branches of all layers, the refinement of the points and the choice of the final boxes."""

    def __init__(self, dim, depth, num_classes, max_num):
        super().__init__()
        self.num_classes = num_classes
        self.max_num = max_num
        self.cls = nn.CellList([
            nn.SequentialCell(nn.Dense(dim, dim), nn.LayerNorm((dim,), epsilon=1e-5), nn.ReLU(), nn.Dense(dim, num_classes))
            for _ in range(depth)
        ])
        self.reg = nn.CellList(
            [nn.SequentialCell(nn.Dense(dim, dim), nn.ReLU(), nn.Dense(dim, 10)) for _ in range(depth)]
        )

    def refine(self, i, x, reference):
        raw = self.reg[i](x)
        step = ops.cat((raw[..., :2], raw[..., 4:5]), axis=-1)
        reference = ops.sigmoid(step + logit(reference))
        xyz = denormalize(reference)
        boxes = ops.cat((xyz[..., :2], raw[..., 2:4], xyz[..., 2:3], raw[..., 5:]), axis=-1)
        return self.cls[i](x), boxes, reference

    def select(self, logits, boxes):
        b = logits.shape[0]
        scores, index = ops.topk(ops.sigmoid(logits).reshape(b, -1), self.max_num, dim=1)
        index = index.astype(ms.int64)
        labels = index % self.num_classes
        which = index // self.num_classes
        which = ops.broadcast_to(ops.expand_dims(which, -1), (b, self.max_num, boxes.shape[-1]))
        cx, cy, w, l, cz, h, sine, cosine, vx, vy = ops.gather_elements(boxes, 1, which).unbind(-1)
        w, l, h = ops.exp(w), ops.exp(l), ops.exp(h)
        bottom = cz - h * 0.5
        yaw = ops.atan2(sine, cosine)
        centre = ops.stack((cx, cy, bottom), axis=-1)
        above = (centre >= Tensor(POST_CENTER[:3])).all(-1)
        under = (centre <= Tensor(POST_CENTER[3:])).all(-1)
        keep = ops.logical_and(above, under)
        found = ops.stack((cx, cy, bottom, w, l, h, yaw, vx, vy), axis=-1)
        return found, scores * keep.astype(ms.float32), labels


class Detr3D(nn.Cell):
    def __init__(
        self, num_classes=6, num_queries=24, dim=32, num_cams=4, depth=3, num_heads=4, num_points=3, num_groups=2, max_num=14
    ):
        super().__init__()
        widths = (12, 16, 24)
        self.backbone = Backbone(widths)
        self.fpn = FeaturePyramid(widths, dim)
        self.cams_embeds = Parameter(Tensor(np.zeros((num_cams, dim), np.float32)))
        self.level_embeds = Parameter(Tensor(np.zeros((len(widths) + 1, dim), np.float32)))
        self.query_embedding = nn.Embedding(num_queries, dim * 2)
        self.reference_points = nn.Dense(dim, 3)
        self.decoder = nn.CellList(
            [DecoderLayer(dim, num_heads, num_cams, len(widths) + 1, num_points, num_groups) for _ in range(depth)]
        )
        self.head = BoxHead(dim, depth, num_classes, max_num)

    def image_features(self, images, img_sizes):
        b, n, c, h, w = images.shape
        images = (images - Tensor(MEAN.reshape(3, 1, 1))) / Tensor(STD.reshape(3, 1, 1))
        row_valid = Tensor(np.arange(h)) < ops.expand_dims(img_sizes[..., 0], -1)
        col_valid = Tensor(np.arange(w)) < ops.expand_dims(img_sizes[..., 1], -1)
        valid = ops.logical_and(ops.expand_dims(row_valid, -1), ops.expand_dims(col_valid, -2))
        images = images * ops.expand_dims(valid, 2).astype(ms.float32)
        pyramid = self.fpn(self.backbone(images.reshape(b * n, c, h, w)))
        features = []
        for i, level in enumerate(pyramid):
            level = level.reshape((b, n) + level.shape[1:])
            level = level + self.cams_embeds[None, :, :, None, None]
            level = level + self.level_embeds[i][None, None, :, None, None]
            features.append(level)
        return features

    def construct(self, images, lidar2img, img_sizes):
        b = images.shape[0]
        pad_shape = images.shape[-2:]
        features = self.image_features(images, img_sizes)
        table = self.query_embedding.embedding_table
        pos, x = ops.split(table, table.shape[-1] // 2, axis=-1)
        pos = ops.tile(ops.expand_dims(pos, 0), (b, 1, 1))
        x = ops.tile(ops.expand_dims(x, 0), (b, 1, 1))
        reference = ops.sigmoid(self.reference_points(pos))
        logits, boxes = [], []
        for i, layer in enumerate(self.decoder):
            x = layer(x, pos, features, reference, lidar2img, img_sizes, pad_shape)
            scores, box, reference = self.head.refine(i, x, reference)
            logits.append(scores)
            boxes.append(box)
        found, best, labels = self.head.select(logits[-1], boxes[-1])
        return ops.stack(logits), ops.stack(boxes), found, best, labels


def sample_inputs(batch=2, cameras=4, height=52, width=84):
    """The same pictures and cameras as the PyTorch net's."""
    rng = np.random.RandomState(7)
    rows, columns = np.arange(height).reshape(-1, 1), np.arange(width).reshape(1, -1)
    waves, phase = rng.uniform(0.03, 0.25, (2, batch, cameras, 3, 1, 1)), rng.uniform(0, 6, (batch, cameras, 3, 1, 1))
    images = 120 + 90 * np.sin(waves[0] * rows + phase) * np.cos(waves[1] * columns - phase)
    images = (images + rng.uniform(-20, 20, images.shape)).astype(np.float32)
    sizes = np.array([[[52, 84], [44, 84], [52, 72], [48, 76]], [[46, 80], [52, 84], [40, 84], [52, 66]]], np.int64)
    matrices = np.zeros((batch, cameras, 4, 4), np.float32)
    for b in range(batch):
        for n in range(cameras):
            yaw = 2 * math.pi * n / cameras + 0.15 * b + rng.uniform(-0.1, 0.1)
            forward, right = (math.cos(yaw), math.sin(yaw)), (math.sin(yaw), -math.cos(yaw))
            turn = np.array([[right[0], right[1], 0], [0, 0, -1], [forward[0], forward[1], 0]])
            move = -turn @ np.array([0.8 * forward[0], 0.8 * forward[1], 1.6])
            focal = rng.uniform(34, 44)
            inner = np.array([[focal, 0, sizes[b, n, 1] / 2], [0, focal, sizes[b, n, 0] / 2], [0, 0, 1]])
            matrices[b, n, :3] = inner @ np.concatenate((turn, move[:, None]), axis=1)
            matrices[b, n, 3, 3] = 1
    return images, matrices, sizes


def build():
    net = Detr3D()
    net.set_train(False)
    return net, tuple(Tensor(x) for x in sample_inputs())
