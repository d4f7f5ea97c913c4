"""The small prompted segmenter in MindSpore, with other helpers, names and nesting. A correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

CANVAS = 64
PATCH = 8
CELLS = CANVAS // PATCH
CHANNEL_MEANS = [123.675, 116.28, 103.53]
CHANNEL_STDS = [58.395, 57.12, 57.375]
BAND = 0.4
STEADY_ENOUGH = 0.7
MASK_LEVEL = 0.8


def zeros_parameter(*shape, name, trained=True):
    return Parameter(ops.zeros(shape, ms.float32), name=name, requires_grad=trained)


def resize(x, height, width):
    return ops.interpolate(x, size=(height, width), mode="bilinear", align_corners=False)


class ChannelNorm(nn.Cell):
    """Layer normalisation of (batch, channels, height, width) over the channels."""

    def __init__(self, channels, epsilon=1e-6):
        super().__init__()
        self.epsilon = epsilon
        self.gain = Parameter(ops.ones((channels,)), name="gain")
        self.shift = Parameter(ops.zeros((channels,)), name="shift")

    def construct(self, x):
        x = x - x.mean(axis=1, keep_dims=True)
        x = x * ops.rsqrt(ops.square(x).mean(axis=1, keep_dims=True) + self.epsilon)
        return x * self.gain.reshape(1, -1, 1, 1) + self.shift.reshape(1, -1, 1, 1)


class Perceptron(nn.Cell):
    """Dense layers with an activation after all but the last."""

    def __init__(self, *sizes, act=None):
        super().__init__()
        self.steps = nn.CellList([nn.Dense(a, b) for a, b in zip(sizes, sizes[1:])])
        self.act = nn.ReLU() if act is None else act

    def construct(self, x):
        for dense in list(self.steps)[:-1]:
            x = self.act(dense(x))
        return self.steps[-1](x)


# ---------------------------------------------------------------- image encoder


def offsets(length):
    """Row of the table for each pair of query's and key's place."""
    places = np.arange(length)
    return Tensor(np.subtract.outer(places, places) + length - 1)


class RelativeAttention(nn.Cell):
    """Attention over a square map of tokens with decomposed relative positions."""

    def __init__(self, width, heads, side, trained):
        super().__init__()
        self.heads, self.side, self.trained = heads, side, trained
        self.depth = width // heads
        self.to_qkv = nn.Dense(width, 3 * width)
        self.merge = nn.Dense(width, width)
        self.rows = zeros_parameter(2 * trained - 1, self.depth, name="rows")
        self.columns = zeros_parameter(2 * trained - 1, self.depth, name="columns")
        self.offsets = offsets(side)

    def lookup(self, table):
        if self.trained != self.side:
            table = table.swapaxes(0, 1).expand_dims(0)
            table = ops.interpolate(table, size=(2 * self.side - 1,), mode="linear", align_corners=False)
            table = table.squeeze(0).swapaxes(0, 1)
        return table[self.offsets]

    def construct(self, x):
        count, side = x.shape[0], self.side
        area = side * side
        qkv = self.to_qkv(x).reshape(count, area, 3, self.heads, self.depth)
        query, key, value = [part.squeeze(2).swapaxes(1, 2) for part in ops.split(qkv, 1, axis=2)]
        scores = ops.matmul(query, key.swapaxes(2, 3)) / math.sqrt(self.depth)
        grid = query.reshape(count, self.heads, side, side, self.depth)
        vertical = ops.matmul(grid, self.lookup(self.rows).swapaxes(1, 2))
        horizontal = ops.matmul(grid.swapaxes(2, 3), self.lookup(self.columns).swapaxes(1, 2)).swapaxes(2, 3)
        bias = vertical.expand_dims(5) + horizontal.expand_dims(4)
        weights = ops.softmax(scores + bias.reshape(scores.shape), axis=-1)
        mixed = ops.matmul(weights, value).swapaxes(1, 2)
        return self.merge(mixed.reshape(count, side, side, -1))


class VisionBlock(nn.Cell):
    """A block in windows, or over all of the map if window is 0."""

    def __init__(self, width, heads, window, trained):
        super().__init__()
        self.window = window
        self.before_attention = nn.LayerNorm((width,), epsilon=1e-6)
        self.attention = RelativeAttention(width, heads, window or CELLS, trained)
        self.before_mlp = nn.LayerNorm((width,), epsilon=1e-6)
        self.mlp = Perceptron(width, 2 * width, width, act=nn.GELU(approximate=False))

    def windowed(self, x):
        batch, height, width, channels = x.shape
        w = self.window
        down, right = -height % w, -width % w
        x = ops.cat([x, ops.zeros((batch, down, width, channels))], axis=1) if down else x
        x = ops.cat([x, ops.zeros((batch, height + down, right, channels))], axis=2) if right else x
        high, wide = (height + down) // w, (width + right) // w
        x = x.reshape(batch, high, w, wide, w, channels).transpose(0, 1, 3, 2, 4, 5)
        x = self.attention(x.reshape(-1, w, w, channels))
        x = x.reshape(batch, high, wide, w, w, channels).transpose(0, 1, 3, 2, 4, 5)
        return x.reshape(batch, high * w, wide * w, channels)[:, :height, :width]

    def construct(self, x):
        normed = self.before_attention(x)
        x = x + (self.windowed(normed) if self.window else self.attention(normed))
        return x + self.mlp(self.before_mlp(x))


class ImageNet(nn.Cell):
    """Patches with places, three blocks, and the neck."""

    def __init__(self, width, heads):
        super().__init__()
        self.patches = nn.Conv2d(3, width, PATCH, stride=PATCH, pad_mode="valid", has_bias=True)
        self.places = zeros_parameter(1, CELLS, CELLS, width, name="places")
        self.blocks = nn.CellList(
            [VisionBlock(width, heads, 3, 3), VisionBlock(width, heads, 0, 7), VisionBlock(width, heads, 3, 3)]
        )
        self.neck_point = nn.Conv2d(width, width, 1, has_bias=False)
        self.neck_norm_1 = ChannelNorm(width)
        self.neck_wide = nn.Conv2d(width, width, 3, pad_mode="pad", padding=1, has_bias=False)
        self.neck_norm_2 = ChannelNorm(width)

    def construct(self, pixels):
        x = self.patches(pixels).transpose(0, 2, 3, 1) + self.places
        for block in self.blocks:
            x = block(x)
        x = self.neck_norm_1(self.neck_point(x.transpose(0, 3, 1, 2)))
        return self.neck_norm_2(self.neck_wide(x))


# ---------------------------------------------------------------- prompts


class Prompts(nn.Cell):
    """Vectors for points and boxes, maps for masks."""

    def __init__(self, width):
        super().__init__()
        self.waves = zeros_parameter(2, width // 2, name="waves", trained=False)
        self.kinds = nn.Embedding(4, width)
        self.nowhere = zeros_parameter(width, name="nowhere")
        self.maskless = zeros_parameter(width, name="maskless")
        self.shrink = nn.SequentialCell(
            nn.Conv2d(1, 4, 2, stride=2, pad_mode="valid", has_bias=True),
            ChannelNorm(4),
            nn.GELU(approximate=False),
            nn.Conv2d(4, 8, 2, stride=2, pad_mode="valid", has_bias=True),
            ChannelNorm(8),
            nn.GELU(approximate=False),
            nn.Conv2d(8, width, 1, has_bias=True),
        )
        line = (np.arange(CELLS) + 0.5) / CELLS
        columns, rows = np.meshgrid(line, line)
        self.centres = Tensor(np.stack([columns, rows], axis=-1).astype(np.float32))

    def encode(self, unit):
        """Random Fourier features of places in 0..1."""
        turned = ops.matmul(unit * 2.0 - 1.0, self.waves) * (2.0 * math.pi)
        return ops.cat([ops.sin(turned), ops.cos(turned)], axis=-1)

    def grid(self):
        return self.encode(self.centres).transpose(2, 0, 1).expand_dims(0)

    def construct(self, points, labels, boxes, masks, has_mask):
        count = points.shape[0]
        table = ops.cat([self.nowhere.expand_dims(0), self.kinds.embedding_table], axis=0)
        real = (labels >= 0).astype(ms.float32).expand_dims(-1)
        clicks = self.encode((points + 0.5) / CANVAS) * real + table[labels + 1]
        ends = self.encode((boxes.reshape(count, 2, 2) + 0.5) / CANVAS)
        ends = ends + table[3:]
        given = has_mask.astype(ms.float32).reshape(count, 1, 1, 1)
        dense = given * self.shrink(masks) + (1.0 - given) * self.maskless.reshape(1, -1, 1, 1)
        return ops.cat([clicks, ends], axis=1), dense


# ---------------------------------------------------------------- mask decoder


class SlimAttention(nn.Cell):
    """Attention whose inner width may be smaller."""

    def __init__(self, width, heads, inner):
        super().__init__()
        self.heads = heads
        self.scale = (inner // heads) ** -0.5
        self.q = nn.Dense(width, inner)
        self.k = nn.Dense(width, inner)
        self.v = nn.Dense(width, inner)
        self.out = nn.Dense(inner, width)

    def construct(self, query, key, value):
        batch, length = query.shape[:2]
        q = self.q(query).reshape(batch, length, self.heads, -1).transpose(0, 2, 1, 3)
        k = self.k(key).reshape(batch, key.shape[1], self.heads, -1).transpose(0, 2, 3, 1)
        v = self.v(value).reshape(batch, key.shape[1], self.heads, -1).transpose(0, 2, 1, 3)
        weights = mint.softmax(ops.matmul(q * self.scale, k), dim=-1)
        return self.out(ops.matmul(weights, v).transpose(0, 2, 1, 3).reshape(batch, length, -1))


class Exchange(nn.Cell):
    """One layer in which tokens and image look at each other."""

    def __init__(self, width, heads, bare):
        super().__init__()
        self.bare = bare
        self.among = SlimAttention(width, heads, width)
        self.norm_among = nn.LayerNorm((width,), epsilon=1e-5)
        self.look = SlimAttention(width, heads, width // 2)
        self.norm_look = nn.LayerNorm((width,), epsilon=1e-5)
        self.think = Perceptron(width, 2 * width, width)
        self.norm_think = nn.LayerNorm((width,), epsilon=1e-5)
        self.tell = SlimAttention(width, heads, width // 2)
        self.norm_tell = nn.LayerNorm((width,), epsilon=1e-5)

    def construct(self, tokens, pixels, prompt, grid):
        if self.bare:
            tokens = self.among(tokens, tokens, tokens)
        else:
            asked = tokens + prompt
            tokens = tokens + self.among(asked, asked, tokens)
        tokens = self.norm_among(tokens)
        seen = self.look(tokens + prompt, pixels + grid, pixels)
        tokens = self.norm_look(tokens + seen)
        tokens = self.norm_think(tokens + self.think(tokens))
        told = self.tell(pixels + grid, tokens + prompt, tokens)
        return tokens, self.norm_tell(pixels + told)


class MaskHead(nn.Cell):
    """The two-way transformer, the upscaling, and the small nets for each mask."""

    def __init__(self, width, heads, masks=4):
        super().__init__()
        self.masks = masks
        self.quality_token = zeros_parameter(1, width, name="quality_token")
        self.tokens = zeros_parameter(masks, width, name="tokens")
        self.exchanges = nn.CellList([Exchange(width, heads, bare=i == 0) for i in range(2)])
        self.last_look = SlimAttention(width, heads, width // 2)
        self.norm_last = nn.LayerNorm((width,), epsilon=1e-5)
        self.up_1 = nn.Conv2dTranspose(width, width // 4, 2, stride=2, pad_mode="valid", has_bias=True)
        self.up_norm = ChannelNorm(width // 4)
        self.up_2 = nn.Conv2dTranspose(width // 4, width // 8, 2, stride=2, pad_mode="valid", has_bias=True)
        self.gelu = nn.GELU(approximate=False)
        self.makers = nn.CellList([Perceptron(width, width, width, width // 8) for _ in range(masks)])
        self.judge = Perceptron(width, width, width, masks)

    def exchange(self, prompt, pixels, grid):
        tokens = prompt
        for layer in self.exchanges:
            tokens, pixels = layer(tokens, pixels, prompt, grid)
        seen = self.last_look(tokens + prompt, pixels + grid, pixels)
        return self.norm_last(tokens + seen), pixels

    def upscale(self, x):
        x = self.gelu(self.up_norm(self.up_1(x)))
        return self.gelu(self.up_2(x))

    def construct(self, features, grid, sparse, dense):
        count, channels = sparse.shape[0], features.shape[1]
        own = ops.cat([self.quality_token, self.tokens], axis=0).expand_dims(0)
        prompt = ops.cat([ops.tile(own, (count, 1, 1)), sparse], axis=1)
        pixels = (features + dense).reshape(count, channels, -1).swapaxes(1, 2)
        grid = ops.tile(grid.reshape(1, channels, -1).swapaxes(1, 2), (count, 1, 1))
        tokens, pixels = self.exchange(prompt, pixels, grid)
        large = self.upscale(pixels.swapaxes(1, 2).reshape(count, channels, CELLS, CELLS))
        result = []
        for i, maker in enumerate(self.makers):
            factor = maker(tokens[:, i + 1])
            result.append((factor.reshape(count, -1, 1, 1) * large).sum(axis=1))
        quality = ops.sigmoid(self.judge(tokens[:, 0]))
        return ops.stack(result, axis=1), quality


# ---------------------------------------------------------------- the whole


def steadiness(masks, band):
    """Area at a higher threshold against the area at a lower one."""
    inner = (masks > band).astype(ms.float32).sum(axis=(1, 2))
    outer = (masks > -band).astype(ms.float32).sum(axis=(1, 2))
    return ops.where(outer > 0, inner / ops.maximum(outer, Tensor(1.0)), ops.ones_like(outer))


def extent(hit):
    """First and last index that is hit, (count, length) to two of (count,); length and -1 for none."""
    length = hit.shape[1]
    index = ops.arange(length).reshape(1, -1)
    first = ops.where(hit, index, ops.full_like(index, length)).min(axis=1)
    last = ops.where(hit, index, ops.full_like(index, -1)).max(axis=1)
    return first, last


def boxes_around(inside):
    left, right = extent(inside.any(axis=1))
    top, bottom = extent(inside.any(axis=2))
    corners = ops.stack([left, top, right, bottom], axis=1)
    filled = inside.reshape(inside.shape[0], -1).any(axis=1)
    return corners * filled.astype(corners.dtype).reshape(-1, 1)


class PromptedSegmenter(nn.Cell):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.image_net = ImageNet(width, heads)
        self.prompts = Prompts(width)
        self.head = MaskHead(width, heads)
        self.means = Tensor(np.array(CHANNEL_MEANS, np.float32).reshape(1, 3, 1, 1))
        self.stds = Tensor(np.array(CHANNEL_STDS, np.float32).reshape(1, 3, 1, 1))

    def fit(self, image):
        """The image at the canvas's size, and how much of the canvas it fills."""
        height, width = image.shape[2:]
        factor = CANVAS / max(height, width)
        high, wide = int(height * factor + 0.5), int(width * factor + 0.5)
        image = (resize(image, high, wide) - self.means) / self.stds
        return ops.pad(image, (0, CANVAS - wide, 0, CANVAS - high)), high, wide

    def select(self, masks, quality):
        """Mask 0 where it is steady, elsewhere the one with the highest quality among the others."""
        steady = steadiness(masks[:, 0], BAND)
        best = quality[:, 1:].argmax(axis=1) + 1
        index = ops.where(steady < STEADY_ENOUGH, best, ops.zeros_like(best))
        pick = ops.one_hot(index, masks.shape[1]).astype(ms.float32)
        chosen = (masks * pick.reshape(pick.shape[0], -1, 1, 1)).sum(axis=1)
        return chosen, (quality * pick).sum(axis=1), steady

    def restore(self, mask, high, wide, height, width):
        mask = resize(mask.expand_dims(1), CANVAS, CANVAS)
        return resize(mask[:, :, :high, :wide], height, width).squeeze(1)

    def construct(self, image, points, labels, boxes, masks, has_mask):
        height, width = image.shape[2:]
        canvas, high, wide = self.fit(image)
        ratio = Tensor(np.array([wide / width, high / height], np.float32))
        points = points * ratio
        boxes = (boxes.reshape(-1, 2, 2) * ratio).reshape(-1, 4)
        features = self.image_net(canvas)
        sparse, dense = self.prompts(points, labels, boxes, masks, has_mask)
        low, quality = self.head(features, self.prompts.grid(), sparse, dense)
        chosen, score, steady = self.select(low, quality)
        full = self.restore(chosen, high, wide, height, width)
        inside = full > MASK_LEVEL
        area = inside.astype(ms.float32).mean(axis=(1, 2))
        return full, low, quality, score, steady, boxes_around(inside), area


def build():
    """The net, and the same image and prompts as the reference's."""
    draw = np.random.RandomState(620)
    image = draw.uniform(0, 90, (1, 3, 38, 52))
    image[:, :, 8:27, 10:31] += np.array([120.0, 70.0, 20.0])[:, None, None]
    image[:, :, 20:36, 28:49] += np.array([10.0, 60.0, 130.0])[:, None, None]
    points = np.array([[[18, 14], [40, 30]], [[35, 26], [0, 0]], [[12, 33], [22, 9]]], np.float32)
    labels = np.array([[1, 0], [1, -1], [0, 1]])
    boxes = np.array([[9, 7, 31, 28], [27, 19, 49, 37], [3, 2, 47, 35]], np.float32)
    masks = draw.randn(3, 1, 32, 32).astype(np.float32) * 0.5
    masks[:, :, 10:24, 8:20] += 2.0
    inputs = image.astype(np.float32), points, labels, boxes, masks, np.array([True, False, True])
    return PromptedSegmenter().set_train(False), tuple(Tensor(value) for value in inputs)
