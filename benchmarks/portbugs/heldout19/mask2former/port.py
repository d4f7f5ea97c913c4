"""Mask classification for semantic and instance segmentation with masked attention, in MindSpore: the port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import nn, ops

MEAN = [123.675, 116.280, 103.530]
STD = [58.395, 57.120, 57.375]
CLOSED = float(np.finfo(np.float32).min)


def conv(in_channels, out_channels, kernel, stride=1, bias=False):
    """A convolution padded as torch pads it."""
    if kernel == 1:
        return nn.Conv2d(in_channels, out_channels, 1, stride=stride, pad_mode="valid", has_bias=bias)
    return nn.Conv2d(
        in_channels, out_channels, kernel, stride=stride, pad_mode="pad", padding=kernel // 2, has_bias=bias
    )


def resize_bilinear(x, size):
    return ops.interpolate(x, size=tuple(size), mode="bilinear", align_corners=False)


def valid_pixels(sizes, height, width):
    """1.0 for the pixels of each image, 0.0 for its padding."""
    in_y = ops.arange(height)[None, :] < sizes[:, 0:1]
    in_x = ops.arange(width)[None, :] < sizes[:, 1:2]
    return ops.logical_and(in_y[:, :, None], in_x[:, None, :]).astype(ms.float32)


def valid_at(valid, size):
    return ops.interpolate(valid[:, None], size=tuple(size), mode="nearest")[:, 0]


def to_tokens(x):
    """B x C x H x W to B x HW x C."""
    b, c = x.shape[:2]
    return x.reshape(b, c, -1).swapaxes(1, 2)


def split_heads(x, heads):
    b, length, width = x.shape
    x = x.reshape(b, length, heads, width // heads).transpose(0, 2, 1, 3)
    return x.reshape(b * heads, length, width // heads)


def merge_heads(x, heads):
    n, length, width = x.shape
    return x.reshape(n // heads, heads, length, width).transpose(0, 2, 1, 3).reshape(n // heads, length, heads * width)


def boxes_of(masks):
    """Boxes x0, y0, x1, y1 around the boolean masks N x H x W, zeros where a mask is empty."""
    _, h, w = masks.shape
    ys, xs = ops.arange(h), ops.arange(w)
    in_row, in_col = masks.any(axis=2), masks.any(axis=1)
    left = ops.where(in_col, xs, w).astype(ms.float32).min(axis=1)
    top = ops.where(in_row, ys, h).astype(ms.float32).min(axis=1)
    right = ops.where(in_col, xs + 1, 0).astype(ms.float32).max(axis=1)
    bottom = ops.where(in_row, ys + 1, 0).astype(ms.float32).max(axis=1)
    boxes = ops.stack([left, top, right, bottom], axis=1)
    return boxes * in_row.any(axis=1, keep_dims=True).astype(ms.float32)


class ResBlock(nn.Cell):
    def __init__(self, in_channels, channels, stride=1):
        super().__init__()
        self.conv1 = conv(in_channels, channels, 3, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = conv(channels, channels, 3)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.project = stride != 1 or in_channels != channels
        if self.project:
            self.shortcut = nn.SequentialCell(conv(in_channels, channels, 1, stride), nn.BatchNorm2d(channels))

    def construct(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.project:
            x = self.shortcut(x)
        return self.relu(x + y)


class Backbone(nn.Cell):
    """Gives a list of the maps at strides 4, 8, 16."""

    def __init__(self, stem, channels):
        super().__init__()
        self.stem_conv = nn.Conv2d(3, stem, 7, stride=2, pad_mode="pad", padding=3)
        self.stem_bn = nn.BatchNorm2d(stem)
        self.stem_pool = nn.MaxPool2d(3, stride=2, pad_mode="pad", padding=1)
        stages = []
        previous = stem
        for i, width in enumerate(channels):
            if i == 0:
                stages.append(nn.SequentialCell(ResBlock(previous, width)))
            else:
                stages.append(nn.SequentialCell(ResBlock(previous, width, stride=2), ResBlock(width, width)))
            previous = width
        self.stages = nn.CellList(stages)

    def construct(self, x):
        x = self.stem_pool(ops.relu(self.stem_bn(self.stem_conv(x))))
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps


class SinePositions(nn.Cell):
    """Sine embedding of the place inside of the valid part of a picture: B x H x W to B x HW x 2 feats."""

    def __init__(self, feats, temperature=10000.0):
        super().__init__()
        exponent = 2 * (np.arange(feats) // 2) / feats
        self.periods = ms.Tensor((temperature**exponent).astype(np.float32))
        self.turn = 2 * math.pi

    def waves(self, place):
        angle = place[..., None] / self.periods
        waves = ops.stack([ops.sin(angle[..., 0::2]), ops.cos(angle[..., 1::2])], axis=-1)
        return waves.reshape(angle.shape)

    def construct(self, valid):
        b, h, w = valid.shape
        y = ops.cumsum(valid, 1)
        x = ops.cumsum(valid, 2)
        y = y / (y[:, -1:, :] + 1e-6) * self.turn
        x = x / (x[:, :, -1:] + 1e-6) * self.turn
        return ops.cat([self.waves(y), self.waves(x)], axis=-1).reshape(b, h * w, -1)


class Attention(nn.Cell):
    """Attention with a projection each; closed is boolean, (batch * heads) x queries x keys."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.scale = 1.0 / math.sqrt(width // heads)
        self.q_proj = nn.Dense(width, width)
        self.k_proj = nn.Dense(width, width)
        self.v_proj = nn.Dense(width, width)
        self.out_proj = nn.Dense(width, width)

    def construct(self, query, key, value, closed=None):
        q = split_heads(self.q_proj(query), self.heads)
        k = split_heads(self.k_proj(key), self.heads)
        v = split_heads(self.v_proj(value), self.heads)
        logits = ops.bmm(q, k.swapaxes(1, 2)) * self.scale
        if closed is not None:
            logits = ops.masked_fill(logits, closed, CLOSED)
        return self.out_proj(merge_heads(ops.bmm(ops.softmax(logits, axis=-1), v), self.heads))


