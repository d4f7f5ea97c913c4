"""Part segmentation of point clouds: edge convolution, set abstraction, vector attention, feature propagation."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def pc_normalize(pc):
    """Centre the cloud and scale it into the unit ball. pc: [B, N, 3]"""
    centroid = torch.mean(pc, dim=1, keepdim=True)
    pc = pc - centroid
    m = torch.max(torch.sqrt(torch.sum(pc ** 2, dim=-1)), dim=1)[0]
    return pc / m[:, None, None], m


def square_distance(src, dst):
    """src: [B, N, C], dst: [B, M, C] -> [B, N, M]"""
    dist = -2 * torch.matmul(src, dst.permute(0, 2, 1))
    dist += torch.sum(src ** 2, -1)[:, :, None]
    dist += torch.sum(dst ** 2, -1)[:, None, :]
    return torch.clamp(dist, min=0.0)


def index_points(points, idx):
    """points: [B, N, C], idx: [B, S] or [B, S, K] -> [B, S, C] or [B, S, K, C]"""
    B = points.shape[0]
    view_shape = [B] + [1] * (idx.dim() - 1)
    batch = torch.arange(B).view(view_shape).expand_as(idx)
    return points[batch, idx]


def farthest_point_sample(xyz, npoint):
    """The first point is the one farthest from the origin."""
    B, N, _ = xyz.shape
    rows = torch.arange(B)
    centroids = torch.zeros(B, npoint, dtype=torch.long)
    distance = torch.full((B, N), 1e10)
    farthest = torch.sum(xyz ** 2, -1).argmax(-1)
    for i in range(npoint):
        centroids[:, i] = farthest
        centroid = xyz[rows, farthest][:, None, :]
        dist = torch.sum((xyz - centroid) ** 2, -1)
        distance = torch.minimum(distance, dist)
        farthest = torch.max(distance, -1)[1]
    return centroids


def knn_point(k, xyz, new_xyz):
    """The k points of xyz nearest to each of new_xyz: distances and indices, both [B, S, k]"""
    return torch.topk(square_distance(new_xyz, xyz), k, dim=-1, largest=False, sorted=True)


def ball_query(radius, k, xyz, new_xyz):
    """As knn_point; what lies outside the ball is replaced by the nearest point."""
    dist, idx = knn_point(k, xyz, new_xyz)
    nearest = idx[:, :, :1].expand(-1, -1, k)
    return torch.where(dist > radius ** 2, nearest, idx)


def inverse_density(xyz, bandwidth):
    gauss = torch.exp(-square_distance(xyz, xyz) / (2.0 * bandwidth * bandwidth)) / (2.5 * bandwidth)
    density = gauss.mean(dim=-1)
    inverse = 1.0 / density
    return inverse / inverse.max(dim=-1, keepdim=True)[0]


def fourier(xyz, bands):
    """[B, N, 3] -> [B, N, 6 * bands]: all sines, then all cosines, the coordinate runs fastest"""
    freq = math.pi * 2.0 ** torch.arange(bands)
    angle = (xyz.unsqueeze(-2) * freq[:, None]).flatten(-2)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


class EdgeConv(nn.Module):
    """DGCNN's layer; the graph is that of the features, not of the coordinates."""

    def __init__(self, in_dim, out_dim, k):
        super().__init__()
        self.k = k
        self.conv1 = nn.Conv2d(2 * in_dim, out_dim, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_dim)
        self.conv2 = nn.Conv2d(out_dim, out_dim, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_dim)

    def forward(self, x):
        B, N, C = x.shape
        _, idx = knn_point(self.k, x, x)
        neighbors = index_points(x, idx)
        center = x.view(B, N, 1, C).expand(-1, -1, self.k, -1)
        edge = torch.cat([neighbors - center, center], dim=-1).permute(0, 3, 1, 2)
        edge = F.leaky_relu(self.bn1(self.conv1(edge)), negative_slope=0.1)
        edge = F.leaky_relu(self.bn2(self.conv2(edge)), negative_slope=0.1)
        return edge.max(dim=-1)[0].transpose(1, 2)


