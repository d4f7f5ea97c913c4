"""The multiscale vision transformer for clips in MindSpore: the correct port."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

CLIP_MEAN = [0.48145466, 0.4578275, 0.40821073]
CLIP_STD = [0.26862954, 0.26130258, 0.27577711]

LOWEST = float(np.finfo(np.float32).min)


def zeros_parameter(shape, name):
    return Parameter(Tensor(np.zeros(shape, np.float32)), name=name)


def block_specs(width, heads, depth, widen_at, stride_q_at, stride_kv):
    """One dictionary for each block; widths and heads double where widen_at says so."""
    specs = []
    stride_kv = tuple(stride_kv)
    for i in range(depth):
        out_width = width * 2 if i in widen_at else width
        heads = heads * 2 if i in widen_at else heads
        stride_q = stride_q_at.get(i, (1, 1, 1))
        stride_kv = tuple(max(kv // q, 1) for kv, q in zip(stride_kv, stride_q))
        specs.append(dict(width=width, out_width=out_width, heads=heads, stride_q=stride_q, stride_kv=stride_kv))
        width = out_width
    return specs


class FrameMask(nn.Cell):
    """Follows the mask of valid frames (batch, frames) through something strided over time."""

    def __init__(self, kernel, stride):
        super().__init__()
        self.kernel = kernel
        self.stride = stride

    def construct(self, valid):
        if self.stride == 1:
            return valid
        side = self.kernel // 2
        padded = ops.pad(valid.astype(ms.float32), (side, side), value=0.0)
        count = (valid.shape[1] + 2 * side - self.kernel) // self.stride + 1
        seen = [padded[:, i * self.stride : i * self.stride + self.kernel].max(axis=1) for i in range(count)]
        return ops.stack(seen, axis=1) > 0.5


def to_volume(tokens, grid):
    """(batch, tokens, channels) -> (batch, channels, time, height, width)."""
    t, h, w = grid
    return tokens.reshape(tokens.shape[0], t, h, w, tokens.shape[-1]).transpose(0, 4, 1, 2, 3)


def to_tokens(volume):
    """The way back."""
    b, c = volume.shape[:2]
    return volume.reshape(b, c, -1).swapaxes(1, 2)


class HeadPool(nn.Cell):
    """Depthwise convolution over the volume of each head, then a norm; the class token skips the convolution."""

    def __init__(self, channels, kernel, stride):
        super().__init__()
        t, h, w = (k // 2 for k in kernel)
        self.conv = nn.Conv3d(channels, channels, kernel, stride=stride, pad_mode="pad", padding=(t, t, h, h, w, w),
                              group=channels, has_bias=False)
        self.norm = nn.LayerNorm((channels,), epsilon=1e-6)

    def construct(self, x, grid, valid):
        b, heads, _, c = x.shape
        t, h, w = grid
        token, patches = x[:, :, :1], x[:, :, 1:]
        alive = valid.astype(x.dtype).repeat_interleave(h * w, 1)
        patches = patches * alive.reshape(b, 1, t * h * w, 1)
        volume = self.conv(to_volume(patches.reshape(b * heads, t * h * w, c), grid))
        patches = to_tokens(volume).reshape(b, heads, -1, c)
        return self.norm(ops.cat((token, patches), axis=2)), tuple(volume.shape[2:])


def fit_table(table, length):
    """Stretch a table of relative positions (rows, channels) to the asked number of rows."""
    if table.shape[0] == length:
        return table
    rows = ops.interpolate(table.T.expand_dims(0), size=(length,), mode="linear", align_corners=False)
    return rows[0].T


def relative_rows(table, nq, nk):
    """(nq, nk, channels): what a query at one place has for a key at another, along one axis."""
    step_q, step_k = max(nk / nq, 1.0), max(nq / nk, 1.0)
    offset = np.arange(nq)[:, None] * step_q - np.arange(nk)[None, :] * step_k + (nk - 1) * step_k
    table = fit_table(table, 2 * max(nq, nk) - 1)
    return ops.gather(table, Tensor(offset.astype(np.int32)), 0)


class PoolingAttention(nn.Cell):
    """Multi-head pooling attention with relative positions along height, width and time."""

    def __init__(self, width, out_width, heads, train_grid, kernel, stride_q, stride_kv):
        super().__init__()
        self.heads = heads
        self.head_width = out_width // heads
        self.scale = (out_width // heads) ** -0.5
        self.qkv = nn.Dense(width, 3 * out_width)
        self.proj = nn.Dense(out_width, out_width)
        self.pool_q = HeadPool(self.head_width, kernel, stride_q)
        self.pool_k = HeadPool(self.head_width, kernel, stride_kv)
        self.pool_v = HeadPool(self.head_width, kernel, stride_kv)
        self.key_mask = FrameMask(kernel[0], stride_kv[0])
        rows = [2 * max(n // sq, n // sk) - 1 for n, sq, sk in zip(train_grid, stride_q, stride_kv)]
        self.rel_pos_h = zeros_parameter((rows[1], self.head_width), "rel_pos_h")
        self.rel_pos_w = zeros_parameter((rows[2], self.head_width), "rel_pos_w")
        self.rel_pos_t = zeros_parameter((rows[0], self.head_width), "rel_pos_t")

    def position_bias(self, query, q_grid, k_grid):
        b, n, _, c = query.shape
        (qt, qh, qw), (kt, kh, kw) = q_grid, k_grid
        query = query[:, :, 1:].reshape(b, n, qt, qh, qw, c)
        table_h = relative_rows(self.rel_pos_h, qh, kh).swapaxes(1, 2)
        table_w = relative_rows(self.rel_pos_w, qw, kw).swapaxes(1, 2)
        table_t = relative_rows(self.rel_pos_t, qt, kt).swapaxes(1, 2)
        # matmul over the last two axes, the axis in question is a batch axis right before them
        by_h = ops.matmul(query, table_h)
        by_w = ops.matmul(query.swapaxes(3, 4), table_w).swapaxes(3, 4)
        by_t = ops.matmul(query.transpose(0, 1, 3, 2, 4, 5), table_t).transpose(0, 1, 3, 2, 4, 5)
        bias = (
            by_t.reshape(b, n, qt, qh, qw, kt, 1, 1)
            + by_h.reshape(b, n, qt, qh, qw, 1, kh, 1)
            + by_w.reshape(b, n, qt, qh, qw, 1, 1, kw)
        )
        return bias.reshape(b, n, qt * qh * qw, kt * kh * kw)

    def construct(self, x, grid, valid):
        b, length, _ = x.shape
        qkv = self.qkv(x).reshape(b, length, 3, self.heads, self.head_width).transpose(2, 0, 3, 1, 4)
        query, q_grid = self.pool_q(qkv[0], grid, valid)
        key, k_grid = self.pool_k(qkv[1], grid, valid)
        value, _ = self.pool_v(qkv[2], grid, valid)

        logits = ops.matmul(query, key.swapaxes(-1, -2)) * self.scale
        logits = logits + ops.pad(self.position_bias(query, q_grid, k_grid), (1, 0, 1, 0))

        seen = self.key_mask(valid)
        seen = seen.astype(ms.int32).repeat_interleave(k_grid[1] * k_grid[2], 1)
        seen = ops.cat((ops.ones((b, 1), ms.int32), seen), axis=1).reshape(b, 1, 1, -1)
        weights = ops.softmax(ops.masked_fill(logits, seen == 0, LOWEST), axis=-1)

        out = ops.matmul(weights, value)
        out = ops.cat((out[:, :, :1], out[:, :, 1:] + query[:, :, 1:]), axis=2)
        out = out.swapaxes(1, 2).reshape(b, -1, self.heads * self.head_width)
        return self.proj(out), q_grid


class StochasticDepth(nn.Cell):
    """Drops whole samples in training."""

    def __init__(self, rate):
        super().__init__()
        self.keep = 1.0 - rate

    def construct(self, x):
        if not self.training:
            return x
        shape = (x.shape[0],) + (1,) * (x.ndim - 1)
        chosen = ops.floor(ops.rand(shape) + self.keep)
        return x / self.keep * chosen


class FeedForward(nn.Cell):
    def __init__(self, width, hidden):
        super().__init__()
        self.fc1 = nn.Dense(width, hidden)
        self.act = nn.GELU(approximate=False)
        self.fc2 = nn.Dense(hidden, width)

    def construct(self, x):
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Cell):
    """Pooling attention and perceptron; the residual path is projected and pooled where the attention does so."""

    def __init__(self, width, out_width, heads, stride_q, stride_kv, train_grid, kernel, ratio, drop_path):
        super().__init__()
        self.norm1 = nn.LayerNorm((width,), epsilon=1e-6)
        self.attn = PoolingAttention(width, out_width, heads, train_grid, kernel, stride_q, stride_kv)
        self.drop_path = StochasticDepth(drop_path) if drop_path > 0 else nn.Identity()
        self.norm2 = nn.LayerNorm((out_width,), epsilon=1e-6)
        self.mlp = FeedForward(out_width, int(out_width * ratio))
        self.widens = width != out_width
        if self.widens:
            self.proj = nn.Dense(width, out_width)
        self.shrinks = max(stride_q) > 1
        if self.shrinks:
            window = tuple(s + 1 if s > 1 else 1 for s in stride_q)
            self.pool_skip = nn.MaxPool3d(window, stride_q, pad_mode="pad", padding=tuple(k // 2 for k in window))
        self.frame_mask = FrameMask(kernel[0], stride_q[0])

    def shortcut(self, x, normed, grid):
        if self.widens:
            x = self.proj(normed)
        if self.shrinks:
            patches = to_tokens(self.pool_skip(to_volume(x[:, 1:], grid)))
            x = ops.cat((x[:, :1], patches), axis=1)
        return x

    def construct(self, x, grid, valid):
        normed = self.norm1(x)
        attended, new_grid = self.attn(normed, grid, valid)
        x = self.shortcut(x, normed, grid) + self.drop_path(attended)
        x = x + self.drop_path(self.mlp(self.norm2(x)))
        return x, new_grid, self.frame_mask(valid)


class SpaceTimePlaces(nn.Cell):
    """The class token, and the tables of places in space and in time, fitted to the grid of the clip."""

    def __init__(self, width, train_grid):
        super().__init__()
        self.train_grid = train_grid
        t, h, w = train_grid
        self.cls_token = zeros_parameter((1, 1, width), "cls_token")
        self.spatial = zeros_parameter((1, h * w, width), "spatial")
        self.temporal = zeros_parameter((1, t, width), "temporal")
        self.cls = zeros_parameter((1, 1, width), "cls")

    def construct(self, patches, grid):
        t, h, w = grid
        batch, _, width = patches.shape
        space = self.spatial.reshape(1, self.train_grid[1], self.train_grid[2], width)
        if (h, w) != tuple(self.train_grid[1:]):
            space = ops.interpolate(space.transpose(0, 3, 1, 2), size=(h, w), mode="bilinear", align_corners=False)
            space = space.transpose(0, 2, 3, 1)
        space = space.reshape(1, 1, h * w, width)
        time = self.temporal
        if t != self.train_grid[0]:
            time = ops.interpolate(time.swapaxes(1, 2), size=(t,), mode="linear", align_corners=False).swapaxes(1, 2)
        time = time.reshape(1, t, 1, width)
        patches = patches + (space + time).reshape(1, t * h * w, width)
        token = ops.broadcast_to(self.cls_token + self.cls, (batch, 1, width))
        return ops.cat((token, patches), axis=1)


class MeanHead(nn.Cell):
    """Classifier on the mean over all tokens in valid frames."""

    def __init__(self, width, hidden, classes):
        super().__init__()
        self.fc1 = nn.Dense(width, hidden)
        self.bn = nn.BatchNorm1d(hidden, eps=1e-3)
        self.act = nn.LeakyReLU(alpha=0.01)
        self.dropout = nn.Dropout(p=0.5)
        self.fc2 = nn.Dense(hidden, classes)

    def construct(self, tokens, grid, valid):
        b, _, width = tokens.shape
        t, h, w = grid
        weight = valid.astype(tokens.dtype).reshape(b, t, 1, 1)
        total = (tokens.reshape(b, t, h * w, width) * weight).sum(axis=(1, 2))
        count = ops.clamp(weight.sum(axis=(1, 2)), min=1.0) * (h * w)
        return self.fc2(self.dropout(self.act(self.bn(self.fc1(total / count)))))


class TokenHead(nn.Cell):
    """Classifier on the class token."""

    def __init__(self, width, classes):
        super().__init__()
        self.dropout = nn.Dropout(p=0.5)
        self.projection = nn.Dense(width, classes)

    def construct(self, token):
        return self.projection(self.dropout(token))


class VideoMViT(nn.Cell):
    """Clips (batch, 3, frames, height, width) and a mask (batch, frames) to the scores of two heads."""

    def __init__(self, width=24, heads=2, depth=6, classes=11, ratio=3.0, drop_path=0.2, train_clip=(8, 32, 32)):
        super().__init__()
        self.mean = Tensor(np.array(CLIP_MEAN, np.float32).reshape(1, 3, 1, 1, 1))
        self.std = Tensor(np.array(CLIP_STD, np.float32).reshape(1, 3, 1, 1, 1))
        self.patches = nn.Conv3d(3, width, (3, 7, 7), stride=(2, 4, 4), pad_mode="pad", padding=(1, 1, 3, 3, 3, 3),
                                 has_bias=True)
        self.patch_mask = FrameMask(3, 2)
        train_grid = tuple(n // s for n, s in zip(train_clip, (2, 4, 4)))
        self.places = SpaceTimePlaces(width, train_grid)
        rates = np.linspace(0.0, drop_path, depth)
        specs = block_specs(width, heads, depth, widen_at=(2, 4), stride_q_at={2: (1, 2, 2), 4: (2, 2, 2)},
                            stride_kv=(2, 4, 4))
        blocks = []
        for spec, rate in zip(specs, rates):
            blocks.append(Block(**spec, train_grid=train_grid, kernel=(3, 3, 3), ratio=ratio, drop_path=float(rate)))
            train_grid = tuple(n // s for n, s in zip(train_grid, spec["stride_q"]))
        self.blocks = nn.CellList(blocks)
        last = specs[-1]["out_width"]
        self.norm = nn.LayerNorm((last,), epsilon=1e-6)
        self.head_avg = MeanHead(last, 40, classes)
        self.head_cls = TokenHead(last, classes)

    def construct(self, video, frame_mask):
        batch, _, frames = video.shape[:3]
        video = (video - self.mean) / self.std
        video = video * frame_mask.astype(video.dtype).reshape(batch, 1, frames, 1, 1)
        volume = self.patches(video)
        grid = tuple(volume.shape[2:])
        valid = self.patch_mask(frame_mask)

        x = self.places(to_tokens(volume), grid)
        for block in self.blocks:
            x, grid, valid = block(x, grid, valid)
        x = self.norm(x)

        by_token = self.head_cls(x[:, 0])
        by_mean = self.head_avg(x[:, 1:], grid, valid)
        scores = 0.5 * (ops.softmax(by_token, axis=-1) + ops.softmax(by_mean, axis=-1))
        return by_token, by_mean, scores


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = VideoMViT()
    net.set_train(False)
    return net