class EncoderLayer(nn.Cell):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.self_attn = Attention(width, heads)
        self.norm1 = nn.LayerNorm((width,), epsilon=1e-5)
        self.linear1 = nn.Dense(width, hidden)
        self.linear2 = nn.Dense(hidden, width)
        self.norm2 = nn.LayerNorm((width,), epsilon=1e-5)

    def construct(self, x, pos, closed):
        located = x + pos
        x = self.norm1(x + self.self_attn(located, located, x, closed))
        hidden = ops.gelu(self.linear1(x), approximate="none")
        return self.norm2(x + self.linear2(hidden))


class PixelDecoder(nn.Cell):
    """Transformer encoder on the coarsest map, then the pyramid; the maps come coarse to fine."""

    def __init__(self, in_channels, width, mask_dim, heads, hidden, depth):
        super().__init__()
        self.heads = heads
        self.positions = SinePositions(width // 2)
        self.input_proj = conv(in_channels[-1], width, 1, bias=True)
        self.encoder = nn.CellList([EncoderLayer(width, heads, hidden) for _ in range(depth)])
        finer = list(in_channels[:-1])[::-1]
        self.lateral_convs = nn.CellList([conv(c, width, 1) for c in finer])
        self.lateral_norms = nn.CellList([nn.GroupNorm(8, width) for _ in finer])
        self.output_convs = nn.CellList([conv(width, width, 3) for _ in in_channels])
        self.output_norms = nn.CellList([nn.GroupNorm(8, width) for _ in in_channels])
        self.mask_features = conv(width, mask_dim, 3, bias=True)

    def encode(self, x, valid):
        b, _, h, w = x.shape
        valid = valid_at(valid, (h, w))
        pos = self.positions(valid)
        tokens = to_tokens(self.input_proj(x))
        closed = (valid < 0.5).reshape(b, 1, 1, h * w)
        closed = ops.broadcast_to(closed, (b, self.heads, h * w, h * w)).reshape(b * self.heads, h * w, h * w)
        for layer in self.encoder:
            tokens = layer(tokens, pos, closed)
        return tokens.swapaxes(1, 2).reshape(b, -1, h, w)

    def out(self, i, x):
        return ops.relu(self.output_norms[i](self.output_convs[i](x)))

    def construct(self, maps, valid):
        y = self.out(0, self.encode(maps[-1], valid))
        levels = [y]
        for i, x in enumerate(maps[-2::-1]):
            lateral = self.lateral_norms[i](self.lateral_convs[i](x))
            y = self.out(i + 1, lateral + resize_bilinear(y, lateral.shape[-2:]))
            levels.append(y)
        return self.mask_features(y), levels


class SelfLayer(nn.Cell):
    def __init__(self, width, heads):
        super().__init__()
        self.self_attn = Attention(width, heads)
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)

    def construct(self, x, query_pos):
        located = x + query_pos
        return self.norm(x + self.self_attn(located, located, x))


