"""The small document model in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

PAD = 1
PAGE = 1000  # boxes are in thousandths of the page
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def layer_norm(width, epsilon=1e-5):
    return nn.LayerNorm((width,), epsilon=epsilon)


def log_buckets(distance, bins, furthest):
    """Number of the bucket of a signed distance: exact when near, logarithmic when far, positive ones above."""
    half = bins // 2
    exact = half // 2
    far = ops.abs(distance)
    ratio = mint.log(ops.maximum(far, 1).astype(ms.float32) / exact) / math.log(furthest / exact)
    coarse = exact + (ratio * (half - exact)).astype(ms.int64)
    coarse = ops.minimum(coarse, half - 1)
    bucket = mint.where(far < exact, far, coarse)
    return bucket + (distance > 0).astype(ms.int64) * half


def pb_relax(scores, alpha=32.0):
    """Softmax over the keys that keeps within the range of half precision."""
    small = scores / alpha
    shifted = (small - ops.amax(small, axis=-1, keepdims=True)) * alpha
    return ops.softmax(shifted, axis=-1)


class BoxEmbedding(nn.Cell):
    """Four edges and two lengths of a box, side by side."""

    def __init__(self, steps, size):
        super().__init__()
        self.steps = steps
        self.x_table = nn.Embedding(steps, size)
        self.y_table = nn.Embedding(steps, size)
        self.h_table = nn.Embedding(steps, size)
        self.w_table = nn.Embedding(steps, size)

    def construct(self, bbox):
        grid = ops.clamp(ops.floor_divide(bbox * self.steps, PAGE), 0, self.steps - 1)
        x0, y0, x1, y1 = (grid[..., i] for i in range(4))
        last = self.steps - 1
        tall = ops.clamp((y1 - y0) * 2, 0, last)
        wide = ops.clamp((x1 - x0) * 2, 0, last)
        edges = (self.x_table(x0), self.y_table(y0), self.x_table(x1), self.y_table(y1))
        return ops.cat(edges + (self.h_table(tall), self.w_table(wide)), axis=-1)


class WordEmbedding(nn.Cell):
    def __init__(self, vocab, places, width, steps, size):
        super().__init__()
        self.words = nn.Embedding(vocab, width, padding_idx=PAD)
        self.types = nn.Embedding(2, width)
        self.places = nn.Embedding(places, width, padding_idx=PAD)
        self.boxes = BoxEmbedding(steps, size)
        self.norm = layer_norm(width)

    def construct(self, ids, bbox):
        present = (ids != PAD).astype(ms.int32)
        position = (ops.cumsum(present, 1) * present).astype(ms.int64) + PAD
        # only the first token is of the second type
        first = ops.cat((ops.ones_like(ids[:, :1]), ops.zeros_like(ids[:, 1:])), axis=1)
        x = self.words(ids) + self.types(first) + self.places(position) + self.boxes(bbox)
        return self.norm(x), position


class PageEncoder(nn.Cell):
    """Stem, and four neighbours merged to one patch."""

    def __init__(self, stem, inner, width):
        super().__init__()
        self.mean = Tensor(np.array(MEAN, np.float32).reshape(1, 3, 1, 1))
        self.std = Tensor(np.array(STD, np.float32).reshape(1, 3, 1, 1))
        self.conv1 = nn.Conv2d(3, stem, 3, stride=2, pad_mode="pad", padding=1, has_bias=False)
        self.bn1 = nn.BatchNorm2d(stem, eps=1e-3)
        self.act = nn.HSwish()
        self.conv2 = nn.Conv2d(stem, inner, 2, stride=2, pad_mode="valid", has_bias=True)
        self.merge_norm = layer_norm(4 * inner)
        self.merge = nn.Dense(4 * inner, width, has_bias=False)

    def construct(self, pixels):
        x = (pixels - self.mean) / self.std
        x = self.conv2(self.act(self.bn1(self.conv1(x))))
        batch, channels, height, width = x.shape
        rows, cols = height // 2, width // 2
        x = x.reshape(batch, channels, rows, 2, cols, 2)
        # down the column first, then across: the order of Swin
        x = x.transpose(0, 2, 4, 5, 3, 1).reshape(batch, rows * cols, 4 * channels)
        return self.merge(self.merge_norm(x)), (rows, cols)


class BucketBias(nn.Cell):
    """A bias for every head by the bucket of the distance of two places."""

    def __init__(self, heads, bins, furthest):
        super().__init__()
        self.bins, self.furthest = bins, furthest
        self.weight = Parameter(Tensor(np.zeros((heads, bins), np.float32)), name="weight")

    def construct(self, places):
        distance = places[:, None, :] - places[:, :, None]
        bucket = log_buckets(distance, self.bins, self.furthest)
        return ops.gather(self.weight, bucket, 1).transpose(1, 0, 2, 3)


class Attention(nn.Cell):
    """Attention with its output and the norm behind the shortcut."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.query = nn.Dense(width, width)
        self.key = nn.Dense(width, width)
        self.value = nn.Dense(width, width)
        self.dense = nn.Dense(width, width)
        self.norm = layer_norm(width)

    def split(self, x):
        return x.reshape(x.shape[0], -1, self.heads, self.size).swapaxes(1, 2)

    def construct(self, x, bias, mask):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scale = 1.0 / math.sqrt(self.size)
        scores = ops.matmul(q * scale, k.swapaxes(-1, -2)) + bias * scale + mask
        context = ops.matmul(pb_relax(scores), v)
        context = context.swapaxes(1, 2).reshape(x.shape)
        return self.norm(x + self.dense(context))


