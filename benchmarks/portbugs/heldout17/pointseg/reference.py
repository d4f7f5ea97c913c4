"""PointSeg: semantic and instance segmentation of point clouds with vector attention.

Encoder and decoder follow Point Transformer (Zhao et al., ICCV 2021) with the binned relative position bias of
Stratified Transformer; clouds are padded to one length and come with their number of points. The offset head moves
every point towards the centre of its instance, and a small voting stage (densest points, suppression, mean shift) turns
the moved points into instances.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


# ---------------------------------------------------------------------------------------------------------------------
# point operations
# ---------------------------------------------------------------------------------------------------------------------

def square_distance(src, dst):
    """(B, M, 3), (B, N, 3) -> (B, M, N)."""
    return ((src.unsqueeze(2) - dst.unsqueeze(1)) ** 2).sum(dim=-1)


def index_points(points, idx):
    """(B, N, C), (B, ...) -> (B, ..., C)."""
    B = points.shape[0]
    batch = torch.arange(B, device=points.device).view([B] + [1] * (idx.dim() - 1)).expand_as(idx)
    return points[batch, idx]


def length_mask(lengths, n):
    return torch.arange(n, device=lengths.device)[None, :] < lengths[:, None]


def masked_mean(x, mask):
    m = mask.unsqueeze(-1).to(x.dtype)
    return (x * m).sum(dim=1) / m.sum(dim=1).clamp(min=1.0)


@torch.no_grad()
def farthest_point_sample(xyz, mask, npoint):
    """Starts with the point farthest from the centroid; padding is never taken."""
    B, N, _ = xyz.shape
    centroid = masked_mean(xyz, mask).unsqueeze(1)
    farthest = ((xyz - centroid) ** 2).sum(-1).masked_fill(~mask, -1.0).argmax(dim=-1)
    distance = torch.full((B, N), 1e10, device=xyz.device).masked_fill(~mask, -1.0)
    rows = torch.arange(B, device=xyz.device)
    idx = torch.zeros(B, npoint, dtype=torch.long, device=xyz.device)
    for i in range(npoint):
        idx[:, i] = farthest
        current = xyz[rows, farthest].unsqueeze(1)
        distance = torch.minimum(distance, ((xyz - current) ** 2).sum(-1))
        farthest = distance.argmax(dim=-1)
    return idx


@torch.no_grad()
def knn_query(k, query, xyz, mask):
    """The k nearest points that are no padding: indices (B, M, k), distances (B, M, k), ascending."""
    dist = square_distance(query, xyz).masked_fill(~mask.unsqueeze(1), float("inf"))
    dist, idx = torch.topk(dist, k, dim=-1, largest=False, sorted=True)
    return idx, dist.sqrt()


class PointNorm(nn.Module):
    """Batch normalisation of the last axis of (B, N, C) or (B, N, K, C)."""

    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm1d(channels, eps=1e-3, momentum=0.02)

    def forward(self, x):
        return self.norm(x.reshape(-1, x.shape[-1])).view_as(x)


# ---------------------------------------------------------------------------------------------------------------------
# stem
# ---------------------------------------------------------------------------------------------------------------------

class PointEmbed(nn.Module):
    """Fourier features of the place, the spread of the neighbourhood, and the point's own features."""

    def __init__(self, in_channels, out_channels, nsample=8, num_freqs=3):
        super().__init__()
        self.nsample = nsample
        self.register_buffer("freqs", 2.0 ** torch.arange(num_freqs) * math.pi / 2, persistent=False)
        self.proj = nn.Linear(in_channels + 6 * num_freqs + 7, out_channels)
        self.norm = PointNorm(out_channels)
        self.act = nn.ReLU(inplace=True)

    def fourier(self, xyz):
        angle = xyz.unsqueeze(-1) * self.freqs                                    # (B, N, 3, F)
        return torch.cat([angle.sin(), angle.cos()], dim=-1).flatten(-2)          # (B, N, 6F)

    def forward(self, xyz, feat, mask):
        centred = (xyz - masked_mean(xyz, mask).unsqueeze(1)) * mask.unsqueeze(-1)
        idx, dist = knn_query(self.nsample + 1, xyz, xyz, mask)
        idx, dist = idx[..., 1:], dist[..., 1:]                                   # not the point itself
        rel = index_points(xyz, idx) - xyz.unsqueeze(2)
        spread = torch.cat([rel.mean(dim=2), rel.std(dim=2), dist.mean(dim=-1, keepdim=True)], dim=-1)
        x = torch.cat([feat, self.fourier(centred), spread], dim=-1)
        return self.act(self.norm(self.proj(x)))


