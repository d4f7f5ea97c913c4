"""Convolutional masked autoencoder with scale-aware positions for MindSpore.

Images of a batch share one tensor: each has its own size in pixels and its own resolution on the ground. Most patches
are hidden, the others are encoded, and a light decoder predicts the fine detail of all.
"""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

RGB_MEAN = [0.4182, 0.4214, 0.3991]
RGB_STD = [0.2459, 0.2217, 0.2136]

PATCH = 4
STEM_PATCH = 2
TEMPERATURE = 10000.0
NORM_EPS = 1e-6


def new_parameter(shape, name, value=0.0):
    return Parameter(Tensor(np.full(shape, value, np.float32)), name=name)


def layer_norm(width):
    return nn.LayerNorm((width,), epsilon=NORM_EPS)


def to_patches(images):
    """(batch, channels, height, width) -> (batch, patches, PATCH * PATCH * channels)."""
    b, c, height, width = images.shape
    h, w = height // PATCH, width // PATCH
    blocks = images.reshape(b, c, h, PATCH, w, PATCH).transpose(0, 2, 4, 3, 5, 1)
    return blocks.reshape(b, h * w, PATCH * PATCH * c)


def to_images(patches, grid):
    """The way back."""
    b, _, size = patches.shape
    h, w = grid
    c = size // (PATCH * PATCH)
    blocks = patches.reshape(b, h, w, PATCH, PATCH, c).transpose(0, 5, 1, 3, 2, 4)
    return blocks.reshape(b, c, h * PATCH, w * PATCH)


def flat_map(features):
    """(batch, channels, height, width) -> (batch, height * width, channels)."""
    b, c = features.shape[:2]
    return features.reshape(b, c, -1).swapaxes(1, 2)


def select(sequence, index):
    """Entries of (batch, n, ...) at the places (batch, m)."""
    return ops.gather(sequence, index, axis=1, batch_dims=1)


def area_mask(extent, shape):
    """One inside of the first extent[:, 0] rows and extent[:, 1] columns, zero outside: (batch, *shape)."""
    rows = Tensor(np.arange(shape[0]), ms.int32).reshape(1, -1, 1)
    cols = Tensor(np.arange(shape[1]), ms.int32).reshape(1, 1, -1)
    extent = extent.astype(ms.int32)
    inside = ops.logical_and(rows < extent[:, 0].reshape(-1, 1, 1), cols < extent[:, 1].reshape(-1, 1, 1))
    return inside.astype(ms.float32)


def with_class_key(valid):
    """The class token is always there."""
    return ops.cat((ops.ones((valid.shape[0], 1), valid.dtype), valid), axis=1)


def average(values, weight):
    """Mean of values where the weight is one."""
    return (values * weight).sum() / ops.maximum(weight.sum(), Tensor(1.0, ms.float32))


class NoiseMasking(nn.Cell):
    """Keeps the patches with the least noise; those outside of an image come after all others."""

    def __init__(self, mask_ratio):
        super().__init__()
        self.mask_ratio = mask_ratio

    def construct(self, noise, valid):
        length = noise.shape[1]
        keep = int(length * (1 - self.mask_ratio))
        order = ops.argsort(noise + (1.0 - valid), axis=1)
        # the inverse permutation; sorting is for floats
        restore = ops.argsort(order.astype(ms.float32), axis=1)
        hidden = (restore >= keep).astype(ms.float32)
        return order[:, :keep], restore, hidden


class GroundPositions(nn.Cell):
    """Sines and cosines of the places of patches in units of the ground, the column's half before the row's."""

    def __init__(self, width):
        super().__init__()
        quarter = width // 4
        self.width = width
        self.omega = Tensor((TEMPERATURE ** -(np.arange(quarter) / quarter)).astype(np.float32))

    def encode(self, place, resolution):
        """place is an array (patches,), the result (batch, patches, width / 2)."""
        place = Tensor(place.reshape(1, -1, 1).astype(np.float32)) * resolution.reshape(-1, 1, 1)
        angle = place * self.omega
        return ops.cat((ops.sin(angle), ops.cos(angle)), axis=-1)

    def construct(self, grid, resolution):
        row, col = np.indices(grid).reshape(2, -1)
        return ops.cat((self.encode(col, resolution), self.encode(row, resolution)), axis=-1)


