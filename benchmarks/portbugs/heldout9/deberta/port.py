"""The encoder with disentangled attention and its three heads in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops


def layer_norm(width: int, eps: float = 1e-7):
    return nn.LayerNorm((width,), epsilon=eps)


def log_bucket(relative: np.ndarray, buckets: int, longest: int):
    """Near distances have a bucket each, far ones share buckets that widen geometrically."""
    middle = buckets // 2
    near = (relative < middle) & (relative > -middle)
    distance = np.where(near, middle - 1, np.abs(relative))
    far = np.ceil(np.log(distance / middle) / np.log((longest - 1) / middle) * (middle - 1)) + middle
    return np.where(distance <= middle, relative, far * np.sign(relative)).astype(np.int64)


def relative_indices(length: int, buckets: int, longest: int):
    """Where each pair of words looks in the table: content to position, and position to content."""
    places = np.arange(length)
    relative = log_bucket(places[:, None] - places[None, :], buckets, longest)
    forward = np.clip(relative + buckets, 0, 2 * buckets - 1)
    backward = np.clip(buckets - relative, 0, 2 * buckets - 1)
    return Tensor(forward, ms.int64), Tensor(backward, ms.int64)


class Embeddings(nn.Cell):
    """Words and their segment, normalised; nothing where there is no word."""

    def __init__(self, words: int, types: int, width: int):
        super().__init__()
        self.word = nn.Embedding(words, width)
        self.segment = nn.Embedding(types, width)
        self.norm = layer_norm(width)

    def construct(self, ids, types, keep):
        return self.norm(self.word(ids) + self.segment(types)) * keep


class MaskedSoftmax(nn.Cell):
    """Softmax over the keys that count; a row without any is nothing."""

    def __init__(self):
        super().__init__()
        self.softmax = nn.Softmax(axis=-1)

    def construct(self, scores, pairs):
        weights = self.softmax(ops.where(pairs, scores, Tensor(-3.0e38, ms.float32)))
        return weights * pairs.astype(weights.dtype)


class DisentangledAttention(nn.Cell):
    """Content to content, content to position and position to content; positions share the content's projections."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.size = width // heads
        self.query_proj = nn.Dense(width, width)
        self.key_proj = nn.Dense(width, width)
        self.value_proj = nn.Dense(width, width)
        self.head_gain = Parameter(ops.ones((heads,), ms.float32), name="head_gain")
        self.softmax = MaskedSoftmax()

    def split(self, x):
        return x.reshape(*x.shape[:-1], self.heads, self.size).swapaxes(-2, -3)

    def position_bias(self, q, k, relative):
        """What content says of positions and positions of content, not yet scaled."""
        shape = q.shape[:-1] + (q.shape[-2],)
        forward, backward = relative["index"]
        key = self.split(self.key_proj(relative["table"]))
        query = self.split(self.query_proj(relative["table"]))
        to_position = ops.matmul(q, key.swapaxes(-1, -2))
        to_position = ops.gather_elements(to_position, 3, ops.broadcast_to(forward, shape))
        to_content = ops.matmul(k, query.swapaxes(-1, -2))
        to_content = ops.gather_elements(to_content, 3, ops.broadcast_to(backward, shape))
        return to_position + to_content.swapaxes(-1, -2)

    def construct(self, x, pairs, relative):
        q, k, v = self.split(self.query_proj(x)), self.split(self.key_proj(x)), self.split(self.value_proj(x))
        scores = ops.matmul(q, k.swapaxes(-1, -2)) + self.position_bias(q, k, relative)
        weights = self.softmax(scores / math.sqrt(3 * self.size), pairs)
        mixed = ops.matmul(weights * self.head_gain.reshape(-1, 1, 1), v)
        return mixed.transpose(0, 2, 1, 3).reshape(x.shape)


class GatedFeedForward(nn.Cell):
    """T5's: the GELU of one projection times another, no biases."""

    def __init__(self, width: int, inner: int):
        super().__init__()
        self.wi_0 = nn.Dense(width, inner, has_bias=False)
        self.wi_1 = nn.Dense(width, inner, has_bias=False)
        self.wo = nn.Dense(inner, width, has_bias=False)

    def construct(self, x):
        return self.wo(ops.gelu(self.wi_0(x), approximate="tanh") * self.wi_1(x))


