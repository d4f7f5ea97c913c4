"""Part segmentation of point clouds in MindSpore."""

import math

import mindspore as ms
import mindspore.nn as nn
import mindspore.ops as ops
import numpy as np


def pc_normalize(pc):
    """Centre the cloud and scale it into the unit ball. pc: [B, N, 3]"""
    centroid = ops.mean(pc, 1, True)
    pc = pc - centroid
    m = ops.sqrt((pc ** 2).sum(-1)).max(axis=1)
    return pc / m[:, None, None], m


def square_distance(src, dst):
    """src: [B, N, C], dst: [B, M, C] -> [B, N, M]"""
    dist = -2 * ops.matmul(src, dst.swapaxes(1, 2))
    dist = dist + (src ** 2).sum(-1).expand_dims(2)
    dist = dist + (dst ** 2).sum(-1).expand_dims(1)
    return ops.clamp(dist, min=0.0)


def index_points(points, idx):
    """points: [B, N, C], idx: [B, S] or [B, S, K] -> [B, S, C] or [B, S, K, C]"""
    B, _, C = points.shape
    flat = idx.reshape(B, -1, 1)
    flat = ops.broadcast_to(flat, (B, flat.shape[1], C))
    return ops.gather_elements(points, 1, flat).reshape(tuple(idx.shape) + (C,))


def farthest_point_sample(xyz, npoint):
    """The first point is the one farthest from the origin."""
    B, N, _ = xyz.shape
    distance = ops.full((B, N), 1e10, dtype=ms.float32)
    farthest = (xyz ** 2).sum(-1).argmax(axis=-1)
    centroids = []
    for _ in range(npoint):
        centroids.append(farthest)
        centroid = index_points(xyz, farthest.expand_dims(1))
        dist = ((xyz - centroid) ** 2).sum(-1)
        distance = ops.minimum(distance, dist)
        farthest = distance.argmax(axis=-1)
    return ops.stack(centroids, axis=1)


def knn_point(k, xyz, new_xyz):
    """The k points of xyz nearest to each of new_xyz: distances and indices, both [B, S, k]"""
    return ops.topk(square_distance(new_xyz, xyz), k, dim=-1, largest=False, sorted=True)


def ball_query(radius, k, xyz, new_xyz):
    """As knn_point; what lies outside the ball is replaced by the nearest point."""
    dist, idx = knn_point(k, xyz, new_xyz)
    nearest = ops.broadcast_to(idx[:, :, :1], idx.shape)
    return ops.where(dist > radius ** 2, nearest, idx)


def inverse_density(xyz, bandwidth):
    gauss = ops.exp(-square_distance(xyz, xyz) / (2.0 * bandwidth * bandwidth)) / (2.5 * bandwidth)
    density = gauss.mean(axis=-1)
    inverse = 1.0 / density
    return inverse / inverse.max(axis=-1, keepdims=True)


def fourier(xyz, bands):
    """[B, N, 3] -> [B, N, 6 * bands]: all sines, then all cosines, the coordinate runs fastest"""
    B, N, _ = xyz.shape
    freq = ms.Tensor((math.pi * 2.0 ** np.arange(bands)).astype(np.float32))
    angle = (xyz.expand_dims(2) * freq.reshape(-1, 1)).reshape(B, N, -1)
    return ops.concat([ops.sin(angle), ops.cos(angle)], axis=-1)


class EdgeConv(nn.Cell):
    """DGCNN's layer; the graph is that of the features, not of the coordinates."""

    def __init__(self, in_dim, out_dim, k):
        super().__init__()
        self.k = k
        self.conv1 = nn.Conv2d(2 * in_dim, out_dim, 1, has_bias=False, pad_mode="pad")
        self.bn1 = nn.BatchNorm2d(out_dim, eps=1e-5)
        self.conv2 = nn.Conv2d(out_dim, out_dim, 1, has_bias=False, pad_mode="pad")
        self.bn2 = nn.BatchNorm2d(out_dim, eps=1e-5)

    def construct(self, x):
        _, idx = knn_point(self.k, x, x)
        neighbors = index_points(x, idx)
        center = ops.broadcast_to(x.expand_dims(2), neighbors.shape)
        edge = ops.concat([neighbors - center, center], axis=-1).transpose(0, 3, 1, 2)
        edge = ops.leaky_relu(self.bn1(self.conv1(edge)), alpha=0.1)
        edge = ops.leaky_relu(self.bn2(self.conv2(edge)), alpha=0.1)
        return edge.max(axis=-1).swapaxes(1, 2)


