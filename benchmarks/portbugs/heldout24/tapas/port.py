"""TAPAS-style table question answering in MindSpore: the correct port."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

LOG_ZERO = -1e4
TINY = 1e-10

BUCKET_EDGES = np.array([0.5, 2.0, 5.0, 12.0, 30.0, 80.0], np.float32)
LOG_MEAN, LOG_STD = 2.31, 1.27

# columns of token_type_ids
SEGMENT, COLUMN, ROW, PREV_LABEL, RANK, INV_RANK, RELATION = range(7)
TYPE_SIZES = (3, 10, 13, 2, 11, 12, 8)


def one_hot_members(ids, count):
    """(batch, length) ids as a float matrix (batch, length, count)."""
    return (ids.expand_dims(-1) == ops.arange(count)).astype(ms.float32)


def segment_sum(values, members):
    """values (batch, length), members (batch, length, segments) -> (batch, segments)."""
    return ops.matmul(values.expand_dims(1), members).squeeze(1)


def segment_mean(values, members):
    """Mean of each segment; segments without members get 0."""
    size = members.sum(axis=1)
    return segment_sum(values, members) / ops.clamp(size, min=1.0)


def spread(per_segment, members):
    """The value of the own segment for each element: the way back from segment_mean."""
    return ops.matmul(members, per_segment.expand_dims(-1)).squeeze(-1)


def restarting_positions(types, limit):
    """Positions that count from 0 in each cell."""
    rows, cols = types[:, :, ROW], types[:, :, COLUMN]
    length = types.shape[1]
    cell = rows + cols * TYPE_SIZES[ROW]
    here = ops.arange(length)
    same = cell.expand_dims(2) == cell.expand_dims(1)
    first = ops.where(same, here.reshape(1, 1, -1), length).min(axis=-1)
    return ops.minimum(here.expand_dims(0) - first, limit - 1)


def head_visibility(types, padding_mask, kinds):
    """True where query (axis 2) may see key (axis 3), per head (axis 1)."""
    batch, length, _ = types.shape
    is_question = types[:, :, SEGMENT] == 0
    free = ops.logical_or(is_question.reshape(batch, length, 1), is_question.reshape(batch, 1, length))

    def same(field):
        ids = types[:, :, field]
        return ops.logical_or(ids.expand_dims(2) == ids.expand_dims(1), free)

    by_kind = {"row": same(ROW), "column": same(COLUMN), "full": ops.ones_like(free)}
    visible = ops.stack([by_kind[kind] for kind in kinds], axis=1)
    return ops.logical_and(visible, (padding_mask > 0).reshape(batch, 1, 1, length))


class NumericFeatures(nn.Cell):
    """Bucket and scalar features of the number in a token's cell."""

    def __init__(self, width, hidden=21):
        super().__init__()
        self.edges = Tensor(BUCKET_EDGES)
        self.bucket_embeddings = nn.Embedding(len(BUCKET_EDGES) + 2, width)
        self.dense_in = nn.Dense(4, hidden)
        self.norm = nn.BatchNorm1d(hidden, eps=1e-3, momentum=0.9)
        self.act = nn.LeakyReLU(alpha=0.01)
        self.dense_out = nn.Dense(hidden, width)

    def construct(self, numbers, tokens_in_cell, types):
        missing = ops.isnan(numbers)
        x = ops.masked_fill(numbers, missing, 0.0)
        known = ops.logical_not(missing).astype(x.dtype)

        bucket = (ops.abs(x).expand_dims(-1) > self.edges).astype(ms.int32).sum(axis=-1) + 1
        bucket = ops.where(missing, ops.zeros_like(bucket), bucket)

        log_x = (ops.sign(x) * ops.log(ops.abs(x) + 1.0) - LOG_MEAN) / LOG_STD
        rank, inverse = types[:, :, RANK].astype(x.dtype), types[:, :, INV_RANK].astype(x.dtype)
        quantile = rank / ops.clamp(rank + inverse, min=1.0)
        scalars = ops.stack((log_x * known, known, quantile, 1.0 / tokens_in_cell), axis=-1)

        h = self.dense_in(scalars.reshape(-1, 4))
        h = self.act(self.norm(h))
        h = self.dense_out(h).reshape(*x.shape, -1)
        return self.bucket_embeddings(bucket) + h * known.expand_dims(-1)


