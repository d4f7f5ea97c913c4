"""Masks by queries, ported to MindSpore."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import nn, ops


def sine_positions(h, w, num_feats, temperature=10000.0, scale=2 * math.pi):
    """(2 * num_feats, h, w), rows first, as DETR has it with normalize=True."""
    ones = np.ones((h, w), np.float32)
    y_embed = np.cumsum(ones, axis=0)
    x_embed = np.cumsum(ones, axis=1)
    eps = 1e-6
    y_embed = y_embed / (y_embed[-1:, :] + eps) * scale
    x_embed = x_embed / (x_embed[:, -1:] + eps) * scale
    dim_t = np.arange(num_feats, dtype=np.float32)
    dim_t = temperature ** (2 * (dim_t // 2) / num_feats)
    pos_x = x_embed[:, :, None] / dim_t
    pos_y = y_embed[:, :, None] / dim_t
    pos_x = np.stack((np.sin(pos_x[:, :, 0::2]), np.cos(pos_x[:, :, 1::2])), axis=3).reshape(h, w, -1)
    pos_y = np.stack((np.sin(pos_y[:, :, 0::2]), np.cos(pos_y[:, :, 1::2])), axis=3).reshape(h, w, -1)
    pos = np.concatenate((pos_y, pos_x), axis=2).transpose(2, 0, 1)
    return ms.Tensor(np.ascontiguousarray(pos), ms.float32)


def point_sample(features, coords, align_corners=False):
    """features (N, C, H, W) read at coords (N, P, 2) in [0, 1], x first; gives (N, C, P)."""
    grid = 2.0 * coords.expand_dims(2) - 1.0
    return ops.grid_sample(features, grid, mode="bilinear", padding_mode="zeros", align_corners=align_corners).squeeze(3)


def uncertain_points(logits, num_points):
    """The num_points places of (N, 1, H, W) whose logit is nearest to zero: flat indices and their coordinates."""
    n, _, h, w = logits.shape
    uncertainty = -ops.abs(logits).reshape(n, h * w)
    _, index = ops.topk(uncertainty, num_points, dim=1)
    x = (index % w).astype(ms.float32) * (1.0 / w) + 0.5 / w
    y = (index // w).astype(ms.float32) * (1.0 / h) + 0.5 / h
    return index, ops.stack([x, y], axis=2)


def split_heads(x, heads):
    n, l, d = x.shape
    return x.reshape(n, l, heads, d // heads).transpose(0, 2, 1, 3)


class PixelDecoder(nn.Cell):
    def __init__(self, dim, mask_dim):
        super().__init__()
        self.stem = nn.Conv2d(3, dim // 2, 4, stride=4, pad_mode="pad", padding=0, has_bias=True)
        self.stem_norm = nn.BatchNorm2d(dim // 2, eps=1e-5, momentum=0.9)
        self.down1 = nn.Conv2d(dim // 2, dim, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.down2 = nn.Conv2d(dim, dim, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.lateral = nn.CellList(
            [nn.Conv2d(c, dim, 1, pad_mode="pad", padding=0, has_bias=True) for c in (dim // 2, dim, dim)]
        )
        self.smooth = nn.CellList([nn.Conv2d(dim, dim, 3, pad_mode="pad", padding=1, has_bias=True) for _ in range(2)])
        self.norms = nn.CellList([nn.GroupNorm(4, dim, eps=1e-5) for _ in range(2)])
        self.mask_proj = nn.Conv2d(dim, mask_dim, 1, pad_mode="pad", padding=0, has_bias=True)

    def construct(self, images):
        x = self.stem_norm(self.stem(images))
        c2 = ops.relu(x)
        c3 = ops.relu(self.down1(c2))
        c4 = ops.relu(self.down2(c3) + ops.max_pool2d(c3, 3, stride=2, padding=1))
        y = self.lateral[2](c4)
        outs = [y]
        for i, skip in enumerate((c3, c2)):
            cur = self.lateral[1 - i](skip)
            up = ops.interpolate(y, size=cur.shape[-2:], mode="bilinear", align_corners=False)
            y = cur + up
            y = ops.relu(self.norms[i](self.smooth[i](y)))
            outs.append(y)
        mask_features = self.mask_proj(y)
        return mask_features, outs


class Attention(nn.Cell):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.q_proj = nn.Dense(dim, dim)
        self.k_proj = nn.Dense(dim, dim)
        self.v_proj = nn.Dense(dim, dim)
        self.out_proj = nn.Dense(dim, dim)

    def construct(self, query, key, value, blocked=None):
        n, l, d = query.shape
        q = split_heads(self.q_proj(query) * self.scale, self.heads)
        k = split_heads(self.k_proj(key), self.heads)
        v = split_heads(self.v_proj(value), self.heads)
        attn = ops.matmul(q, k.swapaxes(-2, -1))
        if blocked is not None:
            attn = attn.masked_fill(blocked.expand_dims(1), float("-inf"))
        attn = attn - ops.amax(attn, axis=-1, keepdims=True)
        attn = ops.exp(attn)
        attn = attn / attn.sum(axis=-1, keepdims=True)
        out = ops.matmul(attn, v)
        out = out.transpose(0, 2, 1, 3).reshape(n, l, d)
        return self.out_proj(out)


class DecoderLayer(nn.Cell):
    def __init__(self, dim, heads, hidden):
        super().__init__()
        self.cross = Attention(dim, heads)
        self.norm1 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.self_attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.linear1 = nn.Dense(dim, hidden)
        self.linear2 = nn.Dense(hidden, dim)
        self.norm3 = nn.LayerNorm((dim,), epsilon=1e-5)

    def construct(self, tgt, memory, pos, query_pos, blocked):
        tgt2 = self.cross(tgt + query_pos, memory + pos, memory, blocked)
        tgt = self.norm1(tgt + tgt2)
        q = k = tgt + query_pos
        tgt2 = self.self_attn(q, k, tgt)
        tgt = self.norm2(tgt + tgt2)
        tgt2 = self.linear2(ops.relu(self.linear1(tgt)))
        return self.norm3(tgt + tgt2)


class PointHead(nn.Cell):
    """Re-reads the masks at the points they are least sure of, from fine features and the coarse logit."""

    def __init__(self, fine_dim, hidden, num_points):
        super().__init__()
        self.num_points = num_points
        self.fc1 = nn.Dense(fine_dim + 1, hidden)
        self.fc2 = nn.Dense(hidden + 1, 1)

    def construct(self, masks, fine):
        b, q, h, w = masks.shape
        flat = masks.reshape(b * q, 1, h, w)
        index, coords = uncertain_points(flat, self.num_points)
        coarse = point_sample(flat, coords).swapaxes(1, 2)
        fine = ops.repeat_interleave(fine, q, axis=0)
        detail = point_sample(fine, coords).swapaxes(1, 2)
        x = ops.concat([detail, coarse], axis=2)
        x = ops.relu(self.fc1(x))
        x = ops.concat([x, coarse], axis=2)
        new = self.fc2(x).squeeze(2) + 0.5 * coarse.squeeze(2)
        flat = ops.tensor_scatter_elements(flat.reshape(b * q, h * w), index, new, axis=1)
        return flat.reshape(b, q, h, w)


class Segmenter(nn.Cell):
    def __init__(self, classes=7, dim=32, mask_dim=24, heads=4, queries=9, depth=3, points=40):
        super().__init__()
        self.dim = dim
        self.heads = heads
        self.num_levels = 3
        self.pixel_decoder = PixelDecoder(dim, mask_dim)
        self.level_embed = nn.Embedding(self.num_levels, dim)
        self.query_feat = nn.Embedding(queries, dim)
        self.query_embed = nn.Embedding(queries, dim)
        self.layers = nn.CellList([DecoderLayer(dim, heads, 2 * dim) for _ in range(depth)])
        self.decoder_norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.class_embed = nn.Dense(dim, classes + 1)
        self.mask_embed1 = nn.Dense(dim, dim)
        self.mask_embed2 = nn.Dense(dim, mask_dim)
        self.point_head = PointHead(mask_dim, 24, points)

    def predict(self, output, mask_features, target_size):
        """Classes and masks of the queries, and what the next cross attention may not see."""
        x = self.decoder_norm(output)
        logits = self.class_embed(x)
        mask_embed = self.mask_embed2(ops.relu(self.mask_embed1(x)))
        b, c, h, w = mask_features.shape
        masks = ops.matmul(mask_embed, mask_features.reshape(b, c, h * w)).reshape(b, -1, h, w)
        blocked = ops.interpolate(masks, size=target_size, mode="bilinear", align_corners=False)
        blocked = ops.sigmoid(blocked).reshape(b, masks.shape[1], -1) < 0.5
        # a query that may look nowhere looks everywhere
        nowhere = blocked.astype(ms.int32).sum(axis=-1, keepdims=True) == blocked.shape[-1]
        blocked = ops.logical_and(blocked, ops.logical_not(nowhere))
        return logits, masks, blocked

    def construct(self, images):
        b, _, height, width = images.shape
        mask_features, features = self.pixel_decoder(images)
        memory, pos, sizes = [], [], []
        for i in range(self.num_levels):
            n, c, h, w = features[i].shape
            sizes.append((h, w))
            p = sine_positions(h, w, self.dim // 2).reshape(self.dim, h * w).swapaxes(0, 1)
            pos.append(ops.tile(p.expand_dims(0), (b, 1, 1)))
            src = features[i].reshape(n, c, h * w) + self.level_embed.embedding_table[i].reshape(1, -1, 1)
            memory.append(src.transpose(0, 2, 1))
        query_pos = ops.tile(self.query_embed.embedding_table.expand_dims(0), (b, 1, 1))
        output = ops.tile(self.query_feat.embedding_table.expand_dims(0), (b, 1, 1))
        logits, masks, blocked = self.predict(output, mask_features, sizes[0])
        for i, layer in enumerate(self.layers):
            level = i % self.num_levels
            output = layer(output, memory[level], pos[level], query_pos, blocked)
            logits, masks, blocked = self.predict(output, mask_features, sizes[(i + 1) % self.num_levels])
        masks = ops.interpolate(masks, size=(height // 2, width // 2), mode="bilinear", align_corners=False)
        masks = self.point_head(masks, mask_features)
        probs = ops.softmax(logits, axis=-1)[..., :-1]
        q, h, w = masks.shape[1:]
        semantic = ops.matmul(probs.swapaxes(1, 2), ops.sigmoid(masks).reshape(b, q, h * w)).reshape(b, -1, h, w)
        return logits, masks, semantic


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Segmenter()