class Layer(nn.Cell):
    """Attention, then feed-forward, each normalised after its shortcut."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attention = DisentangledAttention(width, heads)
        self.dense = nn.Dense(width, width)
        self.norm1 = layer_norm(width)
        self.feed = GatedFeedForward(width, 2 * width)
        self.norm2 = layer_norm(width)

    def construct(self, x, pairs, relative):
        x = self.norm1(x + self.dense(self.attention(x, pairs, relative)))
        return self.norm2(x + self.feed(x))


class ConvLayer(nn.Cell):
    """Looks at every second neighbour of a word beside the first layer."""

    def __init__(self, width: int, kernel: int, groups: int):
        super().__init__()
        self.conv = nn.Conv1d(
            width, width, kernel, pad_mode="pad", padding=kernel - 1, dilation=2, group=groups, has_bias=True
        )
        self.norm = layer_norm(width)

    def construct(self, x, layer, keep):
        near = self.conv(x.transpose(0, 2, 1)).transpose(0, 2, 1) * keep
        return self.norm(layer + ops.tanh(near)) * keep


class Encoder(nn.Cell):
    """The layers; all share one normalised table of relative positions. Each layer's answer is kept."""

    def __init__(self, width: int, heads: int, depth: int, buckets: int, longest: int):
        super().__init__()
        self.buckets = buckets
        self.longest = longest
        self.rel_embeddings = nn.Embedding(2 * buckets, width)
        self.rel_norm = layer_norm(width)
        self.layers = nn.CellList([Layer(width, heads) for _ in range(depth)])
        self.conv = ConvLayer(width, 3, 4)

    def construct(self, x, mask, keep):
        relative = {
            "index": relative_indices(x.shape[1], self.buckets, self.longest),
            "table": self.rel_norm(self.rel_embeddings.embedding_table),
        }
        pairs = ops.logical_and(mask[:, None, :, None], mask[:, None, None, :])
        states = (x,)
        for i, layer in enumerate(self.layers):
            y = layer(x, pairs, relative)
            x = self.conv(x, y, keep) if i == 0 else y
            states += (x,)
        return states


class ScalarMix(nn.Cell):
    """A weighted mean of the layers."""

    def __init__(self, count: int):
        super().__init__()
        self.weights = Parameter(ops.zeros((count,), ms.float32), name="weights")
        self.gamma_mix = Parameter(ops.ones((1,), ms.float32), name="gamma_mix")

    def construct(self, states):
        shares = ops.softmax(self.weights, axis=0)
        total = shares[0] * states[0]
        for i in range(1, len(states)):
            total = total + shares[i] * states[i]
        return self.gamma_mix * total


def masked_pool(x, keep):
    """The mean of the words that are there, and their maximum."""
    mean = (x * keep).sum(1) / ops.clamp(keep.sum(1), min=1.0)
    top = ops.amax(x * keep + (1.0 - keep) * -1e4, 1)
    return mean, top


def chain_score(emissions, tags, mask, transitions, start, end):
    """The score of given tags."""
    keep = mask.astype(emissions.dtype)
    picked = ops.gather_elements(emissions, 2, tags.expand_dims(-1)).squeeze(-1)
    moves = transitions[tags[:, :-1], tags[:, 1:]]
    total = start[tags[:, 0]] + (picked * keep).sum(1) + (moves * keep[:, 1:]).sum(1)
    last = mask.astype(ms.int64).sum(1) - 1
    return total + end[ops.gather_elements(tags, 1, last.expand_dims(1)).squeeze(1)]


def chain_partition(emissions, mask, transitions, start, end):
    """The logarithm of the sum over all sequences of tags."""
    alpha = start + emissions[:, 0]
    for t in range(1, emissions.shape[1]):
        scores = alpha.expand_dims(2) + transitions.expand_dims(0)
        step = ops.logsumexp(scores, 1) + emissions[:, t]
        alpha = ops.where(mask[:, t : t + 1], step, alpha)
    return ops.logsumexp(alpha + end, 1)


def chain_best(emissions, mask, transitions, start, end):
    """The likeliest tags, -1 where there is no word, and their score."""
    batch, length, count = emissions.shape
    best = start + emissions[:, 0]
    stay = ops.broadcast_to(ops.arange(count).astype(ms.int64), (batch, count))
    pointers = []
    for t in range(1, length):
        value, source = ops.max(best.expand_dims(2) + transitions, 1)
        here = mask[:, t : t + 1]
        best = ops.where(here, value + emissions[:, t], best)
        pointers.append(ops.where(here, source.astype(ms.int64), stay))
    value, tag = ops.max(best + end, 1)
    path = [tag.astype(ms.int64)]
    for source in pointers[::-1]:
        path.insert(0, ops.gather_elements(source, 1, path[0].expand_dims(1)).squeeze(1))
    path = ops.stack(path, axis=1)
    return ops.where(mask, path, ops.full_like(path, -1)), value


