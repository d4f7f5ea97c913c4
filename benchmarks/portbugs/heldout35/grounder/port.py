"""Grounded open-vocabulary detector in MindSpore: the correct port."""

from __future__ import annotations

import math

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

SEPARATORS = (1, 2, 3)  # [CLS], [SEP] and the full stop
PAD_TOKEN = 0
LOW_LOGIT = -30.0
IMAGE_TEMPERATURE = 20.0
TEXT_TEMPERATURE = 10000.0
LOWEST = float(np.finfo(np.float32).min)


# ---------------------------------------------------------------- helpers


def layer_norm(width, eps=1e-5):
    return nn.LayerNorm((width,), epsilon=eps)


def blocks_of_text(ids, max_phrases):
    """From the token ids (numpy): which tokens see which, places within the blocks, and the tokens of each phrase."""
    length = ids.shape[1]
    separator = np.isin(ids, SEPARATORS)
    real = ids != PAD_TOKEN
    # a separator closes the block it stands in
    block = np.cumsum(separator, axis=1) - separator
    same = block[:, :, None] == block[:, None, :]
    sees = (same & real[:, :, None] & real[:, None, :]) | np.eye(length, dtype=bool)
    start = np.argmax(same, axis=2)
    places = np.where(real, np.arange(length) - start, 0)
    words = real & ~separator
    phrases = np.stack([(block == i + 1) & words for i in range(max_phrases)], axis=1)
    return sees, places.astype(np.int32), phrases.astype(np.float32)


