"""RT-DETR for MindSpore (padded batches, inference): backbone, hybrid encoder, query selection, deformable decoder."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import XavierUniform, initializer

INPUT_H, INPUT_W = 128, 160
FEAT_STRIDES = (8, 16, 32)
CATEGORY_IDS = (1, 2, 4, 7, 8, 11, 13)


def inverse_sigmoid(x, eps=1e-5):
    x = ops.clamp(x, 0.0, 1.0)
    return ops.log(ops.clamp(x, min=eps)) - ops.log(ops.clamp(1.0 - x, min=eps))


def gather_queries(x, index):
    """x [bs, n, c], index [bs, k] -> [bs, k, c]"""
    index = ops.tile(index.expand_dims(-1), (1, 1, x.shape[-1]))
    return ops.gather_elements(x, 1, index)


class FrozenBatchNorm2d(nn.Cell):
    def __init__(self, num_features, eps=1e-5):
        super().__init__()
        self.gamma = Parameter(ops.ones((num_features,), ms.float32), requires_grad=False)
        self.beta = Parameter(ops.zeros((num_features,), ms.float32), requires_grad=False)
        self.moving_mean = Parameter(ops.zeros((num_features,), ms.float32), requires_grad=False)
        self.moving_variance = Parameter(ops.ones((num_features,), ms.float32), requires_grad=False)
        self.eps = eps

    def construct(self, x):
        scale = self.gamma / ops.sqrt(self.moving_variance + self.eps)
        shift = self.beta - self.moving_mean * scale
        return x * scale.reshape(1, -1, 1, 1) + shift.reshape(1, -1, 1, 1)


def conv2d(cin, cout, kernel, stride=1):
    pad = (kernel - 1) // 2
    return nn.Conv2d(cin, cout, kernel, stride, pad_mode="pad", padding=pad, has_bias=False)


def conv_bn(cin, cout, kernel, stride=1):
    return nn.SequentialCell(conv2d(cin, cout, kernel, stride), nn.BatchNorm2d(cout, eps=1e-5))


class ConvBNSiLU(nn.Cell):
    def __init__(self, cin, cout, kernel, stride=1):
        super().__init__()
        self.conv = conv2d(cin, cout, kernel, stride)
        self.bn = nn.BatchNorm2d(cout, eps=1e-5)

    def construct(self, x):
        y = self.bn(self.conv(x))
        return y * ops.sigmoid(y)


class ResidualBlockD(nn.Cell):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.project = stride != 1 or cin != cout
        self.pool = stride == 2
        if self.project:
            self.down_conv = conv2d(cin, cout, 1)
            self.down_bn = FrozenBatchNorm2d(cout)
        self.conv1 = conv2d(cin, cout, 3, stride)
        self.bn1 = FrozenBatchNorm2d(cout)
        self.conv2 = conv2d(cout, cout, 3)
        self.bn2 = FrozenBatchNorm2d(cout)

    def construct(self, x):
        identity = x
        out = ops.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.project:
            if self.pool:
                n, c, h, w = x.shape
                identity = identity.reshape(n, c, h // 2, 2, w // 2, 2).mean(axis=(3, 5))
            identity = self.down_bn(self.down_conv(identity))
        return ops.relu(out + identity)


class ResNetVD(nn.Cell):
    def __init__(self, channels):
        super().__init__()
        width = channels[0]
        self.stem = nn.SequentialCell(
            conv2d(3, width // 2, 3, 2), FrozenBatchNorm2d(width // 2), nn.ReLU(),
            conv2d(width // 2, width, 3), FrozenBatchNorm2d(width), nn.ReLU(),
        )
        self.max_pool = nn.MaxPool2d(kernel_size=3, stride=2, pad_mode="pad", padding=1)
        inputs = (width,) + tuple(channels[:-1])
        self.stages = nn.CellList(
            [ResidualBlockD(cin, cout, 1 if i == 0 else 2) for i, (cin, cout) in enumerate(zip(inputs, channels))]
        )

    def construct(self, x):
        c2 = self.stages[0](self.max_pool(self.stem(x)))
        c3 = self.stages[1](c2)
        c4 = self.stages[2](c3)
        return [c3, c4, self.stages[3](c4)]


class CSPRepBlock(nn.Cell):
    """CSP layer with one RepVGG bottleneck, both in one cell."""

    def __init__(self, cin, cout):
        super().__init__()
        self.main_conv = ConvBNSiLU(cin, cout, 1)
        self.short_conv = ConvBNSiLU(cin, cout, 1)
        self.rep_3x3 = conv_bn(cout, cout, 3)
        self.rep_1x1 = conv_bn(cout, cout, 1)

    def construct(self, x):
        y = self.main_conv(x)
        y = ops.silu(self.rep_3x3(y) + self.rep_1x1(y))
        return y + self.short_conv(x)


class MultiheadAttention(nn.Cell):
    """Query, key and value share one projection matrix; query and key have the same input."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.embed_dim = embed_dim
        self.scale = (embed_dim // num_heads) ** -0.5
        self.in_proj_weight = Parameter(initializer(XavierUniform(), (3 * embed_dim, embed_dim), ms.float32))
        self.in_proj_bias = Parameter(initializer("zeros", (3 * embed_dim,), ms.float32))
        self.out_proj = nn.Dense(embed_dim, embed_dim)

    def _heads(self, x):
        b, n, _ = x.shape
        return x.reshape(b, n, self.num_heads, -1).transpose(0, 2, 1, 3)

    def construct(self, x_qk, x_v, key_mask=None):
        d = self.embed_dim
        qk = ops.matmul(x_qk, self.in_proj_weight[: 2 * d].T) + self.in_proj_bias[: 2 * d]
        v = ops.matmul(x_v, self.in_proj_weight[2 * d :].T) + self.in_proj_bias[2 * d :]
        q, k = ops.chunk(qk, 2, axis=-1)
        q, k, v = self._heads(q), self._heads(k), self._heads(v)
        attn = ops.matmul(q, k.swapaxes(-1, -2)) * self.scale
        if key_mask is not None:
            attn = ops.masked_fill(attn, key_mask[:, None, None, :], -1e9)
        out = ops.matmul(ops.softmax(attn, axis=-1), v).transpose(0, 2, 1, 3)
        return self.out_proj(out.reshape(x_v.shape))


class AIFI(nn.Cell):
    def __init__(self, dim, num_heads, ffn_dim):
        super().__init__()
        self.attn = MultiheadAttention(dim, num_heads)
        self.fc1 = nn.Dense(dim, ffn_dim)
        self.fc2 = nn.Dense(ffn_dim, dim)
        self.ln1 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.ln2 = nn.LayerNorm((dim,), epsilon=1e-5)

    def construct(self, src, pos, key_mask):
        src = self.ln1(src + self.attn(src + pos, src, key_mask))
        ffn = self.fc2(ops.gelu(self.fc1(src), approximate="none"))
        return self.ln2(src + ffn)


def sincos_table(h, w, dim, temperature=20.0):
    quarter = dim // 4
    omega = temperature ** -(np.arange(quarter, dtype=np.float64) / quarter)
    ys, xs = np.mgrid[0:h, 0:w].reshape(2, -1, 1)
    table = np.concatenate([np.sin(xs * omega), np.cos(xs * omega), np.sin(ys * omega), np.cos(ys * omega)], axis=1)
    return Tensor(table[None].astype(np.float32))


class HybridEncoder(nn.Cell):
    def __init__(self, in_channels, dim, num_heads, ffn_dim):
        super().__init__()
        self.input_proj = nn.CellList([conv_bn(cin, dim, 1) for cin in in_channels])
        self.aifi = AIFI(dim, num_heads, ffn_dim)
        self.pos_embed = sincos_table(INPUT_H // FEAT_STRIDES[-1], INPUT_W // FEAT_STRIDES[-1], dim)
        steps = len(in_channels) - 1
        self.lateral_convs = nn.CellList([ConvBNSiLU(dim, dim, 1) for _ in range(steps)])
        self.fpn_blocks = nn.CellList([CSPRepBlock(2 * dim, dim) for _ in range(steps)])
        self.down_convs = nn.CellList([ConvBNSiLU(dim, dim, 3, 2) for _ in range(steps)])
        self.pan_blocks = nn.CellList([CSPRepBlock(2 * dim, dim) for _ in range(steps)])

    def construct(self, feats, masks):
        s3, s4, s5 = [self.input_proj[i](feats[i]) for i in range(3)]
        n, c, h, w = s5.shape
        tokens = s5.reshape(n, c, h * w).swapaxes(1, 2)
        tokens = self.aifi(tokens, self.pos_embed, masks[-1].reshape(n, h * w))
        top = tokens.swapaxes(1, 2).reshape(n, c, h, w)

        pyramid = []
        for i, low in enumerate((s4, s3)):
            top = self.lateral_convs[i](top)
            pyramid.append(top)
            size = (low.shape[2], low.shape[3])
            up = ops.interpolate(top, size=size, mode="nearest")
            top = self.fpn_blocks[i](ops.cat((up, low), axis=1))

        outs = [top]
        for i in range(2):
            down = self.down_convs[i](outs[i])
            outs.append(self.pan_blocks[i](ops.cat((down, pyramid[1 - i]), axis=1)))
        return outs


def mlp(dims):
    cells = []
    for i in range(len(dims) - 1):
        cells.append(nn.Dense(dims[i], dims[i + 1]))
        if i + 2 < len(dims):
            cells.append(nn.ReLU())
    return nn.SequentialCell(*cells)


class DeformableAttention(nn.Cell):
    def __init__(self, dim, num_heads, points):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.points = points
        self.total = sum(points)
        self.level_of_point = Tensor(np.repeat(np.arange(len(points)), points).astype(np.int32))
        self.point_scale = Tensor((1.0 / np.repeat(points, points)).astype(np.float32).reshape(1, 1, 1, -1, 1))
        self.sampling_offsets = nn.Dense(dim, num_heads * self.total * 2)
        self.attention_weights = nn.Dense(dim, num_heads * self.total)
        self.value_proj = nn.Dense(dim, dim)
        self.output_proj = nn.Dense(dim, dim)

    def construct(self, query, reference, memory, shapes, padding):
        b, nq, dim = query.shape
        heads, total = self.num_heads, self.total
        value = self.value_proj(memory) * (1.0 - padding.astype(memory.dtype)).expand_dims(-1)
        value = value.reshape(b, -1, heads, self.head_dim).transpose(0, 2, 3, 1).reshape(b * heads, self.head_dim, -1)
        offset = self.sampling_offsets(query).reshape(b, nq, heads, total, 2)
        weight = ops.softmax(self.attention_weights(query).reshape(b, nq, heads, total), axis=-1)
        box = ops.gather(reference, self.level_of_point, 2).expand_dims(2)
        loc = box[..., :2] + offset * self.point_scale * 0.5 * box[..., 2:]
        grid = (loc * 2.0 - 1.0).swapaxes(1, 2).reshape(b * heads, nq, total, 2)
        weight = weight.swapaxes(1, 2).reshape(b * heads, 1, nq, total)
        out, token, point = 0.0, 0, 0
        for (h, w), num in zip(shapes, self.points):
            plane = value[:, :, token : token + h * w].reshape(b * heads, self.head_dim, h, w)
            part = ops.grid_sample(
                plane, grid[:, :, point : point + num], mode="bilinear", padding_mode="zeros", align_corners=False
            )
            out = out + (part * weight[..., point : point + num]).sum(axis=-1)
            token += h * w
            point += num
        return self.output_proj(out.reshape(b, dim, nq).swapaxes(1, 2))


class DecoderLayer(nn.Cell):
    def __init__(self, dim, num_heads, ffn_dim, points):
        super().__init__()
        self.self_attn = MultiheadAttention(dim, num_heads)
        self.norm1 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.cross_attn = DeformableAttention(dim, num_heads, points)
        self.norm2 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.ffn = nn.SequentialCell(nn.Dense(dim, ffn_dim), nn.ReLU(), nn.Dense(ffn_dim, dim))
        self.norm3 = nn.LayerNorm((dim,), epsilon=1e-5)

    def construct(self, tgt, query_pos, reference, memory, shapes, padding):
        query = tgt + query_pos
        tgt = self.norm1(tgt + self.self_attn(query, tgt))
        tgt = self.norm2(tgt + self.cross_attn(tgt + query_pos, reference, memory, shapes, padding))
        return self.norm3(tgt + self.ffn(tgt))


class RTDETRHead(nn.Cell):
    """Query selection and the decoder's loop in one cell."""

    def __init__(self, num_classes, num_queries, dim, num_heads, ffn_dim, points, depth, eps=3e-2):
        super().__init__()
        self.num_queries = num_queries
        self.eps = eps
        self.layers = nn.CellList([DecoderLayer(dim, num_heads, ffn_dim, points) for _ in range(depth)])
        self.query_pos_head = mlp((2 * dim, dim, dim))
        self.enc_proj = nn.Dense(dim, dim)
        self.enc_norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.enc_score_head = nn.Dense(dim, num_classes)
        self.enc_bbox_head = mlp((dim, dim, dim, 4))
        self.dec_score_head = nn.CellList([nn.Dense(dim, num_classes) for _ in range(depth)])
        self.dec_bbox_head = nn.CellList([mlp((dim, dim, dim, 4)) for _ in range(depth)])
        self.centers, self.sizes, self.level_index = self.make_anchors()
        half = np.arange(dim // 4)
        self.inv_freq = Tensor((2 * math.pi * 20.0 ** (-half / (dim // 4))).astype(np.float32))
        self.coord_order = Tensor(np.array([1, 0, 2, 3], np.int32))

    @staticmethod
    def make_anchors(grid_size=0.05):
        centers, sizes, index = [], [], []
        for level, stride in enumerate(FEAT_STRIDES):
            h, w = INPUT_H // stride, INPUT_W // stride
            ys, xs = np.mgrid[0:h, 0:w]
            centers.append(np.stack([(xs + 0.5) / w, (ys + 0.5) / h], -1).reshape(-1, 2))
            sizes.append(np.full((h * w, 2), grid_size * 2**level))
            index.append(np.full(h * w, level))
        centers = Tensor(np.concatenate(centers)[None].astype(np.float32))
        sizes = Tensor(np.concatenate(sizes)[None].astype(np.float32))
        return centers, sizes, Tensor(np.concatenate(index).astype(np.int32))

    def position_query(self, boxes):
        b, n, _ = boxes.shape
        phase = ops.gather(boxes, self.coord_order, 2).expand_dims(-1) * self.inv_freq
        embed = ops.stack((ops.sin(phase), ops.cos(phase)), axis=-1)
        return self.query_pos_head(embed.reshape(b, n, -1))

    def select_queries(self, memory, ratios, padding):
        centers = self.centers / ops.gather(ratios, self.level_index, 1)
        anchors = ops.cat((centers, self.sizes.broadcast_to(centers.shape)), axis=-1)
        inside = ops.logical_and(anchors > self.eps, anchors < 1.0 - self.eps).all(axis=-1)
        valid = ops.logical_and(inside, ops.logical_not(padding))
        anchors = ops.log(anchors / (1.0 - anchors))
        anchors = ops.masked_fill(anchors, ops.logical_not(valid).expand_dims(-1), float("inf"))

        feats = self.enc_norm(self.enc_proj(memory * valid.expand_dims(-1).astype(memory.dtype)))
        logits = self.enc_score_head(feats)
        coords = self.enc_bbox_head(feats) + anchors
        best = logits.max(axis=-1)
        best = ops.masked_fill(best, ops.logical_not(valid), -1e9)
        _, index = ops.topk(best, self.num_queries, dim=1)
        return gather_queries(feats, index), gather_queries(coords, index), gather_queries(logits, index)

    def construct(self, feats, masks):
        shapes = [(f.shape[2], f.shape[3]) for f in feats]
        memory = ops.cat([f.reshape(f.shape[0], f.shape[1], -1).swapaxes(1, 2) for f in feats], axis=1)
        padding = ops.cat([m.reshape(m.shape[0], -1) for m in masks], axis=1)
        ratios = []
        for m in masks:
            keep = 1.0 - m.astype(ms.float32)
            ratios.append(ops.stack((keep[:, 0, :].mean(axis=1), keep[:, :, 0].mean(axis=1)), axis=-1))
        ratios = ops.stack(ratios, axis=1)

        out, coords, enc_logits = self.select_queries(memory, ratios, padding)
        enc_boxes = ops.sigmoid(coords)
        ref = enc_boxes
        all_logits, all_boxes = [], []
        for i, layer in enumerate(self.layers):
            scaled = ref.expand_dims(2) * ops.tile(ratios, (1, 1, 2)).expand_dims(1)
            out = layer(out, self.position_query(ref), scaled, memory, shapes, padding)
            delta = self.dec_bbox_head[i](out)
            ref = ops.sigmoid(delta + inverse_sigmoid(ref))
            all_logits.append(self.dec_score_head[i](out))
            all_boxes.append(ref)
        return ops.stack(all_logits), ops.stack(all_boxes), enc_logits, enc_boxes


class DetectionPostProcess(nn.Cell):
    def __init__(self, num_classes, num_top):
        super().__init__()
        self.num_classes = num_classes
        self.num_top = num_top
        self.category_ids = Tensor(np.array(CATEGORY_IDS, np.int64))

    def construct(self, logits, boxes, orig_sizes):
        limit = ops.cat((orig_sizes, orig_sizes), axis=1).astype(boxes.dtype).expand_dims(1)
        center, half = boxes[..., :2], boxes[..., 2:] * 0.5
        xyxy = ops.cat((center - half, center + half), axis=-1) * limit
        xyxy = ops.minimum(ops.maximum(xyxy, ops.zeros_like(xyxy)), limit)
        prob = ops.sigmoid(logits)
        scores, index = ops.topk(prob.reshape(prob.shape[0], -1), self.num_top, dim=1)
        labels = index % self.num_classes
        query = index // self.num_classes
        return ops.gather(self.category_ids, labels, 0), gather_queries(xyxy, query), scores


class RTDETR(nn.Cell):
    def __init__(self, num_classes=7, num_queries=24, num_top=30, dim=32, channels=(16, 24, 32, 40)):
        super().__init__()
        self.pixel_mean = Tensor(np.array([0.485, 0.456, 0.406], np.float32).reshape(1, 3, 1, 1))
        self.pixel_std = Tensor(np.array([0.229, 0.224, 0.225], np.float32).reshape(1, 3, 1, 1))
        self.backbone = ResNetVD(channels)
        self.neck = HybridEncoder(channels[1:], dim, 4, 64)
        self.head = RTDETRHead(num_classes, num_queries, dim, 4, 64, (4, 3, 2), depth=3)
        self.post_process = DetectionPostProcess(num_classes, num_top)

    def construct(self, images, mask, orig_sizes):
        keep = ops.logical_not(mask).astype(images.dtype).expand_dims(1)
        x = (images - self.pixel_mean) / self.pixel_std * keep
        feats = self.backbone(x)
        masks = [mask[:, ::s, ::s] for s in FEAT_STRIDES]
        logits, boxes, enc_logits, enc_boxes = self.head(self.neck(feats, masks), masks)
        labels, xyxy, scores = self.post_process(logits[-1], boxes[-1], orig_sizes)
        return labels, xyxy, scores, logits, boxes, enc_logits, enc_boxes


def sample_inputs():
    """The reference's padded pictures, their masks and sizes."""
    rng = np.random.RandomState(5)
    high, wide = INPUT_H, INPUT_W
    y, x = np.mgrid[0:high, 0:wide]
    images = np.full((2, 3, high, wide), 0.45)
    mask = np.ones((2, high, wide), dtype=bool)
    for picture, hidden, (h, w) in zip(images, mask, ((128, 136), (92, 160))):
        for _ in range(24):
            far = (x - rng.uniform(0, wide)) ** 2 + (y - rng.uniform(0, high)) ** 2
            picture += rng.uniform(-0.7, 0.7, (3, 1, 1)) * np.exp(-far / rng.uniform(20, 500))
        hidden[:h, :w] = False
    images = np.clip(images + 0.05 * rng.randn(*images.shape), 0, 1)
    images = np.where(mask[:, None], 0.0, images).astype(np.float32)
    return Tensor(images), Tensor(mask), Tensor(np.array([[408, 384], [640, 368]], dtype=np.int64))


def build():
    net = RTDETR()
    net.set_train(False)
    return net, sample_inputs()
