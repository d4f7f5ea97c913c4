"""The small vision language model in MindSpore: the correct port. What only depends on the sizes of the images is planned on
the host, in NumPy; windows and images are kept apart by masks."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

LOWEST = float(np.finfo(np.float32).min)
PIXEL_MEAN = np.array([0.48145466, 0.4578275, 0.40821073], np.float32)
PIXEL_STD = np.array([0.26862954, 0.26130258, 0.27577711], np.float32)


def rotate(x, cos, sin):
    """Turns the channels of a head: the first half pairs with the second."""
    half = x.shape[-1] // 2
    turned = mint.cat((-x[..., half:], x[..., :half]), -1)
    return x * cos + turned * sin


class RMSNorm(nn.Cell):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight = Parameter(ops.ones((width,), ms.float32))
        self.eps = eps

    def construct(self, x):
        mean = mint.mean(mint.square(x), -1, keepdim=True)
        return x * ops.rsqrt(mean + self.eps) * self.weight


class ImagePlan:
    """The order of the patches, who may look at whom, and the angles, all from the sizes of the images alone."""

    def __init__(self, sizes, merge, window, head_dim, theta=100.0):
        inside, frames, places, squares = [], [], [], []
        start = frame = 0
        for image, (t, h, w) in enumerate(sizes):
            index = np.arange(t * h * w).reshape(t, h // merge, merge, w // merge, merge)
            inside.append(index.transpose(0, 1, 3, 2, 4).reshape(-1) + start)
            f, y, x = np.indices((t, h, w)).reshape(3, -1)
            places.append(np.stack([y, x], axis=-1))
            frames.append(f + frame)
            f, y, x = np.indices((t, h // merge, w // merge)).reshape(3, -1)
            squares.append(np.stack([np.full_like(f, image), f, y // window, x // window, y, x]))
            start += t * h * w
            frame += t
        squares = np.concatenate(squares, axis=1)
        order = np.lexsort(squares[::-1])
        units = np.concatenate(inside).reshape(-1, merge * merge)
        patches = units[order].reshape(-1)
        _, windows = np.unique(squares[:4, order], axis=1, return_inverse=True)
        windows = np.repeat(windows.reshape(-1), merge * merge)
        frames = np.concatenate(frames)[patches]

        rotary = head_dim // 2
        frequencies = 1.0 / theta ** (np.arange(0, rotary, 2, dtype=np.float32) / rotary)
        angles = np.concatenate(places)[patches][:, :, None] * frequencies
        angles = angles.reshape(len(patches), rotary)
        angles = np.concatenate([angles, angles], axis=-1)
        self.cos = Tensor(np.cos(angles)[:, None, :].astype(np.float32))
        self.sin = Tensor(np.sin(angles)[:, None, :].astype(np.float32))
        self.patches = Tensor(patches.astype(np.int32))
        self.back = Tensor(np.argsort(order).astype(np.int32))
        self.apart_windows = Tensor(windows[:, None] != windows[None, :])
        self.apart_frames = Tensor(frames[:, None] != frames[None, :])


class PatchEmbedding(nn.Cell):
    def __init__(self, patch, channels, width):
        super().__init__()
        self.patch, self.channels = patch, channels
        self.conv = nn.Conv2d(channels, width, patch, stride=patch, pad_mode="valid", has_bias=True)
        self.mean = Tensor(PIXEL_MEAN.reshape(1, channels, 1, 1))
        self.std = Tensor(PIXEL_STD.reshape(1, channels, 1, 1))

    def construct(self, patches):
        pixels = patches.reshape(-1, self.channels, self.patch, self.patch)
        pixels = (pixels - self.mean) / self.std
        return self.conv(pixels).reshape(patches.shape[0], -1)


class PositionTable(nn.Cell):
    """Learned places on a square grid, resized to each image."""

    def __init__(self, side, width):
        super().__init__()
        self.width = width
        self.weight = Parameter(ops.zeros((side, side, width), ms.float32))

    def construct(self, sizes):
        table = ops.expand_dims(self.weight.permute(2, 0, 1), 0)
        parts = []
        for t, h, w in sizes:
            resized = ops.interpolate(table, size=(h, w), mode="bilinear", align_corners=False)
            resized = resized[0].permute(1, 2, 0).reshape(h * w, self.width)
            parts.append(mint.tile(resized, (t, 1)))
        return mint.cat(parts, 0)


class VisionAttention(nn.Cell):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.head_dim = heads, width // heads
        self.scale = self.head_dim**-0.5
        self.qkv = nn.Dense(width, 3 * width)
        self.proj = nn.Dense(width, width)

    def construct(self, x, apart, cos, sin):
        length, width = x.shape
        qkv = self.qkv(x).reshape(length, 3, self.heads, self.head_dim)
        q, k, v = qkv[:, 0], qkv[:, 1], qkv[:, 2]
        q = rotate(q, cos, sin).swapaxes(0, 1)
        k = rotate(k, cos, sin).swapaxes(0, 1)
        scores = mint.matmul(q * self.scale, k.swapaxes(1, 2))
        scores = ops.masked_fill(scores, apart, LOWEST)
        mixed = mint.matmul(ops.softmax(scores, axis=-1), v.swapaxes(0, 1))
        return self.proj(mixed.swapaxes(0, 1).reshape(length, width))


class QuickMlp(nn.Cell):
    def __init__(self, width, hidden):
        super().__init__()
        self.fc1 = nn.Dense(width, hidden)
        self.fc2 = nn.Dense(hidden, width)

    def construct(self, x):
        x = self.fc1(x)
        return self.fc2(x * ops.sigmoid(1.702 * x))


class VisionBlock(nn.Cell):
    def __init__(self, width, hidden, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm((width,), epsilon=1e-6)
        self.attn = VisionAttention(width, heads)
        self.norm2 = nn.LayerNorm((width,), epsilon=1e-6)
        self.mlp = QuickMlp(width, hidden)
        self.ls1 = Parameter(ops.ones((width,), ms.float32))
        self.ls2 = Parameter(ops.ones((width,), ms.float32))

    def construct(self, x, apart, cos, sin):
        x = x + self.ls1 * self.attn(self.norm1(x), apart, cos, sin)
        return x + self.ls2 * self.mlp(self.norm2(x))


class Merger(nn.Cell):
    """Four patches become one token of the text's width; the norm sees one patch, or all four."""

    def __init__(self, width, unit, out, norm_last=False):
        super().__init__()
        self.merged, self.norm_last = width * unit, norm_last
        self.norm = nn.LayerNorm((self.merged if norm_last else width,), epsilon=1e-6)
        self.up = nn.Dense(self.merged, self.merged)
        self.act = nn.GELU(approximate=False)
        self.down = nn.Dense(self.merged, out)

    def construct(self, x):
        if self.norm_last:
            x = self.norm(x.reshape(-1, self.merged))
        else:
            x = self.norm(x).reshape(-1, self.merged)
        return self.down(self.act(self.up(x)))