class PixelFeedForward(nn.Cell):
    """Two pointwise convolutions."""

    def __init__(self, width, hidden):
        super().__init__()
        self.fc1 = nn.Conv2d(width, hidden, 1, has_bias=True)
        self.act = nn.GELU(approximate=False)
        self.fc2 = nn.Conv2d(hidden, width, 1, has_bias=True)

    def construct(self, x):
        return self.fc2(self.act(self.fc1(x)))


class MaskedConvBlock(nn.Cell):
    """Depthwise convolution that sees the visible places only, and a perceptron."""

    def __init__(self, width, ratio):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(width, width, 1, has_bias=True)
        self.depthwise = nn.Conv2d(width, width, 5, pad_mode="pad", padding=2, group=width, has_bias=True)
        self.conv2 = nn.Conv2d(width, width, 1, has_bias=True)
        self.norm2 = nn.BatchNorm2d(width)
        self.mlp = PixelFeedForward(width, int(width * ratio))

    def construct(self, x, visible):
        y = self.conv1(self.norm1(x)) * visible
        x = x + self.conv2(self.depthwise(y))
        return x + self.mlp(self.norm2(x))


class Stem(nn.Cell):
    """Small patches, a norm over their channels, and masked convolutions."""

    def __init__(self, width, depth, ratio):
        super().__init__()
        self.proj = nn.Conv2d(3, width, STEM_PATCH, stride=STEM_PATCH, pad_mode="valid", has_bias=True)
        self.norm = layer_norm(width)
        self.act = nn.GELU(approximate=False)
        self.blocks = nn.CellList([MaskedConvBlock(width, ratio) for _ in range(depth)])

    def construct(self, images, hidden, grid):
        x = self.proj(images).transpose(0, 2, 3, 1)
        x = self.act(self.norm(x)).transpose(0, 3, 1, 2)
        times = PATCH // STEM_PATCH
        visible = (1.0 - hidden).reshape(-1, 1, *grid)
        visible = visible.repeat_interleave(times, 2).repeat_interleave(times, 3)
        for block in self.blocks:
            x = block(x, visible)
        return x


