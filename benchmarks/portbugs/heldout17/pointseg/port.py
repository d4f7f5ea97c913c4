"""PointSeg for MindSpore: semantic and instance segmentation of padded point clouds."""

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, mint, nn, ops

EXTENT = np.array([0.0, 0.30, 0.45, 0.25, 0.60, 0.80], np.float32)
FAR = 1e10


# --------------------------------------------------------------------------------------------- points


def pairwise_sq(a, b):
    """Squared distances of all of a (B, M, 3) to all of b (B, N, 3)."""
    diff = mint.unsqueeze(a, 2) - mint.unsqueeze(b, 1)
    return mint.sum(diff * diff, dim=-1)


def group(points, index):
    """Rows of points (B, N, C) at index (B, ...)."""
    bs, n, c = points.shape
    base = ops.arange(bs).astype(ms.int32).reshape((bs,) + (1,) * (index.ndim - 1)) * n
    flat = (index.astype(ms.int32) + base).reshape(-1)
    return ops.gather(points.reshape(bs * n, c), flat, 0).reshape(tuple(index.shape) + (c,))


def valid_points(count, n):
    """True for points, False for padding."""
    return ops.arange(n).astype(ms.int32).reshape(1, n) < count.astype(ms.int32).reshape(-1, 1)


def mean_of_valid(x, valid):
    m = valid.astype(x.dtype).expand_dims(-1)
    return (x * m).sum(1) / ops.clamp(m.sum(1), min=1.0)


def sample_farthest(xyz, valid, npoint):
    """Indices (B, npoint) of farthest point sampling, from the point farthest from the centroid."""
    away = mint.sum((xyz - mean_of_valid(xyz, valid).expand_dims(1)) ** 2, dim=-1)
    last = ops.argmax(ops.select(valid, away, ops.full_like(away, -1.0)), dim=-1)
    nearest = ops.select(valid, ops.full_like(away, FAR), ops.full_like(away, -1.0))
    chosen = []
    for _ in range(npoint):
        chosen.append(last)
        here = group(xyz, last.expand_dims(1))
        nearest = ops.minimum(nearest, mint.sum((xyz - here) ** 2, dim=-1))
        last = ops.argmax(nearest, dim=-1)
    return ops.stack(chosen, 1)


def nearest_points(k, query, xyz, valid):
    """The k valid points nearest to each query, nearest first: distances and indices, both (B, M, k)."""
    sq = pairwise_sq(query, xyz)
    sq = sq.masked_fill(ops.logical_not(valid).expand_dims(1), FAR)
    sq, index = ops.topk(sq, k, dim=-1, largest=False, sorted=True)
    return ops.sqrt(sq), index


# --------------------------------------------------------------------------------------------- layers


class ChannelNorm(nn.Cell):
    """Batch normalisation over all axes but the last."""

    def __init__(self, channels):
        super().__init__()
        self.bn = nn.BatchNorm1d(channels, eps=1e-3, momentum=0.98)

    def construct(self, x):
        shape = x.shape
        return self.bn(x.reshape(-1, shape[-1])).reshape(shape)


def dense_norm_relu(cin, cout):
    return nn.SequentialCell(nn.Dense(cin, cout), ChannelNorm(cout), nn.ReLU())