class Layer(nn.Cell):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.attention = Attention(width, heads)
        self.up = nn.Dense(width, inner)
        self.act = nn.GELU(approximate=False)
        self.down = nn.Dense(inner, width)
        self.norm = layer_norm(width)

    def construct(self, x, bias, mask):
        attended = self.attention(x, bias, mask)
        return self.norm(attended + self.down(self.act(self.up(attended))))


class Encoder(nn.Cell):
    def __init__(self, width, heads, inner, depth):
        super().__init__()
        self.rel_pos_bias = BucketBias(heads, 32, 100)
        self.rel_pos_x_bias = BucketBias(heads, 64, 300)
        self.rel_pos_y_bias = BucketBias(heads, 64, 300)
        self.layers = nn.CellList([Layer(width, heads, inner) for _ in range(depth)])

    def construct(self, x, bbox, keep, places):
        bias = self.rel_pos_bias(places) + self.rel_pos_x_bias(bbox[..., 0]) + self.rel_pos_y_bias(bbox[..., 3])
        mask = (1.0 - keep.astype(ms.float32)).expand_dims(1).expand_dims(1) * -10000.0
        for layer in self.layers:
            x = layer(x, bias, mask)
        return x


class TokenHead(nn.Cell):
    def __init__(self, width, labels):
        super().__init__()
        self.dense = nn.Dense(3 * width, width)
        self.act = nn.GELU(approximate=False)
        self.norm = layer_norm(width)
        self.out_proj = nn.Dense(width, labels)

    def membership(self, bbox, mask):
        """One for each token in each line; a line ends where the box changes."""
        changed = (bbox[:, 1:] != bbox[:, :-1]).any(axis=-1).astype(ms.int32)
        line = ops.pad(ops.cumsum(changed, 1), (1, 0))
        return ops.one_hot(line, bbox.shape[1]).astype(ms.float32) * mask[..., None]

    def construct(self, x, bbox, mask):
        mask = mask.astype(ms.float32)
        member = self.membership(bbox, mask)
        count = ops.clamp(member.sum(axis=1), min=1.0)
        lines = ops.matmul(member.swapaxes(1, 2), x) / count[..., None]
        previous = ops.cat((ops.zeros_like(lines[:, :1]), lines[:, :-1]), axis=1)
        both = ops.matmul(member, ops.cat((lines, previous), axis=-1))
        x = self.norm(self.act(self.dense(ops.cat((x, both), axis=-1))))
        return self.out_proj(x) * mask[..., None]


