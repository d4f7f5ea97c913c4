"""The little deformable DETR in MindSpore: the correct port."""
import math

import mindspore as ms
import numpy as np
from mindspore import nn, ops


def channel_norm(x, eps=1e-5):
    # layer norm over the channels of a map, no weights
    u = x.mean(axis=1, keep_dims=True)
    s = ops.square(x - u).mean(axis=1, keep_dims=True)
    return (x - u) / ops.sqrt(s + eps)


def inverse_sigmoid(x, eps=1e-3):
    x = ops.clamp(x, 0, 1)
    return ops.log(ops.clamp(x, min=eps) / ops.clamp(1 - x, min=eps))


def box_cxcywh_to_xyxy(boxes):
    centre, half = boxes[..., :2], 0.5 * boxes[..., 2:]
    return ops.concat([centre - half, centre + half], axis=-1)


def box_iou(boxes):
    """(B, Q, 4) -> (B, Q, Q)"""
    area = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
    lt = ops.maximum(boxes[:, :, None, :2], boxes[:, None, :, :2])
    rb = ops.minimum(boxes[:, :, None, 2:], boxes[:, None, :, 2:])
    wh = ops.clamp(rb - lt, min=0)
    inter = wh[..., 0] * wh[..., 1]
    union = area[:, :, None] + area[:, None, :] - inter
    return inter / ops.clamp(union, min=1e-6)