class SetAbstraction(nn.Module):
    """Sample, group, normalise each group geometrically (PointMLP), pool with the inverse density (PointConv)."""

    def __init__(self, npoint, radius, k, in_dim, out_dim, bandwidth):
        super().__init__()
        self.npoint, self.radius, self.k, self.bandwidth = npoint, radius, k, bandwidth
        self.alpha = nn.Parameter(torch.ones(in_dim + 3))
        self.beta = nn.Parameter(torch.zeros(in_dim + 3))
        self.fc1 = nn.Linear(2 * in_dim + 3, out_dim)
        self.norm1 = nn.LayerNorm(out_dim)
        self.fc2 = nn.Linear(out_dim, out_dim)
        self.norm2 = nn.LayerNorm(out_dim)
        self.merge = nn.Linear(2 * out_dim, out_dim)

    def group(self, xyz, feats, new_xyz, new_feats, idx):
        B, S, _ = new_xyz.shape
        grouped_xyz = index_points(xyz, idx) - new_xyz.unsqueeze(2)
        grouped = index_points(feats, idx) - new_feats.unsqueeze(2)
        grouped = torch.cat([grouped, grouped_xyz / self.radius], dim=-1)
        std = grouped.reshape(B, -1).std(dim=-1)[:, None, None, None]
        grouped = self.alpha * (grouped / (std + 1e-5)) + self.beta
        anchor = new_feats.view(B, S, 1, -1).repeat(1, 1, self.k, 1)
        return torch.cat([grouped, anchor], dim=-1)

    def forward(self, xyz, feats):
        fps_idx = farthest_point_sample(xyz, self.npoint)
        new_xyz = index_points(xyz, fps_idx)
        new_feats = index_points(feats, fps_idx)
        idx = ball_query(self.radius, self.k, xyz, new_xyz)
        grouped = self.group(xyz, feats, new_xyz, new_feats, idx)

        h = F.gelu(self.norm1(self.fc1(grouped)))
        h = h + F.gelu(self.norm2(self.fc2(h)))

        density = inverse_density(xyz, self.bandwidth).unsqueeze(-1)
        weight = index_points(density, idx)
        mean = (h * weight).sum(dim=2) / weight.sum(dim=2)
        peak = h.max(dim=2)[0]
        return new_xyz, self.merge(torch.cat([peak, mean], dim=-1))


class VectorAttention(nn.Module):
    """Point Transformer's layer: attention by subtraction, over the neighbours of each point."""

    def __init__(self, dim, d_model, k):
        super().__init__()
        self.k = k
        self.d_model = d_model
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, d_model)
        self.fc2 = nn.Linear(d_model, dim)
        self.delta1 = nn.Linear(3, d_model)
        self.delta2 = nn.Linear(d_model, d_model)
        self.gamma1 = nn.Linear(d_model, d_model)
        self.gamma2 = nn.Linear(d_model, d_model)
        self.w_qs = nn.Linear(d_model, d_model, bias=False)
        self.w_ks = nn.Linear(d_model, d_model, bias=False)
        self.w_vs = nn.Linear(d_model, d_model, bias=False)

    def forward(self, xyz, feats):
        pre = feats
        _, knn_idx = knn_point(self.k, xyz, xyz)
        knn_xyz = index_points(xyz, knn_idx)
        x = self.fc1(self.norm(feats))
        q, k, v = self.w_qs(x), index_points(self.w_ks(x), knn_idx), index_points(self.w_vs(x), knn_idx)
        pos_enc = self.delta2(torch.relu(self.delta1(xyz[:, :, None] - knn_xyz)))
        attn = self.gamma2(torch.relu(self.gamma1(q[:, :, None] - k + pos_enc)))
        attn = F.softmax(attn * 4.0 / math.sqrt(self.d_model), dim=-2)
        res = torch.einsum("bnkf,bnkf->bnf", attn, v + pos_enc)
        return self.fc2(res) + pre