class Pooler(nn.Cell):
    def __init__(self, width, classes):
        super().__init__()
        self.attention = nn.Dense(width, width // 2)
        self.score = nn.Dense(width // 2, 1)
        self.dense = nn.Dense(4 * width, width)
        self.out_proj = nn.Dense(width, classes)

    def construct(self, x, keep, words):
        scores = self.score(mint.tanh(self.attention(x)))
        scores = scores.masked_fill(ops.logical_not(keep).expand_dims(-1), -3.4e38)
        weights = ops.softmax(scores, axis=1)
        mean = (weights * x).sum(axis=1, keepdims=True)
        variance = (weights * ops.square(x - mean)).sum(axis=1)
        deviation = ops.sqrt(ops.clamp(variance, min=1e-6))
        start = words + 1
        patches = ops.where(keep[:, start:, None], x[:, start:], Tensor(-1e4, ms.float32))
        pooled = ops.cat((x[:, 0], mean.squeeze(1), deviation, ops.amax(patches, axis=1)), axis=-1)
        return self.out_proj(mint.tanh(self.dense(pooled)))


def page_boxes(rows, cols):
    """Boxes of all patches, row by row, behind one for the whole page."""
    xs = np.arange(cols + 1) * PAGE // cols
    ys = np.arange(rows + 1) * PAGE // rows
    top, left = np.meshgrid(ys[:-1], xs[:-1], indexing="ij")
    bottom, right = np.meshgrid(ys[1:], xs[1:], indexing="ij")
    boxes = np.stack([left, top, right, bottom], axis=-1).reshape(-1, 4)
    return np.concatenate([[[1, 1, PAGE - 1, PAGE - 1]], boxes]).astype(np.int64)


class DocLayout(nn.Cell):
    """Labels of the words and a class of the page."""

    def __init__(self, width=96, heads=6, depth=2, image=(48, 64), table=(8, 10)):
        super().__init__()
        self.table = table
        self.cls_token = Parameter(Tensor(np.zeros((1, 1, width), np.float32)), name="cls_token")
        self.pos_embed = Parameter(
            Tensor(np.zeros((1, 1 + table[0] * table[1], width), np.float32)), name="pos_embed"
        )
        self.embeddings = WordEmbedding(130, 48, width, 256, width // 6)
        self.backbone = PageEncoder(24, 48, width)
        self.visual_norm = layer_norm(width, 1e-6)
        self.joint_norm = layer_norm(width)
        self.encoder = Encoder(width, heads, 2 * width, depth)
        self.classifier = TokenHead(width, 9)
        self.pooler = Pooler(width, 6)
        self.boxes = Tensor(page_boxes(image[0] // 8, image[1] // 8))

    def patch_places(self, grid):
        """The table of places at the size of this page."""
        table = self.pos_embed[:, 1:].reshape(1, *self.table, -1).transpose(0, 3, 1, 2)
        table = ops.interpolate(table, size=grid, mode="bilinear", align_corners=False)
        return table.reshape(1, table.shape[1], -1).swapaxes(1, 2)

    def join(self, words, patches, bbox, mask, grid):
        """Words with the patch that they lie on, and which patches no word lies on."""
        rows, cols = grid
        centre = (bbox[..., :2] + bbox[..., 2:]) / 2.0 / PAGE
        col = ops.clamp(ops.floor(centre[..., 0] * cols).astype(ms.int64), 0, cols - 1)
        row = ops.clamp(ops.floor(centre[..., 1] * rows).astype(ms.int64), 0, rows - 1)
        point = row * cols + col
        has_box = ops.logical_and(bbox.sum(axis=-1) > 0, mask > 0).astype(ms.float32)[..., None]
        index = mint.broadcast_to(point[..., None], point.shape + patches.shape[-1:])
        words = words + mint.gather(patches, 1, index) * has_box
        covered = (ops.one_hot(point, rows * cols).astype(ms.float32) * has_box).sum(axis=1)
        return words, covered == 0

    def construct(self, ids, bbox, mask, pixels):
        batch, length = ids.shape
        words, word_places = self.embeddings(ids, bbox)
        patches, grid = self.backbone(pixels)
        patches = patches + self.patch_places(grid)
        words, free = self.join(words, patches, bbox, mask, grid)
        cls = mint.broadcast_to(self.cls_token + self.pos_embed[:, :1], (batch, -1, -1))
        visual = self.visual_norm(ops.cat((cls, patches), axis=1))
        x = self.joint_norm(ops.cat((words, visual), axis=1))
        keep = ops.cat((mask > 0, ops.ones((batch, 1), ms.bool_), free), axis=1)
        boxes = ops.cat((bbox, ops.tile(self.boxes[None], (batch, 1, 1))), axis=1)
        visual_places = ops.tile(ops.arange(visual.shape[1]).astype(ms.int64)[None], (batch, 1))
        x = self.encoder(x, boxes, keep, ops.cat((word_places, visual_places), axis=1))
        return self.classifier(x[:, :length], bbox, mask), self.pooler(x, keep, length)


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return DocLayout().set_train(False)