class Embedding(nn.Cell):
    """Own features, place and shape of the neighbourhood of each point."""

    def __init__(self, cin, cout, k=8, octaves=3):
        super().__init__()
        self.k = k
        self.freqs = Tensor((2.0 ** np.arange(octaves) * np.pi / 2).astype(np.float32))
        self.proj = nn.Dense(cin + 6 * octaves + 7, cout)
        self.norm = ChannelNorm(cout)

    def waves(self, place):
        bs, n, _ = place.shape
        phase = place.expand_dims(-1) * self.freqs
        return ops.cat((ops.sin(phase), ops.cos(phase)), -1).reshape(bs, n, -1)

    def construct(self, xyz, feat, valid):
        place = (xyz - mean_of_valid(xyz, valid).expand_dims(1)) * valid.astype(xyz.dtype).expand_dims(-1)
        dist, index = nearest_points(self.k + 1, xyz, xyz, valid)
        dist, index = dist[:, :, 1:], index[:, :, 1:]
        rel = group(xyz, index) - xyz.expand_dims(2)
        shape = ops.cat((rel.mean(2), rel.std(2, ddof=1), dist.mean(-1, keep_dims=True)), -1)
        x = self.proj(ops.cat((feat, self.waves(place), shape), -1))
        return ops.relu(self.norm(x))


