"""Two-tower retrieval of illustrated passages with late interaction and a reranker, in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

PAD, EOT, MASK, QUERY, PASSAGE = 0, 2, 3, 4, 5
PUNCTUATION = (6, 7, 8, 9)
FORBIDDEN = -1e4


def l2_normalize(x, axis=-1):
    norm = ops.sqrt(ops.reduce_sum(ops.square(x), axis).expand_dims(axis))
    return x / ops.maximum(norm, Tensor(1e-12, ms.float32))


def attend(q, k, v, bias):
    """Plain attention over the last two axes; the scale is the caller's business."""
    scores = ops.matmul(q, k.swapaxes(-2, -1)) + bias
    return ops.matmul(ops.softmax(scores, axis=-1), v)


def key_bias(keep):
    """(n, keys) of truth values to an additive bias for (n, heads, queries, keys)."""
    return ops.where(keep, 0.0, FORBIDDEN).astype(ms.float32)[:, None, None, :]


def zscore(scores):
    mean = scores.mean(axis=-1, keep_dims=True)
    return (scores - mean) / (scores.std(axis=-1, ddof=1, keepdims=True) + 1e-6)


def distance_buckets(length, buckets=16, farthest=40):
    """T5's buckets: sign, then exact distances, then logarithmic ones."""
    offset = np.arange(length)[None, :] - np.arange(length)[:, None]
    half = buckets // 2
    exact = half // 2
    steps = np.abs(offset)
    logarithmic = np.log(np.maximum(steps, 1) / exact) / math.log(farthest / exact) * (half - exact)
    logarithmic = np.minimum(exact + logarithmic.astype(np.int64), half - 1)
    table = np.where(steps < exact, steps, logarithmic) + half * (offset > 0)
    return Tensor(table, ms.int32)


class FusedAttention(nn.Cell):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.head_dim = width // heads
        self.qkv = nn.Dense(width, 3 * width)
        self.proj = nn.Dense(width, width)

    def construct(self, x, bias):
        n, length, width = x.shape
        qkv = self.qkv(x).reshape(n, length, 3, self.heads, self.head_dim)
        q, k, v = ops.unbind(qkv.transpose(2, 0, 3, 1, 4), 0)
        out = attend(q * self.head_dim**-0.5, k, v, bias)
        return self.proj(out.swapaxes(1, 2).reshape(n, length, width))


class FeedForward(nn.Cell):
    """CLIP's, with the sigmoid's approximation of GELU."""

    def __init__(self, width, hidden):
        super().__init__()
        self.fc = nn.Dense(width, hidden)
        self.proj = nn.Dense(hidden, width)

    def construct(self, x):
        x = self.fc(x)
        return self.proj(x * ops.sigmoid(1.702 * x))


class TextBlock(nn.Cell):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1 = nn.LayerNorm((width,), epsilon=1e-5)
        self.attn = FusedAttention(width, heads)
        self.ln_2 = nn.LayerNorm((width,), epsilon=1e-5)
        self.mlp = FeedForward(width, 3 * width)

    def construct(self, x, bias):
        x = x + self.attn(self.ln_1(x), bias)
        x = x + self.mlp(self.ln_2(x))
        return x


class TextTower(nn.Cell):
    def __init__(self, vocab, width, heads, depth, embed, context):
        super().__init__()
        self.positions = Parameter(ops.zeros((context, width), ms.float32))
        self.projection = Parameter(ops.zeros((width, embed), ms.float32))
        self.tokens = nn.Embedding(vocab, width)
        self.blocks = nn.CellList([TextBlock(width, heads) for _ in range(depth)])
        self.ln_final = nn.LayerNorm((width,), epsilon=1e-5)
        self.future = Tensor(np.triu(np.full((context, context), FORBIDDEN), 1), ms.float32)

    def last_token(self, x, tokens):
        """The hidden state at the end-of-text token."""
        eot = (tokens == EOT).astype(ms.int32).argmax(axis=-1)
        return x[ops.arange(x.shape[0]), eot]

    def average(self, x, keep):
        keep = keep.astype(ms.float32).expand_dims(-1)
        return (x * keep).sum(axis=1) / ops.clamp(keep.sum(axis=1), min=1.0)

    def construct(self, tokens, causal):
        length = tokens.shape[1]
        keep = tokens != PAD
        bias = ops.where(keep[:, None, None, :], 0.0, FORBIDDEN).astype(ms.float32)
        bias = bias.broadcast_to((tokens.shape[0], 1, length, length))
        if causal:
            bias = bias + self.future[:length, :length]
        x = self.tokens(tokens) + self.positions[:length]
        for block in self.blocks:
            x = block(x, bias)
        x = self.ln_final(x)
        pooled = self.last_token(x, tokens) if causal else self.average(x, keep)
        return x, ops.matmul(pooled, self.projection)