class SelfAttention(nn.Cell):
    """Attention with norms on queries and keys."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.head_width = width // heads
        self.qkv = nn.Dense(width, 3 * width)
        self.norm_q = layer_norm(self.head_width)
        self.norm_k = layer_norm(self.head_width)
        self.proj = nn.Dense(width, width)

    def split_heads(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.heads, self.head_width).swapaxes(1, 2)

    def construct(self, x, key_valid):
        b, n, width = x.shape
        query, key, value = (self.split_heads(part) for part in ops.chunk(self.qkv(x), 3, axis=-1))
        query = self.norm_q(query) * self.head_width**-0.5
        key = self.norm_k(key)
        scores = ops.matmul(query, key.swapaxes(-1, -2))
        scores = ops.masked_fill(scores, key_valid.reshape(b, 1, 1, n) < 0.5, float("-inf"))
        mixed = ops.matmul(ops.softmax(scores, axis=-1), value)
        return self.proj(mixed.swapaxes(1, 2).reshape(b, n, width))


class FeedForward(nn.Cell):
    def __init__(self, width, hidden):
        super().__init__()
        self.fc1 = nn.Dense(width, hidden)
        self.gelu = nn.GELU(approximate=False)
        self.fc2 = nn.Dense(hidden, width)

    def construct(self, x):
        return self.fc2(self.gelu(self.fc1(x)))


class TransformerBlock(nn.Cell):
    """Attention and perceptron, each with a learnt scale of its channels."""

    def __init__(self, width, heads, ratio):
        super().__init__()
        self.norm1 = layer_norm(width)
        self.attn = SelfAttention(width, heads)
        self.scale_attn = new_parameter((width,), "scale_attn", 1.0)
        self.norm2 = layer_norm(width)
        self.mlp = FeedForward(width, int(width * ratio))
        self.scale_mlp = new_parameter((width,), "scale_mlp", 1.0)

    def construct(self, x, key_valid):
        x = x + self.attn(self.norm1(x), key_valid) * self.scale_attn
        return x + self.mlp(self.norm2(x)) * self.scale_mlp


class MaskedEncoder(nn.Cell):
    """Stem on the image, transformer on the visible patches; the outputs of all blocks are mixed."""

    def __init__(self, width, depth, heads, ratio, stem_width, stem_depth, stem_ratio):
        super().__init__()
        size = PATCH // STEM_PATCH
        self.stem = Stem(stem_width, stem_depth, stem_ratio)
        self.patch_proj = nn.Conv2d(stem_width, width, size, stride=size, pad_mode="valid", has_bias=True)
        self.skip_proj = nn.Conv2d(stem_width, width, size, stride=size, pad_mode="valid", has_bias=True)
        self.cls_token = new_parameter((1, 1, width), "cls_token")
        self.positions = GroundPositions(width)
        self.blocks = nn.CellList([TransformerBlock(width, heads, ratio) for _ in range(depth)])
        self.mix = new_parameter((depth,), "mix")
        self.norm = layer_norm(width)

    def construct(self, images, kept, hidden, valid, resolution, grid):
        features = self.stem(images, hidden, grid)
        tokens = flat_map(self.patch_proj(features)) + self.positions(grid, resolution)
        tokens = select(tokens, kept)
        shortcut = select(flat_map(self.skip_proj(features)), kept)
        key_valid = with_class_key(select(valid, kept))

        b, _, width = tokens.shape
        x = ops.cat((ops.broadcast_to(self.cls_token, (b, 1, width)), tokens), axis=1)
        shares = ops.softmax(self.mix, axis=0)
        mixed = 0.0
        for i, block in enumerate(self.blocks):
            x = block(x, key_valid)
            mixed = mixed + x * shares[i]
        mixed = ops.cat((mixed[:, :1], mixed[:, 1:] + shortcut), axis=1)
        return self.norm(mixed), key_valid


class PatchDecoder(nn.Cell):
    """The full sequence, with one token for all that is hidden."""

    def __init__(self, encoder_width, width, depth, heads, ratio):
        super().__init__()
        self.embed = nn.Dense(encoder_width, width)
        self.mask_token = new_parameter((1, 1, width), "mask_token")
        self.positions = GroundPositions(width)
        self.blocks = nn.CellList([TransformerBlock(width, heads, ratio) for _ in range(depth)])
        self.norm = layer_norm(width)
        self.pred = nn.Dense(width, PATCH * PATCH * 3)

    def construct(self, latent, restore, valid, resolution, grid):
        x = self.embed(latent)
        b, _, width = x.shape
        token, seen = x[:, :1], x[:, 1:]
        filler = ops.broadcast_to(self.mask_token, (b, restore.shape[1] - seen.shape[1], width))
        patches = select(ops.cat((seen, filler), axis=1), restore) + self.positions(grid, resolution)
        x = ops.cat((token, patches), axis=1)
        key_valid = with_class_key(valid)
        for block in self.blocks:
            x = block(x, key_valid)
        return self.pred(self.norm(x)[:, 1:])


class Detail(nn.Cell):
    """The image without its local mean, normalised within each patch."""

    def __init__(self, window):
        super().__init__()
        self.blur = nn.AvgPool2d(window, stride=1, pad_mode="pad", padding=window // 2, count_include_pad=True)

    def construct(self, images):
        low = self.blur(images)
        patches = to_patches(images - low)
        centre = patches.mean(axis=-1, keep_dims=True)
        spread = ops.sqrt(patches.var(axis=-1, ddof=1, keepdims=True) + 1e-6)
        return (patches - centre) / spread, centre, spread, low


class LinearProbe(nn.Cell):
    """Classes from the class token beside the mean of the visible patches."""

    def __init__(self, width, classes):
        super().__init__()
        self.bn = nn.BatchNorm1d(2 * width, eps=1e-6)
        self.classifier = nn.Dense(2 * width, classes)

    def construct(self, latent, key_valid):
        token, patches = latent[:, 0], latent[:, 1:]
        weight = key_valid[:, 1:].expand_dims(-1)
        mean = (patches * weight).sum(axis=1) / ops.clamp(weight.sum(axis=1), min=1.0)
        return self.classifier(self.bn(ops.cat((token, mean), axis=-1)))


class ConvMAE(nn.Cell):
    """Loss, predicted detail, mask (one is hidden), completed picture, and the probe's logits."""

    def __init__(self, mask_ratio=0.7, width=48, depth=3, heads=4, decoder_width=32, decoder_depth=2, decoder_heads=2,
                 ratio=3.0, classes=10, visible_weight=0.1):
        super().__init__()
        self.rgb_mean = Tensor(np.array(RGB_MEAN, np.float32).reshape(1, 3, 1, 1))
        self.rgb_std = Tensor(np.array(RGB_STD, np.float32).reshape(1, 3, 1, 1))
        self.visible_weight = visible_weight
        self.masking = NoiseMasking(mask_ratio)
        self.encoder = MaskedEncoder(width, depth, heads, ratio, stem_width=16, stem_depth=2, stem_ratio=2.0)
        self.decoder = PatchDecoder(width, decoder_width, decoder_depth, decoder_heads, ratio)
        self.detail = Detail(window=5)
        self.criterion = nn.SmoothL1Loss(beta=0.4, reduction="none")
        self.probe = LinearProbe(width, classes)

    def loss(self, pred, target, hidden, valid):
        per_patch = self.criterion(pred, target).mean(axis=-1)
        on_hidden = average(per_patch, hidden * valid)
        on_visible = average(per_patch, (1.0 - hidden) * valid)
        return on_hidden + self.visible_weight * on_visible

    def complete(self, images, detail, low, hidden, grid):
        """Fill the hidden patches, and go back to RGB."""
        hidden = hidden.reshape(-1, 1, *grid).repeat_interleave(PATCH, 2).repeat_interleave(PATCH, 3)
        picture = ops.where(hidden > 0.5, low + to_images(detail, grid), images)
        return ops.clamp(picture * self.rgb_std + self.rgb_mean, 0.0, 1.0)

    def construct(self, images, noise, sizes, resolution):
        height, width = images.shape[2:]
        grid = (height // PATCH, width // PATCH)
        pixels = area_mask(sizes, (height, width)).expand_dims(1)
        images = (images - self.rgb_mean) / self.rgb_std * pixels
        valid = area_mask((sizes + PATCH - 1) // PATCH, grid).reshape(-1, grid[0] * grid[1])

        kept, restore, hidden = self.masking(noise, valid)
        latent, key_valid = self.encoder(images, kept, hidden, valid, resolution, grid)
        pred = self.decoder(latent, restore, valid, resolution, grid)

        target, centre, spread, low = self.detail(images)
        loss = self.loss(pred, target, hidden, valid)
        picture = self.complete(images, pred * spread + centre, low, hidden, grid) * pixels
        return loss, pred, hidden, picture, self.probe(latent, key_valid)


def build():
    """The net for evaluation, and three images of which two are padded."""
    net = ConvMAE()
    net.set_train(False)
    rng = np.random.RandomState(2111)
    images = 0.35 * rng.rand(3, 3, 24, 32) + 0.65 * rng.rand(3, 3, 6, 8).repeat(4, axis=2).repeat(4, axis=3)
    noise = rng.rand(3, 48)
    inputs = (
        Tensor(images.astype(np.float32)),
        Tensor(noise.astype(np.float32)),
        Tensor(np.array([[24, 32], [16, 19], [10, 12]]), ms.int64),
        Tensor(np.array([1.0, 0.6, 2.5]), ms.float32),
    )
    return net, inputs