class CrossLayer(nn.Cell):
    def __init__(self, width, heads):
        super().__init__()
        self.multihead_attn = Attention(width, heads)
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)

    def construct(self, x, query_pos, memory, memory_pos, closed):
        attended = self.multihead_attn(x + query_pos, memory + memory_pos, memory, closed)
        return self.norm(x + attended)


class FeedForward(nn.Cell):
    def __init__(self, width, hidden):
        super().__init__()
        self.linear1 = nn.Dense(width, hidden)
        self.linear2 = nn.Dense(hidden, width)
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)

    def construct(self, x):
        return self.norm(x + self.linear2(ops.relu(self.linear1(x))))


class MLP(nn.Cell):
    def __init__(self, widths):
        super().__init__()
        self.layers = nn.CellList([nn.Dense(a, b) for a, b in zip(widths[:-1], widths[1:])])

    def construct(self, x):
        for layer in self.layers[:-1]:
            x = ops.relu(layer(x))
        return self.layers[-1](x)


class MaskedDecoder(nn.Cell):
    """The queries and their masks, layer by layer."""

    def __init__(self, in_width, width, queries, classes, heads, hidden, depth, mask_dim, levels=3):
        super().__init__()
        self.heads = heads
        self.depth = depth
        self.levels = levels
        self.positions = SinePositions(width // 2)
        self.self_attention_layers = nn.CellList([SelfLayer(width, heads) for _ in range(depth)])
        self.cross_attention_layers = nn.CellList([CrossLayer(width, heads) for _ in range(depth)])
        self.ffn_layers = nn.CellList([FeedForward(width, hidden) for _ in range(depth)])
        self.decoder_norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.query_feat = nn.Embedding(queries, width)
        self.query_embed = nn.Embedding(queries, width)
        self.level_embed = nn.Embedding(levels, width)
        self.input_proj = nn.CellList([conv(in_width, width, 1, bias=True) for _ in range(levels)])
        self.class_embed = nn.Dense(width, classes + 1)
        self.mask_embed = MLP([width, width, width, mask_dim])

    def predict(self, x, mask_features):
        """Class logits B x Q x classes + 1 and mask logits B x Q x H x W."""
        b, c, h, w = mask_features.shape
        normed = self.decoder_norm(x)
        logits = self.class_embed(normed)
        embed = self.mask_embed(normed)
        masks = ops.bmm(embed, mask_features.reshape(b, c, h * w)).reshape(b, -1, h, w)
        return logits, masks

    def closed_by(self, masks, size, padding):
        """Where the next layer must not look, (batch * heads) x queries x keys."""
        b, q = masks.shape[:2]
        small = resize_bilinear(masks, size).reshape(b, q, -1)
        closed = ops.logical_or(ops.sigmoid(small) < 0.5, padding[:, None, :])
        blind = closed.all(axis=-1, keep_dims=True)
        closed = ops.logical_and(closed, ops.logical_not(blind))
        closed = ops.broadcast_to(closed[:, None], (b, self.heads, q, closed.shape[-1]))
        return closed.reshape(b * self.heads, q, -1)

    def construct(self, mask_features, levels, valid):
        memory, memory_pos, padding, sizes = [], [], [], []
        level_table = self.level_embed.embedding_table
        for i, level in enumerate(levels):
            size = level.shape[-2:]
            valid_here = valid_at(valid, size)
            tokens = to_tokens(self.input_proj[i](level))
            memory.append(tokens + level_table[i])
            memory_pos.append(self.positions(valid_here))
            padding.append((valid_here < 0.5).reshape(level.shape[0], -1))
            sizes.append(size)

        b = mask_features.shape[0]
        query_pos = ops.tile(self.query_embed.embedding_table[None], (b, 1, 1))
        x = ops.tile(self.query_feat.embedding_table[None], (b, 1, 1))
        logits, masks = self.predict(x, mask_features)
        for i in range(self.depth):
            at = i % self.levels
            closed = self.closed_by(masks, sizes[at], padding[at])
            x = self.cross_attention_layers[i](x, query_pos, memory[at], memory_pos[at], closed)
            x = self.self_attention_layers[i](x, query_pos)
            x = self.ffn_layers[i](x)
            logits, masks = self.predict(x, mask_features)
        return logits, masks


class MaskFormer(nn.Cell):
    def __init__(self, classes=7, queries=10, topk=6, output_size=(30, 38)):
        super().__init__()
        channels = (24, 40, 56)
        self.classes = classes
        self.topk = topk
        self.output_size = output_size
        self.mean = ms.Tensor(MEAN, ms.float32).reshape(1, 3, 1, 1)
        self.std = ms.Tensor(STD, ms.float32).reshape(1, 3, 1, 1)
        self.backbone = Backbone(16, channels)
        self.pixel_decoder = PixelDecoder(channels, 48, 32, heads=6, hidden=72, depth=2)
        self.predictor = MaskedDecoder(48, 40, queries, classes, heads=5, hidden=96, depth=4, mask_dim=32)

    def semantic(self, logits, masks):
        """C x H x W from Q x classes + 1 and Q x H x W."""
        _, h, w = masks.shape
        probs = ops.softmax(logits, axis=-1)[:, :-1]
        return ops.matmul(probs.swapaxes(0, 1), ops.sigmoid(masks).reshape(-1, h * w)).reshape(-1, h, w)

    def instances(self, logits, masks):
        probs = ops.softmax(logits, axis=-1)[:, :-1]
        scores, index = ops.topk(probs.reshape(-1), self.topk)
        labels = index % self.classes
        masks = masks[index // self.classes]

        binary = (masks > 0).astype(ms.float32)
        area = binary.sum(axis=(1, 2))
        quality = (ops.sigmoid(masks) * binary).sum(axis=(1, 2)) / (area + 1e-6)
        return scores * quality, labels, binary, boxes_of(masks > 0)

    def construct(self, images, sizes):
        h, w = images.shape[-2:]
        valid = valid_pixels(sizes, h, w)
        x = (images - self.mean) / self.std * valid[:, None]
        mask_features, levels = self.pixel_decoder(self.backbone(x), valid)
        logits, masks = self.predictor(mask_features, levels, valid)

        full = resize_bilinear(masks, (h, w))
        semantic, instances = [], []
        for i, (height, width) in enumerate(sizes.asnumpy().tolist()):
            own = resize_bilinear(full[i : i + 1, :, :height, :width], self.output_size)[0]
            semantic.append(self.semantic(logits[i], own))
            instances.append(self.instances(logits[i], own))
        scores, labels, binary, boxes = [ops.stack(field) for field in zip(*instances)]
        return logits, masks, ops.stack(semantic), scores, labels, binary, boxes


def build():
    """The net alone: weights and inputs come from the reference."""
    return MaskFormer()