def frequencies(width, temperature):
    exponent = np.repeat(np.arange(width // 2), 2) * 2.0 / width
    return Tensor((2 * math.pi / temperature**exponent).astype(np.float32))


def sines(values, width, temperature):
    """(..., n) -> (..., n * width), even channels are sines and odd ones cosines."""
    angle = ops.expand_dims(values, -1) * frequencies(width, temperature)
    odd = Tensor(np.arange(width) % 2 == 1)
    return ops.where(odd, ops.cos(angle), ops.sin(angle)).reshape(*values.shape[:-1], -1)


def logit(x, eps=1e-3):
    x = ops.clamp(x, eps, 1 - eps)
    return ops.log(x) - ops.log(1 - x)


def corners(boxes):
    cx, cy, w, h = ops.unbind(boxes, -1)
    return ops.stack((cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2), axis=-1)


def area(x1, y1, x2, y2):
    return ops.relu(x2 - x1) * ops.relu(y2 - y1)


def overlap(a, b):
    """IoU, union, and the area of the smallest box around both."""
    ax1, ay1, ax2, ay2 = ops.unbind(a, -1)
    bx1, by1, bx2, by2 = ops.unbind(b, -1)
    inter = area(ops.maximum(ax1, bx1), ops.maximum(ay1, by1), ops.minimum(ax2, bx2), ops.minimum(ay2, by2))
    around = area(ops.minimum(ax1, bx1), ops.minimum(ay1, by1), ops.maximum(ax2, bx2), ops.maximum(ay2, by2))
    union = area(ax1, ay1, ax2, ay2) + area(bx1, by1, bx2, by2) - inter
    return inter / ops.clamp(union, min=1e-7), union, around


def take(x, index):
    """x (batch, n, channels) at index (batch, k)."""
    rows = ops.broadcast_to(index.expand_dims(-1), (*index.shape, x.shape[-1]))
    return ops.gather_elements(x, 1, rows)


class Perceptron(nn.Cell):
    def __init__(self, *widths):
        super().__init__()
        self.layers = nn.CellList([nn.Dense(n, k) for n, k in zip(widths[:-1], widths[1:])])

    def construct(self, x):
        last = len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i < last:
                x = ops.relu(x)
        return x


def to_heads(x, heads):
    b, n, c = x.shape
    return x.reshape(b, n, heads, c // heads).transpose(0, 2, 1, 3)


def from_heads(x):
    b, heads, n, c = x.shape
    return x.transpose(0, 2, 1, 3).reshape(b, n, heads * c)


class Attention(nn.Cell):
    """Multi-head attention; allowed broadcasts against (batch, heads, queries, keys)."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.q_proj = nn.Dense(width, width)
        self.k_proj = nn.Dense(width, width)
        self.v_proj = nn.Dense(width, width)
        self.out_proj = nn.Dense(width, width)

    def construct(self, query, key, value, allowed=None):
        q = to_heads(self.q_proj(query), self.heads) * self.scale
        k = to_heads(self.k_proj(key), self.heads)
        v = to_heads(self.v_proj(value), self.heads)
        score = ops.matmul(q, k.swapaxes(-1, -2))
        if allowed is not None:
            score = ops.masked_fill(score, ops.logical_not(allowed), LOWEST)
        return self.out_proj(from_heads(ops.matmul(ops.softmax(score, axis=-1), v)))


# ---------------------------------------------------------------- text


class BertLayer(nn.Cell):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Dense(width, 3 * width)
        self.attn_out = nn.Dense(width, width)
        self.norm1 = layer_norm(width)
        self.norm2 = layer_norm(width)
        self.linear1 = nn.Dense(width, hidden)
        self.act = nn.GELU(approximate=False)
        self.linear2 = nn.Dense(hidden, width)

    def construct(self, x, sees):
        q, k, v = ops.chunk(self.qkv(x), 3, axis=-1)
        q, k, v = to_heads(q, self.heads), to_heads(k, self.heads), to_heads(v, self.heads)
        score = ops.matmul(q, k.swapaxes(-1, -2)) / math.sqrt(q.shape[-1])
        score = ops.where(sees.expand_dims(1), score, Tensor(LOWEST, ms.float32))
        x = self.norm1(x + self.attn_out(from_heads(ops.matmul(ops.softmax(score, axis=-1), v))))
        return self.norm2(x + self.linear2(self.act(self.linear1(x))))


class Bert(nn.Cell):
    def __init__(self, vocab, places, width, heads, hidden, depth):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab, width, padding_idx=PAD_TOKEN)
        self.position_embeddings = nn.Embedding(places, width)
        self.norm = layer_norm(width, eps=1e-12)
        self.layers = nn.CellList([BertLayer(width, heads, hidden) for _ in range(depth)])

    def construct(self, ids, sees, places):
        x = self.norm(self.word_embeddings(ids) + self.position_embeddings(places))
        for layer in self.layers:
            x = layer(x, sees)
        return x


# ---------------------------------------------------------------- image


def conv_bn(n, k, size, stride):
    conv = nn.Conv2d(n, k, size, stride=stride, pad_mode="pad", padding=size // 2, has_bias=False)
    return nn.SequentialCell(conv, nn.BatchNorm2d(k))


class Residual(nn.Cell):
    def __init__(self, n, k):
        super().__init__()
        self.conv1 = conv_bn(n, k, 3, 2)
        self.conv2 = conv_bn(k, k, 3, 1)
        self.pool = nn.AvgPool2d(3, stride=2, pad_mode="pad", padding=1, count_include_pad=False)
        self.down = conv_bn(n, k, 1, 1)

    def construct(self, x):
        y = self.conv2(ops.relu(self.conv1(x)))
        return ops.relu(y + self.down(self.pool(x)))


class ConvNet(nn.Cell):
    """Feature maps at strides 8 and 16."""

    def __init__(self, stem, widths):
        super().__init__()
        self.stem = conv_bn(3, stem, 7, 2)
        self.pool = nn.MaxPool2d(3, stride=2, pad_mode="pad", padding=1)
        widths = (stem, *widths)
        self.blocks = nn.CellList([Residual(n, k) for n, k in zip(widths[:-1], widths[1:])])

    def construct(self, x):
        x = self.pool(ops.relu(self.stem(x)))
        maps = []
        for block in self.blocks:
            x = block(x)
            maps.append(x)
        return maps


def shrink_mask(padded, shape):
    """The mask at the nearest pixels above and to the left."""
    rows = np.arange(shape[0]) * padded.shape[1] // shape[0]
    columns = np.arange(shape[1]) * padded.shape[2] // shape[1]
    picked = ops.gather(padded.astype(ms.int32), Tensor(rows.astype(np.int32)), 1)
    return ops.gather(picked, Tensor(columns.astype(np.int32)), 2) > 0


def image_sines(padded, width):
    inside = ops.logical_not(padded).astype(ms.float32)
    down, right = ops.cumsum(inside, 1), ops.cumsum(inside, 2)
    down = down / (down[:, -1:, :] + 1e-6)
    right = right / (right[:, :, -1:] + 1e-6)
    both = [sines(t.expand_dims(-1), width // 2, IMAGE_TEMPERATURE) for t in (down, right)]
    return ops.cat(both, axis=-1).reshape(padded.shape[0], -1, width)


def cell_middles(h, w):
    """(h * w, 2): x and y of the middles of the cells, in cells."""
    ys, xs = np.mgrid[:h, :w]
    return np.stack((xs.ravel(), ys.ravel()), axis=-1).astype(np.float32) + 0.5


class DeformableAttention(nn.Cell):
    """Each head reads a few points around the reference on every level."""

    def __init__(self, width, levels, heads, points):
        super().__init__()
        self.levels, self.heads, self.points = levels, heads, points
        self.sampling_offsets = nn.Dense(width, heads * levels * points * 2)
        self.attention_weights = nn.Dense(width, heads * levels * points)
        self.value_proj = nn.Dense(width, width)
        self.output_proj = nn.Dense(width, width)

    def places(self, query, reference, shapes):
        b, n, _ = query.shape
        offset = self.sampling_offsets(query).reshape(b, n, self.heads, self.levels, self.points, 2)
        reference = reference.reshape(b, n, 1, self.levels, 1, -1)
        if reference.shape[-1] == 2:
            size = np.array([[w, h] for h, w in shapes], np.float32)
            return reference + offset / Tensor(size.reshape(1, 1, 1, self.levels, 1, 2))
        return reference[..., :2] + offset * reference[..., 2:] * (0.5 / self.points)

    def construct(self, query, reference, memory, shapes, padded):
        b, n, width = query.shape
        value = self.value_proj(memory)
        value = value * ops.logical_not(padded).astype(value.dtype).expand_dims(-1)
        value = value.swapaxes(1, 2).reshape(b * self.heads, width // self.heads, -1)

        place = self.places(query, reference, shapes) * 2 - 1
        place = place.transpose(3, 0, 2, 1, 4, 5).reshape(self.levels, b * self.heads, n, self.points, 2)
        weight = self.attention_weights(query).reshape(b, n, self.heads, -1)
        weight = ops.softmax(weight, axis=-1).reshape(b, n, self.heads, self.levels, self.points)
        weight = weight.transpose(3, 0, 2, 1, 4).reshape(self.levels, b * self.heads, 1, n, self.points)

        out, first = 0, 0
        for level, (h, w) in enumerate(shapes):
            chart = value[:, :, first : first + h * w].reshape(b * self.heads, -1, h, w)
            read = ops.grid_sample(chart, place[level], mode="bilinear", padding_mode="zeros", align_corners=False)
            out = out + (read * weight[level]).sum(axis=-1)
            first += h * w
        return self.output_proj(out.reshape(b, width, n).swapaxes(1, 2))


# ---------------------------------------------------------------- encoder


class Fusion(nn.Cell):
    """Attention in both directions from one matrix of scores."""

    def __init__(self, width, inner, heads):
        super().__init__()
        self.heads = heads
        self.scale = 1 / math.sqrt(inner // heads)
        self.layer_norm_v = layer_norm(width)
        self.layer_norm_l = layer_norm(width)
        self.v_proj = nn.Dense(width, inner)
        self.l_proj = nn.Dense(width, inner)
        self.values_v_proj = nn.Dense(width, inner)
        self.values_l_proj = nn.Dense(width, inner)
        self.out_v_proj = nn.Dense(inner, width)
        self.out_l_proj = nn.Dense(inner, width)
        self.gamma_v = Parameter(Tensor(np.full(width, 0.5, np.float32)), name="gamma_v")
        self.gamma_l = Parameter(Tensor(np.full(width, 0.5, np.float32)), name="gamma_l")

    def construct(self, image, text, padded, text_mask):
        v, l = self.layer_norm_v(image), self.layer_norm_l(text)
        score = ops.matmul(to_heads(self.v_proj(v), self.heads), to_heads(self.l_proj(l), self.heads).swapaxes(2, 3))
        score = score * self.scale
        to_text = ops.masked_fill(score, ops.logical_not(text_mask).expand_dims(1).expand_dims(1), LOWEST)
        to_text = ops.softmax(to_text, axis=-1)
        to_image = ops.masked_fill(score, padded.expand_dims(1).expand_dims(-1), LOWEST)
        to_image = ops.softmax(to_image, axis=2).swapaxes(2, 3)
        for_image = ops.matmul(to_text, to_heads(self.values_l_proj(l), self.heads))
        for_text = ops.matmul(to_image, to_heads(self.values_v_proj(v), self.heads))
        image = image + self.gamma_v * self.out_v_proj(from_heads(for_image))
        text = text + self.gamma_l * self.out_l_proj(from_heads(for_text))
        return image, text


class TextEnhancer(nn.Cell):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.self_attn = Attention(width, heads)
        self.norm1 = layer_norm(width)
        self.norm2 = layer_norm(width)
        self.linear1 = nn.Dense(width, hidden)
        self.linear2 = nn.Dense(hidden, width)

    def construct(self, text, places, sees):
        with_places = text + places
        text = self.norm1(text + self.self_attn(with_places, with_places, text, sees.expand_dims(1)))
        return self.norm2(text + self.linear2(ops.relu(self.linear1(text))))


class ImageLayer(nn.Cell):
    def __init__(self, width, levels, heads, points, hidden):
        super().__init__()
        self.self_attn = DeformableAttention(width, levels, heads, points)
        self.norm1 = layer_norm(width)
        self.norm2 = layer_norm(width)
        self.linear1 = nn.Dense(width, hidden)
        self.linear2 = nn.Dense(hidden, width)

    def construct(self, image, places, reference, shapes, padded):
        image = self.norm1(image + self.self_attn(image + places, reference, image, shapes, padded))
        return self.norm2(image + self.linear2(ops.relu(self.linear1(image))))


class FusedEncoder(nn.Cell):
    def __init__(self, width, levels, heads, points, hidden, fusion_width, fusion_heads, depth):
        super().__init__()
        self.fusion = nn.CellList([Fusion(width, fusion_width, fusion_heads) for _ in range(depth)])
        self.text_layers = nn.CellList([TextEnhancer(width, heads // 2, hidden // 2) for _ in range(depth)])
        self.layers = nn.CellList([ImageLayer(width, levels, heads, points, hidden) for _ in range(depth)])

    def references(self, shapes, ratios):
        """(batch, tokens, levels, 2): the middle of each token's cell, as a part of every level's whole map."""
        points = []
        for level, (h, w) in enumerate(shapes):
            middle = Tensor(cell_middles(h, w) / np.array([w, h], np.float32))
            points.append(middle.expand_dims(0) / ratios[:, level : level + 1])
        points = ops.cat(points, axis=1)
        return points.expand_dims(2) * ratios.expand_dims(1)

    def construct(self, image, places, padded, shapes, ratios, text, text_mask, sees, text_places):
        reference = self.references(shapes, ratios)
        text_sines = sines(text_places.astype(ms.float32).expand_dims(-1), text.shape[-1], TEXT_TEMPERATURE)
        for i in range(len(self.layers)):
            image, text = self.fusion[i](image, text, padded, text_mask)
            text = self.text_layers[i](text, text_sines, sees)
            image = self.layers[i](image, places, reference, shapes, padded)
        return image, text


# ---------------------------------------------------------------- decoder


class DecoderLayer(nn.Cell):
    def __init__(self, width, levels, heads, points, hidden):
        super().__init__()
        self.self_attn = Attention(width, heads)
        self.ca_text = Attention(width, heads)
        self.cross_attn = DeformableAttention(width, levels, heads, points)
        self.norm1 = layer_norm(width)
        self.norm2 = layer_norm(width)
        self.norm3 = layer_norm(width)
        self.catext_norm = layer_norm(width)
        self.linear1 = nn.Dense(width, hidden)
        self.linear2 = nn.Dense(hidden, width)

    def construct(self, x, pos, reference, text, text_mask, memory, shapes, padded):
        with_pos = x + pos
        x = self.norm2(x + self.self_attn(with_pos, with_pos, x))
        tokens = text_mask.expand_dims(1).expand_dims(1)
        x = self.catext_norm(x + self.ca_text(x + pos, text, text, tokens))
        x = self.norm1(x + self.cross_attn(x + pos, reference, memory, shapes, padded))
        return self.norm3(x + self.linear2(ops.relu(self.linear1(x))))


class TokenSimilarity(nn.Cell):
    def __init__(self, width):
        super().__init__()
        self.scale = 1 / math.sqrt(width)
        self.bias = Parameter(Tensor(np.array([-math.log(99.0)], np.float32)), name="bias")

    def construct(self, x, text, text_mask):
        scores = ops.matmul(x, text.swapaxes(1, 2)) * self.scale + self.bias
        return ops.where(text_mask.expand_dims(1), scores, Tensor(LOW_LOGIT, ms.float32))


class RefiningDecoder(nn.Cell):
    """Layers, and the boxes that each of them reads and predicts."""

    def __init__(self, width, levels, heads, points, hidden, depth):
        super().__init__()
        self.width = width
        self.layers = nn.CellList([DecoderLayer(width, levels, heads, points, hidden) for _ in range(depth)])
        self.bbox_embed = nn.CellList([Perceptron(width, width, width, 4) for _ in range(depth)])
        self.ref_point_head = Perceptron(2 * width, width, width)
        self.norm = layer_norm(width)
        self.class_embed = nn.CellList([TokenSimilarity(width) for _ in range(depth)])

    def query_places(self, boxes):
        parts = [sines(boxes[..., i : i + 1], self.width // 2, TEXT_TEMPERATURE) for i in (1, 0, 2, 3)]
        return self.ref_point_head(ops.cat(parts, axis=-1))

    def construct(self, x, boxes, memory, padded, shapes, ratios, text, text_mask):
        predictions = []
        ratios = ops.cat((ratios, ratios), axis=-1).expand_dims(1)
        for i, layer in enumerate(self.layers):
            boxes = ops.stop_gradient(boxes)
            reference = boxes.expand_dims(2) * ratios
            pos = self.query_places(reference[:, :, 0])
            x = layer(x, pos, reference, text, text_mask, memory, shapes, padded)
            start = logit(boxes)
            normed = self.norm(x)
            scores = self.class_embed[i](normed, text, text_mask)
            predictions.append((scores, ops.sigmoid(start + self.bbox_embed[i](normed))))
            boxes = ops.sigmoid(start + self.bbox_embed[i](x))
        return predictions


# ---------------------------------------------------------------- the net


class GroundingNet(nn.Cell):
    """Pictures and phrases to scored boxes, and losses for given matches."""

    def __init__(self, vocab=40, max_places=20, text_width=24, text_heads=3, text_hidden=40, text_depth=2, stem=12,
                 widths=(16, 24), width=32, heads=4, points=3, hidden=48, fusion_width=40, fusion_heads=4, depth=2,
                 queries=8, max_phrases=3, top=12, nms=0.4):
        super().__init__()
        levels = len(widths)
        self.width, self.queries, self.max_phrases, self.top, self.nms = width, queries, max_phrases, top, nms
        self.mean = Tensor(np.array([0.485, 0.456, 0.406], np.float32).reshape(1, 3, 1, 1))
        self.std = Tensor(np.array([0.229, 0.224, 0.225], np.float32).reshape(1, 3, 1, 1))
        self.bert = Bert(vocab, max_places, text_width, text_heads, text_hidden, text_depth)
        self.feat_map = nn.Dense(text_width, width)
        self.backbone = ConvNet(stem, widths)
        self.input_proj = nn.CellList([
            nn.SequentialCell(nn.Conv2d(n, width, 1, pad_mode="valid", has_bias=True), nn.GroupNorm(8, width))
            for n in widths
        ])
        self.level_embed = Parameter(Tensor(np.zeros((levels, width), np.float32)), name="level_embed")
        self.encoder = FusedEncoder(width, levels, heads, points, hidden, fusion_width, fusion_heads, depth)
        self.enc_output = nn.Dense(width, width)
        self.enc_output_norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.enc_class_embed = TokenSimilarity(width)
        self.enc_bbox_embed = Perceptron(width, width, width, 4)
        self.tgt_embed = Parameter(Tensor(np.zeros((queries, width), np.float32)), name="tgt_embed")
        self.decoder = RefiningDecoder(width, levels, heads, points, hidden, depth)

    def image_tokens(self, images, padded):
        x = (images - self.mean) / self.std
        x = ops.masked_fill(x, padded.expand_dims(1), 0.0)
        tokens, places, pads, shapes, ratios = [], [], [], [], []
        for level, chart in enumerate(self.backbone(x)):
            b, _, h, w = chart.shape
            small = shrink_mask(padded, (h, w))
            tokens.append(self.input_proj[level](chart).reshape(b, self.width, h * w).swapaxes(1, 2))
            places.append(image_sines(small, self.width) + self.level_embed[level])
            pads.append(small.reshape(b, h * w))
            shapes.append((h, w))
            inside = ops.logical_not(small).astype(ms.float32)
            ratios.append(ops.stack((inside[:, 0].mean(axis=1), inside[:, :, 0].mean(axis=1)), axis=-1))
        return (ops.cat(tokens, axis=1), ops.cat(places, axis=1), ops.cat(pads, axis=1), shapes,
                ops.stack(ratios, axis=1))

    def proposals(self, shapes, ratios):
        """A box for each token, larger on the coarser level, relative to the valid part of the picture."""
        boxes = []
        for level, (h, w) in enumerate(shapes):
            xy = Tensor(cell_middles(h, w)).expand_dims(0)
            size = Tensor(np.array([w, h], np.float32)) * ratios[:, level : level + 1]
            xy = xy / size
            side = 0.05 * 2**level
            boxes.append(ops.cat((xy, ops.full_like(xy, side)), axis=-1))
        return ops.cat(boxes, axis=1)

    def select(self, memory, padded, shapes, ratios, text, text_mask):
        """Logits and boxes of the tokens that are most like some word."""
        boxes = self.proposals(shapes, ratios)
        good = ops.logical_and(boxes > 0.01, boxes < 0.99).all(axis=-1)
        good = ops.logical_and(good, ops.logical_not(padded)).expand_dims(-1)
        start = ops.where(good, ops.log(boxes / (1 - boxes)), Tensor(float("inf"), ms.float32))
        memory = self.enc_output_norm(self.enc_output(memory * good.astype(memory.dtype)))
        scores = self.enc_class_embed(memory, text, text_mask)
        boxes = ops.sigmoid(self.enc_bbox_embed(memory) + start)
        _, index = ops.topk(scores.max(axis=-1), self.queries)
        return take(scores, index), take(boxes, index)

    def detect(self, scores, boxes, phrases, sizes):
        """The best pairs of query and phrase; a worse one that covers a better one of the same phrase is dropped."""
        share = phrases / ops.clamp(phrases.sum(axis=-1, keepdims=True), min=1.0)
        by_phrase = ops.matmul(ops.sigmoid(scores), share.swapaxes(1, 2))
        best, index = ops.topk(by_phrase.reshape(by_phrase.shape[0], -1), self.top)
        query, label = index // self.max_phrases, index % self.max_phrases
        frame = ops.stack((sizes[:, 1], sizes[:, 0], sizes[:, 1], sizes[:, 0]), axis=-1).expand_dims(1)
        found = ops.clamp(corners(take(boxes, query)), 0.0, 1.0) * frame
        iou, _, _ = overlap(found.expand_dims(2), found.expand_dims(1))
        clash = ops.logical_and(iou > self.nms, label.expand_dims(2) == label.expand_dims(1))
        alive = []
        for j in range(self.top):
            dropped = ops.zeros_like(best[:, 0]) > 0
            for i in range(j):
                dropped = ops.logical_or(dropped, ops.logical_and(alive[i], clash[:, i, j]))
            alive.append(ops.logical_not(dropped))
        alive = ops.stack(alive, axis=1)
        label = ops.where(alive, label, ops.full_like(label, -1))
        return by_phrase, best * alive.astype(best.dtype), label, found

    def loss(self, predictions, phrases, text_mask, match, target_boxes, target_phrase, valid):
        real = valid.astype(ms.float32)
        count = ops.clamp(real.sum(), min=1.0)
        tokens = take(phrases, target_phrase) * real.expand_dims(-1)
        at_query = ops.one_hot(match, self.queries, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))
        target = ops.matmul(at_query.swapaxes(1, 2), tokens) > 0
        rows = []
        for scores, boxes in predictions:
            signed = ops.where(target, scores, -scores)
            focal = ops.softplus(-signed) * (1 - ops.sigmoid(signed)) ** 2
            alpha = ops.where(target, Tensor(0.25, ms.float32), Tensor(0.75, ms.float32))
            focal = (alpha * focal * text_mask.astype(ms.float32).expand_dims(1)).mean(axis=1).sum()
            matched = take(boxes, match)
            away = ops.abs(matched - target_boxes).sum(axis=-1)
            iou, union, around = overlap(corners(matched), corners(target_boxes))
            giou = iou - (around - union) / ops.clamp(around, min=1e-7)
            rows.append(ops.stack((focal * scores.shape[1], (away * real).sum(), ((1 - giou) * real).sum())) / count)
        rows = ops.stack(rows)
        return rows, (rows * Tensor(np.array([2.0, 5.0, 2.0], np.float32))).sum()

    def construct(self, images, padded, ids, sizes, match, target_boxes, target_phrase, valid):
        sees, text_places, phrases = (Tensor(t) for t in blocks_of_text(ids.asnumpy(), self.max_phrases))
        text_mask = ids != PAD_TOKEN
        text = self.feat_map(self.bert(ids, sees, text_places))
        image, places, padded, shapes, ratios = self.image_tokens(images, padded)
        memory, text = self.encoder(image, places, padded, shapes, ratios, text, text_mask, sees, text_places)

        proposed = self.select(memory, padded, shapes, ratios, text, text_mask)
        queries = ops.broadcast_to(self.tgt_embed, (images.shape[0], *self.tgt_embed.shape))
        predictions = self.decoder(queries, proposed[1], memory, padded, shapes, ratios, text, text_mask)
        scores, boxes = predictions[-1]
        by_phrase, best, label, found = self.detect(scores, boxes, phrases, sizes)
        losses, loss = self.loss(predictions + [proposed], phrases, text_mask, match, target_boxes, target_phrase,
                                 valid)
        return {"logits": scores, "boxes": boxes, "aux_boxes": predictions[0][1], "enc_boxes": proposed[1],
                "phrase_scores": by_phrase, "scores": best, "labels": label, "detections": found, "losses": losses,
                "loss": loss}


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = GroundingNet()
    net.set_train(False)
    return net
