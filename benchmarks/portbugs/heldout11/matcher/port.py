"""The local feature matcher in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

MASKED = -1e9


def normalize_keypoints(kpts, width: int, height: int):
    """Pixel coordinates relative to the centre of the image, in units of half its longer side."""
    center = Tensor(np.array([width, height], np.float32) / 2)
    return (kpts - center) / (max(width, height) / 2)


def sample_descriptors(kpts, dense, stride: int):
    """Bilinear look-up of unit descriptors in a dense map, (B, N, C)."""
    h, w = dense.shape[2:]
    extent = Tensor(np.array([w, h], np.float32) * stride - stride / 2 - 0.5)
    grid = (kpts - stride / 2 + 0.5) / extent * 2 - 1
    desc = ops.grid_sample(dense, grid.expand_dims(1), mode="bilinear", align_corners=True)
    desc = desc.squeeze(2).swapaxes(1, 2)
    norm = mint.sqrt(mint.sum(mint.square(desc), dim=-1, keepdim=True))
    return desc / mint.clamp(norm, min=1e-12)


def add_dustbin(mask):
    """One more place behind the points, always valid."""
    return mint.cat([mask, ops.ones((mask.shape[0], 1), ms.bool_)], dim=1)


def outer_and(mask0, mask1):
    return ops.logical_and(mask0.expand_dims(2), mask1.expand_dims(1))


def split_heads(x, heads: int):
    """(B, N, C) to (B, heads, N, C / heads)."""
    b, n, c = x.shape
    return x.reshape(b, n, heads, c // heads).swapaxes(1, 2)


def merge_heads(x):
    b, h, n, d = x.shape
    return x.swapaxes(1, 2).reshape(b, n, h * d)


def take_points(values, index):
    """Rows of (B, N, C) at (B, M)."""
    index = mint.broadcast_to(index.expand_dims(-1), index.shape + (values.shape[-1],))
    return mint.gather(values, 1, index)


def mutual_matches(scores, threshold: float):
    """Matches of points that are each other's best, with their probability."""
    inner = scores[:, :-1, :-1]
    best0, m0 = mint.max(inner, 2)
    _, m1 = mint.max(inner, 1)
    m0, m1 = m0.astype(ms.int64), m1.astype(ms.int64)
    _, m, n = inner.shape
    loop0 = mint.gather(m1, 1, m0)
    loop1 = mint.gather(m0, 1, m1)
    mutual0 = mint.eq(ops.arange(m).expand_dims(0), loop0)
    mutual1 = mint.eq(ops.arange(n).expand_dims(0), loop1)
    mscores0 = mint.exp(best0) * mutual0.astype(ms.float32)
    mscores1 = mint.gather(mscores0, 1, m1) * mutual1.astype(ms.float32)
    valid0 = ops.logical_and(mutual0, mscores0 > threshold)
    valid1 = ops.logical_and(mutual1, mint.gather(valid0.astype(ms.int32), 1, m1) > 0)
    m0 = mint.where(valid0, m0, -ops.ones_like(m0))
    m1 = mint.where(valid1, m1, -ops.ones_like(m1))
    return m0, m1, mscores0, mscores1


class ConvNormAct(nn.Cell):
    def __init__(self, cin, cout, kernel=3, stride=1, act=True):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, kernel, stride, pad_mode="pad", padding=kernel // 2, has_bias=False)
        self.norm = nn.BatchNorm2d(cout, eps=1e-3)
        self.act = nn.LeakyReLU(alpha=0.01) if act else None

    def construct(self, x):
        x = self.norm(self.conv(x))
        return x if self.act is None else self.act(x)


class Backbone(nn.Cell):
    def __init__(self, dims=(16, 32)):
        super().__init__()
        self.stem = ConvNormAct(1, dims[0], stride=2)
        self.down = ConvNormAct(dims[0], dims[1], stride=2)
        self.res1 = ConvNormAct(dims[1], dims[1])
        self.res2 = ConvNormAct(dims[1], dims[1], act=False)
        self.outer = nn.Conv2d(dims[1], dims[0], 1)
        self.lateral = nn.Conv2d(dims[0], dims[0], 1)
        self.smooth = ConvNormAct(dims[0], dims[0])

    def construct(self, image):
        half = self.stem(image)
        quarter = self.down(half)
        quarter = quarter + self.res2(self.res1(quarter))
        up = ops.interpolate(self.outer(quarter), size=half.shape[2:], mode="bilinear", align_corners=True)
        return quarter, self.smooth(self.lateral(half) + up)