def wavelengths(num_feats, temperature):
    index = np.arange(num_feats)
    return ms.Tensor((temperature ** (2 * (index // 2) / num_feats)).astype(np.float32))


def waves(angles):
    """Sines of the even entries and cosines of the odd ones, interleaved."""
    pairs = ops.stack([ops.sin(angles[..., 0::2]), ops.cos(angles[..., 1::2])], axis=-1)
    return pairs.reshape(*angles.shape)


def position_sine(valid, num_feats, temperature=100.0, scale=2 * math.pi):
    """valid: (B, H, W) bool -> (B, 2*num_feats, H, W)"""
    valid = valid.astype(ms.float32)
    y_embed = ops.cumsum(valid, axis=1)
    x_embed = ops.cumsum(valid, axis=2)
    y_embed = (y_embed - 0.5) / (y_embed[:, -1:, :] + 1e-6) * scale
    x_embed = (x_embed - 0.5) / (x_embed[:, :, -1:] + 1e-6) * scale
    dim_t = wavelengths(num_feats, temperature)
    pos_x = waves(x_embed.expand_dims(-1) / dim_t)
    pos_y = waves(y_embed.expand_dims(-1) / dim_t)
    return ops.concat((pos_y, pos_x), axis=3).transpose(0, 3, 1, 2)


def box_sine(boxes, num_feats, temperature=20.0):
    """(B, Q, 4) cxcywh -> (B, Q, 4*num_feats), the order is y, x, w, h"""
    angles = (boxes * (2 * math.pi)).expand_dims(-1) / wavelengths(num_feats, temperature)
    coded = waves(angles)
    cx, cy, w, h = coded[:, :, 0], coded[:, :, 1], coded[:, :, 2], coded[:, :, 3]
    return ops.concat((cy, cx, w, h), axis=-1)


def sample_levels(value, shapes, locations, weights):
    """value (B, S, M, D), locations (B, Q, M, L, P, 2) in 0..1, weights (B, Q, M, L, P) -> (B, Q, M*D)"""
    B, _, M, D = value.shape
    _, Q, _, L, P, _ = locations.shape
    values = ops.split(value, [h * w for h, w in shapes], axis=1)
    grids = 2 * locations - 1
    sampled = []
    for level, (h, w) in enumerate(shapes):
        v = values[level].transpose(0, 2, 3, 1).reshape(B * M, D, h, w)
        g = grids[:, :, :, level].swapaxes(1, 2).reshape(B * M, Q, P, 2)
        sampled.append(ops.grid_sample(v, g, mode="bilinear", padding_mode="zeros", align_corners=False))
    weights = weights.swapaxes(1, 2).reshape(B * M, 1, Q, L * P)
    out = (ops.concat(sampled, axis=-1) * weights).sum(axis=-1)
    return out.reshape(B, M * D, Q).swapaxes(1, 2)


class DeformAttn(nn.Cell):
    def __init__(self, d_model, n_levels, n_heads, n_points):
        super().__init__()
        self.n_levels, self.n_heads, self.n_points = n_levels, n_heads, n_points
        self.sampling_offsets = nn.Dense(d_model, n_heads * n_levels * n_points * 2)
        self.attention_weights = nn.Dense(d_model, n_heads * n_levels * n_points)
        self.value_proj = nn.Dense(d_model, d_model)
        self.output_proj = nn.Dense(d_model, d_model)

    def construct(self, query, reference_points, memory, shapes, pad_mask):
        B, Q, C = query.shape
        M, L, P = self.n_heads, self.n_levels, self.n_points
        value = self.value_proj(memory).masked_fill(pad_mask.expand_dims(-1), 0.0)
        value = value.reshape(B, -1, M, C // M)
        offsets = self.sampling_offsets(query).reshape(B, Q, M, L, P, 2)
        weights = self.attention_weights(query).reshape(B, Q, M, L * P)
        weights = ops.softmax(weights, axis=-1).reshape(B, Q, M, L, P)
        reference_points = reference_points[:, :, None, :, None, :]
        if reference_points.shape[-1] == 2:
            normalizer = ms.Tensor([[w, h] for h, w in shapes], ms.float32).reshape(1, 1, 1, L, 1, 2)
            locations = reference_points + offsets / normalizer
        else:
            centre, extent = reference_points[..., :2], reference_points[..., 2:]
            locations = centre + offsets / P * extent * 0.5
        return self.output_proj(sample_levels(value, shapes, locations, weights))


class EncoderLayer(nn.Cell):
    def __init__(self, d_model, n_levels, n_heads, n_points, d_ffn):
        super().__init__()
        self.self_attn = DeformAttn(d_model, n_levels, n_heads, n_points)
        self.norm1 = nn.LayerNorm((d_model,), epsilon=1e-5)
        self.linear1 = nn.Dense(d_model, d_ffn)
        self.linear2 = nn.Dense(d_ffn, d_model)
        self.norm2 = nn.LayerNorm((d_model,), epsilon=1e-5)

    def construct(self, src, pos, reference_points, shapes, pad_mask):
        src = self.norm1(src + self.self_attn(src + pos, reference_points, src, shapes, pad_mask))
        return self.norm2(src + self.linear2(ops.relu(self.linear1(src))))


class DecoderLayer(nn.Cell):
    def __init__(self, d_model, n_levels, n_heads, n_points, d_ffn):
        super().__init__()
        self.n_heads = n_heads
        self.q_k = nn.Dense(d_model, 2 * d_model)
        self.v = nn.Dense(d_model, d_model)
        self.norm1 = nn.LayerNorm((d_model,), epsilon=1e-5)
        self.cross_attn = DeformAttn(d_model, n_levels, n_heads, n_points)
        self.norm2 = nn.LayerNorm((d_model,), epsilon=1e-5)
        self.linear1 = nn.Dense(d_model, d_ffn)
        self.linear2 = nn.Dense(d_ffn, d_model)
        self.norm3 = nn.LayerNorm((d_model,), epsilon=1e-5)

    def heads(self, x):
        B, Q, C = x.shape
        return x.reshape(B, Q, self.n_heads, C // self.n_heads).swapaxes(1, 2)

    def mix_queries(self, tgt, query_pos):
        B, Q, C = tgt.shape
        q, k = ops.chunk(self.q_k(tgt + query_pos), 2, axis=-1)
        q, k, v = self.heads(q), self.heads(k), self.heads(self.v(tgt))
        attn = ops.matmul(q / math.sqrt(C // self.n_heads), k.swapaxes(-2, -1))
        return ops.matmul(ops.softmax(attn, axis=-1), v).swapaxes(1, 2).reshape(B, Q, C)

    def construct(self, tgt, query_pos, reference_points, memory, shapes, pad_mask):
        tgt = self.norm1(tgt + self.mix_queries(tgt, query_pos))
        tgt2 = self.cross_attn(tgt + query_pos, reference_points, memory, shapes, pad_mask)
        tgt = self.norm2(tgt + tgt2)
        return self.norm3(tgt + self.linear2(ops.relu(self.linear1(tgt))))


class Detect(nn.Cell):
    def __init__(self, d_model=32, n_heads=4, n_points=3, d_ffn=48, n_queries=12, n_classes=6, n_decoder=2):
        super().__init__()
        self.d_model, self.n_queries, self.n_levels = d_model, n_queries, 2
        self.conv1 = nn.Conv2d(3, 16, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.conv2 = nn.Conv2d(16, 24, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.conv3 = nn.Conv2d(24, 32, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.input_proj = nn.CellList([
            nn.Conv2d(24, d_model, 1, pad_mode="pad", has_bias=True),
            nn.Conv2d(32, d_model, 1, pad_mode="pad", has_bias=True)])
        self.level_embed = ms.Parameter(ops.zeros((self.n_levels, d_model), ms.float32))
        self.encoder = EncoderLayer(d_model, self.n_levels, n_heads, n_points, d_ffn)
        self.enc_score = nn.Dense(d_model, 1)
        self.query_pos = nn.Dense(2 * d_model, d_model)
        self.decoder = nn.CellList(
            [DecoderLayer(d_model, self.n_levels, n_heads, n_points, d_ffn) for _ in range(n_decoder)])
        self.bbox1 = nn.Dense(d_model, d_model)
        self.bbox2 = nn.Dense(d_model, 4)
        self.class_embed = nn.Dense(d_model, n_classes)

    def features(self, images):
        x = ops.relu(channel_norm(self.conv1(images)))
        c2 = ops.relu(channel_norm(self.conv2(x)))
        c3 = ops.relu(channel_norm(self.conv3(c2)))
        return [self.input_proj[0](c2), self.input_proj[1](c3)]

    def flatten_levels(self, feats, valid):
        src, pos, masks, shapes, ratios = [], [], [], [], []
        for level, feat in enumerate(feats):
            B, C, h, w = feat.shape
            mask = ops.interpolate(valid.expand_dims(1).astype(ms.float32), size=(h, w), mode="nearest")[:, 0] > 0.5
            p = position_sine(mask, self.d_model // 2).reshape(B, -1, h * w).swapaxes(1, 2)
            src.append(feat.reshape(B, C, h * w).swapaxes(1, 2))
            pos.append(p + self.level_embed[level])
            masks.append(ops.logical_not(mask).reshape(B, -1))
            shapes.append((h, w))
            filled = mask.astype(ms.float32)
            ratio_h = filled[:, :, 0].sum(axis=1) / h
            ratio_w = filled[:, 0, :].sum(axis=1) / w
            ratios.append(ops.stack([ratio_w, ratio_h], axis=-1))
        return ops.concat(src, 1), ops.concat(pos, 1), ops.concat(masks, 1), shapes, ops.stack(ratios, 1)

    def reference_points(self, shapes, valid_ratios):
        points = []
        for level, (h, w) in enumerate(shapes):
            rows = np.arange(h, dtype=np.float32) + 0.5
            cols = np.arange(w, dtype=np.float32) + 0.5
            y, x = np.meshgrid(rows, cols, indexing="ij")
            y = ms.Tensor(y.reshape(1, -1)) / (valid_ratios[:, level, 1:2] * h)
            x = ms.Tensor(x.reshape(1, -1)) / (valid_ratios[:, level, 0:1] * w)
            points.append(ops.stack((x, y), -1))
        return ops.concat(points, 1)

    def select_queries(self, memory, pad_mask, points, shapes):
        B = memory.shape[0]
        sides = np.concatenate([np.full((h * w, 2), 0.15 * 2.0 ** i, np.float32) for i, (h, w) in enumerate(shapes)])
        proposals = ops.concat([points, ms.Tensor(np.stack([sides] * B))], -1)
        score = self.enc_score(memory).squeeze(-1).masked_fill(pad_mask, float("-inf"))
        _, index = ops.topk(score, self.n_queries, dim=1)
        index = index.expand_dims(-1)
        tgt = ops.gather_elements(memory, 1, index.broadcast_to((B, self.n_queries, self.d_model)))
        boxes = ops.gather_elements(proposals, 1, index.broadcast_to((B, self.n_queries, 4)))
        return tgt, ops.stop_gradient(boxes)

    def suppress(self, boxes, prob):
        """A box loses score for every better one that it overlaps (the Gaussian of soft-NMS, all at once)."""
        best = prob.max(axis=-1)
        better = (best.expand_dims(1) > best.expand_dims(2)).astype(ms.float32)
        decay = ops.exp(-(box_iou(boxes) ** 2 * better).sum(axis=-1) / 0.5)
        return prob * decay.expand_dims(-1)

    def construct(self, images, sizes):
        B, _, H, W = images.shape
        rows = ops.arange(H).reshape(1, H, 1) < sizes[:, 0].reshape(B, 1, 1)
        cols = ops.arange(W).reshape(1, 1, W) < sizes[:, 1].reshape(B, 1, 1)
        valid = ops.logical_and(rows, cols)
        feats = self.features(images * valid.expand_dims(1).astype(images.dtype))
        src, pos, pad_mask, shapes, valid_ratios = self.flatten_levels(feats, valid)
        points = self.reference_points(shapes, valid_ratios)
        memory = self.encoder(src, pos, points.expand_dims(2) * valid_ratios.expand_dims(1), shapes, pad_mask)

        tgt, boxes = self.select_queries(memory, pad_mask, points, shapes)
        box_ratios = ops.tile(valid_ratios, (1, 1, 2))
        for layer in self.decoder:
            query_pos = self.query_pos(box_sine(boxes, self.d_model // 2))
            around = boxes.expand_dims(2) * box_ratios.expand_dims(1)
            tgt = layer(tgt, query_pos, around, memory, shapes, pad_mask)
            delta = self.bbox2(ops.relu(self.bbox1(tgt)))
            boxes = ops.sigmoid(delta + inverse_sigmoid(boxes))

        corners = ops.clamp(box_cxcywh_to_xyxy(boxes), 0.0, 1.0)
        scores = self.suppress(corners, ops.sigmoid(self.class_embed(tgt)))
        height, width = sizes[:, 0:1].astype(ms.float32) / H, sizes[:, 1:2].astype(ms.float32) / W
        scale = ops.concat([width, height, width, height], axis=1)
        return ops.concat([corners * scale.expand_dims(1), scores], axis=-1)


def build():
    return Detect()
