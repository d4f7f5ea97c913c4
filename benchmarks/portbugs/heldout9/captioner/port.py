"""The small picture captioner in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

PAD, EOS = 0, 2
NEVER = -1e9


def rotary_tables(length, width, base=1000.0):
    """Cosines and sines of each position, both (length, width), the halves alike."""
    rates = base ** (-np.arange(0, width, 2) / width)
    angles = np.outer(np.arange(length), rates)
    angles = np.concatenate([angles, angles], axis=-1)
    return Tensor(np.cos(angles), ms.float32), Tensor(np.sin(angles), ms.float32)


def rotate(x, cos, sin):
    """Turns each pair (i, i + width / 2) of x (B, H, L, D) by its position's angle (B, L, D)."""
    half = x.shape[-1] // 2
    turned = ops.concat([-x[..., half:], x[..., :half]], axis=-1)
    return x * cos.expand_dims(1) + turned * sin.expand_dims(1)


def attend(query, key, value, bias=None):
    """Softmax attention of heads (B, H, L, D); bias is added to the scores."""
    scores = ops.matmul(query, key.swapaxes(-1, -2)) * (query.shape[-1] ** -0.5)
    if bias is not None:
        scores = scores + bias
    return ops.matmul(ops.softmax(scores, axis=-1), value)


def split(x, heads):
    """(B, L, H * D) to (B, H, L, D)."""
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)


def merge(x):
    """(B, H, L, D) to (B, L, H * D)."""
    batch, heads, length, side = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, heads * side)


def normalized(x):
    """Vectors of length one."""
    return x / ops.clamp(ops.norm(x, dim=-1, keepdim=True), min=1e-12)


