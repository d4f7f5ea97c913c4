"""StereoFormer in MindSpore: hierarchical window transformer, DPT style decoder, adaptive bins for monocular depth."""
import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Zero, initializer


def conv(cin, cout, kernel, bias=True):
    """stride 1 convolution that keeps the size"""
    return nn.Conv2d(cin, cout, kernel, pad_mode="pad", padding=kernel // 2, has_bias=bias)


def layer_norm(dim, eps=1e-5):
    return nn.LayerNorm((dim,), epsilon=eps)


def roll2d(x, shift_h, shift_w):
    """Cyclic shift of a (B, H, W, C) tensor (ops.roll has no CPU kernel)."""
    if shift_h:
        x = ops.concat((x[:, -shift_h:], x[:, :-shift_h]), axis=1)
    if shift_w:
        x = ops.concat((x[:, :, -shift_w:], x[:, :, :-shift_w]), axis=2)
    return x


def to_windows(x, ws):
    b, h, w, c = x.shape
    x = x.reshape(b, h // ws, ws, w // ws, ws, c)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(-1, ws * ws, c)


def from_windows(x, ws, h, w):
    c = x.shape[-1]
    x = x.reshape(-1, h // ws, w // ws, ws, ws, c)
    x = x.transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(-1, h, w, c)


def shift_mask(h, w, ws, shift_h, shift_w):
    """(nW, N, N), -100 between tokens of different regions"""
    row, col = np.zeros(h, np.float32), np.zeros(w, np.float32)
    if shift_h:
        row[-ws:-shift_h] = 1
        row[-shift_h:] = 2
    if shift_w:
        col[-ws:-shift_w] = 1
        col[-shift_w:] = 2
    region = row[:, None] * 3 + col[None, :]
    region = region.reshape(h // ws, ws, w // ws, ws).transpose(0, 2, 1, 3).reshape(-1, ws * ws)
    mask = np.where(region[:, None, :] == region[:, :, None], 0.0, -100.0)
    return Tensor(mask, ms.float32)


def relative_index(ws):
    ys, xs = np.meshgrid(np.arange(ws), np.arange(ws), indexing="ij")
    ys, xs = ys.reshape(-1), xs.reshape(-1)
    dy = ys[:, None] - ys[None, :] + ws - 1
    dx = xs[:, None] - xs[None, :] + ws - 1
    return Tensor((dy * (2 * ws - 1) + dx).reshape(-1), ms.int32)


class FeedForward(nn.Cell):
    def __init__(self, dim, hidden):
        super().__init__()
        self.dense1 = nn.Dense(dim, hidden)
        self.gelu = nn.GELU(approximate=False)
        self.dense2 = nn.Dense(hidden, dim)

    def construct(self, x):
        return self.dense2(self.gelu(self.dense1(x)))


class WindowAttention(nn.Cell):
    def __init__(self, dim, window_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scale = self.head_dim ** -0.5
        self.bias_table = Parameter(initializer(Zero(), ((2 * window_size - 1) ** 2, num_heads)), name="bias_table")
        self.index = relative_index(window_size)
        self.qkv = nn.Dense(dim, 3 * dim)
        self.proj = nn.Dense(dim, dim)

    def construct(self, x, mask=None):
        bw, n, c = x.shape
        qkv = self.qkv(x).reshape(bw, n, 3, self.num_heads, self.head_dim)
        qkv = qkv.transpose(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = ops.matmul(q * self.scale, k.swapaxes(-2, -1))
        bias = ops.gather(self.bias_table, self.index, 0)
        attn = attn + bias.reshape(n, n, self.num_heads).transpose(2, 0, 1)
        if mask is not None:
            nw = mask.shape[0]
            attn = attn.reshape(bw // nw, nw, self.num_heads, n, n) + mask.expand_dims(1)
            attn = attn.reshape(bw, self.num_heads, n, n)
        out = ops.matmul(ops.softmax(attn, axis=-1), v)
        out = out.swapaxes(1, 2).reshape(bw, n, c)
        return self.proj(out)


class SwinBlock(nn.Cell):
    def __init__(self, dim, num_heads, window_size, shift, mlp_ratio):
        super().__init__()
        self.window_size = window_size
        self.shift = shift
        self.norm1 = layer_norm(dim)
        self.attn = WindowAttention(dim, window_size, num_heads)
        self.norm2 = layer_norm(dim)
        self.ffn = FeedForward(dim, int(dim * mlp_ratio))
        self.ls_attn = Parameter(ops.ones((dim,), ms.float32), name="ls_attn")
        self.ls_ffn = Parameter(ops.ones((dim,), ms.float32), name="ls_ffn")

    def window_attention(self, x):
        h, w = x.shape[1:3]
        ws = self.window_size
        hp, wp = math.ceil(h / ws) * ws, math.ceil(w / ws) * ws
        if hp > h or wp > w:
            x = ops.pad(x, (0, 0, 0, wp - w, 0, hp - h))
        # a single window along an axis is not shifted
        shift_h = self.shift if hp > ws else 0
        shift_w = self.shift if wp > ws else 0
        shifted = shift_h > 0 or shift_w > 0
        mask = None
        if shifted:
            x = roll2d(x, -shift_h, -shift_w)
            mask = shift_mask(hp, wp, ws, shift_h, shift_w)
        x = from_windows(self.attn(to_windows(x, ws), mask), ws, hp, wp)
        if shifted:
            x = roll2d(x, shift_h, shift_w)
        return x[:, :h, :w]

    def construct(self, x):
        x = x + self.ls_attn * self.window_attention(self.norm1(x))
        x = x + self.ls_ffn * self.ffn(self.norm2(x))
        return x


class PatchMerging(nn.Cell):
    def __init__(self, dim, out_dim):
        super().__init__()
        self.norm = layer_norm(4 * dim)
        self.reduction = nn.Dense(4 * dim, out_dim, has_bias=False)

    def construct(self, x):
        b, h, w, c = x.shape
        if h % 2 or w % 2:
            x = ops.pad(x, (0, 0, 0, w % 2, 0, h % 2))
        h, w = (h + 1) // 2, (w + 1) // 2
        x = x.reshape(b, h, 2, w, 2, c)
        # the column of a patch runs slower than the row, as in the official Swin
        x = x.transpose(0, 1, 3, 4, 2, 5).reshape(b, h, w, 4 * c)
        return self.reduction(self.norm(x))


class SwinEncoder(nn.Cell):
    def __init__(self, dims, depths, heads, window_size, mlp_ratio, patch):
        super().__init__()
        self.patch = patch
        self.embed = nn.Conv2d(3, dims[0], patch, stride=patch, pad_mode="valid", has_bias=True)
        self.embed_norm = layer_norm(dims[0])
        self.layers = nn.CellList([
            nn.SequentialCell([SwinBlock(d, n, window_size, (i % 2) * (window_size // 2), mlp_ratio)
                               for i in range(depth)])
            for d, depth, n in zip(dims, depths, heads)])
        self.out_norms = nn.CellList([layer_norm(d) for d in dims])
        self.merges = nn.CellList([PatchMerging(a, b) for a, b in zip(dims[:-1], dims[1:])])

    def construct(self, image):
        h, w = image.shape[-2:]
        x = ops.pad(image, (0, -w % self.patch, 0, -h % self.patch))
        x = self.embed_norm(self.embed(x).transpose(0, 2, 3, 1))
        feats = []
        for i, layer in enumerate(self.layers):
            x = layer(x)
            feats.append(self.out_norms[i](x).transpose(0, 3, 1, 2))
            if i < len(self.merges):
                x = self.merges[i](x)
        return feats


def unit(x):
    """x / |x| over the last axis"""
    return x / ops.sqrt((x * x).sum(axis=-1, keepdims=True)).clip(1e-12, None)


class GlobalBlock(nn.Cell):
    def __init__(self, dim, num_heads, hidden):
        super().__init__()
        self.num_heads = num_heads
        self.norm1 = layer_norm(dim)
        self.qkv = nn.Dense(dim, 3 * dim)
        self.logit_scale = Parameter(Tensor(np.full((num_heads, 1, 1), math.log(10)), ms.float32), name="logit_scale")
        self.proj = nn.Dense(dim, dim)
        self.norm2 = layer_norm(dim)
        self.ffn = FeedForward(dim, hidden)

    def construct(self, x, key_pad):
        b, n, c = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(b, n, 3, self.num_heads, c // self.num_heads)
        q, k, v = [t.squeeze(2).swapaxes(1, 2) for t in ops.split(qkv, 1, axis=2)]
        score = ops.matmul(unit(q), unit(k).swapaxes(-2, -1))
        score = score * ops.exp(ops.minimum(self.logit_scale, math.log(100.0)))
        score = ops.masked_fill(score, key_pad.reshape(b, 1, 1, n), -1e9)
        out = ops.matmul(ops.softmax(score, axis=-1), v)
        x = x + self.proj(out.transpose(0, 2, 1, 3).reshape(b, n, c))
        return x + self.ffn(self.norm2(x))


def inside(sizes, h, w):
    """(B, h, w) bool: the positions within the valid size of each image"""
    rows = ops.arange(h).reshape(1, h, 1) < sizes[:, 0].reshape(-1, 1, 1)
    cols = ops.arange(w).reshape(1, 1, w) < sizes[:, 1].reshape(-1, 1, 1)
    return ops.logical_and(rows, cols)


class BinTransformer(nn.Cell):
    def __init__(self, dim, num_heads, depth, grid, stride):
        super().__init__()
        self.grid = grid
        self.stride = stride
        self.cls_token = Parameter(initializer(Zero(), (1, 1, dim)), name="cls_token")
        self.pos_embed = Parameter(initializer(Zero(), (1, 1 + grid[0] * grid[1], dim)), name="pos_embed")
        self.blocks = nn.CellList([GlobalBlock(dim, num_heads, 2 * dim) for _ in range(depth)])
        self.norm = layer_norm(dim, 1e-6)

    def construct(self, feat, sizes):
        b, c, h, w = feat.shape
        grid = self.pos_embed[:, 1:].swapaxes(1, 2).reshape(1, c, *self.grid)
        grid = ops.interpolate(grid, size=(h, w), mode="bilinear", align_corners=False)
        tokens = (feat + grid).reshape(b, c, h * w).swapaxes(1, 2)
        cls = ops.tile(self.cls_token + self.pos_embed[:, :1], (b, 1, 1))
        x = ops.concat((cls, tokens), axis=1)
        valid = inside((sizes + (self.stride - 1)) // self.stride, h, w).reshape(b, h * w)
        valid = ops.concat((ops.ones((b, 1), ms.bool_), valid), axis=1)
        key_pad = ops.logical_not(valid)
        for block in self.blocks:
            x = block(x, key_pad)
        return self.norm(x)


class Reassemble(nn.Cell):
    def __init__(self, in_dim, cls_dim, out_dim, resample):
        super().__init__()
        self.readout = nn.SequentialCell(nn.Dense(in_dim + cls_dim, in_dim), nn.GELU(approximate=False))
        self.project = conv(in_dim, out_dim, 1)
        self.resample = resample

    def construct(self, feat, cls):
        b, c, h, w = feat.shape
        tokens = feat.reshape(b, c, h * w).swapaxes(1, 2)
        cls = ops.broadcast_to(cls.expand_dims(1), (b, h * w, cls.shape[-1]))
        tokens = self.readout(ops.concat((tokens, cls), axis=-1))
        feat = tokens.swapaxes(1, 2).reshape(b, c, h, w)
        return self.resample(self.project(feat))


class ResidualConvUnit(nn.Cell):
    def __init__(self, dim):
        super().__init__()
        self.conv1 = conv(dim, dim, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(dim, eps=1e-3)
        self.conv2 = conv(dim, dim, 3, bias=False)
        self.bn2 = nn.BatchNorm2d(dim, eps=0.001)

    def construct(self, x):
        # the first ReLU of the original works in place: the skip carries the rectified input
        x = ops.relu(x)
        out = ops.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return x + out


class FeatureFusion(nn.Cell):
    def __init__(self, dim):
        super().__init__()
        self.unit_lateral = ResidualConvUnit(dim)
        self.unit_out = ResidualConvUnit(dim)
        self.out_conv = conv(dim, dim, 1)

    def construct(self, path, lateral, size):
        x = self.unit_lateral(lateral)
        if path is not None:
            x = x + path
        x = self.unit_out(x)
        if size is not None:
            x = ops.interpolate(x, size=size, mode="bilinear", align_corners=True)
        return self.out_conv(x)


class BinHead(nn.Cell):
    def __init__(self, dim, hidden, n_bins, min_depth, max_depth):
        super().__init__()
        self.min_depth, self.max_depth = min_depth, max_depth
        self.mlp = nn.SequentialCell(nn.Dense(dim, hidden), nn.LeakyReLU(alpha=0.01),
                                     nn.Dense(hidden, hidden), nn.LeakyReLU(0.01),
                                     nn.Dense(hidden, n_bins))

    def construct(self, cls):
        widths = ops.relu(self.mlp(cls)) + 0.1
        widths = widths / widths.sum(axis=1, keepdims=True) * (self.max_depth - self.min_depth)
        start = ops.full((cls.shape[0], 1), self.min_depth, dtype=ms.float32)
        edges = ops.cumsum(ops.concat((start, widths), axis=1), 1)
        centers = (edges[:, 1:] + edges[:, :-1]) / 2
        return edges, centers


class Attractor(nn.Cell):
    def __init__(self, dim, hidden, n_points, alpha, min_depth, max_depth):
        super().__init__()
        self.alpha, self.min_depth, self.max_depth = alpha, min_depth, max_depth
        self.point_convs = nn.SequentialCell(conv(dim, hidden, 1), nn.ReLU(), conv(hidden, n_points, 1))

    def construct(self, path, centers):
        points = ops.softplus(self.point_convs(path))
        points = self.min_depth + (self.max_depth - self.min_depth) * points / (points + 1)
        centers = ops.interpolate(centers, size=path.shape[-2:], mode="bilinear", align_corners=True)
        # all points at once: (B, P, 1, H, W) - (B, 1, bins, H, W)
        diff = points.expand_dims(2) - centers.expand_dims(1)
        delta = diff / (1 + self.alpha * diff * diff)
        centers = centers + delta.mean(axis=1)
        centers = ops.clip_by_value(centers, self.min_depth, self.max_depth)
        return ops.sort(centers, axis=1)[0]


class DepthHead(nn.Cell):
    def __init__(self, dim, cls_dim, n_queries, n_bins, factor):
        super().__init__()
        self.n_queries = n_queries
        self.factor = factor
        self.query_proj = nn.Dense(cls_dim, dim)
        self.feat_conv = conv(dim, dim, 3)
        self.to_bins = conv(n_queries, n_bins, 1)
        self.mask_convs = nn.SequentialCell(conv(dim, 2 * dim, 3), nn.ReLU(), conv(2 * dim, 9 * factor ** 2, 1))

    def convex_upsample(self, depth, path):
        b, _, h, w = depth.shape
        r = self.factor
        weights = (0.25 * self.mask_convs(path)).reshape(b, 9, r * r, h, w)
        weights = ops.softmax(weights, axis=1)
        padded = ops.pad(depth, (1, 1, 1, 1), mode="replicate")
        neighbours = ops.concat([padded[:, :, i:i + h, j:j + w] for i in range(3) for j in range(3)], axis=1)
        fine = (weights * neighbours.expand_dims(2)).sum(axis=1)
        return ops.pixel_shuffle(fine, r)

    def construct(self, path, tokens, centers):
        feats = self.feat_conv(path)
        b, c, h, w = feats.shape
        queries = self.query_proj(tokens[:, 1:1 + self.n_queries])
        maps = ops.bmm(queries, feats.reshape(b, c, h * w)).reshape(b, -1, h, w)
        logits = self.to_bins(maps / c ** 0.5)
        prob = ops.softmax(logits, axis=1)
        depth = (prob * centers).sum(axis=1, keepdims=True)
        return self.convex_upsample(depth, path)


def silog_loss(pred, target, valid, lam=0.15):
    weight = valid.astype(ms.float32)
    diff = ops.log(pred) - ops.log(ops.where(valid, target, ops.ones_like(target)))
    count = weight.sum()
    mean = (diff * weight).sum() / count
    var = (ops.square(diff - mean) * weight).sum() / (count - 1)
    return 10.0 * ops.sqrt(var + lam * mean ** 2)


class StereoFormer(nn.Cell):
    def __init__(self, dims=(16, 32, 48), depths=(2, 2, 2), heads=(2, 4, 3), window_size=4, mlp_ratio=2.5, patch=4,
                 dec_dim=20, n_bins=14, n_queries=9, n_points=(8, 5, 3), min_depth=0.5, max_depth=10.0,
                 ref_focal=518.8579):
        super().__init__()
        self.min_depth, self.max_depth, self.ref_focal = min_depth, max_depth, ref_focal
        self.encoder = SwinEncoder(dims, depths, heads, window_size, mlp_ratio, patch)
        self.bin_former = BinTransformer(dims[-1], 4, 2, (6, 7), patch * 2 ** (len(dims) - 1))
        resample = (
            nn.Conv2dTranspose(dec_dim, dec_dim, 2, stride=2, pad_mode="valid", has_bias=True),
            nn.Conv2dTranspose(dec_dim, dec_dim, 4, stride=2, pad_mode="pad", padding=1, has_bias=True),
            nn.Conv2d(dec_dim, dec_dim, 3, stride=2, pad_mode="pad", padding=1, has_bias=True))
        self.reassemble = nn.CellList([Reassemble(d, dims[-1], dec_dim, r) for d, r in zip(dims, resample)])
        self.fusion = nn.CellList([FeatureFusion(dec_dim) for _ in dims])
        self.bin_head = BinHead(dims[-1], 40, n_bins, min_depth, max_depth)
        self.attractors = nn.CellList([Attractor(dec_dim, 24, n, 0.3, min_depth, max_depth) for n in n_points])
        self.depth_head = DepthHead(dec_dim, dims[-1], n_queries, n_bins, 2)

    def decode(self, maps, centers):
        """Fuses from coarse to fine; the bin centers follow along."""
        b, bins = centers.shape
        centers = ops.tile(centers.reshape(b, bins, 1, 1), (1, 1) + maps[-1].shape[-2:])
        path = None
        for i, attractor in enumerate(self.attractors):
            level = len(maps) - 1 - i
            size = maps[level - 1].shape[-2:] if level else None
            path = self.fusion[level](path, maps[level], size)
            centers = attractor(path, centers)
        return path, centers

    def construct(self, image, sizes, focal, target):
        b, _, h, w = image.shape
        feats = self.encoder(image)
        tokens = self.bin_former(feats[-1], sizes)
        cls, context = tokens[:, 0], tokens[:, 1:]
        feats[-1] = feats[-1] + context.swapaxes(1, 2).reshape(feats[-1].shape)
        maps = [cell(f, cls) for cell, f in zip(self.reassemble, feats)]
        edges, centers = self.bin_head(cls)
        path, centers = self.decode(maps, centers)

        depth = self.depth_head(path, tokens, centers)[:, :, :h, :w]
        depth = depth * (focal / self.ref_focal).reshape(b, 1, 1, 1)
        in_range = ops.logical_and(target > self.min_depth, target <= self.max_depth)
        valid = ops.logical_and(inside(sizes, h, w).expand_dims(1), in_range)
        return depth, edges, silog_loss(depth, target, valid)


def make_inputs():
    rng = np.random.RandomState(17)
    yy, xx = np.meshgrid(np.arange(54), np.arange(70), indexing="ij")
    image = rng.randn(2, 3, 54, 70) * 0.6 + np.stack([np.sin(yy / 7.0 + xx / 11.0), np.cos(yy / 5.0), xx / 40.0 - 1])
    sizes = np.array([[54, 70], [45, 59]], dtype=np.int64)
    image = image * np.stack([(yy < h) & (xx < w) for h, w in sizes])[:, None]
    focal = np.array([518.8579, 721.5377])
    target = np.clip(3.0 + yy / 20.0 + rng.randn(2, 1, 54, 70), 0.0, None) * (rng.rand(2, 1, 54, 70) > 0.3)
    return image.astype(np.float32), sizes, focal.astype(np.float32), target.astype(np.float32)


def build():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    net = StereoFormer()
    net.set_train(False)
    return net, tuple(Tensor(a) for a in make_inputs())