class FeaturePropagation(nn.Module):
    """Features of few points are carried to many: three neighbours, weighted by the inverse squared distance."""

    def __init__(self, sparse_dim, dense_dim, out_dim):
        super().__init__()
        self.fc = nn.Linear(sparse_dim + dense_dim, out_dim)
        self.bn = nn.BatchNorm1d(out_dim)

    def forward(self, xyz1, xyz2, feats1, feats2):
        """xyz1: the many points, xyz2: the few."""
        B, N, _ = xyz1.shape
        dists, idx = square_distance(xyz1, xyz2).sort(dim=-1)
        dists, idx = dists[:, :, :3], idx[:, :, :3]
        recip = 1.0 / (dists + 1e-2)
        weight = recip / torch.sum(recip, dim=2, keepdim=True)
        spread = torch.sum(index_points(feats2, idx) * weight.unsqueeze(-1), dim=2)
        feats = self.fc(torch.cat([feats1, spread], dim=-1))
        feats = self.bn(feats.reshape(B * N, -1)).view(B, N, -1)
        return torch.relu(feats)


class PartNet(nn.Module):
    def __init__(self, parts=10, dim=32, bands=3):
        super().__init__()
        self.bands = bands
        self.stem = nn.Linear(3 + 3 + 1 + 6 * bands, dim)
        self.edge = EdgeConv(dim, dim, k=8)
        self.sa1 = SetAbstraction(24, 0.55, 10, dim, 48, bandwidth=0.2)
        self.attn1 = VectorAttention(48, 32, k=6)
        self.sa2 = SetAbstraction(8, 0.9, 6, 48, 64, bandwidth=0.4)
        self.fp2 = FeaturePropagation(64, 48, 48)
        self.fp1 = FeaturePropagation(48, dim, dim)
        self.context = nn.Linear(2 * 64 + 1, dim)
        self.head1 = nn.Linear(3 * dim, dim)
        self.head2 = nn.Linear(dim, parts)

    def forward(self, points):
        """points: [B, N, 6], coordinates and normals"""
        xyz, normals = points[..., :3], points[..., 3:]
        xyz, size = pc_normalize(xyz)
        normals = F.normalize(normals, dim=-1)
        height = xyz[..., 2:] - xyz[..., 2:].min(dim=1, keepdim=True)[0]

        l0 = self.stem(torch.cat([xyz, normals, height, fourier(xyz, self.bands)], dim=-1))
        e0 = l0 + self.edge(l0)
        xyz1, l1 = self.sa1(xyz, e0)
        l1 = self.attn1(xyz1, l1)
        xyz2, l2 = self.sa2(xyz1, l1)

        l1 = self.fp2(xyz1, xyz2, l1, l2)
        u0 = self.fp1(xyz, xyz1, e0, l1)

        pooled = torch.cat([l2.max(dim=1)[0], l2.mean(dim=1), torch.log(size)[:, None]], dim=-1)
        context = torch.tanh(self.context(pooled))
        context = context.unsqueeze(1).expand(-1, xyz.shape[1], -1)
        out = self.head2(F.leaky_relu(self.head1(torch.cat([u0, e0, context], dim=-1)), 0.2))
        return F.log_softmax(out, dim=-1)


def build():
    torch.manual_seed(5)
    net = PartNet()
    for m in net.modules():
        if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.normal_(m.running_mean, std=0.3)
            nn.init.uniform_(m.running_var, 0.5, 1.5)
        if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm)):
            nn.init.uniform_(m.weight, 0.6, 1.4)
            nn.init.normal_(m.bias, std=0.1)
        if isinstance(m, (nn.Linear, nn.Conv2d)):
            nn.init.normal_(m.weight, std=1.2 / math.sqrt(m.weight[0].numel()))
        if isinstance(m, SetAbstraction):
            nn.init.uniform_(m.alpha, 0.6, 1.4)
            nn.init.normal_(m.beta, std=0.1)
    direction = F.normalize(torch.randn(2, 72, 3), dim=-1)
    xyz = direction * (1.0 + 0.3 * torch.randn(2, 72, 1)) * torch.tensor([1.0, 0.7, 1.6])
    xyz = xyz * torch.tensor([1.7, 0.8])[:, None, None] + torch.tensor([0.6, -0.4, 0.9])
    return net.eval(), (torch.cat([xyz, direction + 0.1 * torch.randn(2, 72, 3)], dim=-1),)