class PointAttention(nn.Cell):
    """Vector attention of each point over its neighbours."""

    def __init__(self, channels, groups, step, bins=8):
        super().__init__()
        self.channels, self.groups, self.step, self.bins = channels, groups, step, bins
        mid = channels // groups
        self.table = Parameter(ops.zeros((3, bins, mid), ms.float32), name="table")
        self.query = nn.Dense(channels, channels)
        self.key = nn.Dense(channels, channels)
        self.value = nn.Dense(channels, channels)
        self.pos_mlp = nn.SequentialCell(nn.Dense(3, 3), ChannelNorm(3), nn.ReLU(), nn.Dense(3, channels))
        self.weight_mlp = nn.SequentialCell(
            ChannelNorm(channels), nn.ReLU(), nn.Dense(channels, mid),
            ChannelNorm(mid), nn.ReLU(), nn.Dense(mid, mid))
        self.softmax = nn.Softmax(axis=2)

    def lookup(self, rel):
        cell = ops.floor(rel / self.step).astype(ms.int32) + self.bins // 2
        cell = ops.clamp(cell, 0, self.bins - 1)
        return (ops.gather(self.table[0], cell[..., 0], 0)
                + ops.gather(self.table[1], cell[..., 1], 0)
                + ops.gather(self.table[2], cell[..., 2], 0))

    def construct(self, x, rel, index, penalty):
        bs, n, k = index.shape
        query = self.query(x).expand_dims(2)
        key = group(self.key(x), index)
        value = group(self.value(x), index)
        place = self.pos_mlp(rel)
        score = self.weight_mlp(key - query + place) + self.lookup(rel)
        score = self.softmax(score + penalty)
        value = (value + place).reshape(bs, n, k, self.groups, self.channels // self.groups)
        out = (value * score.expand_dims(3)).sum(2)
        return out.reshape(bs, n, self.channels)


class AttentionBlock(nn.Cell):
    def __init__(self, channels, groups, step):
        super().__init__()
        self.fc_in = nn.Dense(channels, channels, has_bias=False)
        self.norm_in = ChannelNorm(channels)
        self.attention = PointAttention(channels, groups, step)
        self.norm_mid = ChannelNorm(channels)
        self.fc_out = nn.Dense(channels, channels, has_bias=False)
        self.norm_out = ChannelNorm(channels)
        self.act = nn.LeakyReLU(alpha=0.01)

    def construct(self, x, rel, index, penalty):
        y = self.act(self.norm_in(self.fc_in(x)))
        y = self.act(self.norm_mid(self.attention(y, rel, index, penalty)))
        y = self.norm_out(self.fc_out(y))
        return self.act(y + x)


class Level(nn.Cell):
    """Blocks of one resolution; neighbours and relative places are made once for all of them."""

    def __init__(self, channels, depth, groups, k, radius):
        super().__init__()
        self.k, self.radius = k, radius
        self.blocks = nn.CellList([AttentionBlock(channels, groups, radius / 3) for _ in range(depth)])

    def construct(self, xyz, x, count):
        dist, index = nearest_points(self.k, xyz, xyz, valid_points(count, xyz.shape[1]))
        outside = (dist > self.radius).astype(ms.float32)
        outside = ops.cat((ops.zeros_like(outside[:, :, :1]), outside[:, :, 1:]), -1)
        penalty = outside.expand_dims(-1) * -1e4
        rel = group(xyz, index) - xyz.expand_dims(2)
        for block in self.blocks:
            x = block(x, rel, index, penalty)
        return x


class Downsample(nn.Cell):
    """Farthest points, each with the maximum of what lies around it."""

    def __init__(self, cin, cout, npoint, k, radius):
        super().__init__()
        self.npoint, self.k, self.radius = npoint, k, radius
        self.fc = nn.Dense(3 + cin, cout, has_bias=False)
        self.norm = ChannelNorm(cout)

    def construct(self, xyz, feat, count):
        n = xyz.shape[1]
        valid = valid_points(count, n)
        centre = group(xyz, sample_farthest(xyz, valid, self.npoint))
        dist, index = nearest_points(self.k, centre, xyz, valid)
        inside = dist <= self.radius
        index = ops.select(inside, index, ops.broadcast_to(index[:, :, :1], index.shape))
        rel = (group(xyz, index) - centre.expand_dims(2)) / self.radius
        x = ops.cat((rel, group(feat, index)), -1)
        x = ops.relu(self.norm(self.fc(x)))
        x = ops.amax(x, axis=2)
        kept = ops.floor_divide(count * self.npoint + n - 1, n)
        return centre, x, kept


class Upsample(nn.Cell):
    """Features of the coarse points brought to the fine ones, plus those of the skip."""

    def __init__(self, cskip, ccoarse, cout, k=3):
        super().__init__()
        self.k = k
        self.from_skip = dense_norm_relu(cskip, cout)
        self.from_coarse = dense_norm_relu(ccoarse, cout)

    def construct(self, xyz, skip, xyz_coarse, coarse, count_coarse):
        coarse = self.from_coarse(coarse)
        valid = valid_points(count_coarse, xyz_coarse.shape[1])
        dist, index = nearest_points(self.k, xyz, xyz_coarse, valid)
        inverse = 1.0 / (dist + 1e-8)
        share = inverse / inverse.sum(-1, keepdims=True)
        raised = (group(coarse, index) * share.expand_dims(-1)).sum(2)
        return self.from_skip(skip) + raised


class Context(nn.Cell):
    def __init__(self, channels):
        super().__init__()
        self.pool_fc = nn.Dense(2 * channels, channels)
        self.point_fc = dense_norm_relu(2 * channels, channels)

    def construct(self, x, count):
        valid = valid_points(count, x.shape[1])
        mean = mean_of_valid(x, valid)
        peak = ops.amax(x.masked_fill(ops.logical_not(valid).expand_dims(-1), -1e9), axis=1)
        pooled = ops.relu(self.pool_fc(ops.cat((mean, peak), -1)))
        pooled = ops.broadcast_to(pooled.expand_dims(1), x.shape)
        return self.point_fc(ops.cat((x, pooled), -1))


class Head(nn.Cell):
    def __init__(self, cin, hidden, cout, drop=0.0):
        super().__init__()
        self.fc1 = nn.Dense(cin, hidden)
        self.norm = ChannelNorm(hidden)
        self.drop = nn.Dropout(p=drop)
        self.fc2 = nn.Dense(hidden, cout)

    def construct(self, x):
        return self.fc2(self.drop(ops.relu(self.norm(self.fc1(x)))))


# --------------------------------------------------------------------------------------------- instances


def gauss(sq, bandwidth):
    return ops.exp(-sq / (2.0 * bandwidth * bandwidth))


def vote(moved, logits, valid, seeds=5, bandwidth=0.25, steps=3):
    """Centres, assignments, class scores and shares of the instances that the moved points make."""
    valid = valid.astype(moved.dtype)
    weight = (1.0 - ops.softmax(logits, -1)[:, :, 0]) * valid
    near = gauss(pairwise_sq(moved, moved), bandwidth)
    density = ops.matmul(near, weight.expand_dims(-1)).squeeze(-1) * weight

    found = []
    for _ in range(seeds):
        top = ops.argmax(density, dim=-1)
        seed = group(moved, top.expand_dims(-1))
        found.append(seed)
        density = density * (1.0 - gauss(pairwise_sq(seed, moved), 2.0 * bandwidth).squeeze(1))
    centres = ops.cat(found, 1)

    for _ in range(steps):
        pull = gauss(pairwise_sq(centres, moved), bandwidth) * weight.expand_dims(1)
        centres = ops.matmul(pull, moved) / pull.sum(-1, keepdims=True)

    closeness = -pairwise_sq(moved, centres) / (2.0 * bandwidth * bandwidth)
    assign = ops.softmax(closeness, -1) * valid.expand_dims(-1)
    share = assign * weight.expand_dims(-1)
    total = share.sum(1)
    inst_logits = ops.matmul(share.swapaxes(1, 2), logits) / total.expand_dims(-1)
    score = total / weight.sum(1, keepdims=True)
    return centres, assign, inst_logits, score


class PointSegmenter(nn.Cell):
    def __init__(self, cin=4, classes=6, widths=(24, 40, 56), depths=(1, 2, 1), points=(54, 20), neighbours=(8, 10, 7),
                 radii=(0.40, 0.70, 1.20), groups=4):
        super().__init__()
        levels = len(widths)
        self.embedding = Embedding(cin, widths[0])
        self.downs = nn.CellList([
            Downsample(widths[i], widths[i + 1], points[i], neighbours[i] + 2, radii[i]) for i in range(levels - 1)])
        self.enc_levels = nn.CellList([
            Level(widths[i], depths[i], groups, neighbours[i], radii[i]) for i in range(levels)])
        self.context = Context(widths[-1])
        self.ups = nn.CellList([Upsample(widths[i], widths[i + 1], widths[i]) for i in range(levels - 1)])
        self.dec_levels = nn.CellList([
            Level(widths[i], 1, groups, neighbours[i], radii[i]) for i in range(levels - 1)])
        self.class_head = Head(widths[0], widths[0], classes, drop=0.1)
        self.offset_head = Head(widths[0] + classes, widths[0], 3)
        self.extent = Tensor(EXTENT)

    def backbone(self, xyz, x, count):
        x = self.enc_levels[0](xyz, x, count)
        kept = [(xyz, x, count)]
        for down, level in zip(self.downs, list(self.enc_levels)[1:]):
            xyz, x, count = down(xyz, x, count)
            x = level(xyz, x, count)
            kept.append((xyz, x, count))

        xyz, x, count = kept.pop()
        x = self.context(x, count)
        for i in range(len(kept) - 1, -1, -1):
            fine_xyz, skip, fine_count = kept[i]
            x = self.ups[i](fine_xyz, skip, xyz, x, count)
            xyz, count = fine_xyz, fine_count
            x = self.dec_levels[i](xyz, x, count)
        return x

    def construct(self, xyz, feat, lengths):
        count = lengths.astype(ms.int32)
        valid = valid_points(count, xyz.shape[1])
        keep = valid.astype(ms.float32).expand_dims(-1)
        x = self.backbone(xyz, self.embedding(xyz, feat, valid), count)
        logits = self.class_head(x)
        prob = ops.softmax(logits, -1)
        reach = ops.matmul(prob, self.extent.reshape(-1, 1))
        offset = ops.tanh(self.offset_head(ops.cat((x, prob), -1))) * reach * keep
        centres, assign, inst_logits, score = vote(xyz + offset, logits, valid)
        return logits * keep, offset, centres, assign, inst_logits, score


def build():
    """The net alone, ready for inference."""
    net = PointSegmenter()
    net.set_train(False)
    return net