def well_formed(tags: int):
    """Tag 0 is outside; odd tags begin a kind, the even one after it goes on. Going on needs the same kind before."""
    table = np.zeros((tags, tags), np.float32)
    for after in range(2, tags, 2):
        table[:, after] = -1e4
        table[[after - 1, after], after] = 0.0
    return Tensor(table)


class CRF(nn.Cell):
    """A linear chain: how likely given tags are, and which are likeliest of those that are well formed."""

    def __init__(self, tags: int):
        super().__init__()
        self.transitions = Parameter(ops.zeros((tags, tags), ms.float32), name="transitions")
        self.start = Parameter(ops.zeros((tags,), ms.float32), name="start")
        self.end = Parameter(ops.zeros((tags,), ms.float32), name="end")
        self.forbidden = well_formed(tags)

    def construct(self, emissions, tags, mask):
        chain = (self.transitions, self.start, self.end)
        likelihood = chain_score(emissions, tags, mask, *chain) - chain_partition(emissions, mask, *chain)
        path, value = chain_best(emissions, mask, self.transitions + self.forbidden, self.start, self.end)
        return likelihood / mask.astype(ms.float32).sum(1), path, value


class TagHead(nn.Cell):
    """Scores of the tags from the word and its distance from the sentence's mean, then the chain."""

    def __init__(self, width: int, tags: int):
        super().__init__()
        self.dense = nn.Dense(2 * width, width)
        self.act = nn.CELU(0.5)
        self.norm = layer_norm(width, 1e-5)
        self.emit = nn.Dense(width, tags)
        self.crf = CRF(tags)

    def construct(self, x, mean, tags, mask):
        both = ops.cat([x, x - mean.expand_dims(1)], axis=-1)
        emissions = self.emit(self.norm(self.act(self.dense(both))))
        emissions = emissions - emissions.mean(-1, keep_dims=True)
        return self.crf(emissions, tags, mask)


class SpanHead(nn.Cell):
    """Probabilities of all spans up to a longest one: where it starts, where it ends, and how both agree."""

    def __init__(self, width: int, inner: int, widest: int):
        super().__init__()
        self.widest = widest
        self.edges = nn.Dense(width, 2)
        self.start = nn.Dense(width, inner)
        self.finish = nn.Dense(width, inner)
        self.temperature = Parameter(ops.ones((1,), ms.float32), name="temperature")
        self.prior = -0.4 * np.log1p(np.arange(widest)).astype(np.float32)

    @staticmethod
    def unit(x):
        return x / ops.clamp(ops.sqrt((x * x).sum(-1, keepdims=True)), min=1e-12)

    def construct(self, x, mask):
        batch, length, _ = x.shape
        edges = self.edges(x)
        agree = ops.bmm(self.unit(self.start(x)), self.unit(self.finish(x)).swapaxes(1, 2))
        scores = agree * ops.exp(self.temperature) + edges[:, :, None, 0] + edges[:, None, :, 1]
        wide = np.arange(length)[None, :] - np.arange(length)[:, None]
        scores = scores + Tensor(self.prior[np.clip(wide, 0, self.widest - 1)])
        band = (wide >= 0) & (wide < self.widest)
        allowed = ops.logical_and(ops.logical_and(mask.expand_dims(1), mask.expand_dims(2)), Tensor(band))
        scores = ops.where(allowed, scores, Tensor(-1e4, ms.float32))
        spans = ops.log_softmax(scores.reshape(batch, -1), axis=-1)
        best = spans.argmax(-1).astype(ms.int64)
        return ops.exp(spans).reshape(batch, length, length), ops.stack([best // length, best % length], axis=-1)


class Deberta(nn.Cell):
    """One encoder and three heads."""

    def __init__(self, words: int = 160, width: int = 48, heads: int = 4, depth: int = 3, tags: int = 7):
        super().__init__()
        self.embeddings = Embeddings(words, 2, width)
        self.encoder = Encoder(width, heads, depth, buckets=8, longest=15)
        self.mix = ScalarMix(depth + 1)
        self.pooler = nn.Dense(2 * width, width)
        self.classifier = nn.Dense(width, 3)
        self.tagger = TagHead(width, tags)
        self.span = SpanHead(width, 16, widest=6)

    def construct(self, ids, types, mask, tags):
        keep = mask.expand_dims(-1).astype(ms.float32)
        states = self.encoder(self.embeddings(ids, types, keep), mask, keep)
        mixed = self.mix(states)
        mean, top = masked_pool(mixed, keep)
        hidden = ops.gelu(self.pooler(ops.cat([mean, top], axis=-1)), approximate="none")
        likelihood, path, value = self.tagger(mixed, mean, tags, mask)
        spans, best = self.span(states[-1], mask)
        return self.classifier(hidden), likelihood, path, value, spans, best


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Deberta()