class VisionTower(nn.Cell):
    def __init__(self, width=48, hidden=96, heads=3, depth=4, patch=4, merge=2, window=24, out=64):
        super().__init__()
        self.merge, self.head_dim = merge, width // heads
        self.window = window // merge // patch
        self.full_blocks, self.deep_block = (1, 3), 1
        self.patch_embed = PatchEmbedding(patch, 3, width)
        self.positions = PositionTable(6, width)
        self.blocks = nn.CellList([VisionBlock(width, hidden, heads) for _ in range(depth)])
        self.merger = Merger(width, merge * merge, out)
        self.deep_merger = Merger(width, merge * merge, out, norm_last=True)

    def construct(self, pixels, sizes):
        plan = ImagePlan(sizes, self.merge, self.window, self.head_dim)
        x = self.patch_embed(pixels) + self.positions(sizes)
        x = ops.gather(x, plan.patches, 0)
        deep = None
        for index, block in enumerate(self.blocks):
            apart = plan.apart_frames if index in self.full_blocks else plan.apart_windows
            x = block(x, apart, plan.cos, plan.sin)
            if index == self.deep_block:
                deep = ops.gather(self.deep_merger(x), plan.back, 0)
        return ops.gather(self.merger(x), plan.back, 0), deep


class KeyValueCache:
    """What each layer has seen so far."""

    def __init__(self, depth):
        self.seen = [None] * depth

    def __len__(self):
        return self.seen[0][0].shape[2] if self.seen[0] is not None else 0

    def append(self, layer, k, v):
        if self.seen[layer] is not None:
            k = mint.cat((self.seen[layer][0], k), 2)
            v = mint.cat((self.seen[layer][1], v), 2)
        self.seen[layer] = (k, v)
        return k, v