class TableEmbeddings(nn.Cell):
    def __init__(self, vocab, width, max_position, dropout):
        super().__init__()
        self.max_position = max_position
        self.word_embeddings = nn.Embedding(vocab, width, padding_idx=0)
        self.position_embeddings = nn.Embedding(max_position, width)
        self.token_type_embeddings = nn.CellList([nn.Embedding(size, width) for size in TYPE_SIZES])
        self.numeric = NumericFeatures(width)
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.dropout = nn.Dropout(p=dropout)

    def construct(self, ids, types, numbers, tokens_in_cell):
        places = restarting_positions(types, self.max_position)
        parts = [self.word_embeddings(ids), self.position_embeddings(places)]
        for field in (SEGMENT, COLUMN, ROW, PREV_LABEL, RANK, INV_RANK, RELATION):
            parts.append(self.token_type_embeddings[field](types[:, :, field]))
        parts.append(self.numeric(numbers, tokens_in_cell, types))
        return self.dropout(self.norm(ops.addn(parts)))


class SelfAttention(nn.Cell):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.head_width = width // heads
        self.query = nn.Dense(width, width)
        self.key = nn.Dense(width, width)
        self.value = nn.Dense(width, width)
        self.dropout = nn.Dropout(p=dropout)

    def split(self, x):
        b, s, _ = x.shape
        return x.reshape(b, s, self.heads, self.head_width).swapaxes(1, 2)

    def construct(self, x, visible):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        logits = ops.matmul(q, k.swapaxes(-1, -2)) * self.head_width**-0.5
        logits = ops.masked_fill(logits, ops.logical_not(visible), LOG_ZERO)
        weights = self.dropout(ops.softmax(logits, axis=-1))
        mixed = ops.matmul(weights, v)
        return mixed.swapaxes(1, 2).reshape(x.shape)


class AddNorm(nn.Cell):
    """norm(x W + b + residual)"""

    def __init__(self, in_width, width, dropout):
        super().__init__()
        self.dense = nn.Dense(in_width, width)
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.dropout = nn.Dropout(p=dropout)

    def construct(self, x, residual):
        return self.norm(residual + self.dropout(self.dense(x)))


class Intermediate(nn.Cell):
    def __init__(self, width, hidden):
        super().__init__()
        self.dense = nn.Dense(width, hidden)
        self.act = nn.GELU(approximate=False)

    def construct(self, x):
        return self.act(self.dense(x))


class EncoderLayer(nn.Cell):
    def __init__(self, width, heads, hidden, dropout):
        super().__init__()
        self.attention = SelfAttention(width, heads, dropout)
        self.attention_output = AddNorm(width, width, dropout)
        self.intermediate = Intermediate(width, hidden)
        self.output = AddNorm(hidden, width, dropout)

    def construct(self, x, visible):
        x = self.attention_output(self.attention(x, visible), x)
        y = self.intermediate(x)
        return self.output(y, x)


class Encoder(nn.Cell):
    """The first layers look along rows and columns, the others everywhere."""

    def __init__(self, depth, structured, kinds, width, hidden, dropout):
        super().__init__()
        self.structured = structured
        self.kinds = kinds
        self.layer = nn.CellList([EncoderLayer(width, len(kinds), hidden, dropout) for _ in range(depth)])

    def construct(self, x, types, padding_mask):
        narrow = head_visibility(types, padding_mask, self.kinds)
        wide = ops.broadcast_to((padding_mask > 0).expand_dims(1).expand_dims(1), narrow.shape)
        for number, layer in enumerate(self.layer):
            x = layer(x, narrow if number < self.structured else wide)
        return x


class Pooler(nn.Cell):
    def __init__(self, width):
        super().__init__()
        self.dense = nn.Dense(width, width)
        self.activation = nn.Tanh()

    def construct(self, x):
        first = x[:, 0]
        return self.activation(self.dense(first))


class CellHead(nn.Cell):
    def __init__(self, width, temperature):
        super().__init__()
        self.temperature = temperature
        self.score = nn.Dense(width, 1)

    def construct(self, x, members):
        scores = self.score(x).squeeze(-1) / self.temperature
        return spread(segment_mean(scores, members), members)