class FourierEncoding(nn.Cell):
    """Cosines and sines of learned projections, each twice in a row for the rotation of pairs."""

    def __init__(self, in_dim: int, head_dim: int):
        super().__init__()
        self.Wr = nn.Dense(in_dim, head_dim // 2, has_bias=False)

    def construct(self, kpts):
        angles = self.Wr(kpts)
        cos = ops.repeat_interleave(mint.cos(angles), 2, axis=-1)
        sin = ops.repeat_interleave(mint.sin(angles), 2, axis=-1)
        return cos.expand_dims(1), sin.expand_dims(1)


class FeedForward(nn.Cell):
    def __init__(self, dim: int):
        super().__init__()
        self.fc1 = nn.Dense(2 * dim, 2 * dim)
        self.norm = nn.LayerNorm((2 * dim,), epsilon=1e-5)
        self.act = nn.GELU(approximate=False)
        self.fc2 = nn.Dense(2 * dim, dim)

    def construct(self, x, message):
        x = mint.cat([x, message], dim=-1)
        return self.fc2(self.act(self.norm(self.fc1(x))))


class SelfBlock(nn.Cell):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.qkv = nn.Dense(dim, 3 * dim)
        self.proj = nn.Dense(dim, dim)
        self.ffn = FeedForward(dim)

    def rotate(self, x, cos, sin):
        pairs = x.reshape(x.shape[:-1] + (self.head_dim // 2, 2))
        turned = ops.stack([-pairs[..., 1], pairs[..., 0]], axis=-1)
        return x * cos + turned.reshape(x.shape) * sin

    def construct(self, x, encoding, bias):
        b, n, _ = x.shape
        cos, sin = encoding
        qkv = self.qkv(x).reshape(b, n, self.heads, self.head_dim, 3).transpose(4, 0, 2, 1, 3)
        q, k, v = self.rotate(qkv[0], cos, sin), self.rotate(qkv[1], cos, sin), qkv[2]
        logits = mint.matmul(q, k.swapaxes(-2, -1)) / math.sqrt(self.head_dim)
        attn = mint.nn.functional.softmax(logits + bias.reshape(b, 1, 1, n), dim=-1)
        message = self.proj(merge_heads(mint.matmul(attn, v)))
        return x + self.ffn(x, message)


class CrossBlock(nn.Cell):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.to_qk = nn.Dense(dim, dim)
        self.to_v = nn.Dense(dim, dim)
        self.proj = nn.Dense(dim, dim)
        self.ffn = FeedForward(dim)

    def attend(self, sim, bias, value):
        """The message to the rows of sim from its columns."""
        attn = ops.softmax(sim + bias.expand_dims(1).expand_dims(1), axis=-1)
        return self.proj(merge_heads(mint.matmul(attn, value)))

    def construct(self, x0, x1, bias0, bias1):
        qk0, qk1 = split_heads(self.to_qk(x0), self.heads), split_heads(self.to_qk(x1), self.heads)
        v0, v1 = split_heads(self.to_v(x0), self.heads), split_heads(self.to_v(x1), self.heads)
        sim = mint.matmul(qk0, qk1.swapaxes(-2, -1)) * self.scale
        message0 = self.attend(sim, bias1, v1)
        message1 = self.attend(sim.swapaxes(-2, -1), bias0, v0)
        return x0 + self.ffn(x0, message0), x1 + self.ffn(x1, message1)


class TransformerLayer(nn.Cell):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.self_attn = SelfBlock(dim, heads)
        self.cross_attn = CrossBlock(dim, heads)

    def construct(self, desc0, desc1, enc0, enc1, bias0, bias1):
        desc0 = self.self_attn(desc0, enc0, bias0)
        desc1 = self.self_attn(desc1, enc1, bias1)
        return self.cross_attn(desc0, desc1, bias0, bias1)


class TokenHead(nn.Cell):
    """The confidence of the points, which of them stay, and the bias of the next layer's attention towards them."""

    def __init__(self, dim: int):
        super().__init__()
        self.token = nn.Dense(dim, 1)
        self.matchability = nn.Dense(dim, 1)

    def construct(self, desc, keep, threshold, width_confidence):
        confidence = mint.sigmoid(self.token(desc)).squeeze(-1)
        z = self.matchability(desc).squeeze(-1)
        wanted = ops.logical_or(mint.sigmoid(z) > 1 - width_confidence, confidence <= threshold)
        keep = ops.logical_and(keep, wanted)
        return confidence, keep, ops.masked_fill(ops.logsigmoid(z), ops.logical_not(keep), MASKED)


class OptimalTransport(nn.Cell):
    """Sinkhorn's iterations in log space, with a dustbin on each side."""

    def __init__(self, iters: int):
        super().__init__()
        self.iters = iters

    def construct(self, sim, bin_score, mask0, mask1):
        b, m, n = sim.shape
        full0, full1 = add_dustbin(mask0), add_dustbin(mask1)
        scores = mint.cat([sim, mint.broadcast_to(bin_score, (b, m, 1))], dim=2)
        scores = mint.cat([scores, mint.broadcast_to(bin_score, (b, 1, n + 1))], dim=1)
        scores = ops.masked_fill(scores, ops.logical_not(outer_and(full0, full1)), MASKED)
        count0 = mask0.astype(ms.float32).sum(axis=1, keepdims=True)
        count1 = mask1.astype(ms.float32).sum(axis=1, keepdims=True)
        norm = -mint.log(count0 + count1)
        log_mu = mint.cat([mint.tile(norm, (1, m)), mint.log(count1) + norm], dim=1)
        log_nu = mint.cat([mint.tile(norm, (1, n)), mint.log(count0) + norm], dim=1)
        log_mu = ops.masked_fill(log_mu, ops.logical_not(full0), MASKED)
        log_nu = ops.masked_fill(log_nu, ops.logical_not(full1), MASKED)
        u, v = ops.zeros_like(log_mu), ops.zeros_like(log_nu)
        for _ in range(self.iters):
            u = log_mu - ops.logsumexp(scores + v.expand_dims(1), 2)
            v = log_nu - ops.logsumexp(scores + u.expand_dims(2), 1)
        return scores + u.expand_dims(2) + v.expand_dims(1) - norm.expand_dims(2)


class MatchAssignment(nn.Cell):
    def __init__(self, dim: int, iters: int):
        super().__init__()
        self.bin_score = Parameter(Tensor(1.0, ms.float32), name="bin_score")
        self.matchability = nn.Dense(dim, 1)
        self.final_proj = nn.Dense(dim, dim)
        self.scale = dim**0.25
        self.transport = OptimalTransport(iters)

    def construct(self, desc0, desc1, mask0, mask1):
        mdesc0 = self.final_proj(desc0) / self.scale
        mdesc1 = self.final_proj(desc1) / self.scale
        sim = mint.matmul(mdesc0, mdesc1.swapaxes(1, 2))
        z0, z1 = self.matchability(desc0), self.matchability(desc1)
        masked = ops.masked_fill(sim, ops.logical_not(outer_and(mask0, mask1)), MASKED)
        inner = ops.log_softmax(masked, axis=2) + ops.log_softmax(masked, axis=1)
        inner = inner + ops.logsigmoid(z0) + ops.logsigmoid(z1).swapaxes(1, 2)
        last_row = mint.cat([ops.logsigmoid(-z1).swapaxes(1, 2), ops.zeros((sim.shape[0], 1, 1), ms.float32)], dim=2)
        log_assignment = mint.cat([mint.cat([inner, ops.logsigmoid(-z0)], dim=2), last_row], dim=1)
        return log_assignment, self.transport(sim, self.bin_score, mask0, mask1)


class LinearAttentionLayer(nn.Cell):
    def __init__(self, dim: int, heads: int, eps: float = 1e-6):
        super().__init__()
        self.heads = heads
        self.eps = eps
        self.q_proj = nn.Dense(dim, dim, has_bias=False)
        self.k_proj = nn.Dense(dim, dim, has_bias=False)
        self.v_proj = nn.Dense(dim, dim, has_bias=False)
        self.merge = nn.Dense(dim, dim, has_bias=False)
        self.norm1 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.mlp = nn.SequentialCell(nn.Dense(2 * dim, 2 * dim), nn.ReLU(), nn.Dense(2 * dim, dim))
        self.norm2 = nn.LayerNorm((dim,), epsilon=1e-5)

    def construct(self, x, source):
        query = ops.elu(split_heads(self.q_proj(x), self.heads)) + 1
        key = ops.elu(split_heads(self.k_proj(source), self.heads)) + 1
        value = split_heads(self.v_proj(source), self.heads)
        # the length divides and multiplies, so that nothing overflows in half precision
        length = value.shape[2]
        kv = mint.matmul(key.swapaxes(-2, -1), value / length)
        denominator = mint.sum(query * key.sum(axis=2, keepdims=True), dim=-1, keepdim=True) + self.eps
        message = mint.matmul(query, kv) / denominator * length
        message = self.norm1(self.merge(merge_heads(message)))
        message = self.norm2(self.mlp(mint.cat([x, message], dim=2)))
        return x + message


class FineRefinement(nn.Cell):
    def __init__(self, dim: int, fine: int, window: int = 5, stride: int = 2):
        super().__init__()
        self.window = window
        self.radius = window // 2
        self.stride = stride
        self.down_proj = nn.Dense(dim, fine)
        self.merge_feat = nn.Dense(2 * fine, fine)
        self.self_layer = LinearAttentionLayer(fine, 4)
        self.cross_layer = LinearAttentionLayer(fine, 4)
        axis = np.linspace(-1, 1, window, dtype=np.float32)
        xs, ys = np.meshgrid(axis, axis, indexing="xy")
        self.grid = Tensor(np.stack([xs.ravel(), ys.ravel()], axis=1))
        rows, cols = np.divmod(np.arange(window * window), window)
        self.rows, self.cols = Tensor(rows, ms.int64), Tensor(cols, ms.int64)

    def nearest_cell(self, kpts, feat):
        """The cell of the fine map that a point falls into, (B, M) each of x and y."""
        cells = mint.round(kpts / self.stride).astype(ms.int64)
        h, w = feat.shape[2:]
        return ops.clamp(cells[..., 0], 0, w - 1), ops.clamp(cells[..., 1], 0, h - 1)

    def crop(self, feat, x, y):
        """Windows around cells, zeros beyond the border, (B, M, window², C)."""
        b, c, _, w = feat.shape
        padded = ops.pad(feat, (self.radius, self.radius, self.radius, self.radius))
        width = w + 2 * self.radius
        # a window begins at the cell itself in the padded map
        flat = padded.reshape(b, c, -1).swapaxes(1, 2)
        index = (y.expand_dims(-1) + self.rows) * width + x.expand_dims(-1) + self.cols
        m = index.shape[1]
        return take_points(flat, index.reshape(b, -1)).reshape(b, m, self.window**2, c)

    def describe(self, feat, x, y, desc):
        win = self.crop(feat, x, y)
        b, m, area, c = win.shape
        context = mint.tile(self.down_proj(desc).expand_dims(2), (1, 1, area, 1))
        return self.merge_feat(mint.cat([win, context], dim=-1)).reshape(b * m, area, c)

    def construct(self, feat0, feat1, kpts0, target, desc0, desc1):
        b, m, _ = kpts0.shape
        x0, y0 = self.nearest_cell(kpts0, feat0)
        x1, y1 = self.nearest_cell(target, feat1)
        win0, win1 = self.describe(feat0, x0, y0, desc0), self.describe(feat1, x1, y1, desc1)
        win0, win1 = self.self_layer(win0, win0), self.self_layer(win1, win1)
        win0 = self.cross_layer(win0, win1)
        win1 = self.cross_layer(win1, win0)
        middle = win0[:, self.window**2 // 2]
        heat = mint.matmul(win1, middle.expand_dims(-1)).squeeze(-1) / math.sqrt(middle.shape[-1])
        heat = mint.nn.functional.softmax(heat, dim=1)
        mean = mint.matmul(heat, self.grid)
        variance = mint.matmul(heat, mint.square(self.grid)) - mint.square(mean)
        std = mint.sqrt(mint.clamp(variance, min=1e-10)).sum(axis=-1)
        centers = ops.stack([x1, y1], axis=-1).astype(ms.float32)
        refined = (centers + mean.reshape(b, m, 2) * self.radius) * self.stride
        return refined, std.reshape(b, m)


class Matcher(nn.Cell):
    def __init__(self, dim: int = 48, heads: int = 4, n_layers: int = 3, threshold: float = 0.04, iters: int = 10):
        super().__init__()
        self.n_layers = n_layers
        self.threshold = threshold
        self.width_confidence = 0.7
        self.backbone = Backbone()
        self.input_proj = nn.Dense(32, dim)
        self.kenc = nn.SequentialCell(nn.Dense(3, 32), nn.LayerNorm((32,), epsilon=1e-5), nn.ReLU(), nn.Dense(32, dim))
        self.posenc = FourierEncoding(2, dim // heads)
        self.layers = nn.CellList([TransformerLayer(dim, heads) for _ in range(n_layers)])
        self.token_heads = nn.CellList([TokenHead(dim) for _ in range(n_layers - 1)])
        self.assignment = MatchAssignment(dim, iters)
        self.fine = FineRefinement(dim, 16)
        decay = np.exp(-4.0 * np.arange(n_layers) / n_layers)
        self.confidence_thresholds = np.clip(0.3 + 0.4 * decay, 0, 1).tolist()

    def embed(self, image, dense, kpts, responses):
        """Descriptors of the points and the rotations of their places."""
        height, width = image.shape[2:]
        places = normalize_keypoints(kpts, width, height)
        desc = sample_descriptors(kpts, dense, 4) * math.sqrt(dense.shape[1])
        desc = self.input_proj(desc) + self.kenc(mint.cat([places, responses.expand_dims(-1)], dim=-1))
        return desc, self.posenc(places)

    def barycentres(self, log_plan, values):
        plan = mint.exp(log_plan)
        return mint.matmul(plan / mint.clamp(plan.sum(axis=-1, keepdims=True), min=1e-6), values)

    def construct(self, image0, image1, kpts0, kpts1, responses0, responses1, counts0, counts1):
        b, m, _ = kpts0.shape
        n = kpts1.shape[1]
        mask0 = ops.arange(m).expand_dims(0) < counts0.expand_dims(1)
        mask1 = ops.arange(n).expand_dims(0) < counts1.expand_dims(1)
        coarse, fine = self.backbone(mint.cat([image0, image1], dim=0))
        desc0, enc0 = self.embed(image0, coarse[:b], kpts0, responses0)
        desc1, enc1 = self.embed(image1, coarse[b:], kpts1, responses1)

        keep0, keep1 = mask0, mask1
        bias0 = (1 - mask0.astype(ms.float32)) * MASKED
        bias1 = (1 - mask1.astype(ms.float32)) * MASKED
        confidences = []
        for i, layer in enumerate(self.layers):
            desc0, desc1 = layer(desc0, desc1, enc0, enc1, bias0, bias1)
            if i == self.n_layers - 1:
                break
            head, limit = self.token_heads[i], self.confidence_thresholds[i]
            conf0, keep0, bias0 = head(desc0, keep0, limit, self.width_confidence)
            conf1, keep1, bias1 = head(desc1, keep1, limit, self.width_confidence)
            confidences.append(mint.cat([conf0 * mask0, conf1 * mask1], dim=-1))
        scores, transport = self.assignment(desc0, desc1, mask0, mask1)
        m0, m1, mscores0, mscores1 = mutual_matches(scores, self.threshold)

        found = (m0 > -1).expand_dims(-1)
        best = ops.maximum(m0, ops.zeros_like(m0))
        log_plan = transport[:, :-1, :-1]
        target = mint.where(found, take_points(kpts1, best), self.barycentres(log_plan, kpts1))
        context = mint.where(found, take_points(desc1, best), self.barycentres(log_plan, desc1))
        refined, std = self.fine(fine[:b], fine[b:], kpts0, target, desc0, context)

        outside = ops.logical_not(outer_and(add_dustbin(mask0), add_dustbin(mask1)))
        scores, transport = ops.masked_fill(scores, outside, 0.0), ops.masked_fill(transport, outside, 0.0)
        refined, std = refined * mask0.expand_dims(-1), std * mask0
        return scores, transport, m0, m1, mscores0, mscores1, refined, std, ops.stack(confidences, axis=1)


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Matcher()