# ---------------------------------------------------------------------------------------------------------------------
# vector attention
# ---------------------------------------------------------------------------------------------------------------------

class VectorAttention(nn.Module):
    def __init__(self, channels, share_planes=4, quant=0.1, bins=8):
        super().__init__()
        self.channels = channels
        self.share_planes = share_planes
        self.quant = quant
        self.bins = bins
        mid = channels // share_planes
        self.pos_table = nn.Parameter(torch.zeros(3, bins, mid))
        self.linear_q = nn.Linear(channels, channels)
        self.linear_k = nn.Linear(channels, channels)
        self.linear_v = nn.Linear(channels, channels)
        self.linear_p = nn.Sequential(
            nn.Linear(3, 3), PointNorm(3), nn.ReLU(inplace=True), nn.Linear(3, channels))
        self.linear_w = nn.Sequential(
            PointNorm(channels), nn.ReLU(inplace=True), nn.Linear(channels, mid),
            PointNorm(mid), nn.ReLU(inplace=True), nn.Linear(mid, mid))
        self.softmax = nn.Softmax(dim=2)

    def position_bias(self, rel):
        bins = torch.floor(rel / self.quant).long() + self.bins // 2
        bins = bins.clamp(0, self.bins - 1)                                       # (B, N, K, 3)
        bias = 0.0
        for axis in range(3):
            bias = bias + self.pos_table[axis][bins[..., axis]]
        return bias

    def forward(self, xyz, x, neighbours):
        idx, far = neighbours
        B, N, K = idx.shape
        q = self.linear_q(x)
        k = index_points(self.linear_k(x), idx)
        v = index_points(self.linear_v(x), idx)
        rel = index_points(xyz, idx) - xyz.unsqueeze(2)
        pe = self.linear_p(rel)                                                   # (B, N, K, C)
        w = self.linear_w(k - q.unsqueeze(2) + pe) + self.position_bias(rel)      # (B, N, K, C / s)
        w = self.softmax(w.masked_fill(far.unsqueeze(-1), -1e4))
        v = (v + pe).view(B, N, K, self.share_planes, self.channels // self.share_planes)
        return torch.einsum("bnksc,bnkc->bnsc", v, w).reshape(B, N, self.channels)


class Block(nn.Module):
    def __init__(self, channels, share_planes, quant):
        super().__init__()
        self.linear1 = nn.Linear(channels, channels, bias=False)
        self.bn1 = PointNorm(channels)
        self.attn = VectorAttention(channels, share_planes, quant)
        self.bn2 = PointNorm(channels)
        self.linear3 = nn.Linear(channels, channels, bias=False)
        self.bn3 = PointNorm(channels)
        self.act = nn.LeakyReLU()

    def forward(self, xyz, x, neighbours):
        identity = x
        x = self.act(self.bn1(self.linear1(x)))
        x = self.act(self.bn2(self.attn(xyz, x, neighbours)))
        x = self.bn3(self.linear3(x))
        return self.act(x + identity)


def find_neighbours(xyz, mask, nsample, radius):
    """Shared by all blocks of a stage; those outside the radius get no weight, the point itself always has one."""
    idx, dist = knn_query(nsample, xyz, xyz, mask)
    far = dist > radius
    far[..., 0] = False
    return idx, far


# ---------------------------------------------------------------------------------------------------------------------
# transitions
# ---------------------------------------------------------------------------------------------------------------------

class TransitionDown(nn.Module):
    def __init__(self, in_channels, out_channels, npoint, nsample, radius):
        super().__init__()
        self.npoint = npoint
        self.nsample = nsample
        self.radius = radius
        self.linear = nn.Linear(3 + in_channels, out_channels, bias=False)
        self.norm = PointNorm(out_channels)
        self.act = nn.ReLU(inplace=True)

    def forward(self, state):
        xyz, feat, lengths = state["xyz"], state["feat"], state["lengths"]
        n = xyz.shape[1]
        mask = length_mask(lengths, n)
        picked = farthest_point_sample(xyz, mask, self.npoint)
        new_xyz = index_points(xyz, picked)
        idx, dist = knn_query(self.nsample, new_xyz, xyz, mask)
        # what lies outside the ball is replaced by the nearest point
        idx = torch.where(dist > self.radius, idx[..., :1].expand_as(idx), idx)
        rel = (index_points(xyz, idx) - new_xyz.unsqueeze(2)) / self.radius
        x = torch.cat([rel, index_points(feat, idx)], dim=-1)
        x = self.act(self.norm(self.linear(x))).max(dim=2)[0]
        # a short cloud keeps its share of points
        new_lengths = (lengths * self.npoint + n - 1) // n
        return dict(xyz=new_xyz, feat=x, lengths=new_lengths)


class TransitionUp(nn.Module):
    def __init__(self, skip_channels, coarse_channels, out_channels, k=3):
        super().__init__()
        self.k = k
        self.linear1 = nn.Sequential(nn.Linear(skip_channels, out_channels), PointNorm(out_channels), nn.ReLU(inplace=True))
        self.linear2 = nn.Sequential(nn.Linear(coarse_channels, out_channels), PointNorm(out_channels), nn.ReLU(inplace=True))

    def interpolate(self, xyz, coarse_xyz, coarse_feat, coarse_mask):
        idx, dist = knn_query(self.k, xyz, coarse_xyz, coarse_mask)
        weight = 1.0 / (dist + 1e-8)
        weight = weight / weight.sum(dim=-1, keepdim=True)
        out = 0.0
        for i in range(self.k):
            out = out + index_points(coarse_feat, idx[..., i]) * weight[..., i:i + 1]
        return out

    def forward(self, fine, coarse):
        mask = length_mask(coarse["lengths"], coarse["xyz"].shape[1])
        up = self.interpolate(fine["xyz"], coarse["xyz"], self.linear2(coarse["feat"]), mask)
        return self.linear1(fine["feat"]) + up


class GlobalContext(nn.Module):
    """Mean and maximum of the coarsest points, given back to each of them."""

    def __init__(self, channels):
        super().__init__()
        self.linear2 = nn.Sequential(nn.Linear(2 * channels, channels), nn.ReLU(inplace=True))
        self.linear1 = nn.Sequential(nn.Linear(2 * channels, channels), PointNorm(channels), nn.ReLU(inplace=True))

    def forward(self, state):
        x = state["feat"]
        mask = length_mask(state["lengths"], x.shape[1])
        mean = masked_mean(x, mask)
        top = x.masked_fill(~mask.unsqueeze(-1), -1e9).max(dim=1)[0]
        pooled = self.linear2(torch.cat([mean, top], dim=-1))
        return self.linear1(torch.cat([x, pooled.unsqueeze(1).repeat(1, x.shape[1], 1)], dim=-1))


class Stage(nn.Module):
    """Attention blocks of one resolution that share their neighbours."""

    def __init__(self, channels, depth, share_planes, nsample, radius):
        super().__init__()
        self.nsample = nsample
        self.radius = radius
        self.blocks = nn.ModuleList(Block(channels, share_planes, radius / 3) for _ in range(depth))

    def forward(self, state):
        xyz, x = state["xyz"], state["feat"]
        mask = length_mask(state["lengths"], xyz.shape[1])
        neighbours = find_neighbours(xyz, mask, self.nsample, self.radius)
        for block in self.blocks:
            x = block(xyz, x, neighbours)
        return x


# ---------------------------------------------------------------------------------------------------------------------
# instances
# ---------------------------------------------------------------------------------------------------------------------

class Voter(nn.Module):
    """Instances from moved points: densest points as seeds, suppression around each, then mean shift."""

    def __init__(self, num_seeds=5, bandwidth=0.25, steps=3):
        super().__init__()
        self.num_seeds = num_seeds
        self.bandwidth = bandwidth
        self.steps = steps

    def kernel(self, a, b, scale=1.0):
        return torch.exp(-square_distance(a, b) / (2 * (scale * self.bandwidth) ** 2))

    def pick_seeds(self, voted, weight):
        pair = self.kernel(voted, voted)
        remaining = torch.bmm(pair, weight.unsqueeze(-1)).squeeze(-1) * weight    # density of what is no background
        seeds = []
        for _ in range(self.num_seeds):
            best = remaining.argmax(dim=-1)
            seed = index_points(voted, best.unsqueeze(-1))                        # (B, 1, 3)
            seeds.append(seed)
            remaining = remaining * (1.0 - self.kernel(seed, voted, scale=2.0).squeeze(1))
        return torch.cat(seeds, dim=1)

    def forward(self, voted, logits, mask):
        prob = logits.softmax(dim=-1)
        weight = (1.0 - prob[..., 0]) * mask
        centres = self.pick_seeds(voted, weight)
        for _ in range(self.steps):
            pull = self.kernel(centres, voted) * weight.unsqueeze(1)              # (B, S, N)
            centres = torch.bmm(pull, voted) / pull.sum(dim=-1, keepdim=True)
        affinity = -square_distance(voted, centres) / (2 * self.bandwidth ** 2)
        assign = affinity.softmax(dim=-1) * mask.unsqueeze(-1)                    # (B, N, S)
        share = assign * weight.unsqueeze(-1)
        total = share.sum(dim=1)                                                  # (B, S)
        inst_logits = torch.einsum("bns,bnc->bsc", share, logits) / total.unsqueeze(-1)
        score = total / weight.sum(dim=1, keepdim=True)
        return centres, assign, inst_logits, score


# ---------------------------------------------------------------------------------------------------------------------
# the net
# ---------------------------------------------------------------------------------------------------------------------

# half the usual extent of an object of each class in metres; background does not move
CLASS_EXTENT = (0.0, 0.30, 0.45, 0.25, 0.60, 0.80)


class PointSeg(nn.Module):
    def __init__(self, in_channels=4, num_classes=6, planes=(24, 40, 56), depths=(1, 2, 1), points=(54, 20),
                 nsamples=(8, 10, 7), radii=(0.40, 0.70, 1.20), share_planes=4):
        super().__init__()
        self.stem = PointEmbed(in_channels, planes[0])
        self.down = nn.ModuleList(
            TransitionDown(planes[i], planes[i + 1], points[i], nsamples[i] + 2, radii[i])
            for i in range(len(planes) - 1))
        self.encoder = nn.ModuleList(
            Stage(planes[i], depths[i], share_planes, nsamples[i], radii[i]) for i in range(len(planes)))
        self.context = GlobalContext(planes[-1])
        self.up = nn.ModuleList(
            TransitionUp(planes[i], planes[i + 1], planes[i]) for i in range(len(planes) - 1))
        self.decoder = nn.ModuleList(
            Stage(planes[i], 1, share_planes, nsamples[i], radii[i]) for i in range(len(planes) - 1))
        self.cls = nn.Sequential(
            nn.Linear(planes[0], planes[0]), PointNorm(planes[0]), nn.ReLU(inplace=True), nn.Dropout(0.1),
            nn.Linear(planes[0], num_classes))
        self.offset = nn.Sequential(
            nn.Linear(planes[0] + num_classes, planes[0]), PointNorm(planes[0]), nn.ReLU(inplace=True),
            nn.Linear(planes[0], 3))
        self.voter = Voter()
        self.register_buffer("extent", torch.tensor(CLASS_EXTENT), persistent=False)

    def encode(self, state):
        levels = []
        for i, stage in enumerate(self.encoder):
            if i > 0:
                state = self.down[i - 1](state)
            state = dict(state, feat=stage(state))
            levels.append(state)
        return levels

    def decode(self, levels):
        coarse = dict(levels[-1], feat=self.context(levels[-1]))
        for i in reversed(range(len(levels) - 1)):
            fine = dict(levels[i], feat=self.up[i](levels[i], coarse))
            coarse = dict(fine, feat=self.decoder[i](fine))
        return coarse["feat"]

    def forward(self, xyz, feat, lengths):
        mask = length_mask(lengths, xyz.shape[1])
        state = dict(xyz=xyz, feat=self.stem(xyz, feat, mask), lengths=lengths)
        x = self.decode(self.encode(state))
        logits = self.cls(x)
        prob = F.softmax(logits, dim=-1)
        reach = (prob * self.extent).sum(dim=-1, keepdim=True)
        offset = torch.tanh(self.offset(torch.cat([x, prob], dim=-1))) * reach
        offset = offset * mask.unsqueeze(-1)
        centres, assign, inst_logits, score = self.voter(xyz + offset, logits, mask)
        logits = logits * mask.unsqueeze(-1)
        return logits, offset, centres, assign, inst_logits, score


# ---------------------------------------------------------------------------------------------------------------------
# weights and inputs
# ---------------------------------------------------------------------------------------------------------------------

def make_clouds(lengths, n, generator):
    """Rooms with a floor and some objects, padded with zeros; features are colour and height."""
    clouds, feats = [], []
    for length in lengths:
        floor = torch.rand(length // 4, 3, generator=generator) * torch.tensor([2.4, 1.8, 0.05])
        objects = []
        rest = length - floor.shape[0]
        for i in range(4):
            count = rest // 4 if i < 3 else rest - 3 * (rest // 4)
            centre = torch.rand(1, 3, generator=generator) * torch.tensor([2.0, 1.5, 0.3]) + torch.tensor([0.2, 0.2, 0.2])
            size = torch.rand(1, 3, generator=generator) * 0.25 + 0.12
            objects.append(centre + (torch.rand(count, 3, generator=generator) * 2 - 1) * size)
        xyz = torch.cat([floor] + objects)
        xyz = xyz[torch.randperm(length, generator=generator)]
        colour = torch.rand(length, 3, generator=generator)
        feat = torch.cat([colour, xyz[:, 2:]], dim=-1)
        clouds.append(F.pad(xyz, (0, 0, 0, n - length)))
        feats.append(F.pad(feat, (0, 0, 0, n - length)))
    return torch.stack(clouds), torch.stack(feats), torch.tensor(lengths)


def init_weights(net, generator):
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=1.2 / math.sqrt(module.in_features), generator=generator)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.15, generator=generator)
        elif isinstance(module, nn.BatchNorm1d):
            nn.init.uniform_(module.weight, 0.7, 1.3, generator=generator)
            nn.init.normal_(module.bias, std=0.2, generator=generator)
        elif isinstance(module, VectorAttention):
            nn.init.normal_(module.pos_table, std=0.6, generator=generator)


@torch.no_grad()
def settle_statistics(net, inputs, generator):
    """Statistics as after training: those of a batch, a little off."""
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm1d)]
    for norm in norms:
        norm.momentum, kept = 1.0, norm.momentum
        norm.kept_momentum = kept
    net.train()
    net(*inputs)
    for norm in norms:
        norm.momentum = norm.kept_momentum
        std = norm.running_var.sqrt()
        norm.running_mean += 0.15 * std * torch.randn(std.shape, generator=generator)
        norm.running_var *= 0.8 + 0.4 * torch.rand(std.shape, generator=generator)


def build():
    torch.manual_seed(29)
    generator = torch.Generator().manual_seed(170)
    net = PointSeg()
    init_weights(net, generator)
    settle_statistics(net, make_clouds((150, 128, 140), 150, generator), generator)
    return net.eval(), make_clouds((150, 119, 88), 150, generator)
