"""SeqDETR for MindSpore (PYNATIVE)."""
import math

import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, initializer

ms.set_context(mode=ms.PYNATIVE_MODE)


# --------------------------------------------------------------------------- helpers
def inverse_sigmoid(x, eps=1e-5):
    x = ops.clamp(x, 0.0, 1.0)
    numerator = ops.clamp(x, min=eps)
    denominator = ops.clamp(1.0 - x, min=eps)
    return ops.log(numerator / denominator)


def cxcywh_to_xyxy(boxes):
    center, size = ops.split(boxes, 2, axis=-1)
    return ops.cat((center - 0.5 * size, center + 0.5 * size), axis=-1)


def frequency_table(num_feats, temperature=10000.0):
    index = np.arange(num_feats)
    return Tensor((temperature ** (2 * (index // 2) / num_feats)).astype(np.float32))


def interleave_sin_cos(angles):
    """(..., F) angles -> (..., F): sin on the even, cos on the odd channels"""
    out = ops.stack((ops.sin(angles[..., 0::2]), ops.cos(angles[..., 1::2])), axis=-1)
    return out.reshape(angles.shape)


def box_sine_embedding(boxes, freq):
    """(B, Q, 4) cxcywh -> (B, Q, 4 * F), in the order y, x, w, h"""
    x, y, w, h = ops.unbind(boxes * (2 * math.pi), dim=-1)
    coords = ops.stack((y, x, w, h), axis=-1)
    emb = interleave_sin_cos(coords.expand_dims(-1) / freq)
    return emb.reshape(boxes.shape[0], boxes.shape[1], -1)


def resize_mask(mask, size):
    """nearest, as torch's interpolate (True marks padding)"""
    m = mask.expand_dims(0).astype(ms.float32)
    return ops.interpolate(m, size=size, mode="nearest")[0].astype(ms.bool_)


def conv_bn(in_ch, out_ch, kernel, stride=1):
    conv = nn.Conv2d(in_ch, out_ch, kernel, stride=stride, pad_mode="pad", padding=kernel // 2, has_bias=False)
    return nn.SequentialCell(conv, nn.BatchNorm2d(out_ch, eps=1e-3))


class MLP(nn.Cell):
    def __init__(self, in_dim, hidden, out_dim, num_layers):
        super().__init__()
        dims = [in_dim] + [hidden] * (num_layers - 1) + [out_dim]
        self.fcs = nn.CellList([nn.Dense(i, o) for i, o in zip(dims[:-1], dims[1:])])
        self.relu = nn.ReLU()

    def construct(self, x):
        for fc in self.fcs[:-1]:
            x = self.relu(fc(x))
        return self.fcs[-1](x)


# --------------------------------------------------------------------------- backbone
class ResidualBlock(nn.Cell):
    def __init__(self, in_ch, out_ch, stride=1):
        super().__init__()
        self.branch1 = conv_bn(in_ch, out_ch, 3, stride)
        self.branch2 = conv_bn(out_ch, out_ch, 3)
        self.has_shortcut = stride != 1 or in_ch != out_ch
        if self.has_shortcut:
            self.shortcut = conv_bn(in_ch, out_ch, 1, stride)
        self.relu = nn.ReLU()

    def construct(self, x):
        shortcut = self.shortcut(x) if self.has_shortcut else x
        out = self.relu(self.branch1(x))
        out = self.branch2(out)
        return self.relu(out + shortcut)


class Backbone(nn.Cell):
    def __init__(self, widths=(16, 20, 28, 40)):
        super().__init__()
        self.stem = conv_bn(3, widths[0], 7, 2)
        self.stem_act = nn.LeakyReLU(alpha=0.1)
        self.pool = nn.MaxPool2d(kernel_size=3, stride=2, pad_mode="pad", padding=1)
        self.stage1 = ResidualBlock(widths[0], widths[1])
        self.stage2 = nn.SequentialCell(ResidualBlock(widths[1], widths[2], 2), ResidualBlock(widths[2], widths[2]))
        self.stage3 = ResidualBlock(widths[2], widths[3], 2)
        self.out_channels = widths[2:]

    def construct(self, images):
        x = self.pool(self.stem_act(self.stem(images)))
        c2 = self.stage1(x)
        c3 = self.stage2(c2)
        c4 = self.stage3(c3)
        return [c3, c4]


class SinePositionEmbedding(nn.Cell):
    def __init__(self, num_feats):
        super().__init__()
        self.freq = frequency_table(num_feats)
        self.scale = 2 * math.pi

    def construct(self, mask):
        valid = ops.logical_not(mask).astype(ms.float32)
        y = ops.cumsum(valid, 1)
        x = ops.cumsum(valid, 2)
        y = (y - 0.5) / (y[:, -1:, :] + 1e-6) * self.scale
        x = (x - 0.5) / (x[:, :, -1:] + 1e-6) * self.scale
        pos_y = interleave_sin_cos(y.expand_dims(-1) / self.freq)
        pos_x = interleave_sin_cos(x.expand_dims(-1) / self.freq)
        return ops.cat((pos_y, pos_x), axis=-1)  # B, H, W, C


# --------------------------------------------------------------------------- attention
class DeformableAttention(nn.Cell):
    def __init__(self, dim, n_levels, n_heads, n_points):
        super().__init__()
        self.n_levels = n_levels
        self.n_heads = n_heads
        self.n_points = n_points
        self.head_dim = dim // n_heads
        self.sampling_offsets = nn.Dense(dim, n_heads * n_levels * n_points * 2)
        self.attention_weights = nn.Dense(dim, n_heads * n_levels * n_points)
        self.value_proj = nn.Dense(dim, dim)
        self.output_proj = nn.Dense(dim, dim)

    def sampling_locations(self, query, ref, shapes):
        b, q = query.shape[:2]
        offsets = self.sampling_offsets(query)
        offsets = offsets.reshape(b, q, self.n_heads, self.n_levels, self.n_points, 2)
        ref = ref[:, :, None, :, None, :]
        if ref.shape[-1] == 2:
            wh = Tensor([[w, h] for h, w in shapes], ms.float32).reshape(1, 1, 1, -1, 1, 2)
            return ref + offsets / wh
        return ref[..., :2] + offsets / self.n_points * ref[..., 2:] * 0.5

    def construct(self, query, ref, memory, shapes, mask):
        b, q, dim = query.shape
        value = self.value_proj(memory)
        value = ops.masked_fill(value, mask.expand_dims(-1), 0.0)
        # B, S, C -> B*M, D, S
        value = value.reshape(b, -1, self.n_heads, self.head_dim).transpose(0, 2, 3, 1)
        value = value.reshape(b * self.n_heads, self.head_dim, -1)

        weights = self.attention_weights(query).reshape(b, q, self.n_heads, -1)
        weights = ops.softmax(weights, axis=-1).transpose(0, 2, 1, 3)
        weights = weights.reshape(b * self.n_heads, 1, q, -1)

        grid = self.sampling_locations(query, ref, shapes) * 2 - 1
        # B, Q, M, L, P, 2 -> L, B*M, Q, P, 2
        grid = grid.transpose(3, 0, 2, 1, 4, 5)
        grid = grid.reshape(self.n_levels, b * self.n_heads, q, self.n_points, 2)

        sampled = []
        start = 0
        for lvl, (h, w) in enumerate(shapes):
            feat = value[:, :, start:start + h * w].reshape(-1, self.head_dim, h, w)
            sampled.append(ops.grid_sample(feat, grid[lvl], mode="bilinear", padding_mode="zeros",
                                           align_corners=False))
            start += h * w
        sampled = ops.cat(sampled, axis=-1)  # B*M, D, Q, L*P
        out = (sampled * weights).sum(-1).reshape(b, dim, q)
        return self.output_proj(out.transpose(0, 2, 1))


class FeedForward(nn.Cell):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1 = nn.Dense(dim, hidden)
        self.act = nn.GELU(approximate=False)
        self.fc2 = nn.Dense(hidden, dim)
        self.norm = nn.LayerNorm((dim,), epsilon=1e-5)

    def construct(self, x):
        return self.norm(x + self.fc2(self.act(self.fc1(x))))


class EncoderLayer(nn.Cell):
    def __init__(self, dim, ffn_dim, n_levels, n_heads, n_points):
        super().__init__()
        self.attn = DeformableAttention(dim, n_levels, n_heads, n_points)
        self.attn_norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.ffn = FeedForward(dim, ffn_dim)

    def construct(self, src, pos, ref, shapes, mask):
        src = self.attn_norm(src + self.attn(src + pos, ref, src, shapes, mask))
        return self.ffn(src)


class Encoder(nn.Cell):
    def __init__(self, num_layers, *args):
        super().__init__()
        self.layers = nn.CellList([EncoderLayer(*args) for _ in range(num_layers)])

    def reference_points(self, shapes, valid_ratios):
        points = []
        for lvl, (h, w) in enumerate(shapes):
            ys = Tensor(np.repeat(np.arange(h) + 0.5, w).astype(np.float32))
            xs = Tensor(np.tile(np.arange(w) + 0.5, h).astype(np.float32))
            ys = ys[None] / (valid_ratios[:, lvl, 1:2] * h)
            xs = xs[None] / (valid_ratios[:, lvl, 0:1] * w)
            points.append(ops.stack((xs, ys), axis=-1))
        points = ops.cat(points, axis=1)
        return points[:, :, None] * valid_ratios[:, None]

    def construct(self, src, pos, shapes, valid_ratios, mask):
        ref = self.reference_points(shapes, valid_ratios)
        for layer in self.layers:
            src = layer(src, pos, ref, shapes, mask)
        return src


class QuerySelfAttention(nn.Cell):
    """content and position have their own projections; the values come from the content alone"""

    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.scale = (dim // n_heads) ** -0.5
        self.q_content = nn.Dense(dim, dim)
        self.q_pos = nn.Dense(dim, dim)
        self.k_content = nn.Dense(dim, dim)
        self.k_pos = nn.Dense(dim, dim)
        self.v_proj = nn.Dense(dim, dim)
        self.out_proj = nn.Dense(dim, dim)

    def split_heads(self, x):
        b, n, _ = x.shape
        return x.reshape(b, n, self.n_heads, -1).transpose(0, 2, 1, 3)

    def construct(self, tgt, query_pos):
        q = self.split_heads(self.q_content(tgt) + self.q_pos(query_pos))
        k = self.split_heads(self.k_content(tgt) + self.k_pos(query_pos))
        v = self.split_heads(self.v_proj(tgt))
        scores = ops.matmul(q, k.swapaxes(-1, -2)) * self.scale
        out = ops.matmul(ops.softmax(scores, axis=-1), v)
        return self.out_proj(out.transpose(0, 2, 1, 3).reshape(tgt.shape))


class DecoderLayer(nn.Cell):
    def __init__(self, dim, ffn_dim, n_levels, n_heads, n_points):
        super().__init__()
        self.self_attn = QuerySelfAttention(dim, n_heads)
        self.self_norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.cross_attn = DeformableAttention(dim, n_levels, n_heads, n_points)
        self.cross_norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.ffn = FeedForward(dim, ffn_dim)

    def construct(self, tgt, query_pos, ref, memory, shapes, mask):
        tgt = self.self_norm(tgt + self.self_attn(tgt, query_pos))
        attended = self.cross_attn(tgt + query_pos, ref, memory, shapes, mask)
        tgt = self.cross_norm(tgt + attended)
        return self.ffn(tgt)


class Decoder(nn.Cell):
    def __init__(self, num_layers, dim, *args):
        super().__init__()
        self.layers = nn.CellList([DecoderLayer(dim, *args) for _ in range(num_layers)])
        self.norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.query_scale = MLP(dim, dim, dim, 2)
        self.ref_point_head = MLP(2 * dim, dim, dim, 2)
        self.freq = frequency_table(dim // 2)

    def construct(self, tgt, boxes, memory, shapes, valid_ratios, mask, box_heads):
        """box_heads: the detector's heads, one for every layer"""
        ratios = ops.cat((valid_ratios, valid_ratios), axis=-1)[:, None]
        hidden, all_boxes = [], [boxes]
        output = tgt
        for i, layer in enumerate(self.layers):
            ref = boxes[:, :, None] * ratios  # B, Q, L, 4
            query_pos = self.ref_point_head(box_sine_embedding(ref[:, :, 0], self.freq))
            if i > 0:
                query_pos = query_pos * self.query_scale(output)
            output = layer(output, query_pos, ref, memory, shapes, mask)
            boxes = ops.sigmoid(box_heads[i](output) + inverse_sigmoid(boxes))
            boxes = ops.stop_gradient(boxes)
            hidden.append(self.norm(output))
            all_boxes.append(boxes)
        return hidden, all_boxes


class PostProcess(nn.Cell):
    def __init__(self, num_select):
        super().__init__()
        self.num_select = num_select

    def construct(self, logits, boxes, target_sizes):
        b, _, num_classes = logits.shape
        scores, index = ops.topk(ops.sigmoid(logits).reshape(b, -1), self.num_select, dim=1)
        query_index = index // num_classes
        labels = index % num_classes
        query_index = ops.tile(query_index.expand_dims(-1), (1, 1, 4))
        boxes = ops.gather_elements(cxcywh_to_xyxy(boxes), 1, query_index)
        h, w = target_sizes[:, 0], target_sizes[:, 1]
        limit = ops.stack((w, h, w, h), axis=1).expand_dims(1)
        boxes = ops.minimum(ops.clamp(boxes * limit, min=0.0), limit)
        return scores, labels, boxes


# --------------------------------------------------------------------------- detector
class SeqDETR(nn.Cell):
    def __init__(self, num_classes=5, num_queries=11, dim=36, n_heads=3, ffn_dim=52, enc_layers=2, dec_layers=3,
                 n_levels=3, enc_points=4, dec_points=2, num_select=8):
        super().__init__()
        self.num_queries = num_queries
        self.dec_layers = dec_layers
        self.backbone = Backbone()
        self.pos_embed = SinePositionEmbedding(dim // 2)
        channels = self.backbone.out_channels
        proj = [nn.SequentialCell(nn.Conv2d(c, dim, 1, has_bias=True), nn.GroupNorm(4, dim)) for c in channels]
        proj.append(nn.SequentialCell(
            nn.Conv2d(channels[-1], dim, 3, stride=2, pad_mode="pad", padding=1, has_bias=True),
            nn.GroupNorm(4, dim)))
        self.input_proj = nn.CellList(proj)
        self.level_embed = Parameter(initializer(Normal(1.0), (n_levels, dim)), name="level_embed")
        self.tgt_embed = Parameter(initializer(Normal(1.0), (num_queries, dim)), name="tgt_embed")
        self.encoder = Encoder(enc_layers, dim, ffn_dim, n_levels, n_heads, enc_points)
        self.enc_output = nn.Dense(dim, dim)
        self.enc_norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.decoder = Decoder(dec_layers, dim, ffn_dim, n_levels, n_heads, dec_points)
        # the last head of each list scores the encoder's proposals
        self.class_heads = nn.CellList([nn.Dense(dim, num_classes) for _ in range(dec_layers + 1)])
        self.box_heads = nn.CellList([MLP(dim, dim, 4, 3) for _ in range(dec_layers + 1)])
        self.postprocess = PostProcess(num_select)

    @staticmethod
    def valid_size(mask):
        """(B, H, W) padding mask -> valid width and height, (B, 2)"""
        valid = ops.logical_not(mask).astype(ms.float32)
        return ops.stack((valid[:, 0, :].sum(1), valid[:, :, 0].sum(1)), axis=-1)

    def proposals(self, memory, mask_flat, masks, shapes):
        b = memory.shape[0]
        boxes = []
        for lvl, (h, w) in enumerate(shapes):
            gx, gy = np.meshgrid(np.arange(w), np.arange(h))
            grid = Tensor(np.stack((gx, gy), -1).reshape(1, h * w, 2).astype(np.float32))
            center = (grid + 0.5) / self.valid_size(masks[lvl]).expand_dims(1)
            size = ops.ones_like(center) * (0.05 * 2 ** lvl)
            boxes.append(ops.cat((center, size), axis=-1))
        boxes = ops.cat(boxes, axis=1)
        inside = ops.logical_and(boxes > 0.01, boxes < 0.99).all(axis=-1, keep_dims=True)
        keep = ops.logical_and(inside, ops.logical_not(mask_flat).expand_dims(-1))
        drop = ops.logical_not(keep)
        boxes = ops.masked_fill(ops.log(boxes / (1.0 - boxes)), drop, float("inf"))
        memory = ops.masked_fill(memory, drop, 0.0)
        return self.enc_norm(self.enc_output(memory)), boxes, drop

    def select_queries(self, memory, mask_flat, masks, shapes):
        out_memory, proposals, drop = self.proposals(memory, mask_flat, masks, shapes)
        logits = ops.masked_fill(self.class_heads[-1](out_memory), drop, float("-inf"))
        coords = self.box_heads[-1](out_memory) + proposals
        _, index = ops.topk(ops.amax(logits, axis=-1), self.num_queries, dim=1)
        index = ops.tile(index.expand_dims(-1), (1, 1, 4))
        return ops.stop_gradient(ops.sigmoid(ops.gather_elements(coords, 1, index)))

    def flatten_levels(self, srcs, masks):
        src_flat, pos_flat, shapes = [], [], []
        for lvl, (src, mask) in enumerate(zip(srcs, masks)):
            b, c, h, w = src.shape
            shapes.append((h, w))
            src_flat.append(src.reshape(b, c, h * w).transpose(0, 2, 1))
            pos_flat.append(self.pos_embed(mask).reshape(b, h * w, c) + self.level_embed[lvl])
        mask_flat = ops.cat([m.reshape(m.shape[0], -1) for m in masks], axis=1)
        return ops.cat(src_flat, axis=1), ops.cat(pos_flat, axis=1), mask_flat, shapes

    def construct(self, images, mask, target_sizes):
        c3, c4 = self.backbone(images)
        srcs = [proj(feat) for proj, feat in zip(self.input_proj, (c3, c4, c4))]
        masks = [resize_mask(mask, src.shape[-2:]) for src in srcs]
        src, pos, mask_flat, shapes = self.flatten_levels(srcs, masks)
        ratios = [self.valid_size(m) / Tensor([m.shape[2], m.shape[1]], ms.float32) for m in masks]
        valid_ratios = ops.stack(ratios, axis=1)
        memory = self.encoder(src, pos, shapes, valid_ratios, mask_flat)

        boxes = self.select_queries(memory, mask_flat, masks, shapes)
        tgt = ops.tile(self.tgt_embed[None], (images.shape[0], 1, 1))
        hidden, refs = self.decoder(tgt, boxes, memory, shapes, valid_ratios, mask_flat, self.box_heads)

        logits, coords = [], []
        for i in range(self.dec_layers):
            logits.append(self.class_heads[i](hidden[i]))
            coords.append(ops.sigmoid(self.box_heads[i](hidden[i]) + inverse_sigmoid(refs[i])))
        logits, coords = ops.stack(logits), ops.stack(coords)
        scores, labels, final_boxes = self.postprocess(logits[-1], coords[-1], target_sizes)
        return logits, coords, boxes, scores, labels, final_boxes


def build():
    net = SeqDETR()
    net.set_train(False)
    rng = np.random.RandomState(7)
    images = rng.randn(2, 3, 88, 120).astype(np.float32)
    mask = np.ones((2, 88, 120), dtype=bool)
    mask[0, :88, :97], mask[1, :71, :120] = False, False
    images = images * ~mask[:, None]
    sizes = np.array([[176, 194], [213, 360]], dtype=np.float32)
    return net, (Tensor(images), Tensor(mask), Tensor(sizes))