class SetAbstraction(nn.Cell):
    """Sample, group, normalise each group geometrically (PointMLP), pool with the inverse density (PointConv)."""

    def __init__(self, npoint, radius, k, in_dim, out_dim, bandwidth):
        super().__init__()
        self.npoint, self.radius, self.k, self.bandwidth = npoint, radius, k, bandwidth
        self.alpha = ms.Parameter(ops.ones((in_dim + 3,), ms.float32))
        self.beta = ms.Parameter(ops.zeros((in_dim + 3,), ms.float32))
        self.fc1 = nn.Dense(2 * in_dim + 3, out_dim)
        self.norm1 = nn.LayerNorm((out_dim,), epsilon=1e-5)
        self.fc2 = nn.Dense(out_dim, out_dim)
        self.norm2 = nn.LayerNorm((out_dim,), epsilon=1e-5)
        self.merge = nn.Dense(2 * out_dim, out_dim)

    def group(self, xyz, feats, new_xyz, new_feats, idx):
        B, S, _ = new_xyz.shape
        grouped_xyz = index_points(xyz, idx) - new_xyz.expand_dims(2)
        grouped = index_points(feats, idx) - new_feats.expand_dims(2)
        grouped = ops.concat([grouped, grouped_xyz / self.radius], axis=-1)
        std = ops.std(grouped.reshape(B, -1), axis=-1, ddof=1).reshape(B, 1, 1, 1)
        grouped = self.alpha * (grouped / (std + 1e-5)) + self.beta
        anchor = ops.tile(new_feats.expand_dims(2), (1, 1, self.k, 1))
        return ops.concat([grouped, anchor], axis=-1)

    def construct(self, xyz, feats):
        fps_idx = farthest_point_sample(xyz, self.npoint)
        new_xyz = index_points(xyz, fps_idx)
        new_feats = index_points(feats, fps_idx)
        idx = ball_query(self.radius, self.k, xyz, new_xyz)
        grouped = self.group(xyz, feats, new_xyz, new_feats, idx)

        h = ops.gelu(self.norm1(self.fc1(grouped)), approximate="none")
        h = h + ops.gelu(self.norm2(self.fc2(h)), approximate="none")

        density = inverse_density(xyz, self.bandwidth).expand_dims(-1)
        weight = index_points(density, idx)
        mean = (h * weight).sum(axis=2) / weight.sum(axis=2)
        peak = h.max(axis=2)
        return new_xyz, self.merge(ops.concat([peak, mean], axis=-1))


class VectorAttention(nn.Cell):
    """Point Transformer's layer: attention by subtraction, over the neighbours of each point."""

    def __init__(self, dim, d_model, k):
        super().__init__()
        self.k = k
        self.d_model = d_model
        self.norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.fc1 = nn.Dense(dim, d_model)
        self.fc2 = nn.Dense(d_model, dim)
        self.delta1 = nn.Dense(3, d_model)
        self.delta2 = nn.Dense(d_model, d_model)
        self.gamma1 = nn.Dense(d_model, d_model)
        self.gamma2 = nn.Dense(d_model, d_model)
        self.w_qs = nn.Dense(d_model, d_model, has_bias=False)
        self.w_ks = nn.Dense(d_model, d_model, has_bias=False)
        self.w_vs = nn.Dense(d_model, d_model, has_bias=False)

    def construct(self, xyz, feats):
        pre = feats
        _, knn_idx = knn_point(self.k, xyz, xyz)
        knn_xyz = index_points(xyz, knn_idx)
        x = self.fc1(self.norm(feats))
        q = self.w_qs(x)
        k = index_points(self.w_ks(x), knn_idx)
        v = index_points(self.w_vs(x), knn_idx)
        pos_enc = self.delta2(ops.relu(self.delta1(xyz.expand_dims(2) - knn_xyz)))
        attn = self.gamma2(ops.relu(self.gamma1(q.expand_dims(2) - k + pos_enc)))
        attn = ops.softmax(attn * 4.0 / math.sqrt(self.d_model), axis=-2)
        res = (attn * (v + pos_enc)).sum(axis=-2)
        return self.fc2(res) + pre


