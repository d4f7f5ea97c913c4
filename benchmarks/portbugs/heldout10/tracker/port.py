"""The multi-object tracker with deformable attention and track queries in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops


def inverse_sigmoid(x, eps=1e-5):
    x = x.clip(0.0, 1.0)
    return mint.log(x.clip(eps, None)) - mint.log((1.0 - x).clip(eps, None))


def normalize(x, eps=1e-12):
    return x / ops.norm(x, dim=-1, keepdim=True).clip(eps, None)


def take(x, index):
    """Picks rows of [B, Q, ...] by an index [B, K]."""
    return ops.gather_elements(x, 1, index.expand_dims(-1).broadcast_to(index.shape + (x.shape[-1],)))


def sine_table(features, temperature=10000.0):
    steps = np.arange(features)
    return Tensor(temperature ** (2 * (steps // 2) / features), ms.float32)


def sine_position(mask, table, scale=2 * math.pi):
    """Sines of the place inside the unpadded part of the frame: [B, H, W] -> [B, H * W, 2 * features]."""
    valid = mint.logical_not(mask).astype(ms.float32)
    y = valid.cumsum(axis=1)
    x = valid.cumsum(axis=2)
    y = (y - 0.5) / (y[:, -1:, :] + 1e-6) * scale
    x = (x - 0.5) / (x[:, :, -1:] + 1e-6) * scale

    def waves(place):
        angle = place.expand_dims(-1) / table
        return ops.stack((mint.sin(angle[..., 0::2]), mint.cos(angle[..., 1::2])), axis=-1).reshape(angle.shape)

    batch, h, w = mask.shape
    return mint.cat((waves(y), waves(x)), dim=-1).reshape(batch, h * w, -1)


def encoder_reference(shapes, ratios):
    """Centers of all cells of all levels, as a part of the unpadded frame, for each level to look at."""
    places = []
    for level, (h, w) in enumerate(shapes):
        rows = ops.arange(h).astype(ms.float32) + 0.5
        columns = ops.arange(w).astype(ms.float32) + 0.5
        y, x = ops.meshgrid(rows, columns, indexing="ij")
        y = y.reshape(1, -1) / (ratios[:, level, 1:2] * h)
        x = x.reshape(1, -1) / (ratios[:, level, 0:1] * w)
        places.append(ops.stack((x, y), axis=-1))
    return mint.cat(places, dim=1).expand_dims(2) * ratios.expand_dims(1)


def to_corners(boxes):
    center, extent = boxes[..., :2], boxes[..., 2:]
    return mint.cat((center - extent / 2, center + extent / 2), dim=-1).clip(0.0, 1.0)


def pairwise_iou(boxes):
    """IoU of every pair of corner boxes: [..., K, 4] -> [..., K, K]."""
    one, other = boxes.expand_dims(-2), boxes.expand_dims(-3)
    side = mint.minimum(one[..., 2:], other[..., 2:]) - mint.maximum(one[..., :2], other[..., :2])
    side = side.clip(0.0, None)
    inter = side[..., 0] * side[..., 1]
    extent = boxes[..., 2:] - boxes[..., :2]
    area = extent[..., 0] * extent[..., 1]
    return inter / (area.expand_dims(-1) + area.expand_dims(-2) - inter + 1e-6)


def post_process(boxes, logits, sizes, sigma=0.5):
    """Corner boxes in pixels; scores fade where a better box of the same frame overlaps."""
    corners = to_corners(boxes) * mint.cat((sizes, sizes), dim=-1)[:, None, None]
    scores = mint.sigmoid(logits).max(axis=-1)
    better = scores.expand_dims(-2) > scores.expand_dims(-1)
    overlap = pairwise_iou(corners) * better.astype(ms.float32)
    return corners, scores * mint.exp(-mint.square(overlap).sum(-1) / sigma)


class FrozenNorm(nn.Cell):
    """A batch norm whose statistics and affine never change."""

    def __init__(self, channels, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = Parameter(ops.ones(channels, ms.float32), name="weight", requires_grad=False)
        self.bias = Parameter(ops.zeros(channels, ms.float32), name="bias", requires_grad=False)
        self.running_mean = Parameter(ops.zeros(channels, ms.float32), name="running_mean", requires_grad=False)
        self.running_var = Parameter(ops.ones(channels, ms.float32), name="running_var", requires_grad=False)

    def construct(self, x):
        scale = self.weight * mint.rsqrt(self.running_var + self.eps)
        shift = self.bias - self.running_mean * scale
        return x * scale[None, :, None, None] + shift[None, :, None, None]


class ConvNorm(nn.Cell):
    def __init__(self, inner, outer, size, stride):
        super().__init__()
        self.conv = nn.Conv2d(inner, outer, size, stride, pad_mode="pad", padding=size // 2, has_bias=False)
        self.norm = FrozenNorm(outer)

    def construct(self, x):
        return self.norm(self.conv(x))


class Backbone(nn.Cell):
    """Features at an eighth and a sixteenth of the frame."""

    def __init__(self, widths):
        super().__init__()
        self.stem = ConvNorm(3, widths[0], 7, 2)
        self.pool = nn.MaxPool2d(3, 2, pad_mode="pad", padding=1)
        self.block = nn.CellList([ConvNorm(widths[0], widths[0], 3, 1), ConvNorm(widths[0], widths[0], 3, 1)])
        self.down = nn.CellList([ConvNorm(widths[i], widths[i + 1], 3, 2) for i in range(len(widths) - 1)])

    def construct(self, x):
        x = self.pool(ops.relu(self.stem(x)))
        x = ops.relu(x + self.block[1](ops.relu(self.block[0](x))))
        features = ()
        for down in self.down:
            x = ops.relu(down(x))
            features += (x,)
        return features


class MLP(nn.Cell):
    def __init__(self, *widths):
        super().__init__()
        self.layers = nn.CellList([nn.Dense(widths[i], widths[i + 1]) for i in range(len(widths) - 1)])
        self.last = len(widths) - 2

    def construct(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i < self.last:
                x = ops.relu(x)
        return x


class LevelSampler(nn.Cell):
    """Weighted bilinear samples of every level."""

    def __init__(self, heads, levels, points):
        super().__init__()
        self.heads, self.levels, self.points = heads, levels, points

    def construct(self, value, shapes, locations, weights):
        batch, _, _, width = value.shape
        queries = locations.shape[1]
        grids = (2.0 * locations - 1.0).transpose(3, 0, 2, 1, 4, 5)
        grids = grids.reshape(self.levels, batch * self.heads, queries, self.points, 2)
        weights = weights.swapaxes(1, 2).reshape(batch * self.heads, 1, queries, self.levels, self.points)
        out = 0.0
        start = 0
        for level, (h, w) in enumerate(shapes):
            plane = value[:, start : start + h * w].transpose(0, 2, 3, 1).reshape(batch * self.heads, width, h, w)
            sampled = ops.grid_sample(plane, grids[level], mode="bilinear", padding_mode="zeros", align_corners=False)
            out = out + (sampled * weights[:, :, :, level]).sum(-1)
            start += h * w
        return out.reshape(batch, self.heads * width, queries).swapaxes(1, 2)


class DeformableAttention(nn.Cell):
    def __init__(self, width, heads, levels, points):
        super().__init__()
        self.heads, self.levels, self.points = heads, levels, points
        self.sampling_offsets = nn.Dense(width, heads * levels * points * 2)
        self.attention_weights = nn.Dense(width, heads * levels * points)
        self.value_proj = nn.Dense(width, width)
        self.output_proj = nn.Dense(width, width)
        self.sampler = LevelSampler(heads, levels, points)

    def construct(self, query, reference, source, shapes, mask):
        batch, queries, width = query.shape
        value = self.value_proj(source)
        value = value.masked_fill(mask.expand_dims(-1), 0.0)
        value = value.reshape(batch, -1, self.heads, width // self.heads)
        split = (batch, queries, self.heads, self.levels, self.points)
        offsets = self.sampling_offsets(query).reshape(split + (2,))
        weights = self.attention_weights(query).reshape(batch, queries, self.heads, -1)
        weights = ops.softmax(weights, axis=-1).reshape(split)
        anchor = reference[:, :, None, :, None]
        if reference.shape[-1] == 2:
            size = Tensor([(w, h) for h, w in shapes], ms.float32)
            locations = anchor + offsets / size[:, None]
        else:
            locations = anchor[..., :2] + offsets / self.points * anchor[..., 2:] * 0.5
        return self.output_proj(self.sampler(value, shapes, locations, weights))


class EncoderLayer(nn.Cell):
    def __init__(self, width, heads, levels, points):
        super().__init__()
        self.attn = DeformableAttention(width, heads, levels, points)
        self.norm1 = nn.LayerNorm((width,), epsilon=1e-5)
        self.ffn = MLP(width, 2 * width, width)
        self.norm2 = nn.LayerNorm((width,), epsilon=1e-5)

    def construct(self, x, position, reference, shapes, mask):
        x = self.norm1(x + self.attn(x + position, reference, x, shapes, mask))
        return self.norm2(x + self.ffn(x))


class Encoder(nn.Cell):
    def __init__(self, width, heads, levels, points, depth):
        super().__init__()
        self.layers = nn.CellList([EncoderLayer(width, heads, levels, points) for _ in range(depth)])

    def construct(self, x, position, shapes, ratios, mask):
        reference = encoder_reference(shapes, ratios)
        for layer in self.layers:
            x = layer(x, position, reference, shapes, mask)
        return x


class DecoderLayer(nn.Cell):
    def __init__(self, width, heads, levels, points):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm1 = nn.LayerNorm((width,), epsilon=1e-5)
        self.cross_attn = DeformableAttention(width, heads, levels, points)
        self.norm2 = nn.LayerNorm((width,), epsilon=1e-5)
        self.ffn = MLP(width, 2 * width, width)
        self.norm3 = nn.LayerNorm((width,), epsilon=1e-5)

    def construct(self, x, position, reference, source, shapes, mask):
        query = key = x + position
        x = self.norm1(x + self.self_attn(query, key, x, need_weights=False)[0])
        x = self.norm2(x + self.cross_attn(x + position, reference, source, shapes, mask))
        return self.norm3(x + self.ffn(x))


class Decoder(nn.Cell):
    """Refines the boxes after every layer."""

    def __init__(self, width, heads, levels, points, depth):
        super().__init__()
        self.layers = nn.CellList([DecoderLayer(width, heads, levels, points) for _ in range(depth)])
        self.box_embed = nn.CellList([MLP(width, width, 4) for _ in range(depth)])

    def construct(self, x, position, boxes, source, shapes, ratios, mask):
        scale = mint.cat((ratios, ratios), dim=-1).expand_dims(1)
        for layer, head in zip(self.layers, self.box_embed):
            x = layer(x, position, boxes.expand_dims(2) * scale, source, shapes, mask)
            boxes = mint.sigmoid(head(x) + inverse_sigmoid(boxes))
        return x, boxes


class Appearance(nn.Cell):
    """Unit embeddings, and by their cosine to each remembered track how surely each query is one of them."""

    def __init__(self, width, embedding, temperature=0.7):
        super().__init__()
        self.temperature = temperature
        self.project = nn.Dense(width, width)
        self.act = nn.LeakyReLU(alpha=0.01)
        self.embed = nn.Dense(width, embedding)

    def construct(self, hidden, bank=None):
        embedding = normalize(self.embed(self.act(self.project(hidden))))
        if bank is None:
            return embedding, None
        cosine = mint.matmul(embedding, bank.swapaxes(1, 2))
        deviation = cosine - cosine.mean(axis=-1, keep_dims=True)
        spread = deviation / (ops.std(cosine, axis=-1, ddof=1, keepdims=True) + 1e-4)
        return embedding, ops.softmax(spread / self.temperature, axis=-1)


class MovingAverage(nn.Cell):
    """Sure tracks move their embedding faster; new tracks start with their own."""

    def __init__(self, quick=0.6, slow=0.9):
        super().__init__()
        self.quick, self.slow = quick, slow

    def construct(self, bank, embedding, scores, carried):
        sure = (scores > scores.mean(axis=1, keep_dims=True)).astype(ms.float32)
        keep = (self.quick * sure + self.slow * (1.0 - sure)).expand_dims(-1)
        mixed = normalize(keep * bank + (1.0 - keep) * embedding)
        return mint.where(carried.expand_dims(-1), mixed, embedding)


class QueryInteraction(nn.Cell):
    """Tracks look at each other, unsure ones are not looked at; a gate says how much of it is taken."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.scale = 1.0 / math.sqrt(width // heads)
        self.query_key = nn.Dense(width, 2 * width)
        self.value = nn.Dense(width, width)
        self.out = nn.Dense(width, width)
        self.norm1 = nn.LayerNorm((width,), epsilon=1e-5)
        self.ffn = MLP(width, 2 * width, width)
        self.norm2 = nn.LayerNorm((width,), epsilon=1e-5)
        self.gate = nn.Dense(2 * width, width)
        self.pos = MLP(width, width, width)
        self.norm_pos = nn.LayerNorm((width,), epsilon=1e-5)

    def split(self, x):
        batch, count, width = x.shape
        return x.reshape(batch, count, self.heads, width // self.heads).swapaxes(1, 2)

    def construct(self, hidden, position, scores):
        query, key = mint.chunk(self.query_key(hidden + position), 2, dim=-1)
        logits = mint.matmul(self.split(query), self.split(key).swapaxes(-1, -2)) * self.scale
        unsure = scores < scores.mean(axis=1, keep_dims=True)
        logits = logits.masked_fill(unsure[:, None, None, :], -1e4)
        mixed = mint.matmul(ops.softmax(logits, axis=-1), self.split(self.value(hidden)))
        mixed = mixed.swapaxes(1, 2).reshape(hidden.shape)
        x = self.norm1(hidden + self.out(mixed))
        x = self.norm2(x + self.ffn(x))
        gate = mint.sigmoid(self.gate(mint.cat((x, hidden), dim=-1)))
        return gate * x + (1.0 - gate) * hidden, self.norm_pos(position + self.pos(x))


class Tracker(nn.Cell):
    """Boxes, scores and embeddings of the tracks kept in each frame."""

    def __init__(self, width=64, heads=4, points=4, objects=14, kept=6, classes=5, widths=(24, 32, 56)):
        super().__init__()
        self.kept, self.levels = kept, 3
        self.backbone = Backbone(widths)
        convs = [nn.Conv2d(inner, width, 1, has_bias=True) for inner in widths[1:]]
        convs.append(nn.Conv2d(widths[-1], width, 3, stride=2, pad_mode="pad", padding=1, has_bias=True))
        self.input_proj = nn.CellList([nn.SequentialCell(conv, nn.GroupNorm(8, width)) for conv in convs])
        self.table = sine_table(width // 2)
        self.level_embed = Parameter(ops.randn(self.levels, width), name="level_embed")
        self.encoder = Encoder(width, heads, self.levels, points, 2)
        self.query_embed = nn.Embedding(objects, 2 * width)
        self.reference = nn.Dense(width, 4)
        self.decoder = Decoder(width, heads, self.levels, points, 2)
        self.class_embed = nn.Dense(width, classes)
        self.appearance = Appearance(width, 32)
        self.average = MovingAverage()
        self.interaction = QueryInteraction(width, heads)

    def encode(self, frame, mask):
        features = self.backbone(frame)
        features = features + features[-1:]
        tokens, positions, masks, shapes, ratios = [], [], [], [], []
        for level in range(self.levels):
            feature = self.input_proj[level](features[level])
            batch, width, h, w = feature.shape
            small = ops.interpolate(mask.expand_dims(1).astype(ms.float32), size=(h, w), mode="nearest")
            small = small.squeeze(1) > 0.5
            valid = mint.logical_not(small).astype(ms.float32)
            ratios.append(ops.stack((valid[:, 0, :].sum(1) / w, valid[:, :, 0].sum(1) / h), axis=-1))
            positions.append(sine_position(small, self.table) + self.level_embed[level])
            tokens.append(feature.reshape(batch, width, h * w).swapaxes(1, 2))
            masks.append(small.reshape(batch, h * w))
            shapes.append((h, w))
        flat, ratios = mint.cat(masks, dim=1), ops.stack(ratios, axis=1)
        source = self.encoder(mint.cat(tokens, dim=1), mint.cat(positions, dim=1), shapes, ratios, flat)
        return source, shapes, ratios, flat

    def queries(self, batch, tracks):
        position, content = mint.chunk(self.query_embed.embedding_table, 2, dim=-1)
        boxes = mint.sigmoid(self.reference(position))
        content, position, boxes = (ops.tile(x[None], (batch, 1, 1)) for x in (content, position, boxes))
        if tracks is None:
            return content, position, boxes
        return (
            mint.cat((tracks["content"], content), dim=1),
            mint.cat((tracks["position"], position), dim=1),
            mint.cat((tracks["ahead"], boxes), dim=1),
        )

    def carry(self, tracks, hidden, position, boxes, logits, embedding, match):
        """Keeps the best queries; those that were tracks already keep their motion and their memory."""
        scores = mint.sigmoid(logits).max(axis=-1)
        if tracks is not None:
            scores = scores * (0.7 + 0.3 * match.max(axis=-1))
        scores, index = ops.topk(scores, self.kept, dim=1)
        index = index.astype(ms.int64)
        hidden, position, boxes, bank, logits = (take(x, index) for x in (hidden, position, boxes, embedding, logits))
        ahead = boxes
        if tracks is not None:
            carried = index < self.kept
            slot = index.clip(None, self.kept - 1)
            bank = self.average(take(tracks["bank"], slot), bank, scores, carried)
            center, extent = boxes[..., :2], boxes[..., 2:]
            motion = (center - take(tracks["boxes"], slot)[..., :2]) * carried.expand_dims(-1).astype(ms.float32)
            ahead = mint.cat(((center + 0.5 * motion).clip(0.0, 1.0), extent), dim=-1)
        content, position = self.interaction(hidden, position, scores)
        return {"content": content, "position": position, "boxes": boxes, "ahead": ahead, "bank": bank,
                "logits": logits}

    def construct(self, frames, mask):
        batch, length = frames.shape[:2]
        valid = mint.logical_not(mask).astype(ms.float32)
        sizes = ops.stack((valid[:, 0, :].sum(1), valid[:, :, 0].sum(1)), axis=-1)
        tracks, boxes, logits, matches = None, [], [], []
        for step in range(length):
            source, shapes, ratios, flat = self.encode(frames[:, step], mask)
            content, position, start = self.queries(batch, tracks)
            hidden, found = self.decoder(content, position, start, source, shapes, ratios, flat)
            bank = None if tracks is None else tracks["bank"]
            embedding, match = self.appearance(hidden, bank)
            tracks = self.carry(tracks, hidden, position, found, self.class_embed(hidden), embedding, match)
            boxes.append(tracks["boxes"])
            logits.append(tracks["logits"])
            if match is not None:
                matches.append(match)
        corners, scores = post_process(ops.stack(boxes, axis=1), ops.stack(logits, axis=1), sizes)
        return corners, scores, ops.stack(matches, axis=1), tracks["bank"], tracks["content"]


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Tracker()