class PatchAttention(nn.Cell):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Dense(width, width)
        self.k_proj = nn.Dense(width, width)
        self.v_proj = nn.Dense(width, width)
        self.out_proj = nn.Dense(width, width)

    def construct(self, x, bias):
        n, length, width = x.shape
        shape = (n, length, self.heads, width // self.heads)
        q = self.q_proj(x).reshape(shape).transpose(0, 2, 1, 3)
        k = self.k_proj(x).reshape(shape).transpose(0, 2, 1, 3)
        v = self.v_proj(x).reshape(shape).transpose(0, 2, 1, 3)
        out = attend(q / math.sqrt(width // self.heads), k, v, bias)
        return self.out_proj(out.transpose(0, 2, 1, 3).reshape(n, length, width))


class VisionBlock(nn.Cell):
    def __init__(self, width, heads):
        super().__init__()
        self.gamma_1 = Parameter(ops.ones((width,), ms.float32))
        self.gamma_2 = Parameter(ops.ones((width,), ms.float32))
        self.norm1 = nn.LayerNorm((width,), epsilon=1e-6)
        self.attn = PatchAttention(width, heads)
        self.norm2 = nn.LayerNorm((width,), epsilon=1e-6)
        self.fc1 = nn.Dense(width, 3 * width)
        self.fc2 = nn.Dense(3 * width, width)

    def construct(self, x, bias):
        x = x + self.gamma_1 * self.attn(self.norm1(x), bias)
        hidden = ops.gelu(self.fc1(self.norm2(x)), approximate="tanh")
        return x + self.gamma_2 * self.fc2(hidden)


class ProbePooling(nn.Cell):
    def __init__(self, width, heads):
        super().__init__()
        self.probe = Parameter(ops.zeros((1, 1, width), ms.float32))
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm = nn.LayerNorm((width,), epsilon=1e-6)
        self.mlp = nn.SequentialCell(nn.Dense(width, 2 * width), nn.GELU(approximate=True), nn.Dense(2 * width, width))

    def construct(self, x, keep):
        probe = ops.tile(self.probe, (x.shape[0], 1, 1))
        pooled = self.attention(probe, x, x, key_padding_mask=ops.logical_not(keep), need_weights=False)[0]
        residual = pooled
        pooled = self.norm(pooled)
        pooled = residual + self.mlp(pooled)
        return pooled.squeeze(1)


class ImageTower(nn.Cell):
    def __init__(self, width, heads, depth, embed, grid, patch=8, merge=2):
        super().__init__()
        self.grid = grid
        self.patch = patch
        self.merge = merge
        self.pos_embed = Parameter(ops.zeros((1, grid * grid, width), ms.float32))
        self.stem_conv = nn.Conv2d(3, width // 2, 3, stride=2, pad_mode="pad", padding=1, has_bias=False)
        self.stem_norm = nn.BatchNorm2d(width // 2, eps=1e-3)
        self.patchify = nn.Conv2d(
            width // 2, width, patch // 2, stride=patch // 2, pad_mode="valid", has_bias=True
        )
        self.blocks = nn.CellList([VisionBlock(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm((width,), epsilon=1e-6)
        self.head = ProbePooling(width, heads)
        self.projection = nn.Dense(width, embed, has_bias=False)
        self.merger = nn.Dense(merge * merge * width, width)

    def positions(self, rows, columns):
        table = self.pos_embed.reshape(1, self.grid, self.grid, -1).transpose(0, 3, 1, 2)
        table = ops.interpolate(table, size=(rows, columns), mode="bilinear", align_corners=False)
        return table.reshape(1, -1, rows * columns).swapaxes(1, 2)

    def real_patches(self, sizes, rows, columns):
        used = ops.ceil(sizes.astype(ms.float32) / self.patch).astype(ms.int32)
        down = ops.arange(rows)[None, :] < used[:, :1]
        across = ops.arange(columns)[None, :] < used[:, 1:]
        return ops.logical_and(down[:, :, None], across[:, None, :]).reshape(sizes.shape[0], rows * columns)

    def merge_neighbours(self, x, keep, rows, columns):
        n, _, width = x.shape
        m = self.merge
        keep = keep.astype(ms.float32)
        x = (x * keep[..., None]).reshape(n, rows, columns, width)
        keep = keep.reshape(n, rows, columns)
        below = (m - rows % m) % m
        right = (m - columns % m) % m
        x = ops.pad(x, (0, 0, 0, right, 0, below))
        keep = ops.pad(keep, (0, right, 0, below))
        rows, columns = (rows + below) // m, (columns + right) // m
        x = x.reshape(n, rows, m, columns, m, width).transpose(0, 1, 3, 2, 4, 5)
        x = x.reshape(n, rows * columns, m * m * width)
        keep = keep.reshape(n, rows, m, columns, m).max(axis=(2, 4)).reshape(n, rows * columns)
        return self.merger(x), keep > 0

    def construct(self, images, sizes):
        x = ops.gelu(self.stem_norm(self.stem_conv(images)))
        x = self.patchify(x)
        n, width, rows, columns = x.shape
        x = x.reshape(n, width, rows * columns).swapaxes(1, 2)
        x = x + self.positions(rows, columns)
        keep = self.real_patches(sizes, rows, columns)
        bias = key_bias(keep)
        for block in self.blocks:
            x = block(x, bias)
        x = self.norm(x)
        pooled = self.projection(self.head(x, keep))
        tokens, token_keep = self.merge_neighbours(x, keep, rows, columns)
        return tokens, token_keep, pooled


class LateInteraction(nn.Cell):
    def __init__(self, width, dim):
        super().__init__()
        self.text = nn.Dense(width, dim, has_bias=False)
        self.image = nn.Dense(width, dim, has_bias=False)
        self.importance = nn.Dense(width, 1, has_bias=False)

    def best_partners(self, query, candidates, keep):
        """(b, q, d) and (n, k, d) to each query token's best similarity within each candidate (b, n, q)."""
        similarity = ops.matmul(query[:, None], candidates.swapaxes(1, 2)[None])
        similarity = ops.masked_fill(similarity, ops.logical_not(keep)[None, :, None, :], FORBIDDEN)
        return similarity.max(axis=-1)

    def construct(self, query, query_keep, passage, passage_keep, patches, patches_keep):
        weights = self.importance(query)[..., 0]
        weights = ops.masked_fill(weights, ops.logical_not(query_keep), FORBIDDEN)
        weights = mint.softmax(weights, dim=-1)[:, None, :]
        query = l2_normalize(self.text(query))
        passage = l2_normalize(self.text(passage))
        patches = l2_normalize(self.image(patches))
        by_text = (self.best_partners(query, passage, passage_keep) * weights).sum(axis=-1)
        by_image = (self.best_partners(query, patches, patches_keep) * weights).sum(axis=-1)
        return by_text, by_image


class CrossLayer(nn.Cell):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.size = width // heads
        self.query = nn.Dense(width, width)
        self.key = nn.Dense(width, width)
        self.value = nn.Dense(width, width)
        self.output = nn.Dense(width, width)
        self.attention_norm = nn.LayerNorm((width,), epsilon=1e-12)
        self.up = nn.Dense(width, 2 * width)
        self.down = nn.Dense(2 * width, width)
        self.output_norm = nn.LayerNorm((width,), epsilon=1e-12)

    def construct(self, x, bias):
        n, length, width = x.shape

        def split(t):
            return t.reshape(n, length, self.heads, self.size).swapaxes(1, 2)

        q = split(self.query(x)) / math.sqrt(self.size)
        context = attend(q, split(self.key(x)), split(self.value(x)), bias)
        context = context.swapaxes(1, 2).reshape(n, length, width)
        x = self.attention_norm(x + self.output(context))
        return self.output_norm(x + self.down(ops.gelu(self.up(x))))


class Reranker(nn.Cell):
    def __init__(self, source, width, heads, depth):
        super().__init__()
        self.cls = Parameter(ops.zeros((1, 1, width), ms.float32))
        self.project = nn.Dense(source, width)
        self.segment = nn.Embedding(4, width)
        self.embed_norm = nn.LayerNorm((width,), epsilon=1e-12)
        self.feature_norm = nn.BatchNorm1d(4)
        self.feature = nn.Dense(4, width)
        self.distance = nn.Embedding(16, heads)
        self.layers = nn.CellList([CrossLayer(width, heads) for _ in range(depth)])
        self.pooler = nn.Dense(width, width)
        self.classifier = nn.Dense(width, 1)
        self.buckets = distance_buckets(64)

    def construct(self, query, query_keep, passage, passage_keep, patches, patches_keep, features):
        n = features.shape[0]
        first = self.cls + self.feature(self.feature_norm(features))[:, None]
        x = ops.cat([first, self.project(query), self.project(passage), self.project(patches)], axis=1)
        lengths = [1, query.shape[1], passage.shape[1], patches.shape[1]]
        segments = Tensor(np.repeat(np.arange(4), lengths), ms.int32)
        x = self.embed_norm(x + self.segment(segments))
        length = x.shape[1]
        keep = ops.cat([ops.ones((n, 1), ms.int32).astype(ms.bool_), query_keep, passage_keep, patches_keep], axis=1)
        distance = self.distance(self.buckets[:length, :length]).transpose(2, 0, 1)
        bias = distance[None] + key_bias(keep)
        for layer in self.layers:
            x = layer(x, bias)
        return self.classifier(ops.tanh(self.pooler(x[:, 0])))[:, 0]


class Retriever(nn.Cell):
    def __init__(self, vocab=120, width=48, embed=32, late=16, best=3, expansion=3):
        super().__init__()
        self.best = best
        self.expansion = expansion
        self.temperature = 0.25
        self.logit_scale = Parameter(Tensor(1.0, ms.float32))
        self.logit_bias = Parameter(Tensor(0.0, ms.float32))
        self.share = Parameter(Tensor(0.0, ms.float32))
        self.mix = Parameter(Tensor(0.0, ms.float32))
        self.text = TextTower(vocab, width, heads=4, depth=2, embed=embed, context=20)
        self.image = ImageTower(width, heads=4, depth=2, embed=embed, grid=4)
        self.late = LateInteraction(width, late)
        self.reranker = Reranker(width, 40, heads=4, depth=2)

    def with_marker(self, tokens, marker):
        return ops.cat([tokens[:, :1], ops.full_like(tokens[:, :1], marker), tokens[:, 1:]], axis=1)

    def prepare_query(self, tokens):
        lengths = (tokens != PAD).astype(ms.int32).sum(axis=1, keepdims=True)
        places = ops.arange(tokens.shape[1])[None]
        behind = ops.logical_and(places >= lengths, places < lengths + self.expansion)
        return self.with_marker(ops.where(behind, MASK, tokens), QUERY)

    def first_stage(self, query_pooled, passage_pooled, image_pooled):
        share = ops.sigmoid(self.share)
        candidate = share * l2_normalize(passage_pooled) + (1 - share) * l2_normalize(image_pooled)
        cosine = ops.matmul(l2_normalize(query_pooled), l2_normalize(candidate).T)
        scale = ops.clamp(ops.exp(self.logit_scale), max=100.0)
        return scale * cosine + self.logit_bias

    def repeat(self, x):
        return ops.repeat_interleave(x, self.best, axis=0)

    def second_stage(self, index, scores, query, query_keep, passage, passage_keep, patches, patches_keep):
        flat = index.reshape(-1)
        rank = ops.broadcast_to(1.0 / ops.arange(1, self.best + 1).astype(ms.float32), index.shape)
        features = [ops.gather_elements(score, 1, index) for score in scores] + [rank]
        features = ops.stack(features, axis=-1).reshape(-1, 4)
        logits = self.reranker(
            self.repeat(query),
            self.repeat(query_keep.astype(ms.int32)).astype(ms.bool_),
            passage[flat],
            passage_keep[flat],
            patches[flat],
            patches_keep[flat],
            features,
        )
        return logits.reshape(-1, self.best)

    def construct(self, queries, passages, images, sizes):
        queries = self.prepare_query(queries)
        passages = self.with_marker(passages, PASSAGE)
        query, query_pooled = self.text(queries, True)
        passage, passage_pooled = self.text(passages, False)
        patches, patches_keep, image_pooled = self.image(images, sizes)
        query_keep = queries != PAD
        passage_keep = passages != PAD
        matched = passage_keep
        for mark in PUNCTUATION:
            matched = ops.logical_and(matched, passages != mark)

        dense = self.first_stage(query_pooled, passage_pooled, image_pooled)
        by_text, by_image = self.late(query, query_keep, passage, matched, patches, patches_keep)
        late = self.temperature * ops.logsumexp(ops.stack([by_text, by_image]) / self.temperature, 0)
        mix = ops.sigmoid(self.mix)
        fused = mix * zscore(dense) + (1 - mix) * zscore(late)

        top, index = ops.topk(fused, self.best, -1)
        reranked = self.second_stage(
            index, (dense, by_text, by_image), query, query_keep, passage, passage_keep, patches, patches_keep
        )
        behind = reranked.min(axis=-1, keepdims=True) + fused - top[:, -1:]
        final = ops.tensor_scatter_elements(behind, index, reranked, axis=1)
        return final, dense, late


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Retriever().set_train(False)