class ColumnHead(nn.Cell):
    """Mean over the non-header cells of each column, every cell being the mean of its tokens."""

    def __init__(self, width, rows, columns):
        super().__init__()
        self.rows, self.columns = rows, columns
        self.column_output_weights = Parameter(Tensor(np.zeros((width,), np.float32)), name="column_output_weights")
        self.column_output_bias = Parameter(Tensor(np.zeros((), np.float32)), name="column_output_bias")

    def construct(self, x, members, cell_mask):
        per_token = (x * self.column_output_weights).sum(axis=-1) + self.column_output_bias
        grid = segment_mean(per_token, members).reshape(-1, self.rows, self.columns)
        present = cell_mask.reshape(-1, self.rows, self.columns)
        count = present.sum(axis=1)
        logits = (grid * present).sum(axis=1) / (count + TINY)
        empty = count < 0.5
        empty[:, 0] = True  # column 0 is the question
        return logits + LOG_ZERO * empty.astype(logits.dtype)


class TableQA(nn.Cell):
    """Tokens of question and table to scores of cells and columns, the operation, and the answer's number."""

    def __init__(self, vocab=97, width=36, depth=4, hidden=58, max_position=27, dropout=0.1):
        super().__init__()
        self.rows, self.columns = 9, 7
        self.operation_temperature = 0.8
        kinds = ("row", "column", "full", "full")
        self.embeddings = TableEmbeddings(vocab, width, max_position, dropout)
        self.encoder = Encoder(depth, 2, kinds, width, hidden, dropout)
        self.pooler = Pooler(width)
        self.cell_head = CellHead(width, temperature=1.4)
        self.column_head = ColumnHead(width, self.rows, self.columns)
        self.aggregation_head = nn.Dense(width, 4)

    def cell_members(self, types):
        row = ops.clamp(types[:, :, ROW], max=self.rows - 1)
        col = ops.clamp(types[:, :, COLUMN], max=self.columns - 1)
        return one_hot_members(row * self.columns + col, self.rows * self.columns)

    def keep_best_column(self, scores, column_logits, members, cell_mask):
        """Scores of the cells, LOG_ZERO added outside of the best column."""
        per_cell = segment_mean(scores, members)
        best = column_logits.argmax(axis=-1).expand_dims(-1)
        column_of_cell = ops.arange(self.rows * self.columns) % self.columns
        chosen = ops.logical_and(column_of_cell == best, column_of_cell > 0)
        keep = chosen.astype(per_cell.dtype) * cell_mask
        return per_cell + LOG_ZERO * (1.0 - keep)

    def average_of(self, p, v):
        """Expected average over a random set of cells, to second order."""
        others = p.sum(axis=1, keepdims=True) - p + 1.0
        spread_of = p * (1.0 - p)
        variance = spread_of.sum(axis=1, keepdims=True) - spread_of
        inverse = (1.0 + variance / others**2) / others
        return (p * v * inverse).sum(axis=1)

    def results(self, probs, scores, numbers, tokens_in_cell, in_table):
        no_number = mint.isnan(numbers)
        usable = in_table * ops.logical_not(no_number).astype(probs.dtype)
        v = ops.masked_fill(numbers, no_number, 0.0)
        p = probs * usable / tokens_in_cell

        picked = ops.softmax(scores - ops.log(tokens_in_cell) + LOG_ZERO * (1.0 - usable), axis=1)
        picked = picked * (probs > 0).astype(v.dtype) * usable
        single = (picked * v).sum(axis=1)
        total = (p * v).sum(axis=1)
        number_of = p.sum(axis=1)
        return ops.stack((single, total, self.average_of(p, v), number_of), axis=1)

    def construct(self, ids, padding_mask, types, numbers, tokens_in_cell):
        x = self.embeddings(ids, types, numbers, tokens_in_cell)
        x = self.encoder(x, types, padding_mask)
        operations = self.aggregation_head(self.pooler(x))

        members = self.cell_members(types)
        real = padding_mask.astype(x.dtype)
        in_table = (types[:, :, ROW] > 0).astype(x.dtype) * real
        cell_mask = segment_mean(in_table, members)

        scores = self.cell_head(x, members)
        column_logits = self.column_head(x, members, cell_mask)
        per_cell = self.keep_best_column(scores, column_logits, members, cell_mask)
        kept = spread(per_cell, members)
        probs = ops.sigmoid(kept) * in_table

        results = self.results(probs, kept, numbers, tokens_in_cell, in_table)
        choice = ops.softmax(operations / self.operation_temperature, axis=-1)
        answer = ops.matmul(choice.expand_dims(1), results.expand_dims(2)).reshape(-1)
        return (
            scores * real,
            ops.softmax(column_logits, axis=-1),
            ops.sigmoid(per_cell) * cell_mask,
            operations,
            results,
            answer,
        )


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = TableQA()
    net.set_train(False)
    return net