class VisionBlock(nn.Cell):
    """Attention and two layers, each behind a norm and scaled before it is added."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm((width,), epsilon=1e-6)
        self.qkv = nn.Dense(width, 3 * width)
        self.proj = nn.Dense(width, width)
        self.norm2 = nn.LayerNorm((width,), epsilon=1e-6)
        self.fc1 = nn.Dense(width, 2 * width)
        self.fc2 = nn.Dense(2 * width, width)
        self.scale1 = Parameter(ops.ones(width, ms.float32))
        self.scale2 = Parameter(ops.ones(width, ms.float32))

    def construct(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = ops.unbind(qkv.transpose(2, 0, 3, 1, 4), 0)
        x = x + self.scale1 * self.proj(merge(attend(query, key, value)))
        hidden = self.fc1(self.norm2(x))
        hidden = hidden * ops.sigmoid(1.702 * hidden)
        return x + self.scale2 * self.fc2(hidden)


class Vision(nn.Cell):
    """A ViT whose position table is stretched to the picture's grid."""

    def __init__(self, width=64, heads=4, depth=2, patch=8, grid=6):
        super().__init__()
        self.grid = grid
        self.patch = nn.Conv2d(3, width, patch, patch, pad_mode="valid", has_bias=True)
        self.class_token = Parameter(ops.zeros((1, 1, width), ms.float32))
        self.positions = Parameter(ops.zeros((1, 1 + grid * grid, width), ms.float32))
        self.blocks = nn.CellList([VisionBlock(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm((width,), epsilon=1e-6)
        self.pool = nn.AvgPool2d(3, 2, pad_mode="pad", padding=1)

    def stretched(self, height, width):
        """The position table for a grid of another size; the class token's position stays."""
        table = self.positions[:, 1:].reshape(1, self.grid, self.grid, -1).transpose(0, 3, 1, 2)
        table = ops.interpolate(table, size=(height, width), mode="bilinear", align_corners=False)
        table = table.reshape(1, -1, height * width).swapaxes(1, 2)
        return ops.concat([self.positions[:, :1], table], axis=1)

    def construct(self, pictures):
        x = self.patch(pictures)
        batch, channels, height, width = x.shape
        x = x.reshape(batch, channels, height * width).swapaxes(1, 2)
        first = ops.broadcast_to(self.class_token, (batch, 1, channels))
        x = ops.concat([first, x], axis=1) + self.stretched(height, width)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        cells = x[:, 1:].swapaxes(1, 2).reshape(batch, channels, height, width)
        coarse = self.pool(cells)
        coarse = coarse.reshape(batch, channels, -1).swapaxes(1, 2)
        return ops.concat([x, coarse], axis=1)


class ResamplerBlock(nn.Cell):
    """Learned queries look at the picture and at each other."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_media = nn.LayerNorm((width,), epsilon=1e-5)
        self.norm_query = nn.LayerNorm((width,), epsilon=1e-5)
        self.to_q = nn.Dense(width, width, has_bias=False)
        self.to_kv = nn.Dense(width, 2 * width, has_bias=False)
        self.to_out = nn.Dense(width, width, has_bias=False)
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.fc1 = nn.Dense(width, 2 * width)
        self.fc2 = nn.Dense(2 * width, width)

    def construct(self, queries, media):
        normed = self.norm_query(queries)
        media = self.norm_media(media)
        query = split(self.to_q(normed), self.heads)
        key, value = ops.chunk(self.to_kv(ops.concat([media, normed], axis=1)), 2, axis=-1)
        seen = attend(query, split(key, self.heads), split(value, self.heads))
        queries = queries + self.to_out(merge(seen))
        hidden = ops.square(ops.relu(self.fc1(self.norm(queries))))
        return queries + self.fc2(hidden)


class Resampler(nn.Cell):
    """A few vectors that say what is in the picture."""

    def __init__(self, count=6, width=64, heads=4, depth=2):
        super().__init__()
        self.queries = Parameter(ops.zeros((count, width), ms.float32))
        self.blocks = nn.CellList([ResamplerBlock(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)

    def construct(self, media):
        queries = ops.broadcast_to(self.queries, (media.shape[0], *self.queries.shape))
        for block in self.blocks:
            queries = block(queries, media)
        return self.norm(queries)


class RMSNorm(nn.Cell):
    """Scales each vector to a root mean square of one."""

    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = Parameter(ops.ones(width, ms.float32))

    def construct(self, x):
        power = ops.square(x).mean(-1, keep_dims=True)
        return x * ops.rsqrt(power + self.eps) * self.weight


class TextBlock(nn.Cell):
    """Looks at the words so far with grouped heads, at the picture through a gate, then thinks."""

    def __init__(self, width, heads, groups):
        super().__init__()
        self.heads, self.groups = heads, groups
        side = width // heads
        self.norm1 = RMSNorm(width)
        self.to_q = nn.Dense(width, width, has_bias=False)
        self.to_k = nn.Dense(width, groups * side, has_bias=False)
        self.to_v = nn.Dense(width, groups * side, has_bias=False)
        self.to_out = nn.Dense(width, width, has_bias=False)
        self.norm2 = RMSNorm(width)
        self.cross_q = nn.Dense(width, width)
        self.cross_kv = nn.Dense(width, 2 * width)
        self.cross_out = nn.Dense(width, width)
        self.gate = Parameter(ops.zeros(1, ms.float32))
        self.norm3 = RMSNorm(width)
        self.fc_gate = nn.Dense(width, 2 * width, has_bias=False)
        self.fc_up = nn.Dense(width, 2 * width, has_bias=False)
        self.fc_down = nn.Dense(2 * width, width, has_bias=False)

    def spread(self, x):
        """Each group's keys or values for all of its query heads: (B, G, L, D) to (B, H, L, D)."""
        batch, groups, length, side = x.shape
        x = ops.broadcast_to(x.expand_dims(2), (batch, groups, self.heads // groups, length, side))
        return x.reshape(batch, self.heads, length, side)

    def construct(self, x, cos, sin, bias, memory, past):
        normed = self.norm1(x)
        query = rotate(split(self.to_q(normed), self.heads), cos, sin)
        key = rotate(split(self.to_k(normed), self.groups), cos, sin)
        value = split(self.to_v(normed), self.groups)
        if past is not None:
            key = ops.concat([past[0], key], axis=2)
            value = ops.concat([past[1], value], axis=2)
        x = x + self.to_out(merge(attend(query, self.spread(key), self.spread(value), bias)))
        query = split(self.cross_q(self.norm2(x)), self.heads)
        k, v = ops.chunk(self.cross_kv(memory), 2, axis=-1)
        seen = merge(attend(query, split(k, self.heads), split(v, self.heads)))
        x = x + ops.tanh(self.gate) * self.cross_out(seen)
        normed = self.norm3(x)
        gate = self.fc_gate(normed)
        x = x + self.fc_down(gate * ops.sigmoid(gate) * self.fc_up(normed))
        return x, (key, value)


class Decoder(nn.Cell):
    """Words and what was kept of earlier words in, a vector for each word out."""

    def __init__(self, words, width=64, heads=4, groups=2, depth=2):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.CellList([TextBlock(width, heads, groups) for _ in range(depth)])
        self.norm = RMSNorm(width)
        self.cos, self.sin = rotary_tables(32, width // heads)

    def construct(self, words, real, memory, cache=None):
        """real (B, past + L) is true at words that are no padding; padding stands at the left."""
        length, total = words.shape[1], real.shape[1]
        past = total - length
        counted = ops.cumsum(real.astype(ms.int32), 1)
        positions = ops.clamp(counted - 1, min=0)[:, past:]
        places = ops.arange(total)
        causal = ops.less_equal(places.reshape(1, -1), places[past:].reshape(-1, 1))
        allowed = ops.logical_and(causal.expand_dims(0), real.expand_dims(1))
        bias = ((1.0 - allowed.astype(ms.float32)) * NEVER).expand_dims(1)
        cos, sin = ops.gather(self.cos, positions, 0), ops.gather(self.sin, positions, 0)
        x = self.embed(words)
        kept = []
        for i, block in enumerate(self.blocks):
            x, pair = block(x, cos, sin, bias, memory, None if cache is None else cache[i])
            kept.append(pair)
        return self.norm(x), kept


class Captioner(nn.Cell):
    """Searches captions that go on from a prompt, with beams, and says how well the best one fits."""

    def __init__(self, words=96, width=64, beams=3, steps=6):
        super().__init__()
        self.words, self.beams, self.steps = words, beams, steps
        self.alpha, self.repetition, self.shortest = 0.8, 1.8, 3
        self.mean = Tensor(np.array([0.481, 0.458, 0.408]).reshape(1, 3, 1, 1), ms.float32)
        self.std = Tensor(np.array([0.269, 0.261, 0.276]).reshape(1, 3, 1, 1), ms.float32)
        self.vision = Vision(width)
        self.resampler = Resampler(width=width)
        self.decoder = Decoder(words, width)
        self.head_bias = Parameter(ops.zeros(words, ms.float32))
        self.picture_head = nn.SequentialCell(nn.Dense(width, width), nn.LeakyReLU(0.01), nn.Dense(width, 32))
        self.text_head = nn.Dense(width, 32)
        self.temperature = Parameter(Tensor(0.0, ms.float32))
        alone = np.arange(words)
        self.no_pad = Tensor(np.where(alone == PAD, NEVER, 0.0), ms.float32)
        self.no_end = Tensor(np.where(alone == EOS, NEVER, 0.0), ms.float32)
        self.only_pad = Tensor(np.where(alone == PAD, 0.0, NEVER), ms.float32)

    def logits(self, hidden):
        """Scores of all words; the embedding is the last layer's weight too."""
        return ops.matmul(hidden, self.decoder.embed.embedding_table.swapaxes(0, 1)) + self.head_bias

    def next_words(self, hidden, sequences, step):
        """Log-probabilities of the next word, with a penalty for words that were said already."""
        logits = self.logits(hidden[:, -1])
        said = ops.equal(sequences.expand_dims(-1), ops.arange(self.words)).astype(ms.int32).sum(1) > 0
        damped = ops.where(logits < 0, logits * self.repetition, logits / self.repetition)
        logits = ops.where(said, damped, logits) + self.no_pad
        if step < self.shortest:
            logits = logits + self.no_end
        return ops.log_softmax(logits, axis=-1)

    def search(self, prompt, real, memory):
        """Beam search: the words (B, beams, steps), their summed log-probabilities and the beams' lengths."""
        batch, beams = prompt.shape[0], self.beams
        hidden, cache = self.decoder(prompt, real, memory)
        chances = self.next_words(hidden, prompt, 0)
        totals, words = ops.topk(chances, beams, dim=1)
        words = words.astype(prompt.dtype)
        first = ops.arange(batch).reshape(-1, 1)
        rows = ops.broadcast_to(first, (batch, beams)).reshape(-1)
        sequences = ops.concat([ops.gather(prompt, rows, 0), words.reshape(-1, 1)], axis=1)
        real = ops.gather(real.astype(ms.int32), rows, 0)
        memory = ops.gather(memory, rows, 0)
        cache = [(ops.gather(k, rows, 0), ops.gather(v, rows, 0)) for k, v in cache]
        lengths = ops.ones((batch, beams), ms.float32)
        ended = ops.equal(words, EOS)
        for step in range(1, self.steps):
            real = ops.concat([real, ops.ones((batch * beams, 1), ms.int32)], axis=1)
            hidden, cache = self.decoder(sequences[:, -1:], real.astype(ms.bool_), memory, cache)
            chances = self.next_words(hidden, sequences, step).reshape(batch, beams, self.words)
            chances = ops.where(ended.expand_dims(-1), self.only_pad, chances)
            longer = lengths + ops.logical_not(ended).astype(ms.float32)
            sums = totals.expand_dims(-1) + chances
            ranks = sums / ops.pow(longer, self.alpha).expand_dims(-1)
            _, index = ops.topk(ranks.reshape(batch, -1), beams, dim=1)
            parent = index // self.words
            words = (index - parent * self.words).astype(prompt.dtype)
            totals = ops.gather_elements(sums.reshape(batch, -1), 1, index)
            lengths = ops.gather_elements(longer, 1, parent)
            ended = ops.gather_elements(ended.astype(ms.int32), 1, parent).astype(ms.bool_)
            rows = (parent + first.astype(parent.dtype) * beams).reshape(-1)
            sequences = ops.concat([ops.gather(sequences, rows, 0), words.reshape(-1, 1)], axis=1)
            cache = [(ops.gather(k, rows, 0), ops.gather(v, rows, 0)) for k, v in cache]
            ended = ops.logical_or(ended, ops.equal(words, EOS))
        return sequences[:, prompt.shape[1] :].reshape(batch, beams, -1), totals, lengths

    def construct(self, pictures, prompt, real):
        media = self.vision((pictures - self.mean) / self.std)
        memory = self.resampler(media)
        words, totals, lengths = self.search(prompt, real, memory)
        scores = totals / ops.pow((5 + lengths) / 6, self.alpha)
        best = ops.argmax(scores, dim=1)
        caption = ops.gather(words, best, axis=1, batch_dims=1)
        text = ops.concat([prompt, caption], axis=1)
        weights = ops.concat([real.astype(ms.float32), (caption != PAD).astype(ms.float32)], axis=1)
        hidden, _ = self.decoder(text, weights > 0.5, memory)
        chances = ops.log_softmax(self.logits(hidden[:, :-1]), axis=-1)
        chances = ops.gather_elements(chances, 2, text[:, 1:].expand_dims(-1)).squeeze(2)
        said = weights[:, 1:] * weights[:, :-1]
        perplexity = ops.exp(-(chances * said).sum(1) / said.sum(1))
        mean = (hidden * weights.expand_dims(-1)).sum(1) / weights.sum(1, keepdims=True)
        text = normalized(self.text_head(mean))
        picture = normalized(self.picture_head(memory.mean(1)))
        fit = ops.matmul(text, picture.swapaxes(0, 1)) * ops.exp(self.temperature)
        return words, scores, perplexity, ops.log_softmax(fit, axis=-1)


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Captioner()
