"""The Reformer-like document encoder in MindSpore: the correct port."""

from __future__ import annotations

import math

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

NEG_PAD = -1e9
NEG_SELF = -1e5

LAYER_KINDS = ("local", "lsh", "local", "lsh", "lsh")


def make_param(shape, name, requires_grad=True):
    return Parameter(Tensor(np.zeros(shape, np.float32)), name=name, requires_grad=requires_grad)


def chunked(x, size):
    """Cut the axis after the heads into chunks."""
    return x.reshape(tuple(x.shape[:2]) + (x.shape[2] // size, size) + tuple(x.shape[3:]))


def shifted(chunks, step, fill=None):
    """Chunk i takes the content of chunk i - step (step is 1 or -1); with no fill it goes around the end."""
    if step == 1:
        edge, rest = chunks[:, :, -1:], chunks[:, :, :-1]
    else:
        edge, rest = chunks[:, :, :1], chunks[:, :, 1:]
    if fill is not None:
        edge = ops.full_like(edge, fill)
    return ops.cat((edge, rest) if step == 1 else (rest, edge), axis=2)


def with_previous(chunks):
    return ops.cat((shifted(chunks, 1), chunks), axis=3)


def with_neighbours(chunks):
    return ops.cat((shifted(chunks, 1, 0), chunks, shifted(chunks, -1, 0)), axis=3)


def take_rows(x, index):
    """x (batch, heads, length, size), index (batch, heads, any) -> (batch, heads, any, size)."""
    index = ops.broadcast_to(index.expand_dims(-1), tuple(index.shape) + (x.shape[-1],))
    return ops.gather_elements(x, 2, index)


class AxialPositions(nn.Cell):
    """Tables by row and by column of a grid; the channels are put side by side."""

    def __init__(self, shape, dims):
        super().__init__()
        self.rows, self.cols = shape
        self.weight_row = make_param((self.rows, 1, dims[0]), "weight_row")
        self.weight_col = make_param((1, self.cols, dims[1]), "weight_col")

    def construct(self, length):
        places = ops.arange(length)
        by_row = ops.gather(self.weight_row[:, 0], places // self.cols, 0)
        by_col = ops.gather(self.weight_col[0], places % self.cols, 0)
        return ops.cat((by_row, by_col), axis=-1).expand_dims(0)


class Embeddings(nn.Cell):
    def __init__(self, vocab, width, axial_shape, axial_dims, pad_id, dropout):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab, width, padding_idx=pad_id)
        self.position_embeddings = AxialPositions(axial_shape, axial_dims)
        self.segment_embeddings = nn.Embedding(3, width)
        self.norm = nn.LayerNorm((width,), epsilon=1e-3)
        self.dropout = nn.Dropout(p=dropout)

    def construct(self, ids, segments):
        x = self.norm(self.word_embeddings(ids) + self.segment_embeddings(segments))
        return self.dropout(x) + self.position_embeddings(ids.shape[1])


class HashAttention(nn.Cell):
    """LSH attention: shared queries and keys, several rounds of hashing."""

    def __init__(self, width, heads, head_size, chunk, hashes, factors, dropout):
        super().__init__()
        self.heads, self.head_size, self.chunk = heads, head_size, chunk
        self.hashes = hashes
        self.factors = factors
        self.count = int(np.prod(factors))
        self.query_key = nn.Dense(width, heads * head_size, has_bias=False)
        self.value = nn.Dense(width, heads * head_size, has_bias=False)
        self.dropout = nn.Dropout(p=dropout)
        self.rotations = make_param((heads, head_size, hashes, sum(factors) // 2), "rotations", requires_grad=False)

    def to_heads(self, x):
        b, n, _ = x.shape
        return x.reshape(b, n, self.heads, self.head_size).transpose(0, 2, 1, 3)

    def bucket_ids(self, qk, valid):
        """(batch, heads, hashes, length) without the offsets of the rounds; padding goes last."""
        b, m, n, d = qk.shape
        turned = ops.matmul(qk, self.rotations.reshape(1, m, d, -1))
        turned = turned.reshape(b, m, n, self.hashes, -1).transpose(0, 1, 3, 2, 4)
        ids = ops.zeros((b, m, self.hashes, n), ms.int32)
        base, at = 1, 0
        for factor in self.factors:
            half = factor // 2
            piece = turned[..., at : at + half]
            digit = ops.argmax(ops.cat((piece, -piece), axis=-1), dim=-1).astype(ms.int32)
            ids = ids + digit * base
            base *= factor
            at += half
        alive = ops.broadcast_to(valid.reshape(b, 1, 1, n), ids.shape)
        return ops.where(alive, ids, ops.full_like(ids, self.count))

    def hash_order(self, ids):
        """Permutation over all rounds (stable within a bucket), and its inverse."""
        b, m, rounds, n = ids.shape
        ids = ids + ops.arange(rounds).astype(ms.int32).reshape(1, 1, rounds, 1) * (self.count + 1)
        rank = ids * n + ops.arange(n).astype(ms.int32)
        order = ops.argsort(rank.reshape(b, m, rounds * n), axis=-1)
        return order, ops.argsort(order, axis=-1)

    def unit_keys(self, qk):
        mean_square = ops.mean(ops.square(qk), -1, True)
        return qk * ops.rsqrt(mean_square + 1e-6) / math.sqrt(self.head_size)

    def combine(self, out, weight, inverse, n):
        """Undo the sort, and add the rounds up by the mass that each one saw."""
        b, m = out.shape[:2]
        out = take_rows(out, inverse).reshape(b, m, self.hashes, n, self.head_size)
        weight = ops.gather_elements(weight, 2, inverse).reshape(b, m, self.hashes, n)
        share = ops.softmax(weight, axis=2)
        return (out * share.expand_dims(-1)).sum(axis=2)

    def construct(self, x, valid):
        b, n, _ = x.shape
        qk, v = self.to_heads(self.query_key(x)), self.to_heads(self.value(x))

        order, inverse = self.hash_order(self.bucket_ids(qk, valid))
        place = order % n
        q_chunks = chunked(take_rows(qk, place), self.chunk)
        k_chunks = with_previous(self.unit_keys(q_chunks))
        v_chunks = with_previous(chunked(take_rows(v, place), self.chunk))
        q_place = chunked(place, self.chunk)
        k_place = with_previous(q_place)

        logits = ops.matmul(q_chunks, k_chunks.swapaxes(-1, -2))
        lengths = valid.astype(ms.int32).sum(axis=-1).reshape(b, 1, 1, 1)
        padded = (k_place >= lengths).expand_dims(-2)
        logits = ops.masked_fill(logits, padded, NEG_PAD)
        itself = q_place.expand_dims(-1) == k_place.expand_dims(-2)
        logits = ops.masked_fill(logits, itself, NEG_SELF)

        total = ops.logsumexp(logits, -1, True)
        out = ops.matmul(self.dropout(ops.exp(logits - total)), v_chunks)
        out = out.reshape(b, self.heads, -1, self.head_size)
        out = self.combine(out, total.reshape(b, self.heads, -1), inverse, n)
        return out.transpose(0, 2, 1, 3).reshape(b, n, self.heads * self.head_size)


class LocalAttention(nn.Cell):
    """Each chunk attends to itself and to its two neighbours."""

    def __init__(self, width, heads, head_size, chunk, dropout):
        super().__init__()
        self.heads, self.head_size, self.chunk = heads, head_size, chunk
        self.query = nn.Dense(width, heads * head_size, has_bias=False)
        self.key = nn.Dense(width, heads * head_size, has_bias=False)
        self.value = nn.Dense(width, heads * head_size, has_bias=False)
        self.distance_bias = make_param((heads, 4 * chunk - 1), "distance_bias")
        self.dropout = nn.Dropout(p=dropout)
        distance = np.arange(3 * chunk)[None, :] - np.arange(chunk, 2 * chunk)[:, None]
        self.distance_index = Tensor((distance + 2 * chunk - 1).reshape(-1), ms.int32)

    def heads_in_chunks(self, x):
        b, n, _ = x.shape
        x = x.reshape(b, n, self.heads, self.head_size).swapaxes(1, 2)
        return chunked(x, self.chunk)

    def construct(self, x, valid):
        b, n, _ = x.shape
        q = self.heads_in_chunks(self.query(x)) * self.head_size**-0.5
        k = with_neighbours(self.heads_in_chunks(self.key(x)))
        v = with_neighbours(self.heads_in_chunks(self.value(x)))

        bias = ops.gather(self.distance_bias, self.distance_index, 1)
        bias = bias.reshape(1, self.heads, 1, self.chunk, 3 * self.chunk)
        scores = ops.matmul(q, k.swapaxes(-1, -2)) + bias
        alive = with_neighbours(chunked(valid.astype(ms.int32).expand_dims(1), self.chunk))
        scores = ops.masked_fill(scores, alive.expand_dims(-2) == 0, NEG_PAD)
        out = ops.matmul(self.dropout(ops.softmax(scores, axis=-1)), v)
        return out.reshape(b, self.heads, n, self.head_size).swapaxes(1, 2).reshape(b, n, -1)


class Attention(nn.Cell):
    def __init__(self, kind, width, heads, head_size, lsh_chunk, local_chunk, hashes, factors, dropout):
        super().__init__()
        self.layer_norm = nn.LayerNorm((width,), epsilon=1e-6)
        if kind == "lsh":
            self.self_attention = HashAttention(width, heads, head_size, lsh_chunk, hashes, factors, dropout)
        else:
            self.self_attention = LocalAttention(width, heads, head_size, local_chunk, dropout)
        self.output = nn.Dense(heads * head_size, width, has_bias=False)
        self.dropout = nn.Dropout(p=dropout)

    def construct(self, x, valid):
        return self.dropout(self.output(self.self_attention(self.layer_norm(x), valid)))


class FeedForward(nn.Cell):
    """Runs over parts of the sequence."""

    def __init__(self, width, hidden, part, dropout):
        super().__init__()
        self.part = part
        self.layer_norm = nn.LayerNorm((width,), epsilon=1e-6)
        self.dense = nn.Dense(width, hidden)
        self.act = nn.GELU(approximate=False)
        self.output = nn.Dense(hidden, width)
        self.dropout = nn.Dropout(p=dropout)

    def construct(self, x):
        done = []
        for begin in range(0, x.shape[1], self.part):
            piece = self.layer_norm(x[:, begin : begin + self.part])
            done.append(self.dropout(self.output(self.act(self.dense(piece)))))
        return ops.cat(done, axis=1)


class Layer(nn.Cell):
    def __init__(self, kind, width, ffn, part, dropout, **attention):
        super().__init__()
        self.attention = Attention(kind, width, dropout=dropout, **attention)
        self.feed_forward = FeedForward(width, ffn, part, dropout)

    def construct(self, first, second, valid):
        first = first + self.attention(second, valid)
        second = second + self.feed_forward(first)
        return first, second


class Encoder(nn.Cell):
    """The stack over two residual streams."""

    def __init__(self, width, **layer):
        super().__init__()
        self.layers = nn.CellList([Layer(kind, width, **layer) for kind in LAYER_KINDS])
        self.layer_norm = nn.LayerNorm((2 * width,), epsilon=1e-6)
        self.dropout = nn.Dropout(p=layer["dropout"])

    def construct(self, x, valid):
        first = second = x
        for layer in self.layers:
            first, second = layer(first, second, valid)
        return self.dropout(self.layer_norm(ops.cat((first, second), axis=-1)))


class DocumentHead(nn.Cell):
    """Class of the whole document."""

    def __init__(self, width, hidden, classes, dropout):
        super().__init__()
        self.gate = nn.Dense(width, 1)
        self.dense = nn.Dense(2 * width, hidden)
        self.act = nn.LeakyReLU(alpha=0.01)
        self.dropout = nn.Dropout(p=dropout)
        self.out_proj = nn.Dense(hidden, classes)

    def construct(self, x, in_document):
        gate = ops.masked_fill(self.gate(x), ops.logical_not(in_document).expand_dims(-1), NEG_PAD)
        gate = ops.softmax(gate, axis=1)
        pooled = (x * gate).sum(axis=1)
        features = ops.cat((x[:, 0], pooled), axis=1)
        return self.out_proj(self.dropout(self.act(self.dense(features))))


class SpanHead(nn.Cell):
    """A grid of (start, length) of answers, and no answer at all, under one softmax."""

    def __init__(self, width, size, channels, max_span, slope):
        super().__init__()
        self.max_span = max_span
        self.size = size
        self.qa_outputs = nn.Dense(width, 2)
        self.start_proj = nn.Dense(width, size)
        self.end_proj = nn.Dense(width, size)
        self.grid_conv = nn.Conv2d(3, channels, 3, pad_mode="pad", padding=(2, 2, 1, 1), dilation=(2, 1),
                                   has_bias=True)
        self.grid_norm = nn.GroupNorm(3, channels)
        self.act = nn.GELU(approximate=False)
        self.grid_mix = nn.Conv2d(channels, 1, 1, pad_mode="valid", has_bias=True)
        self.length_prior = Tensor(-slope * np.log(np.arange(1, max_span + 1)), ms.float32)

    def ends(self, n):
        """(n, max_span): the last place of each span, and whether there is such a place."""
        last = np.arange(n)[:, None] + np.arange(self.max_span)[None, :]
        inside = last < n
        return Tensor(np.minimum(last, n - 1), ms.int32), Tensor(inside)

    def allowed_spans(self, in_document, limit, last, inside):
        b, n = in_document.shape
        tail = ops.gather(in_document.astype(ms.int32), last, 1) > 0
        short = ops.arange(self.max_span).reshape(1, 1, -1) < limit.reshape(b, 1, 1)
        both = ops.logical_and(in_document.expand_dims(-1), ops.logical_and(tail, inside))
        return ops.logical_and(both, short)

    def construct(self, x, in_document, limit):
        b, n, _ = x.shape
        last, inside = self.ends(n)
        start, end = ops.unbind(self.qa_outputs(x), dim=-1)
        nothing = (start[:, 0] + end[:, 0]).expand_dims(-1)
        allowed = self.allowed_spans(in_document, limit, last, inside)

        heads = self.start_proj(x).expand_dims(2)
        tails = ops.gather(self.end_proj(x), last, 1)
        match = (heads * tails).sum(axis=-1) / math.sqrt(self.size)
        begins = ops.broadcast_to(start.expand_dims(-1), match.shape)
        grid = ops.stack((begins, ops.gather(end, last, 1), match), axis=1)
        grid = grid * allowed.astype(grid.dtype).expand_dims(1)
        refined = self.grid_mix(self.act(self.grid_norm(self.grid_conv(grid))))[:, 0]
        scores = grid.sum(axis=1) + refined + self.length_prior
        scores = ops.masked_fill(scores, ops.logical_not(allowed), NEG_PAD).reshape(b, -1)

        joint = ops.softmax(ops.cat((nothing, scores), axis=1), axis=-1)
        spans = joint[:, 1:].reshape(b, n, self.max_span)
        margin = scores.max(axis=1) - nothing[:, 0]
        by_start = spans.sum(axis=-1)
        # the mass of a span of width w moves w places to the right
        moved = [ops.pad(spans[:, : n - w, w], (w, 0)) for w in range(self.max_span)]
        by_end = ops.stack(moved, axis=0).sum(axis=0)
        return spans, by_start, by_end, margin


class DocumentReformer(nn.Cell):
    """Class of a document and the span that answers a question on it."""

    def __init__(self, vocab=97, width=32, pad_id=0, dropout=0.05):
        super().__init__()
        self.pad_id = pad_id
        lsh_chunk, local_chunk = 8, 9
        self.multiple = int(np.lcm(lsh_chunk, local_chunk))
        self.embeddings = Embeddings(vocab, width, (7, 12), (10, 22), pad_id, dropout)
        self.encoder = Encoder(width, ffn=76, part=20, dropout=dropout, heads=3, head_size=14, lsh_chunk=lsh_chunk,
                               local_chunk=local_chunk, hashes=4, factors=(4, 6))
        self.document_head = DocumentHead(2 * width, 27, 5, dropout)
        self.span_head = SpanHead(2 * width, 11, 6, max_span=9, slope=0.35)

    def construct(self, input_ids, attention_mask, question_length, max_answer):
        b, n = input_ids.shape
        ids, valid = input_ids.astype(ms.int32), attention_mask.astype(ms.int32)
        extra = (self.multiple - n % self.multiple) % self.multiple
        if extra:
            ids = ops.cat((ids, ops.full((b, extra), self.pad_id, dtype=ms.int32)), axis=1)
            valid = ops.cat((valid, ops.zeros((b, extra), ms.int32)), axis=1)
        after_question = ops.arange(n + extra).reshape(1, -1) >= question_length.reshape(b, 1)
        segments = (after_question.astype(ms.int32) + 1) * valid

        x = self.encoder(self.embeddings(ids, segments), valid > 0)[:, :n]
        in_document = segments[:, :n] == 2
        logits = self.document_head(x, in_document)
        return (logits,) + self.span_head(x, in_document, max_answer)


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = DocumentReformer()
    net.set_train(False)
    return net