class GroupedAttention(nn.Cell):
    def __init__(self, layer, width, heads, kv_heads, head_dim, eps):
        super().__init__()
        self.layer, self.heads, self.kv_heads, self.head_dim = layer, heads, kv_heads, head_dim
        self.wq = nn.Dense(width, heads * head_dim)
        self.wk = nn.Dense(width, kv_heads * head_dim)
        self.wv = nn.Dense(width, kv_heads * head_dim)
        self.wo = nn.Dense(heads * head_dim, width, has_bias=False)
        self.q_norm = RMSNorm(head_dim, eps)
        self.k_norm = RMSNorm(head_dim, eps)

    def construct(self, x, cos, sin, forbidden, cache):
        batch, length, _ = x.shape
        q = self.q_norm(self.wq(x).reshape(batch, length, self.heads, self.head_dim)).swapaxes(1, 2)
        k = self.k_norm(self.wk(x).reshape(batch, length, self.kv_heads, self.head_dim)).swapaxes(1, 2)
        v = self.wv(x).reshape(batch, length, self.kv_heads, self.head_dim).swapaxes(1, 2)
        q = rotate(q, cos, sin)
        k = rotate(k, cos, sin)
        k, v = cache.append(self.layer, k, v)
        k = ops.repeat_interleave(k, self.heads // self.kv_heads, 1)
        v = ops.repeat_interleave(v, self.heads // self.kv_heads, 1)
        scores = mint.matmul(q, k.swapaxes(2, 3)) / self.head_dim**0.5
        scores = ops.masked_fill(scores, forbidden, LOWEST)
        mixed = mint.matmul(ops.softmax(scores, axis=-1), v)
        return self.wo(mixed.swapaxes(1, 2).reshape(batch, length, self.heads * self.head_dim))


class SwiGLU(nn.Cell):
    def __init__(self, width, hidden):
        super().__init__()
        self.gate_up = nn.Dense(width, 2 * hidden, has_bias=False)
        self.down = nn.Dense(hidden, width, has_bias=False)

    def construct(self, x):
        gate, up = mint.chunk(self.gate_up(x), 2, -1)
        return self.down(ops.silu(gate) * up)


class TextLayer(nn.Cell):
    def __init__(self, layer, width, hidden, heads, kv_heads, head_dim, eps):
        super().__init__()
        self.attention = GroupedAttention(layer, width, heads, kv_heads, head_dim, eps)
        self.mlp = SwiGLU(width, hidden)
        self.input_norm = RMSNorm(width, eps)
        self.post_norm = RMSNorm(width, eps)

    def construct(self, x, cos, sin, forbidden, cache):
        x = x + self.attention(self.input_norm(x), cos, sin, forbidden, cache)
        return x + self.mlp(self.post_norm(x))


class TextDecoder(nn.Cell):
    def __init__(self, words=120, width=64, hidden=112, depth=3, heads=4, kv_heads=2, head_dim=16, eps=1e-5):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.CellList(
            [TextLayer(i, width, hidden, heads, kv_heads, head_dim, eps) for i in range(depth)]
        )
        self.norm = RMSNorm(width, eps)
        self.sections = (2, 3, 3)
        frequencies = 1.0 / 5000.0 ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
        self.frequencies = Tensor(frequencies.astype(np.float32))

    def turns(self, places):
        """Sine and cosine for each head's channel, from places of time, row and column: (3, batch, length)."""
        angles = ops.expand_dims(places.astype(ms.float32), -1) * self.frequencies
        chosen = [part[axis] for axis, part in enumerate(mint.split(angles, self.sections, dim=-1))]
        angles = ops.expand_dims(mint.cat(chosen * 2, -1), 1)
        return ops.cos(angles), ops.sin(angles)

    def forbid(self, present, length, past):
        rows = ops.arange(past, past + length).reshape(-1, 1)
        later = ops.arange(present.shape[1]).reshape(1, -1) > rows
        return ops.logical_or(later[None, None], present[:, None, None, :] == 0)

    def construct(self, x, places, present, cache, slots=None, deep=None):
        batch, length, width = x.shape
        forbidden = self.forbid(present, length, len(cache))
        cos, sin = self.turns(places)
        for index, layer in enumerate(self.layers):
            x = layer(x, cos, sin, forbidden, cache)
            if index == 0 and slots is not None:
                x = ops.tensor_scatter_add(x.reshape(-1, width), slots, deep).reshape(batch, length, width)
        return self.norm(x)


class VisionLanguageModel(nn.Cell):
    """Reads prompts with images and clips, then the given tokens one by one."""

    image_token = 3
    stride = 2

    def __init__(self):
        super().__init__()
        self.vision = VisionTower()
        self.text = TextDecoder()
        self.head = nn.Dense(64, 120, has_bias=False)

    def places_of(self, words, sizes, present):
        """Walks through each prompt: a word takes the next place, an image all places of its box at once."""
        merge = self.vision.merge
        places = np.ones((3, *words.shape), np.int64)
        behind = np.zeros((len(words), 1), np.int64)
        sizes = iter(sizes)
        for row, sentence in enumerate(words):
            spots = np.flatnonzero(present[row])
            i = cursor = 0
            while i < len(spots):
                if sentence[spots[i]] != self.image_token:
                    places[:, row, spots[i]] = cursor
                    i, cursor = i + 1, cursor + 1
                    continue
                t, h, w = next(sizes)
                box = np.indices((t, h // merge, w // merge)).reshape(3, -1)
                box[0] *= self.stride
                count = box.shape[1]
                places[:, row, spots[i : i + count]] = cursor + box
                i, cursor = i + count, cursor + box.max() + 1
            behind[row] = cursor - len(sentence)
        return Tensor(places), behind

    def construct(self, input_ids, attention_mask, pixel_values, image_grid_thw, next_ids):
        sizes = image_grid_thw.asnumpy().tolist()
        words, present = input_ids.asnumpy(), attention_mask.asnumpy()
        images, deep = self.vision(pixel_values, sizes)
        x = self.text.embed(input_ids)
        batch, length, width = x.shape
        slots = Tensor(np.argwhere(words.reshape(-1) == self.image_token).astype(np.int32))
        x = ops.tensor_scatter_update(x.reshape(-1, width), slots, images).reshape(batch, length, width)
        places, behind = self.places_of(words, sizes, present)

        cache = KeyValueCache(len(self.text.layers))
        hidden = self.text(x, places, attention_mask, cache, slots, deep)
        logits = ops.masked_fill(self.head(hidden), ops.expand_dims(attention_mask, -1) == 0, 0.0)

        steps = []
        for i in range(next_ids.shape[1]):
            attention_mask = ops.cat((attention_mask, ops.ones((batch, 1), attention_mask.dtype)), 1)
            here = Tensor(np.broadcast_to(len(cache) + behind, (3, batch, 1)).copy())
            hidden = self.text(self.text.embed(next_ids[:, i : i + 1]), here, attention_mask, cache)
            steps.append(self.head(hidden[:, 0]))
        return logits, ops.stack(steps, 1)


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return VisionLanguageModel()