class FeaturePropagation(nn.Cell):
    """Features of few points are carried to many: three neighbours, weighted by the inverse squared distance."""

    def __init__(self, sparse_dim, dense_dim, out_dim):
        super().__init__()
        self.fc = nn.Dense(sparse_dim + dense_dim, out_dim)
        self.bn = nn.BatchNorm1d(out_dim, eps=1e-5)

    def construct(self, xyz1, xyz2, feats1, feats2):
        """xyz1: the many points, xyz2: the few."""
        B, N, _ = xyz1.shape
        dists, idx = ops.sort(square_distance(xyz1, xyz2), axis=-1)
        dists, idx = dists[:, :, :3], idx[:, :, :3]
        recip = 1.0 / (dists + 1e-2)
        weight = recip / recip.sum(axis=2, keepdims=True)
        spread = (index_points(feats2, idx) * weight.expand_dims(-1)).sum(axis=2)
        feats = self.fc(ops.concat([feats1, spread], axis=-1))
        feats = self.bn(feats.reshape(B * N, -1)).reshape(B, N, -1)
        return ops.relu(feats)


class PartNet(nn.Cell):
    def __init__(self, parts=10, dim=32, bands=3):
        super().__init__()
        self.bands = bands
        self.stem = nn.Dense(3 + 3 + 1 + 6 * bands, dim)
        self.edge = EdgeConv(dim, dim, k=8)
        self.sa1 = SetAbstraction(24, 0.55, 10, dim, 48, bandwidth=0.2)
        self.attn1 = VectorAttention(48, 32, k=6)
        self.sa2 = SetAbstraction(8, 0.9, 6, 48, 64, bandwidth=0.4)
        self.fp2 = FeaturePropagation(64, 48, 48)
        self.fp1 = FeaturePropagation(48, dim, dim)
        self.context = nn.Dense(2 * 64 + 1, dim)
        self.head1 = nn.Dense(3 * dim, dim)
        self.head2 = nn.Dense(dim, parts)

    def construct(self, points):
        """points: [B, N, 6], coordinates and normals"""
        xyz, normals = ops.split(points, 3, axis=-1)
        xyz, size = pc_normalize(xyz)
        normals = normals / ops.clamp(ops.sqrt((normals ** 2).sum(-1, keepdims=True)), min=1e-12)
        height = xyz[:, :, 2:] - xyz[:, :, 2:].min(axis=1, keepdims=True)

        l0 = self.stem(ops.concat([xyz, normals, height, fourier(xyz, self.bands)], axis=-1))
        e0 = l0 + self.edge(l0)
        xyz1, l1 = self.sa1(xyz, e0)
        l1 = self.attn1(xyz1, l1)
        xyz2, l2 = self.sa2(xyz1, l1)

        l1 = self.fp2(xyz1, xyz2, l1, l2)
        u0 = self.fp1(xyz, xyz1, e0, l1)

        pooled = ops.concat([l2.max(axis=1), l2.mean(axis=1), ops.log(size).expand_dims(1)], axis=-1)
        context = ops.tanh(self.context(pooled))
        context = ops.tile(context.expand_dims(1), (1, xyz.shape[1], 1))
        out = self.head2(ops.leaky_relu(self.head1(ops.concat([u0, e0, context], axis=-1)), 0.2))
        return ops.log_softmax(out, axis=-1)


def build():
    return PartNet()
